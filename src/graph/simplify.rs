//! Rewriting a forward graph into fewer or smaller ops with the same result, bit for bit.
//!
//! Models are written as their papers have them; what is merely cheaper is decided here, once for all models
//! and devices, before differentiation.

use std::collections::HashMap;

use super::{Activation, DType, Graph, Node, Op, Pool, Role, Shape, TensorId};

impl Graph {
    /// Applies every rewriting. To be called on a forward graph, before `differentiate`.
    pub fn simplify(mut self) -> Graph {
        self.plain_pools();
        self.read_unflattened();
        self.pool_before_relu();
        self.fuse_relu();
        self.drop_unused();
        self.number();
        self
    }

    /// Numbers tensors by their places, as they are where additions are part of normalisations: first values shall be
    /// the same on devices that join them and on others, over one rank's statistics and over those of several.
    fn number(&mut self) {
        if self.tensors.iter().any(|tensor| tensor.number > 0) {
            return;
        }
        let mut joined = self.clone();
        joined.join_additions();
        self.take_numbers(joined.tensors.iter().zip(0..).map(|(tensor, number)| (&*tensor.name, number)));
    }

    fn take_numbers<'a>(&mut self, of: impl Iterator<Item = (&'a str, u32)>) {
        let numbers: HashMap<&str, u32> = of.collect();
        for tensor in &mut self.tensors {
            tensor.number = numbers.get(tensor.name.as_str()).copied().unwrap_or(0);
        }
    }

    /// A graph for evaluation: dropout does nothing there, batch normalisation uses the running statistics, and what
    /// only auxiliary heads need is gone. To be called before `simplify`.
    pub fn for_evaluation(mut self) -> Graph {
        self.drop_auxiliary_heads();
        for node in &mut self.nodes {
            if let Op::BatchNorm(norm) = node.op {
                node.op = Op::BatchNormInference(norm);
                node.outputs.truncate(1);
            }
        }
        self.take_dropout_away();
        self.drop_unused();
        self
    }

    /// The network without dropout and stochastic depth, with the first values that it has with them. To be called
    /// right before `simplify`.
    pub fn without_dropout(mut self) -> Graph {
        let whole = self.clone().simplify();
        self.take_dropout_away();
        self.take_numbers(whole.tensors.iter().map(|tensor| (&*tensor.name, tensor.number)));
        self
    }

    fn take_dropout_away(&mut self) {
        while let Some(index) = self.nodes.iter().position(|node| matches!(node.op, Op::Dropout { .. })) {
            // Behind a flattening, which a linear layer could now do without, a reshape takes its place: that layer
            // shall read what it reads in training, with weights of the same dimensions and so of one layout.
            if self.producer(self.nodes[index].inputs[0]).is_some_and(|p| self.nodes[p].op == Op::Reshape) {
                self.nodes[index].op = Op::Reshape;
                continue;
            }
            let node = self.nodes.remove(index);
            self.forward_nodes -= 1;
            self.substitute(node.outputs[0], node.inputs[0]);
        }
    }

    /// The loss becomes that of the main head alone.
    fn drop_auxiliary_heads(&mut self) {
        let main = self.nodes.iter().find(|node| node.op.is_loss() && node.inputs[0] == self.logits);
        self.losses = main.expect("a loss of the logits").outputs[0];
        self.tensors[self.losses.0].role = Role::Metric;
        let mut needed = self.leads_to(self.losses).into_iter();
        self.nodes.retain(|_| needed.next() == Some(true));
        self.forward_nodes = self.nodes.len();
    }

    /// Which nodes a tensor is computed by.
    pub fn leads_to(&self, id: TensorId) -> Vec<bool> {
        let mut is_read = vec![false; self.tensors.len()];
        is_read[id.0] = true;
        let is_read = super::with_all_behind(is_read, &self.nodes);
        self.nodes.iter().map(|node| node.outputs.iter().any(|id| is_read[id.0])).collect()
    }

    /// An adaptive pooling to the size that is there does nothing; one with windows of one size at one distance is
    /// an ordinary one.
    fn plain_pools(&mut self) {
        while let Some(index) = self.nodes.iter().position(|node| {
            node.op == Op::AdaptiveAvgPool && self.shape_of(node.inputs[0]) == self.shape_of(node.outputs[0])
        }) {
            let node = self.nodes.remove(index);
            self.forward_nodes -= 1;
            self.substitute(node.outputs[0], node.inputs[0]);
        }
        for index in 0..self.nodes.len() {
            let node = &self.nodes[index];
            if node.op != Op::AdaptiveAvgPool {
                continue;
            }
            let [x, y] = [node.inputs[0], node.outputs[0]].map(|id| self.shape_of(id).spatial());
            if let (Some((_, x)), Some((_, y))) = (x, y)
                && let Some(pool) = Pool::adaptive(x, y)
            {
                self.nodes[index].op = Op::AvgPool(pool);
            }
        }
    }

    fn shape_of(&self, id: TensorId) -> &Shape {
        &self.tensors[id.0].spec.shape
    }

    /// A linear layer reads any shape as if flattened, so the flattening before it need not happen: on a device
    /// with blocked layouts it would be a copy of the whole tensor.
    fn read_unflattened(&mut self) {
        for index in 0..self.nodes.len() {
            if !matches!(self.nodes[index].op, Op::Linear { .. }) {
                continue;
            }
            let input = self.nodes[index].inputs[0];
            let batch = |id: TensorId| self.shape_of(id).batch();
            // Devices read two to five axes so.
            let is_read = |id: TensorId| (2..=5).contains(&self.shape_of(id).rank());
            let is_flattening = |p: &usize| {
                let Node { op, inputs, .. } = &self.nodes[*p];
                *op == Op::Reshape && batch(inputs[0]) == batch(input) && is_read(inputs[0])
            };
            if let Some(reshape) = self.producer(input).filter(is_flattening) {
                self.nodes[index].inputs[0] = self.nodes[reshape].inputs[0];
            }
        }
        self.drop_dead_reshapes();
    }

    /// max(relu(x)) = relu(max(x)), and the gradients are the same too: where a window's maximum is above zero
    /// both pass it to the same element, elsewhere both pass nothing. The ReLU then works on the smaller tensor. One
    /// that can be part of a normalisation stays: there it costs nothing at all.
    fn pool_before_relu(&mut self) {
        for pool in 1..self.nodes.len() {
            let relu = pool - 1;
            let is_pair = matches!(self.nodes[relu].op, Op::Activation(Activation::Relu { .. }))
                && matches!(self.nodes[pool].op, Op::MaxPool(_))
                && self.nodes[pool].inputs[0] == self.nodes[relu].outputs[0]
                && self.read_once(self.nodes[relu].outputs[0])
                && !self.after_norm(relu);
            if !is_pair {
                continue;
            }
            self.nodes.swap(relu, pool);
            let (pool, relu) = (relu, pool);
            let (x, middle, y) =
                (self.nodes[relu].inputs[0], self.nodes[relu].outputs[0], self.nodes[pool].outputs[0]);
            self.tensors[middle.0].spec = self.tensors[y.0].spec.clone();
            self.nodes[pool].inputs[0] = x;
            self.nodes[pool].outputs[0] = middle;
            self.nodes[relu].inputs[0] = middle;
            self.nodes[relu].outputs[0] = y;
            let names = (self.tensors[middle.0].name.clone(), self.tensors[y.0].name.clone());
            (self.tensors[y.0].name, self.tensors[middle.0].name) = names;
        }
    }

    fn after_norm(&self, node: usize) -> bool {
        let producer = self.producer(self.nodes[node].inputs[0]);
        let op = producer.map(|producer| self.nodes[producer].op);
        matches!(op, Some(Op::BatchNorm(_) | Op::BatchNormInference(_)))
    }

    /// A ReLU right after a convolution, linear layer, normalisation or addition that nothing else reads becomes part
    /// of it.
    fn fuse_relu(&mut self) {
        for index in 0..self.nodes.len() {
            if self.nodes[index].op != Op::Activation(Activation::RELU) {
                continue;
            }
            let (x, y) = (self.nodes[index].inputs[0], self.nodes[index].outputs[0]);
            let Some(producer) = self.producer(x).filter(|_| self.read_once(x)) else { continue };
            match &mut self.nodes[producer].op {
                Op::Conv(conv) => conv.relu = true,
                Op::Linear { relu, .. } | Op::Add { relu } => *relu = true,
                Op::BatchNorm(norm) | Op::BatchNormInference(norm) => norm.relu = true,
                _ => continue,
            }
            self.nodes[producer].outputs[0] = y;
            if matches!(self.nodes[producer].op, Op::BatchNorm(_)) {
                let saved = self.saved_of(y);
                self.nodes[producer].outputs.push(saved);
            }
            self.nodes[index].inputs.clear();
            self.nodes[index].outputs.clear();
        }
        // Those that have become part of others.
        self.nodes.retain(|node| !node.outputs.is_empty());
        self.forward_nodes = self.nodes.len();
    }

    /// A new tensor for what the op that makes `y` leaves for its backward op.
    pub(super) fn saved_of(&mut self, y: TensorId) -> TensorId {
        let mut saved = self.tensors[y.0].clone();
        saved.name += ".saved";
        saved.spec.dtype = DType::Saved;
        self.add_tensor(saved)
    }

    pub(super) fn producer(&self, id: TensorId) -> Option<usize> {
        self.nodes.iter().position(|node| node.outputs.contains(&id))
    }

    pub(super) fn read_once(&self, id: TensorId) -> bool {
        self.nodes.iter().flat_map(|node| &node.inputs).filter(|&&input| input == id).count() == 1
    }

    fn substitute(&mut self, from: TensorId, to: TensorId) {
        for input in self.nodes.iter_mut().flat_map(|node| &mut node.inputs).filter(|input| **input == from) {
            *input = to;
        }
        if self.logits == from {
            self.logits = to;
        }
    }

    fn drop_dead_reshapes(&mut self) {
        let logits = self.logits;
        let read: Vec<TensorId> = self.nodes.iter().flat_map(|node| node.inputs.clone()).collect();
        self.nodes.retain(|node| {
            node.op != Op::Reshape || node.outputs[0] == logits || read.contains(&node.outputs[0])
        });
        self.forward_nodes = self.nodes.len();
    }

    /// Removes tensors that no node mentions and renumbers the rest.
    pub(super) fn drop_unused(&mut self) {
        let mut renumbered = vec![None; self.tensors.len()];
        for id in self.nodes.iter().flat_map(|node| node.inputs.iter().chain(&node.outputs)) {
            renumbered[id.0] = Some(TensorId(0));
        }
        for (next, slot) in renumbered.iter_mut().flatten().enumerate() {
            *slot = TensorId(next);
        }
        let mut index = 0;
        self.tensors.retain(|_| {
            index += 1;
            renumbered[index - 1].is_some()
        });
        let new = |id: &mut TensorId| *id = renumbered[id.0].expect("a tensor that a node mentions");
        for node in &mut self.nodes {
            node.inputs.iter_mut().chain(&mut node.outputs).for_each(new);
        }
        self.tensors.iter_mut().filter_map(|tensor| tensor.gradient_of.as_mut()).for_each(new);
        self.own_tensors().for_each(new);
    }
}

