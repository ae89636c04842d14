//! Pooling, against the reference device.

use dltrain::graph::{BackwardOp, Op, Pool, Volume};

use super::{STARTS, channels_first, channels_last, close, random_in, reference, stream};
use crate::launch;
use crate::support::kernels::{Argument, Buffer, NUMBERS, Shape, Start, all_rounded, step};

/// Batch, channels, depth, height, width.
type Extents = [usize; 5];

/// Before and after.
struct Case {
    pool: Pool,
    x: Extents,
    y: Extents,
}

impl Case {
    /// One of many random geometries, of images or of cubes, each at both starts and with channels that divide by four
    /// or not.
    fn random(which: u32) -> Case {
        let mut stream = stream(which);
        let mut below = |n: u32| stream.below(n) as usize;
        let deep = which % 4 > 1;
        loop {
            let mut axis = |kernels, extents| {
                let kernel = 1 + below(kernels);
                [kernel, 1 + below(3), below(2).min(kernel / 2), 1 + below(extents)]
            };
            let axes = [if deep { axis(3, 5) } else { [1, 1, 0, 1] }, axis(3, 9), axis(4, 9)];
            let [kernel, stride, padding, size] = [0, 1, 2, 3].map(|of| axes.map(|axis| axis[of]));
            let (count_include_pad, ceil) = (below(2) == 0, below(2) == 0);
            let pool = Pool { kernel, stride, padding, count_include_pad, ceil };
            let (n, c) = (1 + below(2), [3, 4, 8, 20][below(4)]);
            if let Some(windows) = pool.windows(size) {
                return Case { pool, x: extents(n, c, size), y: extents(n, c, windows) };
            }
        }
    }

    fn geometry(&self) -> Vec<Argument<'static>> {
        let Pool { kernel, stride, padding, .. } = self.pool;
        let mut all = sizes(self.x, self.y);
        all.extend([kernel, stride, padding].into_iter().flatten().map(int));
        all
    }

    /// As the kernels take it that are of images alone.
    fn flat(&self) -> [Argument<'static>; 6] {
        let ([n, c, _, h, w], [.., oh, ow]) = (self.x, self.y);
        [n, h, w, c, oh, ow].map(int)
    }

    fn run(&self, kernel: &str, before: Vec<Argument>, after: Option<bool>) {
        let mut arguments = before;
        arguments.extend(self.geometry());
        arguments.extend(after.map(Argument::from));
        crate::support::kernels::launch(kernel, &Shape::any(), &arguments);
    }
}

fn int(v: usize) -> Argument<'static> {
    Argument::Int(v as i32)
}

fn extents(n: usize, c: usize, [d, h, w]: Volume) -> Extents {
    [n, c, d, h, w]
}

/// Of `x` and `y`, as kernels take them.
fn sizes([n, c, d, h, w]: Extents, [_, _, od, oh, ow]: Extents) -> Vec<Argument<'static>> {
    [n, d, h, w, c, od, oh, ow].map(int).into()
}

fn planes([n, c, d, h, w]: Extents) -> [usize; 3] {
    [n, c, d * h * w]
}

fn last(values: &[f32], extents: Extents) -> Vec<f32> {
    channels_last(values, planes(extents))
}

fn count(extents: Extents) -> usize {
    extents.iter().product()
}

/// Numbers of which many are equal.
fn steps(extents: Extents, which: u32) -> Vec<f32> {
    let mut stream = stream(which);
    (0..count(extents)).map(|_| stream.below(5) as f32 - 2.0).collect()
}

fn cases() -> impl Iterator<Item = (Case, Start, &'static str)> {
    (0..40).map(|which| (Case::random(which), STARTS[which as usize % 2], NUMBERS[which as usize % 3]))
}

