//! Fully connected layers: oneDNN's inner product. An image is taken as it lies if a fast implementation can do
//! that; its weights are then seen as (O,C,H,W), whose elements stand in the order of the graph's (O,I).

use std::ptr::null;
use std::rc::Rc;

use super::handle::{Attributes, Desc, Engine, PrimitiveDesc, describe};
use super::layout::{data_type, desc};
use super::matmul;
use super::primitive::{PrimitiveKernel, attributes, forward, inputs, multiplied, outputs, prop_kind};
use super::sys;
use crate::device::KernelRequest;
use crate::error::{Error, Result};
use crate::graph::Spec;

/// The descriptors of a layer's tensors, all of layouts to be chosen.
struct Tensors {
    x: Desc,
    w: Desc,
    b: Option<Desc>,
    y: Desc,
}

impl Tensors {
    /// `types` are those of x (or dx), w (or dw) and y (or dy).
    fn new(engine: &Engine, bias: bool, [x, w, y]: [&Spec; 3], types: [sys::DataType; 3]) -> Result<Tensors> {
        let (samples, features) = (x.shape.batch(), y.shape.per_sample());
        let fits = w.shape.0 == [features, x.shape.per_sample()]
            && y.shape.0 == [samples, features]
            && (2..=5).contains(&x.shape.rank());
        if !fits {
            return Err(Error::internal(format!(
                "weights of {} cannot take {} to {}",
                w.shape, x.shape, y.shape
            )));
        }
        let mut weights = x.shape.0.clone();
        weights[0] = features;
        Ok(Tensors {
            x: Desc::any(engine, &x.shape.0, types[0])?,
            w: Desc::any(engine, &weights, types[1])?,
            b: bias.then(|| Desc::plain(engine, &[features], sys::F32)).transpose()?,
            y: Desc::any(engine, &y.shape.0, types[2])?,
        })
    }

    fn bias(&self) -> *const sys::MemoryDesc {
        self.b.as_ref().map_or(null(), Desc::raw)
    }
}

/// The primitive for an x in its present layout, which spares a reorder; where there is none or only a reference
/// implementation, for an x whose layout the library chooses. `create` is given the descriptor of x.
fn best(
    present: Option<&Desc>,
    tensors: &Tensors,
    create: impl Fn(*const sys::MemoryDesc) -> Result<PrimitiveDesc>,
) -> Result<PrimitiveDesc> {
    if let Some(desc) = present.and_then(|x| create(x.raw()).ok())
        && !desc.implementation().starts_with("ref")
    {
        return Ok(desc);
    }
    create(tensors.x.raw())
}

/// x, w, b? → y
pub fn forward_pass(
    engine: &Rc<Engine>,
    request: &KernelRequest,
    bias: bool,
    relu: bool,
) -> Result<PrimitiveKernel> {
    let [y] = outputs(request)?;
    let [x, w] = match bias {
        true => inputs(request).map(|[x, w, _]| [x, w])?,
        false => inputs(request)?,
    };
    let multiplied = multiplied([x, y]);
    let t = Tensors::new(engine, bias, [x, w, y], [multiplied, multiplied, data_type(y.dtype)?])?;
    let attributes = Attributes::new(engine, relu)?;
    let present = request.inputs[0].1.as_ref().map(desc).transpose()?;
    let create = |x| {
        describe!(engine, attributes => dnnl_inner_product_forward_primitive_desc_create(
            prop_kind(request), x, t.w.raw(), t.bias(), t.y.raw()
        ))
    };
    let desc = best(present, &t, create)?;
    let arguments = [sys::ARG_SRC, sys::ARG_WEIGHTS, sys::ARG_BIAS];
    PrimitiveKernel::new(engine, desc, &arguments[..request.inputs.len()], &[sys::ARG_DST])
}

/// The rows from which on the gradient of a layer's input is a product of matrices. oneDNN 3.2's inner product has half
/// the speed backward that it has forward (it seems to transpose the weights for each block of rows). For a product
/// they are reordered once, which costs as much as 50 to 100 rows.
const MANY_ROWS: usize = 256;

/// dy, w → dx as the product of two matrices, with weights in the layout that the library chooses for it.
fn product(engine: &Rc<Engine>, [dy, w, dx]: [&Spec; 3], of: sys::DataType) -> Result<PrimitiveKernel> {
    let plain = |spec: &Spec, of| Desc::plain(engine, &spec.shape.0, of);
    let (a, b, y) = (plain(dy, of)?, Desc::any(engine, &w.shape.0, of)?, plain(dx, data_type(dx.dtype)?)?);
    matmul::product(engine, [&a, &b, &y], &attributes(engine)?)
}

/// dy, w → dx
pub fn backward_data(engine: &Rc<Engine>, request: &KernelRequest) -> Result<PrimitiveKernel> {
    let ([dy, w], [dx]) = (inputs(request)?, outputs(request)?);
    let multiplied = multiplied([dx, dy]);
    let t = Tensors::new(engine, false, [dx, w, dy], [data_type(dx.dtype)?, multiplied, multiplied])?;
    if dx.shape.rank() == 2 && dx.shape.batch() >= MANY_ROWS {
        let product = product(engine, [dy, w, dx], multiplied)?;
        if !product.desc.implementation().starts_with("ref") {
            return Ok(product);
        }
    }
    let (attributes, hint) = (attributes(engine)?, forward(request)?);
    let create = |dx| {
        describe!(engine, attributes => dnnl_inner_product_backward_data_primitive_desc_create(
            dx, t.w.raw(), t.y.raw(), hint.desc.raw()
        ))
    };
    let desc = best(Some(&hint.desc.desc(sys::ARG_SRC)?), &t, create)?;
    PrimitiveKernel::new(engine, desc, &[sys::ARG_DIFF_DST, sys::ARG_WEIGHTS], &[sys::ARG_DIFF_SRC])
}

/// x, dy → dw, db?
pub fn backward_weights(engine: &Rc<Engine>, request: &KernelRequest, bias: bool) -> Result<PrimitiveKernel> {
    let [x, dy] = inputs(request)?;
    let dw = match bias {
        true => outputs(request).map(|[dw, _]| dw)?,
        false => outputs(request).map(|[dw]| dw)?,
    };
    let multiplied = multiplied([x, dy]);
    let t = Tensors::new(engine, bias, [x, dw, dy], [multiplied, sys::F32, multiplied])?;
    let (attributes, hint) = (attributes(engine)?, forward(request)?);
    let create = |x| {
        describe!(engine, attributes => dnnl_inner_product_backward_weights_primitive_desc_create(
            x, t.w.raw(), t.bias(), t.y.raw(), hint.desc.raw()
        ))
    };
    let desc = best(Some(&hint.desc.desc(sys::ARG_SRC)?), &t, create)?;
    let results = [sys::ARG_DIFF_WEIGHTS, sys::ARG_DIFF_BIAS];
    let results = &results[..request.outputs.len()];
    PrimitiveKernel::new(engine, desc, &[sys::ARG_SRC, sys::ARG_DIFF_DST], results)
}
