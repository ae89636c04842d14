//! Images cut by rows over ranks (`--spatial T`): the same training as without, with less memory a rank.
//!
//! - losses, weights, running statistics and tests are those of one rank with the same images, but for rounding: with
//!   any number of parts, even or not, on the reference, the CPU and GPUs, with accumulation, clipping, averages, mixed
//!   images, `--zero 1`, shared statistics and bf16; computing activations again changes no bit;
//! - a run resumes from a checkpoint of one without, and the other way round;
//! - a rank sends the rows that docs/algorithms.md says, and has the memory that its plan says, which is less;
//! - what does not go together is refused, and a rank that is killed ends the job.

use crate::support::cases::{each, first};
use crate::support::digits::few_tests;
use crate::support::disturbed::{disturbed, disturbed_often};
use crate::support::gpu_job;
use crate::support::job;
use crate::support::residual::residual;
use crate::support::scratch::Scratch;

use std::fs;
use std::path::PathBuf;

use dltrain::device::onednn::Cpu;
use job::{misused, refused, run, scalar, series, within_plan};
use safetensors::SafeTensors;

const DIGITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/data/digits");

/// Sums in another order: of some hundred numbers, each off by 2⁻²⁴ of itself at most, through some layers and steps.
const ROUNDING: f64 = 1e-5;

impl Scratch {
    fn train_plainly(&self, ranks: usize, words: &str) -> [PathBuf; 2] {
        self.train_to_files(ranks, &format!("{words} --warmup 0 --threads 1")).0
    }

    /// That ranks with parts of images come to what fewer ranks with whole images come to.
    fn alike_in_parts(&self, ranks: usize, parts: usize, words: &str, more: &str) {
        let [whole, cut] =
            [(ranks / parts, words.to_string()), (ranks, format!("{words} --spatial {parts} {more}"))]
                .map(|(ranks, words)| self.train_plainly(ranks, &words));
        let what = format!("{ranks} ranks, {words} --spatial {parts} {more}");
        for name in ["steps/loss", "epochs/test_loss", "epochs/test_accuracy"] {
            if words.contains("--data") || name == "steps/loss" {
                near(&series(&cut[0], name), &series(&whole[0], name), ROUNDING, &format!("{what}: {name}"));
            }
        }
        let [whole, cut] = [&whole[1], &cut[1]].map(|path| fs::read(path).unwrap());
        let [whole, cut] = [&whole, &cut].map(|bytes| SafeTensors::deserialize(bytes).unwrap());
        for (name, tensor) in whole.tensors() {
            let [found, expected] = [cut.tensor(&name).unwrap(), tensor].map(|tensor| numbers(tensor.data()));
            let most = expected.iter().fold(1.0, |most: f64, number| most.max(number.abs()));
            near(&found, &expected, ROUNDING * most, &format!("{what}: {name}"));
        }
    }
}

fn numbers(bytes: &[u8]) -> Vec<f64> {
    bytes.as_chunks::<4>().0.iter().map(|&word| f64::from(f32::from_le_bytes(word))).collect()
}

fn near(found: &[f64], expected: &[f64], tolerance: f64, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (a, b) in found.iter().zip(expected) {
        assert!((a - b).abs() <= tolerance, "{what}: {a} where {b} is without");
    }
}

/// Heights of 28, 14 and 7 rows in up to five parts, with what else a run may have.
#[test]
fn any_number_of_parts_comes_to_the_same() {
    let scratch = Scratch::new();
    let plain = "--model mnist_small --batch 4 --steps 3 --optimizer sgd --lr 0.05 --momentum 0.9";
    for parts in first(2, [3, 4, 2, 5, 7]) {
        scratch.alike_in_parts(parts, parts, plain, "");
    }
    scratch.alike_in_parts(3, 3, &plain.replace("--batch 4", "--batch 2 --device reference"), "");
    let rest = format!(
        "{plain} --data {} --repeat-data 1 --epochs 1 --accumulation 2 --clip-norm 0.5 --ema 0.9 \
         --augment crop,mixup=0.4,cutmix=1",
        few_tests()
    );
    scratch.alike_in_parts(4, 2, &rest, "--zero 1");
}

