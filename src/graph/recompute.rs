//! Memory for time: activations are forgotten and computed again when the backward pass needs them.
//!
//! After Chen, Xu, Zhang and Guestrin, "Training deep nets with sublinear memory cost" (2016). The forward pass is cut
//! into segments. What later segments read is kept; everything else that the backward pass reads is computed again
//! from it, a segment at a time, right before the segment's backward nodes. Nothing is computed more than twice, and
//! the last segment only once: the price is at most one more forward pass.
//!
//! The same kernels on the same numbers give the same bits. Two ops need care. A normalisation does not look at its
//! batch again: it takes the mean and variance that are there, and leaves the running ones alone. Dropout is a
//! function of seed, step and place, and so the same each time.
//!
//! Of that one part is so cheap that a device may want it always (`Graph::remake`, `Device::remakes_from`): activations
//! and layer normalisations whose input is kept anyway, made again for the weights' gradient of a large linear layer.

use super::{DType, Graph, Node, NodeId, Op, Role, TensorId};

/// What is known of a tensor that the forward pass makes.
#[derive(Debug, Clone, Copy)]
struct Made {
    id: TensorId,
    bytes: usize,
    /// The node that makes it, and the last forward node that reads it (itself if none does).
    by: usize,
    until: usize,
    /// Whether the backward pass reads it.
    wanted: bool,
}

/// What a segment of the forward pass takes, in bytes.
#[derive(Debug, Clone, Copy, Default)]
struct Extent {
    /// What is read after it.
    kept: usize,
    /// What only its own backward nodes read.
    inside: usize,
    /// Its largest tensor, as large as the largest gradient.
    largest: usize,
}

impl Extent {
    /// With two gradients: a node's own, and the one that it makes.
    fn total(&self) -> usize {
        self.kept + self.inside + 2 * self.largest
    }
}

impl Graph {
    /// The same step with less memory. To be called after `differentiate`.
    pub fn recompute(self) -> Graph {
        let made = self.made();
        let extents = extents(&made, self.forward_nodes);
        let most = extents[self.forward_nodes].first().map_or(0, Extent::total);
        // The least room in which a cut exists; more room makes fewer segments, which a real placement may prefer.
        let (mut low, mut high) = (0, most);
        while high - low > most / 1000 + 1 {
            let middle = low + (high - low) / 2;
            match cuts(&extents, middle) {
                Some(_) => high = middle,
                None => low = middle,
            }
        }
        let tries = [100, 103, 107, 112, 118, 125].map(|percent| high / 100 * percent);
        let candidates = tries.iter().filter_map(|&room| cuts(&extents, room));
        let graphs = candidates.map(|cuts| self.clone().recomputed_in(&made, &cuts));
        graphs
            .min_by_key(Graph::live_bytes)
            .filter(|graph| graph.live_bytes() < self.live_bytes())
            .unwrap_or(self)
    }

    /// The same step with what activations and layer normalisations give made again for the backward pass, where their
    /// input is kept for their own gradient anyway and the gradients of linear layers' weights read it, with sums of at
    /// least `operations` for each element. To be called after `differentiate`; what `recompute` has cut into segments
    /// stays as it is.
    pub fn remake(mut self, operations: u64) -> Graph {
        let mut before: Vec<Vec<NodeId>> = vec![Vec::new(); self.nodes.len()];
        if !self.recomputed.is_empty() {
            return self;
        }
        for index in 0..self.forward_nodes {
            if let Some((reader, again)) = self.remade(index, operations) {
                before[reader].extend(again);
            }
        }
        let mut new_ids: Vec<Option<TensorId>> = vec![None; self.tensors.len()];
        let backward = self.nodes.split_off(self.forward_nodes);
        for (mut node, before) in backward.into_iter().zip(before.split_off(self.forward_nodes)) {
            for id in before {
                let again = self.node_again(id, &mut new_ids);
                self.recomputed.push(NodeId(self.nodes.len()));
                // It belongs to the backward pass of its layer's stage, whoever sends what it reads.
                self.nodes.push(Node { forward: Some(id), ..again });
            }
            for id in &mut node.inputs {
                *id = new_ids.get(id.0).copied().flatten().unwrap_or(*id);
            }
            self.nodes.push(node);
        }
        self
    }

    /// The backward node that a forward node is worth being made again for, and with which of its reshapes.
    fn remade(&self, index: usize, operations: u64) -> Option<(usize, Vec<NodeId>)> {
        let node = &self.nodes[index];
        match node.op {
            Op::Activation(of) if !of.from_output() => {}
            Op::LayerNorm { .. } => {}
            _ => return None,
        }
        // What it gives, in whatever shape; moments are small, and stay.
        let (mut family, mut again) = (vec![node.outputs[0]], vec![NodeId(index)]);
        for (later, node) in self.nodes.iter().enumerate().take(self.forward_nodes).skip(index + 1) {
            if node.op == Op::Reshape && family.contains(&node.inputs[0]) {
                family.push(node.outputs[0]);
                again.push(NodeId(later));
            }
        }
        let backward = self.forward_nodes..self.nodes.len();
        let reads = |reader: &usize, id: &TensorId| self.nodes[*reader].inputs.contains(id);
        let readers: Vec<usize> =
            backward.clone().filter(|reader| family.iter().any(|id| reads(reader, id))).collect();
        let first = *readers.first()?;
        let is_linear = |reader: &&usize| matches!(self.nodes[**reader].op, Op::LinearBackwardWeights { .. });
        let sums = readers.iter().filter(is_linear).map(|&reader| self.products(NodeId(reader)));
        let sums: u64 = sums.sum();
        let elements = self.tensor(family[0]).spec.shape.elements() as u64;
        let is_kept = backward.rev().any(|reader| reader >= first && reads(&reader, &node.inputs[0]));
        (is_kept && sums >= operations * elements).then_some((first, again))
    }

