//! Lower precision: the same network with narrower numbers between its layers.

use std::collections::HashMap;

use super::{DType, Graph, Node, Op, Role, Spec, Tensor, TensorId};

impl Graph {
    /// The network computing in bf16, which has the range of f32, so that no loss is scaled.
    pub fn in_bf16(self) -> Graph {
        self.narrowed_to(DType::BF16)
    }

    /// The network computing in a half type, as mixed-precision training has it (Micikevicius et al. 2018): activations
    /// and their gradients are of that type, sums are f32. Parameters
    /// and their gradients, statistics, the loss and the scores that a layer gives it stay f32. For a forward graph;
    /// the backward one follows its types.
    pub fn narrowed_to(mut self, half: DType) -> Graph {
        let mut of_losses: Vec<TensorId> = Vec::new();
        let weights = self.computed_weights();
        for node in &self.nodes {
            // These and the losses are what a normalisation gives besides its result.
            let result = match node.op {
                op if op.is_loss() || node.inputs.iter().any(|id| of_losses.contains(id)) => {
                    of_losses.extend(&node.outputs);
                    continue;
                }
                // The sums of products are f32 until they are stored: the loss may as well have all digits.
                _ if self.is_scored(node.outputs[0]) => continue,
                // As parameters are.
                _ if weights[node.outputs[0].0] => continue,
                // What is a parameter, in another shape: f32 until it meets an activation. No shape changes a type.
                Op::Reshape if self.tensor(node.inputs[0]).spec.dtype == DType::F32 => continue,
                _ => node.outputs[0],
            };
            let tensor = &mut self.tensors[result.0];
            if (tensor.role, tensor.spec.dtype) == (Role::Activation, DType::F32) {
                tensor.spec.dtype = half;
            }
        }
        self.convert();
        self
    }

    /// Which tensors weights of convolutions are computed of, and these.
    fn computed_weights(&self) -> Vec<bool> {
        let mut found = vec![false; self.tensors.len()];
        let convolves = |node: &&Node| matches!(node.op, Op::Conv(_) | Op::ConvBackwardData(_));
        self.nodes.iter().filter(convolves).for_each(|node| found[node.inputs[1].0] = true);
        super::with_all_behind(found, &self.nodes)
    }

    /// Whether a loss reads this tensor as scores, or what ops without products make of it and of parameters alone.
    fn is_scored(&self, id: TensorId) -> bool {
        self.consumers(id).any(|reader| {
            let node = self.node(reader);
            let is_kept = |id: &TensorId| matches!(self.tensor(*id).role, Role::Parameter | Role::Statistic);
            let is_alone = self.products(reader) == 0 && node.inputs[1..].iter().all(is_kept);
            node.inputs[0] == id && (node.op.is_loss() || is_alone && self.is_scored(node.outputs[0]))
        })
    }

    /// Images, what is stored and scores are f32 beside what is not: where an op reads and gives numbers of one type,
    /// what it reads becomes that before it.
    fn convert(&mut self) {
        let mut converted: HashMap<TensorId, TensorId> = HashMap::new();
        for mut node in std::mem::take(&mut self.nodes) {
            let wanted = self.tensor(node.outputs[0]).spec.dtype;
            let alike = match node.op {
                Op::Add { .. } | Op::Concat { .. } => node.inputs.len(),
                Op::BatchNorm(_) | Op::BatchNormInference(_) | Op::LocalResponseNorm(_) => 1,
                Op::LayerNorm { .. } | Op::Softmax | Op::Activation(_) | Op::Dropout { .. } => 1,
                Op::MaxPool(_) | Op::AvgPool(_) | Op::AdaptiveAvgPool => 1,
                Op::Pad { .. } | Op::Slice { .. } | Op::Reshape => 1,
                // These read other types as well.
                _ => 0,
            };
            for input in &mut node.inputs[..alike] {
                let Tensor { name, spec, .. } = self.tensor(*input).clone();
                if spec.dtype == wanted {
                    continue;
                }
                let to = *converted.entry(*input).or_insert_with(|| {
                    let name = format!("{name}.{}", if wanted == DType::F32 { "wide" } else { "narrow" });
                    let spec = Spec { dtype: wanted, ..spec };
                    let to = self.add_tensor(Tensor::new(name.clone(), spec, Role::Activation));
                    // A sum gives f32, and what is stretched is of any type.
                    let op = match wanted {
                        DType::F32 => Op::Sum { scale: 1.0 },
                        _ => Op::Expand { scale: 1.0 },
                    };
                    self.nodes.push(Node::new(name, op, vec![*input], vec![to]));
                    to
                });
                *input = to;
            }
            self.nodes.push(node);
        }
        self.forward_nodes = self.nodes.len();
    }
}

#[cfg(test)]
mod tests {
    use crate::graph::{BatchNorm, Builder, Conv, DType, Role};

    #[test]
    fn what_lies_between_layers_is_bf16_and_what_is_learned_f32() {
        let (mut net, x) = Builder::new("small", 2, [1, 8, 8]);
        let x = net.conv("conv", x, 4, Conv::square(3)).unwrap();
        let x = net.batch_norm("norm", x, BatchNorm::default()).unwrap();
        let x = net.relu("relu", x);
        let x = net.linear("fc", x, 3);
        let graph = net.finish(x).simplify().in_bf16().differentiate();
        let dtype = |name: &str| graph.tensors.iter().find(|t| t.name == name).unwrap().spec.dtype;
        for (name, expected) in [
            ("images", DType::F32),
            ("conv", DType::BF16),
            ("relu", DType::BF16),
            ("d relu", DType::BF16),
            ("norm.mean", DType::F32),
            ("norm.running_var", DType::F32),
            ("fc", DType::F32),
            ("loss", DType::F32),
        ] {
            assert_eq!(dtype(name), expected, "{name}");
        }
        for role in [Role::Parameter, Role::Gradient, Role::Statistic, Role::Metric] {
            assert!(graph.with_role(role).all(|(_, tensor)| tensor.spec.dtype == DType::F32), "{role:?}");
        }
    }

    /// From the sums of the last products on.
    #[test]
    fn scores_that_no_linear_layer_gives_are_f32_too() {
        let (mut net, x) = Builder::new("small", 2, [1, 8, 8]);
        let x = net.conv("conv1", x, 4, Conv::square(3)).unwrap();
        let x = net.conv("conv2", x, 3, Conv::square(1)).unwrap();
        let x = net.relu6("relu", x);
        let x = net.global_avg_pool("pool", x).unwrap();
        let x = net.flatten("flatten", x);
        let graph = net.finish(x).simplify().in_bf16().differentiate();
        let dtype = |name: &str| graph.tensors.iter().find(|t| t.name == name).unwrap().spec.dtype;
        for name in ["conv2", "relu", "pool", "flatten", "d flatten", "d conv2"] {
            assert_eq!(dtype(name), DType::F32, "{name}");
        }
        assert_eq!([dtype("conv1"), dtype("d conv1")], [DType::BF16; 2]);
    }
}
