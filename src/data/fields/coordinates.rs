//! Where samples and their places are, as files say it (netCDF's coordinates).

use super::FieldSet;
use crate::error::Result;
use crate::fields::{ArrayBox, ArrayReader, Coordinate, SampleCoordinate};

impl FieldSet {
    /// What the first input's file says of the axes of a sample beside channels: what each is called with how many
    /// places it has, and where these are and in which unit, where an array says it.
    ///
    /// # Errors
    /// `Data`.
    #[allow(clippy::type_complexity, reason = "two lists that belong to one question")]
    pub fn coordinates(&self) -> Result<(Vec<(String, usize)>, Vec<Coordinate>)> {
        let file = &self.files[0];
        let (array, samples) = &file.arrays[0];
        let window = samples.window(0);
        let (mut names, mut places) = (Vec::new(), Vec::new());
        for (&axis, letter) in samples.order().iter().zip(samples.letters()) {
            if letter == Some('c') {
                continue;
            }
            let name = &array.axes[axis];
            if name.is_empty() {
                names.push((letter.unwrap_or('x').to_string(), window.len[axis]));
                continue;
            }
            names.push((name.clone(), window.len[axis]));
            // Of a tile or window every sample has other places.
            let is_of_all = !samples.numbered().iter().any(|&(of, ..)| Some(of) == letter);
            let is_of_all = is_of_all && !samples.numbering().contains(&axis);
            if let Some(of_axis) = array.coordinate(axis).filter(|_| is_of_all) {
                let part = ArrayBox { first: vec![window.first[axis]], len: vec![window.len[axis]] };
                let mut values = vec![0.0; window.len[axis]];
                ArrayReader::default().read_box(&of_axis, &part, &mut values)?;
                places.push(Coordinate { name: name.clone(), places: values, unit: of_axis.unit.clone() });
            }
        }
        Ok((names, places))
    }

    /// What the files say of the axes of the first input that number samples: for each sample where it is, or its first
    /// place. An axis of which a file says nothing, or in another unit than the first, is left out.
    ///
    /// # Errors
    /// `Data`.
    pub fn sample_coordinates(&self) -> Result<Vec<SampleCoordinate>> {
        let mut all = Vec::new();
        for axis in self.files[0].arrays[0].1.numbering() {
            all.extend(self.along_axis(axis)?);
        }
        Ok(all)
    }

    fn along_axis(&self, axis: usize) -> Result<Option<SampleCoordinate>> {
        let mut all: Option<SampleCoordinate> = None;
        for (at, file) in self.files.iter().enumerate() {
            let (array, samples) = &file.arrays[0];
            let Some(of_axis) = array.coordinate(axis) else { return Ok(None) };
            let (places, calendar) = of_axis.exact()?;
            let (name, unit) = (array.axes[axis].clone(), of_axis.unit.clone());
            let first = || SampleCoordinate {
                name,
                places: Vec::new(),
                unit: unit.clone(),
                calendar: calendar.clone(),
            };
            let known = all.get_or_insert_with(first);
            if (&known.unit, &known.calendar) != (&unit, &calendar) {
                return Ok(None);
            }
            let own = self.before[at]..self.before[at + 1];
            let place = |index| samples.window(Self::index(&self.place(index), 0)).first[axis];
            known.places.extend(own.map(|index| places[place(index)]));
        }
        Ok(all)
    }
}
