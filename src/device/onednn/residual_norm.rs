//! Batch normalisation with a tensor that is added to it and the ReLU behind, as blocks of residual networks end. The
//! library has that for GPUs only: it would normalise, and add in another pass. Forward these are loops of our own
//! (`channel_loops`), in the layout of x, which read x twice and everything else once, block by block of channels while
//! that is in cache. Backward the library's two kernels in turn are faster.

use std::rc::Rc;

use half::bf16;

use super::Cpu;
use super::channel_loops::{ChannelPiece, Element, Frame, Scratch, Terms, load, store};
use super::handle::Engine;
use super::host::{Numbers, Workers};
use super::primitive::{in_turn, inputs, outputs};
use super::sync_norm::{self, coefficients, moments_of_piece, put_together, run_on, slices};
use super::{activation, batch_norm};
use crate::device::{Kernel, KernelRequest, Memory};
use crate::error::{Error, Result};
use crate::graph::{Activation, BatchNorm, DType, Spec};

/// y = max((x − mean)·scale + b + z, 0).
struct ResidualNormalise<'a, T> {
    x: Numbers<'a, T>,
    z: Numbers<'a, T>,
    y: Numbers<'a, T>,
}

impl<T: Element> Terms<3, 0> for ResidualNormalise<'_, T> {
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

/// A number a channel, which threads write for their channels.
struct Vector<'a>(Numbers<'a>);

impl Vector<'_> {
    fn of(memory: &Memory) -> Vector<'_> {
        Vector(Numbers::of(memory))
    }

    fn set(&self, channel: usize, value: f32) {
        // SAFETY: each channel is written by one thread, and read when all are through.
        unsafe { self.0.part_mut(channel..channel + 1)[0] = value };
    }
}

fn train<T: Element>(
    norm: &BatchNorm,
    inputs: &[Memory],
    outputs: &[Memory],
    scratch: &Scratch,
    workers: &Workers,
) {
    let [x, z] = [&inputs[0], &inputs[5]].map(Numbers::<T>::stored);
    let ([w, b], [mean, variance]) = (slices(&inputs[1..3]), [1, 2].map(|index| Vector::of(&outputs[index])));
    let moments = |piece: &ChannelPiece, sums: &mut [f32]| moments_of_piece(&scratch.grid, piece, x, sums);
    let between = |channel: usize| {
        let [of_mean, of_variance] = put_together(scratch, channel);
        mean.set(channel, of_mean);
        variance.set(channel, of_variance);
        coefficients([w[channel], b[channel], of_mean, of_variance], norm.epsilon)
    };
    scratch.twice(workers, moments, between, &ResidualNormalise { x, z, y: Numbers::stored(&outputs[0]) });
}

