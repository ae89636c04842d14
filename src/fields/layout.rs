//! Which chunks would fit samples.

use super::array::{ArrayStorage, FileArray};
use super::read::Amount;
use super::view::ViewSamples;

/// The shape of chunks that would fit samples like these, of which some took `amount`: where more than twice what is
/// used is decoded, and the samples are large enough for a chunk and lie one behind the other.
pub fn better_chunk(array: &FileArray, samples: &ViewSamples, amount: Amount) -> Option<Vec<usize>> {
    /// Bytes of a chunk that is worth a read, and of one that is small enough to be kept.
    const SIZES: [usize; 2] = [64 << 10, 4 << 20];
    let better = samples.window(0).len;
    let bytes = |chunk: &[usize]| chunk.iter().product::<usize>() * array.element.bytes();
    let is_chunked = matches!(array.storage, ArrayStorage::Chunked(..));
    let is_wasted = amount.decoded > 2 * amount.used;
    if !is_wasted || !is_chunked || !samples.are_aligned() || bytes(&better) < SIZES[0] {
        return None;
    }
    Some(halved(better, SIZES[1] / array.element.bytes()))
}

/// A shape halved along its first axes until it has no more than so many numbers.
pub fn halved(mut shape: Vec<usize>, most: usize) -> Vec<usize> {
    while shape.iter().product::<usize>() > most
        && let Some(places) = shape.iter_mut().find(|places| **places > 1)
    {
        *places = places.div_ceil(2);
    }
    shape
}
