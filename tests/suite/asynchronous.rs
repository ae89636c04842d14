//! Asynchronous updates: `--sync server-async`.
//!
//! - with one rank that computes the bits are those of a run of one rank, whatever the number of servers;
//! - ranks that take turns give the same bits again, each W − 1 updates late; with two and three of them and a drain
//!   behind every step the parameters are those of plain data parallelism with W times the learning rate;
//! - in order of arrival every image comes once an epoch, and the digits are learned;
//! - checkpoints lie behind steps that drain: a run goes on with the same bits, and with another strategy;
//! - a loss that is not finite ends the job, and so do a killed server and, if that is asked for, a stopped rank
//!   (`stall`); what a signal leaves `restart` has;
//! - they send what docs/algorithms.md says, and have the memory that the plan says; the record says how late updates
//!   were and whether the run can be repeated;
//! - what does not go together is refused.

use crate::support::cases::{each, first};
use crate::support::gpu_job;
use crate::support::job;
use crate::support::scratch::Scratch;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use job::{refused, run, scalar, series};

/// Several buckets, of which some are smaller than the number of ranks.
const SMALL: &str =
    "--model mnist_small --batch 4 --steps 6 --warmup 0 --threads 1 --fusion-threshold-mb 0.01";
const TURNS: &str = "--async-order round-robin";
const DIGITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/data/digits");

/// What a run left.
struct Left {
    losses: Vec<f64>,
    weights: Vec<u8>,
    results: PathBuf,
    said: String,
}

fn train(scratch: &Scratch, ranks: usize, words: &str) -> Left {
    let ([results, weights], said) = scratch.train_to_files(ranks, words);
    let losses = series(&results, "steps/loss");
    Left { losses, weights: fs::read(weights).unwrap(), results, said }
}

/// Updates by how late their gradients were.
fn staleness(results: &Path) -> Vec<u64> {
    let file = hdf5::File::open(results).unwrap();
    let mut counts = file.dataset("summary/staleness").unwrap().read_raw::<u64>().unwrap();
    counts.truncate(counts.iter().rposition(|&count| count > 0).map_or(0, |last| last + 1));
    counts
}

fn attribute(results: &Path, name: &str) -> String {
    let config = hdf5::File::open(results).unwrap().group("config").unwrap();
    config.attr(name).unwrap().read_scalar::<hdf5::types::VarLenUnicode>().unwrap().to_string()
}

#[test]
fn one_rank_that_computes_comes_to_what_it_does_alone() {
    let scratch = Scratch::new();
    let optimizers =
        ["sgd --momentum 0.9", "adam --clip-norm 0.5 --accumulation 2 --ema 0.9", "lamb", "lars --lr 0.1"];
    for optimizer in first(2, optimizers) {
        let words = format!("{SMALL} --optimizer {optimizer}");
        let alone = train(&scratch, 1, &words);
        assert!(alone.losses.iter().all(|loss| loss.is_finite()), "{words}: {:?}", alone.losses);
        for servers in [1, 2] {
            let served = train(&scratch, 1 + servers, &format!("{words} --sync server-async:{servers}"));
            assert_eq!(served.losses, alone.losses, "{servers} servers, {optimizer}");
            assert!(served.weights == alone.weights, "{servers} servers, {optimizer}: other weights");
            assert_eq!(staleness(&served.results), [6]);
        }
    }
}

/// Between epochs too: tests by the parameters that all gradients are in, and by their averages.
#[test]
fn tests_and_averages_are_those_of_a_rank_alone() {
    let scratch = Scratch::new();
    let words = format!("{SMALL} --data {DIGITS} --repeat-data 1 --epochs 1 --optimizer adam --ema 0.9")
        .replace("--steps 6", "");
    let tests =
        |left: &Left| ["epochs/test_loss", "epochs/train_loss"].map(|name| series(&left.results, name));
    let alone = train(&scratch, 1, &words);
    let served = train(&scratch, 2, &format!("{words} --sync server-async"));
    assert!(!alone.losses.is_empty() && !tests(&alone)[0].is_empty());
    assert_eq!(tests(&served), tests(&alone));
    assert_eq!(served.losses, alone.losses);
    assert!(served.weights == alone.weights, "other weights");
}

#[test]
fn ranks_that_take_turns_repeat_their_bits_and_are_as_late_as_there_are_others() {
    let scratch = Scratch::new();
    for (computing, servers) in first(2, [(2, 1), (3, 2), (2, 2), (3, 1)]) {
        let words = format!("{SMALL} --optimizer adam --sync server-async:{servers} {TURNS}");
        let [one, two] = [(); 2].map(|()| train(&scratch, computing + servers, &words));
        assert_eq!(one.losses, two.losses, "{computing} ranks, {servers} servers");
        assert!(one.weights == two.weights, "{computing} ranks, {servers} servers: other weights");
        // In the first turn each has the parameters of the beginning.
        let mut expected = vec![1; computing];
        expected[computing - 1] += 5 * computing as u64;
        assert_eq!(staleness(&one.results), expected, "{computing} ranks, {servers} servers");
        assert_eq!(attribute(&one.results, "repeatable"), "yes");
    }
}

