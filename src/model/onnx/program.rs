//! What PyTorch's exporter (`dynamo=True`) says each node was made of: a call of the network's program, and by that the
//! parameters that the node reads.
//!
//! The exporter keeps one of all small tensors with the same numbers, as new networks have many of (ones, zeros), and
//! writes others anew, as it computes with them (a matrix with rows and columns exchanged). Here each gets the name of
//! its parameter again: PyTorch learns those apart that its program has apart, and those as one that it has once.

use std::collections::{HashMap, HashSet};

use super::merged;
use super::order::reads;
use super::schema::{GraphProto, NodeProto, StringStringEntryProto, TensorProto, data_type};

/// What the exporter says of parameters and buffers.
const SIGNATURE: &str = "pkg.torch.export.ExportedProgram.graph_signature";
/// What the exporter says a node was made of.
pub const ORIGIN: &str = "pkg.torch.onnx.fx_node";
/// The modules that it is in.
pub const SCOPES: &str = "pkg.torch.onnx.name_scopes";

/// What reads a tensor in place of another one: the node and the input, by numbers, and what the other is called.
type Claim = (usize, usize, String);

/// The program of which the exporter made a file.
pub struct ExportedProgram<'a> {
    /// What it made of it.
    pub graph: &'a GraphProto,
    /// The file's tensors.
    pub tensors: HashMap<&'a str, &'a TensorProto>,
    /// What the file calls a parameter or buffer, by what the program calls it.
    pub names: HashMap<&'a str, &'a str>,
    /// The same, without what the program calls them.
    pub kept: HashSet<&'a str>,
    /// Those of them that are buffers.
    pub buffers: HashSet<&'a str>,
    /// Whatever the program's calls give or are given.
    pub symbols: HashSet<&'a str>,
    /// Parameters and buffers that a call reads.
    pub read: HashSet<&'a str>,
}

impl<'a> ExportedProgram<'a> {
    /// `None` where another program has written the file, or an older exporter.
    pub fn of(graph: &'a GraphProto) -> Option<ExportedProgram<'a>> {
        let signature = signature(graph)?;
        let kept = ["PARAMETER", "BUFFER"].into_iter().flat_map(|kind| targets(graph, kind));
        let names: HashMap<&str, &str> = kept.collect();
        let inputs = signature.lines().filter_map(|line| line.strip_suffix(": USER_INPUT"));
        let given = graph.node.iter().filter_map(symbol_of);
        let mut program = ExportedProgram {
            graph,
            tensors: graph.initializer.iter().map(|tensor| (&*tensor.name, tensor)).collect(),
            kept: names.values().copied().collect(),
            buffers: targets(graph, "BUFFER").map(|(_, name)| name).collect(),
            names,
            symbols: inputs.chain(given).collect(),
            read: HashSet::new(),
        };
        program.read = graph.node.iter().flat_map(|node| program.read_by(node)).collect();
        Some(program)
    }

    /// Whether a parameter, a buffer, an input or what a node gives is called so.
    pub fn is_known(&self, symbol: &str) -> bool {
        self.symbols.contains(symbol) || self.names.contains_key(symbol)
    }

    /// The parameters and buffers that a node's call reads, in its order.
    pub fn read_by(&self, node: &NodeProto) -> Vec<&'a str> {
        let mut all = Vec::new();
        for name in arguments(node).filter_map(|symbol| self.names.get(symbol).copied()) {
            if !all.contains(&name) {
                all.push(name);
            }
        }
        // What a product is added to comes behind its factors, as nodes have it.
        if made_of(node).is_some_and(|(layer, _)| layer.starts_with("addmm.")) && all.len() > 1 {
            all.rotate_left(1);
        }
        all
    }

