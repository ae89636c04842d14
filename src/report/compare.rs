//! Several runs beside each other: in what their settings differ, how speed goes with ranks, and speed and memory with
//! the batch.

use std::collections::{BTreeMap, BTreeSet};

use super::axis::{ChartAxis, Scale};
use super::chart::{self, ChartLine, ChartRow, Mark};
use super::figures::{Figure, MOST};
use super::predicted::PredictedRuns;
use super::run::{Run, unit_of};
use crate::config::values::lists;
use crate::error::Result;

/// Settings that tell one file from another but not what was run.
const NAMES: &str = "command config run_file started run resumed plan_hash results timeline timeline_steps \
     save_weights dry_run evaluate max_batch input.loader_threads";
/// Settings that may differ where it is still one curve of a study: what follows from ranks, batch and machine, and how
/// long it was measured.
const PASSING: &str = "ranks hosts device threads owners mesh allreduce_used allreduce_costs revision steps \
     warmup epochs seed mpi recomputation_saves_bytes";

/// Letters of a run's label that a legend has room for.
const LABEL: usize = 34;

/// What was set, by name.
fn settings(run: &Run) -> BTreeMap<&str, &str> {
    let texts = run.record.config.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    texts.filter(|(name, _)| !lists(NAMES, name) && !name.starts_with("session.")).collect()
}

/// The settings that are not the same in all runs, with the value of each run.
pub fn differences(runs: &[Run]) -> Vec<(String, Vec<String>)> {
    let all: Vec<BTreeMap<&str, &str>> = runs.iter().map(settings).collect();
    let names: BTreeSet<&str> = all.iter().flat_map(|of| of.keys().copied()).collect();
    let value = |of: &BTreeMap<&str, &str>, name: &str| match of.get(name).copied() {
        None | Some("null") => "–".to_string(),
        Some(hosts) if name == "hosts" => counted(hosts),
        // Threads have a column of their own.
        Some(device) if name == "device" => {
            device.split(", ").filter(|part| !part.contains(" thread")).collect::<Vec<_>>().join(", ")
        }
        Some(text) => text.to_string(),
    };
    let row = |name: &str| (name.to_string(), all.iter().map(|of| value(of, name)).collect::<Vec<_>>());
    names.into_iter().map(row).filter(|(_, values)| values.iter().any(|value| *value != values[0])).collect()
}

/// "n0 ×2, n1 ×2" of a host for each rank.
fn counted(hosts: &str) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    hosts.split(',').for_each(|host| *counts.entry(host).or_default() += 1);
    counts.iter().map(|(host, ranks)| format!("{host} ×{ranks}")).collect::<Vec<_>>().join(", ")
}

/// Gives each of several runs a label of what tells it from the others, where that is short; else its file's name
/// stays.
pub fn label(runs: &mut [Run]) {
    let keys: Vec<Settings> = runs.iter().map(|run| fixed(run, "")).collect();
    let labels = labels(&keys.iter().collect::<Vec<_>>());
    let serve = labels.iter().collect::<BTreeSet<_>>().len() == runs.len()
        && labels.iter().all(|label| label.chars().count() <= LABEL);
    if serve && runs.len() > 1 {
        runs.iter_mut().zip(labels).for_each(|(run, label)| run.label = label);
    }
}

/// Runs that are the same but for one number, by that number; several of one number count as their mean.
struct Study<'a> {
    model: String,
    label: String,
    points: BTreeMap<u64, Vec<&'a Run>>,
}

impl Study<'_> {
    fn curve(&self, of: impl Fn(&Run) -> Option<f64>) -> Vec<(f64, f64)> {
        let mean = |runs: &Vec<&Run>| {
            let values: Vec<f64> = runs.iter().filter_map(|run| of(run)).collect();
            (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
        };
        self.points.iter().filter_map(|(&at, runs)| Some((at as f64, mean(runs)?))).collect()
    }
}

/// What is the same in all runs of a study.
type Settings = BTreeMap<String, String>;

/// All settings but the one that is varied and those that follow from it or pass.
fn fixed(run: &Run, varied: &str) -> Settings {
    let counts = |name: &str| name != varied && (name == "ranks" || !lists(PASSING, name));
    let counting = settings(run).into_iter().filter(|(name, _)| counts(name));
    counting.map(|(name, value)| (name.to_string(), value.to_string())).collect()
}

