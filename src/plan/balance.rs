//! Where a network is cut into stages: where it can be, and there so that stages take equally long.

use std::collections::HashSet;

use super::stage::{Stages, layer};
use crate::error::{Error, Result};
use crate::graph::{Graph, Role, Spec, Tensor};

impl Stages {
    /// The layers before which this network can be cut: over none of these cuts anything flows back that the forward
    /// pass makes, or on that the backward pass makes; no parameter is read on both sides; and an evaluation has the
    /// layer too, which one of an auxiliary head it has not.
    ///
    /// # Errors
    /// None but the library's own.
    pub fn possible(graph: &Graph) -> Result<Vec<String>> {
        let layers = Self::layers(graph);
        let cuts: Vec<String> = layers.iter().skip(1).map(ToString::to_string).collect();
        // Chunks are runs of these pieces, whichever cuts there are.
        let of_node = Stages { ranks: layers.len(), cuts }.of_nodes(graph)?;
        let mut is_open = vec![true; layers.len()];
        let mut close = |from: usize, to: usize| is_open[from.min(to) + 1..=to.max(from)].fill(false);
        let mut met: Vec<Option<(usize, bool)>> = vec![None; graph.tensors.len()];
        for (index, (node, &piece)) in graph.nodes.iter().zip(&of_node).enumerate() {
            for id in &node.inputs {
                let is_kept = matches!(graph.tensor(*id).role, Role::Parameter | Role::Statistic);
                match met[id.0] {
                    Some((there, _)) if is_kept => close(there, piece),
                    None if is_kept => met[id.0] = Some((piece, false)),
                    Some((made, backward)) if (piece > made) == backward => close(made, piece),
                    _ => {}
                }
            }
            let made = node.outputs.iter().filter(|id| graph.tensor(**id).role != Role::Statistic);
            made.for_each(|id| met[id.0] = Some((piece, index >= graph.forward_nodes)));
        }
        let forward = graph.nodes.iter().zip(graph.leads_to(graph.logits)).take(graph.forward_nodes);
        let read = forward.filter(|(_, leads)| *leads).flat_map(|(node, _)| &node.inputs);
        let read: HashSet<&str> = read.map(|id| layer(&graph.tensor(*id).name)).collect();
        let all = layers.into_iter().zip(is_open).skip(1);
        let open = all.filter(|(layer, is_open)| *is_open && read.contains(layer));
        Ok(open.map(|(layer, _)| layer.to_string()).collect())
    }

    /// # Errors
    /// `Usage` where the network cannot be cut so.
    pub(super) fn check(&self, graph: &Graph) -> Result<()> {
        let possible = Self::possible(graph)?;
        match self.cuts.iter().find(|cut| !possible.contains(cut)) {
            None => Ok(()),
            Some(cut) => Err(Error::usage(format!(
                "--pipeline-cuts: {} cannot be cut before {cut}: a parameter would be read, or numbers would flow back, \
                 across that cut; it can be cut before {}",
                graph.name,
                possible.join(", ")
            ))),
        }
    }

