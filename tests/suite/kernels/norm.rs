//! Batch normalisation in its parts, column sums, local response normalisation: against the reference device.

use dltrain::graph::{BackwardOp, BatchNorm, LocalResponseNorm, Op};

use super::{STARTS, channels_first, channels_last, close, random, random_in, reference};
use crate::launch;
use crate::support::kernels::{Buffer, NUMBERS, Shape, Start, all_rounded, rounded, step};

/// (N,C,H,W); rows are N·H·W.
const SIZES: [[usize; 4]; 6] =
    [[2, 3, 1, 1], [3, 5, 4, 3], [2, 4, 7, 7], [1, 64, 5, 5], [2, 68, 3, 3], [4, 130, 2, 2]];

const EPSILON: f32 = 1e-3;
const MOMENTUM: f32 = 0.2;

/// One batch, with what is normalised and the parts into which its rows are cut.
struct Case {
    t: &'static str,
    start: Start,
    extents: [usize; 4],
    parts: usize,
    relu: bool,
    x: Vec<f32>,
    dy: Vec<f32>,
    w: Vec<f32>,
    b: Vec<f32>,
}

impl Case {
    fn all() -> impl Iterator<Item = Case> {
        NUMBERS.into_iter().flat_map(|t| {
            SIZES.into_iter().enumerate().map(move |(which, extents)| {
                let n = extents.iter().product();
                let c = extents[1];
                // Means well away from 0, so that what cancels shows.
                let mut x = random(n, which as u32);
                let channel = |i: usize| i / (extents[2] * extents[3]) % c % 16;
                x.iter_mut().enumerate().for_each(|(i, v)| *v += 0.5 * channel(i) as f32 - 1.5);
                let w = random(c, 20).iter().map(|v| v + 1.5).collect();
                let (start, relu) = (STARTS[which % 2], which % 3 > 0);
                let x = all_rounded(t, &x);
                let parts = [1, 2, 7, 3, 90][which % 5];
                Case { t, start, extents, parts, relu, x, dy: random_in(t, n, 30), w, b: random(c, 21) }
            })
        })
    }

    fn c(&self) -> usize {
        self.extents[1]
    }

    fn rows(&self) -> usize {
        self.x.len() / self.c()
    }

    fn planes(&self) -> [usize; 3] {
        let [n, c, h, w] = self.extents;
        [n, c, h * w]
    }

    /// In a buffer, channels innermost.
    fn there(&self, values: &[f32]) -> Buffer {
        Buffer::of(&channels_last(values, self.planes()), self.t, self.start)
    }

    fn room(&self) -> Buffer {
        Buffer::empty(self.x.len(), self.t, self.start)
    }

    fn back(&self, buffer: &Buffer) -> Vec<f32> {
        channels_first(&buffer.read(self.t), self.planes())
    }

    fn norm(&self) -> BatchNorm {
        BatchNorm {
            epsilon: EPSILON,
            momentum: MOMENTUM,
            relu: self.relu,
            add: false,
            given: false,
            rows: None,
            copies: 1,
        }
    }

    fn columns(&self, parts: Option<usize>) -> Shape {
        Shape::columns(self.c(), parts)
    }

    fn numbers(&self, of: usize) -> Buffer {
        Buffer::empty(of * self.c(), "f32", Start::Aligned)
    }

    /// Mean and variance of this batch, (2,C).
    fn moments(&self) -> Buffer {
        let (x, partials, moments) = (self.there(&self.x), self.numbers(2 * self.parts), self.numbers(2));
        let (rows, c, parts) = (self.rows() as i64, self.c() as i32, self.parts as i32);
        let name = format!("batch_norm_partials_{}", self.t);
        launch!(name, self.columns(Some(self.parts)), &x, &partials, rows, c, parts);
        launch!("batch_norm_moments", Shape::join(self.c()), &partials, &moments, rows, c, parts, false);
        moments
    }

