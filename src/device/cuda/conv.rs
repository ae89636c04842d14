//! Convolutions: cuDNN's products, with bias and ReLU by a kernel of our own.

use std::rc::Rc;

use super::dnn::{Convolution, Direction, Extents, Product};
use super::gpu::{Argument::*, Gpu};
use super::kernel::{CudaKernel, Operands, PART};
use super::layout::{
    Real, channels_last_in, image, input, narrowest, output, padded, padded_in, plain_in, width,
};
use super::norm::{column_parts, column_sums};
use super::simple::repad;
use crate::device::{Layout, Request};
use crate::error::Result;
use crate::graph::{Conv2d, DType, Spec};

/// What is to be multiplied, of the tensors x, w and y.
pub fn product(
    direction: Direction,
    conv: &Conv2d,
    real: Real,
    tf32: bool,
    [x, w, y]: [&Spec; 3],
) -> Result<Product> {
    let mut at = Extents { x: image(x)?, w: image(w)?, y: image(y)? };
    if conv.groups == 1 {
        (at.x[1], at.w[1]) = (padded(at.x[1], real), padded(at.w[1], real));
    }
    Ok(Product { direction, conv: *conv, real, tf32, at })
}

fn compiled(
    gpu: &Rc<Gpu>,
    direction: Direction,
    conv: &Conv2d,
    real: Real,
    tensors: [&Spec; 3],
) -> Result<Rc<Convolution>> {
    let product = product(direction, conv, real, gpu.tf32, tensors)?;
    Ok(Rc::new(Convolution::new(gpu, product)?))
}

/// Of x or w: with the padding that their product has.
fn operand(conv: &Conv2d, spec: &Spec, real: Real) -> Layout {
    if conv.groups == 1 { padded_in(spec, real) } else { channels_last_in(spec, real.dtype()) }
}

fn named(convolution: &Convolution, real: Real) -> String {
    format!("cudnn:engine {} {}", convolution.engine(), real.suffix())
}

/// x, w, b? → y
pub fn forward_pass(gpu: &Rc<Gpu>, request: &Request, conv: &Conv2d) -> Result<CudaKernel> {
    let (x, w, y) = (&input(request, 0)?.0, &input(request, 1)?.0, output(request, 0)?);
    let real = narrowest(&[x, y])?;
    let product = compiled(gpu, Direction::Forward, conv, real, [x, w, y])?;
    let mut inputs: Vec<Layout> = [x, w].map(|spec| operand(conv, spec, real)).into();
    inputs.extend(request.inputs.get(2).map(|(bias, _)| plain_in(bias, DType::F32)));
    let outputs = vec![channels_last_in(y, real.dtype())];
    let ([n, o, oh, ow], relu) = (image(y)?, conv.relu);
    let (name, scratch) = (named(&product, real), product.workspace());
    let bind = move |operands: &mut Operands| {
        let workspace = operands.scratch(scratch);
        let ([x, w], y) = ([0, 1].map(|index| operands.inputs[index].clone()), operands.outputs[0].clone());
        operands.push(product.bind(&x, &w, &y, &workspace)?);
        after(operands, real, n * oh * ow, o, relu)
    };
    Ok(CudaKernel::new(gpu, name, inputs, outputs, bind).with_workspace(scratch))
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

/// dy, w → dx
pub fn backward_data(gpu: &Rc<Gpu>, request: &Request, conv: &Conv2d) -> Result<CudaKernel> {
    let (dy, w, dx) = (&input(request, 0)?.0, &input(request, 1)?.0, output(request, 0)?);
    let real = narrowest(&[dx, dy])?;
    let product = compiled(gpu, Direction::BackwardData, conv, real, [dx, w, dy])?;
    let inputs = vec![channels_last_in(dy, real.dtype()), operand(conv, w, real)];
    let outputs = vec![operand(conv, dx, real)];
    let (name, scratch) = (named(&product, real), product.workspace());
    let bind = move |operands: &mut Operands| {
        let workspace = operands.scratch(scratch);
        let ([dy, w], dx) = ([0, 1].map(|index| operands.inputs[index].clone()), operands.outputs[0].clone());
        operands.push(product.bind(&w, &dy, &dx, &workspace)?);
        Ok(())
    };
    Ok(CudaKernel::new(gpu, name, inputs, outputs, bind).with_workspace(scratch))
}

/// x, dy → dw, db?, both f32 whatever is multiplied.
pub fn backward_weights(gpu: &Rc<Gpu>, request: &Request, conv: &Conv2d) -> Result<CudaKernel> {
    let (x, dy, dw) = (&input(request, 0)?.0, &input(request, 1)?.0, output(request, 0)?);
    let real = narrowest(&[x, dy])?;
    let product = compiled(gpu, Direction::BackwardWeights, conv, real, [x, dw, dy])?;
    let inputs = vec![operand(conv, x, real), channels_last_in(dy, real.dtype())];
    let mut outputs = vec![channels_last_in(dw, DType::F32)];
    outputs.extend(request.outputs.get(1).map(|bias| plain_in(bias, DType::F32)));
    let ([n, o, oh, ow], weights) = (image(dy)?, dw.shape.elements());
    let rows = n * oh * ow;
    let (name, scratch) = (named(&product, real), product.workspace());
    // cuDNN gives dw in the type of x and dy.
    let (given, channels) = (operand(conv, dw, real), image(dw)?[1]);
    let narrow = if real == Real::F32 { 0 } else { given.bytes() };
    let widths = [width(&given, channels), channels];
    let partials = if conv.bias { 4 * column_parts(rows, o) * o } else { 0 };
    let workspace = (scratch.next_multiple_of(PART) + narrow).max(partials);
    let bind = move |operands: &mut Operands| {
        let workspace = operands.scratch(scratch);
        let ([x, dy], dw) = ([0, 1].map(|index| operands.inputs[index].clone()), operands.outputs[0].clone());
        let to = if narrow > 0 { operands.scratch(narrow) } else { dw.clone() };
        operands.push(product.bind(&x, &dy, &to, &workspace)?);
        if widths[0] > channels {
            repad(operands, [real, Real::F32], weights / channels, widths, [&to, &dw])?;
        } else if narrow > 0 {
            let cast = format!("cast_{}", real.suffix());
            let arguments = [Memory(&to), Memory(&dw), Long(weights), Float(1.0)];
            operands.each(&cast, Real::F32, weights, &arguments)?;
        }
        if let Some(db) = operands.outputs.get(1).cloned() {
            operands.reuse();
            column_sums(operands, real, &dy, &db, rows, o)?;
        }
        Ok(())
    };
    Ok(CudaKernel::new(gpu, name, inputs, outputs, bind).with_workspace(workspace))
}
