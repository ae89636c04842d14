//! Sums over all ranks: one trait, one small file an algorithm; and what each rank of a group has, on all of them
//! (`gather`). `docs/algorithms.md` gives each one's steps
//! and bytes on the wire.
//!
//! Everything is prepared before the first training step: `prepare` fixes a range of the gradient region and
//! returns its slot; a step then only starts slots and polls. Nothing here knows tensors or models.
//!
//! May use: `comm`, `error`. Used by: `fusion`, `bench`.

#[cfg(test)]
mod broadcast;
mod gather;
mod halving;
mod link;
mod part;
mod ring;
mod schedule;
mod scheduled;
mod shm;
#[cfg(test)]
mod threads;
mod torus;
mod tree;
mod vendor;

use std::ops::Range;
use std::rc::Rc;

use self::scheduled::{Algorithm, Scheduled};
use crate::comm::{Channel, Region, World};
use crate::config::{AllreduceKind, Wire};
use crate::error::{Error, Result};

pub use gather::Gather;
pub use part::part;
pub use shm::Shm;
pub use vendor::Vendor;

/// A range that was prepared.
pub type Slot = usize;

/// A sum of `f32` over all ranks, in place. All ranks end with the same bits, and a repeat gives them again.
///
/// Every rank prepares the same ranges in the same order, and starts the same slots in the same order. Ranges
/// of slots in flight at one time do not overlap. From `start` until `is_done` the range belongs to the
/// collective.
pub trait Allreduce {
    /// "ring", "shm", "vendor", ….
    fn name(&self) -> &'static str;

    /// Prepares the sum of a range, in elements. Collective; not for use within a step.
    fn prepare(&mut self, range: Range<usize>) -> Result<Slot>;

    /// Starts the sum of a slot that is not in flight. Several slots may be.
    fn start(&mut self, slot: Slot) -> Result<()>;

    /// Makes a bounded amount of progress (about a chunk's work) on what is in flight and returns whether there
    /// was any to make. Call it between two compute steps.
    fn poll(&mut self) -> Result<bool>;

    /// Whether the slot is not, or no longer, in flight.
    fn is_done(&self, slot: Slot) -> bool;
}

/// Makes the algorithm asked for. Collective.
///
/// # Errors
/// The same on every rank: `Usage` when shm is asked for and ranks are on several nodes, `Environment` when it is and the region is not
/// shared.
pub fn select(
    kind: AllreduceKind,
    wire: Wire,
    world: &World,
    region: &Rc<Region>,
) -> Result<Box<dyn Allreduce>> {
    Ok(match world.agree(resolve(kind, wire, world.nodes(), region.is_shared()))? {
        AllreduceKind::Shm => Box::new(Shm::new(world, region)),
        AllreduceKind::Vendor => Box::new(Vendor::new(world, region)?),
        kind => {
            let (name, algorithm) = scheduled(kind);
            Box::new(Scheduled::new(name, algorithm, wire, Channel::new(world)?, region))
        }
    })
}

/// The algorithms that are schedules of messages.
fn scheduled(kind: AllreduceKind) -> (&'static str, Algorithm) {
    match kind {
        AllreduceKind::Halving => ("halving", halving::allreduce),
        AllreduceKind::Tree => ("tree", tree::allreduce),
        AllreduceKind::Torus => ("torus", torus::allreduce),
        _ => ("ring", ring::allreduce),
    }
}

/// Whether gradients are to lie in memory that the ranks of a node share.
pub fn wants_shared(kind: AllreduceKind, world: &World) -> bool {
    match kind {
        AllreduceKind::Shm => true,
        AllreduceKind::Auto => world.nodes() == 1,
        _ => false,
    }
}

/// Bytes that a rank has for the allreduce of a region of `bytes`, prepared in ranges of so many: other ranks' regions that
/// it maps, and memory for messages to come in. An estimate: whether a shared region can be had is known once it
/// is asked for.
pub fn memory(kind: AllreduceKind, wire: Wire, world: &World, bytes: usize, ranges: &[usize]) -> [usize; 2] {
    let shared = wants_shared(kind, world) && Region::fits_shared(world, bytes);
    match resolve(kind, wire, world.nodes(), shared) {
        Ok(AllreduceKind::Shm) => [(world.local_size() - 1) * bytes, 0],
        Ok(AllreduceKind::Vendor) | Err(_) => [0, 0],
        Ok(kind) => {
            let of = |bytes: &usize| scheduled::memory(scheduled(kind).1, wire, bytes / 4, world.size());
            [0, ranges.iter().map(of).sum()]
        }
    }
}

/// What `kind` means on so many nodes.
fn resolve(kind: AllreduceKind, wire: Wire, nodes: usize, shared: bool) -> Result<AllreduceKind> {
    match kind {
        AllreduceKind::Vendor if wire != Wire::F32 => Err(Error::usage(format!(
            "--wire {wire}: the MPI library adds what it sends, and knows no {wire}; use another --allreduce"
        ))),
        AllreduceKind::Auto if nodes == 1 && shared => Ok(AllreduceKind::Shm),
        AllreduceKind::Auto => Ok(AllreduceKind::Ring),
        AllreduceKind::Shm if nodes > 1 => Err(Error::usage(format!(
            "--allreduce shm works within one node, and the ranks are on {nodes}; use auto or ring"
        ))),
        AllreduceKind::Shm if !shared => Err(Error::environment(
            "--allreduce shm needs shared memory, and /dev/shm has no room for it; enlarge it (for a container: \
             --shm-size) or use auto or ring",
        )),
        other => Ok(other),
    }
}

/// Polls until a slot is done, and lets other processes run when there is nothing to do.
pub fn wait(allreduce: &mut dyn Allreduce, slot: Slot) -> Result<()> {
    while !allreduce.is_done(slot) {
        if !allreduce.poll()? {
            std::thread::yield_now();
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    #[test]
    fn auto_takes_shared_memory_on_one_node_and_the_ring_elsewhere() {
        assert_eq!(resolve(AllreduceKind::Auto, Wire::F32, 1, true), Ok(AllreduceKind::Shm));
        assert_eq!(resolve(AllreduceKind::Auto, Wire::F32, 1, false), Ok(AllreduceKind::Ring));
        assert_eq!(resolve(AllreduceKind::Auto, Wire::F32, 2, true), Ok(AllreduceKind::Ring));
    }

    #[test]
    fn shm_where_it_cannot_work_is_refused_with_a_remedy() {
        let error = resolve(AllreduceKind::Shm, Wire::F32, 2, true).unwrap_err();
        assert_eq!(error.kind, Kind::Usage);
        assert!(error.message.contains("use auto or ring"));
        assert_eq!(resolve(AllreduceKind::Shm, Wire::Bf16, 1, false).unwrap_err().kind, Kind::Environment);
    }
}
