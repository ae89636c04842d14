//! Two runs at once, or one after another that was killed, never work on the same files:
//!
//! - of several that start in one second each has a record of its own, whole; of several that want one file or one
//!   directory of checkpoints one runs, and the others name it: host, process, time
//! - an owner that was killed is taken over at once by one of those that come next, a stopped one is not
//! - a command that was done, or killed at any moment, can be typed again: also with --save-weights and --timeline
//! - a closed terminal is a checkpoint; a Slurm job that ended long ago stops nothing
//! - limits of a process (open files, length of files) and a full /dev/shm cost no run
//!
//! How owners on other nodes are seen is tested in `lib::files::owner` and in `hosts`.

use crate::support::digits::few_tests;
use crate::support::job;
use crate::support::scratch::Scratch;

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use dltrain::random::Stream;
use job::{DLTRAIN, finish, series};

impl Scratch {
    /// One rank without a launcher, in this directory.
    fn here(&self, words: &str) -> Command {
        self.within(&["exec"], words)
    }

    /// The same behind words of a shell, the last of which starts a program.
    fn within(&self, shell: &[&str], words: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{} \"$@\"", shell.join(" ")), "sh", DLTRAIN]);
        command.args(words.split_whitespace()).current_dir(self.directory());
        command
            .env("OMP_NUM_THREADS", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn run_here(&self, words: &str) -> String {
        let done = finish(self.here(words));
        assert!(done.success, "{words}\n{}\n{}", done.stdout, done.stderr);
        done.stdout + &done.stderr
    }

    /// What is in a directory, if it is there.
    fn names(&self, directory: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(directory)).into_iter().flatten();
        let mut names: Vec<String> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

fn text(output: &Output) -> String {
    let [out, err] =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    out + &err
}

fn signal(name: &str, process: u32) {
    assert!(Command::new("kill").args([name, &process.to_string()]).status().unwrap().success());
}

/// Waits until something is so.
fn wait(what: &str, so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !so() {
        assert!(begun.elapsed() < job::SECONDS, "never {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

const QUICK: &str = "--model mnist_net --batch 4 --threads 1 --steps 3 --warmup 0";

/// What a run of this seed comes to, run by itself.
fn losses_alone(scratch: &Scratch, seed: usize) -> Vec<f64> {
    let file = format!("alone-{seed}.h5");
    if !scratch.path(&file).exists() {
        scratch.run_here(&format!("{QUICK} --seed {seed} --results {file}"));
    }
    series(&scratch.path(&file), "steps/loss")
}

/// Every record that is there, with its bytes.
fn records(scratch: &Scratch) -> Vec<(String, Vec<u8>)> {
    let records = scratch.names("results").into_iter().filter(|name| name.ends_with(".h5"));
    records.map(|name| (name.clone(), fs::read(scratch.path("results").join(name)).unwrap())).collect()
}

/// That a file is the whole record of one run: of its process on this host, and with what its seed comes to.
fn is_record_of(path: &Path, process: u32, seed: usize, losses: &[f64]) {
    let file = path.display();
    let of = |name: &str| job::text(path, "config", name);
    assert_eq!(of("seed"), seed.to_string(), "{file}");
    assert!(of("run").ends_with(&format!("-{process}")), "{file}: of {}, not of {process}", of("run"));
    assert_eq!(Some(of("hosts")), dltrain::host::name(), "{file}");
    assert_eq!(series(path, "steps/step"), [0.0, 1.0, 2.0], "{file}");
    assert_eq!(series(path, "steps/loss"), losses, "{file}");
    let status = hdf5::File::open(path).unwrap().dataset("summary/status").unwrap();
    let status = status.read_scalar::<hdf5::types::FixedUnicode<512>>().unwrap();
    assert_eq!(status.as_str(), "finished", "{file}");
}

/// A round of runs that start together with the default --results, some of which are killed: of each that ends with 0
/// the file that it names is its own and whole, and what was there before has every byte. Returns how many were killed.
fn records_are_each_runs_own(scratch: &Scratch, runs: usize, kill: Option<(usize, Duration)>) -> usize {
    let expected: Vec<Vec<f64>> = (1..=runs).map(|seed| losses_alone(scratch, seed)).collect();
    let before = records(scratch);
    let others = || scratch.names("results").into_iter().filter(|name| !name.ends_with(".h5"));
    let others_before = others().count();
    let start = |seed: usize| scratch.here(&format!("{QUICK} --seed {seed}")).spawn().unwrap();
    let mut started: Vec<Child> = (1..=runs).map(start).collect();
    let processes: Vec<u32> = started.iter().map(Child::id).collect();
    if let Some((which, after)) = kill {
        std::thread::sleep(after);
        let _ = started[which % runs].kill();
    }
    let ended: Vec<Output> = started.into_iter().map(|run| run.wait_with_output().unwrap()).collect();
    let mut taken = Vec::new();
    let mut killed = 0;
    for (index, output) in ended.iter().enumerate() {
        let (said, seed) = (text(output), index + 1);
        // It may have been through before.
        if kill.is_some_and(|(which, _)| which % runs == index) && !output.status.success() {
            assert_eq!(output.status.signal(), Some(9), "seed {seed}: {said}");
            killed += 1;
            continue;
        }
        assert!(output.status.success(), "seed {seed}: {said}");
        let file = said.lines().find_map(|line| line.strip_prefix("results ")).expect("a file").trim();
        is_record_of(&scratch.path(file), processes[index], seed, &expected[index]);
        assert!(!taken.contains(&file.to_string()), "{file} is two runs'");
        taken.push(file.to_string());
    }
    let after = records(scratch);
    for record in &before {
        assert!(after.contains(record), "{} was there before and is not as it was", record.0);
    }
    // Only who was killed leaves more.
    assert!(others().count() <= others_before + 2 * killed, "{:?}", others().collect::<Vec<_>>());
    killed
}

/// A round of runs that want one directory of checkpoints: one of them has it. `before` was killed there.
fn checkpoints_are_one_runs(scratch: &Scratch, runs: usize, round: usize) {
    let words = format!("{QUICK} --checkpoint c{round} --resume auto --seed 1");
    let stays = || scratch.here(&format!("{words} --steps 1000000")).spawn().unwrap();
    // One that is killed at its work, and leaves its note.
    let mut before = stays();
    wait("owned", || scratch.path(&format!("c{round}/.owner")).exists());
    before.kill().unwrap();
    before.wait().unwrap();
    let mut started: Vec<Child> = (0..runs).map(|_| stays()).collect();
    let ends = |child: &mut Child| child.try_wait().unwrap().is_some();
    let begun = Instant::now();
    while started.iter_mut().map(ends).filter(|ended| *ended).count() < runs - 1 {
        assert!(begun.elapsed() < job::SECONDS, "more than one run works on the same checkpoints");
        std::thread::sleep(Duration::from_millis(5));
    }
    let owner = started.iter_mut().position(|child| !ends(child)).expect("one goes on");
    let owner = started.swap_remove(owner);
    for refused in started {
        let output = refused.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(8), "{}", text(&output));
        let named = format!("another run is at work on it: process {} on ", owner.id());
        assert!(text(&output).contains(&named), "{named}: {}", text(&output));
    }
    signal("-TERM", owner.id());
    let output = owner.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(75), "{}", text(&output));
    let left = scratch.names(&format!("c{round}"));
    assert!(left.iter().all(|name| name.starts_with("step-") && name.ends_with(".h5")), "{left:?}");
}

#[test]
fn runs_that_start_together_have_records_of_their_own() {
    let scratch = Scratch::new();
    records_are_each_runs_own(&scratch, 6, None);
    records_are_each_runs_own(&scratch, 3, Some((1, Duration::from_millis(120))));
}

#[test]
fn of_runs_on_the_same_checkpoints_one_works_and_the_others_name_it() {
    checkpoints_are_one_runs(&Scratch::new(), 4, 0);
}

/// With two ranks: all are refused, with one message. A stopped owner is alive.
#[test]
fn a_second_job_is_refused_at_once_and_a_dead_owner_is_taken_over() {
    let scratch = Scratch::new();
    let [checkpoints, results] = ["c", "a.h5"].map(|name| scratch.path(name).display().to_string());
    let words =
        format!("{QUICK} --steps 1000000 --checkpoint {checkpoints} --resume auto --results {results}");
    let mut first = scratch.here(&words).spawn().unwrap();
    wait("began", || Path::new(&results).exists());
    signal("-STOP", first.id());
    let flags: Vec<&str> = words.split_whitespace().collect();
    let message = job::refused(&[(2, &flags)]);
    let owner = format!("{checkpoints}: another run is at work on it: process {} on ", first.id());
    assert!(message.contains(&owner) && message.contains(", since 20"), "{message}");
    assert!(message.contains("choose another --checkpoint"), "{message}");
    let other = words.replace(&checkpoints, &scratch.path("d").display().to_string());
    let message = job::refused(&[(2, &other.split_whitespace().collect::<Vec<_>>())]);
    assert!(
        message.contains(&format!("{results}: another run is at work on it: process {}", first.id())),
        "{message}"
    );
    // Killed without a word, and still a child that nobody has waited for.
    signal("-KILL", first.id());
    wait("died", || fs::read_to_string(format!("/proc/{}/stat", first.id())).unwrap().contains(") Z"));
    let said = scratch.run_here(&words.replace("--steps 1000000", "--steps 30"));
    assert!(said.contains("which owned it, has ended: this run takes its place"), "{said}");
    assert_eq!(series(Path::new(&results), "steps/step").len(), 30);
    first.wait().unwrap();
    assert!(!scratch.names("c").iter().any(|name| name.starts_with('.') || name.ends_with(".tmp")));
}

/// The first is stopped while it works.
#[test]
fn a_second_pack_export_or_autotune_names_the_first() {
    let scratch = Scratch::new();
    let data = few_tests();
    for (words, note) in [
        (format!("pack {data} out.h5 --size 32"), ".out.h5.owner"),
        ("bench autotune --output t.json --sizes 4K".into(), ".t.json.owner"),
        (format!("{QUICK} --save-weights w.h5"), ".w.h5.owner"),
        (format!("{QUICK} --timeline l.json"), ".l.json.owner"),
        (format!("{QUICK} --tensorboard events"), "events/.owner"),
    ] {
        let first = scratch.here(&words).spawn().unwrap();
        wait(note, || scratch.path(note).exists());
        signal("-STOP", first.id());
        let second = scratch.here(&words).output().unwrap();
        let named = format!("another run is at work on it: process {} on ", first.id());
        assert!(
            second.status.code() == Some(8) && text(&second).contains(&named),
            "{words}: {}",
            text(&second)
        );
        signal("-CONT", first.id());
        let first = first.wait_with_output().unwrap();
        assert!(first.status.success(), "{}", text(&first));
        assert!(!scratch.path(note).exists(), "{note}");
    }
    // What is there now is whole, and nobody's.
    assert!(scratch.run_here("pack out.h5 --verify").contains("every checksum is right"));
    assert_eq!(scratch.names(".").iter().filter(|name| name.contains(".tmp")).count(), 0);
}

#[test]
fn what_is_done_or_was_killed_can_be_typed_again() {
    let scratch = Scratch::new();
    let words =
        format!("{QUICK} --checkpoint c --resume auto --save-weights w.safetensors --timeline t.json");
    scratch.run_here(&words);
    let weights = || fs::read(scratch.path("w.safetensors")).unwrap();
    let done = weights();
    scratch.run_here(&words);
    assert_eq!(weights(), done);
    assert!(["t.json", "t-2.json"].iter().all(|name| scratch.path(name).exists()));
    // It is made longer: the file is that of the longer run.
    let longer = words.replace("--steps 3", "--steps 6");
    scratch.run_here(&longer);
    assert_ne!(weights(), done);
    // Not of this run any more.
    let mut other = weights();
    *other.last_mut().unwrap() ^= 1;
    fs::write(scratch.path("w.safetensors"), &other).unwrap();
    let refused = scratch.here(&longer).output().unwrap();
    assert!(
        refused.status.code() == Some(8) && text(&refused).contains("is there already"),
        "{}",
        text(&refused)
    );
    assert_eq!(weights(), other);
    // Killed behind the weights, as if before the run's end: its last checkpoint is missing.
    fs::write(scratch.path("w.safetensors"), &done).unwrap();
    let fresh = "--checkpoint d --save-weights v.safetensors --checkpoint-every 2steps";
    let words = format!("{QUICK} --resume auto {fresh}");
    scratch.run_here(&words);
    let whole = fs::read(scratch.path("v.safetensors")).unwrap();
    fs::remove_file(scratch.path("d/step-00000003.h5")).unwrap();
    scratch.run_here(&words);
    assert_eq!(fs::read(scratch.path("v.safetensors")).unwrap(), whole);
    // Without checkpoints nothing says whose it is.
    let plain = scratch.here(&format!("{QUICK} --save-weights v.safetensors")).output().unwrap();
    assert!(plain.status.code() == Some(8) && text(&plain).contains("is there already"), "{}", text(&plain));
}

#[test]
fn a_closed_terminal_is_a_checkpoint_unless_nohup_ignores_it() {
    let scratch = Scratch::new();
    let words = format!("{QUICK} --steps 1000000 --checkpoint c --resume auto --results a.h5");
    for (shell, name, code, said) in [
        // Tests may run under nohup themselves.
        (vec!["exec", "env", "--default-signal=HUP"], "-HUP", 129, "stopped by SIGHUP after"),
        // Of these two the first changes nothing.
        (vec!["exec", "nohup"], "-TERM", 75, "stopped by SIGTERM after"),
    ] {
        let before = dltrain::record::newest_step(&scratch.path("c"));
        let run = scratch.within(&shell, &words).spawn().unwrap();
        let recorded = || hdf5::File::open_as(scratch.path("a.h5"), hdf5::OpenMode::ReadSWMR).is_ok();
        wait("steps", || {
            recorded() && fs::read_to_string(format!("/proc/{}/comm", run.id())).unwrap() == "dltrain\n"
        });
        std::thread::sleep(Duration::from_millis(300));
        signal("-HUP", run.id());
        if name != "-HUP" {
            std::thread::sleep(Duration::from_millis(500));
            assert!(Path::new(&format!("/proc/{}/fd/0", run.id())).exists(), "it ended");
            signal(name, run.id());
        }
        let output = run.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{}", text(&output));
        assert!(text(&output).contains(said), "{}", text(&output));
        assert!(dltrain::record::newest_step(&scratch.path("c")) > before);
    }
    // Nothing was tested yet: there is no best.
    let refused = scratch.here("export a.h5 net.onnx --model mnist_net").output().unwrap();
    let said = text(&refused);
    assert!(said.contains("holds no weights; those of this run are in the newest file of c "), "{said}");
}

#[test]
fn a_slurm_job_that_ended_long_ago_stops_nothing() {
    let scratch = Scratch::new();
    let mut command = scratch.here(&format!("{QUICK} --checkpoint c"));
    command.env("SLURM_JOB_END_TIME", "1700000000");
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    let warned = "SLURM_JOB_END_TIME=1700000000 is in the past, and is ignored";
    assert_eq!(text(&output).matches(warned).count(), 1, "{}", text(&output));
}

/// Of /dev/shm of its own, where there is room for nothing, or not for a commit.
#[test]
fn commits_without_room_are_warned_of_once() {
    let scratch = Scratch::new();
    let mounted =
        Command::new("unshare").args(["--mount", "mount", "-t", "tmpfs", "none", "/dev/shm"]).output();
    if !mounted.is_ok_and(|output| output.status.success()) {
        println!("SKIPPED: this user may not mount a file system");
        return;
    }
    let words = format!("{QUICK} --model mnist_small --steps 12 --commit 2");
    for (name, fill) in [("full", "head -c 9m /dev/zero >/dev/shm/fill 2>/dev/null;"), ("small", "")] {
        let shell = format!("mount -t tmpfs -o size=3m none /dev/shm; {fill} exec \"$@\"");
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &shell, "sh", DLTRAIN]).args(words.split_whitespace());
        command
            .args(["--checkpoint", name, "--results", &format!("{name}.h5")])
            .current_dir(scratch.directory());
        let output = command.env("OMP_NUM_THREADS", "1").stdin(Stdio::null()).output().unwrap();
        let said = text(&output);
        assert!(output.status.success(), "{said}");
        assert_eq!(said.matches("warn: --commit: ").count(), 1, "{said}");
        assert!(!said.contains("] error:"), "{said}");
    }
}

