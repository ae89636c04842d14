//! Every rank sends what it has to one other, and gets what a third one has beside its own: a step of a gossip. Who it
//! is depends on the distance alone, so nobody has to ask.

use std::rc::Rc;

use super::Collective;
use super::executor::Executor;
use super::schedule::{Group, Phase, rounds_of};
use crate::comm::{Channel, Region, World};
use crate::config::Wire;
use crate::cuts::Cuts;
use crate::error::Result;

/// A range goes to the rank `distance` places on, and that of the rank as many places back comes in `shift` elements
/// behind it.
pub fn phase(cuts: &Cuts, distance: usize, shift: usize) -> Phase {
    let (range, lands) = (cuts.range().clone(), cuts.range().start + shift..cuts.range().end + shift);
    Phase::round_trip([cuts.ranks(), 1, distance], range.len(), false, move |_, _| range.clone())
        .landing(lands)
}

/// The same, ready for ranges of the first half of a region to be prepared; what comes lies in the second. Collective.
///
/// # Errors
/// `Foreign`, from MPI.
pub fn with_one_other(world: &World, distance: usize, region: &Rc<Region>) -> Result<Box<dyn Collective>> {
    let shift = region.bytes() / 4 / 2;
    let algorithm = move |group: &Group, cuts: &Cuts| rounds_of(&[phase(cuts, distance, shift)], group);
    Ok(Box::new(Executor::new("gossip", algorithm, Wire::F32, Rc::new(Channel::new(world)?), region)))
}
