//! `dltrain bench autotune`: what links and memory of this machine do, for the choice of collectives.

use super::limits;
use crate::comm::World;
use crate::error::Result;

#[derive(Debug, Clone, clap::Args)]
pub struct Args {}

pub fn run(_args: &Args, world: &World) -> Result<()> {
    let measured = limits::measure(world)?;
    if world.rank() == 0 {
        println!("{}", limits::comment(&measured));
    }
    Ok(())
}
