//! `gpu-bundle/ten-minutes` and `check` (.ci/gpu-minutes, .ci/gpu-check) with doubles of their programs, which break
//! what they are told to: each check says so, and of what is whole none does. A part that never returns takes its own
//! time and nobody else's, what it leaves is ended, and the table and the archive come in time. The tests that the
//! scripts name are there.

use crate::support::bundled::{TAKES, bundle, executable};
use crate::support::gpu_job::with_cuda;
use crate::support::job::{self, finish};

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// What a script prints, and how it ends, in an environment that has nothing but PATH.
struct Ran {
    printed: String,
    said: String,
    code: Option<i32>,
}

impl Ran {
    fn new(output: Output) -> Ran {
        let [printed, said] =
            [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        Ran { printed, said, code: output.status.code() }
    }

    /// The line of a part in the closing table.
    fn row(&self, part: &str) -> &str {
        let table = self.printed.rsplit("call, ").next().unwrap();
        let found = table.lines().find(|line| line.split_whitespace().next() == Some(part));
        found.unwrap_or_else(|| panic!("no {part} in\n{}{}", self.printed, self.said))
    }

    fn expect<const N: usize>(&self, rows: [(&str, &str, &str); N]) {
        for (part, verdict, words) in rows {
            let row = self.row(part);
            let good = row.split_whitespace().nth(1) == Some(verdict.split(' ').next().unwrap());
            assert!(
                good && row.contains(words),
                "{part}: {verdict}, {words}:\n{}{}",
                self.printed,
                self.said
            );
        }
    }
}

fn script(directory: &Path, name: &str, broken: &str) -> Command {
    let mut command = Command::new(directory.join(name));
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap()).env("TMPDIR", directory);
    command.env("OUT", directory.join("out")).env("BROKEN", broken);
    command
}

fn minutes(directory: &Path, call: &str, minutes: &str, broken: &str) -> Command {
    let mut command = script(directory, "ten-minutes", broken);
    command.arg(call).env("MINUTES", minutes).env("PACE", "7");
    command
}

fn learned(directory: &Path, call: &str, within: &str, broken: &str) -> Ran {
    Ran::new(minutes(directory, call, within, broken).output().unwrap())
}

/// A call at its full length by a clock that goes on by what parts are expected to take.
fn timetable(directory: &Path, call: &str, within: &str, broken: &str) -> Ran {
    timed(directory, call, within, broken, TAKES)
}

fn timed(directory: &Path, call: &str, within: &str, broken: &str, takes: &str) -> Ran {
    let clock = directory.join("clock");
    fs::write(&clock, "0").unwrap();
    fs::write(directory.join("out.takes"), takes).unwrap();
    let mut command = minutes(directory, call, within, broken);
    Ran::new(command.env("PACE", "100").env("CLOCK", clock).output().unwrap())
}

fn check(directory: &Path, names: &[&str], broken: &str) -> Ran {
    let mut command = script(directory, "check", broken);
    command.args(names).env("RESULTS", directory.join("out")).env("LEAK_STEPS", "7");
    Ran::new(command.output().unwrap())
}

#[test]
fn what_is_whole_passes_every_check() {
    let directory = tempfile::tempdir().unwrap();
    bundle(directory.path());
    let ran = timetable(directory.path(), "first", "12", "");
    ran.expect([
        ("machine", "ok", "NVIDIA H100"),
        ("one-step", "ok", "6200.00 images/s"),
        ("graphs-same-bits", "ok", "6200.00 images/s, loss 6.5000"),
        ("graphs-bf16", "ok", "6200.00 images/s"),
        ("kernels", "ok", "5 passed, 0 failed"),
        ("limits", "ok", "bf16 798.0, f16 801.0, copy 3000"),
        ("resnet50-bf16-apart", "ok", "6200.00 images/s, loss 6.5000"),
        ("resnet50-first-loss", "ok", "first loss: 6.8901, PyTorch 6.9123"),
        ("resnet50-bf16", "ok", "6200.00 images/s, loss 6.5300"),
        ("resnet50-losses", "ok", "losses: 4 within 5 %"),
        ("peer-resnet50-bf16", "ok", "4500.0 images/s"),
        ("figures", "ok", "4 below the roofline of 8000.0 images/s"),
        ("digits-bf16", "ok", "accuracy 97.1%"),
        ("two-ranks-no-overlap", "ok", "6200.00 images/s"),
        ("one-rank-nccl", "ok", "6200.00 images/s"),
        ("two-ranks-nccl", "ok", "refused as it should be"),
        // One whole step, wherever among its kernels the window begins.
        ("resnet50-kernels", "ok", "680 launches of 3 kernels, 6.800 ms (a step, of 1)"),
        ("resnet50-traffic", "ok", "680 launches of 3 kernels, 6.800 ms (a step, of 1)"),
        ("ops", "stopped", "5 passed"),
    ]);
    assert_eq!(ran.code, Some(0), "{}{}", ran.printed, ran.said);
    assert!(ran.printed.contains("dltrain 0123abc, first call") && ran.printed.contains("0 failed"));
    // The resnet50 without fusions comes first: a figure in any case.
    let at = |part: &str| ran.printed.find(part).unwrap();
    assert!(at("resnet50-bf16-apart ") < at("resnet50-bf16 "), "{}", ran.printed);
    as_documented(&ran, "first");
    // In eight minutes all is reached that decides something.
    let ran = timetable(directory.path(), "first", "8", "");
    ran.expect([
        ("two-ranks-shm", "ok", "images/s"),
        ("ops", "stopped", "5 passed"),
        ("resnet50-kernels", "ok", "680 launches"),
        ("models", "stopped", "5 passed"),
        ("resnet50-traffic", "not run", "no time left"),
    ]);
    assert_eq!(ran.code, Some(0), "{}{}", ran.printed, ran.said);
    // The call's end stops tests before the first has ended; where time is left that is a failure.
    let ran = timetable(directory.path(), "first", "8", "slow");
    ran.expect([("models", "stopped", "no test has ended")]);
    assert_eq!(ran.code, Some(0), "{}{}", ran.printed, ran.said);
    timetable(directory.path(), "first", "12", "slow").expect([("models", "FAILED", "no figure")]);
    // Libraries may come from a slow disk.
    let cold = TAKES.replace("machine 15", "machine 39").replace("one-step 25", "one-step 99");
    let ran = timed(directory.path(), "first", "8", "", &cold);
    ran.expect([("machine", "ok", "NVIDIA H100"), ("one-step", "ok", "6200.00 images/s")]);
}

