//! The one error type of the program.
//!
//! An error is written for the reader: what happened, to which file, flag, rank and host, and what to
//! do about it. Its kind decides the exit code, so that a job script can tell bad input from a lost
//! library. An error crosses ranks as text (see `comm::World::agree`), so it holds no foreign types.

use std::borrow::Cow;
use std::fmt::{self, Write};
use std::path::Path;

/// What sort of thing went wrong; the number is the program's exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ErrorKind {
    /// A defect of dltrain itself.
    Internal = 1,
    /// A flag, or a combination of flags, that cannot work.
    Usage = 2,
    /// A data file that is missing, truncated or corrupt.
    Data = 3,
    /// Something the machine lacks: a library, a launcher that fits, memory, room in /dev/shm.
    Environment = 4,
    /// A library call failed (MPI, oneDNN, HDF5, CUDA).
    Foreign = 5,
    /// Ranks that must agree do not.
    Mismatch = 6,
    /// The loss is no longer a finite number.
    Diverged = 7,
    /// A results file or checkpoint cannot be written, or is there already.
    Output = 8,
    /// A rank has waited for others longer than allowed.
    Stalled = 9,
    /// Not a failure: stopped before the end as asked, by a signal or the time limit. The number is that of sysexits'
    /// EX_TEMPFAIL: try again later.
    Stopped = 75,
    /// The run was stopped by SIGHUP (a terminal was closed): 129 is a shell's code for that.
    HungUp = 129,
}

impl ErrorKind {
    /// The kind with this exit code; `Internal` for a code that is none.
    pub fn from_code(code: u8) -> ErrorKind {
        use ErrorKind::*;
        [Internal, Usage, Data, Environment, Foreign, Mismatch, Diverged, Output, Stalled, Stopped, HungUp]
            .into_iter()
            .find(|kind| *kind as u8 == code)
            .unwrap_or(Internal)
    }

    /// Whether it is no failure: a run that was told to stop.
    pub fn is_stop(self) -> bool {
        matches!(self, ErrorKind::Stopped | ErrorKind::HungUp)
    }
}

/// An error: its kind and one message for the reader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// What sort of failure it is: the exit code.
    pub kind: ErrorKind,
    /// What happened, to what, and what to do about it.
    pub message: String,
}

/// The result of everything that can fail.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error of this kind with this message.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        let message = message.into();
        match in_words_of_system(&message) {
            Cow::Borrowed(_) => Error { kind, message },
            Cow::Owned(message) => Error { kind, message },
        }
    }

    /// A flag, or a combination of flags, that cannot work.
    pub fn usage(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Usage, message)
    }

    /// A data file that cannot be used: which one, and what is wrong with it.
    pub fn data(path: &Path, what: impl fmt::Display) -> Error {
        Error::new(ErrorKind::Data, format!("{}: {what}", path.display()))
    }

    /// Something the machine lacks; the message ends with the remedy.
    pub fn environment(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Environment, message)
    }

    /// A foreign call that failed: library, call, its code and what the code means.
    pub fn foreign(library: &str, call: &str, code: i64, text: impl fmt::Display) -> Error {
        Error::new(ErrorKind::Foreign, format!("{library}: {call} failed with code {code} ({text})"))
    }

    /// A results file that cannot be written.
    pub fn output(path: &Path, what: impl fmt::Display) -> Error {
        Error::new(ErrorKind::Output, format!("{}: {what}", path.display()))
    }

    /// A defect of dltrain itself.
    pub fn internal(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Internal, message)
    }

    /// The process's exit code for this error.
    pub fn exit_code(&self) -> i32 {
        self.kind as i32
    }

    /// The error with words put before its message ("layer conv1: …").
    pub fn context(mut self, before: impl fmt::Display) -> Error {
        self.message = format!("{before}: {}", self.message);
        self
    }
}

