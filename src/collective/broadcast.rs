//! Broadcast: a chain of ranks that pass on what comes, chunk by chunk. Every link carries the range once, all at the same
//! time.
//!
//! Jerrell Watts, Robert van de Geijn: "A pipelined broadcast for multidimensional meshes", Parallel Processing Letters 5
//! (1995).

use std::ops::Range;

use super::schedule::{Apply, Group, Part, Round};

/// What the group's first rank has goes to all.
pub fn broadcast(group: &Group, range: &Range<usize>) -> Vec<Round> {
    let part = |place: usize| Part { peer: group.ranks[place], range: range.clone() };
    (0..group.size() - 1)
        .map(|step| Round {
            send: (group.place == step).then(|| part(step + 1)),
            receive: (group.place == step + 1).then(|| (part(step), Apply::Replace)),
        })
        .collect()
}
