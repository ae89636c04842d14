//! The reference device and the optimizers' rules against values computed by PyTorch.
//!
//! tests/fixtures/make_ops.py made the values and says how; operands come from a formula that both sides compute.
//! Both sides accumulate in f64 and round once, so they may differ by one rounding, 2⁻²³ of the larger summands.

use crate::support;

use clap::ValueEnum;
use dltrain::config::{Loss, Metric, Objective};
use dltrain::device::memory::{bytes_of, bytes_of_mut};
use dltrain::device::reference::Reference;
use dltrain::device::{Device, Memory, Rule, Scalars, Span, Step, Updated};
use dltrain::graph::{
    Activation, BackwardOp, BatchNorm, Conv, DType, FieldLoss, LocalResponseNorm, Op, Pool, Shape, Spec,
};
use serde_json::Value;
use support::{Operand, f32s, in_domain, run_with};

const ULP: f64 = 1.0 / 8_388_608.0;

fn fixture() -> Value {
    serde_json::from_str(include_str!("../fixtures/ops.json")).unwrap()
}

/// The formula of make_ops.py.
fn operand(shape: &[usize], salt: usize) -> Operand {
    let shape = Shape(shape.to_vec());
    let number = |i: usize| (((i * 7919 + salt * 104_729) % 2001) as f64 - 1000.0) / 1000.0;
    let values = (0..shape.elements()).map(|i| number(i) as f32).collect();
    (f32s(shape), values)
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

fn extents(value: &Value) -> Vec<usize> {
    value.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as usize).collect()
}

/// Depth, height and width; before these `flat` where there are but two.
fn volume(value: &Value, flat: usize) -> [usize; 3] {
    let all = extents(value);
    [&vec![flat; 3 - all.len()][..], &all].concat().try_into().unwrap()
}

/// Operands are at most 1 in size, so the largest summand of an element is too: `scale` bounds the sum.
fn assert_close(what: &str, ours: &[f32], theirs: &Value, scale: f64) {
    let theirs = numbers(theirs);
    assert_eq!(ours.len(), theirs.len(), "{what}");
    for (index, (&a, &b)) in ours.iter().zip(&theirs).enumerate() {
        assert!((f64::from(a) - b).abs() <= scale * ULP, "{what} [{index}]: {a} and {b}");
    }
}

fn run(op: Op, inputs: &[Operand], outputs: &[Spec]) -> Vec<Vec<f32>> {
    run_with(&Scalars { gradient_scale: 1.0, ..Scalars::default() }, op, inputs, outputs)
}

