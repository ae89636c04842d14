//! How gradients are cut into messages, and how long ranks wait for each other.

use std::path::PathBuf;

use serde::{Serialize, Serializer};

use super::values::negated;

/// How gradients are averaged in buckets.
#[derive(Debug, Clone, PartialEq, Serialize, clap::Args)]
#[group(skip)]
#[command(next_help_heading = "Machine")]
pub struct Buckets {
    /// What `dltrain bench autotune` measured, for auto [default: $DLTRAIN_TUNING, else tuning.json in
    /// ~/.config/dltrain].
    #[arg(long, value_name = "FILE")]
    pub tuning: Option<PathBuf>,
    /// Gradients are averaged in buckets of at least this many megabytes [default: as rehearsed fastest].
    #[arg(long, value_name = "MB")]
    #[serde(rename = "fusion_threshold", serialize_with = "in_bytes")]
    pub fusion_threshold_mb: Option<f64>,
    /// Average gradients after the backward pass instead of during it (to compare).
    #[arg(long)]
    #[serde(rename = "overlap", serialize_with = "negated")]
    pub no_overlap: bool,
}

impl Buckets {
    /// Bytes from which a bucket is closed; `None`: by ready times and costs.
    pub fn fusion_threshold(&self) -> Option<usize> {
        self.fusion_threshold_mb.map(|megabytes| (megabytes * 1e6) as usize)
    }
}

fn in_bytes<S: Serializer>(megabytes: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
    megabytes.map(|megabytes| (megabytes * 1e6) as usize).serialize(serializer)
}

/// How long ranks wait for each other.
#[derive(Debug, Clone, PartialEq, Serialize, clap::Args)]
#[group(skip)]
#[command(next_help_heading = "Machine")]
pub struct StallLimits {
    /// Say for which ranks a rank waits when it has waited for SECONDS without any progress; 0 is never.
    #[arg(long, default_value_t = 30.0, value_name = "SECONDS")]
    pub stall_warn: f64,
    /// End the job when a rank has waited for SECONDS without any progress; 0 is never.
    #[arg(long, default_value_t = 0.0, value_name = "SECONDS")]
    pub stall_abort: f64,
}
