//! Which way to share the work is the fastest that fits: `--parallel auto`.
//!
//! Every candidate is sketched (`sketch`): seconds and bytes by formulas over what two plans of the whole network say,
//! with and without recomputation. Those that clearly do not fit fall out; the fastest of the others are planned and
//! rehearsed as `--predict-nodes` does it (`prediction`), and the fastest of these that fits is taken. All of it
//! follows from flags, the number of ranks and what was measured of the machine, so that the same question has the same
//! answer.
//!
//! Albert Njoroge Kahira et al.: "An oracle for guiding large-scale model/hybrid parallel training of convolutional
//! neural networks", HPDC 2021, chooses among fewer by formulas alone.

use std::fmt::Write;

use super::device;
use super::greatest;
use super::groups::Groups;
use super::network::Network;
use super::plans::{Planning, Plans, measured};
use super::prediction::Predictor;
use super::sketch::{Sketch, sketch};
use crate::comm::World;
use crate::config::{
    AllreduceKind, Config, Parallel, Pipeline, PipelineSchedule, Strategy, SyncBatchNorm, TensorParallel,
    Wire,
};
use crate::error::{Error, Result};
use crate::model::Model;
use crate::plan::{describe_bytes as bytes, describe_seconds as time};
use crate::reducer::{Averaging, StepTimes};
use crate::simulate::Interconnect;
use crate::{host, record};

/// Candidates that are planned and rehearsed.
const REHEARSED: usize = 12;

/// The most stages, and the most ranks of a group that shares layers or images, that are looked at: each costs a plan.
const MOST_PARTS: usize = 16;

/// A sketch that needs so many times the limit is not looked at again: sketches are off by some tenths.
const SURELY_TOO_LARGE: f64 = 1.3;

/// Where one of ZeRO's stages needs no more than so many times the limit the stages behind it, which are no faster, are
/// not looked at.
const SURELY_FITS: f64 = 0.7;

/// Where data parallelism fits, a way to share layers or images that by its sketch takes so many times as long is not
/// looked at.
const SURELY_SLOWER: f64 = 1.2;

/// Candidates that take at most so many times as long as the fastest one are alike: an independent simulation of the
/// same steps differs by up to 0.8 % (`make bench-predict`), so that below that rehearsals do not tell which is faster.
const ALIKE: f64 = 1.01;

/// The same of bytes that a rank needs: sums of planned bytes are what a run takes within 5 % (docs/architecture.md).
const ALIKE_MEMORY: f64 = 1.05;

/// One way to share the work.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    /// Stages, micro-batches and their order.
    pub pipeline: Option<(usize, usize, PipelineSchedule)>,
    /// Over how many ranks large linear layers are split; 1 is none.
    pub tensor: usize,
    /// Over how many ranks images are cut by rows, and micro-steps.
    pub rows: Option<(usize, usize)>,
    /// ZeRO's stage; 0 is none.
    pub zero: u8,
    /// Whether activations are computed again.
    pub recompute: bool,
    /// What gradients travel as.
    pub wire: Wire,
}

impl Candidate {
    /// Data parallelism.
    const PLAIN: Candidate =
        Candidate { pipeline: None, tensor: 1, rows: None, zero: 0, recompute: false, wire: Wire::F32 };

