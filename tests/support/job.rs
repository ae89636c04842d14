//! Starting the real program under the real launcher, for tests.
//!
//! `make test` says in DLTRAIN_MPIRUN how this build's MPI starts ranks; without it the usual names are tried.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

pub const DLTRAIN: &str = env!("CARGO_BIN_EXE_dltrain");
/// Bad input must stop a job within seconds.
pub const SECONDS: Duration = Duration::from_secs(60);

/// The launcher and its own flags.
pub fn launcher() -> Vec<String> {
    let given = std::env::var("DLTRAIN_MPIRUN").unwrap_or_else(|_| {
        let mpich = dltrain::record::mpicc().contains("mpich");
        let open_mpi = "mpirun.openmpi --allow-run-as-root --oversubscribe";
        if mpich { "mpiexec.mpich".into() } else { open_mpi.into() }
    });
    given.split_whitespace().map(String::from).collect()
}

/// `mpirun … -n RANKS dltrain FLAGS`. With several groups of ranks each has its own flags: a shell decides by the rank
/// (some launchers cannot start unlike programs in one job).
pub fn job(groups: &[(usize, &[&str])]) -> Command {
    let ranks: usize = groups.iter().map(|(ranks, _)| ranks).sum();
    if let [(_, flags)] = groups {
        let mut command = start(ranks, &[DLTRAIN]);
        command.args(*flags);
        return command;
    }
    let mut script = String::from("rank=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}\n");
    let mut below = 0;
    for (ranks, flags) in groups {
        below += ranks;
        let quoted: Vec<String> = flags.iter().map(|flag| format!("'{flag}'")).collect();
        script += &format!("[ $rank -lt {below} ] && exec '{DLTRAIN}' {}\n", quoted.join(" "));
    }
    start(ranks, &["sh", "-c", &script])
}

/// The launcher with a program and its first arguments.
pub fn start(ranks: usize, program: &[&str]) -> Command {
    let launcher = launcher();
    let mut command = Command::new(&launcher[0]);
    command.args(&launcher[1..]).env("OMP_NUM_THREADS", "1").stdin(Stdio::null());
    command.args(["-n", &ranks.to_string()]).args(program);
    command
}

/// What a finished job left.
pub struct Finished {
    pub success: bool,
    pub stdout: String,
    pub stderr: String,
    pub took: Duration,
}

pub fn finish(mut command: Command) -> Finished {
    let begun = Instant::now();
    let Output { status, stdout, stderr } = command.output().expect("the launcher starts");
    Finished {
        success: status.success(),
        stdout: String::from_utf8_lossy(&stdout).into_owned(),
        stderr: String::from_utf8_lossy(&stderr).into_owned(),
        took: begun.elapsed(),
    }
}

/// Runs a job that must succeed; returns what it printed.
pub fn run(ranks: usize, flags: &[&str]) -> String {
    let done = finish(job(&[(ranks, flags)]));
    assert!(done.success, "{flags:?}\n{}\n{}", done.stdout, done.stderr);
    done.stdout
}

/// Runs a job that must fail within seconds with one message; returns the message.
pub fn refused(groups: &[(usize, &[&str])]) -> String {
    refused_by(job(groups))
}

/// As `refused`, for a job that has more said about it than flags.
pub fn refused_by(job: Command) -> String {
    let done = finish(job);
    assert!(!done.success, "succeeded: {}", done.stdout);
    assert!(done.took < SECONDS, "took {:?}", done.took);
    let mut messages = done.stderr.lines().filter(|line| line.contains("error: "));
    let message = messages.next().unwrap_or_else(|| panic!("no message: {}", done.stderr)).to_string();
    assert_eq!(messages.next(), None, "more than one message: {}", done.stderr);
    message
}

/// A series of a results file.
pub fn series(results: &Path, name: &str) -> Vec<f64> {
    let file = hdf5::File::open(results).expect("the results file opens");
    file.dataset(name).expect("the series is there").read_1d::<f64>().expect("numbers").to_vec()
}

/// A count of a results file.
pub fn scalar(results: &Path, name: &str) -> u64 {
    let file = hdf5::File::open(results).expect("the results file opens");
    file.dataset(name).expect("the count is there").read_scalar::<u64>().expect("a number")
}

/// That a run had at its peak the memory that its plan says: within 5 % or 50 MB.
pub fn within_plan(results: &Path) -> Result<(), String> {
    let megabytes = |name: &str| scalar(results, &format!("summary/{name}")) as f64 / 1e6;
    let [planned, peak] = ["planned_memory", "peak_memory"].map(megabytes);
    match (planned - peak).abs() < (0.05 * planned).max(50.0) {
        true => Ok(()),
        false => Err(format!("has {peak:.0} MB at its peak, the plan said {planned:.0} MB")),
    }
}
