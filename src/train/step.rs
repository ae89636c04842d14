//! One training step: the interpreter of a rank's script (`plan::Script`). It does what the script says in that order,
//! and decides nothing.

use std::collections::HashMap;
use std::rc::Rc;
use std::time::Instant;

use super::asynchronous::{Note, Side};
use super::captured::{Bound, Whole};
use super::device_prefetch::{DevicePrefetch, Inputs};
use super::meeting::{Meetings, RelaxedWays};
use super::memory::Memories;
use super::metrics::Metrics;
use super::server::Updates;
use super::shards::{self, Statistics};
use super::source::Source;
use super::stop::Flags;
use crate::comm::{Barrier, World};
use crate::data::Batch;
use crate::device::memory::bytes_of_mut;
use crate::device::{Device, DeviceEvent, Memory, Scalars, Squares, Step, Usage, clip_factor};
use crate::error::Result;
use crate::fusion::compress::{Account, Kept};
use crate::fusion::{Fusion, Values};
use crate::graph::DType;
use crate::optim::{LossScaler, RateSchedule};
use crate::plan::{Action, Area, Axis, Kind, Region, Script, Transfer, TransferId, has_not_finite};
use crate::record::Spent;
use crate::trace::{self, BucketTime};

/// What a step adds up over ranks in the last bucket's tail, and with it what `Trainer::flags` says: how many ranks
/// want to stop, how many want a checkpoint.
#[derive(Clone, Copy, PartialEq, Default)]
struct StepSums {
    loss: f32,
    /// The metric's numbers (`Metric::of`); of pictures how many are classified right.
    metric: [f32; 3],
    images: f32,
    /// How many ranks found a number that is not finite.
    diverged: f32,
}

/// Bytes of parameters and of their averages that change places at a time.
const EXCHANGED: usize = 4 << 20;

/// What came of a step. Loss and metric are those of all ranks.
#[derive(Debug, Clone, Default)]
pub struct StepResult {
    pub images: usize,
    pub loss: f64,
    /// Sums of the metric's numbers over samples.
    pub metric: [f64; 3],
    pub diverged: bool,
    /// On a rank whose loss is not finite: where the first such number stands.
    pub where_diverged: Option<String>,
    /// Where updates are asynchronous: in which step, if that is not this one.
    pub diverged_in: Option<usize>,
    /// What any rank said in `Trainer::flags`.
    pub flags: Flags,
    pub learning_rate: f32,
    pub spent: Spent,
    /// What the device's meter showed in the end.
    pub usage: Option<Usage>,
}

/// What a rank does in steps that come again and again (`Manner::of_round`): one, but for ranks with parameters of
/// their own.
pub struct Round {
    /// Of each step, or of the first ones and the last.
    pub scripts: Vec<Rc<Script>>,
    /// How many steps it has.
    pub steps: usize,
    /// Whether optimizers start anew with each.
    pub resets: bool,
}

impl Round {
    /// Of a step by its number in the run.
    fn script(&self, done: usize) -> Rc<Script> {
        let (at, last) = (done % self.steps, self.scripts.len() - 1);
        self.scripts[if at + 1 == self.steps { last } else { at.min(last.saturating_sub(1)) }].clone()
    }

    /// Updates that the optimizer has done before a step.
    fn updates(&self, done: usize) -> usize {
        if self.resets { done % self.steps } else { done }
    }

    /// Who updates what, and what goes between ranks, is the same in all of them.
    fn any(&self) -> &Script {
        &self.scripts[0]
    }
}

/// Copies what is to be copied.
fn copied(device: &dyn Device, pair: Option<&(Memory, Memory)>) -> Result<()> {
    pair.filter(|(from, _)| from.bytes() > 0).map_or(Ok(()), |(from, to)| device.copy(from, to))
}

impl StepResult {
    /// What all ranks were told behind a step that drains.
    fn agree_on(&mut self, note: &Note) {
        if note.drains {
            self.flags = note.flags;
            self.diverged = note.diverged.is_some();
            self.diverged_in = note.diverged.map(|step| step as usize);
        }
    }
}

