//! Losses and metrics of fields: outputs (N,C,P) and targets in plain f32.
//!
//! Points lie side by side, one channel after the other, so that all loops go over the points of a chunk that stays in
//! cache with all of its channels. Pieces of a sample are added up in f64 in a fixed order, so that results do not
//! depend on the number of threads. Samples of one point take the loops of `loss`: there the same network with labels
//! has the same bits.

use std::ops::Range;
use std::rc::Rc;

use super::handle::Engine;
use super::host::{Numbers, Workers, host_kernel, in_wide_registers};
use super::layout::plain_f32;
use super::loss::{LossTarget, cross_entropy, largest, no_class, softmax_gradient};
use super::primitive::{inputs, outputs};
use crate::config::{Loss, Metric, Objective};
use crate::device::{Kernel, KernelRequest, Layout, Memory, Scalars};
use crate::error::{Error, Result};
use crate::graph::{DType, FieldLoss, Spec};

/// Points of a chunk.
const CHUNK: usize = 256;

/// Points that a thread takes at a time: few enough for f32 sums by lane.
const PIECE: usize = 16 * CHUNK;

/// What the piece of a sample adds up: a target that is no class, else NaN; then `FieldLoss::totals`.
const WRONG: usize = 0;
const LOSS: usize = 1;
const COUNT: usize = 2;
const FIRST: usize = 3;

#[derive(Clone, Copy)]
struct Extents {
    of: FieldLoss,
    objective: Objective,
    samples: usize,
    channels: usize,
    /// Points of a channel of the output.
    points: usize,
    /// Weights behind a sample's target: none, one for each place of a channel, or one for each number.
    weights: usize,
}

impl Extents {
    fn of(request: &KernelRequest, of: FieldLoss, results: &[&Spec]) -> Result<Extents> {
        let specs: Vec<&Spec> = request.inputs.iter().map(|(spec, _)| spec).collect();
        let ([output, target] | [output, target, _]) = specs[..] else {
            return Err(Error::internal(format!("{} inputs of a field's loss", specs.len())));
        };
        let (samples, channels) = (output.shape.batch(), output.shape.channels());
        let points = output.shape.0.iter().skip(2).product();
        let mut extents = Extents { of, objective: of.objective, samples, channels, points, weights: 0 };
        extents.weights = target.shape.per_sample().saturating_sub(extents.per_sample());
        let are_reals = specs.iter().chain(results).all(|spec| spec.dtype.is_real());
        let fits = target.shape.elements() == samples * (extents.per_sample() + extents.weights)
            && [0, points, extents.per_sample()].contains(&extents.weights)
            && specs.get(2).is_none_or(|weights| extents.is_of_classes() && weights.shape.0 == [channels]);
        if !(are_reals && fits && extents.per_sample() > 0 && target.dtype == DType::F32) {
            let text = format!("a loss of an output {} and a target {}", output.shape, target.shape);
            return Err(Error::internal(text));
        }
        Ok(extents)
    }

    fn is_of_classes(&self) -> bool {
        self.objective.loss.is_of_classes()
    }

    /// Points of a sample's target.
    fn per_sample(&self) -> usize {
        if self.is_of_classes() { self.points } else { self.channels * self.points }
    }

    /// Pieces of a sample.
    fn pieces(&self) -> usize {
        self.per_sample().div_ceil(PIECE)
    }

    /// The sample of a piece, and the points that it has of it.
    fn piece(&self, index: usize) -> (usize, Range<usize>) {
        let (sample, part) = (index / self.pieces(), index % self.pieces());
        (sample, part * PIECE..self.per_sample().min((part + 1) * PIECE))
    }

    /// Numbers that a piece adds up.
    fn width(&self) -> usize {
        1 + self.of.totals(self.channels)
    }

    /// Where a sample's output lies, its target, and the weights of its points.
    fn of_sample(&self, sample: usize) -> [Range<usize>; 3] {
        let (each, own) = (self.channels * self.points, self.per_sample());
        let (target, end) = (sample * (own + self.weights), (sample + 1) * (own + self.weights));
        [sample * each..(sample + 1) * each, target..target + own, target + own..end]
    }
}

