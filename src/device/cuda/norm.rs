//! Normalisations, channels last: batch normalisation in the parts that synchronised statistics need too, and local
//! response normalisation.

use std::rc::Rc;

use super::gpu::{Argument, Argument::*, Gpu};
use super::kernel::{Operands, PART, cuda_kernel};
use super::layout::{Real, Summed, channels_last, image, input, output, plain_in, saved, summed, sums_apart};
use crate::device::{Kernel, KernelRequest, Layout, Memory as Bytes};
use crate::error::{Error, Result};
use crate::graph::{BatchNorm, DType, LocalResponseNorm, Spec};

/// Channels that a block takes side by side.
const CHANNELS: usize = 64;
/// Channels and parts that a block takes for joining parts.
const JOIN_CHANNELS: usize = 4;
const JOIN: [u32; 2] = [4, 64];
/// Blocks that sum over rows: three or four at a time on each of an H100's 132 multiprocessors, without a rest. A
/// number by itself, so that bits do not depend on the GPU.
const SUMMING: usize = 1584;
/// Blocks that a multiprocessor has at work at a time, by their registers (kernels/kernels.tsv): of what normalises,
/// and of the way back.
const NORMALISING: usize = 4;
const GOING_BACK: usize = 3;

/// Pieces that the rows are cut into for a sum over them.
pub fn column_parts(rows: usize, channels: usize) -> usize {
    rows.div_ceil(128).clamp(1, (SUMMING / channels.div_ceil(CHANNELS).max(1)).max(1))
}

fn column_grid(channels: usize, parts: usize) -> [u32; 3] {
    [channels.div_ceil(CHANNELS) as u32, parts as u32, 1]
}

fn join_grid(channels: usize) -> [u32; 3] {
    [channels.div_ceil(JOIN_CHANNELS) as u32, 1, 1]
}

/// Sums of the columns of `x` (rows, channels) into `to` (channels), f32; takes 4 · parts · channels bytes of scratch.
pub fn column_sums(
    operands: &mut Operands,
    real: Real,
    x: &Bytes,
    to: &Bytes,
    rows: usize,
    channels: usize,
) -> Result<()> {
    let parts = column_parts(rows, channels);
    let partials = operands.scratch(4 * parts * channels);
    let name = format!("column_sums_{}", real.suffix());
    let arguments = [Memory(x), Memory(&partials), Long(rows), Int(channels), Int(parts)];
    operands.launch(&name, column_grid(channels, parts), &arguments)?;
    join_columns(operands, &partials, to, channels, parts)
}

/// Adds up partial sums (parts, channels) of columns into `to` (channels).
pub fn join_columns(
    operands: &mut Operands,
    partials: &Bytes,
    to: &Bytes,
    channels: usize,
    parts: usize,
) -> Result<()> {
    let arguments = [Memory(partials), Memory(to), Int(channels), Int(parts)];
    operands.launch_in(JOIN, "column_sums_join", join_grid(channels), &arguments)
}

/// What every kernel of a normalisation knows of its images.
#[derive(Clone, Copy)]
pub struct NormShape {
    real: Real,
    rows: usize,
    channels: usize,
    parts: usize,
}

impl NormShape {
    pub fn of(spec: &Spec) -> Result<NormShape> {
        let ([n, channels, h, w], real) = (image(spec)?, Real::of(spec.dtype)?);
        let rows = n * h * w;
        if i32::try_from(rows).is_err() {
            return Err(Error::usage(format!(
                "{} is too large for a GPU; use a smaller --batch",
                spec.shape
            )));
        }
        Ok(NormShape { real, rows, channels, parts: column_parts(rows, channels) })
    }

    fn elements(&self) -> usize {
        self.rows * self.channels
    }

    /// A launch that goes over all elements, column by column: as many blocks as there is room for, so that all go
    /// through the rows together.
    fn each(
        &self,
        operands: &mut Operands,
        name: &str,
        resident: usize,
        arguments: &[Argument],
    ) -> Result<()> {
        let beside = self.channels.div_ceil(CHANNELS).max(1);
        let blocks = operands.gpu.resident(resident) / beside;
        let grid = column_grid(self.channels, blocks.clamp(1, self.rows.div_ceil(64).max(1)));
        operands.launch(&format!("{name}_{}", self.real.suffix()), grid, arguments)
    }

    /// Bytes in which the forward kernel says where a ReLU behind an addition let through: a bit a channel, a byte for
    /// 16 bytes of y.
    fn mask(&self) -> usize {
        self.rows * self.channels.div_ceil(16 / self.real.bytes())
    }

