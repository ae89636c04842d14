//! Counters that the ranks of a node share, so many a slot, for any number of slots.

use std::sync::atomic::AtomicU64;

use crate::comm::{Counters, World};
use crate::error::Result;

/// Slots on one board: made at one time, since making one is collective.
const SLOTS: usize = 64;

/// The counters of a collective's slots. All start at zero, and nothing here sets them back.
pub struct SlotCounters {
    world: World,
    /// Counters of a slot.
    count: usize,
    boards: Vec<Counters>,
}

impl SlotCounters {
    pub fn new(world: &World, count: usize) -> SlotCounters {
        SlotCounters { world: world.clone(), count, boards: Vec::new() }
    }

    /// Makes room for a slot; every slot in its order. Collective over the node.
    ///
    /// # Errors
    /// `Foreign` when there is no shared memory for it.
    pub fn prepare(&mut self, slot: usize) -> Result<()> {
        if slot == self.boards.len() * SLOTS {
            self.boards.push(Counters::allocate(&self.world, SLOTS * self.count)?);
        }
        Ok(())
    }

    /// # Panics
    /// When there is no such counter.
    pub fn get(&self, slot: usize, which: usize) -> &AtomicU64 {
        self.boards[slot / SLOTS].get(slot % SLOTS * self.count + which)
    }
}
