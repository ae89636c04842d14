//! The GPU of one rank: CUDA's driver, cuBLAS and cuDNN, loaded at run time, in three layers.
//!
//! - `sys` has the functions, `library` finds the libraries and loads them, `probe` says which GPUs there are;
//!   `nvml` reads the GPU's own meter, `nccl` joins GPUs of several ranks, `ipc` reaches the memory of the node's;
//! - `handle` owns what the driver gives (context, streams, events, memory, modules, graphs), `blas` and `dnn` the
//!   libraries' handles, `backend` cuDNN's graphs, engines and plans, `product` a convolution's, `tune` remembers which
//!   engines were chosen, `early` has kernels begin early, `gpu` is all of it for one GPU, `halves` its copies of
//!   parameters, `narrow` the weights' gradients in halves;
//! - the kernels, one file a family: `conv` by cuDNN, `linear` and `matmul` by cuBLAS, `broadcast`, `field_loss`,
//!   `layer_norm`, `norm`, `pool`, `simple`, `update`, `codec` by kernels of our own (`kernels/`), through what all
//!   share (`kernel`, `layout`).
//!
//! Images lie with their channels last between layers. A step only enqueues; `synchronize`, `download` and events wait.
//! `README.md` lists every foreign call. May use: `device`, `graph`, `error`. Used by: whoever chooses the device
//! (`train`, `info`).
#![allow(unsafe_code)]

mod backend;
mod blas;
mod broadcast;
mod codec;
mod conv;
pub mod described;
mod dnn;
mod early;
mod field_loss;
mod gpu;
mod halves;
mod handle;
mod ipc;
mod kernel;
mod layer_norm;
mod layout;
mod library;
mod linear;
mod matmul;
mod narrow;
mod nccl;
mod norm;
mod normalised;
mod nvml;
mod pool;
mod probe;
mod product;
mod simple;
mod sys;
mod tune;
mod update;

use std::any::Any;
use std::cell::RefCell;
use std::rc::Rc;

use self::handle::Registered;
use super::{
    CodecSetup, Device, DeviceCodec, DeviceEvent, DeviceGroup, Kernel, KernelRequest, Layout, Memory,
    PeerMemory, Rule, Scalars, Span, Squares, Step, Updated, Usage, not_lowered,
};
use crate::config::environment;
use crate::error::{Error, Result};
use crate::graph::{BackwardOp, DType, FusedOp, Joint, Op, OpFusions, Spec};

pub use library::{CudaInfo, has_driver, looked_in};
pub use nccl::found as nccl_found;
pub use nvml::found as nvml_found;
pub use probe::{Driver, GpuInfo, probe};

/// The libraries that `--device cuda` would use.
///
/// # Errors
/// `Environment`: what is missing or too old, where it was looked for, and the remedy.
pub fn found() -> Result<CudaInfo> {
    Ok(library::libraries()?.found.clone())
}

/// The GPU of one rank.
pub struct Cuda {
    gpu: Rc<gpu::Gpu>,
    /// Ranks that use this GPU.
    sharers: usize,
    /// Host memory that gradients go through.
    locked: RefCell<Vec<Registered>>,
    meter: Option<nvml::Meter>,
}

impl Cuda {
    /// The GPU of this number, after CUDA_VISIBLE_DEVICES, which so many ranks share. With `tf32` products of f32 are
    /// rounded to its 10 bits.
    ///
    /// # Errors
    /// `Environment` where a library is missing or too old, or memory lacks; `Foreign` where the GPU cannot be used.
    pub fn new(ordinal: usize, tf32: bool, sharers: usize) -> Result<Cuda> {
        let gpu = gpu::Gpu::new(ordinal, tf32)?;
        let meter = nvml::Meter::start(&gpu.info.identity);
        let meter = meter.inspect_err(|why| log::info!("no figures of the GPU's use: {why}")).ok();
        Ok(Cuda { gpu, sharers, locked: RefCell::default(), meter })
    }

