//! Layer normalisation: oneDNN's, of plain rows.

use std::rc::Rc;

use super::handle::{Desc, Engine, PrimitiveDesc, describe};
use super::layout::{data_type, plain};
use super::primitive::{PrimitiveKernel, attributes};
use super::sys;
use crate::device::KernelRequest;
use crate::error::{Error, Result};
use crate::graph::Spec;

fn flags(affine: bool) -> u32 {
    if affine { sys::USE_SCALE | sys::USE_SHIFT } else { 0 }
}

/// x as (rows, elements of a row), and the mean of each row.
fn rows(engine: &Engine, x: &Spec, mean: &Spec) -> Result<[Desc; 2]> {
    let rows = mean.shape.elements();
    if rows == 0 || !x.shape.elements().is_multiple_of(rows) {
        return Err(Error::internal(format!("{} cannot be normalised in {rows} rows", x.shape)));
    }
    let width = x.shape.elements() / rows;
    Ok([Desc::plain(engine, &[rows, width], data_type(x.dtype)?)?, Desc::plain(engine, &[rows], sys::F32)?])
}

fn forward_desc(
    engine: &Rc<Engine>,
    [x, mean]: &[Desc; 2],
    training: bool,
    epsilon: f32,
    affine: bool,
) -> Result<PrimitiveDesc> {
    let attributes = attributes(engine)?;
    let kind = if training { sys::FORWARD_TRAINING } else { sys::FORWARD_INFERENCE };
    describe!(engine, attributes => dnnl_layer_normalization_forward_primitive_desc_create(
        kind, x.raw(), x.raw(), mean.raw(), epsilon, flags(affine)
    ))
}

/// States that operands lie plain in the shapes of the graph.
fn in_shapes(
    engine: &Engine,
    mut kernel: PrimitiveKernel,
    request: &KernelRequest,
) -> Result<PrimitiveKernel> {
    for (index, (spec, _)) in request.inputs.iter().enumerate() {
        kernel = kernel.sees_in(index, plain(engine, spec)?);
    }
    for (index, spec) in request.outputs.iter().enumerate() {
        kernel = kernel.gives_in(index, plain(engine, spec)?);
    }
    Ok(kernel)
}

/// x, w?, b? → y, mean, variance
pub fn forward_pass(
    engine: &Rc<Engine>,
    request: &KernelRequest,
    epsilon: f32,
    affine: bool,
) -> Result<PrimitiveKernel> {
    let ([(x, _), ..], [_, mean, _]) = (request.inputs, request.outputs) else {
        return Err(Error::internal("a layer normalisation gives three tensors"));
    };
    // Evaluation gives the moments too: they are outputs of the op.
    let desc = forward_desc(engine, &rows(engine, x, mean)?, true, epsilon, affine)?;
    let inputs = [sys::ARG_SRC, sys::ARG_SCALE, sys::ARG_SHIFT];
    let outputs = [sys::ARG_DST, sys::ARG_MEAN, sys::ARG_VARIANCE];
    let kernel = PrimitiveKernel::new(engine, desc, &inputs[..request.inputs.len()], &outputs)?;
    in_shapes(engine, kernel, request)
}

/// dy, x, w?, mean, variance → dx, dw?, db?
pub fn backward(
    engine: &Rc<Engine>,
    request: &KernelRequest,
    epsilon: f32,
    affine: bool,
) -> Result<PrimitiveKernel> {
    let (Some((x, _)), Some((mean, _))) = (request.inputs.get(1), request.inputs.last()) else {
        return Err(Error::internal("a layer normalisation's gradient without its input"));
    };
    let seen = rows(engine, x, mean)?;
    let hint = forward_desc(engine, &seen, true, epsilon, affine)?;
    let ([x, mean], attributes) = (&seen, attributes(engine)?);
    let desc = describe!(engine, attributes => dnnl_layer_normalization_backward_primitive_desc_create(
        sys::BACKWARD, x.raw(), x.raw(), x.raw(), mean.raw(), epsilon, flags(affine), hint.raw()
    ))?;
    let mut inputs = vec![sys::ARG_DIFF_DST, sys::ARG_SRC];
    inputs.extend(affine.then_some(sys::ARG_SCALE));
    inputs.extend([sys::ARG_MEAN, sys::ARG_VARIANCE]);
    let outputs = [sys::ARG_DIFF_SRC, sys::ARG_DIFF_SCALE, sys::ARG_DIFF_SHIFT];
    let kernel = PrimitiveKernel::new(engine, desc, &inputs, &outputs[..request.outputs.len()])?;
    let kernel = in_shapes(engine, kernel, request)?.in_place(0);
    // The library asks for the shift on the way back, and does not read it.
    Ok(if affine { kernel.also_as(2, sys::ARG_SHIFT) } else { kernel })
}
