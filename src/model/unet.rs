//! U-Nets: Ronneberger, Fischer, Brox, "U-Net: convolutional networks for biomedical image segmentation", 2015, as most
//! have them in PyTorch today: convolutions that keep the size of images, with batch normalisation, and transposed
//! convolutions on the way up. Names are those of the implementation that is used most (milesial's), first values
//! PyTorch's.

use super::{Layers, Model};
use crate::error::{Error, Result};
use crate::graph::{BatchNorm, Builder, Conv, Pool, SampleShape, TensorId};

pub const UNET: Model =
    model("unet", "4 times half the size, 64 to 1024 channels: 31,037,698 parameters", [3, 256, 256], USUAL);

pub const UNET_SMALL: Model = model(
    "unet_small",
    "3 times half the size, 16 to 128 channels: 482,754 parameters",
    [3, 128, 128],
    [3, 16],
);

/// How often images become half as large in `unet`, and how many channels it has at first.
const USUAL: [usize; 2] = [4, 64];

/// What the name of one begins with whose numbers are said.
pub const BY_NUMBERS: &str = "unet:";

/// The one of `unet:depth=4,width=64`, of which either may lack.
///
/// # Errors
/// `Usage`, with what such names are.
pub fn by_numbers(name: &str, numbers: &str) -> Result<Model> {
    const LARGEST: [usize; 2] = [8, 4096];
    let mut said = [None; 2];
    for word in numbers.split(',') {
        let known = word.split_once('=').and_then(|(key, number)| {
            let place = ["depth", "width"].iter().position(|of| *of == key)?;
            let fits = |number: &usize| (1..=LARGEST[place]).contains(number) && said[place].is_none();
            Some((place, number.parse().ok().filter(fits)?))
        });
        let Some((place, number)) = known else {
            return Err(Error::usage(format!(
                "--model {name}: {word:?} is neither a depth from 1 to {} nor a width from 1 to {}, each once; such \
                 names are {BY_NUMBERS}depth=4,width=64: how often images become half as large, and channels at first",
                LARGEST[0], LARGEST[1]
            )));
        };
        said[place] = Some(number);
    }
    let size = [0, 1].map(|place| said[place].unwrap_or(USUAL[place]));
    Ok(Model { layers: Layers::Sized(unet, size, Some(name.into())), ..UNET })
}

/// Çiçek, Abdulkadir, Lienkamp, Brox, Ronneberger, "3D U-Net: learning dense volumetric segmentation from sparse
/// annotation", 2016.
pub const UNET3D: Model = Model {
    name: "unet3d",
    about: "of cubes, 3 times half the size, 64 to 512 channels: 19,074,627 parameters",
    image: SampleShape::cube([3, 128, 128, 128]),
    classes: 3,
    layers: Layers::Of(unet3d),
};

const fn model(name: &'static str, about: &'static str, image: [usize; 3], size: [usize; 2]) -> Model {
    Model {
        name,
        about,
        image: SampleShape::image(image),
        classes: 2,
        layers: Layers::Sized(unet, size, None),
    }
}

/// So many times to half the size and twice the channels, of which there are `width` at first; then the way back,
/// beside what had that size before.
fn unet(net: &mut Builder, images: TensorId, classes: usize, [depth, width]: [usize; 2]) -> Result<TensorId> {
    let mut x = twice(net, "inc", images, width)?;
    let mut before = Vec::with_capacity(depth);
    for level in 1..=depth {
        before.push(x);
        let pooled = net.max_pool(&format!("down{level}.maxpool_conv.0"), x, Pool::square(2))?;
        x = twice(net, &format!("down{level}.maxpool_conv.1"), pooled, width << level)?;
    }
    for (level, skipped) in before.into_iter().enumerate().rev() {
        let name = format!("up{}", depth - level);
        let doubled =
            net.conv_transpose(&format!("{name}.up"), x, width << level, Conv::square(2).stride(2), [0; 3])?;
        let doubled = filled_up(net, &name, doubled, skipped)?;
        let both = net.concat(&format!("{name}.concat"), &[skipped, doubled])?;
        x = twice(net, &format!("{name}.conv"), both, width << level)?;
    }
    net.conv("outc.conv", x, classes, Conv::square(1))
}

/// Convolution, normalisation and ReLU, twice.
fn twice(net: &mut Builder, name: &str, mut x: TensorId, channels: usize) -> Result<TensorId> {
    for layer in [0, 3] {
        let part = |more: usize| format!("{name}.double_conv.{}", layer + more);
        let conv = Conv { bias: false, ..Conv::square(3).padding(1) };
        x = net.conv(&part(0), x, channels, conv)?;
        x = net.batch_norm(&part(1), x, BatchNorm::default())?;
        x = net.relu(&part(2), x);
    }
    Ok(x)
}

/// The published number of parameters counts biases, and not the normalisations, of which one follows each convolution
/// but the last. A bias before a normalisation has a gradient of nothing but rounding. Convolutions keep the size of
/// cubes, where the paper's lose their borders.
fn unet3d(net: &mut Builder, cubes: TensorId, classes: usize) -> Result<TensorId> {
    const WIDTH: usize = 32;
    let (mut x, mut before) = (cubes, Vec::new());
    for level in 0..4 {
        if level > 0 {
            before.push(x);
            x = net.max_pool(&format!("pool{level}"), x, Pool::square(2).cubic())?;
        }
        x = twice3d(net, &format!("analysis{}", level + 1), x, [WIDTH << level, WIDTH << (level + 1)])?;
    }
    for (level, skipped) in before.into_iter().enumerate().rev() {
        let (name, channels) = (format!("up{}", level + 1), net.shape(x).channels());
        let conv = Conv { bias: false, ..Conv::square(2).stride(2).cubic() };
        x = net.conv_transpose(&name, x, channels, conv, [0; 3])?;
        x = filled_up(net, &name, x, skipped)?;
        x = net.concat(&format!("{name}.concat"), &[skipped, x])?;
        x = twice3d(net, &format!("synthesis{}", level + 1), x, [WIDTH << (level + 1); 2])?;
    }
    net.conv("out", x, classes, Conv::square(1).cubic())
}

fn twice3d(net: &mut Builder, name: &str, mut x: TensorId, channels: [usize; 2]) -> Result<TensorId> {
    for (channels, number) in channels.into_iter().zip(1..) {
        let part = |part: &str| format!("{name}.{part}{number}");
        x = net.conv(&part("conv"), x, channels, Conv::square(3).padding(1).cubic())?;
        x = net.batch_norm(&part("bn"), x, BatchNorm::default())?;
        x = net.relu(&part("relu"), x);
    }
    Ok(x)
}

/// Zeros around an image that has lost a row or a column to a pooling.
fn filled_up(net: &mut Builder, name: &str, mut x: TensorId, like: TensorId) -> Result<TensorId> {
    for axis in 2..net.shape(x).rank() {
        let lacking = net.shape(like).0[axis] - net.shape(x).0[axis];
        if lacking > 0 {
            x = net.pad(&format!("{name}.pad{axis}"), x, axis, [lacking / 2, lacking - lacking / 2])?;
        }
    }
    Ok(x)
}
