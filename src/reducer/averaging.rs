//! How gradients are averaged in a run: what is decided of it before anything is planned.

use super::gpu_direct;
use super::sharing::expected_owners;
use crate::collective::Selection;
use crate::collective::cost::Nodes;
use crate::collective::tuning::{Level, Parameters, Tuning};
use crate::comm::World;
use crate::config::{AllreduceKind, Compression, Config, Strategy};
use crate::device::Device;
use crate::error::Result;
use crate::fusion::threshold;
use crate::plan::{Axis, Kind, Manner, Plan, Transfer};
use crate::strategy::Owners;

/// The same on every rank.
pub struct Averaging {
    /// What sums gradients.
    pub selection: Selection,
    tuning: Tuning,
    /// Of the rank that has fewest.
    threads: usize,
    /// Whether gradients stay in the memory of a device that has its own, and never come to the host.
    pub on_device: bool,
    compress: Option<Compression>,
    /// Where few ranks update for all.
    star: Option<Star>,
    /// In a gossip: the link to another rank.
    gossip: Option<Level>,
    /// Of a network in stages: the link from one to another.
    stages: Option<Level>,
}

/// What goes between few owners and the others, over the link of each owner.
#[derive(Clone, Copy)]
struct Star {
    owners: usize,
    others: usize,
    link: Level,
}

impl Star {
    fn new(world: &World, strategy: Strategy, parameters: &Parameters) -> Option<Star> {
        let link = if world.nodes() > 1 { parameters.between } else { parameters.within };
        match expected_owners(world, strategy, false) {
            Owners::Apart { first, count, computing } if strategy.is_central() => {
                // One that answers each by itself has as much to do with every other.
                let all = computing - usize::from(first == 0);
                Some(Star { owners: count, others: if strategy.is_asynchronous() { 1 } else { all }, link })
            }
            _ => None,
        }
    }
}

/// What is known beforehand of a bucket's sum.
pub struct Expected {
    /// The collective, or that gradients are compressed.
    pub name: &'static str,
    /// NaN with compression and between GPUs, of which the costs say nothing.
    pub seconds: f64,
}

impl Averaging {
    /// Collective.
    ///
    /// # Errors
    /// `Usage` or `Environment`, the same on every rank, where what is asked for cannot run.
    pub fn new(world: &World, config: &Config, device: &dyn Device, threads: usize) -> Result<Averaging> {
        let tuning = Tuning::load(world, config.tuning.as_deref())?;
        let nodes = Nodes::of(world);
        let given_to_mpi = gpu_direct::mpi_serves(world, config, device)?;
        let of = |kind| world.agree(Selection::new(kind, config.wire, &nodes, &tuning));
        let mut selection = of(config.allreduce)?;
        // Owners that are apart add in the host's memory, and so do ranks with parameters of their own.
        if !config.strategy.is_relaxed()
            && !expected_owners(world, config.strategy, false).are_apart()
            && gpu_direct::gpus_serve(world, config, device)?
        {
            selection = of(AllreduceKind::IPC)?;
        }
        let on_device = match selection.kind() {
            AllreduceKind::NCCL => true,
            AllreduceKind::IPC => world.nodes() == 1,
            _ => given_to_mpi,
        };
        let star = Star::new(world, config.strategy, &tuning.parameters);
        let link = if world.nodes() > 1 { tuning.parameters.between } else { tuning.parameters.within };
        let relaxed = config.relaxed(world.size());
        let gossip = relaxed.is_some_and(|relaxed| relaxed.sends_parameters()).then_some(link);
        let mut least = [threads as f64];
        world.min_f64(&mut least)?;
        let threads = least[0] as usize;
        let compress = config.compress;
        Ok(Averaging { selection, tuning, threads, on_device, compress, star, gossip, stages: None })
    }

    /// The same of a network in stages, whose ranks are those of this job.
    pub fn over_stages(self, job: &World) -> Averaging {
        let Parameters { within, between, .. } = self.tuning.parameters;
        Averaging { stages: Some(if job.nodes() > 1 { between } else { within }), ..self }
    }

    /// The link between stages: seconds until the first byte is there, and seconds a byte.
    pub fn between_stages(&self) -> [f64; 2] {
        self.stages.map_or([0.0; 2], |link| [link.latency(), link.per_byte()])
    }

