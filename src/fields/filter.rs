//! The filters that a chunk of an HDF5 file goes through, undone.
//!
//! Sources: the HDF5 file format specification (filter pipeline message) for their order, `H5checksum.c` for Fletcher's
//! sum, and RFC 1950 for zlib's format.

use libdeflater::Decompressor;
use serde::{Deserialize, Serialize};

/// One step of what a chunk was put through when it was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Filter {
    /// zlib's format.
    Deflate,
    /// The first bytes of all numbers, then the second bytes, and so on.
    Shuffle,
    /// A checksum of four bytes behind the data.
    Fletcher32,
    /// h5py's: LZF.
    Lzf,
}

/// As many bytes as deflate makes of one at most (RFC 1951: 258 of two bits and a few).
const MOST_OF_DEFLATE: usize = 1032;

/// As many bytes as LZF makes of one at most: 264 of three.
const MOST_OF_LZF: usize = 88;

/// What decoding needs beside the chunk, kept from chunk to chunk.
pub struct ChunkDecoder {
    inflate: Decompressor,
    other: Vec<u8>,
}

impl Default for ChunkDecoder {
    fn default() -> ChunkDecoder {
        ChunkDecoder { inflate: Decompressor::new(), other: Vec::new() }
    }
}

impl ChunkDecoder {
    /// Undoes the filters of a chunk, from the last to the first, but those whose bit in `skipped` is set: `to` becomes
    /// what the chunk was, `bytes` bytes of numbers of `number` bytes. What is in `chunk` is lost; buffers that are
    /// given again for chunks of one size are not filled with zeros again. Where shuffling came first it is not undone,
    /// and the answer is true: `unshuffle_part` does it for the numbers that are wanted, while they are near.
    ///
    /// # Errors
    /// What is wrong with the chunk. Nothing is allocated that its bytes cannot become.
    pub fn decode(
        &mut self,
        filters: &[Filter],
        skipped: u32,
        number: usize,
        bytes: usize,
        (chunk, to): (&mut Vec<u8>, &mut Vec<u8>),
    ) -> Result<bool, String> {
        let in_planes = filters.first() == Some(&Filter::Shuffle) && skipped & 1 == 0 && number > 1;
        let undone = filters.iter().enumerate().skip(usize::from(in_planes));
        for (at, filter) in undone.rev().filter(|(at, _)| skipped >> at & 1 == 0) {
            // A checksum that was made before the compression is part of what was compressed.
            let sums = filters[..at].iter().enumerate();
            let sums =
                sums.filter(|&(at, &filter)| filter == Filter::Fletcher32 && skipped >> at & 1 == 0).count();
            let whole = bytes + 4 * sums;
            match filter {
                Filter::Fletcher32 => verify(chunk)?,
                Filter::Shuffle => {
                    self.other.resize(chunk.len(), 0);
                    unshuffle(chunk, &mut self.other, number);
                    std::mem::swap(chunk, &mut self.other);
                }
                Filter::Deflate => {
                    room(chunk.len(), to, whole, MOST_OF_DEFLATE)?;
                    let inflated = self.inflate.zlib_decompress(chunk, to);
                    expect(inflated.map_err(|error| format!("deflate: {error}"))?, whole)?;
                    std::mem::swap(chunk, to);
                }
                Filter::Lzf => {
                    room(chunk.len(), to, whole, MOST_OF_LZF)?;
                    expect(expand(chunk, to)?, whole)?;
                    std::mem::swap(chunk, to);
                }
            }
        }
        std::mem::swap(chunk, to);
        expect(to.len(), bytes).map(|()| in_planes)
    }
}

/// Makes room for what some bytes become; every byte of it is written before it is read.
fn room(compressed: usize, to: &mut Vec<u8>, whole: usize, most: usize) -> Result<(), String> {
    if whole > compressed.saturating_mul(most) {
        return Err(format!("{compressed} bytes cannot become {whole}"));
    }
    to.resize(whole, 0);
    Ok(())
}

