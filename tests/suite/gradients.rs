//! Every backward op of the reference device against finite differences of its forward op.
//!
//! For a forward op y(x) and fixed random r, the backward op must give d(r·y)/dx. Ops that are linear in the operand
//! (convolution, linear, average pooling, dropout) have exact central differences at any step h, so h = 1 leaves
//! rounding alone; the others are tested where they are smooth over the step.

use crate::support;

use std::slice::from_ref;

use dltrain::device::Scalars;
use dltrain::device::reference::Reference;
use dltrain::graph::{
    Activation, BackwardOp, BatchNorm, Binary, Builder, Conv, DType, FieldLoss, Init, LocalResponseNorm,
    MatMul, Op, Permutation, Pool, Shape, Spec, TensorId, dims, windows,
};
use dltrain::plan::{Options, Parameter, Plan, plan};
use dltrain::random::{Purpose, Stream, key};
use proptest::prelude::*;
use support::bound::Bound;
use support::objectives::{Weighed, objectives, operands};
use support::{Operand, f32s, in_domain, run_with};

const SCALARS: Scalars = Scalars {
    seed: 5,
    step: 3,
    first_sample: 7,
    gradient_scale: 0.25,
    rescale: 1.0,
    learning_rate: 0.1,
    update: 1,
};

fn random(shape: Shape, which: u32) -> Operand {
    let mut stream = Stream::new(key(11, Purpose::Synthetic, which));
    let values = (0..shape.elements()).map(|_| stream.uniform() * 2.0 - 1.0).collect();
    (f32s(shape), values)
}

fn run(op: Op, inputs: &[Operand], outputs: &[Spec]) -> Vec<Vec<f32>> {
    run_with(&SCALARS, op, inputs, outputs)
}

/// A forward op with its operands, and the weights r of the sum r·y that is differentiated.
struct Case<'a> {
    op: Op,
    inputs: &'a [Operand],
    outputs: &'a [Spec],
    r: &'a [f32],
}

impl Case<'_> {
    fn value(&self, inputs: &[Operand]) -> f64 {
        let y = &run(self.op, inputs, self.outputs)[0];
        y.iter().zip(self.r).map(|(&y, &r)| f64::from(y) * f64::from(r)).sum()
    }

    /// Compares `gradient` with central differences of r·y over operand `which`. Each y carries a rounding of at
    /// most 2⁻²⁴|y|, so a difference is off by at most 2·Σ|r·y|·2⁻²⁴ / 2h, and the gradient by a few roundings of
    /// its own; `truncation` bounds h²/6 times the third derivative.
    fn check(&self, which: usize, gradient: &[f32], h: f32, truncation: f64) {
        let y = &run(self.op, self.inputs, self.outputs)[0];
        let largest: f64 = y.iter().zip(self.r).map(|(y, r)| f64::from((y.abs() + h) * r.abs())).sum();
        let bound = largest * 2f64.powi(-23) / f64::from(h) + truncation;
        for (element, &exact) in gradient.iter().enumerate() {
            let at = |delta: f32| {
                let mut moved = self.inputs.to_vec();
                moved[which].1[element] += delta;
                self.value(&moved)
            };
            // The step really taken, after rounding.
            let x = self.inputs[which].1[element];
            let numeric = (at(h) - at(-h)) / (f64::from(x + h) - f64::from(x - h));
            let error = (numeric - f64::from(exact)).abs();
            let allowed = bound + 4.0 * f64::from(exact.abs()) * 2f64.powi(-23);
            let op = self.op;
            assert!(error <= allowed, "{op:?} operand {which} element {element}: {numeric} vs {exact}");
        }
    }
}

