//! Networks that are written as ONNX files: what dltrain computes beside what others compute of the file.

use std::path::{Path, PathBuf};
use std::process::Command;

use dltrain::device::Scalars;
use dltrain::device::memory::bytes_of;
use dltrain::device::onednn::Cpu;
use dltrain::error::Result;
use dltrain::graph::{Graph, Node, Op, Role};
use dltrain::model::{self, onnx};

use super::bound::Bound;

/// Images that a file's logits are compared for.
const BATCH: usize = 3;

/// A network: its forward graph for so many images.
pub type Build<'a> = &'a dyn Fn(usize) -> Result<Graph>;
/// The numbers of a parameter of this name and shape.
pub type Weights<'a> = &'a dyn Fn(&str, &[usize]) -> Vec<f32>;

/// Numbers as a trained network might have them: of a layer with n inputs within ±√(3/n), so that what goes through
/// keeps its size; variances and factors from 0.5 to 1.5.
pub fn weights(name: &str, dims: &[usize]) -> Vec<f32> {
    let fan_in = dims.iter().skip(1).product::<usize>().max(1) as f32;
    let count = dims.iter().product();
    let mut state =
        name.bytes().fold(17u32, |state, byte| state.wrapping_mul(31).wrapping_add(u32::from(byte)));
    let mut uniform = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    let is_factor = name.ends_with("running_var") || (dims.len() == 1 && name.ends_with("weight"));
    let of = |number: f32| match is_factor {
        true => 1.0 + 0.5 * number,
        false if dims.len() == 1 => 0.5 * number,
        false => (3.0 / fan_in).sqrt() * number,
    };
    (0..count).map(|_| of(uniform())).collect()
}

/// The logits of a network that is tested, with these images and weights.
pub fn logits(graph: Graph, images: &[f32], weights: &dyn Fn(&str, &[usize]) -> Vec<f32>) -> Vec<f32> {
    let cpu = Cpu::new(1).unwrap();
    let graph = graph.for_evaluation().simplify();
    let mut run = Bound::new(&cpu, graph, 1 << 20);
    run.set_batch(images, &vec![0; run.plan.graph.batch()]);
    for parameter in &run.plan.parameters {
        run.set_parameter(parameter, &weights(&parameter.name, &parameter.spec.shape.0));
    }
    for statistic in &run.plan.statistics {
        let values = weights(&statistic.name, &statistic.spec.shape.0);
        cpu_upload(&run, &values, &run.statistic(statistic));
    }
    run.run(0..run.program.steps.len(), &Scalars::default());
    let logits = run.plan.graph.logits;
    let gives = |step: &&dltrain::plan::PlannedStep| {
        step.node.is_some_and(|id| run.plan.graph.node(id).outputs[0] == logits)
    };
    let step = run.plan.steps.iter().find(gives).expect("a step gives the logits");
    let (place, layout) = (step.outputs[0], &step.kernel.outputs[0]);
    run.read(&run.plan.graph.tensor(logits).spec, layout, &run.regions.arena.slice(place.offset, place.bytes))
}

fn cpu_upload(run: &Bound, values: &[f32], to: &dltrain::device::Memory) {
    run.device.upload(bytes_of(values), to).unwrap();
}

/// Images of a network for a batch.
pub fn images(graph: &Graph) -> Vec<f32> {
    let count = graph.image().elements() * graph.batch();
    (0..count).map(|place| ((place * 37 % 101) as f32 - 50.0) / 29.0).collect()
}

/// Files that ONNX Runtime is to run, with images and logits beside each.
pub struct Files(tempfile::TempDir);

