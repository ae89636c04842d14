//! Ops that are one pass over memory, in whatever layout their input has: elementwise ones, concatenation, copies, the
//! loss.

use std::rc::Rc;

use super::gpu::{Argument, Argument::*, BLOCK, Gpu};
use super::kernel::{Operands, cuda_kernel, side_by_side};
use super::layout::{
    Real, channels_last, given, image, input, output, padded_in, plain, plain_in, rows, width,
};
use super::norm;
use super::update::put;
use crate::device::memory::bytes_of;
use crate::device::{Kernel, KernelRequest, Layout};
use crate::error::{Error, Result};
use crate::graph::{Activation, DType, Spec};

/// The layout of one tensor, of another tensor of the same shape and type.
fn alike(request: &KernelRequest, layout: &Layout, spec: &Spec) -> Result<Layout> {
    match layout.bytes() == spec.shape.elements() * spec.dtype.bytes() && layout.dtype() == spec.dtype {
        true => Ok(layout.clone()),
        false => {
            Err(Error::internal(format!("{} cannot give {} in {layout:?}", request.op.name(), spec.shape)))
        }
    }
}

/// Channels of images at the most that a thread has all of (kernels/pixels.cuh).
const COLOURS: usize = 4;

/// The grid of kernels that have a thread a pixel, or a place of a run.
fn pixel_grid(images: usize, plane: usize) -> [u32; 3] {
    [plane.div_ceil(BLOCK as usize).max(1) as u32, images.clamp(1, 65_535) as u32, 1]
}

/// pixels, labels → y
pub fn normalise(gpu: &Rc<Gpu>, request: &KernelRequest, scale: [f32; 3], shift: [f32; 3]) -> Result<Kernel> {
    let y = output(request, 0)?;
    let (real, [n, channels, h, w]) = (Real::of(y.dtype)?, image(y)?);
    if channels > scale.len() {
        return Err(Error::internal(format!("pixels of {channels} channels")));
    }
    let layout = padded_in(y, real);
    let padded = width(&layout, channels);
    let bind = move |operands: &mut Operands| {
        let ([x, labels], y) = ([0, 1].map(|index| &operands.inputs[index]), &operands.outputs[0]);
        let [scale, shift] = [scale, shift].map(|numbers| put(operands.gpu, bytes_of(&numbers)));
        let (scale, shift) = (scale?, shift?);
        let arguments = [
            Memory(x),
            Memory(labels),
            Memory(y),
            Int(n),
            Int(channels),
            Int(h * w),
            Int(padded),
            Memory(&scale),
            Memory(&shift),
        ];
        operands.launch(&format!("images_{}", real.suffix()), pixel_grid(n, h * w), &arguments)
    };
    let inputs = request.inputs.iter().map(|(spec, _)| plain(spec)).collect();
    Ok(cuda_kernel(gpu, "own:images", inputs, vec![layout], bind))
}

/// codes, samples, which, tables → y
pub fn lookup(gpu: &Rc<Gpu>, request: &KernelRequest, is_target: bool) -> Result<Kernel> {
    let y = output(request, 0)?;
    let (n, name) = match input(request, 0)?.0.dtype {
        DType::U8 => (y.shape.batch(), "lookup_u8"),
        DType::U16 => (y.shape.batch(), "lookup_u16"),
        other => return Err(Error::internal(format!("{other:?} is no code"))),
    };
    let runs = input(request, 2)?.0.shape.elements();
    let length = y.shape.elements() / (n * runs).max(1);
    let bind = move |operands: &mut Operands| {
        let ([x, samples, which, tables], y) =
            ([0, 1, 2, 3].map(|index| &operands.inputs[index]), &operands.outputs[0]);
        let arguments = [
            Memory(x),
            Memory(samples),
            Memory(which),
            Memory(tables),
            Memory(y),
            Int(n),
            Int(runs),
            Long(length),
            Bool(is_target),
        ];
        operands.launch(name, pixel_grid(n * runs, length), &arguments)
    };
    let inputs = request.inputs.iter().map(|(spec, _)| plain(spec)).collect();
    Ok(cuda_kernel(gpu, "own:lookup", inputs, vec![plain(y)], bind))
}

