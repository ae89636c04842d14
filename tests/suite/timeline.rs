//! `--timeline`: one file of all ranks, which a viewer can open and a reader can believe.
//!
//! - every rank is there with its host, steps, named layers and buckets; a bucket lies within its step
//! - a message is at both its ends, and is not received before it was sent, by the clock that all ranks are shown on
//! - in a pipeline a rank shows the layers of its stage
//! - a long run keeps its last steps, `--timeline-steps` chooses, in one file
//! - a run whose loss diverges leaves its timeline; a file that cannot be made stops the run before it begins

use crate::support::job;

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::Path;

use serde_json::Value;

const DIGITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/data/digits");

/// Flags of a short training run with a timeline.
fn flags<'a>(timeline: &'a str, results: &'a str) -> Vec<&'a str> {
    let run = ["--data", DIGITS, "--batch", "8", "--threads", "1", "--optimizer", "sgd"];
    [&run[..], &["--results", results, "--timeline", timeline]].concat()
}

/// A parsed file: its events of a phase, and the rest.
struct Timeline(Value);

impl Timeline {
    fn read(path: &Path) -> Timeline {
        Timeline(serde_json::from_str(&fs::read_to_string(path).unwrap()).expect("it is JSON"))
    }

    fn events(&self, phase: &str) -> Vec<&Value> {
        self.0["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == phase).collect()
    }

    /// Spans of a category by rank and step.
    fn spans(&self, category: &str) -> Vec<(u64, u64, &Value)> {
        let of = |event: &&Value| event["cat"] == category;
        let key =
            |event: &'_ Value| (event["pid"].as_u64().unwrap(), event["args"]["step"].as_u64().unwrap());
        self.events("X").into_iter().filter(of).map(|event| (key(event).0, key(event).1, event)).collect()
    }

    fn steps(&self) -> BTreeSet<(u64, u64)> {
        self.spans("layers").iter().map(|&(rank, step, _)| (rank, step)).collect()
    }
}

fn begin(event: &Value) -> f64 {
    event["ts"].as_f64().unwrap()
}

fn end(event: &Value) -> f64 {
    begin(event) + event["dur"].as_f64().unwrap()
}

/// What adding up microseconds as f64 may lose, far below the nanosecond that clocks count.
const ROUNDING: f64 = 1e-4;

#[test]
fn all_ranks_are_on_one_clock() {
    let directory = tempfile::tempdir().unwrap();
    let (path, results) = (directory.path().join("run.json"), directory.path().join("run.h5"));
    let mut flags = flags(path.to_str().unwrap(), results.to_str().unwrap());
    flags.extend(["--epochs", "1", "--steps", "12", "--allreduce", "ring", "--fusion-threshold-mb", "1"]);
    job::run(3, &flags);
    let timeline = Timeline::read(&path);

    let names: Vec<&Value> =
        timeline.events("M").into_iter().filter(|event| event["name"] == "process_name").collect();
    for (rank, event) in names.iter().enumerate() {
        let name = event["args"]["name"].as_str().unwrap();
        assert!(event["pid"] == rank && name.starts_with(&format!("rank {rank} on ")), "{name}");
    }
    assert_eq!(names.len(), 3);
    let expected: BTreeSet<(u64, u64)> =
        (0..3).flat_map(|rank| (0..12).map(move |step| (rank, step))).collect();
    assert_eq!(timeline.steps(), expected);

    let steps: HashMap<(u64, u64), (f64, f64)> = timeline
        .spans("steps")
        .iter()
        .filter(|(_, _, event)| event["name"].as_str().unwrap().starts_with("step "))
        .map(|&(rank, step, event)| ((rank, step), (begin(event), end(event))))
        .collect();
    let mut buckets = 0;
    for category in ["buckets", "layers", "input", "waiting", "sends", "receives"] {
        for (rank, step, event) in timeline.spans(category) {
            let (from, to) = steps[&(rank, step)];
            let within = begin(event) >= from - ROUNDING && end(event) <= to + ROUNDING;
            assert!(within && event["name"] != "", "{event} is not within {from} and {to}");
            buckets += usize::from(category == "buckets");
        }
    }
    assert_eq!(buckets, 3 * 12 * 2, "mnist_small has two buckets of a megabyte");
    messages(&timeline);
    let files = fs::read_dir(directory.path()).unwrap().count();
    assert_eq!(files, 2, "the results and one timeline");
}

/// Each is received once, by the rank it was sent to, and not before it was sent.
fn messages(timeline: &Timeline) {
    let uncertainty: Vec<f64> = timeline.0["otherData"]["clocks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|clock| clock["uncertainty_us"].as_f64().unwrap())
        .collect();
    assert_eq!(uncertainty, [0.0; 3], "ranks of one machine have one clock");
    let by_message = |category| -> HashMap<String, (u64, &Value)> {
        let spans = timeline.spans(category);
        let count = spans.len();
        let named = |(rank, _, event): (u64, u64, _)| {
            let event: &Value = event;
            (event["args"]["message"].as_str().unwrap().to_string(), (rank, event))
        };
        let all: HashMap<_, _> = spans.into_iter().map(named).collect();
        assert_eq!(all.len(), count, "two messages are called the same");
        all
    };
    let (sends, receives) = (by_message("sends"), by_message("receives"));
    assert!(sends.len() >= 3 * 12 * 2 * 4 && sends.len() == receives.len());
    for (message, (from, send)) in &sends {
        let (to, receive) = receives.get(message).expect("it is received");
        assert!(send["name"] == format!("to rank {to}") && receive["name"] == format!("from rank {from}"));
        assert!(end(receive) >= begin(send) - ROUNDING, "{message}: {receive} before {send}");
        assert_eq!(send["args"]["bytes"], receive["args"]["bytes"]);
    }
}

#[test]
fn a_stage_shows_its_own_layers() {
    let directory = tempfile::tempdir().unwrap();
    let (path, results) = (directory.path().join("run.json"), directory.path().join("run.h5"));
    let flags = flags(path.to_str().unwrap(), results.to_str().unwrap());
    let cut = ["--epochs", "1", "--pipeline", "2", "--micro-batches", "4", "--pipeline-cuts", "fc1"];
    job::run(2, &[&flags[..], &cut].concat());
    let timeline = Timeline::read(&path);
    let layers = |rank: u64| -> BTreeSet<String> {
        let own = timeline.spans("layers").into_iter().filter(|span| span.0 == rank);
        let name = |event: &Value| event["name"].as_str().unwrap().split(' ').next().unwrap().to_string();
        own.map(|(.., event)| name(event)).collect()
    };
    let [first, second] = [layers(0), layers(1)];
    assert!(first.contains("conv1") && !first.contains("fc1"), "{first:?}");
    assert!(second.contains("fc1") && !second.contains("conv1"), "{second:?}");
    assert!(!first.contains("") && !second.contains(""));
    for (rank, _, wait) in timeline.spans("waiting") {
        let name = wait["name"].as_str().unwrap();
        assert!(!name.contains("rank") || name == format!("wait for rank {}", 1 - rank), "{name}");
    }
}

#[test]
fn a_window_bounds_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let run = |name: &str, more: &[&str]| {
        let (path, results) = (directory.path().join(name), directory.path().join(format!("{name}.h5")));
        job::run(2, &[&flags(path.to_str().unwrap(), results.to_str().unwrap()), more].concat());
        let timeline = Timeline::read(&path);
        let steps = timeline.steps().iter().map(|&(rank, step)| (rank, step)).collect::<Vec<_>>();
        assert_eq!(steps.len() % 2, 0);
        let of =
            |rank| steps.iter().filter(move |step| step.0 == rank).map(|step| step.1).collect::<Vec<_>>();
        assert_eq!(of(0), of(1));
        of(0)
    };
    // 89 steps an epoch.
    assert_eq!(run("last.json", &["--epochs", "2"]), (128..178).collect::<Vec<u64>>());
    assert_eq!(run("chosen.json", &["--epochs", "1", "--timeline-steps", "3-4"]), [3, 4]);
}

#[test]
fn a_run_that_fails_leaves_its_timeline_and_one_that_cannot_have_it_does_not_begin() {
    let directory = tempfile::tempdir().unwrap();
    let (path, results) = (directory.path().join("run.json"), directory.path().join("run.h5"));
    let mut flags = flags(path.to_str().unwrap(), results.to_str().unwrap());
    flags.extend(["--epochs", "3", "--lr", "1e30"]);
    let message = job::refused(&[(2, &flags)]);
    assert!(message.contains("the loss is not a finite number at step"), "{message}");
    let ranks: BTreeSet<u64> = Timeline::read(&path).steps().iter().map(|step| step.0).collect();
    assert_eq!(ranks, BTreeSet::from([0, 1]));

    fs::remove_file(&results).unwrap();
    let before = fs::read(&path).unwrap();
    let message = job::refused(&[(2, &flags)]);
    assert!(message.contains("run.json: is there already and is not overwritten"), "{message}");
    assert!(fs::read(&path).unwrap() == before && !results.exists());
    let nowhere = directory.path().join("missing").join("run.json");
    flags[11] = nowhere.to_str().unwrap();
    let message = job::refused(&[(2, &flags)]);
    assert!(message.contains("missing does not exist; make it or choose another --timeline"), "{message}");
    assert!(!results.exists());
}
