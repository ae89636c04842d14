//! Several ops in one kernel, which GPUs have and CPUs do not: what `Graph::fuse` and `Graph::join_norms` make.

use super::{Arithmetic, BACKWARD_DATA, BACKWARD_WEIGHTS, BatchNorm, Conv, FORWARD};

/// Several ops in one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum FusedOp {
    /// dy, w, r (N,C,H,W) → dx, but 0 where r ≤ 0: the gradient of what went into the ReLU that gave r (`Graph::fuse`).
    ConvBackwardDataRelu(Conv),
    /// dy, w, z (N,C,H,W) → dx + z: what is known of the input's gradient by then, with this part of it
    /// (`Graph::fuse`).
    ConvBackwardDataAdd(Conv),
    /// x, w → y, moments (2,O): mean and variance of each channel of y, as `Op::BatchNormMoments` (`Graph::fuse`).
    ConvMoments(Conv),
    /// x (N,C,H,W), w, scale (2,C) → y, moments? (as above): the convolution of ReLU(x·scale + shift), each operation
    /// rounded or not, with scale and shift the rows of the third input (`Graph::join_norms`).
    ConvNormalised(Conv),
    /// x, dy, scale → dw: likewise.
    ConvNormalisedBackwardWeights(Conv),
    /// As `Op::BatchNorm`, but for y scale (2,C): what x is multiplied with, and what is then added, of each channel.
    /// They are rounded to the type of activations, the shift with the scale that is.
    BatchNormScale(BatchNorm),
}

impl FusedOp {
    /// The name shown to users, and the work.
    pub(super) fn row(&self) -> (&'static str, Arithmetic) {
        match self {
            FusedOp::ConvBackwardDataRelu(conv) => {
                (conv.named("conv2d backward data+relu", "conv3d backward data+relu"), BACKWARD_DATA)
            }
            FusedOp::ConvBackwardDataAdd(conv) => {
                (conv.named("conv2d backward data+add", "conv3d backward data+add"), BACKWARD_DATA)
            }
            FusedOp::ConvMoments(conv) => (conv.named("conv2d+moments", "conv3d+moments"), FORWARD),
            FusedOp::ConvNormalised(conv) => (conv.named("conv2d normalised", "conv3d normalised"), FORWARD),
            FusedOp::ConvNormalisedBackwardWeights(conv) => (
                conv.named("conv2d normalised backward weights", "conv3d normalised backward weights"),
                BACKWARD_WEIGHTS,
            ),
            FusedOp::BatchNormScale(_) => ("batch norm scale", Arithmetic::Elements),
        }
    }
}
