//! `dltrain elastic`: a job that goes on when ranks and hosts are lost, and when others come.
//!
//! - ranks and launchers that are killed cost time, and no bit of the result
//! - with fewer slots, and with more, the job moves through a checkpoint; no image of an epoch is missed or seen twice
//! - what a restart cannot help is not started again; what comes to nothing is given up; it waits for enough ranks
//! - told to stop it passes that on, and leaves no process behind
//!
//! How words are changed and hosts kept is tested in `lib::elastic`; hosts that go and come back in `hosts`.

use crate::support::digits;
use crate::support::job;
use crate::support::scratch::Scratch;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use job::{DLTRAIN, run, series};

/// A directory of a test (also of `hosts`), with DIR for it in words.
impl Scratch {
    /// A file, replaced at once.
    fn write(&self, name: &str, text: &str) {
        fs::write(self.path("new"), text).unwrap();
        fs::rename(self.path("new"), self.path(name)).unwrap();
    }

    /// A program in place of dltrain.
    fn program(&self, script: &str) -> String {
        use std::os::unix::fs::PermissionsExt;
        let script = script.replace("DIR", self.directory().to_str().unwrap());
        self.write("dltrain", &format!("#!/bin/sh\n{script}\n"));
        fs::set_permissions(self.path("dltrain"), fs::Permissions::from_mode(0o755)).unwrap();
        self.path("dltrain").to_str().unwrap().to_string()
    }

    /// `dltrain elastic FLAGS -- mpirun … RANKS PROGRAM …`.
    fn start(&self, flags: &str, ranks: &str, program: &str, words: &str) -> Elastic {
        let launcher = [job::launcher(), self.words(ranks)].concat();
        self.spawn(Command::new(DLTRAIN), flags, &launcher, program, words)
    }

    /// The same by a command that ends with dltrain. It writes to DIR/out and DIR/err.
    pub fn spawn(
        &self,
        mut command: Command,
        flags: &str,
        launcher: &[String],
        program: &str,
        words: &str,
    ) -> Elastic {
        command.arg("elastic").args(self.words(flags)).arg("--").args(launcher);
        command.arg(program).args(self.words(words)).stdin(Stdio::null());
        let [out, err] = ["out", "err"].map(|name| fs::File::create(self.path(name)).unwrap());
        command.env("OMP_NUM_THREADS", "1").stdout(out).stderr(err);
        let (child, watch) = job::spawn(&mut command, job::limit());
        Elastic { child, watch, err: self.path("err") }
    }

    pub fn checkpoints(&self) -> usize {
        let entries = fs::read_dir(self.path("c")).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        names
            .filter_map(|name| name.strip_prefix("step-")?.strip_suffix(".h5")?.parse().ok())
            .max()
            .unwrap_or(0)
    }
}

/// `dltrain elastic` under way.
pub struct Elastic {
    child: Child,
    watch: job::Watch,
    err: PathBuf,
}

