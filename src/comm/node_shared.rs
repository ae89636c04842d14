//! Host memory that the ranks of a node have in common, and how they take turns in it.

use std::rc::Rc;
use std::sync::atomic::Ordering;

use super::region::{Region, accept, room};
use super::window::{Counters, SharedWindow};
use super::world::World;
use crate::error::Result;

/// Memory that is there once for all ranks of a node. Who writes what, and when others may read it, is up to its users
/// (`Barrier`).
pub struct NodeShared {
    address: *mut u8,
    bytes: usize,
    /// Held for its Drop.
    _window: SharedWindow,
}

impl NodeShared {
    /// Memory of the same size on every node; `None` with one warning where one of them has no room. Collective. Nobody
    /// has touched it: its pages will lie near the rank that writes to them first, and count for those that touch them.
    ///
    /// # Errors
    /// `Foreign` when MPI fails.
    pub fn allocate(world: &World, bytes: usize) -> Result<Option<Rc<NodeShared>>> {
        let what = "parameters and the optimizer's state";
        if accept(world, what, room(bytes))?.is_none() {
            return Ok(None);
        }
        let attempt = NodeShared::in_window(world, bytes);
        Ok(accept(world, what, attempt)?.map(Rc::new))
    }

    fn in_window(world: &World, bytes: usize) -> Result<NodeShared> {
        let window = SharedWindow::allocate(world, if world.is_leader() { bytes } else { 0 }, false)?;
        Ok(NodeShared { address: window.part(0)?, bytes, _window: window })
    }

    /// Whether this rank's node has room for it.
    pub fn fits(bytes: usize) -> bool {
        room(bytes).is_ok()
    }

    /// The memory as a region, for messages to come to and leave.
    pub fn region(self: &Rc<Self>) -> Rc<Region> {
        // SAFETY: the memory is there as long as the window, which the region keeps.
        unsafe { Region::foreign(self.address, self.bytes, self.clone()) }
    }

    /// Where it begins in this process.
    pub fn address(&self) -> *mut u8 {
        self.address
    }

    /// How many bytes it has.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// A barrier of the ranks of a node in two halves, so that a rank can do something else while others are still to come.
/// No messages: each rank has a counter in shared memory, which only grows.
pub struct Barrier {
    world: World,
    counters: Counters,
    /// How often this rank has come.
    arrivals: u64,
}

impl Barrier {
    /// Collective over the node.
    ///
    /// # Errors
    /// `Foreign` when the window cannot be made.
    pub fn new(world: &World) -> Result<Barrier> {
        let counters = Counters::allocate(world, world.local_size())?;
        Ok(Barrier { world: world.clone(), counters, arrivals: 0 })
    }

    /// This rank has come. It must not come again before all are here.
    pub fn arrive(&mut self) {
        self.arrivals += 1;
        // Release: what this rank wrote is seen by those who see its arrival.
        self.counters.get(self.world.local_rank()).store(self.arrivals, Ordering::Release);
    }

    /// The ranks of the node that have not come as often as this one, by their numbers in the job; none: all are here.
    pub fn missing(&self) -> Vec<usize> {
        // Acquire: what the others wrote before they came is seen.
        let late = |local: &usize| self.counters.get(*local).load(Ordering::Acquire) < self.arrivals;
        let late = (0..self.world.local_size()).filter(late);
        late.map(|local| self.world.job_rank(self.world.ranks_of(self.world.node())[local])).collect()
    }
}
