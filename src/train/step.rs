//! One training step: read, forward, backward with communication, update.

use std::ops::Range;
use std::time::Instant;

use super::device_prefetch::{DevicePrefetch, Inputs};
use super::metrics::Metrics;
use super::source::Source;
use super::stop::Flags;
use crate::comm::{Awaited, Barrier, Wait};
use crate::data::Batch;
use crate::device::memory::bytes_of_mut;
use crate::device::{Device, Memory, Scalars, Step, Usage};
use crate::error::Result;
use crate::fusion::compress::{Account, Kept};
use crate::fusion::{Fusion, Values};
use crate::graph::DType;
use crate::optim::LossScaler;
use crate::plan::{Program, has_not_finite};
use crate::trace::{self, BucketTime};

/// What a step adds up over ranks in the last bucket's tail, in this order, and after it what `Trainer::flags` says:
/// how many ranks want to stop, how many want a checkpoint.
#[derive(Clone, Copy, PartialEq, Default)]
struct Tail {
    loss: f32,
    hits: f32,
    images: f32,
    /// How many ranks found a number that is not finite.
    diverged: f32,
}

/// Steps of the program between two points at which the host has something to do: a bucket to start, statistics to
/// exchange. On a device of the host that is after every step.
pub struct Stretch {
    steps: Range<usize>,
    /// The device's way to do all of them at once, made when they have run once.
    captured: Option<Box<dyn Step>>,
}

impl Stretch {
    /// Cuts a program. `buckets` are the steps after which one is complete.
    pub fn cut(program: &Program, buckets: impl Iterator<Item = usize>, device: &dyn Device) -> Vec<Stretch> {
        let end = program.steps.len();
        let mut ends: Vec<usize> = match device.is_host() {
            true => (1..=end).collect(),
            false => {
                let exchanges = program.exchanges.iter().map(|exchange| exchange.step + 1);
                buckets.map(|after| after + 1).chain(exchanges).chain([program.forward_steps, end]).collect()
            }
        };
        ends.sort_unstable();
        ends.dedup();
        let mut start = 0;
        let stretch = |end| {
            let steps = std::mem::replace(&mut start, end)..end;
            Stretch { steps, captured: None }
        };
        ends.into_iter().filter(|&end| end > 0).map(stretch).collect()
    }
}

/// What came of a step. Loss and hits are those of all ranks, times those of this one.
#[derive(Debug, Clone, Default)]
pub struct StepResult {
    pub images: usize,
    pub loss: f64,
    pub hits: f64,
    pub diverged: bool,
    /// On a rank whose loss is not finite: where the first such number stands.
    pub where_diverged: Option<String>,
    /// What any rank said in `Trainer::flags`.
    pub flags: Flags,
    pub learning_rate: f32,
    /// Seconds in all, and of these computing, waiting for communication, and reading images.
    pub seconds: f64,
    pub compute: f64,
    pub communication: f64,
    pub input: f64,
    /// Of these, encoding and decoding compressed gradients.
    pub encoding: f64,
    /// What the device's meter showed in the end.
    pub usage: Option<Usage>,
}

/// Everything a step needs, made once.
pub struct Trainer {
    pub program: Program,
    pub stretches: Vec<Stretch>,
    /// Steps that this process has done. In the first one libraries make what they need of their own.
    pub runs: usize,
    pub fusion: Fusion,
    /// Where gradients are compressed: what that comes to, and its state.
    pub compression: Option<Account>,
    /// Scales the gradients of all buckets where their norm is too large.
    pub clip: Option<Box<dyn Step>>,
    /// With f16: the factor of the loss.
    pub scaling: Option<Scaling>,
    /// The update of each bucket's parameters, or of this rank's share of them.
    pub updates: Vec<Box<dyn Step>>,
    /// Takes each bucket's new parameters into their moving average; empty where there is none.
    pub averages: Vec<Box<dyn Step>>,
    /// Where the ranks of a node share parameters: passed when all have read the old ones, and again when all are new.
    pub barrier: Option<Barrier>,
    /// Adds a micro-step's gradients to those before; empty without accumulation.
    pub accumulate: Option<Accumulation>,
    /// What this rank tells the others with the next step.
    pub flags: Flags,
    pub seed: u64,
    /// One over the images of all ranks in a step.
    pub gradient_scale: f32,
    /// The host's copy of a batch.
    pub batch: Batch,
    /// The next one, on a device with memory of its own.
    pub ahead: Option<DevicePrefetch>,
    pub metrics: Metrics,
    /// Every parameter by name.
    pub parameters: Vec<(String, Memory)>,
}

