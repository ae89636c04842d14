//! What carries each transfer. One recipe says how it is built on the ranks that are there, and what its messages are
//! on a machine where it is only thought to be: what is predicted of sums and of owners' parameters is what carries
//! them. Gathers into windows are predicted as the ring's, or between nodes.

use std::rc::Rc;

use crate::collective::tuning::Tuning;
use crate::collective::{
    Collective, Hierarchical, InCommon, Operation, Route, Selection, Steps, gossip, select,
};
use crate::comm::{Region, World};
use crate::config::{AllreduceKind, Wire};
use crate::cuts::Cuts;
use crate::error::Result;
use crate::simulate::{Course, Machine, Share};

/// By what a transfer travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recipe {
    /// By what is selected for each range: the sum of all of it, or of what a rank owns.
    Selected(Share),
    /// By what is selected for a range of so many bytes.
    SelectedFor(usize),
    /// A sum by this algorithm, whatever was asked for, of numbers of this type on their way.
    Sum(AllreduceKind, Wire),
    /// Straight between few owners and all others.
    Star(Operation, Wire),
    /// What every rank owns, for all.
    Collect(Route),
    /// What every rank owns, for all nodes, where the ranks of a node have it in common.
    BetweenNodes,
    /// To the rank so many places on.
    Shift(usize),
}

impl Recipe {
    /// Makes it, between the ranks of this world, for ranges of a region. Collective.
    ///
    /// # Errors
    /// The same on every rank: what is asked for cannot be had here.
    pub fn build(
        self,
        selection: &Selection,
        world: &World,
        region: &Rc<Region>,
    ) -> Result<Box<dyn Collective>> {
        match self {
            Recipe::Selected(share) => selection.build_half(share == Share::Own, world, region),
            Recipe::SelectedFor(bytes) => selection.build_for(bytes, world, region),
            Recipe::Sum(kind, wire) => select(kind, wire, &Tuning::built_in(), world, region),
            Recipe::Star(operation, wire) => operation.make(Route::Star, wire, world, region),
            Recipe::Collect(route) => Operation::Allgather.make(route, Wire::F32, world, region),
            Recipe::BetweenNodes => {
                Ok(Box::new(Hierarchical::new(Steps::Collect, world, Wire::F32, region, Box::new(InCommon))?))
            }
            Recipe::Shift(distance) => gossip::with_one_other(world, distance, region),
        }
    }

    /// What the ranks of a machine go through, of a range in elements; `None` where a library or a GPU does it. Whether
    /// the ranks of a node see each other's gradients is for what is selected.
    pub fn course(
        self,
        selection: &Selection,
        shared: bool,
        cuts: &Cuts,
        wire: Wire,
        machine: &Machine,
    ) -> Option<Course> {
        let chosen = |bytes| selection.choose(bytes, shared).kind;
        let sum = |kind, share, wire| Course::sum(kind, share, cuts, wire, machine);
        match self {
            Recipe::Selected(share) => sum(chosen(4 * cuts.range().len()), share, wire),
            Recipe::SelectedFor(bytes) => sum(chosen(bytes), Share::All, wire),
            Recipe::Sum(kind, wire) => sum(kind, Share::All, wire),
            Recipe::Star(Operation::ReduceScatter, wire) => Some(Course::of(Steps::ToOwners, cuts, wire)),
            Recipe::Star(_, wire) => Some(Course::of(Steps::FromOwners, cuts, wire)),
            Recipe::Collect(_) => Some(Course::of(Steps::Collect, cuts, Wire::F32)),
            Recipe::BetweenNodes => Some(Course::between_nodes(cuts)),
            Recipe::Shift(distance) => Some(Course::of(Steps::Shift(distance), cuts, Wire::F32)),
        }
    }
}