/// Images, or cubes where there is more than one plane.
fn images(n: usize, c: usize, [d, h, w]: [usize; 3]) -> Shape {
    if d > 1 { dims([n, c, d, h, w]) } else { dims([n, c, h, w]) }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn convolution(
        n in 1usize..3, groups in 1usize..3, c in 1usize..3, o in 1usize..3, h in 3usize..6, w in 3usize..6,
        kh in 1usize..4, kw in 1usize..4, kd in 1usize..3, stride in 1usize..3, dilation in 1usize..3, ph in 0usize..2,
        pw in 0usize..2, bias: bool,
    ) {
        // Three weights far apart would reach beyond the narrowest image.
        let dilation = [1, 1, if kw < 3 { dilation } else { 1 }];
        let (kernel, stride, padding) = ([kd, kh, kw], [1, stride, 1], [kd / 2, ph, pw]);
        let conv = Conv { kernel, stride, padding, dilation, groups, bias, relu: false };
        let size = [if kd > 1 { 3 } else { 1 }, h, w];
        let to = conv.windows(size).unwrap();
        let x = random(images(n, c * groups, size), 1);
        let weight = random(x.0.shape.with_spatial([o * groups, c], kernel), 2);
        let mut inputs = vec![x.clone(), weight.clone()];
        if bias {
            inputs.push(random(dims([o * groups]), 3));
        }
        let y = [f32s(x.0.shape.with_spatial([n, o * groups], to))];
        let r = random(y[0].shape.clone(), 4);
        let dx = &run(Op::ConvBackwardData(conv), &[r.clone(), weight], from_ref(&x.0))[0];
        let specs: Vec<Spec> = inputs[1..].iter().map(|(spec, _)| spec.clone()).collect();
        let dw = run(Op::Backward(BackwardOp::ConvWeights(conv)), &[x, r.clone()], &specs);
        let case = Case { op: Op::Conv(conv), inputs: &inputs, outputs: &y, r: &r.1 };
        case.check(0, dx, 1.0, 0.0);
        for (operand, gradient) in dw.iter().enumerate() {
            case.check(operand + 1, gradient, 1.0, 0.0);
        }
    }

    /// Of a transposed convolution the convolution is the gradient.
    #[test]
    fn transposed_convolution(
        n in 1usize..3, groups in 1usize..3, c in 1usize..3, o in 1usize..3, h in 1usize..4, w in 1usize..4,
        kh in 1usize..4, kd in 1usize..3, stride in 1usize..3, more in 0usize..2,
    ) {
        let conv = Conv { kernel: [kd, kh, 2], stride: [kd, stride, 1], groups, bias: false, ..Conv::square(1) };
        let from = [if kd > 1 { 2 } else { 1 }, h, w];
        let size = conv.transposed(from, [kd - 1, more.min(stride - 1), 0]).unwrap();
        let x = random(images(n, o * groups, from), 1);
        let weight = random(x.0.shape.with_spatial([o * groups, c], conv.kernel), 2);
        let inputs = [x.clone(), weight.clone()];
        let y = [f32s(x.0.shape.with_spatial([n, c * groups], size))];
        let r = random(y[0].shape.clone(), 4);
        let case = Case { op: Op::ConvBackwardData(conv), inputs: &inputs, outputs: &y, r: &r.1 };
        case.check(0, &run(Op::Conv(conv), &[r.clone(), weight.clone()], from_ref(&x.0))[0], 1.0, 0.0);
        let dw = &run(Op::Backward(BackwardOp::ConvWeights(conv)), &[r.clone(), x], from_ref(&weight.0))[0];
        case.check(1, dw, 1.0, 0.0);
    }

    #[test]
    fn linear(n in 1usize..4, c in 1usize..4, side in 1usize..4, o in 1usize..6) {
        let x = random(dims([n, c, side, side]), 1);
        let weight = random(dims([o, c * side * side]), 2);
        let inputs = [x.clone(), weight.clone(), random(dims([o]), 3)];
        let y = [f32s(dims([n, o]))];
        let r = random(y[0].shape.clone(), 4);
        let backward = Op::Backward(BackwardOp::LinearData { bias: true });
        let dx = &run(backward, &[r.clone(), weight.clone()], from_ref(&x.0))[0];
        let specs = [weight.0, inputs[2].0.clone()];
        let dw = run(Op::Backward(BackwardOp::LinearWeights { bias: true }), &[x, r.clone()], &specs);
        let op = Op::Linear { bias: true, relu: false };
        let case = Case { op, inputs: &inputs, outputs: &y, r: &r.1 };
        case.check(0, dx, 1.0, 0.0);
        case.check(1, &dw[0], 1.0, 0.0);
        case.check(2, &dw[1], 1.0, 0.0);
    }

    #[test]
    fn average_pooling(
        d in 1usize..4, h in 2usize..6, w in 2usize..6, k in 1usize..3, stride in 1usize..3, pad: bool, count: bool,
    ) {
        let padding = [usize::from(pad && d > 1), usize::from(pad && k > 1), 0];
        let kernel = [d.min(2), k, 2];
        let pool = Pool { kernel, stride: [1, stride, 1], padding, count_include_pad: count, ceil: false };
        let to = windows([d, h, w], pool.kernel, pool.stride, pool.padding).unwrap();
        let x = random(images(2, 2, [d, h, w]), 1);
        let y = [f32s(x.0.shape.with_spatial([2, 2], to))];
        let r = random(y[0].shape.clone(), 2);
        let dx = &run(Op::Backward(BackwardOp::AvgPool(pool)), from_ref(&r), from_ref(&x.0))[0];
        Case { op: Op::AvgPool(pool), inputs: &[x], outputs: &y, r: &r.1 }.check(0, dx, 1.0, 0.0);
    }

    /// Also to more elements than there are.
    #[test]
    fn adaptive_average_pooling(
        d in 1usize..4, h in 1usize..8, w in 1usize..8, od in 1usize..4, oh in 1usize..8, ow in 1usize..8,
    ) {
        let x = random(images(2, 2, [d, h, w]), 1);
        let y = [f32s(x.0.shape.with_spatial([2, 2], [if d > 1 { od } else { 1 }, oh, ow]))];
        let r = random(y[0].shape.clone(), 2);
        let dx = &run(Op::Backward(BackwardOp::AdaptiveAvgPool), from_ref(&r), from_ref(&x.0))[0];
        Case { op: Op::AdaptiveAvgPool, inputs: &[x], outputs: &y, r: &r.1 }.check(0, dx, 1.0, 0.0);
    }

    /// Inputs are distinct multiples of 1/64, so that a step of 1/256 changes no winner and loses no bit.
    #[test]
    fn max_pooling(
        d in 1usize..5, h in 2usize..6, w in 2usize..6, k in 1usize..3, stride in 1usize..3, pad: bool, ceil: bool,
    ) {
        let pool = Pool { ceil, ..Pool::square(k).stride(stride).padding(usize::from(pad && k > 1)) };
        let pool = if d > 1 { pool.cubic() } else { pool };
        let to = pool.windows([d, h, w]).unwrap();
        let shape = images(1, 2, [d, h, w]);
        let order = Stream::new(key(3, Purpose::Shuffle, 1)).permutation(shape.elements());
        let x = (f32s(shape), order.iter().map(|&v| v as f32 / 64.0 - 0.5).collect::<Vec<f32>>());
        let y = f32s(x.0.shape.with_spatial([1, 2], to));
        let outputs = [y.clone(), Spec { dtype: DType::Saved, ..y }];
        let r = random(outputs[0].shape.clone(), 2);
        let winners = run(Op::MaxPool(pool), from_ref(&x), &outputs)[1].clone();
        let backward = [r.clone(), (outputs[1].clone(), winners)];
        let dx = &run(Op::Backward(BackwardOp::MaxPool(pool)), &backward, from_ref(&x.0))[0];
        Case { op: Op::MaxPool(pool), inputs: &[x], outputs: &outputs, r: &r.1 }.check(0, dx, 1.0 / 256.0, 0.0);
    }

    /// Weight and bias are linear. Moved by t, element j makes r·y the quotient (A + B·t)/s(t)·w + const. with
    /// s² = σ² + 2·t·(xⱼ − mean)/n + t²·(n − 1)/n², |A| ≤ nσ, |B| ≤ 2; differentiated three times that is below
    /// 48·|w|/(√n·σ³) at t = 0, and below twice that within a step of 1/64.
    #[test]
    fn batch_norm(n in 2usize..4, c in 1usize..4, d in 1usize..3, h in 2usize..4, w in 2usize..5) {
        let op = Op::BatchNorm(BatchNorm { epsilon: 1e-2, ..BatchNorm::default() });
        let x = random(images(n, c, [d, h, w]), 1);
        let [weight, bias, mean, variance] = [2, 3, 4, 5].map(|which| random(dims([c]), which));
        let vector = f32s(dims([c]));
        let outputs = [x.0.clone(), vector.clone(), vector.clone(), vector.clone(), vector.clone()];
        let inputs = [x.clone(), weight.clone(), bias, mean, variance];
        let made = run(op, &inputs, &outputs);
        let r = random(images(n, c, [d, h, w]), 6);
        let statistics = [(vector.clone(), made[1].clone()), (vector.clone(), made[2].clone())];
        let backward = [vec![r.clone(), x.clone(), weight.clone()], statistics.to_vec()].concat();
        let Op::BatchNorm(norm) = op else { unreachable!() };
        let gradients = run(Op::Backward(BackwardOp::BatchNorm(norm)), &backward, &[x.0, vector.clone(), vector]);
        let case = Case { op, inputs: &inputs, outputs: &outputs, r: &r.1 };
        let least = made[2].iter().fold(f32::INFINITY, |least, v| least.min(*v)) + norm.epsilon;
        let third = 96.0 / ((n * d * h * w) as f64).sqrt() / f64::from(least).powf(1.5);
        case.check(0, &gradients[0], 1.0 / 64.0, third / 6.0 / 64f64.powi(2));
        case.check(1, &gradients[1], 1.0, 0.0);
        case.check(2, &gradients[2], 1.0, 0.0);
    }

    /// Moved by t, an element has a part in y of `size` channels: x/r^β with r ≥ k = 1, x² ≤ 1 and alpha, β ≤ 1. Three
    /// derivatives of r^(−β)·x with respect to one x stay below 64 in size for each.
    #[test]
    fn local_response_norm(c in 1usize..7, half in 0usize..3, alpha in 0f32..1.0, beta in 0.1f32..1.0) {
        let norm = LocalResponseNorm { size: 2 * half + 1, alpha, beta, k: 1.0 };
        let x = random(dims([2, c, 2, 2]), 1);
        let outputs = [x.0.clone(), Spec { dtype: DType::Saved, ..x.0.clone() }];
        let r = random(x.0.shape.clone(), 2);
        let op = Op::LocalResponseNorm(norm);
        let saved = (outputs[1].clone(), run(op, from_ref(&x), &outputs)[1].clone());
        let backward = [r.clone(), x.clone(), saved];
        let dx = &run(Op::Backward(BackwardOp::LocalResponseNorm(norm)), &backward, from_ref(&x.0))[0];
        let third = 64.0 * norm.size as f64;
        Case { op, inputs: &[x], outputs: &outputs, r: &r.1 }.check(0, dx, 1.0 / 64.0, third / 6.0 / 64f64.powi(2));
    }

    #[test]
    fn concatenation(a in 1usize..4, b in 1usize..4, h in 1usize..4) {
        let parts = [random(dims([2, a, h, 3]), 1), random(dims([2, b, h, 3]), 2)];
        let y = [f32s(dims([2, a + b, h, 3]))];
        let r = random(y[0].shape.clone(), 3);
        let case = Case { op: Op::Concat { axis: 1 }, inputs: &parts, outputs: &y, r: &r.1 };
        for (which, from) in [(0, 0), (1, a)] {
            let gradient = &run(Op::Slice { axis: 1, from }, from_ref(&r), from_ref(&parts[which].0))[0];
            case.check(which, gradient, 1.0, 0.0);
        }
    }

    /// Sums over axes and stretching are each other's gradients.
    #[test]
    fn sums_and_stretching(extents in prop::array::uniform4(1usize..4), kept: [bool; 4], scale in -2f32..2.0) {
        let shape = |kept: [bool; 4]| dims(std::array::from_fn::<_, 4, _>(|i| if kept[i] { extents[i] } else { 1 }));
        let (large, small) = (random(shape([true; 4]), 1), random(shape(kept), 2));
        let dx = &run(Op::Expand { scale }, from_ref(&small), from_ref(&large.0))[0];
        let (outputs, inputs) = ([small.0.clone()], [large.clone()]);
        Case { op: Op::Sum { scale }, inputs: &inputs, outputs: &outputs, r: &small.1 }.check(0, dx, 1.0, 0.0);
        let dx = &run(Op::Sum { scale }, from_ref(&large), from_ref(&small.0))[0];
        let (outputs, inputs) = ([large.0.clone()], [small.clone()]);
        Case { op: Op::Expand { scale }, inputs: &inputs, outputs: &outputs, r: &large.1 }.check(0, dx, 1.0, 0.0);
    }

    /// The third derivative in one of 4 numbers or more whose deviation is 0.2 at the least is below 500 in size.
    #[test]
    fn layer_normalisation(rows in 1usize..4, width in 4usize..9, affine: bool) {
        let mut x = random(dims([rows, width]), 1);
        // Far apart, whatever is drawn.
        x.1.iter_mut().enumerate().for_each(|(i, x)| *x = 0.5 * *x + (i % 2) as f32);
        let mut inputs = vec![x.clone()];
        inputs.extend(affine.then(|| [random(dims([width]), 2), random(dims([width]), 3)]).into_iter().flatten());
        let outputs = [x.0.clone(), f32s(dims([rows])), f32s(dims([rows]))];
        let (r, op) = (random(x.0.shape.clone(), 4), Op::LayerNorm { epsilon: 1e-3, affine });
        let made = run(op, &inputs, &outputs);
        let mut read = vec![r.clone(), x.clone()];
        read.extend(inputs.get(1).cloned());
        read.extend([1, 2].map(|which| (outputs[which].clone(), made[which].clone())));
        let specs: Vec<Spec> = inputs.iter().map(|(spec, _)| spec.clone()).collect();
        let gradients = run(Op::Backward(BackwardOp::LayerNorm { epsilon: 1e-3, affine }), &read, &specs);
        for (which, gradient) in gradients.iter().enumerate() {
            let case = Case { op, inputs: &inputs, outputs: &outputs, r: &r.1 };
            case.check(which, gradient, 1.0 / 64.0, if which == 0 { 500.0 / 6.0 / 64f64.powi(2) } else { 1e-5 });
        }
    }

    #[test]
    fn products_of_matrices(
        count in 1usize..3, [m, k, n] in prop::array::uniform3(1usize..5), transposed: [bool; 2], scale in 0.1f32..2.0,
    ) {
        let kept = |rows: usize, columns: usize, transposed: bool| match transposed {
            true => dims([count, columns, rows]),
            false => dims([count, rows, columns]),
        };
        let inputs = [random(kept(m, k, transposed[0]), 1), random(kept(k, n, transposed[1]), 2)];
        let (outputs, of) = ([f32s(dims([count, m, n]))], MatMul { transposed, scale });
        let r = random(outputs[0].shape.clone(), 3);
        let case = Case { op: Op::MatMul(of), inputs: &inputs, outputs: &outputs, r: &r.1 };
        // The ops that differentiation adds (graph/ops/matmul.rs).
        let product = |a: &Operand, b: &Operand, transposed: [bool; 2], like: &Operand| {
            run(Op::MatMul(MatMul { transposed, scale }), &[a.clone(), b.clone()], from_ref(&like.0))[0].clone()
        };
        let ([a, b], [ta, tb]) = (&inputs, transposed);
        let da = if ta { product(b, &r, [tb, true], a) } else { product(&r, b, [false, !tb], a) };
        let db = if tb { product(&r, a, [true, ta], b) } else { product(a, &r, [!ta, false], b) };
        case.check(0, &da, 1.0, 0.0);
        case.check(1, &db, 1.0, 0.0);
    }

    /// Third derivatives of a softmax are below 1/8 in size, of up to six of them.
    #[test]
    fn softmax(rows in 1usize..4, width in 1usize..6) {
        let (x, r) = (random(dims([rows, width]), 1), random(dims([rows, width]), 2));
        let y = run(Op::Softmax, from_ref(&x), from_ref(&x.0))[0].clone();
        let dx = &run(Op::Backward(BackwardOp::Softmax), &[r.clone(), (x.0.clone(), y)], from_ref(&x.0))[0];
        let outputs = [x.0.clone()];
        let case = Case { op: Op::Softmax, inputs: &[x], outputs: &outputs, r: &r.1 };
        case.check(0, dx, 1.0 / 64.0, 6.0 / 8.0 / 6.0 / 64f64.powi(2));
    }

    #[test]
    fn parts_and_orders_of_axes(
        extents in prop::array::uniform4(1usize..4), axis in 0usize..4, before in 0usize..3, after in 0usize..3,
        order in Just(vec![0usize, 1, 2, 3]).prop_shuffle(),
    ) {
        let mut padded = extents;
        padded[axis] += before + after;
        let (small, large) = (random(dims(extents), 1), random(dims(padded), 2));
        let (slice, pad) = (Op::Slice { axis, from: before }, Op::Pad { axis, before });
        for (op, back, [x, r]) in [(slice, pad, [&large, &small]), (pad, slice, [&small, &large])] {
            let dx = &run(back, from_ref(r), from_ref(&x.0))[0];
            let (inputs, outputs) = ([x.clone()], [r.0.clone()]);
            Case { op, inputs: &inputs, outputs: &outputs, r: &r.1 }.check(0, dx, 1.0, 0.0);
        }
        let order = Permutation::new(&order).unwrap();
        let r = random(Shape(order.of(&extents)), 3);
        let dx = &run(Op::Permute(order.inverse()), from_ref(&r), from_ref(&small.0))[0];
        let (inputs, outputs) = ([small], [r.0.clone()]);
        Case { op: Op::Permute(order), inputs: &inputs, outputs: &outputs, r: &r.1 }.check(0, dx, 1.0, 0.0);
    }

    #[test]
    fn dropout(n in 1usize..4, features in 1usize..30, p in 0.1f32..0.9) {
        let x = random(dims([n, features]), 1);
        let r = random(dims([n, features]), 2);
        let backward = Op::Backward(BackwardOp::Dropout { p, layer: 2, whole: false });
        let dx = &run(backward, from_ref(&r), from_ref(&x.0))[0];
        let outputs = [x.0.clone()];
        let op = Op::Dropout { p, layer: 2, whole: false };
        Case { op, inputs: &[x], outputs: &outputs, r: &r.1 }.check(0, dx, 1.0, 0.0);
    }

    /// The loss's third derivative in one logit is p(1−p)(1−2p), below 0.1 in size; h = 1/64. The sample labelled
    /// −1 only fills the batch.
    #[test]
    fn softmax_cross_entropy(
        classes in 2usize..8, label in 0usize..8, smoothing in 0f32..1.0, weight in 0.25f32..1.0,
    ) {
        let logits = random(dims([3, classes]), 1);
        let labels = vec![(label % classes) as f32, -1.0, 0.0];
        let labels = (Spec { shape: dims([3]), dtype: DType::I32 }, labels);
        let outputs = [f32s(dims([3])), f32s(dims([3]))];
        let inputs = [logits.clone(), labels];
        let scaled = &run(Op::Backward(BackwardOp::SoftmaxCrossEntropy { smoothing, weight }), &inputs, &[logits.0])[0];
        prop_assert!(scaled[classes..2 * classes].iter().all(|&g| g == 0.0));
        let gradient: Vec<f32> = scaled.iter().map(|g| g / SCALARS.gradient_scale).collect();
        let op = Op::SoftmaxCrossEntropy { smoothing, weight };
        let case = Case { op, inputs: &inputs, outputs: &outputs, r: &[1.0; 3] };
        case.check(0, &gradient, 1.0 / 64.0, 0.1 / 6.0 / 64f64.powi(2));
    }

    /// Every loss of a field, of samples of no axes to three. The third derivative of a point's loss is below 0.1, that
    /// of Huber's and of the mean absolute error nothing away from their kinks; weights of classes are below 2, and so
    /// are those of points.
    #[test]
    fn losses_of_fields(
        which in 0usize..objectives().len(), n in 1usize..4, channels in 1usize..4, rest in prop::collection::vec(1usize..4, 0..3),
        weighted: bool, alone: bool, weighed in prop::sample::select(&Weighed::ALL[..]),
    ) {
        let objective = objectives()[which];
        let extents = if alone && !objective.loss.is_of_classes() { vec![n] } else { [vec![n, channels], rest].concat() };
        let inputs: Vec<Operand> = operands(objective, &extents, weighted, weighed)
            .into_iter().map(|(extents, values)| (f32s(Shape(extents)), values)).collect();
        let sums = objective.metric.sums(inputs[0].0.shape.channels());
        let outputs = [f32s(dims([n])), f32s(dims([n, sums]))];
        let of = FieldLoss { objective, rows: None };
        let op = Op::Backward(BackwardOp::FieldLoss(of));
        let scaled = &run(op, &inputs, &[inputs[0].0.clone()])[0];
        if n > 1 {
            prop_assert!(scaled[scaled.len() / n * (n - 1)..].iter().all(|&g| g == 0.0));
            let of_none = run(Op::FieldLoss(of), &inputs, &outputs);
            prop_assert!(of_none[0][n - 1] == 0.0 && of_none[1][(n - 1) * sums..].iter().all(|&sum| sum == 0.0));
        }
        let gradient: Vec<f32> = scaled.iter().map(|g| g / SCALARS.gradient_scale).collect();
        let case = Case { op: Op::FieldLoss(of), inputs: &inputs, outputs: &outputs, r: &[1.0; 3][..n] };
        case.check(0, &gradient, 1.0 / 64.0, 0.4 / 6.0 / 64f64.powi(2));
    }

    /// The same where samples have two labels, which may be the same one.
    #[test]
    fn mixed_cross_entropy(
        classes in 2usize..8, label in 0usize..8, other in 0usize..8, share in 0f32..=1.0, smoothing in 0f32..1.0,
    ) {
        let logits = random(dims([3, classes]), 1);
        let integers = |values: [usize; 2], last| {
            let values = vec![(values[0] % classes) as f32, last, (values[1] % classes) as f32];
            (Spec { shape: dims([3]), dtype: DType::I32 }, values)
        };
        let inputs = [
            logits.clone(),
            integers([label, other], -1.0),
            integers([other, other], 1.0),
            (f32s(dims([3])), vec![share, 0.5, 1.0 - share]),
        ];
        let outputs = [f32s(dims([3])), f32s(dims([3]))];
        let backward = Op::Backward(BackwardOp::SoftmaxCrossEntropy { smoothing, weight: 0.5 });
        let scaled = &run(backward, &inputs, &[logits.0])[0];
        prop_assert!(scaled[classes..2 * classes].iter().all(|&g| g == 0.0));
        let gradient: Vec<f32> = scaled.iter().map(|g| g / SCALARS.gradient_scale).collect();
        let op = Op::SoftmaxCrossEntropy { smoothing, weight: 0.5 };
        let case = Case { op, inputs: &inputs, outputs: &outputs, r: &[1.0; 3] };
        case.check(0, &gradient, 1.0 / 64.0, 0.1 / 6.0 / 64f64.powi(2));
    }
}

