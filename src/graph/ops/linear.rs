//! Fully connected layers.

use crate::error::Result;
use crate::graph::differentiate::BackwardPass;
use crate::graph::{BackwardOp, Builder, Node, Op, Shape, TensorId, dims};

impl Builder {
    /// A fully connected layer to `features` outputs, with bias. Parameters `name.weight` (features, inputs),
    /// `name.bias`.
    pub fn linear(&mut self, name: &str, x: TensorId, features: usize) -> TensorId {
        self.linear_with(name, x, features, true)
    }

    /// A linear layer without bias.
    pub fn linear_without_bias(&mut self, name: &str, x: TensorId, features: usize) -> TensorId {
        self.linear_with(name, x, features, false)
    }

    fn linear_with(&mut self, name: &str, x: TensorId, features: usize, has_bias: bool) -> TensorId {
        let (batch, fan_in) = (self.shape(x).batch(), self.shape(x).per_sample());
        let [weight, bias] = self.linears.map(|start| start.of(fan_in, features));
        let weight = self.weight(name, dims([features, fan_in]), weight);
        let bias = has_bias.then(|| self.bias(name, features, bias));
        self.linear_of(name, x, weight, bias, dims([batch, features]))
    }

    /// A linear layer with parameters that were made before (`learned`), to this shape.
    pub fn linear_of(
        &mut self,
        name: &str,
        x: TensorId,
        weight: TensorId,
        bias: Option<TensorId>,
        y: Shape,
    ) -> TensorId {
        let op = Op::Linear { bias: bias.is_some(), relu: false };
        self.node(name, op, [x, weight].into_iter().chain(bias).collect(), y)
    }

    /// A fully connected layer of the last axis, to `features` outputs, with bias.
    ///
    /// # Errors
    /// None but the library's own.
    pub fn linear_along(&mut self, name: &str, x: TensorId, features: usize) -> Result<TensorId> {
        let mut shape = self.shape(x).clone();
        let width = shape.0.pop().unwrap_or(1);
        let y = self.reshape(&format!("{name}.rows"), x, dims([shape.elements(), width]))?;
        let y = self.linear(name, y, features);
        shape.0.push(features);
        self.reshape(&format!("{name}.back"), y, shape)
    }
}

pub fn backward(b: &mut BackwardPass, node: &Node, [bias, relu]: [bool; 2], mut dy: TensorId) {
    if relu {
        dy = b.relu(node, dy);
    }
    let (x, w) = (node.inputs[0], node.inputs[1]);
    b.weights(BackwardOp::LinearWeights { bias }, x, dy, &node.inputs[1..]);
    if b.needs(x) {
        let dx = b.node(BackwardOp::LinearData { bias }, vec![dy, w], x);
        b.contribute(x, dx);
    }
}