    /// Bytes of two sums a part and channel.
    pub fn partials(&self) -> usize {
        8 * self.parts * self.channels
    }

    /// Bytes of one pair a channel.
    fn pair(&self) -> usize {
        8 * self.channels
    }

    /// A pair and partials.
    fn workspace(&self) -> usize {
        self.pair().next_multiple_of(PART) + self.partials().next_multiple_of(PART)
    }

    fn grid(&self) -> [u32; 3] {
        column_grid(self.channels, self.parts)
    }

    /// The layout of what a convolution gives in the place of its moments (2,C).
    pub fn summed(&self, spec: &Spec) -> Layout {
        summed(spec, self.rows)
    }

    /// The sum of each channel and that of its squares, in this layout.
    pub fn sums_in(&self, memory: &Bytes) -> [Bytes; 2] {
        [0, sums_apart(self.channels)].map(|from| memory.slice(4 * from, 4 * self.channels))
    }

    /// The moments of x, or in the layout `summed`; takes `partials` of scratch.
    pub fn moments(&self, operands: &mut Operands, x: &Bytes, to: &Bytes, beside_sums: bool) -> Result<()> {
        let partials = operands.scratch(self.partials());
        let counts = [Long(self.rows), Int(self.channels), Int(self.parts)];
        let arguments = [&[Memory(x), Memory(&partials)], &counts[..]].concat();
        let name = format!("batch_norm_partials_{}", self.real.suffix());
        operands.launch(&name, self.grid(), &arguments)?;
        let arguments = [&[Memory(&partials), Memory(to)], &counts[..], &[Bool(beside_sums)]].concat();
        operands.launch_in(JOIN, "batch_norm_moments", join_grid(self.channels), &arguments)
    }

    /// x, w, b and statistics, z? → y. What the way back needs to know where y was positive is kept: b, or behind an
    /// addition the mask.
    fn normalise(
        &self,
        operands: &mut Operands,
        norm: &BatchNorm,
        [x, w, b]: [&Bytes; 3],
        statistics: &StatisticsSource,
        [z, kept]: [Option<&Bytes>; 2],
        y: &Bytes,
    ) -> Result<()> {
        let [mask, b_kept] = if norm.add { [kept, None] } else { [None, kept] };
        let mut arguments = vec![Memory(x), z.map_or(Null, Memory), Memory(y), mask.map_or(Null, Memory)];
        arguments.extend([Memory(w), Memory(b), b_kept.map_or(Null, Memory)]);
        arguments.extend(statistics.arguments(norm));
        arguments.extend([Long(self.rows), Int(self.channels), Float(norm.epsilon), Bool(norm.relu)]);
        self.each(operands, "batch_norm", NORMALISING, &arguments)
    }

    /// Σdy and Σdy·x̂ into `sums`, `dw`, `db`; dy as it was before the ReLU into `dz`.
    fn sums(
        &self,
        operands: &mut Operands,
        norm: &BatchNorm,
        given: &Given,
        sums: &Bytes,
        [dw, db]: [&Bytes; 2],
        dz: Option<&Bytes>,
    ) -> Result<()> {
        let partials = operands.scratch(self.partials());
        let mut arguments = given.arguments().to_vec();
        arguments.insert(2, given.mask.map_or(Null, Memory));
        arguments.extend([
            dz.map_or(Null, Memory),
            Memory(&partials),
            Long(self.rows),
            Int(self.channels),
            Int(self.parts),
            Float(norm.epsilon),
            Bool(norm.relu),
        ]);
        let name = format!("batch_norm_sums_{}", self.real.suffix());
        operands.launch(&name, self.grid(), &arguments)?;
        let arguments =
            [Memory(&partials), Memory(sums), Memory(dw), Memory(db), Int(self.channels), Int(self.parts)];
        operands.launch_in(JOIN, "batch_norm_sums_join", join_grid(self.channels), &arguments)
    }

    fn backward(
        &self,
        operands: &mut Operands,
        norm: &BatchNorm,
        given: &Given,
        sums: &Bytes,
        ranks: usize,
        dx: &Bytes,
    ) -> Result<()> {
        let mut arguments = given.arguments().to_vec();
        arguments.extend([
            Memory(sums),
            Int(ranks),
            Memory(dx),
            Long(self.rows),
            Int(self.channels),
            Float(norm.epsilon),
            Bool(norm.relu),
        ]);
        self.each(operands, "batch_norm_backward", GOING_BACK, &arguments)
    }
}

