//! Whole runs under mpirun: what a user relies on when training.
//!
//! - the same seed, ranks and flags give the same numbers, bit for bit, with and without overlap;
//! - the loss does not depend on how the global batch is cut up (but for rounding);
//! - ranks that share the statistics of batch normalisation train as one rank with the whole batch; all ranks
//!   evaluate with the same running statistics;
//! - the networks with branches learn, and their auxiliary heads count in training only;
//! - every model gives on the CPU device what its definition gives;
//! - every optimizer learns; norms do not depend on how gradients are bundled; averaged weights are what is tested;
//! - what is computed again instead of kept changes no loss;
//! - the digits are learned; the record holds what was printed; the last line is what suites parse.

use crate::support::cases::first;
use crate::support::digits::{DIGITS, few_tests};
use crate::support::job;
use crate::support::residual::residual;

use std::path::PathBuf;

use job::{run, scalar, series};

struct Results {
    directory: tempfile::TempDir,
    runs: usize,
}

impl Results {
    fn new() -> Results {
        Results { directory: tempfile::tempdir().unwrap(), runs: 0 }
    }

    /// Trains on the digits; returns the results file and what was printed.
    fn train(&mut self, ranks: usize, flags: &str) -> (PathBuf, String) {
        self.runs += 1;
        let path = self.directory.path().join(format!("run{}.h5", self.runs));
        let mut all: Vec<&str> = flags.split_whitespace().collect();
        all.extend(["--results", path.to_str().unwrap()]);
        let printed = run(ranks, &all);
        (path, printed)
    }

    /// The loss of every step of a run on the digits.
    fn losses(&mut self, ranks: usize, flags: &str) -> Vec<f64> {
        let (path, _) = self.train(ranks, &format!("--data {} {flags}", few_tests()));
        series(&path, "steps/loss")
    }
}

#[test]
fn a_repeat_gives_the_same_bits_with_and_without_overlap() {
    let mut results = Results::new();
    // mnist_net has dropout; small buckets make several, so that overlap matters.
    let flags = "--model mnist_net --batch 32 --steps 40 --seed 7 --fusion-threshold-mb 0.01";
    for allreduce in first(2, ["ring", "mpi", "shm"]) {
        let flags = format!("{flags} --allreduce {allreduce}");
        let first = results.losses(2, &flags);
        assert_eq!(first.len(), 40);
        assert_eq!(results.losses(2, &flags), first, "{allreduce}: a repeat differs");
        assert_eq!(
            results.losses(2, &format!("{flags} --no-overlap")),
            first,
            "{allreduce}: overlap changes numbers"
        );
    }
    // The last of two equal flags wins.
    let other = results.losses(2, &format!("{flags} --seed 8"));
    assert_ne!(other[0], results.losses(2, flags)[0]);
}

/// Without dropout only the order of additions differs. A loss of size 2 is a mean of f32 losses whose logits carry
/// relative errors of some 10 roundings of sums of up to 6272 products: far below 1e-4 for a few steps of SGD.
#[test]
fn how_the_global_batch_is_cut_up_does_not_matter() {
    let mut results = Results::new();
    let flags = "--model mnist_small --steps 20 --optimizer sgd --lr 0.01";
    let whole = results.losses(1, &format!("{flags} --batch 64"));
    let cuts = [
        (4, "--batch 16"),
        (2, "--batch 16 --accumulation 2"),
        // Given as such: some ranks then have fewer images than others, and some micro-steps fewer or none.
        (3, "--global-batch 64 --batch 3"),
        (1, "--global-batch 64 --batch 10"),
        (2, "--batch 32"),
        (1, "--batch 16 --accumulation 4"),
        (3, "--global-batch 64"),
    ];
    for (ranks, cut) in first(4, cuts) {
        let parts = results.losses(ranks, &format!("{flags} {cut}"));
        assert_eq!(parts.len(), whole.len());
        for (step, (a, b)) in whole.iter().zip(&parts).enumerate() {
            assert!((a - b).abs() < 1e-4, "{ranks} ranks {cut} step {step}: {a} and {b}");
        }
    }
    assert!(whole[19] < whole[0], "nothing was learned: {whole:?}");
}

