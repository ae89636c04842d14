//! Every rank sends what it has to one other, and gets what a third one has beside its own: a step of a gossip. Who it
//! is depends on the distance alone, so nobody has to ask.

use std::rc::Rc;

use super::Collective;
use super::executor::Executor;
use super::schedule::{Apply, Group, PeerRange, Phase, Round, pairs};
use crate::comm::{Channel, Region, World};
use crate::config::Wire;
use crate::cuts::Cuts;
use crate::error::Result;

/// A range goes to the rank `distance` places on, and that of the rank as many places back comes in `shift` elements
/// behind it.
pub fn rounds(group: &Group, cuts: &Cuts, distance: usize, shift: usize) -> Vec<Round> {
    let (size, range) = (group.size(), cuts.range());
    let peer = |places: usize| group.ranks[(group.place + places) % size];
    let send = PeerRange { peer: peer(distance), range: range.clone() };
    let comes =
        PeerRange { peer: peer(size - distance % size), range: range.start + shift..range.end + shift };
    vec![Round { send: Some(send), receive: Some((comes, Apply::Replace)) }]
}

/// That round.
pub fn phase(cuts: &Cuts, distance: usize) -> Phase {
    let (size, elements) = (cuts.ranks(), cuts.range().len());
    Phase {
        rounds: 1,
        elements,
        pairs: pairs(size, move |place| Some((place + distance) % size)),
        adds: false,
    }
}

/// The same, ready for ranges of the first half of a region to be prepared; what comes lies in the second. Collective.
///
/// # Errors
/// `Foreign`, from MPI.
pub fn with_one_other(world: &World, distance: usize, region: &Rc<Region>) -> Result<Box<dyn Collective>> {
    let shift = region.bytes() / 4 / 2;
    let algorithm = move |group: &Group, cuts: &Cuts| rounds(group, cuts, distance, shift);
    Ok(Box::new(Executor::new("gossip", algorithm, Wire::F32, Rc::new(Channel::new(world)?), region)))
}
