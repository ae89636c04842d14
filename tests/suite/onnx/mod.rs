//! Networks from ONNX files: what a user of `--model FILE.onnx` relies on.
//!
//! - a file of PyTorch's, whichever of its exporters wrote it and in which mode, is the network that PyTorch has: its
//!   loss and all its gradients;
//! - an imported resnet50 is planned as the zoo's;
//! - what ops become, and what is refused (`nodes`, and of several images together `mixing`);
//! - flags work as for other networks, ranks must have one file, and a run goes on with no other.
//!
//! tests/fixtures/make_onnx.py makes the files, with PyTorch. `zoo` is for files that others make.

mod mixing;
pub mod nodes;
mod sequences;
mod shared;
mod zoo;

use crate::support::{bound, job};

use std::path::{Path, PathBuf};

use bound::Bound;
use dltrain::device::onednn::Cpu;
use dltrain::device::reference::Reference;
use dltrain::device::{Device, Scalars};
use dltrain::graph::{Graph, Op};
use dltrain::model::{self, Model};
use dltrain::plan::{Options, Plan, plan};
use job::{SECONDS, finish, job, refused, run, series};
use serde_json::Value;

const DIGITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/data/digits");

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/onnx").join(name)
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

/// The masks of two frameworks cannot be the same.
fn without_dropout(mut graph: Graph) -> Graph {
    for node in &mut graph.nodes {
        if let Op::Dropout { p, .. } = &mut node.op {
            *p = 0.0;
        }
    }
    graph
}

/// Every layer of the eight on the way adds a rounding of 2⁻²⁴ in sums of some 72 products (of which the root, 9,
/// remains where they differ in sign), forward and backward: 9e-6 of the largest number of a tensor.
const SMALL: f64 = 16.0 * 9.0 * ROUNDING;
/// Some 40 steps of which one after the other reads the next, forward and backward, in sums of at most 32 products:
/// 3e-5.
const PARTS: f64 = 80.0 * 6.0 * ROUNDING;
const ROUNDING: f64 = 1.0 / 16_777_216.0;

/// The loss and the gradients of a file's network from the file's weights, against PyTorch's in float64. Nothing here
/// is decided by a rounding: the images are such that no ReLU is that close to 0.
fn as_pytorch(name: &str, numbers_of: &str, bound: f64, device: &dyn Device) {
    let expected: Value = serde_json::from_slice(&std::fs::read(fixture(numbers_of)).unwrap()).unwrap();
    let model = model::open(&fixture(name)).unwrap();
    let file = model.file().unwrap();
    assert_eq!(model.classes, 5, "{name}");
    let graph = without_dropout(model.build(4, model.image, model.classes).unwrap());
    let mut run = Bound::new(device, graph.simplify().differentiate(), 1 << 20);
    let images: Vec<f32> = numbers(&expected["images"]).iter().map(|&v| v as f32).collect();
    let labels: Vec<i32> = numbers(&expected["labels"]).iter().map(|&v| v as i32).collect();
    run.set_batch(&images, &labels);
    for parameter in &run.plan.parameters {
        run.set_parameter(parameter, &file.values(&parameter.name).unwrap());
    }
    let steps = run.program.steps.len();
    run.run(0..steps, &Scalars { gradient_scale: 0.25, ..Scalars::default() });
    let loss = expected["loss"].as_f64().unwrap();
    assert!((run.loss() - loss).abs() <= bound * loss, "{name}: loss {} and {loss}", run.loss());
    let gradients = expected["gradients"].as_object().unwrap();
    assert_eq!(gradients.len(), run.plan.parameters.len(), "{name}: other parameters than PyTorch's");
    for parameter in &run.plan.parameters {
        let called = expected["called"][name][&*parameter.name].as_str().unwrap_or(&parameter.name);
        let theirs = gradients.get(called).unwrap_or_else(|| panic!("{name}: {called}"));
        let (theirs, ours) = (numbers(theirs), run.gradient(parameter));
        let largest = theirs.iter().fold(0.0, |largest: f64, v| largest.max(v.abs()));
        for (ours, theirs) in ours.iter().zip(theirs) {
            let error = (f64::from(*ours) - theirs).abs();
            assert!(error <= bound * largest, "{name} {}: {ours} and {theirs}", parameter.name);
        }
    }
}

