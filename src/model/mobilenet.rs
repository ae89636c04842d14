//! MobileNetV2: Sandler, Howard, Zhu, Zhmoginov, Chen, "MobileNetV2: inverted residuals and linear bottlenecks", 2018,
//! with torchvision's names and first values.

use super::squeeze::{conv_norm, conv_then_norm};
use super::{Layers, Model};
use crate::error::Result;
use crate::graph::{Activation, BatchNorm, Builder, Conv, InitScheme, SampleShape, TensorId};

pub const MOBILENET_V2: Model = Model {
    name: "mobilenet_v2",
    about: "17 inverted residuals with depthwise 3×3: 3,504,872 parameters",
    image: SampleShape::image([3, 224, 224]),
    classes: 1000,
    layers: Layers::Of(mobilenet_v2),
};

const RELU6: Option<Activation> = Some(Activation::RELU6);

/// The paper's table 2: expansion, channels, repetitions, stride of the first.
const BLOCKS: [[usize; 4]; 7] = [
    [1, 16, 1, 1],
    [6, 24, 2, 2],
    [6, 32, 3, 2],
    [6, 64, 4, 2],
    [6, 96, 3, 1],
    [6, 160, 3, 2],
    [6, 320, 1, 1],
];

fn mobilenet_v2(net: &mut Builder, images: TensorId, classes: usize) -> Result<TensorId> {
    net.init_convolutions(InitScheme::NormalFanOut, InitScheme::Zero);
    net.init_linears(InitScheme::Normal { std: 0.01 }, InitScheme::Zero);
    let norm = BatchNorm::default();
    let mut x = conv_norm(net, "features.0", images, 32, Conv::square(3).stride(2).padding(1), norm, RELU6)?;
    // Place in torchvision's `features`.
    let mut place = 1;
    for [expansion, channels, repetitions, first_stride] in BLOCKS {
        for repetition in 0..repetitions {
            let stride = if repetition == 0 { first_stride } else { 1 };
            x = inverted_residual(net, &format!("features.{place}"), x, expansion, channels, stride)?;
            place += 1;
        }
    }
    x = conv_norm(net, &format!("features.{place}"), x, 1280, Conv::square(1), norm, RELU6)?;
    x = net.global_avg_pool("avgpool", x)?;
    x = net.flatten("flatten", x);
    x = net.dropout("classifier.0", x, 0.2);
    Ok(net.linear("classifier.1", x, classes))
}

/// 1×1 to more channels, 3×3 on each by itself, 1×1 to fewer without ReLU; added to x where the shape is the same.
fn inverted_residual(
    net: &mut Builder,
    name: &str,
    x: TensorId,
    expansion: usize,
    channels: usize,
    stride: usize,
) -> Result<TensorId> {
    let wide = expansion * net.shape(x).0[1];
    let (mut y, mut place, norm) = (x, 0, BatchNorm::default());
    if expansion > 1 {
        y = conv_norm(net, &format!("{name}.conv.0"), y, wide, Conv::square(1), norm, RELU6)?;
        place = 1;
    }
    let depthwise = Conv { groups: wide, ..Conv::square(3).stride(stride).padding(1) };
    y = conv_norm(net, &format!("{name}.conv.{place}"), y, wide, depthwise, norm, RELU6)?;
    let [conv, behind] = [place + 1, place + 2].map(|place| format!("{name}.conv.{place}"));
    y = conv_then_norm(net, [&conv, &behind], y, channels, Conv::square(1), norm)?;
    if net.shape(x) == net.shape(y) { net.add(&format!("{name}.add"), x, y) } else { Ok(y) }
}
