//! Whole graphs through the plan on both devices: sharing memory by lifetime, working in place, reorders and buckets
//! must not change a number.
//!
//! The network here has a bit of everything: a residual addition that reads what a ReLU before it must not overwrite,
//! and whose gradient a ReLU's backward must not overwrite either; grouped and strided convolutions, normalisations
//! with and without a ReLU, both poolings, dropout.

use crate::support::bound;

use std::ops::Deref;

use bound::Bound;
use dltrain::device::memory::bytes_of_mut;
use dltrain::device::onednn::Cpu;
use dltrain::device::reference::Reference;
use dltrain::device::{Device, Rule, Scalars, Span};
use dltrain::error::Result;
use dltrain::graph::{Activation, BatchNorm, Builder, Conv, Graph, LocalResponseNorm, Op, Pool, dims};
use dltrain::model;
use dltrain::plan::{Options, Parameter, Plan, Regions, Statistic, plan};
use dltrain::random::{Purpose, Stream, key};

const BATCH: usize = 6;
const SCALARS: Scalars = Scalars {
    seed: 3,
    step: 2,
    first_sample: 4,
    gradient_scale: 1.0 / BATCH as f32,
    rescale: 1.0,
    learning_rate: 0.0,
    update: 1,
};

fn residual_net() -> Result<Graph> {
    residual_net_for(BATCH)
}

fn residual_net_for(batch: usize) -> Result<Graph> {
    let (mut net, x) = Builder::new("residual", batch, [3, 14, 14]);
    let stem = net.conv("stem", x, 8, Conv::square(3).padding(1))?;
    let x = net.relu("relu0", stem);
    let x = net.conv("conv1", x, 8, Conv { groups: 2, bias: false, ..Conv::square(3).padding(1) })?;
    let x = net.batch_norm("bn1", x, BatchNorm::default())?;
    let x = net.relu("relu1", x);
    let x = net.conv("conv2", x, 8, Conv { bias: false, ..Conv::square(3).padding(1) })?;
    let x = net.relu("relu1b", x);
    let x = net.add("add", x, stem)?;
    let x = net.relu("relu2", x);
    let x = net.max_pool("pool1", x, Pool::square(3).stride(2).padding(1))?;
    let x = net.conv("conv3", x, 20, Conv { bias: false, ..Conv::square(3).stride(2) })?;
    let x = net.batch_norm("bn3", x, BatchNorm { momentum: 0.25, ..BatchNorm::default() })?;
    let x = net.avg_pool("pool2", x, Pool::square(2).stride(1))?;
    let x = net.dropout("drop", x, 0.4);
    let x = net.flatten("flatten", x);
    let x = net.linear("fc1", x, 30);
    let x = net.relu("relu3", x);
    let x = net.linear("fc2", x, 7);
    Ok(net.finish(x))
}

/// Activations that read their input on the way back, and one that reads its output.
const SMOOTH: [Activation; 3] = [Activation::Silu, Activation::Sigmoid, Activation::Gelu];

