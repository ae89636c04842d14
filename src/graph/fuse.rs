//! Ops that a device computes faster together than one after the other: rewritings that change no result but by
//! rounding, made for the device that asks for them, when all of a step is known.

use super::{Activation, BackwardOp, BatchNorm, Conv, DType, FusedOp, Graph, Node, NodeId, Op, TensorId};

/// What a device wants to have joined; nothing by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OpFusions {
    /// A normalisation with an addition and ReLU behind it: `BatchNorm::add`.
    pub addition: bool,
    /// Its way back reads what its forward op saved, where the ReLU let through, in place of y.
    pub mask: bool,
    /// The gradient of a convolution's input with that of the ReLU before it: `FusedOp::ConvBackwardDataRelu`.
    pub relu_backward: bool,
    /// The gradient of a convolution's input with what else is known of it: `FusedOp::ConvBackwardDataAdd`.
    pub gradient_sums: bool,
    /// A convolution that gives numbers of one of these types with the mean and variance that a normalisation wants of
    /// them: `FusedOp::ConvMoments`.
    pub moments: &'static [DType],
}

impl Graph {
    /// The step's graph with these ops joined. To be called last.
    pub fn fuse(mut self, fusions: OpFusions) -> Graph {
        if fusions.addition {
            self.join_additions();
        }
        if fusions.mask {
            self.save_masks();
        }
        if fusions.relu_backward {
            self.join_relu_backward();
        }
        if fusions.gradient_sums {
            self.join_gradient_sums();
        }
        if !fusions.moments.is_empty() {
            self.join_moments(fusions.moments);
        }
        self
    }

    /// An addition with ReLU to a normalisation that nothing else reads becomes part of it: of the two that a block of
    /// a residual network may add up, part of the later one. So do their backward ops. What is computed again is joined
    /// like its first time: both normalisations are read once, or none is.
    pub(super) fn join_additions(&mut self) {
        let mut gone = Vec::new();
        for index in 0..self.nodes.len() {
            if self.nodes[index].op != (Op::Add { relu: true }) {
                continue;
            }
            let Some((norm, other)) = self.norm_before(index) else { continue };
            let y = self.nodes[index].outputs[0];
            let node = &mut self.nodes[norm];
            if let Op::BatchNorm(of) | Op::BatchNormInference(of) = &mut node.op {
                (of.relu, of.add) = (true, true);
            }
            node.inputs.push(other);
            node.outputs[0] = y;
            gone.push(index);
            gone.extend(self.join_backward_of_addition(NodeId(index), NodeId(norm)));
        }
        self.remove(&gone);
    }

    /// The normalisation that an addition can be part of, and what is added to it, which must be there before.
    pub(super) fn norm_before(&self, addition: usize) -> Option<(usize, TensorId)> {
        let inputs = &self.nodes[addition].inputs;
        let norms = inputs.iter().enumerate().filter_map(|(place, &input)| {
            let producer = self.producer(input).filter(|_| self.read_once(input))?;
            let is_bare = |norm: BatchNorm| !norm.relu && !norm.given;
            let op = self.nodes[producer].op;
            let fits = matches!(op, Op::BatchNorm(norm) | Op::BatchNormInference(norm) if is_bare(norm));
            fits.then_some((producer, inputs[1 - place]))
        });
        let (norm, other) = norms.max_by_key(|(producer, _)| *producer)?;
        self.producer(other).is_none_or(|producer| producer < norm).then_some((norm, other))
    }

    /// The ReLU's backward op becomes part of the normalisation's, where that is the first to read what it gives;
    /// returns it then.
    fn join_backward_of_addition(&mut self, addition: NodeId, norm: NodeId) -> Option<usize> {
        let of_forward = |graph: &Graph, forward: NodeId, fits: fn(Op) -> bool| {
            graph.nodes.iter().position(|node| node.forward == Some(forward) && fits(node.op))
        };
        let relu =
            of_forward(self, addition, |op| op == Op::Backward(BackwardOp::Activation(Activation::RELU)))?;
        let [dy, y] = [0, 1].map(|index| self.nodes[relu].inputs[index]);
        let dz = self.nodes[relu].outputs[0];
        let reads = |node: &Node| node.inputs.contains(&dz);
        let backward = of_forward(self, norm, |op| matches!(op, Op::Backward(BackwardOp::BatchNorm(_))))
            .filter(|&backward| self.nodes.iter().position(reads) == Some(backward));
        let Some(backward) = backward else {
            // Their forward op is the joined one, whichever part of it.
            let name = self.nodes[norm.0].name.clone();
            (self.nodes[relu].forward, self.nodes[relu].name) = (Some(norm), name);
            return None;
        };
        let node = &mut self.nodes[backward];
        if let Op::Backward(BackwardOp::BatchNorm(of)) = &mut node.op {
            (of.relu, of.add) = (true, true);
        }
        node.inputs[0] = dy;
        node.inputs.push(y);
        let dx = std::mem::replace(&mut node.outputs[0], dz);
        node.outputs.push(dx);
        Some(relu)
    }

