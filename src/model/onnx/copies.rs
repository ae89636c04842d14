//! Parameters that PyTorch's exporters write more than once. Each is read from one tensor and learned as one.

use std::collections::{HashMap, HashSet};

use super::program::{module, signature, targets};
use super::schema::{AttributeProto, GraphProto, NodeProto, kind};
use super::tensor::OnnxTensor;

/// Axes of what is compared at most.
const MOST_AXES: usize = 5;
/// What the older exporter (`dynamo=False`) calls what it has computed.
const COMPUTED: &str = "onnx::";

/// Reads a parameter where its numbers are in the file once more under a name of the exporter's, as they are or with
/// their axes in another order. The older exporter does not say whose they are: they are a parameter's where a node of
/// the parameter's module reads them. Gives those that begin like a parameter of another module, and are learned apart.
pub fn read_once(
    graph: &mut GraphProto,
    tensors: &[OnnxTensor],
    tensor_of: &HashMap<String, usize>,
) -> HashSet<String> {
    let stored = |name: &str| {
        let of = tensor_of.get(name).and_then(|&index| tensors.get(index));
        of.filter(|of| of.is_real() && of.elements() > 1 && of.dims.len() <= MOST_AXES)
    };
    let is_newer = signature(graph).is_some();
    let names = |kind: &'static str| targets(graph, kind).map(|(_, name)| name.to_string()).collect();
    let [mut parameters, buffers]: [HashSet<String>; 2] = ["PARAMETER", "BUFFER"].map(names);
    if !is_newer {
        parameters = tensor_of.keys().cloned().collect();
    }
    let modules: HashSet<&str> = parameters.iter().map(|name| module(name)).collect();
    let mut all: Vec<(&str, &OnnxTensor)> =
        parameters.iter().filter_map(|name| Some((&**name, stored(name)?))).collect();
    all.sort_unstable_by_key(|(name, _)| *name);
    // The parameter with the numbers of what a node reads, and whether it is the node's.
    let copied = |node: &NodeProto, input: &String| {
        let is_named = || parameters.contains(input) || buffers.contains(input);
        let is_copy = if is_newer { !is_named() } else { input.starts_with(COMPUTED) };
        let own = stored(input).filter(|_| is_copy)?;
        let is_first = |name: &str| !name.starts_with(COMPUTED) || name < input.as_str();
        let mut same = all.iter().filter(|(name, of)| is_first(name) && may_be(own, of));
        let (name, order) = same.find_map(|(name, of)| Some((*name, order_of(own, of)?)))?;
        let path = || called(scope(node), &modules).replace('/', ".");
        let is_own = || path() == format!(".{}", module(name)).trim_end_matches('.');
        Some((name.to_string(), order, is_newer || !name.starts_with(COMPUTED) && is_own()))
    };
    let (mut found, mut apart) = (Vec::new(), HashSet::new());
    for (number, node) in graph.node.iter().enumerate() {
        for (place, input) in node.input.iter().enumerate() {
            match copied(node, input) {
                Some((name, order, true)) => found.push((number, place, name, order)),
                Some(_) => drop(apart.insert(input.clone())),
                None => {}
            }
        }
    }
    for (number, place, name, order) in found.into_iter().rev() {
        read(graph, (number, place), name, &order);
    }
    apart
}

/// Whether two tensors may have the same numbers.
fn may_be(own: &OnnxTensor, other: &OnnxTensor) -> bool {
    let ends = |of: &OnnxTensor| of.ends().map(|ends| ends.map(f32::to_bits));
    own.elements() == other.elements() && ends(own) == ends(other)
}

/// An input of a node reads a tensor with its axes in this order.
fn read(graph: &mut GraphProto, (number, place): (usize, usize), name: String, order: &[usize]) {
    if order.is_sorted() {
        graph.node[number].input[place] = name;
        return;
    }
    let turned = format!("{}.turned.{place}", graph.node[number].output[0]);
    graph.node[number].input[place].clone_from(&turned);
    let ints = order.iter().map(|&axis| axis as i64).collect();
    let perm = AttributeProto { name: "perm".into(), ints, kind: kind::INTS, ..AttributeProto::default() };
    let node = NodeProto {
        name: turned.clone(),
        op_type: "Transpose".into(),
        input: vec![name],
        output: vec![turned],
        attribute: vec![perm],
        ..NodeProto::default()
    };
    graph.node.insert(number, node);
}

