//! Reverse-mode differentiation: appends the backward graph to a forward graph.
//!
//! Nodes are visited from the loss backwards; each adds the nodes that give the gradients of its inputs. A
//! tensor that several nodes read gets the sum of what they contribute. The weights' gradient comes before the
//! input's, so that its bucket can leave as early as possible.

use super::{BatchNorm, Graph, Node, NodeId, Op, Role, Tensor, TensorId};

impl Graph {
    /// The graph with its backward pass. Every parameter that is not frozen gets one tensor of role `Gradient`.
    pub fn differentiate(mut self) -> Graph {
        let forward = self.forward_nodes;
        let needed = self.depends_on_parameters();
        let mut gradients: Vec<Option<TensorId>> = vec![None; self.tensors.len()];
        for index in (0..forward).rev() {
            self.backward_of(NodeId(index), &needed, &mut gradients);
        }
        self
    }

    /// For each tensor whether a learned parameter can change it: no gradient is computed for any other.
    fn depends_on_parameters(&self) -> Vec<bool> {
        let mut needed: Vec<bool> = self.tensors.iter().map(Tensor::is_learned).collect();
        for node in &self.nodes {
            if node.inputs.iter().any(|input| needed[input.0]) {
                node.outputs.iter().for_each(|output| needed[output.0] = true);
            }
        }
        needed
    }

    fn backward_of(&mut self, id: NodeId, needed: &[bool], gradients: &mut [Option<TensorId>]) {
        let node = self.node(id).clone();
        let x = node.inputs[0];
        let of_loss = match node.op {
            Op::SoftmaxCrossEntropy { smoothing, weight } => {
                Some(Op::SoftmaxCrossEntropyBackward { smoothing, weight })
            }
            Op::MixedCrossEntropy { smoothing, weight } => {
                Some(Op::MixedCrossEntropyBackward { smoothing, weight })
            }
            _ => None,
        };
        if let Some(op) = of_loss {
            let dx = self.backward(id, op, node.inputs.clone(), x);
            gradients[x.0] = Some(dx);
            return;
        }
        // A node whose output does not reach the loss has no gradient to pass on.
        let Some(mut dy) = gradients[node.outputs[0].0] else { return };
        let y = node.outputs[0];
        if matches!(node.op, Op::Conv2d(conv) if conv.relu)
            || matches!(node.op, Op::Linear { relu: true, .. } | Op::Add { relu: true })
        {
            dy = self.backward(id, Op::ReluBackward { max: f32::INFINITY }, vec![dy, y], y);
        }
        let dx = match node.op {
            Op::Conv2d(conv) => {
                self.weights_backward(id, Op::Conv2dBackwardWeights(conv), x, dy, &node.inputs[1..]);
                let op = Op::Conv2dBackwardData(conv);
                needed[x.0].then(|| self.backward(id, op, vec![dy, node.inputs[1]], x))
            }
            Op::Linear { bias, .. } => {
                self.weights_backward(id, Op::LinearBackwardWeights { bias }, x, dy, &node.inputs[1..]);
                let op = Op::LinearBackwardData { bias };
                needed[x.0].then(|| self.backward(id, op, vec![dy, node.inputs[1]], x))
            }
            Op::Add { .. } => {
                self.contribute(node.inputs[1], dy, needed, gradients);
                Some(dy)
            }
            // Nothing to learn in it or before it.
            _ if !needed[y.0] => None,
            Op::BatchNorm(norm) => {
                let (dx, dz) = self.norm_backward(id, &node, norm, dy);
                if let Some(dz) = dz {
                    self.contribute(node.inputs[5], dz, needed, gradients);
                }
                Some(dx)
            }
            Op::SyncBatchNorm(norm) => Some(self.sync_norm_backward(id, norm, dy)),
            Op::Concat => {
                self.concat_backward(id, &node.inputs, dy, needed, gradients);
                None
            }
            _ if !needed[x.0] => None,
            Op::Relu { max } => Some(self.backward(id, Op::ReluBackward { max }, vec![dy, y], x)),
            Op::LocalResponseNorm(norm) => {
                let op = Op::LocalResponseNormBackward(norm);
                Some(self.backward(id, op, vec![dy, x, node.outputs[1]], x))
            }
            Op::MaxPool(pool) => {
                Some(self.backward(id, Op::MaxPoolBackward(pool), vec![dy, node.outputs[1]], x))
            }
            Op::AvgPool(pool) => Some(self.backward(id, Op::AvgPoolBackward(pool), vec![dy], x)),
            Op::AdaptiveAvgPool => Some(self.backward(id, Op::AdaptiveAvgPoolBackward, vec![dy], x)),
            Op::Dropout { p, layer } => {
                Some(self.backward(id, Op::DropoutBackward { p, layer }, vec![dy], x))
            }
            Op::Reshape => Some(self.backward(id, Op::Reshape, vec![dy], x)),
            op => unreachable!("{} in a forward graph", op.name()),
        };
        if let Some(dx) = dx {
            self.contribute(x, dx, needed, gradients);
        }
    }

