//! Recursive halving and doubling: log₂ P exchanges of ever smaller halves, after which each rank has the sum of its
//! own part, and the same backwards. As few bytes as the ring in 2 log₂ P steps instead of 2(P−1), but over longer
//! distances.
//!
//! Rolf Rabenseifner: "Optimization of collective reduction operations", ICCS 2004. Where P is no power of two, pairs
//! of the first ranks add up before (`recursive_doubling::folded`).

use std::ops::Range;
use std::rc::Rc;

use super::recursive_doubling::{Exchange, folded};
use super::schedule::Phase;
use crate::cuts::Cuts;

/// Where the parts of a power of two of ranks end: what is sent is the parts of a block of them.
struct Blocks {
    /// As many as ranks, and one.
    ends: Vec<usize>,
}

impl Blocks {
    /// Of the parts that ranks own, where these can be halved; else as much for each.
    fn new(cuts: &Cuts) -> Blocks {
        Blocks::of_owners(cuts).unwrap_or_else(|| {
            let core = 1 << cuts.ranks().ilog2();
            Blocks::in_order(&Cuts::even(cuts.range(), core)).expect("even parts lie in order")
        })
    }

    fn of_owners(cuts: &Cuts) -> Option<Blocks> {
        cuts.ranks().is_power_of_two().then(|| Blocks::in_order(cuts)).flatten()
    }

    fn in_order(cuts: &Cuts) -> Option<Blocks> {
        let mut ends = vec![cuts.range().start];
        for part in (0..cuts.ranks()).map(|rank| cuts.part(rank)) {
            let start = ends[ends.len() - 1];
            ends.push(if part.is_empty() { start } else { part.end });
            if !part.is_empty() && part.start != start {
                return None;
            }
        }
        Some(Blocks { ends })
    }

    /// How many ranks are apart that exchange.
    fn steps(&self) -> impl DoubleEndedIterator<Item = usize> {
        (0..(self.ends.len() - 1).ilog2()).rev().map(|bit| 1 << bit)
    }

    /// The parts of so many ranks, of which `place` is one.
    fn of(&self, place: usize, ranks: usize) -> Range<usize> {
        let first = place / ranks * ranks;
        self.ends[first]..self.ends[first + ranks]
    }

    /// The longest one of so many ranks.
    fn longest(&self, ranks: usize) -> usize {
        (0..self.ends.len() - 1).step_by(ranks).map(|place| self.of(place, ranks).len()).max().unwrap_or(0)
    }

    /// With the rank so far away: one gives the other one's half and adds what that one has of its own; or the reverse,
    /// its own half for the other one's.
    fn exchange(self: &Rc<Blocks>, distance: usize, adds: bool) -> Exchange {
        let blocks = self.clone();
        let part = move |place: usize| blocks.of(if adds { place ^ distance } else { place }, distance);
        Exchange { distance, elements: self.longest(distance), adds, part: Box::new(part) }
    }
}

/// An allreduce.
pub fn phases(cuts: &Cuts) -> Vec<Phase> {
    let blocks = Rc::new(Blocks::new(cuts));
    let halving = blocks.steps().map(|distance| blocks.exchange(distance, true));
    let doubling = blocks.steps().rev().map(|distance| blocks.exchange(distance, false));
    folded(cuts, halving.chain(doubling).collect())
}

/// The halving alone, after which every rank has the sum of what it owns, added up as the allreduce adds it. Unless P
/// is a power of two and the parts lie in the order of ranks, it is the allreduce.
pub fn halving_phases(cuts: &Cuts) -> Vec<Phase> {
    let phases = phases(cuts);
    match Blocks::of_owners(cuts) {
        Some(blocks) => phases.into_iter().take(blocks.steps().count()).collect(),
        None => phases,
    }
}
