//! The geometry that convolutions and poolings share: a window that slides over an image.

use super::sys;
use crate::error::{Error, Result};
use crate::graph::{Conv, Pool, Shape, Volume};

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
    pub fn of_conv(conv: &Conv, input: &Shape, output: &Shape) -> Result<WindowGeometry> {
        let Conv { stride, padding, dilation, .. } = *conv;
        if dilation.contains(&0) {
            return Err(Error::usage(format!("dilation {:?} must be at least 1", input.along(&dilation))));
        }
        // Of a convolution the weights say what its kernel is; here it is as long as it reaches.
        let kernel = if conv.kernel.contains(&0) { conv.kernel } else { conv.reach() };
        let window =
            WindowGeometry::new(&Pool { kernel, stride, padding, ..Pool::square(1) }, input, output)?;
        Ok(WindowGeometry { dilation: along_axes(input, dilation.map(|apart| apart - 1)), ..window })
    }

    pub fn of_pool(pool: &Pool, input: &Shape, output: &Shape) -> Result<WindowGeometry> {
        if input.0.get(..2) != output.0.get(..2) {
            return Err(Error::internal(format!("a pooling of {input} cannot give {output}")));
        }
        // A window wholly within the padding would have no largest element and no average.
        if (0..3).any(|axis| pool.padding[axis] >= pool.kernel[axis]) {
            return Err(Error::usage(format!(
                "a pooling's padding {:?} must be smaller than its kernel {:?}",
                input.along(&pool.padding),
                input.along(&pool.kernel)
            )));
        }
        WindowGeometry::new(pool, input, output)
    }

    /// Checks the geometry against the images or cubes that it is applied to.
    fn new(window: &Pool, input: &Shape, output: &Shape) -> Result<WindowGeometry> {
        let Pool { kernel, stride, padding, .. } = *window;
        let (Some((_, from)), Some((_, to))) = (input.spatial(), output.spatial()) else {
            return Err(Error::internal(format!(
                "an image is needed, or a cube: windows over {input} that give {output}"
            )));
        };
        let said = |size: Volume| Shape(input.along(&size).to_vec());
        if stride.contains(&0) || kernel.contains(&0) {
            return Err(Error::usage(format!(
                "kernel {} and stride {} must be at least 1",
                said(kernel),
                said(stride)
            )));
        }
        match window.windows(from) {
            None => Err(Error::usage(format!(
                "a kernel of {} does not fit its input of {} with a padding of {}",
                said(kernel),
                said(from),
                said(padding)
            ))),
            Some(size) if size != to => {
                Err(Error::internal(format!("the output should be {}, not {}", said(size), said(to))))
            }
            Some(size) => {
                let reach = |axis: usize| (size[axis] - 1) * stride[axis] + kernel[axis];
                let after = |axis: usize| reach(axis).saturating_sub(from[axis] + padding[axis]);
                Ok(WindowGeometry {
                    kernel: along_axes(input, kernel),
                    stride: along_axes(input, stride),
                    padding: along_axes(input, padding),
                    padding_after: along_axes(input, [0, 1, 2].map(|axis| padding[axis].max(after(axis)))),
                    dilation: along_axes(input, [0; 3]),
                })
            }
        }
    }
}

/// Those of the axes that the input has.
fn along_axes(input: &Shape, numbers: Volume) -> sys::Dims {
    let mut dims: sys::Dims = [0; sys::MAX_NDIMS];
    for (to, from) in dims.iter_mut().zip(input.along(&numbers)) {
        // A number beyond i64 fits no image: `windows` has refused it.
        *to = *from as i64;
    }
    dims
}
