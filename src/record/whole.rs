//! Files that are there whole or not at all, whatever happens while they are written.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// The name that a file has before it is whole.
pub(super) fn temporary(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".tmp");
    name.into()
}

/// Has `write` make a file under another name, brings it to disk, and only then gives it its own, in place of one that is
/// there. `what` it is, for the reader: "the checkpoint". What is there and no file (/dev/null, a pipe) is written as it is.
///
/// # Errors
/// `Kind::Output`, and those of `write`; nothing is left behind.
pub fn write_whole<T>(path: &Path, what: &str, write: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
    if fs::metadata(path).is_ok_and(|there| !there.is_file()) {
        return write(path);
    }
    let temporary = temporary(path);
    let settle = || {
        File::open(&temporary)?.sync_all()?;
        fs::rename(&temporary, path)?;
        // The name is on disk once the directory is.
        File::open(directory_of(path))?.sync_all()
    };
    let wrong = |error: std::io::Error| Error::output(path, format!("cannot write {what}: {error}"));
    let written = write(&temporary).and_then(|value| settle().map(|()| value).map_err(wrong));
    written.inspect_err(|_| {
        // Half a file serves nobody.
        let _ = fs::remove_file(&temporary);
    })
}

/// Gives a file its name, unless another has it by now.
///
/// # Errors
/// `Kind::Output`; the file is gone then.
pub(super) fn name(temporary: &Path, path: &Path) -> Result<()> {
    let named = match fs::hard_link(temporary, path) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Err(super::path::exists(path)),
        // A file system may know no second name of a file.
        Err(_) => fs::rename(temporary, path)
            .map_err(|error| Error::output(path, format!("cannot be given its name: {error}"))),
        Ok(()) => Ok(()),
    };
    let _ = fs::remove_file(temporary);
    named
}

/// The directory that a file is in.
pub fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_by_a_whole_one_only() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.h5");
        let put = |text: &'static str| {
            move |path: &Path| fs::write(path, text).map_err(|e| Error::internal(e.to_string()))
        };
        write_whole(&path, "it", put("first")).unwrap();
        write_whole(&path, "it", put("second")).unwrap();
        let half = |path: &Path| put("ha")(path).and_then(|()| Err::<(), _>(Error::usage("stopped")));
        assert_eq!(write_whole(&path, "it", half).unwrap_err().message, "stopped");
        assert_eq!(fs::read_to_string(&path).unwrap(), "second");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "something was left behind");
    }

    #[test]
    fn what_is_no_file_stays_what_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("null");
        std::os::unix::fs::symlink("/dev/null", &path).unwrap();
        let put = |path: &Path| fs::write(path, "text").map_err(|e| Error::internal(e.to_string()));
        write_whole(&path, "it", put).unwrap();
        assert!(fs::symlink_metadata(&path).unwrap().is_symlink());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "something was left behind");
    }

    #[test]
    fn a_name_that_is_taken_is_left_to_its_file() {
        let directory = tempfile::tempdir().unwrap();
        let (temporary, path) = (directory.path().join("a.h5.tmp"), directory.path().join("a.h5"));
        fs::write(&temporary, "first").unwrap();
        name(&temporary, &path).unwrap();
        fs::write(&temporary, "second").unwrap();
        assert!(name(&temporary, &path).is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "first");
        assert!(!temporary.exists());
    }
}
