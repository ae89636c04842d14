//! Networks that are drawn (`support::networks`): whatever a user's network is made of, all that is computed of it
//! agrees.
//!
//! - the CPU's gradients are the reference's, and the reference's are differences of its loss;
//! - a network in stages, cut wherever it can be, and one whose activations are computed again give the same bits;
//! - in bf16 every op reads the types that devices have it for, and the numbers are those of f32, rounded;
//! - it is written as ONNX, ONNX Runtime computes the same of it, and so does dltrain when it reads it again.
//!
//! `make test` has what was wrong once and a few that are drawn, the same each time; `make test-full` draws thousands.

use crate::support::bound::Bound;
use crate::support::exported::{Files, apart as numbers_apart, images, weights};
use crate::support::networks::{Drawn, Network, ONCE, any_network, any_network_of_cubes, once};

use std::collections::BTreeMap;

use dltrain::device::onednn::Cpu;
use dltrain::device::reference::Reference;
use dltrain::device::{Device, Scalars};
use dltrain::graph::{BackwardOp, DType, Graph, Op, Role, Tensor};
use dltrain::plan::{Compiled, Options, Phase, Stage, Stages};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// Gradients by the names of their parameters, and the loss.
type Gradients = BTreeMap<String, Vec<f32>>;

/// A training step of a network, with images that differ from try to try.
struct Step<'a> {
    device: &'a dyn Device,
    turn: usize,
}

impl Step<'_> {
    fn scalars(&self, batch: usize) -> Scalars {
        Scalars { seed: 3, gradient_scale: 1.0 / batch as f32, ..Scalars::default() }
    }

    fn set(&self, run: &Bound, graph: &Graph) {
        let mut images = images(graph);
        let by = 7 * self.turn % images.len();
        images.rotate_left(by);
        let labels: Vec<i32> = (0..graph.batch()).map(|image| ((2 * image + self.turn) % 5) as i32).collect();
        run.set_batch(&images, &labels);
    }

    fn whole(&self, graph: &Graph) -> (Bound<'_>, Gradients) {
        let mut run = Bound::new(self.device, graph.clone(), 1 << 20);
        self.set(&run, graph);
        set_parameters(&run);
        run.run(0..run.plan.steps.len(), &self.scalars(graph.batch()));
        let found = gradients(&run);
        (run, found)
    }

    /// The same by stages, which send each other what goes over their cuts.
    fn staged(
        &self,
        graph: &Graph,
        compiled: &Compiled,
        (stages, splits_weights): (&Stages, bool),
    ) -> Gradients {
        let of = |own: usize| {
            let stage = Stage { stages, own, contexts: 1, splits_weights };
            let options = Options { fusion_threshold: 1, training: None, stage };
            Bound::of(self.device, compiled.plan(self.device, &options).unwrap())
        };
        let mut all: Vec<Bound> = (0..stages.ranks).map(of).collect();
        all.iter().for_each(set_parameters);
        self.set(&all[0], graph);
        let count = stages.chunks();
        let scalars = self.scalars(graph.batch());
        (0..count).for_each(|chunk| pass(&mut all, chunk, Phase::Forward, &scalars));
        (0..count).rev().for_each(|chunk| pass(&mut all, chunk, Phase::Backward, &scalars));
        if splits_weights {
            (0..count).for_each(|chunk| pass(&mut all, chunk, Phase::Weights, &scalars));
        }
        all.iter().flat_map(gradients).collect()
    }
}

fn set_parameters(run: &Bound) {
    for parameter in &run.plan.parameters {
        run.set_parameter(parameter, &weights(&parameter.name, &parameter.spec.shape.0));
    }
}

fn gradients(run: &Bound) -> Gradients {
    run.plan.parameters.iter().map(|parameter| (parameter.name.clone(), run.gradient(parameter))).collect()
}

