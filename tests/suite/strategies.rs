//! Who updates what: `--sync root`, `--sync server:K` and `--zero` are plain data parallelism whose work moved.
//!
//! - losses and weights are those of plain data parallelism, bit for bit, with any number of ranks and each kind of
//!   optimizer, with clipping, accumulation, moving averages, shared statistics, f16's loss scaling, and on GPUs;
//! - a run of one strategy resumes from a checkpoint of any other, with the same bits;
//! - they send what docs/algorithms.md says, and have the memory that the plan says;
//! - what does not go together is refused, and a rank that was given another strategy named.
//!
//! Ranks of one node share what they update, so ZeRO-1 is seen between hosts (`hosts`) and on GPUs; and they have their
//! parameters in common, so that there `--zero 3` is `--zero 2`. What becomes of a job whose server stops or dies
//! `stall` has.

use crate::support::cases::{each, first};
use crate::support::digits::few_tests;
use crate::support::gpu_job;
use crate::support::job;
use crate::support::residual::residual;
use crate::support::scratch::Scratch;

use std::fs;

use job::{refused, run, series};
use serde_json::Value;

/// Several buckets, of which some are smaller than the number of ranks.
const SMALL: &str =
    "--model mnist_small --batch 4 --steps 3 --warmup 0 --threads 1 --fusion-threshold-mb 0.01";

impl Scratch {
    /// That so many ranks that compute come to the same by every strategy.
    fn alike(&self, ranks: usize, words: &str) {
        let plain = self.train(ranks, &format!("{words} --allreduce shm"));
        assert!(plain.0.iter().all(|loss| loss.is_finite()), "{words}: {:?}", plain.0);
        for (flags, servers) in [
            ("--sync root", 0),
            ("--sync server", 1),
            ("--zero 1 --allreduce shm", 0),
            ("--zero 2 --allreduce shm", 0),
        ] {
            let (losses, weights) = self.train(ranks + servers, &format!("{words} {flags}"));
            assert_eq!(losses, plain.0, "{ranks} ranks, {words} {flags}");
            assert!(weights == plain.1, "{ranks} ranks, {words} {flags}: other weights");
        }
    }
}

#[test]
fn every_optimizer_comes_to_the_same() {
    let scratch = Scratch::new();
    let optimizers = [
        "lamb --ema 0.9",
        "sgd --momentum 0.9",
        "adam --clip-norm 0.5 --accumulation 2",
        "lars --lr 0.1 --clip-norm 0.1",
    ];
    for optimizer in first(2, optimizers) {
        scratch.alike(2, &format!("{SMALL} --optimizer {optimizer}"));
    }
}

#[test]
fn any_number_of_ranks_comes_to_the_same() {
    let scratch = Scratch::new();
    for ranks in first(2, [3, 1, 4, 7]) {
        scratch.alike(ranks, &format!("{SMALL} --optimizer adam --clip-norm 0.5 --accumulation 2"));
    }
}

/// Several servers share tensors, and with LAMB have whole ones: their norms are of other parts, which only clipping
/// adds up.
#[test]
fn several_servers_come_to_the_same() {
    let scratch = Scratch::new();
    for optimizer in ["adam", "lamb"] {
        let words = format!("{SMALL} --optimizer {optimizer}");
        let plain = scratch.train(2, &format!("{words} --allreduce shm"));
        for servers in [2, 3] {
            let served = scratch.train(2 + servers, &format!("{words} --sync server:{servers}"));
            assert_eq!(served.0, plain.0, "{servers} servers, {optimizer}");
            assert!(served.1 == plain.1, "{servers} servers, {optimizer}: other weights");
        }
    }
}

