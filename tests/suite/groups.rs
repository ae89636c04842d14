//! Control groups of this machine, made for the test (root, and a version that has the controllers): what a container's
//! or a job's limits of memory and of cores' time leave is said before the first step.
//!
//! - a run that needs more memory than its group allows ends with the group's name and the batch that fits
//! - `--dry-run` prints its plan, and then that
//! - ranks take no more threads than their group has cores' time for, and are told of it

use crate::support::job;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use dltrain::error::ErrorKind;
use job::{Finished, finish};

/// Groups that are there for a test.
struct Group {
    name: String,
    places: Vec<PathBuf>,
}

impl Group {
    /// One with these limits; `None`, and said so, where there can be none.
    fn new(memory: Option<&str>, time: Option<&str>) -> Option<Group> {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let name = format!("dltrain-test-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let root = Path::new("/sys/fs/cgroup");
        let second = root.join("cgroup.controllers").exists();
        let mut group = Group { name: name.clone(), places: Vec::new() };
        let mut limit = |controller: &str, files: [&str; 2], values: [&str; 2]| {
            let place = if second { root.join(&name) } else { root.join(controller).join(&name) };
            let file = place.join(files[usize::from(second)]);
            let made = if place.exists() { Ok(()) } else { fs::create_dir(&place) };
            let written = made.and_then(|()| {
                group.places.push(place.clone());
                fs::write(&file, values[usize::from(second)])
            });
            written.map_err(|error| format!("{}: {error}", file.display()))
        };
        let memory = memory
            .map_or(Ok(()), |bytes| limit("memory", ["memory.limit_in_bytes", "memory.max"], [bytes, bytes]));
        let of_period = time.map(|time| format!("{time} 100000"));
        let time = time.zip(of_period.as_deref()).map_or(Ok(()), |(time, of_period)| {
            limit("cpu", ["cpu.cfs_quota_us", "cpu.max"], [time, of_period])
        });
        memory.and(time).inspect_err(|why| println!("SKIPPED: no control group: {why}")).ok().map(|()| group)
    }

    /// A run within it.
    fn run(&self, ranks: usize, flags: &[&str]) -> Finished {
        let directory = tempfile::tempdir().unwrap();
        let results = directory.path().to_str().unwrap();
        self.job(ranks, &[flags, &["--results", results]].concat())
    }

    fn job(&self, ranks: usize, flags: &[&str]) -> Finished {
        let whole = job::job(&[(ranks, flags)]);
        let mut command = Command::new("sh");
        let join = "while [ \"$1\" != -- ]; do echo $$ >\"$1/cgroup.procs\" || exit 9; shift; done; shift; exec \"$@\"";
        command.args(["-c", join, "sh"]).args(&self.places).arg("--");
        command.arg(whole.get_program()).args(whole.get_args());
        finish(command)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The last process is gone a moment after it was waited for.
        for place in &self.places {
            for _ in 0..50 {
                if fs::remove_dir(place).is_ok() || !place.exists() {
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
        }
    }
}

#[test]
fn less_memory_than_the_plan_needs_is_said_before_the_first_step() {
    let Some(group) = Group::new(Some("500000000"), None) else { return };
    let flags = ["--model", "mnist_large", "--batch", "4000", "--steps", "1", "--threads", "1"];
    let what = format!("free for each of its 2 ranks, as control group /{} allows 500", group.name);
    let refused = group.run(2, &flags);
    assert_eq!(refused.code, Some(ErrorKind::Environment as i32), "{}", refused.stderr);
    assert_eq!(refused.stderr.matches(&what).count(), 1, "{}", refused.stderr);
    let largest = refused.stderr.split("the largest --batch that fits is ").nth(1);
    let largest = largest.unwrap_or_else(|| panic!("{}", refused.stderr)).split_whitespace().next().unwrap();
    let planned = group.run(2, &[&flags[..], &["--dry-run"]].concat());
    assert!(planned.success, "{}", planned.stderr);
    let said = "without --dry-run this ends before the first step: mnist_large with --batch 4000 needs ";
    assert!(planned.stdout.contains(said) && planned.stdout.contains(&what), "{}", planned.stdout);
    // What it says fits does.
    let fits = ["--model", "mnist_large", "--batch", largest, "--steps", "1", "--threads", "1"];
    let done = group.run(2, &fits);
    assert!(done.success, "{}\n{}", done.stdout, done.stderr);
    let info = group.job(1, &["info", "--site"]).stdout;
    assert!(info.contains("memory at most 0.5 GB, 0.") && info.contains(&group.name), "{info}");
}

#[test]
fn less_time_than_the_cores_have_is_said_and_kept_to() {
    if dltrain::host::cores() < 2 {
        return println!("SKIPPED: one core");
    }
    let Some(group) = Group::new(None, Some("150000")) else { return };
    let flags = ["--model", "mnist_small", "--batch", "8", "--steps", "1"];
    let threads = |said: &str| {
        let line =
            said.lines().find(|line| line.starts_with("ranks x threads")).expect("the line").to_string();
        line.split(" on ").next().unwrap().split(" x ").last().unwrap().trim().parse::<usize>().unwrap()
    };
    let what = format!("and control group /{} allows them the time of 1.5: ", group.name);
    for ranks in [1, 2] {
        let done = group.run(ranks, &flags);
        assert!(done.success, "{}\n{}", done.stdout, done.stderr);
        assert_eq!((threads(&done.stdout), done.stderr.matches(&what).count()), (1, 1), "{}", done.stderr);
    }
    let more = group.run(2, &[&flags[..], &["--threads", "1"]].concat());
    assert!(more.stderr.contains("these 2 ranks have 2 threads on "), "{}", more.stderr);
    assert!(more.stderr.contains(&what), "{}", more.stderr);
    // Who asks for what there is means it.
    let meant = group.run(1, &[&flags[..], &["--threads", "1"]].concat());
    assert!(!meant.stderr.contains("control group"), "{}", meant.stderr);
    let too_many = group.run(1, &[&flags[..], &["--threads", "2"]].concat());
    assert_eq!(too_many.stderr.matches("this rank may use 1 core").count(), 1, "{}", too_many.stderr);
}
