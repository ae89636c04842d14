//! The loss: softmax and cross-entropy.

use crate::graph::{Builder, DType, Op, Role, TensorId};

impl Builder {
    /// Losses and hits.
    pub(in crate::graph) fn loss(
        &mut self,
        name: &str,
        logits: TensorId,
        labels: TensorId,
        weight: f32,
    ) -> [TensorId; 2] {
        let batch = self.shape(labels).clone();
        let op = Op::SoftmaxCrossEntropy { smoothing: 0.0, weight };
        let losses = self.node(name, op, vec![logits, labels], batch.clone());
        let hits = self.tensor(&format!("{name}.hits"), batch, DType::F32, Role::Activation);
        self.nodes.last_mut().expect("the node just added").outputs.push(hits);
        [losses, hits]
    }
}
