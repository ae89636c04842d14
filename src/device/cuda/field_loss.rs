//! Losses and metrics of fields (kernels/field_loss.cu), on plain f32. Where a sample is a row of scores its loss and
//! gradient are those of the kernels for labels, to the bit.

use std::rc::Rc;

use super::gpu::Argument::{Float, Int, Long, Memory, Null};
use super::gpu::{Argument, Gpu};
use super::kernel::{Operands, PART, cuda_kernel};
use super::layout::{plain, plain_in};
use super::simple::{cross_entropy, cross_entropy_backward};
use crate::config::Metric;
use crate::device::{Kernel, KernelRequest, Layout, Memory as DeviceMemory};
use crate::error::{Error, Result};
use crate::graph::{DType, FieldLoss};

/// Points of a part of a sample: sixteen a thread.
const OF_PART: usize = 4096;

#[derive(Clone, Copy)]
struct Extents {
    of: FieldLoss,
    samples: usize,
    channels: usize,
    /// Of the target of a sample.
    points: usize,
    /// Numbers from one target to the next: weights of points are behind them.
    apart: usize,
    /// Whether a sample is a row of scores, whole and without weights of classes or points.
    is_row: bool,
}

impl Extents {
    fn of(request: &KernelRequest, of: FieldLoss) -> Result<Extents> {
        let [(output, _), (target, _), ..] = request.inputs else {
            return Err(Error::internal(format!("{} inputs of a field's loss", request.inputs.len())));
        };
        let (samples, channels) = (output.shape.batch(), output.shape.channels());
        let apart = target.shape.per_sample();
        let points = match of.objective.loss.is_of_classes() {
            true => output.shape.per_sample() / channels,
            false => output.shape.per_sample(),
        };
        let is_one = apart == 1 && request.inputs.len() == 2 && of.rows.is_none();
        let is_row = of.objective.loss.is_of_classes() && is_one;
        Ok(Extents { of, samples, channels, points, apart, is_row })
    }

    fn parts(&self) -> usize {
        self.points.div_ceil(OF_PART)
    }

    /// What a part adds up.
    fn width(&self) -> usize {
        self.of.totals(self.channels)
    }

    /// Bytes of the parts' sums, of the samples' and of labels and hits.
    fn workspace(&self) -> [usize; 4] {
        let sums = self.samples * self.width();
        [4 * sums * self.parts(), 8 * sums, 4 * self.samples, 4 * self.samples]
    }

    fn scratch(&self, operands: &mut Operands) -> [DeviceMemory; 4] {
        self.workspace().map(|bytes| operands.scratch(bytes))
    }
}

fn layouts(request: &KernelRequest) -> [Vec<Layout>; 2] {
    let inputs = request.inputs.iter().map(|(spec, _)| plain_in(spec, DType::F32)).collect();
    [inputs, request.outputs.iter().map(plain).collect()]
}

/// output, target, class weights? → losses, sums; of a part of the rows their totals
pub fn forward_pass(gpu: &Rc<Gpu>, request: &KernelRequest, of: FieldLoss) -> Result<Kernel> {
    let (extents, objective) = (Extents::of(request, of)?, of.objective);
    let [inputs, outputs] = layouts(request);
    let bind = move |operands: &mut Operands| {
        let [partials, totals, labels, hits] = extents.scratch(operands);
        if !extents.is_row {
            return add_up(operands, &extents, &partials, &totals);
        }
        // What the kernel for labels does not count.
        let counts = objective.metric != Metric::Accuracy;
        if counts {
            add_up(operands, &extents, &partials, &totals)?;
        }
        label(operands, &extents, &labels)?;
        let (losses, hits) = (&operands.outputs[0], if counts { &hits } else { &operands.outputs[1] });
        let (rows, factors) = ([extents.samples, extents.channels], [objective.smoothing, 1.0]);
        cross_entropy(operands, [Memory(&labels), Null, Null], [losses, hits], rows, factors)
    };
    let workspace = extents.workspace().map(|bytes| bytes.next_multiple_of(PART)).iter().sum();
    Ok(cuda_kernel(gpu, "own:field-loss", inputs, outputs, bind).with_workspace(workspace))
}

/// Losses and sums, by parts of samples.
fn add_up(
    operands: &mut Operands,
    extents: &Extents,
    partials: &DeviceMemory,
    totals: &DeviceMemory,
) -> Result<()> {
    let Extents { of, samples, channels, points, apart, .. } = *extents;
    let objective = of.objective;
    let (width, parts) = (extents.width(), extents.parts());
    let grid = [parts as u32, samples.min(65_535) as u32, 1];
    let [output, target] = [0, 1].map(|index| Memory(&operands.inputs[index]));
    let (sums, [n, channels, all]) = (Memory(partials), [samples, channels, parts].map(Int));
    let ([places, apart], metric) = ([points, apart].map(Long), Int(objective.metric as usize));
    if objective.loss.is_of_classes() {
        let (weights, smoothing) = (weights(operands.inputs), Float(objective.smoothing));
        let arguments = [output, target, weights, sums, n, channels, places, apart, all, smoothing, metric];
        operands.launch("field_cross_entropy", grid, &arguments)?;
    } else {
        let loss = Int(objective.loss as usize);
        let arguments = [output, target, sums, n, places, apart, all, loss, metric];
        operands.launch("field_numbers", grid, &arguments)?;
    }
    join(operands, of, partials, totals, [samples, parts, width], [parts * width, width], of.points(points))
}

