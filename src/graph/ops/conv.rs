//! Convolution.

use crate::error::{Error, Result};
use crate::graph::differentiate::BackwardPass;
use crate::graph::{BackwardOp, Binary, Builder, Node, Op, Shape, TensorId, Volume};

/// A convolution's geometry (cross-correlation, as every framework has it).
/// Output depth = `(D + 2·padding[0] − reach[0]) / stride[0] + 1`, rounded down, where a kernel reaches over
/// `dilation[0]·(kernel[0] − 1) + 1` places; height and width likewise. Images have a depth of 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Conv {
    /// Depth, height, width.
    pub kernel: Volume,
    /// Distance of two windows, for depth, height and width.
    pub stride: Volume,
    /// Zeros on both sides, for depth, height and width.
    pub padding: Volume,
    /// Distance of two elements that neighbouring weights are for, at least 1.
    pub dilation: Volume,
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
            kernel: [1, kernel, kernel],
            stride: [1; 3],
            padding: [0; 3],
            dilation: [1; 3],
            groups: 1,
            bias: true,
            relu: false,
        }
    }

    /// The convolution with this stride, for height and width.
    pub fn stride(self, stride: usize) -> Conv {
        Conv { stride: [1, stride, stride], ..self }
    }

    /// The convolution with so many zeros on each side.
    pub fn padding(self, padding: usize) -> Conv {
        Conv { padding: [0, padding, padding], ..self }
    }

    /// The convolution with so many places from one weight's element to the next one's.
    pub fn dilation(self, dilation: usize) -> Conv {
        Conv { dilation: [1, dilation, dilation], ..self }
    }

    /// The convolution of cubes that is along their depth what this one is along the height.
    pub fn cubic(self) -> Conv {
        let deep = |[_, height, width]: Volume| [height, height, width];
        let Conv { kernel, stride, padding, dilation, .. } = self;
        Conv {
            kernel: deep(kernel),
            stride: deep(stride),
            padding: deep(padding),
            dilation: deep(dilation),
            ..self
        }
    }

    /// Whether it does nothing along the depth, so that images have it too.
    pub fn is_flat(&self) -> bool {
        [self.kernel, self.stride, self.padding].map(|of| of[0]) == [1, 1, 0]
    }

    /// What its op is called: a kernel without depth is one of images, plane by plane.
    pub(super) fn named(&self, flat: &'static str, deep: &'static str) -> &'static str {
        if self.kernel[0] > 1 { deep } else { flat }
    }

    /// How many places the kernel reaches over.
    pub fn reach(&self) -> Volume {
        [0, 1, 2].map(|axis| self.dilation[axis] * self.kernel[axis].saturating_sub(1) + 1)
    }

    /// The output size for an input; `None` where the kernel does not fit.
    pub fn windows(&self, input: Volume) -> Option<Volume> {
        windows(input, self.reach(), self.stride, self.padding)
    }

    /// Whether, along each axis, some window has a weight within an input of this size: else all that comes out is the
    /// bias.
    pub fn meets(&self, input: Volume) -> bool {
        let windows = self.windows(input).unwrap_or([0; 3]);
        let along = |axis: usize| {
            let within = |at: usize| (self.padding[axis]..self.padding[axis] + input[axis]).contains(&at);
            let of = |window: usize, weight: usize| window * self.stride[axis] + weight * self.dilation[axis];
            let mut all =
                (0..windows[axis]).flat_map(|at| (0..self.kernel[axis]).map(move |weight| of(at, weight)));
            all.any(within)
        };
        (0..3).all(along)
    }

    /// The size that a transposed convolution gives: the smallest one of which this convolution makes `input`, and
    /// `more` planes, rows and columns, fewer than the stride. `None` where there is none.
    pub fn transposed(&self, input: Volume, more: Volume) -> Option<Volume> {
        let along = |axis: usize| {
            let windows = input[axis].checked_sub(1)?.checked_mul(self.stride[axis])?;
            (windows + self.reach()[axis] + more[axis]).checked_sub(2 * self.padding[axis])
        };
        let size = [along(0)?, along(1)?, along(2)?];
        (self.windows(size) == Some(input) && !size.contains(&0)).then_some(size)
    }
}

/// The output size of a window that slides over an input; `None` where not even one fits.
pub fn windows(input: Volume, kernel: Volume, stride: Volume, padding: Volume) -> Option<Volume> {
    let along = |axis: usize| {
        let room = (input[axis] + 2 * padding[axis]).checked_sub(kernel[axis])?;
        Some(room / stride[axis] + 1)
    };
    Some([along(0)?, along(1)?, along(2)?])
}