/// Dropout is a function of the image's place in the global batch, not of the rank that has it.
#[test]
fn dropout_does_not_depend_on_the_rank_count() {
    let mut results = Results::new();
    let flags = "--model mnist_net --steps 5 --optimizer sgd --lr 0.001";
    let one = results.losses(1, &format!("{flags} --batch 32"));
    let two = results.losses(2, &format!("{flags} --batch 16"));
    for (step, (a, b)) in one.iter().zip(&two).enumerate() {
        assert!((a - b).abs() < 1e-4, "step {step}: {a} and {b}");
    }
}

/// The whole model, forward, backward and update, against the definition of each op; small images only, since the
/// definitions are slow.
#[test]
fn every_model_trains_as_its_definition_says() {
    let mut results = Results::new();
    // The definitions are slow: of the large models only one, with the smallest image that it takes and few classes.
    // The slowest two come last.
    let small = dltrain::model::MODELS.iter().filter(|model| model.image[1] <= 32);
    let small = small.map(|model| model.name()).filter(|&name| name != "mnist_large");
    let mut cases: Vec<(&str, &str)> = small.map(|name| (name, "--batch 4 --steps 4")).collect();
    let quick = cases.len();
    cases.push(("mnist_large", "--batch 1 --steps 2"));
    cases.push(("alexnet", "--batch 1 --steps 2 --image-size 63 --classes 10"));
    for (name, sizes) in first(quick, cases) {
        let flags = format!("--model {name} {sizes} --warmup 0 --optimizer sgd --lr 0.01");
        let mut losses = |device| {
            let (path, _) = results.train(1, &format!("{flags} --device {device}"));
            series(&path, "steps/loss")
        };
        let (cpu, reference) = (losses("cpu"), losses("reference"));
        assert!(cpu.len() >= 2 && cpu.len() == reference.len());
        for (step, (a, b)) in cpu.iter().zip(&reference).enumerate() {
            assert!((a - b).abs() < 1e-4 * b.abs(), "{name} step {step}: {a} and {b}");
        }
    }
}

/// Against the definitions in bf16 (each rounds what a layer gives to 8 bits, by half a step of 2⁻⁷ at most: over the
/// ten layers of a small network 10·2⁻⁸ of a loss of size 2), and on several ranks with accumulation and evaluation.
#[test]
fn in_bf16_models_train_as_defined_learn_and_repeat() {
    if !dltrain::device::onednn::isa().unwrap().has_bf16() {
        println!("SKIPPED: this CPU has no bf16 arithmetic");
        return;
    }
    let mut results = Results::new();
    for name in ["mnist_net", "cifar_net"] {
        let flags = format!(
            "--model {name} --batch 4 --steps 3 --warmup 0 --optimizer sgd --lr 0.01 --precision bf16"
        );
        let mut losses = |device| {
            let (path, _) = results.train(1, &format!("{flags} --device {device}"));
            series(&path, "steps/loss")
        };
        let (cpu, reference) = (losses("cpu"), losses("reference"));
        for (step, (a, b)) in cpu.iter().zip(&reference).enumerate() {
            assert!((a - b).abs() < 10.0 / 256.0 * b.abs(), "{name} step {step}: {a} and {b}");
        }
    }
    let flags = format!("--data {DIGITS} --batch 16 --accumulation 2 --epochs 6 --precision bf16");
    let (path, printed) = results.train(2, &flags);
    assert!(printed.contains(", bf16"), "{printed}");
    let accuracy = series(&path, "epochs/test_accuracy");
    assert!(accuracy[5] >= 0.9, "{accuracy:?}");
    let (again, _) = results.train(2, &flags);
    assert_eq!(series(&again, "steps/loss"), series(&path, "steps/loss"), "a repeat differs");
    // The numbers are other ones than in f32: the flag does something.
    let (f32, _) = results.train(2, &flags.replace("precision bf16", "precision f32"));
    assert_ne!(series(&f32, "steps/loss"), series(&path, "steps/loss"));
}