fn plain_layouts(engine: &Engine, request: &KernelRequest) -> Result<[Vec<Layout>; 2]> {
    let inputs = request.inputs.iter().map(|(spec, _)| plain_f32(engine, spec));
    let results = request.outputs.iter().map(|spec| plain_f32(engine, spec));
    Ok([inputs.collect::<Result<_>>()?, results.collect::<Result<_>>()?])
}

/// output, target, class weights? → losses, sums; of a part of the rows their totals
pub fn forward_pass(
    engine: &Engine,
    workers: &Rc<Workers>,
    request: &KernelRequest,
    of: FieldLoss,
) -> Result<Kernel> {
    let results: Vec<&Spec> = request.outputs.iter().collect();
    let extents = Extents::of(request, of, &results)?;
    if results.len() != if of.rows.is_some() { 1 } else { 2 } {
        return Err(Error::internal(format!("{} outputs of a field's loss", results.len())));
    }
    let [from, to] = plain_layouts(engine, request)?;
    let (width, pieces) = (extents.width(), extents.samples * extents.pieces());
    let workers = workers.clone();
    let kernel = host_kernel("field-loss", from, to, move |inputs, outputs, _| {
        let fields = Fields::of(extents, inputs);
        let [results @ .., totals] = outputs else { return Ok(()) };
        let totals = Numbers::<f64>::stored(totals);
        workers.each(pieces, |piece| {
            // SAFETY: each call has a part of its own.
            let own = unsafe { totals.part_mut(piece * width..(piece + 1) * width) };
            own.fill(0.0);
            own[WRONG] = f64::NAN;
            if fields.is_rows() { fields.add_row(piece, own) } else { add_up(&fields, piece, own) }
        });
        // SAFETY: all threads are done.
        let totals = unsafe { totals.part_mut(0..pieces * width) };
        if let Some(part) = totals.chunks_exact(width).find(|part| !part[WRONG].is_nan()) {
            return Err(no_class(part[WRONG], extents.channels));
        }
        let points = of.points(extents.per_sample()) as f64;
        for (sample, parts) in totals.chunks_exact_mut(width * extents.pieces()).enumerate() {
            let (total, parts) = parts.split_at_mut(width);
            for part in parts.chunks_exact(width) {
                total.iter_mut().zip(part).for_each(|(total, part)| *total += part);
            }
            total[LOSS] /= points;
            show(&of, &total[LOSS..], sample, results);
        }
        Ok(())
    });
    Ok(kernel.with_workspace(size_of::<f64>() * pieces * width))
}

/// totals of several places → losses, sums
pub fn means(engine: &Engine, request: &KernelRequest, of: FieldLoss) -> Result<Kernel> {
    let ([all], [losses, _]) = (inputs(request)?, outputs(request)?);
    let of = FieldLoss { rows: None, ..of };
    let (samples, count) = (losses.shape.batch(), all.shape.0.last().copied().unwrap_or(0));
    let [from, to] = plain_layouts(engine, request)?;
    let kernel = host_kernel("field-means", from, to, move |inputs, outputs, _| {
        let [results @ .., total] = outputs else { return Ok(()) };
        // SAFETY: host memory of this device; the workspace is apart from what is read.
        let (all, total) = unsafe { (inputs[0].as_slice::<f32>(), total.as_slice_mut::<f64>()) };
        for sample in 0..samples {
            total.fill(0.0);
            for part in all.chunks_exact(samples * count) {
                let part = &part[sample * count..][..count];
                total.iter_mut().zip(part).for_each(|(total, &part)| *total += f64::from(part));
            }
            show(&of, total, sample, results);
        }
        Ok(())
    });
    Ok(kernel.with_workspace(size_of::<f64>() * count))
}

