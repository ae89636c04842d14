//! Waiting for other ranks, and telling people when it takes too long.
//!
//! Every loop that polls for other ranks holds a `Wait`. One that has been in vain for a while says so on the board of
//! its node, and goes on saying so; who does neither is the one that is waited for, wherever the chain of ranks that
//! wait for each other begins. So a rank that computes, reads or is stopped is named, and not its neighbours. Between
//! nodes the boards are sent to and fro, but only once a wait has lasted for half the time that is allowed
//! (`stall_gossip`). Of all ranks that wait the lowest speaks.
//!
//! The watch belongs to the process, as MPI does: it is not handed from hand to hand.

use std::cell::{Cell, OnceCell, RefCell};
use std::time::Duration;

use super::board::{self, Activity, ProcessState, RankStatus, RunPhase, StatusLine};
use super::progress::SelfReceive;
use super::stall_gossip::StallGossip;
use super::topology::Topology;
use crate::error::{Error, ErrorKind, Result};
use crate::host::clock;

const SECOND: u64 = 1_000_000_000;

/// A wait is told to others when it has lasted this long, and again and again so often.
const SAY_AFTER: u64 = 10_000_000;
const SAY_EVERY: u64 = 50_000_000;

/// MPI is called so often during a wait (`progress`), whatever is waited for.
const PROGRESS_EVERY: u64 = 100_000;
/// After so long a rank leaves its core to others for a moment between two polls: one that only yields takes half of it
/// from a rank that computes there, where there are more ranks than cores. What it waits for is late by a DOZE at most,
/// a fortieth of the wait.
const DOZE_AFTER: u64 = 4_000_000;
const DOZE: Duration = Duration::from_micros(50);

/// How much longer than the speaker the others wait until they end the job themselves.
const GRACE: u64 = 10 * SECOND;

/// Nanoseconds of waiting without any progress until something is done about it; 0 is never.
#[derive(Debug, Clone, Copy)]
struct Limits {
    warn: u64,
    abort: u64,
}

/// This process's watch.
struct StallWatch {
    limits: Cell<Limits>,
    place: Cell<Activity>,
    /// A wait has ended the job: no other is to begin.
    over: Cell<bool>,
    progress: RefCell<Option<SelfReceive>>,
    job: OnceCell<WatchedRanks>,
}

/// The ranks, once they are known.
struct WatchedRanks {
    topology: Topology,
    board: Board,
    /// `None` where all ranks share the board.
    news: Option<RefCell<StallGossip>>,
}

/// A line for every rank of the job.
enum Board {
    /// In a window of the node that lives until MPI ends.
    Shared(*const StatusLine),
    Private(Box<[StatusLine]>),
}

thread_local! {
    static WATCH: StallWatch = const {
        StallWatch {
            limits: Cell::new(Limits { warn: 30 * SECOND, abort: 0 }),
            place: Cell::new(Activity { phase: RunPhase::Start, number: 0 }),
            over: Cell::new(false),
            progress: RefCell::new(None),
            job: OnceCell::new(),
        }
    };
}

/// A process that has not come to look at the clock for so long was stopped itself, or had no processor: that is no
/// time in which it waited for others.
const FROZEN: u64 = SECOND / 4;

/// Bytes of a board.
pub(super) fn board_bytes(ranks: usize) -> usize {
    ranks * size_of::<StatusLine>()
}

/// Starts the watch of this process. `shared` points at `board_bytes`, zeroed, at a page's start, mapped until `stop`;
/// `None` where ranks of a node share no memory.
pub(super) fn start(
    topology: Topology,
    shared: Option<*mut u8>,
    news: Option<StallGossip>,
    progress: SelfReceive,
) {
    let board = match shared {
        Some(address) => Board::Shared(address.cast_const().cast()),
        None => Board::Private((0..topology.size()).map(|_| StatusLine::default()).collect()),
    };
    WATCH.with(|watch| {
        watch.progress.replace(Some(progress));
        let job = WatchedRanks { topology, board, news: news.map(RefCell::new) };
        let own = &job.lines()[job.topology.rank()];
        own.set_pid();
        own.write(&board::status(watch.place.get(), None));
        // MPI starts once in a process, and so does this.
        let _ = watch.job.set(job);
    });
}

