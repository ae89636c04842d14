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
/// `Usage` without a directory, and with flags of images; `Output` for what cannot be written.
pub fn pack(args: &Args, universes: &[PathBuf], world: &World, pool: &ThreadPool) -> Result<()> {
    let place = record::RankInfo::from(world);
    world.agree(of_universes(args))?;
    let directory = args.output.as_ref().filter(|output| output.is_dir()).ok_or_else(|| {
        Error::usage(format!("{}: the output has to be a directory that exists", args.source.display()))
    });
    let directory = world.agree(directory)?;
    let mine: Vec<&PathBuf> = universes.iter().skip(world.rank()).step_by(world.size()).collect();
    let progress = ProgressLine::start(place, mine.len() as u64);
    let one = |path: &&PathBuf| -> Result<usize> {
        let name = path.to_string_lossy().replace("synthetic:", "").replace(':', "-");
        let file = directory.join(name + ".hdf5");
        let is_there = file.exists();
        if let Some(universe) = Universe::of(path).filter(|_| !is_there) {
            files::write_new(&file, "a universe", |new| write(new, &universe))?;
        }
        progress.advance(1);
        Ok(usize::from(is_there))
    };
    let found = pool.install(|| mine.par_iter().map(one).sum::<Result<usize>>());
    progress.end();
    let mut found = [world.agree(found)? as f64];
    world.sum_f64(&mut found)?;
    let there = match found {
        [0.0] => String::new(),
        [found] => format!(" ({found} of them there already)"),
    };
    let text = format!("{} universes, one in a file{there}: {}", universes.len(), directory.display());
    record::say(place, &text);
    Ok(())
}

/// That no flag is given which says how images are packed.
fn of_universes(args: &Args) -> Result<()> {
    let given = [
        (args.size.is_some(), "--size"),
        (args.encoded, "--encoded"),
        (args.data_format.is_some(), "--data-format"),
        (args.file_mb.is_some(), "--file-mb"),
        (args.seed.is_some(), "--seed"),
        (args.strict, "--strict"),
        (args.verify, "--verify"),
    ];
    let given: Vec<&str> = given.iter().filter(|(is_given, _)| *is_given).map(|&(_, flag)| flag).collect();
    match given[..] {
        [] => Ok(()),
        _ => Err(Error::usage(format!(
            "{}: {} would do nothing: universes are computed, and their seed stands in their name; leave {} out",
            args.source.display(),
            given.join(", "),
            if given.len() == 1 { "it" } else { "them" }
        ))),
    }
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
