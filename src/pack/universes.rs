//! `dltrain pack synthetic:universes…`: one HDF5 file for each universe, as CosmoFlow's lie there.

use std::path::{Path, PathBuf};

use rayon::ThreadPool;
use rayon::iter::{IntoParallelRefIterator, ParallelIterator};

use super::Args;
use crate::comm::World;
use crate::error::{Error, OrError, Result};
use crate::fields::Universe;
use crate::files;
use crate::record::{self, ProgressLine};

/// Writes those of them that are not there yet to a directory, shared out among ranks. Collective.
///
/// # Errors
/// `Usage` without a directory; `Output` for what cannot be written.
pub fn pack(args: &Args, universes: &[PathBuf], world: &World, pool: &ThreadPool) -> Result<()> {
    let place = record::RankInfo::from(world);
    let directory = args.output.as_ref().filter(|output| output.is_dir()).ok_or_else(|| {
        Error::usage(format!("{}: the output has to be a directory that exists", args.source.display()))
    });
    let directory = world.agree(directory)?;
    let mine: Vec<&PathBuf> = universes.iter().skip(world.rank()).step_by(world.size()).collect();
    let progress = ProgressLine::start(place, mine.len() as u64);
    let one = |path: &&PathBuf| -> Result<()> {
        let name = path.to_string_lossy().replace("synthetic:", "").replace(':', "-");
        let file = directory.join(name + ".hdf5");
        if let Some(universe) = Universe::of(path).filter(|_| !file.exists()) {
            files::write_new(&file, "a universe", |new| write(new, &universe))?;
        }
        progress.advance(1);
        Ok(())
    };
    let written = pool.install(|| mine.par_iter().map(one).collect::<Result<Vec<()>>>());
    progress.end();
    world.agree(written)?;
    record::say(place, &format!("{} universes, one in a file: {}", universes.len(), directory.display()));
    Ok(())
}

fn write(path: &Path, universe: &Universe) -> Result<()> {
    let edge = universe.edge();
    let shape = ndarray::IxDyn(&[edge, edge, edge, 4]);
    let counts = universe.counts();
    let put = || -> std::result::Result<(), Box<dyn std::error::Error>> {
        let file = hdf5::File::create(path)?;
        let counts = ndarray::ArrayView::from_shape(shape, &counts[..])?;
        file.new_dataset_builder().with_data(counts).create("full")?;
        file.new_dataset_builder().with_data(&universe.parameters()).create("unitPar")?;
        Ok(file.close()?)
    };
    put().or_output(path, "cannot be written")
}
