//! The job: set up, then epochs of steps, evaluation, and the end.
//!
//! `run` reads like the method section of a paper; `setup` brings the parts together (`assemble`; `source`: where
//! batches come from, `fields` where they are arrays, `doubts` whether data, network and weights go together, `plans`,
//! of stages by `cutting`, their memory by `ledger`, `describe` for the record, `mlperf` for MLPerf's), `step` is one
//! training step, `captured` what of it a device does at once, `device_prefetch` the next batch on its way, `metrics`
//! the losses on theirs, `device` what a rank drives, `meeting` where ranks with parameters of their own come together,
//! `shards` what does not depend on their number, `asynchronous` and `server` what ranks and servers do that do not
//! wait for all, `evaluate` the test set, `testing` that alone, `predicting` what images are, `predicting_fields` what
//! comes of arrays, `checkpoint` keeps and resumes what `state` lists, on disk or, by `commit`, in memory, `stop` hears
//! signals, `max_batch` says how large a batch fits, `prediction` how fast the run would be elsewhere, `simgrid` what a
//! script makes traces of for another simulator, `planner` which way to share the work is the fastest, of which
//! `sketch` leaves out the poor ones. What only one rank says is `record`'s business, and so are files. Where ranks
//! bring numbers together, or take them out of a file, the one that has all of them asks `Topology::is_first`. May use:
//! every module below. Used by: `main`, `elastic`, `export`.

mod assemble;
mod asynchronous;
mod captured;
mod checkpoint;
mod commit;
mod cutting;
mod describe;
mod device;
mod device_prefetch;
mod doubts;
mod evaluate;
mod field_files;
mod fields;
mod groups;
mod ledger;
mod length;
mod max_batch;
mod meeting;
mod memory;
mod metrics;
mod mlperf;
mod network;
mod owned;
mod pace;
mod parts;
mod planner;
mod plans;
mod predicting;
mod predicting_fields;
mod prediction;
mod server;
mod setup;
mod shards;
mod simgrid;
mod sketch;
mod source;
mod stages;
mod state;
mod step;
mod stop;
mod testing;
mod timeline;
mod weights;

use std::collections::BTreeMap;
use std::time::Instant;

use crate::comm::{self, RunPhase, World};
use crate::config::{Config, Metric};
use crate::data::MissingCount;
use crate::device::{Metered, Usage};
use crate::error::{Error, ErrorKind, Result};
use crate::fields::six_digits;
use crate::model::Model;
use crate::record::{self, EpochRecord, MemoryRecord, Recorder, Spent, Spread, StepRecord};
use crate::{host, trace};

use checkpoint::{Position, Standing};
use commit::Commits;
pub use commit::newest_commit;
use evaluate::Evaluator;
use groups::Groups;
use owned::Owned;
use setup::Job;
use state::State;
use step::{Scaling, StepResult};
use stop::Watch;
use timeline::Timeline;
pub use weights::{EXPORTED, Start};

/// Trains as configured. Collective: every rank calls it, and every rank gets the same error.
///
/// # Errors
/// Whatever stops the run; by then all ranks know of it, so one message suffices.
pub fn run(world: &World, config: Result<Config>, started: Instant) -> Result<()> {
    run_model(world, config, None, started)
}

/// The same of a network that `--model` does not know: `examples/own_network.rs` has one. It can do whatever flags can
/// say of a run, and leaves the same record.
///
/// # Errors
/// As for `run`.
pub fn run_own(world: &World, config: Config, model: Model, started: Instant) -> Result<()> {
    let config = Config { model: model.name().into(), ..config };
    run_model(world, Ok(config), Some(model), started)
}

