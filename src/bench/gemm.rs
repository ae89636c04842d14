//! `dltrain bench gemm`: the yardstick that shares of the peak refer to.

use crate::comm::World;
use crate::device::Device;
use crate::device::onednn::Cpu;
use crate::error::{Error, Result};
use crate::record;

#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Threads a rank [default: cores of the node divided by its ranks]
    #[arg(long)]
    threads: Option<usize>,
    /// Products to time; the fastest counts
    #[arg(long, default_value_t = 10)]
    repeats: usize,
}

pub fn run(args: &Args, world: &World) -> Result<()> {
    if args.repeats == 0 {
        return world.agree(Err(Error::usage("--repeats 0: must be at least 1")));
    }
    let threads = world.threads(args.threads)?;
    let device = world.agree(Cpu::new(threads))?;
    world.barrier()?;
    let rate = world.agree(device.sgemm_rate(args.repeats))? / 1e9;
    let (mut least, mut sum) = ([rate], [rate]);
    world.min_f64(&mut least)?;
    world.sum_f64(&mut sum)?;
    let text = format!(
        "sgemm 2048×2048×2048 on {}: {:.1} GFLOP/s on the slowest of {} ranks, in all {:.1} GFLOP/s",
        device.describe(),
        least[0],
        world.size(),
        sum[0],
    );
    record::say(world, &text);
    Ok(())
}
