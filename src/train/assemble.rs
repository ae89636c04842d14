//! What a run computes with, put together from its plans: memory, the program with its updates, the test.

use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;

use super::asynchronous::{Side, Worker};
use super::captured::{Bound, Stretch, Whole};
use super::device_prefetch::DevicePrefetch;
use super::evaluate::Evaluator;
use super::groups::Groups;
use super::meeting::{Meetings, RelaxedWays};
use super::memory::Memories;
use super::metrics::Metrics;
use super::plans::{Plans, manner};
use super::server::Server;
use super::shards::Statistics;
use super::step::{
    Accumulation, Adding, Clip, OwnedParts, PartUpdates, Round, Scaling, StepImages, Trainer, Verdict,
};
use super::stop::Flags;
use super::weights::Start;
use crate::comm::{Barrier, World};
use crate::config::Config;
use crate::data::{Batch, TestLoader};
use crate::device::{Device, Memory, Scalars, Step, Updated};
use crate::error::{Error, Result};
use crate::fusion::{Fusion, Link, Relay};
use crate::graph::{DType, Graph};
use crate::optim::LossScaler;
use crate::plan::{Action, Axis, Gathered, Manner, Plan, Program, Script, TAIL, TransferId, Window};
use crate::reducer::{Averaging, Carrying, Pushes, edges, exchanges, trades};

/// What everything is made of. All of it is collective, and fails on every rank alike.
pub struct Assembly<'a> {
    pub groups: &'a Groups,
    /// Those that have the same parameters, or push to those that have.
    pub world: &'a World,
    /// Those that compute, as this rank does; or those that serve.
    pub peers: &'a World,
    pub config: &'a Config,
    pub averaging: &'a Averaging,
    pub plans: &'a Plans,
    pub device: &'a dyn Device,
}