/// Concatenations, depthwise convolutions, auxiliary heads: the batch that is repeated is learned. (Whole models
/// against their definition would take minutes.)
#[test]
fn the_branching_networks_learn_a_batch() {
    let mut results = Results::new();
    let networks = [
        (2, "--model googlenet --image-size 32 --batch 4 --steps 10"),
        (2, "--model mobilenet_v2 --image-size 32 --batch 4 --steps 10"),
        (2, "--model densenet121 --image-size 32 --batch 4 --steps 10"),
        (1, "--model inception_v3 --batch 2 --steps 4"),
    ];
    for (ranks, flags) in first(2, networks) {
        let flags = format!("{flags} --classes 10 --warmup 0 --optimizer sgd --lr 0.01");
        let (path, _) = results.train(ranks, &flags);
        let losses = series(&path, "steps/loss");
        assert!(losses[losses.len() - 1] < 0.9 * losses[0], "{flags}: {losses:?}");
    }
}

/// Both auxiliary heads of GoogLeNet count 0.3 in training and nothing in evaluation. Its first weights are so small
/// that every head says about the same of each of the ten classes, which costs it ln 10.
#[test]
fn auxiliary_heads_count_in_training_only() {
    let flags = "--model googlenet --image-size 32 --batch 16 --steps 2 --optimizer sgd --lr 1e-6";
    let mut results = Results::new();
    let (path, _) = results.train(2, &format!("--data {} --classes 10 {flags}", few_tests()));
    let even = 10f64.ln();
    for loss in series(&path, "steps/loss") {
        assert!((loss - 1.6 * even).abs() < 0.1, "{loss}");
    }
    let test = series(&path, "epochs/test_loss")[0];
    assert!((test - even).abs() < 0.1, "{test}");
}

#[test]
fn every_optimizer_learns_the_digits() {
    let mut results = Results::new();
    let optimizers = [
        "sgd --nesterov --clip-norm 1",
        "adamw",
        "rmsprop --lr 0.001",
        "lamb",
        "lars --lr 10 --lr-schedule polynomial --lr-warmup 1 --clip-norm 1 --ema 0.9",
        "sgd",
        "adam",
        "rmsprop-tf",
        "lars --lr-schedule polynomial",
    ];
    for optimizer in first(5, optimizers) {
        let flags = format!("--data {DIGITS} --batch 16 --epochs 5 --optimizer {optimizer}");
        let (path, _) = results.train(2, &flags);
        let accuracy = series(&path, "epochs/test_accuracy");
        assert!(accuracy[4] >= 0.9, "{optimizer}: {accuracy:?}");
    }
}

/// LARS and LAMB look at the norm of one parameter, clipping at that of all gradients: never at that of a bucket.
/// lenet5 has filters in numbers that blocked layouts round up: what they add must count as nothing.
#[test]
fn norms_do_not_depend_on_buckets_or_layouts() {
    let mut results = Results::new();
    for optimizer in ["lars", "lamb"] {
        let flags = format!("--model lenet5 --batch 4 --steps 6 --clip-norm 0.5 --optimizer {optimizer}");
        let one = results.losses(1, &format!("{flags} --fusion-threshold-mb 100"));
        assert_eq!(results.losses(1, &format!("{flags} --fusion-threshold-mb 0")), one, "{optimizer}");
        let reference = results.losses(1, &format!("{flags} --device reference"));
        assert_ne!(results.losses(1, &flags.replace("--clip-norm 0.5", "")), one, "{optimizer}: no clipping");
        let flags = flags.replace("--batch 4", "--batch 2");
        let (two, summed) =
            (results.losses(2, &flags), results.losses(1, &format!("{flags} --accumulation 2")));
        for (what, other) in [("reference", reference), ("2 ranks", two), ("accumulation", summed)] {
            assert_eq!(other.len(), 6);
            for (step, (a, b)) in one.iter().zip(&other).enumerate() {
                assert!((a - b).abs() < 1e-4 * b.abs(), "{optimizer} {what} step {step}: {a} and {b}");
            }
        }
    }
}