/// Third derivatives of all are below 4 in size where `in_domain` is, but that of e^x, which its largest y bounds; h =
/// 1/64. Where there is no derivative x keeps two steps away.
#[test]
fn activations() {
    for &of in Activation::ALL {
        let mut x = random(dims([3, 40]), 1);
        x.1.iter_mut().for_each(|x| *x = away_from_kinks(of, in_domain(of, *x)));
        let (r, op) = (random(dims([3, 40]), 2), Op::Activation(of));
        let y = run(op, from_ref(&x), from_ref(&x.0))[0].clone();
        let third = y.iter().fold(4.0f32, |most, &y| if of == Activation::Exp { most.max(y) } else { most });
        let read = if of.from_output() { (x.0.clone(), y) } else { x.clone() };
        let dx = &run(Op::Backward(BackwardOp::Activation(of)), &[r.clone(), read], from_ref(&x.0))[0];
        let truncation = 1.1 * f64::from(third) / 6.0 / 64f64.powi(2);
        let outputs = [x.0.clone()];
        Case { op, inputs: &[x], outputs: &outputs, r: &r.1 }.check(0, dx, 1.0 / 64.0, truncation);
    }
}

/// The x, or one beside it, at two steps of 1/64 from where the function has no derivative.
fn away_from_kinks(of: Activation, x: f32) -> f32 {
    let kinks = match of {
        Activation::Relu { max } => vec![0.0, max],
        Activation::LeakyRelu { .. } => vec![0.0],
        Activation::HardSigmoid | Activation::HardSwish => vec![-3.0, 3.0],
        _ => vec![],
    };
    match kinks.into_iter().find(|kink| (x - kink).abs() < 1.0 / 32.0) {
        Some(kink) => kink + 1.0 / 32.0,
        None => x,
    }
}

