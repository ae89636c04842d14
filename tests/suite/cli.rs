//! Bad input and bad luck: one clear message, the whole job ends non-zero within seconds, nothing is overwritten.
//!
//! data files (missing, corrupt) · flags · impossible combinations · results that are there already or cannot be
//! written · ranks given different flags, data or programs · output that nobody gets · a loss that is not finite · a
//! rank killed · help and info

use crate::support::cases::each;
use crate::support::job;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use dltrain::error::ErrorKind;
use job::{DLTRAIN, SECONDS, refused, run};

const DIGITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/data/digits");

/// A copy of the digits that a test may damage.
fn copied_digits() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(DIGITS).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            fs::copy(&path, directory.path().join(path.file_name().unwrap())).unwrap();
        }
    }
    directory
}

fn file_with(directory: &Path, part: &str) -> std::path::PathBuf {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut found = entries.filter(|path| path.file_name().unwrap().to_str().unwrap().contains(part));
    found.next().unwrap_or_else(|| panic!("no {part}"))
}

#[test]
fn a_missing_or_damaged_data_file_is_named_once() {
    let message = refused(&[(2, &["--data", "/nowhere/at/all"])]);
    assert!(message.contains("/nowhere/at/all"), "{message}");
    let damaged = copied_digits();
    let images = file_with(damaged.path(), "train-images");
    let bytes = fs::read(&images).unwrap();
    fs::write(&images, &bytes[..bytes.len() / 2]).unwrap();
    let message = refused(&[(2, &["--data", damaged.path().to_str().unwrap()])]);
    assert!(message.contains("train-images"), "{message}");
}

#[test]
fn wrong_flags_and_impossible_combinations_are_named_once() {
    let cases = [
        (vec!["--model", "resnet51"], "resnet51"),
        (vec!["--bach", "3"], "--bach"),
        (vec!["--batch", "0"], "--batch 0"),
        (vec!["--batch", "many"], "many"),
        (vec!["--lr", "-1"], "--lr -1"),
        (vec!["--data", DIGITS, "--resume", "/nowhere.h5"], "/nowhere.h5: no such checkpoint"),
        (
            vec!["--data", DIGITS, "--resume", "/dev/zero"],
            "/dev/zero: cannot be read: a device, not a regular file",
        ),
        (vec!["--data", DIGITS, "--resume", DIGITS], "is a directory"),
        (vec!["--momentum", "1e300"], "1e300"),
        (vec!["--classes", "0"], "--classes 0"),
        (vec!["--data", DIGITS, "--classes", "5"], "use --classes 10 or more"),
        (vec!["--model", "alexnet", "--image-size", "20"], "layer features.5"),
        (
            vec!["--model", "vgg16", "--image-size", "16"],
            "the smallest edge (of pictures --image-size) that works is 32",
        ),
        (vec!["--model", "vgg16", "--batch", "40000"], "the largest --batch that fits is"),
        (vec!["--model", "vgg16", "--max-batch", "1MB"], "for the smallest batch"),
        (vec!["--max-batch", "16G"], "16GiB"),
        (vec!["--optimizer", "lbfgs"], "lbfgs"),
        (vec!["--precision", "f8"], "f8"),
        (vec!["--allreduce", "butterfly"], "butterfly"),
        (vec!["--allreduce", "mpi", "--wire", "bf16"], "--wire bf16"),
        (vec!["--optimizer", "lars", "--betas", "0.9", "0.99"], "--optimizer lars does not use it"),
        (vec!["--clip-norm", "0"], "--clip-norm 0"),
        (vec!["--sync-bn", "0"], "--sync-bn 0"),
        (vec!["--sync-bn", "some"], "a number of ranks"),
        (vec!["--model", "resnet18", "--sync-bn", "3"], "what works is 1, 2"),
        (vec!["--model", "vgg16", "--sync-bn"], "vgg16 has no batch normalisation"),
        (vec!["--data", DIGITS, "--batch", "2000"], "largest --batch that works is 718"),
        (vec!["--data", DIGITS, "--accumulation", "1000"], "1437 samples"),
    ];
    each(cases, |(flags, named)| {
        let message = refused(&[(2, &flags)]);
        assert!(message.contains(named), "{flags:?}: {message}");
    });
}

