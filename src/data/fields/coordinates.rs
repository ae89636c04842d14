//! Where samples and their places are, as files say it (netCDF's coordinates).

use std::path::Path;
use std::sync::Arc;

use super::files::FieldFile;
use super::{FieldSet, LearnedArray};
use crate::data::SampleAxis;
use crate::error::Result;
use crate::fields::{ArrayBox, ArrayReader, Coordinate, FileArray, ViewSamples};

impl FieldSet {
    /// What the files say of the axes of a field's samples: what each is called with how many places it has, and where
    /// these are and in which unit, where an array says it, also one of several axes; channels are among them where
    /// they are those of the one target and an array says what they are. An axis of which files say unlike things has
    /// no places, and is named in `unlike` with such a file.
    ///
    /// # Errors
    /// `Data`.
    #[allow(clippy::type_complexity, reason = "two lists that belong to one question")]
    pub fn coordinates(
        &self,
        at: usize,
        unlike: &mut Vec<String>,
    ) -> Result<(Vec<(String, usize)>, Vec<Coordinate<f32>>)> {
        let (array, samples) = &self.files[0].arrays[at];
        let window = samples.window(0);
        let (mut names, mut places) = (Vec::new(), Vec::new());
        for (axis, letter) in samples.order().iter().copied().zip(samples.letters()) {
            let (name, along) = (array.axes[axis].clone(), window.len[axis]);
            let is_one = at > 0 && self.list.compared == self.list.inputs + 1;
            if letter == Some('c') && !(is_one && array.coordinate(axis).is_some()) {
                continue;
            }
            let called = match &*name {
                // What numbers samples says where these are, and not their places.
                _ if samples.numbering().contains(&axis) => "step".into(),
                "" => letter.unwrap_or('x').to_string(),
                name => name.into(),
            };
            names.push((called, along));
            let Some(part) = of_all_samples(samples, axis, letter) else { continue };
            let find = |file: &FieldFile| file.arrays[at].0.coordinate(axis);
            places.extend(self.alike(name, Vec::new(), &part, &find, unlike)?);
        }
        for name in array.auxiliaries().into_iter().filter(|name| !array.axes.contains(name)) {
            places.extend(self.auxiliary(at, &name, unlike)?);
        }
        Ok((names, places))
    }

    /// What each field is called, and the axes of its samples with those of which its view takes one place, and behind
    /// them arrays that say where places on several axes are; of each where the first file's samples are: what all have
    /// of it, or all of it where each has another part.
    ///
    /// # Errors
    /// `Data`.
    pub fn sample_axes(&self) -> Result<Vec<(String, Vec<SampleAxis>)>> {
        let axes_of = |at: usize| -> Result<(String, Vec<SampleAxis>)> {
            let (array, samples) = &self.files[0].arrays[at];
            let axis_of = |(axis, part): (usize, Option<ArrayBox>)| {
                let name = array.axes[axis].clone();
                // Where samples are in time differs from file to file.
                if samples.numbering().contains(&axis) {
                    return Ok(SampleAxis::new(name, &[], None));
                }
                let part = part.unwrap_or(ArrayBox { first: vec![0], len: vec![array.shape[axis]] });
                let (places, unit) = places_of(array.coordinate(axis), &part)?.unwrap_or_default();
                Ok(SampleAxis::new(name, &places, unit))
            };
            let axes = parts_of_axes(array, samples).into_iter().map(axis_of);
            let grids = self.grids(at).into_iter().map(|(name, part)| {
                let (places, unit) = places_of(array.auxiliary(&name), &part)?.unwrap_or_default();
                // As far apart as along its longest axis.
                let along = part.len.into_iter().max().unwrap_or(0);
                Ok(SampleAxis { along, ..SampleAxis::new(name, &places, unit) })
            });
            Ok((self.list.fields[at].text.clone(), axes.chain(grids).collect::<Result<_>>()?))
        };
        (0..self.list.fields.len()).map(axes_of).collect()
    }

    /// The set, which knows these axes of its inputs and targets.
    pub fn lying(self, axes: impl Iterator<Item = Vec<SampleAxis>>) -> FieldSet {
        let known = self.scales.iter().cloned().zip(axes);
        let scales = known.map(|(scale, axes)| LearnedArray { axes, ..scale }).collect();
        FieldSet { scales: Arc::new(scales), ..self }
    }

