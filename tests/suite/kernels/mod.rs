//! Our CUDA kernels, run on the host (or on a GPU: tests/support/kernels.rs), against the reference device,
//! `device::Rule` and the codecs, or a formula: every kernel, for every type of number, aligned and not, with the
//! threads of a block in both orders and with different grids.
//!
//! - `speed`: what ptxas says of them, against limits
//! - `table`: the sources, kernels/README.md and the PTX have the same kernels; missing barriers are seen
//! - `elements`: conversions, element by element, layouts, images
//! - `broadcast`: stretched tensors and sums over axes
//! - `layer_norm`, `softmax`
//! - `field_loss`: losses and metrics of fields
//! - `pooling`, `norm`, `loss`: the graph's ops (with dropout and local response normalisation)
//! - `update`: the optimizers, to the bit; norms, clipping, averages, loss scaling
//! - `compress`: the codecs, to the byte

mod broadcast;
mod compress;
mod elements;
mod field_loss;
mod layer_norm;
mod loss;
mod norm;
mod pooling;
mod softmax;
mod speed;
mod table;
mod update;

use dltrain::device::Scalars;
use dltrain::graph::{Op, Shape};
use dltrain::random::{Purpose, Stream, key};

use crate::support::kernels::{self, NUMBERS, Start};
use crate::support::{f32s, run_with};

/// Both ways in which a buffer may begin.
const STARTS: [Start; 2] = [Start::Aligned, Start::Odd];

/// What kernels read and what they write, of those with both in their names.
fn pairs() -> impl Iterator<Item = (&'static str, &'static str)> {
    let all = NUMBERS.into_iter().flat_map(|from| NUMBERS.map(|to| (from, to)));
    all.filter(|(from, to)| from == to || *from == "f32" || *to == "f32")
}

const SCALARS: Scalars = Scalars {
    seed: 7,
    step: 5_000_000_003,
    first_sample: 96,
    gradient_scale: 0.125,
    rescale: 1.0,
    learning_rate: 0.01,
    update: 3,
};

fn stream(which: u32) -> Stream {
    Stream::new(key(11, Purpose::Synthetic, which))
}

/// Numbers in [-1, 1).
fn random(count: usize, which: u32) -> Vec<f32> {
    let mut stream = stream(which);
    (0..count).map(|_| 2.0 * stream.uniform() - 1.0).collect()
}

/// The same as type `t` holds them.
fn random_in(t: &str, count: usize, which: u32) -> Vec<f32> {
    kernels::all_rounded(t, &random(count, which))
}

fn close(found: &[f32], expected: &[f32], bound: impl Fn(f32) -> f32, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (index, (&a, &b)) in found.iter().zip(expected).enumerate() {
        let same = a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= bound(b);
        assert!(same, "{what}: element {index} is {a}, should be {b} ± {}", bound(b));
    }
}

/// Equal as numbers, NaN to NaN.
fn equal(found: &[f32], expected: &[f32], what: &str) {
    close(found, expected, |_| 0.0, what);
}

/// What the reference device makes of these; shapes are given as extents.
fn reference(op: Op, inputs: &[(&[usize], &[f32])], outputs: &[&[usize]]) -> Vec<Vec<f32>> {
    let inputs: Vec<_> =
        inputs.iter().map(|(extents, values)| (f32s(shape(extents)), values.to_vec())).collect();
    let outputs: Vec<_> = outputs.iter().map(|extents| f32s(shape(extents))).collect();
    run_with(&SCALARS, op, &inputs, &outputs)
}

fn shape(extents: &[usize]) -> Shape {
    Shape(extents.into())
}

/// (N,C,plane) as (N,plane,C).
fn channels_last(values: &[f32], [n, c, plane]: [usize; 3]) -> Vec<f32> {
    let at = |i: usize| values[(i / (plane * c) * c + i % c) * plane + i / c % plane];
    (0..n * c * plane).map(at).collect()
}

/// And back.
fn channels_first(values: &[f32], [n, c, plane]: [usize; 3]) -> Vec<f32> {
    channels_last(values, [n, plane, c])
}

/// `Scalars` of kernels/README.md, with the corrections of Adam's moments.
fn scalars_bytes(scalars: &Scalars, unscale: f32, skip: u32, betas: [f32; 2]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in [scalars.seed, scalars.step, scalars.first_sample, scalars.update] {
        bytes.extend(word.to_ne_bytes());
    }
    for number in [scalars.gradient_scale, scalars.learning_rate, unscale] {
        bytes.extend(number.to_ne_bytes());
    }
    bytes.extend(skip.to_ne_bytes());
    for beta in betas {
        bytes.extend((1.0 - f64::from(beta).powf(scalars.update as f64)).to_ne_bytes());
    }
    bytes
}

fn scalars() -> kernels::Buffer {
    kernels::Buffer::of_bytes(&scalars_bytes(&SCALARS, 1.0, 0, [0.9, 0.999]), Start::Aligned, 4)
}
