//! Stages of a pipeline: which rank computes which nodes of a graph, and what goes between them.
//!
//! The whole graph is compiled, and a rank drafts its own nodes alone. Kernels, layouts and bits are therefore those of
//! the uncut network, and every rank knows what each stage costs without a message. A network is cut into chunks, one
//! behind the other: as many as there are stages, or several for each (Narayanan et al., "Efficient large-scale
//! language model training on GPU clusters using Megatron-LM", SC 2021: interleaved schedules).

use std::collections::BTreeSet;
use std::ops::Range;

use super::{Location, Phase};
use crate::error::{Error, Result};
use crate::graph::{Graph, NodeId, Role, TensorId};

/// Where a network is cut.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Stages {
    /// How many ranks a pipeline has. Chunk c is that of stage c modulo this.
    pub ranks: usize,
    /// The first layer of each chunk but the first one, in the order of the model's parameters.
    pub cuts: Vec<String>,
}

/// One stage of these, as a plan is made for it.
#[derive(Debug, Clone, Copy)]
pub struct Stage<'a> {
    /// All of them.
    pub stages: &'a Stages,
    /// Which one.
    pub own: usize,
    /// Of how many micro-batches it keeps the activations at a time.
    pub contexts: usize,
    /// Whether the gradients of weights are a pass of their own. A stage is one chunk then.
    pub splits_weights: bool,
}

impl Stage<'static> {
    /// An uncut network.
    pub const WHOLE: Stage<'static> =
        Stage { stages: &Stages { ranks: 1, cuts: Vec::new() }, own: 0, contexts: 1, splits_weights: false };
}

/// A tensor that goes from one stage to another, for every micro-batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edge {
    /// The same on both, and on no other edge.
    pub number: usize,
    /// The other stage.
    pub peer: usize,
    /// Whether this stage sends it.
    pub sends: bool,
    /// The step behind which it is there to be sent, or before which it must have come.
    pub step: usize,
    /// Where it lies in the first context.
    pub place: Location,
    /// Its name in the graph.
    pub name: String,
}

/// Steps that run without a pause for one micro-batch: what one chunk has of the forward or of the backward pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pass {
    /// Of all chunks.
    pub chunk: usize,
    /// What of it.
    pub phase: Phase,
    /// Steps of the plan.
    pub steps: Range<usize>,
}

impl Pass {
    /// Those of a network that is one chunk.
    pub fn of_whole(forward: usize, steps: usize) -> [Pass; 2] {
        [(Phase::Forward, 0..forward), (Phase::Backward, forward..steps)].map(|(phase, steps)| Pass {
            chunk: 0,
            phase,
            steps,
        })
    }
}

/// The memory of micro-batches in flight: what lies behind `first` in the arena is there once for each. The rest of the
/// arena serves the pass that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Contexts {
    /// Bytes of the arena that all have in common.
    pub first: usize,
    /// Bytes of each.
    pub bytes: usize,
    /// How many there are.
    pub count: usize,
}

impl Contexts {
    /// Of a plan that is not cut: one, to which the whole arena belongs.
    pub const ONE: Contexts = Contexts { first: usize::MAX, bytes: 0, count: 1 };

    /// Bytes of the arena by which what lies there in the first context is moved in another.
    pub fn shift(&self, offset: usize, context: usize) -> usize {
        if offset >= self.first { context * self.bytes } else { 0 }
    }
}

/// A tensor that stages exchange, before anything has a place.
pub(super) struct Crossing {
    pub tensor: TensorId,
    pub from: usize,
    pub to: usize,
}

/// Nodes in the order of a stage, and what it exchanges with others.
pub(super) struct Division {
    /// Whether there are others.
    pub is_cut: bool,
    /// The stage.
    pub own: usize,
    /// How many micro-batches it keeps.
    pub contexts: usize,
    /// (chunk, what of it, nodes).
    pub passes: Vec<(usize, Phase, Vec<NodeId>)>,
    /// All stages' exchanges; an edge's number counts them.
    pub crossings: Vec<Crossing>,
    /// For each tensor that is there before a step which stage keeps it.
    pub keeper: Vec<Option<usize>>,
}

