//! `dltrain elastic`: a job that goes on when ranks and hosts are lost, and when others come.
//!
//! One process starts the launcher, and starts it again from the newest checkpoint on the hosts that are there. It
//! calls no MPI. May use: `train`, `record`, `config`, `files`, `host`, `error`. Used by: `main`, `cli`.

mod discovery;
mod end;
mod hosts;
mod launcher;
mod process;

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1};
use signal_hook::{flag, low_level};

use self::discovery::{Discovery, Look};
use self::end::{End, EndReason, Judge, Next, STOPPED};
use self::hosts::{Host, Roster, allot, listed, ranks};
use self::launcher::{CommandLine, Ear};
use self::process::{AGAIN, Running};
use crate::error::{Error, ErrorKind, Result};
use crate::{files, host, record, train};

/// How often the job, signals and looks at hosts are attended to: what a restart takes longer at most.
const TICK: Duration = Duration::from_millis(10);
/// How long a job may take for the checkpoint before it moves to other hosts: a host that is gone may hold the others
/// up for ever.
const LEAVING: Duration = Duration::from_secs(600);
/// Keep a job going while ranks and hosts come and go: when some are lost, and when there are more, it is started again
/// from its newest checkpoint.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Examples:
  dltrain elastic --min-ranks 2 -- mpirun -n 4 dltrain --checkpoint run …
  dltrain elastic --min-ranks 2 --hosts 'cat hosts' -- mpirun dltrain --checkpoint run …
  dltrain elastic --min-ranks 8 -- srun dltrain --checkpoint run …

It ends with the job's code, and with 75 when it was told to stop (SIGTERM, SIGINT, SIGQUIT, SIGUSR1, or SIGHUP \
without nohup). One at a time works on a directory of checkpoints. A job that outlived an earlier one, which was \
killed, is told to write a checkpoint and end before the next starts.")]
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
/// `Usage` where the job could not be started again; `Environment` where the launcher cannot be started at all, or the
/// hosts cannot be found out at the beginning.
pub fn run(args: &Args) -> Result<u8> {
    Elastic::new(args)?.run().map(|code| u8::try_from(code).unwrap_or(ErrorKind::Internal as u8))
}

