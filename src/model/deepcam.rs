//! The network of MLPerf HPC's DeepCAM: DeepLabv3+ (Chen, Zhu, Papandreou, Schroff, Adam, 2018) with a modified Aligned
//! Xception (65 layers) as its encoder and transposed convolutions as its decoder, after Kurth et al., "Exascale deep
//! learning for climate analytics", SC18. Names and first values are those of the reference implementation.

use super::{Layers, Model};
use crate::error::Result;
use crate::graph::{BatchNorm, Binary, Builder, Conv, Init, InitScheme, SampleShape, TensorId, dims};

pub const DEEPCAM: Model = Model {
    name: "deepcam",
    about: "DeepLabv3+ of MLPerf HPC, 16 channels of weather: 56,454,720 parameters",
    image: SampleShape::image([16, 768, 1152]),
    classes: 3,
    layers: Layers::Of(deepcam),
};

/// Channels behind the pyramid, and of the decoder.
const WIDTH: usize = 256;

/// Distances of the pyramid's rows and columns.
const RATES: [usize; 4] = [1, 6, 12, 18];

fn deepcam(net: &mut Builder, images: TensorId, classes: usize) -> Result<TensorId> {
    net.init_convolutions(InitScheme::NormalFanIn, InitScheme::Zero);
    let [x, early] = encoder(net, images)?;
    let x = pyramid(net, x)?;
    let early = conv_norm_relu(net, ["conv2", "bn2"], early, 48, Conv::square(1))?;
    decoder(net, x, early, classes)
}

fn without_bias(conv: Conv) -> Conv {
    Conv { bias: false, ..conv }
}

fn norm(net: &mut Builder, name: &str, x: TensorId) -> Result<TensorId> {
    net.batch_norm(&format!("{name}.bn"), x, BatchNorm::default())
}

fn conv_norm_relu(
    net: &mut Builder,
    [name, norm_name]: [&str; 2],
    x: TensorId,
    channels: usize,
    conv: Conv,
) -> Result<TensorId> {
    let x = net.conv(name, x, channels, without_bias(conv))?;
    let x = norm(net, norm_name, x)?;
    Ok(net.relu(&format!("{norm_name}.relu"), x))
}

/// A depthwise 3×3 and a 1×1.
fn separable(net: &mut Builder, name: &str, x: TensorId, channels: usize, conv: Conv) -> Result<TensorId> {
    let groups = net.shape(x).channels();
    let depthwise = Conv { groups, ..without_bias(conv) };
    let x = net.conv(&format!("{name}.conv1"), x, groups, depthwise)?;
    net.conv(&format!("{name}.pointwise"), x, channels, without_bias(Conv::square(1)))
}

fn three_by_three() -> Conv {
    Conv::square(3).padding(1)
}

/// A residual block of separable convolutions of these channels, with a normalisation behind each and ReLUs between;
/// then another one of the last channels where it has a stride, or is the `last` of its flow.
fn block(
    net: &mut Builder,
    name: &str,
    x: TensorId,
    channels: &[usize],
    [stride, last]: [usize; 2],
) -> Result<TensorId> {
    let part = |part: &str| format!("xception_features.{name}.{part}");
    let (mut y, mut place, mut width) = (x, 0, 0);
    for (index, &channels) in channels.iter().enumerate() {
        if index > 0 {
            y = net.relu(&part(&format!("rep.{}", place - 1)), y);
        }
        y = separable(net, &part(&format!("rep.{place}")), y, channels, three_by_three())?;
        y = norm(net, &part(&format!("rep.{}", place + 1)), y)?;
        (place, width) = (place + 3, channels);
    }
    if stride > 1 || last > 0 {
        let conv = three_by_three().stride(stride);
        y = separable(net, &part(&format!("rep.{}", place - 1)), y, width, conv)?;
    }
    let mut shortcut = x;
    if net.shape(x) != net.shape(y) {
        let conv = without_bias(Conv::square(1).stride(stride));
        shortcut = net.conv(&part("skip"), x, width, conv)?;
        shortcut = norm(net, &part("skipbn"), shortcut)?;
    }
    net.add(&part("add"), y, shortcut)
}

