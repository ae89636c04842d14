//! Which tensors of a file are parameters, as PyTorch's exporter says it (`dynamo=True`): it names them all, beside
//! the buffers, and keeps other numbers, which it has computed in advance, among them. Those are learned only where
//! they may stand for parameters that the file has no longer: in the module that these belong to.
//!
//! The exporter keeps one of all small tensors with the same numbers, as new networks have many of (ones, zeros). Each
//! module gets its own again: PyTorch learns them apart.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use super::schema::{GraphProto, NodeProto, StringStringEntryProto, TensorProto};
use super::tensor::OnnxTensor;

const SIGNATURE: &str = "pkg.torch.export.ExportedProgram.graph_signature";
/// What the exporter says a node was made of.
pub const ORIGIN: &str = "pkg.torch.onnx.fx_node";
const SCOPES: &str = "pkg.torch.onnx.name_scopes";

/// Numbers of a tensor that may be kept for several: the exporter looks at no larger ones.
const MOST_TIED: i64 = 1024;

/// What a file says of its parameters.
pub struct Signature<'a> {
    graph: &'a GraphProto,
    tensor_of: &'a HashMap<String, usize>,
    parameters: HashSet<&'a str>,
    /// The same by what the exporter's program calls them.
    symbols: HashMap<&'a str, &'a str>,
    /// What is kept beside them, and not learned.
    buffers: HashSet<&'a str>,
    /// Parameters that are no tensors of the file.
    lacking: Vec<&'a str>,
}

/// The numbers of a tensor, where it has few.
pub type Numbers<'n> = &'n dyn Fn(&str) -> Option<Vec<f32>>;

/// What became of parameters that are no tensors of the file.
pub struct StandIns<'a> {
    /// Tensors that stand for them: no more than a module lacks.
    tensors: HashSet<&'a str>,
    /// Parameters for which none does.
    pub lost: Vec<&'a str>,
    /// Those of the tensors that are read by layers of no such parameter: the exporter has computed them of some.
    pub computed: Vec<&'a str>,
}

