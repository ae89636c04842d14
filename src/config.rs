//! The validated run: what flags and files become. Plain data, written whole into every record. And `environment`: the
//! switches that are read there alone. A group of flags that is about one thing is one struct for clap, for the run and
//! for the record.
//!
//! May use: `strategy`, `cuts`, `error`. Used by: everything.

mod allreduce;
mod buckets;
mod compression;
pub mod environment;
mod fields;
mod input;
mod length;
mod mesh;
mod network;
mod objective;
mod optimizer;
mod outputs;
mod parallel;
mod pipeline;
mod prediction;
mod rate;
mod sample;
mod session;
mod tensor;
pub mod values;
mod wire;

pub use input::{Augment, Augmentation, DataFormat, Input, JpegDecoder};

use std::path::PathBuf;

use clap::ValueEnum;
use serde::Serialize;

use crate::cuts::segment;
use crate::error::Error;
use crate::strategy::Relaxed;
pub use crate::strategy::{AsyncOrder, OuterFlags, Strategy};
pub use allreduce::{AllreduceKind, NodeMemory, Pattern, Vendor};
pub use buckets::{Buckets, StallLimits};
pub use compression::Compression;
pub use fields::{FieldOptions, Missing};
pub use length::{PlanOptions, RunLength};
pub use mesh::MeshShape;
pub use network::NetworkOptions;
pub use objective::{Loss, Metric, NamedLoss, NetworkOutput, Objective};
pub use optimizer::{Optimizer, Rule};
pub use outputs::Outputs;
pub use parallel::Parallel;
pub use pipeline::{Pipeline, PipelineSchedule};
pub use prediction::Prediction;
pub use rate::{Rate, ScheduleKind};
pub use sample::SampleShape;
pub use session::{Interval, Resume, Session};
pub use tensor::TensorParallel;
use values::without_flags;
pub use wire::Wire;

/// Limits beyond which a number is a slip of the keyboard: it would exhaust the machine, or overflow a machine word.
pub mod most {
    /// Images that a rank takes at a time, and micro-steps of an update.
    pub const BATCH: usize = 1 << 20;
    /// `--shards`.
    pub const SHARDS: usize = 1 << 16;
    /// Times an image comes in an epoch.
    pub const REPEATS: usize = 1_000_000;
    /// Images of an epoch, each as often as it comes: their order is four bytes each on every rank.
    pub const IMAGES: usize = 1 << 30;
    /// Nodes that are predicted.
    pub const NODES: usize = 1 << 16;
    /// `--measure`.
    pub const MEASURED: usize = 10_000;
    /// Threads of a rank.
    pub const THREADS: usize = 1024;
    /// Threads of a rank that read images. More help nobody, and keep the machine busy for minutes.
    pub const LOADER_THREADS: usize = 256;
}

/// Which device a rank drives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceKind {
    /// A GPU where every rank has one that can be used, else the CPU.
    Auto,
    /// oneDNN.
    Cpu,
    /// cuDNN, cuBLAS and our own kernels, on the GPU of this number or on that of the rank's place on its node.
    Cuda(Option<usize>),
    /// Plain definitions, very slow: for checking the others.
    Reference,
}

impl std::str::FromStr for DeviceKind {
    type Err = String;

    fn from_str(text: &str) -> Result<DeviceKind, String> {
        match (text, text.strip_prefix("cuda:").map(str::parse)) {
            ("auto", _) => Ok(DeviceKind::Auto),
            ("cpu", _) => Ok(DeviceKind::Cpu),
            ("cuda", _) => Ok(DeviceKind::Cuda(None)),
            (_, Some(Ok(number))) => Ok(DeviceKind::Cuda(Some(number))),
            ("reference", _) => Ok(DeviceKind::Reference),
            _ => Err("one of auto, cpu, cuda, cuda:N (the GPU of number N), reference".into()),
        }
    }
}

impl std::fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DeviceKind::Auto => f.pad("auto"),
            DeviceKind::Cpu => f.pad("cpu"),
            DeviceKind::Cuda(None) => f.pad("cuda"),
            DeviceKind::Cuda(Some(number)) => f.pad(&format!("cuda:{number}")),
            DeviceKind::Reference => f.pad("reference"),
        }
    }
}

/// The type of the numbers between layers, and of the factors of their products. Sums, parameters and their updates are
/// f32 in any.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// tf32 where every rank computes on a GPU that has it (sm_80 or newer), else f32.
    Auto,
    /// IEEE 754's single precision.
    F32,
    /// f32 whose products are rounded to 10 bits: GPUs from Ampere on have units for them.
    Tf32,
    /// Half the memory and up to twice the speed, where the CPU or GPU has instructions for it.
    Bf16,
    /// IEEE 754's half: more digits than bf16 and a narrow range, so that the loss is scaled.
    F16,
}

