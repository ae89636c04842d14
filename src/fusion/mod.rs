//! Buckets in flight: the only meeting of the plan's gradients and the collectives.
//!
//! The plan says after which step a bucket is complete. `after_step` starts it there and moves along whatever is
//! under way, on the thread that runs the steps; so does `reach` while a device with a queue computes; `finish` waits
//! for the rest. What is waited for there when nothing computes any more, no computation hid: that is the exposed
//! communication. The last bucket carries the step's own numbers (`tail`). Between steps ranks also exchange the
//! statistics of synchronised normalisations (`exchange`). Gradients may leave compressed (`compress`), or be added up
//! by the devices (`on_device`, `peers`). May use: `plan`, `collective`, `device`, `comm`. Used by: `train`.

pub mod adaptive;
pub mod compress;
mod exchange;
mod on_device;
mod peers;
mod tail;

use std::ops::Range;
use std::time::Instant;

use crate::collective::Collective;
use crate::comm::{Awaited, Wait};
use crate::device::{Device, Event, Memory};
use crate::error::{Error, Result};
use crate::plan::Bucket;
use crate::trace::{self, BucketTime};

pub use exchange::Exchanges;
pub use on_device::{OnDevice, adds_up};
pub use peers::Peers;
pub use tail::{Tail, Values};

/// Bytes that devices of several ranks find each other by, as ranks pass them on.
fn as_text(bytes: &[u8]) -> String {
    bytes.iter().map(u8::to_string).collect::<Vec<_>>().join(" ")
}

fn from_text(text: &str) -> Result<Vec<u8>> {
    let damaged = |_| Error::internal("what GPUs find each other by came damaged from another rank");
    text.split(' ').map(str::parse).collect::<std::result::Result<_, _>>().map_err(damaged)
}

/// Times that what is under way is moved along between two steps, as long as it moves. Each time ends one message a
/// bucket, or sums one chunk: with one a step a link would rest for most of it.
const POLLS: usize = 64;

/// The buckets of a plan, and the collective that averages them.
pub struct Fusion {
    allreduce: Box<dyn Collective>,
    buckets: Vec<InFlight>,
    times: Vec<BucketTime>,
    /// Where ranks share the statistics of normalisations.
    exchanges: Option<Exchanges>,
    overlap: bool,
    begun: Instant,
    at: ReduceAt,
    tail: Option<Tail>,
    /// Buckets whose step has run; of these the first `started` have been started.
    complete: usize,
    started: usize,
    finished: usize,
    /// The point behind the last step, where the buckets do not tell, and when the device was seen to have come to it.
    computed: Option<Event>,
    computed_at: Option<f64>,
}

/// Where gradients are averaged.
pub enum ReduceAt {
    /// As they lie: in the host's memory, or in a device's that the MPI library reaches.
    InPlace,
    /// On the device, and copied to the host to be reduced.
    Staged(Staging),
    /// On a device with memory of its own: sums are enqueued behind the steps (`OnDevice`), or there is nothing to sum.
    Device,
}

/// The gradients on a device with memory of its own, and the memory of the host in which they are averaged: a bucket is
/// fetched when it is complete, and put back when it is averaged, both beside what the device computes.
pub struct Staging {
    /// On the device.
    pub device: Memory,
    /// Its copy on the host, pinned.
    pub host: Memory,
}

impl Staging {
    fn parts(&self, bytes: &Range<usize>) -> [Memory; 2] {
        [&self.device, &self.host].map(|memory| memory.slice(bytes.start, bytes.len()))
    }
}

struct InFlight {
    after: usize,
    slot: usize,
    /// When the bucket is where the collective finds it: a device may still be writing, or copying.
    written: Option<Event>,
    /// When its sum is back on the device.
    back: Option<Event>,
    bytes: Range<usize>,
    /// For the timeline.
    begun: u64,
}

