//! The screen with which a run ends.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use super::table::{Speed, batch, decimals, duration, metric, percent, plural, shown};
use super::{CompressionRecord, Description, EpochRecord, MemoryRecord, RankInfo, Spent, StepRecord};
use crate::config::Metric;
use crate::device::Metered;
use crate::plan::group;

type SummaryRow = (&'static str, String);

/// What was run and what came of it, as it may stand in a paper's appendix. The last line is parsed by test suites.
pub(super) fn closing(
    place: RankInfo,
    about: &Description,
    c: &Closing,
    speed: &Speed,
    results: Option<&Path>,
) -> String {
    let mut rows = settings(place, about);
    rows.extend(outcome(about, c, speed));
    rows.push(("software", software(about.text("mpi"))));
    rows.push(("command", about.text("command").into()));
    rows.push(("results", results.map_or(String::new(), |path| path.display().to_string())));
    let mut text = String::from("\n");
    for (name, value) in rows.into_iter().filter(|(_, value)| !value.is_empty()) {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name:<17}{value}");
    }
    let rate = c.images_per_second();
    let _ = write!(text, "\ntotal {}/sec: {rate:.*}", about.unit(), decimals(rate, 2));
    text
}

fn settings(place: RankInfo, about: &Description) -> Vec<SummaryRow> {
    let bytes = about.buckets.iter().sum::<u64>() as f64 / 1e6;
    let buckets = plural(about.buckets.len(), "bucket");
    // A rank that is alone adds up nothing, but NCCL reduces all the same.
    let alone = place.size == 1 && about.text("allreduce_used") != "nccl";
    let allreduce = match about.buckets.is_empty() || alone {
        true => String::new(),
        false => format!("{}, {bytes:.1} MB in {buckets}", about.text("allreduce_used")),
    };
    vec![
        ("model", format!("{} ({} parameters)", about.model, group(about.parameters as usize))),
        ("data", about.text("images").into()),
        ("device", about.device.clone()),
        ("ranks x threads", format!("{} x {}{}", place.size, about.size.threads, on(about.text("hosts")))),
        ("batch", batch(about)),
        ("optimizer", optimizer(about)),
        ("strategy", about.text("owners").into()),
        ("allreduce", allreduce),
    ]
}

fn outcome(about: &Description, c: &Closing, speed: &Speed) -> Vec<SummaryRow> {
    let mut rows = match about.size.epochs {
        0 => vec![("steps", format!("{} after {} of warm-up", c.steps, about.size.warmup))],
        _ => vec![("epochs", format!("{} ({})", c.epochs, plural(c.steps as usize, "step")))],
    };
    let (best, best_epoch) = c.best_test_metric;
    if best.is_finite() {
        let [last, best] = [c.final_test_metric, best].map(|value| metric(about.metric, value));
        let name = match about.metric {
            Metric::Accuracy => "test accuracy",
            Metric::Iou => "test IoU",
            Metric::Mae => "test MAE",
            Metric::Rmse => "test RMSE",
            Metric::R2 => "test R²",
            Metric::Top5 => "test top 5",
            Metric::Loss => "test loss",
        };
        rows.push((name, format!("{last} at the end, best {best} in epoch {best_epoch}")));
    }
    let [total, setup, training] = [c.seconds, c.setup_seconds, c.spent.seconds].map(duration);
    rows.push(("time", format!("{total}, set-up {setup}, training steps {training}")));
    let rate = c.images_per_second();
    let each = rate / about.size.computing as f64;
    let [digits, digits_each, digits_step] = [decimals(rate, 2), decimals(each, 2), decimals(speed.mean, 1)];
    let deviation = speed.deviation().map_or(String::new(), |sd| {
        format!("; single steps {:.digits_step$} ± {sd:.digits_step$} (sd)", speed.mean)
    });
    let rates = if about.unit() == "images" { "images/sec" } else { "samples/sec" };
    rows.push((rates, format!("{rate:.digits$}, a rank {each:.digits_each$}{deviation}")));
    let parts = [c.spent.compute, c.spent.communication, c.spent.input].map(|seconds| c.share(seconds));
    let other = (1.0 - parts.iter().sum::<f64>()).max(0.0);
    let [compute, communication, input, other] = [parts[0], parts[1], parts[2], other].map(|p| percent(p, 1));
    let shares = format!("compute {compute}, communication {communication}, input {input}, other {other}");
    rows.push(("share of time", shares));
    if let Some(usage) = c.usage.usage() {
        let [busy, memory, power] = shown(usage);
        rows.push(("GPU of rank 0", format!("{busy} busy, {memory} in use at its peak, {power}")));
    }
    if let Some(compression) = &about.compression {
        rows.push(("compression", compressed(compression, c)));
    }
    rows.push(("staleness", stale(&c.stale_in_all())));
    if let Some(memory) = c.memory {
        let [measured, planned] = [memory.measured, memory.planned].map(|bytes| bytes as f64 / 1e6);
        rows.push(("memory a rank", format!("{measured:.0} MB at its peak, planned {planned:.0} MB")));
    }
    rows
}

