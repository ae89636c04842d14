//! Several runs beside each other: in what their settings differ, how speed goes with ranks, and speed and memory with the
//! batch.

use std::collections::{BTreeMap, BTreeSet};

use super::axis::{Axis, Scale};
use super::chart::{self, Line, Mark};
use super::figures::Figure;
use super::run::Run;
use crate::error::Result;

/// Settings that tell one file from another but not what was run.
const NAMES: [&str; 15] = [
    "command",
    "config",
    "run_file",
    "started",
    "run",
    "resumed",
    "plan_hash",
    "results",
    "timeline",
    "timeline_steps",
    "save_weights",
    "dry_run",
    "evaluate",
    "max_batch",
    "input.loader_threads",
];
/// Of these may differ what is still one curve of a study: what follows from ranks, batch and machine, and how long
/// it was measured.
const PASSING: [&str; 13] = [
    "ranks",
    "hosts",
    "device",
    "threads",
    "allreduce_used",
    "allreduce_costs",
    "revision",
    "steps",
    "warmup",
    "epochs",
    "seed",
    "mpi",
    "recomputation_saves_bytes",
];

/// What was set, by name.
fn settings(run: &Run) -> BTreeMap<&str, &str> {
    let texts = run.record.config.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    texts.filter(|(name, _)| !NAMES.contains(name) && !name.starts_with("session.")).collect()
}

/// The settings that are not the same in all runs, with the value of each run.
pub fn differences(runs: &[Run]) -> Vec<(String, Vec<String>)> {
    let all: Vec<BTreeMap<&str, &str>> = runs.iter().map(settings).collect();
    let names: BTreeSet<&str> = all.iter().flat_map(|of| of.keys().copied()).collect();
    let value = |of: &BTreeMap<&str, &str>, name: &str| match of.get(name).copied() {
        None | Some("null") => "–".to_string(),
        Some(hosts) if name == "hosts" => counted(hosts),
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

/// Gives each run a label of what tells it from the others, where that is short; else its file's name stays.
pub fn label(runs: &mut [Run]) {
    let told: Vec<(String, Vec<String>)> = differences(runs)
        .into_iter()
        .filter(|(name, _)| {
            ["ranks", "batch", "model"].contains(&name.as_str()) || !PASSING.contains(&name.as_str())
        })
        .filter(|(name, _)| !["classes", "image"].contains(&name.as_str()))
        .collect();
    if told.is_empty() || told.len() > 3 {
        return;
    }
    let of = |at: usize| -> String {
        let part = |(name, values): &(String, Vec<String>)| match name.as_str() {
            "model" => values[at].clone(),
            _ => format!("{name} {}", values[at]),
        };
        // The model first.
        let (models, others): (Vec<_>, Vec<_>) = told.iter().partition(|(name, _)| name == "model");
        models.into_iter().chain(others).map(part).collect::<Vec<_>>().join(", ")
    };
    let labels: Vec<String> = (0..runs.len()).map(of).collect();
    if labels.iter().collect::<BTreeSet<_>>().len() == runs.len()
        && labels.iter().all(|label| label.len() <= 32)
    {
        runs.iter_mut().zip(labels).for_each(|(run, label)| run.label = label);
    }
}

/// Runs that are the same but for one number, by that number; several of one number count as their mean.
struct Study<'a> {
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

/// Curves over a number: at least two points each.
fn studies<'a>(runs: &'a [Run], varied: &str, of: impl Fn(&Run) -> f64) -> Vec<Study<'a>> {
    let fixed = |run: &Run| {
        let mut key: BTreeMap<String, String> = settings(run)
            .into_iter()
            .filter(|(name, _)| {
                *name != varied && (!PASSING.contains(name) || (*name == "ranks" && varied != "ranks"))
            })
            .map(|(name, value)| (name.to_string(), value.to_string()))
            .collect();
        key.retain(|name, _| name != "batch" || varied != "batch");
        key
    };
    let mut groups: BTreeMap<BTreeMap<String, String>, BTreeMap<u64, Vec<&Run>>> = BTreeMap::new();
    for run in runs.iter().filter(|run| of(run).is_finite() && run.images_per_second().is_finite()) {
        groups.entry(fixed(run)).or_default().entry(of(run) as u64).or_default().push(run);
    }
    groups.retain(|_, points| points.len() > 1);
    let keys: Vec<BTreeMap<String, String>> = groups.keys().cloned().collect();
    let told = |key: &BTreeMap<String, String>| {
        let differs = |name: &str| keys.iter().any(|other| other.get(name) != key.get(name));
        let parts = key.iter().filter(|(name, _)| {
            *name != "model" && !["classes", "image"].contains(&name.as_str()) && differs(name)
        });
        let model = key.get("model").cloned().unwrap_or_default();
        std::iter::once(model)
            .chain(parts.map(|(name, value)| format!("{name} {value}")))
            .collect::<Vec<_>>()
            .join(", ")
    };
    groups.into_iter().map(|(key, points)| Study { label: told(&key), points }).collect()
}

