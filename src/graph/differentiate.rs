//! Reverse-mode differentiation: appends the backward graph to a forward graph.
//!
//! Nodes are visited from the loss backwards; each adds the nodes that give the gradients of its inputs. A
//! tensor that several nodes read gets the sum of what they contribute. The weights' gradient comes before the
//! input's, so that its bucket can leave as early as possible.

use super::{Activation, BackwardOp, Graph, Node, NodeId, Op, Role, Tensor, TensorId};

impl Graph {
    /// The graph with its backward pass. Every parameter that is not frozen gets one tensor of role `Gradient`.
    pub fn differentiate(self) -> Graph {
        let (forward, needed) = (self.forward_nodes, self.depends_on_parameters());
        let gradients = vec![None; self.tensors.len()];
        let mut backward = BackwardPass { gradients, needed, id: NodeId(0), graph: self };
        (0..forward).rev().for_each(|index| backward.add(NodeId(index)));
        backward.graph
    }

    /// For each tensor whether a learned parameter can change it: no gradient is computed for any other.
    pub(super) fn depends_on_parameters(&self) -> Vec<bool> {
        let mut needed: Vec<bool> = self.tensors.iter().map(Tensor::is_learned).collect();
        for node in &self.nodes {
            if node.inputs.iter().any(|input| needed[input.0]) {
                node.outputs.iter().for_each(|output| needed[output.0] = true);
            }
        }
        needed
    }

    /// The gradient of a parameter. That of a frozen one, which a node may give along with others, is dropped; that of
    /// what is computed goes on to what it is computed of (`BackwardPass::contribute_to`).
    pub(super) fn gradient_of(&mut self, parameter: TensorId) -> TensorId {
        let gradient = self.gradient_like(parameter);
        if !self.tensor(parameter).is_learned() {
            return gradient;
        }
        let tensor = &mut self.tensors[gradient.0];
        tensor.role = Role::Gradient;
        tensor.gradient_of = Some(parameter);
        gradient
    }

    /// The gradients of a layer's weights, which may be parameters or computed.
    pub(super) fn gradients_of(&mut self, weights: &[TensorId]) -> Vec<TensorId> {
        weights.iter().map(|&weight| self.gradient_of(weight)).collect()
    }

    pub(super) fn gradient_like(&mut self, like: TensorId) -> TensorId {
        let spec = self.tensor(like).spec.clone();
        let name = format!("d {}", self.tensor(like).name);
        self.add_tensor(Tensor::new(name, spec, Role::Activation))
    }
}

/// A graph that gets its backward pass, and what the ops (`Op::backward`) add to it.
pub(super) struct BackwardPass {
    pub graph: Graph,
    /// The forward node whose backward nodes are added.
    pub id: NodeId,
    /// By tensor of the forward pass.
    needed: Vec<bool>,
    gradients: Vec<Option<TensorId>>,
}

impl BackwardPass {
    /// The backward nodes of a forward node. One whose output does not reach the loss has no gradient to pass on.
    fn add(&mut self, id: NodeId) {
        let node = self.graph.node(id).clone();
        let y = node.outputs[0];
        if !self.needed[y.0] {
            return;
        }
        // At a loss gradients begin.
        if let Some(dy) = self.gradients[y.0].or(node.op.is_loss().then_some(y)) {
            self.id = id;
            node.op.backward(self, &node, dy);
        }
    }

    /// Whether a tensor's gradient is of use.
    pub fn needs(&self, of: TensorId) -> bool {
        self.needed[of.0]
    }

    /// Adds `gradient` to what is known of the gradient of `of`. Of a parameter, which one node reads, it is all.
    pub fn contribute(&mut self, of: TensorId, gradient: TensorId) {
        if !self.needs(of) {
            return;
        }
        if self.graph.tensor(of).role == Role::Parameter {
            let tensor = &mut self.graph.tensors[gradient.0];
            (tensor.role, tensor.gradient_of) = (Role::Gradient, Some(of));
            return;
        }
        self.gradients[of.0] = Some(match self.gradients[of.0] {
            None => gradient,
            Some(before) => {
                let sum = self.graph.gradient_like(of);
                let name = self.graph.tensor(of).name.clone();
                let op = Op::Add { relu: false };
                self.graph.nodes.push(Node::new(name, op, vec![before, gradient], vec![sum]));
                sum
            }
        });
    }

