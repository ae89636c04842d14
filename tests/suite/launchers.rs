//! Started under Slurm: the environments that its launchers leave, as observed, given to the real program.
//!
//! - srun with the wrong `--mpi`: one message for the whole job that says what to type, exit code 4, nothing written
//! - in an allocation's shell without a launcher: one rank, and a hint
//! - ranks that share cores are not bound to the first of these, whatever OpenMP's variables say
//! - arguments that are no UTF-8
//! - without a launcher, no daemon of the MPI library is started
//! - under mpirun or mpiexec, one rank of the other MPI's build: the same message, and the end of the others
//!
//! Observed with Slurm 22.05, Open MPI 4.1.4 and 5.0.11, MPICH 4.0.2, for two tasks on two nodes. The right pairs need
//! a Slurm to talk to and cannot be tested this way: Open MPI with pmix, MPICH with pmi2.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use dltrain::comm::{Family, MpiLibrary};
use dltrain::error::ErrorKind;

use crate::support::job;

/// What srun sets for every task, whatever `--mpi` says; SLURM_PROCID goes with it.
const STEP: [(&str, &str); 12] = [
    ("SLURM_JOB_ID", "1"),
    ("SLURM_JOBID", "1"),
    ("SLURM_NODELIST", "n[0-1]"),
    ("SLURM_JOB_NUM_NODES", "2"),
    ("SLURM_NTASKS", "2"),
    ("SLURM_NPROCS", "2"),
    ("SLURM_STEP_ID", "0"),
    ("SLURM_STEPID", "0"),
    ("SLURM_STEP_NODELIST", "n[0-1]"),
    ("SLURM_STEP_NUM_NODES", "2"),
    ("SLURM_STEP_NUM_TASKS", "2"),
    ("SLURM_LOCALID", "0"),
];

/// `--mpi=pmi2` adds these, and PMI_RANK. With `--mpi=none` nothing is added.
const PMI2: [(&str, &str); 4] =
    [("SLURM_MPI_TYPE", "pmi2"), ("PMI_FD", "11"), ("PMI_JOBID", "1.0"), ("PMI_SIZE", "2")];

/// `--mpi=pmix` adds these and more of PMIX_*, and PMIX_RANK.
const PMIX: [(&str, &str); 3] =
    [("SLURM_MPI_TYPE", "pmix"), ("PMIX_NAMESPACE", "slurm.pmix.1.0"), ("PMIX_VERSION", "4.2.2rc2")];

/// In a batch script, and in the shell of `salloc` (there without SLURM_PROCID).
const ALLOCATION: [(&str, &str); 7] = [
    ("SLURM_JOB_ID", "1"),
    ("SLURM_JOBID", "1"),
    ("SLURM_NODELIST", "n[0-1]"),
    ("SLURM_JOB_NUM_NODES", "2"),
    ("SLURM_NTASKS", "4"),
    ("SLURM_NPROCS", "4"),
    ("SLURM_PROCID", "0"),
];

/// `salloc` with LaunchParameters=use_interactive_step adds these: its shell is a task on the first node.
const INTERACTIVE: [(&str, &str); 5] = [
    ("SLURM_MPI_TYPE", "none"),
    ("SLURM_STEP_ID", "4294967290"),
    ("SLURM_STEPID", "4294967290"),
    ("SLURM_STEP_NODELIST", "n0"),
    ("SLURM_STEP_NUM_TASKS", "1"),
];

/// dltrain with these variables and no others of a launcher.
fn dltrain(flags: &[&str], directory: &Path, environment: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dltrain"));
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if ["SLURM_", "PMI", "OMPI_", "HYD", "MPI_", "FLUX_"].iter().any(|start| text.starts_with(start)) {
            command.env_remove(&name);
        }
    }
    command.args(flags).current_dir(directory).envs(environment.iter().copied());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// What srun adds for the MPI that this dltrain is not linked with, and the variable of the rank.
fn the_other_mpis() -> (&'static [(&'static str, &'static str)], &'static str) {
    match MpiLibrary::linked().family {
        Family::OpenMpi => (&PMI2, "PMI_RANK"),
        _ => (&PMIX, "PMIX_RANK"),
    }
}

/// Starts the two tasks of a step in which MPI cannot work.
fn assert_refused(added: &[(&str, &str)], rank_variable: Option<&str>) {
    let directory = tempfile::tempdir().unwrap();
    let tasks: Vec<_> = ["0", "1"]
        .iter()
        .map(|rank| {
            let mut environment = [&STEP[..], added, &[("SLURM_PROCID", *rank)]].concat();
            environment.extend(rank_variable.map(|name| (name, *rank)));
            dltrain(&["--steps", "1"], directory.path(), &environment).spawn().unwrap()
        })
        .collect();
    let outputs: Vec<Output> = tasks.into_iter().map(|task| task.wait_with_output().unwrap()).collect();
    let whole: String = outputs.iter().map(text).collect();
    for output in &outputs {
        assert_eq!(output.status.code(), Some(ErrorKind::Environment as i32), "{whole}");
    }
    assert_eq!(whole.lines().count(), 1, "{whole}");
    let linked = MpiLibrary::linked();
    let plugin = if linked.family == Family::OpenMpi { "pmix" } else { "pmi2" };
    assert!(whole.contains("srun started 2 processes") && whole.contains(&linked.to_string()), "{whole}");
    assert!(whole.contains(&format!("srun --mpi={plugin} -n 2 dltrain")), "{whole}");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "something was written");
}

