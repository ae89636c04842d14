//! Parameters that are not learned, and the head: the layers that give the scores of the classes.

use super::{Graph, Role, Tensor, TensorId};
use crate::error::{Error, Result};

/// Which parameters stay as they are (`--freeze`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frozen {
    /// All but the head's.
    Backbone,
    /// Those of layers whose names begin so: "layer1" is "layer1.0.conv1.weight" and "layer1.0.bn1.bias", not
    /// "layer10.weight".
    Layers(Vec<String>),
}

impl Tensor {
    /// Whether training changes it by a gradient.
    pub fn is_learned(&self) -> bool {
        self.role == Role::Parameter && !self.frozen
    }
}

impl Graph {
    /// The forward graph with these parameters frozen: they get no gradient, and nothing is computed that only such a
    /// gradient would need. Statistics of normalisations go on running, as in PyTorch with `requires_grad = False`.
    ///
    /// # Errors
    /// `Usage` for a name that no parameter begins with, and when nothing would be left to learn.
    pub fn freeze(mut self, which: &Frozen) -> Result<Graph> {
        let head = self.head();
        if let Frozen::Layers(prefixes) = which {
            let known =
                |prefix: &&String| self.with_role(Role::Parameter).any(|(_, t)| is_in(&t.name, prefix));
            if let Some(unknown) = prefixes.iter().find(|prefix| !known(prefix)) {
                return Err(Error::usage(format!(
                    "--freeze {unknown}: {} has no such layer; what there is: backbone, {}",
                    self.name,
                    self.layers().join(", ")
                )));
            }
        }
        for (index, tensor) in self.tensors.iter_mut().enumerate() {
            tensor.frozen = tensor.role == Role::Parameter
                && match which {
                    Frozen::Backbone => !head.contains(&TensorId(index)),
                    Frozen::Layers(prefixes) => prefixes.iter().any(|prefix| is_in(&tensor.name, prefix)),
                };
        }
        match self.tensors.iter().any(Tensor::is_learned) {
            true => Ok(self),
            false => Err(Error::usage("--freeze: nothing would be left to learn; name fewer layers")),
        }
    }

    /// The first part of the parameters' names, each once, in the order of the model.
    fn layers(&self) -> Vec<String> {
        let mut layers: Vec<String> = Vec::new();
        for (_, tensor) in self.with_role(Role::Parameter) {
            let layer = tensor.name.split('.').next().unwrap_or_default();
            if layers.last().is_none_or(|last| last != layer) {
                layers.push(layer.into());
            }
        }
        layers
    }

    /// The parameters of the layers whose outputs the losses read: those that depend on the number of classes.
    /// Auxiliary heads have some too.
    pub fn head(&self) -> Vec<TensorId> {
        let scores = self.nodes.iter().filter(|node| node.op.is_loss()).map(|node| node.inputs[0]);
        scores.flat_map(|scores| self.parameters_behind(scores)).collect()
    }

    /// The parameters of the last layer with any on the way to a tensor.
    fn parameters_behind(&self, mut id: TensorId) -> Vec<TensorId> {
        while let Some(node) = self.nodes.iter().find(|node| node.outputs.contains(&id)) {
            let is_parameter = |id: &&TensorId| self.tensor(**id).role == Role::Parameter;
            let parameters: Vec<TensorId> = node.inputs.iter().filter(is_parameter).copied().collect();
            if !parameters.is_empty() {
                return parameters;
            }
            id = node.inputs[0];
        }
        Vec::new()
    }
}

/// Whether a tensor belongs to the layer, or the layers, of this name.
fn is_in(tensor: &str, layer: &str) -> bool {
    tensor.strip_prefix(layer).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{BatchNorm, Builder, Conv};

    fn forward() -> Graph {
        let (mut net, x) = Builder::new("two", 2, [1, 6, 6]);
        let x = net.conv("conv1", x, 3, Conv::square(3)).unwrap();
        let x = net.batch_norm("bn1", x, BatchNorm::default()).unwrap();
        let x = net.conv("conv10", x, 3, Conv::square(3)).unwrap();
        let x = net.linear("fc", x, 4);
        net.finish(x).simplify()
    }

    fn learned(graph: &Graph) -> Vec<String> {
        let gradients = graph.with_role(Role::Gradient);
        let mut names: Vec<_> =
            gradients.map(|(_, t)| graph.tensor(t.gradient_of.unwrap()).name.clone()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_frozen_backbone_leaves_the_head_and_no_work_for_what_is_before_it() {
        let graph = forward().freeze(&Frozen::Backbone).unwrap().differentiate();
        assert_eq!(learned(&graph), ["fc.bias", "fc.weight"]);
        // The loss's own gradient and the layer's.
        assert_eq!(graph.nodes.len() - graph.forward_nodes, 2);
    }

    #[test]
    fn layers_are_frozen_by_whole_names_and_pass_gradients_on() {
        let frozen = |names: &[&str]| Frozen::Layers(names.iter().map(|name| name.to_string()).collect());
        let graph = forward().freeze(&frozen(&["conv1", "fc"])).unwrap().differentiate();
        assert_eq!(learned(&graph), ["bn1.bias", "bn1.weight", "conv10.bias", "conv10.weight"]);
        // A normalisation gives all its gradients at once: what is frozen of it is not kept.
        let graph = forward().freeze(&frozen(&["bn1.bias"])).unwrap().differentiate();
        assert!(!learned(&graph).contains(&"bn1.bias".to_string()) && learned(&graph).len() == 7);
        let refused = |names: &[&str]| forward().freeze(&frozen(names)).unwrap_err().message;
        assert!(refused(&["bn1", "conv"]).contains("--freeze conv: two has no such layer"));
        assert!(refused(&["conv1", "bn1", "conv10", "fc"]).contains("nothing would be left"));
    }
}
