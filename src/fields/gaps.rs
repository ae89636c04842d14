//! Which numbers of an array were never written, so that no number is there: HDF5 gives its fill value for them.

use hdf5::Dataset;
use hdf5::dataset::{DatasetCreate, Layout};
use serde::{Deserialize, Serialize};

use super::array::FileArray;
use super::library;
use super::view::{ArrayBox, place_in};
use crate::error::Result;

/// Which numbers of an array were never written.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Gaps {
    /// All were, or nothing is known.
    #[default]
    None,
    /// All but those of so many chunks of this shape.
    Chunks(Vec<usize>, usize),
    /// Those that a virtual array has of no other: what is in none of these parts of it.
    Outside(Vec<Vec<Slab>>),
    /// None was.
    All,
}

/// Along one axis so many blocks of so many places, from a first one on and so far apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Slab {
    pub first: u64,
    pub apart: u64,
    pub count: u64,
    pub block: u64,
}

impl Slab {
    /// Places of an axis of so many.
    fn places(self, extent: usize) -> u64 {
        let extent = extent as u64;
        let whole = self.count.saturating_sub(1).saturating_mul(self.apart).saturating_add(self.block);
        if self.first.saturating_add(whole) <= extent && self.apart >= self.block {
            return self.count * self.block;
        }
        (0..extent).filter(|&place| self.has(place)).count() as u64
    }

    fn has(self, place: u64) -> bool {
        let Some(from) = place.checked_sub(self.first) else { return false };
        let apart = self.apart.max(1);
        // The last block may have no end.
        let number = (from / apart).min(self.count.saturating_sub(1));
        self.count > 0 && from - number * apart < self.block
    }

    fn meets(self, first: usize, len: usize) -> bool {
        (first..first + len).any(|place| self.has(place as u64))
    }
}

impl Gaps {
    /// # Errors
    /// The library does not say it.
    pub fn of(dataset: &Dataset, list: &DatasetCreate, shape: &[usize]) -> std::result::Result<Gaps, String> {
        match list.layout() {
            Layout::Contiguous if list.external().is_empty() && dataset.offset().is_none() => Ok(Gaps::All),
            Layout::Contiguous | Layout::Compact => Ok(Gaps::None),
            Layout::Chunked => {
                let Some(chunk) = list.chunk().filter(|chunk| !chunk.contains(&0)) else {
                    return Ok(Gaps::None);
                };
                let all: usize =
                    shape.iter().zip(&chunk).map(|(along, chunk)| along.div_ceil(*chunk)).product();
                let written = library::written_chunks(dataset)?;
                Ok(match all.saturating_sub(written) {
                    0 => Gaps::None,
                    lacking => Gaps::Chunks(chunk, lacking),
                })
            }
            Layout::Virtual => {
                let parts = library::parts(list, shape.len())?;
                let of = |part: &Vec<Slab>| {
                    part.iter().zip(shape).map(|(slab, &along)| slab.places(along)).product::<u64>()
                };
                // Parts that lie on each other are rare, and hide a gap.
                let filled: u64 = parts.iter().map(of).sum();
                let is_whole = filled >= shape.iter().product::<usize>() as u64;
                Ok(if is_whole { Gaps::None } else { Gaps::Outside(parts) })
            }
        }
    }
}

impl FileArray {
    /// How many of its chunks were never written, where it has chunks.
    pub fn unwritten_chunks(&self) -> usize {
        if let Gaps::Chunks(_, lacking) = self.gaps { lacking } else { 0 }
    }

    /// Whether some numbers of a box were never written.
    ///
    /// # Errors
    /// As for `ArrayReader::read`.
    pub fn is_lacking(&self, window: &ArrayBox) -> Result<bool> {
        let mut numbers = vec![0.0; window.len.iter().product()];
        self.mark(window, &mut numbers)?;
        Ok(numbers.iter().any(|number| number.is_nan()))
    }

    /// Makes NaN of the numbers of a box that were never written.
    pub(super) fn mark(&self, window: &ArrayBox, numbers: &mut [f32]) -> Result<()> {
        let places = |numbers: &mut [f32], is_gap: &dyn Fn(&[usize]) -> bool| {
            for (at, number) in numbers.iter_mut().enumerate() {
                let mut place = place_in(&window.len, at);
                place.iter_mut().zip(&window.first).for_each(|(place, first)| *place += first);
                *number = if is_gap(&place) { f32::NAN } else { *number };
            }
        };
        match &self.gaps {
            Gaps::None => {}
            Gaps::All => numbers.fill(f32::NAN),
            Gaps::Chunks(chunk, _) => {
                let grid = self.grid(chunk);
                let mut lacking = Vec::new();
                for number in self.chunks_in(window, chunk) {
                    if self.chunk(number)?.bytes == 0 {
                        lacking.push(place_in(&grid, number));
                    }
                }
                let is_gap = |place: &[usize]| {
                    let of_chunk: Vec<usize> =
                        place.iter().zip(chunk).map(|(place, chunk)| place / chunk).collect();
                    lacking.contains(&of_chunk)
                };
                if !lacking.is_empty() {
                    places(numbers, &is_gap);
                }
            }
            Gaps::Outside(parts) => {
                let near = |part: &&Vec<Slab>| {
                    let mut along = part.iter().zip(window.first.iter().zip(&window.len));
                    along.all(|(slab, (&first, &len))| slab.meets(first, len))
                };
                let parts: Vec<&Vec<Slab>> = parts.iter().filter(near).collect();
                let has = |part: &[Slab], place: &[usize]| {
                    part.iter().zip(place).all(|(slab, &place)| slab.has(place as u64))
                };
                places(numbers, &|place| !parts.iter().any(|part| has(part, place)));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_their_places_also_without_an_end() {
        let of = |first, apart, count, block, extent: usize| {
            let slab = Slab { first, apart, count, block };
            let own: Vec<u64> = (0..extent as u64).filter(|&place| slab.has(place)).collect();
            assert_eq!(slab.places(extent), own.len() as u64);
            own
        };
        assert_eq!(of(1, 4, 2, 2, 12), [1, 2, 5, 6]);
        assert_eq!(of(3, 1, 1, u64::MAX, 6), [3, 4, 5]);
        assert_eq!(of(0, 3, u64::MAX, 1, 8), [0, 3, 6]);
        assert_eq!(of(2, 0, 1, 2, 6), [2, 3]);
        assert!(of(2, 2, 0, 2, 6).is_empty());
    }
}
