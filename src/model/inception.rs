//! Inception v3: Szegedy, Vanhoucke, Ioffe, Shlens, Wojna, "Rethinking the Inception architecture for computer vision",
//! 2016, with torchvision's names and first values.

use super::{Layers, Model};
use crate::error::Result;
use crate::graph::{BatchNorm, Builder, Conv, InitScheme, Pool, SampleShape, TensorId};

pub const INCEPTION_V3: Model = Model {
    name: "inception_v3",
    about: "11 blocks of 1×1 to 7×7 in parallel, an auxiliary head: 27,161,264 parameters",
    image: SampleShape::image([3, 299, 299]),
    classes: 1000,
    layers: Layers::Of(inception_v3),
};

fn inception_v3(net: &mut Builder, images: TensorId, classes: usize) -> Result<TensorId> {
    // torchvision cuts these off at ±2, which is 20 deviations: a normal distribution.
    net.init_convolutions(InitScheme::Normal { std: 0.1 }, InitScheme::Zero);
    net.init_linears(InitScheme::Normal { std: 0.1 }, InitScheme::Uniform);
    let mut x = conv(net, "Conv2d_1a_3x3", images, 32, Conv::square(3).stride(2))?;
    x = conv(net, "Conv2d_2a_3x3", x, 32, Conv::square(3))?;
    x = conv(net, "Conv2d_2b_3x3", x, 64, Conv::square(3).padding(1))?;
    x = net.max_pool("maxpool1", x, Pool::square(3).stride(2))?;
    x = conv(net, "Conv2d_3b_1x1", x, 80, Conv::square(1))?;
    x = conv(net, "Conv2d_4a_3x3", x, 192, Conv::square(3))?;
    x = net.max_pool("maxpool2", x, Pool::square(3).stride(2))?;
    for (name, pooled) in [("Mixed_5b", 32), ("Mixed_5c", 64), ("Mixed_5d", 64)] {
        x = block_a(net, name, x, pooled)?;
    }
    x = block_b(net, "Mixed_6a", x)?;
    for (name, between) in [("Mixed_6b", 128), ("Mixed_6c", 160), ("Mixed_6d", 160), ("Mixed_6e", 192)] {
        x = block_c(net, name, x, between)?;
    }
    auxiliary_head(net, "AuxLogits", x, classes)?;
    x = block_d(net, "Mixed_7a", x)?;
    for name in ["Mixed_7b", "Mixed_7c"] {
        x = block_e(net, name, x)?;
    }
    x = net.global_avg_pool("avgpool", x)?;
    x = net.dropout("dropout", x, 0.5);
    x = net.flatten("flatten", x);
    Ok(net.linear("fc", x, classes))
}

/// A convolution without bias, normalisation, ReLU.
pub fn conv(net: &mut Builder, name: &str, x: TensorId, channels: usize, conv: Conv) -> Result<TensorId> {
    let x = net.conv(&format!("{name}.conv"), x, channels, Conv { bias: false, ..conv })?;
    let x = net.batch_norm(&format!("{name}.bn"), x, BatchNorm { epsilon: 1e-3, ..BatchNorm::default() })?;
    Ok(net.relu(&format!("{name}.relu"), x))
}

/// Convolutions in sequence: name within the block, channels, geometry.
fn branch(
    net: &mut Builder,
    block: &str,
    mut x: TensorId,
    layers: &[(&str, usize, Conv)],
) -> Result<TensorId> {
    for (name, channels, geometry) in layers {
        x = conv(net, &format!("{block}.{name}"), x, *channels, *geometry)?;
    }
    Ok(x)
}

/// A kernel of height × width with the padding that keeps the size.
fn same(height: usize, width: usize) -> Conv {
    Conv { kernel: [1, height, width], padding: [0, height / 2, width / 2], ..Conv::square(1) }
}

fn halving() -> Conv {
    Conv::square(3).stride(2)
}

/// An average pooling that keeps the size, then 1×1.
fn pooled(net: &mut Builder, block: &str, x: TensorId, channels: usize) -> Result<TensorId> {
    let x = net.avg_pool(&format!("{block}.avgpool"), x, Pool::square(3).stride(1).padding(1))?;
    conv(net, &format!("{block}.branch_pool"), x, channels, same(1, 1))
}

/// 1×1; 5×5; 3×3 twice; pooling.
fn block_a(net: &mut Builder, block: &str, x: TensorId, pool: usize) -> Result<TensorId> {
    let parts = [
        branch(net, block, x, &[("branch1x1", 64, same(1, 1))])?,
        branch(net, block, x, &[("branch5x5_1", 48, same(1, 1)), ("branch5x5_2", 64, same(5, 5))])?,
        branch(
            net,
            block,
            x,
            &[
                ("branch3x3dbl_1", 64, same(1, 1)),
                ("branch3x3dbl_2", 96, same(3, 3)),
                ("branch3x3dbl_3", 96, same(3, 3)),
            ],
        )?,
        pooled(net, block, x, pool)?,
    ];
    net.concat(&format!("{block}.concat"), &parts)
}