#[cfg(test)]
mod tests {
    use crate::graph::{Builder, Conv, Graph, Op, Pool, Role};

    /// The op that is left of an adaptive pooling of one size to another.
    fn adaptive(from: usize, to: usize) -> Vec<Op> {
        let (mut net, x) = Builder::new("pool", 1, [1, from, from]);
        let x = net.adaptive_avg_pool("pool", x, [1, to, to]).unwrap();
        let x = net.linear("fc", x, 2);
        let graph = net.finish(x).simplify();
        let pools = |op: &Op| !matches!(op, Op::Linear { .. } | Op::SoftmaxCrossEntropy { .. });
        graph.nodes.iter().map(|node| node.op).filter(pools).collect()
    }

    #[test]
    fn an_adaptive_pooling_with_windows_all_alike_is_an_ordinary_one_or_none() {
        assert_eq!(adaptive(7, 7), []);
        assert_eq!(adaptive(14, 7), [Op::AvgPool(Pool::square(2))]);
        assert_eq!(adaptive(5, 1), [Op::AvgPool(Pool::square(5))]);
        // [0,4) and [3,7): they overlap, but are alike.
        assert_eq!(adaptive(7, 2), [Op::AvgPool(Pool::square(4).stride(3))]);
        assert_eq!(adaptive(10, 7), [Op::AdaptiveAvgPool]);
        assert_eq!(adaptive(1, 7), [Op::AdaptiveAvgPool]);
    }