/// Strided, grouped and padded convolutions, poolings in ceil mode, residual sums, concatenations, statistics of unlike
/// many rows, channels that are weighed by means of all rows.
#[test]
fn networks_come_to_the_same() {
    let scratch = Scratch::new();
    let words = |model: &str, size: usize, batch: usize, rate: &str| {
        format!(
            "--model {model} --image-size {size} --classes 10 --batch {batch} --steps 2 --optimizer sgd --lr {rate}"
        )
    };
    // So many images that a variance is one of many numbers, and steps so short that they do not add up what is
    // rounded.
    let all = [
        (3, "resnet18", 64, 8, "1e-5"),
        (2, "densenet121", 64, 8, "1e-6"),
        (2, "googlenet", 96, 8, "1e-6"),
        (4, "mobilenet_v3_large", 64, 8, "1e-5"),
        (3, "squeezenet1_1", 63, 2, "0.01"),
        (2, "efficientnet_b0", 64, 8, "1e-5"),
        (2, "shufflenet_v2_x1_0", 64, 8, "1e-5"),
        (2, "vit_b_16", 32, 2, "1e-4"),
        (2, "alexnet", 67, 2, "1e-3"),
    ];
    for (parts, model, size, batch, rate) in first(2, all) {
        scratch.alike_in_parts(parts, parts, &words(model, size, batch, rate), "");
    }
}

/// Transposed convolutions with padding, without, and with rows between.
#[test]
fn layers_that_make_images_larger_come_to_the_same() {
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/onnx/sizes.onnx");
    let words = format!("--model {model} --batch 4 --steps 2 --optimizer sgd --lr 1e-3");
    for parts in [2, 3] {
        Scratch::new().alike_in_parts(parts, parts, &words, "");
    }
}

/// Statistics over more ranks than those with the same images: of images of 32 rows some layers have all of their rows
/// everywhere.
#[test]
fn shared_statistics_are_those_of_whole_images() {
    let scratch = Scratch::new();
    let words = format!(
        "{} --batch 8 --steps 2 --optimizer sgd --lr 1e-5 --sync-bn --data {DIGITS} --repeat-data 1",
        residual()
    );
    scratch.alike_in_parts(4, 2, &words, "");
}

/// To the bit: activations that are computed again, and gradients that travel beside.
#[test]
fn what_only_moves_work_changes_no_bit() {
    let scratch = Scratch::new();
    let words = "--model resnet18 --image-size 36 --classes 10 --batch 4 --steps 2 --lr 0.01 --spatial 2";
    let plain = scratch.train_plainly(2, words);
    for flags in first(1, ["--recompute", "--no-overlap"]) {
        let other = scratch.train_plainly(2, &format!("{words} {flags}"));
        assert_eq!(series(&other[0], "steps/loss"), series(&plain[0], "steps/loss"), "{flags}");
        assert!(fs::read(&other[1]).unwrap() == fs::read(&plain[1]).unwrap(), "{flags}: other weights");
    }
}

/// In 8 bits, and on GPUs in 11, with a loss scale that all ranks change together.
#[test]
fn halves_are_close() {
    let scratch = Scratch::new();
    let words = "--model mnist_small --batch 4 --steps 3 --lr 0.01";
    let close = |cut: &[f64], whole: &[f64], share: f64| {
        let near = |(a, b): (&f64, &f64)| (a - b).abs() < share * b.abs();
        assert!(cut.len() == whole.len() && cut.iter().zip(whole).all(near), "{cut:?} and {whole:?}");
    };
    if Cpu::new(1).is_ok_and(|cpu| cpu.has_bf16().is_ok()) {
        let train =
            |ranks, more: &str| scratch.train_plainly(ranks, &format!("{words} --precision bf16 {more}"));
        let [cut, whole] =
            [train(2, "--spatial 2"), train(1, "")].map(|files| series(&files[0], "steps/loss"));
        close(&cut, &whole, 0.02);
        // One rank's kernel gives a gradient in another layout: buckets of single layers are cut alike all the same.
        let words =
            "--model cifar_net --batch 7 --steps 1 --precision bf16 --fusion-threshold-mb 0 --spatial 2";
        scratch.train_plainly(2, words);
    } else {
        println!("SKIPPED: this CPU has no bf16 arithmetic");
    }
    let mut results = gpu_job::Results::new();
    let words = format!("{words} --device cuda --precision f16 --threads 1");
    let [cut, whole] =
        [(2, "--spatial 2"), (1, "")].map(|(ranks, more)| results.losses(ranks, &format!("{words} {more}")));
    close(&cut, &whole, 0.0025);
}

