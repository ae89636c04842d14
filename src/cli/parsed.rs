//! From what was typed to flags, with the file of `--config` where there is one.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{Arg, Command, CommandFactory, FromArgMatches, value_parser};

use super::{Cli, evaluation, file, wording};
use dltrain::error::{Error, Result};
use dltrain::record::Verbosity;

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
        for (name, flag) in [("evaluate", EVALUATE), ("predict", PREDICT)] {
            if word == name {
                *word = flag.into();
            }
        }
    }
    args
}

const EVALUATE: &str = "--evaluate";
const PREDICT: &str = "--predict";
/// The images of `dltrain predict`, in place of --data. Elsewhere a word without a flag is the name of a command.
const IMAGES: &str = "images";

/// The definition of what may stand on a command line.
fn definition(args: &[OsString]) -> Command {
    let images = || {
        let help = "An image, a directory of images, or a data set: of that the part to test with";
        Arg::new(IMAGES).value_name("DATA").value_parser(value_parser!(PathBuf)).help(help)
    };
    let has = |flag: &str| args.iter().any(|arg| arg == flag);
    match (has(PREDICT), has(EVALUATE)) {
        (true, _) => evaluation::command(command().arg(images()), true),
        (_, true) => evaluation::command(command(), false),
        _ => command(),
    }
}

fn whole(args: &[OsString]) -> std::result::Result<Cli, clap::Error> {
    let definition = definition(args);
    let matches = definition.clone().try_get_matches_from(args)?;
    if let Some(what) = wording::foreign_place(&definition, &matches) {
        return Err(command().error(ErrorKind::ValueValidation, what));
    }
    let mut cli = Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command()))?;
    cli.train.given = file::given_flags(&command(), &matches);
    cli.train.run_file = file::render(&command(), &matches);
    if let Ok(Some(images)) = matches.try_get_one::<PathBuf>(IMAGES) {
        cli.train.take_images(images.clone());
    }
    Ok(cli)
}

/// What a process was asked for.
pub enum Invocation {
    /// Help or version: the text.
    Shown(String),
    Run(Box<Cli>),
}

impl Invocation {
    /// What the others of the job must have been asked for, too.
    pub fn name(&self) -> String {
        match self {
            Invocation::Shown(_) => "dltrain --help or --version".into(),
            Invocation::Run(cli) => match &cli.command {
                Some(command) => format!("dltrain {}", command.name()),
                None => "a training".into(),
            },
        }
    }

    pub fn verbosity(&self) -> Verbosity {
        match self {
            Invocation::Shown(_) => Verbosity::Normal,
            Invocation::Run(cli) => cli.train.verbosity(),
        }
    }
}

/// Reads the file of --config, if there is one.
///
/// # Errors
/// `Usage` with what is wrong on the command line, or in the file, there line by line; `Data` where it cannot be read.
pub fn complete(parsed: std::result::Result<Parsed, clap::Error>) -> Result<Invocation> {
    let (args, path) = match parsed {
        Err(shown) if !shown.use_stderr() => return Ok(Invocation::Shown(shown.render().to_string())),
        Err(wrong) => {
            return Err(refused(&wrong));
        }
        Ok(Parsed::Whole(cli)) => return Ok(Invocation::Run(cli)),
        Ok(Parsed::WithFile { args, path }) => (args, path),
    };
    let (merged, origins) = file::merge(&command(), &path, &args)?;
    let cli = whole(&merged).map_err(|error| Error::usage(wording::plain(&error)));
    let mut cli = cli.map_err(|error| file::located(error, &origins))?;
    cli.train.origins = origins;
    Ok(Invocation::Run(Box::new(cli)))
}

/// A command line that clap does not take, in one sentence and with the help that is about it.
pub fn refused(wrong: &clap::Error) -> Error {
    let typed = std::env::args_os().nth(1).unwrap_or_default().to_string_lossy().into_owned();
    let knows = command().find_subcommand(&typed).is_some();
    let help = if knows { format!("dltrain {typed} --help") } else { "dltrain --help".into() };
    let wrong = wording::plain(wrong);
    let end = if wrong.ends_with('?') { " " } else { "; " };
    Error::usage(format!("{wrong}{end}{help} says what there is"))
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

    /// Each in one sentence, of which the rest names the help.
    #[test]
    fn what_is_not_taken_is_said_in_one_sentence() {
        let said = |line: &str| match parse(line.split(' ').map(OsString::from).collect()) {
            Err(wrong) => wording::plain(&wrong),
            Ok(_) => panic!("{line}"),
        };
        for (line, expected) in [
            ("dltrain --modle resnet50", "no flag has the name --modle; is it --model?"),
            ("dltrain --zzz", "no flag has the name --zzz"),
            ("dltrain repot x.h5", "no command has the name repot; is it report?"),
            ("dltrain report", "<RUN.h5>... is missing"),
            ("dltrain export", "<FROM> and <TO> are missing"),
            ("dltrain bench", "it needs to be said which one"),
            ("dltrain --lr", "--lr <RATE> lacks its value"),
            ("dltrain --lr 0,1", "--lr 0,1: not a number"),
            ("dltrain --batch 3.5", "--batch 3.5: not a whole number from 0 on"),
            ("dltrain --threads=", "--threads <N> lacks its value"),
            (
                "dltrain --epochs 99999999999999999999",
                "--epochs 99999999999999999999: a number too far from 0",
            ),
            ("dltrain --precision int8", "--precision int8: none of auto, f32, tf32, bf16, f16"),
            ("dltrain man a b", "b is a word too many"),
            (
                "dltrain --data s3://bucket/x",
                "--data s3://bucket/x: files are read from this machine's file systems: fetch it first",
            ),
            ("dltrain export file:///a.h5 b.h5", "<FROM> file:///a.h5: write the path alone: /a.h5"),
            ("dltrain train --model resnet50", "it trains without a command: leave train out"),
            (
                "dltrain \u{2013}\u{2013}model x",
                "\u{2013}\u{2013}model begins with another dash than that of the keyboard: type --model",
            ),
        ] {
            assert_eq!(said(line), expected, "{line}");
        }
        for line in ["dltrain --results=~/a.h5", "dltrain report ~/a.h5", "dltrain predict ~/a.png"] {
            let said = said(line);
            assert!(said.contains("~/a.") && said.contains("at the beginning of a word"), "{said}");
        }
    }

    #[test]
    fn predict_and_evaluate_have_help_of_their_own() {
        let help = |line: &str| match parse(line.split(' ').map(OsString::from).collect()) {
            Err(shown) if !shown.use_stderr() => shown.render().to_string(),
            _ => panic!("{line}"),
        };
        let (predict, evaluate) = (help("dltrain predict --help"), help("dltrain evaluate --help"));
        for (text, own) in [(&predict, ["DATA", "--top"]), (&evaluate, ["--data", "--init-from"])] {
            assert!(own.iter().all(|name| text.contains(name)), "{text}");
            assert!(
                ["--optimizer", "--epochs", "--checkpoint", "autotune"].iter().all(|n| !text.contains(n)),
                "{text}"
            );
            assert!(text.lines().count() < 190, "{text}");
        }
        assert!(!evaluate.contains("--top"), "{evaluate}");
        assert!(help("dltrain --help").contains("--optimizer"));
    }

    #[test]
    fn the_definition_is_sound() {
        super::command().debug_assert();
    }
}