    /// Every input that reads a parameter or buffer by another name.
    fn claims(&self) -> Vec<Claim> {
        let mut calls: Vec<Vec<usize>> = Vec::new();
        let mut place_of: HashMap<&str, usize> = HashMap::new();
        let mut claims = Vec::new();
        for (number, node) in self.graph.node.iter().enumerate() {
            let layer = made_of(node).map_or("", |(layer, _)| layer);
            match (&*node.op_type, origin(node)) {
                ("BatchNormalization", _) if layer.contains("batch_norm") => {
                    claims.extend(self.of_statistics(number));
                }
                // A normalisation that became part of a convolution has what that reads.
                (_, Some(_)) if layer.is_empty() || layer.contains("batch_norm") => {}
                // Ones and zeros, a number for each group.
                ("InstanceNormalization", _) if layer.starts_with("group_norm.") => {
                    let of_groups = node.input.iter().enumerate().skip(1);
                    claims.extend(of_groups.filter_map(|(place, _)| self.aside(number, place)));
                }
                (_, Some(text)) => {
                    let place = *place_of.entry(text).or_insert(calls.len());
                    calls.resize(calls.len().max(place + 1), Vec::new());
                    calls[place].push(number);
                }
                (_, None) => claims.extend(self.of_module(number)),
            }
        }
        claims.extend(calls.iter().flat_map(|nodes| self.of_call(nodes)));
        claims
    }

    /// A constant with the numbers of a parameter or buffer that another call reads.
    fn aside(&self, number: usize, place: usize) -> Option<Claim> {
        let node = &self.graph.node[number];
        let input = &node.input[place];
        self.read.contains(&**input).then(|| (number, place, format!("{input}.of.{}", node.output[0])))
    }

    /// What a batch normalisation reads, which its call has at the same places; where the call has none there, ones and
    /// zeros.
    fn of_statistics(&self, number: usize) -> Vec<Claim> {
        let node = &self.graph.node[number];
        let Some((_, arguments)) = made_of(node) else { return Vec::new() };
        let named = |(place, text): (usize, &str)| {
            node.input.get(place).filter(|input| self.tensors.contains_key(&***input))?;
            match text.trim().strip_prefix('%') {
                None => self.aside(number, place),
                Some(symbol) => Some((number, place, (*self.names.get(symbol)?).to_string())),
            }
        };
        arguments.split(',').enumerate().take(5).skip(1).filter_map(named).collect()
    }

    /// What the nodes of a call read: those tensors that its program does not name stand, in their order, for the
    /// parameters that no node names.
    fn of_call(&self, nodes: &[usize]) -> Vec<Claim> {
        let first = &self.graph.node[nodes[0]];
        let mut wanted = self.read_by(first);
        let arguments: HashSet<&str> = arguments(first).collect();
        let inputs = |&number: &usize| {
            let inputs = self.graph.node[number].input.iter().enumerate();
            inputs.map(move |(place, input)| (number, place, &**input))
        };
        let mut read: Vec<(usize, usize, &str)> = nodes.iter().flat_map(inputs).collect();
        let own: HashSet<&str> = read.iter().map(|&(.., input)| input).collect();
        read.retain(|(.., input)| {
            !wanted.contains(input) && !arguments.contains(input) && self.may_stand(input)
        });
        wanted.retain(|name| !own.contains(name));
        if wanted.is_empty() {
            read.retain(|_| arguments.iter().all(|symbol| self.is_known(symbol)));
            return read.into_iter().filter_map(|(number, place, _)| self.aside(number, place)).collect();
        }
        // What has been computed of a parameter and a buffer is neither.
        let buffers = wanted.iter().filter(|name| self.buffers.contains(*name)).count();
        if read.len() < wanted.len() && buffers > 0 && buffers < wanted.len() {
            return Vec::new();
        }
        // One that is read twice is one parameter, unless there are as many.
        let mut stand: Vec<&str> = read.iter().map(|&(.., input)| input).collect();
        if stand.len() <= wanted.len() {
            let claim =
                |((number, place, _), name): ((usize, usize, &str), &str)| (number, place, name.into());
            return read.into_iter().zip(wanted).map(claim).collect();
        }
        let mut known = HashSet::new();
        stand.retain(|name| known.insert(*name));
        if stand.len() > wanted.len() {
            stand.retain(|name| self.read.contains(name) || numbers(self.tensors[name]) > 1);
        }
        let name_of =
            |input: &str| stand.iter().position(|name| *name == input).map(|at| wanted[at].to_string());
        let claim = |(number, place, input): (usize, usize, &str)| Some((number, place, name_of(input)?));
        if stand.len() > wanted.len() { Vec::new() } else { read.into_iter().filter_map(claim).collect() }
    }