/// Branches that meet in concatenations, of whole blocks of channels and of others, a pooling that reaches beyond its
/// image, and an auxiliary head (or none) with a normalisation of its own.
fn branching_net(auxiliary: bool) -> Result<Graph> {
    let (mut net, x) = Builder::new("branching", BATCH, [3, 14, 14]);
    let stem = net.conv("stem", x, 16, Conv::square(3).padding(1))?;
    let stem = net.relu6("relu0", stem);
    let stem =
        net.local_response_norm("lrn", stem, LocalResponseNorm { alpha: 0.5, ..Default::default() })?;
    let a = net.conv("a", stem, 32, Conv { kernel: [1, 1, 7], padding: [0, 0, 3], ..Conv::square(1) })?;
    let b = net.conv("b", stem, 16, Conv { kernel: [1, 7, 1], padding: [0, 3, 0], ..Conv::square(1) })?;
    let b = net.relu("relu_b", b);
    let a = net.activation("gelu_a", a, Activation::Gelu);
    let blocked = net.concat("concat1", &[a, stem, b])?;
    let c = net.conv("c", blocked, 6, Conv { bias: false, ..Conv::square(1) })?;
    let c = net.batch_norm("bn_c", c, BatchNorm::default())?;
    let c = net.relu6("relu_c", c);
    let depthwise = Conv { groups: 64, bias: false, ..Conv::square(3).padding(1) };
    let d = net.conv("d", blocked, 64, depthwise)?;
    let d = net.activation("silu_d", d, Activation::Silu);
    let x = net.concat("concat2", &[c, d, c])?;
    let x = net.max_pool("pool", x, Pool::square(3).stride(2).ceil())?;
    if auxiliary {
        let y = net.conv("aux.conv", x, 8, Conv { bias: false, ..Conv::square(1) })?;
        let y = net.batch_norm("aux.bn", y, BatchNorm::default())?;
        let y = net.activation("aux.sigmoid", y, Activation::Sigmoid);
        let y = net.linear("aux.fc", y, 7);
        net.auxiliary_head("aux", y, 0.4);
    }
    let x = net.global_avg_pool("avgpool", x)?;
    let x = net.linear("fc", x, 7);
    Ok(net.finish(x))
}

fn random(count: usize, which: u32, size: f32) -> Vec<f32> {
    let mut stream = Stream::new(key(17, Purpose::Synthetic, which));
    (0..count).map(|_| (2.0 * stream.uniform() - 1.0) * size).collect()
}

/// A plan in its own memory, with a batch.
struct Run<'a>(Bound<'a>);

impl<'a> Deref for Run<'a> {
    type Target = Bound<'a>;

    fn deref(&self) -> &Bound<'a> {
        &self.0
    }
}

impl Run<'_> {
    fn new(device: &dyn Device, graph: Graph, threshold: usize) -> Run<'_> {
        let bound = Bound::new(device, graph, threshold);
        let images = random(bound.program.images.bytes() / 4, 1, 1.0);
        let labels: Vec<i32> = (0..bound.plan.graph.batch() as i32).map(|i| (i * 3) % 7).collect();
        bound.set_batch(&images, &labels);
        Run(bound)
    }

    /// Every running statistic by name.
    fn statistics(&self) -> Vec<(String, Vec<f32>)> {
        let read = |statistic: &Statistic| {
            let mut values = vec![0f32; statistic.spec.shape.elements()];
            self.device.download(&self.statistic(statistic), bytes_of_mut(&mut values)).unwrap();
            (statistic.name.clone(), values)
        };
        self.plan.statistics.iter().map(read).collect()
    }

    /// Writes every parameter: its base value plus `h` times its direction.
    fn set_parameters(&self, h: f32) {
        for parameter in &self.plan.parameters {
            let (value, direction) = base_and_direction(parameter);
            let values: Vec<f32> = value.iter().zip(&direction).map(|(v, d)| v + h * d).collect();
            self.set_parameter(parameter, &values);
        }
    }

    fn loss(&mut self, backward: bool) -> f64 {
        let end = if backward { self.program.steps.len() } else { self.program.forward_steps };
        self.0.run(0..end, &SCALARS);
        self.0.loss()
    }

    /// Every parameter's gradient by name, in plain order.
    fn gradients(&mut self) -> Vec<(String, Vec<f32>)> {
        self.gradients_at(0.0)
    }

    /// The same of parameters that are moved by so much.
    fn gradients_at(&mut self, h: f32) -> Vec<(String, Vec<f32>)> {
        self.set_parameters(h);
        self.loss(true);
        let read = |p: &Parameter| (p.name.clone(), self.gradient(p));
        let mut all: Vec<_> = self.plan.parameters.iter().map(read).collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    }
}

fn base_and_direction(parameter: &Parameter) -> (Vec<f32>, Vec<f32>) {
    let count = parameter.spec.shape.elements();
    let which =
        parameter.name.bytes().fold(5u32, |hash, byte| hash.wrapping_mul(31).wrapping_add(u32::from(byte)));
    let size = (1.0 / parameter.spec.shape.per_sample() as f32).sqrt();
    (random(count, which, size), random(count, which ^ 1, size))
}