fn run_model(world: &World, config: Result<Config>, model: Option<Model>, started: Instant) -> Result<()> {
    let config = world.agree(config)?;
    world.check_same(&config.shared_items())?;
    world.limit_stalls(config.stalls.stall_warn, config.stalls.stall_abort);
    let (config, model) = fields::shaped(world, config, model)?;
    let (config, known) = planner::decided(world, config, model.as_ref())?;
    let groups = Groups::new(world, &config)?;
    let config = world.agree(config.among(config.data_ranks(world.size()).max(1)))?;
    let watch = world.agree(Watch::start(world, &config.session, started))?;
    let timeline = Timeline::start(world, &config)?;
    let Some((mut job, mut recorder)) = setup::prepare(&groups, &config, model, watch, (started, known))?
    else {
        return Ok(());
    };
    let outcome =
        epochs(world, &mut job, &mut recorder).and_then(|()| save_weights(world, &config, &mut job));
    let fusion = job.trainer.fusion;
    let left = match &outcome {
        // Others may wait for this rank, and a device with them: what devices do together is broken off.
        Err(error) if !world.is_agreed(error) => {
            drop(fusion);
            Ok(())
        }
        _ => fusion.leave(),
    };
    // An orderly end waits until the last checkpoint is on disk.
    let orderly = outcome.as_ref().err().is_none_or(|error| error.kind.is_stop());
    let kept = if orderly { world.agree(job.saving.saver.finish()) } else { Ok(()) };
    if let Some(commits) = job.saving.commits.take_if(|_| orderly && kept.is_ok()) {
        commits.remove(world);
    }
    let closed = recorder.finish(outcome.as_ref().map(|_| ()));
    let outcome = kept.and(outcome);
    let labels: Vec<String> = job.plan.steps.iter().map(|step| step.label.clone()).collect();
    let drawn = match &outcome {
        Err(error) if !world.is_agreed(error) => timeline.finish_alone(world, &labels),
        _ => timeline.finish(&groups, &labels),
    };
    outcome.and(left)?;
    world.agree(closed)?;
    drawn
}

/// Epoch after epoch, from where the run stands to the configured end.
fn epochs(world: &World, job: &mut Job, recorder: &mut Recorder) -> Result<()> {
    while job.standing.at.epoch < job.length.epochs {
        let at = &mut job.standing.at;
        if at.images == 0 {
            at.shuffled_for = job.source.global_batch();
        }
        job.source.start_epoch(at, job.length.steps);
        job.standing.totals.begin();
        epoch_steps(world, job, recorder)?;
        // A run that ends in the middle of an epoch may be made longer: then this evaluation has not been.
        let whole = job.source.steps_after(job.standing.at.images) == 0;
        if !whole {
            take_checkpoint(world, job, recorder)?;
        }
        evaluate(world, job, recorder, whole)?;
        job.reported.pace.say(world)?;
        if job.standing.at.done >= job.length.steps {
            break;
        }
    }
    take_checkpoint(world, job, recorder)?;
    if let Some(scaling) = &job.trainer.updates.scaling {
        let (skipped, steps, scale) =
            (scaling.scaler.skipped(), job.standing.at.done, scaling.scaler.scale());
        let text =
            format!("loss scale {scale} at the end; {skipped} of {steps} steps were skipped for overflow");
        record::say(world, &text);
    }
    comm::enter(RunPhase::End, 0);
    let measured = greatest(world, host::peak_rss().unwrap_or(0))?;
    let sent = job.trainer.sent() as usize / job.trainer.runs.max(1);
    recorder.sent_a_step(greatest(world, sent)? as u64);
    recorder.memory(MemoryRecord { planned: job.reported.planned_memory, measured });
    Ok(())
}

/// The file of `--save-weights`. Collective.
fn save_weights(world: &World, config: &Config, job: &mut Job) -> Result<()> {
    job.trainer.settle(&*job.device)?;
    if config.outputs.save_weights.is_none() {
        return Ok(());
    }
    let apart = take_evaluated(world, job)?;
    if apart.is_finite() {
        record::say(world, "--save-weights: the mean over ranks, each of which has parameters of its own");
    }
    weights::save(job, config)?;
    give_back(world, job)
}

