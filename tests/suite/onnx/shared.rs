//! Parameters that several layers read: one that a file has once is learned as one, with the sum of their gradients.

use crate::support::bound::Bound;

use super::nodes::{changed, node, value, weight};
use dltrain::device::onednn::Cpu;
use dltrain::device::reference::Reference;
use dltrain::device::{Device, Scalars};
use dltrain::model::onnx::schema::TensorProto;
use dltrain::model::{self, Model};
use prost::Message;
use std::collections::BTreeMap;

/// Parameters that layers share, of four numbers each, and of two matrices.
const SHARED: [&str; 6] = ["norm.s", "norm.b", "fc.b", "bn.s", "bn.b", "fc.w"];

/// Two linear layers, two normalisations of rows and two of the batch, written by such a program. With `as_one` those
/// of a kind read the same parameters, else each its own with the same numbers.
fn network(program: &str, as_one: bool) -> (tempfile::TempDir, Model) {
    let own = |name: &str| if as_one { name.to_string() } else { format!("{name}.other") };
    let mut file = changed(|graph| {
        graph.initializer[0] = weight("head.w", &[4, 3]);
        graph.initializer[1] = weight("head.b", &[3]);
        graph.node[1] = node("head", "Gemm", &["z", "head.w", "head.b"], "y");
        let others = SHARED.map(own);
        let [s, b, fc_b, bn_s, bn_b, fc_w] = [0, 1, 2, 3, 4, 5].map(|at| &*others[at]);
        let layers = [
            node("n1", "LayerNormalization", &["a", "norm.s", "norm.b"], "b"),
            node("l1", "Gemm", &["b", "fc.w", "fc.b"], "c"),
            node("b1", "BatchNormalization", &["c", "bn.s", "bn.b", "m1", "v1"], "d"),
            node("t", "Tanh", &["d"], "e"),
            node("n2", "LayerNormalization", &["e", s, b], "f"),
            node("l2", "Gemm", &["f", fc_w, fc_b], "g"),
            node("b2", "BatchNormalization", &["g", bn_s, bn_b, "m2", "v2"], "z"),
        ];
        layers.into_iter().rev().for_each(|layer| graph.node.insert(1, layer));
        let tensors = SHARED.map(|name| weight(name, if name == "fc.w" { &[4, 4] } else { &[4] }));
        let other = |tensor: &TensorProto| TensorProto { name: own(&tensor.name), ..tensor.clone() };
        if !as_one {
            graph.initializer.extend(tensors.iter().map(other));
        }
        graph.initializer.extend(tensors);
        graph.initializer.extend(["m1", "v1", "m2", "v2"].map(|name| weight(name, &[4])));
        graph.output = vec![value("y", &[0, 3])];
    });
    file.producer_name = program.into();
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("net.onnx");
    std::fs::write(&path, file.encode_to_vec()).unwrap();
    let model = model::open(&path).unwrap();
    (place, model)
}

/// The loss of three images and the gradient of every parameter; `synchronised` as over several ranks.
fn gradients(model: &Model, device: &dyn Device, synchronised: bool) -> (f64, BTreeMap<String, Vec<f32>>) {
    let mut graph = model.build(3, model.image, model.classes).unwrap().simplify();
    if synchronised {
        graph = graph.synchronise_batch_norms(1);
    }
    let mut run = Bound::new(device, graph.differentiate(), 1 << 20);
    let images: Vec<f32> = (0..12).map(|at| (at * at % 7) as f32 / 4.0 - 0.5).collect();
    run.set_batch(&images, &[0, 2, 1]);
    for parameter in &run.plan.parameters {
        run.set_parameter(parameter, &model.file().unwrap().values(&parameter.name).unwrap());
    }
    run.run(0..run.program.steps.len(), &Scalars { gradient_scale: 1.0, ..Scalars::default() });
    let all = run.plan.parameters.iter().map(|of| (of.name.clone(), run.gradient(of))).collect();
    (run.loss(), all)
}

/// Some 40 steps one after the other, in sums of at most 12 numbers.
const BOUND: f32 = 40.0 * 12.0 * f32::EPSILON;

#[test]
fn layers_that_share_parameters_learn_them_as_one() {
    let cpu = Cpu::new(1).unwrap();
    let devices: [(&dyn Device, bool); 3] = [(&cpu, false), (&Reference, false), (&cpu, true)];
    for (device, synchronised) in devices {
        let (loss, one) = gradients(&network("pytorch", true).1, device, synchronised);
        let (wanted, each) = gradients(&network("pytorch", false).1, device, synchronised);
        assert!((loss - wanted).abs() <= f64::from(BOUND) * wanted, "{loss} and {wanted}");
        assert_eq!(one.len(), SHARED.len() + 2);
        for (name, found) in &one {
            let mut sums = each[name].clone();
            if let Some(other) = each.get(&format!("{name}.other")) {
                sums.iter_mut().zip(other).for_each(|(sum, of)| *sum += of);
            }
            let largest = each.values().flatten().fold(0.0, |largest: f32, number| largest.max(number.abs()));
            let is_near = |(found, sum): (&f32, &f32)| (found - sum).abs() <= BOUND * largest;
            assert!(found.iter().zip(&sums).all(is_near), "{name}: {found:?} and {sums:?}");
        }
    }
}

/// Other programs keep one tensor for several with the same first numbers: of one axis each layer has its own, but for
/// layers that share their weight too.
#[test]
fn what_other_programs_share_is_said() {
    let said = "layers share norm.s, norm.b, bn.s, bn.b, as exports write one for several that begin alike";
    for (program, of_one_axis) in [("pytorch", 10), ("tf2onnx", 14)] {
        let (_place, model) = network(program, true);
        let file = model.file().unwrap();
        let vectors = file.weights().iter().filter(|weight| weight.shape.len() == 1).count();
        let is_said = file.notes(true).any(|note| note.contains(said));
        assert_eq!((vectors, is_said), (of_one_axis, program == "tf2onnx"));
    }
}
