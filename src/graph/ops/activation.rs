//! Activations: functions of one number. What is said of one is said here, in one table; devices have a line for it too
//! (CONTRIBUTING.md names the places).

use crate::graph::differentiate::BackwardPass;
use crate::graph::{BackwardOp, Builder, Node, Op, TensorId};

/// What is said of an activation besides its formula.
struct ActivationTraits {
    kind: &'static str,
    backward: &'static str,
    number: Option<f32>,
    reads: Reads,
}

/// What the backward op reads. Where that is y, x may be written over.
#[derive(PartialEq)]
enum Reads {
    X,
    Y,
}

/// Makes the enum from the table below: a variant with its number, its kind, what its backward op reads, and those of
/// it that tests take.
macro_rules! activations {
    ($($(#[$formula:meta])* $variant:ident $({ $(#[$meaning:meta])* $number:ident })?:
        $kind:literal, $reads:ident, [$($example:expr),+];)+) => {
        /// A function y = f(x) of each element by itself.
        #[derive(Debug, Clone, Copy, PartialEq)]
        pub enum Activation {
            $($(#[$formula])* $variant $({ $(#[$meaning])* $number: f32 })?,)+
        }

        impl Activation {
            /// Some of each kind, for tests.
            pub const ALL: &'static [Activation] = &[$($($example),+),+];

            fn row(self) -> ActivationTraits {
                match self {
                    $(Activation::$variant $({ $number })? => ActivationTraits {
                        kind: $kind,
                        backward: concat!($kind, " backward"),
                        number: None$(.or(Some($number)))?,
                        reads: Reads::$reads,
                    },)+
                }
            }
        }
    };
}

activations! {
    /// min(max(x, 0), max). `max` is infinite for the plain one, 6 for ReLU6.
    Relu {
        /// The largest value.
        max
    }: "relu", Y, [Activation::RELU, Activation::RELU6];
    /// x where x > 0, else slope·x (Maas, Hannun and Ng 2013)
    LeakyRelu {
        /// Above 0, so that y has the sign of x.
        slope
    }: "leaky_relu", Y, [Activation::LeakyRelu { slope: 0.01 }, Activation::LeakyRelu { slope: 0.3 }];
    /// 1/(1 + e^−x)
    Sigmoid: "sigmoid", Y, [Activation::Sigmoid];
    /// x/(1 + e^−x) (Elfwing, Uchibe and Doya 2018; also called swish)
    Silu: "silu", X, [Activation::Silu];
    /// x·Φ(x) with Φ the normal distribution's (Hendrycks and Gimpel 2016), exact: by the error function
    Gelu: "gelu", X, [Activation::Gelu];
    /// min(max(x/6 + 1/2, 0), 1) (Howard et al. 2019)
    HardSigmoid: "hardsigmoid", X, [Activation::HardSigmoid];
    /// x·min(max(x/6 + 1/2, 0), 1) (Howard et al. 2019)
    HardSwish: "hardswish", X, [Activation::HardSwish];
    /// (e^x − e^−x)/(e^x + e^−x)
    Tanh: "tanh", Y, [Activation::Tanh];
    /// e^x
    Exp: "exp", Y, [Activation::Exp];
    /// √x, not a number below 0
    Sqrt: "sqrt", Y, [Activation::Sqrt];
}

impl Activation {
    /// The plain one, max(x, 0).
    pub const RELU: Activation = Activation::Relu { max: f32::INFINITY };
    /// ReLU cut off at 6.
    pub const RELU6: Activation = Activation::Relu { max: 6.0 };

    /// What it is, whatever its number: the name of a GPU's kernels too.
    pub fn kind(self) -> &'static str {
        self.row().kind
    }

    /// Its number, where it has one.
    pub fn number(self) -> Option<f32> {
        self.row().number
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
        self.row().backward
    }

    /// Whether the backward op reads y, so that x may be written over; else it reads x.
    pub fn from_output(self) -> bool {
        self.row().reads == Reads::Y
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

pub fn backward(b: &mut BackwardPass, node: &Node, of: Activation, dy: TensorId) {
    let read = if of.from_output() { node.outputs[0] } else { node.inputs[0] };
    b.simple(node, BackwardOp::Activation(of), vec![dy, read]);
}
