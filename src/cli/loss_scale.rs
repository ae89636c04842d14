//! The flags of loss scaling, which goes with f16 alone.

use dltrain::config::{LossScale, Precision};
use dltrain::error::{Error, Result};

use dltrain::config::values::{at_least_one, in_range, number};

#[derive(Debug, clap::Args)]
#[group(skip)]
#[command(next_help_heading = "Machine")]
pub struct Args {
    /// With f16: the factor of the loss in the first step, by which gradients are divided again [default: 65536].
    #[arg(long, value_name = "FACTOR", value_parser = number)]
    loss_scale: Option<f32>,
    /// Steps without overflow after which it is doubled [default: 1000].
    #[arg(long, value_name = "STEPS")]
    loss_scale_window: Option<u32>,
    /// Steps skipped because of overflow after which it is halved [default: 3].
    #[arg(long, value_name = "STEPS")]
    loss_scale_hysteresis: Option<u32>,
    /// The least it may become [default: 1].
    #[arg(long, value_name = "FACTOR", value_parser = number)]
    loss_scale_min: Option<f32>,
}

impl Args {
    /// # Errors
    /// `Usage`, naming the flag.
    pub fn validate(self, precision: Precision) -> Result<Option<LossScale>> {
        if precision != Precision::F16 {
            let count = |steps: Option<u32>| steps.map(|steps| steps.to_string());
            let factor = |factor: Option<f32>| factor.map(|factor| factor.to_string());
            let given = [
                ("loss-scale", factor(self.loss_scale)),
                ("loss-scale-window", count(self.loss_scale_window)),
                ("loss-scale-hysteresis", count(self.loss_scale_hysteresis)),
                ("loss-scale-min", factor(self.loss_scale_min)),
            ];
            return match given.into_iter().find_map(|(flag, value)| Some((flag, value?))) {
                None => Ok(None),
                Some((flag, value)) => {
                    Err(Error::usage(format!("--{flag} {value}: is for --precision f16; leave it out")))
                }
            };
        }
        let scale = LossScale {
            start: self.loss_scale.unwrap_or(65_536.0),
            window: self.loss_scale_window.unwrap_or(1000),
            hysteresis: self.loss_scale_hysteresis.unwrap_or(3),
            minimum: self.loss_scale_min.unwrap_or(1.0),
        };
        in_range("loss-scale-min", scale.minimum, f32::MIN_POSITIVE, 1e30)?;
        in_range("loss-scale", scale.start, scale.minimum, 1e30)?;
        at_least_one("loss-scale-window", scale.window as usize)?;
        at_least_one("loss-scale-hysteresis", scale.hysteresis as usize)?;
        Ok(Some(scale))
    }
}
