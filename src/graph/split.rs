//! Linear layers divided among ranks: the same network, with the exchanges that this needs as nodes of the graph.
//!
//! Alex Krizhevsky: "One weird trick for parallelizing convolutional neural networks", arXiv 1404.5997 (2014). Every
//! rank has images of its own. Before a split layer the ranks of a group tell each other its inputs, so that each has
//! those of all their images, and computes its share of the outputs for them (the weights by rows of the matrix, which
//! are the layer's columns). A second layer is split by its inputs, which are these outputs: what each rank then has
//! are parts of sums, which go to the rank that has the image and are added up there. Between the two nothing is told.
//! A layer alone is split by its inputs.
//!
//! One op does all of it: in `AllToAll` each rank gives each other one something. It is its own way back, so that the
//! backward pass needs nothing more.

use std::ops::Range;

use super::{
    Activation, Binary, DType, Graph, Node, Op, Permutation, Role, Shape, Spec, Tensor, TensorId, dims,
};

/// The part of a parameter that a rank has where a layer is split.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shard {
    /// Along which axis it is cut: outputs (0) or inputs (1).
    pub axis: usize,
    /// Which of the parts.
    pub place: usize,
    /// How many parts there are, which are alike.
    pub of: usize,
}

impl Shard {
    /// The shape of the whole parameter.
    pub fn whole(&self, part: &Shape) -> Shape {
        let mut shape = part.clone();
        shape.0[self.axis] *= self.of;
        shape
    }

    /// Goes through a range of a part of this shape, in plain order: what lies together in the whole too, as elements
    /// of the whole and of the range.
    pub fn each_run(
        &self,
        part: &Shape,
        range: Range<usize>,
        mut each: impl FnMut(Range<usize>, Range<usize>),
    ) {
        let run = part.0[self.axis..].iter().product::<usize>().max(1);
        let mut at = range.start;
        while at < range.end {
            let length = (run - at % run).min(range.end - at);
            let (whole, own) = ((at / run * self.of + self.place) * run + at % run, at - range.start);
            each(whole..whole + length, own..own + length);
            at += length;
        }
    }
}

/// The ranks among which layers are split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorGroup {
    /// How many share a layer.
    pub ranks: usize,
    /// Which of them this one is.
    pub place: usize,
    /// How many such groups there are.
    pub groups: usize,
    /// Batches of a rank for one sum of gradients.
    pub micro_steps: usize,
}

/// Layers that are split together, by their weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SplitLayers {
    /// By outputs and then by inputs, or one by its inputs alone.
    pub weights: Vec<String>,
    /// Bytes of gradients that a rank sends less in a step, at least.
    pub saved: usize,
    /// Bytes of activations, their gradients and masks that it sends instead.
    pub exchanged: usize,
}

impl SplitLayers {
    fn gain(&self) -> usize {
        self.saved.saturating_sub(self.exchanged)
    }
}

/// What a node is in a network with split layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// A layer split by its outputs.
    First,
    /// Elementwise between it and the other.
    Between,
    /// A layer split by its inputs, which are so already.
    Second,
    /// One that is so alone.
    Alone,
}

/// Bytes that a rank sends, at least, where so many are added up.
fn summed(bytes: usize, ranks: usize) -> usize {
    2 * (bytes - bytes / ranks)
}

impl Graph {
    /// The layers that are worth splitting, in their order: less is sent than by adding up their gradients. Of
    /// neighbours those are paired by which most is saved. For a forward graph that is to be differentiated.
    pub fn worth_splitting(&self, group: TensorGroup) -> Vec<SplitLayers> {
        let linear = |node: &Node| matches!(node.op, Op::Linear { .. });
        let candidates: Vec<usize> =
            (0..self.nodes.len()).filter(|&node| linear(&self.nodes[node])).collect();
        // From the last one on: the best of what is behind each.
        let mut best: Vec<Vec<SplitLayers>> = vec![Vec::new(); candidates.len() + 2];
        let gain = |pieces: &[SplitLayers]| pieces.iter().map(SplitLayers::gain).sum::<usize>();
        for at in (0..candidates.len()).rev() {
            let node = candidates[at];
            let with = |piece: Option<SplitLayers>, rest: &[SplitLayers]| {
                let piece = piece.filter(|piece| piece.gain() > 0)?;
                Some([&[piece], rest].concat())
            };
            let alone = with(self.alone(node, group), &best[at + 1]);
            let next = candidates.get(at + 1).copied();
            let pair = next.and_then(|next| with(self.pair(node, next, group), &best[at + 2]));
            let mut chosen = best[at + 1].clone();
            for other in [alone, pair].into_iter().flatten() {
                if gain(&other) > gain(&chosen) {
                    chosen = other;
                }
            }
            best[at] = chosen;
        }
        best.swap_remove(0)
    }

