//! What a run computes with, put together from its plans: memory, the program with its updates, the test.

use std::ops::Range;
use std::rc::Rc;

use super::averaging::Averaging;
use super::device_prefetch::DevicePrefetch;
use super::evaluate::Evaluator;
use super::gpu_direct;
use super::memory::{Memories, as_memory};
use super::metrics::Metrics;
use super::plans::{Plans, codes_on_device, manner};
use super::step::{Accumulation, Clip, Scaling, Stretch, Trainer};
use super::stop::Flags;
use super::weights::Start;
use crate::collective::tuning::Tuning;
use crate::collective::{Collective, Gather, Hierarchical, Operation, Route, select};
use crate::comm::{Barrier, World};
use crate::config::{AllreduceKind, Config, Wire};
use crate::data::{Batch, TestLoader};
use crate::device::{Device, Memory, Rule, Step};
use crate::error::{Error, Result};
use crate::fusion::compress::{self, Account, At, Compressed};
use crate::fusion::{Carriers, Exchanges, Fusion, Line, Norms, OnDevice, ReduceAt, Staging, Tail, Words};
use crate::graph::DType;
use crate::optim::LossScaler;
use crate::plan::{Area, Plan, Program, Script, TAIL};

/// What everything is made of. All of it is collective, and fails on every rank alike.
pub struct Assembly<'a> {
    pub world: &'a World,
    /// Those that compute, as this rank does; or those that serve.
    pub peers: &'a World,
    pub config: &'a Config,
    pub averaging: &'a Averaging,
    pub plans: &'a Plans,
    pub device: &'a dyn Device,
    pub rule: &'a Rule,
}

