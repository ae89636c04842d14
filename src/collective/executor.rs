//! The engine: runs the schedules of any number of ranges at once, a bounded amount of work at a time.

use std::ops::Range;
use std::rc::Rc;

use super::link::Link;
use super::schedule::{self, Apply, Group, Message, Round, Schedule};
use super::{Collective, Slot};
use crate::comm::Region;
use crate::config::Wire;
use crate::cuts::Cuts;
use crate::error::{Error, Result};
use crate::trace::{self, EventKind};

/// Elements in one message, at most: 60 KB of f32, which MPI libraries send at once, where of more they first ask
/// whether it is wanted. Over TCP the answer waits behind what goes the other way, and a link that could do both at a
/// time does one after the other (measured between two hosts at 1 Gbit/s, 64 MB: 562 ms, and 870 to 1,030 with 256 KB).
pub const CHUNK: usize = 15 * 1024;

/// Messages under way in each direction: one that is worked on, and more to keep the wire busy meanwhile.
pub const WINDOW: usize = 16;

/// How an algorithm goes about a range, of which each place of the group owns a part: the rounds of one rank.
pub type Algorithm = fn(&Group, &Cuts) -> Vec<Round>;

/// A collective over all ranks by an algorithm.
pub struct Executor<L: Link> {
    name: &'static str,
    algorithm: Algorithm,
    wire: Wire,
    chunk: usize,
    group: Group,
    link: L,
    region: Rc<Region>,
    slots: Vec<Progress<L::Request>>,
    /// Slots in flight, the oldest first.
    flying: Vec<Slot>,
    /// `f32` words that left this rank so far.
    words_sent: u64,
    /// Tells its messages from those of others in a timeline.
    channel: usize,
}

/// A prepared range, and how far its current run is. Messages start and end in order.
struct Progress<R> {
    schedule: Schedule,
    /// `WINDOW` messages in which comes what is to be added, or is not f32; and as many for what leaves that is not
    /// f32.
    incoming: Rc<Region>,
    outgoing: Rc<Region>,
    /// Words of one message in these.
    longest: usize,
    receives: [Option<R>; WINDOW],
    sends: [Option<R>; WINDOW],
    /// When they started, for the timeline.
    receives_begun: [u64; WINDOW],
    sends_begun: [u64; WINDOW],
    receiving: usize,
    received: usize,
    /// Whether the next message to end is here, but not yet where it belongs.
    arrived: bool,
    sending: usize,
    sent: usize,
}

impl<L: Link> Executor<L> {
    pub fn new(
        name: &'static str,
        algorithm: Algorithm,
        wire: Wire,
        link: L,
        region: &Rc<Region>,
    ) -> Executor<L> {
        let (slots, flying) = (Vec::new(), Vec::new());
        Executor {
            name,
            algorithm,
            wire,
            chunk: CHUNK,
            group: Group::all(link.rank(), link.size()),
            link,
            region: region.clone(),
            slots,
            flying,
            words_sent: 0,
            channel: trace::channel(),
        }
    }

    /// Among some of the ranks, in this order.
    pub fn among(self, group: Group) -> Executor<L> {
        Executor { group, ..self }
    }

    /// With messages of at most so many elements.
    #[cfg(test)]
    pub fn chunk(self, chunk: usize) -> Executor<L> {
        Executor { chunk, ..self }
    }

    /// Bytes that this rank has sent.
    #[cfg(test)]
    pub fn bytes_sent(&self) -> u64 {
        self.words_sent * size_of::<f32>() as u64
    }

