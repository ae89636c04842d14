//! What of each bucket is compressed and what travels as it is, and where it all lies: decided from the plan alone.

use std::ops::Range;

use super::codec::{Codec, PIECE, codec, pieces};
use crate::config::Compression;
use crate::device::Device;
use crate::plan::{Parameter, Plan, TAIL};

/// All buckets of a plan, and how much memory they need; everything counts `f32`.
pub struct Split {
    pub buckets: Vec<Bucket>,
    /// What is summed over ranks: what travels as it is, and left factors.
    pub summed: usize,
    /// The messages of all ranks, or right factors.
    pub second: usize,
    /// What the compressed tensors keep for later.
    pub residual: usize,
    /// Right factors from step to step.
    pub right: usize,
    /// The largest tensor that is put in plain order.
    pub scratch: usize,
}

/// One bucket; ranges are those of the gradients, and of the two regions that travel.
pub struct Bucket {
    pub range: Range<usize>,
    /// What travels as it is: where it lies, and its place among what is summed.
    pub exact: Vec<(Range<usize>, usize)>,
    pub tensors: Vec<Shape>,
    pub summed: Range<usize>,
    pub second: Range<usize>,
    /// Words of one rank's message.
    pub message: usize,
    /// For each phase what is done in it, in order. Messages travel between two phases.
    pub phases: Vec<Vec<Unit>>,
}

/// A tensor that is compressed, and its places: in the gradients (in whatever order the device keeps it), among what
/// stays behind, its factors in the two regions, its right factor from step to step.
#[derive(Debug, Clone)]
pub struct Shape {
    /// The number of the parameter in the plan.
    pub parameter: usize,
    pub start: usize,
    pub rows: usize,
    pub columns: usize,
    /// Whether it is put in plain order while it is worked on.
    pub blocked: bool,
    pub residual: usize,
    pub left: Range<usize>,
    pub right: Range<usize>,
    pub kept: usize,
}

impl Shape {
    pub fn elements(&self) -> usize {
        self.rows * self.columns
    }
}

/// A bounded piece of work on a tensor of a bucket; ranges are of its elements or its rows.
#[derive(Debug, Clone)]
pub enum Unit {
    ExactIn,
    ExactOut,
    /// The gradient is put in plain order where it lies, and back.
    Flatten(usize),
    Restore(usize),
    /// With the word of the message at which the piece starts.
    Encode(usize, Range<usize>, usize),
    Decode(usize, Range<usize>, usize),
    Project(usize, Range<usize>),
    Orthogonalise(usize),
    BackProject(usize, Range<usize>),
    KeepResidual(usize, Range<usize>),
    Product(usize, Range<usize>),
    KeepRight(usize),
}

/// How the gradients of a plan are compressed.
#[derive(Clone, Copy)]
pub struct How<'a> {
    /// By what.
    pub scheme: Compression,
    /// Whether the step's own numbers are in the last bucket.
    pub with_tail: bool,
    /// What has the gradients.
    pub plan: &'a Plan,
    /// Where they lie.
    pub device: &'a dyn Device,
    /// How many ranks add them up.
    pub ranks: usize,
}

impl Split {
    /// Unless the step's own numbers are summed `with_tail`, they travel by themselves.
    pub fn new(how: &How) -> Split {
        let mut split =
            Split { buckets: Vec::new(), summed: 0, second: 0, residual: 0, right: 0, scratch: 0 };
        for index in 0..how.plan.buckets.len() {
            let bucket = split.bucket(how, index);
            split.buckets.push(bucket);
        }
        split
    }

    fn bucket(&mut self, how: &How, index: usize) -> Bucket {
        let plan = how.plan;
        let bytes = &plan.buckets[index].bytes;
        let is_last = index + 1 == plan.buckets.len();
        let beside = if is_last && !how.with_tail { TAIL } else { 0 };
        let range = bytes.start / 4..(bytes.end - beside) / 4;
        let (first, second) = (self.summed, self.second);
        let (mut exact, mut tensors) = (Vec::new(), Vec::new());
        let learned = plan.parameters.iter().enumerate().filter(|(_, p)| !p.frozen);
        for (number, parameter) in learned.filter(|(_, p)| bytes.contains(&p.offset)) {
            let start = parameter.offset / 4;
            match matrix(how.scheme, parameter) {
                Some([rows, columns]) => {
                    let blocked = reordered(how.scheme, parameter, how.device);
                    tensors.push(self.tensor(how.scheme, number, start, [rows, columns], blocked));
                }
                None => exact.push(start..start + parameter.layout.bytes() / 4),
            }
        }
        exact.extend((is_last && how.with_tail).then(|| range.end - TAIL / 4..range.end));
        let exact = exact.into_iter().map(|range| {
            let at = self.summed;
            self.summed += range.len();
            (range, at)
        });
        let exact = exact.collect();
        let mut message = 0;
        let phases = match codec(how.scheme, how.ranks) {
            Some(codec) => gathered(&tensors, &*codec, &mut message),
            None => factored(&tensors),
        };
        self.second += how.ranks * message;
        let (summed, second) = (first..self.summed, second..self.second);
        Bucket { range, exact, tensors, summed, second, message, phases }
    }

