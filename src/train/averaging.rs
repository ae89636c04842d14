//! How gradients are averaged in a run: what is decided of it before anything is planned.

use super::gpu_direct;
use crate::collective::Selection;
use crate::collective::cost::Nodes;
use crate::collective::tuning::Tuning;
use crate::comm::World;
use crate::config::{AllreduceKind, Compression, Config, Strategy};
use crate::device::Device;
use crate::error::Result;
use crate::fusion::adaptive;
use crate::plan::Plan;

/// The same on every rank.
pub struct Averaging {
    pub selection: Selection,
    tuning: Tuning,
    /// Of the rank that has fewest.
    threads: usize,
    /// Bytes from which a bucket is closed; `None` to decide by ready times and costs.
    threshold: Option<usize>,
    /// Whether gradients stay in the memory of a device that has its own, and never come to the host.
    pub on_device: bool,
    compress: Option<Compression>,
    /// Whether those who update add up gradients themselves.
    central: bool,
}

/// What is known beforehand of a bucket's sum.
pub struct Expected {
    /// The collective, or that gradients are compressed.
    pub name: &'static str,
    /// NaN with compression, between GPUs and by owners' stars, of which the costs say nothing.
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
        // Owners that are apart add in the host's memory.
        if config.strategy == Strategy::ALLREDUCE && gpu_direct::gpus_serve(world, config, device)? {
            selection = of(AllreduceKind::IPC)?;
        }
        let on_device = match selection.kind() {
            AllreduceKind::NCCL => true,
            AllreduceKind::IPC => world.nodes() == 1,
            _ => given_to_mpi,
        };
        let mut least = [threads as f64];
        world.min_f64(&mut least)?;
        let threads = least[0] as usize;
        Ok(Averaging {
            selection,
            tuning,
            threads,
            threshold: config.fusion_threshold,
            on_device,
            compress: config.compress,
            central: config.strategy.is_central(),
        })
    }

    /// Cuts the gradients of a training plan into buckets, unless a threshold has.
    pub fn cut(&self, plan: &mut Plan) {
        if self.threshold.is_none() {
            // Whether there is room for shared memory may differ from node to node; buckets must not.
            let seconds = |bytes| self.selection.choose(bytes, true).seconds;
            adaptive::cut(plan, &self.tuning.parameters, self.threads, seconds);
        }
    }

    /// What each step of a plan is expected to take.
    pub fn step_seconds(&self, plan: &Plan) -> Vec<f64> {
        adaptive::step_seconds(plan, &self.tuning.parameters, self.threads)
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
        let known = self.compress.is_none() && !self.central && !choice.kind.is_between_gpus();
        if known { choice.seconds } else { f64::NAN }
    }

    /// What each bucket's sum is expected to be.
    pub fn choices(&self, plan: &Plan, shared: bool) -> Vec<Expected> {
        let of = |bytes: &usize| match self.compress {
            Some(_) => Expected { name: "compressed", seconds: f64::NAN },
            None if self.central => Expected { name: "star", seconds: f64::NAN },
            None => Expected {
                name: self.selection.choose(*bytes, shared).kind.name(),
                seconds: self.seconds(*bytes, shared),
            },
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
