//! The texts of a run, from numbers: nothing here prints.

use std::fmt::Write;
use std::path::Path;

use super::{Closing, Description, EpochRecord, Place, StepRecord};

/// Above the lines of `epoch`.
pub(super) const EPOCH_HEADER: &str = "\
epoch  train loss  train acc  test loss  test acc   images/s  compute    comm   input      time";

/// Above the lines of `Speed::line`.
pub(super) const STEP_HEADER: &str = "  step             images/sec       loss";

/// What is about to be run, in two lines.
pub(super) fn introduction(place: Place, about: &Description) -> String {
    let work = match about.epochs {
        0 => format!("{} synthetic steps, {} of them warm-up", about.steps, about.warmup),
        1 => format!("1 epoch, {} steps", about.steps),
        n => format!("{n} epochs, {} steps", about.steps),
    };
    format!(
        "{}: {} parameters; {} x {}, batch {}; {work}\n{}",
        about.model,
        thousands(about.parameters),
        plural(place.size, "rank"),
        plural(about.threads, "thread"),
        batch(place, about),
        about.device,
    )
}

/// One epoch, aligned below `EPOCH_HEADER`.
pub(super) fn epoch(r: &EpochRecord) -> String {
    format!(
        "{:>5}  {:>10}  {:>9}  {:>9}  {:>8}  {:>9.1}  {:>7}  {:>6}  {:>6}  {:>8}",
        r.epoch,
        loss(r.train_loss),
        percent(r.train_accuracy, 2),
        loss(r.test_loss),
        percent(r.test_accuracy, 2),
        r.images_per_second,
        percent(r.compute.mean, 1),
        percent(r.communication.mean, 1),
        percent(r.input.mean, 1),
        duration(r.seconds),
    )
}

/// What stands before and after the progress bar.
pub(super) fn progress(about: &Description, closing: &Closing, r: &StepRecord) -> (String, String) {
    let prefix = match about.epochs {
        0 if r.step < about.warmup => "warm-up ".to_string(),
        0 => String::new(),
        epochs => format!("epoch {}/{epochs} ", r.epoch),
    };
    (prefix, format!("loss {} {:.0} images/s", loss(r.loss), closing.images_per_second()))
}

/// The speed of a synthetic run: mean and standard error of the mean (Welford's recurrence), as
/// tf_cnn_benchmarks prints them.
#[derive(Debug, Default)]
pub(super) struct Speed {
    steps: u64,
    images: u64,
    seconds: f64,
    mean: f64,
    squares: f64,
}

impl Speed {
    pub fn add(&mut self, r: &StepRecord) {
        self.steps += 1;
        self.images += r.images;
        self.seconds += r.seconds;
        let speed = r.images as f64 / r.seconds;
        let from_old = speed - self.mean;
        self.mean += from_old / self.steps as f64;
        self.squares += from_old * (speed - self.mean);
    }

    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The steps so far, aligned below `STEP_HEADER`; the loss is the last step's.
    pub fn line(&self, r: &StepRecord) -> String {
        let n = self.steps as f64;
        let rate = self.images as f64 / self.seconds;
        let error = if self.steps > 1 { (self.squares / (n - 1.0) / n).sqrt() } else { 0.0 };
        format!("{:>6}  {:>11.1} +/- {:>6.1}  {:>9}", self.steps, rate, error, loss(r.loss))
    }
}

/// The closing table, as it may stand in a paper's appendix. The last line is parsed by test suites.
pub(super) fn closing(place: Place, about: &Description, c: &Closing, results: Option<&Path>) -> String {
    let mut rows = vec![
        ("model", format!("{} ({} parameters)", about.model, thousands(about.parameters))),
        ("device", about.device.clone()),
        ("ranks x threads", format!("{} x {}", place.size, about.threads)),
        ("batch", batch(place, about)),
    ];
    match about.epochs {
        0 => rows.push(("steps", format!("{} after {} of warm-up", c.steps, about.warmup))),
        _ => rows.push(("epochs", format!("{} ({})", c.epochs, plural(c.steps as usize, "step")))),
    }
    let (best, best_epoch) = c.best_test_accuracy;
    if best.is_finite() {
        let last = percent(c.final_test_accuracy, 2);
        rows.push((
            "test accuracy",
            format!("{last} at the end, best {} in epoch {best_epoch}", percent(best, 2)),
        ));
    }
    let (total, setup) = (duration(c.seconds), duration(c.setup_seconds));
    rows.push(("time", format!("{total}, set-up {setup}, training steps {}", duration(c.training_seconds))));
    let rate = c.images_per_second();
    rows.push(("images/sec", format!("{rate:.2}, a rank {:.2}", rate / place.size as f64)));
    let parts = [c.compute, c.communication, c.input].map(|seconds| c.share(seconds));
    let other = (1.0 - parts.iter().sum::<f64>()).max(0.0);
    let [compute, communication, input, other] = [parts[0], parts[1], parts[2], other].map(|p| percent(p, 1));
    let shares = format!("compute {compute}, communication {communication}, input {input}, other {other}");
    rows.push(("share of time", shares));
    if let Some(compression) = &about.compression {
        rows.push(("compression", compressed(&compression.scheme, c)));
    }
    if let Some(memory) = c.memory {
        let [measured, planned] = [memory.measured, memory.planned].map(|bytes| bytes as f64 / 1e6);
        rows.push(("memory a rank", format!("{measured:.0} MB at its peak, planned {planned:.0} MB")));
    }
    if let Some(path) = results {
        rows.push(("results", path.display().to_string()));
    }
    let mut text = String::from("\n");
    for (name, value) in rows {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name:<17}{value}");
    }
    let _ = write!(text, "\ntotal images/sec: {rate:.2}");
    text
}

/// What compression brought and cost: "topk:0.01: a rank sent 12.3 MB of 820 MB (98.5% saved), encoding …".
fn compressed(scheme: &str, c: &Closing) -> String {
    let [sent, whole] = c.sent.map(|bytes| bytes as f64);
    format!(
        "{scheme}: a rank sent {:.1} MB of {:.1} MB ({} saved), encoding and decoding {}",
        sent / 1e6,
        whole / 1e6,
        percent(1.0 - sent / whole, 1),
        percent(c.share(c.encoding), 1),
    )
}

fn batch(place: Place, about: &Description) -> String {
    let global = about.batch * place.size * about.accumulation;
    match about.accumulation {
        1 => format!("{} a rank, {global} in all", about.batch),
        n => format!("{} a rank, accumulated over {n}, {global} in all", about.batch),
    }
}

fn plural(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

fn loss(value: f64) -> String {
    if value.is_nan() { "-".into() } else { format!("{value:.4}") }
}

fn percent(share: f64, decimals: usize) -> String {
    if share.is_nan() { "-".into() } else { format!("{:.decimals$}%", 100.0 * share) }
}

/// "0.53 s", "12.3 s", "4 min 05 s", "3 h 07 min".
fn duration(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match seconds {
        s if s.is_nan() => "-".into(),
        s if s < 9.995 => format!("{s:.2} s"),
        s if s < 99.95 => format!("{s:.1} s"),
        _ if whole < 3600 => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => format!("{} h {:02} min", whole / 3600, whole / 60 % 60),
    }
}

/// "402,442".
fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