/// Everything a step needs, made once.
pub struct Trainer {
    /// What this rank does in each step.
    pub round: Round,
    pub relaxed: RelaxedWays,
    /// With shards: what becomes of their running statistics.
    pub statistics: Option<Statistics>,
    /// One for each micro-batch in flight; none on a rank without a graph.
    pub programs: Vec<Bound>,
    /// Where the device does all of a step at once.
    pub whole: Option<Whole>,
    /// Steps that this process has done. In the first one libraries make what they need of their own.
    pub runs: usize,
    pub fusion: Fusion,
    /// Where gradients are compressed: what that comes to, and its state.
    pub compression: Option<Account>,
    pub updates: PartUpdates,
    /// Where the ranks of a node share parameters.
    pub barrier: Option<Barrier>,
    /// What this rank tells the others with the next step.
    pub flags: Flags,
    /// What all steps have in common: the seed, and for `gradient_scale` one over the images of all ranks in a step.
    pub scalars: Scalars,
    pub images: StepImages,
    /// What this rank has of the parameters, by name.
    pub parameters: Vec<(String, Memory)>,
    pub owned: OwnedParts,
}

/// What is done with the gradients of a step that are summed.
pub struct PartUpdates {
    /// Adds a micro-step's gradients to those before; empty without accumulation.
    pub accumulate: Option<Accumulation>,
    /// With f16: the factor of the loss.
    pub scaling: Option<Scaling>,
    /// Scales the gradients of all buckets where their norm is too large.
    pub clip: Option<Clip>,
    /// The update of each of the script's parts.
    pub of_parts: Vec<Box<dyn Step>>,
    /// Takes each part's new parameters into their moving average; empty where there is none.
    pub averages: Vec<Box<dyn Step>>,
}

/// The images of a step, and what is measured of them.
pub struct StepImages {
    /// The host's copy of a batch.
    pub batch: Batch,
    /// The next one, on a device with memory of its own.
    pub ahead: Option<DevicePrefetch>,
    /// Ranks that have the same images, each of which counts them.
    pub sharers: usize,
    pub metrics: Option<Metrics>,
}

/// What is copied where owners have parts of gradients and parameters.
pub struct OwnedParts {
    /// For each transfer that gathers parameters: this rank's part, and where it is gathered.
    pub spreads: HashMap<TransferId, (Memory, Memory)>,
    /// In windows: what lies between the gradients of each bucket.
    pub gaps: Vec<Vec<Memory>>,
    /// Of each bucket the sum of what this rank owns in its window, and where it stays, if it does.
    pub kept: Vec<(Memory, Memory)>,
    /// Whether parameters are gathered before they are read.
    pub gathers: bool,
}

/// The scaling of gradients whose norm is too large.
pub enum Clip {
    /// By a device with memory of its own, which tells nobody the norm.
    OnDevice(Box<dyn Step>),
    /// From sums of squares. The norm is that of fixed parts, one or several for each rank, added up in the order of
    /// ranks: whoever owns them, and whoever adds them up, it has the same bits.
    Of { max_norm: f32, squares: Vec<Squares>, scale: Vec<Box<dyn Step>>, total: f64 },
}

impl Clip {
    /// The sum of the squares of what this rank owns.
    fn measure(&mut self, device: &dyn Device) -> Result<f64> {
        let Clip::Of { squares, total, .. } = self else { return Ok(0.0) };
        *total = 0.0;
        for part in squares {
            *total += part.sum(device)?;
        }
        Ok(*total)
    }

    /// `total`: the sum of all ranks' squares, where it is not this rank's.
    pub fn run(&mut self, scalars: &Scalars, others: Option<f64>) -> Result<()> {
        let (max_norm, scale, total) = match self {
            Clip::OnDevice(step) => return step.run(scalars),
            Clip::Of { max_norm, scale, total, .. } => (*max_norm, scale, others.unwrap_or(*total)),
        };
        let Some(rescale) = clip_factor(max_norm, total) else { return Ok(()) };
        scale.iter_mut().try_for_each(|step| step.run(&Scalars { rescale, ..*scalars }))
    }
}

/// Loss scaling: what gradients are divided by when all are averaged, and whether they are finite then.
pub struct Scaling {
    pub scaler: LossScaler,
    /// Divides those that this rank owns by the factor.
    pub steps: Vec<Box<dyn Step>>,
    /// Not 0 where one of them is not finite.
    pub broken: Memory,
    /// Where the updates look at that themselves: how the host hears of it.
    pub late: Option<Verdict>,
    /// Whether a step overflowed although the factor is as small as it may be.
    pub stuck: bool,
}

