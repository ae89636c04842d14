//! What a user relies on of a run's record:
//!
//! 1. the file: everything said is in it, with units, and docs/results.md names all of it;
//! 2. read from another process while it is written, and after the writer was killed;
//! 3. nothing is overwritten, and a place that cannot be written is refused before the run;
//! 4. a full disk does not stop training, and is told;
//! 5. the tables, their last line, and no control character where no terminal is;
//! 6. on a terminal: a bar, and lines that it does not tear;
//! 7. log messages carry the rank, and other ranks are silent unless something is wrong;
//! 8. a step costs microseconds, writing a second's rows milliseconds;
//! 9. MLPerf's log has its lines in MLPerf's order.
//!
//! Writers that must die, or whose output counts, are this program run again as a child: `child_*`.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use dltrain::config::Metric;
use dltrain::error::{Error, ErrorKind};
use dltrain::record::{
    BucketTime, Description, EpochRecord, MlperfKeys, RankInfo, Reached, Recorder, RunSize, Scheduled, Spent,
    Spread, StepRecord, check_mllog, results_path, start_logging,
};
use hdf5::types::{FixedUnicode, VarLenUnicode};
use hdf5::{File, OpenMode};

const ONE: RankInfo = RankInfo { rank: 0, size: 1 };
const TWO: RankInfo = RankInfo { rank: 0, size: 2 };

fn description(epochs: u64, steps: u64) -> Description {
    Description {
        model: "mnist_small".into(),
        parameters: 402_442,
        metric: Metric::Accuracy,
        device: "cpu: oneDNN 3.9.1, avx512_core".into(),
        size: RunSize {
            threads: 1,
            batch: 64,
            accumulation: 1,
            global_batch: 128,
            epochs,
            steps,
            warmup: 0,
            computing: 2,
        },
        owned: vec![804_884; 2],
        buckets: vec![1_605_632, 4_136],
        choices: vec![("shm".into(), 0.0004), ("recursive-doubling".into(), 2e-6)],
        script: vec![
            Scheduled { action: "run".into(), bucket: None, computes: true, times: [0.0, 0.5] },
            Scheduled { action: "start".into(), bucket: Some(1), computes: false, times: [0.5, 0.75] },
        ],
        memory: vec![("activations".into(), 8), ("parameters".into(), 4)],
        compression: None,
        staleness: 0,
        attributes: [
            ("model", "mnist_small"),
            ("config", "{\"lr\":0.1}"),
            ("images", "digits: 10 images to train, 5 to test"),
            ("hosts", "n0,n0"),
            ("optimizer.kind", "adam"),
            ("rate.base", "0.0010000000474974513"),
            ("rate.schedule", "constant"),
            ("seed", "7"),
            ("owners", "data parallel; the 2 ranks share the updates"),
            ("allreduce_used", "shm and recursive-doubling"),
            ("mpi", "MPI 5"),
            ("command", "dltrain --seed 7"),
        ]
        .map(|(name, value)| (name.into(), value.into()))
        .to_vec(),
        events: None,
        mllog: None,
        layers: Vec::new(),
        started: Instant::now(),
    }
}

const BUCKETS: [BucketTime; 2] = [
    BucketTime { start: 0.002, finish: 0.005, exposed: 0.0 },
    BucketTime { start: 0.005, finish: 0.0065, exposed: 0.0005 },
];

const SPENT: Spent =
    Spent { seconds: 0.008, compute: 0.007, communication: 0.0004, input: 0.0002, encoding: 0.0 };

fn step(step: u64, epoch: u64) -> StepRecord<'static> {
    StepRecord {
        step,
        epoch,
        images: 128,
        loss: 2.0 / (1.0 + step as f64),
        metric: 0.5,
        learning_rate: 0.1,
        spent: SPENT,
        copying: 0.0,
        saving: false,
        usage: None,
        buckets: &BUCKETS,
    }
}

fn epoch(epoch: u64, test_accuracy: f64) -> EpochRecord {
    EpochRecord {
        epoch,
        train_loss: 0.53211,
        train_metric: 0.84207,
        test_loss: 0.2210,
        test_metric: test_accuracy,
        ranks_apart: f64::NAN,
        images_per_second: 12345.67,
        seconds: 0.5,
        compute: Spread { mean: 0.912, min: 0.9, max: 0.924 },
        communication: Spread { mean: 0.051, min: 0.05, max: 0.052 },
        input: Spread { mean: 0.02, min: 0.01, max: 0.03 },
        usage: None,
    }
}

/// This test program again, running one ignored test, with text for it in RECORD_CHILD.
fn again(test: &str, argument: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("record::{test}"), "--ignored", "--nocapture", "--test-threads=1"]);
    command.env("RECORD_CHILD", argument).env_remove("RUST_LOG").env_remove("DLTRAIN_LOG");
    command
}

fn argument() -> String {
    std::env::var("RECORD_CHILD").expect("run by another test")
}

/// What a child wrote after the test harness's own first lines.
fn said(output: &[u8]) -> String {
    let text = String::from_utf8_lossy(output).into_owned();
    let (_, after) = text.split_once("BEGIN").unwrap_or_else(|| panic!("no BEGIN in {text:?}"));
    after.trim_start_matches(['\r', '\n']).to_string()
}

