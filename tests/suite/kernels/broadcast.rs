//! Stretched tensors, and sums over axes.

use dltrain::graph::{Binary, Op};

use super::{STARTS, close, equal, pairs, random, random_in, reference};
use crate::launch;
use crate::support::kernels::{Argument, Buffer, NUMBERS, Shape, all_rounded};

/// Extents of y, and of a and b, which are stretched where they have 1.
const CASES: [[[usize; 4]; 3]; 5] = [
    [[2, 3, 5, 7], [2, 3, 5, 7], [2, 3, 1, 1]],
    [[2, 3, 4, 8], [2, 1, 1, 8], [2, 3, 4, 8]],
    [[3, 2, 5, 12], [3, 2, 5, 12], [1, 1, 1, 1]],
    [[1, 4, 3, 4], [1, 4, 1, 4], [1, 1, 3, 1]],
    [[1, 1, 1, 9], [1, 1, 1, 9], [1, 1, 1, 9]],
];

/// The strides of a dense tensor, 0 where it is stretched.
fn strides(of: [usize; 4]) -> [i32; 4] {
    let mut stride = 1;
    let mut strides = [0; 4];
    for axis in (0..4).rev() {
        strides[axis] = if of[axis] == 1 { 0 } else { stride };
        stride *= of[axis] as i32;
    }
    strides
}

fn count(of: [usize; 4]) -> usize {
    of.iter().product()
}

fn ints(numbers: [i32; 4]) -> [Argument<'static>; 4] {
    numbers.map(Argument::Int)
}

#[test]
fn stretched_tensors_are_joined_and_written_out() {
    for (t, [y, a, b]) in NUMBERS.into_iter().flat_map(|t| CASES.map(|case| (t, case))) {
        for (start, (kind, of)) in
            STARTS.into_iter().flat_map(|s| Binary::ALL.into_iter().enumerate().map(move |k| (s, k)))
        {
            let two = |count, which| random(count, which).iter().map(|v| 2.5 + v).collect::<Vec<f32>>();
            let [x, z] = [(a, 1), (b, 2)].map(|(of, which)| all_rounded(t, &two(count(of), which)));
            let expected = reference(Op::Binary(of), &[(&a, &x), (&b, &z)], &[&y])[0].clone();
            let [of_x, of_z] = [(&x, 0), (&z, 1)].map(|(values, _)| Buffer::of(values, t, start));
            let to = Buffer::empty(count(y), t, start);
            let (n, [_, e1, e2, e3]) = (count(y) as i64, y.map(|e| e as i32));
            let ([a0, a1, a2, a3], [b0, b1, b2, b3]) = (ints(strides(a)), ints(strides(b)));
            let (name, kind) = (format!("binary_{t}"), kind as i32);
            launch!(
                name,
                Shape::any(),
                &of_x,
                &of_z,
                &to,
                kind,
                n,
                e1,
                e2,
                e3,
                a0,
                a1,
                a2,
                a3,
                b0,
                b1,
                b2,
                b3
            );
            equal(&to.read(t), &all_rounded(t, &expected), &format!("{name} {of:?} {y:?}"));

            let expected = reference(Op::Expand { scale: 0.3 }, &[(&a, &x)], &[&y])[0].clone();
            let (to, [a0, a1, a2, a3]) = (Buffer::empty(count(y), t, start), ints(strides(a)));
            launch!(format!("expand_{t}"), Shape::any(), &of_x, &to, n, e1, e2, e3, a0, a1, a2, a3, 0.3f32);
            equal(&to.read(t), &all_rounded(t, &expected), &format!("expand_{t} {y:?}"));
        }
    }
}

/// At most 60 numbers below 1 a sum, in eight parts.
#[test]
fn axes_are_summed() {
    for (from, to) in pairs() {
        // Extents of two axes that are kept and two that are summed, in the order in which they lie.
        for (extents, kept) in [
            ([3, 5, 7, 4], [true, false, true, false]),
            ([3, 5, 40, 4], [false, true, false, true]),
            ([1, 60, 1, 33], [true, false, true, true]),
            ([1, 35, 1, 9], [true, true, false, false]),
        ] {
            let x = random_in(from, count(extents), 3);
            let y: [usize; 4] = std::array::from_fn(|axis| if kept[axis] { extents[axis] } else { 1 });
            let expected = reference(Op::Sum { scale: 0.7 }, &[(&extents, &x)], &[&y])[0].clone();
            let axes = |which: bool| {
                let all = strides(extents);
                let mut axes = (0..4)
                    .filter(|&axis| kept[axis] == which && extents[axis] > 1)
                    .map(|axis| (extents[axis] as i32, all[axis]));
                let (last, before) = (axes.next_back(), axes.next_back());
                [before, last].map(|axis| axis.unwrap_or((1, 0)))
            };
            let ([(_, k0), (e1, k1)], [(r0, s0), (r1, s1)]) = (axes(true), axes(false));
            let (n, there, sums) =
                (count(y) as i64, Buffer::of(&x, from, STARTS[1]), Buffer::empty(count(y), to, STARTS[0]));
            let shape = Shape { grids: vec![[1, 1, 1], [3, 1, 1]], block: [32, 8, 1] };
            let name = format!("sum_axes_{from}_{to}");
            launch!(name, shape, &there, &sums, n, e1, k0, k1, r0 * r1, r1, s0, s1, 0.7f32);
            let step = if to == "f32" {
                0.0
            } else if to == "bf16" {
                1.0 / 128.0
            } else {
                1.0 / 1024.0
            };
            let bound = |v: f32| 200.0 * 62.0 * f32::EPSILON + step * v.abs();
            close(&sums.read(to), &expected, bound, &name);
        }
    }
}
