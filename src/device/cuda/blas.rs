//! cuBLAS: one handle, and the products of linear layers and of attention.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::rc::Rc;

use cudarc::cublas::sys::{
    cublasComputeType_t, cublasGemmAlgo_t, cublasMath_t, cublasOperation_t, cudaDataType_t,
};

use super::handle::{Context, CudaStream, allocate};
use super::layout::Real;
use super::sys::cublasHandle_t;
use crate::device::Memory;
use crate::error::{Error, Result};

/// Scratch memory that cuBLAS is given once: what its reference recommends for Hopper. Without it cuBLAS would allocate
/// when it likes, and might not repeat its bits.
const WORKSPACE: usize = 32 << 20;

/// A product that is cut along its inner dimension adds the parts up in f32, also where its result is halves.
const MATH: c_int = cublasMath_t::CUBLAS_DEFAULT_MATH as c_int
    | cublasMath_t::CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION as c_int;

pub struct BlasHandle {
    context: Rc<Context>,
    raw: cublasHandle_t,
    compute_type: c_int,
    _workspace: Memory,
}

/// How many products there are, of matrices one after the other, and what each is multiplied with.
#[derive(Clone, Copy)]
pub struct GemmBatch {
    pub count: usize,
    pub scale: f32,
}

/// A matrix in memory, row by row.
pub struct Matrix<'a> {
    pub memory: &'a Memory,
    pub real: Real,
    pub rows: usize,
    pub columns: usize,
    /// Whether the product takes its transpose.
    pub transposed: bool,
}

impl BlasHandle {
    pub fn new(context: &Rc<Context>, stream: &CudaStream, tf32: bool) -> Result<BlasHandle> {
        let blas = &context.libraries.blas;
        let mut raw = ptr::null_mut();
        // SAFETY: the out-parameter is alive during the call; the context is current.
        unsafe { blas.cublasCreate_v2(&mut raw) }?;
        let compute_type = match tf32 {
            true => cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32,
            false => cublasComputeType_t::CUBLAS_COMPUTE_32F,
        } as c_int;
        let workspace = allocate(context, WORKSPACE)?;
        // From here on dropping destroys it.
        let handle =
            BlasHandle { context: context.clone(), raw, compute_type, _workspace: workspace.clone() };
        // SAFETY: handle, stream and workspace are alive and of one context. Setting the stream takes the workspace
        // away, so the stream is first.
        unsafe {
            blas.cublasSetStream_v2(raw, stream.raw())?;
            blas.cublasSetWorkspace_v2(raw, workspace.address().cast(), workspace.bytes())?;
            blas.cublasSetMathMode(raw, MATH)?;
        }
        Ok(handle)
    }

    /// c = a·b, where each is taken row by row; summed in f32.
    pub fn multiply(&self, a: &Matrix, b: &Matrix, c: &Matrix) -> Result<()> {
        self.multiply_all(a, b, c, GemmBatch { count: 1, scale: 1.0 })
    }

    /// c = scale·a·b for each of several matrices in the memory of each, one after the other.
    pub fn multiply_all(&self, a: &Matrix, b: &Matrix, c: &Matrix, batch: GemmBatch) -> Result<()> {
        let shape = |m: &Matrix| if m.transposed { (m.columns, m.rows) } else { (m.rows, m.columns) };
        let ((rows, inner), (inner_b, columns)) = (shape(a), shape(b));
        if inner != inner_b || (rows, columns) != (c.rows, c.columns) || c.transposed {
            return Err(Error::internal("a product of matrices that do not fit"));
        }
        for m in [a, b, c] {
            if m.memory.bytes() < batch.count * m.rows * m.columns * m.real.bytes() {
                return Err(Error::internal("a matrix larger than its memory"));
            }
        }
        // SAFETY: sizes were checked against the memories, which are of this handle's context.
        unsafe { self.gemm(a, b, c, [rows, inner, columns], batch) }
    }

    /// cuBLAS takes matrices column by column: what it reads is the transpose of each, and cᵀ = bᵀ·aᵀ.
    ///
    /// # Safety
    /// The memories hold all of the matrices, and are of this handle's context.
    #[rustfmt::skip]
    unsafe fn gemm(&self, a: &Matrix, b: &Matrix, c: &Matrix, sizes: [usize; 3], batch: GemmBatch) -> Result<()> {
        let int = |value: usize| {
            c_int::try_from(value)
                .map_err(|_| Error::usage(format!("a matrix of {value} rows is too large for cuBLAS")))
        };
        let operation = |m: &Matrix| match m.transposed {
            true => cublasOperation_t::CUBLAS_OP_T as c_int,
            false => cublasOperation_t::CUBLAS_OP_N as c_int,
        };
        let (alpha, beta) = (ptr::from_ref(&batch.scale).cast::<c_void>(), ptr::from_ref(&0.0f32).cast());
        let [op_a, op_b] = [a, b].map(operation);
        let [n, k, m] = sizes.map(int);
        let [lda, ldb, ldc] = [a, b, c].map(|m| int(m.columns));
        let (m, n, k, lda, ldb, ldc) = (m?, n?, k?, lda?, ldb?, ldc?);
        let [at_a, at_b, at_c] = [a, b, c].map(|m| m.memory.address().cast::<c_void>());
        let [type_a, type_b, type_c] = [a, b, c].map(|m| data_type(m.real));
        let [step_a, step_b, step_c] = [a, b, c].map(|m| (m.rows * m.columns) as i64);
        let (blas, algorithm) = (&self.context.libraries.blas, cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT as c_int);
        // SAFETY: as the caller has it.
        unsafe {
            match batch.count {
                1 => blas.cublasGemmEx(
                    self.raw, op_b, op_a, m, n, k, alpha, at_b, type_b, ldb, at_a, type_a, lda, beta, at_c, type_c,
                    ldc, self.compute_type, algorithm,
                ),
                count => blas.cublasGemmStridedBatchedEx(
                    self.raw, op_b, op_a, m, n, k, alpha, at_b, type_b, ldb, step_b, at_a, type_a, lda, step_a, beta,
                    at_c, type_c, ldc, step_c, int(count)?, self.compute_type, algorithm,
                ),
            }
        }
        .map_err(|failed| {
            let [rows, inner, columns] = sizes;
            Error::from(failed).context(format!("{} × {rows}×{inner} by {inner}×{columns}", batch.count))
        })
    }
}

fn data_type(real: Real) -> c_int {
    (match real {
        Real::F32 => cudaDataType_t::CUDA_R_32F,
        Real::BF16 => cudaDataType_t::CUDA_R_16BF,
        Real::F16 => cudaDataType_t::CUDA_R_16F,
    }) as c_int
}

impl Drop for BlasHandle {
    fn drop(&mut self) {
        // SAFETY: made by `new`, destroyed once.
        if let Err(failed) = unsafe { self.context.libraries.blas.cublasDestroy_v2(self.raw) } {
            log::debug!("{} failed with code {}", failed.call, failed.code);
        }
    }
}
