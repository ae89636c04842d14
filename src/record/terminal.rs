//! What a person sees: lines on standard output and a progress bar that no line tears.
//!
//! Under mpirun a rank's own streams tell nothing: Open MPI gives it a pseudo-terminal even when all output goes
//! to a file, and MPICH a pipe even when a person is watching. So the launcher's streams are asked, where the
//! launcher is an ancestor of this process (as it is for rank 0 on a workstation; under srun it is not, and
//! there is no bar). Without a terminal no control character is written.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::host;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle, TermLike};

use crate::error::{Error, Result};

/// How often the bar moves.
const MOVES_A_SECOND: u32 = 5;
/// indicatif draws at each of the three calls of a move, and limits by itself.
const DRAWS_A_SECOND: u8 = 20;

#[derive(Debug, Clone, Copy, PartialEq)]
enum OutputStream {
    Stdout,
    Stderr,
}

impl OutputStream {
    /// Writes and flushes. What cannot be written is no reason to stop training; `printed` tells of it.
    fn write(self, bytes: &[u8]) {
        match self {
            OutputStream::Stdout => {
                let written = io::stdout().lock().write_all(bytes).and_then(|()| io::stdout().flush());
                if let Err(error) = outcome_of(written) {
                    let _ = LOST.set(error);
                }
            }
            // Nobody can be told.
            OutputStream::Stderr => drop(io::stderr().lock().write_all(bytes)),
        }
    }
}

/// The first failure of standard output.
static LOST: OnceLock<Error> = OnceLock::new();

/// Whether all that this process printed on standard output arrived there.
///
/// # Errors
/// `Output`: the device is full, most likely.
pub fn printed() -> Result<()> {
    LOST.get().map_or(Ok(()), |error| Err(error.clone()))
}

/// What became of writing to standard output. A reader that has seen enough (`dltrain | head`) is no failure.
///
/// # Errors
/// `Output`.
pub fn outcome_of(written: io::Result<()>) -> Result<()> {
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Error::output(Path::new("standard output"), format!("cannot be written: {error}")))
        }
        _ => Ok(()),
    }
}

/// What is known about this process's streams, and the bar if there is one.
struct Screen {
    bar: Option<ProgressBar>,
    /// The stream that the bar is drawn on.
    stream: OutputStream,
    /// Standard error ends on a terminal.
    stderr_seen: bool,
    /// Another rank may be drawing a bar on the terminal that standard error ends on.
    foreign_bar: bool,
    /// Nothing is to be said of how a run goes.
    quiet: bool,
    drawn: Option<Instant>,
}

static SCREEN: Mutex<Screen> = Mutex::new(Screen {
    bar: None,
    stream: OutputStream::Stdout,
    stderr_seen: false,
    foreign_bar: false,
    quiet: false,
    drawn: None,
});

fn screen() -> MutexGuard<'static, Screen> {
    SCREEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether `tell` and the bar are to be silent.
pub(super) fn set_quiet(quiet: bool) {
    screen().quiet = quiet;
}

/// A line (or several) about how a run goes, for who wants to hear it.
pub(super) fn tell(text: &str) {
    let quiet = screen().quiet;
    if !quiet {
        say(text);
    }
}

/// A line (or several) on standard output.
pub fn say(text: &str) {
    let line = format!("{text}\n");
    let screen = screen();
    match &screen.bar {
        Some(bar) => bar.suspend(|| OutputStream::Stdout.write(line.as_bytes())),
        None => OutputStream::Stdout.write(line.as_bytes()),
    }
}

/// A whole message, with its newline, on standard error.
pub(super) fn complain(message: &[u8]) {
    let screen = screen();
    match &screen.bar {
        // A launcher forwards the two streams in any order: on one terminal the bar's own keeps lines whole.
        Some(bar) if screen.stderr_seen => bar.suspend(|| screen.stream.write(message)),
        _ if screen.foreign_bar => OutputStream::Stderr.write(&[b"\r\x1b[K", message].concat()),
        _ => OutputStream::Stderr.write(message),
    }
}

/// Says that messages of this process may meet another rank's bar.
pub(super) fn expect_foreign_bar(other_rank: bool) {
    let seen = other_rank && launcher().is_some_and(|pid| terminal_of(pid, OutputStream::Stderr).is_some());
    screen().foreign_bar = seen;
}

