//! Sums over all ranks, and reduce-scatter, allgather and broadcast by the same engine: one trait, one small file an
//! algorithm; and what each rank of a group has, on all of them (`gather`). `docs/algorithms.md` gives each one's steps
//! and bytes on the wire.
//!
//! Everything is prepared before the first training step: `prepare` fixes a range of the gradient region and
//! returns its slot; a step then only starts slots and polls. Nothing here knows tensors or models.
//!
//! May use: `comm`, `config`, `cuts`, `error`, `files`, `host`. Used by: `fusion`, `simulate`,
//! `reducer`, `train`, `bench`.
//!
//! ```
//! use dltrain::collective::{Selection, cost::Nodes, select, tuning::Tuning, wait};
//! use dltrain::comm::{Region, World};
//! use dltrain::config::{AllreduceKind, Wire};
//!
//! // What would sum 64 MB over four nodes with two ranks each, and how fast? This needs no MPI.
//! let (kind, wire, tuning) = (AllreduceKind::Auto, Wire::F32, Tuning::built_in());
//! let nodes = Nodes(vec![vec![0, 1], vec![2, 3], vec![4, 5], vec![6, 7]]);
//! let choice = Selection::new(kind, wire, &nodes, &tuning)?.choose(64_000_000, true);
//! println!("{} in {:.1} ms", choice.kind.name(), 1e3 * choice.seconds);
//! assert!(choice.seconds > 0.0);
//!
//! // The sum itself, on as many ranks as the launcher has started; without one that is a single rank.
//! let world = World::start("my program").map_err(|failed| failed.error)?;
//! let region = Region::allocate(&world, 4 * 1000, true)?;
//! let mut sum = select(kind, wire, &tuning, &world, &region)?;
//! let slot = sum.prepare(0..1000)?;
//! region.write(0, &[1.0; 1000]);
//! sum.start(slot)?; // what is computed from here on hides it, if it calls `poll` now and then
//! wait(&mut *sum, slot)?;
//! let mut total = [0.0; 1000];
//! region.read(0, &mut total);
//! assert_eq!(total, [world.size() as f32; 1000]);
//! # Ok::<(), dltrain::error::Error>(())
//! ```

mod all_to_all;
mod broadcast;
pub mod cost;
mod executor;
mod gather;
pub mod gossip;
mod halving_doubling;
mod hierarchical;
mod mpi_allreduce;
mod operation;
mod recursive_doubling;
mod ring;
pub mod schedule;
mod selection;
mod several;
mod shm;
mod slot_counters;
mod star;
mod steps;
#[cfg(test)]
mod tests;
mod torus;
pub mod tuning;
mod within;

use std::ops::Range;
use std::rc::Rc;

use self::cost::Nodes;
use self::tuning::Tuning;
use crate::comm::{Awaited, Region, Wait, World};
use crate::config::{AllreduceKind, Wire};
use crate::cuts::Cuts;
use crate::error::Result;

pub use crate::cuts::{even_split, segment};
pub use all_to_all::AllToAll;
pub(crate) use executor::AHEAD;
pub use executor::{CHUNK, WINDOW};
pub use gather::{Gather, InGroups};
pub use hierarchical::Hierarchical;
pub use mpi_allreduce::MpiAllreduce;
pub use operation::{Operation, Route};
pub use selection::{Choice, Selection};
pub use several::Several;
pub use shm::Shm;
pub use steps::Steps;
pub use within::{InCommon, PIECE, Ticket, Within};

/// A range that was prepared.
pub type Slot = usize;

/// Something that all ranks do together with ranges of `f32`, in place: a sum over all ranks (made by `select`), its
/// two halves, or one rank's numbers on all of them (`Operation::make`). Where all ranks end with the same numbers
/// they end with the same bits, and a repeat gives them again.
///
/// Every rank prepares the same ranges in the same order, and starts the same slots in the same order. Ranges
/// of slots in flight at one time do not overlap. From `start` until `is_done` the range belongs to the
/// collective.
pub trait Collective {
    /// "ring", "shm", "mpi", ….
    fn name(&self) -> &'static str;

    /// The algorithm of a slot, where they differ.
    fn algorithm(&self, _slot: Slot) -> &'static str {
        self.name()
    }

    /// Prepares a range, in elements. Collective; not for use within a step.
    fn prepare(&mut self, range: Range<usize>) -> Result<Slot>;

    /// Prepares a range of which each rank owns the part that the table says: a reduce-scatter leaves it the sum of
    /// that, and an allgather takes that from it. A sum is made in the order in which a reduce-scatter by this
    /// algorithm makes it. What does not divide a range among ranks takes it whole. Collective.
    fn prepare_cut(&mut self, cuts: &Cuts) -> Result<Slot> {
        self.prepare(cuts.range().clone())
    }

    /// Starts a slot that is not in flight. Several slots may be.
    fn start(&mut self, slot: Slot) -> Result<()>;

    /// Makes a bounded amount of progress (about a chunk's work) on what is in flight and returns whether there
    /// was any to make. Call it between two compute steps.
    fn poll(&mut self) -> Result<bool>;

    /// Sends messages of up to so many bytes out of turn; without it a slot's messages wait for those of slots that
    /// were started before it, which are needed first. Call it before a step is computed, since nobody polls until
    /// its end, and where a link would rest. Returns how many of the bytes are left.
    fn run_ahead(&mut self, bytes: u64) -> Result<u64> {
        Ok(bytes)
    }

    /// Whether the slot is not, or no longer, in flight.
    fn is_done(&self, slot: Slot) -> bool;

    /// Whether others have yet to acknowledge messages of slots that are done. A rank that computes goes on to poll for
    /// them: an MPI library may need it to hand these messages over.
    fn lingers(&self) -> bool {
        false
    }

    /// The ranks whose messages a slot in flight lacks now, by their numbers in the job; none where the algorithm
    /// cannot tell. For reports, so it may take a while.
    fn waiting_for(&self, _slot: Slot) -> Vec<usize> {
        Vec::new()
    }

    /// Bytes that this rank has sent so far in messages of dltrain's own.
    fn sent(&self) -> u64 {
        0
    }

    /// Ends it in order, when nothing is in flight any more. Collective. What is dropped without this is broken off.
    fn leave(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Makes the algorithm asked for, chosen where that is left open by what was measured. Collective.
///
/// # Errors
/// The same on every rank: `Usage` when what is asked for cannot be had with these ranks and nodes, `Environment` when
/// it needs a shared region and this one is not.
pub fn select(
    kind: AllreduceKind,
    wire: Wire,
    tuning: &Tuning,
    world: &World,
    region: &Rc<Region>,
) -> Result<Box<dyn Collective>> {
    let selection = Selection::new(kind, wire, &Nodes::of(world), tuning);
    world.agree(selection)?.build(world, region)
}

/// Polls until a slot is done, and lets other processes run when there is nothing to do.
pub fn wait(collective: &mut dyn Collective, slot: Slot) -> Result<()> {
    let mut wait = Wait::new();
    while !collective.is_done(slot) {
        match collective.poll()? {
            true => wait.moved(),
            false => wait.idle(|| Awaited {
                what: format!("{} collective", collective.algorithm(slot)),
                peers: collective.waiting_for(slot),
            })?,
        }
    }
    Ok(())
}
