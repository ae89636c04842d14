//! `dltrain bench …`: measurements that check the answer before they print a number.
//!
//! May use: every room below. Used by: `main`, `cli`.

mod allreduce;
mod compress;
mod gemm;
mod layers;
mod sizes;

use crate::comm::World;
use crate::error::Result;

/// Measure parts of dltrain on this machine.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Clone, clap::Subcommand)]
enum What {
    /// Sums over all ranks, each algorithm beside the MPI library's own
    Allreduce(allreduce::Args),
    /// Encoding and decoding of compressed gradients
    Compress(compress::Args),
    /// What the cores can do: a product of large matrices, on all ranks at once
    Gemm(gemm::Args),
    /// Every layer of a model: time and share of what the cores can do, forward and backward
    Layers(layers::Args),
}

/// Runs the measurement. Collective; rank 0 prints.
///
/// # Errors
/// `Internal`, agreed by all ranks, when an answer is wrong; `Usage` when the algorithm asked for cannot run here.
pub fn run(args: &Args, world: &World) -> Result<()> {
    match &args.what {
        What::Allreduce(args) => allreduce::run(args, world),
        What::Compress(args) => compress::run(args, world),
        What::Gemm(args) => gemm::run(args, world),
        What::Layers(args) => layers::run(args, world),
    }
}
