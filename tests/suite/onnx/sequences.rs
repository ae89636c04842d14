//! Networks of sequences, which have their channels on the second axis or on the last.

use crate::support::job;

use super::nodes::{changed, node, value, weight};
use dltrain::model::onnx::schema::{AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, kind};
use hdf5::File;
use job::run;
use ndarray::{Array2, Array3, Axis, stack};
use prost::Message;

/// Products are along the last axis, whatever that is: what a sequence's channels are the samples say, by their shape,
/// or where they fit both ways by how they lie. A convolution, of channels on the second axis, says it itself.
#[test]
fn sequences_with_channels_last_are_read_and_compared_so() {
    let place = tempfile::tempdir().unwrap();
    let text = |name: &str| place.path().join(name).to_string_lossy().into_owned();
    let perm = |name, input, output| NodeProto {
        attribute: vec![AttributeProto {
            name: "perm".into(),
            ints: vec![0, 2, 1],
            kind: kind::INTS,
            ..AttributeProto::default()
        }],
        ..node(name, "Transpose", &[input], output)
    };
    let number = |at: usize| (at * 7 % 11) as f32 - 5.0;
    let net = |name: &str, [length, channels, outputs]: [usize; 3], nodes: Vec<NodeProto>, dims: &[usize]| {
        let dims: Vec<i64> = dims.iter().map(|&along| along as i64).collect();
        let is_product = dims.len() == 2;
        let of =
            |at: usize| if is_product { number(at) } else { number(at % channels * outputs + at / channels) };
        // Of the product channels × outputs, of the convolution outputs × channels.
        let weights =
            TensorProto { float_data: (0..channels * outputs).map(of).collect(), ..weight("w", &dims) };
        let (length, channels, outputs) = (length as i64, channels as i64, outputs as i64);
        let graph = GraphProto {
            node: nodes,
            initializer: vec![weights],
            input: vec![value("x", &[1, length, channels])],
            output: vec![value("y", &[1, length, outputs])],
            ..changed(|_| ()).graph.unwrap()
        };
        std::fs::write(text(name), ModelProto { graph: Some(graph), ..changed(|_| ()) }.encode_to_vec())
            .unwrap();
        text(name)
    };
    for [length, channels, outputs] in [[5, 3, 4], [4, 4, 3], [3, 3, 3], [4, 3, 4], [0, 3, 4]] {
        let places = if length == 0 { 6 } else { length };
        let product = net(
            "product.onnx",
            [length, channels, outputs],
            vec![node("p", "MatMul", &["x", "w"], "y")],
            &[channels, outputs],
        );
        let nodes = vec![
            perm("t", "x", "first"),
            node("c", "Conv", &["first", "w"], "given"),
            perm("b", "given", "y"),
        ];
        let conv = net("conv.onnx", [length, channels, outputs], nodes, &[outputs, channels, 1]);
        let x = Array3::from_shape_fn((2, places, channels), |(n, w, c)| (n + 3 * w + c * c) as f32);
        let w = Array2::from_shape_fn((channels, outputs), |(c, k)| number(c * outputs + k));
        let y: Vec<Array2<f32>> = x.outer_iter().map(|sample| sample.dot(&w)).collect();
        let y: Vec<_> = y.iter().map(|sample| sample.view()).collect();
        let y = stack(Axis(0), &y).unwrap();
        let file = File::create(text("data.h5")).unwrap();
        let turned = |of: &Array3<f32>| of.clone().permuted_axes([0, 2, 1]).as_standard_layout().into_owned();
        for (name, values) in [("last", &x), ("second", &turned(&x)), ("y", &y), ("y_second", &turned(&y))] {
            file.new_dataset_builder().with_data(values).create(name).unwrap();
        }
        file.close().unwrap();
        let data = text("data.h5");
        for (net, has_own_order) in [(&product, false), (&conv, true)] {
            // What lies otherwise can only be told where it does not fit both ways, or where nodes say it.
            let views = [("last[n,w,c]", "y[n,w,c]"), ("second[n,c,w]", "y_second[n,c,w]")];
            let told = if has_own_order || length != channels { 2 } else { 1 };
            for (input, target) in &views[..told] {
                let args =
                    ["--model", net, "--data", &data, "--input", input, "--target", target, "--loss", "mse"];
                let said = run(1, &[&["evaluate"], &args[..]].concat());
                assert!(said.contains("loss 0.0000"), "{length} {channels} {outputs} {input}: {said}");
                let doubt = "does not say which axis of its input x has the channels";
                assert_eq!(said.contains(doubt), !has_own_order && length == channels, "{said}");
            }
        }
    }
}
