//! Biases of zeros, which PyTorch's exporter (`dynamo=True`) leaves out of new networks: it says of each node of which
//! layer it was made, and by that of which parameters. They are put back, since PyTorch learns them.

use std::collections::{HashMap, HashSet};

use prost::bytes::Bytes;

use super::program::{made_of, targets};
use super::schema::{GraphProto, NodeProto, TensorProto, data_type};

/// Adds a bias of zeros to each convolution and product that was made of a layer with a bias and reads none. Another node
/// may read the same bias.
pub fn put_back(graph: &mut GraphProto) {
    let symbols: HashMap<&str, &str> = targets(graph, "PARAMETER").collect();
    let there: HashMap<&str, bool> =
        graph.initializer.iter().map(|tensor| (&*tensor.name, is_zero(tensor))).collect();
    let mut added = Vec::new();
    for (at, node) in graph.node.iter().enumerate() {
        let name = bias_of(node)
            .and_then(|symbol| symbols.get(symbol))
            .filter(|name| there.get(*name).is_none_or(|is_zero| *is_zero));
        let lost = name.filter(|_| lacks_bias(node, graph)).and_then(|name| zeros(name, node, graph));
        added.extend(lost.map(|zeros| (at, zeros)));
    }
    // A layer that is called twice has one bias, and another call may have kept it.
    let mut known: HashSet<String> = there.into_keys().map(String::from).collect();
    let own = added.iter().map(|(_, zeros)| zeros).filter(|zeros| known.insert(zeros.name.clone()));
    graph.initializer.extend(own.cloned().collect::<Vec<_>>());
    // From behind, so that places stay what they are.
    for (at, zeros) in added.into_iter().rev() {
        let (node, name) = (&mut graph.node[at], zeros.name.clone());
        if node.op_type == "MatMul" {
            let sum = node.output[0].clone();
            node.output[0] = format!("{sum}.without.{name}");
            let add = NodeProto {
                name: format!("{}.bias", node.name),
                op_type: "Add".into(),
                input: vec![node.output[0].clone(), name],
                output: vec![sum],
                attribute: Vec::new(),
                ..node.clone()
            };
            graph.node.insert(at + 1, add);
        } else {
            node.input.push(name);
        }
    }
}

/// What the exporter's program calls the bias of the layer of which a node was made.
fn bias_of(node: &NodeProto) -> Option<&str> {
    let (layer, arguments) = made_of(node)?;
    let place = match layer.split_once('.')?.0 {
        "addmm" => 0,
        name if name == "linear" || name.starts_with("conv") => 2,
        _ => return None,
    };
    arguments.split([',', ')']).nth(place)?.trim().strip_prefix('%')
}

/// Whether nothing is added to what a node computes of its weight.
fn lacks_bias(node: &NodeProto, graph: &GraphProto) -> bool {
    let is_added = |node: &NodeProto| {
        let mut readers = graph.node.iter().filter(|other| other.input.contains(&node.output[0]));
        readers.any(|reader| {
            let mut beside = reader.input.iter().filter(|input| **input != node.output[0]);
            let is_stored = |name: &String| graph.initializer.iter().any(|tensor| tensor.name == *name);
            reader.op_type == "Add" && beside.any(is_stored)
        })
    };
    match &*node.op_type {
        "Conv" | "ConvTranspose" | "Gemm" => node.input.len() == 2,
        "MatMul" => node.output.len() == 1 && !is_added(node),
        _ => false,
    }
}

/// Whether all numbers of a tensor are 0.
fn is_zero(tensor: &TensorProto) -> bool {
    tensor.data_location == 0
        && tensor.raw_data.iter().all(|&byte| byte == 0)
        && tensor.float_data.iter().all(|&number| number == 0.0)
}

/// As many zeros as a node gives channels; `None` where its weight is not stored.
fn zeros(name: &str, node: &NodeProto, graph: &GraphProto) -> Option<TensorProto> {
    let weight = graph.initializer.iter().find(|tensor| Some(&tensor.name) == node.input.get(1))?;
    let int = |name: &str, otherwise: i64| {
        node.attribute.iter().find(|of| of.name == name).map_or(otherwise, |of| of.i)
    };
    let along = match &*node.op_type {
        "Gemm" => *weight.dims.get(usize::from(int("transB", 0) == 0))?,
        "ConvTranspose" => weight.dims.get(1)?.checked_mul(int("group", 1))?,
        "MatMul" => *weight.dims.get(1).filter(|_| weight.dims.len() == 2)?,
        _ => *weight.dims.first()?,
    };
    let bytes = match weight.data_type {
        data_type::FLOAT => 4,
        data_type::FLOAT16 | data_type::BFLOAT16 => 2,
        _ => return None,
    };
    // What a file says of its weight is looked at later.
    let count = usize::try_from(along).ok().filter(|&along| along <= 1 << 24)?;
    Some(TensorProto {
        name: name.into(),
        dims: vec![along],
        data_type: weight.data_type,
        raw_data: Bytes::from(vec![0; count * bytes]),
        ..TensorProto::default()
    })
}

