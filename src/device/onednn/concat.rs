//! Concatenation of channels, and what takes it apart again. In blocked layouts where the channels allow it.

use std::ptr::null;
use std::rc::Rc;

use super::handle::{Desc, Engine, PrimitiveDesc};
use super::layout::{desc, plain};
use super::primitive::{PrimitiveKernel, attributes, forward, inputs, nchw, outputs};
use super::reorder::reorder_desc;
use super::sys;
use crate::device::{Kernel, KernelRequest, Layout};
use crate::error::{Error, Result};

/// x, x, … → y. Inputs are read as they lie; the library chooses the layout of y after theirs.
pub fn concat(engine: &Rc<Engine>, request: &KernelRequest) -> Result<PrimitiveKernel> {
    let [y] = outputs(request)?;
    let [n, channels, h, w] = nchw(y)?;
    let mut sum = 0;
    for (x, _) in request.inputs {
        let [xn, xc, xh, xw] = nchw(x)?;
        sum += xc;
        if [xn, xh, xw] != [n, h, w] {
            return Err(Error::internal(format!("{} cannot be a part of {}", x.shape, y.shape)));
        }
    }
    if sum != channels || request.inputs.is_empty() {
        return Err(Error::internal(format!("{sum} channels cannot give {}", y.shape)));
    }
    let given = |(spec, given): &(_, Option<Layout>)| given.clone().map_or_else(|| plain(engine, spec), Ok);
    let layouts: Vec<Layout> = request.inputs.iter().map(given).collect::<Result<_>>()?;
    let descs: Vec<&Desc> = layouts.iter().map(desc).collect::<Result<_>>()?;
    let raw: Vec<*const sys::MemoryDesc> = descs.iter().map(|desc| desc.raw()).collect();
    let (attributes, count) = (attributes(engine)?, raw.len());
    // SAFETY: descriptors and attributes outlive the call; no descriptor for y leaves it to the library.
    let desc = PrimitiveDesc::create(engine, "dnnl_concat_primitive_desc_create", |desc| unsafe {
        (engine.library.functions.dnnl_concat_primitive_desc_create)(
            desc,
            engine.raw(),
            null(),
            count as i32,
            1,
            raw.as_ptr(),
            attributes.raw(),
        )
    })?;
    let arguments: Vec<i32> = (0..count as i32).map(|input| sys::ARG_MULTIPLE_SRC + input).collect();
    PrimitiveKernel::new(engine, desc, &arguments, &[sys::ARG_DST])
}

/// dy → the gradient of the input whose channels begin at `from`, in the layout of that input. Where these channels
/// are no whole blocks of dy's layout, dy is wanted plain.
pub fn slice(engine: &Rc<Engine>, request: &KernelRequest, from: usize) -> Result<PrimitiveKernel> {
    let ([whole], [part]) = (inputs(request)?, outputs(request)?);
    let ([n, channels, h, w], extents) = (nchw(whole)?, nchw(part)?);
    if extents != [n, extents[1], h, w] || from + extents[1] > channels {
        return Err(Error::internal(format!("no {} from channel {from} of {}", part.shape, whole.shape)));
    }
    let to = of_input(forward(request)?, from, &extents)?;
    let offsets = [0, from, 0, 0];
    let given = request.inputs[0].1.clone().map_or_else(|| plain(engine, whole), Ok)?;
    let (whole, part) = match desc(&given)?.part(&extents, &offsets) {
        Ok(part) => (given, part),
        Err(_) => {
            let plain = plain(engine, whole)?;
            let part = desc(&plain)?.part(&extents, &offsets)?;
            (plain, part)
        }
    };
    let desc = reorder_desc(engine, &part, desc(&to)?)?;
    Ok(PrimitiveKernel::new(engine, desc, &[sys::ARG_SRC], &[sys::ARG_DST])?.sees_in(0, whole))
}

/// The layout in which the concatenation read the input that begins at this channel.
fn of_input(concat: &PrimitiveKernel, from: usize, extents: &[usize; 4]) -> Result<Layout> {
    let mut channel = 0;
    for input in concat.inputs() {
        let dims = desc(input)?.dims()?;
        if channel == from && dims.iter().zip(extents).all(|(&a, &b)| a == b as i64) {
            return Ok(input.clone());
        }
        channel += dims[1] as usize;
    }
    Err(Error::internal(format!("no input of the concatenation begins at channel {from}")))
}