#[test]
fn a_file_is_the_network_that_pytorch_has() {
    let cpu = Cpu::new(1).unwrap();
    // In `fixed` all shapes are written out for a batch of two.
    for name in ["training.onnx", "fixed.onnx"] {
        as_pytorch(name, "small.json", SMALL, &cpu);
        as_pytorch(name, "small.json", SMALL, &Reference);
    }
}

/// What vit, swin, maxvit and convnext are made of, as an exporter spells it out.
#[test]
fn a_file_of_attention_is_the_network_that_pytorch_has() {
    as_pytorch("parts.onnx", "parts.json", PARTS, &Cpu::new(1).unwrap());
    as_pytorch("parts.onnx", "parts.json", PARTS, &Reference);
    let model = model::open(&fixture("parts.onnx")).unwrap();
    let graph = model.build(4, model.image, model.classes).unwrap();
    let drops = |node: &dltrain::graph::Node| matches!(node.op, Op::Dropout { p: 0.25, whole: true, .. });
    assert_eq!(graph.nodes.iter().filter(|node| drops(node)).count(), 1);
    let said = "learns mixed, places, scale, ways: its exporter does not say whether they are parameters or buffers, \
                and one with dynamo=True does";
    assert_eq!(model.file().unwrap().notes(true).collect::<Vec<_>>(), [said]);
    assert_eq!(model.file().unwrap().notes(false).next(), None);
}

/// Some 90 steps one after the other, of which those of softplus are 25, in sums of at most 72 products, of which the
/// root is 9.
const HABITS: f64 = 180.0 * 9.0 * ROUNDING;

/// By both of PyTorch's exporters, with no other argument than a file or for training, for one image and for two: a
/// token for the class, maxima, rows, paddings with a number, a shared weight, a computed one, attention with images
/// along the second axis. They are trained with four.
#[test]
fn a_file_for_a_fixed_batch_is_the_network_that_pytorch_has() {
    let cpu = Cpu::new(1).unwrap();
    for (name, numbers_of) in [("plain", "plain.json"), ("whole", "whole.json")] {
        for batch in [1, 2] {
            as_pytorch(&format!("{name}-{batch}.onnx"), numbers_of, HABITS, &cpu);
        }
        as_pytorch(&format!("{name}-2.onnx"), numbers_of, HABITS, &Reference);
    }
}

/// What is computed again has the same bits, and a weight that is computed or shared is one in bf16, too.
#[test]
fn a_file_for_a_fixed_batch_is_computed_again_and_in_bf16() {
    for name in ["plain-2.onnx", "whole-1.onnx"] {
        let model = model::open(&fixture(name)).unwrap();
        let cpu = Cpu::new(1).unwrap();
        let gives = |graph: Graph| {
            let mut run = Bound::new(&cpu, graph, 1 << 20);
            run.set_batch(
                &(0..768).map(|place| (place % 17) as f32 / 8.0 - 1.0).collect::<Vec<_>>(),
                &[0, 3, 1, 4],
            );
            for parameter in &run.plan.parameters {
                run.set_parameter(parameter, &model.file().unwrap().values(&parameter.name).unwrap());
            }
            run.run(0..run.program.steps.len(), &Scalars { gradient_scale: 0.25, ..Scalars::default() });
            let all = run.plan.parameters.iter().map(|parameter| run.gradient(parameter)).collect::<Vec<_>>();
            (run.loss(), all)
        };
        let graph = || without_dropout(model.build(4, model.image, model.classes).unwrap()).simplify();
        let plain = gives(graph().differentiate());
        assert_eq!(gives(graph().differentiate().recompute()), plain, "{name}");
        if cpu.has_bf16().is_err() {
            println!("SKIPPED: this CPU has no bf16 arithmetic");
            continue;
        }
        let narrow = gives(graph().in_bf16().differentiate());
        assert!((narrow.0 - plain.0).abs() <= 90.0 / 512.0 * plain.0, "{} and {}", narrow.0, plain.0);
        assert!(narrow.1.iter().flatten().all(|number| number.is_finite()), "{name}");
    }
}

