//! Two levels: the ranks of a node share memory, and every one of them speaks to its like on the other nodes.
//!
//! The range is divided into as many segments as a node has ranks. Each rank adds up its segment over its node, in the
//! order of local ranks; a ring of the ranks with the same local rank, one of each node, sums it over the nodes; and
//! each rank writes its sum to all ranks of its node. So every rank has the links to the next node for 1/L of the
//! range, and what a node sends is 2(M−1)/M of the range for M nodes, however many ranks it has. Krishna Kandalla et al.:
//! "Designing multi-leader-based allgather algorithms for multi-core clusters" (CAC 2009) has the idea for few leaders;
//! here all ranks lead.
//!
//! Two counters a slot, which only ever grow. In round k (from 1) on a node of L ranks:
//!   arrivals ≥ k·L   everybody's values are in place;
//!   written  ≥ k·L   every segment is written to every rank, and nobody reads any more.

use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::schedule::{Group, segment};
use super::scheduled::Scheduled;
use super::{Collective, Slot, ring};
use crate::comm::{Channel, Counters, Region, World};
use crate::config::Wire;
use crate::error::Result;
use crate::trace::{self, Kind};

/// Elements that one `poll` adds up or writes: 128 KB a rank.
const CHUNK: usize = 32 * 1024;

/// Counters come in boards of so many slots.
const BOARD: usize = 128;

pub struct Hierarchical {
    world: World,
    region: Rc<Region>,
    /// The rings of this rank and its like on the other nodes.
    rings: Scheduled<Channel>,
    boards: Vec<Counters>,
    slots: Vec<Round>,
    /// Slots in flight, the oldest first.
    flying: Vec<Slot>,
}

/// Where a slot is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Idle,
    /// Adding up this rank's segment, from this element on, once all have arrived.
    Adding(usize),
    /// The ring has it.
    Between,
    /// Writing the sum to the other ranks, from this element on.
    Writing(usize),
    /// Others are writing theirs.
    Waiting,
}

struct Round {
    /// This rank's part of the range.
    segment: Range<usize>,
    /// The same in `rings`.
    ring: Slot,
    started: u64,
    stage: Stage,
}

impl Hierarchical {
    /// `region` is shared on every node. Collective.
    pub fn new(world: &World, wire: Wire, region: &Rc<Region>) -> Result<Hierarchical> {
        let alike = (0..world.nodes()).map(|node| world.ranks_of(node)[world.local_rank()]);
        let group = Group { ranks: alike.collect(), place: world.node() };
        let channel = Channel::new(world)?;
        Ok(Hierarchical {
            world: world.clone(),
            region: region.clone(),
            rings: Scheduled::new("ring", ring::allreduce, wire, channel, region).among(group),
            boards: Vec::new(),
            slots: Vec::new(),
            flying: Vec::new(),
        })
    }

    fn arrivals(&self, slot: Slot) -> &AtomicU64 {
        self.boards[slot / BOARD].get(2 * (slot % BOARD))
    }

    fn written(&self, slot: Slot) -> &AtomicU64 {
        self.boards[slot / BOARD].get(2 * (slot % BOARD) + 1)
    }

    /// The next stage of a slot, if there is something to do for it now.
    fn advance(&mut self, slot: Slot) -> Result<Option<Stage>> {
        let Round { ref segment, ring, started, stage, .. } = self.slots[slot];
        let all = started * self.world.local_size() as u64;
        let chunk = |from: usize| from..segment.end.min(from + CHUNK);
        Ok(match stage {
            Stage::Idle => None,
            // Acquire: what the others wrote before they arrived is seen.
            Stage::Adding(_) if self.arrivals(slot).load(Ordering::Acquire) < all => None,
            Stage::Adding(from) if from < segment.end => {
                let chunk = chunk(from);
                let begun = trace::now();
                self.region.sum_from_node(chunk.clone());
                trace::record(Kind::Reduce, begun, slot, 0, chunk.len() * size_of::<f32>());
                Some(Stage::Adding(chunk.end))
            }
            Stage::Adding(_) => {
                self.rings.start(ring)?;
                Some(Stage::Between)
            }
            Stage::Between => self.rings.is_done(ring).then_some(Stage::Writing(segment.start)),
            Stage::Writing(from) if from < segment.end => {
                let chunk = chunk(from);
                let begun = trace::now();
                self.region.write_to_node(chunk.clone());
                trace::record(Kind::Reduce, begun, slot, 0, chunk.len() * size_of::<f32>());
                Some(Stage::Writing(chunk.end))
            }
            Stage::Writing(_) => {
                // Release: the sums are seen by those who see the round over.
                self.written(slot).fetch_add(1, Ordering::Release);
                Some(Stage::Waiting)
            }
            // Acquire: the sums written by others are seen.
            Stage::Waiting => (self.written(slot).load(Ordering::Acquire) >= all).then_some(Stage::Idle),
        })
    }
}

impl Collective for Hierarchical {
    fn name(&self) -> &'static str {
        "hierarchical"
    }

    fn prepare(&mut self, range: Range<usize>) -> Result<Slot> {
        let slot = self.slots.len();
        if slot == self.boards.len() * BOARD {
            self.boards.push(Counters::allocate(&self.world, 2 * BOARD)?);
        }
        let segment = segment(&range, self.world.local_size(), self.world.local_rank());
        let ring = self.rings.prepare(segment.clone())?;
        self.slots.push(Round { segment, ring, started: 0, stage: Stage::Idle });
        self.flying.reserve(self.slots.len());
        Ok(slot)
    }

    fn start(&mut self, slot: Slot) -> Result<()> {
        debug_assert!(self.is_done(slot), "slot {slot} is in flight");
        let round = &mut self.slots[slot];
        round.started += 1;
        round.stage = Stage::Adding(round.segment.start);
        self.flying.push(slot);
        // Release: what this rank wrote is seen by those who see its arrival.
        self.arrivals(slot).fetch_add(1, Ordering::Release);
        Ok(())
    }

    fn poll(&mut self) -> Result<bool> {
        let mut moved = self.rings.poll()?;
        let mut index = 0;
        while let Some(&slot) = self.flying.get(index) {
            if let Some(stage) = self.advance(slot)? {
                self.slots[slot].stage = stage;
                moved = true;
            }
            if self.slots[slot].stage == Stage::Idle {
                self.flying.remove(index);
            } else {
                index += 1;
            }
        }
        Ok(moved)
    }

    fn is_done(&self, slot: Slot) -> bool {
        self.slots[slot].stage == Stage::Idle
    }

    /// Known between nodes; the counters within one are nobody's.
    fn waiting_for(&self, slot: Slot) -> Vec<usize> {
        match self.slots[slot].stage {
            Stage::Between => self.rings.waiting_for(self.slots[slot].ring),
            _ => Vec::new(),
        }
    }
}