fn graph() -> Graph {
    residual_net().unwrap().simplify().differentiate()
}

fn branching_graph() -> Graph {
    branching_net(true).unwrap().simplify().differentiate()
}

/// The loss's slope along one random direction through all parameters: the gradient's, and the difference quotient's.
/// h = 2⁻⁹ moves the loss by some 1e-3, of which its own rounding (2⁻²⁴ of 2, summed over the layers' f32 results) is
/// 1e-3 at most; the curvature's odd part is h² smaller than the slope. One part in a hundred is asked for.
fn check_slope(device: &dyn Device, graph: Graph, h: f32) {
    let mut run = Run::new(device, graph, 1 << 20);
    let gradients = run.gradients();
    let slope: f64 = gradients
        .iter()
        .map(|(name, gradient)| {
            let (_, direction) = base_and_direction(run.plan.parameter(name).unwrap());
            gradient.iter().zip(&direction).map(|(&g, &d)| f64::from(g) * f64::from(d)).sum::<f64>()
        })
        .sum();
    let mut at = |h| {
        run.set_parameters(h);
        run.loss(false)
    };
    let quotient = (at(h) - at(-h)) / (2.0 * f64::from(h));
    assert!((slope - quotient).abs() < 0.01 * slope.abs().max(0.1), "gradient {slope}, quotient {quotient}");
}

#[test]
fn the_gradient_of_a_whole_network_is_the_slope_of_its_loss() {
    // The branching one has kinks (ReLU6 behind a normalisation, max pooling), which a shorter step meets less often;
    // its loss's own rounding is then some 3e-4 of the quotient.
    for (graph, h) in [(graph(), 2f32.powi(-9)), (branching_graph(), 2f32.powi(-13))] {
        check_slope(&Reference, graph.clone(), h);
        check_slope(&Cpu::new(1).unwrap(), graph, h);
    }
}

/// Every parameter's gradient on the CPU device is that of the definition: relative to the gradient's norm, a few
/// thousand roundings (6e-8) in sums of up to 1e3 products over ten layers, which go to and fro: 3e-5 is a sixth of
/// what they would be if all went one way. Where rounding decides which side of a kink a number is on (ReLU6, max
/// pooling), other parameters show that they agree.
#[test]
fn both_devices_give_the_same_gradients() {
    for (graph, parameters) in [(graph(), 13), (branching_graph(), 17)] {
        for threads in [1, 2] {
            let cpu = Cpu::new(threads).unwrap();
            let found = [0.0, 0.5, -0.5].map(|h| {
                let of = |device: &dyn Device| Run::new(device, graph.clone(), 1 << 20).gradients_at(h);
                let (expected, found) = (of(&Reference), of(&cpu));
                assert_eq!(found.len(), parameters);
                apart(&expected, &found)
            });
            assert!(found.iter().any(|(apart, _)| *apart <= 3e-5), "{found:?}");
        }
    }
}

/// An auxiliary head adds its weighted loss in training; evaluation is that of the network without it, with the same
/// parameters in the same places.
#[test]
fn an_auxiliary_head_is_there_in_training_only() {
    for device in [&Reference as &dyn Device, &Cpu::new(1).unwrap()] {
        let [mut with, mut without] = [true, false].map(|auxiliary| {
            let run = Run::new(device, branching_net(auxiliary).unwrap().simplify().differentiate(), 1 << 20);
            run.set_parameters(0.0);
            run
        });
        let (both, alone) = (with.loss(true), without.loss(true));
        // 0.4 times a loss of 7 classes, which for weights like these is not far from ln 7.
        assert!((0.4..1.6).contains(&(both - alone)), "{both} and {alone}");
        let evaluated = [&with, &without].map(|run| evaluate(run, branching_net(true).unwrap()));
        assert_eq!(evaluated[0], evaluated[1]);
        let names = |run: &Run| run.plan.statistics.iter().map(|s| s.name.clone()).collect::<Vec<_>>();
        assert!(names(&with).contains(&"aux.bn.running_mean".to_string()));
        assert!(!names(&without).contains(&"aux.bn.running_mean".to_string()));
    }
}

