//! Softmax.

use dltrain::graph::{BackwardOp, Op};

use super::{STARTS, close, random, random_in, reference};
use crate::launch;
use crate::support::kernels::{Buffer, NUMBERS, Shape, all_rounded};

/// Sums of at most 600 powers, each off by a few roundings.
#[test]
fn rows_become_shares() {
    for t in NUMBERS {
        for (rows, width) in [(1, 1), (5, 7), (3, 600), (40, 33)] {
            let nine_times: Vec<f32> = random(rows * width, 1).iter().map(|v| 9.0 * v).collect();
            let (x, dy) = (all_rounded(t, &nine_times), random_in(t, rows * width, 2));
            let (extents, start) = ([rows, width], STARTS[width % 2]);
            let step = match t {
                "bf16" => 1.0 / 128.0,
                "f16" => 1.0 / 1024.0,
                _ => 0.0,
            };
            // The smallest step of an f16 besides.
            let bound = |v: f32| step * v.abs() + 5e-5;
            let y = reference(Op::Softmax, &[(&extents, &x)], &[&extents])[0].clone();
            let place = Buffer::of(&x, t, start);
            launch!(format!("softmax_{t}"), Shape::any(), &place, &place, rows as i64, width as i32);
            close(&place.read(t), &y, bound, &format!("softmax_{t} {rows}x{width}"));

            let y = all_rounded(t, &y);
            let dx =
                reference(Op::Backward(BackwardOp::Softmax), &[(&extents, &dy), (&extents, &y)], &[&extents])
                    [0]
                .clone();
            let (place, of_y) = (Buffer::of(&dy, t, start), Buffer::of(&y, t, start));
            launch!(
                format!("softmax_backward_{t}"),
                Shape::any(),
                &place,
                &of_y,
                &place,
                rows as i64,
                width as i32
            );
            close(&place.read(t), &dx, bound, &format!("softmax_backward_{t} {rows}x{width}"));
        }
    }
}