/// Images a second and efficiency over ranks at the same batch a rank.
pub fn scaling(runs: &[Run]) -> Result<Vec<Figure>> {
    let studies = studies(runs, "ranks", |run| run.ranks);
    let (mut speeds, mut shares) = (Vec::new(), Vec::new());
    for (colour, study) in studies.iter().enumerate() {
        let points = study.curve(|run| Some(run.images_per_second()));
        let Some(&(fewest, slowest)) = points.first() else { continue };
        let one = slowest / fewest;
        let ideal = points.iter().map(|&(ranks, _)| (ranks, ranks * one)).collect();
        let share = points.iter().map(|&(ranks, speed)| (ranks, 100.0 * speed / (ranks * one))).collect();
        let line = |label: String, points, mark| Line { label, points, band: Vec::new(), mark, colour };
        speeds.push(line(study.label.clone(), points, Mark::Points));
        speeds.push(line(if colour == 0 { "ideal".into() } else { String::new() }, ideal, Mark::Dashes));
        shares.push(line(study.label.clone(), share, Mark::Points));
    }
    if speeds.is_empty() {
        return Ok(Vec::new());
    }
    let ranks = Axis::new("ranks", Scale::Log2);
    let caption = "At the same batch a rank (weak scaling). The ideal line leads from the fewest ranks on.";
    let speed = chart::lines(&ranks, &Axis::new("images/s, all ranks", Scale::Log10), &speeds)?;
    let share = chart::lines(&ranks, &Axis::new("efficiency [%]", Scale::Whole), &shares)?;
    Ok(vec![
        Figure::new("scaling", "Images a second over ranks", caption, speed),
        Figure::new(
            "efficiency",
            "Efficiency over ranks",
            "Images a second a rank, as a share of that with the fewest ranks.",
            share,
        ),
    ])
}

/// Images a second and memory over the batch a rank.
pub fn sweeps(runs: &[Run]) -> Result<Vec<Figure>> {
    let studies = studies(runs, "batch", |run| run.batch);
    let curve = |of: &dyn Fn(&Run) -> Option<f64>| -> Vec<Line> {
        let lines = studies.iter().enumerate().map(|(colour, study)| Line {
            label: study.label.clone(),
            points: study.curve(of),
            band: Vec::new(),
            mark: Mark::Points,
            colour,
        });
        lines.filter(|line| !line.points.is_empty()).collect()
    };
    let (speeds, memory) = (
        curve(&|run| Some(run.images_per_second())),
        curve(&|run| run.record.number("peak_memory").filter(|&bytes| bytes > 0.0).map(|bytes| bytes / 1e9)),
    );
    if speeds.is_empty() {
        return Ok(Vec::new());
    }
    let batch = Axis::new("batch: images a rank and step", Scale::Log2);
    let speed = chart::lines(&batch, &Axis::new("images/s, all ranks", Scale::Whole), &speeds)?;
    let mut figures = vec![Figure::new(
        "batch-speed",
        "Images a second over the batch",
        "All ranks together; warm-up left out.",
        speed,
    )];
    if !memory.is_empty() {
        let svg = chart::lines(&batch, &Axis::new("memory of a rank [GB]", Scale::Whole), &memory)?;
        let caption = "Peak resident set of the rank that has most, as measured.";
        figures.push(Figure::new("batch-memory", "Memory over the batch", caption, svg));
    }
    Ok(figures)
}