    /// The flags that say the same.
    fn flags(&self, config: &Config) -> String {
        let mut flags = Vec::new();
        if let Some((stages, micro_batches, schedule)) = self.pipeline {
            let batch = config.batch * config.accumulation * stages;
            flags.push(format!("--pipeline {stages} --batch {batch} --micro-batches {micro_batches}"));
            flags.extend(
                (schedule != PipelineSchedule::OneForwardOneBackward)
                    .then(|| format!("--schedule {schedule}")),
            );
        }
        flags.extend((self.tensor > 1).then(|| format!("--tensor {}", self.tensor)));
        if let Some((parts, micro_steps)) = self.rows {
            let of = self.of(config);
            flags.push(format!("--spatial {parts}"));
            flags.extend((of.batch != config.batch).then(|| format!("--batch {}", of.batch)));
            flags.extend(
                (micro_steps != config.accumulation).then(|| format!("--accumulation {micro_steps}")),
            );
        }
        flags.extend((self.zero > 0).then(|| self.strategy().to_string()));
        flags.extend((self.recompute && !config.recompute).then(|| "--recompute".into()));
        flags.extend((self.wire != config.wire).then(|| format!("--wire {}", self.wire)));
        if flags.is_empty() { "data parallelism".into() } else { flags.join(" ") }
    }

    /// Who updates what.
    fn strategy(&self) -> Strategy {
        match self.zero {
            0 => Strategy::Allreduce,
            stage => Strategy::Zero(stage),
        }
    }

    /// The run in which the work is shared so. The images of a step stay the same.
    fn of(&self, config: &Config) -> Config {
        let strategy = self.strategy();
        let (recompute, wire) = (self.recompute, self.wire);
        let config = Config { strategy, recompute, wire, parallel: None, ..config.clone() };
        if let Some((parts, micro_steps)) = self.rows {
            let batch = config.batch * config.accumulation * parts / micro_steps;
            return Config { spatial: parts, batch, accumulation: micro_steps, ..config };
        }
        if self.tensor > 1 {
            return Config { tensor: Some(TensorParallel { ranks: self.tensor, groups: None }), ..config };
        }
        let Some((stages, micro_batches, schedule)) = self.pipeline else { return config };
        let batch = config.batch * config.accumulation * stages / micro_batches;
        let pipeline = Some(Pipeline { stages, schedule, cuts: Vec::new(), data: None });
        Config { pipeline, batch, accumulation: micro_batches, ..config }
    }
}

/// The last of ZeRO's stages that goes with the other flags.
fn last_stage(config: &Config, ranks: usize) -> u8 {
    let needs_all =
        config.shards.is_some() || config.compress.is_some() || config.outputs.histograms.is_some();
    let elsewhere = config.allreduce.is_between_gpus() || config.allreduce == AllreduceKind::MPI;
    match ranks {
        1 => 0,
        _ if needs_all || elsewhere => 0,
        // Nobody owns what is frozen.
        _ if !config.network.freeze.is_empty() => 2,
        _ => 3,
    }
}

/// Into how many parts so many ranks can share something, each part one rank's.
pub fn parts(ranks: usize) -> impl Iterator<Item = usize> {
    (2..=ranks.min(MOST_PARTS)).filter(move |&parts| ranks.is_multiple_of(parts))
}