fn apply<T: Element>(
    norm: &BatchNorm,
    inputs: &[Memory],
    outputs: &[Memory],
    scratch: &Scratch,
    workers: &Workers,
) {
    let [x, z, y] = [&inputs[0], &inputs[5], &outputs[0]].map(Numbers::<T>::stored);
    let [w, b, mean, variance] = slices(&inputs[1..5]);
    scratch.set(|c| coefficients([w[c], b[c], mean[c], variance[c]], norm.epsilon));
    scratch.run(workers, &ResidualNormalise { x, z, y });
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

/// Makes sure that images are like x, and vectors have as many numbers as it has channels.
fn check(x: &Spec, images: &[&Spec], vectors: &[&Spec]) -> Result<()> {
    sync_norm::check(x, vectors, None)?;
    match images.iter().all(|image| *image == x) {
        true => Ok(()),
        false => Err(Error::internal(format!("images that are not like {} in its normalisation", x.shape))),
    }
}

/// x, w, b, running mean, running variance, z → y, mean, variance, running mean, running variance
pub fn training(cpu: &Cpu, request: &KernelRequest, norm: &BatchNorm) -> Result<Kernel> {
    let ([x, vectors @ .., z], [y, more @ ..]) = (inputs::<6>(request)?, outputs::<5>(request)?);
    check(x, &[z, y], &[&vectors[..], &more].concat())?;
    let (norm, workers, n) = (*norm, cpu.workers.clone(), (x.shape.elements() / x.shape.0[1].max(1)) as f64);
    let frame = Frame::new(&cpu.engine, request, 0)?;
    let run = of_type!(train, frame);
    Ok(frame.kernel("norm+add", move |inputs, outputs, scratch| {
        run(&norm, inputs, outputs, &scratch, &workers);
        run_on(&norm, [inputs, outputs], slices(&outputs[1..3]), n);
        Ok(())
    }))
}

/// x, w, b, mean, variance, z → y, over x if possible: the bits of `training` with the same statistics.
pub fn inference(cpu: &Cpu, request: &KernelRequest, norm: &BatchNorm) -> Result<Kernel> {
    let ([x, vectors @ .., z], [y]) = (inputs::<6>(request)?, outputs(request)?);
    check(x, &[z, y], &vectors)?;
    let (norm, workers) = (*norm, cpu.workers.clone());
    let frame = Frame::new(&cpu.engine, request, 0)?;
    let run = of_type!(apply, frame);
    let kernel = frame.kernel("norm+add", move |inputs, outputs, scratch| {
        run(&norm, inputs, outputs, &scratch, &workers);
        Ok(())
    });
    Ok(kernel.in_place(0))
}

/// dy, x, w, mean, variance, y → dz (over dy if possible), dw, db, dx: the library's ReLU gives dz, and its
/// normalisation the rest of that.
pub fn backward(
    engine: &Rc<Engine>,
    request: &KernelRequest,
    norm: &BatchNorm,
    subject: &str,
) -> Result<Kernel> {
    let [dy, x, vectors @ .., y] = inputs::<6>(request)?;
    let [dz, dw, db, dx] = outputs(request)?;
    check(x, &[dy, y, dx, dz], &[&vectors[..], &[dw, db]].concat())?;
    let plain = BatchNorm { relu: false, add: false, ..*norm };
    let of_x = KernelRequest { inputs: &request.inputs[1..2], forward: None, ..*request };
    let norm = batch_norm::backward_without(engine, &of_x, &plain)?;
    let layout = Some(norm.inputs[1].clone());
    let of_relu = [(dy.clone(), layout.clone()), (y.clone(), layout)];
    let of_relu =
        KernelRequest { inputs: &of_relu, outputs: &request.outputs[..1], forward: None, ..*request };
    let relu = activation::backward(engine, &of_relu, Activation::RELU)?;
    if relu.outputs[0] != norm.inputs[0] {
        return Err(Error::internal(
            "a ReLU gives its gradient in another layout than the normalisation takes it",
        ));
    }
    let mut inputs = norm.inputs.clone();
    inputs[0] = relu.inputs[0].clone();
    inputs.push(relu.inputs[1].clone());
    let outputs = [&relu.outputs[..], &norm.outputs[1..], &norm.outputs[..1]].concat();
    let (relu, norm) = (relu.of(subject), norm.of(subject));
    let implementation = format!("{} and {}", relu.implementation, norm.implementation);
    let bytes = relu.workspace.max(norm.workspace);
    let kernel = Kernel::new(implementation, inputs, outputs, move |_, inputs, outputs, workspace| {
        let ([dy, vectors @ .., y], [dz, dw, db, dx]) = (inputs, outputs) else {
            return Err(Error::internal("a normalisation lacks inputs or outputs"));
        };
        let dz = std::slice::from_ref(dz);
        let of_norm = [dz, vectors].concat();
        Ok(in_turn(vec![
            relu.bind(&[dy, y].map(Memory::clone), dz, workspace)?,
            norm.bind(&of_norm, &[dx, dw, db].map(Memory::clone), workspace)?,
        ]))
    });
    Ok(kernel.with_workspace(bytes).in_place(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Scalars;
    use crate::device::memory::{bytes_of, bytes_of_mut};
    use crate::graph::{Op, Shape};

    /// More blocks of channels than threads, and fewer: the same bits.
    #[test]
    fn threads_share_blocks_or_pieces_and_the_bits_stay() {
        let (image, vector) = ([2usize, 5, 90, 70], 5);
        let spec = |extents: &[usize]| Spec { shape: Shape(extents.to_vec()), dtype: DType::F32 };
        let numbers = |spec: &Spec, which: usize| -> Vec<f32> {
            (0..spec.shape.elements())
                .map(|i| ((i * 7919 + which * 104_729) % 1009) as f32 / 500.0 - 1.0)
                .collect()
        };
        let specs =
            [spec(&image), spec(&[vector]), spec(&[vector]), spec(&[vector]), spec(&[vector]), spec(&image)];
        let outputs: Vec<Spec> = specs[..5].to_vec();
        let given: Vec<_> = specs.iter().map(|spec| (spec.clone(), None)).collect();
        let norm = BatchNorm { relu: true, add: true, ..BatchNorm::default() };
        let run = |threads: usize| -> Vec<Vec<u32>> {
            let (engine, workers) = (Engine::new(1).unwrap(), Rc::new(Workers::new(threads).unwrap()));
            let cpu = Cpu { engine, workers };
            let op = Op::BatchNorm(norm);
            let request =
                KernelRequest { op: &op, inputs: &given, outputs: &outputs, forward: None, training: true };
            let kernel = training(&cpu, &request, &norm).unwrap();
            let memory = |spec: &Spec, which: usize| {
                let memory = Memory::host(4 * spec.shape.elements()).unwrap();
                memory.write(bytes_of(&numbers(spec, which)));
                memory
            };
            let from: Vec<_> = specs.iter().enumerate().map(|(i, spec)| memory(spec, i)).collect();
            let to: Vec<_> = outputs.iter().map(|spec| memory(spec, 9)).collect();
            let workspace = Memory::host(kernel.workspace).unwrap();
            kernel.bind(&from, &to, &workspace).unwrap().run(&Scalars::default()).unwrap();
            let read = |(spec, memory): (&Spec, &Memory)| {
                let mut bits = vec![0u32; spec.shape.elements()];
                memory.read(bytes_of_mut(&mut bits));
                bits
            };
            outputs.iter().zip(&to).map(read).collect()
        };
        let one = run(1);
        assert!(one[0].contains(&0) && one[0].iter().any(|&y| f32::from_bits(y) > 1.0));
        assert_eq!(run(3), one);
        assert_eq!(run(7), one);
    }
}
