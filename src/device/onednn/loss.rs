//! Softmax cross-entropy, forward and backward, on plain logits of f32.

use std::fmt::Display;

use super::handle::Engine;
use super::host::host_kernel;
use super::layout::{plain, plain_f32};
use super::primitive::{inputs, outputs};
use crate::device::{Kernel, KernelRequest, Layout, Memory, Scalars};
use crate::error::{Error, ErrorKind, Result};
use crate::graph::{DType, Spec};

/// The plain layouts of a request, once its tensors are what a loss has, and the number of classes.
fn layouts(
    engine: &Engine,
    request: &KernelRequest,
    results: &[&Spec],
) -> Result<(Vec<Layout>, Vec<Layout>, usize)> {
    // Two, or four where samples are mixed.
    let (logits, labels) = match inputs::<4>(request) {
        Ok([logits, labels @ ..]) => (logits, labels.to_vec()),
        Err(_) => inputs(request).map(|[logits, labels]| (logits, vec![labels]))?,
    };
    // One number a sample: labels, and where samples are mixed other labels and shares.
    let per_sample = labels.iter().zip([DType::I32, DType::I32, DType::F32]);
    let fits = logits.shape.rank() == 2
        && logits.dtype.is_real()
        && per_sample.into_iter().all(|(s, dtype)| s.dtype == dtype && s.shape.0 == [logits.shape.batch()])
        && results.iter().all(|spec| spec.dtype.is_real());
    if !fits || logits.shape.per_sample() == 0 {
        let labels: Vec<String> = labels.iter().map(|spec| spec.shape.to_string()).collect();
        return Err(Error::internal(format!(
            "a loss of logits {} and labels {}",
            logits.shape,
            labels.join(", ")
        )));
    }
    let mut from = vec![plain_f32(engine, logits)?];
    for spec in labels {
        from.push(plain(engine, spec)?);
    }
    let results = results.iter().map(|spec| plain_f32(engine, spec)).collect::<Result<_>>()?;
    Ok((from, results, logits.shape.per_sample()))
}

/// logits, labels, others?, shares? → losses, hits
pub fn forward_pass(engine: &Engine, request: &KernelRequest, smoothing: f32, weight: f32) -> Result<Kernel> {
    let [losses, hits] = outputs(request)?;
    let (from, to, classes) = layouts(engine, request, &[losses, hits])?;
    Ok(host_kernel("softmax", from, to, move |inputs, outputs, _| {
        let (logits, targets) = read(inputs);
        // SAFETY: host memory of this device; losses and hits are apart from each other and from the inputs.
        let (losses, hits) = unsafe { (outputs[0].as_slice_mut::<f32>(), outputs[1].as_slice_mut::<f32>()) };
        let results = losses.iter_mut().zip(hits);
        for (sample, (row, (loss, hit))) in logits.chunks_exact(classes).zip(results).enumerate() {
            (*loss, *hit) = match targets.of(sample, classes)? {
                Some(target) => {
                    (weight * cross_entropy(row, target, smoothing), hits_target(row, target.dominant()))
                }
                None => (0.0, 0.0),
            };
        }
        Ok(())
    }))
}

