//! The flags of servers that answer one rank after the other.

use dltrain::config::{AsyncOrder, Strategy};
use dltrain::error::{Error, Result};

#[derive(Debug, clap::Args)]
#[group(skip)]
#[command(next_help_heading = "Machine")]
pub struct Args {
    /// Whose gradients a server of --sync server-async takes next [default: arrival].
    #[arg(long, value_name = "ORDER", value_enum)]
    async_order: Option<AsyncOrder>,
}

impl Args {
    /// What is said of the order.
    ///
    /// # Errors
    /// `Usage` where there is none.
    pub fn validate(&self, strategy: Strategy) -> Result<AsyncOrder> {
        match self.async_order {
            Some(_) if !strategy.is_asynchronous() => Err(Error::usage(
                "--async-order: it says whose gradients an asynchronous server takes next; add --sync server-async",
            )),
            order => Ok(order.unwrap_or_default()),
        }
    }
}
