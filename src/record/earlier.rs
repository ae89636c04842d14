//! The results file of a run that was interrupted: which of its rows count when it goes on.

use std::path::Path;

use hdf5::{File, OpenMode};

use super::read::config_text;
use super::{Description, Reached};
use crate::error::{Error, Result};

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
    /// `Kind::Output` where it is not a record of this run.
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
