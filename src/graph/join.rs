//! Ops that a device computes faster together than one after the other: rewritings that change no result, made for the
//! device that asks for them, when all of a step is known.

use super::{DType, Graph, Node, NodeId, Op, TensorId};

/// What a device wants to have joined; nothing by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Joins {
    /// The gradient of a convolution's input with that of the ReLU before it: `Conv2dBackwardDataRelu`.
    pub relu_backward: bool,
    /// A convolution that gives numbers of one of these types with the mean and variance that a normalisation wants of
    /// them: `Conv2dMoments`.
    pub moments: &'static [DType],
}

impl Graph {
    /// The same step with these ops joined. To be called last.
    pub fn join(mut self, joins: Joins) -> Graph {
        if joins.relu_backward {
            self.join_relu_backward();
        }
        if !joins.moments.is_empty() {
            self.join_moments(joins.moments);
        }
        self
    }

    /// The only reader of a convolution's dx is a ReLU's backward op, and what that ReLU gave is known by then.
    fn join_relu_backward(&mut self) {
        let mut gone = Vec::new();
        for index in self.forward_nodes..self.nodes.len() {
            let node = &self.nodes[index];
            if node.op != (Op::ReluBackward { max: f32::INFINITY }) {
                continue;
            }
            let ([dx, relu_y], joined) = ([node.inputs[0], node.inputs[1]], node.outputs[0]);
            let Some(data) = self.producer(dx).filter(|_| self.read_once(dx)) else { continue };
            let known = self.producer(relu_y).is_none_or(|maker| maker < data);
            if let Op::Conv2dBackwardData(conv) = self.nodes[data].op
                && known
                && self.tensor(dx).spec == self.tensor(joined).spec
            {
                let node = &mut self.nodes[data];
                node.op = Op::Conv2dBackwardDataRelu(conv);
                node.inputs.push(relu_y);
                node.outputs[0] = joined;
                gone.push(index);
            }
        }
        self.remove(&gone);
    }

    /// Convolutions before normalisations give the moments too; those that are computed again do so likewise, so that what
    /// they give has the same bits.
    fn join_moments(&mut self, types: &[DType]) {
        let mut gone = Vec::new();
        let mut weights = Vec::new();
        for index in 0..self.forward_nodes {
            let (op, x) = (self.nodes[index].op, self.nodes[index].inputs.first().copied());
            let Some(conv) = x.and_then(|x| self.producer(x)).filter(|&conv| self.is_bare(conv, types))
            else {
                continue;
            };
            let moments = match op {
                Op::BatchNorm(norm) => {
                    let moments = self.moments_of(conv);
                    self.nodes[index].inputs.push(moments);
                    self.nodes[index].op = Op::BatchNormOfMoments(norm);
                    moments
                }
                // Those of one rank, for an exchange.
                Op::BatchNormMoments => {
                    gone.push(index);
                    self.nodes[index].outputs[0]
                }
                _ => continue,
            };
            weights.push(self.give_moments(conv, moments));
        }
        for NodeId(again) in self.recomputed.clone() {
            if self.is_bare(again, types) && weights.contains(&self.nodes[again].inputs[1]) {
                let moments = self.moments_of(again);
                self.give_moments(again, moments);
            }
        }
        self.remove(&gone);
    }

    /// Whether a node is a convolution with nothing behind it, of one of these types.
    fn is_bare(&self, node: usize, types: &[DType]) -> bool {
        let node = &self.nodes[node];
        let bare = matches!(node.op, Op::Conv2d(conv) if !conv.bias && !conv.relu);
        bare && types.contains(&self.tensor(node.outputs[0]).spec.dtype)
    }

    /// Makes a convolution give these, too; returns its weight.
    fn give_moments(&mut self, node: usize, moments: TensorId) -> TensorId {
        let node = &mut self.nodes[node];
        if let Op::Conv2d(conv) = node.op {
            node.op = Op::Conv2dMoments(conv);
            node.outputs.push(moments);
        }
        node.inputs[1]
    }

