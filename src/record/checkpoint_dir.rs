//! The directory of a run's checkpoints: which are there, which is the newest whole one, which are kept.
//!
//! A file is named after the steps done ("step-00000100.h5"). It is written by a thread of its own, from a copy of
//! the numbers; the next one waits until it is on disk. Kept are the newest few and the one with the best test
//! accuracy, to which the link "best.h5" leads.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use rustix::io::Errno;

use super::checkpoint::{self, Contents};
use super::{RankInfo, path};
use crate::config::Resume;
use crate::error::{Error, ErrorKind, OrError, Result};
use crate::files::{self, temporary};

const BEST: &str = "best.h5";
/// How an error ends about a directory that a run may not have.
const REMEDY: &str = "choose another --checkpoint";

/// The checkpoints of a run, on the rank that writes them.
pub struct Checkpoints {
    directory: PathBuf,
    keep: usize,
    writing: Option<JoinHandle<Written>>,
    /// The memory of the last copy, for the next one.
    spare: Vec<f32>,
    /// What became of the last one that was written.
    outcome: Result<()>,
    /// The longest time from a copy's beginning to its being on disk.
    pub seconds: f64,
    /// Where a run does without these copies: whether it was said that one failed. Else each that fails is an error.
    warned: Option<Arc<AtomicBool>>,
}

/// What the thread gives back.
struct Written {
    values: Vec<f32>,
    outcome: Result<()>,
    seconds: f64,
}

impl Checkpoints {
    /// The checkpoints of a directory that the run owns (`own_checkpoints`). `resumed` is the step at which the run
    /// goes on.
    ///
    /// # Errors
    /// `ErrorKind::Environment` where it cannot be read, `ErrorKind::Output` where it holds checkpoints of a later
    /// step: nothing is overwritten.
    pub fn open(directory: &Path, keep: usize, resumed: Option<u64>) -> Result<Checkpoints> {
        let best = directory.join(BEST);
        if best.symlink_metadata().is_ok_and(|there| !there.is_symlink()) {
            let what = "is a file of yours, and the name of the link to the best checkpoint; move it away or choose \
                        another --checkpoint";
            return Err(Error::output(&best, what));
        }
        let there = list(directory)?;
        if let Some((step, path)) = there.first()
            && resumed.is_none_or(|resumed| resumed < *step)
        {
            let what = match resumed {
                Some(resumed) => format!("is newer than the step at which this run goes on ({resumed})"),
                None => "is the checkpoint of another run, which --resume auto continues".into(),
            };
            return Err(Error::output(path, format!("{what}; move it away or choose another --checkpoint")));
        }
        Ok(Checkpoints::keeping(directory, keep, None))
    }

    /// Copies that a run does without, of which one is kept: where there is no room one warning says so.
    ///
    /// # Errors
    /// `ErrorKind::Output` where the directory cannot be written for another reason.
    pub fn spare(directory: &Path) -> Result<Checkpoints> {
        let warned = match usable(directory, "") {
            Err(error) if is_full(&error) => {
                log::warn!("{}", missing(&error));
                true
            }
            usable => usable.map(|()| false)?,
        };
        Ok(Checkpoints::keeping(directory, 1, Some(Arc::new(warned.into()))))
    }

    fn keeping(directory: &Path, keep: usize, warned: Option<Arc<AtomicBool>>) -> Checkpoints {
        sweep(directory);
        let directory = directory.to_path_buf();
        let (spare, outcome) = (Vec::new(), Ok(()));
        Checkpoints { directory, keep, writing: None, spare, outcome, seconds: 0.0, warned }
    }

    /// Memory to copy numbers to, once the checkpoint before is on disk.
    pub fn buffer(&mut self) -> Vec<f32> {
        self.wait();
        let mut buffer = std::mem::take(&mut self.spare);
        buffer.clear();
        buffer
    }

    /// Waits until the last one is on disk; returns its outcome, of which the reader has been told.
    pub fn finish(&mut self) -> Result<()> {
        self.wait();
        self.outcome.clone()
    }

