//! What formulas say of a way to share the work, so that poor ones need not be planned (`planner`): seconds and bytes,
//! from two plans of the whole network.

use std::collections::HashMap;

use super::ledger::gradient_copies;
use super::network::Network;
use super::planner::{Candidate, parts};
use super::plans::ADDING;
use super::prediction::{Planned, Predictor};
use crate::config::{Config, TensorParallel, Wire};
use crate::error::{Error, Result};
use crate::graph::{Graph, Node, Role, SplitLayers};
use crate::plan::MemoryKind;
use crate::simulate::Interconnect;

/// What of the activations of whole images a rank has of rows is more than its share of the work by so much: rows at
/// edges.
const OF_ROWS: f64 = 1.15;

/// How often a micro-step passes over all parameters, whatever its images: both ways it reads them, and it writes their
/// gradients.
const PASSES: f64 = 3.0;

/// What two plans of the whole network say, without and with recomputation, of a rank that computes it.
pub struct Sketch {
    /// Seconds of a micro-step.
    seconds: [f64; 2],
    memory: SketchedMemory,
    /// Whether a test set wants all parameters.
    evaluates: bool,
    /// Seconds of the sum of all gradients.
    sum: f64,
    /// Seconds in which as many bytes as all parameters have pass through memory.
    pass: f64,
    micro_steps: usize,
    batch: usize,
    ranks: usize,
    /// By over how many ranks something is shared.
    split: HashMap<usize, OfSplitLayers>,
    rows: HashMap<usize, OfRows>,
}

/// Bytes of a rank.
struct SketchedMemory {
    /// In all, and of these the activations.
    total: [usize; 2],
    activations: [usize; 2],
    parameters: usize,
    /// Those of the largest layer, which no pipeline cuts.
    largest: usize,
    /// Bytes beside each byte of parameters: gradients and states.
    beside: usize,
    /// Of these what owners alone would have.
    states: usize,
    /// For parameters, gradients, other ranks' gradients and states, and of how many ranks it has the gradients.
    learned: usize,
    mapped: usize,
    /// About what gradients, and parameters in their place, take that are on their way.
    windows: usize,
}

/// What is sketched of split layers.
struct OfSplitLayers {
    /// The share of the sum of all gradients that is left.
    left: f64,
    /// Seconds of a step in which ranks tell each other inputs and outputs.
    told: f64,
    /// Bytes of parameters that a rank has not, and those of all that are split.
    spared: usize,
    whole: usize,
}

/// What is sketched of images that are cut by rows.
struct OfRows {
    /// A rank's share of the work for an image.
    work: f64,
    /// Seconds in which ranks tell each other rows: of a micro-step, and of an image.
    told: [f64; 2],
}

impl Sketch {
    /// Whether the network has what is shared.
    pub fn has(&self, candidate: &Candidate) -> bool {
        let has_rows = candidate.rows.is_none_or(|(parts, _)| self.rows.contains_key(&parts));
        has_rows && (candidate.tensor == 1 || self.split.contains_key(&candidate.tensor))
    }

    /// Bytes that a rank leaves to those who update them.
    fn spared(&self, candidate: &Candidate) -> usize {
        let parameters = if self.evaluates { 0 } else { self.memory.parameters };
        let others = |bytes: usize| bytes - bytes / self.ranks;
        let of_stages = [others(self.memory.states), self.memory.parameters, others(parameters)];
        of_stages.iter().take(usize::from(candidate.zero)).sum()
    }

    /// Bytes in which gradients, and then parameters too, take turns.
    fn windows(&self, candidate: &Candidate) -> usize {
        if candidate.zero > 1 { self.memory.windows } else { 0 }
    }

    /// Seconds and bytes.
    pub fn of(&self, candidate: &Candidate) -> (f64, usize) {
        match (candidate.pipeline, candidate.rows) {
            (Some(_), _) => self.of_pipeline(candidate),
            (_, Some(rows)) => self.of_rows(candidate, rows),
            _ => self.of_data(candidate),
        }
    }

    /// Seconds that a rank computes for its images of a step, and of the sum of all gradients.
    fn whole(&self, candidate: &Candidate) -> [f64; 2] {
        let computes = self.seconds[usize::from(candidate.recompute)] * self.micro_steps as f64;
        [computes, if candidate.wire == Wire::F32 { self.sum } else { 0.5 * self.sum }]
    }

