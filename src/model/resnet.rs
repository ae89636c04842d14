//! ResNets: He, Zhang, Ren, Sun, "Deep residual learning for image recognition", 2015. Version 1.5: where a bottleneck
//! halves the image its 3×3 convolution does so, not the first 1×1. Names and first values are torchvision's.

use super::squeeze::conv_then_norm;
use super::{Layers, LayersFn, Model};
use crate::error::Result;
use crate::graph::{BatchNorm, Builder, Conv, InitScheme, Pool, SampleShape, TensorId};

pub const RESNET18: Model =
    model("resnet18", "2, 2, 2, 2 residual blocks of two 3×3: 11,689,512 parameters", |net, x, classes| {
        resnet(net, x, classes, ResidualBlock::Basic, [2, 2, 2, 2])
    });

pub const RESNET34: Model =
    model("resnet34", "3, 4, 6, 3 residual blocks of two 3×3: 21,797,672 parameters", |net, x, classes| {
        resnet(net, x, classes, ResidualBlock::Basic, [3, 4, 6, 3])
    });

pub const RESNET50: Model =
    model("resnet50", "3, 4, 6, 3 bottlenecks, v1.5: 25,557,032 parameters", |net, x, classes| {
        resnet(net, x, classes, BOTTLENECK, [3, 4, 6, 3])
    });

pub const RESNET101: Model =
    model("resnet101", "3, 4, 23, 3 bottlenecks, v1.5: 44,549,160 parameters", |net, x, classes| {
        resnet(net, x, classes, BOTTLENECK, [3, 4, 23, 3])
    });

pub const RESNET152: Model =
    model("resnet152", "3, 8, 36, 3 bottlenecks, v1.5: 60,192,808 parameters", |net, x, classes| {
        resnet(net, x, classes, BOTTLENECK, [3, 8, 36, 3])
    });

/// Xie, Girshick, Dollár, Tu, He, "Aggregated residual transformations for deep neural networks", 2017.
pub const RESNEXT50_32X4D: Model = model(
    "resnext50_32x4d",
    "resnet50, 3×3 in 32 groups of 4 channels: 25,028,904 parameters",
    |net, x, classes| {
        resnet(net, x, classes, ResidualBlock::Bottleneck { groups: 32, width: 4 }, [3, 4, 6, 3])
    },
);

/// Zagoruyko and Komodakis, "Wide residual networks", 2016.
pub const WIDE_RESNET50_2: Model = model(
    "wide_resnet50_2",
    "resnet50 with twice the channels in 3×3: 68,883,240 parameters",
    |net, x, classes| {
        resnet(net, x, classes, ResidualBlock::Bottleneck { groups: 1, width: 128 }, [3, 4, 6, 3])
    },
);

const fn model(name: &'static str, about: &'static str, layers: LayersFn) -> Model {
    Model { name, about, image: SampleShape::image([3, 224, 224]), classes: 1000, layers: Layers::Of(layers) }
}

#[derive(Clone, Copy)]
enum ResidualBlock {
    /// 3×3, 3×3.
    Basic,
    /// 1×1, 3×3, 1×1 to four times the channels. The 3×3 has so many groups, each of `width` channels in the first
    /// stage.
    Bottleneck { groups: usize, width: usize },
}

const BOTTLENECK: ResidualBlock = ResidualBlock::Bottleneck { groups: 1, width: 64 };

fn resnet(
    net: &mut Builder,
    images: TensorId,
    classes: usize,
    block: ResidualBlock,
    blocks: [usize; 4],
) -> Result<TensorId> {
    net.init_convolutions(InitScheme::NormalFanOut, InitScheme::Zero);
    let mut x = conv_then_norm(
        net,
        ["conv1", "bn1"],
        images,
        64,
        Conv::square(7).stride(2).padding(3),
        BatchNorm::default(),
    )?;
    x = net.relu("relu", x);
    x = net.max_pool("maxpool", x, Pool::square(3).stride(2).padding(1))?;
    for (stage, count) in blocks.into_iter().enumerate() {
        for index in 0..count {
            let stride = if stage > 0 && index == 0 { 2 } else { 1 };
            let name = format!("layer{}.{index}", stage + 1);
            x = residual(net, &name, x, block, 64 << stage, stride)?;
        }
    }
    x = net.global_avg_pool("avgpool", x)?;
    x = net.flatten("flatten", x);
    Ok(net.linear("fc", x, classes))
}

/// relu(block(x) + x), with x brought to the block's shape by a 1×1 convolution where it differs.
fn residual(
    net: &mut Builder,
    name: &str,
    x: TensorId,
    block: ResidualBlock,
    channels: usize,
    stride: usize,
) -> Result<TensorId> {
    let part = |part: &str| format!("{name}.{part}");
    let (wide, norm) = (Conv::square(3).padding(1), BatchNorm::default());
    let convolutions = match block {
        ResidualBlock::Basic => vec![(channels, wide.stride(stride)), (channels, wide)],
        ResidualBlock::Bottleneck { groups, width } => {
            let inner = channels * width / 64 * groups;
            let wide = Conv { groups, ..wide.stride(stride) };
            vec![(inner, Conv::square(1)), (inner, wide), (4 * channels, Conv::square(1))]
        }
    };
    let (mut y, count) = (x, convolutions.len());
    for (index, (channels, conv)) in convolutions.into_iter().enumerate() {
        let layer = index + 1;
        let names = ["conv", "bn"].map(|of| part(&format!("{of}{layer}")));
        y = conv_then_norm(net, [&names[0], &names[1]], y, channels, conv, norm)?;
        if layer < count {
            y = net.relu(&part(&format!("relu{layer}")), y);
        }
    }
    let mut shortcut = x;
    if net.shape(x) != net.shape(y) {
        let channels = net.shape(y).0[1];
        let names = [&*part("downsample.0"), &*part("downsample.1")];
        shortcut = conv_then_norm(net, names, x, channels, Conv::square(1).stride(stride), norm)?;
    }
    let sum = net.add(&part("add"), y, shortcut)?;
    Ok(net.relu(&part("relu"), sum))
}
