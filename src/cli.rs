//! The command line, grouped as `--help` shows it, and its validation into a `Config`.

mod data;
mod file;
mod loss_scale;
mod manual;
mod optimizer;
mod parsed;
mod session;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use dltrain::bench;
use dltrain::config::{AllreduceKind, Compression, Config, DeviceKind, Precision, SyncBatchNorm, Wire};
use dltrain::error::{Error, Result};
use dltrain::export;
use dltrain::model::MODELS;
use dltrain::pack;
use dltrain::record::Volume;
use dltrain::report;

pub use manual::{Shell, completions, man};
pub use parsed::{Parsed, parse};

/// Data-parallel training of convolutional networks: one executable, started by mpirun or srun.
///
/// Every rank trains on its share of the images; gradients are averaged while the backward pass goes on. Without
/// --data the images are synthetic and the run is a benchmark of 10 + 100 steps.
#[derive(Debug, Parser)]
#[command(
    name = "dltrain",
    version,
    max_term_width = 110,
    args_conflicts_with_subcommands = true,
    args_override_self = true
)]
#[command(after_help = "Examples:
  mpirun -n 2 dltrain --model mnist_small --data data/digits
  srun -N 4 dltrain --model mnist_large --batch 128
  dltrain --model vgg16 --classes 10 --dry-run
  dltrain --model vgg16 --max-batch 16GiB
  dltrain --config run.toml --epochs 90
  dltrain info

Exit codes: 0 done, 2 flags, 3 data, 4 machine or launcher, 5 a library call, 6 ranks disagree, 7 the loss is not
finite, 8 results or checkpoints cannot be written, 9 a rank waited too long for another, 75 stopped by a signal or
the time limit (--resume auto goes on), 1 a defect.")]
pub struct Cli {
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub train: TrainArgs,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// List the models: parameters, arithmetic and memory an image.
    Models,
    /// Say what this machine and this program offer: MPI, hosts, CPU, oneDNN, HDF5, GPUs.
    Info,
    /// Write weights as safetensors, which torchvision's models load, or as HDF5.
    Export(export::Args),
    /// Measure parts: collectives, the layers of a model, the cores' arithmetic.
    Bench(bench::Args),
    /// Pack images into HDF5 files that are read in large pieces; --verify reads them again.
    Pack(pack::Args),
    /// Make a page of HTML of one or several runs' results: curves, speed, memory, overlap, scaling, sweeps.
    Report(report::Args),
    /// Print what a shell completes flags by: source <(dltrain completions bash).
    Completions {
        #[arg(value_enum)]
        shell: Shell,
    },
    /// Print the manual page, or write those of all subcommands.
    Man {
        /// Directory for a page each.
        directory: Option<PathBuf>,
    },
}

impl Command {
    /// Whether it is about this program or its files only, so that it also runs where MPI cannot start (a login node).
    pub fn is_local(&self) -> bool {
        matches!(self, Command::Report(_) | Command::Completions { .. } | Command::Man { .. })
    }
}