#[test]
fn srun_without_an_mpi_plugin_is_refused_once() {
    assert_refused(&[], None);
}

#[test]
fn srun_with_the_other_mpis_plugin_is_refused_once() {
    let (added, rank_variable) = the_other_mpis();
    assert_refused(added, Some(rank_variable));
}

#[test]
fn without_srun_an_allocations_shell_gets_one_rank_and_a_hint() {
    let directory = tempfile::tempdir().unwrap();
    for environment in [ALLOCATION.to_vec(), [&ALLOCATION[..], &INTERACTIVE].concat()] {
        let output = dltrain(&["--dry-run"], directory.path(), &environment).output().unwrap();
        let text = text(&output);
        assert!(output.status.success(), "{text}");
        assert_eq!(text.matches("-n 4 dltrain").count(), 1, "{text}");
    }
}

#[test]
fn a_step_of_one_task_is_one_rank_also_without_the_right_plugin() {
    let directory = tempfile::tempdir().unwrap();
    let one = |&(name, value)| (name, if value == "2" { "1" } else { value });
    for added in [&[], the_other_mpis().0] {
        let mut environment: Vec<_> = STEP.iter().chain(added).map(one).collect();
        environment.push(("SLURM_PROCID", "0"));
        let output = dltrain(&["--dry-run"], directory.path(), &environment).output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        assert!(!text(&output).contains("srun"), "{}", text(&output));
    }
}

/// A daemon of Open MPI's beside it would keep its output open, and has been seen to hang where the run was killed
/// early.
#[test]
fn without_a_launcher_no_process_is_started_beside_it() {
    let directory = tempfile::tempdir().unwrap();
    let flags = ["--model", "mnist_net", "--batch", "4", "--steps", "1000000", "--results", "a.h5"];
    let mut run = dltrain(&flags, directory.path(), &[]).spawn().unwrap();
    let begun = Instant::now();
    while !directory.path().join("a.h5").exists() {
        assert!(begun.elapsed() < job::SECONDS && run.try_wait().unwrap().is_none(), "it never began");
        std::thread::sleep(Duration::from_millis(5));
    }
    let own = run.id().to_string();
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let children = processes.filter_map(|process| {
        let text = std::fs::read_to_string(process.path().join("stat")).ok()?;
        let (name, rest) = text.rsplit_once(')')?;
        (rest.split_whitespace().nth(1) == Some(own.as_str())).then(|| name.to_string())
    });
    let children: Vec<String> = children.collect();
    run.kill().unwrap();
    run.wait_with_output().unwrap();
    assert_eq!(children, Vec::<String>::new());
}

/// The build for the other MPI, where it is there beside this one: it finds itself alone, while the other rank waits
/// for it.
#[test]
fn a_rank_of_the_other_mpis_build_ends_the_job() {
    let (own, other) = match MpiLibrary::linked().family {
        Family::OpenMpi => ("openmpi", "mpich"),
        _ => ("mpich", "openmpi"),
    };
    let other = job::DLTRAIN.replace(&format!("/target/{own}/"), &format!("/target/{other}/"));
    if other == job::DLTRAIN || !Path::new(&other).exists() {
        println!("SKIPPED: no build for the other MPI");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    for first in [&other, job::DLTRAIN] {
        let second = if first == job::DLTRAIN { &other } else { job::DLTRAIN };
        let script = format!(
            "cd '{}'; [ ${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}} = 0 ] && exec '{first}' --steps 1; exec '{second}' --steps 1",
            directory.path().display()
        );
        let done = job::finish(job::start(2, &["sh", "-c", &script]));
        assert!(!done.success && done.took < job::SECONDS, "{}", done.stdout);
        assert_eq!(done.stderr.matches("error: ").count(), 1, "{}", done.stderr);
        assert!(
            done.stderr.contains("started 2 processes, but this dltrain is linked with"),
            "{}",
            done.stderr
        );
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "something was written");
    }
}

/// jobs/workstation.sh: as many ranks as asked for, each with all cores to share in, and a record beside the user.
#[test]
fn the_workstations_script_starts_its_ranks() {
    let directory = tempfile::tempdir().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("jobs/workstation.sh");
    let flags = ["--model", "mnist_small", "--batch", "8", "--warmup", "0", "--steps", "2"];
    let mut job = Command::new(script);
    job.args(flags).current_dir(&directory).stdin(Stdio::null());
    job.env("RANKS", "2").env("MPIRUN", job::launcher().join(" ")).env("DLTRAIN", job::DLTRAIN);
    let done = job::finish(job);
    assert!(done.success, "{}\n{}", done.stdout, done.stderr);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    assert!(done.stdout.contains(&format!("ranks x threads  2 x {}", (cores / 2).max(1))), "{}", done.stdout);
    let left = std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<String> = left.map(|name| name.to_string_lossy().into_owned()).collect();
    assert!(
        matches!(&left[..], [only] if only.starts_with("mnist_small-") && only.ends_with(".h5")),
        "{left:?}"
    );
}

