//! Batch normalisation whose batch is spread over ranks. The library normalises and differentiates in one go, with no
//! place in the middle where ranks could meet; so these are loops of our own (`channel_loops`), in the layout of x.

use half::bf16;

use super::Cpu;
use super::channel_loops::{
    ChannelPiece, Element, Frame, Grid, MOST_SUMS, Scratch, Terms, add_up, load, store,
};
use super::handle::Engine;
use super::host::{Numbers, Workers, copy, host_kernel};
use super::layout::plain;
use super::primitive::{inputs, outputs, spatial};
use crate::device::{Kernel, KernelRequest, Memory};
use crate::error::{Error, Result};
use crate::graph::{BatchNorm, DType, Spec};

// ---- what is done with each number ----

struct Sum<'a, T>(Numbers<'a, T>);

impl<T: Element> Terms<0, 1> for Sum<'_, T> {
    #[inline(always)]
    fn of<const L: usize>(&self, at: usize, _: &[[f32; L]; 0]) -> [[f32; L]; 1] {
        [load(&self.0, at)]
    }
}

/// x − c and its square, for one c a channel.
struct Deviations<'a, T>(Numbers<'a, T>);

impl<T: Element> Terms<1, 2> for Deviations<'_, T> {
    #[inline(always)]
    fn of<const L: usize>(&self, at: usize, [c]: &[[f32; L]; 1]) -> [[f32; L]; 2] {
        let mut off: [f32; L] = load(&self.0, at);
        let mut square = [0f32; L];
        for l in 0..L {
            off[l] -= c[l];
            square[l] = off[l] * off[l];
        }
        [off, square]
    }
}

/// y = (x − mean)·scale + b, for mean, scale and b of each channel, then ReLU.
struct Normalise<'a, T, const RELU: bool> {
    x: Numbers<'a, T>,
    y: Numbers<'a, T>,
}

impl<T: Element, const RELU: bool> Terms<3, 0> for Normalise<'_, T, RELU> {
    #[inline(always)]
    fn of<const L: usize>(&self, at: usize, [mean, scale, b]: &[[f32; L]; 3]) -> [[f32; L]; 0] {
        let mut y: [f32; L] = load(&self.x, at);
        for l in 0..L {
            y[l] = (y[l] - mean[l]) * scale[l] + b[l];
            if RELU {
                y[l] = y[l].max(0.0);
            }
        }
        // SAFETY: pieces do not overlap.
        unsafe { store(&self.y, at, y) };
        []
    }
}

/// x − mean and dy, which is 0 where a ReLU made y 0: y is computed as it was.
struct Incoming<'a, T, const RELU: bool> {
    x: Numbers<'a, T>,
    dy: Numbers<'a, T>,
}

impl<T: Element, const RELU: bool> Incoming<'_, T, RELU> {
    #[inline(always)]
    fn at<const L: usize>(&self, at: usize, [mean, scale, b]: [&[f32; L]; 3]) -> [[f32; L]; 2] {
        let (mut off, mut dy): ([f32; L], [f32; L]) = (load(&self.x, at), load(&self.dy, at));
        for l in 0..L {
            off[l] -= mean[l];
            if RELU && off[l] * scale[l] + b[l] <= 0.0 {
                dy[l] = 0.0;
            }
        }
        [off, dy]
    }
}

/// dy and dy·(x − mean).
struct Sums<'a, T, const RELU: bool>(Incoming<'a, T, RELU>);

impl<T: Element, const RELU: bool> Terms<3, 2> for Sums<'_, T, RELU> {
    #[inline(always)]
    fn of<const L: usize>(&self, at: usize, [mean, scale, b]: &[[f32; L]; 3]) -> [[f32; L]; 2] {
        let [mut off, dy] = self.0.at(at, [mean, scale, b]);
        for l in 0..L {
            off[l] *= dy[l];
        }
        [dy, off]
    }
}

/// dx = scale·(dy − of_b − (x − mean)·of_w).
struct Differentiate<'a, T, const RELU: bool> {
    incoming: Incoming<'a, T, RELU>,
    dx: Numbers<'a, T>,
}

