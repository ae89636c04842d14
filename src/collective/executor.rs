//! The engine: runs the schedules of any number of ranges at once, a bounded amount of work at a time.

use std::ops::Range;
use std::rc::Rc;

use super::schedule::{self, Apply, Group, Message, PeerRange, Round, Schedule};
use super::{Collective, Slot};
use crate::comm::{Link, Region};
use crate::config::Wire;
use crate::cuts::Cuts;
use crate::error::{Error, Result};
use crate::trace::{self, EventKind};

/// Elements in one message, at most: 60 KB of f32, which MPI libraries send at once, where of more they first ask
/// whether it is wanted. Over TCP the answer waits behind what goes the other way, and a link that could do both at a
/// time does one after the other (measured between two hosts at 1 Gbit/s, 64 MB: 562 ms, and 870 to 1,030 with 256 KB).
pub const CHUNK: usize = 15 * 1024;

/// Messages that are awaited at a time: one that is worked on, and more to keep the wire busy meanwhile.
pub const WINDOW: usize = 16;

/// An MPI library copies what it sends at once, and is done with it before anybody receives it. So that no rank is
/// ahead of another by more than it has memory for, one message to a rank in so many is sent synchronously: it ends
/// when it is received. No more than `MATCHING` of these are on their way to a rank: 26 MB. Measured: without this
/// vgg16's gradients on their way to a slower rank took 345 MB.
///
/// What is sent while a rank computes one step of the plan has to be started before it. With 10 MB (`MATCHING` 4) a
/// link of 1 Gbit/s rested during kernels of more than 80 ms: alexnet's step took 4 % longer on two hosts, and vgg11's
/// 5 % (batches of 128 and 32 images, docs/numbers.md).
///
/// Each rank has a window of its own because over TCP an acknowledgement waits behind all that its sender has for this
/// rank. A server's three workers each have a third of its link for their gradients, so an acknowledgement takes three
/// times as long as a window takes to leave; with one window for all of them the server rested meanwhile.
const MATCHED_EVERY: usize = 32;
const MATCHING: usize = 12;

/// Messages, and bytes, by which a rank can be ahead of another.
const MOST_AHEAD: usize = (MATCHING + 1) * MATCHED_EVERY;
pub const AHEAD: usize = MOST_AHEAD * CHUNK * size_of::<f32>();

/// How an algorithm goes about a range, of which each place of the group owns a part: the rounds of one rank.
type Algorithm = Box<dyn Fn(&Group, &Cuts) -> Vec<Round>>;

/// A collective over all ranks by an algorithm.
pub struct Executor<L: Link> {
    name: &'static str,
    algorithm: Algorithm,
    wire: Wire,
    chunk: usize,
    group: Group,
    /// Several may send by one.
    link: Rc<L>,
    region: Rc<Region>,
    slots: Vec<Progress<L::Request>>,
    /// Slots in flight, the oldest first. A slot whose messages have all come and left is done, but stays here while
    /// acknowledgements are on their way.
    flying: Vec<Slot>,
    matched: MatchedSends<L::Request>,
    /// `f32` words that left this rank so far.
    words_sent: u64,
    /// Tells its messages from those of others in a timeline.
    channel: usize,
}

/// Messages that end when they are received, and what tells when the next one is due.
struct MatchedSends<R> {
    /// Those on their way.
    matching: Vec<Matching<R>>,
    /// What these are sent from, so that their ranges are free at once: where a range is added to as soon as it has
    /// left (recursive doubling), both ranks of a pair would wait for each other's acknowledgement.
    copies: Vec<Rc<Region>>,
    /// How many other messages left to each rank since the last of these.
    unmatched: Vec<usize>,
    /// Whether one of these was held back, and whether one has ended since.
    held: bool,
    freed: bool,
}

