//! Who is at work on a file or directory: one process, on whatever node.
//!
//! The owner of a file leaves a note beside it (`.NAME.owner`), the owner of a directory one in it (`.owner`): JSON,
//! with host, process, job and the time. What is relied on is in POSIX, and holds over NFS and Lustre: a second name of
//! a file (link) is given to one of several who want it, a rename replaces a file whole, and a file that is opened has
//! the times and contents that others gave it before. No lock of the file system is used: where there are any, they are
//! often those of one node.
//!
//! An owner on this machine is alive as long as its process is. Of one elsewhere the note is touched every `BEAT`: who
//! sees no change for `PATIENCE` takes it for dead. No two clocks are compared. An owner that was taken for dead and is
//! not (stopped, or cut off from the file system) sees it at its next beat and ends, and before it gives a file its
//! name (`check_own`).
//!
//! A dead owner's note is replaced or removed by whoever owns the claim to that (a note of its own, named after the
//! dead owner): so of several who find it dead one alone takes its place.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use serde::{Deserialize, Serialize};

use super::{beside, date, directory_of, ending, read_text, sweep, temporary, whole};
use crate::config::environment::ELASTIC_JOB;
use crate::error::{self, Error, Result};
use crate::host;

/// How often an owner shows that it lives.
const BEAT: Duration = Duration::from_millis(if cfg!(test) { 100 } else { 3000 });
/// After how long without a sign an owner on another node is taken for dead.
const PATIENCE: Duration = BEAT.saturating_mul(10);
/// Bytes of the longest note that is read.
const LONGEST: u64 = 1 << 16;

/// A process that owns files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// A name that no other process has at any time.
    id: String,
    /// Where it runs.
    pub host: String,
    /// The boot of that host's kernel, and the numbers of processes there: those of a container are its own.
    machine: String,
    /// Its number there.
    pub process: u32,
    /// When it began, in ticks after the boot: another process may have the number later.
    began: u64,
    /// When it began, for people.
    pub since: String,
    /// The batch system's name of its job.
    pub job: String,
    /// How often the batch system has started that job anew.
    restarts: u64,
    /// Whether `dltrain elastic` started it.
    pub elastic: bool,
    /// Whether it is known to have ended.
    #[serde(default)]
    ended: bool,
}

impl Owner {
    fn of_this_process() -> Owner {
        let host = host::name().unwrap_or_else(|| "unknown".into());
        let now = SystemTime::now();
        let nanos = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
        let process = std::process::id();
        let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
        let short: String = host.chars().map(plain).take(32).collect();
        let text = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
        let jobs =
            [("SLURM_JOB_ID", "Slurm"), ("PBS_JOBID", "PBS"), ("LSB_JOBID", "LSF"), ("FLUX_JOB_ID", "Flux")];
        let job = jobs.iter().find_map(|(name, of)| Some(format!("{of} job {}", text(name)?)));
        Owner {
            id: format!("{short}-{process}-{nanos:x}"),
            machine: host::machine().unwrap_or_default(),
            began: host::process("self").map_or(0, |this| this.began),
            since: date::iso(now),
            job: job.unwrap_or_default(),
            restarts: text("SLURM_RESTART_COUNT").and_then(|count| count.parse().ok()).unwrap_or(0),
            elastic: text(ELASTIC_JOB).is_some(),
            ended: false,
            host,
            process,
        }
    }

    /// The owner where a note cannot be read: nobody in particular, whose signs of life are watched for.
    fn unknown() -> Owner {
        let unknown = || "unknown".to_string();
        Owner { id: unknown(), host: unknown(), since: unknown(), ..Owner::default() }
    }

    /// Whether it is this process.
    pub fn is_this(&self) -> bool {
        self.id == id()
    }

    /// Whether its process can be looked at from here.
    pub fn is_here(&self) -> bool {
        !self.machine.is_empty() && self.machine == this().machine
    }

    /// Whether it is alive, where that can be told at once.
    fn is_alive(&self) -> Option<bool> {
        self.is_alive_for(this())
    }

