//! Opening a data set of whichever format.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::about::{self, InputSummary};
use super::doubts::Meant;
use super::folder::{self, DirectoryContent};
use super::{
    Dataset, EvaluationCrop, Jpeg, Samples, Sets, Wanted, cifar, idx, packed, synthetic_shapes, tar,
};
use crate::config::{Augment, Augmentation, DataFormat, most};
use crate::error::{Error, OrError, Result};

/// What a data set consists of before it is prepared for a model.
pub struct Parts {
    /// The training images.
    pub training: Arc<dyn Dataset>,
    /// The test images, where there are any.
    pub test: Option<Arc<dyn Dataset>>,
    /// What all was taken for.
    pub about: InputSummary,
}

impl Parts {
    /// The parts of a set that can only be tested on; `untrainable` says why.
    pub fn to_test(images: Arc<dyn Dataset>, about: InputSummary, untrainable: Error) -> Parts {
        let about = InputSummary { untrainable: Some(untrainable), colours: "the test images'", ..about };
        Parts { training: images, test: None, about }
    }

    /// What a run says of them; `predicts`: what the images are is asked.
    pub fn lines(&self, path: &Path, predicts: bool) -> Vec<String> {
        self.about.lines(path, &*self.training, self.test.as_deref(), predicts)
    }
}

/// Opens a data set and prepares it for a model. The path "synthetic:shapes" is a set that is computed.
///
/// # Errors
/// `Data`, with the name of what is missing, unreadable, damaged or at odds with the rest; `Usage` when flags do not
/// fit the data.
pub fn open(path: &Path, wanted: &Wanted) -> Result<Sets> {
    prepared(path, parts(path, wanted)?, wanted)
}

/// Opens a data set to test a network on: on all of it where nothing says what is for training and what for tests.
///
/// # Errors
/// As for `open`; `Data` where there are training images alone.
pub fn open_to_test(path: &Path, wanted: &Wanted) -> Result<Sets> {
    let mut parts = opened(path, wanted, meant(wanted))?;
    if parts.test.is_none() {
        if parts.about.only_training {
            // Where it is a directory, that may be tested on by itself.
            let from = &parts.about.from[0];
            let own = Some(path.join(from)).filter(|own| !from.is_empty() && own.is_dir());
            let what = match own {
                Some(own) => {
                    format!("no images to test on beside {from}; --data {} tests on these", own.display())
                }
                None => {
                    "no images to test on: all are to train on, by the names of files or directories".into()
                }
            };
            return Err(Error::data(path, what));
        }
        parts.test = Some(parts.training.clone());
        parts.about.is_whole = true;
    }
    prepared(path, parts, wanted)
}

fn prepared(path: &Path, mut parts: Parts, wanted: &Wanted) -> Result<Sets> {
    let classes = parts.training.class_names();
    let empty = match is_computed(path) {
        true => Vec::new(),
        false => without_images(&*parts.training),
    };
    if classes.len() > wanted.classes {
        return Err(Error::data(path, too_many(&empty, classes.len(), wanted.classes)));
    }
    if !empty.is_empty() {
        let names: Vec<&str> = empty.iter().map(|&class| &*classes[class]).collect();
        let purpose = if parts.about.is_whole { "test" } else { "train" };
        let what = format!("classes without an image to {purpose} on: {}", about::listed(&names));
        parts.about.notes.push(what);
    }
    let said = parts.lines(path, false);
    let Parts { training, test, about } = parts;
    let augment = match &wanted.input.augment {
        Some(augment) => augment.clone(),
        None if training.frame() == EvaluationCrop::Centre => Augment::imagenet(),
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
        said,
        colours: about.colours,
        begins_at_0: empty.first() != Some(&0),
        seconds: None,
    })
}

/// Whether it is no file but a set that is computed.
fn is_computed(path: &Path) -> bool {
    path.to_str().is_some_and(|text| text.starts_with(SYNTHETIC))
}

/// The classes that no image has.
fn without_images(set: &dyn Dataset) -> Vec<usize> {
    let mut has = vec![false; set.class_names().len()];
    for index in 0..set.len() {
        if let Some(has) = has.get_mut(set.label(index) as usize) {
            *has = true;
        }
    }
    (0..has.len()).filter(|&class| !has[class]).collect()
}

/// What is wrong where there are more classes than a model has, of which these have no image.
fn too_many(empty: &[usize], classes: usize, of_model: usize) -> String {
    let usual = format!("{classes} classes, but the model has {of_model}; use --classes {classes}");
    match empty.first() {
        None => usual,
        Some(first) => format!(
            "labels up to {}, as they are counted from 0, are {usual}. But no image has class {first}{}: are labels \
             counted from 1, or left out?",
            classes - 1,
            if empty.len() > 1 { format!(", nor have {} others", empty.len() - 1) } else { String::new() }
        ),
    }
}