/// x → y
pub fn activation(gpu: &Rc<Gpu>, request: &KernelRequest, of: Activation) -> Result<Kernel> {
    let (layout, y) = (given(request, 0)?, output(request, 0)?);
    let (real, n, (name, number)) = (Real::of(y.dtype)?, y.shape.elements(), (of.kind(), of.number()));
    let outputs = vec![alike(request, &layout, y)?];
    let bind = move |operands: &mut Operands| {
        let (x, y) = (&operands.inputs[0], &operands.outputs[0]);
        let arguments = [Memory(x), Memory(y), Long(n)].into_iter().chain(number.map(Float));
        operands.each(name, real, n, &arguments.collect::<Vec<_>>())
    };
    Ok(cuda_kernel(gpu, format!("own:{name}"), vec![layout], outputs, bind).in_place(0))
}

/// dy, y or x → dx, in the layout of the latter
pub fn activation_backward(gpu: &Rc<Gpu>, request: &KernelRequest, of: Activation) -> Result<Kernel> {
    let (layout, dx) = (given(request, 1)?, output(request, 0)?);
    let (real, n, (name, number)) = (Real::of(dx.dtype)?, dx.shape.elements(), (of.kind(), of.number()));
    let layouts = (vec![alike(request, &layout, &input(request, 0)?.0)?, layout.clone()], vec![layout]);
    let bind = move |operands: &mut Operands| {
        let ([dy, read], dx) = ([0, 1].map(|index| &operands.inputs[index]), &operands.outputs[0]);
        let arguments = [Memory(dy), Memory(read), Memory(dx), Long(n)].into_iter().chain(number.map(Float));
        operands.each(&format!("{name}_backward"), real, n, &arguments.collect::<Vec<_>>())
    };
    Ok(cuda_kernel(gpu, format!("own:{name}"), layouts.0, layouts.1, bind).in_place(0))
}

/// a, b → y
pub fn add(gpu: &Rc<Gpu>, request: &KernelRequest, relu: bool) -> Result<Kernel> {
    let (layout, y) = (given(request, 0)?, output(request, 0)?);
    let (real, n) = (Real::of(y.dtype)?, y.shape.elements());
    let inputs = vec![layout.clone(), alike(request, &layout, &input(request, 1)?.0)?];
    let outputs = vec![alike(request, &layout, y)?];
    let bind = move |operands: &mut Operands| {
        let ([a, b], y) = ([0, 1].map(|index| &operands.inputs[index]), &operands.outputs[0]);
        operands.each("add", real, n, &[Memory(a), Memory(b), Memory(y), Long(n), Bool(relu)])
    };
    Ok(cuda_kernel(gpu, "own:add", inputs, outputs, bind).in_place(0))
}

/// x → y, and dy → dx
pub fn dropout(gpu: &Rc<Gpu>, request: &KernelRequest, p: f32, layer: u32, whole: bool) -> Result<Kernel> {
    let (layout, y) = (given(request, 0)?, output(request, 0)?);
    let (real, samples) = (Real::of(y.dtype)?, y.shape.batch());
    // Elements are numbered as the host has them, wherever they lie.
    let (channels, plane) = match y.shape.spatial() {
        Some(([_, c], size)) if layout != plain(y) => (c, size.iter().product()),
        _ => (y.shape.per_sample(), 1),
    };
    let outputs = vec![alike(request, &layout, y)?];
    let bind = move |operands: &mut Operands| {
        let (x, y) = (&operands.inputs[0], &operands.outputs[0]);
        let scalars = operands.gpu.scalars.clone();
        let arguments = [
            Memory(x),
            Memory(y),
            Long(samples),
            Int(channels),
            Int(plane),
            Float(p),
            Long(layer as usize),
            Bool(whole),
            Memory(&scalars),
        ];
        operands.each("dropout", real, samples * channels * plane, &arguments)
    };
    Ok(cuda_kernel(gpu, "own:dropout", vec![layout], outputs, bind).in_place(0))
}