/// Tensors by name, the difference relative to the norm of each.
fn alike(expected: &[(String, Vec<f32>)], found: &[(String, Vec<f32>)], tolerance: f64) {
    let (apart, name) = apart(expected, found);
    assert!(apart <= tolerance, "{name}: {apart:e} of its norm");
}

/// The largest difference relative to the norm of a tensor, and the tensor's name.
fn apart(expected: &[(String, Vec<f32>)], found: &[(String, Vec<f32>)]) -> (f64, String) {
    assert_eq!(expected.len(), found.len());
    let each = expected.iter().zip(found).map(|((name, a), (other, b))| {
        assert_eq!(name, other);
        let norm = a.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>().sqrt();
        let error = a.iter().zip(b).map(|(&x, &y)| f64::from(x - y).powi(2)).sum::<f64>().sqrt();
        assert!(norm > 0.0 && error.is_finite(), "{name}: {error:e} of {norm:e}");
        (error / norm, name.clone())
    });
    each.max_by(|a, b| a.0.total_cmp(&b.0)).unwrap()
}

#[test]
fn the_arena_is_smaller_than_its_contents_and_buckets_do_not_change_gradients() {
    let cpu = Cpu::new(1).unwrap();
    let mut whole = Run::new(&cpu, graph(), 1 << 30);
    let mut cut = Run::new(&cpu, graph(), 1);
    assert_eq!(whole.plan.buckets.len(), 1);
    // One a layer: its weight and bias become ready together.
    assert_eq!(cut.plan.buckets.len(), 8);
    assert_ne!(whole.plan.hash(), cut.plan.hash(), "the buckets are not in the hash");
    assert_eq!(whole.gradients(), cut.gradients());
    assert!(whole.plan.sizes.activations < whole.plan.sizes.unshared * 3 / 4);
}

/// Tensors by name.
type Named = Vec<(String, Vec<f32>)>;

/// One step of several ranks in turn, each with its share of a batch of 8, with what they exchange carried between
/// them. Returns the gradients added up over ranks, and the running statistics of each.
fn spread(device: &dyn Device, ranks: usize) -> (Named, Vec<Named>) {
    let share = 8 / ranks;
    let start = |rank: usize| {
        let graph = residual_net_for(share).unwrap().simplify().synchronise_batch_norms(ranks);
        let run = Run::new(device, graph.differentiate(), 1 << 20);
        let images = random(run.program.images.bytes() / 4 * ranks, 1, 1.0);
        let own = &images[rank * images.len() / ranks..(rank + 1) * images.len() / ranks];
        let labels: Vec<i32> = (rank * share..(rank + 1) * share).map(|i| (i as i32 * 3) % 7).collect();
        run.set_batch(own, &labels);
        run.set_parameters(0.0);
        run
    };
    let mut runs: Vec<Run> = (0..ranks).map(start).collect();
    let exchanges: Vec<_> = runs.iter().map(|run| run.program.exchanges.clone()).collect();
    assert_eq!(exchanges[0].len(), if ranks == 1 { 0 } else { 4 });
    for step in 0..runs[0].program.steps.len() {
        for (rank, run) in runs.iter_mut().enumerate() {
            let first_sample = SCALARS.first_sample + (rank * share) as u64;
            run.0.run(step..step + 1, &Scalars { first_sample, ..SCALARS });
        }
        let of_step = exchanges.iter().filter_map(|all| all.iter().find(|exchange| exchange.step == step));
        let mut all = Vec::new();
        for exchange in of_step.clone() {
            let mut own = vec![0u8; exchange.own.bytes()];
            device.download(&exchange.own, &mut own).unwrap();
            all.extend(own);
        }
        of_step.for_each(|exchange| device.upload(&all, &exchange.all).unwrap());
    }
    let of_rank = |run: &Run| -> Named {
        let read = |p: &Parameter| (p.name.clone(), run.gradient(p));
        let mut gradients: Vec<_> = run.plan.parameters.iter().map(read).collect();
        gradients.sort_by(|a, b| a.0.cmp(&b.0));
        gradients
    };
    let mut sum = of_rank(&runs[0]);
    for run in &runs[1..] {
        for (into, from) in sum.iter_mut().zip(of_rank(run)) {
            into.1.iter_mut().zip(from.1).for_each(|(into, from)| *into += from);
        }
    }
    (sum, runs.iter().map(Run::statistics).collect())
}

