//! What a scheme does to one piece of a gradient: pure functions on host slices.

use std::ops::Range;

use super::one_bit::OneBit;
use super::top_k::TopK;
use super::two_bit::TwoBit;
use crate::config::Compression;
use crate::device::CodecKind;

/// Elements that are encoded at a time, at most: 256 KB stay in the second-level cache, and a place among them is 16
/// bits.
pub const PIECE: usize = 1 << 16;

/// Encodes a piece so that nothing is lost for good: what is not sent stays behind and is added to the next gradient
/// (error feedback: Seide et al. 2014; Karimireddy, Rebjock, Stich and Jaggi, *Error feedback fixes SignSGD and other
/// gradient compression schemes*, ICML 2019).
///
/// Not a number among what is encoded becomes not a number somewhere in what is decoded, so that a broken gradient
/// does not heal in silence.
pub trait Codec {
    /// Bytes of the message of so many elements: the same whatever the numbers are.
    fn bytes(&self, elements: usize) -> usize;

    /// Puts a piece (of at most `PIECE` elements) into a message of `bytes` bytes, and leaves in it what the message
    /// does not say: the residual.
    fn encode(&mut self, values: &mut [f32], message: &mut [u8]);

    /// Adds to `sum` what a message says.
    fn add(&self, message: &[u8], sum: &mut [f32]);
}

/// How a rank of so many encodes by a scheme; `None` for one that sums factors in place of gathering messages.
pub fn code(scheme: Compression, ranks: usize) -> Option<CodecKind> {
    match scheme {
        Compression::TopK { share } => Some(CodecKind::TopK { share }),
        Compression::OneBit => Some(CodecKind::OneBit),
        // A rank's part of a mean over ranks is its own mean divided by their number.
        Compression::TwoBit { threshold } => Some(CodecKind::TwoBit { threshold: threshold / ranks as f32 }),
        Compression::PowerSgd { .. } => None,
    }
}

/// The codec of a scheme, where it has one.
pub fn codec(scheme: Compression, ranks: usize) -> Option<Box<dyn Codec>> {
    Some(match code(scheme, ranks)? {
        CodecKind::TopK { share } => Box::new(TopK::new(share)),
        CodecKind::OneBit => Box::new(OneBit),
        CodecKind::TwoBit { threshold } => Box::new(TwoBit { threshold }),
    })
}

