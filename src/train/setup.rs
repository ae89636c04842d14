//! Everything before the first step. Each part that can fail is agreed on by all ranks before the next begins, so
//! that bad input stops the whole job with one message and nothing is overwritten.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Instant;

use super::ahead::Ahead;
use super::averaging::Averaging;
use super::capacity;
use super::checkpoint::{self, Resumed, Saver, Standing};
use super::device;
use super::evaluate::Evaluator;
use super::length::Length;
use super::memory::Memories;
use super::network::Network;
use super::plans::{Plans, computing, shares_gradients};
use super::source::{Source, decided, open_data, open_sets};
use super::state::State;
use super::step::{Accumulation, Scaling, Stretch, Trainer};
use super::stop::{Flags, Watch};
use super::weights::Start;
use super::{greatest, place};
use crate::collective::{Collective, Gather};
use crate::comm::{self, Barrier, Phase, World};
use crate::config::{Config, JpegDecoder};
use crate::data::{Batch, Sets, TestLoader};
use crate::device::{Device, Memory, Rule};
use crate::error::Result;
use crate::fusion::compress::{Account, Compressed};
use crate::fusion::{Exchanges, Fusion, Staging};
use crate::graph::Shape;
use crate::optim::{self, LossScaler, Schedule};
use crate::plan::{Plan, Program, TAIL};
use crate::record::{self, BucketTime, Checkpoints, Description, Recorder};

/// A run that is ready to go.
pub struct Job {
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
    let tell = |what: &str| log::debug!("{what}: {:.3} s after the start", started.elapsed().as_secs_f64());
    tell("flags agreed on");
    let network = world.agree(Network::new(config, world.size()))?;
    let threads = threads(world, config.threads)?;
    if let Some(limit) = config.max_batch {
        let device = device::open(world, config, threads)?;
        let averaging = Averaging::new(world, config, threads)?;
        // Its images count, as they do in a run.
        let sets = open_sets(world, config, &network)?;
        let config = &decided(config, sets.as_ref(), threads);
        let answer = world.agree(capacity::answer(world, &network, config, &*device, &averaging, limit))?;
        record::say(place(world), &answer);
        return Ok(None);
    }
    let resumed = if config.dry_run { None } else { Resumed::find(world, config)? };
    let (path, checkpoints) = world.agree(outputs(world, config, resumed.as_ref()))?;
    comm::enter(Phase::Data, 0);
    world.agree(weights_path(world, config))?;
    // A run that goes on has its weights.
    let start = if resumed.is_some() { None } else { Start::agree(world, config, &network)? };
    let sets = open_sets(world, config, &network)?;
    let config = &decided(config, sets.as_ref(), threads);
    let images = images(config, sets.as_ref());
    let (source, test) = open_data(world, config, &network, sets)?;
    tell("data sets open");
    comm::enter(Phase::Plan, 0);
    let device = device::open(world, config, threads)?;
    let rule = optim::rule(&config.optimizer);
    let averaging = Averaging::new(world, config, threads)?;
    let mut plans = world.agree(Plans::new(world, config, &network, &*device, &averaging, test.is_some()))?;
    world.same(&[("plan".into(), format!("{:016x}", plans.training.hash()))])?;
    tell(&format!(
        "{} steps planned in {} buckets",
        plans.training.steps.len(),
        plans.training.buckets.len()
    ));
    // Every rank says the same, that of the largest.
    plans.extent.program = greatest(world, plans.extent.program + source.kept())?;
    if config.dry_run {
        record::say(place(world), &plans.describe(world, config, &*device, &averaging));
        return Ok(None);
    }
    let identity = plans.identity(config, source.parts().0.fingerprint(), &rule);
    if let Some(resumed) = &resumed {
        world.agree(resumed.check(world, config, &identity))?;
    }
    world.agree(capacity::check(world, &network, config, &*device, &averaging, &plans))?;
    let standing = resumed.as_ref().map_or_else(Standing::default, |resumed| resumed.standing);
    let length = Length::new(
        config,
        source.steps(),
        source.steps_after(standing.at.images),
        source.global_batch(),
        standing.at,
    );
    let mut description = describe(world, config, &plans, &*device, threads, length, started);
    description.attributes.push(("images".into(), images));
    description.attributes.push(("run".into(), checkpoint::run_name(resumed.as_ref())));
    let texts = checkpoint::texts(&description, world.size(), &identity, path.as_ref());
    let saver = Saver::new(config, checkpoints, watch, texts, resumed.as_ref().map(|_| standing.at));
    let mut job = assemble(
        world,
        config,
        plans,
        &averaging,
        device,
        &rule,
        source,
        test,
        start.as_ref(),
        threads,
        length,
        standing,
        saver,
    )?;
    tell("memory and kernels ready");
    let reached = resumed.as_ref().map(Resumed::reached);
    let state = State::new(&job.plan, &job.memories, job.states, job.trainer.compressed_state());
    if let Some(resumed) = resumed {
        world.agree(state.restore(world, &*job.device, &resumed.contents))?;
        if let Some(scaling) = &mut job.trainer.scaling {
            scaling.scaler = scaling.scaler.resumed(|name| resumed.contents.number(name).ok());
        }
    } else if config.session.resume.is_some() {
        // Before the record is there: a job killed from now on is resumed by the same command.
        job.saver.take(world, &*job.device, &state, &job.standing, BTreeMap::new)?;
        world.agree(job.saver.finish())?;
    }
    if let (true, Some(evaluator)) = (config.evaluate, &mut job.evaluator) {
        if let Some(test) = evaluator.run(world, &*job.device, || false)? {
            let text = format!("test loss {:.9}, accuracy {:.2}%", test.loss, 100.0 * test.accuracy);
            record::say(place(world), &text);
        }
        return Ok(None);
    }
    description.attributes.push(("allreduce_used".into(), job.trainer.fusion.algorithm().into()));
    description.attributes.push(("allreduce_costs".into(), averaging.source()));
    let choices = averaging.choices(&job.plan, job.memories.gradients.is_shared());
    description.choices = choices.iter().map(|choice| (choice.name.into(), choice.seconds)).collect();
    description.compression = job.trainer.compression.as_ref().map(|account| record::Compression {
        scheme: config.compress.map(|scheme| scheme.to_string()).unwrap_or_default(),
        sent: account.sent,
        uncompressed: account.uncompressed,
    });
    let recorder = match &reached {
        None => Recorder::create(place(world), path.as_deref(), &description),
        Some(reached) => Recorder::resume(place(world), path.as_deref(), &description, reached),
    };
    Ok(Some((job, world.agree(recorder)?)))
}