    /// The activations that the forward pass makes, in order.
    fn made(&self) -> Vec<Made> {
        let mut of_tensor: Vec<Option<Made>> = vec![None; self.tensors.len()];
        for (index, node) in self.nodes.iter().enumerate() {
            let forward = index < self.forward_nodes;
            for id in &node.inputs {
                if let Some(made) = &mut of_tensor[id.0] {
                    made.wanted |= !forward;
                    made.until = if forward { index } else { made.until };
                }
            }
            for &id in node.outputs.iter().filter(|id| forward && self.tensor(**id).role == Role::Activation)
            {
                let bytes = self.bytes_of(id);
                of_tensor[id.0] = Some(Made { id, bytes, by: index, until: index, wanted: false });
            }
        }
        let mut made: Vec<Made> = of_tensor.into_iter().flatten().collect();
        made.sort_by_key(|made| (made.by, made.id));
        made
    }

    pub(super) fn bytes_of(&self, id: TensorId) -> usize {
        let spec = &self.tensor(id).spec;
        spec.shape.elements() * spec.dtype.bytes()
    }

    /// The most bytes of activations that any node finds alive: what a perfect placement would need.
    fn live_bytes(&self) -> usize {
        let mut last = vec![0; self.tensors.len()];
        for (index, node) in self.nodes.iter().enumerate() {
            node.inputs.iter().chain(&node.outputs).for_each(|id| last[id.0] = index);
        }
        let is_activation = |id: &&TensorId| self.tensor(**id).role == Role::Activation;
        let (mut alive, mut most) = (0, 0);
        for (index, node) in self.nodes.iter().enumerate() {
            alive += node.outputs.iter().filter(is_activation).map(|id| self.bytes_of(*id)).sum::<usize>();
            most = most.max(alive);
            let mut dead: Vec<TensorId> =
                node.inputs.iter().chain(&node.outputs).filter(is_activation).copied().collect();
            dead.retain(|id| last[id.0] == index);
            dead.sort();
            dead.dedup();
            alive -= dead.iter().map(|id| self.bytes_of(*id)).sum::<usize>();
        }
        most
    }

    /// The graph with the segments that end at `cuts` (node indices, the last that of the forward pass's end) computed
    /// again, but for the last.
    fn recomputed_in(mut self, made: &[Made], cuts: &[usize]) -> Graph {
        let segment_of = |node: usize| cuts.partition_point(|&end| end <= node);
        let last = cuts.len() - 1;
        // Vectors (mean and variance) are not worth forgetting, nor is what ranks told each other: nothing is exchanged
        // twice.
        let forgotten = |made: &&Made| {
            let segment = segment_of(made.by);
            let small = self.tensor(made.id).spec.shape.rank() == 1
                || matches!(self.nodes[made.by].op, Op::Exchange { .. } | Op::AllToAll { .. } | Op::Trade(_));
            segment < last && segment_of(made.until) == segment && !small
        };
        let mut forgets = vec![false; self.tensors.len()];
        made.iter().filter(forgotten).for_each(|made| forgets[made.id.0] = true);

        let mut maker: Vec<Option<usize>> = vec![None; self.tensors.len()];
        made.iter().for_each(|made| maker[made.id.0] = Some(made.by));

        // Backwards from what the backward pass wants; what an op saved for its own backward op alone is kept.
        let mut again = vec![false; self.forward_nodes];
        let mut wanted: Vec<TensorId> = made
            .iter()
            .filter(|made| {
                made.wanted && forgets[made.id.0] && self.tensor(made.id).spec.dtype != DType::Saved
            })
            .map(|made| made.id)
            .collect();
        while let Some(node) = wanted.pop().and_then(|id| maker[id.0]) {
            if !std::mem::replace(&mut again[node], true) {
                wanted.extend(self.nodes[node].inputs.iter().filter(|id| forgets[id.0]));
            }
        }

        let backward = self.nodes.split_off(self.forward_nodes);
        let mut new_ids: Vec<Option<TensorId>> = vec![None; self.tensors.len()];
        let mut segments: Vec<Vec<Node>> = vec![Vec::new(); cuts.len()];
        for index in (0..self.forward_nodes).filter(|&index| again[index]) {
            let node = self.node_again(NodeId(index), &mut new_ids);
            segments[segment_of(index)].push(node);
        }
        for mut node in backward {
            for id in &mut node.inputs {
                let Some(new) = new_ids.get(id.0).copied().flatten() else { continue };
                let segment = maker[id.0].map_or(last, segment_of);
                for node in std::mem::take(&mut segments[segment]) {
                    self.recomputed.push(NodeId(self.nodes.len()));
                    self.nodes.push(node);
                }
                *id = new;
            }
            self.nodes.push(node);
        }
        self
    }

