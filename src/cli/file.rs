//! The run file: `--config run.toml` has a key for every flag, of the flag's long name. What the file says is put
//! before the command line as if it had been typed there, so that there is one list of flags and one validation; what
//! is wrong with the file is said all at once. A results file holds the run file of its run (`render`), and serves in
//! its place.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

use clap::error::{ContextKind, ContextValue, ErrorKind as ClapErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use toml::de::{DeTable, DeValue};

use super::wording::plain;
use dltrain::config::values::lists;
use dltrain::error::{Error, ErrorKind, Result};
use dltrain::{files, record};

/// Flags that come from a file, each with its place there.
pub type Origins = Vec<(String, String)>;

/// Where a run leaves something of its own: a repeated run has to be given new places, or leaves nothing there.
pub const PLACES: &str = "results timeline timeline-steps save-weights checkpoint resume tensorboard \
     tensorboard-histograms mllog mllog-key";
/// Bytes of a run file at most.
const LONGEST: u64 = 1 << 20;
/// These make no sense in a file.
const NOT_KEYS: [&str; 3] = ["config", "help", "version"];

/// The file of `--config` on a command line that trains, if there is one.
pub fn given(args: &[OsString]) -> Option<PathBuf> {
    let text = |at: usize| args.get(at).and_then(|arg: &OsString| arg.to_str());
    // Anything that does not begin so is the name of a subcommand, which has flags of its own.
    if !text(1)?.starts_with('-') {
        return None;
    }
    (1..args.len()).rev().find_map(|at| match text(at)? {
        "--config" => args.get(at + 1).map(PathBuf::from),
        arg => arg.strip_prefix("--config=").map(PathBuf::from),
    })
}

/// The command line with what the file says before it, where that is not said again; and where in the file each flag of
/// it stands.
///
/// # Errors
/// `Usage` with everything that is wrong in the file, by line; `Data` where it cannot be read.
pub fn merge(command: &Command, path: &Path, args: &[OsString]) -> Result<(Vec<OsString>, Origins)> {
    let is_record = record::is_hdf5(path);
    let text = if is_record { record::run_file(path)? } else { read(path)? };
    let entries = parse(command, &text)
        .map_err(|wrong| Error::new(ErrorKind::Usage, listed(path, is_record, &wrong)))?;
    let mut merged = vec![args.first().cloned().unwrap_or_default()];
    let mut origins = Origins::new();
    let names: Vec<&str> = args.iter().filter_map(|arg| name(arg)).collect();
    for entry in entries {
        if names.contains(&entry.name.as_str()) || (is_record && lists(PLACES, &entry.name)) {
            continue;
        }
        origins.push((entry.name, format!("{}:{}", path.display(), entry.line)));
        merged.extend(entry.args.into_iter().map(OsString::from));
    }
    // A switch of the file is put off on the command line so; to clap it is as if it had not been there.
    let put_off = |arg: &&OsString| {
        let switch = arg.to_str().and_then(|arg| arg.strip_prefix("--")?.strip_suffix("=false"));
        !switch.is_some_and(|switch| find(command, switch).is_some_and(is_switch))
    };
    merged.extend(args.iter().skip(1).filter(put_off).cloned());
    Ok((merged, origins))
}

/// An error about flags, with the places of those that stand in a file.
pub fn located(error: Error, origins: &[(String, String)]) -> Error {
    let named = |flag: &str| {
        let ends = |rest: &str| !rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '-');
        error.message.match_indices(flag).any(|(at, _)| ends(&error.message[at + flag.len()..]))
    };
    let places: Vec<String> = origins
        .iter()
        .filter(|(name, _)| named(&format!("--{name}")))
        .map(|(name, place)| format!("--{name} is from {place}"))
        .collect();
    match places.is_empty() {
        true => error,
        false => Error { message: format!("{} ({})", error.message, places.join(", ")), ..error },
    }
}

/// The long names of the flags that a command line gives.
pub fn given_flags(command: &Command, matches: &ArgMatches) -> Vec<String> {
    let is_given = |arg: &&Arg| matches.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
    let keys = command.get_arguments().filter(|arg| key(arg).is_some());
    keys.filter(is_given).filter_map(|arg| key(arg).map(String::from)).collect()
}

