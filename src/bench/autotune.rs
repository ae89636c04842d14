//! `dltrain bench autotune`: measures what `--allreduce auto` and the cut into buckets are decided by, and writes it to
//! a file.

use std::path::PathBuf;
use std::rc::Rc;

use super::collectives::sample;
use super::limits::{self, BandwidthLimits};
use super::sizes::{SizeRange, show};
use crate::collective::cost::{CANDIDATES, Cost, Nodes};
use crate::collective::tuning::{Level, Machine, Parameters, Times, Tuning, usual_place};
use crate::collective::{Collective, select, wait};
use crate::comm::{Region, World};
use crate::config::{AllreduceKind, Wire};
use crate::device::onednn::Cpu;
use crate::error::{Error, Result};
use crate::record;

#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// File to write [default: $DLTRAIN_TUNING, else tuning.json in ~/.config/dltrain]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Bytes of the ranges to time: a size, a range in steps of four, or a list of these
    #[arg(long, value_delimiter = ',', default_value = "256,4K,32K,256K,2M,8M,32M")]
    sizes: Vec<SizeRange>,
}

/// A range that takes longer is the last one timed, seconds.
const LONG: f64 = 0.5;

pub fn run(args: &Args, world: &World) -> Result<()> {
    let path = args.output.clone().or_else(usual_place);
    let path = path.ok_or_else(|| Error::usage("no place for the tuning file: give --output FILE"));
    let path = world.agree(path)?;
    let sizes = world.agree(sizes(args))?;
    world.agree(record::once(world, || Tuning::own(&path)))?;
    let machine = Machine::of(world)?;
    let limits = limits::measure(world)?;
    if world.rank() == 0 {
        record::print(&format!(
            "# {} ranks (on the nodes: {}), {}, {}",
            world.size(),
            machine.ranks,
            machine.cpu,
            machine.mpi
        ));
        record::print(&limits::comment(&limits));
    }
    let measured = algorithms(world, &sizes)?;
    let parameters = parameters(world, &limits, &measured)?;
    for unlike in &limits.unlike {
        let what = "the slower direction is taken for both; a prediction by this file is in doubt";
        record::log(world, log::Level::Warn, &format!("{unlike}: {what}"));
    }
    let tuning = Tuning { machine, parameters, measured, doubts: limits.unlike };
    // Every rank has the same numbers; one of them writes.
    world.agree(record::once(world, || tuning.save(&path)))?;
    if world.rank() == 0 {
        print(&tuning, &Nodes::of(world), &sizes);
        record::print(&format!("written to {}", path.display()));
    }
    Ok(())
}

/// Ascending, each once.
fn sizes(args: &Args) -> Result<Vec<usize>> {
    let mut sizes: Vec<usize> = args.sizes.iter().flat_map(|sizes| sizes.0.clone()).collect();
    sizes.sort_unstable();
    sizes.dedup();
    match sizes.first() {
        Some(least) if *least >= size_of::<f32>() => Ok(sizes),
        _ => Err(Error::usage("--sizes: a range has at least one number, which is 4 bytes")),
    }
}

/// Every algorithm that can run here, at every size that does not take too long.
fn algorithms(world: &World, sizes: &[usize]) -> Result<Vec<Times>> {
    let longest = sizes.last().copied().unwrap_or(0);
    let region = Region::allocate(world, longest, true)?;
    let kinds = CANDIDATES.into_iter().filter(|kind| match kind {
        AllreduceKind::Shm => region.is_shared() && world.nodes() == 1,
        AllreduceKind::Hierarchical(_) => region.is_shared() && world.is_even() && world.local_size() > 1,
        _ => true,
    });
    kinds.map(|kind| times(world, kind, &region, sizes)).collect()
}

fn times(world: &World, kind: AllreduceKind, region: &Rc<Region>, sizes: &[usize]) -> Result<Times> {
    let mut algorithm = select(kind, Wire::F32, &Tuning::built_in(), world, region)?;
    let mut times = Times { algorithm: kind.name().into(), bytes: Vec::new(), us: Vec::new() };
    for &bytes in sizes {
        let seconds = median(world, &mut *algorithm, bytes)?;
        times.bytes.push(bytes);
        times.us.push(rounded(seconds * 1e6));
        if seconds > LONG {
            break;
        }
    }
    // What is disturbed takes longer: a shorter range takes no longer than a longer one did.
    for index in (1..times.us.len()).rev() {
        times.us[index - 1] = times.us[index - 1].min(times.us[index]);
    }
    Ok(times)
}