impl<'a> Signature<'a> {
    /// `None` where another program has written the file, or an older exporter.
    pub fn of(graph: &'a GraphProto, tensor_of: &'a HashMap<String, usize>) -> Option<Signature<'a>> {
        found(&graph.metadata_props, SIGNATURE)?;
        let [parameters, buffers] = ["PARAMETER", "BUFFER"]
            .map(|kind| targets(graph, kind).map(|(_, name)| name).collect::<HashSet<&str>>());
        let symbols = symbols(graph).collect();
        let mut lacking: Vec<&str> = parameters.iter().copied().collect();
        lacking.retain(|name| !tensor_of.contains_key(*name));
        lacking.sort_unstable();
        Some(Signature { graph, tensor_of, parameters, symbols, buffers, lacking })
    }

    fn tied(&self) -> Vec<Tied> {
        let mut readers: HashMap<&str, usize> = HashMap::new();
        for input in self.graph.node.iter().flat_map(|node| &node.input) {
            *readers.entry(input).or_default() += 1;
        }
        let mut tied = Vec::new();
        // Of each tensor that the exporter has computed the module that reads it first, and keeps it, and of which
        // parameters it then is.
        let mut first: HashMap<&str, (&str, Vec<&str>)> = HashMap::new();
        for (number, node) in self.graph.node.iter().enumerate() {
            let Some(own) = module_of(node) else { continue };
            for (place, input) in node.input.iter().enumerate().filter(|(_, input)| self.is_small(input)) {
                let name = match self.parameters.contains(&**input) {
                    true => self.own_parameter(node, place, readers[&**input] > 1),
                    false if statistic_at(node, place).is_some() || !self.lacks(own) => None,
                    false => {
                        let read = self.read_by(node);
                        let (keeps, of) = first.entry(input).or_insert_with(|| (own, read.clone()));
                        let is_tied = *keeps == own || read.iter().any(|name| of.contains(name));
                        (!is_tied).then(|| within(own, input))
                    }
                };
                tied.extend(name.map(|name| (number, place, name)));
            }
        }
        tied
    }

    /// Whether the exporter may have kept one such tensor for several.
    fn is_small(&self, name: &str) -> bool {
        let tensor = self.tensor_of.get(name).map(|&index| &self.graph.initializer[index]);
        tensor.is_some_and(|tensor| tensor.dims.iter().product::<i64>() <= MOST_TIED)
    }

    /// What a module calls its own tensor, in whose place a node of it reads a parameter; `None` where it reads what it
    /// means to.
    fn own_parameter(&self, node: &NodeProto, place: usize, is_shared: bool) -> Option<String> {
        let (own, input) = (module_of(node)?, &node.input[place]);
        let is_lacking = |name: &String| !self.tensor_of.contains_key(name);
        // What its layer reads by the exporter's program: layers that share a parameter name the same one.
        let read = self.read_by(node);
        if read.contains(&&**input) {
            return None;
        }
        if let Some(statistic) = statistic_at(node, place) {
            return Some(within(own, statistic)).filter(is_lacking);
        }
        // A parameter that one node alone reads is that of a layer before, of which the node became a part.
        if !is_shared || belongs(input, own) {
            return None;
        }
        if !self.learns(node) {
            return is_norm(node).then(|| format!("{input}.of.{own}"));
        }
        // What its module has of this name, or one within it of which the module reads it: `out_proj.weight`.
        let by_name = input.match_indices('.').map(|(at, _)| &input[at + 1..]).chain([&**input]);
        let by_place = ["weight", "bias"].get(place.wrapping_sub(1)).copied().filter(|_| is_norm(node));
        let names = by_name.chain(by_place).map(|last| within(own, last));
        names.filter(|name| self.parameters.contains(&**name)).find(is_lacking)
    }

    /// The parameters that a node's layer reads, as the exporter says it.
    fn read_by(&self, node: &NodeProto) -> Vec<&'a str> {
        let arguments = made_of(node).map_or("", |(_, arguments)| arguments);
        let names = arguments.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
        names.filter_map(|symbol| self.symbols.get(symbol).copied()).collect()
    }

    /// What stands for the parameters that the file lacks. Where a module reads no more tensors that it has not named
    /// than it lacks parameters itself, they are these, also single numbers; where modules within it lack some that
    /// none of theirs stands for, as attention reads those of its last layer, larger ones stand for these too. `axes`:
    /// how many a tensor of real numbers has that may be one. Without axes it is a constant: what is made of a
    /// parameter has some.
    pub fn stand_ins(&self, axes: impl Fn(&str) -> usize, numbers: Numbers) -> StandIns<'a> {
        let mut read: HashMap<&str, HashSet<&str>> = HashMap::new();
        for node in &self.graph.node {
            let own = module_of(node).unwrap_or_default();
            for (place, input) in node.input.iter().enumerate() {
                let is_named = self.parameters.contains(&**input) || self.buffers.contains(&**input);
                let is_computed = axes(input) > 0 && !is_named;
                if is_computed && statistic_at(node, place).is_none() && !is_left_out(node, input, numbers) {
                    read.entry(own).or_default().insert(input);
                }
            }
        }
        let mut modules: Vec<(&str, HashSet<&str>)> = read.into_iter().collect();
        // What is within a module comes before it, and the network itself last.
        modules.sort_unstable_by_key(|(own, _)| (own.is_empty(), Reverse(own.matches('.').count()), *own));
        let is_bias = |name: &&str| name.ends_with("bias");
        let (mut tensors, mut lost) = (HashSet::new(), self.lacking.clone());
        for (own, mut read) in modules {
            let is_own = |name: &&str| module(name) == own && !own.is_empty();
            let own_lacks = lost.iter().filter(|name| is_own(name)).count();
            if read.len() > own_lacks {
                // Such are factors: of what attention compares, say.
                read.retain(|name| numbers(name).is_none_or(|all| all.len() > 1));
            }
            let belongs = |name: &&str| own.is_empty() || belongs(name, own);
            let mut candidates: Vec<&str> = lost.iter().copied().filter(belongs).collect();
            if read.len() > candidates.len() {
                continue;
            }
            // Biases of zeros are left out, and weights are not. What is on one axis may be either.
            candidates.sort_by_key(|name| (!is_own(name), is_bias(name)));
            let is_weight = |name: &&str| axes(name) > 1;
            let known = if read.iter().all(is_weight) { read.len() } else { read.len().max(own_lacks) };
            lost.retain(|name| !candidates[..known].contains(name));
            tensors.extend(read);
        }
        let computed = tensors.iter().copied().filter(|name| self.is_computed(name)).collect();
        StandIns { tensors, lost, computed }
    }

    /// Whether layers read a tensor, none of which reads a parameter that the file lacks.
    fn is_computed(&self, name: &str) -> bool {
        let mut readers = self.graph.node.iter().filter(|node| node.input.iter().any(|input| input == name));
        readers.all(|node| {
            made_of(node).is_some() && !self.read_by(node).iter().any(|read| self.lacking.contains(read))
        })
    }

    /// Whether a module lacks a parameter.
    fn lacks(&self, own: &str) -> bool {
        self.lacking.iter().any(|name| module(name) == own)
    }

    /// Whether a tensor is learned; `None` where it may stand for a parameter that the file lacks.
    pub fn is_learned(&self, name: &str, stand_ins: &StandIns, numbers: Numbers) -> Option<bool> {
        let mut readers = self.graph.node.iter().filter(|node| node.input.iter().any(|input| input == name));
        match self.parameters.contains(name) || stand_ins.tensors.contains(name) {
            true => Some(true),
            false if self.buffers.contains(name) => Some(false),
            false if readers.any(|node| stands_for_another(node, name, &stand_ins.lost, numbers)) => None,
            false => Some(false),
        }
    }

    /// Whether a node's module has any parameter.
    fn learns(&self, node: &NodeProto) -> bool {
        module_of(node).is_none_or(|own| self.parameters.iter().any(|name| module(name) == own))
    }
}