/// A tar file for each of so many images.
fn tar_files(directory: &Path, count: usize) {
    let mut png = Vec::new();
    let mut encoder = png::Encoder::new(&mut png, 8, 8);
    encoder.set_color(png::ColorType::Rgb);
    encoder.write_header().unwrap().write_image_data(&[7; 192]).unwrap();
    fs::create_dir(directory).unwrap();
    for number in 0..count {
        let mut archive =
            tar::Builder::new(fs::File::create(directory.join(format!("{number:04}.tar"))).unwrap());
        for (name, bytes) in [("a.png", &png[..]), ("a.cls", if number % 2 == 0 { b"0" } else { b"1" })] {
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            header.set_mode(0o644);
            archive.append_data(&mut header, name, bytes).unwrap();
        }
        archive.finish().unwrap();
    }
}

/// With a limit that may be raised, and with one that may not.
#[test]
fn a_set_may_lie_in_more_files_than_may_be_open() {
    let scratch = Scratch::new();
    tar_files(&scratch.path("d"), 200);
    let words = "--model mnist_net --data d --classes 2 --batch 20 --threads 1 --epochs 2";
    for limit in ["ulimit -Sn 100;", "ulimit -n 60;"] {
        let output = scratch.within(&[limit, "exec"], words).output().unwrap();
        assert!(output.status.success(), "{limit} {}", text(&output));
    }
}