/// Through the graph, either operand stretched, one of them a parameter: the loss's difference along each parameter's
/// gradient, over a step of 2⁻⁶. Higher derivatives are of the size of the first two here, so that truncation is below
/// 2 % of what is found; a term, a sum or a sign that lacks is far more.
#[test]
fn arithmetic_of_stretched_tensors() {
    for of in Binary::ALL {
        for swapped in [false, true] {
            let (mut net, x) = Builder::new("stretched", 2, [3, 4, 4]);
            let x = net.conv("a", x, 5, Conv::square(1)).unwrap();
            let small = net.global_avg_pool("pool", x).unwrap();
            let small = net.activation("b", small, Activation::Sigmoid);
            let x = net.activation("c", x, Activation::Exp);
            let [first, second] = if swapped { [x, small] } else { [small, x] };
            let y = net.binary("binary", of, first, second).unwrap();
            let scale = net.learned("scale", dims([5, 1, 1]), Init::One, false);
            let [first, second] = if swapped { [y, scale] } else { [scale, y] };
            let y = net.binary("scaled", of, first, second).unwrap();
            let y = net.sum("sum", y, &[2, 3], 0.1).unwrap();
            let y = net.expand("expand", y, dims([2, 5, 2, 1])).unwrap();
            let y = net.linear("fc", y, 3);
            let mut bound = Bound::new(&Reference, net.finish(y).simplify().differentiate(), 0);
            bound.set_batch(&random(dims([2, 3, 4, 4]), 1).1, &[0, 2]);
            let (forward, all) = (bound.plan.forward_steps, bound.plan.steps.len());
            let scalars = Scalars { gradient_scale: 0.5, ..SCALARS };
            let parameters = bound.plan.parameters.clone();
            let start = |p: &Parameter| {
                random(p.spec.shape.clone(), 7).1.iter().map(|v| 0.5 * v + 0.75).collect::<Vec<_>>()
            };
            parameters.iter().for_each(|p| bound.set_parameter(p, &start(p)));
            bound.run(0..all, &scalars);
            let gradients: Vec<Vec<f32>> = parameters.iter().map(|p| bound.gradient(p)).collect();
            for (p, gradient) in parameters.iter().zip(&gradients) {
                let norm = gradient.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>().sqrt();
                let mut at = |h: f64| {
                    let step = |(x, g): (&f32, &f32)| (f64::from(*x) + h * f64::from(*g) / norm) as f32;
                    bound.set_parameter(p, &start(p).iter().zip(gradient).map(step).collect::<Vec<_>>());
                    bound.run(0..forward, &scalars);
                    bound.loss()
                };
                let slope = (at(1.0 / 64.0) - at(-1.0 / 64.0)) * 32.0;
                bound.set_parameter(p, &start(p));
                assert!(
                    (slope - norm).abs() < 0.02 * norm + 1e-4,
                    "{of:?} {swapped} {}: {slope} and {norm}",
                    p.name
                );
            }
        }
    }
}