#[derive(Debug, Args)]
pub struct TrainArgs {
    /// All flags as a run file.
    #[arg(skip)]
    run_file: String,
    /// Which flags come from a file, and from where in it.
    #[arg(skip)]
    origins: file::Origins,
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
    #[arg(long, default_value = "mnist_small", help = model_help(), help_heading = "Model and data")]
    model: String,
    /// Classes the model tells apart [default: those it was made for].
    #[arg(long, value_name = "N", help_heading = "Model and data")]
    classes: Option<usize>,
    /// Height and width of its images [default: those it was made for]; data are scaled to it.
    #[arg(long, value_name = "N", help_heading = "Model and data")]
    image_size: Option<usize>,
    /// Share of each target that is spread evenly over all classes.
    #[arg(long, default_value_t = 0.0, value_name = "X", help_heading = "Model and data")]
    label_smoothing: f32,
    /// File of weights to start from: safetensors or HDF5 with PyTorch's names and shapes, or a checkpoint.
    #[arg(long, value_name = "FILE", help_heading = "Model and data")]
    init_from: Option<PathBuf>,
    /// Start the last layer anew in spite of --init-from: for other --classes than the file's.
    #[arg(long, requires = "init_from", help_heading = "Model and data")]
    reset_head: bool,
    /// Do not learn these: backbone (all but the last layer), or names of layers as --dry-run has them.
    #[arg(long, value_name = "LAYERS", value_delimiter = ',', help_heading = "Model and data")]
    freeze: Vec<String>,
    #[command(flatten)]
    data: data::Args,
    /// Images a rank takes per step.
    #[arg(long, default_value_t = 64, value_name = "N", help_heading = "Model and data")]
    batch: usize,
    /// Micro-steps of --batch images whose gradients are added before one update.
    #[arg(long, default_value_t = 1, value_name = "N", help_heading = "Model and data")]
    accumulation: usize,
    /// Batch normalisation over the batches of all ranks, or of each N consecutive ones.
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "all", value_parser = sync_batch_norm,
        help_heading = "Model and data")]
    sync_bn: Option<SyncBatchNorm>,

    /// Times the training images are gone through, with --data [default: 30].
    #[arg(long, value_name = "N", help_heading = "Length of the run")]
    epochs: Option<usize>,
    /// Stop after N timed steps [default: 100 for synthetic images, else none].
    #[arg(long, value_name = "N", help_heading = "Length of the run")]
    steps: Option<usize>,
    /// Steps before the clock of images/s starts [default: 10 for synthetic images, else 0].
    #[arg(long, value_name = "N", help_heading = "Length of the run")]
    warmup: Option<usize>,
    /// Print the plan (layers, memory, buckets) and stop.
    #[arg(long, help_heading = "Length of the run")]
    dry_run: bool,
    /// With --dry-run: the least time of a step where sums of products run at so many TFLOP/s and memory at so many GB/s.
    #[arg(long, value_name = "TFLOPS,GBS", value_parser = rates, requires = "dry_run", help_heading = "Length of the run")]
    roofline: Option<(f64, f64)>,
    /// Test the weights of --init-from on the test images of --data, and stop.
    #[arg(long, requires = "init_from", requires = "data", help_heading = "Length of the run")]
    evaluate: bool,
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
    #[arg(long, value_enum, default_value_t = Precision::F32, help_heading = "Machine")]
    precision: Precision,
    #[command(flatten)]
    loss_scale: loss_scale::Args,
    /// Threads a rank [default: cores of the node divided by its ranks].
    #[arg(long, value_name = "N", help_heading = "Machine")]
    threads: Option<usize>,
    /// How gradients are added up over ranks.
    #[arg(long, value_enum, default_value_t = AllreduceKind::Auto, help_heading = "Machine")]
    allreduce: AllreduceKind,
    /// What gradients travel as between ranks (not with vendor; shm sends nothing).
    #[arg(long, value_enum, default_value_t = Wire::F32, help_heading = "Machine")]
    wire: Wire,
    /// Send less of each gradient and the rest later: topk[:SHARE], 1bit, 2bit[:THRESHOLD] or powersgd[:RANK].
    #[arg(long, value_name = "SCHEME", help_heading = "Machine")]
    compress: Option<Compression>,
    /// Compute activations again in the backward pass instead of keeping them: same numbers, less memory, more time.
    #[arg(long, help_heading = "Machine")]
    recompute: bool,
    /// What `dltrain bench autotune` measured, for auto [default: $DLTRAIN_TUNING, else tuning.json in ~/.config/dltrain].
    #[arg(long, value_name = "FILE", help_heading = "Machine")]
    tuning: Option<PathBuf>,
    /// Gradients are averaged in buckets of at least this many megabytes [default: as their ready times suggest].
    #[arg(long, value_name = "MB", help_heading = "Machine")]
    fusion_threshold_mb: Option<f64>,
    /// Average gradients after the backward pass instead of during it (to compare).
    #[arg(long, help_heading = "Machine")]
    no_overlap: bool,

    /// Say for which ranks a rank waits when it has waited for SECONDS without any progress; 0 is never.
    #[arg(long, default_value_t = 30.0, value_name = "SECONDS", help_heading = "Machine")]
    stall_warn: f64,
    /// End the job when a rank has waited for SECONDS without any progress; 0 is never.
    #[arg(long, default_value_t = 0.0, value_name = "SECONDS", help_heading = "Machine")]
    stall_abort: f64,

    /// File (.h5) or directory for the results [default: results/<model>-<date>-<time>.h5].
    #[arg(long, value_name = "PATH", help_heading = "Results")]
    results: Option<PathBuf>,
    /// File for a timeline of all ranks' steps, buckets and messages, to be opened in ui.perfetto.dev.
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    timeline: Option<PathBuf>,
    /// Steps of the run that are in it, counted from 0 [default: the last 50, or as many as 65536 events a rank hold].
    #[arg(long, value_name = "FIRST-LAST", value_parser = steps, requires = "timeline", help_heading = "Results")]
    timeline_steps: Option<(u64, u64)>,
    /// Directory for TensorBoard: loss, accuracy, learning rate, images/s, and shares of a step's time.
    #[arg(long, value_name = "DIR", help_heading = "Results")]
    tensorboard: Option<PathBuf>,
    /// Histograms of all weights and gradients there, every N steps.
    #[arg(long, value_name = "N", requires = "tensorboard", help_heading = "Results")]
    tensorboard_histograms: Option<u64>,
    /// Write the trained weights here: safetensors, or HDF5 where the name ends in .h5.
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    save_weights: Option<PathBuf>,

    #[command(flatten)]
    session: session::Args,
}