/// What a normalisation is made with.
enum StatisticsSource<'a> {
    /// Mean and variance.
    Given([&'a Bytes; 2]),
    /// The moments of so many ranks, of which mean and variance are made, or with 0 of them what is `summed`; running
    /// mean and variance before and after.
    Moments { moments: &'a Bytes, ranks: usize, found: [&'a Bytes; 2], running: [&'a Bytes; 4] },
}

impl<'a> StatisticsSource<'a> {
    fn arguments(&self, norm: &BatchNorm) -> Vec<Argument<'a>> {
        let (from, found, running) = match *self {
            StatisticsSource::Given(found) => ([Null, Int(0)], found, [Null; 4]),
            StatisticsSource::Moments { moments, ranks, found, running } => {
                ([Memory(moments), Int(ranks)], found, running.map(Memory))
            }
        };
        [&from[..], &found.map(Memory), &running, &[Float(norm.momentum)]].concat()
    }
}

/// What the backward kernels read. With ReLU they look where y was positive, or compute it again, for which they need
/// b.
struct Given<'a> {
    dy: &'a Bytes,
    x: &'a Bytes,
    mask: Option<&'a Bytes>,
    w: &'a Bytes,
    b: Option<&'a Bytes>,
    mean: &'a Bytes,
    variance: &'a Bytes,
}

impl<'a> Given<'a> {
    fn arguments(&self) -> [Argument<'a>; 6] {
        let Given { dy, x, w, b, mean, variance, .. } = *self;
        [Memory(dy), Memory(x), Memory(w), b.map_or(Null, Memory), Memory(mean), Memory(variance)]
    }

