//! A rank that no longer answers: the others say which one, go on when it does, or end the job.
//!
//! - stopped in a step (SIGSTOP): one rank says for whom all wait, not for whom it waits itself; continued, the run
//!   ends with the numbers of one that was never disturbed
//! - the same with `--stall-abort`: the job ends by itself, with one message and code, and no process is left,
//!   whichever rank it is and however gradients are averaged
//! - still reading its data while others are ready: named, and what it is doing
//! - the same of a rank that has other rows of the images than the one beside it
//! - killed: the launcher ends the job and says so

use crate::support::job;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dltrain::comm::{Family, MpiLibrary};
use dltrain::error::ErrorKind;
use job::{Finished, series};

/// A job under way.
struct Running {
    child: Child,
    /// Or `hear` would wait for a job that says nothing.
    _watch: job::Watch,
    errors: BufReader<std::process::ChildStderr>,
    /// What it prints after its first steps.
    printed: Option<JoinHandle<String>>,
    said: String,
    results: String,
}

impl Running {
    /// Training that has made its first steps.
    fn training(ranks: usize, results: &Path, flags: &[&str]) -> Running {
        let results = results.to_str().unwrap().to_string();
        let common = ["--batch", "4", "--threads", "1", "--warmup", "0", "--results", &results];
        let mut command = job::job(&[(ranks, &[&common[..], flags].concat())]);
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let (mut child, _watch) = job::spawn(command, job::limit());
        let errors = BufReader::new(child.stderr.take().unwrap());
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while out.read_line(&mut line).unwrap() > 0 && !line.contains("+/-") {
            line.clear();
        }
        // Nobody may be stopped by a pipe that is full.
        let printed = std::thread::spawn(move || {
            let mut text = String::new();
            out.read_to_string(&mut text).unwrap();
            text
        });
        Running { child, _watch, errors, printed: Some(printed), said: String::new(), results }
    }

    /// The process of a rank.
    fn pid(&self, rank: usize) -> String {
        let variables = [format!("OMPI_COMM_WORLD_RANK={rank}"), format!("PMI_RANK={rank}")];
        let of_job = |pid: &str| {
            let read = |file: &str| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
            let has =
                |text: &[u8], wanted: &str| text.split(|&b| b == 0).any(|word| word == wanted.as_bytes());
            read("comm").starts_with(b"dltrain")
                && has(&read("cmdline"), &self.results)
                && variables.iter().any(|variable| has(&read("environ"), variable))
        };
        let names = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().file_name());
        let mut pids = names.filter_map(|name| name.into_string().ok()).filter(|name| of_job(name));
        pids.next().expect("the rank has a process")
    }

    /// Reads what the job complains about until a line has this text.
    fn hear(&mut self, text: &str) -> String {
        loop {
            let mut line = String::new();
            assert!(self.errors.read_line(&mut line).unwrap() > 0, "never said {text:?}: {}", self.said);
            self.said += &line;
            if line.contains(text) {
                return line;
            }
        }
    }

    fn end(mut self) -> Finished {
        let begun = Instant::now();
        self.errors.read_to_string(&mut self.said).unwrap();
        let status = self.child.wait().unwrap();
        Finished {
            success: status.success(),
            code: status.code(),
            stdout: self.printed.take().unwrap().join().unwrap(),
            stderr: std::mem::take(&mut self.said),
            took: begun.elapsed(),
        }
    }
}

impl Drop for Running {
    /// A test that fails leaves no job behind.
    fn drop(&mut self) {
        if self.printed.is_some() {
            let _ = self.child.kill();
        }
    }
}

fn signal(name: &str, pid: &str) {
    assert!(Command::new("kill").args([name, pid]).status().unwrap().success());
}

/// Waits until a process is gone: a launcher may end a moment before those it kills.
fn goes(pid: &str) -> bool {
    let gone = || {
        let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        state.is_empty() || state.contains(") Z ")
    };
    let begun = Instant::now();
    while !gone() && begun.elapsed() < job::SECONDS {
        std::thread::sleep(Duration::from_millis(50));
    }
    gone()
}

