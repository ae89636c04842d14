//! Statistics that ranks tell each other between two steps of the plan, while buckets may be under way.

use std::time::Instant;

use crate::collective::Gather;
use crate::comm::{Awaited, Wait};
use crate::device::Device;
use crate::device::memory::{bytes_of, bytes_of_mut};
use crate::error::Result;
use crate::plan::Exchange;
use crate::trace;

/// The exchanges of a program, and what carries them.
pub struct Exchanges {
    gather: Gather,
    exchanges: Vec<Exchange>,
    /// Host copies of what goes out and comes in.
    own: Vec<f32>,
    all: Vec<f32>,
    /// Seconds that this step has spent in them.
    pub seconds: f64,
}

impl Exchanges {
    /// `gather` has room for the longest of them.
    pub fn new(gather: Gather, exchanges: Vec<Exchange>) -> Exchanges {
        let longest = |of: fn(&Exchange) -> usize| exchanges.iter().map(of).max().unwrap_or(0) / 4;
        Exchanges {
            own: vec![0.0; longest(|exchange| exchange.own.bytes())],
            all: vec![0.0; longest(|exchange| exchange.all.bytes())],
            gather,
            exchanges,
            seconds: 0.0,
        }
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
        let (numbers, of_all) = (&mut self.own[..own.bytes() / 4], &mut self.all[..all.bytes() / 4]);
        device.download(own, bytes_of_mut(numbers))?;
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
        self.gather.read(of_all);
        device.upload(bytes_of(of_all), all)?;
        trace::record(trace::EventKind::Exchange, traced, index, 0, 0);
        self.seconds += begun.elapsed().as_secs_f64();
        Ok(())
    }
}
