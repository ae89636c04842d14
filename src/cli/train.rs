//! The flags of training, and their validation.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use dltrain::config::values::{at_least_one, in_range, size, sync_batch_norm, within, zero_stage};
use dltrain::config::{
    AllreduceKind, Buckets, Compression, Config, CudaAware, DeviceKind, FieldOptions, Input, NetworkOptions,
    Optimizer, Outputs, Parallel, Pipeline, PlanOptions, Precision, Predict, Prediction, Rate, Rule,
    RunLength, Session, StallLimits, Strategy, SyncBatchNorm, TensorParallel, Wire, most,
};
use dltrain::error::{Error, Result};
use dltrain::model;
use dltrain::record::{self, Verbosity};

use super::places::{self, Use};
use super::together::{self, Flag};
use super::values::NetworkName;
use super::{evaluation, file, loss_scale, optimizer, parallel, pipeline, relaxed, tensor};

/// Beyond these a number is a slip of the keyboard, and products of shapes might not fit a machine word.
const MOST_CLASSES: usize = 1_000_000;
const LARGEST_IMAGE: usize = 16_384;

#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    /// All flags as a run file.
    #[arg(skip)]
    pub(super) run_file: String,
    /// Which flags come from a file, and from where in it.
    #[arg(skip)]
    pub(super) origins: file::Origins,
    /// Flags that were given, by their long names.
    #[arg(skip)]
    pub(super) given: Vec<String>,
    /// File of flags: a line `batch = 64` for --batch 64 each; or a results file, whose run is repeated. Flags that are
    /// typed count more; --SWITCH=false puts off a switch of the file.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Say nothing but warnings and errors.
    #[arg(long, conflicts_with = "verbose", help_heading = "Results")]
    quiet: bool,
    /// Say more about what is done when, and how long it takes.
    #[arg(long, help_heading = "Results")]
    verbose: bool,
    /// Network to train: one of these (dltrain models says more), or an ONNX file (net.onnx) with its weights.
    #[arg(long, default_value = "mnist_small", value_parser = NetworkName, help_heading = "Model and data")]
    model: String,
    #[command(flatten)]
    network: NetworkOptions,
    /// Images: a directory or a file (see --data-format), synthetic:shapes, or synthetic:universes for cubes; without
    /// it images are random.
    #[arg(long, value_name = "PATH", help_heading = "Model and data")]
    data: Option<PathBuf>,
    #[command(flatten)]
    input: Input,
    #[command(flatten)]
    fields: FieldOptions,
    /// Images a rank takes per step.
    #[arg(long, default_value_t = 64, value_name = "N", help_heading = "Model and data")]
    batch: usize,
    /// Micro-steps of --batch images whose gradients are added before one update.
    #[arg(long, default_value_t = 1, value_name = "N", help_heading = "Model and data")]
    accumulation: usize,
    /// Images of all ranks in an update, however many ranks there are: with at most --batch images at a time, in as few
    /// micro-steps as that takes.
    #[arg(long, value_name = "N", conflicts_with = "accumulation", help_heading = "Model and data")]
    global_batch: Option<usize>,
    /// The global batch as V shards (a power of two) of --batch images, each computed alone: the same bits for every
    /// power of two of ranks up to V.
    #[arg(long, value_name = "V", conflicts_with = "accumulation", help_heading = "Model and data")]
    shards: Option<usize>,
    /// Batch normalisation over the batches of all ranks, or of each N consecutive ones.
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "all", value_parser = sync_batch_norm,
        help_heading = "Model and data")]
    sync_bn: Option<SyncBatchNorm>,

    #[command(flatten)]
    length: RunLength,
    #[command(flatten)]
    plan: PlanOptions,
    #[command(flatten)]
    prediction: Prediction,
    /// Test the weights of --init-from (or of an ONNX file) on the test images of --data, and stop.
    #[arg(long, conflicts_with = "fresh_weights", help_heading = "Length of the run")]
    evaluate: bool,
    /// Say what the images of --data are, by the weights of --init-from (or of an ONNX file), and stop.
    #[arg(long, conflicts_with = "evaluate", help_heading = "Length of the run")]
    predict: bool,
    /// With --predict: how many classes of an image, the most probable first [default: 5].
    #[arg(long, value_name = "N", requires = "predict", help_heading = "Length of the run")]
    top: Option<usize>,
    /// With --predict: write that there, as text with commas (.csv) or HDF5 (.h5).
    #[arg(long, short, value_name = "FILE", requires = "predict", help_heading = "Length of the run")]
    output: Option<PathBuf>,
    /// Say the largest --batch whose memory a rank is at most SIZE (16GiB, 500MB), and stop.
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = "Length of the run")]
    max_batch: Option<usize>,

    #[command(flatten)]
    optimizer: optimizer::Args,
    /// Seed of weights, shuffling and dropout.
    #[arg(long, default_value_t = 1, value_name = "N", help_heading = "Optimizer")]
    seed: u64,

    /// Where ops run: auto (a GPU where every rank has one, else the CPU), cpu, cuda[:N], reference.
    #[arg(long, value_name = "DEVICE", default_value_t = DeviceKind::Auto, help_heading = "Machine")]
    device: DeviceKind,
    /// What layers compute with. Weights, their updates and sums are f32 in any.
    #[arg(long, value_enum, default_value_t = Precision::Auto, help_heading = "Machine")]
    precision: Precision,
    #[command(flatten)]
    loss_scale: loss_scale::Args,
    /// Threads a rank [default: cores of the node divided by its ranks].
    #[arg(long, value_name = "N", help_heading = "Machine")]
    threads: Option<usize>,
    /// ZeRO: 1 shares the optimizer's state and the updates among all ranks, over nodes too; 2 also what is kept of
    /// gradients, and 3 of parameters, which are gathered before they are read.
    #[arg(long, value_name = "STAGE", default_value_t = 0, value_parser = zero_stage, help_heading = "Machine")]
    zero: u8,
    #[arg(long, value_name = "HOW", default_value = "allreduce", help = Strategy::help(),
          help_heading = "Machine")]
    sync: Strategy,
    #[command(flatten)]
    relaxed: relaxed::Args,
    #[command(flatten)]
    pipeline: pipeline::Args,
    /// Cut images by rows over T neighbouring ranks, which work on the same --batch images: for images too large for
    /// one rank, and for more speed with few images. The global batch is ranks / T × --batch × --accumulation.
    #[arg(long, value_name = "T", default_value_t = 1, help_heading = "Machine")]
    spatial: usize,
    #[command(flatten)]
    tensor: tensor::Args,
    #[command(flatten)]
    parallel: parallel::Args,
    /// How gradients are added up over ranks.
    #[arg(long, value_enum, default_value_t = AllreduceKind::Auto, help_heading = "Machine")]
    allreduce: AllreduceKind,
    /// Whether --allreduce mpi gives MPI the GPU's memory as it lies.
    #[arg(long, value_enum, default_value_t = CudaAware::Auto, help_heading = "Machine")]
    cuda_aware: CudaAware,
    /// What gradients travel as between ranks (not with mpi; shm sends nothing).
    #[arg(long, value_enum, default_value_t = Wire::F32, help_heading = "Machine")]
    wire: Wire,
    /// Send less of each gradient and the rest later: topk[:SHARE], 1bit, 2bit[:THRESHOLD] or powersgd[:RANK].
    #[arg(long, value_name = "SCHEME", help_heading = "Machine")]
    compress: Option<Compression>,
    /// Compute activations again in the backward pass instead of keeping them: same numbers, less memory, more time.
    #[arg(long, help_heading = "Machine")]
    recompute: bool,
    #[command(flatten)]
    buckets: Buckets,
    #[command(flatten)]
    stalls: StallLimits,
    #[command(flatten)]
    outputs: Outputs,
    #[command(flatten)]
    session: Session,
}

