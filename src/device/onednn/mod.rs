//! The CPU device: oneDNN 3.x, loaded at run time, in three layers.
//!
//! - `sys` declares the C API by hand; `library` finds libdnnl.so.3 and loads it;
//! - `handle` owns oneDNN's objects and turns statuses into errors; `layout` makes its memory descriptors the
//!   plan's layouts;
//! - `gemm` measures what the arithmetic of these cores can do;
//! - the kernels, one file a family: `activation`, `batch_norm`, `broadcast`, `concat`, `conv`, `layer_norm`, `linear`,
//!   `lrn`, `pool`, `reorder`, `simple` are primitives (`primitive`); `adaptive`, `dropout`, `field_loss`, `loss`,
//!   `residual_norm`, `sync_norm`, `update` are loops of our own (`host`, `channel_loops`).
//!
//! Convolutions and linear layers choose their layouts; everything else keeps the layout that it is given. May
//! use: `device`, `graph`, `random`, `error`. Used by: whoever chooses the device (`train`, `bench`, `main`).
#![allow(unsafe_code)]

mod activation;
mod adaptive;
mod batch_norm;
mod broadcast;
mod channel_loops;
mod concat;
mod conv;
mod depthwise;
mod dropout;
mod few_channels;
mod field_loss;
mod gemm;
mod handle;
mod host;
mod layer_norm;
mod layout;
mod library;
mod linear;
mod loss;
mod lrn;
mod matmul;
mod pool;
mod primitive;
mod reorder;
mod residual_norm;
mod simple;
mod sync_norm;
mod sys;
mod update;
mod window;

use std::ops::Range;
use std::rc::Rc;

use self::handle::Engine;
use self::host::Workers;
use self::primitive::PrimitiveKernel;
use super::{Device, Kernel, KernelRequest, Layout, Memory, Rule, Span, Squares, Step, Updated, not_lowered};
use crate::error::{Error, Result};
use crate::graph::{BackwardOp, Op, OpFusions, Spec};

pub use library::{Isa, OnednnInfo, isa, limit_isa, probe};

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

    fn kernel(&self, request: &KernelRequest, subject: &str) -> Result<Kernel> {
        let engine = &self.engine;
        let primitive = |kernel: Result<PrimitiveKernel>| kernel.map(|kernel| kernel.of(subject));
        match *request.op {
            Op::Conv(conv) => primitive(conv::forward_pass(engine, request, &conv)),
            Op::ConvBackwardData(conv) => primitive(conv::backward_data(engine, request, &conv)),
            Op::Linear { bias, relu } => primitive(linear::forward_pass(engine, request, bias, relu)),
            Op::BatchNormMoments => sync_norm::moments(self, request),
            Op::AllToAll { .. } => sync_norm::all_to_all(engine, request),
            Op::Exchange { ranks, .. } => sync_norm::exchange(engine, request, ranks),
            Op::BatchNorm(norm) if norm.add => residual_norm::training(self, request, &norm),
            Op::BatchNorm(norm) if norm.given => sync_norm::forward_pass(self, request, &norm),
            Op::BatchNorm(norm) => batch_norm::training(self, request, &norm, subject),
            Op::BatchNormInference(norm) if norm.add => residual_norm::inference(self, request, &norm),
            Op::BatchNormInference(norm) if norm.given => sync_norm::again(self, request, &norm),
            Op::BatchNormInference(norm) => primitive(batch_norm::inference(engine, request, &norm)),
            Op::LocalResponseNorm(norm) => primitive(lrn::forward_pass(engine, request, &norm)),
            Op::LayerNorm { epsilon, affine } => {
                primitive(layer_norm::forward_pass(engine, request, epsilon, affine))
            }
            Op::MatMul(of) => primitive(matmul::matmul(engine, request, &of)),
            Op::Softmax => primitive(matmul::softmax(engine, request)),
            Op::Activation(of) => primitive(activation::forward_pass(engine, request, of)),
            Op::MaxPool(pool) => primitive(pool::max(engine, request, &pool)),
            Op::AvgPool(pool) => primitive(pool::average(engine, request, &pool)),
            Op::AdaptiveAvgPool => adaptive::forward_pass(self, request),
            Op::Dropout { p, layer, whole } => dropout::dropout(self, request, p, layer, whole),
            Op::Binary(of) => primitive(broadcast::binary(engine, request, of)),
            Op::Sum { scale } => broadcast::sum(self, request, scale),
            Op::Expand { scale } => broadcast::expand(self, request, scale),
            Op::Reshape => simple::reshape(engine, request),
            Op::Concat { axis } => primitive(concat::concat(engine, request, axis)),
            Op::Slice { axis, from } => primitive(concat::slice(engine, request, axis, from)),
            Op::Pad { axis, before } => concat::pad(engine, request, axis, before),
            Op::Trade(_) => concat::trade(engine, request),
            Op::Halo(_) => Err(not_lowered(request.op)),
            Op::Permute(order) => primitive(concat::permute(engine, request, &order)),
            Op::Add { relu } => primitive(simple::add(engine, request, relu)),
            Op::SoftmaxCrossEntropy { smoothing, weight } => {
                loss::forward_pass(engine, request, smoothing, weight)
            }
            Op::FieldLoss(of) => field_loss::forward_pass(engine, &self.workers, request, of),
            Op::FieldMeans(of) => field_loss::means(engine, request, of),
            Op::Backward(op) => self.backward(request, op, subject),
            Op::Normalise { .. } | Op::Lookup { .. } | Op::Fused(_) => {
                Err(Error::internal(format!("{} is for GPUs", request.op.name())))
            }
        }
    }

    fn backward(&self, request: &KernelRequest, op: BackwardOp, subject: &str) -> Result<Kernel> {
        let engine = &self.engine;
        let primitive = |kernel: Result<PrimitiveKernel>| kernel.map(|kernel| kernel.of(subject));
        match op {
            BackwardOp::ConvWeights(conv) => conv::backward_weights(self, request, &conv, subject),
            BackwardOp::LinearData { .. } => primitive(linear::backward_data(engine, request)),
            BackwardOp::LinearWeights { bias } => primitive(linear::backward_weights(engine, request, bias)),
            BackwardOp::BatchNormSums(norm) => sync_norm::sums(self, request, &norm),
            BackwardOp::BatchNorm(norm) if norm.add => {
                residual_norm::backward(engine, request, &norm, subject)
            }
            BackwardOp::BatchNorm(norm) if norm.given => sync_norm::backward(self, request, &norm),
            BackwardOp::BatchNorm(norm) => primitive(batch_norm::backward(engine, request, &norm)),
            BackwardOp::LocalResponseNorm(norm) => primitive(lrn::backward(engine, request, &norm)),
            BackwardOp::LayerNorm { epsilon, affine } => {
                primitive(layer_norm::backward(engine, request, epsilon, affine))
            }
            BackwardOp::Softmax => primitive(matmul::softmax_backward(engine, request)),
            BackwardOp::Activation(of) => primitive(activation::backward(engine, request, of)),
            BackwardOp::MaxPool(pool) => primitive(pool::max_backward(engine, request, &pool)),
            BackwardOp::AvgPool(pool) => primitive(pool::average_backward(engine, request, &pool)),
            BackwardOp::AdaptiveAvgPool => adaptive::backward(self, request),
            BackwardOp::Dropout { p, layer, whole } => dropout::dropout(self, request, p, layer, whole),
            BackwardOp::AddSlice { axis, from } => concat::add_slice(engine, request, axis, from),
            BackwardOp::Halo(_) => Err(not_lowered(request.op)),
            BackwardOp::SoftmaxCrossEntropy { smoothing, weight } => {
                loss::backward(engine, request, smoothing, weight)
            }
            BackwardOp::FieldLoss(of) => field_loss::backward(engine, &self.workers, request, of),
        }
    }
}

