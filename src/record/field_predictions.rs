//! What a network gives of samples that are arrays, as HDF5: written sample by sample, since all of them may be more
//! than memory has.

use std::path::{Path, PathBuf};

use hdf5::types::VarLenUnicode;
use hdf5::{Dataset, File, H5Type, Hyperslab, SliceOrIndex};
use ndarray::{ArrayView, IxDyn};

use super::check_new;
use super::dimensions::Dimensions;
use super::file::{text, texts};
use crate::error::{Error, OrError, Result};
use crate::fields::{Coordinate, place_in};
use crate::files::{self, Unfinished};
use crate::graph::squeezed;

/// Numbers that are in memory at a time when such a file is read, of outputs and of targets.
const PIECE: usize = 1 << 20;

/// What an error of writing begins with.
const WRONG: &str = "cannot write the predictions";

/// By which such a file is known.
const FORMAT: &str = "dltrain field predictions";

/// Where the samples come from, and on which axes their outputs lie.
#[derive(Debug, Default)]
pub struct FieldOrigin {
    /// What each sample is called.
    pub samples: Vec<String>,
    /// The axes of an output without that of samples: what the file calls them, or what they are.
    pub axes: Vec<String>,
    /// What the input's file says of axes.
    pub coordinates: Vec<Coordinate<f32>>,
    /// What it says of the axes that number samples, one number a sample.
    pub of_samples: Vec<Coordinate<f64>>,
    /// The unit of the target, where that is known.
    pub unit: Option<String>,
    /// The axes of a target, where there is one to be written beside.
    pub target: Option<Vec<usize>>,
}

/// A file of outputs that is being written.
pub struct FieldPredictions {
    file: File,
    output: Dataset,
    /// What it was to be, where that is known.
    target: Option<(Dataset, Vec<usize>)>,
    /// The class of each point, where the outputs are scores of classes.
    classes: Option<Dataset>,
    /// The axes of an output, and samples written.
    shape: Vec<usize>,
    written: usize,
    /// Behind the library's handles: dropped when these are closed.
    unfinished: Unfinished,
}

impl FieldPredictions {
    /// A new file for outputs of this shape; `of_classes`: they are scores of classes, the first axis.
    ///
    /// # Errors
    /// `Output` when the file is there already or cannot be written.
    pub fn create(
        path: &Path,
        origin: &FieldOrigin,
        shape: &[usize],
        of_classes: bool,
    ) -> Result<FieldPredictions> {
        check_new(path)?;
        let unfinished = Unfinished::new(path);
        let create = || -> hdf5::Result<_> {
            let file = File::create(&unfinished.temporary)?;
            text(&file, "format", FORMAT)?;
            file.new_dataset_builder().with_data(&texts(&origin.samples)?).create("sample")?;
            let (samples, places) = (origin.samples.len(), shape.get(1..).unwrap_or(&[]));
            // As netCDF's files call it.
            let unit = |of: &Dataset| origin.unit.iter().try_for_each(|unit| text(of, "units", unit));
            let output =
                added::<f32>(&file, "output", samples, shape, "what the network gives of each sample")?;
            unit(&output)?;
            let (mut target, mut classes) = (None, None);
            if let Some(axes) = &origin.target {
                let shape = alike(axes, if of_classes { places } else { shape });
                let description = "what it was to give; NaN where that is not known";
                let data = added::<f32>(&file, "target", samples, &shape, description)?;
                unit(&data)?;
                target = Some((data, shape));
            }
            if of_classes {
                let data = added::<i32>(&file, "class", samples, places, "the class with the largest score")?;
                text(&data, "unit", "")?;
                classes = Some(data);
            }
            name_axes(&file, origin)?;
            Ok((file, output, target, classes))
        };
        let (file, output, target, classes) = create().or_output(path, WRONG)?;
        let shape = shape.to_vec();
        Ok(FieldPredictions { file, output, target, classes, shape, written: 0, unfinished })
    }