/// "1.02 updates on average, at most 3: 0 1.2%, 1 95.1%, …": empty where there is none.
fn stale(counts: &[u64]) -> String {
    let all: u64 = counts.iter().sum();
    let Some(most) = counts.iter().rposition(|&count| count > 0) else { return String::new() };
    let sum: f64 = counts.iter().enumerate().map(|(late, &count)| late as f64 * count as f64).sum();
    let share = |late: usize| format!("{late} {}", percent(counts[late] as f64 / all as f64, 1));
    let shown: Vec<String> = (0..=most).filter(|&late| counts[late] > 0).take(8).map(share).collect();
    let rest = if counts.iter().filter(|&&count| count > 0).count() > 8 { ", …" } else { "" };
    format!("{:.2} updates on average, at most {most}: {}{rest}", sum / all as f64, shown.join(", "))
}

/// What compression brought and cost: "topk:0.01: a rank sent 12.3 MB of 820 MB (98.5% saved), encoding …".
fn compressed(compression: &CompressionRecord, c: &Closing) -> String {
    let [sent, whole] = c.sent.map(|bytes| bytes as f64);
    let work = match compression.on_device {
        true => "encoding and decoding on the GPU".into(),
        false => format!("encoding and decoding {}", percent(c.share(c.spent.encoding), 1)),
    };
    format!(
        "{}: a rank sent {:.1} MB of {:.1} MB ({} saved), {work}",
        compression.scheme,
        sent / 1e6,
        whole / 1e6,
        percent(1.0 - sent / whole, 1),
    )
}

/// " on n0 (2), n1 (2)": the hosts of the ranks, the first few by name.
fn on(hosts: &str) -> String {
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for host in hosts.split(',').filter(|host| !host.is_empty()) {
        match counts.iter_mut().find(|(known, _)| *known == host) {
            Some((_, ranks)) => *ranks += 1,
            None => counts.push((host, 1)),
        }
    }
    let named: Vec<String> = counts.iter().take(4).map(|(host, ranks)| format!("{host} ({ranks})")).collect();
    match counts.len() {
        0 => String::new(),
        1..=4 => format!(" on {}", named.join(", ")),
        n => format!(" on {n} hosts: {}, …", named.join(", ")),
    }
}

/// Rule, rate and seed.
pub(super) fn optimizer(about: &Description) -> String {
    let (kind, rate) = (about.text("optimizer.kind"), about.text("rate.base"));
    if kind.is_empty() {
        return String::new();
    }
    // As f64 an f32 shows digits that nobody gave.
    let rate = rate.parse::<f32>().map_or_else(|_| rate.to_string(), |rate| rate.to_string());
    let scaled = if about.text("rate.scale_by_ranks") == "true" { " times ranks" } else { "" };
    format!(
        "{kind}, learning rate {rate}{scaled} ({}), seed {}",
        about.text("rate.schedule"),
        about.text("seed")
    )
}

/// Versions of what computed.
fn software(mpi: &str) -> String {
    let (version, revision) = (env!("CARGO_PKG_VERSION"), super::git_revision());
    format!("dltrain {version} ({revision}), {mpi}, HDF5 {}", super::hdf5_version())
}

/// What a run comes to: sums over the steps that count (all but the warm-up).
#[derive(Debug, Clone)]
pub(super) struct Closing {
    pub steps: u64,
    pub images: u64,
    pub spent: Spent,
    /// Use of the GPU in this part of a run.
    pub usage: Metered,
    /// Bytes that a rank sent of compressed gradients, and would have sent without compression.
    pub sent: [u64; 2],
    pub setup_seconds: f64,
    pub seconds: f64,
    pub epochs: u64,
    /// (metric, epoch); NaN until an epoch had one.
    pub best_test_metric: (f64, u64),
    pub final_test_metric: f64,
    pub memory: Option<MemoryRecord>,
    /// Bytes that the rank that sends most sent in a step.
    pub sent_a_step: u64,
    /// Updates by gradients of each staleness: of this part of the run, and of earlier ones.
    pub stale: [Vec<u64>; 2],
    /// Seconds of this run's earlier parts.
    pub earlier: f64,
}