    fn moments_of(&mut self, node: usize) -> TensorId {
        let Node { name, outputs, .. } = &self.nodes[node];
        let (name, channels) = (format!("{name}.moments"), self.tensor(outputs[0]).spec.shape.0[1]);
        self.per_channel(&name, &[2, channels])
    }

    /// Takes nodes out, and tensors that nobody mentions any more.
    fn remove(&mut self, nodes: &[usize]) {
        if nodes.is_empty() {
            return;
        }
        let mut gone = vec![false; self.nodes.len()];
        nodes.iter().for_each(|&node| gone[node] = true);
        let mut left = 0;
        let new: Vec<NodeId> = gone
            .iter()
            .map(|gone| {
                left += usize::from(!gone);
                NodeId(left.saturating_sub(1))
            })
            .collect();
        self.forward_nodes -= gone[..self.forward_nodes].iter().filter(|gone| **gone).count();
        let mut kept = gone.iter().map(|gone| !gone);
        self.nodes.retain(|_| kept.next() == Some(true));
        let refer = self.nodes.iter_mut().filter_map(|node| node.forward.as_mut());
        refer.chain(&mut self.recomputed).for_each(|id| *id = new[id.0]);
        self.drop_unused();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{BatchNorm, Builder, Conv2d, Role};

    const ALL: Joins = Joins { relu_backward: true, moments: &[DType::F16] };

    /// Two convolutions with a ReLU between them, then two with normalisations, in f16.
    fn forward() -> Graph {
        let (mut net, x) = Builder::new("joins", 2, [1, 12, 12]);
        let bare = Conv2d { bias: false, ..Conv2d::square(3) };
        let x = net.conv2d("conv1", x, 3, Conv2d::square(3)).unwrap();
        let x = net.relu("relu1", x);
        let x = net.conv2d("conv2", x, 3, Conv2d::square(3)).unwrap();
        let x = net.conv2d("conv3", x, 3, bare).unwrap();
        let x = net.batch_norm("bn3", x, BatchNorm::default()).unwrap();
        let x = net.relu("relu3", x);
        let x = net.conv2d("conv4", x, 3, bare).unwrap();
        let x = net.batch_norm("bn4", x, BatchNorm::default()).unwrap();
        let x = net.linear("fc", x, 4);
        net.finish(x).simplify().narrowed_to(DType::F16)
    }

    fn names(graph: &Graph) -> Vec<&'static str> {
        graph.nodes.iter().map(|node| node.op.name()).collect()
    }

    fn count(graph: &Graph, name: &str) -> usize {
        names(graph).iter().filter(|found| **found == name).count()
    }

    /// Every backward node's forward node is of its layer, and every tensor is made before it is read.
    fn check(graph: &Graph) {
        let mut made: Vec<bool> = graph
            .tensors
            .iter()
            .map(|tensor| matches!(tensor.role, Role::Input | Role::Parameter | Role::Statistic))
            .collect();
        for node in &graph.nodes {
            assert!(node.inputs.iter().all(|id| made[id.0]), "{} reads what is not made", node.name);
            node.outputs.iter().for_each(|id| made[id.0] = true);
            let forward = node.forward.map(|id| (graph.node(id).name.as_str(), id.0 < graph.forward_nodes));
            assert!(forward.is_none_or(|(name, first)| first && name == node.name), "{}", node.name);
        }
        assert!(graph.recomputed.iter().all(|id| graph.node(*id).name.ends_with(" again")));
    }

    #[test]
    fn what_a_device_does_not_want_stays_apart() {
        let graph = forward().differentiate();
        assert_eq!(graph.clone().join(Joins::default()), graph);
        let of_others = Joins { moments: &[DType::BF16], ..Joins::default() };
        assert_eq!(graph.clone().join(of_others), graph);
    }

