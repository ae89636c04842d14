//! Gradient compression with error feedback (`--compress`): of every gradient a part is sent, and what is not sent is
//! kept and added to the next one.
//!
//! `Compressed` takes the place of an allreduce, so that buckets leave, overlap and end as they always do. Two kinds of
//! schemes: messages of all ranks are gathered and decoded on every rank in the order of ranks (`codec`: `top_k`,
//! `one_bit`, `two_bit`), or factors are summed (`powersgd`). Either way all ranks end with the same bits. What is no
//! matrix (biases, normalisations) and the tail of the last bucket (the step's loss) is summed as it is. `split`
//! decides from the plan what lies where, `tensor` brings gradients into plain order, `work` is what is done to them on
//! the host, `on_device` where they lie on a GPU.
//!
//! docs/algorithms.md has steps and bytes.

pub mod codec;
mod on_device;
mod one_bit;
pub(crate) mod powersgd;
mod split;
mod tensor;
mod top_k;
mod two_bit;
mod work;

pub use on_device::code;
pub use split::How;
pub use work::Kept;

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;
use std::time::Instant;

use crate::collective::{Collective, Operation, Route, Selection, Slot};
use crate::comm::{Region, Topology, World};
use crate::config::{Compression, Wire};
use crate::device::{CodecKind, Memory};
use crate::error::{Error, Result};

use on_device::OnDevice;
use split::Split;
use work::{Compressor, Worker};

/// Elements that one poll works on, at least: some 1 MB, about a millisecond.
const WORK: usize = 4 * codec::PIECE;

/// Two regions, and what carries them between ranks.
pub struct Carriers {
    /// What is summed over ranks, and its sum.
    pub summed: (Rc<Region>, Box<dyn Collective>),
    /// What is gathered; with PowerSGD the second sum.
    pub second: (Rc<Region>, Box<dyn Collective>),
}

/// The sum over ranks of compressed gradients.
pub struct Compressed {
    name: &'static str,
    split: Split,
    worker: Box<dyn Compressor>,
    carriers: Carriers,
    /// The slots of each bucket in the two carriers.
    slots: Vec<[Slot; 2]>,
    /// Buckets in flight, the oldest first.
    flying: Vec<Flight>,
    account: Account,
}

/// How far a bucket is.
struct Flight {
    bucket: usize,
    phase: usize,
    /// Units of the phase that are done.
    done: usize,
    /// Whether the messages after the phase are under way.
    travelling: bool,
}

/// What compression comes to, for the record, and its state, which a run that goes on needs again.
#[derive(Clone)]
pub struct Account {
    /// The residuals, and the right factors of PowerSGD.
    pub state: Vec<Kept>,
    /// Bytes that a rank sends in a step by rings.
    pub sent: u64,
    /// The same without compression.
    pub uncompressed: u64,
    seconds: Rc<Cell<f64>>,
}

impl Account {
    /// Seconds spent on encoding and decoding since the last call.
    pub fn take_seconds(&self) -> f64 {
        self.seconds.take()
    }
}