/// Where results and checkpoints go; both are tried before the expensive part begins.
fn outputs(
    world: &World,
    config: &Config,
    resumed: Option<&Resumed>,
) -> Result<(Option<PathBuf>, Checkpoints)> {
    let (place, given) = (place(world), config.results.as_deref());
    let path = match resumed {
        _ if config.dry_run || config.evaluate => None,
        None => record::results_path(place, given, &config.model)?,
        Some(resumed) => {
            let earlier = resumed.contents.text("results").as_ref();
            record::resumed_path(place, given, &config.model, earlier)?
        }
    };
    if let (Some(events), true) = (&config.tensorboard, path.is_some()) {
        record::check_events(events, resumed.is_some())?;
    }
    let directory = config.session.checkpoint.as_deref().filter(|_| !config.dry_run && !config.evaluate);
    let done = resumed.map(|resumed| resumed.standing.at.done as u64);
    Ok((path, Checkpoints::open(place, directory, config.session.keep, done)?))
}

/// Whether the weights can be written where they are to go.
fn weights_path(world: &World, config: &Config) -> Result<()> {
    match &config.save_weights {
        Some(path) if !config.dry_run && world.rank() == 0 => {
            record::check_new(path).map_err(|e| e.context("--save-weights"))
        }
        _ => Ok(()),
    }
}

/// Cores this rank may use, shared fairly with the ranks that may use the same ones: a launcher that binds ranks
/// gives each its own, one that does not gives all of them all.
pub fn threads(world: &World, wanted: Option<usize>) -> Result<usize> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let allowed = status.lines().find(|line| line.starts_with("Cpus_allowed_list")).unwrap_or("");
    let mine = format!("{} {allowed}", world.node());
    let sharing = world.gather_text(&mine)?.iter().filter(|other| **other == mine).count();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Ok(wanted.unwrap_or((cores / sharing.max(1)).max(1)))
}