/// Whether what a node reads may be made of one of the parameters that are lost.
fn stands_for_another(node: &NodeProto, name: &str, lost: &[&str], numbers: Numbers) -> bool {
    if is_left_out(node, name, numbers) {
        return false;
    }
    let Some(own) = module_of(node) else { return !lost.is_empty() };
    lost.iter().any(|name| belongs(name, own))
}

/// Whether a node is a normalisation and the tensor the ones or zeros by which an exporter writes that it has no scale
/// or shift, or part of attention and the tensor what that scales by.
fn is_left_out(node: &NodeProto, name: &str, numbers: Numbers) -> bool {
    if made_of(node).is_some_and(|(layer, _)| layer.starts_with("scaled_dot_product_attention")) {
        return numbers(name).is_some_and(|all| all.len() == 1);
    }
    let nothing = match node.input.iter().position(|input| input == name) {
        Some(1) => 1.0,
        _ => 0.0,
    };
    is_norm(node) && numbers(name).is_some_and(|all| all.iter().all(|&number| number == nothing))
}

fn is_norm(node: &NodeProto) -> bool {
    node.op_type.ends_with("Normalization")
}

/// Which running statistic a normalisation reads at a place, if it is one.
fn statistic_at(node: &NodeProto, place: usize) -> Option<&'static str> {
    ["running_mean", "running_var"].get(place.wrapping_sub(3)).copied().filter(|_| is_norm(node))
}

/// The name of a module's tensor.
fn within(module: &str, name: &str) -> String {
    if module.is_empty() { name.into() } else { format!("{module}.{name}") }
}

/// Whether a module is within another one, which may read its parameters, as attention does of its last layer.
fn is_within(module: &str, whole: &str) -> bool {
    !whole.is_empty() && module.strip_prefix(whole).is_some_and(|rest| rest.starts_with('.'))
}

/// Whether a parameter is a module's, or that of one within it.
fn belongs(parameter: &str, own: &str) -> bool {
    module(parameter) == own || is_within(module(parameter), own)
}

/// What reads a tensor in place of one of its own: the node and the input, by numbers, and what its own is called.
type Tied = (usize, usize, String);