/// Owners answer slices of a large layer, unless an update waits for all gradients.
#[test]
fn large_layers_come_to_the_same_in_slices() {
    let scratch = Scratch::new();
    let words = "--model mnist_large --batch 2 --steps 2 --warmup 0 --threads 1 --optimizer adam";
    // With the bytes of the longest bucket.
    let longest = |ranks: usize, flags: &str| {
        let number = fs::read_dir(scratch.directory()).unwrap().count();
        let trained = scratch.train(ranks, &format!("{words} {flags}"));
        let file = hdf5::File::open(scratch.path(&format!("run{number}.h5"))).unwrap();
        let bytes = file.dataset("config/bucket_bytes").unwrap().read_raw::<u64>().unwrap();
        (trained, bytes.into_iter().max().unwrap())
    };
    let (plain, whole) = longest(2, "--allreduce shm");
    let most = 4 << 20;
    assert!(whole > 2 * most, "{whole} bytes");
    for (ranks, flags) in [(3, "--sync server"), (4, "--sync server:2"), (2, "--sync root")] {
        let (trained, bytes) = longest(ranks, flags);
        assert!(bytes <= most, "{flags}: {bytes} bytes");
        assert!(trained == plain, "{flags}: other losses or weights");
    }
    assert!(longest(3, "--sync server --clip-norm 1").1 > 2 * most);
}

/// Evaluations between epochs, with averaged weights; statistics of normalisations, shared by pairs; halves on the way.
#[test]
fn tests_averages_statistics_and_short_messages_come_to_the_same() {
    let scratch = Scratch::new();
    let digits = few_tests();
    let normalised = format!("{} --batch 2 --steps 2 --threads 1", residual());
    scratch
        .alike(4, &format!("{normalised} --data {digits} --lr 0.01 --optimizer sgd --sync-bn 2 --ema 0.9"));
    let words = format!("{SMALL} --data {digits} --repeat-data 1 --optimizer adam --ema 0.9");
    let tests = |name: &str, ranks: usize, flags: &str| {
        let results = scratch.path(&format!("{name}.h5"));
        let words = format!("{words} --epochs 1 {flags} --results {}", results.display());
        run(ranks, &words.split_whitespace().collect::<Vec<_>>());
        ["epochs/test_loss", "epochs/test_accuracy"].map(|name| series(&results, name))
    };
    let plain = tests("plain", 2, "--allreduce shm");
    assert!(!plain[0].is_empty());
    assert_eq!(tests("root", 2, "--sync root"), plain);
    assert_eq!(tests("server", 3, "--sync server"), plain);
    // Each gradient, and the loss, is off by 8 bits' rounding.
    let losses = |ranks, flags| scratch.train(ranks, &format!("{SMALL} --optimizer sgd --lr 0.01 {flags}")).0;
    let exact = losses(3, "--allreduce shm");
    for (ranks, flags) in [(3, "--sync root --wire bf16"), (4, "--sync server --wire bf16")] {
        let halves = losses(ranks, flags);
        assert_ne!(halves, exact, "{flags}");
        for (a, b) in halves.iter().zip(&exact) {
            assert!((a - b).abs() < 0.01 * b, "{flags}: {halves:?} and {exact:?}");
        }
    }
}

/// Where updates need nothing of other gradients they are made in the backward pass, and the window is used again:
/// with accumulation, statistics that ranks share, transfers beside computing or not, and the algorithm of each
/// bucket's own.
#[test]
fn windows_come_to_the_same() {
    let scratch = Scratch::new();
    let normalised =
        format!("{} --batch 2 --steps 2 --warmup 0 --threads 1 --optimizer sgd --momentum 0.9", residual());
    let all = [
        (2, format!("{SMALL} --optimizer adam --ema 0.9")),
        (3, format!("{normalised} --sync-bn --fusion-threshold-mb 1")),
        (4, format!("{SMALL} --optimizer lars --lr 0.1 --no-overlap")),
        (3, format!("{normalised} --recompute --accumulation 2")),
    ];
    for (ranks, words) in first(2, all) {
        let plain = scratch.train(ranks, &words);
        for stage in [2, 3] {
            let zero = scratch.train(ranks, &format!("{words} --zero {stage}"));
            assert_eq!(zero.0, plain.0, "{ranks} ranks, {words} --zero {stage}");
            assert!(zero.1 == plain.1, "{ranks} ranks, {words} --zero {stage}: other weights");
        }
    }
}

