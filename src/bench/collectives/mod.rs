//! `dltrain bench allreduce`, `reducescatter`, `allgather` and `broadcast`, in the manner of nccl-tests: time,
//! algorithm and bus bandwidth of each algorithm, beside the MPI library's own blocking call in the same run.
//!
//! One frame for all four: `subject` says what each is, `check` holds every answer to a serial one before anything is
//! timed, `time` times, `table` prints and `results` leaves a file.

mod check;
mod results;
mod subject;
mod table;
mod time;
mod yardstick;

use std::ops::Range;
use std::path::PathBuf;
use std::rc::Rc;

use clap::builder::PossibleValuesParser;

use self::check::{Checker, GUARD};
use self::results::ResultRow;
use self::subject::Contender;
use self::time::TimeSamples;
use super::limits;
use super::sizes::SizeRange;
use crate::comm::{Region, World};
use crate::config::Wire;
use crate::error::{Error, ErrorKind, Result};
use crate::graph::Role;
use crate::model;
use crate::record::{self, RankInfo};

pub use subject::Subject;
pub use time::sample;

#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Sizes in bytes of the whole buffer: a size, a range in steps of four, or a list of these
    #[arg(long, value_delimiter = ',', default_value = "4K..256M")]
    sizes: Vec<SizeRange>,
    /// Lengths in elements (4 bytes each), in place of --sizes
    #[arg(long, value_delimiter = ',', conflicts_with = "sizes")]
    lengths: Vec<usize>,
    /// The gradients of a model in the order of readiness, in place of --sizes: each by itself, all in flight at one
    /// time; in buckets of 25 MB; and as one range
    #[arg(long, conflicts_with_all = ["sizes", "lengths"], value_parser = PossibleValuesParser::new(model::names()))]
    model: Option<String>,
    /// Algorithms to run, by their names in the table [default: all that can run here]
    #[arg(long, value_delimiter = ',')]
    algorithm: Vec<String>,
    /// What numbers travel as between ranks
    #[arg(long, value_enum, default_value_t = Wire::F32)]
    wire: Wire,
    /// Timed samples [default: as many as take about half a second]
    #[arg(long, value_name = "N")]
    iterations: Option<usize>,
    /// Check the answers and measure nothing
    #[arg(long)]
    check_only: bool,
    /// Keep the table as HDF5 too: a file (.h5), or a directory in which it is named after bench and time
    #[arg(long, value_name = "PATH")]
    results: Option<PathBuf>,
}

impl Args {
    /// What is asked for: ranges that are in flight together, by their lengths in elements.
    fn cases(&self) -> Result<Vec<Vec<usize>>> {
        if self.iterations == Some(0) {
            return Err(Error::usage("--iterations 0 measures nothing; use at least 1, or --check-only"));
        }
        if let Some(model) = &self.model {
            let each = gradients(model)?;
            return Ok(vec![each.clone(), bucketed(&each), vec![each.iter().sum()]]);
        }
        if !self.lengths.is_empty() {
            return Ok(self.lengths.iter().map(|&length| vec![length]).collect());
        }
        let elements = |bytes: usize| match bytes % size_of::<f32>() {
            0 => Ok(vec![bytes / size_of::<f32>()]),
            _ => Err(Error::usage(format!("--sizes {bytes}: elements are f32, of 4 bytes each"))),
        };
        self.sizes.iter().flat_map(|sizes| &sizes.0).map(|&bytes| elements(bytes)).collect()
    }

    /// What all ranks must have been given alike.
    fn shared_items(&self, cases: &[Vec<usize>]) -> Vec<(String, String)> {
        let items = [
            ("sizes", format!("{cases:?} elements")),
            ("algorithm", format!("{:?}", self.algorithm)),
            ("wire", self.wire.to_string()),
            ("iterations", format!("{:?}", self.iterations)),
            ("check-only", self.check_only.to_string()),
        ];
        items.into_iter().map(|(flag, value)| (format!("--{flag}"), value)).collect()
    }
}

/// Measures one collective. Collective itself; rank 0 prints.
///
/// # Errors
/// Agreed by all ranks. `Usage` for what cannot run here, `Output` when the results file cannot be written, `Internal`
/// when an answer is wrong.
pub fn run(subject: Subject, args: &Args, world: &World) -> Result<()> {
    let cases = world.agree(args.cases())?;
    world.check_same(&args.shared_items(&cases))?;
    let place = RankInfo::from(world);
    let path = match &args.results {
        Some(path) => world.agree(record::results_path(place, Some(path), &format!("bench-{subject}")))?,
        None => None,
    };
    let longest = cases.iter().map(|case| case.iter().sum()).max().unwrap_or(0usize);
    let bytes = longest.checked_add(2 * GUARD).and_then(|n| n.checked_mul(size_of::<f32>()));
    let bytes = bytes.ok_or_else(|| Error::usage(format!("a length of {longest} is too large")));
    let region = Region::allocate(world, world.agree(bytes)?, true)?;
    let mut contenders = subject.contenders(args, world, &region)?;

    let limits = if args.check_only { None } else { Some(limits::measure(world)?) };
    table::print_header(subject, args, world, &region, limits.as_ref());
    let mut rows = Vec::new();
    for case in cases {
        rows.extend(measure(subject, args, world, &region, &case, &mut contenders)?);
    }
    let about = results::About { subject, args, world, region: &region, limits: limits.as_ref() };
    let written = path.map_or(Ok(()), |path| results::write(&path, &about, &rows));
    world.agree(written)?;
    match rows.iter().map(|row| row.wrong).sum::<u64>() {
        0 => Ok(()),
        wrong => {
            world.agree(Err(Error::new(ErrorKind::Internal, format!("{subject}: {wrong} wrong elements"))))
        }
    }
}

