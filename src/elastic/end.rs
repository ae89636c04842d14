//! How a job ended, and what comes after it.

use std::time::{Duration, Instant};

use signal_hook::consts::SIGUSR1;
use signal_hook::low_level;

use crate::error::ErrorKind;

/// A job that failed sooner, and wrote no checkpoint, has come to nothing.
const BRIEF: Duration = Duration::from_secs(30);
/// Failures in a row that came to nothing, after which a further start would too.
const FRUITLESS: usize = 3;
/// The code of a job that was stopped as asked.
pub const STOPPED: i32 = ErrorKind::Stopped as i32;
/// That of one whose terminal was closed.
const HUNG_UP: i32 = ErrorKind::HungUp as i32;

/// Why a job was told to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndReason {
    /// It was not.
    No,
    /// To go on with other ranks, at that time.
    ToMove(Instant),
    /// By a signal to this process.
    ToStop,
}

/// How a job ended.
#[derive(Debug, Clone, Copy)]
pub struct End {
    /// Its launcher's code; for a launcher that a signal ended 128 and its number.
    pub code: i32,
    /// Since it was started.
    pub lived: Duration,
    /// Whether it was told to.
    pub asked: EndReason,
    /// Whether there is a newer checkpoint or commit than before it.
    pub got_further: bool,
}

/// What comes after a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Nothing: this is the code.
    Ended(i32),
    /// The job goes on, on other hosts.
    Moves,
    /// The job goes on, on the hosts that are left.
    Failed,
}

/// Counts failures.
#[derive(Debug)]
pub struct Judge {
    /// Restarts after failures at most.
    pub max_restarts: usize,
    /// Whether the launcher may return 0 for a job that was told to stop.
    pub hides_stops: bool,
    failures: usize,
    /// Those since the last job that came to something.
    fruitless: usize,
}

impl Judge {
    /// Nothing has failed yet.
    pub fn new(max_restarts: usize, hides_stops: bool) -> Judge {
        Judge { max_restarts, hides_stops, failures: 0, fruitless: 0 }
    }

    /// What comes after a job, and why, in words.
    pub fn next(&mut self, end: &End) -> (Next, String) {
        let &End { code, lived, asked, got_further } = end;
        let moves = matches!(asked, EndReason::ToMove(_));
        // Ranks that were only starting did not know yet that SIGUSR1 means a checkpoint.
        let code = if asked != EndReason::No && is_of(code, SIGUSR1) { STOPPED } else { code };
        let said =
            format!("the job ended after {:.1} s with code {code} ({})", lived.as_secs_f64(), meaning(code));
        // One that is done is done again at once.
        if moves && (code == STOPPED || code == 0 && self.hides_stops) {
            return (Next::Moves, said);
        }
        if code == 0 || code == STOPPED || asked == EndReason::ToStop {
            return (Next::Ended(code), said);
        }
        if is_final(code, got_further) {
            return (Next::Ended(code), format!("{said}; a restart would end in the same way"));
        }
        self.failures += 1;
        self.fruitless = if got_further || lived >= BRIEF { 0 } else { self.fruitless + 1 };
        let gives_up = if self.fruitless >= FRUITLESS {
            let brief = BRIEF.as_secs();
            format!("{FRUITLESS} jobs in a row failed within {brief} s and wrote no checkpoint")
        } else if self.failures > self.max_restarts {
            format!("--max-restarts is {}", self.max_restarts)
        } else {
            return (Next::Failed, said);
        };
        (Next::Ended(code), format!("{said}; gives up: {gives_up}"))
    }
}

/// Whether a start on any hosts would end with this code again. Ranks are compared before the first step: of a job that
/// has written a checkpoint 6 is MPICH's code for a rank that was ended by SIGABRT.
fn is_final(code: i32, got_further: bool) -> bool {
    use ErrorKind::{Data, Diverged, Environment, Mismatch, Output, Usage};
    let kinds = [Usage, Data, Environment, Mismatch, Diverged, Output];
    let lost = got_further && code == Mismatch as i32;
    !lost && kinds.iter().any(|kind| *kind as i32 == code)
}

