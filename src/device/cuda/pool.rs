//! Poolings, channels last.

use std::rc::Rc;

use super::gpu::{Argument, Argument::*, Gpu};
use super::kernel::{Operands, cuda_kernel, side_by_side};
use super::layout::{Real, channels_last, image, input, output, saved, spatial};
use crate::device::{Kernel, KernelRequest, Layout};
use crate::error::{Error, Result};
use crate::graph::{Pool, Spec};

/// n, size, channels, size of the output, then kernel, stride and padding, as kernels take them.
fn geometry(x: &Spec, y: &Spec, pool: &Pool) -> Result<Vec<Argument<'static>>> {
    let mut arguments = extents(x, y)?;
    arguments.extend([pool.kernel, pool.stride, pool.padding].into_iter().flatten().map(Int));
    Ok(arguments)
}

fn extents(x: &Spec, y: &Spec) -> Result<Vec<Argument<'static>>> {
    let ([n, c], [d, h, w]) = spatial(x)?;
    let (_, [od, oh, ow]) = spatial(y)?;
    Ok([n, d, h, w, c, od, oh, ow].map(Int).into())
}

/// `extents` as those kernels take them that know images alone.
fn flat(x: &Spec, y: &Spec) -> Result<Vec<Argument<'static>>> {
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
) -> Result<Kernel> {
    let (real, n) = (Real::of(spec.dtype)?, spec.shape.elements());
    let bind =
        move |operands: &mut Operands| operands.each(name, real, n, &with_memories(operands, &numbers));
    Ok(cuda_kernel(gpu, "own:pool", inputs, outputs, bind))
}

fn with_memories<'a>(operands: &Operands<'a>, numbers: &[Argument<'a>]) -> Vec<Argument<'a>> {
    let memories = operands.inputs.iter().chain(operands.outputs).map(Memory);
    memories.chain(numbers.iter().copied()).collect()
}

/// What the kernels of common networks' poolings have in their names: their geometry is known when they are compiled.
/// Channels must divide into accesses of 16 bytes.
fn common(pool: &Pool, spec: &Spec) -> Result<Option<&'static str>> {
    let square = [pool.kernel, pool.stride, pool.padding].map(|[_, h, w]| (h == w).then_some(h));
    Ok(match square {
        _ if spec.shape.rank() != 4 || !is_wide(spec)? => None,
        [Some(2), Some(2), Some(0)] => Some("2x2s2"),
        [Some(3), Some(2), Some(0)] => Some("3x3s2"),
        [Some(3), Some(2), Some(1)] => Some("3x3s2p1"),
        _ => None,
    })
}

fn is_wide(spec: &Spec) -> Result<bool> {
    Ok(image(spec)?[1] % (16 / Real::of(spec.dtype)?.bytes()) == 0)
}

/// Whether an adaptive pooling gives one pixel: the mean of all.
fn is_global(x: &Spec, y: &Spec) -> Result<bool> {
    Ok(spatial(y)?.1 == [1; 3] && is_wide(x)?)
}

/// A kernel whose threads lie side by side over channels; what grid it wants is told how many rows of them a block has.
fn shared_out(
    gpu: &Rc<Gpu>,
    name: String,
    (inputs, outputs): (Vec<Layout>, Vec<Layout>),
    spec: &Spec,
    grid: impl FnOnce(usize) -> [usize; 3],
    numbers: Vec<Argument<'static>>,
) -> Result<Kernel> {
    let ([_, c, ..], real) = (image(spec)?, Real::of(spec.dtype)?);
    let block = side_by_side(c / (16 / real.bytes()));
    let grid = grid(block[1] as usize).map(|extent| extent.clamp(1, 65_535) as u32);
    let name = format!("{name}_{}", real.suffix());
    let bind = move |operands: &mut Operands| {
        operands.launch_in(block, &name, grid, &with_memories(operands, &numbers))
    };
    Ok(cuda_kernel(gpu, "own:pool", inputs, outputs, bind))
}

