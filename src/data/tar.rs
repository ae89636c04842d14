//! Tar files as WebDataset has them, or with a directory a class.
//!
//! `xxx.jpg` and, beside it, `xxx.cls` with the number of its class; without any `.cls`, the name of the directory that
//! an image lies in is its class. Files whose names start with `train` are for training, with `val` or `test` for
//! testing (or they lie in directories of these names); where no name says so all are for training. At the start the
//! headers of every file are read, not the images.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::detect::{Parts, Seen, entries};
use super::folder::{TEST_NAMES, is_image};
use super::picture::{self, Picture};
use super::{Colours, Dataset, Frame, Jpeg};
use crate::error::{Error, Result};
use crate::files::{Kept, crc32};

/// A `.cls` file that is longer is none.
const LONGEST_LABEL: u64 = 64;

/// Opens one tar file, or all in a directory and in those within.
///
/// # Errors
/// `Data`: a file that cannot be read or is no tar file, an image without a class, no image at all.
pub fn open(path: &Path, jpeg: Jpeg) -> Result<Parts> {
    let is_tar = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "tar");
    let mut files = vec![path.to_path_buf()];
    if path.is_dir() {
        files = entries(path)?.into_iter().filter(is_tar).collect();
        let mut seen = Seen::above(path)?;
        for directory in entries(path)?.into_iter().filter(|entry| entry.is_dir()) {
            if seen.is_new(&directory)? {
                files.extend(entries(&directory)?.into_iter().filter(is_tar));
            }
        }
        seen.tell();
    }
    let begins = |file: &Path, names: &[&str]| {
        let inner = file.strip_prefix(path).unwrap_or(file).to_string_lossy().into_owned();
        names.iter().any(|name| inner.starts_with(name))
    };
    let (test, mut training): (Vec<PathBuf>, Vec<PathBuf>) =
        files.into_iter().partition(|file| begins(file, &TEST_NAMES));
    if training.iter().any(|file| begins(file, &["train"])) {
        training.retain(|file| begins(file, &["train"]));
    }
    let training = Shards::list(path, training, None, jpeg)?;
    let test = match test.is_empty() {
        true => None,
        false => Some(Shards::list(path, test, Some(&training.classes), jpeg)?),
    };
    Ok(Parts { training: Arc::new(training), test: test.map(|test| Arc::new(test) as Arc<dyn Dataset>) })
}

/// Where an image lies.
struct Entry {
    file: usize,
    at: u64,
    bytes: u64,
    name: String,
}

pub struct Shards {
    paths: Vec<PathBuf>,
    files: Vec<Kept>,
    images: Vec<Entry>,
    labels: Vec<i32>,
    classes: Vec<String>,
    jpeg: Jpeg,
}

impl Shards {
    fn list(place: &Path, paths: Vec<PathBuf>, known: Option<&[String]>, jpeg: Jpeg) -> Result<Shards> {
        let (mut files, mut images, mut numbers) = (Vec::new(), Vec::new(), HashMap::new());
        for (index, path) in paths.iter().enumerate() {
            let read = || -> std::result::Result<Kept, String> {
                let (kept, file) = Kept::open(path).map_err(|error| error.to_string())?;
                index_file(index, &file, &mut images, &mut numbers)?;
                Ok(kept)
            };
            let mut read = read;
            files.push(read().map_err(|what| Error::data(path, what))?);
        }
        if images.is_empty() {
            let what = match paths.is_empty() {
                true => "no .tar files there",
                false => "no .jpg, .jpeg or .png images in these tar files",
            };
            return Err(Error::data(place, what));
        }
        let (labels, classes) = if numbers.is_empty() {
            by_directory(&images, known).map_err(|(file, what)| Error::data(&paths[file], what))?
        } else {
            by_number(&images, &numbers).map_err(|(file, what)| Error::data(&paths[file], what))?
        };
        let classes = known.filter(|known| known.len() >= classes.len()).map_or(classes, <[String]>::to_vec);
        Ok(Shards { paths, files, images, labels, classes, jpeg })
    }

    fn bytes(&self, index: usize) -> Result<Vec<u8>> {
        let entry = &self.images[index];
        let mut bytes = vec![0; entry.bytes as usize];
        match self.files[entry.file].read_exact_at(&mut bytes, entry.at) {
            Ok(()) => Ok(bytes),
            Err(error) => Err(self.wrong(index, error)),
        }
    }

    fn wrong(&self, index: usize, what: impl std::fmt::Display) -> Error {
        let entry = &self.images[index];
        Error::data(&self.paths[entry.file], format!("{}: {what}", entry.name))
    }
}

