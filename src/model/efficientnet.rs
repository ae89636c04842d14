//! EfficientNet: Tan and Le, "EfficientNet: rethinking model scaling for convolutional neural networks", 2019, with
//! torchvision's names and first values.

use super::squeeze::{conv_norm, squeeze_excite};
use super::{Layers, Model};
use crate::error::Result;
use crate::graph::{Activation, BatchNorm, Builder, Conv, InitScheme, SampleShape, TensorId};

pub const EFFICIENTNET_B0: Model = Model {
    name: "efficientnet_b0",
    about: "16 inverted residuals with squeeze-and-excitation: 5,288,548 parameters",
    image: SampleShape::image([3, 224, 224]),
    classes: 1000,
    layers: Layers::Of(efficientnet_b0),
};

/// The paper's table 1: expansion, kernel, stride of the first, channels, repetitions.
const STAGES: [[usize; 5]; 7] = [
    [1, 3, 1, 16, 1],
    [6, 3, 2, 24, 2],
    [6, 5, 2, 40, 2],
    [6, 3, 2, 80, 3],
    [6, 5, 1, 112, 3],
    [6, 5, 2, 192, 4],
    [6, 3, 1, 320, 1],
];

const BLOCKS: f32 = 16.0;
const SILU: Option<Activation> = Some(Activation::Silu);

fn efficientnet_b0(net: &mut Builder, images: TensorId, classes: usize) -> Result<TensorId> {
    net.init_convolutions(InitScheme::NormalFanOut, InitScheme::Zero);
    net.init_linears(InitScheme::UniformFanOut, InitScheme::Zero);
    let stem = Conv::square(3).stride(2).padding(1);
    let mut x = conv_norm(net, "features.0", images, 32, stem, BatchNorm::default(), SILU)?;
    let mut block = 0.0;
    for (stage, place) in STAGES.into_iter().zip(1..) {
        for repetition in 0..stage[4] {
            let name = format!("features.{place}.{repetition}");
            let stride = if repetition == 0 { stage[2] } else { 1 };
            x = mb_conv(net, &name, x, [stage[0], stage[1], stride, stage[3]], 0.2 * block / BLOCKS)?;
            block += 1.0;
        }
    }
    x = conv_norm(net, "features.8", x, 1280, Conv::square(1), BatchNorm::default(), SILU)?;
    x = net.global_avg_pool("avgpool", x)?;
    x = net.flatten("flatten", x);
    x = net.dropout("classifier.0", x, 0.2);
    Ok(net.linear("classifier.1", x, classes))
}

/// 1×1 to more channels, a convolution of each by itself, squeeze-and-excitation, 1×1 to fewer; dropped for a sample as
/// a whole with probability `p` and added to x where the shape is the same.
fn mb_conv(
    net: &mut Builder,
    name: &str,
    x: TensorId,
    [expansion, kernel, stride, channels]: [usize; 4],
    p: f32,
) -> Result<TensorId> {
    let narrow = net.shape(x).0[1];
    let wide = expansion * narrow;
    let norm = BatchNorm::default();
    let (mut y, mut places) = (x, 0..);
    let mut part = || format!("{name}.block.{}", places.next().unwrap_or(0));
    if expansion > 1 {
        y = conv_norm(net, &part(), y, wide, Conv::square(1), norm, SILU)?;
    }
    let depthwise = Conv { groups: wide, ..Conv::square(kernel).stride(stride).padding(kernel / 2) };
    y = conv_norm(net, &part(), y, wide, depthwise, norm, SILU)?;
    y = squeeze_excite(net, &part(), y, narrow / 4, [Activation::Silu, Activation::Sigmoid])?;
    y = conv_norm(net, &part(), y, channels, Conv::square(1), norm, None)?;
    if net.shape(x) != net.shape(y) {
        return Ok(y);
    }
    if p > 0.0 {
        y = net.drop_samples(&format!("{name}.stochastic_depth"), y, p);
    }
    net.add(&format!("{name}.add"), y, x)
}