/// "conv2d of 128×1×28×28 and 32×1×3×3": what failed.
fn subject(request: &KernelRequest) -> String {
    let shapes: Vec<String> = request.inputs.iter().map(|(spec, _)| spec.shape.to_string()).collect();
    let op = request.op.name_of(request.inputs.first().map(|(spec, _)| spec));
    format!("{op} of {}", shapes.join(" and "))
}

impl Device for Cpu {
    fn name(&self) -> &'static str {
        "cpu"
    }

    /// An addition behind a normalisation, which our own loops do while its numbers are in cache.
    fn op_fusions(&self) -> OpFusions {
        OpFusions { addition: true, ..OpFusions::default() }
    }

    /// An element that is made again takes a core 0.5 ns, the sums that read it 5 ns and more, and all of the layer
    /// three times that.
    fn remakes_from(&self) -> Option<u64> {
        Some(1024)
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

    fn forget(&self) -> Result<()> {
        library::forget_kernels(library::library()?)
    }

    fn plain(&self, spec: &Spec) -> Layout {
        let nothing = |e: Error| Layout::new(format!("none: {e}"), 0, spec.dtype, None);
        layout::plain(&self.engine, spec).unwrap_or_else(nothing)
    }

    fn compile(&self, request: &KernelRequest) -> Result<Kernel> {
        let subject = subject(request);
        self.kernel(request, &subject).map_err(|e| e.context(subject))
    }

    fn reorder(&self, spec: &Spec, from: &Layout, to: &Layout) -> Result<Kernel> {
        let subject = format!("reorder of {}", spec.shape);
        let kernel = reorder::reorder(&self.engine, from, to);
        kernel.map(|kernel| kernel.of(&subject)).map_err(|e| e.context(subject))
    }

    fn reorder_rows(
        &self,
        spec: &Spec,
        layout: &Layout,
        rows: &Range<usize>,
        into: bool,
    ) -> Result<Option<Kernel>> {
        let subject = format!("reorder of rows {rows:?} of {}", spec.shape);
        let kernel = reorder::rows(&self.engine, spec, layout, rows, into);
        let kernel = kernel.map_err(|e| e.context(&subject))?;
        Ok(kernel.map(|kernel| kernel.of(&subject)))
    }

    fn update(&self, rule: &Rule, spans: &[Span], of: &Updated) -> Result<Box<dyn Step>> {
        update::update(&self.workers, rule, spans, of)
    }

    fn squares(&self, parts: &[Memory]) -> Result<Squares> {
        update::squares(&self.workers, parts)
    }

    fn scale(&self, gradients: &Memory, broken: &Memory) -> Result<Box<dyn Step>> {
        Ok(update::scale(&self.workers, gradients, broken))
    }

    fn average(&self, decay: f32, from: &Memory, into: &Memory) -> Result<Box<dyn Step>> {
        update::average(&self.workers, decay, from, into)
    }

    fn accumulate(&self, from: &Memory, into: &Memory) -> Result<Box<dyn Step>> {
        update::accumulate(&self.workers, from, into)
    }
}