fn expect(is: usize, wanted: usize) -> Result<(), String> {
    if is == wanted { Ok(()) } else { Err(format!("{is} bytes in place of {wanted}")) }
}

/// Takes off the checksum, and compares it.
fn verify(chunk: &mut Vec<u8>) -> Result<(), String> {
    let Some((data, &sum)) = chunk.split_last_chunk::<4>() else {
        return Err("no room for a checksum".into());
    };
    let (sum, own) = (u32::from_le_bytes(sum), fletcher32(data));
    // Before 1.6.3 the library wrote both halves the other way round on such machines, and still takes them.
    let [a, b, c, d] = own.to_be_bytes();
    if sum != own && sum != u32::from_be_bytes([b, a, d, c]) {
        return Err("its checksum is another (Fletcher-32)".into());
    }
    chunk.truncate(chunk.len() - 4);
    Ok(())
}

/// Fletcher's sum over words of 16 bits, the first byte in front; an odd byte at the end is the first of a word.
fn fletcher32(data: &[u8]) -> u32 {
    let (mut first, mut second) = (0u32, 0u32);
    let fold = |sum: u32| (sum & 0xffff) + (sum >> 16);
    // So many words before a sum of 32 bits could overflow.
    let (words, odd) = data.as_chunks::<2>();
    for part in words.chunks(360) {
        for &word in part {
            first += u32::from(u16::from_be_bytes(word));
            second += first;
        }
        (first, second) = (fold(first), fold(second));
    }
    if let [byte] = odd {
        first += u32::from(*byte) << 8;
        second += first;
        (first, second) = (fold(first), fold(second));
    }
    fold(second) << 16 | fold(first)
}

/// Puts the bytes of each number together again. What is behind the last whole number was left as it is.
fn unshuffle(from: &[u8], to: &mut [u8], number: usize) {
    let whole = from.len() - from.len() % number.max(1);
    let (numbers, rest) = to.split_at_mut(whole);
    unshuffle_part(&from[..whole], 0, numbers, number);
    rest.copy_from_slice(&from[whole..]);
}

/// Puts together the bytes of some numbers, from one of them on, of a chunk that has the first bytes of all numbers,
/// then the second bytes, and so on.
pub fn unshuffle_part(planes: &[u8], first: usize, to: &mut [u8], number: usize) {
    match number {
        2 => gather::<2>(planes, first, to),
        4 => gather::<4>(planes, first, to),
        8 => gather::<8>(planes, first, to),
        _ => to.copy_from_slice(&planes[first..first + to.len()]),
    }
}

fn gather<const N: usize>(from: &[u8], first: usize, to: &mut [u8]) {
    /// Numbers at a time: the planes' lines of cache are then read once, and the loop inside becomes shuffles.
    const BLOCK: usize = 64;
    let (count, (numbers, _)) = (from.len() / N, to.as_chunks_mut::<N>());
    let planes: [&[u8]; N] = std::array::from_fn(|plane| &from[plane * count + first..][..numbers.len()]);
    let parts = planes.map(|plane| plane.as_chunks::<BLOCK>());
    let (blocks, rest) = numbers.as_chunks_mut::<BLOCK>();
    for (block, numbers) in blocks.iter_mut().enumerate() {
        let planes = parts.map(|(whole, _)| &whole[block]);
        for (at, number) in numbers.iter_mut().enumerate() {
            *number = std::array::from_fn(|plane| planes[plane][at]);
        }
    }
    for (at, number) in rest.iter_mut().enumerate() {
        *number = parts.map(|(_, rest)| rest[at]);
    }
}

