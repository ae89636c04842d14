//! Whether a collective gives what a serial program would, on every rank, and leaves the rest of memory alone.

use std::ops::Range;
use std::rc::Rc;

use super::subject::{Contender, ExpectedRegion, Origin, Subject};
use crate::collective::{Slot, segment};
use crate::comm::{Region, World};
use crate::config::Wire;
use crate::error::Result;
use crate::random::KnownNumbers;

/// Elements on each side of a range that nobody may touch.
pub const GUARD: usize = 64;
const UNTOUCHED: f32 = -12345.5;

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
            let values = if round % 2 == 0 { KnownNumbers::Exact } else { KnownNumbers::Rough };
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
    fn fill(&mut self, range: &Range<usize>, values: KnownNumbers, round: usize) {
        self.region.write(range.start - GUARD, &[UNTOUCHED; GUARD]);
        self.region.write(range.end, &[UNTOUCHED; GUARD]);
        for start in range.clone().step_by(self.buffer.len()) {
            let count = self.buffer.len().min(range.end - start);
            values.fill(&mut self.buffer[..count], (self.world.rank(), start, round));
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
        values: KnownNumbers,
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
        values: KnownNumbers,
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
            let from = expected.from + start - expected.at.start;
            let got = &self.buffer[..count];
            wrong += values.unlike(got, (ranks.clone(), from, round), wire, hash);
        }
        wrong
    }
}
