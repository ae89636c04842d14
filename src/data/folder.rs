//! A directory a class, with JPEG and PNG files in it, at any depth: how ImageNet is kept.
//!
//! `DIR/train` and `DIR/val` (or `validation`, `test`) hold the classes; where there is no `train`, DIR itself does, and there is
//! nothing to test on. Classes are numbered by their sorted names, as torchvision's ImageFolder does.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::detect::{Parts, entries};
use super::picture::{self, Picture};
use super::{Colours, Dataset, Frame, Jpeg};
use crate::error::{Error, Result};
use crate::files::crc32;

/// What parts for testing are called.
pub const TEST_NAMES: [&str; 3] = ["val", "validation", "test"];

/// Files that are opened at the start, to find out at once that the whole set cannot be read.
const TRIED: usize = 256;

/// Opens the set. Every name is read, and one file of each class tried.
///
/// # Errors
/// `Data`: a directory that cannot be read, a class without images, a file that is none.
pub fn open(directory: &Path, jpeg: Jpeg) -> Result<Parts> {
    let inner = |name: &str| Some(directory.join(name)).filter(|path| path.is_dir());
    let Some(training) = inner("train") else {
        return Ok(Parts { training: Arc::new(Folder::list(directory, None, jpeg)?), test: None });
    };
    let training = Folder::list(&training, None, jpeg)?;
    let test = TEST_NAMES.iter().find_map(|name| inner(name));
    let test = test.map(|test| Folder::list(&test, Some(&training.classes), jpeg)).transpose()?;
    Ok(Parts { training: Arc::new(training), test: test.map(|test| Arc::new(test) as Arc<dyn Dataset>) })
}

/// Files and their classes.
pub struct Folder {
    directory: PathBuf,
    /// Relative to the directory, sorted.
    files: Vec<String>,
    labels: Vec<i32>,
    classes: Vec<String>,
    jpeg: Jpeg,
}

impl Folder {
    /// `known`: the classes of the training set, which this one's must be among.
    fn list(directory: &Path, known: Option<&[String]>, jpeg: Jpeg) -> Result<Folder> {
        let (mut files, mut labels, mut classes) = (Vec::new(), Vec::new(), Vec::new());
        for class in entries(directory)?.into_iter().filter(|path| path.is_dir()) {
            let Some(name) = class.file_name().and_then(|name| name.to_str()) else {
                return Err(Error::data(&class, "a class whose name is not UTF-8"));
            };
            if name.starts_with('.') {
                continue;
            }
            let label = match known {
                None => classes.len(),
                Some(known) => known
                    .iter()
                    .position(|known| known == name)
                    .ok_or_else(|| Error::data(&class, "a class that the training set does not have"))?,
            };
            let before = files.len();
            collect(&class, name, &mut files)?;
            if files.len() == before {
                return Err(Error::data(
                    &class,
                    "a class without images (no .jpg, .jpeg or .png file in it)",
                ));
            }
            labels.resize(files.len(), label as i32);
            classes.push(name.to_string());
        }
        if files.is_empty() {
            return Err(Error::data(
                directory,
                "no images: wanted are directories, one a class, with .jpg, .jpeg or .png files",
            ));
        }
        let classes = known.map_or(classes, <[String]>::to_vec);
        let folder = Folder { directory: directory.to_path_buf(), files, labels, classes, jpeg };
        folder.try_some()?;
        Ok(folder)
    }

    /// One file of each class, or fewer where there are very many.
    fn try_some(&self) -> Result<()> {
        let firsts: HashMap<i32, usize> =
            (0..self.files.len()).rev().map(|index| (self.labels[index], index)).collect();
        let mut firsts: Vec<usize> = firsts.into_values().collect();
        firsts.sort_unstable();
        let every = firsts.len().div_ceil(TRIED);
        let tried: Vec<usize> = firsts.into_iter().step_by(every).collect();
        let mut foreign = 0;
        for &index in &tried {
            let path = self.path(index);
            let mut start = [0; 8];
            let mut file = File::open(&path).map_err(|error| Error::data(&path, error))?;
            let count = file.read(&mut start).map_err(|error| Error::data(&path, error))?;
            foreign += usize::from(!picture::is_known(&start[..count]));
        }
        // A single bad file is skipped later on.
        if foreign == tried.len() {
            let what =
                format!("neither JPEG nor PNG, and so are all of the {foreign} files that were looked at");
            return Err(Error::data(&self.path(tried[0]), what));
        }
        Ok(())
    }

    fn bytes(&self, index: usize) -> Result<Vec<u8>> {
        let path = self.path(index);
        fs::read(&path).map_err(|error| Error::data(&path, error))
    }

    fn path(&self, index: usize) -> PathBuf {
        self.directory.join(&self.files[index])
    }
}

/// Adds the images below a directory, sorted, by their path from the set's.
fn collect(directory: &Path, prefix: &str, files: &mut Vec<String>) -> Result<()> {
    for path in entries(directory)? {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
            return Err(Error::data(&path, "a name that is not UTF-8"));
        };
        let relative = format!("{prefix}/{name}");
        if is_image(name) {
            files.push(relative);
        } else if !name.starts_with('.') && path.is_dir() {
            collect(&path, &relative, files)?;
        }
    }
    Ok(())
}

/// By its name.
pub fn is_image(name: &str) -> bool {
    let ending = name.rsplit_once('.').map_or("", |(_, ending)| ending);
    !name.starts_with('.') && ["jpg", "jpeg", "png"].iter().any(|known| ending.eq_ignore_ascii_case(known))
}

impl Dataset for Folder {
    fn len(&self) -> usize {
        self.files.len()
    }

    fn class_names(&self) -> &[String] {
        &self.classes
    }

    fn label(&self, index: usize) -> i32 {
        self.labels[index]
    }

    fn read(&self, index: usize, picture: &mut Picture) -> Result<()> {
        let bytes = self.bytes(index)?;
        picture::decode(&bytes, picture, self.jpeg).map_err(|what| Error::data(&self.path(index), what))
    }

    fn jpeg(&self) -> Option<Jpeg> {
        Some(self.jpeg)
    }

    fn encoded(&self, index: usize) -> Result<Option<Vec<u8>>> {
        self.bytes(index).map(Some)
    }

    fn name(&self, index: usize) -> String {
        self.path(index).display().to_string()
    }

    /// Of the names: reading every file would take as long as an epoch.
    fn fingerprint(&self) -> String {
        let names: String = self.files.iter().map(|name| format!("{name}\n")).collect();
        format!(
            "{} images in {} classes, CRC-32 of their names {:08x}",
            self.files.len(),
            self.classes.len(),
            crc32(&[names.as_bytes()])
        )
    }

    fn colours(&self) -> Colours {
        Colours::imagenet()
    }

    fn frame(&self) -> Frame {
        Frame::Centre
    }

    fn in_memory(&self) -> bool {
        false
    }
}