/// What an evaluation reads takes the parameters' place, where it is not there yet: the ranks' mean, where each has
/// parameters of its own, or averages that lie apart. Returns how far ranks are from their mean, which is NaN where all
/// have the same. Collective.
fn take_evaluated(world: &World, job: &mut Job) -> Result<f64> {
    match job.memories.anchor {
        Some(_) => meeting::take_mean(world, &*job.device, &job.memories),
        None => job.trainer.exchange_averages(world, &*job.device, &job.memories).map(|()| f64::NAN),
    }
}

/// The parameters are again what they were before `take_evaluated`. Collective.
fn give_back(world: &World, job: &mut Job) -> Result<()> {
    match job.memories.anchor {
        Some(_) => meeting::restore(&*job.device, &job.memories),
        None => job.trainer.exchange_averages(world, &*job.device, &job.memories),
    }
}

/// The end of an epoch: the test set, and a checkpoint where one is due.
fn evaluate(world: &World, job: &mut Job, recorder: &mut Recorder, whole: bool) -> Result<()> {
    if !job.source.has_epochs() {
        return Ok(());
    }
    let Some(test) = test(world, job)? else { return stopped(world, job, recorder) };
    report_skipped(world, job.standing.at.epoch, job.source.skipped())?;
    let tested = job.evaluator.as_ref().map_or_else(MissingCount::default, |of| of.loader.missing());
    let before = format!("epoch {}: missing ", job.standing.at.epoch + 1);
    report_missing(world, &before, &[("in training", job.source.missing()), ("in the test", tested)])?;
    let Standing { at, totals, best } = &mut job.standing;
    recorder.epoch(&totals.record(world, at.epoch, job.reported.metric, &test)?);
    by_class(world, &test);
    if !whole {
        return Ok(());
    }
    let better = job.evaluator.is_some()
        && best.is_none_or(|(best, _)| job.reported.metric.prefers(test.metric, best));
    (at.epoch, at.images, *totals) = (at.epoch + 1, 0, Totals::default());
    if better {
        *best = Some((test.metric, at.done));
    }
    if better || job.saving.saver.due || job.saving.saver.is_due_after_epoch(job.standing.at.epoch) {
        take_checkpoint(world, job, recorder)?;
    }
    Ok(())
}

/// Says the intersection over union of each class, and Dice's share 2I/(A + B), where that is the metric.
fn by_class(world: &World, test: &Test) {
    let shares = |of: fn(f64) -> f64| {
        let each = test.by_class.iter().enumerate().map(|(class, &iou)| format!("{class}: {:.4}", of(iou)));
        each.collect::<Vec<_>>().join(", ")
    };
    if !test.by_class.is_empty() {
        let dice = shares(|iou| 2.0 * iou / (1.0 + iou));
        record::tell(world, &format!("IoU by class: {}; Dice by class: {dice}", shares(|iou| iou)));
    }
}

/// The test set, where there is one; `None` when the run was told to stop meanwhile. Collective.
fn test(world: &World, job: &mut Job) -> Result<Option<Test>> {
    if job.evaluator.is_none() {
        return Ok(Some(Test { loss: f64::NAN, metric: f64::NAN, by_class: Vec::new(), apart: f64::NAN }));
    }
    let (epoch, begun) = (job.standing.at.epoch + 1, trace::now());
    comm::enter(RunPhase::Evaluation, epoch as u64);
    job.trainer.settle(&*job.device)?;
    let apart = take_evaluated(world, job)?;
    if let Some(whole) = job.memories.whole() {
        let (plan, memories, device) = (&job.plan, &job.memories, &*job.device);
        Owned { world, plan, memories, device }.gather_all(whole)?;
    }
    let (saver, evaluator) = (&job.saving.saver, job.evaluator.as_mut());
    let run = |evaluator: &mut Evaluator| evaluator.run(world, &*job.device, || saver.flags().stop);
    let test = evaluator.map_or(Ok(None), run)?.map(|test| Test { apart, ..test });
    give_back(world, job)?;
    if test.is_some() {
        trace::record(trace::EventKind::Evaluation, begun, epoch, 0, 0);
    }
    Ok(test)
}