impl Division {
    /// Of a graph that is one stage.
    fn whole(graph: &Graph) -> Division {
        let nodes = |range: Range<usize>| range.map(NodeId).collect::<Vec<_>>();
        Division {
            is_cut: false,
            own: 0,
            contexts: 1,
            passes: vec![
                (0, Phase::Forward, nodes(0..graph.forward_nodes)),
                (0, Phase::Backward, nodes(graph.forward_nodes..graph.nodes.len())),
            ],
            crossings: Vec::new(),
            keeper: vec![Some(0); graph.tensors.len()],
        }
    }

    /// The same with gradients of large weights behind what reads these: as far as other gradients keep their order.
    pub fn weights_last(graph: &Graph) -> Division {
        let mut whole = Division::whole(graph);
        let Some((_, _, nodes)) = whole.passes.last_mut() else { return whole };
        let makes_gradients =
            |id: NodeId| graph.node(id).outputs.iter().any(|id| graph.tensor(*id).role == Role::Gradient);
        for at in (0..nodes.len()).rev() {
            let id = nodes[at];
            let Some(weights) = graph.node(id).outputs.first().and_then(|out| graph.tensor(*out).gradient_of)
            else {
                continue;
            };
            let reads = |other: &NodeId| graph.node(*other).inputs.contains(&weights);
            let Some(last) = nodes.iter().rposition(reads).filter(|&last| last > at) else { continue };
            let input = |id: &TensorId| graph.tensor(*id).spec.shape.elements();
            let largest = graph.node(id).inputs.iter().map(input).max().unwrap_or(0);
            let alone = nodes[at + 1..=last].iter().all(|&other| !makes_gradients(other));
            // Else what it reads would take more room for longer than is saved.
            if alone && input(&weights) > largest {
                nodes[at..=last].rotate_left(1);
            }
        }
        whole
    }

    /// # Errors
    /// `Usage` for cuts that this network does not have, or where it cannot be cut.
    pub fn new(graph: &Graph, stage: &Stage) -> Result<Division> {
        if stage.stages.ranks == 1 {
            return Ok(Division::whole(graph));
        }
        let chunks = stage.stages.of_nodes(graph)?;
        stage.stages.check(graph)?;
        let ranks = stage.stages.ranks;
        let own: Vec<usize> = (stage.own..stage.stages.chunks()).step_by(ranks).collect();
        // What such a pass reads would lie where other chunks' backward passes write meanwhile.
        if stage.splits_weights && own.len() > 1 {
            return Err(Error::internal("weights' gradients apart in a stage of several chunks"));
        }
        let nodes = |chunk: usize, range: Range<usize>| {
            range.filter(|&node| chunks[node] == chunk).map(NodeId).collect::<Vec<_>>()
        };
        let forward = own.iter().map(|&chunk| (chunk, Phase::Forward, nodes(chunk, 0..graph.forward_nodes)));
        let of_weights = |id: &NodeId| {
            let outputs = &graph.node(*id).outputs;
            stage.splits_weights && outputs.iter().all(|id| graph.tensor(*id).role == Role::Gradient)
        };
        let backward = own.iter().rev().flat_map(|&chunk| {
            let all = nodes(chunk, graph.forward_nodes..graph.nodes.len());
            let (weights, others): (Vec<_>, Vec<_>) = all.into_iter().partition(of_weights);
            let weights = stage.splits_weights.then_some((chunk, Phase::Weights, weights));
            std::iter::once((chunk, Phase::Backward, others)).chain(weights)
        });
        Ok(Division {
            is_cut: true,
            own: stage.own,
            contexts: stage.contexts,
            passes: forward.chain(backward).collect(),
            crossings: crossings(graph, &chunks, ranks)?,
            keeper: keepers(graph, &chunks, ranks),
        })
    }

    /// Whether this stage has a tensor that is there before the step.
    pub fn keeps(&self, tensor: TensorId) -> bool {
        self.keeper[tensor.0] == Some(self.own)
    }

