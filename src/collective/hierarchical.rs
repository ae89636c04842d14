//! Two levels: the ranks of a node share memory, and every one of them speaks to its like on the other nodes.
//!
//! The range is divided into as many segments as a node has ranks. Each rank adds up its segment over its node, in the
//! order of local ranks; a ring of the ranks with the same local rank, one of each node, sums it over the nodes; and
//! each rank writes its sum to all ranks of its node. So every rank has the links to the next node for 1/L of the
//! range, and what a node sends is 2(M−1)/M of the range for M nodes, however many ranks it has. Krishna Kandalla et
//! al.: "Designing multi-leader-based allgather algorithms for multi-core clusters" (CAC 2009) has the idea for few
//! leaders; here all ranks lead.
//!
//! Its halves are the same with stages left out: a reduce-scatter writes nothing, and an allgather adds nothing. Where
//! a table says who owns what, a rank's segment is what it and its like on the other nodes own; each of them ends a
//! reduce-scatter with the sum of its own part.
//!
//! What a rank does on its node it does in the host's memory, or has its device do (`Within`), and looks whether it is
//! done.
//!
//! A long range is worked through in pieces, one after the other: while one is between the nodes the next is added up
//! and the one before written. Two counters a piece, which only ever grow. In round k (from 1) on a node of L ranks:
//!   arrivals ≥ k·L   everybody's values are in place;
//!   written  ≥ k·L   every segment is written to every rank (in a reduce-scatter: added up), and nobody reads any
//!   more.

use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::executor::{self, Executor};
use super::schedule::Group;
use super::slot_counters::SlotCounters;
use super::within::{PIECE, Ticket, Within};
use super::{Collective, Slot, Steps};
use crate::comm::{Channel, Region, World};
use crate::config::{Pattern, Wire};
use crate::cuts::{Cuts, segment};
use crate::error::Result;
use crate::trace::{self, EventKind};

/// Pieces between the nodes at one time: few, so that they end one after the other, but as many as a link carries while
/// a rank computes one step of the plan. With three alexnet's step took 3 % longer on two hosts of two ranks.
const RINGS: usize = 12;

const SUM: Steps = Steps::Sum(Pattern::Ring);

/// In two levels: shared memory within a node, a ring for each local rank between nodes.
pub struct Hierarchical {
    /// Of the rings: a sum, or one of its halves.
    steps: Steps,
    world: World,
    within: Box<dyn Within>,
    /// This rank and its like on the other nodes, and their rings.
    alike: Vec<usize>,
    rings: Executor<Channel>,
    counters: SlotCounters,
    /// Which pieces are a slot's.
    slots: Vec<Range<usize>>,
    pieces: Vec<Piece>,
    /// Pieces in flight, the oldest first.
    flying: Vec<usize>,
}

/// Where a piece is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Idle,
    /// Adding up this rank's segment, so many elements of which are done, once all have arrived.
    Adding(usize),
    /// The ring has it.
    Between,
    /// Writing the sum to the other ranks, so many elements of which are done.
    Writing(usize),
    /// Others are writing theirs, or adding up.
    Waiting,
}

struct Piece {
    /// Whose it is.
    slot: Slot,
    /// This rank's part of it.
    segment: Segment,
    /// The same in `rings`.
    ring: Slot,
    started: u64,
    stage: Stage,
    /// What was begun last in this stage.
    ticket: Ticket,
}

/// What a rank adds up and writes: ranges of which no two meet.
struct Segment(Vec<Range<usize>>);

impl Segment {
    /// The parts of a table.
    fn of(cuts: &Cuts) -> Segment {
        let mut ranges: Vec<Range<usize>> = Vec::new();
        for part in (0..cuts.ranks()).map(|rank| cuts.part(rank)).filter(|part| !part.is_empty()) {
            match ranges.last_mut() {
                Some(last) if last.end == part.start => last.end = part.end,
                _ => ranges.push(part.clone()),
            }
        }
        Segment(ranges)
    }

    fn len(&self) -> usize {
        self.0.iter().map(ExactSizeIterator::len).sum()
    }

    /// What follows its first `done` elements, `most` elements at most, in one range.
    fn next(&self, done: usize, most: usize) -> Range<usize> {
        let mut skipped = done;
        for range in &self.0 {
            if skipped < range.len() {
                let start = range.start + skipped;
                return start..range.end.min(start.saturating_add(most));
            }
            skipped -= range.len();
        }
        0..0
    }
}

