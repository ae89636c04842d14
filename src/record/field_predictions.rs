//! What a network gives of samples that are arrays, as HDF5: written sample by sample, since all of them may be more
//! than memory has.

use std::path::{Path, PathBuf};

use hdf5::{Dataset, File, Hyperslab, SliceOrIndex};
use ndarray::{ArrayView, IxDyn};

use super::check_new;
use super::file::{describe, text, texts};
use crate::error::{Error, Result};
use crate::files;

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
}

/// A file of outputs that is being written.
pub struct FieldPredictions {
    path: PathBuf,
    temporary: PathBuf,
    file: Option<File>,
    output: Option<Dataset>,
    /// The class of each point, where the outputs are scores of classes.
    classes: Option<Dataset>,
    /// The axes of an output, and samples written.
    shape: Vec<usize>,
    written: usize,
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
        let temporary = files::temporary(path);
        let create = || -> hdf5::Result<(File, Dataset, Option<Dataset>)> {
            let file = File::create(&temporary)?;
            text(&file, "format", "dltrain field predictions")?;
            file.new_dataset_builder().with_data(&texts(&origin.samples)?).create("sample")?;
            for (name, places) in &origin.coordinates {
                // Other data sets of this file have these names.
                let is_taken =
                    ["sample", "output", "class"].contains(&name.as_str()) || file.dataset(name).is_ok();
                let name = if is_taken { format!("coordinate_{name}") } else { name.clone() };
                file.new_dataset_builder().with_data(places).create(name.as_str())?;
            }
            let all = |shape: &[usize]| [&[origin.samples.len()], shape].concat();
            let one = |shape: &[usize]| [&[1], shape].concat();
            let output = file.new_dataset::<f32>().shape(all(shape)).chunk(one(shape)).create("output")?;
            text(&output, "description", "what the network gives of each sample")?;
            // As netCDF's files call it.
            origin.unit.iter().try_for_each(|unit| text(&output, "units", unit))?;
            text(&output, "axes", &[&["sample".to_string()], &origin.axes[..]].concat().join(" "))?;
            let places = shape.get(1..).unwrap_or(&[]);
            let create = || file.new_dataset::<i32>().shape(all(places)).chunk(one(places)).create("class");
            let classes = of_classes.then(create).transpose()?;
            if let Some(classes) = &classes {
                describe(classes, "", "the class with the largest score")?;
            }
            Ok((file, output, classes))
        };
        let (file, output, classes) = create().map_err(|error| wrong(path, &error))?;
        let (path, shape) = (path.to_path_buf(), shape.to_vec());
        let (file, output) = (Some(file), Some(output));
        Ok(FieldPredictions { path, temporary, file, output, classes, shape, written: 0 })
    }

    /// Adds the output of the next sample.
    ///
    /// # Errors
    /// `Output`.
    pub fn push(&mut self, output: &[f32]) -> Result<()> {
        let at = |shape: &[usize]| {
            let all = shape.iter().map(|&along| (0..along).into());
            let slices = [SliceOrIndex::Index(self.written)].into_iter().chain(all);
            Hyperslab::new(slices.collect::<Vec<SliceOrIndex>>())
        };
        let write = || -> hdf5::Result<()> {
            let view = ArrayView::from_shape(IxDyn(&self.shape), output);
            let view = view.map_err(|error| hdf5::Error::from(error.to_string()))?;
            if let Some(output) = &self.output {
                output.write_slice(view, at(&self.shape))?;
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
        write().map_err(|error| wrong(&self.path, &error))?;
        self.written += 1;
        Ok(())
    }

    /// Gives the file its name.
    ///
    /// # Errors
    /// `Output`.
    pub fn finish(mut self) -> Result<()> {
        drop((self.output.take(), self.classes.take()));
        let closed = self.file.take().map_or(Ok(()), File::close);
        closed.map_err(|error| wrong(&self.path, &error))?;
        files::name(&self.temporary, &self.path).map_err(|error| wrong(&self.path, &error))
    }
}

impl Drop for FieldPredictions {
    /// Half a file is no use to anyone.
    fn drop(&mut self) {
        drop((self.output.take(), self.classes.take(), self.file.take()));
        let _ = std::fs::remove_file(&self.temporary);
    }
}

fn wrong(path: &Path, error: &dyn std::fmt::Display) -> Error {
    Error::output(path, format!("cannot write the predictions: {error}"))
}
