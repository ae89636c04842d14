//! What drops numbers in training: dropout, and samples that are dropped whole, which exporters spell out.

use super::Lowered;
use super::elements::first;
use super::norms::rounded;
use crate::model::onnx::import::{Import, Noise, Value};

/// A dropout; where its share is 0 nothing is left of it. A file says by an input whether it was written for training;
/// layers that it has are trained all the same, as a normalisation is.
pub fn dropout(import: &mut Import, inputs: &[Value]) -> Lowered {
    let x = import.tensor(first(inputs)?)?;
    let share = match inputs.get(1) {
        Some(value) => import.constant(value)?.single().unwrap_or(0.5),
        None => import.node.real("ratio").unwrap_or(0.5),
    };
    match share {
        0.0 => Ok(Value::Tensor(x)),
        share if share > 0.0 && share < 1.0 => {
            let layer = import.layer(&import.node.layer());
            Ok(Value::Tensor(import.net.dropout(&layer, x, share)))
        }
        share => Err(format!("ratio {share}").into()),
    }
}

/// Numbers in [0, 1), in the shape of what is read.
pub fn uniform(import: &mut Import, inputs: &[Value]) -> Lowered {
    let (low, high) = (import.node.real("low").unwrap_or(0.0), import.node.real("high").unwrap_or(1.0));
    if low != 0.0 || high != 1.0 {
        return Err(format!("from {low} to {high}, and not from 0 to 1").into());
    }
    let dims = import.dims_of(first(inputs)?).ok_or("reads what has no shape")?;
    Ok(Value::Noise(Noise { dims, kept: None, is_scaled: false }))
}

/// 1 with the probability that is read, which is one for all.
pub fn bernoulli(import: &mut Import, inputs: &[Value]) -> Lowered {
    let constant = import.constant(first(inputs)?)?;
    let all = constant.reals();
    match all.first() {
        Some(&kept) if all.iter().all(|&number| number == kept) => {
            Ok(Value::Noise(Noise { dims: constant.dims, kept: Some(kept), is_scaled: false }))
        }
        _ => Err("draws with unlike probabilities".into()),
    }
}

/// Random numbers below a share are 1 with its probability.
pub fn less(import: &mut Import, inputs: &[Value]) -> Lowered {
    match inputs {
        [Value::Noise(noise @ Noise { kept: None, .. }), share] => {
            let kept = import.single(share).ok_or("compares random numbers with several")?;
            Ok(Value::Noise(Noise { kept: Some(kept), ..noise.clone() }))
        }
        _ => Err("compares what is computed from the images".into()),
    }
}

/// By the share that is kept, so that the mean stays.
pub fn divided(noise: &Noise, by: f32) -> Lowered {
    match noise.kept {
        Some(kept) if (kept - by).abs() <= 1e-6 && !noise.is_scaled => {
            Ok(Value::Noise(Noise { is_scaled: true, ..noise.clone() }))
        }
        _ => Err(format!("divides random numbers by {by}, which is not the share that is kept").into()),
    }
}

/// Times 0 or one over the share that is kept: of each element, or of a sample as a whole.
pub fn dropped(import: &mut Import, x: &Value, noise: &Noise) -> Lowered {
    let x = import.tensor(x)?;
    let shape = import.net.shape(x).clone();
    let kept = noise.kept.filter(|&kept| noise.is_scaled && kept > 0.0 && kept <= 1.0);
    let kept =
        kept.ok_or("multiplies by random numbers that are not 0 or one over the share that is kept")?;
    let share = rounded(1.0 - f64::from(kept));
    let is_whole = noise.dims.len() == shape.rank()
        && noise.dims.first() == Some(&shape.batch())
        && noise.dims[1..].iter().all(|&extent| extent == 1);
    if !(is_whole && shape.batch() == import.batch() || noise.dims == shape.0) {
        return Err(format!("drops parts {:?} of {shape}, neither samples nor elements", noise.dims).into());
    }
    if share == 0.0 {
        return Ok(Value::Tensor(x));
    }
    let layer = import.layer(&import.node.layer());
    Ok(Value::Tensor(match is_whole {
        true => import.net.drop_samples(&layer, x, share),
        false => import.net.dropout(&layer, x, share),
    }))
}
