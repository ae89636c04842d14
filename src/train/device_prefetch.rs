//! The next batch on its way to a device with memory of its own, beside the step before it.
//!
//! It is written to page-locked memory of the host while the device computes, copied from there into a place of its own
//! on the device, and from that one to where the program reads, when its step begins. Only a batch that is there is
//! sent ahead: nobody waits for one in the middle of a step, when the messages of buckets want attention.

use super::source::Source;
use crate::data::{Batch, Codes};
use crate::device::memory::bytes_of;
use crate::device::{Device, DeviceEvent, Memory};
use crate::error::Result;
use crate::plan::Program;

/// The parts of a batch, each in memory.
pub struct Inputs {
    pub images: Memory,
    pub labels: Memory,
    /// Which places hold a sample, where codes are read.
    pub samples: Option<Memory>,
    /// Other labels and shares, where samples are mixed.
    pub mixed: Option<[Memory; 2]>,
}

impl Inputs {
    pub fn of(program: &Program) -> Inputs {
        let Program { images, labels, samples, mixed, .. } = program;
        let (images, labels) = (images.clone(), labels.clone());
        Inputs { images, labels, samples: samples.clone(), mixed: mixed.clone() }
    }

    /// Where the same parts lie in a region laid out like another one, in which these lie.
    fn moved(&self, from: &Memory, to: &Memory) -> Inputs {
        let place = |part: &Memory| to.slice(part.address() as usize - from.address() as usize, part.bytes());
        Inputs {
            images: place(&self.images),
            labels: place(&self.labels),
            samples: self.samples.as_ref().map(place),
            mixed: self.mixed.as_ref().map(|parts| parts.each_ref().map(place)),
        }
    }

    /// Hands each part to `write` with its bytes.
    pub fn fill(&self, batch: &Batch, write: impl Fn(&[u8], &Memory) -> Result<()>) -> Result<()> {
        let [inputs, targets] = batch.codes.each_ref().map(bytes);
        let images = if inputs.is_empty() { bytes_of(&batch.images) } else { inputs };
        // Of images that are cut the program reads what is at the beginning.
        write(images.get(..self.images.bytes()).unwrap_or(images), &self.images)?;
        let labels = [targets, bytes_of(&batch.targets)].into_iter().find(|bytes| !bytes.is_empty());
        write(labels.unwrap_or(bytes_of(&batch.labels)), &self.labels)?;
        if let Some(samples) = &self.samples {
            write(bytes_of(&batch.labels), samples)?;
        }
        if let Some([others, shares]) = &self.mixed {
            write(bytes_of(&batch.others), others)?;
            write(bytes_of(&batch.shares), shares)?;
        }
        Ok(())
    }
}

fn bytes(codes: &Codes) -> &[u8] {
    match codes {
        Codes::Bytes(codes) => codes,
        Codes::Words(codes) => bytes_of(codes),
    }
}

pub struct DevicePrefetch {
    /// All inputs of the program, and as much memory on its device and, page-locked, on the host.
    inputs: Memory,
    arrived: Memory,
    host: Memory,
    parts: Inputs,
    batch: Batch,
    /// Step of the run and micro-step of the batch that is under way, and when it is there.
    sent: Option<([usize; 2], DeviceEvent)>,
    /// When the last one had left the host, and when it had been taken to where the program reads.
    left: DeviceEvent,
    taken: DeviceEvent,
}

impl DevicePrefetch {
    /// For a program whose inputs lie in `inputs`; `batch` has room for one.
    ///
    /// # Errors
    /// Memory lacks.
    pub fn new(
        device: &dyn Device,
        program: &Program,
        inputs: &Memory,
        batch: Batch,
    ) -> Result<DevicePrefetch> {
        let (arrived, host) = (device.allocate(inputs.bytes())?, Memory::host(inputs.bytes())?);
        device.pin(&host);
        let parts = Inputs::of(program).moved(inputs, &host);
        let (left, taken) = (device.record()?, device.record()?);
        Ok(DevicePrefetch { inputs: inputs.clone(), arrived, host, parts, batch, sent: None, left, taken })
    }

    /// Gives the program this batch, if it was sent, and exchanges the host's copy.
    pub fn take(&mut self, device: &dyn Device, which: [usize; 2], batch: &mut Batch) -> Result<bool> {
        match self.sent.take() {
            Some((sent, event)) if sent == which => {
                std::mem::swap(batch, &mut self.batch);
                device.wait_event(&event)?;
                device.copy(&self.arrived, &self.inputs)?;
                (self.taken, self.left) = (device.record()?, event);
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Sends a batch, if the source has it at hand: `which` as for `take`, `step` of the epoch.
    pub fn send(
        &mut self,
        device: &dyn Device,
        source: &mut Source,
        which: [usize; 2],
        step: usize,
    ) -> Result<()> {
        if !source.has(step, which[1]) {
            return Ok(());
        }
        source.fill(step, which[1], &mut self.batch)?;
        // The step that is under way may still wait for what was sent before.
        while !self.left.reached()? {
            std::thread::yield_now();
        }
        self.parts.fill(&self.batch, |bytes, part| {
            part.write(bytes);
            Ok(())
        })?;
        let there = device.copy_to_device_after(&self.host, &self.arrived, &self.taken)?;
        self.sent = Some((which, there));
        Ok(())
    }
}