/// A network with normalisations, small enough for tests.
fn normalised() -> String {
    format!("{} --optimizer sgd --lr 0.01 --warmup 0 --seed 3", residual())
}

/// Normalisations divide by deviations, so that roundings grow from layer to layer and from step to step, and after
/// some steps any two runs part, as those on two instruction sets do. (With some seeds they part in the second already,
/// where a number lies next to a ReLU's zero.) Ranks that each have their own statistics are off by far more at once.
#[test]
fn sync_batch_norm_trains_as_one_rank_with_the_whole_batch() {
    let mut results = Results::new();
    let flags = format!("{} --steps 2 --threads 1", normalised());
    let apart = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    let whole = results.losses(1, &format!("{flags} --batch 16"));
    assert_eq!(whole.len(), 2);
    for (ranks, batch) in first(1, [(4, 4), (2, 8)]) {
        let cut = format!("{flags} --batch {batch}");
        let found = results.losses(ranks, &format!("{cut} --sync-bn"));
        assert!(apart(&whole, &found) < 1e-3, "{ranks} ranks: {whole:?} and {found:?}");
        let alone = results.losses(ranks, &cut);
        assert!(apart(&whole, &alone) > 1e-2, "{ranks} ranks each for itself: {whole:?} and {alone:?}");
    }
    // Each pair of four ranks is one rank with twice the batch.
    let pairs = results.losses(2, &format!("{flags} --batch 8"));
    let found = results.losses(4, &format!("{flags} --batch 4 --sync-bn 2"));
    assert!(apart(&pairs, &found) < 1e-3, "groups of 2: {pairs:?} and {found:?}");
}

/// The labels that an image is mixed from are tensors of their own, which the rewriting for shared statistics
/// renumbers.
#[test]
fn sync_batch_norm_trains_on_mixed_images_as_one_rank() {
    let mut results = Results::new();
    let flags = format!("{} --steps 1 --threads 1 --augment mixup=0.4,cutmix", normalised());
    let whole = results.losses(1, &format!("{flags} --batch 16"))[0];
    let found = results.losses(2, &format!("{flags} --batch 8 --sync-bn"))[0];
    // As without mixing, 1e-6 of rounding in a first loss.
    assert!((whole - found).abs() < 1e-3, "{whole} and {found}");
}

/// Also with buckets under way while statistics are exchanged.
#[test]
fn sync_batch_norm_repeats_bit_for_bit() {
    let mut results = Results::new();
    for allreduce in first(1, ["ring --accumulation 2", "shm"]) {
        let flags = format!(
            "{} --steps 3 --batch 2 --sync-bn 2 --fusion-threshold-mb 0.01 --allreduce {allreduce}",
            normalised()
        );
        let first = results.losses(4, &flags);
        assert_eq!(results.losses(4, &flags), first, "{allreduce}: a repeat differs");
        let after = results.losses(4, &format!("{flags} --no-overlap"));
        assert_eq!(after, first, "{allreduce}: overlap changes numbers");
    }
}

/// Statistics stay f32 where images are bf16, and are those of both ranks: the first loss is off from that of one rank
/// with the whole batch by the roundings of 20 layers to 8 bits, of a loss of size 2 (as for other models in bf16).
#[test]
fn sync_batch_norm_in_bf16_learns_and_repeats() {
    if !dltrain::device::onednn::isa().unwrap().has_bf16() {
        println!("SKIPPED: this CPU has no bf16 arithmetic");
        return;
    }
    let mut results = Results::new();
    let flags = format!("{} --steps 6 --batch 8 --precision bf16 --sync-bn", normalised());
    let found = results.losses(2, &flags);
    assert_eq!(results.losses(2, &flags), found, "a repeat differs");
    assert!(found[5] < found[0], "{found:?}");
    let whole = results.losses(1, &format!("{} --steps 6 --batch 16 --precision bf16", normalised()));
    assert!((found[0] - whole[0]).abs() < 20.0 / 256.0 * whole[0], "{found:?} and {whole:?}");
    let single = results.losses(2, &flags.replace("precision bf16", "precision f32"));
    assert_ne!(single, found);
}