/// A sixteenth of the size, and what had a quarter of it. The reference applies the first block's ReLU in place, so
/// that the decoder reads what is behind it.
fn encoder(net: &mut Builder, images: TensorId) -> Result<[TensorId; 2]> {
    let part = |part: &str| format!("xception_features.{part}");
    let layer = |net: &mut Builder, number: usize, x, channels, stride| {
        let names = [part(&format!("conv{number}")), part(&format!("bn{number}"))];
        conv_norm_relu(net, [&names[0], &names[1]], x, channels, three_by_three().stride(stride))
    };
    let x = layer(net, 1, images, 32, 2)?;
    let x = layer(net, 2, x, 64, 1)?;
    let x = block(net, "block1", x, &[128; 2], [2, 0])?;
    let early = net.relu(&part("block1.relu"), x);
    let mut x = block(net, "block2", early, &[256; 2], [2, 0])?;
    x = net.relu(&part("block2.relu"), x);
    x = block(net, "block3", x, &[728; 2], [2, 1])?;
    x = net.relu(&part("block3.relu"), x);
    for number in 4..20 {
        let name = format!("block{number}");
        x = block(net, &name, x, &[728; 3], [1, 0])?;
        x = net.relu(&part(&format!("{name}.relu")), x);
    }
    x = block(net, "block20", x, &[728, 1024], [1, 1])?;
    for (number, channels) in [(3, 1536), (4, 1536), (5, 2048)] {
        let conv = Conv::square(3).padding(2).dilation(2);
        x = separable(net, &part(&format!("conv{number}")), x, channels, conv)?;
        x = norm(net, &part(&format!("bn{number}")), x)?;
        x = net.relu(&part(&format!("bn{number}.relu")), x);
    }
    Ok([x, early])
}

/// What surrounds a place at four distances, and the mean of all places.
fn pyramid(net: &mut Builder, x: TensorId) -> Result<TensorId> {
    let mut parts = Vec::with_capacity(5);
    for (rate, number) in RATES.into_iter().zip(1..) {
        let conv = match rate {
            1 => Conv::square(1),
            _ => Conv::square(3).padding(rate).dilation(rate),
        };
        let names = ["atrous_convolution", "bn"].map(|part| format!("bottleneck.aspp{number}.{part}"));
        parts.push(conv_norm_relu(net, [&names[0], &names[1]], x, WIDTH, conv)?);
    }
    net.init_convolutions(InitScheme::Uniform, InitScheme::Uniform);
    parts.push(mean(net, x)?);
    let all = net.concat("bottleneck.concat", &parts)?;
    conv_norm_relu(net, ["bottleneck.conv", "bottleneck.bn"], all, WIDTH, Conv::square(1))
}

/// The mean of all places, at every place.
fn mean(net: &mut Builder, x: TensorId) -> Result<TensorId> {
    let part = |part: &str| format!("bottleneck.global_avg_pool.global_average_pool.{part}");
    let mut shape = net.shape(x).clone();
    shape.0[1] = WIDTH;
    let y = net.global_avg_pool(&part("0"), x)?;
    let y = net.conv(&part("1"), y, WIDTH, without_bias(Conv::square(1)))?;
    let weights = net.learned(&part("2.weights"), dims([WIDTH, 1, 1]), Init::One, false);
    let y = net.binary(&part("2.product"), Binary::Multiply, y, weights)?;
    let bias = net.learned(&part("2.bias"), dims([WIDTH, 1, 1]), Init::Zero, false);
    let y = net.binary(&part("2"), Binary::Add, y, bias)?;
    let y = net.relu(&part("3"), y);
    net.expand("bottleneck.tile", y, shape)
}

fn doubled(net: &mut Builder, name: &str, x: TensorId, channels: usize) -> Result<TensorId> {
    net.conv_transpose(name, x, channels, without_bias(three_by_three().stride(2)), [0, 1, 1])
}

fn decoder(net: &mut Builder, mut x: TensorId, early: TensorId, classes: usize) -> Result<TensorId> {
    let part = |part: &str| format!("upsample.{part}");
    for [conv, normalised] in [["deconv1.0", "deconv1.1"], ["deconv1.3", "deconv1.4"]] {
        x = doubled(net, &part(conv), x, WIDTH)?;
        x = norm(net, &part(normalised), x)?;
        x = net.relu(&part(&format!("{normalised}.relu")), x);
    }
    x = net.concat(&part("concat"), &[x, early])?;
    for [conv, normalised] in [["conv1.0", "conv1.1"], ["conv1.3", "conv1.4"]] {
        let names = [part(conv), part(normalised)];
        x = conv_norm_relu(net, [&names[0], &names[1]], x, WIDTH, three_by_three())?;
    }
    x = net.conv(&part("conv1.6"), x, WIDTH, Conv::square(1))?;
    x = doubled(net, &part("deconv2.0"), x, WIDTH)?;
    x = norm(net, &part("deconv2.1"), x)?;
    x = net.relu(&part("deconv2.2"), x);
    doubled(net, &part("last_deconv.0"), x, classes)
}
