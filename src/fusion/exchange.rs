//! Statistics that ranks tell each other between two steps of the plan, while buckets may be under way.

use std::time::Instant;

use crate::collective::Gather;
use crate::comm::{Awaited, Wait};
use crate::device::memory::{bytes_of, bytes_of_mut};
use crate::device::{Device, Memory};
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
        Ok(Exchanges { own: of_own, all: of_all, numbers, gather, exchanges, seconds: 0.0 })
    }

    /// If this step of the plan ends in an exchange, carries it out: the next step needs what comes. While it waits,
    /// `meanwhile` may move something else along and says whether it did.
    pub fn after_step(
        &mut self,
        step: usize,
        device: &dyn Device,
        mut meanwhile: impl FnMut() -> Result<bool>,
    ) -> Result<()> {
        let Ok(index) = self.exchanges.binary_search_by_key(&step, |exchange| exchange.step) else {
            return Ok(());
        };
        let (begun, traced) = (Instant::now(), trace::now());
        let Exchange { own, all, .. } = &self.exchanges[index];
        let (here, of_all) = (self.own.slice(0, own.bytes()), self.all.slice(0, all.bytes()));
        let numbers = &mut self.numbers[..own.bytes() / size_of::<f32>()];
        if device.is_host() {
            device.download(own, bytes_of_mut(numbers))?;
        } else {
            let arrives = device.copy_to_host_after(own, &here, &device.record()?)?;
            while !device.reached(&arrives)? {
                if !meanwhile()? {
                    std::thread::yield_now();
                }
            }
            here.read(bytes_of_mut(numbers));
        }
        self.gather.start(numbers)?;
        let mut wait = Wait::new();
        while !self.gather.is_done() {
            match self.gather.poll()? || meanwhile()? {
                true => wait.moved(),
                false => wait.idle(|| Awaited {
                    what: format!("exchange {} of {} of batch statistics", index + 1, self.exchanges.len()),
                    peers: self.gather.waiting_for(),
                })?,
            }
        }
        drop(wait);
        let numbers = &mut self.numbers[..all.bytes() / size_of::<f32>()];
        self.gather.read(numbers);
        if device.is_host() {
            device.upload(bytes_of(numbers), all)?;
        } else {
            of_all.write(bytes_of(numbers));
            device.upload_async(&of_all, all)?;
        }
        trace::record(trace::EventKind::Exchange, traced, index, 0, 0);
        self.seconds += begun.elapsed().as_secs_f64();
        Ok(())
    }
}