#[test]
fn results_are_never_overwritten() {
    let directory = tempfile::tempdir().unwrap();
    let there = directory.path().join("there.h5");
    fs::write(&there, b"precious").unwrap();
    let message = refused(&[(2, &["--data", DIGITS, "--results", there.to_str().unwrap()])]);
    assert!(message.contains("there.h5") && message.contains("not overwritten"), "{message}");
    assert_eq!(fs::read(&there).unwrap(), b"precious");
    let message = refused(&[(2, &["--results", "/proc/nothing/can/be/written.h5"])]);
    assert!(message.contains("/proc/nothing"), "{message}");
    // Nor is anything else that a flag names.
    let predict = ["--model", "mnist_small", "--batch", "4", "--dry-run", "--predict-nodes", "2"];
    let layers =
        ["bench", "layers", "--model", "mnist_small", "--batch", "2", "--threads", "1", "--steps", "1"];
    let writers: [(&str, &[&str], &str); 6] = [
        ("mine.jsonl", &["--model", "mnist_small", "--dry-run"], "--plan-steps"),
        ("mine.json", &predict, "--save-prediction"),
        ("trace.json", &predict, "--export-trace"),
        ("table.csv", &layers, "--csv"),
        ("tuning.json", &["bench", "autotune", "--sizes", "4K"], "--output"),
        ("log.txt", &["--data", DIGITS, "--steps", "1"], "--mllog"),
    ];
    each(writers, |(name, flags, flag)| {
        let path = directory.path().join(name);
        fs::write(&path, b"precious").unwrap();
        let message = refused(&[(2, &[flags, &[flag, path.to_str().unwrap()]].concat())]);
        assert!(message.contains(name) && message.contains("is there already"), "{flag}: {message}");
        assert_eq!(fs::read(&path).unwrap(), b"precious", "{flag}");
    });
    let page = directory.path().join("dltrain-bench.1");
    fs::write(&page, b"precious").unwrap();
    let message = refused(&[(1, &["man", directory.path().to_str().unwrap()])]);
    assert!(message.contains("dltrain-bench.1") && message.contains("is no page of dltrain's"), "{message}");
    assert_eq!(fs::read(&page).unwrap(), b"precious");
    // Its own pages are made anew.
    fs::write(&page, b".TH dltrain-bench 1").unwrap();
    run(1, &["man", directory.path().to_str().unwrap()]);
    assert!(fs::read(&page).unwrap().len() > 100);
}