impl Args {
    /// Takes the images from here, whatever the flag says.
    pub fn take_images(&mut self, path: PathBuf) {
        self.data = Some(path);
    }

    /// How much is to be said.
    pub fn verbosity(&self) -> Verbosity {
        match (self.quiet, self.verbose) {
            (true, _) => Verbosity::Quiet,
            (_, true) => Verbosity::Verbose,
            _ => Verbosity::Normal,
        }
    }

    /// Checks what can be checked without the machine.
    ///
    /// # Errors
    /// `Usage`, naming the flag, and where it stands in a file.
    pub fn validate(mut self) -> Result<Config> {
        let origins = std::mem::take(&mut self.origins);
        let places = self.distinct_places();
        let tests = match (self.evaluate, self.predict) {
            (true, _) => {
                // Arrays are tested by slabs too.
                let is_idle = |name: &&String| *name != "spatial" || !self.fields.are_given();
                let given: Vec<String> = self.given.iter().filter(is_idle).cloned().collect();
                evaluation::check(("--evaluate only tests", false), &given, &origins)
            }
            (_, true) => evaluation::check(("--predict only looks at images", true), &self.given, &origins),
            _ => Ok(()),
        };
        places.and(tests).and_then(|()| self.checked()).map_err(|error| file::located(error, &origins))
    }