/// A parsed command line as a run file: every flag that has a value, defaults included.
pub fn render(command: &Command, matches: &ArgMatches) -> String {
    let mut text = String::new();
    for arg in command.get_arguments() {
        let id = arg.get_id().as_str();
        let Some(name) = key(arg) else { continue };
        if is_switch(arg) {
            if matches.get_flag(id) {
                text += &format!("{name} = true\n");
            }
            continue;
        }
        let Some(values) = matches.get_raw(id) else { continue };
        let values: Vec<String> = values.map(|value| literal(arg, value)).collect();
        text += &match takes_several(arg) {
            true => format!("{name} = [{}]\n", values.join(", ")),
            false => format!("{name} = {}\n", values.join("")),
        };
    }
    text
}

/// One key of the file, as it would be typed.
#[derive(Debug)]
struct FileEntry {
    name: String,
    line: usize,
    args: Vec<String>,
}

fn read(path: &Path) -> Result<String> {
    // What a file says are flags; a file that is not there is missing data.
    let kind = |error: &io::Error| match error.kind() {
        io::ErrorKind::FileTooLarge => ErrorKind::Usage,
        _ => ErrorKind::Data,
    };
    let what = |error: &io::Error| match error.kind() {
        io::ErrorKind::InvalidData => "is no text in UTF-8; editors of Windows also write UTF-16".to_string(),
        _ => error.to_string(),
    };
    let wrong =
        |error| Error { kind: kind(&error), ..Error::data(path, format!("--config: {}", what(&error))) };
    files::read_text(path, LONGEST).map_err(wrong)
}

/// (line, what is wrong there), all of it.
type Mistakes = Vec<(usize, String)>;

fn parse(command: &Command, text: &str) -> std::result::Result<Vec<FileEntry>, Mistakes> {
    let line = |at: usize| 1 + text[..at.min(text.len())].matches('\n').count();
    let table = DeTable::parse(text).map_err(|error| {
        let place = line(error.span().map_or(0, |span| span.start));
        vec![(place, format!("{}; a line of it is as batch = 64 or model = \"resnet50\"", error.message()))]
    })?;
    let (keys, flags) = (table.get_ref().len(), command.get_arguments().count());
    if keys > flags {
        return Err(vec![(1, format!("the file has {keys} keys, and there are only {flags} flags"))]);
    }
    let (mut entries, mut wrong) = (Vec::new(), Vec::new());
    for (key, value) in table.into_inner() {
        let at = line(key.span().start);
        match entry(command, key.get_ref(), value.get_ref()) {
            Ok(args) => entries.push(FileEntry { name: key.into_inner().into_owned(), line: at, args }),
            Err(what) => wrong.push((at, what)),
        }
    }
    wrong.sort();
    if wrong.is_empty() { Ok(entries) } else { Err(wrong) }
}

fn listed(path: &Path, record: bool, wrong: &Mistakes) -> String {
    let place = if record { format!("{}: run file", path.display()) } else { path.display().to_string() };
    let lines: Vec<String> = wrong.iter().map(|(line, what)| format!("{place}:{line}: {what}")).collect();
    lines.join("\n")
}

/// What would be typed for a key and its value; nothing for a switch that is off.
fn entry(command: &Command, key: &str, value: &DeValue) -> std::result::Result<Vec<String>, String> {
    let arg = find(command, key).ok_or_else(|| unknown(command, key))?;
    if let DeValue::Table(_) = value {
        return Err(format!("{key}: keys stand in no groups here"));
    }
    let flag = format!("--{key}");
    let args = match value {
        DeValue::Boolean(set) if is_switch(arg) || takes_nothing(arg) => {
            return Ok(if *set { vec![flag] } else { Vec::new() });
        }
        DeValue::Array(values) if takes_several(arg) => {
            let values = values.iter().map(|value| text(arg, value.get_ref()));
            let values = values.collect::<Option<Vec<_>>>().ok_or_else(|| wants(key, arg))?;
            match arg.get_value_delimiter() {
                Some(comma) => vec![format!("{flag}={}", values.join(&comma.to_string()))],
                None if arg.get_num_args().is_none_or(|range| range.max_values() <= 1) => {
                    values.iter().map(|value| format!("{flag}={value}")).collect()
                }
                None => [vec![flag], values].concat(),
            }
        }
        value if !is_switch(arg) => match text(arg, value) {
            Some(text) => vec![format!("{flag}={text}")],
            None => return Err(wants(key, arg)),
        },
        _ => return Err(wants(key, arg)),
    };
    let typed = [vec!["dltrain".to_string()], args.clone()].concat();
    match command.clone().try_get_matches_from(typed) {
        Err(error)
            if !matches!(
                error.kind(),
                ClapErrorKind::MissingRequiredArgument | ClapErrorKind::ArgumentConflict
            ) =>
        {
            Err(plain(&error))
        }
        _ => Ok(args),
    }
}

