//! The flags of the planner that chooses how the work is shared.

use dltrain::config::Parallel;
use dltrain::error::Error;

use super::values::size;

/// Who chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Choice {
    /// The planner, by what it predicts.
    Auto,
}

#[derive(Debug, clap::Args)]
#[group(skip)]
#[command(next_help_heading = "Machine")]
pub struct Args {
    /// Let a planner choose: data parallelism, ZeRO, recomputation and pipelines are rehearsed for this job, or with
    /// --dry-run for --predict-nodes, and the fastest that fits is taken.
    #[arg(long, value_name = "auto", conflicts_with_all = [
        "pipeline", "mesh", "micro_batches", "schedule", "pipeline_cuts", "zero", "sync", "local_steps", "max_batch",
    ])]
    parallel: Option<Choice>,
    /// With --parallel auto: what a rank may have at its peak, such as 2GiB [default: what is free].
    #[arg(long, value_name = "SIZE", value_parser = size, requires = "parallel")]
    memory_limit: Option<usize>,
    /// With --parallel auto: gradients may travel in 16 bits too, which changes results.
    #[arg(long, requires = "parallel")]
    lossy: bool,
}

impl Args {
    /// What is asked for, if anything; `stages` is what other flags say of a network in stages.
    pub fn validate(&self, stages: impl FnOnce() -> Result<(), Error>) -> Option<Parallel> {
        let of = |Choice::Auto| Parallel {
            memory_limit: self.memory_limit,
            lossy: self.lossy,
            without_stages: stages().err().map(|error| error.to_string()),
        };
        self.parallel.map(of)
    }
}