/// Ranks that share statistics compute what one rank with the whole batch does: the same sums in another order, seven
/// layers deep. What each counts is of order 1, so that a rounding of a sum of a thousand is 1e-6 or so of it.
#[test]
fn normalisation_over_ranks_is_that_of_the_whole_batch() {
    let cpus = [1, 2].map(|threads| Cpu::new(threads).unwrap());
    for device in [&Reference as &dyn Device, &cpus[0], &cpus[1]] {
        let (gradients, statistics) = spread(device, 1);
        for ranks in [2, 4, 8] {
            let (found, of_ranks) = spread(device, ranks);
            alike(&gradients, &found, 1e-5);
            alike(&statistics[0], &of_ranks[0], 1e-5);
            assert!(of_ranks.iter().all(|of| *of == of_ranks[0]), "ranks differ in their statistics");
        }
    }
}

/// The loss of evaluation on the same images, with the parameters and statistics of a training run.
fn evaluate(training: &Run, forward: Graph) -> f64 {
    let options = Options { training: Some(&training.plan), ..Options::whole(1) };
    let plan = plan(forward.for_evaluation().simplify(), training.device, &options).unwrap();
    let own = |bytes| training.device.allocate(bytes).unwrap();
    let regions = Regions {
        arena: own(plan.sizes.activations),
        workspace: own(plan.sizes.workspace),
        ..training.regions.clone()
    };
    let program = plan.bind(&regions).unwrap();
    let mut run = Run(Bound { device: training.device, plan, program, regions });
    run.loss(false)
}

/// Training changes the statistics in every forward pass and where they lie, evaluation reads them there and changes
/// nothing. The third step's share of the first batch is (1 − momentum)².
#[test]
fn running_statistics_are_kept_by_training_and_read_by_evaluation() {
    let after = |device: &dyn Device| {
        let mut run = Run::new(device, graph(), 1 << 20);
        run.set_parameters(0.0);
        let mut history = Vec::new();
        for _ in 0..3 {
            run.loss(true);
            history.push(run.statistics());
        }
        let loss = evaluate(&run, residual_net().unwrap());
        assert_eq!(run.statistics(), history[2], "evaluation changed the statistics");
        (history, loss)
    };
    let (expected, expected_loss) = after(&Reference);
    assert_eq!(expected[0].len(), 4);
    for (index, momentum) in [(0, 0.1), (1, 0.1), (2, 0.25), (3, 0.25)] {
        let (name, first) = &expected[0][index];
        let start = if name.ends_with("var") { 1.0 } else { 0.0 };
        for (channel, &value) in first.iter().enumerate() {
            // The same batch three times: a geometric series.
            let batch = (value - (1.0 - momentum) * start) / momentum;
            let kept = (1.0f32 - momentum).powi(3);
            let third = kept * start + (1.0 - kept) * batch;
            assert!((expected[2][index].1[channel] - third).abs() < 1e-5, "{name} {channel}");
        }
    }
    for threads in [1, 2] {
        let (found, loss) = after(&Cpu::new(threads).unwrap());
        expected.iter().zip(&found).for_each(|(a, b)| alike(a, b, 1e-5));
        assert!((loss - expected_loss).abs() < 1e-5 * expected_loss, "{loss} and {expected_loss}");
    }
}

