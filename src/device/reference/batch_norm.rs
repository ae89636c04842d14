//! Batch normalisation, whose batch may be spread over ranks: its ops as their definitions.

use ndarray::{Array1, Array5, ArrayD, Axis};

use super::cube;
use crate::error::{Error, Result};
use crate::graph::BatchNorm;

/// x → mean and variance of each channel.
pub fn own_moments(x: &ArrayD<f32>) -> Result<ArrayD<f32>> {
    let (mean, variance) = moments(&cube(x)?.mapv(f64::from));
    Ok(rows(&mean, &variance))
}

fn rows(a: &Array1<f64>, b: &Array1<f64>) -> ArrayD<f32> {
    ndarray::stack![Axis(0), *a, *b].mapv(|v| v as f32).into_dyn()
}

/// x → the x of every rank, which are this rank's own.
pub fn exchange(x: &ArrayD<f32>, ranks: usize) -> ArrayD<f32> {
    let mut shape = vec![ranks];
    shape.extend(x.shape());
    x.broadcast(shape).expect("one more axis in front").to_owned()
}

/// x, w, b, running mean, running variance, z?, moments of all ranks? → y, mean, variance, running mean, running
/// variance, and where y > 0 if `saves`.
pub fn forward(norm: &BatchNorm, inputs: &[ArrayD<f32>], saves: bool) -> Result<Vec<ArrayD<f32>>> {
    let x = &inputs[0];
    let (ranks, (mean, variance)) = match inputs.last().filter(|_| norm.given) {
        Some(given) => combined(&given.mapv(f64::from), x.shape()[1])?,
        None => (1, moments(&cube(x)?.mapv(f64::from))),
    };
    let n = norm.values(ranks, x.len() / mean.len()) as f64;
    let y = normalised(norm, inputs, |c| (given(mean[c]), given(variance[c])))?;
    let running_mean = running(norm, &inputs[3], mean.clone());
    let running_variance = running(norm, &inputs[4], &variance * (n / (n - 1.0)));
    let [mean, variance] = [mean, variance].map(|v| v.mapv(|v| v as f32).into_dyn());
    let saved = saves.then(|| positive(&y));
    let mut outputs = vec![y, mean, variance, running_mean, running_variance];
    outputs.extend(saved);
    Ok(outputs)
}

/// Mean and variance of each channel.
type MeanAndVariance = (Array1<f64>, Array1<f64>);

/// The moments of a batch of which ranks have equal parts, and how many they are.
fn combined(all: &ArrayD<f64>, channels: usize) -> Result<(usize, MeanAndVariance)> {
    let ranks = all.len() / (2 * channels).max(1);
    let all = all.to_shape((ranks, 2, channels)).map_err(|e| Error::internal(e.to_string()))?;
    let (means, variances) = (all.index_axis(Axis(1), 0), all.index_axis(Axis(1), 1));
    let over_ranks = |of: &dyn Fn(usize) -> f64| (0..ranks).map(of).sum::<f64>() / ranks as f64;
    let mean: Array1<f64> = (0..channels).map(|c| over_ranks(&|r| means[[r, c]])).collect();
    let variance = (0..channels)
        .map(|c| over_ranks(&|r| variances[[r, c]] + (means[[r, c]] - mean[c]).powi(2)))
        .collect();
    Ok((ranks, (mean, variance)))
}

/// x, w, b, mean, variance, z? → y, and where y > 0 if `saves`.
pub fn inference(norm: &BatchNorm, inputs: &[ArrayD<f32>], saves: bool) -> Result<Vec<ArrayD<f32>>> {
    let y = normalised(norm, inputs, |c| (f64::from(inputs[3][[c]]), f64::from(inputs[4][[c]])))?;
    let saved = saves.then(|| positive(&y));
    Ok([y].into_iter().chain(saved).collect())
}

/// What an op gives out of a statistic: who normalises with that gets the same bits as who normalised with what it was
/// made of.
fn given(statistic: f64) -> f64 {
    f64::from(statistic as f32)
}

