//! Convolutions: cuDNN's products. Bias, ReLU and its gradient, and the moments of what a product gives are cuDNN's
//! where it does them along with the product and is faster so, else kernels of our own.

use std::rc::Rc;

use super::dnn::Convolution;
use super::gpu::{Argument::*, Gpu};
use super::kernel::{Operands, PART, cuda_kernel, multiplies};
use super::layout::{
    Real, channels_last_in, image, input, narrowest, output, padded, padded_in, plain_in, spatial, width,
};
use super::norm::{NormShape, column_parts, column_sums};
use super::normalised;
use super::product::{Direction, Extents, Product, Then};
use super::simple::repad;
use crate::device::{Kernel, KernelRequest, Layout, Memory as Bytes};
use crate::error::{Error, Result};
use crate::graph::{Conv, DType, Spec};

/// What is to be multiplied, of the tensors x, w and y, and what is to be done along with it.
pub fn product(
    direction: Direction,
    then: Then,
    conv: &Conv,
    real: Real,
    tf32: bool,
    [x, w, y]: [&Spec; 3],
) -> Result<Product> {
    let of = |spec: &Spec| spatial(spec).map(|([n, c], [d, h, w])| [n, c, d, h, w]);
    let mut at = Extents { x: of(x)?, w: of(w)?, y: of(y)? };
    if conv.groups == 1 {
        (at.x[1], at.w[1]) = (padded(at.x[1], real), padded(at.w[1], real));
    }
    Ok(Product { direction, conv: *conv, real, tf32, at, then })
}

pub fn compiled(
    gpu: &Rc<Gpu>,
    direction: Direction,
    then: Then,
    conv: &Conv,
    real: Real,
    tensors: [&Spec; 3],
) -> Result<Rc<Convolution>> {
    let product = product(direction, then, conv, real, gpu.tf32, tensors)?;
    Ok(Rc::new(Convolution::new(gpu, product)?))
}

/// The layout of x or w: with the padding that their product has.
fn operand(conv: &Conv, spec: &Spec, real: Real) -> Layout {
    if conv.groups == 1 { padded_in(spec, real) } else { channels_last_in(spec, real.dtype()) }
}

/// The layout of w where it is read: parameters lie in f32, and their halves beside them, but where a product wants
/// padding.
pub fn weights(conv: &Conv, spec: &Spec, real: Real) -> Layout {
    match operand(conv, spec, real) {
        padded if padded.handle::<usize>().is_some() => padded,
        _ => channels_last_in(spec, spec.dtype),
    }
}

pub fn named(convolution: &Convolution, real: Real) -> String {
    let more = if convolution.is_joined() { "+" } else { "" };
    format!("cudnn:engine {}{more} {}", convolution.engine(), real.suffix())
}

/// What a convolution does to y.
fn activation(conv: &Conv) -> Then {
    match (conv.bias, conv.relu) {
        (false, false) => Then::Nothing,
        (bias, relu) => Then::Activate { bias, relu },
    }
}

/// x, w, b? → y
pub fn forward_pass(gpu: &Rc<Gpu>, request: &KernelRequest, conv: &Conv) -> Result<Kernel> {
    let (x, w, y) = (&input(request, 0)?.0, &input(request, 1)?.0, output(request, 0)?);
    let real = narrowest(&[x, y])?;
    let product = compiled(gpu, Direction::Forward, activation(conv), conv, real, [x, w, y])?;
    let of_w = weights(conv, w, real);
    let mut inputs = vec![operand(conv, x, real), of_w.clone()];
    inputs.extend(request.inputs.get(2).map(|(bias, _)| plain_in(bias, DType::F32)));
    let outputs = vec![channels_last_in(y, real.dtype())];
    let ([n, o, oh, ow], relu) = (image(y)?, conv.relu);
    let (name, scratch) = (named(&product, real), product.workspace());
    let bind = move |operands: &mut Operands| {
        let workspace = operands.scratch(scratch);
        let w = operands.multiplied(1, &of_w, real)?;
        let memory: Vec<&Bytes> = match (operands.inputs, &operands.outputs[0]) {
            ([x, _, bias], y) if product.is_joined() => vec![x, &w, y, bias],
            ([x, _, ..], y) => vec![x, &w, y],
            _ => return Err(Error::internal("a convolution without a weight")),
        };
        operands.push(product.bind(&memory, &workspace)?);
        match product.is_joined() {
            true => Ok(()),
            false => after(operands, real, n * oh * ow, o, relu),
        }
    };
    Ok(multiplies(cuda_kernel(gpu, name, inputs, outputs, bind).with_workspace(scratch), real, request))
}