/// Opens images to be told apart: those that a data set has to test with, or all of one that has none of these; or an
/// image file, or a directory of image files, which have no classes. Their classes need not be the model's. `known`:
/// what the weights call the classes, where they do.
///
/// # Errors
/// As for `open`.
pub fn open_to_predict(path: &Path, wanted: &Wanted, known: &[String]) -> Result<Sets> {
    let is_unsaid = wanted.input.format.is_none();
    let are_loose = is_unsaid && holds_images(path);
    let (parts, said) = if are_loose || is_unsaid && are_albums(path, wanted, known) {
        let (files, left_out) = folder::files(path, Jpeg::find(wanted.input.jpeg_decoder)?)?;
        if files.len() == 0 {
            return Err(Error::data(path, "no .jpg, .jpeg or .png images there, nor in its directories"));
        }
        let about = InputSummary { left_out, colours: "ImageNet's", ..InputSummary::default() };
        let mut said = vec![format!("data: {}, image files: {}", path.display(), files.len())];
        if !are_loose {
            said[0].push_str("; no directory is a class (--data-format folder makes each of them one)");
        }
        said.extend(about.left_out.line());
        (Parts { training: Arc::new(files), test: None, about }, said)
    } else {
        let parts = opened(path, wanted, Meant::ToPredict)?;
        let said = parts.lines(path, true);
        (parts, said)
    };
    let Parts { training, test, about } = parts;
    let samples = |set| Samples::new(set, wanted.sample, &*training).without_labels();
    Ok(Sets {
        test: Some(samples(test.unwrap_or_else(|| training.clone()))),
        training: samples(training.clone()),
        said,
        colours: about.colours,
        begins_at_0: true,
        seconds: None,
    })
}

/// Whether the directories in a directory are none of classes, as those of photographs by year are: they are not called
/// as the network's classes are, nor, where nobody knows these names, as many.
fn are_albums(path: &Path, wanted: &Wanted, known: &[String]) -> bool {
    if !path.is_dir() || !matches!(recognise(path), Ok(DataFormat::Folder)) {
        return false;
    }
    let Ok(content) = DirectoryContent::of(path) else { return false };
    let has_parts = content.training().is_some();
    let are_classes = content.places.iter().all(|place| known.contains(&DirectoryContent::name(place)));
    let may_be_classes = about::are_numbers(known) && content.places.len() == wanted.classes;
    !(has_parts || are_classes || may_be_classes)
}

/// Whether it is an image file, or a directory with one in it.
fn holds_images(path: &Path) -> bool {
    let is_image = |path: &Path| about::is_image(&DirectoryContent::name(path));
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
    let parts = opened(path, wanted, meant(wanted))?;
    match parts.about.untrainable {
        Some(error) => Err(error),
        None => Ok(parts),
    }
}

/// How a set that is learned from or tested on is meant.
fn meant(wanted: &Wanted) -> Meant {
    match wanted.input.format {
        Some(_) => Meant::AsItIs,
        None => Meant::Unsaid,
    }
}

/// Opens the parts without refusing a set that can only be tested on.
fn opened(path: &Path, wanted: &Wanted, meant: Meant) -> Result<Parts> {
    if let Some(what) = path.to_str().and_then(|text| text.strip_prefix(SYNTHETIC)) {
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
        DataFormat::Folder => folder::open(path, jpeg, meant),
        DataFormat::Tar => tar::open(path, jpeg, meant),
        DataFormat::Packed => packed::open(path, jpeg),
    }
}

/// What a path begins with that stands for a set which is computed.
const SYNTHETIC: &str = "synthetic:";

/// Whether a file's name ends so.
pub(super) fn ends(name: &Path, wanted: &str) -> bool {
    name.extension().is_some_and(|ending| ending.eq_ignore_ascii_case(wanted))
}

