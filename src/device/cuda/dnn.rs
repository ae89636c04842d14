//! cuDNN: its handle, descriptors, and convolutions with the algorithm chosen for them.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::rc::Rc;

use cudarc::cudnn::sys::{
    cudnnConvolutionMode_t, cudnnDataType_t, cudnnDeterminism_t, cudnnMathType_t, cudnnTensorFormat_t,
};

use super::gpu::Gpu;
use super::handle::{Context, Stream};
use super::layout::Real;
use super::sys::{
    self, Dnn, Performance, cudnnConvolutionDescriptor_t, cudnnFilterDescriptor_t, cudnnHandle_t,
    cudnnTensorDescriptor_t,
};
use super::tune::Choice;
use crate::device::Memory;
use crate::error::{Error, Result};
use crate::graph::Conv2d;

/// No algorithm may take more scratch memory than this: beyond it speed is bought with batch size.
const MOST_WORKSPACE: usize = 1 << 30;

/// Algorithms that cuDNN is asked for at once: more than it has for any direction.
const ROOM: usize = 16;

const NHWC: c_int = cudnnTensorFormat_t::CUDNN_TENSOR_NHWC as c_int;

pub struct DnnHandle {
    context: Rc<Context>,
    raw: cudnnHandle_t,
}

impl DnnHandle {
    pub fn new(context: &Rc<Context>, stream: &Stream) -> Result<DnnHandle> {
        let dnn = &context.libraries.dnn;
        let mut raw = ptr::null_mut();
        // SAFETY: the out-parameter is alive during the call; the context is current.
        unsafe { dnn.cudnnCreate(&mut raw) }?;
        let handle = DnnHandle { context: context.clone(), raw };
        // SAFETY: handle and stream are alive and of one context.
        unsafe { dnn.cudnnSetStream(raw, stream.raw()) }?;
        Ok(handle)
    }
}

/// Nobody can be told that freeing failed.
fn freed(outcome: sys::Outcome) {
    if let Err(failed) = outcome {
        log::debug!("{} failed with code {}", failed.call, failed.code);
    }
}

impl Drop for DnnHandle {
    fn drop(&mut self) {
        // SAFETY: made by `new`, destroyed once.
        freed(unsafe { self.context.libraries.dnn.cudnnDestroy(self.raw) });
    }
}

macro_rules! descriptor {
    ($name:ident, $raw:ty, $create:ident, $destroy:ident) => {
        struct $name {
            dnn: &'static Dnn,
            raw: $raw,
        }
        impl $name {
            fn create(dnn: &'static Dnn) -> Result<$name> {
                let mut raw = ptr::null_mut();
                // SAFETY: the out-parameter is alive during the call.
                unsafe { dnn.$create(&mut raw) }?;
                Ok($name { dnn, raw })
            }
        }
        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: made by `create`, destroyed once.
                freed(unsafe { self.dnn.$destroy(self.raw) });
            }
        }
    };
}
descriptor!(Tensor, cudnnTensorDescriptor_t, cudnnCreateTensorDescriptor, cudnnDestroyTensorDescriptor);
descriptor!(Filter, cudnnFilterDescriptor_t, cudnnCreateFilterDescriptor, cudnnDestroyFilterDescriptor);
descriptor!(
    Geometry,
    cudnnConvolutionDescriptor_t,
    cudnnCreateConvolutionDescriptor,
    cudnnDestroyConvolutionDescriptor
);

fn data_type(real: Real) -> c_int {
    (match real {
        Real::F32 => cudnnDataType_t::CUDNN_DATA_FLOAT,
        Real::BF16 => cudnnDataType_t::CUDNN_DATA_BFLOAT16,
        Real::F16 => cudnnDataType_t::CUDNN_DATA_HALF,
    }) as c_int
}

fn int(value: usize) -> Result<c_int> {
    c_int::try_from(value).map_err(|_| Error::usage(format!("an extent of {value} is too large for cuDNN")))
}

