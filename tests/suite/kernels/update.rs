//! The optimizers, to the bit of `device::Rule`; norms, clipping, averages and the loss scale.

use dltrain::device::memory::{bytes_of, bytes_of_mut};
use dltrain::device::reference::Reference;
use dltrain::device::{Device, Memory, Rule, Scalars, Span, Step, Updated};

use super::{SCALARS, close, equal, random, scalars_bytes};
use crate::launch;
use crate::support::kernels::{Argument, Buffer, Shape, Start, all_rounded, rounded};

/// Elements of the regions: more than the spans have.
const REGION: usize = 1200;
/// Of unlike lengths, the last two next to each other; some begin where four can be read at once.
const SPANS: [Span; 5] = [
    Span { start: 0, length: 1, decay: false },
    Span { start: 4, length: 500, decay: true },
    Span { start: 509, length: 130, decay: true },
    Span { start: 640, length: 64, decay: false },
    Span { start: 704, length: 440, decay: true },
];
/// Elements of a piece.
const PIECE: usize = 96;

fn bytes_of_table(words: impl Iterator<Item = u64>) -> Buffer {
    Buffer::of_bytes(&words.flat_map(u64::to_ne_bytes).collect::<Vec<u8>>(), Start::Aligned, 8)
}

/// `Span` and `Piece` of kernels/README.md, and how many pieces there are.
fn tables() -> (Buffer, Buffer, i32) {
    let spans = SPANS.iter().flat_map(|span| [span.start as u64, span.length as u64, span.decay.into()]);
    let pieces: Vec<[u64; 2]> = SPANS
        .iter()
        .enumerate()
        .flat_map(|(index, span)| {
            (0..span.length).step_by(PIECE).map(move |at| {
                let length = PIECE.min(span.length - at) as u64;
                [(span.start + at) as u64, length | (index as u64) << 32]
            })
        })
        .collect();
    let count = pieces.len() as i32;
    (bytes_of_table(spans), bytes_of_table(pieces.into_iter().flatten()), count)
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

/// Regions on both sides, and the kernels that move them as a rule does.
struct Twin {
    rule: Rule,
    w: Buffer,
    g: Buffer,
    state: [Option<Buffer>; 2],
    /// Copies of the parameters as bf16 and as f16.
    halves: [Buffer; 2],
    trust: Buffer,
    sums: Buffer,
    there: [Memory; 2],
    there_state: Vec<Memory>,
}

fn betas(rule: &Rule) -> [f32; 2] {
    match *rule {
        Rule::Adam { beta1, beta2, .. } | Rule::Lamb { beta1, beta2, .. } => [beta1, beta2],
        _ => [0.0; 2],
    }
}

impl Twin {
    fn new(rule: Rule, start: Start) -> Twin {
        let (w, g) = (random(REGION, 90), random(REGION, 91));
        let state =
            [0, 1].map(|index| (index < rule.states()).then(|| Buffer::of(&[0.0; REGION], "f32", start)));
        let half = |t| Buffer::of(&[0.0; REGION], t, start);
        let (_, _, pieces) = tables();
        Twin {
            rule,
            there: [memory(&w), memory(&g)],
            there_state: (0..rule.states()).map(|_| memory(&[0.0; REGION])).collect(),
            w: Buffer::of(&w, "f32", start),
            g: Buffer::of(&g, "f32", start),
            state,
            halves: [half("bf16"), half("f16")],
            trust: Buffer::of(&[1.0; SPANS.len()], "f32", Start::Aligned),
            sums: Buffer::of_bytes(&vec![0xff; 16 * pieces as usize], Start::Aligned, 8),
        }
    }

    /// A kernel with the table before its arguments.
    fn run(&self, kernel: &str, arguments: Vec<Argument>) {
        let (spans, pieces, count) = tables();
        let mut all = vec![(&pieces).into(), count.into(), (&spans).into()];
        all.extend(arguments);
        crate::support::kernels::launch(kernel, &Shape::any(), &all);
    }

    /// One step of the kernels; `half` is 1 or 2, the scalars are where a kernel finds them.
    fn step(&self, half: i32, scalars: &Buffer) {
        let (w, g) = (|| Argument::from(&self.w), || Argument::from(&self.g));
        let state = |index: usize| Argument::from(self.state[index].as_ref());
        let copy = || [Argument::from(&self.halves[half as usize - 1]), Argument::Int(half)];
        let [copy_at, copy_type] = copy();
        let (sums, trust, scalars) =
            (|| Argument::from(&self.sums), || Argument::from(&self.trust), || scalars.into());
        let ratios = |factor: f32, decay: f32, lars: bool| {
            let spans = Argument::Int(SPANS.len() as i32);
            self.run("trust", vec![spans, sums(), trust(), factor.into(), decay.into(), lars.into()]);
        };
        match self.rule {
            Rule::Sgd { momentum, nesterov, weight_decay } => self.run(
                "update_sgd",
                vec![
                    w(),
                    g(),
                    state(0),
                    copy_at,
                    copy_type,
                    momentum.into(),
                    nesterov.into(),
                    weight_decay.into(),
                    scalars(),
                ],
            ),
            Rule::Adam { beta1, beta2, epsilon, weight_decay, decoupled } => self.run(
                "update_adam",
                vec![
                    w(),
                    g(),
                    state(0),
                    state(1),
                    copy_at,
                    copy_type,
                    beta1.into(),
                    beta2.into(),
                    epsilon.into(),
                    weight_decay.into(),
                    decoupled.into(),
                    scalars(),
                ],
            ),
            Rule::RmsProp { rms_decay, momentum, epsilon, weight_decay, tensorflow } => self.run(
                "update_rms_prop",
                vec![
                    w(),
                    g(),
                    state(0),
                    state(1),
                    copy_at,
                    copy_type,
                    rms_decay.into(),
                    momentum.into(),
                    epsilon.into(),
                    weight_decay.into(),
                    tensorflow.into(),
                    scalars(),
                ],
            ),
            Rule::Lars { momentum, trust: factor, weight_decay } => {
                self.run("measure_lars", vec![w(), g(), sums(), scalars()]);
                ratios(factor, weight_decay, true);
                self.run(
                    "update_lars",
                    vec![
                        w(),
                        g(),
                        state(0),
                        copy_at,
                        copy_type,
                        trust(),
                        momentum.into(),
                        weight_decay.into(),
                        scalars(),
                    ],
                );
            }
            Rule::Lamb { beta1, beta2, epsilon, weight_decay } => {
                self.run(
                    "measure_lamb",
                    vec![
                        w(),
                        g(),
                        state(0),
                        state(1),
                        sums(),
                        beta1.into(),
                        beta2.into(),
                        epsilon.into(),
                        weight_decay.into(),
                        scalars(),
                    ],
                );
                ratios(0.0, weight_decay, false);
                self.run(
                    "update_lamb",
                    vec![
                        w(),
                        state(0),
                        state(1),
                        copy_at,
                        copy_type,
                        trust(),
                        epsilon.into(),
                        weight_decay.into(),
                        scalars(),
                    ],
                );
            }
        }
    }

    /// Both sides have the same bits; those of rules with norms but for the last, since their sums are added in another
    /// order.
    fn compare(&self, what: &str) {
        let bound = |v: f32| if self.rule.has_trust() { 4.0 * f32::EPSILON * v.abs() + 1e-9 } else { 0.0 };
        close(&self.w.read("f32"), &values(&self.there[0]), bound, what);
        for (here, there) in self.state.iter().flatten().zip(&self.there_state) {
            close(&here.read("f32"), &values(there), bound, &format!("{what}, state"));
        }
    }
}

fn rules() -> Vec<Rule> {
    let weight_decay = 0.01;
    let sgd = |momentum, nesterov| Rule::Sgd { momentum, nesterov, weight_decay };
    let adam = |decoupled| Rule::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay, decoupled };
    let rms = |momentum, tensorflow| Rule::RmsProp {
        rms_decay: 0.9,
        momentum,
        epsilon: 1e-3,
        weight_decay,
        tensorflow,
    };
    vec![
        sgd(0.0, false),
        sgd(0.9, false),
        sgd(0.9, true),
        adam(false),
        adam(true),
        rms(0.0, false),
        rms(0.0, true),
        rms(0.9, false),
        rms(0.9, true),
        Rule::Lars { momentum: 0.9, trust: 0.001, weight_decay },
        Rule::Lamb { beta1: 0.9, beta2: 0.99, epsilon: 1e-6, weight_decay },
    ]
}

