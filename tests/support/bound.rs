//! A whole graph on a device, in memory of its own, for tests.

use std::slice::from_ref;

use dltrain::device::memory::{bytes_of, bytes_of_mut};
use dltrain::device::{Device, Layout, Memory, Scalars};
use dltrain::graph::{Graph, Init, Spec};
use dltrain::plan::{Options, Parameter, Plan, PlannedStep, Program, Region, Regions, Statistic, plan};

/// A plan bound to memory, its running statistics at their start.
pub struct Bound<'a> {
    pub device: &'a dyn Device,
    pub plan: Plan,
    pub program: Program,
    pub regions: Regions,
}

impl Bound<'_> {
    pub fn new(device: &dyn Device, graph: Graph, threshold: usize) -> Bound<'_> {
        let options = Options::whole(threshold);
        Bound::of(device, plan(graph, device, &options).unwrap())
    }

    pub fn of(device: &dyn Device, plan: Plan) -> Bound<'_> {
        let memory = |bytes| {
            let memory = device.allocate(bytes).unwrap();
            // What no step has written must not matter: make it poisonous.
            device.upload(&vec![0xff; bytes], &memory).unwrap();
            memory
        };
        let [parameters, gradients] = [plan.sizes.parameters, plan.sizes.gradients].map(memory);
        let regions = Regions::new(&plan.sizes, parameters, gradients, |bytes| Ok(memory(bytes))).unwrap();
        let program = plan.bind(&regions).unwrap();
        regions.write_constants(device, &plan).unwrap();
        let bound = Bound { device, plan, program, regions };
        for statistic in &bound.plan.statistics {
            let first = if statistic.init == Init::One { 1.0f32 } else { 0.0 };
            let values = vec![first; statistic.spec.shape.elements()];
            device.upload(bytes_of(&values), &bound.statistic(statistic)).unwrap();
        }
        bound
    }

    /// Puts images and labels where the first step reads them.
    pub fn set_batch(&self, images: &[f32], labels: &[i32]) {
        self.device.upload(bytes_of(images), &self.program.images).unwrap();
        self.device.upload(bytes_of(labels), &self.program.labels).unwrap();
    }

    /// Puts inputs and their targets there.
    pub fn set_fields(&self, inputs: &[f32], targets: &[f32]) {
        self.device.upload(bytes_of(inputs), &self.program.images).unwrap();
        self.device.upload(bytes_of(targets), &self.program.labels).unwrap();
    }

    pub fn statistic(&self, statistic: &Statistic) -> Memory {
        self.regions.statistics.slice(statistic.place.offset, statistic.place.bytes)
    }

    /// Writes a parameter given in plain order.
    pub fn set_parameter(&self, parameter: &Parameter, values: &[f32]) {
        let to = self.regions.parameters.slice(parameter.offset, parameter.layout.bytes());
        let layout = self.device.plain(&parameter.spec);
        let plain = self.device.allocate(layout.bytes()).unwrap();
        self.device.upload(bytes_of(values), &plain).unwrap();
        self.copy(&parameter.spec, (&layout, &plain), (&parameter.layout, &to));
    }

    /// A parameter's gradient in plain order.
    pub fn gradient(&self, parameter: &Parameter) -> Vec<f32> {
        let from = self.regions.gradients.slice(parameter.offset, parameter.layout.bytes());
        self.read(&parameter.spec, &parameter.layout, &from)
    }

    /// The numbers of a tensor in plain order.
    pub fn read(&self, spec: &Spec, layout: &Layout, from: &Memory) -> Vec<f32> {
        let plain_layout = self.device.plain(spec);
        let plain = self.device.allocate(plain_layout.bytes()).unwrap();
        self.copy(spec, (layout, from), (&plain_layout, &plain));
        let mut values = vec![0f32; spec.shape.elements()];
        self.device.download(&plain, bytes_of_mut(&mut values)).unwrap();
        values
    }

    fn copy(&self, spec: &Spec, from: (&Layout, &Memory), to: (&Layout, &Memory)) {
        if from.0 == to.0 {
            let mut bytes = vec![0u8; from.1.bytes()];
            self.device.download(from.1, &mut bytes).unwrap();
            self.device.upload(&bytes, to.1).unwrap();
            return;
        }
        let kernel = self.device.reorder(spec, from.0, to.0).unwrap();
        let workspace = self.device.allocate(kernel.workspace).unwrap();
        let mut step = kernel.bind(from_ref(from.1), from_ref(to.1), &workspace).unwrap();
        step.run(&Scalars::default()).unwrap();
    }

    /// Runs some of the steps.
    pub fn run(&mut self, steps: std::ops::Range<usize>, scalars: &Scalars) {
        self.program.steps[steps].iter_mut().for_each(|step| step.run(scalars).unwrap());
    }

    /// The scores of the batch, after the last step of an evaluation.
    pub fn logits(&self) -> Vec<f32> {
        let logits = self.plan.graph.logits;
        let gives = |step: &&PlannedStep| {
            step.node.is_some_and(|node| self.plan.graph.node(node).outputs[0] == logits)
        };
        let step = self.plan.steps.iter().find(gives).unwrap();
        let place = step.outputs[0];
        assert_eq!(place.region, Region::Arena);
        let from = self.regions.arena.slice(place.offset, place.bytes);
        self.read(&self.plan.graph.tensor(logits).spec, &step.kernel.outputs[0], &from)
    }

    /// The mean loss of the batch, after the forward steps.
    pub fn loss(&self) -> f64 {
        let mut losses = vec![0f32; self.plan.graph.batch()];
        self.device.download(&self.program.losses, bytes_of_mut(&mut losses)).unwrap();
        losses.iter().map(|&loss| f64::from(loss)).sum::<f64>() / losses.len() as f64
    }
}
