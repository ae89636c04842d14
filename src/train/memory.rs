//! The memory of a run: one region of each kind, and the first values of the parameters.

use std::rc::Rc;
use std::slice::from_ref;

use crate::collective;
use crate::comm::{Region, World};
use crate::config::Config;
use crate::device::memory::bytes_of;
use crate::device::{Device, Memory};
use crate::error::{Error, Result};
use crate::graph::{Init, Spec};
use crate::plan::{Parameter, Plan, Regions, Sizes};
use crate::random::{Purpose, Stream, key};

/// Every region of a rank.
pub struct Memories {
    /// What the plans are bound to.
    pub regions: Regions,
    /// Optimizer state, each as large as the parameters.
    pub state: Vec<Memory>,
    /// The moving average of the parameters, where one is asked for.
    pub average: Option<Memory>,
    /// Where gradients are averaged: memory that `comm` gave, in a shared window where that serves.
    pub gradients: Rc<Region>,
    /// The same memory as the device sees it.
    pub averaged: Memory,
}

impl Memories {
    /// Allocates everything. Collective.
    pub fn new(
        world: &World,
        device: &dyn Device,
        sizes: &Sizes,
        states: usize,
        config: &Config,
    ) -> Result<Memories> {
        let shared = collective::wants_shared(config.allreduce, world);
        let gradients = Region::allocate(world, sizes.gradients, shared)?;
        let averaged = as_memory(&gradients);
        // With accumulation a micro-step's own gradients are apart from their sum.
        let written = match config.accumulation {
            1 => averaged.clone(),
            _ => device.allocate(sizes.gradients)?,
        };
        let regions = Regions {
            arena: device.allocate(sizes.activations)?,
            workspace: device.allocate(sizes.workspace)?,
            inputs: device.allocate(sizes.inputs)?,
            metrics: device.allocate(sizes.metrics)?,
            parameters: device.allocate(sizes.parameters)?,
            statistics: device.allocate(sizes.statistics)?,
            gradients: written,
        };
        let state = (0..states).map(|_| device.allocate(sizes.parameters)).collect::<Result<_>>()?;
        let average = config.optimizer.ema.map(|_| device.allocate(sizes.parameters)).transpose()?;
        Ok(Memories { regions, state, average, gradients, averaged })
    }

    /// What the evaluation plan is bound to: the averaged parameters where there are such.
    pub fn evaluated(&self) -> Regions {
        let parameters = self.average.as_ref().unwrap_or(&self.regions.parameters).clone();
        Regions { parameters, ..self.regions.clone() }
    }

    /// Writes the first value of every parameter and statistic. A function of the seed and the parameter's place in the model, so
    /// that all ranks start alike without a message, on any device.
    pub fn initialise(&self, device: &dyn Device, plan: &Plan, seed: u64) -> Result<()> {
        for parameter in &plan.parameters {
            let spec = &parameter.spec;
            let index = plan.graph.tensors.iter().position(|tensor| tensor.name == parameter.name);
            let index = index.ok_or_else(|| Error::internal(format!("no tensor {}", parameter.name)))?;
            let values = first_values(parameter.init, spec, seed, index as u32);
            self.write(device, parameter, &values)?;
        }
        for statistic in &plan.statistics {
            let values = first_values(statistic.init, &statistic.spec, seed, 0);
            let (offset, bytes) = (statistic.place.offset, statistic.place.bytes);
            device.upload(bytes_of(&values), &self.regions.statistics.slice(offset, bytes))?;
        }
        Ok(())
    }

    /// Writes a parameter given in plain order.
    fn write(&self, device: &dyn Device, parameter: &Parameter, values: &[f32]) -> Result<()> {
        let plain = device.plain(&parameter.spec);
        let to = self.regions.parameters.slice(parameter.offset, parameter.layout.bytes());
        if plain == parameter.layout {
            return device.upload(bytes_of(values), &to);
        }
        // Where its gradient will be there is room for it: a layout never has fewer elements than the plain one.
        let from = self.regions.gradients.slice(parameter.offset, plain.bytes());
        device.upload(bytes_of(values), &from)?;
        let kernel = device.reorder(&parameter.spec, &plain, &parameter.layout)?;
        let workspace = device.allocate(kernel.workspace())?;
        kernel.bind(from_ref(&from), &[to], &workspace)?.run(&crate::device::Scalars::default())?;
        device.synchronize()?;
        device.zero(&from)
    }
}

fn first_values(init: Init, spec: &Spec, seed: u64, which: u32) -> Vec<f32> {
    let count = spec.shape.elements();
    let mut stream = Stream::new(key(seed, Purpose::Initialise, which));
    match init {
        Init::Zero => vec![0.0; count],
        Init::One => vec![1.0; count],
        Init::Normal { std } => (0..count).map(|_| stream.normal() * std).collect(),
        Init::Uniform { bound } => (0..count).map(|_| (2.0 * stream.uniform() - 1.0) * bound).collect(),
    }
}

/// The region as memory of a host device.
#[allow(unsafe_code)]
fn as_memory(region: &Rc<Region>) -> Memory {
    // SAFETY: the region is host memory, valid while it lives, and the memory keeps it alive. This rank's part of it
    // is written by the steps of the plan, and by the collectives only between `start` and `is_done` of the bucket
    // it belongs to, when no step touches that bucket.
    unsafe { Memory::from_raw(region.address(), region.bytes(), region.clone()) }
}