/// y and the gradients of Σ y·r with respect to each operand.
fn forward_and_backward(
    name: &str,
    settings: &Value,
    inputs: &[Operand],
    y: Spec,
) -> (Vec<f32>, Vec<Vec<f32>>) {
    let r = operand(&y.shape.0, 99);
    let specs: Vec<Spec> = inputs.iter().map(|(spec, _)| spec.clone()).collect();
    let pool = || Pool {
        kernel: volume(&settings["kernel"], 1),
        stride: volume(&settings["stride"], 1),
        padding: volume(&settings["padding"], 0),
        count_include_pad: settings["count_include_pad"].as_bool().unwrap(),
        ceil: settings["ceil"].as_bool().unwrap_or(false),
    };
    let weights = |op| run(op, &[inputs[0].clone(), r.clone()], &specs[1..]);
    match name {
        "conv2d" | "conv3d" => {
            let conv = Conv {
                kernel: volume(&settings["kernel"], 1),
                stride: volume(&settings["stride"], 1),
                padding: volume(&settings["padding"], 0),
                dilation: [1; 3],
                groups: settings["groups"].as_u64().unwrap() as usize,
                bias: settings["bias"].as_bool().unwrap(),
                relu: false,
            };
            let data = run(Op::ConvBackwardData(conv), &[r.clone(), inputs[1].clone()], &specs[..1]);
            let gradients = [data, weights(Op::Backward(BackwardOp::ConvWeights(conv)))].concat();
            (run(Op::Conv(conv), inputs, &[y])[0].clone(), gradients)
        }
        "linear" => {
            let op = Op::Backward(BackwardOp::LinearData { bias: true });
            let data = run(op, &[r.clone(), inputs[1].clone()], &specs[..1]);
            let gradients = [data, weights(Op::Backward(BackwardOp::LinearWeights { bias: true }))].concat();
            (run(Op::Linear { bias: true, relu: false }, inputs, &[y])[0].clone(), gradients)
        }
        "relu" | "clipped_relu" => {
            let max = settings["max"].as_f64().map_or(f32::INFINITY, |max| max as f32);
            let values =
                run(Op::Activation(Activation::Relu { max }), inputs, std::slice::from_ref(&y))[0].clone();
            let dx = run(
                Op::Backward(BackwardOp::Activation(Activation::Relu { max })),
                &[r, (y, values.clone())],
                &specs,
            );
            (values, dx)
        }
        "local_response_norm" => {
            let number = |name: &str| settings[name].as_f64().unwrap() as f32;
            let (alpha, beta, k) = (number("alpha"), number("beta"), number("k"));
            let size = settings["size"].as_u64().unwrap() as usize;
            let norm = LocalResponseNorm { size, alpha, beta, k };
            let saved = Spec { dtype: DType::Saved, ..y.clone() };
            let both = run(Op::LocalResponseNorm(norm), inputs, &[y, saved.clone()]);
            let backward = [r, inputs[0].clone(), (saved, both[1].clone())];
            (both[0].clone(), run(Op::Backward(BackwardOp::LocalResponseNorm(norm)), &backward, &specs))
        }
        "concat" => {
            let mut from = 0;
            let gradient = |spec: &Spec| {
                let slice =
                    run(Op::Slice { axis: 1, from }, std::slice::from_ref(&r), std::slice::from_ref(spec));
                from += spec.shape.0[1];
                slice[0].clone()
            };
            let gradients = specs.iter().map(gradient).collect();
            (run(Op::Concat { axis: 1 }, inputs, &[y])[0].clone(), gradients)
        }
        "max_pool" => {
            let saved = Spec { dtype: DType::Saved, ..y.clone() };
            let both = run(Op::MaxPool(pool()), inputs, &[y, saved.clone()]);
            let dx = run(Op::Backward(BackwardOp::MaxPool(pool())), &[r, (saved, both[1].clone())], &specs);
            (both[0].clone(), dx)
        }
        "avg_pool" => {
            let dx = run(Op::Backward(BackwardOp::AvgPool(pool())), &[r], &specs);
            (run(Op::AvgPool(pool()), inputs, &[y])[0].clone(), dx)
        }
        "adaptive_avg_pool" => {
            let dx = run(Op::Backward(BackwardOp::AdaptiveAvgPool), &[r], &specs);
            (run(Op::AdaptiveAvgPool, inputs, &[y])[0].clone(), dx)
        }
        "batch_norm" => {
            let norm = norm(settings);
            let made = batch_norm(norm, inputs);
            let vector = &specs[1];
            let statistics = [(vector.clone(), made[1].clone()), (vector.clone(), made[2].clone())];
            let backward = [vec![r, inputs[0].clone(), inputs[1].clone()], statistics.to_vec()].concat();
            (made[0].clone(), run(Op::Backward(BackwardOp::BatchNorm(norm)), &backward, &specs))
        }
        other => panic!("fixture with an unknown op {other}"),
    }
}

fn norm(settings: &Value) -> BatchNorm {
    let number = |name: &str| settings[name].as_f64().unwrap() as f32;
    BatchNorm { epsilon: number("epsilon"), momentum: number("momentum"), ..BatchNorm::default() }
}

/// The running mean and variance before the step.
fn running(channels: &Spec) -> [Operand; 2] {
    let [mean, mut variance] = [4, 5].map(|salt| operand(&channels.shape.0, salt));
    variance.1.iter_mut().for_each(|v| *v = v.abs());
    [mean, variance]
}

/// y, mean, variance, running mean, running variance.
fn batch_norm(norm: BatchNorm, inputs: &[Operand]) -> Vec<Vec<f32>> {
    let vector = &inputs[1].0;
    let outputs = [vec![inputs[0].0.clone()], vec![vector.clone(); 4]].concat();
    run(Op::BatchNorm(norm), &[inputs, &running(vector)].concat(), &outputs)
}