/// All that there are for so many ranks, the simpler ones first. With batch normalisation a micro-batch has as many
/// images as the batch of a rank: else statistics would be of others. Some may not be possible with this network.
fn candidates(config: &Config, parallel: &Parallel, ranks: usize, normalises: bool) -> Vec<Candidate> {
    let wires = match parallel.lossy && config.wire == Wire::F32 && config.compress.is_none() {
        true => vec![Wire::F32, Wire::Bf16],
        false => vec![config.wire],
    };
    let recompute: &[bool] = if config.recompute { &[true] } else { &[false, true] };
    let mut all = Vec::new();
    for &wire in &wires {
        for &recompute in recompute {
            let zeros = 0..=last_stage(config, ranks);
            all.extend(zeros.map(|zero| Candidate { zero, recompute, wire, ..Candidate::PLAIN }));
        }
    }
    if parallel.without_split_layers.is_none() {
        for (tensor, &wire) in parts(ranks).flat_map(|parts| wires.iter().map(move |wire| (parts, wire))) {
            let of = |&recompute| Candidate { tensor, recompute, wire, ..Candidate::PLAIN };
            all.extend(recompute.iter().map(of));
        }
    }
    if parallel.without_rows.is_none() {
        all.extend(of_rows(config, ranks, normalises, (recompute, &wires)));
    }
    if parallel.without_stages.is_some() {
        return all;
    }
    let images = config.batch * config.accumulation;
    for stages in parts(ranks) {
        let counts = match normalises {
            true => vec![config.accumulation * stages],
            false => [stages, 2 * stages, 4 * stages].to_vec(),
        };
        for micro_batches in counts.into_iter().filter(|&count| (images * stages).is_multiple_of(count)) {
            let mut schedules = vec![PipelineSchedule::OneForwardOneBackward, PipelineSchedule::ZeroBubble];
            if micro_batches.is_multiple_of(stages) {
                schedules.push(PipelineSchedule::Interleaved(2));
            }
            for schedule in schedules {
                let pipeline = Some((stages, micro_batches, schedule));
                // Between a single network's stages there is nothing to sum.
                let wires = if ranks > stages { &wires[..] } else { &wires[..1] };
                // Gradients of weights that have a pass of their own read activations again much later.
                let recompute = recompute.iter().filter(|&&again| !(again && schedule.splits_weights()));
                for &recompute in recompute {
                    let of = |&wire| Candidate { pipeline, recompute, wire, ..Candidate::PLAIN };
                    all.extend(wires.iter().map(of));
                }
            }
        }
    }
    all
}

/// Those with images that are cut by rows: all images of a group at a time, or as many as one rank has otherwise, which
/// needs less memory. Statistics are those of so many, or where more ranks share them, of all that there are at a time.
fn of_rows(
    config: &Config,
    ranks: usize,
    normalises: bool,
    (recompute, wires): (&[bool], &[Wire]),
) -> Vec<Candidate> {
    let mut all = Vec::new();
    for parts in parts(ranks) {
        let [together, apart] = [config.accumulation, config.accumulation * parts];
        let counts = match config.sync_bn {
            SyncBatchNorm::Off if normalises => vec![apart],
            SyncBatchNorm::Groups(of) if !of.is_multiple_of(parts) => continue,
            SyncBatchNorm::All | SyncBatchNorm::Groups(_) => vec![together],
            SyncBatchNorm::Off => vec![together, apart],
        };
        for (rows, &wire) in
            counts.iter().flat_map(|&count| wires.iter().map(move |wire| ((parts, count), wire)))
        {
            for &recompute in recompute {
                let zeros = 0..=last_stage(config, ranks).min(1);
                let of = |zero| Candidate { rows: Some(rows), zero, recompute, wire, ..Candidate::PLAIN };
                all.extend(zeros.map(of));
            }
        }
    }
    all
}

/// What became of a candidate.
enum Outcome {
    /// Its step: seconds, images a second, seconds that a rank waits, bytes sent, bytes at the peak.
    Rehearsed { seconds: f64, images: f64, exposed: f64, sent: usize, memory: usize },
    /// The network has nothing that could be shared so.
    None,
    /// Why it was not looked at.
    Left(String),
}

