//! Networks from ONNX files: what a user of `--model FILE.onnx` relies on.
//!
//! - a file of PyTorch's, whichever of its exporters wrote it and in which mode, is the network that PyTorch has: its
//!   loss and all its gradients;
//! - an imported resnet50 is planned as the zoo's;
//! - what cannot be trained, and what is no sound file, is refused by one message that names every reason;
//! - flags work as for other networks, ranks must have one file, and a run goes on with no other.
//!
//! tests/fixtures/make_onnx.py makes the files, with PyTorch.

use crate::support::{bound, job};

use std::path::{Path, PathBuf};

use bound::Bound;
use dltrain::device::onednn::Cpu;
use dltrain::device::reference::Reference;
use dltrain::device::{Device, Scalars};
use dltrain::graph::{Graph, Op, Role};
use dltrain::model::onnx::schema::{
    AttributeProto, Dimension, GraphProto, ModelProto, NodeProto, OperatorSetId, StringStringEntryProto,
    TensorProto, TensorShapeProto, TensorType, TypeProto, ValueInfoProto, data_type, kind,
};
use dltrain::model::{self, Model};
use dltrain::plan::{Options, Plan, plan};
use job::{SECONDS, finish, job, refused, run, series};
use prost::Message;
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
    assert_eq!(model.file().unwrap().notes(true).next(), None);
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
            println!("SKIPPED: this CPU multiplies no bf16");
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
    let is_again = |id: &dltrain::graph::NodeId| matches!(again.node(*id).op, Op::Conv2dBackwardData(_));
    assert!(again.recomputed.iter().any(is_again), "a transposed convolution is computed again");
    assert_eq!(gives(again.clone()), plain);
    if cpu.has_bf16().is_err() {
        return println!("SKIPPED: this CPU multiplies no bf16");
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
        return println!("SKIPPED: this CPU multiplies no bf16");
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
        assert_eq!((model.image, model.classes), ([3, 9, 9], 5), "{name}");
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
        plan(graph, &Reference, &Options { fusion_threshold: 1 << 20, training: None, stage: None }).unwrap()
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

// ---- networks of others, for tests/torchvision/zoo.py and nodes.py ----

/// What a network gives, written down for whoever knows what it should: scores in evaluation, the loss in training and
/// the gradient of every parameter, and the loss after a step of gradient descent; or why it is refused. Each line of
/// the file that `DLTRAIN_NETWORKS` names is a directory with `net.onnx`, `images` and `labels` (raw numbers) and
/// `rate`; numbers are written to its `ours`.
#[test]
#[ignore = "a scene"]
fn scene_of_networks() {
    let Some(list) = std::env::var_os("DLTRAIN_NETWORKS") else { return };
    let cpu = Cpu::new(2).unwrap();
    for place in std::fs::read_to_string(list).unwrap().lines().map(Path::new) {
        std::fs::create_dir_all(place.join("ours")).unwrap();
        let attempt = std::panic::AssertUnwindSafe(|| write_what_it_gives(place, &cpu));
        if let Ok(Err(refused)) = std::panic::catch_unwind(attempt) {
            std::fs::write(place.join("ours/refused"), refused).unwrap();
        }
    }
}

fn raw<const N: usize, T>(path: &Path, of: impl Fn([u8; N]) -> T) -> Vec<T> {
    std::fs::read(path).unwrap().as_chunks().0.iter().map(|bytes| of(*bytes)).collect()
}

fn write_what_it_gives(place: &Path, device: &dyn Device) -> Result<(), String> {
    let model = model::open(&place.join("net.onnx")).map_err(|error| error.message)?;
    let images = raw(&place.join("images"), f32::from_le_bytes);
    let labels = raw(&place.join("labels"), i32::from_le_bytes);
    let rate: f32 = std::fs::read_to_string(place.join("rate")).unwrap().trim().parse().unwrap();
    let write = |name: &str, numbers: &[f32]| {
        std::fs::write(place.join("ours").join(name), dltrain::device::memory::bytes_of(numbers)).unwrap();
    };
    let batch = labels.len();
    let values = |name: &str| model.file().unwrap().values(name).unwrap();
    let build = |batch| model.build_to_test(batch, model.image, model.classes);
    let graph = build(batch).map_err(|error| error.message)?;
    std::fs::write(place.join("ours/count"), graph.parameter_count().to_string()).unwrap();
    let scores = |graph: Graph, values: &dyn Fn(&str) -> Vec<f32>| {
        let mut run = Bound::new(device, graph.for_evaluation().simplify(), 1 << 20);
        run.set_batch(&images, &labels);
        run.plan.parameters.iter().for_each(|of| run.set_parameter(of, &values(&of.name)));
        for statistic in &run.plan.statistics {
            let memory = run.statistic(statistic);
            device.upload(dltrain::device::memory::bytes_of(&values(&statistic.name)), &memory).unwrap();
        }
        run.run(0..run.program.steps.len(), &Scalars::default());
        run.logits()
    };
    write("logits", &scores(graph, &values));
    if rate == 0.0 {
        return Ok(());
    }

    let graph = model.build(batch, model.image, model.classes).map_err(|error| error.message)?;
    let mut run = Bound::new(device, without_dropout(graph).simplify().differentiate(), 1 << 20);
    run.set_batch(&images, &labels);
    run.plan.parameters.iter().for_each(|of| run.set_parameter(of, &values(&of.name)));
    let steps = run.program.steps.len();
    run.run(0..steps, &Scalars { gradient_scale: 1.0 / batch as f32, ..Scalars::default() });
    let before = run.loss();
    let mut learned = std::collections::HashMap::new();
    for parameter in &run.plan.parameters {
        let gradient = run.gradient(parameter);
        // TensorFlow's names are paths.
        write(&format!("gradient {}", parameter.name.replace('/', "~")), &gradient);
        let next: Vec<f32> =
            values(&parameter.name).iter().zip(&gradient).map(|(w, g)| w - rate * g).collect();
        run.set_parameter(parameter, &next);
        learned.insert(parameter.name.clone(), next);
    }
    run.run(0..run.program.forward_steps, &Scalars::default());
    write("losses", &[before as f32, run.loss() as f32]);
    drop(run);
    // What it has learned goes back into a file.
    let values = |name: &str| learned.get(name).cloned().unwrap_or_else(|| values(name));
    match dltrain::model::onnx::export::network(build, false, &|name| Ok(values(name))) {
        Ok(bytes) => {
            std::fs::write(place.join("ours/again.onnx"), bytes).unwrap();
            write("logits again", &scores(build(batch).map_err(|error| error.message)?, &values));
        }
        Err(error) => std::fs::write(place.join("ours/not again"), error.message).unwrap(),
    }
    Ok(())
}

// ---- files that are refused ----

fn value(name: &str, dims: &[i64]) -> ValueInfoProto {
    let dim = dims.iter().map(|&dim_value| Dimension { dim_value, ..Dimension::default() }).collect();
    let shape = Some(TensorShapeProto { dim });
    let tensor_type = Some(TensorType { elem_type: data_type::FLOAT, shape });
    ValueInfoProto { name: name.into(), value_type: Some(TypeProto { tensor_type }) }
}

fn weight(name: &str, dims: &[i64]) -> TensorProto {
    let count = dims.iter().product::<i64>() as usize;
    let float_data = (0..count).map(|place| place as f32 * 0.125 - 1.0).collect();
    TensorProto {
        name: name.into(),
        dims: dims.to_vec(),
        data_type: data_type::FLOAT,
        float_data,
        ..TensorProto::default()
    }
}

fn node(name: &str, op: &str, input: &[&str], output: &str) -> NodeProto {
    NodeProto {
        name: name.into(),
        op_type: op.into(),
        input: input.iter().map(ToString::to_string).collect(),
        output: vec![output.into()],
        ..NodeProto::default()
    }
}

/// Flatten and one linear layer for grey images of 2×2 pixels, changed.
fn changed(change: impl FnOnce(&mut GraphProto)) -> ModelProto {
    let mut graph = GraphProto {
        node: vec![
            node("flat", "Flatten", &["x"], "a"),
            node("fc", "Gemm", &["a", "fc.weight", "fc.bias"], "y"),
        ],
        initializer: vec![weight("fc.weight", &[4, 3]), weight("fc.bias", &[3])],
        input: vec![value("x", &[0, 1, 2, 2])],
        output: vec![value("y", &[0, 3])],
        ..GraphProto::default()
    };
    change(&mut graph);
    let opset_import = vec![OperatorSetId { domain: String::new(), version: 17 }];
    ModelProto { ir_version: 8, graph: Some(graph), opset_import, ..ModelProto::default() }
}

/// What opening such a file says.
fn said(change: impl FnOnce(&mut GraphProto)) -> String {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("net.onnx");
    std::fs::write(&path, changed(change).encode_to_vec()).unwrap();
    model::open(&path).err().expect("a file that is refused").message
}

/// What a file says beside its network is read, and what other programs keep there does no harm.
#[test]
fn what_a_file_says_of_its_images_and_classes_is_read() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("net.onnx");
    let said = |texts: &[(&str, &str)]| {
        let text = |(key, value): &(&str, &str)| StringStringEntryProto {
            key: key.to_string(),
            value: value.to_string(),
        };
        let metadata_props = texts.iter().map(text).collect();
        std::fs::write(&path, ModelProto { metadata_props, ..changed(|_| {}) }.encode_to_vec()).unwrap();
        model::open(&path)
    };
    let preprocessing = r#"{"image":[1,2,2],"mean":[0.25],"std":[0.5],"frame":"whole"}"#;
    let model =
        said(&[("class_names", r#"["a","b","c"]"#), ("dltrain.preprocessing", preprocessing)]).unwrap();
    let file = model.file().unwrap();
    assert_eq!(file.class_names(), ["a", "b", "c"]);
    assert_eq!(file.preprocessing().map(|said| said.to_text()), Some(preprocessing.into()));
    let model = said(&[("class_names", "cat dog"), ("preprocessing", "resize")]).unwrap();
    assert!(
        model.file().unwrap().class_names().is_empty() && model.file().unwrap().preprocessing().is_none()
    );
    let wrong = said(&[("dltrain.preprocessing", &preprocessing.replace("0.5", "0"))]).err().unwrap();
    assert!(wrong.message.contains("net.onnx: what it says of its images"), "{}", wrong.message);
}

/// Scores that are no linear layer's cannot be of other classes: found before anything starts.
#[test]
fn classes_that_the_scores_cannot_have_are_refused() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("net.onnx");
    let twice = changed(|graph| {
        graph.node[1].output = vec!["half".into()];
        let axis = AttributeProto { name: "axis".into(), i: 1, kind: kind::INT, ..AttributeProto::default() };
        let concat = node("both", "Concat", &["half", "half"], "y");
        graph.node.push(NodeProto { attribute: vec![axis], ..concat });
        graph.output = vec![value("y", &[0, 6])];
    });
    std::fs::write(&path, twice.encode_to_vec()).unwrap();
    let flags = ["--model", path.to_str().unwrap(), "--dry-run", "--batch", "2"];
    for more in [&["--classes", "2", "--reset-head"][..], &["--classes", "10"]] {
        let said = refused(&[(1, &[&flags[..], more].concat())]);
        assert!(
            said.contains("gives the scores of 6 classes") && said.contains("leave --classes out"),
            "{said}"
        );
    }
    run(1, &[&flags[..], &["--classes", "6"]].concat());
}

/// Gemm without transB, as TensorFlow's exports have it, is a linear layer with its weight the other way round.
#[test]
fn a_weight_of_columns_is_learned_as_rows() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("net.onnx");
    std::fs::write(&path, changed(|_| {}).encode_to_vec()).unwrap();
    let model = model::open(&path).unwrap();
    let graph = model.build(2, model.image, model.classes).unwrap();
    let (_, parameter) = graph.with_role(Role::Parameter).find(|(_, t)| t.name == "fc.weight").unwrap();
    assert_eq!(parameter.spec.shape.0, [3, 4]);
    let rows: Vec<f32> =
        [0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11].map(|place| place as f32 * 0.125 - 1.0).into();
    assert_eq!(model.file().unwrap().values("fc.weight").unwrap(), rows);
}

/// A window of 3 places two apart, with zeros as its reach of 5 wants: the image keeps its size.
#[test]
fn a_dilated_convolution_reaches_further() {
    let ints = |name: &str, ints: [i64; 2]| AttributeProto {
        name: name.into(),
        ints: ints.into(),
        kind: kind::INTS,
        ..Default::default()
    };
    let same = AttributeProto {
        name: "auto_pad".into(),
        s: b"SAME_UPPER".as_slice().into(),
        kind: 3,
        ..Default::default()
    };
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("net.onnx");
    let file = changed(|graph| {
        let mut conv = node("conv", "Conv", &["x", "w"], "b");
        conv.attribute = vec![ints("dilations", [2, 1]), same];
        graph.initializer.push(weight("w", &[1, 1, 3, 3]));
        graph.node.insert(0, conv);
        graph.node[1].input = vec!["b".into()];
    });
    std::fs::write(&path, file.encode_to_vec()).unwrap();
    let model = model::open(&path).unwrap();
    let graph = model.build(2, model.image, model.classes).unwrap();
    let Op::Conv2d(conv) = graph.nodes[0].op else { panic!("{:?}", graph.nodes[0]) };
    assert_eq!((conv.dilation, conv.padding, conv.reach()), ([2, 1], [2, 1], [5, 3]));
}

/// The file of a network, its model, and the graph for so many images.
fn opened(change: impl FnOnce(&mut GraphProto)) -> (tempfile::TempDir, Model) {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("net.onnx");
    std::fs::write(&path, changed(change).encode_to_vec()).unwrap();
    let model = model::open(&path).unwrap();
    (place, model)
}

/// The scores of two images: 0, 1, 2, 3 and 4, 5, 6, 7.
fn scores_of(model: &Model) -> Vec<f32> {
    let graph = model.build_to_test(2, model.image, model.classes).unwrap();
    let mut run = Bound::new(&Reference, graph.for_evaluation().simplify(), 1 << 20);
    run.set_batch(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], &[0; 2]);
    for parameter in &run.plan.parameters {
        run.set_parameter(parameter, &model.file().unwrap().values(&parameter.name).unwrap());
    }
    run.run(0..run.program.steps.len(), &Scalars::default());
    run.logits()
}