/// A message in which HDF5 tells of a system call that failed by what the system says of it: without the time, file
/// descriptor, addresses and sizes, of which its own text has two lines.
pub fn in_words_of_system(message: &str) -> Cow<'_, str> {
    let of_call = |message: &str| -> Option<String> {
        let (front, rest) = message.split_once(": time = ")?;
        let (_, rest) = rest.split_once(", errno = ")?;
        let (said, mut behind) = rest.split_once(", error message = '")?.1.split_once('\'')?;
        // Pairs of a name and a number.
        while let Some((name, value)) = behind.strip_prefix(", ").and_then(|rest| rest.split_once(" = ")) {
            let end = value.find(|letter: char| !letter.is_ascii_alphanumeric()).unwrap_or(value.len());
            if !name.chars().all(|letter| letter.is_ascii_lowercase() || " -".contains(letter)) {
                break;
            }
            behind = &value[end..];
        }
        // The calls by which it came there: "H5Fcreate(): unable to create file: file write failed".
        let calls = front.rfind("(): ").and_then(|at| front[..at].rfind("H5")).unwrap_or(front.len());
        Some(format!("{}{said}{behind}", &front[..calls]))
    };
    of_call(message).map_or(Cow::Borrowed(message), Cow::Owned)
}

/// Makes an error of a failure about a file, in the failure's own words.
pub trait OrError<T> {
    /// A data file that cannot be used.
    ///
    /// # Errors
    /// `Data`.
    fn or_data(self, path: &Path) -> Result<T>;

    /// A file that cannot be written: before the failure's words what cannot be done.
    ///
    /// # Errors
    /// `Output`.
    fn or_output(self, path: &Path, what: &str) -> Result<T>;
}

impl<T, E: fmt::Display> OrError<T> for std::result::Result<T, E> {
    fn or_data(self, path: &Path) -> Result<T> {
        self.map_err(|error| Error::data(path, error))
    }

    fn or_output(self, path: &Path, what: &str) -> Result<T> {
        self.map_err(|error| Error::output(path, format!("{what}: {error}")))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Names and texts out of files may hold what a terminal takes for commands.
        for character in self.message.chars() {
            match character.is_control() && character != '\n' {
                true => write!(f, "{}", character.escape_default())?,
                false => f.write_char(character)?,
            }
        }
        if self.kind == ErrorKind::Internal {
            f.write_str(" (this is a defect of dltrain; please report it)")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_file_is_called_or_holds_gives_the_terminal_no_commands() {
        let error = Error::data(Path::new("a\x1b[2J.tar"), "line\nä\r");
        assert_eq!(error.to_string(), "a\\u{1b}[2J.tar: line\nä\\r");
    }

    /// As HDF5 1.10 and 1.14 have it.
    #[test]
    fn a_full_disk_is_told_in_the_words_of_the_system() {
        let wrong = "H5Fcreate(): unable to create file: file write failed: time = Sun Nov 29 09:58:01 2026\n, filename \
                     = 'd/a.h5', file descriptor = 19, errno = 28, error message = 'No space left on device', buf = \
                     0x7f3c5e, total write size = 96, bytes this sub-write = 96, bytes actually written = \
                     18446744073709551615, offset = 0";
        let path = Path::new("d/a.h5");
        let error = Error::output(path, format!("cannot be written: {wrong}"));
        assert_eq!(error.message, "d/a.h5: cannot be written: No space left on device");
        assert_eq!(Error::data(path, wrong).message, "d/a.h5: No space left on device");
        let error = Error::output(path, format!("cannot be written: {wrong}; choose another name"));
        assert_eq!(error.message, "d/a.h5: cannot be written: No space left on device; choose another name");
        for plain in ["H5Dopen2(): object not found", "a: time = 3", "", "H5Fopen(): x: time = 1, errno = 2"]
        {
            assert_eq!(Error::usage(plain).message, plain);
        }
    }

    #[test]
    fn kinds_survive_the_trip_through_an_exit_code() {
        for code in (1..=9).chain([75, 129]) {
            assert_eq!(ErrorKind::from_code(code) as u8, code);
        }
        assert_eq!(ErrorKind::from_code(99), ErrorKind::Internal);
    }
}
