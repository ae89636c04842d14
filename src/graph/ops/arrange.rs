//! Tensors put together, taken apart and seen in another shape.

use crate::error::{Error, Result};
use crate::graph::differentiate::Backward;
use crate::graph::{Builder, Node, NodeId, Op, Shape, TensorId, dims};

impl Builder {
    /// (N, …) → (N, everything else).
    pub fn flatten(&mut self, name: &str, x: TensorId) -> TensorId {
        let shape = dims([self.shape(x).batch(), self.shape(x).per_sample()]);
        self.node(name, Op::Reshape, vec![x], shape)
    }

    /// (N, …) → (N, sample): the same elements in logical order. As many as before, which the caller sees to.
    pub fn reshape(&mut self, name: &str, x: TensorId, sample: &[usize]) -> TensorId {
        let shape = Shape([&[self.shape(x).batch()], sample].concat());
        debug_assert_eq!(shape.elements(), self.shape(x).elements(), "{name}");
        self.node(name, Op::Reshape, vec![x], shape)
    }

    /// The channels of several images of one size, one after the other.
    pub fn concat(&mut self, name: &str, parts: &[TensorId]) -> Result<TensorId> {
        let shapes: Vec<[usize; 4]> =
            parts.iter().map(|&part| self.image_shape(name, part)).collect::<Result<_>>()?;
        let channels = shapes.iter().map(|shape| shape[1]).sum();
        match shapes.first() {
            Some(&[n, _, h, w]) if shapes.iter().all(|&[n2, _, h2, w2]| [n, h, w] == [n2, h2, w2]) => {
                Ok(self.node(name, Op::Concat, parts.to_vec(), dims([n, channels, h, w])))
            }
            _ => Err(Error::internal(format!("layer {name}: cannot put {shapes:?} together"))),
        }
    }

    /// The elementwise sum of two tensors of one shape.
    pub fn add(&mut self, name: &str, a: TensorId, b: TensorId) -> Result<TensorId> {
        if self.shape(a) != self.shape(b) {
            return Err(Error::internal(format!("{name}: {} + {}", self.shape(a), self.shape(b))));
        }
        let shape = self.shape(a).clone();
        Ok(self.node(name, Op::Add { relu: false }, vec![a, b], shape))
    }
}

pub fn add_backward(b: &mut Backward, id: NodeId, node: &Node, relu: bool, mut dy: TensorId) {
    if relu {
        dy = b.relu(id, node, dy);
    }
    b.contribute(node.inputs[1], dy);
    b.contribute(node.inputs[0], dy);
}

/// Each input of a concatenation gets its channels of the gradient.
pub fn concat_backward(b: &mut Backward, id: NodeId, node: &Node, dy: TensorId) {
    let mut from = 0;
    for &part in &node.inputs {
        if b.needs(part) {
            let gradient = b.node(id, Op::Slice { from }, vec![dy], part);
            b.contribute(part, gradient);
        }
        from += b.graph.tensor(part).spec.shape.0[1];
    }
}
