//! Lower precision: the same network with narrower numbers between its layers.

use super::{DType, Graph, Op, Role};

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
        for node in &self.nodes {
            // These and the losses are what a normalisation gives besides its result.
            let result = match node.op {
                op if op.is_loss() => continue,
                // Their sums are f32 until they are stored: the loss may as well have all digits.
                Op::Linear { .. } | Op::Conv2d(_) if self.is_scored(node.outputs[0]) => continue,
                _ => node.outputs[0],
            };
            let tensor = &mut self.tensors[result.0];
            // One number a sample: a loss, or a sum of losses.
            if tensor.spec.shape.rank() == 1 {
                continue;
            }
            if (tensor.role, tensor.spec.dtype) == (Role::Activation, DType::F32) {
                tensor.spec.dtype = half;
            }
        }
        self
    }

    /// Whether a loss reads this tensor as scores.
    fn is_scored(&self, id: super::TensorId) -> bool {
        self.consumers(id).any(|reader| {
            let reader = self.node(reader);
            reader.op.is_loss() && reader.inputs[0] == id
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::graph::{BatchNorm, Builder, Conv2d, DType, Role};

    #[test]
    fn what_lies_between_layers_is_bf16_and_what_is_learned_f32() {
        let (mut net, x) = Builder::new("small", 2, [1, 8, 8]);
        let x = net.conv2d("conv", x, 4, Conv2d::square(3)).unwrap();
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
}