/// Elements of each gradient of a model, in the order in which the backward pass makes them.
fn gradients(model: &str) -> Result<Vec<usize>> {
    let model = model::find(model)?;
    let graph = model.build(2, model.image, model.classes)?;
    let mut lengths: Vec<usize> =
        graph.with_role(Role::Parameter).map(|(_, tensor)| tensor.spec.shape.elements()).collect();
    lengths.reverse();
    Ok(lengths)
}

/// Lengths added up in order; a bucket is closed once it has 25 MB.
fn bucketed(lengths: &[usize]) -> Vec<usize> {
    const BUCKET: usize = (25 << 20) / size_of::<f32>();
    let mut buckets = vec![0];
    for length in lengths {
        match buckets.last_mut() {
            Some(last) if *last < BUCKET => *last += length,
            _ => buckets.push(*length),
        }
    }
    buckets
}

/// The rows of ranges that are in flight together, one after the other in memory. An algorithm that gives wrong answers
/// is not timed.
fn measure(
    subject: Subject,
    args: &Args,
    world: &World,
    region: &Rc<Region>,
    case: &[usize],
    contenders: &mut [Contender],
) -> Result<Vec<ResultRow>> {
    let next = |start: &mut usize, length: &usize| {
        let range = *start..*start + length;
        *start = range.end;
        Some(range)
    };
    let ranges: Vec<Range<usize>> = case.iter().scan(GUARD, next).collect();
    let length: usize = case.iter().sum();
    let row = |algorithm: &str, wire: Wire, wrong: usize, times: TimeSamples, first: Option<&ResultRow>| {
        let TimeSamples { min, median, p95, samples } = times;
        let size = (length * size_of::<f32>()) as u64;
        let algbw = size as f64 / median;
        // The first one is the MPI library's.
        let yardstick = first.filter(|row| row.samples > 0).map_or(median, |row| row.median);
        ResultRow {
            algorithm: algorithm.parse().unwrap_or_default(),
            wire: wire.to_string().parse().unwrap_or_default(),
            size,
            elements: length as u64,
            ranges: case.len() as u64,
            samples: samples as u64,
            min,
            median,
            p95,
            algbw,
            busbw: algbw * subject.bus_factor(world.size()),
            ratio: yardstick / median,
            wrong: wrong as u64,
        }
    };
    let mut checker = Checker::new(subject, world, region);
    let mut rows: Vec<ResultRow> = Vec::new();
    for contender in contenders {
        let slots = contender.prepare(&ranges)?;
        let wrong = checker.check(contender, &slots, &ranges)?;
        let times = if args.check_only || wrong > 0 {
            TimeSamples::NONE
        } else {
            checker.zero(length);
            time::time(world, args.iterations, || contender.run(&slots))?
        };
        let row = row(contender.collective.name(), contender.wire, wrong, times, rows.first());
        table::print_row(world, &row);
        rows.push(row);
    }
    if subject == Subject::Allreduce && world.nodes() == 1 && !args.check_only {
        let times = time::time(world, args.iterations, || pass(region, length))?;
        let row = row("(memory)", Wire::F32, 0, times, rows.first());
        table::print_row(world, &row);
        rows.push(row);
    }
    Ok(rows)
}

/// Reads and writes each element of a length once, in place: what memory makes a rank do at the least in a sum in place
/// of the ranks of a node (of P ranks each reads 1/P of the elements of all P, and writes as many).
fn pass(region: &Region, length: usize) -> Result<()> {
    /// Stays in the first-level cache.
    const BLOCK: usize = 1024;
    let mut block = [0f32; BLOCK];
    for start in (GUARD..GUARD + length).step_by(BLOCK) {
        let block = &mut block[..BLOCK.min(GUARD + length - start)];
        region.read(start, block);
        region.write(start, std::hint::black_box(block));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_models_gradients_are_all_there_and_buckets_hold_them() {
        let each = gradients("resnet50").unwrap();
        assert_eq!((each.len(), each.iter().sum()), (161, 25_557_032));
        // The last layer's bias comes first.
        assert_eq!(each[0], 1000);
        let buckets = bucketed(&each);
        assert_eq!((buckets.len(), buckets.iter().sum()), (4, 25_557_032));
        assert!(buckets[..3].iter().all(|&bucket| bucket >= 25 << 18));
    }
}
