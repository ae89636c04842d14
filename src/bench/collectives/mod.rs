//! `dltrain bench allreduce`, `reducescatter`, `allgather` and `broadcast`, in the manner of nccl-tests: time, algorithm and
//! bus bandwidth of each algorithm, beside the MPI library's own blocking call in the same run.
//!
//! One frame for all four: `subject` says what each is, `check` holds every answer to a serial one before anything is
//! timed, `time` times, `table` prints and `results` leaves a file.

mod check;
mod results;
mod subject;
mod table;
mod time;
mod yardstick;

use std::path::PathBuf;
use std::rc::Rc;

use self::check::{Checker, GUARD};
use self::subject::Contender;
use self::table::Row;
use super::limits;
use super::sizes::Sizes;
use crate::comm::{Region, World};
use crate::config::Wire;
use crate::error::{Error, Kind, Result};
use crate::record::{self, Place};

pub use subject::Subject;

#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Sizes in bytes of the whole buffer: a size, a range in steps of four, or a list of these
    #[arg(long, value_delimiter = ',', default_value = "4K..256M")]
    sizes: Vec<Sizes>,
    /// Lengths in elements (4 bytes each), in place of --sizes
    #[arg(long, value_delimiter = ',', conflicts_with = "sizes")]
    lengths: Vec<usize>,
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
    /// The lengths asked for, in elements.
    fn lengths(&self) -> Result<Vec<usize>> {
        if self.iterations == Some(0) {
            return Err(Error::usage("--iterations 0 measures nothing; use at least 1, or --check-only"));
        }
        if !self.lengths.is_empty() {
            return Ok(self.lengths.clone());
        }
        let elements = |bytes: usize| match bytes % size_of::<f32>() {
            0 => Ok(bytes / size_of::<f32>()),
            _ => Err(Error::usage(format!("--sizes {bytes}: elements are f32, of 4 bytes each"))),
        };
        self.sizes.iter().flat_map(|sizes| &sizes.0).map(|&bytes| elements(bytes)).collect()
    }

    /// What all ranks must have been given alike.
    fn shared_items(&self, lengths: &[usize]) -> Vec<(String, String)> {
        let items = [
            ("sizes", format!("{lengths:?} elements")),
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
/// Agreed by all ranks. `Usage` for what cannot run here, `Output` when the results file cannot be written, `Internal` when
/// an answer is wrong.
pub fn run(subject: Subject, args: &Args, world: &World) -> Result<()> {
    let lengths = world.agree(args.lengths())?;
    world.same(&args.shared_items(&lengths))?;
    let place = Place { rank: world.rank(), size: world.size() };
    let path = match &args.results {
        Some(path) => world.agree(record::results_path(place, Some(path), &format!("bench-{subject}")))?,
        None => None,
    };
    let longest = lengths.iter().copied().max().unwrap_or(0);
    let bytes = longest.checked_add(2 * GUARD).and_then(|n| n.checked_mul(size_of::<f32>()));
    let bytes = bytes.ok_or_else(|| Error::usage(format!("a length of {longest} is too large")));
    let region = Region::allocate(world, world.agree(bytes)?, true)?;
    let mut contenders = subject.contenders(args, world, &region)?;

    let limits = if args.check_only { None } else { Some(limits::measure(world)?) };
    table::print_header(subject, args, world, &region, limits.as_ref());
    let mut rows = Vec::new();
    for length in lengths {
        rows.extend(measure(subject, args, world, &region, length, &mut contenders)?);
    }
    let about = results::About { subject, args, world, region: &region, limits: limits.as_ref() };
    let written = path.map_or(Ok(()), |path| results::write(&path, &about, &rows));
    world.agree(written)?;
    match rows.iter().map(|row| row.wrong).sum::<usize>() {
        0 => Ok(()),
        wrong => world.agree(Err(Error::new(Kind::Internal, format!("{subject}: {wrong} wrong elements")))),
    }
}

/// The rows of one length. An algorithm that gives wrong answers is not timed.
fn measure(
    subject: Subject,
    args: &Args,
    world: &World,
    region: &Rc<Region>,
    length: usize,
    contenders: &mut [Contender],
) -> Result<Vec<Row>> {
    let mut checker = Checker::new(subject, world, region);
    let mut rows: Vec<Row> = Vec::new();
    for contender in contenders {
        let slot = contender.collective.prepare(GUARD..GUARD + length)?;
        let wrong = checker.check(contender, slot, length)?;
        let times = if args.check_only || wrong > 0 {
            None
        } else {
            checker.zero(length);
            Some(time::time(world, args.iterations, || contender.run(slot))?)
        };
        // The first one is the MPI library's.
        let yardstick = rows.first().and_then(|row| row.times).or(times);
        let name = contender.collective.name();
        let row = Row::new(subject, world.size(), name, contender.wire, length, wrong, times, yardstick);
        table::print_row(world, &row);
        rows.push(row);
    }
    if subject == Subject::Allreduce && world.nodes() == 1 && !args.check_only {
        let times = time::time(world, args.iterations, || pass(region, length))?;
        let yardstick = rows.first().and_then(|row| row.times);
        let row = Row::new(subject, world.size(), "(memory)", Wire::F32, length, 0, Some(times), yardstick);
        table::print_row(world, &row);
        rows.push(row);
    }
    Ok(rows)
}

/// Reads and writes each element of a length once, in place: what memory makes a rank do at the least in a sum in place of
/// the ranks of a node (of P ranks each reads 1/P of the elements of all P, and writes as many).
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