/// The mean and the variance of each group are taken away; then a number a channel, which gets its gradient.
#[test]
fn group_normalisation_is_what_it_is_defined_to_be() {
    for groups in [1, 2, 6] {
        let (mut net, x) = Builder::new("groups", 2, [6, 3, 3]);
        let y = net.group_norm("norm", x, groups, 1e-5).unwrap();
        // The scores are the numbers themselves: 54 of each sample.
        let y = net.flatten("flatten", y);
        let graph = net.finish(y).differentiate();
        let mut bound = Bound::new(&Reference, graph, 0);
        let x = random(dims([2, 6, 3, 3]), 1).1;
        bound.set_batch(&x, &[0, 2]);
        let [w, b] = ["norm.weight", "norm.bias"].map(|name| bound.plan.parameter(name).unwrap().clone());
        let numbers = [2, 3].map(|which| random(dims([6]), which).1);
        [&w, &b].into_iter().zip(&numbers).for_each(|(to, values)| bound.set_parameter(to, values));
        let (forward, all) = (bound.plan.forward_steps, bound.plan.steps.len());
        bound.run(0..forward, &SCALARS);
        let found = bound.logits();
        let size = 54 / groups;
        for (index, &found) in found.iter().enumerate() {
            let own = &x[index / size * size..][..size];
            let mean = own.iter().map(|&v| f64::from(v)).sum::<f64>() / size as f64;
            let variance = own.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / size as f64;
            let channel = index % 54 / 9;
            let [scale, shift] = [0, 1].map(|which| f64::from(numbers[which][channel]));
            let expected = (f64::from(x[index]) - mean) / (variance + 1e-5).sqrt() * scale + shift;
            // Four roundings of numbers below 8.
            assert!(
                (f64::from(found) - expected).abs() < 32.0 * 2f64.powi(-23),
                "{index}: {found} and {expected}"
            );
        }
        bound.run(forward..all, &SCALARS);
        assert!(
            [&w, &b]
                .iter()
                .all(|parameter| bound.gradient(parameter).iter().all(|v| v.is_finite() && *v != 0.0))
        );
    }
}

