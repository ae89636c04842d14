//! The sums of a run.

use std::collections::BTreeMap;

use super::{EpochRecord, Memory, StepRecord};
use crate::device::Metered;

/// What a run comes to: sums over the steps that count (all but the warm-up).
#[derive(Debug, Clone)]
pub(super) struct Closing {
    pub steps: u64,
    pub images: u64,
    pub training_seconds: f64,
    pub compute: f64,
    pub communication: f64,
    pub input: f64,
    pub encoding: f64,
    /// Of this part of a run.
    pub usage: Metered,
    /// Bytes that a rank sent of compressed gradients, and would have sent without compression.
    pub sent: [u64; 2],
    pub setup_seconds: f64,
    pub seconds: f64,
    pub epochs: u64,
    /// (accuracy, epoch); NaN until an epoch had one.
    pub best_test_accuracy: (f64, u64),
    pub final_test_accuracy: f64,
    pub memory: Option<Memory>,
    /// Seconds of this run's earlier parts.
    pub earlier: f64,
}

impl Closing {
    pub fn new() -> Closing {
        Closing {
            steps: 0,
            images: 0,
            training_seconds: 0.0,
            compute: 0.0,
            communication: 0.0,
            input: 0.0,
            encoding: 0.0,
            usage: Metered::default(),
            sent: [0; 2],
            setup_seconds: f64::NAN,
            seconds: f64::NAN,
            epochs: 0,
            best_test_accuracy: (f64::NAN, 0),
            final_test_accuracy: f64::NAN,
            memory: None,
            earlier: 0.0,
        }
    }

    /// All of it that a resumed run goes on with, by name.
    pub fn numbers(&self) -> [(&'static str, f64); 11] {
        [
            ("summary.steps", self.steps as f64),
            ("summary.images", self.images as f64),
            ("summary.training_seconds", self.training_seconds),
            ("summary.compute", self.compute),
            ("summary.communication", self.communication),
            ("summary.input", self.input),
            ("summary.setup_seconds", self.setup_seconds),
            ("summary.epochs", self.epochs as f64),
            ("summary.best_test_accuracy", self.best_test_accuracy.0),
            ("summary.best_epoch", self.best_test_accuracy.1 as f64),
            ("summary.final_test_accuracy", self.final_test_accuracy),
        ]
    }

    pub fn from_numbers(numbers: &BTreeMap<String, f64>) -> Closing {
        if !numbers.contains_key("summary.steps") {
            return Closing::new();
        }
        let number = |name: &str| numbers.get(&format!("summary.{name}")).copied().unwrap_or(0.0);
        Closing {
            steps: number("steps") as u64,
            images: number("images") as u64,
            training_seconds: number("training_seconds"),
            compute: number("compute"),
            communication: number("communication"),
            input: number("input"),
            setup_seconds: number("setup_seconds"),
            epochs: number("epochs") as u64,
            best_test_accuracy: (number("best_test_accuracy"), number("best_epoch") as u64),
            final_test_accuracy: number("final_test_accuracy"),
            earlier: number("seconds"),
            ..Closing::new()
        }
    }

    /// Of all ranks; 0 before the first step that counts.
    pub fn images_per_second(&self) -> f64 {
        if self.training_seconds > 0.0 { self.images as f64 / self.training_seconds } else { 0.0 }
    }

    /// A time as a share of the steps' time; NaN before the first step that counts.
    pub fn share(&self, seconds: f64) -> f64 {
        seconds / self.training_seconds
    }

    pub fn step(&mut self, r: &StepRecord) {
        self.steps += 1;
        self.images += r.images;
        self.training_seconds += r.seconds;
        self.compute += r.compute;
        self.communication += r.communication;
        self.input += r.input;
        self.encoding += r.encoding;
        self.usage.add(r.seconds, r.usage);
    }

    pub fn epoch(&mut self, r: &EpochRecord) {
        self.epochs += 1;
        self.final_test_accuracy = r.test_accuracy;
        let (best, _) = self.best_test_accuracy;
        if r.test_accuracy > best || best.is_nan() {
            self.best_test_accuracy = (r.test_accuracy, r.epoch);
        }
    }
}