    fn tensor(
        &mut self,
        scheme: Compression,
        parameter: usize,
        start: usize,
        [rows, columns]: [usize; 2],
        blocked: bool,
    ) -> Shape {
        let rank = if let Compression::PowerSgd { rank } = scheme { rank } else { 0 };
        let (left, right) =
            (self.summed..self.summed + rank * rows, self.second..self.second + rank * columns);
        let (residual, kept) = (self.residual, self.right);
        (self.summed, self.second) = (left.end, right.end);
        self.residual += rows * columns;
        self.right += right.len();
        if blocked {
            self.scratch = self.scratch.max(rows * columns);
        }
        Shape { parameter, start, rows, columns, blocked, residual, left, right, kept }
    }

    /// Bytes that a rank holds beside what collectives take for themselves, and the summed range of each bucket.
    pub fn bytes(&self) -> usize {
        let buffers = 2 * PIECE + self.widest();
        4 * (self.summed + self.second + self.residual + self.right + self.scratch + buffers)
    }

    /// Bytes of what travels.
    pub fn travelling(&self) -> usize {
        4 * (self.summed + self.second)
    }

    /// Elements of the longest row.
    pub fn widest(&self) -> usize {
        self.buckets.iter().flat_map(|bucket| &bucket.tensors).map(|t| t.columns).max().unwrap_or(0)
    }

    /// Bytes of one of the ranges of every bucket.
    pub fn bytes_of(&self, range: fn(&Bucket) -> Range<usize>) -> Vec<usize> {
        self.buckets.iter().map(|bucket| size_of::<f32>() * range(bucket).len()).collect()
    }

    /// Bytes that a rank sends in a step by rings: compressed, and as the gradients are.
    pub fn sent(&self, scheme: Compression, ranks: usize) -> [u64; 2] {
        let gradients = self.buckets.iter().map(|bucket| bucket.range.len()).sum();
        let around = |words: usize| 8 * (words * (ranks - 1)).div_ceil(ranks) as u64;
        let second = match scheme {
            Compression::PowerSgd { .. } => around(self.second),
            _ => 4 * (self.second / ranks * (ranks - 1)) as u64,
        };
        [around(self.summed) + second, around(gradients)]
    }
}

/// A parameter as rows and columns, if it is worth compressing: biases and normalisations are few numbers that matter
/// much.
fn matrix(scheme: Compression, parameter: &Parameter) -> Option<[usize; 2]> {
    let extents = &parameter.spec.shape.0;
    let elements = parameter.spec.shape.elements();
    let rows = *extents.first().filter(|_| extents.len() > 1 && elements > 0)?;
    let columns = elements / rows;
    match scheme {
        Compression::PowerSgd { rank } if rank * (rows + columns) >= elements => None,
        _ => Some([rows, columns]),
    }
}

/// Whether a tensor is put in plain order. Codecs take numbers in any order, but not the padding that a layout may
/// have: it must stay zero.
fn reordered(scheme: Compression, parameter: &Parameter, device: &dyn Device) -> bool {
    let plain = device.plain(&parameter.spec);
    // A GPU keeps a tensor's outputs outermost, so that rows stay rows: what is in them may be in any order.
    let by_rows = matches!(scheme, Compression::PowerSgd { .. }) && device.is_host();
    parameter.layout != plain && (by_rows || parameter.layout.bytes() != plain.bytes())
}

/// Encode, gather, decode.
fn gathered(tensors: &[Shape], codec: &dyn Codec, message: &mut usize) -> Vec<Vec<Unit>> {
    let (mut before, mut after) = (vec![Unit::ExactIn], vec![Unit::ExactOut]);
    for (index, tensor) in tensors.iter().enumerate() {
        before.extend(tensor.blocked.then_some(Unit::Flatten(index)));
        for piece in pieces(tensor.elements()) {
            before.push(Unit::Encode(index, piece.clone(), *message));
            after.push(Unit::Decode(index, piece.clone(), *message));
            *message += codec.bytes(piece.len()).div_ceil(4);
        }
        after.extend(tensor.blocked.then_some(Unit::Restore(index)));
    }
    vec![before, after]
}

/// Sum left factors, sum right factors, multiply.
fn factored(tensors: &[Shape]) -> Vec<Vec<Unit>> {
    let mut phases = vec![vec![Unit::ExactIn], vec![Unit::ExactOut], vec![]];
    for (index, tensor) in tensors.iter().enumerate() {
        let rows = (PIECE / tensor.columns).max(1);
        let blocks = || (0..tensor.rows).step_by(rows).map(|start| start..tensor.rows.min(start + rows));
        phases[0].extend(tensor.blocked.then_some(Unit::Flatten(index)));
        phases[0].extend(blocks().map(|rows| Unit::Project(index, rows)));
        phases[1].push(Unit::Orthogonalise(index));
        phases[1].extend(blocks().map(|rows| Unit::BackProject(index, rows)));
        phases[1].extend(blocks().map(|rows| Unit::KeepResidual(index, rows)));
        phases[2].extend(blocks().map(|rows| Unit::Product(index, rows)));
        phases[2].push(Unit::KeepRight(index));
        phases[2].extend(tensor.blocked.then_some(Unit::Restore(index)));
    }
    phases
}
