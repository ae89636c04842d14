//! A job that can be stopped at any moment. What a user relies on:
//!
//! 1. two halves are one whole, bit for bit: every optimizer, moving average, clipping, dropout, batch normalisation,
//!    accumulation, bf16, compression, synthetic images; on another number of ranks to rounding;
//! 2. what cannot go on is refused, with every reason; what is damaged is passed over, and said;
//! 3. signals and the time limit end a run within seconds, with a checkpoint and a code of their own;
//! 4. a run whose ranks are killed at random moments, and while a checkpoint is written, comes to the same result, and
//!    its record has no gap;
//! 5. a full, read-only or vanished directory costs checkpoints, not the training; a broken state is never kept.

use crate::support::cases::first;
use crate::support::digits::few_tests;
use crate::support::job::{self, arrays};
use crate::support::residual::residual;
use crate::support::scratch::Scratch;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use dltrain::random::Stream;
use job::{DLTRAIN, Finished, finish, job, refused, run, series};

/// Steps of 2 × 100 images: seven an epoch, so that runs of a dozen meet an epoch's end and its evaluation.
const SMALL: &str = "--batch 100 --threads 1";

impl Scratch {
    /// On the digits.
    fn flags(&self, words: &str) -> Vec<String> {
        self.words(&format!("--data {} {words}", few_tests()))
    }

    fn job(&self, ranks: usize, words: &str) -> Command {
        let flags = self.flags(words);
        job(&[(ranks, &flags.iter().map(String::as_str).collect::<Vec<_>>())])
    }

    fn run(&self, ranks: usize, words: &str) -> String {
        let flags = self.flags(words);
        run(ranks, &flags.iter().map(String::as_str).collect::<Vec<_>>())
    }

    fn refused(&self, ranks: usize, words: &str) -> String {
        let flags = self.flags(words);
        refused(&[(ranks, &flags.iter().map(String::as_str).collect::<Vec<_>>())])
    }