/// Dynamic loss scaling (`optim::LossScaler`), for f16.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LossScale {
    /// The factor of the first step.
    pub start: f32,
    /// Steps without a skipped one after which it is doubled.
    pub window: u32,
    /// Skipped steps after which it is halved.
    pub hysteresis: u32,
    /// It is never less than this.
    pub minimum: f32,
}

impl Precision {
    /// This one, or what is taken where none was asked for.
    pub fn or(self, default: Precision) -> Precision {
        if self == Precision::Auto { default } else { self }
    }
}

impl std::fmt::Display for Precision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(&values::name_of(self))
    }
}

/// TFLOP/s and GB/s: "790,4300".
pub fn rates(text: &str) -> std::result::Result<(f64, f64), String> {
    let positive = |text: &str| text.parse().ok().filter(|rate: &f64| rate.is_finite() && *rate > 0.0);
    let rates = text.split_once(',').and_then(|(flops, bytes)| Some((positive(flops)?, positive(bytes)?)));
    rates.ok_or_else(|| "TFLOP/s and GB/s: 790,4300".into())
}

/// Whether MPI is given a GPU's memory as it lies, with --allreduce mpi.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CudaAware {
    /// Where the MPI library says on every rank that it is CUDA-aware, and adds up numbers there as it should.
    Auto,
    /// It must: where it cannot be, the run ends before its first step.
    On,
    /// Gradients go through the host's memory.
    Off,
}

/// Which ranks share the statistics of batch normalisation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SyncBatchNorm {
    /// Each rank has its own.
    Off,
    /// All ranks together.
    All,
    /// So many consecutive ranks.
    Groups(usize),
}

/// What is to be said of each image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Predict {
    /// How many classes, the most probable first.
    pub top: usize,
    /// The file that it goes to: text with commas, or HDF5; `None`: it is printed.
    pub output: Option<PathBuf>,
}

/// One run, as decided before it starts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Config {
    /// All flags, defaults included, as a file that `--config` reads.
    #[serde(skip)]
    pub run_file: String,
    /// Name of the model, or the file that it is in (`model::find`).
    pub model: String,
    /// What of it is chosen, and how it starts.
    #[serde(flatten)]
    pub network: NetworkOptions,
    /// `None`: synthetic images.
    pub data: Option<PathBuf>,
    /// How images are read and prepared.
    pub input: Input,
    /// Which arrays are trained from, where it is no pictures.
    pub fields: FieldOptions,
    /// Images a rank and micro-step.
    pub batch: usize,
    /// Micro-steps whose gradients are added up before one update.
    pub accumulation: usize,
    /// Images of all ranks in an update, where that is given instead: `among` then says batch and accumulation.
    pub global_batch: Option<usize>,
    /// Shards of the global batch, each computed alone, so that bits do not depend on the number of ranks.
    pub shards: Option<usize>,
    /// Where ranks compute stages of one network: which. `batch` and `accumulation` are those of micro-batches.
    pub pipeline: Option<Pipeline>,
    /// Ranks that work on the same images, each on some of their rows.
    pub spatial: usize,
    /// Where large linear layers are split over ranks, which have images of their own: over how many.
    pub tensor: Option<TensorParallel>,
    /// Which ranks share the statistics of batch normalisation.
    pub sync_bn: SyncBatchNorm,
    /// Resolved: `RunLength::or_usual`.
    #[serde(flatten)]
    pub length: RunLength,
    /// The update rule and its numbers.
    pub optimizer: Optimizer,
    /// The learning rate over the run.
    pub rate: Rate,
    /// Seed of weights, shuffling, augmentation and dropout.
    pub seed: u64,
    /// Where ops run.
    pub device: DeviceKind,
    /// The type of the numbers between layers.
    pub precision: Precision,
    /// With f16 alone.
    pub loss_scale: Option<LossScale>,
    /// `None`: cores of the node divided by its ranks.
    pub threads: Option<usize>,
    /// Who updates parameters.
    pub strategy: Strategy,
    /// What ranks with parameters of their own do when they meet.
    pub outer: OuterFlags,
    /// Whose gradients an asynchronous server takes next.
    pub async_order: AsyncOrder,
    /// How gradients are reduced over ranks.
    pub allreduce: AllreduceKind,
    /// Whether MPI is given the GPU's memory.
    pub cuda_aware: CudaAware,
    /// The type in which gradients travel.
    pub wire: Wire,
    /// How gradients are compressed; `None`: they are not.
    pub compress: Option<Compression>,
    /// Whether activations are computed again in the backward pass instead of kept.
    pub recompute: bool,
    /// How gradients are averaged in buckets.
    #[serde(flatten)]
    pub buckets: Buckets,
    /// How long ranks wait for each other.
    #[serde(flatten)]
    pub stalls: StallLimits,
    /// What it leaves, and where.
    #[serde(flatten)]
    pub outputs: Outputs,
    /// Checkpoints, resume and time limit.
    pub session: Session,
    /// Whether the plan is printed instead.
    #[serde(flatten)]
    pub plan: PlanOptions,
    /// Steps that are measured before something is predicted by them.
    pub measure: Option<usize>,
    /// Where a planner chooses how the work is shared: what it may.
    pub parallel: Option<Parallel>,
    /// What it predicts of other nodes.
    #[serde(skip)]
    pub prediction: Option<Prediction>,
    /// Only test the weights.
    pub evaluate: bool,
    /// Only say, by the weights, what the images of `data` are.
    pub predict: Option<Predict>,
    /// Bytes a rank: only find the largest batch that fits.
    pub max_batch: Option<usize>,
}