/// The steps of one epoch.
fn epoch_steps(world: &World, job: &mut Job, recorder: &mut Recorder) -> Result<()> {
    let Position { images: seen, done, epoch, .. } = job.standing.at;
    let steps = job.source.steps_after(seen);
    let last = steps.min(job.length.steps.saturating_sub(done));
    for step in 0..last {
        let done = job.standing.at.done;
        comm::enter(RunPhase::Step, done as u64);
        trace::step(done as u64);
        let due = |commits: &Commits| commits.is_due(done + 1);
        let together =
            job.saving.saver.is_due(done + 1, false) || job.saving.commits.as_ref().is_some_and(due);
        job.trainer.relaxed.drains = together || step + 1 == last;
        job.trainer.flags = job.saving.saver.flags();
        let saving = job.saving.saver.is_writing();
        let result = job.trainer.step(&*job.device, &mut job.source, [step, last], done, &job.schedule)?;
        record_step(job, recorder, &result, [done, epoch], saving);
        histograms(job, recorder, done + 1)?;
        if result.diverged {
            // Parameters may be on their way.
            job.trainer.settle(&*job.device)?;
            let step = result.diverged_in.unwrap_or(done);
            return world.agree(Err(diverged(world, step, &result, job.reported.remedy)));
        }
        scale_is_left(world, job, done)?;
        job.standing.totals.add(&result);
        job.reported.pace.step(&result);
        job.standing.at.done += 1;
        job.standing.at.images += job.source.global_batch();
        job.saving.saver.watch.stepped(result.spent.seconds);
        if result.flags.stop {
            return stopped(world, job, recorder);
        }
        if job.saving.commits.as_ref().is_some_and(|commits| commits.is_due(done + 1)) {
            commit(world, job, recorder)?;
        }
        job.saving.saver.due |= job.saving.saver.is_due(done + 1, result.flags.checkpoint);
        // After the last step of an epoch it waits for the evaluation.
        if job.saving.saver.due && step + 1 < steps {
            take_checkpoint(world, job, recorder)?;
        }
    }
    all_finite(world, job)
}

fn record_step(
    job: &mut Job,
    recorder: &mut Recorder,
    result: &StepResult,
    [done, epoch]: [usize; 2],
    saving: bool,
) {
    recorder.step(&StepRecord {
        step: done as u64,
        epoch: if job.source.has_epochs() { epoch as u64 + 1 } else { 0 },
        images: result.images as u64,
        loss: result.loss,
        metric: job
            .reported
            .metric
            .of(result.loss, result.metric.map(|sum| sum / result.images.max(1) as f64)),
        learning_rate: f64::from(result.learning_rate),
        spent: result.spent,
        copying: std::mem::take(&mut job.saving.saver.copying),
        saving,
        usage: result.usage,
        buckets: job.trainer.bucket_times(),
    });
}

/// That gradients which are not finite still make the loss scale smaller. The same on every rank.
fn scale_is_left(world: &World, job: &Job, done: usize) -> Result<()> {
    match job.trainer.updates.scaling.as_ref().filter(|scaling| scaling.stuck) {
        None => Ok(()),
        Some(scaling) => world.agree(Err(Error::new(
            ErrorKind::Diverged,
            format!(
                "gradients are not finite at step {done}, and the loss scale is at its minimum of {}. Try a smaller \
                 --lr, or --precision bf16",
                scaling.scaler.scale()
            ),
        ))),
    }
}

/// The weights and averaged gradients, where they are asked for. Between two steps nobody writes to either.
fn histograms(job: &Job, recorder: &mut Recorder, done: usize) -> Result<()> {
    if recorder.wants_histograms(done as u64) {
        let (memories, device) = (&job.memories, &*job.device);
        for parameter in &job.plan.parameters {
            for (kind, region) in
                [("weights", &memories.regions.parameters), ("gradients", &memories.gradients.averaged)]
            {
                let values = memories.read(device, parameter, region)?;
                recorder.histogram(&format!("{kind}/{}", parameter.name), &values);
            }
        }
    }
    Ok(())
}

