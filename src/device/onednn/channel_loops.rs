//! Loops over images, several channels at once: for ops that the library lacks and that work on each channel by itself.
//!
//! In every layout that such an op meets (plain, blocked by channels, channels last) what an image has of a block of
//! channels is one run of rows, a row being a number of each channel of the block. All loops go over such rows in
//! pieces that stay in cache; sums of pieces are added in f64 in a fixed order, so that results do not depend on the
//! number of threads. Numbers of images may be stored as bf16; whatever is computed of them is f32.

use std::ops::Range;

use half::bf16;

use super::handle::Engine;
use super::host::{Numbers, Workers, host_kernel, in_wide_registers};
use super::layout::{desc, plain};
use super::primitive::spatial;
use super::sys;
use crate::device::memory::Number;
use crate::device::{Kernel, KernelRequest, Layout, Memory};
use crate::error::{Error, Result};
use crate::graph::{DType, Spec};

/// Numbers of x that a thread takes at a time: enough to be worth waking it for, few enough for f32 sums.
const PIECE: usize = 1 << 14;

// ---- how x lies in memory ----

/// Images of a block of channels: `images` × `blocks` runs of `channel_loops` × `lanes` numbers, one run after the
/// other.
#[derive(Clone, Copy)]
pub struct Grid {
    images: usize,
    channels: usize,
    /// Blocks of channels; the last may be filled up.
    blocks: usize,
    /// Channels of a block.
    pub lanes: usize,
    /// Places of an image.
    rows: usize,
    /// What a piece has of these.
    images_a_piece: usize,
    rows_a_piece: usize,
}

impl Grid {
    fn new(extents: &[usize], lanes: usize) -> Grid {
        let (images, channels, rows) = (extents[0], extents[1], extents[2..].iter().product::<usize>());
        let blocks = channels.div_ceil(lanes);
        let rows_a_piece = (PIECE / lanes).clamp(1, rows.max(1));
        let images_a_piece = (PIECE / (rows * lanes).max(1)).clamp(1, images.max(1));
        Grid { images, channels, blocks, lanes, rows, images_a_piece, rows_a_piece }
    }

    /// The grid of a layout of images, if it is one.
    pub fn of(layout: &Layout, extents: &[usize]) -> Result<Option<Grid>> {
        let (desc, axes) = (desc(layout)?, extents.len());
        let (strides, padded) =
            (desc.vector(sys::QUERY_STRIDES, axes)?, desc.vector(sys::QUERY_PADDED_DIMS, axes)?);
        let blockings = desc.scalar::<i32>(sys::QUERY_INNER_NBLKS_S32)? as usize;
        let inner = desc.vector(sys::QUERY_INNER_IDXS, blockings)?;
        let sizes = desc.vector(sys::QUERY_INNER_BLKS, blockings)?;
        let (n, c, places) = (extents[0], extents[1], &extents[2..]);
        let rows = places.iter().product::<usize>();
        // Of images and channels these, of places so many times what they are apart.
        let strided = |first: [usize; 2], times: usize| {
            let behind = (0..places.len()).map(|at| times * places[at + 1..].iter().product::<usize>());
            first.into_iter().chain(behind).collect::<Vec<usize>>()
        };
        let candidates = match (&inner[..], &sizes[..]) {
            ([], []) => vec![(c, strided([rows * c, 1], c)), (1, strided([c * rows, rows], 1))],
            ([1], [size]) => {
                let lanes = *size as usize;
                vec![(lanes, strided([c.div_ceil(lanes) * lanes * rows, lanes * rows], lanes))]
            }
            _ => vec![],
        };
        let with_channels = |channels: usize| [&[n, channels], places].concat();
        let found = candidates.into_iter().find(|(lanes, expected)| {
            let outer = with_channels(if inner.is_empty() { c } else { c.div_ceil(*lanes) });
            let whole = with_channels(c.next_multiple_of(if inner.is_empty() { 1 } else { *lanes }));
            (0..axes)
                .all(|d| padded[d] == whole[d] as i64 && (outer[d] == 1 || strides[d] == expected[d] as i64))
        });
        Ok(found.map(|(lanes, _)| Grid::new(extents, lanes)))
    }

