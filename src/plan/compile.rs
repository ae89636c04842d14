//! From a graph to a plan: layouts, steps, memory.

use std::collections::HashMap;

use super::arena::{self, Block};
use super::describe::Sizes;
use super::{Constant, Location, Parameter, Plan, PlannedStep, Region, Statistic, bucket};
use crate::device::memory::ALIGNMENT;
use crate::device::{Device, Kernel, KernelRequest, Layout};
use crate::error::{Error, Result};
use crate::graph::{Graph, Init, NodeId, Role, Spec, TensorId};

/// What the plan is made for.
pub struct Options<'a> {
    /// Bytes from which a bucket is closed (`--fusion-threshold-mb`).
    pub fusion_threshold: usize,
    /// For a plan without backward pass: the training plan whose parameters and statistics it reads.
    pub training: Option<&'a Plan>,
}

/// Plans one step of a graph on a device. With a backward pass the plan is one for training.
pub fn plan(graph: Graph, device: &dyn Device, options: &Options) -> Result<Plan> {
    let graph = graph.fuse(device.op_fusions());
    let kernels = compile(&graph, device)?;
    let masters = master_layouts(&graph, &kernels, device, options.training)?;
    let mut planner = Planner::new(&graph, device, masters);
    planner.place_fixed(options.training);
    planner.place_statistics(options.training)?;
    planner.place_constants(options.training);
    let mut forward_steps = 0;
    for (index, kernel) in kernels.into_iter().enumerate() {
        if index == graph.forward_nodes {
            forward_steps = planner.drafts.len();
            planner.forget_copies();
        }
        planner.add_node(NodeId(index), kernel)?;
    }
    if graph.forward_nodes == graph.nodes.len() {
        forward_steps = planner.drafts.len();
    }
    planner.finish(forward_steps, options)
}

/// Asks the device for a kernel for each node, in order, telling it the layouts chosen so far.
fn compile(graph: &Graph, device: &dyn Device) -> Result<Vec<Box<dyn Kernel>>> {
    let training = graph.nodes.len() > graph.forward_nodes;
    let mut layouts: Vec<Option<Layout>> = graph
        .tensors
        .iter()
        .map(|tensor| {
            matches!(tensor.role, Role::Input | Role::Statistic | Role::Constant)
                .then(|| device.plain(&tensor.spec))
        })
        .collect();
    let mut kernels: Vec<Box<dyn Kernel>> = Vec::with_capacity(graph.nodes.len());
    for node in &graph.nodes {
        let spec = |id: &TensorId| graph.tensor(*id).spec.clone();
        let inputs: Vec<_> = node.inputs.iter().map(|id| (spec(id), layouts[id.0].clone())).collect();
        let outputs: Vec<Spec> = node.outputs.iter().map(spec).collect();
        let forward = node.forward.map(|id| kernels[id.0].as_ref());
        let request = KernelRequest { op: &node.op, inputs: &inputs, outputs: &outputs, forward, training };
        let kernel = device
            .compile(&request)
            .map_err(|e| e.context(format!("layer {} ({})", node.name, node.op.name())))?;
        for (id, layout) in node.outputs.iter().zip(kernel.outputs()) {
            layouts[id.0] = Some(layout.clone());
        }
        kernels.push(kernel);
    }
    Ok(kernels)
}

/// The layout in which each parameter is kept: that of its gradient, so that the update needs no reorder; without
/// a gradient that of the plan it is shared with, or what its first reader wants, if that is not a shorter type: frozen
/// weights are saved, too.
fn master_layouts(
    graph: &Graph,
    kernels: &[Box<dyn Kernel>],
    device: &dyn Device,
    shared: Option<&Plan>,
) -> Result<HashMap<TensorId, Layout>> {
    let mut masters = HashMap::new();
    for (node, kernel) in graph.nodes.iter().zip(kernels) {
        for (id, layout) in node.outputs.iter().zip(kernel.outputs()) {
            if let Some(parameter) = graph.tensor(*id).gradient_of
                && masters.insert(parameter, layout.clone()).is_some()
            {
                return Err(Error::internal(format!("two gradients for {}", graph.tensor(parameter).name)));
            }
        }
    }
    for (node, kernel) in graph.nodes.iter().zip(kernels) {
        for (id, wanted) in node.inputs.iter().zip(kernel.inputs()) {
            let tensor = graph.tensor(*id);
            if tensor.role == Role::Parameter {
                let from_plan =
                    shared.and_then(|plan| plan.parameters.iter().find(|p| p.name == tensor.name));
                let layout = match from_plan {
                    Some(parameter) => parameter.layout.clone(),
                    None if wanted.dtype() == tensor.spec.dtype => wanted.clone(),
                    None => device.plain(&tensor.spec),
                };
                masters.entry(*id).or_insert(layout);
            }
        }
    }
    Ok(masters)
}

