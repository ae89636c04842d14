//! `dltrain export`: weights from one kind of file to another.
//!
//! May use: `record`, `comm`, `error`. Used by: `main`.

use std::path::PathBuf;

use crate::comm::World;
use crate::error::Result;
use crate::record::{self, WeightsFile, write_weights};

/// Write weights as safetensors, which torchvision's models load, or as HDF5.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// File of weights: a checkpoint, safetensors or HDF5.
    from: PathBuf,
    /// File to write: safetensors, or HDF5 where the name ends in .h5.
    to: PathBuf,
}

/// Reads one file and writes the other, on the first rank.
///
/// # Errors
/// Those of reading and writing, the same on every rank.
pub fn run(args: &Args, world: &World) -> Result<()> {
    let convert = || {
        let file = WeightsFile::open(&args.from)?;
        write_weights(&args.to, file.shapes(), &|name| file.values(name))?;
        Ok(file.shapes().len())
    };
    let tensors = world.agree(record::once(world, convert))?;
    record::say(world, &format!("{tensors} tensors: {}", args.to.display()));
    Ok(())
}
