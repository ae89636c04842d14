//! Losses and metrics of fields, by their definitions (`Loss`, `Metric`, `Op::FieldLoss`).

use std::ops::Range;

use ndarray::{Array1, ArrayD};

use super::activation::sigmoid;
use super::{plain, rounded, softmax};
use crate::config::{Loss, Metric, Objective};
use crate::error::{Error, ErrorKind, Result};
use crate::graph::FieldLoss;

/// What an op reads: an output (N,C,P), its target with the weights of points behind each sample's, and weights of
/// classes.
struct Fields<'a> {
    objective: Objective,
    output: &'a [f32],
    target: Vec<f32>,
    weights: Vec<f64>,
    class_weights: Option<&'a [f32]>,
    samples: usize,
    channels: usize,
    points: usize,
}

impl<'a> Fields<'a> {
    fn of(objective: &Objective, inputs: &'a [ArrayD<f32>]) -> Result<Fields<'a>> {
        let shape = inputs[0].shape();
        let mut fields = Fields {
            objective: *objective,
            output: plain(&inputs[0])?,
            target: Vec::new(),
            weights: Vec::new(),
            class_weights: inputs.get(2).map(plain).transpose()?,
            samples: shape[0],
            channels: shape.get(1).copied().unwrap_or(1),
            points: shape.iter().skip(2).product(),
        };
        let (own, both) = (fields.of_sample(0).len(), plain(&inputs[1])?);
        for sample in both.chunks((both.len() / fields.samples.max(1)).max(1)) {
            let (target, weights) = sample.split_at(own);
            let one = if weights.is_empty() { &[1.0][..] } else { weights };
            fields.target.extend(target);
            fields.weights.extend(one.iter().cycle().take(own).map(|&weight| f64::from(weight)));
        }
        Ok(fields)
    }

    fn is_of_classes(&self) -> bool {
        self.objective.loss.is_of_classes()
    }

    /// The points of a sample's target among all.
    fn of_sample(&self, sample: usize) -> Range<usize> {
        let each = if self.is_of_classes() { self.points } else { self.channels * self.points };
        sample * each..(sample + 1) * each
    }

    /// Where the scores of a point lie.
    fn places(&self, point: usize) -> impl Iterator<Item = usize> + use<> {
        let (sample, place, points) = (point / self.points, point % self.points, self.points);
        (sample * self.channels..(sample + 1) * self.channels).map(move |channel| channel * points + place)
    }

    fn scores(&self, point: usize) -> Vec<f64> {
        self.places(point).map(|at| f64::from(self.output[at])).collect()
    }

    /// The class of a point, if it has one.
    fn class(&self, point: usize) -> Result<Option<usize>> {
        let value = self.target[point];
        let found = (0..self.channels).find(|&class| class as f32 == value);
        if !value.is_nan() && found.is_none() {
            let classes = self.channels;
            let text = format!("label {value} in the data, but the model has {classes} classes");
            return Err(Error::new(ErrorKind::Data, text));
        }
        Ok(found)
    }

    /// What the scores of a point shall be, as shares of the classes, each times the weight of its class.
    fn aim(&self, class: usize) -> Vec<f64> {
        let smoothing = f64::from(self.objective.smoothing);
        let share =
            |k: usize| smoothing / self.channels as f64 + if k == class { 1.0 - smoothing } else { 0.0 };
        let weight = |k: usize| self.class_weights.map_or(1.0, |weights| f64::from(weights[k]));
        (0..self.channels).map(|k| share(k) * weight(k)).collect()
    }
}

/// Of an output and its target: the loss and its slope.
fn compare(loss: Loss, output: f64, target: f64) -> [f64; 2] {
    let error = output - target;
    match loss {
        Loss::Bce => {
            let softplus = output.max(0.0) + (-output.abs()).exp().ln_1p();
            [softplus - output * target, sigmoid(output) - target]
        }
        Loss::Mae => [error.abs(), if error == 0.0 { 0.0 } else { error.signum() }],
        Loss::Huber if error.abs() > 1.0 => [error.abs() - 0.5, error.signum()],
        Loss::Huber => [error * error / 2.0, error],
        Loss::Output => [output, 1.0],
        Loss::Mse | Loss::CrossEntropy => [error * error, 2.0 * error],
    }
}

/// What a metric adds up of a number that has a target.
fn measure(objective: &Objective, output: f64, target: f64) -> [f64; 3] {
    let error = if objective.loss == Loss::Bce { sigmoid(output) } else { output } - target;
    match objective.metric {
        Metric::Accuracy => [f64::from(u8::from((output > 0.0) == (target > 0.5))), 0.0, 0.0],
        Metric::Mae => [error.abs(), 0.0, 0.0],
        Metric::R2 => [error * error, target, target * target],
        Metric::Rmse | Metric::Iou | Metric::Top5 | Metric::Loss => [error * error, 0.0, 0.0],
    }
}

/// The first of the largest scores; none where one is no number.
fn predicted(scores: &[f64]) -> Option<usize> {
    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let all_are_numbers = scores.iter().all(|v| !v.is_nan());
    scores.iter().position(|v| *v == largest).filter(|_| all_are_numbers)
}

/// output, target, class weights? → losses, sums; of a part of the rows their totals
pub fn forward(of: &FieldLoss, inputs: &[ArrayD<f32>]) -> Result<Vec<ArrayD<f32>>> {
    let fields = Fields::of(&of.objective, inputs)?;
    let mut totals = Vec::new();
    for sample in 0..fields.samples {
        let mut own =
            if fields.is_of_classes() { of_classes(&fields, sample)? } else { of_numbers(&fields, sample) };
        own[0] /= of.points(fields.of_sample(sample).len()) as f64;
        totals.push(own);
    }
    match of.rows {
        Some(_) => {
            let count = of.totals(fields.channels);
            Ok(vec![rounded(totals.concat(), &[fields.samples, count])?])
        }
        None => shown(of, &totals),
    }
}

/// totals of several places → losses, sums
pub fn means(of: &FieldLoss, totals: &ArrayD<f32>) -> Result<Vec<ArrayD<f32>>> {
    let (samples, count, all) = (totals.shape()[1], totals.shape()[2], plain(totals)?);
    let total = |at: usize| all.chunks(samples * count).map(|part| f64::from(part[at])).sum::<f64>();
    let of_sample = |sample: usize| (sample * count..(sample + 1) * count).map(total).collect();
    shown(of, &(0..samples).map(of_sample).collect::<Vec<_>>())
}

/// Losses and sums of the samples' totals.
fn shown(of: &FieldLoss, totals: &[Vec<f64>]) -> Result<Vec<ArrayD<f32>>> {
    let losses: Vec<f32> = totals.iter().map(|total| total[0] as f32).collect();
    let sums: Vec<Vec<f64>> = totals.iter().map(|total| sums(of.objective.metric, total)).collect();
    let count = sums.first().map_or(0, Vec::len);
    Ok(vec![Array1::from(losses).into_dyn(), rounded(sums.concat(), &[totals.len(), count])?])
}

fn sums(metric: Metric, total: &[f64]) -> Vec<f64> {
    let (points, own) = (total[1], &total[2..]);
    let channels = own.len() / 3;
    if metric != Metric::Iou {
        return own.iter().map(|sum| if points > 0.0 { sum / points } else { 0.0 }).collect();
    }
    let [hits, found, there] = [0, 1, 2].map(|which| &own[which * channels..][..channels]);
    let of_class = |class: usize| {
        let union = found[class] + there[class] - hits[class];
        if union == 0.0 { 1.0 } else { hits[class] / union }
    };
    let mean = (0..channels).map(of_class).sum::<f64>() / channels as f64;
    let less = |of: &[f64]| of.iter().zip(hits).map(|(of, hits)| of - hits).collect::<Vec<_>>();
    [vec![if points > 0.0 { mean } else { 0.0 }], hits.to_vec(), less(found), less(there)].concat()
}

/// What a sample's points add up to (`FieldLoss::totals`). Of IoU points that weigh something are counted.
fn of_classes(fields: &Fields, sample: usize) -> Result<Vec<f64>> {
    let (mut loss, mut points, mut right) = (0.0, 0.0, 0.0);
    let mut counts = [(); 3].map(|()| vec![0.0; fields.channels]);
    for point in fields.of_sample(sample) {
        let Some(class) = fields.class(point)? else { continue };
        let scores = fields.scores(point);
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let logsum = scores.iter().map(|v| (v - largest).exp()).sum::<f64>().ln();
        let (aim, weight) = (fields.aim(class), fields.weights[point]);
        let aimed = scores.iter().zip(&aim).filter(|(_, share)| **share != 0.0);
        loss += weight * aimed.map(|(v, share)| share * (logsum - (v - largest))).sum::<f64>();
        points += weight;
        let found = predicted(&scores);
        if fields.objective.metric == Metric::Top5 {
            let own = scores[class];
            let before = |&(other, v): &(usize, &f64)| *v > own || (*v == own && other < class);
            let rank = scores.iter().enumerate().filter(before).count();
            right += weight * f64::from(u8::from(found.is_some() && rank < 5));
        } else if found == Some(class) {
            right += weight;
        }
        if weight == 0.0 {
            continue;
        }
        if found == Some(class) {
            counts[0][class] += 1.0;
        }
        found.into_iter().for_each(|found| counts[1][found] += 1.0);
        counts[2][class] += 1.0;
    }
    let own = if fields.objective.metric == Metric::Iou { counts.concat() } else { vec![right] };
    Ok([vec![loss, points], own].concat())
}

fn of_numbers(fields: &Fields, sample: usize) -> Vec<f64> {
    let (mut loss, mut points, mut sums) = (0.0, 0.0, [0.0; 3]);
    for point in fields.of_sample(sample) {
        let [output, target] = [fields.output, &fields.target].map(|of| f64::from(of[point]));
        if target.is_nan() {
            continue;
        }
        let weight = fields.weights[point];
        loss += weight * compare(fields.objective.loss, output, target)[0];
        points += weight;
        let more = measure(&fields.objective, output, target);
        sums.iter_mut().zip(more).for_each(|(sum, more)| *sum += weight * more);
    }
    [&[loss, points], &sums[..fields.objective.metric.carried()]].concat()
}

/// output, target, class weights? → d output
pub fn backward(of: &FieldLoss, inputs: &[ArrayD<f32>], scale: f32) -> Result<ArrayD<f32>> {
    let objective = &of.objective;
    let fields = Fields::of(objective, inputs)?;
    let mut gradient = vec![0.0; fields.output.len()];
    for sample in 0..fields.samples {
        let own = fields.of_sample(sample);
        let scale = f64::from(scale) / f64::from(of.divisor(own.len()));
        for point in own {
            let scale = fields.weights[point] * scale;
            if !fields.is_of_classes() {
                let [output, target] = [fields.output, &fields.target].map(|of| f64::from(of[point]));
                let [_, slope] = compare(objective.loss, output, target);
                gradient[point] = if target.is_nan() { 0.0 } else { slope * scale };
            } else if let Some(class) = fields.class(point)? {
                let (shares, aim) = (softmax(&fields.scores(point)), fields.aim(class));
                let all: f64 = aim.iter().sum();
                for ((at, share), aim) in fields.places(point).zip(shares).zip(aim) {
                    gradient[at] = (share * all - aim) * scale;
                }
            }
        }
    }
    rounded(gradient, inputs[0].shape())
}
