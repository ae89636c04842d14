//! Poolings.

use std::ops::Range;

use ndarray::{Array5, ArrayD, s};

use super::{cube, reshaped, volumes};
use crate::error::Result;
use crate::graph::{Pool, Volume, adaptive_window};

/// Planes, rows and columns of the input.
type Covered = [Range<usize>; 3];

/// Those that the window of a place covers.
fn window(pool: &Pool, input: Volume, place: Volume) -> Covered {
    [0, 1, 2].map(|axis| {
        let start = place[axis] * pool.stride[axis];
        let end = (start + pool.kernel[axis]).saturating_sub(pool.padding[axis]).min(input[axis]);
        start.saturating_sub(pool.padding[axis])..end
    })
}

/// The size of cubes.
fn size(shape: &[usize]) -> Volume {
    let [_, _, size @ ..] = volumes(shape);
    size
}

fn places([planes, rows, columns]: Covered) -> impl Iterator<Item = Volume> {
    let of_plane = move |d: usize| {
        let columns = columns.clone();
        rows.clone().flat_map(move |h| columns.clone().map(move |w| [d, h, w]))
    };
    planes.flat_map(of_plane)
}

pub fn max_pool(pool: &Pool, x: &ArrayD<f32>, shape: &[usize]) -> Result<Vec<ArrayD<f32>>> {
    let (x, input) = (cube(x)?, size(x.shape()));
    let [_, height, width] = input;
    let mut y = Array5::<f32>::zeros(volumes(shape));
    let mut winners = Array5::<f32>::zeros(volumes(shape));
    for ((n, c, h, i, j), best) in y.indexed_iter_mut() {
        *best = f32::NEG_INFINITY;
        for [d, r, q] in places(window(pool, input, [h, i, j])) {
            // NaN wins, as in PyTorch: a broken number must not hide.
            if x[[n, c, d, r, q]] > *best || x[[n, c, d, r, q]].is_nan() {
                *best = x[[n, c, d, r, q]];
                winners[[n, c, h, i, j]] = ((d * height + r) * width + q) as f32;
            }
        }
    }
    Ok(vec![reshaped(y.into_dyn(), shape)?, reshaped(winners.into_dyn(), shape)?])
}

pub fn max_pool_backward(inputs: &[ArrayD<f32>], shape: &[usize]) -> Result<ArrayD<f32>> {
    let (dy, winners, [_, height, width]) = (cube(&inputs[0])?, cube(&inputs[1])?, size(shape));
    let mut dx = Array5::<f64>::zeros(volumes(shape));
    for ((n, c, h, i, j), &gradient) in dy.indexed_iter() {
        let winner = winners[[n, c, h, i, j]] as usize;
        let [plane, row] = [winner / (height * width), winner / width % height];
        dx[[n, c, plane, row, winner % width]] += f64::from(gradient);
    }
    reshaped(dx.mapv(|v| v as f32).into_dyn(), shape)
}

/// What an average divides by: the window, padding included or not.
fn divisor(pool: &Pool, covered: &Covered) -> f64 {
    if pool.count_include_pad {
        pool.kernel.iter().product::<usize>() as f64
    } else {
        covered.iter().map(Range::len).product::<usize>() as f64
    }
}

/// The mean of what each place covers, by what its sum is divided by.
fn means(x: &ArrayD<f32>, shape: &[usize], of: impl Fn(Volume) -> (Covered, f64)) -> Result<ArrayD<f32>> {
    let x = cube(x)?;
    let y = Array5::from_shape_fn(volumes(shape), |(n, c, h, i, j)| {
        let ([planes, rows, columns], divisor) = of([h, i, j]);
        let part = x.slice(s![n, c, planes, rows, columns]);
        (part.iter().map(|&v| f64::from(v)).sum::<f64>() / divisor) as f32
    });
    reshaped(y.into_dyn(), shape)
}

/// Takes gradients back through `means`.
fn means_backward(
    dy: &ArrayD<f32>,
    shape: &[usize],
    of: impl Fn(Volume) -> (Covered, f64),
) -> Result<ArrayD<f32>> {
    let dy = cube(dy)?;
    let mut dx = Array5::<f64>::zeros(volumes(shape));
    for ((n, c, h, i, j), &gradient) in dy.indexed_iter() {
        let ([planes, rows, columns], divisor) = of([h, i, j]);
        let share = f64::from(gradient) / divisor;
        dx.slice_mut(s![n, c, planes, rows, columns]).mapv_inplace(|v| v + share);
    }
    reshaped(dx.mapv(|v| v as f32).into_dyn(), shape)
}

fn averaged(pool: &Pool, input: Volume) -> impl Fn(Volume) -> (Covered, f64) {
    move |place| {
        let covered = window(pool, input, place);
        let divisor = divisor(pool, &covered);
        (covered, divisor)
    }
}

pub fn avg_pool(pool: &Pool, x: &ArrayD<f32>, shape: &[usize]) -> Result<ArrayD<f32>> {
    means(x, shape, averaged(pool, size(x.shape())))
}

pub fn avg_pool_backward(pool: &Pool, dy: &ArrayD<f32>, shape: &[usize]) -> Result<ArrayD<f32>> {
    means_backward(dy, shape, averaged(pool, size(shape)))
}

/// What each place averages of images of one size for those of another.
fn adaptive(before: Volume, after: Volume) -> impl Fn(Volume) -> (Covered, f64) {
    move |place| {
        let covered = [0, 1, 2].map(|axis| adaptive_window(place[axis], before[axis], after[axis]));
        let count = covered.iter().map(Range::len).product::<usize>();
        (covered, count as f64)
    }
}

pub fn adaptive_avg_pool(x: &ArrayD<f32>, shape: &[usize]) -> Result<ArrayD<f32>> {
    means(x, shape, adaptive(size(x.shape()), size(shape)))
}

pub fn adaptive_avg_pool_backward(dy: &ArrayD<f32>, shape: &[usize]) -> Result<ArrayD<f32>> {
    means_backward(dy, shape, adaptive(size(shape), size(dy.shape())))
}