    fn of_data(&self, candidate: &Candidate) -> (f64, usize) {
        let [computes, sum] = self.whole(candidate);
        let split = self.split.get(&candidate.tensor);
        let [left, told] = split.map_or([1.0, 0.0], |split| [split.left, split.told]);
        let hidden = if self.micro_steps == 1 { 0.5 * computes } else { 0.0 };
        // Parameters are gathered twice, for which half of a sum each is what it takes.
        let gathers = if candidate.zero == 3 { 0.5 * self.micro_steps as f64 * self.sum } else { 0.0 };
        let needed = self.memory.total[usize::from(candidate.recompute)] + self.windows(candidate);
        let seconds = computes + told + (left * sum + gathers - hidden).max(0.0);
        let needed = match split {
            // Each has its part for itself, with its states; of others' gradients those that are whole.
            Some(split) => {
                let own = self.memory.parameters.saturating_sub(split.spared);
                let others = self.memory.mapped * self.memory.parameters.saturating_sub(split.whole);
                needed.saturating_sub(self.memory.learned) + own * (1 + self.memory.beside) + others
            }
            None => needed.saturating_sub(self.spared(candidate)),
        };
        (seconds, needed)
    }

    fn of_rows(&self, candidate: &Candidate, (parts, micro_steps): (usize, usize)) -> (f64, usize) {
        let Some(OfRows { work, told: [each, of_image] }) = self.rows.get(&parts) else {
            return (f64::INFINITY, usize::MAX);
        };
        let ([computes, sum], again) = (self.whole(candidate), usize::from(candidate.recompute));
        let images = self.batch * self.micro_steps * parts;
        let computes = computes * parts as f64 * work;
        let told = micro_steps as f64 * each + images as f64 * of_image;
        let hidden = if micro_steps == 1 { 0.5 * computes } else { 0.0 };
        let batches = (images / micro_steps) as f64 / self.batch as f64;
        let kept = self.memory.activations[again] as f64 * (OF_ROWS * work).min(1.0) * batches;
        let rest = self.memory.total[again].saturating_sub(self.memory.activations[again]);
        let sums = if micro_steps > 1 && self.micro_steps == 1 { self.memory.parameters } else { 0 };
        let seconds = computes + told + (sum - hidden).max(0.0);
        (seconds, (rest + sums + kept as usize).saturating_sub(self.spared(candidate)))
    }

    fn of_pipeline(&self, candidate: &Candidate) -> (f64, usize) {
        let Some((stages, micro_batches, schedule)) = candidate.pipeline else {
            return (f64::INFINITY, usize::MAX);
        };
        let [computes, sum] = self.whole(candidate);
        // A stage has a part of the parameters, and passes over them for every micro-batch.
        let turns = micro_batches as f64 / stages as f64;
        let before = self.micro_steps as f64;
        let added = if self.micro_steps > 1 { ADDING * before } else { 0.0 };
        let passes = PASSES * (turns - before) + ADDING * turns - added;
        let computes = computes + passes * self.pass;
        let sum = if self.ranks > stages { sum / stages as f64 } else { 0.0 };
        let images = (self.batch * self.micro_steps * stages / micro_batches) as f64;
        let in_flight = schedule.in_flight(0, stages, micro_batches) as f64;
        let again = usize::from(candidate.recompute);
        // Of what recomputation leaves about half is kept of every micro-batch in flight, the other half is what the
        // pass that runs has computed again.
        let times = match candidate.recompute {
            true => 0.5 + 0.5 * in_flight / stages as f64,
            false => in_flight / stages as f64,
        };
        let kept = self.memory.activations[again] as f64 * images / self.batch as f64 * times;
        let own = (self.memory.parameters / stages).max(self.memory.largest);
        let of_others = (self.memory.parameters - own) * (1 + self.memory.beside);
        let rest = self.memory.total[again].saturating_sub(self.memory.activations[again] + of_others);
        (computes / (1.0 - schedule.bubble(stages, micro_batches)) + sum, rest + kept as usize)
    }
}

/// What is sketched of ways to share layers or images.
struct Shared<'a> {
    predictor: &'a Predictor<'a>,
    /// The whole network on each rank.
    planned: &'a Planned,
    ranks: usize,
}

