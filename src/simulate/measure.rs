//! How long the steps of a plan take on this rank's device, one after the other, without communication.

use crate::device::memory::bytes_of;
use crate::device::{Device, Memory, Rule, Scalars, Step, Updated};
use crate::error::Result;
use crate::graph::Init;
use crate::plan::{Ledger, Plan, Program, Regions};
use crate::random::{Purpose, Stream, key};

/// Seconds, medians over runs.
pub struct Times {
    /// Of every step of the plan.
    pub steps: Vec<f64>,
    /// Of updates.
    pub updates: f64,
    /// Bytes of the parameters that these update.
    pub updated: usize,
    /// Of all together, as training runs them.
    pub whole: f64,
}

/// A plan in memory of its own, with numbers that stay what they are.
pub struct Measured<'a> {
    device: &'a dyn Device,
    plan: &'a Plan,
    /// The steps of the plan, and behind them the updates.
    steps: Vec<Box<dyn Step>>,
    updated: usize,
}

impl Measured<'_> {
    /// Bytes that this takes with the updates of so many bytes of parameters.
    pub fn bytes(plan: &Plan, rule: &Rule, updated: usize) -> usize {
        let of = &plan.sizes;
        let steps = Ledger::of_steps(false, 1, of).of_host();
        steps + of.inputs + of.parameters + of.gradients + rule.states() * updated
    }

    /// Allocates and fills what the plan needs. Updates are those of the first buckets, for as long as all of it takes
    /// at most `room` bytes.
    ///
    /// # Errors
    /// `Environment` where the memory is not there; whatever the device reports.
    pub fn new<'a>(device: &'a dyn Device, plan: &'a Plan, rule: &Rule, room: usize) -> Result<Measured<'a>> {
        let allocate = |bytes| device.allocate(bytes);
        let regions = Regions::new(
            &plan.sizes,
            allocate(plan.sizes.parameters)?,
            allocate(plan.sizes.gradients)?,
            allocate,
        )?;
        fill(device, plan, &regions)?;
        regions.write_constants(device, plan)?;
        let Program { mut steps, images, .. } = plan.bind(&regions)?;
        device.upload(bytes_of(&numbers(images.bytes() / 4, 0, 1.0)), &images)?;
        let bytes = plan.bucket_bytes();
        let first = |buckets: usize| bytes[..buckets].iter().sum::<usize>();
        let fits = |&buckets: &usize| Measured::bytes(plan, rule, first(buckets)) <= room;
        let buckets = (1..=bytes.len()).take_while(fits).count().max(1).min(bytes.len());
        let updated = first(buckets);
        steps.extend(updates(device, plan, &regions, rule, buckets)?);
        Ok(Measured { device, plan, steps, updated })
    }

    /// Runs the whole step once to warm up, then as often as asked.
    ///
    /// # Errors
    /// Whatever the device reports.
    pub fn time(&mut self, repeats: usize) -> Result<Times> {
        // The learning rate is zero.
        let scalars = Scalars { gradient_scale: 1.0 / self.plan.graph.batch() as f32, ..Scalars::default() };
        let samples = self.device.time(&mut self.steps, &scalars, repeats)?;
        let mut whole: Vec<f64> =
            (0..repeats).map(|run| samples.iter().map(|of_step| of_step[run]).sum()).collect();
        // As training runs it, where that is not one step after the other.
        let mut enqueue = || self.steps.iter_mut().try_for_each(|step| step.run(&scalars));
        if let Some(graph) = self.device.capture(&mut enqueue)? {
            whole = self.device.time(&mut [graph], &scalars, repeats)?.remove(0);
        }
        let mut steps: Vec<f64> = samples.into_iter().map(median).collect();
        let updates = steps.split_off(self.plan.steps.len()).iter().sum();
        Ok(Times { steps, updates, updated: self.updated, whole: median(whole) })
    }
}

fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}

fn numbers(count: usize, which: u32, size: f32) -> Vec<f32> {
    let mut stream = Stream::new(key(1, Purpose::Synthetic, which));
    (0..count).map(|_| (2.0 * stream.uniform() - 1.0) * size).collect()
}

/// Numbers with which activations keep their size, so that none is denormal or infinite. They are written without
/// regard to layouts: what a filter sees is noise anyway.
fn fill(device: &dyn Device, plan: &Plan, regions: &Regions) -> Result<()> {
    for (which, parameter) in plan.parameters.iter().enumerate() {
        let to = regions.parameters.slice(parameter.offset, parameter.layout.bytes());
        let count = to.bytes() / 4;
        let bound = (6.0 / parameter.spec.shape.per_sample() as f32).sqrt();
        let values = match parameter.init {
            Init::One => vec![1.0; count],
            Init::Constant { value } => vec![value; count],
            Init::Zero => vec![0.0; count],
            _ => numbers(count, 1 + which as u32, bound),
        };
        device.upload(bytes_of(&values), &to)?;
    }
    Ok(())
}

/// Updates of so many buckets. What no step touches of a state takes no memory.
fn updates(
    device: &dyn Device,
    plan: &Plan,
    regions: &Regions,
    rule: &Rule,
    buckets: usize,
) -> Result<Vec<Box<dyn Step>>> {
    let state: Vec<Memory> =
        (0..rule.states()).map(|_| device.allocate(plan.sizes.parameters)).collect::<Result<_>>()?;
    let spans = plan.buckets.iter().take(buckets).map(|bucket| plan.spans(&bucket.bytes, rule));
    let Regions { parameters, gradients, .. } = regions;
    spans
        .map(|spans| device.update(rule, &spans, &Updated { parameters, gradients, state: &state }))
        .collect()
}
