//! Normalisations with a ReLU that one convolution reads, where a device computes them along with it: what is
//! normalised is then never written, neither forward nor for the way back. Made by the plan behind `fuse`, for each
//! normalisation by itself.

use super::{BackwardOp, BatchNorm, Conv, FusedOp, Graph, Node, NodeId, Op, Shape, Spec};
use crate::error::Result;

/// A convolution that may do along what a normalisation with a ReLU before it does (`FusedOp::ConvNormalised`,
/// `FusedOp::ConvNormalisedBackwardWeights`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Joint {
    /// Without bias and ReLU.
    pub conv: Conv,
    /// The convolution's x, w and y. What is normalised has the spec of x.
    pub tensors: [Spec; 3],
    /// Whether a normalisation wants the moments of y.
    pub moments: bool,
    /// Whether the weights are learned: then their gradient is done likewise.
    pub learns: bool,
}

/// A normalisation and what reads it: nodes.
struct NormReader {
    norm: usize,
    conv: usize,
    weights: Option<usize>,
}

impl Graph {
    /// The step's graph with those normalisations in one with the convolution behind them of which `joins` says that it
    /// is faster so. To be called behind `fuse`.
    ///
    /// # Errors
    /// Those of `joins`.
    pub fn join_norms(mut self, joins: impl Fn(&Joint) -> Result<bool>) -> Result<Graph> {
        for norm in 0..self.forward_nodes {
            if let Some(reading) = self.reading(norm)
                && let Some(joint) = self.joint(&reading)
                && joins(&joint)?
            {
                self.normalise_as_read(&reading);
            }
        }
        Ok(self)
    }

    /// A normalisation with a ReLU of which one convolution reads the result, and else at most the op that gives the
    /// gradient of that one's weights. What is computed again stays as it is.
    fn reading(&self, norm: usize) -> Option<NormReader> {
        let Op::BatchNorm(BatchNorm { relu: true, add: false, .. }) = self.nodes[norm].op else {
            return None;
        };
        let y = self.nodes[norm].outputs[0];
        let readers: Vec<usize> = self.consumers(y).map(|id| id.0).collect();
        let (&conv, others) = readers.split_first()?;
        let is_bare = |node: &Node| match node.op {
            Op::Conv(conv) => !conv.bias && !conv.relu && conv.groups == 1,
            Op::Fused(FusedOp::ConvMoments(conv)) => conv.groups == 1,
            _ => false,
        };
        let first =
            |node: &Node| node.inputs.iter().filter(|&&input| input == y).count() == 1 && node.inputs[0] == y;
        let of_weights = |node: &Node| {
            matches!(node.op, Op::Backward(BackwardOp::ConvWeights(_)))
                && node.forward == Some(NodeId(conv))
                && first(node)
        };
        let fits = conv < self.forward_nodes && is_bare(&self.nodes[conv]) && first(&self.nodes[conv]);
        match others {
            [] if fits => Some(NormReader { norm, conv, weights: None }),
            &[weights] if fits && of_weights(&self.nodes[weights]) => {
                Some(NormReader { norm, conv, weights: Some(weights) })
            }
            _ => None,
        }
    }

    fn joint(&self, reading: &NormReader) -> Option<Joint> {
        let node = &self.nodes[reading.conv];
        let (Op::Conv(conv) | Op::Fused(FusedOp::ConvMoments(conv))) = node.op else { return None };
        let tensors = [node.inputs[0], node.inputs[1], node.outputs[0]];
        let tensors = tensors.map(|id| self.tensor(id).spec.clone());
        Some(Joint { conv, tensors, moments: node.outputs.len() == 2, learns: reading.weights.is_some() })
    }