/// output, target, class weights? → d output
pub fn backward(
    engine: &Engine,
    workers: &Rc<Workers>,
    request: &KernelRequest,
    of: FieldLoss,
) -> Result<Kernel> {
    let [gradient] = outputs(request)?;
    let extents = Extents::of(request, of, &[gradient])?;
    let [from, to] = plain_layouts(engine, request)?;
    let workers = workers.clone();
    Ok(host_kernel("field-loss", from, to, move |inputs, outputs, scalars: &Scalars| {
        let fields = Fields::of(extents, inputs);
        let scale = scalars.gradient_scale / of.divisor(extents.per_sample());
        let gradient = Numbers::of(&outputs[0]);
        workers.each(extents.samples * extents.pieces(), |piece| match fields.is_rows() {
            true => fields.differentiate_row(piece, gradient, scale),
            false => differentiate(&fields, piece, gradient, scale),
        });
        Ok(())
    }))
}

/// Writes what is shown of the totals of a sample: these, of a part of it; else loss and sums.
fn show(of: &FieldLoss, totals: &[f64], sample: usize, results: &[Memory]) {
    #[allow(clippy::mut_from_ref, reason = "what is written is the device's memory, not the handle")]
    fn place(memory: &Memory, sample: usize, count: usize) -> &mut [f32] {
        // SAFETY: host memory of this device that nobody else reads or writes while the step runs.
        unsafe { Numbers::of(memory).part_mut(sample * count..(sample + 1) * count) }
    }
    let [first, sums @ ..] = results else { return };
    let [loss, count, own @ ..] = totals else { return };
    let Some(sums) = sums.first() else {
        let to = place(first, sample, totals.len());
        return to.iter_mut().zip(totals).for_each(|(to, total)| *to = *total as f32);
    };
    place(first, sample, 1)[0] = *loss as f32;
    let metric = of.objective.metric;
    if metric != Metric::Iou {
        let mean = |total: &f64| if *count > 0.0 { (total / count) as f32 } else { 0.0 };
        let sums = place(sums, sample, own.len());
        return sums.iter_mut().zip(own).for_each(|(sum, total)| *sum = mean(total));
    }
    let sums = place(sums, sample, 1 + own.len());
    let channels = own.len() / 3;
    let mut mean = 0.0;
    for class in 0..channels {
        let [hits, found, there] = [0, 1, 2].map(|which| own[which * channels + class]);
        let union = found + there - hits;
        mean += if union > 0.0 { hits / union } else { 1.0 };
        for (which, count) in [hits, found - hits, there - hits].into_iter().enumerate() {
            sums[1 + which * channels + class] = count as f32;
        }
    }
    sums[0] = if *count > 0.0 { (mean / channels as f64) as f32 } else { 0.0 };
}

/// What an op reads.
#[derive(Clone, Copy)]
struct Fields<'a> {
    extents: Extents,
    output: &'a [f32],
    target: &'a [f32],
    /// Of classes.
    weights: Option<&'a [f32]>,
}