    fn is_alive_for(&self, own: &Owner) -> Option<bool> {
        if self.id == own.id {
            return Some(true);
        }
        if self.ended || dead().contains(&self.id) {
            return Some(false);
        }
        // The batch system has ended what it started of this job before.
        if !self.job.is_empty() && self.job == own.job && self.restarts < own.restarts {
            return Some(false);
        }
        if !self.is_here() {
            return None;
        }
        let number = self.process.to_string();
        Some(match host::process(&number) {
            Some(process) => process.began == self.began && !matches!(process.state, 'Z' | 'X'),
            // It may be another user's, whom this one is not shown.
            None => i32::try_from(self.process)
                .ok()
                .and_then(Pid::from_raw)
                .is_some_and(|pid| test_kill_process(pid) == Err(Errno::PERM)),
        })
    }
}

impl std::fmt::Display for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Owner { host, process, since, job, .. } = self;
        let job = if job.is_empty() { String::new() } else { format!(", {job}") };
        write!(f, "process {process} on {host}{job}, since {since}")
    }
}

/// This process as an owner.
pub(super) fn this() -> &'static Owner {
    static THIS: OnceLock<Owner> = OnceLock::new();
    THIS.get_or_init(Owner::of_this_process)
}

/// The name of this process in what it writes.
pub(super) fn id() -> &'static str {
    &this().id
}

/// Owners of whom this process has found out that they are dead: each may have left several notes.
static DEAD: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn dead() -> MutexGuard<'static, Vec<String>> {
    DEAD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The notes of this process.
static HELD: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn held() -> MutexGuard<'static, Vec<PathBuf>> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes this process the owner of a file, which need not be there yet, or of a directory, until it ends or `disown` is
/// called; of what a dead owner left half-written of it nothing stays. Devices such as /dev/null have no owner.
/// `remedy` ends the message for one who comes second ("choose another --results").
///
/// # Errors
/// `Output`, with the name of the owner where it is alive, or why no note can be left.
pub fn own(place: &Path, remedy: &str) -> Result<()> {
    if fs::metadata(place).is_ok_and(|there| !there.is_file() && !there.is_dir()) {
        return Ok(());
    }
    let note = note_of(place);
    if held().contains(&note) {
        return Ok(());
    }
    match acquire(&note) {
        Ok(before) => {
            if let Some(before) = before {
                log::info!(
                    "{}: {before}, which owned it, has ended: this run takes its place",
                    place.display()
                );
                let directory = if place.is_dir() { place } else { directory_of(place) };
                sweep(directory, |name| name.ends_with(&ending(&before.id)));
            }
            hold(note);
            Ok(())
        }
        Err(Denied::By(owner)) => Err(owned(place, &owner, remedy)),
        Err(Denied::Failed(error)) => {
            Err(Error::output(place, format!("cannot leave a note of who works on it: {error}; {remedy}")))
        }
    }
}

/// The error for what another owns.
pub fn owned(place: &Path, owner: &Owner, remedy: &str) -> Error {
    let copied =
        if place.is_dir() { " (where this is a copy of its directory, delete .owner in it)" } else { "" };
    Error::output(
        place,
        format!("another run is at work on it: {owner}; wait for its end, or {remedy}{copied}"),
    )
}

/// Owns a name if nobody, dead or alive, has a note for it; else returns false, and the caller tries another name.
///
/// # Errors
/// Why no note can be left.
pub fn own_if_free(place: &Path) -> io::Result<bool> {
    let note = note_of(place);
    let free = put(&note)?;
    if free {
        hold(note);
    }
    Ok(free)
}

/// The owner of a place, if it has one that is not known to be dead.
pub fn owner(place: &Path) -> Option<Owner> {
    let found = read(&note_of(place)).ok().flatten()?;
    (found.owner.is_alive() != Some(false)).then_some(found.owner)
}

/// The owner of a place; one on another node counts only if it shows a sign of life, which is waited for.
pub fn living_owner(place: &Path) -> Option<Owner> {
    let note = note_of(place);
    let found = read(&note).ok().flatten()?;
    let alive = found.owner.is_alive().unwrap_or_else(|| matches!(watch(&note, &found), Sign::Alive));
    alive.then_some(found.owner)
}

/// Marks the owner of a place as ended, unless its process is seen to be alive. The caller knows that it has ended, so
/// that the next owner need not wait for signs of life, whatever else the ended one owned.
pub fn forget(place: &Path) {
    let note = note_of(place);
    if let Ok(Some(found)) = read(&note)
        && found.owner.is_alive() != Some(true)
    {
        // Else it is found dead in time.
        let _ = replace(&note, &found.owner, Some(&Owner { ended: true, ..found.owner.clone() }));
    }
}

