//! Collectives in place, in memory that the ranks of one node share.
//!
//! Nobody sends anything. When all ranks have arrived at a slot, its range is worked through chunk by chunk: whoever
//! polls takes the next chunk and does for all ranks what there is to do. For a sum that is: adding up all ranks'
//! values of it in the order of ranks, and writing the sum to all of them. So the bits do not depend on who did the
//! work, and a rank deep in a compute step delays nobody once it has arrived.
//!
//! Three counters a slot, which only ever grow, so that nothing needs resetting between steps. In round k
//! (from 1) of a slot with C chunks on P ranks:
//!   arrivals ≥ k·P   everybody's values are in place;
//!   claims   = next chunk to be taken, counted from the first round: those of round k are (k−1)·C .. k·C;
//!   done     ≥ k·C   the round is over: all chunks are written, and nobody reads any more.

use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::slot_counters::SlotCounters;
use super::{Collective, Slot};
use crate::comm::{Region, World};
use crate::cuts::{Cuts, segment};
use crate::error::Result;
use crate::trace;

/// Elements of one rank in a chunk, at most: what one `poll` works through. 128 KB a rank; 64 KB to 1 MB measured the
/// same.
const CHUNK: usize = 32 * 1024;

/// Elements from which a second rank's help is worth its while: 4 KB.
const SMALL: usize = 1024;

/// A collective in memory that the ranks of one node share.
pub struct Shm {
    world: World,
    region: Rc<Region>,
    kind: Kind,
    counters: SlotCounters,
    slots: Vec<Round>,
    /// Slots in flight, the oldest first.
    flying: Vec<Slot>,
}

/// Which collective it is.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    Allreduce,
    ReduceScatter,
    Allgather,
    /// From this rank.
    Broadcast(usize),
}

/// What is to be done with a chunk.
#[derive(Debug, Clone, Copy)]
enum Task {
    SumToAll,
    SumTo(usize),
    CopyFrom(usize),
}

/// A prepared range and where this rank is with it.
struct Round {
    chunks: Vec<(Range<usize>, Task)>,
    /// How often it was started.
    started: u64,
    flying: bool,
}

impl Shm {
    /// What goes through a region that the ranks of a node share.
    pub fn new(kind: Kind, world: &World, region: &Rc<Region>) -> Shm {
        let (counters, slots, flying) = (SlotCounters::new(world, 3), Vec::new(), Vec::new());
        Shm { world: world.clone(), region: region.clone(), kind, counters, slots, flying }
    }

    /// A range as chunks: at least as many as ranks, unless it is small.
    fn cut(&self, cuts: &Cuts) -> Vec<(Range<usize>, Task)> {
        let (range, ranks) = (cuts.range(), self.world.size());
        // A rank alone has its result.
        if ranks == 1 {
            return Vec::new();
        }
        let longest = range.len().div_ceil(ranks).clamp(SMALL, CHUNK);
        let chunks = |range: Range<usize>, work| {
            let count = range.len().div_ceil(longest);
            (0..count).map(move |index| (segment(&range, count, index), work))
        };
        let of_each = |work: fn(usize) -> Task| {
            let of = |rank| chunks(cuts.part(rank).clone(), work(rank));
            (0..ranks).flat_map(of).collect()
        };
        match self.kind {
            Kind::Allreduce => chunks(range.clone(), Task::SumToAll).collect(),
            Kind::ReduceScatter => of_each(Task::SumTo),
            Kind::Allgather => of_each(Task::CopyFrom),
            Kind::Broadcast(root) => chunks(range.clone(), Task::CopyFrom(root)).collect(),
        }
    }

    fn arrivals(&self, slot: Slot) -> &AtomicU64 {
        self.counters.get(slot, 0)
    }

    fn claims(&self, slot: Slot) -> &AtomicU64 {
        self.counters.get(slot, 1)
    }

    fn done(&self, slot: Slot) -> &AtomicU64 {
        self.counters.get(slot, 2)
    }

    /// Takes the next chunk of a slot, if all ranks have arrived and one is left.
    fn claim(&self, slot: Slot) -> Option<(Range<usize>, Task)> {
        let Round { ref chunks, started, .. } = self.slots[slot];
        // Acquire: what the others wrote before they arrived is seen.
        if self.arrivals(slot).load(Ordering::Acquire) < started * self.world.local_size() as u64 {
            return None;
        }
        let count = chunks.len() as u64;
        let next = |claimed| (claimed < started * count).then_some(claimed + 1);
        let claimed = self.claims(slot).fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()?;
        Some(chunks[(claimed - (started - 1) * count) as usize].clone())
    }

    fn work(&self, chunk: Range<usize>, work: Task) {
        match work {
            Task::SumToAll => self.region.sum_over_node(chunk),
            Task::SumTo(rank) => self.region.sum_to(chunk, rank),
            Task::CopyFrom(rank) => self.region.copy_over_node(chunk, rank),
        }
    }
}

impl Collective for Shm {
    fn name(&self) -> &'static str {
        "shm"
    }

    fn prepare(&mut self, range: Range<usize>) -> Result<Slot> {
        self.prepare_cut(&Cuts::even(&range, self.world.size()))
    }

    fn prepare_cut(&mut self, cuts: &Cuts) -> Result<Slot> {
        let slot = self.slots.len();
        self.counters.prepare(slot)?;
        self.slots.push(Round { chunks: self.cut(cuts), started: 0, flying: false });
        self.flying.reserve(self.slots.len());
        Ok(slot)
    }

    fn start(&mut self, slot: Slot) -> Result<()> {
        let round = &mut self.slots[slot];
        debug_assert!(!round.flying, "slot {slot} is in flight");
        if !round.chunks.is_empty() {
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
        if let Some((slot, (chunk, work))) = chunk {
            let (begun, bytes) = (trace::now(), chunk.len() * size_of::<f32>());
            self.work(chunk, work);
            trace::record(trace::EventKind::Reduce, begun, slot, 0, bytes);
            // Release: what was written is seen by those who see the round over.
            self.done(slot).fetch_add(1, Ordering::Release);
        }
        let before = self.flying.len();
        let mut index = 0;
        while let Some(&slot) = self.flying.get(index) {
            let Round { ref chunks, started, .. } = self.slots[slot];
            // Acquire: what others wrote is seen.
            if self.done(slot).load(Ordering::Acquire) >= started * chunks.len() as u64 {
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
