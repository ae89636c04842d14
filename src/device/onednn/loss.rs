//! Softmax cross-entropy, forward and backward, on plain logits of f32.

use super::handle::Engine;
use super::host::HostKernel;
use super::layout::{plain, plain_f32};
use super::primitive::{inputs, outputs};
use crate::device::{Layout, Memory, Request, Scalars};
use crate::error::{Error, Kind, Result};
use crate::graph::{DType, Spec};

/// The plain layouts of a request, once its tensors are what a loss has, and the number of classes.
fn layouts(
    engine: &Engine,
    request: &Request,
    results: &[&Spec],
) -> Result<(Vec<Layout>, Vec<Layout>, usize)> {
    let [logits, labels] = inputs(request)?;
    let types = logits.dtype.is_real()
        && labels.dtype == DType::I32
        && results.iter().all(|spec| spec.dtype.is_real());
    let fits = logits.shape.rank() == 2 && labels.shape.0 == [logits.shape.batch()] && types;
    if !fits || logits.shape.per_sample() == 0 {
        return Err(Error::internal(format!(
            "a loss of logits {} and labels {}",
            logits.shape, labels.shape
        )));
    }
    let results = results.iter().map(|spec| plain_f32(engine, spec)).collect::<Result<_>>()?;
    Ok((vec![plain_f32(engine, logits)?, plain(engine, labels)?], results, logits.shape.per_sample()))
}

/// logits, labels → losses, hits
pub fn forward_pass(engine: &Engine, request: &Request, smoothing: f32, weight: f32) -> Result<HostKernel> {
    let [losses, hits] = outputs(request)?;
    let (from, to, classes) = layouts(engine, request, &[losses, hits])?;
    Ok(HostKernel::new("softmax", from, to, move |inputs, outputs, _| {
        let (logits, labels) = read(inputs);
        // SAFETY: host memory of this device; losses and hits are apart from each other and from the inputs.
        let (losses, hits) = unsafe { (outputs[0].as_slice_mut::<f32>(), outputs[1].as_slice_mut::<f32>()) };
        let results = losses.iter_mut().zip(hits);
        for ((row, &label), (loss, hit)) in logits.chunks_exact(classes).zip(labels).zip(results) {
            (*loss, *hit) = match target(label, classes)? {
                Some(target) => (weight * cross_entropy(row, target, smoothing), hits_target(row, target)),
                None => (0.0, 0.0),
            };
        }
        Ok(())
    }))
}

/// logits, labels → dlogits
pub fn backward(engine: &Engine, request: &Request, smoothing: f32, weight: f32) -> Result<HostKernel> {
    let [gradient] = outputs(request)?;
    let (from, to, classes) = layouts(engine, request, &[gradient])?;
    Ok(HostKernel::new("softmax", from, to, move |inputs, outputs, scalars: &Scalars| {
        let (logits, labels) = read(inputs);
        // SAFETY: host memory of this device, apart from the inputs.
        let gradient = unsafe { outputs[0].as_slice_mut::<f32>() };
        let scale = weight * scalars.gradient_scale;
        let rows = logits.chunks_exact(classes).zip(gradient.chunks_exact_mut(classes));
        for ((row, gradient), &label) in rows.zip(labels) {
            match target(label, classes)? {
                Some(target) => {
                    softmax_gradient(row, target, smoothing, gradient);
                    gradient.iter_mut().for_each(|gradient| *gradient *= scale);
                }
                None => gradient.fill(0.0),
            }
        }
        Ok(())
    }))
}

fn read(inputs: &[Memory]) -> (&[f32], &[i32]) {
    // SAFETY: host memory of this device; nothing writes to it while the step runs.
    unsafe { (inputs[0].as_slice(), inputs[1].as_slice()) }
}

/// The class that a label names; none for a sample that only fills the batch.
fn target(label: i32, classes: usize) -> Result<Option<usize>> {
    match usize::try_from(label) {
        Ok(class) if class < classes => Ok(Some(class)),
        Ok(class) => Err(Error::new(
            Kind::Data,
            format!("label {class} in the data, but the model has {classes} classes"),
        )),
        Err(_) => Ok(None),
    }
}

fn largest(row: &[f32]) -> f32 {
    row.iter().copied().fold(f32::NEG_INFINITY, f32::max)
}

/// ln Σ exp(v) − (1−s)·v[target] − s·mean(v) with s the smoothing; the largest is taken out of all v. A NaN anywhere
/// gives NaN.
fn cross_entropy(row: &[f32], target: usize, smoothing: f32) -> f32 {
    let largest = largest(row);
    let sum: f64 = row.iter().map(|v| f64::from((v - largest).exp())).sum();
    let mut aim = f64::from(row[target] - largest);
    if smoothing > 0.0 {
        let mean = row.iter().map(|v| f64::from(v - largest)).sum::<f64>() / row.len() as f64;
        aim += f64::from(smoothing) * (mean - aim);
    }
    (sum.ln() - aim) as f32
}

/// 1 where the first largest logit is the target's.
fn hits_target(row: &[f32], target: usize) -> f32 {
    let (before, rest) = row.split_at(target);
    let hit = before.iter().all(|&v| v < row[target]) && rest.iter().all(|&v| v <= row[target]);
    f32::from(u8::from(hit))
}

/// softmax − target, not yet scaled.
fn softmax_gradient(row: &[f32], target: usize, smoothing: f32, gradient: &mut [f32]) {
    let largest = largest(row);
    let mut sum = 0f64;
    for (gradient, v) in gradient.iter_mut().zip(row) {
        *gradient = (v - largest).exp();
        sum += f64::from(*gradient);
    }
    let inverse = (1.0 / sum) as f32;
    let everywhere = smoothing / row.len() as f32;
    gradient.iter_mut().for_each(|gradient| *gradient = *gradient * inverse - everywhere);
    gradient[target] -= 1.0 - smoothing;
}