/// `Scaling::broken` on its way to page-locked memory of the host, beside the updates.
pub struct Verdict {
    pub host: Memory,
    pub arrives: Option<DeviceEvent>,
}

impl Scaling {
    /// Divides the gradients by the factor; returns whether any that this rank owns is known not to be finite.
    pub fn unscale(&mut self, device: &dyn Device, scalars: &Scalars) -> Result<bool> {
        let mut broken = [0i32];
        if self.late.is_none() {
            device.zero(&self.broken)?;
        }
        self.steps.iter_mut().try_for_each(|step| step.run(scalars))?;
        match &mut self.late {
            Some(late) => {
                late.arrives =
                    Some(device.copy_to_host_after(&self.broken, &late.host, &device.record()?)?);
            }
            None => device.download(&self.broken, bytes_of_mut(&mut broken))?,
        }
        Ok(broken != [0])
    }

    /// All ranks come to the same: they have the same gradients, or were told of the others'.
    fn decide(&mut self, broken: bool) {
        self.stuck = !self.scaler.step(!broken);
    }
}

/// Gradient accumulation: a micro-step writes its own, and their sum is made where buckets lie.
pub struct Accumulation {
    pub micro_steps: usize,
    /// Adds the micro-step's own to the first of these, and each of them to the next: where it comes from, where it
    /// goes, and the step. One sum, or with shards the levels of their tree. The last is the part of the gradient
    /// region that holds gradients, without the tail. Where a stage has several backward passes: those of each.
    pub sums: Vec<Vec<Adding>>,
    /// Whether they are levels of a tree (`shards`).
    pub tree: bool,
}

/// What adds memory to other memory.
pub type Adding = (Memory, Memory, Box<dyn Step>);

impl Accumulation {
    fn add(&mut self, device: &dyn Device, micro: usize, pass: usize, scalars: &Scalars) -> Result<()> {
        let Some(sums) = self.sums.get_mut(pass) else { return Ok(()) };
        if !self.tree {
            return sums.iter_mut().try_for_each(|(_, sum, add)| {
                if micro == 0 {
                    device.zero(sum)?;
                }
                add.run(scalars)
            });
        }
        // A counter in binary: where a level is full, the sum goes on to the next.
        for (level, (from, sum, add)) in sums.iter_mut().enumerate() {
            if micro >> level & 1 == 0 {
                return device.copy(from, sum);
            }
            add.run(scalars)?;
        }
        Ok(())
    }
}

/// A step that is being done.
pub(super) struct Moment<'a> {
    pub device: &'a dyn Device,
    pub source: &'a mut Source,
    schedule: &'a RateSchedule,
    /// The step's number in the epoch, how many of these are to be done, and its number in the run.
    step: usize,
    steps: usize,
    done: usize,
    pub scalars: Scalars,
    sums: StepSums,
    /// The sum of each micro-step's losses.
    losses: Vec<f32>,
    result: StepResult,
    /// Whether a gradient was broken: then nothing is updated.
    broken: bool,
    /// When the present pass began, for the timeline.
    begun: u64,
}

