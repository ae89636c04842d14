//! How large linear layers are split over ranks.

use serde::Serialize;

/// Ranks that share layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct TensorParallel {
    /// How many neighbours share one.
    pub ranks: usize,
    /// How many such groups there are; `None`: as many as there are ranks for.
    pub groups: Option<usize>,
}
