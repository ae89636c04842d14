//! What a run computes with, put together from its plans: memory, the program with its updates, the test.

use std::ops::Range;

use super::averaging::Averaging;
use super::device_prefetch::DevicePrefetch;
use super::evaluate::Evaluator;
use super::gpu_direct;
use super::memory::{Memories, as_memory};
use super::metrics::Metrics;
use super::plans::{Plans, codes_on_device};
use super::step::{Accumulation, Scaling, Stretch, Trainer};
use super::stop::Flags;
use super::weights::Start;
use crate::collective::{Collective, Gather};
use crate::comm::{Barrier, World};
use crate::config::{AllreduceKind, Config};
use crate::data::{Batch, TestLoader};
use crate::device::{Device, Memory, Rule, Step};
use crate::error::Result;
use crate::fusion::compress::{self, Account, At, Compressed};
use crate::fusion::{Exchanges, Fusion, OnDevice, ReduceAt, Staging, Tail};
use crate::graph::DType;
use crate::optim::LossScaler;
use crate::plan::{Plan, Program, TAIL};

/// What everything is made of. All of it is collective, and fails on every rank alike.
pub struct Assembly<'a> {
    pub world: &'a World,
    pub config: &'a Config,
    pub averaging: &'a Averaging,
    pub plans: &'a Plans,
    pub device: &'a dyn Device,
    pub rule: &'a Rule,
}