impl<T: Element, const RELU: bool> Terms<5, 0> for Differentiate<'_, T, RELU> {
    #[inline(always)]
    fn of<const L: usize>(&self, at: usize, [mean, scale, b, of_b, of_w]: &[[f32; L]; 5]) -> [[f32; L]; 0] {
        let [off, mut dx] = self.incoming.at(at, [mean, scale, b]);
        for l in 0..L {
            dx[l] = scale[l] * (dx[l] - of_b[l] - off[l] * of_w[l]);
        }
        // SAFETY: pieces do not overlap.
        unsafe { store(&self.dx, at, dx) };
        []
    }
}

// ---- the loops, for each type of images and with or without ReLU ----

fn normalise<T: Element, const RELU: bool>(scratch: &Scratch, workers: &Workers, [x, y]: [&Memory; 2]) {
    scratch.run(workers, &Normalise::<T, RELU> { x: Numbers::stored(x), y: Numbers::stored(y) });
}

fn add_gradients<T: Element, const RELU: bool>(scratch: &Scratch, workers: &Workers, [dy, x]: [&Memory; 2]) {
    scratch.run(workers, &Sums(Incoming::<T, RELU> { x: Numbers::stored(x), dy: Numbers::stored(dy) }));
}

fn differentiate<T: Element, const RELU: bool>(
    scratch: &Scratch,
    workers: &Workers,
    [dy, x, dx]: [&Memory; 3],
) {
    let incoming = Incoming::<T, RELU> { x: Numbers::stored(x), dy: Numbers::stored(dy) };
    scratch.run(workers, &Differentiate { incoming, dx: Numbers::stored(dx) });
}

/// The one of them that fits.
macro_rules! choose {
    ($of:ident, $frame:expr, $norm:expr) => {
        match ($frame.dtype, $norm.relu) {
            (DType::BF16, true) => $of::<bf16, true>,
            (DType::BF16, false) => $of::<bf16, false>,
            (_, true) => $of::<f32, true>,
            (_, false) => $of::<f32, false>,
        }
    };
}

// ---- the ops ----

/// Makes sure that vectors have as many numbers as x has channels, and gathered ones two rows of them a rank; returns
/// the ranks.
pub fn check(x: &Spec, vectors: &[&Spec], gathered: Option<&Spec>) -> Result<usize> {
    let ([_, c], _) = spatial(x)?;
    let ranks = gathered.map_or(1, |spec| spec.shape.batch());
    let fits = vectors.iter().all(|spec| spec.shape.0 == [c])
        && gathered.is_none_or(|spec| ranks > 0 && spec.shape.0 == [ranks, 2, c]);
    if !fits {
        return Err(Error::internal(format!("operands that do not fit a normalisation of {}", x.shape)));
    }
    Ok(ranks)
}

/// The numbers of small operands.
pub fn slices<const N: usize>(memory: &[Memory]) -> [&[f32]; N] {
    // SAFETY: host memory of this device; nothing writes to it while it is read.
    std::array::from_fn(|index| unsafe { memory[index].as_slice() })
}

#[allow(clippy::mut_from_ref)]
fn slice_mut(memory: &Memory) -> &mut [f32] {
    // SAFETY: host memory of this device, apart from every other operand but a statistic's own past, which is read
    // before.
    unsafe { memory.as_slice_mut() }
}

/// w/√(variance + epsilon), as the forward and backward ops alike have it.
fn scale(w: f32, variance: f32, epsilon: f32) -> f32 {
    (f64::from(w) / deviation(variance, epsilon)) as f32
}

/// What a channel is moved by and multiplied with, for its w, b, mean and variance: y = (x − mean)·scale + b.
pub fn coefficients([w, b, mean, variance]: [f32; 4], epsilon: f32) -> [f32; 3] {
    [mean, scale(w, variance, epsilon), b]
}

fn deviation(variance: f32, epsilon: f32) -> f64 {
    (f64::from(variance) + f64::from(epsilon)).sqrt()
}

/// x → moments. Pieces are put together after Chan, Golub and LeVeque ("Updating formulae and a pairwise algorithm for
/// computing sample variances", 1979).
pub fn moments(cpu: &Cpu, request: &KernelRequest) -> Result<Kernel> {
    let ([x], [moments]) = (inputs(request)?, outputs(request)?);
    let ([_, c], _) = spatial(x)?;
    if moments.shape.0 != [2, c] {
        return Err(Error::internal(format!("moments of {} cannot be {}", x.shape, moments.shape)));
    }
    moments_to(cpu, request, move |outputs| slice_mut(&outputs[0]).split_at_mut(c).into())
}