    /// What splitting one layer by its inputs comes to; `None` where it cannot be split so.
    fn alone(&self, node: usize, group: TensorGroup) -> Option<SplitLayers> {
        let [rows, inputs, outputs] = self.widths(node)?;
        let share = self.share(inputs, node, group)?;
        let exchanged =
            self.sent_of_inputs(node, rows * share, group) + 2 * self.sent(node, rows * outputs, group);
        Some(self.together(&[node], self.bytes_of(self.nodes[node].inputs[1]), exchanged, group))
    }

    /// How two layers are split that have nothing but elementwise ops between them.
    fn pair(&self, first: usize, second: usize, group: TensorGroup) -> Option<SplitLayers> {
        let ([rows, inputs, outputs], [_, middle, last]) = (self.widths(first)?, self.widths(second)?);
        let share = self.share(outputs, first, group)?;
        let between = self.between(first, second).filter(|_| middle == outputs)?;
        let masks = between.iter().filter(|&&node| matches!(self.nodes[node].op, Op::Dropout { .. })).count();
        let exchanged = self.sent_of_inputs(first, rows * inputs, group)
            + masks * self.sent(first, rows * share, group)
            + 2 * self.sent(second, rows * last, group);
        let parameters = self.nodes[first].inputs[1..].iter().chain(&self.nodes[second].inputs[1..2]);
        let bytes = parameters.map(|&id| self.bytes_of(id)).sum();
        Some(self.together(&[first, second], bytes, exchanged, group))
    }

    fn together(
        &self,
        nodes: &[usize],
        gradients: usize,
        exchanged: usize,
        group: TensorGroup,
    ) -> SplitLayers {
        let TensorGroup { ranks, groups, micro_steps, .. } = group;
        let weight = |&node: &usize| self.tensor(self.nodes[node].inputs[1]).name.clone();
        SplitLayers {
            weights: nodes.iter().map(weight).collect(),
            saved: summed(gradients, ranks * groups).saturating_sub(summed(gradients / ranks, groups)),
            exchanged: micro_steps * exchanged,
        }
    }

    /// Rows, inputs and outputs of a layer whose parameters are learned, and nobody else's.
    fn widths(&self, node: usize) -> Option<[usize; 3]> {
        let node = &self.nodes[node];
        let own = |&id: &TensorId| self.tensor(id).is_learned() && self.consumers(id).count() == 1;
        if !node.inputs[1..].iter().all(own) {
            return None;
        }
        let weight = &self.tensor(node.inputs[1]).spec.shape;
        Some([self.tensor(node.inputs[0]).spec.shape.batch(), weight.0[1], weight.0[0]])
    }

    /// How many of so many a rank has. Halves must make whole words of what is sent.
    fn share(&self, width: usize, node: usize, group: TensorGroup) -> Option<usize> {
        let [_, inputs, outputs] = self.widths(node)?;
        let (share, rest) = (width / group.ranks, width % group.ranks);
        let is_even = [inputs, outputs, share].iter().all(|width| width % 2 == 0);
        let halves = self.tensor(self.nodes[node].inputs[0]).spec.dtype.bytes() < 4;
        (rest == 0 && share > 0 && (is_even || !halves)).then_some(share)
    }

    /// Bytes that a rank sends where it gives each other one so many elements of a layer's type.
    fn sent(&self, node: usize, elements: usize, group: TensorGroup) -> usize {
        (group.ranks - 1) * elements * self.tensor(self.nodes[node].outputs[0]).spec.dtype.bytes()
    }

    /// Bytes that a rank sends of a layer's inputs; and of their gradient, where that is wanted.
    fn sent_of_inputs(&self, node: usize, elements: usize, group: TensorGroup) -> usize {
        let x = self.nodes[node].inputs[0];
        let times = 1 + usize::from(self.depends_on_parameters()[x.0]);
        times * (group.ranks - 1) * elements * self.tensor(x).spec.dtype.bytes()
    }

