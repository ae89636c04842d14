//! Training plans of a network that is cut into stages, or is one.

use super::plans::{ADDING, Planning};
use crate::config::{Config, Pipeline, PipelineSchedule};
use crate::error::{Error, Result};
use crate::graph::{Graph, NodeId, Role};
use crate::plan::{Compiled, Options, Parameter, Plan, Stage, Stages};
use crate::reducer::turns;

/// The plan of a network that is not cut, in buckets. Where gradients take turns in windows these are those that they
/// would have without. Parameters lie as they do on the `first` of ranks with other rows of the images.
pub fn whole(of: &Planning, graph: Graph, first: Option<Compiled>, options: &Options) -> Result<Plan> {
    let Planning { layout, config, device, averaging, .. } = *of;
    let mut compiled = Compiled::new(graph, device, None)?;
    if let Some(first) = first {
        compiled = compiled.keeping(&first);
    }
    let mut plan = compiled.plan(device, options)?;
    averaging.cut(&mut plan, config)?;
    let Some(turns) = turns(layout.data, device, config) else { return Ok(plan) };
    if turns.gathers {
        let owned = |parameter: &&Parameter| {
            plan.buckets.iter().any(|bucket| bucket.bytes.contains(&parameter.offset))
        };
        if let Some(parameter) = plan.parameters.iter().find(|parameter| !owned(parameter)) {
            return Err(Error::usage(format!(
                "--zero 3: {} has no gradient, so that nobody updates it and nobody owns it; use --zero 2",
                parameter.name
            )));
        }
        let mut gathering = compiled.plan_gathering(device, options)?;
        gathering.cut_as(&plan)?;
        plan = gathering;
    }
    Ok(plan.in_windows(turns))
}

/// Seconds that the gradients which a node makes take beside it, in each micro-step: they are added up, and in the end
/// the parameters are updated.
fn of_gradients(config: &Config, per_byte: f64) -> impl Fn(&Graph, NodeId) -> f64 {
    let micro_steps = config.accumulation as f64;
    let adding = if config.accumulation > 1 { ADDING } else { 0.0 };
    let rule = config.optimizer.rule;
    move |graph, node| {
        let made = graph.node(node).outputs.iter().map(|id| graph.tensor(*id));
        let bytes: usize = made
            .filter(|tensor| tensor.role == Role::Gradient)
            .map(|tensor| 4 * tensor.spec.shape.elements())
            .sum();
        per_byte * (adding * bytes as f64 + rule.bytes_moved(bytes) as f64 / micro_steps)
    }
}

/// A network that is to be cut.
struct Uncut<'a> {
    of: &'a Planning<'a>,
    graph: &'a Graph,
    options: &'a Options<'a>,
    /// Stages.
    ranks: usize,
    schedule: PipelineSchedule,
    /// The layers before which it can be cut.
    possible: Vec<String>,
}