    fn padded(&self) -> usize {
        self.blocks * self.lanes
    }

    fn pieces_a_block(&self) -> usize {
        self.images.div_ceil(self.images_a_piece) * self.rows.div_ceil(self.rows_a_piece)
    }

    pub fn pieces(&self) -> usize {
        self.blocks * self.pieces_a_block()
    }

    /// Pieces count through the rows, the images and the blocks.
    pub fn piece(&self, index: usize) -> ChannelPiece {
        let (row_parts, within) = (self.rows.div_ceil(self.rows_a_piece), index % self.pieces_a_block());
        let cut = |part: usize, size: usize, whole: usize| part * size..whole.min((part + 1) * size);
        ChannelPiece {
            block: index / self.pieces_a_block(),
            images: cut(within / row_parts, self.images_a_piece, self.images),
            rows: cut(within % row_parts, self.rows_a_piece, self.rows),
        }
    }
}

/// A part of the numbers of one block of channels.
pub struct ChannelPiece {
    block: usize,
    images: Range<usize>,
    rows: Range<usize>,
}

impl ChannelPiece {
    /// Numbers of each channel.
    pub fn count(&self) -> usize {
        self.images.len() * self.rows.len()
    }

    /// A sixteenth of it, or a little more.
    pub fn sample(&self) -> ChannelPiece {
        let first = |of: &Range<usize>| of.start..of.start + of.len().div_ceil(16);
        let (images, rows) = match self.images.len() {
            1 => (self.images.clone(), first(&self.rows)),
            _ => (first(&self.images), self.rows.clone()),
        };
        ChannelPiece { block: self.block, images, rows }
    }

    /// Where its runs lie.
    fn runs(&self, grid: &Grid) -> impl Iterator<Item = Range<usize>> {
        let (grid, rows, block) = (*grid, self.rows.clone(), self.block);
        self.images.clone().map(move |image| {
            let first = (image * grid.blocks + block) * grid.rows;
            (first + rows.start) * grid.lanes..(first + rows.end) * grid.lanes
        })
    }

    fn lanes(&self, grid: &Grid) -> Range<usize> {
        self.block * grid.lanes..(self.block + 1) * grid.lanes
    }
}

// ---- loops over rows ----

/// What is done with L numbers that lie side by side, from `at` on: K terms to add up for each, given M coefficients
/// of its channel.
pub trait Terms<const M: usize, const K: usize>: Sync {
    fn of<const L: usize>(&self, at: usize, coefficients: &[[f32; L]; M]) -> [[f32; L]; K];
}

in_wide_registers! {
    /// Adds up the terms of a piece for each channel of its block: K rows of `lanes` sums. `coefficients` are those of
    /// the block.
    pub fn add_up [const M: usize, const K: usize] (
        grid: &Grid,
        piece: &ChannelPiece,
        coefficients: [&[f32]; M],
        terms: &impl Terms<M, K>,
        sums: &mut [f32],
    ) {
        add_up_anywhere(grid, piece, coefficients, terms, sums);
    }
}

#[inline(always)]
fn add_up_anywhere<const M: usize, const K: usize>(
    grid: &Grid,
    piece: &ChannelPiece,
    coefficients: [&[f32]; M],
    terms: &impl Terms<M, K>,
    sums: &mut [f32],
) {
    if grid.lanes == 1 {
        // Neighbours are of one channel: it is lent as many lanes as a register has.
        let mut wide = [[0f32; 16]; K];
        let mut rest = [[0f32; 1]; K];
        let (many, one) = (coefficients.map(|c| [c[0]; 16]), coefficients.map(|c| [c[0]; 1]));
        for run in piece.runs(grid) {
            let mut at = run.start;
            while at + 16 <= run.end {
                add(&mut wide, terms.of(at, &many));
                at += 16;
            }
            while at < run.end {
                add(&mut rest, terms.of(at, &one));
                at += 1;
            }
        }
        for k in 0..K {
            sums[k] = wide[k].iter().sum::<f32>() + rest[k][0];
        }
        return;
    }
    let mut lane = 0;
    while lane < grid.lanes {
        lane += match grid.lanes - lane {
            16.. => add_up_lanes::<16, M, K>(grid, piece, lane, &coefficients, terms, sums),
            8.. => add_up_lanes::<8, M, K>(grid, piece, lane, &coefficients, terms, sums),
            _ => add_up_lanes::<1, M, K>(grid, piece, lane, &coefficients, terms, sums),
        };
    }
}

