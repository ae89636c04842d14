//! The command line, grouped as `--help` shows it, and its validation into a `Config`.

mod evaluation;
mod file;
mod loss_scale;
mod manual;
mod optimizer;
mod parallel;
mod parsed;
mod pipeline;
mod places;
mod relaxed;
mod tensor;
mod together;
mod train;
mod values;
mod wording;

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use dltrain::{bench, elastic, export, info, inspect, pack, record, report};

pub use manual::{Shell, completions, man};
pub use parsed::{Invocation, Parsed, command, complete, parse, refused};

/// Data-parallel training of convolutional networks: one executable, started by mpirun or srun.
///
/// Every rank trains on its share of the images; gradients are averaged while the backward pass goes on. Without
/// --data the images are synthetic and the run is a benchmark of 10 + 100 steps.
#[derive(Debug, Parser)]
#[command(
    name = "dltrain",
    version = record::version(),
    max_term_width = 110,
    args_conflicts_with_subcommands = true,
    args_override_self = true
)]
#[command(after_help = "Examples:
  mpirun -n 2 dltrain --model mnist_small --data data/digits
  srun --exclusive -N 4 dltrain --model mnist_large --batch 128
  dltrain --model vgg16 --classes 10 --dry-run
  dltrain --model vgg16 --max-batch 16GiB
  dltrain --config run.toml --epochs 90
  dltrain info

Exit codes: 0 done, 2 flags, 3 data, 4 machine or launcher, 5 a library call, 6 ranks disagree, 7 the loss is not \
finite, 8 results or checkpoints cannot be written, 9 a rank waited too long for another, 75 stopped by a signal or \
the time limit (--resume auto goes on), 1 a defect.")]
pub struct Cli {
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub train: train::Args,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// List the models: parameters, arithmetic and memory an image.
    Models,
    /// Say what this machine and this program offer: MPI, hosts, CPU, oneDNN, HDF5, GPUs.
    Info(info::Args),
    /// Test weights on the test images of --data, with the flags of a training: the same as --evaluate.
    Evaluate {
        /// --model, --data, --init-from and others, as dltrain --help has them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        flags: Vec<std::ffi::OsString>,
    },
    /// Say what images are, the most probable classes first: --init-from WEIGHTS --model NAME DATA [-o FILE].
    Predict {
        /// DATA: an image, a directory of images, or a data set; --top N; -o FILE (.csv, .h5); --model, --init-from and
        /// others, as dltrain --help has them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        flags: Vec<std::ffi::OsString>,
    },
    /// Write weights as safetensors, which torchvision's models load, or as HDF5; or with their network as an ONNX
    /// file.
    Export(export::Args),
    /// Measure parts: collectives, the layers of a model, the cores' arithmetic.
    Bench(bench::Args),
    /// Say what arrays HDF5 and netCDF-4 files hold, how they lie there, and what reading samples of them takes.
    Inspect(inspect::Args),
    /// Pack images into HDF5 files that are read in large pieces; --verify reads them again.
    Pack(pack::Args),
    /// Make a page of HTML of one or several runs' results: curves, speed, memory, overlap, scaling, sweeps.
    Report(report::Args),
    Elastic(elastic::Args),
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

impl Cli {
    /// Whether it is about this program or its files only, so that it also runs where MPI cannot start (a login node).
    pub fn is_local(&self) -> bool {
        matches!(
            self.command,
            Some(
                Command::Report(_)
                    | Command::Inspect(_)
                    | Command::Elastic(_)
                    | Command::Completions { .. }
                    | Command::Man { .. }
            )
        )
    }
}

impl Command {
    /// As it is typed.
    fn name(&self) -> &'static str {
        match self {
            Command::Models => "models",
            Command::Info(_) => "info",
            Command::Evaluate { .. } => "evaluate",
            Command::Predict { .. } => "predict",
            Command::Export(_) => "export",
            Command::Bench(_) => "bench",
            Command::Inspect(_) => "inspect",
            Command::Pack(_) => "pack",
            Command::Report(_) => "report",
            Command::Elastic(_) => "elastic",
            Command::Completions { .. } => "completions",
            Command::Man { .. } => "man",
        }
    }
}
