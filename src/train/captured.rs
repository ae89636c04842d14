//! What a device does of a step at once, if it can: each stretch between two points at which the host has something to
//! do; or, where nobody has anything to do between its passes and its updates, all of it. Then the updates are launched
//! before the host knows the losses, and look themselves whether these are finite (`Device::check_losses`).

use std::ops::Range;
use std::rc::Rc;
use std::time::Instant;

use super::step::{Moment, Scaling, Trainer};
use crate::device::{Device, DeviceEvent, Scalars, Step};
use crate::error::Result;
use crate::plan::{Action, Program, Script};
use crate::trace;

/// Steps of the program between two points at which the host has something to do. On a device of the host that is after
/// every step.
pub struct Stretch {
    steps: Range<usize>,
    /// The device's way to do all of them at once, made when they have run once.
    captured: Option<Box<dyn Step>>,
    /// What the host took for them the last time; infinite before.
    seconds: f64,
}

impl Stretch {
    /// Cuts a program wherever a run of a script begins or ends.
    pub fn cut(program: &Program, scripts: &[Rc<Script>], device: &dyn Device) -> Vec<Stretch> {
        let actions = scripts.iter().flat_map(|script| &script.actions);
        let ends_of_runs = actions.flat_map(|action| match action {
            Action::Run { steps, .. } => [steps.start, steps.end],
            _ => [0; 2],
        });
        let mut ends: Vec<usize> = match device.is_host() {
            true => (1..=program.steps.len()).collect(),
            false => ends_of_runs.collect(),
        };
        ends.sort_unstable();
        ends.dedup();
        let mut start = 0;
        let stretch = |end| {
            let steps = std::mem::replace(&mut start, end)..end;
            Stretch { steps, captured: None, seconds: f64::INFINITY }
        };
        ends.into_iter().filter(|&end| end > 0).map(stretch).collect()
    }
}

/// A program, and what of it runs without a pause.
pub struct Bound {
    pub program: Program,
    pub stretches: Vec<Stretch>,
}

/// Of a rank whose steps are done at once.
#[derive(Default)]
pub struct Whole {
    /// Made when a step has been done action by action.
    graph: Option<StepGraph>,
    /// When the losses were looked at, before the updates.
    checked: Option<DeviceEvent>,
}

struct StepGraph {
    captured: Box<dyn Step>,
    /// When the losses are on the host, and with a loss scale whether a gradient is broken.
    losses: Option<DeviceEvent>,
    verdict: Option<DeviceEvent>,
}

/// Enqueues the steps of a run.
fn enqueue(program: &mut Program, steps: &Range<usize>, scalars: &Scalars) -> Result<()> {
    program.steps[steps.clone()].iter_mut().try_for_each(|step| step.run(scalars))
}

impl Trainer {
    /// Steps of the program, and transfers between them.
    pub(super) fn run(&mut self, steps: &Range<usize>, micro: usize, at: &mut Moment) -> Result<()> {
        let contexts = self.programs.len().max(1);
        let Some(Bound { program, stretches }) = self.programs.get_mut(micro % contexts) else {
            return Ok(());
        };
        at.scalars.first_sample = at.source.first_sample(micro) as u64;
        let first = stretches.partition_point(|stretch| stretch.steps.start < steps.start);
        for stretch in stretches[first..].iter_mut().take_while(|other| other.steps.end <= steps.end) {
            self.fusion.run_ahead(at.device, stretch.seconds)?;
            let (begun, clock) = (trace::now(), Instant::now());
            match &mut stretch.captured {
                Some(captured) => {
                    captured.run(&at.scalars)?;
                    trace::record(trace::EventKind::Layer, begun, stretch.steps.start, 0, 0);
                }
                None => {
                    for step in stretch.steps.clone() {
                        let begun = trace::now();
                        program.steps[step].run(&at.scalars)?;
                        trace::record(trace::EventKind::Layer, begun, step, 0, 0);
                    }
                }
            }
            stretch.seconds = clock.elapsed().as_secs_f64();
            self.fusion.advance(at.device)?;
        }
        self.heed_losses(at.device)
    }

