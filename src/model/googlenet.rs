//! GoogLeNet: Szegedy et al., "Going deeper with convolutions", 2015, as torchvision has it: batch normalisation in
//! place of local response normalisation, 3×3 where the paper has 5×5, its names and first values.

use super::inception::conv;
use super::{Layers, Model};
use crate::error::Result;
use crate::graph::{Builder, Conv, InitScheme, Pool, SampleShape, TensorId};

pub const GOOGLENET: Model = Model {
    name: "googlenet",
    about: "9 blocks of 1×1 and 3×3 in parallel, two auxiliary heads: 13,004,888 parameters",
    image: SampleShape::image([3, 224, 224]),
    classes: 1000,
    layers: Layers::Of(googlenet),
};

fn googlenet(net: &mut Builder, images: TensorId, classes: usize) -> Result<TensorId> {
    // torchvision cuts these off at ±2, which is 200 deviations: a normal distribution.
    net.init_convolutions(InitScheme::Normal { std: 0.01 }, InitScheme::Zero);
    net.init_linears(InitScheme::Normal { std: 0.01 }, InitScheme::Uniform);
    let halving = Pool::square(3).stride(2).ceil();
    let mut x = conv(net, "conv1", images, 64, Conv::square(7).stride(2).padding(3))?;
    x = net.max_pool("maxpool1", x, halving)?;
    x = conv(net, "conv2", x, 64, Conv::square(1))?;
    x = conv(net, "conv3", x, 192, Conv::square(3).padding(1))?;
    x = net.max_pool("maxpool2", x, halving)?;
    x = block(net, "inception3a", x, [64, 96, 128, 16, 32, 32])?;
    x = block(net, "inception3b", x, [128, 128, 192, 32, 96, 64])?;
    x = net.max_pool("maxpool3", x, halving)?;
    x = block(net, "inception4a", x, [192, 96, 208, 16, 48, 64])?;
    auxiliary_head(net, "aux1", x, classes)?;
    x = block(net, "inception4b", x, [160, 112, 224, 24, 64, 64])?;
    x = block(net, "inception4c", x, [128, 128, 256, 24, 64, 64])?;
    x = block(net, "inception4d", x, [112, 144, 288, 32, 64, 64])?;
    auxiliary_head(net, "aux2", x, classes)?;
    x = block(net, "inception4e", x, [256, 160, 320, 32, 128, 128])?;
    x = net.max_pool("maxpool4", x, Pool::square(2).ceil())?;
    x = block(net, "inception5a", x, [256, 160, 320, 32, 128, 128])?;
    x = block(net, "inception5b", x, [384, 192, 384, 48, 128, 128])?;
    x = net.global_avg_pool("avgpool", x)?;
    x = net.flatten("flatten", x);
    x = net.dropout("dropout", x, 0.2);
    Ok(net.linear("fc", x, classes))
}

/// 1×1; 3×3; 3×3 again; pooling. Channels: of the first, before and of the second, before and of the third, of the
/// last.
fn block(net: &mut Builder, name: &str, x: TensorId, channels: [usize; 6]) -> Result<TensorId> {
    let part = |part: &str| format!("{name}.{part}");
    let [first, before_second, second, before_third, third, last] = channels;
    let wide = Conv::square(3).padding(1);
    let mut parts = vec![conv(net, &part("branch1"), x, first, Conv::square(1))?];
    for (branch, before, channels) in [("branch2", before_second, second), ("branch3", before_third, third)] {
        let y = conv(net, &part(&format!("{branch}.0")), x, before, Conv::square(1))?;
        parts.push(conv(net, &part(&format!("{branch}.1")), y, channels, wide)?);
    }
    let y = net.max_pool(&part("branch4.0"), x, Pool::square(3).stride(1).padding(1))?;
    parts.push(conv(net, &part("branch4.1"), y, last, Conv::square(1))?);
    net.concat(&part("concat"), &parts)
}

fn auxiliary_head(net: &mut Builder, name: &str, x: TensorId, classes: usize) -> Result<()> {
    let part = |part: &str| format!("{name}.{part}");
    let x = net.adaptive_avg_pool(&part("avgpool"), x, [1, 4, 4])?;
    let x = conv(net, &part("conv"), x, 128, Conv::square(1))?;
    let x = net.flatten(&part("flatten"), x);
    let x = net.linear(&part("fc1"), x, 1024);
    let x = net.relu(&part("relu"), x);
    let x = net.dropout(&part("dropout"), x, 0.7);
    let logits = net.linear(&part("fc2"), x, classes);
    net.auxiliary_head(name, logits, 0.3);
    Ok(())
}