#[test]
fn ranks_given_different_flags_are_told_which() {
    /// The flags of two ranks, and what is said.
    type Case<'a> = ([&'a [&'a str]; 2], &'a [&'a str]);
    let cases: [Case; 5] = [
        ([&["--seed", "1", "--dry-run"], &["--seed", "2", "--dry-run"]], &["seed", "1", "2"]),
        ([&["--batch", "8"], &["--batch", "16"]], &["batch"]),
        (
            [&["--allreduce", "ring"], &["--allreduce", "recursive-doubling"]],
            &["ranks differ in allreduce: ring (rank 0 on "],
        ),
        ([&["--wire", "bf16"], &["--wire", "f16"]], &["ranks differ in wire: bf16 (rank 0 on "]),
        // One rank's flags are refused by itself: the others must not wait for it.
        ([&["--batch", "8"], &["--batch", "0"]], &["--batch 0", "rank 1"]),
    ];
    each(cases, |([one, other], named)| {
        let message = refused(&[(1, one), (1, other)]);
        assert!(named.iter().all(|text| message.contains(text)), "{message}");
    });
}

/// One of them may end before MPI starts, which the others would wait for there.
#[test]
fn ranks_that_were_asked_for_unlike_things_are_told_so() {
    let digits = ["--data", DIGITS, "--steps", "1"];
    /// Flags of so many ranks each, and what is said.
    type Case<'a> = ([(usize, &'a [&'a str]); 2], [&'a str; 2]);
    let cases: [Case; 5] = [
        ([(1, &digits), (1, &["--bach", "3"])], ["--bach", "rank 1 on "]),
        ([(1, &["--batch", "many"]), (1, &digits)], ["many", "rank 0 on "]),
        ([(1, &digits), (1, &["info"])], ["a training (rank 0 on ", "dltrain info (rank 1 on "]),
        ([(1, &["models"]), (1, &["man"])], ["dltrain models (rank 0 on ", "dltrain man (rank 1 on "]),
        ([(1, &digits), (1, &["--help"])], ["a training", "dltrain --help or --version (rank 1 on "]),
    ];
    each(cases, |(groups, named)| {
        let message = refused(&groups);
        assert!(named.iter().all(|text| message.contains(text)), "{groups:?}: {message}");
    });
    // What is about the program alone is said once.
    let version = run(2, &["--version"]);
    assert_eq!(version.matches("dltrain ").count(), 1, "{version}");
    assert_eq!(run(2, &["completions", "bash"]).matches("complete -F").count(), 2);
}

/// The same program, but for what it says of itself.
#[test]
fn ranks_of_unlike_revisions_are_told_which() {
    let version = run(1, &["--version"]);
    let revision = version.split("(revision ").nth(1).and_then(|rest| rest.split(')').next()).unwrap();
    if revision == "unknown" {
        println!("SKIPPED: this program does not know its revision");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let other = directory.path().join("dltrain");
    let mut bytes = fs::read(DLTRAIN).unwrap();
    let places: Vec<usize> = bytes
        .windows(revision.len())
        .enumerate()
        .filter(|(_, w)| *w == revision.as_bytes())
        .map(|(at, _)| at)
        .collect();
    let changed = format!("0ther{}", &revision[5..]);
    places.iter().for_each(|&at| bytes[at..at + changed.len()].copy_from_slice(changed.as_bytes()));
    fs::copy(DLTRAIN, &other).unwrap();
    fs::write(&other, bytes).unwrap();
    let script = format!(
        "[ ${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}} = 0 ] && exec '{DLTRAIN}' --steps 1; exec '{}' --steps 1",
        other.display()
    );
    let done = job::finish(job::start(2, &["sh", "-c", &script]));
    assert!(!done.success && done.took < SECONDS, "{}", done.stdout);
    let messages: Vec<&str> = done.stderr.lines().filter(|line| line.contains("error: ")).collect();
    let named = [format!("{revision} (rank 0 on "), format!("{changed} (rank 1 on ")];
    assert!(messages.len() == 1 && named.iter().all(|text| messages[0].contains(text)), "{}", done.stderr);
}

/// Alone, with what it prints going to `stdout`: the exit code, and what it says elsewhere.
fn printing_to(stdout: impl Into<std::process::Stdio>, arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(DLTRAIN).args(arguments).stdout(stdout).output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn what_is_printed_in_vain_is_an_error_unless_nobody_reads_on() {
    for arguments in [
        &["--help"][..],
        &["--version"],
        &["info"],
        &["models"],
        &["man"],
        &["completions", "bash"],
        &["--dry-run"],
        &["--max-batch", "1GiB"],
        &["bench", "allreduce", "--check-only", "--lengths", "10"],
    ] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let (code, said) = printing_to(full, arguments);
        assert_eq!(code, Some(ErrorKind::Output as i32), "{arguments:?}: {said}");
        assert!(said.lines().count() == 1 && said.contains("standard output"), "{arguments:?}: {said}");
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        assert_eq!(printing_to(writer, arguments), (Some(0), String::new()), "{arguments:?}");
    }
}

#[test]
fn two_flags_that_mean_one_file_are_named_before_anything_is_done() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).to_str().unwrap().to_string();
    let cases = [
        ("--results", "--save-weights"),
        ("--timeline", "--save-weights"),
        ("--checkpoint", "--results"),
        ("--init-from", "--save-weights"),
        ("--tensorboard", "--timeline"),
    ];
    each(cases, |(one, two)| {
        let (a, b) = (at("a.h5"), at("./a.h5"));
        let message = refused(&[(2, &["--data", DIGITS, one, &a, two, &b])]);
        assert!(message.contains("means the same file"), "{message}");
        assert!([one, two].iter().all(|flag| message.contains(flag)), "{message}");
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 0, "something was written");
    });
}

