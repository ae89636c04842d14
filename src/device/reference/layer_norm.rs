//! Layer normalisation as its definition.

use ndarray::{Array2, ArrayD};

use super::reshaped;
use crate::error::{Error, Result};

/// (rows, elements of a row)
fn in_rows(array: &ArrayD<f32>, rows: usize) -> Result<Array2<f64>> {
    let array = reshaped(array.clone(), &[rows, array.len() / rows.max(1)])?;
    Ok(array.into_dimensionality().map_err(|e| Error::internal(e.to_string()))?.mapv(f64::from))
}

fn to_f32(array: Array2<f64>, like: &ArrayD<f32>) -> Result<ArrayD<f32>> {
    reshaped(array.mapv(|v| v as f32).into_dyn(), like.shape())
}

/// Element k of a weight or a bias, or what stands for it.
fn element(of: Option<&ArrayD<f32>>, k: usize, missing: f64) -> f64 {
    of.and_then(|of| of.iter().nth(k)).map_or(missing, |&v| f64::from(v))
}

/// x, w?, b? → y, mean, variance
pub fn forward(epsilon: f32, inputs: &[ArrayD<f32>], rows: usize) -> Result<Vec<ArrayD<f32>>> {
    let mut y = in_rows(&inputs[0], rows)?;
    let (mut means, mut variances) = (Vec::new(), Vec::new());
    for mut row in y.rows_mut() {
        let n = row.len() as f64;
        let mean = row.sum() / n;
        let variance = row.mapv(|v| (v - mean) * (v - mean)).sum() / n;
        for (k, v) in row.iter_mut().enumerate() {
            let normal = (*v - mean) / (variance + f64::from(epsilon)).sqrt();
            *v = normal * element(inputs.get(1), k, 1.0) + element(inputs.get(2), k, 0.0);
        }
        means.push(mean as f32);
        variances.push(variance as f32);
    }
    let [means, variances] = [means, variances].map(|of| ndarray::Array1::from(of).into_dyn());
    Ok(vec![to_f32(y, &inputs[0])?, means, variances])
}

/// dy, x, w?, mean, variance → dx, dw?, db?
pub fn backward(epsilon: f32, affine: bool, inputs: &[ArrayD<f32>]) -> Result<Vec<ArrayD<f32>>> {
    let weight = inputs.get(2).filter(|_| affine);
    let [means, variances] = [1, 2].map(|place| &inputs[place + 1 + usize::from(affine)]);
    let rows = means.len();
    let (dy, x) = (in_rows(&inputs[0], rows)?, in_rows(&inputs[1], rows)?);
    let (mut dx, width) = (x.clone(), x.ncols());
    let (mut dw, mut db) = (vec![0f64; width], vec![0f64; width]);
    for r in 0..rows {
        let (mean, deviation) =
            (f64::from(means[[r]]), (f64::from(variances[[r]]) + f64::from(epsilon)).sqrt());
        let normal: Vec<f64> = x.row(r).iter().map(|v| (v - mean) / deviation).collect();
        let given: Vec<f64> = (0..width).map(|k| dy[[r, k]] * element(weight, k, 1.0)).collect();
        let sum = given.iter().sum::<f64>() / width as f64;
        let along = given.iter().zip(&normal).map(|(g, v)| g * v).sum::<f64>() / width as f64;
        for k in 0..width {
            dx[[r, k]] = (given[k] - sum - normal[k] * along) / deviation;
            dw[k] += dy[[r, k]] * normal[k];
            db[k] += dy[[r, k]];
        }
    }
    let mut gradients = vec![to_f32(dx, &inputs[1])?];
    if let Some(weight) = weight {
        for sums in [dw, db] {
            let sums = sums.into_iter().map(|v| v as f32).collect::<ndarray::Array1<f32>>();
            gradients.push(reshaped(sums.into_dyn(), weight.shape())?);
        }
    }
    Ok(gradients)
}
