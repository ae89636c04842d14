//! Everything before the first step. Each part that can fail is agreed on by all ranks before the next begins, so
//! that bad input stops the whole job with one message and nothing is overwritten.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::assemble::Assembly;
use super::checkpoint::{self, Resumed, Saver, Standing};
use super::commit::Commits;
use super::evaluate::Evaluator;
use super::greatest;
use super::groups::Groups;
use super::length::Length;
use super::max_batch;
use super::memory::Memories;
use super::network::Network;
use super::pace::Pace;
use super::planner;
use super::plans::{Planning, Plans, measured};
use super::prediction::{self, Predictor};
use super::source::{Source, decided, open_data, open_sets};
use super::state::State;
use super::step::Trainer;
use super::stop::Watch;
use super::testing;
use super::weights::Start;
use super::{describe, device, mlperf, owning};
use super::{field_files, fields};
use crate::comm::{self, RunPhase, World};
use crate::config::{Config, Metric, Strategy, Wire, environment};
use crate::data::{RawSamples, Samples, Sets, TestLoader};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::model::Model;
use crate::optim::{self, RateSchedule};
use crate::plan::{MemoryKind, Plan};
use crate::record::{self, Checkpoints, Description, Recorder};
use crate::reducer::Averaging;
use crate::simulate::Interconnect;

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
    pub schedule: RateSchedule,
    pub length: Length,
    pub standing: Standing,
    pub saving: Saving,
    pub plan: Plan,
    pub memories: Memories,
    /// Names of the classes, where the data have as many as the network tells apart, and how images are prepared.
    pub about: record::ModelMetadata,
    pub reported: Reported,
}

/// Where the state goes.
pub struct Saving {
    pub saver: Saver,
    /// Copies of the state in memory, where they are wanted.
    pub commits: Option<Commits>,
    /// What a checkpoint calls the optimizer's states.
    pub states: &'static [&'static str],
}

/// What the run says of itself.
pub struct Reported {
    /// Bytes of a rank at its peak, as planned.
    pub planned_memory: usize,
    /// What to do where numbers are no longer finite.
    pub remedy: &'static str,
    pub metric: Metric,
    pub pace: Pace,
}

/// That what a plan and a prediction are written to is not there yet.
fn outputs_are_free(config: &Config) -> Result<()> {
    let predicted = config.prediction.as_ref();
    let files = [
        (config.plan.plan_steps.as_ref(), "--plan-steps"),
        (predicted.and_then(|of| of.trace.as_ref()), "--export-trace"),
        (predicted.and_then(|of| of.saved.as_ref()), "--save-prediction"),
    ];
    files
        .into_iter()
        .try_for_each(|(file, flag)| file.map_or(Ok(()), |file| record::check_output(file, flag)))
}

/// Prepares the run; `known` is what a planner has taken the program's memory for. `None` when only a plan, a batch
/// size or a test was asked for, which has been printed. Collective.
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
    let (world, asked) = (&groups.job, config);
    world.agree(record::once(world, || outputs_are_free(config)))?;
    let config = &planned_here(world, config);
    tell(started, "flags agreed on");
    let workers = world.agree(ranks_that_compute(world, config))?;
    let interconnect = world.agree(interconnect(world, config))?;
    let network = Network::agree(world, config, model, workers)?;
    if let Some(prediction) = &config.prediction {
        world.agree(prediction::check(prediction, interconnect.as_ref(), world, asked, &network))?;
    }
    let threads = world.threads(config.threads)?;
    if let Some(limit) = config.max_batch {
        return largest_batch(groups, config, network, threads, limit).map(|()| None);
    }
    if config.evaluate {
        return testing::run(world, config, network, &watch).map(|()| None);
    }
    let kept = RunFiles::own(world, config, &network)?;
    let opened = OpenedRun::open(groups, config, network, (threads, workers), &kept, started)?;
    let planned = opened.plan(&kept, known)?;
    if planned.opened.config.plan.dry_run {
        return planned.print(asked, interconnect).map(|()| None);
    }
    let ready = planned.ready(&kept)?;
    planned.build(kept, ready, watch)?.start().map(Some)
}