    /// The nodes between two layers, if there are only elementwise ones, which nobody else reads.
    fn between(&self, first: usize, second: usize) -> Option<Vec<usize>> {
        let (mut at, mut nodes) = (first, Vec::new());
        loop {
            let y = self.nodes[at].outputs[0];
            let mut readers = self.consumers(y);
            let (reader, None) = (readers.next()?.0, readers.next()) else { return None };
            let node = &self.nodes[reader];
            let is_x = node.inputs.iter().filter(|&&id| id == y).count() == 1 && node.inputs[0] == y;
            match node.op {
                _ if !is_x || [self.logits, self.losses, self.hits].contains(&y) => return None,
                Op::Linear { .. } => return (reader == second).then_some(nodes),
                Op::Activation(_) | Op::Dropout { .. } => nodes.push(reader),
                _ => return None,
            }
            at = reader;
        }
    }

    /// The network with these layers split. To be called after `simplify` and before `differentiate`, or on the network
    /// that is tested.
    pub fn split(mut self, layers: &[SplitLayers], group: TensorGroup) -> Graph {
        let parts = self.parts(layers);
        for (index, node) in std::mem::take(&mut self.nodes).into_iter().enumerate() {
            match parts[index] {
                None => self.nodes.push(node),
                Some(Place::First) => self.by_outputs(node, group),
                Some(Place::Between) => self.elementwise(node, group),
                Some(Place::Second) => self.by_inputs(node, group),
                Some(Place::Alone) => self.alone_by_inputs(node, group),
            }
        }
        self.forward_nodes = self.nodes.len();
        self
    }

    /// What each node is.
    fn parts(&self, layers: &[SplitLayers]) -> Vec<Option<Place>> {
        let mut parts = vec![None; self.nodes.len()];
        let layer = |weight: &String| {
            let reads = |node: &Node| {
                matches!(node.op, Op::Linear { .. }) && self.tensor(node.inputs[1]).name == *weight
            };
            self.nodes.iter().position(reads)
        };
        for piece in layers {
            match &piece.weights.iter().filter_map(layer).collect::<Vec<_>>()[..] {
                [alone] => parts[*alone] = Some(Place::Alone),
                [first, second] => {
                    let between = self.between(*first, *second).unwrap_or_default();
                    (parts[*first], parts[*second]) = (Some(Place::First), Some(Place::Second));
                    between.into_iter().for_each(|node| parts[node] = Some(Place::Between));
                }
                _ => {}
            }
        }
        parts
    }

    /// A layer by its outputs: for the images of all ranks, so many of them.
    fn by_outputs(&mut self, mut node: Node, group: TensorGroup) {
        let x = self.rows(&node.name, node.inputs[0]);
        let (shape, ranks) = (self.tensor(x).spec.shape.clone(), group.ranks);
        let each = dims([ranks, shape.0[0], shape.0[1]]);
        let each = self.adds(&node.name, Op::Expand { scale: 1.0 }, &[x], each);
        node.inputs[0] = self.all_to_all(&node.name, each, ranks);
        node.inputs[1..].iter().for_each(|&id| self.shard(id, 0, group));
        self.over_all(node.outputs[0], group);
        self.nodes.push(node);
    }

    /// What is done to each element of such outputs. A mask is made where the images are, of all outputs, so that it is
    /// that of the whole layer.
    fn elementwise(&mut self, mut node: Node, group: TensorGroup) {
        let shape = self.tensor(node.outputs[0]).spec.shape.clone();
        if matches!(node.op, Op::Dropout { .. }) {
            let dtype = self.tensor(node.outputs[0]).spec.dtype;
            let spec = Spec { shape: dims([1]), dtype: DType::F32 };
            let one = Tensor::new(format!("{} one", node.name), spec, Role::Constant);
            let one = self.add_tensor(Tensor { values: Some([1.0].into()), ..one });
            let ones = self.adds_as(&node.name, Op::Expand { scale: 1.0 }, &[one], shape.clone(), dtype);
            let mask = self.adds(&node.name, node.op, &[ones], shape);
            let mask = self.scattered(&node.name, mask, group.ranks);
            node.inputs.push(mask);
            node.op = Op::Binary(Binary::Multiply);
        }
        self.over_all(node.outputs[0], group);
        self.nodes.push(node);
    }