impl TrainArgs {
    /// How much is to be said.
    pub fn volume(&self) -> Volume {
        match (self.quiet, self.verbose) {
            (true, _) => Volume::Quiet,
            (_, true) => Volume::Verbose,
            _ => Volume::Normal,
        }
    }

    /// Checks what can be checked without the machine.
    ///
    /// # Errors
    /// `Usage`, naming the flag, and where it stands in a file.
    pub fn validate(mut self) -> Result<Config> {
        let origins = std::mem::take(&mut self.origins);
        self.checked().map_err(|error| file::located(error, &origins))
    }

    fn checked(self) -> Result<Config> {
        at_least_one("batch", self.batch)?;
        within("classes", self.classes.unwrap_or(1), MOST_CLASSES)?;
        within("image-size", self.image_size.unwrap_or(1), LARGEST_IMAGE)?;
        in_range("label-smoothing", self.label_smoothing, 0.0, 1.0)?;
        at_least_one("accumulation", self.accumulation)?;
        let sync_bn = self.sync_bn.unwrap_or(SyncBatchNorm::Off);
        if let SyncBatchNorm::Groups(ranks) = sync_bn {
            at_least_one("sync-bn", ranks)?;
        }
        at_least_one("epochs", self.epochs.unwrap_or(1))?;
        at_least_one("steps", self.steps.unwrap_or(1))?;
        at_least_one("threads", self.threads.unwrap_or(1))?;
        in_range("fusion-threshold-mb", self.fusion_threshold_mb.unwrap_or(1.0) as f32, 0.0, 1e6)?;
        in_range("stall-warn", self.stall_warn as f32, 0.0, 1e6)?;
        in_range("stall-abort", self.stall_abort as f32, 0.0, 1e6)?;
        at_least_one("tensorboard-histograms", self.tensorboard_histograms.unwrap_or(1) as usize)?;
        let (optimizer, rate) = self.optimizer.validate()?;
        let session = self.session.validate()?;
        if let (Some(scheme), true) = (self.compress, self.wire != Wire::F32) {
            return Err(Error::usage(format!(
                "--compress {scheme} and --wire {}: what is compressed has a form of its own on the wire; leave one out",
                self.wire
            )));
        }
        let loss_scale = self.loss_scale.validate(self.precision)?;
        if let (Some(scheme), Precision::F16) = (self.compress, self.precision) {
            return Err(Error::usage(format!(
                "--compress {scheme} and --precision f16: a gradient that overflowed would stay in what is sent later; leave one out"
            )));
        }
        let (data, input) = self.data.validate()?;
        let synthetic = data.is_none();
        if synthetic && self.epochs.is_some() {
            return Err(Error::usage(
                "--epochs needs --data: a run on synthetic images is as long as --steps",
            ));
        }
        Ok(Config {
            run_file: self.run_file,
            model: self.model,
            classes: self.classes,
            image_size: self.image_size,
            label_smoothing: self.label_smoothing,
            init_from: self.init_from,
            reset_head: self.reset_head,
            freeze: self.freeze,
            batch: self.batch,
            accumulation: self.accumulation,
            sync_bn,
            epochs: if synthetic { 1 } else { self.epochs.unwrap_or(30) },
            steps: self.steps.or(synthetic.then_some(100)),
            warmup: self.warmup.unwrap_or(if synthetic { 10 } else { 0 }),
            data,
            input,
            optimizer,
            rate,
            seed: self.seed,
            device: self.device,
            precision: self.precision,
            loss_scale,
            threads: self.threads,
            allreduce: self.allreduce,
            wire: self.wire,
            compress: self.compress,
            recompute: self.recompute,
            tuning: self.tuning,
            fusion_threshold: self.fusion_threshold_mb.map(|megabytes| (megabytes * 1e6) as usize),
            overlap: !self.no_overlap,
            stall_warn: self.stall_warn,
            stall_abort: self.stall_abort,
            timeline: self.timeline,
            timeline_steps: self.timeline_steps,
            results: self.results,
            tensorboard: self.tensorboard,
            histograms: self.tensorboard_histograms,
            session,
            save_weights: self.save_weights,
            dry_run: self.dry_run,
            roofline: self.roofline.map(|(tera, giga)| (tera * 1e12, giga * 1e9)),
            evaluate: self.evaluate,
            max_batch: self.max_batch,
        })
    }
}