    /// That no two flags mean one file.
    fn distinct_places(&self) -> Result<()> {
        let results = self.outputs.results.as_deref();
        let file = results.filter(|path| record::is_results_file(path));
        places::check(&[
            ("--results", file, Use::Write),
            ("--results", results.filter(|_| file.is_none()), Use::Directory),
            ("--save-weights", self.outputs.save_weights.as_deref(), Use::Write),
            ("--mllog", self.outputs.mllog.as_deref(), Use::Write),
            ("--timeline", self.outputs.timeline.as_deref(), Use::Write),
            ("--plan-steps", self.plan.plan_steps.as_deref(), Use::Write),
            ("--network", self.prediction.network.as_deref(), Use::Read),
            ("--export-trace", self.prediction.trace.as_deref(), Use::Write),
            ("--save-prediction", self.prediction.saved.as_deref(), Use::Write),
            ("--checkpoint", self.session.checkpoint.as_deref(), Use::Directory),
            ("--tensorboard", self.outputs.tensorboard.as_deref(), Use::Directory),
            ("--init-from", self.network.init_from.as_deref(), Use::Read),
            ("--model", Some(Path::new(&self.model)).filter(|_| model::is_file(&self.model)), Use::Read),
            ("--resume", self.session.resumed_file(), Use::Read),
            ("--tuning", self.buckets.tuning.as_deref(), Use::Read),
            ("--data", self.data.as_deref(), Use::Read),
            ("--test-data", self.fields.test_data.as_deref(), Use::Read),
            ("--output", self.output.as_deref(), Use::Write),
        ])
    }

    /// Who updates what.
    fn strategy(&self) -> Result<Strategy> {
        let zero = Strategy::Zero(self.zero);
        match (self.zero, self.relaxed.strategy(self.sync)?) {
            (0, sync) => Ok(sync),
            (_, sync) if [Strategy::Allreduce, zero].contains(&sync) => Ok(zero),
            (stage, sync) => Err(Error::usage(format!(
                "--zero {stage} and {sync}: both say who updates what; leave one out"
            ))),
        }
    }

