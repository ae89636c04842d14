//! The flags of predictions for other nodes.

use std::path::{Path, PathBuf};

use dltrain::config::{Prediction, most};
use dltrain::error::{Error, Result};

use super::values::within;

#[derive(Debug, clap::Args)]
#[group(skip)]
#[command(next_help_heading = "Length of the run")]
pub struct Args {
    /// With --dry-run: time of a step, images/s and memory on so many nodes with as many ranks each as were started
    /// here.
    #[arg(long, value_name = "N,…", value_delimiter = ',', requires = "dry_run")]
    predict_nodes: Vec<usize>,
    /// The network of --predict-nodes: a file such as those of jobs/networks [default: flat, as `dltrain bench
    /// autotune` measured].
    #[arg(long, value_name = "FILE", requires = "predict_nodes")]
    network: Option<PathBuf>,
    /// What ranks cost that are slow at random: the time that a rank computes varies by so many times its mean.
    #[arg(long, value_name = "CV", requires = "predict_nodes")]
    jitter: Option<f64>,
    /// Write what every rank of --predict-nodes does, message by message, as JSON: benchmarks/predict/simgrid.py makes
    /// traces of it that SimGrid replays.
    #[arg(long, value_name = "FILE", requires = "predict_nodes")]
    export_trace: Option<PathBuf>,
    /// Write what --predict-nodes found, for `dltrain report --predicted` to draw beside runs.
    #[arg(long, value_name = "FILE.json", requires = "predict_nodes")]
    save_prediction: Option<PathBuf>,
}

impl Args {
    /// Whether anything is to be predicted.
    pub fn is_given(&self) -> bool {
        !self.predict_nodes.is_empty()
    }

    /// The file of the network.
    pub fn network(&self) -> Option<&Path> {
        self.network.as_deref()
    }

    /// Where goes what ranks do.
    pub fn traces(&self) -> Option<&Path> {
        self.export_trace.as_deref()
    }

    /// Where the prediction goes.
    pub fn saved(&self) -> Option<&Path> {
        self.save_prediction.as_deref()
    }

    /// What is to be predicted, if anything.
    ///
    /// # Errors
    /// `Usage`, naming the flag.
    pub fn validate(self) -> Result<Option<Prediction>> {
        self.predict_nodes.iter().try_for_each(|&nodes| within("predict-nodes", nodes, most::NODES))?;
        if let Some(cv) = self.jitter.filter(|cv| !(0.0..=10.0).contains(cv)) {
            return Err(Error::usage(format!("--jitter {cv}: must be from 0 to 10")));
        }
        if let (Some(directory), true) = (&self.export_trace, self.predict_nodes.len() > 1) {
            return Err(Error::usage(format!(
                "--export-trace {}: a trace is of one number of nodes; give --predict-nodes one",
                directory.display()
            )));
        }
        Ok((!self.predict_nodes.is_empty()).then_some(Prediction {
            nodes: self.predict_nodes,
            network: self.network,
            jitter: self.jitter,
            trace: self.export_trace,
            saved: self.save_prediction,
        }))
    }
}
