//! Activations: functions of one number. What is said of one is said here, a line in each `match`; devices have a line
//! for it too (CONTRIBUTING.md names the places).

use crate::graph::differentiate::Backward;
use crate::graph::{Builder, Node, NodeId, Op, TensorId};

/// A function y = f(x) of each element by itself.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Activation {
    /// min(max(x, 0), max). `max` is infinite for the plain one, 6 for ReLU6.
    Relu {
        /// The largest value.
        max: f32,
    },
    /// 1/(1 + e^−x)
    Sigmoid,
    /// x/(1 + e^−x) (Elfwing, Uchibe and Doya 2018; also called swish)
    Silu,
    /// x·Φ(x) with Φ the normal distribution's (Hendrycks and Gimpel 2016), exact: by the error function
    Gelu,
}

impl Activation {
    /// The plain one, max(x, 0).
    pub const RELU: Activation = Activation::Relu { max: f32::INFINITY };
    /// ReLU cut off at 6.
    pub const RELU6: Activation = Activation::Relu { max: 6.0 };
    /// One of each kind, for tests.
    pub const ALL: [Activation; 5] =
        [Activation::RELU, Activation::RELU6, Activation::Sigmoid, Activation::Silu, Activation::Gelu];

    /// What it is, whatever its number: the name of a GPU's kernels too.
    pub fn kind(self) -> &'static str {
        match self {
            Activation::Relu { .. } => "relu",
            Activation::Sigmoid => "sigmoid",
            Activation::Silu => "silu",
            Activation::Gelu => "gelu",
        }
    }

    /// Its number, where it has one.
    pub fn number(self) -> Option<f32> {
        match self {
            Activation::Relu { max } => Some(max),
            Activation::Sigmoid | Activation::Silu | Activation::Gelu => None,
        }
    }

    /// The name shown in tables.
    pub fn name(self) -> &'static str {
        match self {
            Activation::Relu { max: 6.0 } => "relu6",
            Activation::Relu { max } if max.is_finite() => "clipped relu",
            other => other.kind(),
        }
    }

    /// That of its backward op.
    pub fn backward_name(self) -> &'static str {
        match self {
            Activation::Relu { .. } => "relu backward",
            Activation::Sigmoid => "sigmoid backward",
            Activation::Silu => "silu backward",
            Activation::Gelu => "gelu backward",
        }
    }

    /// Whether the backward op reads y, so that x may be written over; else it reads x.
    pub fn from_output(self) -> bool {
        match self {
            Activation::Relu { .. } | Activation::Sigmoid => true,
            Activation::Silu | Activation::Gelu => false,
        }
    }
}

impl Builder {
    /// This function of each element.
    pub fn activation(&mut self, name: &str, x: TensorId, of: Activation) -> TensorId {
        let shape = self.shape(x).clone();
        self.node(name, Op::Activation(of), vec![x], shape)
    }

    /// The larger of each element and 0.
    pub fn relu(&mut self, name: &str, x: TensorId) -> TensorId {
        self.activation(name, x, Activation::RELU)
    }

    /// ReLU cut off at 6.
    pub fn relu6(&mut self, name: &str, x: TensorId) -> TensorId {
        self.activation(name, x, Activation::RELU6)
    }
}

pub fn backward(b: &mut Backward, id: NodeId, node: &Node, of: Activation, dy: TensorId) {
    let read = if of.from_output() { node.outputs[0] } else { node.inputs[0] };
    b.simple(id, node, Op::ActivationBackward(of), vec![dy, read]);
}