impl Uncut<'_> {
    /// The uncut plan of a graph of this network, and what each of its nodes takes with the gradients that it makes.
    fn seconds(&self, compiled: &Compiled) -> Result<(Plan, Vec<f64>)> {
        let whole = compiled.plan(self.of.device, self.options)?;
        let mut seconds = vec![0.0; whole.graph.nodes.len()];
        let mut waiting = 0.0;
        let beside = of_gradients(self.of.config, self.of.per_byte());
        for (step, taken) in whole.steps.iter().zip(self.of.step_seconds(&whole)) {
            // A reorder is for the node behind it.
            waiting += taken;
            if let Some(node) = step.node {
                seconds[node.0] += std::mem::take(&mut waiting) + beside(&whole.graph, node);
            }
        }
        Ok((whole, seconds))
    }

    /// Where it is cut so that its stages take equally long, each node so long.
    fn balanced(&self, whole: &Plan, seconds: &[f64]) -> Result<Stages> {
        let counts = [self.ranks, self.ranks * self.schedule.chunks()];
        let link = self.of.averaging.between_stages();
        Stages::balanced(&whole.graph, &self.possible, counts, seconds, link)
    }

    /// The graph of these stages in which each computes its activations again.
    fn again(&self, stages: &Stages) -> Result<Compiled> {
        let in_flight = |own: usize| self.schedule.in_flight(own, self.ranks, self.of.config.accumulation);
        Compiled::for_stages(stages.recompute(self.graph.clone(), in_flight)?, self.of.device)
    }

    /// Where it is cut if activations are computed again, and that graph. What is computed again follows from the cuts:
    /// it is first cut as if every forward node were, and then once more by what these stages really run. That has
    /// other segments, so the better one is taken.
    fn balanced_again(&self, kept: &Compiled) -> Result<(Stages, Compiled)> {
        let (whole, mut seconds) = self.seconds(kept)?;
        seconds[..whole.graph.forward_nodes].iter_mut().for_each(|seconds| *seconds *= 2.0);
        let link = self.of.averaging.between_stages();
        let of = |stages: Stages| -> Result<_> {
            let compiled = self.again(&stages)?;
            let (whole, seconds) = self.seconds(&compiled)?;
            let slowest = stages.slowest(&whole.graph, &seconds, link)?;
            let next = self.balanced(&whole, &seconds)?;
            Ok((slowest, stages, compiled, next))
        };
        let (slowest, stages, compiled, next) = of(self.balanced(&whole, &seconds)?)?;
        if next != stages {
            let (other, next, again, _) = of(next)?;
            if other < slowest {
                return Ok((next, again));
            }
        }
        Ok((stages, compiled))
    }
}

/// Where the network is cut, the plans of its stages, and with recomputation what activations of this rank's would take
/// without.
pub fn in_stages(
    of: &Planning,
    graph: &Graph,
    options: &Options,
) -> Result<(Stages, Vec<Plan>, Option<usize>)> {
    let Planning { config, device, .. } = *of;
    let Some(Pipeline { stages: ranks, schedule, cuts, .. }) = &config.pipeline else {
        return Err(Error::internal("a stage of no pipeline"));
    };
    let (ranks, schedule) = (*ranks, *schedule);
    let kept = Compiled::for_stages(graph.clone(), device)?;
    let possible = kept.possible_cuts()?;
    let uncut = Uncut { of, graph, options, ranks, schedule, possible };
    let given = (!cuts.is_empty()).then(|| Stages { ranks, cuts: cuts.clone() });
    let (stages, again) = match (given, config.recompute) {
        (Some(stages), false) => (stages, None),
        (Some(stages), true) => {
            let again = uncut.again(&stages)?;
            (stages, Some(again))
        }
        (None, false) => {
            let (whole, seconds) = uncut.seconds(&kept)?;
            (uncut.balanced(&whole, &seconds)?, None)
        }
        (None, true) => {
            let (stages, again) = uncut.balanced_again(&kept)?;
            (stages, Some(again))
        }
    };
    let of_stage = |compiled: &Compiled, own: usize| {
        let contexts = schedule.in_flight(own, ranks, config.accumulation);
        let splits_weights = schedule.splits_weights();
        let stage = Stage { stages: &stages, own, contexts, splits_weights };
        compiled.plan(device, &Options { stage, ..*options })
    };
    let activations = match again {
        Some(_) => Some(of_stage(&kept, of.layout.stage)?.sizes.activations),
        None => None,
    };
    let compiled = again.unwrap_or(kept);
    let plan = |own: usize| {
        let plan = of_stage(&compiled, own)?;
        match plan.gradients.is_empty() {
            true => Err(Error::usage(format!(
                "--pipeline: stage {own} has no layer that learns; cut the network elsewhere (--pipeline-cuts)"
            ))),
            false => Ok(plan),
        }
    };
    let plans = (0..ranks).map(plan).collect::<Result<Vec<_>>>()?;
    Ok((stages, plans, activations))
}