/// Whether this process still owns what it owned of a file: another may have taken it for dead.
///
/// # Errors
/// The name of who owns it now.
pub(super) fn check_own(path: &Path) -> io::Result<()> {
    check(&held(), path)
}

fn check(held: &[PathBuf], path: &Path) -> io::Result<()> {
    let notes = [note_of(path), note_of(directory_of(path))];
    notes.iter().filter(|note| held.contains(note)).try_for_each(|note| match read(note)? {
        Some(found) if found.owner.id != id() => {
            Err(io::Error::other(format!("{} owns it now", found.owner)))
        }
        _ => Ok(()),
    })
}

/// Gives back all that this process owns.
pub fn disown() {
    let notes = std::mem::take(&mut *held());
    for note in &notes {
        // On a full disk there is no room for a claim. What cannot be removed is found dead.
        if replace(note, this(), None).is_err()
            && read(note).is_ok_and(|now| now.is_some_and(|now| now.owner.id == id()))
        {
            let _ = fs::remove_file(note);
        }
    }
}

/// Where the note of an owner is.
fn note_of(place: &Path) -> PathBuf {
    let place = whole(place);
    if place.is_dir() { place.join(".owner") } else { beside(&place, ".", ".owner") }
}

/// Keeps a note alive from now on.
fn hold(note: PathBuf) {
    held().push(note);
    static BEATING: OnceLock<()> = OnceLock::new();
    BEATING.get_or_init(|| {
        let beat = || {
            loop {
                std::thread::sleep(BEAT);
                beat();
            }
        };
        if let Err(error) = std::thread::Builder::new().name("owner".into()).spawn(beat) {
            log::warn!("runs on other nodes may take this one for dead: no thread can be started: {error}");
        }
    });
}

/// Touches every note. One that is gone is left again; where another process has it this one ends: two must not work
/// on the same files.
fn beat() {
    // Held meanwhile: a note that is given back must not be left again.
    for note in held().iter() {
        let own = match read(note) {
            Ok(Some(found)) if found.owner.id == id() => touch(note).map(|()| true),
            Ok(Some(_)) => Ok(false),
            Ok(None) => put(note),
            Err(error) => Err(error),
        };
        match own {
            Ok(true) => {}
            Ok(false) => {
                let what = "another run has taken this one for dead, and works on it; this one ends";
                log::error!("{}: {what}", note.display());
                signal_hook::low_level::exit(error::ErrorKind::Output as i32);
            }
            // The file system may answer again.
            Err(error) => log::debug!("{}: {error}", note.display()),
        }
    }
}

fn touch(note: &Path) -> io::Result<()> {
    File::options().write(true).open(note)?.set_modified(SystemTime::now())
}

/// A note as it was read.
struct OwnerNote {
    owner: Owner,
    touched: Option<SystemTime>,
}

fn read(note: &Path) -> io::Result<Option<OwnerNote>> {
    let text = match read_text(note, LONGEST) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) if error.kind() != ErrorKind::InvalidData => return Err(error),
        text => text.unwrap_or_default(),
    };
    let touched = fs::metadata(note).and_then(|note| note.modified()).ok();
    Ok(Some(OwnerNote { owner: serde_json::from_str(&text).unwrap_or_else(|_| Owner::unknown()), touched }))
}

/// Why a note is not had.
enum Denied {
    By(Box<Owner>),
    Failed(io::Error),
}

impl From<io::Error> for Denied {
    fn from(error: io::Error) -> Denied {
        Denied::Failed(error)
    }
}