#[test]
fn a_stopped_rank_is_named_and_the_run_goes_on_when_it_does() {
    let directory = tempfile::tempdir().unwrap();
    let (quiet, disturbed) = (directory.path().join("quiet.h5"), directory.path().join("disturbed.h5"));
    let flags = ["--steps", "400", "--allreduce", "ring", "--stall-warn", "1"];
    assert!(Running::training(3, &quiet, &flags).end().success);

    let mut run = Running::training(3, &disturbed, &flags);
    let pid = run.pid(1);
    signal("-STOP", &pid);
    // Rank 2 waits for rank 1, and rank 0 for rank 2, which is not to blame.
    let line = run.hear("waiting for ");
    // It was stopped while it computed, within a message, or in its share of the update.
    let places = ["(ring allreduce)", "the end of the backward pass", "new parameters"];
    let place = places.iter().any(|place| line.contains(&format!("{place}: waiting for 1.")));
    assert!(line.contains("[0] warn: step ") && place, "{line}");
    assert!(line.contains(" s for rank 1 on ") && line.contains("(stopped by a signal"), "{line}");
    run.hear("waiting for 2.");
    signal("-CONT", &pid);
    run.hear(": goes on after ");
    let done = run.end();
    assert!(done.success && done.stderr.matches("waiting for ").count() == 2, "{}", done.stderr);
    assert_eq!(series(&disturbed, "steps/loss"), series(&quiet, "steps/loss"));
}

#[test]
fn a_rank_that_stays_stopped_ends_the_job_when_asked_to() {
    let directory = tempfile::tempdir().unwrap();
    for (allreduce, stopped, others) in [("shm", 0, 1), ("mpi", 1, 0)] {
        let results = directory.path().join(format!("{allreduce}.h5"));
        let flags =
            ["--steps", "100000", "--allreduce", allreduce, "--stall-warn", "0", "--stall-abort", "1"];
        let run = Running::training(2, &results, &flags);
        let pids = [run.pid(0), run.pid(1)];
        signal("-STOP", &pids[stopped]);
        let done = run.end();
        assert!(!done.success && done.took < job::SECONDS, "{:?} {}", done.took, done.stderr);
        assert_eq!(done.stderr.matches("error: ").count(), 1, "{}", done.stderr);
        assert!(!done.stderr.contains("warn: "), "{}", done.stderr);
        let named = format!("rank {others} on ");
        let message = done.stderr.lines().find(|line| line.contains("error: ")).unwrap();
        assert!(message.contains(&named) && message.contains(": waiting for 1."), "{message}");
        assert!(message.contains(&format!(" s for rank {stopped} on ")), "{message}");
        assert!(message.ends_with("--stall-abort ends the job"), "{message}");
        let left: Vec<&String> = pids.iter().filter(|pid| !goes(pid)).collect();
        assert!(left.is_empty(), "left behind: {left:?}");
    }
}

/// A library that is loaded before all others: files below SLOW take for ever to open, as on a file system that hangs.
const HANGS: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>
int open64(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t mode = va_arg(rest, mode_t);
    va_end(rest);
    const char *slow = getenv("SLOW");
    while (slow && strncmp(path, slow, strlen(slow)) == 0) sleep(1);
    return ((int (*)(const char *, int, mode_t))dlsym(RTLD_NEXT, "open64"))(path, flags, mode);
}
"#;

