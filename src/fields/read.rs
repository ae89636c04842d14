//! Reading a sample: its window of the array, the chunks that hold it, their bytes decoded, the numbers as `f32` in a
//! network's order. No lock is taken but those of the list of open files and of the list of decoded chunks.

use std::cmp::Reverse;
use std::iter::Sum;
use std::sync::Arc;

use super::array::{ArrayStorage, FileArray};
use super::element::{FileNumber, NumberKind, NumberType};
use super::filter::{ChunkDecoder, Filter, unshuffle_part};
use super::universe::Universe;
use super::view::{ArrayBox, ArrayPart, place_in, row_major};
use crate::error::{Error, Result};
use crate::files::ChunkCache;

/// What one thread needs to read.
#[derive(Default)]
pub struct ArrayReader {
    decoder: ChunkDecoder,
    /// A chunk as it is stored, or a piece of an array that has none.
    stored: Vec<u8>,
    /// Decoded chunks, which other threads may share.
    chunks: Arc<ChunkCache>,
    /// Bytes since the last call of `take_amount`.
    amount: Amount,
}

/// What reading took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Amount {
    /// Bytes that came from files.
    pub read: u64,
    /// Bytes that these were when decoded.
    pub decoded: u64,
    /// Bytes of them that are numbers of samples.
    pub used: u64,
}

impl Sum for Amount {
    fn sum<I: Iterator<Item = Amount>>(amounts: I) -> Amount {
        let add = |a: Amount, b: Amount| Amount {
            read: a.read + b.read,
            decoded: a.decoded + b.decoded,
            used: a.used + b.used,
        };
        amounts.fold(Amount::default(), add)
    }
}

/// What is read of a contiguous array at once, in bytes, also where some of it is not needed.
pub(super) const PIECE: usize = 1 << 20;

/// Bytes that are read along with what lies on both sides of them.
const CLOSE: usize = 4096;

/// Numbers that are converted at a time where they do not go to their place one after the other: they stay near.
const NEAR: usize = 1024;

/// Numbers whose bytes are put together at a time.
const PART: usize = 256;

/// The most bytes of a number.
const WIDEST: usize = 8;

/// For each axis of a box how many places, how far apart the numbers are where they come from, and in the output.
type Walk = Vec<[usize; 3]>;

/// A part of an array, and where its numbers go.
type Placed<'a, T> = (&'a ArrayPart, &'a mut [T]);

impl ArrayReader {
    /// Reads a part of an array, as one sample is. Numbers that stand for none become NaN, packed ones what they stand
    /// for. `to` has as many places as there are numbers.
    ///
    /// # Errors
    /// `Data`, with file, array and place: what is there cannot be read or decoded.
    pub fn read(&mut self, array: &FileArray, part: &ArrayPart, to: &mut [f32]) -> Result<()> {
        self.read_codes(array, part, to)?;
        array.meanings(to);
        Ok(())
    }

    /// The same of numbers as the file has them: nothing is made of those that stand for none or for others.
    ///
    /// # Errors
    /// As for `read`.
    pub fn read_codes<T: FileNumber>(
        &mut self,
        array: &FileArray,
        part: &ArrayPart,
        to: &mut [T],
    ) -> Result<()> {
        let numbers: usize = part.window.len.iter().product();
        if to.len() != numbers || array.element.bytes() > T::WIDEST {
            let what = format!("{numbers} numbers of {} in {} places", array.element, to.len());
            return Err(Error::internal(what));
        }
        self.amount.used += (numbers * array.element.bytes()) as u64;
        match &array.storage {
            ArrayStorage::Unwritten => to.fill(unwritten(array)?),
            ArrayStorage::Library(_) => self.by_library(array, (part, to))?,
            ArrayStorage::Contiguous(at) => self.contiguous(array, *at, (part, to))?,
            ArrayStorage::Chunked(chunk, filters) => self.chunked(array, (chunk, filters), (part, to))?,
            ArrayStorage::Computed(universe) => self.computed(array, universe, (part, to))?,
        }
        Ok(())
    }

    /// Reads a box of an array, in the array's order.
    ///
    /// # Errors
    /// As for `read`.
    pub fn read_box(&mut self, array: &FileArray, window: &ArrayBox, to: &mut [f32]) -> Result<()> {
        self.read(array, &ArrayPart { window: window.clone(), strides: row_major(&window.len) }, to)
    }

    /// Takes chunks that others have decoded, and leaves its own to them.
    pub fn share(&mut self, chunks: &Arc<ChunkCache>) {
        self.chunks = chunks.clone();
    }

    /// Forgets the chunks that were decoded: the next sample is read as if it came alone.
    pub fn forget(&mut self) {
        self.chunks.forget();
    }