/// A range in pieces.
fn pieces(range: &Range<usize>, longest: usize) -> impl Iterator<Item = Range<usize>> {
    let count = range.len().div_ceil(longest).max(1);
    (0..count).map(move |index| segment(range, count, index))
}

/// Bytes of memory that a slot of so many elements takes beside its range, in the host's memory.
pub fn memory(wire: Wire, elements: usize, local: usize, nodes: usize) -> usize {
    let of_piece =
        |piece: Range<usize>| executor::memory(SUM.algorithm(), wire, piece.len().div_ceil(local), nodes);
    pieces(&(0..elements), PIECE).map(of_piece).sum()
}

impl Hierarchical {
    /// The sum of all, of what a rank owns, or what every rank owns on all of them: `steps` are the ring's. `within` is
    /// what adds up and writes on a node; the rings find and leave numbers in `region`, if there are several nodes.
    /// Collective.
    pub fn new(
        steps: Steps,
        world: &World,
        wire: Wire,
        region: &Rc<Region>,
        within: Box<dyn Within>,
    ) -> Result<Hierarchical> {
        let alike: Vec<usize> =
            (0..world.nodes()).map(|node| world.ranks_of(node)[world.local_rank()]).collect();
        let group = Group { ranks: alike.clone(), place: world.node() };
        let channel = Rc::new(Channel::new(world)?);
        Ok(Hierarchical {
            steps,
            world: world.clone(),
            within,
            alike,
            rings: Executor::new("ring", steps.algorithm(), wire, channel, region).among(group),
            counters: SlotCounters::new(world, 2),
            slots: Vec::new(),
            pieces: Vec::new(),
            flying: Vec::new(),
        })
    }

    fn arrivals(&self, piece: usize) -> &AtomicU64 {
        self.counters.get(piece, 0)
    }

    fn written(&self, piece: usize) -> &AtomicU64 {
        self.counters.get(piece, 1)
    }

    /// A piece of the slot that is being prepared. Of its segment each of this rank and its like owns a part.
    fn prepare_piece(&mut self, cuts: &Cuts) -> Result<()> {
        self.counters.prepare(self.pieces.len())?;
        let (slot, segment) = (self.slots.len(), Segment::of(cuts));
        let ring = self.rings.prepare_cut(cuts)?;
        self.pieces.push(Piece { slot, segment, ring, started: 0, stage: Stage::Idle, ticket: 0 });
        Ok(())
    }

    /// The pieces from this one on are a slot.
    fn slot_from(&mut self, first: usize) -> Slot {
        self.slots.push(first..self.pieces.len());
        self.flying.reserve(self.pieces.len());
        self.slots.len() - 1
    }

    /// The next stage of a piece, if there is something to do for it now.
    fn advance(&mut self, index: usize) -> Result<Option<Stage>> {
        let Piece { ref segment, ring, started, stage, ticket, .. } = self.pieces[index];
        let all = started * self.world.local_size() as u64;
        let end = segment.len();
        // Acquire: what the others wrote before they arrived is seen.
        let arrived = self.arrivals(index).load(Ordering::Acquire) >= all;
        Ok(match stage {
            Stage::Idle => None,
            // What an allgather sends is this rank's own.
            Stage::Adding(_) if self.steps != Steps::Collect && !arrived => None,
            Stage::Adding(done) if done < end => {
                Some(Stage::Adding(self.work(index, done, |within, range| within.add(range))?))
            }
            Stage::Adding(_) if self.between() == RINGS || !self.within.reached(ticket)? => None,
            Stage::Adding(_) => {
                self.rings.start(ring)?;
                if self.steps == Steps::Scatter {
                    // Release: the others' values are read by now.
                    self.written(index).fetch_add(1, Ordering::Release);
                }
                Some(Stage::Between)
            }
            Stage::Between if !self.rings.is_done(ring) => None,
            Stage::Between if self.steps == Steps::Scatter => Some(Stage::Waiting),
            Stage::Between => Some(Stage::Writing(0)),
            Stage::Writing(_) if self.steps == Steps::Collect && !arrived => None,
            Stage::Writing(done) if done < end => {
                Some(Stage::Writing(self.work(index, done, |within, range| within.share(range))?))
            }
            Stage::Writing(_) if !self.within.reached(ticket)? => None,
            Stage::Writing(_) => {
                // Release: the sums are seen by those who see the round over.
                self.written(index).fetch_add(1, Ordering::Release);
                Some(Stage::Waiting)
            }
            // Acquire: the sums written by others are seen.
            Stage::Waiting => (self.written(index).load(Ordering::Acquire) >= all).then_some(Stage::Idle),
        })
    }