/// The fastest way that fits on so many nodes, and a table of all.
///
/// # Errors
/// `Usage` where none fits.
pub fn choose(
    predictor: &Predictor,
    parallel: &Parallel,
    nodes: usize,
    network: Option<&Interconnect>,
) -> Result<Choice> {
    let config = predictor.of.config;
    let ranks = predictor.local * nodes;
    let (sketch, normalises) = sketch(predictor, nodes, network)?;
    let all = candidates(config, parallel, ranks, normalises);
    let limit = parallel.memory_limit.unwrap_or(usize::MAX);
    let mut outcomes: Vec<(Candidate, Outcome)> = Vec::new();
    let mut promising: Vec<(usize, f64)> = Vec::new();
    for (index, candidate) in all.iter().enumerate() {
        let (promises, outcome) = sketched(&sketch, candidate, config, limit);
        promising.extend(promises.map(|seconds| (index, seconds)));
        outcomes.push((candidate.clone(), outcome));
    }
    promising.sort_by(|one, other| one.1.total_cmp(&other.1).then(one.0.cmp(&other.0)));
    promising.truncate(REHEARSED);
    let mut turns: Vec<usize> = promising.into_iter().map(|(index, _)| index).collect();
    turns.sort_unstable();
    let (first, mut before, mut fits) = (turns.len(), None, false);
    // Where none of these fits, those of the others which need least, until one does. Sketches may be far off: none is
    // left out.
    let is_other = |index: &usize| !matches!(outcomes[*index].1, Outcome::None) && !turns.contains(index);
    let mut others: Vec<usize> = (0..all.len()).filter(is_other).collect();
    others.sort_by_key(|index| sketch.of(&all[*index]).1);
    for (turn, index) in turns.into_iter().chain(others).enumerate() {
        if turn >= first && fits {
            break;
        }
        let planned = match predictor.plan(nodes, &all[index].of(config), network, before.take()) {
            Ok(planned) => planned,
            Err(error) => {
                outcomes[index].1 = Outcome::Left(error.to_string());
                continue;
            }
        };
        let found = planned.case(&predictor.of).predicted(None)?;
        let (seconds, images, exposed) = (found.seconds, found.images, found.exposed);
        let (sent, memory) = (found.sent, found.memory);
        fits |= memory <= limit;
        outcomes[index].1 = Outcome::Rehearsed { seconds, images, exposed, sent, memory };
        before = Some((planned.plans, planned.shape));
    }
    let best = best(&outcomes, limit, config.wire);
    let table = table(config, &outcomes, best, [ranks, nodes, limit])
        + &refused(parallel)
        + &predictor.of.averaging.doubts();
    match best {
        Some(index) => Ok(Choice { config: all[index].of(config), table, index, normalises }),
        None => Err(Error::usage(format!(
            "--parallel auto: nothing fits in {} a rank{}; start more ranks, or give a smaller --batch\n{table}",
            bytes(limit),
            leanest(config, &outcomes)
        ))),
    }
}

/// What the way needs that needs least, in words.
fn leanest(config: &Config, outcomes: &[(Candidate, Outcome)]) -> String {
    let needs = outcomes.iter().filter_map(|(candidate, outcome)| match outcome {
        Outcome::Rehearsed { memory, .. } => Some((candidate, *memory)),
        _ => None,
    });
    needs.min_by_key(|(_, memory)| *memory).map_or(String::new(), |(candidate, memory)| {
        format!("; the leanest way, {}, needs {}", candidate.flags(config), bytes(memory))
    })
}

/// The seconds that a candidate promises, if it may be planned, and what is said of it if it is not.
fn sketched(sketch: &Sketch, candidate: &Candidate, config: &Config, limit: usize) -> (Option<f64>, Outcome) {
    if !sketch.has(candidate) {
        return (None, Outcome::None);
    }
    let (seconds, needed) = sketch.of(candidate);
    let surely = |needed: usize| needed as f64 <= SURELY_FITS * limit as f64;
    let before = Candidate { zero: candidate.zero.saturating_sub(1), ..candidate.clone() };
    let plain = Candidate { tensor: 1, rows: None, ..candidate.clone() };
    let (least, of_plain) = sketch.of(&plain);
    let kept = Candidate { recompute: config.recompute, ..candidate.clone() };
    let why = format!("by a sketch {}", time(seconds));
    let why = match candidate {
        _ if needed as f64 > SURELY_TOO_LARGE * limit as f64 => {
            format!("by a sketch needs {}", bytes(needed))
        }
        Candidate { zero: 2.., .. } if surely(sketch.of(&before).1) => {
            format!("{why}; {} fits", before.strategy())
        }
        // What is computed again in vain.
        _ if kept != *candidate && surely(sketch.of(&kept).1) => {
            format!("{why}; {} fits", kept.flags(config))
        }
        // What is shared in vain.
        _ if plain != *candidate && surely(of_plain) && seconds > SURELY_SLOWER * least => {
            format!("{why}; {} fits", plain.flags(config))
        }
        _ => return (Some(seconds), Outcome::Left(why)),
    };
    (None, Outcome::Left(why))
}

