//! Fully connected layers.

use crate::graph::differentiate::Backward;
use crate::graph::{Builder, Node, NodeId, Op, TensorId, dims};

impl Builder {
    /// A fully connected layer to `features` outputs, with bias.
    pub fn linear(&mut self, name: &str, x: TensorId, features: usize) -> TensorId {
        let (batch, fan_in) = (self.shape(x).batch(), self.shape(x).per_sample());
        let [weight, bias] = self.linears.map(|start| start.of(fan_in, features));
        let weight = self.weight(name, dims([features, fan_in]), weight);
        let bias = self.bias(name, features, bias);
        self.node(
            name,
            Op::Linear { bias: true, relu: false },
            vec![x, weight, bias],
            dims([batch, features]),
        )
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