/// x, w → y, moments
pub fn forward_with_moments(gpu: &Rc<Gpu>, request: &KernelRequest, conv: &Conv) -> Result<Kernel> {
    let (x, w, y) = (&input(request, 0)?.0, &input(request, 1)?.0, output(request, 0)?);
    let real = narrowest(&[x, y])?;
    let product = compiled(gpu, Direction::Forward, Then::Sums, conv, real, [x, w, y])?;
    let of_w = weights(conv, w, real);
    let inputs = vec![operand(conv, x, real), of_w.clone()];
    let shape = NormShape::of(y)?;
    let outputs = vec![channels_last_in(y, real.dtype()), shape.summed(output(request, 1)?)];
    let (name, scratch) = (named(&product, real), product.workspace());
    let workspace = if product.is_joined() { scratch } else { scratch.max(shape.partials()) };
    let bind = move |operands: &mut Operands| {
        let workspace = operands.scratch(scratch);
        let w = &operands.multiplied(1, &of_w, real)?;
        let ([x, _], [y, moments]) = (operands.inputs, operands.outputs) else {
            return Err(Error::internal("a convolution with moments has two inputs and two outputs"));
        };
        if product.is_joined() {
            let [sum, squares] = shape.sums_in(moments);
            operands.push(product.bind(&[x, w, y, &sum, &squares], &workspace)?);
            Ok(())
        } else {
            operands.push(product.bind(&[x, w, y], &workspace)?);
            operands.reuse();
            shape.moments(operands, y, moments, true)
        }
    };
    Ok(multiplies(cuda_kernel(gpu, name, inputs, outputs, bind).with_workspace(workspace), real, request))
}

/// Adds the bias, if there is one (input 2), to output 0, then ReLU if asked for.
pub fn after(operands: &mut Operands, real: Real, rows: usize, channels: usize, relu: bool) -> Result<()> {
    let y = operands.outputs[0].clone();
    let max = if relu { f32::INFINITY } else { 0.0 };
    if let Some(bias) = operands.inputs.get(2).cloned() {
        let arguments = [Memory(&y), Memory(&bias), Long(rows), Int(channels), Float(max)];
        return operands.each("bias", real, rows * channels, &arguments);
    }
    match relu {
        true => {
            let n = rows * channels;
            operands.each("relu", real, n, &[Memory(&y), Memory(&y), Long(n), Float(max)])
        }
        false => Ok(()),
    }
}

/// dy, w → dx, or with what a ReLU gave as a third input dx where that is above 0
pub fn backward_data(gpu: &Rc<Gpu>, request: &KernelRequest, conv: &Conv) -> Result<Kernel> {
    let (dy, w, dx) = (&input(request, 0)?.0, &input(request, 1)?.0, output(request, 0)?);
    let real = narrowest(&[dx, dy])?;
    let then = if request.inputs.len() == 3 { Then::Mask } else { Then::Nothing };
    let product = compiled(gpu, Direction::BackwardData, then, conv, real, [dx, w, dy])?;
    let of_w = weights(conv, w, real);
    let mut inputs = vec![channels_last_in(dy, real.dtype()), of_w.clone()];
    inputs.extend(request.inputs.get(2).map(|(given, _)| operand(conv, given, real)));
    let outputs = vec![operand(conv, dx, real)];
    let (elements, scratch) = (outputs[0].bytes() / real.bytes(), product.workspace());
    let name = named(&product, real);
    let bind = move |operands: &mut Operands| {
        let workspace = operands.scratch(scratch);
        let w = &operands.multiplied(1, &of_w, real)?;
        let dx = &operands.outputs[0];
        let (memory, mask): (Vec<&Bytes>, _) = match operands.inputs {
            [dy, _, given] if product.is_joined() => (vec![dx, w, dy, given], None),
            [dy, _, rest @ ..] => (vec![dx, w, dy], rest.first()),
            _ => return Err(Error::internal("a convolution without a weight")),
        };
        operands.push(product.bind(&memory, &workspace)?);
        let Some(given) = mask else { return Ok(()) };
        let arguments = [Memory(dx), Memory(given), Memory(dx), Long(elements), Float(f32::INFINITY)];
        operands.each("relu_backward", real, elements, &arguments)
    };
    Ok(multiplies(cuda_kernel(gpu, name, inputs, outputs, bind).with_workspace(scratch), real, request))
}

