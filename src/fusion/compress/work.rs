//! What is done to the tensors of a bucket, a bounded piece at a time.

use std::ops::Range;
use std::rc::Rc;

use super::codec::{Codec, codec};
use super::powersgd;
use super::split::{Bucket, How, Shape, Split, Unit};
use super::tensor::Tensor;
use crate::collective;
use crate::comm::Region;
use crate::device::memory::{bytes_of, bytes_of_mut};
use crate::device::{Device, Memory};
use crate::error::Result;

/// Whoever does the work on buckets.
pub trait Compressor {
    /// Does one unit of a bucket; returns how many elements it was about.
    fn run(&mut self, bucket: &Bucket, index: usize, unit: &Unit) -> Result<usize>;
    /// Whether what was done to a bucket is where its messages leave from.
    fn is_settled(&self, _index: usize) -> Result<bool> {
        Ok(true)
    }
    /// What the next step needs of this one.
    fn state(&self) -> Vec<Kept>;
}

/// What a run that goes on needs again: in the host's memory, or the device's.
#[derive(Clone)]
pub struct Kept {
    /// What a checkpoint calls it.
    pub name: &'static str,
    /// Where it lies.
    pub memory: Memory,
    /// Whether that is the host's memory.
    pub on_host: bool,
}

/// What a checkpoint calls residuals and factors.
pub fn names(device: &dyn Device) -> [&'static str; 2] {
    match device.is_host() {
        true => ["compression residual", "compression factors"],
        // In the order of that device's layouts.
        false => ["compression residual of a GPU", "compression factors of a GPU"],
    }
}

pub struct Worker {
    codec: Option<Box<dyn Codec>>,
    rank: usize,
    ranks: usize,
    gradients: Memory,
    residuals: Memory,
    /// Right factors from step to step.
    rights: Memory,
    names: [&'static str; 2],
    summed: Rc<Region>,
    second: Rc<Region>,
    /// Of each bucket.
    tensors: Vec<Vec<Tensor>>,
    /// Room for a piece, for another, and for factors and messages.
    piece: Vec<f32>,
    other: Vec<f32>,
    words: Vec<f32>,
    left: Vec<f32>,
}

impl Worker {
    pub fn new(
        &How { scheme, plan, device, ranks, .. }: &How,
        split: &Split,
        [summed, second]: [Rc<Region>; 2],
        rank: usize,
        gradients: &Memory,
    ) -> Result<Worker> {
        // On the host, where gradients are averaged, whatever the device.
        let (residuals, scratch) = (Memory::host(4 * split.residual)?, Memory::host(4 * split.scratch)?);
        let tensor = |shape: &Shape| {
            Tensor::new(shape, &plan.parameters[shape.parameter], device, gradients, &residuals, &scratch)
        };
        let tensors = split.buckets.iter().map(|bucket| bucket.tensors.iter().map(tensor).collect());
        Ok(Worker {
            codec: codec(scheme, ranks),
            rank,
            ranks,
            gradients: gradients.clone(),
            rights: Memory::host(4 * split.right)?,
            names: names(device),
            summed,
            second,
            tensors: tensors.collect::<Result<_>>()?,
            residuals,
            piece: Vec::new(),
            other: Vec::new(),
            words: Vec::new(),
            left: Vec::new(),
        })
    }

    /// Copies what travels as it is among what is summed, or back.
    fn exact(&mut self, bucket: &Bucket, leaves: bool) -> usize {
        let mut elements = 0;
        for (range, at) in &bucket.exact {
            let memory = self.gradients.slice(4 * range.start, 4 * range.len());
            self.piece.resize(range.len(), 0.0);
            if leaves {
                memory.read(bytes_of_mut(&mut self.piece));
                self.summed.write(*at, &self.piece);
            } else {
                self.summed.read(*at, &mut self.piece);
                memory.write(bytes_of(&self.piece));
            }
            elements += range.len();
        }
        elements
    }

    /// Where the message of a rank starts.
    fn message(&self, bucket: &Bucket, rank: usize) -> usize {
        collective::segment(&bucket.second, self.ranks, rank).start
    }

    fn encode(
        &mut self,
        bucket: &Bucket,
        [index, tensor]: [usize; 2],
        range: &Range<usize>,
        at: usize,
    ) -> usize {
        let start = self.message(bucket, self.rank) + at;
        let Some(codec) = &mut self.codec else { return 0 };
        let tensor = &self.tensors[index][tensor];
        tensor.corrected(range, &mut self.piece, &mut self.other);
        let bytes = codec.bytes(range.len());
        self.words.clear();
        self.words.resize(bytes.div_ceil(4), 0.0);
        codec.encode(&mut self.piece, &mut bytes_of_mut(&mut self.words)[..bytes]);
        tensor.keep(range.start, &self.piece);
        self.second.write(start, &self.words);
        range.len()
    }

    /// Adds up what all ranks say of a piece, in the order of ranks.
    fn decode(
        &mut self,
        bucket: &Bucket,
        [index, tensor]: [usize; 2],
        range: &Range<usize>,
        at: usize,
    ) -> usize {
        let Some(codec) = &self.codec else { return 0 };
        let bytes = codec.bytes(range.len());
        self.words.resize(bytes.div_ceil(4), 0.0);
        self.piece.clear();
        self.piece.resize(range.len(), 0.0);
        for rank in 0..self.ranks {
            self.second.read(self.message(bucket, rank) + at, &mut self.words);
            codec.add(&bytes_of(&self.words)[..bytes], &mut self.piece);
        }
        self.tensors[index][tensor].set_gradient(range.start, &self.piece);
        self.ranks * range.len()
    }