/// Data sets that differ in the test images only: `copies` times the first eight.
fn digits_tested_on(copies: usize) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(DIGITS).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_string();
        let Some(header) = [("images", 16), ("labels", 8)].iter().find(|(part, _)| name.contains(part))
        else {
            continue;
        };
        let mut bytes = std::fs::read(&path).unwrap();
        if name.starts_with("t10k") {
            assert!(!name.ends_with(".gz"));
            let extent = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
            let each = if header.1 == 16 { extent(8) * extent(12) } else { 1 };
            let images = bytes[header.1..header.1 + 8 * each].repeat(copies);
            bytes.truncate(header.1);
            bytes[4..8].copy_from_slice(&(8 * copies as u32).to_be_bytes());
            bytes.extend(images);
        }
        std::fs::write(directory.path().join(name), bytes).unwrap();
    }
    directory
}

/// Eight images are tested by rank 0, the same eight again by rank 1: the mean loss is the same only if both have the
/// same running statistics. They saw different images, so that without a word to each other they do not.
#[test]
fn every_rank_evaluates_with_the_same_running_statistics() {
    let mut results = Results::new();
    for sync in ["", "--sync-bn"] {
        let [once, twice] = [1, 2].map(|copies| {
            let data = digits_tested_on(copies);
            let data = data.path().to_str().unwrap();
            let flags = format!("{} --data {data} --batch 8 --steps 3 {sync}", normalised());
            let (path, _) = results.train(2, &flags);
            (series(&path, "epochs/test_loss"), series(&path, "steps/loss"))
        });
        assert_eq!(once.1, twice.1, "training is not the same");
        assert_eq!(once.0.len(), 1);
        assert!(
            (once.0[0] - twice.0[0]).abs() < 1e-12 * once.0[0],
            "{sync}: {} and {}",
            once.0[0],
            twice.0[0]
        );
    }
}

/// What is clipped, and what is averaged, are weights and not statistics.
#[test]
fn clipping_and_averaged_weights_work_with_batch_norm() {
    let mut results = Results::new();
    // After so few steps the smaller `normalised` network tells images apart too little for an average to show.
    let resnet =
        "--model resnet18 --image-size 32 --classes 10 --optimizer sgd --lr 0.01 --warmup 0 --seed 3";
    let mut run = |flags: &str| {
        let (path, _) =
            results.train(2, &format!("--data {} {resnet} --batch 8 --steps 3 {flags}", few_tests()));
        (series(&path, "steps/loss"), series(&path, "epochs/test_loss"))
    };
    let plain = run("");
    // An average that forgets everything is the weights themselves; a norm that is never reached clips nothing.
    assert_eq!(run("--ema 0"), plain);
    assert_eq!(run("--clip-norm 1000000"), plain);
    let averaged = run("--ema 0.9");
    assert_eq!(averaged.0, plain.0);
    assert!((averaged.1[0] - plain.1[0]).abs() > 1e-3, "{averaged:?} {plain:?}");
    assert_ne!(run("--clip-norm 0.1").0[1..], plain.0[1..]);
}