/// dy, w, z → dx + z, written over z: cuDNN adds to what lies there already (beta = 1), or an addition follows.
pub fn backward_data_to(gpu: &Rc<Gpu>, request: &KernelRequest, conv: &Conv) -> Result<Kernel> {
    let (dy, w, dx) = (&input(request, 0)?.0, &input(request, 1)?.0, output(request, 0)?);
    let real = narrowest(&[dx, dy])?;
    let product = compiled(gpu, Direction::BackwardData, Then::Accumulate, conv, real, [dx, w, dy])?;
    let layout = operand(conv, dx, real);
    let of_w = weights(conv, w, real);
    let inputs = vec![channels_last_in(dy, real.dtype()), of_w.clone(), layout.clone()];
    let (bytes, scratch, name) = (layout.bytes(), product.workspace(), named(&product, real));
    let workspace = scratch.next_multiple_of(PART) + if product.is_joined() { 0 } else { bytes };
    let bind = move |operands: &mut Operands| {
        let workspace = operands.scratch(scratch);
        let w = &operands.multiplied(1, &of_w, real)?;
        let ([dy, _, z], [dx]) = (operands.inputs, operands.outputs) else {
            return Err(Error::internal("a convolution's gradient that is added has three inputs"));
        };
        if product.is_joined() {
            if z.address() != dx.address() {
                operands.copy(z, dx, bytes);
            }
            operands.push(product.bind(&[dx, w, dy], &workspace)?);
            return Ok(());
        }
        let (part, n) = (operands.scratch(bytes), bytes / real.bytes());
        operands.push(product.bind(&[&part, w, dy], &workspace)?);
        operands.each("add", real, n, &[Memory(z), Memory(&part), Memory(dx), Long(n), Bool(false)])
    };
    let kernel = cuda_kernel(gpu, name, inputs, vec![layout], bind).with_workspace(workspace).in_place(2);
    Ok(multiplies(kernel, real, request))
}

/// x, dy → dw, db?, both f32 whatever is multiplied; or x, dy, scale → dw, of what x is normalised to.
pub fn backward_weights(gpu: &Rc<Gpu>, request: &KernelRequest, conv: &Conv) -> Result<Kernel> {
    let (x, dy, dw) = (&input(request, 0)?.0, &input(request, 1)?.0, output(request, 0)?);
    let real = narrowest(&[x, dy])?;
    let tensors = [x, dw, dy];
    let product = match request.inputs.len() {
        3 => normalised::product(gpu, Direction::BackwardWeights, conv, real, tensors)?,
        _ => compiled(gpu, Direction::BackwardWeights, Then::Nothing, conv, real, tensors)?,
    };
    let mut inputs = vec![operand(conv, x, real), channels_last_in(dy, real.dtype())];
    inputs.extend(request.inputs.get(2).map(|(scale, _)| plain_in(scale, real.dtype())));
    let mut outputs = vec![channels_last_in(dw, DType::F32)];
    outputs.extend(request.outputs.get(1).map(|bias| plain_in(bias, DType::F32)));
    let ([n, o, oh, ow], weights) = (image(dy)?, dw.shape.elements());
    let rows = n * oh * ow;
    let (name, scratch) = (named(&product, real), product.workspace());
    // cuDNN gives dw in the type of x and dy.
    let (given, channels) = (operand(conv, dw, real), image(dw)?[1]);
    let widths = [width(&given, channels), channels];
    let padded = widths[0] > channels;
    let narrow = if padded || real == Real::F32 { 0 } else { weights * real.bytes() };
    let partials = if conv.bias { 4 * column_parts(rows, o) * o } else { 0 };
    let workspace = (scratch.next_multiple_of(PART) + if padded { given.bytes() } else { 0 }).max(partials);
    let bind = move |operands: &mut Operands| {
        let workspace = operands.scratch(scratch);
        let [x, dy] = [0, 1].map(|index| operands.inputs[index].clone());
        let dw = operands.outputs[0].slice(0, 4 * weights);
        let gradient = (narrow > 0).then(|| operands.gpu.narrow.of(operands.gpu, &dw, real));
        let gradient = gradient.transpose()?;
        let to = match &gradient {
            Some(gradient) => gradient.halves.clone(),
            None if padded => operands.scratch(given.bytes()),
            None => dw.clone(),
        };
        let scale = operands.inputs.get(2).map(normalised::rows_of);
        let memory: Vec<&Bytes> = [&x, &to, &dy].into_iter().chain(scale.iter().flatten()).collect();
        operands.push(product.bind(&memory, &workspace)?);
        if padded {
            repad(operands, [real, Real::F32], weights / channels, widths, [&to, &dw])?;
        }
        if let Some(gradient) = gradient {
            operands.widen(gradient, &dw, real)?;
        }
        if let Some(db) = operands.outputs.get(1).cloned() {
            operands.reuse();
            column_sums(operands, real, &dy, &db, rows, o)?;
        }
        Ok(())
    };
    Ok(Kernel { kept: narrow, ..cuda_kernel(gpu, name, inputs, outputs, bind).with_workspace(workspace) })
}
