//! Layer normalisation of rows that lie as the host has them, by kernels of our own.

use std::rc::Rc;

use super::gpu::{Argument, Argument::*, Gpu};
use super::kernel::{Operands, PART, cuda_kernel};
use super::layout::{Real, input, output, plain, plain_in};
use super::norm::{column_parts, join_columns};
use crate::device::{Kernel, KernelRequest};
use crate::error::{Error, Result};
use crate::graph::{DType, Spec};

/// (rows, elements of a row)
fn rows(x: &Spec, mean: &Spec) -> (usize, usize) {
    let rows = mean.shape.elements();
    (rows, x.shape.elements() / rows.max(1))
}

/// x, w?, b? → y, mean, variance
pub fn forward_pass(gpu: &Rc<Gpu>, request: &KernelRequest, epsilon: f32) -> Result<Kernel> {
    let (x, mean) = (&input(request, 0)?.0, output(request, 1)?);
    let (real, (rows, width)) = (Real::of(x.dtype)?, rows(x, mean));
    let mut inputs = vec![plain(x)];
    inputs.extend(request.inputs[1..].iter().map(|(spec, _)| plain_in(spec, DType::F32)));
    let outputs = request.outputs.iter().map(plain).collect();
    let bind = move |operands: &mut Operands| {
        let [y, mean, variance] = operands.outputs else {
            return Err(Error::internal("a layer normalisation gives three tensors"));
        };
        let [w, b] = [1, 2].map(|index| operands.inputs.get(index).map_or(Null, Memory));
        let x = Memory(&operands.inputs[0]);
        let (name, grid) = (format!("layer_norm_{}", real.suffix()), [operands.gpu.at_most(rows), 1, 1]);
        let last = [Long(rows), Int(width), Float(epsilon)];
        let arguments: Vec<Argument> =
            [x, Memory(y), w, b, Memory(mean), Memory(variance)].into_iter().chain(last).collect();
        operands.launch(&name, grid, &arguments)
    };
    Ok(cuda_kernel(gpu, "own:layer norm", inputs, outputs, bind))
}

/// dy, x, w?, mean, variance → dx, dw?, db?
pub fn backward(gpu: &Rc<Gpu>, request: &KernelRequest, epsilon: f32, affine: bool) -> Result<Kernel> {
    let (x, mean) = (&input(request, 1)?.0, &input(request, request.inputs.len() - 1)?.0);
    let (real, (rows, width)) = (Real::of(x.dtype)?, rows(x, mean));
    let inputs = request.inputs.iter().map(|(spec, _)| plain(spec)).collect();
    let outputs = request.outputs.iter().map(plain).collect();
    let parts = column_parts(rows, width);
    let partial = (4 * parts * width).next_multiple_of(PART);
    let bind = move |operands: &mut Operands| {
        let (read, written) = (operands.inputs.to_vec(), operands.outputs.to_vec());
        let [dy, x, middle @ ..] = &read[..] else {
            return Err(Error::internal("a layer normalisation's gradient without its input"));
        };
        let (w, [mean, variance]) = match middle {
            [w, mean, variance] => (Memory(w), [mean, variance]),
            [mean, variance] => (Null, [mean, variance]),
            _ => return Err(Error::internal("a layer normalisation's gradient without its moments")),
        };
        if let [_, dw, db] = &written[..] {
            let [of_w, of_b] = [0, 1].map(|_| operands.scratch(partial));
            let moments =
                [Memory(dy), Memory(x), Memory(mean), Memory(variance), Memory(&of_w), Memory(&of_b)];
            let last = [Long(rows), Int(width), Int(parts), Float(epsilon)];
            let arguments: Vec<Argument> = moments.into_iter().chain(last).collect();
            let grid = [width.div_ceil(32) as u32, parts as u32, 1];
            operands.launch_in([32, 8], &format!("layer_norm_sums_{}", real.suffix()), grid, &arguments)?;
            join_columns(operands, &of_w, dw, width, parts)?;
            join_columns(operands, &of_b, db, width, parts)?;
        }
        let first = [Memory(dy), Memory(x), w, Memory(mean), Memory(variance), Memory(&written[0])];
        let arguments: Vec<Argument> =
            first.into_iter().chain([Long(rows), Int(width), Float(epsilon)]).collect();
        let (name, grid) =
            (format!("layer_norm_backward_{}", real.suffix()), [operands.gpu.at_most(rows), 1, 1]);
        operands.launch(&name, grid, &arguments)
    };
    let kernel = cuda_kernel(gpu, "own:layer norm", inputs, outputs, bind).in_place(0);
    Ok(if affine { kernel.with_workspace(2 * partial) } else { kernel })
}