    /// The axes of an array that says where places of a field are on several axes, and the part of it that all samples
    /// have; `None` where it has axes that the field has not.
    fn grid(&self, at: usize, name: &str) -> Option<(Vec<String>, ArrayBox)> {
        let (array, samples) = &self.files[0].arrays[at];
        let part = |name: &String| {
            let mut own = samples.order().iter().copied().zip(samples.letters());
            let (axis, letter) = own.find(|(axis, _)| array.axes[*axis] == *name && !name.is_empty())?;
            of_all_samples(samples, axis, letter).filter(|_| letter != Some('c'))
        };
        let names = array.auxiliary(name)?.axes;
        let parts = names.iter().map(part).collect::<Option<Vec<_>>>()?;
        // A place that all samples have is on no axis.
        let first = parts.iter().map(|of| of.first[0]).collect();
        let len = parts.iter().map(|of| of.len[0]).collect();
        (!names.is_empty()).then_some((names, ArrayBox { first, len }))
    }

    /// Those that say where places on several axes are.
    fn grids(&self, at: usize) -> Vec<(String, ArrayBox)> {
        let array = &self.files[0].arrays[at].0;
        let names = array.auxiliaries().into_iter().filter(|name| !array.axes.contains(name));
        names.filter_map(|name| self.grid(at, &name).map(|(_, part)| (name, part))).collect()
    }

    /// Those that an array of this name says, if it has axes of the field alone.
    fn auxiliary(&self, at: usize, name: &str, unlike: &mut Vec<String>) -> Result<Option<Coordinate<f32>>> {
        let Some((names, part)) = self.grid(at, name) else { return Ok(None) };
        let axes = names.into_iter().zip(part.len.iter().copied()).collect();
        let find = |file: &FieldFile| file.arrays[at].0.auxiliary(name);
        self.alike(name.into(), axes, &part, &find, unlike)
    }

    /// The places that an array of the first file says, which `find` finds; `None` where there is none, or another file
    /// says something else, which `unlike` then names.
    fn alike(
        &self,
        name: String,
        axes: Vec<(String, usize)>,
        part: &ArrayBox,
        find: FindPlaces<'_>,
        unlike: &mut Vec<String>,
    ) -> Result<Option<Coordinate<f32>>> {
        let Some(found) = places_of(find(&self.files[0]), part)? else { return Ok(None) };
        if let Some(path) = unlike_file(self.files[1..].iter(), part, find, Some(&found))? {
            unlike.push(format!("{name} ({})", path.display()));
            return Ok(None);
        }
        let (places, unit) = found;
        Ok(Some(Coordinate { name, places, unit, calendar: None, axes }))
    }

    /// A line that names the axes of which files say unlike things, whose samples a run takes together: maps that begin
    /// in the north beside others that begin in the south. Of many files, with those of a test set, some are looked at.
    ///
    /// # Errors
    /// `Data`.
    pub fn unlike_places(&self, test: Option<&FieldSet>) -> Result<Option<String>> {
        /// Files that are looked at, and those of places on several axes, of which there are many.
        const LOOKED_AT: usize = 64;
        const GRIDS: usize = 4;
        let others: Vec<&FieldFile> =
            self.files[1..].iter().chain(test.into_iter().flat_map(|test| test.files.iter())).collect();
        let apart = others.len().div_ceil(LOOKED_AT).max(1);
        // The last of so many, which may be in the test set.
        let some: Vec<&FieldFile> = others.into_iter().rev().step_by(apart).collect();
        let mut said: Vec<String> = Vec::new();
        // Arrays that say where places of several ones are, and which part of them was compared.
        let mut compared: Vec<(String, ArrayBox)> = Vec::new();
        for (at, field) in self.list.fields.iter().enumerate() {
            let (array, samples) = &self.files[0].arrays[at];
            let axes = parts_of_axes(array, samples).into_iter();
            let axes = axes.map(|(axis, part)| (array.axes[axis].clone(), part, Some(axis)));
            let grids = self.grids(at).into_iter().map(|(name, part)| (name, Some(part), None));
            for (name, part, axis) in axes.chain(grids) {
                let is_called =
                    |file: &&&FieldFile| axis.is_some_and(|axis| file.arrays[at].0.axes[axis] != name);
                let some = &some[..some.len().min(if axis.is_some() { LOOKED_AT } else { GRIDS })];
                let mut unlike = some.iter().find(is_called).map(|file| &*file.path);
                if let (None, Some(part)) = (unlike, part) {
                    let find = |file: &FieldFile| match (axis, &file.arrays[at].0) {
                        (Some(axis), array) => array.coordinate(axis),
                        (None, array) => array.auxiliary(&name),
                    };
                    let of = find(&self.files[0]);
                    let looked = of.as_ref().map(|of| (of.name.clone(), part.clone()));
                    if looked.as_ref().is_some_and(|looked| compared.contains(looked)) {
                        continue;
                    }
                    compared.extend(looked);
                    let first = places_of(of, &part)?;
                    unlike = unlike_file(some.iter().copied(), &part, &find, first.as_ref())?;
                }
                let Some(path) = unlike else { continue };
                said.push(match at {
                    0 => format!("{name} ({})", path.display()),
                    _ => format!("{name} of {} ({})", field.text, path.display()),
                });
            }
        }
        let of = format!(
            "places are others than in {}, or not said there, and are taken as they lie: ",
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
            let known =
                all.get_or_insert(Coordinate { name, places: Vec::new(), unit, calendar, axes: Vec::new() });
            let own = self.before[at]..self.before[at + 1];
            let place = |index| samples.window(Self::index(&self.place(index), 0)).first[axis];
            known.places.extend(own.map(|index| places[place(index)]));
        }
        Ok(all)
    }
}

