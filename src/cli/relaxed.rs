//! The flags of ranks that have parameters of their own, and of servers that answer one after the other.

use dltrain::config::{AsyncOrder, OuterFlags, Strategy};
use dltrain::error::{Error, Result};

use dltrain::config::values::{at_least_one, in_range, number};

#[derive(Debug, clap::Args)]
#[group(skip)]
#[command(next_help_heading = "Machine")]
pub struct Args {
    /// Every rank updates parameters of its own, and all average theirs every H steps (local SGD).
    #[arg(long, value_name = "H")]
    local_steps: Option<usize>,
    /// Learning rate of the step that the averaged parameters then do [default: 1].
    #[arg(long, value_name = "RATE", value_parser = number)]
    outer_lr: Option<f32>,
    /// Momentum of that step (SlowMo, block momentum, DiLoCo) [default: 0, with --sync bmuf 1 - 1/ranks].
    #[arg(long, value_name = "M", value_parser = number)]
    outer_momentum: Option<f32>,
    /// Nesterov's momentum for that step.
    #[arg(long)]
    outer_nesterov: bool,
    /// Whose gradients a server of --sync server-async takes next [default: arrival].
    #[arg(long, value_name = "ORDER", value_enum)]
    async_order: Option<AsyncOrder>,
}

impl Args {
    /// What `--local-steps` makes of `--sync`.
    ///
    /// # Errors
    /// `Usage` where the two do not go together.
    pub fn strategy(&self, sync: Strategy) -> Result<Strategy> {
        let Some(steps) = self.local_steps else { return Ok(sync) };
        at_least_one("local-steps", steps)?;
        match sync {
            _ if steps > 1_000_000 => Err(Error::usage("--local-steps: must be at most 1000000")),
            Strategy::Allreduce | Strategy::Local(_) => Ok(Strategy::Local(steps)),
            Strategy::Bmuf(_) => Ok(Strategy::Bmuf(steps)),
            _ if sync.is_relaxed() => Err(Error::usage(format!(
                "--local-steps {steps} and {sync}: this one says itself how many steps there are; leave --local-steps \
                 out"
            ))),
            _ => Err(Error::usage(format!(
                "--local-steps {steps} and {sync}: with local steps every rank updates parameters of its own; leave \
                 one out"
            ))),
        }
    }

    /// What is said of the step.
    ///
    /// # Errors
    /// `Usage`, naming the flag, where a number is out of its range or nothing does such a step.
    pub fn validate(&self, strategy: Strategy) -> Result<OuterFlags> {
        in_range("outer-lr", self.outer_lr.unwrap_or(1.0), 0.0, 1e3)?;
        in_range("outer-momentum", self.outer_momentum.unwrap_or(0.0), 0.0, 0.999_999)?;
        let outer =
            OuterFlags { rate: self.outer_lr, momentum: self.outer_momentum, nesterov: self.outer_nesterov };
        match outer.any() && !strategy.has_outer_step() {
            true => Err(Error::usage(
                "--outer-lr, --outer-momentum and --outer-nesterov: they say what ranks do when they average their \
                 parameters; add --local-steps H",
            )),
            false => Ok(outer),
        }
    }

    /// What is said of the order.
    ///
    /// # Errors
    /// `Usage` where there is none.
    pub fn order(&self, strategy: Strategy) -> Result<AsyncOrder> {
        match self.async_order {
            Some(_) if !strategy.is_asynchronous() => Err(Error::usage(
                "--async-order: it says whose gradients an asynchronous server takes next; add --sync server-async",
            )),
            order => Ok(order.unwrap_or_default()),
        }
    }
}
