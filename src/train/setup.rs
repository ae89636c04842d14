//! Everything before the first step. Each part that can fail is agreed on by all ranks before the next begins, so
//! that bad input stops the whole job with one message and nothing is overwritten.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

use super::assemble::Assembly;
use super::checkpoint::{self, Resumed, Saver, Standing};
use super::commit::Commits;
use super::device;
use super::evaluate::Evaluator;
use super::greatest;
use super::length::Length;
use super::max_batch;
use super::memory::Memories;
use super::network::Network;
use super::plans::{Plans, computing, opening};
use super::predict::Predictor;
use super::source::{Source, decided, open_data, open_sets};
use super::state::State;
use super::step::Trainer;
use super::stop::Watch;
use super::testing;
use super::weights::Start;
use crate::comm::{self, Phase, World};
use crate::config::{Config, JpegDecoder, Prediction, Strategy, environment};
use crate::data::Sets;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::optim::{self, Schedule};
use crate::plan::{Action, Plan, Rehearsal, Script};
use crate::record::{self, Checkpoints, Description, Recorder, Scheduled};
use crate::reducer::{Averaging, seats};
use crate::strategy::Seat;

/// A run that is ready to go.
pub struct Job {
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
    /// Copies of the state in memory, where they are wanted.
    pub commits: Option<Commits>,
    pub plan: Plan,
    pub memories: Memories,
}