    /// Starts every message of a slot that may start now.
    fn launch(&mut self, slot: Slot) -> Result<()> {
        // Messages of one slot meet in order; those of other slots are told apart by the tag.
        let tag = slot as u16;
        let Progress { schedule, incoming, outgoing, longest, .. } = &self.slots[slot];
        let (incoming, outgoing, longest) = (incoming.clone(), outgoing.clone(), *longest);
        let (receives, sends) = (schedule.receives.len(), schedule.sends.len());
        loop {
            let at = &mut self.slots[slot];
            if at.receiving == receives.min(at.received + WINDOW) {
                break;
            }
            let message = &at.schedule.receives[at.receiving];
            let begun = trace::now();
            let request = if in_place(message, self.wire) {
                // What stands there must have been made, and must have left.
                if message.receives > at.received || message.sends > at.sent {
                    break;
                }
                self.link.receive(&self.region, &message.range, message.peer, tag)?
            } else {
                let start = at.receiving % WINDOW * longest;
                let words = self.wire.words(message.range.len());
                self.link.receive(&incoming, &(start..start + words), message.peer, tag)?
            };
            at.receives[at.receiving % WINDOW] = Some(request);
            at.receives_begun[at.receiving % WINDOW] = begun;
            at.receiving += 1;
        }
        loop {
            let at = &mut self.slots[slot];
            if at.sending == sends.min(at.sent + WINDOW) {
                break;
            }
            let message = &at.schedule.sends[at.sending];
            if message.receives > at.received {
                break;
            }
            let words = self.wire.words(message.range.len());
            let begun = trace::now();
            let request = if self.wire == Wire::F32 {
                self.link.send(&self.region, &message.range, message.peer, tag)?
            } else {
                let start = at.sending % WINDOW * longest;
                self.region.pack(message.range.clone(), self.wire, &outgoing, start);
                self.link.send(&outgoing, &(start..start + words), message.peer, tag)?
            };
            self.words_sent += words as u64;
            at.sends[at.sending % WINDOW] = Some(request);
            at.sends_begun[at.sending % WINDOW] = begun;
            at.sending += 1;
        }
        Ok(())
    }

    /// Ends what has come in (one message at most) and what has left; returns whether there was any.
    fn land(&mut self, slot: Slot) -> Result<bool> {
        let mut moved = false;
        loop {
            let at = &mut self.slots[slot];
            if at.sent == at.sending || !ended(&self.link, &mut at.sends[at.sent % WINDOW])? {
                break;
            }
            self.traced(slot, EventKind::Send, self.slots[slot].sent);
            self.slots[slot].sent += 1;
            moved = true;
        }
        let at = &mut self.slots[slot];
        let received = at.received;
        if received == at.receiving {
            return Ok(moved);
        }
        if !at.arrived && ended(&self.link, &mut at.receives[received % WINDOW])? {
            at.arrived = true;
            self.traced(slot, EventKind::Receive, received);
        }
        let at = &mut self.slots[slot];
        let message = &at.schedule.receives[received];
        // What is written over must have left. The message is taken before: its sender may wait for that with what
        // this rank in turn waits for.
        if !at.arrived || at.sent < message.sends {
            return Ok(moved);
        }
        if !in_place(message, self.wire) {
            let start = received % WINDOW * at.longest;
            let add = message.apply == Apply::Add;
            self.region.unpack(message.range.clone(), self.wire, &at.incoming, start, add);
        }
        at.arrived = false;
        at.received += 1;
        Ok(true)
    }

    /// A message has ended.
    fn traced(&self, slot: Slot, kind: EventKind, index: usize) {
        let at = &self.slots[slot];
        let (messages, begun) = match kind {
            EventKind::Send => (&at.schedule.sends, at.sends_begun),
            _ => (&at.schedule.receives, at.receives_begun),
        };
        let bytes = self.wire.words(messages[index].range.len()) * size_of::<f32>();
        let channel = self.channel << 16 | slot;
        trace::record(kind, begun[index % WINDOW], self.link.job_rank(messages[index].peer), channel, bytes);
    }
}

/// Whether a message comes in where it belongs.
fn in_place(message: &Message, wire: Wire) -> bool {
    message.apply == Apply::Replace && wire == Wire::F32
}

