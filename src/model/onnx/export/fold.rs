//! Batch normalisation by running statistics multiplies each channel by a number and adds another: what a convolution
//! before it can do by itself.

use std::collections::HashMap;

use super::OnnxWriter;
use crate::error::{Error, Result};
use crate::graph::{BatchNorm, Graph, Node, Op, TensorId};

/// Convolutions, by the number of their node, with the normalisation that alone reads what each gives.
pub fn pairs(graph: &Graph) -> HashMap<usize, usize> {
    let norms = graph.nodes.iter().enumerate().filter_map(|(index, node)| match node.op {
        Op::BatchNormInference(BatchNorm { add: false, given: false, .. }) => Some((index, node.inputs[0])),
        _ => None,
    });
    norms
        .filter_map(|(norm, x)| {
            let conv = graph.nodes.iter().position(|node| node.outputs[0] == x)?;
            let is_plain = matches!(graph.nodes[conv].op, Op::Conv(conv) if !conv.relu);
            (is_plain && x != graph.logits && graph.consumers(x).count() == 1).then_some((conv, norm))
        })
        .collect()
}

impl OnnxWriter<'_> {
    /// One convolution in place of it and of the normalisation behind it: with s = w/√(variance + epsilon) of each
    /// channel, weights times s and the bias (bias − mean)·s + b.
    pub(super) fn convolution_with_norm(&mut self, node: &Node, norm: &Node) -> Result<String> {
        let (Op::Conv(conv), Op::BatchNormInference(settings)) = (node.op, norm.op) else {
            return Err(Error::internal("a pair that is none"));
        };
        let (graph, of) = (self.graph, self.values);
        let tensor = |id: &TensorId| graph.tensor(*id);
        let values = |id| match &tensor(id).values {
            Some(constant) => Ok(constant.to_vec()),
            None => of(&tensor(id).name),
        };
        let mut weights = values(&node.inputs[1])?;
        let before = node.inputs.get(2).map(values).transpose()?;
        let [scale, shift, mean, variance] = [1, 2, 3, 4].map(|place| values(&norm.inputs[place]));
        let (scale, shift, mean, variance) = (scale?, shift?, mean?, variance?);
        let mut bias = Vec::with_capacity(scale.len());
        let each = weights.len() / scale.len().max(1);
        for (channel, weights) in weights.chunks_exact_mut(each.max(1)).enumerate() {
            let at = |of: &[f32]| f64::from(of[channel]);
            let by = at(&scale) / (at(&variance) + f64::from(settings.epsilon)).sqrt();
            weights.iter_mut().for_each(|weight| *weight = (f64::from(*weight) * by) as f32);
            let before = before.as_deref().map_or(0.0, at);
            bias.push(((before - at(&mean)) * by + at(&shift)) as f32);
        }
        let weight = tensor(&node.inputs[1]);
        let weight = self.stored(&weight.name, &weight.spec.shape.0, &weights);
        let bias = match node.inputs.get(2) {
            Some(id) => self.stored(&tensor(id).name, &[bias.len()], &bias),
            None => self.reals(&format!("{}.bias", node.name), &[bias.len()], &bias),
        };
        let x = self.read(node.inputs[0])?;
        let y = self.convolution(node, conv, vec![x, weight, bias]);
        Ok(self.relu(settings.relu, &norm.name, y))
    }
}