impl Trainer {
    /// Step `step` of the epoch, of which `steps` are to be done; `done` of the run.
    pub fn step(
        &mut self,
        device: &dyn Device,
        source: &mut Source,
        [step, steps]: [usize; 2],
        done: usize,
        schedule: &RateSchedule,
    ) -> Result<StepResult> {
        let (begun, traced) = (Instant::now(), trace::now());
        let learning_rate = schedule.rate(done);
        self.fusion.begin(device, begun);
        let loss_scale = self.updates.scaling.as_ref().map_or(1.0, |scaling| scaling.scaler.scale());
        let scalars = Scalars {
            step: done as u64,
            gradient_scale: self.scalars.gradient_scale * loss_scale,
            rescale: 1.0 / loss_scale,
            learning_rate,
            // A skipped step is no update.
            update: self.round.updates(done) as u64 + 1 - self.skipped(),
            ..self.scalars
        };
        let script = self.round.script(done);
        if self.runs == 1 {
            self.capture(device, &script, &scalars)?;
        }
        self.runs += 1;
        self.statistics.as_mut().map_or(Ok(()), |statistics| statistics.begin(device))?;
        let mut at = Moment {
            device,
            source,
            schedule,
            step,
            steps,
            done,
            scalars,
            sums: StepSums::default(),
            losses: Vec::new(),
            result: StepResult { learning_rate, ..StepResult::default() },
            broken: false,
            begun: traced,
        };
        script.actions.iter().try_for_each(|action| match self.is_launched(action, &mut at)? {
            true => Ok(()),
            false => self.act(action, &mut at),
        })?;
        let Moment { mut result, .. } = at;
        self.hear_of_gradients(device)?;
        if self.relaxed.asynchronous.is_none() {
            self.read_tail(device, &mut result)?;
        }
        let spent = &mut result.spent;
        spent.communication =
            self.fusion.waited() + self.fusion.times().iter().map(|time| time.exposed).sum::<f64>();
        if let Some(Side::Server(server)) = &self.relaxed.asynchronous {
            spent.communication += server.waited;
        }
        spent.encoding = self.compression.as_ref().map_or(0.0, Account::take_seconds);
        result.usage = device.usage();
        spent.seconds = begun.elapsed().as_secs_f64();
        trace::record(trace::EventKind::Step, traced, 0, 0, 0);
        spent.compute = spent.seconds - spent.communication - spent.input;
        Ok(result)
    }

    /// Does one thing.
    fn act(&mut self, action: &Action, at: &mut Moment) -> Result<()> {
        let device = at.device;
        match action {
            Action::Read { micro } => self.read(*micro, at),
            Action::Run { steps, micro } => self.run(steps, *micro, at),
            Action::Losses { .. } => self.fetch_metrics(at),
            Action::Prefetch { micro } => self.prefetch(*micro, at),
            Action::Metrics { micro } => {
                trace::record(trace::EventKind::Backward, at.begun, 0, 0, 0);
                self.read_metrics(*micro, at)
            }
            Action::Accumulate { micro, pass } => self
                .updates
                .accumulate
                .as_mut()
                .map_or(Ok(()), |sums| sums.add(device, *micro, *pass, &at.scalars)),
            Action::Statistics { micro } => self.take_statistics(*micro, device),
            Action::Tail => self.write_tail(at),
            Action::Spread(id) => copied(device, self.owned.spreads.get(id)),
            Action::Pad(bucket) => self.owned.gaps[*bucket].iter().try_for_each(|gap| device.zero(gap)),
            Action::Keep(part) => copied(device, self.owned.kept.get(*part)),
            Action::Start(id) => self.fusion.start(*id, device),
            Action::Wait(id) => self.fusion.wait(*id, device),
            Action::Unscale => self.unscale(at),
            Action::Norm => self.measure(at),
            Action::Check => self.check(at),
            Action::Clip if at.broken => Ok(()),
            Action::Clip => {
                let others = self.has_norms_apart().then(|| self.fusion.norms());
                self.updates.clip.as_mut().map_or(Ok(()), |clip| clip.run(&at.scalars, others))
            }
            Action::Update(_) | Action::Average(_) if at.broken => Ok(()),
            Action::Update(part) => {
                let begun = trace::now();
                self.updates.of_parts[*part].run(&at.scalars)?;
                trace::record(trace::EventKind::Update, begun, *part, 0, 0);
                Ok(())
            }
            Action::Average(part) => self.updates.averages[*part].run(&at.scalars),
            Action::Drift(part) => self.meet(|meetings| meetings.drift(device, *part, &at.scalars)),
            Action::Pull(part) => self.meet(|meetings| meetings.pull(*part, &at.scalars)),
            Action::Meet(part) => self.meet(|meetings| meetings.meet(device, *part, &at.scalars)),
            Action::Mix(part) => self.meet(|meetings| meetings.mix(*part, &at.scalars)),
            Action::Forget => self.meet(|meetings| meetings.forget(device)),
            Action::Knock => self.knock(at),
            Action::Hear => self.hear(at),
            Action::Serve => self.serve(at),
            Action::Arrive => {
                self.barrier.iter_mut().for_each(Barrier::arrive);
                Ok(())
            }
            Action::Await { updated } => {
                let what = if *updated { "new parameters" } else { "the end of the backward pass" };
                let missing = || self.barrier.as_ref().map_or(Vec::new(), Barrier::missing);
                self.fusion.wait_for(device, what, missing)
            }
        }
    }

