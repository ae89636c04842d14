//! Large linear layers split over ranks, which have images of their own.
//!
//! - losses, tests and weights are those of plain data parallelism but for rounding, for groups of two and four ranks,
//!   alone and beside others; the first losses say that first values and masks are those of the whole network;
//! - a checkpoint of any layout resumes in any other;
//! - a rank has its parts alone: memory is as planned; bytes are those of docs/algorithms.md;
//! - on GPUs the numbers are those of the CPU;
//! - what does not go together is refused, and --dry-run says what is split and what that saves.
//!
//! Which layers are worth it, and what becomes of the graph, is tested in `lib::graph`.

use crate::support::cases::{each, first};
use crate::support::digits::few_tests;
use crate::support::disturbed::{disturbed, disturbed_often};
use crate::support::gpu_job;
use crate::support::job::{self, run, series};
use crate::support::scratch::Scratch;

use std::fs;
use std::path::{Path, PathBuf};

use dltrain::device::onednn::isa;
use dltrain::record::WeightsFile;

/// Rounding of sums that are made in another order, over some steps.
const ROUNDING: f64 = 1e-5;

/// What a run left.
struct Left {
    losses: Vec<f64>,
    tests: Vec<f64>,
    weights: PathBuf,
    results: PathBuf,
}

fn words(text: &str) -> Vec<&str> {
    text.split_whitespace().collect()
}

fn train(scratch: &Scratch, ranks: usize, flags: &str) -> Left {
    let ([results, weights], _) = scratch.train_to_files(ranks, flags);
    let [losses, tests] = ["steps/loss", "epochs/test_loss"].map(|name| series(&results, name));
    Left { losses, tests, weights, results }
}

/// The largest difference of two series, as a share.
fn apart(one: &[f64], other: &[f64]) -> f64 {
    assert!(one.len() == other.len() && one.iter().all(|loss| loss.is_finite()), "{one:?} {other:?}");
    one.iter().zip(other).map(|(a, b)| (a - b).abs() / b.abs().max(1e-3)).fold(0.0, f64::max)
}

/// Of each tensor the norm of the difference, as a share of its own; the largest one.
fn weights_apart(one: &Path, other: &Path) -> f64 {
    let [one, other] = [one, other].map(|path| WeightsFile::open(path).unwrap());
    assert_eq!(one.shapes(), other.shapes(), "files have whole layers");
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
    let of = |(name, _): &(String, Vec<usize>)| {
        let [a, b] = [&one, &other].map(|file| file.values(name).unwrap());
        let mut both = a.iter().zip(&b).map(|(a, b)| f64::from(a - b));
        norm(&mut both) / norm(&mut b.iter().map(|&value| f64::from(value))).max(1e-3)
    };
    one.shapes().iter().map(of).fold(0.0, f64::max)
}

