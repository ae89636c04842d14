//! MLPerf's log of a run: lines of `:::MLLOG` and an object of JSON, which mlperf-logging checks and sums up.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::{EpochRecord, StepRecord};
use crate::config::Metric;
use crate::error::{Error, Result};
use crate::files;

/// What MLPerf HPC asks a benchmark for, by its `submission_benchmark`.
const TARGETS: [(&str, f64); 2] = [("cosmoflow", 0.124), ("deepcam", 0.82)];

/// Where the log goes, and what it says of the run before the first step.
#[derive(Debug, Clone, PartialEq)]
pub struct MlperfKeys {
    /// The file.
    pub path: PathBuf,
    /// The keys, each with its value.
    pub keys: Vec<(String, Value)>,
}

/// The log of a run, as it is written.
pub(super) struct MlperfLog {
    out: File,
    path: PathBuf,
    metric: Metric,
    /// What the test is to come to, where the benchmark asks for something.
    target: Option<f64>,
    reached: bool,
    /// The epoch that has begun and not ended.
    epoch: Option<u64>,
    begun: bool,
    /// When the last step ended.
    stepped: SystemTime,
    /// The time of the last line, in milliseconds: none is earlier.
    last: u64,
}

/// Whether a log can be written there.
///
/// # Errors
/// `Output`: it is there already, or its directory is not.
pub fn check_mllog(path: &Path, resumed: bool) -> Result<()> {
    let failed = |what: String| Error::output(path, format!("--mllog: {what}"));
    super::path::probe(files::directory_of(path)).map_err(|error| failed(error.to_string()))?;
    match !resumed && fs::exists(path).unwrap_or(true) {
        true => Err(failed("is there already; choose another file".into())),
        false => Ok(()),
    }
}

impl MlperfLog {
    /// Begins the log of a run that was started so long ago, or goes on with it.
    ///
    /// # Errors
    /// `Output`: it cannot be written.
    pub fn create(of: &MlperfKeys, metric: Metric, ago: Duration, resumed: bool) -> Result<MlperfLog> {
        let MlperfKeys { path, keys } = of;
        let out = OpenOptions::new().append(true).create(resumed).create_new(!resumed).open(path);
        let out = out.map_err(|error| Error::output(path, format!("cannot be made: {error}")))?;
        let benchmark = keys.iter().find(|(key, _)| key == "submission_benchmark");
        let target = TARGETS.iter().find(|(name, _)| benchmark.is_some_and(|(_, value)| value == name));
        let now = SystemTime::now();
        let mut log = MlperfLog {
            out,
            path: path.clone(),
            metric,
            target: target.map(|(_, target)| *target),
            reached: target.is_none(),
            epoch: None,
            begun: resumed,
            stepped: now,
            last: 0,
        };
        if !resumed {
            let started = now - ago;
            // Nothing of the system's is cleared here.
            log.point(started, "cache_clear", json!(false), json!({}))?;
            log.line(started, "INTERVAL_START", "init_start", Value::Null, json!({}))?;
            keys.iter().try_for_each(|(key, value)| log.point(now, key, value.clone(), json!({})))?;
        }
        Ok(log)
    }

    pub fn step(&mut self, r: &StepRecord) -> Result<()> {
        let now = SystemTime::now();
        let begun = now - Duration::try_from_secs_f64(r.seconds).unwrap_or_default();
        if !std::mem::replace(&mut self.begun, true) {
            self.line(begun, "INTERVAL_END", "init_stop", Value::Null, json!({}))?;
            self.line(begun, "INTERVAL_START", "run_start", Value::Null, json!({}))?;
        }
        // A synthetic run has one, without a number.
        let epoch = r.epoch.max(1);
        if self.epoch.replace(epoch) != Some(epoch) {
            self.line(begun, "INTERVAL_START", "epoch_start", Value::Null, json!({ "epoch_num": epoch }))?;
        }
        self.stepped = now;
        Ok(())
    }

    /// The test comes behind the last step.
    pub fn epoch(&mut self, r: &EpochRecord) -> Result<()> {
        let (now, of) = (SystemTime::now(), json!({ "epoch_num": r.epoch }));
        let speed = json!({ "throughput": r.images_per_second, "loss": r.train_loss });
        self.point(self.stepped, "tracked_stats", speed, of.clone())?;
        if r.test_metric.is_finite() {
            let is_error = self.metric.prefers(0.0, 1.0);
            let key = if is_error { "eval_error" } else { "eval_accuracy" };
            self.reached |= self.target.is_some_and(|target| !self.metric.prefers(target, r.test_metric));
            self.line(self.stepped, "INTERVAL_START", "eval_start", Value::Null, of.clone())?;
            self.line(now, "INTERVAL_END", "eval_stop", Value::Null, of.clone())?;
            self.point(now, key, json!(r.test_metric), of)?;
        }
        self.end_epoch(now)
    }

    fn end_epoch(&mut self, now: SystemTime) -> Result<()> {
        match self.epoch.take() {
            Some(epoch) => {
                self.line(now, "INTERVAL_END", "epoch_stop", Value::Null, json!({ "epoch_num": epoch }))
            }
            None => Ok(()),
        }
    }

    /// The end of a run: a success where it came to its end, and to what its benchmark asks for.
    pub fn finish(&mut self, finished: bool) -> Result<()> {
        let now = SystemTime::now();
        self.end_epoch(now)?;
        let status = if finished && self.reached { "success" } else { "aborted" };
        match self.begun {
            true => self.line(now, "INTERVAL_END", "run_stop", Value::Null, json!({ "status": status })),
            false => Ok(()),
        }
    }

    fn point(&mut self, at: SystemTime, key: &str, value: Value, about: Value) -> Result<()> {
        self.line(at, "POINT_IN_TIME", key, value, about)
    }

    fn line(&mut self, at: SystemTime, kind: &str, key: &str, value: Value, about: Value) -> Result<()> {
        let at = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
        self.last = self.last.max(at);
        let line = json!({
            "namespace": "", "time_ms": self.last, "event_type": kind, "key": key, "value": value, "metadata": about
        });
        let written = self.out.write_all(format!(":::MLLOG {line}\n").as_bytes());
        written.map_err(|error| Error::output(&self.path, format!("cannot write MLPerf's log: {error}")))
    }
}