    /// dy, x, w, b, mean, variance in their order.
    fn with_b(inputs: &'a [Bytes]) -> Given<'a> {
        let [dy, x, w, b, mean, variance] = std::array::from_fn(|index| &inputs[index]);
        Given { dy, x, mask: None, w, b: Some(b), mean, variance }
    }
}

/// The layouts of a request's inputs and outputs: images channels last, what is one number a channel plain.
fn layouts(request: &KernelRequest, shape: NormShape, norm: Option<BatchNorm>) -> (Vec<Layout>, Vec<Layout>) {
    let layout = |spec: &Spec| match (spec.dtype, spec.shape.rank()) {
        (DType::Saved, _) if norm.is_some_and(|norm| norm.add) => saved(spec, "mask", shape.mask()),
        (DType::Saved, _) => saved(spec, "b", 4 * shape.channels),
        (_, 4 | 5) => channels_last(spec),
        // A scale is of the type of activations.
        _ => plain_in(spec, spec.dtype),
    };
    let given = |(spec, lies): &(Spec, Option<Layout>)| match lies {
        Some(lies) if lies.handle::<Summed>().is_some() => lies.clone(),
        _ => layout(spec),
    };
    (request.inputs.iter().map(given).collect(), request.outputs.iter().map(layout).collect())
}

fn kernel(
    gpu: &Rc<Gpu>,
    request: &KernelRequest,
    (shape, norm): (NormShape, Option<BatchNorm>),
    workspace: usize,
    bind: impl Fn(&mut Operands, &[Bytes], &[Bytes]) -> Result<()> + 'static,
) -> Kernel {
    let (inputs, outputs) = layouts(request, shape, norm);
    let bind = move |operands: &mut Operands| {
        let (inputs, outputs) = (operands.inputs, operands.outputs);
        bind(operands, inputs, outputs)
    };
    cuda_kernel(gpu, "own:batch_norm", inputs, outputs, bind).with_workspace(workspace)
}

/// x, w, b, running mean, running variance, z?, moments of all ranks? → y, mean, variance, running mean, running
/// variance, saved?
pub fn training(gpu: &Rc<Gpu>, request: &KernelRequest, norm: BatchNorm) -> Result<Kernel> {
    with_moments(gpu, request, norm, move |shape, operands, statistics, i, o| {
        let z = i.get(5).filter(|_| norm.add);
        shape.normalise(operands, &norm, [&i[0], &i[1], &i[2]], statistics, [z, o.get(5)], &o[0])
    })
}

/// `Op::BatchNorm` with scale (2,C) in the place of y.
pub fn scale(gpu: &Rc<Gpu>, request: &KernelRequest, norm: BatchNorm) -> Result<Kernel> {
    let name = format!("batch_norm_scale_{}", Real::of(output(request, 0)?.dtype)?.suffix());
    with_moments(gpu, request, norm, move |shape, operands, statistics, i, o| {
        let mut arguments = vec![Memory(&o[0]), Memory(&i[1]), Memory(&i[2]), o.get(5).map_or(Null, Memory)];
        arguments.extend(statistics.arguments(&norm));
        arguments.extend([Long(shape.rows), Int(shape.channels), Float(norm.epsilon)]);
        operands.launch(&name, operands.gpu.blocks(shape.channels), &arguments)
    })
}

/// What is done with the statistics of a batch.
fn with_moments(
    gpu: &Rc<Gpu>,
    request: &KernelRequest,
    norm: BatchNorm,
    then: impl Fn(&NormShape, &mut Operands, &StatisticsSource, &[Bytes], &[Bytes]) -> Result<()> + 'static,
) -> Result<Kernel> {
    let shape = NormShape::of(&input(request, 0)?.0)?;
    let given = request.inputs.last().filter(|_| norm.given);
    let ranks = given.map_or(1, |(spec, lies)| match lies {
        Some(lies) if lies.handle::<Summed>().is_some() => 0,
        _ => spec.shape.elements() / (2 * shape.channels).max(1),
    });
    let workspace = if norm.given { 0 } else { shape.workspace() };
    Ok(kernel(gpu, request, (shape, Some(norm)), workspace, move |operands, i, o| {
        let own;
        let moments = match i.last().filter(|_| norm.given) {
            Some(moments) => moments,
            None => {
                own = operands.scratch(shape.pair());
                shape.moments(operands, &i[0], &own, false)?;
                &own
            }
        };
        let (found, running) = ([&o[1], &o[2]], [&i[3], &i[4], &o[3], &o[4]]);
        then(&shape, operands, &StatisticsSource::Moments { moments, ranks, found, running }, i, o)
    }))
}

/// x, w, b, mean, variance, z? → y, saved?
pub fn given_statistics(gpu: &Rc<Gpu>, request: &KernelRequest, norm: BatchNorm) -> Result<Kernel> {
    let shape = NormShape::of(output(request, 0)?)?;
    Ok(kernel(gpu, request, (shape, Some(norm)), 0, move |operands, i, o| {
        let statistics = StatisticsSource::Given([&i[3], &i[4]]);
        shape.normalise(operands, &norm, [&i[0], &i[1], &i[2]], &statistics, [i.get(5), o.get(1)], &o[0])
    }))
}

/// dy, x, w, mean, variance, saved? → dx, dw, db; behind an addition dy, x, w, mean, variance, saved or y → dz, dw, db,
/// dx.
pub fn backward(gpu: &Rc<Gpu>, request: &KernelRequest, norm: BatchNorm) -> Result<Kernel> {
    let shape = NormShape::of(output(request, 0)?)?;
    let masked = norm.add && input(request, 5)?.0.dtype == DType::Saved;
    let kernel = kernel(gpu, request, (shape, Some(norm)), shape.workspace(), move |operands, i, o| {
        let sums = operands.scratch(shape.pair());
        let (mask, b) = (i.get(5).filter(|_| masked), i.get(5).filter(|_| !norm.add));
        let given = Given { dy: &i[0], x: &i[1], mask, w: &i[2], b, mean: &i[3], variance: &i[4] };
        if !norm.add {
            shape.sums(operands, &norm, &given, &sums, [&o[1], &o[2]], None)?;
            return shape.backward(operands, &norm, &given, &sums, 1, &o[0]);
        }
        // The ReLU is taken off first; with the mask on the way to the sums.
        let (dz, cut) = (&o[0], BatchNorm { relu: false, ..norm });
        let of_dz = Given { dy: dz, mask: None, ..given };
        if masked {
            shape.sums(operands, &norm, &given, &sums, [&o[1], &o[2]], Some(dz))?;
        } else {
            let n = shape.elements();
            let arguments = [Memory(&i[0]), Memory(&i[5]), Memory(dz), Long(n), Float(f32::INFINITY)];
            operands.each("relu_backward", shape.real, n, &arguments)?;
            shape.sums(operands, &cut, &of_dz, &sums, [&o[1], &o[2]], None)?;
        }
        shape.backward(operands, &cut, &of_dz, &sums, 1, &o[3])
    });
    Ok(kernel.in_place(0))
}

/// x → moments
pub fn moments(gpu: &Rc<Gpu>, request: &KernelRequest) -> Result<Kernel> {
    let shape = NormShape::of(&input(request, 0)?.0)?;
    Ok(kernel(gpu, request, (shape, None), shape.workspace(), move |operands, i, o| {
        shape.moments(operands, &i[0], &o[0], false)
    }))
}

/// What lies in the layout `summed` → moments
pub fn moments_of_sums(
    gpu: &Rc<Gpu>,
    spec: &Spec,
    from: &Layout,
    Summed { rows }: &Summed,
) -> Result<Kernel> {
    let (rows, channels) = (*rows, spec.shape.elements() / 2);
    let bind = move |operands: &mut Operands| {
        let (sums, moments) = (&operands.inputs[0], &operands.outputs[0]);
        let arguments = [Memory(sums), Memory(moments), Long(rows), Int(channels)];
        operands.launch("batch_norm_moments_of_sums", operands.gpu.blocks(channels), &arguments)
    };
    let outputs = vec![plain_in(spec, DType::F32)];
    Ok(cuda_kernel(gpu, "own:batch_norm", vec![from.clone()], outputs, bind))
}

/// dy, x, w, b, mean, variance → sums, dw, db
pub fn sums(gpu: &Rc<Gpu>, request: &KernelRequest, norm: BatchNorm) -> Result<Kernel> {
    let shape = NormShape::of(&input(request, 0)?.0)?;
    Ok(kernel(gpu, request, (shape, Some(norm)), shape.workspace(), move |operands, i, o| {
        shape.sums(operands, &norm, &Given::with_b(i), &o[0], [&o[1], &o[2]], None)
    }))
}

/// dy, x, w, b, mean, variance, sums of all ranks → dx
pub fn backward_of_sums(gpu: &Rc<Gpu>, request: &KernelRequest, norm: BatchNorm) -> Result<Kernel> {
    let (shape, ranks) = (NormShape::of(output(request, 0)?)?, input(request, 6)?.0.shape.batch());
    let kernel = kernel(gpu, request, (shape, Some(norm)), 0, move |operands, i, o| {
        shape.backward(operands, &norm, &Given::with_b(i), &i[6], ranks, &o[0])
    });
    Ok(kernel.in_place(0))
}

/// What the forward pass keeps for the way back: an f32 an element.
fn response(spec: &Spec) -> Layout {
    saved(spec, "response", 4 * spec.shape.elements())
}

/// x → y, saved
pub fn local_response(gpu: &Rc<Gpu>, request: &KernelRequest, norm: LocalResponseNorm) -> Result<Kernel> {
    let (x, y) = (&input(request, 0)?.0, output(request, 0)?);
    let shape = NormShape::of(x)?;
    let outputs = vec![channels_last(y), response(y)];
    let outputs = outputs.into_iter().take(request.outputs.len()).collect();
    let bind = move |operands: &mut Operands| {
        let (x, y) = (&operands.inputs[0], &operands.outputs[0]);
        let arguments = [
            Memory(x),
            Memory(y),
            operands.outputs.get(1).map_or(Null, Memory),
            Long(shape.rows),
            Int(shape.channels),
            Int(norm.size),
            Float(norm.alpha),
            Float(norm.beta),
            Float(norm.k),
        ];
        operands.each("lrn", shape.real, shape.elements(), &arguments)
    };
    Ok(cuda_kernel(gpu, "own:lrn", vec![channels_last(x)], outputs, bind))
}

/// dy, x, saved → dx
pub fn local_response_backward(
    gpu: &Rc<Gpu>,
    request: &KernelRequest,
    norm: LocalResponseNorm,
) -> Result<Kernel> {
    let (dy, x, dx) = (&input(request, 0)?.0, &input(request, 1)?.0, output(request, 0)?);
    let shape = NormShape::of(dx)?;
    let inputs = vec![channels_last(dy), channels_last(x), response(x)];
    let bind = move |operands: &mut Operands| {
        let [dy, x, response] = std::array::from_fn(|index| &operands.inputs[index]);
        let arguments = [
            Memory(dy),
            Memory(x),
            Memory(response),
            Memory(&operands.outputs[0]),
            Long(shape.rows),
            Int(shape.channels),
            Int(norm.size),
            Float(norm.alpha),
            Float(norm.beta),
        ];
        operands.each("lrn_backward", shape.real, shape.elements(), &arguments)
    };
    Ok(cuda_kernel(gpu, "own:lrn", inputs, vec![channels_last(dx)], bind))
}