    /// What reading took since the last call.
    pub fn take_amount(&mut self) -> Amount {
        std::mem::take(&mut self.amount)
    }

    /// What reading a box takes; of an array in chunks, which may be kept, only what is used.
    pub fn amount_without_chunks(array: &FileArray, window: &ArrayBox) -> Amount {
        let numbers = window.len.iter().product::<usize>() as u64;
        let used = numbers * array.element.bytes() as u64;
        let (read, decoded) = match &array.storage {
            ArrayStorage::Contiguous(_) => {
                let (inner, bytes) = read_at_once(array, window);
                let all = (window.len[..inner].iter().product::<usize>() * bytes) as u64;
                (all, all)
            }
            ArrayStorage::Library(_) => (0, numbers * size_of::<f32>() as u64),
            ArrayStorage::Computed(_) => (0, array.bytes()),
            ArrayStorage::Chunked(..) | ArrayStorage::Unwritten => (0, 0),
        };
        Amount { read, decoded, used }
    }

    fn by_library<T: FileNumber>(&mut self, array: &FileArray, (part, to): Placed<T>) -> Result<()> {
        if T::WIDEST < size_of::<f32>() {
            return Err(Error::internal(format!("{} is read through the library as f32", array.name)));
        }
        let numbers = array.by_library(&part.window)?;
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        self.amount.decoded += bytes.len() as u64;
        let numbers = Numbers { element: NumberType::F32, bytes: &bytes, in_planes: false };
        let len = &part.window.len;
        numbers.place(0, &walk(len, &row_major(len), &part.strides), to, 0);
        Ok(())
    }

    fn contiguous<T: FileNumber>(&mut self, array: &FileArray, at: u64, (part, to): Placed<T>) -> Result<()> {
        let ArrayPart { window, strides } = part;
        let (ArrayBox { first, len }, from) = (window, row_major(&array.shape));
        let number = array.element.bytes();
        let (inner, bytes) = read_at_once(array, window);
        let inside = walk(&len[inner..], &from[inner..], &strides[inner..]);
        for outer in places(&len[..inner]) {
            let sum =
                |strides: &[usize], of: &[usize]| strides.iter().zip(of).map(|(a, b)| a * b).sum::<usize>();
            let start = sum(&from, first) + sum(&from, &outer);
            fetch(array, at + (start * number) as u64, bytes as u64, &mut self.stored)?;
            self.amount.read += bytes as u64;
            self.amount.decoded += bytes as u64;
            let numbers = Numbers { element: array.element, bytes: &self.stored, in_planes: false };
            numbers.place(0, &inside, to, sum(strides, &outer));
        }
        Ok(())
    }

    /// What is computed is computed whole.
    fn computed<T: FileNumber>(
        &mut self,
        array: &FileArray,
        universe: &Universe,
        (part, to): Placed<T>,
    ) -> Result<()> {
        let ArrayReader { chunks, amount, .. } = self;
        let ArrayPart { window, strides } = part;
        let compute = |bytes: &mut Vec<u8>| {
            bytes.clear();
            match array.element.kind {
                NumberKind::I16 => {
                    bytes.extend(universe.counts().iter().flat_map(|count| count.to_le_bytes()))
                }
                _ => bytes.extend(universe.parameters().iter().flat_map(|number| number.to_le_bytes())),
            }
            amount.decoded += bytes.len() as u64;
            Ok(false)
        };
        let from = row_major(&array.shape);
        let first: usize = window.first.iter().zip(&from).map(|(first, stride)| first * stride).sum();
        let inside = walk(&window.len, &from, strides);
        chunks.with((array.id, 0), compute, |bytes, in_planes| {
            Numbers { element: array.element, bytes, in_planes }.place(first, &inside, to, 0);
        })
    }

    fn chunked<T: FileNumber>(
        &mut self,
        array: &FileArray,
        (chunk, filters): (&[usize], &[Filter]),
        (part, to): Placed<T>,
    ) -> Result<()> {
        let ArrayPart { window, strides } = part;
        let ArrayBox { first, len } = window;
        let (grid, from) = (array.grid(chunk), row_major(chunk));
        for number in array.chunks_of(window) {
            let (mut source, mut target) = (0, 0);
            let mut part = Vec::with_capacity(len.len());
            for (axis, at) in place_in(&grid, number).into_iter().enumerate() {
                let begin = first[axis].max(at * chunk[axis]);
                let end = (first[axis] + len[axis]).min((at + 1) * chunk[axis]);
                source += (begin - at * chunk[axis]) * from[axis];
                target += (begin - first[axis]) * strides[axis];
                part.push(end - begin);
            }
            let inside = walk(&part, &from, strides);
            let found = array.chunk(number)?;
            if found.bytes == 0 {
                fill(unwritten(array)?, inside, to, target);
                continue;
            }
            let ArrayReader { decoder, stored, chunks, amount } = &mut *self;
            let (element, whole) = (array.element, array.chunk_bytes());
            let decode = |bytes: &mut Vec<u8>| {
                fetch(array, found.at, found.bytes, stored)?;
                amount.read += found.bytes;
                let decoded = decoder.decode(filters, found.skipped, element.bytes(), whole, (stored, bytes));
                amount.decoded += whole as u64;
                let damaged =
                    |what| array.wrong(format!("the chunk at byte {} is damaged: {what}", found.at));
                decoded.map_err(damaged)
            };
            chunks.with((array.id, number), decode, |bytes, in_planes| {
                Numbers { element, bytes, in_planes }.place(source, &inside, to, target);
            })?;
        }
        Ok(())
    }
}