/// Files besides, sums that are rounded, and what a run may have of the rest.
#[test]
fn other_flags_go_with_it() {
    let scratch = Scratch::new();
    let words = format!(
        "--model mnist_small --data {DIGITS} --repeat-data 1 --steps 4 --batch 4 --lr 0.01 --wire bf16 --ema 0.9 \
         --clip-norm 1 --accumulation 2 --label-smoothing 0.1"
    );
    let whole = scratch.train_plainly(2, &words);
    let files = "--timeline DIR/t.json --tensorboard DIR/events --tensorboard-histograms 2 --checkpoint DIR/kept \
                 --checkpoint-every 2steps --commit 2";
    let cut = scratch.train_plainly(4, &format!("{words} --spatial 2 {files}"));
    let [found, expected] = [&cut, &whole].map(|files| series(&files[0], "steps/loss"));
    // Gradients are rounded to 8 bits on their way.
    near(&found, &expected, 0.02, &words);
    let timeline = fs::read_to_string(scratch.path("t.json")).unwrap();
    assert!(timeline.contains("rank 3") && timeline.contains("forward"), "{timeline:.2000}");
    let events =
        fs::read_dir(scratch.path("events")).unwrap().map(|file| fs::read(file.unwrap().path()).unwrap());
    let named = |name: &[u8], bytes: &Vec<u8>| bytes.windows(name.len()).any(|window| window == name);
    assert!(events.into_iter().any(|bytes| named(b"conv1.weight", &bytes)), "no histograms");
    let test = format!("--model mnist_small --data {DIGITS} --evaluate --init-from w --spatial 2");
    let refused = refused(&[(2, &test.split_whitespace().collect::<Vec<_>>())]);
    assert!(refused.contains("--spatial would do nothing"), "{refused}");
}

/// What ranks with the same images wait for of each other.
const ROWS: &[&str] = &["rows of ", "exchange"];

#[test]
fn a_rank_of_a_group_that_dies_ends_the_job_and_one_that_stops_is_named() {
    for (signal, victim) in [("KILL", 1), ("STOP", 0)] {
        disturbed(2, "--model mnist_small --batch 4 --spatial 2", victim, signal, 0.5, ROWS);
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
            (2, "--model mnist_small --batch 4 --spatial 2"),
            (3, "--model resnet18 --image-size 36 --batch 2 --spatial 3"),
            (4, "--model mnist_small --batch 4 --spatial 2 --accumulation 2 --zero 1 --no-overlap"),
        ];
        disturbed_often(29, 50, &jobs, ROWS);
    }

    /// The largest images of the zoo. Its auxiliary head and poolings of unlike windows see rows of 299, 149, 147, 73,
    /// 71, 35, 17 and 8. Statistics are put together as with `--sync-bn`, to which it is compared; beside those of one
    /// rank, in other kernels, 94 normalisations of few numbers lift what is rounded in four images to 1.7e-5 of the
    /// loss.
    #[test]
    #[ignore = "minutes"]
    fn inception_at_its_own_size_comes_to_the_same() {
        let scratch = Scratch::new();
        let train = |ranks: usize, words: &str| {
            let words = format!("--model inception_v3 --steps 2 --optimizer sgd --lr 1e-8 {words}");
            let [results, _] = scratch.train_plainly(ranks, &words);
            within_plan(&results, &words).unwrap_or_else(|what| panic!("{words}: {what}"));
            (series(&results, "steps/loss"), scalar(&results, "summary/peak_memory"))
        };
        for (ranks, whole, cut) in [(1, "--batch 2", "--batch 2"), (2, "--batch 2 --sync-bn", "--batch 4")] {
            let (whole, cut) = (train(ranks, whole), train(2, &format!("{cut} --spatial 2")));
            near(&cut.0, &whole.0, ROUNDING * whole.0[0], "losses");
            println!("{:?} with {} bytes, {:?} with {}", cut.0, cut.1, whole.0, whole.1);
            assert!(ranks > 1 || cut.1 < whole.1, "{} and {} bytes", cut.1, whole.1);
        }
    }
}

#[test]
fn gpus_come_to_the_same() {
    let mut results = gpu_job::Results::new();
    let words = "--batch 4 --steps 2 --threads 1 --precision f32";
    for (parts, model) in first(
        2,
        [(2, "--model mnist_small"), (3, &format!("{} --lr 1e-4", residual())), (3, "--model mnist_small")],
    ) {
        let whole = results.losses(1, &format!("--device cuda {model} {words}"));
        let cut = results.losses(parts, &format!("--device cuda {model} {words} --spatial {parts}"));
        gpu_job::close(&cut, &whole, model);
    }
}