    /// The words of a flag, if it is given with a value that something does not go with.
    fn said(&self, flag: Flag, strategy: Strategy) -> Option<String> {
        let name = self.allreduce.name();
        let by_others = self.allreduce.is_between_gpus() || self.allreduce == AllreduceKind::MPI;
        let by_tree = [AllreduceKind::Auto, AllreduceKind::RECURSIVE_DOUBLING].contains(&self.allreduce);
        let plain = strategy == Strategy::Allreduce;
        let given = |given: bool, words: &str| given.then(|| words.to_string());
        let schedule = self.pipeline.schedule();
        match flag {
            Flag::Ema => given(self.optimizer.has_average(), "--ema"),
            Flag::F16 => given(self.precision == Precision::F16, "--precision f16"),
            Flag::SyncBn => given(self.sync_bn.is_some(), "--sync-bn"),
            Flag::Wire => (self.wire != Wire::F32).then(|| format!("--wire {}", self.wire)),
            Flag::Freeze => given(!self.network.freeze.is_empty(), "--freeze"),
            Flag::Compress => given(self.compress.is_some(), "--compress"),
            Flag::Scheme => self.compress.map(|scheme| format!("--compress {scheme}")),
            Flag::Histograms => given(self.outputs.histograms.is_some(), "--tensorboard-histograms"),
            Flag::Sums => (self.allreduce != AllreduceKind::Auto).then(|| format!("--allreduce {name}")),
            Flag::OthersSums => by_others.then(|| format!("--allreduce {name}")),
            Flag::GpuSums => self.allreduce.is_between_gpus().then(|| format!("--allreduce {name}")),
            Flag::NoTree => (!by_tree).then(|| format!("--allreduce {name}")),
            Flag::GlobalBatch => given(self.global_batch.is_some(), "--global-batch"),
            Flag::Commit => given(self.session.commit.is_some(), "--commit"),
            Flag::MaxBatch => given(self.max_batch.is_some(), "--max-batch"),
            Flag::Recompute => given(self.recompute, "--recompute"),
            Flag::Shards => given(self.shards.is_some(), "--shards"),
            Flag::Tree => self.shards.map(|shards| format!("--shards {shards}")),
            Flag::Pipeline => given(self.pipeline.stages() > 1, "--pipeline"),
            Flag::SplitWeights => schedule
                .filter(|schedule| schedule.splits_weights())
                .map(|order| format!("--schedule {order}")),
            Flag::Tensor => given(self.tensor.ranks(self.pipeline.mesh()) > 1, "--tensor"),
            Flag::Spatial => given(self.spatial > 1, "--spatial"),
            Flag::Strategy => (!plain).then(|| strategy.to_string()),
            Flag::BeyondZero1 => (!plain && strategy != Strategy::Zero(1)).then(|| strategy.to_string()),
            Flag::Zero3 => (strategy == Strategy::Zero(3)).then(|| strategy.to_string()),
            Flag::Relaxed => strategy.is_relaxed().then(|| strategy.to_string()),
            Flag::Shared => (!plain && !strategy.is_relaxed()).then(|| strategy.to_string()),
            Flag::Gossip => strategy.sends_parameters().then(|| strategy.to_string()),
            Flag::Asynchronous => strategy.is_asynchronous().then(|| strategy.to_string()),
            Flag::Central => strategy.is_central().then(|| strategy.to_string()),
        }
    }

    /// What the planner is to be told of networks in stages, split layers and images by rows: why they do not go with
    /// what else is given.
    fn parallel(&self, strategy: Strategy, rule: &Rule, rate: &Rate) -> Option<Parallel> {
        let beside = |way: Flag, words: &str| {
            together::check(
                |flag| {
                    if flag == way { Some(words.to_string()) } else { self.said(flag, strategy) }
                },
            )
        };
        self.parallel.validate(
            beside(Flag::Pipeline, "--pipeline").and(same_rate(rate, "--pipeline")),
            beside(Flag::Tensor, "--tensor").and(beside_norms(rule)),
            beside(Flag::Spatial, "--spatial").and(same_rate(rate, "--spatial")),
        )
    }

    /// That what is asked of weights goes with the files that there are.
    fn weights(&self) -> Result<()> {
        let has_file = model::is_file(&self.model);
        if let Some(path) =
            self.outputs.save_weights.as_ref().filter(|path| model::is_file(&path.to_string_lossy()))
        {
            return Err(Error::usage(format!(
                "--save-weights {}: it writes weights alone, and an ONNX file holds a network; give it a name that ends \
                 in .safetensors or .h5, of which dltrain export makes the network",
                path.display()
            )));
        }
        let wanted = [
            (
                self.network.init_from.is_none() && !has_file,
                "weights (--init-from FILE, or --model FILE.onnx)",
            ),
            (self.evaluate && self.data.is_none(), "test images (--data PATH)"),
            (self.predict && self.data.is_none(), "images (DATA, or --data PATH)"),
        ];
        let missing: Vec<&str> = wanted.iter().filter(|(lacks, _)| *lacks).map(|(_, what)| *what).collect();
        let flag = match (self.evaluate, self.predict) {
            (true, _) => "--evaluate",
            (_, true) => "predict",
            _ => "--reset-head",
        };
        if (self.evaluate || self.predict || self.network.reset_head) && !missing.is_empty() {
            return Err(Error::usage(format!(
                "{flag} needs {}{}",
                missing.join(" and "),
                self.given_as_data()
            )));
        }
        match self.network.fresh_weights && !has_file {
            true => {
                Err(Error::usage("--fresh-weights is for --model FILE.onnx: other networks start so anyway"))
            }
            false => Ok(()),
        }
    }