fn tell(started: Instant, what: &str) {
    log::debug!("{what}: {:.3} s after the start", started.elapsed().as_secs_f64());
}

/// Answers `--max-batch`. Collective.
fn largest_batch(
    groups: &Groups,
    config: &Config,
    network: Network,
    threads: usize,
    limit: usize,
) -> Result<()> {
    let world = &groups.job;
    let (device, config) = device::open(world, config, threads)?;
    let averaging = Averaging::new(world, &config, &*device, threads)?;
    // Its images count, as they do in a run.
    let sets = open_sets(world, &config, &network, None)?;
    let config = &decided(&config, sets.as_ref(), threads);
    let network = network.reading(raw(sets.as_ref(), &*device));
    let (layout, evaluate) = (groups.layout(), config.data.is_some());
    let of = Planning { layout, config, device: &*device, averaging: &averaging, evaluate };
    let answer = world.agree(max_batch::answer(&of, &network, limit))?;
    record::say(world, &answer);
    world.agree(record::printed())
}

/// Where results and checkpoints go, and what the run begins or goes on with.
struct RunFiles {
    resumed: Option<Resumed>,
    /// A run that goes on has its weights.
    start: Option<Start>,
    path: Option<PathBuf>,
    checkpoints: Option<Checkpoints>,
}

impl RunFiles {
    fn own(world: &World, config: &Config, network: &Network) -> Result<RunFiles> {
        if let Some(directory) = config.session.checkpoint.as_deref().filter(|_| !config.plan.dry_run) {
            // Before any of them is looked at: another run may be writing them.
            owning(world, config, || record::own_checkpoints(world.into(), directory))?;
        }
        let resumed = if config.plan.dry_run { None } else { Resumed::find(world, config)? };
        let (path, checkpoints) =
            owning(world, config, || outputs(world, config, network.model.name(), resumed.as_ref()))?;
        comm::enter(RunPhase::Data, 0);
        owning(world, config, || weights_path(world, config, network, resumed.as_ref()))?;
        let start = if resumed.is_some() { None } else { Start::agree(world, config, network)? };
        Ok(RunFiles { resumed, start, path, checkpoints })
    }
}

/// A run whose data sets and device are open.
pub struct OpenedRun<'a> {
    pub groups: &'a Groups,
    pub started: Instant,
    /// With what was decided for flags that were not given.
    pub config: Config,
    pub network: Network,
    pub device: Box<dyn Device>,
    pub threads: usize,
    /// Ranks that compute.
    pub workers: usize,
    pub source: Source,
    pub test: Option<TestLoader>,
    /// How many there are to train and to test on.
    pub samples: [usize; 2],
    /// The checksum of those to test on, or "none".
    pub tested: String,
    /// Of arrays which files they are in, in their order.
    pub files: Option<String>,
    /// Which images there are, in words.
    pub images: String,
    pub about: record::ModelMetadata,
    /// Seconds in which a thread reads a sample, where that was tried.
    pub reading: Option<f64>,
}

