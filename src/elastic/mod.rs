//! `dltrain elastic`: a job that goes on when ranks and hosts are lost, and when others come.
//!
//! One process starts the launcher, and starts it again from the newest checkpoint on the hosts that are there. It
//! calls no MPI. May use: `record`, `config`, `files`, `host`, `error`. Used by: `main`, `cli`.

mod discovery;
mod hosts;
mod launcher;
mod process;

use std::io::Write;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use signal_hook::flag;

use self::discovery::{Discovery, Look};
use self::hosts::{Host, Roster, allot, listed, ranks};
use self::launcher::{Ear, Job};
use self::process::Running;
use crate::error::{Error, ErrorKind, Result};
use crate::record;

/// How often the job, signals and looks at hosts are attended to: what a restart takes longer at most.
const TICK: Duration = Duration::from_millis(10);
/// A job that failed sooner, and wrote no checkpoint, has come to nothing.
const BRIEF: Duration = Duration::from_secs(30);
/// Failures in a row that came to nothing, after which a further start would too.
const FRUITLESS: usize = 3;
/// How long a job may take for the checkpoint before it moves to other hosts: a host that is gone may hold the others
/// up for ever.
const LEAVING: Duration = Duration::from_secs(600);
/// The code of a job that was stopped as asked.
const STOPPED: i32 = ErrorKind::Stopped as i32;

/// Keep a job going while ranks and hosts come and go: when some are lost, and when there are more, it is started again
/// from its newest checkpoint.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Examples:
  dltrain elastic --min-ranks 2 -- mpirun -n 4 dltrain --checkpoint run …
  dltrain elastic --min-ranks 2 --hosts 'cat hosts' -- mpirun dltrain --checkpoint run …
  dltrain elastic --min-ranks 8 -- srun dltrain --checkpoint run …

It ends with the job's code, and with 75 when it was told to stop (SIGTERM, SIGINT, SIGUSR1).")]
pub struct Args {
    /// Fewest ranks to go on with; as long as there is room for fewer, it waits.
    #[arg(long, value_name = "A")]
    min_ranks: usize,
    /// Most ranks [default: those that the launcher is told to start; with --hosts all that there is room for].
    #[arg(long, value_name = "B")]
    max_ranks: Option<usize>,
    /// A command for sh that prints the hosts that may be used now, a line each: name or name:slots [default: those in
    /// the launcher's flags, the nodes of the Slurm job, or this host].
    #[arg(long, value_name = "COMMAND")]
    hosts: Option<String>,
    /// Restarts after failures at most [default: as many as needed].
    #[arg(long, value_name = "R")]
    max_restarts: Option<usize>,
    /// Seconds between two looks at the hosts.
    #[arg(long, default_value_t = 10.0, value_name = "SECONDS")]
    poll: f64,
    /// mpirun, mpiexec or srun with its flags, then dltrain with its own.
    #[arg(last = true, required = true, value_name = "LAUNCHER … dltrain …")]
    job: Vec<String>,
}

/// Keeps the job going until it has ended for good. Returns its code, which is this program's.
///
/// # Errors
/// `Usage` where the job could not be started again; `Environment` where the launcher cannot be started at all, or hosts
/// cannot be found out at the beginning.
pub fn run(args: &Args) -> Result<u8> {
    Elastic::new(args)?.run().map(|code| u8::try_from(code).unwrap_or(ErrorKind::Internal as u8))
}

/// Why a job was told to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    No,
    /// To go on with other ranks, at that time.
    ToMove(Instant),
    /// By a signal to this process.
    ToStop,
}

/// How a job ended.
struct End {
    code: i32,
    lived: Duration,
    asked: Asked,
    /// Whether there is a newer checkpoint than before it.
    got_further: bool,
}

/// What comes after a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// Nothing: this is the code.
    Ended(i32),
    /// The same on other hosts.
    Moves,
    /// The same on the hosts that are left.
    Failed,
}

struct Elastic {
    job: Job,
    discovery: Arc<Discovery>,
    roster: Roster,
    min_ranks: usize,
    poll: Duration,
    max_restarts: usize,
    /// The last signal that was not yet attended to; 0 for none.
    told: Arc<AtomicUsize>,
    /// Jobs that were started.
    starts: usize,
    /// Jobs that failed, and those since the last that came to something.
    failures: usize,
    fruitless: usize,
    /// When the last job ended, and the time without one.
    ended: Option<Instant>,
    idle: Duration,
}

