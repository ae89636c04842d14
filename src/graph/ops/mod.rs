//! The ops: what each computes, on which inputs, giving which outputs.
//!
//! A family of ops has a file, with its settings, how a layer of it is added to a network (`Builder`: shapes,
//! parameters) and how it is differentiated; here they are one type, with the table of their names and work.
//!
//! Tensors are named in the order in which a node lists them. `x` is an op's input, `y` its output, `w`
//! the weight, `b` the bias; `d…` is the loss gradient of …. Arithmetic and sums are f32; a tensor
//! may be stored as bf16, rounded to the nearest once, when all of an element is there.

mod activation;
mod arrange;
mod backward;
mod broadcast;
mod conv;
mod dropout;
mod fused;
mod layer_norm;
mod linear;
mod loss;
mod matmul;
mod norm;
mod pool;
mod resize;

pub use activation::Activation;
pub use arrange::Permutation;
pub use backward::BackwardOp;
pub use broadcast::Binary;
pub use conv::{Conv, windows};
pub use fused::FusedOp;
pub use loss::FieldLoss;
pub use matmul::MatMul;
pub use norm::{BatchNorm, LocalResponseNorm, NormStatistics};
pub use pool::{Pool, adaptive_window};
pub use resize::{Interpolation, Resize, ResizeCoordinates};

use super::differentiate::BackwardPass;
use super::{Halo, Node, Rows, Spec, TensorId, Trade};