/// Where the places of an axis are, and in which unit.
type AxisPlaces = (Vec<f32>, Option<String>);

/// The axes of an array that a sample has, and behind them those of which its view takes one place; of each the part
/// that all samples have, unless each has another.
fn parts_of_axes(array: &FileArray, samples: &ViewSamples) -> Vec<(usize, Option<ArrayBox>)> {
    let own = samples.order().iter().copied().zip(samples.letters());
    let mut parts: Vec<_> = own.map(|(axis, letter)| (axis, of_all_samples(samples, axis, letter))).collect();
    let (order, numbering, window) = (samples.order(), samples.numbering(), samples.window(0));
    let is_one = |axis: &usize| !order.contains(axis) && !numbering.contains(axis);
    let place = |axis: usize| ArrayBox { first: vec![window.first[axis]], len: vec![1] };
    parts.extend((0..array.axes.len()).filter(is_one).map(|axis| (axis, Some(place(axis)))));
    parts
}

/// The part of an axis that every sample has; `None` where each has another: of a tile, or of a window in time.
fn of_all_samples(samples: &ViewSamples, axis: usize, letter: Option<char>) -> Option<ArrayBox> {
    let window = samples.window(0);
    let is_of_each = samples.numbered().iter().any(|&(of, ..)| Some(of) == letter);
    let is_of_each = is_of_each || samples.numbering().contains(&axis);
    (!is_of_each).then(|| ArrayBox { first: vec![window.first[axis]], len: vec![window.len[axis]] })
}

/// Finds the array of a file that says where places of another one are.
type FindPlaces<'a> = &'a dyn Fn(&FieldFile) -> Option<FileArray>;

/// What an array says of a part of the places, if it has them.
fn places_of(array: Option<FileArray>, part: &ArrayBox) -> Result<Option<AxisPlaces>> {
    let holds = |array: &FileArray| {
        let ends = part.first.iter().zip(&part.len).map(|(first, len)| first + len);
        array.shape.len() == part.len.len() && array.shape.iter().zip(ends).all(|(along, end)| end <= *along)
    };
    let Some(array) = array.filter(holds) else { return Ok(None) };
    let mut values = vec![0.0; part.len.iter().product()];
    ArrayReader::default().read_box(&array, part, &mut values)?;
    Ok(Some((values, array.unit)))
}

/// The first of some files that says something else of a part of the places.
fn unlike_file<'a>(
    files: impl Iterator<Item = &'a FieldFile>,
    part: &ArrayBox,
    find: FindPlaces<'_>,
    known: Option<&AxisPlaces>,
) -> Result<Option<&'a Path>> {
    // What is missing is the same there too.
    let bits = |(all, unit): &AxisPlaces| {
        (all.iter().map(|value| value.to_bits()).collect::<Vec<_>>(), unit.clone())
    };
    for file in files {
        let own = places_of(find(file), part)?;
        if own.as_ref().map(bits) != known.map(bits) {
            return Ok(Some(&file.path));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{file, options};
    use super::*;

    /// The numbers of samples say where each sample is, and have as many places as all samples.
    #[test]
    fn places_of_a_window_in_time_are_steps() {
        let directory = tempfile::tempdir().unwrap();
        let path = file(&directory, "a.h5");
        let set = FieldSet::open(None, &path, &options(&["t[n*2..2,h,w=1..4]"], &["s"]), &[]).unwrap();
        let (axes, places) = set.coordinates(0, &mut Vec::new()).unwrap();
        let axes: Vec<(&str, usize)> = axes.iter().map(|(name, along)| (&**name, *along)).collect();
        assert_eq!((axes, places.len()), (vec![("h", 4), ("w", 4), ("step", 2)], 0));
        // An output like the target lies where that does.
        assert_eq!(
            [&[1, 3][..], &[3], &[2, 3, 1], &[4, 4, 2]].map(|output| set.first_of(output)),
            [1, 1, 1, 0]
        );
    }
}