struct Elastic {
    job: CommandLine,
    discovery: Arc<Discovery>,
    roster: Roster,
    min_ranks: usize,
    poll: Duration,
    judge: Judge,
    /// The last signal that was not yet attended to; 0 for none.
    told: Arc<AtomicUsize>,
    /// Jobs that were started.
    starts: usize,
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
        if let Some(most) = max_ranks.filter(|most| *most < min_ranks) {
            return Err(Error::usage(format!("--max-ranks {most} is less than --min-ranks {min_ranks}")));
        }
        let poll = Duration::try_from_secs_f64(args.poll).ok().filter(|poll| !poll.is_zero());
        let poll =
            poll.ok_or_else(|| Error::usage(format!("--poll {}: must be greater than 0", args.poll)))?;
        let job = CommandLine::read(&args.job, || version(&args.job[0]))?;
        let discovery = Arc::new(Discovery::new(&job, args.hosts.as_deref(), max_ranks)?);
        if let Some(ranks) = discovery.ranks.filter(|ranks| *ranks < min_ranks) {
            return Err(Error::usage(format!(
                "the launcher is told to start {}, fewer than --min-ranks {min_ranks}",
                count(ranks)
            )));
        }
        own(job.checkpoint())?;
        let told = Arc::new(AtomicUsize::new(0));
        [SIGINT, SIGTERM, SIGQUIT, SIGUSR1, SIGHUP]
            .into_iter()
            .filter(|&number| number != SIGHUP || !host::ignores(number))
            .try_for_each(|number| flag::register_usize(number, told.clone(), number as usize).map(|_| ()))
            .map_err(|error| Error::environment(format!("cannot handle signals: {error}")))?;
        Ok(Elastic {
            roster: Roster::new(job.launcher.most_failures),
            judge: Judge::new(args.max_restarts.unwrap_or(usize::MAX), job.launcher.ear == Ear::Rank),
            job,
            discovery,
            min_ranks,
            poll,
            told,
            starts: 0,
            ended: None,
            idle: Duration::ZERO,
        })
    }

    fn run(&mut self) -> Result<i32> {
        let mut used = Vec::new();
        if !self.ends_what_was_left()? {
            return Ok(self.close(STOPPED));
        }
        loop {
            let Some(places) = self.find_places(&used)? else { return Ok(self.close(STOPPED)) };
            let end = self.run_job(&places)?;
            self.ended = Some(Instant::now());
            // Its ranks are gone, also those of other hosts, of which the next job would wait for a sign of life.
            files::forget(self.job.checkpoint());
            let (next, said) = self.judge.next(&end);
            self.say(&said);
            used = match next {
                Next::Ended(code) => return Ok(self.close(code)),
                Next::Moves => Vec::new(),
                Next::Failed => places,
            };
        }
    }

    /// Has a job write a checkpoint and end that an earlier `dltrain elastic` left behind: two would work on the same
    /// files. False when told to stop meanwhile.
    ///
    /// # Errors
    /// `Output`: it runs elsewhere, or no `dltrain elastic` started it, or it does not end.
    fn ends_what_was_left(&self) -> Result<bool> {
        let directory = self.job.checkpoint().to_path_buf();
        let Some(owner) = files::living_owner(&directory) else { return Ok(true) };
        let remedy =
            format!("end it: kill -USR1 {} on {} has it write a checkpoint", owner.process, owner.host);
        if !owner.elastic || !owner.is_here() {
            return Err(files::owned(&directory, &owner, &remedy));
        }
        let what = "is of a job that outlived its dltrain elastic: it is to write a checkpoint and end";
        self.say(&format!("{owner}, {what}"));
        let (begun, mut told) = (Instant::now(), None::<Instant>);
        let ends = || {
            let is_due = told.is_none_or(|told| told.elapsed() > AGAIN);
            // It may have been starting, and not have known the signal.
            if is_due {
                told = Some(Instant::now());
                process::stop_rank(owner.process);
            }
            begun.elapsed() > LEAVING || files::owner(&directory).is_none_or(|now| now != owner)
        };
        if !self.passes(ends) {
            return Ok(false);
        }
        match files::owner(&directory) {
            None => Ok(true),
            Some(owner) => Err(files::owned(&directory, &owner, &remedy)),
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
        let (mut lost, mut waits) = (used, false);
        loop {
            if !self.passes(|| look.is_finished()) {
                return Ok(None);
            }
            self.learn(look, std::mem::take(&mut lost))?;
            let places = self.places();
            let room = ranks(&places);
            if room >= self.min_ranks {
                return Ok(Some(places));
            }
            if !waits {
                waits = true;
                let (room, least, poll) = (count(room), self.min_ranks, self.poll.as_secs_f64());
                self.say(&format!(
                    "waits: there is room for {room}, and --min-ranks is {least}; looks again every {poll} s"
                ));
            }
            let next = Instant::now() + self.poll;
            if !self.passes(|| Instant::now() >= next) {
                return Ok(None);
            }
            look = self.look(false);
        }
    }

    /// Waits until something is so; false when told to stop meanwhile.
    fn passes(&self, mut so: impl FnMut() -> bool) -> bool {
        while !so() {
            let signal = self.told.swap(0, Ordering::Relaxed);
            if signal != 0 {
                self.say(&format!("{}: no job is under way", signal_name(signal as i32)));
                return false;
            }
            std::thread::sleep(TICK.min(self.poll));
        }
        true
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
        match look.join().unwrap_or_else(|_| Err(Error::internal("looking at the hosts panicked"))) {
            Ok(seen) => self.roster.learn(seen, used, Instant::now()).iter().for_each(|line| self.say(line)),
            Err(error) if self.starts == 0 => return Err(error),
            Err(error) => self.say(&format!("{error}; goes on with the hosts of before")),
        }
        Ok(())
    }

    /// Starts a job and attends to it until its end.
    fn run_job(&mut self, places: &[Host]) -> Result<End> {
        let before = self.reached();
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
        let (mut asked, mut look, mut next) = (EndReason::No, None::<Look>, Instant::now() + self.poll);
        let code = loop {
            if let Some(code) = running.ended() {
                break code;
            }
            asked = self.attend(&mut running, asked);
            if asked == EndReason::No && Instant::now() >= next && look.is_none() {
                let looks = self.discovery.may_change() || self.roster.misses_some(Instant::now());
                look = looks.then(|| self.look(false));
                next = Instant::now() + self.poll;
            }
            if let Some(found) = look.take_if(|look| look.is_finished()) {
                self.learn(found, &[])?;
                next = Instant::now() + self.poll;
                let move_on = change(places, &self.roster.available(), &self.places());
                if let (Some(why), EndReason::No) = (move_on, asked) {
                    self.say(&format!("{why}: the job is to write a checkpoint and end"));
                    running.stop(self.job.launcher.ear);
                    asked = EndReason::ToMove(Instant::now());
                }
            }
            std::thread::sleep(TICK);
        };
        let got_further = self.reached() > before;
        Ok(End { code, lived: running.started.elapsed(), asked, got_further })
    }

    /// Passes a signal on: the first as SIGUSR1, upon which the job writes a checkpoint; a second ends it at once. Ends
    /// a job that takes too long to move.
    fn attend(&mut self, running: &mut Running, asked: EndReason) -> EndReason {
        match (self.told.swap(0, Ordering::Relaxed), asked) {
            (0, EndReason::ToMove(since)) if since.elapsed() > LEAVING => {
                self.say(&format!("the job has not ended in {} s: it is killed", LEAVING.as_secs()));
                running.end();
                EndReason::ToMove(Instant::now())
            }
            (0, _) => asked,
            (signal, EndReason::ToStop) => {
                self.say(&format!("{} again: the job is ended at once", signal_name(signal as i32)));
                running.end();
                asked
            }
            (signal, _) => {
                let name = signal_name(signal as i32);
                self.say(&format!(
                    "{name}: the job is to write a checkpoint and end; a second one ends it at once"
                ));
                if asked == EndReason::No {
                    running.stop(self.job.launcher.ear);
                }
                EndReason::ToStop
            }
        }
    }

    /// The last line.
    fn close(&self, code: i32) -> i32 {
        let restarts = self.starts.saturating_sub(1);
        let idle = self.idle.as_secs_f64();
        let times = if restarts == 1 { "1 restart".into() } else { format!("{restarts} restarts") };
        self.say(&format!("ends with code {code} after {times}; {idle:.2} s passed without a job"));
        code
    }

    /// The step that the job would go on from: of a checkpoint, or of a commit in this host's memory.
    fn reached(&self) -> Option<u64> {
        let checkpoints = self.job.checkpoint();
        record::newest_step(checkpoints).max(train::newest_commit(checkpoints))
    }

    /// A line on standard error.
    fn say(&self, text: &str) {
        let line = format!("elastic {}: {text}\n", record::date(SystemTime::now()));
        // In one write, which the job's lines cannot cut in two. Nobody can be told that it failed.
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
}

/// Makes this process the one `dltrain elastic` of a directory of checkpoints. Where none can be made the job says so.
fn own(checkpoints: &Path) -> Result<()> {
    match files::make_directory(checkpoints) {
        Ok(()) => files::own(&checkpoints.join("elastic"), "choose another --checkpoint").map_err(|error| {
            let message = error.message.replace("/elastic: another run", ": another dltrain elastic");
            Error::new(error.kind, message)
        }),
        Err(_) => Ok(()),
    }
}

/// Why a job at these places should move, if it should: a host or slots of it are gone, or there is room for more.
fn change(places: &[Host], available: &[Host], possible: &[Host]) -> Option<String> {
    let room = |name: &str| available.iter().find(|host| host.name == name).map_or(0, |host| host.slots);
    if let Some(gone) = places.iter().find(|host| room(&host.name) < host.slots) {
        let Host { name, slots } = gone;
        return Some(format!("{name} has no more room for {}", count(*slots)));
    }
    let more = ranks(possible);
    (more > ranks(places)).then(|| format!("there is room for {}", count(more)))
}

fn signal_name(number: i32) -> &'static str {
    low_level::signal_name(number).unwrap_or("a signal")
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
}