impl<'a> Fields<'a> {
    fn of(extents: Extents, inputs: &'a [Memory]) -> Fields<'a> {
        // SAFETY: host memory of this device; nothing writes to it while the step runs.
        unsafe {
            Fields {
                extents,
                output: inputs[0].as_slice(),
                target: inputs[1].as_slice(),
                weights: inputs.get(2).map(|weights| weights.as_slice()),
            }
        }
    }

    /// Whether `loss` has the loops: each sample is a row of scores, and none weighs more than others.
    fn is_rows(&self) -> bool {
        let Extents { points, weights, .. } = self.extents;
        self.extents.is_of_classes() && (points, weights) == (1, 0) && self.weights.is_none()
    }

    /// The class that a target names; none of one that is NaN, or no class.
    fn class(&self, value: f32) -> Option<usize> {
        (0.0..self.extents.channels as f32)
            .contains(&value)
            .then_some(value as usize)
            .filter(|&k| k as f32 == value)
    }

    /// Adds up a sample that is one row of scores.
    fn add_row(&self, sample: usize, totals: &mut [f64]) {
        let [row, target, _] = self.extents.of_sample(sample);
        let (row, value) = (&self.output[row], self.target[target.start]);
        let Some(class) = self.class(value) else {
            totals[WRONG] = f64::from(value);
            return;
        };
        let loss = cross_entropy(row, LossTarget { class, other: None }, self.extents.objective.smoothing);
        totals[LOSS] = f64::from(loss);
        let most = largest(row);
        let found = row.iter().position(|&v| v == most).filter(|_| row.iter().all(|v| !v.is_nan()));
        self.count(class, found, 1.0, |k| row[k], totals);
    }

    /// Counts a point of this class for the metric: the class that is found, if any, and its scores.
    #[inline(always)]
    fn count(
        &self,
        class: usize,
        found: Option<usize>,
        weight: f32,
        score: impl Fn(usize) -> f32,
        totals: &mut [f64],
    ) {
        let channels = self.extents.channels;
        let weighed = |is_right: bool| if is_right { f64::from(weight) } else { 0.0 };
        totals[COUNT] += f64::from(weight);
        match self.extents.objective.metric {
            // Points are counted as they are.
            Metric::Iou if weight == 0.0 => {}
            Metric::Iou => {
                totals[FIRST + 2 * channels + class] += 1.0;
                found.into_iter().for_each(|found| totals[FIRST + channels + found] += 1.0);
                totals[FIRST + class] += f64::from(u8::from(found == Some(class)));
            }
            Metric::Top5 => {
                let own = score(class);
                let before = |k: &usize| score(*k) > own || (score(*k) == own && *k < class);
                let is_among = found.is_some() && (0..channels).filter(before).count() < 5;
                totals[FIRST] += weighed(is_among);
            }
            _ => totals[FIRST] += weighed(found == Some(class)),
        }
    }

    #[inline(always)]
    fn add_classes(&self, piece: usize, totals: &mut [f64]) {
        let objective = self.extents.objective;
        let (sample, points) = self.extents.piece(piece);
        let mut losses = [0f32; CHUNK];
        for first in points.clone().step_by(CHUNK) {
            let chunk = self.chunk(sample, first..points.end.min(first + CHUNK));
            let weights = self.weights_of(sample, first);
            let mut scores = PointScores::of(&chunk, self.weights, objective.smoothing);
            scores.compare(&chunk, self.weights, objective.smoothing);
            scores.add_losses(chunk.target, &weights, &mut losses);
            for (i, (&value, &found)) in chunk.target.iter().zip(&scores.found).enumerate() {
                match self.class(value) {
                    Some(class) => {
                        let found = (found >= 0.0).then_some(found as usize);
                        self.count(class, found, weights[i], |k| chunk.row(k)[i], totals);
                    }
                    None if value.is_nan() => {}
                    None => totals[WRONG] = f64::from(value),
                }
            }
        }
        totals[LOSS] = losses.iter().copied().map(f64::from).sum();
    }

    /// Some points of a sample.
    #[inline(always)]
    fn chunk(&self, sample: usize, points: Range<usize>) -> ChunkOfScores<'a> {
        let [output, target, _] = self.extents.of_sample(sample);
        let target = &self.target[target][points.clone()];
        let Extents { channels, points: apart, .. } = self.extents;
        ChunkOfScores { output: &self.output[output], target, channels, apart, first: points.start }
    }

    /// What the points of a chunk of a sample weigh, from its first one on.
    #[inline(always)]
    fn weights_of(&self, sample: usize, first: usize) -> [f32; CHUNK] {
        let [.., own] = self.extents.of_sample(sample);
        let (own, mut weights) = (&self.target[own], [1.0; CHUNK]);
        let mut to = &mut weights[..];
        let mut at = if own.is_empty() { 0 } else { first % own.len() };
        while !own.is_empty() && !to.is_empty() {
            let count = to.len().min(own.len() - at);
            let (part, rest) = to.split_at_mut(count);
            part.copy_from_slice(&own[at..at + count]);
            (to, at) = (rest, 0);
        }
        weights
    }

