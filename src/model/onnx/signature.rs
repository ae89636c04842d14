//! Which tensors of a file are parameters, as PyTorch's exporter says it (`dynamo=True`): it names them all, beside
//! the buffers, and keeps other numbers, which it has computed in advance, among them. Those are learned only where
//! they may stand for parameters that the file has no longer: in the module that these belong to.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use super::program::{
    ExportedProgram, arguments, kind, last, made_of, module, module_of, signature, targets,
};
use super::schema::{GraphProto, NodeProto};

/// What a file says of its parameters.
pub struct Signature<'a> {
    graph: &'a GraphProto,
    parameters: HashSet<&'a str>,
    /// What is kept beside them, and not learned.
    buffers: HashSet<&'a str>,
    /// Parameters that are no tensors of the file.
    lacking: Vec<&'a str>,
}

/// The numbers of a tensor, where it has few.
pub type Numbers<'n> = &'n dyn Fn(&str) -> Option<Vec<f32>>;

/// What became of parameters that are no tensors of the file.
pub struct StandIns<'a> {
    /// Tensors that stand for them, no more than a module lacks: the exporter has computed them of some.
    pub tensors: HashSet<&'a str>,
    /// Parameters for which none does.
    pub lost: Vec<&'a str>,
}

impl<'a> Signature<'a> {
    /// `None` where another program has written the file, or an older exporter.
    pub fn of(graph: &'a GraphProto, tensor_of: &'a HashMap<String, usize>) -> Option<Signature<'a>> {
        signature(graph)?;
        let [parameters, buffers] = ["PARAMETER", "BUFFER"]
            .map(|kind| targets(graph, kind).map(|(_, name)| name).collect::<HashSet<&str>>());
        let is_there = |name: &str| tensor_of.contains_key(name);
        let symbols: HashMap<&str, &str> =
            targets(graph, "PARAMETER").filter(|(_, name)| is_there(name)).collect();
        let mut lacking: Vec<&str> = parameters.iter().copied().filter(|name| !is_there(name)).collect();
        // One that is tied to another module's has that one's name.
        for node in &graph.node {
            let own = module_of(node);
            for read in arguments(node).filter_map(|symbol| symbols.get(symbol)) {
                lacking.retain(|name| Some(module(name)) != own || last(name) != last(read));
            }
        }
        lacking.sort_unstable();
        Some(Signature { graph, parameters, buffers, lacking })
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
        StandIns { tensors, lost }
    }

    /// Tensors that calls of the exporter's program read, which it has computed in advance: of parameters perhaps.
    /// `elements`: how many numbers a tensor of real numbers has.
    pub fn computed(&self, elements: impl Fn(&str) -> usize) -> HashSet<&'a str> {
        /// What no parameter is made into, and the places that images of another size are taken from.
        const OTHERS: [&str; 8] =
            ["arange", "clamp", "eye", "full", "linspace", "ones", "scalar_tensor", "zeros"];
        let Some(program) = ExportedProgram::of(self.graph) else { return HashSet::new() };
        let is_computed = |node: &NodeProto, input: &str| {
            let is_given = arguments(node).any(|symbol| symbol == input);
            let others =
                arguments(node).filter(|symbol| !program.is_known(symbol) && !OTHERS.contains(&kind(symbol)));
            let is_other = program.kept.contains(input) || OTHERS.contains(&kind(input));
            !is_other && (is_given && elements(input) > 0 || elements(input) > 1 && others.count() > 0)
        };
        let nodes = self.graph.node.iter();
        nodes
            .flat_map(|node| node.input.iter().map(move |input| (node, &**input)))
            .filter(|(node, input)| is_computed(node, input))
            .map(|(_, input)| input)
            .collect()
    }

    /// Whether a tensor is learned; `None` where it may stand for a parameter that the file lacks.
    pub fn is_learned(&self, name: &str, stand_ins: &StandIns, numbers: Numbers) -> Option<bool> {
        match self.parameters.contains(name) || stand_ins.tensors.contains(name) {
            true => Some(true),
            false if self.buffers.contains(name) => Some(false),
            false if self.stands_for(name, stand_ins, numbers).next().is_some() => None,
            false => Some(false),
        }
    }

    /// The parameters that are lost of which a tensor may be made: those of modules that read it.
    pub fn stands_for<'s>(
        &'s self,
        name: &'s str,
        stand_ins: &'s StandIns<'a>,
        numbers: Numbers<'s>,
    ) -> impl Iterator<Item = &'a str> + 's {
        let readers = self.graph.node.iter().filter(move |node| node.input.iter().any(|input| input == name));
        let readers = readers.filter(move |node| !is_left_out(node, name, numbers));
        readers.flat_map(move |node| {
            let own = module_of(node);
            stand_ins.lost.iter().copied().filter(move |lost| own.is_none_or(|own| belongs(lost, own)))
        })
    }
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

/// Whether a module is within another one, which may read its parameters, as attention does of its last layer.
fn is_within(module: &str, whole: &str) -> bool {
    !whole.is_empty() && module.strip_prefix(whole).is_some_and(|rest| rest.starts_with('.'))
}