/// What one chunk does, and what it sends.
fn pass(stages: &mut [Bound], chunk: usize, phase: Phase, scalars: &Scalars) {
    let own = chunk % stages.len();
    let is_it = |pass: &&dltrain::plan::Pass| (pass.chunk, pass.phase) == (chunk, phase);
    let steps = stages[own].plan.passes.iter().find(is_it).unwrap().steps.clone();
    stages[own].run(steps.clone(), scalars);
    let memory = |stage: &Bound, edge: &dltrain::plan::Edge| {
        stage.regions.arena.slice(edge.place.offset, edge.place.bytes)
    };
    for edge in stages[own].plan.edges.clone().iter().filter(|edge| edge.sends && steps.contains(&edge.step))
    {
        let other = &stages[edge.peer];
        let there = other.plan.edges.iter().find(|to| to.number == edge.number && !to.sends).unwrap();
        let mut bytes = vec![0; edge.place.bytes];
        memory(&stages[own], edge).read(&mut bytes);
        memory(other, there).write(&bytes);
    }
}

/// The largest difference of two sets of gradients, as a share of the largest number in either.
fn apart(a: &Gradients, b: &Gradients) -> f64 {
    assert!(a.keys().eq(b.keys()), "{:?} and {:?}", a.keys(), b.keys());
    let numbers = |of: &Gradients| of.values().flatten().map(|&v| f64::from(v)).collect::<Vec<_>>();
    let [a, b] = [a, b].map(numbers);
    assert!(a.iter().chain(&b).all(|v| v.is_finite()), "not finite");
    let largest = a.iter().chain(&b).fold(1e-6f64, |most, v| most.max(v.abs()));
    a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max) / largest
}

fn bits(of: &Gradients) -> Vec<(&String, Vec<u32>)> {
    of.iter().map(|(name, numbers)| (name, numbers.iter().map(|v| v.to_bits()).collect())).collect()
}

/// Two devices, whose sums have other orders. Where rounding decides whether a number is above 0, other images show
/// that they agree.
fn agree(graph: &Graph, devices: [&dyn Device; 2], bound: f64) {
    let of = |turn: usize| {
        let [a, b] = devices.map(|device| Step { device, turn }.whole(graph).1);
        apart(&a, &b)
    };
    let found: Vec<f64> = (0..3).map(of).take_while(|apart| *apart > bound).collect();
    assert!(found.len() < 3, "gradients are apart by {found:?} of the largest");
}

/// The loss's slope in a direction through all parameters is what their gradients say. From slopes over steps h and h/2
/// the error of the better one is known: it is a third of their difference where the step is small, and less than all
/// of it otherwise; a loss of 2 has 2⁻²³ of rounding for each of some layers, over a step of 2⁻⁶.
fn is_the_slope(graph: &Graph) {
    let step = Step { device: &Reference, turn: 0 };
    let (mut run, found) = step.whole(graph);
    let (forward, scalars) = (run.plan.forward_steps, step.scalars(graph.batch()));
    let parameters = run.plan.parameters.clone();
    let way = |name: &str| weights(&format!("{name}.way"), &[1, found[name].len()]);
    let length =
        parameters.iter().flat_map(|p| way(&p.name)).map(|v| f64::from(v).powi(2)).sum::<f64>().sqrt();
    let each = |p: &dltrain::plan::Parameter| {
        let along = way(&p.name).into_iter().zip(&found[&p.name]);
        along.map(|(way, &gradient)| f64::from(way) * f64::from(gradient)).sum::<f64>() / length
    };
    let expected: f64 = parameters.iter().map(each).sum();
    let mut at = |h: f64| {
        for p in &parameters {
            let start = weights(&p.name, &p.spec.shape.0);
            let moved = start
                .iter()
                .zip(way(&p.name))
                .map(|(x, way)| (f64::from(*x) + h * f64::from(way) / length) as f32);
            run.set_parameter(p, &moved.collect::<Vec<_>>());
        }
        run.run(0..forward, &scalars);
        run.loss()
    };
    let mut slope = |h: f64| (at(h) - at(-h)) / (2.0 * h);
    let [rough, fine] = [1.0 / 32.0, 1.0 / 64.0].map(&mut slope);
    let best = fine + (fine - rough) / 3.0;
    let allowed = (fine - rough).abs() + 1e-2 * expected.abs() + 3e-4;
    assert!(
        (best - expected).abs() <= allowed,
        "the loss has a slope of {best} ({rough}, {fine}), not {expected}"
    );
}