/// Some 30 steps one after the other, in sums of at most 288 products, of which the root is 17: 6e-5.
const SIZES: f64 = 60.0 * 17.0 * ROUNDING;

/// Transposed convolutions, and images in other sizes, in every way in which PyTorch exports them.
#[test]
fn a_file_of_images_that_grow_is_the_network_that_pytorch_has() {
    as_pytorch("sizes.onnx", "sizes.json", SIZES, &Cpu::new(1).unwrap());
    as_pytorch("sizes.onnx", "sizes.json", SIZES, &Reference);
}

/// What is computed again has the same bits, and bf16 differs by its roundings: 40 of 2⁻⁹ each.
#[test]
fn images_that_grow_are_computed_again_and_in_bf16() {
    let cpu = Cpu::new(1).unwrap();
    let expected: Value = serde_json::from_slice(&std::fs::read(fixture("sizes.json")).unwrap()).unwrap();
    let model = model::open(&fixture("sizes.onnx")).unwrap();
    let graph = || without_dropout(model.build(4, model.image, model.classes).unwrap()).simplify();
    let gives = |graph: Graph| {
        let mut run = Bound::new(&cpu, graph, 1 << 20);
        let images: Vec<f32> = numbers(&expected["images"]).iter().map(|&v| v as f32).collect();
        let labels: Vec<i32> = numbers(&expected["labels"]).iter().map(|&v| v as i32).collect();
        run.set_batch(&images, &labels);
        for parameter in &run.plan.parameters {
            run.set_parameter(parameter, &model.file().unwrap().values(&parameter.name).unwrap());
        }
        run.run(0..run.program.steps.len(), &Scalars { gradient_scale: 0.25, ..Scalars::default() });
        let all = run.plan.parameters.iter().map(|parameter| run.gradient(parameter)).collect::<Vec<_>>();
        (run.loss(), all)
    };
    let plain = gives(graph().differentiate());
    let again = graph().differentiate().recompute();
    let is_again = |id: &dltrain::graph::NodeId| matches!(again.node(*id).op, Op::ConvBackwardData(_));
    assert!(again.recomputed.iter().any(is_again), "a transposed convolution is computed again");
    assert_eq!(gives(again.clone()), plain);
    if cpu.has_bf16().is_err() {
        return println!("SKIPPED: this CPU has no bf16 arithmetic");
    }
    let narrow = gives(graph().in_bf16().differentiate());
    assert!((narrow.0 - plain.0).abs() <= 40.0 / 512.0 * plain.0, "{} and {}", narrow.0, plain.0);
    for (narrow, plain) in narrow.1.iter().zip(&plain.1) {
        let norm = |of: &mut dyn Iterator<Item = f32>| of.map(|v| f64::from(v).powi(2)).sum::<f64>().sqrt();
        let apart = norm(&mut narrow.iter().zip(plain).map(|(a, b)| a - b));
        assert!(apart <= 80.0 / 512.0 * norm(&mut plain.iter().copied()), "{apart}");
    }
}

/// Each of some 40 steps one after the other rounds to 2⁻⁹.
#[test]
fn a_file_of_attention_is_computed_in_bf16_too() {
    let cpu = Cpu::new(1).unwrap();
    if cpu.has_bf16().is_err() {
        return println!("SKIPPED: this CPU has no bf16 arithmetic");
    }
    let expected: Value = serde_json::from_slice(&std::fs::read(fixture("parts.json")).unwrap()).unwrap();
    let model = model::open(&fixture("parts.onnx")).unwrap();
    let graph = without_dropout(model.build(4, model.image, model.classes).unwrap());
    let mut run = Bound::new(&cpu, graph.simplify().in_bf16().differentiate(), 1 << 20);
    let images: Vec<f32> = numbers(&expected["images"]).iter().map(|&v| v as f32).collect();
    let labels: Vec<i32> = numbers(&expected["labels"]).iter().map(|&v| v as i32).collect();
    run.set_batch(&images, &labels);
    for parameter in &run.plan.parameters {
        run.set_parameter(parameter, &model.file().unwrap().values(&parameter.name).unwrap());
    }
    let steps = run.program.steps.len();
    run.run(0..steps, &Scalars { gradient_scale: 0.25, ..Scalars::default() });
    let loss = expected["loss"].as_f64().unwrap();
    assert!((run.loss() - loss).abs() <= 40.0 / 512.0 * loss, "{} and {loss}", run.loss());
    let is_sound = |parameter| run.gradient(parameter).iter().all(|number| number.is_finite());
    assert!(run.plan.parameters.iter().all(is_sound));
}

