//! Series of a results file: data sets that grow by rows.

use std::path::Path;

use hdf5::file::LibraryVersion;
use hdf5::{Dataset, File, Group, H5Type, Hyperslab};
use ndarray::ArrayView;

use super::file::{Columns, Hdf5Result, STEP_CHUNK, describe, text};
use super::{date, git_revision, hdf5_version, path};
use crate::error::{OrError, Result};
use crate::files;

/// Rows copied at a time from the file of an interrupted run.
const COPIED: usize = 16 * STEP_CHUNK;

/// The series of one group; all have the same length whenever nothing is waiting.
pub(super) struct SeriesGroup {
    pub counts: Vec<Series<u64>>,
    pub values: Vec<Series<f64>>,
    pub buckets: Vec<Series<f32>>,
}

impl SeriesGroup {
    pub fn push(&mut self, counts: &[u64], values: &[f64]) {
        for (series, value) in self.counts.iter_mut().zip(counts) {
            series.waiting.push(*value);
        }
        for (series, value) in self.values.iter_mut().zip(values) {
            series.waiting.push(*value);
        }
    }

    /// The first count (`step`, `epoch`) is written last: a reader who takes its length finds every other
    /// series at least as long.
    pub fn write(&mut self) -> Hdf5Result {
        self.buckets.iter_mut().try_for_each(Series::write)?;
        self.values.iter_mut().try_for_each(Series::write)?;
        self.counts.iter_mut().rev().try_for_each(Series::write)
    }

    /// The first rows of the same group of another file.
    pub fn copy(&mut self, from: &File, group: &str, rows: usize) -> Hdf5Result {
        let group = from.group(group)?;
        self.buckets.iter_mut().try_for_each(|series| series.copy(&group, rows, f32::NAN))?;
        self.values.iter_mut().try_for_each(|series| series.copy(&group, rows, f64::NAN))?;
        self.counts.iter_mut().try_for_each(|series| series.copy(&group, rows, 0))
    }
}

/// A data set that grows by rows, and the values not yet written.
pub(super) struct Series<T> {
    dataset: Dataset,
    /// Values in a row; `None` for a data set of one dimension.
    columns: Option<usize>,
    pub waiting: Vec<T>,
    written: usize,
}

impl<T: H5Type + Copy> Series<T> {
    pub fn width(&self) -> usize {
        self.columns.unwrap_or(1)
    }

    fn write(&mut self) -> Hdf5Result {
        if self.waiting.is_empty() {
            return Ok(());
        }
        let rows = self.waiting.len() / self.width();
        let (from, to) = (self.written, self.written + rows);
        let place: Hyperslab = match self.columns {
            None => {
                self.dataset.resize(to)?;
                Hyperslab::from(from..to)
            }
            Some(columns) => {
                self.dataset.resize((to, columns))?;
                Hyperslab::from((from..to, 0..columns))
            }
        };
        match self.columns {
            None => self.dataset.write_slice(ArrayView::from(&self.waiting), place)?,
            Some(columns) => {
                let view = ArrayView::from_shape((rows, columns), &self.waiting)
                    .map_err(|error| hdf5::Error::from(error.to_string()))?;
                self.dataset.write_slice(view, place)?;
            }
        }
        self.waiting.clear();
        self.written = to;
        self.dataset.flush()
    }

    /// The first rows of the data set of this name in another file; `unknown` where it has none of this width.
    fn copy(&mut self, from: &Group, rows: usize, unknown: T) -> Hdf5Result {
        let name = self.dataset.name();
        let old = from.dataset(name.rsplit('/').next().unwrap_or("")).ok();
        let old = old.filter(|old| old.shape().get(1).copied() == self.columns);
        for first in (0..rows).step_by(COPIED) {
            let count = COPIED.min(rows - first);
            match (&old, self.columns) {
                (None, _) => self.waiting.resize(count * self.width(), unknown),
                (Some(old), None) => {
                    self.waiting.extend(old.read_slice_1d::<T, _>(Hyperslab::from(first..first + count))?);
                }
                (Some(old), Some(columns)) => {
                    let place = Hyperslab::from((first..first + count, 0..columns));
                    self.waiting.extend(old.read_slice_2d::<T, _>(place)?);
                }
            }
            self.write()?;
        }
        Ok(())
    }
}

/// Empty series of a group; `width`: values in a row, where that is no single one.
pub(super) fn series<T: H5Type>(
    group: &Group,
    columns: &[(impl AsRef<str>, &str, &str)],
    chunk: usize,
    width: Option<usize>,
) -> hdf5::Result<Vec<Series<T>>> {
    let create = |name: &str, unit: &str, meaning: &str| {
        let builder = group.new_dataset::<T>();
        let dataset = match width {
            None => builder.chunk(chunk).shape(0..).create(name)?,
            Some(width) => builder.chunk((chunk, width)).shape((0.., width)).create(name)?,
        };
        describe(&dataset, unit, meaning)?;
        Ok(Series { dataset, columns: width, waiting: Vec::new(), written: 0 })
    };
    columns.iter().map(|(name, unit, meaning)| create(name.as_ref(), unit, meaning)).collect()
}

/// Writes rows as the data set `rows`, whose attributes `NAME_unit` and `NAME_description` explain the fields, with
/// texts as the file's attributes; `format`, versions and date are added. Never replaces a file.
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
    let write = |path: &Path| -> hdf5::Result<()> {
        // Every HDF5 from 1.10 on reads it.
        let file = File::with_options()
            .with_fapl(|access| access.libver_bounds(LibraryVersion::V110, LibraryVersion::V110))
            .create_excl(path)?;
        let added = [
            ("format", format.to_string()),
            ("revision", git_revision().to_string()),
            ("dltrain_version", env!("CARGO_PKG_VERSION").to_string()),
            ("hdf5_version", hdf5_version()),
            ("date", date(std::time::SystemTime::now())),
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
    files::write_new(path, "the results", |new| write(new).or_output(path, "cannot write the results"))
}