    #[inline(always)]
    fn add_numbers(&self, piece: usize, totals: &mut [f64]) {
        let Objective { loss, metric, .. } = self.extents.objective;
        let mut lanes = [[0f32; CHUNK]; 5];
        for (_, points) in self.numbers(piece) {
            let [losses, counts, first, second, third] = &mut lanes;
            match loss {
                Loss::Bce => add(losses, &points, binary_cross_entropy),
                Loss::Mae => add(losses, &points, |y, t| (y - t).abs()),
                Loss::Huber => add(losses, &points, huber),
                Loss::Output => add(losses, &points, |y, _| y),
                Loss::Mse | Loss::CrossEntropy => add(losses, &points, |y, t| (y - t) * (y - t)),
            }
            add(counts, &points, |_, _| 1.0);
            match (metric, loss) {
                (Metric::Accuracy, _) => {
                    add(first, &points, |y, t| if (y > 0.0) == (t > 0.5) { 1.0 } else { 0.0 });
                }
                (Metric::Mae, Loss::Bce) => add(first, &points, |y, t| (sigmoid(y) - t).abs()),
                (Metric::Mae, _) => add(first, &points, |y, t| (y - t).abs()),
                (_, Loss::Bce) => add(first, &points, |y, t| (sigmoid(y) - t) * (sigmoid(y) - t)),
                _ => add(first, &points, |y, t| (y - t) * (y - t)),
            }
            if metric == Metric::R2 {
                add(second, &points, |_, t| t);
                add(third, &points, |_, t| t * t);
            }
        }
        let sum = |lanes: &[f32; CHUNK]| lanes.iter().copied().map(f64::from).sum();
        totals[LOSS..].iter_mut().zip(&lanes).for_each(|(total, lanes)| *total = sum(lanes));
    }

    /// The chunks of a piece, and where each lies in the output.
    #[inline(always)]
    fn numbers(&self, piece: usize) -> impl Iterator<Item = (Range<usize>, ChunkOfNumbers<'a>)> {
        let (sample, points) = self.extents.piece(piece);
        let [output, target, _] = self.extents.of_sample(sample);
        points.clone().step_by(CHUNK).map(move |first| {
            let own = first..points.end.min(first + CHUNK);
            let place = output.start + own.start..output.start + own.end;
            let weights = self.weights_of(sample, first);
            let (output, target) = (&self.output[place.clone()], &self.target[target.clone()][own]);
            (place, ChunkOfNumbers { output, target, weights })
        })
    }

    fn differentiate_row(&self, sample: usize, gradient: Numbers, scale: f32) {
        let [row, target, _] = self.extents.of_sample(sample);
        // SAFETY: each sample has its own.
        let gradient = unsafe { gradient.part_mut(row.clone()) };
        match self.class(self.target[target.start]) {
            Some(class) => {
                let smoothing = self.extents.objective.smoothing;
                softmax_gradient(&self.output[row], LossTarget { class, other: None }, smoothing, gradient);
                gradient.iter_mut().for_each(|gradient| *gradient *= scale);
            }
            None => gradient.fill(0.0),
        }
    }

    #[inline(always)]
    fn differentiate_classes(&self, piece: usize, gradient: Numbers, scale: f32) {
        let Extents { objective, channels, .. } = self.extents;
        let (sample, points) = self.extents.piece(piece);
        let [output, ..] = self.extents.of_sample(sample);
        let everywhere = objective.smoothing / channels as f32;
        for first in points.clone().step_by(CHUNK) {
            let chunk = self.chunk(sample, first..points.end.min(first + CHUNK));
            let count = chunk.target.len();
            let weights = self.weights_of(sample, first);
            let mut scores = PointScores::of(&chunk, self.weights, objective.smoothing);
            let row_of = |class: usize| {
                let at = output.start + class * chunk.apart + first;
                // SAFETY: each piece has its own points.
                unsafe { gradient.part_mut(at..at + count) }
            };
            for class in 0..channels {
                let (row, power) = (chunk.row(class), row_of(class));
                for i in 0..count {
                    power[i] = exp(row[i] - scores.largest[i]);
                    scores.sum[i] += power[i];
                }
            }
            for i in 0..count {
                scores.sum[i] = (scores.weight[i] + scores.everywhere) / scores.sum[i];
            }
            for class in 0..channels {
                let (target, gradient, number) = (chunk.target, row_of(class), class as f32);
                let everywhere = self.weights.map_or(everywhere, |weights| everywhere * weights[class]);
                for i in 0..count {
                    let aim = if target[i] == number { scores.weight[i] } else { 0.0 };
                    let slope = (gradient[i] * scores.sum[i] - everywhere - aim) * (weights[i] * scale);
                    gradient[i] = if target[i].is_nan() { 0.0 } else { slope };
                }
            }
        }
    }

