//! Opening a data set of whichever format.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Dataset, Frame, Jpeg, Samples, Sets, Wanted, cifar, folder, idx, packed, synthetic_shapes, tar};
use crate::config::{Augment, Augmentation, DataFormat, most};
use crate::error::{Error, Result};

/// What a data set consists of before it is prepared for a model.
pub struct Parts {
    /// The training images.
    pub training: Arc<dyn Dataset>,
    /// The test images, where there are any.
    pub test: Option<Arc<dyn Dataset>>,
}

/// Opens a data set and prepares it for a model. The path "synthetic:shapes" is a set that is computed.
///
/// # Errors
/// `Data`, with the name of what is missing, unreadable, damaged or at odds with the rest; `Usage` when flags do not
/// fit the data.
pub fn open(path: &Path, wanted: &Wanted) -> Result<Sets> {
    let Parts { training, test } = parts(path, wanted)?;
    let classes = training.class_names().len();
    if classes > wanted.classes {
        let what =
            format!("{classes} classes, but the model has {}; use --classes {classes}", wanted.classes);
        return Err(Error::data(path, what));
    }
    let augment = match &wanted.input.augment {
        Some(augment) => augment.clone(),
        None if training.frame() == Frame::Centre => Augment::imagenet(),
        None => Augment::default(),
    };
    if wanted.sample[0] != 3 && augment.has(Augmentation::Lighting) {
        return Err(Error::usage("--augment lighting: the model reads grey images"));
    }
    countable(path, training.len(), wanted.input.repeat)?;
    let samples = Samples::new(training.clone(), wanted.sample, &*training);
    Ok(Sets {
        training: samples.for_training(augment, wanted.seed, wanted.input.repeat),
        test: test.map(|test| Samples::new(test, wanted.sample, &*training)),
    })
}

/// Opens images to be told apart: those that a data set has to test with, or all of one that has none of these; or an
/// image file, or a directory with image files in it, which have no classes. Their classes need not be the model's.
///
/// # Errors
/// As for `open`.
pub fn open_to_predict(path: &Path, wanted: &Wanted) -> Result<Sets> {
    let Parts { training, test } = match wanted.input.format {
        None if holds_images(path) => {
            let files = folder::files(path, Jpeg::find(wanted.input.jpeg_decoder)?)?;
            Parts { training: Arc::new(files), test: None }
        }
        _ => parts(path, wanted)?,
    };
    let samples = |set| Samples::new(set, wanted.sample, &*training).without_labels();
    Ok(Sets {
        test: Some(samples(test.unwrap_or_else(|| training.clone()))),
        training: samples(training.clone()),
    })
}

/// Whether it is an image file, or a directory with one in it.
fn holds_images(path: &Path) -> bool {
    let is_image =
        |path: &Path| path.file_name().and_then(|name| name.to_str()).is_some_and(folder::is_image);
    match path.is_dir() {
        true => {
            entries(path).is_ok_and(|entries| entries.iter().any(|path| is_image(path) && !path.is_dir()))
        }
        false => is_image(path),
    }
}

/// Whether an epoch of so many images, each so often, can be put in order.
fn countable(path: &Path, images: usize, repeat: usize) -> Result<()> {
    let limit = most::IMAGES;
    match limit / images.max(1) {
        0 => Err(Error::data(path, format!("{images} images; there can be {limit}"))),
        often if repeat > often => Err(Error::usage(format!(
            "--repeat-data {repeat}: an epoch can have {limit} images, and {} has {images}: at most {often}",
            path.display()
        ))),
        _ => Ok(()),
    }
}

/// Opens a data set as it lies there.
///
/// # Errors
/// As for `open`.
pub fn parts(path: &Path, wanted: &Wanted) -> Result<Parts> {
    if let Some(what) = path.to_str().and_then(|text| text.strip_prefix("synthetic:")) {
        return synthetic_shapes::open(what, wanted);
    }
    let format = match wanted.input.format {
        Some(format) => format,
        None => recognise(path)?,
    };
    let jpeg = Jpeg::find(wanted.input.jpeg_decoder)?;
    match format {
        DataFormat::Idx => idx::open(path, wanted),
        DataFormat::Cifar => cifar::open(path, wanted),
        DataFormat::Folder => folder::open(path, jpeg),
        DataFormat::Tar => tar::open(path, jpeg),
        DataFormat::Packed => packed::open(path, jpeg),
    }
}