// ---- 1. the file -------------------------------------------------------------------------------------

fn text(location: &hdf5::Location, name: &str) -> String {
    location.attr(name).unwrap().read_scalar::<VarLenUnicode>().unwrap().to_string()
}

fn reals(file: &File, name: &str) -> Vec<f64> {
    file.dataset(name).unwrap().read_raw().unwrap()
}

fn status(file: &File) -> String {
    file.dataset("summary/status").unwrap().read_scalar::<FixedUnicode<512>>().unwrap().to_string()
}

fn finished_run(path: &Path) {
    let mut recorder = Recorder::open(TWO, Some(path), &description(2, 4), None).unwrap();
    for i in 0..4 {
        recorder.step(&step(i, 1 + i / 2));
        if i % 2 == 1 {
            recorder.epoch(&epoch(1 + i / 2, if i == 1 { 0.9806 } else { 0.9778 }));
        }
    }
    recorder.finish(Ok(())).unwrap();
}

#[test]
fn a_finished_run_is_all_in_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.h5");
    finished_run(&path);
    let file = File::open(&path).unwrap();
    assert_eq!(text(&file, "format"), "dltrain results");
    let config = file.group("config").unwrap();
    assert_eq!(text(&config, "config"), "{\"lr\":0.1}");
    assert_eq!(text(&config, "ranks"), "2");
    assert_eq!(text(&config, "hdf5_version"), dltrain::record::hdf5_version());
    assert_eq!(file.dataset("config/bucket_bytes").unwrap().read_raw::<u64>().unwrap(), [1_605_632, 4_136]);
    let names: Vec<VarLenUnicode> = file.dataset("config/bucket_allreduce").unwrap().read_raw().unwrap();
    assert_eq!(names.iter().map(|name| name.as_str()).collect::<Vec<_>>(), ["shm", "recursive-doubling"]);
    assert_eq!(reals(&file, "config/bucket_predicted"), [0.0004, 2e-6]);
    let actions: Vec<VarLenUnicode> = file.dataset("config/script_action").unwrap().read_raw().unwrap();
    assert_eq!(actions.iter().map(|text| text.as_str()).collect::<Vec<_>>(), ["run", "start"]);
    assert_eq!(file.dataset("config/script_bucket").unwrap().read_raw::<i64>().unwrap(), [-1, 1]);
    assert_eq!(file.dataset("config/script_computes").unwrap().read_raw::<u64>().unwrap(), [1, 0]);
    assert_eq!(reals(&file, "config/script_begin"), [0.0, 0.5]);
    assert_eq!(reals(&file, "config/script_end"), [0.5, 0.75]);

    assert_eq!(file.dataset("steps/step").unwrap().read_raw::<u64>().unwrap(), [0, 1, 2, 3]);
    assert_eq!(file.dataset("steps/epoch").unwrap().read_raw::<u64>().unwrap(), [1, 1, 2, 2]);
    assert_eq!(reals(&file, "steps/loss"), [2.0, 1.0, 2.0 / 3.0, 0.5]);
    assert_eq!(reals(&file, "steps/communication"), [0.0004; 4]);
    let finish = file.dataset("steps/bucket_finish").unwrap();
    assert_eq!(finish.shape(), [4, 2]);
    assert_eq!(finish.read_raw::<f32>().unwrap()[..2], [0.005, 0.0065]);
    assert_eq!(text(&finish, "unit"), "s");

    assert_eq!(reals(&file, "epochs/test_accuracy"), [0.9806, 0.9778]);
    assert_eq!(reals(&file, "epochs/input_max"), [0.03; 2]);
    assert_eq!(status(&file), "finished");
    assert_eq!(reals(&file, "summary/best_test_accuracy"), [0.9806]);
    assert_eq!(reals(&file, "summary/final_test_accuracy"), [0.9778]);
    let rate = reals(&file, "summary/images_per_second")[0];
    assert!((rate - 16_000.0).abs() < 1e-6, "{rate}");
}

#[test]
fn a_failed_run_and_a_dropped_one_say_so() {
    let folder = tempfile::tempdir().unwrap();
    let (failed, dropped) = (folder.path().join("failed.h5"), folder.path().join("dropped.h5"));
    let mut recorder = Recorder::open(ONE, Some(&failed), &description(1, 2), None).unwrap();
    recorder.step(&step(0, 1));
    // Longer than the data set holds, with a letter of two bytes across its end.
    recorder.finish(Err(&Error::usage(format!("{}é and more", "x".repeat(503))))).unwrap();
    let file = File::open(&failed).unwrap();
    assert_eq!(status(&file), format!("failed: {}", "x".repeat(503)));
    assert_eq!(reals(&file, "steps/loss"), [2.0]);

    let mut recorder = Recorder::open(ONE, Some(&dropped), &description(1, 2), None).unwrap();
    recorder.step(&step(0, 1));
    drop(recorder);
    assert_eq!(status(&File::open(&dropped).unwrap()), "failed: stopped before its end");
}