/// −1, as some writers say that an extent is open, is as 0.
#[test]
fn a_batch_of_less_than_none_is_one_that_is_open() {
    let (_place, model) = opened(|graph| graph.input = vec![value("x", &[-1, 1, 2, 2])]);
    let (_other, plain) = opened(|_| {});
    assert_eq!(scores_of(&model), scores_of(&plain));
}

/// alpha·x·w + beta·b, as a layer of which the head may get other classes.
#[test]
fn a_gemm_with_factors_is_a_layer() {
    let factor =
        |name: &str, f: f32| AttributeProto { name: name.into(), f, kind: kind::FLOAT, ..Default::default() };
    let (_place, model) =
        opened(|graph| graph.node[1].attribute = vec![factor("alpha", 0.5), factor("beta", 3.0)]);
    let (weight, bias) =
        (|place: usize| place as f32 * 0.125 - 1.0, |place: usize| place as f32 * 0.125 - 1.0);
    let score = |image: usize, class: usize| {
        let sum: f32 = (0..4).map(|at| (4 * image + at) as f32 * weight(3 * at + class)).sum();
        0.5 * sum + 3.0 * bias(class)
    };
    for (place, found) in scores_of(&model).iter().enumerate() {
        let wanted = score(place / 3, place % 3);
        assert!((found - wanted).abs() <= 1e-5 * wanted.abs().max(1.0), "{found} and {wanted}");
    }
    let graph = model.build(2, model.image, 7).unwrap();
    assert_eq!(graph.tensor(graph.logits).spec.shape.0, [2, 7]);
}