impl Assembly<'_> {
    /// All memory, with the first value of every parameter.
    pub fn memories(&self, start: Option<&Start>, threads: usize) -> Result<Memories> {
        let Assembly { world, config, averaging, plans, device, rule, .. } = *self;
        let plan = &plans.training;
        let memories =
            world.agree(Memories::new(world, device, plan, &plans.sizes, rule, config, averaging))?;
        world.agree(memories.initialise(device, plan, start, config.seed, threads))?;
        Ok(memories)
    }

    pub fn trainer(&self, memories: &Memories) -> Result<Trainer> {
        let Assembly { world, plans, device, .. } = *self;
        let plan = &plans.training;
        let script = self.script(memories);
        let serves = memories.owners.serves(world.rank());
        let program = (!serves).then(|| plan.bind(&memories.regions)).transpose();
        let program = world.agree(program)?;
        let (fusion, compression) = self.fusion(&script, program.as_ref(), memories)?;
        let trainer = world.agree(self.steps(script, program, fusion, memories))?;
        let barrier = (memories.sharing.ranks > 1).then(|| Barrier::new(world));
        let ahead = match &trainer.program {
            Some(program) if !device.is_host() && self.config.data.is_some() => {
                let inputs = &memories.regions.inputs;
                Some(DevicePrefetch::new(device, program, inputs, self.empty_batch()))
            }
            _ => None,
        };
        let ahead = world.agree(ahead.transpose())?;
        Ok(Trainer { compression, ahead, barrier: world.agree(barrier.transpose())?, ..trainer })
    }

    /// What this rank does in a step.
    fn script(&self, memories: &Memories) -> Rc<Script> {
        let Assembly { world, config, plans, rule, .. } = *self;
        let manner = manner(world, config, memories.owners, memories.sharing.ranks > 1);
        Rc::new(plans.training.scripts(&manner, rule, world.rank()..world.rank() + 1).swap_remove(0))
    }

    /// What carries out the script's transfers. Collective.
    fn fusion(
        &self,
        script: &Script,
        program: Option<&Program>,
        memories: &Memories,
    ) -> Result<(Fusion, Option<Account>)> {
        let Assembly { world, device, .. } = *self;
        let (reduce, compression) = self.reduction(memories)?;
        let apart = memories.owners.are_apart();
        let at = self.reduced_at(memories);
        let staged = matches!(at, ReduceAt::Staged(_)).then(|| end(&memories.on_host));
        let tail = world.agree(Tail::new(device, end(&memories.averaged), staged, world.size()))?;
        let operation = if apart { "reduce-scatter" } else { "allreduce" };
        let sums = Line::new(Words { what: "bucket", operation }, reduce, at);
        let apart_lines = if apart { Some(self.apart(memories)?) } else { None };
        let gathers = script.transfers.iter().any(|transfer| transfer.area == Area::Norms);
        let norms = if gathers { Some(world.agree(Norms::new(world))?) } else { None };
        let exchanges = program.map_or(Ok(None), |program| self.exchanges(program))?;
        let carriers = Carriers { sums, apart: apart_lines, norms, exchanges };
        let fusion = world.agree(Fusion::new(carriers, script, self.config.overlap))?;
        Ok((fusion.with_tail(tail), compression))
    }

    /// Where owners are apart: what adds up the step's own numbers, and what brings new parameters. Collective.
    fn apart(&self, memories: &Memories) -> Result<[Line; 2]> {
        let Assembly { world, plans, device, averaging, .. } = *self;
        let region = memories.travelling.as_ref();
        let region = world.agree(region.ok_or_else(|| Error::internal("parameters that never travel")))?;
        let last = plans.training.bucket_bytes().last().copied().unwrap_or(0);
        let [tail, parameters]: [Box<dyn Collective>; 2] = match self.config.strategy.is_central() {
            // In the order of ranks, as owners add.
            true => [
                select(
                    AllreduceKind::RING,
                    self.config.wire,
                    &Tuning::built_in(),
                    world,
                    &memories.gradients,
                )?,
                Operation::Allgather.make(Route::Star, Wire::F32, world, region)?,
            ],
            _ => {
                let tail = averaging.selection.build_for(last, world, &memories.gradients)?;
                let parameters: Box<dyn Collective> = match memories.sharing.ranks > 1 {
                    true => Box::new(Hierarchical::between_nodes(world, region)?),
                    false => Operation::Allgather.make(Route::Ring, Wire::F32, world, region)?,
                };
                [tail, parameters]
            }
        };
        let staging = |device_memory: &Memory, host: Memory| match device.is_host() {
            true => ReduceAt::InPlace,
            false => ReduceAt::Staged(Staging { device: device_memory.clone(), host }),
        };
        let at = staging(&memories.averaged, memories.on_host.clone());
        let tail = Line::new(Words { what: "the step's sums", operation: "allreduce" }, tail, at);
        let at = staging(&memories.regions.parameters, as_memory(region));
        let words = Words { what: "parameters of bucket", operation: "allgather" };
        Ok([tail, Line::new(words, parameters, at)])
    }

    fn reduced_at(&self, memories: &Memories) -> ReduceAt {
        let Assembly { world, device, .. } = *self;
        match self.averaging.selection.kind() {
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
        }
    }

    /// The evaluation that a plan is for.
    pub fn evaluator(&self, plan: &Plan, memories: &Memories, loader: TestLoader) -> Result<Evaluator> {
        let serves = memories.owners.serves(self.world.rank());
        let program = (!serves).then(|| plan.bind(&memories.evaluated())).transpose();
        Ok(Evaluator {
            program: self.world.agree(program)?,
            peers: self.peers.clone(),
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
        if memories.owners.are_apart() {
            let (scatter, region) = (Operation::ReduceScatter, &memories.gradients);
            let sums = match self.config.strategy.is_central() {
                true => scatter.make(Route::Star, self.config.wire, world, region)?,
                false => selection.build_half(true, world, region)?,
            };
            return Ok((sums, None));
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
        let gather = self.peers.agree(Gather::new(self.peers, ranks, longest))?;
        let exchanges = Exchanges::new(self.device, gather, program.exchanges.clone());
        Ok(Some(self.peers.agree(exchanges)?))
    }

    /// Everything that is done in a step. Not collective.
    fn steps(
        &self,
        script: Rc<Script>,
        program: Option<Program>,
        fusion: Fusion,
        memories: &Memories,
    ) -> Result<Trainer> {
        let Assembly { config, plans, device, .. } = *self;
        let plan = &plans.training;
        let parameters = &memories.regions.parameters;
        let computing = config.strategy.computing(self.world.size());
        let global_batch = computing * config.batch * config.accumulation;
        let stretches = program.as_ref().map_or(Vec::new(), |program| Stretch::cut(program, &script, device));
        let metrics =
            program.as_ref().map(|program| Metrics::new(device, program, &memories.regions.metrics));
        Ok(Trainer {
            stretches,
            script,
            runs: 0,
            metrics: metrics.transpose()?,
            program,
            fusion,
            clip: self.clip(memories)?,
            scaling: self.scaling(memories)?,
            compression: None,
            updates: self.updates(memories)?,
            averages: self.averages(memories)?,
            barrier: None,
            ahead: None,
            accumulate: self.accumulation(memories)?,
            flags: Flags::default(),
            seed: config.seed,
            gradient_scale: 1.0 / global_batch as f32,
            batch: self.empty_batch(),
            parameters: plan.parameters.iter().map(|p| (p.name.clone(), p.of(parameters))).collect(),
        })
    }

    /// The update of each bucket's part.
    fn updates(&self, memories: &Memories) -> Result<Vec<Box<dyn Step>>> {
        let Assembly { plans, device, rule, .. } = *self;
        let of = |(bucket, part): (usize, &Range<usize>)| {
            let mut spans = plans.training.spans(part, rule);
            spans.iter_mut().for_each(|span| span.start -= part.start / 4);
            let [parameters, gradients] = [&memories.regions.parameters, &memories.averaged]
                .map(|region| region.slice(part.start, part.len()));
            let state: Vec<Memory> =
                memories.state.iter().map(|state| memories.of_part(state, bucket)).collect();
            device.update(rule, &spans, &parameters, &gradients, &state)
        };
        memories.parts.iter().enumerate().map(of).collect()
    }

    /// What is done to gradients when they are summed is done to all of them, or where owners are apart to those that
    /// this rank owns.
    fn summed(&self, memories: &Memories) -> Vec<Memory> {
        let averaged = &memories.averaged;
        match memories.owners.are_apart() {
            true => memories.parts.iter().map(|part| averaged.slice(part.start, part.len())).collect(),
            false => vec![averaged.slice(0, averaged.bytes() - TAIL)],
        }
    }

    /// The norm is made of those of the shares that the computing ranks would own, so that it is the same whoever owns
    /// what.
    fn clip(&self, memories: &Memories) -> Result<Option<Clip>> {
        let Assembly { world, plans, device, rule, .. } = *self;
        let Some(max_norm) = self.config.optimizer.clip_norm else { return Ok(None) };
        let summed = self.summed(memories);
        if !device.is_host() && !memories.owners.are_apart() {
            return Ok(Some(Clip::OnDevice(device.clip(max_norm, &summed[0])?)));
        }
        let (plan, all) = (&plans.training, self.config.strategy.computing(world.size()));
        let of_share = |share: usize| {
            let share = |bucket| plan.share(bucket, rule, share, all);
            plan.buckets.iter().map(share).collect::<Vec<_>>()
        };
        let parts: Vec<Vec<Range<usize>>> = match memories.owners.normed(world.rank(), all) {
            Some(shares) => shares.map(of_share).collect(),
            None => vec![memories.parts.clone()],
        };
        let squares = |parts: &Vec<Range<usize>>| {
            let parts = parts.iter().filter(|part| !part.is_empty());
            let parts: Vec<Memory> = parts.map(|p| memories.averaged.slice(p.start, p.len())).collect();
            device.squares(&parts)
        };
        let squares = parts.iter().map(squares).collect::<Result<_>>()?;
        let broken = device.allocate(4)?;
        let scale = summed.iter().map(|part| device.scale(part, &broken)).collect::<Result<_>>()?;
        Ok(Some(Clip::Of { max_norm, squares, scale, total: 0.0 }))
    }

    fn scaling(&self, memories: &Memories) -> Result<Option<Scaling>> {
        let Some(settings) = self.config.loss_scale else { return Ok(None) };
        let broken = self.device.allocate(4)?;
        let steps = self.summed(memories).iter().map(|part| self.device.scale(part, &broken)).collect();
        let steps: Result<Vec<_>> = steps;
        Ok(Some(Scaling { scaler: LossScaler::new(settings), steps: steps?, broken, stuck: false }))
    }

    /// The moving average's update of each bucket's part.
    fn averages(&self, memories: &Memories) -> Result<Vec<Box<dyn Step>>> {
        let (Some(decay), Some(into)) = (self.config.optimizer.ema, &memories.average) else {
            return Ok(Vec::new());
        };
        let of = |(bucket, part): (usize, &Range<usize>)| {
            let from = memories.regions.parameters.slice(part.start, part.len());
            self.device.average(decay, &from, &memories.of_part(into, bucket))
        };
        memories.parts.iter().enumerate().map(of).collect()
    }

    fn accumulation(&self, memories: &Memories) -> Result<Option<Accumulation>> {
        if self.config.accumulation == 1 {
            return Ok(None);
        }
        let sum = memories.averaged.slice(0, memories.averaged.bytes() - TAIL);
        let own = memories.regions.gradients.slice(0, sum.bytes());
        let add = self.device.accumulate(&own, &sum)?;
        Ok(Some(Accumulation { micro_steps: self.config.accumulation, add, sum }))
    }
}

/// The tail of gradients.
fn end(gradients: &Memory) -> Memory {
    gradients.slice(gradients.bytes() - TAIL, TAIL)
}
