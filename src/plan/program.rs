//! A plan bound to memory: what runs, step after step.

use half::{bf16, f16};

use super::{Constant, Kind, Location, Plan, Region, Sizes};
use crate::device::memory::bytes_of;
use crate::device::{Device, Layout, Memory, Scalars, Step};
use crate::error::Result;
use crate::graph::{DType, NormStatistics, Role, Rows, TensorId};

/// The memory of each region. Two plans that never run at the same time can share all of it.
#[derive(Clone)]
pub struct Regions {
    /// Activations and their gradients.
    pub arena: Memory,
    /// Scratch memory of whichever kernel runs.
    pub workspace: Memory,
    /// Images and labels.
    pub inputs: Memory,
    /// Losses, hits and probabilities.
    pub metrics: Memory,
    /// Parameters.
    pub parameters: Memory,
    /// Running statistics of the normalisations.
    pub statistics: Memory,
    /// What nothing changes.
    pub constants: Memory,
    /// Gradients.
    pub gradients: Memory,
}

impl Regions {
    /// Memory of these sizes for everything but parameters and gradients, whose memory may be one that other ranks see.
    pub fn new(
        sizes: &Sizes,
        parameters: Memory,
        gradients: Memory,
        allocate: impl Fn(usize) -> Result<Memory>,
    ) -> Result<Regions> {
        Ok(Regions {
            arena: allocate(sizes.activations)?,
            workspace: allocate(sizes.workspace)?,
            inputs: allocate(sizes.inputs)?,
            metrics: allocate(sizes.metrics)?,
            parameters,
            statistics: allocate(sizes.statistics)?,
            constants: allocate(sizes.constants)?,
            gradients,
        })
    }

    /// Writes the constants of a plan that is to be bound to these regions.
    pub fn write_constants(&self, device: &dyn Device, plan: &Plan) -> Result<()> {
        let write =
            |constant: &Constant| device.upload(bytes_of(&constant.values), &self.at(&constant.place));
        plan.constants.iter().try_for_each(write)
    }

    fn at(&self, place: &Location) -> Memory {
        let region = match place.region {
            Region::Arena => &self.arena,
            Region::Inputs => &self.inputs,
            Region::Metrics => &self.metrics,
            Region::Parameters => &self.parameters,
            Region::Statistics => &self.statistics,
            Region::Constants => &self.constants,
            Region::Gradients => &self.gradients,
        };
        region.slice(place.offset, place.bytes)
    }
}

/// Steps ready to run, and the memory through which the host speaks with them.
pub struct Program {
    /// All steps in the order in which they run.
    pub steps: Vec<Box<dyn Step>>,
    /// How many of them belong to the forward pass.
    pub forward_steps: usize,
    /// Images, or pixels or codes where they are not real numbers.
    pub images: Memory,
    /// The classes of the images, i32, or targets, f32 or codes.
    pub labels: Memory,
    /// Which places hold a sample, where codes are read, i32.
    pub samples: Option<Memory>,
    /// Other labels and shares, where samples are mixed.
    pub mixed: Option<[Memory; 2]>,
    /// The loss of each image, f32.
    pub losses: Memory,
    /// 1 for each image classified right, else 0, f32.
    pub hits: Memory,
    /// Probabilities of the classes of each image, f32, where they are asked for.
    pub probabilities: Option<Memory>,
    images_type: DType,
    /// In the order of their steps.
    pub exchanges: Vec<Exchange>,
    /// What each step writes (real numbers only) and reads as a parameter, with names, to find where NaN came from.
    watched: Vec<Watched>,
}

/// What ranks that share statistics, or layers, tell each other after a step. The step itself has put this rank's own
/// numbers in every row; where there are other ranks, each row is to be what that rank has.
#[derive(Debug, Clone)]
pub struct Exchange {
    /// The step that gives the rank's own row.
    pub step: usize,
    /// What it is called, for those who wait for it.
    pub label: String,
    /// Whether every rank gets what each has (`Gather`), or what each has for it (`AllToAll`).
    pub kind: Kind,
    /// How many ranks' rows there are.
    pub ranks: usize,
    /// Where these have unlike many rows of images: what becomes of what they tell.
    pub rows: Option<(NormStatistics, Rows)>,
    /// What this rank has, in words of four bytes.
    pub own: Memory,
    /// What comes, in the order of ranks.
    pub all: Memory,
}

struct Watched {
    label: String,
    parameters: Vec<(String, Memory, DType)>,
    outputs: Vec<(Memory, DType)>,
}

impl Plan {
    /// Fixes every kernel to its memory.
    pub fn bind(&self, regions: &Regions) -> Result<Program> {
        self.bind_context(regions, 0)
    }