    fn kernel(&self, request: &KernelRequest) -> Result<Kernel> {
        let gpu = &self.gpu;
        match *request.op {
            Op::Normalise { scale, shift } => simple::normalise(gpu, request, scale, shift),
            Op::Lookup { is_target } => simple::lookup(gpu, request, is_target),
            Op::Conv(conv) => conv::forward_pass(gpu, request, &conv),
            Op::ConvBackwardData(conv) => conv::backward_data(gpu, request, &conv),
            Op::Linear { relu, .. } => linear::forward_pass(gpu, request, relu),
            Op::BatchNormMoments => norm::moments(gpu, request),
            Op::AllToAll { .. } => simple::exchange(gpu, request, 1),
            Op::Exchange { ranks, .. } => simple::exchange(gpu, request, ranks),
            Op::BatchNorm(norm) => norm::training(gpu, request, norm),
            Op::BatchNormInference(norm) => norm::given_statistics(gpu, request, norm),
            Op::LocalResponseNorm(norm) => norm::local_response(gpu, request, norm),
            Op::LayerNorm { epsilon, .. } => layer_norm::forward_pass(gpu, request, epsilon),
            Op::MatMul(of) => matmul::matmul(gpu, request, of),
            Op::Softmax => matmul::softmax(gpu, request),
            Op::Activation(of) => simple::activation(gpu, request, of),
            Op::MaxPool(pool) => pool::max(gpu, request, &pool),
            Op::AvgPool(pool) => pool::average(gpu, request, &pool),
            Op::AdaptiveAvgPool => pool::adaptive(gpu, request),
            Op::Dropout { p, layer, whole } => simple::dropout(gpu, request, p, layer, whole),
            Op::Binary(of) => broadcast::binary(gpu, request, of),
            Op::Sum { scale } => broadcast::sum(gpu, request, scale),
            Op::Expand { scale } => broadcast::expand(gpu, request, scale),
            Op::Reshape => simple::reshape(gpu, request),
            Op::Concat { axis } => simple::concat(gpu, request, axis),
            Op::Slice { axis, from } => simple::slice(gpu, request, axis, from),
            Op::Pad { axis, before } => simple::pad(gpu, request, axis, before),
            Op::Trade(_) => simple::trade(gpu, request),
            Op::Halo(_) => Err(not_lowered(request.op)),
            Op::Permute(order) => broadcast::permute(gpu, request, &order),
            Op::Add { relu } => simple::add(gpu, request, relu),
            Op::SoftmaxCrossEntropy { smoothing, weight } => simple::loss(gpu, request, smoothing, weight),
            Op::FieldLoss(of) => field_loss::forward_pass(gpu, request, of),
            Op::FieldMeans(of) => field_loss::means(gpu, request, of),
            Op::Backward(op) => self.backward(request, op),
            Op::Fused(op) => self.fused(request, op),
        }
    }

    fn backward(&self, request: &KernelRequest, op: BackwardOp) -> Result<Kernel> {
        let gpu = &self.gpu;
        match op {
            BackwardOp::ConvWeights(conv) => conv::backward_weights(gpu, request, &conv),
            BackwardOp::LinearData { .. } => linear::backward_data(gpu, request),
            BackwardOp::LinearWeights { .. } => linear::backward_weights(gpu, request),
            BackwardOp::BatchNormSums(norm) => norm::sums(gpu, request, norm),
            BackwardOp::BatchNorm(norm) if norm.given => norm::backward_of_sums(gpu, request, norm),
            BackwardOp::BatchNorm(norm) => norm::backward(gpu, request, norm),
            BackwardOp::LocalResponseNorm(norm) => norm::local_response_backward(gpu, request, norm),
            BackwardOp::LayerNorm { epsilon, affine } => layer_norm::backward(gpu, request, epsilon, affine),
            BackwardOp::Softmax => matmul::softmax_backward(gpu, request),
            BackwardOp::Activation(of) => simple::activation_backward(gpu, request, of),
            BackwardOp::MaxPool(pool) => pool::max_backward(gpu, request, &pool),
            BackwardOp::AvgPool(pool) => pool::average_backward(gpu, request, &pool),
            BackwardOp::AdaptiveAvgPool => pool::adaptive_backward(gpu, request),
            BackwardOp::Dropout { p, layer, whole } => simple::dropout(gpu, request, p, layer, whole),
            BackwardOp::AddSlice { axis, from } => simple::add_slice(gpu, request, axis, from),
            BackwardOp::Halo(_) => Err(not_lowered(request.op)),
            BackwardOp::SoftmaxCrossEntropy { smoothing, weight } => {
                simple::loss_backward(gpu, request, smoothing, weight)
            }
            BackwardOp::FieldLoss(of) => field_loss::backward(gpu, request, of),
        }
    }

