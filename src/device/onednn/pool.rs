//! Max and average pooling, in the layout of their input.

use std::rc::Rc;

use super::handle::{Desc, Engine, PrimitiveDesc, describe};
use super::layout::{desc, plain};
use super::primitive::{PrimitiveKernel, attributes, forward, prop_kind};
use super::sys;
use super::window::WindowGeometry;
use crate::device::{KernelRequest, Layout};
use crate::error::{Error, Result};
use crate::graph::{Pool, Spec};

/// A request's first input and first output; a pooling has at least these.
fn ends<'a>(request: &KernelRequest<'a>) -> Result<(&'a (Spec, Option<Layout>), &'a Spec)> {
    match (request.inputs, request.outputs) {
        ([x, ..], [y, ..]) => Ok((x, y)),
        _ => Err(Error::internal("a pooling needs an input and an output")),
    }
}

fn algorithm(pool: &Pool) -> sys::AlgKind {
    match pool.count_include_pad {
        true => sys::POOLING_AVG_INCLUDE_PADDING,
        false => sys::POOLING_AVG_EXCLUDE_PADDING,
    }
}

/// x → y, saved: which element won each window, in oneDNN's own form.
pub fn max(engine: &Rc<Engine>, request: &KernelRequest, pool: &Pool) -> Result<PrimitiveKernel> {
    let desc = forward_desc(engine, request, pool, sys::POOLING_MAX)?;
    let outputs = [sys::ARG_DST, sys::ARG_WORKSPACE];
    PrimitiveKernel::new(engine, desc, &[sys::ARG_SRC], &outputs[..request.outputs.len()])
}

/// x → y
pub fn average(engine: &Rc<Engine>, request: &KernelRequest, pool: &Pool) -> Result<PrimitiveKernel> {
    let desc = forward_desc(engine, request, pool, algorithm(pool))?;
    PrimitiveKernel::new(engine, desc, &[sys::ARG_SRC], &[sys::ARG_DST])
}

fn forward_desc(
    engine: &Rc<Engine>,
    request: &KernelRequest,
    pool: &Pool,
    algorithm: sys::AlgKind,
) -> Result<PrimitiveDesc> {
    let ((x, given), y) = ends(request)?;
    let window = WindowGeometry::of_pool(pool, &x.shape, &y.shape)?;
    let x = given.clone().map_or_else(|| plain(engine, x), Ok)?;
    let x = desc(&x)?;
    let y = Desc::any(engine, &y.shape.0, x.data_type()?)?;
    let attributes = attributes(engine)?;
    describe!(engine, attributes => dnnl_pooling_forward_primitive_desc_create(
        prop_kind(request), algorithm, x.raw(), y.raw(), window.stride.as_ptr(), window.kernel.as_ptr(),
        window.dilation.as_ptr(), window.padding.as_ptr(), window.padding_after.as_ptr()
    ))
}

/// dy, saved → dx
pub fn max_backward(engine: &Rc<Engine>, request: &KernelRequest, pool: &Pool) -> Result<PrimitiveKernel> {
    let desc = backward_desc(engine, request, pool, sys::POOLING_MAX)?;
    PrimitiveKernel::new(engine, desc, &[sys::ARG_DIFF_DST, sys::ARG_WORKSPACE], &[sys::ARG_DIFF_SRC])
}

/// dy → dx
pub fn average_backward(
    engine: &Rc<Engine>,
    request: &KernelRequest,
    pool: &Pool,
) -> Result<PrimitiveKernel> {
    let desc = backward_desc(engine, request, pool, algorithm(pool))?;
    PrimitiveKernel::new(engine, desc, &[sys::ARG_DIFF_DST], &[sys::ARG_DIFF_SRC])
}

/// Gradients lie as the forward op's tensors did: what that saved is only understood so.
fn backward_desc(
    engine: &Rc<Engine>,
    request: &KernelRequest,
    pool: &Pool,
    algorithm: sys::AlgKind,
) -> Result<PrimitiveDesc> {
    let ((dy, _), dx) = ends(request)?;
    let window = WindowGeometry::of_pool(pool, &dx.shape, &dy.shape)?;
    let hint = forward(request)?;
    let (dx, dy) = (hint.desc.desc(sys::ARG_SRC)?, hint.desc.desc(sys::ARG_DST)?);
    let attributes = attributes(engine)?;
    describe!(engine, attributes => dnnl_pooling_backward_primitive_desc_create(
        algorithm, dx.raw(), dy.raw(), window.stride.as_ptr(), window.kernel.as_ptr(),
        window.dilation.as_ptr(), window.padding.as_ptr(), window.padding_after.as_ptr(), hint.desc.raw()
    ))
}