/// Mean and variance (divided by n) of each channel.
fn moments(x: &Array5<f64>) -> (Array1<f64>, Array1<f64>) {
    let n = (x.len() / x.shape()[1]) as f64;
    let mean: Array1<f64> = x.axis_iter(Axis(1)).map(|channel| channel.sum() / n).collect();
    let channels = x.axis_iter(Axis(1)).zip(&mean);
    let variance = channels.map(|(channel, mean)| channel.mapv(|x| (x - mean).powi(2)).sum() / n).collect();
    (mean, variance)
}

/// A running statistic after this batch.
fn running(norm: &BatchNorm, before: &ArrayD<f32>, batch: Array1<f64>) -> ArrayD<f32> {
    let momentum = f64::from(norm.momentum);
    let pairs = before.iter().zip(batch);
    let after = pairs.map(|(&old, new)| ((1.0 - momentum) * f64::from(old) + momentum * new) as f32);
    after.collect::<Array1<f32>>().into_dyn()
}

/// 1 where y > 0, else 0.
fn positive(y: &ArrayD<f32>) -> ArrayD<f32> {
    y.mapv(|y| if y > 0.0 { 1.0 } else { 0.0 })
}

/// (x − mean)/√(variance + epsilon)·w + b with the given mean and variance of each channel, then ReLU if asked for.
fn normalised(
    norm: &BatchNorm,
    inputs: &[ArrayD<f32>],
    statistics: impl Fn(usize) -> (f64, f64),
) -> Result<ArrayD<f32>> {
    let mut y = cube(&inputs[0])?.mapv(f64::from);
    for (c, mut channel) in y.axis_iter_mut(Axis(1)).enumerate() {
        let (mean, variance) = statistics(c);
        let (w, b) = (f64::from(inputs[1][[c]]), f64::from(inputs[2][[c]]));
        let scale = w / (variance + f64::from(norm.epsilon)).sqrt();
        channel.mapv_inplace(|x| (x - mean) * scale + b);
    }
    if norm.add {
        let z = inputs.get(5).ok_or_else(|| Error::internal("a normalisation lacks what is added to it"))?;
        y += &cube(z)?.mapv(f64::from);
    }
    Ok(y.mapv(|y| if norm.relu { y.max(0.0) as f32 } else { y as f32 }).into_dyn())
}

/// The inputs of `forward` → scale and shift in place of y.
pub fn scale(
    norm: &BatchNorm,
    inputs: &[ArrayD<f32>],
    saves: bool,
    rounded: impl Fn(f32) -> f32,
) -> Result<Vec<ArrayD<f32>>> {
    let mut outputs = forward(norm, inputs, saves)?;
    let (mean, variance) = (&outputs[1], &outputs[2]);
    let scale: Array1<f32> =
        (0..mean.len()).map(|c| rounded(inputs[1][[c]] / (variance[[c]] + norm.epsilon).sqrt())).collect();
    let shift: Array1<f32> =
        (0..mean.len()).map(|c| rounded(inputs[2][[c]] - mean[[c]] * scale[c])).collect();
    outputs[0] = ndarray::stack![Axis(0), scale, shift].into_dyn();
    Ok(outputs)
}

/// ReLU(x·scale + shift), with scale (2,C).
pub fn scaled(x: &ArrayD<f32>, scale: &ArrayD<f32>) -> Result<ArrayD<f32>> {
    let mut y = cube(x)?.to_owned();
    for (c, mut channel) in y.axis_iter_mut(Axis(1)).enumerate() {
        channel.mapv_inplace(|x| (x * scale[[0, c]] + scale[[1, c]]).max(0.0));
    }
    Ok(y.into_dyn())
}

