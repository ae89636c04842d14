//! Poolings, channels last.

use std::rc::Rc;

use super::gpu::{Argument, Argument::*, Gpu};
use super::kernel::{CudaKernel, Operands};
use super::layout::{Real, channels_last, image, input, output, saved};
use crate::device::{KernelRequest, Layout};
use crate::error::{Error, Result};
use crate::graph::{Pool2d, Spec};

/// n, height, width, channels, out_height, out_width, then kernel, stride and padding, as kernels take them.
fn geometry(x: &Spec, y: &Spec, pool: &Pool2d) -> Result<Vec<Argument<'static>>> {
    let mut arguments = extents(x, y)?;
    let Pool2d { kernel, stride, padding, .. } = pool;
    arguments.extend([kernel, stride, padding].into_iter().flatten().map(|&extent| Int(extent)));
    Ok(arguments)
}

fn extents(x: &Spec, y: &Spec) -> Result<Vec<Argument<'static>>> {
    let ([n, c, h, w], [_, _, oh, ow]) = (image(x)?, image(y)?);
    Ok([n, h, w, c, oh, ow].map(Int).into())
}

/// The winner of each window, as its place in the window.
fn winners(y: &Spec) -> Layout {
    saved(y, "winners", y.shape.elements())
}

fn kernel(
    gpu: &Rc<Gpu>,
    name: &'static str,
    (inputs, outputs): (Vec<Layout>, Vec<Layout>),
    spec: &Spec,
    numbers: Vec<Argument<'static>>,
) -> Result<CudaKernel> {
    let (real, n) = (Real::of(spec.dtype)?, spec.shape.elements());
    let bind = move |operands: &mut Operands| {
        let memories: Vec<Argument> = operands.inputs.iter().chain(operands.outputs).map(Memory).collect();
        operands.each(name, real, n, &[memories, numbers.clone()].concat())
    };
    Ok(CudaKernel::new(gpu, "own:pool", inputs, outputs, bind))
}

/// x → y, saved
pub fn max(gpu: &Rc<Gpu>, request: &KernelRequest, pool: &Pool2d) -> Result<CudaKernel> {
    let (x, y) = (&input(request, 0)?.0, output(request, 0)?);
    if pool.kernel[0] * pool.kernel[1] > 256 {
        let [h, w] = pool.kernel;
        return Err(Error::usage(format!(
            "a max pooling of {h}×{w} is more than --device cuda serves: 256 elements"
        )));
    }
    let outputs = vec![channels_last(y), winners(y)];
    kernel(gpu, "max_pool", (vec![channels_last(x)], outputs), y, geometry(x, y, pool)?)
}

/// dy, saved → dx
pub fn max_backward(gpu: &Rc<Gpu>, request: &KernelRequest, pool: &Pool2d) -> Result<CudaKernel> {
    let (dy, dx) = (&input(request, 0)?.0, output(request, 0)?);
    let layouts = (vec![channels_last(dy), winners(dy)], vec![channels_last(dx)]);
    kernel(gpu, "max_pool_backward", layouts, dx, geometry(dx, dy, pool)?)
}

/// x → y
pub fn average(gpu: &Rc<Gpu>, request: &KernelRequest, pool: &Pool2d) -> Result<CudaKernel> {
    let (x, y) = (&input(request, 0)?.0, output(request, 0)?);
    let mut numbers = geometry(x, y, pool)?;
    numbers.push(Bool(pool.count_include_pad));
    kernel(gpu, "average_pool", (vec![channels_last(x)], vec![channels_last(y)]), y, numbers)
}

/// dy → dx
pub fn average_backward(gpu: &Rc<Gpu>, request: &KernelRequest, pool: &Pool2d) -> Result<CudaKernel> {
    let (dy, dx) = (&input(request, 0)?.0, output(request, 0)?);
    let mut numbers = geometry(dx, dy, pool)?;
    numbers.push(Bool(pool.count_include_pad));
    kernel(gpu, "average_pool_backward", (vec![channels_last(dy)], vec![channels_last(dx)]), dx, numbers)
}

/// x → y
pub fn adaptive(gpu: &Rc<Gpu>, request: &KernelRequest) -> Result<CudaKernel> {
    let (x, y) = (&input(request, 0)?.0, output(request, 0)?);
    kernel(gpu, "adaptive_pool", (vec![channels_last(x)], vec![channels_last(y)]), y, extents(x, y)?)
}

/// dy → dx
pub fn adaptive_backward(gpu: &Rc<Gpu>, request: &KernelRequest) -> Result<CudaKernel> {
    let (dy, dx) = (&input(request, 0)?.0, output(request, 0)?);
    let layouts = (vec![channels_last(dy)], vec![channels_last(dx)]);
    kernel(gpu, "adaptive_pool_backward", layouts, dx, extents(dx, dy)?)
}
