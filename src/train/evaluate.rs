//! The test set: every image exactly once over all ranks.

use super::Test;
use super::device_prefetch::Inputs;
use super::metrics::sums_by_place;
use crate::comm::World;
use crate::config::Metric;
use crate::data::{Batch, TestLoader};
use crate::device::memory::{bytes_of, bytes_of_mut};
use crate::device::{Device, Memory, Scalars};
use crate::error::Result;
use crate::fusion::{Exchanges, Relay};
use crate::plan::Program;

/// Batches between two points at which the stages of a network ask each other whether to stop.
const TOGETHER: usize = 64;

/// A forward-only program, and this rank's part of the test set.
pub struct Evaluator {
    /// `None` on a rank without a graph, which tests nothing.
    pub program: Option<Program>,
    /// Where the network is cut: what goes from stage to stage.
    pub relay: Option<Relay>,
    /// Where layers are split: what ranks exchange between steps.
    pub exchanges: Option<Exchanges>,
    /// Those whose statistics count as this rank's do.
    pub peers: World,
    /// Every running statistic, where training keeps it.
    pub statistics: Memory,
    pub loader: TestLoader,
    /// What is made of the numbers that the program has of each sample.
    pub metric: Metric,
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
        let read = |memory: &Memory| -> Result<Vec<f32>> {
            let mut values = vec![0f32; memory.bytes() / size_of::<f32>()];
            device.download(memory, bytes_of_mut(&mut values)).map(|()| values)
        };
        let metric = self.metric;
        let (mut images_seen, mut losses) = (0.0, 0.0);
        let mut sums = vec![0f64; self.sums(world)?];
        let whole = self.each(world, device, stop, |program, _, images| {
            images_seen += images as f64;
            // Where the network is cut another stage knows how many there are.
            if program.losses.bytes() > 0 && (images > 0 || program.images.bytes() == 0) {
                losses += read(&program.losses)?.iter().map(|&value| f64::from(value)).sum::<f64>();
                let found = sums_by_place(&read(&program.hits)?, sums.len());
                sums.iter_mut().zip(found).for_each(|(sum, more)| *sum += more);
            }
            Ok(())
        })?;
        sums.extend([losses, images_seen]);
        world.sum_f64(&mut sums)?;
        let (images, loss) = (sums.pop().unwrap_or(f64::NAN), sums.pop().unwrap_or(f64::NAN));
        let mean = |at: usize| sums.get(at).map_or(0.0, |sum| sum / images);
        let counts = if metric == Metric::Iou { &sums[1..] } else { &[] };
        let (metric, by_class) = (metric.of(loss / images, [0, 1, 2].map(mean)), intersections(counts));
        let test = Test { loss: loss / images, metric, by_class, apart: f64::NAN };
        Ok(whole.then_some(test))
    }

    /// How many numbers the metric has of a sample, which the rank with the end of the network knows. Collective.
    fn sums(&self, world: &World) -> Result<usize> {
        let of = |program: &Program| program.hits.bytes() / program.losses.bytes().max(1);
        let mut most = [self.program.as_ref().map_or(0, of) as f64];
        world.max_f64(&mut most)?;
        Ok(most[0] as usize)
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
        let scalars = Scalars { gradient_scale: 1.0, update: 1, ..Scalars::default() };
        agree_on_statistics(&self.peers, device, &self.statistics)?;
        for number in 0..self.loader.steps() {
            let mut stopping = [if stop() { 1.0 } else { 0.0 }];
            // Stages compute unlike batches at a time, unless they are asked to meet.
            if self.relay.is_none() || number.is_multiple_of(TOGETHER) {
                world.max_f64(&mut stopping)?;
                if stopping != [0.0] {
                    return Ok(false);
                }
            }
            let Some(program) = &mut self.program else { continue };
            let reads = program.images.bytes() > 0;
            let images = if reads { self.loader.fill(number, &mut self.batch)? } else { 0 };
            if images > 0 || self.relay.is_some() || self.exchanges.is_some() {
                self.relay.as_mut().map_or(Ok(()), |relay| relay.begin(device))?;
                if reads {
                    Inputs::of(program).fill(&self.batch, |bytes, part| device.upload(bytes, part))?;
                }
                for (index, step) in program.steps.iter_mut().enumerate() {
                    self.relay.as_mut().map_or(Ok(()), |relay| relay.before(index, device))?;
                    step.run(&scalars)?;
                    self.exchanges.as_mut().map_or(Ok(()), |exchanges| exchanges.behind(index, device))?;
                    self.relay.as_mut().map_or(Ok(()), |relay| relay.after(index, device))?;
                }
                device.synchronize()?;
            }
            seen(program, (number, &self.batch), images)?;
        }
        self.relay.as_mut().map_or(Ok(()), |relay| relay.end(device))?;
        Ok(true)
    }
}

/// Intersection over union of each class, of how often points are rightly of it, wrongly of it, and wrongly not of it;
/// 1 where a class is nowhere.
fn intersections(counts: &[f64]) -> Vec<f64> {
    let classes = counts.len() / 3;
    let of = |class: usize| {
        let [right, wrongly, missed] = [0, 1, 2].map(|kind| counts[kind * classes + class]);
        let union = right + wrongly + missed;
        if union > 0.0 { right / union } else { 1.0 }
    };
    (0..classes).map(of).collect()
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
