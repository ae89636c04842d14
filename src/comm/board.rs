//! What every rank is doing, as far as this node knows: a line a rank, in memory that the ranks of the node share.
//!
//! A rank writes its own line; what comes from other nodes by message is written by whoever receives it. Nothing here
//! waits, and a reader may see a line half renewed: it is for reports to people.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::host::{self, clock};

/// What a run is busy with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum RunPhase {
    /// Starting.
    Start,
    /// Opening and reading data.
    Data,
    /// Planning the step.
    Plan,
    /// Allocating memory.
    Memory,
    /// In a training step, counted from 0.
    Step,
    /// In an evaluation.
    Evaluation,
    /// Ending the run.
    End,
    /// It has ended the job, and said why.
    Abort,
}

/// A phase, and which of its kind where they are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Activity {
    pub phase: RunPhase,
    pub number: u64,
}

impl fmt::Display for Activity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.phase {
            RunPhase::Start => f.write_str("the start"),
            RunPhase::Data => f.write_str("reading the data"),
            RunPhase::Plan => f.write_str("planning"),
            RunPhase::Memory => f.write_str("setting up memory"),
            RunPhase::Step => write!(f, "step {}", self.number),
            RunPhase::Evaluation => write!(f, "the evaluation after epoch {}", self.number),
            RunPhase::End => f.write_str("the end"),
            RunPhase::Abort => f.write_str("ending the job"),
        }
    }
}

/// How a process looks from outside, as /proc has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ProcessState {
    Unknown,
    Running,
    Asleep,
    InputOutput,
    Stopped,
    Gone,
}

/// What is known of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankStatus {
    pub place: Activity,
    pub process: ProcessState,
    /// Since when it has waited for others; `None` where it does not.
    pub waiting: Option<u64>,
    /// When it said so last, by this node's clock.
    pub said: u64,
}

/// Words of a line. It has a cache line of its own, so that those who write do not disturb each other.
#[derive(Default)]
#[repr(C, align(64))]
pub(super) struct StatusLine {
    /// Number, phase and process.
    place: AtomicU64,
    waiting: AtomicU64,
    said: AtomicU64,
    /// The number of a process of this node.
    pid: AtomicU64,
}

const NUMBER_BITS: u32 = 48;

impl StatusLine {
    pub fn read(&self) -> RankStatus {
        let word = self.place.load(Ordering::Relaxed);
        let waiting = self.waiting.load(Ordering::Relaxed);
        RankStatus {
            place: Activity {
                phase: RunPhase::from_code((word >> NUMBER_BITS) as u8),
                number: word & ((1 << NUMBER_BITS) - 1),
            },
            process: ProcessState::from_code((word >> (NUMBER_BITS + 8)) as u8),
            waiting: (waiting > 0).then_some(waiting),
            said: self.said.load(Ordering::Relaxed),
        }
    }

    pub fn write(&self, status: &RankStatus) {
        let Activity { phase, number } = status.place;
        let state = u64::from(status.process as u8) << 8 | u64::from(phase as u8);
        self.place.store(state << NUMBER_BITS | number, Ordering::Relaxed);
        self.waiting.store(status.waiting.unwrap_or(0), Ordering::Relaxed);
        self.said.store(status.said, Ordering::Relaxed);
    }

    pub fn set_pid(&self) {
        self.pid.store(u64::from(std::process::id()), Ordering::Relaxed);
    }

    /// What is known of a rank, with how its process looks now; for a rank of this node.
    pub fn look(&self) -> RankStatus {
        RankStatus { process: look(self.pid.load(Ordering::Relaxed)), ..self.read() }
    }
}

impl RunPhase {
    pub(super) fn from_code(code: u8) -> RunPhase {
        use RunPhase::*;
        let all = [Start, Data, Plan, Memory, Step, Evaluation, End, Abort];
        all.into_iter().find(|phase| *phase as u8 == code).unwrap_or(Start)
    }
}

impl ProcessState {
    pub(super) fn from_code(code: u8) -> ProcessState {
        use ProcessState::*;
        let all = [Unknown, Running, Asleep, InputOutput, Stopped, Gone];
        all.into_iter().find(|process| *process as u8 == code).unwrap_or(Unknown)
    }
}

/// The state of a process; unknown where its number means another one (ranks in containers of their own).
fn look(pid: u64) -> ProcessState {
    let (its, own) = match (host::process(&pid.to_string()), host::process("self")) {
        (None, Some(_)) => return ProcessState::Gone,
        (Some(its), Some(own)) => (its, own),
        _ => return ProcessState::Unknown,
    };
    match its.state {
        _ if its.name != own.name => ProcessState::Unknown,
        'R' => ProcessState::Running,
        'S' => ProcessState::Asleep,
        'D' => ProcessState::InputOutput,
        'T' | 't' => ProcessState::Stopped,
        'Z' | 'X' => ProcessState::Gone,
        _ => ProcessState::Unknown,
    }
}

/// Who is awaited: the ranks that do not themselves wait, and have said so within `fresh` nanoseconds.
pub(super) fn awaited(board: &[RankStatus], now: u64, fresh: impl Fn(usize) -> u64) -> Vec<usize> {
    let waits = |rank: usize| {
        let status = &board[rank];
        status.waiting.is_some() && now.saturating_sub(status.said) <= fresh(rank)
    };
    (0..board.len()).filter(|&rank| !waits(rank)).collect()
}

