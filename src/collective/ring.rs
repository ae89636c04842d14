//! Ring: every rank sends to the next one and receives from the one before, all at the same time.
//!
//! Pitch Patarasu and Xin Yuan: "Bandwidth optimal all-reduce algorithms for clusters of workstations",
//! J. Parallel Distrib. Comput. 69 (2009). The range is divided into P segments. In step k of 2(P−1), rank r sends segment
//! r−k−1 to its right and receives segment r−k−2 (mod P) from its left. In the first P−1 steps (the reduce-scatter) what
//! comes is added to what is here, so that rank r ends with the whole sum of segment r; in the others (the allgather) it
//! replaces what is here.

use std::ops::Range;

use super::schedule::{Apply, Group, Part, Round, segment};

/// Reduce-scatter and allgather.
pub fn allreduce(group: &Group, range: &Range<usize>) -> Vec<Round> {
    [reduce_scatter(group, range), allgather(group, range)].concat()
}

/// The segment that a rank has whole after the reduce-scatter: that of its own place.
pub fn owned(group: &Group, range: &Range<usize>) -> Range<usize> {
    segment(range, group.size(), group.place)
}

/// P−1 rounds, after which every rank has the sum of the segment that it owns.
pub fn reduce_scatter(group: &Group, range: &Range<usize>) -> Vec<Round> {
    rounds(group, range, 0, Apply::Add)
}

/// P−1 rounds in which the owned segments go round to all.
pub fn allgather(group: &Group, range: &Range<usize>) -> Vec<Round> {
    rounds(group, range, group.size() - 1, Apply::Replace)
}

fn rounds(group: &Group, range: &Range<usize>, first: usize, apply: Apply) -> Vec<Round> {
    let (size, place) = (group.size(), group.place);
    let part = |peer: usize, index: usize| Part {
        peer: group.ranks[peer % size],
        range: segment(range, size, index % size),
    };
    (first..first + size - 1)
        .map(|step| Round {
            send: Some(part(place + 1, place + 2 * size - step - 1)),
            receive: Some((part(place + size - 1, place + 2 * size - step - 2), apply)),
        })
        .collect()
}
