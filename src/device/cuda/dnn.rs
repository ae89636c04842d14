//! cuDNN: its handle, and convolutions with the engine chosen for them.

use std::ffi::c_int;
use std::ptr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use cudarc::cudnn::sys::{cudnnConvolutionMode_t, cudnnDataType_t};

use super::backend::{self, Bound, Configuration, Descriptor, Kind, Name, Plan, Target};
use super::gpu::Gpu;
use super::handle::{Context, Stream, allocate};
use super::layout::Real;
use super::sys::{self, Dnn, cudnnHandle_t};
use super::tune::Choice;
use crate::device::Memory;
use crate::device::memory::ALIGNMENT;
use crate::error::{self, Error, Result};
use crate::graph::Conv2d;

/// No engine may take more scratch memory than this: beyond it speed is bought with batch size.
const MOST_WORKSPACE: usize = 1 << 30;

/// Engines that are timed: cuDNN names first what it takes for fast.
const TIMED: usize = 10;

/// Runs of each, of which the mean counts.
const REPEATS: u32 = 5;

pub struct DnnHandle {
    context: Rc<Context>,
    pub raw: cudnnHandle_t,
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

fn data_type(real: Real) -> c_int {
    (match real {
        Real::F32 => cudnnDataType_t::CUDNN_DATA_FLOAT,
        Real::BF16 => cudnnDataType_t::CUDNN_DATA_BFLOAT16,
        Real::F16 => cudnnDataType_t::CUDNN_DATA_HALF,
    }) as c_int
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

/// Extents of x, w and y: (N,C,H,W), (O,C/groups,kh,kw), (N,O,OH,OW).
#[derive(Debug, Clone, Copy)]
pub struct Extents {
    pub x: [usize; 4],
    pub w: [usize; 4],
    pub y: [usize; 4],
}

/// The numbers of x, w and y in a graph.
const NUMBERS: [i64; 3] = [1, 2, 3];

/// What is multiplied: which product, of what geometry, type and extents.
#[derive(Debug, Clone, Copy)]
pub struct Product {
    pub direction: Direction,
    pub conv: Conv2d,
    pub real: Real,
    /// Whether f32 may be rounded to tf32's 10 bits.
    pub tf32: bool,
    pub at: Extents,
}

impl Product {
    /// What the choice is kept under.
    fn words(&self) -> String {
        let Product { direction, conv, real, tf32, at } = self;
        format!(
            "{direction:?} {} {:?} {:?} stride {:?} padding {:?} groups {}{}",
            real.suffix(),
            at.x,
            at.w,
            conv.stride,
            conv.padding,
            conv.groups,
            if *tf32 && *real == Real::F32 { " tf32" } else { "" }
        )
    }

    /// Bytes of x, w and y.
    fn bytes(&self) -> [usize; 3] {
        [self.at.x, self.at.w, self.at.y].map(|at| at.iter().product::<usize>() * self.real.bytes())
    }

    /// As cuDNN's graph. Groups follow from the channels of x and w.
    fn graph(&self, dnn: &'static Dnn, target: &Target) -> sys::Outcome<Rc<Descriptor>> {
        let pair = |values: [usize; 2]| values.map(|value| value as i64);
        let (mode, padding) =
            (cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION as c_int, pair(self.conv.padding));
        let how = Descriptor::new(dnn, Kind::CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR)?
            // Sums are f32 in any type.
            .choose(Name::CUDNN_ATTR_CONVOLUTION_COMP_TYPE, backend::DATA_TYPE, data_type(Real::F32))?
            .choose(Name::CUDNN_ATTR_CONVOLUTION_CONV_MODE, backend::CONVOLUTION_MODE, mode)?
            .set(Name::CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, &[2i64])?
            .set(Name::CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, &padding)?
            .set(Name::CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, &padding)?
            .set(Name::CUDNN_ATTR_CONVOLUTION_DILATIONS, &[1i64, 1])?
            .set(Name::CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, &pair(self.conv.stride))?
            .finalize()?;
        let tensor = |number: i64, at: [usize; 4]| {
            let [n, c, h, w] = at.map(|extent| extent as i64);
            // Channels innermost.
            let strides = [h * w * c, 1, w * c, c];
            backend::tensor(dnn, number, data_type(self.real), [n, c, h, w], strides, ALIGNMENT)
        };
        let [x, w, y] = [0, 1, 2].map(|i| tensor(NUMBERS[i], [self.at.x, self.at.w, self.at.y][i]));
        let (kind, [x_is, w_is, y_is, how_is, alpha_is, beta_is]) = self.names();
        let operation = Descriptor::new(dnn, kind)?
            .join(x_is, &[&x?])?
            .join(w_is, &[&w?])?
            .join(y_is, &[&y?])?
            .join(how_is, &[&how])?
            .set(alpha_is, &[1.0f32])?
            .set(beta_is, &[0.0f32])?
            .finalize()?;
        backend::graph(target, &operation)
    }

    /// The operation, and its attributes: x, w, y, geometry, alpha, beta.
    fn names(&self) -> (Kind, [Name; 6]) {
        use Name::*;
        match self.direction {
            Direction::Forward => (
                Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                [
                    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
                ],
            ),
            Direction::BackwardData => (
                Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                [
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
                ],
            ),
            Direction::BackwardWeights => (
                Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                [
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
                ],
            ),
        }
    }

    /// The ways to compute it that serve, in cuDNN's order; the same for a library, a GPU and a product.
    pub fn ways(&self, dnn: &'static Dnn, target: &Target) -> sys::Outcome<Vec<Configuration>> {
        // f32 proper is another precision than tf32, and halves are not to be rounded once more on the way.
        let (tensor_cores, transforms) = (self.real != Real::F32 || self.tf32, self.real == Real::F32);
        let mut ways = backend::configurations(&self.graph(dnn, target)?, target)?;
        ways.retain(|way| way.serves(tensor_cores, transforms));
        Ok(ways)
    }
}

/// The plan of one way, unless cuDNN finds only now that the engine does not serve, or takes too much memory.
pub fn plan(way: &Configuration, target: &Target) -> sys::Outcome<Option<Rc<Plan>>> {
    match way.plan(target) {
        Ok(plan) => Ok((plan.workspace <= MOST_WORKSPACE).then(|| Rc::new(plan))),
        Err(failed) if backend::unsuitable(&failed) => Ok(None),
        Err(failed) => Err(failed),
    }
}

/// One product of a convolution with the plan that computes it.
pub struct Convolution {
    gpu: Rc<Gpu>,
    product: Product,
    plan: Rc<Plan>,
}

impl Convolution {
    /// # Errors
    /// `Foreign` where cuDNN has no engine for it.
    pub fn new(gpu: &Rc<Gpu>, product: Product) -> Result<Convolution> {
        let target = Target::Gpu(gpu.dnn.raw);
        let ways = product.ways(&gpu.context.libraries.dnn, &target)?;
        let words = product.words();
        let known = gpu.tuned.choice(&words).and_then(|choice| Some((choice, ways.get(choice.place)?)));
        if let Some((choice, way)) = known
            && way.engine == choice.engine
            && let Some(plan) = plan(way, &target)?
        {
            return Ok(Convolution { gpu: gpu.clone(), product, plan });
        }
        let (plan, choice) = choose(gpu, &product, &ways, &target)?;
        if let Some(choice) = choice {
            gpu.tuned.keep(&words, choice);
        }
        Ok(Convolution { gpu: gpu.clone(), product, plan })
    }

    /// Bytes of scratch memory.
    pub fn workspace(&self) -> usize {
        self.plan.workspace
    }

    /// cuDNN's number of the engine.
    pub fn engine(&self) -> i64 {
        self.plan.engine
    }

    /// Binds it to `a` and `b`, the operands in the order of the direction.
    ///
    /// # Errors
    /// `Internal` where a memory is too small; `Foreign`.
    pub fn bind(
        &self,
        a: &Memory,
        b: &Memory,
        to: &Memory,
        workspace: &Memory,
    ) -> Result<impl Fn() -> Result<()> + use<>> {
        let [x, w, y] = match self.product.direction {
            Direction::Forward => [a, b, to],
            Direction::BackwardData => [to, a, b],
            Direction::BackwardWeights => [a, to, b],
        };
        let bound = bind(&self.plan, &self.product, [x, w, y], workspace)?;
        let (gpu, memory) = (self.gpu.clone(), [x, w, y, workspace].map(Memory::clone));
        Ok(move || {
            let _alive = &memory;
            // SAFETY: the plan is of this handle; `bind` compared the memory with what it wants.
            unsafe { bound.run(gpu.dnn.raw) }
        })
    }
}

fn bind(plan: &Rc<Plan>, product: &Product, memory: [&Memory; 3], workspace: &Memory) -> Result<Bound> {
    let wanted = product.bytes().into_iter().chain([plan.workspace]);
    for (memory, bytes) in memory.into_iter().chain([workspace]).zip(wanted) {
        let aligned = bytes == 0 || (memory.address() as usize).is_multiple_of(ALIGNMENT);
        if memory.bytes() < bytes || !aligned {
            let at = memory.address();
            return Err(Error::internal(format!("{} bytes at {at:p} for {bytes}", memory.bytes())));
        }
    }
    plan.bind(NUMBERS, memory.map(|memory| memory.address().cast()), workspace.address().cast())
}

/// The plan that is fastest by our own timing, and what is to be kept of that. Where the GPU's memory does not suffice to
/// try: the first that serves, and nothing to keep.
fn choose(
    gpu: &Rc<Gpu>,
    product: &Product,
    ways: &[Configuration],
    target: &Target,
) -> Result<(Rc<Plan>, Option<Choice>)> {
    let mut plans = Vec::new();
    for (place, way) in ways.iter().enumerate() {
        if plans.len() < TIMED
            && let Some(plan) = plan(way, target)?
        {
            plans.push((plan, Choice { engine: way.engine, place }));
        }
    }
    let Some((first, _)) = plans.first() else {
        let why = "no engine that gives the same bits every time";
        let call = "cudnnBackendFinalize";
        return Err(Error::foreign("cuDNN", call, sys::CUDNN_STATUS_NOT_SUPPORTED.into(), why));
    };
    // With one there is nothing to compare.
    if let [(only, choice)] = &plans[..] {
        return Ok((only.clone(), Some(*choice)));
    }
    let scratch = plans.iter().map(|(plan, _)| plan.workspace).max().unwrap_or_default();
    let [x, w, y] = product.bytes();
    let room = [x, w, y, scratch].map(|bytes| allocate(&gpu.context, bytes));
    let full = |memory: &Result<Memory>| matches!(memory, Err(e) if e.kind == error::Kind::Environment);
    if room.iter().any(full) {
        return Ok((first.clone(), None));
    }
    let [x, w, y, scratch] = room;
    let (memory, scratch) = ([x?, w?, y?], scratch?);
    memory.iter().try_for_each(|memory| gpu.stream.zero(memory))?;
    let mut best: Option<(Duration, usize)> = None;
    for (index, (plan, _)) in plans.iter().enumerate() {
        let bound = bind(plan, product, memory.each_ref(), &scratch)?;
        let limit = best.map(|(least, _)| 2 * least);
        // What cannot be run, other than memory that has become unusable for all, is one engine less.
        match time(gpu, &bound, limit) {
            Ok(time) if best.is_none_or(|(least, _)| time < least) => best = Some((time, index)),
            Ok(_) => {}
            Err(e) => log::debug!("engine {} of {}: {e}", plan.engine, product.words()),
        }
        gpu.stream.synchronize()?;
    }
    let (plan, choice) = &plans[best.map_or(0, |(_, index)| index)];
    Ok((plan.clone(), Some(*choice)))
}

/// How long one run takes; once is enough where that is more than `limit`.
fn time(gpu: &Gpu, bound: &Bound, limit: Option<Duration>) -> Result<Duration> {
    let measured = |runs: u32| -> Result<Duration> {
        let begun = Instant::now();
        for _ in 0..runs {
            // SAFETY: the plan is of this handle, what is bound was compared with what it wants.
            unsafe { bound.run(gpu.dnn.raw) }?;
        }
        gpu.stream.synchronize()?;
        Ok(begun.elapsed() / runs)
    };
    // The first run loads the engine's code.
    measured(1)?;
    let once = measured(1)?;
    match limit.is_some_and(|limit| once > limit) {
        true => Ok(once),
        false => measured(REPEATS),
    }
}
