//! Top-k: of each piece the numbers of largest magnitude, each with its place.
//!
//! Yujun Lin, Song Han, Huizi Mao, Yu Wang and William J. Dally: "Deep gradient compression: reducing the communication
//! bandwidth for distributed training", ICLR 2018; before it Alham Fikri Aji and Kenneth Heafield: "Sparse
//! communication for distributed gradient descent", EMNLP 2017. Taken from them: the choice by magnitude, a tensor at a
//! time (here: a piece of one), and that what is not sent accumulates. Not taken: momentum correction and factor
//! masking (here momentum belongs to the optimizer, after the sum), local clipping, and the warm-up of the share.
//!
//! Message: k numbers as f32, then their k places as u16.

use super::codec::Codec;

pub struct TopK {
    share: f32,
    /// Of the numbers whose magnitude may be the least one that is sent.
    candidates: Vec<u32>,
}

/// Bits of a magnitude that the first look does not tell apart: what is left are 8 bits of exponent and 3 of mantissa.
const COARSE: u32 = 20;

impl TopK {
    pub fn new(share: f32) -> TopK {
        TopK { share, candidates: Vec::new() }
    }

    /// Numbers that are sent of so many: the share, rounded up.
    fn count(&self, elements: usize) -> usize {
        ((f64::from(self.share) * elements as f64).ceil() as usize).min(elements)
    }

    /// The k-th largest magnitude, and how many of that very one are among the k largest. Magnitudes are compared as
    /// bits: the same order, with NaN above infinity.
    fn least(&mut self, values: &[f32], k: usize) -> (u32, usize) {
        let mut histogram = [0usize; 1 << (31 - COARSE)];
        values.iter().for_each(|&value| histogram[(magnitude(value) >> COARSE) as usize] += 1);
        let (mut bin, mut above) = (histogram.len() - 1, 0);
        while above + histogram[bin] < k {
            above += histogram[bin];
            bin -= 1;
        }
        let within = values.iter().map(|&value| magnitude(value)).filter(|m| (m >> COARSE) as usize == bin);
        self.candidates.clear();
        self.candidates.extend(within);
        let at = self.candidates.len() - (k - above);
        let (_, &mut least, larger) = self.candidates.select_nth_unstable(at);
        let larger = larger.iter().filter(|&&m| m > least).count();
        (least, k - above - larger)
    }
}

fn magnitude(value: f32) -> u32 {
    value.to_bits() & 0x7fff_ffff
}

impl Codec for TopK {
    fn bytes(&self, elements: usize) -> usize {
        self.count(elements) * 6
    }

    fn encode(&mut self, values: &mut [f32], message: &mut [u8]) {
        let k = self.count(values.len());
        if k == 0 {
            return;
        }
        let (least, mut equal) = self.least(values, k);
        let (numbers, places) = message.split_at_mut(4 * k);
        let mut entries = numbers.as_chunks_mut::<4>().0.iter_mut().zip(places.as_chunks_mut::<2>().0);
        for (place, value) in values.iter_mut().enumerate() {
            let size = magnitude(*value);
            // Of equal magnitudes the first ones go.
            if size < least || (size == least && equal == 0) {
                continue;
            }
            equal -= usize::from(size == least);
            if let Some((number, index)) = entries.next() {
                *number = value.to_le_bytes();
                *index = (place as u16).to_le_bytes();
                *value = 0.0;
            }
        }
    }

    fn add(&self, message: &[u8], sum: &mut [f32]) {
        let (numbers, places) = message.split_at(4 * self.count(sum.len()));
        for (number, place) in numbers.as_chunks::<4>().0.iter().zip(places.as_chunks::<2>().0) {
            sum[usize::from(u16::from_le_bytes(*place))] += f32::from_le_bytes(*number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_go_and_of_equals_the_first() {
        for (values, share, stays) in [
            (vec![1.0, -5.0, 2.0, 0.5], 0.5, vec![1.0, 0.0, 0.0, 0.5]),
            (vec![1.0, 1.0, -1.0, 1.0], 0.5, vec![0.0, 0.0, -1.0, 1.0]),
            (vec![1.0, 1.0, 1.125, 1.0], 0.5, vec![0.0, 1.0, 0.0, 1.0]),
            (vec![3.0, 4.0, f32::NAN], 0.3, vec![3.0, 4.0, 0.0]),
        ] {
            let mut codec = TopK::new(share);
            let mut left = values.clone();
            let mut message = vec![0; codec.bytes(values.len())];
            codec.encode(&mut left, &mut message);
            assert_eq!(left, stays, "{values:?}");
        }
    }
}
