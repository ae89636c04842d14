//! Fully connected layers.

use crate::graph::differentiate::Backward;
use crate::graph::{Builder, Node, NodeId, Op, TensorId, dims};

impl Builder {
    /// A fully connected layer to `features` outputs, with bias. Parameters `name.weight` (features, inputs),
    /// `name.bias`.
    pub fn linear(&mut self, name: &str, x: TensorId, features: usize) -> TensorId {
        self.linear_of(name, x, features, true)
    }

    /// The same without bias.
    pub fn linear_without_bias(&mut self, name: &str, x: TensorId, features: usize) -> TensorId {
        self.linear_of(name, x, features, false)
    }

    fn linear_of(&mut self, name: &str, x: TensorId, features: usize, has_bias: bool) -> TensorId {
        let (batch, fan_in) = (self.shape(x).batch(), self.shape(x).per_sample());
        let [weight, bias] = self.linears.map(|start| start.of(fan_in, features));
        let mut inputs = vec![x, self.weight(name, dims([features, fan_in]), weight)];
        if has_bias {
            inputs.push(self.bias(name, features, bias));
        }
        self.node(name, Op::Linear { bias: has_bias, relu: false }, inputs, dims([batch, features]))
    }
}

pub fn backward(b: &mut Backward, id: NodeId, node: &Node, [bias, relu]: [bool; 2], mut dy: TensorId) {
    if relu {
        dy = b.relu(id, node, dy);
    }
    let (x, w) = (node.inputs[0], node.inputs[1]);
    b.weights(id, Op::LinearBackwardWeights { bias }, x, dy, &node.inputs[1..]);
    if b.needs(x) {
        let dx = b.node(id, Op::LinearBackwardData { bias }, vec![dy, w], x);
        b.contribute(x, dx);
    }
}
