//! What ranks tell each other between two steps of the plan, while buckets may be under way: statistics of synchronised
//! normalisations, and activations and gradients of split layers.

use super::InFlight;
use crate::collective::{AllToAll, Gather, InGroups};
use crate::comm::{Awaited, World};
use crate::device::memory::{bytes_of, bytes_of_mut};
use crate::device::{Device, DeviceEvent, Memory};
use crate::error::Result;
use crate::plan::{Exchange, Kind};
use crate::trace;

/// The exchanges of a program, and what carries them.
pub struct Exchanges {
    /// One of each kind and number of ranks, and which of them each exchange is.
    ways: Vec<Box<dyn InGroups>>,
    way_of: Vec<usize>,
    exchanges: Vec<Exchange>,
    /// The host's copies of what goes out and comes in, page-locked for a device with memory of its own.
    own: Memory,
    all: Memory,
    numbers: Vec<f32>,
    /// The one under way: its number, when it began, and when its numbers have left a device with memory of its own.
    index: usize,
    traced: u64,
    leaves: Option<DeviceEvent>,
}

impl Exchanges {
    /// Between ranks of this world. Collective.
    ///
    /// # Errors
    /// The same on every rank: memory lacks.
    pub fn new(world: &World, device: &dyn Device, exchanges: Vec<Exchange>) -> Result<Exchanges> {
        let mut kinds: Vec<(Kind, usize)> = Vec::new();
        let mut way_of = Vec::with_capacity(exchanges.len());
        for Exchange { kind, ranks, .. } in &exchanges {
            let known = kinds.iter().position(|known| known == &(*kind, *ranks));
            way_of.push(known.unwrap_or(kinds.len()));
            kinds.extend(known.is_none().then_some((*kind, *ranks)));
        }
        let mut ways: Vec<Box<dyn InGroups>> = Vec::new();
        for (kind, ranks) in kinds {
            let alike = exchanges.iter().filter(|other| (other.kind, other.ranks) == (kind, ranks));
            let longest = alike.map(|exchange| exchange.own.bytes() / 4).max().unwrap_or(0);
            ways.push(match kind {
                Kind::AllToAll => Box::new(AllToAll::new(world, ranks, longest)?),
                _ => Box::new(Gather::new(world, ranks, longest)?),
            });
        }
        let make = || {
            let longest = |of: fn(&Exchange) -> usize| exchanges.iter().map(of).max().unwrap_or(0);
            let of_own = device.page_locked(longest(|exchange| exchange.own.bytes()))?;
            let of_all = device.page_locked(longest(|exchange| exchange.all.bytes()))?;
            let numbers = vec![0.0; of_all.bytes() / size_of::<f32>()];
            Ok(Exchanges {
                own: of_own,
                all: of_all,
                numbers,
                ways,
                way_of,
                exchanges,
                index: 0,
                traced: 0,
                leaves: None,
            })
        };
        world.agree(make())
    }

    /// Carries out those behind a step, if any: where nothing else is under way.
    pub fn behind(&mut self, step: usize, device: &dyn Device) -> Result<()> {
        for index in 0..self.exchanges.len() {
            if self.exchanges[index].step == step {
                self.start(index, device)?;
                self.wait(index, device)?;
                self.finish(index, device)?;
            }
        }
        Ok(())
    }

    /// What this rank tells the others, on the host, goes to them.
    fn tell(&mut self, index: usize) -> Result<()> {
        let words = self.exchanges[index].own.bytes() / size_of::<f32>();
        self.ways[self.way_of[index]].start(&self.numbers[..words])
    }
}

impl InFlight for Exchanges {
    /// This rank's numbers leave the device. One exchange is under way at a time: the next step needs what comes.
    fn start(&mut self, index: usize, device: &dyn Device) -> Result<()> {
        (self.traced, self.index) = (trace::now(), index);
        let own = &self.exchanges[index].own;
        if device.is_host() {
            device.download(own, bytes_of_mut(&mut self.numbers[..own.bytes() / size_of::<f32>()]))?;
            return self.tell(index);
        }
        let here = self.own.slice(0, own.bytes());
        self.leaves = Some(device.copy_to_host_after(own, &here, &device.record()?)?);
        Ok(())
    }

    fn progress(&mut self, _: &dyn Device) -> Result<bool> {
        let Some(leaves) = &self.leaves else { return self.ways[self.way_of[self.index]].poll() };
        if !leaves.reached()? {
            return Ok(false);
        }
        self.leaves = None;
        let bytes = self.exchanges[self.index].own.bytes();
        self.own.slice(0, bytes).read(bytes_of_mut(&mut self.numbers[..bytes / size_of::<f32>()]));
        self.tell(self.index)?;
        Ok(true)
    }

    fn is_flying(&self) -> bool {
        self.leaves.is_some() || self.way_of.get(self.index).is_some_and(|&way| !self.ways[way].is_done())
    }

    fn has_come(&self, _: usize) -> bool {
        !self.is_flying()
    }

    fn is_on_device(&self, _: usize) -> bool {
        self.leaves.is_some()
    }

    fn finish(&mut self, index: usize, device: &dyn Device) -> Result<()> {
        let Exchange { all, ranks, rows, .. } = &self.exchanges[index];
        let numbers = &mut self.numbers[..all.bytes() / size_of::<f32>()];
        self.ways[self.way_of[index]].read(numbers);
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
        trace::record(trace::EventKind::Exchange, self.traced, index, 0, 0);
        Ok(())
    }

    fn awaited(&self, index: usize) -> Awaited {
        let (label, count) = (&self.exchanges[index].label, self.exchanges.len());
        let peers = match self.leaves {
            Some(_) => Vec::new(),
            None => self.ways[self.way_of[index]].waiting_for(),
        };
        Awaited { what: format!("{label}, exchange {} of {count}", index + 1), peers }
    }

    fn sent(&self) -> u64 {
        self.ways.iter().map(|way| way.sent()).sum()
    }
}