    /// The network in so many chunks of which the slowest is as fast as can be, cut before some of the layers that are
    /// `possible`. `seconds` has what each node takes, in both passes; a boundary costs both sides `latency` and
    /// `per_byte` for what goes over it, there and back.
    ///
    /// # Errors
    /// `Usage` where there are more chunks than layers that learn, or than places to cut.
    pub fn balanced(
        graph: &Graph,
        possible: &[String],
        [ranks, chunks]: [usize; 2],
        seconds: &[f64],
        [latency, per_byte]: [f64; 2],
    ) -> Result<Stages> {
        let learns = |name: &&str| {
            let of_layer = |tensor: &Tensor| layer(&tensor.name) == *name && !tensor.frozen;
            graph.with_role(Role::Parameter).any(|(_, tensor)| of_layer(tensor))
        };
        let layers = Self::layers(graph);
        let apart = |starts: &[&str]| {
            Stages { ranks: starts.len() + 1, cuts: starts.iter().map(ToString::to_string).collect() }
                .of_nodes(graph)
        };
        let is_possible = |layer: &&str| possible.iter().any(|possible| possible == layer);
        let starts: Vec<&str> = layers.iter().skip(1).copied().filter(is_possible).collect();
        // A node is in the piece of its last parameter. ONNX files may call weights and biases w and b, which are
        // layers then: that of the weight has no node, and goes to the piece behind it.
        let mut has_nodes = vec![false; starts.len() + 1];
        apart(&starts)?.into_iter().for_each(|piece| has_nodes[piece] = true);
        let behind_nodes = starts.into_iter().zip(has_nodes).filter(|&(_, has_nodes)| has_nodes);
        let starts: Vec<&str> = behind_nodes.map(|(start, _)| start).collect();
        // Each chunk has something to update: a piece without goes to the one before it, the first to the one behind.
        let mut updates = vec![false; starts.len() + 1];
        for (node, piece) in graph.nodes.iter().zip(apart(&starts)?) {
            updates[piece] |= node.outputs.iter().any(|id| graph.tensor(*id).role == Role::Gradient);
        }
        let first = updates.iter().position(|updates| *updates).unwrap_or(0);
        let pieces = starts.into_iter().zip(1..).filter(|&(_, piece)| piece > first && updates[piece]);
        let starts: Vec<&str> = pieces.map(|(start, _)| start).collect();
        if chunks > starts.len() + 1 {
            let learning = layers.into_iter().filter(learns).count();
            let what = match learning < chunks {
                true => format!("has {learning} layers that learn"),
                false => format!("can be cut before {} of its layers ({})", starts.len(), starts.join(", ")),
            };
            return Err(Error::usage(format!(
                "--pipeline: {} {what}, which make no {chunks} stages",
                graph.name
            )));
        }
        let of_node = apart(&starts)?;
        let mut of_piece = vec![0.0; starts.len() + 1];
        of_node.iter().zip(seconds).for_each(|(&piece, seconds)| of_piece[piece] += seconds);
        let boundary = boundaries(graph, &of_node, of_piece.len());
        let boundary: Vec<f64> =
            boundary.iter().map(|&bytes| 2.0 * (latency + bytes as f64 * per_byte)).collect();
        let best = partition(&of_piece, &boundary, chunks);
        Ok(Stages { ranks, cuts: best.into_iter().map(|piece| starts[piece - 1].to_string()).collect() })
    }

    /// Seconds of the slowest chunk, as `balanced` reckons them.
    ///
    /// # Errors
    /// `Usage` for cuts that this network does not have.
    pub fn slowest(&self, graph: &Graph, seconds: &[f64], [latency, per_byte]: [f64; 2]) -> Result<f64> {
        let of_node = self.of_nodes(graph)?;
        let mut of_chunk = vec![0.0; self.chunks()];
        of_node.iter().zip(seconds).for_each(|(&chunk, seconds)| of_chunk[chunk] += seconds);
        let boundary = boundaries(graph, &of_node, self.chunks());
        let of = |chunk: usize| {
            boundary.get(chunk).map_or(0.0, |&bytes| 2.0 * (latency + bytes as f64 * per_byte))
        };
        let slowest = of_chunk.iter().enumerate().map(|(chunk, seconds)| seconds + of(chunk) + of(chunk + 1));
        Ok(slowest.fold(0.0, f64::max))
    }
}

/// Bytes that the forward pass brings over each boundary between two pieces: those before the first piece are none.
fn boundaries(graph: &Graph, of_node: &[usize], pieces: usize) -> Vec<usize> {
    let mut last = vec![0; graph.tensors.len()];
    for (node, &piece) in graph.nodes.iter().zip(of_node) {
        node.inputs.iter().for_each(|id| last[id.0] = last[id.0].max(piece));
    }
    let mut bytes = vec![0; pieces];
    for (node, &piece) in graph.nodes.iter().zip(of_node).take(graph.forward_nodes) {
        for id in node.outputs.iter().filter(|id| graph.tensor(**id).role == Role::Activation) {
            let Spec { shape, dtype } = &graph.tensor(*id).spec;
            let of_tensor = shape.elements() * dtype.bytes();
            bytes.iter_mut().take(last[id.0] + 1).skip(piece + 1).for_each(|bytes| *bytes += of_tensor);
        }
    }
    bytes
}