    /// Normalisations with an addition save where their ReLU let through, for their way back: a bit there is enough.
    fn save_masks(&mut self) {
        let backward = |node: &Node| matches!(node.op, Op::Backward(BackwardOp::BatchNorm(norm)) if norm.add);
        let all: Vec<usize> = (0..self.nodes.len()).filter(|&index| backward(&self.nodes[index])).collect();
        for index in all {
            let y = self.nodes[index].inputs[5];
            let adds = |op: Op| matches!(op, Op::BatchNorm(norm) | Op::BatchNormInference(norm) if norm.add);
            let Some(norm) = self.producer(y).filter(|&norm| adds(self.nodes[norm].op)) else { continue };
            let mask = self.saved_of(y);
            self.nodes[norm].outputs.push(mask);
            self.nodes[index].inputs[5] = mask;
        }
    }

    /// The only reader of a convolution's dx is a ReLU's backward op, and what that ReLU gave is known by then.
    fn join_relu_backward(&mut self) {
        let mut gone = Vec::new();
        for index in self.forward_nodes..self.nodes.len() {
            let node = &self.nodes[index];
            if node.op != Op::Backward(BackwardOp::Activation(Activation::RELU)) {
                continue;
            }
            let ([dx, relu_y], joined) = ([node.inputs[0], node.inputs[1]], node.outputs[0]);
            let Some(data) = self.producer(dx).filter(|_| self.read_once(dx)) else { continue };
            let known = self.producer(relu_y).is_none_or(|maker| maker < data);
            if let Op::ConvBackwardData(conv) = self.nodes[data].op
                && known
                && self.tensor(dx).spec == self.tensor(joined).spec
            {
                let node = &mut self.nodes[data];
                node.op = Op::Fused(FusedOp::ConvBackwardDataRelu(conv));
                node.inputs.push(relu_y);
                node.outputs[0] = joined;
                gone.push(index);
            }
        }
        self.remove(&gone);
    }

    /// A convolution's dx that nothing but a sum of gradients reads is added to the rest of the sum where that lies, if
    /// the rest is known by then and nobody reads it afterwards.
    fn join_gradient_sums(&mut self) {
        let mut gone = Vec::new();
        for index in self.forward_nodes..self.nodes.len() {
            let node = &self.nodes[index];
            if node.op != (Op::Add { relu: false }) {
                continue;
            }
            let (sum, inputs) = (node.outputs[0], [node.inputs[0], node.inputs[1]]);
            let parts = [inputs, [inputs[1], inputs[0]]];
            let fitting = parts.into_iter().find_map(|[dx, rest]| self.adds_to(dx, rest, index, sum));
            if let Some((data, conv, rest)) = fitting {
                let node = &mut self.nodes[data];
                node.op = Op::Fused(FusedOp::ConvBackwardDataAdd(conv));
                node.inputs.push(rest);
                node.outputs[0] = sum;
                gone.push(index);
            }
        }
        self.remove(&gone);
    }

    /// The node that gives `dx`, if it is a convolution's that may add it to `rest` in the place of node `addition`.
    fn adds_to(
        &self,
        dx: TensorId,
        rest: TensorId,
        addition: usize,
        sum: TensorId,
    ) -> Option<(usize, Conv, TensorId)> {
        let data = self.producer(dx).filter(|_| self.read_once(dx))?;
        let Op::ConvBackwardData(conv) = self.nodes[data].op else { return None };
        let known = self.producer(rest).is_some_and(|maker| self.forward_nodes <= maker && maker < data);
        let dies = || {
            self.nodes[data..]
                .iter()
                .enumerate()
                .all(|(behind, node)| data + behind == addition || !node.inputs.contains(&rest))
        };
        let alike =
            self.tensor(rest).spec == self.tensor(sum).spec && self.tensor(dx).spec == self.tensor(sum).spec;
        (known && alike && rest != dx && dies()).then_some((data, conv, rest))
    }