fn at_least_one(flag: &str, value: usize) -> Result<()> {
    if value == 0 {
        return Err(Error::usage(format!("--{flag} 0: must be at least 1")));
    }
    Ok(())
}

/// Beyond these a number is a slip of the keyboard, and products of shapes might not fit a machine word.
const MOST_CLASSES: usize = 1_000_000;
const LARGEST_IMAGE: usize = 16_384;

fn within(flag: &str, value: usize, most: usize) -> Result<()> {
    at_least_one(flag, value)?;
    if value > most {
        return Err(Error::usage(format!("--{flag} {value}: must be at most {most}")));
    }
    Ok(())
}

fn model_help() -> String {
    let names: Vec<&str> = MODELS.iter().map(|model| model.name).collect();
    format!("Network to train: {}", names.join(", "))
}

/// "all" or a number of ranks.
fn sync_batch_norm(text: &str) -> std::result::Result<SyncBatchNorm, String> {
    match text {
        "all" => Ok(SyncBatchNorm::All),
        _ => match text.parse() {
            Ok(ranks) => Ok(SyncBatchNorm::Groups(ranks)),
            Err(_) => Err("a number of ranks, or nothing for all of them".into()),
        },
    }
}

/// "100-119", or "100" for one step.
fn steps(text: &str) -> std::result::Result<(u64, u64), String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (first.parse(), last.parse()) {
        (Ok(first), Ok(last)) if first <= last => Ok((first, last)),
        _ => Err("two steps, the first not after the last: 100-119".into()),
    }
}

