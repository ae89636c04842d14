//! Everything before the first step. Each part that can fail is agreed on by all ranks before the next begins, so
//! that bad input stops the whole job with one message and nothing is overwritten.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::time::Instant;

use super::assemble::Assembly;
use super::checkpoint::{self, Resumed, Saver, Standing};
use super::commit::Commits;
use super::device;
use super::evaluate::Evaluator;
use super::greatest;
use super::groups::Groups;
use super::length::Length;
use super::max_batch;
use super::memory::Memories;
use super::network::Network;
use super::pace::Pace;
use super::planner;
use super::plans::{Plans, computing, measured, opening};
use super::prediction::{self, Predictor};
use super::source::{Source, decided, open_data, open_sets};
use super::state::State;
use super::step::Trainer;
use super::stop::Watch;
use super::testing;
use super::weights::Start;
use crate::comm::{self, Phase, World};
use crate::config::{Config, JpegDecoder, Pipeline, Prediction, Strategy, Wire, environment};
use crate::data::Sets;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::graph::{Graph, Role, TensorId};
use crate::interconnect::Interconnect;
use crate::model::Model;
use crate::optim::{self, Schedule};
use crate::plan::{Action, Plan, Rehearsal, Script};
use crate::record::{self, Checkpoints, Description, Recorder, Scheduled};
use crate::reducer::{Averaging, seats};

/// A run that is ready to go.
pub struct Job {
    pub groups: Groups,
    /// The ranks that compute, on one of them; on a rank that serves those that do.
    pub peers: World,
    pub device: Box<dyn Device>,
    pub source: Source,
    /// `None` for synthetic images.
    pub evaluator: Option<Evaluator>,
    pub trainer: Trainer,
    pub schedule: Schedule,
    pub epochs: usize,
    /// Steps of the whole run, warm-up included.
    pub total_steps: usize,
    /// Bytes of a rank at its peak, as planned.
    pub planned_memory: usize,
    /// What a checkpoint calls the optimizer's states.
    pub states: &'static [&'static str],
    pub standing: Standing,
    pub saver: Saver,
    /// What to do where numbers are no longer finite.
    pub remedy: &'static str,
    /// Copies of the state in memory, where they are wanted.
    pub commits: Option<Commits>,
    pub plan: Plan,
    pub memories: Memories,
    /// Names of the classes, where the data have as many as the network tells apart, and how images are prepared.
    pub about: record::About,
    pub pace: Pace,
}

