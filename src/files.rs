//! Files: what a user names is opened only if it is a regular file; what is written is there whole or not at all,
//! whatever happens while it is written; and checksums.
//!
//! A pipe, a terminal or /dev/zero would be waited for, or read, without end: what a path leads to is asked before it
//! is opened.
//!
//! What dltrain writes and reads again is checked by CRC-32 (`crc32`), with two exceptions. TensorBoard's format
//! dictates CRC-32C (`record/tensorboard.rs`). Texts that ranks compare, and the tuning file, have 64 bits of FNV-1a
//! (`fnv1a`).
//!
//! Two runs never write one file: `owner` says who owns what, and what is half-written has a name of its process's own.
//! May use: `config`, `error`, `host`. Used by: everything above.

mod chunks;
pub mod date;
mod kept;
mod owner;

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// CRC-32 of what comes piece by piece.
pub use flate2::Crc;

pub use chunks::ChunkCache;
pub use kept::KeptFile;
pub use owner::{Owner, disown, forget, living_owner, own, own_if_free, owned, owner};

use rustix::io::Errno;

use crate::error::{Error, Result};

/// Whether a path leads to a regular file, also through links; for libraries that open it by themselves.
///
/// # Errors
/// The system's, or what it is instead: "a pipe, not a regular file".
pub fn check(path: &Path) -> io::Result<()> {
    let kind = fs::metadata(path)?.file_type();
    let what = match () {
        () if kind.is_file() => return Ok(()),
        () if kind.is_dir() => return Err(ErrorKind::IsADirectory.into()),
        () if kind.is_fifo() => "a pipe",
        () if kind.is_socket() => "a socket",
        () => "a device",
    };
    Err(io::Error::other(format!("{what}, not a regular file")))
}

/// Opens a regular file for reading.
///
/// # Errors
/// As for `check`.
pub fn open(path: &Path) -> io::Result<File> {
    check(path)?;
    File::open(path)
}

/// All that a regular file holds.
///
/// # Errors
/// As for `check`.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    check(path)?;
    fs::read(path)
}

/// What a file is that was saved in place of the real one (a Git LFS pointer, a web page), by its first eight bytes.
pub fn stand_in(start: &[u8]) -> Option<&'static str> {
    match start {
        b"version " => Some("is a pointer of Git LFS, not the file itself; git lfs pull fetches it"),
        [b'<', b'!' | b'h' | b'H' | b'?', ..] => {
            Some("is a web page, not the file that was to be downloaded")
        }
        _ => None,
    }
}

/// What is wrong with a file that cannot be read as what it is to be: what the reader says, unless it is in place of
/// another.
pub fn unreadable(path: &Path, what: String) -> Error {
    let mut start = [0; 8];
    let read = open(path).and_then(|mut file| file.read_exact(&mut start));
    let said = match read.ok().map(|()| start) {
        Some([0, 0, 0, 0, 0, 0, 0, 0]) => format!("{what}; {ZEROS}"),
        Some(start) => stand_in(&start).map_or(what, Into::into),
        None => what,
    };
    Error::data(path, said)
}

/// What is said of a file that has none where a format has its name.
pub const ZEROS: &str = "it begins with zeros, as a file does that was being written when a disk was full or a machine \
     went down";

/// The text in a regular file of at most so many bytes.
///
/// # Errors
/// As for `check`; a file that is longer, or no UTF-8.
pub fn read_text(path: &Path, most: u64) -> io::Result<String> {
    let mut text = String::new();
    open(path)?.take(most + 1).read_to_string(&mut text)?;
    match text.len() as u64 > most {
        true => Err(io::Error::new(ErrorKind::FileTooLarge, format!("more than {most} bytes"))),
        false => Ok(text),
    }
}

/// The name that a file has before it is whole: no other process has the same.
pub fn temporary(path: &Path) -> PathBuf {
    beside(path, "", &ending(owner::id()))
}

/// A file that has another name until it is whole, and is gone again if it does not get that far.
pub struct Unfinished {
    /// The name that it is to have.
    pub path: PathBuf,
    /// The name that it has until then.
    pub temporary: PathBuf,
}

impl Unfinished {
    /// Nothing is made yet.
    pub fn new(path: &Path) -> Unfinished {
        Unfinished { path: path.to_path_buf(), temporary: temporary(path) }
    }