/// x → mean, variance.
pub fn mean_and_variance(cpu: &Cpu, request: &KernelRequest) -> Result<Kernel> {
    let ([x], [mean, variance]) = (inputs(request)?, outputs(request)?);
    check(x, &[mean, variance], None)?;
    moments_to(cpu, request, |outputs| [0, 1].map(|index| slice_mut(&outputs[index])))
}

/// The moments of x to where `of` says: means, and variances.
fn moments_to(
    cpu: &Cpu,
    request: &KernelRequest,
    of: impl Fn(&[Memory]) -> [&mut [f32]; 2] + 'static,
) -> Result<Kernel> {
    let workers = cpu.workers.clone();
    let frame = Frame::new(&cpu.engine, request, 0)?;
    let of_pieces = match frame.dtype {
        DType::BF16 => moments_of_pieces::<bf16>,
        _ => moments_of_pieces::<f32>,
    };
    Ok(frame.kernel("moments", move |inputs, outputs, scratch| {
        of_pieces(&scratch, &workers, &inputs[0]);
        let [mean, variance] = of(outputs);
        for (channel, (mean, variance)) in mean.iter_mut().zip(variance).enumerate() {
            [*mean, *variance] = put_together(&scratch, channel);
        }
        Ok(())
    }))
}

/// Mean and variance of a channel from those of its pieces.
pub fn put_together(scratch: &Scratch, channel: usize) -> [f32; 2] {
    let (mut mean, mut squares, mut count) = (0.0, 0.0, 0.0);
    for ([of_piece, its_squares], n) in scratch.of_channel(channel) {
        let (apart, together) = (of_piece - mean, count + n);
        mean += apart * n / together;
        squares += its_squares + apart * apart * count * n / together;
        count = together;
    }
    [mean as f32, (squares / count) as f32]
}

/// The running mean and variance, inputs 3 and 4, take in those of a batch of n values a channel, and are outputs 3 and
/// 4.
pub fn run_on(norm: &BatchNorm, [inputs, outputs]: [&[Memory]; 2], [mean, variance]: [&[f32]; 2], n: f64) {
    for (which, batch, unbiased) in [(3, mean, 1.0), (4, variance, (n / (n - 1.0)) as f32)] {
        copy(&inputs[which], &outputs[which], 4 * batch.len());
        for (running, new) in slice_mut(&outputs[which]).iter_mut().zip(batch) {
            *running += norm.momentum * (unbiased * new - *running);
        }
    }
}

fn moments_of_pieces<T: Element>(scratch: &Scratch, workers: &Workers, x: &Memory) {
    let (x, grid) = (Numbers::<T>::stored(x), scratch.grid);
    workers.each(grid.pieces(), |index| {
        // SAFETY: one call a piece.
        let sums = unsafe { scratch.rows_of(index) };
        moments_of_piece(&grid, &grid.piece(index), x, sums);
    });
}

/// Mean and Σ(x − mean)² of a piece, for each lane: of the deviations from the mean c of a sample, in one pass, with
/// Σ(x − c)² − (Σ(x − c))²/n. What cancels there is small: a sample of a sixteenth is at most four of the piece's
/// standard deviations away from its mean, since its own numbers are part of them.
pub fn moments_of_piece<T: Element>(grid: &Grid, piece: &ChannelPiece, x: Numbers<T>, sums: &mut [f32]) {
    let (sample, count) = (piece.sample(), piece.count() as f64);
    let (sums, about) = sums.split_at_mut(MOST_SUMS * grid.lanes);
    add_up(grid, &sample, [], &Sum(x), about);
    about.iter_mut().for_each(|sum| *sum = (f64::from(*sum) / sample.count() as f64) as f32);
    add_up(grid, piece, [about], &Deviations(x), sums);
    let (means, squares) = sums.split_at_mut(grid.lanes);
    for ((mean, squares), &about) in means.iter_mut().zip(squares).zip(about.iter()) {
        let off = f64::from(*mean);
        *mean = (f64::from(about) + off / count) as f32;
        *squares = (f64::from(*squares) - off * off / count).max(0.0) as f32;
    }
}

/// x → x of every rank: on this device they are its own.
pub fn exchange(engine: &Engine, request: &KernelRequest, ranks: usize) -> Result<Kernel> {
    let ([x], [y]) = (inputs(request)?, outputs(request)?);
    if y.shape.batch() != ranks || y.shape.0[1..] != x.shape.0 {
        return Err(Error::internal(format!("{} of {ranks} ranks cannot be {}", x.shape, y.shape)));
    }
    let (x, y) = (plain(engine, x)?, plain(engine, y)?);
    let bytes = x.bytes();
    Ok(host_kernel("exchange", vec![x], vec![y], move |inputs, outputs, _| {
        (0..ranks).for_each(|rank| copy(&inputs[0], &outputs[0].slice(rank * bytes, bytes), bytes));
        Ok(())
    }))
}