/// Leaves this process's note, where there is none or that of a dead owner, who is returned.
fn acquire(note: &Path) -> std::result::Result<Option<Owner>, Denied> {
    let begun = Instant::now();
    loop {
        if put(note)? {
            return Ok(None);
        }
        let Some(found) = read(note)? else { continue };
        if found.owner.id == id() {
            return Ok(None);
        }
        let is_dead = match found.owner.is_alive() {
            Some(alive) => !alive,
            None => match watch(note, &found) {
                Sign::Alive => false,
                Sign::None => true,
                Sign::Gone => continue,
            },
        };
        if !is_dead || begun.elapsed() > 4 * PATIENCE {
            return Err(Denied::By(Box::new(found.owner)));
        }
        // All that cannot be read look alike.
        let mut dead = dead();
        if found.owner.process != 0 && !dead.contains(&found.owner.id) {
            dead.push(found.owner.id.clone());
        }
        drop(dead);
        if replace(note, &found.owner, Some(this()))? {
            return Ok(Some(found.owner));
        }
        // Another takes its place just now.
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Puts another note in place of an owner's, or none; false where that is no longer the owner's, or another process is
/// about to.
fn replace(note: &Path, owner: &Owner, by: Option<&Owner>) -> std::result::Result<bool, Denied> {
    let claim = beside(note, "", &format!(".{}", owner.id));
    match acquire(&claim) {
        Ok(_) => {}
        Err(Denied::By(_)) => return Ok(false),
        Err(failed) => return Err(failed),
    }
    let replaced = || -> io::Result<bool> {
        if read(note)?.is_none_or(|now| now.owner.id != owner.id) {
            return Ok(false);
        }
        match by {
            Some(by) => write(note, by).and_then(|new| fs::rename(new, note))?,
            None => fs::remove_file(note)?,
        }
        Ok(true)
    };
    let replaced = replaced();
    let _ = fs::remove_file(&claim);
    Ok(replaced?)
}

/// What the note of an owner elsewhere shows.
enum Sign {
    Alive,
    /// For as long as one is waited for.
    None,
    /// It is another's now, or nobody's.
    Gone,
}

fn watch(note: &Path, found: &OwnerNote) -> Sign {
    let begun = Instant::now();
    let (mut said, pause) = (false, BEAT / 10);
    while begun.elapsed() < PATIENCE {
        std::thread::sleep(pause);
        match read(note) {
            Ok(Some(now)) if now.owner.id != found.owner.id => return Sign::Gone,
            Ok(Some(now)) if now.touched != found.touched => return Sign::Alive,
            Ok(None) => return Sign::Gone,
            _ => {}
        }
        if begun.elapsed() > 2 * BEAT && !std::mem::replace(&mut said, true) {
            let (note, owner, seconds) = (note.display(), &found.owner, PATIENCE.as_secs());
            log::warn!(
                "{note}: no sign of life of {owner}, yet; it is taken over after {seconds} s without one"
            );
        }
    }
    Sign::None
}

/// Leaves this process's note unless there is one; says whether it did.
fn put(note: &Path) -> io::Result<bool> {
    let new = write(note, this())?;
    let linked = fs::hard_link(&new, note);
    // The answer may be lost of a server that did it: how many names the file has tells (open(2), O_EXCL).
    let has_two = fs::metadata(&new).is_ok_and(|new| new.nlink() == 2);
    let put = match linked {
        Ok(()) => Ok(true),
        Err(_) if has_two => Ok(true),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
        // A file system may know no second name of a file; all know a file that must be new.
        Err(_) => match File::create_new(note) {
            Ok(_) => fs::copy(&new, note).map(|_| true),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error),
        },
    };
    let _ = fs::remove_file(&new);
    put
}

/// Writes an owner's note under another name.
fn write(note: &Path, owner: &Owner) -> io::Result<PathBuf> {
    let new = temporary(note);
    match fs::write(&new, serde_json::to_string(owner)?) {
        Ok(()) => Ok(new),
        Err(error) => {
            // A full disk has room for a name, and none for what is in it.
            let _ = fs::remove_file(&new);
            Err(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    /// A place with the note of another owner.
    fn owned_by(owner: &Owner) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("a.h5");
        fs::write(note_of(&place), serde_json::to_string(owner).unwrap()).unwrap();
        (directory, place)
    }

    /// On another machine; each is another.
    fn elsewhere() -> Owner {
        static NUMBERS: AtomicUsize = AtomicUsize::new(0);
        Owner {
            id: format!("h9-7-{}", NUMBERS.fetch_add(1, Ordering::Relaxed)),
            host: "h9".into(),
            machine: "other".into(),
            process: 7,
            ..this().clone()
        }
    }

    fn names(directory: &Path) -> Vec<String> {
        let names =
            fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.collect()
    }

    #[test]
    fn an_owner_elsewhere_is_alive_while_its_note_is_touched() {
        let other = elsewhere();
        let (directory, place) = owned_by(&other);
        let lives = AtomicBool::new(true);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while lives.load(Ordering::Relaxed) {
                    std::thread::sleep(BEAT);
                    touch(&note_of(&place)).unwrap();
                }
            });
            let refused = own(&place, "choose another --results").unwrap_err().message;
            assert!(refused.contains("another run is at work on it: process 7 on h9, since 20"), "{refused}");
            assert!(refused.ends_with("wait for its end, or choose another --results"), "{refused}");
            assert!(living_owner(&place).is_some() && !own_if_free(&place).unwrap());
            lives.store(false, Ordering::Relaxed);
        });
        // It is dead now, and so is what it had half-written, and tried whether the directory can be written.
        for name in ["a.h5", ".dltrain"] {
            fs::write(directory.path().join(name.to_string() + &ending(&other.id)), "half").unwrap();
        }
        assert!(living_owner(&place).is_none() && owner(&place).is_some());
        own(&place, "").unwrap();
        assert_eq!(owner(&place).unwrap().id, id());
        assert_eq!(names(directory.path()), [".a.h5.owner"]);
        assert!(own(&place, "").is_ok() && check_own(&place).is_ok());
    }

    #[test]
    fn an_owner_here_is_alive_as_long_as_its_process() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let began = host::process(&child.id().to_string()).unwrap().began;
        let here = Owner { id: "here".into(), process: child.id(), began, ..this().clone() };
        // Another process had its number before.
        let before = Owner { began: began - 1, ..here.clone() };
        assert_eq!([&here, &before].map(Owner::is_alive), [Some(true), Some(false)]);
        let (_directory, place) = owned_by(&here);
        assert!(own(&place, "").is_err());
        child.kill().unwrap();
        while host::process(&child.id().to_string()).is_some_and(|child| child.state != 'Z') {}
        own(&place, "").unwrap();
        child.wait().unwrap();
        assert_eq!(here.is_alive(), Some(false));
    }

    /// As a job that goes back into the queue has it.
    #[test]
    fn what_a_batch_system_started_before_is_dead() {
        let job = Owner { job: this().job.clone(), restarts: 0, ..elsewhere() };
        let in_job = |owner: Owner| Owner { job: "Slurm job 7".into(), ..owner };
        assert_eq!(job.is_alive(), None);
        assert_eq!(
            in_job(job.clone()).is_alive_for(&in_job(Owner { restarts: 1, ..this().clone() })),
            Some(false)
        );
        assert_eq!(in_job(job).is_alive_for(&in_job(this().clone())), None);
    }

    #[test]
    fn who_is_taken_for_dead_gives_no_file_its_name() {
        let directory = tempfile::tempdir().unwrap();
        let (place, note) = (directory.path().join("a"), directory.path().join(".owner"));
        own(directory.path(), "").unwrap();
        let put = |to: &Path| fs::write(to, "text").map_err(|error| Error::internal(error.to_string()));
        super::super::write_whole(&place, "it", put).unwrap();
        let mut held = held();
        fs::write(&note, serde_json::to_string(&elsewhere()).unwrap()).unwrap();
        let refused = check(&held, &place);
        // A beat would end the tests.
        held.retain(|held| *held != note);
        assert!(refused.unwrap_err().to_string().contains("process 7 on h9, since "));
    }

    #[test]
    fn a_note_that_is_no_note_is_taken_over_in_time() {
        let (_directory, place) = owned_by(&elsewhere());
        fs::write(note_of(&place), "{").unwrap();
        own(&place, "").unwrap();
        forget(&place);
        assert_eq!(owner(&place).unwrap().id, id(), "a living owner was forgotten");
    }

    /// Nothing is waited for: an owner elsewhere would be taken for dead after a while only.
    #[test]
    fn an_owner_that_is_known_to_have_ended_is_dead_everywhere() {
        let gone = elsewhere();
        let ((_first, one), (_second, other)) = (owned_by(&gone), owned_by(&gone));
        forget(&one);
        assert!(owner(&one).is_none() && owner(&other).is_some());
        own(&one, "").unwrap();
        assert!(owner(&other).is_none());
    }
}
