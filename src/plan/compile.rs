//! From a graph to a plan: layouts, steps, memory.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use super::arena::{self, Block};
use super::describe::Sizes;
use super::stage::{Contexts, Division, Edge, Pass, Stage, Stages};
use super::{Constant, HostPlaces, Location, Parameter, Phase, Plan, PlannedStep, Region, Statistic, bucket};
use crate::device::memory::ALIGNMENT;
use crate::device::{Device, Kernel, KernelRequest, Layout};
use crate::error::{Error, Result};
use crate::graph::{Graph, Init, NodeId, Role, Spec, Tensor, TensorId};

/// What the plan is made for.
pub struct Options<'a> {
    /// Bytes from which a bucket is closed (`--fusion-threshold-mb`).
    pub fusion_threshold: usize,
    /// For a plan without backward pass: the training plan whose parameters and statistics it reads.
    pub training: Option<&'a Plan>,
    /// The stage that this rank computes.
    pub stage: Stage<'a>,
}

impl Options<'_> {
    /// For a network that is one stage.
    pub fn whole(fusion_threshold: usize) -> Options<'static> {
        Options { fusion_threshold, training: None, stage: Stage::WHOLE }
    }
}

/// Plans one step of a graph on a device. With a backward pass the plan is one for training.
pub fn plan(graph: Graph, device: &dyn Device, options: &Options) -> Result<Plan> {
    Compiled::new(graph, device, options.training)?.plan(device, options)
}

/// A graph with a kernel for each node: what plans of the whole and of each stage have in common.
pub struct Compiled {
    graph: Graph,
    kernels: Vec<Rc<Kernel>>,
    /// In which each tensor is produced.
    layouts: Vec<Option<Layout>>,
    masters: HashMap<TensorId, Layout>,
}

impl Compiled {
    /// Asks the device for a kernel for each node, in order, telling it the layouts chosen so far. `training`: as in
    /// `Options`.
    pub fn new(graph: Graph, device: &dyn Device, training: Option<&Plan>) -> Result<Compiled> {
        let graph = rewritten(graph, device).join_norms(|joint| device.joins(joint))?;
        Compiled::of(graph, device, training)
    }

    /// The same for a network that is cut into stages: what a layer could do of the one before it stays there, since
    /// another rank may have that.
    pub fn for_stages(graph: Graph, device: &dyn Device) -> Result<Compiled> {
        Compiled::of(rewritten(graph, device), device, None)
    }

    fn of(graph: Graph, device: &dyn Device, training: Option<&Plan>) -> Result<Compiled> {
        let trains = graph.nodes.len() > graph.forward_nodes;
        let plain = |tensor: &Tensor| {
            matches!(tensor.role, Role::Input | Role::Statistic | Role::Constant)
                .then(|| device.plain(&tensor.spec))
        };
        let mut layouts: Vec<Option<Layout>> = graph.tensors.iter().map(plain).collect();
        let mut kernels: Vec<Rc<Kernel>> = Vec::with_capacity(graph.nodes.len());
        for node in &graph.nodes {
            let spec = |id: &TensorId| graph.tensor(*id).spec.clone();
            let inputs: Vec<_> = node.inputs.iter().map(|id| (spec(id), layouts[id.0].clone())).collect();
            let outputs: Vec<Spec> = node.outputs.iter().map(spec).collect();
            let forward = node.forward.map(|id| &*kernels[id.0]);
            let request =
                KernelRequest { op: &node.op, inputs: &inputs, outputs: &outputs, forward, training: trains };
            let kernel = device.compile(&request).map_err(|e| {
                let read = inputs.first().map(|(spec, _)| spec);
                e.context(format!("layer {} ({})", node.name, node.op.name_of(read)))
            })?;
            for (id, layout) in node.outputs.iter().zip(&kernel.outputs) {
                layouts[id.0] = Some(layout.clone());
            }
            kernels.push(kernel.into());
        }
        let masters = master_layouts(&graph, &kernels, device, training)?;
        Ok(Compiled { graph, kernels, layouts, masters })
    }

