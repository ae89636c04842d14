//! `dltrain bench site`: what training needs of a machine, on all ranks at once for minutes, and what of it is slow.
//!
//! A rank's figure is held against the median of all ranks, against what it is while the node's other ranks wait, and
//! against its own at the beginning: a core that is shared or throttled, a bad cable and a busy file system show there.

use std::fs::{self, File};
use std::hint::black_box;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Instant;

use rustix::fs::{Advice, fadvise};

use super::limits::Pair;
use crate::comm::{Region, World};
use crate::config::Wire;
use crate::device::onednn::Cpu;
use crate::error::{Error, Result};
use crate::files::Unfinished;
use crate::record::{self, plural};

#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// How long it goes on, about
    #[arg(long, value_name = "SECONDS", default_value_t = 300.0)]
    seconds: f64,
    /// Directories whose file systems are written to and read from [default: the current one and that of TMPDIR]
    #[arg(long, value_name = "DIR", value_delimiter = ',')]
    directory: Vec<PathBuf>,
    /// Threads a rank [default: cores of the node divided by its ranks]
    #[arg(long)]
    threads: Option<usize>,
    /// What is so many percent under what it is held against counts as slow
    #[arg(long, value_name = "PERCENT", default_value_t = 10.0)]
    slow: f64,
}

/// One thing that is measured, as a rate of this rank's; NaN where it takes no part.
struct Probe<'a> {
    what: String,
    unit: &'static str,
    /// Whether it says something of a rank that works while the others of its node wait.
    alone: bool,
    /// Of a round, by its number. Collective, except where it is measured alone.
    rate: Box<dyn FnMut(usize) -> Result<f64> + 'a>,
}

/// What a rank measured of one thing: medians over rounds.
#[derive(Debug, Clone, Copy)]
struct Figures {
    all: f64,
    alone: f64,
    /// Of the first and of the last fifth of the rounds.
    first: f64,
    last: f64,
}

/// Measures until the time is over, and says what is slow. Collective; rank 0 prints.
///
/// # Errors
/// `Usage` for numbers that mean nothing; `Output` where a directory cannot be written to; the same on every rank.
pub fn run(args: &Args, world: &World) -> Result<()> {
    let sound = args.seconds > 0.0 && args.seconds.is_finite() && args.slow > 0.0 && args.slow < 100.0;
    let wrong = || Error::usage("--seconds: more than 0; --slow: a percentage between 0 and 100");
    world.agree(sound.then_some(()).ok_or_else(wrong))?;
    let threads = world.threads(args.threads)?;
    let device = world.agree(Cpu::new(threads))?;
    let [ranks, nodes] = [plural(world.size(), "rank"), plural(world.nodes(), "node")];
    let of_whom = format!("{ranks} on {nodes}, {} each", plural(threads, "thread"));
    let mut probes = probes(args, world, &device)?;
    let long = format!("# {of_whom}, for about {} s (--seconds); figures at the end", args.seconds);
    record::say(world, &long);
    let alone = alone(world, &mut probes)?;
    let mut samples: Vec<Vec<f64>> = vec![Vec::new(); probes.len()];
    let (begun, mut elapsed) = (Instant::now(), [0.0]);
    // A fifth of the rounds is one at least.
    for round in 0.. {
        if round >= 5 && elapsed[0] >= args.seconds {
            break;
        }
        for (probe, samples) in probes.iter_mut().zip(&mut samples) {
            world.barrier()?;
            let rate = (probe.rate)(round);
            samples.push(world.agree(rate)?);
        }
        elapsed = [begun.elapsed().as_secs_f64()];
        world.max_f64(&mut elapsed)?;
    }
    let own: Vec<Figures> =
        samples.iter().zip(alone).map(|(samples, alone)| Figures::of(samples, alone)).collect();
    let own: Vec<u64> =
        own.iter().flat_map(|own| [own.all, own.alone, own.first, own.last].map(f64::to_bits)).collect();
    let mut all: Vec<Vec<Figures>> = vec![Vec::new(); probes.len()];
    world.to_first(&own, |_, words| {
        for (all, words) in all.iter_mut().zip(words.chunks(4)) {
            let [of_all, alone, first, last] = [0, 1, 2, 3].map(|place| f64::from_bits(words[place]));
            all.push(Figures { all: of_all, alone, first, last });
        }
    })?;
    if world.rank() == 0 {
        let (rounds, seconds) = (samples[0].len(), elapsed[0]);
        let ranks = world.size();
        record::print(&format!("# {of_whom}: {} in {seconds:.0} s", plural(rounds, "round")));
        let places: Vec<String> =
            (0..ranks).map(|rank| format!("rank {rank} on {}", world.host_of(rank))).collect();
        let named: Vec<_> = probes.iter().map(|probe| (&*probe.what, probe.unit)).zip(all).collect();
        table(&named, &places)
            .iter()
            .chain(&findings(&named, &places, args.slow))
            .for_each(|line| record::print(line));
    }
    Ok(())
}