/// Dropout between two split layers, a layer split alone, a batch that ranks share unevenly, clipping, averages,
/// accumulation, weights that stay, recomputation. Large networks take one step: of some million numbers before a ReLU
/// one is as near to 0 as rounding is far in each of the next, and biases, which begin at 0, show whether it passes
/// (one unit of vgg11 in the second step, of size 1e-3 in all biases before it, where all other differences are below
/// 1e-6).
#[test]
fn split_layers_come_to_what_data_parallelism_does() {
    let scratch = Scratch::new();
    let digits = few_tests();
    let of_digits = |model: &str| format!("--model {model} --data {digits} --steps 6");
    let cases = [
        (of_digits("mnist_net"), "--batch 8 --optimizer sgd --lr 0.05 --clip-norm 1", 2, 1),
        (of_digits("mnist_large"), "--batch 4 --optimizer adam --lr 0.0005 --ema 0.9 --accumulation 2", 2, 2),
        (
            "--model vgg11 --image-size 32 --classes 10".into(),
            "--steps 1 --batch 2 --optimizer sgd --lr 0.01",
            2,
            2,
        ),
        (of_digits("mnist_net"), "--global-batch 30 --optimizer sgd --lr 0.05 --recompute", 4, 1),
        (of_digits("mnist_large"), "--batch 2 --optimizer adam --lr 0.0005 --freeze conv1", 4, 1),
        (of_digits("mnist_net"), "--batch 4 --optimizer sgd --lr 0.05 --no-overlap", 2, 2),
        (of_digits("mnist_net"), "--batch 4 --optimizer sgd --lr 0.05 --device reference", 2, 1),
        (
            "--model alexnet --image-size 64 --classes 10".into(),
            "--steps 1 --batch 2 --optimizer sgd --lr 0.01",
            4,
            1,
        ),
        ("--model resnet18 --image-size 64".into(), "--steps 3 --batch 8 --optimizer sgd --lr 1e-5", 2, 1),
    ];
    for (network, flags, tensor, groups) in first(2, cases) {
        let flags = format!("{network} {flags} --warmup 0 --threads 1");
        let plain = train(&scratch, tensor * groups, &flags);
        let split = train(&scratch, tensor * groups, &format!("{flags} --tensor {tensor}"));
        let found = [apart(&split.losses, &plain.losses), apart(&split.tests, &plain.tests)];
        // Adam divides gradients by their own size: the rounding of one that is a hundredth of the others counts a
        // hundred times.
        let rounding = if flags.contains("adam") { 100.0 * ROUNDING } else { ROUNDING };
        let weights = weights_apart(&split.weights, &plain.weights);
        assert!(
            found.iter().all(|&apart| apart < ROUNDING) && weights < rounding,
            "{flags} --tensor {tensor}: {found:?} {weights}"
        );
    }
}

#[test]
fn halves_are_close() {
    let scratch = Scratch::new();
    let flags = format!(
        "--model mnist_net --data {} --steps 6 --batch 8 --optimizer sgd --lr 0.05 --warmup 0 --threads 1",
        few_tests()
    );
    // Parts of sums are rounded to 8 bits before they are added up.
    if isa().unwrap().has_bf16() {
        let plain = train(&scratch, 2, &format!("{flags} --precision bf16"));
        let split = train(&scratch, 2, &format!("{flags} --precision bf16 --tensor 2"));
        assert!(apart(&split.losses, &plain.losses) < 0.02, "{:?} {:?}", split.losses, plain.losses);
    } else {
        println!("SKIPPED: this CPU has no bf16 arithmetic");
    }
    // And to 11, with a loss scale that all ranks change together.
    let mut results = gpu_job::Results::new();
    let words = "--model mnist_net --batch 4 --steps 4 --threads 1 --optimizer sgd --lr 0.05 --device cuda \
                 --precision f16";
    let [plain, split] = ["", "--tensor 2"].map(|more| results.losses(2, &format!("{words} {more}")));
    assert!(apart(&split, &plain) < 0.0025, "{split:?} {plain:?}");
}

#[test]
fn a_checkpoint_of_any_layout_resumes_in_any_other() {
    let scratch = Scratch::new();
    let place = scratch.directory().display().to_string();
    let flags = format!(
        "--model mnist_net --data {} --warmup 0 --threads 1 --optimizer adam --lr 0.0005 --ema 0.9",
        few_tests()
    );
    let layouts = [(2, "--batch 8 --tensor 2"), (4, "--batch 4 --tensor 4"), (1, "--batch 16")];
    let whole = train(&scratch, 1, &format!("{flags} {} --steps 6", layouts[2].1));
    for (from, to) in first(2, [(0, 2), (2, 0), (0, 1), (1, 0)]) {
        let [kept, results, weights] =
            ["c", "r.h5", "w.safetensors"].map(|name| format!("{place}/{from}{to}{name}"));
        for ((ranks, layout), steps) in [(layouts[from], 3), (layouts[to], 6)] {
            let files = format!("--checkpoint {kept} --resume auto --results {results}");
            let saved = if steps == 6 { format!("--save-weights {weights}") } else { String::new() };
            run(ranks, &words(&format!("{flags} {layout} --steps {steps} {files} {saved}")));
        }
        let losses = series(Path::new(&results), "steps/loss");
        assert!(apart(&losses, &whole.losses) < ROUNDING, "{from} to {to}: {losses:?}");
        let weights = weights_apart(Path::new(&weights), &whole.weights);
        assert!(weights < 10.0 * ROUNDING, "{from} to {to}: {weights}");
    }
}