/// The running statistics after a step, and the output of evaluation with those before it.
#[test]
fn batch_norm_outside_of_the_gradient() {
    let fixture = fixture();
    let cases: Vec<&Value> =
        fixture["cases"].as_array().unwrap().iter().filter(|case| case["op"] == "batch_norm").collect();
    assert_eq!(cases.len(), 2);
    for case in cases {
        let shapes: Vec<Vec<usize>> = case["shapes"].as_array().unwrap().iter().map(extents).collect();
        let inputs: Vec<Operand> =
            shapes.iter().enumerate().map(|(i, shape)| operand(shape, i + 1)).collect();
        let norm = norm(&case["settings"]);
        let made = batch_norm(norm, &inputs);
        for which in 0..2 {
            assert_close("running statistic", &made[3 + which], &case["running"][which], 2.0);
        }
        let vector = inputs[1].0.clone();
        let (y, inputs) = (inputs[0].0.clone(), [&inputs[..], &running(&vector)].concat());
        let evaluated = &run(Op::BatchNormInference(norm), &inputs, &[y])[0];
        // The smallest variance among the operands makes values of some 30.
        assert_close("evaluated", evaluated, &case["evaluated"], 32.0);
    }
}

/// Image n of a batch, as one rank's batch.
fn image_of(batch: &Operand, n: usize, images: usize) -> Operand {
    let (mut shape, each) = (batch.0.shape.clone(), batch.0.shape.per_sample());
    shape.0[0] = images;
    (f32s(shape), batch.1[n * each..(n + images) * each].to_vec())
}

/// The numbers of all ranks, as an exchange gives them.
fn gathered(parts: &[&Vec<f32>], channels: usize) -> Operand {
    (f32s(Shape(vec![parts.len(), 2, channels])), parts.iter().flat_map(|part| part.to_vec()).collect())
}

/// A batch spread over ranks is to PyTorch the whole batch. The same sums as there, in another order.
#[test]
fn synchronised_batch_norm_is_that_of_the_whole_batch() {
    let fixture = fixture();
    let cases = fixture["cases"].as_array().unwrap().iter().filter(|case| case["op"] == "batch_norm");
    let mut spread = 0;
    for case in cases {
        let shapes: Vec<Vec<usize>> = case["shapes"].as_array().unwrap().iter().map(extents).collect();
        let batch = shapes[0][0];
        for ranks in (1..=batch).filter(|ranks| batch.is_multiple_of(*ranks)) {
            spread += usize::from(ranks > 1);
            sync_batch_norm_is(case, &shapes, ranks);
        }
    }
    assert!(spread >= 2, "the fixture lost batches that can be divided");
}

fn sync_batch_norm_is(case: &Value, shapes: &[Vec<usize>], ranks: usize) {
    let norm = BatchNorm { given: true, ..norm(&case["settings"]) };
    let [x, w, b] = [0, 1, 2].map(|i| operand(&shapes[i], i + 1));
    let r = operand(&shapes[0], 99);
    let (vector, images, channels) = (w.0.clone(), shapes[0][0] / ranks, shapes[1][0]);
    let pair = f32s(Shape(vec![2, channels]));
    let part = |of: &Operand, rank: usize| image_of(of, rank * images, images);
    let over_ranks = |each: &dyn Fn(usize) -> Vec<Vec<f32>>| (0..ranks).map(each).collect::<Vec<_>>();
    let firsts = |all: &[Vec<Vec<f32>>]| {
        gathered(&all.iter().map(|outputs| &outputs[0]).collect::<Vec<_>>(), channels)
    };

    let moments =
        over_ranks(&|rank| run(Op::BatchNormMoments, &[part(&x, rank)], std::slice::from_ref(&pair)));
    let all = firsts(&moments);
    let made = over_ranks(&|rank| {
        let inputs =
            [vec![part(&x, rank), w.clone(), b.clone()], running(&vector).to_vec(), vec![all.clone()]];
        let outputs = [vec![part(&x, rank).0], vec![vector.clone(); 4]].concat();
        run(Op::BatchNorm(norm), &inputs.concat(), &outputs)
    });
    let joined =
        |all: &[Vec<Vec<f32>>]| all.iter().flat_map(|outputs| outputs[0].clone()).collect::<Vec<_>>();
    assert_close("y", &joined(&made), &case["y"], 8.0);
    for outputs in &made {
        assert_eq!(outputs[1..], made[0][1..], "ranks differ in their statistics");
        assert_close("running mean", &outputs[3], &case["running"][0], 2.0);
        assert_close("running variance", &outputs[4], &case["running"][1], 2.0);
    }

    let backward = |rank: usize| {
        let [mean, variance] = [1, 2].map(|index| (vector.clone(), made[rank][index].clone()));
        vec![part(&r, rank), part(&x, rank), w.clone(), b.clone(), mean, variance]
    };
    let outputs = [pair.clone(), vector.clone(), vector.clone()];
    let sums =
        over_ranks(&|rank| run(Op::Backward(BackwardOp::BatchNormSums(norm)), &backward(rank), &outputs));
    let all = firsts(&sums);
    let dx = over_ranks(&|rank| {
        let inputs = [backward(rank), vec![all.clone()]].concat();
        run(Op::Backward(BackwardOp::BatchNorm(norm)), &inputs, &[part(&x, rank).0])
    });
    assert_close("dx", &joined(&dx), &case["gradients"][0], 32.0);
    for (which, name) in [(1, "dw"), (2, "db")] {
        let sum = |c: usize| sums.iter().map(|outputs| outputs[which][c]).sum::<f32>();
        let added: Vec<f32> = (0..channels).map(sum).collect();
        assert_close(name, &added, &case["gradients"][which], 32.0);
    }
}