#[test]
fn evaluation_uses_the_averaged_weights_and_the_record_says_so() {
    let mut results = Results::new();
    let mut run = |flags: &str| {
        let (path, _) = results.train(2, &format!("--data {DIGITS} --batch 64 --epochs 2 {flags}"));
        let file = hdf5::File::open(&path).unwrap();
        let weights = file.group("config").unwrap().attr("evaluated_weights").unwrap();
        let weights: hdf5::types::VarLenUnicode = weights.read_scalar().unwrap();
        (series(&path, "steps/loss"), series(&path, "epochs/test_loss"), weights.to_string())
    };
    let (losses, tests, weights) = run("");
    assert_eq!(weights, "current");
    // An average that forgets everything is the weights themselves.
    let (same_losses, same_tests, _) = run("--ema 0");
    assert_eq!((&same_losses, &same_tests), (&losses, &tests));
    let (same_losses, other_tests, weights) = run("--ema 0.95");
    assert_eq!(weights, "exponential moving average, decay 0.95");
    assert_eq!(same_losses, losses);
    assert!(other_tests.iter().zip(&tests).all(|(a, b)| (a - b).abs() > 1e-3), "{other_tests:?} {tests:?}");
}

/// Adam has two moments and the average is one region more, each as large as the parameters.
#[test]
fn a_dry_run_counts_the_optimizers_state() {
    let bytes = |printed: &str, kind: &str| -> usize {
        let line = printed.lines().find(|line| line.trim_start().starts_with(kind)).unwrap();
        let exact = line.split_once('(').unwrap().1.split(' ').next().unwrap();
        exact.replace(',', "").parse().unwrap()
    };
    for (flags, regions) in [
        (vec!["--optimizer", "adamw", "--ema", "0.9"], 3),
        (vec!["--optimizer", "lamb"], 2),
        (vec!["--optimizer", "lars"], 1),
        (vec!["--optimizer", "rmsprop"], 1),
        (vec!["--optimizer", "rmsprop-tf"], 2),
        (vec!["--optimizer", "sgd", "--momentum", "0"], 0),
    ] {
        let printed = run(1, &[&flags[..], &["--dry-run"]].concat());
        let expected = regions * bytes(&printed, "parameters");
        assert_eq!(bytes(&printed, "optimizer"), expected, "{flags:?}");
    }
}

#[test]
fn the_digits_are_learned_and_the_record_says_what_was_printed() {
    let mut results = Results::new();
    let (path, printed) = results.train(2, &format!("--data {DIGITS} --epochs 12"));
    let accuracy = series(&path, "epochs/test_accuracy");
    assert_eq!(accuracy.len(), 12);
    assert!(accuracy.iter().copied().fold(0.0, f64::max) >= 0.97, "{accuracy:?}");
    // Every test image exactly once: 360 of them, so the accuracy is a whole number of 360ths.
    for value in accuracy {
        assert!((value * 360.0 - (value * 360.0).round()).abs() < 1e-9, "{value}");
    }
    let losses = series(&path, "steps/loss");
    assert_eq!(losses.len(), 12 * 11);
    assert!(losses.iter().all(|loss| loss.is_finite()));
    let last = printed.lines().last().unwrap();
    let rate: f64 = last.strip_prefix("total images/sec: ").expect(last).parse().unwrap();
    let images: f64 = series(&path, "steps/images").iter().sum();
    let seconds: f64 = series(&path, "steps/seconds").iter().sum();
    assert!((rate - images / seconds).abs() < 0.01 * rate, "{rate} and {}", images / seconds);
    assert!(printed.contains(path.to_str().unwrap()), "the results file is not named");
}

#[test]
fn without_data_the_run_is_ten_and_a_hundred_steps() {
    let mut results = Results::new();
    let (path, printed) = results.train(2, "--model lenet5 --batch 8");
    assert_eq!(series(&path, "steps/loss").len(), 110);
    assert!(printed.lines().last().unwrap().starts_with("total images/sec: "));
}