    /// Whether one is being written now.
    pub fn is_writing(&self) -> bool {
        self.writing.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// The file of a step.
    pub fn path(directory: &Path, step: u64) -> PathBuf {
        directory.join(format!("step-{step:08}.h5"))
    }

    /// Writes a checkpoint in the background. `best` is the step of the one with the best test accuracy, `begun` when
    /// the copy was begun.
    pub fn write(&mut self, step: u64, best: Option<u64>, contents: Contents, begun: Instant) {
        let (directory, keep, warned) = (self.directory.clone(), self.keep, self.warned.clone());
        let work = move || {
            // Of this thread alone: it takes what the computing ones leave. Who waits for it leaves everything.
            if let Err(error) = rustix::process::nice(19) {
                log::debug!("checkpoints are written at full priority: {error}");
            }
            let path = Checkpoints::path(&directory, step);
            let outcome = write_making_room(&directory, &path, best, &contents);
            match &outcome {
                Ok(()) => {
                    log::debug!("{}: written", path.display());
                    thin(&directory, keep, best);
                }
                Err(error) => match warned.map(|warned| warned.swap(true, Ordering::Relaxed)) {
                    None => log::error!("{error}; training goes on, and the next one will be tried"),
                    Some(false) => log::warn!("{}", missing(error)),
                    Some(true) => log::debug!("{error}"),
                },
            }
            Written { values: contents.values, outcome, seconds: begun.elapsed().as_secs_f64() }
        };
        match std::thread::Builder::new().name("checkpoint".into()).spawn(work) {
            Ok(thread) => self.writing = Some(thread),
            Err(error) => {
                self.outcome = Err(Error::environment(format!(
                    "cannot start a thread to write a checkpoint: {error}; raise the limit of processes (ulimit -u)"
                )));
            }
        }
    }

    fn wait(&mut self) {
        let Some(thread) = self.writing.take() else { return };
        match thread.join() {
            Ok(written) => {
                self.spare = written.values;
                self.outcome = written.outcome;
                self.seconds = self.seconds.max(written.seconds);
            }
            Err(_) => self.outcome = Err(Error::internal("writing a checkpoint panicked")),
        }
    }
}

impl Drop for Checkpoints {
    /// A run that stops early leaves no half-written file.
    fn drop(&mut self) {
        self.wait();
    }
}

/// Makes the directory of a run's checkpoints, tries it and owns it; on other ranks than 0 nothing.
///
/// # Errors
/// `ErrorKind::Output`: it cannot be made or written, or is another run's.
pub fn own_checkpoints(place: RankInfo, directory: &Path) -> Result<()> {
    if place.rank != 0 {
        return Ok(());
    }
    usable(directory, &format!("; {REMEDY}"))?;
    files::own(directory, REMEDY)
}

/// Makes a directory where it is missing (but not its parent: that is more likely a typing error), and tries it.
fn usable(directory: &Path, remedy: &str) -> Result<()> {
    files::make_directory(directory).or_output(directory, "cannot make the directory")?;
    path::probe(directory)
        .map_err(|error| Error::output(directory, format!("cannot be written: {error}{remedy}")))
}

/// What is said of a copy that a run does without.
fn missing(error: &Error) -> String {
    format!("--commit: {error}; training goes on without copies in memory until there is room (said once)")
}

/// On the rank that reads: the checkpoint that a run is to go on at, if there is one.
///
/// # Errors
/// `ErrorKind::Data` or `ErrorKind::Environment`: it is missing or damaged, or cannot be read.
pub fn find_checkpoint(
    place: RankInfo,
    resume: &Resume,
    directory: Option<&Path>,
) -> Result<Option<(PathBuf, Contents)>> {
    match (resume, directory) {
        _ if place.rank != 0 => Ok(None),
        // What is there and no file is said by whoever opens it.
        (Resume::File(path), _) if !path.exists() => Err(Error::data(
            path,
            "no such checkpoint; --resume auto finds the newest in the directory of --checkpoint",
        )),
        (Resume::File(path), _) => Ok(Some((path.clone(), checkpoint::read(path)?))),
        (Resume::Auto, Some(directory)) => newest_checkpoint(directory),
        (Resume::Auto, None) => Ok(None),
    }
}

/// The newest whole checkpoint of a directory. Newer ones that are damaged are said and put aside, under another name.
///
/// # Errors
/// Where there are checkpoints and none of them is whole, or one cannot be read.
pub fn newest_checkpoint(directory: &Path) -> Result<Option<(PathBuf, Contents)>> {
    let mut damaged = Vec::new();
    for (_, path) in list(directory)? {
        match checkpoint::read(&path) {
            Ok(contents) => {
                damaged.iter().for_each(|damaged| put_aside(damaged, &path));
                return Ok(Some((path, contents)));
            }
            Err(error) if error.kind == ErrorKind::Data => damaged.push((path, error)),
            Err(error) => return Err(error),
        }
    }
    match damaged.first() {
        None => Ok(None),
        Some((_, error)) => Err(Error::new(
            ErrorKind::Data,
            format!("{error}; none of the {} checkpoints there is whole", damaged.len()),
        )),
    }
}

fn put_aside((path, error): &(PathBuf, Error), instead: &Path) {
    let aside = path.with_extension("h5.damaged");
    let renamed = match fs::rename(path, &aside) {
        Ok(()) => format!("; it is now {}", aside.display()),
        Err(_) => String::new(),
    };
    log::warn!("{error}{renamed}. Going back to {}", instead.display());
}

/// The step of the newest checkpoint in a directory, whole or not; none where there is none to be seen.
pub fn newest_step(directory: &Path) -> Option<u64> {
    list(directory).ok()?.first().map(|(step, _)| *step)
}

/// The checkpoints in a directory, the newest first; none where there is no directory.
fn list(directory: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let unreadable =
        |error: io::Error| Error::environment(format!("{}: cannot be read: {error}", directory.display()));
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(unreadable)?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(unreadable)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("");
        let step = name.strip_prefix("step-").and_then(|name| name.strip_suffix(".h5"));
        if let Some(step) = step.and_then(|step| step.parse().ok()) {
            found.push((step, path));
        }
    }
    found.sort_by(|a, b| b.cmp(a));
    Ok(found)
}