impl Closing {
    pub fn new() -> Closing {
        Closing {
            steps: 0,
            images: 0,
            spent: Spent::default(),
            usage: Metered::default(),
            sent: [0; 2],
            setup_seconds: f64::NAN,
            seconds: f64::NAN,
            epochs: 0,
            best_test_metric: (f64::NAN, 0),
            final_test_metric: f64::NAN,
            memory: None,
            sent_a_step: 0,
            stale: Default::default(),
            earlier: 0.0,
        }
    }

    /// All of it that a resumed run goes on with, by name.
    pub fn numbers(&self) -> [(&'static str, f64); 11] {
        [
            ("summary.steps", self.steps as f64),
            ("summary.images", self.images as f64),
            ("summary.training_seconds", self.spent.seconds),
            ("summary.compute", self.spent.compute),
            ("summary.communication", self.spent.communication),
            ("summary.input", self.spent.input),
            ("summary.setup_seconds", self.setup_seconds),
            ("summary.epochs", self.epochs as f64),
            ("summary.best_test_accuracy", self.best_test_metric.0),
            ("summary.best_epoch", self.best_test_metric.1 as f64),
            ("summary.final_test_accuracy", self.final_test_metric),
        ]
    }

    /// Updates by their staleness, by name.
    pub fn staleness(&self) -> impl Iterator<Item = (String, f64)> {
        let counts = self.stale_in_all().into_iter().enumerate();
        counts.map(|(late, count)| (format!("summary.staleness.{late}"), count as f64))
    }

    /// Updates of the whole run by gradients of each staleness.
    pub fn stale_in_all(&self) -> Vec<u64> {
        let count = |counts: &[u64], late: usize| counts.get(late).copied().unwrap_or(0);
        let [here, earlier] = &self.stale;
        (0..here.len().max(earlier.len())).map(|late| count(here, late) + count(earlier, late)).collect()
    }

    pub fn from_numbers(numbers: &BTreeMap<String, f64>) -> Closing {
        if !numbers.contains_key("summary.steps") {
            return Closing::new();
        }
        let number = |name: &str| numbers.get(&format!("summary.{name}")).copied().unwrap_or(0.0);
        Closing {
            steps: number("steps") as u64,
            images: number("images") as u64,
            spent: Spent {
                seconds: number("training_seconds"),
                compute: number("compute"),
                communication: number("communication"),
                input: number("input"),
                encoding: 0.0,
            },
            setup_seconds: number("setup_seconds"),
            epochs: number("epochs") as u64,
            best_test_metric: (number("best_test_accuracy"), number("best_epoch") as u64),
            final_test_metric: number("final_test_accuracy"),
            earlier: number("seconds"),
            stale: [
                Vec::new(),
                (0..)
                    .map_while(|late| numbers.get(&format!("summary.staleness.{late}")))
                    .map(|&count| count as u64)
                    .collect(),
            ],
            ..Closing::new()
        }
    }

    /// Images a second of all ranks; 0 before the first step that counts.
    pub fn images_per_second(&self) -> f64 {
        if self.spent.seconds > 0.0 { self.images as f64 / self.spent.seconds } else { 0.0 }
    }

    /// A time as a share of the steps' time; NaN before the first step that counts.
    pub fn share(&self, seconds: f64) -> f64 {
        seconds / self.spent.seconds
    }

    pub fn step(&mut self, r: &StepRecord) {
        self.steps += 1;
        self.images += r.images;
        self.spent.add(&r.spent);
        self.usage.add(r.spent.seconds, r.usage);
    }

    pub fn epoch(&mut self, r: &EpochRecord, metric: Metric) {
        self.epochs += 1;
        self.final_test_metric = r.test_metric;
        let (best, _) = self.best_test_metric;
        if metric.prefers(r.test_metric, best) || best.is_nan() {
            self.best_test_metric = (r.test_metric, r.epoch);
        }
    }
}