    /// Where the left factor of these rows lies.
    fn left_of(shape: &Shape, rows: &Range<usize>) -> Range<usize> {
        let rank = shape.left.len() / shape.rows;
        shape.left.start + rank * rows.start..shape.left.start + rank * rows.end
    }

    fn project(&mut self, shape: &Shape, [index, tensor]: [usize; 2], rows: &Range<usize>) -> usize {
        let range = rows.start * shape.columns..rows.end * shape.columns;
        let tensor = &self.tensors[index][tensor];
        tensor.corrected(&range, &mut self.piece, &mut self.other);
        tensor.keep(range.start, &self.piece);
        self.read_right(shape);
        let left = Worker::left_of(shape, rows);
        self.left.resize(left.len(), 0.0);
        powersgd::project(&self.piece, shape.columns, &self.words, &mut self.left);
        self.summed.write(left.start, &self.left);
        range.len()
    }

    /// The right factor of the last step; at first a random one.
    fn read_right(&mut self, shape: &Shape) {
        self.words.resize(shape.right.len(), 0.0);
        self.rights.slice(4 * shape.kept, 4 * shape.right.len()).read(bytes_of_mut(&mut self.words));
        powersgd::renew(&mut self.words, shape.columns, shape.parameter);
    }

    fn orthogonalise(&mut self, shape: &Shape) -> usize {
        self.left.resize(shape.left.len(), 0.0);
        self.summed.read(shape.left.start, &mut self.left);
        powersgd::orthogonalise(&mut self.left, shape.left.len() / shape.rows);
        self.summed.write(shape.left.start, &self.left);
        self.words.clear();
        self.words.resize(shape.right.len(), 0.0);
        self.second.write(shape.right.start, &self.words);
        shape.left.len() * shape.left.len() / shape.rows
    }

    /// Reads left and right factors as they now stand.
    fn factors(&mut self, shape: &Shape, rows: &Range<usize>) {
        let left = Worker::left_of(shape, rows);
        self.left.resize(left.len(), 0.0);
        self.summed.read(left.start, &mut self.left);
        self.words.resize(shape.right.len(), 0.0);
        self.second.read(shape.right.start, &mut self.words);
    }

    fn back_project(&mut self, shape: &Shape, [index, tensor]: [usize; 2], rows: &Range<usize>) -> usize {
        let range = rows.start * shape.columns..rows.end * shape.columns;
        self.tensors[index][tensor].residual(&range, &mut self.piece);
        self.factors(shape, rows);
        powersgd::back_project(&self.piece, shape.columns, &self.left, &mut self.words);
        self.second.write(shape.right.start, &self.words);
        range.len()
    }

    fn keep_residual(&mut self, shape: &Shape, [index, tensor]: [usize; 2], rows: &Range<usize>) -> usize {
        let range = rows.start * shape.columns..rows.end * shape.columns;
        self.tensors[index][tensor].residual(&range, &mut self.piece);
        self.factors(shape, rows);
        powersgd::add_product(&mut self.piece, shape.columns, -1.0, &self.left, &self.words);
        self.tensors[index][tensor].keep(range.start, &self.piece);
        range.len()
    }

    fn product(&mut self, shape: &Shape, [index, tensor]: [usize; 2], rows: &Range<usize>) -> usize {
        let range = rows.start * shape.columns..rows.end * shape.columns;
        self.factors(shape, rows);
        self.piece.clear();
        self.piece.resize(range.len(), 0.0);
        powersgd::add_product(&mut self.piece, shape.columns, 1.0, &self.left, &self.words);
        self.tensors[index][tensor].set_gradient(range.start, &self.piece);
        range.len()
    }

    fn keep_right(&mut self, shape: &Shape) -> usize {
        self.words.resize(shape.right.len(), 0.0);
        self.second.read(shape.right.start, &mut self.words);
        self.rights.slice(4 * shape.kept, 4 * shape.right.len()).write(bytes_of(&self.words));
        shape.right.len()
    }
}

impl Compressor for Worker {
    fn state(&self) -> Vec<Kept> {
        let all = self.names.into_iter().zip([&self.residuals, &self.rights]);
        let all = all.filter(|(_, memory)| memory.bytes() > 0);
        all.map(|(name, memory)| Kept { name, memory: memory.clone(), on_host: true }).collect()
    }

    fn run(&mut self, bucket: &Bucket, index: usize, unit: &Unit) -> Result<usize> {
        let shape = |tensor: &usize| &bucket.tensors[*tensor];
        Ok(match unit {
            Unit::ExactIn => self.exact(bucket, true),
            Unit::ExactOut => self.exact(bucket, false),
            Unit::Flatten(tensor) => {
                self.tensors[index][*tensor].flatten(&mut self.piece)?;
                shape(tensor).elements()
            }
            Unit::Restore(tensor) => {
                self.tensors[index][*tensor].restore(&mut self.piece)?;
                shape(tensor).elements()
            }
            Unit::Encode(tensor, range, at) => self.encode(bucket, [index, *tensor], range, *at),
            Unit::Decode(tensor, range, at) => self.decode(bucket, [index, *tensor], range, *at),
            Unit::Project(tensor, rows) => self.project(shape(tensor), [index, *tensor], rows),
            Unit::Orthogonalise(tensor) => self.orthogonalise(shape(tensor)),
            Unit::BackProject(tensor, rows) => self.back_project(shape(tensor), [index, *tensor], rows),
            Unit::KeepResidual(tensor, rows) => self.keep_residual(shape(tensor), [index, *tensor], rows),
            Unit::Product(tensor, rows) => self.product(shape(tensor), [index, *tensor], rows),
            Unit::KeepRight(tensor) => self.keep_right(shape(tensor)),
        })
    }
}