impl Elastic {
    /// Waits until something is so.
    pub fn wait(&mut self, what: &str, so: impl Fn() -> bool) {
        let begun = Instant::now();
        while !so() {
            let err = fs::read_to_string(&self.err).unwrap();
            assert!(self.child.try_wait().unwrap().is_none(), "ended, and never {what}: {err}");
            assert!(begun.elapsed() < job::SECONDS, "never {what}: {err}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until it has said this so many times.
    pub fn hear(&mut self, said: &str, times: usize) {
        let err = self.err.clone();
        self.wait(said, || fs::read_to_string(&err).unwrap().matches(said).count() >= times);
    }

    pub fn signal(&self, name: &str) {
        signal(name, self.child.id());
    }

    /// The processes of its job that have this name.
    fn processes(&self, name: &str) -> Vec<u32> {
        let mark = format!("DLTRAIN_ELASTIC_JOB={}.", self.child.id());
        let is_one = |pid: &u32| {
            let read = |file: &str| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
            let mut variables = read("environ").split(|&b| b == 0).map(<[u8]>::to_vec).collect::<Vec<_>>();
            variables.retain(|variable| variable.starts_with(mark.as_bytes()));
            !variables.is_empty() && read("comm").starts_with(name.as_bytes())
        };
        let names = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().file_name());
        names.filter_map(|name| name.to_str()?.parse().ok()).filter(is_one).collect()
    }

    /// Waits for its end: code, and what it said on standard error.
    pub fn end(mut self) -> (i32, String) {
        let code = self.child.wait().unwrap().code().expect("a code");
        let left = self.processes("");
        let err = fs::read_to_string(&self.err).unwrap();
        assert_eq!(self.watch.ended(), None, "{err}");
        assert!(left.is_empty(), "{left:?} are left: {err}");
        (code, err)
    }
}

fn signal(name: &str, process: u32) {
    assert!(Command::new("kill").args([name, &process.to_string()]).status().unwrap().success());
}

/// Steps in a record that is being written.
fn recorded(path: &Path) -> usize {
    let open = || hdf5::File::open_as(path, hdf5::OpenMode::ReadSWMR).ok()?.dataset("steps/step").ok();
    open().map_or(0, |steps| steps.size())
}

fn losses(results: &Path) -> [Vec<f64>; 4] {
    ["steps/step", "steps/loss", "epochs/train_loss", "epochs/test_loss"].map(|name| series(results, name))
}

/// With dropout, whose numbers must go on where they were.
#[test]
fn killed_ranks_and_launchers_cost_no_bit() {
    let scratch = Scratch::new();
    let flags =
        format!("--model mnist_net --data {} --batch 16 --threads 1 --steps 150", digits::few_tests());
    let whole = scratch.words(&format!("{flags} --results DIR/whole.h5"));
    run(2, &whole.iter().map(String::as_str).collect::<Vec<_>>());
    let words = format!("{flags} --results DIR/a.h5 --checkpoint DIR/c --checkpoint-every 2steps");
    let mut elastic = scratch.start("--min-ranks 2", "-n 2", DLTRAIN, &words);
    for (kill, program) in ["dltrain", "dltrain", "mp"].into_iter().enumerate() {
        let before = scratch.checkpoints();
        elastic.wait("got further", || scratch.checkpoints() > before + 8);
        let processes = elastic.processes(program);
        signal("-KILL", processes[kill % processes.len()]);
        elastic.hear("s after the end", kill + 1);
    }
    let (code, err) = elastic.end();
    assert!(code == 0 && err.contains("restart 3: 2 ranks on "), "{err}");
    assert!(err.contains("ends with code 0 after 3 restarts; "), "{err}");
    assert_eq!(losses(&scratch.path("a.h5")), losses(&scratch.path("whole.h5")));
}

#[test]
fn a_job_shrinks_and_grows_with_its_hosts_and_sees_each_image_once() {
    let scratch = Scratch::new();
    let flags = "--model mnist_small --batch 16 --threads 1 --optimizer sgd --lr 0.01 --epochs 12";
    let flags = format!("{flags} --data {}", digits::few_tests());
    let words = format!("{flags} --results DIR/a.h5 --checkpoint DIR/c --checkpoint-every 5steps");
    scratch.write("hosts", "localhost:2\n");
    let elastic = "--min-ranks 1 --max-ranks 2 --poll 0.1 --hosts cat${IFS}DIR/hosts";
    let mut elastic = scratch.start(elastic, "", DLTRAIN, &words);
    for (restart, slots) in [1, 3].into_iter().enumerate() {
        let before = scratch.checkpoints();
        elastic.wait("got further", || scratch.checkpoints() > before + 20);
        scratch.write("hosts", &format!("# now\nlocalhost:{slots}\n"));
        elastic.hear("s after the end", restart + 1);
    }
    let (code, err) = elastic.end();
    assert_eq!(code, 0, "{err}");
    for said in [
        "starts 2 ranks on localhost:2",
        "localhost has no more room for 2 ranks: the job is to write a checkpoint and end",
        "with code 75 (stopped as asked)",
        "restart 1: 1 rank on localhost:1, ",
        "there is room for 2 ranks: ",
        "restart 2: 2 ranks on localhost:2, ",
    ] {
        assert_eq!(err.matches(said).count(), if said.starts_with("with") { 2 } else { 1 }, "{said}: {err}");
    }
    // Of 1437 images those that do not fill a last step of 32 or 16 are left out.
    let images = series(&scratch.path("a.h5"), "steps/images");
    let [steps, ..] = losses(&scratch.path("a.h5"));
    assert!(steps.iter().enumerate().all(|(row, &step)| step == row as f64), "{steps:?}");
    assert!(images.contains(&16.0) && images.first() == Some(&32.0) && images.last() == Some(&32.0));
    let seen = images.iter().sum::<f64>() / 12.0;
    assert!((1408.0..=1437.0).contains(&seen), "{seen} images an epoch");
    // The losses depend on when the host went and came; that of one epoch jumps, the median of the later half does not.
    let [.., test] = losses(&scratch.path("a.h5"));
    assert_eq!(test.len(), 12);
    let mut later = test[6..].to_vec();
    later.sort_by(f64::total_cmp);
    assert!(later[3] < 0.5 * test[0], "{test:?}");
}

/// Ranks are killed at random while the job goes from four ranks to two and back, with shards and with commits between
/// few checkpoints. At the latest after two kills it gets further.
fn random_kills_cost_no_bit(kills: usize) {
    use dltrain::random::{Purpose, Stream, key};
    let scratch = Scratch::new();
    let flags = "--model mnist_net --shards 8 --batch 4 --threads 1 --optimizer sgd --momentum 0.9 --lr 0.01";
    let flags = format!("{flags} --data {}", digits::few_tests());
    let words = format!(
        "{flags} --epochs 1000000 --results DIR/a.h5 --checkpoint DIR/c --checkpoint-every 100steps --commit 3"
    );
    scratch.write("hosts", "localhost:4\n");
    let elastic = "--min-ranks 2 --max-ranks 4 --poll 0.1 --hosts cat${IFS}DIR/hosts";
    let mut elastic = scratch.start(elastic, "", DLTRAIN, &words);
    let mut random = Stream::new(key(19, Purpose::Synthetic, 0));
    for kill in 0..kills {
        if kill % 10 == 9 || kill == 1 {
            let slots = if random.below(2) == 0 { 2 } else { 4 };
            scratch.write("hosts", &format!("localhost:{slots}\n"));
        }
        // Every third one hits a job that may still be starting.
        let next = recorded(&scratch.path("a.h5"));
        if kill % 3 != 2 {
            elastic.wait("got further", || recorded(&scratch.path("a.h5")) > next);
        }
        std::thread::sleep(Duration::from_millis(random.below(400).into()));
        let ranks = elastic.processes("dltrain");
        if let Some(rank) = ranks.iter().rfind(|&&rank| rank != elastic.child.id()) {
            let _ = Command::new("kill").args(["-KILL", &rank.to_string()]).status();
        }
    }
    let before = recorded(&scratch.path("a.h5"));
    elastic.wait("got further", || recorded(&scratch.path("a.h5")) > before + 5);
    elastic.signal("-TERM");
    let (code, err) = elastic.end();
    assert_eq!(code, 75, "{err}");
    let [steps, losses, ..] = losses(&scratch.path("a.h5"));
    assert!(steps.iter().enumerate().all(|(row, &step)| step == row as f64), "{err}");
    let whole =
        scratch.words(&format!("{flags} --epochs 1000000 --steps {} --results DIR/whole.h5", steps.len()));
    run(4, &whole.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(series(&scratch.path("whole.h5"), "steps/loss"), losses, "{err}");
    assert!(err.matches("Z: restart ").count() >= kills / 2, "{err}");
}

#[test]
fn ranks_killed_at_random_with_shards_cost_no_bit() {
    random_kills_cost_no_bit(4);
}

#[test]
#[ignore = "minutes; make test-full"]
fn full() {
    random_kills_cost_no_bit(100);
}

#[test]
fn what_a_restart_cannot_help_ends() {
    let scratch = Scratch::new();
    let ends = |flags: &str, program: &str, words: &str| {
        let (code, err) = scratch.start(flags, "-n 1", program, words).end();
        (code, err.matches("Z: restart ").count(), err)
    };
    let (code, restarts, err) = ends("--min-ranks 1", DLTRAIN, "--checkpoint DIR/c --batch 0");
    assert!((code, restarts) == (2, 0) && err.contains("a restart would end in the same way"), "{err}");
    // Refused before anything is started.
    for (flags, words, said) in [
        ("--min-ranks 1", "--batch 8", "the job has no --checkpoint DIR"),
        ("--min-ranks 1", "--checkpoint DIR/c --resume DIR/a.h5", "would go back to that file"),
        ("--min-ranks 0", "--checkpoint DIR/c", "--min-ranks 0: "),
        ("--min-ranks 3 --max-ranks 2", "--checkpoint DIR/c", "--max-ranks 2 is less than --min-ranks 3"),
        ("--min-ranks 2", "--checkpoint DIR/c", "to start 1 rank, fewer than --min-ranks 2"),
        ("--min-ranks 1 --poll 0", "--checkpoint DIR/c", "--poll 0: "),
        ("--min-ranks 1 --hosts echo${IFS}h0:x", "--checkpoint DIR/c", "\"h0:x\" is no host"),
    ] {
        let (code, restarts, err) = ends(flags, DLTRAIN, words);
        assert!((code, restarts) == (2, 0) && err.contains(said) && !err.contains("starts"), "{err}");
        assert_eq!(err.matches("error: ").count(), 1, "{err}");
    }
    let failing = scratch.program("exit 9");
    let (code, restarts, err) = ends("--min-ranks 1", &failing, "--checkpoint DIR/c");
    assert_eq!((code, restarts), (9, 2), "{err}");
    assert!(err.contains("; gives up: 3 jobs in a row failed within 30 s and wrote no checkpoint"), "{err}");
    let (code, restarts, err) = ends("--min-ranks 1 --max-restarts 1", &failing, "--checkpoint DIR/c");
    assert!((code, restarts) == (9, 1) && err.contains("; gives up: --max-restarts is 1"), "{err}");
    // As long as it gets further it is started again.
    let script = "mkdir -p DIR/c; n=$(ls DIR/c | wc -l); touch DIR/c/step-0000000$n.h5; [ $n = 5 ] || exit 5";
    let (code, restarts, err) = ends("--min-ranks 1", &scratch.program(script), "--checkpoint DIR/c");
    assert_eq!((code, restarts), (0, 5), "{err}");
    let (code, restarts, err) = ends("--min-ranks 1", &scratch.program("exit 75"), "--checkpoint DIR/c");
    assert_eq!((code, restarts), (75, 0), "{err}");
}

#[test]
fn told_to_stop_it_passes_that_on_and_leaves_nothing_behind() {
    let scratch = Scratch::new();
    let words = "--model mnist_small --batch 16 --threads 1 --steps 1000000 --results DIR/a.h5";
    let words = format!("{words} --checkpoint DIR/c --checkpoint-every 10steps");
    // Under nohup, as tests may run, SIGHUP is ignored.
    let heard = |name: &&str| *name != "HUP" || !dltrain::host::ignores(signal_hook::consts::SIGHUP);
    for name in ["TERM", "HUP", "QUIT"].into_iter().filter(heard) {
        let before = scratch.checkpoints();
        let mut elastic = scratch.start("--min-ranks 1", "-n 2", DLTRAIN, &words);
        elastic.wait("got further", || scratch.checkpoints() > before + 10);
        elastic.signal(&format!("-{name}"));
        let (code, err) = elastic.end();
        let said = format!("SIG{name}: the job is to write a checkpoint");
        assert!(code == 75 && !err.contains("Z: restart ") && err.contains(&said), "{code}: {err}");
        assert_eq!(series(&scratch.path("a.h5"), "steps/step").len(), scratch.checkpoints());
    }
    // Ranks that were not there yet are told again.
    let late = "trap 'n=1$n; [ $n = 1 ] || exit 75' USR1; touch DIR/late; while :; do sleep 0.1; done";
    let mut elastic = scratch.start("--min-ranks 1", "-n 1", &scratch.program(late), "--checkpoint DIR/c");
    elastic.wait("began", || scratch.path("late").exists());
    elastic.signal("-USR1");
    let (code, err) = elastic.end();
    assert!(code == 75 && err.matches("Z: SIGUSR1").count() == 1, "{code}: {err}");
    // A job that does not listen is ended by the second signal.
    let deaf = scratch.program("trap '' USR1; touch DIR/deaf; while :; do sleep 1; done");
    let mut elastic = scratch.start("--min-ranks 1", "-n 2", &deaf, "--checkpoint DIR/c");
    elastic.wait("began", || scratch.path("deaf").exists());
    elastic.signal("-INT");
    elastic.hear("SIGINT: the job is to write a checkpoint", 1);
    elastic.signal("-INT");
    let (code, err) = elastic.end();
    assert!(code != 0 && err.contains("SIGINT again: the job is ended at once"), "{code}: {err}");
    // With too few slots it waits, and says so once.
    scratch.write("hosts", "localhost:1\n");
    let flags = "--min-ranks 2 --poll 0.05 --hosts cat${IFS}DIR/hosts";
    for end in ["-TERM", "hosts"] {
        let mut elastic = scratch.start(flags, "", &scratch.program("exit 0"), "--checkpoint DIR/c");
        elastic.hear("waits: there is room for 1 rank, and --min-ranks is 2; looks again every 0.05 s", 1);
        std::thread::sleep(Duration::from_millis(300));
        match end {
            "hosts" => scratch.write("hosts", "localhost:2\n"),
            name => elastic.signal(name),
        }
        let (code, err) = elastic.end();
        assert_eq!((code, err.matches("waits").count()), (if end == "hosts" { 0 } else { 75 }, 1), "{err}");
    }
}

/// Another that is typed meanwhile is refused; one that is typed when the first was killed ends its job, and goes on.
#[test]
fn a_job_that_outlived_its_elastic_ends_before_the_next_begins() {
    let scratch = Scratch::new();
    let words = "--model mnist_small --batch 16 --threads 1 --results DIR/a.h5";
    let words = format!("{words} --checkpoint DIR/c --checkpoint-every 10steps");
    let long = format!("{words} --steps 1000000");
    let mut first = scratch.start("--min-ranks 1", "-n 2", DLTRAIN, &long);
    first.wait("got further", || scratch.checkpoints() > 10);
    let mut command = Command::new(DLTRAIN);
    command.args(["elastic", "--min-ranks", "1", "--"]).args(job::launcher()).args(["-n", "2", DLTRAIN]);
    let refused = job::finish({
        command.args(scratch.words(&long));
        command
    });
    let named = format!("another dltrain elastic is at work on it: process {} on ", first.child.id());
    assert!(refused.code == Some(8) && refused.stderr.contains(&named), "{}", refused.stderr);
    first.signal("-KILL");
    first.child.wait().unwrap();
    let orphans = first.processes("dltrain");
    assert_eq!(orphans.len(), 2);
    let mut second = scratch.start("--min-ranks 1", "-n 2", DLTRAIN, &long);
    let before = scratch.checkpoints();
    second.hear("is of a job that outlived its dltrain elastic: it is to write a checkpoint and end", 1);
    second.hear("starts 2 ranks on ", 1);
    second.wait("got further", || scratch.checkpoints() > before + 30);
    assert!(first.processes("dltrain").is_empty(), "two jobs at a time");
    second.signal("-TERM");
    let (code, err) = second.end();
    assert_eq!(code, 75, "{err}");
    let steps = series(&scratch.path("a.h5"), "steps/step");
    assert!(steps.iter().enumerate().all(|(row, &step)| step == row as f64), "{steps:?}");
}

#[test]
fn it_starts_the_launcher_and_not_the_other_way_round() {
    let flags = ["elastic", "--min-ranks", "1", "--", "mpirun", DLTRAIN, "--checkpoint", "c"];
    let message = job::refused(&[(2, &flags)]);
    assert!(message.contains("dltrain elastic starts the launcher by itself"), "{message}");
}
