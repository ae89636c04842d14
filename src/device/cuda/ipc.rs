//! Memory of the other GPUs of a node, by CUDA IPC: this rank's GPU reads and writes it as its own, over NVLink or PCIe
//! (or where it lies, for ranks that share a GPU).

use std::ops::Range;
use std::rc::Rc;

use super::gpu::{Argument, Gpu, KernelLaunch};
use super::handle::{CudaStream, open};
use super::mark;
use crate::device::{DeviceEvent, Memory, PeerMemory};
use crate::error::{Error, Result};

/// `PARTS` of kernels/parts.cu: more ranks a node are not served.
const PARTS: usize = 8;

/// The memory of every rank of a node, for all of them to reach.
pub struct IpcMemory {
    gpu: Rc<Gpu>,
    /// Where sums run, beside what the GPU computes.
    stream: Rc<CudaStream>,
    parts: Vec<Memory>,
    own: usize,
}

impl IpcMemory {
    /// # Errors
    /// `Foreign` where a GPU's memory cannot be reached, `Environment` where there are too many.
    pub fn new(gpu: &Rc<Gpu>, offers: &[Vec<u8>], own: usize, memory: &Memory) -> Result<IpcMemory> {
        if offers.len() > PARTS {
            return Err(Error::environment(format!(
                "{} ranks on a node, and a GPU reaches at most {PARTS} of them",
                offers.len()
            )));
        }
        let part = |(rank, offer): (usize, &Vec<u8>)| match rank == own {
            true => Ok(memory.clone()),
            false => {
                let offer = offer.as_slice().try_into();
                let offer = offer.map_err(|_| Error::internal("an offer of memory of another length"))?;
                open(&gpu.context, offer, memory.bytes())
            }
        };
        let parts = offers.iter().enumerate().map(part).collect::<Result<_>>()?;
        Ok(IpcMemory { gpu: gpu.clone(), stream: CudaStream::new(&gpu.context)?, parts, own })
    }

    fn mask(ranks: &[usize]) -> Argument<'static> {
        Argument::Int(ranks.iter().map(|rank| 1 << rank).sum())
    }
}

impl PeerMemory for IpcMemory {
    fn ranks(&self) -> usize {
        self.parts.len()
    }

    fn add_up(&mut self, bytes: &Range<usize>, of: &[usize], to: &[usize]) -> Result<()> {
        assert!(of.is_sorted(), "sums are in the order of ranks");
        let parts: Vec<Memory> = self.parts.iter().map(|part| part.slice(bytes.start, bytes.len())).collect();
        let elements = bytes.len() / size_of::<f32>();
        let mut arguments: Vec<Argument> = parts.iter().map(Argument::Memory).collect();
        arguments.resize(PARTS, Argument::Null);
        arguments.extend([IpcMemory::mask(of), IpcMemory::mask(to), Argument::Long(elements)]);
        // SAFETY: the arguments are the kernel's, and so many elements lie at each pointer that a mask names.
        let launch =
            unsafe { KernelLaunch::new(&self.gpu, "add_parts", self.gpu.blocks(elements), &arguments) }?;
        launch.run(&self.stream)
    }

    fn copy_to_host_async(&mut self, bytes: &Range<usize>, host: &Memory) -> Result<()> {
        let own = self.parts[self.own].slice(bytes.start, bytes.len());
        assert_eq!(host.bytes(), own.bytes(), "a copy of unequal lengths");
        // SAFETY: host memory of that length, which the caller leaves alone until the event behind this is reached.
        unsafe { self.stream.download_later(&own, host) }
    }

    fn copy_to_device_async(&mut self, bytes: &Range<usize>, host: &Memory) -> Result<()> {
        let own = self.parts[self.own].slice(bytes.start, bytes.len());
        // SAFETY: host memory, which the caller leaves alone until the event behind this is reached.
        unsafe { self.stream.upload_later(host, &own) }
    }

    fn record(&self) -> Result<DeviceEvent> {
        mark(&self.stream)
    }
}
