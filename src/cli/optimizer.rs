//! The flags of the optimizer and the learning rate. What is not given has the default of the chosen optimizer, and a
//! flag that it has no use for is refused.

use dltrain::config::{Optimizer, Rate, Rule};
use dltrain::error::{Error, Result};

use dltrain::config::values::{at_least_one, in_range, number};

#[derive(Debug, clap::Args)]
#[group(skip)]
#[command(next_help_heading = "Optimizer")]
pub struct Args {
    /// How gradients change weights.
    #[arg(long, value_enum, default_value_t)]
    optimizer: Rule,
    /// Learning rate [default: 0.001 for adam, adamw, 0.01 for sgd, rmsprop, 0.045 for rmsprop-tf, 0.005 for lamb, 1
    /// for lars].
    #[arg(long, value_name = "RATE", value_parser = number)]
    lr: Option<f32>,
    /// Momentum of sgd, lars, rmsprop and rmsprop-tf [default: 0.9, but 0 for rmsprop].
    #[arg(long, value_name = "M", value_parser = number)]
    momentum: Option<f32>,
    /// Nesterov's momentum, for sgd.
    #[arg(long)]
    nesterov: bool,
    /// Decay of the first and second moment of adam, adamw and lamb [default: 0.9 0.999].
    #[arg(long, num_args = 2, value_names = ["B1", "B2"], value_parser = number)]
    betas: Option<Vec<f32>>,
    /// Decay of the mean square of rmsprop and rmsprop-tf [default: 0.99 for rmsprop, 0.9 for rmsprop-tf].
    #[arg(long, value_name = "R", value_parser = number)]
    rms_decay: Option<f32>,
    /// Added to the root of the second moment; for rmsprop-tf within the root [default: 1e-8 for adam, adamw,
    /// rmsprop, 1e-6 for lamb, 1 for rmsprop-tf].
    #[arg(long, value_name = "E", value_parser = number)]
    epsilon: Option<f32>,
    /// Trust coefficient of lars [default: 0.001].
    #[arg(long, value_name = "T", value_parser = number)]
    trust: Option<f32>,
    /// Weight decay; biases and batch normalisation have none [default: 0.01 for adamw, lamb, 0.0005 for lars, else 0].
    #[arg(long, value_name = "D", value_parser = number)]
    weight_decay: Option<f32>,
    /// Scale gradients so that the norm of all of them together is at most this, after averaging over ranks. The
    /// updates then wait for the last gradient.
    #[arg(long, value_name = "NORM", value_parser = number)]
    clip_norm: Option<f32>,
    /// Keep an exponential moving average of the weights with this decay, and evaluate with it.
    #[arg(long, value_name = "DECAY", value_parser = number)]
    ema: Option<f32>,
    #[command(flatten)]
    rate: Rate,
}

impl Args {
    /// Whether parameters have a moving average.
    pub fn has_average(&self) -> bool {
        self.ema.is_some()
    }

    /// Checks the flags and fills in what was not given.
    ///
    /// # Errors
    /// `Usage`, naming the flag.
    pub fn validate(&self) -> Result<(Optimizer, Rate)> {
        let mut rule = self.optimizer;
        let beta = |index: usize| self.betas.as_ref().map(|betas| betas[index]);
        let share = 0.0..=0.999_999;
        for (flag, name, given, range) in [
            ("momentum", "momentum", self.momentum, share.clone()),
            ("betas", "beta1", beta(0), share.clone()),
            ("betas", "beta2", beta(1), share.clone()),
            ("rms-decay", "rms_decay", self.rms_decay, share.clone()),
            ("epsilon", "epsilon", self.epsilon, f32::MIN_POSITIVE..=1.0),
            ("trust", "trust", self.trust, f32::MIN_POSITIVE..=1000.0),
            ("weight-decay", "weight_decay", self.weight_decay, 0.0..=1.0),
        ] {
            let Some(given) = given else { continue };
            let unused = || {
                format!(
                    "--{flag} {given}: --optimizer {} does not use it; leave it out",
                    self.optimizer.name()
                )
            };
            *rule.number(name).ok_or_else(|| Error::usage(unused()))? = given;
            in_range(flag, given, *range.start(), *range.end())?;
        }
        if self.nesterov {
            match &mut rule {
                Rule::Sgd { momentum, nesterov, .. } if *momentum > 0.0 => *nesterov = true,
                _ => return Err(Error::usage("--nesterov needs --optimizer sgd and --momentum above 0")),
            }
        }
        let optimizer = Optimizer { rule, clip_norm: self.clip_norm, ema: self.ema };
        in_range("clip-norm", optimizer.clip_norm.unwrap_or(1.0), f32::MIN_POSITIVE, f32::MAX)?;
        in_range("ema", optimizer.ema.unwrap_or(0.0), *share.start(), *share.end())?;
        let rate = Rate { base: self.lr.unwrap_or(rule.usual_rate()), ..self.rate.clone() };
        in_range("lr", rate.base, f32::MIN_POSITIVE, f32::MAX)?;
        in_range("lr-warmup", rate.warmup_epochs, 0.0, 1e6)?;
        at_least_one("lr-step-epochs", rate.step_epochs)?;
        in_range("lr-gamma", rate.gamma, 0.0, 1.0)?;
        in_range("lr-power", rate.power, 0.0, 100.0)?;
        Ok((optimizer, rate))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        args: Args,
    }

