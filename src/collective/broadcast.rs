//! Broadcast: what the group's first rank has goes to all.

use std::ops::Range;

use super::schedule::{Apply, Group, PeerRange, Round};
use crate::cuts::Cuts;

/// A chain of ranks that pass on what comes, chunk by chunk: every link carries the range once, all at the same time.
///
/// Jerrell Watts, Robert van de Geijn: "A pipelined broadcast for multidimensional meshes", Parallel Processing Letters
/// 5 (1995).
pub fn chain(group: &Group, cuts: &Cuts) -> Vec<Round> {
    (0..group.size() - 1).map(|step| hop(group, cuts.range(), step..step + 1, 1)).collect()
}

/// A binomial tree: in every round all who have it send it on, ⌈log₂ P⌉ rounds in all. For small messages.
pub fn tree(group: &Group, cuts: &Cuts) -> Vec<Round> {
    let distances = std::iter::successors(Some(1), |distance| Some(2 * distance));
    distances.take_while(|&d| d < group.size()).map(|d| hop(group, cuts.range(), 0..d, d)).collect()
}

/// One round, in which each of the places `from` sends the range to the place so much further on, where there is one.
fn hop(group: &Group, range: &Range<usize>, from: Range<usize>, distance: usize) -> Round {
    let part = |place: usize| PeerRange { peer: group.ranks[place], range: range.clone() };
    let (place, size) = (group.place, group.size());
    let sender = place.checked_sub(distance).filter(|sender| from.contains(sender));
    Round {
        send: (from.contains(&place) && place + distance < size).then(|| part(place + distance)),
        receive: sender.map(|sender| (part(sender), Apply::Replace)),
    }
}
