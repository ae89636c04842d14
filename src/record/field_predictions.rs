//! What a network gives of samples that are arrays, as HDF5: written sample by sample, since all of them may be more
//! than memory has.

use std::path::{Path, PathBuf};

use hdf5::types::VarLenUnicode;
use hdf5::{Dataset, File, Hyperslab, SliceOrIndex};
use ndarray::{ArrayView, IxDyn};

use super::check_new;
use super::file::{describe, text, texts};
use crate::error::{Error, Result};
use crate::files::Unfinished;

/// By which such a file is known.
const FORMAT: &str = "dltrain field predictions";

/// Where the samples come from, and on which axes their outputs lie.
#[derive(Debug, Default)]
pub struct FieldOrigin {
    /// What each sample is called.
    pub samples: Vec<String>,
    /// The axes of an output without that of samples: what the file calls them, or what they are.
    pub axes: Vec<String>,
    /// What the input's file says of axes: the name of each, and where its places are.
    pub coordinates: Vec<(String, Vec<f32>)>,
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
        #[allow(clippy::type_complexity, reason = "what the file has, once")]
        let create = || -> hdf5::Result<(File, Dataset, Option<(Dataset, Vec<usize>)>, Option<Dataset>)> {
            let file = File::create(&unfinished.temporary)?;
            text(&file, "format", FORMAT)?;
            file.new_dataset_builder().with_data(&texts(&origin.samples)?).create("sample")?;
            for (name, places) in &origin.coordinates {
                // Other data sets of this file have these names.
                let is_taken = ["sample", "output", "target", "class"].contains(&name.as_str())
                    || file.dataset(name).is_ok();
                let name = if is_taken { format!("coordinate_{name}") } else { name.clone() };
                file.new_dataset_builder().with_data(places).create(name.as_str())?;
            }
            let all = |shape: &[usize]| [&[origin.samples.len()], shape].concat();
            let one = |shape: &[usize]| [&[1], shape].concat();
            let output = file.new_dataset::<f32>().shape(all(shape)).chunk(one(shape)).create("output")?;
            text(&output, "description", "what the network gives of each sample")?;
            // As netCDF's files call it.
            origin.unit.iter().try_for_each(|unit| text(&output, "units", unit))?;
            let target = match &origin.target {
                Some(shape) => {
                    let target =
                        file.new_dataset::<f32>().shape(all(shape)).chunk(one(shape)).create("target")?;
                    text(&target, "description", "what it was to give; NaN where that is not known")?;
                    origin.unit.iter().try_for_each(|unit| text(&target, "units", unit))?;
                    Some((target, shape.clone()))
                }
                None => None,
            };
            text(&output, "axes", &[&["sample".to_string()], &origin.axes[..]].concat().join(" "))?;
            let places = shape.get(1..).unwrap_or(&[]);
            let create = || file.new_dataset::<i32>().shape(all(places)).chunk(one(places)).create("class");
            let classes = of_classes.then(create).transpose()?;
            if let Some(classes) = &classes {
                describe(classes, "", "the class with the largest score")?;
            }
            Ok((file, output, target, classes))
        };
        let (file, output, target, classes) = create().map_err(|error| wrong(path, &error))?;
        let shape = shape.to_vec();
        Ok(FieldPredictions { file, output, target, classes, shape, written: 0, unfinished })
    }

    /// Adds the output of the next sample, and its target, where the file has such.
    ///
    /// # Errors
    /// `Output`.
    pub fn push(&mut self, output: &[f32], target: &[f32]) -> Result<()> {
        let at = |shape: &[usize]| {
            let all = shape.iter().map(|&along| (0..along).into());
            let slices = [SliceOrIndex::Index(self.written)].into_iter().chain(all);
            Hyperslab::new(slices.collect::<Vec<SliceOrIndex>>())
        };
        let write = || -> hdf5::Result<()> {
            let view = ArrayView::from_shape(IxDyn(&self.shape), output);
            let view = view.map_err(|error| hdf5::Error::from(error.to_string()))?;
            self.output.write_slice(view, at(&self.shape))?;
            if let Some((all, shape)) = &self.target {
                let view = ArrayView::from_shape(IxDyn(shape), target);
                let view = view.map_err(|error| hdf5::Error::from(error.to_string()))?;
                all.write_slice(view, at(shape))?;
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
            let shape = self.shape.get(1..).unwrap_or(&[]);
            let view = ArrayView::from_shape(IxDyn(shape), &found[..]);
            let view = view.map_err(|error| hdf5::Error::from(error.to_string()))?;
            classes.write_slice(view, at(shape))
        };
        write().map_err(|error| wrong(&self.unfinished.path, &error))?;
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
        file.close().map_err(|error| wrong(&unfinished.path, &error))?;
        unfinished.finish().map_err(|error| wrong(&unfinished.path, &error))
    }
}

