//! Convolution.

use crate::error::{Error, Result};
use crate::graph::differentiate::BackwardPass;
use crate::graph::{BackwardOp, Binary, Builder, Node, NodeId, Op, TensorId, dims};

/// A convolution's geometry (cross-correlation, as every framework has it).
/// Output height = `(H + 2·padding[0] − reach[0]) / stride[0] + 1`, rounded down, where a kernel reaches over
/// `dilation[0]·(kernel[0] − 1) + 1` places; width likewise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Conv {
    /// Height, width.
    pub kernel: [usize; 2],
    /// Distance of two windows, for height and width.
    pub stride: [usize; 2],
    /// Zeros on both sides, for height and width.
    pub padding: [usize; 2],
    /// Distance of two elements that neighbouring weights are for, at least 1.
    pub dilation: [usize; 2],
    /// Input and output channels fall into this many independent groups.
    pub groups: usize,
    /// Whether there is a bias input.
    pub bias: bool,
    /// Whether a ReLU is applied to the output (put there by `simplify`).
    pub relu: bool,
}

impl Conv {
    /// A square kernel with stride 1, no padding, one group, a bias.
    pub fn square(kernel: usize) -> Conv {
        Conv {
            kernel: [kernel; 2],
            stride: [1; 2],
            padding: [0; 2],
            dilation: [1; 2],
            groups: 1,
            bias: true,
            relu: false,
        }
    }

    /// The convolution with this stride, for height and width.
    pub fn stride(self, stride: usize) -> Conv {
        Conv { stride: [stride; 2], ..self }
    }

    /// The convolution with so many zeros on each side.
    pub fn padding(self, padding: usize) -> Conv {
        Conv { padding: [padding; 2], ..self }
    }

    /// The convolution with so many places from one weight's element to the next one's.
    pub fn dilation(self, dilation: usize) -> Conv {
        Conv { dilation: [dilation; 2], ..self }
    }

    /// How many places the kernel reaches over.
    pub fn reach(&self) -> [usize; 2] {
        [0, 1].map(|axis| self.dilation[axis] * self.kernel[axis].saturating_sub(1) + 1)
    }

    /// The output size (height, width) for an input; `None` where the kernel does not fit.
    pub fn windows(&self, input: [usize; 2]) -> Option<[usize; 2]> {
        windows(input, self.reach(), self.stride, self.padding)
    }