    #[inline(always)]
    fn differentiate_numbers(&self, piece: usize, gradient: Numbers, scale: f32) {
        for (place, points) in self.numbers(piece) {
            // SAFETY: each piece has its own points.
            let to = unsafe { gradient.part_mut(place) };
            match self.extents.objective.loss {
                Loss::Bce => each(to, &points, |y, t| (sigmoid(y) - t) * scale),
                Loss::Mae => each(to, &points, |y, t| sign(y - t) * scale),
                Loss::Huber => each(to, &points, |y, t| (y - t).clamp(-1.0, 1.0) * scale),
                Loss::Output => each(to, &points, |_, _| scale),
                Loss::Mse | Loss::CrossEntropy => each(to, &points, |y, t| 2.0 * (y - t) * scale),
            }
        }
    }
}

in_wide_registers! {
    /// Adds up a piece.
    fn add_up [] (fields: &Fields, piece: usize, totals: &mut [f64]) {
        match fields.extents.is_of_classes() {
            true => fields.add_classes(piece, totals),
            false => fields.add_numbers(piece, totals),
        }
    }
}

in_wide_registers! {
    /// Writes the gradient of a piece.
    fn differentiate [] (fields: &Fields, piece: usize, gradient: Numbers, scale: f32) {
        match fields.extents.is_of_classes() {
            true => fields.differentiate_classes(piece, gradient, scale),
            false => fields.differentiate_numbers(piece, gradient, scale),
        }
    }
}

/// Some numbers of an output, their targets and what they weigh.
struct ChunkOfNumbers<'a> {
    output: &'a [f32],
    target: &'a [f32],
    weights: [f32; CHUNK],
}

impl ChunkOfNumbers<'_> {
    /// Each point: output, target, weight.
    #[inline(always)]
    fn points(&self) -> impl Iterator<Item = (f32, f32, f32)> {
        let pairs = self.output.iter().zip(self.target);
        pairs.zip(&self.weights).map(|((&y, &t), &weight)| (y, t, weight))
    }
}

/// Scores of some points, and their target.
struct ChunkOfScores<'a> {
    /// Of the sample: a channel after the other.
    output: &'a [f32],
    target: &'a [f32],
    channels: usize,
    apart: usize,
    first: usize,
}

impl<'a> ChunkOfScores<'a> {
    /// Those of a channel.
    #[inline(always)]
    fn row(&self, channel: usize) -> &'a [f32] {
        &self.output[channel * self.apart + self.first..][..self.target.len()]
    }
}

/// What the points of a chunk have of their scores. All but `found` are less the largest.
struct PointScores {
    largest: [f32; CHUNK],
    /// Number of the first of the largest; below 0 where a score is NaN.
    found: [f32; CHUNK],
    /// Σ e^v.
    sum: [f32; CHUNK],
    /// That of the target's class, and the sum of all, each times what is smoothed over its class.
    own: [f32; CHUNK],
    spread: [f32; CHUNK],
    /// What the target's class has by itself of a loss: its weight, less what is smoothed; and what all classes have of
    /// any point.
    weight: [f32; CHUNK],
    everywhere: f32,
}