#[cfg(test)]
mod tests {
    use super::super::program::ORIGIN;
    use super::super::schema::{AttributeProto, StringStringEntryProto};
    use super::*;

    fn entry(key: &str, value: &str) -> StringStringEntryProto {
        StringStringEntryProto { key: key.into(), value: value.into() }
    }

    /// A node made of such a layer of the weight and the bias of this name.
    fn layer(layer: &str, name: &str, op: &str, input: &[&str]) -> NodeProto {
        let origin = format!(
            "%{name} : [num_users=1] = call_function[target=torch.ops.aten.{layer}](args = (%x, %p_{name}_weight, \
             %p_{name}_bias, [1, 1]), kwargs = {{}})"
        );
        NodeProto {
            name: name.into(),
            op_type: op.into(),
            input: input.iter().map(ToString::to_string).collect(),
            output: vec![format!("{name}.y")],
            metadata_props: vec![entry(ORIGIN, &origin)],
            ..NodeProto::default()
        }
    }

    #[test]
    fn biases_that_the_exporter_left_out_are_put_back_and_no_others() {
        let names = ["conv", "up", "gemm", "product", "whole", "pooled"];
        let signature: String =
            names.iter().map(|name| format!("p_{name}_bias: PARAMETER target='net.{name}.bias'\n")).collect();
        let tensor = |name: &str, dims: &[i64]| TensorProto {
            name: name.into(),
            dims: dims.into(),
            data_type: data_type::FLOAT,
            ..TensorProto::default()
        };
        let group = AttributeProto { name: "group".into(), i: 2, ..AttributeProto::default() };
        let turned = AttributeProto { name: "transB".into(), i: 1, ..AttributeProto::default() };
        let mut graph = GraphProto {
            node: vec![
                layer("conv2d.default", "conv", "Conv", &["x", "w4"]),
                NodeProto {
                    attribute: vec![group],
                    ..layer("conv_transpose2d.input", "up", "ConvTranspose", &["x", "w4"])
                },
                NodeProto {
                    attribute: vec![turned],
                    ..layer("linear.default", "gemm", "Gemm", &["x", "w2"])
                },
                layer("linear.default", "product", "MatMul", &["x", "w2"]),
                // This has its bias under another name, this is no layer of a weight, and this one has none.
                layer("linear.default", "whole", "MatMul", &["x", "w2"]),
                NodeProto {
                    op_type: "Add".into(),
                    input: vec!["whole.y".into(), "shared".into()],
                    ..NodeProto::default()
                },
                layer("avg_pool2d.default", "pooled", "Conv", &["x", "w4"]),
                layer("conv2d.default", "unnamed", "Conv", &["x", "w4"]),
                // The same once more.
                layer("conv2d.default", "conv", "Conv", &["z", "w4"]),
            ],
            initializer: vec![tensor("w4", &[6, 3, 1, 1]), tensor("w2", &[6, 8]), tensor("shared", &[8])],
            metadata_props: vec![entry("pkg.torch.export.ExportedProgram.graph_signature", &signature)],
            ..GraphProto::default()
        };
        put_back(&mut graph);
        put_back(&mut graph);
        let inputs = |at: usize| graph.node[at].input.iter().map(|name| &**name).collect::<Vec<_>>();
        assert_eq!(inputs(0), ["x", "w4", "net.conv.bias"]);
        assert_eq!(inputs(1), ["x", "w4", "net.up.bias"]);
        assert_eq!(inputs(2), ["x", "w2", "net.gemm.bias"]);
        assert_eq!(
            (inputs(4), &*graph.node[4].output[0]),
            (vec!["product.y.without.net.product.bias", "net.product.bias"], "product.y")
        );
        assert_eq!(
            (graph.node[3].output[0].as_str(), inputs(5).len(), inputs(7).len()),
            ("product.y.without.net.product.bias", 2, 2)
        );
        assert_eq!(graph.node[9].input, ["z", "w4", "net.conv.bias"]);
        let mut added: Vec<(&str, i64, usize)> =
            graph.initializer[3..].iter().map(|of| (&*of.name, of.dims[0], of.raw_data.len())).collect();
        added.sort_unstable();
        let wanted = [
            ("net.conv.bias", 6, 24),
            ("net.gemm.bias", 6, 24),
            ("net.product.bias", 8, 32),
            ("net.up.bias", 6, 24),
        ];
        assert_eq!(added, wanted);
    }
}