/// Prepares the run; `None` when only a plan, a batch size or a test was asked for, which has been printed. Collective.
///
/// # Errors
/// The same on every rank.
pub fn prepare(
    world: &World,
    config: &Config,
    watch: Watch,
    started: Instant,
) -> Result<Option<(Job, Recorder)>> {
    // A rank alone may plan what takes others, who are elsewhere.
    let asked = config.strategy;
    let serves = world.size() == 1 && config.strategy.computing(1) == 0;
    let planned = match config.prediction.is_some() && serves {
        true => Config { strategy: Strategy::ALLREDUCE, ..config.clone() },
        false => config.clone(),
    };
    let config = &planned;
    let tell = |what: &str| log::debug!("{what}: {:.3} s after the start", started.elapsed().as_secs_f64());
    tell("flags agreed on");
    let workers = world.agree(ranks_that_compute(world, config))?;
    let network = Network::agree(world, config, workers)?;
    let threads = world.threads(config.threads)?;
    if let Some(limit) = config.max_batch {
        let (device, config) = device::open(world, config, threads)?;
        let config = &config;
        let averaging = Averaging::new(world, config, &*device, threads)?;
        // Its images count, as they do in a run.
        let sets = open_sets(world, config, &network)?;
        let config = &decided(config, sets.as_ref(), threads);
        let all_pixels = sets.as_ref().and_then(Sets::pixels);
        let network = network.reading(all_pixels.filter(|_| normalises(&*device)));
        let answer = world.agree(max_batch::answer(world, &network, config, &*device, &averaging, limit))?;
        record::say(world, &answer);
        return world.agree(record::printed()).map(|()| None);
    }
    if config.evaluate {
        return testing::run(world, config, network, &watch).map(|()| None);
    }
    let resumed = if config.dry_run { None } else { Resumed::find(world, config)? };
    let (path, checkpoints) = world.agree(outputs(world, config, network.model.name, resumed.as_ref()))?;
    comm::enter(Phase::Data, 0);
    world.agree(weights_path(world, config))?;
    // A run that goes on has its weights.
    let start = if resumed.is_some() { None } else { Start::agree(world, config, &network)? };
    let sets = open_sets(world, config, &network)?;
    let config = &decided(config, sets.as_ref(), threads);
    let images = images(config, sets.as_ref());
    let all_pixels = sets.as_ref().and_then(Sets::pixels);
    let (source, test) = open_data(world, config, &network, sets)?;
    tell("data sets open");
    comm::enter(Phase::Plan, 0);
    let (device, config) = device::open(world, config, threads)?;
    let config = &config;
    let network = network.reading(all_pixels.filter(|_| normalises(&*device)));
    let rule = config.optimizer.rule;
    let averaging = Averaging::new(world, config, &*device, threads)?;
    let mut plans = world.agree(Plans::new(world, config, &network, &*device, &averaging, test.is_some()))?;
    plans.compare(world, config, &*device)?;
    tell(&format!(
        "{} steps planned in {} buckets",
        plans.training.steps.len(),
        plans.training.buckets.len()
    ));
    // What a run goes on from is counted with checkpoints. Every rank says the same, that of the largest.
    let resumed_bytes = resumed.as_ref().map_or(0, Resumed::bytes);
    let program = (plans.extent.program + source.kept()).saturating_sub(resumed_bytes);
    plans.extent.program = greatest(world, program)?;
    if config.dry_run {
        world.agree(plans.write_steps(world, config))?;
        record::say(world, &world.agree(plans.describe(world, config, &*device, &averaging))?);
        if let Some(prediction) = &config.prediction {
            let evaluate = test.is_some();
            let config = &Config { strategy: asked, ..config.clone() };
            let answer =
                predicted(world, config, prediction, (&network, &*device, &averaging, evaluate), plans);
            record::say(world, &world.agree(answer)?);
        }
        return world.agree(record::printed()).map(|()| None);
    }
    // All ranks have the same plan, and one goes through the step for all of them.
    let rehearsed = match world.rank() {
        0 => plans
            .rehearse(world, config, &averaging)
            .map(|(scripts, rehearsal)| scheduled(&scripts[0], &rehearsal)),
        _ => Ok(Vec::new()),
    };
    let script = world.agree(rehearsed)?;
    tell("step rehearsed");
    let identity = plans.identity(config, &network.model, source.parts().0.fingerprint(), &rule);
    if let Some(resumed) = &resumed {
        world.agree(resumed.check(world, config, &identity))?;
    }
    world.agree(max_batch::check(world, &network, config, &*device, &averaging, &plans))?;
    let standing = resumed.as_ref().map_or_else(Standing::default, |resumed| resumed.standing);
    let length = Length::new(
        config,
        source.steps(),
        source.steps_after(standing.at.images),
        source.global_batch(),
        standing.at,
    );
    let mut description = describe(world, config, &plans, &*device, threads, length, started);
    description.script = script;
    description.attributes.push(("images".into(), images));
    description.attributes.push(("network".into(), network.model.identity()));
    description.attributes.push(("run".into(), checkpoint::run_name(resumed.as_ref())));
    let texts = checkpoint::texts(&description, world.size(), &identity, path.as_ref());
    let commits = Commits::open(world, config, resumed.is_some(), texts.clone())?;
    let saver = Saver::new(config, checkpoints, watch, texts, resumed.as_ref().map(|_| standing.at));
    comm::enter(Phase::Memory, 0);
    let peers = match workers < world.size() {
        true => world.split(usize::from(world.rank() >= workers), world.rank())?,
        false => world.clone(),
    };
    let assembly = Assembly {
        world,
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
    let mut job = Job {
        peers: peers.clone(),
        schedule: schedule(world, config, &source, length, standing.at.done),
        epochs: length.epochs,
        total_steps: length.steps,
        planned_memory: plans.total(),
        states: optim::state_names(&rule),
        plan: plans.training,
        device,
        source,
        evaluator,
        trainer,
        standing,
        saver,
        commits,
        memories,
    };
    tell("memory and kernels ready");
    let reached = resumed.as_ref().map(Resumed::reached);
    let state = State::new(&job.plan, &job.memories, job.states, job.trainer.compressed_state());
    if let Some(resumed) = resumed {
        world.agree(state.restore(world, &job.peers, &*job.device, &resumed.contents))?;
        if let Some(scaling) = &mut job.trainer.scaling {
            scaling.scaler = scaling.scaler.resumed(|name| resumed.contents.number(name).ok());
        }
    } else if config.session.resume.is_some() {
        // Before the record is there: a job killed from now on is resumed by the same command.
        job.saver.take([world, &job.peers], &*job.device, &state, &job.standing, BTreeMap::new)?;
        world.agree(job.saver.finish())?;
    }
    let owners = config.strategy.describe(job.memories.owners, world.size(), world.nodes());
    description.attributes.push(("owners".into(), owners));
    description.attributes.push(("mesh".into(), format!("data {workers}, pipeline 1, tensor 1")));
    description.owned = owned_bytes(world, &job.plan, &job.memories);
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

/// What `--predict-nodes` asks for, by rank 0 for all.
fn predicted(
    world: &World,
    config: &Config,
    asked: &Prediction,
    (network, device, averaging, evaluate): (&Network, &dyn Device, &Averaging, bool),
    plans: Plans,
) -> Result<String> {
    if !world.is_even() {
        return Err(Error::usage(
            "--predict-nodes: this job has not as many ranks on every node; start it so",
        ));
    }
    if world.rank() > 0 {
        return Ok(String::new());
    }
    let local = world.local_size();
    Predictor { config, local, network, device, averaging, evaluate }.answer(asked, plans)
}

/// How many ranks compute gradients.
fn ranks_that_compute(world: &World, config: &Config) -> Result<usize> {
    match config.strategy.computing(world.size()) {
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

/// Whether the weights can be written where they are to go.
fn weights_path(world: &World, config: &Config) -> Result<()> {
    match &config.save_weights {
        Some(path) if !config.dry_run => {
            record::once(world, || record::check_new(path).map_err(|e| e.context("--save-weights")))
        }
        _ => Ok(()),
    }
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

/// Bytes of parameters that each rank updates.
fn owned_bytes(world: &World, plan: &Plan, memories: &Memories) -> Vec<u64> {
    let of = |(rank, &seat): (usize, &Seat)| plan.owned(memories.owners, &memories.rule, seat, rank);
    seats(world).iter().enumerate().map(|rank| of(rank).iter().map(|part| part.len() as u64).sum()).collect()
}

/// The learning rate at every step, from where the run goes on.
fn schedule(world: &World, config: &Config, source: &Source, length: Length, done: usize) -> Schedule {
    let with_epochs = config.data.is_some();
    let steps_per_epoch = if with_epochs { source.steps() } else { length.steps };
    let ranks = config.strategy.computing(world.size());
    Schedule::new(&config.rate, ranks, steps_per_epoch, length.steps)
        .resumed(done, if with_epochs { length.place } else { done })
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

/// How many values of the staleness of updates the record tells apart. With as many ranks that are equally fast it is
/// their number less one.
fn staleness_bins(world: &World, config: &Config) -> usize {
    if config.strategy.is_asynchronous() { 16 * config.strategy.computing(world.size()) } else { 0 }
}

/// What the record says of the run before its first step.
fn describe(
    world: &World,
    config: &Config,
    plans: &Plans,
    device: &dyn Device,
    threads: usize,
    Length { epochs, steps, .. }: Length,
    started: Instant,
) -> Description {
    let mut attributes = vec![
        ("config".to_string(), config.json()),
        ("command".to_string(), std::env::args().collect::<Vec<_>>().join(" ")),
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
        global_batch: config.images_a_step(config.strategy.computing(world.size())),
        epochs: if config.data.is_some() { epochs as u64 } else { 0 },
        steps: steps as u64,
        warmup: config.warmup as u64,
        computing: config.strategy.computing(world.size()),
        owned: Vec::new(),
        buckets: plans.training.bucket_bytes().iter().map(|&bytes| bytes as u64).collect(),
        choices: Vec::new(),
        script: Vec::new(),
        memory: plans.kinds(),
        compression: None,
        staleness: staleness_bins(world, config),
        attributes,
        events: config.tensorboard.clone().map(|directory| (directory, config.histograms)),
        started,
    }
}
