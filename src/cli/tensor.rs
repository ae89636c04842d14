//! The flag of split layers.

use dltrain::config::{MeshShape, TensorParallel};
use dltrain::error::Result;

use dltrain::config::values::within;

/// Ranks among which a layer is split: as wide as any is.
const MOST: usize = 4096;

#[derive(Debug, clap::Args)]
#[group(skip)]
#[command(next_help_heading = "Machine")]
pub struct Args {
    /// Split large linear layers over each T neighbouring ranks, where that sends less than their gradients; every rank
    /// has images of its own all the same.
    #[arg(long, value_name = "T", conflicts_with_all = ["mesh", "pipeline"])]
    tensor: Option<usize>,
}

impl Args {
    /// Over how many ranks layers are split.
    pub fn ranks(&self, mesh: Option<MeshShape>) -> usize {
        self.tensor.or(mesh.map(|mesh| mesh.tensor)).unwrap_or(1)
    }

    /// The split, or `None` where layers stay whole.
    ///
    /// # Errors
    /// `Usage`, naming the flag.
    pub fn validate(&self, mesh: Option<MeshShape>) -> Result<Option<TensorParallel>> {
        let ranks = self.ranks(mesh);
        within("tensor", ranks, MOST)?;
        Ok((ranks > 1).then_some(TensorParallel { ranks, groups: mesh.map(|mesh| mesh.data) }))
    }
}
