//! The ops: what each computes, on which inputs, giving which outputs.
//!
//! Tensors are named in the order in which a node lists them. `x` is an op's input, `y` its output, `w`
//! the weight, `b` the bias; `d…` is the loss gradient of …. Arithmetic and sums are f32; a tensor
//! may be stored as bf16, rounded to the nearest once, when all of an element is there.

/// A convolution's geometry (cross-correlation, as every framework has it).
/// Output height = `(H + 2·padding[0] − kernel[0]) / stride[0] + 1`, rounded down; width likewise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Conv2d {
    /// Height, width.
    pub kernel: [usize; 2],
    /// Distance of two windows, for height and width.
    pub stride: [usize; 2],
    /// Zeros on both sides, for height and width.
    pub padding: [usize; 2],
    /// Input and output channels fall into this many independent groups.
    pub groups: usize,
    /// Whether there is a bias input.
    pub bias: bool,
    /// Whether a ReLU is applied to the output (put there by `simplify`).
    pub relu: bool,
}

impl Conv2d {
    /// A square kernel with stride 1, no padding, one group, a bias.
    pub fn square(kernel: usize) -> Conv2d {
        Conv2d { kernel: [kernel; 2], stride: [1; 2], padding: [0; 2], groups: 1, bias: true, relu: false }
    }

    /// The same with this stride, for height and width.
    pub fn stride(self, stride: usize) -> Conv2d {
        Conv2d { stride: [stride; 2], ..self }
    }

    /// The same with so many zeros on each side.
    pub fn padding(self, padding: usize) -> Conv2d {
        Conv2d { padding: [padding; 2], ..self }
    }
}

/// A pooling's geometry; output size as for a convolution, but see `ceil`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pool2d {
    /// Height, width.
    pub kernel: [usize; 2],
    /// Distance of two windows, for height and width.
    pub stride: [usize; 2],
    /// Places on both sides that count as not there, for height and width.
    pub padding: [usize; 2],
    /// Average pooling only: whether the padding's zeros count in the divisor.
    pub count_include_pad: bool,
    /// Max pooling only: whether a last window that reaches beyond the padding counts too, where it begins in the
    /// image or the padding before it (PyTorch's `ceil_mode`).
    pub ceil: bool,
}

impl Pool2d {
    /// Square windows side by side, no padding.
    pub fn square(kernel: usize) -> Pool2d {
        Pool2d {
            kernel: [kernel; 2],
            stride: [kernel; 2],
            padding: [0; 2],
            count_include_pad: true,
            ceil: false,
        }
    }

    /// The same, keeping a last window that reaches beyond the padding.
    pub fn ceil(self) -> Pool2d {
        Pool2d { ceil: true, ..self }
    }

    /// The same with this stride, for height and width.
    pub fn stride(self, stride: usize) -> Pool2d {
        Pool2d { stride: [stride; 2], ..self }
    }

    /// The same with this padding on each side.
    pub fn padding(self, padding: usize) -> Pool2d {
        Pool2d { padding: [padding; 2], ..self }
    }

    /// The output size (height, width) for an input; `None` where not even one window fits.
    pub fn windows(&self, input: [usize; 2]) -> Option<[usize; 2]> {
        if !self.ceil {
            return windows(input, self.kernel, self.stride, self.padding);
        }
        let along = |axis: usize| {
            let (stride, end) = (self.stride[axis], input[axis] + self.padding[axis]);
            let room = (end + self.padding[axis] + stride - 1).checked_sub(self.kernel[axis])?;
            let count = room / stride + 1;
            // One that begins in the padding behind the image would cover nothing.
            Some(if (count - 1) * stride >= end { count - 1 } else { count })
        };
        Some([along(0)?, along(1)?])
    }
}

/// Local response normalisation across channels (Krizhevsky, Sutskever, Hinton 2012), in PyTorch's terms.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LocalResponseNorm {
    /// How many neighbouring channels are summed, the channel itself in their middle: odd.
    pub size: usize,
    /// Divided by `size` before use.
    pub alpha: f32,
    /// The exponent.
    pub beta: f32,
    /// Added to the sum of squares.
    pub k: f32,
}

