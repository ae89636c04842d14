//! Which nodes of a file an output needs, who reads what, and which of its tensors are tables that nothing learns.

use std::collections::{HashMap, HashSet};

use super::OnnxFile;
use super::fold;
use super::layers;
use super::node::OnnxNode;
use super::schema::NodeProto;

/// The nodes that read a name, of these.
pub fn readers<'a>(file: &'a OnnxFile, needed: &[usize]) -> HashMap<&'a str, Vec<usize>> {
    let mut readers: HashMap<&str, Vec<usize>> = HashMap::new();
    for node in needed.iter().map(|&index| node(file, index)) {
        node.inputs().iter().for_each(|name| readers.entry(name).or_default().push(node.index));
    }
    readers
}

/// A node by its number.
pub fn node(file: &OnnxFile, index: usize) -> OnnxNode<'_> {
    OnnxNode::new(&file.graph.node[index], index)
}

/// The nodes that an output needs, in the order of the file, which must be one in which they can run.
pub fn needed(file: &OnnxFile, output: &str) -> std::result::Result<Vec<usize>, String> {
    let mut producer: HashMap<&str, usize> = HashMap::new();
    for (index, node) in file.graph.node.iter().enumerate() {
        for name in node.output.iter().filter(|name| !name.is_empty()) {
            let is_tensor = file.tensor_of.contains_key(name) && node.op_type != "Constant";
            if producer.insert(name, index).is_some() || is_tensor || file.is_input(name) {
                return Err(format!("{name} is given twice, by node {index} too"));
            }
        }
    }
    let mut is_needed = vec![false; file.graph.node.len()];
    let mut wanted = vec![(output, file.graph.node.len())];
    while let Some((name, reader)) = wanted.pop() {
        match producer.get(name) {
            _ if name.is_empty() || file.is_input(name) || file.tensor_of.contains_key(name) => {}
            None if reader == file.graph.node.len() => {
                return Err(format!("its output {name} is given by no node"));
            }
            None => return Err(format!("{} reads {name}, which nothing gives", node(file, reader).name())),
            Some(&index) if index >= reader => {
                return Err(format!(
                    "{} reads {name}, which only comes behind it: nodes read each other in a circle, or are in no \
                     order in which they can run",
                    node(file, reader).name()
                ));
            }
            Some(&index) if !is_needed[index] => {
                is_needed[index] = true;
                wanted.extend(reads(&file.graph.node[index]).map(|name| (name, index)));
            }
            Some(_) => {}
        }
    }
    Ok((0..is_needed.len()).filter(|&index| is_needed[index]).collect())
}

/// What a node reads; one with graphs also what these read of what is around them.
pub fn reads(node: &NodeProto) -> impl Iterator<Item = &str> {
    let graphs = node.attribute.iter().filter_map(|attribute| attribute.g.as_deref());
    let inner = graphs.flat_map(|graph| {
        let given: HashSet<&str> =
            graph.node.iter().flat_map(|node| node.output.iter().map(String::as_str)).collect();
        let own = graph.output.iter().map(|output| &*output.name);
        let all: Vec<&str> = graph.node.iter().flat_map(reads).chain(own).collect();
        all.into_iter().filter(move |name| !given.contains(name))
    });
    let inner: Box<dyn Iterator<Item = &str>> = Box::new(inner);
    node.input.iter().map(String::as_str).chain(inner)
}

/// Tensors of the file of which only numbers that are known in advance are computed, such as the frequencies of the
/// sines of places: these are not learned.
pub fn tables<'a>(file: &'a OnnxFile, needed: &[usize]) -> Vec<(&'a str, usize)> {
    let mut all_readers: HashMap<&str, bool> = HashMap::new();
    for node in needed.iter().rev().map(|&index| node(file, index)) {
        let leads = || node.outputs().iter().all(|name| all_readers.get(&**name) == Some(&true));
        let in_advance = fold::is_folded(node.op()) && (matches!(layers::handler(node), Ok(None)) || leads());
        for name in reads(&file.graph.node[node.index]) {
            *all_readers.entry(name).or_insert(true) &= in_advance;
        }
    }
    let is_table = |&(name, index): &(&str, usize)| {
        all_readers.get(name) == Some(&true) && file.may_be_learned(index) && !file.is_said_learned(index)
    };
    file.tensor_of.iter().map(|(name, &index)| (&**name, index)).filter(is_table).collect()
}

/// The layer whose outputs are the scores: the last with weights on the way to them.
pub fn head(file: &OnnxFile, needed: &[usize], output: &str) -> Option<usize> {
    let mut name = output;
    for &index in needed.iter().rev() {
        let node = node(file, index);
        if !node.outputs().iter().any(|given| given == name) {
            continue;
        }
        if matches!(node.op(), "Gemm" | "MatMul" | "Conv") {
            return Some(index);
        }
        name = node.inputs().iter().find(|input| !file.tensor_of.contains_key(*input))?;
    }
    None
}
