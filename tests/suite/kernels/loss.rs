//! The loss, and dropout.

use dltrain::graph::{BackwardOp, Op};

use super::{
    SCALARS, STARTS, channels_first, channels_last, close, equal, random_in, reference, scalars, stream,
};
use crate::launch;
use crate::support::kernels::{Buffer, NUMBERS, Shape, Start, all_rounded, rounded, step};

const WEIGHT: f32 = 0.4;

fn labels(rows: usize, classes: usize) -> Vec<i32> {
    let mut stream = stream(70);
    // Some samples only fill the batch.
    (0..rows).map(|row| if row % 5 == 3 { -1 } else { stream.below(classes as u32) as i32 }).collect()
}

fn labels_there(labels: &[i32]) -> Buffer {
    let bytes: Vec<u8> = labels.iter().flat_map(|label| label.to_ne_bytes()).collect();
    Buffer::of_bytes(&bytes, Start::Aligned, 4)
}

/// Type, rows, classes, smoothing, and whether samples are mixed.
fn cases() -> impl Iterator<Item = (&'static str, usize, usize, f32, bool)> {
    let sizes = [
        (1, 1, 0.0),
        (40, 7, 0.1),
        (12, 10, 0.0),
        (6, 1000, 0.1),
        (5, 257, 0.3),
        (9, 128, 0.2),
        (3, 129, 0.0),
    ];
    let of = move |t| sizes.into_iter().map(move |(rows, classes, s)| (t, rows, classes, s));
    NUMBERS.into_iter().flat_map(of).flat_map(|(t, rows, classes, smoothing)| {
        [false, true].map(|mixed| (t, rows, classes, smoothing, mixed))
    })
}

/// Other labels, and shares of the first; with half of it the first is right.
fn mixture(rows: usize, classes: usize) -> [Vec<f32>; 2] {
    let others = labels(rows + 1, classes)[1..].iter().map(|&label| label.max(0) as f32).collect();
    let shares = [1.0, 0.0, 0.5, 0.3, 0.875].into_iter().cycle().take(rows).collect();
    [others, shares]
}

/// What the reference is given besides logits and labels, and a kernel.
fn mixture_there([others, shares]: &[Vec<f32>; 2]) -> [Buffer; 2] {
    let others: Vec<i32> = others.iter().map(|&label| label as i32).collect();
    [labels_there(&others), Buffer::f32s(shares)]
}

/// Logits of which many are equal, the largest too where there are few, and some large.
fn logits(t: &str, rows: usize, classes: usize) -> Vec<f32> {
    let levels = if classes < 10 { 1.0 } else { 8.0 };
    random_in(t, rows * classes, 71)
        .iter()
        .map(|v| rounded(t, (v * levels).round() * 32.0 / levels))
        .collect()
}

#[test]
fn losses_and_hits_are_those_of_the_definition() {
    for (t, rows, classes, smoothing, mixed) in cases() {
        let (logits, labels) = (logits(t, rows, classes), labels(rows, classes));
        let as_numbers: Vec<f32> = labels.iter().map(|&label| label as f32).collect();
        let mixture = mixed.then(|| mixture(rows, classes));
        let more = mixture.as_ref().map(mixture_there);
        let op = Op::SoftmaxCrossEntropy { smoothing, weight: WEIGHT };
        let (both, per_row): (&[usize], &[usize]) = (&[rows, classes], &[rows]);
        let mut inputs: Vec<(&[usize], &[f32])> = vec![(both, &logits), (per_row, &as_numbers)];
        inputs.extend(mixture.iter().flatten().map(|values| (per_row, values.as_slice())));
        let expected = reference(op, &inputs, &[per_row, per_row]);
        let [losses, hits, hits5] = [(); 3].map(|()| Buffer::empty(rows, "f32", Start::Aligned));
        let there = Buffer::of(&logits, t, STARTS[rows % 2]);
        launch!(
            format!("softmax_cross_entropy_{t}"),
            Shape::any(),
            &there,
            &labels_there(&labels),
            more.as_ref().map(|[others, _]| others),
            more.as_ref().map(|[_, shares]| shares),
            &losses,
            &hits,
            &hits5,
            rows as i32,
            classes as i32,
            smoothing,
            WEIGHT,
        );
        // Logits of up to 32 in f32, and a sum of a thousand.
        close(&losses.read("f32"), &expected[0], |v| 2e-5 + 2e-6 * v.abs(), "loss");
        equal(&hits.read("f32"), &expected[1], "hits");
        if mixed {
            continue;
        }
        // The place of the label's logit when all are sorted, of equals the first one first.
        let place = |row: usize| -> Option<usize> {
            let (own, label) = (&logits[row * classes..][..classes], usize::try_from(labels[row]).ok()?);
            let ahead = |(k, v): (usize, &f32)| *v > own[label] || (*v == own[label] && k < label);
            Some(own.iter().enumerate().filter(|&at| ahead(at)).count())
        };
        let five = (0..rows).map(|row| if place(row).is_some_and(|at| at < 5) { 1.0 } else { 0.0 });
        equal(&hits5.read("f32"), &five.collect::<Vec<f32>>(), "hits among five");
    }
}