/// What is normalised by running statistics then is part of the convolution, so that the loss in training is that of
/// PyTorch's logits in evaluation. `newer` is the newer exporter's.
#[test]
fn an_export_in_inference_mode_gives_the_logits_of_evaluation() {
    let expected: Value = serde_json::from_slice(&std::fs::read(fixture("small.json")).unwrap()).unwrap();
    let (images, labels) = (numbers(&expected["images"]), numbers(&expected["labels"]));
    let logits = numbers(&expected["logits"]);
    let loss_of = |(scores, label): (&[f64], &f64)| {
        scores.iter().map(|score| score.exp()).sum::<f64>().ln() - scores[*label as usize]
    };
    let loss = logits.chunks(5).zip(&labels).map(loss_of).sum::<f64>() / 4.0;
    for name in ["inference.onnx", "newer.onnx"] {
        let model = model::open(&fixture(name)).unwrap();
        let graph = model.build(4, model.image, model.classes).unwrap().simplify().differentiate();
        let mut run = Bound::new(&Reference, graph, 1 << 20);
        let images: Vec<f32> = images.iter().map(|&v| v as f32).collect();
        run.set_batch(&images, &labels.iter().map(|&v| v as i32).collect::<Vec<_>>());
        for parameter in &run.plan.parameters {
            run.set_parameter(parameter, &model.file().unwrap().values(&parameter.name).unwrap());
        }
        run.run(0..run.program.forward_steps, &Scalars::default());
        assert!((run.loss() - loss).abs() <= SMALL * loss, "{name}: loss {} and {loss}", run.loss());
    }
}

/// A normalisation behind a convolution, which its exporter has made one with it; and dropout is left out.
#[test]
fn what_an_export_in_inference_mode_left_out_is_said() {
    let model = model::open(&fixture("inference.onnx")).unwrap();
    let graph = model.build(4, model.image, model.classes).unwrap();
    assert!(!graph.nodes.iter().any(|node| matches!(node.op, Op::BatchNorm(_) | Op::Dropout { .. })));
    let notes: Vec<&String> = model.file().unwrap().notes(true).collect();
    assert!(notes.len() == 1 && notes[0].contains("no dropout"), "{notes:?}");
    assert_eq!(
        model.file().unwrap().notes(false).next(),
        None,
        "whoever asks for classes hears nothing of it"
    );
    let training = model::open(&fixture("training.onnx")).unwrap();
    assert_eq!(training.file().unwrap().notes(true).next(), None);
    let graph = training.build(4, training.image, training.classes).unwrap();
    let norm =
        graph.nodes.iter().find_map(|node| if let Op::BatchNorm(norm) = node.op { Some(norm) } else { None });
    let norm = norm.unwrap();
    assert_eq!((norm.momentum, norm.epsilon), (0.2, 1e-3));
    let dropout = |node: &dltrain::graph::Node| matches!(node.op, Op::Dropout { p: 0.25, .. });
    assert!(graph.nodes.iter().any(dropout));
}