/// Of those that fit and are about as fast as the fastest: whose gradients travel as was asked for, then what sends the
/// fewest bytes, which is less to go wrong in what no prediction knows, then what needs the least memory, then the
/// simplest.
fn best(outcomes: &[(Candidate, Outcome)], limit: usize, wire: Wire) -> Option<usize> {
    let fits = |(index, (candidate, outcome)): (usize, &(Candidate, Outcome))| match outcome {
        Outcome::Rehearsed { seconds, sent, memory, .. } if *memory <= limit => {
            let lossy = f64::from(u8::from(candidate.wire != wire));
            Some((index, [*seconds, lossy, *sent as f64, *memory as f64]))
        }
        _ => None,
    };
    let mut left: Vec<(usize, [f64; 4])> = outcomes.iter().enumerate().filter_map(fits).collect();
    for (criterion, alike) in [ALIKE, 1.0, 1.0, ALIKE_MEMORY].into_iter().enumerate() {
        let least = left.iter().map(|(_, of)| of[criterion]).fold(f64::INFINITY, f64::min);
        left.retain(|(_, of)| of[criterion] <= alike * least);
    }
    left.first().map(|(index, _)| *index)
}

fn refused(parallel: &Parallel) -> String {
    let Parallel { without_stages, without_split_layers, without_rows, .. } = parallel;
    let ways = [
        ("pipelines", without_stages),
        ("split layers", without_split_layers),
        ("images by rows", without_rows),
    ];
    let refused = ways.iter().filter_map(|(way, why)| Some((way, why.as_ref()?)));
    refused.map(|(way, why)| format!("not looked at: {way} ({why})\n")).collect()
}

fn table(
    config: &Config,
    outcomes: &[(Candidate, Outcome)],
    best: Option<usize>,
    [ranks, nodes, limit]: [usize; 3],
) -> String {
    let within =
        if limit == usize::MAX { String::new() } else { format!(", at most {} a rank", bytes(limit)) };
    let mut text = format!(
        "\nways to share a step of {} {} among {ranks} rank{} on {nodes} node{}{within}; * is taken\n{:>14}{:>12}\
         {:>14}{:>9}{:>14}{:>15}  way\n",
        config.images_a_step(ranks),
        config.unit(),
        if ranks == 1 { "" } else { "s" },
        if nodes == 1 { "" } else { "s" },
        "step",
        format!("{}/s", config.unit()),
        "waits",
        "idle",
        "sends a step",
        "memory a rank",
    );
    for (index, (candidate, outcome)) in outcomes.iter().enumerate() {
        let mark = if best == Some(index) { "*" } else { " " };
        let flags = candidate.flags(config);
        let _ = match outcome {
            Outcome::Rehearsed { seconds, images, exposed, sent, memory } => {
                let idle = candidate.pipeline.map_or("-".into(), |(stages, micro_batches, schedule)| {
                    format!("{:.1}%", 100.0 * schedule.bubble(stages, micro_batches))
                });
                let why = if *memory > limit { ": does not fit" } else { "" };
                let [step, waits] = [seconds, exposed].map(|&seconds| time(seconds));
                writeln!(
                    text,
                    "{mark}{step:>13}{images:>12.1}{waits:>14}{idle:>9}{:>14}{:>15}  {flags}{why}",
                    bytes(*sent),
                    bytes(*memory)
                )
            }
            Outcome::None => Ok(()),
            Outcome::Left(why) => writeln!(text, "{mark}{:>77}  {flags}: {why}", "-"),
        };
    }
    text
}

