//! Concatenation along an axis, what takes it apart again, padding, and axes in another order. Channels are put
//! together in blocked layouts where they allow it.

use std::ptr::null;
use std::rc::Rc;

use super::handle::{Attributes, Desc, Engine, describe};
use super::host::{copy, host_kernel};
use super::layout::{data_type, desc, plain};
use super::primitive::{PrimitiveKernel, attributes, in_turn, inputs, outputs};
use super::reorder::{reorder_desc, reorder_with};
use super::sys;
use crate::device::{Kernel, KernelRequest, Layout, Scalars};
use crate::error::{Error, Result};
use crate::graph::{Permutation, Spec};

/// x, x, … → y. Inputs are read as they lie; the library chooses the layout of y after theirs.
pub fn concat(engine: &Rc<Engine>, request: &KernelRequest, axis: usize) -> Result<PrimitiveKernel> {
    let [y] = outputs(request)?;
    let mut sum = 0;
    for (x, _) in request.inputs {
        let differs = |(i, (a, b)): (usize, (&usize, &usize))| i != axis && a != b;
        let is_part =
            x.shape.rank() == y.shape.rank() && !x.shape.0.iter().zip(&y.shape.0).enumerate().any(differs);
        if !is_part {
            return Err(Error::internal(format!("{} cannot be a part of {}", x.shape, y.shape)));
        }
        sum += x.shape.0.get(axis).copied().unwrap_or_default();
    }
    if y.shape.0.get(axis) != Some(&sum) || request.inputs.is_empty() {
        return Err(Error::internal(format!("{sum} along axis {axis} cannot give {}", y.shape)));
    }
    let given = |(spec, given): &(_, Option<Layout>)| given.clone().map_or_else(|| plain(engine, spec), Ok);
    let layouts: Vec<Layout> = request.inputs.iter().map(given).collect::<Result<_>>()?;
    let descs: Vec<&Desc> = layouts.iter().map(desc).collect::<Result<_>>()?;
    let raw: Vec<*const sys::MemoryDesc> = descs.iter().map(|desc| desc.raw()).collect();
    let (attributes, count) = (attributes(engine)?, raw.len());
    let desc = describe!(engine, attributes => dnnl_concat_primitive_desc_create(
        null(), count as i32, axis as i32, raw.as_ptr()
    ))?;
    let arguments: Vec<i32> = (0..count as i32).map(|input| sys::ARG_MULTIPLE_SRC + input).collect();
    PrimitiveKernel::new(engine, desc, &arguments, &[sys::ARG_DST])
}