#[test]
fn the_largest_wins_and_its_gradient_goes_back_to_it() {
    for (case, start, t) in cases() {
        let x = steps(case.x, 1);
        let expected = reference(Op::MaxPool(case.pool), &[(&case.x, &x)], &[&case.y, &case.y]);
        let input = Buffer::of(&last(&x, case.x), t, start);
        let y = Buffer::empty(count(case.y), t, start);
        let winners = Buffer::of_bytes(&vec![0xff; count(case.y)], start, 1);
        let pointers = || vec![(&input).into(), (&y).into(), (&winners).into()];
        case.run(&format!("max_pool_{t}"), pointers(), None);
        assert_eq!(channels_first(&y.read(t), planes(case.y)), expected[0], "{:?}", case.pool);

        let dy = steps(case.y, 2);
        // The reference keeps its winners as numbers, in f32 as the test gives them.
        let winners_there: Vec<f32> = expected[1].clone();
        let op = Op::Backward(BackwardOp::MaxPool(case.pool));
        let back = reference(op, &[(&case.y, &dy), (&case.y, &winners_there)], &[&case.x]);
        let (dy, dx) = (Buffer::of(&last(&dy, case.y), t, start), Buffer::empty(count(case.x), t, start));
        let pointers = vec![(&dy).into(), (&winners).into(), (&dx).into()];
        case.run(&format!("max_pool_backward_{t}"), pointers, None);
        assert_eq!(channels_first(&dx.read(t), planes(case.x)), back[0], "{:?} of {:?}", case.pool, case.x);

        let alone = Buffer::empty(count(case.y), t, start);
        case.run(&format!("max_pool_{t}"), vec![(&input).into(), (&alone).into(), Argument::Null], None);
        assert!(alone.bytes() == y.bytes(), "without winners the result is another");
    }
}

#[test]
fn a_broken_number_wins_its_windows() {
    let pool = Pool::square(2);
    let case = Case { pool, x: [1, 4, 1, 2, 4], y: [1, 4, 1, 1, 2] };
    let mut x = vec![1.0; 32];
    x[0] = f32::NAN;
    let (input, y) = (Buffer::f32s(&last(&x, case.x)), Buffer::empty(8, "f32", STARTS[0]));
    case.run("max_pool_f32", vec![(&input).into(), (&y).into(), Argument::Null], None);
    let y = channels_first(&y.read("f32"), planes(case.y));
    assert!(y[0].is_nan() && y[1..].iter().all(|&v| v == 1.0), "{y:?}");
}

