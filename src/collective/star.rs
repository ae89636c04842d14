//! Every rank sends what few own straight to its owners, and gets it from them: a parameter server, or one rank that
//! does everything (`torch.nn.DataParallel`). Owners are the last ranks, which have nothing to add, or rank 0 alone,
//! which has. An owner adds in the order of ranks, as `shm` does, so that sums have the same bits.
//!
//! Mu Li et al.: "Scaling distributed machine learning with the parameter server", OSDI 2014.

use super::schedule::{Apply, Group, Part, Round};
use crate::cuts::Cuts;

/// Places that own something, and the other places that deal with them.
fn sides(group: &Group, cuts: &Cuts) -> [Vec<usize>; 2] {
    let owners: Vec<usize> = (0..group.size()).filter(|&place| !cuts.part(place).is_empty()).collect();
    let others = match owners.first() {
        None => 0..0,
        Some(0) => 1..group.size(),
        Some(&first) => 0..first,
    };
    [owners, others.collect()]
}

/// Sends `from` one place `to` another what `owner` owns, as this rank has part in it.
fn message(group: &Group, cuts: &Cuts, [from, to, owner]: [usize; 3], apply: Apply) -> Option<Round> {
    let part = |place: usize| Part { peer: group.ranks[place], range: cuts.part(owner).clone() };
    match group.place {
        place if place == from => Some(Round { send: Some(part(to)), receive: None }),
        place if place == to => Some(Round { send: None, receive: Some((part(from), apply)) }),
        _ => None,
    }
}

/// Every owner gets the sum of what it owns: one message from each of the others.
pub fn to_owners(group: &Group, cuts: &Cuts) -> Vec<Round> {
    let [owners, others] = sides(group, cuts);
    let round = |from: usize, owner: usize| {
        // What stands at a server is the sum of the step before.
        let apply = if from == 0 { Apply::Replace } else { Apply::Add };
        message(group, cuts, [from, owner, owner], apply)
    };
    others.iter().flat_map(|&from| owners.iter().filter_map(move |&owner| round(from, owner))).collect()
}

/// Every owner sends what it owns to each of the others.
pub fn from_owners(group: &Group, cuts: &Cuts) -> Vec<Round> {
    let [owners, others] = sides(group, cuts);
    let round = |owner: usize, to: usize| message(group, cuts, [owner, to, owner], Apply::Replace);
    others.iter().flat_map(|&to| owners.iter().filter_map(move |&owner| round(owner, to))).collect()
}
