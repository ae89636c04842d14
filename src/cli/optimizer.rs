//! The flags of the optimizer and the learning rate. What is not given has the default of the chosen optimizer, and a
//! flag that it has no use for is refused.

use clap::ValueEnum;
use dltrain::config::{Optimizer, OptimizerKind, Rate, ScheduleKind};
use dltrain::error::{Error, Result};

use super::values::{at_least_one, in_range};

#[derive(Debug, clap::Args)]
#[group(skip)]
#[command(next_help_heading = "Optimizer")]
pub struct Args {
    /// How gradients change weights.
    #[arg(long, value_enum, default_value_t = OptimizerKind::Adam)]
    optimizer: OptimizerKind,
    /// Learning rate [default: 0.001 for adam, adamw, 0.01 for sgd, rmsprop, 0.045 for rmsprop-tf, 0.005 for lamb, 1 for lars].
    #[arg(long, value_name = "RATE")]
    lr: Option<f32>,
    /// Momentum of sgd, lars, rmsprop and rmsprop-tf [default: 0.9, but 0 for rmsprop].
    #[arg(long, value_name = "M")]
    momentum: Option<f32>,
    /// Nesterov's momentum, for sgd.
    #[arg(long)]
    nesterov: bool,
    /// Decay of the first and second moment of adam, adamw and lamb [default: 0.9 0.999].
    #[arg(long, num_args = 2, value_names = ["B1", "B2"])]
    betas: Option<Vec<f32>>,
    /// Decay of the mean square of rmsprop and rmsprop-tf [default: 0.99 for rmsprop, 0.9 for rmsprop-tf].
    #[arg(long, value_name = "R")]
    rms_decay: Option<f32>,
    /// Added to the root of the second moment; for rmsprop-tf within the root [default: 1e-8 for adam, adamw,
    /// rmsprop, 1e-6 for lamb, 1 for rmsprop-tf].
    #[arg(long, value_name = "E")]
    epsilon: Option<f32>,
    /// Trust coefficient of lars [default: 0.001].
    #[arg(long, value_name = "T")]
    trust: Option<f32>,
    /// Weight decay; biases and batch normalisation have none [default: 0.01 for adamw, lamb, 0.0005 for lars, else 0].
    #[arg(long, value_name = "D")]
    weight_decay: Option<f32>,
    /// Scale gradients so that the norm of all of them together is at most this, after averaging over ranks. The
    /// updates then wait for the last gradient.
    #[arg(long, value_name = "NORM")]
    clip_norm: Option<f32>,
    /// Keep an exponential moving average of the weights with this decay, and evaluate with it.
    #[arg(long, value_name = "DECAY")]
    ema: Option<f32>,
    /// How the learning rate goes over the run.
    #[arg(long, value_enum, default_value_t = ScheduleKind::Constant)]
    lr_schedule: ScheduleKind,
    /// Epochs over which the rate rises linearly from nothing.
    #[arg(long, default_value_t = 0.0, value_name = "EPOCHS")]
    lr_warmup: f32,
    /// Epochs between two steps of the step schedule.
    #[arg(long, default_value_t = 30, value_name = "EPOCHS")]
    lr_step_epochs: usize,
    /// Factor of each step of the step schedule.
    #[arg(long, default_value_t = 0.1, value_name = "FACTOR")]
    lr_gamma: f32,
    /// Power of the polynomial schedule.
    #[arg(long, default_value_t = 2.0, value_name = "P")]
    lr_power: f32,
    /// Multiply the learning rate by the number of ranks (Goyal et al. 2017).
    #[arg(long)]
    lr_scale_by_ranks: bool,
}

/// What holds where no flag is given; `None`: the optimizer has no such number.
struct Defaults {
    lr: f32,
    momentum: Option<f32>,
    betas: Option<[f32; 2]>,
    rms_decay: Option<f32>,
    epsilon: Option<f32>,
    trust: Option<f32>,
    weight_decay: f32,
}

/// PyTorch's defaults where PyTorch has the optimizer; else those of the papers.
fn defaults(kind: OptimizerKind) -> Defaults {
    let none = Defaults {
        lr: 0.01,
        momentum: None,
        betas: None,
        rms_decay: None,
        epsilon: None,
        trust: None,
        weight_decay: 0.0,
    };
    let adam = Defaults { lr: 0.001, betas: Some([0.9, 0.999]), epsilon: Some(1e-8), ..none };
    let momentum = Some(0.9);
    match kind {
        OptimizerKind::Sgd => Defaults { momentum, ..none },
        OptimizerKind::Adam => adam,
        OptimizerKind::AdamW => Defaults { weight_decay: 0.01, ..adam },
        OptimizerKind::RmsProp => {
            Defaults { momentum: Some(0.0), rms_decay: Some(0.99), epsilon: Some(1e-8), ..none }
        }
        OptimizerKind::RmsPropTf => {
            Defaults { lr: 0.045, momentum, rms_decay: Some(0.9), epsilon: Some(1.0), ..none }
        }
        OptimizerKind::Lars => Defaults { lr: 1.0, momentum, trust: Some(0.001), weight_decay: 5e-4, ..none },
        OptimizerKind::Lamb => Defaults { lr: 0.005, epsilon: Some(1e-6), weight_decay: 0.01, ..adam },
    }
}