    /// The layers before which this network can be cut into stages, as the device wants it.
    ///
    /// # Errors
    /// None but the library's own.
    pub fn possible_cuts(&self) -> Result<Vec<String>> {
        Stages::possible(&self.graph)
    }

    /// The same with parameters kept as another network keeps those of these names, of which it has the same: that of
    /// a rank with other rows of the images.
    pub fn keeping(mut self, other: &Compiled) -> Compiled {
        let named: HashMap<&str, &Layout> = other
            .masters
            .iter()
            .map(|(id, layout)| (other.graph.tensor(*id).name.as_str(), layout))
            .collect();
        for (id, layout) in &mut self.masters {
            if let Some(same) = named.get(self.graph.tensor(*id).name.as_str()) {
                layout.clone_from(same);
            }
        }
        self
    }

    /// The plan of all of it, or of one stage.
    pub fn plan(&self, device: &dyn Device, options: &Options) -> Result<Plan> {
        self.plan_divided(device, options, &Division::new(&self.graph, &options.stage)?)
    }

    /// The plan of all of it, where parameters are gathered: the backward pass has done with a layer's weights before
    /// it makes their gradient, which may then take their place.
    pub fn plan_gathering(&self, device: &dyn Device, options: &Options) -> Result<Plan> {
        self.plan_divided(device, options, &Division::weights_last(&self.graph))
    }

    fn plan_divided(&self, device: &dyn Device, options: &Options, division: &Division) -> Result<Plan> {
        let mut planner = Planner::new(self, device, division);
        planner.place_fixed(options.training);
        planner.place_statistics(options.training)?;
        planner.place_constants(options.training);
        let (mut forward_steps, mut passes) = (0, Vec::new());
        let is_forward = |pass: Option<&(usize, Phase, _)>| pass.is_some_and(|pass| pass.1 == Phase::Forward);
        for (index, (chunk, phase, nodes)) in division.passes.iter().enumerate() {
            if *phase != Phase::Forward && is_forward(division.passes.get(index - 1)) {
                planner.forget_copies();
            }
            let start = planner.drafts.len();
            nodes.iter().try_for_each(|&id| planner.add_node(id, self.kernels[id.0].clone()))?;
            let steps = start..planner.drafts.len();
            forward_steps = if *phase == Phase::Forward { steps.end } else { forward_steps };
            passes.push(Pass { chunk: *chunk, phase: *phase, steps });
        }
        planner.finish(forward_steps, passes, options)
    }
}

/// As the device wants it.
fn rewritten(graph: Graph, device: &dyn Device) -> Graph {
    let graph = match device.remakes_from() {
        Some(operations) => graph.remake(operations),
        None => graph,
    };
    graph.fuse(device.op_fusions())
}