impl<'a> OpenedRun<'a> {
    fn open(
        groups: &'a Groups,
        config: &Config,
        network: Network,
        (threads, workers): (usize, usize),
        kept: &RunFiles,
        started: Instant,
    ) -> Result<OpenedRun<'a>> {
        let world = &groups.job;
        let weights = match &kept.resumed {
            Some(resumed) => Some(world.agree(resumed.said())?),
            None => kept.start.as_ref().map(Start::said),
        };
        let sets = open_sets(world, config, &network, weights)?;
        let config = &decided(config, sets.as_ref(), threads);
        let images = describe::images(config, sets.as_ref());
        let names = sets.as_ref().map_or(&[][..], |sets| sets.training.set().class_names());
        let class_names = if names.len() == network.classes { names.to_vec() } else { Vec::new() };
        let fields = sets.as_ref().and_then(|sets| sets.training.fields());
        let files = fields.map(|fields| field_files::list(&fields.paths(), false));
        let pictures = sets.as_ref().filter(|_| fields.is_none());
        let preprocessing = pictures.map(|sets| sets.training.expected().clone());
        let sample = fields.map(|_| network.image);
        let fields = fields.map_or_else(Vec::new, |fields| fields.scales().to_vec());
        let about = record::ModelMetadata { class_names, preprocessing, fields, sample };
        let given = sets.clone();
        let tested = sets.as_ref().and_then(|sets| sets.test.as_ref());
        let tested = tested.map_or_else(|| "none".into(), Samples::fingerprint);
        let reading = sets.as_ref().and_then(|sets| sets.seconds);
        let samples = sets
            .as_ref()
            .map_or([0; 2], |sets| [sets.training.len(), sets.test.as_ref().map_or(0, Samples::len)]);
        let (source, test) = open_data(groups, config, &network, sets)?;
        tell(started, "data sets open");
        comm::enter(RunPhase::Plan, 0);
        let (device, config) = device::open(world, config, threads)?;
        let network = network.reading(raw(given.as_ref(), &*device));
        Ok(OpenedRun {
            groups,
            started,
            config,
            network,
            device,
            threads,
            workers,
            source,
            test,
            samples,
            tested,
            files,
            images,
            about,
            reading,
        })
    }

    /// What its plans follow from.
    fn planning<'b>(&'b self, averaging: &'b Averaging) -> Planning<'b> {
        let (layout, evaluate) = (self.groups.layout(), self.test.is_some());
        Planning { layout, config: &self.config, device: &*self.device, averaging, evaluate }
    }

    /// Plans the step, and that all ranks do alike.
    fn plan(self, kept: &RunFiles, known: Option<usize>) -> Result<PlannedRun<'a>> {
        let OpenedRun { groups, config, network, device, .. } = &self;
        let (world, device) = (&groups.job, &**device);
        let mut averaging = averaging(groups, config, device, self.threads)?;
        let plan = |averaging: &Averaging| world.agree(Plans::new(&self.planning(averaging), network));
        let mut plans = plan(&averaging)?;
        if keep_apart_alike(world, device)? {
            plans = plan(&averaging)?;
        }
        let cuts_anew = groups.mesh.is_cut() && config.measure.is_some();
        // Each stage runs its own steps, and the network is cut anew by what they took.
        if cuts_anew {
            let times = measured(groups, &self.planning(&averaging), &plans, usize::MAX)?;
            averaging.set_steps(times);
            plans = plan(&averaging)?;
        }
        plans.compare(groups, config, device)?;
        let (steps, buckets) = (plans.training.steps.len(), plans.training.buckets.len());
        tell(self.started, &format!("{steps} steps planned in {buckets} buckets"));
        // What a run goes on from is counted with checkpoints. Every rank says the same, that of the largest.
        let resumed_bytes = kept.resumed.as_ref().map_or(0, Resumed::bytes);
        let read = kept.start.as_ref().map_or(0, Start::largest);
        // What is kept of a file is shared by both.
        let kept = self.source.kept().max(self.test.as_ref().map_or(0, TestLoader::kept));
        let program = plans.program(config, read) + kept;
        let program = greatest(world, program.saturating_sub(resumed_bytes))?;
        plans.ledger.set_program(program);
        if let Some(known) = known {
            plans.ledger.set_program(planner::one_figure(world, known, program, plans.total()));
        }
        Ok(PlannedRun { opened: self, plans, averaging })
    }
}

/// A run whose step is planned.
struct PlannedRun<'a> {
    opened: OpenedRun<'a>,
    plans: Plans,
    averaging: Averaging,
}

/// What is known of a run before it has memory.
struct ReadyRun {
    length: Length,
    /// Seconds of a step, as rehearsed.
    expected: f64,
    description: Description,
    identity: Vec<(String, String)>,
}