/// Losses and sums, or totals, of parts of so many samples, of which these are so far apart.
fn join(
    operands: &mut Operands,
    of: FieldLoss,
    partials: &DeviceMemory,
    totals: &DeviceMemory,
    [samples, parts, width]: [usize; 3],
    [of_sample, of_part]: [usize; 2],
    points: usize,
) -> Result<()> {
    let [first, rest @ ..] = operands.outputs else {
        return Err(Error::internal("a field's loss that gives nothing"));
    };
    let grid = [operands.gpu.at_most(samples), 1, 1];
    let losses = if rest.is_empty() { Null } else { Memory(first) };
    let [from, totals, sums] = [partials, totals, rest.first().unwrap_or(first)].map(Memory);
    let [samples, parts, width, metric] = [samples, parts, width, of.objective.metric as usize].map(Int);
    let [of_sample, of_part, all] = [of_sample, of_part, points].map(Long);
    let arguments = [from, totals, losses, sums, samples, parts, width, of_sample, of_part, all, metric];
    operands.launch("field_join", grid, &arguments)
}

/// totals of several places → losses, sums
pub fn means(gpu: &Rc<Gpu>, request: &KernelRequest, of: FieldLoss) -> Result<Kernel> {
    let [inputs, outputs] = layouts(request);
    let [parts, samples, width] = request.inputs[0].0.shape.0[..] else {
        return Err(Error::internal("totals of no places"));
    };
    let bytes = 8 * samples * width;
    let bind = move |operands: &mut Operands| {
        let totals = operands.scratch(bytes);
        let all = operands.inputs[0].clone();
        join(operands, of, &all, &totals, [samples, parts, width], [width, samples * width], 1)
    };
    let kernel = cuda_kernel(gpu, "own:field-means", inputs, outputs, bind);
    Ok(kernel.with_workspace(bytes.next_multiple_of(PART)))
}

fn weights(inputs: &[DeviceMemory]) -> Argument<'_> {
    inputs.get(2).map_or(Null, Memory)
}

/// The classes of the samples' targets.
fn label(operands: &mut Operands, extents: &Extents, labels: &DeviceMemory) -> Result<()> {
    let samples = extents.samples;
    let arguments = [Memory(&operands.inputs[1]), Memory(labels), Long(samples), Int(extents.channels)];
    operands.launch("field_labels", operands.gpu.blocks(samples), &arguments)
}

/// output, target, class weights? → d output
pub fn backward(gpu: &Rc<Gpu>, request: &KernelRequest, of: FieldLoss) -> Result<Kernel> {
    let (extents, objective) = (Extents::of(request, of)?, of.objective);
    let Extents { samples, channels, points, apart, is_row, .. } = extents;
    let [inputs, outputs] = layouts(request);
    let bind = move |operands: &mut Operands| {
        if is_row {
            let labels = operands.scratch(4 * samples);
            label(operands, &extents, &labels)?;
            let (rows, factors) = ([samples, channels], [objective.smoothing, 1.0]);
            return cross_entropy_backward(operands, [Memory(&labels), Null, Null], rows, factors);
        }
        let n = samples * points;
        let grid = operands.gpu.blocks(n);
        let [output, target, gradient, scalars] =
            [&operands.inputs[0], &operands.inputs[1], &operands.outputs[0], &operands.gpu.scalars]
                .map(Memory);
        let (divisor, [all, points, apart]) = (Float(of.divisor(points)), [n, points, apart].map(Long));
        if objective.loss.is_of_classes() {
            let (weights, smoothing) = (weights(operands.inputs), Float(objective.smoothing));
            let [n, channels] = [samples, channels].map(Int);
            let arguments =
                [output, target, weights, gradient, n, channels, points, apart, divisor, smoothing, scalars];
            operands.launch("field_cross_entropy_backward", grid, &arguments)
        } else {
            let loss = Int(objective.loss as usize);
            let arguments = [output, target, gradient, all, points, apart, divisor, loss, scalars];
            operands.launch("field_numbers_backward", grid, &arguments)
        }
    };
    let kernel = cuda_kernel(gpu, "own:field-loss", inputs, outputs, bind);
    Ok(if is_row { kernel.with_workspace((4 * samples).next_multiple_of(PART)) } else { kernel })
}