/// One copy of a tensor in one layout.
struct Value {
    layout: Layout,
    /// Which block of the arena, or the fixed place.
    home: Home,
}

#[derive(Clone, Copy)]
enum Home {
    Block(usize),
    Fixed(Location),
}

/// A step whose operands are values, not yet places.
struct Draft {
    label: String,
    node: Option<NodeId>,
    kernel: Box<dyn Kernel>,
    inputs: Vec<usize>,
    outputs: Vec<usize>,
}

struct Planner<'a> {
    graph: &'a Graph,
    device: &'a dyn Device,
    masters: HashMap<TensorId, Layout>,
    values: Vec<Value>,
    /// The values of each tensor; the first is the one that was produced.
    of_tensor: Vec<Vec<usize>>,
    drafts: Vec<Draft>,
    blocks: Vec<Block>,
    /// For each node input: which later step still needs it.
    last_reader: Vec<usize>,
    parameters: Vec<Parameter>,
    statistics: Vec<Statistic>,
    constants: Vec<Constant>,
    /// Offsets given so far in the fixed regions.
    used: HashMap<Region, usize>,
    /// Gradients as (bytes, step) in ready order.
    ready: Vec<(std::ops::Range<usize>, usize)>,
}

impl<'a> Planner<'a> {
    fn new(graph: &'a Graph, device: &'a dyn Device, masters: HashMap<TensorId, Layout>) -> Planner<'a> {
        let mut last_reader = vec![0; graph.tensors.len()];
        for (index, node) in graph.nodes.iter().enumerate() {
            node.inputs.iter().for_each(|id| last_reader[id.0] = index);
        }
        Planner {
            graph,
            device,
            masters,
            values: Vec::new(),
            of_tensor: vec![Vec::new(); graph.tensors.len()],
            drafts: Vec::new(),
            blocks: Vec::new(),
            last_reader,
            parameters: Vec::new(),
            statistics: Vec::new(),
            constants: Vec::new(),
            used: HashMap::new(),
            ready: Vec::new(),
        }
    }

    fn fixed(&mut self, region: Region, bytes: usize) -> Location {
        let used = self.used.entry(region).or_default();
        let place = Location { region, offset: *used, bytes };
        *used = (*used + bytes).next_multiple_of(ALIGNMENT);
        place
    }

    fn new_value(&mut self, tensor: TensorId, layout: Layout, home: Home) -> usize {
        self.values.push(Value { layout, home });
        self.of_tensor[tensor.0].push(self.values.len() - 1);
        self.values.len() - 1
    }

    /// Gives inputs and metrics their places, and parameters theirs: in the order of their gradients.
    fn place_fixed(&mut self, shared: Option<&Plan>) {
        for (id, tensor) in self.graph.with_role(Role::Input) {
            let layout = self.device.plain(&tensor.spec);
            let place = self.fixed(Region::Inputs, layout.bytes());
            self.new_value(id, layout, Home::Fixed(place));
        }
        for id in self.parameter_order() {
            let tensor = self.graph.tensor(id).clone();
            let layout = self.masters[&id].clone();
            let mut place = self.fixed(Region::Parameters, layout.bytes());
            if let Some(same) = shared.and_then(|plan| plan.parameters.iter().find(|p| p.name == tensor.name))
            {
                place.offset = same.offset;
            }
            self.new_value(id, layout.clone(), Home::Fixed(place));
            self.parameters.push(Parameter {
                name: tensor.name,
                spec: tensor.spec,
                layout,
                offset: place.offset,
                init: tensor.init.unwrap_or(Init::Zero),
                decay: tensor.decay,
                frozen: tensor.frozen,
            });
        }
        self.parameters.sort_by_key(|parameter| parameter.offset);
    }

    /// Gives statistics their places, or those that the training plan gave them.
    fn place_statistics(&mut self, shared: Option<&Plan>) -> Result<()> {
        for (id, tensor) in self.graph.with_role(Role::Statistic) {
            let layout = self.device.plain(&tensor.spec);
            let place = match shared {
                None => self.fixed(Region::Statistics, layout.bytes()),
                Some(plan) => plan.statistic(&tensor.name)?.place,
            };
            self.new_value(id, layout, Home::Fixed(place));
            self.statistics.push(Statistic {
                name: tensor.name.clone(),
                spec: tensor.spec.clone(),
                place,
                init: tensor.init.unwrap_or(Init::Zero),
            });
        }
        Ok(())
    }

    /// Gives constants their places: those that the training plan gave them, or places behind all that it has.
    fn place_constants(&mut self, shared: Option<&Plan>) {
        self.used.insert(Region::Constants, shared.map_or(0, |plan| plan.sizes.constants));
        for (id, tensor) in self.graph.with_role(Role::Constant) {
            let Some(values) = tensor.values.clone() else { continue };
            let layout = self.device.plain(&tensor.spec);
            let same = shared.and_then(|plan| plan.constants.iter().find(|same| same.values == values));
            let place = match same {
                Some(same) => same.place,
                None => self.fixed(Region::Constants, layout.bytes()),
            };
            self.new_value(id, layout, Home::Fixed(place));
            self.constants.push(Constant { values, place });
        }
    }

    /// Parameters in the order in which their gradients become ready; without gradients as the model has them.
    fn parameter_order(&self) -> Vec<TensorId> {
        let outputs = self.graph.nodes.iter().flat_map(|node| &node.outputs);
        let mut order: Vec<TensorId> = outputs.filter_map(|id| self.graph.tensor(*id).gradient_of).collect();
        let rest: Vec<TensorId> = self
            .graph
            .with_role(Role::Parameter)
            .map(|(id, _)| id)
            .filter(|id| !order.contains(id))
            .collect();
        order.extend(rest);
        order.retain(|id| self.masters.contains_key(id));
        order
    }

    /// Where activations are computed again, so are copies in other layouts: one that the forward pass made would else
    /// live until the backward pass reads it too.
    fn forget_copies(&mut self) {
        if !self.graph.recomputed.is_empty() {
            self.of_tensor.iter_mut().for_each(|values| values.truncate(1));
        }
    }

    /// The value of a tensor in the wanted layout, with a reorder added where there is none yet.
    fn value_in(&mut self, id: TensorId, wanted: &Layout) -> Result<usize> {
        let values = &self.of_tensor[id.0];
        if let Some(&value) = values.iter().find(|&&value| self.values[value].layout == *wanted) {
            return Ok(value);
        }
        let tensor = self.graph.tensor(id);
        let from = *values
            .first()
            .ok_or_else(|| Error::internal(format!("{} is read before it is written", tensor.name)))?;
        let kernel = self.device.reorder(&tensor.spec, &self.values[from].layout, wanted)?;
        let home = self.new_block(wanted.bytes());
        let to = self.new_value(id, wanted.clone(), home);
        let label = format!("{} reorder", tensor.name);
        self.drafts.push(Draft { label, node: None, kernel, inputs: vec![from], outputs: vec![to] });
        self.touch(from);
        self.touch(to);
        Ok(to)
    }

    fn new_block(&mut self, bytes: usize) -> Home {
        let now = self.drafts.len();
        self.blocks.push(Block { bytes, alive: now..=now });
        Home::Block(self.blocks.len() - 1)
    }

    /// Keeps a value alive until the step just added.
    fn touch(&mut self, value: usize) {
        if let Home::Block(block) = self.values[value].home {
            let alive = &mut self.blocks[block].alive;
            *alive = *alive.start()..=self.drafts.len() - 1;
        }
    }

    fn add_node(&mut self, id: NodeId, kernel: Box<dyn Kernel>) -> Result<()> {
        let node = self.graph.node(id);
        let mut inputs = Vec::with_capacity(node.inputs.len());
        for (tensor, wanted) in node.inputs.iter().zip(kernel.inputs()) {
            inputs.push(self.value_in(*tensor, wanted)?);
        }
        let mut outputs = Vec::with_capacity(node.outputs.len());
        for (index, (tensor, layout)) in node.outputs.iter().zip(kernel.outputs()).enumerate() {
            let home = match self.graph.tensor(*tensor).role {
                // It stays where it is: the node reads it there too.
                Role::Statistic => {
                    outputs.push(self.value_in(*tensor, layout)?);
                    continue;
                }
                Role::Metric => Home::Fixed(self.fixed(Region::Metrics, layout.bytes())),
                Role::Gradient => Home::Fixed(self.gradient_place(*tensor, layout)?),
                _ => match self.taken_over(id, &*kernel, &inputs, layout).filter(|_| index == 0) {
                    Some(block) => Home::Block(block),
                    None => self.new_block(layout.bytes()),
                },
            };
            outputs.push(self.new_value(*tensor, layout.clone(), home));
        }
        let label = format!("{} {}", node.name, node.op.name());
        let operands: Vec<usize> = inputs.iter().chain(&outputs).copied().collect();
        self.drafts.push(Draft { label, node: Some(id), kernel, inputs, outputs });
        operands.into_iter().for_each(|value| self.touch(value));
        Ok(())
    }

    fn gradient_place(&mut self, gradient: TensorId, layout: &Layout) -> Result<Location> {
        let parameter = self.graph.tensor(gradient).gradient_of.and_then(|id| self.of_tensor[id.0].first());
        match parameter.map(|&value| self.values[value].home) {
            Some(Home::Fixed(place)) => {
                self.ready.push((place.offset..place.offset + layout.bytes(), self.drafts.len()));
                Ok(Location { region: Region::Gradients, ..place })
            }
            _ => Err(Error::internal(format!("{} has no parameter", self.graph.tensor(gradient).name))),
        }
    }

    /// The arena block of the input that an in-place kernel may overwrite: one that nothing reads after it.
    fn taken_over(
        &self,
        id: NodeId,
        kernel: &dyn Kernel,
        inputs: &[usize],
        layout: &Layout,
    ) -> Option<usize> {
        let index = kernel.in_place()?;
        let tensor = self.graph.node(id).inputs[index];
        let Home::Block(block) = self.values[inputs[index]].home else { return None };
        let shared = |&value: &usize| matches!(self.values[value].home, Home::Block(b) if b == block);
        let is_last = self.last_reader[tensor.0] == id.0
            && self.graph.tensor(tensor).spec.dtype.is_real()
            && self.blocks[block].bytes == layout.bytes()
            && inputs.iter().filter(|value| shared(value)).count() == 1
            && self.of_block_dead(block, tensor, id);
        is_last.then_some(block)
    }

    /// Whether no other tensor that lives in the block (it was taken over before) is read after this node.
    fn of_block_dead(&self, block: usize, except: TensorId, id: NodeId) -> bool {
        self.of_tensor.iter().enumerate().all(|(tensor, values)| {
            let here = values.iter().any(|&v| matches!(self.values[v].home, Home::Block(b) if b == block));
            !here || TensorId(tensor) == except || self.last_reader[tensor] < id.0
        })
    }

    fn finish(mut self, forward_steps: usize, options: &Options) -> Result<Plan> {
        let (offsets, arena) = arena::place(&self.blocks);
        let place_of = |value: &usize| match self.values[*value].home {
            Home::Fixed(place) => place,
            Home::Block(block) => Location {
                region: Region::Arena,
                offset: offsets[block],
                bytes: self.values[*value].layout.bytes(),
            },
        };
        let first = |id: TensorId| {
            self.of_tensor[id.0]
                .first()
                .map(place_of)
                .ok_or_else(|| Error::internal(format!("{} has no place", self.graph.tensor(id).name)))
        };
        let [images, labels] = [first(self.graph.images)?, first(self.graph.labels)?];
        let mixed = match self.graph.mixed {
            Some([others, shares]) => Some([first(others)?, first(shares)?]),
            None => None,
        };
        let [losses, hits] = [first(self.graph.losses)?, first(self.graph.hits)?];
        let probabilities = self.graph.probabilities.map(&first).transpose()?;
        let steps: Vec<PlannedStep> = std::mem::take(&mut self.drafts)
            .into_iter()
            .map(|draft| PlannedStep {
                inputs: draft.inputs.iter().map(place_of).collect(),
                outputs: draft.outputs.iter().map(place_of).collect(),
                label: draft.label,
                node: draft.node,
                kernel: draft.kernel,
            })
            .collect();
        let buckets = bucket::cut(&self.ready, options.fusion_threshold, steps.len());
        let used = |region| self.used.get(&region).copied().unwrap_or(0);
        let sizes = Sizes {
            activations: arena,
            workspace: steps.iter().map(|step| step.kernel.workspace()).max().unwrap_or(0),
            inputs: used(Region::Inputs),
            metrics: used(Region::Metrics),
            parameters: used(Region::Parameters),
            statistics: used(Region::Statistics),
            constants: used(Region::Constants),
            gradients: buckets.last().map_or(0, |last| last.bytes.end),
        };
        Ok(Plan {
            graph: self.graph.clone(),
            steps,
            forward_steps,
            parameters: self.parameters,
            statistics: self.statistics,
            constants: self.constants,
            gradients: self.ready,
            buckets,
            sizes,
            images,
            labels,
            mixed,
            losses,
            hits,
            probabilities,
            unshared_arena: self.blocks.iter().map(|block| block.bytes).sum(),
        })
    }
}