/// Prepares the run; `known` is what a planner has taken the program's memory for. `None` when only a plan, a batch size
/// or a test was asked for, which has been printed. Collective.
///
/// # Errors
/// The same on every rank.
pub fn prepare(
    groups: &Groups,
    config: &Config,
    model: Option<Model>,
    watch: Watch,
    (started, known): (Instant, Option<usize>),
) -> Result<Option<(Job, Recorder)>> {
    let world = &groups.job;
    let asked = config;
    let config = &planned_here(world, config);
    let tell = |what: &str| log::debug!("{what}: {:.3} s after the start", started.elapsed().as_secs_f64());
    tell("flags agreed on");
    let workers = world.agree(ranks_that_compute(world, config))?;
    let interconnect = world.agree(interconnect(world, config))?;
    let network = Network::agree(world, config, model, workers)?;
    if let Some(prediction) = &config.prediction {
        world.agree(prediction::check(prediction, interconnect.as_ref(), world, asked, &network))?;
    }
    let threads = world.threads(config.threads)?;
    if let Some(limit) = config.max_batch {
        let (device, config) = device::open(world, config, threads)?;
        let config = &config;
        let averaging = Averaging::new(world, config, &*device, threads)?;
        // Its images count, as they do in a run.
        let sets = open_sets(world, config, &network, None)?;
        let config = &decided(config, sets.as_ref(), threads);
        let all_pixels = sets.as_ref().and_then(Sets::pixels);
        let network = network.reading(all_pixels.filter(|_| normalises(&*device)));
        let answer = world.agree(max_batch::answer(groups, &network, config, &*device, &averaging, limit))?;
        record::say(world, &answer);
        return world.agree(record::printed()).map(|()| None);
    }
    if config.evaluate {
        return testing::run(world, config, network, &watch).map(|()| None);
    }
    if let Some(directory) = config.session.checkpoint.as_deref().filter(|_| !config.dry_run) {
        // Before any of them is looked at: another run may be writing them.
        owning(world, config, || record::own_checkpoints(world.into(), directory))?;
    }
    let resumed = if config.dry_run { None } else { Resumed::find(world, config)? };
    let (path, checkpoints) =
        owning(world, config, || outputs(world, config, network.model.name(), resumed.as_ref()))?;
    comm::enter(Phase::Data, 0);
    owning(world, config, || weights_path(world, config, &network, resumed.as_ref()))?;
    // A run that goes on has its weights.
    let start = if resumed.is_some() { None } else { Start::agree(world, config, &network)? };
    let weights = match &resumed {
        Some(resumed) => Some(world.agree(resumed.said())?),
        None => start.as_ref().map(Start::said),
    };
    let sets = open_sets(world, config, &network, weights)?;
    let config = &decided(config, sets.as_ref(), threads);
    let images = images(config, sets.as_ref());
    let names = sets.as_ref().map_or(&[][..], |sets| sets.training.set().class_names());
    let class_names = if names.len() == network.classes { names.to_vec() } else { Vec::new() };
    let preprocessing = sets.as_ref().map(|sets| sets.training.expected().clone());
    let about = record::About { class_names, preprocessing };
    let all_pixels = sets.as_ref().and_then(Sets::pixels);
    let (source, test) = open_data(groups, config, &network, sets)?;
    tell("data sets open");
    comm::enter(Phase::Plan, 0);
    let (device, config) = device::open(world, config, threads)?;
    let config = &config;
    let network = network.reading(all_pixels.filter(|_| normalises(&*device)));
    let rule = config.optimizer.rule;
    let averaging = averaging(groups, config, &*device, threads)?;
    let plan = |averaging: &Averaging| {
        world.agree(Plans::new(groups.layout(), config, &network, &*device, averaging, test.is_some()))
    };
    let mut plans = plan(&averaging)?;
    if keep_apart_alike(world, &*device)? {
        plans = plan(&averaging)?;
    }
    let cuts_anew = groups.stage.is_some() && config.measure.is_some();
    // Each stage runs its own steps, and the network is cut anew by what they took.
    let averaging = match cuts_anew {
        true => measured(groups, config, &*device, &plans, averaging, usize::MAX)?,
        false => averaging,
    };
    plans = if cuts_anew { plan(&averaging)? } else { plans };
    plans.compare(groups, config, &*device)?;
    tell(&format!(
        "{} steps planned in {} buckets",
        plans.training.steps.len(),
        plans.training.buckets.len()
    ));
    // What a run goes on from is counted with checkpoints. Every rank says the same, that of the largest.
    let resumed_bytes = resumed.as_ref().map_or(0, Resumed::bytes);
    let read = start.as_ref().map_or(0, Start::largest);
    let program = plans.program(read) + source.kept();
    let program = program.saturating_sub(resumed_bytes);
    plans.extent.program = greatest(world, program)?;
    if let Some(known) = known {
        plans.extent.program = planner::one_figure(world, known, plans.extent.program, plans.total());
    }
    if config.dry_run {
        world.agree(plans.write_steps(world, config))?;
        record::say(world, &world.agree(plans.describe(groups.layout(), config, &*device, &averaging))?);
        if let Some(prediction) = &config.prediction {
            let evaluate = test.is_some();
            let subject = (&network, &*device, evaluate);
            let limit = asked.parallel.as_ref().and_then(|parallel| parallel.memory_limit);
            let averaging = planner::measured_within(groups, config, subject, &plans, averaging, limit)?;
            let Config { strategy, pipeline, tensor, spatial, .. } = asked.clone();
            let config = &Config { strategy, pipeline, tensor, spatial, ..config.clone() };
            let answer = predicted(
                world,
                config,
                (prediction, interconnect),
                (&network, &*device, &averaging, evaluate),
                plans,
            );
            record::say(world, &world.agree(answer)?);
        }
        return world.agree(record::printed()).map(|()| None);
    }
    // All ranks have the same plan, and one goes through the step for all of them.
    let rehearsed = match world.rank() {
        0 => plans
            .rehearse(groups.layout(), config, &averaging)
            .map(|(scripts, rehearsal)| scheduled(&scripts[0], &rehearsal)),
        _ => Ok(Vec::new()),
    };
    let script = world.agree(rehearsed)?;
    let expected = script.last().map_or(f64::NAN, |end| end.times[1]);
    let relaxed = config.relaxed(workers).is_some();
    tell("step rehearsed");
    let identity = plans.identity(config, &network.model, source.parts().0.fingerprint(), &rule);
    if let Some(resumed) = &resumed {
        world.agree(resumed.check(world, config, &identity))?;
    }
    world.agree(max_batch::check(groups, &network, config, &*device, &averaging, &plans))?;
    let standing = resumed.as_ref().map_or_else(Standing::default, |resumed| resumed.standing);
    let length = Length::new(
        config,
        source.steps(),
        source.steps_after(standing.at.images),
        source.global_batch(),
        standing.at,
    );
    let mut description = describe(groups, config, &plans, &*device, threads, length, started);
    description.script = script;
    description.attributes.push(("images".into(), images));
    description.attributes.push(("network".into(), network.model.identity()));
    description.attributes.extend(about.texts().into_iter().map(|(name, text)| (name.into(), text)));
    description.attributes.push(("run".into(), checkpoint::run_name(resumed.as_ref())));
    let texts = checkpoint::texts(&description, world.size(), &identity, path.as_ref());
    let commits = Commits::open(world, config, resumed.is_some(), texts.clone())?;
    let saver = Saver::new(config, checkpoints, watch, texts, resumed.as_ref().map(|_| standing.at));
    comm::enter(Phase::Memory, 0);
    let data = &groups.data;
    let peers = match workers < data.size() {
        true => data.split(usize::from(data.rank() >= workers), data.rank())?,
        false => data.clone(),
    };
    let assembly = Assembly {
        groups,
        world: data,
        peers: &peers,
        config,
        averaging: &averaging,
        plans: &plans,
        device: &*device,
        rule: &rule,
    };
    let memories = assembly.memories(start.as_ref(), threads)?;
    let trainer = assembly.trainer(&memories)?;
    let evaluator = match (&plans.evaluation, test) {
        (Some(plan), Some(loader)) => Some(assembly.evaluator(plan, &memories, loader)?),
        _ => None,
    };
    let split = plans.split_layers();
    let mut job = Job {
        groups: groups.clone(),
        peers: peers.clone(),
        schedule: schedule(world, config, &source, length, standing.at.done),
        epochs: length.epochs,
        total_steps: length.steps,
        // Stages have unlike memory, and what is measured is that of the rank that has most.
        planned_memory: greatest(world, plans.total())?,
        states: optim::state_names(&rule),
        remedy: match config.wire {
            Wire::F16 => "Try --wire bf16 (with f16 a gradient beyond 65504 is infinite), or a smaller --lr",
            Wire::F32 | Wire::Bf16 => "Try a smaller --lr, or --lr-warmup",
        },
        plan: plans.training,
        device,
        source,
        evaluator,
        trainer,
        standing,
        saver,
        commits,
        memories,
        about,
        // Steps in which ranks meet, which are rehearsed, are not those of a round.
        pace: Pace::new(if relaxed { f64::NAN } else { expected }, averaging.is_measured()),
    };
    tell("memory and kernels ready");
    let reached = resumed.as_ref().map(Resumed::reached);
    let state = State::new(&job.plan, &job.memories, job.states, job.trainer.compressed_state());
    if let Some(resumed) = resumed {
        world.agree(state.restore(groups, &job.peers, &*job.device, &resumed.contents))?;
        if let Some(scaling) = &mut job.trainer.scaling {
            scaling.scaler = scaling.scaler.resumed(|name| resumed.contents.number(name).ok());
        }
    } else if config.session.resume.is_some() {
        // Before the record is there: a job killed from now on is resumed by the same command.
        job.saver.take(groups, &job.peers, &*job.device, &state, &job.standing, BTreeMap::new)?;
        world.agree(job.saver.finish())?;
    }
    let owners = config.strategy.describe(job.memories.owners, data.size(), data.nodes());
    let (stages, tensor, parts) = (config.stages(), groups.mesh.tensor, config.spatial);
    let owners = match &config.pipeline {
        None if tensor > 1 => {
            format!("{split} split over {tensor} ranks each, who update their parts; of the rest {owners}")
        }
        None if parts > 1 => format!("images cut by rows over {parts} ranks each; {owners}"),
        None => owners,
        Some(Pipeline { schedule, .. }) => {
            let of_stage = if data.size() > 1 { format!("; in each {owners}") } else { String::new() };
            format!("{stages} stages, {} micro-batches by {schedule}{of_stage}", config.accumulation)
        }
    };
    description.attributes.push(("owners".into(), owners));
    let data_ranks = if tensor > 1 { groups.mesh.data } else { workers / parts };
    let rows = if parts > 1 { format!(", spatial {parts}") } else { String::new() };
    let mesh = format!("data {data_ranks}, pipeline {stages}, tensor {tensor}{rows}");
    description.attributes.push(("mesh".into(), mesh));
    description.owned = owned_bytes(groups, &job.plan, &job.memories)?;
    description.attributes.push(("allreduce_used".into(), job.trainer.fusion.algorithms()));
    description.attributes.push(("allreduce_costs".into(), averaging.source()));
    let choices = averaging.choices(&job.plan, job.memories.gradients.region.is_shared());
    description.choices = choices.iter().map(|choice| (choice.name.into(), choice.seconds)).collect();
    // Where ranks have parameters of their own nothing is compressed but when they meet.
    let steps = config.relaxed(workers).map_or(1, |relaxed| relaxed.every as u64);
    description.compression = job.trainer.compression.as_ref().map(|account| record::Compression {
        scheme: config.compress.map(|scheme| scheme.to_string()).unwrap_or_default(),
        on_device: account.state.iter().any(|kept| !kept.on_host),
        sent: account.sent / steps,
        uncompressed: account.uncompressed / steps,
    });
    let recorder = match &reached {
        None => Recorder::create(world.into(), path.as_deref(), &description),
        Some(reached) => Recorder::resume(world.into(), path.as_deref(), &description, reached),
    };
    Ok(Some((job, world.agree(recorder)?)))
}