/// What steps took, measured with no more memory than the limit: of fewer images, and of fewer updates, where all would
/// take more. By rates, with a warning, where a single image is too much. Collective.
///
/// # Errors
/// As for `measured`.
pub fn measured_within(
    groups: &Groups,
    of: &Planning,
    network: &Network,
    plans: &Plans,
    limit: Option<usize>,
) -> Result<Option<StepTimes>> {
    let (Some(limit), Some(_)) = (limit, of.config.measure) else {
        return measured(groups, of, plans, usize::MAX);
    };
    let (world, rule) = (&groups.job, &of.config.optimizer.rule);
    let mut needed = greatest(world, plans.measured_bytes(rule))?;
    let (mut fewer, mut images) = (None, of.config.batch);
    while needed > limit && images > 1 {
        images /= 2;
        let config = &Config { batch: images, ..of.config.clone() };
        let Ok(smaller) = world.agree(Plans::new(&Planning { config, ..*of }, network)) else {
            // A single image may be too few to normalise.
            break;
        };
        needed = greatest(world, smaller.measured_bytes(rule))?;
        fewer = Some(smaller);
    }
    if needed > limit {
        let text = format!(
            "--measure: to run the whole network on {images} image{} takes {} a rank, more than --memory-limit {}; \
             predicted by rates",
            if images == 1 { "" } else { "s" },
            bytes(needed),
            bytes(limit)
        );
        record::log(world, log::Level::Warn, &text);
        return Ok(None);
    }
    let room = limit - host::rss().unwrap_or(0).min(limit);
    measured(groups, of, fewer.as_ref().unwrap_or(plans), room)
}

/// The program's memory in a run that was chosen for what its plan needs: what the planner took it for, unless the run
/// needs so much more for its data, or less, that it would be another figure.
pub fn one_figure(world: &World, known: usize, found: usize, total: usize) -> usize {
    if found.abs_diff(known) as f64 <= (ALIKE_MEMORY - 1.0) * total as f64 {
        return known;
    }
    if found > known {
        let more = bytes(found - known);
        let text = format!("the data sets of this run take {more} beside what --parallel auto counted");
        record::say(world, &text);
    }
    found
}

/// Chooses how the run is shared, where `--parallel auto` asks for that; also returns the bytes that the planner
/// assumed for the program itself. Rank 0 plans for all; collective.
///
/// # Errors
/// `Usage` where nothing fits, or nodes have unlike numbers of ranks.
pub fn decided(world: &World, config: Config, model: Option<&Model>) -> Result<(Config, Option<usize>)> {
    let Some(parallel) = config.parallel.clone().filter(|_| config.prediction.is_none()) else {
        return Ok((config, None));
    };
    if !world.is_even() {
        return world.agree(Err(Error::usage(
            "--parallel auto: this job has not as many ranks on every node; start it so",
        )));
    }
    let threads = world.threads(config.threads)?;
    let network = Network::agree(world, &config, model.cloned(), world.size())?;
    let (device, opened) = device::open(world, &config, threads)?;
    let mut averaging = Averaging::new(world, &opened, &*device, threads)?;
    let free = host::available_memory().map(|bytes| bytes / world.local_size().max(1));
    let free = device.free_bytes()?.or(free).unwrap_or(usize::MAX);
    let mut least = [parallel.memory_limit.map_or(free, |limit| limit.min(free)) as f64];
    world.min_f64(&mut least)?;
    let parallel = Parallel { memory_limit: Some(least[0] as usize), ..parallel };
    let evaluate = config.data.is_some();
    let here = Config { parallel: None, ..opened.clone() };
    let here = world.agree(here.among(world.size()))?;
    let groups = Groups::whole(world);
    let (layout, device) = (groups.layout(), &*device);
    let of = Planning { layout, config: &here, device, averaging: &averaging, evaluate };
    let plans = world.agree(Plans::new(&of, &network))?;
    // The process with the kernels of one plan, as a run has them: of the rank that has most.
    let program = greatest(world, plans.program(&here, 0))?;
    let times = measured_within(&groups, &of, &network, &plans, parallel.memory_limit)?;
    averaging.set_steps(times);
    drop(plans);
    let of = Planning { layout, config: &opened, device, averaging: &averaging, evaluate };
    let predictor = Predictor { of, network: &network, local: world.local_size(), program };
    let chosen = match world.rank() {
        0 => choose(&predictor, &parallel, world.nodes(), None).map(Some),
        _ => Ok(None),
    };
    // All have the same list, if they know whether batches are normalised.
    let (mut number, mut text) = ([f64::INFINITY; 2], String::new());
    if let Some(Choice { index, normalises, table, .. }) = world.agree(chosen)? {
        (number, text) = ([index as f64, f64::from(u8::from(normalises))], table);
    }
    world.min_f64(&mut number)?;
    record::say(world, &text);
    let all = candidates(&config, &parallel, world.size(), number[1] > 0.0);
    let chosen = all.get(number[0] as usize).ok_or_else(|| Error::internal("a choice that is none"))?;
    // What other plans have left behind is not the run's.
    world.agree(device.forget())?;
    Ok((chosen.of(&config), Some(program)))
}

