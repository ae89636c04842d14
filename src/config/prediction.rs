//! What is asked of a job on other nodes.

use std::path::PathBuf;

use super::most;
use super::values::within;
use crate::error::{Error, Result};

/// What is asked of a job on other nodes.
#[derive(Debug, Clone, PartialEq, clap::Args)]
#[group(skip)]
#[command(next_help_heading = "Length of the run")]
pub struct Prediction {
    /// With --dry-run: time of a step, images/s and memory on so many nodes with as many ranks each as were started
    /// here.
    #[arg(
        long = "predict-nodes",
        value_name = "N,…",
        value_delimiter = ',',
        action = clap::ArgAction::Set,
        requires = "dry_run"
    )]
    pub nodes: Vec<usize>,
    /// The network of --predict-nodes: a file such as those of jobs/networks [default: flat, as `dltrain bench
    /// autotune` measured].
    #[arg(long, value_name = "FILE", requires = "nodes")]
    pub network: Option<PathBuf>,
    /// What ranks cost that are slow at random: the time that a rank computes varies by so many times its mean.
    #[arg(long, value_name = "CV", requires = "nodes")]
    pub jitter: Option<f64>,
    /// Write what every rank of --predict-nodes does, message by message, as JSON: benchmarks/predict/simgrid.py makes
    /// traces of it that SimGrid replays.
    #[arg(long = "export-trace", value_name = "FILE", requires = "nodes")]
    pub trace: Option<PathBuf>,
    /// Write what --predict-nodes found, for `dltrain report --predicted` to draw beside runs.
    #[arg(long = "save-prediction", value_name = "FILE.json", requires = "nodes")]
    pub saved: Option<PathBuf>,
}

impl Prediction {
    /// What is to be predicted, if anything.
    ///
    /// # Errors
    /// `Usage`, naming the flag.
    pub fn checked(self) -> Result<Option<Prediction>> {
        self.nodes.iter().try_for_each(|&nodes| within("predict-nodes", nodes, most::NODES))?;
        if let Some(cv) = self.jitter.filter(|cv| !(0.0..=10.0).contains(cv)) {
            return Err(Error::usage(format!("--jitter {cv}: must be from 0 to 10")));
        }
        if let (Some(path), true) = (&self.trace, self.nodes.len() > 1) {
            return Err(Error::usage(format!(
                "--export-trace {}: a trace is of one number of nodes; give --predict-nodes one",
                path.display()
            )));
        }
        Ok((!self.nodes.is_empty()).then_some(self))
    }
}
