//! Shell completions and manual pages, from the definition of the flags.

use std::path::Path;

use clap::ValueEnum;
use clap_complete::aot::Shell as Known;

use super::parsed::command;
use dltrain::error::{Error, OrError, Result};
use dltrain::record;

#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// Prints the completions of a shell.
pub fn completions(shell: Shell) {
    let shell = match shell {
        Shell::Bash => Known::Bash,
        Shell::Zsh => Known::Zsh,
        Shell::Fish => Known::Fish,
    };
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command(), "dltrain", &mut text);
    print(&text);
}

/// That no file but an earlier version's pages is replaced: each names the program in its title.
fn check_pages(directory: &Path) -> Result<()> {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_ours = || std::fs::read_to_string(entry.path()).is_ok_and(|page| page.contains(".TH dltrain"));
        if name.starts_with("dltrain") && name.ends_with(".1") && !is_ours() {
            let what = "is there already and is no page of dltrain's; choose another directory";
            return Err(Error::output(&entry.path(), what));
        }
    }
    Ok(())
}

/// Prints the manual page, or writes those of all subcommands to a directory.
///
/// # Errors
/// `Output` where the pages cannot be written, or would replace what is none.
pub fn man(directory: Option<&Path>) -> Result<()> {
    if let Some(directory) = directory {
        check_pages(directory)?;
        let written =
            std::fs::create_dir_all(directory).and_then(|()| clap_mangen::generate_to(command(), directory));
        return written.or_output(directory, "cannot write the pages");
    }
    let mut text = Vec::new();
    let rendered = clap_mangen::Man::new(command()).render(&mut text);
    rendered.map_err(|error| Error::internal(format!("the manual page: {error}")))?;
    print(&text);
    Ok(())
}

fn print(text: &[u8]) {
    record::print(String::from_utf8_lossy(text).trim_end());
}