/// What a network of its own elements gives, 48 of two images.
fn elements_of(make: impl FnOnce(&mut Builder, TensorId) -> TensorId) -> Vec<f32> {
    let (mut net, x) = Builder::new("elements", 2, [1, 4, 6]);
    let y = make(&mut net, x);
    let rows = dims([2, net.shape(y).elements() / 2]);
    let y = net.reshape("scores", y, rows).unwrap();
    let mut bound = Bound::new(&Reference, net.finish(y), 0);
    bound.set_batch(&(0..48u8).map(f32::from).collect::<Vec<_>>(), &[0, 1]);
    let steps = bound.plan.steps.len();
    bound.run(0..steps, &SCALARS);
    bound.logits()
}

/// An order of axes that takes several steps, every so many along an axis (behind the last is nothing), rows by their
/// numbers, and numbers that stay as they are.
#[test]
fn what_is_made_of_other_ops_takes_the_elements_that_it_should() {
    let extents = [2, 2, 3, 2, 2];
    let found = elements_of(|net, x| {
        let x = net.reshape("apart", x, dims(extents)).unwrap();
        net.permute("order", x, &[2, 4, 0, 3, 1]).unwrap()
    });
    let mut expected = Vec::new();
    for c in 0..3 {
        for (e, a, d, b) in (0..16).map(|i| (i >> 3, i >> 2 & 1, i >> 1 & 1, i & 1)) {
            expected.push((((a * 2 + b) * 3 + c) * 2 + d) as f32 * 2.0 + e as f32);
        }
    }
    assert_eq!(found, expected);
    let found = elements_of(|net, x| {
        let x = net.every("columns", x, 3, (1..6, 2)).unwrap();
        net.every("rows", x, 2, (0..4, 3)).unwrap()
    });
    assert_eq!(found, [1, 3, 5, 19, 21, 23, 25, 27, 29, 43, 45, 47].map(|number| number as f32));
    let found = elements_of(|net, x| {
        let x = net.reshape("table", x, dims([24, 2])).unwrap();
        let x = net.gather("rows", x, &[7, 0, 7, 23]).unwrap();
        net.scaled("halves", x, 0.5)
    });
    assert_eq!(found, [7.0, 7.5, 0.0, 0.5, 7.0, 7.5, 23.0, 23.5]);
    let (mut net, x) = Builder::new("constants", 2, [1, 4, 6]);
    assert!(net.gather("none", x, &[0]).is_err() && net.constant("few", dims([2]), &[1.0]).is_err());
}

