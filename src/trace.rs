//! What this rank does when, for `--timeline`: events in memory that is fixed beforehand.
//!
//! Whoever has something to show asks `now` before and calls `record` behind it; where nothing is recorded both do
//! nothing. The events belong to the thread that drives the rank, like MPI, so that they need not be handed through
//! every constructor. When the memory is full the oldest are written over. May use: `host` (its clock). Used by:
//! `collective`, `fusion`, `train`; `record` writes them.

use std::cell::{Cell, RefCell};

use crate::host::clock;

/// When a bucket's allreduce was under way, in seconds from the start of the step.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct BucketTime {
    /// When its collective started, in seconds from the step's start.
    pub start: f64,
    /// When it had finished, in seconds from the step's start.
    pub finish: f64,
    /// How long the rank had nothing to do but wait for it: the part that no computation hid.
    pub exposed: f64,
}

/// What an event is, and what its numbers `a` and `b` mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum EventKind {
    /// A training step.
    Step,
    /// The forward pass of a step.
    Forward,
    /// The backward pass of a step.
    Backward,
    /// A test of the network.
    Evaluation,
    /// A step of the plan: `a`.
    Layer,
    /// The update of bucket `a`.
    Update,
    /// Reading a batch, or waiting for it.
    Input,
    /// Bucket `a` from its start to its end, with its bytes.
    Bucket,
    /// Nothing to do but wait for bucket `a`, or where `b` is `FOR_RANK` for a stage's rank `a`.
    Wait,
    /// Exchange `a` of batch statistics.
    Exchange,
    /// Numbers added up or written in shared memory, of slot `a`.
    Reduce,
    /// A message to rank `a`, from its start until its memory is free again; `b` tells which of the collectives' it is.
    Send,
    /// A message from rank `a`, from its being asked for until it is there; `b` is the sender's.
    Receive,
}

const KINDS: [EventKind; 13] = {
    use EventKind::*;
    [Step, Forward, Backward, Evaluation, Layer, Update, Input, Bucket, Wait, Exchange, Reduce, Send, Receive]
};

/// Says of a wait that it is for a rank.
pub const FOR_RANK: u32 = 1;

/// Something that took time; by the clock of this node, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// When it began, in nanoseconds of the node's clock.
    pub begin: u64,
    /// When it ended, in nanoseconds of the node's clock.
    pub end: u64,
    /// What happened.
    pub kind: EventKind,
    /// The step of the run it belongs to.
    pub step: u32,
    /// The first number of its kind.
    pub a: u32,
    /// The second number of its kind.
    pub b: u32,
    /// How many bytes were moved, where any were.
    pub bytes: u64,
}

impl Event {
    /// Words that it travels as.
    pub const WORDS: usize = 5;

    /// The event as numbers, to be sent to another rank.
    pub fn words(&self) -> [u64; Event::WORDS] {
        let pair = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
        [self.begin, self.end, pair(self.kind as u32, self.step), pair(self.a, self.b), self.bytes]
    }

    /// `None` for words that are no event.
    pub fn from_words(words: &[u64]) -> Option<Event> {
        let &[begin, end, what, numbers, bytes] = words else { return None };
        let kind = *KINDS.get((what >> 32) as usize)?;
        let (a, b) = ((numbers >> 32) as u32, numbers as u32);
        Some(Event { begin, end, kind, step: what as u32, a, b, bytes })
    }
}

/// The last events, in the order in which they ended.
struct Ring {
    events: Vec<Event>,
    capacity: usize,
    /// The oldest, once all places are taken.
    oldest: usize,
    first: u64,
    last: u64,
}

impl Ring {
    fn push(&mut self, event: Event) {
        if self.events.len() < self.capacity {
            self.events.push(event);
        } else {
            self.events[self.oldest] = event;
            self.oldest = (self.oldest + 1) % self.capacity;
        }
    }