impl<'a> PlannedRun<'a> {
    /// What `--dry-run` prints.
    fn print(self, asked: &Config, interconnect: Option<Interconnect>) -> Result<()> {
        let PlannedRun { opened, plans, mut averaging } = self;
        let OpenedRun { groups, config, network, reading, .. } = &opened;
        let (world, of) = (&groups.job, &opened.planning(&averaging));
        world.agree(plans.write_steps(world, config))?;
        record::say(world, &world.agree(plans.describe(of))?);
        max_batch::tell(world, of, network, &plans)?;
        // The first rank has tried it, and says it.
        if let Some(sample) = reading {
            let (_, rehearsal) = plans.rehearse(of)?;
            if rehearsal.seconds.is_finite() {
                record::say(world, &fields::beside(config, *sample, rehearsal.seconds));
            }
        }
        if let Some(prediction) = &config.prediction {
            let limit = asked.parallel.as_ref().and_then(|parallel| parallel.memory_limit);
            let times = planner::measured_within(groups, of, network, &plans, limit)?;
            averaging.set_steps(times);
            let Config { strategy, pipeline, tensor, spatial, .. } = asked.clone();
            let config = &Config { strategy, pipeline, tensor, spatial, ..config.clone() };
            let (local, program) = (world.local_size(), plans.ledger.bytes(MemoryKind::Program));
            let of = Planning { config, ..opened.planning(&averaging) };
            let answer = match world.is_first() {
                true => {
                    Predictor { of, network, local, program }.answer(prediction, interconnect.as_ref(), plans)
                }
                false => Ok(String::new()),
            };
            record::say(world, &world.agree(answer)?);
        }
        world.agree(record::printed())
    }

    /// Goes through the step, and compares the run with what it goes on from.
    fn ready(&self, kept: &RunFiles) -> Result<ReadyRun> {
        let PlannedRun { opened, plans, averaging } = self;
        let OpenedRun { groups, config, network, source, samples, .. } = opened;
        let (world, of) = (&groups.job, &opened.planning(averaging));
        // All ranks have the same plan, and one goes through the step for all of them.
        let rehearsed = match world.rank() {
            0 => plans.rehearse(of).map(|(scripts, rehearsal)| describe::scheduled(&scripts[0], &rehearsal)),
            _ => Ok(Vec::new()),
        };
        let script = world.agree(rehearsed)?;
        let expected = script.last().map_or(f64::NAN, |end| end.times[1]);
        tell(opened.started, "step rehearsed");
        let images = ([source.parts().0.fingerprint(), opened.tested.as_str()], opened.files.as_ref());
        let identity = checkpoint::identity(config, &network.model, &plans.training.graph, images);
        if let Some(resumed) = &kept.resumed {
            world.agree(resumed.check(world, config, &identity))?;
        }
        world.agree(max_batch::check(world, of, network, plans))?;
        let at = kept.resumed.as_ref().map_or_else(Standing::default, |resumed| resumed.standing).at;
        let left = source.steps_after(at.images);
        let length = Length::new(config, source.steps(), left, source.global_batch(), at);
        let mut description = describe::describe(opened, plans, length);
        description.script = script;
        let (global_batch, steps) = (description.size.global_batch, source.steps());
        let extent = mlperf::RunExtent { samples: *samples, global_batch, steps, epochs: length.epochs };
        description.mllog = mlperf::keys(of, world, &plans.training.graph, &extent);
        description.attributes.push(("images".into(), opened.images.clone()));
        description.attributes.push(("network".into(), network.model.identity()));
        let texts = opened.about.texts().into_iter().map(|(name, text)| (name.into(), text));
        description.attributes.extend(texts);
        description.attributes.push(("run".into(), checkpoint::run_name(kept.resumed.as_ref())));
        Ok(ReadyRun { length, expected, description, identity })
    }

