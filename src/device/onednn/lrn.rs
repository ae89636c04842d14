//! Local response normalisation across channels, in the layout of its input.

use std::rc::Rc;

use super::handle::{Engine, describe};
use super::layout::{desc, plain};
use super::primitive::{PrimitiveKernel, attributes, forward, inputs, prop_kind};
use super::sys;
use crate::device::KernelRequest;
use crate::error::{Error, Result};
use crate::graph::LocalResponseNorm;

/// x → y, saved. Like PyTorch the library divides alpha by the size.
pub fn forward_pass(
    engine: &Rc<Engine>,
    request: &KernelRequest,
    norm: &LocalResponseNorm,
) -> Result<PrimitiveKernel> {
    let [x] = inputs(request)?;
    if norm.size.is_multiple_of(2) || request.outputs.len() != 2 || *x != request.outputs[0] {
        return Err(Error::internal(format!(
            "{norm:?} of {} with {} outputs",
            x.shape,
            request.outputs.len()
        )));
    }
    let x = request.inputs[0].1.clone().map_or_else(|| plain(engine, x), Ok)?;
    let (x, attributes) = (desc(&x)?, attributes(engine)?);
    let desc = describe!(engine, attributes => dnnl_lrn_forward_primitive_desc_create(
        prop_kind(request), sys::LRN_ACROSS_CHANNELS, x.raw(), x.raw(), norm.size as i64, norm.alpha,
        norm.beta, norm.k
    ))?;
    PrimitiveKernel::new(engine, desc, &[sys::ARG_SRC], &[sys::ARG_DST, sys::ARG_WORKSPACE])
}

/// dy, x, saved → dx. Gradients lie as the forward op's tensors did.
pub fn backward(
    engine: &Rc<Engine>,
    request: &KernelRequest,
    norm: &LocalResponseNorm,
) -> Result<PrimitiveKernel> {
    let [_, _, _] = inputs(request)?;
    let hint = forward(request)?;
    let (x, dy) = (hint.desc.desc(sys::ARG_SRC)?, hint.desc.desc(sys::ARG_DST)?);
    let attributes = attributes(engine)?;
    let desc = describe!(engine, attributes => dnnl_lrn_backward_primitive_desc_create(
        sys::LRN_ACROSS_CHANNELS, x.raw(), dy.raw(), x.raw(), norm.size as i64, norm.alpha, norm.beta,
        norm.k, hint.desc.raw()
    ))?;
    let inputs = [sys::ARG_DIFF_DST, sys::ARG_SRC, sys::ARG_WORKSPACE];
    let kernel = PrimitiveKernel::new(engine, desc, &inputs, &[sys::ARG_DIFF_SRC])?;
    // The implementation may be another than the forward pass had, and need nothing saved.
    Ok(kernel.given(2, hint.outputs[1].clone()))
}