/// Where so many chunks begin, so that the greatest sum of a chunk and of its boundaries is least; of equals the one
/// that begins latest.
fn partition(pieces: &[f64], boundary: &[f64], chunks: usize) -> Vec<usize> {
    let count = pieces.len();
    let sums: Vec<f64> = std::iter::once(0.0)
        .chain(pieces.iter().scan(0.0, |sum, piece| {
            *sum += piece;
            Some(*sum)
        }))
        .collect();
    let cost = |start: usize, end: usize| {
        sums[end] - sums[start] + boundary[start] + boundary.get(end).copied().unwrap_or(0.0)
    };
    // By chunks so far and the end of the last one: the greatest of them, and where that one begins.
    let mut best = vec![(0..=count).map(|end| (cost(0, end), 0)).collect::<Vec<_>>()];
    for chunk in 1..chunks {
        let before = &best[chunk - 1];
        let of = |end: usize| {
            let options = (chunk..end).map(|start| (before[start].0.max(cost(start, end)), start));
            options.fold(
                (f64::INFINITY, chunk),
                |least, option| if option.0 <= least.0 { option } else { least },
            )
        };
        best.push((0..=count).map(of).collect());
    }
    let mut starts = Vec::new();
    let mut end = count;
    for chunk in (1..chunks).rev() {
        end = best[chunk][end].1;
        starts.push(end);
    }
    starts.reverse();
    starts
}

#[cfg(test)]
mod tests {
    use super::super::stage::tests::network;
    use super::super::stage::{Division, Stage, crossings};
    use super::*;
    use crate::graph::{Builder, DType, NodeId, OpFusions, dims};
    use crate::model::MODELS;

    #[test]
    fn pieces_are_divided_evenly_and_where_little_goes_over() {
        let none = [0.0; 6];
        assert_eq!(partition(&[1.0; 6], &none, 2), [3]);
        assert_eq!(partition(&[1.0; 6], &none, 3), [2, 4]);
        assert_eq!(partition(&[5.0, 1.0, 1.0, 1.0, 1.0, 1.0], &none, 2), [1]);
        assert_eq!(partition(&[1.0; 6], &none, 6), [1, 2, 3, 4, 5]);
        assert!(partition(&[1.0; 6], &none, 1).is_empty());
        // An even division would send much.
        assert_eq!(partition(&[1.0; 6], &[0.0, 9.0, 0.0, 9.0, 9.0, 9.0], 2), [2]);
        let graph = network();
        let seconds = vec![1.0; graph.nodes.len()];
        let possible = Stages::possible(&graph).unwrap();
        assert_eq!(possible, Stages::layers(&graph)[1..]);
        let stages = Stages::balanced(&graph, &possible, [2, 4], &seconds, [0.0, 1e-9]).unwrap();
        assert_eq!((stages.chunks(), stages.ranks), (4, 2));
        let mut count = [0; 4];
        stages.of_nodes(&graph).unwrap().into_iter().for_each(|chunk| count[chunk] += 1);
        assert!(count.iter().max() < Some(&(graph.nodes.len() / 2)), "{count:?}");
        let error = Stages::balanced(&graph, &possible, [12, 12], &seconds, [0.0; 2]).unwrap_err();
        assert!(error.message.contains("has 11 layers that learn"), "{error}");
    }