/// The format of what lies there, by the names of files.
fn recognise(path: &Path) -> Result<DataFormat> {
    if ends(path, "h5") && !path.is_dir() {
        return Ok(DataFormat::Packed);
    }
    let metadata = fs::metadata(path).map_err(|error| unusable(path, &error))?;
    if metadata.is_file() {
        return match path {
            path if ends(path, "tar") => Ok(DataFormat::Tar),
            path => Err(Error::data(
                path,
                format!("not a directory, and neither an .h5 nor a .tar file{}", in_another_form(path)),
            )),
        };
    }
    let entries = entries(path)?;
    if let Some(format) = by_name(&entries) {
        return Ok(format);
    }
    if DirectoryContent::among(&entries).training().is_some() {
        return Ok(DataFormat::Folder);
    }
    // The parts of shards may have directories of their own.
    let inner = || {
        let inner =
            entries.iter().filter(|entry| entry.is_dir()).filter_map(|entry| fs::read_dir(entry).ok());
        inner.flat_map(|entries| entries.flatten().take(1000)).map(|entry| entry.path())
    };
    let tar = entries
        .iter()
        .find(|entry| ends(entry, "tar"))
        .cloned()
        .or_else(|| inner().find(|entry| ends(entry, "tar")));
    let image = || inner().find(|entry| about::is_image(&DirectoryContent::name(entry)));
    let mut h5 = entries.iter().filter(|entry| ends(entry, "h5"));
    let has_others = h5.clone().next().is_some();
    match (h5.find(|file| packed::is_packed(file)), tar) {
        (Some(_), None) => Ok(DataFormat::Packed),
        (None, Some(tar)) => match image() {
            None => Ok(DataFormat::Tar),
            Some(image) => Err(unclear(path, &tar, "tar", &image, "folder")),
        },
        (Some(packed), Some(tar)) => Err(unclear(path, packed, "packed", &tar, "tar")),
        (None, None) if entries.iter().any(|entry| entry.is_dir()) => Ok(DataFormat::Folder),
        (None, None) if has_others => Ok(DataFormat::Packed),
        (None, None) => Err(Error::data(
            path,
            format!(
                "no data set: neither IDX files (train-images-idx3-ubyte), nor CIFAR's (data_batch_1.bin, train.bin), \
                 nor .h5 or .tar files, nor a directory a class{}",
                entries
                    .iter()
                    .map(|entry| in_another_form(entry))
                    .find(|hint| !hint.is_empty())
                    .unwrap_or_default()
            ),
        )),
    }
}

/// The formats that are known by the names of their files.
fn by_name(entries: &[PathBuf]) -> Option<DataFormat> {
    let any = |test: &dyn Fn(&str) -> bool| entries.iter().any(|entry| test(&DirectoryContent::name(entry)));
    if any(&|name| name.starts_with("train-images") || name.starts_with("t10k-")) {
        return Some(DataFormat::Idx);
    }
    any(&|name| cifar::FILES.contains(&name)).then_some(DataFormat::Cifar)
}

/// The error for a directory that may be a set of either of two formats.
fn unclear(path: &Path, one: &Path, format: &str, other: &Path, or: &str) -> Error {
    let [one, other] = [one, other].map(|inner| inner.strip_prefix(path).unwrap_or(inner).display());
    Error::data(path, format!("holds {one} and {other}: say --data-format {format} or --data-format {or}"))
}

/// What to do with a file that is of no data set as it lies there.
fn in_another_form(path: &Path) -> String {
    let archives = ["zip", "gz", "tgz", "bz2", "xz", "zst", "rar", "7z", "parquet", "tfrecord"];
    let name = DirectoryContent::name(path);
    match () {
        () if archives.iter().any(|ending| ends(path, ending)) => {
            format!("; {name} has to be unpacked into a directory first")
        }
        () if about::is_image(&name) => format!("; {name} lies in no directory that names its class"),
        () if about::is_other_image(&name) => "; images are read from JPEG and PNG files".into(),
        () if cifar::is_pickled(&name) => format!("; {name} is of {}", cifar::PICKLED),
        () => String::new(),
    }
}

/// Where in a directory a data set lies, in words; none where none is found.
pub(super) fn sets_within(directory: &Path) -> Option<String> {
    let inner = DirectoryContent::of(directory).ok()?.places;
    inner.iter().take(1000).find_map(|place| {
        let entries = entries(place).ok()?;
        let found = by_name(&entries).map(|format| match format {
            DataFormat::Cifar => "CIFAR's files",
            _ => "IDX files",
        });
        let is_pickled = |entry: &PathBuf| cifar::is_pickled(&DirectoryContent::name(entry));
        if found.is_none() && entries.iter().any(is_pickled) {
            return Some(format!("{} holds {}", place.display(), cifar::PICKLED));
        }
        let of_parts = || DirectoryContent::among(&entries).training().map(|_| "parts of a data set");
        let what = found.or_else(of_parts)?;
        Some(format!("it holds {what} in {}: --data {}", DirectoryContent::name(place), place.display()))
    })
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
pub(super) struct VisitedDirectories {
    directories: HashSet<(u64, u64)>,
    /// The first link that led to one of them.
    again: Option<PathBuf>,
}

impl VisitedDirectories {
    /// Nothing yet.
    pub fn none() -> VisitedDirectories {
        VisitedDirectories { directories: HashSet::new(), again: None }
    }

    /// A directory that is read, and those around it, which would lead to it again.
    pub fn above(directory: &Path) -> Result<VisitedDirectories> {
        let mut seen = VisitedDirectories::none();
        let whole = directory.canonicalize().or_data(directory)?;
        for directory in whole.ancestors() {
            seen.is_new(directory)?;
        }
        Ok(seen)
    }

    /// Whether a directory is read for the first time.
    pub fn is_new(&mut self, directory: &Path) -> Result<bool> {
        let there = fs::metadata(directory).or_data(directory)?;
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