/// TensorFlow and Keras have channels last, and their exporters write orders of axes before and behind what ONNX has
/// first, or pad one side. Nothing is left of TensorFlow's; of Keras's 8 what stands around its padding, its clipping
/// and its mean.
#[test]
fn a_file_with_channels_last_is_the_network_that_its_framework_has() {
    let expected: Value =
        serde_json::from_slice(&std::fs::read(fixture("channels_last.json")).unwrap()).unwrap();
    let images: Vec<f32> = numbers(&expected["images"]).iter().map(|&v| v as f32).collect();
    for (name, orders) in [("tf2onnx.onnx", 0), ("keras-torch.onnx", 5)] {
        let model = model::open(&fixture(name)).unwrap();
        assert_eq!((model.image, model.classes), ([3, 9, 9].into(), 5), "{name}");
        let graph = model.build_to_test(4, model.image, model.classes).unwrap();
        let found = graph.nodes.iter().filter(|node| matches!(node.op, Op::Permute(_))).count();
        assert!(found <= orders, "{name}: {found} orders of axes");
        let mut run = Bound::new(&Reference, graph.for_evaluation().simplify(), 1 << 20);
        run.set_batch(&images, &[0; 4]);
        for parameter in &run.plan.parameters {
            run.set_parameter(parameter, &model.file().unwrap().values(&parameter.name).unwrap());
        }
        run.run(0..run.program.steps.len(), &Scalars::default());
        for (scores, theirs) in run.logits().chunks(5).zip(numbers(&expected["probabilities"]).chunks(5)) {
            let sum: f64 = scores.iter().map(|&score| f64::from(score).exp()).sum();
            for (score, theirs) in scores.iter().zip(theirs) {
                let ours = f64::from(*score).exp() / sum;
                assert!((ours - theirs).abs() <= SMALL * 8.0, "{name}: {ours} and {theirs}");
            }
        }
        let place = Place(tempfile::tempdir().unwrap());
        place.run(1, &fixture(name), "--steps 2 --warmup 0 --results @a.h5");
        let losses = series(Path::new(&place.path("a.h5")), "steps/loss");
        assert!(losses.len() == 2 && losses[1] < losses[0], "{name}: {losses:?}");
    }
}

/// resnet50.onnx says that its weights are in a file of zeros, which is made here.
#[test]
fn an_imported_resnet50_is_planned_as_the_zoos() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("net.onnx");
    std::fs::copy(fixture("resnet50.onnx"), &path).unwrap();
    let largest = 4 * 2048 * 1000;
    std::fs::File::create(place.path().join("zeros.bin")).unwrap().set_len(2 * largest).unwrap();
    let of = |net: &Model| {
        let graph = net.build(2, [3, 64, 64], 1000).unwrap().simplify().differentiate();
        plan(graph, &Reference, &Options::whole(1 << 20)).unwrap()
    };
    let [ours, theirs] = [of(&model::open(&path).unwrap()), of(&model::find("resnet50").unwrap())];
    assert_eq!(steps(&ours), steps(&theirs));
    let parameters =
        |plan: &Plan| plan.parameters.iter().map(|p| (p.name.clone(), p.offset)).collect::<Vec<_>>();
    assert_eq!(parameters(&ours), parameters(&theirs));
    assert_eq!(format!("{:?}", ours.sizes), format!("{:?}", theirs.sizes));
}

/// Each step's op with the shapes of what it reads and gives.
fn steps(plan: &Plan) -> Vec<String> {
    let graph = &plan.graph;
    let shape = |id: &dltrain::graph::TensorId| graph.tensor(*id).spec.shape.to_string();
    let of = |node: &dltrain::graph::Node| {
        let [inputs, outputs] =
            [&node.inputs, &node.outputs].map(|ids| ids.iter().map(shape).collect::<Vec<_>>());
        format!("{:?} {inputs:?} {outputs:?}", node.op)
    };
    plan.steps.iter().map(|step| step.node.map_or("reorder".into(), |id| of(graph.node(id)))).collect()
}

// ---- runs ----

struct Place(tempfile::TempDir);