    /// Adds the output of the next sample, and its target, where the file has such.
    ///
    /// # Errors
    /// `Output`.
    pub fn push(&mut self, output: &[f32], target: &[f32]) -> Result<()> {
        let write = || -> hdf5::Result<()> {
            put(&self.output, self.written, &self.shape, output)?;
            if let Some((all, shape)) = &self.target {
                put(all, self.written, shape, target)?;
            }
            let Some(classes) = &self.classes else { return Ok(()) };
            let places: usize = self.shape.iter().skip(1).product();
            let best = |place: usize| {
                let scores = output[place..].iter().step_by(places);
                scores.enumerate().fold((0, f32::NEG_INFINITY), |(best, most), (class, &score)| {
                    if score > most { (class as i32, score) } else { (best, most) }
                })
            };
            let found: Vec<i32> = (0..places).map(|place| best(place).0).collect();
            put(classes, self.written, self.shape.get(1..).unwrap_or(&[]), &found)
        };
        write().or_output(&self.unfinished.path, WRONG)?;
        self.written += 1;
        Ok(())
    }

    /// Gives the file its name.
    ///
    /// # Errors
    /// `Output`.
    pub fn finish(self) -> Result<()> {
        let FieldPredictions { file, output, target, classes, unfinished, .. } = self;
        drop((output, target, classes));
        file.close().or_output(&unfinished.path, WRONG)?;
        unfinished.finish().or_output(&unfinished.path, WRONG)
    }
}

/// A data set of numbers of this shape for each sample.
fn added<T: H5Type>(
    file: &File,
    name: &str,
    samples: usize,
    shape: &[usize],
    description: &str,
) -> hdf5::Result<Dataset> {
    let data = file.new_dataset::<T>().shape([&[samples], shape].concat());
    let data = data.chunk(chunk(samples, shape)).create(name)?;
    text(&data, "description", description).map(|()| data)
}

/// Writes the numbers of one sample.
fn put<T: H5Type>(to: &Dataset, sample: usize, shape: &[usize], numbers: &[T]) -> hdf5::Result<()> {
    let all = shape.iter().map(|&along| (0..along).into());
    let at: Vec<SliceOrIndex> = [SliceOrIndex::Index(sample)].into_iter().chain(all).collect();
    let view = ArrayView::from_shape(IxDyn(shape), numbers);
    let view = view.map_err(|error| hdf5::Error::from(error.to_string()))?;
    to.write_slice(view, Hyperslab::new(at))
}

/// A file of outputs that has been written, with the targets. Some of its numbers are in memory at a time.
pub struct PredictedFields {
    path: PathBuf,
    names: Dataset,
    /// How many there are.
    pub samples: usize,
    /// Of the numbers; empty where it is not known.
    pub unit: String,
    /// The outputs, or the classes of each point; and what they were to be.
    data: [Dataset; 2],
    /// Whether outputs and targets are numbers of classes.
    pub is_of_classes: bool,
}

impl PredictedFields {
    /// `None`: the file is none of outputs.
    ///
    /// # Errors
    /// `Data`: it has no targets, or other ones than outputs.
    pub fn open(path: &Path) -> Result<Option<PredictedFields>> {
        files::check(path).or_data(path)?;
        let Ok(file) = File::open(path) else { return Ok(None) };
        let attribute = |of: &hdf5::Location, name: &str| {
            let text = of.attr(name).and_then(|text| text.read_scalar::<VarLenUnicode>());
            text.map(|text| text.to_string()).unwrap_or_default()
        };
        if attribute(&file, "format") != FORMAT {
            return Ok(None);
        }
        let Ok(target) = file.dataset("target") else {
            let what = "has no targets beside which predictions could be drawn; dltrain predict writes them where \
                        it is given --target VIEW";
            return Err(Error::data(path, what));
        };
        let classes = file.dataset("class");
        let is_of_classes = classes.is_ok();
        let named = |name| file.dataset(name).or_data(path);
        let (names, output) = (named("sample")?, classes.or_else(|_| named("output"))?);
        let (samples, shapes) = (names.size(), [output.shape(), target.shape()]);
        let are_of_samples = shapes.iter().all(|shape| shape.first() == Some(&samples));
        if output.size() == 0 || !are_of_samples || alike(&shapes[0], &shapes[1]) != shapes[1] {
            let what = format!("outputs {:?} and targets {:?}", shapes[0], shapes[1]);
            return Err(Error::data(path, what));
        }
        let (path, unit) = (path.into(), attribute(&output, "units"));
        Ok(Some(PredictedFields { path, names, samples, unit, data: [output, target], is_of_classes }))
    }