    fn validated(flags: &[&str]) -> Result<(Optimizer, Rate)> {
        Flags::try_parse_from([&["dltrain"], flags].concat()).expect("flags parse").args.validate()
    }

    #[test]
    fn what_cannot_work_is_refused_by_flag() {
        for (flags, named) in [
            (vec!["--lr", "0"], "--lr 0"),
            (vec!["--lr", "nan"], "--lr NaN"),
            (vec!["--optimizer", "sgd", "--momentum", "1.5"], "--momentum 1.5"),
            (vec!["--betas", "0.9", "1"], "--betas 1"),
            (vec!["--optimizer", "rmsprop", "--rms-decay", "1"], "--rms-decay 1"),
            (vec!["--epsilon", "0"], "--epsilon 0"),
            (vec!["--optimizer", "lars", "--trust=-1"], "--trust -1"),
            (vec!["--weight-decay=-1"], "--weight-decay -1"),
            (vec!["--clip-norm", "0"], "--clip-norm 0"),
            (vec!["--clip-norm", "nan"], "--clip-norm NaN"),
            (vec!["--ema", "1"], "--ema 1"),
            (vec!["--lr-power=-2"], "--lr-power -2"),
            (vec!["--lr-step-epochs", "0"], "--lr-step-epochs 0"),
            (vec!["--optimizer", "sgd", "--nesterov", "--momentum", "0"], "--nesterov"),
            (vec!["--nesterov"], "--nesterov"),
            (vec!["--momentum", "0.5"], "--momentum 0.5: --optimizer adam does not use it"),
            (vec!["--optimizer", "lars", "--betas", "0.9", "0.99"], "--betas 0.9: --optimizer lars"),
            (vec!["--optimizer", "rmsprop-tf", "--trust", "0.1"], "--trust 0.1: --optimizer rmsprop-tf"),
        ] {
            let error = validated(&flags).expect_err(named);
            assert!(error.message.contains(named), "{flags:?}: {error}");
            assert_eq!(error.exit_code(), 2);
        }
    }

    #[test]
    fn defaults_go_by_the_optimizer() {
        let of = |kind| validated(&["--optimizer", kind]).unwrap();
        assert_eq!(validated(&[]).unwrap(), of("adam"));
        let rates =
            ["sgd", "adam", "adamw", "rmsprop", "rmsprop-tf", "lars", "lamb"].map(|kind| of(kind).1.base);
        assert_eq!(rates, [0.01, 0.001, 0.001, 0.01, 0.045, 1.0, 0.005]);
        let number = |kind, name| *of(kind).0.rule.number(name).expect(name);
        let inception = ["epsilon", "rms_decay", "momentum"].map(|name| number("rmsprop-tf", name));
        assert_eq!(inception, [1.0, 0.9, 0.9]);
        assert_eq!(number("adamw", "weight_decay"), 0.01);
        assert_eq!((number("lars", "trust"), number("lars", "momentum")), (0.001, 0.9));
    }

    /// The record has an optimizer's name and its own numbers, and none of another's.
    #[test]
    fn a_record_has_the_optimizer_by_name_with_its_numbers() {
        let of = |flags: &[&str]| serde_json::to_value(validated(flags).unwrap().0).unwrap();
        let tf = of(&["--optimizer", "rmsprop-tf", "--rms-decay", "0.5", "--ema", "0.75"]);
        let expected = serde_json::json!({
            "kind": "rmsprop-tf", "rms_decay": 0.5, "momentum": 0.9f32, "epsilon": 1.0, "weight_decay": 0.0,
            "clip_norm": null, "ema": 0.75
        });
        assert_eq!(tf, expected);
        let sgd = of(&["--optimizer", "sgd", "--nesterov", "--momentum", "0.5"]);
        assert_eq!(
            (&sgd["kind"], &sgd["nesterov"], &sgd["beta1"]),
            (&"sgd".into(), &true.into(), &().into())
        );
    }
}