/// logits, labels, others?, shares? → dlogits
pub fn backward(engine: &Engine, request: &KernelRequest, smoothing: f32, weight: f32) -> Result<Kernel> {
    let [gradient] = outputs(request)?;
    let (from, to, classes) = layouts(engine, request, &[gradient])?;
    Ok(host_kernel("softmax", from, to, move |inputs, outputs, scalars: &Scalars| {
        let (logits, targets) = read(inputs);
        // SAFETY: host memory of this device, apart from the inputs.
        let gradient = unsafe { outputs[0].as_slice_mut::<f32>() };
        let scale = weight * scalars.gradient_scale;
        let rows = logits.chunks_exact(classes).zip(gradient.chunks_exact_mut(classes));
        for (sample, (row, gradient)) in rows.enumerate() {
            match targets.of(sample, classes)? {
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

fn read(inputs: &[Memory]) -> (&[f32], Targets<'_>) {
    // SAFETY: host memory of this device; nothing writes to it while the step runs.
    unsafe {
        let mixed = match inputs {
            [_, _, others, shares] => Some((others.as_slice(), shares.as_slice())),
            _ => None,
        };
        (inputs[0].as_slice(), Targets { labels: inputs[1].as_slice(), mixed })
    }
}

/// What the samples of a batch are.
struct Targets<'a> {
    labels: &'a [i32],
    /// Other labels, and the shares of the first.
    mixed: Option<(&'a [i32], &'a [f32])>,
}

/// A class, and where samples are mixed another one and the share of the first.
#[derive(Clone, Copy)]
pub struct LossTarget {
    pub class: usize,
    pub other: Option<(usize, f32)>,
}

impl Targets<'_> {
    /// None for a sample that only fills the batch.
    fn of(&self, sample: usize, classes: usize) -> Result<Option<LossTarget>> {
        let Some(class) = class_of(self.labels[sample], classes)? else { return Ok(None) };
        let other = match self.mixed {
            Some((others, shares)) => class_of(others[sample], classes)?.map(|other| (other, shares[sample])),
            None => None,
        };
        Ok(Some(LossTarget { class, other }))
    }
}

impl LossTarget {
    /// The class with the larger share.
    fn dominant(self) -> usize {
        match self.other {
            Some((other, share)) if share < 0.5 => other,
            _ => self.class,
        }
    }
}

/// The class that a label names, none for one below 0.
fn class_of(label: i32, classes: usize) -> Result<Option<usize>> {
    match usize::try_from(label) {
        Ok(class) if class < classes => Ok(Some(class)),
        Ok(class) => Err(no_class(class, classes)),
        Err(_) => Ok(None),
    }
}

/// The error for a label that names none of the classes.
pub fn no_class(label: impl Display, classes: usize) -> Error {
    let text = format!("label {label} in the data, but the model has {classes} classes");
    Error::new(ErrorKind::Data, text)
}

pub fn largest(row: &[f32]) -> f32 {
    row.iter().copied().fold(f32::NEG_INFINITY, f32::max)
}

/// ln Σ exp(v) − (1−s)·v[target] − s·mean(v) with s the smoothing; the largest is taken out of all v. Of a mixed target
/// v[target] is the mean by shares. A NaN anywhere gives NaN.
pub fn cross_entropy(row: &[f32], target: LossTarget, smoothing: f32) -> f32 {
    let largest = largest(row);
    let sum: f64 = row.iter().map(|v| f64::from((v - largest).exp())).sum();
    let mut aim = f64::from(row[target.class] - largest);
    if let Some((other, share)) = target.other.filter(|(_, share)| *share < 1.0) {
        let aimed_too = f64::from(row[other] - largest);
        aim = if share > 0.0 { aim + (1.0 - f64::from(share)) * (aimed_too - aim) } else { aimed_too };
    }
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
pub fn softmax_gradient(row: &[f32], target: LossTarget, smoothing: f32, gradient: &mut [f32]) {
    let largest = largest(row);
    let mut sum = 0f64;
    for (gradient, v) in gradient.iter_mut().zip(row) {
        *gradient = (v - largest).exp();
        sum += f64::from(*gradient);
    }
    let inverse = (1.0 / sum) as f32;
    let everywhere = smoothing / row.len() as f32;
    gradient.iter_mut().for_each(|gradient| *gradient = *gradient * inverse - everywhere);
    match target.other {
        Some((other, share)) => {
            gradient[target.class] -= (1.0 - smoothing) * share;
            gradient[other] -= (1.0 - smoothing) * (1.0 - share);
        }
        None => gradient[target.class] -= 1.0 - smoothing,
    }
}