/// The kernels whose geometry is known when they are compiled, on images of many sizes.
#[test]
fn common_poolings_are_those_of_the_definition_both_ways() {
    let sizes = [[8, 8], [7, 9], [5, 4], [3, 3], [2, 6]];
    for (which, (name, [kernel, padding])) in
        [("2x2s2", [2, 0]), ("3x3s2", [3, 0]), ("3x3s2p1", [3, 1])].into_iter().enumerate()
    {
        for (at, (size, ceil)) in sizes.into_iter().flat_map(|size| [(size, false), (size, true)]).enumerate()
        {
            let t = NUMBERS[(which + at) % 3];
            let group = if t == "f32" { 4 } else { 8 };
            let pool =
                Pool { count_include_pad: false, ceil, ..Pool::square(kernel).stride(2).padding(padding) };
            let size = [1, size[0], size[1]];
            let Some(windows) = pool.windows(size) else { continue };
            let (n, c) = (1 + at % 2, group * [1, 3, 2][at % 3]);
            let case = Case { pool, x: extents(n, c, size), y: extents(n, c, windows) };
            let run = |kernel: String, mut arguments: Vec<Argument>| {
                arguments.extend(case.flat());
                crate::support::kernels::launch(&kernel, &Shape::shared(c / group), &arguments);
            };
            let x = steps(case.x, at as u32);
            let expected = reference(Op::MaxPool(pool), &[(&case.x, &x)], &[&case.y, &case.y]);
            let (input, y) =
                (Buffer::of(&last(&x, case.x), t, STARTS[0]), Buffer::empty(count(case.y), t, STARTS[0]));
            let winners = Buffer::of_bytes(&vec![0xff; count(case.y)], STARTS[0], 1);
            run(format!("max_pool_{name}_{t}"), vec![(&input).into(), (&y).into(), (&winners).into()]);
            let what = format!("{name} of {:?}, ceil {ceil}", case.x);
            assert_eq!(channels_first(&y.read(t), planes(case.y)), expected[0], "{what}");

            let dy = steps(case.y, 100 + at as u32);
            let inputs: [(&[usize], &[f32]); 2] = [(&case.y, &dy), (&case.y, &expected[1])];
            let back = reference(Op::Backward(BackwardOp::MaxPool(pool)), &inputs, &[&case.x]);
            let (dy, dx) =
                (Buffer::of(&last(&dy, case.y), t, STARTS[0]), Buffer::empty(count(case.x), t, STARTS[0]));
            run(format!("max_pool_backward_{name}_{t}"), vec![(&dy).into(), (&winners).into(), (&dx).into()]);
            assert_eq!(channels_first(&dx.read(t), planes(case.x)), back[0], "back of {what}");

            let alone = Buffer::empty(count(case.y), t, STARTS[0]);
            run(format!("max_pool_{name}_{t}"), vec![(&input).into(), (&alone).into(), Argument::Null]);
            assert!(alone.bytes() == y.bytes(), "without winners the result is another");

            let mut broken = x.clone();
            broken[x.len() / 2] = f32::NAN;
            let expected = reference(Op::MaxPool(pool), &[(&case.x, &broken)], &[&case.y, &case.y]);
            let (input, y) = (
                Buffer::of(&last(&broken, case.x), t, STARTS[0]),
                Buffer::empty(count(case.y), t, STARTS[0]),
            );
            run(format!("max_pool_{name}_{t}"), vec![(&input).into(), (&y).into(), Argument::Null]);
            close(&channels_first(&y.read(t), planes(case.y)), &expected[0], |_| 0.0, "a broken number wins");
        }
    }
}

/// Sums of at most 81 numbers below 1 in f32, and one rounding.
fn bound(t: &str) -> impl Fn(f32) -> f32 {
    let step = step(t);
    move |v| 1e-5 + step * v.abs()
}

#[test]
fn averages_are_those_of_the_definition_both_ways() {
    for (case, start, t) in cases() {
        let x = random_in(t, count(case.x), 3);
        let expected = reference(Op::AvgPool(case.pool), &[(&case.x, &x)], &[&case.y]);
        let (input, y) = (Buffer::of(&last(&x, case.x), t, start), Buffer::empty(count(case.y), t, start));
        let include = Some(case.pool.count_include_pad);
        case.run(&format!("average_pool_{t}"), vec![(&input).into(), (&y).into()], include);
        let found = channels_first(&y.read(t), planes(case.y));
        close(&found, &all_rounded(t, &expected[0]), bound(t), &format!("{:?}", case.pool));

        let dy = random_in(t, count(case.y), 4);
        let expected = reference(Op::Backward(BackwardOp::AvgPool(case.pool)), &[(&case.y, &dy)], &[&case.x]);
        let (dy, dx) = (Buffer::of(&last(&dy, case.y), t, start), Buffer::empty(count(case.x), t, start));
        case.run(&format!("average_pool_backward_{t}"), vec![(&dy).into(), (&dx).into()], include);
        let found = channels_first(&dx.read(t), planes(case.x));
        close(&found, &all_rounded(t, &expected[0]), bound(t), &format!("{:?} back", case.pool));
    }
}

