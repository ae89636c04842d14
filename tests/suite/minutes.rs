//! `gpu-bundle/ten-minutes` (.ci/gpu-minutes) with doubles of its programs: a part that never returns takes its own
//! time and nobody else's, what it leaves is ended, and the table and the archive come in time. The tests that it names
//! are there.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Instant;

/// Hangs, deaf to SIGTERM and with a child, where resnet50 runs without fusion; fails in f16; else has a figure.
const DLTRAIN: &str = r#"
case "$DLTRAIN_CUDNN_FUSION $*" in
    0*resnet50*) trap '' TERM; sleep 4321; sleep 4321 ;;
    *" f16 "*) echo "engine 7 does not run" >&2; exit 8 ;;
    *digits*) printf '%s\n' "test accuracy 97.1%" "total images/sec: 575.10" ;;
    *) echo "total images/sec: 6400.00" ;;
esac"#;
const TESTS: &str = r#"
case "$*" in
    *ops::*) for i in 1 2 3; do echo "test ops::$i ... ok"; done; sleep 4321 ;;
    *) echo "test result: ok. 5 passed; 0 failed" ;;
esac"#;
const LAUNCHER: &str = r#"shift 2; exec "$@""#;
/// Without PyTorch, and without anything.
const PYTHON: &str = "exit 1";

fn bundle(directory: &Path) {
    let bin = directory.join("bin");
    fs::create_dir(&bin).unwrap();
    let programs =
        [("dltrain", DLTRAIN), ("test-suite", TESTS), ("mpiexec.hydra", LAUNCHER), ("python3", PYTHON)];
    for (name, body) in programs {
        let path = bin.join(name);
        fs::write(&path, format!("#!/bin/bash\n{body}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    for (script, name) in [("gpu-minutes", "ten-minutes"), ("gpu-check", "check")] {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join(".ci").join(script);
        fs::copy(script, directory.join(name)).unwrap();
    }
    // As `.ci/gpu-bundle` packs them.
    fs::write(directory.join("revision"), "0123abc").unwrap();
    let mut packing = Command::new("tar");
    packing.args(["czf", "programs.tgz", "--remove-files", "bin", "revision"]).current_dir(directory);
    assert!(packing.status().unwrap().success());
}

fn run(directory: &Path, call: &str, minutes: &str) -> Output {
    let mut command = Command::new(directory.join("ten-minutes"));
    command.arg(call).env("OUT", directory.join("out")).env("MINUTES", minutes).env("PACE", "7");
    command.env("TMPDIR", directory).env_remove("DLTRAIN_CUDA_PATH").env_remove("DLTRAIN_CUDNN_CACHE");
    command.output().unwrap()
}

/// The line of a part in the closing table.
fn row<'a>(printed: &'a str, part: &str) -> &'a str {
    let table = printed.rsplit("call, ").next().unwrap();
    let found = table.lines().find(|line| line.split_whitespace().next() == Some(part));
    found.unwrap_or_else(|| panic!("no {part} in\n{printed}"))
}

#[test]
fn a_part_that_hangs_takes_nobody_elses_minutes() {
    let directory = tempfile::tempdir().unwrap();
    bundle(directory.path());
    let begun = Instant::now();
    let output = run(directory.path(), "first", "1.2");
    let printed = String::from_utf8_lossy(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(begun.elapsed().as_secs() < 72, "{printed}");
    for (part, words) in [
        ("machine", "ok"),
        ("one-step", "ok"),
        ("kernels", "5 passed, 0 failed"),
        ("resnet50-bf16", "6400.00 images/s"),
        ("resnet50-bf16-apart", "TIMED OUT"),
        ("peer-resnet50-bf16", "python3 has no PyTorch"),
        ("digits-bf16", "accuracy 97.1%"),
        ("two-ranks-no-overlap", "6400.00 images/s"),
        ("ops", "3 passed"),
    ] {
        assert!(row(&printed, part).contains(words), "{part}: {words} in\n{printed}{said}");
    }
    assert!(row(&printed, "ops").contains("stopped"), "{printed}");
    assert_eq!(output.status.code(), Some(1), "{printed}{said}");
    assert!(printed.contains("dltrain 0123abc, first call") && printed.contains("1 failed"), "{printed}");
    // Nobody is left of those that were to hang.
    for process in fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path()) {
        let environment = fs::read(process.join("environ")).unwrap_or_default();
        let here = format!("CARGO_MANIFEST_DIR={}", directory.path().display());
        let ours = environment.split(|&byte| byte == 0).any(|variable| variable == here.as_bytes());
        assert!(!ours, "{process:?} is left: {:?}", fs::read_to_string(process.join("cmdline")));
    }
    let listed = Command::new("tar").arg("tzf").arg(directory.path().join("out/card.tgz")).output().unwrap();
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    for file in ["./table", "./summary.txt", "./resnet50-bf16.txt", "./resnet50-bf16-apart.err"] {
        assert!(listed.lines().any(|line| line == file), "{file} in\n{listed}");
    }
}

/// A failure is said in its own words; where no time is left nothing is begun, and the table comes all the same.
#[test]
fn what_fails_is_named_and_what_has_no_time_is_not_begun() {
    let directory = tempfile::tempdir().unwrap();
    bundle(directory.path());
    let output = run(directory.path(), "second", "0.6");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(row(&printed, "resnet50-f16").contains("FAILED"), "{printed}");
    assert!(row(&printed, "resnet50-f16").contains("engine 7 does not run"), "{printed}");
    assert_eq!(output.status.code(), Some(1), "{printed}");
    let output = run(directory.path(), "first", "0.2");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(row(&printed, "ops").contains("no time left"), "{printed}");
    assert_eq!(output.status.code(), Some(0), "{printed}");
    let refused = run(directory.path(), "fourth", "0.2");
    assert_eq!(refused.status.code(), Some(2));
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
        let named: Vec<&str> =
            code.flat_map(str::split_whitespace).filter(|word| word.contains("::")).collect();
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