/// Adds up L channels of the block; returns L.
#[inline(always)]
fn add_up_lanes<const L: usize, const M: usize, const K: usize>(
    grid: &Grid,
    piece: &ChannelPiece,
    lane: usize,
    coefficients: &[&[f32]; M],
    terms: &impl Terms<M, K>,
    sums: &mut [f32],
) -> usize {
    let coefficients = coefficients.map(|of_block| *of_block[lane..].first_chunk::<L>().expect("L lanes"));
    let mut added = [[0f32; L]; K];
    for run in piece.runs(grid) {
        let mut at = run.start + lane;
        while at < run.end {
            add(&mut added, terms.of(at, &coefficients));
            at += grid.lanes;
        }
    }
    for (k, added) in added.iter().enumerate() {
        sums[k * grid.lanes + lane..][..L].copy_from_slice(added);
    }
    L
}

#[inline(always)]
fn add<const L: usize, const K: usize>(sums: &mut [[f32; L]; K], terms: [[f32; L]; K]) {
    for k in 0..K {
        for l in 0..L {
            sums[k][l] += terms[k][l];
        }
    }
}

/// How images are stored.
pub trait Element: Number {
    fn widened(self) -> f32;
    fn rounded(value: f32) -> Self;
}

impl Element for f32 {
    #[inline(always)]
    fn widened(self) -> f32 {
        self
    }

    #[inline(always)]
    fn rounded(value: f32) -> f32 {
        value
    }
}

/// Without branches or calls, which the conversions of the crate have: these become vector instructions.
impl Element for bf16 {
    #[inline(always)]
    fn widened(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    /// To the nearest, of two equally near to the even one.
    #[inline(always)]
    fn rounded(value: f32) -> bf16 {
        let bits = value.to_bits();
        let nearest = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
        // What is not a number stays so, even if all of its bits that are set are lost.
        let kept = if value.is_nan() { bits | 0x40_0000 } else { nearest };
        bf16::from_bits((kept >> 16) as u16)
    }
}

/// L numbers of a tensor, from `at` on.
#[inline(always)]
pub fn load<const L: usize, T: Element>(from: &Numbers<T>, at: usize) -> [f32; L] {
    // SAFETY: no step writes to what it loads, but for dx over dy, and there each number is loaded before it is stored.
    let stored: &[T; L] = unsafe { from.part(at..at + L) }.first_chunk().expect("L numbers");
    let mut numbers = [0f32; L];
    for l in 0..L {
        numbers[l] = stored[l].widened();
    }
    numbers
}

/// # Safety
/// No other thread uses these numbers.
#[inline(always)]
pub unsafe fn store<const L: usize, T: Element>(to: &Numbers<T>, at: usize, numbers: [f32; L]) {
    // SAFETY: the caller's.
    let stored: &mut [T; L] = unsafe { to.part_mut(at..at + L) }.first_chunk_mut().expect("L numbers");
    for l in 0..L {
        stored[l] = T::rounded(numbers[l]);
    }
}

/// What a step works on besides its operands: a row of each coefficient, and the sums of every piece.
pub struct Scratch<'a> {
    pub grid: Grid,
    coefficients: Numbers<'a>,
    pieces: Numbers<'a>,
}

/// Coefficients and sums of a piece that any of these ops has, at most.
const MOST_COEFFICIENTS: usize = 5;
pub const MOST_SUMS: usize = 2;

/// Rows of numbers that a piece has room for: sums, and a mean about which they are taken.
const PIECE_ROWS: usize = MOST_SUMS + 1;