fn scalars_of(rule: &Rule, update: u64, skip: u32) -> (Scalars, Buffer) {
    let scalars = Scalars { update, ..SCALARS };
    let bytes = scalars_bytes(&scalars, 1.0, skip, betas(rule));
    (scalars, Buffer::of_bytes(&bytes, Start::Aligned, 4))
}

#[test]
fn every_rule_moves_parameters_as_on_the_host() {
    for rule in rules() {
        for start in [Start::Aligned, Start::Odd] {
            let twin = Twin::new(rule, start);
            let [w, g] = &twin.there;
            let mut there = Reference
                .update(&rule, &SPANS, &Updated { parameters: w, gradients: g, state: &twin.there_state })
                .unwrap();
            for update in 1..=3 {
                let (scalars, buffer) = scalars_of(&rule, update, 0);
                there.run(&scalars).unwrap();
                let half = 1 + update as i32 % 2;
                twin.step(half, &buffer);
                let what = format!("{rule:?}, update {update}, {start:?}");
                twin.compare(&what);
                let t = ["bf16", "f16"][half as usize - 1];
                let (copy, parameters) = (twin.halves[half as usize - 1].read(t), twin.w.read("f32"));
                for span in SPANS {
                    let range = span.start..span.start + span.length;
                    equal(
                        &copy[range.clone()],
                        &all_rounded(t, &parameters[range]),
                        &format!("{what}, the {t} copy"),
                    );
                }
                assert_eq!((copy[1], copy[1150]), (0.0, 0.0), "what no span has is left alone");
            }
        }
    }
}