    /// Sums of squares of f32 over all rows, then one rounding of a value.
    fn bound(&self) -> impl Fn(f32) -> f32 + use<> {
        let step = step(self.t);
        move |v| 3e-5 + step * v.abs()
    }
}

#[test]
fn a_batch_is_normalised_as_defined() {
    for case in Case::all() {
        let c = case.c();
        let (before_mean, before_variance) = (random(c, 40), random(c, 41));
        let inputs: [(&[usize], &[f32]); 5] = [
            (&case.extents, &case.x),
            (&[c], &case.w),
            (&[c], &case.b),
            (&[c], &before_mean),
            (&[c], &before_variance),
        ];
        let per_channel: &[usize] = &[c];
        let outputs = [&case.extents[..], per_channel, per_channel, per_channel, per_channel];
        let expected = reference(Op::BatchNorm(case.norm()), &inputs, &outputs);

        let moments = case.moments();
        let [mean, variance, after_mean, after_variance, kept] = [1; 5].map(|of| case.numbers(of));
        let before = [&before_mean, &before_variance].map(|values| Buffer::f32s(values));
        let running = [&before[0], &before[1], &after_mean, &after_variance];
        let y = case.room();
        let of_moments =
            Statistics { moments: Some((&moments, 1)), found: [&mean, &variance], running: Some(running) };
        normalise(&case, None, &y, [None, Some(&kept)], &of_moments);
        let what = format!("{} {:?} in {} parts", case.t, case.extents, case.parts);
        for (found, expected) in
            [&mean, &variance, &after_mean, &after_variance].into_iter().zip(&expected[1..])
        {
            close(&found.read("f32"), expected, |v| 1e-6 + 4e-6 * v.abs(), &what);
        }
        // A difference of the statistics shows more where the deviation is small.
        close(&case.back(&y), &all_rounded(case.t, &expected[0]), |v| 10.0 * case.bound()(v), &what);
        assert_eq!(kept.read("f32"), case.b, "b is kept for the way back");

        // Given the same mean and variance it gives the same bits.
        let again = case.room();
        normalise(&case, None, &again, [None; 2], &Statistics::given(&mean, &variance));
        assert!(again.bytes() == y.bytes(), "{what}: with given statistics");
    }
}

/// Sums of f32, whose difference is off by so much of the larger.
#[test]
fn moments_come_of_sums_too() {
    for case in Case::all().filter(|case| case.t == "f32") {
        let (c, rows) = (case.c(), case.rows());
        let (mut sum, mut squares) = (vec![0f64; c], vec![0f64; c]);
        for (i, &x) in case.x.iter().enumerate() {
            let channel = i / (case.extents[2] * case.extents[3]) % c;
            sum[channel] += f64::from(x);
            squares[channel] += f64::from(x).powi(2);
        }
        let moments = case.numbers(2);
        let [sum, squares] = [sum, squares].map(|sums| sums.iter().map(|v| *v as f32).collect::<Vec<f32>>());
        let there = Buffer::f32s(&beside(&sum, &squares));
        launch!("batch_norm_moments_of_sums", Shape::any(), &there, &moments, rows as i64, c as i32);
        let (found, expected) = (moments.read("f32"), case.moments().read("f32"));
        let what = format!("{:?}", case.extents);
        close(&found[..c], &expected[..c], |v| 1e-6 + 1e-6 * v.abs(), &what);
        for channel in 0..c {
            let size = squares[channel] / rows as f32;
            let off = (found[c + channel] - expected[c + channel]).abs();
            assert!(off <= 4e-6 * size + 1e-7, "{what}: variance {off} off where squares are {size}");
        }
    }
    let moments = Buffer::empty(8, "f32", Start::Aligned);
    // The last two are moments in the place of sums.
    let sums = Buffer::f32s(&beside(&[3.0, f32::NAN, 7.0, 5.0], &[2.9, 1.0, -2.0, -0.0]));
    launch!("batch_norm_moments_of_sums", Shape::any(), &sums, &moments, 3i64, 4i32);
    let found = moments.read("f32");
    assert_eq!((found[0], found[4]), (1.0, 0.0), "never below zero");
    assert!(found[1].is_nan() && found[5].is_nan(), "and what is no number stays none");
    assert_eq!([found[2], found[3], found[6], found[7]], [7.0, 5.0, 2.0, 0.0], "moments stay");
}