    /// One rank without a launcher, whose exit code is the program's own.
    fn alone(&self, words: &str) -> Command {
        let mut command = Command::new(DLTRAIN);
        command.args(self.flags(words)).stdin(Stdio::null());
        command
    }
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<String> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

// ---- 1. two halves are one whole ---------------------------------------------------------------------

/// A run of twice as many steps, and one that goes on at its middle in files of its own.
fn halves_make_a_whole(ranks: usize, words: &str, steps: usize) {
    let scratch = Scratch::new();
    let half = steps / 2;
    let every = format!("--checkpoint-every {half}steps --checkpoint-keep 9");
    let words = format!("{words} --steps {steps} --warmup 0 {every}");
    scratch.run(ranks, &format!("{words} --results DIR/whole.h5 --checkpoint DIR/whole"));
    let resume = format!("--resume DIR/whole/step-{half:08}.h5");
    scratch.run(ranks, &format!("{words} --results DIR/rest.h5 --checkpoint DIR/rest {resume}"));
    for name in ["steps/step", "steps/loss", "steps/learning_rate", "steps/images"] {
        let whole = series(&scratch.path("whole.h5"), name);
        assert_eq!(whole.len(), steps);
        assert_eq!(whole[half..], series(&scratch.path("rest.h5"), name), "{words}: {name}");
    }
    for name in ["epochs/train_loss", "epochs/test_loss", "epochs/test_accuracy"] {
        let (whole, rest) = (series(&scratch.path("whole.h5"), name), series(&scratch.path("rest.h5"), name));
        assert!(whole.ends_with(&rest) && rest.is_empty() == whole.is_empty(), "{words}: {name}");
    }
    let last = format!("step-{steps:08}.h5");
    let [whole, rest] = ["whole", "rest"].map(|directory| arrays(&scratch.path(directory).join(&last)));
    assert!(whole.len() > 4 && whole == rest, "{words}: the last checkpoints differ");
}

#[test]
fn with_every_optimizer() {
    let optimizers = [
        "sgd --momentum 0.9 --nesterov --clip-norm 0.5",
        "adam --ema 0.9",
        "lamb",
        "adamw --lr-schedule cosine --lr-warmup 1",
        "rmsprop",
        "rmsprop-tf --lr 0.001",
        "lars --lr 0.1",
    ];
    for optimizer in first(3, optimizers) {
        // mnist_net has dropout.
        halves_make_a_whole(2, &format!("{SMALL} --model mnist_net --optimizer {optimizer}"), 12);
    }
}

#[test]
fn with_batch_normalisation_accumulation_recomputation_and_shared_statistics() {
    let model = format!("{} --batch 24 --threads 1 --optimizer sgd --lr 0.01", residual());
    let all =
        [" --batch 12 --accumulation 2 --recompute --allreduce ring --sync-bn", " --batch 16 --sync-bn", ""];
    for more in first(1, all) {
        halves_make_a_whole(2, &format!("{model}{more}"), 6);
    }
}

/// Residuals are each rank's own; factors are warm.
#[test]
fn with_compressed_gradients() {
    for scheme in ["topk:0.1", "powersgd:2"] {
        halves_make_a_whole(2, &format!("{SMALL} --model mnist_net --optimizer sgd --compress {scheme}"), 8);
    }
}

#[test]
fn with_more_threads_and_in_bf16() {
    halves_make_a_whole(1, "--model mnist_small --batch 100 --threads 2", 12);
    if !dltrain::device::onednn::isa().unwrap().has_bf16() {
        println!("SKIPPED: this CPU has no bf16 arithmetic");
        return;
    }
    halves_make_a_whole(2, &format!("{SMALL} --model mnist_net --precision bf16"), 12);
}

#[test]
fn with_synthetic_images() {
    let scratch = Scratch::new();
    let flags = "--model mnist_net --batch 8 --accumulation 2 --threads 1 --checkpoint-every 6steps";
    let directory = scratch.directory().to_str().unwrap();
    let train = |words: &str| {
        let words = format!("{flags} --warmup 2 {words}").replace("DIR", directory);
        run(2, &words.split_whitespace().collect::<Vec<_>>());
    };
    train("--steps 10 --results DIR/whole.h5 --checkpoint DIR/c");
    train("--steps 10 --results DIR/rest.h5 --resume DIR/c/step-00000006.h5");
    let whole = series(&scratch.path("whole.h5"), "steps/loss");
    assert_eq!(whole[6..], series(&scratch.path("rest.h5"), "steps/loss"));
}

/// A finished run can be made longer: `--steps 6`, then `--steps 12` in the same files, is one of 12.
#[test]
fn a_run_made_longer_goes_on_in_the_same_record() {
    let scratch = Scratch::new();
    let flags = format!("{SMALL} --model mnist_net --optimizer sgd --lr 0.01");
    scratch.run(2, &format!("{flags} --steps 6 --results DIR/whole.h5"));
    for steps in [3, 3, 6] {
        let files = "--results DIR/parts.h5 --checkpoint DIR/c --resume auto";
        scratch.run(2, &format!("{flags} --steps {steps} {files}"));
    }
    for name in ["steps/step", "steps/loss", "epochs/epoch", "epochs/test_loss", "epochs/train_loss"] {
        let parts = series(&scratch.path("parts.h5"), name);
        assert_eq!(series(&scratch.path("whole.h5"), name), parts, "{name}");
    }
}

/// Without dropout only the order of additions differs, and only from the seam on: as in tests/training.rs far below
/// 1e-4.
#[test]
fn on_another_number_of_ranks_to_rounding() {
    let scratch = Scratch::new();
    let flags = "--model mnist_small --threads 1 --optimizer sgd --momentum 0.9 --lr 0.01 --lr-schedule cosine --steps 20";
    scratch.run(
        2,
        &format!("{flags} --batch 60 --results DIR/two.h5 --checkpoint DIR/c --checkpoint-keep 9 --checkpoint-every 7steps"),
    );
    let two = series(&scratch.path("two.h5"), "steps/loss");
    for (ranks, batch) in [(1, 120), (3, 40)] {
        let words =
            format!("{flags} --batch {batch} --results DIR/{ranks}.h5 --resume DIR/c/step-00000007.h5");
        let said = scratch.run(ranks, &words);
        assert!(said.contains(&format!("2 ranks then, {ranks} now")), "{said}");
        let other = series(&scratch.path(&format!("{ranks}.h5")), "steps/loss");
        assert_eq!(other.len(), 13);
        for (step, (a, b)) in two[7..].iter().zip(&other).enumerate() {
            assert!((a - b).abs() < 1e-4, "{ranks} ranks, step {}: {a} and {b}", step + 7);
        }
    }
}

/// With one global batch for any number of ranks: three, then two, then three again, with as many images an epoch.
#[test]
fn a_global_batch_outlives_a_change_of_ranks() {
    let scratch = Scratch::new();
    let digits = concat!(env!("CARGO_MANIFEST_DIR"), "/data/digits");
    let flags = format!(
        "--model mnist_small --data {digits} --threads 1 --optimizer sgd --momentum 0.9 --lr 0.01 --lr-schedule cosine \
         --global-batch 64 --batch 32 --epochs 2 --checkpoint-keep 99 --checkpoint-every 7steps"
    );
    scratch.run(3, &format!("{flags} --results DIR/whole.h5 --checkpoint DIR/c"));
    let whole = ["steps/loss", "steps/images"].map(|name| series(&scratch.path("whole.h5"), name));
    assert!(whole[0].len() == 44 && whole[1].iter().all(|&images| images == 64.0), "{:?}", whole[1]);
    scratch
        .run(2, &format!("{flags} --results DIR/two.h5 --checkpoint DIR/d --resume DIR/c/step-00000014.h5"));
    scratch.run(3, &format!("{flags} --results DIR/three.h5 --resume DIR/d/step-00000028.h5"));
    for (name, done) in [("two", 14), ("three", 28)] {
        let [losses, images] =
            ["steps/loss", "steps/images"].map(|what| series(&scratch.path(&format!("{name}.h5")), what));
        assert_eq!(images[..], whole[1][done..], "{name}");
        for (step, (a, b)) in whole[0][done..].iter().zip(&losses).enumerate() {
            assert!((a - b).abs() < 1e-4, "{name} ranks, step {}: {a} and {b}", step + done);
        }
    }
    let message = scratch.refused(3, "--model mnist_small --global-batch 2 --steps 1");
    assert!(message.contains("3 ranks need at least an image each"), "{message}");
    let message = scratch.refused(1, "--model mnist_small --global-batch 2 --accumulation 2 --steps 1");
    assert!(message.contains("--global-batch") && message.contains("--accumulation"), "{message}");
}

// ---- 2. what is refused, and what is passed over ------------------------------------------------------

#[test]
fn another_run_is_refused_with_every_difference_and_files_are_not_overwritten() {
    let scratch = Scratch::new();
    let flags = format!("{SMALL} --model mnist_net --steps 4 --checkpoint DIR/c");
    let said = scratch.run(1, &format!("{flags} --results DIR/a.h5 --resume auto"));
    assert!(said.contains("no checkpoint in") && said.contains("starting at the beginning"), "{said}");
    let other = "--model mnist_small --optimizer sgd --seed 2 --ema 0.9 --results DIR/b.h5 --resume auto";
    let message = scratch.refused(2, &format!("{flags} {other}"));
    for named in [
        "--model mnist_net there, mnist_small here",
        "--optimizer adam there, sgd here",
        "--seed 1 there, 2 here",
        "--ema off there, on here",
    ] {
        assert!(message.contains(named), "{message}");
    }
    // The same directory for a run that starts afresh, and the record of another run.
    let message = scratch.refused(1, &format!("{flags} --results DIR/b.h5"));
    assert!(message.contains("the checkpoint of another run, which --resume auto continues"), "{message}");
    scratch.run(1, &format!("{SMALL} --model mnist_net --steps 4 --results DIR/other.h5"));
    let before = fs::read(scratch.path("other.h5")).unwrap();
    let message = scratch.refused(1, &format!("{flags} --results DIR/other.h5 --resume auto"));
    assert!(message.contains("the record of another run"), "{message}");
    assert_eq!(fs::read(scratch.path("other.h5")).unwrap(), before);
    let message = scratch.refused(1, &format!("{SMALL} --resume auto"));
    assert!(message.contains("--resume auto needs --checkpoint"), "{message}");
    // What may change is said.
    let said = scratch.run(1, &format!("{flags} --results DIR/a.h5 --resume auto --steps 6 --lr 0.002"));
    assert!(said.contains("changed: rate.base 0.001 then, 0.002 now"), "{said}");
    assert_eq!(said.matches("changed:").count(), 1, "{said}");
}

#[test]
fn damaged_checkpoints_are_passed_over_and_named() {
    let scratch = Scratch::new();
    let flags = format!("{SMALL} --model mnist_net --steps 12 --checkpoint-every 3steps --checkpoint-keep 9");
    scratch.run(2, &format!("{flags} --results DIR/a.h5 --checkpoint DIR/c"));
    let path = |step| scratch.path(&format!("c/step-{step:08}.h5"));
    let whole = series(&scratch.path("a.h5"), "steps/loss");
    let mut bytes = fs::read(path(12)).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(path(12), &bytes).unwrap();
    bytes.truncate(middle);
    fs::write(path(9), &bytes).unwrap();
    let again = scratch.job(2, &format!("{flags} --results DIR/a.h5 --checkpoint DIR/c --resume auto"));
    let Finished { success, stdout, stderr, .. } = finish(again);
    assert!(success, "{stderr}");
    for said in
        ["step-00000012.h5: is damaged: its checksum", "step-00000009.h5: is truncated", "Going back to"]
    {
        assert!(stderr.contains(said), "{said}: {stderr}");
    }
    // Step 7 was the end of an epoch, with the best accuracy by then.
    assert!(stdout.contains("going on after step 7"), "{stdout}");
    assert_eq!(series(&scratch.path("a.h5"), "steps/loss"), whole);
    assert!(names(&scratch.path("c")).contains(&"step-00000012.h5.damaged".to_string()));
    let message = scratch.refused(1, &format!("{flags} --resume DIR/c/step-00000012.h5.damaged"));
    assert!(message.contains("is damaged"), "{message}");
}

// ---- 3. signals and time ------------------------------------------------------------------------------

/// A job under way, whose processes can be found.
struct Running(Child, job::Watch);

impl Running {
    fn spawn(command: &mut Command) -> Running {
        let (child, watch) = job::spawn(command, job::limit());
        Running(child, watch)
    }