/// A row that is taken twice gets both gradients. Constants that are alike lie in memory once, and an evaluation finds
/// those of the training.
#[test]
fn rows_that_are_taken_get_their_gradients_and_constants_stay() {
    let build = || {
        let (mut net, x) = Builder::new("rows", 2, [1, 1, 2]);
        let table = net.learned("table", dims([3, 2]), Init::Zero, false);
        let table = net.reshape("read", table, dims([3, 2])).unwrap();
        let rows = net.gather("rows", table, &[2, 2]).unwrap();
        let by = net.constant("by", dims([2]), &[3.0, 0.0]).unwrap();
        assert_eq!(net.constant("again", dims([2]), &[3.0, 0.0]).unwrap(), by);
        let rows = net.binary("times", Binary::Multiply, rows, by).unwrap();
        let x = net.flatten("flatten", x);
        let scores = net.add("scores", x, rows).unwrap();
        net.finish(scores)
    };
    let mut bound = Bound::new(&Reference, build().differentiate(), 0);
    bound.set_batch(&[0.0; 4], &[0, 0]);
    let table = bound.plan.parameter("table").unwrap().clone();
    bound.set_parameter(&table, &[0.0; 6]);
    let steps = bound.plan.steps.len();
    bound.run(0..steps, &Scalars { gradient_scale: 0.5, ..SCALARS });
    // Two samples, each (1/2 − 1) for its class, halved: −1/2 in all, times 3.
    assert_eq!(bound.gradient(&table), [0.0, 0.0, 0.0, 0.0, -1.5, 0.0]);
    let options = Options { training: Some(&bound.plan), ..Options::whole(0) };
    let evaluation = plan(build().for_evaluation(), &Reference, &options).unwrap();
    let places = |plan: &Plan| plan.constants.iter().map(|constant| constant.place).collect::<Vec<_>>();
    assert_eq!(places(&evaluation), places(&bound.plan));
    assert_eq!(places(&bound.plan).len(), 2);
}