    /// Whether a tensor may be read in place of a parameter: one that another call reads, or that has no name.
    fn may_stand(&self, input: &str) -> bool {
        let Some(tensor) = self.tensors.get(input) else { return false };
        let is_array = data_type::REALS.contains(&tensor.data_type) && !tensor.dims.is_empty();
        if self.kept.contains(input) { self.read.contains(input) } else { is_array }
    }

    /// What a node of no call reads, such as the one that takes a parameter apart: the parameter of this name of the
    /// module that reads what the node gives.
    fn of_module(&self, number: usize) -> Vec<Claim> {
        let node = &self.graph.node[number];
        let reads_it = |other: &&NodeProto| other.input.iter().any(|input| node.output.contains(input));
        let of_reader = || self.graph.node.iter().find(reads_it).and_then(module_of);
        let Some(own) = module_of(node).or_else(of_reader) else { return Vec::new() };
        let claim = |(place, input): (usize, &String)| {
            let name = within(own, last(input));
            let is_lacking = !self.tensors.contains_key(&*name) && self.kept.contains(&*name);
            (self.tensors.contains_key(&**input) && is_lacking).then_some((number, place, name))
        };
        node.input.iter().enumerate().filter_map(claim).collect()
    }
}

/// What nodes read in the program and not in the file, by what the program calls it.
#[derive(Default)]
pub struct LeftOutCalls {
    /// Calls that learn, of which the exporter has made one with others of the same numbers.
    pub merged: Vec<String>,
    /// Batch normalisations that became part of the layers before them, by their modules.
    pub fused: Vec<String>,
    /// What no gradient goes through.
    pub detached: Vec<String>,
}

/// What the exporter has left out.
pub fn left_out(graph: &GraphProto) -> LeftOutCalls {
    let Some(program) = ExportedProgram::of(graph) else { return LeftOutCalls::default() };
    let learns = |node: &&NodeProto| !program.read_by(node).is_empty();
    let learning: HashSet<&str> = graph.node.iter().filter(learns).filter_map(symbol_of).collect();
    let mut left: [HashSet<&str>; 3] = Default::default();
    for node in &graph.node {
        let is_norm = made_of(node).is_some_and(|(layer, _)| layer.contains("batch_norm"));
        let (names, is_fused) = (program.read_by(node), is_norm && node.op_type != "BatchNormalization");
        left[1].extend(
            names.iter().filter(|name| is_fused && last(name) == "running_mean").map(|name| module(name)),
        );
        for symbol in arguments(node) {
            // Of a call that was computed in advance a node reads a tensor; of a merged one what the other one gives.
            let is_twin = |input: &String| learning.contains(&**input) && kind(input) == kind(symbol);
            if kind(symbol) == "detach" {
                left[2].insert(symbol);
            } else if !is_fused && !program.is_known(symbol) && node.input.iter().any(is_twin) {
                left[0].insert(symbol);
            }
        }
    }
    let [merged, fused, detached] = left.map(|names| {
        let mut names: Vec<String> = names.into_iter().map(String::from).collect();
        names.sort_unstable();
        names
    });
    LeftOutCalls { merged, fused, detached }
}

/// What a call does, by what the program calls what it gives: "linear" of "linear_2".
pub fn kind(symbol: &str) -> &str {
    symbol.trim_end_matches(|letter: char| letter.is_ascii_digit() || letter == '_')
}

/// What the program calls what a node's call gives.
fn symbol_of(node: &NodeProto) -> Option<&str> {
    origin(node)?.split_once(" : ")?.0.strip_prefix('%')
}