/// Cut before each layer where that can be, over two ranks and three, which have several chunks each; in three, with
/// weights' gradients apart, as schedules have it; and with activations that are computed again.
fn stages_have_the_bits(graph: &Graph, device: &dyn Device) {
    let step = Step { device, turn: 0 };
    let (_, expected) = step.whole(graph);
    let same = |found: &Gradients, how: &str| assert!(bits(found) == bits(&expected), "{how}: other bits");
    same(&step.whole(&graph.clone().recompute()).1, "computed again");
    let compiled = Compiled::for_stages(graph.clone(), device).unwrap();
    let possible = compiled.possible_cuts().unwrap();
    let learned: Vec<&str> = Stages::layers(graph);
    assert!(possible.iter().all(|cut| learned.contains(&cut.as_str())));
    for (ranks, splits_weights) in [(2, false), (3, false), (3, true)] {
        // Where weights have passes of their own, a stage is one chunk.
        let count = if splits_weights { ranks - 1 } else { possible.len() };
        if possible.len() + 1 < ranks {
            continue;
        }
        let cuts = (1..=count).map(|nth| possible[nth * possible.len() / count - 1].clone()).collect();
        let stages = Stages { ranks, cuts };
        let how = format!("{ranks} ranks cut before {:?}, weights apart: {splits_weights}", stages.cuts);
        same(&step.staged(graph, &compiled, (&stages, splits_weights)), &how);
        if ranks == 2 {
            let again =
                Compiled::for_stages(stages.recompute(graph.clone(), |_| 2).unwrap(), device).unwrap();
            same(&step.staged(graph, &again, (&stages, false)), &format!("{how}, computed again"));
        }
    }
}

/// Types as devices have ops for them: what an op makes of each number, or of numbers side by side, is of their type.
fn has_its_types(graph: &Graph) {
    for node in &graph.nodes {
        let dtype = |id: &dltrain::graph::TensorId| graph.tensor(*id).spec.dtype;
        let wanted = dtype(&node.outputs[0]);
        let alike = match node.op {
            Op::Add { .. }
            | Op::Concat { .. }
            | Op::Backward(BackwardOp::Activation(_))
            | Op::Backward(BackwardOp::Softmax) => node.inputs.len(),
            Op::BatchNorm(_) | Op::LayerNorm { .. } | Op::LocalResponseNorm(_) | Op::Activation(_) => 1,
            Op::Backward(BackwardOp::BatchNorm(_))
            | Op::Backward(BackwardOp::LayerNorm { .. })
            | Op::Backward(BackwardOp::LocalResponseNorm(_)) => 2,
            Op::MaxPool(_) | Op::AvgPool(_) | Op::AdaptiveAvgPool | Op::Backward(BackwardOp::AvgPool(_)) => 1,
            Op::Backward(BackwardOp::MaxPool(_))
            | Op::Backward(BackwardOp::AdaptiveAvgPool)
            | Op::Softmax => 1,
            Op::Dropout { .. } | Op::Backward(BackwardOp::Dropout { .. }) | Op::Pad { .. } | Op::Reshape => 1,
            _ => 0,
        };
        let all: Vec<DType> = node.inputs[..alike].iter().map(dtype).collect();
        assert!(
            all.iter().all(|dtype| *dtype == wanted),
            "{} {:?}: {all:?} to {wanted:?}",
            node.name,
            node.op
        );
    }
    let is_f32 = |role| graph.with_role(role).all(|(_, tensor)| tensor.spec.dtype == DType::F32);
    assert!([Role::Parameter, Role::Gradient, Role::Metric].into_iter().all(is_f32));
}

