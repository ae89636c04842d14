//! ReLU, plain or cut off, in whatever layout its input has.

use std::rc::Rc;

use super::handle::{Desc, Engine, PrimitiveDesc};
use super::layout::{desc, plain};
use super::primitive::{PrimitiveKernel, attributes, prop_kind};
use super::sys;
use crate::device::{Layout, Request};
use crate::error::{Error, Result};

/// The layout given for an input, or plain.
fn given(engine: &Engine, request: &Request, input: usize) -> Result<Layout> {
    match request.inputs.get(input) {
        Some((_, Some(layout))) => Ok(layout.clone()),
        Some((spec, None)) => plain(engine, spec),
        None => Err(Error::internal("a ReLU lacks an input")),
    }
}

/// The algorithm with its two numbers.
fn algorithm(max: f32) -> (sys::AlgKind, f32, f32) {
    match max.is_infinite() {
        true => (sys::ELTWISE_RELU_USE_DST, 0.0, 0.0),
        false => (sys::ELTWISE_CLIP_USE_DST, 0.0, max),
    }
}

fn forward_desc(
    engine: &Rc<Engine>,
    data: &Desc,
    prop_kind: sys::PropKind,
    max: f32,
) -> Result<PrimitiveDesc> {
    let (attributes, (algorithm, alpha, beta)) = (attributes(engine)?, algorithm(max));
    // SAFETY: descriptors and attributes outlive the call.
    PrimitiveDesc::create(engine, "dnnl_eltwise_forward_primitive_desc_create", |desc| unsafe {
        (engine.library.functions.dnnl_eltwise_forward_primitive_desc_create)(
            desc,
            engine.raw(),
            prop_kind,
            algorithm,
            data.raw(),
            data.raw(),
            alpha,
            beta,
            attributes.raw(),
        )
    })
}

/// x → y, over x if possible: the backward op wants y only.
pub fn forward_pass(engine: &Rc<Engine>, request: &Request, max: f32) -> Result<PrimitiveKernel> {
    let x = given(engine, request, 0)?;
    let desc = forward_desc(engine, desc(&x)?, prop_kind(request), max)?;
    Ok(PrimitiveKernel::new(engine, desc, &[sys::ARG_SRC], &[sys::ARG_DST])?.in_place(0))
}

/// dy, y → dx, in the layout of y. The forward op may have been part of a convolution, so the hint is made here.
pub fn backward(engine: &Rc<Engine>, request: &Request, max: f32) -> Result<PrimitiveKernel> {
    let y = given(engine, request, 1)?;
    let y = desc(&y)?;
    let hint = forward_desc(engine, y, sys::FORWARD_TRAINING, max)?;
    let (attributes, (algorithm, alpha, beta)) = (attributes(engine)?, algorithm(max));
    let name = "dnnl_eltwise_backward_primitive_desc_create";
    // SAFETY: descriptors, hint and attributes outlive the call.
    let desc = PrimitiveDesc::create(engine, name, |desc| unsafe {
        (engine.library.functions.dnnl_eltwise_backward_primitive_desc_create)(
            desc,
            engine.raw(),
            algorithm,
            y.raw(),
            y.raw(),
            y.raw(),
            alpha,
            beta,
            hint.raw(),
            attributes.raw(),
        )
    })?;
    let kernel =
        PrimitiveKernel::new(engine, desc, &[sys::ARG_DIFF_DST, sys::ARG_DST], &[sys::ARG_DIFF_SRC])?;
    Ok(kernel.in_place(0))
}
