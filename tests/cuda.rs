//! `--device cuda` on any machine: whole runs on doubles of CUDA's libraries (tests/fake_cuda), which compute on the host
//! and notice what a GPU would not forgive.
//!
//! - what a GPU trains is what the CPU trains (but for rounding), and a repeat gives the same bits, also when nothing is
//!   done before somebody waits for it;
//! - ranks that share a GPU, or have one each, train as one rank does;
//! - a run stops and goes on, on the GPU and from one device to the other;
//! - no CUDA, a library that is missing or too old, no such GPU, a batch that does not fit: one message, before anything
//!   is done;
//! - every call of every library that fails ends the job with its name.
//!
//! Every op by itself: tests/ops.rs.

#[path = "support/fake_cuda.rs"]
mod fake_cuda;
#[path = "support/job.rs"]
mod job;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use job::{DLTRAIN, Finished, finish, series};

const DIGITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/data/digits");

struct Results {
    directory: tempfile::TempDir,
    runs: usize,
}

impl Results {
    fn new() -> Results {
        Results { directory: tempfile::tempdir().unwrap(), runs: 0 }
    }

    fn path(&mut self) -> PathBuf {
        self.runs += 1;
        self.directory.path().join(format!("run{}.h5", self.runs))
    }

    /// The loss of every step, and the finished job.
    fn train_with(&mut self, ranks: usize, flags: &str, variables: &[(&str, &str)]) -> (Vec<f64>, Finished) {
        let path = self.path();
        let flags = format!("{flags} --warmup 0 --results {}", path.display());
        let flags: Vec<&str> = flags.split_whitespace().collect();
        let done = finish(with_cuda(job::job(&[(ranks, &flags)]), variables, self.directory.path()));
        assert!(done.success, "{flags:?}\n{}\n{}", done.stdout, done.stderr);
        (series(&path, "steps/loss"), done)
    }

    fn losses(&mut self, ranks: usize, flags: &str) -> Vec<f64> {
        self.train_with(ranks, flags, &[]).0
    }
}

/// Where a command finds the doubles.
fn with_cuda(mut command: Command, variables: &[(&str, &str)], directory: &Path) -> Command {
    command.env_remove("CUDA_VISIBLE_DEVICES").env("DLTRAIN_CUDA_PATH", fake_cuda::libraries());
    command.env("DLTRAIN_CUDNN_CACHE", directory.join("cudnn.json")).envs(variables.iter().copied());
    command
}

/// A job that must fail; its message.
fn refused(ranks: usize, flags: &str, variables: &[(&str, &str)]) -> String {
    let directory = tempfile::tempdir().unwrap();
    let flags: Vec<&str> = flags.split_whitespace().collect();
    let done = finish(with_cuda(job::job(&[(ranks, &flags)]), variables, directory.path()));
    assert!(!done.success, "{flags:?} succeeded: {}", done.stdout);
    let mut messages = done.stderr.lines().filter(|line| line.contains("error: "));
    let message = messages.next().unwrap_or_else(|| panic!("no message: {}", done.stderr)).to_string();
    assert_eq!(messages.next(), None, "more than one message: {}", done.stderr);
    message
}

/// Losses of size 2 to 3 are means whose logits carry the rounding of sums in another order; a few steps of SGD carry it
/// on. Far below this, and far above what any wrong kernel would give.
fn close(found: &[f64], expected: &[f64], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (step, (a, b)) in found.iter().zip(expected).enumerate() {
        assert!((a - b).abs() < 5e-4 * b.abs().max(1.0), "{what}, step {step}: {a} and {b}");
    }
}

#[test]
fn a_gpu_trains_what_the_cpu_trains() {
    let mut results = Results::new();
    let digits = format!("--data {DIGITS} --batch 8 --steps 6 --optimizer sgd --lr 0.01");
    for flags in [
        format!("--model mnist_small {digits}"),
        format!("--model mnist_net {digits} --clip-norm 0.5 --ema 0.9"),
        format!("--model mnist_small {digits} --accumulation 2 --optimizer adamw --lr 0.001"),
        "--model resnet18 --image-size 32 --classes 10 --batch 4 --steps 2 --optimizer sgd --lr 0.001".into(),
        "--model googlenet --image-size 32 --classes 10 --batch 2 --steps 1 --optimizer sgd --lr 0.001"
            .into(),
    ] {
        let cpu = results.losses(1, &format!("{flags} --device cpu"));
        let gpu = results.losses(1, &format!("{flags} --device cuda"));
        close(&gpu, &cpu, &flags);
    }
}