/// x → y, saved
pub fn max(gpu: &Rc<Gpu>, request: &KernelRequest, pool: &Pool) -> Result<Kernel> {
    let (x, y) = (&input(request, 0)?.0, output(request, 0)?);
    let [d, h, w] = pool.kernel;
    if d * h * w > 256 {
        return Err(Error::usage(format!(
            "a max pooling of {d}×{h}×{w} is more than --device cuda serves: 256 elements"
        )));
    }
    let layouts = (vec![channels_last(x)], vec![channels_last(y), winners(y)]);
    match common(pool, x)? {
        Some(name) => {
            let [n, _, rows, columns] = image(y)?;
            let grid = |beside: usize| [columns.div_ceil(beside), rows, n];
            shared_out(gpu, format!("max_pool_{name}"), layouts, y, grid, flat(x, y)?)
        }
        None => kernel(gpu, "max_pool", layouts, y, geometry(x, y, pool)?),
    }
}

/// dy, saved → dx
pub fn max_backward(gpu: &Rc<Gpu>, request: &KernelRequest, pool: &Pool) -> Result<Kernel> {
    let (dy, dx) = (&input(request, 0)?.0, output(request, 0)?);
    let layouts = (vec![channels_last(dy), winners(dy)], vec![channels_last(dx)]);
    match common(pool, dx)? {
        Some(name) => {
            let [n, _, h, w] = image(dx)?;
            let [stride, padding] = [pool.stride, pool.padding].map(|of| of[1]);
            let [rows, columns] = [h, w].map(|extent| (extent + padding).div_ceil(stride));
            let grid = |beside: usize| [columns.div_ceil(beside), rows, n];
            shared_out(gpu, format!("max_pool_backward_{name}"), layouts, dx, grid, flat(dx, dy)?)
        }
        None => kernel(gpu, "max_pool_backward", layouts, dx, geometry(dx, dy, pool)?),
    }
}

/// x → y
pub fn average(gpu: &Rc<Gpu>, request: &KernelRequest, pool: &Pool) -> Result<Kernel> {
    let (x, y) = (&input(request, 0)?.0, output(request, 0)?);
    let mut numbers = geometry(x, y, pool)?;
    numbers.push(Bool(pool.count_include_pad));
    kernel(gpu, "average_pool", (vec![channels_last(x)], vec![channels_last(y)]), y, numbers)
}

/// dy → dx
pub fn average_backward(gpu: &Rc<Gpu>, request: &KernelRequest, pool: &Pool) -> Result<Kernel> {
    let (dy, dx) = (&input(request, 0)?.0, output(request, 0)?);
    let mut numbers = geometry(dx, dy, pool)?;
    numbers.push(Bool(pool.count_include_pad));
    kernel(gpu, "average_pool_backward", (vec![channels_last(dy)], vec![channels_last(dx)]), dx, numbers)
}

/// x → y
pub fn adaptive(gpu: &Rc<Gpu>, request: &KernelRequest) -> Result<Kernel> {
    let (x, y) = (&input(request, 0)?.0, output(request, 0)?);
    let layouts = (vec![channels_last(x)], vec![channels_last(y)]);
    let [n, c, h, w] = image(x)?;
    if !is_global(x, y)? {
        return kernel(gpu, "adaptive_pool", layouts, y, extents(x, y)?);
    }
    shared_out(
        gpu,
        "global_pool".into(),
        layouts,
        x,
        |beside| [n.div_ceil(beside), 1, 1],
        [n, h * w, c].map(Int).into(),
    )
}

/// dy → dx
pub fn adaptive_backward(gpu: &Rc<Gpu>, request: &KernelRequest) -> Result<Kernel> {
    let (dy, dx) = (&input(request, 0)?.0, output(request, 0)?);
    let layouts = (vec![channels_last(dy)], vec![channels_last(dx)]);
    let [n, c, h, w] = image(dx)?;
    if !is_global(dx, dy)? {
        return kernel(gpu, "adaptive_pool_backward", layouts, dx, extents(dx, dy)?);
    }
    // A thread reads the gradient once and writes it to some eight pixels.
    let grid = |beside: usize| [(h * w).div_ceil(8 * beside), n, 1];
    shared_out(gpu, "global_pool_backward".into(), layouts, dx, grid, [n, h * w, c].map(Int).into())
}