    /// What is said where the data have the name of weights, and weights are missing.
    fn given_as_data(&self) -> String {
        let is_weights = |path: &&PathBuf| path.extension().is_some_and(|ending| ending == "safetensors");
        match self.data.as_ref().filter(is_weights) {
            Some(path) => format!("; {0} looks as if it were these: --init-from {0}", path.display()),
            None => String::new(),
        }
    }

    /// What is to be said of images.
    fn asked(&self) -> Result<Option<Predict>> {
        let top = self.top.unwrap_or(5);
        at_least_one("top", top)?;
        let endings = ["csv", "h5"].map(OsStr::new);
        if let Some(path) = &self.output
            && !path.extension().is_some_and(|ending| endings.contains(&ending))
        {
            return Err(Error::usage(format!(
                "--output {}: the name ends in .csv for text with commas, or in .h5 for HDF5",
                path.display()
            )));
        }
        let is_text = self.output.as_ref().is_none_or(|path| path.extension() == Some(OsStr::new("csv")));
        if self.predict && self.fields.are_given() && (is_text || self.top.is_some()) {
            return Err(Error::usage(
                "predict of arrays writes what the network gives: say --output FILE.h5, without --top",
            ));
        }
        Ok(self.predict.then(|| Predict { top, output: self.output.clone() }))
    }

    /// That numbers are in their ranges.
    fn ranges(&self) -> Result<()> {
        within("batch", self.batch, most::BATCH)?;
        within("classes", self.network.classes.unwrap_or(1), MOST_CLASSES)?;
        within("image-size", self.network.image_size.unwrap_or(1), LARGEST_IMAGE)?;
        in_range("label-smoothing", self.network.label_smoothing, 0.0, 1.0)?;
        within("accumulation", self.accumulation, most::BATCH)?;
        within("global-batch", self.global_batch.unwrap_or(1), most::IMAGES)?;
        if let Some(SyncBatchNorm::Groups(ranks)) = self.sync_bn {
            at_least_one("sync-bn", ranks)?;
        }
        at_least_one("epochs", self.length.epochs.unwrap_or(1))?;
        at_least_one("steps", self.length.steps.unwrap_or(1))?;
        within("threads", self.threads.unwrap_or(1), most::THREADS)?;
        in_range("fusion-threshold-mb", self.buckets.fusion_threshold_mb.unwrap_or(1.0) as f32, 0.0, 1e6)?;
        in_range("stall-warn", self.stalls.stall_warn as f32, 0.0, 1e6)?;
        in_range("stall-abort", self.stalls.stall_abort as f32, 0.0, 1e6)?;
        at_least_one("tensorboard-histograms", self.outputs.histograms.unwrap_or(1) as usize)?;
        within("spatial", self.spatial, LARGEST_IMAGE)?;
        match self.shards.filter(|shards| !shards.is_power_of_two() || *shards > most::SHARDS) {
            Some(shards) => Err(Error::usage(format!(
                "--shards {shards}: must be a power of two, at most {}",
                most::SHARDS
            ))),
            None => Ok(()),
        }
    }

    /// What flags lack, or have for nothing.
    fn needs(&self) -> Result<()> {
        if self.data.is_none() && self.length.epochs.is_some() {
            return Err(Error::usage(
                "--epochs needs --data: a run on synthetic images is as long as --steps",
            ));
        }
        match self.sync_bn {
            Some(SyncBatchNorm::Groups(ranks)) if !ranks.is_multiple_of(self.spatial) => {
                Err(Error::usage(format!(
                    "--sync-bn {ranks} and --spatial {0}: statistics are those of whole images; give a multiple of {0}",
                    self.spatial
                )))
            }
            _ => Ok(()),
        }
    }

