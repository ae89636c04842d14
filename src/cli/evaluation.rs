//! Which flags have nothing to do in a run that only tests (`--evaluate`, `--predict`).

use clap::{Arg, Command, CommandFactory};

use super::{Cli, file};
use dltrain::config::values::lists;
use dltrain::error::{Error, Result};

/// What is about training alone, besides all of the optimizer's.
const OF_TRAINING: &str = "accumulation allreduce async-order augment checkpoint-every checkpoint-keep \
     commit compress cuda-aware epochs freeze fusion-threshold-mb global-batch local-steps lossy measure \
     memory-limit mesh micro-batches no-dropout no-overlap outer-lr outer-momentum outer-nesterov parallel \
     pipeline pipeline-cuts plan-steps predict-nodes recompute repeat-data reset-head roofline schedule script \
     shards spatial steps sync sync-bn tensor test-data warmup wire zero";

/// Refuses flags that would do nothing. A file may be that of a training, whose weights are now tested: of it only
/// those are refused by which something would be written or gone on with. `what` the run does, for the message.
///
/// # Errors
/// `Usage`, naming all of them.
pub fn check((what, predicts): (&str, bool), given: &[String], origins: &[(String, String)]) -> Result<()> {
    let command = Cli::command();
    let of_training = |name: &str| {
        let flag = command.get_arguments().find(|arg| arg.get_long() == Some(name));
        lists(OF_TRAINING, name)
            || (predicts && name == "metric")
            || flag.is_some_and(|arg| arg.get_help_heading() == Some("Optimizer"))
    };
    let is_typed = |name: &str| !origins.iter().any(|(of_file, _)| of_file == name);
    let is_idle = |name: &str| lists(file::PLACES, name) || (of_training(name) && is_typed(name));
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

/// What may be said of a run that only tests, and is worth saying.
const OF_TEST: &str = "batch class-weights classes config data data-format device dry-run ignore-label \
     image-size init-from input jpeg-decoder label-smoothing loader-threads loss metric missing model precision \
     quiet strict target threads verbose weight";
/// Besides, what may be said of one that looks at images.
const OF_PREDICTION: &str = "output top";

/// The command whose `--help` has what such a run may be told, and nothing of a training. It reads what the whole
/// command reads.
pub fn command(whole: Command, predicts: bool) -> Command {
    let is_hidden = |arg: &Arg| {
        let is_idle = |name| predicts && name == "metric";
        let shown = |name| lists(OF_TEST, name) && !is_idle(name) || (predicts && lists(OF_PREDICTION, name));
        arg.get_long().is_some_and(|name| !shown(name))
    };
    let names: Vec<String> = whole.get_subcommands().map(|command| command.get_name().into()).collect();
    let hidden = whole.mut_args(|arg| if is_hidden(&arg) { arg.hide(true) } else { arg });
    let hidden =
        names.iter().fold(hidden, |command, name| command.mut_subcommand(name, |sub| sub.hide(true)));
    let (about, usage, examples) = match predicts {
        true => (
            "Say what images are, the most probable classes first, by weights that were trained.",
            "dltrain predict --init-from WEIGHTS --model NAME [FLAGS] DATA\n       \
             dltrain predict --model NET.onnx [FLAGS] DATA",
            "Examples:\n  dltrain predict --init-from flowers.safetensors --model resnet50 --classes 5 photographs\n  \
             mpirun -n 2 dltrain predict --model net.onnx rose.jpg --top 3 -o said.csv",
        ),
        false => (
            "Test weights on the test images of a data set: loss and accuracy.",
            "dltrain evaluate --init-from WEIGHTS --model NAME --data PATH [FLAGS]\n       \
             dltrain evaluate --model NET.onnx --data PATH [FLAGS]",
            "Examples:\n  dltrain evaluate --init-from flowers.safetensors --model resnet50 --classes 5 --data flowers\n  \
             mpirun -n 2 dltrain evaluate --model net.onnx --data flowers",
        ),
    };
    hidden.about(about).long_about(about).override_usage(usage).after_help(examples)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_do_nothing_is_refused_unless_it_is_a_trainings_file_that_says_it() {
        let given = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        let from_file =
            [("lr".to_string(), "run.toml:1".to_string()), ("results".into(), "run.toml:2".into())];
        let tests = ("it only tests", false);
        assert!(check(tests, &given(&["batch", "data", "precision", "quiet", "metric"]), &[]).is_ok());
        assert!(check(tests, &given(&["lr", "batch"]), &from_file).is_ok());
        let error = check(("it only asks", true), &given(&["metric"]), &[]).unwrap_err().message;
        assert!(error.contains(": --metric would do nothing"), "{error}");
        let said = |names: &[&str], origins| check(tests, &given(names), origins).unwrap_err().message;
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
        for name in [OF_TRAINING, OF_TEST, OF_PREDICTION].iter().flat_map(|names| names.split(' ')) {
            assert!(command.get_arguments().any(|arg| arg.get_long() == Some(name)), "{name}");
        }
    }
}
