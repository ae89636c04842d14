//! Whole runs on the doubles of CUDA's libraries.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::cases::full;
use super::fake_cuda;
use super::job::{self, DLTRAIN, Finished, finish, series};

/// A run tests its network on 32 images of these. Of the digits it would be 360, which takes longer than the steps.
pub const SHAPES: &str = "synthetic:shapes:128";

pub struct Results {
    pub directory: tempfile::TempDir,
    pub runs: usize,
}

impl Results {
    pub fn new() -> Results {
        Results { directory: tempfile::tempdir().unwrap(), runs: 0 }
    }

    pub fn path(&mut self) -> PathBuf {
        self.runs += 1;
        self.directory.path().join(format!("run{}.h5", self.runs))
    }

    /// The loss of every step, and the finished job.
    pub fn train_with(
        &mut self,
        ranks: usize,
        flags: &str,
        variables: &[(&str, &str)],
    ) -> (Vec<f64>, Finished) {
        let path = self.path();
        let flags = format!("{flags} --warmup 0 --results {}", path.display());
        let flags: Vec<&str> = flags.split_whitespace().collect();
        let done = finish(with_cuda(job::job(&[(ranks, &flags)]), variables, self.directory.path()));
        assert!(done.success, "{flags:?}\n{}\n{}", done.stdout, done.stderr);
        (series(&path, "steps/loss"), done)
    }

    pub fn losses(&mut self, ranks: usize, flags: &str) -> Vec<f64> {
        self.train_with(ranks, flags, &[]).0
    }
}

/// Where a command finds the doubles.
pub fn with_cuda(mut command: Command, variables: &[(&str, &str)], directory: &Path) -> Command {
    command.env_remove("CUDA_VISIBLE_DEVICES").env("DLTRAIN_CUDA_PATH", fake_cuda::libraries());
    // How long a double takes says nothing of what is to be chosen.
    command.env("DLTRAIN_CUDNN_CACHE", directory.join("cudnn")).env("DLTRAIN_CUDNN_FUSION", "1");
    // What is freed before it was read does not look as it did.
    if variables.contains(&("FAKE_CUDA_DELAYED", "1")) {
        command.env("MALLOC_PERTURB_", "85");
    }
    command.envs(variables.iter().copied());
    command
}

/// A directory of the doubles without those of this name.
pub fn all_but(name: &str) -> tempfile::TempDir {
    let without = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(fake_cuda::libraries()).unwrap().map(|file| file.unwrap()) {
        if !file.file_name().to_str().unwrap().starts_with(name) {
            std::os::unix::fs::symlink(file.path(), without.path().join(file.file_name())).unwrap();
        }
    }
    without
}

/// A job that must fail; its message.
pub fn refused(ranks: usize, flags: &str, variables: &[(&str, &str)]) -> String {
    let directory = tempfile::tempdir().unwrap();
    let flags: Vec<&str> = flags.split_whitespace().collect();
    let mut job = with_cuda(job::job(&[(ranks, &flags)]), variables, directory.path());
    job::end_at_once(&mut job);
    let done = finish(job);
    assert!(!done.success, "{flags:?} succeeded: {}", done.stdout);
    let mut messages = done.stderr.lines().filter(|line| line.contains("error: "));
    let message = messages.next().unwrap_or_else(|| panic!("no message: {}", done.stderr)).to_string();
    assert_eq!(messages.next(), None, "more than one message: {}", done.stderr);
    message
}

/// Losses of size 2 to 3 are means whose logits carry the rounding of sums in another order; a few steps of SGD carry
/// it on. Far below this, and far above what any wrong kernel would give.
pub fn close(found: &[f64], expected: &[f64], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (step, (a, b)) in found.iter().zip(expected).enumerate() {
        assert!((a - b).abs() < 5e-4 * b.abs().max(1.0), "{what}, step {step}: {a} and {b}");
    }
}

