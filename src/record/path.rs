//! Where a run's results go: found and tried before the expensive set-up, never over a file that is there.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::{RankInfo, date};
use crate::error::{Error, Result};
use crate::files::directory_of;

/// The directory used when none is given.
const DEFAULT: &str = "results";

/// Whether a place for results means a file, and no directory for one.
pub fn is_results_file(given: &Path) -> bool {
    given.extension().is_some_and(|e| e == "h5" || e == "hdf5") && !given.is_dir()
}

/// The results file of this run; `None` on ranks that write none. Creates no file.
///
/// `given` is what the user asked for: a file (`….h5`), or a directory, in which the file is named after the
/// model, the time and, under Slurm, the job. Without it the directory is `results`. A directory is made where it is
/// missing, but not its parent: that is more likely a typing error.
///
/// # Errors
/// `ErrorKind::Output`: the file is there already, the directory is missing or cannot be written.
pub fn results_path(place: RankInfo, given: Option<&Path>, model: &str) -> Result<Option<PathBuf>> {
    if place.rank != 0 {
        return Ok(None);
    }
    let given = given.unwrap_or(Path::new(DEFAULT));
    if is_results_file(given) {
        check(given)?;
        return Ok(Some(given.to_path_buf()));
    }
    if !given.exists() {
        fs::create_dir(given)
            .map_err(|error| Error::output(given, format!("cannot make the directory: {error}")))?;
    }
    // Two runs of one model may start in one second, and jobs of an array at the very same time.
    let job = std::env::var("SLURM_JOB_ID").map_or(String::new(), |job| format!("-job{job}"));
    let stem = format!("{model}-{}{job}", date::compact(SystemTime::now()));
    let names = std::iter::once(format!("{stem}.h5")).chain((2..).map(|n| format!("{stem}-{n}.h5")));
    let path = names.map(|name| given.join(name)).find(|path| path.symlink_metadata().is_err());
    let path = path.ok_or_else(|| Error::internal("no free name for a results file"))?;
    check(&path)?;
    Ok(Some(path))
}

/// The same for a run that goes on: `earlier`, the file of its earlier part, where that is still there and where
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
    match given {
        _ if place.rank != 0 => Ok(None),
        Some(file) if file.is_file() => Ok(Some(file.to_path_buf())),
        None if earlier.is_file() => Ok(Some(earlier.to_path_buf())),
        Some(directory) if earlier.is_file() && same(directory) => Ok(Some(earlier.to_path_buf())),
        _ => results_path(place, given, model),
    }
}

/// Whether a file can be made at `path`; makes none.
pub(super) fn check(path: &Path) -> Result<()> {
    // Also true for a link that leads nowhere.
    if path.symlink_metadata().is_ok() {
        return Err(exists(path));
    }
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
    let probe = directory.join(format!(".dltrain-{}", std::process::id()));
    fs::write(&probe, b"dltrain").and_then(|()| fs::remove_file(&probe)).inspect_err(|_| {
        let _ = fs::remove_file(&probe);
    })
}

/// The error for a results file that is there already.
pub(super) fn exists(path: &Path) -> Error {
    Error::output(path, "is there already and is not overwritten; remove it or choose another --results")
}