/// Where gradients lie that are compressed.
pub enum At<'a> {
    /// In the host's memory, whatever the device.
    Host(&'a Memory),
    /// In that of a device that encodes them so. The host's regions are given as memory.
    Device(CodecKind, &'a Memory, fn(&Rc<Region>) -> Memory),
}

/// Bytes that a rank has for compression.
#[derive(Default)]
pub struct Bytes {
    /// Other ranks' memory that it maps.
    pub mapped: usize,
    /// In this process's own memory.
    pub own: usize,
    /// In the memory of its device.
    pub on_device: usize,
}

/// What compression will take; with the step's own numbers or without.
pub fn memory(how: &How, selection: &Selection, world: &Topology) -> Bytes {
    let split = Split::new(how);
    let sum = |of| selection.memory(world, &split.bytes_of(of));
    let [mut mapped, mut own] = sum(|bucket| bucket.summed.clone());
    if let Compression::PowerSgd { .. } = how.scheme {
        let second = sum(|bucket| bucket.second.clone());
        (mapped, own) = (mapped + second[0], own + second[1]);
    }
    match code(how.scheme, how.ranks, how.device).filter(|_| how.with_tail) {
        None => Bytes { mapped, own: own + split.bytes(), on_device: 0 },
        Some(_) => Bytes { mapped, own: own + split.travelling(), on_device: on_device::bytes(&split) },
    }
}

impl Carriers {
    fn regions(&self) -> [Rc<Region>; 2] {
        [self.summed.0.clone(), self.second.0.clone()]
    }

    /// `selection` is how sums are made; messages go round a ring. Collective.
    fn new(scheme: Compression, selection: &Selection, world: &World, split: &Split) -> Result<Carriers> {
        let summed = |words: usize, of| -> Result<(Rc<Region>, Box<dyn Collective>)> {
            let shared = selection.wants_shared(&split.bytes_of(of));
            let region = Region::allocate(world, 4 * words, shared)?;
            let sum = selection.build(world, &region)?;
            Ok((region, sum))
        };
        let second = match scheme {
            Compression::PowerSgd { .. } => summed(split.second, |bucket| bucket.second.clone())?,
            _ => {
                let region = Region::allocate(world, 4 * split.second, false)?;
                let gather = Operation::Allgather.make(Route::Ring, Wire::F32, world, &region)?;
                (region, gather)
            }
        };
        Ok(Carriers { summed: summed(split.summed, |bucket| bucket.summed.clone())?, second })
    }
}

impl Compressed {
    /// For the buckets of a plan, with the step's own numbers in the last one or without; `selection` sums what is
    /// summed. Collective.
    ///
    /// # Errors
    /// The same on every rank.
    pub fn new(how: &How, selection: &Selection, world: &World, at: At) -> Result<Compressed> {
        let split = Split::new(how);
        let carriers = Carriers::new(how.scheme, selection, world, &split)?;
        let (rank, regions) = (world.rank(), carriers.regions());
        let worker: Result<Box<dyn Compressor>> = match at {
            At::Host(gradients) => {
                Worker::new(how, &split, regions, rank, gradients).map(|worker| Box::new(worker) as _)
            }
            At::Device(code, gradients, as_memory) => {
                let [summed, messages] = [0, 1].map(|which| as_memory(&regions[which]));
                OnDevice::new((code, how), &split, [&summed, &messages], rank, gradients)
                    .map(|worker| Box::new(worker) as _)
            }
        };
        Ok(Compressed::over(how, split, carriers, world.agree(worker)?))
    }

    /// The same over given carriers.
    fn over(how: &How, split: Split, carriers: Carriers, worker: Box<dyn Compressor>) -> Compressed {
        let [sent, uncompressed] = split.sent(how.scheme, how.ranks);
        let account = Account { state: worker.state(), sent, uncompressed, seconds: Rc::default() };
        let name = match how.scheme {
            Compression::TopK { .. } => "topk",
            Compression::OneBit => "1bit",
            Compression::TwoBit { .. } => "2bit",
            Compression::PowerSgd { .. } => "powersgd",
        };
        Compressed { name, split, worker, carriers, slots: Vec::new(), flying: Vec::new(), account }
    }

    /// For whoever keeps the record and the state.
    pub fn account(&self) -> Account {
        self.account.clone()
    }

    /// Moves bucket `index` of those in flight along, if its messages are here. They start when those of the bucket
    /// before it have, so that all ranks start the messages of a phase in the same order; but a bucket is encoded
    /// before that: a device has its encoding behind the steps that its gradients are of, not behind the backward
    /// pass. Returns the elements worked on, and whether anything moved.
    fn advance(&mut self, index: usize, most: usize) -> Result<(usize, bool)> {
        let [mut worked, mut moved] = [0, 0];
        let ahead = index.checked_sub(1).map(|before| {
            let before = &self.flying[before];
            (before.phase, before.travelling)
        });
        let follows = |phase: usize| ahead.is_some_and(|ahead| ahead < (phase, true));
        let at = &mut self.flying[index];
        let (bucket, slots) = (&self.split.buckets[at.bucket], self.slots[at.bucket]);
        if at.travelling && arrived(&self.carriers, slots) {
            (at.travelling, at.done, at.phase) = (false, 0, at.phase + 1);
            moved += 1;
        }
        if at.travelling || at.phase > 0 && follows(at.phase) {
            return Ok((0, moved > 0));
        }
        let begun = Instant::now();
        let Some(units) = bucket.phases.get(at.phase) else { return Ok((0, moved > 0)) };
        while at.done < units.len() && worked < most {
            worked += self.worker.run(bucket, at.bucket, &units[at.done])?;
            at.done += 1;
            moved += 1;
        }
        self.account.seconds.set(self.account.seconds.get() + begun.elapsed().as_secs_f64());
        if at.done == units.len() && !follows(at.phase) && self.worker.is_settled(at.bucket)? {
            moved += 1;
            match at.phase + 1 == bucket.phases.len() {
                true => at.phase += 1,
                false => {
                    at.travelling = true;
                    let Carriers { summed, second } = &mut self.carriers;
                    let factors = bucket.message == 0;
                    if at.phase == 0 {
                        summed.1.start(slots[0])?;
                    }
                    // Messages go with the first sum, right factors after it.
                    if at.phase == 1 || !factors {
                        second.1.start(slots[1])?;
                    }
                }
            }
        }
        Ok((worked, moved > 0))
    }
}

fn arrived(carriers: &Carriers, slots: [Slot; 2]) -> bool {
    carriers.summed.1.is_done(slots[0]) && carriers.second.1.is_done(slots[1])
}

impl Collective for Compressed {
    fn name(&self) -> &'static str {
        self.name
    }

    fn prepare(&mut self, range: Range<usize>) -> Result<Slot> {
        let slot = self.slots.len();
        let bucket = self.split.buckets.get(slot).filter(|bucket| bucket.range == range);
        let bucket = bucket.ok_or_else(|| Error::internal(format!("{range:?} is not bucket {slot}")))?;
        let first = self.carriers.summed.1.prepare(bucket.summed.clone())?;
        let second = self.carriers.second.1.prepare(bucket.second.clone())?;
        self.slots.push([first, second]);
        Ok(slot)
    }

    fn start(&mut self, slot: Slot) -> Result<()> {
        debug_assert!(self.is_done(slot), "slot {slot} is in flight");
        self.flying.push(Flight { bucket: slot, phase: 0, done: 0, travelling: false });
        Ok(())
    }

    fn poll(&mut self) -> Result<bool> {
        let mut moved = self.carriers.summed.1.poll()?;
        moved |= self.carriers.second.1.poll()?;
        let mut left = WORK;
        for index in 0..self.flying.len() {
            let (worked, any) = self.advance(index, left)?;
            left = left.saturating_sub(worked);
            moved |= any;
        }
        let phases = |bucket: usize| self.split.buckets[bucket].phases.len();
        self.flying.retain(|flight| flight.phase < phases(flight.bucket));
        Ok(moved)
    }

    fn run_ahead(&mut self, bytes: u64) -> Result<u64> {
        let left = self.carriers.summed.1.run_ahead(bytes)?;
        self.carriers.second.1.run_ahead(left)
    }

    fn is_done(&self, slot: Slot) -> bool {
        self.flying.iter().all(|flight| flight.bucket != slot)
    }

    fn lingers(&self) -> bool {
        self.carriers.summed.1.lingers() || self.carriers.second.1.lingers()
    }

    fn waiting_for(&self, slot: Slot) -> Vec<usize> {
        let [first, second] = self.slots[slot];
        let (summed, gathered) = (&self.carriers.summed.1, &self.carriers.second.1);
        if summed.is_done(first) { gathered.waiting_for(second) } else { summed.waiting_for(first) }
    }
}

#[cfg(test)]
mod tests;
