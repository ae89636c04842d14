//! How long a run is, or whether it only shows its plan.

use std::path::PathBuf;

use serde::Serialize;

use super::values::roofline;

/// How many steps a run has.
#[derive(Debug, Clone, PartialEq, Serialize, clap::Args)]
#[group(skip)]
#[command(next_help_heading = "Length of the run")]
pub struct RunLength {
    /// Times the training images are gone through, with --data [default: 30].
    #[arg(long, value_name = "N")]
    pub epochs: Option<usize>,
    /// Stop after N timed steps [default: 100 for synthetic images, else none].
    #[arg(long, value_name = "N")]
    pub steps: Option<usize>,
    /// Steps before the clock of images/s starts [default: 10 for synthetic images, else 0].
    #[arg(long, value_name = "N")]
    pub warmup: Option<usize>,
}

impl RunLength {
    /// With what holds where a flag is not given.
    pub fn or_usual(self, synthetic: bool) -> RunLength {
        let [epochs, warmup] = if synthetic { [1, 10] } else { [30, 0] };
        RunLength {
            epochs: self.epochs.or(Some(epochs)),
            steps: self.steps.or(synthetic.then_some(100)),
            warmup: self.warmup.or(Some(warmup)),
        }
    }

    /// Steps before the clock of images/s starts.
    pub fn warmup(&self) -> usize {
        self.warmup.unwrap_or(0)
    }
}

/// Whether the plan is printed instead of a run, and what of it.
#[derive(Debug, Clone, PartialEq, Serialize, clap::Args)]
#[group(skip)]
#[command(next_help_heading = "Length of the run")]
pub struct PlanOptions {
    /// Print the plan (layers, memory, buckets) and stop.
    #[arg(long)]
    pub dry_run: bool,
    /// With --dry-run: the least time of a step where sums of products run at so many TFLOP/s and memory at so many
    /// GB/s.
    #[arg(long, value_name = "TFLOPS,GBS", value_parser = roofline, requires = "dry_run")]
    #[serde(skip)]
    pub roofline: Option<(f64, f64)>,
    /// With --dry-run: every action of a step of rank 0, in order.
    #[arg(long, requires = "dry_run")]
    #[serde(skip)]
    pub script: bool,
    /// With --dry-run: write the plan's steps there, a JSON object a line, with operations and bytes of each.
    #[arg(long, value_name = "FILE", requires = "dry_run")]
    #[serde(skip)]
    pub plan_steps: Option<PathBuf>,
}