#[test]
fn steps_with_other_buckets_than_planned_leave_the_rest_unknown() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.h5");
    let mut recorder = Recorder::open(ONE, Some(&path), &description(1, 2), None).unwrap();
    recorder.step(&StepRecord { buckets: &BUCKETS[..1], ..step(0, 1) });
    recorder.step(&StepRecord { buckets: &[BUCKETS[1]; 3], ..step(1, 1) });
    recorder.finish(Ok(())).unwrap();
    let start = File::open(&path).unwrap().dataset("steps/bucket_start").unwrap().read_raw::<f32>().unwrap();
    assert_eq!(start[0], 0.002);
    assert!(start[1].is_nan());
    assert_eq!(start[2..], [0.005, 0.005]);
}

#[test]
fn a_run_that_communicates_nothing_has_no_bucket_series() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.h5");
    let mut about = Description { buckets: vec![], choices: vec![], ..description(1, 1) };
    about.attributes.push(("hdf5_version".into(), "what the caller says".into()));
    let mut recorder = Recorder::open(ONE, Some(&path), &about, None).unwrap();
    recorder.step(&StepRecord { buckets: &[], ..step(0, 1) });
    recorder.finish(Ok(())).unwrap();
    let file = File::open(&path).unwrap();
    assert_eq!(text(&file.group("config").unwrap(), "hdf5_version"), "what the caller says");
    assert_eq!(file.dataset("config/bucket_bytes").unwrap().shape(), [0]);
    assert!(file.dataset("steps/bucket_start").is_err());
    assert_eq!(reals(&file, "steps/loss"), [2.0]);
}

#[test]
fn a_file_that_cannot_be_made_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.h5");
    let mut about = description(1, 1);
    about.attributes.push(("model".into(), "named twice".into()));
    let error = Recorder::open(ONE, Some(&path), &about, None).err().unwrap();
    assert_eq!(error.kind, ErrorKind::Output);
    assert!(!path.exists());
}

#[test]
fn only_rank_0_writes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.h5");
    let other = RankInfo { rank: 1, size: 2 };
    assert_eq!(results_path(other, Some(Path::new("/dev/null/x.h5")), "m").unwrap(), None);
    let mut recorder = Recorder::open(other, Some(&path), &description(1, 1), None).unwrap();
    recorder.step(&step(0, 1));
    recorder.epoch(&epoch(1, 0.5));
    recorder.finish(Ok(())).unwrap();
    assert!(!path.exists());
}

#[test]
fn the_document_names_every_data_set_with_its_unit_and_type() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.h5");
    finished_run(&path);
    let document = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/results.md")).unwrap();
    let mut rows: Vec<Vec<&str>> = Vec::new();
    let schema = document.split("\n## Checkpoints").next().unwrap();
    for line in schema.lines().filter(|line| line.starts_with("| `/")) {
        rows.push(line.trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('`')).collect());
    }
    let file = File::open(&path).unwrap();
    let mut found = 0;
    for group in file.groups().unwrap() {
        for dataset in group.datasets().unwrap() {
            let name = dataset.name();
            let row = rows.iter().find(|row| row[0] == name).unwrap_or_else(|| panic!("{name} is not there"));
            let dtype = match dataset.dtype().unwrap().to_descriptor().unwrap().to_string().as_str() {
                "uint64" => "u64",
                "int64" => "i64",
                "float32" => "f32",
                "float64" => "f64",
                "unicode (len 512)" | "string (len 512)" => "text, 512 bytes",
                "unicode (var len)" => "text",
                other => panic!("{name} has type {other}"),
            }
            .to_string();
            assert_eq!((row[1], row[2]), (dtype.as_str(), text(&dataset, "unit").as_str()), "{name}");
            assert!(!text(&dataset, "description").is_empty());
            found += 1;
        }
    }
    assert_eq!(found, rows.len(), "the document names data sets that are not there");
}

// ---- 2. while it is written, and after a kill ----------------------------------------------------------

