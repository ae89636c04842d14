//! One run, as its results file has it, and what follows from that.

use std::path::Path;

use crate::error::Result;
use crate::record::RunRecord;

/// Steps from whose end the medians of bucket times are taken.
const BUCKET_STEPS: usize = 200;

/// Where a step's time goes, in the order of `Run::parts`.
pub const PARTS: [&str; 4] = ["compute", "communication not hidden", "waiting for input", "other"];

pub struct Run {
    /// The file's name without its ending.
    pub name: String,
    /// What tells it from the others of the report.
    pub label: String,
    pub record: RunRecord,
    pub ranks: f64,
    /// Images a rank and step.
    pub batch: f64,
    pub step: Vec<f64>,
    pub epoch: Vec<f64>,
    pub images: Vec<f64>,
    pub loss: Vec<f64>,
    /// What is shown of how good the network is: accuracy, rmse, …
    pub metric: String,
    pub metrics: Vec<f64>,
    pub seconds: Vec<f64>,
    /// Seconds of training at the end of each step.
    pub time: Vec<f64>,
    /// Steps at the start that do not count.
    warmup: usize,
}

/// When a bucket's sum started and ended in a step, and how much of that nothing hid: medians, in seconds.
pub struct BucketTimes {
    pub bytes: u64,
    pub start: f64,
    pub finish: f64,
    pub exposed: f64,
}

/// A step as it was rehearsed, in seconds from its start.
#[derive(Default)]
pub struct Rehearsed {
    pub computing: Vec<(f64, f64)>,
    /// When each bucket's sum is expected to begin, and to end.
    pub sums: Vec<(f64, f64)>,
    pub seconds: f64,
}

impl Run {
    /// # Errors
    /// `Data` where the file is no record of a run.
    pub fn open(path: &Path) -> Result<Run> {
        let mut record = RunRecord::open(path)?;
        record.config.values_mut().for_each(|value| *value = shortest(std::mem::take(value)));
        let count = |name: &str| record.config.get(name).and_then(|text| text.parse::<f64>().ok());
        let metric = record.config.get("metric").cloned().unwrap_or_else(|| "accuracy".into());
        let [step, epoch, images, loss, metrics, seconds] =
            ["step", "epoch", "images", "loss", &metric, "seconds"]
                .map(|name| record.series(&format!("steps/{name}")));
        let time = seconds.iter().scan(0.0, |sum, seconds| {
            *sum += seconds;
            Some(*sum)
        });
        let time = time.collect();
        let name = path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
        let accumulation = count("accumulation").unwrap_or(1.0);
        let (ranks, batch) =
            (count("ranks").unwrap_or(1.0), count("batch").unwrap_or(f64::NAN) * accumulation);
        let warmup = (count("warmup").unwrap_or(0.0) as usize).min(seconds.len());
        let label = name.clone();
        Ok(Run {
            name,
            label,
            record,
            ranks,
            batch,
            step,
            epoch,
            images,
            loss,
            metric,
            metrics,
            seconds,
            time,
            warmup,
        })
    }

    /// Whether its metric is a share, which is shown in per cent.
    pub fn shows_a_share(&self) -> bool {
        ["accuracy", "iou", "top5"].contains(&&*self.metric)
    }

    /// What its samples are called.
    pub fn unit(&self) -> &str {
        match self.text("unit") {
            "" => "images",
            unit => unit,
        }
    }

    /// A text of its configuration; empty where it is not known.
    pub fn text(&self, name: &str) -> &str {
        self.record.config.get(name).map_or("", String::as_str)
    }

    pub fn is_running(&self) -> bool {
        self.record.status == "running"
    }

    /// Images a second of all ranks, over the steps that count; also of a run that has not ended.
    pub fn images_per_second(&self) -> f64 {
        let (images, seconds) = (&self.images[self.warmup..], &self.seconds[self.warmup..]);
        images.iter().sum::<f64>() / seconds.iter().sum::<f64>()
    }

    /// Standard deviation of single steps' images/s, where there are two.
    pub fn images_per_second_deviation(&self) -> Option<f64> {
        let rates: Vec<f64> =
            (self.warmup..self.seconds.len()).map(|at| self.images[at] / self.seconds[at]).collect();
        let (count, mean) = (rates.len() as f64, rates.iter().sum::<f64>() / rates.len() as f64);
        let squares: f64 = rates.iter().map(|rate| (rate - mean).powi(2)).sum();
        (rates.len() > 1).then(|| (squares / (count - 1.0)).sqrt())
    }