impl Default for LocalResponseNorm {
    /// PyTorch's numbers, five channels.
    fn default() -> LocalResponseNorm {
        LocalResponseNorm { size: 5, alpha: 1e-4, beta: 0.75, k: 1.0 }
    }
}

/// Batch normalisation (Ioffe and Szegedy 2015) over N, H and W, for each channel by itself.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BatchNorm {
    /// Added to the variance.
    pub epsilon: f32,
    /// The share of the newest batch in the running statistics: running = (1 − momentum)·running + momentum·batch.
    pub momentum: f32,
    /// Whether a ReLU is applied to the output (put there by `simplify`).
    pub relu: bool,
    /// Whether another tensor is added before that ReLU (put there by `simplify`, with `relu`).
    pub add: bool,
}

impl Default for BatchNorm {
    /// PyTorch's numbers.
    fn default() -> BatchNorm {
        BatchNorm { epsilon: 1e-5, momentum: 0.1, relu: false, add: false }
    }
}

/// The output size (height, width) of a window that slides over an input; `None` where not even one fits.
pub fn windows(
    input: [usize; 2],
    kernel: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 2],
) -> Option<[usize; 2]> {
    let along = |axis: usize| {
        let room = (input[axis] + 2 * padding[axis]).checked_sub(kernel[axis])?;
        Some(room / stride[axis] + 1)
    };
    Some([along(0)?, along(1)?])
}

/// The part of an axis of length `input` that element `index` of `output` elements averages in adaptive pooling:
/// from ⌊index·input/output⌋ up to ⌈(index+1)·input/output⌉, as PyTorch has it. Parts overlap where the lengths do not
/// divide; where the output is longer, neighbours share elements.
pub fn adaptive_window(index: usize, input: usize, output: usize) -> std::ops::Range<usize> {
    index * input / output..((index + 1) * input).div_ceil(output)
}

/// An op of the graph. The comment shows inputs → outputs with their shapes.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs, reason = "the comment of an op explains its fields")]
pub enum Op {
    /// pixels (N,H,W,C), labels (N) → y (N,C,H,W) = `pixels·scale[c] + shift[c]`, each operation rounded; 0 where the label is
    /// below 0, which marks a place without an image. C is 3 at most.
    Normalise { scale: [f32; 3], shift: [f32; 3] },

    /// x (N,C,H,W), w (O,C/groups,kh,kw), b (O)? → y (N,O,OH,OW)
    Conv2d(Conv2d),
    /// dy (N,O,OH,OW), w → dx (N,C,H,W). `relu` is ignored: dy is already that of the convolution.
    Conv2dBackwardData(Conv2d),
    /// dy, w, r (N,C,H,W) → dx, but 0 where r ≤ 0: the gradient of what went into the ReLU that gave r (`Graph::join`).
    Conv2dBackwardDataRelu(Conv2d),
    /// x, dy → dw, db?
    Conv2dBackwardWeights(Conv2d),
    /// x, w → y, moments (2,O): mean and variance of each channel of y, as `BatchNormMoments` (`Graph::join`).
    Conv2dMoments(Conv2d),

    /// x (N,…) with I elements a sample, w (O,I), b (O)? → y (N,O) = x·wᵀ + b, then ReLU if `relu`.
    /// x may have four dimensions: it is read as if flattened.
    Linear { bias: bool, relu: bool },
    /// dy (N,O), w (O,I) → dx (N,…)
    LinearBackwardData { bias: bool },
    /// x (N,…), dy (N,O) → dw (O,I), db (O)?
    LinearBackwardWeights { bias: bool },

    /// x (N,C,H,W), w, b, running mean, running variance (C each) → y, mean, variance, running mean, running variance,
    /// saved (where y > 0; only with `relu`). y = (x − mean)/√(variance + epsilon)·w + b, then ReLU if `relu`, with
    /// mean and variance (of n = N·H·W values, divided by n) those of the batch. The running variance takes in the
    /// unbiased one, divided by n − 1. In a graph the running statistics are the same tensors before and after.
    /// With `add` another input z (N,C,H,W) comes last, y = ReLU((x − mean)/√(variance + epsilon)·w + b + z), and nothing is saved.
    BatchNorm(BatchNorm),
    /// x, w, b, mean, variance → y, saved (as above; where a backward op follows), normalised with the given mean and
    /// variance: running ones in evaluation, those of the batch where a normalisation is computed again. With `add` z comes last.
    BatchNormInference(BatchNorm),
    /// dy, x, w, mean, variance, saved (only with `relu`) → dx, dw, db. With `add` it is dy, x, w, mean, variance, y →
    /// dz, dw, db, dx, where dz is dy where y > 0, else 0.
    BatchNormBackward(BatchNorm),