/// Where something is predicted of other ranks, who may be elsewhere: what these do.
fn planned_here(world: &World, config: &Config) -> Config {
    let mut planned = config.clone();
    if config.prediction.is_some() {
        (planned.pipeline, planned.tensor, planned.spatial) = (None, None, 1);
        if world.size() == 1 && config.strategy.computing(1) == 0 {
            planned.strategy = Strategy::Allreduce;
        }
    }
    planned
}

/// The network of `--predict-nodes`, for rank 0, which predicts for all: read before anything is planned or measured.
fn interconnect(world: &World, config: &Config) -> Result<Option<Interconnect>> {
    let path = config.prediction.as_ref().and_then(|asked| asked.network.as_deref());
    path.filter(|_| world.is_first()).map(Interconnect::read).transpose()
}

/// What `--predict-nodes` asks for, by rank 0 for all.
fn predicted(
    world: &World,
    config: &Config,
    (asked, interconnect): (&Prediction, Option<Interconnect>),
    (network, device, averaging, evaluate): (&Network, &dyn Device, &Averaging, bool),
    plans: Plans,
) -> Result<String> {
    if !world.is_first() {
        return Ok(String::new());
    }
    let (local, program) = (world.local_size(), plans.extent.program);
    Predictor { config, local, network, device, averaging, evaluate, program }.answer(
        asked,
        interconnect.as_ref(),
        plans,
    )
}