/// A tensor of so many elements in pieces.
pub fn pieces(elements: usize) -> impl Iterator<Item = Range<usize>> {
    (0..elements).step_by(PIECE).map(move |start| start..elements.min(start + PIECE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SCHEMES: [&str; 5] = ["topk:0.1", "topk:1", "1bit", "2bit:0.5", "2bit:0.001"];

    fn make(scheme: &str) -> Box<dyn Codec> {
        codec(scheme.parse().unwrap(), 1).unwrap()
    }

    /// Encodes; returns what is decoded and what stays behind.
    fn round_trip(codec: &mut dyn Codec, values: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let mut residual = values.to_vec();
        let mut message = vec![0xAA; codec.bytes(values.len())];
        codec.encode(&mut residual, &mut message);
        let mut decoded = vec![0.0; values.len()];
        codec.add(&message, &mut decoded);
        (decoded, residual)
    }

    fn numbers(seed: u32, count: usize) -> Vec<f32> {
        let mut word = seed.wrapping_mul(747_796_405).wrapping_add(1);
        let mut next = || {
            word = word.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (word >> 8) as f32 / 8_388_608.0 - 1.0
        };
        (0..count).map(|_| next() * [1e-3, 1.0, 0.05][(seed as usize + count) % 3]).collect()
    }

    proptest! {
        /// What is sent and what stays behind add up to what was there; the one subtraction rounds by 2⁻²⁴ of its
        /// result, and the addition here by as much.
        #[test]
        fn nothing_is_lost(seed in 0u32..1000, count in prop_oneof![Just(0usize), Just(1), 2usize..70, Just(1009), Just(PIECE)]) {
            for scheme in SCHEMES {
                let values = numbers(seed, count);
                let (decoded, residual) = round_trip(&mut *make(scheme), &values);
                for ((&d, &r), &v) in decoded.iter().zip(&residual).zip(&values) {
                    let bound = 2f32.powi(-24) * (r.abs() + v.abs());
                    prop_assert!((f64::from(d) + f64::from(r) - f64::from(v)).abs() <= f64::from(bound), "{scheme}: {d} + {r} of {v}");
                }
            }
        }

        /// Error feedback over many steps: what was sent in all is what there was in all but for the last residual, and
        /// that does not grow. A step takes off at least the share δ of the squared norm (top-k: k of n; one bit: no
        /// less than a scaled sign, ‖p‖₁²/(n‖p‖²), where the bound of the paper is not uniform, so it is not tested
        /// with a number): ‖e‖ ≤ 2/δ·max‖g‖ (Karimireddy et al., lemma 3). Two bits: |e| stays below the threshold
        /// while no gradient is above it.
        #[test]
        fn what_stays_behind_is_sent_later(seed in 0u32..1000, count in 1usize..200) {
            const STEPS: u32 = 60;
            for scheme in SCHEMES {
                let mut codec = make(scheme);
                let (mut residual, mut sent, mut all) = (vec![0f32; count], vec![0f64; count], vec![0f64; count]);
                let (mut largest, mut greatest) = (0f64, 0f64);
                for step in 0..STEPS {
                    let gradient: Vec<f32> = numbers(seed, count).iter().zip(numbers(step + 7, count)).map(|(a, b)| 0.1 * a + 0.1 * b).collect();
                    largest = largest.max(norm(&gradient));
                    greatest = gradient.iter().fold(greatest, |m, g| m.max(f64::from(g.abs())));
                    let corrected: Vec<f32> = residual.iter().zip(&gradient).map(|(r, g)| r + g).collect();
                    let (decoded, rest) = round_trip(&mut *codec, &corrected);
                    residual = rest;
                    for (index, (d, g)) in decoded.iter().zip(&gradient).enumerate() {
                        sent[index] += f64::from(*d);
                        all[index] += f64::from(*g);
                    }
                }
                // Each step rounds twice (the sum with the residual, the new residual), of numbers no larger than this.
                let size = 2.0 * largest * f64::from(STEPS);
                for ((s, a), &r) in sent.iter().zip(&all).zip(&residual) {
                    prop_assert!((s + f64::from(r) - a).abs() <= f64::from(STEPS) * 2f64.powi(-22) * size, "{scheme}: {s} + {r} of {a}");
                }
                let bound = match scheme {
                    "topk:0.1" => 20.0 * largest,
                    "topk:1" => 0.0,
                    "2bit:0.5" if greatest <= 0.5 => 0.5 * (count as f64).sqrt(),
                    _ => f64::INFINITY,
                };
                prop_assert!(norm(&residual) <= bound, "{scheme}: {} above {bound}", norm(&residual));
            }
        }
    }

    fn norm(values: &[f32]) -> f64 {
        values.iter().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>().sqrt()
    }

    #[test]
    fn a_broken_number_stays_broken() {
        for scheme in SCHEMES {
            for broken in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut values = numbers(3, 100);
                values[57] = broken;
                let (decoded, _) = round_trip(&mut *make(scheme), &values);
                assert!(decoded.iter().any(|v| !v.is_finite()), "{scheme} makes a number of {broken}");
            }
        }
    }

    #[test]
    fn zeros_cost_nothing_but_their_message() {
        for scheme in SCHEMES {
            let (decoded, residual) = round_trip(&mut *make(scheme), &[0.0; 33]);
            assert!(decoded.iter().chain(&residual).all(|&v| v == 0.0), "{scheme}");
        }
    }

    #[test]
    fn messages_have_the_bytes_of_the_table() {
        for (scheme, n, bytes) in [
            ("topk:0.01", 65_536, 656 * 6),
            ("1bit", 65_536, 8 + 8192),
            ("2bit:1", 65_536, 16_384),
            ("topk:0.01", 1, 6),
        ] {
            assert_eq!(make(scheme).bytes(n), bytes, "{scheme}");
        }
    }
}