    /// The same for one of several micro-batches in flight (`Plan::contexts`).
    pub fn bind_context(&self, regions: &Regions, context: usize) -> Result<Program> {
        let at = |place: &Location| match place.region {
            Region::Arena => {
                let offset = place.offset + self.contexts.shift(place.offset, context);
                regions.at(&Location { offset, ..*place })
            }
            _ => regions.at(place),
        };
        let mut steps = Vec::with_capacity(self.steps.len());
        let mut watched = Vec::with_capacity(self.steps.len());
        let mut exchanges = Vec::new();
        for (index, step) in self.steps.iter().enumerate() {
            let inputs: Vec<Memory> = step.inputs.iter().map(at).collect();
            let outputs: Vec<Memory> = step.outputs.iter().map(at).collect();
            let workspace = regions.workspace.slice(0, step.kernel.workspace);
            let bound = step.kernel.bind(&inputs, &outputs, &workspace);
            steps.push(bound.map_err(|e| e.context(&step.label))?);
            watched.push(self.watch(step, &inputs, &outputs));
            if let Some((kind, ranks)) = self.exchanging(step) {
                let (own, all, rows) = (inputs[0].clone(), outputs[0].clone(), self.evened_out(step));
                let label = step.label.clone();
                exchanges.push(Exchange { step: index, label, kind, ranks, rows, own, all });
            }
        }
        Ok(Program {
            steps,
            forward_steps: self.forward_steps,
            images: at(&self.host.images),
            images_type: self.graph.tensor(self.graph.images).spec.dtype,
            labels: at(&self.host.labels),
            samples: self.host.samples.as_ref().map(&at),
            mixed: self.host.mixed.map(|places| places.map(|place| at(&place))),
            losses: at(&self.host.losses),
            hits: at(&self.host.hits),
            probabilities: self.host.probabilities.as_ref().map(&at),
            exchanges,
            watched,
        })
    }

    fn watch(&self, step: &super::PlannedStep, inputs: &[Memory], outputs: &[Memory]) -> Watched {
        let Some(node) = step.node.map(|id| self.graph.node(id)) else {
            return Watched { label: step.label.clone(), parameters: Vec::new(), outputs: Vec::new() };
        };
        let typed = |memories: &[Memory], layouts: &[Layout]| -> Vec<(Memory, DType)> {
            memories.iter().cloned().zip(layouts.iter().map(Layout::dtype)).collect()
        };
        let inputs = typed(inputs, &step.kernel.inputs);
        let parameters = node.inputs.iter().zip(inputs).filter_map(|(id, (memory, dtype))| {
            let tensor = self.graph.tensor(*id);
            (tensor.role == Role::Parameter).then(|| (tensor.name.clone(), memory, dtype))
        });
        let is_real = |id: &TensorId| self.graph.tensor(*id).spec.dtype.is_real();
        let outputs = typed(outputs, &step.kernel.outputs);
        let outputs =
            node.outputs.iter().zip(outputs).filter(|(id, _)| is_real(id)).map(|(_, output)| output);
        Watched { label: step.label.clone(), parameters: parameters.collect(), outputs: outputs.collect() }
    }
}

impl Program {
    /// Runs the forward pass again on the same batch, looking at every number, and says where the first one that
    /// is not finite stands; `None` when all are. Nothing is exchanged: what came from another rank is not found.
    pub fn first_not_finite(&mut self, device: &dyn Device, scalars: &Scalars) -> Result<Option<String>> {
        if self.images_type.is_real() && has_not_finite(device, &self.images, self.images_type)? {
            return Ok(Some("in the images of the batch".into()));
        }
        for index in 0..self.forward_steps {
            let watched = &self.watched[index];
            for (name, memory, dtype) in &watched.parameters {
                if has_not_finite(device, memory, *dtype)? {
                    return Ok(Some(format!(
                        "in parameter {name} (the update before this step put it there)"
                    )));
                }
            }
            self.steps[index].run(scalars)?;
            device.synchronize()?;
            for (memory, dtype) in &watched.outputs {
                if has_not_finite(device, memory, *dtype)? {
                    return Ok(Some(format!("in the output of layer {}", watched.label)));
                }
            }
        }
        Ok(None)
    }
}

/// Whether memory of f32 or bf16 holds a number that is not finite.
pub fn has_not_finite(device: &dyn Device, memory: &Memory, dtype: DType) -> Result<bool> {
    // Piece by piece: a copy of the largest tensor at once would be the most that a run ever needs.
    const PIECE: usize = 1 << 18;
    let mut buffer = vec![0u8; PIECE.min(memory.bytes())];
    for start in (0..memory.bytes()).step_by(PIECE) {
        let piece = memory.slice(start, PIECE.min(memory.bytes() - start));
        let bytes = &mut buffer[..piece.bytes()];
        device.download(&piece, bytes)?;
        let finite = match dtype {
            DType::BF16 => bytes.as_chunks::<2>().0.iter().all(|&half| bf16::from_ne_bytes(half).is_finite()),
            DType::F16 => bytes.as_chunks::<2>().0.iter().all(|&half| f16::from_ne_bytes(half).is_finite()),
            _ => bytes.as_chunks::<4>().0.iter().all(|&word| f32::from_ne_bytes(word).is_finite()),
        };
        if !finite {
            return Ok(true);
        }
    }
    Ok(false)
}
