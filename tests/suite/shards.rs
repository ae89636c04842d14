//! `--shards V`: bits that do not depend on the number of ranks.
//!
//! - losses and weights are the same to the bit for every power of two of ranks up to V, with dropout, augmentation,
//!   batch normalisation, clipping, averages, and on GPUs;
//! - a run that goes on with other ranks, back and forth, has the bits of one that was left alone;
//! - a rank has the memory that the plan says, and what cannot be is refused.

use crate::support::cases::{each, first};
use crate::support::digits::few_tests;
use crate::support::gpu_job;
use crate::support::job;
use crate::support::residual::residual;
use crate::support::scratch::Scratch;

use job::{refused, run};

const PLAIN: &str = "--warmup 0 --threads 1";

#[test]
fn any_power_of_two_of_ranks_has_the_same_bits() {
    let scratch = Scratch::new();
    let digits = few_tests();
    let cases = [
        format!(
            "{} --data {digits} --shards 8 --batch 2 --steps 3 --lr 0.01 --optimizer sgd --augment pad-crop,mixup {PLAIN}",
            residual()
        ),
        format!(
            "--model mnist_net --data {digits} --shards 4 --global-batch 32 --steps 5 --optimizer adam \
             --clip-norm 0.1 --ema 0.9 --fusion-threshold-mb 0.01 {PLAIN}"
        ),
        format!("--model mnist_small --shards 8 --batch 4 --steps 4 --optimizer lamb {PLAIN}"),
    ];
    for words in first(2, cases) {
        let alone = scratch.train(1, &words);
        assert!(alone.0.iter().all(|loss| loss.is_finite()), "{:?}", alone.0);
        let most = if words.contains("--shards 4") { 4 } else { 8 };
        for ranks in first(2, [2, 4, 8]).filter(|&ranks| ranks <= most) {
            let shared = scratch.train(ranks, &words);
            assert_eq!(shared.0, alone.0, "{ranks} ranks, {words}");
            assert!(shared.1 == alone.1, "{ranks} ranks, {words}: other weights");
        }
        let micro_steps = scratch.train(1, &words.replace("--shards 8", "--accumulation 8"));
        assert!(
            !words.contains("--shards 8") || micro_steps.0 != alone.0,
            "{words}: a tree adds as a row does"
        );
    }
}

/// Four ranks, then two, then four again.
#[test]
fn a_run_goes_on_with_other_ranks_to_the_bit() {
    let scratch = Scratch::new();
    let words = format!(
        "{} --data {} --shards 4 --batch 4 --steps 6 --lr 0.01 --optimizer sgd --momentum 0.9 \
         --checkpoint-every 2steps --checkpoint-keep 9 {PLAIN}",
        residual(),
        few_tests()
    );
    let whole = scratch.train(4, &format!("{words} --checkpoint DIR/a"));
    let two = scratch.train(2, &format!("{words} --resume DIR/a/step-00000002.h5 --checkpoint DIR/b"));
    assert_eq!(two.0, whole.0[2..]);
    let four = scratch.train(4, &format!("{words} --resume DIR/b/step-00000004.h5"));
    assert_eq!(four.0, whole.0[4..]);
    assert!(four.1 == whole.1 && two.1 == whole.1, "other weights");
}

#[test]
fn gpus_have_the_same_bits() {
    let mut results = gpu_job::Results::new();
    for precision in first(1, ["f32", "bf16"]) {
        let words = format!(
            "--device cuda --precision {precision} --model mnist_small --shards 4 --batch 2 --steps 3 --threads 1 \
             --clip-norm 0.5"
        );
        let alone = results.losses(1, &words);
        for ranks in [2, 4] {
            assert_eq!(results.losses(ranks, &words), alone, "{ranks} ranks, {precision}");
        }
    }
}

/// Three levels of the tree beside a shard's own gradients.
#[test]
fn memory_is_as_planned() {
    let scratch = Scratch::new();
    let results = scratch.path("run.h5");
    let words = format!(
        "--model alexnet --image-size 63 --batch 1 --shards 8 --steps 2 --warmup 0 --threads 1 --lr 1e-5 --results {}",
        results.display()
    );
    run(1, &words.split_whitespace().collect::<Vec<_>>());
    job::within_plan(&results, &words).unwrap_or_else(|said| panic!("{said}"));
    let plan = run(2, &["--model", "mnist_small", "--shards", "8", "--batch", "4", "--dry-run"]);
    assert!(plan.contains("8 of 4 images, of which a rank of 2 computes 4 one after the other"), "{plan}");
    assert!(plan.contains("= global batch 32"), "{plan}");
}

#[test]
fn what_cannot_be_is_refused() {
    let cases = [
        (3, "--shards 8", "3 ranks cannot share them; start a power of two"),
        (4, "--shards 2", "4 ranks cannot share them"),
        (1, "--shards 6", "must be a power of two"),
        (1, "--shards 0", "must be a power of two"),
        (2, "--shards 8 --global-batch 20", "give a multiple of 8"),
        (2, "--shards 8 --accumulation 2", "--accumulation"),
        (2, "--shards 8 --zero 1", "--zero 1 and --shards 8"),
        (2, "--shards 8 --local-steps 2", "--local-steps 2 and --shards 8"),
        (2, "--shards 8 --sync-bn", "--sync-bn and --shards 8"),
        (2, "--shards 8 --compress topk", "--compress and --shards 8"),
        (2, "--shards 8 --wire bf16", "--wire bf16 and --shards 8"),
        (2, "--shards 8 --allreduce ring", "--allreduce ring and --shards 8"),
    ];
    each(cases, |(ranks, flags, said)| {
        let flags: Vec<&str> = flags.split_whitespace().collect();
        let message = refused(&[(ranks, &flags)]);
        assert!(message.contains(said), "{flags:?}: {message}");
    });
}