/// Gives each tensor that stands for a parameter or buffer its name, and each of these a tensor of its own. What the
/// file has under its name stays as it is, also where another tensor stands for it somewhere.
pub fn name_tensors(graph: &mut GraphProto) {
    if signature(graph).is_none() {
        return;
    }
    merged::repeat(graph);
    let claims = ExportedProgram::of(graph).map_or_else(Vec::new, |program| program.claims());
    let stored: HashMap<String, usize> =
        graph.initializer.iter().enumerate().map(|(index, tensor)| (tensor.name.clone(), index)).collect();
    let (mut made, mut left): (HashMap<String, usize>, HashSet<String>) = Default::default();
    for (node, place, name) in claims {
        let read = &mut graph.node[node].input[place];
        let Some(&index) = stored.get(&*read).filter(|_| !stored.contains_key(&name)) else { continue };
        let is_new = !made.contains_key(&name);
        if *made.entry(name.clone()).or_insert(index) != index {
            continue;
        }
        if is_new {
            let copy = TensorProto { name: name.clone(), ..graph.initializer[index].clone() };
            graph.initializer.push(copy);
        }
        left.insert(std::mem::replace(read, name));
    }
    let read: HashSet<&str> = graph.node.iter().flat_map(reads).collect();
    left.retain(|name| !read.contains(&**name));
    graph.initializer.retain(|tensor| !left.contains(&tensor.name));
}

fn numbers(tensor: &TensorProto) -> i64 {
    tensor.dims.iter().product()
}

/// What a file says of something.
pub fn entry(key: &str, value: &str) -> StringStringEntryProto {
    StringStringEntryProto { key: key.into(), value: value.into() }
}

fn found<'a>(entries: &'a [StringStringEntryProto], key: &str) -> Option<&'a str> {
    entries.iter().find(|entry| entry.key == key).map(|entry| &*entry.value)
}

/// What the exporter says of parameters and buffers; `None` where another program has written the file, or an older
/// exporter.
pub fn signature(graph: &GraphProto) -> Option<&str> {
    found(&graph.metadata_props, SIGNATURE)
}

/// What the exporter says a node was made of.
pub fn origin(node: &NodeProto) -> Option<&str> {
    found(&node.metadata_props, ORIGIN)
}

/// Of which layer the exporter made a node, and the layer's arguments: "…[target=torch.ops.aten.linear.default](args =
/// (%x, %p_fc_weight, %p_fc_bias), kwargs = {})".
pub fn made_of(node: &NodeProto) -> Option<(&str, &str)> {
    origin(node)?.split_once("[target=torch.ops.aten.")?.1.split_once("](args = (")
}

/// What the program calls the arguments of a node's call.
pub fn arguments(node: &NodeProto) -> impl Iterator<Item = &str> {
    let (_, arguments) = made_of(node).unwrap_or_default();
    let behind = |text: &'_ str| text.find(|letter: char| !letter.is_alphanumeric() && letter != '_');
    arguments.split('%').skip(1).map(move |text| &text[..behind(text).unwrap_or(text.len())])
}

/// What the exporter's program calls each parameter or buffer, and the network, of lines as
/// "p_fc_weight: PARAMETER target='fc.weight'".
pub fn targets<'a>(graph: &'a GraphProto, kind: &'static str) -> impl Iterator<Item = (&'a str, &'a str)> {
    let of = move |line: &'a str| {
        let (symbol, target) = line.split_once(kind)?;
        Some((symbol.trim_end().strip_suffix(':')?, target.strip_prefix(" target='")?.split('\'').next()?))
    };
    signature(graph).unwrap_or_default().lines().filter_map(of)
}