    /// Has a chunk of a piece added up or written, behind what is done; how much is done then.
    fn work(
        &mut self,
        index: usize,
        mut done: usize,
        what: fn(&mut dyn Within, Range<usize>) -> Result<Ticket>,
    ) -> Result<usize> {
        let begun = trace::now();
        let (piece, most) = (&mut self.pieces[index], self.within.chunk());
        let (first, end) = (done, piece.segment.len().min(done.saturating_add(most)));
        while done < end {
            let range = piece.segment.next(done, end - done);
            done += range.len();
            piece.ticket = what(&mut *self.within, range)?;
        }
        trace::record(EventKind::Reduce, begun, piece.slot, 0, (done - first) * size_of::<f32>());
        Ok(done)
    }

    fn between(&self) -> usize {
        self.flying.iter().filter(|&&piece| self.pieces[piece].stage == Stage::Between).count()
    }
}

impl Collective for Hierarchical {
    fn name(&self) -> &'static str {
        self.within.name()
    }

    fn prepare(&mut self, range: Range<usize>) -> Result<Slot> {
        if self.steps != SUM {
            return self.prepare_cut(&Cuts::even(&range, self.world.size()));
        }
        let first = self.pieces.len();
        for piece in pieces(&range, self.within.piece()) {
            let segment = segment(&piece, self.world.local_size(), self.world.local_rank());
            self.prepare_piece(&Cuts::even(&segment, self.world.nodes()))?;
        }
        Ok(self.slot_from(first))
    }

    fn prepare_cut(&mut self, cuts: &Cuts) -> Result<Slot> {
        let first = self.pieces.len();
        let count = cuts.range().len().div_ceil(self.within.piece()).max(1);
        for piece in 0..count {
            self.prepare_piece(&cuts.among(&self.alike, [piece, count]))?;
        }
        Ok(self.slot_from(first))
    }

    fn start(&mut self, slot: Slot) -> Result<()> {
        debug_assert!(self.is_done(slot), "slot {slot} is in flight");
        for index in self.slots[slot].clone() {
            let piece = &mut self.pieces[index];
            piece.started += 1;
            // An allgather has nothing to add.
            piece.stage = Stage::Adding(if self.steps == Steps::Collect { piece.segment.len() } else { 0 });
            // A ticket of the round before was for what is done.
            piece.ticket = 0;
            self.flying.push(index);
            // Release: what this rank wrote is seen by those who see its arrival.
            self.arrivals(index).fetch_add(1, Ordering::Release);
        }
        Ok(())
    }

    fn poll(&mut self) -> Result<bool> {
        let mut moved = self.rings.poll()?;
        let mut index = 0;
        while let Some(&piece) = self.flying.get(index) {
            let next = self.advance(piece)?;
            if let Some(stage) = next {
                self.pieces[piece].stage = stage;
                moved = true;
            }
            let stage = self.pieces[piece].stage;
            if stage == Stage::Idle {
                self.flying.remove(index);
            } else {
                index += 1;
            }
            // One chunk's work at a time. And rings start in the same order on all ranks, since only so many may be
            // under way: nothing overtakes a piece that is still to be added up.
            let worked = next.is_some() && matches!(stage, Stage::Adding(_) | Stage::Writing(_));
            if worked || matches!(stage, Stage::Adding(_)) {
                break;
            }
        }
        Ok(moved)
    }

    fn run_ahead(&mut self, bytes: u64) -> Result<u64> {
        self.rings.run_ahead(bytes)
    }

    fn sent(&self) -> u64 {
        self.rings.sent()
    }

    fn is_done(&self, slot: Slot) -> bool {
        self.pieces[self.slots[slot].clone()].iter().all(|piece| piece.stage == Stage::Idle)
    }

    fn lingers(&self) -> bool {
        self.rings.lingers()
    }

    /// Known between nodes; the counters within one are nobody's.
    fn waiting_for(&self, slot: Slot) -> Vec<usize> {
        let pieces = &self.pieces[self.slots[slot].clone()];
        let between = pieces.iter().find(|piece| piece.stage == Stage::Between);
        between.map_or(Vec::new(), |piece| self.rings.waiting_for(piece.ring))
    }

    fn leave(&mut self) -> Result<()> {
        self.within.leave();
        // Nobody frees memory that others still reach.
        self.world.barrier()
    }
}
