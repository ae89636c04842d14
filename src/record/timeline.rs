//! The timeline as a file: Chrome's trace event format, which ui.perfetto.dev and chrome://tracing open.
//!
//! A rank is a process in it, and has lanes: steps, layers, input, waiting, and for what overlaps (buckets, messages)
//! as many as are needed. An arrow leads from each message's sender to its receiver. All ranks are shown on rank 0's
//! clock.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{RankInfo, path};
use crate::error::{OrError, Result};
use crate::files::Unfinished;
use crate::host::clock::Offset;
use crate::trace::{Event, EventKind, FOR_RANK};

/// The file of a run; on other ranks than 0 all calls do nothing.
pub struct TimelineFile {
    writer: Option<TimelineWriter>,
}

/// What one rank has to show.
pub struct RankEvents<'a> {
    /// The rank's number.
    pub rank: usize,
    /// Its host.
    pub host: &'a str,
    /// The names of its plan's steps.
    pub labels: &'a [String],
    /// How far its clock was from rank 0's, at the start and at the end.
    pub clock: [Offset; 2],
    /// What it did, in the order of its clock.
    pub events: Vec<Event>,
}

/// The file of a later part of a run.
fn part_of(path: &Path, part: usize) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_os_string();
    name.push(format!("-{part}"));
    if let Some(ending) = path.extension() {
        name.push(".");
        name.push(ending);
    }
    path.with_file_name(name)
}

struct TimelineWriter {
    out: BufWriter<File>,
    file: Unfinished,
    clocks: Vec<Value>,
    /// The first failure: nothing is written after it.
    failed: Option<std::io::Error>,
}

impl TimelineFile {
    /// Owns the file, and begins it under another name, which goes again unless it is written to its end. Of a run that
    /// goes on each part has a file of its own: NAME-2.json.
    ///
    /// # Errors
    /// `Output`: the file is there already or cannot be made. Rank 0 alone can fail here.
    pub fn create(place: RankInfo, path: &Path, goes_on: bool) -> Result<TimelineFile> {
        if place.rank != 0 {
            return Ok(TimelineFile { writer: None });
        }
        let parts = std::iter::once(path.to_path_buf()).chain((2..).map(|part| part_of(path, part)));
        let mut free = parts.filter(|path| !goes_on || path.symlink_metadata().is_err());
        let path = free.next().unwrap_or_else(|| path.into());
        path::claim(&path, "--timeline")?;
        let file = Unfinished::new(&path);
        let out = File::create_new(&file.temporary).or_output(&path, "cannot write the timeline")?;
        let writer = TimelineWriter { out: BufWriter::new(out), file, clocks: Vec::new(), failed: None };
        Ok(TimelineFile { writer: Some(writer) })
    }

    /// Begins to write.
    pub fn begin(&mut self) {
        if let Some(writer) = &mut self.writer {
            writer.write("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
        }
    }

    /// Writes the events of one rank.
    pub fn rank(&mut self, rank: &RankEvents) {
        if let Some(writer) = &mut self.writer {
            writer.rank(rank);
        }
    }

    /// # Errors
    /// `Output`, if anything could not be written.
    pub fn end(self) -> Result<()> {
        let Some(mut writer) = self.writer else { return Ok(()) };
        // The format wants no comma after the last event.
        let last = json!({"ph": "M", "name": "clock_sync", "pid": 0, "args": {}});
        let clocks = Value::Array(std::mem::take(&mut writer.clocks));
        writer.write(&format!("{last}\n],\"otherData\":{}}}\n", json!({"clocks": clocks})));
        let written = writer.out.flush();
        let written = writer.failed.take().map_or(written, Err);
        let finished = written.and_then(|()| writer.file.finish());
        finished.or_output(&writer.file.path, "cannot write the timeline")
    }
}

impl TimelineWriter {
    fn write(&mut self, text: &str) {
        if self.failed.is_none()
            && let Err(error) = self.out.write_all(text.as_bytes())
        {
            self.failed = Some(error);
        }
    }

    fn event(&mut self, event: &Value) {
        self.write(&format!("{event},\n"));
    }