/// x → y: what this rank has, in place of what the others have for it.
pub fn all_to_all(engine: &Engine, request: &KernelRequest) -> Result<Kernel> {
    let ([x], [y]) = (inputs(request)?, outputs(request)?);
    if x != y {
        return Err(Error::internal(format!("all to all of {} cannot be {}", x.shape, y.shape)));
    }
    let layout = plain(engine, x)?;
    let bytes = layout.bytes();
    Ok(host_kernel("all to all", vec![layout.clone()], vec![layout], move |inputs, outputs, _| {
        copy(&inputs[0], &outputs[0], bytes);
        Ok(())
    }))
}

/// x, w, b, running mean, running variance, moments of all ranks → y, mean, variance, running mean, running variance
pub fn forward_pass(cpu: &Cpu, request: &KernelRequest, norm: &BatchNorm) -> Result<Kernel> {
    let [x, vectors @ .., moments] = inputs::<6>(request)?;
    let [y, more @ ..] = outputs::<5>(request)?;
    let ranks = check(x, &[&vectors[..], &more].concat(), Some(moments))?;
    if x != y {
        return Err(Error::internal(format!("a normalisation of {} cannot give {}", x.shape, y.shape)));
    }
    let (norm, workers, c) = (*norm, cpu.workers.clone(), x.shape.0[1]);
    let n = norm.values(ranks, x.shape.elements() / c.max(1)) as f64;
    let frame = Frame::new(&cpu.engine, request, 0)?;
    let run = choose!(normalise, frame, norm);
    Ok(frame.kernel("sync norm", move |inputs, outputs, scratch| {
        let [w, b] = slices(&inputs[1..3]);
        let [moments] = slices(&inputs[5..]);
        let [mean, variance] = [1, 2].map(|index| slice_mut(&outputs[index]));
        combine(moments, mean, variance);
        run_on(&norm, [inputs, outputs], [mean, variance], n);
        scratch.set(|c| coefficients([w[c], b[c], mean[c], variance[c]], norm.epsilon));
        run(&scratch, &workers, [&inputs[0], &outputs[0]]);
        Ok(())
    }))
}

/// x, w, b, mean, variance → y, over x if possible
pub fn again(cpu: &Cpu, request: &KernelRequest, norm: &BatchNorm) -> Result<Kernel> {
    let ([x, vectors @ ..], [y]) = (inputs::<5>(request)?, outputs(request)?);
    check(x, &vectors, None)?;
    if x != y {
        return Err(Error::internal(format!("a normalisation of {} cannot give {}", x.shape, y.shape)));
    }
    let (norm, workers) = (*norm, cpu.workers.clone());
    let frame = Frame::new(&cpu.engine, request, 0)?;
    let run = choose!(normalise, frame, norm);
    let kernel = frame.kernel("sync norm", move |inputs, outputs, scratch| {
        let [w, b, mean, variance] = slices(&inputs[1..]);
        scratch.set(|c| coefficients([w[c], b[c], mean[c], variance[c]], norm.epsilon));
        run(&scratch, &workers, [&inputs[0], &outputs[0]]);
        Ok(())
    });
    Ok(kernel.in_place(0))
}

/// Mean and variance of all ranks' batches, which are equally large, from those of each: added up in the order of
/// ranks, so that all of them get the same bits.
fn combine(moments: &[f32], mean: &mut [f32], variance: &mut [f32]) {
    let c = mean.len();
    let ranks = (moments.len() / (2 * c).max(1)) as f64;
    for channel in 0..c {
        let means = moments.iter().skip(channel).step_by(2 * c).map(|&v| f64::from(v));
        let variances = moments.iter().skip(c + channel).step_by(2 * c).map(|&v| f64::from(v));
        let middle = means.clone().sum::<f64>() / ranks;
        let squares: f64 = means.zip(variances).map(|(mean, v)| v + (mean - middle).powi(2)).sum();
        (mean[channel], variance[channel]) = (middle as f32, (squares / ranks) as f32);
    }
}