/// Half the size: 3×3; 3×3 twice; pooling.
fn block_b(net: &mut Builder, block: &str, x: TensorId) -> Result<TensorId> {
    let parts = [
        branch(net, block, x, &[("branch3x3", 384, halving())])?,
        branch(
            net,
            block,
            x,
            &[
                ("branch3x3dbl_1", 64, same(1, 1)),
                ("branch3x3dbl_2", 96, same(3, 3)),
                ("branch3x3dbl_3", 96, halving()),
            ],
        )?,
        net.max_pool(&format!("{block}.maxpool"), x, Pool::square(3).stride(2))?,
    ];
    net.concat(&format!("{block}.concat"), &parts)
}

/// 1×1; 7×7 as 1×7 and 7×1, once and twice; pooling.
fn block_c(net: &mut Builder, block: &str, x: TensorId, between: usize) -> Result<TensorId> {
    let parts = [
        branch(net, block, x, &[("branch1x1", 192, same(1, 1))])?,
        branch(
            net,
            block,
            x,
            &[
                ("branch7x7_1", between, same(1, 1)),
                ("branch7x7_2", between, same(1, 7)),
                ("branch7x7_3", 192, same(7, 1)),
            ],
        )?,
        branch(
            net,
            block,
            x,
            &[
                ("branch7x7dbl_1", between, same(1, 1)),
                ("branch7x7dbl_2", between, same(7, 1)),
                ("branch7x7dbl_3", between, same(1, 7)),
                ("branch7x7dbl_4", between, same(7, 1)),
                ("branch7x7dbl_5", 192, same(1, 7)),
            ],
        )?,
        pooled(net, block, x, 192)?,
    ];
    net.concat(&format!("{block}.concat"), &parts)
}

/// Half the size: 3×3; 7×7 and 3×3; pooling.
fn block_d(net: &mut Builder, block: &str, x: TensorId) -> Result<TensorId> {
    let parts = [
        branch(net, block, x, &[("branch3x3_1", 192, same(1, 1)), ("branch3x3_2", 320, halving())])?,
        branch(
            net,
            block,
            x,
            &[
                ("branch7x7x3_1", 192, same(1, 1)),
                ("branch7x7x3_2", 192, same(1, 7)),
                ("branch7x7x3_3", 192, same(7, 1)),
                ("branch7x7x3_4", 192, halving()),
            ],
        )?,
        net.max_pool(&format!("{block}.maxpool"), x, Pool::square(3).stride(2))?,
    ];
    net.concat(&format!("{block}.concat"), &parts)
}

/// 1×1; 1×3 beside 3×1, behind 1×1 and behind 3×3; pooling.
fn block_e(net: &mut Builder, block: &str, x: TensorId) -> Result<TensorId> {
    let narrow = branch(net, block, x, &[("branch1x1", 320, same(1, 1))])?;
    let once = branch(net, block, x, &[("branch3x3_1", 384, same(1, 1))])?;
    let twice = [("branch3x3dbl_1", 448, same(1, 1)), ("branch3x3dbl_2", 384, same(3, 3))];
    let twice = branch(net, block, x, &twice)?;
    let mut parts = vec![narrow];
    for (x, names) in
        [(once, ["branch3x3_2a", "branch3x3_2b"]), (twice, ["branch3x3dbl_3a", "branch3x3dbl_3b"])]
    {
        parts.push(branch(net, block, x, &[(names[0], 384, same(1, 3))])?);
        parts.push(branch(net, block, x, &[(names[1], 384, same(3, 1))])?);
    }
    parts.push(pooled(net, block, x, 192)?);
    net.concat(&format!("{block}.concat"), &parts)
}

/// Its 5×5 wants an image of 5×5 behind a pooling of 5 in steps of 3: 299 for the whole network.
fn auxiliary_head(net: &mut Builder, name: &str, x: TensorId, classes: usize) -> Result<()> {
    let x = net.avg_pool(&format!("{name}.avgpool"), x, Pool::square(5).stride(3))?;
    let x = conv(net, &format!("{name}.conv0"), x, 128, same(1, 1))?;
    let x = conv(net, &format!("{name}.conv1"), x, 768, Conv::square(5))?;
    let x = net.global_avg_pool(&format!("{name}.pool"), x)?;
    let x = net.flatten(&format!("{name}.flatten"), x);
    net.init_linears(InitScheme::Normal { std: 0.001 }, InitScheme::Uniform);
    let logits = net.linear(&format!("{name}.fc"), x, classes);
    net.init_linears(InitScheme::Normal { std: 0.1 }, InitScheme::Uniform);
    net.auxiliary_head(name, logits, 0.4);
    Ok(())
}
