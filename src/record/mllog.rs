//! MLPerf's log of a run: lines of `:::MLLOG` and an object of JSON, which mlperf-logging checks and sums up.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::{EpochRecord, StepRecord};
use crate::config::Metric;
use crate::error::{Error, OrError, Result};
use crate::files;

/// What MLPerf HPC asks a benchmark for, by its `submission_benchmark`.
const TARGETS: [(&str, Metric, f64); 2] = [("cosmoflow", Metric::Mae, 0.124), ("deepcam", Metric::Iou, 0.82)];
/// What each line begins with.
const MARK: &str = ":::MLLOG ";

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
    /// What the test is to come to, and by which metric, where the benchmark asks for something.
    target: Option<(Metric, f64)>,
    reached: bool,
    /// The epoch that has begun and not ended.
    epoch: Option<u64>,
    begun: bool,
    /// When the last step ended.
    stepped: SystemTime,
    /// The time of the last line, in milliseconds: none is earlier.
    last: u64,
}

/// Whether a log can be written there, or be gone on with where the run does; owns the file.
///
/// # Errors
/// `Output`: it is there already, or no log, or another run's, or its directory is not there.
pub fn check_mllog(path: &Path, resumed: bool) -> Result<()> {
    if !resumed {
        return super::path::claim(path, "--mllog");
    }
    files::own(path, "choose another --mllog")?;
    let failed = |what: String| Error::output(path, format!("--mllog: {what}"));
    match fs::read(path) {
        Ok(log) if log.is_empty() || log.starts_with(MARK.as_bytes()) => Ok(()),
        Ok(_) => Err(failed("is no log of MLPerf; choose another file".into())),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            super::path::probe(files::directory_of(path)).map_err(|error| failed(error.to_string()))
        }
        Err(error) => Err(failed(format!("cannot be read: {error}"))),
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
        let out = out.or_output(path, "cannot be made")?;
        let before = fs::read_to_string(path);
        let before = before.or_output(path, "cannot be read")?;
        let benchmark = keys.iter().find(|(key, _)| key == "submission_benchmark");
        let target = TARGETS.iter().find(|(name, ..)| benchmark.is_some_and(|(_, value)| value == name));
        let now = SystemTime::now();
        let mut log = MlperfLog {
            out,
            path: path.clone(),
            metric,
            target: target.map(|&(_, by, target)| (by, target)),
            reached: target.is_none(),
            epoch: None,
            begun: false,
            stepped: now,
            last: 0,
        };
        before.lines().for_each(|line| log.has(line));
        if before.is_empty() {
            let started = now - ago;
            // Nothing of the system's is cleared here.
            log.point(started, "cache_clear", json!(false), json!({}))?;
            log.line(started, "INTERVAL_START", "init_start", Value::Null, json!({}))?;
            keys.iter().try_for_each(|(key, value)| log.point(now, key, value.clone(), json!({})))?;
        }
        Ok(log)
    }

    /// What a line of the part before says of where the run stands.
    fn has(&mut self, line: &str) {
        let line = line.strip_prefix(MARK).and_then(|line| serde_json::from_str::<Value>(line).ok());
        let Some(line) = line else { return };
        self.last = self.last.max(line["time_ms"].as_u64().unwrap_or(0));
        match line["key"].as_str() {
            Some("run_start") => self.begun = true,
            Some("epoch_start") => self.epoch = line["metadata"]["epoch_num"].as_u64(),
            Some("epoch_stop") => self.epoch = None,
            Some("eval_accuracy" | "eval_error") => self.tested(line["value"].as_f64().unwrap_or(f64::NAN)),
            _ => {}
        }
    }

    /// Whether a test has come to what the benchmark asks for.
    fn tested(&mut self, value: f64) {
        let reaches = |(by, target)| by == self.metric && !self.metric.prefers(target, value);
        self.reached |= value.is_finite() && self.target.is_some_and(reaches);
    }

    pub fn step(&mut self, r: &StepRecord) -> Result<()> {
        let now = SystemTime::now();
        let begun = now - Duration::try_from_secs_f64(r.spent.seconds).unwrap_or_default();
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
            self.tested(r.test_metric);
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
        let written = self.out.write_all(format!("{MARK}{line}\n").as_bytes());
        written.or_output(&self.path, "cannot write MLPerf's log")
    }
}