/// Curves over a number, of so many points at least.
fn studies<'a>(runs: &'a [Run], varied: &str, least: usize, of: impl Fn(&Run) -> f64) -> Vec<Study<'a>> {
    let mut groups: BTreeMap<Settings, BTreeMap<u64, Vec<&Run>>> = BTreeMap::new();
    for run in runs.iter().filter(|run| of(run).is_finite() && run.images_per_second().is_finite()) {
        groups.entry(fixed(run, varied)).or_default().entry(of(run) as u64).or_default().push(run);
    }
    groups.retain(|_, points| points.len() >= least);
    let labels = labels(&groups.keys().collect::<Vec<_>>());
    let curve = |((key, points), label): ((Settings, _), String)| Study {
        model: key.get("model").cloned().unwrap_or_default(),
        label,
        points,
    };
    groups.into_iter().zip(labels).map(curve).collect()
}

/// The model, and as few of the settings that differ as tell all of them apart.
fn labels(keys: &[&Settings]) -> Vec<String> {
    let value = |key: &Settings, name: &str| key.get(name).cloned().unwrap_or_else(|| "–".into());
    let names: BTreeSet<&String> = keys.iter().flat_map(|key| key.keys()).collect();
    let mut left: Vec<&String> = names
        .into_iter()
        .filter(|name| keys.iter().any(|key| key.get(*name) != keys[0].get(*name)))
        .collect();
    // Among those that tell as much the shortest.
    left.sort_by_key(|name| keys.iter().map(|key| name.len() + value(key, name).len()).max());
    left.retain(|name| *name != "model");
    let mut labels: Vec<String> = keys.iter().map(|key| value(key, "model")).collect();
    let distinct = |labels: &[String]| labels.iter().collect::<BTreeSet<_>>().len();
    while distinct(&labels) < keys.len() && !left.is_empty() {
        let with = |name: &str| -> Vec<String> {
            let longer = labels.iter().zip(keys);
            longer.map(|(label, key)| format!("{label}, {name} {}", value(key, name))).collect()
        };
        let most = left.iter().map(|name| distinct(&with(name))).max().unwrap_or(0);
        let best = left.iter().position(|name| distinct(&with(name)) == most).unwrap_or(0);
        labels = with(left.remove(best));
    }
    labels
}

/// Studies of a model each where there are more than one chart shows; else one lot.
fn lots<'a, 'b>(studies: &'b [Study<'a>]) -> Vec<(String, Vec<&'b Study<'a>>)> {
    if studies.len() <= MOST {
        return vec![(String::new(), studies.iter().collect())];
    }
    let models: BTreeSet<&String> = studies.iter().map(|study| &study.model).collect();
    let of = |model: &String| studies.iter().filter(|study| study.model == *model).take(MOST).collect();
    models.into_iter().map(|model| (model.clone(), of(model))).collect()
}

/// A figure of lines, whose name and title say of which lot it is.
fn of_lot(
    lot: &str,
    [name, title, caption]: [&str; 3],
    axes: [&ChartAxis; 2],
    lines: &[ChartLine],
) -> Result<Option<Figure>> {
    let of = |text: &str, between: &str| match lot {
        "" => text.into(),
        lot => format!("{text}{between}{lot}"),
    };
    Figure::of_lines([&of(name, "-"), &of(title, ": "), caption], axes, lines)
}

/// Images a second and efficiency over ranks at the same batch a rank, and beside them what was predicted: then one
/// number of ranks is enough.
pub fn scaling(runs: &[Run], predicted: &[PredictedRuns]) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    let least = if predicted.is_empty() { 2 } else { 1 };
    for (lot, studies) in lots(&studies(runs, "ranks", least, |run| run.ranks)) {
        let (mut speeds, mut shares) = (Vec::new(), Vec::new());
        for (colour, study) in studies.iter().enumerate() {
            let points = study.curve(|run| Some(run.images_per_second()));
            let Some(&(fewest, slowest)) = points.first() else { continue };
            let one = slowest / fewest;
            let ideal = points.iter().map(|&(ranks, _)| (ranks, ranks * one)).collect();
            let share = points.iter().map(|&(ranks, speed)| (ranks, 100.0 * speed / (ranks * one))).collect();
            speeds.push(ChartLine::new(&study.label, points, Mark::Points, colour));
            speeds.push(ChartLine::new(if colour == 0 { "ideal" } else { "" }, ideal, Mark::Dashes, colour));
            shares.push(ChartLine::new(&study.label, share, Mark::Points, colour));
        }
        for (index, prediction) in
            predicted.iter().filter(|of| !studies.is_empty() || of.is_line()).enumerate()
        {
            let colour = studies.len() + index;
            speeds.push(ChartLine::new(prediction.label(), prediction.speeds(), Mark::Line, colour));
            shares.push(ChartLine::new(prediction.label(), prediction.efficiencies(), Mark::Line, colour));
        }
        let ranks = ChartAxis::new("ranks", Scale::Log2);
        let rate = ChartAxis::new(format!("{}/s, all ranks", unit_of(runs)), Scale::Log10);
        let caption =
            "At the same batch a rank (weak scaling). The ideal line leads from the fewest ranks on.";
        figures.extend(of_lot(&lot, ["scaling", "Speed over ranks", caption], [&ranks, &rate], &speeds)?);
        let caption = "Speed of a rank, as a share of that with the fewest ranks.";
        let (words, share) = (
            ["efficiency", "Efficiency over ranks", caption],
            ChartAxis::new("efficiency [%]", Scale::Whole),
        );
        figures.extend(of_lot(&lot, words, [&ranks, &share], &shares)?);
    }
    Ok(figures)
}