impl Config {
    /// A training on a data set as it is where no flag is given.
    pub fn on(data: impl Into<PathBuf>) -> Config {
        let rule = Rule::default();
        Config {
            run_file: String::new(),
            model: "mnist_small".into(),
            network: without_flags(),
            data: Some(data.into()),
            input: without_flags(),
            fields: without_flags(),
            batch: 64,
            accumulation: 1,
            global_batch: None,
            shards: None,
            pipeline: None,
            spatial: 1,
            tensor: None,
            sync_bn: SyncBatchNorm::Off,
            length: without_flags::<RunLength>().or_usual(false),
            optimizer: Optimizer { rule, clip_norm: None, ema: None },
            rate: Rate { base: rule.usual_rate(), ..without_flags() },
            seed: 1,
            device: DeviceKind::Auto,
            precision: Precision::Auto,
            loss_scale: None,
            threads: None,
            strategy: Strategy::Allreduce,
            outer: OuterFlags::default(),
            async_order: AsyncOrder::default(),
            allreduce: AllreduceKind::Auto,
            cuda_aware: CudaAware::Auto,
            wire: Wire::F32,
            compress: None,
            recompute: false,
            buckets: without_flags(),
            stalls: without_flags(),
            outputs: without_flags(),
            session: without_flags(),
            plan: without_flags(),
            prediction: None,
            measure: None,
            parallel: None,
            evaluate: false,
            predict: None,
            max_batch: None,
        }
    }