impl Files {
    pub fn new() -> Files {
        Files(tempfile::tempdir().unwrap())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes a network; its logits are returned.
    pub fn write(&self, name: &str, build: Build, fold: bool) -> Vec<f32> {
        let graph = build(BATCH).unwrap();
        self.write_with(name, build, (fold, &weights));
        let images = images(&graph);
        let ours = logits(graph.clone(), &images, &weights);
        for (ending, numbers) in [("images", &images), ("logits", &ours)] {
            std::fs::write(self.path(&format!("{name}.{ending}")), bytes_of(numbers)).unwrap();
        }
        ours
    }

    /// How far logits of a network are to be from others' at most, as a share of the largest: 1e-5, or if that is more
    /// twenty times as far as they are from its own where images are rounded otherwise. Each of some twenty layers
    /// rounds what it gives, and what is behind it makes of that what it makes of images' rounding.
    pub fn allow_rounding(&self, name: &str, build: Build, ours: &[f32]) -> f32 {
        let graph = build(BATCH).unwrap();
        let around = |(place, x): (usize, f32)| x * (1.0 + [f32::EPSILON, -f32::EPSILON][place % 2]);
        let images: Vec<f32> = images(&graph).into_iter().enumerate().map(around).collect();
        let bound = f32::max(1e-5, 20.0 * apart(name, &logits(graph, &images, &weights), ours));
        assert!(bound < 1e-2, "{name}: rounding of images alone moves the scores by {bound}");
        std::fs::write(self.path(&format!("{name}.bound")), format!("{bound:e}")).unwrap();
        bound
    }

    /// Writes a network with these weights.
    pub fn write_with(&self, name: &str, build: Build, of: (bool, Weights)) {
        self.write_up_to(onnx::export::LARGEST, name, build, of);
    }

    /// The same, with its weights in a second file where one would have more bytes than `most`.
    pub fn write_up_to(&self, most: usize, name: &str, build: Build, (fold, weights): (bool, Weights)) {
        let graph = build(1).unwrap();
        let shapes = graph.tensors.iter().filter(|t| matches!(t.role, Role::Parameter | Role::Statistic));
        let shapes: std::collections::HashMap<&str, &[usize]> =
            shapes.map(|tensor| (&*tensor.name, &tensor.spec.shape.0[..])).collect();
        let values = |name: &str| Ok(weights(name, shapes[name]));
        let network =
            onnx::export::network(build, 4, fold, &values).unwrap_or_else(|e| panic!("{name}: {e}"));
        network.write(&self.path(&format!("{name}.onnx")), most).unwrap();
    }

    /// That the file is read back as the network that was written.
    pub fn is_read_back(&self, name: &str, build: Build, ours: &[f32]) {
        let (again, numbers) = self.read(name);
        let [theirs, written] = [&again, &build(BATCH).unwrap()].map(layers);
        // Of a product's factor, of rows and of means a file has other forms than the graph: the numbers are the same.
        let has_others = |layer: &String| ["MatMul", "Sum"].iter().any(|op| layer.starts_with(op));
        if !written.iter().any(has_others) {
            assert_eq!(theirs, written, "{name}");
        }
        near(name, &numbers, ours);
    }

    /// The network that dltrain reads of a file, and its logits.
    pub fn read(&self, name: &str) -> (Graph, Vec<f32>) {
        let model =
            model::open(&self.path(&format!("{name}.onnx"))).unwrap_or_else(|e| panic!("{name}: {e}"));
        let again = model.build_to_test(BATCH, model.image, model.classes).unwrap();
        let file = model.file().unwrap();
        let theirs = logits(again.clone(), &images(&again), &|name, _| file.values(name).unwrap());
        (again, theirs)
    }

    /// That ONNX Runtime computes the same of all of them.
    pub fn are_run(&self) {
        let Some(python) = onnxruntime() else {
            println!("SKIPPED: ONNX Runtime is not there (.ci/deps onnxruntime)");
            return;
        };
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/onnxruntime/run.py");
        let output = Command::new(python).arg(script).arg(self.0.path()).output().unwrap();
        let said = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
        assert!(output.status.success(), "{said}");
        print!("{said}");
    }
}

/// A Python that has ONNX Runtime.
fn onnxruntime() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(".deps");
    let has_it = |python: &PathBuf| {
        let found = Command::new(python).args(["-c", "import onnxruntime"]).output();
        found.is_ok_and(|output| output.status.success())
    };
    ["onnxruntime", "torch"].map(|name| root.join(name).join("bin/python")).into_iter().find(has_it)
}

/// What a network's layers compute in evaluation, with the extents of what they give. Reshapes compute nothing, and a
/// layer that reads all of an image reads it in any shape.
pub fn layers(graph: &Graph) -> Vec<String> {
    let graph = graph.clone().for_evaluation().simplify();
    let of = |node: &Node| {
        let given = &graph.tensor(node.outputs[0]).spec.shape;
        format!("{:?} {} {given}", node.op, node.inputs.len())
    };
    graph.nodes.iter().filter(|node| node.op != Op::Reshape).map(of).collect()
}

/// Equal to 1e-5 of the largest: what docs/onnx.md promises.
pub fn near(name: &str, theirs: &[f32], ours: &[f32]) {
    let apart = apart(name, theirs, ours);
    assert!(apart <= 1e-5, "{name}: {apart} of the largest apart: {theirs:?} and {ours:?}");
}

/// The largest difference, as a share of the largest of ours.
pub fn apart(name: &str, theirs: &[f32], ours: &[f32]) -> f32 {
    let largest = ours.iter().fold(0f32, |largest, number| largest.max(number.abs()));
    assert!(largest > 1e-3 && largest.is_finite(), "{name}: {ours:?}");
    assert_eq!(theirs.len(), ours.len(), "{name}");
    let differences = theirs.iter().zip(ours).map(|(theirs, ours)| (theirs - ours).abs());
    // What is no number is no small one.
    differences.fold(0f32, |most, number| if most.is_nan() || number <= most { most } else { number })
        / largest
}
