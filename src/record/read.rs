//! Reading the results file of a run, whoever wrote it: ended, still being written, or killed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use hdf5::types::{FixedUnicode, VarLenUnicode};
use hdf5::{File, H5Type, Hyperslab, OpenMode};

use super::file::STATUS_BYTES;
use super::{Description, Reached};
use crate::error::{Error, OrError, Result};
use crate::files;

/// A results file that is open. What is not in it (an older schema, a run that has not come so far) is empty or `None`.
pub struct RunRecord {
    /// The results file.
    pub path: PathBuf,
    /// The texts of `/config`.
    pub config: BTreeMap<String, String>,
    /// "running" while it is written, and for ever where the job was killed.
    pub status: String,
    /// Rows that are complete in every series of their group.
    pub steps: usize,
    /// How many epochs are in the file.
    pub epochs: usize,
    file: File,
}

impl RunRecord {
    /// # Errors
    /// `Data` where there is no such file, or it is something else.
    pub fn open(path: &Path) -> Result<RunRecord> {
        let file = open(path)?;
        let group = file.group("config").ok();
        let names = group.as_ref().and_then(|config| config.attr_names().ok()).unwrap_or_default();
        let texts = names.into_iter().filter_map(|name| {
            let text = config_text(&file, &name)?;
            Some((name, text))
        });
        let config: BTreeMap<String, String> = texts.collect();
        let rows = |name: &str| file.dataset(name).map_or(0, |series| series.size());
        let (steps, epochs) = (rows("steps/step"), rows("epochs/epoch"));
        let status = file.dataset("summary/status");
        let status = status.and_then(|status| status.read_scalar::<FixedUnicode<STATUS_BYTES>>());
        if config.is_empty() || file.dataset("steps/loss").is_err() {
            return Err(Error::data(
                path,
                "is a results file without /config or /steps: damaged, or cut off at its start",
            ));
        }
        let status = status.map_or_else(|_| "unknown".into(), |status| status.to_string());
        Ok(RunRecord { path: path.to_path_buf(), config, status, steps, epochs, file })
    }

    /// That weights are not here, and where its run left them.
    pub(super) fn has_no_weights(&self) -> String {
        let place = |name: &str| self.config.get(name).filter(|place| *place != "null");
        let kept = match (place("save_weights"), place("session.checkpoint")) {
            (Some(file), _) => format!("those of this run are in {file} (--save-weights)"),
            // A run that was stopped before its first test has no best.
            (None, Some(directory)) => match Path::new(directory).join("best.h5").exists() {
                true => format!("those of this run are in {directory}/best.h5 (--checkpoint)"),
                false => format!("those of this run are in the newest file of {directory} (--checkpoint)"),
            },
            _ => "this run kept none, which takes --save-weights FILE or --checkpoint DIR".into(),
        };
        format!("is the record of a run (--results), which holds no weights; {kept}")
    }

    /// A series of `steps` or `epochs`.
    pub fn series(&self, name: &str) -> Vec<f64> {
        let rows = if name.starts_with("epochs/") { self.epochs } else { self.steps };
        let read = || self.file.dataset(name)?.read_slice_1d::<f64, _>(Hyperslab::from(0..rows));
        read().map_or_else(|_| Vec::new(), |values| values.to_vec())
    }

    /// The last rows, at most so many, of a series with a value for each bucket.
    pub fn last_rows(&self, name: &str, most: usize) -> Vec<Vec<f32>> {
        let first = self.steps.saturating_sub(most);
        let read = || {
            let dataset = self.file.dataset(name)?;
            let width = dataset.shape().get(1).copied().unwrap_or(0);
            dataset.read_slice_2d::<f32, _>(Hyperslab::from((first..self.steps, 0..width)))
        };
        read().map_or_else(|_| Vec::new(), |rows| rows.rows().into_iter().map(|row| row.to_vec()).collect())
    }

    /// A data set of `/config` with a value for each bucket, or each kind of memory.
    pub fn list<T: H5Type>(&self, name: &str) -> Vec<T> {
        self.file.dataset(name).and_then(|list| list.read_raw::<T>()).unwrap_or_default()
    }

    /// The texts of this data set.
    pub fn texts(&self, name: &str) -> Vec<String> {
        self.list::<VarLenUnicode>(name).iter().map(|text| text.to_string()).collect()
    }

    /// A value of `/summary`; `None` where it is not known.
    pub fn number(&self, name: &str) -> Option<f64> {
        let number = self.file.dataset(&format!("summary/{name}")).ok()?.read_scalar::<f64>().ok()?;
        Some(number).filter(|number| number.is_finite())
    }
}

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
    files::check(path).or_data(path)?;
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

/// A results file to go on from.
pub(super) struct Earlier {
    pub file: File,
    /// Rows before the step and the epoch at which the run goes on.
    pub steps: usize,
    pub epochs: usize,
}

impl Earlier {
    /// Opens it, whether its writer closed it or was killed.
    ///
    /// # Errors
    /// `ErrorKind::Output` where it is not a record of this run.
    pub fn open(path: &Path, about: &Description, at: &Reached) -> Result<Earlier> {
        let unreadable = |error: hdf5::Error| {
            Error::output(path, format!("cannot be read to go on in it: {error}; choose another --results"))
        };
        let file =
            File::open_as(path, OpenMode::ReadSWMR).or_else(|_| File::open(path)).map_err(unreadable)?;
        let mut earlier = Earlier { file, steps: 0, epochs: 0 };
        let run = about.attributes.iter().find(|(name, _)| name == "run").map(|(_, value)| value);
        if earlier.text("run").as_ref() != run {
            return Err(Error::output(
                path,
                "is the record of another run and is not overwritten; choose another --results",
            ));
        }
        let rows = |name: &str| earlier.file.dataset(name).and_then(|series| series.read_raw::<u64>());
        let steps: Vec<u64> = rows("steps/step").map_err(unreadable)?;
        let epochs: Vec<u64> = rows("epochs/epoch").map_err(unreadable)?;
        let before = steps.iter().take_while(|&&step| step < at.step).count();
        if let Some(missing) =
            steps[..before].last().map_or(Some(0), |&last| (last + 1 < at.step).then_some(last + 1))
            && at.step > 0
        {
            log::warn!("{}: steps {missing} to {} are missing", path.display(), at.step - 1);
        }
        (earlier.steps, earlier.epochs) =
            (before, epochs.iter().take_while(|&&epoch| epoch <= at.epochs).count());
        Ok(earlier)
    }

    /// A text of its configuration.
    pub fn text(&self, name: &str) -> Option<String> {
        config_text(&self.file, name)
    }
}