/// Parameters move with the plan that made them: an evaluation plan reads them where the training plan keeps them.
#[test]
fn an_evaluation_plan_shares_the_parameters() {
    let cpu = Cpu::new(1).unwrap();
    let training = Run::new(&cpu, graph(), 1 << 20);
    let options = Options { training: Some(&training.plan), ..Options::whole(1) };
    let forward = residual_net().unwrap().for_evaluation().simplify();
    let evaluation = plan(forward, &cpu, &options).unwrap();
    assert_eq!(evaluation.parameters.len(), training.plan.parameters.len());
    for (a, b) in evaluation.parameters.iter().zip(&training.plan.parameters) {
        assert_eq!((&a.name, a.offset, &a.layout), (&b.name, b.offset, &b.layout));
    }
    for (a, b) in evaluation.statistics.iter().zip(&training.plan.statistics) {
        assert_eq!((&a.name, a.place), (&b.name, b.place));
    }
    assert!(evaluation.buckets.is_empty() && evaluation.sizes.gradients == 0);
}

/// Rules with norms need each parameter apart; the others few long runs. Both cover every parameter, and decay none but
/// weights.
#[test]
fn updates_are_given_single_parameters_or_runs_of_them() {
    let options = Options::whole(usize::MAX);
    let plan = plan(residual_net().unwrap().simplify().differentiate(), &Reference, &options).unwrap();
    let bucket = &plan.buckets[0];
    let lars = Rule::Lars { momentum: 0.9, trust: 0.001, weight_decay: 0.0 };
    let sgd = Rule::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 };
    let (single, runs) = (plan.spans(&bucket.bytes, &lars), plan.spans(&bucket.bytes, &sgd));
    let parameters: Vec<_> =
        plan.parameters.iter().map(|p| (p.offset / 4, p.layout.bytes() / 4, p.decay)).collect();
    let spans: Vec<_> = single.iter().map(|span| (span.start, span.length, span.decay)).collect();
    assert_eq!(spans, parameters);
    // conv2 has no bias, so that its weights meet those of conv1.
    assert!(runs.len() < single.len());
    for span in single {
        let is_there = |run: &Span| {
            run.decay == span.decay
                && run.start <= span.start
                && span.start + span.length <= run.start + run.length
        };
        assert_eq!(runs.iter().filter(|run| is_there(run)).count(), 1, "{span:?}");
    }
}

/// However many ranks divide a bucket's parameters, each belongs to one of them, and to one alone where its norm is
/// needed. Shares do not part cache lines: ranks write to them at the same time.
#[test]
fn shares_of_an_update_cover_every_parameter_once() {
    let lars = Rule::Lars { momentum: 0.9, trust: 0.001, weight_decay: 0.0 };
    let sgd = Rule::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 };
    for threshold in [0, 3000, usize::MAX] {
        let options = Options::whole(threshold);
        let plan = plan(residual_net().unwrap().simplify().differentiate(), &Reference, &options).unwrap();
        for (rule, ranks) in [lars, sgd].into_iter().flat_map(|rule| (1..20).map(move |ranks| (rule, ranks)))
        {
            let mut end = 0;
            let mut spans = Vec::new();
            for (bucket, rank) in plan.buckets.iter().flat_map(|b| (0..ranks).map(move |rank| (b, rank))) {
                let share = plan.share(bucket, &rule, rank, ranks);
                assert!(
                    share.start == end && share.end >= end && share.start.is_multiple_of(64),
                    "{share:?}"
                );
                spans.extend(plan.spans(&share, &rule));
                end = share.end;
            }
            assert_eq!(end, plan.sizes.parameters);
            let covered = |place: usize| {
                spans.iter().filter(|s| (s.start..s.start + s.length).contains(&place)).count()
            };
            for parameter in &plan.parameters {
                let (start, elements) = (parameter.offset / 4, parameter.layout.bytes() / 4);
                assert!((start..start + elements).all(|place| covered(place) == 1), "{}", parameter.name);
                let whole = spans.iter().any(|span| (span.start, span.length) == (start, elements));
                assert!(whole || !rule.has_trust(), "{} is parted", parameter.name);
            }
        }
        let largest =
            |ranks| (0..ranks).map(|r| plan.share(&plan.buckets[0], &sgd, r, ranks).len()).max().unwrap();
        assert!(largest(2) <= plan.buckets[0].bytes.len() / 2 + 64, "not even");
    }
}

