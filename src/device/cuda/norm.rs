//! Normalisations, channels last: batch normalisation in the parts that synchronised statistics need too, and local
//! response normalisation.

use std::rc::Rc;

use super::gpu::{Argument, Argument::*, Gpu};
use super::kernel::{CudaKernel, Operands, PART};
use super::layout::{Real, channels_last, image, input, output, plain_in, saved};
use crate::device::{KernelRequest, Layout, Memory as Bytes};
use crate::error::Result;
use crate::graph::{BatchNorm, DType, LocalResponseNorm, Spec};

/// Channels that a block takes side by side, and its threads: 16 of four channels each, by 16 rows.
const CHANNELS: usize = 64;
const COLUMNS: [u32; 2] = [16, 16];
/// The same for joining parts.
const JOIN_CHANNELS: usize = 4;
const JOIN: [u32; 2] = [4, 64];

/// Pieces that the rows are cut into for a sum over them: by the shape alone, so that bits do not depend on the GPU.
pub fn column_parts(rows: usize, channels: usize) -> usize {
    rows.div_ceil(128).clamp(1, (1024 / channels.div_ceil(CHANNELS).max(1)).max(1))
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
    operands.launch_in(COLUMNS, &name, column_grid(channels, parts), &arguments)?;
    let arguments = [Memory(&partials), Memory(to), Int(channels), Int(parts)];
    operands.launch_in(JOIN, "column_sums_join", join_grid(channels), &arguments)
}

/// What every kernel of a normalisation knows of its images.
#[derive(Clone, Copy)]
pub struct Shape {
    real: Real,
    rows: usize,
    channels: usize,
    parts: usize,
}

impl Shape {
    pub fn of(spec: &Spec) -> Result<Shape> {
        let ([n, channels, h, w], real) = (image(spec)?, Real::of(spec.dtype)?);
        let rows = n * h * w;
        Ok(Shape { real, rows, channels, parts: column_parts(rows, channels) })
    }

    fn elements(&self) -> usize {
        self.rows * self.channels
    }

    /// A launch that goes over all elements, column by column.
    fn each(&self, operands: &mut Operands, name: &str, arguments: &[Argument]) -> Result<()> {
        let grid = column_grid(self.channels, operands.gpu.at_most(self.rows.div_ceil(64)) as usize);
        operands.launch_in(COLUMNS, &format!("{name}_{}", self.real.suffix()), grid, arguments)
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

    /// The moments of x; takes `partials` of scratch.
    pub fn moments(&self, operands: &mut Operands, x: &Bytes, to: &Bytes) -> Result<()> {
        let partials = operands.scratch(self.partials());
        let counts = [Long(self.rows), Int(self.channels), Int(self.parts)];
        let arguments = [&[Memory(x), Memory(&partials)], &counts[..]].concat();
        let name = format!("batch_norm_partials_{}", self.real.suffix());
        operands.launch_in(COLUMNS, &name, self.grid(), &arguments)?;
        let arguments = [&[Memory(&partials), Memory(to)], &counts[..]].concat();
        operands.launch_in(JOIN, "batch_norm_moments", join_grid(self.channels), &arguments)
    }

    /// The moments, from the sum of each channel and that of its squares.
    pub fn moments_of_sums(
        &self,
        operands: &mut Operands,
        [sum, squares]: [&Bytes; 2],
        to: &Bytes,
    ) -> Result<()> {
        let arguments = [Memory(sum), Memory(squares), Memory(to), Long(self.rows), Int(self.channels)];
        operands.launch("batch_norm_moments_of_sums", operands.gpu.blocks(self.channels), &arguments)
    }

    /// OpFusions the moments of `ranks`, and moves running statistics. `before` and `after` are running mean and variance.
    fn statistics(
        &self,
        operands: &mut Operands,
        norm: &BatchNorm,
        moments: &Bytes,
        ranks: usize,
        [mean, variance, mean_before, variance_before, mean_after, variance_after]: [&Bytes; 6],
    ) -> Result<()> {
        let arguments = [
            Memory(moments),
            Int(ranks),
            Long(self.rows),
            Int(self.channels),
            Memory(mean),
            Memory(variance),
            Memory(mean_before),
            Memory(variance_before),
            Memory(mean_after),
            Memory(variance_after),
            Float(norm.momentum),
        ];
        operands.launch("batch_norm_statistics", operands.gpu.blocks(self.channels), &arguments)
    }

    /// x, w, b, mean, variance, z? → y. What the way back needs to know where y was positive is b, which is kept.
    fn normalise(
        &self,
        operands: &mut Operands,
        norm: &BatchNorm,
        [x, w, b, mean, variance]: [&Bytes; 5],
        z: Option<&Bytes>,
        y: &Bytes,
        kept: Option<&Bytes>,
    ) -> Result<()> {
        if let Some(kept) = kept {
            operands.copy(b, kept, 4 * self.channels);
        }
        let arguments = [
            Memory(x),
            z.map_or(Null, Memory),
            Memory(y),
            Memory(w),
            Memory(b),
            Memory(mean),
            Memory(variance),
            Long(self.rows),
            Int(self.channels),
            Float(norm.epsilon),
            Bool(norm.relu),
        ];
        self.each(operands, "batch_norm", &arguments)
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
        operands.launch_in(COLUMNS, &name, self.grid(), &arguments)?;
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
        self.each(operands, "batch_norm_backward", &arguments)
    }
}

/// What the backward kernels read first. With ReLU they look where y was positive, or compute it again, for which they need b.
struct Given<'a> {
    dy: &'a Bytes,
    x: &'a Bytes,
    y: Option<&'a Bytes>,
    w: &'a Bytes,
    b: Option<&'a Bytes>,
    mean: &'a Bytes,
    variance: &'a Bytes,
}