/// In bf16 numbers have eight bits; a network's of at most twenty layers lose five of them, but for what cancels.
fn in_bf16(network: &Network) {
    let graph = (network.build)(network.batch, true).unwrap().simplify().in_bf16().differentiate();
    has_its_types(&graph);
    stages_have_the_bits(&graph, &Reference);
    let cpu = Cpu::new(1).unwrap();
    if cpu.has_bf16().is_ok() {
        stages_have_the_bits(&graph, &cpu);
        agree(&graph, [&Reference, &cpu], 0.25);
    } else {
        println!("SKIPPED: this CPU has no bf16 arithmetic");
    }
}

fn check(network: &Network, name: &str, files: &Files) {
    let graph = (network.build)(network.batch, true).unwrap().simplify().differentiate();
    let learned = graph.with_role(Role::Parameter).count();
    assert_eq!(graph.with_role(Role::Gradient).count(), learned, "every parameter has a gradient");
    let cpu = Cpu::new(1).unwrap();
    agree(&graph, [&Reference, &cpu], 1e-3);
    if network.is_smooth {
        is_the_slope(&graph);
    }
    stages_have_the_bits(&graph, &cpu);
    in_bf16(network);
    let build = |batch: usize| (network.build)(batch, false);
    let ours = files.write(name, &build, false);
    let (again, theirs) = files.read(name);
    let (found, allowed) = (numbers_apart(name, &theirs, &ours), files.allow_rounding(name, &build, &ours));
    assert!(found <= allowed, "{name}: {found} of the largest apart, {allowed} allowed");
    // A number by itself is no weight to an importer.
    let is_single = |(_, tensor): (_, &Tensor)| tensor.spec.shape.elements() == 1;
    if !graph.with_role(Role::Parameter).any(is_single) {
        assert_eq!(again.parameter_count(), graph.parameter_count(), "{name}");
    }
}

fn draw(drawn: &impl Strategy<Value = Drawn>, cases: u32, seed: u8) {
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 300, ..Config::default() };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]);
    let (mut runner, files, number) =
        (TestRunner::new_with_rng(config, rng), Files::new(), std::cell::Cell::new(0));
    let run = runner.run(drawn, |drawn| {
        number.set(number.get() + 1);
        let build = |batch: usize, trains: bool| drawn.build(batch, trains);
        // One that no batch of images fits, as one of too small images.
        if build(drawn.batch, true).is_err() {
            return Err(TestCaseError::reject("no network"));
        }
        let network = Network { batch: drawn.batch, is_smooth: drawn.is_smooth, build: &build };
        check(&network, &format!("drawn{:04}", number.get()), &files);
        Ok(())
    });
    run.unwrap_or_else(|failure| panic!("{failure}"));
    files.are_run();
    println!("{} networks were drawn by seed {seed}", number.get());
}

#[test]
fn what_was_wrong_once_agrees() {
    let files = Files::new();
    for ((name, image, scores), batch) in ONCE.into_iter().flat_map(|once| [1, 3].map(|batch| (once, batch)))
    {
        let build = |batch: usize, trains: bool| once(image, scores, batch, trains);
        check(
            &Network { batch, is_smooth: name != "block", build: &build },
            &format!("{name}{batch}"),
            &files,
        );
    }
    files.are_run();
}

#[test]
fn all_that_is_computed_of_a_network_agrees() {
    draw(&any_network(), 24, 0);
}

#[test]
fn all_that_is_computed_of_a_network_of_cubes_agrees() {
    draw(&any_network_of_cubes(), 12, 0);
}

mod full {
    use super::*;
    use crate::support::job::{finish, job, only_message};

