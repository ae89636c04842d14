//! What a run has in memory: at its peak what `--dry-run` says, within 5 % or 50 MB, for every model.

use crate::support::cases::first;
use crate::support::job::{finish, job, run, scalar, within_plan};

/// What a plan says of memory before the run: "  in all   1.16 GB  (1,160,000,000 bytes)".
fn planned_memory(ranks: usize, flags: &[&str]) -> f64 {
    let plan = run(ranks, &[flags, &["--dry-run"]].concat());
    line_of(&plan, "in all").expect("the plan adds its memory up")
}

/// The bytes of one line of it.
fn line_of(plan: &str, what: &str) -> Option<f64> {
    let line =
        plan.lines().find(|line| line.strip_prefix("  ").is_some_and(|line| line.starts_with(what)))?;
    let (_, bytes) = line.split_once('(')?;
    bytes.chars().filter(char::is_ascii_digit).collect::<String>().parse().ok()
}

/// Gradients of three other ranks, which are summed in place, and three quarters of the parameters.
#[test]
fn a_plan_says_what_other_ranks_of_the_node_bring() {
    let flags = ["--model", "alexnet", "--image-size", "63", "--batch", "2", "--dry-run"];
    let plan = run(4, &flags);
    let of = |what| line_of(&plan, what).unwrap();
    let rest = of("in all") - of("its own");
    let expected = of("allreduce") + 0.75 * of("parameters");
    assert!((rest - expected).abs() < 1e-3 * expected, "{rest}, not {expected}\n{plan}");
    let alone = run(1, &flags);
    assert_eq!(line_of(&alone, "its own"), None, "{alone}");
}

/// Runs two steps, with everything in the directory `kept` in one of their own.
fn check(ranks: usize, flags: &str) {
    let directory = tempfile::tempdir().unwrap();
    let results = directory.path().join("run.h5");
    let flags = flags.replace("kept", directory.path().to_str().unwrap());
    let mut all: Vec<&str> = flags.split_whitespace().collect();
    all.extend(["--steps", "2", "--warmup", "0", "--threads", "1", "--lr", "1e-5"]);
    let planned = planned_memory(ranks, &all);
    all.extend(["--results", results.to_str().unwrap()]);
    let done = finish(job(&[(ranks, &all)]));
    assert!(done.success, "{flags}\n{}\n{}", done.stdout, done.stderr);
    assert!(done.stdout.contains("memory a rank"), "{}", done.stdout);
    within_plan(&results, &flags).unwrap_or_else(|what| panic!("-n {ranks} {flags}: {what}"));
    let recorded = scalar(&results, "summary/planned_memory") as f64;
    let off = (recorded - planned).abs();
    assert!(off < (0.05 * planned).max(50e6), "-n {ranks} {flags}: {recorded}, and {planned} before the run");
}

/// Large parameters (alexnet) with state that ranks share, large activations (resnet18), messages instead of shared
/// memory, an accumulated sum, averaged and frozen parameters, ranks with parameters of their own, a copy for
/// checkpoints, a data set with its evaluation.
#[test]
fn a_run_has_the_memory_that_its_plan_says() {
    let digits = concat!("--model mnist_small --data ", env!("CARGO_MANIFEST_DIR"), "/data/digits");
    let all = [
        (2, "--model alexnet --image-size 63 --batch 2 --optimizer lamb --ema 0.9 --freeze backbone"),
        (2, "--model resnet18 --batch 8 --allreduce ring --optimizer rmsprop"),
        (4, "--model mnist_large --image-size 64 --batch 2 --allreduce mpi --fusion-threshold-mb 0"),
        (2, digits),
        (
            2,
            "--model mnist_large --image-size 64 --batch 2 --optimizer adamw --checkpoint kept/c \
             --checkpoint-every 1steps",
        ),
        (1, "--model resnet18 --image-size 64 --batch 2 --freeze backbone --ema 0.9"),
        (2, "--model resnet18 --image-size 64 --batch 2 --freeze backbone --sync bmuf:2"),
        (1, "--model alexnet --image-size 63 --batch 2 --optimizer sgd"),
        (2, "--model alexnet --batch 4 --optimizer adam --ema 0.9"),
        (
            3,
            "--model alexnet --image-size 63 --batch 2 --zero 2 --ema 0.9 --data synthetic:shapes:64 \
             --checkpoint kept/c --checkpoint-every 1steps",
        ),
        (3, "--model alexnet --batch 1 --optimizer lars"),
        (1, "--model alexnet --batch 1 --accumulation 2 --ema 0.9"),
    ];
    for (ranks, flags) in first(5, all) {
        check(ranks, flags);
    }
}