/// Takes a checkpoint of where the run stands, never one that is broken. Collective.
fn take_checkpoint(world: &World, job: &mut Job, recorder: &mut Recorder) -> Result<()> {
    let begun = Instant::now();
    if job.saving.saver.active {
        all_finite(world, job)?;
    }
    job.trainer.settle(&*job.device)?;
    if let Some(counts) = job.trainer.staleness() {
        recorder.staleness(&staleness(world, counts)?);
    }
    let state = State::new(&job.plan, &job.memories, job.saving.states, job.trainer.compressed_state());
    let numbers = || numbers(job.trainer.updates.scaling.as_ref(), recorder);
    job.saving.saver.take(&job.groups, &job.peers, &*job.device, &state, &job.standing, numbers)?;
    job.saving.saver.copying += begun.elapsed().as_secs_f64();
    Ok(())
}

/// How many updates were by gradients of each staleness, which one rank has counted, on all ranks. Collective.
fn staleness(world: &World, counts: &[u64]) -> Result<Vec<u64>> {
    let mut all = vec![0.0; greatest(world, counts.len())?];
    all.iter_mut().zip(counts).for_each(|(all, &count)| *all = count as f64);
    world.sum_f64(&mut all)?;
    Ok(all.into_iter().map(|count| count as u64).collect())
}

/// What a checkpoint keeps of the record and of the loss scale, by name.
fn numbers(scaling: Option<&Scaling>, recorder: &mut Recorder) -> BTreeMap<String, f64> {
    let kept = scaling.into_iter().flat_map(|scaling| scaling.scaler.numbers());
    recorder.numbers().into_iter().chain(kept.map(|(name, number)| (name.into(), number))).collect()
}

/// The same in memory of the nodes. Collective.
fn commit(world: &World, job: &mut Job, recorder: &mut Recorder) -> Result<()> {
    let begun = Instant::now();
    all_finite(world, job)?;
    let state = State::new(&job.plan, &job.memories, job.saving.states, job.trainer.compressed_state());
    let Some(commits) = &mut job.saving.commits else { return Ok(()) };
    let numbers = || numbers(job.trainer.updates.scaling.as_ref(), recorder);
    commits.take(world, &*job.device, &state, &job.standing, numbers)?;
    job.saving.saver.copying += begun.elapsed().as_secs_f64();
    Ok(())
}

/// Whether parameters are finite: the same on all ranks that have all of them. Collective where some have not.
fn all_finite(world: &World, job: &mut Job) -> Result<()> {
    job.trainer.settle(&*job.device)?;
    let found = match job.trainer.broken_parameter(&*job.device)? {
        None => Ok(()),
        Some(name) => Err(Error::new(
            ErrorKind::Diverged,
            format!(
                "parameter {name} is not finite after step {}. {}",
                job.standing.at.done - 1,
                job.reported.remedy
            ),
        )),
    };
    let are_parts = job.groups.mesh.is_cut() || job.groups.split.is_some();
    let unlike = job.memories.owners.are_apart() || job.memories.anchor.is_some() || are_parts;
    match unlike {
        false if found.is_ok() => Ok(()),
        _ => world.agree(found),
    }
}

/// Says how many samples of an epoch could not be read, on all ranks; each was named when it was met. Collective.
fn report_skipped(world: &World, epoch: usize, skipped: usize) -> Result<()> {
    let mut sum = [skipped as f64];
    world.sum_f64(&mut sum)?;
    if sum[0] > 0.0 {
        let text = format!(
            "epoch {}: {} skipped that cannot be read (--strict stops at one)",
            epoch + 1,
            record::plural(sum[0] as usize, "sample")
        );
        record::say(world, &text);
    }
    Ok(())
}