#[test]
fn ops_and_their_gradients() {
    let fixture = fixture();
    let cases = fixture["cases"].as_array().unwrap();
    assert!(cases.len() >= 20, "the fixture lost cases");
    for case in cases {
        let name = case["op"].as_str().unwrap();
        let what = format!("{name} {}", case["settings"]);
        let shapes: Vec<Vec<usize>> = case["shapes"].as_array().unwrap().iter().map(extents).collect();
        let inputs: Vec<Operand> =
            shapes.iter().enumerate().map(|(index, shape)| operand(shape, index + 1)).collect();
        let y = f32s(Shape(extents(&case["y_shape"])));
        let (values, gradients) = forward_and_backward(name, &case["settings"], &inputs, y);
        // No element here adds up more than 100 products, few of them near 1.
        assert_close(&format!("{what} y"), &values, &case["y"], 8.0);
        for (index, gradient) in gradients.iter().enumerate() {
            assert_close(&format!("{what} gradient {index}"), gradient, &case["gradients"][index], 32.0);
        }
    }
}

/// The distribution function of the standard normal distribution, by Simpson's rule from 0.
fn normal(x: f64) -> f64 {
    let density = |t: f64| (-t * t / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let (steps, step) = (1000, x / 1000.0);
    let weight = |i: usize| if i == 0 || i == steps { 1.0 } else { 2.0 + 2.0 * (i % 2) as f64 };
    0.5 + step / 3.0 * (0..=steps).map(|i| weight(i) * density(step * i as f64)).sum::<f64>()
}

/// PyTorch's documentation has these formulas.
fn formula(of: Activation, x: f64) -> f64 {
    match of {
        Activation::Relu { max } => x.clamp(0.0, f64::from(max)),
        Activation::LeakyRelu { slope } => x.max(0.0) + f64::from(slope) * x.min(0.0),
        Activation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Gelu => x * normal(x),
        Activation::HardSigmoid => (x + 3.0).clamp(0.0, 6.0) / 6.0,
        Activation::HardSwish => x * (x + 3.0).clamp(0.0, 6.0) / 6.0,
        Activation::Tanh => (x.exp() - (-x).exp()) / (x.exp() + (-x).exp()),
        Activation::Exp => x.exp(),
        Activation::Sqrt => x.sqrt(),
    }
}

/// Gradients are differences of the formulas: exact to some ten digits. What the backward op reads may be a rounded y.
#[test]
fn activations_are_their_formulas() {
    for &of in Activation::ALL {
        let mut x = operand(&[2, 3, 5, 7], 1);
        x.1.iter_mut().for_each(|x| *x = in_domain(of, *x) + 0.001);
        let (r, specs) = (operand(&[2, 3, 5, 7], 99), [x.0.clone()]);
        let y = run(Op::Activation(of), std::slice::from_ref(&x), &specs)[0].clone();
        let read = if of.from_output() { (x.0.clone(), y.clone()) } else { x.clone() };
        let dx = run(Op::Backward(BackwardOp::Activation(of)), &[r.clone(), read], &specs)[0].clone();
        for (index, &x) in x.1.iter().enumerate() {
            let (x, r) = (f64::from(x), f64::from(r.1[index]));
            let slope = (formula(of, x + 1e-5) - formula(of, x - 1e-5)) / 2e-5;
            let off = [f64::from(y[index]) - formula(of, x), f64::from(dx[index]) - r * slope];
            let bounds = [formula(of, x).abs() * ULP + 1e-13, 2.0 * ULP * slope.abs().max(1.0)];
            assert!(off[0].abs() <= bounds[0] && off[1].abs() <= bounds[1], "{} of {x}: {off:?}", of.name());
        }
    }
}

#[test]
fn cross_entropy() {
    let fixture = fixture();
    let cases = |name: &str| fixture[name].as_array().unwrap().clone();
    let (single, mixed) = (cases("cross_entropy"), cases("mixed"));
    assert!(single.len() >= 3 && mixed.len() >= 2, "the fixture lost cases");
    single.iter().chain(&mixed).for_each(cross_entropy_is);
}

/// Of samples with one label, or with two and the share of the first.
fn cross_entropy_is(fixture: &Value) {
    let smoothing = fixture["smoothing"].as_f64().unwrap() as f32;
    let (spec, values) = operand(&[5, 7], 1);
    let logits = (spec.clone(), values.iter().map(|v| v * 4.0).collect::<Vec<f32>>());
    let given = |name: &str, dtype| -> Operand {
        let values = numbers(&fixture[name]).iter().map(|&v| v as f32).collect();
        (Spec { shape: Shape(vec![5]), dtype }, values)
    };
    let vector = f32s(Shape(vec![5]));
    let mut inputs = vec![logits, given("labels", DType::I32)];
    let weight = 1.0;
    if fixture["others"].is_array() {
        inputs.extend([given("others", DType::I32), given("shares", DType::F32)]);
    }
    let op = Op::SoftmaxCrossEntropy { smoothing, weight };
    let forward = run(op, &inputs, &[vector.clone(), vector]);
    assert_close("losses", &forward[0], &fixture["losses"], 16.0);
    assert_close("hits", &forward[1], &fixture["hits"], 0.0);
    let gradient =
        &run(Op::Backward(BackwardOp::SoftmaxCrossEntropy { smoothing, weight }), &inputs, &[spec])[0];
    // The logits were multiplied by 4 in f32 here and in f64 there: one more rounding of at most 4·2⁻²⁴.
    assert_close("gradient", gradient, &fixture["gradient"], 8.0);
}

#[test]
fn losses_of_fields() {
    let fixture = fixture();
    let cases = fixture["fields"].as_array().unwrap();
    assert!(cases.len() >= 9, "the fixture lost cases");
    for case in cases {
        let word = |key: &str| case[key].as_str().unwrap();
        let loss = Loss::from_str(word("loss"), false).unwrap();
        let metric = Metric::from_str(word("metric"), false).unwrap();
        let objective = Objective { loss, metric, smoothing: case["smoothing"].as_f64().unwrap() as f32 };
        let shape = extents(&case["shape"]);
        let (spec, mut output) = operand(&shape, 1);
        let mut target = spec.clone();
        if loss.is_of_classes() {
            target.shape.0.remove(1);
        } else {
            output.iter_mut().for_each(|v| *v *= 3.0);
        }
        let numbers = |key: &str| -> Vec<f32> {
            let values = case[key].as_array().unwrap().iter();
            values.map(|v| v.as_f64().map_or(f32::NAN, |v| v as f32)).collect()
        };
        let (mut values, weights) = (numbers("target"), numbers("weights"));
        if !weights.is_empty() {
            // Behind each sample's target is what its points weigh.
            let [own, more] = [&values, &weights].map(|all| all.len() / shape[0]);
            values =
                values.chunks(own).zip(weights.chunks(more)).flat_map(|(a, b)| [a, b].concat()).collect();
            target.shape.0 = vec![shape[0], own + more];
        }
        let mut inputs = vec![(spec.clone(), output), (target, values)];
        if case["weighted"].as_bool().unwrap() {
            let weights = (0..shape[1]).map(|class| 0.5 + class as f32 / 8.0).collect();
            inputs.push((f32s(Shape(vec![shape[1]])), weights));
        }
        let what = format!("{objective:?}");
        let outputs = [&shape[..1], &[shape[0], metric.sums(shape[1])]].map(|of| f32s(Shape(of.to_vec())));
        let of = FieldLoss { objective, rows: None };
        let forward = run(Op::FieldLoss(of), &inputs, &outputs);
        // Outputs were multiplied by 3 in f32 here and in f64 there; numbers are up to 4, their squares up to 16.
        assert_close(&what, &forward[0], &case["losses"], 32.0);
        assert_close(&what, &forward[1], &case["sums"], 32.0);
        let gradient = &run(Op::Backward(BackwardOp::FieldLoss(of)), &inputs, &[spec])[0];
        assert_close(&what, gradient, &case["gradient"], 8.0);
    }
}

fn memory(values: &[f32]) -> Memory {
    let memory = Reference.allocate(4 * values.len()).unwrap();
    memory.write(bytes_of(values));
    memory
}

fn values(memory: &Memory) -> Vec<f32> {
    let mut values = vec![0f32; memory.bytes() / 4];
    memory.read(bytes_of_mut(&mut values));
    values
}

/// One parameter of 12 numbers, as make_ops.py has it, and what updates it.
struct Learner {
    parameters: Memory,
    gradients: Memory,
    update: Box<dyn Step>,
}

impl Learner {
    fn new(rule: Rule) -> Learner {
        let (parameters, gradients) = (memory(&operand(&[12], 5).1), memory(&[0.0; 12]));
        let state: Vec<Memory> = (0..rule.states()).map(|_| memory(&[0.0; 12])).collect();
        let span = [Span { start: 0, length: 12, decay: true }];
        let update = Reference
            .update(&rule, &span, &Updated { parameters: &parameters, gradients: &gradients, state: &state })
            .unwrap();
        Learner { parameters, gradients, update }
    }

    fn step(&mut self, step: usize, learning_rate: f32) -> Scalars {
        let scalars = Scalars { learning_rate, update: step as u64 + 1, ..Scalars::default() };
        self.gradients.write(bytes_of(&operand(&[12], 20 + step).1));
        self.update.run(&scalars).unwrap();
        scalars
    }
}

/// The rules compute in f32, PyTorch here in f64: a few roundings a step of numbers of size 1. What PyTorch lacks
/// (TensorFlow's RMSProp, LARS, LAMB) the script computes from the papers.
#[test]
fn optimizers() {
    let adam = |beta1, beta2, epsilon, weight_decay, decoupled| Rule::Adam {
        beta1,
        beta2,
        epsilon,
        weight_decay,
        decoupled,
    };
    let rmsprop = |momentum, epsilon, weight_decay, tensorflow| Rule::RmsProp {
        rms_decay: 0.9,
        momentum,
        epsilon,
        weight_decay,
        tensorflow,
    };
    let rules = [
        ("sgd", Rule::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.0 }, 0.1),
        ("sgd_decay", Rule::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.01 }, 0.1),
        ("momentum", Rule::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.01 }, 0.1),
        ("nesterov", Rule::Sgd { momentum: 0.9, nesterov: true, weight_decay: 0.0 }, 0.1),
        ("adam", adam(0.9, 0.999, 1e-8, 0.0, false), 0.01),
        ("adam_decay", adam(0.8, 0.99, 1e-6, 0.1, false), 0.01),
        ("adamw", adam(0.8, 0.99, 1e-6, 0.1, true), 0.01),
        ("rmsprop", rmsprop(0.0, 1e-2, 0.1, false), 0.01),
        ("rmsprop_momentum", rmsprop(0.9, 1e-2, 0.0, false), 0.01),
        ("rmsprop_tf", rmsprop(0.0, 1.0, 0.0, true), 0.1),
        ("rmsprop_tf_momentum", rmsprop(0.9, 1.0, 0.01, true), 0.1),
        ("lars", Rule::Lars { momentum: 0.9, trust: 0.05, weight_decay: 0.01 }, 1.0),
        ("lamb", Rule::Lamb { beta1: 0.9, beta2: 0.999, epsilon: 1e-6, weight_decay: 0.1 }, 0.05),
    ];
    let fixture = fixture();
    let expected = fixture["optimizers"].as_array().unwrap();
    assert_eq!(expected.len(), rules.len());
    for (name, rule, learning_rate) in rules {
        let expected = expected.iter().find(|o| o["name"] == name).expect(name);
        let mut learner = Learner::new(rule);
        for (step, after) in expected["after"].as_array().unwrap().iter().enumerate() {
            learner.step(step, learning_rate);
            let what = format!("{name} after step {step}");
            assert_close(&what, &values(&learner.parameters), after, 8.0 * (step + 1) as f64);
        }
    }
}