/// Loss scaling: what gradients are divided by when all are averaged, and whether they are finite then.
pub struct Scaling {
    pub scaler: LossScaler,
    /// Multiplies them by the gradient scale that it is given.
    pub step: Box<dyn Step>,
    pub broken: Memory,
    /// Whether a step overflowed although the factor is as small as it may be.
    pub stuck: bool,
}

impl Scaling {
    /// Divides the gradients by the factor; returns whether the step counts, or else is to be skipped. All ranks have
    /// the same gradients and so come to the same.
    fn unscale(&mut self, device: &dyn Device, scalars: &Scalars) -> Result<bool> {
        let scale = self.scaler.scale();
        device.zero(&self.broken)?;
        self.step.run(&Scalars { gradient_scale: 1.0 / scale, ..*scalars })?;
        let mut broken = [0i32];
        device.download(&self.broken, bytes_of_mut(&mut broken))?;
        let finite = broken == [0];
        self.stuck = !self.scaler.step(finite);
        Ok(finite)
    }
}

/// Gradient accumulation: a micro-step writes `own`, and its sum is kept in `sum` where buckets lie.
pub struct Accumulation {
    pub micro_steps: usize,
    pub add: Box<dyn Step>,
    /// The part of the gradient region that holds gradients, without the tail.
    pub sum: Memory,
}

impl Trainer {
    /// Step `step` of the epoch, of which `steps` are to be done; `done` of the run.
    pub fn step(
        &mut self,
        device: &dyn Device,
        source: &mut Source,
        [step, steps]: [usize; 2],
        done: usize,
        learning_rate: f32,
    ) -> Result<StepResult> {
        let (begun, traced) = (Instant::now(), trace::now());
        self.fusion.begin(begun);
        let mut scalars = Scalars {
            seed: self.seed,
            step: done as u64,
            first_sample: 0,
            gradient_scale: self.gradient_scale * self.scaling.as_ref().map_or(1.0, |s| s.scaler.scale()),
            learning_rate,
            // A skipped step is no update.
            update: done as u64 + 1 - self.skipped(),
        };
        let mut result = StepResult { learning_rate, ..StepResult::default() };
        let mut tail = Tail::default();
        let micro_steps = self.accumulate.as_ref().map_or(1, |accumulation| accumulation.micro_steps);
        if self.runs == 1 {
            self.capture(device, &scalars)?;
        }
        self.runs += 1;
        for micro in 0..micro_steps {
            result.input += self.read(device, source, step, [done, micro])?;
            scalars.first_sample = source.first_sample(micro) as u64;
            let next = if micro + 1 < micro_steps { [0, micro + 1] } else { [1, 0] };
            let next = (step + next[0] < steps).then_some([step + next[0], done + next[0], next[1]]);
            self.forward_and_backward(device, &scalars, micro, &mut tail, &mut result, |ahead| {
                next.map_or(Ok(()), |[step, done, micro]| ahead.send(device, source, [done, micro], step))
            })?;
        }
        self.communicate_and_update(device, &scalars, &mut result)?;
        self.read_tail(device, &mut result)?;
        result.encoding = self.compression.as_ref().map_or(0.0, Account::take_seconds);
        result.usage = device.usage();
        result.seconds = begun.elapsed().as_secs_f64();
        trace::record(trace::EventKind::Step, traced, 0, 0, 0);
        result.compute = result.seconds - result.communication - result.input;
        Ok(result)
    }

    /// Steps of the run whose update was skipped.
    fn skipped(&self) -> u64 {
        self.scaling.as_ref().map_or(0, |scaling| scaling.scaler.skipped())
    }

