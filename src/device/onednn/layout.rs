//! oneDNN's memory descriptors as the plan's layouts.

use std::fmt::Write;
use std::rc::Rc;

use super::handle::{Desc, Engine};
use super::sys;
use crate::device::Layout;
use crate::error::{Error, Result};
use crate::graph::{DType, Spec};

/// The layout that a descriptor describes. Its text holds everything about the descriptor that a reader of
/// the memory must know, so that equal text means equal memory:
/// "f32 128x32x28x28 aBcd16b" is blocked by 16 channels, "f32 10x20x5x5 cdba" has the outputs fastest.
pub fn layout(desc: Desc) -> Result<Layout> {
    let (text, bytes) = (describe(&desc)?, desc.bytes());
    let dtype = match desc.data_type() {
        Ok(sys::F32) => DType::F32,
        Ok(sys::BF16) => DType::BF16,
        Ok(sys::S32) => DType::I32,
        _ => DType::Saved,
    };
    Ok(Layout::new(text, bytes, dtype, Some(Rc::new(desc))))
}

/// The descriptor within a layout of this device.
pub fn desc(layout: &Layout) -> Result<&Desc> {
    layout
        .handle::<Desc>()
        .ok_or_else(|| Error::internal(format!("the layout {layout:?} is not one of the CPU device")))
}

/// Dense, last dimension fastest. A tensor of no dimensions is one of a single element.
pub fn plain(engine: &Engine, spec: &Spec) -> Result<Layout> {
    layout(plain_desc(engine, spec)?)
}

/// The plain layout in f32, whatever the tensor's own type.
pub fn plain_f32(engine: &Engine, spec: &Spec) -> Result<Layout> {
    plain(engine, &Spec { dtype: DType::F32, ..spec.clone() })
}

pub fn plain_desc(engine: &Engine, spec: &Spec) -> Result<Desc> {
    let extents = if spec.shape.rank() == 0 { &[1][..] } else { &spec.shape.0 };
    Desc::plain(engine, extents, data_type(spec.dtype)?)
}

/// oneDNN's name of an element type.
pub fn data_type(dtype: DType) -> Result<sys::DataType> {
    match dtype {
        DType::F32 => Ok(sys::F32),
        DType::BF16 => Ok(sys::BF16),
        DType::F16 => Err(Error::environment("--precision f16 is for --device cuda; use bf16 or f32")),
        DType::I32 => Ok(sys::S32),
        DType::U8 | DType::U16 => Err(Error::internal("a CPU is given numbers")),
        DType::Saved => Err(Error::internal("a saved tensor has no plain layout")),
    }
}

/// Source and destination of a reorder, as descriptors of equal dimensions. A weight may be known under two
/// views that hold its elements in one order, (O,I) and (O,C,H,W) say: then the dense one is seen as the other.
pub fn same_view(engine: &Engine, from: &Layout, to: &Layout) -> Result<(Layout, Layout)> {
    let (from_dims, to_dims) = (desc(from)?.dims()?, desc(to)?.dims()?);
    if from_dims == to_dims {
        return Ok((from.clone(), to.clone()));
    }
    let dense = |of: &Layout, dims: &[i64]| -> Result<Layout> {
        let extents: Vec<usize> = dims.iter().map(|&d| d as usize).collect();
        layout(Desc::plain(engine, &extents, desc(of)?.data_type()?)?)
    };
    if from_dims.iter().product::<i64>() == to_dims.iter().product::<i64>() {
        if *from == dense(from, &from_dims)? {
            return Ok((dense(from, &to_dims)?, to.clone()));
        }
        if *to == dense(to, &to_dims)? {
            return Ok((from.clone(), dense(to, &from_dims)?));
        }
    }
    Err(Error::internal(format!("no reorder from {from:?} to {to:?}: neither is dense")))
}

/// A descriptor in words: type, dimensions, order of the dimensions from slowest to fastest with the blocked
/// ones in capitals, inner blocks; then whatever does not follow from these.
fn describe(desc: &Desc) -> Result<String> {
    let ndims = desc.ndims()?;
    if ndims == 0 {
        return Ok("none".to_string());
    }
    if desc.scalar::<i32>(sys::QUERY_FORMAT_KIND)? != sys::FORMAT_KIND_BLOCKED {
        return Err(Error::internal("oneDNN chose an opaque layout, which dltrain cannot describe"));
    }
    let dims = desc.vector(sys::QUERY_DIMS, ndims)?;
    let padded = desc.vector(sys::QUERY_PADDED_DIMS, ndims)?;
    let strides = desc.vector(sys::QUERY_STRIDES, ndims)?;
    let blocks = desc.scalar::<i32>(sys::QUERY_INNER_NBLKS_S32)? as usize;
    let inner = desc.vector(sys::QUERY_INNER_IDXS, blocks)?;
    let sizes = desc.vector(sys::QUERY_INNER_BLKS, blocks)?;

    // How many elements of each dimension one inner block holds, and how many blocks there are of it.
    let mut block = vec![1; ndims];
    for (&d, &size) in inner.iter().zip(&sizes) {
        block[d as usize] *= size;
    }
    let outer: Vec<i64> = (0..ndims).map(|d| padded[d] / block[d]).collect();
    let order = order(&outer, &strides);

    let letter = |d: usize| (if block[d] > 1 { b'A' } else { b'a' } + d as u8) as char;
    let mut text = format!("{} {} ", type_name(desc.data_type()?), joined(&dims));
    text.extend(order.iter().map(|&d| letter(d)));
    for (&d, size) in inner.iter().zip(&sizes) {
        let _ = write!(text, "{size}{}", (b'a' + d as u8) as char);
    }

    // The strides of a dense tensor follow from the order; those of a single block are never used.
    let mut stride = block.iter().product::<i64>();
    let mut dense = true;
    for &d in order.iter().rev() {
        dense &= outer[d] == 1 || strides[d] == stride;
        stride *= outer[d];
    }
    if !dense {
        let _ = write!(text, " strides {}", joined(&strides));
    }
    if (0..ndims).any(|d| padded[d] != (dims[d] + block[d] - 1) / block[d] * block[d]) {
        let _ = write!(text, " padded {}", joined(&padded));
    }
    let offset = desc.scalar::<i64>(sys::QUERY_SUBMEMORY_OFFSET_S64)?;
    if offset != 0 {
        let _ = write!(text, " offset {offset}");
    }
    Ok(text)
}

/// The dimensions from slowest to fastest. One of a single block has no place of its own: it goes before the
/// first that comes after it by name, so that (N,1,H,W) reads the same whether called NCHW or NHWC.
fn order(outer: &[i64], strides: &[i64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..outer.len()).filter(|&d| outer[d] != 1).collect();
    order.sort_by_key(|&d| std::cmp::Reverse(strides[d]));
    for d in (0..outer.len()).filter(|&d| outer[d] == 1) {
        let place = order.iter().position(|&other| other > d).unwrap_or(order.len());
        order.insert(place, d);
    }
    order
}

fn joined(numbers: &[i64]) -> String {
    numbers.iter().map(i64::to_string).collect::<Vec<_>>().join("x")
}

fn type_name(data_type: sys::DataType) -> String {
    match data_type {
        sys::F32 => "f32".to_string(),
        sys::BF16 => "bf16".to_string(),
        sys::S32 => "s32".to_string(),
        sys::S8 => "s8".to_string(),
        sys::U8 => "u8".to_string(),
        other => format!("type{other}"),
    }
}
