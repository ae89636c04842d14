//! Losses and hits of a batch on their way to the host. From a device with memory of its own they come behind the
//! forward pass, while it computes the backward pass: nobody waits for its queue to run dry.

use crate::device::memory::bytes_of_mut;
use crate::device::{Device, DeviceEvent, Memory};
use crate::error::Result;
use crate::plan::Program;

/// Where losses and hits are found.
pub struct Metrics {
    /// On the device: all, and each.
    region: Memory,
    parts: [Memory; 2],
    /// As much page-locked memory of the host, for a device with memory of its own.
    host: Option<Memory>,
    /// When they are there.
    pub arrives: Option<DeviceEvent>,
    values: [Vec<f32>; 2],
}

impl Metrics {
    /// Those of a program whose metrics lie in `region`.
    ///
    /// # Errors
    /// Memory lacks.
    pub fn new(device: &dyn Device, program: &Program, region: &Memory) -> Result<Metrics> {
        let host = (!device.is_host()).then(|| device.page_locked(region.bytes())).transpose()?;
        let parts = [program.losses.clone(), program.hits.clone()];
        let values = [&program.losses, &program.hits].map(|of| vec![0.0; of.bytes() / size_of::<f32>()]);
        Ok(Metrics { region: region.clone(), parts, host, arrives: None, values })
    }

    /// To be called when the forward pass has been enqueued.
    pub fn fetch(&mut self, device: &dyn Device) -> Result<()> {
        if let Some(host) = &self.host {
            self.arrives = Some(device.copy_to_host_after(&self.region, host, &device.record()?)?);
        }
        Ok(())
    }

    /// The sums of losses over samples, and of each of the first three numbers that the metric has of a sample.
    /// `reach` waits for an event.
    pub fn sums(
        &mut self,
        device: &dyn Device,
        reach: impl FnOnce(&DeviceEvent) -> Result<()>,
    ) -> Result<(f32, [f32; 3])> {
        self.arrives.take().map_or(Ok(()), |event| reach(&event))?;
        for (values, part) in self.values.iter_mut().zip(&self.parts) {
            match &self.host {
                None => device.download(part, bytes_of_mut(values))?,
                Some(host) => {
                    let start = part.address() as usize - self.region.address() as usize;
                    host.slice(start, part.bytes()).read(bytes_of_mut(values));
                }
            }
        }
        let [losses, hits] = &self.values;
        let loss = losses.iter().map(|&value| f64::from(value)).sum::<f64>() as f32;
        let sums = sums_by_place(hits, hits.len() / losses.len().max(1));
        Ok((loss, [0, 1, 2].map(|at| sums.get(at).copied().unwrap_or(0.0) as f32)))
    }
}

/// Of numbers of samples, so many each: the sum of each over all samples.
pub fn sums_by_place(values: &[f32], each: usize) -> Vec<f64> {
    let mut sums = vec![0.0; each];
    for sample in values.chunks_exact(each.max(1)) {
        sums.iter_mut().zip(sample).for_each(|(sum, &value)| *sum += f64::from(value));
    }
    sums
}