impl Assembly<'_> {
    /// All memory, with the first value of every parameter.
    pub fn memories(&self, start: Option<&Start>, threads: usize) -> Result<Memories> {
        let Assembly { world, config, averaging, plans, device, rule } = *self;
        let plan = &plans.training;
        let memories =
            world.agree(Memories::new(world, device, plan, &plans.sizes, rule, config, averaging))?;
        world.agree(memories.initialise(device, plan, start, config.seed, threads))?;
        Ok(memories)
    }

    pub fn trainer(&self, memories: &Memories) -> Result<Trainer> {
        let Assembly { world, plans, device, .. } = *self;
        let plan = &plans.training;
        let (reduce, compression) = self.reduction(memories)?;
        let fusion = world.agree(Fusion::new(reduce, &plan.buckets, self.config.overlap))?;
        let at = match self.averaging.selection.kind() {
            AllreduceKind::NCCL => ReduceAt::Device,
            AllreduceKind::IPC => ReduceAt::InPlace,
            _ if self.averaging.on_device => ReduceAt::InPlace,
            _ if codes_on_device(self.config, world, device) => ReduceAt::Device,
            // A rank alone has nobody to tell, but may still compress.
            _ if !device.is_host() && (world.size() > 1 || self.config.compress.is_some()) => {
                ReduceAt::Staged(Staging {
                    device: memories.averaged.clone(),
                    host: memories.on_host.clone(),
                })
            }
            _ if !device.is_host() => ReduceAt::Device,
            _ => ReduceAt::InPlace,
        };
        let program = world.agree(plan.bind(&memories.regions))?;
        let staged = matches!(at, ReduceAt::Staged(_)).then(|| end(&memories.on_host));
        let tail = world.agree(Tail::new(device, end(&memories.averaged), staged, world.size()))?;
        let fusion = fusion.at(at).with_tail(tail).with_exchanges(self.exchanges(&program)?);
        let trainer = world.agree(self.steps(program, fusion, memories))?;
        let barrier = (memories.sharing.ranks > 1).then(|| Barrier::new(world));
        let ahead = (!device.is_host() && self.config.data.is_some()).then(|| {
            DevicePrefetch::new(device, &trainer.program, &memories.regions.inputs, self.empty_batch())
        });
        let ahead = world.agree(ahead.transpose())?;
        Ok(Trainer { compression, ahead, barrier: world.agree(barrier.transpose())?, ..trainer })
    }

    /// The evaluation that a plan is for.
    pub fn evaluator(&self, plan: &Plan, memories: &Memories, loader: TestLoader) -> Result<Evaluator> {
        Ok(Evaluator {
            program: self.world.agree(plan.bind(&memories.evaluated()))?,
            statistics: memories.regions.statistics.clone(),
            loader,
            batch: self.empty_batch(),
        })
    }

    fn empty_batch(&self) -> Batch {
        let graph = &self.plans.training.graph;
        let (batch, images) = (self.config.batch, &graph.tensor(graph.images).spec);
        match images.dtype {
            DType::U8 => Batch::of_pixels(batch, images.shape.per_sample()),
            _ => Batch::new(batch, images.shape.per_sample()),
        }
    }

    /// What sums gradients over ranks, and what compression keeps account of where there is any.
    fn reduction(&self, memories: &Memories) -> Result<(Box<dyn Collective>, Option<Account>)> {
        let (world, selection) = (self.world, &self.averaging.selection);
        let kind = selection.kind();
        if kind == AllreduceKind::NCCL {
            let sums = OnDevice::new(world, kind.name(), self.device, &memories.averaged)?;
            return Ok((Box::new(sums), None));
        }
        if kind == AllreduceKind::IPC {
            let sums = gpu_direct::over_gpus(
                world,
                self.config.wire,
                self.device,
                &memories.averaged,
                &memories.gradients,
            );
            return Ok((Box::new(sums?), None));
        }
        if self.averaging.on_device {
            let region = gpu_direct::region(&memories.averaged);
            return Ok((world.agree(selection.build(world, &region))?, None));
        }
        let Some(scheme) = self.config.compress else {
            return Ok((world.agree(selection.build(world, &memories.gradients))?, None));
        };
        let at = match compress::code(scheme, world.size(), self.device) {
            Some(code) => At::Device(code, &memories.averaged, as_memory),
            None => At::Host(&memories.on_host),
        };
        let made = Compressed::new(scheme, selection, world, &self.plans.training, self.device, at);
        let compressed = world.agree(made)?;
        let account = compressed.account();
        Ok((Box::new(compressed), Some(account)))
    }

    /// What the program exchanges between its steps, if anything.
    fn exchanges(&self, program: &Program) -> Result<Option<Exchanges>> {
        let Some(ranks) = program.exchanges.first().map(|exchange| exchange.ranks) else { return Ok(None) };
        let longest = program.exchanges.iter().map(|exchange| exchange.own.bytes() / 4).max().unwrap_or(0);
        let gather = self.world.agree(Gather::new(self.world, ranks, longest))?;
        let exchanges = Exchanges::new(self.device, gather, program.exchanges.clone());
        Ok(Some(self.world.agree(exchanges)?))
    }

    /// Everything that is done in a step. Not collective.
    fn steps(&self, program: Program, fusion: Fusion, memories: &Memories) -> Result<Trainer> {
        let Assembly { world, config, plans, device, rule, .. } = *self;
        let plan = &plans.training;
        let averaged = &memories.averaged;
        let gradients = averaged.slice(0, averaged.bytes() - TAIL);
        let parameters = &memories.regions.parameters;
        let update =
            |part| device.update(rule, &plan.spans(part, rule), parameters, averaged, &memories.state);
        let clip =
            config.optimizer.clip_norm.map(|max_norm| device.clip(max_norm, &gradients)).transpose()?;
        let global_batch = world.size() * config.batch * config.accumulation;
        let buckets = plan.buckets.iter().map(|bucket| bucket.after);
        Ok(Trainer {
            stretches: Stretch::cut(&program, buckets, device),
            runs: 0,
            metrics: Metrics::new(device, &program, &memories.regions.metrics)?,
            program,
            fusion,
            clip,
            scaling: self.scaling(&gradients)?,
            compression: None,
            updates: memories.parts.iter().map(update).collect::<Result<_>>()?,
            averages: self.averages(memories)?,
            barrier: None,
            ahead: None,
            accumulate: self.accumulation(&gradients, memories)?,
            flags: Flags::default(),
            seed: config.seed,
            gradient_scale: 1.0 / global_batch as f32,
            batch: self.empty_batch(),
            parameters: plan.parameters.iter().map(|p| (p.name.clone(), p.of(parameters))).collect(),
        })
    }

    fn scaling(&self, gradients: &Memory) -> Result<Option<Scaling>> {
        let Some(settings) = self.config.loss_scale else { return Ok(None) };
        let broken = self.device.allocate(4)?;
        let step = self.device.scale(gradients, &broken)?;
        Ok(Some(Scaling { scaler: LossScaler::new(settings), step, broken, stuck: false }))
    }

    /// The moving average's update of each bucket's part.
    fn averages(&self, memories: &Memories) -> Result<Vec<Box<dyn Step>>> {
        let (Some(decay), Some(into)) = (self.config.optimizer.ema, &memories.average) else {
            return Ok(Vec::new());
        };
        let slice = |memory: &Memory, part: &Range<usize>| memory.slice(part.start, part.len());
        let from = &memories.regions.parameters;
        let of = |part| self.device.average(decay, &slice(from, part), &slice(into, part));
        memories.parts.iter().map(of).collect()
    }

    fn accumulation(&self, sum: &Memory, memories: &Memories) -> Result<Option<Accumulation>> {
        if self.config.accumulation == 1 {
            return Ok(None);
        }
        let own = memories.regions.gradients.slice(0, sum.bytes());
        let add = self.device.accumulate(&own, sum)?;
        Ok(Some(Accumulation { micro_steps: self.config.accumulation, add, sum: sum.clone() }))
    }
}

/// The tail of gradients.
fn end(gradients: &Memory) -> Memory {
    gradients.slice(gradients.bytes() - TAIL, TAIL)
}