    /// A layer alone: each rank gets so many of its inputs for all images.
    fn alone_by_inputs(&mut self, mut node: Node, group: TensorGroup) {
        let x = self.rows(&node.name, node.inputs[0]);
        node.inputs[0] = self.scattered(&node.name, x, group.ranks);
        self.by_inputs(node, group);
    }

    /// A layer whose inputs are split: what comes of them for all images goes to those that have them, and is added up.
    fn by_inputs(&mut self, node: Node, group: TensorGroup) {
        let Op::Linear { relu, .. } = node.op else { return };
        let (name, y, ranks) = (&node.name, node.outputs[0], group.ranks);
        let Spec { shape, dtype } = self.tensor(y).spec.clone();
        let [rows, outputs] = [shape.0[0], shape.0[1]];
        self.shard(node.inputs[1], 1, group);
        let op = Op::Linear { bias: false, relu: false };
        let sums = self.adds_as(name, op, &node.inputs[..2], dims([ranks * rows, outputs]), dtype);
        let sums = self.adds(name, Op::Reshape, &[sums], dims([ranks, rows, outputs]));
        let parts = self.adds(name, Op::AllToAll { ranks }, &[sums], dims([ranks, rows, outputs]));
        let bias = node.inputs.get(2).map(|&bias| (Op::Binary(Binary::Add), Some(bias)));
        let relu = relu.then_some((Op::Activation(Activation::RELU), None));
        let ops = [Some((Op::Sum { scale: 1.0 }, None)), bias, relu];
        let mut ops = ops.into_iter().flatten().peekable();
        let mut x = parts;
        while let Some((op, other)) = ops.next() {
            let inputs: Vec<TensorId> = [x].into_iter().chain(other).collect();
            x = match ops.peek() {
                Some(_) => self.adds(name, op, &inputs, shape.clone()),
                None => {
                    self.nodes.push(Node::new(name, op, inputs, vec![y]));
                    y
                }
            };
        }
    }

    /// x (N,…) as (N,I).
    fn rows(&mut self, name: &str, x: TensorId) -> TensorId {
        let shape = &self.tensor(x).spec.shape;
        let flat = dims([shape.batch(), shape.per_sample()]);
        match *shape == flat {
            true => x,
            false => self.adds(name, Op::Reshape, &[x], flat),
        }
    }

    /// x (N,I) of each rank → (R·N,I/R): this rank's share of the elements of all ranks' rows.
    fn scattered(&mut self, name: &str, x: TensorId, ranks: usize) -> TensorId {
        let shape = self.tensor(x).spec.shape.clone();
        let [rows, width] = [shape.0[0], shape.0[1] / ranks];
        let order = Permutation::new(&[1, 0, 2]).expect("an order of three axes");
        let apart = self.adds(name, Op::Reshape, &[x], dims([rows, ranks, width]));
        let each = self.adds(name, Op::Permute(order), &[apart], dims([ranks, rows, width]));
        self.all_to_all(name, each, ranks)
    }

    /// x (R,N,I) → (R·N,I), the rows of all ranks.
    fn all_to_all(&mut self, name: &str, x: TensorId, ranks: usize) -> TensorId {
        let shape = self.tensor(x).spec.shape.clone();
        let rows = dims([shape.0[0] * shape.0[1], shape.0[2]]);
        let all = self.adds(name, Op::AllToAll { ranks }, &[x], shape);
        self.adds(name, Op::Reshape, &[all], rows)
    }

    /// A parameter becomes this rank's part of it.
    fn shard(&mut self, id: TensorId, axis: usize, group: TensorGroup) {
        let tensor = &mut self.tensors[id.0];
        tensor.spec.shape.0[axis] /= group.ranks;
        tensor.shard = Some(Shard { axis, place: group.place, of: group.ranks });
    }

    /// An activation becomes this rank's share of that of all images.
    fn over_all(&mut self, id: TensorId, group: TensorGroup) {
        let shape = &mut self.tensors[id.0].spec.shape;
        shape.0[0] *= group.ranks;
        shape.0[1] /= group.ranks;
    }

    /// A new node and what it gives, of the type of its first input.
    fn adds(&mut self, name: &str, op: Op, inputs: &[TensorId], shape: Shape) -> TensorId {
        let dtype = self.tensor(inputs[0]).spec.dtype;
        self.adds_as(name, op, inputs, shape, dtype)
    }