    /// Gives it its name.
    ///
    /// # Errors
    /// As for `name`.
    pub fn finish(&self) -> io::Result<()> {
        name(&self.temporary, &self.path)
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // Half a file serves nobody. Nothing can be done where it cannot be removed.
        let _ = fs::remove_file(&self.temporary);
    }
}

/// How such names end of a process of this name.
fn ending(id: &str) -> String {
    format!(".{id}.tmp")
}

/// The path of a file beside another, named after it; where no name is so long, after its checksum.
fn beside(path: &Path, before: &str, behind: &str) -> PathBuf {
    /// Bytes of the longest name that file systems take.
    const LONGEST: usize = 255;
    let name = path.file_name().unwrap_or_default();
    let short = OsString::from(format!("{:016x}", fnv1a(name.as_encoded_bytes().iter().copied())));
    let fits = before.len() + name.len() + behind.len() <= LONGEST;
    let mut all = OsString::from(before);
    all.push(if fits { name } else { &short });
    all.push(behind);
    path.with_file_name(all)
}

/// The path without links and dots, as far as it is there.
pub fn whole(path: &Path) -> PathBuf {
    let within = || Some(directory_of(path).canonicalize().ok()?.join(path.file_name()?));
    path.canonicalize().ok().or_else(within).or_else(|| std::path::absolute(path).ok()).unwrap_or(path.into())
}

/// Has `write` make a file under another name, brings it to disk, and only then gives it its own, in place of one that
/// is there. `what` it is, for the reader: "the checkpoint". What is there and no file (/dev/null, a pipe) is written
/// as it is.
///
/// # Errors
/// `ErrorKind::Output`, and those of `write`; nothing is left behind.
pub fn write_whole<T>(path: &Path, what: &str, write: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
    write_and(path, what, write, |temporary| {
        owner::check_own(path).and_then(|()| fs::rename(temporary, path))
    })
}

/// Writes a new file as `write_whole` does, and fails if one has that name by then.
///
/// # Errors
/// `ErrorKind::Output`, and those of `write`; nothing is left behind.
pub fn write_new<T>(path: &Path, what: &str, write: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
    write_and(path, what, write, |temporary| name(temporary, path))
}

fn write_and<T>(
    path: &Path,
    what: &str,
    write: impl FnOnce(&Path) -> Result<T>,
    name: impl FnOnce(&Path) -> io::Result<()>,
) -> Result<T> {
    if fs::metadata(path).is_ok_and(|there| !there.is_file()) {
        return write(path);
    }
    let Unfinished { temporary, .. } = &Unfinished::new(path);
    let settle = || {
        File::open(temporary)?.sync_all()?;
        name(temporary)?;
        sync_directory(directory_of(path))
    };
    let wrong = |error: io::Error| {
        let said = match error.kind() {
            ErrorKind::AlreadyExists => format!(
                "another run made it while this one was at work, and it is not overwritten; choose another name for \
                 {what}"
            ),
            _ => format!("cannot write {what}: {error}"),
        };
        Error::output(path, said)
    };
    write(temporary).and_then(|value| settle().map(|()| value).map_err(wrong))
}

/// Brings the names in a directory to disk. Some file systems (CIFS, some of FUSE) have no such request, and answer
/// that it is invalid or not supported.
fn sync_directory(directory: &Path) -> io::Result<()> {
    let synced = File::open(directory)?.sync_all();
    let refused = [Errno::INVAL, Errno::NOTSUP, Errno::NOSYS, Errno::BADF];
    match synced {
        Err(error) if Errno::from_io_error(&error).is_some_and(|number| refused.contains(&number)) => Ok(()),
        synced => synced,
    }
}

/// Removes the half-written files of a directory whose names will do: those of dead processes, where this one owns what
/// they were to be.
pub fn sweep(directory: &Path, is_ours: impl Fn(&str) -> bool) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.ends_with(".tmp") && is_ours(&name) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Gives a file its name, unless another has it by now, or another process owns it.
///
/// # Errors
/// `AlreadyExists` where another has it, who owns it, or what the system says. The file is gone then.
pub fn name(temporary: &Path, path: &Path) -> io::Result<()> {
    let linked = || match fs::hard_link(temporary, path) {
        // The answer may be lost of a server that did it: how many names the file has tells (open(2), O_EXCL).
        Err(_) if fs::metadata(temporary).is_ok_and(|one| one.nlink() == 2) => Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(error),
        // A file system may know no second name of a file. There the name is made first, which one alone can do.
        Err(_) => File::create_new(path).and_then(|_| {
            fs::rename(temporary, path).inspect_err(|_| {
                // What it stands for is not there; the error says why.
                let _ = fs::remove_file(path);
            })
        }),
        Ok(()) => Ok(()),
    };
    let named = owner::check_own(path).and_then(|()| linked());
    let _ = fs::remove_file(temporary);
    named
}