    fn fused(&self, request: &KernelRequest, op: FusedOp) -> Result<Kernel> {
        let gpu = &self.gpu;
        match op {
            FusedOp::ConvMoments(conv) => conv::forward_with_moments(gpu, request, &conv),
            FusedOp::ConvNormalised(conv) => normalised::forward_pass(gpu, request, &conv),
            FusedOp::ConvBackwardDataRelu(conv) => conv::backward_data(gpu, request, &conv),
            FusedOp::ConvBackwardDataAdd(conv) => conv::backward_data_to(gpu, request, &conv),
            FusedOp::ConvNormalisedBackwardWeights(conv) => conv::backward_weights(gpu, request, &conv),
            FusedOp::BatchNormScale(norm) => norm::scale(gpu, request, norm),
        }
    }

    /// What a large product and a large copy reach: FLOP/s and bytes/s, read and written.
    ///
    /// # Errors
    /// `Environment` where the GPU's memory does not suffice; `Foreign`.
    pub fn rates(&self, dtype: DType) -> Result<(f64, f64)> {
        dnn::rates(&self.gpu, layout::Real::of(dtype)?)
    }
}

impl Device for Cuda {
    fn name(&self) -> &'static str {
        "cuda"
    }

    /// What our kernels compute in one pass over memory, and what cuDNN may. Statistics in f32 proper it knows none
    /// for.
    fn op_fusions(&self) -> OpFusions {
        const HALVES: &[DType] = &[DType::F16, DType::BF16];
        const WITH_TF32: &[DType] = &[DType::F16, DType::BF16, DType::F32];
        let moments = if self.gpu.tf32 { WITH_TF32 } else { HALVES };
        match dnn::Epilogue::wanted() {
            dnn::Epilogue::Never => OpFusions { addition: true, mask: true, ..OpFusions::default() },
            _ => OpFusions { addition: true, mask: true, relu_backward: true, gradient_sums: true, moments },
        }
    }

    fn joins(&self, joint: &Joint) -> Result<bool> {
        normalised::joins(&self.gpu, joint)
    }

    fn apart(&self) -> Vec<String> {
        self.gpu.dnn.apart()
    }

    fn keep_apart(&self, names: &[String]) {
        names.iter().for_each(|name| self.gpu.dnn.decide(name, false));
    }

    fn describe(&self) -> String {
        let (CudaInfo { driver, cudnn, cublas, .. }, (major, minor)) =
            (self.gpu.found(), self.gpu.info.compute_capability);
        let name = &self.gpu.info.name;
        format!(
            "{name} (sm_{major}{minor}), cuDNN {cudnn}, cuBLAS {cublas}, driver for CUDA {}.{}",
            driver.0, driver.1
        )
    }

    fn is_host(&self) -> bool {
        false
    }

    fn allocate(&self, bytes: usize) -> Result<Memory> {
        let memory = handle::allocate(&self.gpu.context, bytes)?;
        self.gpu.stream.zero(&memory)?;
        Ok(memory)
    }

    fn allocate_offered(&self, bytes: usize) -> Result<Memory> {
        let whole = handle::allocate(&self.gpu.context, bytes.next_multiple_of(handle::OFFERED))?;
        self.gpu.stream.zero(&whole)?;
        Ok(whole.slice(0, bytes))
    }

    fn free_bytes(&self) -> Result<Option<usize>> {
        Ok(Some(self.gpu.context.memory()?.0 / self.sharers.max(1)))
    }

    fn usage(&self) -> Option<Usage> {
        self.meter.as_ref().map(nvml::Meter::shown)
    }

    fn plain(&self, spec: &Spec) -> Layout {
        layout::plain(spec)
    }

    fn compile(&self, request: &KernelRequest) -> Result<Kernel> {
        let shapes: Vec<String> = request.inputs.iter().map(|(spec, _)| spec.shape.to_string()).collect();
        let op = request.op.name_of(request.inputs.first().map(|(spec, _)| spec));
        let subject = || format!("{op} of {}", shapes.join(" and "));
        self.kernel(request).map_err(|e| e.context(subject()))
    }

    fn reorder(&self, spec: &Spec, from: &Layout, to: &Layout) -> Result<Kernel> {
        simple::reorder(&self.gpu, spec, from, to)
            .map_err(|e| e.context(format!("reorder of {}", spec.shape)))
    }

    fn update(&self, rule: &Rule, spans: &[Span], of: &Updated) -> Result<Box<dyn Step>> {
        update::update(&self.gpu, rule, spans, of)
    }

    fn clip(&self, max_norm: f32, gradients: &Memory) -> Result<Box<dyn Step>> {
        update::clip(&self.gpu, max_norm, gradients)
    }

    fn squares(&self, parts: &[Memory]) -> Result<Squares> {
        update::squares(&self.gpu, parts)
    }

    fn scale(&self, gradients: &Memory, broken: &Memory) -> Result<Box<dyn Step>> {
        update::scale(&self.gpu, gradients, broken)
    }

    fn skip_flag(&self) -> Option<Memory> {
        Some(self.gpu.skip_flag())
    }

    fn check_losses(&self, losses: &Memory, after: &DeviceEvent) -> Result<DeviceEvent> {
        update::check_losses(&self.gpu, losses, event_of(after))?;
        mark(&self.gpu.copies.leaving)
    }

    fn average(&self, decay: f32, from: &Memory, into: &Memory) -> Result<Box<dyn Step>> {
        update::average(&self.gpu, decay, from, into)
    }

    fn accumulate(&self, from: &Memory, into: &Memory) -> Result<Box<dyn Step>> {
        update::accumulate(&self.gpu, from, into)
    }

    fn upload(&self, from: &[u8], to: &Memory) -> Result<()> {
        if from.len() != to.bytes() {
            return Err(Error::internal(format!("{} bytes for {}", from.len(), to.bytes())));
        }
        if !from.is_empty() {
            self.gpu.halves.written(to);
        }
        self.gpu.stream.upload(from, to)
    }

    fn download(&self, from: &Memory, to: &mut [u8]) -> Result<()> {
        if from.bytes() != to.len() {
            return Err(Error::internal(format!("{} bytes for {}", from.bytes(), to.len())));
        }
        self.gpu.stream.download(from, to)
    }

    fn zero(&self, memory: &Memory) -> Result<()> {
        self.gpu.halves.written(memory);
        self.gpu.stream.zero(memory)
    }

    fn record(&self) -> Result<DeviceEvent> {
        mark(&self.gpu.stream)
    }

    fn synchronize(&self) -> Result<()> {
        self.gpu.stream.synchronize()
    }

    /// Without page-locking copies are slower, but the same.
    fn pin(&self, host: &Memory) {
        match Registered::new(&self.gpu.context, host) {
            Ok(registered) => self.locked.borrow_mut().push(registered),
            Err(e) => log::warn!("gradients cannot be page-locked, their copies will be slower: {e}"),
        }
    }

    fn page_locked(&self, bytes: usize) -> Result<Memory> {
        let memory = handle::pages(bytes)?;
        self.pin(&memory);
        Ok(memory)
    }

    fn copy_to_host_after(&self, from: &Memory, to: &Memory, after: &DeviceEvent) -> Result<DeviceEvent> {
        Ok(DeviceEvent(Some(self.gpu.copy_to_host(from, to, event_of(after))?)))
    }

    fn copy_to_device_async(&self, from: &Memory, to: &Memory) -> Result<DeviceEvent> {
        let coming = &self.gpu.copies.coming;
        self.gpu.halves.written(to);
        // SAFETY: host memory; who writes to it next comes behind the event.
        unsafe { coming.upload_later(from, to) }?;
        mark(coming)
    }

    fn upload_async(&self, from: &Memory, to: &Memory) -> Result<()> {
        self.gpu.halves.written(to);
        // SAFETY: as above; the caller leaves it alone until it knows that the stream has come by.
        unsafe { self.gpu.stream.upload_later(from, to) }
    }

    fn copy_to_device_after(&self, host: &Memory, to: &Memory, after: &DeviceEvent) -> Result<DeviceEvent> {
        let inputs = &self.gpu.copies.inputs;
        self.gpu.halves.written(to);
        event_of(after).map_or(Ok(()), |after| inputs.wait(after))?;
        // SAFETY: host memory, which the caller leaves alone until the event.
        unsafe { inputs.upload_later(host, to) }?;
        mark(inputs)
    }

    fn wait_event(&self, event: &DeviceEvent) -> Result<()> {
        event_of(event).map_or(Ok(()), |event| self.gpu.stream.wait(event))
    }

    fn copy(&self, from: &Memory, to: &Memory) -> Result<()> {
        if from.bytes() != to.bytes() {
            return Err(Error::internal(format!("{} bytes for {}", from.bytes(), to.bytes())));
        }
        self.gpu.halves.written(to);
        self.gpu.stream.copy(from, to, from.bytes())
    }

    /// By events of the GPU. The run before is still under way when one is enqueued, so that the GPU waits for nobody.
    fn time(&self, steps: &mut [Box<dyn Step>], scalars: &Scalars, runs: usize) -> Result<Vec<Vec<f64>>> {
        let stream = &self.gpu.stream;
        steps.iter_mut().try_for_each(|step| step.run(scalars))?;
        self.gpu.dnn.wake(stream, || steps.iter_mut().try_for_each(|step| step.run(scalars)))?;
        let mut marks = Vec::new();
        for _ in 0..=runs {
            marks.push(stream.record_time()?);
            for step in steps.iter_mut() {
                step.run(scalars)?;
                marks.push(stream.record_time()?);
            }
        }
        self.synchronize()?;
        // The first one follows no other.
        let marks: Vec<_> = marks.chunks(steps.len() + 1).skip(1).collect();
        let of = |step: usize| marks.iter().map(move |run| run[step + 1].seconds_since(&run[step]));
        (0..steps.len()).map(|step| of(step).collect()).collect()
    }

    fn capture(&self, enqueue: &mut dyn FnMut() -> Result<()>) -> Result<Option<Box<dyn Step>>> {
        if environment::CUDA_GRAPH.is_off() {
            return Ok(None);
        }
        let recording = self.gpu.capture(enqueue);
        let halves = self.gpu.halves.captured();
        Ok(Some(Box::new(Captured { gpu: self.gpu.clone(), recording: recording?, halves })))
    }

    fn export_handle(&self, memory: &Memory) -> Result<Vec<u8>> {
        self.gpu.halves.offered(memory);
        Ok(handle::offer(&self.gpu.context, memory)?.to_vec())
    }

    fn open_peers(&self, offers: &[Vec<u8>], own: usize, memory: &Memory) -> Result<Box<dyn PeerMemory>> {
        Ok(Box::new(ipc::IpcMemory::new(&self.gpu, offers, own, memory)?))
    }

    fn codec(&self, coding: &CodecSetup) -> Result<Box<dyn DeviceCodec>> {
        Ok(Box::new(codec::CudaCodec::new(&self.gpu, coding)?))
    }

    fn unique_id(&self) -> Result<Vec<u8>> {
        nccl::unique_id()
    }

    fn join_group(&self, invitation: &[u8], rank: usize, ranks: usize) -> Result<Box<dyn DeviceGroup>> {
        Ok(Box::new(nccl::NcclCommunicator::join(&self.gpu, invitation, rank, ranks)?))
    }
}

/// This device's event, if it is one.
fn event_of(event: &DeviceEvent) -> Option<&handle::CudaEvent> {
    event.0.as_ref().and_then(|point| (&**point as &dyn Any).downcast_ref())
}

/// Marks the point behind what is in a stream.
fn mark(stream: &handle::CudaStream) -> Result<DeviceEvent> {
    Ok(DeviceEvent(Some(Rc::new(stream.record()?))))
}

/// Steps that run as one graph.
struct Captured {
    gpu: Rc<gpu::Gpu>,
    recording: gpu::CapturedGraph,
    /// Copies that its kernels read.
    halves: Vec<Rc<halves::HalfCopies>>,
}

impl Step for Captured {
    fn run(&mut self, scalars: &Scalars) -> Result<()> {
        self.gpu.set_scalars(scalars)?;
        self.halves.iter().try_for_each(|copies| self.gpu.halves.read(copies, false))?;
        self.recording.launch(&self.gpu)
    }
}
