//! The learning rate over a run.

use clap::ValueEnum;
use serde::Serialize;

use super::values::number;

/// How the learning rate goes over the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ScheduleKind {
    /// The same rate throughout.
    Constant,
    /// Multiplied by --lr-gamma every --lr-step-epochs epochs.
    Step,
    /// Half a cosine from --lr to zero at the end of the run.
    Cosine,
    /// The share of the run that is left, to the power --lr-power: zero at the end.
    Polynomial,
}

/// How the learning rate goes.
#[derive(Debug, Clone, PartialEq, Serialize, clap::Args)]
#[group(skip)]
#[command(next_help_heading = "Optimizer")]
pub struct Rate {
    /// Base rate, before scaling by ranks.
    #[arg(skip)]
    pub base: f32,
    /// How the learning rate goes over the run.
    #[arg(id = "lr_schedule", long = "lr-schedule", value_enum, default_value_t = ScheduleKind::Constant)]
    pub schedule: ScheduleKind,
    /// Epochs over which the rate rises linearly from nothing.
    #[arg(long = "lr-warmup", default_value_t = 0.0, value_name = "EPOCHS", value_parser = number)]
    pub warmup_epochs: f32,
    /// Epochs between two steps of the step schedule.
    #[arg(long = "lr-step-epochs", default_value_t = 30, value_name = "EPOCHS")]
    pub step_epochs: usize,
    /// Factor of each step of the step schedule.
    #[arg(long = "lr-gamma", default_value_t = 0.1, value_name = "FACTOR", value_parser = number)]
    pub gamma: f32,
    /// Power of the polynomial schedule.
    #[arg(long = "lr-power", default_value_t = 2.0, value_name = "P", value_parser = number)]
    pub power: f32,
    /// Multiply the learning rate by the number of ranks (Goyal et al. 2017).
    #[arg(long = "lr-scale-by-ranks")]
    pub scale_by_ranks: bool,
}
