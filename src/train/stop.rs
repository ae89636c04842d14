//! Being told to stop: signals and the time limit. Each rank notices by itself; that one has is added up over ranks
//! with the step's loss (`step::Tail`), so that all of them stop behind the same step.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use signal_hook::flag;

use crate::comm;
use crate::config::{Interval, Session};
use crate::error::{Error, Result};

/// What a shell says of a process that an interrupt ended.
const INTERRUPTED: i32 = 130;
/// Seconds that closing files and MPI may take.
const CLOSING: f64 = 5.0;

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
    /// Time between checkpoints, where it is time that counts.
    every: Option<Duration>,
    last: Instant,
    longest_step: f64,
}

impl Watch {
    /// From now on SIGTERM, SIGUSR1 and SIGINT only leave a note; a second SIGINT ends the process at once.
    ///
    /// # Errors
    /// `Environment` when the system lets no signal be handled.
    pub fn start(session: &Session, started: Instant) -> Result<Watch> {
        let signal = Arc::new(AtomicUsize::new(0));
        let interrupted = Arc::new(AtomicBool::new(false));
        // What handled a signal before would be called too.
        comm::release_user_signal();
        // In this order: the second one must see what the first has left.
        flag::register_conditional_shutdown(SIGINT, INTERRUPTED, interrupted.clone())
            .and_then(|_| flag::register(SIGINT, interrupted))
            .and_then(|_| {
                [SIGINT, SIGTERM, SIGUSR1].into_iter().try_for_each(|number| {
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
        let deadline = deadline(session, started);
        Ok(Watch { signal, deadline, every, last: Instant::now(), longest_step: 0.0 })
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

/// When the run should have ended: by the flag, or with checkpoints by the end of the Slurm job.
fn deadline(session: &Session, started: Instant) -> Option<Instant> {
    let asked = session.time_limit.map(|seconds| started + Duration::from_secs_f64(seconds));
    let slurm = || {
        session.checkpoint.as_ref()?;
        let end: u64 = std::env::var("SLURM_JOB_END_TIME").ok()?.trim().parse().ok()?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
        Some(Instant::now() + Duration::from_secs(end).saturating_sub(now))
    };
    asked.or_else(slurm)
}

/// What stopped the run, in words.
pub fn reason(signal: usize) -> String {
    match signal as i32 {
        SIGINT => "SIGINT".into(),
        SIGTERM => "SIGTERM".into(),
        SIGUSR1 => "SIGUSR1".into(),
        _ => "the time limit".into(),
    }
}
