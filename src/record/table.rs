//! The texts of a run, from numbers: nothing here prints.
use super::summary::{Closing, optimizer};
use super::{Description, EpochRecord, RankInfo, StepRecord};
use crate::config::Metric;
use crate::device::Usage;
use crate::plan::group;

/// Above the lines of `epoch`.
const EPOCH_HEADER: [&str; 2] =
    ["epoch  train loss  train acc  test loss  test acc", "   images/s  compute    comm   input      time"];
/// Further columns where a GPU has a meter.
const USAGE_HEADER: &str = "  GPU busy  GPU memory  power";

/// Above the lines of `epoch`, the first of which this is.
pub(super) fn epoch_header(r: &EpochRecord, about: &Description) -> String {
    let ([begin, end], metric) = (EPOCH_HEADER, about.metric);
    let end = end.replace("   images/s", &format!("{:>11}", format!("{}/s", about.unit())));
    if metric == Metric::Loss {
        let begin = begin.replace("  train acc", "").replace("  test acc", "");
        return format!("{begin}{end}{}", r.usage.map_or("", |_| USAGE_HEADER));
    }
    let name = if metric == Metric::Accuracy { "acc".into() } else { metric.name() };
    let begin = begin.replace("train acc", &format!("{:>9}", format!("train {name}")));
    let begin = begin.replace("test acc", &format!("{:>8}", format!("test {name}")));
    format!("{begin}{end}{}", r.usage.map_or("", |_| USAGE_HEADER))
}

/// A share in per cent, another metric as a loss is written.
pub(super) fn metric(metric: Metric, value: f64) -> String {
    if metric.is_share() || value.is_nan() { percent(value, 2) } else { loss(value) }
}

/// Above the lines of `Speed::line`.
pub(super) const STEP_HEADER: &str = "  step             images/sec       loss";

/// What is about to be run, in three lines: also how weights change, which nobody may have chosen.
pub(super) fn introduction(place: RankInfo, about: &Description) -> String {
    let work = match about.size.epochs {
        0 => format!(
            "{}, {} of them warm-up",
            plural(about.size.steps as usize, "synthetic step"),
            about.size.warmup
        ),
        n => format!("{}, {}", plural(n as usize, "epoch"), plural(about.size.steps as usize, "step")),
    };
    format!(
        "{}: {} parameters; {} x {}, batch {}; {work}\n{}\n{}",
        about.model,
        group(about.parameters as usize),
        plural(place.size, "rank"),
        plural(about.size.threads, "thread"),
        batch(about),
        about.device,
        optimizer(about),
    )
}

/// One epoch, aligned below its header.
pub(super) fn epoch(r: &EpochRecord, of: Metric) -> String {
    let usage = r.usage.map_or(String::new(), |usage| {
        let [busy, memory, power] = shown(usage);
        format!("  {busy:>8}  {memory:>10}  {power:>5}")
    });
    let width = |columns: usize, part: &str| match of {
        Metric::Accuracy => columns,
        other => columns.max(part.len() + other.name().len()),
    };
    let cell = |width: usize, value: f64| match of {
        Metric::Loss => String::new(),
        _ => format!("  {:>width$}", metric(of, value)),
    };
    let line = format!(
        "{:>5}  {:>10}{}  {:>9}{}  {:>9.1}  {:>7}  {:>6}  {:>6}  {:>8}",
        r.epoch,
        loss(r.train_loss),
        cell(width(9, "train "), r.train_metric),
        loss(r.test_loss),
        cell(width(8, "test "), r.test_metric),
        r.images_per_second,
        percent(r.compute.mean, 1),
        percent(r.communication.mean, 1),
        percent(r.input.mean, 1),
        duration(r.seconds),
    );
    line + &usage
}

/// "97.0%", "12345 MB", "512 W".
pub(super) fn shown(usage: Usage) -> [String; 3] {
    let number = |value: f64, unit| if value.is_nan() { "-".into() } else { format!("{value:.0} {unit}") };
    [percent(usage.busy, 1), number(usage.memory / 1e6, "MB"), number(usage.power, "W")]
}