/// A message on its way that ends when it is received: whose, and to whom.
struct Matching<R> {
    slot: Slot,
    peer: usize,
    request: R,
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
    /// As many as may have left and not ended, without those that are `matching`.
    sends: Vec<Option<R>>,
    /// When they started, for the timeline.
    receives_begun: [u64; WINDOW],
    sends_begun: Vec<u64>,
    receiving: usize,
    received: usize,
    /// Whether the next message to end is here, but not yet where it belongs.
    arrived: bool,
    sending: usize,
    /// How many have left their ranges.
    sent: usize,
    /// Whether the next message to leave waits for those of older slots.
    behind: bool,
}

impl<R> Progress<R> {
    /// Whether a message to a rank has yet to leave.
    fn owes(&self, peer: usize) -> bool {
        self.schedule.last_to.iter().any(|&(to, last)| to == peer && self.sending <= last)
    }

    /// Whether all messages of this run have come, and left their ranges.
    fn is_over(&self) -> bool {
        self.received == self.schedule.receives.len() && self.sent == self.schedule.sends.len()
    }
}

impl<L: Link> Executor<L> {
    pub fn new(
        name: &'static str,
        algorithm: impl Fn(&Group, &Cuts) -> Vec<Round> + 'static,
        wire: Wire,
        link: Rc<L>,
        region: &Rc<Region>,
    ) -> Executor<L> {
        let matched = MatchedSends {
            matching: Vec::new(),
            copies: Vec::new(),
            unmatched: vec![0; link.size()],
            held: false,
            freed: false,
        };
        Executor {
            name,
            algorithm: Box::new(algorithm),
            wire,
            chunk: CHUNK,
            group: Group::all(link.rank(), link.size()),
            link,
            region: region.clone(),
            slots: Vec::new(),
            flying: Vec::new(),
            matched,
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

    /// Starts every message that may start now of the slot with this place among those in flight. Once the executor has
    /// sent `until` bytes in all, a message waits for those of older slots for the same rank. The oldest slot waits for
    /// none, so that ranks cannot wait for each other in a circle (`is_full`).
    fn launch(&mut self, place: usize, until: u64) -> Result<()> {
        let slot = self.flying[place];
        self.receive(slot)?;
        self.slots[slot].behind = false;
        while self.may_send(place, until) {
            self.send(slot)?;
        }
        Ok(())
    }

    /// Messages of one slot meet in order; those of other slots are told apart by the tag.
    fn tag(slot: Slot) -> u16 {
        slot as u16
    }

    /// Starts to receive all that may come now.
    fn receive(&mut self, slot: Slot) -> Result<()> {
        let at = &mut self.slots[slot];
        while at.receiving < at.schedule.receives.len().min(at.received + WINDOW) {
            let message = &at.schedule.receives[at.receiving];
            let begun = trace::now();
            let request = if is_in_place(message.apply, self.wire) {
                // What stands there must have been made, and must have left.
                if message.receives > at.received || message.sends > at.sent {
                    break;
                }
                self.link.receive(&self.region, &message.range, message.peer, Self::tag(slot))?
            } else {
                let start = at.receiving % WINDOW * at.longest;
                let words = self.wire.words(message.range.len());
                self.link.receive(&at.incoming, &(start..start + words), message.peer, Self::tag(slot))?
            };
            at.receives[at.receiving % WINDOW] = Some(request);
            at.receives_begun[at.receiving % WINDOW] = begun;
            at.receiving += 1;
        }
        Ok(())
    }

    /// Whether a slot's next message may leave now. Notes where another slot keeps it: `poll` has to launch this
    /// one when that has ended.
    fn may_send(&mut self, place: usize, until: u64) -> bool {
        let slot = self.flying[place];
        let at = &self.slots[slot];
        if at.sending == at.schedule.sends.len().min(at.sent + at.sends.len()) {
            return false;
        }
        let Message { peer, receives, .. } = at.schedule.sends[at.sending];
        if receives > at.received {
            return false;
        }
        let owes = |&older: &Slot| self.slots[older].owes(peer);
        if self.sent() >= until && self.flying[..place].iter().any(owes) {
            self.slots[slot].behind = true;
            return false;
        }
        if is_matched(self.wire, self.matched.unmatched[peer])
            && is_full(&self.matched.matching, place == 0, slot, peer)
        {
            self.matched.held = true;
            return false;
        }
        true
    }

    /// Sends a slot's next message.
    fn send(&mut self, slot: Slot) -> Result<()> {
        let at = &mut self.slots[slot];
        let message = &at.schedule.sends[at.sending];
        let (peer, words, tag) = (message.peer, self.wire.words(message.range.len()), Self::tag(slot));
        let matched = is_matched(self.wire, self.matched.unmatched[peer]);
        self.matched.unmatched[peer] = if matched { 0 } else { self.matched.unmatched[peer] + 1 };
        let begun = trace::now();
        let place = at.sending % at.sends.len();
        if matched {
            let copy = free_copy(&mut self.matched.copies, self.chunk)?;
            self.region.pack(message.range.clone(), Wire::F32, &copy, 0);
            let request = self.link.send(&copy, &(0..words), peer, tag, true)?;
            self.matched.matching.push(Matching { slot, peer, request });
        } else if self.wire == Wire::F32 {
            at.sends[place] = Some(self.link.send(&self.region, &message.range, peer, tag, false)?);
        } else {
            let start = at.sending % WINDOW * at.longest;
            self.region.pack(message.range.clone(), self.wire, &at.outgoing, start);
            at.sends[place] =
                Some(self.link.send(&at.outgoing, &(start..start + words), peer, tag, false)?);
        }
        self.words_sent += words as u64;
        at.sends_begun[place] = begun;
        at.sending += 1;
        Ok(())
    }

    /// Ends what has left and all that has come in: with one message of a range at a time a link would rest while many
    /// ranges are asked. Returns whether there was any.
    fn land(&mut self, slot: Slot) -> Result<bool> {
        let mut moved = false;
        loop {
            let at = &mut self.slots[slot];
            let (sent, place) = (at.sent, at.sent % at.sends.len().max(1));
            if sent == at.sending {
                break;
            }
            // What is to be matched left when it was copied.
            if at.sends[place].is_some() && !ended(&*self.link, &mut at.sends[place])? {
                break;
            }
            let begun = at.sends_begun[place];
            self.traced(slot, EventKind::Send, sent, begun);
            self.slots[slot].sent += 1;
            moved = true;
        }
        while let Some(index) = self.matched.matching.iter().position(|matching| matching.slot == slot) {
            if !self.link.ended(&mut self.matched.matching[index].request)? {
                break;
            }
            self.matched.matching.remove(index);
            self.matched.freed = true;
            moved = true;
        }
        while self.take(slot)? {
            moved = true;
        }
        Ok(moved)
    }

    /// Ends the next message that comes in, if it has come.
    fn take(&mut self, slot: Slot) -> Result<bool> {
        let at = &mut self.slots[slot];
        let received = at.received;
        if received == at.receiving {
            return Ok(false);
        }
        if !at.arrived && ended(&*self.link, &mut at.receives[received % WINDOW])? {
            at.arrived = true;
            let begun = at.receives_begun[received % WINDOW];
            self.traced(slot, EventKind::Receive, received, begun);
        }
        let at = &mut self.slots[slot];
        let message = &at.schedule.receives[received];
        // What is written over must have left. The message is taken before: its sender may wait for that with what
        // this rank in turn waits for.
        if !at.arrived || at.sent < message.sends {
            return Ok(false);
        }
        if !is_in_place(message.apply, self.wire) {
            let start = received % WINDOW * at.longest;
            let add = message.apply == Apply::Add;
            self.region.unpack(message.range.clone(), self.wire, &at.incoming, start, add);
        }
        at.arrived = false;
        at.received += 1;
        Ok(true)
    }

    /// A message has ended that was begun then.
    fn traced(&self, slot: Slot, kind: EventKind, index: usize, begun: u64) {
        let schedule = &self.slots[slot].schedule;
        let messages = if kind == EventKind::Send { &schedule.sends } else { &schedule.receives };
        let bytes = self.wire.words(messages[index].range.len()) * size_of::<f32>();
        let channel = self.channel << 16 | slot;
        trace::record(kind, begun, self.link.job_rank(messages[index].peer), channel, bytes);
    }
}

/// How many messages of a slot may have left and not ended; what is not f32 has memory for so many.
fn sends_under_way(wire: Wire) -> usize {
    if wire == Wire::F32 { MOST_AHEAD } else { WINDOW }
}

/// Whether the next message to a rank ends when it is received, so many behind the last one that did.
fn is_matched(wire: Wire, unmatched: usize) -> bool {
    wire == Wire::F32 && unmatched == MATCHED_EVERY - 1
}

/// Whether a message to a rank that is to be matched must wait until others have been.
///
/// Those of other ranges never hold back the oldest one, or ranks could wait for each other in a circle: one holds back
/// what another needs to receive the first one's messages. Ranks start ranges in the same order. So the first range
/// that is not over everywhere is the oldest of each rank that works on it, and comes to its end.
fn is_full<R>(matching: &[Matching<R>], is_oldest: bool, slot: Slot, peer: usize) -> bool {
    let to_peer = matching.iter().filter(|matching| matching.peer == peer);
    match is_oldest {
        true => to_peer.filter(|matching| matching.slot == slot).count() > MATCHING,
        false => to_peer.count() >= MATCHING,
    }
}

/// Whether a message comes in where it belongs.
fn is_in_place(apply: Apply, wire: Wire) -> bool {
    apply == Apply::Replace && wire == Wire::F32
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

/// One of these that nobody sends from, or another one.
fn free_copy(copies: &mut Vec<Rc<Region>>, elements: usize) -> Result<Rc<Region>> {
    if let Some(copy) = copies.iter().find(|copy| Rc::strong_count(copy) == 1) {
        return Ok(copy.clone());
    }
    let copy = Rc::new(Region::private(elements * size_of::<f32>())?);
    copies.push(copy.clone());
    Ok(copy)
}

/// Words of memory for messages to come in and to leave, of which the longest has so many.
fn scratch(rounds: &[Round], longest: usize, wire: Wire) -> [usize; 2] {
    let all = |needed: bool| if needed { WINDOW * longest } else { 0 };
    let apart = |(part, apply): &(PeerRange, Apply)| !part.range.is_empty() && !is_in_place(*apply, wire);
    [all(rounds.iter().filter_map(|round| round.receive.as_ref()).any(apart)), all(wire != Wire::F32)]
}

/// Bytes of memory that a slot of so many elements takes beside its range.
pub fn memory(
    algorithm: impl Fn(&Group, &Cuts) -> Vec<Round>,
    wire: Wire,
    elements: usize,
    ranks: usize,
) -> usize {
    let rounds = algorithm(&Group::all(0, ranks), &Cuts::even(&(0..elements), ranks));
    let longest = wire.words(schedule::longest(&rounds, CHUNK));
    scratch(&rounds, longest, wire).iter().sum::<usize>() * size_of::<f32>()
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
        let sends = schedule.sends.len().min(sends_under_way(self.wire));
        let words = scratch(&rounds, longest, self.wire);
        let region = |words: usize| Region::private(words * size_of::<f32>()).map(Rc::new);
        self.slots.push(Progress {
            schedule,
            incoming: region(words[0])?,
            outgoing: region(words[1])?,
            longest,
            receives: Default::default(),
            sends: (0..sends).map(|_| None).collect(),
            receives_begun: [0; WINDOW],
            sends_begun: vec![0; sends],
            receiving: 0,
            received: 0,
            arrived: false,
            sending: 0,
            sent: 0,
            behind: false,
        });
        self.flying.reserve(self.slots.len());
        Ok(slot)
    }

    fn start(&mut self, slot: Slot) -> Result<()> {
        debug_assert!(self.is_done(slot), "slot {slot} is in flight");
        self.flying.retain(|&flying| flying != slot);
        let at = &mut self.slots[slot];
        (at.receiving, at.received, at.sending, at.sent) = (0, 0, 0, 0);
        if at.schedule.receives.len() + at.schedule.sends.len() > 0 {
            self.flying.push(slot);
            self.launch(self.flying.len() - 1, 0)?;
        }
        Ok(())
    }

    fn run_ahead(&mut self, bytes: u64) -> Result<u64> {
        let until = self.sent().saturating_add(bytes);
        for place in 0..self.flying.len() {
            if self.slots[self.flying[place]].behind {
                self.launch(place, until)?;
            }
        }
        Ok(until.saturating_sub(self.sent()))
    }

    fn poll(&mut self) -> Result<bool> {
        let mut moved = false;
        let mut index = 0;
        let goes_on = self.matched.held && std::mem::take(&mut self.matched.freed);
        self.matched.held &= !goes_on;
        while let Some(&slot) = self.flying.get(index) {
            let landed = self.land(slot)?;
            // A range that was held back may be the oldest now.
            if landed || goes_on || self.matched.held && index == 0 || self.slots[slot].behind {
                self.launch(index, 0)?;
            }
            moved |= landed;
            if self.slots[slot].is_over()
                && self.matched.matching.iter().all(|matching| matching.slot != slot)
            {
                self.flying.remove(index);
            } else {
                index += 1;
            }
        }
        Ok(moved)
    }

    /// Acknowledgements are not waited for: what they are for left from copies, and over TCP they wait behind all that
    /// the receiver sends.
    fn is_done(&self, slot: Slot) -> bool {
        self.slots[slot].is_over() || !self.flying.contains(&slot)
    }

    fn lingers(&self) -> bool {
        !self.matched.matching.is_empty()
    }

    fn sent(&self) -> u64 {
        self.words_sent * size_of::<f32>() as u64
    }

    /// Of whom the next message is to come, and who has yet to take the oldest one sent.
    fn waiting_for(&self, slot: Slot) -> Vec<usize> {
        let at = &self.slots[slot];
        let receive = (!at.arrived).then(|| at.schedule.receives.get(at.received)).flatten();
        let send = if at.sent < at.sending { at.schedule.sends.get(at.sent) } else { None };
        let matching = self.matched.matching.iter().find(|matching| matching.slot == slot);
        let messages = receive.into_iter().chain(send).map(|message| message.peer);
        let peers = messages.chain(matching.map(|matching| matching.peer));
        let mut peers: Vec<usize> = peers.map(|peer| self.link.job_rank(peer)).collect();
        peers.dedup();
        peers
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::collective::Steps;
    use crate::config::Pattern;

    /// What is matched never ends, all else at once; where others are silent nothing comes. It keeps to whom messages
    /// went.
    struct Unheard {
        rank: usize,
        size: usize,
        silent: bool,
        sent: Rc<RefCell<Vec<usize>>>,
    }

    impl Link for Unheard {
        type Request = bool;

        fn rank(&self) -> usize {
            self.rank
        }

        fn size(&self) -> usize {
            self.size
        }

        fn send(&self, _: &Rc<Region>, _: &Range<usize>, to: usize, _: u16, matched: bool) -> Result<bool> {
            self.sent.borrow_mut().push(to);
            Ok(!matched)
        }

        fn receive(&self, _: &Rc<Region>, _: &Range<usize>, _: usize, _: u16) -> Result<bool> {
            Ok(!self.silent)
        }

        fn ended(&self, request: &mut bool) -> Result<bool> {
            Ok(*request)
        }
    }

    const ELEMENTS: usize = 1 << 12;

    /// Slots whose 64 messages to a rank fill its window.
    const FULL: usize = MATCHING * MATCHED_EVERY / 64;

    /// So many slots in flight, each of so many messages of two elements, after a while without an answer.
    fn unheard(steps: Steps, rank: usize, size: usize, slots: usize) -> (Executor<Unheard>, Vec<usize>) {
        let sent = Rc::new(RefCell::new(Vec::new()));
        let region = Rc::new(Region::private(ELEMENTS * size_of::<f32>()).unwrap());
        let link = Rc::new(Unheard { rank, size, silent: false, sent: sent.clone() });
        let mut all = Executor::new("unheard", steps.algorithm(), Wire::F32, link, &region).chunk(2);
        for slot in 0..slots {
            let range = slot * ELEMENTS / slots..(slot + 1) * ELEMENTS / slots;
            let mut parts = vec![range.start..range.start; size];
            parts[size - 1] = range.clone();
            let slot = all.prepare_cut(&Cuts::new(range, parts)).unwrap();
            all.start(slot).unwrap();
        }
        for _ in 0..1000 {
            all.poll().unwrap();
        }
        let sent = sent.borrow().clone();
        (all, sent)
    }

    /// A server whose three workers answer late: each has its own 26 MB, not a third of one rank's.
    #[test]
    fn each_rank_has_a_window_of_its_own() {
        let (_, sent) = unheard(Steps::FromOwners, 3, 4, 32);
        let to = |rank: usize| sent.iter().filter(|&&to| to == rank).count();
        // The slot behind is held back at the first worker's next message to be matched; each slot has 64 for each.
        let held = (MATCHING + 1) * MATCHED_EVERY - 1;
        assert_eq!([0, 1, 2].map(to), [held, MATCHING * MATCHED_EVERY, MATCHING * MATCHED_EVERY]);
    }

    /// What a rank waits for is what comes to it, and not the acknowledgements of what it sent.
    #[test]
    fn a_slot_is_done_before_its_messages_are_acknowledged() {
        let (mut all, sent) = unheard(Steps::FromOwners, 3, 4, 32);
        assert_eq!([0, FULL - 1, FULL].map(|slot| all.is_done(slot)), [true, true, false]);
        assert!(all.lingers(), "polls go on for them");
        // It starts again, as the youngest, while the acknowledgements of its last run are on their way.
        all.start(0).unwrap();
        assert_eq!((all.flying[0], all.flying.last(), all.is_done(0)), (1, Some(&0), false));
        all.poll().unwrap();
        assert_eq!(all.link.sent.borrow().len(), sent.len());
    }

    /// Of two slots in flight, each of so many messages a round, while nothing comes: how many messages left to each
    /// rank, before the rank runs ahead by so many bytes and then.
    fn two_in_silence(steps: Steps, size: usize, messages: usize, bytes: u64) -> [Vec<usize>; 2] {
        let sent = Rc::new(RefCell::new(Vec::new()));
        let region = Rc::new(Region::private(ELEMENTS * size_of::<f32>()).unwrap());
        let link = Rc::new(Unheard { rank: 0, size, silent: true, sent: sent.clone() });
        let mut all = Executor::new("silent", steps.algorithm(), Wire::F32, link, &region).chunk(2);
        let length = ELEMENTS / 2;
        for range in [0..length, length..ELEMENTS] {
            let slot = all.prepare(range.start..range.start + 2 * size * messages).unwrap();
            all.start(slot).unwrap();
        }
        let count = |all: &mut Executor<Unheard>| {
            (0..10).for_each(|_| _ = all.poll().unwrap());
            (0..size).map(|rank| sent.borrow().iter().filter(|&&to| to == rank).count()).collect()
        };
        let waiting = count(&mut all);
        all.run_ahead(bytes).unwrap();
        [waiting, count(&mut all)]
    }

    /// The second slot's first round would leave before the first one's second round, which is still to come in.
    #[test]
    fn slots_leave_one_behind_the_other_but_for_a_rank_that_computes_next() {
        assert_eq!(two_in_silence(Steps::Collect, 3, 5, u64::MAX), [vec![0, 5, 0], vec![0, 10, 0]]);
        assert_eq!(two_in_silence(Steps::Collect, 3, 5, 9), [vec![0, 5, 0], vec![0, 7, 0]]);
        // The first slot has nothing more for this rank: its second round goes to another one.
        let [waiting, computing] = two_in_silence(Steps::Sum(Pattern::RecursiveDoubling), 4, 5, u64::MAX);
        assert_eq!((waiting[1], &waiting), (40, &computing));
    }

    /// By recursive doubling a range is added to as soon as it has left.
    #[test]
    fn no_sum_waits_for_an_acknowledgement() {
        let (all, _) = unheard(Steps::Sum(Pattern::RecursiveDoubling), 1, 2, 32);
        assert!(all.matched.matching.len() >= MATCHING);
        for at in &all.slots[..FULL] {
            assert_eq!(at.received, at.schedule.receives.len());
        }
    }
}
