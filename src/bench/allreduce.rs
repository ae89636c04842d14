//! `dltrain bench allreduce`, in the manner of nccl-tests: time, algorithm and bus bandwidth of each algorithm,
//! beside a blocking MPI_Allreduce of the MPI library in the same run.

use std::ops::Range;
use std::rc::Rc;
use std::time::Instant;

use super::sizes::{Sizes, show};
use crate::collective::{Allreduce, Slot, part, select, wait};
use crate::comm::{Channel, Region, World};
use crate::config::{AllreduceKind, Wire};
use crate::error::{Error, Kind, Result};

#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Sizes in bytes: a size, a range in steps of four, or a list of these
    #[arg(long, value_delimiter = ',', default_value = "4K..256M")]
    sizes: Vec<Sizes>,
    /// Lengths in elements (4 bytes each), in place of --sizes
    #[arg(long, value_delimiter = ',', conflicts_with = "sizes")]
    lengths: Vec<usize>,
    /// Algorithms to run [default: all that can run here]
    #[arg(long, value_delimiter = ',')]
    algorithm: Vec<AllreduceKind>,
    /// What numbers travel as between ranks
    #[arg(long, value_enum, default_value_t = Wire::F32)]
    wire: Wire,
    /// Timed repeats [default: as many as take about half a second]
    #[arg(long)]
    iterations: Option<usize>,
    /// Check the answers and measure nothing
    #[arg(long)]
    check_only: bool,
}

/// Elements on each side of a range that nobody may touch.
const GUARD: usize = 64;
const UNTOUCHED: f32 = -12345.5;

/// What a range is filled with.
#[derive(Clone, Copy)]
enum Values {
    /// Integers so small that every order of adding gives the same sum: it must be exact.
    Exact,
    /// Numbers of many magnitudes: the order shows in the last bits, which must be the same on all ranks.
    Rough,
}

/// The MPI library's blocking call: the yardstick.
struct Blocking {
    channel: Channel,
    region: Rc<Region>,
    ranges: Vec<Range<usize>>,
}

impl Allreduce for Blocking {
    fn name(&self) -> &'static str {
        "MPI_Allreduce"
    }

    fn prepare(&mut self, range: Range<usize>) -> Result<Slot> {
        self.ranges.push(range);
        Ok(self.ranges.len() - 1)
    }

    fn start(&mut self, slot: Slot) -> Result<()> {
        self.channel.allreduce_blocking(&self.region, &self.ranges[slot])
    }

    fn poll(&mut self) -> Result<bool> {
        Ok(false)
    }

    fn is_done(&self, _: Slot) -> bool {
        true
    }
}

/// The measured region and everything that runs on it.
struct Bench<'a> {
    world: &'a World,
    region: Rc<Region>,
    algorithms: Vec<Box<dyn Allreduce>>,
    buffer: Vec<f32>,
    wire: Wire,
}

pub fn run(args: &Args, world: &World) -> Result<()> {
    let lengths: Vec<usize> = if args.lengths.is_empty() {
        args.sizes.iter().flat_map(|sizes| sizes.0.iter().map(|bytes| bytes / size_of::<f32>())).collect()
    } else {
        args.lengths.clone()
    };
    let longest = lengths.iter().copied().max().unwrap_or(0);
    let mut bench = Bench::new(args, world, longest)?;
    bench.print_header(args);
    let mut wrong_in_all = 0;
    for length in lengths {
        let mut yardstick = None;
        for index in 0..bench.algorithms.len() {
            let slot = bench.algorithms[index].prepare(GUARD..GUARD + length)?;
            let wrong = bench.check(index, slot, length)?;
            wrong_in_all += wrong;
            if args.check_only {
                bench.print_check(index, length, wrong);
                continue;
            }
            if wrong > 0 {
                bench.print_check(index, length, wrong);
                continue;
            }
            let times = bench.time(index, slot, length, args.iterations)?;
            yardstick = yardstick.or(Some(times.median));
            bench.print_row(index, length, &times, yardstick.unwrap_or(times.median));
        }
    }
    if wrong_in_all > 0 {
        let text = format!("allreduce: {wrong_in_all} wrong elements");
        return world.agree(Err(Error::new(Kind::Internal, text)));
    }
    Ok(())
}

/// Seconds.
struct Times {
    median: f64,
    min: f64,
}

