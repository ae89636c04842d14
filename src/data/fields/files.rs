//! The files of a data set of arrays: which they are, and that all have the same arrays.

use std::path::{Path, PathBuf};

use super::field::Field;
use crate::error::{Error, Result};
use crate::fields::{FileArray, ViewSamples};

/// One file of a data set.
pub struct FieldFile {
    pub path: PathBuf,
    /// One array for each field.
    pub arrays: Vec<(FileArray, ViewSamples)>,
    /// The axes that number samples, of all fields: what they are called, the first number that all fields have, and
    /// how many.
    pub numbered: Vec<(char, i64, usize)>,
}

impl FieldFile {
    /// Samples that all fields have.
    pub fn len(&self) -> usize {
        self.numbered.iter().map(|&(_, _, count)| count).product()
    }
}

/// The axes that number samples, in the order in which they count.
const COUNTED: &str = "ntdhw";

/// By which of its axes an array numbers samples, tiles aside.
fn counted(samples: &ViewSamples) -> Vec<char> {
    samples.numbered().iter().map(|(name, ..)| *name).filter(|name| "nt".contains(*name)).collect()
}

/// The axes of samples that an array has none of, where others number samples by them and it by some: it is then the
/// same along these.
pub fn repeated(samples: &ViewSamples, of_all: &[(char, i64, usize)]) -> Vec<char> {
    let own = counted(samples);
    let missing =
        of_all.iter().map(|&(name, ..)| name).filter(|name| "nt".contains(*name) && !own.contains(name));
    if own.is_empty() { Vec::new() } else { missing.collect() }
}

/// That where arrays number samples by unlike axes one has all of them: else every pair would be a sample.
fn numbered_alike(fields: &[Field], arrays: &[(FileArray, ViewSamples)]) -> Result<()> {
    let all = || fields.iter().zip(arrays);
    let bare = all().find(|(field, _)| field.view.axes.is_none());
    let is_numbered = |(field, (_, samples)): (&Field, &(FileArray, ViewSamples))| {
        field.view.axes.is_some() && !counted(samples).is_empty()
    };
    let bracketed = all().find(|(field, _)| field.view.axes.is_some());
    if let (Some((bare, _)), Some((other, _)), false) = (bare, bracketed, all().any(is_numbered)) {
        return Err(Error::usage(format!(
            "{0} without brackets numbers samples by its first axis, and {1} has no such axis: say in brackets which \
             axes {0} has, n where one numbers samples ({0}[n,h,w]), none of it where all of {0} belongs to every \
             sample ({0}[c])",
            bare.view, other.view
        )));
    }
    let named =
        || all().map(|(field, (_, samples))| (field, counted(samples))).filter(|(_, by)| !by.is_empty());
    let Some((first, by)) = named().next().filter(|_| named().all(|(_, by)| by.len() == 1)) else {
        return Ok(());
    };
    match named().find(|(_, other)| *other != by) {
        Some((other, of_other)) => Err(Error::usage(format!(
            "{} numbers samples by {} and {} by {}: every pair would be a sample; give both the same, or one of them \
             both, and in brackets what all samples have (NAME[c])",
            first.view, by[0], other.view, of_other[0]
        ))),
        None => Ok(()),
    }
}

/// The arrays of a file that the fields name.
///
/// # Errors
/// `Data`: it cannot be read, or lacks one of them.
pub fn arrays_of(path: &Path, fields: &[Field]) -> Result<Vec<FileArray>> {
    let found = FileArray::several(path, fields.iter().map(|field| &*field.view.array))?;
    let known = found.into_iter().zip(fields);
    known.map(|(array, of)| array.map_err(|what| Error::data(path, what).context(of.flag))).collect()
}

/// The arrays of one file, and which samples all fields have.
///
/// # Errors
/// `Usage` for views that do not fit; `Data` where no sample is there.
pub fn arranged(path: &Path, found: Vec<FileArray>, fields: &[Field]) -> Result<FieldFile> {
    let mut arrays = Vec::new();
    let mut numbered: Vec<(char, i64, usize)> = Vec::new();
    for (field, array) in fields.iter().zip(found) {
        let samples = field.view.samples(&array.shape);
        let wrong = |what| Error::usage(format!("{} {what} ({})", field.flag, path.display()));
        let samples = samples.map_err(wrong)?;
        for (name, first, count) in samples.numbered() {
            match numbered.iter_mut().find(|(of, ..)| *of == name) {
                Some((_, _, all)) if "dhw".contains(name) && *all != count => {
                    return Err(Error::usage(format!(
                        "{} {}: {count} tiles along {name}, and {all} of another array: they would be of other places",
                        field.flag, field.view
                    )));
                }
                Some((_, known, all)) => {
                    let end = (*known + *all as i64).min(first + count as i64);
                    *known = (*known).max(first);
                    *all = (end - *known).max(0) as usize;
                }
                None => numbered.push((name, first, count)),
            }
        }
        arrays.push((array, samples));
    }
    numbered_alike(fields, &arrays)?;
    numbered.sort_by_key(|(name, ..)| COUNTED.find(*name));
    let file = FieldFile { path: path.into(), arrays, numbered };
    match file.len() {
        0 => Err(Error::data(path, "no sample has both its input and its target in this file")),
        _ => Ok(file),
    }
}

/// That files have the same arrays, but for how many samples.
pub fn alike(first: &FieldFile, file: &FieldFile) -> Result<()> {
    for ((a, of_a), (b, of_b)) in first.arrays.iter().zip(&file.arrays) {
        let shapes = [of_a.shape(), of_b.shape()];
        let differs = match () {
            () if shapes[0] != shapes[1] => format!("samples of {:?}, and not {:?}", shapes[1], shapes[0]),
            () if a.element != b.element => format!("numbers of {}, and not {}", b.element, a.element),
            () if a.unit != b.unit => {
                let unit = |array: &FileArray| array.unit.clone().unwrap_or("none".into());
                format!("unit {}, and not {}", unit(b), unit(a))
            }
            () => continue,
        };
        let what = format!("{} has {differs} as in {}", b.name, first.path.display());
        return Err(Error::data(&file.path, what));
    }
    Ok(())
}