    #[test]
    fn a_relu_before_a_convolution_is_part_of_its_gradient() {
        let graph = forward().differentiate();
        let before = (count(&graph, "relu backward"), count(&graph, "conv2d backward data"));
        assert_eq!(before, (1, 3), "{:?}", names(&graph));
        let joined = graph.join(Joins { relu_backward: true, moments: &[] });
        check(&joined);
        let after = ["relu backward", "conv2d backward data", "conv2d backward data+relu"];
        assert_eq!(after.map(|name| count(&joined, name)), [0, 2, 1]);
        let node = joined.nodes.iter().find(|node| matches!(node.op, Op::Conv2dBackwardDataRelu(_))).unwrap();
        assert_eq!(node.name, "conv2");
        assert_eq!(joined.tensor(node.inputs[2]).spec, joined.tensor(node.outputs[0]).spec);
    }

    /// A gradient that is a sum is not one convolution's.
    #[test]
    fn a_relu_that_two_ops_read_stays() {
        let (mut net, x) = Builder::new("fork", 1, [1, 4, 4]);
        let x = net.conv2d("conv", x, 1, Conv2d::square(1)).unwrap();
        let r = net.relu("relu", x);
        let y = net.conv2d("next", r, 1, Conv2d::square(1)).unwrap();
        let y = net.add("add", r, y).unwrap();
        let x = net.linear("fc", y, 2);
        let graph = net.finish(x).simplify().differentiate();
        assert_eq!(graph.clone().join(ALL), graph);
    }

    #[test]
    fn convolutions_give_the_moments_of_normalisations() {
        let joined = forward().differentiate().join(ALL);
        check(&joined);
        assert_eq!((count(&joined, "conv2d+moments"), count(&joined, "batch norm moments")), (2, 0));
        for node in joined.nodes.iter().filter(|node| matches!(node.op, Op::BatchNormOfMoments(_))) {
            let moments = joined.tensor(*node.inputs.last().unwrap());
            assert_eq!((&moments.spec.shape.0[..], moments.spec.dtype), (&[2, 3][..], DType::F32));
        }
        let over_ranks = forward().synchronise_batch_norms(4).differentiate();
        assert_eq!(count(&over_ranks, "batch norm moments"), 2);
        let joined = over_ranks.join(ALL);
        check(&joined);
        assert_eq!((count(&joined, "conv2d+moments"), count(&joined, "batch norm moments")), (2, 0));
    }

    /// How they start depends on their place among the tensors.
    #[test]
    fn parameters_keep_their_places() {
        for ranks in [1, 4] {
            let graph = forward().synchronise_batch_norms(ranks).differentiate();
            let places = |graph: &Graph| -> Vec<_> {
                let parameters = graph.with_role(Role::Parameter);
                parameters.map(|(id, tensor)| (id, tensor.name.clone())).collect()
            };
            let joined = graph.clone().join(ALL);
            assert_ne!(joined, graph);
            assert_eq!(places(&joined), places(&graph));
        }
    }

    #[test]
    fn what_is_computed_again_is_joined_alike() {
        let (mut net, mut x) = Builder::new("deep", 2, [1, 24, 24]);
        for layer in 0..8 {
            let conv = Conv2d { bias: false, ..Conv2d::square(3) };
            x = net.conv2d(&format!("conv{layer}"), x, 3, conv).unwrap();
            x = net.batch_norm(&format!("bn{layer}"), x, BatchNorm::default()).unwrap();
            x = net.relu(&format!("relu{layer}"), x);
        }
        let x = net.linear("fc", x, 4);
        let graph = net.finish(x).simplify().narrowed_to(DType::F16).differentiate().recompute();
        let again = |graph: &Graph, name: &str| {
            let names = graph.recomputed.iter().map(|id| graph.node(*id).op.name());
            names.filter(|found| *found == name).count()
        };
        let convs = again(&graph, "conv2d");
        assert!(convs > 0);
        let joined = graph.join(ALL);
        check(&joined);
        assert_eq!((again(&joined, "conv2d"), again(&joined, "conv2d+moments")), (0, convs));
    }
}
