//! Dropout.

use crate::graph::{Builder, Op, TensorId};

impl Builder {
    /// Drops each element with probability `p` in training; does nothing in evaluation.
    pub fn dropout(&mut self, name: &str, x: TensorId, p: f32) -> TensorId {
        self.dropping(name, x, p, false)
    }

    /// Drops each sample as a whole with probability `p` in training (stochastic depth).
    pub fn drop_samples(&mut self, name: &str, x: TensorId, p: f32) -> TensorId {
        self.dropping(name, x, p, true)
    }

    fn dropping(&mut self, name: &str, x: TensorId, p: f32, whole: bool) -> TensorId {
        let shape = self.shape(x).clone();
        self.dropouts += 1;
        self.node(name, Op::Dropout { p, layer: self.dropouts, whole }, vec![x], shape)
    }
}
