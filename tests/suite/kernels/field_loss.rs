//! Losses and metrics of fields.

use dltrain::config::Metric;
use dltrain::graph::{BackwardOp, FieldLoss, Op};

use super::{STARTS, close, equal, reference, scalars};
use crate::launch;
use crate::support::kernels::{Buffer, Shape, Start};
use crate::support::objectives::{Weighed, objectives, operands};

/// Parts of unlike lengths, one without a point, more classes than are counted at a time. Sums of up to 600 numbers up
/// to 9 in size, less than twenty one after the other.
#[test]
fn losses_sums_and_gradients_are_those_of_the_definition() {
    for (objective, weighed) in
        objectives().into_iter().flat_map(|of| Weighed::ALL.map(|weighed| (of, weighed)))
    {
        let of = FieldLoss { objective, rows: None };
        let is_of_classes = objective.loss.is_of_classes();
        for (extents, parts) in [([3, 4, 150], 2), ([2, 1, 9], 4), ([1, 130, 40], 1)] {
            let [n, channels, points] = extents;
            let all = operands(objective, &extents, channels > 1, weighed);
            let inputs: Vec<(&[usize], &[f32])> =
                all.iter().map(|(extents, values)| (&extents[..], &values[..])).collect();
            let count = objective.metric.sums(channels);
            let expected = reference(Op::FieldLoss(of), &inputs, &[&[n], &[n, count]]);
            let op = Op::Backward(BackwardOp::FieldLoss(of));
            let slopes = reference(op, &inputs, &[&extents]);

            let width = of.totals(channels);
            let start = STARTS[parts % 2];
            let [output, target] = [0, 1].map(|which| Buffer::of(inputs[which].1, "f32", start));
            let weights = inputs.get(2).map(|(_, weights)| Buffer::f32s(weights));
            let of_target = if is_of_classes { points } else { channels * points };
            let apart = (inputs[1].1.len() / n) as i64;
            let partials = Buffer::empty(n * parts * width, "f32", Start::Aligned);
            let [losses, sums] = [n, n * count].map(|count| Buffer::empty(count, "f32", start));
            let gradient = Buffer::empty(n * channels * points, "f32", start);
            let [n_, channels_, parts_] = [n, channels, parts].map(|number| number as i32);
            let [loss, metric] = [objective.loss as i32, objective.metric as i32];
            let grid = |beside: u32| Shape::one([parts as u32, beside, 1], [256, 1, 1]);
            if is_of_classes {
                let (points, smoothing) = (points as i64, objective.smoothing);
                launch!(
                    "field_cross_entropy",
                    grid(2),
                    &output,
                    &target,
                    weights.as_ref(),
                    &partials,
                    n_,
                    channels_,
                    points,
                    apart,
                    parts_,
                    smoothing,
                    metric
                );
                launch!(
                    "field_cross_entropy_backward",
                    Shape::any(),
                    &output,
                    &target,
                    weights.as_ref(),
                    &gradient,
                    n_,
                    channels_,
                    points,
                    apart,
                    of.divisor(of_target),
                    smoothing,
                    &scalars()
                );
            } else {
                let (all, points) = ((n * of_target) as i64, of_target as i64);
                launch!(
                    "field_numbers",
                    grid(1),
                    &output,
                    &target,
                    &partials,
                    n_,
                    points,
                    apart,
                    parts_,
                    loss,
                    metric
                );
                launch!(
                    "field_numbers_backward",
                    Shape::any(),
                    &output,
                    &target,
                    &gradient,
                    all,
                    points,
                    apart,
                    of.divisor(of_target),
                    loss,
                    &scalars()
                );
            }
            let totals = Buffer::of_bytes(&vec![0; 8 * n * width], Start::Aligned, 8);
            launch!(
                "field_join",
                Shape::any(),
                &partials,
                &totals,
                &losses,
                &sums,
                n_,
                parts_,
                width as i32,
                (parts * width) as i64,
                width as i64,
                of_target as i64,
                metric
            );
            let what = format!("{objective:?} {extents:?} {weighed:?}");
            close(&losses.read("f32"), &expected[0], |v| 3e-6 * (1.0 + v.abs()), &what);
            close(&sums.read("f32"), &expected[1], |v| 3e-6 * (1.0 + v.abs()), &what);
            // Without losses the totals are written, of which the sums are made again.
            let there = Buffer::empty(n * width, "f32", start);
            let wide = [parts * width, width].map(|apart| apart as i64);
            launch!(
                "field_join",
                Shape::any(),
                &partials,
                &totals,
                None,
                &there,
                n_,
                parts_,
                width as i32,
                wide[0],
                wide[1],
                of_target as i64,
                metric
            );
            let [again, means] = [n * count, n].map(|count| Buffer::empty(count, "f32", start));
            let one = [width as i64, (n * width) as i64];
            launch!(
                "field_join",
                Shape::any(),
                &there,
                &totals,
                &means,
                &again,
                n_,
                1i32,
                width as i32,
                one[0],
                one[1],
                1i64,
                metric
            );
            close(&again.read("f32"), &sums.read("f32"), |v| 2e-7 * v.abs(), &what);
            equal(&means.read("f32"), &losses.read("f32"), &what);
            let whole = |values: &[f32]| {
                values.iter().map(|v| if v.fract() == 0.0 { *v } else { 0.5 }).collect::<Vec<_>>()
            };
            if objective.metric == Metric::Iou {
                equal(&whole(&sums.read("f32")), &whole(&expected[1]), &what);
            }
            close(&gradient.read("f32"), &slopes[0], |v| 1e-7 + 2e-6 * v.abs(), &what);
        }
    }
}

/// What is no class makes the loss NaN, and the label one that is none.
#[test]
fn broken_targets_do_not_pass_for_classes() {
    let (output, target) = (Buffer::f32s(&[0.5; 12]), Buffer::f32s(&[0.0, 3.0, 1.0, 2.5]));
    let labels = Buffer::empty(4, "f32", Start::Aligned);
    launch!("field_labels", Shape::any(), &target, &labels, 4i64, 3i32);
    assert_eq!(labels.bytes(), [0, 3, 1, 3i32].map(i32::to_ne_bytes).concat());
    let partials = Buffer::empty(3, "f32", Start::Aligned);
    let shape = Shape::one([1, 1, 1], [256, 1, 1]);
    launch!(
        "field_cross_entropy",
        shape,
        &output,
        &target,
        None,
        &partials,
        1i32,
        3i32,
        4i64,
        4i64,
        1i32,
        0.0f32,
        0i32
    );
    let found = partials.read("f32");
    assert!(found[0].is_nan() && found[1..] == [4.0, 1.0], "{found:?}");
}