/// Ends it: the board is about to go.
pub(super) fn stop() {
    WATCH.with(|watch| {
        watch.limits.set(Limits { warn: 0, abort: 0 });
        watch.over.set(true);
        watch.progress.take().iter_mut().for_each(SelfReceive::stop);
    });
}

/// Sets after how many seconds without progress a wait is reported, and after how many the job ends; 0 is never.
pub(super) fn limit(warn: f64, abort: f64) {
    let nanoseconds = |seconds: f64| (seconds * 1e9) as u64;
    WATCH.with(|watch| watch.limits.set(Limits { warn: nanoseconds(warn), abort: nanoseconds(abort) }));
}

/// Says what this rank is busy with from now on.
pub fn enter(phase: RunPhase, number: u64) {
    WATCH.with(|watch| {
        watch.place.set(Activity { phase, number });
        watch.say(None);
    });
}

/// Says that the job ends by what this rank has met, and whether it is the one of its node to say what: the first where
/// several have met something in a moment.
pub(super) fn ends_first() -> bool {
    /// For how long the others of the same moment are waited for.
    const MOMENT: Duration = Duration::from_millis(50);
    enter(RunPhase::Abort, 0);
    WATCH.with(|watch| {
        watch.over.set(true);
        std::thread::sleep(MOMENT);
        let Some(job) = watch.job.get() else { return true };
        let all = job.lines().iter().map(StatusLine::read).enumerate();
        let ended = all.filter(|(_, status)| status.place.phase == RunPhase::Abort);
        let first = ended.min_by_key(|(rank, status)| (status.said, *rank));
        first.is_none_or(|(rank, _)| rank == job.topology.rank())
    })
}

/// What a rank waits for.
#[derive(Debug, Default)]
pub struct Awaited {
    /// "bucket 1 of 2, shm allreduce"; empty for the small talk of the control path.
    pub what: String,
    /// The ranks whose messages are missing here, where that is known, by their numbers in the job.
    pub peers: Vec<usize>,
}

/// One wait for other ranks.
#[derive(Default)]
pub struct Wait {
    /// When there was last something to do; 0 where nobody has looked at the clock yet.
    since: u64,
    /// When it was last looked at the clock.
    looked: u64,
    /// When MPI is to be called next.
    poll: u64,
    /// When there is something to say next.
    next: u64,
    /// Whether the others know of it.
    said: bool,
    /// How long it must have lasted for the next warning, and what the last one said.
    warn_at: u64,
    warned: Option<String>,
    /// Whose turn it is to warn, and to end the job.
    warns: SpeakerTurn,
    aborts: SpeakerTurn,
}

/// Whether it is this rank's turn to speak for all that wait. Where the one whose turn it was has just gone on, what
/// they all waited for has come, and this rank is about to go on as well: it takes its turn a moment later.
#[derive(Default)]
struct SpeakerTurn {
    /// When it was last another's turn; 0 is never.
    others: u64,
}

impl SpeakerTurn {
    /// `speaks`: of those that wait this rank is the one to speak `now`.
    fn taken(&mut self, speaks: bool, now: u64, moment: u64) -> bool {
        if !speaks {
            self.others = now;
        }
        speaks && (self.others == 0 || now - self.others > moment)
    }
}

impl Wait {
    /// A wait that begins now.
    pub fn new() -> Wait {
        Wait::default()
    }

    /// There was nothing to do: lets other processes run, and looks whether this takes too long.
    ///
    /// # Errors
    /// `Stalled` where the job is to end for it.
    pub fn idle(&mut self, awaited: impl Fn() -> Awaited) -> Result<()> {
        match self.since != 0 && self.looked - self.since > DOZE_AFTER {
            true => std::thread::sleep(DOZE),
            false => std::thread::yield_now(),
        }
        let now = clock::now();
        if self.since == 0 {
            (self.since, self.looked, self.next) = (now, now, now + SAY_AFTER);
            self.poll = now + PROGRESS_EVERY;
        }
        if now >= self.poll {
            self.poll = now + PROGRESS_EVERY;
            WATCH.with(StallWatch::make_progress)?;
        }
        let gap = now - self.looked;
        self.looked = now;
        if gap > FROZEN {
            self.since += gap;
        }
        if now < self.next {
            return Ok(());
        }
        self.next = now + SAY_EVERY;
        WATCH.with(|watch| watch.waits(self, now, &awaited))
    }

