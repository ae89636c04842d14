//! A plan bound to memory: what runs, step after step.

use super::{Place, Plan, Region};
use crate::device::memory::bytes_of_mut;
use crate::device::{Device, Memory, Scalars, Step};
use crate::error::Result;
use crate::graph::{DType, Role, TensorId};

/// The memory of each region. Two plans that never run at the same time can share all of it.
#[derive(Clone)]
pub struct Regions {
    pub arena: Memory,
    pub workspace: Memory,
    pub inputs: Memory,
    pub metrics: Memory,
    pub parameters: Memory,
    pub statistics: Memory,
    pub gradients: Memory,
}

impl Regions {
    fn at(&self, place: &Place) -> Memory {
        let region = match place.region {
            Region::Arena => &self.arena,
            Region::Inputs => &self.inputs,
            Region::Metrics => &self.metrics,
            Region::Parameters => &self.parameters,
            Region::Statistics => &self.statistics,
            Region::Gradients => &self.gradients,
        };
        region.slice(place.offset, place.bytes)
    }
}

/// Steps ready to run, and the memory through which the host speaks with them.
pub struct Program {
    pub steps: Vec<Box<dyn Step>>,
    pub forward_steps: usize,
    pub images: Memory,
    pub labels: Memory,
    pub losses: Memory,
    pub hits: Memory,
    /// In the order of their steps.
    pub exchanges: Vec<Exchange>,
    /// What each step writes (f32 only) and reads as a parameter, with names, to find where NaN came from.
    watched: Vec<Watched>,
}

/// What ranks that share statistics tell each other after a step. The step itself has put this rank's own numbers in
/// every row; where there are other ranks, each row is to be what that rank has.
#[derive(Debug, Clone)]
pub struct Exchange {
    pub step: usize,
    pub ranks: usize,
    /// `f32` numbers of this rank.
    pub own: Memory,
    /// As many of each rank of the group, in the order of ranks.
    pub all: Memory,
}

struct Watched {
    label: String,
    parameters: Vec<(String, Memory)>,
    outputs: Vec<Memory>,
}

impl Plan {
    /// Fixes every kernel to its memory.
    pub fn bind(&self, regions: &Regions) -> Result<Program> {
        let mut steps = Vec::with_capacity(self.steps.len());
        let mut watched = Vec::with_capacity(self.steps.len());
        let mut exchanges = Vec::new();
        for (index, step) in self.steps.iter().enumerate() {
            let inputs: Vec<Memory> = step.inputs.iter().map(|place| regions.at(place)).collect();
            let outputs: Vec<Memory> = step.outputs.iter().map(|place| regions.at(place)).collect();
            let workspace = regions.workspace.slice(0, step.kernel.workspace());
            let bound = step.kernel.bind(&inputs, &outputs, &workspace);
            steps.push(bound.map_err(|e| e.context(&step.label))?);
            watched.push(self.watch(step, &inputs, &outputs));
            if let Some(ranks) = self.exchanging(step) {
                let (own, all) = (inputs[0].clone(), outputs[0].clone());
                exchanges.push(Exchange { step: index, ranks, own, all });
            }
        }
        Ok(Program {
            steps,
            forward_steps: self.forward_steps,
            images: regions.at(&self.images),
            labels: regions.at(&self.labels),
            losses: regions.at(&self.losses),
            hits: regions.at(&self.hits),
            exchanges,
            watched,
        })
    }

    fn watch(&self, step: &super::PlannedStep, inputs: &[Memory], outputs: &[Memory]) -> Watched {
        let Some(node) = step.node.map(|id| self.graph.node(id)) else {
            return Watched { label: step.label.clone(), parameters: Vec::new(), outputs: Vec::new() };
        };
        let parameters = node.inputs.iter().zip(inputs).filter_map(|(id, memory)| {
            let tensor = self.graph.tensor(*id);
            (tensor.role == Role::Parameter).then(|| (tensor.name.clone(), memory.clone()))
        });
        let is_f32 = |id: &TensorId| self.graph.tensor(*id).spec.dtype == DType::F32;
        let outputs =
            node.outputs.iter().zip(outputs).filter(|(id, _)| is_f32(id)).map(|(_, memory)| memory.clone());
        Watched { label: step.label.clone(), parameters: parameters.collect(), outputs: outputs.collect() }
    }
}

impl Program {
    /// Runs the forward pass again on the same batch, looking at every number, and says where the first one that
    /// is not finite stands; `None` when all are. Nothing is exchanged: what came from another rank is not found.
    pub fn first_not_finite(&mut self, device: &dyn Device, scalars: &Scalars) -> Result<Option<String>> {
        if has_not_finite(device, &self.images)? {
            return Ok(Some("in the images of the batch".into()));
        }
        for index in 0..self.forward_steps {
            let watched = &self.watched[index];
            for (name, memory) in &watched.parameters {
                if has_not_finite(device, memory)? {
                    return Ok(Some(format!(
                        "in parameter {name} (the update before this step put it there)"
                    )));
                }
            }
            self.steps[index].run(scalars)?;
            device.synchronize()?;
            for memory in &watched.outputs {
                if has_not_finite(device, memory)? {
                    return Ok(Some(format!("in the output of layer {}", watched.label)));
                }
            }
        }
        Ok(None)
    }
}

/// Whether memory of f32 holds a number that is not finite.
pub fn has_not_finite(device: &dyn Device, memory: &Memory) -> Result<bool> {
    let mut values = vec![0f32; memory.bytes() / 4];
    device.download(memory, bytes_of_mut(&mut values))?;
    Ok(values.iter().any(|value| !value.is_finite()))
}