    /// What a sample is called.
    ///
    /// # Errors
    /// `Data`.
    pub fn name(&self, sample: usize) -> Result<String> {
        let name = self.names.read_slice_1d::<VarLenUnicode, _>(sample..sample + 1);
        let name = name.map_err(|error| self.unread(&error))?;
        Ok(name.first().map(ToString::to_string).unwrap_or_default())
    }

    /// The axes of an output but that of channels.
    pub fn places(&self) -> Vec<usize> {
        self.data[0].shape().split_off((2 - usize::from(self.is_of_classes)).min(self.data[0].ndim()))
    }

    /// Numbers of all samples.
    pub fn numbers(&self) -> usize {
        self.data[0].size()
    }

    /// Hands over all outputs, or classes, and what they were to be, some at a time, in order, with how many there were
    /// before.
    ///
    /// # Errors
    /// `Data`.
    pub fn each_piece(&self, mut piece: impl FnMut(usize, &[f32], &[f32])) -> Result<()> {
        let shape = self.data[0].shape();
        let inner = |axis: usize| shape[axis + 1..].iter().product::<usize>();
        // Of this axis some places are read at a time.
        let axis = (0..shape.len()).find(|&axis| inner(axis) <= PIECE).unwrap_or(0);
        let (step, numbers) = ((PIECE / inner(axis)).clamp(1, shape[axis]), inner(axis));
        for outer in 0..shape[..axis].iter().product() {
            let before = place_in(&shape[..axis], outer).into_iter().map(|at| [at, 1, at + 1]);
            for start in (0..shape[axis]).step_by(step) {
                let own = [start, 1, (start + step).min(shape[axis])];
                let behind = shape[axis + 1..].iter().map(|&along| [0, 1, along]);
                let ranges: Vec<[usize; 3]> = before.clone().chain([own]).chain(behind).collect();
                let [output, target] = self.read(&ranges)?;
                piece((outer * shape[axis] + start) * numbers, &output, &target);
            }
        }
        Ok(())
    }

    /// Of a sample every so many places of its last axes, as many as are given; of those before them the middle, and
    /// the first channel.
    ///
    /// # Errors
    /// `Data`.
    pub fn map(&self, sample: usize, apart: &[usize]) -> Result<[Vec<f32>; 2]> {
        let (shape, places) = (self.data[0].shape(), self.places().len());
        let last = shape.len() - apart.len();
        let range = |(axis, &along): (usize, &usize)| match axis {
            0 => [sample, 1, sample + 1],
            _ if axis >= last => [0, apart[axis - last], along],
            _ if axis >= shape.len() - places => [along / 2, 1, along / 2 + 1],
            _ => [0, 1, 1],
        };
        self.read(&shape.iter().enumerate().map(range).collect::<Vec<_>>())
    }

    /// Outputs and targets at some places. A range says of an axis the first place, how far apart places are, and where
    /// they end. Either of the two may lack axes of one place.
    fn read(&self, ranges: &[[usize; 3]]) -> Result<[Vec<f32>; 2]> {
        let shape = self.data[0].shape();
        let read = |data: &Dataset| -> hdf5::Result<Vec<f32>> {
            let mut long =
                shape.iter().zip(ranges).filter(|(along, _)| **along != 1).map(|(_, range)| *range);
            let slices = data.shape().into_iter().map(|along| {
                let range = if along == 1 { None } else { long.next() };
                let [start, step, end] = range.unwrap_or([0, 1, 1]);
                SliceOrIndex::SliceTo { start, step, end, block: 1 }
            });
            let slab = Hyperslab::new(slices.collect::<Vec<_>>());
            Ok(data.read_slice::<f32, _, IxDyn>(slab)?.into_raw_vec_and_offset().0)
        };
        let [output, target] = &self.data;
        let read = |data| read(data).map_err(|error| self.unread(&error));
        Ok([read(output)?, read(target)?])
    }