/// The layout in which each parameter is kept: that of its gradient, so that the update needs no reorder; without
/// a gradient that of the plan it is shared with, or what its first reader wants, if that is not a shorter type: frozen
/// weights are saved, too.
fn master_layouts(
    graph: &Graph,
    kernels: &[Rc<Kernel>],
    device: &dyn Device,
    shared: Option<&Plan>,
) -> Result<HashMap<TensorId, Layout>> {
    let mut masters = HashMap::new();
    for (node, kernel) in graph.nodes.iter().zip(kernels) {
        for (id, layout) in node.outputs.iter().zip(&kernel.outputs) {
            if let Some(parameter) = graph.tensor(*id).gradient_of
                && masters.insert(parameter, layout.clone()).is_some()
            {
                return Err(Error::usage(format!(
                    "{}: two layers of {} read it, which only one can; let both read one Builder::reshape of it",
                    graph.tensor(parameter).name,
                    graph.name
                )));
            }
        }
    }
    for (node, kernel) in graph.nodes.iter().zip(kernels) {
        for (id, wanted) in node.inputs.iter().zip(&kernel.inputs) {
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
type Draft = PlannedStep<usize>;

/// This rank's order of nodes: the place of each, and for each tensor that of the last one that reads it.
struct NodeOrder {
    places: Vec<usize>,
    last_reader: Vec<usize>,
}

struct Planner<'a> {
    compiled: &'a Compiled,
    device: &'a dyn Device,
    division: &'a Division,
    values: Vec<Value>,
    /// The values of each tensor; the first is the one that was produced.
    of_tensor: Vec<Vec<usize>>,
    drafts: Vec<Draft>,
    blocks: Vec<Block>,
    order: NodeOrder,
    /// What goes between stages, and the blocks that belong to messages while a micro-batch is in flight.
    edges: Vec<Edge>,
    lent: Vec<usize>,
    parameters: Vec<Parameter>,
    statistics: Vec<Statistic>,
    constants: Vec<Constant>,
    /// Offsets given so far in the fixed regions.
    used: HashMap<Region, usize>,
    /// Gradients as (bytes, step) in ready order.
    ready: Vec<(std::ops::Range<usize>, usize)>,
}

impl<'a> Planner<'a> {
    fn new(compiled: &'a Compiled, device: &'a dyn Device, division: &'a Division) -> Planner<'a> {
        let graph = &compiled.graph;
        let (mut last_reader, mut places) = (vec![0; graph.tensors.len()], vec![0; graph.nodes.len()]);
        let nodes = division.passes.iter().flat_map(|(_, _, nodes)| nodes);
        for (place, id) in nodes.enumerate() {
            places[id.0] = place;
            graph.node(*id).inputs.iter().for_each(|input| last_reader[input.0] = place);
        }
        Planner {
            compiled,
            device,
            division,
            values: Vec::new(),
            of_tensor: vec![Vec::new(); graph.tensors.len()],
            drafts: Vec::new(),
            blocks: Vec::new(),
            order: NodeOrder { places, last_reader },
            edges: Vec::new(),
            lent: Vec::new(),
            parameters: Vec::new(),
            statistics: Vec::new(),
            constants: Vec::new(),
            used: HashMap::new(),
            ready: Vec::new(),
        }
    }

    fn graph(&self) -> &'a Graph {
        &self.compiled.graph
    }

    fn fixed(&mut self, region: Region, bytes: usize) -> Location {
        let used = self.used.entry(region).or_default();
        let place = Location { region, offset: *used, bytes };
        *used = (*used + bytes).next_multiple_of(ALIGNMENT);
        place
    }

    /// A block that belongs to messages as long as the micro-batch is in flight.
    fn lent_block(&mut self, bytes: usize) -> Home {
        let home = self.new_block(bytes);
        self.lent.push(self.blocks.len() - 1);
        home
    }

    /// A tensor that another stage makes, in the layout in which it comes.
    fn receive(&mut self, id: TensorId) -> Result<()> {
        let tensor = self.graph().tensor(id);
        let lacks = || Error::internal(format!("{} is read before it is written", tensor.name));
        let (number, crossing) = self.division.received(id).ok_or_else(lacks)?;
        let layout = self.compiled.layouts[id.0].clone().ok_or_else(lacks)?;
        let home = self.lent_block(layout.bytes());
        let value = self.new_value(id, layout, home);
        self.edge(number, crossing.from, false, value, self.drafts.len());
        Ok(())
    }

    /// What others read of a tensor leaves behind a step.
    fn send(&mut self, id: TensorId, value: usize, step: usize) {
        let division = self.division;
        for (number, crossing) in division.sent(id) {
            self.edge(number, crossing.to, true, value, step);
        }
    }

    fn edge(&mut self, number: usize, peer: usize, sends: bool, value: usize, step: usize) {
        let tensor = self.division.crossings[number].tensor;
        let name = self.graph().tensor(tensor).name.clone();
        // Its place is that of the value, when there are places.
        let place = Location { region: Region::Arena, offset: value, bytes: 0 };
        self.edges.push(Edge { number, peer, sends, step, place, name });
    }

    fn new_value(&mut self, tensor: TensorId, layout: Layout, home: Home) -> usize {
        self.values.push(Value { layout, home });
        self.of_tensor[tensor.0].push(self.values.len() - 1);
        self.values.len() - 1
    }

    /// Gives inputs and metrics their places, and parameters theirs: in the order of their gradients.
    fn place_fixed(&mut self, shared: Option<&Plan>) {
        let (graph, division) = (self.graph(), self.division);
        for (id, tensor) in graph.with_role(Role::Input).filter(|(id, _)| division.keeps(*id)) {
            let layout = self.device.plain(&tensor.spec);
            let place = self.fixed(Region::Inputs, layout.bytes());
            // Those of each micro-batch in flight; sizes still tell what the host fills.
            let home = match self.division.is_cut {
                true => self.lent_block(layout.bytes()),
                false => Home::Fixed(place),
            };
            let value = self.new_value(id, layout, home);
            self.send(id, value, 0);
        }
        for id in self.parameter_order() {
            let tensor = self.graph().tensor(id).clone();
            let layout = self.compiled.masters[&id].clone();
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
                shard: tensor.shard,
            });
        }
        self.parameters.sort_by_key(|parameter| parameter.offset);
    }

    /// Gives statistics their places, or those that the training plan gave them.
    fn place_statistics(&mut self, shared: Option<&Plan>) -> Result<()> {
        let (graph, division) = (self.graph(), self.division);
        for (id, tensor) in graph.with_role(Role::Statistic).filter(|(id, _)| division.keeps(*id)) {
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
        let (graph, division) = (self.graph(), self.division);
        let is_read = |id: TensorId| {
            let mut nodes = division.passes.iter().flat_map(|(_, _, nodes)| nodes);
            nodes.any(|node| graph.node(*node).inputs.contains(&id))
        };
        for (id, tensor) in graph.with_role(Role::Constant).filter(|(id, _)| !division.is_cut || is_read(*id))
        {
            let Some(values) = tensor.values.clone() else { continue };
            let layout = self.device.plain(&tensor.spec);
            let is_same = |other: &&Constant| Arc::ptr_eq(&other.values, &values) || other.values == values;
            let same = shared.and_then(|plan| plan.constants.iter().find(is_same));
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
        let nodes = self.division.passes.iter().flat_map(|(_, _, nodes)| nodes);
        let outputs = nodes.flat_map(|id| &self.graph().node(*id).outputs);
        let mut order: Vec<TensorId> =
            outputs.filter_map(|id| self.graph().tensor(*id).gradient_of).collect();
        let rest: Vec<TensorId> = self
            .graph()
            .with_role(Role::Parameter)
            .map(|(id, _)| id)
            .filter(|id| !order.contains(id))
            .collect();
        order.extend(rest);
        order.retain(|id| self.compiled.masters.contains_key(id) && self.division.keeps(*id));
        order.sort_by_key(|id| self.graph().tensor(*id).shard.is_none());
        order
    }

    /// Where activations are computed again, so are copies in other layouts: one that the forward pass made would else
    /// live until the backward pass reads it too.
    fn forget_copies(&mut self) {
        if !self.graph().recomputed.is_empty() {
            self.of_tensor.iter_mut().for_each(|values| values.truncate(1));
        }
    }

    /// The value of a tensor in the wanted layout, with a reorder added where there is none yet.
    fn value_in(&mut self, id: TensorId, wanted: &Layout) -> Result<usize> {
        if self.of_tensor[id.0].is_empty() {
            self.receive(id)?;
        }
        let values = &self.of_tensor[id.0];
        if let Some(&value) = values.iter().find(|&&value| self.values[value].layout == *wanted) {
            return Ok(value);
        }
        let tensor = self.graph().tensor(id);
        let from = *values
            .first()
            .ok_or_else(|| Error::internal(format!("{} is read before it is written", tensor.name)))?;
        let home = self.new_block(wanted.bytes());
        self.reorder(id, from, wanted, home)
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

    fn add_node(&mut self, id: NodeId, kernel: Rc<Kernel>) -> Result<()> {
        let node = self.graph().node(id);
        let mut inputs = Vec::with_capacity(node.inputs.len());
        for (tensor, wanted) in node.inputs.iter().zip(&kernel.inputs) {
            inputs.push(self.value_in(*tensor, wanted)?);
        }
        let mut outputs = Vec::with_capacity(node.outputs.len());
        let (mut moved, made) = (Vec::new(), self.ready.len());
        for (index, (tensor, layout)) in node.outputs.iter().zip(&kernel.outputs).enumerate() {
            let home = match self.graph().tensor(*tensor).role {
                // Another rank's kernel gives it as parameters are kept, and this one's does not.
                Role::Gradient if self.master_of(*tensor).is_some_and(|master| master != layout) => {
                    moved.push((*tensor, self.values.len()));
                    self.new_block(layout.bytes())
                }
                // It stays where it is: the node reads it there too.
                Role::Statistic => {
                    outputs.push(self.value_in(*tensor, layout)?);
                    continue;
                }
                Role::Metric => Home::Fixed(self.fixed(Region::Metrics, layout.bytes())),
                Role::Gradient => Home::Fixed(self.gradient_place(*tensor, layout)?),
                _ if self.division.sent(*tensor).next().is_some() => self.lent_block(layout.bytes()),
                _ => match self.taken_over(id, &kernel, &inputs, layout).filter(|_| index == 0) {
                    Some(block) => Home::Block(block),
                    None => self.new_block(layout.bytes()),
                },
            };
            let value = self.new_value(*tensor, layout.clone(), home);
            self.send(*tensor, value, self.drafts.len());
            outputs.push(value);
        }
        let label = format!("{} {}", node.name, node.op.name());
        let operands: Vec<usize> = inputs.iter().chain(&outputs).copied().collect();
        self.drafts.push(Draft { label, node: Some(id), kernel, inputs, outputs });
        operands.into_iter().for_each(|value| self.touch(value));
        moved.into_iter().try_for_each(|(gradient, value)| self.move_gradient(gradient, value))?;
        // What a node makes is there together, on ranks that move none of it too: buckets are cut alike.
        let last = self.drafts.len() - 1;
        self.ready[made..].iter_mut().for_each(|(_, step)| *step = last);
        Ok(())
    }

    /// How the parameter of a gradient is kept.
    fn master_of(&self, gradient: TensorId) -> Option<&'a Layout> {
        self.compiled
            .graph
            .tensor(gradient)
            .gradient_of
            .and_then(|parameter| self.compiled.masters.get(&parameter))
    }

    /// A gradient comes to its place, in the layout of its parameter.
    fn move_gradient(&mut self, gradient: TensorId, from: usize) -> Result<()> {
        let Some(master) = self.master_of(gradient) else { return Ok(()) };
        let home = Home::Fixed(self.gradient_place(gradient, master)?);
        self.reorder(gradient, from, master, home).map(|_| ())
    }

    /// Adds a step that brings a value of a tensor into another layout: the new value.
    fn reorder(&mut self, id: TensorId, from: usize, wanted: &Layout, home: Home) -> Result<usize> {
        let tensor = self.graph().tensor(id);
        let kernel = self.device.reorder(&tensor.spec, &self.values[from].layout, wanted)?.into();
        let to = self.new_value(id, wanted.clone(), home);
        let label = format!("{} reorder", tensor.name);
        self.drafts.push(Draft { label, node: None, kernel, inputs: vec![from], outputs: vec![to] });
        self.touch(from);
        self.touch(to);
        Ok(to)
    }

    fn gradient_place(&mut self, gradient: TensorId, layout: &Layout) -> Result<Location> {
        let parameter = self.graph().tensor(gradient).gradient_of.and_then(|id| self.of_tensor[id.0].first());
        match parameter.map(|&value| self.values[value].home) {
            Some(Home::Fixed(place)) => {
                self.ready.push((place.offset..place.offset + layout.bytes(), self.drafts.len()));
                Ok(Location { region: Region::Gradients, ..place })
            }
            _ => Err(Error::internal(format!("{} has no parameter", self.graph().tensor(gradient).name))),
        }
    }

    /// The arena block of the input that an in-place kernel may overwrite: one that nothing reads after it.
    fn taken_over(&self, id: NodeId, kernel: &Kernel, inputs: &[usize], layout: &Layout) -> Option<usize> {
        let index = kernel.in_place?;
        let tensor = self.graph().node(id).inputs[index];
        let Home::Block(block) = self.values[inputs[index]].home else { return None };
        let shared = |&value: &usize| matches!(self.values[value].home, Home::Block(b) if b == block);
        let is_last = self.order.last_reader[tensor.0] == self.order.places[id.0]
            && !self.lent.contains(&block)
            && self.graph().tensor(tensor).spec.dtype.is_real()
            && self.blocks[block].bytes == layout.bytes()
            && inputs.iter().filter(|value| shared(value)).count() == 1
            && self.of_block_dead(block, tensor, id);
        is_last.then_some(block)
    }

    /// Whether no other tensor that lives in the block (it was taken over before) is read after this node.
    fn of_block_dead(&self, block: usize, except: TensorId, id: NodeId) -> bool {
        self.of_tensor.iter().enumerate().all(|(tensor, values)| {
            let here = values.iter().any(|&v| matches!(self.values[v].home, Home::Block(b) if b == block));
            !here || TensorId(tensor) == except || self.order.last_reader[tensor] < self.order.places[id.0]
        })
    }

    /// Where each block lies, the bytes of the arena, and which of them are there once for each micro-batch: those that
    /// live from one pass to another, and those of messages.
    fn place_blocks(&self, passes: &[Pass]) -> (Vec<usize>, usize, Contexts) {
        if !self.division.is_cut {
            let (offsets, arena) = arena::place(&self.blocks);
            return (offsets, arena, Contexts::ONE);
        }
        let within = |block: &Block| {
            let (start, end) = (block.alive.start(), block.alive.end());
            passes.iter().any(|pass| pass.steps.contains(start) && pass.steps.contains(end))
        };
        let last = self.drafts.len().saturating_sub(1);
        let is_kept: Vec<bool> = (0..self.blocks.len())
            .map(|block| self.lent.contains(&block) || !within(&self.blocks[block]))
            .collect();
        let of = |kept: bool| {
            let mut blocks = self.blocks.clone();
            for (index, block) in blocks.iter_mut().enumerate() {
                match (is_kept[index] == kept, self.lent.contains(&index)) {
                    (false, _) => *block = Block { bytes: 0, alive: 0..=0 },
                    (true, true) => block.alive = 0..=last,
                    _ => {}
                }
            }
            arena::place(&blocks)
        };
        let ((passing, first), (kept, bytes)) = (of(false), of(true));
        let count = self.division.contexts;
        let offset = |block: usize| if is_kept[block] { first + kept[block] } else { passing[block] };
        let offsets = (0..self.blocks.len()).map(offset).collect();
        (offsets, first + count * bytes, Contexts { first, bytes, count })
    }

    /// Where a value lies, now that blocks have places.
    fn place_of(&self, value: usize, offsets: &[usize]) -> Location {
        match self.values[value].home {
            Home::Fixed(place) => place,
            Home::Block(block) => Location {
                region: Region::Arena,
                offset: offsets[block],
                bytes: self.values[value].layout.bytes(),
            },
        }
    }

    /// Where a tensor of the host lies; nowhere if another stage has it.
    fn host_place(&self, id: TensorId, offsets: &[usize]) -> Result<Location> {
        let (region, is_here) = match self.graph().tensor(id).role {
            Role::Input => (Region::Inputs, self.division.keeps(id)),
            _ => (Region::Metrics, !(self.of_tensor[id.0].is_empty() && self.division.is_cut)),
        };
        match self.of_tensor[id.0].first() {
            _ if !is_here => Ok(Location { region, offset: 0, bytes: 0 }),
            Some(&value) => Ok(self.place_of(value, offsets)),
            None => Err(Error::internal(format!("{} has no place", self.graph().tensor(id).name))),
        }
    }

    /// Bytes of each region.
    fn sizes(&self, activations: usize, steps: &[PlannedStep], gradients: usize) -> Sizes {
        let used = |region| self.used.get(&region).copied().unwrap_or(0);
        Sizes {
            activations,
            unshared: self.blocks.iter().map(|block| block.bytes).sum(),
            workspace: steps.iter().map(|step| step.kernel.workspace).max().unwrap_or(0),
            touched: steps
                .iter()
                .map(|step| step.kernel.workspace - step.kernel.untouched)
                .max()
                .unwrap_or(0),
            inputs: used(Region::Inputs),
            metrics: used(Region::Metrics),
            parameters: used(Region::Parameters),
            statistics: used(Region::Statistics),
            constants: used(Region::Constants),
            gradients,
        }
    }

    fn finish(mut self, forward_steps: usize, passes: Vec<Pass>, options: &Options) -> Result<Plan> {
        let (offsets, arena, contexts) = self.place_blocks(&passes);
        let of_host = |id: TensorId| self.host_place(id, &offsets);
        let both = |[first, second]: [TensorId; 2]| -> Result<[Location; 2]> {
            Ok([of_host(first)?, of_host(second)?])
        };
        let host = HostPlaces {
            images: of_host(self.graph().images)?,
            labels: of_host(self.graph().labels)?,
            samples: self.graph().samples.map(of_host).transpose()?,
            mixed: self.graph().mixed.map(both).transpose()?,
            losses: of_host(self.graph().losses)?,
            hits: of_host(self.graph().hits)?,
            probabilities: self.graph().probabilities.map(of_host).transpose()?,
        };
        let mut edges = std::mem::take(&mut self.edges);
        edges.iter_mut().for_each(|edge| edge.place = self.place_of(edge.place.offset, &offsets));
        edges.sort_by_key(|edge| (edge.sends, edge.number));
        let drafts = std::mem::take(&mut self.drafts);
        let places = |values: &[usize]| values.iter().map(|&value| self.place_of(value, &offsets)).collect();
        let step = |draft: Draft| PlannedStep {
            inputs: places(&draft.inputs),
            outputs: places(&draft.outputs),
            label: draft.label,
            node: draft.node,
            kernel: draft.kernel,
        };
        let steps: Vec<PlannedStep> = drafts.into_iter().map(step).collect();
        self.ready.sort_by_key(|(bytes, _)| bytes.start);
        let parts = self.parameters.iter().filter(|parameter| parameter.shard.is_some());
        let split = parts.map(|part| part.offset + part.layout.bytes()).max().unwrap_or(0);
        let buckets = bucket::cut(&self.ready, split, options.fusion_threshold, steps.len());
        Ok(Plan {
            sizes: self.sizes(arena, &steps, buckets.last().map_or(0, |last| last.bytes.end)),
            graph: self.graph().clone(),
            steps,
            forward_steps,
            parameters: self.parameters,
            statistics: self.statistics,
            constants: self.constants,
            gradients: self.ready,
            buckets,
            split,
            host,
            edges,
            passes,
            contexts,
            windows: None,
        })
    }
}