/// An op of the graph: one of a forward pass, which differentiation and files know, of a backward pass, or several in
/// one. The comment shows inputs → outputs with their shapes.
#[allow(missing_docs, reason = "the comment of an op explains its fields")]
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Op {
    /// pixels (N,H,W,C), labels (N) → y (N,C,H,W) = `pixels·scale[c] + shift[c]`, each operation rounded; 0 where the
    /// label is below 0, which marks a place without an image. C is 3 at most.
    Normalise { scale: [f32; 3], shift: [f32; 3] },

    /// codes (N,…), samples (N), which (R), tables (T, codes) → y (N,…): the numbers of a sample are R runs of one
    /// length, and those of run r become `tables[which[r]][code]`. Where `samples` is below 0 there is no sample: y is
    /// 0 there, or NaN of a target.
    Lookup { is_target: bool },

    /// x (N,C,H,W), w (O,C/groups,kh,kw), b (O)? → y (N,O,OH,OW); of cubes (N,C,D,H,W) and so on, as all that is said
    /// here of images.
    Conv(Conv),
    /// dy (N,O,OH,OW), w → dx (N,C,H,W). `relu` is ignored: dy is already that of the convolution. In a forward pass it
    /// is a transposed convolution, whose gradients are `Conv` and `BackwardOp::ConvWeights`.
    ConvBackwardData(Conv),

    /// x (N,…) with I elements a sample, w (O,I), b (O)? → y (N,O) = x·wᵀ + b, then ReLU if `relu`.
    /// x may have four dimensions: it is read as if flattened.
    Linear { bias: bool, relu: bool },

    /// x (N,C,H,W) → moments (2,C): mean and variance (of n = N·H·W values, divided by n).
    BatchNormMoments,
    /// x → y (R, the shape of x): the x of each of R ranks, in their order. A device knows one rank only: on it every
    /// row is this rank's x. Whoever runs the steps of several ranks puts theirs there (`plan::Exchange`). With `rows`
    /// ranks have unlike many rows of images, and what is put there is `NormStatistics::even_out` of theirs.
    Exchange { ranks: usize, rows: Option<(NormStatistics, Rows)> },
    /// x (R,…) → y (R,…): from each of R ranks what its x has in the row of this one. On a device alone y is x, as
    /// above. It is its own gradient.
    AllToAll { ranks: usize },
    /// x (N,C,H,W), w, b, running mean, running variance (C each) → y, mean, variance, running mean, running variance,
    /// saved (where y > 0; only with `relu`). y = (x − mean)/√(variance + epsilon)·w + b, then ReLU if `relu`, with
    /// mean and variance (of n = N·H·W values, divided by n) those of the batch. The running variance takes in the
    /// unbiased one, divided by n − 1. In a graph the running statistics are the same tensors before and after.
    /// With `add` another input z (N,C,H,W) follows, y = ReLU((x − mean)/√(variance + epsilon)·w + b + z), and nothing
    /// is saved, unless the device wants it (`OpFusions::mask`).
    /// With `given` the last input is moments (R,2,C), or (2,C): of a batch of which R ranks have equal parts, n =
    /// R·N·H·W. Over ranks nothing is saved for `relu`: the backward ops compute again whether y > 0.
    BatchNorm(BatchNorm),
    /// x, w, b, mean, variance → y, saved (as above; where a backward op follows), normalised with the given mean and
    /// variance: running ones in evaluation, those of the batch where a normalisation is computed again, to the bit
    /// what it gave the first time. With `add` z comes last.
    BatchNormInference(BatchNorm),

    /// x → y = x/(k + alpha/size·s)^beta with s the sum of squares of the `size` channels around x's own
    /// (N,C,H,W), saved
    LocalResponseNorm(LocalResponseNorm),

    /// x, w, b (only with `affine`) → y, mean, variance: each row normalised by itself, y = (x − mean)/√(variance +
    /// epsilon)·w + b. There are as many rows as means; w and b have an element for each of a row.
    LayerNorm { epsilon: f32, affine: bool },

    /// a (…,M,K), b (…,K,N) → y (…,M,N) = scale·a·b, for each matrix of a batch; either may be kept transposed
    MatMul(MatMul),
    /// x → y = e^x over its sum along the last axis
    Softmax,

    /// x → y = f(x)
    Activation(Activation),

    /// x (N,C,H,W) → y (N,C,OH,OW), saved (which element won each window; the first among equals)
    MaxPool(Pool),
    /// x → y
    AvgPool(Pool),
    /// x (N,C,H,W) → y (N,C,OH,OW), each element the mean of its `adaptive_window`s over height and width
    AdaptiveAvgPool,

    /// x → y = x·m/(1−p), where m is 0 with probability p: in step t, element e of the sample at global position
    /// s is dropped when uniform(word e mod 4 of philox(key(seed, Dropout, layer), [e/4, s, t, t >> 32])) < p.
    /// Nothing is stored: the backward op computes the same mask.
    /// With `whole` element 0 decides for all of its sample (stochastic depth, Huang et al. 2016).
    Dropout { p: f32, layer: u32, whole: bool },

    /// x (N,…) → y: the same elements in logical order under another shape.
    Reshape,
    /// Any number of x → y: one after the other along an axis, of channels that is (N,Cᵢ,H,W) → (N,ΣCᵢ,H,W).
    Concat { axis: usize },
    /// x → y: as many as y has along an axis, from `from` on. The backward op of a concatenation, one for each of its
    /// inputs, and of `Pad`.
    Slice { axis: usize, from: usize },
    /// x → y: zeros, but for x, which begins at `before` along an axis. The backward op of `Slice`.
    Pad { axis: usize, before: usize },
    /// Rows of images that are cut over ranks: x (N,C,h,W), of this rank → y (N,C,h',W), what a layer's windows, or the
    /// layer, need. `Graph::trade_rows` makes other ops of it.
    Halo(Halo),
    /// strips … → strips …, all (N,C,rows,W): what other ranks of a group are told, and what they tell. A device leaves
    /// the strips that come as they are: whoever runs the steps of several ranks puts them there (`plan::Exchange`).
    Trade(Trade),
    /// x → y: the same elements with their axes in another order.
    Permute(Permutation),
    /// a, b → y = a + b, then ReLU if `relu` (put there by `simplify`)
    Add { relu: bool },

    /// a, b → y = a ∘ b, either stretched over the other as numpy has it: aligned at their last axes, along which an
    /// axis of 1 or none takes the other's extent.
    Binary(Binary),
    /// x → y = scale·Σx over the axes where y has 1, or none, and x more: what takes a stretching back.
    Sum { scale: f32 },
    /// x → y = scale·x, stretched.
    Expand { scale: f32 },

    /// logits (N,K), labels (N) → losses (N), hits (N). A label below 0 marks a sample that only fills
    /// the batch: loss 0, hit 0, gradient 0. A hit is 1 where the first largest logit is the label's.
    /// The target is (1 − smoothing)·onehot + smoothing/K (Szegedy et al. 2016, as PyTorch has it). The losses are
    /// multiplied by `weight`: less than 1 for auxiliary heads.
    /// Where samples are mixed (mixup, cutmix) others (N) and shares (N) are inputs too: the target of a sample is
    /// share λ (0 to 1) of its label and 1 − λ of its other one, so that with label smoothing s it is
    /// (1−s)·(λ·onehot(label) + (1−λ)·onehot(other)) + s/K. A hit is one of the label with the larger share, the first
    /// of two equal ones. A sample with a label below 0 counts nowhere.
    SoftmaxCrossEntropy { smoothing: f32, weight: f32 },
    /// output (N,C,…) or (N), target, class weights (C)? → losses (N), sums (N,K): what `Loss` and `Metric` say, of a
    /// sample. The target is f32, of the output's shape, or (N,…) numbers of classes. With weights, and they are of
    /// classes alone, the loss of a point is multiplied by that of its class, smoothing included. A point whose target
    /// is NaN has none; a sample of such points alone, which only fills the batch, has 0 everywhere. With `rows` it is
    /// of those of a place, and gives but what their points add up to, totals (N,T): their part of the loss, how many
    /// have a target, and what the metric wants of them.
    FieldLoss(FieldLoss),
    /// totals (R,N,T) of R places → losses (N), sums (N,K), as above
    FieldMeans(FieldLoss),

    /// One that differentiation adds.
    Backward(BackwardOp),
    /// Several in one kernel.
    Fused(FusedOp),
}