impl Place {
    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().into()
    }

    /// Flags for the network of a file; @NAME is a file here.
    fn flags(&self, network: &Path, flags: &str) -> Vec<String> {
        let flags = flags.split(' ').map(|flag| match flag.strip_prefix('@') {
            Some(name) => self.path(name),
            None => flag.into(),
        });
        ["--model".into(), network.to_str().unwrap().into(), "--batch".into(), "16".into()]
            .into_iter()
            .chain(flags)
            .collect()
    }

    fn run(&self, ranks: usize, network: &Path, flags: &str) -> String {
        let flags = self.flags(network, flags);
        run(ranks, &flags.iter().map(String::as_str).collect::<Vec<_>>())
    }

    fn refused(&self, network: &Path, flags: &str) -> String {
        let flags = self.flags(network, flags);
        let done = finish(job(&[(2, &flags.iter().map(String::as_str).collect::<Vec<_>>())]));
        assert!(!done.success && done.took < SECONDS, "{}", done.stdout);
        assert_eq!(done.stderr.matches("error: ").count(), 1, "{}", done.stderr);
        done.stderr
    }
}

#[test]
fn a_file_is_trained_tested_and_gone_on_with() {
    let place = Place(tempfile::tempdir().unwrap());
    let network = fixture("training.onnx");
    let data = format!("--data {DIGITS} --classes 10 --reset-head");
    let common = format!("{data} --lr 0.01 --seed 3");
    place.run(2, &network, &format!("{common} --epochs 2 --results @a.h5 --save-weights @w.safetensors"));
    let losses = series(Path::new(&place.path("a.h5")), "epochs/test_loss");
    assert!(losses[1] < losses[0] && losses[0] < 10f64.ln(), "{losses:?}: it learns");
    // What was saved has the names of the file's tensors.
    let tests = format!("--data {DIGITS} --classes 10 --evaluate --init-from @w.safetensors");
    let tested = place.run(2, &network, &tests);
    assert!(tested.contains(&format!("test loss {:.9}", losses[1])), "{tested}, not {losses:?}");
    let tests = place.flags(&network, &tests.replace(" --evaluate", ""));
    let tests: Vec<&str> = std::iter::once("evaluate").chain(tests.iter().map(String::as_str)).collect();
    assert_eq!(run(2, &tests), tested);
    for flags in
        ["--freeze backbone --recompute", "--fresh-weights --dry-run", "--freeze conv1,bn1 --sync-bn"]
    {
        let data = if flags.contains("fresh") { data.replace(" --reset-head", "") } else { data.clone() };
        place.run(2, &network, &format!("{data} --steps 2 {flags} --results @{}.h5", flags.len()));
    }
    // The classes of the file's own head are others.
    let said = place.refused(&network, &format!("--data {DIGITS} --classes 10 --results @c.h5"));
    assert!(
        said.contains("fc2.weight: is [5, 10] in the file and [10, 10]") && said.contains("--reset-head"),
        "{said}"
    );
    let said = place.refused(&network, "--image-size 3 --results @c.h5");
    assert!(said.contains("the samples are too small"), "{said}");
    for flags in ["--model mnist_small --fresh-weights", "--model mnist_small --reset-head"] {
        let flags: Vec<&str> = flags.split(' ').collect();
        let said = refused(&[(1, &flags)]);
        assert!(said.contains("--model FILE.onnx"), "{said}");
    }
}

#[test]
fn ranks_and_runs_that_go_on_have_one_file() {
    let place = Place(tempfile::tempdir().unwrap());
    let network = place.0.path().join("net.onnx");
    std::fs::copy(fixture("training.onnx"), &network).unwrap();
    let flags = "--steps 2 --warmup 0 --checkpoint @kept --resume auto --results @a.h5";
    place.run(1, &network, flags);
    let record = hdf5::File::open(place.path("a.h5")).unwrap();
    let attribute = record
        .group("config")
        .unwrap()
        .attr("network")
        .unwrap()
        .read_scalar::<hdf5::types::VarLenUnicode>()
        .unwrap();
    assert!(attribute.starts_with("net.onnx, CRC-32 "), "{attribute}");
    drop(record);
    // Another file under the name that the first had.
    std::fs::copy(fixture("fixed.onnx"), &network).unwrap();
    let said = place.refused(&network, &flags.replace("--steps 2", "--steps 4"));
    assert!(said.contains("is the checkpoint of another run: --model net.onnx, CRC-32"), "{said}");
}
