//! Batch normalisation with a tensor that is added to it and the ReLU behind, as blocks of residual networks end. The library has
//! that for GPUs only: it would normalise, and add in another pass. These are loops of our own (`rows`), in the layout of x, which
//! read x twice and everything else once.

use std::rc::Rc;

use half::bf16;

use super::handle::Engine;
use super::host::{HostKernel, Numbers, Workers};
use super::primitive::{inputs, nchw, outputs};
use super::rows::{Element, Frame, Scratch, Terms, load, store};
use super::sync_norm::{deviation, moments_of_pieces, put_together, run_on, scale, slice_mut, slices};
use crate::device::{Memory, Request};
use crate::error::{Error, Result};
use crate::graph::{BatchNorm, DType, Spec};

/// y = max((x − mean)·scale + b + z, 0).
struct Normalise<'a, T> {
    x: Numbers<'a, T>,
    z: Numbers<'a, T>,
    y: Numbers<'a, T>,
}

impl<T: Element> Terms<3, 0> for Normalise<'_, T> {
    #[inline(always)]
    fn of<const L: usize>(&self, at: usize, [mean, scale, b]: &[[f32; L]; 3]) -> [[f32; L]; 0] {
        let (mut y, z): ([f32; L], [f32; L]) = (load(&self.x, at), load(&self.z, at));
        for l in 0..L {
            y[l] = ((y[l] - mean[l]) * scale[l] + b[l] + z[l]).max(0.0);
        }
        // SAFETY: pieces do not overlap.
        unsafe { store(&self.y, at, y) };
        []
    }
}

/// dz = dy where y > 0, else 0; of that the sum, and the sum of dz·(x − mean).
struct Sums<'a, T> {
    dy: Numbers<'a, T>,
    x: Numbers<'a, T>,
    y: Numbers<'a, T>,
    dz: Numbers<'a, T>,
}

impl<T: Element> Terms<1, 2> for Sums<'_, T> {
    #[inline(always)]
    fn of<const L: usize>(&self, at: usize, [mean]: &[[f32; L]; 1]) -> [[f32; L]; 2] {
        let (mut dz, y): ([f32; L], [f32; L]) = (load(&self.dy, at), load(&self.y, at));
        let mut product: [f32; L] = load(&self.x, at);
        for l in 0..L {
            dz[l] = if y[l] > 0.0 { dz[l] } else { 0.0 };
            product[l] = (product[l] - mean[l]) * dz[l];
        }
        // SAFETY: pieces do not overlap.
        unsafe { store(&self.dz, at, dz) };
        [dz, product]
    }
}

/// dx = scale·(dz − of_b − (x − mean)·of_w).
struct Differentiate<'a, T> {
    x: Numbers<'a, T>,
    dz: Numbers<'a, T>,
    dx: Numbers<'a, T>,
}

impl<T: Element> Terms<4, 0> for Differentiate<'_, T> {
    #[inline(always)]
    fn of<const L: usize>(&self, at: usize, [mean, scale, of_b, of_w]: &[[f32; L]; 4]) -> [[f32; L]; 0] {
        let (x, mut dx): ([f32; L], [f32; L]) = (load(&self.x, at), load(&self.dz, at));
        for l in 0..L {
            dx[l] = scale[l] * (dx[l] - of_b[l] - (x[l] - mean[l]) * of_w[l]);
        }
        // SAFETY: pieces do not overlap.
        unsafe { store(&self.dx, at, dx) };
        []
    }
}

fn normalise<T: Element>(scratch: &Scratch, workers: &Workers, [x, z, y]: [&Memory; 3]) {
    let [x, z, y] = [x, z, y].map(Numbers::<T>::stored);
    scratch.run(workers, &Normalise { x, z, y });
}

fn add_gradients<T: Element>(scratch: &Scratch, workers: &Workers, [dy, x, y, dz]: [&Memory; 4]) {
    let [dy, x, y, dz] = [dy, x, y, dz].map(Numbers::<T>::stored);
    scratch.run(workers, &Sums { dy, x, y, dz });
}

fn differentiate<T: Element>(scratch: &Scratch, workers: &Workers, [x, dz, dx]: [&Memory; 3]) {
    let [x, dz, dx] = [x, dz, dx].map(Numbers::<T>::stored);
    scratch.run(workers, &Differentiate { x, dz, dx });
}

/// The loop for images of this type.
macro_rules! of_type {
    ($of:ident, $frame:expr) => {
        match $frame.dtype {
            DType::BF16 => $of::<bf16>,
            _ => $of::<f32>,
        }
    };
}