    /// All events of the steps that are whole at their begin: the oldest may have lost some.
    fn whole(&self) -> Vec<Event> {
        let (newer, older) = self.events.split_at(self.oldest);
        let mut events = [older, newer].concat();
        if self.events.len() == self.capacity
            && let Some(broken) = events.first().map(|event| event.step)
        {
            events.retain(|event| event.step > broken);
        }
        events
    }
}

thread_local! {
    static RING: RefCell<Option<Ring>> = const { RefCell::new(None) };
    /// Whether the step under way is recorded, and its number.
    static RECORDING: Cell<bool> = const { Cell::new(false) };
    static STEP: Cell<u32> = const { Cell::new(0) };
    static CHANNELS: Cell<u32> = const { Cell::new(0) };
}

/// Records the steps `first..=last` from now on, the last `capacity` events of them.
pub fn start(capacity: usize, first: u64, last: u64) {
    let events = Vec::with_capacity(capacity);
    RING.set(Some(Ring { events, capacity, oldest: 0, first, last }));
}

/// Ends recording; returns what is there.
pub fn stop() -> Vec<Event> {
    RECORDING.set(false);
    RING.take().map(|ring| ring.whole()).unwrap_or_default()
}

/// A step of the run begins.
pub fn step(number: u64) {
    let within = |ring: &Ring| (ring.first..=ring.last).contains(&number);
    RECORDING.set(RING.with_borrow(|ring| ring.as_ref().is_some_and(within)));
    STEP.set(number as u32);
}

/// The time, to be given to `record`; 0 where nothing is recorded.
pub fn now() -> u64 {
    if RECORDING.get() { clock::now() } else { 0 }
}

/// Records what began then and ends now.
pub fn record(kind: EventKind, begin: u64, a: usize, b: usize, bytes: usize) {
    if begin == 0 || !RECORDING.get() {
        return;
    }
    let (a, b, bytes) = (a as u32, b as u32, bytes as u64);
    let event = Event { begin, end: clock::now(), kind, step: STEP.get(), a, b, bytes };
    RING.with_borrow_mut(|ring| ring.iter_mut().for_each(|ring| ring.push(event)));
}

/// A number that tells the messages of one collective from another's: the same on all ranks, which make them in the
/// same order.
pub fn channel() -> usize {
    CHANNELS.replace(CHANNELS.get() + 1) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(number: u64, events: usize) {
        step(number);
        for index in 0..events {
            record(EventKind::Layer, now(), index, 0, 0);
        }
    }

    #[test]
    fn only_whole_steps_of_the_window_are_kept_in_memory_that_does_not_grow() {
        assert_eq!(now(), 0);
        start(10, 2, 90);
        let place = RING.with_borrow(|ring| ring.as_ref().unwrap().events.as_ptr());
        for number in 0..100 {
            mark(number, 4);
        }
        RING.with_borrow(|ring| {
            let ring = ring.as_ref().unwrap();
            assert_eq!((ring.events.as_ptr(), ring.events.len()), (place, 10));
        });
        // Ten events are two of step 88 and all of 89 and 90.
        let kept: Vec<(u32, u32)> = stop().iter().map(|event| (event.step, event.a)).collect();
        let expected: Vec<(u32, u32)> = [89, 90].iter().flat_map(|&s| (0..4).map(move |a| (s, a))).collect();
        assert_eq!(kept, expected);
        mark(3, 1);
        assert_eq!(stop(), []);
    }

    #[test]
    fn events_survive_the_journey() {
        for kind in KINDS {
            let event = Event {
                begin: 1 << 60,
                end: u64::MAX,
                kind,
                step: u32::MAX,
                a: 7,
                b: u32::MAX,
                bytes: 1 << 40,
            };
            assert_eq!(Event::from_words(&event.words()), Some(event));
        }
        assert_eq!(Event::from_words(&[0, 0, 99 << 32, 0, 0]), None);
    }
}