/// A file of outputs that has been written, with the targets.
pub struct PredictedFields {
    path: PathBuf,
    /// What each sample is called.
    pub samples: Vec<String>,
    /// Of the numbers; empty where it is not known.
    pub unit: String,
    /// The outputs, or the classes of each point; and what they were to be.
    data: [Dataset; 2],
    is_of_classes: bool,
}

impl PredictedFields {
    /// `None`: the file is none of outputs.
    ///
    /// # Errors
    /// `Data`: it has no targets, or other ones than outputs.
    pub fn open(path: &Path) -> Result<Option<PredictedFields>> {
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
        let read = || -> hdf5::Result<(Vec<VarLenUnicode>, Dataset)> {
            Ok((file.dataset("sample")?.read_raw()?, classes.or_else(|_| file.dataset("output"))?))
        };
        let (samples, output) = read().map_err(|error| Error::data(path, error))?;
        let is_of_samples = |of: &Dataset| of.shape().first() == Some(&samples.len());
        if output.size() == 0
            || output.size() != target.size()
            || ![&output, &target].into_iter().all(is_of_samples)
        {
            return Err(Error::data(
                path,
                format!("outputs {:?} and targets {:?}", output.shape(), target.shape()),
            ));
        }
        Ok(Some(PredictedFields {
            path: path.into(),
            samples: samples.iter().map(ToString::to_string).collect(),
            unit: attribute(&output, "units"),
            data: [output, target],
            is_of_classes,
        }))
    }

    /// Whether outputs and targets are numbers of classes.
    pub fn is_of_classes(&self) -> bool {
        self.is_of_classes
    }

    /// The axes of an output but that of channels.
    pub fn places(&self) -> Vec<usize> {
        self.data[0].shape().split_off((2 - usize::from(self.is_of_classes)).min(self.data[0].ndim()))
    }

    /// Numbers of a sample.
    pub fn numbers(&self) -> usize {
        self.data[0].shape().iter().skip(1).product()
    }

    /// What the network gave of a sample, or the classes, and what it was to give.
    ///
    /// # Errors
    /// `Data`.
    pub fn read(&self, sample: usize) -> Result<[Vec<f32>; 2]> {
        let [output, target] = &self.data;
        let read = |data: &Dataset| -> hdf5::Result<Vec<f32>> {
            let rest = data.shape().into_iter().skip(1).map(|along| SliceOrIndex::from(0..along));
            let slab =
                Hyperslab::new([SliceOrIndex::Index(sample)].into_iter().chain(rest).collect::<Vec<_>>());
            Ok(data.read_slice::<f32, _, IxDyn>(slab)?.into_raw_vec_and_offset().0)
        };
        let wrong = |error: hdf5::Error| Error::data(&self.path, format!("cannot be read: {error}"));
        Ok([read(output).map_err(wrong)?, read(target).map_err(wrong)?])
    }
}

fn wrong(path: &Path, error: &dyn std::fmt::Display) -> Error {
    Error::output(path, format!("cannot write the predictions: {error}"))
}
