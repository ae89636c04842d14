//! ShuffleNetV2: Ma, Zhang, Zheng, Sun, "ShuffleNet V2: practical guidelines for efficient CNN architecture design",
//! 2018, with torchvision's names and first values.

use super::{Layers, Model};
use crate::error::Result;
use crate::graph::{BatchNorm, Builder, Conv, Pool, SampleShape, TensorId};

pub const SHUFFLENET_V2_X1_0: Model = Model {
    name: "shufflenet_v2_x1_0",
    about: "16 blocks of which half of the channels pass by, shuffled: 2,278,604 parameters",
    image: SampleShape::image([3, 224, 224]),
    classes: 1000,
    layers: Layers::Of(shufflenet_v2_x1_0),
};

/// The paper's table 5: blocks and channels of each stage.
const STAGES: [[usize; 2]; 3] = [[4, 116], [8, 232], [4, 464]];

fn shufflenet_v2_x1_0(net: &mut Builder, images: TensorId, classes: usize) -> Result<TensorId> {
    let mut x = layer(net, "conv1", 0, images, 24, Conv::square(3).stride(2).padding(1), true)?;
    x = net.max_pool("maxpool", x, Pool::square(3).stride(2).padding(1))?;
    for ([blocks, channels], stage) in STAGES.into_iter().zip(2..) {
        for block in 0..blocks {
            x = unit(net, &format!("stage{stage}.{block}"), x, channels, block == 0)?;
        }
    }
    x = layer(net, "conv5", 0, x, 1024, Conv::square(1), true)?;
    x = net.global_avg_pool("mean", x)?;
    x = net.flatten("flatten", x);
    Ok(net.linear("fc", x, classes))
}

/// Two branches side by side, their channels then shuffled. The first of a stage halves the image in both; in the
/// others one half of the channels passes by.
fn unit(net: &mut Builder, name: &str, x: TensorId, channels: usize, halves: bool) -> Result<TensorId> {
    let half = channels / 2;
    let ([first, second], stride) = match halves {
        true => ([x, x], 2),
        false => {
            let part = |net: &mut Builder, branch: usize| {
                net.slice(&format!("{name}.half{branch}"), x, 1, (branch - 1) * half..branch * half)
            };
            ([part(net, 1)?, part(net, 2)?], 1)
        }
    };
    let depthwise = |of: usize| Conv { groups: of, ..Conv::square(3).stride(stride).padding(1) };
    let (mut a, mut b) = (first, second);
    if halves {
        let name = format!("{name}.branch1");
        let before = net.shape(x).0[1];
        a = layer(net, &name, 0, a, before, depthwise(before), false)?;
        a = layer(net, &name, 2, a, half, Conv::square(1), true)?;
    }
    let branch = format!("{name}.branch2");
    b = layer(net, &branch, 0, b, half, Conv::square(1), true)?;
    b = layer(net, &branch, 3, b, half, depthwise(half), false)?;
    b = layer(net, &branch, 5, b, half, Conv::square(1), true)?;
    let y = net.concat(&format!("{name}.concat"), &[a, b])?;
    net.channel_shuffle(&format!("{name}.shuffle"), y, 2)
}

/// A convolution without bias and its normalisation, from this place of a sequence on, with a ReLU if it has one.
fn layer(
    net: &mut Builder,
    name: &str,
    place: usize,
    x: TensorId,
    channels: usize,
    conv: Conv,
    relu: bool,
) -> Result<TensorId> {
    let part = |offset: usize| format!("{name}.{}", place + offset);
    let y = net.conv(&part(0), x, channels, Conv { bias: false, ..conv })?;
    let y = net.batch_norm(&part(1), y, BatchNorm::default())?;
    Ok(if relu { net.relu(&part(2), y) } else { y })
}
