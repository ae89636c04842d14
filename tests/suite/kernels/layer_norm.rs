//! Layer normalisation.

use dltrain::graph::{BackwardOp, Op};

use super::{STARTS, close, random, random_in, reference};
use crate::launch;
use crate::support::kernels::{Argument, Buffer, NUMBERS, Shape};

const EPSILON: f32 = 1e-5;

/// Rows of 1 to 600 numbers in [−1, 1): a sum is off by some tens of roundings of 2⁻²⁴ of its terms, and what is
/// divided by a deviation of 0.3 at the least by ten times as much; a row of one number is 0 times one over √ε.
#[test]
fn rows_are_normalised_and_differentiated() {
    for t in NUMBERS {
        for ((rows, width), affine) in [(1, 9), (5, 1), (7, 300), (40, 33), (3, 600)]
            .into_iter()
            .flat_map(|shape| [false, true].map(|affine| (shape, affine)))
        {
            let (x, dy) = (random_in(t, rows * width, 1), random_in(t, rows * width, 2));
            let (w, b) = (random(width, 3), random(width, 4));
            let (all, row): (&[usize], &[usize]) = (&[rows, width], &[width]);
            let op = Op::LayerNorm { epsilon: EPSILON, affine };
            let mut inputs = vec![(all, &x[..])];
            inputs.extend(affine.then_some([(row, &w[..]), (row, &b[..])]).into_iter().flatten());
            let expected = reference(op, &inputs, &[all, &[rows], &[rows]]);
            let start = STARTS[width % 2];
            let there = |values: &[f32]| Buffer::of(values, t, start);
            let (of_x, of_w, of_b) = (there(&x), Buffer::f32s(&w), Buffer::f32s(&b));
            let [mean, variance] = [(); 2].map(|()| Buffer::empty(rows, "f32", STARTS[0]));
            let given = |of| if affine { Argument::Pointer(of) } else { Argument::Null };
            let (n, k) = (rows as i64, width as i32);
            let step = match t {
                "bf16" => 1.0 / 128.0,
                "f16" => 1.0 / 1024.0,
                _ => 1e-5,
            };
            let bound = |v: f32| step * v.abs() + 1e-4;
            let y = Buffer::empty(rows * width, t, start);
            launch!(
                format!("layer_norm_{t}"),
                Shape::any(),
                &of_x,
                &y,
                given(&of_w),
                given(&of_b),
                &mean,
                &variance,
                n,
                k,
                EPSILON
            );
            close(&y.read(t), &expected[0], bound, &format!("layer_norm_{t} {rows}x{width}"));
            close(&mean.read("f32"), &expected[1], |_| 1e-6, "mean");
            close(&variance.read("f32"), &expected[2], |_| 1e-5, "variance");

            let mut inputs = vec![(all, &dy[..]), (all, &x[..])];
            inputs.extend(affine.then_some((row, &w[..])));
            inputs.extend([(&all[..1], &expected[1][..]), (&all[..1], &expected[2][..])]);
            let outputs = [all, row, row];
            let op = Op::Backward(BackwardOp::LayerNorm { epsilon: EPSILON, affine });
            let gradients = reference(op, &inputs, &outputs[..if affine { 3 } else { 1 }]);
            let (of_dy, dx) = (there(&dy), Buffer::empty(rows * width, t, start));
            // One over √ε multiplies what is left of a single number.
            let bound = |v: f32| step * v.abs() + if width == 1 { 1e-3 } else { 1e-4 };
            let [mean, variance] = [1, 2].map(|which| Buffer::f32s(&expected[which]));
            launch!(
                format!("layer_norm_backward_{t}"),
                Shape::any(),
                &of_dy,
                &of_x,
                given(&of_w),
                &mean,
                &variance,
                &dx,
                n,
                k,
                EPSILON
            );
            close(&dx.read(t), &gradients[0], bound, &format!("layer_norm_backward_{t} {rows}x{width}"));
            if !affine {
                continue;
            }
            for parts in [1usize, 3] {
                let [of_w, of_b] = [(); 2].map(|()| Buffer::empty(parts * width, "f32", STARTS[0]));
                let grids =
                    vec![[width.div_ceil(32) as u32, parts as u32, 1], [width.div_ceil(32) as u32, 1, 1]];
                let shape = Shape { grids, block: [32, 8, 1] };
                launch!(
                    format!("layer_norm_sums_{t}"),
                    shape,
                    &of_dy,
                    &of_x,
                    &mean,
                    &variance,
                    &of_w,
                    &of_b,
                    n,
                    k,
                    parts as i32,
                    EPSILON
                );
                for (sums, gradient) in [(of_w, &gradients[1]), (of_b, &gradients[2])] {
                    let sums = sums.read("f32");
                    let column = |k: usize| (0..parts).map(|part| sums[part * width + k]).sum::<f32>();
                    close(&(0..width).map(column).collect::<Vec<_>>(), gradient, |_| 1e-3, "sums");
                }
            }
        }
    }
}