#[test]
fn the_moving_average_of_weights() {
    let mut learner = Learner::new(Rule::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.01 });
    let averaged = memory(&[0.0; 12]);
    let mut average = Reference.average(0.75, &learner.parameters, &averaged).unwrap();
    for (step, expected) in fixture()["ema"].as_array().unwrap().iter().enumerate() {
        let scalars = learner.step(step, 0.1);
        average.run(&scalars).unwrap();
        assert_close(&format!("after step {step}"), &values(&averaged), expected, 8.0 * (step + 1) as f64);
    }
}

#[test]
fn clipping_by_the_norm_of_all_gradients() {
    for case in fixture()["clipped"].as_array().unwrap() {
        // Two gradients with the gap of an alignment between them.
        let given = [operand(&[9], 30).1, vec![0.0; 7], operand(&[21], 31).1].concat();
        let gradients = memory(&given);
        let max_norm = case["max_norm"].as_f64().unwrap();
        Reference.clip(max_norm as f32, &gradients).unwrap().run(&Scalars::default()).unwrap();
        let after = values(&gradients);
        assert_close(&format!("to {max_norm}"), &after[..9], &case["gradients"][0], 2.0);
        assert_close(&format!("to {max_norm}"), &after[16..], &case["gradients"][1], 2.0);
        assert_eq!(after[9..16], [0.0; 7]);
        assert_eq!(after == given, max_norm == 100.0, "{max_norm}");
    }
}