impl Fusion {
    /// Prepares a collective for every bucket. Without `overlap` all of them start in `finish`.
    pub fn new(mut allreduce: Box<dyn Collective>, buckets: &[Bucket], overlap: bool) -> Result<Fusion> {
        let mut flights = Vec::with_capacity(buckets.len());
        for bucket in buckets {
            let slot = allreduce.prepare(bucket.bytes.start / 4..bucket.bytes.end / 4)?;
            let (after, bytes) = (bucket.after, bucket.bytes.clone());
            flights.push(InFlight { after, slot, written: None, back: None, bytes, begun: 0 });
        }
        Ok(Fusion {
            allreduce,
            times: vec![BucketTime::default(); flights.len()],
            buckets: flights,
            exchanges: None,
            overlap,
            begun: Instant::now(),
            at: ReduceAt::InPlace,
            tail: None,
            complete: 0,
            started: 0,
            finished: 0,
            computed: None,
            computed_at: None,
        })
    }

    /// With exchanges between the steps of the program.
    pub fn with_exchanges(self, exchanges: Option<Exchanges>) -> Fusion {
        Fusion { exchanges, ..self }
    }

    /// For a device with memory of its own.
    pub fn at(self, at: ReduceAt) -> Fusion {
        Fusion { at, ..self }
    }

    /// With numbers of the step at the end of the last bucket.
    pub fn with_tail(self, tail: Tail) -> Fusion {
        Fusion { tail: Some(tail), ..self }
    }

    /// Writes the tail: before the last bucket is complete.
    pub fn write_tail(&self, device: &dyn Device, values: &Values) -> Result<()> {
        self.tail.as_ref().map_or(Ok(()), |tail| tail.write(device, values))
    }

    /// The sum of all ranks' tails, when all buckets are finished.
    pub fn read_tail(&mut self, device: &dyn Device) -> Result<Values> {
        self.tail.as_mut().map_or(Ok(Values::default()), |tail| tail.read(device))
    }

    /// Ends what sums the buckets in order. Collective.
    pub fn leave(mut self) -> Result<()> {
        self.allreduce.leave()
    }

