//! Being told to stop: signals and the time limit. Each rank notices by itself; that one has is added up over ranks
//! with the step's loss (`step::StepSums`), so that all of them stop behind the same step.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::{flag, low_level};

use crate::config::{Interval, Session};
use crate::error::{Error, ErrorKind, Result};
use crate::{comm, host, record};

/// What a shell says of a process that an interrupt ended.
const INTERRUPTED: i32 = 130;
/// Seconds that closing files and MPI may take.
const CLOSING: f64 = 5.0;

/// When Slurm's job ends, in seconds since 1970.
const SLURM_END: &str = "SLURM_JOB_END_TIME";

/// What one rank has noticed.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Flags {
    /// A signal came, or time is up.
    pub stop: bool,
    /// A checkpoint is due by the clock.
    pub checkpoint: bool,
}

/// The signals and clocks of a rank.
pub struct Watch {
    /// The last signal; 0 before one came.
    signal: Arc<AtomicUsize>,
    deadline: Option<Instant>,
    /// Whose end it is, in words.
    limit: &'static str,
    /// Time between checkpoints, where it is time that counts.
    every: Option<Duration>,
    last: Instant,
    longest_step: f64,
}

impl Watch {
    /// From now on SIGTERM, SIGUSR1, SIGINT and SIGHUP only leave a note; a second SIGINT ends the process at once.
    /// SIGHUP stays ignored where it was (nohup).
    ///
    /// # Errors
    /// `Environment` when the system lets no signal be handled.
    pub fn start(place: impl Into<record::RankInfo>, session: &Session, started: Instant) -> Result<Watch> {
        let heard = [SIGINT, SIGTERM, SIGUSR1, SIGHUP].into_iter();
        let heard = heard.filter(|&number| number != SIGHUP || !host::ignores(number));
        let signal = Arc::new(AtomicUsize::new(0));
        let interrupted = Arc::new(AtomicBool::new(false));
        // What handled a signal before would be called too.
        comm::release_user_signal();
        // In this order: the second one must see what the first has left.
        flag::register_conditional_shutdown(SIGINT, INTERRUPTED, interrupted.clone())
            .and_then(|_| flag::register(SIGINT, interrupted))
            .and_then(|_| {
                heard.into_iter().try_for_each(|number| {
                    flag::register_usize(number, signal.clone(), number as usize).map(|_| ())
                })
            })
            .map_err(|error| Error::environment(format!("cannot handle signals: {error}")))?;
        let every = match session.every {
            Interval::Seconds(seconds) if session.checkpoint.is_some() => {
                Some(Duration::from_secs_f64(seconds))
            }
            _ => None,
        };
        let (deadline, limit) = match session.time_limit {
            Some(seconds) => (Some(started + Duration::from_secs_f64(seconds)), "the time limit"),
            None => {
                (end_of_slurm_job(place.into(), session), "the end of the Slurm job (SLURM_JOB_END_TIME)")
            }
        };
        Ok(Watch { signal, deadline, limit, every, last: Instant::now(), longest_step: 0.0 })
    }

    /// What stopped the run, in words: this signal of some rank, or the clock.
    pub fn reason(&self, signal: usize) -> &'static str {
        match signal as i32 {
            0 => self.limit,
            number => low_level::signal_name(number).unwrap_or("a signal"),
        }
    }

    /// What this rank has noticed. `checkpoint` is how long writing one takes, in seconds.
    pub fn flags(&self, checkpoint: f64) -> Flags {
        let margin = Duration::from_secs_f64(CLOSING + 2.0 * (checkpoint + self.longest_step));
        let late = self.deadline.is_some_and(|deadline| Instant::now() + margin >= deadline);
        Flags {
            stop: late || self.signal() != 0,
            checkpoint: self.every.is_some_and(|every| self.last.elapsed() >= every),
        }
    }

    /// The signal that came, if one did; else 0.
    pub fn signal(&self) -> usize {
        self.signal.load(Ordering::Relaxed)
    }

    /// A step took so long.
    pub fn stepped(&mut self, seconds: f64) {
        self.longest_step = self.longest_step.max(seconds);
    }

    /// A checkpoint was taken.
    pub fn checkpointed(&mut self) {
        self.last = Instant::now();
    }
}

/// When the Slurm job ends, where there are checkpoints to end with. One in the past is of a job that a shell outlived.
fn end_of_slurm_job(place: record::RankInfo, session: &Session) -> Option<Instant> {
    session.checkpoint.as_ref()?;
    let said = std::env::var(SLURM_END).ok()?;
    let Ok(end) = said.trim().parse::<u64>() else {
        let text = format!(
            "{SLURM_END}={said} is no time in seconds, and is ignored; --time-limit says when to stop"
        );
        record::log(place, log::Level::Warn, &text);
        return None;
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    let left = Duration::from_secs(end).checked_sub(now);
    if left.is_none() {
        let text =
            format!("{SLURM_END}={end} is in the past, and is ignored; --time-limit says when to stop");
        record::log(place, log::Level::Warn, &text);
    }
    Some(Instant::now() + left?)
}

/// What a run that such a signal stopped, or the clock, ends with.
pub fn kind(signal: usize) -> ErrorKind {
    if signal as i32 == SIGHUP { ErrorKind::HungUp } else { ErrorKind::Stopped }
}
