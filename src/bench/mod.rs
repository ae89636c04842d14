//! `dltrain bench …`: measurements that check the answer before they print a number.
//!
//! May use: every module below. Used by: `main`, `cli`.

mod autotune;
mod collectives;
mod compress;
mod data;
mod fusion;
mod gemm;
mod layers;
mod limits;
mod site;
mod sizes;
mod steps;

use self::collectives::Subject;
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
    Allreduce(collectives::Args),
    /// Sums of which each rank gets its part
    #[command(name = "reducescatter")]
    ReduceScatter(collectives::Args),
    /// Every rank's part, to all ranks
    Allgather(collectives::Args),
    /// What rank 0 has, to all ranks
    Broadcast(collectives::Args),
    /// Measures what `--allreduce auto` and the cut into buckets are decided by, and keeps it in a file
    Autotune(autotune::Args),
    /// A model's gradients in buckets of several cuts, while a backward pass is waited for
    Fusion(fusion::Args),
    /// Encoding and decoding of compressed gradients
    Compress(compress::Args),
    /// How fast a data set is read, decoded and prepared
    Data(data::Args),
    /// What the cores can do: a product of large matrices, on all ranks at once
    Gemm(gemm::Args),
    /// Every layer of a model: time and share of what the cores can do, forward and backward
    Layers(layers::Args),
    /// Cores, memory, messages and file systems on all ranks for five minutes, and what of them is slow
    Site(site::Args),
}

/// Runs the measurement. Collective; rank 0 prints.
///
/// # Errors
/// `Internal`, agreed by all ranks, when an answer is wrong; `Usage` when the algorithm asked for cannot run here.
pub fn run(args: &Args, world: &World) -> Result<()> {
    match &args.what {
        What::Allreduce(args) => collectives::run(Subject::Allreduce, args, world),
        What::ReduceScatter(args) => collectives::run(Subject::ReduceScatter, args, world),
        What::Allgather(args) => collectives::run(Subject::Allgather, args, world),
        What::Broadcast(args) => collectives::run(Subject::Broadcast, args, world),
        What::Autotune(args) => autotune::run(args, world),
        What::Fusion(args) => fusion::run(args, world),
        What::Compress(args) => compress::run(args, world),
        What::Data(args) => data::run(args, world),
        What::Gemm(args) => gemm::run(args, world),
        What::Layers(args) => layers::run(args, world),
        What::Site(args) => site::run(args, world),
    }
}

/// The middle one of sorted numbers, of an even count the mean of the two; `None` of none.
fn median(sorted: &[f64]) -> Option<f64> {
    let count = sorted.len();
    Some((sorted.get(count.checked_sub(1)? / 2)? + sorted[count / 2]) / 2.0)
}