    /// Adds a node of the backward pass.
    pub fn push(&mut self, op: impl Into<Op>, inputs: Vec<TensorId>, outputs: Vec<TensorId>) {
        let name = self.graph.node(self.id).name.clone();
        self.graph.nodes.push(Node { name, op: op.into(), inputs, outputs, forward: Some(self.id) });
    }

    /// A backward node with one output, of the shape of `like`.
    pub fn node(&mut self, op: impl Into<Op>, inputs: Vec<TensorId>, like: TensorId) -> TensorId {
        let output = self.graph.gradient_like(like);
        self.push(op, inputs, vec![output]);
        output
    }

    /// The one backward node of an op whose only operand with a gradient is its first, which may be a parameter.
    pub fn simple(&mut self, node: &Node, op: impl Into<Op>, inputs: Vec<TensorId>) {
        let x = node.inputs[0];
        if !self.needs(x) {
            return;
        }
        if self.graph.tensor(x).role == Role::Parameter {
            let gradient = self.graph.gradient_of(x);
            return self.push(op, inputs, vec![gradient]);
        }
        let dx = self.node(op, inputs, x);
        self.contribute(x, dx);
    }

    /// The gradient of what went into the ReLU that is part of a node.
    pub fn relu(&mut self, node: &Node, dy: TensorId) -> TensorId {
        let y = node.outputs[0];
        self.node(BackwardOp::Activation(Activation::RELU), vec![dy, y], y)
    }

    /// The node that gives the gradients of a layer's weight and bias.
    pub fn weights(&mut self, op: impl Into<Op>, x: TensorId, dy: TensorId, weights: &[TensorId]) {
        if !weights.iter().any(|&id| self.needs(id)) {
            return;
        }
        let outputs = self.graph.gradients_of(weights);
        self.push(op, vec![x, dy], outputs.clone());
        self.contribute_to(weights, &outputs);
    }

    /// Adds what a node gives of the gradients of weights to what is known of them, where they are computed.
    pub fn contribute_to(&mut self, weights: &[TensorId], gradients: &[TensorId]) {
        for (&id, &gradient) in weights.iter().zip(gradients) {
            if self.graph.tensor(id).role != Role::Parameter {
                self.contribute(id, gradient);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::graph::{Binary, Builder, Conv, Init, Op, Role, dims};

    #[test]
    fn every_parameter_gets_one_gradient_and_the_images_none() {
        let (mut net, x) = Builder::new("fork", 2, [1, 6, 6]);
        let x = net.conv("conv1", x, 3, Conv::square(3)).unwrap();
        let a = net.conv("conv2", x, 3, Conv::square(3).padding(1)).unwrap();
        let x = net.add("add", a, x).unwrap();
        let x = net.linear("fc", x, 4);
        let graph = net.finish(x).simplify().differentiate();

        let parameters: Vec<_> = graph.with_role(Role::Parameter).map(|(id, _)| id).collect();
        let mut covered: Vec<_> =
            graph.with_role(Role::Gradient).map(|(_, t)| t.gradient_of.unwrap()).collect();
        covered.sort();
        assert_eq!(covered, parameters);
        // conv1's input is the images: nothing there to learn.
        let data = graph.nodes.iter().filter(|n| matches!(n.op, Op::ConvBackwardData(_))).count();
        assert_eq!(data, 1);
        // conv1's output feeds conv2 and the addition: its gradient is a sum.
        let sums =
            graph.nodes[graph.forward_nodes..].iter().filter(|n| matches!(n.op, Op::Add { .. })).count();
        assert_eq!(sums, 1);
    }

    /// With one image a parameter has the shape of what it is added to.
    #[test]
    fn a_parameter_that_is_added_to_something_gets_a_gradient() {
        let (mut net, x) = Builder::new("places", 1, [1, 6, 6]);
        let x = net.conv("conv", x, 3, Conv::square(3)).unwrap();
        let places = net.learned("places", dims([1, 3, 4, 4]), Init::Zero, false);
        let x = net.binary("add", Binary::Add, x, places).unwrap();
        let x = net.linear("fc", x, 4);
        let graph = net.finish(x).simplify().differentiate();
        let count = |role| graph.with_role(role).count();
        assert_eq!(count(Role::Gradient), count(Role::Parameter));
        let of_places = graph.with_role(Role::Gradient).any(|(_, tensor)| tensor.gradient_of == Some(places));
        assert!(of_places);
    }
}