/// The axis from which on a box of a contiguous array is read at once, and how many bytes these are.
fn read_at_once(array: &FileArray, ArrayBox { len, .. }: &ArrayBox) -> (usize, usize) {
    let from = row_major(&array.shape);
    let span = |axis: usize| {
        let last: usize = (axis..len.len()).map(|axis| (len[axis] - 1) * from[axis]).sum();
        (last + 1) * array.element.bytes()
    };
    // Between places of an axis lies what others read, as other rows of a channel.
    let is_near = |axis: usize| {
        len[axis] == 1 || from[axis] * array.element.bytes() <= span(axis + 1).saturating_add(CLOSE)
    };
    let last = len.len().saturating_sub(1);
    let near = (0..last).rev().take_while(|&axis| is_near(axis)).last().unwrap_or(last);
    let inner = (near..last).find(|&axis| span(axis) <= PIECE).unwrap_or(last);
    (inner, span(inner))
}

/// Makes `to` some bytes of the file, from one place on.
fn fetch(array: &FileArray, at: u64, bytes: u64, to: &mut Vec<u8>) -> Result<()> {
    if at.checked_add(bytes).is_none_or(|end| end > array.file.bytes) {
        let all = array.file.bytes;
        let what =
            format!("{bytes} bytes at {at} are behind the end of the file, which has {all}: it was cut off");
        return Err(array.wrong(what));
    }
    to.resize(bytes as usize, 0);
    let kept = array.file.kept.as_ref().ok_or_else(|| Error::internal("bytes of what is computed"))?;
    kept.read_exact_at(to, at).map_err(|error| array.wrong(error))
}

/// What was never written is none, for which no code of an array stands.
fn unwritten<T: FileNumber>(array: &FileArray) -> Result<T> {
    T::NONE.ok_or_else(|| Error::internal(format!("{} has codes of what was never written", array.name)))
}

/// All places of a grid; one without axes has one.
fn places(grid: &[usize]) -> impl Iterator<Item = Vec<usize>> {
    (0..grid.iter().product()).map(|number| place_in(grid, number))
}

/// The axes of a box without those of one place; neighbours that are one after the other in both are one.
fn walk(len: &[usize], from: &[usize], to: &[usize]) -> Walk {
    let mut walk: Walk = Vec::with_capacity(len.len());
    for axis in 0..len.len() {
        let next = [len[axis], from[axis], to[axis]];
        match walk.last_mut() {
            _ if next[0] == 1 => {}
            Some(last) if last[1] == next[0] * next[1] && last[2] == next[0] * next[2] => {
                *last = [last[0] * next[0], next[1], next[2]];
            }
            _ => walk.push(next),
        }
    }
    walk
}

/// The numbers of a chunk.
struct Numbers<'a> {
    element: NumberType,
    bytes: &'a [u8],
    /// The first bytes of all numbers come first, then the second bytes, and so on.
    in_planes: bool,
}