    fn rank(&mut self, rank: &RankEvents) {
        let pid = rank.rank;
        let name = |what: &str, tid: usize, value: Value| json!({"ph": "M", "name": what, "pid": pid, "tid": tid, "args": value});
        self.event(&name("process_name", 0, json!({"name": format!("rank {pid} on {}", rank.host)})));
        self.event(&name("process_sort_index", 0, json!({"sort_index": pid})));
        let [start, end] = rank.clock;
        let micro = |nanoseconds: f64| nanoseconds / 1e3;
        self.clocks.push(json!({
            "rank": pid,
            "host": rank.host,
            "offset_us": [micro(start.nanoseconds as f64), micro(end.nanoseconds as f64)],
            "uncertainty_us": micro(start.uncertainty.max(end.uncertainty) as f64),
        }));
        let mut lanes = Lanes::default();
        let mut counts = HashMap::new();
        let mut events: Vec<&Event> = rank.events.iter().collect();
        // Outer events before those within; messages between two ranks stay in the order in which they are matched.
        events.sort_by_key(|event| (event.begin, std::cmp::Reverse(event.end)));
        for event in events {
            let (tid, new) = lanes.place(event);
            if let Some(lane) = new {
                self.event(&name("thread_name", tid, json!({"name": lane})));
                self.event(&name("thread_sort_index", tid, json!({"sort_index": tid})));
            }
            let [ts, until] = [event.begin, event.end].map(|time| micro(common(time, &rank.clock)));
            let message = message(pid, event, &mut counts);
            let mut args = json!({"step": event.step});
            if event.bytes > 0 {
                args["bytes"] = event.bytes.into();
            }
            if let Some(id) = &message {
                args["message"] = id.clone().into();
                let end_of_arrow = if event.kind == EventKind::Send { ("s", ts) } else { ("f", until) };
                self.event(&json!({
                    "ph": end_of_arrow.0, "bp": "e", "cat": "message", "name": "message", "id": id, "pid": pid,
                    "tid": tid, "ts": end_of_arrow.1,
                }));
            }
            self.event(&json!({
                "ph": "X", "name": title(event, rank.labels), "cat": category(event.kind).0, "pid": pid, "tid": tid, "ts": ts,
                "dur": until - ts, "args": args,
            }));
        }
    }
}

fn title(event: &Event, labels: &[String]) -> String {
    match event.kind {
        EventKind::Step => format!("step {}", event.step),
        EventKind::Forward => "forward".into(),
        EventKind::Backward => "backward".into(),
        EventKind::Evaluation => format!("evaluation after epoch {}", event.a),
        EventKind::Layer => labels.get(event.a as usize).cloned().unwrap_or_default(),
        EventKind::Update => format!("update {}", event.a),
        EventKind::Input => "input".into(),
        EventKind::Bucket => format!("bucket {}", event.a),
        EventKind::Wait if event.b == FOR_RANK => format!("wait for rank {}", event.a),
        EventKind::Wait => format!("wait for bucket {}", event.a),
        EventKind::Exchange => format!("exchange {}", event.a),
        EventKind::Reduce => "add".into(),
        EventKind::Send => format!("to rank {}", event.a),
        EventKind::Receive => format!("from rank {}", event.a),
    }
}

/// A time of a rank by rank 0's clock. The clocks drift apart evenly between the two measurements.
fn common(time: u64, [start, end]: &[Offset; 2]) -> f64 {
    // The rank's own times of the two measurements.
    let own = |offset: &Offset| offset.at as f64 + offset.nanoseconds as f64;
    let (begun, ended) = (own(start), own(end));
    let share = if ended > begun { (time as f64 - begun) / (ended - begun) } else { 0.0 };
    let offset = start.nanoseconds as f64 + share * (end.nanoseconds - start.nanoseconds) as f64;
    time as f64 - offset
}

/// The lane of a kind, and where its numbers start; below 10 events nest, from there on each has a lane to itself.
fn category(kind: EventKind) -> (&'static str, usize) {
    match kind {
        EventKind::Step | EventKind::Forward | EventKind::Backward | EventKind::Evaluation => ("steps", 0),
        EventKind::Layer | EventKind::Update => ("layers", 1),
        EventKind::Input => ("input", 2),
        EventKind::Wait | EventKind::Exchange => ("waiting", 3),
        EventKind::Reduce => ("adding", 4),
        EventKind::Bucket => ("buckets", 1000),
        EventKind::Send => ("sends", 100_000),
        EventKind::Receive => ("receives", 200_000),
    }
}

/// Lanes of one rank: events of a category that overlap have lanes of their own.
#[derive(Default)]
struct Lanes {
    /// When each lane of a category is free again.
    free: HashMap<usize, Vec<u64>>,
}

impl Lanes {
    /// The lane of the next event, in the order of their beginnings; and its name if it is a new one.
    fn place(&mut self, event: &Event) -> (usize, Option<String>) {
        let (name, first) = category(event.kind);
        let lanes = self.free.entry(first).or_default();
        let nests = first < 10;
        match lanes.iter().position(|&free| nests || free <= event.begin) {
            Some(lane) => {
                lanes[lane] = event.end;
                (first + lane, None)
            }
            None => {
                lanes.push(event.end);
                let name = if nests { name.to_string() } else { format!("{name} {}", lanes.len()) };
                (first + lanes.len() - 1, Some(name))
            }
        }
    }
}

/// What a message is called at both its ends: from whom to whom, in which collective, and the how-manieth of a step.
fn message(
    rank: usize,
    event: &Event,
    counts: &mut HashMap<(usize, usize, u32, u32), usize>,
) -> Option<String> {
    let (from, to) = match event.kind {
        EventKind::Send => (rank, event.a as usize),
        EventKind::Receive => (event.a as usize, rank),
        _ => return None,
    };
    let count = counts.entry((from, to, event.b, event.step)).or_default();
    *count += 1;
    Some(format!("{from}-{to}-{}-{}-{count}", event.b, event.step))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: EventKind, begin: u64, end: u64) -> Event {
        Event { begin, end, kind, step: 0, a: 1, b: 0, bytes: 0 }
    }