impl Grid {
    fn coefficient_bytes(&self) -> usize {
        4 * (MOST_COEFFICIENTS * self.padded()).next_multiple_of(16)
    }

    fn scratch_bytes(&self) -> usize {
        self.coefficient_bytes() + 4 * PIECE_ROWS * self.pieces() * self.lanes
    }
}

impl<'a> Scratch<'a> {
    fn new(grid: Grid, [coefficients, pieces]: [&'a Memory; 2]) -> Scratch<'a> {
        Scratch { grid, coefficients: Numbers::of(coefficients), pieces: Numbers::of(pieces) }
    }

    /// Writes the coefficients of every channel; those of channels that only fill a block are zero, and so is all that
    /// comes of them.
    pub fn set<const M: usize>(&self, of: impl Fn(usize) -> [f32; M]) {
        // SAFETY: one thread; nothing else uses the scratch memory.
        (0..self.grid.blocks).for_each(|block| unsafe { self.set_block(block, &of) });
    }

    /// Sets the coefficients of a block's channels.
    ///
    /// # Safety
    /// Nothing else uses the block's coefficients meanwhile.
    unsafe fn set_block<const M: usize>(&self, block: usize, of: impl Fn(usize) -> [f32; M]) {
        let padded = self.grid.padded();
        for channel in block * self.grid.lanes..(block + 1) * self.grid.lanes {
            let values = if channel < self.grid.channels { of(channel) } else { [0.0; M] };
            for (row, &value) in values.iter().enumerate() {
                let at = row * padded + channel;
                // SAFETY: the caller's.
                unsafe { self.coefficients.part_mut(at..at + 1)[0] = value };
            }
        }
    }

    /// Something with every piece, then the coefficients of every channel from what came of that, then the terms of
    /// every piece. Where there are as many blocks of channels as threads, block by block, so that a block's numbers
    /// are still in cache when they are wanted again; with the same bits.
    pub fn twice<const M: usize>(
        &self,
        workers: &Workers,
        first: impl Fn(&ChannelPiece, &mut [f32]) + Sync,
        between: impl Fn(usize) -> [f32; M] + Sync,
        then: &impl Terms<M, 0>,
    ) {
        // SAFETY: one call a piece.
        let first = |index: usize| first(&self.grid.piece(index), unsafe { self.rows_of(index) });
        let then = |index: usize| {
            let piece = self.grid.piece(index);
            add_up(&self.grid, &piece, self.of_block(&piece), then, &mut []);
        };
        if self.grid.blocks < workers.count() {
            workers.each(self.grid.pieces(), first);
            self.set(&between);
            return workers.each(self.grid.pieces(), then);
        }
        let pieces = self.grid.pieces_a_block();
        workers.each(self.grid.blocks, |block| {
            (block * pieces..(block + 1) * pieces).for_each(first);
            // SAFETY: one thread has a block and its coefficients.
            unsafe { self.set_block(block, &between) };
            (block * pieces..(block + 1) * pieces).for_each(then);
        });
    }

    fn of_block<const M: usize>(&self, piece: &ChannelPiece) -> [&'a [f32]; M] {
        let (lanes, padded) = (piece.lanes(&self.grid), self.grid.padded());
        // SAFETY: written before the threads start.
        std::array::from_fn(|row| unsafe {
            self.coefficients.part(row * padded + lanes.start..row * padded + lanes.end)
        })
    }

    /// Where the rows of a piece are.
    fn of_piece(&self, index: usize) -> Range<usize> {
        let length = PIECE_ROWS * self.grid.lanes;
        index * length..(index + 1) * length
    }

    /// The rows of a piece: `MOST_SUMS` of sums, and one more.
    ///
    /// # Safety
    /// Each piece's are in use once at a time.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn rows_of(&self, index: usize) -> &mut [f32] {
        // SAFETY: the caller's; rows of pieces do not overlap.
        unsafe { self.pieces.part_mut(self.of_piece(index)) }
    }

    /// Adds up terms for every piece.
    pub fn run<const M: usize, const K: usize>(&self, workers: &Workers, terms: &impl Terms<M, K>) {
        workers.each(self.grid.pieces(), |index| {
            let piece = self.grid.piece(index);
            // SAFETY: one call a piece.
            let sums = unsafe { self.rows_of(index) };
            add_up(&self.grid, &piece, self.of_block(&piece), terms, sums);
        });
    }

    /// For one channel every piece's numbers of it and how many it has of x, in order.
    pub fn of_channel(&self, channel: usize) -> impl Iterator<Item = ([f64; MOST_SUMS], f64)> {
        let (block, lane) = (channel / self.grid.lanes, channel % self.grid.lanes);
        let first = block * self.grid.pieces_a_block();
        (first..first + self.grid.pieces_a_block()).map(move |index| {
            // SAFETY: the threads have ended.
            let sums = unsafe { self.pieces.part(self.of_piece(index)) };
            let of_row = |row: usize| f64::from(sums[row * self.grid.lanes + lane]);
            (std::array::from_fn(of_row), self.grid.piece(index).count() as f64)
        })
    }
}

/// The layouts of an op, and how its images lie.
pub struct Frame {
    grid: Grid,
    /// How the elements of the images lie: f32 or bf16.
    pub dtype: DType,
    inputs: Vec<Layout>,
    outputs: Vec<Layout>,
}

impl Frame {
    /// `x` is the input whose layout is kept; every tensor of its shape gets it, all others are plain.
    pub fn new(engine: &Engine, request: &KernelRequest, x: usize) -> Result<Frame> {
        let (spec, given) = &request.inputs[x];
        spatial(spec)?;
        let extents = &spec.shape.0;
        let all = || request.inputs.iter().map(|(spec, _)| spec).chain(request.outputs);
        if !spec.dtype.is_real() || all().any(|other| other != spec && other.dtype != DType::F32) {
            return Err(Error::internal("a normalisation over ranks of what is not f32 or bf16"));
        }
        let (layout, grid) = match given {
            Some(layout) => (layout.clone(), Grid::of(layout, extents)?),
            None => (plain(engine, spec)?, None),
        };
        // Any other layout is turned into the plain one first.
        let (layout, grid) = match grid {
            Some(grid) => (layout, grid),
            None => (plain(engine, spec)?, Grid::new(extents, 1)),
        };
        let of = |other: &Spec| if other == spec { Ok(layout.clone()) } else { plain(engine, other) };
        Ok(Frame {
            grid,
            dtype: layout.dtype(),
            inputs: request.inputs.iter().map(|(spec, _)| of(spec)).collect::<Result<_>>()?,
            outputs: request.outputs.iter().map(of).collect::<Result<_>>()?,
        })
    }