    /// Takes memory, and makes everything that steps run.
    fn build(self, kept: RunFiles, ready: ReadyRun, watch: Watch) -> Result<BuiltRun<'a>> {
        let PlannedRun { opened, plans, averaging } = self;
        let OpenedRun { groups, started, config, device, threads, workers, source, test, about, .. } = opened;
        let RunFiles { resumed, start, path, checkpoints } = kept;
        let ReadyRun { length, expected, description, identity } = ready;
        let (world, data) = (&groups.job, &groups.data);
        let standing = resumed.as_ref().map_or_else(Standing::default, |resumed| resumed.standing);
        let texts = checkpoint::texts(&description, world.size(), &identity, path.as_ref());
        let commits = Commits::open(world, &config, resumed.is_some(), texts.clone())?;
        let saver = Saver::new(&config, checkpoints, watch, texts, resumed.as_ref().map(|_| standing.at));
        comm::enter(RunPhase::Memory, 0);
        let peers = if workers < data.size() { servers_apart(data, workers)? } else { data.clone() };
        let assembly = Assembly {
            groups,
            world: data,
            peers: &peers,
            config: &config,
            averaging: &averaging,
            plans: &plans,
            device: &*device,
        };
        let memories = assembly.memories(start.as_ref(), threads)?;
        let trainer = assembly.trainer(&memories)?;
        let evaluator = match (&plans.evaluation, test) {
            (Some(plan), Some(loader)) => Some(assembly.evaluator(plan, &memories, loader)?),
            _ => None,
        };
        let split = plans.split_layers();
        // Steps in which ranks meet, which are rehearsed, are not those of a round.
        let expected = if config.relaxed(workers).is_some() { f64::NAN } else { expected };
        let job = Job {
            groups: groups.clone(),
            peers,
            schedule: schedule(world, &config, &source, length, standing.at.done),
            length,
            reported: Reported {
                // Stages have unlike memory, and what is measured is that of the rank that has most.
                planned_memory: greatest(world, plans.total())?,
                remedy: remedy(config.wire),
                metric: config.metric(),
                pace: Pace::new(expected, averaging.is_measured()),
            },
            plan: plans.training,
            device,
            source,
            evaluator,
            trainer,
            standing,
            saving: Saving { saver, commits, states: optim::state_names(&config.optimizer.rule) },
            memories,
            about,
        };
        tell(started, "memory and kernels ready");
        Ok(BuiltRun { config, averaging, workers, split, resumed, path, description, job, of: groups })
    }
}

/// Of the data ranks those that are workers, or those that are servers, as the caller is.
fn servers_apart(data: &World, workers: usize) -> Result<World> {
    data.split(usize::from(data.rank() >= workers), data.rank())
}

/// What to do where numbers are no longer finite.
fn remedy(wire: Wire) -> &'static str {
    match wire {
        Wire::F16 => "Try --wire bf16 (with f16 a gradient beyond 65504 is infinite), or a smaller --lr",
        Wire::F32 | Wire::Bf16 => "Try a smaller --lr, or --lr-warmup",
    }
}

/// A run that has its memory and kernels.
struct BuiltRun<'a> {
    of: &'a Groups,
    config: Config,
    averaging: Averaging,
    workers: usize,
    /// Which layers are split, in words.
    split: String,
    resumed: Option<Resumed>,
    path: Option<PathBuf>,
    description: Description,
    job: Job,
}

impl BuiltRun<'_> {
    /// Gives memory its first contents, or those of the checkpoint, and begins the record.
    fn start(self) -> Result<(Job, Recorder)> {
        let BuiltRun { of: groups, config, averaging, workers, split, resumed, path, description, mut job } =
            self;
        let world = &groups.job;
        let reached = resumed.as_ref().map(Resumed::reached);
        let state = State::new(&job.plan, &job.memories, job.saving.states, job.trainer.compressed_state());
        if let Some(resumed) = resumed {
            world.agree(state.restore(groups, &job.peers, &*job.device, &resumed.contents))?;
            if let Some(scaling) = &mut job.trainer.updates.scaling {
                scaling.scaler = scaling.scaler.resumed(|name| resumed.contents.number(name).ok());
            }
        } else if config.session.resume.is_some() {
            // Before the record is there: a job killed from now on is resumed by the same command.
            job.saving.saver.take(groups, &job.peers, &*job.device, &state, &job.standing, BTreeMap::new)?;
            world.agree(job.saving.saver.finish())?;
        }
        let description = describe::built(description, &job, &config, &averaging, (workers, split))?;
        let recorder = Recorder::open(world.into(), path.as_deref(), &description, reached.as_ref());
        Ok((job, world.agree(recorder)?))
    }
}

