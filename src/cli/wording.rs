//! What is wrong with a command line, in one sentence of our own: clap's words are for those who know clap.

use std::error::Error as _;
use std::num::{IntErrorKind, ParseFloatError, ParseIntError};
use std::path::Path;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgMatches, Command};

/// What clap has to say, in one sentence and without its "error:".
pub fn plain(error: &clap::Error) -> String {
    let [wrong, flag, value] =
        [ContextKind::InvalidSubcommand, ContextKind::InvalidArg, ContextKind::InvalidValue]
            .map(|kind| texts(error, kind));
    let nearest = texts(error, ContextKind::SuggestedArg)
        .or_else(|| texts(error, ContextKind::SuggestedValue))
        // The last one is the nearest.
        .or_else(|| texts(error, ContextKind::SuggestedSubcommand))
        .and_then(|mut names| names.pop());
    let nearest = nearest.map_or(String::new(), |nearest| format!("; is it {nearest}?"));
    let first = |texts: &Option<Vec<String>>| texts.as_ref().and_then(|texts| texts.first().cloned());
    match (error.kind(), first(&wrong), first(&flag)) {
        (ErrorKind::UnknownArgument, _, Some(flag)) if flag.starts_with('-') => {
            format!("no flag has the name {flag}{nearest}")
        }
        (ErrorKind::UnknownArgument, _, Some(word)) => format!("{word} is a word too many"),
        (ErrorKind::InvalidSubcommand, Some(word), _) => no_command(&word, &nearest),
        // A second word where one place is meant: clap takes it for a command.
        (ErrorKind::ArgumentConflict, Some(word), _) if super::command().find_subcommand(&word).is_none() => {
            format!(
                "{word} cannot be used with what stands before it: it is no command, and data are named by one word \
                 (of * a shell makes many)"
            )
        }
        (ErrorKind::MissingRequiredArgument, _, Some(name)) => {
            let names = flag.unwrap_or_default().join(" and ");
            format!("{names} {} missing", if names == name { "is" } else { "are" })
        }
        (ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand, ..) => "it needs to be said which one".into(),
        (ErrorKind::InvalidValue, _, Some(flag)) => {
            let all = texts(error, ContextKind::ValidValue).unwrap_or_default().join(", ");
            match first(&value).filter(|value| !value.is_empty()) {
                Some(value) => format!("{} {value}: none of {all}{nearest}", name_of(&flag)),
                None if all.is_empty() => format!("{flag} lacks its value"),
                None => format!("{flag} lacks its value, one of {all}"),
            }
        }
        (ErrorKind::ValueValidation, _, Some(flag)) => {
            match first(&value).filter(|value| !value.is_empty()) {
                Some(value) => format!("{} {value}: {}", name_of(&flag), reason(error)),
                None => format!("{flag} lacks its value"),
            }
        }
        _ => rendered(error),
    }
}

fn texts(error: &clap::Error, kind: ContextKind) -> Option<Vec<String>> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => Some(vec![text.clone()]),
        Some(ContextValue::Strings(texts)) if !texts.is_empty() => Some(texts.clone()),
        _ => None,
    }
}

/// Of "--batch <N>" the name.
fn name_of(flag: &str) -> &str {
    flag.split(' ').next().unwrap_or(flag)
}

/// Word processors and web pages make one long dash of two short ones.
fn no_command(word: &str, nearest: &str) -> String {
    let bare = word
        .trim_start_matches(['-', '\u{2010}', '\u{2011}', '\u{2012}', '\u{2013}', '\u{2014}', '\u{2212}']);
    match word {
        "train" => "it trains without a command: leave train out".into(),
        _ if bare != word => {
            format!("{word} begins with another dash than that of the keyboard: type --{bare}")
        }
        _ => format!("no command has the name {word}{nearest}"),
    }
}

/// Why a value is none; Rust's own words for numbers say nothing to others.
fn reason(error: &clap::Error) -> String {
    let Some(source) = error.source() else { return "not understood".into() };
    match source.downcast_ref::<ParseIntError>().map(ParseIntError::kind) {
        Some(IntErrorKind::PosOverflow | IntErrorKind::NegOverflow) => "a number too far from 0".into(),
        Some(_) => "not a whole number from 0 on".into(),
        None if source.is::<ParseFloatError>() => "not a number".into(),
        None => source.to_string(),
    }
}

fn rendered(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let body = text.split("\n\nUsage:").next().unwrap_or(text);
    let body = body.split("\n\nFor more").next().unwrap_or(body).replace("\n\n  tip:", "; tip:");
    body.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What is wrong with a value that is no place of this machine's file systems, and looks as one to its user: a home
/// directory that no shell has put in, an address of the network. Commands that others start are for a shell.
pub fn foreign_place(command: &Command, matches: &ArgMatches) -> Option<String> {
    if let Some((name, within)) = matches.subcommand() {
        let command = command.find_subcommand(name).filter(|_| name != "elastic")?;
        return foreign_place(command, within);
    }
    command.get_arguments().find_map(|arg| {
        let mut values = matches.get_raw(arg.get_id().as_str())?.filter_map(|value| value.to_str());
        let flag = arg.get_long().map_or_else(|| arg.to_string(), |name| format!("--{name}"));
        values.find_map(|value| foreign(value).map(|what| format!("{flag} {value}: {what}")))
    })
}

fn foreign(value: &str) -> Option<String> {
    if value == "~" || value.starts_with("~/") && !Path::new("~").exists() {
        let home =
            std::env::var("HOME").map_or("the whole path".into(), |home| value.replacen('~', &home, 1));
        return Some(format!(
            "a shell puts the home directory for ~ at the beginning of a word, without quotation marks or = before it; \
             write {home}"
        ));
    }
    let (scheme, rest) = value.split_once("://")?;
    let is_scheme = scheme.len() > 1 && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric());
    match scheme {
        "file" => Some(format!("write the path alone: {rest}")),
        _ if is_scheme => Some("files are read from this machine's file systems: fetch it first".into()),
        _ => None,
    }
}