/// Behind a drain all have the same parameters. With SGD without momentum W updates by their gradients, one after the
/// other, are one update by the mean with W times the learning rate.
#[test]
fn a_drain_behind_every_step_is_data_parallelism() {
    let scratch = Scratch::new();
    let words = format!("{SMALL} --optimizer sgd --momentum 0");
    for (computing, rate) in first(2, [(2, 0.01), (3, 0.01)]) {
        let plain = train(&scratch, computing, &format!("{words} --lr {}", rate * computing as f64));
        for order in ["arrival", "round-robin"] {
            let flags = format!(
                "{words} --lr {rate} --sync server-async --async-order {order} --checkpoint DIR/{order}{computing} \
                 --checkpoint-every 1steps"
            );
            let drained = train(&scratch, computing + 1, &flags);
            // Sums of a few numbers in another order, six times: some units of f32's last place.
            for (a, b) in plain.losses.iter().zip(&drained.losses) {
                assert!((a - b).abs() < 1e-6 * a, "{order}: {:?} and {:?}", plain.losses, drained.losses);
            }
            assert_eq!(staleness(&drained.results), vec![6; computing], "{order}");
        }
    }
}

#[test]
fn in_order_of_arrival_every_image_comes_once_and_the_digits_are_learned() {
    let scratch = Scratch::new();
    let cases =
        [2, 4].into_iter().flat_map(|computing| (1..4).map(move |seed| (computing, computing / 2, seed)));
    for (computing, servers, seed) in first(1, cases) {
        let words = format!(
            "--model mnist_small --data {DIGITS} --batch 16 --epochs 12 --threads 1 --optimizer adam --lr 0.001 \
             --seed {seed} --sync server-async:{servers}"
        );
        let left = train(&scratch, computing + servers, &words);
        let (images, epochs) = (series(&left.results, "steps/images"), series(&left.results, "steps/epoch"));
        for epoch in 1..13 {
            let of_epoch = || images.iter().zip(&epochs).filter(|(_, of)| **of == f64::from(epoch));
            let sum: f64 = of_epoch().map(|(images, _)| images).sum();
            assert_eq!(sum, (of_epoch().count() * 16 * computing) as f64, "epoch {epoch}");
        }
        let accuracy = series(&left.results, "epochs/test_accuracy");
        let best = accuracy.iter().copied().fold(0.0, f64::max);
        assert!(best >= 0.97, "{computing} ranks: {accuracy:?}");
        let late: u64 = staleness(&left.results).iter().sum();
        assert_eq!(late, (images.len() * computing) as u64, "an update for every rank and step");
        assert_eq!(attribute(&left.results, "repeatable"), "no");
        let closing = left.said.lines().find(|line| line.starts_with("staleness "));
        assert!(closing.is_some_and(|line| line.contains(" updates on average, at most ")), "{}", left.said);
        let page = scratch.path("report.html");
        let mut report = Command::new(env!("CARGO_BIN_EXE_dltrain"));
        report.arg("report").arg(&left.results).arg("-o").arg(&page);
        assert!(report.output().unwrap().status.success());
        assert!(fs::read_to_string(&page).unwrap().contains("share of the updates [%]"));
    }
}

/// A checkpoint is one of all ranks behind the same step.
#[test]
fn an_interrupted_run_goes_on_with_the_same_bits_and_with_any_other_strategy() {
    let scratch = Scratch::new();
    let words = format!("{SMALL} --optimizer adam --checkpoint-every 2steps --checkpoint-keep 9");
    let turns = format!("{words} --sync server-async:2 {TURNS}");
    let whole = train(&scratch, 4, &format!("{turns} --checkpoint DIR/whole"));
    let from = "--resume DIR/whole/step-00000004.h5";
    let rest = train(&scratch, 4, &format!("{turns} --checkpoint DIR/rest {from}"));
    assert_eq!(rest.losses, whole.losses[4..]);
    assert!(rest.weights == whole.weights, "other weights");
    // Three drains of two ranks each, one of them in the second job alone.
    assert_eq!([&whole, &rest].map(|left| staleness(&left.results)), [[3, 9]; 2]);
    for (number, (ranks, other)) in
        [(2, "--allreduce shm"), (3, "--sync server"), (2, "--local-steps 2")].iter().enumerate()
    {
        let left = train(&scratch, *ranks, &format!("{words} {other} --checkpoint DIR/c{number} {from}"));
        assert!(left.losses.len() == 2 && left.losses.iter().all(|loss| loss.is_finite()), "{other}");
        let back = format!("{words} --sync server-async --resume DIR/c{number}/step-00000006.h5");
        let back = train(&scratch, 3, &back.replace("--steps 6", "--steps 8"));
        assert!(back.losses.len() == 2 && back.losses.iter().all(|loss| loss.is_finite()), "{other}, back");
    }
}