#[test]
fn a_skipped_step_changes_nothing() {
    for rule in rules() {
        let twin = Twin::new(rule, Start::Aligned);
        let (_, buffer) = scalars_of(&rule, 1, 1);
        twin.step(1, &buffer);
        twin.compare(&format!("{rule:?} skipped"));
        assert!(twin.halves[0].read("bf16").iter().all(|&v| v == 0.0));
    }
    let (from, into) = (Buffer::f32s(&[1.0; 8]), Buffer::f32s(&[2.0; 8]));
    let (_, skip) = scalars_of(&rules()[0], 1, 1);
    launch!("average", Shape::any(), &from, &into, 8i64, 0.5f32, &skip);
    equal(&into.read("f32"), &[2.0; 8], "average");
}

/// On the reference device and with the kernels, in partial sums of so many blocks.
fn clipped(gradients: &[f32], max_norm: f32, blocks: u32) -> [Vec<f32>; 2] {
    let there = memory(gradients);
    Reference.clip(max_norm, &there).unwrap().run(&SCALARS).unwrap();
    let (g, factor) = (Buffer::f32s(gradients), Buffer::f32s(&[9.0]));
    let n = gradients.len() as i64;
    let partials = Buffer::of_bytes(&vec![0xff; 8 * blocks as usize], Start::Aligned, 8);
    launch!("squares", Shape::one([blocks, 1, 1], [256, 1, 1]), &g, n, &partials);
    launch!("clip_factor", Shape::one([1; 3], [256, 1, 1]), &partials, blocks as i32, max_norm, &factor);
    launch!("clip", Shape::any(), &g, n, &factor);
    [g.read("f32"), values(&there)]
}

#[test]
fn gradients_are_clipped_as_on_the_host() {
    for (n, max_norm, blocks) in
        [(1, 0.1, 1), (1030, 3.0, 2), (1030, 15.0, 3), (1030, 1e6, 5), (5000, 0.5, 300)]
    {
        let [found, expected] = clipped(&random(n, 92), max_norm, blocks);
        close(&found, &expected, |v| 2.0 * f32::EPSILON * v.abs(), &format!("{n} clipped to {max_norm}"));
    }
    let [found, expected] = clipped(&[1.0, f32::NAN], 0.5, 1);
    equal(&found, &expected, "a broken gradient is not made a number");
}

#[test]
fn averages_begin_with_the_first_value() {
    let mut expected = memory(&random(37, 93));
    let into = Buffer::f32s(&values(&expected));
    for update in 1..=3 {
        let from = random(37, 93 + update as u32);
        let (scalars, buffer) = scalars_of(&rules()[0], update, 0);
        let source = memory(&from);
        run(Reference.average(0.9, &source, &expected).unwrap(), &scalars);
        launch!("average", Shape::any(), &Buffer::f32s(&from), &into, 37i64, 0.9f32, &buffer);
        equal(&into.read("f32"), &values(&expected), "average");
        expected = memory(&values(&expected));
    }
}

fn run(mut step: Box<dyn Step>, scalars: &Scalars) {
    step.run(scalars).unwrap();
}

#[test]
fn the_loss_scale_goes_off_and_an_overflow_is_seen() {
    let scale = 1.0 / 1024.0;
    let scalars = Buffer::of_bytes(&scalars_bytes(&SCALARS, scale, 0, [0.0; 2]), Start::Aligned, 4);
    for overflow in [None, Some(f32::INFINITY), Some(f32::NAN)] {
        let mut gradients = random(517, 97);
        if let Some(value) = overflow {
            gradients[300] = value;
        }
        let (g, broken) = (Buffer::f32s(&gradients), Buffer::of_bytes(&[0; 4], Start::Aligned, 4));
        launch!("unscale", Shape::any(), &g, 517i64, &broken, &scalars);
        equal(
            &g.read("f32"),
            &gradients.iter().map(|v| rounded("f32", v * scale)).collect::<Vec<_>>(),
            "unscale",
        );
        assert_eq!(broken.bytes() == [1, 0, 0, 0], overflow.is_some());
    }
}