impl Builder {
    /// A convolution to `channels` output channels. Parameters `name.weight`, `name.bias`.
    pub fn conv(&mut self, name: &str, x: TensorId, channels: usize, conv: Conv) -> Result<TensorId> {
        let ([_, c], size) = self.image_shape(name, x)?;
        let divides = |channels: usize| conv.groups > 0 && channels.is_multiple_of(conv.groups);
        if !divides(c) || !divides(channels) {
            return Err(Error::usage(format!(
                "layer {name}: {c} input and {channels} output channels do not divide into {} groups",
                conv.groups
            )));
        }
        let to = self.convolved(name, x, (channels, size), conv)?;
        let volume = conv.kernel.iter().product::<usize>();
        // As PyTorch counts: groups divide what an output reads, not how many there are.
        let (fan_in, fan_out) = (c / conv.groups * volume, channels * volume);
        let [weight, bias] = self.convolutions.map(|start| start.of(fan_in, fan_out));
        let shape = to.with_spatial([channels, c / conv.groups], conv.kernel);
        let mut inputs = vec![x, self.weight(name, shape, weight)];
        if conv.bias {
            inputs.push(self.bias(name, channels, bias));
        }
        Ok(self.node(name, Op::Conv(conv), inputs, to))
    }

    /// The shape that a convolution gives to so many channels.
    fn convolved(
        &self,
        name: &str,
        x: TensorId,
        (channels, size): (usize, Volume),
        conv: Conv,
    ) -> Result<Shape> {
        self.has_depth_of(name, x, conv.is_flat())?;
        let to = conv.windows(size);
        let to = to.ok_or_else(|| self.too_small(name, x, conv.reach(), conv.padding))?;
        Ok(self.shape(x).with_spatial([self.shape(x).batch(), channels], to))
    }

    /// A convolution with a weight that is computed, or that several layers have; without bias.
    ///
    /// # Errors
    /// `Usage` where the weight is for other channels, or the image is too small.
    pub fn conv_of(&mut self, name: &str, x: TensorId, weight: TensorId, conv: Conv) -> Result<TensorId> {
        let (([_, c], size), ([o, i], _)) = (self.image_shape(name, x)?, self.image_shape(name, weight)?);
        if conv.groups == 0 || i.checked_mul(conv.groups) != Some(c) || !o.is_multiple_of(conv.groups) {
            let of = self.shape(weight);
            return Err(Error::usage(format!(
                "layer {name}: a weight {of} for {c} channels in {} groups",
                conv.groups
            )));
        }
        let to = self.convolved(name, x, (o, size), conv)?;
        let conv = Conv { bias: false, ..conv };
        Ok(self.node(name, Op::Conv(conv), vec![x, weight], to))
    }

    /// A transposed convolution to `channels` output channels: what takes gradients back through `conv`, as a layer
    /// (Zeiler, Krishnan, Taylor, Fergus 2010). `more` is PyTorch's `output_padding`. Parameters `name.weight`, of the
    /// shape (input channels, `channels`/groups, height, width), with a depth before these for cubes, and `name.bias`.
    ///
    /// # Errors
    /// `Usage` where channels do not divide into groups, or no image has this size.
    pub fn conv_transpose(
        &mut self,
        name: &str,
        x: TensorId,
        channels: usize,
        conv: Conv,
        more: Volume,
    ) -> Result<TensorId> {
        let ([n, c], size) = self.image_shape(name, x)?;
        self.has_depth_of(name, x, conv.is_flat() && more[0] == 0)?;
        let divides = |channels: usize| conv.groups > 0 && channels.is_multiple_of(conv.groups);
        let to = conv.transposed(size, more).filter(|_| divides(c) && divides(channels));
        let to = to.ok_or_else(|| {
            let of = self.shape(x);
            Error::usage(format!(
                "layer {name}: no transposed convolution of {of}, from {c} to {channels} channels: {conv:?}"
            ))
        })?;
        let like = self.shape(x).clone();
        let volume = conv.kernel.iter().product::<usize>();
        let (fan_in, fan_out) = (channels / conv.groups * volume, c * volume);
        let [weight, bias] = self.convolutions.map(|start| start.of(fan_in, fan_out));
        let shape = like.with_spatial([c, channels / conv.groups], conv.kernel);
        let weight = self.weight(name, shape, weight);
        let op = Op::ConvBackwardData(Conv { bias: false, relu: false, ..conv });
        let y = self.node(name, op, vec![x, weight], like.with_spatial([n, channels], to));
        if !conv.bias {
            return Ok(y);
        }
        let bias = self.bias(name, channels, bias);
        let bias = self.reshape(&format!("{name}.bias.of_channels"), bias, like.of_channels(channels))?;
        self.binary(&format!("{name}.add"), Binary::Add, y, bias)
    }
}

pub fn backward(b: &mut BackwardPass, node: &Node, conv: Conv, mut dy: TensorId) {
    if conv.relu {
        dy = b.relu(node, dy);
    }
    let (x, w) = (node.inputs[0], node.inputs[1]);
    b.weights(BackwardOp::ConvWeights(conv), x, dy, &node.inputs[1..]);
    if b.needs(x) {
        let dx = b.node(Op::ConvBackwardData(conv), vec![dy, w], x);
        b.contribute(x, dx);
    }
}

/// Differentiates a transposed convolution. Its gradients are the convolution itself, and that of the convolution's
/// weights with x and dy in each other's place.
pub fn transposed_backward(b: &mut BackwardPass, node: &Node, conv: Conv, dy: TensorId) {
    let (x, w) = (node.inputs[0], node.inputs[1]);
    b.weights(BackwardOp::ConvWeights(conv), dy, x, &node.inputs[1..]);
    if b.needs(x) {
        let dx = b.node(Op::Conv(conv), vec![dy, w], x);
        b.contribute(x, dx);
    }
}