/// Whether a request has ended; if so it is taken away.
fn ended<L: Link>(link: &L, request: &mut Option<L::Request>) -> Result<bool> {
    let done = match request {
        Some(request) => link.ended(request)?,
        None => false,
    };
    if done {
        *request = None;
    }
    Ok(done)
}

/// Words of memory for messages to come in and to leave, of which the longest has so many.
fn scratch(schedule: &Schedule, longest: usize, wire: Wire) -> [usize; 2] {
    let all = |needed: bool| if needed { WINDOW * longest } else { 0 };
    let apart = |message: &Message| !in_place(message, wire);
    [all(schedule.receives.iter().any(apart)), all(wire != Wire::F32)]
}

/// Bytes of memory that a slot of so many elements takes beside its range.
pub fn memory(algorithm: Algorithm, wire: Wire, elements: usize, ranks: usize) -> usize {
    let rounds = algorithm(&Group::all(0, ranks), &Cuts::even(&(0..elements), ranks));
    let longest = wire.words(schedule::longest(&rounds, CHUNK));
    scratch(&Schedule::new(&rounds, CHUNK), longest, wire).iter().sum::<usize>() * size_of::<f32>()
}

impl<L: Link> Collective for Executor<L> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn prepare(&mut self, range: Range<usize>) -> Result<Slot> {
        self.prepare_cut(&Cuts::even(&range, self.group.size()))
    }

    fn prepare_cut(&mut self, cuts: &Cuts) -> Result<Slot> {
        let slot = self.slots.len();
        // MPI promises tags up to this.
        if slot > 32_767 {
            return Err(Error::usage("more than 32768 fusion buckets; use a larger --fusion-threshold-mb"));
        }
        let rounds = (self.algorithm)(&self.group, cuts);
        let longest = self.wire.words(schedule::longest(&rounds, self.chunk));
        let schedule = Schedule::new(&rounds, self.chunk);
        let words = scratch(&schedule, longest, self.wire);
        let region = |words: usize| Region::private(words * size_of::<f32>()).map(Rc::new);
        self.slots.push(Progress {
            schedule,
            incoming: region(words[0])?,
            outgoing: region(words[1])?,
            longest,
            receives: Default::default(),
            sends: Default::default(),
            receives_begun: [0; WINDOW],
            sends_begun: [0; WINDOW],
            receiving: 0,
            received: 0,
            arrived: false,
            sending: 0,
            sent: 0,
        });
        self.flying.reserve(self.slots.len());
        Ok(slot)
    }

    fn start(&mut self, slot: Slot) -> Result<()> {
        debug_assert!(self.is_done(slot), "slot {slot} is in flight");
        let at = &mut self.slots[slot];
        (at.receiving, at.received, at.sending, at.sent) = (0, 0, 0, 0);
        if at.schedule.receives.len() + at.schedule.sends.len() > 0 {
            self.flying.push(slot);
            self.launch(slot)?;
        }
        Ok(())
    }

    fn poll(&mut self) -> Result<bool> {
        let mut moved = false;
        let mut index = 0;
        while let Some(&slot) = self.flying.get(index) {
            if self.land(slot)? {
                moved = true;
                self.launch(slot)?;
            }
            let at = &self.slots[slot];
            if at.received == at.schedule.receives.len() && at.sent == at.schedule.sends.len() {
                self.flying.remove(index);
            } else {
                index += 1;
            }
        }
        Ok(moved)
    }

    fn is_done(&self, slot: Slot) -> bool {
        !self.flying.contains(&slot)
    }

    /// Of whom the next message is to come, and who has yet to take the oldest one sent.
    fn waiting_for(&self, slot: Slot) -> Vec<usize> {
        let at = &self.slots[slot];
        let receive = (!at.arrived).then(|| at.schedule.receives.get(at.received)).flatten();
        let send = if at.sent < at.sending { at.schedule.sends.get(at.sent) } else { None };
        let of = |message: &Message| self.link.job_rank(message.peer);
        let mut peers: Vec<usize> = receive.into_iter().chain(send).map(of).collect();
        peers.dedup();
        peers
    }
}
