//! What PyTorch's exporter (`dynamo=True`) computes once for several modules whose weights begin alike, as the copied
//! layers of a new decoder do: each module computes it of its own weights again.

use std::collections::{HashMap, HashSet};

use super::program::{
    ExportedProgram, ORIGIN, SCOPES, arguments, entry, last, module, module_of, origin, within,
};
use super::schema::{GraphProto, NodeProto};

/// Repeats what is computed of one module's parameters for each other module whose own the file lacks.
pub fn repeat(graph: &mut GraphProto) {
    let Some(mut merged) = ExportedProgram::of(graph).map(Merged::of) else { return };
    let mut nodes = Vec::with_capacity(graph.node.len());
    for (number, node) in graph.node.iter().enumerate() {
        let mut node = node.clone();
        for input in &mut node.input {
            let found = merged.merged(number, input).map(|from| (from, merged.modules[from]));
            if let (Some((from, Some(other))), Some(own)) = (found, merged.modules[number]) {
                nodes.extend(merged.repeat(from, other, own));
                *input = format!("{input}.of.{own}");
            }
        }
        nodes.push(node);
    }
    graph.node = nodes;
}

/// What nodes compute of one module's weights and others read: parts of their weights, or what each makes of the same
/// input.
struct Merged<'a> {
    program: ExportedProgram<'a>,
    /// Parameters of which neither a tensor nor a call is left.
    lacking: HashSet<String>,
    /// Which node gives what, and of which module each is.
    of: HashMap<&'a str, usize>,
    modules: Vec<Option<&'a str>>,
    /// Nodes that compute of tensors of the file alone.
    is_part: Vec<bool>,
    /// Those that are repeated, for which modules.
    repeated: HashSet<(usize, &'a str)>,
}

impl<'a> Merged<'a> {
    fn of(program: ExportedProgram<'a>) -> Merged<'a> {
        let nodes = &program.graph.node;
        let (mut of, mut is_part) = (HashMap::new(), Vec::new());
        for (number, node) in nodes.iter().enumerate() {
            let is_alone = |input: &String| match of.get(&**input) {
                Some(&number) => is_part[number],
                None => program.tensors.contains_key(&**input),
            };
            is_part.push(!node.input.is_empty() && node.input.iter().all(is_alone));
            of.extend(node.output.iter().map(|name| (&**name, number)));
        }
        let mut modules: Vec<Option<&str>> = nodes.iter().map(module_of).collect();
        for (number, node) in nodes.iter().enumerate().rev() {
            for &from in node.input.iter().filter_map(|input| of.get(&**input)) {
                if origin(&nodes[from]).is_none() {
                    modules[from] = modules[number];
                }
            }
        }
        let is_lost = |name: &&str| !program.tensors.contains_key(name) && !program.read.contains(name);
        let lacking = program.kept.iter().copied().filter(is_lost).map(String::from).collect();
        Merged { program, lacking, of, modules, is_part, repeated: HashSet::new() }
    }

    /// The node of another module that gives an input, where that module's parameters stand for a module's own.
    fn merged(&self, number: usize, input: &str) -> Option<usize> {
        let (&from, own) = (self.of.get(input)?, self.modules[number].filter(|_| !self.lacking.is_empty())?);
        let node = &self.program.graph.node[number];
        let other = self.modules[from].filter(|other| *other != own && last(other) == last(own))?;
        let is_named = arguments(node).any(|symbol| symbol == input);
        let is_merged =
            self.is_part[from] || !is_named && !arguments(node).all(|symbol| self.program.is_known(symbol));
        (!self.is_part[number] && is_merged && self.lacks(from, other, own)).then_some(from)
    }

    /// The nodes of the same module, and parts of weights, that give what a node reads.
    fn behind(&self, number: usize) -> impl Iterator<Item = (usize, usize)> {
        let inputs = self.program.graph.node[number].input.iter().enumerate();
        let from = inputs.filter_map(|(place, input)| Some((place, *self.of.get(&**input)?)));
        from.filter(move |&(_, from)| self.is_part[from] || self.modules[from] == self.modules[number])
    }

    /// Whether a module has parameters that the file lacks in place of those of another one, of which a node computes.
    fn lacks(&self, number: usize, other: &str, own: &str) -> bool {
        let node = &self.program.graph.node[number];
        let called = self.program.read_by(node).into_iter().filter(|name| module(name) == other);
        let mut names = node.input.iter().map(String::as_str).chain(called);
        names.any(|name| self.lacking.contains(&within(own, last(name))))
            || self.behind(number).any(|(_, from)| self.lacks(from, other, own))
    }

    /// The nodes of a module that give what a node of another one gives, of its own parameters, in their order; those
    /// that are there already are left out.
    fn repeat(&mut self, number: usize, other: &str, own: &'a str) -> Vec<NodeProto> {
        if !self.repeated.insert((number, own)) {
            return Vec::new();
        }
        let mut node = self.program.graph.node[number].clone();
        let mut nodes = Vec::new();
        for (place, from) in self.behind(number).collect::<Vec<_>>() {
            nodes.extend(self.repeat(from, other, own));
            node.input[place] = format!("{}.of.{own}", node.input[place]);
        }
        node.output.iter_mut().for_each(|name| *name = format!("{name}.of.{own}"));
        let [symbol, its] = [own, other].map(|module| format!("p_{}_", module.replace('.', "_")));
        let text = origin(&node).map(|text| format!("%{symbol}{}", text.replace(&its, &symbol)));
        let scopes = format!("['', '{own}', 'repeated']");
        node.metadata_props =
            text.iter().map(|text| entry(ORIGIN, text)).chain([entry(SCOPES, &scopes)]).collect();
        nodes.push(node);
        nodes
    }
}

#[cfg(test)]
mod tests {
    use super::super::program::tests::{graph, node};
    use super::*;