/// Where something is predicted of other ranks, who may be elsewhere: what these do.
fn planned_here(world: &World, config: &Config) -> Config {
    let mut planned = config.clone();
    if config.prediction.is_some() {
        (planned.pipeline, planned.tensor) = (None, None);
        // No rank may have room for a whole sample: where there are as many here as share one, they plan their parts.
        if config.measure.is_some() || !world.size().is_multiple_of(config.spatial) {
            planned.spatial = 1;
        }
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

/// What a device is to make the network's numbers of: a quarter or half of what these are to send. One that computes in
/// the host's memory has nothing sent.
pub fn raw(sets: Option<&Sets>, device: &dyn Device) -> Option<RawSamples> {
    sets.filter(|_| !device.is_host() && !environment::CUDA_PIXELS.is_off())?.raw()
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

/// Where results and checkpoints go; both are tried before the expensive part begins.
fn outputs(
    world: &World,
    config: &Config,
    model: &str,
    resumed: Option<&Resumed>,
) -> Result<(Option<PathBuf>, Option<Checkpoints>)> {
    let (place, given): (record::RankInfo, _) = (world.into(), config.outputs.results.as_deref());
    let path = match resumed {
        _ if config.plan.dry_run => None,
        None => record::results_path(place, given, model)?,
        Some(resumed) => {
            let earlier = resumed.contents.text("results").as_ref();
            record::resumed_path(place, given, model, earlier)?
        }
    };
    if let (Some(events), true) = (&config.outputs.tensorboard, path.is_some()) {
        record::check_events(events, resumed.is_some())?;
    }
    if let (Some(log), true) = (&config.outputs.mllog, path.is_some() && place.rank == 0) {
        record::check_mllog(log, resumed.is_some())?;
    }
    let directory = config.session.checkpoint.as_deref().filter(|_| place.rank == 0 && !config.plan.dry_run);
    let done = resumed.map(|resumed| resumed.standing.at.done as u64);
    let open = |directory: &Path| Checkpoints::open(directory, config.session.keep, done);
    Ok((path, directory.map(open).transpose()?))
}

/// Whether the weights can be written where they are to go, under the names that an ONNX file gives them. Those that
/// this run has left there before are replaced.
fn weights_path(world: &World, config: &Config, network: &Network, resumed: Option<&Resumed>) -> Result<()> {
    let Some(path) = config.outputs.save_weights.as_ref().filter(|_| !config.plan.dry_run) else {
        return Ok(());
    };
    let run = resumed.map(|resumed| resumed.contents.text("run"));
    let of = config.session.checkpoint.as_deref().zip(run);
    let names = network.model.file().into_iter().flat_map(|file| file.weights());
    let names = || record::check_names(path, names.map(|weight| weight.name.as_str()));
    let checked = || record::check_weights(path, of).and_then(|()| names());
    record::once(world, || checked().map_err(|e| e.context("--save-weights")))
}

/// How gradients are averaged, among the ranks with the same parameters. Collective.
fn averaging(groups: &Groups, config: &Config, device: &dyn Device, threads: usize) -> Result<Averaging> {
    if groups.split.is_some() {
        let averaging = Averaging::new(&groups.data, config, device, threads)?;
        return Ok(averaging.over_groups(groups.mesh));
    }
    if !groups.mesh.is_cut() {
        return Averaging::new(&groups.data, config, device, threads);
    }
    // What stages are cut by must be the same on all of them.
    let mut least = [threads as f64];
    groups.job.min_f64(&mut least)?;
    Ok(Averaging::new(&groups.data, config, device, least[0] as usize)?.over_stages(&groups.job))
}

/// The learning rate at every step, from where the run goes on.
fn schedule(world: &World, config: &Config, source: &Source, length: Length, done: usize) -> RateSchedule {
    let with_epochs = config.data.is_some();
    let steps_per_epoch = if with_epochs { source.steps() } else { length.steps };
    let ranks = config.data_ranks(world.size()) / config.spatial;
    let schedule = RateSchedule::new(&config.rate, ranks, steps_per_epoch, length.steps)
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
