//! Memory for time: activations are forgotten and computed again when the backward pass needs them.
//!
//! After Chen, Xu, Zhang and Guestrin, "Training deep nets with sublinear memory cost" (2016). The forward pass is cut
//! into segments. What later segments read is kept; everything else that the backward pass reads is computed again
//! from it, a segment at a time, right before the segment's backward nodes. Nothing is computed more than twice, and
//! the last segment only once: the price is at most one more forward pass. In a pipeline that is done in each chunk, of
//! which what is kept is there for every micro-batch in flight.
//!
//! The same kernels on the same numbers give the same bits. Two ops need care. A normalisation does not look at its
//! batch again: it takes the mean and variance that are there, and leaves the running ones alone. Dropout is a
//! function of seed, step and place, and so the same each time.
//!
//! Of that one part is so cheap that a device may want it always (`Graph::remake`, `Device::remakes_from`): activations
//! and layer normalisations whose input is kept anyway, made again for the weights' gradient of a large linear layer.

use super::{BackwardOp, DType, Graph, Node, NodeId, Op, Role, TensorId};

/// What is known of a tensor that the forward pass makes.
#[derive(Debug, Clone, Copy)]
struct Made {
    bytes: usize,
    /// The node that makes it, and the last forward node that reads it (itself if none does), as places among some
    /// nodes; behind all of them if others read it.
    by: usize,
    until: usize,
    /// Whether the backward pass reads it.
    wanted: bool,
}

/// What a segment of the forward pass takes, in bytes.
#[derive(Debug, Clone, Copy, Default)]
struct SegmentMemory {
    /// What is read after it.
    kept: usize,
    /// What only its own backward nodes read.
    inside: usize,
    /// Its largest tensor, as large as the largest gradient.
    largest: usize,
}

impl SegmentMemory {
    /// With what segments before it keep, so many copies of all that is kept, and two gradients: a node's own, and the
    /// one that it makes.
    fn total(&self, before: usize, copies: usize) -> usize {
        (before + self.kept) * copies + self.inside + 2 * self.largest
    }
}

/// The segments of a forward pass.
struct Segments {
    /// The one of each forward node.
    of: Vec<usize>,
    /// Whether each is computed again.
    again: Vec<bool>,
}

/// Nodes that are computed without a pause: all, or those of a pipeline's chunk.
struct RecomputeSegment {
    nodes: Vec<usize>,
    /// So many times is there what it keeps (a pipeline's micro-batches in flight).
    copies: usize,
}

impl Segments {
    /// Nodes of no segment are in the first one, which is kept.
    fn none(forward_nodes: usize) -> Segments {
        Segments { of: vec![0; forward_nodes], again: vec![false] }
    }

    /// Those of a piece, which end at `cuts`. The backward pass of the last one follows at once where nothing else is
    /// in flight.
    fn add(&mut self, piece: &RecomputeSegment, cuts: &[usize]) {
        for (at, &node) in piece.nodes.iter().enumerate() {
            self.of[node] = self.again.len() + cuts.partition_point(|&end| end <= at);
        }
        self.again.extend((1..=cuts.len()).map(|nth| nth < cuts.len() || piece.copies > 1));
    }

    /// A piece in one segment, which is kept.
    fn keep(&mut self, piece: &RecomputeSegment) {
        piece.nodes.iter().for_each(|&node| self.of[node] = self.again.len());
        self.again.push(false);
    }
}

impl Graph {
    /// The step's graph with less memory. To be called after `differentiate`.
    pub fn recompute(self) -> Graph {
        let piece = RecomputeSegment { nodes: (0..self.forward_nodes).collect(), copies: 1 };
        let made = self.made(&piece.nodes);
        let extents = extents(&made, &self.ends(&piece.nodes));
        let high = least_room(&extents, 1);
        // More room makes fewer segments, which a real placement may prefer.
        let tries = [100, 103, 107, 112, 118, 125].map(|percent| high / 100 * percent);
        let candidates = tries.iter().filter_map(|&room| cuts(&extents, room, 1));
        let graphs = candidates.map(|cuts| {
            let mut segments = Segments::none(self.forward_nodes);
            segments.add(&piece, &cuts);
            self.clone().recomputed_in(&segments, &vec![0; self.nodes.len()])
        });
        graphs
            .min_by_key(Graph::live_bytes)
            .filter(|graph| graph.live_bytes() < self.live_bytes())
            .unwrap_or(self)
    }