/// One of a node's tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operand {
    Input(usize),
    Output(usize),
}

/// What an op does with its operands, for counting.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Arithmetic {
    /// For each element of `of` a sum of as many products as `filter` has elements without its first dimension. Both
    /// backward passes do the same multiplications as the forward pass.
    Products { of: Operand, filter: Operand },
    /// For each element of output 0 a sum of as many products as operand 0, of such a product, has along one axis.
    Matrices(MatMul),
    /// One operation an element of output 0: bound by memory, not by arithmetic.
    Elements,
    /// Elements are copied, if that.
    Nothing,
}

const FORWARD: Arithmetic = Arithmetic::Products { of: Operand::Output(0), filter: Operand::Input(1) };
const BACKWARD_DATA: Arithmetic = Arithmetic::Products { of: Operand::Input(0), filter: Operand::Input(1) };
const BACKWARD_WEIGHTS: Arithmetic =
    Arithmetic::Products { of: Operand::Input(1), filter: Operand::Output(0) };

impl Op {
    /// The table of ops: the name shown to users, and the work.
    fn row(&self) -> (&'static str, Arithmetic) {
        use Arithmetic::{Elements, Nothing};
        match self {
            Op::Normalise { .. } => ("normalise", Elements),
            Op::Lookup { .. } => ("lookup", Elements),
            Op::Conv(conv) if conv.relu => (conv.named("conv2d+relu", "conv3d+relu"), FORWARD),
            Op::Conv(conv) => (conv.named("conv2d", "conv3d"), FORWARD),
            Op::ConvBackwardData(conv) => {
                (conv.named("conv2d backward data", "conv3d backward data"), BACKWARD_DATA)
            }
            Op::Linear { relu, .. } => (if *relu { "linear+relu" } else { "linear" }, FORWARD),
            Op::BatchNormMoments => ("batch norm moments", Elements),
            Op::Exchange { .. } => ("exchange", Elements),
            Op::AllToAll { .. } => ("all to all", Elements),
            Op::BatchNorm(norm) | Op::BatchNormInference(norm) => (norm.name(), Elements),
            Op::LocalResponseNorm(_) => ("local response norm", Elements),
            Op::LayerNorm { .. } => ("layer norm", Elements),
            Op::MatMul(of) => ("matmul", Arithmetic::Matrices(*of)),
            Op::Softmax => ("softmax", Elements),
            Op::Activation(of) => (of.name(), Elements),
            Op::MaxPool(_) => ("max pool", Elements),
            Op::AvgPool(_) => ("avg pool", Elements),
            Op::AdaptiveAvgPool => ("adaptive avg pool", Elements),
            Op::Dropout { .. } => ("dropout", Elements),
            Op::Reshape => ("reshape", Nothing),
            Op::Concat { .. } => ("concat", Nothing),
            Op::Slice { .. } => ("slice", Nothing),
            Op::Pad { .. } => ("pad", Nothing),
            Op::Halo(_) => ("halo", Nothing),
            Op::Trade(_) => ("trade", Nothing),
            Op::Permute(_) => ("permute", Nothing),
            Op::Add { relu } => (if *relu { "add+relu" } else { "add" }, Elements),
            Op::Binary(of) => (of.name(), Elements),
            Op::Sum { .. } => ("sum", Elements),
            Op::Expand { .. } => ("expand", Nothing),
            Op::SoftmaxCrossEntropy { .. } => ("softmax cross-entropy", Elements),
            Op::FieldLoss(_) => ("field loss", Elements),
            Op::FieldMeans(_) => ("field means", Elements),
            Op::Backward(op) => op.row(),
            Op::Fused(op) => op.row(),
        }
    }