/// A checkpoint has nothing of how images were cut.
#[test]
fn a_run_goes_on_with_other_parts() {
    let scratch = Scratch::new();
    let words = format!("--model mnist_small --batch 8 --lr 0.01 --data {DIGITS} --repeat-data 1");
    let whole = scratch.train_plainly(1, &format!("{words} --steps 4"));
    for (first, second) in [((1, ""), (2, "--spatial 2")), ((3, "--spatial 3"), (1, ""))] {
        let keep = format!("--checkpoint DIR/c{} --checkpoint-every 2steps", first.0);
        scratch.train_plainly(first.0, &format!("{words} --steps 2 {keep} {}", first.1));
        let found = fs::read_dir(scratch.path(&format!("c{}", first.0))).unwrap();
        let newest = found.map(|entry| entry.unwrap().path()).max().unwrap();
        let on = scratch.train_plainly(
            second.0,
            &format!("{words} --steps 4 --resume {} {}", newest.display(), second.1),
        );
        let [found, expected] = [&on[1], &whole[1]].map(|path| fs::read(path).unwrap());
        let [found, expected] = [&found, &expected].map(|bytes| SafeTensors::deserialize(bytes).unwrap());
        for (name, tensor) in expected.tensors() {
            near(&numbers(found.tensor(&name).unwrap().data()), &numbers(tensor.data()), ROUNDING, &name);
        }
    }
}

/// Rows before a 3×3 convolution of 32 channels and a 2×2 pooling, and their gradients; with memory in common nothing
/// else goes between ranks.
#[test]
fn each_sends_the_rows_that_are_said_of_it() {
    let scratch = Scratch::new();
    let words = "--model mnist_small --batch 4 --steps 2 --spatial 2 --allreduce shm";
    let [results, _] = scratch.train_plainly(2, words);
    let plan = run(2, &[&words.split_whitespace().collect::<Vec<_>>()[..], &["--dry-run"]].concat());
    let line = plan.lines().find(|line| line.starts_with("images by rows:")).expect("a line of rows");
    let bytes = line.rsplit_once('(').and_then(|(_, text)| text.split_once(' ')).expect("bytes").0;
    let said: u64 = bytes.replace(',', "").parse().expect("a number");
    assert_eq!(scalar(&results, "summary/sent_a_step"), said, "{line}");
}

#[test]
fn a_rank_has_the_memory_that_its_plan_says() {
    let scratch = Scratch::new();
    let words = "--model squeezenet1_1 --image-size 288 --classes 10 --batch 16 --steps 1 --lr 1e-5";
    let mut peaks = Vec::new();
    for (ranks, flags) in [(1, ""), (2, "--spatial 2")] {
        let [results, _] = scratch.train_plainly(ranks, &format!("{words} {flags}"));
        within_plan(&results, words).unwrap_or_else(|what| panic!("{words} {flags}: {what}"));
        peaks.push(scalar(&results, "summary/peak_memory") as f64);
    }
    assert!(peaks[1] < 0.8 * peaks[0], "{peaks:?}");
}

#[test]
fn what_does_not_go_together_is_refused() {
    let small = "--model mnist_small --batch 2 --steps 1 --warmup 0 --threads 1";
    let cases = [
        (3, "--spatial 2", "--spatial 2: this job has 3 ranks; start a multiple of 2"),
        (1, "--spatial 2", "--spatial 2: this job has 1 rank; start a multiple of 2"),
        (2, "--spatial 2 --pipeline 2", "--pipeline and --spatial"),
        (2, "--spatial 2 --zero 2", "--zero 2 and --spatial"),
        (2, "--spatial 2 --zero 3", "--zero 3 and --spatial"),
        (2, "--spatial 2 --sync root", "--sync root and --spatial"),
        (2, "--spatial 2 --local-steps 2", "and --spatial"),
        (2, "--spatial 2 --max-batch 1GB", "--max-batch and --spatial"),
        (2, "--spatial 2 --dry-run --parallel auto", "'--parallel <auto>'"),
        (2, "--spatial 2 --shards 2", "--shards and --spatial"),
        (2, "--spatial 2 --global-batch 8", "--global-batch and --spatial"),
        (2, "--spatial 2 --sync-bn 3", "--sync-bn 3 and --spatial 2"),
        (2, "--spatial 0", "--spatial 0: must be at least 1"),
    ];
    each(cases, |(ranks, flags, said)| {
        let words = format!("{small} {flags}");
        let flags: Vec<&str> = words.split_whitespace().collect();
        let message = misused(ranks, &flags);
        assert!(message.contains(said), "{words}: {message}");
    });
    let words = format!("{small} --image-size 30 --spatial 31");
    let flags: Vec<&str> = words.split_whitespace().collect();
    assert!(misused(31, &flags).contains("images of 30 rows cannot be cut so often"));
    let words = "--model mlp --data synthetic:universes:4:16 --input unitPar[c] --target unitPar[c] --loss mse \
                 --classes 4 --batch 2 --spatial 2";
    let message = misused(2, &words.split_whitespace().collect::<Vec<_>>());
    assert!(message.contains("--spatial 2: samples that have no axes of space are not cut"), "{message}");
}