/// (rows, elements of a row, elements of a row along one place of an axis) of a tensor whose rows go on along that
/// axis: channels lie last, everything else lies as the host has it.
fn rows_along(spec: &Spec, axis: usize) -> Result<(usize, usize, usize)> {
    if (spec.shape.rank(), axis) == (4, 1) {
        return rows(spec).map(|(rows, width)| (rows, width, 1));
    }
    let inner = spec.shape.0.get(axis + 1..).ok_or_else(|| Error::internal(format!("no axis {axis}")))?;
    let (before, step) = (spec.shape.0[..axis].iter().product(), inner.iter().product::<usize>());
    Ok((before, spec.shape.0[axis] * step, step))
}

/// The layout in which `rows_along` counts.
fn in_rows(spec: &Spec, axis: usize) -> Layout {
    if (spec.shape.rank(), axis) == (4, 1) { channels_last(spec) } else { plain(spec) }
}

/// Any number of x → y: one after the other along an axis.
pub fn concat(gpu: &Rc<Gpu>, request: &KernelRequest, axis: usize) -> Result<Kernel> {
    let y = output(request, 0)?;
    let (real, (count, width, _)) = (Real::of(y.dtype)?, rows_along(y, axis)?);
    let inputs = request.inputs.iter().map(|(spec, _)| in_rows(spec, axis)).collect();
    let parts =
        request.inputs.iter().map(|(spec, _)| Ok(rows_along(spec, axis)?.1)).collect::<Result<Vec<_>>>()?;
    let bind = move |operands: &mut Operands| {
        let mut from = 0;
        for (x, &channels) in operands.inputs.iter().zip(&parts) {
            copy_channels(
                operands,
                real,
                count,
                channels,
                (x, channels, 0),
                (&operands.outputs[0], width, from),
            )?;
            from += channels;
        }
        Ok(())
    };
    Ok(cuda_kernel(gpu, "own:copy", inputs, vec![in_rows(y, axis)], bind))
}

/// x → as many as y has along an axis, from `from` on
pub fn slice(gpu: &Rc<Gpu>, request: &KernelRequest, axis: usize, from: usize) -> Result<Kernel> {
    let (x, y) = (&input(request, 0)?.0, output(request, 0)?);
    let ((_, width, step), (count, channels, _)) = (rows_along(x, axis)?, rows_along(y, axis)?);
    let real = Real::of(y.dtype)?;
    let bind = move |operands: &mut Operands| {
        let (x, y) = (&operands.inputs[0], &operands.outputs[0]);
        copy_channels(operands, real, count, channels, (x, width, from * step), (y, channels, 0))
    };
    Ok(cuda_kernel(gpu, "own:copy", vec![in_rows(x, axis)], vec![in_rows(y, axis)], bind))
}

/// x → zeros but for x, which begins at `before` along an axis
pub fn pad(gpu: &Rc<Gpu>, request: &KernelRequest, axis: usize, before: usize) -> Result<Kernel> {
    let (x, y) = (&input(request, 0)?.0, output(request, 0)?);
    let ((count, channels, step), (_, width, _)) = (rows_along(x, axis)?, rows_along(y, axis)?);
    let (real, n) = (Real::of(y.dtype)?, y.shape.elements());
    let bind = move |operands: &mut Operands| {
        let (x, y) = (&operands.inputs[0], &operands.outputs[0]);
        operands.each("fill", real, n, &[Memory(y), Long(n), Float(0.0)])?;
        copy_channels(operands, real, count, channels, (x, channels, 0), (y, width, before * step))
    };
    Ok(cuda_kernel(gpu, "own:pad", vec![in_rows(x, axis)], vec![in_rows(y, axis)], bind))
}