/// Writes a step every millisecond until it is killed; says "epoch" after each epoch of 50.
#[test]
#[ignore = "a child of other tests"]
fn child_endless() {
    let path = PathBuf::from(argument());
    let mut recorder = Recorder::open(ONE, Some(&path), &description(1_000_000, 50_000_000), None).unwrap();
    for i in 0.. {
        recorder.step(&step(i, 1 + i / 50));
        if i % 50 == 49 {
            recorder.epoch(&epoch(1 + i / 50, 0.9));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Reads the file named in the argument as a second program would; says the length of every series.
#[test]
#[ignore = "a child of other tests"]
fn child_reader() {
    let file = File::open_as(argument(), OpenMode::ReadSWMR).unwrap();
    let rows = file.dataset("steps/step").unwrap().read_raw::<u64>().unwrap();
    assert!(rows.iter().enumerate().all(|(i, step)| *step == i as u64), "steps are not 0, 1, 2, …");
    // `step` is written last: all others are at least as long, and their values are there.
    let loss = reals(&file, "steps/loss");
    assert!(loss.len() >= rows.len());
    assert!(
        rows.iter().all(|i| loss[*i as usize] == 2.0 / (1.0 + *i as f64)),
        "a loss is not what was written"
    );
    assert!(file.dataset("steps/bucket_exposed").unwrap().shape()[0] >= rows.len());
    let epochs = reals(&file, "epochs/train_loss").len();
    println!("BEGIN {} {} {}", rows.len(), epochs, status(&file));
}

/// (steps, epochs, status) as another process finds them.
fn read_by_another(path: &Path) -> (u64, u64, String) {
    let output = again("child_reader", path.to_str().unwrap()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = said(&output.stdout);
    let mut words = text.split_whitespace();
    let mut number = || words.next().unwrap().parse().unwrap();
    let (steps, epochs) = (number(), number());
    (steps, epochs, words.next().unwrap().to_string())
}

/// Starts a writer and waits until it has told of `lines` epochs.
fn endless_writer(path: &Path, lines: usize) -> Child {
    let mut child = again("child_endless", path.to_str().unwrap())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut seen = 0;
    while seen < lines {
        let line = output.next().expect("the writer ended").unwrap();
        seen += usize::from(line.contains("90.00%"));
    }
    // Goes on reading, so that the writer never waits for room in the pipe.
    std::thread::spawn(move || output.for_each(drop));
    child
}

#[test]
fn another_process_reads_while_the_run_goes_on_and_after_it_was_killed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.h5");
    let mut child = endless_writer(&path, 2);
    let (early, epochs, status) = read_by_another(&path);
    assert!(early >= 50 && epochs >= 1, "{early} steps, {epochs} epochs");
    assert_eq!(status, "running");
    std::thread::sleep(Duration::from_millis(300));
    let (later, ..) = read_by_another(&path);
    assert!(later > early, "no step became readable: {early}, {later}");
    child.kill().unwrap();
    child.wait().unwrap();
    let (left, _, status) = read_by_another(&path);
    assert!(left >= later);
    assert_eq!(status, "running");
}

/// The example of docs/results.md, run by `python3` in `folder`; `None` where there is no python3 with h5py.
fn example(folder: &Path) -> Option<String> {
    let document = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/results.md")).unwrap();
    let (_, after) = document.split_once("```python\n").unwrap();
    let (program, _) = after.split_once("```").unwrap();
    let python = |program: &str| Command::new("python3").args(["-c", program]).current_dir(folder).output();
    if !python("import h5py").is_ok_and(|output| output.status.success()) {
        println!("SKIPPED: no python3 with h5py on this machine");
        return None;
    }
    let output = python(program).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap())
}

#[test]
fn the_h5py_example_reads_a_running_a_killed_and_a_finished_run() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("results")).unwrap();
    let path = folder.path().join("results/run.h5");
    let mut child = endless_writer(&path, 2);
    let running = example(folder.path());
    child.kill().unwrap();
    child.wait().unwrap();
    let Some(running) = running else { return };
    assert!(running.starts_with("running mnist_small "), "{running}");
    assert!(running.contains("test accuracy [0.9 0.9"), "{running}");
    assert!(example(folder.path()).unwrap().starts_with("running mnist_small "));
    fs::remove_file(&path).unwrap();
    finished_run(&path);
    let text = "finished mnist_small 4 steps\nloss 0.5 test accuracy [0.9806 0.9778]\n";
    assert_eq!(example(folder.path()).unwrap(), text);
}

/// Steps without an end of an epoch; says when about 1.5 seconds have passed.
#[test]
#[ignore = "a child of other tests"]
fn child_one_long_epoch() {
    let mut recorder =
        Recorder::open(ONE, Some(Path::new(&argument())), &description(1, 1_000_000), None).unwrap();
    let start = Instant::now();
    let mut told = false;
    for i in 0.. {
        recorder.step(&step(i, 1));
        std::thread::sleep(Duration::from_millis(1));
        if !told && start.elapsed() > Duration::from_millis(1500) {
            println!("written {i}");
            told = true;
        }
    }
}

#[test]
fn a_kill_takes_at_most_the_last_second() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.h5");
    let mut child =
        again("child_one_long_epoch", path.to_str().unwrap()).stdout(Stdio::piped()).spawn().unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let line = output.lines().map(Result::unwrap).find(|line| line.contains("written")).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let written: u64 = line.split_whitespace().last().unwrap().parse().unwrap();
    let (left, epochs, _) = read_by_another(&path);
    assert_eq!(epochs, 0);
    assert!(left > written / 3, "of {written} steps in 1.5 s only {left} are left");
    // The superblock's end-of-file address. Where it is stale, `h5clear -s` cuts off the rows behind it.
    let bytes = fs::read(&path).unwrap();
    assert_eq!(u64::from_le_bytes(bytes[28..36].try_into().unwrap()), bytes.len() as u64);
}

// ---- 3. where results may go ----------------------------------------------------------------------------