/// GELU behind an order of axes; an If by a condition that is computed of shapes; a table of zeros and another number,
/// which is not learned.
#[test]
fn what_exporters_spell_out_becomes_what_it_is() {
    let single = |name: &str, number: f32| TensorProto {
        name: name.into(),
        data_type: data_type::FLOAT,
        float_data: vec![number],
        ..TensorProto::default()
    };
    let (_place, model) = opened(|graph| {
        graph.initializer.extend([single("root", 2f32.sqrt()), single("one", 1.0), single("half", 0.5)]);
        let ints = AttributeProto {
            name: "perm".into(),
            ints: vec![0, 2, 3, 1],
            kind: kind::INTS,
            ..Default::default()
        };
        let mut order = node("order", "Transpose", &["x"], "t");
        order.attribute = vec![ints];
        let before = [
            order,
            node("div", "Div", &["t", "root"], "d"),
            node("erf", "Erf", &["d"], "e"),
            node("add", "Add", &["e", "one"], "p"),
            node("mul", "Mul", &["t", "p"], "m"),
            node("gelu", "Mul", &["m", "half"], "g"),
        ];
        graph.node.splice(0..0, before);
        graph.node[6].input = vec!["g".into()];
    });
    let built = model.build(2, model.image, model.classes).unwrap();
    let is_gelu =
        |node: &&dltrain::graph::Node| matches!(node.op, Op::Activation(dltrain::graph::Activation::Gelu));
    assert_eq!(built.nodes.iter().filter(is_gelu).count(), 1);

    let (_place, model) = opened(|graph| {
        let branch = |name: &str, op: &str| AttributeProto {
            name: name.into(),
            g: Some(Box::new(GraphProto {
                node: vec![node(op, op, &["x"], &format!("{op}.y"))],
                output: vec![value(&format!("{op}.y"), &[])],
                ..GraphProto::default()
            })),
            kind: 5,
            ..Default::default()
        };
        let mut choice = node("if", "If", &["holds"], "i");
        choice.attribute = vec![branch("then_branch", "LSTM"), branch("else_branch", "Identity")];
        let integers = |name: &str, numbers: &[i64]| TensorProto {
            name: name.into(),
            dims: vec![numbers.len() as i64],
            data_type: data_type::INT64,
            int64_data: numbers.to_vec(),
            ..TensorProto::default()
        };
        let other = TensorProto { float_data: vec![0.0, -9.0, 0.0, 0.0], ..weight("mask", &[2, 2]) };
        graph.initializer.extend([integers("shape", &[1, 1, 2, 9]), other]);
        let before = [
            node("shape_of", "Shape", &["x"], "s"),
            node("same", "Equal", &["s", "shape"], "q"),
            node("all", "Cast", &["q"], "c"),
            node("least", "ReduceMin", &["c"], "holds"),
            choice,
            node("masked", "Add", &["i", "mask"], "k"),
        ];
        let mut before = Vec::from(before);
        let to = |name: &str, i: i64| AttributeProto {
            name: name.into(),
            i,
            kind: kind::INT,
            ..Default::default()
        };
        before[2].attribute = vec![to("to", 7)];
        before[3].attribute = vec![to("keepdims", 0)];
        graph.node.splice(0..0, before);
        graph.node[6].input = vec!["k".into()];
    });
    let names: Vec<&str> = model.file().unwrap().weights().iter().map(|weight| &*weight.name).collect();
    assert_eq!(names, ["fc.weight", "fc.bias"]);
    let (_other, plain) = opened(|_| {});
    let apart: Vec<f32> = scores_of(&model).iter().zip(scores_of(&plain)).map(|(a, b)| a - b).collect();
    // −9 of the second pixel.
    let row: Vec<f32> = (3..6).map(|place| -9.0 * (place as f32 * 0.125 - 1.0)).collect();
    for (found, wanted) in apart.iter().zip([&row[..], &row].concat()) {
        assert!((found - wanted).abs() < 1e-5, "{found} and {wanted}");
    }
}

