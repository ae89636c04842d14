//! InitScheme the real program under the real launcher, for tests.
//!
//! `make test` says in DLTRAIN_MPIRUN how this build's MPI starts ranks; without it the usual names are tried. A job
//! that hangs is ended at its limit, with all its processes.

use dltrain::error::ErrorKind;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub const DLTRAIN: &str = env!("CARGO_BIN_EXE_dltrain");
/// Bad input must stop a job within seconds.
pub const SECONDS: Duration = Duration::from_secs(60);

/// The launcher and its own flags.
pub fn launcher() -> Vec<String> {
    let given = std::env::var("DLTRAIN_MPIRUN").unwrap_or_else(|_| {
        let mpich = dltrain::comm::mpicc().contains("mpich");
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
    if ranks == 1 {
        end_at_once(&mut command);
    }
    command
}

/// Open MPI's launcher gives the other ranks two seconds when one fails: not in this job.
pub fn end_at_once(command: &mut Command) {
    command.env("OMPI_MCA_odls_base_sigkill_timeout", "0");
}

/// What a finished job left.
pub struct Finished {
    pub success: bool,
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
    pub took: Duration,
}

pub fn finish(command: Command) -> Finished {
    finish_within(command, limit())
}

pub fn finish_within(mut command: Command, limit: Duration) -> Finished {
    let begun = Instant::now();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let (child, watch) = spawn(&mut command, limit);
    let Output { status, stdout, stderr } = child.wait_with_output().expect("the launcher ends");
    let [stdout, stderr] = [stdout, stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    if let Some(processes) = watch.ended() {
        panic!("{command:?} still ran after {limit:?}, and was ended:\n{processes}\n{stdout}\n{stderr}");
    }
    Finished { success: status.success(), code: status.code(), stdout, stderr, took: begun.elapsed() }
}

/// How long a job may take: a third of what `.ci/test` gives to a file of tests.
pub fn limit() -> Duration {
    let given = std::env::var("DLTRAIN_TEST_LIMIT").ok().and_then(|seconds| seconds.parse().ok());
    Duration::from_secs(given.unwrap_or(900)) / 3
}

/// Ends a job at its limit, unless this is dropped before.
pub struct Watch {
    stop: Sender<()>,
    watcher: JoinHandle<Option<String>>,
}

impl Watch {
    /// The processes of the job when it was ended; none if it ended by itself.
    pub fn ended(self) -> Option<String> {
        drop(self.stop);
        self.watcher.join().expect("the watcher returns")
    }
}

/// Starts a job that is ended at a limit.
pub fn spawn(command: &mut Command, limit: Duration) -> (Child, Watch) {
    /// By which the processes of a job are found, also those whose launcher is gone.
    const MARK: &str = "DLTRAIN_TEST_JOB";
    static JOBS: AtomicUsize = AtomicUsize::new(0);
    let mark = format!("{}.{}", std::process::id(), JOBS.fetch_add(1, Ordering::Relaxed));
    let child = command.env(MARK, &mark).spawn().expect("the launcher starts");
    let (stop, stopped) = mpsc::channel();
    let watcher = std::thread::spawn(move || match stopped.recv_timeout(limit) {
        Err(RecvTimeoutError::Timeout) => Some(end_processes(&format!("{MARK}={mark}"))),
        _ => None,
    });
    (child, Watch { stop, watcher })
}

/// Ends all processes that have this in their environment; returns what they were.
fn end_processes(variable: &str) -> String {
    let is_marked = |pid: &String| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|&byte| byte == 0).any(|entry| entry == variable.as_bytes())
    };
    let entries = std::fs::read_dir("/proc").expect("Linux has it").flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let pids: Vec<String> = names.filter(is_marked).collect();
    let mut ps = Command::new("ps");
    ps.args(["-ww", "-o", "pid,ppid,stat,wchan:24,etime,time,args", "-p", &pids.join(",")]);
    let listed = ps.output().map(|output| output.stdout).unwrap_or_default();
    let _ = Command::new("kill").arg("-KILL").args(&pids).status();
    String::from_utf8_lossy(&listed).into_owned()
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

/// The same where flags are at fault: the code is that of usage, which the launcher passes on.
pub fn misused(ranks: usize, flags: &[&str]) -> String {
    let mut job = job(&[(ranks, flags)]);
    end_at_once(&mut job);
    let done = finish(job);
    assert_eq!(done.code, Some(ErrorKind::Usage as i32), "{flags:?}: {}", done.stderr);
    only_message(&done)
}

/// As `refused`, for a job that has more said about it than flags.
pub fn refused_by(mut job: Command) -> String {
    end_at_once(&mut job);
    only_message(&finish(job))
}

/// The message of a job that failed, within seconds and with no other.
pub fn only_message(done: &Finished) -> String {
    assert!(!done.success, "succeeded: {}", done.stdout);
    assert!(done.took < SECONDS, "took {:?}", done.took);
    let mut messages = done.stderr.lines().filter(|line| line.contains("error: "));
    let message = messages.next().unwrap_or_else(|| panic!("no message: {}", done.stderr)).to_string();
    assert_eq!(messages.next(), None, "more than one message: {}", done.stderr);
    assert!(!done.stderr.contains("panicked at"), "{}", done.stderr);
    message
}

/// A series of a results file.
pub fn series(results: &Path, name: &str) -> Vec<f64> {
    let file = hdf5::File::open(results).expect("the results file opens");
    file.dataset(name).expect("the series is there").read_1d::<f64>().expect("numbers").to_vec()
}

/// Every number of a checkpoint, by name.
pub fn arrays(path: &Path) -> Vec<(String, Vec<u32>)> {
    fn walk(group: &hdf5::Group, into: &mut Vec<(String, Vec<u32>)>) {
        for name in group.member_names().unwrap() {
            match group.dataset(&name) {
                Ok(set) => {
                    let bits = set.read_raw::<f32>().unwrap().into_iter().map(f32::to_bits).collect();
                    into.push((set.name(), bits));
                }
                Err(_) => walk(&group.group(&name).unwrap(), into),
            }
        }
    }
    let mut found = Vec::new();
    walk(&hdf5::File::open(path).unwrap(), &mut found);
    found
}

/// A count of a results file.
pub fn scalar(results: &Path, name: &str) -> u64 {
    let file = hdf5::File::open(results).expect("the results file opens");
    file.dataset(name).expect("the count is there").read_scalar::<u64>().expect("a number")
}

/// A text of the results file: an attribute of one of its groups.
pub fn text(results: &Path, group: &str, name: &str) -> String {
    let file = hdf5::File::open(results).unwrap();
    let attribute = file.group(group).unwrap().attr(name).unwrap();
    attribute.read_scalar::<hdf5::types::VarLenUnicode>().unwrap().to_string()
}

/// That a run of these flags had at its peak the memory that its plan says: within 5 % or 50 MB. An MPI that sums may
/// have less: what it receives beside each bucket is the library's affair (Open MPI has all of it, MPICH a part).
pub fn within_plan(results: &Path, flags: &str) -> Result<(), String> {
    let megabytes = |name: &str| scalar(results, &format!("summary/{name}")) as f64 / 1e6;
    let [planned, peak] = ["planned_memory", "peak_memory"].map(megabytes);
    let fits = (planned - peak).abs() < (0.05 * planned).max(50.0);
    match fits || peak < planned && flags.contains("--allreduce mpi") {
        true => Ok(()),
        false => Err(format!("has {peak:.0} MB at its peak, the plan said {planned:.0} MB")),
    }
}