#[test]
fn a_file_that_is_there_is_refused_and_untouched() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.h5");
    fs::write(&path, "my thesis").unwrap();
    let early = results_path(ONE, Some(&path), "m").unwrap_err();
    let late = Recorder::open(ONE, Some(&path), &description(1, 1), None).err().unwrap();
    for error in [early, late] {
        assert_eq!(error.kind, ErrorKind::Output);
        assert!(error.message.starts_with(path.to_str().unwrap()), "{error}");
        assert!(error.message.contains("is there already"), "{error}");
    }
    assert_eq!(fs::read(&path).unwrap(), b"my thesis");

    let link = folder.path().join("link.h5");
    std::os::unix::fs::symlink(folder.path().join("nowhere"), &link).unwrap();
    assert!(results_path(ONE, Some(&link), "m").is_err());
}

#[test]
fn a_place_that_cannot_be_written_is_refused_with_its_reason() {
    let folder = tempfile::tempdir().unwrap();
    let regular = folder.path().join("regular");
    fs::write(&regular, "").unwrap();
    // Permission bits do not stop root, so these are places that stop anyone.
    for (place, reason) in [
        (folder.path().join("missing/run.h5"), "missing does not exist"),
        (folder.path().join("missing/deeper"), "cannot make the directory"),
        (regular.join("run.h5"), "cannot write in"),
        (regular.clone(), "cannot write in"),
        (PathBuf::from("/proc/run.h5"), "cannot write in /proc"),
        (PathBuf::from("/proc/runs"), "cannot make the directory"),
    ] {
        let error = results_path(ONE, Some(&place), "m").unwrap_err();
        assert_eq!(error.kind, ErrorKind::Output);
        assert!(error.message.contains(reason), "{error}");
        assert!(error.message.contains(place.to_str().unwrap()), "{error}");
    }
    assert!(!folder.path().join("missing").exists());
}

#[test]
fn a_directory_gets_a_file_named_after_model_and_time() {
    let folder = tempfile::tempdir().unwrap();
    let runs = folder.path().join("runs");
    let first = results_path(ONE, Some(&runs), "lenet5").unwrap().unwrap();
    let name = first.file_name().unwrap().to_str().unwrap();
    assert!(name.starts_with("lenet5-20") && name.ends_with("Z.h5"), "{name}");
    assert_eq!(first.parent().unwrap(), runs);
    let left: Vec<_> = fs::read_dir(&runs).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, [&*format!(".{name}.owner")], "something is left of the trial");
    // Two runs in one second (or the next: then the names differ anyway).
    fs::write(&first, "").unwrap();
    assert_ne!(results_path(ONE, Some(&runs), "lenet5").unwrap().unwrap(), first);
}

// ---- 4. a disk that fills up -----------------------------------------------------------------------------

#[test]
#[ignore = "a child of other tests"]
fn child_full_disk() {
    start_logging(0, dltrain::record::Verbosity::Normal);
    let mut recorder =
        Recorder::open(ONE, Some(Path::new(&argument())), &description(2, 40_000), None).unwrap();
    for i in 0..40_000 {
        recorder.step(&step(i, 1));
    }
    recorder.epoch(&epoch(1, 0.9));
    recorder.epoch(&epoch(2, 0.9));
    let error = recorder.finish(Ok(())).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Output);
    eprintln!("finish: {error}");
}

#[test]
fn a_full_disk_is_told_at_once_and_at_the_end_and_does_not_stop_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.h5");
    let child = again("child_full_disk", path.to_str().unwrap());
    // The shell limits the size of files (blocks of 512 or 1024 bytes); the write then fails with EFBIG.
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' XFSZ; ulimit -f 500; exec \"$0\" \"$@\""]).arg(child.get_program());
    shell.args(child.get_args()).env("RECORD_CHILD", &path).env_remove("RUST_LOG").env_remove("DLTRAIN_LOG");
    let output = shell.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    assert_eq!(err.matches("training goes on").count(), 1, "{err}");
    assert!(err.contains(path.to_str().unwrap()) && err.contains("File too large"), "{err}");
    assert!(err.contains("finish: "), "{err}");
    assert!(out.contains("total images/sec: "), "{out}");
    assert!(!out.contains("results  "), "the table names a file that is lost: {out}");
}

// ---- 5. tables ---------------------------------------------------------------------------------------------

#[test]
#[ignore = "a child of other tests"]
fn child_tables() {
    println!("BEGIN");
    let path = PathBuf::from(argument());
    let synthetic = path.as_os_str() == "synthetic";
    let mut about = description(if synthetic { 0 } else { 2 }, if synthetic { 25 } else { 4 });
    about.size.warmup = if synthetic { 5 } else { 0 };
    // A start in the past that prints the same however slow the machine is.
    about.started = Instant::now() - Duration::from_secs(3 * 3600 + 7 * 60 + 30);
    if synthetic {
        let mut recorder = Recorder::open(TWO, None, &about, None).unwrap();
        for i in 0..25 {
            // The warm-up is slow, and then every other step takes half as long.
            let seconds = [0.008, 0.004][i as usize % 2] * if i < 5 { 100.0 } else { 1.0 };
            recorder.step(&StepRecord { spent: Spent { seconds, ..SPENT }, ..step(i, 0) });
        }
        recorder.finish(Ok(())).unwrap();
    } else {
        let mut recorder = Recorder::open(TWO, Some(&path), &about, None).unwrap();
        for i in 0..4 {
            recorder.step(&step(i, 1 + i / 2));
            if i % 2 == 1 {
                recorder.epoch(&epoch(1 + i / 2, if i == 1 { 0.9806 } else { f64::NAN }));
            }
        }
        recorder.finish(Ok(())).unwrap();
    }
    std::process::exit(0);
}