#[allow(clippy::too_many_arguments)]
fn assemble(
    world: &World,
    config: &Config,
    plans: Plans,
    averaging: &Averaging,
    device: Box<dyn Device>,
    rule: &Rule,
    source: Source,
    test: Option<TestLoader>,
    start: Option<&Start>,
    threads: usize,
    length: Length,
    standing: Standing,
    saver: Saver,
) -> Result<Job> {
    comm::enter(Phase::Memory, 0);
    let planned_memory = plans.total();
    let training = &plans.training;
    let shared = shares_gradients(config, averaging, training);
    let memories =
        world.agree(Memories::new(world, &*device, training, &plans.sizes, rule, config, shared))?;
    world.agree(memories.initialise(&*device, training, start, config.seed, threads))?;
    let (reduce, compression) = reduction(world, config, averaging, training, &*device, &memories)?;
    let fusion = world.agree(Fusion::new(reduce, &training.buckets, config.overlap))?;
    // A rank alone has nobody to tell, but may still compress.
    let apart = !device.is_host() && (world.size() > 1 || config.compress.is_some());
    let staging =
        apart.then(|| Staging { device: memories.averaged.clone(), host: memories.on_host.clone() });
    let fusion = fusion.through(staging);
    let program = world.agree(training.bind(&memories.regions))?;
    let fusion = fusion.with_exchanges(exchanges(world, &program)?);
    let trainer =
        world.agree(trainer(world, config, training, program, &*device, rule, &memories, fusion))?;
    let barrier = (memories.sharing.ranks > 1).then(|| Barrier::new(world));
    let ahead = (!device.is_host() && source.has_epochs()).then(|| {
        Ahead::new(&*device, &trainer.program, &memories.regions.inputs, empty_batch(training, config))
    });
    let ahead = world.agree(ahead.transpose())?;
    let trainer = Trainer { compression, ahead, barrier: world.agree(barrier.transpose())?, ..trainer };
    let evaluator = match (&plans.evaluation, test) {
        (Some(plan), Some(loader)) => Some(Evaluator {
            program: world.agree(plan.bind(&memories.evaluated()))?,
            statistics: memories.regions.statistics.clone(),
            loader,
            batch: empty_batch(training, config),
        }),
        _ => None,
    };
    let Length { epochs, steps: total_steps, place } = length;
    let steps_per_epoch = if config.data.is_some() { source.steps() } else { total_steps };
    let schedule = Schedule::new(&config.rate, world.size(), steps_per_epoch, total_steps)
        .resumed(standing.at.done, if config.data.is_some() { place } else { standing.at.done });
    let plan = plans.training;
    Ok(Job {
        states: optim::state_names(rule),
        device,
        source,
        evaluator,
        trainer,
        schedule,
        epochs,
        total_steps,
        planned_memory,
        standing,
        saver,
        plan,
        memories,
    })
}

/// What sums gradients over ranks, and what compression keeps account of where there is any. Collective.
fn reduction(
    world: &World,
    config: &Config,
    averaging: &Averaging,
    plan: &Plan,
    device: &dyn Device,
    memories: &Memories,
) -> Result<(Box<dyn Collective>, Option<Account>)> {
    match config.compress {
        None => {
            let reduce = averaging.selection.build(world, &memories.gradients);
            Ok((world.agree(reduce)?, None))
        }
        Some(scheme) => {
            let gradients = &memories.on_host;
            let made = Compressed::new(scheme, &averaging.selection, world, plan, device, gradients);
            let compressed = world.agree(made)?;
            let account = compressed.account();
            Ok((Box::new(compressed), Some(account)))
        }
    }
}

/// What the program exchanges between its steps, if anything. Collective.
fn exchanges(world: &World, program: &Program) -> Result<Option<Exchanges>> {
    let Some(ranks) = program.exchanges.first().map(|exchange| exchange.ranks) else { return Ok(None) };
    let longest = program.exchanges.iter().map(|exchange| exchange.own.bytes() / 4).max().unwrap_or(0);
    let gather = world.agree(Gather::new(world, ranks, longest))?;
    Ok(Some(Exchanges::new(gather, program.exchanges.clone())))
}

