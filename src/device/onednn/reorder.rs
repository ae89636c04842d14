//! Copies from one layout to another.

use std::ops::Range;
use std::rc::Rc;

use super::handle::{Desc, Engine, PrimitiveDesc};
use super::layout::{data_type, desc, same_view};
use super::primitive::{PrimitiveKernel, attributes};
use super::sys;
use crate::device::Layout;
use crate::error::Result;
use crate::graph::Spec;

/// A kernel that copies a tensor from one layout into another.
pub fn reorder(engine: &Rc<Engine>, from: &Layout, to: &Layout) -> Result<PrimitiveKernel> {
    let (from, to) = same_view(engine, from, to)?;
    let desc = reorder_desc(engine, desc(&from)?, desc(&to)?)?;
    PrimitiveKernel::new(engine, desc, &[sys::ARG_SRC], &[sys::ARG_DST])
}

/// See `Device::reorder_rows`.
pub fn rows(
    engine: &Rc<Engine>,
    spec: &Spec,
    layout: &Layout,
    rows: &Range<usize>,
    into: bool,
) -> Result<Option<PrimitiveKernel>> {
    let whole = desc(layout)?;
    let mut dims: Vec<usize> = whole.dims()?.into_iter().map(|extent| extent as usize).collect();
    // Another view of the tensor, a grouped convolution's say, has other rows.
    if dims.first() != spec.shape.0.first() {
        return Ok(None);
    }
    let mut offsets = vec![0; dims.len()];
    (dims[0], offsets[0]) = (rows.len(), rows.start);
    let Ok(part) = whole.part(&dims, &offsets) else { return Ok(None) };
    let plain = Desc::plain(engine, &dims, data_type(spec.dtype)?)?;
    let [from, to] = if into { [&plain, &part] } else { [&part, &plain] };
    PrimitiveKernel::new(engine, reorder_desc(engine, from, to)?, &[sys::ARG_SRC], &[sys::ARG_DST]).map(Some)
}

/// The primitive for tensors, or parts of such, of equal dimensions.
pub fn reorder_desc(engine: &Rc<Engine>, from: &Desc, to: &Desc) -> Result<PrimitiveDesc> {
    let attributes = attributes(engine)?;
    // SAFETY: descriptors and attributes outlive the call.
    PrimitiveDesc::create(engine, "dnnl_reorder_primitive_desc_create", |desc| unsafe {
        (engine.library.functions.dnnl_reorder_primitive_desc_create)(
            desc,
            from.raw(),
            engine.raw(),
            to.raw(),
            engine.raw(),
            attributes.raw(),
        )
    })
}
