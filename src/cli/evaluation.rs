//! Which flags have nothing to do in a run that only tests (`--evaluate`, `--predict`).

use clap::CommandFactory;

use super::{Cli, file};
use dltrain::error::{Error, Result};

/// What is about training alone, besides all of the optimizer's.
const OF_TRAINING: [&str; 43] = [
    "accumulation",
    "allreduce",
    "async-order",
    "augment",
    "checkpoint-every",
    "checkpoint-keep",
    "commit",
    "compress",
    "cuda-aware",
    "epochs",
    "freeze",
    "fusion-threshold-mb",
    "global-batch",
    "local-steps",
    "lossy",
    "measure",
    "memory-limit",
    "mesh",
    "micro-batches",
    "no-overlap",
    "outer-lr",
    "outer-momentum",
    "outer-nesterov",
    "parallel",
    "pipeline",
    "pipeline-cuts",
    "plan-steps",
    "predict-nodes",
    "recompute",
    "repeat-data",
    "reset-head",
    "roofline",
    "schedule",
    "script",
    "shards",
    "spatial",
    "steps",
    "sync",
    "sync-bn",
    "tensor",
    "warmup",
    "wire",
    "zero",
];

/// Refuses flags that would do nothing. A file may be that of a training, whose weights are now tested: of it only
/// those are refused by which something would be written or gone on with. `what` the run does, for the message.
///
/// # Errors
/// `Usage`, naming all of them.
pub fn check(what: &str, given: &[String], origins: &[(String, String)]) -> Result<()> {
    let command = Cli::command();
    let of_optimizer = |name: &str| {
        let mut flags = command.get_arguments().filter(|arg| arg.get_long() == Some(name));
        flags.any(|arg| arg.get_help_heading() == Some("Optimizer"))
    };
    let is_typed = |name: &str| !origins.iter().any(|(of_file, _)| of_file == name);
    let is_idle = |name: &str| {
        let of_training = OF_TRAINING.contains(&name) || of_optimizer(name);
        file::PLACES.contains(&name) || (of_training && is_typed(name))
    };
    let idle: Vec<String> =
        given.iter().filter(|name| is_idle(name)).map(|name| format!("--{name}")).collect();
    match idle.is_empty() {
        true => Ok(()),
        false => Err(Error::usage(format!(
            "{what}, and prints what comes out: {} would do nothing; leave {} out",
            idle.join(", "),
            if idle.len() == 1 { "it" } else { "them" }
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_do_nothing_is_refused_unless_it_is_a_trainings_file_that_says_it() {
        let given = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        let from_file =
            [("lr".to_string(), "run.toml:1".to_string()), ("results".into(), "run.toml:2".into())];
        assert!(check("it only tests", &given(&["batch", "data", "precision", "quiet"]), &[]).is_ok());
        assert!(check("it only tests", &given(&["lr", "batch"]), &from_file).is_ok());
        let said =
            |names: &[&str], origins| check("it only tests", &given(names), origins).unwrap_err().message;
        assert!(
            said(&["lr", "batch", "epochs"], &[])
                .contains(": --lr, --epochs would do nothing; leave them out")
        );
        assert!(said(&["results", "lr"], &from_file).contains(": --results would do nothing; leave it out"));
        assert!(said(&["save-weights"], &[]).contains("--save-weights"));
    }

    #[test]
    fn every_name_is_that_of_a_flag() {
        let command = Cli::command();
        for name in OF_TRAINING {
            assert!(command.get_arguments().any(|arg| arg.get_long() == Some(name)), "{name}");
        }
    }
}