/// dy, x, w, b, mean, variance → sums, dw, db
pub fn sums(cpu: &Cpu, request: &KernelRequest, norm: &BatchNorm) -> Result<Kernel> {
    let [dy, x, vectors @ ..] = inputs::<6>(request)?;
    let [sums, dw, db] = outputs(request)?;
    check(x, &[&vectors[..], &[dw, db]].concat(), None)?;
    let (norm, workers, c) = (*norm, cpu.workers.clone(), x.shape.0[1]);
    if dy != x || sums.shape.0 != [2, c] {
        return Err(Error::internal(format!("sums {} of {} and {}", sums.shape, dy.shape, x.shape)));
    }
    let frame = Frame::new(&cpu.engine, request, 1)?;
    let run = choose!(add_gradients, frame, norm);
    Ok(frame.kernel("sync norm", move |inputs, outputs, scratch| {
        let [w, b, mean, variance] = slices(&inputs[2..]);
        scratch.set(|c| coefficients([w[c], b[c], mean[c], variance[c]], norm.epsilon));
        run(&scratch, &workers, [&inputs[0], &inputs[1]]);
        let [sums, dw, db] = [0, 1, 2].map(|index| slice_mut(&outputs[index]));
        for channel in 0..c {
            let (mut of_dy, mut of_both) = (0.0, 0.0);
            for ([dy, both], _) in scratch.of_channel(channel) {
                of_dy += dy;
                of_both += both;
            }
            db[channel] = of_dy as f32;
            dw[channel] = (of_both / deviation(variance[channel], norm.epsilon)) as f32;
        }
        sums[..c].copy_from_slice(db);
        sums[c..].copy_from_slice(dw);
        Ok(())
    }))
}

