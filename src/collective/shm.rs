//! Sum in place, in memory that the ranks of one node share.
//!
//! Nobody sends anything. When all ranks have arrived at a slot, its range is summed chunk by chunk: whoever
//! polls takes the next chunk, adds up all ranks' values of it in the order of ranks, and writes the sum to
//! all of them. So the bits do not depend on who did the work, and a rank deep in a compute step delays
//! nobody once it has arrived.
//!
//! Three counters a slot, which only ever grow, so that nothing needs resetting between steps. In round k
//! (from 1) of a slot with C chunks on P ranks:
//!   arrivals ≥ k·P   everybody's values are in place;
//!   claims   = next chunk to be taken, counted from the first round: those of round k are (k−1)·C .. k·C;
//!   sums     ≥ k·C   the round is over: all chunks are written, and nobody reads any more.

use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Allreduce, Slot, part};
use crate::comm::{Counters, Region, World};
use crate::error::Result;
use crate::trace::{self, Kind};

/// Elements of one rank in a chunk, at most: what one `poll` sums. 128 KB a rank; 64 KB to 1 MB measured the same.
const CHUNK: usize = 32 * 1024;

/// Counters come in boards of so many slots.
const BOARD: usize = 128;

pub struct Shm {
    world: World,
    region: Rc<Region>,
    boards: Vec<Counters>,
    slots: Vec<Round>,
    /// Slots in flight, the oldest first.
    flying: Vec<Slot>,
}

/// A prepared range and where this rank is with it.
struct Round {
    range: Range<usize>,
    chunks: u64,
    /// How often it was started.
    started: u64,
    flying: bool,
}

impl Shm {
    /// `region` is shared, and all ranks are on one node.
    pub fn new(world: &World, region: &Rc<Region>) -> Shm {
        Shm {
            world: world.clone(),
            region: region.clone(),
            boards: Vec::new(),
            slots: Vec::new(),
            flying: Vec::new(),
        }
    }

    fn counter(&self, slot: Slot, which: usize) -> &AtomicU64 {
        self.boards[slot / BOARD].get(3 * (slot % BOARD) + which)
    }

    fn arrivals(&self, slot: Slot) -> &AtomicU64 {
        self.counter(slot, 0)
    }

    fn claims(&self, slot: Slot) -> &AtomicU64 {
        self.counter(slot, 1)
    }

    fn sums(&self, slot: Slot) -> &AtomicU64 {
        self.counter(slot, 2)
    }

    /// Takes the next chunk of a slot, if all ranks have arrived and one is left.
    fn claim(&self, slot: Slot) -> Option<Range<usize>> {
        let Round { ref range, chunks, started, .. } = self.slots[slot];
        // Acquire: what the others wrote before they arrived is seen.
        if self.arrivals(slot).load(Ordering::Acquire) < started * self.world.local_size() as u64 {
            return None;
        }
        let next = |claimed| (claimed < started * chunks).then_some(claimed + 1);
        let claimed = self.claims(slot).fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()?;
        let index = claimed - (started - 1) * chunks;
        let chunk = part(range.len(), chunks as usize, index as usize);
        Some(range.start + chunk.start..range.start + chunk.end)
    }
}

impl Allreduce for Shm {
    fn name(&self) -> &'static str {
        "shm"
    }

    fn prepare(&mut self, range: Range<usize>) -> Result<Slot> {
        let slot = self.slots.len();
        if slot == self.boards.len() * BOARD {
            self.boards.push(Counters::allocate(&self.world, 3 * BOARD)?);
        }
        // A rank alone has its sum.
        let chunks = if self.world.size() == 1 { 0 } else { range.len().div_ceil(CHUNK) as u64 };
        self.slots.push(Round { range, chunks, started: 0, flying: false });
        self.flying.reserve(self.slots.len());
        Ok(slot)
    }

    fn start(&mut self, slot: Slot) -> Result<()> {
        let round = &mut self.slots[slot];
        debug_assert!(!round.flying, "slot {slot} is in flight");
        if round.chunks > 0 {
            round.started += 1;
            round.flying = true;
            self.flying.push(slot);
            // Release: what this rank wrote is seen by those who see its arrival.
            self.arrivals(slot).fetch_add(1, Ordering::Release);
        }
        Ok(())
    }

    fn poll(&mut self) -> Result<bool> {
        // One chunk, of the oldest slot that has one.
        let chunk = self.flying.iter().find_map(|&slot| Some((slot, self.claim(slot)?)));
        let claimed = chunk.is_some();
        if let Some((slot, chunk)) = chunk {
            let (begun, bytes) = (trace::now(), chunk.len() * size_of::<f32>());
            self.region.sum_over_node(chunk);
            trace::record(Kind::Reduce, begun, slot, 0, bytes);
            // Release: the sums are seen by those who see the round over.
            self.sums(slot).fetch_add(1, Ordering::Release);
        }
        let before = self.flying.len();
        let mut index = 0;
        while let Some(&slot) = self.flying.get(index) {
            let Round { chunks, started, .. } = self.slots[slot];
            // Acquire: the sums written by others are seen.
            if self.sums(slot).load(Ordering::Acquire) >= started * chunks {
                self.slots[slot].flying = false;
                self.flying.remove(index);
            } else {
                index += 1;
            }
        }
        Ok(claimed || self.flying.len() < before)
    }

    fn is_done(&self, slot: Slot) -> bool {
        !self.slots[slot].flying
    }
}