    fn config(self, decided: Decided) -> Result<Config> {
        let ([batch, accumulation], synthetic) = (decided.images, self.data.is_none());
        Ok(Config {
            run_file: self.run_file,
            model: self.model,
            network: self.network,
            batch,
            accumulation,
            global_batch: self.global_batch,
            shards: self.shards,
            pipeline: decided.pipeline,
            spatial: self.spatial,
            tensor: decided.tensor,
            sync_bn: self.sync_bn.unwrap_or(SyncBatchNorm::Off),
            length: self.length.or_usual(synthetic),
            data: self.data,
            input: self.input,
            // What is only predicted is compared with nothing.
            fields: FieldOptions {
                weights: if self.predict { Vec::new() } else { self.fields.weights },
                ..self.fields
            },
            optimizer: decided.optimizer,
            rate: decided.rate,
            seed: self.seed,
            device: self.device,
            precision: self.precision,
            loss_scale: self.loss_scale.validate(self.precision)?,
            threads: self.threads,
            strategy: decided.strategy,
            outer: self.relaxed.validate(decided.strategy)?,
            async_order: self.relaxed.order(decided.strategy)?,
            allreduce: if self.shards.is_some() { AllreduceKind::RECURSIVE_DOUBLING } else { self.allreduce },
            cuda_aware: self.cuda_aware,
            wire: self.wire,
            compress: self.compress,
            recompute: self.recompute,
            buckets: self.buckets,
            stalls: self.stalls,
            outputs: self.outputs,
            session: self.session,
            plan: self.plan,
            evaluate: self.evaluate || self.predict,
            predict: decided.predict,
            measure: decided.measure,
            parallel: decided.parallel,
            prediction: self.prediction.checked()?,
            max_batch: self.max_batch,
        })
    }

    fn checked(self) -> Result<Config> {
        self.weights()?;
        self.ranges()?;
        let predict = self.asked()?;
        let strategy = self.strategy()?;
        let (pipeline, [batch, accumulation]) = self.pipeline.validate(self.batch, self.accumulation)?;
        let tensor = self.tensor.validate(self.pipeline.mesh())?;
        together::check(|flag| self.said(flag, strategy))?;
        self.needs()?;
        let (optimizer, rate) = self.optimizer.validate()?;
        if tensor.is_some() {
            beside_norms(&optimizer.rule)?;
        }
        let parallel = self.parallel(strategy, &optimizer.rule, &rate);
        let is_to_be_cut = pipeline.as_ref().is_some_and(|pipeline| pipeline.cuts.is_empty());
        let needs_times = !self.prediction.nodes.is_empty() || is_to_be_cut;
        self.input.check(self.data.is_some())?;
        self.fields.check(self.data.is_some(), self.predict, self.network.label_smoothing)?;
        self.session.check()?;
        let decided = Decided {
            strategy,
            images: [batch, accumulation],
            pipeline,
            tensor,
            optimizer,
            rate,
            predict,
            measure: self.parallel.measured(needs_times)?,
            parallel,
        };
        let config = self.config(decided)?;
        Ok(if config.evaluate { config.to_test() } else { config })
    }
}

/// What follows from several flags.
struct Decided {
    strategy: Strategy,
    /// At a time, and how often before an update.
    images: [usize; 2],
    pipeline: Option<Pipeline>,
    tensor: Option<TensorParallel>,
    optimizer: Optimizer,
    rate: Rate,
    predict: Option<Predict>,
    measure: Option<usize>,
    parallel: Option<Parallel>,
}

/// That an update goes with split layers.
fn beside_norms(rule: &Rule) -> Result<()> {
    match rule.has_trust() {
        false => Ok(()),
        true => Err(Error::usage(format!(
            "--optimizer {} and --tensor: it wants the norms of whole layers; adamw and sgd go",
            rule.name()
        ))),
    }
}