    fn small() -> Graph {
        let (mut net, x) = Builder::new("small", 2, [1, 8, 8]);
        let x = net.conv("conv1", x, 4, Conv::square(3)).unwrap();
        let x = net.relu("relu1", x);
        let x = net.max_pool("pool1", x, Pool::square(2)).unwrap();
        let x = net.conv("conv2", x, 4, Conv::square(3)).unwrap();
        let x = net.relu("relu2", x);
        let x = net.dropout("drop", x, 0.5);
        let x = net.flatten("flatten", x);
        let x = net.linear("fc", x, 3);
        net.finish(x)
    }

    fn names(graph: &Graph) -> Vec<&'static str> {
        graph.nodes.iter().map(|node| node.op.name()).collect()
    }

    #[test]
    fn relu_moves_behind_the_pool_or_into_the_convolution_and_flatten_goes() {
        let graph = small().simplify();
        let expected =
            ["conv2d", "max pool", "relu", "conv2d+relu", "dropout", "linear", "softmax cross-entropy"];
        assert_eq!(names(&graph), expected);
        assert_eq!(graph.forward_nodes, expected.len());
        assert_eq!(graph.tensor(graph.nodes[2].inputs[0]).spec.shape.0, [2, 4, 3, 3]);
        assert_eq!(graph.parameter_count(), 4 * 9 + 4 + 4 * 4 * 9 + 4 + 3 * 4 + 3);
        assert_eq!(graph.with_role(Role::Input).count(), 2);
    }

    #[test]
    fn evaluation_has_no_dropout() {
        let graph = small().for_evaluation().simplify();
        assert!(!graph.nodes.iter().any(|node| matches!(node.op, Op::Dropout { .. })));
        assert_eq!(graph.parameter_count(), small().parameter_count());
    }

    /// Whoever compares a run with dropout and one without starts both with the same weights.
    #[test]
    fn a_training_without_dropout_starts_with_the_same_values() {
        let (whole, without) = (small().simplify(), small().without_dropout().simplify());
        let first = |graph: &Graph| {
            let parameters = graph.with_role(Role::Parameter);
            parameters.map(|(_, tensor)| (tensor.name.clone(), tensor.number)).collect::<Vec<_>>()
        };
        assert_eq!(first(&whole), first(&without));
        assert_eq!(without.nodes.len() + 1, whole.nodes.len());
        assert!(!without.nodes.iter().any(|node| matches!(node.op, Op::Dropout { .. })));
    }

    #[test]
    fn a_relu_that_two_ops_read_stays() {
        let (mut net, x) = Builder::new("fork", 1, [1, 4, 4]);
        let x = net.conv("conv", x, 1, Conv::square(1)).unwrap();
        let r = net.relu("relu", x);
        let y = net.add("add", r, x).unwrap();
        let x = net.linear("fc", y, 2);
        let graph = net.finish(x).simplify();
        assert!(names(&graph).contains(&"relu"));
    }
}