/// How many ranks compute gradients.
fn ranks_that_compute(world: &World, config: &Config) -> Result<usize> {
    match config.data_ranks(world.size()) {
        0 => Err(Error::usage(format!(
            "{}: of {} rank{} none is left to compute; start more",
            config.strategy,
            world.size(),
            if world.size() == 1 { "" } else { "s" }
        ))),
        computing => Ok(computing),
    }
}

/// Whether a device is to normalise images: pixels are a quarter of what numbers are to send. One that computes in the
/// host's memory has nothing sent.
pub fn normalises(device: &dyn Device) -> bool {
    !device.is_host() && !environment::CUDA_PIXELS.is_off()
}

/// What one rank has found by its own timing to be slower in one is apart on all ranks: plans are then the same. Says
/// whether any rank has to plan anew. Collective.
fn keep_apart_alike(world: &World, device: &dyn Device) -> Result<bool> {
    let found = world.gather_text(&device.apart().join("\n"))?;
    let all: BTreeSet<&str> = found.iter().flat_map(|names| names.lines()).collect();
    let all: Vec<String> = all.into_iter().map(String::from).collect();
    device.keep_apart(&all);
    Ok(found.iter().any(|names| *names != all.join("\n")))
}

/// What rank 0 owns, which may wait for a sign of life of who owned it before: no stall. Collective.
fn owning<T>(world: &World, config: &Config, own: impl FnOnce() -> Result<T>) -> Result<T> {
    world.limit_stalls(config.stall_warn, 0.0);
    let owned = world.agree(own());
    world.limit_stalls(config.stall_warn, config.stall_abort);
    owned
}

