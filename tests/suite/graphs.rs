//! A step as CUDA graphs, on doubles of CUDA's libraries:
//!
//! - a rank by itself does all of a step by one launch, to the bits of what is launched kernel by kernel; where
//!   something comes between its passes and its updates there are more launches, and the same bits;
//! - a loss that is not finite ends the run before anything is updated, in whichever step it comes.

use crate::support::cases::first;
use crate::support::gpu_job::{SHAPES, with_cuda};
use crate::support::job::{self, Finished, arrays, finish, series};

use std::path::{Path, PathBuf};

/// A run of one rank that takes a checkpoint each step: what it printed, its losses, and the files of its steps.
fn run(directory: &Path, flags: &str, graphs: &str) -> (Finished, Vec<f64>, Vec<PathBuf>) {
    let own = directory.join(graphs);
    std::fs::create_dir(&own).unwrap();
    let [results, kept, log] = ["results.h5", "kept", "log"].map(|name| own.join(name).display().to_string());
    let flags = format!(
        "{flags} --device cuda --warmup 0 --results {results} --checkpoint {kept} --checkpoint-every 1steps \
         --checkpoint-keep 99"
    );
    let flags: Vec<&str> = flags.split_whitespace().collect();
    // Work is done as late as it may be: a wait that is missing would show.
    let variables = [("DLTRAIN_CUDA_GRAPH", graphs), ("FAKE_CUDA_LOG", &log), ("FAKE_CUDA_DELAYED", "1")];
    let done = finish(with_cuda(job::job(&[(1, &flags)]), &variables, directory));
    let files = |directory: &Path| -> Vec<PathBuf> {
        let mut all: Vec<_> =
            std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
        all.sort();
        all
    };
    (done, series(Path::new(&results), "steps/loss"), files(Path::new(&kept)))
}

/// How often a run has called a function.
fn called(directory: &Path, name: &str) -> usize {
    let mut files = std::fs::read_dir(directory.join("1")).unwrap().map(|entry| entry.unwrap().path());
    let log = files.find(|path| path.file_name().unwrap().to_str().unwrap().starts_with("log.")).unwrap();
    std::fs::read_to_string(log).unwrap().lines().filter(|line| line.split(' ').nth(1) == Some(name)).count()
}

#[test]
fn a_rank_by_itself_does_a_step_in_one_graph() {
    const STEPS: usize = 4;
    let cases = [
        (1, "--optimizer adamw --lr 0.001 --clip-norm 0.5 --ema 0.9"),
        (1, "--optimizer sgd --lr 0.01 --precision f16 --loss-scale 4e6 --loss-scale-hysteresis 1"),
        (1, "--optimizer lamb --lr 0.01 --precision bf16 --zero 3 --recompute"),
        (4, "--optimizer sgd --lr 0.01 --momentum 0.9 --accumulation 2"),
        (2, "--optimizer sgd --lr 0.01 --compress 1bit"),
        (2, "--optimizer sgd --lr 0.01 --allreduce nccl"),
        (2, "--optimizer sgd --lr 0.01 --local-steps 2"),
        (1, "--optimizer lars --lr 0.01 --ema 0.9 --fusion-threshold-mb 0.01"),
        (1, "--optimizer rmsprop --lr 0.001 --no-overlap"),
        (1, "--optimizer sgd --lr 0.01 --freeze conv1"),
    ];
    for (launches, flags) in first(7, cases) {
        let directory = tempfile::tempdir().unwrap();
        let flags = format!("--model mnist_small --data {SHAPES} --batch 8 --steps {STEPS} {flags}");
        let [one, apart] = ["1", "0"].map(|graphs| run(directory.path(), &flags, graphs));
        assert!(one.0.success && apart.0.success, "{flags}: {}{}", one.0.stderr, apart.0.stderr);
        assert_eq!(called(directory.path(), "cuGraphLaunch"), launches * (STEPS - 1), "{flags}");
        assert_eq!(one.1, apart.1, "{flags}");
        assert!(one.1.windows(2).all(|pair| pair[0] != pair[1]), "{flags}: {:?}", one.1);
        assert_eq!((one.2.len(), apart.2.len()), (STEPS, STEPS), "{flags}");
        for (one, apart) in one.2.iter().zip(&apart.2) {
            assert!(arrays(one) == arrays(apart), "{flags}: {} is another", one.display());
        }
    }
}

/// The message says where the first such number stands, in a forward pass by the parameters of before: had anything
/// been updated it would be another.
#[test]
fn a_loss_that_is_not_finite_in_a_graph_updates_nothing() {
    let cases = [
        "--optimizer sgd --lr 1e3 --momentum 0.9 --ema 0.9",
        "--optimizer sgd --lr 1e20 --clip-norm 1e30",
        "--optimizer adam --lr 1e12 --precision bf16",
    ];
    for flags in first(2, cases) {
        let directory = tempfile::tempdir().unwrap();
        let flags = format!("--model mnist_small --data {SHAPES} --batch 8 --steps 12 {flags}");
        let [one, apart] = ["1", "0"].map(|graphs| run(directory.path(), &flags, graphs));
        let said = |done: &Finished| {
            let message = done.stderr.lines().find(|line| line.contains("error: ")).unwrap().to_string();
            message.split_once("error: ").unwrap().1.to_string()
        };
        let message = said(&one.0);
        println!("{flags}: {message}");
        assert!(message.starts_with("the loss is not a finite number at step "), "{flags}: {message}");
        assert!(message.contains("in the output of layer"), "{flags}: {message}");
        assert_eq!(message, said(&apart.0), "{flags}");
        assert_eq!(one.1.len(), apart.1.len(), "{flags}");
        let steps = one.2.len();
        assert_eq!((steps, apart.2.len()), (one.1.len() - 1, steps), "{flags}");
        assert!(steps > 0 && arrays(&one.2[steps - 1]) == arrays(&apart.2[steps - 1]), "{flags}");
    }
}