/// The format of what lies there, by the names of files.
fn recognise(path: &Path) -> Result<DataFormat> {
    let ending = |name: &Path, wanted: &str| name.extension().is_some_and(|ending| ending == wanted);
    if ending(path, "h5") && !path.is_dir() {
        return Ok(DataFormat::Packed);
    }
    let metadata = fs::metadata(path).map_err(|error| unusable(path, &error))?;
    if metadata.is_file() {
        return match path {
            path if ending(path, "tar") => Ok(DataFormat::Tar),
            _ => Err(Error::data(path, "not a directory, and neither an .h5 nor a .tar file")),
        };
    }
    let entries = entries(path)?;
    let any = |test: &dyn Fn(&str) -> bool| {
        entries.iter().any(|entry| entry.file_name().and_then(|name| name.to_str()).is_some_and(test))
    };
    if any(&|name| name.starts_with("train-images") || name.starts_with("t10k-")) {
        return Ok(DataFormat::Idx);
    }
    if any(&|name| cifar::FILES.contains(&name)) {
        return Ok(DataFormat::Cifar);
    }
    let holds = |wanted: &str| -> bool {
        let inner =
            entries.iter().filter(|entry| entry.is_dir()).filter_map(|entry| fs::read_dir(entry).ok());
        let mut inner = inner.flatten().take(1000).flatten().map(|entry| entry.path());
        entries.iter().any(|entry| ending(entry, wanted)) || inner.any(|entry| ending(&entry, wanted))
    };
    if holds("h5") {
        return Ok(DataFormat::Packed);
    }
    if holds("tar") {
        return Ok(DataFormat::Tar);
    }
    if entries.iter().any(|entry| entry.is_dir()) {
        return Ok(DataFormat::Folder);
    }
    Err(Error::data(
        path,
        "no data set: neither IDX files (train-images-idx3-ubyte), nor CIFAR's (data_batch_1.bin, train.bin), nor .h5 or \
         .tar files, nor a directory a class",
    ))
}

/// What lies in a directory, sorted by name.
///
/// # Errors
/// `Data`: it is not there, or cannot be read.
pub(super) fn entries(directory: &Path) -> Result<Vec<PathBuf>> {
    let list =
        || -> std::io::Result<Vec<_>> { fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect() };
    let mut entries = list().map_err(|error| unusable(directory, &error))?;
    entries.sort_unstable();
    Ok(entries)
}

/// Directories that are read already, by device and number: a link may lead back to one, and round for ever.
pub(super) struct Seen {
    directories: HashSet<(u64, u64)>,
    /// The first link that led to one of them.
    again: Option<PathBuf>,
}

impl Seen {
    /// Nothing yet.
    pub fn none() -> Seen {
        Seen { directories: HashSet::new(), again: None }
    }

    /// A directory that is read, and those around it, which would lead to it again.
    pub fn above(directory: &Path) -> Result<Seen> {
        let mut seen = Seen::none();
        let whole = directory.canonicalize().map_err(|error| Error::data(directory, error))?;
        for directory in whole.ancestors() {
            seen.is_new(directory)?;
        }
        Ok(seen)
    }

    /// Whether a directory is read for the first time.
    pub fn is_new(&mut self, directory: &Path) -> Result<bool> {
        let there = fs::metadata(directory).map_err(|error| Error::data(directory, error))?;
        let is_new = self.directories.insert((there.dev(), there.ino()));
        if !is_new && self.again.is_none() {
            self.again = Some(directory.to_path_buf());
        }
        Ok(is_new)
    }

    /// Says that a link was not followed, if one was not.
    pub fn tell(&self) {
        if let Some(link) = &self.again {
            log::info!("{}: leads to a directory that is read already, and is not followed", link.display());
        }
    }
}

fn unusable(path: &Path, error: &std::io::Error) -> Error {
    match error.kind() {
        std::io::ErrorKind::NotFound => Error::data(path, "no such directory"),
        std::io::ErrorKind::NotADirectory => Error::data(path, "not a directory"),
        _ => Error::data(path, error),
    }
}
