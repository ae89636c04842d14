//! Whether a collective gives what a serial program would, on every rank, and leaves the rest of memory alone.

use std::ops::Range;
use std::rc::Rc;

use super::subject::{Contender, ExpectedRegion, Origin, Subject};
use crate::collective::{Slot, segment};
use crate::comm::{Region, World};
use crate::config::Wire;
use crate::error::Result;

/// Elements on each side of a range that nobody may touch.
pub const GUARD: usize = 64;
const UNTOUCHED: f32 = -12345.5;

/// What a range is filled with.
#[derive(Debug, Clone, Copy)]
enum FillPattern {
    /// Integers so small that every order of adding gives the same sum: it must be exact.
    Exact,
    /// Numbers of many magnitudes: the order shows in the last bits, which must be the same on all ranks.
    Rough,
}

pub struct Checker<'a> {
    subject: Subject,
    world: &'a World,
    region: Rc<Region>,
    buffer: Vec<f32>,
}

impl Checker<'_> {
    pub fn new<'a>(subject: Subject, world: &'a World, region: &Rc<Region>) -> Checker<'a> {
        Checker { subject, world, region: region.clone(), buffer: vec![0.0; 64 * 1024] }
    }

    /// Runs slots, then (ours) their elements as three other slots in flight together, and counts the elements that are
    /// not what they must be, on all ranks. `ranges` are those of the slots, one after the other from `GUARD` on.
    /// Collective.
    pub fn check(
        &mut self,
        contender: &mut Contender,
        slots: &[Slot],
        ranges: &[Range<usize>],
    ) -> Result<usize> {
        let whole = GUARD..ranges.last().map_or(GUARD, |range| range.end);
        let thirds: Vec<_> = (0..3).map(|i| segment(&whole, 3, i)).collect();
        let others = if contender.is_yardstick { Vec::new() } else { contender.prepare(&thirds)? };
        let mut wrong = 0;
        for round in 0..4 {
            let values = if round % 2 == 0 { FillPattern::Exact } else { FillPattern::Rough };
            self.fill(&whole, values, round);
            let (slots, ranges) =
                if round < 2 || others.is_empty() { (slots, ranges) } else { (&others[..], &thirds[..]) };
            contender.run(slots)?;
            wrong += self.wrong(&whole, ranges, contender, values, round)?;
        }
        let mut sum = [wrong as f64];
        self.world.sum_f64(&mut sum)?;
        Ok(sum[0] as usize)
    }

    /// Zeros, which stay zeros however often they are added.
    pub fn zero(&mut self, length: usize) {
        self.buffer.fill(0.0);
        for start in (GUARD..GUARD + length).step_by(self.buffer.len()) {
            let count = self.buffer.len().min(GUARD + length - start);
            self.region.write(start, &self.buffer[..count]);
        }
    }

    /// Fills a range with this rank's values and its surroundings with a mark.
    fn fill(&mut self, range: &Range<usize>, values: FillPattern, round: usize) {
        self.region.write(range.start - GUARD, &[UNTOUCHED; GUARD]);
        self.region.write(range.end, &[UNTOUCHED; GUARD]);
        for start in range.clone().step_by(self.buffer.len()) {
            let count = self.buffer.len().min(range.end - start);
            for (offset, to) in self.buffer[..count].iter_mut().enumerate() {
                *to = value(values, self.world.rank(), start + offset, round);
            }
            self.region.write(start, &self.buffer[..count]);
        }
    }

    /// Elements of this rank that are not as expected in each of `ranges`, or were touched beside the whole and should
    /// not have been; all of them where ranks that must have the same have unlike bits. Collective.
    fn wrong(
        &mut self,
        whole: &Range<usize>,
        ranges: &[Range<usize>],
        contender: &Contender,
        values: FillPattern,
        round: usize,
    ) -> Result<usize> {
        let (size, rank) = (self.world.size(), self.world.rank());
        let (mut wrong, mut hash) = (0, 0);
        for range in ranges {
            for expected in self.subject.expected(range, size, rank, contender.is_yardstick) {
                wrong += self.unexpected(&expected, contender.wire, values, round, &mut hash);
            }
        }
        let mut guard = [0.0; GUARD];
        for start in [whole.start - GUARD, whole.end] {
            self.region.read(start, &mut guard);
            wrong += guard.iter().filter(|&&value| value != UNTOUCHED).count();
        }
        let hashes = self.world.gather_text(&hash.to_string())?;
        let alike = !self.subject.is_alike() || hashes.iter().all(|other| *other == hashes[0]);
        Ok(if alike { wrong } else { whole.len().max(1) })
    }

    /// Elements that are not as expected; their bits go into `hash`.
    fn unexpected(
        &mut self,
        expected: &ExpectedRegion,
        wire: Wire,
        values: FillPattern,
        round: usize,
        hash: &mut u64,
    ) -> usize {
        let ranks = match expected.origin {
            Origin::Sum => 0..self.world.size(),
            Origin::Rank(rank) => rank..rank + 1,
        };
        let mut wrong = 0;
        for start in expected.at.clone().step_by(self.buffer.len()) {
            let count = self.buffer.len().min(expected.at.end - start);
            self.region.read(start, &mut self.buffer[..count]);
            for (offset, got) in self.buffer[..count].iter().enumerate() {
                *hash = mix(*hash ^ u64::from(got.to_bits()));
                let index = expected.from + start - expected.at.start + offset;
                let each = ranks.clone().map(|rank| f64::from(value(values, rank, index, round)));
                let (sum, magnitude) = each.fold((0.0, 0.0), |(sum, m), v| (sum + v, m + v.abs()));
                let error = (f64::from(*got) - sum).abs();
                wrong += usize::from(error > allowed(wire, values, ranks.len(), magnitude) || error.is_nan());
            }
        }
        wrong
    }
}

