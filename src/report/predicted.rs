//! What `--save-prediction` wrote, to be drawn beside what was measured.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use super::axis::{ChartAxis, Scale};
use super::chart::{ChartLine, Mark};
use super::figures::Figure;
use crate::error::{Error, OrError, Result};
use crate::files;

/// A prediction for some numbers of ranks.
#[derive(Debug, Deserialize)]
pub struct PredictedRuns {
    model: String,
    /// How the work is shared, for the legend.
    strategy: String,
    /// The name of `--network`'s file.
    #[serde(default)]
    network: Option<String>,
    points: Vec<Point>,
}

#[derive(Debug, Deserialize)]
struct Point {
    ranks: f64,
    step_seconds: f64,
    images_per_second: f64,
    efficiency: f64,
}

impl PredictedRuns {
    /// # Errors
    /// `Data` where the file is no prediction.
    pub fn read(path: &Path) -> Result<PredictedRuns> {
        let bytes = files::read(path).or_data(path)?;
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
        let on = self.network.iter().map(|name| format!(", {name}"));
        format!("predicted: {}{}", self.strategy, on.collect::<String>())
    }

    /// Whether it is of several numbers of ranks.
    pub fn is_line(&self) -> bool {
        self.points.len() > 1
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

/// Seconds of a step over ranks, a line for each network and number of samples a step that are predicted for several
/// numbers of ranks: strong scaling, whose points are in a file each where the batch of a rank follows from the ranks.
pub fn strong(predicted: &[PredictedRuns]) -> Result<Option<Figure>> {
    /// Ranks, and seconds of a step.
    type Points = Vec<(f64, f64)>;
    let mut lots: BTreeMap<(&str, &str, u64), Points> = BTreeMap::new();
    for file in predicted {
        for point in &file.points {
            let samples = (point.images_per_second * point.step_seconds).round() as u64;
            let key = (file.model.as_str(), file.network.as_deref().unwrap_or(""), samples);
            lots.entry(key).or_default().push((point.ranks, point.step_seconds));
        }
    }
    let mut lines = Vec::new();
    for ((model, network, samples), mut points) in lots {
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (Some(&(fewest, longest)), Some(&(most, _))) = (points.first(), points.last()) else { continue };
        if fewest == most {
            continue;
        }
        let ideal = points.iter().map(|&(ranks, _)| (ranks, longest * fewest / ranks)).collect();
        let on = if network.is_empty() { String::new() } else { format!(", {network}") };
        let colour = lines.len() / 2;
        let label = format!("predicted: {model}, {samples} samples a step{on}");
        lines.push(ChartLine::new(label, points, Mark::Line, colour));
        lines.push(ChartLine::new(if colour == 0 { "ideal" } else { "" }, ideal, Mark::Dashes, colour));
    }
    let [x, y] = [ChartAxis::new("ranks", Scale::Log2), ChartAxis::new("a step [s]", Scale::Log10)];
    let caption =
        "Of as many samples in all (strong scaling). The ideal line leads from the fewest ranks on.";
    Figure::of_lines(["strong-scaling", "A step over ranks", caption], [&x, &y], &lines)
}