/// The order of another tensor's axes in which its numbers are a tensor's, not all of them alike.
fn order_of(own: &OnnxTensor, other: &OnnxTensor) -> Option<Vec<usize>> {
    let (numbers, others) = (own.reals().ok()?, other.reals().ok()?);
    let rank = own.dims.len();
    if rank != other.dims.len() || numbers.iter().all(|number| *number == numbers[0]) {
        return None;
    }
    let strides: Vec<usize> = (0..rank).map(|axis| other.dims[axis + 1..].iter().product()).collect();
    let is_same = |order: &[usize]| {
        let (mut index, mut at) = (vec![0; rank], 0);
        own.dims.iter().eq(order.iter().map(|&axis| &other.dims[axis]))
            && numbers.iter().all(|number| {
                let is_same = number.to_bits() == others[at].to_bits();
                for axis in (0..rank).rev() {
                    (index[axis], at) = (index[axis] + 1, at + strides[order[axis]]);
                    if index[axis] < own.dims[axis] {
                        break;
                    }
                    at -= own.dims[axis] * strides[order[axis]];
                    index[axis] = 0;
                }
                is_same
            })
    };
    orders(rank).into_iter().find(|order| is_same(order))
}

/// Every order of so many axes; as they are first.
fn orders(rank: usize) -> Vec<Vec<usize>> {
    match rank {
        0 => vec![Vec::new()],
        _ => orders(rank - 1)
            .into_iter()
            .flat_map(|order| {
                (0..rank).rev().map(move |at| {
                    let mut order = order.clone();
                    order.insert(at, rank - 1);
                    order
                })
            })
            .collect(),
    }
}

/// AlikeTensors of what the older exporter has computed, by their names.
#[derive(Default)]
pub struct AlikeTensors {
    /// Those that are learned apart.
    pub apart: HashSet<String>,
    /// Those that are learned as one, and may be those of another module or parameter.
    pub taken: HashSet<String>,
}

/// Reads a tensor in place of its copies where the older exporter has computed the same of one parameter for each call
/// of a module: it names the second call of `net.a` "/net/a_1/…", and gives each copy a name by a node of its own. What
/// other modules read that begins alike (`copy.deepcopy`) is learned apart.
pub fn read_once_a_module(graph: &mut GraphProto) -> AlikeTensors {
    let given = graph.node.iter().flat_map(|node| &node.output);
    let names = graph.initializer.iter().map(|tensor| &tensor.name).chain(given);
    let modules: HashSet<&str> = names.filter_map(|name| Some(name.rsplit_once('.')?.0)).collect();
    let reader = |name: &String| {
        graph.node.iter().find(|node| node.op_type != "Identity" && node.input.contains(name))
    };
    let copied = graph.node.iter().filter(|node| {
        let is_computed = |name: Option<&String>| name.is_some_and(|name| name.starts_with(COMPUTED));
        node.op_type == "Identity" && is_computed(node.input.first()) && is_computed(node.output.first())
    });
    let (mut same, mut copies): (HashMap<String, String>, AlikeTensors) = Default::default();
    for node in copied {
        let (own, copy) = (&node.input[0], &node.output[0]);
        let [Some(first), Some(other)] = [own, copy].map(|name| reader(name).map(scope)) else { continue };
        if first != called(other, &modules) {
            copies.apart.insert(copy.clone());
            continue;
        }
        same.insert(copy.clone(), own.clone());
        // A call may read two parameters that began alike, and of modules without names others may be called so.
        if first == other || !is_module(&first.replace('/', "."), &modules) {
            copies.taken.insert(copy.clone());
        }
    }
    for input in graph.node.iter_mut().flat_map(|node| &mut node.input) {
        if let Some(first) = same.get(input) {
            input.clone_from(first);
        }
    }
    copies
}

/// Whether a module has names, or is around one that has; what is around it may be left out.
fn is_module(name: &str, modules: &HashSet<&str>) -> bool {
    let whole = format!(".{}.", name.trim_start_matches('.'));
    modules.iter().any(|module| format!(".{module}.").contains(&whole))
}

/// The call of a module that a node belongs to, "/net/a_1".
fn scope(node: &NodeProto) -> &str {
    node.name.rsplit_once('/').map_or("", |(scope, _)| scope)
}