    /// There was something to do: the wait begins anew.
    pub fn moved(&mut self) {
        if self.since != 0 {
            self.end();
        }
    }

    fn end(&mut self) {
        if self.said {
            WATCH.with(|watch| watch.say(None));
        }
        if let Some(what) = self.warned.take() {
            let waited = board::seconds(clock::now().saturating_sub(self.since));
            log::warn!("{what}: goes on after {waited} s");
        }
        (self.since, self.said, self.warn_at) = (0, false, 0);
        (self.warns, self.aborts) = (SpeakerTurn::default(), SpeakerTurn::default());
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        self.moved();
    }
}

impl StallWatch {
    /// Lets MPI work.
    fn make_progress(&self) -> Result<()> {
        self.progress.borrow_mut().as_mut().map_or(Ok(()), SelfReceive::make)
    }

    /// Says on the board where this rank is, and since when it waits.
    fn say(&self, waiting: Option<u64>) {
        if let Some(job) = self.job.get()
            && !self.over.get()
        {
            job.lines()[job.topology.rank()].write(&board::status(self.place.get(), waiting));
        }
    }

    /// A wait goes on.
    fn waits(&self, wait: &mut Wait, now: u64, awaited: &dyn Fn() -> Awaited) -> Result<()> {
        if self.over.get() {
            return Err(Error::new(ErrorKind::Stalled, "the job ends"));
        }
        let (Some(job), Limits { warn, abort }) = (self.job.get(), self.limits.get()) else { return Ok(()) };
        self.say(Some(wait.since));
        wait.said = true;
        let waited = now - wait.since;
        let Some(first) = [warn, abort].into_iter().filter(|&limit| limit > 0).min() else { return Ok(()) };
        if let Some(news) = &job.news
            && waited >= first / 2
        {
            news.borrow_mut().exchange(job.lines(), &job.topology, job.own_group(), now, job.beat(first))?;
        }
        let turn = |turn: &mut SpeakerTurn, limit: u64| {
            limit > 0 && waited >= limit / 2 && turn.taken(job.speaks(now, limit), now, silence(limit))
        };
        let (warns, aborts) = (turn(&mut wait.warns, warn), turn(&mut wait.aborts, abort));
        if abort > 0 && waited >= abort && (aborts && !job.ends() || waited >= abort + GRACE) {
            let what = self.report(job, waited, now, awaited(), first);
            self.place.set(Activity { phase: RunPhase::Abort, number: 0 });
            self.say(None);
            self.over.set(true);
            wait.warned = None;
            return Err(Error::new(ErrorKind::Stalled, format!("{what}; --stall-abort ends the job")));
        }
        if warns && waited >= warn.max(wait.warn_at) {
            wait.warn_at = 2 * waited;
            let awaited = awaited();
            wait.warned = Some(self.place_of(&awaited));
            log::warn!("{}", self.report(job, waited, now, awaited, first));
        }
        Ok(())
    }

    fn place_of(&self, awaited: &Awaited) -> String {
        let place = self.place.get();
        if awaited.what.is_empty() { place.to_string() } else { format!("{place}, {}", awaited.what) }
    }

    /// "step 12, bucket 1 of 2, shm allreduce: waiting for 30 s for rank 1 on n0 (stopped by a signal, in step 12)".
    fn report(&self, job: &WatchedRanks, waited: u64, now: u64, awaited: Awaited, limit: u64) -> String {
        let board = job.statuses();
        let ranks = board::awaited(&board, now, |rank| job.fresh(rank, limit));
        let host_of = |rank| job.topology.host_of(rank);
        let (place, waited) = (self.place_of(&awaited), board::seconds(waited));
        if !ranks.is_empty() {
            let ranks = board::describe(&ranks, &board, now, host_of);
            return format!("{place}: waiting for {waited} s for {ranks}");
        }
        let peers = match board::named(&awaited.peers, host_of) {
            peers if peers.is_empty() => String::new(),
            peers => format!("; this one for a message of {peers}"),
        };
        format!("{place}: waiting for {waited} s, as all ranks are{peers}: is the network between them up?")
    }
}