    /// `recompute` for a network in chunks, of which `chunk_of` has that of each node. What chunk c keeps is there
    /// `copies[c]` times, once for each micro-batch in flight, and what it computes again is there once (Huang et al.,
    /// "GPipe", 2019): where there are several its last segment is computed again too.
    pub fn recompute_in_chunks(self, chunk_of: &[usize], copies: &[usize]) -> Graph {
        let mut segments = Segments::none(self.forward_nodes);
        for (chunk, &copies) in copies.iter().enumerate() {
            let nodes = (0..self.forward_nodes).filter(|&node| chunk_of[node] == chunk).collect();
            let piece = RecomputeSegment { nodes, copies };
            let made = self.made(&piece.nodes);
            let extents = extents(&made, &self.ends(&piece.nodes));
            let room = least_room(&extents, copies);
            let whole = extents[piece.nodes.len()].first().copied().unwrap_or_default();
            let plain = SegmentMemory { kept: whole.kept + whole.inside, inside: 0, ..whole };
            match cuts(&extents, room, copies).filter(|_| room < plain.total(0, copies)) {
                Some(cuts) => segments.add(&piece, &cuts),
                None => segments.keep(&piece),
            }
        }
        self.recomputed_in(&segments, chunk_of)
    }

    /// The step's graph with what activations and layer normalisations give made again for the backward pass, where
    /// their input is kept for their own gradient anyway and the gradients of linear layers' weights read it, with sums
    /// of at least `operations` for each element. To be called after `differentiate`; what `recompute` has cut into
    /// segments stays as it is.
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
        let is_linear = |reader: &&usize| {
            matches!(self.nodes[**reader].op, Op::Backward(BackwardOp::LinearWeights { .. }))
        };
        let sums = readers.iter().filter(is_linear).map(|&reader| self.products(NodeId(reader)));
        let sums: u64 = sums.sum();
        let elements = self.tensor(family[0]).spec.shape.elements() as u64;
        let is_kept = backward.rev().any(|reader| reader >= first && reads(&reader, &node.inputs[0]));
        (is_kept && sums >= operations * elements).then_some((first, again))
    }

    /// The activations that some nodes of the forward pass make, in order, with places among these.
    fn made(&self, nodes: &[usize]) -> Vec<Made> {
        let mut place = vec![None; self.nodes.len()];
        nodes.iter().enumerate().for_each(|(at, &node)| place[node] = Some(at));
        let mut of_tensor: Vec<Option<Made>> = vec![None; self.tensors.len()];
        for (index, node) in self.nodes.iter().enumerate() {
            let forward = index < self.forward_nodes;
            for id in &node.inputs {
                if let Some(made) = &mut of_tensor[id.0] {
                    made.wanted |= !forward;
                    let reader = place[index].unwrap_or(nodes.len());
                    made.until = if forward { made.until.max(reader) } else { made.until };
                }
            }
            let Some(by) = place[index] else { continue };
            for &id in node.outputs.iter().filter(|id| self.tensor(**id).role == Role::Activation) {
                let bytes = self.bytes_of(id);
                of_tensor[id.0] = Some(Made { bytes, by, until: by, wanted: false });
            }
        }
        let mut made: Vec<Made> = of_tensor.into_iter().flatten().collect();
        made.sort_by_key(|made| made.by);
        made
    }

    /// Behind which of some nodes a segment may end, and before the first: not between a normalisation and an addition
    /// that a device may compute as one op (`fuse`). Apart they would round twice.
    fn ends(&self, nodes: &[usize]) -> Vec<bool> {
        let mut may_end = vec![true; nodes.len() + 1];
        let additions =
            nodes.iter().enumerate().filter(|(_, node)| matches!(self.nodes[**node].op, Op::Add { .. }));
        for (place, &addition) in additions {
            let norm =
                self.norm_before(addition).and_then(|(norm, _)| nodes.iter().position(|&node| node == norm));
            if let Some(norm) = norm {
                may_end[norm + 1..=place].fill(false);
            }
        }
        may_end
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

    /// For each tensor that a forward node makes, that node, and whether it may be forgotten: nobody but its segment's
    /// nodes, forward and backward, reads it.
    fn forgotten(&self, segments: &Segments, chunk_of: &[usize]) -> Vec<Option<(usize, bool)>> {
        let mut made: Vec<Option<(usize, bool)>> = vec![None; self.tensors.len()];
        for (index, node) in self.nodes.iter().enumerate() {
            let forward = index < self.forward_nodes;
            for id in &node.inputs {
                let Some((by, forgets)) = &mut made[id.0] else { continue };
                *forgets &= match forward {
                    true => segments.of[*by] == segments.of[index],
                    false => chunk_of[*by] == chunk_of[index],
                };
            }
            if !forward {
                continue;
            }
            // What ranks told each other is not worth forgetting: nothing is exchanged twice.
            let told = matches!(node.op, Op::Exchange { .. } | Op::AllToAll { .. } | Op::Trade(_));
            for id in node.outputs.iter().filter(|id| self.tensor(**id).role == Role::Activation) {
                // Nor are vectors (mean and variance).
                let small = self.tensor(*id).spec.shape.rank() == 1;
                made[id.0] = Some((index, segments.again[segments.of[index]] && !small && !told));
            }
        }
        made
    }

    /// The graph with segments computed again, those of a chunk before its backward nodes.
    fn recomputed_in(mut self, segments: &Segments, chunk_of: &[usize]) -> Graph {
        let made = self.forgotten(segments, chunk_of);
        let forgets: Vec<bool> = made.iter().map(|made| made.is_some_and(|(_, forgets)| forgets)).collect();
        let maker = |id: TensorId| made.get(id.0).copied().flatten().map(|(by, _)| by);

        // Backwards from what the backward pass wants; what an op saved for its own backward op alone is kept.
        let mut again = vec![false; self.forward_nodes];
        let read = self.nodes[self.forward_nodes..].iter().flat_map(|node| &node.inputs);
        let mut wanted: Vec<TensorId> = read
            .filter(|id| forgets[id.0] && self.tensor(**id).spec.dtype != DType::Saved)
            .copied()
            .collect();
        while let Some(node) = wanted.pop().and_then(maker) {
            if !std::mem::replace(&mut again[node], true) {
                wanted.extend(self.nodes[node].inputs.iter().filter(|id| forgets[id.0]));
            }
        }

        let backward = self.nodes.split_off(self.forward_nodes);
        let mut new_ids: Vec<Option<TensorId>> = vec![None; self.tensors.len()];
        let mut waiting: Vec<Vec<Node>> = vec![Vec::new(); segments.again.len()];
        for index in (0..self.forward_nodes).filter(|&index| again[index]) {
            let node = self.node_again(NodeId(index), &mut new_ids);
            waiting[segments.of[index]].push(node);
        }
        for mut node in backward {
            for id in &mut node.inputs {
                let Some(new) = new_ids.get(id.0).copied().flatten() else { continue };
                let segment = maker(*id).map_or(0, |by| segments.of[by]);
                for node in std::mem::take(&mut waiting[segment]) {
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
            let new = self.add_tensor(tensor);
            new_ids[output.0] = Some(new);
            *output = new;
        }
        node.name += " again";
        node
    }
}

/// The extent of every segment of nodes: `[to][from]`; none where it may not end.
fn extents(made: &[Made], may_end: &[bool]) -> Vec<Vec<SegmentMemory>> {
    let nodes = may_end.len() - 1;
    let mut by_node: Vec<Vec<&Made>> = vec![Vec::new(); nodes];
    made.iter().for_each(|made| by_node[made.by].push(made));
    let ending_at = |to: usize| {
        let mut extent = SegmentMemory::default();
        let mut row = vec![extent; if may_end[to] { to } else { 0 }];
        let to = row.len();
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

/// The least room in which a cut exists, to a thousandth.
fn least_room(extents: &[Vec<SegmentMemory>], copies: usize) -> usize {
    let most = extents.last().and_then(|row| row.first()).map_or(0, |all| all.total(0, copies));
    let (mut low, mut high) = (0, most);
    while high - low > most / 1000 + 1 {
        let middle = low + (high - low) / 2;
        match cuts(extents, middle, copies) {
            Some(_) => high = middle,
            None => low = middle,
        }
    }
    high
}

/// Where to cut, so that no segment finds more than `room` bytes taken when its backward nodes run: what it and the
/// segments before it keep, what is inside it, and two gradients. Of all such cuts those that keep least.
fn cuts(extents: &[Vec<SegmentMemory>], room: usize, copies: usize) -> Option<Vec<usize>> {
    let nodes = extents.len() - 1;
    // For every end of a segment: the least that is kept so far, and where the segment starts.
    let mut best: Vec<Option<(usize, usize)>> = vec![None; nodes + 1];
    best[0] = Some((0, 0));
    for to in 1..=nodes {
        for (from, extent) in extents[to].iter().enumerate() {
            let Some((before, _)) = best[from] else { continue };
            let kept = before + extent.kept;
            if extent.total(before, copies) <= room && best[to].is_none_or(|(least, _)| kept < least) {
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
    use crate::graph::{BatchNorm, Builder, Conv, OpFusions};
    use proptest::prelude::*;

    /// The most that a segment takes, and what all of them keep.
    fn rated(extents: &[Vec<SegmentMemory>], cuts: &[usize], copies: usize) -> (usize, usize) {
        let (mut from, mut kept, mut most) = (0, 0, 0);
        for &to in cuts {
            let extent = &extents[to][from];
            most = most.max(extent.total(kept, copies));
            kept += extent.kept;
            from = to;
        }
        (most, kept)
    }

    /// Whatever is in flight, an addition stays with its normalisation: two blocks of which the largest numbers are
    /// between both.
    #[test]
    fn what_a_device_joins_is_in_one_segment() {
        let (mut net, mut x) = Builder::new("blocks", 4, [3, 16, 16]);
        for block in ["a", "b", "c", "d"] {
            let y = net.conv(&format!("{block}.conv"), x, 3, Conv::square(3).padding(1)).unwrap();
            let y = net.batch_norm(&format!("{block}.norm"), y, BatchNorm::default()).unwrap();
            let sum = net.add(&format!("{block}.add"), y, x).unwrap();
            x = net.relu(&format!("{block}.relu"), sum);
        }
        let logits = net.linear("fc", x, 10);
        let graph = net.finish(logits).simplify().differentiate();
        let joined = |graph: Graph| {
            let graph = graph.fuse(OpFusions { addition: true, ..OpFusions::default() });
            let first = graph.nodes[..graph.forward_nodes].iter();
            first.filter(|node| matches!(node.op, Op::BatchNorm(norm) if norm.add)).count()
        };
        let chunk_of = vec![0; graph.nodes.len()];
        assert_eq!(joined(graph.clone()), 4);
        for copies in 1..6 {
            let again = graph.clone().recompute_in_chunks(&chunk_of, &[copies]);
            assert!(!again.recomputed.is_empty());
            assert_eq!(joined(again), 4, "{copies}");
        }
        let ends = graph.ends(&(0..graph.forward_nodes).collect::<Vec<_>>());
        assert_eq!(ends.iter().filter(|may_end| !**may_end).count(), 4);
    }

    proptest! {
        /// Against all ways to cut up to eight nodes.
        #[test]
        fn cuts_fit_and_keep_the_least(
            raw in prop::collection::vec((1usize..50, 0usize..4, any::<bool>()), 1..9),
            percent in 20usize..130,
            copies in 1usize..4
        ) {
            let nodes = raw.len();
            let made: Vec<Made> = raw
                .iter()
                .enumerate()
                .map(|(by, &(bytes, more, wanted))| Made { bytes, by, until: (by + more).min(nodes - 1), wanted })
                .collect();
            let extents = extents(&made, &vec![true; nodes + 1]);
            let room = extents[nodes][0].total(0, copies) * percent / 100;
            let ways = (0..1usize << (nodes - 1)).map(|mask| {
                (1..=nodes).filter(|&end| end == nodes || mask & (1 << (end - 1)) != 0).collect::<Vec<_>>()
            });
            let fitting = ways.map(|way| rated(&extents, &way, copies)).filter(|(most, _)| *most <= room);
            let least = fitting.map(|(_, kept)| kept).min();
            let found = cuts(&extents, room, copies);
            prop_assert_eq!(found.is_some(), least.is_some());
            if let (Some(found), Some(least)) = (found, least) {
                let (most, kept) = rated(&extents, &found, copies);
                prop_assert!(most <= room && kept == least);
            }
        }
    }
}
