//! Where samples and their places are, as files say it (netCDF's coordinates).

use std::path::Path;

use super::FieldSet;
use crate::error::Result;
use crate::fields::{ArrayBox, ArrayReader, Coordinate};

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
        let file = &self.files[0];
        let (array, samples) = &file.arrays[0];
        let window = samples.window(0);
        let (mut names, mut places) = (Vec::new(), Vec::new());
        for (&axis, letter) in samples.order().iter().zip(samples.letters()) {
            if letter == Some('c') {
                continue;
            }
            let (name, along) = (array.axes[axis].clone(), window.len[axis]);
            let called = if name.is_empty() { letter.unwrap_or('x').to_string() } else { name.clone() };
            names.push((called, along));
            // Of a tile or window every sample has other places.
            let is_of_all = !samples.numbered().iter().any(|&(of, ..)| Some(of) == letter);
            let is_of_all = is_of_all && !samples.numbering().contains(&axis);
            if let Some(of_axis) = array.coordinate(axis).filter(|_| is_of_all) {
                let part = ArrayBox { first: vec![window.first[axis]], len: vec![along] };
                let mut values = vec![0.0; along];
                ArrayReader::default().read_box(&of_axis, &part, &mut values)?;
                let unit = of_axis.unit.clone();
                match self.unlike(axis, &part, (&values, &unit))? {
                    Some(path) => unlike.push(format!("{name} ({})", path.display())),
                    None => places.push(Coordinate { name, places: values, unit, calendar: None }),
                }
            }
        }
        Ok((names, places))
    }

    /// A file that says of the places of an axis other than the first one.
    fn unlike(
        &self,
        axis: usize,
        part: &ArrayBox,
        first: (&[f32], &Option<String>),
    ) -> Result<Option<&Path>> {
        let mut reader = ArrayReader::default();
        for file in &self.files[1..] {
            let Some(of_axis) = file.arrays[0].0.coordinate(axis) else { return Ok(Some(&file.path)) };
            let mut values = vec![0.0; first.0.len()];
            reader.read_box(&of_axis, part, &mut values)?;
            // What is missing is the same there too.
            let bits = |all: &[f32]| all.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
            if (bits(&values), &of_axis.unit) != (bits(first.0), first.1) {
                return Ok(Some(&file.path));
            }
        }
        Ok(None)
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