/// Where results and checkpoints go; both are tried before the expensive part begins.
fn outputs(
    world: &World,
    config: &Config,
    model: &str,
    resumed: Option<&Resumed>,
) -> Result<(Option<PathBuf>, Checkpoints)> {
    let (place, given) = (world.into(), config.results.as_deref());
    let path = match resumed {
        _ if config.dry_run => None,
        None => record::results_path(place, given, model)?,
        Some(resumed) => {
            let earlier = resumed.contents.text("results").as_ref();
            record::resumed_path(place, given, model, earlier)?
        }
    };
    if let (Some(events), true) = (&config.tensorboard, path.is_some()) {
        record::check_events(events, resumed.is_some())?;
    }
    let directory = config.session.checkpoint.as_deref().filter(|_| !config.dry_run);
    let done = resumed.map(|resumed| resumed.standing.at.done as u64);
    Ok((path, Checkpoints::open(place, directory, config.session.keep, done)?))
}

/// Whether the weights can be written where they are to go, under the names that an ONNX file gives them. Those that
/// this run has left there before are replaced.
fn weights_path(world: &World, config: &Config, network: &Network, resumed: Option<&Resumed>) -> Result<()> {
    let Some(path) = config.save_weights.as_ref().filter(|_| !config.dry_run) else { return Ok(()) };
    let run = resumed.map(|resumed| resumed.contents.text("run"));
    let of = config.session.checkpoint.as_deref().zip(run);
    let names = network.model.file().into_iter().flat_map(|file| file.weights());
    let names = || record::check_names(path, names.map(|weight| weight.name.as_str()));
    let checked = || record::check_weights(path, of).and_then(|()| names());
    record::once(world, || checked().map_err(|e| e.context("--save-weights")))
}

/// What a rank does when, for the record.
fn scheduled(script: &Script, rehearsal: &Rehearsal) -> Vec<Scheduled> {
    let known = |times| if rehearsal.seconds.is_finite() { times } else { [f64::NAN; 2] };
    let of = |(action, &times): (usize, &[f64; 2])| Scheduled {
        action: script.describe(action),
        bucket: script.bucket(action),
        computes: matches!(script.actions[action], Action::Run { .. }),
        times: known(times),
    };
    let end = Scheduled {
        action: "end of the step".into(),
        bucket: None,
        computes: false,
        times: known([rehearsal.seconds; 2]),
    };
    rehearsal.schedule.iter().enumerate().map(of).chain([end]).collect()
}

