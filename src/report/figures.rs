//! The figures of single runs, or of some of them in one: loss, accuracy, speed, time, memory, buckets.

use std::collections::BTreeSet;

use super::axis::{ChartAxis, Scale};
use super::chart::{self, ChartLine, ChartRow, ChartSpan, Mark};
use super::run::{BucketTimes, PARTS, Run, unit_of};
use crate::error::Result;

/// Points of a curve; of more steps each stands for several.
const POINTS: usize = 300;
/// Curves in one chart, and pictures of buckets; more would not be told apart.
pub const MOST: usize = 7;
/// Bars in one picture of buckets; of more buckets each stands for several.
const MOST_BUCKETS: usize = 60;

pub struct Figure {
    /// The name of its files.
    pub name: String,
    pub title: String,
    /// What is to be seen.
    pub caption: String,
    pub svg: String,
}

impl Figure {
    pub fn new(name: impl Into<String>, title: impl Into<String>, caption: &str, svg: String) -> Figure {
        Figure { name: name.into(), title: title.into(), caption: caption.into(), svg }
    }

    /// Lines over the axes x and y; nothing of no lines.
    pub fn of_lines(
        [name, title, caption]: [&str; 3],
        [x, y]: [&ChartAxis; 2],
        lines: &[ChartLine],
    ) -> Result<Option<Figure>> {
        let svg = (!lines.is_empty()).then(|| chart::lines(x, y, lines)).transpose()?;
        Ok(svg.map(|svg| Figure::new(name, title, caption, svg)))
    }
}

/// Loss and metric over steps and over time.
pub fn learning(runs: &[&Run]) -> Result<Vec<Figure>> {
    let trained: Vec<&Run> = runs.iter().filter(|run| run.step.len() > 1).copied().take(MOST).collect();
    let (unit, seconds) =
        unit_of_time(trained.iter().filter_map(|run| run.time.last().copied()).fold(0.0, f64::max));
    let over = [
        ChartAxis::new("step", Scale::Linear),
        ChartAxis::new(format!("time of training [{unit}]"), Scale::Linear),
    ];
    let mut figures = Vec::new();
    for (x, name) in over.iter().zip(["steps", "time"]) {
        let place = |run: &Run| -> Vec<f64> {
            if name == "steps" {
                run.step.clone()
            } else {
                run.time.iter().map(|time| time / seconds).collect()
            }
        };
        let mut losses = Vec::new();
        let mut metrics = Vec::new();
        for (colour, run) in trained.iter().enumerate() {
            let tested = |of: fn(&(f64, f64, f64, f64)) -> f64| {
                let at = |row: &(f64, f64, f64, f64)| if name == "steps" { row.0 } else { row.1 / seconds };
                run.test().iter().map(|row| (at(row), of(row))).collect::<Vec<_>>()
            };
            let unit = if run.shows_a_share() { 100.0 } else { 1.0 };
            let scaled: Vec<f64> = run.metrics.iter().map(|value| unit * value).collect();
            losses.extend(curves(run, colour, trained.len(), &place(run), &run.loss, tested(|row| row.2)));
            metrics.extend(curves(
                run,
                colour,
                trained.len(),
                &place(run),
                &scaled,
                tested(|row| row.3).into_iter().map(|(x, value)| (x, unit * value)).collect(),
            ));
        }
        let scale = if spans_decades(&losses) { Scale::Log10 } else { Scale::Linear };
        let are_classifiers = trained.iter().all(|run| run.metric == "accuracy");
        let axis = if are_classifiers { "cross-entropy loss" } else { "loss" };
        let caption = "Lines: training, a mean over some steps where there are many, with least and most behind it. Dots: the test set, after each epoch.";
        let words = [&format!("loss-over-{name}"), &format!("Loss over {name}"), caption];
        figures.extend(Figure::of_lines(words, [x, &ChartAxis::new(axis, scale)], &losses)?);
        if trained.iter().all(|run| run.metric == "loss") {
            continue;
        }
        let (axis, title) = metric_names(&trained);
        let file = format!("{}-over-{name}", title.to_lowercase().replace(", ", "-"));
        let words = [&file, &format!("{title} over {name}"), caption];
        figures.extend(Figure::of_lines(words, [x, &ChartAxis::new(axis, Scale::Linear)], &metrics)?);
    }
    Ok(figures)
}

