//! ConvNeXt: Liu, Mao, Wu, Feichtenhofer, Darrell, Xie, "A ConvNet for the 2020s", 2022, with torchvision's names and
//! first values.

use super::{Layers, Model};
use crate::error::Result;
use crate::graph::{Activation, Binary, Builder, Conv, Init, InitScheme, SampleShape, TensorId, dims};

pub const CONVNEXT_TINY: Model = Model {
    name: "convnext_tiny",
    about: "18 blocks of depthwise 7×7 and layer normalisation: 28,589,128 parameters",
    image: SampleShape::image([3, 224, 224]),
    classes: 1000,
    layers: Layers::Of(convnext_tiny),
};

/// Channels and blocks of each stage.
const STAGES: [[usize; 2]; 4] = [[96, 3], [192, 3], [384, 9], [768, 3]];

const BLOCKS: usize = 18;
const EPSILON: f32 = 1e-6;

fn convnext_tiny(net: &mut Builder, images: TensorId, classes: usize) -> Result<TensorId> {
    // torchvision cuts these off at ±2, which is 100 deviations: a normal distribution.
    net.init_convolutions(InitScheme::Normal { std: 0.02 }, InitScheme::Zero);
    net.init_linears(InitScheme::Normal { std: 0.02 }, InitScheme::Zero);
    let mut x = net.conv("features.0.0", images, STAGES[0][0], Conv::square(4).stride(4))?;
    x = net.layer_norm_of_channels("features.0.1", x, EPSILON)?;
    let mut done = 0;
    for (stage, [channels, blocks]) in STAGES.into_iter().enumerate() {
        if stage > 0 {
            let name = format!("features.{}", 2 * stage);
            x = net.layer_norm_of_channels(&format!("{name}.0"), x, EPSILON)?;
            x = net.conv(&format!("{name}.1"), x, channels, Conv::square(2).stride(2))?;
        }
        for block in 0..blocks {
            let p = 0.1 * done as f32 / (BLOCKS - 1) as f32;
            x = residual(net, &format!("features.{}.{block}", 2 * stage + 1), x, p)?;
            done += 1;
        }
    }
    x = net.global_avg_pool("avgpool", x)?;
    x = net.layer_norm_of_channels("classifier.0", x, EPSILON)?;
    x = net.flatten("classifier.1", x);
    Ok(net.linear("classifier.2", x, classes))
}

/// Depthwise 7×7, and for each pixel by itself: normalisation, four times the channels, GELU, the channels again, each
/// times a learned number; dropped for a sample as a whole with probability `p`, and added to x.
fn residual(net: &mut Builder, name: &str, x: TensorId, p: f32) -> Result<TensorId> {
    let part = |part: &str| format!("{name}.{part}");
    let channels = net.shape(x).0[1];
    let depthwise = Conv { groups: channels, ..Conv::square(7).padding(3) };
    let mut y = net.conv(&part("block.0"), x, channels, depthwise)?;
    y = net.permute(&part("block.1"), y, &[0, 2, 3, 1])?;
    y = net.layer_norm(&part("block.2"), y, 1, EPSILON)?;
    y = net.linear_along(&part("block.3"), y, 4 * channels)?;
    y = net.activation(&part("block.4"), y, Activation::Gelu);
    y = net.linear_along(&part("block.5"), y, channels)?;
    y = net.permute(&part("block.6"), y, &[0, 3, 1, 2])?;
    let scale =
        net.learned(&part("layer_scale"), dims([channels, 1, 1]), Init::Constant { value: 1e-6 }, false);
    y = net.binary(&part("scaled"), Binary::Multiply, scale, y)?;
    if p > 0.0 {
        y = net.drop_samples(&part("stochastic_depth"), y, p);
    }
    net.add(&part("add"), y, x)
}