#[test]
fn a_dry_run_prints_the_plan_and_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("never.h5");
    let flags = ["--model", "mnist_large", "--batch", "16", "--dry-run", "--results", path.to_str().unwrap()];
    let printed = run(2, &flags);
    for expected in [
        "conv3",
        "4,104,202 parameters",
        "FLOP",
        "activations",
        "gradients",
        "optimizer",
        "workspace",
        "bucket",
        "plan hash",
        "global batch 32",
    ] {
        assert!(printed.contains(expected), "{expected} is missing in\n{printed}");
    }
    assert!(!path.exists());
    // The whole step as data: what is done between two transfers, in order; and that no rank waits for ever.
    let printed =
        run(2, &["--model", "mnist_large", "--batch", "16", "--dry-run", "--script", "--clip-norm", "1"]);
    let order = [
        "(read the images",
        "(run steps 0–",
        "(start transfer 0, sum of sums 0..",
        "(wait for transfer 0,",
        "(clip",
        "(update bytes 0..",
    ];
    let at: Vec<Option<usize>> = order.iter().map(|action| printed.find(action)).collect();
    assert!(at.iter().all(Option::is_some) && at.is_sorted(), "{at:?} in {printed}");
    assert!(printed.contains("rehearsed with 2 ranks: none waits for ever; expected "), "{printed}");
    // Twice as fast a machine halves the least time of a step.
    let roofline = |rates| -> f64 {
        let printed = run(1, &["--model", "mnist_large", "--batch", "16", "--dry-run", "--roofline", rates]);
        let line = printed.lines().find(|line| line.starts_with("roofline at")).expect("the line");
        line.split_whitespace().rev().nth(1).unwrap().parse().expect("images/s")
    };
    let (one, two) = (roofline("0.1,10"), roofline("0.2,20"));
    assert!(one > 0.0 && (two / one - 2.0).abs() < 0.01, "{one} and {two} images/s");
}

/// The same least time from the file as from the program: every step is in it with its operations and bytes.
#[test]
fn the_steps_of_a_plan_are_written_for_programs() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("steps.jsonl");
    let (flops, bytes) = (1e11, 1e10);
    let flags = ["--model", "mnist_large", "--batch", "16", "--dry-run", "--roofline", "0.1,10"];
    let printed = run(2, &[&flags[..], &["--plan-steps", path.to_str().unwrap()]].concat());
    let text = std::fs::read_to_string(&path).unwrap();
    let steps: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let seconds = |step: &serde_json::Value| {
        let moved = ["read", "written"].map(|which| {
            step[which].as_array().unwrap().iter().map(|bytes| bytes.as_f64().unwrap()).sum::<f64>()
        });
        (step["flop"].as_f64().unwrap() / flops).max((moved[0] + moved[1]) / bytes)
    };
    let least = format!("at least {:.3} ms", 1e3 * steps.iter().map(seconds).sum::<f64>());
    assert!(printed.contains(&least), "{least}:\n{printed}");
    let passes = ["forward", "backward", "update"]
        .map(|pass| steps.iter().filter(|step| step["pass"] == pass).count());
    assert!(passes[0] > 5 && passes[1] > 5 && passes[2] == 1, "{passes:?}");
    // A CPU may want the weights in another order first.
    let first = steps.iter().find(|step| step["op"] != "reorder").unwrap();
    assert!(!first["layer"].as_str().unwrap().is_empty() && first["output"][0] == 16, "{first}");
}

/// resnet18 has 20 normalisations with 4800 channels in all: two numbers each, forward and backward.
#[test]
fn a_dry_run_counts_what_statistics_cost() {
    let flags = ["--model", "resnet18", "--image-size", "32", "--batch", "2", "--dry-run", "--sync-bn"];
    let printed = run(4, &[&flags[..], &["2"]].concat());
    assert!(printed.contains("40 exchanges a step among 2 ranks"), "{printed}");
    assert!(printed.contains("(76,800 bytes)"), "{printed}");
    assert!(!run(1, &flags).contains("exchange"));
}