    /// The ops of every larger network of the zoo, as a CPU and a GPU want them, in two to five stages by every
    /// schedule.
    #[test]
    fn every_network_is_cut_where_all_flows_one_way() {
        let joins = OpFusions {
            addition: true,
            mask: true,
            relu_backward: true,
            gradient_sums: true,
            moments: &[DType::BF16],
        };
        let counts = (2..6).flat_map(|ranks| [1, 2, 3].map(|each| [ranks, ranks * each]));
        let counts: Vec<[usize; 2]> = counts.collect();
        for model in MODELS.iter().filter(|model| model.image[1] >= 224) {
            // One image, but where a head would normalise over one number.
            let build = |batch| model.build(batch, model.image, model.classes);
            let graph = build(1).or_else(|_| build(2)).unwrap().simplify();
            let on_cpu = graph.clone().differentiate().remake(1024);
            let on_gpu = graph.in_bf16().differentiate().fuse(joins);
            for graph in [on_cpu, on_gpu] {
                let possible = Stages::possible(&graph).unwrap();
                let seconds: Vec<f64> =
                    (0..graph.nodes.len()).map(|node| graph.cost(NodeId(node)).flops as f64 * 1e-9).collect();
                for [ranks, chunks] in
                    counts.iter().copied().filter(|[_, chunks]| *chunks <= possible.len() + 1)
                {
                    let stages =
                        Stages::balanced(&graph, &possible, [ranks, chunks], &seconds, [1e-5, 1e-9]).unwrap();
                    let of_nodes = stages.of_nodes(&graph).unwrap();
                    let divided = crossings(&graph, &of_nodes, ranks);
                    assert!(divided.is_ok(), "{} {:?}: {:?}", model.name(), stages.cuts, divided.err());
                }
            }
        }
    }

    /// Weights and biases whose names have no layer in them, as ONNX files may have them.
    #[test]
    fn every_stage_has_something_to_update() {
        let (mut net, x) = Builder::new("bare", 1, [6, 1, 1]);
        let mut x = net.flatten("rows", x);
        for name in ["a", "b", "c"] {
            x = net.linear(name, x, 6);
        }
        let mut graph = net.finish(x).differentiate();
        let cuts = |graph: &Graph, seconds: fn(usize) -> f64| {
            let possible = Stages::possible(graph).unwrap();
            let seconds: Vec<f64> = (0..graph.nodes.len()).map(seconds).collect();
            Stages::balanced(graph, &possible, [3, 3], &seconds, [0.0; 2]).map(|stages| stages.cuts)
        };
        assert_eq!(cuts(&graph, |_| 1.0).unwrap(), ["b", "c"]);
        for tensor in &mut graph.tensors {
            if let Some((layer, kind)) =
                tensor.name.split_once('.').filter(|_| tensor.role == Role::Parameter)
            {
                tensor.name = format!("{kind}_{layer}");
            }
        }
        for seconds in [|_| 1.0, |node| node as f64, |node| (100 - node) as f64] {
            assert_eq!(cuts(&graph, seconds).unwrap(), ["weight_b", "weight_c"]);
        }
    }

    /// A layer normalisation that is made again for the gradient of the linear layer behind it.
    #[test]
    fn a_cut_that_cannot_be_is_refused_with_those_that_can() {
        let (mut net, x) = Builder::new("wide", 1, [3, 4, 4]);
        let x = net.reshape("rows", x, dims([1, 16, 3])).unwrap();
        let x = net.linear_along("first", x, 8).unwrap();
        let x = net.layer_norm("norm", x, 1, 1e-5).unwrap();
        let x = net.linear_along("wide", x, 512).unwrap();
        let x = net.linear("fc", x, 10);
        let graph = net.finish(x).simplify().differentiate().remake(1024);
        assert!(!graph.recomputed.is_empty());
        assert_eq!(Stages::possible(&graph).unwrap(), ["norm", "fc"]);
        let cut = |layer: &str| {
            let stages = Stages { ranks: 2, cuts: vec![layer.into()] };
            Division::new(&graph, &Stage { stages: &stages, own: 1, contexts: 1, splits_weights: false })
                .err()
        };
        assert!(cut("norm").is_none());
        let said = cut("wide").unwrap().message;
        assert!(said.contains("cannot be cut before wide") && said.ends_with("before norm, fc"), "{said}");
        let error = Stages::balanced(&graph, &["norm".into(), "fc".into()], [4, 4], &[0.0; 99], [0.0; 2]);
        let said = error.unwrap_err().message;
        assert!(said.contains("can be cut before 2 of its layers (norm, fc), which make no 4"), "{said}");
    }
}