/// AlexNet has 228 MB of gradients at 16 classes, nearly all of them of two layers.
#[test]
fn alexnet_has_the_same_weights_with_memory_as_planned_and_bytes_of_the_table() {
    let scratch = Scratch::new();
    let flags = "--model alexnet --image-size 64 --classes 16 --batch 2 --optimizer sgd --steps 2 --warmup 0 --threads 1 --allreduce ring";
    let [plain, split] = ["", "--tensor 2"].map(|more| train(&scratch, 2, &format!("{flags} {more}")));
    for left in [&plain, &split] {
        job::within_plan(&left.results, flags).unwrap();
    }
    let weights = weights_apart(&split.weights, &plain.weights);
    assert!(apart(&split.losses, &plain.losses) < ROUNDING && weights < ROUNDING, "{weights}");
    let said = |left: &Left, name: &str| job::text(&left.results, "config", name);
    let names = "classifier.1.weight, classifier.4.weight and classifier.6.weight split over 2 ranks";
    assert!(said(&split, "owners").contains(names), "{}", said(&split, "owners"));
    assert_eq!([&plain, &split].map(|left| said(left, "parallel")), ["data", "--tensor 2"]);
    // The same where gradients lie in memory that the ranks share.
    let shared = flags.replace(" --allreduce ring", "");
    let left = train(&scratch, 2, &format!("{shared} --tensor 2"));
    job::within_plan(&left.results, &shared).unwrap();
    let bytes = |left: &Left, name: &str| job::scalar(&left.results, &format!("summary/{name}")) as f64;
    let [fc6, fc7, fc8] =
        [9216 * 4096, 4096 * 4096 + 4096, 4096 * 16].map(|numbers| 4.0 * f64::from(numbers));
    let sent = [&plain, &split].map(|left| bytes(left, "sent_a_step"));
    // Of two images, forward and backward: half of the inputs of the first layer and its outputs, the inputs of the
    // second one and the outputs of the third.
    let exchanged = f64::from(4 * 2 * 2 * (9216 / 2 + 4096 + 4096 + 16));
    let expected = fc6 + fc7 + fc8 - exchanged;
    assert!((sent[0] - sent[1] - expected).abs() < 1e3, "{sent:?} and {expected}");
}

#[test]
fn gpus_come_to_the_same() {
    let mut results = gpu_job::Results::new();
    for (ranks, flags) in first(
        1,
        [
            (2, "--tensor 2 --clip-norm 0.5"),
            (4, "--mesh data=2,tensor=2"),
            (2, "--tensor 2 --accumulation 2"),
        ],
    ) {
        let words = format!(
            "--model mnist_net --batch 4 --steps 4 --threads 1 --warmup 0 --optimizer sgd --lr 0.05 {flags}"
        );
        let on_cpu = results.losses(ranks, &format!("{words} --device cpu"));
        let on_gpu = results.losses(ranks, &format!("{words} --device cuda --precision f32"));
        gpu_job::close(&on_gpu, &on_cpu, flags);
    }
}

/// What groups wait for of each other.
const EXCHANGE: &[&str] = &["exchange", "all-to-all"];

#[test]
fn a_rank_of_a_group_that_dies_ends_the_job_and_one_that_stops_is_named() {
    for (signal, victim) in [("KILL", 0), ("STOP", 1)] {
        disturbed(2, "--model mnist_net --batch 4 --tensor 2", victim, signal, 0.5, EXCHANGE);
    }
}

/// What takes minutes: `make test-full`.
mod full {
    use super::*;

    /// Nowhere in a step does the rest of the job wait for ever.
    #[test]
    #[ignore = "minutes"]
    fn a_rank_of_a_group_may_die_or_stop_at_fifty_moments() {
        let jobs = [
            (2, "--model mnist_net --batch 4 --tensor 2"),
            (4, "--model mnist_large --batch 4 --tensor 2 --accumulation 2 --clip-norm 0.5"),
            (2, "--model mnist_large --batch 4 --tensor 2 --no-overlap --wire bf16"),
        ];
        disturbed_often(23, 50, &jobs, EXCHANGE);
    }
}

