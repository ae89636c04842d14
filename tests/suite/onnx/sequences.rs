//! Networks of sequences, which have their channels on the second axis or on the last.

use std::path::Path;

use crate::support::job;

use super::nodes::{changed, node, value, weight};
use dltrain::model::onnx::schema::{AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, kind};
use hdf5::File;
use job::{refused, run};
use ndarray::{Array2, Array3, Axis, stack};
use prost::Message;

fn exchange(name: &str, input: &str, output: &str) -> NodeProto {
    let attribute = AttributeProto {
        name: "perm".into(),
        ints: vec![0, 2, 1],
        kind: kind::INTS,
        ..AttributeProto::default()
    };
    NodeProto { attribute: vec![attribute], ..node(name, "Transpose", &[input], output) }
}

fn number(at: usize) -> f32 {
    (at * 7 % 11) as f32 - 5.0
}

/// A network of these nodes, inputs and outputs with their axes, whose weight `w` is that of a product, or of a
/// convolution, from so many channels to so many.
fn write(
    path: &Path,
    nodes: Vec<NodeProto>,
    inputs: &[(&str, [usize; 2])],
    output: [usize; 2],
    of: [usize; 2],
) {
    let [channels, outputs] = of;
    let is_product = nodes.iter().any(|node| node.op_type == "MatMul");
    let place = |at: usize| if is_product { at } else { at % channels * outputs + at / channels };
    let dims = if is_product { vec![channels, outputs] } else { vec![outputs, channels, 1] };
    let dims: Vec<i64> = dims.iter().map(|&along| along as i64).collect();
    let float_data = (0..channels * outputs).map(|at| number(place(at))).collect();
    let axes = |[a, b]: [usize; 2]| [1, a as i64, b as i64];
    let graph = GraphProto {
        node: nodes,
        initializer: vec![TensorProto { float_data, ..weight("w", &dims) }],
        input: inputs.iter().map(|(name, of)| value(name, &axes(*of))).collect(),
        output: vec![value("y", &axes(output))],
        ..changed(|_| ()).graph.unwrap()
    };
    std::fs::write(path, ModelProto { graph: Some(graph), ..changed(|_| ()) }.encode_to_vec()).unwrap();
}

/// A file with `x` of two samples, `y`, which is what the weight makes of it, and both turned: channels first.
fn write_data(path: &Path, [places, channels, outputs]: [usize; 3]) {
    let x = Array3::from_shape_fn((2, places, channels), |(n, w, c)| (n + 3 * w + c * c) as f32);
    let w = Array2::from_shape_fn((channels, outputs), |(c, k)| number(c * outputs + k));
    let y: Vec<Array2<f32>> = x.outer_iter().map(|sample| sample.dot(&w)).collect();
    let y: Vec<_> = y.iter().map(|sample| sample.view()).collect();
    let y = stack(Axis(0), &y).unwrap();
    let file = File::create(path).unwrap();
    let turned = |of: &Array3<f32>| of.clone().permuted_axes([0, 2, 1]).as_standard_layout().into_owned();
    for (name, values) in [("x", &x), ("turned", &turned(&x)), ("y", &y), ("y_turned", &turned(&y))] {
        file.new_dataset_builder().with_data(values).create(name).unwrap();
    }
    file.new_dataset_builder().with_data(&(&y + &y)).create("twice").unwrap();
    file.close().unwrap();
}