/// On the doubles of CUDA's libraries: ranks and servers with memory of their own.
#[test]
fn gpus_come_to_the_same() {
    let mut results = gpu_job::Results::new();
    let words = format!("{SMALL} --device cuda --precision f32 --optimizer adam --clip-norm 0.5 --ema 0.9")
        .replace("--steps 6", "--steps 3");
    let alone = results.losses(1, &words);
    assert_eq!(results.losses(3, &format!("{words} --sync server-async:2")), alone);
    let turns = format!("{words} --sync server-async {TURNS}");
    assert_eq!(results.losses(4, &turns), results.losses(4, &turns));
}

#[test]
fn a_loss_that_is_not_finite_ends_the_job_and_names_its_step_and_rank() {
    let directory = tempfile::tempdir().unwrap();
    let results = directory.path().join("run.h5");
    let flags = format!(
        "{SMALL} --optimizer sgd --lr 1e30 --sync server-async:2 {TURNS} --results {}",
        results.display()
    );
    let message = refused(&[(4, &flags.split_whitespace().collect::<Vec<_>>())]);
    assert!(message.contains("the loss is not a finite number at step 1"), "{message}");
    assert!(message.contains("first ") && message.contains(" (rank "), "{message}");
}

/// N bytes of gradients and as many of parameters, for each rank and step, and notes of 64 bytes.
#[test]
fn they_send_the_bytes_that_are_said_of_them() {
    let scratch = Scratch::new();
    for (computing, servers) in [(2, 1), (3, 2)] {
        let left = train(&scratch, computing + servers, &format!("{SMALL} --sync server-async:{servers}"));
        let file = hdf5::File::open(&left.results).unwrap();
        let owned = file.dataset("config/owned_bytes").unwrap().read_raw::<u64>().unwrap();
        let most = owned.iter().max().unwrap() * computing as u64;
        let n: u64 = owned.iter().sum();
        let notes = dltrain::plan::TAIL as u64 * (computing + servers) as u64;
        let found = scalar(&left.results, "summary/sent_a_step");
        let expected = most.max(n);
        assert!((expected..=expected + notes).contains(&found), "{computing} ranks: {found}, not {expected}");
    }
}

#[test]
fn memory_is_as_planned() {
    let results = Scratch::new();
    let file = results.path("run.h5");
    let words = format!(
        "--model mnist_large --image-size 64 --batch 2 --steps 2 --warmup 0 --threads 1 --optimizer adam --ema 0.9 \
         --sync server-async --results {}",
        file.display()
    );
    run(3, &words.split_whitespace().collect::<Vec<_>>());
    job::within_plan(&file, &words).unwrap_or_else(|said| panic!("{said}"));
}

#[test]
fn what_does_not_go_together_is_refused() {
    let cases = [
        (2, "--sync server-async:2", "none is left to compute"),
        (1, "--sync server-async", "none is left to compute"),
        (2, "--async-order arrival", "add --sync server-async"),
        (2, "--sync server-async --sync-bn", "--sync-bn and --sync server-async"),
        (2, "--sync server-async --precision f16 --device cuda", "--precision f16 and --sync server-async"),
        (2, "--sync server-async --wire bf16", "--wire bf16 and --sync server-async"),
        (2, "--sync server-async --compress topk", "--compress and --sync server-async"),
        (2, "--sync server-async --allreduce ring", "--allreduce ring and --sync server-async"),
        (2, "--sync server-async --allreduce nccl", "--allreduce nccl and --sync server-async"),
        (2, "--sync server-async --shards 2", "--sync server-async and --shards 2"),
        (2, "--sync server-async --local-steps 2", "--local-steps 2 and --sync server-async"),
        (2, "--sync server-async --zero 1", "both say who updates what"),
        (2, "--sync server-async --checkpoint /tmp/none --commit 2", "--commit and --sync server-async"),
    ];
    each(cases, |(ranks, flags, said)| {
        let flags: Vec<&str> = flags.split_whitespace().collect();
        let message = refused(&[(ranks, &flags)]);
        assert!(message.contains(said), "{flags:?}: {message}");
    });
}