    /// Two modules multiply the same input by a part of a weight, which began alike, and add their own; what a third
    /// one is given it computes with as it is.
    #[test]
    fn each_module_computes_with_its_own_weights_again() {
        let names = ["a.0.k.w", "a.0.k.b", "a.1.k.w", "a.1.k.b", "c.k.w"];
        let product = "%mm : [num_users=3] = call_function[target=torch.ops.aten.matmul.default](args = (%x, \
                       %getitem), kwargs = {})";
        let sum = |of: &str, other: &str| {
            format!(
                "%{of} : [num_users=1] = call_function[target=torch.ops.aten.add.Tensor](args = ({other}), \
                 kwargs = {{}})"
            )
        };
        let mut graph = graph(
            &names,
            vec![
                node("Split", "", &["a.0.k.w"], "part", ""),
                node("MatMul", "a.0.k", &["x", "part"], "mm", product),
                node("Add", "a.0.k", &["mm", "a.0.k.b"], "y0", &sum("y0", "%mm, %p_a_0_k_b")),
                node("Sub", "a.1.k", &["y0", "mm"], "y1", &sum("y1", "%y0, %mm_1")),
                node("Sub", "c", &["y1", "mm"], "y2", &sum("y2", "%y1, %mm_1")),
                node("Sub", "a.1.k", &["y2", "mm"], "y3", &sum("y3", "%y2, %mm")),
            ],
            &["a.0.k.w", "a.0.k.b"],
        );
        repeat(&mut graph);
        let found: Vec<String> = graph
            .node
            .iter()
            .map(|node| format!("{} {} {}", node.op_type, node.input.join(" "), node.output[0]))
            .collect();
        let wanted = [
            "Split a.0.k.w part",
            "MatMul x part mm",
            "Add mm a.0.k.b y0",
            "Split a.0.k.w part.of.a.1.k",
            "MatMul x part.of.a.1.k mm.of.a.1.k",
            "Sub y0 mm.of.a.1.k y1",
            "Sub y1 mm y2",
            "Sub y2 mm y3",
        ];
        assert_eq!(found, wanted);
        assert_eq!(graph.node.iter().map(module_of).collect::<Vec<_>>()[3..5], [Some("a.1.k"); 2]);
    }
}