/// What stands before and after the progress bar.
pub(super) fn progress(about: &Description, closing: &Closing, r: &StepRecord) -> (String, String) {
    let prefix = match about.size.epochs {
        0 if r.step < about.size.warmup => "warm-up ".to_string(),
        0 => String::new(),
        epochs => format!("epoch {}/{epochs} ", r.epoch),
    };
    let rate = closing.images_per_second();
    let digits = decimals(rate, 0);
    (prefix, format!("loss {} {rate:.digits$} {}/s", loss(r.loss), about.unit()))
}

/// The speed of a synthetic run: mean and standard error of the mean (Welford's recurrence), as
/// tf_cnn_benchmarks prints them.
#[derive(Debug, Default)]
pub(super) struct Speed {
    steps: u64,
    images: u64,
    seconds: f64,
    pub mean: f64,
    squares: f64,
}

impl Speed {
    pub fn add(&mut self, r: &StepRecord) {
        self.steps += 1;
        self.images += r.images;
        self.seconds += r.spent.seconds;
        let speed = r.images as f64 / r.spent.seconds;
        let from_old = speed - self.mean;
        self.mean += from_old / self.steps as f64;
        self.squares += from_old * (speed - self.mean);
    }

    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Standard deviation of single steps' images/s; `None` of fewer than two.
    pub fn deviation(&self) -> Option<f64> {
        (self.steps > 1).then(|| (self.squares / (self.steps - 1) as f64).sqrt())
    }

    /// The steps so far, aligned below `STEP_HEADER`; the loss is the last step's.
    pub fn line(&self, r: &StepRecord) -> String {
        let n = self.steps as f64;
        let rate = self.images as f64 / self.seconds;
        let error = self.deviation().map_or(0.0, |deviation| deviation / n.sqrt());
        let digits = decimals(rate, 1);
        format!("{:>6}  {:>11.digits$} +/- {:>6.digits$}  {:>9}", self.steps, rate, error, loss(r.loss))
    }
}

pub(super) fn batch(about: &Description) -> String {
    let global = about.size.global_batch;
    match about.size.accumulation {
        1 => format!("{} a rank, {global} in all", about.size.batch),
        n => format!("{} a rank, accumulated over {n}, {global} in all", about.size.batch),
    }
}

/// Decimals of an image rate, at least so many: of slow steps those that four digits take, since 0.03 images/s could be
/// 0.025.
pub(super) fn decimals(rate: f64, least: usize) -> usize {
    match rate > 0.0 && rate < 10.0 {
        true => ((3.0 - rate.log10().floor()) as usize).clamp(least, 9),
        false => least,
    }
}

/// "1 rank", "2 ranks".
pub fn plural(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

fn loss(value: f64) -> String {
    if value.is_nan() { "-".into() } else { format!("{value:.4}") }
}

pub(super) fn percent(share: f64, decimals: usize) -> String {
    if share.is_nan() { "-".into() } else { format!("{:.decimals$}%", 100.0 * share) }
}

/// "0.53 s", "12.3 s", "4 min 05 s", "3 h 07 min".
pub(super) fn duration(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match seconds {
        s if s.is_nan() => "-".into(),
        s if s < 9.995 => format!("{s:.2} s"),
        s if s < 99.95 => format!("{s:.1} s"),
        _ if whole < 3600 => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => format!("{} h {:02} min", whole / 3600, whole / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::decimals;

    #[test]
    fn slow_rates_have_four_digits() {
        let shown = |rate: f64, least| format!("{rate:.*}", decimals(rate, least));
        assert_eq!(shown(258.342, 2), "258.34");
        assert_eq!(shown(9.87654, 2), "9.877");
        assert_eq!(shown(0.033333, 2), "0.03333");
        assert_eq!(shown(1e-30, 2), "0.000000000");
        assert_eq!([shown(0.0, 2), shown(f64::NAN, 2), shown(1234.2, 0)], ["0.00", "NaN", "1234"]);
    }
}