/// How far a sum of `terms` numbers, whose magnitudes add up to `magnitude`, may be off; a copy is a sum of one.
fn allowed(wire: Wire, values: FillPattern, terms: usize, magnitude: f64) -> f64 {
    // Unit roundoff of what travels, and half its smallest number.
    let (unit, least) = match wire {
        Wire::F32 => (0.0, 0.0),
        Wire::Bf16 => (2f64.powi(-8), 2f64.powi(-134)),
        Wire::F16 => (2f64.powi(-11), 2f64.powi(-25)),
    };
    // Higham's bound for a sum of n numbers in any order: (n − 1)·u·Σ|x|.
    let adding = match values {
        FillPattern::Exact => 0.0,
        FillPattern::Rough => (terms - 1) as f64 * f64::from(f32::EPSILON) * magnitude,
    };
    // On the way a number is rounded once before it first leaves and once after each addition: n times, of partial sums
    // that are at most Σ|x| but for roundings before; the n + 1st time makes up for those.
    let roundings = if terms == 1 { 1 } else { terms + 1 };
    adding + roundings as f64 * (unit * magnitude + least)
}

/// The value of one element on one rank; unlike for every element, rank and round.
fn value(values: FillPattern, rank: usize, index: usize, round: usize) -> f32 {
    let word = mix((index as u64) << 24 ^ (rank as u64) << 4 ^ round as u64);
    match values {
        FillPattern::Exact => (word >> 32 & 0xff) as f32 - 128.0,
        FillPattern::Rough => {
            let magnitude = [1e-3, 1.0, 1e2, 1e3][(word & 3) as usize];
            magnitude * ((word >> 40) as f32 / 8_388_608.0 - 1.0)
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

    #[test]
    fn what_does_not_travel_as_halves_is_held_to_the_last_bits() {
        assert_eq!(allowed(Wire::F32, FillPattern::Exact, 2, 100.0), 0.0);
        assert!(allowed(Wire::F32, FillPattern::Rough, 2, 100.0) < 2e-5);
        assert_eq!(allowed(Wire::F32, FillPattern::Rough, 1, 100.0), 0.0);
        assert!((0.3..2.0).contains(&allowed(Wire::Bf16, FillPattern::Exact, 2, 100.0)));
        assert!(
            allowed(Wire::F16, FillPattern::Exact, 2, 100.0)
                < allowed(Wire::Bf16, FillPattern::Exact, 2, 100.0)
        );
    }
}