#[test]
fn a_training_run_prints_these_lines_and_no_control_character() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.h5");
    let output = again("child_tables", path.to_str().unwrap()).output().unwrap();
    let expected = format!(
        "\
mnist_small: 402,442 parameters; 2 ranks x 1 thread, batch 64 a rank, 128 in all; 2 epochs, 4 steps
cpu: oneDNN 3.9.1, avx512_core
adam, learning rate 0.001 (constant), seed 7
epoch  train loss  train acc  test loss  test acc   images/s  compute    comm   input      time
    1      0.5321     84.21%     0.2210    98.06%    12345.7    91.2%    5.1%    2.0%    0.50 s
    2      0.5321     84.21%     0.2210         -    12345.7    91.2%    5.1%    2.0%    0.50 s

model            mnist_small (402,442 parameters)
data             digits: 10 images to train, 5 to test
device           cpu: oneDNN 3.9.1, avx512_core
ranks x threads  2 x 1 on n0 (2)
batch            64 a rank, 128 in all
optimizer        adam, learning rate 0.001 (constant), seed 7
strategy         data parallel; the 2 ranks share the updates
allreduce        shm and recursive-doubling, 1.6 MB in 2 buckets
epochs           2 (4 steps)
test accuracy    - at the end, best 98.06% in epoch 1
time             3 h 07 min, set-up 3 h 07 min, training steps 0.03 s
images/sec       16000.00, a rank 8000.00; single steps 16000.0 ± 0.0 (sd)
share of time    compute 87.5%, communication 5.0%, input 2.5%, other 5.0%
software         dltrain {} ({}), MPI 5, HDF5 {}
command          dltrain --seed 7
results          {}

total images/sec: 16000.00
",
        env!("CARGO_PKG_VERSION"),
        dltrain::record::git_revision(),
        dltrain::record::hdf5_version(),
        path.display()
    );
    assert_eq!(said(&output.stdout), expected);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn a_synthetic_run_prints_a_line_every_ten_timed_steps_and_leaves_the_warm_up_out() {
    let output = again("child_tables", "synthetic").output().unwrap();
    let text = said(&output.stdout);
    let lines: Vec<&str> = text.lines().skip(1).take(5).collect();
    // 20 steps of 128 images in 0.12 s; single steps at 16000 and 32000: error 8000·√(20/19/20).
    let expected = [
        "cpu: oneDNN 3.9.1, avx512_core",
        "adam, learning rate 0.001 (constant), seed 7",
        "  step             images/sec       loss",
        "    10      21333.3 +/- 2666.7     0.1333",
        "    20      21333.3 +/- 1835.3     0.0800",
    ];
    assert_eq!(lines, expected);
    assert!(text.contains("steps            20 after 5 of warm-up\n"), "{text}");
    assert!(text.ends_with("\n\ntotal images/sec: 21333.33\n"), "{text}");
    assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
}

// ---- 6. a terminal -------------------------------------------------------------------------------------------

#[test]
#[ignore = "a child of other tests"]
fn child_on_a_terminal() {
    println!("BEGIN");
    start_logging(0, dltrain::record::Verbosity::Normal);
    let mut recorder = Recorder::open(ONE, None, &description(2, 40), None).unwrap();
    for i in 0..40 {
        recorder.step(&step(i, 1 + i / 20));
        std::thread::sleep(Duration::from_millis(20));
        if i % 20 == 19 {
            log::warn!("disk nearly full");
            recorder.epoch(&epoch(1 + i / 20, 0.9));
        }
    }
    recorder.finish(Ok(())).unwrap();
    std::process::exit(0);
}

/// What is left on the lines of a terminal 80 wide, and whether a bar was ever drawn: carriage return, newline,
/// "erase line" and cursor movements are all that is used.
fn shown(bytes: &str) -> (Vec<String>, bool) {
    let (mut lines, mut row, mut column) = (vec![Vec::new()], 0, 0);
    let mut chars = bytes.chars();
    let mut bar = false;
    while let Some(c) = chars.next() {
        match c {
            '\r' => column = 0,
            '\n' => {
                row += 1;
                if row == lines.len() {
                    lines.push(Vec::new());
                }
            }
            '\x1b' => {
                assert_eq!(chars.next(), Some('['));
                let sequence: String = chars.by_ref().take_while_inclusive();
                let (number, letter) = sequence.split_at(sequence.len() - 1);
                match letter {
                    "K" => lines[row].clear(),
                    "A" => row -= number.parse::<usize>().unwrap().min(row),
                    other => panic!("an unexpected sequence: {number}{other}"),
                }
            }
            c => {
                let line: &mut Vec<char> = &mut lines[row];
                line.resize(line.len().max(column + 1), ' ');
                line[column] = c;
                column += 1;
                bar |= line.starts_with(&"epoch 1/2 [==".chars().collect::<Vec<_>>());
            }
        }
    }
    (lines.into_iter().map(|line| line.into_iter().collect::<String>().trim_end().to_string()).collect(), bar)
}

