//! Transfers of one kind in flight, one after the other: sums of gradients, new parameters, or the step's own numbers.

use std::ops::Range;
use std::time::Instant;

use super::ReduceAt;
use crate::collective::{Collective, Slot};
use crate::comm::Awaited;
use crate::device::{Device, DeviceEvent};
use crate::error::Result;
use crate::trace::{self, BucketTime};

/// What carries the transfers, and how far they are. They start and finish in the order in which they are completed,
/// which is the same on all ranks, and each starts when it is where the collective finds it: a device may still be
/// writing, or copying.
pub struct Line {
    /// For messages.
    words: Words,
    collective: Box<dyn Collective>,
    flights: Vec<Flight>,
    times: Vec<BucketTime>,
    at: ReduceAt,
    /// Bytes between where something stands and where its like comes in.
    behind: usize,
    /// The transfers that are complete in this step, in their order; of these so many have started and finished.
    complete: Vec<usize>,
    started: usize,
    finished: usize,
}

/// What a line is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Words {
    /// "bucket", "parameters of bucket".
    pub what: &'static str,
    /// "allreduce".
    pub operation: &'static str,
}

struct Flight {
    slot: Slot,
    bytes: Range<usize>,
    /// What of them this rank gives, and gets.
    gives: Range<usize>,
    gets: Range<usize>,
    /// When it is where the collective finds it.
    written: Option<DeviceEvent>,
    /// When what came is back on the device.
    back: Option<DeviceEvent>,
    /// For the timeline.
    begun: u64,
}

impl Line {
    /// Nothing to transfer yet.
    pub fn new(words: Words, collective: Box<dyn Collective>, at: ReduceAt) -> Line {
        let (flights, times) = (Vec::new(), Vec::new());
        Line {
            words,
            collective,
            flights,
            times,
            at,
            behind: 0,
            complete: Vec::new(),
            started: 0,
            finished: 0,
        }
    }

    /// What comes in lies so many bytes behind what goes out.
    pub fn behind(self, behind: usize) -> Line {
        Line { behind, ..self }
    }

    /// Adds a transfer that was prepared; from here `gives` goes out of its bytes, and `gets` come in.
    pub fn push(&mut self, slot: Slot, bytes: &Range<usize>, gives: Range<usize>, gets: Range<usize>) {
        let bytes = bytes.clone();
        let gets = gets.start + self.behind..gets.end + self.behind;
        self.flights.push(Flight { slot, bytes, gives, gets, written: None, back: None, begun: 0 });
        self.times.push(BucketTime::default());
    }

    /// What carries the transfers.
    pub fn collective(&mut self) -> &mut dyn Collective {
        &mut *self.collective
    }

    /// How many transfers there are.
    pub fn transfers(&self) -> usize {
        self.flights.len()
    }

    /// Of each transfer.
    pub fn times(&self) -> &[BucketTime] {
        &self.times
    }

    /// Whether they take place where the numbers lie.
    pub fn is_in_place(&self) -> bool {
        matches!(self.at, ReduceAt::InPlace)
    }

    /// When the last transfer is written.
    pub fn last_written(&self) -> Option<&DeviceEvent> {
        self.flights[*self.complete.last()?].written.as_ref()
    }

    /// Whether the host has no part in them.
    pub fn is_on_device(&self) -> bool {
        matches!(self.at, ReduceAt::Device)
    }

    /// Whether the last transfer of the step is complete.
    pub fn is_complete(&self) -> bool {
        self.complete.len() == self.flights.len()
    }

    /// Whether a transfer has come.
    pub fn is_finished(&self, index: usize) -> bool {
        self.complete[..self.finished].contains(&index)
    }

    /// Whether something is under way.
    pub fn is_flying(&self) -> bool {
        self.finished < self.complete.len()
    }

    /// Whether `progress` has something to do: something is under way, or has yet to be acknowledged.
    pub fn needs_progress(&self) -> bool {
        self.is_flying() || self.collective.lingers()
    }

    /// The transfers that have been complete in this step.
    pub fn complete_so_far(&self) -> &[usize] {
        &self.complete
    }