/// The module of a call, "/net/a_1" or "/net_1/a_1": "/net/a", unless there is a module `net.a_1`.
fn called(scope: &str, modules: &HashSet<&str>) -> String {
    let mut path = String::new();
    for part in scope.split('/').skip(1) {
        let whole = format!("{path}/{part}").replace('/', ".");
        let plain =
            part.rsplit_once('_').filter(|(_, call)| call.chars().all(|digit| digit.is_ascii_digit()));
        let plain = plain.filter(|_| !is_module(&whole, modules));
        path = format!("{path}/{}", plain.map_or(part, |(plain, _)| plain));
    }
    path
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::program::tests::{graph, node};
    use super::super::schema::{TensorProto, data_type};
    use super::*;

    fn read_by(graph: &GraphProto) -> Vec<String> {
        graph.node.iter().map(|node| format!("{} {}", node.op_type, node.input.join(" "))).collect()
    }

    #[test]
    fn a_parameter_that_is_written_once_more_is_read_once() {
        let numbers = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        let tensors = [
            ("w", vec![2, 3], numbers),
            ("turned", vec![3, 2], [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]),
            ("other", vec![3, 2], [1.0, 4.0, 2.0, 6.0, 3.0, 5.0]),
            ("same", vec![2, 3], numbers),
            ("flat", vec![6], numbers),
            ("cube", vec![1, 2, 3], numbers),
            ("ones", vec![2, 2], [1.0; 6]),
            ("others", vec![2, 2], [1.0; 6]),
            ("row", vec![3, 1, 2], [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]),
        ];
        let names = tensors.clone().map(|(name, ..)| name);
        let stored = tensors.map(|(name, dims, numbers)| {
            let float_data = numbers[..dims.iter().product::<i64>() as usize].to_vec();
            let data_type = data_type::FLOAT;
            let proto =
                TensorProto { name: name.into(), dims, data_type, float_data, ..TensorProto::default() };
            OnnxTensor::new(proto, Path::new(".")).unwrap()
        });
        let tensor_of = names.iter().zip(0..).map(|(name, at)| (name.to_string(), at)).collect();
        let nodes = names.map(|name| node("MatMul", "m", &["x", name], &format!("{name}.y"), "%m")).into();
        let mut graph = graph(&["w", "cube", "ones"], nodes, &[]);
        read_once(&mut graph, &stored, &tensor_of);
        let read = read_by(&graph);
        assert_eq!(read[..3], ["MatMul x w", "Transpose w", "MatMul x turned.y.turned.1"]);
        assert_eq!(read[3..6], ["MatMul x other", "MatMul x w", "MatMul x flat"]);
        assert_eq!(read[6..9], ["MatMul x cube", "MatMul x ones", "MatMul x others"]);
        assert_eq!(read[9..], ["Transpose cube", "MatMul x row.y.turned.1"]);
        assert_eq!([1, 9].map(|at| graph.node[at].attribute[0].ints.clone()), [vec![1, 0], vec![2, 0, 1]]);
    }

    #[test]
    fn a_module_that_is_called_again_reads_what_it_read_before() {
        let named = |name: &str, input: &str, output: &str| NodeProto {
            name: name.into(),
            ..node(if name.is_empty() { "Identity" } else { "MatMul" }, "", &[input], output, "")
        };
        let mut graph = GraphProto {
            node: vec![
                named("", "onnx::MatMul_1", "onnx::MatMul_2"),
                named("", "onnx::MatMul_1", "onnx::MatMul_3"),
                named("", "onnx::MatMul_1", "onnx::MatMul_4"),
                named("", "a.b.0.l.bias", "a.b.0.l_3.bias"),
                named("/a/b.0/l/MatMul", "onnx::MatMul_1", "y1"),
                named("/a_1/b.0/l_2/MatMul", "onnx::MatMul_2", "y2"),
                named("/a/b.1/l/MatMul", "onnx::MatMul_3", "y3"),
                named("/a/b.0/l_3/MatMul", "onnx::MatMul_4", "y4"),
                // Nothing has names in these.
                named("", "onnx::Mul_5", "onnx::Mul_6"),
                named("/r/Mul", "onnx::Mul_5", "y5"),
                named("/r_1/Mul", "onnx::Mul_6", "y6"),
            ],
            initializer: vec![TensorProto { name: "a.b.0.l.bias".into(), ..TensorProto::default() }],
            ..GraphProto::default()
        };
        let copies = read_once_a_module(&mut graph);
        assert_eq!((copies.apart.len(), copies.taken.len()), (2, 1));
        let wanted = [1, 1, 3, 4].map(|number| format!("MatMul onnx::MatMul_{number}"));
        assert_eq!(read_by(&graph)[4..8], wanted);
        assert_eq!(read_by(&graph)[9..], ["MatMul onnx::Mul_5"; 2]);
        // What is around a module may be left out.
        let modules = HashSet::from(["a.b", "a.b_1", "c"]);
        let calls = ["/b_1", "/b_2", "/c_1/b_2", "/d_1", "/c/c_x"];
        assert_eq!(calls.map(|call| called(call, &modules)), ["/b_1", "/b", "/c/b", "/d", "/c/c_x"]);
    }
}