/// Adds the images of one file, and the classes that `.cls` files give.
fn index_file(
    index: usize,
    file: &File,
    images: &mut Vec<Entry>,
    numbers: &mut HashMap<(usize, String), i32>,
) -> std::result::Result<(), String> {
    let size = file.metadata().map_err(|error| error.to_string())?.len();
    // The library's texts quote the file.
    let wrong = |error: std::io::Error| {
        format!("corrupt or truncated tar file ({})", error.to_string().escape_debug())
    };
    let mut archive = tar::Archive::new(BufReader::new(file));
    let mut found = 0;
    for entry in archive.entries_with_seek().map_err(wrong)? {
        let mut entry = entry.map_err(wrong)?;
        found += 1;
        if !entry.header().entry_type().is_file() {
            continue;
        }
        let (at, bytes) = (entry.raw_file_position(), entry.size());
        let name = entry.path().map_err(wrong)?.to_string_lossy().into_owned();
        if at.checked_add(bytes).is_none_or(|end| end > size) {
            return Err(format!("truncated: {name} would end behind the file's end"));
        }
        if let Some(key) = name.strip_suffix(".cls") {
            let mut text = String::new();
            entry.by_ref().take(LONGEST_LABEL).read_to_string(&mut text).map_err(wrong)?;
            let class = text.trim().parse().ok().filter(|class| (0..1_000_000).contains(class));
            let class = class.ok_or_else(|| format!("{name}: {:?} is no class number", text.trim()))?;
            numbers.insert((index, key.to_string()), class);
        } else if is_image(name.rsplit('/').next().unwrap_or(&name)) {
            images.push(Entry { file: index, at, bytes, name });
        }
    }
    if found == 0 {
        return Err("empty, or not a tar file".into());
    }
    Ok(())
}

type Labels = std::result::Result<(Vec<i32>, Vec<String>), (usize, String)>;

fn by_number(images: &[Entry], numbers: &HashMap<(usize, String), i32>) -> Labels {
    let label = |entry: &Entry| {
        // A key ends at the first dot of the file's own name.
        let base = entry.name.rfind('/').map_or(0, |slash| slash + 1);
        let end = entry.name[base..].find('.').map_or(entry.name.len(), |dot| base + dot);
        let number = numbers.get(&(entry.file, entry.name[..end].to_string()));
        number.copied().ok_or_else(|| (entry.file, format!("{} has no .cls file beside it", entry.name)))
    };
    let labels = images.iter().map(label).collect::<std::result::Result<Vec<i32>, _>>()?;
    let most = labels.iter().max().map_or(0, |&most| most + 1);
    Ok((labels, (0..most).map(|class| class.to_string()).collect()))
}

fn by_directory(images: &[Entry], known: Option<&[String]>) -> Labels {
    let class = |entry: &Entry| {
        let directory = entry.name.rsplit('/').nth(1).filter(|name| !name.is_empty() && *name != ".");
        let what = || {
            (
                entry.file,
                format!("{}: no .cls file beside it, nor in a directory that names its class", entry.name),
            )
        };
        directory.map(String::from).ok_or_else(what)
    };
    let of: Vec<String> = images.iter().map(class).collect::<std::result::Result<_, _>>()?;
    let mut classes: Vec<String> = of.clone();
    classes.sort_unstable();
    classes.dedup();
    let classes = known.map_or(classes, <[String]>::to_vec);
    let label = |(entry, class): (&Entry, &String)| {
        let known = classes.binary_search(class).map(|label| label as i32);
        known
            .map_err(|_| (entry.file, format!("{}: a class that the training set does not have", entry.name)))
    };
    let labels = images.iter().zip(&of).map(label).collect::<std::result::Result<_, _>>()?;
    Ok((labels, classes))
}

impl Dataset for Shards {
    fn len(&self) -> usize {
        self.images.len()
    }

    fn class_names(&self) -> &[String] {
        &self.classes
    }

    fn label(&self, index: usize) -> i32 {
        self.labels[index]
    }

    fn read(&self, index: usize, picture: &mut Picture) -> Result<()> {
        picture::decode(&self.bytes(index)?, picture, self.jpeg).map_err(|what| self.wrong(index, what))
    }

    fn jpeg(&self) -> Option<Jpeg> {
        Some(self.jpeg)
    }

    fn encoded(&self, index: usize) -> Result<Option<Vec<u8>>> {
        self.bytes(index).map(Some)
    }

    fn name(&self, index: usize) -> String {
        let entry = &self.images[index];
        format!("{}: {}", self.paths[entry.file].display(), entry.name)
    }

    fn fingerprint(&self) -> String {
        let names: String = self
            .images
            .iter()
            .map(|entry| format!("{} {} {}\n", entry.name, entry.at, entry.bytes))
            .collect();
        format!(
            "{} images in tar files, CRC-32 of their names {:08x}",
            self.len(),
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