    /// What the samples of this run are called.
    pub fn unit(&self) -> &'static str {
        if self.fields.are_given() { "samples" } else { "images" }
    }

    /// What is shown of how good the network is: of pictures the share that is classified right.
    pub fn metric(&self) -> Metric {
        self.fields.objective(0.0).map_or(Metric::Accuracy, |objective| objective.metric)
    }

    /// The configuration of a run that only tests: without what a training would update, sum, keep and go on from.
    pub fn to_test(self) -> Config {
        let rule = Rule::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.0 };
        let optimizer = Optimizer { rule, clip_norm: None, ema: None };
        let session = Session { checkpoint: None, resume: None, ..self.session };
        Config {
            optimizer,
            session,
            accumulation: 1,
            global_batch: None,
            shards: None,
            pipeline: None,
            spatial: 1,
            tensor: None,
            sync_bn: SyncBatchNorm::Off,
            network: NetworkOptions { freeze: Vec::new(), ..self.network },
            strategy: Strategy::Allreduce,
            outer: OuterFlags::default(),
            async_order: AsyncOrder::default(),
            allreduce: AllreduceKind::RING,
            wire: Wire::F32,
            compress: None,
            recompute: false,
            ..self
        }
    }

    /// Everything that must be equal on all ranks, as (flag, value): a rank started with other flags is found at
    /// start, by name. Paths and the thread count may differ from rank to rank (nodes have disks of their own); that
    /// the data itself is the same is checked when it has been read.
    pub fn shared_items(&self) -> Vec<(String, String)> {
        let own = "threads results tensorboard mllog data fields.test_data input.loader_threads init_from \
             save_weights predict.output";
        let images = if self.data.is_some() { "a data set" } else { "synthetic" };
        // Through a text: 0.9 as f32 is another number as f64, with digits that nobody gave.
        let mut items = match serde_json::from_str(&self.json()) {
            Ok(serde_json::Value::Object(fields)) => flatten("", &fields),
            _ => Vec::new(),
        };
        items.retain(|(name, _)| !values::lists(own, name));
        items.insert(0, ("images".into(), images.into()));
        // What else there is to compare may depend on these.
        items.sort_by_key(|(name, _)| !name.ends_with(".kind"));
        items
    }

    /// The configuration for so many ranks that compute: with `--global-batch` the fewest micro-steps of at most
    /// `--batch` images, and the least batch that suffices for these.
    ///
    /// # Errors
    /// `Usage` where there are more ranks than images.
    pub fn among(&self, ranks: usize) -> crate::error::Result<Config> {
        if let Some(shards) = self.shards {
            return self.sharded(shards, ranks);
        }
        let Some(global) = self.global_batch else { return Ok(self.clone()) };
        if global < ranks {
            return Err(Error::usage(format!(
                "--global-batch {global}: {ranks} ranks need at least an image each; start fewer ranks"
            )));
        }
        let accumulation = global.div_ceil(ranks).div_ceil(self.batch);
        let batch = global.div_ceil(ranks).div_ceil(accumulation);
        Ok(Config { accumulation, batch, ..self.clone() })
    }

    /// The configuration for so many ranks with `--shards`: each rank computes as many of them, in micro-steps of one.
    fn sharded(&self, shards: usize, ranks: usize) -> crate::error::Result<Config> {
        if !ranks.is_power_of_two() || ranks > shards {
            return Err(Error::usage(format!(
                "--shards {shards}: {ranks} ranks cannot share them; start a power of two of ranks, at most {shards}"
            )));
        }
        let batch = match self.global_batch {
            Some(global) if !global.is_multiple_of(shards) => {
                return Err(Error::usage(format!(
                    "--global-batch {global} and --shards {shards}: shards are alike; give a multiple of {shards} \
                     images"
                )));
            }
            Some(global) => global / shards,
            None => self.batch,
        };
        Ok(Config { accumulation: shards / ranks, batch, ..self.clone() })
    }

    /// How many stages a network is cut into.
    pub fn stages(&self) -> usize {
        self.pipeline.as_ref().map_or(1, |pipeline| pipeline.stages)
    }

    /// How many ranks compute, of so many in all.
    pub fn data_ranks(&self, ranks: usize) -> usize {
        self.strategy.computing(ranks / self.stages())
    }

    /// Among how many ranks samples are cut in a test: pictures are tested as a whole, and so is what is predicted.
    pub fn test_parts(&self) -> usize {
        if self.fields.are_given() && self.predict.is_none() { self.spatial } else { 1 }
    }

    /// How so many ranks come together that have parameters of their own; `None` where all have the same.
    pub fn relaxed(&self, ranks: usize) -> Option<Relaxed> {
        self.strategy.relaxed(&self.outer, ranks)
    }

    /// Whether the same run gives the same bits: not where the order of updates is that of their arrival.
    pub fn is_repeatable(&self) -> bool {
        !(self.strategy.is_asynchronous() && self.async_order == AsyncOrder::Arrival)
    }

    /// Images of so many ranks that compute in an update; those of ranks that share them count for each.
    pub fn images_a_step(&self, ranks: usize) -> usize {
        self.global_batch.unwrap_or(ranks * self.batch * self.accumulation)
    }

    /// Images of one rank in an update.
    pub fn images_of(&self, rank: usize, ranks: usize) -> usize {
        segment(&(0..self.images_a_step(ranks)), ranks, rank).len()
    }

    /// What has changed since a configuration given as JSON, in words, but for what only this job is about (how long it
    /// runs, where it writes, what a rank has at hand).
    pub fn changes_since(&self, json: &str) -> Vec<String> {
        let items = |value: serde_json::Result<serde_json::Value>| match value {
            Ok(serde_json::Value::Object(fields)) => flatten("", &fields),
            _ => Vec::new(),
        };
        let passing = "epochs steps warmup data results tensorboard mllog mllog_keys histograms threads init_from \
             reset_head fresh_weights save_weights dry_run evaluate predict max_batch";
        let then = items(serde_json::from_str(json));
        // Through a text, as then: 0.1 as f32 is another number as f64.
        let now = items(serde_json::from_str(&self.json()));
        let mut changes = Vec::new();
        for (name, now) in now {
            let before = then.iter().find(|(old, _)| *old == name).map(|(_, value)| value);
            if before.is_some_and(|before| *before != now)
                && !values::lists(passing, &name)
                && !name.starts_with("session.")
            {
                changes.push(format!("{name} {} then, {now} now", before.map_or("", String::as_str)));
            }
        }
        changes
    }

    /// The whole configuration as JSON.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}

fn flatten(prefix: &str, fields: &serde_json::Map<String, serde_json::Value>) -> Vec<(String, String)> {
    let mut items = Vec::new();
    for (name, value) in fields {
        match value {
            serde_json::Value::Object(inner) => items.extend(flatten(&format!("{prefix}{name}."), inner)),
            serde_json::Value::String(text) => items.push((format!("{prefix}{name}"), text.clone())),
            other => items.push((format!("{prefix}{name}"), other.to_string())),
        }
    }
    items
}