/// Bytes of parameters that each rank updates. Collective.
fn owned_bytes(groups: &Groups, plan: &Plan, memories: &Memories) -> Result<Vec<u64>> {
    let data = &groups.data;
    let own = plan.owned(memories.owners, &memories.rule, seats(data)[data.rank()], data.rank());
    let mut all = vec![0.0; groups.job.size()];
    all[groups.job.rank()] = own.iter().map(ExactSizeIterator::len).sum::<usize>() as f64;
    groups.job.sum_f64(&mut all)?;
    Ok(all.into_iter().map(|bytes| bytes as u64).collect())
}

/// How gradients are averaged, among the ranks with the same parameters. Collective.
fn averaging(groups: &Groups, config: &Config, device: &dyn Device, threads: usize) -> Result<Averaging> {
    if groups.split.is_some() {
        let averaging = Averaging::new(&groups.data, config, device, threads)?;
        return Ok(averaging.over_groups(groups.mesh));
    }
    if groups.stage.is_none() {
        return Averaging::new(&groups.data, config, device, threads);
    }
    // What stages are cut by must be the same on all of them.
    let mut least = [threads as f64];
    groups.job.min_f64(&mut least)?;
    Ok(Averaging::new(&groups.data, config, device, least[0] as usize)?.over_stages(&groups.job))
}

/// The learning rate at every step, from where the run goes on.
fn schedule(world: &World, config: &Config, source: &Source, length: Length, done: usize) -> Schedule {
    let with_epochs = config.data.is_some();
    let steps_per_epoch = if with_epochs { source.steps() } else { length.steps };
    let ranks = config.data_ranks(world.size()) / config.spatial;
    let schedule = Schedule::new(&config.rate, ranks, steps_per_epoch, length.steps)
        .resumed(done, if with_epochs { length.place } else { done });
    if let Some(rates) = schedule.cut_short().filter(|_| world.is_first()) {
        // Without digits that are rounding's.
        let [peak, last] = rates.map(|rate| format!("{rate:.3e}").parse::<f64>().unwrap_or(f64::NAN));
        log::warn!(
            "--lr-warmup {}: the run ends before the learning rate has risen to {peak}; its last step has {last}",
            config.rate.warmup_epochs
        );
    }
    schedule
}

/// Which images there are, in words.
fn images(config: &Config, sets: Option<&Sets>) -> String {
    let (Some(path), Some(sets)) = (&config.data, sets) else { return "synthetic: one batch a rank".into() };
    let test = match &sets.test {
        Some(test) => format!("{} to test", test.len()),
        None => "none to test".into(),
    };
    let augment = sets.training.augment().to_string();
    let augmented = if augment == "none" { String::new() } else { format!(", augmented: {augment}") };
    format!("{}: {} images to train, {test}{augmented}", path.display(), sets.training.len())
}

/// The flags of this run, with the threads that it found: their number decides some of the bits.
fn run_file(config: &Config, threads: usize) -> String {
    let found = if config.threads.is_none() { format!("threads = {threads}\n") } else { String::new() };
    config.run_file.clone() + &found
}

/// What was typed. A name of a file may be no UTF-8.
fn command() -> String {
    let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
    words.collect::<Vec<_>>().join(" ")
}

/// How many values of the staleness of updates the record tells apart. With as many ranks that are equally fast it is
/// their number less one.
fn staleness_bins(world: &World, config: &Config) -> usize {
    if config.strategy.is_asynchronous() { 16 * config.strategy.computing(world.size()) } else { 0 }
}

/// The inputs and the forward pass of a network.
fn layers(graph: &Graph) -> Vec<record::Layer> {
    let mut layers = Vec::new();
    let mut given_by = HashMap::new();
    for (id, tensor) in graph.with_role(Role::Input) {
        given_by.insert(id, layers.len());
        let shapes = vec![tensor.spec.shape.0.clone()];
        let (name, op) = (tensor.name.clone(), "input".into());
        layers.push(record::Layer { name, op, inputs: Vec::new(), shapes, parameters: 0 });
    }
    for node in &graph.nodes[..graph.forward_nodes] {
        let learned = node.inputs.iter().filter(|&&id| graph.tensor(id).role == Role::Parameter);
        let shape = |id: &TensorId| graph.tensor(*id).spec.shape.0.clone();
        let layer = record::Layer {
            name: node.name.clone(),
            op: node.op.name().into(),
            inputs: node.inputs.iter().filter_map(|id| given_by.get(id).copied()).collect(),
            // The others are for the backward pass.
            shapes: node.outputs.first().map(shape).into_iter().collect(),
            parameters: learned.map(|&id| graph.tensor(id).spec.shape.elements()).sum(),
        };
        given_by.extend(node.outputs.iter().map(|&id| (id, layers.len())));
        layers.push(layer);
    }
    layers
}