    fn fetch_metrics(&mut self, at: &mut Moment) -> Result<()> {
        trace::record(trace::EventKind::Forward, at.begun, 0, 0, 0);
        at.begun = trace::now();
        self.fetch_losses(at.device)
    }

    fn take_statistics(&mut self, micro: usize, device: &dyn Device) -> Result<()> {
        let last = micro + 1 == self.updates.accumulate.as_ref().map_or(1, |sums| sums.micro_steps);
        self.statistics.as_mut().map_or(Ok(()), |statistics| statistics.take(device, last))
    }

    /// Steps of the run whose update was skipped.
    fn skipped(&self) -> u64 {
        self.updates.scaling.as_ref().map_or(0, |scaling| scaling.scaler.skipped())
    }

    /// Whether ranks tell each other the norms of what each of them owns.
    fn has_norms_apart(&self) -> bool {
        let script = self.round.any();
        (script.owners.are_apart() || script.mesh.divides_parameters()) && self.relaxed.asynchronous.is_none()
    }

    /// Bytes that this rank has sent so far.
    pub fn sent(&self) -> u64 {
        self.fusion.sent() + self.relaxed.asynchronous.as_ref().map_or(0, Side::sent)
    }

    /// Where updates are asynchronous: how many were by gradients of each staleness, on the first server.
    pub fn staleness(&self) -> Option<&[u64]> {
        match self.relaxed.asynchronous.as_ref()? {
            Side::Server(server) => Some(server.staleness()),
            Side::Worker(_) => Some(&[]),
        }
    }

    /// Something of what ranks with parameters of their own do when they meet.
    fn meet(&mut self, what: impl FnOnce(&mut Meetings) -> Result<()>) -> Result<()> {
        self.relaxed.meetings.as_mut().map_or(Ok(()), what)
    }

    /// Gives the program the images of a micro-step.
    fn read(&mut self, micro: usize, at: &mut Moment) -> Result<()> {
        let (begun, traced) = (Instant::now(), trace::now());
        let (batch, number) = (&mut self.images.batch, [at.done, micro]);
        let taken =
            self.images.ahead.as_mut().map_or(Ok(false), |ahead| ahead.take(at.device, number, batch))?;
        let filled = !taken && at.source.fill(at.step, micro, batch)?;
        // Of several micro-batches in flight each has its own copy, which may be that of another one.
        if (filled || self.programs.len() > 1) && !self.programs.is_empty() {
            let context = micro % self.programs.len();
            Inputs::of(&self.programs[context].program)
                .fill(batch, |bytes, part| at.device.upload(bytes, part))?;
        }
        trace::record(trace::EventKind::Input, traced, 0, 0, 0);
        at.result.spent.input += begun.elapsed().as_secs_f64();
        // An image that could not be read has no label, and counts nowhere.
        at.sums.images += self.images.batch.labels.iter().filter(|&&label| label >= 0).count() as f32;
        at.begun = trace::now();
        Ok(())
    }

    /// Sends the batch behind this one, if there is one.
    fn prefetch(&mut self, micro: usize, at: &mut Moment) -> Result<()> {
        let Some(ahead) = &mut self.images.ahead else { return Ok(()) };
        let micro_steps = self.updates.accumulate.as_ref().map_or(1, |accumulation| accumulation.micro_steps);
        let [later, micro] = if micro + 1 < micro_steps { [0, micro + 1] } else { [1, 0] };
        match at.step + later < at.steps {
            true => ahead.send(at.device, at.source, [at.done + later, micro], at.step + later),
            false => Ok(()),
        }
    }