    /// Gives the program micro-step `micro` of step `done` of the run, step `step` of the epoch; returns the seconds
    /// that took.
    fn read(
        &mut self,
        device: &dyn Device,
        source: &mut Source,
        step: usize,
        [done, micro]: [usize; 2],
    ) -> Result<f64> {
        let (begun, traced) = (Instant::now(), trace::now());
        let batch = &mut self.batch;
        let taken = self.ahead.as_mut().map_or(Ok(false), |ahead| ahead.take(device, [done, micro], batch));
        if !taken? && source.fill(step, micro, batch)? {
            Inputs::of(&self.program).fill(batch, |bytes, part| device.upload(bytes, part))?;
        }
        trace::record(trace::EventKind::Input, traced, 0, 0, 0);
        Ok(begun.elapsed().as_secs_f64())
    }

    /// The steps of one stretch; returns the last of them.
    fn run_stretch(&mut self, index: usize, scalars: &Scalars) -> Result<usize> {
        let Stretch { steps, captured } = &mut self.stretches[index];
        let begun = trace::now();
        match captured {
            Some(captured) => {
                captured.run(scalars)?;
                trace::record(trace::EventKind::Layer, begun, steps.start, 0, 0);
            }
            None => {
                for step in steps.clone() {
                    let begun = trace::now();
                    self.program.steps[step].run(scalars)?;
                    trace::record(trace::EventKind::Layer, begun, step, 0, 0);
                }
            }
        }
        Ok(steps.end - 1)
    }

    /// Lets the device do each stretch at once from now on, if it can: before the second step.
    fn capture(&mut self, device: &dyn Device, scalars: &Scalars) -> Result<()> {
        for stretch in &mut self.stretches {
            let steps = &mut self.program.steps[stretch.steps.clone()];
            stretch.captured = device.capture(steps, scalars)?;
        }
        Ok(())
    }

    fn forward_and_backward(
        &mut self,
        device: &dyn Device,
        scalars: &Scalars,
        micro: usize,
        tail: &mut Tail,
        result: &mut StepResult,
        mut send_next: impl FnMut(&mut DevicePrefetch) -> Result<()>,
    ) -> Result<()> {
        let mut begun = trace::now();
        let (forward, end) = (self.program.forward_steps, self.program.steps.len());
        let last = self.accumulate.as_ref().is_none_or(|accumulation| micro + 1 == accumulation.micro_steps);
        for stretch in 0..self.stretches.len() {
            let index = self.run_stretch(stretch, scalars)?;
            self.fusion.exchange(index, device)?;
            if index + 1 == forward {
                trace::record(trace::EventKind::Forward, begun, 0, 0, 0);
                begun = trace::now();
                self.metrics.fetch(device)?;
            }
            if index + 1 == end {
                // The device has enough to do.
                self.ahead.as_mut().map_or(Ok(()), &mut send_next)?;
                // Not before: a device with a queue would run dry while the host waits for them.
                self.read_metrics(device, scalars, tail, result)?;
                self.end_micro_step(device, scalars, micro, last.then_some(&*tail))?;
            }
            // With accumulation no bucket is complete before the last micro-step has been added.
            if last && index >= forward && (self.accumulate.is_none() || index + 1 == end) {
                self.fusion.after_step(index, device)?;
            }
        }
        trace::record(trace::EventKind::Backward, begun, 0, 0, 0);
        Ok(())
    }

    fn read_metrics(
        &mut self,
        device: &dyn Device,
        scalars: &Scalars,
        tail: &mut Tail,
        result: &mut StepResult,
    ) -> Result<()> {
        let fusion = &mut self.fusion;
        let [loss, hits] = self.metrics.sums(device, |event| fusion.reach(device, event))?;
        tail.loss += loss;
        tail.hits += hits;
        // An image that could not be read has no label, and counts nowhere.
        tail.images += self.batch.labels.iter().filter(|&&label| label >= 0).count() as f32;
        if !loss.is_finite() && result.where_diverged.is_none() {
            tail.diverged = 1.0;
            result.where_diverged = self.program.first_not_finite(device, scalars)?;
            // Else it came from a rank that shares its statistics, which will say so.
            if self.program.exchanges.is_empty() {
                result.where_diverged.get_or_insert_with(|| "in the sum of the losses".into());
            }
        }
        Ok(())
    }