/// What is shared beside the images of a step, as flags say it.
fn parallel(config: &Config) -> String {
    let ways = [
        config.pipeline.as_ref().map(|pipeline| format!("--pipeline {}", pipeline.stages)),
        config.tensor.map(|tensor| format!("--tensor {}", tensor.ranks)),
        (config.spatial > 1).then(|| format!("--spatial {}", config.spatial)),
    ];
    let ways: Vec<String> = ways.into_iter().flatten().collect();
    if ways.is_empty() { "data".into() } else { ways.join(" ") }
}

/// What the record says of the run before its first step.
fn describe(
    groups: &Groups,
    config: &Config,
    plans: &Plans,
    device: &dyn Device,
    threads: usize,
    Length { epochs, steps, .. }: Length,
    started: Instant,
) -> Description {
    let world = &groups.job;
    let computing_ranks = config.data_ranks(world.size());
    let mut attributes = vec![
        ("config".to_string(), config.json()),
        ("command".to_string(), command()),
        ("run_file".to_string(), run_file(config, threads)),
        ("plan_hash".to_string(), format!("{:016x}", plans.training.hash())),
        ("device".to_string(), computing(config, device)),
        (
            "evaluated_weights".to_string(),
            match config.optimizer.ema {
                _ if config.strategy.is_relaxed() => "mean over ranks".into(),
                Some(decay) => format!("exponential moving average, decay {decay}"),
                None => "current".into(),
            },
        ),
        (
            "hosts".to_string(),
            (0..world.size()).map(|rank| world.host_of(rank)).collect::<Vec<_>>().join(","),
        ),
        ("threads".to_string(), threads.to_string()),
        ("repeatable".to_string(), if config.is_repeatable() { "yes" } else { "no" }.into()),
        ("mpi".to_string(), format!("{} {}", world.library().name, world.library().version)),
    ];
    if let Some(kept) = plans.kept {
        let saved = kept.saturating_sub(plans.training.sizes.activations);
        attributes.push(("recomputation_saves_bytes".into(), saved.to_string()));
    }
    // What a planner chose, or flags say.
    attributes.push(("parallel".into(), parallel(config)));
    // What was decided for flags that were not given.
    let graph = &plans.training.graph;
    attributes.push(("classes".into(), graph.classes().to_string()));
    attributes.push(("image".into(), graph.image().to_string()));
    attributes.extend(config.shared_items().into_iter().filter(|(name, _)| name != "images"));
    attributes.retain({
        let mut seen = std::collections::HashSet::new();
        move |(name, _)| seen.insert(name.clone())
    });
    Description {
        model: config.model.clone(),
        parameters: plans.training.graph.parameter_count() as u64,
        device: match config.input.jpeg_decoder {
            JpegDecoder::Auto => opening(config, device),
            decoder => format!("{}; JPEG by {decoder}", opening(config, device)),
        },
        threads,
        batch: config.batch,
        accumulation: config.accumulation,
        global_batch: config.images_a_step(computing_ranks) / config.spatial,
        epochs: if config.data.is_some() { epochs as u64 } else { 0 },
        steps: steps as u64,
        warmup: config.warmup as u64,
        computing: computing_ranks * config.stages(),
        owned: Vec::new(),
        buckets: plans.training.bucket_bytes().iter().map(|&bytes| bytes as u64).collect(),
        choices: Vec::new(),
        script: Vec::new(),
        memory: plans.kinds(),
        compression: None,
        staleness: staleness_bins(world, config),
        attributes,
        events: config.tensorboard.clone().map(|directory| (directory, config.histograms)),
        layers: if config.tensorboard.is_some() { layers(graph) } else { Vec::new() },
        started,
    }
}