impl Assembly<'_> {
    /// All memory, with the first value of every parameter.
    pub fn memories(&self, start: Option<&Start>, threads: usize) -> Result<Memories> {
        let Assembly { world, plans, device, .. } = *self;
        let mut memories = world.agree(Memories::new(self))?;
        let beside = self.groups.split.as_ref().filter(|_| self.groups.is_of_first());
        memories.beside = beside.map(|split| split.beside.clone());
        world.agree(memories.initialise(self, start, threads))?;
        let mut every = [&plans.training].into_iter().chain(&plans.evaluation);
        world.agree(every.try_for_each(|plan| memories.regions.write_constants(device, plan)))?;
        Ok(memories)
    }

    pub fn trainer(&self, memories: &Memories) -> Result<Trainer> {
        let Assembly { world, peers, plans, device, .. } = *self;
        let plan = &plans.training;
        let scripts = self.scripts(memories);
        let script = scripts.last().ok_or_else(|| Error::internal("a round without steps"))?;
        let serves = memories.owners.serves(world.rank());
        let contexts = if serves { 0 } else { plan.contexts.count };
        let bind = |context| plan.bind_context(&memories.regions, context);
        let programs: Vec<Program> = world.agree((0..contexts).map(bind).collect())?;
        let (job, averaging) = (&self.groups.job, self.averaging);
        let alike = self.groups.split.as_ref().map(|split| &split.alike);
        let carrying = Carrying { job, world, peers, alike, config: self.config, averaging, plan, device };
        let places = memories.places();
        let (fusion, compression, asynchronous) = match self.config.strategy.is_asynchronous() {
            true => {
                let (fusion, pushes) = carrying.asynchronous(script, &places)?;
                (fusion, None, Some(self.side(pushes)))
            }
            false => {
                let (fusion, compression) = carrying.fusion(script, programs.first(), &places)?;
                (fusion, compression, None)
            }
        };
        let trainer = world.agree(self.steps(scripts, programs, fusion, memories))?;
        let barrier = (memories.sharing.ranks > 1).then(|| Barrier::new(world));
        let ahead = match trainer.programs.first() {
            // A stage has the batches of several micro-batches at once.
            _ if self.groups.mesh.is_cut() => None,
            Some(bound) if !device.is_host() && self.config.data.is_some() => {
                let inputs = &memories.regions.inputs;
                Some(DevicePrefetch::new(
                    device,
                    &bound.program,
                    inputs,
                    self.empty_batch(&self.plans.training.graph),
                ))
            }
            _ => None,
        };
        let ahead = world.agree(ahead.transpose())?;
        Ok(Trainer {
            relaxed: RelaxedWays { asynchronous, ..trainer.relaxed },
            compression,
            images: StepImages { ahead, ..trainer.images },
            barrier: world.agree(barrier.transpose())?,
            ..trainer
        })
    }

    /// What this rank does with pushes.
    fn side(&self, pushes: Pushes) -> Side {
        let (rank, ranks) = (self.world.rank(), self.world.size());
        let computing = self.config.strategy.computing(ranks);
        match pushes.service {
            None => Side::Worker(Worker::new(pushes.notes, computing)),
            Some(service) => {
                let order = self.config.async_order;
                let server = Server::new(service, pushes.notes, order, [rank, computing, ranks]);
                Side::Server(Box::new(server))
            }
        }
    }

    /// What this rank does in the steps of a round.
    fn scripts(&self, memories: &Memories) -> Vec<Rc<Script>> {
        let Assembly { groups, world, config, plans, .. } = *self;
        let manner = manner(groups.layout(), config, memories.owners, memories.sharing.ranks > 1);
        let [place, _, tensor] = groups.mesh.coordinates(world.rank());
        // Of stages each is a world of its own.
        let place = if groups.mesh.is_cut() { world.rank() } else { place };
        let manners = Manner { tensor, ..manner }.of_round(config.relaxed(world.size()));
        let own = place..place + 1;
        let of = |manner: &Manner| {
            Rc::new(plans.training.scripts(manner, &config.optimizer.rule, own.clone()).swap_remove(0))
        };
        manners.iter().map(of).collect()
    }

    /// The evaluation that a plan is for.
    pub fn evaluator(&self, plan: &Plan, memories: &Memories, loader: TestLoader) -> Result<Evaluator> {
        let serves = memories.owners.serves(self.world.rank());
        let program = (!serves).then(|| plan.bind(&memories.evaluated())).transpose();
        let program = self.world.agree(program)?;
        let exchanges =
            program.as_ref().map_or(Ok(None), |program| exchanges(self.peers, self.device, program))?;
        let relay = match self.groups.mesh.is_cut() {
            false => {
                let trades = trades(&self.groups.job, self.device, &memories.regions.arena, plan)?;
                trades.map(|edges| Relay::new(edges, plan))
            }
            true => {
                let links = Link::of_plan(plan, |stage| self.groups.beside(stage));
                let edges = edges(&self.groups.job, self.device, &memories.regions.arena, links)?;
                Some(Relay::new(edges, plan))
            }
        };
        Ok(Evaluator {
            exchanges,
            relay,
            program,
            peers: self.peers.clone(),
            statistics: memories.regions.statistics.clone(),
            loader,
            metric: self.config.metric(),
            batch: self.empty_batch(&plan.graph),
        })
    }

    fn empty_batch(&self, graph: &Graph) -> Batch {
        let batch = self.config.batch;
        let [mut images, target] = [graph.images, graph.labels].map(|id| {
            let spec = &graph.tensor(id).spec;
            (spec.dtype, spec.shape.elements() / batch)
        });
        if target.0 == DType::I32 {
            // Images are read whole, whatever rows of them the network of this rank has; of arrays nothing else is.
            images.1 = graph.image().elements();
        }
        Batch::of_parts(batch, [images, target])
    }

    /// Everything that is done in a step. Not collective.
    fn steps(
        &self,
        scripts: Vec<Rc<Script>>,
        programs: Vec<Program>,
        fusion: Fusion,
        memories: &Memories,
    ) -> Result<Trainer> {
        let Assembly { config, plans, device, .. } = *self;
        let plan = &plans.training;
        let computing = config.strategy.computing(self.world.size());
        // Gradients that update by themselves are those of a rank's own images.
        let images = match config.strategy.updates_alone() {
            true => config.images_of(self.world.rank(), computing),
            false => config.images_a_step(computing),
        };
        let relaxed = config.relaxed(self.world.size());
        let metrics = programs.first().filter(|program| program.losses.bytes() > 0);
        let metrics = metrics.map(|program| Metrics::new(device, program, &memories.regions.metrics));
        let bound = |program| Bound { stretches: Stretch::cut(&program, &scripts, device), program };
        let programs = programs.into_iter().map(bound).collect();
        let round = Round {
            scripts,
            steps: relaxed.map_or(1, |relaxed| relaxed.every),
            resets: relaxed.is_some_and(|relaxed| relaxed.resets()),
        };
        Ok(Trainer {
            programs,
            whole: self.whole(&round.scripts[0]),
            relaxed: RelaxedWays {
                meetings: Meetings::new(device, plan, memories, computing)?,
                asynchronous: None,
                drains: false,
            },
            statistics: config.shards.map(|shards| {
                Statistics::new(self.peers.clone(), memories.regions.statistics.clone(), shards)
            }),
            runs: 0,
            fusion,
            compression: None,
            updates: self.part_updates(memories)?,
            barrier: None,
            flags: Flags::default(),
            scalars: Scalars { seed: config.seed, gradient_scale: 1.0 / images as f32, ..Scalars::default() },
            images: StepImages {
                batch: self.empty_batch(&self.plans.training.graph),
                ahead: None,
                sharers: config.spatial,
                metrics: metrics.transpose()?,
            },
            parameters: memories.held(plan),
            owned: self.owned_parts(&round.scripts[0], memories),
            round,
        })
    }

    /// Whether the device may do all of a step at once, from the images to the updates.
    fn whole(&self, script: &Script) -> Option<Whole> {
        let Assembly { config, averaging, device, .. } = *self;
        let apart = match () {
            _ if device.is_host() => "the device has no queue",
            _ if script.mesh.ranks() > 1 => "other ranks' gradients come before the updates",
            _ if script.accumulates => "each micro-batch has images and numbers of its own",
            _ if config.shards.is_some() => "statistics of shards are kept apart between passes",
            _ if script.relaxed => "ranks with parameters of their own meet behind the updates",
            _ if config.compress.is_some() => "gradients are encoded before the updates",
            _ if averaging.on_device => "gradients go through NCCL, IPC or MPI before the updates",
            _ if device.skip_flag().is_none() => "updates do not look at losses themselves",
            _ => return Some(Whole::default()),
        };
        log::debug!("a step is not done at once: {apart}");
        None
    }

    /// What is done with the gradients of a step that are summed.
    fn part_updates(&self, memories: &Memories) -> Result<PartUpdates> {
        Ok(PartUpdates {
            accumulate: self.accumulation(memories)?,
            scaling: self.scaling(memories)?,
            clip: self.clip(memories)?,
            of_parts: self.updates(memories)?,
            averages: self.averages(memories)?,
        })
    }

    /// What is copied where owners have parts.
    fn owned_parts(&self, script: &Script, memories: &Memories) -> OwnedParts {
        let plan = &self.plans.training;
        let gap = |gap: &Range<usize>| memories.regions.gradients.slice(gap.start, gap.len());
        let gaps = |window: &Window| window.gaps.iter().map(gap).collect();
        OwnedParts {
            spreads: self.spreads(script, memories),
            gaps: plan.windows.iter().flat_map(|windows| &windows.gradients).map(gaps).collect(),
            kept: memories.kept.iter().cloned().zip(memories.sums.iter().cloned()).collect(),
            gathers: plan.gathers(),
        }
    }

    /// The update of each bucket's part.
    fn updates(&self, memories: &Memories) -> Result<Vec<Box<dyn Step>>> {
        let Assembly { plans, device, .. } = *self;
        let rule = &self.config.optimizer.rule;
        let of = |(bucket, part): (usize, &Range<usize>)| {
            let mut spans = plans.training.spans(part, rule);
            spans.iter_mut().for_each(|span| span.start -= part.start / 4);
            let state: Vec<Memory> =
                memories.state.iter().map(|state| memories.of_part(state, bucket)).collect();
            let (parameters, gradients) = (&memories.of_parameters(bucket), &memories.sums[bucket]);
            device.update(rule, &spans, &Updated { parameters, gradients, state: &state })
        };
        memories.parts.iter().enumerate().map(of).collect()
    }

    /// What is done to gradients when they are summed is done to all of them, or where owners are apart to those that
    /// this rank owns.
    fn summed(&self, memories: &Memories) -> Vec<Memory> {
        let averaged = &memories.gradients.averaged;
        match memories.owners.are_apart() && !self.config.strategy.is_asynchronous() {
            true => memories.sums.clone(),
            false => vec![averaged.slice(0, averaged.bytes() - TAIL)],
        }
    }

    /// Ranks with other parameters (other layers, or other parts of them) tell each other their norms, and so do owners
    /// of other parts.
    fn is_told(&self, memories: &Memories) -> bool {
        let unlike = self.groups.mesh.divides_parameters();
        unlike || memories.owners.are_apart() && !self.config.strategy.updates_alone()
    }

    /// The norm is made of those of the shares that the computing ranks would own, so that it is the same whoever owns
    /// what.
    fn clip(&self, memories: &Memories) -> Result<Option<Clip>> {
        let Assembly { world, plans, device, config, .. } = *self;
        let rule = &config.optimizer.rule;
        let Some(max_norm) = config.optimizer.clip_norm else { return Ok(None) };
        let summed = self.summed(memories);
        let is_alone = self.config.strategy.updates_alone();
        if !device.is_host() && !self.is_told(memories) {
            return Ok(Some(Clip::OnDevice(device.clip(max_norm, &summed[0])?)));
        }
        // The norm of a rank's own gradients is nobody else's, and that of shards is the same for any number of ranks.
        let is_whole = is_alone || self.config.shards.is_some();
        let all = if is_whole { 1 } else { self.config.strategy.computing(world.size()) };
        let plan = &plans.training;
        let of_share = |share: usize| {
            let share = |bucket| plan.share(bucket, rule, share, all);
            plan.buckets.iter().map(share).collect::<Vec<_>>()
        };
        let parts: Vec<Vec<Range<usize>>> = match memories.owners.normed(world.rank(), all) {
            _ if is_alone => vec![of_share(0)],
            _ if self.groups.split.is_some() => vec![self.counted(memories)],
            Some(shares) => shares.map(of_share).collect(),
            None => vec![memories.parts.clone()],
        };
        let sum = |(bucket, part): (usize, &Range<usize>)| match *part == memories.parts[bucket] {
            true => memories.sums[bucket].clone(),
            false => memories.gradients.averaged.slice(part.start, part.len()),
        };
        let squares = |parts: &Vec<Range<usize>>| {
            let parts = parts.iter().enumerate().filter(|(_, part)| !part.is_empty());
            device.squares(&parts.map(sum).collect::<Vec<Memory>>())
        };
        let squares = parts.iter().map(squares).collect::<Result<_>>()?;
        let broken = device.allocate(4)?;
        let scale = summed.iter().map(|part| device.scale(part, &broken)).collect::<Result<_>>()?;
        Ok(Some(Clip::Of { max_norm, squares, scale, total: 0.0 }))
    }

    /// Where layers are split: the buckets whose norm this rank tells the others, each of which counts once.
    fn counted(&self, memories: &Memories) -> Vec<Range<usize>> {
        let (mesh, rank) = (self.groups.mesh, self.groups.job.rank());
        let counts = |bucket| match self.plans.training.is_split(bucket) {
            true => mesh.coordinates(rank)[0] == 0,
            false => rank == 0,
        };
        let part = |(bucket, part): (usize, &Range<usize>)| if counts(bucket) { part.clone() } else { 0..0 };
        memories.parts.iter().enumerate().map(part).collect()
    }

    fn scaling(&self, memories: &Memories) -> Result<Option<Scaling>> {
        let Some(settings) = self.config.loss_scale else { return Ok(None) };
        let device = self.device;
        // Where a rank knows it by itself, and parameters change by updates alone, a device may look at it by itself.
        let is_told = self.is_told(memories) || self.config.strategy.updates_alone();
        let flag = if is_told { None } else { device.skip_flag() };
        let late = flag.is_some().then(|| device.page_locked(4)).transpose()?;
        let broken = flag.map_or_else(|| device.allocate(4), Ok)?;
        let steps: Result<Vec<_>> =
            self.summed(memories).iter().map(|part| device.scale(part, &broken)).collect();
        let late = late.map(|host| Verdict { host, arrives: None });
        Ok(Some(Scaling { scaler: LossScaler::new(settings), steps: steps?, broken, late, stuck: false }))
    }

    /// The moving average's update of each bucket's part.
    fn averages(&self, memories: &Memories) -> Result<Vec<Box<dyn Step>>> {
        let (Some(decay), Some(into)) = (self.config.optimizer.ema, &memories.average) else {
            return Ok(Vec::new());
        };
        let of = |bucket: usize| {
            self.device.average(decay, &memories.of_parameters(bucket), &memories.of_part(into, bucket))
        };
        (0..memories.parts.len()).map(of).collect()
    }

    /// For each transfer that gathers parameters: this rank's part, and where it is gathered.
    fn spreads(&self, script: &Script, memories: &Memories) -> HashMap<TransferId, (Memory, Memory)> {
        let Some(windows) = &self.plans.training.windows else { return HashMap::new() };
        let Some(to) = &memories.windows else { return HashMap::new() };
        let is_gather = |action: &Action| match action {
            Action::Spread(id) => Some(*id),
            _ => None,
        };
        let mut ids: Vec<TransferId> = script.actions.iter().filter_map(is_gather).collect();
        ids.sort_unstable();
        ids.dedup();
        let of = |(id, gathered): (TransferId, &Gathered)| {
            let own = script.transfers[id].cuts.part(script.place(Axis::Data));
            (id, (memories.of_parameters(gathered.bucket), to.on_device.slice(own.start, own.len())))
        };
        ids.into_iter().zip(&windows.gathers).map(of).collect()
    }

    fn accumulation(&self, memories: &Memories) -> Result<Option<Accumulation>> {
        if self.config.accumulation == 1 {
            return Ok(None);
        }
        let micro_steps = self.config.accumulation;
        let tree = self.config.shards.is_some();
        let plan = &self.plans.training;
        let passes = plan.gradients_of_passes();
        let parts = match passes.len() {
            0 | 1 if plan.windows.is_none() => {
                Vec::from([Range { start: 0, end: memories.gradients.averaged.bytes() - TAIL }])
            }
            _ => passes,
        };
        let windows = plan.windows.iter().flat_map(|windows| &windows.gradients);
        let mut written = windows.map(|window| window.bytes.start);
        let of_part =
            |part: &Range<usize>| self.sums(memories, part, written.next().unwrap_or(part.start), tree);
        let sums = parts.iter().map(of_part).collect::<Result<_>>()?;
        Ok(Some(Accumulation { micro_steps, sums, tree }))
    }

    /// What adds up some bytes of the gradients.
    fn sums(
        &self,
        memories: &Memories,
        part: &Range<usize>,
        written: usize,
        tree: bool,
    ) -> Result<Vec<Adding>> {
        let sum = memories.gradients.averaged.slice(part.start, part.len());
        let own = memories.regions.gradients.slice(written, part.len());
        let micro_steps = self.config.accumulation;
        let lower = if tree { micro_steps.ilog2().saturating_sub(1) } else { 0 };
        let levels: Result<Vec<Memory>> = (0..lower).map(|_| self.device.allocate(sum.bytes())).collect();
        let mut from = own;
        let add = |into: Memory| {
            let add = self.device.accumulate(&from, &into)?;
            Ok((std::mem::replace(&mut from, into.clone()), into, add))
        };
        levels?.into_iter().chain([sum]).map(add).collect()
    }
}
