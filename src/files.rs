//! Opening files that a user names: what a path leads to is asked before it is opened, since a pipe, a terminal or
//! /dev/zero would be waited for, or read, without end.
//!
//! May use: nothing. Used by: everything that reads files.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

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

/// The text in a regular file of at most so many bytes.
///
/// # Errors
/// As for `check`; a file that is longer, or no UTF-8.
pub fn read_text(path: &Path, most: u64) -> io::Result<String> {
    let mut text = String::new();
    open(path)?.take(most + 1).read_to_string(&mut text)?;
    match text.len() as u64 > most {
        true => Err(io::Error::other(format!("more than {most} bytes"))),
        false => Ok(text),
    }
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
}