/// Each part of the documented table ends when this one has it end, and none is missing there.
fn as_documented(ran: &Ran, call: &str) {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/gpu.md");
    let page = fs::read_to_string(page).unwrap();
    let table =
        page.split("| until s, cold |").skip(1).find(|table| table.starts_with(&format!(" `{call}` ")));
    let table = table.unwrap_or_else(|| panic!("no table of {call}"));
    let documented: Vec<(String, String)> = table
        .lines()
        .skip(2)
        .map_while(|line| line.strip_prefix("| "))
        .map(|line| line.split(" | ").map(str::to_string).collect::<Vec<_>>())
        .map(|cells| (cells[1].trim_matches('`').to_string(), cells[0].clone()))
        .collect();
    let mut ends = 0;
    let rows = ran.printed.rsplit("call, ").next().unwrap().lines();
    let timed: Vec<(String, String)> = rows
        .filter_map(|row| {
            let words: Vec<&str> = row.split_whitespace().collect();
            let seconds = words.iter().position(|word| *word == "s").filter(|at| *at >= 2)?;
            ends += words[seconds - 1].parse::<usize>().ok()?;
            Some((words[0].to_string(), ends.to_string()))
        })
        .collect();
    let timed = &timed[..documented.len().min(timed.len())];
    assert_eq!(documented, timed, "docs/gpu.md, {call}:\n{}", ran.printed);
}