    /// Cuts the gradients of a training plan into buckets, unless a threshold was given.
    ///
    /// # Errors
    /// `Internal` where a script cannot be rehearsed.
    pub fn cut(&self, plan: &mut Plan, config: &Config) -> Result<()> {
        if config.fusion_threshold.is_some() {
            return Ok(());
        }
        // Whether there is room for shared memory may differ from node to node; buckets must not.
        let sum = |bytes| self.selection.choose(bytes, true).seconds;
        let (micro_steps, overlap) = (config.accumulation, config.overlap);
        let manner = Manner { micro_steps, overlap, ..Manner::plain(vec![0]) };
        threshold::cut(plan, &manner, &config.optimizer.rule, &self.step_seconds(plan), &sum)
    }

    /// What each step of a plan is expected to take.
    pub fn step_seconds(&self, plan: &Plan) -> Vec<f64> {
        threshold::step_seconds(plan, &self.tuning.parameters, self.threads)
    }

    /// Seconds a byte that an update reads or writes.
    pub fn per_byte(&self) -> f64 {
        self.tuning.parameters.shared.per_byte() / 2.0
    }

    /// What a sum of so many bytes is expected to take; NaN with compression and between GPUs, of which nothing is
    /// known.
    pub fn seconds(&self, bytes: usize, shared: bool) -> f64 {
        let choice = self.selection.choose(bytes, shared);
        // What cuts between GPUs are made by is nothing to be told.
        let known = self.compress.is_none() && !choice.kind.is_between_gpus();
        if known { choice.seconds } else { f64::NAN }
    }

    /// What a transfer of the script is expected to take. Half of an allreduce is the reduce-scatter, half the
    /// allgather.
    pub fn transfer(&self, transfer: &Transfer, shared: bool) -> f64 {
        let seconds = self.seconds(transfer.cuts.range().len(), shared);
        match transfer.kind {
            Kind::SumToOwners | Kind::FromOwners | Kind::Push | Kind::Pull => {
                self.star_seconds(transfer.cuts.range().len()).unwrap_or(seconds / 2.0)
            }
            Kind::Send { .. } | Kind::Receive { .. } => self.message_seconds(transfer.cuts.range().len()),
            // Few bytes, to all and back.
            _ if transfer.axis == Axis::Job => {
                let rounds = transfer.cuts.ranks().max(2).ilog2() + 1;
                f64::from(rounds) * self.message_seconds(transfer.cuts.range().len())
            }
            Kind::Mix { .. } => self.gossip_seconds(transfer.cuts.range().len()).unwrap_or(seconds),
            _ => seconds,
        }
    }

    /// The same where few owners send so many bytes to all others, or get as many from each of them.
    fn star_seconds(&self, bytes: usize) -> Option<f64> {
        let Star { owners, others, link } = self.star?;
        Some(others as f64 * (link.latency() + bytes as f64 / owners as f64 * link.per_byte()))
    }

    /// From one stage to another.
    fn message_seconds(&self, bytes: usize) -> f64 {
        let [latency, per_byte] = self.between_stages();
        latency + bytes as f64 * per_byte
    }

    /// The same where every rank sends so many bytes to one, and gets as many.
    fn gossip_seconds(&self, bytes: usize) -> Option<f64> {
        self.gossip.map(|link| link.latency() + bytes as f64 * link.per_byte())
    }

    /// What each bucket's sum is expected to be, or what takes its place.
    pub fn choices(&self, plan: &Plan, shared: bool) -> Vec<Expected> {
        let of = |bytes: &usize| match self.compress {
            Some(_) => Expected { name: "compressed", seconds: f64::NAN },
            None => {
                let sum = || Expected {
                    name: self.selection.choose(*bytes, shared).kind.name(),
                    seconds: self.seconds(*bytes, shared),
                };
                let star = self.star_seconds(*bytes).map(|seconds| Expected { name: "star", seconds });
                let gossip = self.gossip_seconds(*bytes).map(|seconds| Expected { name: "gossip", seconds });
                star.or(gossip).unwrap_or_else(sum)
            }
        };
        plan.bucket_bytes().iter().map(of).collect()
    }

    /// Where the figures come from, in words.
    pub fn source(&self) -> String {
        match self.tuning.is_built_in() {
            true => "built in".into(),
            false => format!("measured, checksum {}", self.tuning.checksum().unwrap_or_default()),
        }
    }
}
