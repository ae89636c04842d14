//! Recursive halving and doubling: log₂ P exchanges of ever smaller halves, after which each rank has the sum of its
//! own part, and the same backwards. As few bytes as the ring in 2 log₂ P steps instead of 2(P−1), but over longer
//! distances.
//!
//! Rolf Rabenseifner: "Optimization of collective reduction operations", ICCS 2004. Where P is no power of two, pairs
//! of the first ranks add up before (`recursive_doubling::Fold`).

use std::ops::Range;

use super::recursive_doubling::{Fold, folded};
use super::schedule::{Apply, Group, Part, Phase, Round};
use crate::cuts::{Cuts, segment};

/// An allreduce.
pub fn allreduce(group: &Group, cuts: &Cuts) -> Vec<Round> {
    let range = cuts.range();
    let fold = Fold::new(group);
    let mut rounds = fold.before(range);
    let steps = fold.core.size().ilog2();
    if fold.in_core {
        rounds.extend(halving_and_doubling(&fold.core, range));
    } else {
        rounds.extend(vec![Round::default(); 2 * steps as usize]);
    }
    rounds.extend(fold.after(range));
    rounds
}

/// For a power of two.
fn halving_and_doubling(group: &Group, range: &Range<usize>) -> Vec<Round> {
    let mut mine = range.clone();
    let mut halving = Vec::new();
    let mut doubling = Vec::new();
    let mut distance = group.size() / 2;
    while distance > 0 {
        let peer = group.ranks[group.place ^ distance];
        let upper = group.place & distance != 0;
        let (kept, given) = (segment(&mine, 2, usize::from(upper)), segment(&mine, 2, usize::from(!upper)));
        let part = |range: &Range<usize>| Part { peer, range: range.clone() };
        halving.push(Round { send: Some(part(&given)), receive: Some((part(&kept), Apply::Add)) });
        doubling.push(Round { send: Some(part(&kept)), receive: Some((part(&given), Apply::Replace)) });
        mine = kept;
        distance /= 2;
    }
    halving.extend(doubling.into_iter().rev());
    halving
}

/// Its rounds.
pub fn phases(cuts: &Cuts) -> Vec<Phase> {
    let steps = cuts.ranks().ilog2();
    // The longer half is the first one.
    let half = |step: u32| (1 << (steps - step - 1), cuts.range().len().div_ceil(2 << step));
    let halving = (0..steps).map(|step| (half(step).0, half(step).1, true));
    let doubling = (0..steps).rev().map(|step| (half(step).0, half(step).1, false));
    folded(cuts, halving.chain(doubling).collect())
}