    /// What this stage sends of a tensor.
    pub fn sent(&self, tensor: TensorId) -> impl Iterator<Item = (usize, &Crossing)> {
        let own = self.own;
        self.crossings.iter().enumerate().filter(move |(_, to)| to.tensor == tensor && to.from == own)
    }

    /// What this stage receives of a tensor.
    pub fn received(&self, tensor: TensorId) -> Option<(usize, &Crossing)> {
        let own = self.own;
        self.crossings.iter().enumerate().find(move |(_, from)| from.tensor == tensor && from.to == own)
    }
}

impl Stages {
    /// How many pieces the network is cut into.
    pub fn chunks(&self) -> usize {
        self.cuts.len() + 1
    }

    /// The layers that have parameters, in the order of the model.
    pub fn layers(graph: &Graph) -> Vec<&str> {
        let mut layers: Vec<&str> = Vec::new();
        for (_, tensor) in graph.with_role(Role::Parameter) {
            let layer = layer(&tensor.name);
            if !layers.contains(&layer) {
                layers.push(layer);
            }
        }
        layers
    }

    /// The same step with less memory, chunk by chunk. `in_flight` has how many micro-batches each stage keeps. To be
    /// called after `differentiate`.
    ///
    /// # Errors
    /// `Usage` for cuts that this network does not have.
    pub fn recompute(&self, graph: Graph, in_flight: impl Fn(usize) -> usize) -> Result<Graph> {
        let chunks = self.of_nodes(&graph)?;
        let copies: Vec<usize> = (0..self.chunks()).map(|chunk| in_flight(chunk % self.ranks)).collect();
        Ok(graph.recompute_in_chunks(&chunks, &copies))
    }

    /// The first and the last layer of each of a stage's chunks: "conv1 … layer2.0.bn2".
    pub fn layers_of(&self, graph: &Graph, stage: usize) -> Vec<String> {
        let layers = Self::layers(graph);
        let start = |chunk: usize| {
            let cut = chunk.checked_sub(1).and_then(|cut| self.cuts.get(cut));
            cut.map_or(if chunk == 0 { 0 } else { layers.len() }, |cut| {
                layers.iter().position(|layer| layer == cut).unwrap_or(0)
            })
        };
        let of = |chunk: usize| match &layers[start(chunk)..start(chunk + 1)] {
            [] => String::new(),
            [one] => one.to_string(),
            [first, .., last] => format!("{first} … {last}"),
        };
        (stage..self.chunks()).step_by(self.ranks).map(of).collect()
    }

    /// The chunk of each parameter, by tensor.
    fn of_parameters(&self, graph: &Graph) -> Result<Vec<usize>> {
        let mut of = vec![0; graph.tensors.len()];
        let mut cuts = self.cuts.iter().peekable();
        let mut chunk = 0;
        let first = graph.with_role(Role::Parameter).next().map(|(_, tensor)| layer(&tensor.name));
        for (id, tensor) in graph.with_role(Role::Parameter) {
            let is_first = first == Some(layer(&tensor.name));
            if !is_first && cuts.next_if(|cut| *cut == layer(&tensor.name)).is_some() {
                chunk += 1;
            }
            of[id.0] = chunk;
        }
        match cuts.next() {
            None => Ok(of),
            Some(cut) => Err(Error::usage(format!(
                "--pipeline-cuts: {} has no layer {cut} with parameters behind the one before it; its layers are {}",
                graph.name,
                Self::layers(graph).join(", ")
            ))),
        }
    }