/// Files besides, sums that are rounded, and everything that an update has.
#[test]
fn other_flags_go_with_it() {
    let scratch = Scratch::new();
    let place = scratch.directory().display().to_string();
    let flags = format!(
        "--model mnist_net --data {} --steps 6 --batch 4 --optimizer adamw --lr 0.0005 --warmup 0 --threads 1 \
         --ema 0.9 --clip-norm 1 --accumulation 2 --label-smoothing 0.1 --augment mixup --wire bf16",
        few_tests()
    );
    let plain = train(&scratch, 4, &flags);
    let files = format!(
        "--timeline {place}/t.json --tensorboard {place}/events --checkpoint {place}/kept --checkpoint-every 2steps"
    );
    let split = train(&scratch, 4, &format!("{flags} --tensor 2 {files}"));
    // Gradients are rounded to 8 bits; those of split layers over other ranks.
    let found = [apart(&split.losses, &plain.losses), apart(&split.tests, &plain.tests)];
    assert!(found.iter().all(|&apart| apart < 0.01), "{found:?}");
    let timeline = fs::read_to_string(format!("{place}/t.json")).unwrap();
    assert!(
        ["\"exchange 0\"", "\"forward\""].iter().all(|event| timeline.contains(event)),
        "{timeline:.2000}"
    );
    assert!(fs::read_dir(format!("{place}/events")).unwrap().next().is_some());
    assert!(weights_apart(&split.weights, &plain.weights) < 0.02);
    let test = format!("--model mnist_net --data {} --evaluate --init-from w --tensor 2", few_tests());
    let refused = job::refused(&[(2, &words(&test))]);
    assert!(refused.contains("--tensor would do nothing"), "{refused}");
}

#[test]
fn what_does_not_go_together_is_refused() {
    let cases = [
        (
            3,
            "--tensor 2",
            "--tensor 2: this job has 3 ranks, which are no groups of 2; start a multiple of 2",
        ),
        (2, "--tensor 2 --batch 65536", "has no linear layer whose gradients are more to send"),
        (2, "--mesh data=2,tensor=2", "start 2 × 2"),
        (2, "--tensor 0", "--tensor 0: must be at least 1"),
        (2, "--tensor 2 --zero 1", "--zero 1 and --tensor"),
        (2, "--mesh pipeline=2,tensor=2", "--pipeline and --tensor"),
        (2, "--tensor 2 --optimizer lamb", "--optimizer lamb and --tensor"),
        (2, "--tensor 2 --compress topk", "--compress and --tensor"),
        (2, "--tensor 2 --shards 2", "--shards and --tensor"),
        (2, "--tensor 2 --spatial 2", "--tensor and --spatial"),
        (2, "--tensor 2 --sync-bn", "--sync-bn and --tensor"),
        (2, "--tensor 2 --commit 2 --checkpoint c", "--commit and --tensor"),
        (2, "--tensor 2 --tensorboard t --tensorboard-histograms 2", "--tensorboard-histograms and --tensor"),
        (2, "--tensor 2 --allreduce mpi", "--allreduce mpi and --tensor"),
        (2, "--tensor 2 --max-batch 1GB", "--max-batch and --tensor"),
        (1, "--tensor 3 --predict-nodes 2", "which are no groups of 3"),
        (2, "--tensor 2 --parallel auto", "'--parallel <auto>'"),
        (1, "--tensor 2", "this job has 1 rank"),
    ];
    each(cases, |(ranks, flags, said)| {
        let flags = format!("{flags} --model mnist_net --threads 1 --dry-run");
        let message = job::misused(ranks, &words(&flags));
        assert!(message.contains(said), "{flags}: {message}");
    });
}

#[test]
fn the_plan_says_what_is_split_and_what_that_saves() {
    let said = run(4, &words("--model alexnet --batch 32 --mesh data=2,tensor=2 --threads 1 --dry-run"));
    for wanted in [
        "linear layers split over groups of 2 ranks, of which there are 2",
        "  classifier.1.weight  ",
        "classifier.4.weight and classifier.6.weight",
        "rehearsed with 4 ranks: none waits for ever",
    ] {
        assert!(said.contains(wanted), "{wanted}: {said}");
    }
}
