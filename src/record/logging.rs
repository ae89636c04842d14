//! Log messages: `[rank] level: message` on standard error, whole lines around the progress bar.

use std::io::{self, Write};

use env_logger::{Builder, Target};
use log::{Level, LevelFilter};

use super::terminal;
use crate::config::environment;

/// How much a run says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verbosity {
    /// Warnings and errors.
    Quiet,
    /// What happens, and warnings.
    Normal,
    /// Also what is done when.
    Verbose,
}

/// Starts logging for this process; a second call changes nothing.
///
/// Without being told otherwise rank 0 says what it does (info; nothing where quiet, debug where verbose) and the other
/// ranks only what is wrong (warn). `DLTRAIN_LOG`, or `RUST_LOG` where that is not set, replaces this on every rank: a
/// level (error, warn, info, debug, trace, off) or env_logger's `module=level,…`.
pub fn start_logging(rank: usize, verbosity: Verbosity) {
    let default = match verbosity {
        Verbosity::Normal if rank == 0 => "info",
        Verbosity::Verbose if rank == 0 => "info,dltrain=debug",
        _ => "warn",
    };
    terminal::set_quiet(verbosity == Verbosity::Quiet);
    let of_others = || std::env::var("RUST_LOG").ok().filter(|text| !text.is_empty());
    let given = environment::LOG.text().map(|text| (environment::LOG.name, text));
    let given = given.or_else(|| of_others().map(|text| ("RUST_LOG", text)));
    let filter = given.as_ref().map(|(_, text)| text).filter(|text| names_levels(text));
    terminal::expect_foreign_bar(rank != 0);
    let started = Builder::new()
        .parse_filters(filter.map_or(default, String::as_str))
        .format(move |out, record| {
            let level = record.level().as_str().to_ascii_lowercase();
            match record.level() {
                Level::Debug | Level::Trace => {
                    writeln!(out, "[{rank}] {level} {}: {}", record.target(), record.args())
                }
                _ => writeln!(out, "[{rank}] {level}: {}", record.args()),
            }
        })
        .target(Target::Pipe(Box::new(Lines)))
        .try_init();
    // The only error is that logging has been started before.
    drop(started);
    if let (Some((name, text)), None, 0) = (&given, filter, rank) {
        log::warn!(
            "{name}={text} is not used: it wants error, warn, info, debug, trace or off, or dltrain=debug"
        );
    }
    for name in environment::unknown().iter().filter(|_| rank == 0) {
        log::warn!(
            "{name} is no switch of dltrain and changes nothing; dltrain info --verbose lists those there are"
        );
    }
}

/// Whether each part of a filter ends in a level or names a module of ours: any other word would silence everything.
fn names_levels(filter: &str) -> bool {
    let level =
        |part: &str| part.rsplit('=').next().is_some_and(|end| end.trim().parse::<LevelFilter>().is_ok());
    let parts = filter.split('/').next().unwrap_or(filter).split(',');
    parts.map(str::trim).all(|part| part.starts_with("dltrain") || level(part))
}

/// Passes each message, which env_logger writes whole, to the terminal.
struct Lines;

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        terminal::complain(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