    fn read_metrics(&mut self, micro: usize, at: &mut Moment) -> Result<()> {
        let contexts = self.programs.len().max(1);
        let Some(Bound { program, .. }) = self.programs.get_mut(micro % contexts) else { return Ok(()) };
        let Some(metrics) = &mut self.images.metrics else { return Ok(()) };
        let fusion = &mut self.fusion;
        let (loss, sums) = metrics.sums(at.device, |event| fusion.reach(at.device, event))?;
        at.sums.loss += loss;
        at.losses.push(loss);
        at.sums.metric.iter_mut().zip(sums).for_each(|(all, sum)| *all += sum);
        if !loss.is_finite() && at.result.where_diverged.is_none() {
            at.sums.diverged = 1.0;
            // Parameters that were gathered have gone again.
            at.result.where_diverged = match self.owned.gathers {
                true => Some("in the sum of the losses (--zero 2 would say in which layer first)".into()),
                false => program.first_not_finite(at.device, &at.scalars)?,
            };
            // Else it came from a rank that shares its statistics, which will say so.
            if program.exchanges.is_empty() {
                at.result.where_diverged.get_or_insert_with(|| "in the sum of the losses".into());
            }
        }
        Ok(())
    }

    fn write_tail(&mut self, at: &mut Moment) -> Result<()> {
        let flag = |set| if set { 1.0 } else { 0.0 };
        let StepSums { mut loss, metric: [first, second, third], images, diverged } = at.sums;
        if self.statistics.is_some() {
            loss = shards::sum(&at.losses);
        }
        let mut values = Values::default();
        values[..4].copy_from_slice(&[loss, first, images, diverged]);
        let flags = [flag(self.flags.stop), flag(self.flags.checkpoint)];
        values[4..8].copy_from_slice(&[flags[0], flags[1], second, third]);
        self.fusion.write_tail(at.device, &values)
    }

    /// Tells the first server what this rank knows of the step.
    fn knock(&mut self, at: &mut Moment) -> Result<()> {
        let Some(Side::Worker(worker)) = &mut self.relaxed.asynchronous else { return Ok(()) };
        let StepSums { loss, metric: [first, second, third], images, diverged } = at.sums;
        if let Some(found) = at.result.where_diverged.take() {
            worker.where_diverged.get_or_insert(found);
        }
        let step = at.done as u32;
        worker.knock(&Note {
            sums: [loss, first, second, third, images],
            diverged: (diverged != 0.0).then_some(step),
            flags: self.flags,
            step,
            drains: self.relaxed.drains,
            whose: None,
        })
    }

    /// What the first server has heard of all ranks.
    fn hear(&mut self, at: &mut Moment) -> Result<()> {
        let Some(Side::Worker(worker)) = &mut self.relaxed.asynchronous else { return Ok(()) };
        let note = worker.hear(&mut self.fusion, at.device)?;
        let [loss, first, second, third, images] = note.sums.map(f64::from);
        at.result.images = images as usize;
        (at.result.loss, at.result.metric) = (loss / images.max(1.0), [first, second, third]);
        at.result.agree_on(&note);
        at.result.where_diverged = worker.where_diverged.take_if(|_| at.result.diverged);
        Ok(())
    }

    /// Takes the gradients of all ranks.
    fn serve(&mut self, at: &mut Moment) -> Result<()> {
        let Some(Side::Server(server)) = &mut self.relaxed.asynchronous else { return Ok(()) };
        let mut updates = Updates {
            device: at.device,
            parts: &self.round.any().parts,
            updates: &mut self.updates.of_parts,
            averages: &mut self.updates.averages,
            schedule: at.schedule,
            scalars: at.scalars,
        };
        if let Some(note) = server.serve(at.done, self.flags, &mut updates)? {
            at.result.agree_on(&note);
        }
        Ok(())
    }

    fn unscale(&mut self, at: &mut Moment) -> Result<()> {
        let Some(scaling) = &mut self.updates.scaling else { return Ok(()) };
        at.broken = scaling.unscale(at.device, &at.scalars)?;
        Ok(())
    }

    /// Whether gradients were broken, where updates looked at it themselves: before the next step's factor is chosen,
    /// while the device is busy with the updates.
    fn hear_of_gradients(&mut self, device: &dyn Device) -> Result<()> {
        let Some(scaling) = &mut self.updates.scaling else { return Ok(()) };
        let Some(Verdict { host, arrives }) = &mut scaling.late else { return Ok(()) };
        let Some(event) = arrives.take() else { return Ok(()) };
        self.fusion.reach(device, &event)?;
        let mut broken = [0i32];
        host.read(bytes_of_mut(&mut broken));
        scaling.decide(broken != [0]);
        Ok(())
    }

