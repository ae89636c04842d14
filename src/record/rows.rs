//! A results file that is one table: what `dltrain bench` leaves. `docs/results.md` is the schema.

use std::path::Path;

use hdf5::file::LibraryVersion;
use hdf5::{File, H5Type};
use ndarray::ArrayView;

use super::file::{Columns, text};
use super::{date, git_revision, hdf5_version, path};
use crate::error::{Error, Result};

/// Writes rows as the data set `rows`, whose attributes `NAME_unit` and `NAME_description` explain the fields, with texts as
/// the file's attributes; `format`, versions and date are added. Never replaces a file.
///
/// # Errors
/// `Output`: the file is there already or cannot be written; half a file is removed.
pub fn write_table<T: H5Type>(
    path: &Path,
    format: &str,
    attributes: &[(&str, String)],
    columns: &Columns,
    rows: &[T],
) -> Result<()> {
    if path.symlink_metadata().is_ok() {
        return Err(path::exists(path));
    }
    let write = || -> hdf5::Result<()> {
        // Every HDF5 from 1.10 on reads it.
        let file = File::with_options()
            .with_fapl(|access| access.libver_bounds(LibraryVersion::V110, LibraryVersion::V110))
            .create_excl(path)?;
        let added = [
            ("format", format.to_string()),
            ("revision", git_revision().to_string()),
            ("dltrain_version", env!("CARGO_PKG_VERSION").to_string()),
            ("hdf5_version", hdf5_version()),
            ("date", date::iso(std::time::SystemTime::now())),
        ];
        for (name, value) in added.iter().chain(attributes) {
            text(&file, name, value)?;
        }
        let table = file.new_dataset::<T>().shape(rows.len()).create("rows")?;
        table.write(ArrayView::from(rows))?;
        for (name, unit, meaning) in columns {
            text(&table, &format!("{name}_unit"), unit)?;
            text(&table, &format!("{name}_description"), meaning)?;
        }
        file.close()
    };
    write().map_err(|error| {
        let _ = std::fs::remove_file(path);
        Error::output(path, format!("cannot write the results: {error}"))
    })
}
