//! Files that are read all through a run, of which there may be more than a process may have open.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

/// A regular file for reading, which is closed while others are read where there are too many, and opened again.
#[derive(Debug)]
pub struct KeptFile {
    path: PathBuf,
    number: u64,
    /// Length, device and number: a file that took its place is another.
    bytes: u64,
    mark: OnceLock<[u64; 2]>,
}

/// Those that are open, by number.
static OPEN: LazyLock<Mutex<HashMap<u64, Arc<File>>>> = LazyLock::new(Mutex::default);

fn open_files() -> MutexGuard<'static, HashMap<u64, Arc<File>>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

impl KeptFile {
    /// # Errors
    /// As for `files::open`.
    pub fn open(path: &Path) -> io::Result<(KeptFile, Arc<File>)> {
        let kept = KeptFile::named(path, std::fs::metadata(path)?.len());
        let file = kept.file()?;
        Ok((kept, file))
    }

    /// A file that another rank has opened and found so long; it is opened when it is read.
    pub fn named(path: &Path, bytes: u64) -> KeptFile {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        KeptFile { path: path.to_path_buf(), number, bytes, mark: OnceLock::new() }
    }

    /// # Errors
    /// The system's; another file has its place; it was cut off since it was opened.
    pub fn read_exact_at(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        self.file()?.read_exact_at(bytes, at).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => io::Error::new(error.kind(), "the file ends before it"),
            _ => error,
        })
    }

    /// Whether another program has locked it, as HDF5 does what it writes where the file system has locks.
    pub fn is_locked(&self) -> bool {
        let Ok(file) = self.file() else { return false };
        let tried = flock(&*file, FlockOperation::NonBlockingLockShared);
        let _ = flock(&*file, FlockOperation::Unlock);
        tried == Err(Errno::WOULDBLOCK)
    }

    fn file(&self) -> io::Result<Arc<File>> {
        if let Some(file) = open_files().get(&self.number) {
            return Ok(file.clone());
        }
        let file = Arc::new(with_room(&self.path)?);
        let of = file.metadata()?;
        let mark = [of.dev(), of.ino()];
        if of.len() != self.bytes || *self.mark.get_or_init(|| mark) != mark {
            return Err(io::Error::other(
                "is another file than the one that was looked at when the run began",
            ));
        }
        keep(self.number, &file);
        Ok(file)
    }
}

impl Drop for KeptFile {
    fn drop(&mut self) {
        open_files().remove(&self.number);
    }
}

/// Opens a file; where the process may have no more, those that are kept are closed first.
fn with_room(path: &Path) -> io::Result<File> {
    match super::open(path) {
        Err(error) if error.raw_os_error() == Some(Errno::MFILE.raw_os_error()) => {
            open_files().clear();
            super::open(path)
        }
        file => file,
    }
}

/// Keeps one open, in place of some other where a quarter of what a process may open is kept.
fn keep(number: u64, file: &Arc<File>) {
    let most = getrlimit(Resource::Nofile).current.map_or(usize::MAX, |most| (most / 4).max(1) as usize);
    let mut open = open_files();
    while open.len() >= most {
        let Some(other) = open.keys().next().copied() else { break };
        open.remove(&other);
    }
    open.insert(number, file.clone());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_opened_again_and_no_other_in_its_place() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        std::fs::write(&path, "0123").unwrap();
        let (kept, _) = KeptFile::open(&path).unwrap();
        let read = |kept: &KeptFile| {
            let mut bytes = [0; 2];
            kept.read_exact_at(&mut bytes, 1).map(|()| bytes)
        };
        let closed = || open_files().remove(&kept.number);
        assert!(closed().is_some());
        assert_eq!(read(&kept).unwrap(), *b"12");
        std::fs::write(&path, "01").unwrap();
        assert_eq!(read(&kept).unwrap_err().to_string(), "the file ends before it");
        assert!(closed().is_some(), "it was not kept open");
        std::fs::rename(&path, directory.path().join("b")).unwrap();
        std::fs::write(&path, "4567").unwrap();
        assert!(read(&kept).unwrap_err().to_string().contains("another file than"));
    }
}