    use proptest::strategy::ValueTree;
    use safetensors::SafeTensors;

    #[test]
    #[ignore = "minutes"]
    fn thousands() {
        (1..=15).for_each(|seed| draw(&any_network(), 150, seed));
        (16..=20).for_each(|seed| draw(&any_network_of_cubes(), 150, seed));
    }

    /// By jobs whose two and three ranks have some rows of each image: what a step changes is what it changes on one
    /// rank, but for rounding; or they are refused for a reason.
    #[test]
    #[ignore = "minutes"]
    fn parts_of_images_come_to_the_same() {
        let (files, rng) = (Files::new(), TestRng::from_seed(RngAlgorithm::ChaCha, &[99; 32]));
        let mut runner = TestRunner::new_with_rng(Config::default(), rng);
        let mut trained = 0;
        for number in 0..40 {
            let drawn = match number % 4 {
                3 => any_network_of_cubes().new_tree(&mut runner).unwrap().current(),
                _ => any_network().new_tree(&mut runner).unwrap().current(),
            };
            if drawn.build(drawn.batch, true).is_err() {
                continue;
            }
            files.write_with(&format!("{number}"), &|batch| drawn.build(batch, false), (false, &weights));
            let train = |parts: usize, seed: usize| {
                let [model, kept, results] =
                    ["onnx", "safetensors", "h5"].map(|kind| files.path(&format!("{number}.{kind}")));
                let words = format!(
                    "--batch {} --steps 1 --warmup 0 --threads 1 --optimizer sgd --lr 0.1 --seed {seed} \
                     --spatial {parts}",
                    drawn.batch
                );
                let paths = [("--model", &model), ("--save-weights", &kept), ("--results", &results)];
                let paths = paths.map(|(flag, path)| [flag, path.to_str().unwrap()]);
                let flags: Vec<&str> = words.split_whitespace().chain(paths.into_iter().flatten()).collect();
                let done = finish(job(&[(parts, &flags)]));
                let bytes = match done.success {
                    true => Ok(std::fs::read(&kept).unwrap()),
                    false => Err(only_message(&done)),
                };
                // Another run has these names.
                let _ = [kept, results].map(std::fs::remove_file);
                bytes
            };
            for parts in [2, 3] {
                let apart = |seed: usize| Ok(changes_apart(&train(1, seed)?, &train(parts, seed)?));
                // Where rounding decides whether a number is above 0, other images show that they agree.
                let found: Result<Vec<f64>, String> =
                    (1..4).map(apart).take_while(|apart| !matches!(apart, Ok(..=1e-3))).collect();
                match found {
                    Ok(found) => assert!(found.len() < 3, "{parts} of {drawn:?}: {found:?}"),
                    Err(said) => assert!(said.contains("--spatial"), "{parts} of {drawn:?}: {said}"),
                }
            }
            trained += 1;
        }
        println!("{trained} networks");
    }

    /// How far two sets of weights are apart, as a share of the largest change since they were written.
    fn changes_apart(a: &[u8], b: &[u8]) -> f64 {
        let [a, b] = [a, b].map(|bytes| SafeTensors::deserialize(bytes).unwrap());
        let (mut most, mut apart) = (1e-6, 0.0);
        for (name, of_a) in a.tensors() {
            let of_b = b.tensor(&name).unwrap();
            let numbers = |bytes: &[u8]| -> Vec<f32> {
                bytes.as_chunks::<4>().0.iter().map(|&word| f32::from_le_bytes(word)).collect()
            };
            let ([a, b], start) = ([&of_a, &of_b].map(|of| numbers(of.data())), weights(&name, of_a.shape()));
            for ((a, b), start) in a.into_iter().zip(b).zip(start) {
                most = f64::max(most, f64::from((a - start).abs()));
                apart = f64::max(apart, f64::from((a - b).abs()));
            }
        }
        apart / most
    }
}
