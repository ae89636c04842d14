//! Swin transformers: Liu, Lin, Cao, Hu, Wei, Zhang, Lin, Guo, "Swin transformer: hierarchical vision transformer using
//! shifted windows", 2021, with torchvision's names and first values.

use super::{Layers, Model};
use crate::error::{Error, Result};
use crate::graph::{Activation, Binary, Builder, Conv, Init, InitScheme, SampleShape, TensorId, dims};

pub const SWIN_T: Model = Model {
    name: "swin_t",
    about: "12 blocks of attention within windows of 7×7, shifted in every second: 28,288,354 parameters",
    image: SampleShape::image([3, 224, 224]),
    classes: 1000,
    layers: Layers::Of(swin_t),
};

/// Blocks and heads of each stage; the width doubles from stage to stage.
const STAGES: [[usize; 2]; 4] = [[2, 3], [2, 6], [6, 12], [2, 24]];
const BLOCKS: usize = 12;
const WIDTH: usize = 96;
const PATCH: usize = 4;
const WINDOW: usize = 7;
const EPSILON: f32 = 1e-5;
/// What is added to the scores of places that were not neighbours before a shift.
const APART: f32 = -100.0;

fn swin_t(net: &mut Builder, images: TensorId, classes: usize) -> Result<TensorId> {
    // torchvision cuts these off at ±2, which is 100 deviations: a normal distribution.
    net.init_linears(InitScheme::Normal { std: 0.02 }, InitScheme::Zero);
    let x = net.conv("features.0.0", images, WIDTH, Conv::square(PATCH).stride(PATCH))?;
    let x = net.permute("features.0.1", x, &[0, 2, 3, 1])?;
    let mut x = net.layer_norm("features.0.2", x, 1, EPSILON)?;
    let mut done = 0;
    for (stage, [blocks, heads]) in STAGES.into_iter().enumerate() {
        if stage > 0 {
            x = merged(net, &format!("features.{}", 2 * stage), x)?;
        }
        for block in 0..blocks {
            let p = 0.2 * done as f32 / (BLOCKS - 1) as f32;
            let shift = if block % 2 == 0 { 0 } else { WINDOW / 2 };
            x = residual(net, &format!("features.{}.{block}", 2 * stage + 1), x, (heads, shift, p))?;
            done += 1;
        }
    }
    let x = net.layer_norm("norm", x, 1, EPSILON)?;
    let x = net.permute("permute", x, &[0, 3, 1, 2])?;
    let x = net.global_avg_pool("avgpool", x)?;
    let x = net.flatten("flatten", x);
    Ok(net.linear("head", x, classes))
}

/// (N, H, W, C) of what lies between the layers.
fn places(net: &Builder, x: TensorId) -> Result<[usize; 4]> {
    net.shape(x).nchw().ok_or_else(|| Error::internal(format!("{} are no places", net.shape(x))))
}

/// Attention and two linear layers, each behind a normalisation, dropped for a sample as a whole with probability `p`,
/// and added to what it read.
fn residual(
    net: &mut Builder,
    name: &str,
    x: TensorId,
    (heads, shift, p): (usize, usize, f32),
) -> Result<TensorId> {
    let part = |part: &str| format!("{name}.{part}");
    let y = net.layer_norm(&part("norm1"), x, 1, EPSILON)?;
    let y = attention(net, &part("attn"), y, heads, shift)?;
    let y = dropped(net, &part("stochastic_depth.1"), y, p);
    let x = net.add(&part("add_1"), x, y)?;
    let width = places(net, x)?[3];
    let y = net.layer_norm(&part("norm2"), x, 1, EPSILON)?;
    let y = net.linear_along(&part("mlp.0"), y, 4 * width)?;
    let y = net.activation(&part("mlp.1"), y, Activation::Gelu);
    let y = net.linear_along(&part("mlp.3"), y, width)?;
    let y = dropped(net, &part("stochastic_depth.2"), y, p);
    net.add(&part("add_2"), x, y)
}

fn dropped(net: &mut Builder, name: &str, x: TensorId, p: f32) -> TensorId {
    if p > 0.0 { net.drop_samples(name, x, p) } else { x }
}

/// Attention within windows, of an image that is rolled by `shift` before and back behind it, and filled up with zeros
/// to whole windows.
fn attention(net: &mut Builder, name: &str, x: TensorId, heads: usize, shift: usize) -> Result<TensorId> {
    let part = |part: &str| format!("{name}.{part}");
    let [n, h, w, c] = places(net, x)?;
    let whole = [h, w].map(|length| length.next_multiple_of(WINDOW));
    // Where one window has all there is no need to shift.
    let shifts = whole.map(|length| if length > WINDOW { shift } else { 0 });
    let mut y = x;
    for (axis, (to, from)) in [(1, (whole[0], h)), (2, (whole[1], w))] {
        if to > from {
            y = net.pad(&part(&format!("pad.{axis}")), y, axis, [0, to - from])?;
        }
    }
    y = rolled(net, &part("shift"), y, shifts)?;
    let [rows, columns] = whole.map(|length| length / WINDOW);
    y = net.reshape(&part("tiles"), y, dims([n, rows, WINDOW, columns, WINDOW, c]))?;
    y = net.permute(&part("windows"), y, &[0, 1, 3, 2, 4, 5])?;
    let (length, windows) = (WINDOW * WINDOW, rows * columns);
    y = net.reshape(&part("rows"), y, dims([n * windows * length, c]))?;
    y = net.linear(&part("qkv"), y, 3 * c);
    let bias = relative_bias(net, name, heads)?;
    y = net.attention_with(name, y, length, heads, |net, scores| {
        let scores = net.binary(&part("places"), Binary::Add, scores, bias)?;
        if shifts == [0, 0] {
            return Ok(scores);
        }
        let shape = net.shape(scores).clone();
        let mask = net.constant(&part("mask"), dims([windows, 1, length, length]), &mask(whole, shifts))?;
        let scores = net.reshape(&part("images"), scores, dims([n, windows, heads, length, length]))?;
        let scores = net.binary(&part("masked"), Binary::Add, scores, mask)?;
        net.reshape(&part("all"), scores, shape)
    })?;
    y = net.linear(&part("proj"), y, c);
    y = net.reshape(&part("tiles.back"), y, dims([n, rows, columns, WINDOW, WINDOW, c]))?;
    y = net.permute(&part("windows.back"), y, &[0, 1, 3, 2, 4, 5])?;
    y = net.reshape(&part("image"), y, dims([n, whole[0], whole[1], c]))?;
    let back = [0, 1].map(|axis| (whole[axis] - shifts[axis]) % whole[axis]);
    y = rolled(net, &part("shift.back"), y, back)?;
    for (axis, (from, to)) in [(1, (whole[0], h)), (2, (whole[1], w))] {
        if from > to {
            y = net.slice(&part(&format!("cut.{axis}")), y, axis, 0..to)?;
        }
    }
    Ok(y)
}