    /// What sums the buckets: "shm", or "shm and recursive-doubling" where they differ.
    pub fn algorithms(&self) -> String {
        let mut names: Vec<&str> = Vec::new();
        for bucket in &self.buckets {
            let name = self.allreduce.algorithm(bucket.slot);
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names.join(" and ")
    }

    /// The buckets' times in the last step.
    pub fn times(&self) -> &[BucketTime] {
        &self.times
    }

    /// Seconds that exchanges took in the last step.
    pub fn exchange_seconds(&self) -> f64 {
        self.exchanges.as_ref().map_or(0.0, |exchanges| exchanges.seconds)
    }

    /// Begins a step; `begun` is its clock's zero.
    pub fn begin(&mut self, begun: Instant) {
        self.begun = begun;
        if let Some(exchanges) = &mut self.exchanges {
            exchanges.seconds = 0.0;
        }
        (self.complete, self.started, self.finished) = (0, 0, 0);
        (self.computed, self.computed_at) = (None, None);
    }

    /// Waits until the device comes to a point; buckets go on meanwhile. This is no wait for other ranks.
    pub fn reach(&mut self, device: &dyn Device, event: &Event) -> Result<()> {
        while !device.reached(event)? {
            if !(self.overlap && self.progress(device)?) {
                std::thread::yield_now();
            }
        }
        Ok(())
    }

    /// To be called after each step of the plan, forward and backward: what the step gives to other ranks is given,
    /// what the next one needs of theirs is there when this returns. Buckets go on meanwhile.
    pub fn exchange(&mut self, step: usize, device: &dyn Device) -> Result<()> {
        let Some(mut exchanges) = self.exchanges.take() else { return Ok(()) };
        let outcome = exchanges.after_step(step, device, || match self.overlap {
            true => self.progress(device),
            false => Ok(false),
        });
        self.exchanges = Some(exchanges);
        outcome
    }

    /// To be called after each step of the plan has been enqueued: starts the buckets that it completes and makes
    /// progress on those under way.
    pub fn after_step(&mut self, step: usize, device: &dyn Device) -> Result<()> {
        let last = self.buckets.last().is_some_and(|bucket| bucket.after <= step);
        let due = self.overlap || last;
        while due && self.complete < self.buckets.len() && self.buckets[self.complete].after <= step {
            let bucket = &mut self.buckets[self.complete];
            bucket.written = match &self.at {
                ReduceAt::InPlace => Some(device.record()?),
                ReduceAt::Staged(staging) => {
                    let [own, host] = staging.parts(&bucket.bytes);
                    Some(device.copy_to_host_after(&own, &host, &device.record()?)?)
                }
                // The sum is enqueued behind.
                ReduceAt::Device => None,
            };
            self.complete += 1;
            // Else the last bucket is written at that point.
            if self.complete == self.buckets.len() && !matches!(self.at, ReduceAt::InPlace) {
                self.computed = Some(device.record()?);
            }
        }
        if self.overlap && self.complete > 0 {
            for _ in 0..POLLS {
                if !self.progress(device)? {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Starts what can start and moves along what is under way, without waiting. Returns whether anything moved.
    fn progress(&mut self, device: &dyn Device) -> Result<bool> {
        let started = self.started;
        while self.started < self.complete {
            let bucket = &self.buckets[self.started];
            if let Some(event) = &bucket.written
                && !device.reached(event)?
            {
                break;
            }
            let begun = trace::now();
            self.allreduce.start(bucket.slot)?;
            self.buckets[self.started].begun = begun;
            self.times[self.started].start = self.begun.elapsed().as_secs_f64();
            self.started += 1;
        }
        let mut moved = self.started > started;
        if self.finished < self.started {
            moved |= self.allreduce.poll()?;
        }
        while self.finished < self.started && self.allreduce.is_done(self.buckets[self.finished].slot) {
            let now = self.begun.elapsed().as_secs_f64();
            let time = &mut self.times[self.finished];
            (time.finish, time.exposed) = (now, 0.0);
            let bucket = &self.buckets[self.finished];
            trace::record(
                trace::EventKind::Bucket,
                bucket.begun,
                self.finished,
                bucket.slot,
                bucket.bytes.len(),
            );
            self.finished += 1;
            self.bring_back(device)?;
        }
        Ok(moved)
    }

    /// Has the sum of the bucket that was finished last copied to where the device and the host want it, beside what is
    /// computed.
    fn bring_back(&mut self, device: &dyn Device) -> Result<()> {
        let bucket = &mut self.buckets[self.finished - 1];
        if let ReduceAt::Staged(staging) = &self.at {
            let [own, host] = staging.parts(&bucket.bytes);
            bucket.back = Some(device.copy_to_device_async(&host, &own)?);
        }
        match &mut self.tail {
            Some(tail) if self.finished == self.buckets.len() => tail.summed(device, || match &self.at {
                ReduceAt::Device => device.record(),
                _ => Ok(Event(None)),
            }),
            _ => Ok(()),
        }
    }

    /// Whether the device has yet to come to the end of the steps, all of which are enqueued.
    fn computing(&mut self, device: &dyn Device) -> Result<bool> {
        let end = self.computed.as_ref().or_else(|| self.buckets.last()?.written.as_ref());
        let computed = match end {
            Some(end) if self.computed_at.is_none() => device.reached(end)?,
            _ => true,
        };
        if computed && self.computed_at.is_none() {
            self.computed_at = Some(self.begun.elapsed().as_secs_f64());
        }
        Ok(!computed)
    }

    /// What is waited for while a bucket is not done.
    fn awaited(&self, index: usize) -> Awaited {
        let algorithm = self.allreduce.algorithm(self.buckets[index].slot);
        let what = format!("bucket {} of {} ({algorithm} allreduce)", index + 1, self.buckets.len());
        let peers = if index < self.started {
            self.allreduce.waiting_for(self.buckets[index].slot)
        } else {
            Vec::new()
        };
        Awaited { what, peers }
    }

    /// Waits for every bucket, in order, and calls `averaged` with the index of each as soon as it is done; but not
    /// before `readers`, the other ranks that still read the parameters that it will write, are none.
    pub fn finish(
        &mut self,
        device: &dyn Device,
        readers: impl Fn() -> Vec<usize>,
        mut averaged: impl FnMut(usize) -> Result<()>,
    ) -> Result<()> {
        if device.is_host() {
            self.computed_at = Some(0.0);
        }
        while !self.overlap && self.computing(device)? {
            std::thread::yield_now();
        }
        for index in 0..self.buckets.len() {
            let waited_from = self.begun.elapsed().as_secs_f64();
            if self.finished <= index || !readers().is_empty() {
                let mut wait = Wait::new();
                let begun = trace::now();
                while self.finished <= index || !readers().is_empty() {
                    match self.progress(device)? {
                        true => wait.moved(),
                        // Others wait for this rank, if anybody waits.
                        false if self.computing(device)? => std::thread::yield_now(),
                        false if self.finished <= index => wait.idle(|| self.awaited(index))?,
                        false => wait.idle(|| Awaited {
                            what: "the end of the backward pass".into(),
                            peers: readers(),
                        })?,
                    }
                }
                drop(wait);
                trace::record(trace::EventKind::Wait, begun, index, 0, 0);
                let now = self.begun.elapsed().as_secs_f64();
                self.times[index].exposed = now - self.computed_at.unwrap_or(now).max(waited_from);
            }
            if let Some(back) = self.buckets[index].back.take() {
                device.wait_event(&back)?;
            }
            averaged(index)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::ops::Range;
    use std::rc::Rc;

    use super::*;
    use crate::device::reference::Reference;

    /// Records what is asked of it; each bucket is done after two polls.
    struct Script(Rc<RefCell<Vec<String>>>, Vec<usize>);

    impl Collective for Script {
        fn name(&self) -> &'static str {
            "script"
        }
        fn prepare(&mut self, range: Range<usize>) -> Result<usize> {
            self.0.borrow_mut().push(format!("prepare {range:?}"));
            self.1.push(0);
            Ok(self.1.len() - 1)
        }
        fn start(&mut self, slot: usize) -> Result<()> {
            self.0.borrow_mut().push(format!("start {slot}"));
            self.1[slot] = 2;
            Ok(())
        }
        fn poll(&mut self) -> Result<bool> {
            self.1.iter_mut().for_each(|left| *left = left.saturating_sub(1));
            Ok(true)
        }
        fn is_done(&self, slot: usize) -> bool {
            self.1[slot] == 0
        }
    }

    fn run(overlap: bool) -> Vec<String> {
        let said = Rc::new(RefCell::new(Vec::new()));
        let buckets = [Bucket { bytes: 0..64, after: 1 }, Bucket { bytes: 64..192, after: 3 }];
        let mut fusion = Fusion::new(Box::new(Script(said.clone(), Vec::new())), &buckets, overlap).unwrap();
        fusion.begin(Instant::now());
        for step in 0..4 {
            said.borrow_mut().push(format!("step {step}"));
            fusion.after_step(step, &Reference).unwrap();
        }
        let heard = said.clone();
        fusion
            .finish(&Reference, Vec::new, |bucket| {
                heard.borrow_mut().push(format!("averaged {bucket}"));
                Ok(())
            })
            .unwrap();
        assert!(fusion.times().iter().all(|time| time.finish >= time.start));
        said.take()
    }

    #[test]
    fn a_bucket_starts_right_after_the_step_that_completes_it() {
        let expected = [
            "prepare 0..16",
            "prepare 16..48",
            "step 0",
            "step 1",
            "start 0",
            "step 2",
            "step 3",
            "start 1",
            "averaged 0",
            "averaged 1",
        ];
        assert_eq!(run(true), expected);
    }

    #[test]
    fn without_overlap_every_bucket_starts_after_the_last_step() {
        let said = run(false);
        let last_step = said.iter().position(|line| line == "step 3").unwrap();
        assert!(said.iter().position(|line| line == "start 0").unwrap() > last_step);
        assert_eq!(said.last().unwrap(), "averaged 1");
    }
}
