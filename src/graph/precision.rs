//! Lower precision: the same network with narrower numbers between its layers.

use super::{DType, Graph, Op, Role, TensorId};

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
                // The sums of products are f32 until they are stored: the loss may as well have all digits.
                _ if self.is_scored(node.outputs[0]) => continue,
                // What is a parameter, in another shape: f32 until it meets an activation. No shape changes a type.
                Op::Reshape if self.tensor(node.inputs[0]).spec.dtype == DType::F32 => continue,
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

    /// Whether a loss reads this tensor as scores, or what ops without parameters make of it alone.
    fn is_scored(&self, id: TensorId) -> bool {
        self.consumers(id).any(|reader| {
            let reader = self.node(reader);
            let is_alone = reader.inputs.len() == 1 && self.is_scored(reader.outputs[0]);
            reader.inputs[0] == id && (reader.op.is_loss() || is_alone)
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

    /// From the sums of the last products on.
    #[test]
    fn scores_that_no_linear_layer_gives_are_f32_too() {
        let (mut net, x) = Builder::new("small", 2, [1, 8, 8]);
        let x = net.conv2d("conv1", x, 4, Conv2d::square(3)).unwrap();
        let x = net.conv2d("conv2", x, 3, Conv2d::square(1)).unwrap();
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