    pub fn kernel(
        self,
        name: &'static str,
        work: impl Fn(&[Memory], &[Memory], Scratch) -> Result<()> + 'static,
    ) -> Kernel {
        let (grid, coefficients) = (self.grid, self.grid.coefficient_bytes());
        let bytes = grid.scratch_bytes();
        let kernel = host_kernel(name, self.inputs, self.outputs, move |inputs, outputs, _| {
            let (scratch, outputs) = outputs.split_last().expect("scratch memory comes last");
            let parts = [
                &scratch.slice(0, coefficients),
                &scratch.slice(coefficients, scratch.bytes() - coefficients),
            ];
            work(inputs, outputs, Scratch::new(grid, parts))
        });
        kernel.with_workspace(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the crate has it, for numbers of every kind: ties, those that overflow, subnormal ones, infinities, NaN.
    #[test]
    fn bf16_is_rounded_to_the_nearest() {
        let patterns = (0..1u32 << 16).flat_map(|high| {
            [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff].map(|low| f32::from_bits(high << 16 | low))
        });
        for value in patterns {
            let (found, expected) = (<bf16 as Element>::rounded(value), bf16::from_f32(value));
            assert_eq!(found.to_bits(), expected.to_bits(), "{value:e} ({:x})", value.to_bits());
            assert_eq!(found.widened().to_bits(), found.to_f32().to_bits());
        }
    }
}