impl PointScores {
    /// The largest of each point, and what its target weighs.
    #[inline(always)]
    fn of(chunk: &ChunkOfScores, weights: Option<&[f32]>, smoothing: f32) -> PointScores {
        let (zeros, largest) = ([0f32; CHUNK], [f32::NEG_INFINITY; CHUNK]);
        let (found, sum, own, spread, weight) = (zeros, zeros, zeros, zeros, zeros);
        let mut scores = PointScores { largest, found, sum, own, spread, weight, everywhere: 0.0 };
        scores.find_largest(chunk);
        scores.weigh(chunk, weights, smoothing);
        scores
    }

    #[inline(always)]
    fn find_largest(&mut self, chunk: &ChunkOfScores) {
        for channel in 0..chunk.channels {
            let (row, number) = (chunk.row(channel), channel as f32);
            for ((&v, largest), found) in row.iter().zip(&mut self.largest).zip(&mut self.found) {
                let is_more = v > *largest;
                *largest = if is_more { v } else { *largest };
                *found = if is_more { number } else { *found };
            }
        }
    }

    #[inline(always)]
    fn weigh(&mut self, chunk: &ChunkOfScores, weights: Option<&[f32]>, smoothing: f32) {
        let Some(weights) = weights else {
            (self.weight, self.everywhere) = ([1.0 - smoothing; CHUNK], smoothing);
            return;
        };
        self.everywhere = weights.iter().sum::<f32>() * (smoothing / chunk.channels as f32);
        for (class, &of_class) in weights.iter().enumerate() {
            let number = class as f32;
            for (weight, &target) in self.weight.iter_mut().zip(chunk.target) {
                *weight = if target == number { (1.0 - smoothing) * of_class } else { *weight };
            }
        }
    }

    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "several rows side by side, in wide instructions")]
    fn compare(&mut self, chunk: &ChunkOfScores, weights: Option<&[f32]>, smoothing: f32) {
        let (count, target) = (chunk.target.len(), chunk.target);
        for channel in 0..chunk.channels {
            let (row, number) = (chunk.row(channel), channel as f32);
            for i in 0..count {
                let v = row[i] - self.largest[i];
                let is_own = target[i] == number;
                self.sum[i] += exp(v);
                self.own[i] = if is_own { v } else { self.own[i] };
            }
            if smoothing > 0.0 {
                let share =
                    smoothing / chunk.channels as f32 * weights.map_or(1.0, |weights| weights[channel]);
                for i in 0..count {
                    self.spread[i] += (row[i] - self.largest[i]) * share;
                }
            }
        }
        for (found, sum) in self.found.iter_mut().zip(&self.sum) {
            *found = if sum.is_nan() { -1.0 } else { *found };
        }
    }

    /// Adds the losses up by lanes.
    #[inline(always)]
    fn add_losses(&self, target: &[f32], weights: &[f32; CHUNK], losses: &mut [f32; CHUNK]) {
        for i in 0..target.len() {
            let all = ln(self.sum[i]);
            let loss = self.weight[i] * (all - self.own[i]) + (self.everywhere * all - self.spread[i]);
            losses[i] += if target[i].is_nan() { 0.0 } else { weights[i] * loss };
        }
    }
}

/// Adds f(output, target) of each point that has a target, times its weight, to its lane.
#[inline(always)]
fn add(lanes: &mut [f32; CHUNK], points: &ChunkOfNumbers, f: impl Fn(f32, f32) -> f32) {
    for (lane, (y, t, weight)) in lanes.iter_mut().zip(points.points()) {
        let value = f(y, t) * weight;
        *lane += if t.is_nan() { 0.0 } else { value };
    }
}

/// Writes f(output, target) of each point times its weight, 0 where it has no target.
#[inline(always)]
fn each(to: &mut [f32], points: &ChunkOfNumbers, f: impl Fn(f32, f32) -> f32) {
    for (to, (y, t, weight)) in to.iter_mut().zip(points.points()) {
        let value = f(y, t) * weight;
        *to = if t.is_nan() { 0.0 } else { value };
    }
}