/// Products are along the last axis, whatever that is: which axis has the channels the samples say, by their shape, or
/// where they fit both ways by how they lie. A convolution, of channels on the second axis, says it itself.
#[test]
fn sequences_with_channels_last_are_read_and_compared_so() {
    let place = tempfile::tempdir().unwrap();
    let text = |name: &str| place.path().join(name).to_string_lossy().into_owned();
    let [net, data] = ["net.onnx", "data.h5"].map(text);
    for [length, channels, outputs] in [[5, 3, 4], [4, 4, 3], [3, 3, 3], [4, 3, 4], [0, 3, 4]] {
        write_data(Path::new(&data), [if length == 0 { 6 } else { length }, channels, outputs]);
        let (last, first) = ([length, channels], [channels, length]);
        let (y_last, y_first) = ([length, outputs], [outputs, length]);
        let product = |to| node("p", "MatMul", &["x", "w"], to);
        let conv = |from, to| node("c", "Conv", &[from, "w"], to);
        // What lies as a network has it, of each network; and whether its nodes say where channels are.
        let networks = [
            (vec![product("y")], last, y_last, ["x[n,w,c]", "y[n,w,c]"], false),
            (
                vec![product("t"), exchange("e", "t", "y")],
                last,
                y_first,
                ["x[n,w,c]", "y_turned[n,c,w]"],
                false,
            ),
            (
                vec![exchange("e", "x", "t"), conv("t", "s"), exchange("b", "s", "y")],
                last,
                y_last,
                ["x[n,w,c]", "y[n,w,c]"],
                true,
            ),
            (vec![conv("x", "y")], first, y_first, ["turned[n,c,w]", "y_turned[n,c,w]"], true),
            (
                vec![conv("x", "t"), exchange("e", "t", "y")],
                first,
                y_last,
                ["turned[n,c,w]", "y[n,w,c]"],
                true,
            ),
        ];
        for (nodes, input, output, lying, is_known) in networks {
            write(Path::new(&net), nodes, &[("x", input)], output, [channels, outputs]);
            let other = ["turned[n,c,w]", "y_turned[n,c,w]"];
            let told: &[[&str; 2]] = if is_known || length != channels { &[lying, other] } else { &[lying] };
            for [input, target] in told {
                let flags = ["evaluate", "--model", &net, "--data", &data, "--loss", "mse"];
                let said = run(1, &[&flags[..], &["--input", input, "--target", target]].concat());
                assert!(said.contains("loss 0.0000"), "{length} {channels} {outputs} {input}: {said}");
                let doubt = "does not say which axis of its input x has the channels";
                assert_eq!(said.contains(doubt), !is_known && length == channels, "{said}");
            }
        }
    }
    // Without brackets an array is given as it lies.
    write_data(Path::new(&data), [5, 3, 4]);
    let nodes = vec![node("c", "Conv", &["x", "w"], "y")];
    write(Path::new(&net), nodes, &[("x", [3, 5])], [4, 5], [3, 4]);
    let bare = ["--input", "turned", "--target", "y_turned", "--loss", "mse"];
    let said = run(1, &[&["evaluate", "--model", &net, "--data", &data], &bare[..]].concat());
    assert!(said.contains("loss 0.0000"), "{said}");
}

/// Several inputs, too, are read by the names of their arrays' axes, and arrays of other axes are refused, though they
/// have as many numbers.
#[test]
fn each_of_several_inputs_is_read_by_the_axes_of_its_array() {
    let place = tempfile::tempdir().unwrap();
    let text = |name: &str| place.path().join(name).to_string_lossy().into_owned();
    let [net, data, weights, again] = ["net.onnx", "data.h5", "w.safetensors", "again.onnx"].map(text);
    write_data(Path::new(&data), [5, 3, 4]);
    let nodes = vec![
        node("p", "MatMul", &["a", "w"], "s"),
        node("q", "MatMul", &["b", "w"], "t"),
        node("sum", "Add", &["s", "t"], "y"),
    ];
    write(Path::new(&net), nodes, &[("a", [5, 3]), ("b", [5, 3])], [5, 4], [3, 4]);
    let flags = |model| ["--model", model, "--data", &data, "--target", "twice[n,w,c]", "--loss", "mse"];
    for inputs in [["x[n,w,c]", "turned[n,c,w]"], ["turned[n,c,w]", "x"]] {
        let inputs = ["--input", inputs[0], "--input", inputs[1]];
        let said = run(1, &[&["evaluate"], &flags(&net)[..], &inputs].concat());
        assert!(said.contains("loss 0.0000"), "{inputs:?}: {said}");
    }
    let inputs = ["--input", "x[n,w,c]", "--input", "turned"];
    let error = refused(&[(2, &[&["evaluate"], &flags(&net)[..], &inputs].concat())]);
    assert!(error.contains("its input b is 5×3, and the array for it has 3×5 places"), "{error}");
    // What is written has channels first, as its arrays are given.
    let inputs = ["--input", "x[n,w,c]", "--input", "turned[n,c,w]"];
    let learn = ["--steps", "1", "--batch", "2", "--lr", "1e-9", "--save-weights", &weights];
    run(1, &[&flags(&net)[..], &inputs, &learn].concat());
    run(1, &["export", &weights, &again, "--model", &net]);
    let said = run(1, &[&["evaluate"], &flags(&again)[..], &inputs].concat());
    assert!(said.contains("loss 0.0000"), "{said}");
}