    /// The name shown in tables.
    pub fn name(&self) -> &'static str {
        self.row().0
    }

    /// The same in a message of what it reads first: a convolution of cubes may have a kernel without depth.
    pub fn name_of(&self, input: Option<&Spec>) -> String {
        match input {
            Some(spec) if spec.shape.rank() == 5 => self.name().replace("conv2d", "conv3d"),
            _ => self.name().into(),
        }
    }

    /// Whether it gives losses of scores, its first operand: where gradients begin.
    pub fn is_loss(&self) -> bool {
        matches!(self, Op::SoftmaxCrossEntropy { .. } | Op::FieldLoss(_))
    }

    pub(super) fn work(&self) -> Arithmetic {
        self.row().1
    }

    /// Adds the nodes that give the gradients of a forward node's inputs, `dy` being that of its first output. (A loss
    /// has none.)
    pub(super) fn backward(&self, b: &mut BackwardPass, node: &Node, dy: TensorId) {
        match *self {
            Op::Conv(conv) => conv::backward(b, node, conv, dy),
            Op::ConvBackwardData(conv) => conv::transposed_backward(b, node, conv, dy),
            Op::Linear { bias, relu } => linear::backward(b, node, [bias, relu], dy),
            Op::BatchNorm(norm) => norm::batch_norm_backward(b, node, norm, dy),
            Op::LocalResponseNorm(norm) => norm::local_response_backward(b, node, norm, dy),
            Op::LayerNorm { epsilon, affine } => layer_norm::backward(b, node, (epsilon, affine), dy),
            Op::MatMul(of) => matmul::backward(b, node, of, dy),
            Op::Softmax => b.simple(node, BackwardOp::Softmax, vec![dy, node.outputs[0]]),
            Op::Activation(of) => activation::backward(b, node, of, dy),
            Op::MaxPool(pool) => b.simple(node, BackwardOp::MaxPool(pool), vec![dy, node.outputs[1]]),
            Op::AvgPool(pool) => b.simple(node, BackwardOp::AvgPool(pool), vec![dy]),
            Op::AdaptiveAvgPool => b.simple(node, BackwardOp::AdaptiveAvgPool, vec![dy]),
            Op::Dropout { p, layer, whole } => {
                b.simple(node, BackwardOp::Dropout { p, layer, whole }, vec![dy]);
            }
            Op::AllToAll { ranks } => b.simple(node, Op::AllToAll { ranks }, vec![dy]),
            Op::Reshape => b.simple(node, Op::Reshape, vec![dy]),
            Op::Concat { axis } => arrange::concat_backward(b, node, axis, dy),
            Op::Slice { axis, from } => b.simple(node, Op::Pad { axis, before: from }, vec![dy]),
            Op::Pad { axis, before } => b.simple(node, Op::Slice { axis, from: before }, vec![dy]),
            Op::Permute(order) => b.simple(node, Op::Permute(order.inverse()), vec![dy]),
            Op::Halo(halo) => b.simple(node, BackwardOp::Halo(halo), vec![dy]),
            Op::Add { relu } => arrange::add_backward(b, node, relu, dy),
            Op::Binary(of) => broadcast::binary_backward(b, node, of, dy),
            Op::Sum { scale } => b.simple(node, Op::Expand { scale }, vec![dy]),
            Op::Expand { scale } => b.contribute_sum(node.inputs[0], dy, scale),
            // Integers have no gradients, and nothing learned comes before the moments of another rank.
            Op::Normalise { .. } | Op::Lookup { .. } | Op::BatchNormMoments => {}
            Op::Exchange { .. } | Op::FieldMeans(_) => {}
            Op::SoftmaxCrossEntropy { smoothing, weight } => {
                let op = BackwardOp::SoftmaxCrossEntropy { smoothing, weight };
                b.simple(node, op, node.inputs.clone());
            }
            Op::FieldLoss(of) => b.simple(node, BackwardOp::FieldLoss(of), node.inputs.clone()),
            Op::BatchNormInference(_) | Op::Trade(_) | Op::Backward(_) | Op::Fused(_) => {
                unreachable!("{} in the forward pass of training", self.name())
            }
        }
    }
}
