//! Batch normalisation, in the layout of its input. Statistics are f32; what the library lacks is the running ones, and
//! sums of as many numbers as cubes have.

use std::ffi::c_uint;
use std::rc::Rc;

use super::Cpu;
use super::handle::{Desc, Engine, PrimitiveDesc, describe};

use super::layout::{desc, plain};
use super::primitive::{PrimitiveKernel, attributes, forward, in_turn, spatial};
use super::sync_norm::{mean_and_variance, run_on, slices};
use super::sys;
use crate::device::{Kernel, KernelRequest, Scalars};
use crate::error::{Error, Result};
use crate::graph::BatchNorm;

fn flags(norm: &BatchNorm) -> c_uint {
    sys::USE_SCALE | sys::USE_SHIFT | if norm.relu { sys::FUSE_NORM_RELU } else { 0 }
}

/// Checks that a request has this many tensors, the first output like the first input.
fn check(request: &KernelRequest, inputs: usize, outputs: usize) -> Result<()> {
    if request.inputs.len() != inputs || request.outputs.len() != outputs {
        return Err(Error::internal(format!(
            "{} inputs and {} outputs where there should be {inputs} and {outputs}",
            request.inputs.len(),
            request.outputs.len()
        )));
    }
    spatial(&request.outputs[0])?;
    match request.inputs[0].0 == request.outputs[0] {
        true => Ok(()),
        false => Err(Error::internal(format!("a normalisation cannot give {}", request.outputs[0].shape))),
    }
}

fn forward_desc(
    engine: &Rc<Engine>,
    request: &KernelRequest,
    prop_kind: sys::PropKind,
    norm: &BatchNorm,
    flags: c_uint,
) -> Result<PrimitiveDesc> {
    let (x, given) = &request.inputs[0];
    let x = given.clone().map_or_else(|| plain(engine, x), Ok)?;
    let x: &Desc = desc(&x)?;
    let attributes = attributes(engine)?;
    describe!(engine, attributes => dnnl_batch_normalization_forward_primitive_desc_create(
        prop_kind, x.raw(), x.raw(), norm.epsilon, flags
    ))
}

/// x, w, b, mean, variance → y, saved (where a backward op follows), over x if possible.
pub fn inference(engine: &Rc<Engine>, request: &KernelRequest, norm: &BatchNorm) -> Result<PrimitiveKernel> {
    check(request, 5, request.outputs.len().clamp(1, 1 + usize::from(norm.relu)))?;
    let flags = flags(norm) | sys::USE_GLOBAL_STATS;
    let saves = request.outputs.len() > 1;
    let prop_kind = if saves { sys::FORWARD_TRAINING } else { sys::FORWARD_INFERENCE };
    let desc = forward_desc(engine, request, prop_kind, norm, flags)?;
    let inputs = [sys::ARG_SRC, sys::ARG_SCALE, sys::ARG_SHIFT, sys::ARG_MEAN, sys::ARG_VARIANCE];
    let outputs = [sys::ARG_DST, sys::ARG_WORKSPACE];
    Ok(PrimitiveKernel::new(engine, desc, &inputs, &outputs[..request.outputs.len()])?.in_place(0))
}

/// dy, x, w, mean, variance, saved? → dx, dw, db. Gradients lie as the forward op's tensors did.
pub fn backward(engine: &Rc<Engine>, request: &KernelRequest, norm: &BatchNorm) -> Result<PrimitiveKernel> {
    check(request, 5 + usize::from(norm.relu), 3)?;
    match request.forward.is_some_and(|kernel| kernel.own::<PrimitiveKernel>().is_some()) {
        true => backward_of(engine, &forward(request)?.desc, norm),
        // It does the addition behind it too, and somebody reads that one's gradient before this does.
        false => backward_without(engine, &KernelRequest { inputs: &request.inputs[1..2], ..*request }, norm),
    }
}

/// The backward pass for a request whose first input is x: its forward op may be no primitive.
pub fn backward_without(
    engine: &Rc<Engine>,
    request: &KernelRequest,
    norm: &BatchNorm,
) -> Result<PrimitiveKernel> {
    let hint = forward_desc(engine, request, sys::FORWARD_TRAINING, norm, flags(norm))?;
    backward_of(engine, &hint, norm)
}

