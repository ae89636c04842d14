//! Copies from one layout to another.

use std::rc::Rc;

use super::handle::{Desc, Engine, PrimitiveDesc};
use super::layout::{desc, same_view};
use super::primitive::{PrimitiveKernel, attributes};
use super::sys;
use crate::device::Layout;
use crate::error::Result;

/// A kernel that copies a tensor from one layout into another.
pub fn reorder(engine: &Rc<Engine>, from: &Layout, to: &Layout) -> Result<PrimitiveKernel> {
    let (from, to) = same_view(engine, from, to)?;
    let desc = reorder_desc(engine, desc(&from)?, desc(&to)?)?;
    PrimitiveKernel::new(engine, desc, &[sys::ARG_SRC], &[sys::ARG_DST])
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