    /// A forward node once more, reading what is made again where that is so.
    fn node_again(&mut self, id: NodeId, new_ids: &mut [Option<TensorId>]) -> Node {
        let mut node = self.node(id).clone();
        if let Op::BatchNorm(norm) = node.op {
            let [mean, variance] = [node.outputs[1], node.outputs[2]];
            node.op = Op::BatchNormInference(norm);
            node.inputs.truncate(3);
            node.inputs.extend([mean, variance]);
            // Output, mean, variance, their running ones, and what a ReLU in it saved.
            node.outputs.drain(1..5);
        }
        for input in &mut node.inputs {
            *input = new_ids[input.0].unwrap_or(*input);
        }
        for output in &mut node.outputs {
            let mut tensor = self.tensor(*output).clone();
            tensor.name += " again";
            self.tensors.push(tensor);
            let new = TensorId(self.tensors.len() - 1);
            new_ids[output.0] = Some(new);
            *output = new;
        }
        node.name += " again";
        node
    }
}

/// The extent of every segment of nodes: `[to][from]`.
fn extents(made: &[Made], nodes: usize) -> Vec<Vec<Extent>> {
    let mut by_node: Vec<Vec<&Made>> = vec![Vec::new(); nodes];
    made.iter().for_each(|made| by_node[made.by].push(made));
    let ending_at = |to: usize| {
        let mut extent = Extent::default();
        let mut row = vec![extent; to];
        for from in (0..to).rev() {
            for made in &by_node[from] {
                match made.until >= to {
                    true => extent.kept += made.bytes,
                    false if made.wanted => extent.inside += made.bytes,
                    false => {}
                }
                extent.largest = extent.largest.max(made.bytes);
            }
            row[from] = extent;
        }
        row
    };
    (0..=nodes).map(ending_at).collect()
}

/// Where to cut, so that no segment finds more than `room` bytes taken when its backward nodes run: what it and the
/// segments before it keep, what is inside it, and two gradients. Of all such cuts those that keep least.
fn cuts(extents: &[Vec<Extent>], room: usize) -> Option<Vec<usize>> {
    let nodes = extents.len() - 1;
    // For every end of a segment: the least that is kept so far, and where the segment starts.
    let mut best: Vec<Option<(usize, usize)>> = vec![None; nodes + 1];
    best[0] = Some((0, 0));
    for to in 1..=nodes {
        for from in 0..to {
            let Some((before, _)) = best[from] else { continue };
            let extent = &extents[to][from];
            let kept = before + extent.kept;
            if before + extent.total() <= room && best[to].is_none_or(|(least, _)| kept < least) {
                best[to] = Some((kept, from));
            }
        }
    }
    let mut cuts = vec![nodes];
    while let Some(&end) = cuts.last().filter(|&&end| end > 0) {
        cuts.push(best[end]?.1);
    }
    cuts.pop();
    cuts.reverse();
    Some(cuts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The most that a segment takes, and what all of them keep.
    fn rated(extents: &[Vec<Extent>], cuts: &[usize]) -> (usize, usize) {
        let (mut from, mut kept, mut most) = (0, 0, 0);
        for &to in cuts {
            let extent = &extents[to][from];
            most = most.max(kept + extent.total());
            kept += extent.kept;
            from = to;
        }
        (most, kept)
    }

    proptest! {
        /// Against all ways to cut up to eight nodes.
        #[test]
        fn cuts_fit_and_keep_the_least(
            raw in prop::collection::vec((1usize..50, 0usize..4, any::<bool>()), 1..9),
            percent in 20usize..130
        ) {
            let nodes = raw.len();
            let made: Vec<Made> = raw
                .iter()
                .enumerate()
                .map(|(by, &(bytes, more, wanted))| Made { id: TensorId(by), bytes, by, until: (by + more).min(nodes - 1), wanted })
                .collect();
            let extents = extents(&made, nodes);
            let room = extents[nodes][0].total() * percent / 100;
            let ways = (0..1usize << (nodes - 1)).map(|mask| {
                (1..=nodes).filter(|&end| end == nodes || mask & (1 << (end - 1)) != 0).collect::<Vec<_>>()
            });
            let fitting = ways.map(|way| rated(&extents, &way)).filter(|(most, _)| *most <= room);
            let least = fitting.map(|(_, kept)| kept).min();
            let found = cuts(&extents, room);
            prop_assert_eq!(found.is_some(), least.is_some());
            if let (Some(found), Some(least)) = (found, least) {
                let (most, kept) = rated(&extents, &found);
                prop_assert!(most <= room && kept == least);
            }
        }
    }
}