#[test]
fn what_cannot_be_trained_is_refused_with_every_node() {
    let message = said(|graph| {
        let mut odd = node("odd", "Conv", &["x", "w"], "b");
        let dilations = AttributeProto {
            name: "dilations".into(),
            ints: vec![2, 0],
            kind: kind::INTS,
            ..Default::default()
        };
        odd.attribute.push(dilations);
        let mut scaled = node("fc", "Gemm", &["d", "fc.weight", "fc.bias"], "y");
        let other = AttributeProto { name: "gamma".into(), f: 0.5, kind: kind::FLOAT, ..Default::default() };
        scaled.attribute.push(other);
        graph.initializer.push(weight("w", &[1, 1, 2, 2]));
        graph.node =
            vec![odd, node("loop", "Loop", &["b"], "c"), node("flat", "Flatten", &["x"], "d"), scaled];
        graph.node.push(node("sum", "LSTM", &["c", "y"], "z"));
        graph.output = vec![value("z", &[0, 3])];
    });
    for line in [
        "odd (Conv): dilations of 0",
        "loop (Loop): the op is not supported",
        "fc (Gemm): attribute gamma is not known",
        "sum (LSTM): the op is not supported",
    ] {
        assert!(message.contains(line), "{line}: {message}");
    }
    assert!(message.contains("of its 5 nodes 4 are not supported"), "{message}");
}