impl Elastic {
    fn new(args: &Args) -> Result<Elastic> {
        let Args { min_ranks, max_ranks, .. } = *args;
        if min_ranks == 0 {
            return Err(Error::usage("--min-ranks 0: must be at least 1"));
        }
        if max_ranks.is_some_and(|most| most < min_ranks) {
            return Err(Error::usage(format!(
                "--max-ranks {} is less than --min-ranks {min_ranks}",
                max_ranks.unwrap_or_default()
            )));
        }
        let poll = Duration::try_from_secs_f64(args.poll).ok().filter(|poll| !poll.is_zero());
        let poll =
            poll.ok_or_else(|| Error::usage(format!("--poll {}: must be greater than 0", args.poll)))?;
        let job = Job::read(&args.job, || version(&args.job[0]))?;
        let discovery = Arc::new(Discovery::new(&job, args.hosts.as_deref(), max_ranks)?);
        let told = Arc::new(AtomicUsize::new(0));
        [SIGINT, SIGTERM, SIGUSR1]
            .into_iter()
            .try_for_each(|number| flag::register_usize(number, told.clone(), number as usize).map(|_| ()))
            .map_err(|error| Error::environment(format!("cannot handle signals: {error}")))?;
        Ok(Elastic {
            roster: Roster::new(job.launcher.most_failures),
            job,
            discovery,
            min_ranks,
            poll,
            max_restarts: args.max_restarts.unwrap_or(usize::MAX),
            told,
            starts: 0,
            failures: 0,
            fruitless: 0,
            ended: None,
            idle: Duration::ZERO,
        })
    }

    fn run(&mut self) -> Result<i32> {
        let mut used = Vec::new();
        loop {
            let Some(places) = self.find_places(&used)? else { return Ok(self.close(STOPPED)) };
            let end = self.run_job(&places)?;
            self.ended = Some(Instant::now());
            used = match self.judge(&end) {
                Verdict::Ended(code) => return Ok(self.close(code)),
                Verdict::Moves => Vec::new(),
                Verdict::Failed => places,
            };
        }
    }

    /// Waits until there is room for enough ranks; none when told to stop meanwhile. `used` are the hosts of the job
    /// that has just failed, if one has.
    fn find_places(&mut self, used: &[Host]) -> Result<Option<Vec<Host>>> {
        let failed = !used.is_empty();
        let mut look = match self.starts {
            0 => self.discovery.look(None),
            _ => self.look(failed),
        };
        let mut waits = false;
        loop {
            while !look.is_finished() {
                if self.is_told() {
                    return Ok(None);
                }
                std::thread::sleep(TICK);
            }
            self.learn(look, used)?;
            let places = self.places();
            if ranks(&places) >= self.min_ranks {
                return Ok(Some(places));
            }
            if !waits {
                waits = true;
                self.say(&format!(
                    "waits: there is room for {}, and --min-ranks is {}; looks again every {} s",
                    count(ranks(&places)),
                    self.min_ranks,
                    self.poll.as_secs_f64()
                ));
            }
            let next = Instant::now() + self.poll;
            while Instant::now() < next {
                if self.is_told() {
                    return Ok(None);
                }
                std::thread::sleep(TICK.min(self.poll));
            }
            look = self.look(false);
        }
    }

    /// Where ranks may be now.
    fn places(&self) -> Vec<Host> {
        allot(&self.roster.available(), self.discovery.ranks.unwrap_or(usize::MAX))
    }

    fn look(&mut self, failed: bool) -> Look {
        self.discovery.look(Some(self.roster.unasked(Instant::now(), failed)))
    }

    /// Takes what a look has found, and says what has changed. A command that fails later costs only what is new.
    fn learn(&mut self, look: Look, used: &[Host]) -> Result<()> {
        let seen = look.join().map_err(|_| Error::internal("looking at the hosts panicked"))?;
        match seen {
            Ok(seen) => {
                let said = self.roster.learn(seen, used, Instant::now());
                said.iter().for_each(|line| self.say(line));
                Ok(())
            }
            Err(error) if self.starts == 0 => Err(error),
            Err(error) => {
                self.say(&format!("{error}; goes on with the hosts of before"));
                Ok(())
            }
        }
    }