fn backward_of(engine: &Rc<Engine>, hint: &PrimitiveDesc, norm: &BatchNorm) -> Result<PrimitiveKernel> {
    let (x, dy) = (hint.desc(sys::ARG_SRC)?, hint.desc(sys::ARG_DST)?);
    let attributes = attributes(engine)?;
    let desc = describe!(engine, attributes => dnnl_batch_normalization_backward_primitive_desc_create(
        sys::BACKWARD, x.raw(), dy.raw(), x.raw(), norm.epsilon, flags(norm), hint.raw()
    ))?;
    let inputs = [
        sys::ARG_DIFF_DST,
        sys::ARG_SRC,
        sys::ARG_SCALE,
        sys::ARG_MEAN,
        sys::ARG_VARIANCE,
        sys::ARG_WORKSPACE,
    ];
    let outputs = [sys::ARG_DIFF_SRC, sys::ARG_DIFF_SCALE, sys::ARG_DIFF_SHIFT];
    Ok(PrimitiveKernel::new(engine, desc, &inputs[..5 + usize::from(norm.relu)], &outputs)?.in_place(0))
}

/// Mean and variance of cubes, in their layout if there are loops for it: the library adds up all numbers of a channel
/// in f32, which is a tenth of a thousandth off in a cube of 128³.
fn moments_of_cubes(cpu: &Cpu, request: &KernelRequest) -> Result<Option<Kernel>> {
    let (x, given) = &request.inputs[0];
    if x.shape.rank() < 5 {
        return Ok(None);
    }
    let of = KernelRequest { inputs: &request.inputs[..1], outputs: &request.outputs[1..3], ..*request };
    let moments = mean_and_variance(cpu, &of)?;
    let fits = given.as_ref().is_none_or(|layout| moments.inputs[0] == *layout);
    Ok(fits.then_some(moments))
}

/// The library's primitive, which of cubes is given mean and variance, and the running statistics after it.
///
/// x, w, b, running mean, running variance → y, mean, variance, running mean, running variance, saved?
pub fn training(cpu: &Cpu, request: &KernelRequest, norm: &BatchNorm, subject: &str) -> Result<Kernel> {
    let engine = &cpu.engine;
    check(request, 5, 5 + usize::from(norm.relu))?;
    let moments = moments_of_cubes(cpu, request)?;
    let given = if moments.is_some() { sys::USE_GLOBAL_STATS } else { 0 };
    let desc = forward_desc(engine, request, sys::FORWARD_TRAINING, norm, flags(norm) | given)?;
    let mut inputs = vec![sys::ARG_SRC, sys::ARG_SCALE, sys::ARG_SHIFT];
    let mut outputs = vec![sys::ARG_DST];
    let found = if moments.is_some() { &mut inputs } else { &mut outputs };
    found.extend([sys::ARG_MEAN, sys::ARG_VARIANCE]);
    outputs.extend(norm.relu.then_some(sys::ARG_WORKSPACE));
    let primitive = PrimitiveKernel::new(engine, desc, &inputs, &outputs)?.of(subject);

    let vector = plain(engine, &request.inputs[3].0)?;
    let mut inputs = primitive.inputs[..3].to_vec();
    inputs.extend(vec![vector.clone(); 2]);
    let mut outputs = vec![primitive.outputs[0].clone()];
    outputs.extend(vec![vector; 4]);
    outputs.extend(norm.relu.then(|| primitive.outputs.last().cloned()).flatten());
    let ([n, _], size) = spatial(&request.outputs[0])?;
    let (norm, count) = (*norm, (n * size.iter().product::<usize>()) as f64);
    let (implementation, own) = (primitive.implementation.clone(), primitive.own.clone());
    let bytes = primitive.workspace.max(moments.as_ref().map_or(0, |kernel| kernel.workspace));
    let kernel = Kernel::new(implementation, inputs, outputs, move |_, inputs, outputs, workspace| {
        let found = &outputs[1..3];
        let moments = moments.as_ref().map(|kernel| kernel.bind(&inputs[..1], found, workspace));
        let [given, found] = if moments.is_some() { [found, &[]] } else { [&[], found] };
        let (from, to) = ([&inputs[..3], given].concat(), [&outputs[..1], found, &outputs[5..]].concat());
        let normalise = primitive.bind(&from, &to, workspace)?;
        let (inputs, outputs) = (inputs.to_vec(), outputs.to_vec());
        let statistics = move |_: &Scalars| {
            run_on(&norm, [&inputs, &outputs], slices(&outputs[1..3]), count);
            Ok(())
        };
        let steps = moments.transpose()?.into_iter().chain([normalise, Box::new(statistics)]);
        Ok(in_turn(steps.collect()))
    });
    Ok(Kernel { workspace: bytes, own, ..kernel })
}
