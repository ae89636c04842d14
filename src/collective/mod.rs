//! Sums over all ranks, and reduce-scatter, allgather and broadcast by the same engine: one trait, one small file an
//! algorithm; and what each rank of a group has, on all of them (`gather`). `docs/algorithms.md` gives each one's steps and
//! bytes on the wire.
//!
//! Everything is prepared before the first training step: `prepare` fixes a range of the gradient region and
//! returns its slot; a step then only starts slots and polls. Nothing here knows tensors or models.
//!
//! May use: `comm`, `config`, `error`. Used by: `fusion`, `train`, `bench`.

mod broadcast;
mod gather;
mod halving;
mod hierarchical;
pub mod limits;
mod link;
mod operation;
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
pub use hierarchical::Hierarchical;
pub use operation::{Operation, Route};
pub use part::part;
pub use schedule::segment;
pub use shm::Shm;
pub use vendor::Vendor;

/// A range that was prepared.
pub type Slot = usize;

/// Something that all ranks do together with ranges of `f32`, in place: a sum over all ranks (made by `select`), its two
/// halves, or one rank's numbers on all of them (`Operation::make`). Where all ranks end with the same numbers
/// they end with the same bits, and a repeat gives them again.
///
/// Every rank prepares the same ranges in the same order, and starts the same slots in the same order. Ranges
/// of slots in flight at one time do not overlap. From `start` until `is_done` the range belongs to the
/// collective.
pub trait Collective {
    /// "ring", "shm", "vendor", ….
    fn name(&self) -> &'static str;

    /// Prepares a range, in elements. Collective; not for use within a step.
    fn prepare(&mut self, range: Range<usize>) -> Result<Slot>;

    /// Starts a slot that is not in flight. Several slots may be.
    fn start(&mut self, slot: Slot) -> Result<()>;

    /// Makes a bounded amount of progress (about a chunk's work) on what is in flight and returns whether there
    /// was any to make. Call it between two compute steps.
    fn poll(&mut self) -> Result<bool>;

    /// Whether the slot is not, or no longer, in flight.
    fn is_done(&self, slot: Slot) -> bool;
}

/// A sum over all ranks.
pub use Collective as Allreduce;

