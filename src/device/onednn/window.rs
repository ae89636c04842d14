//! The geometry that convolutions and poolings share: a window that slides over an image.

use super::sys;
use crate::error::{Error, Result};
use crate::graph::{Conv, Pool};

/// Kernel, stride and padding as the C API takes them.
pub struct WindowGeometry {
    pub kernel: sys::Dims,
    pub stride: sys::Dims,
    /// Before the image.
    pub padding: sys::Dims,
    /// After it: the same, or as far as the last window of a pooling reaches.
    pub padding_after: sys::Dims,
    /// Dilation as oneDNN counts it: 0 is none.
    pub dilation: sys::Dims,
}

impl WindowGeometry {
    pub fn of_conv(conv: &Conv, input: [usize; 4], output: [usize; 4]) -> Result<WindowGeometry> {
        let Conv { stride, padding, dilation, .. } = *conv;
        if dilation.contains(&0) {
            return Err(Error::usage(format!("dilation {dilation:?} must be at least 1")));
        }
        // Of a convolution the weights say what its kernel is; here it is as long as it reaches.
        let kernel = if conv.kernel.contains(&0) { conv.kernel } else { conv.reach() };
        let window =
            WindowGeometry::new(&Pool { kernel, stride, padding, ..Pool::square(1) }, input, output)?;
        Ok(WindowGeometry { dilation: pair(dilation.map(|apart| apart - 1)), ..window })
    }

    pub fn of_pool(pool: &Pool, input: [usize; 4], output: [usize; 4]) -> Result<WindowGeometry> {
        let [n, c, ..] = input;
        if [n, c] != output[..2] {
            return Err(Error::internal(format!("a pooling of {input:?} cannot give {output:?}")));
        }
        // A window wholly within the padding would have no largest element and no average.
        if (0..2).any(|axis| pool.padding[axis] >= pool.kernel[axis]) {
            return Err(Error::usage(format!(
                "a pooling's padding {:?} must be smaller than its kernel {:?}",
                pool.padding, pool.kernel
            )));
        }
        WindowGeometry::new(pool, input, output)
    }

    /// Checks the geometry against the images of shape (N, C, H, W) that it is applied to.
    fn new(window: &Pool, input: [usize; 4], output: [usize; 4]) -> Result<WindowGeometry> {
        let ([_, _, h, w], Pool { kernel, stride, padding, .. }) = (input, *window);
        if stride.contains(&0) || kernel.contains(&0) {
            return Err(Error::usage(format!("kernel {kernel:?} and stride {stride:?} must be at least 1")));
        }
        match window.windows([h, w]) {
            None => Err(Error::usage(format!(
                "a kernel of {}×{} does not fit its input of {h}×{w} with a padding of {}×{}",
                kernel[0], kernel[1], padding[0], padding[1]
            ))),
            Some(size) if size != output[2..] => Err(Error::internal(format!(
                "the output should be {}×{}, not {}×{}",
                size[0], size[1], output[2], output[3]
            ))),
            Some(size) => {
                let reach = |axis: usize| (size[axis] - 1) * stride[axis] + kernel[axis];
                let after = |axis: usize| reach(axis).saturating_sub([h, w][axis] + padding[axis]);
                Ok(WindowGeometry {
                    kernel: pair(kernel),
                    stride: pair(stride),
                    padding: pair(padding),
                    padding_after: pair([padding[0].max(after(0)), padding[1].max(after(1))]),
                    dilation: pair([0, 0]),
                })
            }
        }
    }
}

fn pair(numbers: [usize; 2]) -> sys::Dims {
    let mut dims: sys::Dims = [0; sys::MAX_NDIMS];
    for (to, from) in dims.iter_mut().zip(numbers) {
        // A number beyond i64 fits no image: `windows` has refused it.
        *to = from as i64;
    }
    dims
}