/// State that is apart is one file all the same.
#[test]
fn a_checkpoint_of_any_strategy_resumes_any_other() {
    let scratch = Scratch::new();
    let words = format!("{SMALL} --optimizer adam --ema 0.9 --clip-norm 1").replace("--steps 3", "--steps 4");
    let strategies =
        [("--allreduce shm", 2), ("--sync root", 2), ("--sync server:2", 4), ("--zero 3 --allreduce shm", 2)];
    let keep = "--checkpoint-every 2steps --checkpoint-keep 9";
    let whole = scratch.train(2, &format!("{words} --allreduce shm"));
    for (index, (flags, ranks)) in strategies.iter().enumerate() {
        let all = scratch.train(*ranks, &format!("{words} {flags} {keep} --checkpoint DIR/c{index}"));
        assert!(all == whole, "{flags}");
        // Each is gone on with by the next one, which has the state of others apart; by all of them in `make
        // test-full`.
        for after in first(1, [1, 2, 3, 0]) {
            let (other, ranks) = strategies[(index + after) % strategies.len()];
            let resume = format!("{words} {other} --resume DIR/c{index}/step-00000002.h5");
            let rest = scratch.train(ranks, &resume);
            assert_eq!(rest.0, whole.0[2..], "{flags}, then {other}");
            assert!(rest.1 == whole.1, "{flags}, then {other}: other weights");
        }
    }
}

/// On the doubles of CUDA's libraries, where every rank has a device with memory of its own: ZeRO-1 is between any
/// ranks.
#[test]
fn gpus_come_to_the_same() {
    let mut results = gpu_job::Results::new();
    let all =
        ["--optimizer lamb --precision f16 --ema 0.9", "--optimizer adam --clip-norm 0.5 --precision f32"];
    for rest in first(1, all) {
        let words = format!(
            "--device cuda --model mnist_small --batch 2 --steps 3 --threads 1 --fusion-threshold-mb 0.01 {rest}"
        );
        let plain = results.losses(3, &format!("{words} --allreduce shm"));
        let strategies = [
            ("--zero 2 --allreduce shm", 3),
            ("--zero 3 --allreduce shm", 3),
            ("--sync root", 3),
            ("--sync server:2", 5),
            ("--zero 1 --allreduce shm", 3),
            ("--sync server", 4),
        ];
        for (flags, ranks) in first(4, strategies) {
            assert_eq!(results.losses(ranks, &format!("{words} {flags}")), plain, "{words} {flags}");
        }
        let ring = results.losses(3, &format!("{words} --allreduce ring"));
        for stage in first(2, [1, 3, 2]) {
            let zero = results.losses(3, &format!("{words} --zero {stage} --allreduce ring"));
            assert_eq!(zero, ring, "{words}: rings, --zero {stage}");
        }
    }
}

/// Bytes that each rank sent in a step, from the messages of a timeline of three; and bytes of all parameters.
fn sent(ranks: usize, words: &str) -> (Vec<u64>, u64) {
    let scratch = Scratch::new();
    let [timeline, results] = ["timeline.json", "results.h5"].map(|name| scratch.path(name));
    let words = format!(
        "{SMALL} {words} --timeline {} --timeline-steps 0-9 --results {}",
        timeline.display(),
        results.display()
    );
    run(ranks, &words.split_whitespace().collect::<Vec<_>>());
    let timeline: Value = serde_json::from_str(&fs::read_to_string(timeline).unwrap()).unwrap();
    let mut sent = vec![0; ranks];
    for event in timeline["traceEvents"].as_array().unwrap() {
        if event["ph"] == "X" && event["cat"] == "sends" {
            sent[event["pid"].as_u64().unwrap() as usize] += event["args"]["bytes"].as_u64().unwrap();
        }
    }
    sent.iter_mut().for_each(|bytes| *bytes /= 3);
    let most = *sent.iter().max().unwrap();
    assert_eq!(job::scalar(&results, "summary/sent_a_step"), most, "{words}: {sent:?}");
    let file = hdf5::File::open(results).unwrap();
    let owned = file.dataset("config/owned_bytes").unwrap().read_raw::<u64>().unwrap();
    (sent, owned.iter().sum())
}