/// Weight decay and trust ratios are for weights: on biases AdamW is Adam, LARS is SGD with momentum.
#[test]
fn biases_have_neither_decay_nor_a_trust_ratio() {
    let biases = |rule: Rule| {
        let (parameters, gradients) = (memory(&operand(&[12], 5).1), memory(&operand(&[12], 20).1));
        let state: Vec<Memory> = (0..rule.states()).map(|_| memory(&[0.0; 12])).collect();
        let span = [Span { start: 0, length: 12, decay: false }];
        let scalars = Scalars { learning_rate: 0.125, update: 1, ..Scalars::default() };
        let mut update = Reference
            .update(&rule, &span, &Updated { parameters: &parameters, gradients: &gradients, state: &state })
            .unwrap();
        update.run(&scalars).unwrap();
        values(&parameters)
    };
    let sgd = |weight_decay| biases(Rule::Sgd { momentum: 0.9, nesterov: false, weight_decay });
    let adam = |weight_decay, decoupled| {
        biases(Rule::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-6, weight_decay, decoupled })
    };
    let rmsprop = |weight_decay, tensorflow| {
        biases(Rule::RmsProp { rms_decay: 0.9, momentum: 0.9, epsilon: 0.1, weight_decay, tensorflow })
    };
    assert_eq!(sgd(0.5), sgd(0.0));
    assert_eq!(biases(Rule::Lars { momentum: 0.9, trust: 0.001, weight_decay: 0.5 }), sgd(0.0));
    assert_eq!(adam(0.5, true), adam(0.0, false));
    assert_eq!(rmsprop(0.5, false), rmsprop(0.0, false));
    assert_eq!(rmsprop(0.5, true), rmsprop(0.0, true));
    // LAMB rounds the step of Adam in another order.
    let lamb = biases(Rule::Lamb { beta1: 0.9, beta2: 0.999, epsilon: 1e-6, weight_decay: 0.5 });
    for (lamb, adam) in lamb.iter().zip(adam(0.0, false)) {
        assert!((lamb - adam).abs() <= 4.0 * ULP as f32, "{lamb} and {adam}");
    }
}