#[test]
fn what_is_no_sound_file_is_refused() {
    let refused = |part: &str, change: &dyn Fn(&mut GraphProto)| {
        let message = said(|graph| change(graph));
        assert!(message.contains(part), "{part}: {message}");
    };
    refused("in a circle", &|graph| graph.node[0].input = vec!["y".into()]);
    refused("reads none, which nothing gives", &|graph| graph.node[0].input = vec!["none".into()]);
    refused("has 2 inputs (x, z)", &|graph| graph.input.push(value("z", &[1])));
    refused("y is given twice", &|graph| graph.node.push(node("more", "Relu", &["a"], "y")));
    refused("fc.bias: is there twice", &|graph| graph.initializer.push(weight("fc.bias", &[3])));
    refused("[-1]", &|graph| graph.initializer[1].dims = vec![-1]);
    refused("more than memory has addresses", &|graph| graph.initializer[0].dims = vec![1 << 40, 1 << 40]);
    refused("10000000000 numbers, and 12", &|graph| graph.initializer[0].dims = vec![100_000, 100_000]);
    refused("is no batch of images", &|graph| graph.input = vec![value("x", &[0, 4])]);
    refused("is no batch of images", &|graph| graph.input = vec![value("x", &[0, 1, 1 << 40, 2])]);
    refused("can be counted", &|graph| graph.input = vec![value("x", &[0, 1 << 16, 1 << 16, 1 << 16])]);
    refused("by a weight for 4 numbers", &|graph| graph.input = vec![value("x", &[0, 1, 3, 3])]);
    refused("is not the scores of classes", &|graph| graph.output = vec![value("x", &[0, 1, 2, 2])]);
    refused("does not depend on the images", &|graph| {
        graph.initializer.push(weight("k", &[1, 4]));
        graph.node[0].input = vec!["k".into()];
    });
    refused("nothing to learn", &|graph| graph.output = vec![value("a", &[0, 4])]);
    for (location, part) in [
        ("../w.bin", "outside of the directory"),
        ("/etc/passwd", "outside of the directory"),
        ("w.bin", "is in w.bin"),
    ] {
        refused(part, &|graph| {
            graph.initializer[0].float_data.clear();
            graph.initializer[0].data_location = 1;
            let entry = StringStringEntryProto { key: "location".into(), value: location.into() };
            graph.initializer[0].external_data = vec![entry];
        });
    }
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("net.onnx");
    std::fs::write(&path, b"no such format").unwrap();
    assert!(model::open(&path).err().unwrap().message.contains("cannot be read as ONNX"));
    assert!(model::find("none.onnx").err().unwrap().message.contains("none.onnx"));
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
    assert!(said.contains("the images are too small"), "{said}");
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
