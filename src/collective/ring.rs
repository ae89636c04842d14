//! Ring: every rank sends to the next one and receives from the one before, all at the same time.
//!
//! Pitch Patarasu and Xin Yuan: "Bandwidth optimal all-reduce algorithms for clusters of workstations",
//! J. Parallel Distrib. Comput. 69 (2009). The range is divided into P segments, by default even ones. In step k of
//! 2(P−1), rank r sends segment r−k−1 to its right and receives segment r−k−2 (mod P) from its left. In the first P−1
//! steps (the reduce-scatter) what comes is added to what is here, so that rank r ends with the whole sum of segment r;
//! in the others (the allgather) it replaces what is here.

use super::schedule::Phase;
use crate::cuts::Cuts;

/// The reduce-scatter, which adds: P−1 rounds, after which every rank has the sum of the segment of its own place. Or
/// the allgather: as many, in which the segments go round to all, each from the rank of its place.
pub fn phase(cuts: &Cuts, adds: bool) -> Phase {
    let (size, cuts) = (cuts.ranks(), cuts.clone());
    let elements = (0..size).map(|place| cuts.part(place).len()).max().unwrap_or(0);
    let first = if adds { 0 } else { size - 1 };
    let part =
        move |place: usize, round: usize| cuts.part((place + 2 * size - first - round - 1) % size).clone();
    Phase::round_trip([size, size - 1, 1], elements, adds, part)
}
