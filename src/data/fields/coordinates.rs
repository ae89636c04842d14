//! Where samples and their places are, as files say it (netCDF's coordinates).

use std::path::Path;

use super::FieldSet;
use super::files::FieldFile;
use crate::error::Result;
use crate::fields::{ArrayBox, ArrayReader, Coordinate, FileArray, ViewSamples};

impl FieldSet {
    /// What the files say of the axes of the first input's samples beside channels: what each is called with how many
    /// places it has, and where these are and in which unit, where an array says it. An axis of which files say unlike
    /// things has no places, and is named in `unlike` with such a file.
    ///
    /// # Errors
    /// `Data`.
    #[allow(clippy::type_complexity, reason = "two lists that belong to one question")]
    pub fn coordinates(
        &self,
        unlike: &mut Vec<String>,
    ) -> Result<(Vec<(String, usize)>, Vec<Coordinate<f32>>)> {
        let (array, samples) = &self.files[0].arrays[0];
        let window = samples.window(0);
        let (mut names, mut places) = (Vec::new(), Vec::new());
        for (axis, letter) in samples.order().iter().copied().zip(samples.letters()) {
            if letter == Some('c') {
                continue;
            }
            let (name, along) = (array.axes[axis].clone(), window.len[axis]);
            let called = if name.is_empty() { letter.unwrap_or('x').to_string() } else { name.clone() };
            names.push((called, along));
            let Some(part) = of_all_samples(samples, axis, letter) else { continue };
            let Some(found) = places_of(array, axis, &part)? else { continue };
            match unlike_file(self.files[1..].iter(), axis, &part, Some(&found))? {
                Some(path) => unlike.push(format!("{name} ({})", path.display())),
                None => places.push(Coordinate { name, places: found.0, unit: found.1, calendar: None }),
            }
        }
        Ok((names, places))
    }

    /// A line that names the axes of the first input of which files say unlike things, whose samples a run takes
    /// together: maps that begin in the north beside others that begin in the south. Of many files, with those of a
    /// test set, some are looked at.
    ///
    /// # Errors
    /// `Data`.
    pub fn unlike_places(&self, test: Option<&FieldSet>) -> Result<Option<String>> {
        /// Files that are looked at.
        const LOOKED_AT: usize = 64;
        let (array, samples) = &self.files[0].arrays[0];
        let others: Vec<&FieldFile> =
            self.files[1..].iter().chain(test.into_iter().flat_map(|test| test.files.iter())).collect();
        let apart = others.len().div_ceil(LOOKED_AT).max(1);
        let mut said = Vec::new();
        for (axis, letter) in samples.order().iter().copied().zip(samples.letters()) {
            let Some(part) = of_all_samples(samples, axis, letter) else { continue };
            let first = places_of(array, axis, &part)?;
            // The last of so many, which may be in the test set.
            let some = others.iter().rev().step_by(apart).copied();
            if let Some(path) = unlike_file(some, axis, &part, first.as_ref())? {
                said.push(format!("{} ({})", array.axes[axis], path.display()));
            }
        }
        let of = format!(
            "places are others than in {}, and are taken as they lie: ",
            self.files[0].path.display()
        );
        Ok((!said.is_empty()).then(|| of + &said.join(", ")))
    }

    /// What the files say of the axes of the first input that number samples: for each sample where it is, or its first
    /// place. An axis of which a file says nothing, or in another unit than the first, is left out, and named in
    /// `unlike` with that file.
    ///
    /// # Errors
    /// `Data`.
    pub fn sample_coordinates(&self, unlike: &mut Vec<String>) -> Result<Vec<Coordinate<f64>>> {
        let axes = self.files[0].arrays[0].1.numbering().into_iter();
        axes.filter_map(|axis| self.along_axis(axis, unlike).transpose()).collect()
    }

    fn along_axis(&self, axis: usize, unlike: &mut Vec<String>) -> Result<Option<Coordinate<f64>>> {
        let mut all: Option<Coordinate<f64>> = None;
        for (at, file) in self.files.iter().enumerate() {
            let (array, samples) = &file.arrays[0];
            let mut left_out = || {
                // Where the first file says nothing of an axis nobody expects it.
                let is_expected = (at > 0).then(|| format!("{} ({})", array.axes[axis], file.path.display()));
                unlike.extend(is_expected);
                Ok(None)
            };
            let Some(of_axis) = array.coordinate(axis) else { return left_out() };
            let (places, calendar) = of_axis.exact()?;
            let (name, unit) = (array.axes[axis].clone(), of_axis.unit.clone());
            if all.as_ref().is_some_and(|all| (&all.unit, &all.calendar) != (&unit, &calendar)) {
                return left_out();
            }
            let known = all.get_or_insert(Coordinate { name, places: Vec::new(), unit, calendar });
            let own = self.before[at]..self.before[at + 1];
            let place = |index| samples.window(Self::index(&self.place(index), 0)).first[axis];
            known.places.extend(own.map(|index| places[place(index)]));
        }
        Ok(all)
    }
}

/// Where the places of an axis are, and in which unit.
type AxisPlaces = (Vec<f32>, Option<String>);

/// The part of an axis that every sample has; `None` where each has another: of a tile, or of a window in time.
fn of_all_samples(samples: &ViewSamples, axis: usize, letter: Option<char>) -> Option<ArrayBox> {
    let window = samples.window(0);
    let is_of_each = samples.numbered().iter().any(|&(of, ..)| Some(of) == letter);
    let is_of_each = is_of_each || samples.numbering().contains(&axis);
    (!is_of_each).then(|| ArrayBox { first: vec![window.first[axis]], len: vec![window.len[axis]] })
}

/// What the file of an array says of a part of one of its axes.
fn places_of(array: &FileArray, axis: usize, part: &ArrayBox) -> Result<Option<AxisPlaces>> {
    let Some(of_axis) = array.coordinate(axis) else { return Ok(None) };
    let mut values = vec![0.0; part.len[0]];
    ArrayReader::default().read_box(&of_axis, part, &mut values)?;
    Ok(Some((values, of_axis.unit)))
}

/// The first of some files that says something else of a part of an axis.
fn unlike_file<'a>(
    files: impl Iterator<Item = &'a FieldFile>,
    axis: usize,
    part: &ArrayBox,
    known: Option<&AxisPlaces>,
) -> Result<Option<&'a Path>> {
    // What is missing is the same there too.
    let bits = |(all, unit): &AxisPlaces| {
        (all.iter().map(|value| value.to_bits()).collect::<Vec<_>>(), unit.clone())
    };
    for file in files {
        let own = places_of(&file.arrays[0].0, axis, part)?;
        if own.as_ref().map(bits) != known.map(bits) {
            return Ok(Some(&file.path));
        }
    }
    Ok(None)
}