/// Writes a checkpoint. Where the disk is full, the oldest of several goes for it: a run that cannot keep where it
/// stands loses more.
fn write_making_room(directory: &Path, path: &Path, best: Option<u64>, contents: &Contents) -> Result<()> {
    loop {
        match checkpoint::write(path, contents) {
            Err(error) if is_full(&error) => match drop_oldest(directory, best) {
                Some(dropped) => {
                    log::warn!("{error}; the oldest one, {}, is removed to make room", dropped.display());
                }
                None => return Err(error),
            },
            outcome => return outcome,
        }
    }
}

/// Whether a file could not be written for lack of space. HDF5 says so in words alone.
fn is_full(error: &Error) -> bool {
    [Errno::NOSPC, Errno::DQUOT].iter().any(|errno| {
        let text = io::Error::from(*errno).to_string();
        error.message.contains(text.split(" (os error").next().unwrap_or(&text))
    })
}

/// Removes the oldest checkpoint of a directory, but not the best or the newest one, nor the last whole one.
fn drop_oldest(directory: &Path, best: Option<u64>) -> Option<PathBuf> {
    let all = list(directory).ok()?;
    let (_, oldest) = all.iter().skip(1).rfind(|(step, _)| Some(*step) != best)?;
    // The newest first: it is whole unless someone damaged it.
    let mut others = all.iter().map(|(_, path)| path).filter(|path| *path != oldest);
    others.find(|path| checkpoint::StoredCheckpoint::open(path).is_ok())?;
    fs::remove_file(oldest).ok().map(|()| oldest.clone())
}

/// Removes all but the newest few and the best, and lets "best.h5" lead to that. A failure leaves a file too many.
fn thin(directory: &Path, keep: usize, best: Option<u64>) {
    for (step, path) in list(directory).unwrap_or_default().into_iter().skip(keep) {
        if Some(step) != best {
            let _ = fs::remove_file(path);
        }
    }
    let Some(target) = best.map(|best| Checkpoints::path(Path::new(""), best)) else { return };
    let link = directory.join(BEST);
    if fs::read_link(&link).is_ok_and(|now| now == target) {
        return;
    }
    let new = temporary(&link);
    let linked = std::os::unix::fs::symlink(&target, &new).and_then(|()| fs::rename(&new, &link));
    if let Err(error) = linked {
        log::debug!("{}: {error}", link.display());
    }
}

/// Whether a file of this name in a directory of checkpoints is one of them, or leads to one.
pub fn is_checkpoint_name(name: &str) -> bool {
    name == BEST || name.starts_with("step-") && name.ends_with(".h5")
}