/// Sums, and from the next multiple of 16 channels on those of squares.
fn beside(sum: &[f32], squares: &[f32]) -> Vec<f32> {
    let mut all = sum.to_vec();
    all.resize(sum.len().next_multiple_of(16), f32::NAN);
    [all, squares.to_vec()].concat()
}

/// What normalises makes the same of sums, or of moments in their place, as of the moments that they come to: to the
/// bit, also of the running statistics.
#[test]
fn sums_are_read_as_their_moments() {
    for case in Case::all() {
        let (c, rows) = (case.c(), case.rows());
        let sum: Vec<f32> = random(c, 71).iter().map(|v| (v - 0.5) * rows as f32).collect();
        let squares: Vec<f32> = random(c, 72).iter().map(|v| (v + 0.3) * rows as f32).collect();
        let squares: Vec<f32> = squares
            .iter()
            .enumerate()
            .map(|(i, v)| match i % 3 {
                2 => -v,
                _ => *v,
            })
            .collect();
        let (sums, moments) = (Buffer::f32s(&beside(&sum, &squares)), case.numbers(2));
        launch!("batch_norm_moments_of_sums", Shape::any(), &sums, &moments, rows as i64, c as i32);
        let before = [73, 74].map(|which| Buffer::f32s(&random(c, which)));
        let of = |given: (&Buffer, usize)| {
            let [mean, variance, after_mean, after_variance] = [1; 4].map(|of| case.numbers(of));
            let y = case.room();
            let running = Some([&before[0], &before[1], &after_mean, &after_variance]);
            let statistics = Statistics { moments: Some(given), found: [&mean, &variance], running };
            normalise(&case, None, &y, [None; 2], &statistics);
            let numbers = [&mean, &variance, &after_mean, &after_variance].map(|found| found.read("f32"));
            (numbers, y.bytes().to_vec())
        };
        assert!(of((&sums, 0)) == of((&moments, 1)), "{} {:?}", case.t, case.extents);
    }
}