impl<'a> Given<'a> {
    fn arguments(&self) -> [Argument<'a>; 7] {
        [
            Memory(self.dy),
            Memory(self.x),
            self.y.map_or(Null, Memory),
            Memory(self.w),
            self.b.map_or(Null, Memory),
            Memory(self.mean),
            Memory(self.variance),
        ]
    }

    /// dy, x, w, b, mean, variance in their order.
    fn with_b(inputs: &'a [Bytes]) -> Given<'a> {
        let [dy, x, w, b, mean, variance] = std::array::from_fn(|index| &inputs[index]);
        Given { dy, x, y: None, w, b: Some(b), mean, variance }
    }
}

/// The layouts of a request's inputs and outputs: images channels last, what is one number a channel plain.
fn layouts(request: &KernelRequest) -> (Vec<Layout>, Vec<Layout>) {
    let layout = |spec: &Spec| match (spec.dtype, spec.shape.rank()) {
        // The forward op's b.
        (DType::Saved, _) => saved(spec, "b", 4 * spec.shape.0.get(1).copied().unwrap_or(0)),
        (_, 4) => channels_last(spec),
        _ => plain_in(spec, DType::F32),
    };
    let inputs = request.inputs.iter().map(|(spec, _)| layout(spec)).collect();
    (inputs, request.outputs.iter().map(layout).collect())
}

fn kernel(
    gpu: &Rc<Gpu>,
    request: &KernelRequest,
    workspace: usize,
    bind: impl Fn(&mut Operands, &[Bytes], &[Bytes]) -> Result<()> + 'static,
) -> CudaKernel {
    let (inputs, outputs) = layouts(request);
    let bind = move |operands: &mut Operands| {
        let (inputs, outputs) = (operands.inputs, operands.outputs);
        bind(operands, inputs, outputs)
    };
    CudaKernel::new(gpu, "own:batch_norm", inputs, outputs, bind).with_workspace(workspace)
}

/// x, w, b, running mean, running variance, z?, moments of all ranks? → y, mean, variance, running mean, running variance, saved?
pub fn training(gpu: &Rc<Gpu>, request: &KernelRequest, norm: BatchNorm) -> Result<CudaKernel> {
    let shape = Shape::of(output(request, 0)?)?;
    let given = request.inputs.last().filter(|_| norm.given);
    let ranks = given.map_or(1, |(spec, _)| spec.shape.elements() / (2 * shape.channels).max(1));
    let workspace = if norm.given { 0 } else { shape.workspace() };
    Ok(kernel(gpu, request, workspace, move |operands, i, o| {
        let own;
        let moments = match i.last().filter(|_| norm.given) {
            Some(moments) => moments,
            None => {
                own = operands.scratch(shape.pair());
                shape.moments(operands, &i[0], &own)?;
                &own
            }
        };
        shape.statistics(operands, &norm, moments, ranks, [&o[1], &o[2], &i[3], &i[4], &o[3], &o[4]])?;
        let z = i.get(5).filter(|_| norm.add);
        shape.normalise(operands, &norm, [&i[0], &i[1], &i[2], &o[1], &o[2]], z, &o[0], o.get(5))
    }))
}

/// x, w, b, mean, variance, z? → y, saved?
pub fn given_statistics(gpu: &Rc<Gpu>, request: &KernelRequest, norm: BatchNorm) -> Result<CudaKernel> {
    let shape = Shape::of(output(request, 0)?)?;
    Ok(kernel(gpu, request, 0, move |operands, i, o| {
        shape.normalise(operands, &norm, [&i[0], &i[1], &i[2], &i[3], &i[4]], i.get(5), &o[0], o.get(1))
    }))
}

/// dy, x, w, mean, variance, saved? → dx, dw, db; behind an addition dy, x, w, mean, variance, y → dz, dw, db, dx.
pub fn backward(gpu: &Rc<Gpu>, request: &KernelRequest, norm: BatchNorm) -> Result<CudaKernel> {
    let shape = Shape::of(output(request, 0)?)?;
    let kernel = kernel(gpu, request, shape.workspace(), move |operands, i, o| {
        let sums = operands.scratch(shape.pair());
        let (y, b) = if norm.add { (i.get(5), None) } else { (None, i.get(5)) };
        let given = Given { dy: &i[0], x: &i[1], y, w: &i[2], b, mean: &i[3], variance: &i[4] };
        let dz = norm.add.then_some(&o[0]);
        shape.sums(operands, &norm, &given, &sums, [&o[1], &o[2]], dz)?;
        // What is behind an addition has its ReLU taken off by now.
        let (norm, given, dx) = match dz {
            Some(dz) => (BatchNorm { relu: false, ..norm }, Given { dy: dz, y: None, ..given }, &o[3]),
            None => (norm, given, &o[0]),
        };
        shape.backward(operands, &norm, &given, &sums, 1, dx)
    });
    Ok(kernel.in_place(0))
}

/// x → moments
pub fn moments(gpu: &Rc<Gpu>, request: &KernelRequest) -> Result<CudaKernel> {
    let shape = Shape::of(&input(request, 0)?.0)?;
    Ok(kernel(gpu, request, shape.workspace(), move |operands, i, o| shape.moments(operands, &i[0], &o[0])))
}

/// dy, x, w, b, mean, variance → sums, dw, db
pub fn sums(gpu: &Rc<Gpu>, request: &KernelRequest, norm: BatchNorm) -> Result<CudaKernel> {
    let shape = Shape::of(&input(request, 0)?.0)?;
    Ok(kernel(gpu, request, shape.workspace(), move |operands, i, o| {
        shape.sums(operands, &norm, &Given::with_b(i), &o[0], [&o[1], &o[2]], None)
    }))
}

/// dy, x, w, b, mean, variance, sums of all ranks → dx
pub fn backward_of_sums(gpu: &Rc<Gpu>, request: &KernelRequest, norm: BatchNorm) -> Result<CudaKernel> {
    let (shape, ranks) = (Shape::of(output(request, 0)?)?, input(request, 6)?.0.shape.batch());
    let kernel = kernel(gpu, request, 0, move |operands, i, o| {
        shape.backward(operands, &norm, &Given::with_b(i), &i[6], ranks, &o[0])
    });
    Ok(kernel.in_place(0))
}

/// What the forward pass keeps for the way back: an f32 an element.
fn response(spec: &Spec) -> Layout {
    saved(spec, "response", 4 * spec.shape.elements())
}

/// x → y, saved
pub fn local_response(gpu: &Rc<Gpu>, request: &KernelRequest, norm: LocalResponseNorm) -> Result<CudaKernel> {
    let (x, y) = (&input(request, 0)?.0, output(request, 0)?);
    let shape = Shape::of(x)?;
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
    Ok(CudaKernel::new(gpu, "own:lrn", vec![channels_last(x)], outputs, bind))
}

/// dy, x, saved → dx
pub fn local_response_backward(
    gpu: &Rc<Gpu>,
    request: &KernelRequest,
    norm: LocalResponseNorm,
) -> Result<CudaKernel> {
    let (dy, x, dx) = (&input(request, 0)?.0, &input(request, 1)?.0, output(request, 0)?);
    let shape = Shape::of(dx)?;
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
    Ok(CudaKernel::new(gpu, "own:lrn", inputs, vec![channels_last(dx)], bind))
}