    /// The chunk of each node. A node is in that of its parameters, or where it has none in the last one that it reads
    /// from; a backward node in that of its forward node, or in the first one that it reads from. What is computed
    /// again is where it was the first time.
    pub(super) fn of_nodes(&self, graph: &Graph) -> Result<Vec<usize>> {
        let of_parameter = self.of_parameters(graph)?;
        let mut of_tensor = vec![None; graph.tensors.len()];
        let mut of = Vec::with_capacity(graph.nodes.len());
        let mut again = vec![false; graph.nodes.len()];
        graph.recomputed.iter().for_each(|id| again[id.0] = true);
        for (index, node) in graph.nodes.iter().enumerate() {
            let chunk_of = |id: &TensorId| match graph.tensor(*id).role {
                Role::Parameter => Some(of_parameter[id.0]),
                _ => of_tensor[id.0],
            };
            let read = node.inputs.iter().filter_map(chunk_of);
            let chunk = match node.forward {
                Some(forward) if index >= graph.forward_nodes => of[forward.0],
                _ if index < graph.forward_nodes || again[index] => read.max().unwrap_or(0),
                _ => read.min().unwrap_or(0),
            };
            of.push(chunk);
            for id in node.outputs.iter().filter(|id| graph.tensor(**id).role != Role::Statistic) {
                of_tensor[id.0] = Some(chunk);
            }
        }
        Ok(of)
    }
}

/// The layer that a parameter belongs to.
pub(super) fn layer(parameter: &str) -> &str {
    parameter.rsplit_once('.').map_or(parameter, |(layer, _)| layer)
}

/// What goes from one stage to another, in the order in which it is made.
pub(super) fn crossings(graph: &Graph, chunks: &[usize], ranks: usize) -> Result<Vec<Crossing>> {
    let mut readers: Vec<Vec<usize>> = vec![Vec::new(); graph.tensors.len()];
    for (index, node) in graph.nodes.iter().enumerate() {
        node.inputs.iter().for_each(|id| readers[id.0].push(index));
    }
    let inputs = graph.with_role(Role::Input).map(|(id, _)| (id, 0, false));
    let made = graph.nodes.iter().enumerate().flat_map(|(index, node)| {
        node.outputs.iter().map(move |&id| (id, chunks[index], index >= graph.forward_nodes))
    });
    let mut crossings = Vec::new();
    for (tensor, chunk, backward) in inputs.chain(made) {
        if graph.tensor(tensor).role == Role::Statistic {
            continue;
        }
        let from = chunk % ranks;
        let mut to = BTreeSet::new();
        for &reader in &readers[tensor.0] {
            let there = chunks[reader];
            if (backward && there > chunk) || (!backward && there < chunk) {
                return Err(Error::internal(format!(
                    "{} flows from chunk {chunk} to chunk {there}, against the pipeline",
                    graph.tensor(tensor).name
                )));
            }
            to.insert(there % ranks);
        }
        to.remove(&from);
        crossings.extend(to.into_iter().map(|to| Crossing { tensor, from, to }));
    }
    Ok(crossings)
}

/// Which stage keeps each parameter and statistic; inputs are those of the first.
fn keepers(graph: &Graph, chunks: &[usize], ranks: usize) -> Vec<Option<usize>> {
    let mut keeper = vec![None; graph.tensors.len()];
    graph.with_role(Role::Input).for_each(|(id, _)| keeper[id.0] = Some(0));
    for (node, chunk) in graph.nodes.iter().zip(chunks) {
        for id in &node.inputs {
            if matches!(graph.tensor(*id).role, Role::Parameter | Role::Statistic) {
                keeper[id.0] = Some(chunk % ranks);
            }
        }
    }
    keeper
}

#[cfg(test)]
pub mod tests {
    use super::super::{Options, Plan, Program, Regions, plan};
    use super::*;
    use crate::device::onednn::Cpu;
    use crate::device::reference::Reference;
    use crate::device::{Device, Memory, Scalars};
    use crate::graph::{BatchNorm, Builder, Conv};