    #[test]
    fn each_part_of_a_run_has_a_name_of_its_own() {
        let name = |path: &str| part_of(Path::new(path), 2).display().to_string();
        assert_eq!(name("a/run.json"), "a/run-2.json");
        assert_eq!(name("a/run.4ranks.json"), "a/run.4ranks-2.json");
        assert_eq!(name("run"), "run-2");
    }

    #[test]
    fn what_overlaps_lies_in_lanes_of_its_own() {
        let mut lanes = Lanes::default();
        let mut place = |kind, begin, end| lanes.place(&event(kind, begin, end)).0;
        assert_eq!([place(EventKind::Step, 0, 9), place(EventKind::Forward, 1, 4)], [0, 0]);
        let buckets =
            [(0, 5), (1, 3), (2, 9), (3, 4), (5, 6)].map(|(begin, end)| place(EventKind::Bucket, begin, end));
        assert_eq!(buckets, [1000, 1001, 1002, 1001, 1000]);
    }

    #[test]
    fn a_clock_that_drifts_is_followed() {
        // 1000 ahead at the start and 3000 at the end.
        let offset = |at, nanoseconds| Offset { at, nanoseconds, uncertainty: 10 };
        let clock = [offset(10_000, 1000), offset(1_010_000, 3000)];
        for (own, rank_0s) in [(11_000, 10_000.0), (512_000, 510_000.0), (1_013_000, 1_010_000.0)] {
            assert!((common(own, &clock) - rank_0s).abs() < 1e-6);
        }
        assert_eq!(common(77, &[Offset::default(); 2]), 77.0);
    }

    #[test]
    fn both_ends_of_a_message_call_it_the_same() {
        let (mut here, mut there) = (HashMap::new(), HashMap::new());
        for _ in 0..3 {
            let sent = message(0, &event(EventKind::Send, 0, 1), &mut here);
            let received = message(1, &Event { a: 0, ..event(EventKind::Receive, 0, 1) }, &mut there);
            assert!(sent.is_some() && sent == received);
        }
        assert_eq!(here.len(), 1);
    }
}