/// Makes the algorithm asked for. Collective.
///
/// # Errors
/// The same on every rank: `Usage` when what is asked for cannot be had with these ranks and nodes, `Environment` when
/// it needs a shared region and this one is not.
pub fn select(
    kind: AllreduceKind,
    wire: Wire,
    world: &World,
    region: &Rc<Region>,
) -> Result<Box<dyn Allreduce>> {
    let layout = RankLayout::of(world, region.is_shared());
    Ok(match world.agree(resolve(kind, wire, layout))? {
        AllreduceKind::Shm => Box::new(Shm::new(world, region)),
        AllreduceKind::Hierarchical => Box::new(Hierarchical::new(world, wire, region)?),
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
    let layout = RankLayout::of(world, true);
    matches!(resolve(kind, Wire::F32, layout), Ok(AllreduceKind::Shm | AllreduceKind::Hierarchical))
}

/// Bytes that a rank has for the allreduce of a region of `bytes`, prepared in ranges of so many: other ranks' regions that
/// it maps, and memory for messages to come in. An estimate: whether a shared region can be had is known once it
/// is asked for.
pub fn memory(kind: AllreduceKind, wire: Wire, world: &World, bytes: usize, ranges: &[usize]) -> [usize; 2] {
    let shared = wants_shared(kind, world) && Region::fits_shared(world, bytes);
    let mapped = (world.local_size() - 1) * bytes;
    let messages = |algorithm, parts: usize, ranks| -> usize {
        let of = |bytes: &usize| scheduled::memory(algorithm, wire, bytes / 4 / parts, ranks);
        ranges.iter().map(of).sum()
    };
    match resolve(kind, wire, RankLayout::of(world, shared)) {
        Ok(AllreduceKind::Shm) => [mapped, 0],
        Ok(AllreduceKind::Hierarchical) => {
            [mapped, messages(ring::allreduce, world.local_size(), world.nodes())]
        }
        Ok(AllreduceKind::Vendor) | Err(_) => [0, 0],
        Ok(kind) => [0, messages(scheduled(kind).1, 1, world.size())],
    }
}

/// What the choice of an algorithm depends on.
#[derive(Debug, Clone, Copy)]
struct RankLayout {
    nodes: usize,
    /// Ranks of this node.
    local: usize,
    /// Whether every node has as many.
    even: bool,
    /// Whether the ranks of a node share the region.
    shared: bool,
}

impl RankLayout {
    fn of(world: &World, shared: bool) -> RankLayout {
        RankLayout { nodes: world.nodes(), local: world.local_size(), even: world.is_even(), shared }
    }
}

/// What `kind` means for such ranks.
fn resolve(kind: AllreduceKind, wire: Wire, layout: RankLayout) -> Result<AllreduceKind> {
    let RankLayout { nodes, local, even, shared } = layout;
    let no_room = |name: &str| {
        Error::environment(format!(
            "--allreduce {name} needs shared memory, and /dev/shm has no room for it; enlarge it (for a container: \
             --shm-size) or use auto or ring"
        ))
    };
    match kind {
        AllreduceKind::Vendor if wire != Wire::F32 => Err(Error::usage(format!(
            "--wire {wire}: the MPI library adds what it sends, and knows no {wire}; use another --allreduce"
        ))),
        AllreduceKind::Auto if nodes == 1 && shared => Ok(AllreduceKind::Shm),
        AllreduceKind::Auto if even && local > 1 && shared => Ok(AllreduceKind::Hierarchical),
        AllreduceKind::Auto => Ok(AllreduceKind::Ring),
        AllreduceKind::Shm if nodes > 1 => Err(Error::usage(format!(
            "--allreduce shm works within one node, and the ranks are on {nodes}; use auto or ring"
        ))),
        AllreduceKind::Hierarchical if !even => Err(Error::usage(
            "--allreduce hierarchical needs as many ranks on every node; use auto or ring, or another number of ranks",
        )),
        AllreduceKind::Shm if !shared => Err(no_room("shm")),
        AllreduceKind::Hierarchical if !shared => Err(no_room("hierarchical")),
        other => Ok(other),
    }
}

/// Polls until a slot is done, and lets other processes run when there is nothing to do.
pub fn wait(collective: &mut dyn Collective, slot: Slot) -> Result<()> {
    while !collective.is_done(slot) {
        if !collective.poll()? {
            std::thread::yield_now();
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    fn on(nodes: usize, local: usize, even: bool, shared: bool) -> RankLayout {
        RankLayout { nodes, local, even, shared }
    }

    #[test]
    fn auto_uses_shared_memory_where_ranks_have_it() {
        let auto = |layout| resolve(AllreduceKind::Auto, Wire::F32, layout).unwrap();
        assert_eq!(auto(on(1, 4, true, true)), AllreduceKind::Shm);
        assert_eq!(auto(on(1, 4, true, false)), AllreduceKind::Ring);
        assert_eq!(auto(on(2, 2, true, true)), AllreduceKind::Hierarchical);
        assert_eq!(auto(on(2, 1, true, true)), AllreduceKind::Ring);
        assert_eq!(auto(on(2, 2, false, true)), AllreduceKind::Ring);
    }

    #[test]
    fn what_cannot_work_is_refused_with_a_remedy() {
        for (kind, wire, layout, expected) in [
            (AllreduceKind::Shm, Wire::F32, on(2, 1, true, true), Kind::Usage),
            (AllreduceKind::Shm, Wire::Bf16, on(1, 2, true, false), Kind::Environment),
            (AllreduceKind::Hierarchical, Wire::F32, on(2, 2, false, true), Kind::Usage),
            (AllreduceKind::Hierarchical, Wire::F32, on(2, 2, true, false), Kind::Environment),
            (AllreduceKind::Vendor, Wire::F16, on(2, 2, true, true), Kind::Usage),
        ] {
            let error = resolve(kind, wire, layout).unwrap_err();
            assert!(error.kind == expected && error.message.contains("use a"), "{error}");
        }
    }
}
