//! The job: set up, then epochs of steps, evaluation, and the end.
//!
//! `run` reads like the method section of a paper; `setup` brings the parts together, `step` is one training step,
//! `averaging` how gradients travel, `evaluate` the test set, `capacity` how large a batch fits, `resident` what a rank has
//! in memory. There is no `if rank == 0` here: what only one rank says or writes is `record`'s business. May use: every room
//! below. Used by: `main`.

mod averaging;
mod capacity;
mod evaluate;
mod memory;
mod network;
mod resident;
mod setup;
mod step;
mod timeline;
mod weights;

use std::time::Instant;

use crate::comm::{self, Phase, World};
use crate::config::Config;
use crate::error::{Error, Kind, Result};
use crate::record::{EpochRecord, Memory, Place, Recorder, Spread, StepRecord};

use crate::trace;

use setup::Job;
pub(crate) use setup::threads;
use step::StepResult;
use timeline::Timeline;

/// Trains as configured. Collective: every rank calls it, and every rank gets the same error.
///
/// # Errors
/// Whatever stops the run; by then all ranks know of it, so one message suffices.
pub fn run(world: &World, config: Result<Config>, started: Instant) -> Result<()> {
    let config = world.agree(config)?;
    world.same(&config.shared_items())?;
    world.limit_stalls(config.stall_warn, config.stall_abort);
    let timeline = Timeline::start(world, &config)?;
    let Some((mut job, mut recorder)) = setup::prepare(world, &config, started)? else { return Ok(()) };
    let outcome = epochs(world, &mut job, &mut recorder)
        .and_then(|()| weights::save(world, &config, &*job.device, &job.plan, &job.memories));
    let closed = recorder.finish(outcome.as_ref().map(|_| ()).map_err(|error| error.message.as_str()));
    let labels = || job.plan.steps.iter().map(|step| step.label.clone()).collect();
    let drawn = match &outcome {
        Err(error) if !world.is_agreed(error) => timeline.finish_alone(world, labels()),
        _ => timeline.finish(world, labels()),
    };
    outcome?;
    world.agree(closed)?;
    drawn
}

/// Epoch after epoch, until the configured end.
fn epochs(world: &World, job: &mut Job, recorder: &mut Recorder) -> Result<()> {
    let mut done = 0;
    for epoch in 0..job.epochs {
        let begun = Instant::now();
        job.source.start_epoch(epoch);
        let totals = epoch_steps(world, job, recorder, epoch, &mut done)?;
        if let Some(evaluator) = &mut job.evaluator {
            comm::enter(Phase::Evaluation, epoch as u64 + 1);
            let traced = trace::now();
            let test = evaluator.run(world, &*job.device)?;
            trace::record(trace::Kind::Evaluation, traced, epoch + 1, 0, 0);
            recorder.epoch(&totals.record(world, epoch, test, begun)?);
        }
        if done >= job.total_steps {
            break;
        }
    }
    comm::enter(Phase::End, 0);
    let measured = greatest(world, resident::peak().unwrap_or(0))?;
    recorder.memory(Memory { planned: job.planned_memory, measured });
    Ok(())
}

/// The steps of one epoch.
fn epoch_steps(
    world: &World,
    job: &mut Job,
    recorder: &mut Recorder,
    epoch: usize,
    done: &mut usize,
) -> Result<Totals> {
    let mut totals = Totals::default();
    for step in 0..job.source.steps().min(job.total_steps - *done) {
        comm::enter(Phase::Step, *done as u64);
        trace::step(*done as u64);
        let rate = job.schedule.rate(*done);
        let result = job.trainer.step(&*job.device, &job.source, step, *done, rate)?;
        recorder.step(&StepRecord {
            step: *done as u64,
            epoch: if job.evaluator.is_some() { epoch as u64 + 1 } else { 0 },
            images: result.images as u64,
            loss: result.loss,
            accuracy: result.hits / result.images as f64,
            learning_rate: f64::from(rate),
            seconds: result.seconds,
            compute: result.compute,
            communication: result.communication,
            input: result.input,
            encoding: result.encoding,
            buckets: job.trainer.bucket_times(),
        });
        if result.diverged {
            return world.agree(Err(diverged(world, *done, &result)));
        }
        totals.add(&result);
        *done += 1;
    }
    // Parameters are the same on all ranks, and so is the answer.
    match job.trainer.broken_parameter(&*job.device)? {
        None => Ok(totals),
        Some(name) => world.agree(Err(Error::new(
            Kind::Diverged,
            format!(
                "parameter {name} is not finite after step {}. Try a smaller --lr, or --lr-warmup",
                *done - 1
            ),
        ))),
    }
}

/// The one message about a loss that is no longer finite: from the lowest rank that found out where.
fn diverged(world: &World, step: usize, result: &StepResult) -> Error {
    let place = match world.gather_text(result.where_diverged.as_deref().unwrap_or("")) {
        Err(error) => return error,
        Ok(found) => found.into_iter().enumerate().find(|(_, text)| !text.is_empty()),
    };
    let first = match place {
        Some((rank, text)) => format!("first {text} (rank {rank} on {})", world.host_of(rank)),
        None => "only in the sum over ranks".into(),
    };
    Error::new(
        Kind::Diverged,
        format!(
            "the loss is not a finite number at step {step} (learning rate {}): {first}. \
             Try a smaller --lr, or --lr-warmup",
            result.learning_rate
        ),
    )
}

/// What an epoch adds up to on this rank; losses, hits and images are those of all ranks.
#[derive(Debug, Default)]
struct Totals {
    images: f64,
    loss: f64,
    hits: f64,
    seconds: f64,
    compute: f64,
    communication: f64,
    input: f64,
}

impl Totals {
    fn add(&mut self, step: &StepResult) {
        self.images += step.images as f64;
        self.loss += step.loss * step.images as f64;
        self.hits += step.hits;
        self.seconds += step.seconds;
        self.compute += step.compute;
        self.communication += step.communication;
        self.input += step.input;
    }

    /// Collective: shares are compared over ranks.
    fn record(&self, world: &World, epoch: usize, test: Test, begun: Instant) -> Result<EpochRecord> {
        let share = |part: f64| spread(world, part / self.seconds.max(f64::MIN_POSITIVE));
        Ok(EpochRecord {
            epoch: epoch as u64 + 1,
            train_loss: self.loss / self.images,
            train_accuracy: self.hits / self.images,
            test_loss: test.loss,
            test_accuracy: test.accuracy,
            images_per_second: self.images / self.seconds.max(f64::MIN_POSITIVE),
            seconds: begun.elapsed().as_secs_f64(),
            compute: share(self.compute)?,
            communication: share(self.communication)?,
            input: share(self.input)?,
        })
    }
}

/// Mean loss and share of hits over the test set.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Test {
    pub loss: f64,
    pub accuracy: f64,
}

/// Mean, minimum and maximum of a number over ranks.
fn spread(world: &World, number: f64) -> Result<Spread> {
    let (mut sum, mut min, mut max) = ([number], [number], [number]);
    world.sum_f64(&mut sum)?;
    world.min_f64(&mut min)?;
    world.max_f64(&mut max)?;
    Ok(Spread { mean: sum[0] / world.size() as f64, min: min[0], max: max[0] })
}

/// The greatest over ranks of a count that an f64 holds exactly. Collective.
fn greatest(world: &World, count: usize) -> Result<usize> {
    let mut greatest = [count as f64];
    world.max_f64(&mut greatest)?;
    Ok(greatest[0] as usize)
}

/// This rank's place, for the record.
fn place(world: &World) -> Place {
    Place { rank: world.rank(), size: world.size() }
}