/// N bytes of gradients: docs/algorithms.md. The step's own numbers go round a ring beside them, once or twice.
#[test]
fn each_sends_the_bytes_that_are_said_of_it() {
    let is = |found: &[u64], expected: &[u64], what: &str| {
        let near = found
            .iter()
            .zip(expected)
            .all(|(found, &bytes)| (bytes..=bytes + 2 * dltrain::plan::TAIL as u64).contains(found));
        assert!(near && found.len() == expected.len(), "{what}: {found:?} where {expected:?} are said");
    };
    for computing in first(1, [3, 2]) {
        let (found, n) = sent(computing, "--sync root");
        let mut expected = vec![n; computing];
        expected[0] = (computing as u64 - 1) * n;
        is(&found, &expected, "root");
        for servers in [1, 2] {
            let (found, n) = sent(computing + servers, &format!("--sync server:{servers}"));
            is(&found[..computing], &vec![n; computing], "ranks that compute");
            let by_servers: u64 = found[computing..].iter().sum();
            let all = computing as u64 * n;
            assert!(
                (all..all + 1000).contains(&by_servers),
                "{servers} servers: {found:?} where {all} are said"
            );
        }
    }
}

#[test]
fn what_does_not_go_together_is_refused() {
    let cases = [
        (2, "--sync server:2", "none is left to compute"),
        (1, "--sync server", "none is left to compute"),
        (2, "--sync server:0", "`0` is no number of servers"),
        (2, "--sync leader", "it is one of allreduce, zero1, zero2, zero3, root, server[:K]"),
        (2, "--zero 4", "0..=3"),
        (2, "--zero 2 --sync root", "both say who updates what"),
        (2, "--zero 2 --pipeline 2", "at most updated in shares (--zero 1)"),
        (2, "--zero 3 --shards 4", "another order"),
        (2, "--zero 2 --local-steps 4", "both say who updates what"),
        (2, "--zero 3 --compress topk", "--compress and --zero 3"),
        (2, "--zero 3 --allreduce mpi", "--allreduce mpi and --zero 3"),
        (2, "--zero 3 --freeze backbone", "nobody updates what is frozen"),
        (2, "--zero 3 --tensorboard /tmp/none --tensorboard-histograms 2", "no rank has the sums of all"),
        (2, "--zero 1 --sync root", "both say who updates what"),
        (2, "--sync root --compress topk", "--compress and --sync root"),
        (2, "--zero 1 --compress 1bit", "--compress and --zero 1"),
        (2, "--sync root --allreduce ring", "--allreduce ring and --sync root"),
        (2, "--zero 1 --allreduce mpi", "--allreduce mpi and --zero 1"),
        (2, "--zero 1 --allreduce ipc", "--allreduce ipc and --zero 1"),
        (
            2,
            "--sync server --tensorboard /tmp/none --tensorboard-histograms 2",
            "no rank has the sums of all",
        ),
    ];
    each(cases, |(ranks, flags, said)| {
        let flags: Vec<&str> = flags.split_whitespace().collect();
        let message = refused(&[(ranks, &flags)]);
        assert!(message.contains(said), "{flags:?}: {message}");
    });
    let message = refused(&[(1, &["--sync", "root", "--steps", "1"]), (1, &["--steps", "1"])]);
    assert!(message.contains("--sync root") && message.contains("--sync allreduce"), "{message}");
}

/// State of a bucket's owner, gradients and parameters on their way: as the plan says.
#[test]
fn memory_is_as_planned() {
    let scratch = Scratch::new();
    let all = [(3, "--sync server"), (2, "--zero 2"), (2, "--zero 1"), (2, "--sync root")];
    for (ranks, flags) in first(2, all) {
        let results = scratch.path(&format!("{ranks}{}.h5", &flags[2..6]));
        let words = format!(
            "--model mnist_large --image-size 64 --batch 2 --steps 2 --warmup 0 --threads 1 --optimizer adam --ema 0.9 \
             {flags} --results {}",
            results.display()
        );
        run(ranks, &words.split_whitespace().collect::<Vec<_>>());
        job::within_plan(&results, &words).unwrap_or_else(|said| panic!("{flags}: {said}"));
    }
}