/// What a module calls a tensor of its own.
pub fn last(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

/// The name of a module's tensor.
pub fn within(module: &str, name: &str) -> String {
    if module.is_empty() { name.into() } else { format!("{module}.{name}") }
}

/// The module of a parameter; of one that others are computed from (`torch.nn.utils.parametrize`) that of these.
pub fn module(parameter: &str) -> &str {
    let whole = parameter.split_once(".parametrizations.").map_or(parameter, |(of, _)| of);
    match whole.len() < parameter.len() {
        true => whole,
        false => parameter.rsplit_once('.').map_or("", |(module, _)| module),
    }
}

/// The module of a node: "['', 'layer1', 'layer1.0', 'conv2d']" ends in the node itself.
pub fn module_of(node: &NodeProto) -> Option<&str> {
    let names: Vec<&str> = found(&node.metadata_props, SCOPES)?.split('\'').skip(1).step_by(2).collect();
    names.len().checked_sub(2).map(|at| names[at])
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A node of a module, and what it was made of.
    pub fn node(op_type: &str, module: &str, input: &[&str], output: &str, text: &str) -> NodeProto {
        let scopes = entry(SCOPES, &format!("['', '{module}', 'op']"));
        let props = [entry(ORIGIN, text), scopes];
        NodeProto {
            op_type: op_type.into(),
            input: input.iter().map(ToString::to_string).collect(),
            output: vec![output.into()],
            metadata_props: if text.is_empty() { Vec::new() } else { props.into() },
            ..NodeProto::default()
        }
    }

    /// Nodes of a network with these parameters, and tensors of two numbers.
    pub fn graph(parameters: &[&str], node: Vec<NodeProto>, tensors: &[&str]) -> GraphProto {
        let symbol = |name: &str| format!("p_{}", name.replace('.', "_"));
        let mut signature: String =
            parameters.iter().map(|name| format!("{}: PARAMETER target='{name}'\n", symbol(name))).collect();
        signature += "b_n_running_mean: BUFFER target='n.running_mean' persistent=True\nx: USER_INPUT\n";
        let tensor = |name: &&str| TensorProto {
            name: name.to_string(),
            dims: vec![2],
            data_type: data_type::FLOAT,
            float_data: vec![1.0; 2],
            ..TensorProto::default()
        };
        GraphProto {
            node,
            initializer: tensors.iter().map(tensor).collect(),
            metadata_props: vec![entry(SIGNATURE, &signature)],
            ..GraphProto::default()
        }
    }

    fn call(op: &str, module: &str, input: &[&str], output: &str, (layer, of): (&str, &str)) -> NodeProto {
        let text = format!(
            "%{output} : [num_users=1] = call_function[target=torch.ops.aten.{layer}](args = ({of}), kwargs = {{}})"
        );
        node(op, module, input, output, &text)
    }

    /// What each node reads behind its first input, of which the exporter has kept one for several.
    #[test]
    fn tensors_have_the_names_of_the_parameters_that_they_stand_for() {
        let linear = |module: &str, input: &[&str], output: &str, of: &str| {
            call("MatMul", module, input, output, ("linear.default", of))
        };
        let norm = |module: &str, inputs: [&str; 4], output: &str, of: &str| {
            let all = [&["x"][..], &inputs].concat();
            call("BatchNormalization", module, &all, output, ("batch_norm.default", of))
        };
        let parameters = [
            "a.w", "a.b", "b.w", "b.b", "c.w", "d.w", "e.g", "f.g", "n.weight", "n.bias", "h.w", "h.b",
            "i.w", "i.b", "s.b", "j.w",
        ];
        let nodes = vec![
            // Two that are tied, two that began alike, of a matrix that was computed.
            linear("a", &["x", "val_0", "a.b"], "l", "%x, %p_b_w, %p_a_b"),
            linear("b", &["x", "val_0", "a.b"], "l_1", "%x, %p_b_w, %p_b_b"),
            linear("c", &["x", "val_1"], "l_2", "%x, %p_c_w"),
            linear("d", &["x", "val_1"], "l_3", "%x, %p_d_w"),
            // Parameters of one module that began alike, and a constant with the same numbers.
            call("Mul", "e", &["x", "e.g"], "m", ("mul.Tensor", "%x, %p_e_g")),
            call("Mul", "e", &["x", "e.g"], "m_1", ("mul.Tensor", "%x, %p_f_g")),
            call("Mul", "e", &["m", "e.g"], "m_2", ("mul.Tensor", "%m, 1.0")),
            // What was computed may be the same parameter.
            call("Mul", "e", &["m", "e.g"], "m_3", ("mul.Tensor", "%m, %view")),
            norm("n", ["e.g", "a.b", "a.b", "e.g"], "n", "%x, %p_n_weight, %p_n_bias, %b_n_running_mean, %v"),
            norm("o", ["e.g", "a.b", "n.running_mean", "s"], "o", "%x, None, None, %b_n_running_mean, %v"),
            // A normalisation that became part of a convolution.
            call(
                "Conv",
                "n",
                &["x", "h.w", "h.w_bias"],
                "c",
                ("batch_norm.default", "%x, %p_n_weight, %p_n_bias"),
            ),
            // A product that is added to something, and what was computed in advance of what is beside it.
            call("Gemm", "i", &["x", "val_2", "val_3"], "g", ("addmm.default", "%p_i_b, %x, %p_i_w")),
            call("Add", "i", &["g", "exp"], "g_1", ("add.Tensor", "%exp, %p_h_b")),
            node("Split", "", &["a.b"], "parts", ""),
            call("Add", "s", &["g", "parts"], "g_2", ("add.Tensor", "%g, %getitem")),
            // Computed of a buffer and a weight.
            call("Add", "s", &["g", "val_4"], "g_3", ("linear.default", "%b_n_running_mean, %p_j_w")),
        ];
        let stored = [
            "val_0",
            "val_4",
            "a.b",
            "val_1",
            "e.g",
            "s",
            "n.running_mean",
            "h.w",
            "h.w_bias",
            "val_2",
            "val_3",
            "exp",
        ];
        let mut graph = graph(&parameters, nodes, &stored);
        graph.node.swap(12, 13);
        name_tensors(&mut graph);
        let read: Vec<String> =
            graph.node.iter().map(|node| node.input[usize::from(node.input.len() > 1)..].join(" ")).collect();
        let wanted = [
            "b.w a.b",
            "b.w b.b",
            "c.w",
            "d.w",
            "e.g",
            "f.g",
            "e.g.of.m_2",
            "e.g",
            "n.weight n.bias a.b e.g",
            "e.g.of.o a.b.of.o n.running_mean s",
            "h.w h.w_bias",
            "i.w i.b",
            "s.b",
            "exp",
            "parts",
            "val_4",
        ];
        assert_eq!(read, wanted);
        let mut names: Vec<&str> = graph.initializer.iter().map(|tensor| &*tensor.name).collect();
        names.sort_unstable();
        assert!(!names.contains(&"val_0") && names.contains(&"exp") && names.is_sorted_by(|a, b| a < b));
    }

    /// Of a call that was computed in advance a node reads a tensor; 0 + x is no call of a layer.
    #[test]
    fn what_is_left_out_of_the_program_is_named() {
        let nodes = vec![
            call("Mul", "", &["x", "g"], "mul", ("mul.Tensor", "%x, %p_g")),
            call("Relu", "", &["mul"], "relu", ("relu.default", "%mul_1")),
            call("MatMul", "", &["relu", "val_1"], "y", ("linear.default", "%relu, %mul_2")),
            call("Add", "", &["y", "relu"], "z", ("add.Tensor", "%add, %relu")),
            call(
                "Conv",
                "n",
                &["z", "val_2"],
                "c",
                ("batch_norm.default", "%conv, None, None, %b_n_running_mean, %v"),
            ),
            call("Tanh", "", &["c"], "t", ("tanh.default", "%detach_1")),
        ];
        let left = left_out(&graph(&["g"], nodes, &["g", "val_1", "val_2"]));
        assert_eq!(
            [left.merged, left.fused, left.detached],
            ["mul_1", "n", "detach_1"].map(|name| vec![name.to_string()])
        );
    }

    #[test]
    fn parameters_belong_to_modules() {
        assert_eq!(["w", "fc.weight", "a.b.weight"].map(module), ["", "fc", "a.b"]);
        assert_eq!(module("fc.parametrizations.weight.original0"), "fc");
        assert_eq!(module_of(&node("Mul", "a.b", &[], "", "%m")), Some("a.b"));
    }
}
