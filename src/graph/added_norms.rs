//! Two normalisations that a block of a residual network adds up: the sum normalises both, and what is added is never
//! written. Made by the plan behind `fuse`.

use super::{BatchNorm, Graph, Node, NodeId, Op};

impl Graph {
    /// The same step, to the bit, where an addition behind a normalisation does that of what it adds too, if nothing
    /// else reads that and convolutions give the moments of both. To be called behind `fuse`.
    pub fn join_added_norms(mut self) -> Graph {
        let mut gone = Vec::new();
        for sum in 0..self.forward_nodes {
            if let Some(added) = self.added_norm(sum) {
                self.join_added(sum, added);
                gone.push(added);
            }
        }
        self.remove(&gone);
        self
    }

    /// The normalisation, with the same settings, of what another one adds.
    fn added_norm(&self, sum: usize) -> Option<usize> {
        let node = &self.nodes[sum];
        let Op::BatchNorm(norm) = node.op else { return None };
        // With a place for what the ReLU lets through, which the way back reads.
        let &[x, _, _, _, _, z, moments] = &node.inputs[..] else { return None };
        let added = self.producer(z).filter(|_| norm.add && node.outputs.len() == 6 && self.read_once(z))?;
        let other = &self.nodes[added];
        let &[of_z, _, _, _, _, of_others] = &other.inputs[..] else { return None };
        // Moments of one rank.
        let own = [moments, of_others].iter().all(|id| self.tensor(*id).spec.shape.rank() == 2);
        let alike = self.tensor(x).spec == self.tensor(of_z).spec;
        let apart = BatchNorm { relu: false, add: false, ..norm };
        (norm.given && own && alike && other.op == Op::BatchNorm(apart)).then_some(added)
    }

    fn join_added(&mut self, sum: usize, added: usize) {
        let Node { inputs, outputs, .. } = self.nodes[added].clone();
        let name = self.nodes[sum].name.clone();
        // Its way back is that of the joined one.
        for node in self.nodes.iter_mut().filter(|node| node.forward == Some(NodeId(added))) {
            (node.forward, node.name) = (Some(NodeId(sum)), name.clone());
        }
        let node = &mut self.nodes[sum];
        if let Op::BatchNorm(norm) = node.op {
            node.op = Op::BatchNormBoth(norm);
        }
        node.inputs.splice(5..6, inputs);
        node.outputs.extend(&outputs[1..5]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Builder, Conv2d, DType, OpFusions, Role, TensorId};

    const GIVEN: OpFusions = OpFusions {
        addition: true,
        mask: true,
        relu_backward: false,
        gradient_sums: false,
        moments: &[DType::BF16],
    };

    /// Two blocks, of which one has a normalisation on the way around it.
    fn blocks() -> Graph {
        let (mut net, x) = Builder::new("blocks", 2, [3, 6, 6]);
        let conv = Conv2d { bias: false, ..Conv2d::square(3).padding(1) };
        let norm = |net: &mut Builder, name: &str, x: TensorId| {
            let y = net.conv2d(name, x, 8, conv).unwrap();
            net.batch_norm(&format!("{name}.bn"), y, BatchNorm::default()).unwrap()
        };
        let [long, around] = ["long", "around"].map(|name| norm(&mut net, name, x));
        let x = net.add("add", long, around).unwrap();
        let x = net.relu("relu", x);
        let next = norm(&mut net, "next", x);
        let x = net.add("add2", next, x).unwrap();
        let x = net.relu("relu2", x);
        let x = net.linear("fc", x, 4);
        net.finish(x).simplify().narrowed_to(DType::BF16)
    }

    fn count(graph: &Graph, name: &str) -> usize {
        graph.nodes.iter().filter(|node| node.op.name() == name).count()
    }

    #[test]
    fn a_sum_of_two_normalisations_does_both() {
        let apart = blocks().differentiate().fuse(GIVEN);
        let joined = apart.clone().join_added_norms();
        let counts = |graph: &Graph| {
            ["batch norm", "batch norm+add+relu", "batch norms+add+relu"].map(|name| count(graph, name))
        };
        assert_eq!((counts(&apart), counts(&joined)), ([1, 2, 0], [0, 1, 1]));
        let node = joined.nodes.iter().find(|node| matches!(node.op, Op::BatchNormBoth(_))).unwrap();
        assert_eq!((node.name.as_str(), node.inputs.len(), node.outputs.len()), ("around.bn", 12, 10));
        let names = |ids: &[TensorId]| -> Vec<&str> {
            ids.iter().map(|id| joined.tensor(*id).name.as_str()).collect()
        };
        let of_z = ["long", "long.bn.weight", "long.bn.bias", "long.bn.running_mean", "long.bn.running_var"];
        assert_eq!(names(&node.inputs)[5..], [&of_z[..], &["long.moments", "around.moments"]].concat());
        let made = ["long.bn.mean", "long.bn.variance", "long.bn.running_mean", "long.bn.running_var"];
        assert_eq!(names(&node.outputs)[6..], made);
        // Every tensor is made before it is read, and every node of the way back has its forward node.
        let before = |role: Role| matches!(role, Role::Input | Role::Parameter | Role::Statistic);
        let mut made: Vec<bool> = joined.tensors.iter().map(|tensor| before(tensor.role)).collect();
        for node in &joined.nodes {
            assert!(node.inputs.iter().all(|id| made[id.0]), "{} reads what is not made", node.name);
            node.outputs.iter().for_each(|id| made[id.0] = true);
            let of = node.forward.map(|id| (id.0 < joined.forward_nodes, &joined.node(id).name));
            assert!(of.is_none_or(|of| of == (true, &node.name)), "{}", node.name);
        }
        let names = |graph: &Graph, role| -> Vec<String> {
            graph.with_role(role).map(|(_, tensor)| tensor.name.clone()).collect()
        };
        for role in [Role::Parameter, Role::Gradient, Role::Statistic] {
            assert_eq!(names(&joined, role), names(&apart, role));
        }
    }

    #[test]
    fn whose_moments_are_not_given_stays_apart() {
        let of_others = OpFusions { moments: &[DType::F16], ..GIVEN };
        let over_ranks = blocks().synchronise_batch_norms(2).differentiate().fuse(GIVEN);
        for apart in [blocks().differentiate().fuse(of_others), over_ranks] {
            let read = |graph: &Graph| count(graph, "batch norms+add+relu");
            assert_eq!((read(&apart), read(&apart.clone().join_added_norms())), (0, 0));
        }
    }
}