/// x → as many as y has along an axis, from `from` on. Where it is the gradient of a concatenation's input it lies as
/// that, else plain. Where these elements are no whole blocks of x's layout, x is wanted plain.
pub fn slice(
    engine: &Rc<Engine>,
    request: &KernelRequest,
    axis: usize,
    from: usize,
) -> Result<PrimitiveKernel> {
    let ([whole], [part]) = (inputs(request)?, outputs(request)?);
    let mut extents = whole.shape.0.clone();
    let room = extents.get(axis).map_or(0, |extent| extent.saturating_sub(from));
    let length = part.shape.0.get(axis).copied().unwrap_or_default();
    extents.get_mut(axis).into_iter().for_each(|extent| *extent = length);
    if extents != part.shape.0 || length > room {
        let (part, whole) = (&part.shape, &whole.shape);
        return Err(Error::internal(format!("no {part} from {from} on along axis {axis} of {whole}")));
    }
    let concat = request.forward.and_then(Kernel::own::<PrimitiveKernel>);
    let to = match concat {
        Some(concat) => of_input(concat, axis, from, &extents)?,
        None => plain(engine, part)?,
    };
    let mut offsets = vec![0; extents.len()];
    offsets[axis] = from;
    let given = request.inputs[0].1.clone().filter(|layout| layout.dtype() == part.dtype);
    let given = given.map_or_else(|| plain(engine, whole), Ok)?;
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

/// z, x → z with x added to as many of its elements along an axis, from `from` on; over z if possible. Where these are
/// no whole blocks of z's layout, z is wanted plain.
pub fn add_slice(engine: &Rc<Engine>, request: &KernelRequest, axis: usize, from: usize) -> Result<Kernel> {
    let ([whole, part], [y]) = (inputs(request)?, outputs(request)?);
    let mut offsets = vec![0; part.shape.rank()];
    let differs = |(i, (a, b)): (usize, (&usize, &usize))| i != axis && a != b;
    let fits = axis < offsets.len()
        && part.shape.rank() == whole.shape.rank()
        && !part.shape.0.iter().zip(&whole.shape.0).enumerate().any(differs)
        && from + part.shape.0[axis] <= whole.shape.0[axis];
    if !fits || whole != y || part.dtype != y.dtype {
        let (part, whole) = (&part.shape, &whole.shape);
        return Err(Error::internal(format!("no {part} from {from} on along axis {axis} of {whole}")));
    }
    offsets[axis] = from;
    let given = |index: usize, spec: &Spec| {
        let layout = request.inputs[index].1.clone().filter(|layout| layout.dtype() == spec.dtype);
        layout.map_or_else(|| plain(engine, spec), Ok)
    };
    let (z, x) = (given(0, whole)?, given(1, part)?);
    let (z, seen) = match desc(&z)?.part(&part.shape.0, &offsets) {
        Ok(seen) => (z, seen),
        Err(_) => {
            let plain = plain(engine, whole)?;
            let seen = desc(&plain)?.part(&part.shape.0, &offsets)?;
            (plain, seen)
        }
    };
    let sum = reorder_with(engine, desc(&x)?, &seen, Attributes::adding(engine)?)?;
    let sum = PrimitiveKernel::new(engine, sum, &[sys::ARG_SRC], &[sys::ARG_DST])?.gives_in(0, z.clone());
    let sum = sum.of("");
    let (implementation, workspace) = (sum.implementation.clone(), sum.workspace);
    let kernel =
        Kernel::new(implementation, vec![z.clone(), x], vec![z], move |_, inputs, outputs, workspace| {
            let (from, to) = (inputs[0].clone(), outputs[0].clone());
            let first = move |_: &Scalars| {
                copy(&from, &to, to.bytes());
                Ok(())
            };
            Ok(in_turn(vec![Box::new(first), sum.bind(&inputs[1..], outputs, workspace)?]))
        });
    Ok(kernel.with_workspace(workspace).in_place(0))
}

/// Strips of images between ranks, all plain. Whoever runs the steps of several ranks moves them.
pub fn trade(engine: &Engine, request: &KernelRequest) -> Result<Kernel> {
    let inputs = request.inputs.iter().map(|(spec, _)| plain(engine, spec)).collect::<Result<_>>()?;
    let outputs = request.outputs.iter().map(|spec| plain(engine, spec)).collect::<Result<_>>()?;
    Ok(host_kernel("trade", inputs, outputs, |_, _, _| Ok(())))
}

/// x → zeros but for x, which begins at `before` along an axis; both plain.
pub fn pad(engine: &Engine, request: &KernelRequest, axis: usize, before: usize) -> Result<Kernel> {
    let ([x], [y]) = (inputs(request)?, outputs(request)?);
    let mut extents = x.shape.0.clone();
    extents.get_mut(axis).into_iter().for_each(|extent| *extent = y.shape.0[axis]);
    if extents != y.shape.0 || x.dtype != y.dtype || before + x.shape.0[axis] > y.shape.0[axis] {
        return Err(Error::internal(format!("{} from {before} on is no part of {}", x.shape, y.shape)));
    }
    // In bytes: what lies side by side of x, and where in as much of y.
    let side_by_side = |spec: &Spec| spec.shape.0[axis..].iter().product::<usize>() * spec.dtype.bytes();
    let (part, whole) = (side_by_side(x), side_by_side(y));
    let (rows, from) = (x.shape.0[..axis].iter().product::<usize>(), whole / y.shape.0[axis].max(1) * before);
    let layouts = (vec![plain(engine, x)?], vec![plain(engine, y)?]);
    Ok(host_kernel("pad", layouts.0, layouts.1, move |inputs, outputs, _| {
        outputs[0].zero();
        for row in 0..rows {
            copy(&inputs[0].slice(row * part, part), &outputs[0].slice(row * whole + from, part), part);
        }
        Ok(())
    }))
}

/// x → y: its axes in another order; both plain.
pub fn permute(engine: &Rc<Engine>, request: &KernelRequest, order: &Permutation) -> Result<PrimitiveKernel> {
    let ([x], [y]) = (inputs(request)?, outputs(request)?);
    if order.axes().len() != x.shape.rank() || order.of(&x.shape.0) != y.shape.0 {
        return Err(Error::internal(format!("{} in order {:?} is not {}", x.shape, order.axes(), y.shape)));
    }
    let mut strides = vec![1; x.shape.rank()];
    for axis in (1..strides.len()).rev() {
        strides[axis - 1] = strides[axis] * x.shape.0[axis];
    }
    let [whole, to] = [x, y].map(|spec| plain(engine, spec));
    let (whole, to) = (whole?, to?);
    let seen = Desc::strided(engine, &y.shape.0, &order.of(&strides), data_type(x.dtype)?)?;
    let desc = reorder_desc(engine, &seen, desc(&to)?)?;
    Ok(PrimitiveKernel::new(engine, desc, &[sys::ARG_SRC], &[sys::ARG_DST])?.sees_in(0, whole))
}

/// The layout in which the concatenation read the input that begins at this place.
fn of_input(concat: &PrimitiveKernel, axis: usize, from: usize, extents: &[usize]) -> Result<Layout> {
    let mut place = 0;
    for input in &concat.inputs {
        let dims = desc(input)?.dims()?;
        if place == from && dims.iter().zip(extents).all(|(&a, &b)| a == b as i64) {
            return Ok(input.clone());
        }
        place += dims[axis] as usize;
    }
    Err(Error::internal(format!("no input of the concatenation begins at {from}")))
}
