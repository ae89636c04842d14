//! U-Nets: Ronneberger, Fischer, Brox, "U-Net: convolutional networks for biomedical image segmentation", 2015, as most
//! have them in PyTorch today: convolutions that keep the size of images, with batch normalisation, and transposed
//! convolutions on the way up. Names are those of the implementation that is used most (milesial's), first values
//! PyTorch's.

use super::{Layers, LayersFn, Model};
use crate::error::Result;
use crate::graph::{BatchNorm, Builder, Conv, Pool, TensorId};

pub const UNET: Model = model(
    "unet",
    "4 times half the size, 64 to 1024 channels: 31,037,698 parameters",
    [3, 256, 256],
    |net, x, classes| unet(net, x, classes, [4, 64]),
);

pub const UNET_SMALL: Model = model(
    "unet_small",
    "3 times half the size, 16 to 128 channels: 482,754 parameters",
    [3, 128, 128],
    |net, x, classes| unet(net, x, classes, [3, 16]),
);

const fn model(name: &'static str, about: &'static str, image: [usize; 3], layers: LayersFn) -> Model {
    Model { name, about, image, classes: 2, layers: Layers::Of(layers) }
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
            net.conv_transpose(&format!("{name}.up"), x, width << level, Conv::square(2).stride(2), [0, 0])?;
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

/// Zeros around an image that has lost a row or a column to a pooling.
fn filled_up(net: &mut Builder, name: &str, mut x: TensorId, like: TensorId) -> Result<TensorId> {
    for axis in [2, 3] {
        let lacking = net.shape(like).0[axis] - net.shape(x).0[axis];
        if lacking > 0 {
            x = net.pad(&format!("{name}.pad{axis}"), x, axis, [lacking / 2, lacking - lacking / 2])?;
        }
    }
    Ok(x)
}