    /// What collectives are used.
    pub fn algorithms(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.flights.iter().map(|flight| self.collective.algorithm(flight.slot))
    }

    /// A step begins: nothing is complete.
    pub fn reset(&mut self) {
        self.complete.clear();
        (self.started, self.finished) = (0, 0);
        self.times.fill(BucketTime::default());
    }

    /// All that writes this transfer's bytes has been enqueued. The first one behind a whole round begins the next one.
    pub fn complete(&mut self, index: usize, device: &dyn Device) -> Result<()> {
        if self.is_complete() {
            self.reset();
        }
        debug_assert!(!self.complete.contains(&index), "transfer {index} is complete already");
        let flight = &mut self.flights[index];
        flight.written = match &self.at {
            ReduceAt::InPlace => Some(device.record()?),
            ReduceAt::Staged(staging) if !flight.gives.is_empty() => {
                let [own, host] = staging.parts(&flight.gives);
                Some(device.copy_to_host_after(&own, &host, &device.record()?)?)
            }
            // There is nothing to give, but what comes must not come before its place is free.
            ReduceAt::Staged(_) => Some(device.record()?),
            // It is enqueued behind.
            ReduceAt::Device => None,
        };
        self.complete.push(index);
        Ok(())
    }

    /// Starts what can start and moves along what is under way, without waiting. Returns whether anything moved.
    pub fn progress(&mut self, device: &dyn Device, begun: Instant) -> Result<bool> {
        let started = self.started;
        while let Some(&index) = self.complete.get(self.started) {
            let flight = &mut self.flights[index];
            if let Some(event) = &flight.written
                && !event.reached()?
            {
                break;
            }
            flight.begun = trace::now();
            self.collective.start(flight.slot)?;
            self.times[index].start = begun.elapsed().as_secs_f64();
            self.started += 1;
        }
        let mut moved = self.started > started;
        if self.finished < self.started || self.collective.lingers() {
            moved |= self.collective.poll()?;
        }
        while let Some(&index) = self.complete[..self.started].get(self.finished)
            && self.collective.is_done(self.flights[index].slot)
        {
            let time = &mut self.times[index];
            (time.finish, time.exposed) = (begun.elapsed().as_secs_f64(), 0.0);
            self.bring_back(index, device)?;
            self.finished += 1;
        }
        Ok(moved)
    }

    /// Has what came of a transfer copied to the device, beside what is computed.
    fn bring_back(&mut self, index: usize, device: &dyn Device) -> Result<()> {
        let flight = &mut self.flights[index];
        let bytes = flight.bytes.len();
        trace::record(trace::EventKind::Bucket, flight.begun, index, flight.slot, bytes);
        if let ReduceAt::Staged(staging) = &self.at
            && !flight.gets.is_empty()
        {
            let [own, host] = staging.parts(&flight.gets);
            flight.back = Some(device.copy_to_device_async(&host, &own)?);
        }
        Ok(())
    }

    /// The rank had nothing to do but wait for so many seconds.
    pub fn exposed(&mut self, index: usize, seconds: f64) {
        self.times[index].exposed = seconds;
    }

    /// What the device does from now on finds what came.
    pub fn use_on(&mut self, index: usize, device: &dyn Device) -> Result<()> {
        self.flights[index].back.take().map_or(Ok(()), |back| device.wait_event(&back))
    }

    /// What is waited for while a transfer is not done.
    pub fn awaited(&self, index: usize) -> Awaited {
        let slot = self.flights[index].slot;
        let (Words { what, operation }, count) = (self.words, self.flights.len());
        let peers = match self.complete[..self.started].contains(&index) {
            true => self.collective.waiting_for(slot),
            false => Vec::new(),
        };
        Awaited {
            what: format!(
                "{what} {} of {count} ({} {operation})",
                index + 1,
                self.collective.algorithm(slot)
            ),
            peers,
        }
    }

    /// Bytes that this rank has sent so far.
    pub fn sent(&self) -> u64 {
        self.collective.sent()
    }

    /// Ends it in order. Collective.
    pub fn leave(&mut self) -> Result<()> {
        self.collective.leave()
    }
}
