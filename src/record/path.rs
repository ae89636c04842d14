//! Where a run's results go: found, tried and owned before the expensive set-up, never over a file that is there.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::RankInfo;
use super::weights::is_hdf5;
use crate::error::{Error, OrError, Result};
use crate::files::{self, date, directory_of};

/// The directory used when none is given.
const DEFAULT: &str = "results";

/// Whether a place for results means a file, and no directory for one.
pub fn is_results_file(given: &Path) -> bool {
    is_hdf5(given) && !given.is_dir()
}

/// What a second run is told that wants the results of a first.
const REMEDY: &str = "choose another --results";

/// The results file of this run, which owns it from now on; `None` on ranks that write none. Creates no file but the
/// owner's note.
///
/// `given` is what the user asked for: a file (`….h5`), or a directory, in which the file is named after the
/// model, the time and, under Slurm, the job. Without it the directory is `results`. A directory is made where it is
/// missing, but not its parent: that is more likely a typing error.
///
/// # Errors
/// `ErrorKind::Output`: the file is there already or another run's, the directory is missing or cannot be written.
pub fn results_path(place: RankInfo, given: Option<&Path>, model: &str) -> Result<Option<PathBuf>> {
    if place.rank != 0 {
        return Ok(None);
    }
    let given = given.unwrap_or(Path::new(DEFAULT));
    if is_results_file(given) {
        claim(given, "--results")?;
        return Ok(Some(given.to_path_buf()));
    }
    if !given.exists() {
        files::make_directory(given).or_output(given, "cannot make the directory")?;
    }
    // Two runs of one model may start in one second, and jobs of an array at the very same time.
    let job = std::env::var("SLURM_JOB_ID").map_or(String::new(), |job| format!("-job{job}"));
    let stem = format!("{model}-{}{job}", date::compact(SystemTime::now()));
    check_directory(&given.join(format!("{stem}.h5")))?;
    let names = std::iter::once(format!("{stem}.h5")).chain((2..).map(|n| format!("{stem}-{n}.h5")));
    for path in names.map(|name| given.join(name)) {
        let is_there = || path.symlink_metadata().is_ok();
        let owned = |error| Error::output(&path, format!("cannot be made: {error}; {REMEDY}"));
        // One that was made in between has an owner no more, but is there.
        if !is_there() && files::own_if_free(&path).map_err(owned)? && !is_there() {
            return Ok(Some(path));
        }
    }
    Err(Error::internal("no free name for a results file"))
}

/// The results file of a run that goes on: `earlier`, the file of its earlier part, where that is still there and where
/// results are asked for; a file of that name is gone on with.
///
/// # Errors
/// As for `results_path`, but that a file may be there.
pub fn resumed_path(
    place: RankInfo,
    given: Option<&Path>,
    model: &str,
    earlier: &Path,
) -> Result<Option<PathBuf>> {
    let same = |given: &Path| match (given.canonicalize(), earlier.parent().unwrap_or(earlier).canonicalize())
    {
        (Ok(given), Ok(directory)) => given == directory,
        _ => false,
    };
    let path = match given {
        _ if place.rank != 0 => return Ok(None),
        Some(file) if file.is_file() => file,
        None if earlier.is_file() => earlier,
        Some(directory) if earlier.is_file() && same(directory) => earlier,
        _ => return results_path(place, given, model),
    };
    files::own(path, REMEDY)?;
    Ok(Some(path.to_path_buf()))
}

/// Checks that a file can be made at `path`, and owns it; makes none. Messages name `flag` as what to choose anew.
///
/// # Errors
/// `Output`: it is there, or another's, or cannot be made.
pub(super) fn claim(path: &Path, flag: &str) -> Result<()> {
    let free = || match path.symlink_metadata() {
        // Its owner may have ended in between.
        Ok(_) => Err(exists(path)),
        Err(_) => Ok(()),
    };
    check(path)
        .and_then(|()| files::own(path, REMEDY))
        .and_then(|()| free())
        .map_err(|error| Error::new(error.kind, error.message.replace("--results", flag)))
}

/// The same of a file that a flag names, before the work for it begins; what is there and no file (/dev/stdout) is
/// written to as it is.
///
/// # Errors
/// As for `claim`.
pub fn check_output(path: &Path, flag: &str) -> Result<()> {
    if fs::metadata(path).is_ok_and(|there| !there.is_file()) { Ok(()) } else { claim(path, flag) }
}

/// Whether a file can be made at `path`; makes none.
fn check(path: &Path) -> Result<()> {
    // Also true for a link that leads nowhere.
    if path.symlink_metadata().is_ok() {
        return Err(match files::owner(path).filter(|owner| !owner.is_this()) {
            Some(owner) => files::owned(path, &owner, REMEDY),
            None => exists(path),
        });
    }
    check_directory(path)
}

/// Whether files can be made in the directory of a path.
fn check_directory(path: &Path) -> Result<()> {
    let directory = directory_of(path);
    if !directory.exists() {
        return Err(Error::output(
            path,
            format!(
                "the directory {} does not exist; make it or choose another --results",
                directory.display()
            ),
        ));
    }
    probe(directory).map_err(|error| {
        Error::output(
            path,
            format!("cannot write in {}: {error}; choose another --results", directory.display()),
        )
    })
}

/// Whether a file can be made in a directory. Permission bits do not tell (root, read-only and full file systems,
/// quotas): tries.
pub(super) fn probe(directory: &Path) -> std::io::Result<()> {
    let probe = files::temporary(&directory.join(".dltrain"));
    fs::write(&probe, b"dltrain").and_then(|()| fs::remove_file(&probe)).inspect_err(|_| {
        let _ = fs::remove_file(&probe);
    })
}

/// The error for a results file that is there already.
pub(super) fn exists(path: &Path) -> Error {
    Error::output(path, "is there already and is not overwritten; remove it or choose another --results")
}