/// Whether a parameter is a module's, or that of one within it.
fn belongs(parameter: &str, own: &str) -> bool {
    module(parameter) == own || is_within(module(parameter), own)
}

#[cfg(test)]
mod tests {
    use super::super::program::{ORIGIN, entry, tests};
    use super::*;

    fn node(op_type: &str, module: &str, input: &[&str]) -> NodeProto {
        tests::node(op_type, module, input, "", "%node")
    }

    /// What attention compares is scaled by a number, and the weights that its layers lack stand in these.
    #[test]
    fn factors_and_buffers_stand_for_no_parameter() {
        let names = ["a.q.weight", "a.o.weight", "a.o.bias", "a.in.weight"];
        let tensor_of: HashMap<String, usize> =
            ["q_turned", "o_turned", "in_turned", "scale", "n.running_mean"]
                .into_iter()
                .enumerate()
                .map(|(at, name)| (name.to_string(), at))
                .collect();
        let nodes = vec![
            node("Sub", "a", &["x", "n.running_mean"]),
            node("MatMul", "a.q", &["x", "q_turned"]),
            node("MatMul", "a", &["x", "in_turned"]),
            node("Mul", "a", &["x", "scale"]),
            node("Mul", "a", &["y", "scale"]),
            node("MatMul", "a.o", &["x", "o_turned"]),
        ];
        let graph = tests::graph(&names, nodes, &[]);
        let signature = Signature::of(&graph, &tensor_of).unwrap();
        let numbers = |name: &str| Some(vec![0.5; if name == "scale" { 1 } else { 4 }]);
        let axes = |name: &str| match name {
            "scale" | "n.running_mean" => 1,
            name => 2 * usize::from(tensor_of.contains_key(name)),
        };
        let stand_ins = signature.stand_ins(axes, &numbers);
        let is_learned = |name: &&str| signature.is_learned(name, &stand_ins, &numbers) == Some(true);
        let mut learned: Vec<&str> = tensor_of.keys().map(|name| &**name).filter(is_learned).collect();
        learned.sort_unstable();
        assert_eq!(learned, ["in_turned", "o_turned", "q_turned"]);
        assert_eq!(stand_ins.lost, ["a.o.bias"]);
        assert_eq!(signature.is_learned("n.running_mean", &stand_ins, &numbers), Some(false));
        // Where a module lacks a bias the factor is no stand-in for it either.
        let text = "%a : [num_users=1] = \
                    call_function[target=torch.ops.aten.scaled_dot_product_attention.default](args = (%q, %k, %v), \
                    kwargs = {})";
        let mut factor = node("Mul", "a", &["x", "scale"]);
        factor.metadata_props[0] = entry(ORIGIN, text);
        let graph = tests::graph(&["a.bias"], vec![factor], &[]);
        let signature = Signature::of(&graph, &tensor_of).unwrap();
        let stand_ins = signature.stand_ins(axes, &numbers);
        assert_eq!((stand_ins.lost.as_slice(), stand_ins.tensors.len()), (&["a.bias"][..], 0));
        assert_eq!(signature.is_learned("scale", &stand_ins, &numbers), Some(false));
    }

    /// One that became part of a convolution is computed of; one of a module whose other one is tied is not lost.
    #[test]
    fn what_is_lost_is_told_from_what_is_tied() {
        let names = ["n.weight", "n.bias", "a.weight", "b.weight"];
        let node = |op: &str, module: &str, input: &[&str], of: &str| {
            let text = format!(
                "%y = call_function[target=torch.ops.aten.{op}.default](args = ({of}), kwargs = {{}})"
            );
            tests::node("Conv", module, input, "y", &text)
        };
        let nodes = vec![
            node("batch_norm", "n", &["x", "c.w", "c.w_bias"], "%x, %p_n_weight, %p_n_bias"),
            node("conv2d", "a", &["x", "b.weight"], "%x, %p_b_weight"),
            node("conv2d", "b", &["x", "b.weight"], "%x, %p_b_weight"),
            node("mul", "b", &["x", "exp", "b.weight.of.y"], "%x, %exp"),
        ];
        let graph = tests::graph(&names, nodes, &["b.weight", "c.w", "c.w_bias", "exp"]);
        let tensor_of: HashMap<String, usize> =
            graph.initializer.iter().enumerate().map(|(at, tensor)| (tensor.name.clone(), at)).collect();
        let signature = Signature::of(&graph, &tensor_of).unwrap();
        let axes = |name: &str| usize::from(tensor_of.contains_key(name));
        let stand_ins = signature.stand_ins(axes, &|_| Some(vec![0.5; 2]));
        let mut tensors: Vec<&str> = stand_ins.tensors.iter().copied().collect();
        tensors.sort_unstable();
        assert_eq!((&tensors[..], stand_ins.lost.len()), (&["c.w", "c.w_bias"][..], 0));
        assert_eq!(signature.computed(|name| 2 * axes(name)).into_iter().collect::<Vec<_>>(), ["exp"]);
    }

    #[test]
    fn a_module_has_those_within_it() {
        assert!(is_within("attn.out", "attn") && !is_within("attn2", "attn") && !is_within("a", ""));
    }
}