/// A checkpoint that would be longer than allowed costs itself, as on a full disk, not the run.
#[test]
fn a_limit_of_files_lengths_is_an_error_and_no_kill() {
    let scratch = Scratch::new();
    let words = format!("{QUICK} --model mnist_large --checkpoint c --results a.h5");
    // MPI's own files are of some megabytes.
    let output = scratch.within(&["ulimit -f 20000;", "exec"], &words).output().unwrap();
    let said = text(&output);
    assert_eq!(output.status.code(), Some(8), "{said}");
    assert!(said.contains("total images/sec") && said.contains("File too large"), "{said}");
    assert_eq!(series(&scratch.path("a.h5"), "steps/step").len(), 3);
    assert!(scratch.names("c").is_empty(), "{:?}", scratch.names("c"));
}

/// A disk that is full has room for a name, and none for what is in it.
#[test]
fn a_note_that_cannot_be_written_leaves_nothing() {
    let scratch = Scratch::new();
    let words = format!("{QUICK} --results a.h5 --mllog a.log --mllog-key submission_benchmark=cosmoflow");
    let output = scratch.within(&["trap '' XFSZ; ulimit -f 0;", "exec"], &words).output().unwrap();
    let said = text(&output);
    assert!(!output.status.success() && said.contains("File too large"), "{said}");
    let left: Vec<String> = scratch.names(".").into_iter().filter(|name| name.ends_with(".tmp")).collect();
    assert!(left.is_empty(), "{left:?}: {said}");
}