/// Blocks of everything that is computed again: its bits must be those of the first time, and nothing but activations
/// may notice.
fn deep_net() -> Result<Graph> {
    let (mut net, mut x) = Builder::new("deep", BATCH, [3, 6, 6]);
    let conv = Conv { bias: false, ..Conv::square(3).padding(1) };
    x = net.conv("stem", x, 8, conv)?;
    for block in 0..6 {
        let named = |layer: &str| format!("block{block}.{layer}");
        let y = net.conv(&named("conv1"), x, 8, Conv { bias: true, ..conv })?;
        let y = net.relu(&named("relu1"), y);
        let y = net.batch_norm(&named("bn1"), y, BatchNorm::default())?;
        let y = net.dropout(&named("drop"), y, 0.3);
        let y = net.max_pool(&named("pool"), y, Pool::square(3).stride(1).padding(1))?;
        let y = net.conv(&named("conv2"), y, 8, conv)?;
        let y = net.batch_norm(&named("bn2"), y, BatchNorm::default())?;
        let y = net.relu(&named("relu2"), y);
        let y = net.conv(&named("conv3"), y, 8, conv)?;
        let y = net.activation(&named("activation"), y, SMOOTH[block % SMOOTH.len()]);
        let y = net.add(&named("add"), y, x)?;
        x = net.relu(&named("relu3"), y);
    }
    let x = net.global_avg_pool("pool", x)?;
    let x = net.linear("fc", x, 7);
    Ok(net.finish(x))
}

#[test]
fn what_is_computed_again_has_the_same_bits() {
    let graph = deep_net().unwrap().simplify().differentiate();
    let again = graph.clone().recompute();
    let ops: Vec<&str> = again.recomputed.iter().map(|&id| again.node(id).op.name()).collect();
    for op in ["conv2d", "conv2d+relu", "batch norm", "batch norm+relu", "dropout", "max pool", "add+relu"] {
        assert!(ops.contains(&op), "no {op} is computed again: {ops:?}");
    }
    let (one, two) = (Cpu::new(1).unwrap(), Cpu::new(2).unwrap());
    for device in [&Reference as &dyn Device, &one, &two] {
        let [mut kept, mut computed] = [&graph, &again].map(|graph| Run::new(device, graph.clone(), 1 << 12));
        let sizes = [kept.plan.sizes.activations, computed.plan.sizes.activations];
        assert!(2 * sizes[1] < sizes[0], "{}: {sizes:?} bytes of activations", device.name());
        assert_eq!(kept.plan.buckets.len(), computed.plan.buckets.len());
        for _ in 0..2 {
            assert!(kept.gradients() == computed.gradients(), "{}: gradients differ", device.name());
            assert!(kept.statistics() == computed.statistics(), "{}: statistics differ", device.name());
        }
        assert_eq!(kept.loss(false).to_bits(), computed.loss(false).to_bits());
    }
}

/// The promise, at the full image size. Layouts are plain here; nothing is compiled or run.
#[test]
fn recomputation_halves_the_activations_of_resnet152_at_least() {
    let net = model::find("resnet152").unwrap();
    let graph = net.build(4, net.image, net.classes).unwrap().simplify().differentiate();
    let options = Options::whole(1 << 20);
    let [kept, computed] =
        [graph.clone(), graph.recompute()].map(|graph| plan(graph, &Reference, &options).unwrap());
    assert!(2 * computed.sizes.activations < kept.sizes.activations);
    let flops = |plan: &Plan| plan.graph.total_cost(false).flops as f64;
    assert!(flops(&computed) < 1.35 * flops(&kept));
}