/// f16 against its definition (the reference device in f16): what differs are roundings of 11 bits. The second run begins
/// with a loss scale at which every gradient overflows: steps are skipped on all ranks alike until it fits, and counted.
#[test]
fn half_precision_scales_its_loss_and_skips_what_overflows() {
    let mut results = Results::new();
    let flags =
        format!("--model mnist_small --data {DIGITS} --batch 4 --optimizer sgd --lr 0.01 --precision f16");
    let reference = results.losses(1, &format!("{flags} --steps 2 --device reference"));
    let (gpu, done) = results.train_with(1, &format!("{flags} --steps 2 --device cuda"), &[]);
    gpu.iter().zip(&reference).for_each(|(a, b)| assert!((a - b).abs() < 0.01, "{gpu:?} and {reference:?}"));
    assert!(done.stdout.contains("loss scale 65536 at the end; 0 of 2 steps"), "{}", done.stdout);

    let flags = format!("{flags} --loss-scale 1e30 --loss-scale-hysteresis 1 --steps 4 --device cuda");
    let (skipping, done) = results.train_with(2, &flags, &[]);
    assert!(done.stdout.contains("4 of 4 steps were skipped"), "{}", done.stdout);
    assert!(skipping.iter().all(|loss| loss.is_finite()));
    let stuck = format!("{flags} --loss-scale-min 1e30");
    assert!(refused(2, &stuck, &[]).contains("the loss scale is at its minimum of"), "{stuck}");
}

#[test]
fn recomputing_and_shared_statistics_change_nothing_on_a_gpu() {
    let mut results = Results::new();
    let flags =
        "--model resnet18 --image-size 32 --classes 10 --steps 2 --optimizer sgd --lr 0.001 --device cuda";
    let whole = results.losses(1, &format!("{flags} --batch 4"));
    assert_eq!(results.losses(1, &format!("{flags} --batch 4 --recompute")), whole);
    close(&results.losses(2, &format!("{flags} --batch 2 --sync-bn")), &whole, "--sync-bn");
}

/// Also where work is done as late as it may be: a wait that is missing would show.
#[test]
fn ranks_that_share_a_gpu_train_as_one_and_repeat_their_bits() {
    let mut results = Results::new();
    let flags = format!(
        "--model mnist_net --data {DIGITS} --steps 5 --optimizer sgd --lr 0.01 --fusion-threshold-mb 0.1"
    );
    let whole = results.losses(1, &format!("{flags} --batch 16 --device cuda"));
    for ranks in [2, 4] {
        let flags = format!("{flags} --batch {} --device auto", 16 / ranks);
        let (first, done) = results.train_with(ranks, &flags, &[]);
        close(&first, &whole, &format!("{ranks} ranks"));
        assert!(done.stdout.contains("Fake GPU 0"), "auto is not the GPU: {}", done.stdout);
        assert!(done.stderr.contains(&format!("{ranks} ranks share GPU 0")), "{}", done.stderr);
        let (again, _) = results.train_with(ranks, &flags, &[("FAKE_CUDA_DELAYED", "1")]);
        assert_eq!(again, first, "{ranks} ranks: a repeat differs");
        let (ring, _) = results.train_with(ranks, &format!("{flags} --allreduce ring --no-overlap"), &[]);
        close(&ring, &whole, "ring");
    }
    let (apart, done) =
        results.train_with(2, &format!("{flags} --batch 8 --device cuda"), &[("FAKE_CUDA_DEVICES", "2")]);
    close(&apart, &whole, "a GPU each");
    assert!(!done.stderr.contains("share GPU"), "{}", done.stderr);
}

#[test]
fn a_run_goes_on_where_it_stopped_also_on_another_device() {
    let mut results = Results::new();
    let flags = format!("--model mnist_small --data {DIGITS} --batch 8 --optimizer adam --lr 0.001");
    let whole = results.losses(1, &format!("{flags} --device cuda --steps 6"));
    let cpu = results.losses(1, &format!("{flags} --device cpu --steps 6"));
    for (first, second, expected) in
        [("cuda", "cuda", &whole), ("cuda", "cpu", &cpu), ("cpu", "cuda", &whole)]
    {
        let kept = results.path().with_extension("checkpoints");
        let flags = format!("{flags} --checkpoint {} --resume auto", kept.display());
        let begun = results.losses(1, &format!("{flags} --device {first} --steps 3"));
        // The record of the first part goes on: all steps are in it.
        let path = results.directory.path().join(format!("run{}.h5", results.runs));
        let flags = format!("{flags} --device {second} --steps 6 --warmup 0 --results {}", path.display());
        let flags: Vec<&str> = flags.split_whitespace().collect();
        let done = finish(with_cuda(job::job(&[(1, &flags)]), &[], results.directory.path()));
        assert!(done.success, "{}{}", done.stdout, done.stderr);
        let all = series(&path, "steps/loss");
        assert_eq!(all[..3], begun);
        match first == second {
            true => assert_eq!(all, **expected, "another course on the GPU"),
            false => close(&all, expected, &format!("{first}, then {second}")),
        }
    }
}