    /// Convolutions before normalisations give the moments too; those that are computed again do so likewise, so that
    /// what they give has the same bits.
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
                Op::BatchNorm(norm) if !norm.given => {
                    let moments = self.moments_of(conv);
                    self.nodes[index].inputs.push(moments);
                    self.nodes[index].op = Op::BatchNorm(BatchNorm { given: true, ..norm });
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
        let bare = matches!(node.op, Op::Conv(conv) if !conv.bias && !conv.relu);
        bare && types.contains(&self.tensor(node.outputs[0]).spec.dtype)
    }

    /// Makes a convolution give these, too; returns its weight.
    fn give_moments(&mut self, node: usize, moments: TensorId) -> TensorId {
        let node = &mut self.nodes[node];
        if let Op::Conv(conv) = node.op {
            node.op = Op::Fused(FusedOp::ConvMoments(conv));
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
    pub(super) fn remove(&mut self, nodes: &[usize]) {
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
        self.recomputed.retain(|node| !gone[node.0]);
        let refer = self.nodes.iter_mut().filter_map(|node| node.forward.as_mut());
        refer.chain(&mut self.recomputed).for_each(|id| *id = new[id.0]);
        self.drop_unused();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Builder, Frozen, Role};

    const ALL: OpFusions = OpFusions {
        addition: true,
        mask: true,
        relu_backward: true,
        gradient_sums: true,
        moments: &[DType::F16],
    };

    /// Two convolutions with a ReLU between them, then two with normalisations, in f16.
    fn forward() -> Graph {
        let (mut net, x) = Builder::new("joins", 2, [1, 12, 12]);
        let bare = Conv { bias: false, ..Conv::square(3) };
        let x = net.conv("conv1", x, 3, Conv::square(3)).unwrap();
        let x = net.relu("relu1", x);
        let x = net.conv("conv2", x, 3, Conv::square(3)).unwrap();
        let x = net.conv("conv3", x, 3, bare).unwrap();
        let x = net.batch_norm("bn3", x, BatchNorm::default()).unwrap();
        let x = net.relu("relu3", x);
        let x = net.conv("conv4", x, 3, bare).unwrap();
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
        for (_, tensor) in graph.with_role(Role::Gradient) {
            let parameter = graph.tensor(tensor.gradient_of.unwrap());
            assert_eq!((parameter.role, &parameter.spec), (Role::Parameter, &tensor.spec), "{}", tensor.name);
        }
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
        assert_eq!(graph.clone().fuse(OpFusions::default()), graph);
        let of_others = OpFusions { moments: &[DType::BF16], ..OpFusions::default() };
        assert_eq!(graph.clone().fuse(of_others), graph);
    }

    #[test]
    fn a_relu_before_a_convolution_is_part_of_its_gradient() {
        let graph = forward().differentiate();
        let before = (count(&graph, "relu backward"), count(&graph, "conv2d backward data"));
        assert_eq!(before, (1, 3), "{:?}", names(&graph));
        let joined = graph.fuse(OpFusions { relu_backward: true, ..OpFusions::default() });
        check(&joined);
        let after = ["relu backward", "conv2d backward data", "conv2d backward data+relu"];
        assert_eq!(after.map(|name| count(&joined, name)), [0, 2, 1]);
        let node = joined
            .nodes
            .iter()
            .find(|node| matches!(node.op, Op::Fused(FusedOp::ConvBackwardDataRelu(_))))
            .unwrap();
        assert_eq!(node.name, "conv2");
        assert_eq!(joined.tensor(node.inputs[2]).spec, joined.tensor(node.outputs[0]).spec);
    }

    /// A residual block with a normalisation on the way around it, before or behind the others.
    fn block(shortcut_first: bool) -> Graph {
        let (mut net, x) = Builder::new("block", 2, [1, 4, 4]);
        let norm = |net: &mut Builder, name: &str, x| {
            let y = net.conv(name, x, 3, Conv::square(1)).unwrap();
            net.batch_norm(&format!("{name}.bn"), y, BatchNorm::default()).unwrap()
        };
        let names = if shortcut_first { ["shortcut", "conv"] } else { ["conv", "shortcut"] };
        let [a, b] = names.map(|name| norm(&mut net, name, x));
        let y = net.add("add", a, b).unwrap();
        let y = net.relu("relu", y);
        let c = norm(&mut net, "next", y);
        let y = net.add("add2", c, y).unwrap();
        let x = net.linear("fc", y, 2);
        net.finish(x)
    }

    #[test]
    fn an_addition_with_relu_becomes_part_of_the_later_normalisation() {
        let joins = OpFusions { addition: true, ..OpFusions::default() };
        for first in [true, false] {
            let graph = block(first).simplify().differentiate().fuse(joins);
            check(&graph);
            let expected =
                ["conv2d", "batch norm", "conv2d", "batch norm+add+relu", "conv2d", "batch norm", "add"];
            assert_eq!(names(&graph)[..7], expected, "an addition without ReLU stays");
            let fused = &graph.nodes[3];
            assert_eq!(fused.inputs[5], graph.nodes[1].outputs[0]);
            assert_eq!(fused.outputs.len(), 5, "y is kept, and nothing else");
            assert_eq!(graph.tensor(fused.outputs[0]).name, graph.tensor(graph.nodes[4].inputs[0]).name);
            let after = ["batch norm+add+relu backward", "batch norm backward", "relu backward"];
            assert_eq!(after.map(|name| count(&graph, name)), [1, 2, 0]);
            let backward = graph.nodes.iter().find(|node| node.op.name() == after[0]).unwrap();
            assert_eq!(*backward.inputs.last().unwrap(), fused.outputs[0]);
            let masked = block(first).simplify().differentiate().fuse(OpFusions { mask: true, ..joins });
            check(&masked);
            let way_back = masked.nodes.iter().find(|node| node.op.name() == after[0]).unwrap();
            assert_eq!(way_back.inputs[5], masked.nodes[3].outputs[5], "what was saved in place of y");
            assert_eq!(masked.tensor(way_back.inputs[5]).spec.dtype, DType::Saved);
            // The other normalisation takes over what this one gives of the sum.
            let of_other = graph.nodes.iter().find(|node| node.forward == Some(NodeId(1))).unwrap();
            assert_eq!(of_other.inputs[0], backward.outputs[0]);
            let evaluated = block(first).for_evaluation().simplify().fuse(joins);
            assert_eq!(names(&evaluated)[..7], expected);
            let apart = block(first).simplify().synchronise_batch_norms(2).differentiate().fuse(joins);
            check(&apart);
            let kept = ["add+relu", "add", "batch norm+add+relu"].map(|name| count(&apart, name));
            assert_eq!(kept, [1, 2, 0], "over ranks they stay apart, and a gradient is a sum");
        }
    }

    /// Labels and shares of mixed samples are written from outside: where they lie must stay known.
    #[test]
    fn mixed_samples_stay_where_the_loss_reads_them() {
        let graph = block(true).simplify().mix_labels().differentiate();
        let joined = graph.fuse(OpFusions { addition: true, ..OpFusions::default() });
        let loss = joined.nodes.iter().find(|node| node.op.is_loss()).unwrap();
        assert_eq!(joined.mixed.unwrap(), loss.inputs[2..]);
    }

    /// What is before the normalisation is frozen, what is added is not.
    #[test]
    fn an_addition_to_a_normalisation_without_gradient_gives_that_of_what_is_added() {
        let frozen = Frozen::Layers(vec!["conv".into(), "conv.bn".into()]);
        let graph = block(true).simplify().freeze(&frozen).unwrap().differentiate();
        let joined = graph.fuse(OpFusions { addition: true, ..OpFusions::default() });
        check(&joined);
        let left = ["batch norm+add+relu", "relu backward", "batch norm+add+relu backward"];
        assert_eq!(left.map(|name| count(&joined, name)), [1, 1, 0]);
    }

    /// The later of two convolutions adds to what the earlier gave, and so does one beside what is no convolution.
    #[test]
    fn a_gradient_that_is_a_sum_is_added_where_it_lies() {
        let sums = OpFusions { gradient_sums: true, ..OpFusions::default() };
        for first in [true, false] {
            let apart = block(first).simplify().differentiate();
            let additions = |graph: &Graph| {
                names(&graph.clone())[graph.forward_nodes..].iter().filter(|name| **name == "add").count()
            };
            assert_eq!(additions(&apart), 1, "the images have no gradient");
            let joined = apart.clone().fuse(sums);
            check(&joined);
            assert_eq!((additions(&joined), count(&joined, "conv2d backward data+add")), (0, 1));
            let node = joined
                .nodes
                .iter()
                .find(|node| matches!(node.op, Op::Fused(FusedOp::ConvBackwardDataAdd(_))))
                .unwrap();
            let (sum, rest) = (joined.tensor(node.outputs[0]), joined.tensor(node.inputs[2]));
            assert_eq!((&sum.spec, node.name.as_str()), (&rest.spec, "next"));
            assert_eq!(apart.nodes.len(), joined.nodes.len() + 1);
        }
    }

    /// What somebody reads later must not be written over, and what comes later cannot be added to.
    #[test]
    fn a_sum_whose_other_part_is_read_again_or_made_later_stays() {
        let (mut net, x) = Builder::new("apart", 1, [2, 4, 4]);
        let x = net.conv("conv", x, 2, Conv::square(1)).unwrap();
        let y = net.conv("next", x, 2, Conv::square(1)).unwrap();
        let z = net.max_pool("pool", x, crate::graph::Pool::square(1)).unwrap();
        let y = net.add("add", y, z).unwrap();
        let x = net.linear("fc", y, 2);
        let graph = net.finish(x).simplify().differentiate();
        let sums = OpFusions { gradient_sums: true, ..OpFusions::default() };
        let order = |graph: &Graph| {
            let place =
                |wanted: fn(Op) -> bool| graph.nodes.iter().rposition(|node| wanted(node.op)).unwrap();
            [
                place(|op| matches!(op, Op::Backward(BackwardOp::MaxPool(_)))),
                place(|op| matches!(op, Op::ConvBackwardData(_))),
            ]
        };
        let [pool, data] = order(&graph);
        assert!(pool < data);
        assert_eq!(count(&graph.clone().fuse(sums), "conv2d backward data+add"), 1);
        // The same with the pooling's gradient behind the convolution's.
        let mut late = graph.clone();
        let node = late.nodes.remove(pool);
        late.nodes.insert(data, node);
        check(&late);
        assert_eq!(late.clone().fuse(sums), late);
        // And with a reader of it behind the sum.
        let mut again = graph;
        let rest = again.nodes[pool].outputs[0];
        let more = again.gradient_like(rest);
        let op = Op::Add { relu: true };
        again.nodes.push(Node::new("more", op, vec![rest, rest], vec![more]));
        assert_eq!(again.clone().fuse(sums), again);
    }

    /// A gradient that is a sum is not one convolution's.
    #[test]
    fn a_relu_that_two_ops_read_stays() {
        let (mut net, x) = Builder::new("fork", 1, [1, 4, 4]);
        let x = net.conv("conv", x, 1, Conv::square(1)).unwrap();
        let r = net.relu("relu", x);
        let y = net.conv("next", r, 1, Conv::square(1)).unwrap();
        let y = net.add("add", r, y).unwrap();
        let x = net.linear("fc", y, 2);
        let graph = net.finish(x).simplify().differentiate();
        let relu = OpFusions { gradient_sums: false, ..ALL };
        assert_eq!(graph.clone().fuse(relu), graph);
    }

    #[test]
    fn convolutions_give_the_moments_of_normalisations() {
        let joined = forward().differentiate().fuse(ALL);
        check(&joined);
        assert_eq!((count(&joined, "conv2d+moments"), count(&joined, "batch norm moments")), (2, 0));
        for node in joined.nodes.iter().filter(|node| matches!(node.op, Op::BatchNorm(norm) if norm.given)) {
            let moments = joined.tensor(*node.inputs.last().unwrap());
            assert_eq!((&moments.spec.shape.0[..], moments.spec.dtype), (&[2, 3][..], DType::F32));
        }
        let over_ranks = forward().synchronise_batch_norms(4).differentiate();
        assert_eq!(count(&over_ranks, "batch norm moments"), 2);
        let joined = over_ranks.fuse(ALL);
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
            let joined = graph.clone().fuse(ALL);
            assert_ne!(joined, graph);
            assert_eq!(places(&joined), places(&graph));
        }
    }

    #[test]
    fn what_is_computed_again_is_joined_alike() {
        let (mut net, mut x) = Builder::new("deep", 2, [3, 24, 24]);
        for layer in 0..8 {
            let conv = Conv { bias: false, ..Conv::square(3).padding(1) };
            let before = x;
            x = net.conv(&format!("conv{layer}"), x, 3, conv).unwrap();
            x = net.batch_norm(&format!("bn{layer}"), x, BatchNorm::default()).unwrap();
            if layer % 2 == 1 {
                x = net.add(&format!("add{layer}"), x, before).unwrap();
            }
            x = net.relu(&format!("relu{layer}"), x);
        }
        let x = net.linear("fc", x, 4);
        let graph = net.finish(x).simplify().narrowed_to(DType::F16).differentiate().recompute();
        let again = |graph: &Graph, name: &str| {
            let names = graph.recomputed.iter().map(|id| graph.node(*id).op.name());
            names.filter(|found| *found == name).count()
        };
        let [convs, additions] = ["conv2d", "add+relu"].map(|name| again(&graph, name));
        assert!(convs > 0 && additions > 0);
        let joined = graph.fuse(ALL);
        check(&joined);
        assert_eq!((again(&joined, "conv2d"), again(&joined, "conv2d+moments")), (0, convs));
        assert_eq!((again(&joined, "add+relu"), again(&joined, "batch norm+add+relu")), (0, additions));
    }
}