/// Lets each of these calls fail in a run of its own; returns how many there were.
pub fn each_failing(flags: &str, of: impl Fn(&str) -> bool) -> usize {
    let directory = tempfile::tempdir().unwrap();
    // Few images, since each of some hundred runs evaluates them; they make the same calls as many do.
    let flags = format!(
        "--model mnist_small --data synthetic:shapes:16 --batch 8 --steps 2 --device cuda --threads 1 --loader-threads 0 {flags}"
    );
    let run = |number: usize, variables: &[(&str, &str)]| {
        let mut command = Command::new(DLTRAIN);
        let results = directory.path().join(format!("{number}.h5"));
        command.args(flags.split_whitespace()).arg("--results").arg(results);
        // The choice of algorithms is a call of its own only where none is kept.
        let cache = directory.path().join(number.to_string());
        finish(with_cuda(command, variables, &cache))
    };
    let log = directory.path().join("calls");
    let done = run(0, &[("FAKE_CUDA_LOG", log.to_str().unwrap())]);
    assert!(done.success, "{}{}", done.stdout, done.stderr);
    let mut calls = calls_of(directory.path());
    calls.retain(|(name, _)| of(name));
    let number = AtomicUsize::new(0);
    let work = || {
        while let Some((name, count)) = calls.get(number.fetch_add(1, Ordering::Relaxed)) {
            let failing = format!("{name}:{count}");
            let own = number.load(Ordering::Relaxed) * calls.len() + count;
            let done = run(own, &[("FAKE_CUDA_FAIL", &failing), ("DLTRAIN_LOG", "debug")]);
            if done.success {
                // An engine that cannot be planned, or does not say what its plan is, is done without.
                let engine =
                    |line: &&str| line.contains(" debug ") && line.contains(&format!("{name} failed"));
                let said = name.starts_with("cudnnBackend") && done.stderr.lines().any(|line| engine(&line));
                assert!(said, "{failing} failed, and nobody noticed: {}{}", done.stdout, done.stderr);
                continue;
            }
            let said =
                done.stderr.lines().any(|line| line.contains("error: ") && line.contains(name.as_str()));
            assert!(said, "{failing}: {}", done.stderr);
        }
    };
    std::thread::scope(|scope| {
        (0..std::thread::available_parallelism().map_or(1, usize::from)).for_each(|_| {
            scope.spawn(work);
        });
    });
    calls.len()
}

/// Which calls are to fail, by name and number, of those in the log of a run.
fn calls_of(directory: &Path) -> Vec<(String, usize)> {
    let files = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
    let file =
        files.into_iter().find(|file| file.file_name().to_str().unwrap().starts_with("calls.")).unwrap();
    let mut last: BTreeMap<String, usize> = BTreeMap::new();
    for line in std::fs::read_to_string(file.path()).unwrap().lines() {
        if let [_, name, count] = line.split_whitespace().collect::<Vec<_>>()[..]
            && let Ok(count) = count.parse()
        {
            last.insert(name.into(), count);
        }
    }
    let frees = ["Destroy", "Free", "Release", "Unload", "Unregister"];
    // A double may count a call as one of another name too: only ours are meant. Without the meter's figures a run goes
    // on.
    let ours: Vec<&str> = include_str!("../../src/device/cuda/README.md").split_whitespace().collect();
    let ours = |name: &str| ours.contains(&name) && !name.starts_with("nvml");
    last.retain(|name, _| ours(name) && !frees.iter().any(|word| name.contains(word)));
    // Slower copies, or a GPU without a place on its bus, are no failure.
    last.remove("cuMemHostRegister_v2");
    let numbers = |(name, last): (String, usize)| {
        let middle = if name == "cuDeviceGetAttribute" { last } else { last.div_ceil(2) };
        // The last ones are of streams that go: as what is freed.
        let last = if name == "cuStreamSynchronize" { middle } else { last };
        let mut numbers = if full() { vec![1, middle, last] } else { vec![1, last] };
        numbers.dedup();
        numbers.into_iter().map(move |number| (name.clone(), number))
    };
    last.into_iter().flat_map(numbers).collect()
}
