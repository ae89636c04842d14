//! Reading the results file of a run, whoever wrote it: ended, still being written, or killed.

use std::path::Path;

use hdf5::types::VarLenUnicode;
use hdf5::{File, OpenMode};

use crate::error::{Error, Result};

/// The flags of the run that left this results file, as a file that `--config` reads.
///
/// # Errors
/// `Data` where it is none, or is of a dltrain that did not keep them.
pub fn run_file(path: &Path) -> Result<String> {
    let file = open(path)?;
    config_text(&file, "run_file").ok_or_else(|| {
        Error::data(
            path,
            "keeps no run file: its run was made by an older dltrain; see its attribute config/command",
        )
    })
}

/// Opens a results file.
///
/// # Errors
/// `Data` where there is none or it is something else.
fn open(path: &Path) -> Result<File> {
    std::fs::File::open(path).map_err(|error| Error::data(path, error))?;
    let file = File::open_as(path, OpenMode::ReadSWMR).or_else(|_| File::open(path));
    let file =
        file.map_err(|error| Error::data(path, format!("is no HDF5 file, or a damaged one: {error}")))?;
    let format = file.attr("format").and_then(|format| format.read_scalar::<VarLenUnicode>());
    match format.as_deref() {
        Ok("dltrain results") => Ok(file),
        Ok(other) => Err(Error::data(path, format!("is no results file of a run, but: {other}"))),
        Err(_) => Err(Error::data(path, "is HDF5, but no results file of dltrain")),
    }
}

/// A text of the run's configuration.
pub(super) fn config_text(file: &File, name: &str) -> Option<String> {
    let attribute = file.group("config").ok()?.attr(name).ok()?;
    Some(attribute.read_scalar::<VarLenUnicode>().ok()?.to_string())
}