#[test]
fn the_losses_gradient_is_that_of_the_definition() {
    for (t, rows, classes, smoothing, mixed) in cases() {
        let (logits, labels) = (logits(t, rows, classes), labels(rows, classes));
        let as_numbers: Vec<f32> = labels.iter().map(|&label| label as f32).collect();
        let mixture = mixed.then(|| mixture(rows, classes));
        let more = mixture.as_ref().map(mixture_there);
        let op = Op::Backward(BackwardOp::SoftmaxCrossEntropy { smoothing, weight: WEIGHT });
        let (both, per_row): (&[usize], &[usize]) = (&[rows, classes], &[rows]);
        let mut inputs: Vec<(&[usize], &[f32])> = vec![(both, &logits), (per_row, &as_numbers)];
        inputs.extend(mixture.iter().flatten().map(|values| (per_row, values.as_slice())));
        let expected = reference(op, &inputs, &[both]);
        let dlogits = Buffer::empty(rows * classes, t, STARTS[rows % 2]);
        launch!(
            format!("softmax_cross_entropy_backward_{t}"),
            Shape::any(),
            &Buffer::of(&logits, t, STARTS[rows % 2]),
            &labels_there(&labels),
            more.as_ref().map(|[others, _]| others),
            more.as_ref().map(|[_, shares]| shares),
            &dlogits,
            rows as i32,
            classes as i32,
            smoothing,
            WEIGHT,
            &scalars(),
        );
        let expected = all_rounded(t, &expected[0]);
        // Halves below the normal ones are apart by 2^-24.
        let least = if t == "f16" { 6e-8 } else { 0.0 };
        close(&dlogits.read(t), &expected, |v| 2e-7 + least + step(t) * v.abs(), "gradient");
    }
}

#[test]
fn broken_scores_and_labels_do_not_pass_for_numbers() {
    let launch = |logits: [f32; 3], label: i32| {
        let [losses, hits, hits5] = [(); 3].map(|()| Buffer::empty(1, "f32", Start::Aligned));
        let (scores, label) = (Buffer::f32s(&logits), labels_there(&[label]));
        let name = "softmax_cross_entropy_f32";
        launch!(
            name,
            Shape::any(),
            &scores,
            &label,
            None,
            None,
            &losses,
            &hits,
            &hits5,
            1i32,
            3i32,
            0.0f32,
            1.0f32
        );
        [losses, hits, hits5].map(|of| of.read("f32")[0])
    };
    let [loss, hit, hit5] = launch([f32::NAN, 1.0, 2.0], 0);
    assert!(loss.is_nan() && hit == 0.0 && hit5 == 0.0);
    let [loss, hit, _] = launch([0.0, 1.0, 2.0], 3);
    assert!(loss.is_nan() && hit == 0.0, "a label beyond the classes");
}

#[test]
fn dropout_is_the_reference_devices() {
    for t in NUMBERS {
        let shapes = [(3, 10, 1), (2, 4096, 1), (2, 7, 9), (3, 8, 16)];
        for ((n, c, plane), whole) in
            shapes.into_iter().flat_map(|shape| [false, true].map(|whole| (shape, whole)))
        {
            let x = random_in(t, n * c * plane, 80);
            let (p, layer) = (0.3, 5);
            let extents = [n, c, plane, 1];
            let expected = reference(Op::Dropout { p, layer, whole }, &[(&extents, &x)], &[&extents]);
            assert!(whole || expected[0].contains(&0.0));
            let there = Buffer::of(&channels_last(&x, [n, c, plane]), t, STARTS[plane % 2]);
            let y = Buffer::empty(x.len(), t, STARTS[plane % 2]);
            let (samples, c_, plane_) = (n as i64, c as i32, plane as i32);
            launch!(
                format!("dropout_{t}"),
                Shape::any(),
                &there,
                &y,
                samples,
                c_,
                plane_,
                p,
                layer as i32,
                i32::from(whole),
                &scalars()
            );
            let found = channels_first(&y.read(t), [n, c, plane]);
            equal(&found, &all_rounded(t, &expected[0]), &format!("step {} of {t}", SCALARS.step));
        }
    }
}

/// By what they add up to, as the host finds it: each may be finite and the sum not.
#[test]
fn losses_that_add_up_to_no_finite_number_are_found_wherever_they_are() {
    for (n, place) in [(1, 0), (1030, 0), (1030, 1029), (1030, 515)] {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 3e38, 1.0] {
            let mut values = random_in("f32", n, 74);
            values[place] = bad;
            values[n / 3] += if bad == 3e38 { 1e38 } else { 0.0 };
            let sum = values.iter().map(|&value| f64::from(value)).sum::<f64>() as f32;
            let (losses, broken) = (Buffer::f32s(&values), Buffer::of_bytes(&[0; 4], STARTS[0], 4));
            launch!("check_losses", Shape::one([1; 3], [256, 1, 1]), &losses, n as i64, &broken);
            assert_eq!(broken.bytes() == [1, 0, 0, 0], !sum.is_finite(), "{bad} among {n}");
            assert_eq!(sum.is_finite(), bad == 1.0);
        }
    }
}