#[inline(always)]
fn binary_cross_entropy(y: f32, t: f32) -> f32 {
    let positive = if y > 0.0 { y } else { 0.0 };
    positive - y * t + ln_1p(exp(-y.abs()))
}

#[inline(always)]
fn huber(y: f32, t: f32) -> f32 {
    let error = (y - t).abs();
    if error > 1.0 { error - 0.5 } else { 0.5 * error * error }
}

#[inline(always)]
fn sign(x: f32) -> f32 {
    let of_negative = if x < 0.0 { -1.0 } else { x };
    if x > 0.0 { 1.0 } else { of_negative }
}

#[inline(always)]
fn sigmoid(y: f32) -> f32 {
    let e = exp(-y.abs());
    let above = if y < 0.0 { e } else { 1.0 };
    above / (1.0 + e)
}

// ---- functions that the compiler makes loops in wide registers of; NaN stays NaN ----

/// e^x for x up to 0: 2^n·e^r with |r| up to ln 2 / 2. Below −87 it is that of −87, 1.6e−38.
#[inline(always)]
fn exp(x: f32) -> f32 {
    // Adding it leaves the nearest whole number in the lowest bits.
    const SHIFT: f32 = 12_582_912.0;
    // ln 2 in two parts, the first with few enough bits for exact products.
    const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
    let x = if x < -87.0 { -87.0 } else { x };
    let shifted = x * std::f32::consts::LOG2_E + SHIFT;
    let n = shifted - SHIFT;
    let r = x - n * LN_2[0] - n * LN_2[1];
    // 1/k!, to r⁷.
    let terms = [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0];
    let power = terms.into_iter().fold(1.0 / 5040.0, |sum, term| sum * r + term);
    let exponent = shifted.to_bits().wrapping_sub(SHIFT.to_bits()).wrapping_add(127) << 23;
    power * f32::from_bits(exponent)
}

/// ln of a normal number above 0.
#[inline(always)]
fn ln(x: f32) -> f32 {
    let (bits, fraction) = (x.to_bits(), x.to_bits() & 0x007f_ffff | 0x3f80_0000);
    let n = ((bits >> 23) as i32 - 127) as f32;
    let m = f32::from_bits(fraction);
    let value = n * std::f32::consts::LN_2 + ln_by((m - 1.0) / (m + 1.0));
    if x.is_nan() { x } else { value }
}

/// ln(1 + x) for x from 0 to 1.
#[inline(always)]
fn ln_1p(x: f32) -> f32 {
    ln_by(x / (2.0 + x))
}

/// ln((1 + s)/(1 − s)) = 2·artanh s, for s up to 1/3.
#[inline(always)]
fn ln_by(s: f32) -> f32 {
    let square = s * s;
    let terms = [1.0 / 13.0, 1.0 / 11.0, 1.0 / 9.0, 1.0 / 7.0, 0.2, 1.0 / 3.0, 1.0];
    2.0 * s * terms.into_iter().fold(1.0 / 15.0, |sum, term| sum * square + term)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seven roundings of sums whose terms fall by halves and more.
    #[test]
    fn functions_are_those_of_the_library() {
        for step in 0..=200_000 {
            let x = -(step as f32) / 2300.0;
            let expected = f64::from(x).exp();
            assert!((f64::from(exp(x)) / expected - 1.0).abs() < 3e-7, "exp {x}");
            let x = 1.0 + step as f32 / 7.0;
            assert!((f64::from(ln(x)) - f64::from(x).ln()).abs() <= 3e-7 * f64::from(x).ln(), "ln {x}");
            let x = step as f32 / 200_000.0;
            assert!(
                (f64::from(ln_1p(x)) - f64::from(x).ln_1p()).abs() <= 3e-7 * f64::from(x).ln_1p(),
                "1 + {x}"
            );
        }
        assert!(exp(f32::NAN).is_nan() && ln(f32::NAN).is_nan() && ln_1p(f32::NAN).is_nan());
        assert!(exp(f32::NEG_INFINITY) < 2e-38 && ln(1.0) == 0.0 && exp(0.0) == 1.0);
    }
}