    /// Starts it and waits until it has recorded more than so many steps.
    fn start(mut command: Command, results: &Path, steps: usize) -> Running {
        let mut running = Running::spawn(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
        while recorded(results) <= steps {
            assert_eq!(running.0.try_wait().unwrap(), None, "ended by itself");
            std::thread::sleep(Duration::from_millis(10));
        }
        running
    }

    /// The processes of the ranks: those of this program below the one that was started.
    fn ranks(&self) -> Vec<i32> {
        let mut found = vec![self.0.id() as i32];
        let mut ranks = Vec::new();
        let parents: Vec<(i32, i32, String)> = processes();
        while let Some(parent) = found.pop() {
            for (process, above, name) in &parents {
                if *above == parent {
                    found.push(*process);
                    if name == "dltrain" {
                        ranks.push(*process);
                    }
                }
            }
        }
        ranks.sort_unstable();
        ranks
    }

    /// Waits until a checkpoint is half-written; not if the run ends before.
    fn comes_to_write(&mut self, directory: &Path) -> bool {
        while self.0.try_wait().unwrap().is_none() {
            let mut entries = fs::read_dir(directory).into_iter().flatten().flatten();
            if entries.any(|entry| entry.file_name().to_string_lossy().ends_with(".tmp")) {
                return true;
            }
        }
        false
    }

    /// Waits for the end: success, standard output and error.
    fn end(self) -> (Option<i32>, String, String) {
        let output = self.0.wait_with_output().unwrap();
        assert_eq!(self.1.ended(), None, "ended at its limit");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    }
}

/// (process, its parent, name) of every process.
fn processes() -> Vec<(i32, i32, String)> {
    let numbers = fs::read_dir("/proc").unwrap().flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let stat = |process: i32| {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        let (head, tail) = stat.rsplit_once(')')?;
        let parent = tail.split_whitespace().nth(1)?.parse().ok()?;
        Some((process, parent, head.split_once('(')?.1.to_string()))
    };
    numbers.filter_map(stat).collect()
}

fn signal(name: &str, process: i32) {
    let sent = Command::new("kill").args([&format!("-{name}"), &process.to_string()]).status().unwrap();
    assert!(sent.success());
}

const LONG: &str = "--threads 1 --model mnist_net --batch 100 --checkpoint DIR/c --checkpoint-every 20steps";

#[test]
fn a_signal_to_any_rank_ends_all_with_a_checkpoint_and_the_run_goes_on_from_it() {
    let scratch = Scratch::new();
    let mut steps = 0;
    for (name, rank) in [("TERM", 0), ("USR1", 1), ("INT", 1)] {
        let words = format!("{LONG} --epochs 100000 --results DIR/a.h5 --resume auto");
        let running = Running::start(scratch.job(2, &words), &scratch.path("a.h5"), steps);
        let ranks = running.ranks();
        assert_eq!(ranks.len(), 2);
        let begun = Instant::now();
        signal(name, ranks[rank]);
        let (code, stdout, stderr) = running.end();
        assert!(begun.elapsed() < job::SECONDS, "{:?}", begun.elapsed());
        assert!(code != Some(0), "{stdout}");
        let said: Vec<&str> = stderr.lines().filter(|line| line.starts_with("dltrain: stopped by")).collect();
        assert!(said.len() == 1 && said[0].contains(&format!("SIG{name} after")), "{stderr}");
        let rows = series(&scratch.path("a.h5"), "steps/step");
        assert!(rows.len() > steps && rows.iter().enumerate().all(|(i, &row)| row == i as f64));
        let newest = names(&scratch.path("c")).into_iter().rfind(|name| name.starts_with("step-")).unwrap();
        assert_eq!(newest, format!("step-{:08}.h5", rows.len()));
        steps = rows.len();
    }
    // All of it in one go gives the same.
    let words = format!("{SMALL} --model mnist_net --batch 100 --steps {steps} --results DIR/whole.h5");
    scratch.run(2, &words);
    let [parts, whole] = ["a.h5", "whole.h5"].map(|name| series(&scratch.path(name), "steps/loss"));
    assert_eq!(parts, whole);
}

/// Ranks at steps of their own, in order of arrival: they drain behind one step that none has done yet.
#[test]
fn a_signal_to_a_rank_of_asynchronous_updates_drains_them() {
    let scratch = Scratch::new();
    let mut steps = 0;
    // In the last job all ranks are told, and two of them are servers.
    for (name, rank, servers) in [("USR1", Some(1), 1), ("TERM", Some(2), 1), ("USR1", None, 2)] {
        let words =
            format!("{LONG} --epochs 100000 --sync server-async:{servers} --results DIR/a.h5 --resume auto");
        let running = Running::start(scratch.job(2 + servers, &words), &scratch.path("a.h5"), steps);
        let ranks = running.ranks();
        let told = rank.map_or(ranks.clone(), |rank| vec![ranks[rank]]);
        told.into_iter().for_each(|rank| signal(name, rank));
        let (code, stdout, stderr) = running.end();
        assert!(code != Some(0), "{stdout}");
        assert!(stderr.contains(&format!("stopped by SIG{name} after")), "{stderr}");
        let rows = series(&scratch.path("a.h5"), "steps/step");
        assert!(rows.len() > steps && rows.iter().enumerate().all(|(i, &row)| row == i as f64));
        steps = rows.len();
        assert!(scratch.path(&format!("c/step-{steps:08}.h5")).exists());
        // Whatever they had done when it came, all of it is in the record.
        let images: f64 = series(&scratch.path("a.h5"), "steps/images").iter().sum();
        assert_eq!(images, (200 * steps) as f64);
    }
}

/// Steps in a file that is being written.
fn recorded(path: &Path) -> usize {
    let open = || hdf5::File::open_as(path, hdf5::OpenMode::ReadSWMR).ok()?.dataset("steps/step").ok();
    open().map_or(0, |steps| steps.size())
}

/// A kernel that keeps an address in the stack pointer would have a handler's frame in the heap: a run that was told to
/// stop broke now and then.
#[test]
fn signals_do_not_come_to_the_thread_that_computes() {
    let scratch = Scratch::new();
    let words = format!("{LONG} --epochs 100000 --results DIR/a.h5");
    let running = Running::start(scratch.alone(&words), &scratch.path("a.h5"), 0);
    let process = running.0.id();
    let blocked = |task: &Path| {
        let status = fs::read_to_string(task.join("status")).unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
        let mask = u64::from_str_radix(mask.trim(), 16).unwrap();
        [libc::SIGTERM, libc::SIGINT, libc::SIGUSR1, libc::SIGHUP].map(|signal| mask >> (signal - 1) & 1 == 1)
    };
    let tasks = PathBuf::from(format!("/proc/{process}/task"));
    assert_eq!(blocked(&tasks.join(process.to_string())), [true; 4]);
    let named =
        |task: &PathBuf| fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == "signals");
    let handler = fs::read_dir(&tasks).unwrap().map(|task| task.unwrap().path()).find(named).unwrap();
    assert_eq!(blocked(&handler), [false; 4]);
    signal("TERM", process as i32);
    assert_eq!(running.end().0, Some(75));
}

#[test]
fn the_exit_code_tells_a_stop_from_a_failure() {
    let scratch = Scratch::new();
    let words = format!("{LONG} --epochs 100000 --results DIR/a.h5 --resume auto");
    let results = scratch.path("a.h5");
    let running = Running::start(scratch.alone(&words), &results, 0);
    signal("TERM", running.0.id() as i32);
    let (code, _, stderr) = running.end();
    assert_eq!(code, Some(75), "{stderr}");
    // Told twice it goes at once, if need be without a word.
    let running = Running::start(scratch.alone(&words), &results, recorded(&results));
    signal("INT", running.0.id() as i32);
    signal("INT", running.0.id() as i32);
    let (code, ..) = running.end();
    assert!(matches!(code, Some(75 | 130)), "{code:?}");
    // A checkpoint is not needed to be told to stop, but to stop at the end of the job.
    let mut plain = scratch.alone("--model mnist_net --epochs 100000 --results DIR/b.h5");
    plain.env("SLURM_JOB_END_TIME", "1000000000");
    let running = Running::start(plain, &scratch.path("b.h5"), 0);
    signal("USR1", running.0.id() as i32);
    let (code, _, stderr) = running.end();
    assert!(code == Some(75) && stderr.contains("without --checkpoint"), "{code:?} {stderr}");
}

#[test]
fn the_time_limit_and_the_end_of_the_slurm_job_stop_in_time() {
    let scratch = Scratch::new();
    let words =
        "--model mnist_net --threads 1 --epochs 100000 --checkpoint DIR/c --resume auto --results DIR/a.h5";
    let limited = || scratch.job(2, &format!("{words} --time-limit 00:00:07"));
    let in_slurm = || {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        let mut command = scratch.alone(words);
        command.env("SLURM_JOB_END_TIME", (now + 10).to_string());
        command
    };
    let mut steps = 0;
    let slurm = "the end of the Slurm job (SLURM_JOB_END_TIME)";
    let runs: [(&dyn Fn() -> std::process::Command, &str); 2] =
        [(&limited, "the time limit"), (&in_slurm, slurm)];
    for (run, by) in runs {
        let done = finish(run());
        assert!(!done.success && done.stderr.contains(&format!("stopped by {by} after")), "{}", done.stderr);
        assert!(done.took < job::SECONDS, "{:?}", done.took);
        let rows = series(&scratch.path("a.h5"), "steps/step");
        assert!(rows.len() > steps);
        steps = rows.len();
        assert!(scratch.path(&format!("c/step-{steps:08}.h5")).exists());
    }
}

// ---- 4. killed ranks ----------------------------------------------------------------------------------

/// Kills ranks at random moments until the run has come to its end, so many times over.
fn survives_kills(times: usize) {
    let scratch = Scratch::new();
    let flags = "--threads 1 --model mnist_net --batch 16 --optimizer adam --ema 0.99 --steps 60 --seed 3";
    let begun = Instant::now();
    scratch
        .run(2, &format!("{flags} --results DIR/whole.h5 --checkpoint DIR/first --checkpoint-every 2steps"));
    let undisturbed = begun.elapsed();
    let expected = ["steps/loss", "epochs/test_loss", "epochs/train_loss"];
    let expected = expected.map(|name| (name, series(&scratch.path("whole.h5"), name)));
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().subsec_nanos();
    let seed = std::env::var("DLTRAIN_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(clock);
    println!("DLTRAIN_TEST_SEED={seed}");
    let mut stream = Stream::new([seed, 0]);
    let (mut kills, mut writing) = (0, 0);
    for run in 0.. {
        if kills >= times {
            break;
        }
        let words = format!(
            "{flags} --results DIR/{run}.h5 --checkpoint DIR/{run} --checkpoint-every 2steps --resume auto"
        );
        // At least one kill a run, unless it was faster; then on to the end.
        for _ in 0..3 {
            let mut command = scratch.job(2, &words);
            let mut running = Running::spawn(command.stdout(Stdio::null()).stderr(Stdio::null()));
            std::thread::sleep(undisturbed.mul_f32(stream.uniform()));
            let ranks = running.ranks();
            if let Some(first) = ranks.first().filter(|_| running.0.try_wait().unwrap().is_none()) {
                let mut victim = ranks[stream.below(ranks.len() as u32) as usize];
                // One in two: the rank that writes checkpoints, while it writes one.
                if kills % 2 == 1 && running.comes_to_write(&scratch.path(&run.to_string())) {
                    (victim, writing) = (*first, writing + 1);
                }
                let _ = Command::new("kill").args(["-9", &victim.to_string()]).status();
                kills += 1;
            }
            let _ = running.0.wait();
        }
        scratch.run(2, &words);
        for (name, whole) in &expected {
            assert_eq!(series(&scratch.path(&format!("{run}.h5")), name), *whole, "run {run}: {name}");
        }
        assert!(!names(&scratch.path(&run.to_string())).iter().any(|name| name.ends_with(".tmp")));
    }
    println!("{kills} kills, {writing} of them while a checkpoint was written");
}

#[test]
fn killed_ranks_cost_nothing_but_time() {
    survives_kills(2);
}

mod full {
    #[test]
    #[ignore = "minutes: make test-full"]
    fn twenty_kills_cost_nothing_but_time() {
        super::survives_kills(20);
    }
}

// ---- 5. what the disk does, and NaN -------------------------------------------------------------------

/// A file system of its own for a test; `None` where this user may not mount one.
struct Mount(PathBuf);

impl Mount {
    fn new(at: PathBuf, options: &str) -> Option<Mount> {
        fs::create_dir(&at).unwrap();
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", options, "dltrain-test"]).arg(&at).output();
        if mounted.is_ok_and(|output| output.status.success()) {
            return Some(Mount(at));
        }
        println!("SKIPPED: this user may not mount a file system");
        None
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_costs_checkpoints_not_the_training() {
    let scratch = Scratch::new();
    let flags =
        "--threads 1 --model mnist_small --batch 100 --steps 12 --results DIR/a.h5 --checkpoint DIR/c";
    // Room for one checkpoint of 4.8 MB, not for two.
    let Some(_mount) = Mount::new(scratch.path("c"), "size=7m") else { return };
    let done = finish(scratch.alone(&format!("{flags} --checkpoint-every 4steps")));
    assert!(!done.success && done.stdout.contains("total images/sec"), "{}\n{}", done.stdout, done.stderr);
    assert!(done.stderr.contains("No space left on device") && done.stderr.contains("training goes on"));
    assert_eq!(series(&scratch.path("a.h5"), "steps/step").len(), 12);
    assert_eq!(names(&scratch.path("c")), ["step-00000004.h5"]);
    let resumed = scratch.alone(&format!("{flags} --resume auto --checkpoint-every 100steps"));
    assert!(finish(resumed).stdout.contains("going on after step 4"));
}

#[test]
fn a_directory_that_cannot_be_written_is_said_before_training() {
    let scratch = Scratch::new();
    let flags = format!("{SMALL} --model mnist_net --results DIR/a.h5");
    let message = scratch.refused(2, &format!("{flags} --checkpoint DIR/no/such"));
    assert!(message.contains("cannot make the directory"), "{message}");
    let Some(_mount) = Mount::new(scratch.path("c"), "ro") else { return };
    let message = scratch.refused(2, &format!("{flags} --checkpoint DIR/c"));
    assert!(message.contains("cannot be written") && message.contains("Read-only"), "{message}");
    assert!(!scratch.path("a.h5").exists());
}

#[test]
fn a_directory_that_vanishes_costs_checkpoints_not_the_training() {
    let scratch = Scratch::new();
    let words = "--threads 1 --model mnist_net --batch 64 --checkpoint DIR/c --checkpoint-every 100steps";
    let running =
        Running::start(scratch.alone(&format!("{words} --results DIR/a.h5")), &scratch.path("a.h5"), 0);
    fs::rename(scratch.path("c"), scratch.path("gone")).unwrap();
    let (code, stdout, stderr) = running.end();
    assert_eq!(code, Some(8), "{stderr}");
    assert!(stdout.contains("total images/sec") && stderr.contains("No such file or directory"), "{stderr}");
    assert_eq!(series(&scratch.path("a.h5"), "steps/step").len(), 30 * 22);
}

#[test]
fn a_broken_state_is_never_kept() {
    let scratch = Scratch::new();
    let flags = "--threads 1 --model mnist_net --batch 100 --optimizer sgd --checkpoint DIR/c --checkpoint-every 1steps";
    scratch.run(1, &format!("{flags} --steps 3 --results DIR/a.h5"));
    let broken = scratch.alone(&format!("{flags} --steps 30 --lr 1e30 --results DIR/a.h5 --resume auto"));
    let done = finish(broken);
    assert!(!done.success && done.stderr.contains("not"), "{}", done.stderr);
    for name in names(&scratch.path("c")).iter().filter(|name| name.starts_with("step-")) {
        for (array, bits) in arrays(&scratch.path("c").join(name)) {
            assert!(bits.iter().all(|&bits| f32::from_bits(bits).is_finite()), "{name}: {array}");
        }
    }
}

// ---- commits: the state in memory of the nodes ---------------------------------------------------------

/// Files of commits that this machine has for a directory of checkpoints.
fn commits(checkpoints: &Path) -> Vec<PathBuf> {
    let key = dltrain::files::fnv1a(checkpoints.as_os_str().as_encoded_bytes().iter().copied());
    let mine = |path: &PathBuf| path.to_string_lossy().ends_with(&format!("-{key:016x}"));
    let all = fs::read_dir("/dev/shm").unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = all
        .filter(mine)
        .flat_map(|directory| fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()))
        .collect();
    files.sort();
    files
}

/// Killed in the middle of a run that has written one checkpoint, at its beginning: what was committed last is what it
/// goes on from, and nothing is left of it in the end.
#[test]
fn a_killed_run_goes_on_at_its_last_commit() {
    for strategy in first(1, ["", "--local-steps 3", "--sync root"]) {
        let scratch = Scratch::new();
        let words = format!(
            "--model mnist_small --batch 8 --threads 1 --optimizer adam --warmup 0 --steps 60 --commit 5 {strategy}"
        );
        scratch.run(
            2,
            &format!(
                "{words} --results DIR/whole.h5 --checkpoint DIR/w --save-weights DIR/whole.safetensors"
            ),
        );
        assert!(commits(&scratch.path("w")).is_empty(), "the end leaves nothing");
        let words = format!("{words} --results DIR/r.h5 --checkpoint DIR/c --resume auto");
        let job = scratch.job(2, &format!("{words} --steps 100000"));
        let running = Running::start(job, &scratch.path("r.h5"), 0);
        let committed = || {
            let step = |path: &PathBuf| path.file_stem()?.to_str()?.strip_prefix("step-")?.parse().ok();
            commits(&scratch.path("c")).iter().filter_map(step).max().unwrap_or(0)
        };
        let begun = Instant::now();
        while committed() < 10 {
            assert!(begun.elapsed() < job::SECONDS, "nothing is committed");
            std::thread::sleep(Duration::from_millis(2));
        }
        running.ranks().into_iter().for_each(|rank| signal("KILL", rank));
        running.end();
        let kept: u64 = committed();
        assert!(
            kept >= 10 && names(&scratch.path("c")) == [".owner", "step-00000000.h5"],
            "{:?}",
            names(&scratch.path("c"))
        );
        let more = (kept + 5).max(60);
        let said = scratch.run(2, &format!("{words} --steps {more} --save-weights DIR/rest.safetensors"));
        assert!(
            said.contains(&format!("going on after step {kept}, in epoch 1, from the memory of ")),
            "{said}"
        );
        assert!(commits(&scratch.path("c")).is_empty(), "the end leaves nothing");
        let [whole, rest] = ["whole.h5", "r.h5"].map(|name| series(&scratch.path(name), "steps/loss"));
        assert_eq!(rest.len() as u64, more);
        assert_eq!(whole[..], rest[..60], "{strategy}");
    }
}

/// Memory of the node that has no room costs commits, neither the training nor its checkpoints.
#[test]
fn memory_that_is_full_costs_commits_not_the_training() {
    let scratch = Scratch::new();
    let words = "--model mnist_small --batch 8 --threads 1 --steps 12 --commit 3 --checkpoint DIR/c --results DIR/r.h5";
    // A commit has 1.6 MB of parameters and twice that of the optimizer.
    let small = "mount -t tmpfs -o size=3m tmpfs /dev/shm && exec \"$@\"";
    let inner = scratch.alone(words);
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", small, "sh"]).arg(inner.get_program()).args(inner.get_args());
    if !Command::new("unshare").args(["--mount", "true"]).status().is_ok_and(|status| status.success()) {
        println!("SKIPPED: this user may not mount a file system");
        return;
    }
    // MPICH's UCX wants 4 MB there for messages within a node, of which one rank has none.
    command.env("UCX_TLS", "self,tcp");
    let done = finish(command);
    assert!(done.success && done.stdout.contains("total images/sec"), "{}\n{}", done.stdout, done.stderr);
    assert!(done.stderr.contains("No space left on device"), "{}", done.stderr);
    assert_eq!(series(&scratch.path("r.h5"), "steps/step").len(), 12);
    assert_eq!(names(&scratch.path("c")), ["step-00000012.h5"]);
}

/// What another run has left under the same name is not taken for this one's, nor what is damaged.
#[test]
fn commits_of_others_and_damaged_ones_are_passed_over() {
    let scratch = Scratch::new();
    let words = "--model mnist_small --batch 8 --threads 1 --warmup 0 --steps 40 --commit 5";
    let directory = scratch.path("c");
    let leave = |name: &str| {
        let words =
            format!("{words} --steps 100000 --results DIR/{name}.h5 --checkpoint DIR/c --resume auto");
        let running = Running::start(scratch.job(1, &words), &scratch.path(&format!("{name}.h5")), 0);
        let is_written = |path: &PathBuf| {
            let is_empty = fs::metadata(path).is_ok_and(|file| file.len() == 0);
            path.to_string_lossy().contains("step-000000") && !is_empty
        };
        while !commits(&directory).iter().any(is_written) {
            std::thread::sleep(Duration::from_millis(2));
        }
        running.ranks().into_iter().for_each(|rank| signal("KILL", rank));
        running.end();
    };
    leave("one");
    let left = commits(&directory);
    assert!(!left.is_empty());
    // Another run in a directory of this name.
    fs::remove_dir_all(&directory).unwrap();
    let said = scratch.run(1, &format!("{words} --results DIR/two.h5 --checkpoint DIR/c --resume auto"));
    assert!(said.contains("starting at the beginning") && commits(&directory).is_empty(), "{said}");
    fs::remove_dir_all(&directory).unwrap();
    leave("three");
    // The rank may have been killed between the next file's beginning and its first byte.
    let written = |path: &PathBuf| fs::metadata(path).unwrap().len() > 0;
    let files: Vec<PathBuf> = commits(&directory).into_iter().filter(written).collect();
    assert!(!files.is_empty());
    for path in files {
        let mut bytes = fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(&path, bytes).unwrap();
    }
    let said = scratch.run(1, &format!("{words} --results DIR/three.h5 --checkpoint DIR/c --resume auto"));
    assert!(said.contains("going on after step 0, in epoch 1, from"), "{said}");
    assert!(!said.contains("memory of") && commits(&directory).is_empty(), "{said}");
    let message = scratch.refused(1, "--model mnist_small --commit 5 --steps 1");
    assert!(message.contains("--checkpoint"), "{message}");
    let message =
        scratch.refused(3, "--model mnist_small --commit 5 --checkpoint DIR/s --sync server --steps 1");
    assert!(message.contains("--commit and --sync server"), "{message}");
}