/// The batch that is named has the dry run's memory, and that is within the limit. Two processes have not touched the
/// same pages of code and libraries, so that the answer names its own, which stand here in place of the dry run's. Each
/// of the three printed figures is rounded to 0.1 MB.
#[test]
fn the_largest_batch_is_the_one_whose_dry_run_fits() {
    let answer = run(1, &["--model", "lenet5", "--max-batch", "200MB"]);
    let after = |words: &str| -> f64 {
        let rest = answer.split(words).nth(1).expect(&answer);
        rest.split([',', ' ']).next().unwrap().parse().expect(&answer)
    };
    let (batch, needed, libraries) = (after("a rank is "), after("which needs "), after("MB, "));
    let needs = |batch: f64| -> f64 {
        let printed = run(1, &["--model", "lenet5", "--dry-run", "--batch", &batch.to_string()]);
        let bytes = |name: &str| -> f64 {
            let line = printed.lines().find(|line| line.trim_start().starts_with(name)).unwrap();
            let digits = line.split('(').nth(1).unwrap().split(' ').next().unwrap();
            digits.replace(',', "").parse().unwrap()
        };
        (bytes("in all ") - bytes("program ")) / 1e6 + libraries
    };
    assert!((needs(batch) - needed).abs() < 0.11 && needed <= 200.0, "{answer}");
    assert!(needs(batch + 1.0) > 199.94, "{answer}");
}

/// The digits, larger and with classes that no label names; the record says what was decided.
#[test]
fn classes_and_image_size_are_the_runs_and_recorded() {
    let mut results = Results::new();
    let flags = "--model cifar_net --classes 12 --image-size 20 --label-smoothing 0.1 --steps 3 --batch 16";
    let (path, _) = results.train(2, &format!("--data {DIGITS} {flags}"));
    let file = hdf5::File::open(&path).unwrap();
    let config = file.group("config").unwrap();
    let attribute = |name: &str| {
        let attribute = config.attr(name).unwrap_or_else(|error| panic!("{name}: {error}"));
        attribute.read_scalar::<hdf5::types::VarLenUnicode>().unwrap().to_string()
    };
    assert_eq!(attribute("classes"), "12");
    assert_eq!(attribute("image"), "3×20×20");
    assert!(attribute("label_smoothing").starts_with("0.1"), "{}", attribute("label_smoothing"));
    assert_eq!(series(&path, "steps/loss").len(), 3);
}

#[test]
fn one_rank_without_a_launcher_works_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("single.h5");
    let flags = ["--model", "lenet5", "--batch", "16", "--steps", "3", "--data", DIGITS, "--threads", "1"];
    let alone = std::process::Command::new(job::DLTRAIN)
        .args(flags)
        .args(["--results", path.to_str().unwrap()])
        .output()
        .unwrap();
    assert!(alone.status.success(), "{}", String::from_utf8_lossy(&alone.stderr));
    let mut results = Results::new();
    let launched = results.losses(1, "--model lenet5 --batch 16 --steps 3 --threads 1");
    assert_eq!(series(&path, "steps/loss"), launched);
}

/// Computing activations again changes no bit of any loss, with running statistics, over several updates and
/// micro-steps.
#[test]
fn recomputation_changes_memory_and_no_loss() {
    let mut results = Results::new();
    for (ranks, more) in first(2, [(2, "--sync-bn"), (1, "--accumulation 2"), (2, "")]) {
        // What activations take is more than the program's own memory differs from one start to the next.
        let flags = format!("{} --batch 32 --steps 3 --warmup 0 {more}", residual());
        let mut run = |flags: String| {
            let (path, _) = results.train(ranks, &flags);
            (series(&path, "steps/loss"), scalar(&path, "summary/planned_memory"))
        };
        let (kept, again) = (run(flags.clone()), run(format!("{flags} --recompute")));
        assert_eq!(kept.0.len(), 3);
        assert_eq!(kept.0, again.0, "{more}");
        assert!(again.1 < kept.1, "{} bytes and {}", again.1, kept.1);
    }
    let plan = run(1, &["--model", "resnet50", "--batch", "2", "--recompute", "--dry-run"]);
    let line = plan.lines().find(|line| line.contains("saves") && line.contains("recomputing"));
    assert!(line.is_some_and(|line| line.contains("FLOP more")), "{plan}");
}