/// What the first rank of each node has while the others wait. Collective.
fn alone(world: &World, probes: &mut [Probe]) -> Result<Vec<f64>> {
    let mut alone = Vec::new();
    for probe in probes.iter_mut() {
        let mine = probe.alone && world.is_leader();
        let rates = (0..3).map(|round| if mine { (probe.rate)(round) } else { Ok(f64::NAN) });
        let rates = world.agree(rates.collect::<Result<Vec<f64>>>())?;
        alone.push(median(rates));
    }
    Ok(alone)
}

fn probes<'a>(args: &Args, world: &'a World, device: &'a Cpu) -> Result<Vec<Probe<'a>>> {
    let mut probes = vec![
        probe("products", "GFLOP/s", true, |_| Ok(device.sgemm_rate(1)? / 1e9)),
        copies(world)?,
        probe("time left to the rank", "%", true, undisturbed()),
    ];
    probes.extend(links(world)?);
    let mut directories = args.directory.clone();
    if directories.is_empty() {
        directories =
            [std::env::current_dir().ok(), Some(std::env::temp_dir())].into_iter().flatten().collect();
        directories.dedup();
    }
    for directory in directories {
        let there = || Error::usage(format!("--directory {}: is no directory", directory.display()));
        world.agree(directory.is_dir().then_some(()).ok_or_else(there))?;
        probes.extend(disk(&directory));
    }
    Ok(probes)
}

fn probe<'a>(
    what: &str,
    unit: &'static str,
    alone: bool,
    rate: impl FnMut(usize) -> Result<f64> + 'a,
) -> Probe<'a> {
    Probe { what: what.into(), unit, alone, rate: Box::new(rate) }
}

/// Bytes that are copied from one place in memory to another.
fn copies(world: &World) -> Result<Probe<'static>> {
    /// More than a core's share of most caches.
    const BYTES: usize = 64 << 20;
    let allocate = || world.agree(Region::private(BYTES));
    let (here, there) = (allocate()?, allocate()?);
    let all = 0..here.elements();
    there.pack(all.clone(), Wire::F32, &here, 0);
    Ok(probe("copies in memory", "GB/s", true, move |_| {
        let begun = Instant::now();
        (0..4).for_each(|_| here.unpack(all.clone(), Wire::F32, &there, 0, false));
        Ok(4.0 * BYTES as f64 / begun.elapsed().as_secs_f64() / 1e9)
    }))
}

/// The share of its time that a rank has its core: of pieces of work that are alike the shortest against the mean.
fn undisturbed() -> impl FnMut(usize) -> Result<f64> {
    const PIECES: usize = 200;
    let piece = || {
        let begun = Instant::now();
        let mut word = 1u64;
        (0..400_000u64).for_each(|number| word = black_box(word.wrapping_mul(number | 1)));
        begun.elapsed().as_secs_f64()
    };
    move |_| {
        let pieces: Vec<f64> = (0..PIECES).map(|_| piece()).collect();
        let least = pieces.iter().copied().fold(f64::INFINITY, f64::min);
        Ok(100.0 * PIECES as f64 * least / pieces.iter().sum::<f64>())
    }
}

/// Messages both ways: of neighbours on each node, and of the nodes' first ranks, each round with another node.
fn links<'a>(world: &'a World) -> Result<Vec<Probe<'a>>> {
    let node = world.ranks_of(world.node());
    let place = node.iter().position(|&rank| rank == world.rank()).unwrap_or(0);
    let neighbour = node.get(place ^ 1).copied();
    let pair = Rc::new(Pair::new(world)?);
    let rate = |pair: Rc<Pair>, partner: Option<usize>| -> Result<f64> {
        let seconds = (0..20).map(|_| pair.both_ways(partner)).sum::<Result<f64>>()?;
        Ok(partner.map_or(f64::NAN, |_| 20.0 * Pair::BYTES / seconds / 1e9))
    };
    let mut links = Vec::new();
    if (0..world.nodes()).any(|node| world.ranks_of(node).len() > 1) {
        let pair = pair.clone();
        links.push(probe("messages in a node", "GB/s", false, move |_| rate(pair.clone(), neighbour)));
    }
    if world.nodes() > 1 {
        links.push(probe("messages between nodes", "GB/s", false, move |round| {
            let other = opponent(world.node(), round, world.nodes()).filter(|_| world.is_leader());
            rate(pair.clone(), other.map(|node| world.ranks_of(node)[0]))
        }));
    }
    Ok(links)
}