    /// Adds `gradient` to what is known of the gradient of `of`.
    fn contribute(
        &mut self,
        of: TensorId,
        gradient: TensorId,
        needed: &[bool],
        gradients: &mut [Option<TensorId>],
    ) {
        if !needed[of.0] {
            return;
        }
        gradients[of.0] = Some(match gradients[of.0] {
            None => gradient,
            Some(before) => {
                let sum = self.gradient_like(of);
                let name = self.tensor(of).name.clone();
                let inputs = vec![before, gradient];
                self.nodes.push(Node {
                    name,
                    op: Op::Add { relu: false },
                    inputs,
                    outputs: vec![sum],
                    forward: None,
                });
                sum
            }
        });
    }

    /// A backward node with one output, of the shape of `like`.
    fn backward(&mut self, forward: NodeId, op: Op, inputs: Vec<TensorId>, like: TensorId) -> TensorId {
        let output = self.gradient_like(like);
        let name = self.node(forward).name.clone();
        self.nodes.push(Node { name, op, inputs, outputs: vec![output], forward: Some(forward) });
        output
    }

    /// The node that gives the gradients of a layer's weight and bias.
    fn weights_backward(
        &mut self,
        forward: NodeId,
        op: Op,
        x: TensorId,
        dy: TensorId,
        parameters: &[TensorId],
    ) {
        if !parameters.iter().any(|&id| self.tensor(id).is_learned()) {
            return;
        }
        let outputs = parameters.iter().map(|&parameter| self.gradient_of(parameter)).collect();
        let name = self.node(forward).name.clone();
        self.nodes.push(Node { name, op, inputs: vec![x, dy], outputs, forward: Some(forward) });
    }

    /// Each input of a concatenation gets its channels of the gradient.
    fn concat_backward(
        &mut self,
        id: NodeId,
        parts: &[TensorId],
        dy: TensorId,
        needed: &[bool],
        gradients: &mut [Option<TensorId>],
    ) {
        let mut from = 0;
        for &part in parts {
            if needed[part.0] {
                let gradient = self.backward(id, Op::Slice { from }, vec![dy], part);
                self.contribute(part, gradient, needed, gradients);
            }
            from += self.tensor(part).spec.shape.0[1];
        }
    }

    /// The one node that gives the gradients of a batch normalisation's input, weight and bias, and of what was added to it, if
    /// anything: those of the input and of that.
    fn norm_backward(
        &mut self,
        id: NodeId,
        forward: &Node,
        norm: BatchNorm,
        dy: TensorId,
    ) -> (TensorId, Option<TensorId>) {
        let (x, weight, bias) = (forward.inputs[0], forward.inputs[1], forward.inputs[2]);
        let [mean, variance] = [forward.outputs[1], forward.outputs[2]];
        let mut inputs = vec![dy, x, weight, mean, variance];
        // What a ReLU in it saved comes after the running statistics; behind an addition it shows in y.
        inputs.extend(if norm.add { forward.outputs.first() } else { forward.outputs.get(5) });
        let dx = self.gradient_like(x);
        let dz = forward.inputs.get(5).map(|&z| self.gradient_like(z));
        let mut outputs = vec![dz.unwrap_or(dx), self.gradient_of(weight), self.gradient_of(bias)];
        outputs.extend(dz.and(Some(dx)));
        let (name, op) = (forward.name.clone(), Op::BatchNormBackward(norm));
        self.nodes.push(Node { name, op, inputs, outputs, forward: Some(id) });
        (dx, dz)
    }

    /// The gradient of a parameter. That of a frozen one, which a node may give along with others, is dropped.
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

    pub(super) fn gradient_like(&mut self, like: TensorId) -> TensorId {
        let spec = self.tensor(like).spec.clone();
        self.tensors.push(Tensor {
            name: format!("d {}", self.tensor(like).name),
            spec,
            role: Role::Activation,
            init: None,
            decay: false,
            frozen: false,
            gradient_of: None,
        });
        TensorId(self.tensors.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use crate::graph::{Builder, Conv2d, Op, Role};

    #[test]
    fn every_parameter_gets_one_gradient_and_the_images_none() {
        let (mut net, x) = Builder::new("fork", 2, [1, 6, 6]);
        let x = net.conv2d("conv1", x, 3, Conv2d::square(3)).unwrap();
        let a = net.conv2d("conv2", x, 3, Conv2d::square(3).padding(1)).unwrap();
        let x = net.add("add", a, x).unwrap();
        let x = net.linear("fc", x, 4);
        let graph = net.finish(x).simplify().differentiate();

        let parameters: Vec<_> = graph.with_role(Role::Parameter).map(|(id, _)| id).collect();
        let mut covered: Vec<_> =
            graph.with_role(Role::Gradient).map(|(_, t)| t.gradient_of.unwrap()).collect();
        covered.sort();
        assert_eq!(covered, parameters);
        // conv1's input is the images: nothing there to learn.
        let data = graph.nodes.iter().filter(|n| matches!(n.op, Op::Conv2dBackwardData(_))).count();
        assert_eq!(data, 1);
        // conv1's output feeds conv2 and the addition: its gradient is a sum.
        let sums =
            graph.nodes[graph.forward_nodes..].iter().filter(|n| matches!(n.op, Op::Add { .. })).count();
        assert_eq!(sums, 1);
    }
}