/// What `batch_norm_T` is told of a batch.
#[derive(Clone, Copy)]
struct Statistics<'a> {
    /// Of so many ranks.
    moments: Option<(&'a Buffer, usize)>,
    found: [&'a Buffer; 2],
    running: Option<[&'a Buffer; 4]>,
}

impl<'a> Statistics<'a> {
    fn given(mean: &'a Buffer, variance: &'a Buffer) -> Statistics<'a> {
        Statistics { moments: None, found: [mean, variance], running: None }
    }
}

/// `kept`: the mask, and b.
fn normalise(
    case: &Case,
    residual: Option<&Buffer>,
    y: &Buffer,
    kept: [Option<&Buffer>; 2],
    statistics: &Statistics,
) {
    let [running_mean, running_variance, mean_after, variance_after] =
        [0, 1, 2, 3].map(|index| statistics.running.map(|running| running[index]));
    launch!(
        format!("batch_norm_{}", case.t),
        case.columns(None),
        &case.there(&case.x),
        residual,
        y,
        kept[0],
        &Buffer::f32s(&case.w),
        &Buffer::f32s(&case.b),
        kept[1],
        statistics.moments.map(|(moments, _)| moments),
        statistics.moments.map_or(0, |(_, ranks)| ranks as i32),
        statistics.found[0],
        statistics.found[1],
        running_mean,
        running_variance,
        mean_after,
        variance_after,
        MOMENTUM,
        case.rows() as i64,
        case.c() as i32,
        EPSILON,
        case.relu,
    );
}

#[test]
fn ranks_join_their_statistics() {
    for case in Case::all() {
        let c = case.c();
        let ranks = 3;
        let moments: Vec<f32> = random(ranks * 2 * c, 50).iter().map(|v| v.abs() + 0.1).collect();
        let (before_mean, before_variance) = (random(c, 51), random(c, 52));
        let of_ranks: &[usize] = &[ranks, 2, c];
        let one: &[usize] = &[c];
        let inputs: [(&[usize], &[f32]); 6] = [
            (&case.extents, &case.x),
            (one, &case.w),
            (one, &case.b),
            (one, &before_mean),
            (one, &before_variance),
            (of_ranks, &moments),
        ];
        let outputs = [&case.extents[..], one, one, one, one];
        let expected = reference(Op::BatchNorm(BatchNorm { given: true, ..case.norm() }), &inputs, &outputs);
        let [mean, variance] = [1; 2].map(|of| case.numbers(of));
        // Before and after may be the same.
        let running = [&before_mean, &before_variance].map(|values| Buffer::f32s(values));
        let y = case.room();
        let statistics = Statistics {
            moments: Some((&Buffer::f32s(&moments), ranks)),
            found: [&mean, &variance],
            running: Some([&running[0], &running[1], &running[0], &running[1]]),
        };
        normalise(&case, None, &y, [None; 2], &statistics);
        for (found, expected) in [&mean, &variance, &running[0], &running[1]].into_iter().zip(&expected[1..])
        {
            close(&found.read("f32"), expected, |v| 1e-7 + 3e-7 * v.abs(), "statistics of three ranks");
        }
        close(
            &case.back(&y),
            &all_rounded(case.t, &expected[0]),
            case.bound(),
            "with statistics of three ranks",
        );
    }
}

/// What a convolution normalises with as it reads: the statistics are those that `batch_norm_T` finds of the same
/// moments, and scale and shift have the bits of their formula, the shift with the scale that was rounded.
#[test]
fn scale_and_shift_of_a_batch_are_as_defined() {
    for case in Case::all() {
        let c = case.c();
        let running = [random(c, 51), random(c, 52)];
        for ranks in [1, 3] {
            let moments: Vec<f32> = random(ranks * 2 * c, 50).iter().map(|v| v.abs() + 0.1).collect();
            let moments = Buffer::f32s(&moments);
            let [mean, variance, mean_after, variance_after] = [1; 4].map(|of| case.numbers(of));
            let before = running.each_ref().map(|values| Buffer::f32s(values));
            let statistics = Statistics {
                moments: Some((&moments, ranks)),
                found: [&mean, &variance],
                running: Some([&before[0], &before[1], &mean_after, &variance_after]),
            };
            normalise(&case, None, &case.room(), [None; 2], &statistics);
            let expected = [&mean, &variance, &mean_after, &variance_after].map(|found| found.read("f32"));
            let [mean, variance, mean_after, variance_after, kept] = [1; 5].map(|of| case.numbers(of));
            let scale = Buffer::empty(2 * c, case.t, case.start);
            let statistics = Statistics {
                found: [&mean, &variance],
                running: Some([&before[0], &before[1], &mean_after, &variance_after]),
                ..statistics
            };
            scale_of(&case, &scale, Some(&kept), &statistics);
            let what = format!("{} {:?}, {ranks} ranks", case.t, case.extents);
            let found = [&mean, &variance, &mean_after, &variance_after].map(|found| found.read("f32"));
            assert_eq!(found, expected, "{what}: statistics");
            assert_eq!(kept.read("f32"), case.b, "{what}: b is kept for the way back");
            let of = |k: usize| rounded(case.t, case.w[k] / (expected[1][k] + EPSILON).sqrt());
            let scales: Vec<f32> = (0..c).map(of).collect();
            let shift = |k: usize| rounded(case.t, case.b[k] - expected[0][k] * scales[k]);
            let shifts: Vec<f32> = (0..c).map(shift).collect();
            assert_eq!(scale.read(case.t), [scales, shifts].concat(), "{what}: scale and shift");
            // Nobody may want b or running statistics; those may also be moved where they lie.
            let again = Buffer::empty(2 * c, case.t, case.start);
            scale_of(&case, &again, None, &Statistics { running: None, ..statistics });
            assert!(again.bytes() == scale.bytes(), "{what}: without running statistics");
            let there = Some([&before[0], &before[1], &before[0], &before[1]]);
            scale_of(&case, &again, None, &Statistics { running: there, ..statistics });
            let moved = before.each_ref().map(|values| values.read("f32"));
            assert_eq!(moved[..], expected[2..], "{what}: in place");
        }
    }
}

/// Of the moments that `statistics` must have.
fn scale_of(case: &Case, to: &Buffer, kept: Option<&Buffer>, statistics: &Statistics) {
    let (moments, ranks) = statistics.moments.unwrap();
    let [running_mean, running_variance, mean_after, variance_after] =
        [0, 1, 2, 3].map(|index| statistics.running.map(|running| running[index]));
    launch!(
        format!("batch_norm_scale_{}", case.t),
        Shape::any(),
        to,
        &Buffer::f32s(&case.w),
        &Buffer::f32s(&case.b),
        kept,
        moments,
        ranks as i32,
        statistics.found[0],
        statistics.found[1],
        running_mean,
        running_variance,
        mean_after,
        variance_after,
        MOMENTUM,
        case.rows() as i64,
        case.c() as i32,
        EPSILON,
    );
}

/// The two sums and what becomes of them.
fn backward(
    case: &Case,
    mask: Option<&Buffer>,
    mean: &[f32],
    variance: &[f32],
    ranks: usize,
) -> [Vec<f32>; 3] {
    let (t, c, rows, parts) = (case.t, case.c() as i32, case.rows() as i64, case.parts as i32);
    let (x, dy) = (case.there(&case.x), case.there(&case.dy));
    let [w, b, mean, variance] = [&case.w[..], &case.b, mean, variance].map(Buffer::f32s);
    let (partials, dz) = (case.numbers(2 * case.parts), case.room());
    let [sums, dw, db] = [2, 1, 1].map(|of| case.numbers(of));
    launch!(
        format!("batch_norm_sums_{t}"),
        case.columns(Some(case.parts)),
        &dy,
        &x,
        mask,
        &w,
        &b,
        &mean,
        &variance,
        mask.map(|_| &dz),
        &partials,
        rows,
        c,
        parts,
        EPSILON,
        case.relu,
    );
    launch!("batch_norm_sums_join", Shape::join(case.c()), &partials, &sums, &dw, &db, c, parts);
    let of_one = sums.read("f32");
    assert_eq!(of_one, [db.read("f32"), dw.read("f32")].concat());
    // All ranks alike.
    let all = Buffer::f32s(&of_one.repeat(ranks));
    let dx = case.room();
    // What the mask has cut is not cut again.
    launch!(
        format!("batch_norm_backward_{t}"),
        case.columns(None),
        if mask.is_some() { &dz } else { &dy },
        &x,
        &w,
        &b,
        &mean,
        &variance,
        &all,
        ranks as i32,
        &dx,
        rows,
        c,
        EPSILON,
        case.relu && mask.is_none(),
    );
    if mask.is_some() {
        let kept = case.back(&dz);
        let cut = kept.iter().zip(&case.dy).all(|(kept, dy)| kept == dy || (case.relu && *kept == 0.0));
        assert!(cut, "the gradient of what is added is that of y, or 0");
    }
    [case.back(&dx), dw.read("f32"), db.read("f32")]
}

#[test]
fn the_gradient_goes_back_as_defined() {
    for case in Case::all() {
        let c = case.c();
        let (mean, variance): (Vec<f32>, Vec<f32>) =
            (0..c).map(|c| (0.5 * (c % 16) as f32 - 1.4, 0.2 + 0.01 * c as f32)).unzip();
        let one: &[usize] = &[c];
        let inputs: [(&[usize], &[f32]); 6] = [
            (&case.extents, &case.dy),
            (&case.extents, &case.x),
            (one, &case.w),
            (one, &case.b),
            (one, &mean),
            (one, &variance),
        ];
        let sums =
            reference(Op::Backward(BackwardOp::BatchNormSums(case.norm())), &inputs, &[&[2, c], one, one]);
        for ranks in [1, 3] {
            let of_all = sums[0].repeat(ranks);
            let of_ranks: &[usize] = &[ranks, 2, c];
            let mut with_sums = inputs.to_vec();
            with_sums.push((of_ranks, &of_all));
            let dx = reference(
                Op::Backward(BackwardOp::BatchNorm(BatchNorm { given: true, ..case.norm() })),
                &with_sums,
                &[&case.extents],
            );
            let [found_dx, found_dw, found_db] = backward(&case, None, &mean, &variance, ranks);
            let bound = |v: f32| 2e-5 * (case.rows() as f32).sqrt() + 1e-5 * v.abs();
            close(&found_dw, &sums[1], bound, "dw");
            close(&found_db, &sums[2], bound, "db");
            close(&found_dx, &all_rounded(case.t, &dx[0]), |v| 4.0 * case.bound()(v), "dx");
        }
    }
}

/// A residual is added before the ReLU, and the way back is told by bits where y was positive.
#[test]
fn a_sum_behind_the_normalisation_goes_with_it() {
    for case in Case::all() {
        let c = case.c();
        let added = random_in(case.t, case.x.len(), 60);
        let (mean, variance) = (vec![0.1; c], vec![0.5; c]);
        let one: &[usize] = &[c];
        let plain = BatchNorm { relu: false, ..case.norm() };
        let inputs: [(&[usize], &[f32]); 5] =
            [(&case.extents, &case.x), (one, &case.w), (one, &case.b), (one, &mean), (one, &variance)];
        let normal = reference(Op::BatchNormInference(plain), &inputs, &[&case.extents]);
        let sum = normal[0].iter().zip(&added).map(|(a, b)| if case.relu { (a + b).max(0.0) } else { a + b });
        let expected: Vec<f32> = sum.collect();
        let y = case.room();
        let [mean_there, variance_there] = [&mean, &variance].map(|v| Buffer::f32s(v));
        // A byte for as many channels as 16 bytes hold.
        let group = if case.t == "f32" { 4 } else { 8 };
        let bits = Buffer::of_bytes(&vec![0xff; case.rows() * c.div_ceil(group)], case.start, 1);
        let statistics = Statistics::given(&mean_there, &variance_there);
        normalise(&case, Some(&case.there(&added)), &y, [Some(&bits), None], &statistics);
        let y_there = y.read(case.t);
        for (at, byte) in bits.bytes().into_iter().enumerate() {
            let (row, first) = (at / c.div_ceil(group), at % c.div_ceil(group) * group);
            let bit = |k: usize| first + k < c && y_there[row * c + first + k] > 0.0;
            let expected = (0..8).filter(|k| *k < group && bit(*k)).fold(0u8, |bits, k| bits | 1 << k);
            assert_eq!(byte, expected, "{} {:?}: row {row}, channels from {first}", case.t, case.extents);
        }
        close(&case.back(&y), &all_rounded(case.t, &expected), case.bound(), "with a residual");

        // The reference's way back takes a mask in place of y.
        let mask: Vec<f32> = case.back(&y).iter().map(|&y| if y > 0.0 { 1.0 } else { 0.0 }).collect();
        let inputs: [(&[usize], &[f32]); 6] = [
            (&case.extents, &case.dy),
            (&case.extents, &case.x),
            (one, &case.w),
            (one, &mean),
            (one, &variance),
            (&case.extents, &mask),
        ];
        let back =
            reference(Op::Backward(BackwardOp::BatchNorm(case.norm())), &inputs, &[&case.extents, one, one]);
        let [dx, dw, db] = backward(&case, case.relu.then_some(&bits), &mean, &variance, 1);
        let bound = |v: f32| 1e-4 + 1e-5 * v.abs();
        close(&dw, &back[1], bound, "dw");
        close(&db, &back[2], bound, "db");
        close(&dx, &all_rounded(case.t, &back[0]), |v| 10.0 * case.bound()(v), "dx");
    }
}

#[test]
fn columns_are_summed() {
    for case in Case::all() {
        let rows: Vec<f32> = channels_last(&case.x, case.planes());
        let (partials, sums) = (case.numbers(case.parts), case.numbers(1));
        let (n, c, parts) = (case.rows() as i64, case.c() as i32, case.parts as i32);
        let name = format!("column_sums_{}", case.t);
        launch!(name, case.columns(Some(case.parts)), &case.there(&case.x), &partials, n, c, parts);
        launch!("column_sums_join", Shape::join(case.c()), &partials, &sums, c, parts);
        let sum = |c: usize| rows.iter().skip(c).step_by(case.c()).map(|&v| f64::from(v)).sum::<f64>() as f32;
        let expected: Vec<f32> = (0..case.c()).map(sum).collect();
        close(&sums.read("f32"), &expected, |v| 1e-5 + 1e-5 * v.abs(), "column sums");
    }
}

#[test]
fn responses_are_normalised_as_defined_both_ways() {
    for case in Case::all() {
        let norm = LocalResponseNorm { size: 5, alpha: 0.5, beta: 0.75, k: 1.0 };
        let x = &case.x;
        let same = &case.extents[..];
        let expected = reference(Op::LocalResponseNorm(norm), &[(same, x)], &[same, same]);
        let (y, response) = (case.room(), Buffer::empty(x.len(), "f32", Start::Aligned));
        let (rows, c) = (case.rows() as i64, case.c() as i32);
        let there = case.there(x);
        launch!(
            format!("lrn_{}", case.t),
            Shape::any(),
            &there,
            &y,
            &response,
            rows,
            c,
            norm.size as i32,
            norm.alpha,
            norm.beta,
            norm.k,
        );
        close(&case.back(&y), &all_rounded(case.t, &expected[0]), case.bound(), "response");

        let op = Op::Backward(BackwardOp::LocalResponseNorm(norm));
        let back = reference(op, &[(same, &case.dy), (same, x), (same, &expected[1])], &[same]);
        let dx = case.room();
        launch!(
            format!("lrn_backward_{}", case.t),
            Shape::any(),
            &case.there(&case.dy),
            &there,
            &response,
            &dx,
            rows,
            c,
            norm.size as i32,
            norm.alpha,
            norm.beta,
        );
        close(&case.back(&dx), &all_rounded(case.t, &back[0]), case.bound(), "response back");
    }
}

/// What a batch with one row has no variance for is not a number here either.
#[test]
fn one_row_has_no_variance() {
    let x = Buffer::f32s(&[2.0]);
    let moments = Buffer::f32s(&[2.0, 0.0]);
    let [mean, variance, after_mean, after_variance, y] = [(); 5].map(|()| Buffer::f32s(&[9.0]));
    let [one, before] = [(); 2].map(|()| Buffer::f32s(&[1.0]));
    let name = "batch_norm_f32";
    let run = |before: Option<&Buffer>, after: [Option<&Buffer>; 2]| {
        launch!(
            name,
            Shape::columns(1, None),
            &x,
            None,
            &y,
            None,
            &one,
            &one,
            None,
            &moments,
            1i32,
            &mean,
            &variance,
            before,
            before,
            after[0],
            after[1],
            0.5f32,
            1i64,
            1i32,
            EPSILON,
            false,
        );
    };
    run(Some(&before), [Some(&after_mean), Some(&after_variance)]);
    assert_eq!((mean.read("f32")[0], variance.read("f32")[0], after_mean.read("f32")[0]), (2.0, 0.0, 1.5));
    assert!(after_variance.read("f32")[0].is_nan());
    assert_eq!(y.read("f32")[0], 1.0);
    run(None, [None; 2]);
}
