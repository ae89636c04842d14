//! A job under way: its launcher, and all its processes on this host.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::launcher::Ear;
use crate::config::environment::ELASTIC_JOB;
use crate::error::{Error, Result};
use crate::host;

/// How long a launcher has to end its ranks, before they are killed.
const ENDING: Duration = Duration::from_secs(10);
/// After how long a job that was told to stop is told again: a launcher that has not started its ranks yet passes
/// nothing on.
pub const AGAIN: Duration = Duration::from_secs(3);

/// A job under way. Its launcher has a process group of its own: what a terminal sends does not reach it.
pub struct Running {
    child: Child,
    /// By which its processes are known, also those whose launcher is gone.
    mark: String,
    /// When it was started.
    pub started: Instant,
    /// Who is told to stop, and when next.
    again: Option<(Ear, Instant)>,
    /// When what is left is killed.
    deadline: Option<Instant>,
}

impl Running {
    /// Starts the `number`th job, with these variables where they are not set already.
    ///
    /// # Errors
    /// `Environment` where the launcher cannot be started.
    pub fn start(words: &[String], variables: &[(&str, &str)], number: usize) -> Result<Running> {
        let mark = format!("{}.{number}", std::process::id());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).env(ELASTIC_JOB, &mark).stdin(Stdio::null()).process_group(0);
        command.envs(variables.iter().filter(|(name, _)| std::env::var_os(name).is_none()).copied());
        let child = command
            .spawn()
            .map_err(|error| Error::environment(format!("{}: cannot be started: {error}", words[0])))?;
        Ok(Running { child, mark, started: Instant::now(), again: None, deadline: None })
    }

    /// The launcher's code, once it has ended: of a signal 128 and its number. Nothing of the job is left on this host
    /// then.
    pub fn ended(&mut self) -> Option<i32> {
        if self.deadline.is_some_and(|deadline| Instant::now() > deadline) {
            self.kill();
        }
        if let Some((ear, _)) = self.again.filter(|(_, next)| Instant::now() > *next) {
            self.stop(ear);
        }
        let status = self.child.try_wait().ok()??;
        // A launcher that was killed leaves ranks behind, which go on for a moment.
        for _ in 0..100 {
            if self.processes().is_empty() {
                break;
            }
            self.kill();
            std::thread::sleep(Duration::from_millis(20));
        }
        match status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)) {
            // MPICH's launcher may call it a success when it was told to end before it heard of its ranks.
            0 if self.deadline.is_some() => Some(128 + Signal::TERM.as_raw()),
            code => Some(code),
        }
    }

    /// Tells the job to write a checkpoint and end.
    pub fn stop(&mut self, ear: Ear) {
        self.again = Some((ear, Instant::now() + AGAIN));
        let is_rank =
            |pid: &Pid| host::process(&pid.to_string()).is_some_and(|process| process.name == "dltrain");
        let rank = match ear {
            Ear::Rank => self.processes().into_iter().find(is_rank),
            Ear::Launcher => None,
        };
        signal(rank.unwrap_or(Pid::from_child(&self.child)), Signal::USR1);
    }

    /// Ends the job at once, by its launcher, and what is left on this host soon after.
    pub fn end(&mut self) {
        self.again = None;
        signal(Pid::from_child(&self.child), Signal::TERM);
        self.deadline.get_or_insert(Instant::now() + ENDING);
    }

    fn kill(&mut self) {
        // It may have ended since.
        let _ = self.child.kill();
        self.processes().into_iter().for_each(|process| signal(process, Signal::KILL));
    }

    /// Those of its processes on this host that still run.
    fn processes(&self) -> Vec<Pid> {
        let numbers = host::processes_with(&format!("{}={}", ELASTIC_JOB, self.mark));
        numbers.into_iter().filter_map(Pid::from_raw).collect()
    }
}

/// Tells a rank of a job that another process started to write a checkpoint and end, with all others.
pub fn stop_rank(process: u32) {
    if let Some(process) = i32::try_from(process).ok().and_then(Pid::from_raw) {
        signal(process, Signal::USR1);
    }
}

/// A process that has ended meanwhile needs no signal.
fn signal(process: Pid, signal: Signal) {
    if let Err(error) = kill_process(process, signal) {
        log::debug!("process {process}: cannot be signalled: {error}");
    }
}
