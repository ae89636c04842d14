//! The CPU device: oneDNN 3.x, loaded at run time, in three layers.
//!
//! - `sys` declares the C API by hand; `library` finds libdnnl.so.3 and loads it;
//! - `handle` owns oneDNN's objects and turns statuses into errors; `layout` makes its memory descriptors the
//!   plan's layouts;
//! - `gemm` measures what the arithmetic of these cores can do;
//! - the kernels, one file a family: `batch_norm`, `concat`, `conv`, `linear`, `lrn`, `pool`, `relu`, `reorder`,
//!   `simple` are primitives (`primitive`), `turned` and `slabs` some in a row; `adaptive`, `dropout`, `loss`, `residual_norm`, `sync_norm`, `update` are loops of our own
//!   (`host`, `rows`).
//!
//! Convolutions and linear layers choose their layouts; everything else keeps the layout that it is given. May
//! use: `device`, `graph`, `random`, `error`. Used by: whoever chooses the device (`train`, `bench`, `main`).
#![allow(unsafe_code)]

mod adaptive;
mod batch_norm;
mod concat;
mod conv;
mod dropout;
mod gemm;
mod handle;
mod host;
mod layout;
mod library;
mod linear;
mod loss;
mod lrn;
mod pool;
mod primitive;
mod relu;
mod reorder;
mod residual_norm;
mod rows;
mod simple;
mod slabs;
mod sync_norm;
mod sys;
mod turned;
mod update;
mod window;

use std::ops::Range;
use std::rc::Rc;

use self::handle::Engine;
use self::host::{HostKernel, Workers};
use self::primitive::PrimitiveKernel;
use super::{Device, Kernel, Layout, Memory, Request, Rule, Span, Step};
use crate::error::{Error, Result};
use crate::graph::{Conv2d, Op, Spec};

pub use library::{Found, Isa, isa, limit_isa, probe};

/// The CPU cores of one rank.
pub struct Cpu {
    engine: Rc<Engine>,
    workers: Rc<Workers>,
}

impl Cpu {
    /// A device that works with this many threads.
    ///
    /// # Errors
    /// `Environment` when no usable oneDNN is found, or this one runs on one thread only; `Usage` for no threads.
    pub fn new(threads: usize) -> Result<Cpu> {
        if threads == 0 {
            return Err(Error::usage("--threads must be at least 1"));
        }
        Ok(Cpu { engine: Engine::new(threads)?, workers: Rc::new(Workers::new(threads)?) })
    }

    /// Whether products of bf16 have instructions of their own.
    ///
    /// # Errors
    /// `Environment` where they have not: oneDNN would then be slower than in f32, or refuse.
    pub fn has_bf16(&self) -> Result<()> {
        let isa = self.engine.library.isa();
        if isa.has_bf16() {
            return Ok(());
        }
        Err(Error::environment(format!(
            "this CPU (as oneDNN is to use it: {isa}) has no bf16 arithmetic, which takes avx512_core_bf16; use --precision f32"
        )))
    }

    fn primitive(&self, request: &Request) -> Result<PrimitiveKernel> {
        let engine = &self.engine;
        match request.op {
            Op::Conv2d(conv) => conv::forward_pass(engine, request, conv),
            Op::Conv2dBackwardWeights(conv) => conv::backward_weights(engine, request, conv),
            Op::Linear { bias, relu } => linear::forward_pass(engine, request, *bias, *relu),
            Op::LinearBackwardWeights { bias } => linear::backward_weights(engine, request, *bias),
            Op::BatchNormInference(norm) => batch_norm::inference(engine, request, norm),
            Op::BatchNormBackward(norm) => batch_norm::backward(engine, request, norm),
            Op::Add { relu } => simple::add(engine, request, *relu),
            Op::LocalResponseNorm(norm) => lrn::forward_pass(engine, request, norm),
            Op::LocalResponseNormBackward(norm) => lrn::backward(engine, request, norm),
            Op::Relu { max } => relu::forward_pass(engine, request, *max),
            Op::ReluBackward { max } => relu::backward(engine, request, *max),
            Op::Concat => concat::concat(engine, request),
            Op::Slice { from } => concat::slice(engine, request, *from),
            Op::MaxPool(pool) => pool::max(engine, request, pool),
            Op::MaxPoolBackward(pool) => pool::max_backward(engine, request, pool),
            Op::AvgPool(pool) => pool::average(engine, request, pool),
            Op::AvgPoolBackward(pool) => pool::average_backward(engine, request, pool),
            op => Err(Error::internal(format!("{} is not a primitive", op.name()))),
        }
    }

    fn conv_backward_data(&self, request: &Request, conv: &Conv2d, subject: &str) -> Result<Box<dyn Kernel>> {
        let usual = conv::backward_data(&self.engine, request, conv)?;
        match turned::instead_of(&usual, &self.engine, request, conv, subject)? {
            Some(kernel) => Ok(Box::new(kernel)),
            None => Ok(Box::new(usual.of(subject))),
        }
    }

    fn linear_backward_data(&self, request: &Request, subject: &str) -> Result<Box<dyn Kernel>> {
        let usual = linear::backward_data(&self.engine, request)?;
        match slabs::instead_of(&usual, &self.engine, request, subject)? {
            Some(kernel) => Ok(Box::new(kernel)),
            None => Ok(Box::new(usual.of(subject))),
        }
    }