    /// Seconds of the first epoch, which loads and warms up, and of a mean one of those after it; evaluation included.
    pub fn epoch_seconds(&self) -> [Option<f64>; 2] {
        let all = self.record.series("epochs/seconds");
        let later = all.get(1..).filter(|later| !later.is_empty());
        [all.first().copied(), later.map(|later| later.iter().sum::<f64>() / later.len() as f64)]
    }

    /// Seconds of a mean step, part by part.
    pub fn parts(&self) -> [f64; 4] {
        let mean = |values: &[f64]| {
            let values = values.get(self.warmup..).unwrap_or(&[]);
            values.iter().sum::<f64>() / values.len().max(1) as f64
        };
        let [compute, communication, input] = ["compute", "communication", "input"]
            .map(|name| mean(&self.record.series(&format!("steps/{name}"))).max(0.0));
        [compute, communication, input, (mean(&self.seconds) - compute - communication - input).max(0.0)]
    }

    /// The training loss of the last epoch, where there are any; else that of the last step.
    pub fn training_loss(&self) -> Option<f64> {
        self.record.series("epochs/train_loss").last().or(self.loss.last()).copied()
    }

    pub fn test(&self) -> Vec<(f64, f64, f64, f64)> {
        let tested = format!("test_{}", self.metric);
        let [epochs, loss, metrics] =
            ["epoch", "test_loss", &tested].map(|name| self.record.series(&format!("epochs/{name}")));
        let rows = epochs.iter().zip(loss).zip(metrics);
        let rows = rows.filter_map(|((&epoch, loss), metric)| {
            let last = self.epoch.iter().rposition(|&of| of == epoch)?;
            (!loss.is_nan()).then(|| (self.step[last], self.time[last], loss, metric))
        });
        rows.collect()
    }

    pub fn buckets(&self) -> Vec<BucketTimes> {
        let bytes = self.record.list::<u64>("config/bucket_bytes");
        let [start, finish, exposed] = ["bucket_start", "bucket_finish", "bucket_exposed"]
            .map(|name| self.record.last_rows(&format!("steps/{name}"), BUCKET_STEPS));
        let at = |rows: &[Vec<f32>], bucket: usize| {
            median(rows.iter().filter_map(|row| row.get(bucket).map(|&time| f64::from(time))).collect())
        };
        let buckets = bytes.into_iter().enumerate().filter_map(|(bucket, bytes)| {
            let [start, finish, exposed] = [at(&start, bucket)?, at(&finish, bucket)?, at(&exposed, bucket)?];
            Some(BucketTimes { bytes, start, finish, exposed })
        });
        buckets.collect()
    }

    /// When rank 0 was expected to compute in a step, and for each bucket when its sum was expected to be under way:
    /// begins and ends in seconds. Nothing where that is not known.
    pub fn rehearsed(&self) -> Rehearsed {
        let [begin, end] =
            ["begin", "end"].map(|name| self.record.list::<f64>(&format!("config/script_{name}")));
        let (buckets, computes) = (
            self.record.list::<i64>("config/script_bucket"),
            self.record.list::<u64>("config/script_computes"),
        );
        let times: Vec<(f64, f64)> = begin.into_iter().zip(end).collect();
        if times.iter().any(|(begin, end)| !begin.is_finite() || !end.is_finite()) {
            return Rehearsed::default();
        }
        let computing = times.iter().zip(&computes).filter(|(_, computes)| **computes > 0);
        let mut sums: Vec<(i64, (f64, f64))> =
            buckets.into_iter().zip(times.iter().copied()).filter(|(bucket, _)| *bucket >= 0).collect();
        sums.sort_by_key(|(bucket, _)| *bucket);
        Rehearsed {
            computing: computing.map(|(times, _)| *times).collect(),
            sums: sums.into_iter().map(|(_, times)| times).collect(),
            seconds: times.last().map_or(0.0, |(_, end)| *end),
        }
    }

    /// Seconds of a middling step among those that `buckets` looks at, and those in which the device worked.
    pub fn step_seconds(&self) -> [f64; 2] {
        [self.seconds.clone(), self.record.series("steps/compute")].map(|all| {
            let first = all.len().saturating_sub(BUCKET_STEPS);
            median(all[first..].to_vec()).unwrap_or(0.0)
        })
    }
}

/// What the samples of all these runs are called.
pub fn unit_of<'a>(runs: impl IntoIterator<Item = &'a Run>) -> &'static str {
    if runs.into_iter().all(|run| run.unit() == "images") { "images" } else { "samples" }
}

/// A number that was an f32 without the digits that it has as f64.
fn shortest(text: String) -> String {
    match text.parse::<f64>() {
        Ok(number) if text.contains('.') && f64::from(number as f32) == number => (number as f32).to_string(),
        _ => text,
    }
}

/// The middle one of those that are numbers.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.retain(|value| value.is_finite());
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}
