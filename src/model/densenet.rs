//! DenseNet: Huang, Liu, van der Maaten, Weinberger, "Densely connected convolutional networks", 2017, with
//! torchvision's names and first values.

use super::{Layers, Model};
use crate::error::Result;
use crate::graph::{BatchNorm, Builder, Conv, InitScheme, Pool, SampleShape, TensorId};

pub const DENSENET121: Model = Model {
    name: "densenet121",
    about: "blocks of 6, 12, 24, 16 layers, each reading all before it: 7,978,856 parameters",
    image: SampleShape::image([3, 224, 224]),
    classes: 1000,
    layers: Layers::Of(|net, x, classes| densenet(net, x, classes, [6, 12, 24, 16])),
};

/// Channels that a layer adds.
const GROWTH: usize = 32;

fn densenet(net: &mut Builder, images: TensorId, classes: usize, depths: [usize; 4]) -> Result<TensorId> {
    net.init_convolutions(InitScheme::NormalFanIn, InitScheme::Zero);
    net.init_linears(InitScheme::Uniform, InitScheme::Zero);
    let mut x = conv(net, "features.conv0", images, 64, Conv::square(7).stride(2).padding(3))?;
    x = norm_relu(net, ["features.norm0", "features.relu0"], x)?;
    x = net.max_pool("features.pool0", x, Pool::square(3).stride(2).padding(1))?;
    for (block, depth) in (1..).zip(depths) {
        for layer in 1..=depth {
            x = dense_layer(net, &format!("features.denseblock{block}.denselayer{layer}"), x)?;
        }
        if block < depths.len() {
            x = transition(net, &format!("features.transition{block}"), x)?;
        }
    }
    x = norm_relu(net, ["features.norm5", "relu"], x)?;
    x = net.global_avg_pool("avgpool", x)?;
    x = net.flatten("flatten", x);
    Ok(net.linear("classifier", x, classes))
}

/// x with what 1×1 and 3×3 make of it behind it. The next layer adds to that: one concatenation of two each, where
/// torchvision's layers put all before them together anew.
fn dense_layer(net: &mut Builder, name: &str, x: TensorId) -> Result<TensorId> {
    let part = |part: &str| format!("{name}.{part}");
    let y = norm_relu(net, [&*part("norm1"), &*part("relu1")], x)?;
    let y = conv(net, &part("conv1"), y, 4 * GROWTH, Conv::square(1))?;
    let y = norm_relu(net, [&*part("norm2"), &*part("relu2")], y)?;
    let y = conv(net, &part("conv2"), y, GROWTH, Conv::square(3).padding(1))?;
    net.concat(&part("concat"), &[x, y])
}

/// Half the channels and half the size.
fn transition(net: &mut Builder, name: &str, x: TensorId) -> Result<TensorId> {
    let part = |part: &str| format!("{name}.{part}");
    let channels = net.shape(x).0[1] / 2;
    let x = norm_relu(net, [&*part("norm"), &*part("relu")], x)?;
    let x = conv(net, &part("conv"), x, channels, Conv::square(1))?;
    net.avg_pool(&part("pool"), x, Pool::square(2))
}

fn conv(net: &mut Builder, name: &str, x: TensorId, channels: usize, conv: Conv) -> Result<TensorId> {
    net.conv(name, x, channels, Conv { bias: false, ..conv })
}

fn norm_relu(net: &mut Builder, [norm, relu]: [&str; 2], x: TensorId) -> Result<TensorId> {
    let x = net.batch_norm(norm, x, BatchNorm::default())?;
    Ok(net.relu(relu, x))
}