/// Says what share of arrays' numbers is missing, of those that all ranks have read, which may have read some twice.
/// Collective.
fn report_missing(world: &World, before: &str, counts: &[(&str, MissingCount)]) -> Result<()> {
    let mut sums: Vec<f64> = counts
        .iter()
        .flat_map(|(_, of)| [of.missing[0], of.all[0], of.missing[1], of.all[1]].map(|count| count as f64))
        .collect();
    world.sum_f64(&mut sums)?;
    let said = counts.iter().zip(sums.chunks_exact(4)).filter_map(|((place, _), sums)| {
        let of = |(sums, what): (&[f64], &str)| {
            (sums[0] > 0.0).then(|| format!("{} % of {what}", six_digits(100.0 * sums[0] / sums[1])))
        };
        let shares: Vec<String> = sums.chunks_exact(2).zip(["inputs", "targets"]).filter_map(of).collect();
        (!shares.is_empty()).then(|| format!("{place} {}", shares.join(" and ")))
    });
    let said: Vec<String> = said.collect();
    if !said.is_empty() {
        record::say(world, &format!("{before}{}", said.join(", ")));
    }
    Ok(())
}

/// The run's end when it was told to stop: a checkpoint, and the message. Collective.
fn stopped(world: &World, job: &mut Job, recorder: &mut Recorder) -> Result<()> {
    take_checkpoint(world, job, recorder)?;
    let mut signal = [job.saving.saver.watch.signal() as f64];
    world.max_f64(&mut signal)?;
    let remedy = match job.saving.saver.active {
        true => "--resume auto goes on",
        false => "without --checkpoint there is nothing to go on from",
    };
    let signal = signal[0] as usize;
    let (reason, done) = (job.saving.saver.watch.reason(signal), job.standing.at.done);
    world.agree(Err(Error::new(
        stop::kind(signal),
        format!("stopped by {reason} after {done} of {} steps; {remedy}", job.length.steps),
    )))
}

/// The one message about a loss that is no longer finite: from the lowest rank that found out where.
fn diverged(world: &World, step: usize, result: &StepResult, remedy: &str) -> Error {
    let place = match world.gather_text(result.where_diverged.as_deref().unwrap_or("")) {
        Err(error) => return error,
        Ok(found) => found.into_iter().enumerate().find(|(_, text)| !text.is_empty()),
    };
    let first = match place {
        Some((rank, text)) => format!("first {text} (rank {rank} on {})", world.host_of(rank)),
        None => "only in the sum over ranks".into(),
    };
    Error::new(
        ErrorKind::Diverged,
        format!(
            "the loss is not a finite number at step {step} (learning rate {}): {first}. {remedy}",
            result.learning_rate
        ),
    )
}

/// What an epoch adds up to on this rank; losses, metrics and images are those of all ranks.
#[derive(Debug, Clone, Copy, Default)]
struct Totals {
    images: f64,
    loss: f64,
    /// Sums of the metric's numbers.
    metric: [f64; 3],
    spent: Spent,
    /// Of this rank's device, in this job.
    usage: Metered,
    /// Of the epoch so far when this job took it up, and since when it has.
    earlier: f64,
    begun: Option<Instant>,
}

impl Totals {
    fn begin(&mut self) {
        self.begun = Some(Instant::now());
    }

    fn elapsed(&self) -> f64 {
        self.earlier + self.begun.map_or(0.0, |begun| begun.elapsed().as_secs_f64())
    }

    fn add(&mut self, step: &StepResult) {
        self.images += step.images as f64;
        self.loss += step.loss * step.images as f64;
        self.metric.iter_mut().zip(step.metric).for_each(|(all, sum)| *all += sum);
        self.spent.add(&step.spent);
        self.usage.add(step.spent.seconds, step.usage);
    }

