//! From what was typed to flags, with the file of `--config` where there is one.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{CommandFactory, FromArgMatches};

use super::{Cli, file};
use dltrain::error::{Error, Result};

/// A command line, whole or still to be completed by the file of --config.
pub enum Parsed {
    Whole(Box<Cli>),
    WithFile { args: Vec<OsString>, path: PathBuf },
}

/// # Errors
/// clap's, among which are --help and --version.
pub fn parse(args: Vec<OsString>) -> std::result::Result<Parsed, clap::Error> {
    match file::given(&args) {
        None => Ok(Parsed::Whole(Box::new(whole(&args)?))),
        Some(path) => match Cli::command().try_get_matches_from(&args) {
            Err(error) if !error.use_stderr() => Err(error),
            // What is missing may be in the file.
            _ => Ok(Parsed::WithFile { args, path }),
        },
    }
}

fn whole(args: &[OsString]) -> std::result::Result<Cli, clap::Error> {
    let matches = Cli::command().try_get_matches_from(args)?;
    let mut cli = Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut Cli::command()))?;
    cli.train.run_file = file::render(&Cli::command(), &matches);
    Ok(cli)
}

impl Parsed {
    /// Reads the file, if there is one.
    ///
    /// # Errors
    /// `Usage` with what is wrong in it, line by line, or `Data` where it cannot be read.
    pub fn complete(self) -> Result<Cli> {
        let (args, path) = match self {
            Parsed::Whole(cli) => return Ok(*cli),
            Parsed::WithFile { args, path } => (args, path),
        };
        let (merged, origins) = file::merge(&Cli::command(), &path, &args)?;
        let cli = whole(&merged).map_err(|error| Error::usage(file::plain(&error)));
        let mut cli = cli.map_err(|error| file::located(error, &origins))?;
        cli.train.origins = origins;
        Ok(cli)
    }
}
