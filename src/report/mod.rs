//! `dltrain report`: results files as one page of HTML, and as charts.
//!
//! It reads what `record` has written and needs neither ranks nor MPI. May use: `record`, `error`, `files`. Used by:
//! `main`, `cli`.

mod axis;
mod chart;
mod compare;
mod fields;
mod figures;
mod page;
mod predicted;
mod run;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use self::figures::{Figure, MOST};
use self::page::Section;
use self::predicted::PredictedRuns;
use self::run::Run;
use crate::error::{Error, ErrorKind, OrError, Result};
use crate::files;
use crate::record::{self, PredictedFields};

/// Make a page of HTML of one or several runs' results: curves, speed, memory, overlap, scaling, sweeps.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Results files, or directories of such; files that predict wrote with targets.
    #[arg(required_unless_present = "predicted", value_name = "RUN.h5")]
    runs: Vec<PathBuf>,
    /// The page. One that is there is replaced if it is such a report, else nothing is written.
    #[arg(short, long, default_value = "report.html", value_name = "FILE")]
    output: PathBuf,
    /// New directory for the charts, each as SVG.
    #[arg(long, value_name = "DIR")]
    plots: Option<PathBuf>,
    /// What --predict-nodes wrote by --save-prediction, to be drawn beside the runs or alone; as often as wanted.
    #[arg(long, value_name = "FILE")]
    predicted: Vec<PathBuf>,
}

/// Writes the report. A file that cannot be used is named and left out; the others go on.
///
/// # Errors
/// `Output` where something is in the way, before anything is written; `Data` where a file could not be used, after the
/// report of the others.
pub fn run(args: &Args) -> Result<()> {
    check_places(args)?;
    let (mut runs, fields, mut left_out) = opened(&args.runs)?;
    compare::label(&mut runs);
    let predicted =
        args.predicted.iter().map(|path| PredictedRuns::read(path)).collect::<Result<Vec<_>>>()?;
    if runs.is_empty() && fields.is_empty() && predicted.is_empty() {
        return Err(Error::new(ErrorKind::Data, left_out.join("\n")));
    }
    let mut sections = sections(&runs, &predicted)?;
    for (name, file) in &fields {
        match fields::section(name, file) {
            Ok(section) => sections.push(section),
            Err(error) => left_out.push(error.message),
        }
    }
    let html = page::page(&runs, &sections, &left_out, &record::date(SystemTime::now()));
    put(&args.output, &html)?;
    record::print(&format!("report: {}", args.output.display()));
    if let Some(directory) = &args.plots {
        let figures: Vec<&Figure> = sections.iter().flat_map(|section| &section.figures).collect();
        figures.iter().try_for_each(|figure| write_plot(directory, figure))?;
        record::print(&format!("plots: {} charts in {}", figures.len(), directory.display()));
    }
    match left_out.is_empty() {
        true => Ok(()),
        false => Err(Error::new(ErrorKind::Data, left_out.join("\n"))),
    }
}

/// That nothing else is replaced.
fn check_places(args: &Args) -> Result<()> {
    if let Ok(there) = files::read(&args.output)
        && !there.starts_with(page::MARK.as_bytes())
    {
        return Err(Error::output(
            &args.output,
            "is there already and is no report; choose another --output",
        ));
    }
    let Some(directory) = &args.plots else { return Ok(()) };
    fs::create_dir_all(directory).or_output(directory, "--plots")?;
    match fs::read_dir(directory).map(|mut entries| entries.next().is_some()) {
        Ok(false) => Ok(()),
        Ok(true) => Err(Error::output(directory, "is not empty; choose a new directory for --plots")),
        Err(error) => Err(Error::output(directory, format!("--plots: {error}"))),
    }
}

/// The runs, what was predicted, and what is said of files that are neither.
#[allow(clippy::type_complexity, reason = "what was opened, once")]
fn opened(given: &[PathBuf]) -> Result<(Vec<Run>, Vec<(String, PredictedFields)>, Vec<String>)> {
    let (mut runs, mut fields, mut left_out) = (Vec::new(), Vec::new(), Vec::new());
    for path in given {
        if path.is_dir() {
            // Of what a directory holds besides runs nothing need be said.
            let found: Vec<Run> = results_in(path)?.iter().filter_map(|file| Run::open(file).ok()).collect();
            if found.is_empty() {
                left_out.push(format!("{}: holds no results file of a run", path.display()));
            }
            runs.extend(found);
            continue;
        }
        match PredictedFields::open(path) {
            Ok(Some(file)) => {
                let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
                // Charts are called by it.
                let is_known = |name: &String| fields.iter().any(|(other, _)| other == name);
                let numbered = (2..).map(|number| format!("{stem}-{number}"));
                let name = std::iter::once(stem.clone()).chain(numbered).find(|name| !is_known(name));
                fields.push((name.unwrap_or(stem), file));
                continue;
            }
            Ok(None) => {}
            Err(error) => {
                left_out.push(error.message);
                continue;
            }
        }
        match Run::open(path) {
            Ok(run) if run.step.is_empty() => left_out.push(format!("{}: has no steps yet", path.display())),
            Ok(run) => runs.push(run),
            Err(error) => left_out.push(error.message),
        }
    }
    runs.retain(|run| !run.step.is_empty());
    Ok((runs, fields, left_out))
}

fn results_in(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory).or_data(directory)?;
    let files = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut files: Vec<PathBuf> = files.filter(|file| file.extension().is_some_and(|e| e == "h5")).collect();
    files.sort();
    Ok(files)
}

fn sections(runs: &[Run], predicted: &[PredictedRuns]) -> Result<Vec<Section>> {
    let all: Vec<&Run> = runs.iter().collect();
    let mut steps = Vec::new();
    for run in runs {
        if steps.len() < MOST {
            steps.extend(figures::step(run)?);
        }
    }
    let speed = [figures::time(&all)?, figures::memory(&all)?, figures::throughput(&all)?];
    let learning = match runs.len() > MOST {
        true => format!("Learning (the first {MOST} runs)"),
        false => "Learning".into(),
    };
    let mut learned = figures::learning(&all)?;
    learned.extend(figures::staleness(&all)?);
    let section =
        |title: &str, figures: Vec<Figure>| Section { title: title.into(), text: String::new(), figures };
    let mut scaling = compare::scaling(runs, predicted)?;
    scaling.extend(predicted::strong(predicted)?);
    Ok(vec![
        section("Scaling", scaling),
        section("Strategies", compare::strategies(runs)?),
        section("Minibatch sweep", compare::sweeps(runs)?),
        section(&learning, learned),
        section("Speed and memory", speed.into_iter().flatten().collect()),
        section("Overlap", steps),
    ])
}

fn write_plot(directory: &Path, figure: &Figure) -> Result<()> {
    let path = directory.join(format!("{}.svg", figure.name));
    put(&path, &figure.svg)
}

fn put(path: &Path, text: &str) -> Result<()> {
    files::write_whole(path, "the report", |new| fs::write(new, text).or_output(path, "cannot be written"))
}