/// No model loses by it, and none changes what is learned.
#[test]
fn recomputation_suits_every_model() {
    let options = Options::whole(1 << 20);
    for net in model::MODELS {
        let graph = net.build(2, net.image, net.classes).unwrap().simplify().differentiate();
        let [kept, computed] =
            [graph.clone(), graph.recompute()].map(|graph| plan(graph, &Reference, &options).unwrap());
        let sizes = [kept.sizes.activations, computed.sizes.activations];
        assert!(sizes[1] <= sizes[0], "{}: {sizes:?} bytes of activations", net.name());
        let names = |plan: &Plan| plan.parameters.iter().map(|p| p.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&kept), names(&computed), "{}", net.name());
    }
}

/// Attention-like: normalised rows, and GELU between two linear layers.
fn transformer_net() -> Result<Graph> {
    let (mut net, x) = Builder::new("rows", BATCH, [1, 6, 16]);
    let mut x = net.reshape("rows", x, dims([BATCH, 6, 16]))?;
    for block in 0..4 {
        let named = |layer: &str| format!("{block}.{layer}");
        let y = net.layer_norm(&named("norm"), x, 1, 1e-6)?;
        let y = net.linear_along(&named("up"), y, 32)?;
        let y = net.activation(&named("gelu"), y, Activation::Gelu);
        let y = net.linear_along(&named("down"), y, 16)?;
        x = net.add(&named("add"), x, y)?;
    }
    let x = net.reshape("joined", x, dims([BATCH, 96]))?;
    let x = net.linear("fc", x, 7);
    Ok(net.finish(x))
}

#[test]
fn what_is_remade_has_the_same_bits_in_less_memory() {
    let graph = transformer_net().unwrap().simplify().differentiate();
    // Sums of 2·16 operations read an element of a GELU's output, and 2·32 one of a normalisation's.
    let counts = [1, 33, 65].map(|operations| graph.clone().remake(operations).recomputed.len());
    // A normalisation or GELU with its reshape, in each of four blocks.
    assert_eq!(counts, [16, 8, 0]);
    let again = graph.clone().remake(1);
    let cpu = Cpu::new(2).unwrap();
    for device in [&Reference as &dyn Device, &cpu] {
        let [mut kept, mut remade] = [&graph, &again].map(|graph| Run::new(device, graph.clone(), 1 << 12));
        let sizes = [kept.plan.sizes.activations, remade.plan.sizes.activations];
        assert!(5 * sizes[1] < 4 * sizes[0], "{}: {sizes:?} bytes of activations", device.name());
        assert!(kept.gradients() == remade.gradients(), "{}: gradients differ", device.name());
        assert_eq!(kept.loss(false).to_bits(), remade.loss(false).to_bits());
    }
}

/// Twelve layers of attention have two normalisations and a GELU each; what nets of convolutions keep stays.
#[test]
fn the_cpu_remakes_what_large_linear_layers_read() {
    let cpu = Cpu::new(1).unwrap();
    let operations = cpu.remakes_from().unwrap();
    for (name, layers) in
        [("vit_b_16", 12), ("resnet50", 0), ("mobilenet_v3_large", 0), ("efficientnet_b0", 0)]
    {
        let net = model::find(name).unwrap();
        let graph = net.build(2, net.image, net.classes).unwrap().simplify().differentiate();
        let remade = graph.clone().remake(operations);
        let count = remade.recomputed.iter().filter(|id| remade.node(**id).op != Op::Reshape).count();
        assert_eq!(count, 3 * layers, "{name}");
        let options = Options::whole(1 << 20);
        let [kept, remade] =
            [graph, remade].map(|graph| plan(graph, &Reference, &options).unwrap().sizes.activations);
        // Of the 19 widths that a layer keeps of each token (3 of them probabilities) 6 are remade.
        assert!(
            if layers == 0 { remade == kept } else { remade * 100 < kept * 80 },
            "{name}: {remade} of {kept}"
        );
    }
}
