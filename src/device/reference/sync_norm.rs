//! Batch normalisation whose batch is spread over ranks: its ops as their definitions.

use ndarray::{Array1, ArrayD, Axis};

use super::{given, image, moments, normalised, running};
use crate::error::Result;
use crate::graph::BatchNorm;

/// x → mean and variance of each channel.
pub fn own_moments(x: &ArrayD<f32>) -> Result<ArrayD<f32>> {
    let (mean, variance) = moments(&image(x)?.mapv(f64::from));
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

/// x, w, b, running mean, running variance, moments of all ranks → y, mean, variance, running mean, running variance.
pub fn forward(norm: &BatchNorm, inputs: &[ArrayD<f32>]) -> Result<Vec<ArrayD<f32>>> {
    let all = inputs[5].mapv(f64::from);
    let (means, variances) = (all.index_axis(Axis(1), 0), all.index_axis(Axis(1), 1));
    let ranks = means.len_of(Axis(0));
    let channels = means.len_of(Axis(1));
    let over_ranks = |of: &dyn Fn(usize) -> f64| (0..ranks).map(of).sum::<f64>() / ranks as f64;
    let mean: Array1<f64> = (0..channels).map(|c| over_ranks(&|r| means[[r, c]])).collect();
    let variance: Array1<f64> = (0..channels)
        .map(|c| over_ranks(&|r| variances[[r, c]] + (means[[r, c]] - mean[c]).powi(2)))
        .collect();
    let n = (ranks * inputs[0].len() / channels) as f64;
    let y = normalised(norm, inputs, |c| (given(mean[c]), given(variance[c])))?;
    let running_mean = running(norm, &inputs[3], mean.clone());
    let running_variance = running(norm, &inputs[4], &variance * (n / (n - 1.0)));
    let [mean, variance] = [mean, variance].map(|v| v.mapv(|v| v as f32).into_dyn());
    Ok(vec![y, mean, variance, running_mean, running_variance])
}

/// For each channel dy (0 where a ReLU made y 0), x̂, and w/σ; the operands are dy, x, w, b, mean, variance.
fn channels(
    norm: &BatchNorm,
    inputs: &[ArrayD<f32>],
    mut each: impl FnMut(usize, ndarray::Array3<f64>, ndarray::Array3<f64>, f64),
) -> Result<()> {
    let (dy, x) = (image(&inputs[0])?, image(&inputs[1])?);
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
pub fn backward(norm: &BatchNorm, inputs: &[ArrayD<f32>]) -> Result<ArrayD<f32>> {
    let sums = inputs[6].mapv(f64::from).sum_axis(Axis(0));
    let ranks = inputs[6].len_of(Axis(0));
    let mut dx = image(&inputs[0])?.mapv(f64::from);
    channels(norm, inputs, |c, dy, normal, scale| {
        let n = (ranks * dy.len()) as f64;
        let (of_b, of_w) = (sums[[0, c]] / n, sums[[1, c]] / n);
        dx.index_axis_mut(Axis(1), c).assign(&((dy - of_b - normal * of_w) * scale));
    })?;
    Ok(dx.mapv(|v| v as f32).into_dyn())
}