/// A value of the file as it would be typed, if it is of the type that the flag wants.
fn text(arg: &Arg, value: &DeValue) -> Option<String> {
    let (kind, is_text) = (number(arg), is_text(arg));
    match value {
        DeValue::String(text) if kind.is_none() => Some(text.to_string()),
        DeValue::Integer(number) if !is_text && number.radix() == 10 => Some(number.as_str().to_string()),
        DeValue::Float(number) if !is_text && kind != Some(NumberKind::Whole) => {
            Some(number.as_str().to_string())
        }
        _ => None,
    }
}

fn wants(key: &str, arg: &Arg) -> String {
    let what = match number(arg) {
        _ if is_switch(arg) => "true or false",
        Some(NumberKind::Whole) => "a whole number",
        Some(NumberKind::Real) => "a number",
        None => "a text in quotation marks",
    };
    match (takes_several(arg), arg.get_num_args().filter(|range| range.min_values() > 1)) {
        (true, Some(range)) => {
            format!("{key} wants [{}], each {what}", vec!["…"; range.min_values()].join(", "))
        }
        (true, None) => format!("{key} wants {what}, or several in [ ]"),
        _ => format!("{key} wants {what}"),
    }
}

/// The nearest flag is clap's to find.
fn unknown(command: &Command, key: &str) -> String {
    let typed = ["dltrain".to_string(), format!("--{key}")];
    let suggestion = match command.clone().try_get_matches_from(typed) {
        Err(error) => match error.get(ContextKind::SuggestedArg) {
            Some(ContextValue::String(flag)) => Some(flag.trim_start_matches('-').to_string()),
            _ => None,
        },
        Ok(_) => None,
    };
    // clap compares letters: an underscore for a dash is the likelier slip.
    let dashed = key.replace('_', "-");
    let suggestion = if find(command, &dashed).is_some() { Some(dashed) } else { suggestion };
    match suggestion {
        Some(other) => format!("no flag has the name {key}; is it {other}?"),
        None => format!("no flag has the name {key}"),
    }
}

/// The long name of a typed flag.
fn name(arg: &OsString) -> Option<&str> {
    let long = arg.to_str()?.strip_prefix("--")?;
    Some(long.split_once('=').map_or(long, |(name, _)| name))
}

fn key(arg: &Arg) -> Option<&str> {
    arg.get_long().filter(|name| !NOT_KEYS.contains(name))
}

fn find<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    command.get_arguments().find(|arg| key(arg) == Some(name))
}

fn is_switch(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::SetTrue)
}

fn takes_nothing(arg: &Arg) -> bool {
    arg.get_num_args().is_some_and(|range| range.min_values() == 0)
}

fn takes_several(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Append)
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum NumberKind {
    Whole,
    Real,
}

fn number(arg: &Arg) -> Option<NumberKind> {
    use std::any::TypeId;
    let kind = arg.get_value_parser().type_id();
    let is = |ids: &[TypeId]| ids.iter().any(|id| kind == *id);
    if is(&[TypeId::of::<usize>(), TypeId::of::<u64>(), TypeId::of::<u32>()]) {
        Some(NumberKind::Whole)
    } else if is(&[TypeId::of::<f32>(), TypeId::of::<f64>()]) {
        Some(NumberKind::Real)
    } else {
        None
    }
}

/// Whether any text will do; other types (sizes, times, intervals) are checked by their parsers and may be plain
/// numbers.
fn is_text(arg: &Arg) -> bool {
    use std::any::TypeId;
    let kind = arg.get_value_parser().type_id();
    kind == TypeId::of::<String>() || kind == TypeId::of::<PathBuf>()
}

/// A value as TOML has it. Numbers keep their digits, as far as TOML reads them as typed.
fn literal(arg: &Arg, value: &OsStr) -> String {
    let value = value.to_string_lossy();
    let is_number = |text: &str| {
        DeTable::parse(&format!("x = {text}")).is_ok_and(|table| {
            table
                .get_ref()
                .iter()
                .all(|(_, value)| matches!(value.get_ref(), DeValue::Integer(_) | DeValue::Float(_)))
        })
    };
    match (number(arg), value.parse::<f64>()) {
        (Some(_), Ok(_)) if is_number(&value) => value.into_owned(),
        (Some(_), Ok(number)) => format!("{number:?}"),
        _ => quoted(&value),
    }
}

fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => out += &format!("\\u{:04X}", c as u32),
            c => out.push(c),
        }
    }
    out + "\""
}