    /// Lets the device do each stretch, or the whole step, at once from now on, if it can: before the second step.
    pub(super) fn capture(&mut self, device: &dyn Device, script: &Script, scalars: &Scalars) -> Result<()> {
        if self.whole.is_some() {
            let enqueue =
                &mut || script.actions.iter().try_for_each(|action| self.enqueue(action, device, scalars));
            let captured = device.capture(enqueue)?;
            let losses = self.images.metrics.as_mut().and_then(|metrics| metrics.arrives.take());
            let verdict = self.late_verdict().and_then(Option::take);
            let graph = captured.map(|captured| StepGraph { captured, losses, verdict });
            self.whole = graph.map(|graph| Whole { graph: Some(graph), checked: None });
            return Ok(());
        }
        for Bound { program, stretches } in &mut self.programs {
            for Stretch { steps, captured, .. } in stretches {
                *captured = device.capture(&mut || enqueue(program, steps, scalars))?;
            }
        }
        Ok(())
    }

    /// What an action has the device do in the graph of a whole step.
    fn enqueue(&mut self, action: &Action, device: &dyn Device, scalars: &Scalars) -> Result<()> {
        let updates = &mut self.updates;
        match action {
            Action::Run { steps, .. } => {
                self.programs.iter_mut().try_for_each(|bound| enqueue(&mut bound.program, steps, scalars))?;
                self.heed_losses(device)
            }
            Action::Losses { .. } => self.fetch_losses(device),
            Action::Unscale => {
                updates.scaling.iter_mut().try_for_each(|of| of.unscale(device, scalars).map(drop))
            }
            Action::Clip => updates.clip.iter_mut().try_for_each(|clip| clip.run(scalars, None)),
            Action::Update(part) => updates.of_parts[*part].run(scalars),
            Action::Average(part) => updates.averages[*part].run(scalars),
            _ => Ok(()),
        }
    }

    /// Whether the graph of the whole step does it, which is launched with the first of these.
    pub(super) fn is_launched(&mut self, action: &Action, at: &mut Moment) -> Result<bool> {
        let Some(graph) = self.whole.as_mut().and_then(|whole| whole.graph.as_mut()) else {
            return Ok(false);
        };
        match action {
            Action::Run { steps, micro } if steps.start == 0 => {
                at.scalars.first_sample = at.source.first_sample(*micro) as u64;
                let begun = trace::now();
                graph.captured.run(&at.scalars)?;
                trace::record(trace::EventKind::Layer, begun, 0, 0, 0);
                let (losses, verdict) = (graph.losses.clone(), graph.verdict.clone());
                self.images.metrics.iter_mut().for_each(|metrics| metrics.arrives = losses.clone());
                self.late_verdict().into_iter().for_each(|arrives| *arrives = verdict.clone());
                Ok(true)
            }
            Action::Run { .. } | Action::Unscale | Action::Clip => Ok(true),
            Action::Update(_) | Action::Average(_) => Ok(true),
            _ => Ok(false),
        }
    }

    /// When it is known whether a gradient was broken, where updates look at that themselves.
    fn late_verdict(&mut self) -> Option<&mut Option<DeviceEvent>> {
        let Scaling { late, .. } = self.updates.scaling.as_mut()?;
        late.as_mut().map(|late| &mut late.arrives)
    }

    /// Has the losses copied to the host, unless a graph does it.
    pub(super) fn fetch_losses(&mut self, device: &dyn Device) -> Result<()> {
        let Some(metrics) = &mut self.images.metrics else { return Ok(()) };
        let Some(whole) = &mut self.whole else { return metrics.fetch(device) };
        if whole.graph.is_some() {
            return Ok(());
        }
        metrics.fetch(device)?;
        if let Some(Bound { program, .. }) = self.programs.first() {
            whole.checked = Some(device.check_losses(&program.losses, &device.record()?)?);
        }
        Ok(())
    }

    /// What is enqueued from now on finds whether the losses are finite.
    fn heed_losses(&mut self, device: &dyn Device) -> Result<()> {
        let checked = self.whole.as_mut().and_then(|whole| whole.checked.take());
        checked.map_or(Ok(()), |checked| device.wait_event(&checked))
    }
}