/// What was chosen.
pub struct Choice {
    /// The run in which the work is shared so.
    pub config: Config,
    /// All candidates.
    pub table: String,
    index: usize,
    normalises: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds, bytes sent and memory of each, in the order of candidates.
    fn taken(all: &[(Candidate, [f64; 3])], limit: usize) -> Option<usize> {
        let of = |(candidate, [seconds, sent, memory]): &(Candidate, [f64; 3])| {
            let (seconds, sent, memory) = (*seconds, *sent as usize, *memory as usize);
            (candidate.clone(), Outcome::Rehearsed { seconds, images: 1.0, exposed: 0.0, sent, memory })
        };
        let outcomes: Vec<_> = all.iter().map(of).collect();
        best(&outcomes, limit, Wire::F32)
    }

    #[test]
    fn of_ways_that_are_alike_that_which_sends_and_needs_least_is_taken() {
        let split = |tensor| Candidate { tensor, ..Candidate::PLAIN };
        let zero = |zero| Candidate { zero, ..Candidate::PLAIN };
        let all = |seconds: f64| {
            vec![
                (Candidate::PLAIN, [1.0, 800.0, 1000.0]),
                (split(2), [0.96, 400.0, 700.0]),
                (split(4), [seconds, 200.0, 600.0]),
            ]
        };
        // The fastest; of two within a hundredth that which sends less, though the other is faster.
        assert_eq!(taken(&all(1.0), usize::MAX), Some(1));
        assert_eq!(taken(&all(0.969), usize::MAX), Some(2));
        assert_eq!(taken(&all(0.97), usize::MAX), Some(1));
        assert_eq!(taken(&all(0.97), 650), Some(2));
        assert_eq!(taken(&all(0.97), 500), None);
        // As many bytes: less memory, if it is less than what plans are off by; else the simpler one.
        let memory = |memory| vec![(zero(0), [1.0, 800.0, 1000.0]), (zero(1), [1.0, 800.0, memory])];
        assert_eq!(taken(&memory(940.0), usize::MAX), Some(1));
        assert_eq!(taken(&memory(960.0), usize::MAX), Some(0));
        // What rounds gradients is taken for its time alone.
        let rounded = Candidate { wire: Wire::Bf16, ..Candidate::PLAIN };
        let wires =
            |seconds| vec![(zero(0), [1.0, 800.0, 1000.0]), (rounded.clone(), [seconds, 400.0, 900.0])];
        assert_eq!(taken(&wires(0.995), usize::MAX), Some(0));
        assert_eq!(taken(&wires(0.98), usize::MAX), Some(1));
    }
}
