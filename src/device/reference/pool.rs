//! Poolings.

use std::ops::Range;

use ndarray::{Array4, ArrayD, s};

use super::{extents, image};
use crate::error::Result;
use crate::graph::{Pool, adaptive_window};

/// The rows and columns of the input that window (i, j) covers.
fn window(pool: &Pool, height: usize, width: usize, i: usize, j: usize) -> [Range<usize>; 2] {
    let along = |at: usize, axis: usize, extent: usize| {
        let start = at * pool.stride[axis];
        let end = (start + pool.kernel[axis]).saturating_sub(pool.padding[axis]).min(extent);
        start.saturating_sub(pool.padding[axis])..end
    };
    [along(i, 0, height), along(j, 1, width)]
}

pub fn max_pool(pool: &Pool, x: &ArrayD<f32>, shape: &[usize]) -> Result<Vec<ArrayD<f32>>> {
    let x = image(x)?;
    let (height, width) = (x.shape()[2], x.shape()[3]);
    let mut y = Array4::<f32>::zeros(extents(shape));
    let mut winners = Array4::<f32>::zeros(extents(shape));
    for ((n, c, i, j), best) in y.indexed_iter_mut() {
        let [rows, columns] = window(pool, height, width, i, j);
        *best = f32::NEG_INFINITY;
        for (r, q) in rows.flat_map(|r| columns.clone().map(move |q| (r, q))) {
            // NaN wins, as in PyTorch: a broken number must not hide.
            if x[[n, c, r, q]] > *best || x[[n, c, r, q]].is_nan() {
                *best = x[[n, c, r, q]];
                winners[[n, c, i, j]] = (r * width + q) as f32;
            }
        }
    }
    Ok(vec![y.into_dyn(), winners.into_dyn()])
}

pub fn max_pool_backward(inputs: &[ArrayD<f32>], shape: &[usize]) -> Result<ArrayD<f32>> {
    let (dy, winners) = (image(&inputs[0])?, image(&inputs[1])?);
    let mut dx = Array4::<f64>::zeros(extents(shape));
    for ((n, c, i, j), &gradient) in dy.indexed_iter() {
        let winner = winners[[n, c, i, j]] as usize;
        dx[[n, c, winner / shape[3], winner % shape[3]]] += f64::from(gradient);
    }
    Ok(dx.mapv(|v| v as f32).into_dyn())
}

/// What an average divides by: the window, padding included or not.
fn divisor(pool: &Pool, covered: &[Range<usize>; 2]) -> f64 {
    if pool.count_include_pad {
        (pool.kernel[0] * pool.kernel[1]) as f64
    } else {
        (covered[0].len() * covered[1].len()) as f64
    }
}

pub fn avg_pool(pool: &Pool, x: &ArrayD<f32>, shape: &[usize]) -> Result<ArrayD<f32>> {
    let x = image(x)?;
    let (height, width) = (x.shape()[2], x.shape()[3]);
    let y = Array4::from_shape_fn(extents(shape), |(n, c, i, j)| {
        let covered = window(pool, height, width, i, j);
        let part = x.slice(s![n, c, covered[0].clone(), covered[1].clone()]);
        (part.iter().map(|&v| f64::from(v)).sum::<f64>() / divisor(pool, &covered)) as f32
    });
    Ok(y.into_dyn())
}

pub fn avg_pool_backward(pool: &Pool, dy: &ArrayD<f32>, shape: &[usize]) -> Result<ArrayD<f32>> {
    let dy = image(dy)?;
    let mut dx = Array4::<f64>::zeros(extents(shape));
    for ((n, c, i, j), &gradient) in dy.indexed_iter() {
        let covered = window(pool, shape[2], shape[3], i, j);
        let share = f64::from(gradient) / divisor(pool, &covered);
        dx.slice_mut(s![n, c, covered[0].clone(), covered[1].clone()]).mapv_inplace(|v| v + share);
    }
    Ok(dx.mapv(|v| v as f32).into_dyn())
}

/// The rows and columns that element (i, j) averages, the images being (H, W) before and (OH, OW) after.
fn adaptive_windows(before: &[usize], after: &[usize], i: usize, j: usize) -> [Range<usize>; 2] {
    [adaptive_window(i, before[0], after[0]), adaptive_window(j, before[1], after[1])]
}

pub fn adaptive_avg_pool(x: &ArrayD<f32>, shape: &[usize]) -> Result<ArrayD<f32>> {
    let x = image(x)?;
    let y = Array4::from_shape_fn(extents(shape), |(n, c, i, j)| {
        let [rows, columns] = adaptive_windows(&x.shape()[2..], &shape[2..], i, j);
        let part = x.slice(s![n, c, rows, columns]);
        (part.iter().map(|&v| f64::from(v)).sum::<f64>() / part.len() as f64) as f32
    });
    Ok(y.into_dyn())
}

pub fn adaptive_avg_pool_backward(dy: &ArrayD<f32>, shape: &[usize]) -> Result<ArrayD<f32>> {
    let dy = image(dy)?;
    let mut dx = Array4::<f64>::zeros(extents(shape));
    for ((n, c, i, j), &gradient) in dy.indexed_iter() {
        let [rows, columns] = adaptive_windows(&shape[2..], &dy.shape()[2..], i, j);
        let share = f64::from(gradient) / (rows.len() * columns.len()) as f64;
        dx.slice_mut(s![n, c, rows, columns]).mapv_inplace(|v| v + share);
    }
    Ok(dx.mapv(|v| v as f32).into_dyn())
}