/// What fails behind the first steps fails by itself, also what adds up wrongly or begins with a wrong loss.
#[test]
fn what_fails_behind_the_first_steps_is_named() {
    let directory = tempfile::tempdir().unwrap();
    bundle(directory.path());
    let ran = timetable(directory.path(), "first", "12", "fused one permission adds forward");
    ran.expect([
        ("resnet50-bf16-apart", "ok", "6200.00 images/s"),
        // Without what has failed the rest is learned.
        ("resnet50-bf16", "FAILED", "engine 5 of Forward bf16"),
        ("resnet50-losses", "not run", "not both have losses: resnet50-bf16-apart, resnet50-bf16"),
        ("resnet50-steps", "ok", "6400.00 images/s"),
        ("figures", "ok", "3 below the roofline"),
        ("resnet50-first-loss", "FAILED", "first loss: 7.4000, PyTorch 6.9123"),
        ("two-ranks-ipc", "ok", "loss 6.5000"),
        ("two-ranks-shm", "FAILED", "other losses than two-ranks-ipc's: < 10 6.5000 > 10 6.5001"),
        ("one-rank-nccl", "FAILED", "error: ncclCommInitRankConfig failed with code 3"),
        // Not a fault of what was to be checked.
        ("resnet50-kernels", "not run", ""),
        ("two-ranks-no-overlap", "ok", "loss 6.5001"),
    ]);
    assert!(ran.code == Some(1) && ran.printed.contains("4 failed"), "{}", ran.printed);
    // What is wrong by a rate that is right; and where nothing is there to compare with that is said.
    let ran = timetable(directory.path(), "first", "12", "gradients ipc unlike");
    ran.expect([
        ("resnet50-bf16", "ok", "6200.00 images/s"),
        ("resnet50-losses", "FAILED", "other losses than resnet50-bf16-apart: step 10: 6.9200, not 6.5000"),
        ("two-ranks-ipc", "FAILED", "cuIpcOpenMemHandle_v2 failed"),
        ("two-ranks-shm", "ok", ", loss 6.5000, nothing to compare with"),
        ("two-ranks-no-overlap", "ok", "loss 6.5000"),
        ("resnet50-kernels", "ok", "680 launches"),
        ("resnet50-traffic", "FAILED", "losses at launches [418, 1098] of "),
    ]);
    assert!(ran.code == Some(1) && ran.printed.contains("3 failed"), "{}", ran.printed);
    let ran = timetable(directory.path(), "first", "8", "silent");
    ran.expect([
        ("graphs-same-bits", "FAILED", "no losses"),
        ("two-ranks-ipc", "ok", "images/s"),
        ("two-ranks-shm", "FAILED", "as graphs-same-bits"),
    ]);
    let ran = timetable(directory.path(), "second", "20", "gradients early");
    ran.expect([("mnist_small-bf16-pdl", "FAILED", "other losses than mnist_small-bf16's: < 10 6.5000")]);
    for part in ["resnet50-losses", "vgg16-losses"] {
        ran.expect([(part, "FAILED", "6.9200, not 6.5000")]);
    }
    let ran = timetable(directory.path(), "second", "20", "diverged");
    ran.expect([("resnet50-f16-apart", "FAILED", "no figure"), ("resnet50-losses", "FAILED", "NaN")]);
    // Graphs that learn something else: the rest goes on without them.
    let ran = timetable(directory.path(), "first", "8", "captured");
    ran.expect([
        ("graphs", "ok", "6200.00 images/s"),
        ("graphs-same-bits", "FAILED", "other weights than graphs's"),
        ("resnet50-bf16", "ok", "6200.00 images/s"),
    ]);
    assert!(ran.code == Some(1) && ran.printed.contains("1 failed"), "{}", ran.printed);
    let ran = timetable(directory.path(), "first", "8", "replayed");
    ran.expect([("graphs-same-bits", "FAILED", "other losses than graphs's: < 10 6.5000")]);
    // Neither with fusions nor without: nothing that needs halves is begun.
    let ran = timetable(directory.path(), "first", "8", "all-halves");
    ran.expect([("bf16-apart", "FAILED", "as graphs-bf16"), ("one-step-blocking", "TIMED OUT", "")]);
    assert!(!ran.printed.contains("resnet50"), "{}", ran.printed);
}

/// The second call as it is documented, at the times that are expected.
#[test]
fn the_second_call_has_its_figures_in_time() {
    let directory = tempfile::tempdir().unwrap();
    bundle(directory.path());
    let ran = timetable(directory.path(), "second", "2.7", "");
    ran.expect([
        ("resnet50-f16-apart", "ok", "6200.00 images/s"),
        ("mnist_small-bf16", "ok", "6200.00 images/s"),
        ("compiled-mnist_small-bf16", "ok", "4500.0 images/s"),
        ("vgg16-bf16-apart", "ok", "6200.00 images/s"),
        ("limits", "ok", "bf16 798.0"),
        ("mnist_small-bf16-pdl", "ok", "6200.00 images/s"),
        ("resnet50-f16", "stopped", ""),
        ("peer-resnet50-f16", "not run", "no time left"),
    ]);
    assert_eq!(ran.code, Some(0), "{}{}", ran.printed, ran.said);
    // Where time ends it before it has a figure, what it has chosen is there for the next call.
    let ran = timetable(directory.path(), "second", "2.7", "choosing");
    ran.expect([("resnet50-f16", "stopped", "")]);
    assert!(!ran.row("resnet50-f16").contains("no test"), "{}", ran.printed);
    assert_eq!(ran.code, Some(0), "{}{}", ran.printed, ran.said);
    let ran = timetable(directory.path(), "second", "20", "");
    as_documented(&ran, "second");
    for part in TAKES
        .lines()
        .map(|line| line.split(' ').next().unwrap())
        .skip_while(|part| *part != "resnet50-f16-apart")
    {
        ran.expect([(part, "ok", " images/s")]);
    }
    assert_eq!(ran.code, Some(0), "{}{}", ran.printed, ran.said);
    let ran = timetable(directory.path(), "second", "20", "driver diverged loss limits");
    let rows = ran.printed.rsplit("call, ").next().unwrap().lines();
    let rows = rows.filter(|row| row.contains(" s  ") && !row.contains("-losses "));
    assert!(rows.clone().count() > 14 && rows.clone().all(|row| row.contains(" FAILED ")), "{}", ran.printed);
}

/// The bundle is not made where it lacks a library, or leaves no room for engines.
#[test]
fn what_the_bundle_lacks_or_has_too_much_is_refused() {
    let checked = |check: &str| {
        let functions = r#"eval "$(sed -n '/^all_is_in()/,/^}/p; /^fits()/,/^}/p' .ci/gpu-bundle)"; "#;
        let mut command = Command::new("bash");
        command.args(["-c", &format!("{functions}{check}")]).current_dir(env!("CARGO_MANIFEST_DIR"));
        Ran::new(command.output().unwrap())
    };
    assert_eq!(checked("all_is_in /nowhere /bin/true").code, Some(0));
    let lacks = checked(&format!("all_is_in /nowhere /bin/true {}", job::DLTRAIN));
    assert!(lacks.code == Some(1) && lacks.said.contains(" libmpi"), "{}", lacks.said);
    assert_eq!(checked("fits 40000000").code, Some(0));
    let large = checked("fits 40000001");
    assert!(large.code == Some(1) && large.said.contains("no room for engines"), "{}", large.said);
}