/// z, x → z with x added to as many along an axis, from `from` on: to zeros but for x all of z is added.
pub fn add_slice(gpu: &Rc<Gpu>, request: &KernelRequest, axis: usize, from: usize) -> Result<Kernel> {
    let (x, y) = (&input(request, 1)?.0, output(request, 0)?);
    let ((count, channels, step), (_, width, _)) = (rows_along(x, axis)?, rows_along(y, axis)?);
    let (real, n) = (Real::of(y.dtype)?, y.shape.elements());
    let (whole, part) = (in_rows(y, axis), in_rows(x, axis));
    let bytes = n * y.dtype.bytes();
    let bind = move |operands: &mut Operands| {
        let padded = operands.scratch(bytes);
        let ([z, x], y) = ([0, 1].map(|index| &operands.inputs[index]), &operands.outputs[0]);
        operands.each("fill", real, n, &[Memory(&padded), Long(n), Float(0.0)])?;
        copy_channels(operands, real, count, channels, (x, channels, 0), (&padded, width, from * step))?;
        operands.each("add", real, n, &[Memory(z), Memory(&padded), Memory(y), Long(n), Bool(false)])
    };
    let kernel = cuda_kernel(gpu, "own:pad", vec![whole.clone(), part], vec![whole], bind);
    Ok(kernel.with_workspace(bytes).in_place(0))
}

/// Strips of images between ranks. Whoever runs the steps of several ranks moves them.
pub fn trade(gpu: &Rc<Gpu>, request: &KernelRequest) -> Result<Kernel> {
    let inputs = request.inputs.iter().map(|(spec, _)| plain(spec)).collect();
    let outputs = request.outputs.iter().map(plain).collect();
    Ok(cuda_kernel(gpu, "own:nothing", inputs, outputs, |_| Ok(())))
}

/// Rows of so many channels: from a place in rows of some width to another.
type ChannelSlice<'a> = (&'a crate::device::Memory, usize, usize);

fn copy_channels(
    operands: &mut Operands,
    real: Real,
    rows: usize,
    channels: usize,
    (x, x_width, x_from): ChannelSlice,
    (y, y_width, y_from): ChannelSlice,
) -> Result<()> {
    let arguments = [
        Memory(x),
        Memory(y),
        Long(rows),
        Int(channels),
        Int(x_width),
        Int(x_from),
        Int(y_width),
        Int(y_from),
    ];
    if rows * channels == 0 {
        return Ok(());
    }
    let block = side_by_side(channels.div_ceil(16 / real.bytes()));
    let grid = [operands.gpu.at_most(rows.div_ceil(block[1] as usize)), 1, 1];
    operands.launch_in(block, &format!("copy_channels_{}", real.suffix()), grid, &arguments)
}

/// x → the same numbers under another shape
pub fn reshape(gpu: &Rc<Gpu>, request: &KernelRequest) -> Result<Kernel> {
    let (x, y) = (plain(&input(request, 0)?.0), plain(output(request, 0)?));
    if x.bytes() != y.bytes() {
        return Err(Error::internal(format!("{x:?} cannot become {y:?}")));
    }
    let bytes = x.bytes();
    let bind = move |operands: &mut Operands| {
        operands.copy(&operands.inputs[0], &operands.outputs[0], bytes);
        Ok(())
    };
    Ok(cuda_kernel(gpu, "cuda:copy", vec![x], vec![y], bind).in_place(0))
}

/// x → x of every rank, which are this rank's own
pub fn exchange(gpu: &Rc<Gpu>, request: &KernelRequest, ranks: usize) -> Result<Kernel> {
    let (x, y) = (plain(&input(request, 0)?.0), plain(output(request, 0)?));
    let bytes = x.bytes();
    if bytes * ranks != y.bytes() {
        return Err(Error::internal(format!("{x:?} of {ranks} ranks is not {y:?}")));
    }
    let bind = move |operands: &mut Operands| {
        for rank in 0..ranks {
            operands.copy(&operands.inputs[0], &operands.outputs[0].slice(rank * bytes, bytes), bytes);
        }
        Ok(())
    };
    Ok(cuda_kernel(gpu, "cuda:copy", vec![x], vec![y], bind))
}