/// A file of weights is let go of before the first step, and that of a network too; here each has 74 MB.
#[test]
fn files_of_weights_take_no_memory_beside_steps() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).to_str().unwrap().to_string();
    let flags = "--model mnist_large --image-size 64 --batch 2 --threads 1";
    let words: Vec<&str> = flags.split(' ').collect();
    let results = ["--steps", "1", "--results", &at("a.h5")].map(String::from);
    let saved = ["--save-weights".to_string(), at("w.safetensors")];
    let more: Vec<&str> = results.iter().chain(&saved).map(String::as_str).collect();
    run(1, &[&words[..], &more].concat());
    let network = ["--model", "mnist_large", "--image-size", "64"];
    run(1, &[&["export", &at("w.safetensors"), &at("net.onnx")], &network[..]].concat());
    check(1, &format!("{flags} --init-from {}", at("w.safetensors")));
    let network = format!("--model {} --batch 2 --threads 1 --optimizer adamw", at("net.onnx"));
    check(1, &network);
    let of = |flags: &str| planned_memory(1, &flags.split(' ').collect::<Vec<_>>());
    let [file, own] = [&network, &format!("{flags} --optimizer adamw")].map(|flags| of(flags));
    assert!((file - own).abs() < 30e6, "{file} with the file, {own} without");
}

mod full {
    use dltrain::model::MODELS;

    const OPTIMIZERS: [&str; 7] = ["sgd", "adam", "adamw", "rmsprop", "rmsprop-tf", "lars", "lamb"];

    /// The smallest images that a model takes, of those asked for.
    fn smallest(name: &str) -> Option<usize> {
        let model = dltrain::model::find(name).unwrap();
        let own = model.image[1];
        [32, 63, 75]
            .into_iter()
            .filter(|&size| size < own)
            .find(|&size| model.build(2, model.image.of_size(size), 10).is_ok())
    }

    /// Each optimizer in turn, so that all models together have each of them at each number of ranks.
    #[test]
    #[ignore = "an hour; make test-full"]
    fn every_model_has_the_memory_that_its_plan_says() {
        for (index, model) in MODELS.iter().enumerate() {
            for (turn, ranks) in [1, 2, 4].into_iter().enumerate() {
                let optimizer = OPTIMIZERS[(index + 3 * turn) % OPTIMIZERS.len()];
                super::check(ranks, &format!("--model {} --batch 2 --optimizer {optimizer}", model.name()));
                if let Some(size) = smallest(model.name()) {
                    let flags = format!(
                        "--model {} --image-size {size} --batch 13 --optimizer {optimizer}",
                        model.name()
                    );
                    super::check(ranks, &flags);
                }
            }
        }
    }

    /// Every optimizer at every number of ranks, where parameters are what counts.
    #[test]
    #[ignore = "minutes; make test-full"]
    fn every_optimizer_has_the_memory_that_its_plan_says() {
        for (ranks, model) in
            [(1, "alexnet --image-size 63"), (2, "alexnet --image-size 63"), (4, "alexnet --image-size 63")]
        {
            for optimizer in OPTIMIZERS {
                super::check(ranks, &format!("--model {model} --batch 2 --optimizer {optimizer}"));
            }
        }
    }

    /// What goes beside: frozen layers, averages, recomputation, checkpoints, weights from a file and to one.
    #[test]
    #[ignore = "minutes; make test-full"]
    fn what_goes_beside_is_planned_too() {
        for (ranks, flags) in [
            (2, "--model vgg16 --batch 4"),
            (2, "--model vgg16 --batch 4 --optimizer adamw --recompute"),
            (2, "--model vgg16 --batch 4 --freeze backbone"),
            (1, "--model vgg16 --batch 4 --freeze backbone"),
            (1, "--model resnet50 --batch 4 --freeze backbone --ema 0.9"),
            (2, "--model resnet50 --batch 4 --freeze backbone --ema 0.9"),
            (1, "--model alexnet --batch 4 --checkpoint kept/c --checkpoint-every 1steps"),
            (4, "--model alexnet --batch 4 --checkpoint kept/c --checkpoint-every 1steps --ema 0.9"),
        ] {
            super::check(ranks, flags);
        }
    }
}
