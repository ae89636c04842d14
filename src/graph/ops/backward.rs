//! The ops that differentiation adds (`Op::backward`), each named by the op whose gradients it gives.

use super::{
    Activation, Arithmetic, BACKWARD_DATA, BACKWARD_WEIGHTS, BatchNorm, Conv, FieldLoss, LocalResponseNorm,
    Op, Pool,
};
use crate::graph::Halo;

/// An op of the backward pass. The gradient of a convolution's input is `Op::ConvBackwardData`, which forward passes
/// have too.
#[allow(missing_docs, reason = "the comment of an op explains its fields")]
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum BackwardOp {
    /// x, dy → dw, db?
    ConvWeights(Conv),
    /// dy (N,O), w (O,I) → dx (N,…)
    LinearData { bias: bool },
    /// x (N,…), dy (N,O) → dw (O,I), db (O)?
    LinearWeights { bias: bool },
    /// dy, x, w, b, mean, variance → sums (2,C), dw, db of this rank's part alone. The sums are Σ dy and Σ dy·x̂ with
    /// x̂ the normalised x, which are db and dw; dy counts as 0 where a ReLU made y 0.
    BatchNormSums(BatchNorm),
    /// dy, x, w, mean, variance, saved (only with `relu`) → dx, dw, db. With `add` it is dy, x, w, mean, variance, y
    /// (or what was saved) → dz, dw, db, dx, where dz is dy where y > 0, else 0. With `given` it is dy, x, w, b, mean,
    /// variance, sums (R,2,C) → dx.
    BatchNorm(BatchNorm),
    /// dy, x, saved → dx
    LocalResponseNorm(LocalResponseNorm),
    /// dy, x, w?, mean, variance → dx, dw?, db?
    LayerNorm { epsilon: f32, affine: bool },
    /// dy, y → dx = y·(dy − Σdy·y)
    Softmax,
    /// dy, y or x (`Activation::from_output`) → dx = dy·f′(x)
    Activation(Activation),
    /// dy, saved → dx
    MaxPool(Pool),
    /// dy → dx
    AvgPool(Pool),
    /// dy → dx
    AdaptiveAvgPool,
    /// dy → dx = dy·m/(1−p)
    Dropout { p: f32, layer: u32, whole: bool },
    /// z, x → y: z, with x added to as many as x has along an axis, from `from` on.
    AddSlice { axis: usize, from: usize },
    /// dy → dx: the sum of what all ranks have of each row.
    Halo(Halo),
    /// logits (N,K), labels (N), others?, shares? → dlogits = (softmax − target)·weight·gradient_scale, the scale that
    /// of the run (`Scalars::gradient_scale`): one over the global batch, so that gradients summed over ranks are
    /// means.
    SoftmaxCrossEntropy { smoothing: f32, weight: f32 },
    /// output, target, class weights? → d output, of the sample's loss times `Scalars::gradient_scale`, and of one
    /// place of several times their number, since each has but its own rows; 0 where a point has no target.
    FieldLoss(FieldLoss),
}

impl From<BackwardOp> for Op {
    fn from(op: BackwardOp) -> Op {
        Op::Backward(op)
    }
}

impl BackwardOp {
    /// The name shown to users, and the work.
    pub(super) fn row(&self) -> (&'static str, Arithmetic) {
        use Arithmetic::{Elements, Nothing};
        match self {
            BackwardOp::ConvWeights(conv) => {
                (conv.named("conv2d backward weights", "conv3d backward weights"), BACKWARD_WEIGHTS)
            }
            BackwardOp::LinearData { .. } => ("linear backward data", BACKWARD_DATA),
            BackwardOp::LinearWeights { .. } => ("linear backward weights", BACKWARD_WEIGHTS),
            BackwardOp::BatchNormSums(_) => ("batch norm sums", Elements),
            BackwardOp::BatchNorm(norm) => (norm.backward_name(), Elements),
            BackwardOp::LocalResponseNorm(_) => ("local response norm backward", Elements),
            BackwardOp::LayerNorm { .. } => ("layer norm backward", Elements),
            BackwardOp::Softmax => ("softmax backward", Elements),
            BackwardOp::Activation(of) => (of.backward_name(), Elements),
            BackwardOp::MaxPool(_) => ("max pool backward", Elements),
            BackwardOp::AvgPool(_) => ("avg pool backward", Elements),
            BackwardOp::AdaptiveAvgPool => ("adaptive avg pool backward", Elements),
            BackwardOp::Dropout { .. } => ("dropout backward", Elements),
            BackwardOp::AddSlice { .. } => ("add slice", Elements),
            BackwardOp::Halo(_) => ("halo backward", Nothing),
            BackwardOp::SoftmaxCrossEntropy { .. } => ("softmax cross-entropy backward", Elements),
            BackwardOp::FieldLoss(_) => ("field loss backward", Elements),
        }
    }
}
