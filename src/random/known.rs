//! Numbers of which each rank knows every other one's, so that it can tell whether a collective gave their sum.

use std::ops::Range;

use crate::config::Wire;

/// What ranks fill a range with.
#[derive(Debug, Clone, Copy)]
pub enum KnownNumbers {
    /// Integers so small that every order of adding gives the same sum: it must be exact.
    Exact,
    /// Numbers of many magnitudes: the order shows in the last bits, which must be the same on all ranks.
    Rough,
}

impl KnownNumbers {
    /// Fills a part of the range with a rank's numbers: those of elements from this one on; unlike for every element,
    /// rank and round.
    pub fn fill(self, to: &mut [f32], (rank, from, round): (usize, usize, usize)) {
        to.iter_mut().zip(from..).for_each(|(to, index)| *to = self.number(rank, index, round));
    }

    /// How many numbers are not the sums of what these ranks have of elements from this one on, after they have
    /// travelled as `wire` says; their bits go into `hash`.
    pub fn unlike(
        self,
        got: &[f32],
        (ranks, from, round): (Range<usize>, usize, usize),
        wire: Wire,
        hash: &mut u64,
    ) -> usize {
        let mut wrong = 0;
        for (got, index) in got.iter().zip(from..) {
            *hash = mix(*hash ^ u64::from(got.to_bits()));
            let each = ranks.clone().map(|rank| f64::from(self.number(rank, index, round)));
            let (sum, magnitude) = each.fold((0.0, 0.0), |(sum, m), v| (sum + v, m + v.abs()));
            let error = (f64::from(*got) - sum).abs();
            wrong += usize::from(error > self.allowed(wire, ranks.len(), magnitude) || error.is_nan());
        }
        wrong
    }

    /// How far a sum of `terms` numbers, whose magnitudes add up to `magnitude`, may be off; a copy is a sum of one.
    fn allowed(self, wire: Wire, terms: usize, magnitude: f64) -> f64 {
        // Unit roundoff of what travels, and half its smallest number.
        let (unit, least) = match wire {
            Wire::F32 => (0.0, 0.0),
            Wire::Bf16 => (2f64.powi(-8), 2f64.powi(-134)),
            Wire::F16 => (2f64.powi(-11), 2f64.powi(-25)),
        };
        // Higham's bound for a sum of n numbers in any order: (n − 1)·u·Σ|x|.
        let adding = match self {
            KnownNumbers::Exact => 0.0,
            KnownNumbers::Rough => (terms - 1) as f64 * f64::from(f32::EPSILON) * magnitude,
        };
        // On the way a number is rounded once before it first leaves and once after each addition: n times, of partial
        // sums that are at most Σ|x| but for roundings before; the n + 1st time makes up for those.
        let roundings = if terms == 1 { 1 } else { terms + 1 };
        adding + roundings as f64 * (unit * magnitude + least)
    }

    fn number(self, rank: usize, index: usize, round: usize) -> f32 {
        let word = mix((index as u64) << 24 ^ (rank as u64) << 4 ^ round as u64);
        match self {
            KnownNumbers::Exact => (word >> 32 & 0xff) as f32 - 128.0,
            KnownNumbers::Rough => {
                let magnitude = [1e-3, 1.0, 1e2, 1e3][(word & 3) as usize];
                magnitude * ((word >> 40) as f32 / 8_388_608.0 - 1.0)
            }
        }
    }
}

/// The finalizer of splitmix64 (Steele, Lea, Flood, 2014).
fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

#[cfg(test)]
mod tests {
    use super::*;
    use KnownNumbers::{Exact, Rough};

    #[test]
    fn what_does_not_travel_as_halves_is_held_to_the_last_bits() {
        assert_eq!(Exact.allowed(Wire::F32, 2, 100.0), 0.0);
        assert!(Rough.allowed(Wire::F32, 2, 100.0) < 2e-5);
        assert_eq!(Rough.allowed(Wire::F32, 1, 100.0), 0.0);
        assert!((0.3..2.0).contains(&Exact.allowed(Wire::Bf16, 2, 100.0)));
        assert!(Exact.allowed(Wire::F16, 2, 100.0) < Exact.allowed(Wire::Bf16, 2, 100.0));
    }

    #[test]
    fn sums_are_those_of_what_ranks_have_and_others_are_counted() {
        for numbers in [Exact, Rough] {
            let mut sums = vec![0f32; 100];
            for rank in 2..5 {
                let mut own = vec![0f32; 100];
                numbers.fill(&mut own, (rank, 7, 1));
                sums.iter_mut().zip(own).for_each(|(sum, number)| *sum += number);
            }
            let unlike = |got: &[f32], from| numbers.unlike(got, (2..5, from, 1), Wire::F32, &mut 0);
            assert_eq!((unlike(&sums, 7), unlike(&sums[3..], 10)), (0, 0), "{numbers:?}");
            assert!(unlike(&sums, 8) > 90, "of other elements");
            (sums[3], sums[50]) = (f32::NAN, sums[50] + 1.0);
            assert_eq!(unlike(&sums, 7), 2, "{numbers:?}");
        }
    }
}