impl Shared<'_> {
    /// The network as ranks have it that share it so.
    fn network(&self, config: &Config) -> Result<Network> {
        self.predictor.network.among(config, [0, self.ranks])
    }

    /// Of layers that are split over so many ranks; `None` where that saves nothing.
    fn split_layers(&self, tensor: usize) -> Option<OfSplitLayers> {
        let planned = &self.planned.config;
        let split = Some(TensorParallel { ranks: tensor, groups: None });
        let network = self.network(&Config { tensor: split, ..planned.clone() }).ok()?;
        let layers = network.split_layers(planned.batch).ok()?;
        let bytes = |of: fn(&SplitLayers) -> usize| layers.iter().map(of).sum::<usize>() as f64;
        let (saved, exchanged) = (bytes(|pieces| pieces.saved), bytes(|pieces| pieces.exchanged));
        let [fixed, per_byte] = self.planned.averaging.between_neighbours(tensor);
        // Inputs and sums, and their gradients.
        let rounds = 4 * layers.len() * planned.accumulation;
        let sent = |ranks: usize| 2.0 * (1.0 - 1.0 / ranks as f64);
        let of_gradients = sent(self.ranks) * self.planned.plans.training.sizes.gradients as f64;
        let split = saved / (sent(self.ranks) - sent(self.ranks / tensor) / tensor as f64);
        Some(OfSplitLayers {
            left: (1.0 - saved / of_gradients).max(0.0),
            told: rounds as f64 * fixed + exchanged * per_byte,
            spared: (split * (1.0 - 1.0 / tensor as f64)) as usize,
            whole: split as usize,
        })
    }

    /// Of images that are cut into so many parts; `None` where they have not as many rows.
    fn rows(&self, parts: usize) -> Option<OfRows> {
        let planned = &self.planned.config;
        let network = self.network(&Config { spatial: parts, ..planned.clone() }).ok()?;
        let (cut, [count, bytes]) = network.outline(planned.batch).ok()?;
        let (whole, _) = self.network(planned).ok()?.outline(planned.batch).ok()?;
        let [fixed, per_byte] = self.planned.averaging.between_neighbours(parts);
        // There and back.
        let told = [2.0 * count as f64 * fixed, 2.0 * bytes as f64 / planned.batch as f64 * per_byte];
        Some(OfRows { work: cut.flops as f64 / whole.flops as f64, told })
    }
}

/// Bytes of the parameters that a node reads.
fn of_layer(graph: &Graph, node: &Node) -> usize {
    let parameters =
        node.inputs.iter().map(|&id| graph.tensor(id)).filter(|tensor| tensor.role == Role::Parameter);
    parameters.map(|tensor| tensor.spec.shape.elements() * tensor.spec.dtype.bytes()).sum()
}

/// A plan of the whole network, with or without recomputation, for what is sketched.
pub fn sketch(predictor: &Predictor, nodes: usize, network: Option<&Interconnect>) -> Result<(Sketch, bool)> {
    let (mut seconds, mut total, mut activations) = ([0.0; 2], [0; 2], [0; 2]);
    let mut whole = None;
    for again in [false, true] {
        let recompute = again || predictor.of.config.recompute;
        let config = Config { recompute, parallel: None, ..predictor.of.config.clone() };
        let planned = predictor.plan(nodes, &config, network, None)?;
        let index = usize::from(again);
        seconds[index] = planned.case(&predictor.of).of.step_seconds(&planned.plans.training).iter().sum();
        total[index] = planned.plans.total();
        activations[index] = planned.plans.sizes.activations;
        whole = Some(planned);
    }
    let planned = whole.ok_or_else(|| Error::internal("no plan"))?;
    let plan = &planned.plans.training;
    let states = planned.config.optimizer.copies();
    let sum = planned.averaging.seconds(plan.sizes.gradients, true);
    let sum = if sum.is_finite() { sum } else { 0.0 };
    let ranks = predictor.local * nodes;
    let ledger = &planned.plans.ledger;
    let gradients = gradient_copies(&planned.config) * plan.sizes.gradients;
    let mapped = ledger.brought(MemoryKind::Allreduce);
    let own = ledger.bytes(MemoryKind::Parameters) + ledger.bytes(MemoryKind::Optimizer);
    let shared = Shared { predictor, planned: &planned, ranks };
    let split = parts(ranks).filter_map(|parts| Some((parts, shared.split_layers(parts)?))).collect();
    let rows = parts(ranks).filter_map(|parts| Some((parts, shared.rows(parts)?))).collect();
    let memory = SketchedMemory {
        total,
        activations,
        parameters: plan.sizes.parameters,
        largest: plan.graph.nodes.iter().map(|node| of_layer(&plan.graph, node)).max().unwrap_or(0),
        beside: 1 + states,
        states: states * plan.sizes.parameters,
        learned: own + gradients + mapped,
        mapped: mapped / plan.sizes.gradients.max(1),
        windows: plan.bucket_bytes().into_iter().max().unwrap_or(0),
    };
    let sketch = Sketch {
        seconds,
        memory,
        evaluates: predictor.of.evaluate,
        sum,
        pass: planned.case(&predictor.of).of.per_byte() * plan.sizes.parameters as f64,
        micro_steps: planned.config.accumulation,
        batch: planned.config.batch,
        ranks,
        split,
        rows,
    };
    Ok((sketch, plan.graph.has_batch_norm()))
}