fn tensor(dnn: &'static Dnn, real: Real, [n, c, h, w]: [usize; 4]) -> Result<Tensor> {
    let tensor = Tensor::create(dnn)?;
    // SAFETY: the descriptor is alive.
    unsafe {
        dnn.cudnnSetTensor4dDescriptor(tensor.raw, NHWC, data_type(real), int(n)?, int(c)?, int(h)?, int(w)?)
    }?;
    Ok(tensor)
}

/// Which of a convolution's three products.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// x, w → y
    Forward,
    /// w, dy → dx
    BackwardData,
    /// x, dy → dw
    BackwardWeights,
}

/// One product of a convolution, described and with an algorithm.
pub struct Convolution {
    gpu: Rc<Gpu>,
    direction: Direction,
    real: Real,
    x: Tensor,
    w: Filter,
    y: Tensor,
    geometry: Geometry,
    pub choice: Choice,
}

/// Extents of x, w and y: (N,C,H,W), (O,C/groups,kh,kw), (N,O,OH,OW).
#[derive(Debug, Clone, Copy)]
pub struct Extents {
    pub x: [usize; 4],
    pub w: [usize; 4],
    pub y: [usize; 4],
}

impl Convolution {
    /// # Errors
    /// `Foreign` where cuDNN has no algorithm for it.
    pub fn new(
        gpu: &Rc<Gpu>,
        direction: Direction,
        conv: &Conv2d,
        real: Real,
        at: Extents,
    ) -> Result<Convolution> {
        let dnn = &gpu.context.libraries.dnn;
        let w = Filter::create(dnn)?;
        let geometry = Geometry::create(dnn)?;
        let ([o, c, kh, kw], mode) = (at.w, cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION as c_int);
        // SAFETY: the descriptors are alive.
        unsafe {
            dnn.cudnnSetFilter4dDescriptor(
                w.raw,
                data_type(real),
                NHWC,
                int(o)?,
                int(c)?,
                int(kh)?,
                int(kw)?,
            )?;
            dnn.cudnnSetConvolution2dDescriptor(
                geometry.raw,
                int(conv.padding[0])?,
                int(conv.padding[1])?,
                int(conv.stride[0])?,
                int(conv.stride[1])?,
                1,
                1,
                mode,
                // Sums are f32 in any type.
                data_type(Real::F32),
            )?;
            dnn.cudnnSetConvolutionGroupCount(geometry.raw, int(conv.groups)?)?;
            dnn.cudnnSetConvolutionMathType(geometry.raw, math_type(gpu, real))?;
        }
        let (x, y) = (tensor(dnn, real, at.x)?, tensor(dnn, real, at.y)?);
        let unset = Choice { algorithm: 0, math_type: 0, workspace: 0 };
        let mut convolution =
            Convolution { gpu: gpu.clone(), direction, real, x, w, y, geometry, choice: unset };
        let words = format!(
            "{direction:?} {} {:?} {:?} stride {:?} padding {:?} groups {}{}",
            real.suffix(),
            at.x,
            at.w,
            conv.stride,
            conv.padding,
            conv.groups,
            if gpu.tf32 { " tf32" } else { "" }
        );
        let choice = gpu.tuned.choice(&words, || convolution.choose())?;
        // SAFETY: the descriptor is alive.
        unsafe { dnn.cudnnSetConvolutionMathType(convolution.geometry.raw, choice.math_type) }?;
        convolution.choice = choice;
        Ok(convolution)
    }

