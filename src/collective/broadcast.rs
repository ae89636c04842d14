//! Broadcast: what the group's first rank has goes to all.

use std::ops::Range;

use super::schedule::Phase;
use crate::cuts::Cuts;

/// A chain of ranks that pass on what comes, chunk by chunk: every link carries the range once, all at the same time.
///
/// Jerrell Watts, Robert van de Geijn: "A pipelined broadcast for multidimensional meshes", Parallel Processing Letters
/// 5 (1995).
pub fn chain(cuts: &Cuts) -> Vec<Phase> {
    (0..cuts.ranks() - 1).map(|step| hop(cuts, step..step + 1, 1)).collect()
}

/// A binomial tree: in every round all who have it send it on, ⌈log₂ P⌉ rounds in all. For small messages.
pub fn tree(cuts: &Cuts) -> Vec<Phase> {
    let distances = std::iter::successors(Some(1), |distance| Some(2 * distance));
    distances.take_while(|&d| d < cuts.ranks()).map(|d| hop(cuts, 0..d, d)).collect()
}

/// One round, in which each of the places `from` sends the range to the place so much further on, where there is one.
fn hop(cuts: &Cuts, from: Range<usize>, distance: usize) -> Phase {
    let (size, range, senders) = (cuts.ranks(), cuts.range().clone(), from.clone());
    let to = move |place| (from.contains(&place) && place + distance < size).then_some(place + distance);
    let from = move |place: usize| place.checked_sub(distance).filter(|sender| senders.contains(sender));
    Phase::new([size, 1, range.len()], false, [Box::new(to), Box::new(from)], move |_, _| range.clone())
}