/// What the metrics of runs are called at an axis, and in a title.
fn metric_names(runs: &[&Run]) -> (String, String) {
    let names: BTreeSet<&str> = runs.iter().map(|run| &*run.metric).collect();
    let names = names.into_iter().collect::<Vec<_>>().join(", ");
    if names == "accuracy" {
        ("classified right [%]".into(), "Accuracy".into())
    } else {
        let shares = runs.iter().all(|run| run.shows_a_share());
        (if shares { format!("{names} [%]") } else { names.clone() }, names)
    }
}

/// A run's training curve and its test points.
fn curves(
    run: &Run,
    colour: usize,
    of: usize,
    x: &[f64],
    y: &[f64],
    test: Vec<(f64, f64)>,
) -> Vec<ChartLine> {
    let name = |what: &str| if of == 1 { what.to_string() } else { run.label.clone() };
    let (points, band) = thinned(x, y);
    let mut lines = vec![ChartLine { label: name("training"), points, band, mark: Mark::Line, colour }];
    if !test.is_empty() {
        // Of one run test and training have colours of their own; of several each run has one.
        let (label, colour) = if of == 1 { ("test".to_string(), 1) } else { (String::new(), colour) };
        lines.push(ChartLine::new(label, test, Mark::Points, colour));
    }
    lines
}

/// Images a second over steps.
pub fn throughput(runs: &[&Run]) -> Result<Option<Figure>> {
    let shown: Vec<&Run> = runs.iter().filter(|run| run.step.len() > 1).copied().take(MOST).collect();
    let mut lines = Vec::new();
    for (colour, run) in shown.iter().enumerate() {
        let rate: Vec<f64> =
            run.images.iter().zip(&run.seconds).map(|(images, seconds)| images / seconds).collect();
        let (points, band) = thinned(&run.step, &rate);
        let label = if shown.len() == 1 { String::new() } else { run.label.clone() };
        lines.push(ChartLine { label, points, band, mark: Mark::Line, colour });
    }
    let unit = unit_of(shown);
    let y = ChartAxis::new(format!("{unit}/s, all ranks"), Scale::Whole);
    let caption = format!("{unit} of all ranks a second, step by step; warm-up included.");
    let x = ChartAxis::new("step", Scale::Linear);
    Figure::of_lines(["throughput", "Throughput", &caption], [&x, &y], &lines)
}

/// How late asynchronous updates were.
pub fn staleness(runs: &[&Run]) -> Result<Option<Figure>> {
    let counted = |run: &&Run| (run.label.clone(), run.record.list::<u64>("summary/staleness"));
    let counted = runs.iter().map(counted).filter(|(_, counts)| counts.iter().any(|&count| count > 0));
    let counted: Vec<(String, Vec<u64>)> = counted.take(MOST).collect();
    let mut lines = Vec::new();
    for (colour, (label, counts)) in counted.iter().enumerate() {
        let all: u64 = counts.iter().sum();
        let most = counts.iter().rposition(|&count| count > 0).unwrap_or(0);
        let share = |late: usize| (late as f64, 100.0 * counts[late] as f64 / all as f64);
        let label = if counted.len() == 1 { String::new() } else { label.clone() };
        let points = (0..=most).map(share).collect();
        lines.push(ChartLine::new(label, points, Mark::Points, colour));
    }
    let across =
        ChartAxis::new("updates between a rank's parameters and the update by its gradients", Scale::Whole);
    let share = ChartAxis::new("share of the updates [%]", Scale::Linear);
    let caption = "Staleness of asynchronous updates, over the whole run. With W ranks that take turns it is W − 1, but for the first turn behind an epoch's end or a checkpoint.";
    Figure::of_lines(["staleness", "Staleness", caption], [&across, &share], &lines)
}

