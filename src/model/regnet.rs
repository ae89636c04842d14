//! RegNetY: Radosavovic, Kosaraju, Girshick, He, Dollár, "Designing network design spaces", 2020, with torchvision's
//! names and first values.

use super::squeeze::{conv_norm, squeeze_excite};
use super::{Layers, Model};
use crate::error::Result;
use crate::graph::{Activation, BatchNorm, Builder, Conv, InitScheme, SampleShape, TensorId};

pub const REGNET_Y_400MF: Model = Model {
    name: "regnet_y_400mf",
    about: "16 bottlenecks of groups with squeeze-and-excitation: 4,344,144 parameters",
    image: SampleShape::image([3, 224, 224]),
    classes: 1000,
    layers: Layers::Of(regnet_y_400mf),
};

/// Blocks and channels of each stage, as depth 16, w_0 = 48, w_a = 27.89 and w_m = 2.09 give them.
const STAGES: [[usize; 2]; 4] = [[1, 48], [3, 104], [6, 208], [6, 440]];

/// Channels of a group.
const GROUP: usize = 8;

const RELU: Option<Activation> = Some(Activation::RELU);

fn regnet_y_400mf(net: &mut Builder, images: TensorId, classes: usize) -> Result<TensorId> {
    net.init_convolutions(InitScheme::NormalFanOut, InitScheme::Uniform);
    net.init_linears(InitScheme::Normal { std: 0.01 }, InitScheme::Zero);
    let stem = Conv::square(3).stride(2).padding(1);
    let mut x = conv_norm(net, "stem", images, 32, stem, BatchNorm::default(), RELU)?;
    for ([blocks, channels], stage) in STAGES.into_iter().zip(1..) {
        for block in 0..blocks {
            let stride = if block == 0 { 2 } else { 1 };
            let name = format!("trunk_output.block{stage}.block{stage}-{block}");
            x = bottleneck(net, &name, x, channels, stride)?;
        }
    }
    x = net.global_avg_pool("avgpool", x)?;
    x = net.flatten("flatten", x);
    Ok(net.linear("fc", x, classes))
}

/// 1×1, 3×3 of groups, squeeze-and-excitation, 1×1; added to x, or to a 1×1 of it.
fn bottleneck(
    net: &mut Builder,
    name: &str,
    x: TensorId,
    channels: usize,
    stride: usize,
) -> Result<TensorId> {
    let (norm, before) = (BatchNorm::default(), net.shape(x).0[1]);
    let part = |part: &str| format!("{name}.{part}");
    let mut shortcut = x;
    if stride > 1 || channels != before {
        let conv = Conv::square(1).stride(stride);
        shortcut = conv_norm(net, &part("proj"), x, channels, conv, norm, None)?;
    }
    let mut y = conv_norm(net, &part("f.a"), x, channels, Conv::square(1), norm, RELU)?;
    let grouped = Conv { groups: channels / GROUP, ..Conv::square(3).stride(stride).padding(1) };
    y = conv_norm(net, &part("f.b"), y, channels, grouped, norm, RELU)?;
    // A quarter of the channels before the block, rounded to the nearest, of two to the even one.
    let squeezed = (before as f64 / 4.0).round_ties_even() as usize;
    y = squeeze_excite(net, &part("f.se"), y, squeezed, [Activation::RELU, Activation::Sigmoid])?;
    y = conv_norm(net, &part("f.c"), y, channels, Conv::square(1), norm, None)?;
    let y = net.add(&part("add"), shortcut, y)?;
    Ok(net.relu(&part("activation"), y))
}
