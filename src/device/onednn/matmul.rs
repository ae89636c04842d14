//! Products of matrices and softmax: oneDNN's, of plain tensors.

use std::rc::Rc;

use super::handle::{Attributes, Desc, Engine, PrimitiveDesc, describe};
use super::layout::{data_type, desc, plain};
use super::primitive::{PrimitiveKernel, attributes, inputs, outputs};
use super::sys;
use crate::device::KernelRequest;
use crate::error::{Error, Result};
use crate::graph::{MatMul, Spec};

/// x, w → y as the library sees them.
pub(super) fn product(
    engine: &Rc<Engine>,
    [x, w, y]: [&Desc; 3],
    attributes: &Attributes,
) -> Result<PrimitiveKernel> {
    let desc = describe!(engine, attributes => dnnl_matmul_primitive_desc_create(
        x.raw(), w.raw(), std::ptr::null(), y.raw()
    ))?;
    PrimitiveKernel::new(engine, desc, &[sys::ARG_SRC, sys::ARG_WEIGHTS], &[sys::ARG_DST])
}

/// a, b → y
pub fn matmul(engine: &Rc<Engine>, request: &KernelRequest, of: &MatMul) -> Result<PrimitiveKernel> {
    let ([a, b], [y]) = (inputs(request)?, outputs(request)?);
    let [count, rows, inner, columns] = of
        .extents(&a.shape, &b.shape)
        .ok_or_else(|| Error::internal(format!("no product of {} and {}", a.shape, b.shape)))?;
    // In the type of y: what is f32 there is multiplied so.
    let [a, b] = [a, b].map(|spec| Spec { dtype: y.dtype, ..spec.clone() });
    let of_type = data_type(y.dtype)?;
    let seen = |[rows, columns]: [usize; 2], transposed: bool| {
        let strides = if transposed { [1, rows] } else { [columns, 1] };
        let strides = [rows * columns, strides[0], strides[1]];
        Desc::strided(engine, &[count, rows, columns], &strides, of_type)
    };
    let x = seen([rows, inner], of.transposed[0])?;
    let w = seen([inner, columns], of.transposed[1])?;
    let to = seen([rows, columns], false)?;
    let attributes = Attributes::with(engine, (of.scale != 1.0).then_some((sys::ELTWISE_LINEAR, of.scale)))?;
    let kernel = product(engine, [&x, &w, &to], &attributes)?;
    let kernel = kernel.sees_in(0, plain(engine, &a)?).sees_in(1, plain(engine, &b)?);
    Ok(kernel.gives_in(0, plain(engine, y)?))
}

fn softmax_desc(engine: &Rc<Engine>, x: &Desc, kind: sys::PropKind, axis: usize) -> Result<PrimitiveDesc> {
    let attributes = attributes(engine)?;
    describe!(engine, attributes => dnnl_softmax_forward_primitive_desc_create(
        kind, sys::SOFTMAX_ACCURATE, x.raw(), x.raw(), axis as i32
    ))
}

/// x → y
pub fn softmax(engine: &Rc<Engine>, request: &KernelRequest) -> Result<PrimitiveKernel> {
    let ([x], [_]) = (inputs(request)?, outputs(request)?);
    let layout = plain(engine, x)?;
    let axis = x.shape.rank().saturating_sub(1);
    let desc = softmax_desc(engine, desc(&layout)?, super::primitive::prop_kind(request), axis)?;
    Ok(PrimitiveKernel::new(engine, desc, &[sys::ARG_SRC], &[sys::ARG_DST])?.in_place(0))
}

/// dy, y → dx
pub fn softmax_backward(engine: &Rc<Engine>, request: &KernelRequest) -> Result<PrimitiveKernel> {
    let ([_, y], [_]) = (inputs(request)?, outputs(request)?);
    let layout = plain(engine, y)?;
    let (y, axis) = (desc(&layout)?, y.shape.rank().saturating_sub(1));
    let hint = softmax_desc(engine, y, sys::FORWARD_TRAINING, axis)?;
    let attributes = attributes(engine)?;
    let desc = describe!(engine, attributes => dnnl_softmax_backward_primitive_desc_create(
        sys::SOFTMAX_ACCURATE, y.raw(), y.raw(), y.raw(), axis as i32, hint.raw()
    ))?;
    let kernel =
        PrimitiveKernel::new(engine, desc, &[sys::ARG_DIFF_DST, sys::ARG_DST], &[sys::ARG_DIFF_SRC])?;
    Ok(kernel.in_place(0))
}
