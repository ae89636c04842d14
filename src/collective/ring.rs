//! Ring: every rank sends to the next one and receives from the one before, all at the same time.
//!
//! Pitch Patarasu and Xin Yuan: "Bandwidth optimal all-reduce algorithms for clusters of workstations",
//! J. Parallel Distrib. Comput. 69 (2009). The range is divided into P segments, by default even ones. In step k of
//! 2(P−1), rank r sends segment r−k−1 to its right and receives segment r−k−2 (mod P) from its left. In the first P−1
//! steps (the reduce-scatter) what comes is added to what is here, so that rank r ends with the whole sum of segment r;
//! in the others (the allgather) it replaces what is here.

use super::schedule::{Apply, Group, PeerRange, Phase, Round, pairs};
use crate::cuts::Cuts;

/// Reduce-scatter and allgather.
pub fn allreduce(group: &Group, cuts: &Cuts) -> Vec<Round> {
    [reduce_scatter(group, cuts), allgather(group, cuts)].concat()
}

/// P−1 rounds, after which every rank has the sum of the segment of its own place.
pub fn reduce_scatter(group: &Group, cuts: &Cuts) -> Vec<Round> {
    rounds(group, cuts, 0, Apply::Add)
}

/// P−1 rounds in which the segments go round to all, each from the rank of its place.
pub fn allgather(group: &Group, cuts: &Cuts) -> Vec<Round> {
    rounds(group, cuts, group.size() - 1, Apply::Replace)
}

fn rounds(group: &Group, cuts: &Cuts, first: usize, apply: Apply) -> Vec<Round> {
    let (size, place) = (group.size(), group.place);
    let part = |peer: usize, index: usize| PeerRange {
        peer: group.ranks[peer % size],
        range: cuts.part(index % size).clone(),
    };
    (first..first + size - 1)
        .map(|step| Round {
            send: Some(part(place + 1, place + 2 * size - step - 1)),
            receive: Some((part(place + size - 1, place + 2 * size - step - 2), apply)),
        })
        .collect()
}

/// The rounds of either half.
pub fn phase(cuts: &Cuts, adds: bool) -> Phase {
    let size = cuts.ranks();
    let elements = (0..size).map(|place| cuts.part(place).len()).max().unwrap_or(0);
    Phase { rounds: size - 1, elements, pairs: pairs(size, move |place| Some((place + 1) % size)), adds }
}