    /// After the last step of a micro-step: gradients are added up, and after the last micro-step the tail joins its
    /// bucket.
    fn end_micro_step(
        &mut self,
        device: &dyn Device,
        scalars: &Scalars,
        micro: usize,
        tail: Option<&Tail>,
    ) -> Result<()> {
        if let Some(accumulation) = &mut self.accumulate {
            if micro == 0 {
                device.zero(&accumulation.sum)?;
            }
            accumulation.add.run(scalars)?;
        }
        let Some(tail) = tail else { return Ok(()) };
        let mut values = Values::default();
        let flag = |set| if set { 1.0 } else { 0.0 };
        let flags = [flag(self.flags.stop), flag(self.flags.checkpoint)];
        values[..4].copy_from_slice(&[tail.loss, tail.hits, tail.images, tail.diverged]);
        values[4..6].copy_from_slice(&flags);
        self.fusion.write_tail(device, &values)
    }

    /// Each bucket's parameters are updated as soon as it is averaged, while the next ones are under way; but where
    /// gradients are clipped or unscaled only when all are there. Every rank has the same gradients and so the same
    /// norm. A rank with parameters in common updates its share, when no rank of its node reads them any more.
    fn communicate_and_update(
        &mut self,
        device: &dyn Device,
        scalars: &Scalars,
        result: &mut StepResult,
    ) -> Result<()> {
        let (updates, averages) = (&mut self.updates, &mut self.averages);
        let mut update = |bucket: usize| {
            let begun = trace::now();
            updates[bucket].run(scalars)?;
            averages.get_mut(bucket).map_or(Ok(()), |average| average.run(scalars))?;
            trace::record(trace::EventKind::Update, begun, bucket, 0, 0);
            Ok(())
        };
        if let Some(barrier) = &mut self.barrier {
            barrier.arrive();
        }
        let readers = || self.barrier.as_ref().map_or(Vec::new(), Barrier::missing);
        let buckets = self.fusion.times().len();
        match (&mut self.clip, &mut self.scaling) {
            (None, None) => self.fusion.finish(device, readers, &mut update)?,
            (clip, scaling) => {
                self.fusion.finish(device, readers, |_| Ok(()))?;
                if scaling.as_mut().map_or(Ok(true), |scaling| scaling.unscale(device, scalars))? {
                    clip.as_mut().map_or(Ok(()), |clip| clip.run(scalars))?;
                    (0..buckets).try_for_each(update)?;
                }
            }
        }
        result.communication = self.fusion.exchange_seconds() + self.await_new_parameters()?;
        self.fusion.times().iter().for_each(|time| result.communication += time.exposed);
        Ok(())
    }

    /// Waits until the other ranks of the node have updated their shares; returns the seconds that took.
    fn await_new_parameters(&mut self) -> Result<f64> {
        let begun = Instant::now();
        if let Some(barrier) = &mut self.barrier {
            barrier.arrive();
            let mut wait = Wait::new();
            while !barrier.missing().is_empty() {
                wait.idle(|| Awaited { what: "new parameters".into(), peers: barrier.missing() })?;
            }
        }
        Ok(begun.elapsed().as_secs_f64())
    }

    fn read_tail(&mut self, device: &dyn Device, result: &mut StepResult) -> Result<()> {
        let values = self.fusion.read_tail(device)?;
        result.images = values[2] as usize;
        result.loss = f64::from(values[0]) / f64::from(values[2].max(1.0));
        result.hits = f64::from(values[1]);
        result.diverged = values[3] != 0.0 || !values[0].is_finite();
        result.flags = Flags { stop: values[4] != 0.0, checkpoint: values[5] != 0.0 };
        Ok(())
    }

    /// The first parameter with a number that is not finite. The loss does not always tell: a ReLU makes zero of NaN,
    /// and a network whose first layer is broken answers with a finite loss that no longer changes.
    pub fn broken_parameter(&self, device: &dyn Device) -> Result<Option<&str>> {
        for (name, memory) in &self.parameters {
            if has_not_finite(device, memory, DType::F32)? {
                return Ok(Some(name));
            }
        }
        Ok(None)
    }

    /// What compression has to go on with, by name.
    pub fn compressed_state(&self) -> &[Kept] {
        self.compression.as_ref().map_or(&[], |account| account.state.as_slice())
    }

    pub fn bucket_times(&self) -> &[BucketTime] {
        self.fusion.times()
    }
}
