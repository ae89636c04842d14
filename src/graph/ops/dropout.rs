//! Dropout.

use crate::graph::{Builder, Op, TensorId};

impl Builder {
    /// Drops each element with probability `p` in training; does nothing in evaluation.
    pub fn dropout(&mut self, name: &str, x: TensorId, p: f32) -> TensorId {
        let shape = self.shape(x).clone();
        self.dropouts += 1;
        self.node(name, Op::Dropout { p, layer: self.dropouts }, vec![x], shape)
    }
}