/// Whom each of so many meets in a round, such that all meet all in turn: the circle method of tournaments.
fn opponent(own: usize, round: usize, count: usize) -> Option<usize> {
    let circle = count + count % 2 - 1;
    let other = match own {
        // Who stands still meets whom the others' turn leaves over.
        own if own == circle => round * circle.div_ceil(2) % circle,
        own => match (round % circle + circle - own) % circle {
            itself if itself == own => circle,
            other => other,
        },
    };
    Some(other).filter(|&other| other < count)
}

/// One file that is written, brought to disk and read again, and many small ones that come and go.
fn disk(directory: &Path) -> [Probe<'static>; 3] {
    let file = Rc::new(Unfinished::new(&directory.join("dltrain-bench-site")));
    let of = |what: &str, unit, rate: fn(&Path) -> io::Result<f64>| {
        let file = file.clone();
        let wrong = |error, path: &Path| Error::output(path, format!("cannot be measured: {error}"));
        probe(&format!("{what} in {}", directory.display()), unit, true, move |_| {
            rate(&file.temporary).map_err(|error| wrong(error, &file.temporary))
        })
    };
    [
        of("writing", "GB/s", written),
        of("reading", "GB/s", read_again),
        of("small files", "files/s", small_files),
    ]
}

/// Bytes of the file, and of what is handed to the system at a time.
const FILE: usize = 32 << 20;
const PIECE: usize = 1 << 20;

fn written(path: &Path) -> io::Result<f64> {
    let (piece, begun) = (vec![7u8; PIECE], Instant::now());
    let mut file = File::create(path)?;
    (0..FILE / PIECE).try_for_each(|_| file.write_all(&piece))?;
    file.sync_all()?;
    Ok(FILE as f64 / begun.elapsed().as_secs_f64() / 1e9)
}

fn read_again(path: &Path) -> io::Result<f64> {
    let (mut file, mut piece) = (File::open(path)?, vec![0; PIECE]);
    // What the system has in memory would be measured otherwise.
    fadvise(&file, 0, None, Advice::DontNeed)?;
    let begun = Instant::now();
    while file.read(&mut piece)? > 0 {}
    Ok(FILE as f64 / begun.elapsed().as_secs_f64() / 1e9)
}

fn small_files(path: &Path) -> io::Result<f64> {
    const COUNT: usize = 50;
    let begun = Instant::now();
    for number in 0..COUNT {
        let small = Unfinished::new(&path.with_extension(number.to_string()));
        fs::write(&small.temporary, "")?;
        fs::metadata(&small.temporary)?;
    }
    Ok(COUNT as f64 / begun.elapsed().as_secs_f64())
}

impl Figures {
    fn of(samples: &[f64], alone: f64) -> Figures {
        let fifth = samples.len().div_ceil(5);
        let of = |samples: &[f64]| median(samples.to_vec());
        Figures {
            all: of(samples),
            alone,
            first: of(&samples[..fifth]),
            last: of(&samples[samples.len() - fifth..]),
        }
    }
}

/// Of those that are numbers; NaN where none is.
fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.retain(|number| !number.is_nan());
    numbers.sort_by(f64::total_cmp);
    super::median(&numbers).unwrap_or(f64::NAN)
}

/// A thing with its unit, and every rank's figures of it.
type FiguresOfRanks<'a> = ((&'a str, &'static str), Vec<Figures>);

fn median_of(ranks: &[Figures], which: impl Fn(&Figures) -> f64) -> f64 {
    median(ranks.iter().map(which).collect())
}

fn table(measured: &[FiguresOfRanks], places: &[String]) -> Vec<String> {
    let width = measured.iter().map(|((what, _), _)| what.chars().count()).max().unwrap_or(0);
    let head =
        format!("{:<width$} {:<8} {:>9} {:>9} {:>9}  the slowest is", "#", "", "median", "slowest", "alone");
    let line = |((what, unit), ranks): &FiguresOfRanks| {
        let of = |number: f64| if number.is_nan() { "-".into() } else { format!("{number:.3}") };
        let taking_part = ranks.iter().zip(places).filter(|(rank, _)| !rank.all.is_nan());
        let slowest = taking_part.min_by(|(one, _), (other, _)| one.all.total_cmp(&other.all));
        let (least, place) = slowest.map_or((f64::NAN, "-"), |(rank, place)| (rank.all, &**place));
        let [middle, alone] = [median_of(ranks, |rank| rank.all), median_of(ranks, |rank| rank.alone)];
        format!("{what:<width$} {unit:<8} {:>9} {:>9} {:>9}  {place}", of(middle), of(least), of(alone))
    };
    [head].into_iter().chain(measured.iter().map(line)).collect()
}