    /// As `BatchNorm`, with the moments (2,C) of x as another, last input (`Graph::join`).
    BatchNormOfMoments(BatchNorm),

    /// x (N,C,H,W) → moments (2,C): mean and variance (of n = N·H·W values, divided by n).
    BatchNormMoments,
    /// x → y (R, the shape of x): the x of each of R ranks, in their order. A device knows one rank only: on it every
    /// row is this rank's x. Whoever runs the steps of several ranks puts theirs there (`plan::Exchange`).
    Exchange { ranks: usize },
    /// x, w, b, running mean, running variance, moments (R,2,C) → y, mean, variance, running mean, running variance.
    /// As `BatchNorm`, of a batch of which R ranks have equal parts: n = R·N·H·W. Nothing is saved for `relu`: the
    /// backward ops compute again whether y > 0.
    SyncBatchNorm(BatchNorm),
    /// x, w, b, mean, variance → y, to the bit what `SyncBatchNorm` gave with them: for `recompute`.
    SyncBatchNormAgain(BatchNorm),
    /// dy, x, w, b, mean, variance → sums (2,C), dw, db of this rank's part alone. The sums are Σ dy and Σ dy·x̂ with x̂
    /// the normalised x, which are db and dw; dy counts as 0 where a ReLU made y 0.
    SyncBatchNormSums(BatchNorm),
    /// dy, x, w, b, mean, variance, sums (R,2,C) → dx
    SyncBatchNormBackward(BatchNorm),

    /// x → y = x/(k + alpha/size·s)^beta with s the sum of squares of the `size` channels around x's own
    /// (N,C,H,W), saved
    LocalResponseNorm(LocalResponseNorm),
    /// dy, x, saved → dx
    LocalResponseNormBackward(LocalResponseNorm),

    /// x → y = min(max(x, 0), max). `max` is infinite for the plain one, 6 for ReLU6.
    Relu { max: f32 },
    /// dy, y → dx = dy where 0 < y < max, else 0
    ReluBackward { max: f32 },

    /// x (N,C,H,W) → y (N,C,OH,OW), saved (which element won each window; the first among equals)
    MaxPool(Pool2d),
    /// dy, saved → dx
    MaxPoolBackward(Pool2d),
    /// x → y
    AvgPool(Pool2d),
    /// dy → dx
    AvgPoolBackward(Pool2d),
    /// x (N,C,H,W) → y (N,C,OH,OW), each element the mean of its `adaptive_window`s over height and width
    AdaptiveAvgPool,
    /// dy → dx
    AdaptiveAvgPoolBackward,

    /// x → y = x·m/(1−p), where m is 0 with probability p: in step t, element e of the sample at global position
    /// s is dropped when uniform(word e mod 4 of philox(key(seed, Dropout, layer), [e/4, s, t, t >> 32])) < p.
    /// Nothing is stored: the backward op computes the same mask.
    Dropout { p: f32, layer: u32 },
    /// dy → dx = dy·m/(1−p)
    DropoutBackward { p: f32, layer: u32 },

    /// x (N,…) → y: the same elements in logical order under another shape.
    Reshape,
    /// Any number of x (N,Cᵢ,H,W) → y (N,ΣCᵢ,H,W): their channels one after the other.
    Concat,
    /// x (N,C,H,W) → y (N,C',H,W): C' channels from channel `from` on. The backward op of a concatenation, one for each
    /// of its inputs.
    Slice { from: usize },
    /// a, b → y = a + b, then ReLU if `relu` (put there by `simplify`)
    Add { relu: bool },