    /// Starts a job and attends to it until its end.
    fn run_job(&mut self, places: &[Host]) -> Result<End> {
        let before = self.newest_checkpoint();
        let words = self.job.words(places, self.discovery.has_list());
        let what = format!("{} on {}", count(ranks(places)), listed(places));
        match self.ended {
            None => self.say(&format!("starts {what}")),
            Some(ended) => {
                let gap = ended.elapsed();
                self.idle += gap;
                let after = gap.as_secs_f64();
                self.say(&format!("restart {}: {what}, {after:.2} s after the end", self.starts));
            }
        }
        let mut running = Running::start(&words, self.job.launcher.variables, self.starts)?;
        self.starts += 1;
        let (mut asked, mut look, mut next) = (Asked::No, None::<Look>, Instant::now() + self.poll);
        let code = loop {
            if let Some(code) = running.ended() {
                break code;
            }
            asked = self.attend(&mut running, asked);
            if asked == Asked::No && Instant::now() >= next && look.is_none() {
                let looks = self.discovery.may_change() || self.roster.misses_some(Instant::now());
                look = looks.then(|| self.look(false));
                next = Instant::now() + self.poll;
            }
            if let Some(found) = look.take_if(|look| look.is_finished()) {
                self.learn(found, &[])?;
                next = Instant::now() + self.poll;
                let move_on = change(places, &self.roster.available(), &self.places());
                if let (Some(why), Asked::No) = (move_on, asked) {
                    self.say(&format!("{why}: the job is to write a checkpoint and end"));
                    running.stop(self.job.launcher.ear);
                    asked = Asked::ToMove(Instant::now());
                }
            }
            std::thread::sleep(TICK);
        };
        let got_further = self.newest_checkpoint() > before;
        Ok(End { code, lived: running.started.elapsed(), asked, got_further })
    }

    /// Passes a signal on: the first as SIGUSR1, upon which the job writes a checkpoint; a second ends it at once. Ends
    /// a job that takes too long to move.
    fn attend(&mut self, running: &mut Running, asked: Asked) -> Asked {
        match (self.told.swap(0, Ordering::Relaxed), asked) {
            (0, Asked::ToMove(since)) if since.elapsed() > LEAVING => {
                self.say(&format!("the job has not ended in {} s: it is killed", LEAVING.as_secs()));
                running.end();
                Asked::ToMove(Instant::now())
            }
            (0, _) => asked,
            (signal, Asked::ToStop) => {
                self.say(&format!("{} again: the job is ended at once", signal_name(signal as i32)));
                running.end();
                asked
            }
            (signal, _) => {
                let name = signal_name(signal as i32);
                self.say(&format!(
                    "{name}: the job is to write a checkpoint and end; a second one ends it at once"
                ));
                if asked == Asked::No {
                    running.stop(self.job.launcher.ear);
                }
                Asked::ToStop
            }
        }
    }

    /// What comes after a job, and says why.
    fn judge(&mut self, end: &End) -> Verdict {
        let &End { code, lived, asked, got_further } = end;
        // Ranks that were only starting did not know yet that SIGUSR1 means a checkpoint.
        let code = if asked != Asked::No && is_of(code, SIGUSR1) { STOPPED } else { code };
        self.say(&format!(
            "the job ended after {:.1} s with code {code} ({})",
            lived.as_secs_f64(),
            meaning(code)
        ));
        // MPICH's launcher may return 0 for a job that it told to stop. One that is done is done again at once.
        let moves = matches!(asked, Asked::ToMove(_));
        if moves && (code == STOPPED || code == 0 && self.job.launcher.ear == Ear::Rank) {
            return Verdict::Moves;
        }
        if code == 0 || code == STOPPED || asked == Asked::ToStop {
            return Verdict::Ended(code);
        }
        if is_final(code, got_further) {
            self.say("a restart would end in the same way");
            return Verdict::Ended(code);
        }
        self.failures += 1;
        self.fruitless = if got_further || lived >= BRIEF { 0 } else { self.fruitless + 1 };
        if self.fruitless >= FRUITLESS {
            let brief = BRIEF.as_secs();
            self.say(&format!(
                "gives up: {FRUITLESS} jobs in a row failed within {brief} s and wrote no checkpoint"
            ));
            return Verdict::Ended(code);
        }
        if self.failures > self.max_restarts {
            self.say(&format!("gives up: --max-restarts is {}", self.max_restarts));
            return Verdict::Ended(code);
        }
        Verdict::Failed
    }