impl Numbers<'_> {
    /// Copies a box, from one number of the chunk on, to places of the output, from one place on.
    fn place<T: FileNumber>(&self, at: usize, walk: &[[usize; 3]], to: &mut [T], first: usize) {
        match walk {
            [] => self.read(at, &mut to[first..first + 1]),
            &[[len, 4, 1], [4, 1, stride]] if self.in_planes && self.element.bytes() == 2 => {
                self.four_channels(at, stride, &mut to[first..][..3 * stride + len], len);
            }
            // Channels last become channels first: some places at a time, so that what is read stays near.
            &[[len, from, 1], [channels, 1, stride]] if stride != 1 && from <= NEAR => {
                let (step, mut near) = (NEAR / from, [T::default(); NEAR]);
                for start in (0..len).step_by(step) {
                    let places = step.min(len - start);
                    self.read(at + start * from, &mut near[..(places - 1) * from + channels]);
                    for channel in 0..channels {
                        let target = &mut to[first + start + channel * stride..][..places];
                        apart(&near[..places * from], from, channel, target);
                    }
                }
            }
            &[[len, 1, 1]] => self.read(at, &mut to[first..first + len]),
            &[[len, from, stride]] if from <= NEAR => {
                let (step, mut near) = (NEAR / from, [T::default(); NEAR]);
                for start in (0..len).step_by(step) {
                    let near = &mut near[..(step.min(len - start) - 1) * from + 1];
                    self.read(at + start * from, near);
                    let places = to[first + start * stride..].iter_mut().step_by(stride);
                    places.zip(near.iter().step_by(from)).for_each(|(to, number)| *to = *number);
                }
            }
            [[len, from, stride], inner @ ..] => {
                (0..*len).for_each(|k| self.place(at + k * from, inner, to, first + k * stride));
            }
        }
    }

    /// Moves four channels of 16 bits from the last axis to the first, of `len` places from number `at` on.
    fn four_channels<T: FileNumber>(&self, at: usize, stride: usize, to: &mut [T], len: usize) {
        let (first, second) = self.bytes.split_at(self.bytes.len() / 2);
        let planes = [first, second].map(|plane| plane[at..at + 4 * len].as_chunks::<4>().0);
        let [low, high] = if self.element.big_endian { [planes[1], planes[0]] } else { planes };
        for start in (0..len).step_by(PART) {
            let part = start..len.min(start + PART);
            for channel in 0..4 {
                let target = &mut to[channel * stride..][part.clone()];
                T::one_of_four(self.element, [&low[part.clone()], &high[part.clone()]], channel, target);
            }
        }
    }

    /// Numbers that are one after the other, from one on.
    fn read<T: FileNumber>(&self, first: usize, to: &mut [T]) {
        let size = self.element.bytes();
        if !self.in_planes {
            return T::read(self.element, &self.bytes[first * size..][..to.len() * size], to);
        }
        let mut near = [0; PART * WIDEST];
        for (to, first) in to.chunks_mut(PART).zip((first..).step_by(PART)) {
            let near = &mut near[..to.len() * size];
            unshuffle_part(self.bytes, first, near, size);
            T::read(self.element, near, to);
        }
    }
}

/// Takes one number of each group of `size`. Of sizes that are known beforehand processors take several at once.
fn apart<T: Copy>(from: &[T], size: usize, at: usize, to: &mut [T]) {
    fn known<const SIZE: usize, T: Copy>(from: &[T], at: usize, to: &mut [T]) {
        to.iter_mut().zip(from.as_chunks::<SIZE>().0).for_each(|(to, group)| *to = group[at]);
    }
    match size {
        2 => known::<2, T>(from, at, to),
        3 => known::<3, T>(from, at, to),
        4 => known::<4, T>(from, at, to),
        8 => known::<8, T>(from, at, to),
        16 => known::<16, T>(from, at, to),
        _ => to.iter_mut().zip(from.chunks_exact(size)).for_each(|(to, group)| *to = group[at]),
    }
}

/// Puts one number to all places of a box, in the order of the output.
fn fill<T: Copy>(number: T, mut walk: Walk, to: &mut [T], first: usize) {
    fn inside<T: Copy>(number: T, walk: &[[usize; 3]], to: &mut [T], first: usize) {
        match walk {
            [] => to[first] = number,
            [[len, _, 1]] => to[first..first + len].fill(number),
            [[len, _, stride], inner @ ..] => {
                (0..*len).for_each(|k| inside(number, inner, to, first + k * stride));
            }
        }
    }
    walk.sort_by_key(|&[_, _, stride]| Reverse(stride));
    inside(number, &walk, to, first);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers whose bytes lie in planes and the same numbers one after the other give the same channels.
    #[test]
    fn four_channels_of_16_bits_are_the_same_in_planes() {
        fn check<T: FileNumber + PartialEq>(element: NumberType) {
            let (places, stride) = (2 * PART + 17, 2 * PART + 20);
            // Neither byte of an f16 makes it NaN.
            let whole: Vec<u8> = (0..(places + 3) * 8).map(|at| (at * 131 % 251) as u8 & 59).collect();
            let planes: Vec<u8> =
                (0..2).flat_map(|plane| whole.iter().skip(plane).step_by(2).copied()).collect();
            let placed = [(&whole, false), (&planes, true)].map(|(bytes, in_planes)| {
                let mut to = vec![T::default(); 4 * stride];
                let numbers = Numbers { element, bytes, in_planes };
                numbers.place(8, &[[places, 4, 1], [4, 1, stride]], &mut to, 2);
                to
            });
            assert!(placed[0] == placed[1], "{element}");
        }
        for kind in [NumberKind::I16, NumberKind::U16, NumberKind::F16] {
            for big_endian in [false, true] {
                check::<f32>(NumberType { kind, big_endian });
                check::<u16>(NumberType { kind, big_endian });
            }
        }
    }
}
