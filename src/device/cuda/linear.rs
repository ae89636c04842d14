//! Linear layers: one product by cuBLAS each. An image as input lies as the host has it, so that its numbers and the
//! weights' stand in the same order.

use std::rc::Rc;

use super::blas::Matrix;
use super::conv::after;
use super::gpu::Gpu;
use super::kernel::{Operands, cuda_kernel, multiplies};
use super::layout::{Real, input, narrowest, output, plain, plain_in};
use super::norm::{column_parts, column_sums};
use crate::device::{Kernel, KernelRequest, Memory};
use crate::error::{Error, Result};
use crate::graph::{DType, Spec};

/// (N, elements of a sample)
fn flat(spec: &Spec) -> [usize; 2] {
    [spec.shape.batch(), spec.shape.per_sample()]
}

fn matrix(memory: &Memory, real: Real, [rows, columns]: [usize; 2], transposed: bool) -> Matrix<'_> {
    Matrix { memory, real, rows, columns, transposed }
}

fn fits(request: &KernelRequest, x: &Spec, w: &Spec, y: &Spec) -> Result<()> {
    match (flat(x), &w.shape.0[..], flat(y)) {
        ([n, i], [o, inner], [m, k]) if n == m && *inner == i && *o == k => Ok(()),
        _ => {
            Err(Error::internal(format!("{} of {}, {} and {}", request.op.name(), x.shape, w.shape, y.shape)))
        }
    }
}

/// x, w, b? → y
pub fn forward_pass(gpu: &Rc<Gpu>, request: &KernelRequest, relu: bool) -> Result<Kernel> {
    let (x, w, y) = (&input(request, 0)?.0, &input(request, 1)?.0, output(request, 0)?);
    fits(request, x, w, y)?;
    let (real, result) = (narrowest(&[x, y])?, Real::of(y.dtype)?);
    let weights = plain(w);
    let mut inputs = vec![plain_in(x, real.dtype()), weights.clone()];
    inputs.extend(request.inputs.get(2).map(|(bias, _)| plain_in(bias, DType::F32)));
    let [of_x, of_w, of_y] = [flat(x), [w.shape.0[0], w.shape.0[1]], flat(y)];
    let bind = move |operands: &mut Operands| {
        let w = operands.multiplied(1, &weights, real)?;
        let (x, y) = (operands.inputs[0].clone(), operands.outputs[0].clone());
        let gpu = operands.gpu.clone();
        operands.push(move || {
            let (x, w) = (matrix(&x, real, of_x, false), matrix(&w, real, of_w, true));
            gpu.blas.multiply(&x, &w, &matrix(&y, result, of_y, false))
        });
        after(operands, result, of_y[0], of_y[1], relu)
    };
    Ok(multiplies(
        cuda_kernel(gpu, format!("cublas {}", real.suffix()), inputs, vec![plain(y)], bind),
        real,
        request,
    ))
}

/// dy, w → dx
pub fn backward_data(gpu: &Rc<Gpu>, request: &KernelRequest) -> Result<Kernel> {
    let (dy, w, dx) = (&input(request, 0)?.0, &input(request, 1)?.0, output(request, 0)?);
    fits(request, dx, w, dy)?;
    let (real, result) = (narrowest(&[dx, dy])?, Real::of(dx.dtype)?);
    let weights = plain(w);
    let inputs = vec![plain_in(dy, real.dtype()), weights.clone()];
    let [of_dy, of_w, of_dx] = [flat(dy), [w.shape.0[0], w.shape.0[1]], flat(dx)];
    let bind = move |operands: &mut Operands| {
        let w = operands.multiplied(1, &weights, real)?;
        let (dy, dx) = (operands.inputs[0].clone(), operands.outputs[0].clone());
        let gpu = operands.gpu.clone();
        operands.push(move || {
            let (dy, w) = (matrix(&dy, real, of_dy, false), matrix(&w, real, of_w, false));
            gpu.blas.multiply(&dy, &w, &matrix(&dx, result, of_dx, false))
        });
        Ok(())
    };
    Ok(multiplies(
        cuda_kernel(gpu, format!("cublas {}", real.suffix()), inputs, vec![plain(dx)], bind),
        real,
        request,
    ))
}

/// x, dy → dw, db?, both f32 whatever is multiplied.
pub fn backward_weights(gpu: &Rc<Gpu>, request: &KernelRequest) -> Result<Kernel> {
    let (x, dy, dw) = (&input(request, 0)?.0, &input(request, 1)?.0, output(request, 0)?);
    fits(request, x, dw, dy)?;
    let real = narrowest(&[x, dy])?;
    let inputs = vec![plain_in(x, real.dtype()), plain_in(dy, real.dtype())];
    let outputs = request.outputs.iter().map(|spec| plain_in(spec, DType::F32)).collect();
    let [of_x, of_dy, of_dw] = [flat(x), flat(dy), [dw.shape.0[0], dw.shape.0[1]]];
    let bias = request.outputs.len() > 1;
    let partials = if bias { 4 * column_parts(of_dy[0], of_dy[1]) * of_dy[1] } else { 0 };
    let bind = move |operands: &mut Operands| {
        let ([x, dy], dw) = ([0, 1].map(|index| operands.inputs[index].clone()), operands.outputs[0].clone());
        let (gpu, of) = (operands.gpu.clone(), dy.clone());
        operands.push(move || {
            let (dy, x) = (matrix(&of, real, of_dy, true), matrix(&x, real, of_x, false));
            gpu.blas.multiply(&dy, &x, &matrix(&dw, Real::F32, of_dw, false))
        });
        match operands.outputs.get(1).cloned() {
            Some(db) => column_sums(operands, real, &dy, &db, of_dy[0], of_dy[1]),
            None => Ok(()),
        }
    };
    let name = format!("cublas {}", real.suffix());
    Ok(cuda_kernel(gpu, name, inputs, outputs, bind).with_workspace(partials))
}