#[allow(clippy::too_many_arguments)]
fn trainer(
    world: &World,
    config: &Config,
    plan: &Plan,
    program: Program,
    device: &dyn Device,
    rule: &Rule,
    memories: &Memories,
    fusion: Fusion,
) -> Result<Trainer> {
    let averaged = &memories.averaged;
    let parts = &memories.parts;
    let update = |part| {
        device.update(rule, &plan.spans(part, rule), &memories.regions.parameters, averaged, &memories.state)
    };
    let gradients = averaged.slice(0, averaged.bytes() - TAIL);
    let clip = config.optimizer.clip_norm.map(|max_norm| device.clip(max_norm, &gradients)).transpose()?;
    let scaling = match config.loss_scale {
        None => None,
        Some(settings) => {
            let broken = device.allocate(4)?;
            let step = device.scale(&gradients, &broken)?;
            Some(Scaling { scaler: LossScaler::new(settings), step, broken, stuck: false })
        }
    };
    let averages = match (config.optimizer.ema, &memories.average) {
        (Some(decay), Some(into)) => {
            let slice = |memory: &Memory, part: &Range<usize>| memory.slice(part.start, part.len());
            let of =
                |part| device.average(decay, &slice(&memories.regions.parameters, part), &slice(into, part));
            parts.iter().map(of).collect::<Result<_>>()?
        }
        _ => Vec::new(),
    };
    let accumulate = if config.accumulation > 1 {
        let (own, sum) = (memories.regions.gradients.slice(0, gradients.bytes()), gradients);
        let add = device.accumulate(&own, &sum)?;
        Some(Accumulation { micro_steps: config.accumulation, add, sum })
    } else {
        None
    };
    let global_batch = world.size() * config.batch * config.accumulation;
    let buckets = plan.buckets.iter().map(|bucket| bucket.after);
    Ok(Trainer {
        stretches: Stretch::cut(&program, buckets, device),
        runs: 0,
        program,
        bucket_times: vec![BucketTime { start: 0.0, finish: 0.0, exposed: 0.0 }; plan.buckets.len()],
        fusion,
        clip,
        scaling,
        compression: None,
        updates: parts.iter().map(update).collect::<Result<_>>()?,
        averages,
        barrier: None,
        ahead: None,
        tail: averaged.slice(averaged.bytes() - TAIL, TAIL),
        accumulate,
        flags: Flags::default(),
        seed: config.seed,
        gradient_scale: 1.0 / global_batch as f32,
        batch: empty_batch(plan, config),
        metrics: vec![0.0; config.batch],
        parameters: plan
            .parameters
            .iter()
            .map(|p| (p.name.clone(), memories.regions.parameters.slice(p.offset, p.layout.bytes())))
            .collect(),
    })
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

fn empty_batch(plan: &Plan, config: &Config) -> Batch {
    Batch::new(config.batch, plan.graph.tensor(plan.graph.images).spec.shape.per_sample())
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
                Some(decay) => format!("exponential moving average, decay {decay}"),
                None => "current".into(),
            },
        ),
        (
            "hosts".to_string(),
            (0..world.size()).map(|rank| world.host_of(rank)).collect::<Vec<_>>().join(","),
        ),
        ("threads".to_string(), threads.to_string()),
        ("mpi".to_string(), format!("{} {}", world.library().name, world.library().version)),
    ];
    if let Some(kept) = plans.kept {
        let saved = kept.saturating_sub(plans.training.sizes.activations);
        attributes.push(("recomputation_saves_bytes".into(), saved.to_string()));
    }
    // What was decided for flags that were not given.
    let graph = &plans.training.graph;
    attributes.push(("classes".into(), graph.classes().to_string()));
    let image = Shape(graph.tensor(graph.images).spec.shape.0[1..].to_vec());
    attributes.push(("image".into(), image.to_string()));
    attributes.extend(config.shared_items().into_iter().filter(|(name, _)| name != "images"));
    attributes.retain({
        let mut seen = std::collections::HashSet::new();
        move |(name, _)| seen.insert(name.clone())
    });
    Description {
        model: config.model.clone(),
        parameters: plans.training.graph.parameter_count() as u64,
        device: match config.input.jpeg_decoder {
            JpegDecoder::Auto => computing(config, device),
            decoder => format!("{}; JPEG by {decoder}", computing(config, device)),
        },
        threads,
        batch: config.batch,
        accumulation: config.accumulation,
        epochs: if config.data.is_some() { epochs as u64 } else { 0 },
        steps: steps as u64,
        warmup: config.warmup as u64,
        buckets: plans.training.bucket_bytes().iter().map(|&bytes| bytes as u64).collect(),
        choices: Vec::new(),
        memory: plans.kinds(),
        compression: None,
        attributes,
        events: config.tensorboard.clone().map(|directory| (directory, config.histograms)),
        started,
    }
}