/// Makes a directory where there is none, but not its parent: that is more likely a typing error.
///
/// # Errors
/// The system's.
pub fn make_directory(directory: &Path) -> io::Result<()> {
    match fs::create_dir(directory) {
        // Another run may make it at the same time.
        Err(error) if error.kind() == ErrorKind::AlreadyExists && directory.is_dir() => Ok(()),
        made => made,
    }
}

/// The directory that a file is in.
pub fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."))
}

/// CRC-32 of the parts one after the other.
pub fn crc32(parts: &[&[u8]]) -> u32 {
    let mut crc = Crc::new();
    parts.iter().for_each(|part| crc.update(part));
    crc.sum()
}

/// The CRC-32 of a file's bytes from a place on.
///
/// # Errors
/// The file cannot be read.
pub fn crc32_from(mut file: &File, start: u64) -> io::Result<u32> {
    /// Bytes read at a time.
    const PIECE: usize = 1 << 20;
    file.seek(SeekFrom::Start(start))?;
    let (mut crc, mut bytes) = (Crc::new(), vec![0u8; PIECE]);
    loop {
        match file.read(&mut bytes)? {
            0 => return Ok(crc.sum()),
            count => crc.update(&bytes[..count]),
        }
    }
}

/// FNV-1a, 64 bits: for comparing texts that nobody means to confuse.
pub fn fnv1a(bytes: impl IntoIterator<Item = u8>) -> u64 {
    let fold = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, fold)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Opening the pipe would wait for a writer, and the device has no end.
    #[test]
    fn only_regular_files_are_opened() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        assert!(std::process::Command::new("mkfifo").arg(path("pipe")).status().unwrap().success());
        let _socket = std::os::unix::net::UnixListener::bind(path("socket")).unwrap();
        std::os::unix::fs::symlink("/dev/zero", path("link")).unwrap();
        for (name, what) in [("pipe", "a pipe"), ("socket", "a socket"), ("link", "a device")] {
            let said = format!("{what}, not a regular file");
            assert_eq!(open(&path(name)).unwrap_err().to_string(), said);
            assert_eq!(read(&path(name)).unwrap_err().to_string(), said);
            assert_eq!(read_text(&path(name), 9).unwrap_err().to_string(), said);
        }
        assert_eq!(open(directory.path()).unwrap_err().kind(), ErrorKind::IsADirectory);
        assert_eq!(open(&path("none")).unwrap_err().kind(), ErrorKind::NotFound);
        fs::write(path("file"), "nine byte").unwrap();
        assert_eq!(read(&path("file")).unwrap(), b"nine byte");
        assert_eq!(read_text(&path("file"), 9).unwrap(), "nine byte");
        assert_eq!(read_text(&path("file"), 8).unwrap_err().to_string(), "more than 8 bytes");
    }

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
    fn who_loses_a_race_for_a_name_is_told_so() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.h5");
        let put = |to: &Path, text: &str| fs::write(to, text).map_err(|e| Error::internal(e.to_string()));
        let slower = |to: &Path| put(&path, "theirs").and_then(|()| put(to, "ours"));
        let said = write_new(&path, "the weights", slower).unwrap_err().message;
        assert!(
            said.contains("a.h5: another run made it while this one was at work, and it is not overwritten")
                && said.ends_with("choose another name for the weights"),
            "{said}"
        );
        assert_eq!(fs::read_to_string(&path).unwrap(), "theirs");
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
        assert_eq!(name(&temporary, &path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&path).unwrap(), "first");
        assert!(!temporary.exists());
    }

    /// The checksums of the nine digits are those that every source has.
    #[test]
    fn checksums_are_the_known_ones() {
        let digits = b"123456789";
        assert_eq!(crc32(&[&digits[..4], &digits[4..]]), 0xcbf4_3926);
        assert_eq!(fnv1a(*b"foobar"), 0x8594_4171_f739_67e8);
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        fs::write(&path, b"before123456789").unwrap();
        assert_eq!(crc32_from(&File::open(&path).unwrap(), 6).unwrap(), 0xcbf4_3926);
    }
}