/// With `whole` all of a sample or nothing.
#[test]
fn samples_are_dropped_as_a_whole() {
    let ones: Operand = (f32s(dims([400, 6])), vec![1.0; 2400]);
    let y = run(Op::Dropout { p: 0.2, layer: 1, whole: true }, from_ref(&ones), from_ref(&ones.0))[0].clone();
    assert!(y.chunks(6).all(|sample| sample == [0.0; 6] || sample == [1.25; 6]));
    let dropped = y.chunks(6).filter(|sample| sample[0] == 0.0).count() as f64 / 400.0;
    // Five standard errors of a share of 400.
    assert!((dropped - 0.2).abs() < 5.0 * (0.2f64 * 0.8 / 400.0).sqrt(), "{dropped}");
}

/// The mask drops about p of the elements, and the same ones wherever the sample lies in a rank's batch.
#[test]
fn dropout_depends_on_the_sample_not_on_the_rank() {
    let ones = |n: usize| (f32s(dims([n, 500])), vec![1.0; n * 500]);
    let op = Op::Dropout { p: 0.3, layer: 1, whole: false };
    let whole = run(op, &[ones(4)], &[ones(4).0])[0].clone();
    let dropped = whole.iter().filter(|&&v| v == 0.0).count() as f64 / 2000.0;
    // Five standard errors of a share of 2000.
    assert!((dropped - 0.3).abs() < 5.0 * (0.3f64 * 0.7 / 2000.0).sqrt(), "{dropped}");
    let second_rank = Scalars { first_sample: SCALARS.first_sample + 2, ..SCALARS };
    let half = run_with(&second_rank, op, &[ones(2)], &[ones(2).0])[0].clone();
    assert_eq!(half, whole[1000..]);
    let next_step = Scalars { step: SCALARS.step + 1, ..SCALARS };
    assert_ne!(run_with(&next_step, op, &[ones(4)], &[ones(4).0])[0], whole);
}