/// That the learning rate does not depend on how many ranks have images of their own, of which a planner would choose
/// other numbers.
fn same_rate(rate: &Rate, beside: &str) -> Result<()> {
    match rate.scale_by_ranks {
        true => Err(Error::usage(format!(
            "--lr-scale-by-ranks and {beside}: fewer ranks have images of their own, and the rate would be another; \
             leave one out"
        ))),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::Parser;

    fn config(flags: &[&str]) -> Result<Config> {
        Cli::try_parse_from([&["dltrain"], flags].concat()).expect("flags parse").train.validate()
    }

    #[test]
    fn a_configuration_made_in_rust_is_that_of_no_flags() {
        assert_eq!(config(&["--data", "digits"]).unwrap(), Config::on("digits"));
    }

    #[test]
    fn without_data_the_run_is_a_benchmark() {
        let config = config(&[]).unwrap();
        assert_eq!(
            (config.length.warmup, config.length.steps, config.length.epochs),
            (Some(10), Some(100), Some(1))
        );
    }

    #[test]
    fn what_cannot_work_is_refused_by_flag() {
        for (flags, named) in [
            (vec!["--batch", "0"], "--batch 0"),
            (vec!["--save-weights", "net.onnx"], "it writes weights alone, and an ONNX file holds a network"),
            (vec!["--classes", "0"], "--classes 0"),
            (vec!["--classes", "2000000"], "at most 1000000"),
            (vec!["--image-size", "0"], "--image-size 0"),
            (vec!["--label-smoothing", "1.5"], "--label-smoothing 1.5"),
            (vec!["--epochs", "0"], "--epochs 0"),
            (vec!["--epochs", "3"], "--epochs needs --data"),
            (vec!["--steps", "0"], "--steps 0"),
            (vec!["--threads", "0"], "--threads 0"),
            (vec!["--accumulation", "0"], "--accumulation 0"),
            (vec!["--accumulation", "10000000000"], "--accumulation 10000000000: must be at most 1048576"),
            (vec!["--batch", "9223372036854775808"], "--batch 9223372036854775808: must be at most 1048576"),
            (vec!["--threads", "100000"], "--threads 100000: must be at most 1024"),
            (
                vec!["--data", "x", "--repeat-data", "3000000"],
                "--repeat-data 3000000: must be at most 1000000",
            ),
            (vec!["--data", "x", "--loader-threads", "257"], "--loader-threads 257: must be at most 256"),
            (vec!["--sync-bn=0"], "--sync-bn 0"),
            (vec!["--stall-warn=-1"], "--stall-warn -1"),
            (vec!["--stall-abort", "nan"], "--stall-abort NaN"),
            (vec!["--compress", "1bit", "--wire", "bf16"], "--compress 1bit and --wire bf16"),
            (vec!["--compress", "1bit", "--precision", "f16"], "--compress 1bit and --precision f16"),
            (vec!["--compress", "1bit", "--allreduce", "nccl"], "--compress 1bit and --allreduce nccl"),
            (vec!["--compress", "1bit", "--allreduce", "ipc"], "--compress 1bit and --allreduce ipc"),
            (vec!["--loss-scale", "2"], "--loss-scale 2: is for --precision f16"),
            (vec!["--precision", "f16", "--loss-scale-min", "0"], "--loss-scale-min 0"),
            (vec!["--precision", "f16", "--loss-scale", "2", "--loss-scale-min", "4"], "--loss-scale 2"),
        ] {
            let error = config(&flags).expect_err(named);
            assert!(error.message.contains(named), "{flags:?}: {error}");
            assert_eq!(error.exit_code(), 2);
        }
    }

    /// As every flag that is given twice, so that a job script's flags can be followed by others.
    #[test]
    fn of_lists_that_are_given_twice_the_last_counts() {
        let parsed = |flags: &str| Cli::try_parse_from(flags.split(' ')).expect("flags parse").train;
        let weights = parsed("dltrain --class-weights 1,2 --class-weights 3,4,5").fields.class_weights;
        assert_eq!(weights, [3.0, 4.0, 5.0]);
        let nodes = parsed("dltrain --dry-run --predict-nodes 2,4 --predict-nodes 8").prediction.nodes;
        assert_eq!(nodes, [8]);
        // Arrays of several flags go together.
        assert_eq!(parsed("dltrain --input a[n] --input b[n]").fields.inputs, ["a[n]", "b[n]"]);
    }

    #[test]
    fn statistics_are_shared_by_all_ranks_unless_a_number_is_given() {
        let sync = |flags: &[&str]| config(flags).unwrap().sync_bn;
        assert_eq!(sync(&[]), SyncBatchNorm::Off);
        assert_eq!(sync(&["--sync-bn", "--batch", "2"]), SyncBatchNorm::All);
        assert_eq!(sync(&["--batch", "2", "--sync-bn"]), SyncBatchNorm::All);
        assert_eq!(sync(&["--sync-bn", "4"]), SyncBatchNorm::Groups(4));
        assert_eq!(sync(&["--sync-bn=4"]), SyncBatchNorm::Groups(4));
        assert!(Cli::try_parse_from(["dltrain", "--sync-bn", "some"]).is_err());
    }
}