    /// All of it, for a checkpoint.
    fn numbers(&self) -> [(&'static str, f64); 10] {
        [
            ("images", self.images),
            ("loss", self.loss),
            ("hits", self.metric[0]),
            ("metric_2", self.metric[1]),
            ("metric_3", self.metric[2]),
            ("seconds", self.spent.seconds),
            ("compute", self.spent.compute),
            ("communication", self.spent.communication),
            ("input", self.spent.input),
            ("elapsed", self.elapsed()),
        ]
    }

    fn from_numbers(number: impl Fn(&str) -> Result<f64>) -> Result<Totals> {
        Ok(Totals {
            images: number("images")?,
            loss: number("loss")?,
            // Of pictures the first is all there is.
            metric: [number("hits")?, number("metric_2").unwrap_or(0.0), number("metric_3").unwrap_or(0.0)],
            spent: Spent {
                seconds: number("seconds")?,
                compute: number("compute")?,
                communication: number("communication")?,
                input: number("input")?,
                encoding: 0.0,
            },
            earlier: number("elapsed")?,
            ..Totals::default()
        })
    }

    /// Collective: shares are compared over ranks.
    fn record(&self, world: &World, epoch: usize, metric: Metric, test: &Test) -> Result<EpochRecord> {
        let share = |part: f64| spread(world, part / self.spent.seconds.max(f64::MIN_POSITIVE));
        Ok(EpochRecord {
            epoch: epoch as u64 + 1,
            train_loss: self.loss / self.images,
            train_metric: metric.of(self.loss / self.images, self.metric.map(|sum| sum / self.images)),
            test_loss: test.loss,
            test_metric: test.metric,
            ranks_apart: test.apart,
            images_per_second: self.images / self.spent.seconds.max(f64::MIN_POSITIVE),
            seconds: self.elapsed(),
            compute: share(self.spent.compute)?,
            communication: share(self.spent.communication)?,
            input: share(self.spent.input)?,
            usage: mean_usage(world, self.usage.usage())?,
        })
    }
}

/// Means over ranks, where all of them have figures. Collective.
fn mean_usage(world: &World, own: Option<Usage>) -> Result<Option<Usage>> {
    let mut figures = own.map_or([f64::NAN; 3], |usage| [usage.busy, usage.memory, usage.power]);
    world.sum_f64(&mut figures)?;
    let [busy, memory, power] = figures.map(|figure| figure / world.size() as f64);
    Ok(figures.iter().any(|figure| figure.is_finite()).then_some(Usage { busy, memory, power }))
}

/// Mean loss and metric over the test set.
#[derive(Debug, Clone)]
pub(crate) struct Test {
    pub loss: f64,
    pub metric: f64,
    /// Intersection over union of each class, by counts of all points; none where the metric is another.
    pub by_class: Vec<f64>,
    /// How far ranks with parameters of their own were from the mean that was tested (`meeting::take_mean`); else NaN.
    pub apart: f64,
}

/// Mean, minimum and maximum of a number over ranks.
fn spread(world: &World, number: f64) -> Result<Spread> {
    let (mut sum, mut min, mut max) = ([number], [number], [number]);
    world.sum_f64(&mut sum)?;
    world.min_f64(&mut min)?;
    world.max_f64(&mut max)?;
    Ok(Spread { mean: sum[0] / world.size() as f64, min: min[0], max: max[0] })
}

/// Has rank 0 own what is to be written. It may wait for a sign of life of a previous owner, which is no stall.
/// Collective.
fn owning<T>(world: &World, config: &Config, own: impl FnOnce() -> Result<T>) -> Result<T> {
    world.limit_stalls(config.stalls.stall_warn, 0.0);
    let owned = world.agree(own());
    world.limit_stalls(config.stalls.stall_warn, config.stalls.stall_abort);
    owned
}

/// The greatest over ranks of a count that an f64 holds exactly. Collective.
fn greatest(world: &World, count: usize) -> Result<usize> {
    let mut greatest = [count as f64];
    world.max_f64(&mut greatest)?;
    Ok(greatest[0] as usize)
}