/// Batch systems that limit memory so would end a run in the midst of a step.
#[test]
fn a_limit_of_addresses_is_kept_by_a_smaller_batch() {
    let scratch = Scratch::new();
    let words = QUICK.replace("--batch 4", "--batch 200000");
    let output = scratch.within(&["ulimit -v 3000000;", "exec"], &words).output().unwrap();
    let said = text(&output);
    assert_eq!(output.status.code(), Some(4), "{said}");
    let what = "free, as `ulimit -v` allows 3.07 GB of addresses: the largest --batch that fits is ";
    assert!(said.contains(what), "{said}");
}

/// As some mounts of NFS and Lustre are: who writes what does not hang on the locks of a file system.
#[test]
fn a_file_system_without_locks_is_written_and_read() {
    let scratch = Scratch::new();
    // Nor does one on a sync of directories, or on the answer to a link that was made.
    let refusing = "#define _GNU_SOURCE\n#include <errno.h>\n#include <sys/stat.h>\n#include <sys/syscall.h>\n\
        #include <unistd.h>\n\
        int flock(int f, int o) { errno = ENOLCK; return -1; }\n\
        int fsync(int f) { struct stat s; if (!fstat(f, &s) && S_ISDIR(s.st_mode)) { errno = EINVAL; return -1; }\n\
            return syscall(SYS_fsync, f); }\n\
        int linkat(int a, const char *b, int c, const char *d, int e) {\n\
            if (syscall(SYS_linkat, a, b, c, d, e) == 0) errno = EEXIST; return -1; }";
    fs::write(scratch.path("a.c"), refusing).unwrap();
    let library = scratch.path("a.so");
    let compiled = Command::new("cc")
        .args(["-w", "-shared", "-fPIC", "-o"])
        .args([&library, &scratch.path("a.c")])
        .output();
    if !compiled.is_ok_and(|output| output.status.success()) {
        println!("SKIPPED: no C compiler");
        return;
    }
    let train = format!("{QUICK} --checkpoint c --resume auto --save-weights w.h5 --results a.h5");
    let pack = format!("pack {} p.h5 --size 32", few_tests());
    let predict = format!("predict {} --model mnist_net --init-from w.h5 -o said.h5", few_tests());
    for words in [&train, &train, &pack, &predict, "report a.h5 -o a.html"] {
        let output = scratch.here(words).env("LD_PRELOAD", &library).output().unwrap();
        assert!(output.status.success(), "{words}: {}", text(&output));
    }
}

mod full {
    use super::*;

    #[test]
    #[ignore = "minutes: make test-full"]
    fn two_hundred_rounds_of_runs_that_start_together() {
        let mut stream = Stream::new([std::process::id(), 0]);
        let scratch = Scratch::new();
        let (mut started, mut killed) = (0, 0);
        for round in 0..200 {
            let runs = [2, 3, 6][round % 3];
            let kill = (round % 2 == 1).then(|| {
                (stream.below(runs as u32) as usize, Duration::from_millis(stream.below(600).into()))
            });
            killed += records_are_each_runs_own(&scratch, runs, kill);
            started += runs;
            checkpoints_are_one_runs(&scratch, runs, round);
            println!("{} rounds, {started} runs with records, {killed} of them killed", round + 1);
        }
    }
}