/// Nor is it begun without what packs it, or without the MPI that travels with it.
#[test]
fn without_xz_or_an_mpi_that_travels_no_bundle_is_made() {
    let directory = tempfile::tempdir().unwrap();
    let (here, root) = (directory.path(), Path::new(env!("CARGO_MANIFEST_DIR")));
    let [ci, tools] = [".ci", "tools"].map(|name| here.join(name));
    [&ci, &tools].iter().for_each(|folder| fs::create_dir(folder).unwrap());
    fs::copy(root.join(".ci/gpu-bundle"), ci.join("gpu-bundle")).unwrap();
    executable(&ci.join("deps"), r#"[ "$*" = "mpich tests wheels" ]"#);
    std::os::unix::fs::symlink("/usr/bin/dirname", tools.join("dirname")).unwrap();
    let made = || {
        let mut command = Command::new("/bin/bash");
        command.arg(ci.join("gpu-bundle")).env_clear().env("PATH", &tools);
        Ran::new(command.output().unwrap())
    };
    for (lacks, tool) in [("no xz, which packs it", "xz"), ("no MPICH from PyPI", "mpich")] {
        let ran = made();
        assert!(ran.code == Some(1) && ran.said.contains(lacks), "{}{}", ran.printed, ran.said);
        assert_eq!(ran.said.lines().count(), 1, "{}", ran.said);
        executable(&tools.join(tool), "");
    }
    assert!(!here.join("gpu-bundle").exists());
}

/// What the program prints, on doubles of CUDA, is what the scripts look for.
#[test]
fn the_scripts_find_their_figures_in_what_the_program_prints() {
    let directory = tempfile::tempdir().unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let figure = |name: &str, flags: &str| {
        let mut command = Command::new(job::DLTRAIN);
        command.args(flags.split_whitespace()).current_dir(directory.path());
        let done = finish(with_cuda(command, &[], directory.path()));
        assert!(done.success, "{flags}: {}", done.stderr);
        let path = directory.path().join(name);
        fs::write(&path, &done.stdout).unwrap();
        let read = r#"eval "$(sed -n '/^figure()/,/^}/p' "$0")"; figure "$1""#;
        let read =
            Command::new("bash").args(["-c", read]).arg(root.join(".ci/gpu-minutes")).arg(&path).output();
        (String::from_utf8(read.unwrap().stdout).unwrap(), done.stdout)
    };
    let model = "--model mnist_small --batch 2 --device cuda";
    let (found, printed) =
        figure("train.txt", &format!("{model} --steps 10 --warmup 0 --allreduce nccl --results a.h5"));
    assert!(found.contains(" images/s, loss ") && found.contains(", communication "), "{found}:\n{printed}");
    // As `check` looks for it.
    let by = printed.lines().any(|line| line.starts_with("allreduce ") && line.contains(" nccl,"));
    assert!(by && printed.contains(" +/- "), "{printed}");
    let (found, printed) =
        figure("digits.txt", &format!("{model} --data synthetic:shapes:16 --epochs 1 --results b.h5"));
    assert!(found.starts_with("accuracy "), "{found}:\n{printed}");
    let (found, printed) = figure("machine.txt", "info");
    assert!(found.contains("Fake GPU 0") && printed.contains("; cuDNN 9"), "{found}:\n{printed}");
    let (found, printed) = figure("steps.txt", &format!("bench layers {model} --steps 1 --roofline 1,1"));
    assert!(found.ends_with(" images/s\n"), "{found}:\n{printed}");
    let roofline = |line: &str| line.starts_with("step, without communication ") && line.ends_with('%');
    assert!(printed.lines().any(roofline), "{printed}");
}

/// A bundle of another revision measures something else.
#[test]
fn a_bundle_of_another_revision_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let bundled = directory.path().join("gpu-bundle");
    fs::create_dir_all(directory.path().join(".ci")).unwrap();
    fs::create_dir(&bundled).unwrap();
    bundle(&bundled);
    fs::copy(
        Path::new(env!("CARGO_MANIFEST_DIR")).join(".ci/gpu-bundle"),
        directory.path().join(".ci/gpu-bundle"),
    )
    .unwrap();
    let run = |script: &str| {
        let mut command = Command::new("bash");
        Ran::new(command.args(["-c", script]).current_dir(directory.path()).output().unwrap())
    };
    let commit = "git init -q && echo /gpu-bundle >.gitignore && git add . &&
        git -c user.name=a -c user.email=b commit -qm a";
    assert_eq!(run(commit).code, Some(0));
    let old = run(".ci/gpu-bundle if-missing");
    assert!(
        old.code == Some(1) && old.said.contains("of 0123abc") && old.said.contains("make gpu-bundle"),
        "{}",
        old.said
    );
    let pack = "cd gpu-bundle && git describe --always --dirty >revision && tar cf programs.txz revision";
    run(pack);
    assert_eq!(run(".ci/gpu-bundle if-missing").code, Some(0));
    run("echo >>.ci/gpu-bundle");
    assert_eq!(run(".ci/gpu-bundle if-missing").code, Some(1));
    run(pack);
    assert_eq!(run(".ci/gpu-bundle if-missing").code, Some(1), "of what nobody has committed");
}