    /// logits (N,K), labels (N) → losses (N), hits (N). A label below 0 marks a sample that only fills
    /// the batch: loss 0, hit 0, gradient 0. A hit is 1 where the first largest logit is the label's.
    /// The target is (1 − smoothing)·onehot + smoothing/K (Szegedy et al. 2016, as PyTorch has it). The losses are
    /// multiplied by `weight`: less than 1 for auxiliary heads.
    SoftmaxCrossEntropy { smoothing: f32, weight: f32 },
    /// logits (N,K), labels (N) → dlogits = (softmax − target)·weight·gradient_scale, the scale that of the run
    /// (`Scalars::gradient_scale`): one over the global batch, so that gradients summed over ranks are means.
    SoftmaxCrossEntropyBackward { smoothing: f32, weight: f32 },
    /// logits (N,K), labels (N), others (N), shares (N) → losses, hits: as `SoftmaxCrossEntropy` where a sample's target is
    /// share λ (0 to 1) of its label and 1 − λ of its other one (mixup, cutmix), so that with label smoothing s it is
    /// (1−s)·(λ·onehot(label) + (1−λ)·onehot(other)) + s/K. A hit is one of the label with the larger share, the first
    /// of two equal ones. A sample with a label below 0 counts nowhere.
    MixedCrossEntropy { smoothing: f32, weight: f32 },
    /// logits, labels, others, shares → dlogits, as `SoftmaxCrossEntropyBackward`.
    MixedCrossEntropyBackward { smoothing: f32, weight: f32 },
}

impl Op {
    /// The name shown in tables.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Normalise { .. } => "normalise",
            Op::Conv2d(c) if c.relu => "conv2d+relu",
            Op::Conv2d(_) => "conv2d",
            Op::Conv2dBackwardData(_) => "conv2d backward data",
            Op::Conv2dBackwardDataRelu(_) => "conv2d backward data+relu",
            Op::Conv2dBackwardWeights(_) => "conv2d backward weights",
            Op::Conv2dMoments(_) => "conv2d+moments",
            Op::Linear { relu: true, .. } => "linear+relu",
            Op::Linear { .. } => "linear",
            Op::LinearBackwardData { .. } => "linear backward data",
            Op::LinearBackwardWeights { .. } => "linear backward weights",
            Op::BatchNorm(norm) | Op::BatchNormOfMoments(norm) | Op::BatchNormInference(norm) => {
                match (norm.add, norm.relu) {
                    (true, _) => "batch norm+add+relu",
                    (false, true) => "batch norm+relu",
                    (false, false) => "batch norm",
                }
            }
            Op::BatchNormBackward(norm) if norm.add => "batch norm+add+relu backward",
            Op::BatchNormBackward(_) => "batch norm backward",
            Op::BatchNormMoments => "batch norm moments",
            Op::Exchange { .. } => "exchange",
            Op::SyncBatchNorm(norm) if norm.relu => "sync batch norm+relu",
            Op::SyncBatchNorm(_) => "sync batch norm",
            Op::SyncBatchNormAgain(_) => "sync batch norm again",
            Op::SyncBatchNormSums(_) => "sync batch norm sums",
            Op::SyncBatchNormBackward(_) => "sync batch norm backward",
            Op::LocalResponseNorm(_) => "local response norm",
            Op::LocalResponseNormBackward(_) => "local response norm backward",
            Op::Relu { max } if max.is_infinite() => "relu",
            Op::Relu { max: 6.0 } => "relu6",
            Op::Relu { .. } => "clipped relu",
            Op::ReluBackward { .. } => "relu backward",
            Op::MaxPool(_) => "max pool",
            Op::MaxPoolBackward(_) => "max pool backward",
            Op::AvgPool(_) => "avg pool",
            Op::AvgPoolBackward(_) => "avg pool backward",
            Op::AdaptiveAvgPool => "adaptive avg pool",
            Op::AdaptiveAvgPoolBackward => "adaptive avg pool backward",
            Op::Dropout { .. } => "dropout",
            Op::DropoutBackward { .. } => "dropout backward",
            Op::Reshape => "reshape",
            Op::Concat => "concat",
            Op::Slice { .. } => "slice",
            Op::Add { relu: true } => "add+relu",
            Op::Add { .. } => "add",
            Op::SoftmaxCrossEntropy { .. } => "softmax cross-entropy",
            Op::SoftmaxCrossEntropyBackward { .. } => "softmax cross-entropy backward",
            Op::MixedCrossEntropy { .. } => "mixed cross-entropy",
            Op::MixedCrossEntropyBackward { .. } => "mixed cross-entropy backward",
        }
    }
}