/// What so many places at the beginning of each axis had comes to its end.
fn rolled(net: &mut Builder, name: &str, mut x: TensorId, by: [usize; 2]) -> Result<TensorId> {
    for (axis, by) in [(1, by[0]), (2, by[1])] {
        if by > 0 {
            let length = net.shape(x).0[axis];
            let [first, rest] = [(by..length, "rest"), (0..by, "first")]
                .map(|(range, which)| net.slice(&format!("{name}.{axis}.{which}"), x, axis, range));
            x = net.concat_along(&format!("{name}.{axis}"), axis, &[first?, rest?])?;
        }
    }
    Ok(x)
}

/// A learned number for each way from one place of a window to another, for each head: (heads, places, places).
fn relative_bias(net: &mut Builder, name: &str, heads: usize) -> Result<TensorId> {
    let ways = 2 * WINDOW - 1;
    let table = format!("{name}.relative_position_bias_table");
    let shape = dims([ways * ways, heads]);
    let learned = net.learned(&table, shape.clone(), Init::Normal { std: 0.02 }, false);
    let learned = net.reshape(&format!("{table}.read"), learned, shape)?;
    let length = WINDOW * WINDOW;
    let way = |from: usize, to: usize| {
        let along = |from: usize, to: usize| from + WINDOW - 1 - to;
        along(from / WINDOW, to / WINDOW) * ways + along(from % WINDOW, to % WINDOW)
    };
    let all: Vec<usize> = (0..length * length).map(|pair| way(pair / length, pair % length)).collect();
    let bias = net.gather(&format!("{name}.bias"), learned, &all)?;
    let bias = net.reshape(&format!("{name}.bias.pairs"), bias, dims([length, length, heads]))?;
    net.permute(&format!("{name}.bias.heads"), bias, &[2, 0, 1])
}

/// For each window which of its places were apart before the image of this height and width was rolled: (windows,
/// places, places).
fn mask(whole: [usize; 2], shifts: [usize; 2]) -> Vec<f32> {
    // Parts of an axis that hang together: all but the last window, what is left of that, and what came around.
    let part = |axis: usize, at: usize| match () {
        () if shifts[axis] == 0 => usize::from(at >= whole[axis] - WINDOW),
        () if at >= whole[axis] - shifts[axis] => 2,
        () => usize::from(at >= whole[axis] - WINDOW),
    };
    let (length, columns) = (WINDOW * WINDOW, whole[1] / WINDOW);
    let region = |window: usize, place: usize| {
        let row = window / columns * WINDOW + place / WINDOW;
        let column = window % columns * WINDOW + place % WINDOW;
        (part(0, row), part(1, column))
    };
    let windows = whole[0] / WINDOW * columns;
    let of = |index: usize| {
        let (window, pair) = (index / (length * length), index % (length * length));
        let is_apart = region(window, pair / length) != region(window, pair % length);
        if is_apart { APART } else { 0.0 }
    };
    (0..windows * length * length).map(of).collect()
}

/// Each four neighbouring places become one of four times the channels, and then of twice.
fn merged(net: &mut Builder, name: &str, x: TensorId) -> Result<TensorId> {
    let part = |part: &str| format!("{name}.{part}");
    let [n, h, w, c] = places(net, x)?;
    let (rows, columns) = (h.div_ceil(2), w.div_ceil(2));
    let mut y = x;
    for (axis, length) in [(1, h), (2, w)] {
        if length % 2 == 1 {
            y = net.pad(&part(&format!("pad.{axis}")), y, axis, [0, 1])?;
        }
    }
    y = net.reshape(&part("fours"), y, dims([n, rows, 2, columns, 2, c]))?;
    y = net.permute(&part("neighbours"), y, &[0, 1, 3, 4, 2, 5])?;
    y = net.reshape(&part("merged"), y, dims([n, rows, columns, 4 * c]))?;
    y = net.layer_norm(&part("norm"), y, 1, EPSILON)?;
    y = net.reshape(&part("rows"), y, dims([n * rows * columns, 4 * c]))?;
    y = net.linear_without_bias(&part("reduction"), y, 2 * c);
    net.reshape(name, y, dims([n, rows, columns, 2 * c]))
}