#[test]
fn adaptive_averages_are_those_of_the_definition_both_ways() {
    let cases = [
        ([1, 7, 7], [1, 1, 1]),
        ([1, 5, 8], [1, 3, 3]),
        ([1, 2, 3], [1, 6, 7]),
        ([1, 6, 6], [1, 6, 6]),
        ([4, 3, 5], [1, 1, 1]),
        ([5, 2, 7], [2, 3, 4]),
    ];
    for (which, (from, to)) in cases.into_iter().enumerate() {
        for (t, c) in NUMBERS.into_iter().zip([3, 4, 20]) {
            let (x, y) = (extents(2, c, from), extents(2, c, to));
            let start = STARTS[which % 2];
            let run = |kernel: String, from: &Buffer, to: &Buffer| {
                let mut arguments = vec![from.into(), to.into()];
                arguments.extend(sizes(x, y));
                crate::support::kernels::launch(&kernel, &Shape::any(), &arguments);
            };
            let values = random_in(t, count(x), 5);
            let expected = reference(Op::AdaptiveAvgPool, &[(&x, &values)], &[&y]);
            let (input, output) =
                (Buffer::of(&last(&values, x), t, start), Buffer::empty(count(y), t, start));
            run(format!("adaptive_pool_{t}"), &input, &output);
            close(
                &channels_first(&output.read(t), planes(y)),
                &all_rounded(t, &expected[0]),
                bound(t),
                "adaptive",
            );

            let dy = random_in(t, count(y), 6);
            let expected = reference(Op::Backward(BackwardOp::AdaptiveAvgPool), &[(&y, &dy)], &[&x]);
            let (input, output) = (Buffer::of(&last(&dy, y), t, start), Buffer::empty(count(x), t, start));
            run(format!("adaptive_pool_backward_{t}"), &input, &output);
            close(
                &channels_first(&output.read(t), planes(x)),
                &all_rounded(t, &expected[0]),
                bound(t),
                "adaptive back",
            );
        }
    }
}

#[test]
fn a_window_that_a_byte_cannot_number_is_refused() {
    // In a process of its own: the kernel ends it, as it would end the GPU's context.
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kernels::pooling::child_with_a_window_too_large", "--ignored"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stderr);
    assert!(!child.status.success() && said.contains("kernel max_pool_f32"), "{said}");
}

#[test]
#[ignore = "a child of another test"]
fn child_with_a_window_too_large() {
    let pool = Pool::square(17);
    let case = Case { pool, x: [1, 1, 1, 17, 17], y: [1; 5] };
    let (x, y) = (Buffer::f32s(&[0.0; 289]), Buffer::f32s(&[0.0]));
    launch!("fill_f32", Shape::any(), &x, 289i64, 1.0f32);
    case.run("max_pool_f32", vec![(&x).into(), (&y).into(), Argument::Null], None);
}

#[test]
fn a_mean_over_all_pixels_is_that_of_the_definition_both_ways() {
    for [n, c, d, h, w] in
        [[3, 8, 1, 7, 7], [2, 24, 1, 1, 3], [5, 40, 1, 5, 2], [1, 16, 1, 3, 3], [2, 8, 3, 2, 5]]
    {
        for t in NUMBERS {
            let (x, y) = ([n, c, d, h, w], [n, c, 1, 1, 1]);
            let shape = Shape::shared(c / if t == "f32" { 4 } else { 8 });
            let run = |kernel: String, from: &Buffer, to: &Buffer| {
                let ints = [n, d * h * w, c].map(int);
                let arguments: Vec<Argument> = [from.into(), to.into()].into_iter().chain(ints).collect();
                crate::support::kernels::launch(&kernel, &shape, &arguments);
            };
            let values = random_in(t, count(x), 7);
            let expected = reference(Op::AdaptiveAvgPool, &[(&x, &values)], &[&y]);
            let (input, output) =
                (Buffer::of(&last(&values, x), t, STARTS[0]), Buffer::empty(count(y), t, STARTS[0]));
            run(format!("global_pool_{t}"), &input, &output);
            close(&output.read(t), &all_rounded(t, &expected[0]), bound(t), "mean");

            let dy = random_in(t, count(y), 8);
            let expected = reference(Op::Backward(BackwardOp::AdaptiveAvgPool), &[(&y, &dy)], &[&x]);
            let (input, output) = (Buffer::of(&dy, t, STARTS[0]), Buffer::empty(count(x), t, STARTS[0]));
            run(format!("global_pool_backward_{t}"), &input, &output);
            let found = channels_first(&output.read(t), planes(x));
            close(&found, &all_rounded(t, &expected[0]), bound(t), "mean back");
        }
    }
}