/// TFLOP/s and GB/s: "790,4300".
fn rates(text: &str) -> std::result::Result<(f64, f64), String> {
    let positive = |text: &str| text.parse().ok().filter(|rate: &f64| rate.is_finite() && *rate > 0.0);
    let rates = text.split_once(',').and_then(|(flops, bytes)| Some((positive(flops)?, positive(bytes)?)));
    rates.ok_or_else(|| "TFLOP/s and GB/s: 790,4300".into())
}

/// Bytes from "16GiB" (powers of 1024), "500MB" (powers of 1000) or "4096".
fn size(text: &str) -> std::result::Result<usize, String> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let factor: f64 = match unit.trim() {
        "" | "B" => 1.0,
        "kB" | "KB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        "TB" => 1e12,
        "KiB" => 1024.0,
        "MiB" => 1024.0 * 1024.0,
        "GiB" => 1024.0 * 1024.0 * 1024.0,
        "TiB" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
        _ => return Err("a size is a number and a unit: 500MB (powers of 1000), 16GiB (of 1024)".into()),
    };
    let number: f64 = number.parse().map_err(|_| format!("{number:?} is not a number"))?;
    Ok((number * factor) as usize)
}

fn in_range(flag: &str, value: f32, low: f32, high: f32) -> Result<()> {
    if !(low..=high).contains(&value) {
        return Err(Error::usage(format!("--{flag} {value}: must lie between {low} and {high}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn config(flags: &[&str]) -> Result<Config> {
        Cli::try_parse_from([&["dltrain"], flags].concat()).expect("flags parse").train.validate()
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn without_data_the_run_is_a_benchmark() {
        let config = config(&[]).unwrap();
        assert_eq!((config.warmup, config.steps, config.epochs), (10, Some(100), 1));
    }

    #[test]
    fn what_cannot_work_is_refused_by_flag() {
        for (flags, named) in [
            (vec!["--batch", "0"], "--batch 0"),
            (vec!["--classes", "0"], "--classes 0"),
            (vec!["--classes", "2000000"], "at most 1000000"),
            (vec!["--image-size", "0"], "--image-size 0"),
            (vec!["--label-smoothing", "1.5"], "--label-smoothing 1.5"),
            (vec!["--epochs", "0"], "--epochs 0"),
            (vec!["--epochs", "3"], "--epochs needs --data"),
            (vec!["--steps", "0"], "--steps 0"),
            (vec!["--threads", "0"], "--threads 0"),
            (vec!["--accumulation", "0"], "--accumulation 0"),
            (vec!["--sync-bn=0"], "--sync-bn 0"),
            (vec!["--stall-warn=-1"], "--stall-warn -1"),
            (vec!["--stall-abort", "nan"], "--stall-abort NaN"),
            (vec!["--compress", "1bit", "--wire", "bf16"], "--compress 1bit and --wire bf16"),
            (vec!["--compress", "1bit", "--precision", "f16"], "--compress 1bit and --precision f16"),
            (vec!["--loss-scale", "2"], "--loss-scale 2: is for --precision f16"),
            (vec!["--precision", "f16", "--loss-scale-min", "0"], "--loss-scale-min 0"),
            (vec!["--precision", "f16", "--loss-scale", "2", "--loss-scale-min", "4"], "--loss-scale 2"),
        ] {
            let error = config(&flags).expect_err(named);
            assert!(error.message.contains(named), "{flags:?}: {error}");
            assert_eq!(error.exit_code(), 2);
        }
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

    #[test]
    fn a_window_of_steps_has_a_first_and_a_last() {
        assert_eq!((steps("100-119"), steps("7")), (Ok((100, 119)), Ok((7, 7))));
        for wrong in ["9-8", "-3", "3-", "a", ""] {
            assert!(steps(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(size("16GiB"), Ok(16 << 30));
        assert_eq!(size("1.5 MB"), Ok(1_500_000));
        assert_eq!(size("4096"), Ok(4096));
        for wrong in ["16G", "GiB", "-1GB", "1.2.3kB", ""] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
