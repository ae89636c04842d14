//! What `--save-prediction` wrote, to be drawn beside what was measured.

use std::path::Path;

use serde::Deserialize;

use crate::error::{Error, Result};
use crate::files;

/// A prediction for some numbers of ranks.
#[derive(Debug, Deserialize)]
pub struct PredictedRuns {
    /// How the work is shared, for the legend.
    strategy: String,
    points: Vec<Point>,
}

#[derive(Debug, Deserialize)]
struct Point {
    ranks: f64,
    images_per_second: f64,
    efficiency: f64,
}

impl PredictedRuns {
    /// # Errors
    /// `Data` where the file is no prediction.
    pub fn read(path: &Path) -> Result<PredictedRuns> {
        let bytes = files::read(path).map_err(|error| Error::data(path, error))?;
        let prediction: PredictedRuns = serde_json::from_slice(&bytes).map_err(|error| {
            Error::data(path, format!("is no prediction as --save-prediction writes it: {error}"))
        })?;
        let is_good = |point: &Point| {
            point.ranks >= 1.0 && point.images_per_second > 0.0 && point.images_per_second.is_finite()
        };
        match prediction.points.iter().all(is_good) && !prediction.points.is_empty() {
            true => Ok(prediction),
            false => Err(Error::data(path, "is no prediction: images a second must be above 0")),
        }
    }

    /// For the legend.
    pub fn label(&self) -> String {
        format!("predicted: {}", self.strategy)
    }

    /// Images a second of all ranks, over ranks.
    pub fn speeds(&self) -> Vec<(f64, f64)> {
        self.points.iter().map(|point| (point.ranks, point.images_per_second)).collect()
    }

    /// The share in percent of what as many ranks would do alone, over ranks.
    pub fn efficiencies(&self) -> Vec<(f64, f64)> {
        self.points.iter().map(|point| (point.ranks, 100.0 * point.efficiency)).collect()
    }
}