    /// The last line.
    fn close(&self, code: i32) -> i32 {
        let restarts = self.starts.saturating_sub(1);
        let idle = self.idle.as_secs_f64();
        let times = if restarts == 1 { "1 restart".into() } else { format!("{restarts} restarts") };
        self.say(&format!("ends with code {code} after {times}; {idle:.2} s passed without a job"));
        code
    }

    /// Whether a signal came while there was no job.
    fn is_told(&self) -> bool {
        let signal = self.told.swap(0, Ordering::Relaxed);
        if signal != 0 {
            self.say(&format!("{}: no job is under way", signal_name(signal as i32)));
        }
        signal != 0
    }

    fn newest_checkpoint(&self) -> Option<u64> {
        record::newest_step(self.job.checkpoint())
    }

    /// A line on standard error.
    fn say(&self, text: &str) {
        let line = format!("elastic {}: {text}\n", record::date(SystemTime::now()));
        // In one write, which the job's lines cannot cut in two. Nobody can be told that it failed.
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
}

/// Why a job at these places should move, if it should: a host or some of its slots are gone, or there is room for more.
fn change(places: &[Host], available: &[Host], possible: &[Host]) -> Option<String> {
    let room = |name: &str| available.iter().find(|host| host.name == name).map_or(0, |host| host.slots);
    if let Some(gone) = places.iter().find(|host| room(&host.name) < host.slots) {
        let Host { name, slots } = gone;
        return Some(format!("{name} has no more room for {}", count(*slots)));
    }
    let more = ranks(possible);
    (more > ranks(places)).then(|| format!("there is room for {}", count(more)))
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
        _ if signal_hook::low_level::signal_name(code - 128).is_some() => {
            return format!("killed by {}", signal_name(code - 128));
        }
        _ => "the launcher's own, or MPI's",
    };
    known.into()
}

fn signal_name(number: i32) -> &'static str {
    signal_hook::low_level::signal_name(number).unwrap_or("a signal")
}

fn count(ranks: usize) -> String {
    if ranks == 1 { "1 rank".into() } else { format!("{ranks} ranks") }
}

/// What a launcher says of itself; nothing where it cannot be started.
fn version(launcher: &str) -> String {
    let output = Command::new(launcher).arg("--version").output();
    output.map_or_else(|_| String::new(), |output| String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(text: &str) -> Vec<Host> {
        hosts::read(text.split(','), 1, "list").unwrap()
    }

    #[test]
    fn a_job_moves_when_a_host_goes_or_there_is_room_for_more() {
        let why = |places: &str, available: &str, most: usize| {
            let available = hosts(available);
            change(&hosts(places), &available, &allot(&available, most))
        };
        assert_eq!(why("h0:2,h1:2", "h0:2,h1:2", 9), None);
        assert_eq!(why("h0:2,h1:1", "h0:2,h1:2", 3), None);
        assert_eq!(why("h0:2,h1:1", "h0:2,h1:2", 4), Some("there is room for 4 ranks".into()));
        assert_eq!(why("h0:2", "h0:2,h1:2", 9), Some("there is room for 4 ranks".into()));
        let gone = Some("h1 has no more room for 2 ranks".into());
        assert_eq!(why("h0:2,h1:2", "h0:2", 9), gone);
        // Another in its place.
        assert_eq!(why("h0:2,h1:2", "h0:2,h2:2", 4), gone);
        assert_eq!(why("h0:2,h1:2", "h0:2,h1:1,h2:9", 4), gone);
        assert_eq!(why("h0:1", "", 9), Some("h0 has no more room for 1 rank".into()));
    }

    #[test]
    fn codes_say_whether_a_restart_helps() {
        for code in [2, 3, 4, 6, 7, 8] {
            assert!(is_final(code, false), "{code}");
        }
        assert!(is_final(7, true) && !is_final(6, true));
        // Lost ranks, MPI's aborts, launchers; stopped, which is told apart before.
        for code in [1, 5, 9, 14, 15, 75, 134, 137, 139, 143, 213] {
            assert!(!is_final(code, false), "{code}");
        }
        assert_eq!(meaning(137), "killed by SIGKILL");
        assert_eq!(meaning(213), "the launcher's own, or MPI's");
        assert!(is_of(138, SIGUSR1) && is_of(10, SIGUSR1) && !is_of(75, SIGUSR1));
    }
}