/// Seconds of the slowest rank; the same number on all. Collective.
fn median(world: &World, algorithm: &mut dyn Collective, bytes: usize) -> Result<f64> {
    let slot = algorithm.prepare(0..bytes / size_of::<f32>())?;
    let mut run = || {
        algorithm.start(slot)?;
        wait(algorithm, slot)
    };
    let mut sample = |repeats| sample(world, repeats, &mut run).map(|seconds| seconds.max(1e-9));
    sample(2)?;
    let rough: f64 = sample(2)?;
    let repeats = (500e-6 / rough).clamp(1.0, 200.0) as usize;
    let samples = (0.15 / (rough * repeats as f64)).clamp(3.0, 25.0) as usize;
    let mut seconds = (0..samples).map(|_| sample(repeats)).collect::<Result<Vec<f64>>>()?;
    seconds.sort_by(f64::total_cmp);
    Ok(seconds[samples / 2])
}

/// What links and memory do, as the cost model has it. What these ranks do not have stays as built in.
fn parameters(world: &World, limits: &BandwidthLimits, measured: &[Times]) -> Result<Parameters> {
    let built_in = Tuning::built_in().parameters;
    let level = |link: Option<limits::LinkLimit>, instead| {
        link.map_or(instead, |link: limits::LinkLimit| Level {
            latency_us: rounded(link.latency * 1e6),
            gb_per_s: rounded(link.both_ways / 1e9),
        })
    };
    // A sum of nothing much in shared memory is two waits of all for all.
    let shm = measured.iter().find(|times| times.algorithm == AllreduceKind::Shm.name() && world.size() > 1);
    let waits = shm.map_or(built_in.shared.latency_us, |times| times.us[0] / 2.0);
    let threads = world.threads(None)?;
    let rate = world.agree(Cpu::new(threads).and_then(|device| device.sgemm_rate(3)));
    let mut rate = [rate.map_or(built_in.gflops_per_thread, |rate| rate / 1e9 / threads as f64)];
    world.min_f64(&mut rate)?;
    Ok(Parameters {
        within: level(limits.within, built_in.within),
        between: level(limits.between, built_in.between),
        shared: Level { latency_us: rounded(waits), gb_per_s: rounded(limits.copy / 1e9) },
        add_gb_per_s: rounded(limits.add / 1e9),
        round_gb_per_s: rounded(limits.convert / 1e9),
        gflops_per_thread: rounded(rate[0]),
    })
}

/// Four digits: more was not measured.
fn rounded(number: f64) -> f64 {
    format!("{number:.3e}").parse().unwrap_or(number)
}

/// What was measured beside what the model says without it, and the choice for each size.
fn print(tuning: &Tuning, nodes: &Nodes, sizes: &[usize]) {
    let (model, best) = (
        Cost::new(nodes, Wire::F32, &Tuning { measured: Vec::new(), ..tuning.clone() }),
        Cost::new(nodes, Wire::F32, tuning),
    );
    record::print(&format!(
        "#{:>9} {:>18} {:>13} {:>13}  chosen",
        "size", "algorithm", "measured us", "modelled us"
    ));
    for &bytes in sizes {
        let shared =
            tuning.measured.iter().any(|times| ["shm", "hierarchical"].contains(&times.algorithm.as_str()));
        let (chosen, _) = best.best(bytes, shared);
        for kind in CANDIDATES {
            let Some((at, seconds)) = tuning.measured(kind, bytes) else { continue };
            if at == bytes {
                record::print(&format!(
                    "{:>10} {:>18} {:>13.2} {:>13.2}  {}",
                    show(bytes),
                    kind.name(),
                    seconds * 1e6,
                    model.seconds(kind, bytes).unwrap_or(f64::NAN) * 1e6,
                    if kind == chosen { "*" } else { "" }
                ));
            }
        }
    }
}
