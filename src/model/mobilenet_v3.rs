//! MobileNetV3: Howard et al., "Searching for MobileNetV3", 2019, with torchvision's names and first values.

use super::squeeze::{conv_norm, squeeze_excite};
use super::{Layers, Model};
use crate::error::Result;
use crate::graph::{Activation, BatchNorm, Builder, Conv, InitScheme, SampleShape, TensorId};

pub const MOBILENET_V3_LARGE: Model = Model {
    name: "mobilenet_v3_large",
    about: "15 inverted residuals, 8 with squeeze-and-excitation: 5,483,032 parameters",
    image: SampleShape::image([3, 224, 224]),
    classes: 1000,
    layers: Layers::Of(mobilenet_v3_large),
};

/// The paper's table 1: kernel, channels within the block, channels behind it, whether it has squeeze-and-excitation,
/// whether its activation is hard swish (else ReLU), stride.
const BLOCKS: [(usize, usize, usize, bool, bool, usize); 15] = [
    (3, 16, 16, false, false, 1),
    (3, 64, 24, false, false, 2),
    (3, 72, 24, false, false, 1),
    (5, 72, 40, true, false, 2),
    (5, 120, 40, true, false, 1),
    (5, 120, 40, true, false, 1),
    (3, 240, 80, false, true, 2),
    (3, 200, 80, false, true, 1),
    (3, 184, 80, false, true, 1),
    (3, 184, 80, false, true, 1),
    (3, 480, 112, true, true, 1),
    (3, 672, 112, true, true, 1),
    (5, 672, 160, true, true, 2),
    (5, 960, 160, true, true, 1),
    (5, 960, 160, true, true, 1),
];

const HARD_SWISH: Option<Activation> = Some(Activation::HardSwish);

fn norm() -> BatchNorm {
    BatchNorm { epsilon: 1e-3, momentum: 0.01, ..BatchNorm::default() }
}

fn mobilenet_v3_large(net: &mut Builder, images: TensorId, classes: usize) -> Result<TensorId> {
    net.init_convolutions(InitScheme::NormalFanOut, InitScheme::Zero);
    net.init_linears(InitScheme::Normal { std: 0.01 }, InitScheme::Zero);
    let stem = Conv::square(3).stride(2).padding(1);
    let mut x = conv_norm(net, "features.0", images, 16, stem, norm(), HARD_SWISH)?;
    for (block, place) in BLOCKS.into_iter().zip(1..) {
        x = inverted_residual(net, &format!("features.{place}"), x, block)?;
    }
    x = conv_norm(net, "features.16", x, 960, Conv::square(1), norm(), HARD_SWISH)?;
    x = net.global_avg_pool("avgpool", x)?;
    x = net.flatten("flatten", x);
    x = net.linear("classifier.0", x, 1280);
    x = net.activation("classifier.1", x, Activation::HardSwish);
    x = net.dropout("classifier.2", x, 0.2);
    Ok(net.linear("classifier.3", x, classes))
}

/// 1×1 to more channels, a convolution of each by itself, squeeze-and-excitation, 1×1 to fewer; added to x where the
/// shape is the same.
fn inverted_residual(
    net: &mut Builder,
    name: &str,
    x: TensorId,
    (kernel, wide, channels, squeezes, swishes, stride): (usize, usize, usize, bool, bool, usize),
) -> Result<TensorId> {
    let activation = if swishes { HARD_SWISH } else { Some(Activation::RELU) };
    let (mut y, mut places) = (x, 0..);
    let mut part = || format!("{name}.block.{}", places.next().unwrap_or(0));
    if wide != net.shape(x).0[1] {
        y = conv_norm(net, &part(), y, wide, Conv::square(1), norm(), activation)?;
    }
    let depthwise = Conv { groups: wide, ..Conv::square(kernel).stride(stride).padding(kernel / 2) };
    y = conv_norm(net, &part(), y, wide, depthwise, norm(), activation)?;
    if squeezes {
        let squeezed = multiple_of_eight(wide / 4);
        y = squeeze_excite(net, &part(), y, squeezed, [Activation::RELU, Activation::HardSigmoid])?;
    }
    y = conv_norm(net, &part(), y, channels, Conv::square(1), norm(), None)?;
    if net.shape(x) == net.shape(y) { net.add(&format!("{name}.add"), y, x) } else { Ok(y) }
}

/// The nearest one, but not less than nine tenths (torchvision's `_make_divisible`).
fn multiple_of_eight(channels: usize) -> usize {
    let nearest = (channels + 4) / 8 * 8;
    if 10 * nearest < 9 * channels { nearest + 8 } else { nearest.max(8) }
}