trait TakeSequence {
    /// The characters of an escape sequence up to its letter.
    fn take_while_inclusive(&mut self) -> String;
}

impl<I: Iterator<Item = char>> TakeSequence for &mut I {
    fn take_while_inclusive(&mut self) -> String {
        let mut text = String::new();
        for c in self {
            text.push(c);
            if c.is_ascii_alphabetic() {
                break;
            }
        }
        text
    }
}

#[test]
fn on_a_terminal_there_is_a_bar_that_tears_no_line() {
    let child = again("child_on_a_terminal", "");
    let line = std::iter::once(child.get_program()).chain(child.get_args());
    let line: Vec<String> = line.map(|word| format!("'{}'", word.to_str().unwrap())).collect();
    // `script` (util-linux) runs a program on a terminal of its own.
    let mut script = Command::new("script");
    script.args(["-qec", &line.join(" "), "/dev/null"]).stdin(Stdio::null()).env("TERM", "xterm");
    let Ok(output) = script.env("RECORD_CHILD", "").output() else {
        println!("SKIPPED: no `script` command on this machine");
        return;
    };
    let (lines, bar) = shown(&said(&output.stdout));
    assert!(bar, "no bar was drawn: {:?}", String::from_utf8_lossy(&output.stdout));
    let whole: Vec<&str> = lines.iter().map(String::as_str).skip(3).take(5).collect();
    assert_eq!(whole[0], "[0] warn: disk nearly full");
    assert!(whole[1].starts_with("epoch  train loss"), "{lines:#?}");
    assert!(whole[2].starts_with("    1      0.5321"), "{lines:#?}");
    assert_eq!(whole[3], "[0] warn: disk nearly full");
    assert!(whole[4].starts_with("    2      0.5321"), "{lines:#?}");
    assert!(!lines.iter().any(|line| line.contains("eta")), "the bar is still there: {lines:#?}");
    assert!(lines.iter().any(|line| line == "total images/sec: 16000.00"), "{lines:#?}");
}

// ---- 7. log messages -------------------------------------------------------------------------------------------

#[test]
#[ignore = "a child of other tests"]
fn child_log() {
    let rank = argument().parse().unwrap();
    start_logging(rank, dltrain::record::Verbosity::Normal);
    start_logging(rank, dltrain::record::Verbosity::Normal);
    log::error!("no room");
    log::warn!("slow network");
    log::info!("reading data");
    log::debug!("bucket 3");
}

#[test]
fn messages_carry_the_rank_and_other_ranks_only_warn() {
    let messages = |rank: &str, variables: &[(&str, &str)]| {
        let output = again("child_log", rank).envs(variables.iter().copied()).output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let bad = "[2] error: no room\n[2] warn: slow network\n";
    assert_eq!(messages("2", &[]), bad);
    let info = "[0] error: no room\n[0] warn: slow network\n[0] info: reading data\n";
    assert_eq!(messages("0", &[]), info);
    assert_eq!(
        messages("2", &[("RUST_LOG", "debug")]),
        format!("{bad}[2] info: reading data\n[2] debug suite::record: bucket 3\n")
    );
    assert_eq!(messages("2", &[("RUST_LOG", "debug"), ("DLTRAIN_LOG", "error")]), "[2] error: no room\n");
}

// ---- 8. cost ---------------------------------------------------------------------------------------------------

#[test]
fn a_step_costs_microseconds_and_writing_a_second_of_them_milliseconds() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.h5");
    let mut recorder = Recorder::open(ONE, Some(&path), &description(1, 200_000), None).unwrap();
    let mut times: Vec<Duration> = (0..200_000)
        .map(|i| {
            let start = Instant::now();
            recorder.step(&step(i, 1));
            start.elapsed()
        })
        .collect();
    recorder.finish(Ok(())).unwrap();
    times.sort();
    println!("step: median {:?}, 99.9 % {:?}, most {:?}", times[100_000], times[199_800], times[199_999]);
    // Generous: other programs run on this machine.
    assert!(times[100_000] < Duration::from_micros(20), "median {:?}", times[100_000]);

    // An epoch writes its rows: 125 steps are what a second has of them at 8 ms a step.
    let path = folder.path().join("epochs.h5");
    let mut recorder = Recorder::open(ONE, Some(&path), &description(40, 40 * 125), None).unwrap();
    let mut times: Vec<Duration> = (0..40)
        .map(|e| {
            (0..125).for_each(|i| recorder.step(&step(125 * e + i, e + 1)));
            let start = Instant::now();
            recorder.epoch(&epoch(e + 1, 0.9));
            start.elapsed()
        })
        .collect();
    times.sort();
    println!("epoch of 125 steps: median {:?}, most {:?}", times[20], times[39]);
    assert!(times[20] < Duration::from_millis(50), "median {:?}", times[20]);
}