impl<'a> Bench<'a> {
    fn new(args: &Args, world: &'a World, longest: usize) -> Result<Bench<'a>> {
        let elements = longest.checked_add(2 * GUARD).and_then(|n| n.checked_mul(size_of::<f32>()));
        let bytes = elements.ok_or_else(|| Error::usage(format!("a length of {longest} is too large")))?;
        let region = Region::allocate(world, bytes, true)?;
        let mut algorithms: Vec<Box<dyn Allreduce>> = Vec::new();
        if !args.check_only {
            let channel = Channel::new(world)?;
            algorithms.push(Box::new(Blocking { channel, region: region.clone(), ranges: Vec::new() }));
        }
        if args.algorithm.is_empty() {
            algorithms.push(select(AllreduceKind::Vendor, Wire::F32, world, &region)?);
            for kind in
                [AllreduceKind::Ring, AllreduceKind::Halving, AllreduceKind::Tree, AllreduceKind::Torus]
            {
                algorithms.push(select(kind, args.wire, world, &region)?);
            }
            if world.is_even() && region.is_shared() {
                algorithms.push(select(AllreduceKind::Hierarchical, args.wire, world, &region)?);
            }
            if world.nodes() == 1 && region.is_shared() {
                algorithms.push(select(AllreduceKind::Shm, Wire::F32, world, &region)?);
            }
        }
        for &algorithm in &args.algorithm {
            algorithms.push(select(algorithm, args.wire, world, &region)?);
        }
        Ok(Bench { world, region, algorithms, buffer: vec![0.0; 64 * 1024], wire: args.wire })
    }

    /// Runs one slot whole, then its range as three slots in flight together, and counts the elements that are
    /// not the serial sum, on all ranks.
    fn check(&mut self, index: usize, slot: Slot, length: usize) -> Result<usize> {
        let whole = GUARD..GUARD + length;
        let thirds: Vec<_> =
            (0..3).map(|i| part(length, 3, i)).map(|r| GUARD + r.start..GUARD + r.end).collect();
        let mut slots = Vec::new();
        if self.algorithms[index].name() != "MPI_Allreduce" {
            for range in &thirds {
                slots.push(self.algorithms[index].prepare(range.clone())?);
            }
        }
        let mut wrong = 0;
        for round in 0..4 {
            let values = if round % 2 == 0 { Values::Exact } else { Values::Rough };
            self.fill(&whole, values, round);
            let algorithm = &mut *self.algorithms[index];
            if round < 2 || slots.is_empty() {
                algorithm.start(slot)?;
                wait(algorithm, slot)?;
            } else {
                for &slot in &slots {
                    algorithm.start(slot)?;
                }
                for &slot in slots.iter().rev() {
                    wait(algorithm, slot)?;
                }
            }
            wrong += self.wrong(&whole, values, round)?;
        }
        let mut sum = [wrong as f64];
        self.world.sum_f64(&mut sum)?;
        Ok(sum[0] as usize)
    }

    /// Fills a range with this rank's values and its surroundings with a mark.
    fn fill(&mut self, range: &Range<usize>, values: Values, round: usize) {
        self.region.write(range.start - GUARD, &[UNTOUCHED; GUARD]);
        self.region.write(range.end, &[UNTOUCHED; GUARD]);
        for start in range.clone().step_by(self.buffer.len()) {
            let count = self.buffer.len().min(range.end - start);
            for (offset, to) in self.buffer[..count].iter_mut().enumerate() {
                *to = value(values, self.world.rank(), start + offset, round);
            }
            self.region.write(start, &self.buffer[..count]);
        }
    }

    /// Elements of this rank that differ from a serial sum, or were touched and should not have been; all of
    /// them where ranks have unlike bits. Collective.
    fn wrong(&mut self, range: &Range<usize>, values: Values, round: usize) -> Result<usize> {
        let size = self.world.size();
        let (mut wrong, mut hash) = (0, 0u64);
        for start in range.clone().step_by(self.buffer.len()) {
            let count = self.buffer.len().min(range.end - start);
            self.region.read(start, &mut self.buffer[..count]);
            for (offset, got) in self.buffer[..count].iter().enumerate() {
                hash = mix(hash ^ u64::from(got.to_bits()));
                let each = (0..size).map(|rank| f64::from(value(values, rank, start + offset, round)));
                let (sum, magnitude) = each.fold((0.0, 0.0), |(sum, m), v| (sum + v, m + v.abs()));
                // Higham's bound for a sum of n numbers in any order: (n − 1)·u·Σ|x|; on the wire u is larger.
                let allowed = match (values, self.wire) {
                    (Values::Exact, Wire::F32) => 0.0,
                    (_, Wire::F32) => size as f64 * f64::from(f32::EPSILON) * magnitude,
                    (_, Wire::Bf16) => (size + 1) as f64 / 256.0 * magnitude,
                    (_, Wire::F16) => (size + 1) as f64 / 2048.0 * magnitude,
                };
                let error = (f64::from(*got) - sum).abs();
                wrong += usize::from(error > allowed || error.is_nan());
            }
        }
        let mut guard = [0.0; GUARD];
        for start in [range.start - GUARD, range.end] {
            self.region.read(start, &mut guard);
            wrong += guard.iter().filter(|&&value| value != UNTOUCHED).count();
        }
        let hashes = self.world.gather_text(&hash.to_string())?;
        let alike = hashes.iter().all(|other| *other == hashes[0]);
        Ok(if alike { wrong } else { range.len().max(1) })
    }

    /// Times a slot: each sample is the slowest rank's, over as many repeats as make it well measurable.
    fn time(&mut self, index: usize, slot: Slot, length: usize, iterations: Option<usize>) -> Result<Times> {
        // Zeros stay zeros however often they are added.
        for start in (GUARD..GUARD + length).step_by(self.buffer.len()) {
            let count = self.buffer.len().min(GUARD + length - start);
            self.region.write(start, &vec![0.0; count]);
        }
        self.sample(index, slot, 2)?;
        let rough = self.sample(index, slot, 3)?.max(1e-9);
        // Ranks agree on `rough`, so they agree on these.
        let repeats = (200e-6 / rough).clamp(1.0, 100.0) as usize;
        let samples =
            iterations.unwrap_or((0.5 / (rough * repeats as f64)).clamp(5.0, 500.0) as usize).max(1);
        let mut times =
            (0..samples).map(|_| self.sample(index, slot, repeats)).collect::<Result<Vec<f64>>>()?;
        times.sort_by(f64::total_cmp);
        Ok(Times { median: times[times.len() / 2], min: times[0] })
    }

    /// Seconds that one run takes, as the mean of `repeats` on the slowest rank. Collective.
    fn sample(&mut self, index: usize, slot: Slot, repeats: usize) -> Result<f64> {
        let algorithm = &mut *self.algorithms[index];
        self.world.barrier()?;
        let begin = Instant::now();
        for _ in 0..repeats {
            algorithm.start(slot)?;
            wait(algorithm, slot)?;
        }
        let mut slowest = [begin.elapsed().as_secs_f64() / repeats as f64];
        self.world.max_f64(&mut slowest)?;
        Ok(slowest[0])
    }

    fn print_header(&self, args: &Args) {
        if self.world.rank() > 0 {
            return;
        }
        println!(
            "# allreduce, sum of f32 in place: {} ranks on {} node(s), {}, {} memory{}",
            self.world.size(),
            self.world.nodes(),
            self.world.library(),
            if self.region.is_shared() { "shared" } else { "private" },
            match self.wire {
                Wire::F32 => String::new(),
                wire => format!(", {wire} between ranks (f32 by MPI_Allreduce, vendor and shm)"),
            }
        );
        if args.check_only {
            println!("#{:>9} {:>11} {:>14} {:>8}", "size", "elements", "algorithm", "wrong");
        } else {
            println!("# algbw = bytes/median, busbw = algbw·2(n−1)/n, ratio = time of MPI_Allreduce / time");
            println!(
                "#{:>9} {:>11} {:>14} {:>11} {:>11} {:>11} {:>11} {:>6} {:>8}",
                "size",
                "elements",
                "algorithm",
                "median ms",
                "min ms",
                "algbw GB/s",
                "busbw GB/s",
                "ratio",
                "wrong"
            );
        }
    }

    fn print_check(&self, index: usize, length: usize, wrong: usize) {
        if self.world.rank() == 0 {
            let (size, name) = (show(length * size_of::<f32>()), self.algorithms[index].name());
            println!("{size:>10} {length:>11} {name:>14} {wrong:>8}");
        }
    }

    fn print_row(&self, index: usize, length: usize, times: &Times, yardstick: f64) {
        if self.world.rank() > 0 {
            return;
        }
        let (bytes, n) = (length * size_of::<f32>(), self.world.size() as f64);
        let algbw = bytes as f64 / times.median / 1e9;
        let name = self.algorithms[index].name();
        println!(
            "{:>10} {length:>11} {name:>14} {:>11.4} {:>11.4} {algbw:>11.2} {:>11.2} {:>6.2} {:>8}",
            show(bytes),
            times.median * 1e3,
            times.min * 1e3,
            algbw * 2.0 * (n - 1.0) / n,
            yardstick / times.median,
            0,
        );
    }
}

/// The value of one element on one rank; unlike for every element, rank and round.
fn value(values: Values, rank: usize, index: usize, round: usize) -> f32 {
    let word = mix((index as u64) << 24 ^ (rank as u64) << 4 ^ round as u64);
    match values {
        Values::Exact => (word >> 32 & 0xff) as f32 - 128.0,
        Values::Rough => {
            let magnitude = [1e-3, 1.0, 1e2, 1e3][(word & 3) as usize];
            magnitude * ((word >> 40) as f32 / 8_388_608.0 - 1.0)
        }
    }
}

/// The finalizer of splitmix64 (Steele, Lea, Flood, 2014).
fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}
