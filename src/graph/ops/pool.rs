//! Poolings.

use super::conv::windows;
use crate::error::{Error, Result};
use crate::graph::{Builder, Op, Shape, TensorId, dims};

/// A pooling's geometry; output size as for a convolution, but see `ceil`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pool {
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

impl Pool {
    /// Square windows side by side, no padding.
    pub fn square(kernel: usize) -> Pool {
        Pool {
            kernel: [kernel; 2],
            stride: [kernel; 2],
            padding: [0; 2],
            count_include_pad: true,
            ceil: false,
        }
    }

    /// The pooling, keeping a last window that reaches beyond the padding.
    pub fn ceil(self) -> Pool {
        Pool { ceil: true, ..self }
    }

    /// The pooling with this stride, for height and width.
    pub fn stride(self, stride: usize) -> Pool {
        Pool { stride: [stride; 2], ..self }
    }

    /// The pooling with this padding on each side.
    pub fn padding(self, padding: usize) -> Pool {
        Pool { padding: [padding; 2], ..self }
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

    /// The average pooling that an adaptive one from images of one size to those of another is, where its windows are
    /// alike and equally far from each other.
    pub fn adaptive(input: [usize; 2], output: [usize; 2]) -> Option<Pool> {
        let along = |axis: usize| uniform_windows(input[axis], output[axis]);
        let ([kh, sh], [kw, sw]) = (along(0)?, along(1)?);
        Some(Pool { kernel: [kh, kw], stride: [sh, sw], ..Pool::square(1) })
    }
}

/// Length and distance of the windows of an adaptive pooling, where all are alike.
fn uniform_windows(input: usize, output: usize) -> Option<[usize; 2]> {
    let window = |index| adaptive_window(index, input, output);
    let length = window(0).len();
    let stride = if output > 1 { window(1).start } else { length };
    let alike = (0..output).all(|index| window(index) == (index * stride..index * stride + length));
    (alike && stride > 0).then_some([length, stride])
}

/// The part of an axis of length `input` that element `index` of `output` elements averages in adaptive pooling:
/// from ⌊index·input/output⌋ up to ⌈(index+1)·input/output⌉, as PyTorch has it. Parts overlap where the lengths do not
/// divide; where the output is longer, neighbours share elements.
pub fn adaptive_window(index: usize, input: usize, output: usize) -> std::ops::Range<usize> {
    index * input / output..((index + 1) * input).div_ceil(output)
}

impl Builder {
    /// The largest element of each window.
    ///
    /// # Errors
    /// `Usage` when the image is smaller than a window.
    pub fn max_pool(&mut self, name: &str, x: TensorId, pool: Pool) -> Result<TensorId> {
        let shape = self.pooled(name, x, pool)?;
        Ok(self.saving_node(name, Op::MaxPool(pool), x, shape))
    }

    /// The mean of each window.
    ///
    /// # Errors
    /// `Usage` when the image is smaller than a window.
    pub fn avg_pool(&mut self, name: &str, x: TensorId, pool: Pool) -> Result<TensorId> {
        if pool.ceil {
            return Err(Error::usage(format!("layer {name}: only max pooling may reach beyond the padding")));
        }
        let shape = self.pooled(name, x, pool)?;
        Ok(self.node(name, Op::AvgPool(pool), vec![x], shape))
    }

    /// Average pooling to images of this (height, width), whatever the input's: `Op::AdaptiveAvgPool`.
    pub fn adaptive_avg_pool(&mut self, name: &str, x: TensorId, size: [usize; 2]) -> Result<TensorId> {
        let [n, c, _, _] = self.image_shape(name, x)?;
        Ok(self.node(name, Op::AdaptiveAvgPool, vec![x], dims([n, c, size[0], size[1]])))
    }

    /// The mean of each channel: (N,C,H,W) → (N,C,1,1).
    pub fn global_avg_pool(&mut self, name: &str, x: TensorId) -> Result<TensorId> {
        let [_, _, h, w] = self.image_shape(name, x)?;
        self.avg_pool(name, x, Pool { kernel: [h, w], ..Pool::square(1) })
    }

    fn pooled(&self, name: &str, x: TensorId, pool: Pool) -> Result<Shape> {
        let [n, c, h, w] = self.image_shape(name, x)?;
        let size = pool.windows([h, w]);
        let [oh, ow] = size.ok_or_else(|| self.too_small(name, pool.kernel, [h, w], pool.padding))?;
        Ok(dims([n, c, oh, ow]))
    }
}