/// So many lines are read.
const MOST: usize = 50;

/// What is slow, and against what, a line each; or that nothing is.
fn findings(measured: &[FiguresOfRanks], places: &[String], slow: f64) -> Vec<String> {
    let mut found = Vec::new();
    for ((what, unit), ranks) in measured {
        let middle = median_of(ranks, |rank| rank.all);
        for (rank, place) in ranks.iter().zip(places) {
            let mut held = |against: &str, number: f64, other: f64| {
                let under = 100.0 * (1.0 - number / other);
                if under > slow {
                    found.push(format!(
                        "SLOW: {what}, {place}: {number:.3} {unit}, {under:.0} % under {other:.3}, {against}"
                    ));
                }
            };
            held("the median of all ranks", rank.all, middle);
            if *unit == "%" {
                held("a core that nobody else uses", rank.all, 100.0);
            }
            held("what it began with", rank.last, rank.first);
            // Ranks of a node share its memory and its disks, but not the cores.
            if *what == "products" {
                held("what it has while the other ranks of its node wait", rank.all, rank.alone);
            }
        }
    }
    if found.len() > MOST {
        let more = found.split_off(MOST).len();
        found.push(format!("and {more} more that are slow"));
    }
    if found.is_empty() {
        found.push(format!(
            "nothing is slow: no rank is {slow} % under the median of all, nor under what it began with, nor do its \
             products suffer from the other ranks of its node"
        ));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(all: f64, alone: f64, first: f64, last: f64) -> Figures {
        Figures { all, alone, first, last }
    }

    #[test]
    fn what_is_slow_is_named_with_what_it_is_held_against() {
        let places = ["rank 0 on a", "rank 1 on a", "rank 2 on b"].map(String::from);
        let well = [10.0, 10.5, 9.8].map(|all| figures(all, f64::NAN, 10.0, 10.0)).to_vec();
        let of = |ranks: Vec<Figures>| findings(&[(("products", "GFLOP/s"), ranks)], &places, 10.0);
        assert!(of(well.clone())[0].starts_with("nothing is slow"), "{:?}", of(well.clone()));
        let with = |figures| of([well[0], well[1], figures].to_vec());
        for (figures, expected) in [
            (
                figures(7.0, f64::NAN, 7.0, 7.0),
                "rank 2 on b: 7.000 GFLOP/s, 30 % under 10.000, the median of all ranks",
            ),
            (
                figures(10.0, f64::NAN, 10.0, 8.0),
                "rank 2 on b: 8.000 GFLOP/s, 20 % under 10.000, what it began with",
            ),
            (
                figures(10.0, 20.0, 10.0, 10.0),
                "rank 2 on b: 10.000 GFLOP/s, 50 % under 20.000, what it has while",
            ),
        ] {
            let found = with(figures);
            assert!(found.len() == 1 && found[0].contains(expected), "{found:?}");
        }
        let disturbed =
            findings(&[(("time left", "%"), vec![figures(50.0, 50.0, 50.0, 50.0)])], &places, 10.0);
        assert!(disturbed[0].ends_with("50 % under 100.000, a core that nobody else uses"), "{disturbed:?}");
        // A rank that takes no part is no slow one.
        assert!(with(figures(f64::NAN, f64::NAN, f64::NAN, f64::NAN))[0].starts_with("nothing"));
    }

    #[test]
    fn every_node_meets_every_other_once_in_a_turn() {
        for count in 2..9 {
            let rounds = count + count % 2 - 1;
            for own in 0..count {
                let mut met: Vec<usize> =
                    (5..5 + rounds).filter_map(|round| opponent(own, round, count)).collect();
                for (round, other) in
                    (0..rounds).filter_map(|round| Some((round, opponent(own, round, count)?)))
                {
                    assert_eq!(opponent(other, round, count), Some(own), "{own} of {count} in {round}");
                }
                met.sort_unstable();
                assert_eq!(
                    met,
                    (0..count).filter(|&other| other != own).collect::<Vec<_>>(),
                    "{own} of {count}"
                );
            }
        }
    }
}