/// Starts the bar, where a person is watching.
pub(super) fn start_bar(steps: u64) {
    if screen().quiet {
        return;
    }
    // /proc/self holds this process's streams as /proc/<launcher> holds the launcher's.
    let pid = launcher().unwrap_or_else(std::process::id);
    let stdout = terminal_of(pid, OutputStream::Stdout);
    let stderr = terminal_of(pid, OutputStream::Stderr);
    let mut screen = screen();
    screen.stderr_seen = stderr.is_some();
    let (stream, terminal) = match (stdout, stderr) {
        (Some(terminal), _) => (OutputStream::Stdout, terminal),
        (None, Some(terminal)) => (OutputStream::Stderr, terminal),
        (None, None) => return,
    };
    screen.stream = stream;
    let target = ProgressDrawTarget::term_like_with_hz(
        Box::new(Canvas { stream, terminal, drawing: Mutex::default() }),
        DRAWS_A_SECOND,
    );
    let style = ProgressStyle::with_template("{prefix}[{wide_bar}] {pos}/{len} {msg} eta {eta}");
    let Ok(style) = style else { return };
    screen.bar =
        Some(ProgressBar::with_draw_target(Some(steps), target).with_style(style.progress_chars("=> ")));
}

/// Moves the bar. `texts` (before and after it) are asked for only when it is time to draw.
pub(super) fn move_bar(position: u64, texts: impl FnOnce() -> (String, String)) {
    let mut screen = screen();
    let Some(bar) = screen.bar.clone() else { return };
    let due = Duration::from_secs(1) / MOVES_A_SECOND;
    if screen.drawn.is_none_or(|drawn| drawn.elapsed() >= due) {
        let (prefix, message) = texts();
        bar.set_position(position);
        bar.set_prefix(prefix);
        bar.set_message(message);
        screen.drawn = Some(Instant::now());
    }
}

/// Takes the bar away.
pub(super) fn end_bar() {
    if let Some(bar) = screen().bar.take() {
        bar.finish_and_clear();
    }
}

/// The process id of the mpirun or mpiexec that this process descends from.
fn launcher() -> Option<u32> {
    const NAMES: [&str; 4] = ["mpirun", "mpiexec", "orterun", "prterun"];
    let mut pid = std::process::id();
    while pid > 1 {
        let process = host::process(&pid.to_string())?;
        if NAMES.iter().any(|known| process.name.starts_with(known)) {
            return Some(pid);
        }
        pid = process.parent;
    }
    None
}

/// A process's stream, if it is a terminal that can be shown a bar.
fn terminal_of(pid: u32, stream: OutputStream) -> Option<File> {
    if std::env::var_os("TERM").is_some_and(|term| term == "dumb") {
        return None;
    }
    let number = match stream {
        OutputStream::Stdout => 1,
        OutputStream::Stderr => 2,
    };
    // O_NOCTTY: looking at a terminal must not make it this process's controlling one; O_NONBLOCK: nor may
    // opening what turns out to be a pipe wait for its other end.
    let flags = libc::O_NOCTTY | libc::O_NONBLOCK;
    let file =
        OpenOptions::new().read(true).custom_flags(flags).open(format!("/proc/{pid}/fd/{number}")).ok()?;
    file.is_terminal().then_some(file)
}

/// What indicatif draws on: a terminal that may be the launcher's. A drawing is sent in one piece, since a
/// launcher mixes the pieces of several ranks.
#[derive(Debug)]
struct Canvas {
    stream: OutputStream,
    terminal: File,
    drawing: Mutex<String>,
}

impl Canvas {
    fn drawing(&self) -> MutexGuard<'_, String> {
        self.drawing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, text: &str) -> io::Result<()> {
        self.drawing().push_str(text);
        Ok(())
    }

    /// A cursor movement; none for zero, which terminals read as one.
    fn cursor(&self, n: usize, direction: char) -> io::Result<()> {
        if n == 0 { Ok(()) } else { self.send(&format!("\x1b[{n}{direction}")) }
    }
}

impl TermLike for Canvas {
    fn width(&self) -> u16 {
        terminal_size::terminal_size_of(self.terminal.as_fd()).map_or(80, |(width, _)| width.0)
    }

    fn move_cursor_up(&self, n: usize) -> io::Result<()> {
        self.cursor(n, 'A')
    }

    fn move_cursor_down(&self, n: usize) -> io::Result<()> {
        self.cursor(n, 'B')
    }

    fn move_cursor_right(&self, n: usize) -> io::Result<()> {
        self.cursor(n, 'C')
    }

    fn move_cursor_left(&self, n: usize) -> io::Result<()> {
        self.cursor(n, 'D')
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        self.send(&format!("{text}\n"))
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        self.send(text)
    }

    fn clear_line(&self) -> io::Result<()> {
        self.send("\r\x1b[2K")
    }

    fn flush(&self) -> io::Result<()> {
        let drawing = std::mem::take(&mut *self.drawing());
        self.stream.write(drawing.as_bytes());
        Ok(())
    }
}