/// A label for each sample; and where samples are mixed another label, and the share of the first.
fn targets(request: &KernelRequest) -> Vec<Layout> {
    request.inputs[1..].iter().map(|(spec, _)| plain(spec)).collect()
}

/// The targets as arguments of a kernel.
fn as_arguments(targets: &[crate::device::Memory]) -> [Argument<'_>; 3] {
    std::array::from_fn(|index| targets.get(index).map_or(Null, Memory))
}

/// A block has a row at a time, or eight where classes are few (`FEW` of kernels/loss.cu).
fn loss_grid(gpu: &Gpu, rows: usize, classes: usize) -> [u32; 3] {
    [gpu.at_most(if classes <= 128 { rows.div_ceil(8) } else { rows }), 1, 1]
}

/// logits, labels (, other labels, shares) → losses, hits
pub fn loss(gpu: &Rc<Gpu>, request: &KernelRequest, smoothing: f32, weight: f32) -> Result<Kernel> {
    let logits = &input(request, 0)?.0;
    let (rows, classes) = (logits.shape.batch(), logits.shape.per_sample());
    let outputs = request.outputs.iter().map(plain).collect();
    let inputs = [vec![plain_in(logits, DType::F32)], targets(request)].concat();
    let bind = move |operands: &mut Operands| {
        let [losses, hits] = [0, 1].map(|index| &operands.outputs[index]);
        let targets = as_arguments(&operands.inputs[1..]);
        cross_entropy(operands, targets, [losses, hits], [rows, classes], [smoothing, weight])
    };
    Ok(cuda_kernel(gpu, "own:loss", inputs, outputs, bind))
}

/// logits, labels (, other labels, shares) → dlogits
pub fn loss_backward(gpu: &Rc<Gpu>, request: &KernelRequest, smoothing: f32, weight: f32) -> Result<Kernel> {
    let (logits, dlogits) = (&input(request, 0)?.0, output(request, 0)?);
    let (rows, classes) = (logits.shape.batch(), logits.shape.per_sample());
    let inputs = [vec![plain_in(logits, DType::F32)], targets(request)].concat();
    let bind = move |operands: &mut Operands| {
        let targets = as_arguments(&operands.inputs[1..]);
        cross_entropy_backward(operands, targets, [rows, classes], [smoothing, weight])
    };
    Ok(cuda_kernel(gpu, "own:loss", inputs, vec![plain_in(dlogits, DType::F32)], bind))
}

/// Losses of rows of scores, the first input, and hits; the targets are labels, other labels and shares.
pub fn cross_entropy(
    operands: &mut Operands,
    [labels, others, shares]: [Argument; 3],
    [losses, hits]: [&crate::device::Memory; 2],
    [rows, classes]: [usize; 2],
    factors: [f32; 2],
) -> Result<()> {
    let (grid, logits) = (loss_grid(operands.gpu, rows, classes), Memory(&operands.inputs[0]));
    let [losses, hits] = [losses, hits].map(Memory);
    let ([rows, classes], [smoothing, weight]) = ([rows, classes].map(Int), factors.map(Float));
    let arguments = [logits, labels, others, shares, losses, hits, Null, rows, classes, smoothing, weight];
    operands.launch("softmax_cross_entropy_f32", grid, &arguments)
}

/// The gradient of these losses to their scores, which is the first output.
pub fn cross_entropy_backward(
    operands: &mut Operands,
    [labels, others, shares]: [Argument; 3],
    [rows, classes]: [usize; 2],
    factors: [f32; 2],
) -> Result<()> {
    let grid = loss_grid(operands.gpu, rows, classes);
    let [logits, dlogits, scalars] =
        [&operands.inputs[0], &operands.outputs[0], &operands.gpu.scalars].map(Memory);
    let ([rows, classes], [smoothing, weight]) = ([rows, classes].map(Int), factors.map(Float));
    let arguments = [logits, labels, others, shares, dlogits, rows, classes, smoothing, weight, scalars];
    operands.launch("softmax_cross_entropy_backward_f32", grid, &arguments)
}