    /// Two blocks with a way around each, of which one has another layout behind it.
    pub fn network() -> Graph {
        let (mut net, x) = Builder::new("blocks", 4, [3, 8, 8]);
        let x = net.conv("stem", x, 16, Conv::square(3).padding(1)).unwrap();
        let x = net.batch_norm("norm0", x, BatchNorm::default()).unwrap();
        let mut x = net.relu("relu0", x);
        for block in ["a", "b"] {
            let y = net.conv(&format!("{block}.conv1"), x, 16, Conv::square(3).padding(1)).unwrap();
            let y = net.batch_norm(&format!("{block}.norm1"), y, BatchNorm::default()).unwrap();
            let y = net.relu(&format!("{block}.relu1"), y);
            let y = net.conv(&format!("{block}.conv2"), y, 16, Conv::square(3).padding(1)).unwrap();
            let y = net.batch_norm(&format!("{block}.norm2"), y, BatchNorm::default()).unwrap();
            let sum = net.add(&format!("{block}.add"), y, x).unwrap();
            x = net.relu(&format!("{block}.relu2"), sum);
        }
        let x = net.dropout("drop", x, 0.3);
        let x = net.linear("fc", x, 10);
        net.finish(x).simplify().differentiate()
    }

    struct Held {
        plan: Plan,
        regions: Regions,
        programs: Vec<Program>,
    }

    impl Held {
        fn new(device: &dyn Device, stage: Stage) -> Held {
            Held::of(network(), device, stage)
        }

        fn of(graph: Graph, device: &dyn Device, stage: Stage) -> Held {
            let plan = plan(graph, device, &Options { fusion_threshold: 1, training: None, stage }).unwrap();
            let of = |bytes: usize| Memory::host(bytes).unwrap();
            let regions =
                Regions::new(&plan.sizes, of(plan.sizes.parameters), of(plan.sizes.gradients), Memory::host);
            let regions = regions.unwrap();
            for parameter in &plan.parameters {
                let tensor = plan.graph.tensors.iter().find(|tensor| tensor.name == parameter.name).unwrap();
                fill(&parameter.of(&regions.parameters), tensor.number);
            }
            let programs = (0..plan.contexts.count)
                .map(|context| plan.bind_context(&regions, context).unwrap())
                .collect();
            Held { plan, regions, programs }
        }

        fn run(&mut self, steps: Range<usize>, micro: usize) {
            let contexts = self.programs.len();
            let scalars = Scalars {
                seed: 1,
                gradient_scale: 0.25,
                first_sample: 4 * micro as u64,
                ..Scalars::default()
            };
            let program = &mut self.programs[micro % contexts];
            program.steps[steps].iter_mut().for_each(|step| step.run(&scalars).unwrap());
        }

        fn inputs(&mut self, micro: usize) {
            let contexts = self.programs.len();
            let program = &self.programs[micro % contexts];
            fill(&program.images, 77 + micro as u32);
            let labels: Vec<u8> =
                (0..4u8).flat_map(|image| i32::from((3 * image + micro as u8) % 10).to_ne_bytes()).collect();
            program.labels.write(&labels);
        }

        /// All gradients by the name of their parameter.
        fn gradients(&self) -> Vec<(String, Vec<u8>)> {
            let of = |memory: Memory| {
                let mut bytes = vec![0; memory.bytes()];
                memory.read(&mut bytes);
                bytes
            };
            let parameters = self.plan.parameters.iter();
            parameters.map(|p| (p.name.clone(), of(p.of(&self.regions.gradients)))).collect()
        }

        fn edge(&self, edge: &Edge, micro: usize) -> Memory {
            let Location { offset, bytes, .. } = edge.place;
            let context = micro % self.programs.len();
            self.regions.arena.slice(offset + self.plan.contexts.shift(offset, context), bytes)
        }
    }

    /// Numbers that depend on the place.
    fn fill(memory: &Memory, salt: u32) {
        let number = |index: u32| (((index * 37 + salt * 101) % 1009) as f32 / 1009.0 - 0.45) * 0.5;
        let bytes: Vec<u8> =
            (0..memory.bytes() as u32 / 4).flat_map(|index| number(index).to_ne_bytes()).collect();
        memory.write(&bytes);
    }