#[test]
fn ranks_with_different_data_are_told_so() {
    let changed = copied_digits();
    let images = file_with(changed.path(), "train-images");
    let mut bytes = fs::read(&images).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&images, bytes).unwrap();
    // The same path on every rank, as on nodes with disks of their own.
    let script = format!(
        "cd '{DIGITS}'; [ ${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}} = 0 ] || cd '{}'; exec '{DLTRAIN}' --data . --dry-run",
        changed.path().display()
    );
    let done = job::finish(job::start(2, &["sh", "-c", &script]));
    assert!(!done.success && done.took < SECONDS, "{}", done.stdout);
    let messages: Vec<&str> = done.stderr.lines().filter(|line| line.contains("error: ")).collect();
    assert!(messages.len() == 1 && messages[0].contains("training images"), "{}", done.stderr);
    let message = refused(&[(1, &["--data", DIGITS]), (1, &[])]);
    assert!(message.contains("images") && message.contains("synthetic"), "{message}");
}

#[test]
fn a_loss_that_is_not_finite_stops_the_run_and_says_where_it_began() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("diverged.h5");
    let flags = ["--data", DIGITS, "--optimizer", "sgd", "--lr", "1e20", "--results", path.to_str().unwrap()];
    let message = refused(&[(2, &flags)]);
    assert!(message.contains("step 1") || message.contains("step 2"), "{message}");
    assert!(message.contains("layer") || message.contains("parameter"), "{message}");
    // The record is closed and says so.
    let file = hdf5::File::open(&path).unwrap();
    assert!(file.dataset("steps/loss").unwrap().size() >= 2);
}

/// oneDNN would multiply bf16 by other means there, slower than f32.
#[test]
fn a_cpu_without_bf16_is_told_so() {
    let mut command = job::job(&[(2, &["--precision", "bf16", "--dry-run"])]);
    command.env("ONEDNN_MAX_CPU_ISA", "AVX2");
    let done = job::finish(command);
    assert!(!done.success && done.stderr.matches("error: ").count() == 1, "{}", done.stderr);
    for expected in ["--precision bf16 on ", "avx2", "use --precision f32"] {
        assert!(done.stderr.contains(expected), "{expected} is missing in {}", done.stderr);
    }
}

/// The executable alone in a directory, without DNNL_ROOT: where the loader does not know the library either, every
/// place that was searched and the remedy are named.
#[test]
fn a_missing_onednn_is_one_message_with_the_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let alone = directory.path().join("dltrain");
    fs::copy(DLTRAIN, &alone).unwrap();
    let mut command = job::start(2, &[alone.to_str().unwrap(), "--dry-run"]);
    command.env_remove("DNNL_ROOT").env_remove("DNNLROOT");
    let done = job::finish(command);
    if done.success {
        println!("SKIPPED: this machine's loader finds libdnnl.so.3 by itself");
        return;
    }
    assert_eq!(done.stderr.matches("error: ").count(), 1, "{}", done.stderr);
    for expected in ["libdnnl.so.3", "DNNL_ROOT", "make deps"] {
        assert!(done.stderr.contains(expected), "{expected} is missing in {}", done.stderr);
    }
    // What needs no oneDNN still works, and says so.
    let info = Command::new(&alone).arg("info").env_remove("DNNL_ROOT").output().unwrap();
    assert!(info.status.success() && String::from_utf8_lossy(&info.stdout).contains("oneDNN     none"));
}

/// The processes of this test's job, by the marker in their command line.
fn ranks_with(marker: &str) -> Vec<i32> {
    let processes =
        fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let is_ours = |pid: &i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        line.starts_with(DLTRAIN) && line.contains(marker)
    };
    processes.filter(is_ours).collect()
}

/// The shell's own: a small machine has no program of this name.
fn kill(pid: i32) {
    assert!(Command::new("sh").args(["-c", &format!("kill -9 {pid}")]).status().unwrap().success());
}

/// Leaves no rank behind when the test fails.
struct Cleanup<'a>(&'a str);

impl Drop for Cleanup<'_> {
    fn drop(&mut self) {
        ranks_with(self.0).into_iter().for_each(kill);
    }
}

#[test]
fn a_killed_rank_ends_the_job_and_the_record_stays_readable() {
    killed_rank_ends_the_job(&[]);
}