/// A copy of a tensor from one layout, and type, into another.
pub fn reorder(gpu: &Rc<Gpu>, spec: &Spec, from: &Layout, to: &Layout) -> Result<Kernel> {
    if let Some(summed) = from.handle()
        && *to == plain_in(spec, DType::F32)
    {
        return norm::moments_of_sums(gpu, spec, from, summed);
    }
    let [source, target] = [Real::of(from.dtype())?, Real::of(to.dtype())?];
    let names = format!("{}_{}", source.suffix(), target.suffix());
    let [from_plain, to_plain] = [from, to].map(|layout| *layout == plain_in(spec, layout.dtype()));
    let n = spec.shape.elements();
    let bind = move |operands: &mut Operands| {
        let (x, y) = (&operands.inputs[0], &operands.outputs[0]);
        operands.each(
            &format!("cast_{}", source.suffix()),
            target,
            n,
            &[Memory(x), Memory(y), Long(n), Float(1.0)],
        )
    };
    let layouts = (vec![from.clone()], vec![to.clone()]);
    let pads = [from, to].map(|layout| layout.handle::<usize>().copied());
    if from_plain == to_plain && pads[0] == pads[1] {
        return Ok(cuda_kernel(gpu, "own:cast", layouts.0, layouts.1, bind));
    }
    let [images, channels, h, w] = image(spec)?;
    let widths = [from, to].map(|layout| width(layout, channels));
    // A plain layout may have its channels last too, where there is but one pixel.
    if pads != [None; 2] && (from_plain == to_plain || h * w == 1) {
        let rows = images * h * w;
        let bind = move |operands: &mut Operands| {
            let (x, y) = (&operands.inputs[0], &operands.outputs[0]);
            repad(operands, [source, target], rows, widths, [x, y])
        };
        return Ok(cuda_kernel(gpu, "own:reorder", layouts.0, layouts.1, bind));
    }
    let plane = h * w;
    let padded = widths[0].max(widths[1]);
    if from_plain && channels <= COLOURS {
        let bind = move |operands: &mut Operands| {
            let (x, y) = (&operands.inputs[0], &operands.outputs[0]);
            let arguments = [Memory(x), Memory(y), Int(images), Int(channels), Int(plane), Int(padded)];
            operands.launch(
                &format!("colours_to_channels_last_{names}"),
                pixel_grid(images, plane),
                &arguments,
            )
        };
        return Ok(cuda_kernel(gpu, "own:reorder", layouts.0, layouts.1, bind));
    }
    let name = if from_plain { "to_channels_last" } else { "to_channels_first" };
    let grid = [plane.div_ceil(32) as u32, padded.div_ceil(32) as u32, images.min(65_535) as u32];
    let bind = move |operands: &mut Operands| {
        let (x, y) = (&operands.inputs[0], &operands.outputs[0]);
        let arguments = [Memory(x), Memory(y), Int(images), Int(channels), Int(plane), Int(padded)];
        operands.launch_in([32, 8], &format!("{name}_{names}"), grid, &arguments)
    };
    Ok(cuda_kernel(gpu, "own:reorder", layouts.0, layouts.1, bind))
}

/// Rows of so many numbers to rows of so many others: what is too much is left out, what lacks is 0.
pub fn repad(
    operands: &mut Operands,
    [from, to]: [Real; 2],
    rows: usize,
    widths: [usize; 2],
    [x, y]: [&crate::device::Memory; 2],
) -> Result<()> {
    let arguments = [Memory(x), Memory(y), Long(rows), Int(widths[0]), Int(widths[1])];
    operands.each(&format!("repad_{}", from.suffix()), to, rows * widths[1], &arguments)
}