    /// The size that a transposed convolution gives: the smallest one of which this convolution makes `input`, and
    /// `more` rows and columns, fewer than the stride. `None` where there is none.
    pub fn transposed(&self, input: [usize; 2], more: [usize; 2]) -> Option<[usize; 2]> {
        let along = |axis: usize| {
            let windows = input[axis].checked_sub(1)?.checked_mul(self.stride[axis])?;
            (windows + self.reach()[axis] + more[axis]).checked_sub(2 * self.padding[axis])
        };
        let size = [along(0)?, along(1)?];
        (self.windows(size) == Some(input) && !size.contains(&0)).then_some(size)
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

impl Builder {
    /// A convolution to `channels` output channels. Parameters `name.weight`, `name.bias`.
    pub fn conv(&mut self, name: &str, x: TensorId, channels: usize, conv: Conv) -> Result<TensorId> {
        let [n, c, h, w] = self.image_shape(name, x)?;
        let divides = |channels: usize| conv.groups > 0 && channels.is_multiple_of(conv.groups);
        if !divides(c) || !divides(channels) {
            return Err(Error::usage(format!(
                "layer {name}: {c} input and {channels} output channels do not divide into {} groups",
                conv.groups
            )));
        }
        let size = conv.windows([h, w]);
        let [oh, ow] = size.ok_or_else(|| self.too_small(name, conv.reach(), [h, w], conv.padding))?;
        let [kh, kw] = conv.kernel;
        // As PyTorch counts: groups divide what an output reads, not how many there are.
        let (fan_in, fan_out) = (c / conv.groups * kh * kw, channels * kh * kw);
        let [weight, bias] = self.convolutions.map(|start| start.of(fan_in, fan_out));
        let mut inputs = vec![x, self.weight(name, dims([channels, c / conv.groups, kh, kw]), weight)];
        if conv.bias {
            inputs.push(self.bias(name, channels, bias));
        }
        Ok(self.node(name, Op::Conv(conv), inputs, dims([n, channels, oh, ow])))
    }

    /// A convolution with a weight that is computed, or that several layers have; without bias.
    ///
    /// # Errors
    /// `Usage` where the weight is for other channels, or the image is too small.
    pub fn conv_of(&mut self, name: &str, x: TensorId, weight: TensorId, conv: Conv) -> Result<TensorId> {
        let ([n, c, h, w], [o, i, ..]) = (self.image_shape(name, x)?, self.image_shape(name, weight)?);
        if conv.groups == 0 || i.checked_mul(conv.groups) != Some(c) || !o.is_multiple_of(conv.groups) {
            let of = self.shape(weight);
            return Err(Error::usage(format!(
                "layer {name}: a weight {of} for {c} channels in {} groups",
                conv.groups
            )));
        }
        let size = conv.windows([h, w]);
        let [oh, ow] = size.ok_or_else(|| self.too_small(name, conv.reach(), [h, w], conv.padding))?;
        let conv = Conv { bias: false, ..conv };
        Ok(self.node(name, Op::Conv(conv), vec![x, weight], dims([n, o, oh, ow])))
    }

    /// A transposed convolution to `channels` output channels: what takes gradients back through `conv`, as a layer
    /// (Zeiler, Krishnan, Taylor, Fergus 2010). `more` is PyTorch's `output_padding`. Parameters `name.weight`, of the
    /// shape (input channels, `channels`/groups, height, width), and `name.bias`.
    ///
    /// # Errors
    /// `Usage` where channels do not divide into groups, or no image has this size.
    pub fn conv_transpose(
        &mut self,
        name: &str,
        x: TensorId,
        channels: usize,
        conv: Conv,
        more: [usize; 2],
    ) -> Result<TensorId> {
        let [n, c, h, w] = self.image_shape(name, x)?;
        let divides = |channels: usize| conv.groups > 0 && channels.is_multiple_of(conv.groups);
        let size = conv.transposed([h, w], more).filter(|_| divides(c) && divides(channels));
        let [oh, ow] = size.ok_or_else(|| {
            Error::usage(format!(
                "layer {name}: no transposed convolution of {h}×{w} images, {c} to {channels} channels: {conv:?}"
            ))
        })?;
        let [kh, kw] = conv.kernel;
        let (fan_in, fan_out) = (channels / conv.groups * kh * kw, c * kh * kw);
        let [weight, bias] = self.convolutions.map(|start| start.of(fan_in, fan_out));
        let weight = self.weight(name, dims([c, channels / conv.groups, kh, kw]), weight);
        let op = Op::ConvBackwardData(Conv { bias: false, relu: false, ..conv });
        let y = self.node(name, op, vec![x, weight], dims([n, channels, oh, ow]));
        if !conv.bias {
            return Ok(y);
        }
        let bias = self.bias(name, channels, bias);
        let bias = self.reshape(&format!("{name}.bias.of_channels"), bias, dims([channels, 1, 1]))?;
        self.binary(&format!("{name}.add"), Binary::Add, y, bias)
    }
}

pub fn backward(b: &mut BackwardPass, id: NodeId, node: &Node, conv: Conv, mut dy: TensorId) {
    if conv.relu {
        dy = b.relu(id, node, dy);
    }
    let (x, w) = (node.inputs[0], node.inputs[1]);
    b.weights(id, BackwardOp::ConvWeights(conv), x, dy, &node.inputs[1..]);
    if b.needs(x) {
        let dx = b.node(id, Op::ConvBackwardData(conv), vec![dy, w], x);
        b.contribute(x, dx);
    }
}

/// Differentiates a transposed convolution. Its gradients are the convolution itself, and that of the convolution's
/// weights with x and dy in each other's place.
pub fn transposed_backward(b: &mut BackwardPass, id: NodeId, node: &Node, conv: Conv, dy: TensorId) {
    let (x, w) = (node.inputs[0], node.inputs[1]);
    b.weights(id, BackwardOp::ConvWeights(conv), dy, x, &node.inputs[1..]);
    if b.needs(x) {
        let dx = b.node(id, Op::Conv(conv), vec![dy, w], x);
        b.contribute(x, dx);
    }
}