/// "rank 1 on n0 (stopped by a signal, in step 12), ranks 4, 5 on n1 (…)".
pub(super) fn describe<'a>(
    ranks: &[usize],
    board: &[RankStatus],
    now: u64,
    host_of: impl Fn(usize) -> &'a str,
) -> String {
    grouped(ranks, host_of, |rank| format!(" ({})", doing(&board[rank], now)))
}

/// "rank 1 on n0, ranks 4, 5 on n1".
pub(super) fn named<'a>(ranks: &[usize], host_of: impl Fn(usize) -> &'a str) -> String {
    grouped(ranks, host_of, |_| String::new())
}

/// Ranks of which the same can be said, together.
fn grouped<'a>(
    ranks: &[usize],
    host_of: impl Fn(usize) -> &'a str,
    what: impl Fn(usize) -> String,
) -> String {
    /// More are counted only.
    const NAMED: usize = 8;
    let mut groups: Vec<(&str, String, Vec<usize>)> = Vec::new();
    for &rank in ranks {
        let (host, what) = (host_of(rank), what(rank));
        match groups.iter_mut().find(|(of, text, _)| *of == host && *text == what) {
            Some((_, _, members)) => members.push(rank),
            None => groups.push((host, what, vec![rank])),
        }
    }
    let mut parts: Vec<String> = Vec::new();
    for (host, what, members) in groups.iter().take(NAMED) {
        let names: Vec<String> = members.iter().take(NAMED).map(usize::to_string).collect();
        let more = match members.len() - names.len() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let s = if members.len() == 1 { "" } else { "s" };
        parts.push(format!("rank{s} {}{more} on {host}{what}", names.join(", ")));
    }
    let left: usize = groups.iter().skip(NAMED).map(|(_, _, members)| members.len()).sum();
    if left > 0 {
        parts.push(format!("{left} more ranks"));
    }
    parts.join(", ")
}

fn doing(status: &RankStatus, now: u64) -> String {
    if status.said == 0 {
        return "no word from it".into();
    }
    let state = match (status.process, status.waiting) {
        (ProcessState::Stopped, _) => "stopped by a signal or a debugger".into(),
        (ProcessState::Gone, _) => "its process is gone".into(),
        (ProcessState::InputOutput, _) => "the system reads or writes for it".into(),
        (ProcessState::Running, None) => "computing".into(),
        (ProcessState::Asleep, None) => "asleep, not waiting for ranks".into(),
        (_, None) => "not waiting for ranks".into(),
        (_, Some(_)) => {
            format!("silent for {} s", now.saturating_sub(status.said) / 1_000_000_000)
        }
    };
    format!("{state}, in {}", status.place)
}

/// Whole seconds, or one digit more where they are few.
pub(super) fn seconds(nanoseconds: u64) -> String {
    let seconds = nanoseconds as f64 / 1e9;
    if seconds < 9.95 { format!("{seconds:.1}") } else { format!("{seconds:.0}") }
}

/// The status of a rank that waits, or works, from now on.
pub(super) fn status(place: Activity, waiting: Option<u64>) -> RankStatus {
    RankStatus { place, process: ProcessState::Unknown, waiting, said: clock::now() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const NOW: u64 = 100 * SECOND;

    fn rank(process: ProcessState, waiting: Option<u64>, said: u64) -> RankStatus {
        RankStatus { place: Activity { phase: RunPhase::Step, number: 12 }, process, waiting, said }
    }

    fn report(board: &[RankStatus]) -> String {
        let ranks = awaited(board, NOW, |_| SECOND);
        describe(&ranks, board, NOW, |rank| if rank < 4 { "a" } else { "b" })
    }

    #[test]
    fn ranks_that_do_not_wait_or_have_fallen_silent_are_awaited() {
        let waits = rank(ProcessState::Unknown, Some(60 * SECOND), NOW - 1000);
        let board = [
            waits,
            rank(ProcessState::Stopped, Some(60 * SECOND), 60 * SECOND),
            waits,
            rank(ProcessState::Running, None, 50 * SECOND),
            rank(ProcessState::Unknown, Some(70 * SECOND), 80 * SECOND),
            RankStatus { said: 0, ..rank(ProcessState::Unknown, None, 0) },
        ];
        assert_eq!(
            report(&board),
            "rank 1 on a (stopped by a signal or a debugger, in step 12), rank 3 on a (computing, in step 12), rank 4 on b \
             (silent for 20 s, in step 12), rank 5 on b (no word from it)"
        );
        assert_eq!(report(&[waits; 3]), "");
    }

    #[test]
    fn a_thousand_awaited_ranks_are_a_line_not_a_page() {
        let board = [rank(ProcessState::Running, None, 50 * SECOND); 1000];
        let text = report(&board);
        assert!(text.starts_with("ranks 0, 1, 2, 3 on a (computing, in step 12), ranks 4, 5, 6,"), "{text}");
        assert!(text.ends_with("10, 11 and 988 more on b (computing, in step 12)"), "{text}");
    }

    #[test]
    fn what_is_written_is_read() {
        let line = StatusLine::default();
        for waiting in [None, Some(7)] {
            let status = RankStatus {
                place: Activity { phase: RunPhase::Evaluation, number: (1 << 48) - 1 },
                process: ProcessState::Gone,
                waiting,
                said: 9,
            };
            line.write(&status);
            assert_eq!(line.read(), status);
        }
        line.set_pid();
        assert_ne!(line.look().process, ProcessState::Gone);
    }
}
