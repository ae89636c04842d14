//! The screen with which a run ends.

use std::fmt::Write;
use std::path::Path;

use super::table::{Speed, batch, duration, percent, plural, shown, thousands};
use super::{Closing, Compression, Description, Place};

type Row = (&'static str, String);

/// What was run and what came of it, as it may stand in a paper's appendix. The last line is parsed by test suites.
pub(super) fn closing(
    place: Place,
    about: &Description,
    c: &Closing,
    speed: &Speed,
    results: Option<&Path>,
) -> String {
    let mut rows = settings(place, about);
    rows.extend(outcome(place, about, c, speed));
    rows.push(("software", software(about.text("mpi"))));
    rows.push(("command", about.text("command").into()));
    rows.push(("results", results.map_or(String::new(), |path| path.display().to_string())));
    let mut text = String::from("\n");
    for (name, value) in rows.into_iter().filter(|(_, value)| !value.is_empty()) {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name:<17}{value}");
    }
    let _ = write!(text, "\ntotal images/sec: {:.2}", c.images_per_second());
    text
}

fn settings(place: Place, about: &Description) -> Vec<Row> {
    let bytes = about.buckets.iter().sum::<u64>() as f64 / 1e6;
    let buckets = plural(about.buckets.len(), "bucket");
    let allreduce = match about.buckets.is_empty() || place.size == 1 {
        true => String::new(),
        false => format!("{}, {bytes:.1} MB in {buckets}", about.text("allreduce_used")),
    };
    vec![
        ("model", format!("{} ({} parameters)", about.model, thousands(about.parameters))),
        ("data", about.text("images").into()),
        ("device", about.device.clone()),
        ("ranks x threads", format!("{} x {}{}", place.size, about.threads, on(about.text("hosts")))),
        ("batch", batch(place, about)),
        ("optimizer", optimizer(about)),
        ("allreduce", allreduce),
    ]
}

fn outcome(place: Place, about: &Description, c: &Closing, speed: &Speed) -> Vec<Row> {
    let mut rows = match about.epochs {
        0 => vec![("steps", format!("{} after {} of warm-up", c.steps, about.warmup))],
        _ => vec![("epochs", format!("{} ({})", c.epochs, plural(c.steps as usize, "step")))],
    };
    let (best, best_epoch) = c.best_test_accuracy;
    if best.is_finite() {
        let (last, best) = (percent(c.final_test_accuracy, 2), percent(best, 2));
        rows.push(("test accuracy", format!("{last} at the end, best {best} in epoch {best_epoch}")));
    }
    let [total, setup, training] = [c.seconds, c.setup_seconds, c.training_seconds].map(duration);
    rows.push(("time", format!("{total}, set-up {setup}, training steps {training}")));
    let rate = c.images_per_second();
    let deviation = speed
        .deviation()
        .map_or(String::new(), |sd| format!("; single steps {:.1} ± {sd:.1} (sd)", speed.mean));
    rows.push(("images/sec", format!("{rate:.2}, a rank {:.2}{deviation}", rate / place.size as f64)));
    let parts = [c.compute, c.communication, c.input].map(|seconds| c.share(seconds));
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
    if let Some(memory) = c.memory {
        let [measured, planned] = [memory.measured, memory.planned].map(|bytes| bytes as f64 / 1e6);
        rows.push(("memory a rank", format!("{measured:.0} MB at its peak, planned {planned:.0} MB")));
    }
    rows
}

/// What compression brought and cost: "topk:0.01: a rank sent 12.3 MB of 820 MB (98.5% saved), encoding …".
fn compressed(compression: &Compression, c: &Closing) -> String {
    let [sent, whole] = c.sent.map(|bytes| bytes as f64);
    let work = match compression.on_device {
        true => "encoding and decoding on the GPU".into(),
        false => format!("encoding and decoding {}", percent(c.share(c.encoding), 1)),
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
fn optimizer(about: &Description) -> String {
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