/// A job that hangs fails its test with what ran, and takes its processes along.
#[test]
fn a_job_is_ended_at_its_limit() {
    // These tests may run more than once on this machine.
    let rank = format!("sleep 4321.{}", std::process::id());
    let ended_after = |seconds| {
        let job = job::start(2, &["sh", "-c", &format!("echo a rank is here; exec {rank}")]);
        let limit = std::time::Duration::from_secs(seconds);
        let failed = std::thread::spawn(move || job::finish_within(job, limit).stdout).join().unwrap_err();
        *failed.downcast::<String>().expect("words")
    };
    let is_rank = |line: &&str| line.ends_with(&format!(" {rank}")) && !line.contains("echo");
    // Ranks of a busy machine need longer to be there.
    let with_both = |said: &String| said.lines().filter(is_rank).count() == 2;
    let said = Some(ended_after(3)).filter(with_both).unwrap_or_else(|| ended_after(30));
    assert!(said.contains("still ran after 3") && said.contains("ELAPSED") && with_both(&said), "{said}");
    assert!(["\"-n\" \"2\"", "a rank is here"].iter().all(|word| said.contains(word)), "{said}");
    // What is killed is gone when it has had its core once more.
    let still = || Command::new("pgrep").args(["-f", &format!("^{rank}")]).output().expect("pgrep starts");
    let begun = std::time::Instant::now();
    while still().status.success() {
        assert!(begun.elapsed() < job::SECONDS, "ranks are left");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

/// OpenMP would bind the threads of all ranks to the first core. A site may set the variable for all programs.
#[test]
fn ranks_that_share_cores_are_not_bound_to_the_first_by_openmp() {
    let own = dltrain::host::binding();
    if dltrain::host::cores() == 1 {
        return println!("SKIPPED: one core");
    }
    let directory = tempfile::tempdir().unwrap();
    let (mark, results) =
        (format!("DLTRAIN_TEST_OF={}", directory.path().display()), directory.path().join("run.h5"));
    let mut command = job::start(2, &[job::DLTRAIN, "--steps", "1000000", "--threads", "1", "--batch", "1"]);
    command.arg("--results").arg(&results).env("OMP_PROC_BIND", "true").env("OMP_PLACES", "cores");
    let (name, value) = mark.split_once('=').unwrap();
    let job = command.env(name, value).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    // The record begins when all libraries are there.
    let begun = std::time::Instant::now();
    while !results.exists() && begun.elapsed() < job::SECONDS {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let read = |process: &i32, file: &str| {
        std::fs::read_to_string(format!("/proc/{process}/{file}")).unwrap_or_default()
    };
    let ranks = dltrain::host::processes_with(&mark);
    let ranks: Vec<i32> = ranks.into_iter().filter(|rank| read(rank, "comm").trim() == "dltrain").collect();
    let bindings: Vec<String> = ranks.iter().map(|rank| read(rank, "status")).collect();
    let started = results.exists();
    terminate(job.id());
    let said = text(&job.wait_with_output().unwrap());
    assert!(started && ranks.len() == 2, "{ranks:?} {said}");
    for status in bindings {
        let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
        assert_eq!(allowed.trim(), own, "{said}");
    }
    assert_eq!(
        said.matches("OMP_PROC_BIND, OMP_PLACES: not used, since 2 ranks may use the same cores").count(),
        1,
        "{said}"
    );
}

fn terminate(process: u32) {
    let done = Command::new("kill").arg("-TERM").arg(process.to_string()).status();
    assert!(done.is_ok_and(|status| status.success()));
}

/// Directories of older systems may be called so.
#[test]
fn names_that_are_no_utf_8_are_taken_as_they_are() {
    use std::os::unix::ffi::OsStrExt;
    let directory = tempfile::tempdir().unwrap();
    let name = |bytes: &[u8]| directory.path().join(std::ffi::OsStr::from_bytes(bytes));
    let data = name(b"caf\xe9");
    std::os::unix::fs::symlink(concat!(env!("CARGO_MANIFEST_DIR"), "/data/digits"), &data).unwrap();
    let weights = name(b"w\xe9.safetensors");
    let mut command = job::start(1, &[job::DLTRAIN, "--steps", "2", "--threads", "1", "--data"]);
    command.arg(&data).arg("--save-weights").arg(&weights);
    let done = command.current_dir(directory.path()).output().unwrap();
    assert!(done.status.success() && weights.exists(), "{}", text(&done));
    // Also where the command line is wrong.
    let mut command = job::start(1, &[job::DLTRAIN, "--no-such-flag"]);
    let done = command.arg(std::ffi::OsStr::from_bytes(b"\xe9")).output().unwrap();
    assert_eq!(done.status.code(), Some(ErrorKind::Usage as i32), "{}", text(&done));
}