/// Makes sure that images are like x, and vectors have as many numbers as it has channels; returns these.
fn check(x: &Spec, images: &[&Spec], vectors: &[&Spec]) -> Result<usize> {
    let [_, c, _, _] = nchw(x)?;
    let fits = images.iter().all(|image| *image == x) && vectors.iter().all(|vector| vector.shape.0 == [c]);
    fits.then_some(c).ok_or_else(|| {
        Error::internal(format!("operands that do not fit a normalisation of {} with an addition", x.shape))
    })
}

/// x, w, b, running mean, running variance, z → y, mean, variance, running mean, running variance
pub fn training(
    engine: &Engine,
    workers: &Rc<Workers>,
    request: &Request,
    norm: &BatchNorm,
) -> Result<HostKernel> {
    let ([x, vectors @ .., z], [y, more @ ..]) = (inputs::<6>(request)?, outputs::<5>(request)?);
    let c = check(x, &[z, y], &[&vectors[..], &more].concat())?;
    let (norm, workers, n) = (*norm, workers.clone(), (x.shape.elements() / c.max(1)) as f64);
    let frame = Frame::new(engine, request, 0)?;
    let (of_pieces, run) = (of_type!(moments_of_pieces, frame), of_type!(normalise, frame));
    Ok(frame.kernel("norm+add", move |inputs, outputs, scratch| {
        of_pieces(&scratch, &workers, &inputs[0]);
        let [mean, variance] = [1, 2].map(|index| slice_mut(&outputs[index]));
        put_together(&scratch, mean, variance);
        run_on(&norm, [inputs, outputs], [mean, variance], n);
        let [w, b] = slices(&inputs[1..3]);
        scratch.set(|c| [mean[c], scale(w[c], variance[c], norm.epsilon), b[c]]);
        run(&scratch, &workers, [&inputs[0], &inputs[5], &outputs[0]]);
        Ok(())
    }))
}

/// x, w, b, mean, variance, z → y, over x if possible: the bits of `training` with the same statistics.
pub fn inference(
    engine: &Engine,
    workers: &Rc<Workers>,
    request: &Request,
    norm: &BatchNorm,
) -> Result<HostKernel> {
    let ([x, vectors @ .., z], [y]) = (inputs::<6>(request)?, outputs(request)?);
    check(x, &[z, y], &vectors)?;
    let (norm, workers) = (*norm, workers.clone());
    let frame = Frame::new(engine, request, 0)?;
    let run = of_type!(normalise, frame);
    let kernel = frame.kernel("norm+add", move |inputs, outputs, scratch| {
        let [w, b, mean, variance] = slices(&inputs[1..5]);
        scratch.set(|c| [mean[c], scale(w[c], variance[c], norm.epsilon), b[c]]);
        run(&scratch, &workers, [&inputs[0], &inputs[5], &outputs[0]]);
        Ok(())
    });
    Ok(kernel.in_place())
}

/// dy, x, w, mean, variance, y → dx (over dy if possible), dw, db, dz
pub fn backward(
    engine: &Engine,
    workers: &Rc<Workers>,
    request: &Request,
    norm: &BatchNorm,
) -> Result<HostKernel> {
    let [dy, x, vectors @ .., y] = inputs::<6>(request)?;
    let [dx, dw, db, dz] = outputs(request)?;
    let c = check(x, &[dy, y, dx, dz], &[&vectors[..], &[dw, db]].concat())?;
    let (norm, workers, n) = (*norm, workers.clone(), (x.shape.elements() / c.max(1)) as f64);
    let frame = Frame::new(engine, request, 1)?;
    let (sums, run) = (of_type!(add_gradients, frame), of_type!(differentiate, frame));
    let kernel = frame.kernel("norm+add", move |inputs, outputs, scratch| {
        let [w, mean, variance] = slices(&inputs[2..5]);
        scratch.set(|c| [mean[c]]);
        sums(&scratch, &workers, [&inputs[0], &inputs[1], &inputs[5], &outputs[3]]);
        let [dw, db] = [1, 2].map(|index| slice_mut(&outputs[index]));
        for channel in 0..c {
            let add =
                |(of_dz, of_both): (f64, f64), ([dz, both], _): ([f64; 2], f64)| (of_dz + dz, of_both + both);
            let (of_dz, of_both) = scratch.of_channel(channel).fold((0.0, 0.0), add);
            let deviation = deviation(variance[channel], norm.epsilon);
            (db[channel], dw[channel]) = (of_dz as f32, (of_both / deviation) as f32);
        }
        scratch.set(|c| {
            let of_w = f64::from(dw[c]) / n / deviation(variance[c], norm.epsilon);
            [mean[c], scale(w[c], variance[c], norm.epsilon), (f64::from(db[c]) / n) as f32, of_w as f32]
        });
        run(&scratch, &workers, [&inputs[1], &outputs[3], &outputs[0]]);
        Ok(())
    });
    Ok(kernel.in_place())
}