impl Args {
    /// Checks the flags and fills in what was not given.
    ///
    /// # Errors
    /// `Usage`, naming the flag.
    pub fn validate(self) -> Result<(Optimizer, Rate)> {
        let default = defaults(self.optimizer);
        let (beta1, beta2) = self.betas.map_or((None, None), |betas| (Some(betas[0]), Some(betas[1])));
        let used =
            |flag: &str, given: Option<f32>, default: Option<f32>| used(self.optimizer, flag, given, default);
        let optimizer = Optimizer {
            kind: self.optimizer,
            momentum: used("momentum", self.momentum, default.momentum)?,
            nesterov: self.nesterov,
            beta1: used("betas", beta1, default.betas.map(|betas| betas[0]))?,
            beta2: used("betas", beta2, default.betas.map(|betas| betas[1]))?,
            rms_decay: used("rms-decay", self.rms_decay, default.rms_decay)?,
            epsilon: used("epsilon", self.epsilon, default.epsilon)?,
            trust: used("trust", self.trust, default.trust)?,
            weight_decay: self.weight_decay.unwrap_or(default.weight_decay),
            clip_norm: self.clip_norm,
            ema: self.ema,
        };
        in_range("momentum", optimizer.momentum, 0.0, 0.999_999)?;
        in_range("betas", optimizer.beta1, 0.0, 0.999_999)?;
        in_range("betas", optimizer.beta2, 0.0, 0.999_999)?;
        in_range("rms-decay", optimizer.rms_decay, 0.0, 0.999_999)?;
        if default.epsilon.is_some() {
            in_range("epsilon", optimizer.epsilon, f32::MIN_POSITIVE, 1.0)?;
        }
        if default.trust.is_some() {
            in_range("trust", optimizer.trust, f32::MIN_POSITIVE, 1000.0)?;
        }
        in_range("weight-decay", optimizer.weight_decay, 0.0, 1.0)?;
        in_range("clip-norm", optimizer.clip_norm.unwrap_or(1.0), f32::MIN_POSITIVE, f32::MAX)?;
        in_range("ema", optimizer.ema.unwrap_or(0.0), 0.0, 0.999_999)?;
        if self.nesterov && (self.optimizer != OptimizerKind::Sgd || optimizer.momentum == 0.0) {
            return Err(Error::usage("--nesterov needs --optimizer sgd and --momentum above 0"));
        }
        let rate = Rate {
            base: self.lr.unwrap_or(default.lr),
            scale_by_ranks: self.lr_scale_by_ranks,
            schedule: self.lr_schedule,
            warmup_epochs: self.lr_warmup,
            step_epochs: self.lr_step_epochs,
            gamma: self.lr_gamma,
            power: self.lr_power,
        };
        in_range("lr", rate.base, f32::MIN_POSITIVE, f32::MAX)?;
        in_range("lr-warmup", rate.warmup_epochs, 0.0, 1e6)?;
        at_least_one("lr-step-epochs", rate.step_epochs)?;
        in_range("lr-gamma", rate.gamma, 0.0, 1.0)?;
        in_range("lr-power", rate.power, 0.0, 100.0)?;
        Ok((optimizer, rate))
    }
}

/// The number to use: what was given, where the optimizer has use for it, or else the default.
fn used(kind: OptimizerKind, flag: &str, given: Option<f32>, default: Option<f32>) -> Result<f32> {
    match (given, default) {
        (Some(value), None) => {
            let kind = kind.to_possible_value().map_or_else(String::new, |kind| kind.get_name().to_string());
            Err(Error::usage(format!("--{flag} {value}: --optimizer {kind} does not use it; leave it out")))
        }
        (given, default) => Ok(given.or(default).unwrap_or(0.0)),
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
        let inception = of("rmsprop-tf").0;
        assert_eq!((inception.epsilon, inception.rms_decay, inception.momentum), (1.0, 0.9, 0.9));
        assert_eq!(of("adamw").0.weight_decay, 0.01);
        assert_eq!((of("lars").0.trust, of("lars").0.momentum), (0.001, 0.9));
    }
}
