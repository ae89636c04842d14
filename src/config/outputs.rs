//! What a run leaves.

use std::path::PathBuf;

use serde::Serialize;

use super::values::steps;

/// What a run leaves beside checkpoints, and where.
#[derive(Debug, Clone, PartialEq, Serialize, clap::Args)]
#[group(skip)]
#[command(next_help_heading = "Results")]
pub struct Outputs {
    /// File (.h5) or directory for the results [default: results/MODEL-DATE-TIME.h5].
    #[arg(long, value_name = "PATH")]
    pub results: Option<PathBuf>,
    /// File for a timeline of all ranks' steps, buckets and messages, to be opened in ui.perfetto.dev.
    #[arg(long, value_name = "FILE")]
    pub timeline: Option<PathBuf>,
    /// Steps of the run that are in it, counted from 0 [default: the last 50, or as many as 65536 events a rank hold].
    #[arg(long, value_name = "FIRST-LAST", value_parser = steps, requires = "timeline")]
    pub timeline_steps: Option<(u64, u64)>,
    /// Directory for TensorBoard: loss, accuracy, learning rate, images/s, and shares of a step's time.
    #[arg(long, value_name = "DIR")]
    pub tensorboard: Option<PathBuf>,
    /// Histograms of all weights and gradients there, every N steps.
    #[arg(long = "tensorboard-histograms", value_name = "N", requires = "tensorboard")]
    pub histograms: Option<u64>,
    /// File for MLPerf's log of the run, lines of :::MLLOG that mlperf-logging reads.
    #[arg(long, value_name = "FILE")]
    pub mllog: Option<PathBuf>,
    /// A key of it, in place of the run's own where there is one: submission_org=NAME, submission_division=closed.
    #[arg(long = "mllog-key", value_name = "KEY=VALUE", requires = "mllog", value_parser = mllog_key)]
    pub mllog_keys: Vec<String>,
    /// Write the trained weights here: safetensors, or HDF5 where the name ends in .h5.
    #[arg(long, value_name = "FILE")]
    pub save_weights: Option<PathBuf>,
}

fn mllog_key(text: &str) -> std::result::Result<String, String> {
    match text.split_once('=') {
        Some((key, _)) if !key.is_empty() => Ok(text.into()),
        _ => Err("it is KEY=VALUE, such as submission_org=NAME".into()),
    }
}