/// dy, x, w, mean, variance, saved? → dx, dw, db, or with `add` dy, x, w, mean, variance, y → dz, dw, db, dx. With x̂
/// the normalised x, n values a channel and σ² = variance + epsilon: db = Σ dy, dw = Σ dy·x̂, dx = w/σ·(dy − db/n −
/// x̂·dw/n).
pub fn backward(norm: &BatchNorm, inputs: &[ArrayD<f32>]) -> Result<Vec<ArrayD<f32>>> {
    let mut dy = cube(&inputs[0])?.mapv(f64::from);
    if norm.add {
        dy *= &cube(&positive(&inputs[5]))?.mapv(f64::from);
    } else if norm.relu {
        dy *= &cube(&inputs[5])?.mapv(f64::from);
    }
    let dz = norm.add.then(|| dy.mapv(|v| v as f32).into_dyn());
    let mut normal = cube(&inputs[1])?.mapv(f64::from);
    let (mut dw, mut db) = (Vec::new(), Vec::new());
    for (c, (mut dy, mut normal)) in dy.axis_iter_mut(Axis(1)).zip(normal.axis_iter_mut(Axis(1))).enumerate()
    {
        let [w, mean, variance] = [2, 3, 4].map(|index| f64::from(inputs[index][[c]]));
        let deviation = (variance + f64::from(norm.epsilon)).sqrt();
        normal.mapv_inplace(|x| (x - mean) / deviation);
        let (n, of_w, of_b) = (dy.len() as f64, (&dy * &normal).sum(), dy.sum());
        dy.zip_mut_with(&normal, |dy, x| *dy = w / deviation * (*dy - of_b / n - x * of_w / n));
        dw.push(of_w as f32);
        db.push(of_b as f32);
    }
    let dx = dy.mapv(|v| v as f32).into_dyn();
    let [dw, db] = [dw, db].map(|sums| Array1::from(sums).into_dyn());
    Ok(match dz {
        Some(dz) => vec![dz, dw, db, dx],
        None => vec![dx, dw, db],
    })
}

/// For each channel dy (0 where a ReLU made y 0), x̂, and w/σ; the operands are dy, x, w, b, mean, variance.
fn channels(
    norm: &BatchNorm,
    inputs: &[ArrayD<f32>],
    mut each: impl FnMut(usize, ndarray::Array4<f64>, ndarray::Array4<f64>, f64),
) -> Result<()> {
    let (dy, x) = (cube(&inputs[0])?, cube(&inputs[1])?);
    for (c, (dy, x)) in dy.axis_iter(Axis(1)).zip(x.axis_iter(Axis(1))).enumerate() {
        let [w, b, mean, variance] = [2, 3, 4, 5].map(|index| f64::from(inputs[index][[c]]));
        let deviation = (variance + f64::from(norm.epsilon)).sqrt();
        let normal = x.mapv(|x| (f64::from(x) - mean) / deviation);
        let mut dy = dy.mapv(f64::from);
        if norm.relu {
            dy.zip_mut_with(&normal, |dy, x| *dy = if x * w + b > 0.0 { *dy } else { 0.0 });
        }
        each(c, dy, normal, w / deviation);
    }
    Ok(())
}

/// dy, x, w, b, mean, variance → sums, dw, db.
pub fn sums(norm: &BatchNorm, inputs: &[ArrayD<f32>]) -> Result<Vec<ArrayD<f32>>> {
    let (mut dw, mut db) = (Vec::new(), Vec::new());
    channels(norm, inputs, |_, dy, normal, _| {
        db.push(dy.sum());
        dw.push((dy * normal).sum());
    })?;
    let [dw, db] = [dw, db].map(Array1::from);
    let sums = rows(&db, &dw);
    Ok([vec![sums], [dw, db].map(|v| v.mapv(|v| v as f32).into_dyn()).to_vec()].concat())
}

/// dy, x, w, b, mean, variance, sums of all ranks → dx = w/σ·(dy − Σdy/n − x̂·Σdy·x̂/n).
pub fn backward_of_sums(norm: &BatchNorm, inputs: &[ArrayD<f32>]) -> Result<ArrayD<f32>> {
    let sums = inputs[6].mapv(f64::from).sum_axis(Axis(0));
    let ranks = inputs[6].len_of(Axis(0));
    let mut dx = cube(&inputs[0])?.mapv(f64::from);
    channels(norm, inputs, |c, dy, normal, scale| {
        let n = (ranks * dy.len()) as f64;
        let (of_b, of_w) = (sums[[0, c]] / n, sums[[1, c]] / n);
        dx.index_axis_mut(Axis(1), c).assign(&((dy - of_b - normal * of_w) * scale));
    })?;
    Ok(dx.mapv(|v| v as f32).into_dyn())
}