    /// The norm of what this rank owns; where norms are gathered, that of a broken gradient is no number.
    fn measure(&mut self, at: &mut Moment) -> Result<()> {
        let squares = self.updates.clip.as_mut().map_or(Ok(0.0), |clip| clip.measure(at.device))?;
        let script = self.round.any();
        // What ranks of a stage have alike counts once.
        let counts = script.owners.are_apart() || script.mesh.tensor > 1 || script.place(Axis::Data) == 0;
        self.fusion.set_norm(match at.broken {
            true => f64::NAN,
            false if counts => squares,
            false => 0.0,
        });
        Ok(())
    }

    fn check(&mut self, at: &mut Moment) -> Result<()> {
        at.broken |= self.has_norms_apart() && !self.fusion.norms().is_finite();
        let known = self.updates.scaling.as_mut().filter(|scaling| scaling.late.is_none());
        known.into_iter().for_each(|scaling| scaling.decide(at.broken));
        Ok(())
    }

    /// Waits for what is on its way: before others than steps look at parameters.
    pub fn settle(&mut self, device: &dyn Device) -> Result<()> {
        match &mut self.relaxed.asynchronous {
            Some(Side::Server(server)) => server.settle(device),
            _ => self.fusion.settle(device),
        }
    }

    /// Where owners are apart and parameters have a moving average: the two change places, on all ranks. Whoever reads
    /// parameters then, an evaluation, finds the averages; a second time brings them back. Collective.
    pub fn exchange_averages(
        &mut self,
        world: &World,
        device: &dyn Device,
        memories: &Memories,
    ) -> Result<()> {
        let Some(average) = memories.average.as_ref().filter(|_| memories.owners.are_apart()) else {
            return Ok(());
        };
        // Others of the node may read what is written now.
        world.barrier()?;
        for (bucket, part) in memories.parts.iter().enumerate() {
            let places = [memories.of_parameters(bucket), memories.of_part(average, bucket)];
            for start in (0..part.len()).step_by(EXCHANGED) {
                let bytes = EXCHANGED.min(part.len() - start);
                let places = places.each_ref().map(|place| place.slice(start, bytes));
                let mut values = [vec![0u8; bytes], vec![0u8; bytes]];
                for (place, values) in places.iter().zip(&mut values) {
                    device.download(place, values)?;
                }
                places
                    .iter()
                    .rev()
                    .zip(&values)
                    .try_for_each(|(place, values)| device.upload(values, place))?;
            }
        }
        let is_new = |transfer: &Transfer| {
            matches!(transfer.kind, Kind::FromOwners | Kind::Pull)
                && transfer.area == Area::Of(Region::Parameters)
        };
        let transfers = self.round.any().transfers.clone();
        if let Some(Side::Server(server)) = &mut self.relaxed.asynchronous {
            server.give_all(device)?;
            server.settle(device)?;
        } else {
            for id in (0..transfers.len()).filter(|&id| is_new(&transfers[id])) {
                self.fusion.start(id, device)?;
            }
            self.fusion.settle(device)?;
        }
        world.barrier()
    }

    fn read_tail(&mut self, device: &dyn Device, result: &mut StepResult) -> Result<()> {
        let values = self.fusion.read_tail(device)?;
        result.images = values[2] as usize / self.images.sharers;
        result.loss = f64::from(values[0]) / f64::from(values[2].max(1.0));
        result.metric = [1, 6, 7].map(|at| f64::from(values[at]) / self.images.sharers as f64);
        result.diverged = values[3] != 0.0 || !values[0].is_finite();
        result.flags = Flags { stop: values[4] != 0.0, checkpoint: values[5] != 0.0 };
        Ok(())
    }

    /// The first parameter with a number that is not finite. The loss does not always tell: a ReLU makes zero of NaN,
    /// and a network whose first layer is broken answers with a finite loss that no longer changes.
    pub fn broken_parameter(&self, device: &dyn Device) -> Result<Option<&str>> {
        for (name, memory) in &self.parameters {
            if has_not_finite(device, memory, DType::F32)? {
                return Ok(Some(name));
            }
        }
        Ok(None)
    }

    /// What compression has to go on with, by name.
    pub fn compressed_state(&self) -> &[Kept] {
        self.compression.as_ref().map_or(&[], |account| account.state.as_slice())
    }

    pub fn bucket_times(&self) -> &[BucketTime] {
        self.fusion.times()
    }
}