/// Gives each module tensors of its own again, where the exporter has kept one for several.
pub fn untie(graph: &mut GraphProto) {
    let tensor_of: HashMap<String, usize> =
        graph.initializer.iter().enumerate().map(|(index, tensor)| (tensor.name.clone(), index)).collect();
    let Some(signature) = Signature::of(graph, &tensor_of) else { return };
    let tied = signature.tied();
    let mut own: HashSet<String> = tensor_of.keys().cloned().collect();
    for (node, input, name) in tied {
        let read = &mut graph.node[node].input[input];
        let Some(&index) = tensor_of.get(&*read) else { continue };
        if own.insert(name.clone()) {
            let copy = TensorProto { name: name.clone(), ..graph.initializer[index].clone() };
            graph.initializer.push(copy);
        }
        *read = name;
    }
}

/// Reads a parameter where the exporter has written it once more, with rows and columns exchanged: both are learned as
/// one.
pub fn turn_back(graph: &mut GraphProto, tensors: &[OnnxTensor], tensor_of: &HashMap<String, usize>) {
    let Some(signature) = Signature::of(graph, tensor_of) else { return };
    let stored = |name: &str| tensor_of.get(name).and_then(|&index| tensors.get(index));
    let matrix =
        |name: &str| stored(name).filter(|of| of.is_real() && of.dims.len() == 2 && of.elements() > 1);
    // The same however rows and columns lie; each is read once.
    let mut sums: HashMap<String, u64> = HashMap::new();
    let mut sum_of = |name: &str, of: &OnnxTensor| {
        let sum = || {
            of.reals().map_or(0, |all| all.iter().fold(0, |sum, x| u64::from(x.to_bits()).wrapping_add(sum)))
        };
        *sums.entry(name.into()).or_insert_with(sum)
    };
    let mut parameters: Vec<(&str, &OnnxTensor)> =
        signature.parameters.iter().filter_map(|name| Some((*name, matrix(name)?))).collect();
    parameters.sort_unstable_by_key(|(name, _)| *name);
    let is_named = |name: &str| signature.parameters.contains(name) || signature.buffers.contains(name);
    let mut found: Vec<(usize, usize, String)> = Vec::new();
    for (number, node) in graph.node.iter().enumerate() {
        for (place, input) in node.input.iter().enumerate() {
            let Some(own) = matrix(input).filter(|_| !is_named(input)) else { continue };
            let mut same = parameters.iter().filter(|(name, other)| {
                own.dims == [other.dims[1], other.dims[0]]
                    && sum_of(input, own) == sum_of(name, other)
                    && is_transposed(own, other)
            });
            found.extend(same.next().map(|(name, _)| (number, place, name.to_string())));
        }
    }
    for (number, place, name) in found.into_iter().rev() {
        let turned = format!("{}.turned.{place}", graph.node[number].output[0]);
        graph.node[number].input[place].clone_from(&turned);
        let node = NodeProto {
            name: turned.clone(),
            op_type: "Transpose".into(),
            input: vec![name],
            output: vec![turned],
            ..NodeProto::default()
        };
        graph.node.insert(number, node);
    }
}

/// Whether two matrices of such extents have the same numbers, with rows and columns exchanged.
fn is_transposed(one: &OnnxTensor, other: &OnnxTensor) -> bool {
    let [rows, columns] = one.dims[..] else { return false };
    let (Ok(own), Ok(other)) = (one.reals(), other.reals()) else { return false };
    let is_same = |at: usize| own[at].to_bits() == other[at % columns * rows + at / columns].to_bits();
    // Tables of ones are those of nobody.
    own.iter().any(|number| *number != own[0]) && (0..own.len()).all(is_same)
}

fn found<'a>(entries: &'a [StringStringEntryProto], key: &str) -> Option<&'a str> {
    entries.iter().find(|entry| entry.key == key).map(|entry| &*entry.value)
}

/// Of which layer the exporter made a node, and the layer's arguments: "…[target=torch.ops.aten.linear.default](args =
/// (%x, %p_fc_weight, %p_fc_bias), kwargs = {})".
pub fn made_of(node: &NodeProto) -> Option<(&str, &str)> {
    let (_, layer) = found(&node.metadata_props, ORIGIN)?.split_once("[target=torch.ops.aten.")?;
    layer.split_once("](args = (")
}