/// dy, x, w, b, mean, variance, sums of all ranks → dx, over dy if possible
pub fn backward(cpu: &Cpu, request: &KernelRequest, norm: &BatchNorm) -> Result<Kernel> {
    let [dy, x, vectors @ .., sums] = inputs::<7>(request)?;
    let [dx] = outputs(request)?;
    let ranks = check(x, &vectors, Some(sums))?;
    if dy != x || dx != x {
        return Err(Error::internal(format!("{} from {} and {}", dx.shape, dy.shape, x.shape)));
    }
    let (norm, workers, c) = (*norm, cpu.workers.clone(), x.shape.0[1]);
    let n = (ranks * x.shape.elements() / c.max(1)) as f64;
    let frame = Frame::new(&cpu.engine, request, 1)?;
    let run = choose!(differentiate, frame, norm);
    let kernel = frame.kernel("sync norm", move |inputs, outputs, scratch| {
        let [w, b, mean, variance, sums] = slices(&inputs[2..]);
        let over_ranks =
            |at: usize| sums.iter().skip(at).step_by(2 * c).map(|&sum| f64::from(sum)).sum::<f64>();
        scratch.set(|channel| {
            let [w, b, mean, variance] = [w, b, mean, variance].map(|of| of[channel]);
            let of_w = over_ranks(c + channel) / n / deviation(variance, norm.epsilon);
            let of_b = over_ranks(channel) / n;
            [mean, scale(w, variance, norm.epsilon), b, of_b as f32, of_w as f32]
        });
        run(&scratch, &workers, [&inputs[0], &inputs[1], &outputs[0]]);
        Ok(())
    });
    Ok(kernel.in_place(0))
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;
    use crate::device::memory::{bytes_of, bytes_of_mut};
    use crate::device::onednn::handle::Desc;
    use crate::device::onednn::{layout, sys};
    use crate::device::{Kernel, Layout, Scalars};
    use crate::graph::Shape;
    use crate::random::{Purpose, Stream, key};

    const EXTENTS: [usize; 5] = [3, 21, 3, 3, 7];
    const CHANNELS: usize = EXTENTS[1];

    fn spec(extents: &[usize]) -> Spec {
        Spec { shape: Shape(extents.to_vec()), dtype: DType::F32 }
    }

    /// Random numbers, cubes in these strides.
    fn operand(extents: &[usize], strides: [usize; 5], which: u32) -> (Spec, Vec<f32>) {
        let mut stream = Stream::new(key(1, Purpose::Synthetic, which));
        let spec = spec(extents);
        let mut values: Vec<f32> = (0..spec.shape.elements()).map(|_| stream.uniform()).collect();
        if extents == EXTENTS {
            let logical = values.clone();
            logical.iter().enumerate().for_each(|(i, &value)| values[place(i, strides)] = value);
        }
        (spec, values)
    }

    /// Where element i of a tensor of cubes lies.
    fn place(i: usize, strides: [usize; 5]) -> usize {
        let [_, c, d, h, w] = EXTENTS;
        let at = [i / (c * d * h * w), i / (d * h * w) % c, i / (h * w) % d, i / w % h, i % w];
        at.iter().zip(strides).map(|(at, stride)| at * stride).sum()
    }

    fn memory(values: &[f32]) -> Memory {
        let memory = Memory::host(4 * values.len()).unwrap();
        memory.write(bytes_of(values));
        memory
    }

    /// Output 0 of a kernel, which is to keep the layout given for images.
    fn run(
        compile: impl Fn(&KernelRequest) -> Result<Kernel>,
        given: &Layout,
        operands: &[(Spec, Vec<f32>)],
        outputs: &[Spec],
    ) -> Vec<f32> {
        let image = spec(&EXTENTS);
        let layout = |spec: &Spec| (*spec == image).then(|| given.clone());
        let inputs: Vec<_> = operands.iter().map(|(spec, _)| (spec.clone(), layout(spec))).collect();
        // The op's own parameters are not looked at any more.
        let op = crate::graph::Op::BatchNormMoments;
        let request = KernelRequest { op: &op, inputs: &inputs, outputs, forward: None, training: true };
        let kernel = compile(&request).unwrap();
        let x = inputs.iter().position(|(spec, _)| *spec == image).unwrap();
        assert_eq!(kernel.inputs[x], *given, "the layout is not kept");
        let from: Vec<Memory> = operands.iter().map(|(_, values)| memory(values)).collect();
        let to: Vec<Memory> =
            outputs.iter().map(|spec| memory(&vec![f32::NAN; spec.shape.elements()])).collect();
        let workspace = Memory::host(kernel.workspace).unwrap();
        kernel.bind(&from, &to, &workspace).unwrap().run(&Scalars::default()).unwrap();
        let mut first = vec![0f32; outputs[0].shape.elements()];
        to[0].read(bytes_of_mut(&mut first));
        first
    }

    /// Moments, y and dx with images in these strides, in logical order.
    fn ends(strides: [usize; 5]) -> [Vec<f32>; 3] {
        let cpu = &Cpu { engine: Engine::new(1).unwrap(), workers: Rc::new(Workers::new(2).unwrap()) };
        let desc = Desc::strided(&cpu.engine, &EXTENTS, &strides, sys::F32).unwrap();
        let given = layout::layout(desc).unwrap();
        let norm = BatchNorm { relu: true, ..BatchNorm::default() };
        let [x, dy] = [1, 2].map(|which| operand(&EXTENTS, strides, which));
        let [w, b, mean, variance] = [3, 4, 5, 6].map(|which| operand(&[CHANNELS], strides, which));
        let pairs = operand(&[2, 2, CHANNELS], strides, 7);
        let (images, vector) = (spec(&EXTENTS), spec(&[CHANNELS]));

        let found =
            run(|request| moments(cpu, request), &given, std::slice::from_ref(&x), &[spec(&[2, CHANNELS])]);
        let inputs = [x.clone(), w.clone(), b.clone(), mean.clone(), variance.clone(), pairs.clone()];
        let outputs = [vec![images.clone()], vec![vector; 4]].concat();
        let y = run(|request| forward_pass(cpu, request, &norm), &given, &inputs, &outputs);
        let inputs = [dy, x, w, b, mean, variance, pairs];
        let dx = run(|request| backward(cpu, request, &norm), &given, &inputs, &[images]);
        let logical = |there: Vec<f32>| (0..there.len()).map(|i| there[place(i, strides)]).collect();
        [found, logical(y), logical(dx)]
    }

    /// The library puts channels last on some processors only. What is done to single numbers is the same to the last
    /// bit; moments are sums of 189 numbers below 1.
    #[test]
    fn channels_may_come_last() {
        let [_, c, d, h, w] = EXTENTS;
        let plain = ends([c * d * h * w, d * h * w, h * w, w, 1]);
        let last = ends([c * d * h * w, 1, h * w * c, w * c, c]);
        assert_eq!(plain[1..], last[1..]);
        for (a, b) in plain[0].iter().zip(&last[0]) {
            assert!((a - b).abs() < 200.0 * f32::EPSILON, "{a} and {b}");
        }
    }
}