/// Expands LZF, as liblzf describes it: a byte below 32 is followed by one more literal than it says; any other has the
/// length of a match in its upper three bits (7: the next byte adds to it) and the distance in the lower five and the
/// next byte. Returns how many bytes it made.
fn expand(from: &[u8], to: &mut [u8]) -> Result<usize, String> {
    let short = || String::from("LZF: it ends too early");
    let mut from = from.iter().copied();
    let mut next = || from.next().ok_or_else(short);
    let mut made = 0;
    while let Ok(control) = next() {
        let control = usize::from(control);
        if control < 32 {
            let literals =
                to.get_mut(made..=made + control).ok_or_else(|| String::from("LZF: it is too long"))?;
            for literal in literals {
                *literal = next()?;
            }
            made += control + 1;
        } else {
            let mut length = control >> 5;
            if length == 7 {
                length += usize::from(next()?);
            }
            let distance = ((control & 31) << 8 | usize::from(next()?)) + 1;
            let length = length + 2;
            if distance > made || length > to.len() - made {
                return Err("LZF: it points outside".into());
            }
            // What is copied may overlap what it makes.
            for at in made..made + length {
                to[at] = to[at - distance];
            }
            made += length;
        }
    }
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Purpose, Stream, key};

    fn bytes(count: usize) -> Vec<u8> {
        let mut stream = Stream::new(key(1, Purpose::Pack, 0));
        (0..count).map(|_| (stream.below(7) * 37) as u8).collect()
    }

    #[test]
    fn sums_are_those_of_the_library() {
        // Fletcher-32 of "abcde" and "abcdef" in words whose first byte is in front, worked out by hand:
        // "abcdef": words 0x6162 0x6364 0x6566, sums 0x6162, 0xc4c6, 0x12a2c → 0x2a2d, and 0x6162 + 0xc4c6 + 0x12a2c.
        assert_eq!(fletcher32(b"abcdef"), {
            let (first, second) = (0x12a2cu32, 0x6162 + 0xc4c6 + 0x12a2cu32);
            ((second & 0xffff) + (second >> 16)) << 16 | ((first & 0xffff) + (first >> 16))
        });
        assert_eq!(fletcher32(b"ab"), 0x6162_6162);
        assert_eq!(fletcher32(b"a"), 0x6100_6100);
    }

    #[test]
    fn shuffled_bytes_come_back() {
        for (number, count) in [(1, 5), (2, 100), (4, 131), (8, 64), (4, 0)] {
            let original = bytes(number * count + if number > 1 { 1 } else { 0 });
            let mut shuffled = original.clone();
            for at in 0..count * number {
                shuffled[at % number * count + at / number] = original[at];
            }
            let mut back = vec![0; original.len()];
            unshuffle(&shuffled, &mut back, number);
            assert_eq!(back, original, "{number} × {count}");
        }
    }

    #[test]
    fn lzf_expands_literals_and_overlapping_matches() {
        let mut to = [0; 12];
        // "abc", then 7 bytes from 3 before, then 2 + 0 + ... is refused.
        assert_eq!(expand(&[2, b'a', b'b', b'c', 5 << 5, 2], &mut to), Ok(10));
        assert_eq!(&to[..10], b"abcabcabca");
        for wrong in [&[3, b'a'][..], &[1 << 5, 0], &[0, b'a', 7 << 5, 250, 0], &[31; 33]] {
            assert!(expand(wrong, &mut to).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn what_is_no_chunk_is_refused_without_room_for_it() {
        let mut decoder = ChunkDecoder::default();
        let mut decode = |filter, skipped, bytes, chunk: &[u8]| {
            decoder.decode(&[filter], skipped, 4, bytes, (&mut chunk.to_vec(), &mut Vec::new()))
        };
        for filter in [Filter::Deflate, Filter::Lzf] {
            let said = decode(filter, 0, 1 << 40, &[1, 2, 3]).unwrap_err();
            assert!(said.contains("cannot become"), "{said}");
            assert!(decode(filter, 0, 16, &[255, 2, 3]).is_err());
        }
        assert!(decode(Filter::Fletcher32, 0, 4, &[1, 2, 3]).is_err());
        assert!(decode(Filter::Fletcher32, 0, 4, &[0, 0, 0, 1, 9, 9, 9, 9]).is_err());
        assert!(decode(Filter::Deflate, 1, 4, &[0, 0, 0, 1]).is_ok(), "skipped");
    }
}
