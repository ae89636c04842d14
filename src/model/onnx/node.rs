//! A node of the file with its settings.

use super::schema::{AttributeProto, GraphProto, NodeProto, TensorProto};
use super::tensor::Reason;
use crate::graph::Volume;

/// A node of the file.
#[derive(Clone, Copy)]
pub struct OnnxNode<'a> {
    proto: &'a NodeProto,
    /// Its number in the file.
    pub index: usize,
}

impl<'a> OnnxNode<'a> {
    /// That of this number.
    pub fn new(proto: &'a NodeProto, index: usize) -> OnnxNode<'a> {
        OnnxNode { proto, index }
    }

    /// What it computes.
    pub fn op(&self) -> &'a str {
        &self.proto.op_type
    }

    /// The set that its op is of; empty for ONNX's own.
    pub fn domain(&self) -> &'a str {
        match &*self.proto.domain {
            "ai.onnx" => "",
            other => other,
        }
    }

    /// Names of what it reads; an empty one is left out.
    pub fn inputs(&self) -> &'a [String] {
        &self.proto.input
    }

    /// Names of what it gives.
    pub fn outputs(&self) -> &'a [String] {
        &self.proto.output
    }

    /// As messages call it.
    pub fn name(&self) -> String {
        match &*self.proto.name {
            "" => format!("node {}", self.index),
            name => name.into(),
        }
    }

    /// The layer that it becomes, from names such as "/layer1/layer1.0/conv1/Conv": the path of the module, and the op
    /// where the module is not called after it.
    pub fn layer(&self) -> String {
        let op = self.op().to_lowercase();
        let mut layer = String::new();
        for part in self.proto.name.split('/').filter(|part| !part.is_empty()) {
            let part = if part == self.op() { op.as_str() } else { part };
            let last = layer.rsplit('.').next().unwrap_or_default();
            // A part that repeats those before it, or the first one.
            if layer.is_empty() || part.strip_prefix(&layer).is_some_and(|rest| rest.starts_with('.')) {
                layer = part.into();
            } else if part != op || !last.starts_with(&op) {
                layer = format!("{layer}.{part}");
            }
        }
        if layer.is_empty() { format!("{op}{}", self.index) } else { layer }
    }

    /// Refuses settings other than these: one that nobody reads may mean another computation.
    pub fn only(&self, known: &[&str]) -> Result<(), Reason> {
        match self.proto.attribute.iter().find(|attribute| !known.contains(&&*attribute.name)) {
            Some(other) => Err(format!("attribute {} is not known", other.name)),
            None => Ok(()),
        }
    }

    fn attribute(&self, name: &str) -> Option<&'a AttributeProto> {
        self.proto.attribute.iter().find(|attribute| attribute.name == name)
    }

    /// A setting that is an integer.
    pub fn int(&self, name: &str) -> Option<i64> {
        self.attribute(name).map(|attribute| attribute.i)
    }

    /// A setting that is a real number.
    pub fn real(&self, name: &str) -> Option<f32> {
        self.attribute(name).map(|attribute| attribute.f)
    }

    /// A setting that is a list of real numbers.
    pub fn reals(&self, name: &str) -> Option<&'a [f32]> {
        self.attribute(name).map(|attribute| &attribute.floats[..])
    }

    /// A setting that is a list of integers.
    pub fn ints(&self, name: &str) -> Option<&'a [i64]> {
        self.attribute(name).map(|attribute| &attribute.ints[..])
    }

    /// A setting that is a text.
    pub fn text(&self, name: &str) -> Option<&'a str> {
        std::str::from_utf8(&self.attribute(name)?.s).ok()
    }

    /// The nodes of a setting that is a graph, and what it gives.
    pub fn graph(&self, name: &str) -> Option<&'a GraphProto> {
        self.attribute(name)?.g.as_deref()
    }

    /// A setting that is a tensor.
    pub fn tensor(&self, name: &str) -> Option<&'a TensorProto> {
        self.attribute(name)?.t.as_ref()
    }

    /// Lengths for depth, height and width, with this value where they are not said: images say two, a row its width
    /// alone.
    pub fn along_axes(&self, name: &str, default: usize) -> Result<Volume, Reason> {
        let Some(ints) = self.ints(name) else { return Ok([default; 3]) };
        match lengths(ints).as_deref() {
            Some(&[depth, height, width]) => Ok([depth, height, width]),
            Some(&[height, width]) => Ok([default, height, width]),
            Some(&[width]) => Ok([default, default, width]),
            _ => Err(format!("{name} {ints:?}")),
        }
    }
}

/// Beyond these a length is a slip of whoever wrote the file, and products of lengths might not fit a machine word.
const LONGEST: usize = 1 << 16;

/// Integers that may be lengths.
pub fn lengths(ints: &[i64]) -> Option<Vec<usize>> {
    ints.iter().map(|&length| usize::try_from(length).ok().filter(|&length| length <= LONGEST)).collect()
}

#[cfg(test)]
pub mod tests {
    use super::super::schema::kind;
    use super::*;

    /// A node of this op with lists of integers; those of one element are single integers too.
    pub fn node(op: &str, ints: &[(&str, &[i64])]) -> NodeProto {
        let attribute = ints.iter().map(|(name, ints)| AttributeProto {
            name: name.to_string(),
            i: ints.first().copied().unwrap_or(0),
            ints: ints.to_vec(),
            kind: kind::INTS,
            ..AttributeProto::default()
        });
        NodeProto { op_type: op.into(), attribute: attribute.collect(), ..NodeProto::default() }
    }

    #[test]
    fn a_layer_is_called_after_its_module() {
        for (name, op, layer) in [
            ("/layer1/layer1.0/conv1/Conv", "Conv", "layer1.0.conv1"),
            ("/layer1/layer1.0/relu_1/Relu", "Relu", "layer1.0.relu_1"),
            ("/layer1/layer1.0/Add", "Add", "layer1.0.add"),
            ("/maxpool/MaxPool", "MaxPool", "maxpool"),
            ("node_relu_1", "Relu", "node_relu_1"),
            ("", "Relu", "relu7"),
        ] {
            let proto = NodeProto { name: name.into(), op_type: op.into(), ..NodeProto::default() };
            assert_eq!(OnnxNode::new(&proto, 7).layer(), layer);
        }
    }
}