#[test]
fn a_part_that_hangs_takes_nobody_elses_minutes_and_each_check_can_fail() {
    let directory = tempfile::tempdir().unwrap();
    bundle(directory.path());
    let begun = Instant::now();
    let broken = "libraries apart roofline digits nccl op ops limits loss window tests";
    let mut command = minutes(directory.path(), "first", "1.2", broken);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // A machine that is taken away in the midst of it leaves what was learned until then.
    let mut kept: Option<Instant> = None;
    while child.try_wait().unwrap().is_none() {
        let out = directory.path().join("out");
        if kept.is_none() && ["card.tgz", "engines.tgz0"].iter().all(|name| out.join(name).exists()) {
            kept = Some(Instant::now());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(kept.is_some_and(|since| since.elapsed().as_secs() > 5), "kept {kept:?}");
    let ran = Ran::new(child.wait_with_output().unwrap());
    assert!(begun.elapsed().as_secs() < 72, "{}", ran.printed);
    ran.expect([
        ("machine", "FAILED", "; no cuDNN 9 (libcudnn.so.9) in /usr/lib"),
        ("one-step", "ok", "images/s"),
        // Which test, and what it says.
        ("kernels", "FAILED", "4 passed, 1 failed: a::first; kernels: dlopen failed"),
        // How far it came.
        ("resnet50-bf16-apart", "TIMED OUT", "sgd, learning rate 0.001"),
        ("resnet50-bf16", "ok", "9000.00 images/s"),
        ("peer-resnet50-bf16", "FAILED", "no figure"),
        ("figures", "FAILED", "above the roofline of 8000.0 images/s: 9000.00 (resnet50-bf16.txt)"),
        ("digits-bf16", "FAILED", "accuracy 91.9%; below 95 %"),
        ("two-ranks-shm", "ok", "images/s"),
        ("two-ranks-nccl", "FAILED", "not refused"),
        ("models", "FAILED", "4 passed, 1 failed: a::first"),
        ("resnet50-kernels", "FAILED", "no two losses among these launches"),
        // Time stops it, and what has failed until then is not hidden.
        ("ops", "FAILED", "2 passed, 1 failed: ops::2"),
    ]);
    assert!(ran.code == Some(1) && ran.printed.contains("11 failed"), "{}{}", ran.printed, ran.said);
    // What every run logs is no reason.
    assert!(!ran.printed.contains("::library: "), "{}", ran.printed);
    // Nobody is left of those that were to hang.
    assert_eq!(processes(directory.path(), ""), [""; 0]);
    let read = |file: &str| {
        let archive = directory.path().join("out/card.tgz");
        Command::new("tar").arg("xzOf").arg(archive).arg(file).output().unwrap().stdout
    };
    assert_eq!(read("./meter.csv"), b"1980 MHz\n");
    let listed = Command::new("tar").arg("tzf").arg(directory.path().join("out/card.tgz")).output().unwrap();
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    for file in ["./table", "./summary.txt", "./resnet50-bf16.txt", "./resnet50-bf16-apart.err"] {
        assert!(listed.lines().any(|line| line == file), "{file} in\n{listed}");
    }
}

/// Whoever ends a call gets what was learned until then at once, and nobody is left.
#[test]
fn a_call_that_is_ended_has_its_table_at_once() {
    let directory = tempfile::tempdir().unwrap();
    bundle(directory.path());
    let mut command = minutes(directory.path(), "first", "9", "apart");
    command.env("PACE", "100").stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // The part that hangs has 90 seconds.
    while processes(directory.path(), "GPU_MINUTES_PART=resnet50-bf16-apart.").is_empty() {
        assert!(child.try_wait().unwrap().is_none(), "it has ended");
        std::thread::sleep(Duration::from_millis(50));
    }
    let told = Instant::now();
    assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
    let ran = Ran::new(child.wait_with_output().unwrap());
    assert!(ran.code == Some(1) && told.elapsed().as_secs() < 60, "{}{}", ran.printed, ran.said);
    ran.expect([("kernels", "ok", "5 passed"), ("resnet50-bf16-apart", "ended", "with the call")]);
    assert_eq!(processes(directory.path(), ""), [""; 0]);
    assert!(directory.path().join("out/card.tgz").exists());
}

/// Commands of a call's processes in whose environment a variable begins so.
fn processes(directory: &Path, variable: &str) -> Vec<String> {
    let here = format!("CARGO_MANIFEST_DIR={}", directory.display());
    let all = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
    let ours = all.filter(|process| {
        let environment = fs::read(process.join("environ")).unwrap_or_default();
        let mut variables = environment.split(|&byte| byte == 0);
        variables.clone().any(|other| other == here.as_bytes())
            && variables.any(|other| other.starts_with(variable.as_bytes()))
    });
    ours.map(|process| fs::read_to_string(process.join("cmdline")).unwrap_or_default()).collect()
}

/// Where a step fails it is diagnosed, and nothing follows: the lease has time for a second try.
#[test]
fn behind_a_step_that_fails_nothing_is_begun_but_what_says_why() {
    let directory = tempfile::tempdir().unwrap();
    bundle(directory.path());
    let ran = learned(directory.path(), "first", "8", "step sanitizer");
    ran.expect([
        ("one-step", "FAILED", "kernel fill_f32: cuLaunchKernel failed"),
        ("one-step-blocking", "FAILED", "as one-step"),
        ("one-step-sanitizer", "FAILED", "Invalid __global__ write"),
        ("kernels", "ok", "5 passed"),
        ("limits", "ok", "bf16 798.0"),
    ]);
    assert!(ran.code == Some(1) && ran.printed.contains("3 failed"), "{}", ran.printed);
    assert!(!ran.printed.contains("resnet50"), "{}", ran.printed);
    // However long that takes: there is time for a second try.
    let ran = timetable(directory.path(), "first", "8", "step");
    ran.expect([("one-step-blocking", "TIMED OUT", ""), ("one-step-sanitizer", "TIMED OUT", "")]);
    let clock = fs::read_to_string(directory.path().join("clock")).unwrap();
    assert!(clock.trim().parse::<usize>().unwrap() <= 240, "{clock}{}", ran.printed);
    // What is written down of every part, and no figure that is none.
    let ran = learned(directory.path(), "first", "1", "figure names torch container permission");
    ran.expect([
        ("one-step", "FAILED", "no figure"),
        ("one-step-sanitizer", "not run", ""),
        ("kernels", "FAILED", ""),
        ("limits", "not run", "python3 has no PyTorch"),
    ]);
}

/// A cause is said in one row, and the others name that.
#[test]
fn without_a_driver_that_is_said_once() {
    let directory = tempfile::tempdir().unwrap();
    bundle(directory.path());
    let ran = learned(directory.path(), "first", "0.5", "driver torch");
    ran.expect([
        ("machine", "FAILED", "none: no CUDA driver library (libcuda.so.1) on this machine"),
        ("one-step", "FAILED", "as machine"),
        ("one-step-blocking", "FAILED", "as machine"),
        ("kernels", "ok", "5 passed"),
    ]);
    // As it happens, and in the table.
    assert_eq!(ran.printed.matches("no CUDA driver").count(), 2, "{}", ran.printed);
}

/// Without graphs, or fusions, where these fail, the rest is learned all the same; and every part of every call can
/// fail.
#[test]
fn what_fails_by_itself_is_left_out_and_the_rest_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    bundle(directory.path());
    let ran = learned(directory.path(), "first", "1.2", "graphs halves ranks bench");
    ran.expect([
        ("one-step", "ok", "images/s"),
        ("graphs", "FAILED", "cuGraphLaunch failed with code 901"),
        ("graphs-bf16", "FAILED", "engine 3 of Forward bf16"),
        ("bf16-apart", "ok", "images/s"),
        ("resnet50-bf16", "ok", "images/s"),
        ("resnet50-steps", "FAILED", "no figure"),
        ("figures", "FAILED", "no roofline"),
        ("two-ranks-ipc", "FAILED", "cuIpcOpenMemHandle_v2 failed"),
        ("two-ranks-shm", "FAILED", ""),
        ("two-ranks-no-overlap", "FAILED", ""),
        ("one-rank-nccl", "ok", "images/s"),
    ]);
    assert_eq!(ran.code, Some(1), "{}", ran.printed);
    let third = |broken: &str| {
        let mut command = script(directory.path(), "ten-minutes", broken);
        let command = command.arg("third").env("MINUTES", "1").env("PACE", "7").env("LEAK_STEPS", "7");
        Ran::new(command.output().unwrap())
    };
    let whole = third("");
    assert_eq!(whole.code, Some(0), "{}{}", whole.printed, whole.said);
    let ran = third("leak tests sanitizer op");
    for (part, words) in
        [("models", ""), ("leak", "failed: leak"), ("sanitizer", "failed: sanitizer"), ("ops", "")]
    {
        whole.expect([(part, "ok", "passed")]);
        ran.expect([(part, "FAILED", words)]);
    }
    // What is killed before its time was not ended by it.
    let ran = third("sanitizer killed");
    ran.expect([
        ("models", "ok", "passed"),
        ("sanitizer", "FAILED", "failed: sanitizer; sanitizer: Invalid __global__ write"),
        ("ops", "FAILED", "1 passed, 0 failed; killed"),
    ]);
}

/// A failure is said in its own words; where no time is left nothing is begun, and the table comes all the same.
#[test]
fn what_fails_is_named_and_what_has_no_time_is_not_begun() {
    let directory = tempfile::tempdir().unwrap();
    bundle(directory.path());
    let ran = learned(directory.path(), "second", "0.6", "f16 torch");
    ran.expect([
        ("resnet50-f16-apart", "FAILED", "engine 7 does not run"),
        ("resnet50-f16", "FAILED", "as resnet50-f16-apart"),
        ("compiled-resnet50-bf16", "not run", "python3 has no PyTorch"),
        ("resnet50-bf16", "ok", "6200.00 images/s"),
    ]);
    assert_eq!(ran.code, Some(1), "{}", ran.printed);
    let ran = learned(directory.path(), "first", "0.2", "");
    ran.expect([("ops", "not run", "no time left")]);
    assert_eq!(ran.code, Some(0), "{}", ran.printed);
    assert_eq!(learned(directory.path(), "fourth", "0.2", "").code, Some(2));
    // Two ranks would print no loss, which are compared.
    let odd = minutes(directory.path(), "first", "0.2", "").env("STEPS", "20").output().unwrap();
    assert_eq!(odd.status.code(), Some(2));
}

/// Every check of `check`, whole and broken.
#[test]
fn every_check_fails_where_what_it_checks_is_broken() {
    let directory = tempfile::tempdir().unwrap();
    bundle(directory.path());
    let whole = check(directory.path(), &[], "");
    assert_eq!(whole.code, Some(0), "{}{}", whole.printed, whole.said);
    let checks: Vec<&str> = whole.printed.lines().filter(|line| line.contains(" ok  ")).collect();
    let names: Vec<&str> = checks.iter().map(|line| line.split_whitespace().next().unwrap()).collect();
    assert!(names.len() == 24, "{names:?}");
    let broken = "step tests curve captured digits sums nccl leak sanitizer";
    let ran = check(directory.path(), &[], broken);
    for name in &names {
        ran.expect([(name, "FAILED", "")]);
    }
    assert!(ran.code == Some(1) && ran.printed.contains("24 failed"), "{}", ran.printed);
    // A filter that meets no test has tested nothing.
    check(directory.path(), &["models-full"], "names").expect([("models-full", "FAILED", "")]);
    check(directory.path(), &["sanitizer"], "container").expect([("sanitizer", "not run", "")]);
    // Whatever hides it above.
    check(directory.path(), &["sanitizer"], "sanitizer").expect([("sanitizer", "FAILED", "")]);
    check(directory.path(), &["leak"], "host-leak").expect([("leak", "FAILED", "")]);
    let ran = check(directory.path(), &["kernels"], "tests");
    assert!(ran.said.contains("kernels: dlopen failed"), "{}", ran.said);
}

/// Each row of `bench` fails whose figure or loss is missing or cannot be, and a table without a roofline.
#[test]
fn every_row_of_bench_can_lack_its_answer() {
    let directory = tempfile::tempdir().unwrap();
    bundle(directory.path());
    let bench = |broken: &str| {
        let mut command = script(directory.path(), "bench", broken);
        // Ranks that share a card have 256 images each.
        command.args(["resnet50", "sharing"]).envs([
            ("BATCH", "512"),
            ("PRECISIONS", "bf16"),
            ("MODES", "eager"),
        ]);
        let out = directory.path().join("out");
        fs::remove_dir_all(&out).ok();
        Ran::new(command.env("RESULTS", out).output().unwrap())
    };
    let rows = ["dltrain  ", "apart  ", "eager  ", "1 auto  ", "2 ipc  ", "2 shm  "];
    let has = |ran: &Ran, row: &str| ran.printed.lines().any(|line| line.starts_with(row));
    let whole = bench("");
    assert!(
        whole.code == Some(0) && rows.iter().all(|row| has(&whole, row)),
        "{}{}",
        whole.printed,
        whole.said
    );
    let cases: [(&str, &[&str]); 7] = [
        ("diverged loss", &rows[..]),
        ("silent", &["dltrain  ", "apart  ", "1 auto  ", "2 ipc  ", "2 shm  "]),
        ("figure", &["dltrain  ", "apart  ", "1 auto  ", "2 ipc  ", "2 shm  "]),
        ("roofline", &["dltrain  ", "apart  "]),
        ("guess", &rows[2..3]),
        ("ranks", &rows[4..]),
        ("bench", &["roofline"]),
    ];
    for (broken, missing) in cases {
        let ran = bench(broken);
        let said = format!("{} without an answer", missing.len());
        assert!(ran.code == Some(1) && ran.printed.contains(&said), "{broken}: {}{}", ran.printed, ran.said);
        for row in rows {
            assert_eq!(has(&ran, row), !missing.contains(&row), "{broken}, {row}: {}", ran.printed);
        }
    }
    let ran = bench("torch");
    assert!(
        ran.code == Some(1) && ran.printed.contains("PyTorch cannot measure the card"),
        "{}",
        ran.printed
    );
}

/// libtest says nothing of a name that it does not know: a part would be passed that has tested nothing.
#[test]
fn the_tests_that_the_scripts_name_are_there() {
    let list = Command::new(std::env::current_exe().unwrap()).arg("--list").output().unwrap();
    let list = String::from_utf8(list.stdout).unwrap();
    let there: Vec<&str> = list.lines().filter_map(|line| line.strip_suffix(": test")).collect();
    for script in ["gpu-minutes", "gpu-check"] {
        let text =
            fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(".ci").join(script)).unwrap();
        let code = text.lines().filter(|line| !line.trim_start().starts_with('#'));
        let named: Vec<&str> = code
            .flat_map(str::split_whitespace)
            .filter(|word| word.contains("::") && !word.contains('='))
            .collect();
        assert!(named.len() > 3, "{script}: {named:?}");
        for name in named {
            let known = match name.ends_with("::") {
                true => there.iter().any(|test| test.contains(name)),
                false => there.contains(&name),
            };
            assert!(known, "{script}: there is no test {name}");
        }
    }
}

