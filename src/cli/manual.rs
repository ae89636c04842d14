//! Shell completions and manual pages, from the definition of the flags.

use std::io::Write;
use std::path::Path;

use clap::ValueEnum;
use clap_complete::aot::Shell as Known;

use super::parsed::command;
use dltrain::error::{Error, Result};

#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// Prints the completions of a shell.
///
/// # Errors
/// `Output` when they cannot be printed.
pub fn completions(shell: Shell) -> Result<()> {
    let shell = match shell {
        Shell::Bash => Known::Bash,
        Shell::Zsh => Known::Zsh,
        Shell::Fish => Known::Fish,
    };
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command(), "dltrain", &mut text);
    print(&text)
}

/// Prints the manual page, or writes those of all subcommands to a directory.
///
/// # Errors
/// `Output` where that cannot be done.
pub fn man(directory: Option<&Path>) -> Result<()> {
    if let Some(directory) = directory {
        let written =
            std::fs::create_dir_all(directory).and_then(|()| clap_mangen::generate_to(command(), directory));
        return written.map_err(|error| Error::output(directory, format!("cannot write the pages: {error}")));
    }
    let mut text = Vec::new();
    let rendered = clap_mangen::Man::new(command()).render(&mut text);
    rendered.map_err(|error| Error::internal(format!("the manual page: {error}")))?;
    print(&text)
}

/// A reader that has seen enough (`| head`) is no failure.
fn print(text: &[u8]) -> Result<()> {
    match std::io::stdout().lock().write_all(text) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Error::output(Path::new("standard output"), error))
        }
        _ => Ok(()),
    }
}
