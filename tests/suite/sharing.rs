//! Parameters and optimizer state that the ranks of a node have in common: what a user sees of them is memory and time,
//! never a number.
//!
//! - any number of ranks gives the bits of one rank that adds up as many micro-batches and shares nothing
//! - where shared memory has no room everything is private, with the same bits, and one warning says so

use crate::support::digits::few_tests;
use crate::support::job;

use std::path::Path;

use job::{finish, job, series};

/// Trains in a mount namespace with a /dev/shm of `shm`, if given, and returns losses of steps and of the test set, and
/// what was said on stderr.
fn train(ranks: usize, flags: &str, shm: Option<&str>) -> (Vec<f64>, Vec<f64>, String) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run.h5");
    let flags = format!("--data {} --results {} {flags}", few_tests(), path.display());
    let flags: Vec<&str> = flags.split_whitespace().collect();
    let mut command = job(&[(ranks, &flags)]);
    if let Some(size) = shm {
        let inner = command;
        command = unshared(&format!("mount -t tmpfs -o size={size} tmpfs /dev/shm"));
        command.arg(inner.get_program()).args(inner.get_args()).env("OMP_NUM_THREADS", "1");
    }
    let done = finish(command);
    assert!(done.success, "{flags:?}\n{}\n{}", done.stdout, done.stderr);
    let read = |name: &str| series(Path::new(&path), name);
    (read("steps/loss"), read("epochs/test_loss"), done.stderr)
}

/// A command that runs its arguments in a mount namespace of its own, after `first`.
fn unshared(first: &str) -> std::process::Command {
    let mut command = std::process::Command::new("unshare");
    command.args(["--mount", "sh", "-c", &format!("{first} && exec \"$@\""), "sh"]);
    command
}

/// Shares are cut within parameters or, for the layer-wise rules, between them; a threshold of 0 makes small buckets
/// too, some of them with fewer cache lines than there are ranks. Ranks add up as micro-steps do, from the first to the
/// last.
#[test]
fn shared_updates_give_the_bits_of_one_rank() {
    for (ranks, threshold, optimizer) in [
        (2, "100", "sgd --lr 0.1"),
        (4, "0", "sgd --momentum 0 --clip-norm 0.1"),
        (3, "0", "sgd --nesterov --ema 0.5 --no-overlap"),
        (2, "0", "adam --clip-norm 0.1"),
        (3, "100", "adamw --ema 0.5"),
        (2, "0", "rmsprop"),
        (4, "100", "rmsprop-tf --ema 0.5"),
        (3, "0", "lars --lr 1 --clip-norm 0.1"),
        (4, "100", "lamb --ema 0.5"),
    ] {
        let flags = format!(
            "--model lenet5 --batch 4 --steps 8 --threads 1 --fusion-threshold-mb {threshold} --optimizer {optimizer}"
        );
        let (losses, tests, said) = train(ranks, &format!("{flags} --allreduce shm"), None);
        let alone = train(1, &format!("{flags} --accumulation {ranks}"), None);
        assert_eq!((losses.len(), tests.len()), (8, 1));
        assert_eq!(losses, alone.0, "{ranks} ranks {flags}");
        assert_eq!(tests, alone.1, "{ranks} ranks {flags}: the test set");
        assert!(!said.contains("not shared"), "{said}");
    }
}

#[test]
fn without_room_parameters_are_private_with_the_same_bits() {
    let mut namespace = unshared("true");
    namespace.arg("true");
    if !finish(namespace).success {
        println!("SKIPPED: a mount namespace needs root");
        return;
    }
    for more in ["--accumulation 2 --optimizer adam --clip-norm 0.1 --ema 0.5", "--optimizer lars --lr 1"] {
        let flags = format!("--model mnist_large --batch 2 --steps 4 --threads 1 --allreduce ring {more}");
        let (shared, private) = (train(2, &flags, None), train(2, &flags, Some("16m")));
        assert_eq!((private.0, private.1), (shared.0, shared.1), "{more}");
        let warnings = private.2.matches("optimizer's state are not shared within a node").count();
        assert_eq!(warnings, 1, "{}", private.2);
        assert!(!shared.2.contains("not shared"), "{}", shared.2);
    }
}