/// Where a step's time goes, a row a run.
pub fn time(runs: &[&Run]) -> Result<Option<Figure>> {
    let row = |run: &&Run| ChartRow {
        label: run.label.clone(),
        parts: run.parts().iter().map(|seconds| 1e3 * seconds).collect(),
        mark: None,
    };
    let rows: Vec<ChartRow> = runs.iter().filter(|run| !run.seconds.is_empty()).map(row).collect();
    if rows.is_empty() {
        return Ok(None);
    }
    let axis = ChartAxis::new("mean time of a step on rank 0 [ms]", Scale::Whole);
    let svg = chart::bars(&axis, &PARTS.map(String::from), &rows, "")?;
    let caption = "Communication not hidden is the time in which nothing but messages was waited for, the slowest rank included; what overlaps with the backward pass is within compute.";
    Ok(Some(Figure::new("step-time", "Where a step's time goes", caption, svg)))
}

/// Planned memory by kind, and the measured peak, a row a run.
pub fn memory(runs: &[&Run]) -> Result<Option<Figure>> {
    let mut kinds: Vec<String> = Vec::new();
    for kind in runs.iter().flat_map(|run| run.record.texts("config/memory_kind")) {
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    let sizes = |run: &Run| -> Vec<f64> {
        let (names, bytes) =
            (run.record.texts("config/memory_kind"), run.record.list::<u64>("config/memory_bytes"));
        let of = |kind: &String| {
            names.iter().position(|name| name == kind).and_then(|at| bytes.get(at)).map_or(0.0, |&b| b as f64)
        };
        kinds.iter().map(of).collect()
    };
    let mut rows: Vec<ChartRow> = runs
        .iter()
        .map(|run| ChartRow {
            label: run.label.clone(),
            parts: sizes(run),
            mark: run.record.number("peak_memory").filter(|&bytes| bytes > 0.0),
        })
        .collect();
    rows.retain(|row| row.parts.iter().sum::<f64>() > 0.0);
    if rows.is_empty() {
        return Ok(None);
    }
    // What no run has a hundredth of is one kind.
    let whole = rows.iter().map(|row| row.parts.iter().sum::<f64>()).fold(0.0, f64::max);
    let large: Vec<usize> =
        (0..kinds.len()).filter(|&kind| rows.iter().any(|row| row.parts[kind] > 0.01 * whole)).collect();
    let mut names: Vec<String> = large.iter().map(|&kind| kinds[kind].clone()).collect();
    names.push("all else".into());
    let (unit, bytes) = if whole >= 2e9 { ("GB", 1e9) } else { ("MB", 1e6) };
    for row in &mut rows {
        let rest: f64 =
            (0..kinds.len()).filter(|kind| !large.contains(kind)).map(|kind| row.parts[kind]).sum();
        row.parts =
            large.iter().map(|&kind| row.parts[kind]).chain([rest]).map(|part| part / bytes).collect();
        row.mark = row.mark.map(|mark| mark / bytes);
    }
    let axis = ChartAxis::new(format!("memory of the largest rank [{unit}]"), Scale::Whole);
    let svg = chart::bars(&axis, &names, &rows, "measured peak")?;
    let caption = "As planned before the first step; the black stroke is the peak resident set of the process as measured at the end.";
    Ok(Some(Figure::new("memory", "Memory by kind", caption, svg)))
}

/// A step as it was rehearsed and as it was measured: computing, and when each bucket of gradients was ready and its
/// sum had arrived.
pub fn step(run: &Run) -> Result<Option<Figure>> {
    let buckets = run.buckets();
    if buckets.is_empty() || run.ranks < 2.0 {
        return Ok(None);
    }
    let rehearsed = run.rehearsed();
    let ms = |times: &[(f64, f64)]| times.iter().map(|(from, to)| (1e3 * from, 1e3 * to)).collect::<Vec<_>>();
    let [took, computed] = run.step_seconds();
    let compute = ChartSpan {
        label: "computing".into(),
        start: 0.0,
        end: 1e3 * computed,
        last: 0.0,
        rehearsed: ms(&rehearsed.computing),
    };
    let together = buckets.len().div_ceil(MOST_BUCKETS);
    let shown = buckets.chunks(together).enumerate();
    let sums = shown.map(|(at, some)| {
        let (first, last) = (at * together, at * together + some.len() - 1);
        let name = if first == last { format!("{first}") } else { format!("{first}–{last}") };
        let most = |of: fn(&BucketTimes) -> f64| some.iter().map(of).fold(0.0, f64::max);
        ChartSpan {
            label: format!("{name}: {}", size(some.iter().map(|bucket| bucket.bytes).sum())),
            start: 1e3 * some[0].start,
            end: 1e3 * most(|bucket| bucket.finish),
            last: 1e3 * some.iter().map(|bucket| bucket.exposed).sum::<f64>(),
            rehearsed: ms(rehearsed.sums.get(first..=last).unwrap_or_default()),
        }
    });
    let spans: Vec<ChartSpan> = [compute].into_iter().chain(sums).collect();
    let axis = ChartAxis::new("time from the start of the step on rank 0 [ms]", Scale::Whole);
    let names = ["under way, not waited for", "waited for (not hidden)", "rehearsed"];
    let ends = [(1e3 * took, "end of the step"), (1e3 * rehearsed.seconds, "end as rehearsed")];
    let known = if rehearsed.seconds > 0.0 { 2 } else { 1 };
    let svg = chart::spans(&axis, &spans, names, &ends[..known])?;
    let expected = match rehearsed.seconds {
        0.0 => "What was expected is not known.".into(),
        seconds => format!(
            "The rehearsal before the first step expected {:.2} ms a step; it took {:.2} ms, {:.0} % {}.",
            1e3 * seconds,
            1e3 * took,
            100.0 * (took / seconds - 1.0).abs(),
            if took > seconds { "more" } else { "less" }
        ),
    };
    let more = if together > 1 { format!(" A bar stands for {together} buckets.") } else { String::new() };
    let caption = format!(
        "{expected} A bucket's bar begins when its last gradient is ready and the sum starts, and ends when the sum has \
         arrived. Where several are waited for, the wait counts for the first. Medians of the last steps; computing is \
         the time in which the device worked, drawn from the step's start.{more}"
    );
    let name = format!("step-{}", run.name);
    Ok(Some(Figure::new(name, format!("A step, rehearsed and measured: {}", run.label), &caption, svg)))
}

fn size(bytes: u64) -> String {
    match bytes as f64 {
        bytes if bytes < 1e6 => format!("{:.1} kB", bytes / 1e3),
        bytes => format!("{:.1} MB", bytes / 1e6),
    }
}

/// (points, band) of a curve: of many values means, with least and most.
#[allow(clippy::type_complexity)]
fn thinned(x: &[f64], y: &[f64]) -> (Vec<(f64, f64)>, Vec<(f64, f64, f64)>) {
    let count = x.len().min(y.len());
    let size = count.div_ceil(POINTS).max(1);
    if size == 1 {
        return (x.iter().copied().zip(y.iter().copied()).collect(), Vec::new());
    }
    let pieces = x[..count].chunks(size).zip(y[..count].chunks(size)).map(|(x, y)| {
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        let (least, most) = y.iter().fold((f64::MAX, f64::MIN), |(low, high), &v| (low.min(v), high.max(v)));
        ((mean(x), mean(y)), (mean(x), least, most))
    });
    pieces.unzip()
}

/// Whether a linear axis would press most of the values onto its bottom.
fn spans_decades(lines: &[ChartLine]) -> bool {
    let values = lines.iter().flat_map(|line| line.points.iter().map(|point| point.1));
    let (low, high) =
        values.filter(|v| v.is_finite()).fold((f64::MAX, 0.0f64), |(low, high), v| (low.min(v), high.max(v)));
    low > 0.0 && high / low > 100.0
}

/// (unit, seconds in it) that suits a time.
fn unit_of_time(seconds: f64) -> (&'static str, f64) {
    match seconds {
        s if s < 300.0 => ("s", 1.0),
        s if s < 18_000.0 => ("min", 60.0),
        _ => ("h", 3600.0),
    }
}
