//! What a network is and how it starts, besides which one it is.

use std::path::PathBuf;

use serde::Serialize;

use super::SampleShape;
use super::values::{negated, number};

/// The network's shape, its loss and its first weights.
#[derive(Debug, Clone, PartialEq, Serialize, clap::Args)]
#[group(skip)]
#[command(next_help_heading = "Model and data")]
pub struct NetworkOptions {
    /// Classes the model tells apart [default: those it was made for].
    #[arg(long, value_name = "N")]
    pub classes: Option<usize>,
    /// Height and width of its images [default: those it was made for]; data are scaled to it.
    #[arg(long, value_name = "N")]
    pub image_size: Option<usize>,
    /// Share of each target that is spread evenly over all classes.
    #[arg(long, default_value_t = 0.0, value_name = "X", value_parser = number)]
    pub label_smoothing: f32,
    /// File of weights to start from: safetensors or HDF5 with PyTorch's names and shapes, or a checkpoint.
    #[arg(long, value_name = "FILE")]
    pub init_from: Option<PathBuf>,
    /// Start the last layer anew in spite of the file of weights: for other --classes than the file's.
    #[arg(long)]
    pub reset_head: bool,
    /// Start the network of an ONNX file without the file's weights.
    #[arg(long, conflicts_with_all = ["init_from", "reset_head"])]
    pub fresh_weights: bool,
    /// Drop nothing in training: neither dropout nor stochastic depth (to compare losses with another program's).
    #[arg(long)]
    #[serde(rename = "dropout", serialize_with = "negated")]
    pub no_dropout: bool,
    /// Do not learn these: backbone (all but the last layer), or names of layers as --dry-run has them.
    #[arg(long, value_name = "LAYERS", value_delimiter = ',')]
    pub freeze: Vec<String>,
    /// The shape of its samples, where these are arrays, which are not scaled to it.
    #[arg(skip)]
    #[serde(skip)]
    pub sample: Option<SampleShape>,
    /// Weights of points behind each target.
    #[arg(skip)]
    #[serde(skip)]
    pub weights: usize,
}
