//! Every rank sends what few own straight to its owners, and gets it from them: a parameter server, or one rank that
//! does everything (`torch.nn.DataParallel`). Owners are the last ranks, which have nothing to add, or rank 0 alone,
//! which has. An owner adds in the order of ranks, as `shm` does, so that sums have the same bits.
//!
//! Mu Li et al.: "Scaling distributed machine learning with the parameter server", OSDI 2014.

use super::schedule::{Apply, Group, PeerRange, Phase, Round};
use crate::cuts::{Cuts, segment};

/// Of so many places those that own something, and the others that deal with them.
fn sides(size: usize, cuts: &Cuts) -> [Vec<usize>; 2] {
    let owners: Vec<usize> = (0..size).filter(|&place| !cuts.part(place).is_empty()).collect();
    let others = match owners.first() {
        None => 0..0,
        Some(0) => 1..size,
        Some(&first) => 0..first,
    };
    [owners, others.collect()]
}

/// Elements of a piece. Pieces go to one owner after the other, so that the links of all are busy at a time.
const PIECE: usize = 1 << 18;

/// What one place has of all messages between the owners and the others, piece by piece; `message` says who sends to
/// whom, and what becomes of it there.
fn rounds(group: &Group, cuts: &Cuts, message: impl Fn(usize, usize) -> ([usize; 2], Apply)) -> Vec<Round> {
    let [owners, others] = sides(group.size(), cuts);
    let pieces = |owner: usize| cuts.part(owner).len().div_ceil(PIECE);
    let most = owners.iter().map(|&owner| pieces(owner)).max().unwrap_or(0);
    let mut rounds = Vec::new();
    for piece in 0..most {
        for &other in &others {
            for &owner in owners.iter().filter(|&&owner| piece < pieces(owner)) {
                let ([from, to], apply) = message(other, owner);
                let range = segment(cuts.part(owner), pieces(owner), piece);
                let part = |place: usize| PeerRange { peer: group.ranks[place], range: range.clone() };
                match group.place {
                    place if place == from => rounds.push(Round { send: Some(part(to)), receive: None }),
                    place if place == to => {
                        rounds.push(Round { send: None, receive: Some((part(from), apply)) });
                    }
                    _ => {}
                }
            }
        }
    }
    rounds
}

/// Every owner gets the sum of what it owns: one message from each of the others.
pub fn to_owners(group: &Group, cuts: &Cuts) -> Vec<Round> {
    // What stands at a server is the sum of the step before.
    let apply = |other| if other == 0 { Apply::Replace } else { Apply::Add };
    rounds(group, cuts, |other, owner| ([other, owner], apply(other)))
}

/// Every owner sends what it owns to each of the others.
pub fn from_owners(group: &Group, cuts: &Cuts) -> Vec<Round> {
    rounds(group, cuts, |other, owner| ([owner, other], Apply::Replace))
}

/// Rounds as an owner has them: it deals with one of the others at a time, and the next owner with that one when it is
/// through. With more owners than others, as one of these has them. The pairs of a turn stand for all of its pieces.
pub fn phases(cuts: &Cuts, to_owners: bool) -> Vec<Phase> {
    let [owners, others] = sides(cuts.ranks(), cuts);
    let longest = owners.iter().map(|&owner| cuts.part(owner).len()).max().unwrap_or(0);
    let pieces = longest.div_ceil(PIECE);
    if pieces == 0 || others.is_empty() {
        return Vec::new();
    }
    let (pairs, turns) = (owners.len().min(others.len()), owners.len().max(others.len()));
    let phase = |(turn, rounds): (usize, usize)| {
        let pair = |index: usize| {
            let later = (turn + turns - index) % turns;
            let (owner, other) = if owners.len() == turns { (later, index) } else { (index, later) };
            let ends = (others[other], owners[owner]);
            if to_owners { ends } else { (ends.1, ends.0) }
        };
        let to: Vec<(usize, usize)> = (0..pairs).map(pair).collect();
        // What comes from place 0 to an owner that has nothing itself is the first of a sum.
        let adds = to_owners && to.iter().any(|&(other, _)| other != 0);
        Phase::turn([cuts.ranks(), rounds, longest.div_ceil(pieces)], adds, to)
    };
    // The last pair begins when the first one has had a turn with each before it.
    let begins = (0, pairs - 1);
    (0..turns).map(|turn| (turn, pieces)).chain((pairs > 1).then_some(begins)).map(phase).collect()
}
