//! Activations, in whatever layout their input has.

use std::rc::Rc;

use super::handle::{Desc, Engine, PrimitiveDesc, describe};
use super::layout::{desc, plain};
use super::primitive::{PrimitiveKernel, attributes, prop_kind};
use super::sys;
use crate::device::{KernelRequest, Layout};
use crate::error::{Error, Result};
use crate::graph::Activation;

/// The layout given for an input, or plain.
fn given(engine: &Engine, request: &KernelRequest, input: usize) -> Result<Layout> {
    match request.inputs.get(input) {
        Some((_, Some(layout))) => Ok(layout.clone()),
        Some((spec, None)) => plain(engine, spec),
        None => Err(Error::internal("an activation lacks an input")),
    }
}

/// The algorithm (`dnnl_alg_kind_t`) with its two numbers. Where the backward op reads y (`Activation::from_output`) it
/// is the library's `…_use_dst_for_bwd`.
fn algorithm(of: Activation) -> (sys::AlgKind, f32, f32) {
    match of {
        Activation::Relu { max } if max.is_infinite() => (0x100, 0.0, 0.0), // relu
        // clip_v2: both bounds excluded from the gradient, as PyTorch has it
        Activation::Relu { max } => (0x106, 0.0, max),
        Activation::Sigmoid => (0x104, 0.0, 0.0), // logistic
        Activation::Silu => (0x2c, 1.0, 0.0),     // swish
        Activation::Gelu => (0x31, 0.0, 0.0),     // gelu_erf
        Activation::LeakyRelu { slope } => (0x100, slope, 0.0), // relu
        Activation::HardSigmoid => (0x28, 1.0 / 6.0, 0.5),
        Activation::HardSwish => (0x34, 1.0 / 6.0, 0.5),
        Activation::Tanh => (0x101, 0.0, 0.0),
        Activation::Exp => (0x105, 0.0, 0.0),
        Activation::Sqrt => (0x103, 0.0, 0.0),
    }
}

fn forward_desc(
    engine: &Rc<Engine>,
    data: &Desc,
    prop_kind: sys::PropKind,
    of: Activation,
) -> Result<PrimitiveDesc> {
    let (attributes, (algorithm, alpha, beta)) = (attributes(engine)?, algorithm(of));
    describe!(engine, attributes => dnnl_eltwise_forward_primitive_desc_create(
        prop_kind, algorithm, data.raw(), data.raw(), alpha, beta
    ))
}

/// x → y, over x if possible: where the backward op wants x the plan keeps it.
pub fn forward_pass(engine: &Rc<Engine>, request: &KernelRequest, of: Activation) -> Result<PrimitiveKernel> {
    let x = given(engine, request, 0)?;
    let desc = forward_desc(engine, desc(&x)?, prop_kind(request), of)?;
    Ok(PrimitiveKernel::new(engine, desc, &[sys::ARG_SRC], &[sys::ARG_DST])?.in_place(0))
}

fn backward_desc(engine: &Rc<Engine>, read: &Desc, of: Activation) -> Result<PrimitiveDesc> {
    let hint = forward_desc(engine, read, sys::FORWARD_TRAINING, of)?;
    let (attributes, (algorithm, alpha, beta)) = (attributes(engine)?, algorithm(of));
    describe!(engine, attributes => dnnl_eltwise_backward_primitive_desc_create(
        algorithm, read.raw(), read.raw(), read.raw(), alpha, beta, hint.raw()
    ))
}

/// dy, y or x → dx, in the layout of the latter. The forward op may have been part of a convolution, so the hint is
/// made here. The library is slow where a layout has padding: then it sees all of the memory as one row. What is 0 in
/// dy is 0 in dx, where the slope at 0 is finite.
pub fn backward(engine: &Rc<Engine>, request: &KernelRequest, of: Activation) -> Result<PrimitiveKernel> {
    let layout = given(engine, request, 1)?;
    let read = desc(&layout)?;
    let argument = if of.from_output() { sys::ARG_DST } else { sys::ARG_SRC };
    let arguments = [sys::ARG_DIFF_DST, argument];
    let made = backward_desc(engine, read, of)?;
    if made.implementation().starts_with("ref") && of != Activation::Sqrt {
        let count = layout.bytes() / layout.dtype().bytes();
        let row = backward_desc(engine, &Desc::plain(engine, &[count], read.data_type()?)?, of)?;
        if !row.implementation().starts_with("ref") {
            let kernel = PrimitiveKernel::new(engine, row, &arguments, &[sys::ARG_DIFF_SRC])?;
            let kernel = kernel.sees_in(0, layout.clone()).sees_in(1, layout.clone());
            return Ok(kernel.gives_in(0, layout).in_place(0));
        }
    }
    Ok(PrimitiveKernel::new(engine, made, &arguments, &[sys::ARG_DIFF_SRC])?.in_place(0))
}