#[test]
fn what_a_gpu_run_lacks_is_said_before_anything_is_done() {
    let cuda = "--model mnist_small --steps 1 --device cuda";
    let path = fake_cuda::libraries().to_str().unwrap();
    for (flags, variables, words) in [
        (cuda.to_string(), vec![("FAKE_CUDA_DEVICES", "0")], vec!["sees no GPU", "--device cpu"]),
        (cuda.into(), vec![("FAKE_CUDNN_VERSION", "8907")], vec!["cuDNN 8.9.7", "needs 9"]),
        (cuda.into(), vec![("FAKE_CUDA_DRIVER", "11080")], vec!["CUDA 11.8", "CUDA 12.0 or newer"]),
        (format!("{cuda}:1"), vec![], vec!["--device cuda:1", "one GPU, number 0"]),
        (format!("{cuda}:7"), vec![("FAKE_CUDA_DEVICES", "2")], vec!["2 GPUs, 0 to 1"]),
        (
            format!("{cuda} --precision bf16"),
            vec![("FAKE_CUDA_CAPABILITY", "60")],
            vec!["sm_80 or newer", "sm_60"],
        ),
        (format!("{cuda} --compress 1bit"), vec![], vec!["--compress", "--device cuda"]),
        (
            "--model vgg16 --classes 10 --steps 1 --device cuda --image-size 32 --batch 512".into(),
            vec![("FAKE_CUDA_MEMORY", "5000000000")],
            vec!["--batch 512 needs", "free on the rank's GPU", "the largest --batch that fits is"],
        ),
    ] {
        let message = refused(2, &flags, &variables);
        words.iter().for_each(|word| assert!(message.contains(word), "{flags} {variables:?}: {message}"));
    }
    // Without any of it, and with a driver but none of the rest.
    let nothing = tempfile::tempdir().unwrap();
    let none = refused(1, cuda, &[("DLTRAIN_CUDA_PATH", nothing.path().to_str().unwrap())]);
    if dltrain::device::cuda::probe().is_err() {
        assert!(none.contains("no CUDA driver library"), "{none}");
        std::os::unix::fs::symlink(Path::new(path).join("libcuda.so.1"), nothing.path().join("libcuda.so.1"))
            .unwrap();
        let driver_only = refused(1, cuda, &[("DLTRAIN_CUDA_PATH", nothing.path().to_str().unwrap())]);
        let words = ["no cuDNN 9 (libcudnn.so.9)", "DLTRAIN_CUDA_PATH", "--device cpu runs without"];
        words.iter().for_each(|word| assert!(driver_only.contains(word), "{driver_only}"));
    }
    for (flags, word) in [
        ("--device gpu", "cuda:N"),
        ("--device cuda:x", "cuda:N"),
        ("--device cpu --precision tf32", "--device cuda"),
    ] {
        let message = refused(1, flags, &[]);
        assert!(message.contains(word), "{message}");
    }
}

/// The last call of every name fails in turn; what only frees is the exception, since nobody could be told.
#[test]
fn a_call_that_fails_ends_the_job_with_its_name() {
    let directory = tempfile::tempdir().unwrap();
    let flags = "--model mnist_small --batch 1 --steps 2 --warmup 0 --device cuda --threads 1 --results";
    let run = |number: usize, variables: &[(&str, &str)]| {
        let mut command = Command::new(DLTRAIN);
        command.args(flags.split_whitespace()).arg(directory.path().join(format!("{number}.h5")));
        // The choice of algorithms is a call of its own only where none is kept.
        let cache = directory.path().join(number.to_string());
        finish(with_cuda(command, variables, &cache))
    };
    let log = directory.path().join("calls");
    let done = run(0, &[("FAKE_CUDA_LOG", log.to_str().unwrap())]);
    assert!(done.success, "{}{}", done.stdout, done.stderr);
    let file = std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().path());
    let file = file
        .into_iter()
        .find(|path| path.file_name().unwrap().to_str().unwrap().starts_with("calls."))
        .unwrap();
    let mut last: BTreeMap<String, usize> = BTreeMap::new();
    for line in std::fs::read_to_string(file).unwrap().lines() {
        if let [_, name, count] = line.split_whitespace().collect::<Vec<_>>()[..]
            && let Ok(count) = count.parse()
        {
            last.insert(name.into(), count);
        }
    }
    assert!(last.len() > 30, "{last:?}");
    let frees = ["Destroy", "Free", "Release", "Unload", "Unregister"];
    // A double may count a call as one of another name too: only ours are meant.
    let ours = include_str!("../src/device/cuda/README.md");
    let ours: Vec<&str> = ours.split_whitespace().collect();
    let names = last
        .iter()
        .filter(|(name, _)| ours.contains(&name.as_str()) && !frees.iter().any(|word| name.contains(word)));
    for (number, (name, count)) in names.enumerate() {
        let done = run(1 + number, &[("FAKE_CUDA_FAIL", &format!("{name}:{count}"))]);
        assert!(!done.success, "{name} failed, and nobody noticed: {}", done.stdout);
        let said = done.stderr.lines().any(|line| line.contains("error: ") && line.contains(name.as_str()));
        assert!(said, "{name}: {}", done.stderr);
    }
}