mod full {
    use super::*;
    use crate::support::fake_cuda;

    /// A call with the programs themselves on doubles of CUDA, with nothing in the environment but where these are and
    /// what makes it small. Doubles compute some hundred images a second, so that what a card reaches is given, and
    /// parts have longer.
    fn by_the_programs(call: &str, model: &str, [minutes, pace]: [&str; 2]) -> Ran {
        let directory = tempfile::tempdir().unwrap();
        let (here, root) = (directory.path(), Path::new(env!("CARGO_MANIFEST_DIR")));
        bundle(here);
        fs::remove_file(here.join("programs.txz")).unwrap();
        fs::create_dir(here.join("bin")).unwrap();
        fs::write(here.join("revision"), "0123abc").unwrap();
        let link = |from: &Path, to: &str| std::os::unix::fs::symlink(from, here.join(to)).unwrap();
        link(Path::new(job::DLTRAIN), "bin/dltrain");
        link(&std::env::current_exe().unwrap(), "bin/test-suite");
        ["data", "tests"].iter().for_each(|name| link(&root.join(name), name));
        let launcher = format!(r#"exec {} -n "$2" "${{@:3}}""#, job::launcher().join(" "));
        executable(&here.join("bin/mpiexec.hydra"), &launcher);
        // No PyTorch, and no tool of CUDA's.
        executable(&here.join("bin/python3"), "exit 1");
        let mut command = script(here, "ten-minutes", "");
        command.arg(call).env("DLTRAIN_CUDA_PATH", fake_cuda::libraries());
        command.envs([("MINUTES", minutes), ("PACE", pace), ("BIG", model), ("BATCH", "8")]);
        command.env("ROOFLINE", "0.03,3");
        let ran = Ran::new(command.output().unwrap());
        println!("{}{}", ran.printed, ran.said);
        ran
    }

    #[test]
    #[ignore = "ten minutes"]
    fn the_first_call_passes_with_the_programs_themselves() {
        let ran = by_the_programs("first", "mnist_small", ["40", "600"]);
        ran.expect([
            ("machine", "ok", "Fake GPU 0"),
            ("one-step", "ok", "images/s"),
            ("graphs", "ok", "images/s"),
            ("graphs-same-bits", "ok", "images/s, loss "),
            ("graphs-bf16", "ok", "images/s"),
            ("kernels", "ok", " 0 failed"),
            ("mnist_small-bf16-apart", "ok", "images/s, loss "),
            ("mnist_small-bf16", "ok", "images/s, loss "),
            ("mnist_small-losses", "ok", "losses: 4 within 5 %"),
            ("mnist_small-steps", "ok", "images/s"),
            ("figures", "ok", "below the roofline"),
            ("mnist_small-first-loss", "ok", "first loss: "),
            ("digits-bf16", "ok", "accuracy 9"),
            ("two-ranks-ipc", "ok", "images/s, loss "),
            ("two-ranks-shm", "ok", "images/s, loss "),
            ("one-rank-nccl", "ok", "images/s, loss "),
            ("two-ranks-nccl", "ok", "refused as it should be"),
            ("two-ranks-no-overlap", "ok", "images/s, loss "),
        ]);
        assert!(!ran.row("ops").contains("FAILED"), "{}", ran.printed);
    }

    #[test]
    #[ignore = "minutes"]
    fn the_second_call_passes_with_the_programs_themselves() {
        let ran = by_the_programs("second", "cifar_net", ["6", "200"]);
        // Those of two thousand steps, or of vgg16, take longer than they have.
        ran.expect([
            ("machine", "ok", "Fake GPU 0"),
            ("cifar_net-f16-apart", "ok", "images/s, loss "),
            ("compiled-mnist_small-bf16", "not run", "python3 has no PyTorch"),
            ("cifar_net-f16", "ok", "images/s, loss "),
            ("cifar_net-losses", "ok", "losses: 4 within 5 %"),
            ("cifar_net-bf16", "ok", "images/s, loss "),
        ]);
    }
}
