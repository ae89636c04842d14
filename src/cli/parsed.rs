//! From what was typed to flags, with the file of `--config` where there is one.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Arg, Command, CommandFactory, FromArgMatches, value_parser};

use super::{Cli, file};
use dltrain::error::{Error, Result};
use dltrain::record::Volume;

/// A command line, whole or still to be completed by the file of --config.
pub enum Parsed {
    Whole(Box<Cli>),
    WithFile { args: Vec<OsString>, path: PathBuf },
}

/// The definition of all flags.
pub fn command() -> Command {
    // So that --lr -1 is a rate that cannot be, and not a flag that nobody knows.
    Cli::command().mut_args(|arg| match arg.get_action().takes_values() {
        true => arg.allow_negative_numbers(true),
        false => arg,
    })
}

/// # Errors
/// clap's, among which are --help and --version.
pub fn parse(args: Vec<OsString>) -> std::result::Result<Parsed, clap::Error> {
    let args = with_flag(args);
    match file::given(&args) {
        None => Ok(Parsed::Whole(Box::new(whole(&args)?))),
        Some(path) => match definition(&args).try_get_matches_from(&args) {
            Err(error) if !error.use_stderr() => Err(error),
            // What is missing may be in the file.
            _ => Ok(Parsed::WithFile { args, path }),
        },
    }
}

/// `dltrain evaluate …` is `dltrain --evaluate …`, and predict likewise: what users look for, and what run files can
/// say.
fn with_flag(mut args: Vec<OsString>) -> Vec<OsString> {
    if let Some(word) = args.get_mut(1) {
        for (name, flag) in [("evaluate", "--evaluate"), ("predict", PREDICT)] {
            if word == name {
                *word = flag.into();
            }
        }
    }
    args
}

const PREDICT: &str = "--predict";
/// The images of `dltrain predict`, in place of --data. Elsewhere a word without a flag is the name of a command.
const IMAGES: &str = "images";

/// The definition of what may stand on a command line.
fn definition(args: &[OsString]) -> Command {
    let images = || Arg::new(IMAGES).value_name("DATA").value_parser(value_parser!(PathBuf));
    match args.iter().any(|arg| arg == PREDICT) {
        true => command().arg(images()),
        false => command(),
    }
}

fn whole(args: &[OsString]) -> std::result::Result<Cli, clap::Error> {
    let matches = definition(args).try_get_matches_from(args)?;
    let mut cli = Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command()))?;
    cli.train.given = file::given_flags(&command(), &matches);
    cli.train.run_file = file::render(&command(), &matches);
    if let Ok(Some(images)) = matches.try_get_one::<PathBuf>(IMAGES) {
        cli.train.take_images(images.clone());
    }
    Ok(cli)
}

/// What a process was asked for.
pub enum Asked {
    /// Help or version: the text.
    Shown(String),
    Run(Box<Cli>),
}

impl Asked {
    /// What the others of the job must have been asked for, too.
    pub fn name(&self) -> String {
        match self {
            Asked::Shown(_) => "dltrain --help or --version".into(),
            Asked::Run(cli) => match &cli.command {
                Some(command) => format!("dltrain {}", command.name()),
                None => "a training".into(),
            },
        }
    }

    pub fn volume(&self) -> Volume {
        match self {
            Asked::Shown(_) => Volume::Normal,
            Asked::Run(cli) => cli.train.volume(),
        }
    }
}

/// Reads the file of --config, if there is one.
///
/// # Errors
/// `Usage` with what is wrong on the command line, or in the file, there line by line; `Data` where it cannot be read.
pub fn complete(parsed: std::result::Result<Parsed, clap::Error>) -> Result<Asked> {
    let (args, path) = match parsed {
        Err(shown) if !shown.use_stderr() => return Ok(Asked::Shown(shown.render().to_string())),
        Err(wrong) => {
            return Err(Error::usage(format!("{}; dltrain --help lists all flags", file::plain(&wrong))));
        }
        Ok(Parsed::Whole(cli)) => return Ok(Asked::Run(cli)),
        Ok(Parsed::WithFile { args, path }) => (args, path),
    };
    let (merged, origins) = file::merge(&command(), &path, &args)?;
    let cli = whole(&merged).map_err(|error| Error::usage(file::plain(&error)));
    let mut cli = cli.map_err(|error| file::located(error, &origins))?;
    cli.train.origins = origins;
    Ok(Asked::Run(Box::new(cli)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evaluate_is_a_word_for_its_flag() {
        let parsed = |line: &str| match parse(line.split(' ').map(OsString::from).collect()) {
            Ok(Parsed::Whole(cli)) => cli.train.run_file,
            _ => panic!("{line}"),
        };
        let flags = "--model mnist_small --init-from w.h5 --data digits --batch 7";
        let said = parsed(&format!("dltrain evaluate {flags}"));
        assert_eq!(said, parsed(&format!("dltrain {flags} --evaluate")));
        assert!(said.contains("evaluate = true") && said.contains("batch = 7"), "{said}");
    }

    #[test]
    fn the_definition_is_sound() {
        super::command().debug_assert();
    }
}
