//! What is asked of a planner that chooses how the work is shared.

use serde::Serialize;

/// `--parallel auto`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Parallel {
    /// Bytes that a rank may have at its peak; `None`: as many as there are.
    pub memory_limit: Option<usize>,
    /// Whether gradients may travel rounded to 16 bits.
    pub lossy: bool,
    /// Why the network must not be cut into stages, where other flags say so.
    pub without_stages: Option<String>,
    /// Why linear layers are not to be split.
    pub without_split_layers: Option<String>,
    /// Why images are not to be cut by rows.
    pub without_rows: Option<String>,
}
