//! Statistics that ranks tell each other between two steps of the plan, while buckets may be under way.

use std::time::Instant;

use super::until;
use crate::collective::Gather;
use crate::device::memory::{bytes_of, bytes_of_mut};
use crate::device::{Device, Event, Memory};
use crate::error::Result;
use crate::plan::Exchange;
use crate::trace;

/// The exchanges of a program, and what carries them.
pub struct Exchanges {
    gather: Gather,
    exchanges: Vec<Exchange>,
    /// The host's copies of what goes out and comes in, page-locked for a device with memory of its own.
    own: Memory,
    all: Memory,
    numbers: Vec<f32>,
    /// The one under way: its number, when it began, and when its numbers have left a device with memory of its own.
    index: usize,
    begun: Instant,
    traced: u64,
    leaves: Option<Event>,
    /// Seconds that this step has spent in them.
    pub seconds: f64,
}

impl Exchanges {
    /// `gather` has room for the longest of them.
    ///
    /// # Errors
    /// Memory lacks.
    pub fn new(device: &dyn Device, gather: Gather, exchanges: Vec<Exchange>) -> Result<Exchanges> {
        let longest = |of: fn(&Exchange) -> usize| exchanges.iter().map(of).max().unwrap_or(0);
        let of_own = device.page_locked(longest(|exchange| exchange.own.bytes()))?;
        let of_all = device.page_locked(longest(|exchange| exchange.all.bytes()))?;
        let numbers = vec![0.0; of_all.bytes() / size_of::<f32>()];
        Ok(Exchanges {
            own: of_own,
            all: of_all,
            numbers,
            gather,
            exchanges,
            index: 0,
            begun: Instant::now(),
            traced: 0,
            leaves: None,
            seconds: 0.0,
        })
    }

    /// Exchange `index` begins: this rank's numbers leave the device.
    pub fn start(&mut self, index: usize, device: &dyn Device) -> Result<()> {
        (self.begun, self.traced, self.index) = (Instant::now(), trace::now(), index);
        let own = &self.exchanges[index].own;
        if device.is_host() {
            let numbers = &mut self.numbers[..own.bytes() / size_of::<f32>()];
            device.download(own, bytes_of_mut(numbers))?;
            return self.gather.start(numbers);
        }
        let here = self.own.slice(0, own.bytes());
        self.leaves = Some(device.copy_to_host_after(own, &here, &device.record()?)?);
        Ok(())
    }

    /// Carries out what was started last: the next step needs what comes. While it waits, `meanwhile` may move
    /// something else along and says whether it did.
    pub fn wait(&mut self, device: &dyn Device, mut meanwhile: impl FnMut() -> Result<bool>) -> Result<()> {
        let Exchange { own, all, ranks, rows, .. } = &self.exchanges[self.index];
        if let Some(leaves) = self.leaves.take() {
            until(device, &leaves, &mut meanwhile)?;
            let numbers = &mut self.numbers[..own.bytes() / size_of::<f32>()];
            self.own.slice(0, own.bytes()).read(bytes_of_mut(numbers));
            self.gather.start(numbers)?;
        }
        let (number, count) = (self.index + 1, self.exchanges.len());
        let what = || format!("exchange {number} of {count} of batch statistics");
        self.gather.wait(what, meanwhile)?;
        let numbers = &mut self.numbers[..all.bytes() / size_of::<f32>()];
        self.gather.read(numbers);
        if let Some((statistics, rows)) = rows {
            statistics.even_out(*rows, numbers, *ranks);
        }
        if device.is_host() {
            device.upload(bytes_of(numbers), all)?;
        } else {
            let of_all = self.all.slice(0, all.bytes());
            of_all.write(bytes_of(numbers));
            device.upload_async(&of_all, all)?;
        }
        trace::record(trace::EventKind::Exchange, self.traced, self.index, 0, 0);
        self.seconds += self.begun.elapsed().as_secs_f64();
        Ok(())
    }
}