#[test]
fn a_rank_that_still_reads_is_named_with_what_it_does() {
    let directory = tempfile::tempdir().unwrap();
    let [source, library] = ["hangs.c", "libhangs.so"].map(|name| directory.path().join(name));
    fs::write(&source, HANGS).unwrap();
    let made =
        Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).arg("-ldl").status();
    assert!(made.unwrap().success(), "cc failed");
    let digits = concat!(env!("CARGO_MANIFEST_DIR"), "/data/digits");
    let slow = directory.path().join("digits");
    fs::create_dir(&slow).unwrap();
    for file in fs::read_dir(digits).unwrap().map(|file| file.unwrap()) {
        fs::copy(file.path(), slow.join(file.file_name())).unwrap();
    }
    let slow = slow.to_str().unwrap();
    let results = directory.path().join("run.h5");
    let flags = ["--stall-warn", "0", "--stall-abort", "1", "--results", results.to_str().unwrap(), "--data"];
    let mut job = job::job(&[(1, &[&flags[..], &[digits]].concat()), (1, &[&flags[..], &[slow]].concat())]);
    job.env("LD_PRELOAD", &library).env("SLOW", slow);
    let message = job::refused_by(job);
    assert!(message.contains("reading the data: waiting for 1."), "{message}");
    assert!(message.contains(" s for rank 1 on ") && message.contains(", in reading the data)"), "{message}");
    assert!(!results.exists());
    assert_eq!(ErrorKind::Stalled as i32, 9, "as docs/GUIDE.md has it");
}

#[test]
fn a_killed_rank_ends_the_job_with_words() {
    let directory = tempfile::tempdir().unwrap();
    let run = Running::training(2, &directory.path().join("run.h5"), &["--steps", "100000"]);
    let pids = [run.pid(0), run.pid(1)];
    signal("-KILL", &pids[1]);
    let done = run.end();
    assert!(!done.success && done.took < job::SECONDS, "{:?}", done.took);
    // The launcher's words; Hydra prints them on standard output.
    let said = match MpiLibrary::linked().family {
        Family::OpenMpi => "rank 1 with PID",
        _ => "BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES",
    };
    let all = done.stdout + &done.stderr;
    assert!(all.contains(said), "{all}");
    assert!(pids.iter().all(|pid| goes(pid)));
}

/// A rank with other rows of the same images: the one beside it waits for these.
#[test]
fn a_stopped_rank_with_rows_of_images_is_named_with_the_layer() {
    let directory = tempfile::tempdir().unwrap();
    let flags = ["--spatial", "2", "--steps", "100000", "--stall-warn", "0.5", "--stall-abort", "1"];
    let run = Running::training(2, &directory.path().join("run.h5"), &flags);
    let pids = [run.pid(0), run.pid(1)];
    signal("-STOP", &pids[1]);
    let done = run.end();
    assert!(!done.success && done.took < job::SECONDS, "{:?} {}", done.took, done.stderr);
    assert!(done.stderr.contains(" s for rank 1 on "), "{}", done.stderr);
    assert!(pids.iter().all(|pid| goes(pid)), "left behind");
}

/// The last rank, on which all others wait for new parameters; of asynchronous updates one that the server waits for
/// too, in the end.
#[test]
fn a_stopped_server_is_named_and_a_killed_one_ends_the_job() {
    let directory = tempfile::tempdir().unwrap();
    for (number, (sync, name, rank)) in [
        ("server", "-STOP", 2),
        ("server", "-KILL", 2),
        ("server-async", "-STOP", 2),
        ("server-async", "-KILL", 2),
        ("server-async", "-STOP", 1),
    ]
    .into_iter()
    .enumerate()
    {
        let results = directory.path().join(format!("run{number}.h5"));
        let abort = if name == "-STOP" { "1" } else { "0" };
        let order: &[&str] = if sync == "server" { &[] } else { &["--async-order", "round-robin"] };
        let flags = ["--sync", sync, "--steps", "100000", "--stall-warn", "0", "--stall-abort", abort];
        let run = Running::training(3, &results, &[&flags, order].concat());
        let pids = [run.pid(0), run.pid(1), run.pid(2)];
        signal(name, &pids[rank]);
        let done = run.end();
        assert!(!done.success && done.took < job::SECONDS, "{:?} {}", done.took, done.stderr);
        if name == "-STOP" {
            assert!(done.stderr.contains(&format!(" s for rank {rank} on ")), "{sync}: {}", done.stderr);
        }
        assert!(pids.iter().all(|pid| goes(pid)), "left behind");
    }
}
