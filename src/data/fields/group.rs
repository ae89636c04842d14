//! What ranks tell each other while they open the files of a data set.

use crate::error::{Error, Result};

/// The ranks of a job, each of which opens some of the files. All methods but `rank`, `size` and `host` are collective.
pub trait ProcessGroup {
    /// This rank's number.
    fn rank(&self) -> usize;

    /// How many ranks there are.
    fn size(&self) -> usize;

    /// The machine of this rank.
    fn host(&self) -> &str;

    /// The error of the first rank that has one, on all of them.
    ///
    /// # Errors
    /// That one.
    fn agree(&self, own: Result<()>) -> Result<()>;

    /// Sees that all ranks have the same of these pairs of a name and a value.
    ///
    /// # Errors
    /// On all ranks, with what differs where.
    fn check_same(&self, items: &[(String, String)]) -> Result<()>;

    /// The text of each rank.
    ///
    /// # Errors
    /// `Communication`.
    fn gather_text(&self, text: &str) -> Result<Vec<String>>;
}

/// What this rank has, where no rank has an error. Collective.
///
/// # Errors
/// That of the first rank which has one.
pub fn agreed<T>(ranks: &dyn ProcessGroup, own: Result<T>) -> Result<T> {
    let (own, verdict) = match own {
        Ok(own) => (Some(own), Ok(())),
        Err(error) => (None, Err(error)),
    };
    ranks.agree(verdict)?;
    own.ok_or_else(|| Error::internal("ranks agreed on an error that none of them was told"))
}