/// The others wait for its statistics, most likely.
#[test]
fn a_rank_killed_while_statistics_are_exchanged_ends_the_job() {
    killed_rank_ends_the_job(&["--model", "resnet18", "--image-size", "32", "--batch", "2", "--sync-bn"]);
}

fn killed_rank_ends_the_job(more: &[&str]) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("killed.h5");
    let marker = path.to_str().unwrap();
    let flags = [more, &["--data", DIGITS, "--epochs", "100000", "--results", marker]].concat();
    let _cleanup = Cleanup(marker);
    let mut running = job::job(&[(2, &flags)]);
    let mut running =
        running.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()).spawn().unwrap();
    let begun = Instant::now();
    while !path.exists() || ranks_with(marker).len() < 2 {
        assert!(begun.elapsed() < SECONDS, "the job did not start");
        sleep(Duration::from_millis(50));
    }
    sleep(Duration::from_secs(2));
    let victim = *ranks_with(marker).iter().max().unwrap();
    kill(victim);
    let killed = Instant::now();
    let status = loop {
        if let Some(status) = running.try_wait().unwrap() {
            break status;
        }
        assert!(killed.elapsed() < SECONDS, "the job outlives its killed rank");
        sleep(Duration::from_millis(50));
    };
    assert!(!status.success());
    let reader = Instant::now();
    while !ranks_with(marker).is_empty() {
        assert!(reader.elapsed() < SECONDS, "a rank was left behind");
        sleep(Duration::from_millis(50));
    }
    let file = hdf5::File::open_as(&path, hdf5::OpenMode::ReadSWMR).unwrap();
    assert!(file.dataset("steps/loss").unwrap().size() > 0, "what was flushed is lost");
}

#[test]
fn help_is_grouped_and_info_answers_everything() {
    let help = Command::new(DLTRAIN).arg("--help").output().unwrap();
    assert!(help.status.success());
    let help = String::from_utf8(help.stdout).unwrap();
    for group in ["Model and data:", "Length of the run:", "Optimizer:", "Machine:", "Results:"] {
        assert!(help.contains(group), "{group} is missing");
    }
    for flag in [
        "--model",
        "--data",
        "--batch",
        "--epochs",
        "--steps",
        "--warmup",
        "--optimizer",
        "--lr",
        "--momentum",
        "--weight-decay",
        "--lr-schedule",
        "--seed",
        "--device",
        "--threads",
        "--results",
        "--allreduce",
        "--fusion-threshold-mb",
        "--tuning",
        "--no-overlap",
        "--dry-run",
        "--roofline",
        "--script",
        "--plan-steps",
        "--classes",
        "--image-size",
        "--label-smoothing",
        "--max-batch",
        "--sync-bn",
    ] {
        assert!(help.contains(flag), "{flag} is missing");
    }
    for model in dltrain::model::MODELS {
        assert!(help.contains(model.name()), "{} is missing", model.name());
    }
    let info = run(2, &["info"]);
    for line in ["MPI", "thread level", "launcher", "2 on 1 node", "CPU", "oneDNN", "HDF5", "GPUs"] {
        assert!(info.contains(line), "{line} is missing in\n{info}");
    }
    // For a site's support, and for its programs.
    let site = run(2, &["info", "--site"]);
    let facts =
        ["system", "memory", "pinning    processors ", "locked memory ", "libmpi", "/dev/shm   /dev/shm: "];
    for fact in facts.iter().chain(&["clocks     every rank has rank 0's", "huge pages transparent "]) {
        assert!(site.contains(fact), "{fact} is missing in\n{site}");
    }
    let read: serde_json::Value = serde_json::from_str(&run(2, &["info", "--site", "--json"])).unwrap();
    assert_eq!(read["hosts"].as_array().unwrap().len(), 2);
    for fact in ["MPI", "pinning", "directory"] {
        let values = read["facts"][fact].as_array().unwrap();
        let ranks: usize = values.iter().map(|value| value["ranks"].as_array().unwrap().len()).sum();
        assert!(values[0]["value"].as_str().is_some_and(|value| !value.is_empty()), "{read}");
        assert_eq!(ranks, 2, "{fact} in {read}");
    }
}