/// What the exporter's program calls each parameter, and the network.
pub fn symbols(graph: &GraphProto) -> impl Iterator<Item = (&str, &str)> {
    targets(graph, "PARAMETER")
}

/// The same of parameters or buffers, of lines as "p_fc_weight: PARAMETER target='fc.weight'".
fn targets<'a>(graph: &'a GraphProto, kind: &'static str) -> impl Iterator<Item = (&'a str, &'a str)> {
    let of = move |line: &'a str| {
        let (symbol, target) = line.split_once(kind)?;
        Some((symbol.trim_end().strip_suffix(':')?, target.strip_prefix(" target='")?.split('\'').next()?))
    };
    found(&graph.metadata_props, SIGNATURE).unwrap_or_default().lines().filter_map(of)
}

/// The module of a parameter; of one that others are computed from (`torch.nn.utils.parametrize`) that of these.
fn module(parameter: &str) -> &str {
    let whole = parameter.split_once(".parametrizations.").map_or(parameter, |(of, _)| of);
    match whole.len() < parameter.len() {
        true => whole,
        false => parameter.rsplit_once('.').map_or("", |(module, _)| module),
    }
}

/// The module of a node: "['', 'layer1', 'layer1.0', 'conv2d']" ends in the node itself.
fn module_of(node: &NodeProto) -> Option<&str> {
    let names: Vec<&str> = found(&node.metadata_props, SCOPES)?.split('\'').skip(1).step_by(2).collect();
    names.len().checked_sub(2).map(|at| names[at])
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::schema::data_type;
    use super::*;

    fn entry(key: &str, value: &str) -> StringStringEntryProto {
        StringStringEntryProto { key: key.into(), value: value.into() }
    }

    fn node(op_type: &str, module: &str, input: &[&str]) -> NodeProto {
        NodeProto {
            op_type: op_type.into(),
            input: input.iter().map(ToString::to_string).collect(),
            metadata_props: vec![entry(SCOPES, &format!("['', '{module}', 'op']"))],
            ..NodeProto::default()
        }
    }

    /// New networks, of which the exporter keeps one tensor of ones and one of zeros.
    fn new_network() -> GraphProto {
        let parameters = [
            "a.weight",
            "a.bias",
            "b.weight",
            "b.bias",
            "d.gain",
            "e.0.weight",
            "e.1.weight",
            "e.1.bias",
            "f.bias",
        ];
        let signature: String =
            parameters.iter().map(|name| format!("p: PARAMETER target='{name}'\n")).collect();
        let tensor = |name: &str, number: f32| TensorProto {
            name: name.into(),
            dims: vec![2],
            float_data: vec![number; 2],
            ..TensorProto::default()
        };
        let all = ["x", "a.weight", "a.bias", "a.bias", "a.weight"];
        GraphProto {
            node: vec![
                node("BatchNormalization", "a", &all),
                node("BatchNormalization", "b", &all),
                node("BatchNormalization", "plain", &all),
                node("Mul", "d", &["x", "val_1"]),
                node("Mul", "resize", &["x", "val_1"]),
                node("Mul", "tied", &["x", "a.weight"]),
                // Normalisations that became part of convolutions before them.
                node("Conv", "e.1", &["x", "e.0.weight", "e.0.weight_bias"]),
            ],
            initializer: [
                ("a.weight", 1.0),
                ("a.bias", 0.0),
                ("val_1", 1.0),
                ("e.0.weight", 2.0),
                ("e.0.weight_bias", 3.0),
            ]
            .map(|(name, number)| tensor(name, number))
            .into(),
            metadata_props: vec![entry(SIGNATURE, &signature)],
            ..GraphProto::default()
        }
    }

    #[test]
    fn what_was_kept_for_several_modules_is_each_ones_own_again() {
        let mut graph = new_network();
        untie(&mut graph);
        let read: Vec<&[String]> = graph.node.iter().map(|node| &node.input[1..]).collect();
        assert_eq!(read[0], ["a.weight", "a.bias", "a.running_mean", "a.running_var"]);
        assert_eq!(read[1], ["b.weight", "b.bias", "b.running_mean", "b.running_var"]);
        assert_eq!(read[2][2..], ["plain.running_mean", "plain.running_var"]);
        assert_eq!((&*read[3][0], &*read[5][0]), ("val_1", "a.weight"));
        assert_eq!(read[6], ["e.0.weight", "e.0.weight_bias"]);
        let tensor_of: HashMap<String, usize> =
            graph.initializer.iter().enumerate().map(|(at, tensor)| (tensor.name.clone(), at)).collect();
        let signature = Signature::of(&graph, &tensor_of).unwrap();
        let numbers = |name: &str| Some(graph.initializer[tensor_of[name]].float_data.clone());
        let stand_ins = signature.stand_ins(|name| tensor_of.contains_key(name).into(), &numbers);
        let is_learned = |name: &str| signature.is_learned(name, &stand_ins, &numbers);
        let learned: Vec<Option<bool>> =
            [&*read[0][0], &read[1][0], &read[1][1], &read[2][0], &read[2][1]].map(is_learned).into();
        assert_eq!(learned, [true, true, true, false, false].map(Some));
        // They are what `d` scales by in another shape, and what became of the normalisation `e.1`.
        assert_eq!([is_learned("val_1"), is_learned("e.0.weight_bias")], [Some(true); 2]);
        assert_eq!(stand_ins.lost, ["f.bias"]);
    }

    /// What attention compares is scaled by a number, and the weights that its layers lack stand in these.
    #[test]
    fn factors_and_buffers_stand_for_no_parameter() {
        let names = ["a.q.weight", "a.o.weight", "a.o.bias", "a.in.weight"];
        let signature: String = names.iter().map(|name| format!("p: PARAMETER target='{name}'\n")).collect();
        let signature = signature + "b_a_mean: BUFFER target='a.mean' persistent=True\n";
        let tensor_of: HashMap<String, usize> = ["q_turned", "o_turned", "in_turned", "scale", "a.mean"]
            .into_iter()
            .enumerate()
            .map(|(at, name)| (name.to_string(), at))
            .collect();
        let graph = GraphProto {
            node: vec![
                node("Sub", "a", &["x", "a.mean"]),
                node("MatMul", "a.q", &["x", "q_turned"]),
                node("MatMul", "a", &["x", "in_turned"]),
                node("Mul", "a", &["x", "scale"]),
                node("Mul", "a", &["y", "scale"]),
                node("MatMul", "a.o", &["x", "o_turned"]),
            ],
            metadata_props: vec![entry(SIGNATURE, &signature)],
            ..GraphProto::default()
        };
        let signature = Signature::of(&graph, &tensor_of).unwrap();
        let numbers = |name: &str| Some(vec![0.5; if name == "scale" { 1 } else { 4 }]);
        let axes = |name: &str| match name {
            "scale" | "a.mean" => 1,
            name => 2 * usize::from(tensor_of.contains_key(name)),
        };
        let stand_ins = signature.stand_ins(axes, &numbers);
        let is_learned = |name: &&str| signature.is_learned(name, &stand_ins, &numbers) == Some(true);
        let mut learned: Vec<&str> = tensor_of.keys().map(|name| &**name).filter(is_learned).collect();
        learned.sort_unstable();
        assert_eq!(learned, ["in_turned", "o_turned", "q_turned"]);
        assert_eq!(stand_ins.lost, ["a.o.bias"]);
        assert_eq!(signature.is_learned("a.mean", &stand_ins, &numbers), Some(false));
        // Where a module lacks a bias the factor is no stand-in for it either.
        let text = "%a : [num_users=1] = \
                    call_function[target=torch.ops.aten.scaled_dot_product_attention.default](args = (%q, %k, %v), \
                    kwargs = {})";
        let props = |lost: &str| vec![entry(SIGNATURE, &format!("p: PARAMETER target='{lost}'\n"))];
        let mut factor = node("Mul", "a", &["x", "scale"]);
        factor.metadata_props.push(entry(ORIGIN, text));
        let graph =
            GraphProto { node: vec![factor], metadata_props: props("a.bias"), ..GraphProto::default() };
        let signature = Signature::of(&graph, &tensor_of).unwrap();
        let stand_ins = signature.stand_ins(axes, &numbers);
        assert_eq!((stand_ins.lost.as_slice(), stand_ins.tensors.len()), (&["a.bias"][..], 0));
        assert_eq!(signature.is_learned("scale", &stand_ins, &numbers), Some(false));
    }

    /// Two layers of one weight, and two whose weights began alike: the exporter has computed one tensor for each pair.
    #[test]
    fn layers_share_what_the_exporters_program_has_once() {
        let names = ["a.bias", "b.weight", "b.bias", "c.weight", "d.weight"];
        let line = |name: &&str| format!("p_{}: PARAMETER target='{name}'\n", name.replace('.', "_"));
        let signature: String = names.iter().map(line).collect();
        let layer = |module: &str, input: &str, of: &str| {
            let mut node = node("MatMul", module, &["x", input]);
            let text = format!(
                "%l : [num_users=1] = call_function[target=torch.ops.aten.linear.default](args = (%x, {of}), \
                 kwargs = {{}})"
            );
            node.metadata_props.push(entry(ORIGIN, &text));
            node
        };
        let tensor =
            |name: &str| TensorProto { name: name.into(), dims: vec![2, 3], ..TensorProto::default() };
        let mut graph = GraphProto {
            node: vec![
                layer("a", "val_0", "%p_b_weight, %p_a_bias"),
                layer("b", "val_0", "%p_b_weight, %p_b_bias"),
                layer("c", "val_1", "%p_c_weight"),
                layer("d", "val_1", "%p_d_weight"),
            ],
            initializer: ["val_0", "val_1"].map(tensor).into(),
            metadata_props: vec![entry(SIGNATURE, &signature)],
            ..GraphProto::default()
        };
        untie(&mut graph);
        let read: Vec<&str> = graph.node.iter().map(|node| &*node.input[1]).collect();
        assert_eq!(read, ["val_0", "val_0", "val_1", "d.val_1"]);
    }

    #[test]
    fn a_parameter_that_is_written_turned_as_well_is_read_once() {
        let numbers = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        let tensor = |name: &str, dims: [i64; 2], numbers: [f32; 6]| {
            let proto = TensorProto {
                name: name.into(),
                dims: dims.into(),
                data_type: data_type::FLOAT,
                float_data: numbers.into(),
                ..TensorProto::default()
            };
            OnnxTensor::new(proto, Path::new(".")).unwrap()
        };
        let tensors = [
            tensor("w", [2, 3], numbers),
            tensor("turned", [3, 2], [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]),
            tensor("other", [3, 2], [1.0, 4.0, 2.0, 6.0, 3.0, 5.0]),
            tensor("plain", [2, 3], numbers),
        ];
        let tensor_of = ["w", "turned", "other", "plain"]
            .iter()
            .zip(0..)
            .map(|(name, at)| (name.to_string(), at))
            .collect();
        let mut graph = GraphProto {
            node: ["w", "turned", "other", "plain"]
                .map(|name| NodeProto {
                    output: vec![format!("{name}.y")],
                    ..node("MatMul", "m", &["x", name])
                })
                .into(),
            metadata_props: vec![entry(SIGNATURE, "p_w: PARAMETER target='w'\n")],
            ..GraphProto::default()
        };
        turn_back(&mut graph, &tensors, &tensor_of);
        let read: Vec<String> =
            graph.node.iter().map(|node| format!("{} {}", node.op_type, node.input.join(" "))).collect();
        assert_eq!(
            read,
            ["MatMul x w", "Transpose w", "MatMul x turned.y.turned.1", "MatMul x other", "MatMul x plain"]
        );
    }

    #[test]
    fn parameters_belong_to_modules() {
        assert_eq!(["w", "fc.weight", "a.b.weight"].map(module), ["", "fc", "a.b"]);
        assert_eq!(module("fc.parametrizations.weight.original0"), "fc");
        assert_eq!(module_of(&node("Mul", "a.b", &[])), Some("a.b"));
        assert!(is_within("attn.out", "attn") && !is_within("attn2", "attn") && !is_within("a", ""));
    }
}
