//! Poolings.

use super::conv::windows;
use crate::error::{Error, Result};
use crate::graph::{Builder, Op, Shape, TensorId, Volume};

/// A pooling's geometry; output size as for a convolution, but see `ceil`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pool {
    /// Depth, height, width; images have a depth of 1.
    pub kernel: Volume,
    /// Distance of two windows, for depth, height and width.
    pub stride: Volume,
    /// Places on both sides that count as not there, for depth, height and width.
    pub padding: Volume,
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
            kernel: [1, kernel, kernel],
            stride: [1, kernel, kernel],
            padding: [0; 3],
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
        Pool { stride: [1, stride, stride], ..self }
    }

    /// The pooling with this padding on each side.
    pub fn padding(self, padding: usize) -> Pool {
        Pool { padding: [0, padding, padding], ..self }
    }

    /// The pooling of cubes that is along their depth what this one is along the height.
    pub fn cubic(self) -> Pool {
        let deep = |[_, height, width]: Volume| [height, height, width];
        let Pool { kernel, stride, padding, .. } = self;
        Pool { kernel: deep(kernel), stride: deep(stride), padding: deep(padding), ..self }
    }

    /// Whether it does nothing along the depth, so that images have it too.
    pub fn is_flat(&self) -> bool {
        [self.kernel, self.stride, self.padding].map(|of| of[0]) == [1, 1, 0]
    }

    /// The output size for an input; `None` where not even one window fits.
    pub fn windows(&self, input: Volume) -> Option<Volume> {
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
        Some([along(0)?, along(1)?, along(2)?])
    }

    /// The average pooling that an adaptive one from images of one size to those of another is, where its windows are
    /// alike and equally far from each other.
    pub fn adaptive(input: Volume, output: Volume) -> Option<Pool> {
        let along = |axis: usize| uniform_windows(input[axis], output[axis]);
        let of = [along(0)?, along(1)?, along(2)?];
        Some(Pool {
            kernel: of.map(|[kernel, _]| kernel),
            stride: of.map(|[_, stride]| stride),
            ..Pool::square(1)
        })
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

    /// Average pooling to images or cubes of this size, whatever the input's: `Op::AdaptiveAvgPool`.
    pub fn adaptive_avg_pool(&mut self, name: &str, x: TensorId, size: Volume) -> Result<TensorId> {
        let (first, _) = self.image_shape(name, x)?;
        self.has_depth_of(name, x, size[0] == 1)?;
        let shape = self.shape(x).with_spatial(first, size);
        Ok(self.node(name, Op::AdaptiveAvgPool, vec![x], shape))
    }

    /// The mean of each channel: (N,C,H,W) → (N,C,1,1), and of cubes likewise.
    pub fn global_avg_pool(&mut self, name: &str, x: TensorId) -> Result<TensorId> {
        let (_, kernel) = self.image_shape(name, x)?;
        self.avg_pool(name, x, Pool { kernel, ..Pool::square(1) })
    }

    fn pooled(&self, name: &str, x: TensorId, pool: Pool) -> Result<Shape> {
        let (first, size) = self.image_shape(name, x)?;
        self.has_depth_of(name, x, pool.is_flat())?;
        let to = pool.windows(size);
        let to = to.ok_or_else(|| self.too_small(name, x, pool.kernel, pool.padding))?;
        Ok(self.shape(x).with_spatial(first, to))
    }
}
