//! Batch normalisation over the batches of several ranks: the same network, with the exchanges that this needs as
//! nodes of the graph, so that a step stays a static program.
//!
//! Forward a rank computes mean and variance of its own batch, gets those of the others, combines them and normalises.
//! Backward it sums dy and dy·x̂ over its own batch and gets the sums of the others. The gradients of weight and bias
//! are of its own batch: like all gradients they are added up over ranks later.

use super::{
    BackwardOp, BatchNorm, DType, Graph, Node, NodeId, NormStatistics, Op, Role, Shape, Spec, Tensor,
    TensorId,
};

impl Graph {
    /// The network with the mean and variance of every normalisation those of the batches of `ranks` ranks. To be
    /// called after `simplify` and before `differentiate`. For one rank nothing changes, but where images are cut by
    /// rows: there statistics are those of whole images at least.
    pub fn synchronise_batch_norms(mut self, ranks: usize) -> Graph {
        let of = |norm: BatchNorm| ranks.max(norm.rows.map_or(1, |rows| rows.parts));
        let is_alone = |node: &Node| !matches!(node.op, Op::BatchNorm(norm) if of(norm) > 1);
        if self.nodes.iter().all(is_alone) {
            return self;
        }
        for mut node in std::mem::take(&mut self.nodes) {
            if let Op::BatchNorm(norm) = node.op
                && of(norm) > 1
            {
                let channels = self.tensor(node.outputs[1]).spec.shape.elements();
                let moments = self.per_channel(&format!("{}.moments", node.name), &[2, channels]);
                let input = node.inputs[0];
                self.nodes.push(Node::new(&node.name, Op::BatchNormMoments, vec![input], vec![moments]));
                node.inputs.push(self.exchanged(
                    &node.name,
                    moments,
                    of(norm),
                    (NormStatistics::Moments, norm),
                ));
                node.op = Op::BatchNorm(BatchNorm { given: true, ..norm });
                // What a ReLU would save is computed again.
                node.outputs.truncate(5);
            }
            self.nodes.push(node);
        }
        self.forward_nodes = self.nodes.len();
        self.drop_unused();
        self
    }

    /// Whether there is a normalisation over the batch.
    pub fn has_batch_norm(&self) -> bool {
        self.nodes.iter().any(|node| matches!(node.op, Op::BatchNorm(_)))
    }

    /// The nodes that give the gradients of a synchronised normalisation, those of its weight and bias into these
    /// tensors; returns that of its input.
    pub(super) fn sync_norm_backward(
        &mut self,
        id: NodeId,
        norm: BatchNorm,
        dy: TensorId,
        of_weights: &[TensorId],
    ) -> TensorId {
        let forward = self.node(id).clone();
        let [x, weight, bias] = [0, 1, 2].map(|index| forward.inputs[index]);
        let mut inputs = vec![dy, x, weight, bias, forward.outputs[1], forward.outputs[2]];
        let moments = self.tensor(forward.inputs[5]).spec.shape.0.clone();
        let sums = self.per_channel(&format!("{}.sums", forward.name), &moments[1..]);
        // Those of the weight and the bias come first: their bucket may leave.
        let outputs = [&[sums], of_weights].concat();
        let (name, op) = (forward.name.clone(), Op::Backward(BackwardOp::BatchNormSums(norm)));
        self.nodes.push(Node { name, op, inputs: inputs.clone(), outputs, forward: Some(id) });
        inputs.push(self.exchanged(&forward.name, sums, moments[0], (NormStatistics::Sums, norm)));
        let dx = self.gradient_like(x);
        let (name, op) = (forward.name, Op::Backward(BackwardOp::BatchNorm(norm)));
        self.nodes.push(Node { name, op, inputs, outputs: vec![dx], forward: Some(id) });
        dx
    }

    /// A node that gives what every rank has of a tensor.
    fn exchanged(
        &mut self,
        name: &str,
        own: TensorId,
        ranks: usize,
        (what, norm): (NormStatistics, BatchNorm),
    ) -> TensorId {
        let shape = [&[ranks], &self.tensor(own).spec.shape.0[..]].concat();
        let all = self.per_channel(&format!("{} of {ranks} ranks", self.tensor(own).name), &shape);
        let rows = norm.rows.filter(|rows| !rows.are_even()).map(|rows| (what, rows));
        self.nodes.push(Node::new(name, Op::Exchange { ranks, rows }, vec![own], vec![all]));
        all
    }

    /// A new tensor of a few f32 for each channel.
    pub(super) fn per_channel(&mut self, name: &str, shape: &[usize]) -> TensorId {
        let spec = Spec { shape: Shape(shape.to_vec()), dtype: DType::F32 };
        self.add_tensor(Tensor::new(name, spec, Role::Activation))
    }
}

#[cfg(test)]
mod tests {
    use crate::graph::{BackwardOp, BatchNorm, Builder, Conv, Graph, Op, Role, TensorId};

    fn forward() -> Graph {
        let (mut net, x) = Builder::new("two", 2, [1, 6, 6]);
        let x = net.conv("conv", x, 3, Conv::square(3)).unwrap();
        let x = net.batch_norm("bn1", x, BatchNorm::default()).unwrap();
        let x = net.relu("relu", x);
        let x = net.batch_norm("bn2", x, BatchNorm::default()).unwrap();
        let x = net.linear("fc", x, 4);
        net.finish(x).simplify()
    }

    #[test]
    fn one_rank_has_nothing_to_share() {
        assert_eq!(forward().synchronise_batch_norms(1), forward());
    }

    #[test]
    fn what_the_graph_names_is_what_it_was() {
        let graph = forward().mix_labels().synchronise_batch_norms(2);
        let name = |id: TensorId| graph.tensor(id).name.as_str();
        assert_eq!([graph.images, graph.labels].map(name), ["images", "labels"]);
        assert_eq!(graph.mixed.map(|mixed| mixed.map(name)), Some(["others", "shares"]));
        let loss = graph.nodes.last().unwrap();
        assert_eq!((loss.inputs[0], &loss.outputs[..]), (graph.logits, &[graph.losses, graph.hits][..]));
    }

    #[test]
    fn each_normalisation_exchanges_once_forward_and_once_backward() {
        let (plain, graph) = (forward(), forward().synchronise_batch_norms(4).differentiate());
        let given = |op: &Op| match op {
            Op::BatchNorm(norm) | Op::Backward(BackwardOp::BatchNorm(norm)) => Some(norm.given),
            _ => None,
        };
        assert_eq!(graph.nodes.iter().filter_map(|n| given(&n.op)).collect::<Vec<_>>(), [true; 4]);
        let is_exchange = |node: &&crate::graph::Node| node.op == Op::Exchange { ranks: 4, rows: None };
        let (there, back) = graph.nodes.split_at(graph.forward_nodes);
        assert_eq!(
            (there.iter().filter(is_exchange).count(), back.iter().filter(is_exchange).count()),
            (2, 2)
        );
        // The parameters start as in the plain network: how depends on their place among the tensors.
        let parameters = |graph: &Graph| -> Vec<_> {
            graph.with_role(Role::Parameter).map(|(id, tensor)| (id, tensor.clone())).collect()
        };
        assert_eq!(parameters(&graph), parameters(&plain));
        assert_eq!(graph.with_role(Role::Gradient).count(), parameters(&plain).len());
    }
}