    /// The fastest by cuDNN's own measurement of those that give the same bits every time and are modest in memory.
    fn choose(&self) -> Result<Choice> {
        let (dnn, handle) = (&self.gpu.context.libraries.dnn, self.gpu.dnn.raw);
        let (x, w, y, geometry) = (self.x.raw, self.w.raw, self.y.raw, self.geometry.raw);
        let mut found = [Performance::default(); ROOM];
        let mut count = 0;
        let (room, count_at, found_at) = (ROOM as c_int, &raw mut count, found.as_mut_ptr());
        // SAFETY: descriptors and handle are alive; there is room for as many answers as are asked for. What the call needs
        // of the GPU's memory it allocates and frees by itself.
        let (call, outcome) = unsafe {
            match self.direction {
                Direction::Forward => (
                    "cudnnFindConvolutionForwardAlgorithm",
                    dnn.cudnnFindConvolutionForwardAlgorithm(
                        handle, x, w, geometry, y, room, count_at, found_at,
                    ),
                ),
                Direction::BackwardData => (
                    "cudnnFindConvolutionBackwardDataAlgorithm",
                    dnn.cudnnFindConvolutionBackwardDataAlgorithm(
                        handle, w, y, geometry, x, room, count_at, found_at,
                    ),
                ),
                Direction::BackwardWeights => (
                    "cudnnFindConvolutionBackwardFilterAlgorithm",
                    dnn.cudnnFindConvolutionBackwardFilterAlgorithm(
                        handle, x, y, geometry, w, room, count_at, found_at,
                    ),
                ),
            }
        };
        outcome?;
        let repeats = cudnnDeterminism_t::CUDNN_DETERMINISTIC as c_int;
        let found = &found[..(count.max(0) as usize).min(ROOM)];
        let fits = |p: &&Performance| p.status == 0 && p.determinism == repeats && p.memory <= MOST_WORKSPACE;
        let best = found.iter().filter(fits).min_by(|a, b| a.time.total_cmp(&b.time));
        let Some(best) = best else {
            let why = "no algorithm that gives the same bits every time";
            return Err(Error::foreign("cuDNN", call, sys::CUDNN_STATUS_NOT_SUPPORTED.into(), why));
        };
        // In f32 proper: products rounded to tf32 are another precision, which has a name of its own.
        let math_type = if math_type(&self.gpu, self.real) == FMA { FMA } else { best.math_type };
        Ok(Choice { algorithm: best.algorithm, math_type, workspace: best.memory })
    }

    /// Enqueues the product of `a` and `b`, the operands in the order of the direction.
    ///
    /// # Safety
    /// The memories must be as large as the tensors described, the workspace as `choice` says.
    pub unsafe fn run(&self, a: &Memory, b: &Memory, to: &Memory, workspace: &Memory) -> Result<()> {
        let (dnn, handle) = (&self.gpu.context.libraries.dnn, self.gpu.dnn.raw);
        let (x, w, y, geometry) = (self.x.raw, self.w.raw, self.y.raw, self.geometry.raw);
        let (one, zero) = (1.0f32, 0.0f32);
        let (alpha, beta): (*const c_void, *const c_void) =
            (ptr::from_ref(&one).cast(), ptr::from_ref(&zero).cast());
        let [a, b, to, scratch] = [a, b, to, workspace].map(|memory| memory.address().cast::<c_void>());
        let Choice { algorithm, workspace: bytes, .. } = self.choice;
        // SAFETY: the caller's for the memories; descriptors and handle are alive; the factors are read during the call.
        let outcome = unsafe {
            match self.direction {
                Direction::Forward => dnn.cudnnConvolutionForward(
                    handle, alpha, x, a, w, b, geometry, algorithm, scratch, bytes, beta, y, to,
                ),
                Direction::BackwardData => dnn.cudnnConvolutionBackwardData(
                    handle, alpha, w, a, y, b, geometry, algorithm, scratch, bytes, beta, x, to,
                ),
                Direction::BackwardWeights => dnn.cudnnConvolutionBackwardFilter(
                    handle, alpha, x, a, y, b, geometry, algorithm, scratch, bytes, beta, w, to,
                ),
            }
        };
        Ok(outcome?)
    }
}

const FMA: c_int = cudnnMathType_t::CUDNN_FMA_MATH as c_int;

/// Which arithmetic an algorithm may use.
fn math_type(gpu: &Gpu, real: Real) -> c_int {
    match real {
        Real::F32 if !gpu.tf32 => FMA,
        _ => cudnnMathType_t::CUDNN_TENSOR_OP_MATH as c_int,
    }
}
