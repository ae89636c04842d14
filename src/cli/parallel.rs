//! The flags of the planner that chooses how the work is shared.

use dltrain::config::{Parallel, most};
use dltrain::error::Error;

use dltrain::config::values::{size, within};

/// Who chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Chooser {
    /// The planner, by what it predicts.
    Auto,
}

#[derive(Debug, clap::Args)]
#[group(skip)]
#[command(next_help_heading = "Machine")]
pub struct Args {
    /// Let a planner choose: data parallelism, ZeRO, recomputation, pipelines, split layers and images cut by rows are
    /// rehearsed for this job, or with --dry-run for --predict-nodes, and the fastest that fits is taken.
    #[arg(long, value_name = "auto", conflicts_with_all = [
        "pipeline", "tensor", "spatial", "mesh", "micro_batches", "schedule", "pipeline_cuts", "zero", "sync",
        "local_steps", "max_batch",
    ])]
    parallel: Option<Chooser>,
    /// With --parallel auto: what a rank may have at its peak, such as 2GiB [default: what is free].
    #[arg(long, value_name = "SIZE", value_parser = size, requires = "parallel")]
    memory_limit: Option<usize>,
    /// With --predict-nodes, --parallel auto or --pipeline: run so many steps here first, and predict, or cut into
    /// stages, by what they took instead of by rates.
    #[arg(long, value_name = "STEPS")]
    measure: Option<usize>,
    /// With --parallel auto: gradients may travel in 16 bits too, which changes results.
    #[arg(long, requires = "parallel")]
    lossy: bool,
}

impl Args {
    /// Steps that are to be measured; `needed` if something is predicted of other nodes, or a network is to be cut.
    ///
    /// # Errors
    /// `Usage` where they would be measured for nothing.
    pub fn measured(&self, needed: bool) -> Result<Option<usize>, Error> {
        let Some(steps) = self.measure else { return Ok(None) };
        within("measure", steps, most::MEASURED)?;
        match needed || self.parallel.is_some() {
            true => Ok(Some(steps)),
            false => {
                let uses = "--predict-nodes, --parallel auto and --pipeline without --pipeline-cuts";
                Err(Error::usage(format!("--measure: it is for {uses}; add one of them")))
            }
        }
    }

    /// What is asked for, if anything; the others are what other flags say of a network in stages, of split layers and
    /// of images that are cut.
    pub fn validate(
        &self,
        stages: Result<(), Error>,
        split_layers: Result<(), Error>,
        rows: Result<(), Error>,
    ) -> Option<Parallel> {
        let [without_stages, without_split_layers, without_rows] =
            [stages, split_layers, rows].map(|said| said.err().map(|error| error.to_string()));
        let Args { memory_limit, lossy, .. } = *self;
        let of = |Chooser::Auto| Parallel {
            memory_limit,
            lossy,
            without_stages,
            without_split_layers,
            without_rows,
        };
        self.parallel.map(of)
    }
}
