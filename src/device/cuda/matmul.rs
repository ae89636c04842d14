//! Products of matrices that a batch gives on both sides, by cuBLAS, and softmax, by kernels of our own.

use std::rc::Rc;

use super::blas::{GemmBatch, Matrix};
use super::gpu::{Argument::*, Gpu};
use super::kernel::{Operands, cuda_kernel};
use super::layout::{Real, input, output, plain, plain_in};
use crate::device::{Kernel, KernelRequest};
use crate::error::{Error, Result};
use crate::graph::MatMul;

/// a, b → y
pub fn matmul(gpu: &Rc<Gpu>, request: &KernelRequest, of: MatMul) -> Result<Kernel> {
    let ([a, b], y) = ([&input(request, 0)?.0, &input(request, 1)?.0], output(request, 0)?);
    let [count, rows, inner, columns] = of
        .extents(&a.shape, &b.shape)
        .ok_or_else(|| Error::internal(format!("no product of {} and {}", a.shape, b.shape)))?;
    let real = Real::of(y.dtype)?;
    // As they are kept: rows and columns of what may be a transpose.
    let kept = |extents: [usize; 2], transposed: bool| match extents {
        [rows, columns] if transposed => [columns, rows],
        extents => extents,
    };
    let [of_a, of_b] = [kept([rows, inner], of.transposed[0]), kept([inner, columns], of.transposed[1])];
    let inputs = [a, b].map(|spec| plain_in(spec, real.dtype())).to_vec();
    let bind = move |operands: &mut Operands| {
        let ([a, b], y) = ([0, 1].map(|index| operands.inputs[index].clone()), operands.outputs[0].clone());
        let gpu = operands.gpu.clone();
        operands.push(move || {
            let matrix = |memory, [rows, columns]: [usize; 2], transposed| Matrix {
                memory,
                real,
                rows,
                columns,
                transposed,
            };
            let (a, b) = (matrix(&a, of_a, of.transposed[0]), matrix(&b, of_b, of.transposed[1]));
            gpu.blas.multiply_all(
                &a,
                &b,
                &matrix(&y, [rows, columns], false),
                GemmBatch { count, scale: of.scale },
            )
        });
        Ok(())
    };
    Ok(cuda_kernel(gpu, format!("cublas {}", real.suffix()), inputs, vec![plain(y)], bind))
}

/// x → y
pub fn softmax(gpu: &Rc<Gpu>, request: &KernelRequest) -> Result<Kernel> {
    let x = &input(request, 0)?.0;
    let (real, width) = (Real::of(x.dtype)?, x.shape.0.last().copied().unwrap_or(1));
    let rows = x.shape.elements() / width.max(1);
    let bind = move |operands: &mut Operands| {
        let (x, y) = (&operands.inputs[0], &operands.outputs[0]);
        let grid = [operands.gpu.at_most(rows), 1, 1];
        operands.launch(
            &format!("softmax_{}", real.suffix()),
            grid,
            &[Memory(x), Memory(y), Long(rows), Int(width)],
        )
    };
    Ok(cuda_kernel(gpu, "own:softmax", vec![plain(x)], vec![plain(x)], bind).in_place(0))
}

/// dy, y → dx
pub fn softmax_backward(gpu: &Rc<Gpu>, request: &KernelRequest) -> Result<Kernel> {
    let y = &input(request, 1)?.0;
    let (real, width) = (Real::of(y.dtype)?, y.shape.0.last().copied().unwrap_or(1));
    let rows = y.shape.elements() / width.max(1);
    let bind = move |operands: &mut Operands| {
        let ([dy, y], dx) = ([0, 1].map(|index| &operands.inputs[index]), &operands.outputs[0]);
        let arguments = [Memory(dy), Memory(y), Memory(dx), Long(rows), Int(width)];
        let grid = [operands.gpu.at_most(rows), 1, 1];
        operands.launch(&format!("softmax_backward_{}", real.suffix()), grid, &arguments)
    };
    Ok(cuda_kernel(gpu, "own:softmax", vec![plain(y), plain(y)], vec![plain(y)], bind).in_place(0))
}