impl WatchedRanks {
    fn lines(&self) -> &[StatusLine] {
        match &self.board {
            // SAFETY: `start` was given as many zeroed lines; they are atomics, and mapped until `stop`, after which
            // `say` and `waits` come here no more.
            Board::Shared(address) => unsafe { std::slice::from_raw_parts(*address, self.topology.size()) },
            Board::Private(lines) => lines,
        }
    }

    /// The ranks that write to this board.
    fn own_group(&self) -> Vec<usize> {
        match self.board {
            Board::Shared(_) => self.topology.ranks_of(self.topology.node()),
            Board::Private(_) => vec![self.topology.rank()],
        }
    }

    /// The whole board; of ranks that are here, how their processes look.
    fn statuses(&self) -> Vec<RankStatus> {
        let mut all: Vec<RankStatus> = self.lines().iter().map(StatusLine::read).collect();
        for rank in self.own_group() {
            all[rank] = self.lines()[rank].look();
        }
        all
    }

    /// How often boards are sent.
    fn beat(&self, limit: u64) -> u64 {
        (limit / 16).clamp(SECOND / 10, 2 * SECOND)
    }

    /// How long a rank that waits may be silent: until the system lets it run again, or its news comes.
    fn fresh(&self, rank: usize, limit: u64) -> u64 {
        let shared = matches!(self.board, Board::Shared(_));
        let near = rank == self.topology.rank() || shared && self.topology.same_node(rank);
        if near { silence(limit) } else { silence(limit) + 4 * self.beat(limit) }
    }

    /// Whether this rank speaks for the job: of those that have waited for about as long it is the lowest.
    fn speaks(&self, now: u64, limit: u64) -> bool {
        let long =
            |status: &RankStatus| status.waiting.is_some_and(|since| now.saturating_sub(since) >= limit / 2);
        let lower = self.lines()[..self.topology.rank()].iter().map(StatusLine::read).enumerate();
        let mut waiting = lower.filter(|(rank, status)| {
            long(status) && now.saturating_sub(status.said) <= self.fresh(*rank, limit)
        });
        waiting.next().is_none()
    }

    /// Whether another rank ends the job already. Its launcher may wake a stopped one only to end it, which then finds
    /// that it waits.
    fn ends(&self) -> bool {
        self.lines().iter().any(|line| line.read().place.phase == RunPhase::Abort)
    }
}

/// For how long a waiting rank of the same node may say nothing on the board and still counts as waiting.
fn silence(limit: u64) -> u64 {
    (limit / 4).clamp(SECOND / 4, 5 * SECOND)
}

/// How the process of a rank looks, to be told to other nodes.
pub(super) fn looked(line: &StatusLine) -> RankStatus {
    let status = line.look();
    // What a rank that waits is doing is clear, and changes from moment to moment.
    let awake = matches!(status.process, ProcessState::Running | ProcessState::Asleep);
    if status.waiting.is_some() && awake {
        RankStatus { process: ProcessState::Unknown, ..status }
    } else {
        status
    }
}

#[cfg(test)]
mod tests {
    use super::SpeakerTurn;

    #[test]
    fn who_waits_on_after_the_speaker_takes_its_turn_a_moment_later() {
        let mut turn = SpeakerTurn::default();
        assert!(turn.taken(true, 1_000, 250));
        assert!(!turn.taken(false, 2_000, 250));
        // The speaker has gone on: so will this rank, unless it waits for something else.
        assert!(!turn.taken(true, 2_050, 250) && !turn.taken(true, 2_250, 250));
        assert!(turn.taken(true, 2_251, 250));
        turn = SpeakerTurn::default();
        assert!(turn.taken(true, 2_050, 250));
    }
}