    fn host(&self, request: &Request) -> Option<Result<HostKernel>> {
        let (engine, workers) = (&self.engine, &self.workers);
        Some(match *request.op {
            Op::Dropout { p, layer } | Op::DropoutBackward { p, layer } => {
                dropout::dropout(engine, workers, request, p, layer)
            }
            Op::AdaptiveAvgPool => adaptive::forward_pass(engine, workers, request),
            Op::AdaptiveAvgPoolBackward => adaptive::backward(engine, workers, request),
            Op::BatchNorm(norm) if norm.add => residual_norm::training(engine, workers, request, &norm),
            Op::BatchNormInference(norm) if norm.add => {
                residual_norm::inference(engine, workers, request, &norm)
            }
            Op::BatchNormMoments => sync_norm::moments(engine, workers, request),
            Op::Exchange { ranks } => sync_norm::exchange(engine, request, ranks),
            Op::SyncBatchNorm(norm) => sync_norm::forward_pass(engine, workers, request, &norm),
            Op::SyncBatchNormAgain(norm) => sync_norm::again(engine, workers, request, &norm),
            Op::SyncBatchNormSums(norm) => sync_norm::sums(engine, workers, request, &norm),
            Op::SyncBatchNormBackward(norm) => sync_norm::backward(engine, workers, request, &norm),
            Op::Reshape => simple::reshape(engine, request),
            Op::SoftmaxCrossEntropy { smoothing, weight } | Op::MixedCrossEntropy { smoothing, weight } => {
                loss::forward_pass(engine, request, smoothing, weight)
            }
            Op::SoftmaxCrossEntropyBackward { smoothing, weight }
            | Op::MixedCrossEntropyBackward { smoothing, weight } => {
                loss::backward(engine, request, smoothing, weight)
            }
            _ => return None,
        })
    }
}

/// "conv2d of 128×1×28×28 and 32×1×3×3": what failed.
fn subject(request: &Request) -> String {
    let shapes: Vec<String> = request.inputs.iter().map(|(spec, _)| spec.shape.to_string()).collect();
    format!("{} of {}", request.op.name(), shapes.join(" and "))
}

impl Device for Cpu {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn describe(&self) -> String {
        let found = self.engine.library.found();
        let (version, runtime, threads) = (&found.version, found.runtime, self.engine.threads);
        let isa = self.engine.library.isa();
        let plural = if threads == 1 { "" } else { "s" };
        format!("oneDNN {version} ({runtime}), {isa}, {threads} thread{plural}")
    }

    fn allocate(&self, bytes: usize) -> Result<Memory> {
        Memory::host(bytes)
    }

    fn plain(&self, spec: &Spec) -> Layout {
        let nothing = |e: Error| Layout::new(format!("none: {e}"), 0, spec.dtype, None);
        layout::plain(&self.engine, spec).unwrap_or_else(nothing)
    }

    fn compile(&self, request: &Request) -> Result<Box<dyn Kernel>> {
        let subject = subject(request);
        let kernel: Result<Box<dyn Kernel>> = match (request.op, self.host(request)) {
            (Op::BatchNorm(norm), None) => batch_norm::training(&self.engine, request, norm, &subject)
                .map(|kernel| Box::new(kernel) as _),
            (Op::BatchNormBackward(norm), _) if norm.add => {
                residual_norm::backward(&self.engine, request, norm, &subject)
                    .map(|kernel| Box::new(kernel) as _)
            }
            (Op::Conv2dBackwardData(conv), _) => self.conv_backward_data(request, conv, &subject),
            (Op::LinearBackwardData { .. }, _) => self.linear_backward_data(request, &subject),
            (_, Some(kernel)) => kernel.map(|kernel| Box::new(kernel) as _),
            (_, None) => self.primitive(request).map(|kernel| Box::new(kernel.of(&subject)) as _),
        };
        kernel.map_err(|e| e.context(subject))
    }

    fn reorder(&self, spec: &Spec, from: &Layout, to: &Layout) -> Result<Box<dyn Kernel>> {
        let subject = format!("reorder of {}", spec.shape);
        let kernel = reorder::reorder(&self.engine, from, to);
        kernel.map(|kernel| Box::new(kernel.of(&subject)) as _).map_err(|e| e.context(subject))
    }

    fn reorder_rows(
        &self,
        spec: &Spec,
        layout: &Layout,
        rows: &Range<usize>,
        into: bool,
    ) -> Result<Option<Box<dyn Kernel>>> {
        let subject = format!("reorder of rows {rows:?} of {}", spec.shape);
        let kernel = reorder::rows(&self.engine, spec, layout, rows, into);
        let kernel = kernel.map_err(|e| e.context(&subject))?;
        Ok(kernel.map(|kernel| Box::new(kernel.of(&subject)) as _))
    }

    fn update(
        &self,
        rule: &Rule,
        spans: &[Span],
        parameters: &Memory,
        gradients: &Memory,
        state: &[Memory],
    ) -> Result<Box<dyn Step>> {
        update::update(&self.workers, rule, spans, parameters, gradients, state)
    }

    fn clip(&self, max_norm: f32, gradients: &Memory) -> Result<Box<dyn Step>> {
        Ok(update::clip(&self.workers, max_norm, gradients))
    }

    fn average(&self, decay: f32, from: &Memory, into: &Memory) -> Result<Box<dyn Step>> {
        update::average(&self.workers, decay, from, into)
    }

    fn accumulate(&self, from: &Memory, into: &Memory) -> Result<Box<dyn Step>> {
        update::accumulate(&self.workers, from, into)
    }

    fn upload(&self, from: &[u8], to: &Memory) -> Result<()> {
        to.write(from);
        Ok(())
    }

    fn download(&self, from: &Memory, to: &mut [u8]) -> Result<()> {
        from.read(to);
        Ok(())
    }
    fn zero(&self, memory: &Memory) -> Result<()> {
        memory.zero();
        Ok(())
    }
}
