//! Reshape and addition.

use std::rc::Rc;

use super::handle::{Attributes, Engine, describe};
use super::host::{copy, host_kernel};
use super::layout::{desc, plain};
use super::primitive::{PrimitiveKernel, inputs, outputs};
use super::sys;
use crate::device::{Kernel, KernelRequest};
use crate::error::{Error, Result};

/// x → y: the same elements in logical order, so both plain; in the same place if possible.
pub fn reshape(engine: &Engine, request: &KernelRequest) -> Result<Kernel> {
    let ([x], [y]) = (inputs(request)?, outputs(request)?);
    if x.shape.elements() != y.shape.elements() || x.dtype != y.dtype {
        return Err(Error::internal(format!("{} cannot be seen as {}", x.shape, y.shape)));
    }
    let (x, y) = (plain(engine, x)?, plain(engine, y)?);
    let bytes = y.bytes();
    let kernel = host_kernel("copy", vec![x], vec![y], move |inputs, outputs, _| {
        copy(&inputs[0], &outputs[0], bytes);
        Ok(())
    });
    Ok(kernel.in_place(0))
}

/// a, b → a + b, then ReLU, in the layout of a, over a if possible. What pads a layout is zero in both, and so in the
/// sum.
pub fn add(engine: &Rc<Engine>, request: &KernelRequest, relu: bool) -> Result<PrimitiveKernel> {
    let ([a, b], [y]) = (inputs(request)?, outputs(request)?);
    if a != b || a != y {
        return Err(Error::internal(format!("{} + {} cannot give {}", a.shape, b.shape, y.shape)));
    }
    let given = request.inputs.iter().find_map(|(_, layout)| layout.clone());
    let layout = given.map_or_else(|| plain(engine, a), Ok)?;
    let (data, attributes) = (desc(&layout)?, Attributes::new(engine, relu)?);
    let desc = describe!(engine, attributes => dnnl_binary_primitive_desc_create(
        sys::BINARY_ADD, data.raw(), data.raw(), data.raw()
    ))?;
    Ok(PrimitiveKernel::new(engine, desc, &[sys::ARG_SRC, sys::ARG_SRC_1], &[sys::ARG_DST])?.in_place(0))
}
