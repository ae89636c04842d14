//! What a node costs: floating-point operations and bytes, counted from shapes.

use super::ops::{Arithmetic, Operand};
use super::{Graph, NodeId};

/// The work of one node for the whole batch of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NodeCost {
    /// Multiplications and additions each count as one. Ops other than convolutions and linear layers are
    /// counted as one operation an output element: they are bound by memory, not by arithmetic.
    pub flops: u64,
    /// Bytes read and written if every operand moved once.
    pub bytes: u64,
}

impl std::ops::Add for NodeCost {
    type Output = NodeCost;
    fn add(self, other: NodeCost) -> NodeCost {
        NodeCost { flops: self.flops + other.flops, bytes: self.bytes + other.bytes }
    }
}

impl Graph {
    /// The cost of one node.
    pub fn cost(&self, id: NodeId) -> NodeCost {
        let node = self.node(id);
        let shape = |operand: Operand| {
            let id = match operand {
                Operand::Input(index) => node.inputs[index],
                Operand::Output(index) => node.outputs[index],
            };
            &self.tensor(id).spec.shape
        };
        let flops = match node.op.work() {
            Arithmetic::Products { of, filter } => 2 * shape(of).elements() * shape(filter).per_sample(),
            Arithmetic::Matrices(of) => {
                let a = &shape(Operand::Input(0)).0;
                let inner = a.len().checked_sub(if of.transposed[0] { 2 } else { 1 });
                let inner = inner.and_then(|axis| a.get(axis)).copied().unwrap_or(1);
                2 * shape(Operand::Output(0)).elements() * inner
            }
            Arithmetic::Elements => shape(Operand::Output(0)).elements(),
            Arithmetic::Nothing => 0,
        };
        let bytes: usize = node.inputs.iter().chain(&node.outputs).map(|&id| self.bytes_of(id)).sum();
        NodeCost { flops: flops as u64, bytes: bytes as u64 }
    }

    /// Operations of a node that is a sum of products; zero for the others, which are bound by memory.
    pub fn products(&self, id: NodeId) -> u64 {
        let is_product =
            matches!(self.node(id).op.work(), Arithmetic::Products { .. } | Arithmetic::Matrices(_));
        if is_product { self.cost(id).flops } else { 0 }
    }

    /// The cost of the forward pass, or of all nodes.
    pub fn total_cost(&self, forward_only: bool) -> NodeCost {
        let end = if forward_only { self.forward_nodes } else { self.nodes.len() };
        (0..end).map(|index| self.cost(NodeId(index))).fold(NodeCost::default(), |sum, cost| sum + cost)
    }
}

#[cfg(test)]
mod tests {
    use crate::graph::{Builder, Conv, NodeId};

    #[test]
    fn flops_are_those_of_the_textbook() {
        let (mut net, x) = Builder::new("one", 2, [3, 10, 10]);
        let x = net.conv("conv", x, 8, Conv::square(3)).unwrap();
        let x = net.linear("fc", x, 5);
        let graph = net.finish(x).differentiate();
        let conv = 2 * (2 * 8 * 8 * 8) * (3 * 9);
        let linear = 2 * (2 * 5) * (8 * 8 * 8);
        assert_eq!(graph.cost(NodeId(0)).flops, conv);
        assert_eq!(graph.cost(NodeId(1)).flops, linear);
        // Backward: linear twice, convolution once (its input is the images).
        let backward: u64 = (3..graph.nodes.len()).map(|i| graph.cost(NodeId(i)).flops).sum();
        assert_eq!(backward, 2 * linear + conv + 2 * 5);
    }
}