/// A bar for each run, where they share the work in several ways: speed, memory, bytes and waiting.
pub fn strategies(runs: &[Run]) -> Result<Vec<Figure>> {
    let ways: BTreeSet<&str> = runs.iter().map(|run| run.text("owners")).collect();
    if ways.len() < 2 {
        return Ok(Vec::new());
    }
    let waits = |run: &Run| {
        let parts = run.parts();
        Some(100.0 * parts[1] / parts.iter().sum::<f64>())
    };
    let peak = |run: &Run| run.record.number("peak_memory").map(|bytes| bytes / 1e6);
    let sent = |run: &Run| run.record.number("sent_a_step").map(|bytes| bytes / 1e6);
    let rate = format!("{}/s, all ranks", unit_of(runs));
    let speed = |run: &Run| Some(run.images_per_second());
    /// A file's name, a title, what the axis says, a caption, and the number of a run.
    type Bars<'a> = (&'a str, &'a str, &'a str, &'a str, &'a dyn Fn(&Run) -> Option<f64>);
    let charts: [Bars; 4] = [
        ("speed", "Speed", rate.as_str(), "Warm-up left out.", &speed),
        ("memory", "Memory", "memory of a rank [MB]", "Peak resident set of the rank that has most.", &peak),
        (
            "bytes",
            "Bytes",
            "sent a step [MB]",
            "By the rank that sends most; shared memory counts as none.",
            &sent,
        ),
        (
            "waiting",
            "Waiting",
            "of a step [%]",
            "Share of a step in which a rank waits for others, mean of all: in a pipeline its bubble.",
            &waits,
        ),
    ];
    let chart = |(name, title, axis, caption, of): Bars| {
        let row = |run: &Run| ChartRow {
            label: run.label.clone(),
            parts: vec![of(run).unwrap_or(0.0)],
            mark: None,
        };
        let rows: Vec<ChartRow> = runs.iter().map(row).collect();
        let svg = chart::bars(&ChartAxis::new(axis, Scale::Whole), &[title.into()], &rows, "")?;
        Ok(Figure::new(format!("strategy-{name}"), format!("{title} by strategy"), caption, svg))
    };
    charts.into_iter().map(chart).collect()
}

/// Images a second and memory over the batch a rank.
pub fn sweeps(runs: &[Run]) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for (lot, studies) in lots(&studies(runs, "batch", 2, |run| run.batch)) {
        let curves = |of: &dyn Fn(&Run) -> Option<f64>| -> Vec<ChartLine> {
            let lines = studies
                .iter()
                .enumerate()
                .map(|(colour, study)| ChartLine::new(&study.label, study.curve(of), Mark::Points, colour));
            lines.filter(|line| !line.points.is_empty()).collect()
        };
        let batch = ChartAxis::new(format!("batch: {} a rank and step", unit_of(runs)), Scale::Log2);
        let rate = ChartAxis::new(format!("{}/s, all ranks", unit_of(runs)), Scale::Whole);
        let words = ["batch-speed", "Speed over the batch", "All ranks together; warm-up left out."];
        let speed = curves(&|run| Some(run.images_per_second()));
        figures.extend(of_lot(&lot, words, [&batch, &rate], &speed)?);
        let caption = "Peak resident set of the rank that has most, as measured.";
        let words = ["batch-memory", "Memory over the batch", caption];
        let peak = |run: &Run| run.record.number("peak_memory").filter(|&bytes| bytes > 0.0);
        let memory = curves(&|run| peak(run).map(|bytes| bytes / 1e9));
        let axes = [&batch, &ChartAxis::new("memory of a rank [GB]", Scale::Whole)];
        figures.extend(of_lot(&lot, words, axes, &memory)?);
    }
    Ok(figures)
}