/// Whether this is the code of a process that a signal ended: MPICH's launcher returns its bare number.
fn is_of(code: i32, signal: i32) -> bool {
    code == signal || code == 128 + signal
}

/// A code in words.
fn meaning(code: i32) -> String {
    let known = match code {
        0 => "done",
        1 => "a rank or its launcher failed",
        2 => "a wrong flag",
        3 => "a missing or damaged data file",
        4 => "the machine or the launcher lacks something",
        5 => "a library call failed",
        6 => "ranks disagree",
        7 => "the loss is not finite",
        8 => "results or checkpoints cannot be written",
        9 => "a rank was killed, or waited too long for another",
        STOPPED => "stopped as asked",
        HUNG_UP => "stopped as its terminal was closed",
        _ => match low_level::signal_name(code - 128) {
            Some(name) => return format!("killed by {name}"),
            None => "the launcher's own, or MPI's",
        },
    };
    known.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(code: i32, seconds: u64, asked: EndReason, got_further: bool) -> End {
        End { code, lived: Duration::from_secs(seconds), asked, got_further }
    }

    fn next(code: i32, asked: EndReason) -> Next {
        Judge::new(9, false).next(&end(code, 5, asked, true)).0
    }

    #[test]
    fn codes_say_whether_a_restart_helps() {
        for code in [0, 2, 3, 4, 7, 8, 75] {
            assert_eq!(next(code, EndReason::No), Next::Ended(code));
        }
        // Lost ranks, MPI's aborts, launchers.
        for code in [1, 5, 6, 9, 14, 15, 134, 137, 138, 139, 143, 213] {
            assert_eq!(next(code, EndReason::No), Next::Failed, "{code}");
        }
        let compared = Judge::new(9, false).next(&end(6, 5, EndReason::No, false));
        assert!(compared.0 == Next::Ended(6) && compared.1.ends_with("a restart would end in the same way"));
        assert_eq!(
            (meaning(137), meaning(213)),
            ("killed by SIGKILL".into(), "the launcher's own, or MPI's".into())
        );
    }

    #[test]
    fn a_job_that_was_told_to_end_has_not_failed() {
        let moves = EndReason::ToMove(Instant::now());
        // Under MPICH 10 is a rank that SIGUSR1 ended.
        for code in [75, 138, 10] {
            assert_eq!(next(code, moves), Next::Moves);
            assert_eq!(next(code, EndReason::ToStop), Next::Ended(75));
        }
        assert_eq!(
            (next(0, moves), next(7, moves), next(9, moves)),
            (Next::Ended(0), Next::Ended(7), Next::Failed)
        );
        assert_eq!(Judge::new(0, true).next(&end(0, 5, moves, true)).0, Next::Moves);
        assert_eq!(
            (next(137, EndReason::ToStop), next(0, EndReason::ToStop)),
            (Next::Ended(137), Next::Ended(0))
        );
    }

    #[test]
    fn what_comes_to_nothing_is_given_up() {
        let mut judge = Judge::new(usize::MAX, false);
        let mut fails = |seconds, got_further| judge.next(&end(137, seconds, EndReason::No, got_further)).0;
        // In a row means that nothing came of any of them.
        for (seconds, got_further) in
            [(1, false), (1, false), (1, true), (1, false), (29, false), (30, false)]
        {
            assert_eq!(fails(seconds, got_further), Next::Failed);
        }
        assert_eq!(
            [fails(1, false), fails(1, false), fails(1, false)],
            [Next::Failed, Next::Failed, Next::Ended(137)]
        );
        let mut judge = Judge::new(1, false);
        assert_eq!(judge.next(&end(9, 99, EndReason::No, true)).0, Next::Failed);
        // To move is none of the restarts.
        assert_eq!(judge.next(&end(75, 9, EndReason::ToMove(Instant::now()), true)).0, Next::Moves);
        let (next, said) = judge.next(&end(9, 99, EndReason::No, true));
        assert!(next == Next::Ended(9) && said.ends_with("; gives up: --max-restarts is 1"), "{said}");
    }
}
