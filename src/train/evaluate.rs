//! The test set: every image exactly once over all ranks.

use super::Test;
use super::device_prefetch::Inputs;
use crate::comm::World;
use crate::data::{Batch, TestLoader};
use crate::device::memory::{bytes_of, bytes_of_mut};
use crate::device::{Device, Memory, Scalars};
use crate::error::Result;
use crate::plan::Program;

/// A forward-only program, and this rank's part of the test set.
pub struct Evaluator {
    /// `None` on a rank without a graph, which tests nothing.
    pub program: Option<Program>,
    /// Those whose statistics count as this rank's do.
    pub peers: World,
    /// Every running statistic, where training keeps it.
    pub statistics: Memory,
    pub loader: TestLoader,
    pub batch: Batch,
}

impl Evaluator {
    /// Collective: the figures of all ranks, weighted by images. `None` where `stop` says on some rank that the run is
    /// to stop: a test set may take minutes.
    pub fn run(
        &mut self,
        world: &World,
        device: &dyn Device,
        stop: impl Fn() -> bool,
    ) -> Result<Option<Test>> {
        let mut sums = [0f64; 3];
        let mut metrics = vec![0f32; self.batch.labels.len()];
        let whole = self.each(world, device, stop, |program, _, images| {
            sums[2] += images as f64;
            for (sum, memory) in sums.iter_mut().zip([&program.losses, &program.hits]).filter(|_| images > 0)
            {
                device.download(memory, bytes_of_mut(&mut metrics))?;
                *sum += metrics.iter().map(|&value| f64::from(value)).sum::<f64>();
            }
            Ok(())
        })?;
        world.sum_f64(&mut sums)?;
        let test = Test { loss: sums[0] / sums[2], accuracy: sums[1] / sums[2], apart: f64::NAN };
        Ok(whole.then_some(test))
    }

    /// Hands every batch of this rank, with how many images of it could be read, to `seen` when the program has run;
    /// without such an image it has not. False where `stop` says on some rank that the run is to stop. Collective, and
    /// so may be what `seen` does, where every rank has a graph.
    pub fn each(
        &mut self,
        world: &World,
        device: &dyn Device,
        stop: impl Fn() -> bool,
        mut seen: impl FnMut(&Program, (usize, &Batch), usize) -> Result<()>,
    ) -> Result<bool> {
        let scalars =
            Scalars { seed: 0, step: 0, first_sample: 0, gradient_scale: 1.0, learning_rate: 0.0, update: 1 };
        agree_on_statistics(&self.peers, device, &self.statistics)?;
        for number in 0..self.loader.steps() {
            let mut stopping = [if stop() { 1.0 } else { 0.0 }];
            world.max_f64(&mut stopping)?;
            if stopping != [0.0] {
                return Ok(false);
            }
            let Some(program) = &mut self.program else { continue };
            let images = self.loader.fill(number, &mut self.batch)?;
            if images > 0 {
                Inputs::of(program).fill(&self.batch, |bytes, part| device.upload(bytes, part))?;
                for step in &mut program.steps {
                    step.run(&scalars)?;
                }
                device.synchronize()?;
            }
            seen(program, (number, &self.batch), images)?;
        }
        Ok(true)
    }
}

/// Running statistics become their means over ranks, so that every rank evaluates the same network and goes on
/// with the same numbers. Collective.
pub(super) fn agree_on_statistics(world: &World, device: &dyn Device, statistics: &Memory) -> Result<()> {
    let mut values = vec![0f32; statistics.bytes() / 4];
    if values.is_empty() || world.size() == 1 {
        return Ok(());
    }
    device.download(statistics, bytes_of_mut(&mut values))?;
    let means = means(world, &values)?;
    values.iter_mut().zip(means).for_each(|(value, mean)| *value = mean as f32);
    device.upload(bytes_of(&values), statistics)
}

/// The mean over ranks of each number. Collective.
pub(super) fn means(world: &World, own: &[f32]) -> Result<Vec<f64>> {
    let mut means: Vec<f64> = own.iter().map(|&value| f64::from(value)).collect();
    world.sum_f64(&mut means)?;
    means.iter_mut().for_each(|mean| *mean /= world.size() as f64);
    Ok(means)
}