/// The keys of MLPerf's log from one on, with the values and what is said about them.
fn logged(path: &Path, from: &str) -> Vec<(String, serde_json::Value, serde_json::Value)> {
    let lines = fs::read_to_string(path).unwrap();
    let lines = lines.lines().map(|line| line.strip_prefix(":::MLLOG ").unwrap());
    let lines: Vec<serde_json::Value> = lines.map(|line| serde_json::from_str(line).unwrap()).collect();
    let times: Vec<u64> = lines.iter().map(|line| line["time_ms"].as_u64().unwrap()).collect();
    assert!(times[0] > 1_600_000_000_000 && times.is_sorted(), "{times:?}");
    let of = |line: &serde_json::Value| {
        (line["key"].as_str().unwrap().to_string(), line["value"].clone(), line["metadata"].clone())
    };
    lines.iter().map(of).skip_while(|(key, ..)| key != from).collect()
}

/// A log that a stopped run left is gone on with: what was tested before the stop counts, and the run ends once.
#[test]
fn mlperfs_log_goes_on_with_its_run() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run.log");
    let keys = vec![("submission_benchmark".into(), "deepcam".into())];
    let mllog = Some(MlperfKeys { path: path.clone(), keys });
    let description = Description { mllog, metric: Metric::Iou, ..description(2, 3) };
    let mut recorder = Recorder::open(ONE, None, &description, None).unwrap();
    recorder.step(&step(0, 1));
    recorder.epoch(&epoch(1, 0.9));
    recorder.step(&step(1, 2));
    recorder.finish(Err(&Error::new(ErrorKind::Stopped, "SIGTERM"))).unwrap();
    assert_eq!(logged(&path, "run_start").last().unwrap().0, "epoch_start");

    check_mllog(&path, true).unwrap();
    let reached = Reached { step: 2, epochs: 1, ..Reached::default() };
    let mut recorder = Recorder::open(ONE, None, &description, Some(&reached)).unwrap();
    recorder.step(&step(2, 2));
    recorder.epoch(&epoch(2, 0.4));
    recorder.finish(Ok(())).unwrap();
    let lines = logged(&path, "cache_clear");
    let all = |wanted: &str| lines.iter().filter(|(key, ..)| key == wanted).count();
    let once = ["cache_clear", "init_start", "init_stop", "run_start", "run_stop"];
    assert_eq!(once.map(all), [1; 5]);
    assert_eq!(["epoch_start", "epoch_stop", "eval_accuracy"].map(all), [2; 3]);
    assert_eq!(lines.last().unwrap().2["status"], "success");

    // A file of the user's is no log, and nothing is added to it.
    fs::write(&path, "mine").unwrap();
    let refused = check_mllog(&path, true).unwrap_err();
    assert!(refused.message.contains("is no log of MLPerf"), "{refused}");
}

#[test]
fn mlperfs_log_has_its_lines_in_mlperfs_order() {
    let directory = tempfile::tempdir().unwrap();
    for (name, metric, accuracy, ends, status) in [
        ("whole", Metric::Iou, 0.9, true, "success"),
        ("poor", Metric::Iou, 0.5, true, "aborted"),
        ("failed", Metric::Iou, 0.9, false, "aborted"),
        ("of another metric", Metric::Accuracy, 0.9, true, "aborted"),
    ] {
        let path = directory.path().join(name);
        let keys = vec![("submission_benchmark".into(), "deepcam".into())];
        let mllog = Some(MlperfKeys { path: path.clone(), keys });
        let mut recorder =
            Recorder::open(ONE, None, &Description { mllog, metric, ..description(2, 2) }, None).unwrap();
        recorder.step(&step(0, 1));
        recorder.epoch(&epoch(1, accuracy));
        recorder.step(&step(1, 2));
        if ends {
            recorder.epoch(&epoch(2, 0.4));
            recorder.finish(Ok(())).unwrap();
        } else {
            recorder.finish(Err(&Error::internal("of a test"))).unwrap();
        }
        let lines = logged(&path, "cache_clear");
        let keys: Vec<&str> = lines.iter().map(|(key, ..)| &**key).collect();
        let tested =
            ["epoch_start", "tracked_stats", "eval_start", "eval_stop", "eval_accuracy", "epoch_stop"];
        let last = if ends { &tested[..] } else { &["epoch_start", "epoch_stop"] };
        let begin = ["cache_clear", "init_start", "submission_benchmark", "init_stop", "run_start"];
        assert_eq!(keys, [&begin[..], &tested, last, &["run_stop"]].concat(), "{name}");
        let numbers =
            lines.iter().filter_map(|(.., about)| about["epoch_num"].as_u64()).collect::<Vec<u64>>();
        assert_eq!(numbers, [[1; 6].to_vec(), vec![2; last.len()]].concat(), "{name}");
        assert_eq!((&lines[9].0[..], lines[9].1.as_f64()), ("eval_accuracy", Some(accuracy)));
        assert_eq!(lines.last().unwrap().2["status"], status, "{name}");
    }
}