    /// Runs what one chunk has to do for a micro-batch, with what comes and goes.
    fn pass(stages: &mut [Held], chunk: usize, phase: Phase, micro: usize) {
        let own = chunk % stages.len();
        let steps = {
            let passes = &stages[own].plan.passes;
            passes.iter().find(|pass| (pass.chunk, pass.phase) == (chunk, phase)).unwrap().steps.clone()
        };
        stages[own].run(steps.clone(), micro);
        let edges = stages[own].plan.edges.clone();
        for edge in edges.iter().filter(|edge| edge.sends && steps.contains(&edge.step)) {
            let other = &stages[edge.peer];
            let there =
                other.plan.edges.iter().find(|there| there.number == edge.number && !there.sends).unwrap();
            let mut bytes = vec![0; edge.place.bytes];
            stages[own].edge(edge, micro).read(&mut bytes);
            other.edge(there, micro).write(&bytes);
        }
    }

    fn each_gives_the_bits_of_the_whole(device: &dyn Device) {
        let mut whole = Held::new(device, Stage::WHOLE);
        let expected: Vec<_> = (0..2)
            .map(|micro| {
                whole.inputs(micro);
                whole.run(0..whole.plan.steps.len(), micro);
                let mut gradients = whole.gradients();
                gradients.sort();
                gradients
            })
            .collect();
        assert!(
            expected[0] != expected[1] && expected[0].iter().all(|(_, bytes)| bytes.iter().any(|&b| b != 0))
        );
        for (ranks, cuts) in [
            (2, &["b.conv1"][..]),
            (3, &["a.conv2", "b.norm1"]),
            (2, &["a.norm1"]),
            (3, &["a.conv2", "b.conv2"]),
            (4, &["a.conv1", "b.conv1", "fc"]),
            (2, &["a.conv1", "b.conv1", "b.norm2"]),
        ] {
            let stages = Stages { ranks, cuts: cuts.iter().map(ToString::to_string).collect() };
            let splits_weights = ranks == 3;
            let of = |graph: &Graph, splits_weights| -> Vec<Held> {
                let stage = |own| Stage { stages: &stages, own, contexts: 2, splits_weights };
                (0..ranks).map(|own| Held::of(graph.clone(), device, stage(own))).collect()
            };
            let again = stages.recompute(network(), |_| 2).unwrap();
            assert!(!again.recomputed.is_empty());
            for (mut held, splits_weights) in
                [(of(&network(), splits_weights), splits_weights), (of(&again, false), false)]
            {
                let chunks = stages.chunks();
                for micro in 0..2 {
                    held[0].inputs(micro);
                    (0..chunks).for_each(|chunk| pass(&mut held, chunk, Phase::Forward, micro));
                }
                for (micro, expected) in expected.iter().enumerate() {
                    (0..chunks).rev().for_each(|chunk| pass(&mut held, chunk, Phase::Backward, micro));
                    if splits_weights {
                        (0..chunks).for_each(|chunk| pass(&mut held, chunk, Phase::Weights, micro));
                    }
                    let mut found: Vec<_> = held.iter().flat_map(Held::gradients).collect();
                    found.sort();
                    assert!(found == *expected, "{cuts:?} over {ranks}, micro-batch {micro}");
                }
                // Two micro-batches of half a network take about as much as one of all.
                let arenas = held.iter().map(|stage| stage.plan.sizes.activations);
                assert!(cuts != ["b.conv1"] || arenas.max() < Some(3 * whole.plan.sizes.activations / 2));
            }
        }
    }

    #[test]
    fn stages_give_the_bits_of_the_whole() {
        each_gives_the_bits_of_the_whole(&Reference);
        each_gives_the_bits_of_the_whole(&Cpu::new(1).unwrap());
    }

    #[test]
    fn a_cut_that_the_network_lacks_is_named() {
        let graph = network();
        for cuts in [&["nowhere"][..], &["b.conv1", "a.conv1"], &["stem"]] {
            let stages = Stages { ranks: 2, cuts: cuts.iter().map(ToString::to_string).collect() };
            let error =
                Division::new(&graph, &Stage { stages: &stages, own: 0, contexts: 1, splits_weights: false });
            let said = error.err().map(|error| error.to_string()).unwrap_or_default();
            assert!(said.contains(cuts.last().unwrap()) && said.contains("stem, norm0, a.conv1"), "{said}");
        }
    }
}