    fn unread(&self, error: &hdf5::Error) -> Error {
        Error::data(&self.path, format!("cannot be read: {error}"))
    }
}

/// Writes where samples and places are, and on which axes the data sets lie.
fn name_axes(file: &File, origin: &FieldOrigin) -> hdf5::Result<()> {
    let of_samples = coordinates(file, &origin.of_samples, Some("where the first input of each sample is"))?;
    let of_places = coordinates(file, &origin.coordinates, None)?;
    let (scales, others): (Vec<_>, Vec<_>) =
        of_places.into_iter().zip(&origin.coordinates).partition(|(_, of)| of.axes.is_empty());
    let scales = scales.into_iter().map(|(name, _)| name).chain(["sample".into()]);
    let mut dimensions = Dimensions::new(file, scales);
    let axes = [&["sample".to_string()], &origin.axes[..]].concat();
    of_samples.iter().try_for_each(|name| dimensions.name(name, &axes[..1]))?;
    for (name, of) in &others {
        let axes: Vec<String> = of.axes.iter().map(|(axis, _)| axis.clone()).collect();
        dimensions.name(name, &axes)?;
    }
    let output = file.dataset("output")?;
    text(&output, "axes", &axes.join(" "))?;
    let beside: Vec<String> =
        of_samples.into_iter().chain(others.into_iter().map(|(name, _)| name)).collect();
    if !beside.is_empty() {
        text(&output, "coordinates", &beside.join(" "))?;
    }
    dimensions.name("output", &axes)?;
    let points: Vec<String> =
        axes.iter().enumerate().filter(|(at, _)| *at != 1).map(|(_, axis)| axis.clone()).collect();
    for name in ["target", "class"] {
        let Ok(data) = file.dataset(name) else { continue };
        // As those of the output, or without its channels.
        let own = [&axes, &points].into_iter().find(|axes| axes.len() == data.ndim());
        dimensions.name(name, &own.cloned().unwrap_or_else(|| vec!["place".into(); data.ndim()]))?;
    }
    dimensions.finish()
}

/// Writes where samples or places are; the names of what is written.
fn coordinates<T: H5Type>(
    file: &File,
    all: &[Coordinate<T>],
    description: Option<&str>,
) -> hdf5::Result<Vec<String>> {
    let mut names = Vec::new();
    for Coordinate { name, places, unit, calendar, axes } in all {
        // Other data sets of the file have these names.
        let is_taken =
            ["sample", "output", "target", "class"].contains(&&**name) || file.dataset(name).is_ok();
        let name = if is_taken { format!("coordinate_{name}") } else { name.clone() };
        let shape: Vec<usize> = axes.iter().map(|(_, along)| *along).collect();
        let shape = if shape.is_empty() { vec![places.len()] } else { shape };
        let axis = file.new_dataset::<T>().shape(shape).create(name.as_str())?;
        axis.write_raw(places)?;
        let said =
            [("description", description), ("units", unit.as_deref()), ("calendar", calendar.as_deref())];
        said.into_iter().try_for_each(|(name, of)| of.map_or(Ok(()), |of| text(&axis, name, of)))?;
        names.push(name);
    }
    Ok(names)
}

/// The axes of a target, or those of what it is compared with where axes of one place are the difference.
fn alike(target: &[usize], other: &[usize]) -> Vec<usize> {
    if squeezed(target) == squeezed(other) { other.to_vec() } else { target.to_vec() }
}

/// Places of a chunk: all of a sample where that is no more than a megabyte, and of small ones several.
fn chunk(samples: usize, shape: &[usize]) -> Vec<usize> {
    const MOST: usize = 1 << 18;
    const MOST_OF_SEVERAL: usize = 1 << 14;
    let mut room = MOST;
    let mut chunk: Vec<usize> = Vec::new();
    for &along in shape.iter().rev() {
        let places = along.clamp(1, room);
        // Where an axis is cut, those before it have one place.
        room = if places < along { 1 } else { room / places };
        chunk.push(places);
    }
    let one: usize = chunk.iter().product();
    chunk.push((MOST_OF_SEVERAL / one).clamp(1, samples.max(1)));
    chunk.reverse();
    chunk
}