    fn normalise_as_read(&mut self, reading: &NormReader) {
        let (x, y) = (self.nodes[reading.norm].inputs[0], self.nodes[reading.norm].outputs[0]);
        let channels = self.tensor(y).spec.shape.0[1];
        // In place of what is normalised, of which nothing is left.
        self.tensors[y.0].spec.shape = Shape(vec![2, channels]);
        self.tensors[y.0].name += ".scale";
        if let Op::BatchNorm(norm) = self.nodes[reading.norm].op {
            self.nodes[reading.norm].op = Op::Fused(FusedOp::BatchNormScale(norm));
        }
        let node = &mut self.nodes[reading.conv];
        if let Op::Conv(conv) | Op::Fused(FusedOp::ConvMoments(conv)) = node.op {
            node.op = Op::Fused(FusedOp::ConvNormalised(conv));
            node.inputs[0] = x;
            node.inputs.push(y);
        }
        let Some(weights) = reading.weights else { return };
        let node = &mut self.nodes[weights];
        if let Op::Backward(BackwardOp::ConvWeights(conv)) = node.op {
            node.op = Op::Fused(FusedOp::ConvNormalisedBackwardWeights(conv));
            node.inputs[0] = x;
            node.inputs.push(y);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Builder, DType, OpFusions, Role};

    /// Three convolutions with normalisations and ReLUs: the second one's result is read twice.
    fn step() -> Graph {
        let (mut net, mut x) = Builder::new("norms", 2, [3, 12, 12]);
        let conv = Conv { bias: false, ..Conv::square(3).padding(1) };
        for layer in 1..=4 {
            let before = x;
            x = net.conv(&format!("conv{layer}"), x, 8, conv).unwrap();
            x = net.batch_norm(&format!("bn{layer}"), x, BatchNorm::default()).unwrap();
            x = net.relu(&format!("relu{layer}"), x);
            if layer == 3 {
                x = net.add("add", x, before).unwrap();
            }
        }
        let x = net.linear("fc", x, 4);
        net.finish(x).simplify().narrowed_to(DType::F16)
    }

    const MOMENTS: OpFusions = OpFusions {
        addition: false,
        mask: false,
        relu_backward: false,
        gradient_sums: false,
        moments: &[DType::F16],
    };

    fn count(graph: &Graph, name: &str) -> usize {
        graph.nodes.iter().filter(|node| node.op.name() == name).count()
    }

    /// Every tensor is made before it is read, and every parameter that is learned has its gradient.
    fn check(graph: &Graph) {
        let before = |role: Role| matches!(role, Role::Input | Role::Parameter | Role::Statistic);
        let mut made: Vec<bool> = graph.tensors.iter().map(|tensor| before(tensor.role)).collect();
        for node in &graph.nodes {
            assert!(node.inputs.iter().all(|id| made[id.0]), "{} reads what is not made", node.name);
            node.outputs.iter().for_each(|id| made[id.0] = true);
            let of = node.forward.map(|id| (id.0 < graph.forward_nodes, &graph.node(id).name));
            assert!(of.is_none_or(|of| of == (true, &node.name)), "{}", node.name);
        }
        let gradients = graph.with_role(Role::Gradient).filter(|(id, _)| made[id.0]).count();
        assert_eq!(gradients, graph.with_role(Role::Parameter).count());
    }

    #[test]
    fn what_one_convolution_reads_is_normalised_as_it_reads() {
        let apart = step().differentiate().fuse(MOMENTS);
        let joined = apart.clone().join_norms(|_| Ok(true)).unwrap();
        check(&joined);
        // conv2 reads bn1; bn2 and bn3 are read by an addition too, and bn4 by no convolution.
        let names = ["batch norm scale", "conv2d normalised", "conv2d normalised backward weights"];
        assert_eq!(names.map(|name| count(&joined, name)), [1; 3]);
        assert_eq!(joined.nodes.len(), apart.nodes.len());
        let node = joined
            .nodes
            .iter()
            .find(|node| matches!(node.op, Op::Fused(FusedOp::ConvNormalised(_))))
            .unwrap();
        let norm = joined
            .nodes
            .iter()
            .find(|node| matches!(node.op, Op::Fused(FusedOp::BatchNormScale(_))))
            .unwrap();
        assert_eq!((node.name.as_str(), norm.name.as_str()), ("conv2", "bn1"));
        assert_eq!((node.inputs[0], node.inputs[2]), (norm.inputs[0], norm.outputs[0]));
        let scale = &joined.tensor(norm.outputs[0]).spec;
        assert_eq!((&scale.shape.0[..], scale.dtype), (&[2, 8][..], DType::F16));
        assert_eq!((node.outputs.len(), norm.outputs.len()), (2, 6), "moments are given, and b is kept");
        let places = |graph: &Graph| -> Vec<_> {
            graph.with_role(Role::Parameter).map(|(id, tensor)| (id, tensor.name.clone())).collect()
        };
        assert_eq!(places(&joined), places(&apart), "parameters start as before");
    }

    #[test]
    fn what_is_no_faster_stays_apart() {
        let apart = step().differentiate().fuse(MOMENTS);
        assert_eq!(apart.clone().join_norms(|_| Ok(false)).unwrap(), apart);
        let over_ranks = step().synchronise_batch_norms(4).differentiate().fuse(MOMENTS);
        let over_ranks = over_ranks.join_norms(|_| Ok(true)).unwrap();
        check(&over_ranks);
        assert_eq!(count(&over_ranks, "batch norm scale"), 1);
        // What is computed again is read by another.
        let again = step().differentiate().recompute().fuse(MOMENTS).join_norms(|_| Ok(true)).unwrap();
        check(&again);
    }
}
