//! ReLU, in whatever layout its input has.

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

fn forward_desc(
    engine: &Rc<Engine>,
    data: &Desc,
    prop_kind: sys::PropKind,
    algorithm: sys::AlgKind,
) -> Result<PrimitiveDesc> {
    let attributes = attributes(engine)?;
    // SAFETY: descriptors and attributes outlive the call.
    PrimitiveDesc::create(engine, "dnnl_eltwise_forward_primitive_desc_create", |desc| unsafe {
        (engine.library.functions.dnnl_eltwise_forward_primitive_desc_create)(
            desc,
            engine.raw(),
            prop_kind,
            algorithm,
            data.raw(),
            data.raw(),
            0.0,
            0.0,
            attributes.raw(),
        )
    })
}

/// x → y, over x if possible: the backward op wants y only.
pub fn forward_pass(engine: &Rc<Engine>, request: &Request) -> Result<PrimitiveKernel> {
    let x = given(engine, request, 0)?;
    let desc = forward_desc(engine, desc(&x)?, prop_kind(request), sys::ELTWISE_RELU_USE_DST)?;
    Ok(PrimitiveKernel::new(engine, desc, &[sys::ARG_SRC], &[sys::ARG_DST])?.in_place(0))
}

/// dy, y → dx, in the layout of y. The forward op may have been part of a convolution, so the hint is made here.
pub fn backward(engine: &Rc<Engine>, request: &Request) -> Result<PrimitiveKernel> {
    let y = given(engine, request, 1)?;
    let y = desc(&y)?;
    let hint = forward_desc(engine, y, sys::FORWARD_TRAINING, sys::ELTWISE_RELU_USE_DST)?;
    let attributes = attributes(engine)?;
    let name = "dnnl_eltwise_backward_primitive_desc_create";
    // SAFETY: descriptors, hint and attributes outlive the call.
    let desc = PrimitiveDesc::create(engine, name, |desc| unsafe {
        (engine.library.functions.dnnl_eltwise_backward_primitive_desc_create)(
            desc,
            engine.raw(),
            sys::ELTWISE_RELU_USE_DST,
            y.raw(),
            y.raw(),
            y.raw(),
            0.0,
            0.0,
            hint.raw(),
            attributes.raw(),
        )
    })?;
    let kernel =
        PrimitiveKernel::new(engine, desc, &[sys::ARG_DIFF_DST, sys::ARG_DST], &[sys::ARG_DIFF_SRC])?;
    Ok(kernel.in_place(0))
}