    fn adds_as(&mut self, name: &str, op: Op, inputs: &[TensorId], shape: Shape, dtype: DType) -> TensorId {
        let spec = Spec { shape, dtype };
        let y = self.add_tensor(Tensor::new(format!("{name} {}", op.name()), spec, Role::Activation));
        self.nodes.push(Node::new(name, op, inputs.to_vec(), vec![y]));
        y
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Builder;

    const GROUP: TensorGroup = TensorGroup { ranks: 2, place: 1, groups: 1, micro_steps: 1 };

    fn forward() -> Graph {
        let (mut net, x) = Builder::new("three", 2, [1, 8, 8]);
        let x = net.linear("a", x, 64);
        let x = net.relu("relu", x);
        let x = net.dropout("drop", x, 0.5);
        let x = net.linear("b", x, 48);
        let x = net.linear("c", x, 4);
        net.finish(x).simplify()
    }

    fn names(pieces: &[SplitLayers]) -> Vec<Vec<&str>> {
        pieces.iter().map(|piece| piece.weights.iter().map(String::as_str).collect()).collect()
    }

    #[test]
    fn layers_are_paired_where_most_is_saved_and_left_where_nothing_is() {
        let pieces = forward().worth_splitting(GROUP);
        assert_eq!(names(&pieces), [vec!["a.weight", "b.weight"], vec!["c.weight"]]);
        // Weights of a and b and the bias of a: all of their sum is saved. The images have no gradient; a mask is told.
        assert_eq!(pieces[0].saved, 4 * (64 * 64 + 64 + 48 * 64));
        assert_eq!(pieces[0].exchanged, 4 * 2 * (64 + 32 + 2 * 48));
        assert_eq!(pieces[1].exchanged, 4 * 2 * (2 * 24 + 2 * 4));
        // With many images activations are more than gradients.
        let (mut net, x) = Builder::new("wide", 512, [1, 8, 8]);
        let x = net.linear("a", x, 64);
        assert!(net.finish(x).simplify().worth_splitting(GROUP).is_empty());
        // Three ranks divide neither the inputs nor the outputs of a.
        let of_three = forward().worth_splitting(TensorGroup { ranks: 3, ..GROUP });
        assert_eq!(names(&of_three), [["b.weight", "c.weight"]]);
    }

    #[test]
    fn parameters_are_parts_and_everyone_else_is_as_before() {
        let plain = forward();
        let graph = plain.clone().split(&plain.worth_splitting(GROUP), GROUP);
        let shape = |name: &str| {
            let tensor = graph.tensors.iter().find(|tensor| tensor.name == name).unwrap();
            (tensor.spec.shape.to_string(), tensor.shard.map(|shard| shard.axis))
        };
        assert_eq!(["a.weight", "a.bias"].map(shape), [("32×64".into(), Some(0)), ("32".into(), Some(0))]);
        assert_eq!(["b.weight", "b.bias"].map(shape), [("48×32".into(), Some(1)), ("48".into(), None)]);
        assert_eq!(shape("c.weight"), ("4×24".into(), Some(1)));
        assert_eq!(graph.parameter_count(), plain.parameter_count());
        let count =
            |graph: &Graph| graph.nodes.iter().filter(|node| node.op == Op::AllToAll { ranks: 2 }).count();
        // Inputs, mask and sums of the pair; inputs and sums of the other. Back all but the images' and the mask's.
        assert_eq!((count(&graph), count(&graph.differentiate())), (5, 8));
    }

    #[test]
    fn a_part_has_its_runs_of_the_whole() {
        let runs = |axis, range| {
            let (shard, mut runs) = (Shard { axis, place: 1, of: 2 }, Vec::new());
            shard.each_run(&dims([2, 3]), range, |whole, part| runs.push((whole.start, part)));
            (shard.whole(&dims([2, 3])).to_string(), runs)
        };
        assert_eq!(runs(0, 0..6), ("4×3".into(), vec![(6, 0..6)]));
        assert_eq!(runs(0, 3..6), ("4×3".into(), vec![(9, 0..3)]));
        assert_eq!(runs(1, 0..6), ("2×6".into(), vec![(3, 0..3), (9, 3..6)]));
        assert_eq!(runs(1, 3..6), ("2×6".into(), vec![(9, 0..3)]));
    }
}