/// Removes what a killed run had not finished.
fn sweep(directory: &Path) {
    files::sweep(directory, |name| name.starts_with("step-") || name.starts_with(BEST));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(checkpoints: &mut Checkpoints, step: u64, best: Option<u64>) {
        let contents = Contents {
            numbers: [("step".to_string(), step as f64)].into(),
            values: checkpoints.buffer(),
            ..Contents::default()
        };
        checkpoints.write(step, best, contents, Instant::now());
        checkpoints.finish().unwrap();
    }

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn the_newest_and_the_best_are_kept() {
        let directory = tempfile::tempdir().unwrap();
        let mut checkpoints = Checkpoints::open(directory.path(), 2, None).unwrap();
        for (step, best) in [(1, None), (2, Some(2)), (3, Some(2)), (4, Some(2)), (5, Some(2))] {
            write(&mut checkpoints, step, best);
        }
        let kept = ["best.h5", "step-00000002.h5", "step-00000004.h5", "step-00000005.h5"];
        assert_eq!(names(directory.path()), kept);
        let best = checkpoint::read(&directory.path().join("best.h5")).unwrap();
        assert_eq!(best.number("step").unwrap(), 2.0);
    }

    /// A disk of its own, of 400 kB.
    struct SmallDisk(tempfile::TempDir);

    impl SmallDisk {
        /// `None`, and said so, where none can be mounted.
        fn new() -> Option<SmallDisk> {
            let directory = tempfile::tempdir().unwrap();
            let mount = std::process::Command::new("mount")
                .args(["-t", "tmpfs", "-o", "size=400k", "dltrain-test"])
                .arg(directory.path())
                .output();
            if !mount.is_ok_and(|output| output.status.success()) {
                println!("SKIPPED: no disk can be mounted here");
                return None;
            }
            Some(SmallDisk(directory))
        }
    }

    impl Drop for SmallDisk {
        fn drop(&mut self) {
            let _ = std::process::Command::new("umount").arg(self.0.path()).status();
        }
    }

    /// Two checkpoints fit, and a third is written only when the oldest is gone.
    #[test]
    fn on_a_full_disk_the_oldest_goes_but_never_the_best_or_the_last_whole_one() {
        let Some(disk) = SmallDisk::new() else { return };
        let directory = disk.0.path();
        let mut checkpoints = Checkpoints::open(directory, 9, None).unwrap();
        const NUMBERS: usize = 40_000;
        let mut write = |step: u64, best| {
            let mut values = checkpoints.buffer();
            values.resize(NUMBERS, 1.0);
            let arrays = vec![checkpoint::Array { path: "parameters/a".into(), shape: vec![NUMBERS] }];
            let contents = Contents { values, arrays, ..Contents::default() };
            checkpoints.write(step, best, contents, Instant::now());
            checkpoints.finish()
        };
        let names = || {
            let steps =
                names(directory).into_iter().filter_map(|name| name.strip_prefix("step-").map(String::from));
            steps.collect::<Vec<_>>()
        };
        for step in 1..=3 {
            write(step, None).unwrap();
        }
        assert_eq!(names(), ["00000002.h5", "00000003.h5"]);
        write(4, Some(3)).unwrap();
        assert_eq!(names(), ["00000003.h5", "00000004.h5"]);
        // The best and the newest stay, whatever comes.
        let error = write(5, Some(3)).unwrap_err();
        assert!(is_full(&error), "{error}");
        assert_eq!(names(), ["00000003.h5", "00000004.h5"]);
        // A damaged one is nothing to go on at: the one before stays.
        fs::write(Checkpoints::path(directory, 4), vec![0; 100_000]).unwrap();
        assert!(write(6, None).is_err());
        assert_eq!(names(), ["00000003.h5", "00000004.h5"]);
    }

    #[test]
    fn the_newest_whole_one_is_found_and_damaged_ones_are_put_aside() {
        let directory = tempfile::tempdir().unwrap();
        let there = directory.path();
        assert!(newest_checkpoint(&there.join("missing")).unwrap().is_none());
        let mut checkpoints = Checkpoints::open(there, 9, None).unwrap();
        assert!(newest_checkpoint(there).unwrap().is_none());
        (1..=3).for_each(|step| write(&mut checkpoints, step, None));
        let path = |step| Checkpoints::path(there, step);
        // One cut short, one with a flipped bit, one half-written.
        let whole = fs::read(path(3)).unwrap();
        fs::write(path(3), &whole[..whole.len() / 2]).unwrap();
        let mut flipped = fs::read(path(2)).unwrap();
        flipped[700] ^= 4;
        fs::write(path(2), &flipped).unwrap();
        fs::write(temporary(&path(4)), &whole[..300]).unwrap();
        assert_eq!(newest_checkpoint(there).unwrap().unwrap().0, path(1));
        // The next time nothing newer is in the way, and opening sweeps up.
        Checkpoints::open(there, 9, Some(1)).unwrap();
        assert_eq!(
            names(there),
            ["step-00000001.h5", "step-00000002.h5.damaged", "step-00000003.h5.damaged"]
        );
        fs::write(path(1), b"").unwrap();
        let error = newest_checkpoint(there).map(|_| ()).unwrap_err();
        assert!(
            error.kind == ErrorKind::Data && error.message.contains("none of the 1 checkpoints"),
            "{error}"
        );
    }

    #[test]
    fn nothing_is_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let open = |resumed| Checkpoints::open(directory.path(), 2, resumed);
        write(&mut open(None).unwrap(), 7, None);
        for (resumed, said) in [(None, "--resume auto"), (Some(6), "newer than the step")] {
            let error = open(resumed).err().expect("refused");
            assert!(error.message.contains(said) && error.kind == ErrorKind::Output, "{error}");
        }
        open(Some(7)).unwrap();
    }
}
