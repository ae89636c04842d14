//! A directory a class, with JPEG and PNG files in it, at any depth: how ImageNet is kept.
//!
//! `DIR/train` and `DIR/val` (or `validation`, `test`) hold the classes; where there is no `train`, DIR itself does,
//! and there is nothing to test on. Classes are numbered by their sorted names, as torchvision's ImageFolder does.
//! Links are followed, to each directory once.

use std::collections::{HashMap, VecDeque};
use std::fs;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::detect::{Parts, Seen, entries};
use super::picture::{self, Picture};
use super::{Colours, Dataset, Frame, Jpeg};
use crate::error::{Error, Result};
use crate::files::{self, crc32};

/// What parts for testing are called.
pub const TEST_NAMES: [&str; 3] = ["val", "validation", "test"];

/// Files that are opened at the start, to find out at once that the whole set cannot be read.
const TRIED: usize = 256;

/// Of what ranks compare: files whose sizes are asked for, files that are opened, and bytes that are read at the start
/// and at the end of each. More would take long where a file system is across a network.
const SIZED: usize = 16_384;
const SAMPLED: usize = 64;
const ENDS: u64 = 4096;

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

/// An image file, or all below a directory, without classes.
pub fn files(path: &Path, jpeg: Jpeg) -> Result<Folder> {
    let mut found = Found { files: Vec::new(), links: VecDeque::new(), seen: Seen::none() };
    let directory = match path.is_dir() {
        true => {
            found.seen = Seen::above(path)?;
            found.collect(path, "", 0)?;
            found.follow()?;
            path
        }
        false => {
            files::check(path).map_err(|error| Error::data(path, error))?;
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            found.files.push((name.into(), 0));
            files::directory_of(path)
        }
    };
    let (files, labels) = found.files.into_iter().unzip();
    let classes = Vec::new();
    let mut folder = Folder { directory: directory.to_path_buf(), files, labels, classes, content: 0, jpeg };
    folder.content = folder.content();
    Ok(folder)
}

/// Files and their classes.
pub struct Folder {
    directory: PathBuf,
    /// Relative to the directory, sorted.
    files: Vec<String>,
    labels: Vec<i32>,
    classes: Vec<String>,
    /// CRC-32 of sizes and of bytes of some.
    content: u32,
    jpeg: Jpeg,
}

impl Folder {
    /// `known`: the classes of the training set, which this one's must be among.
    fn list(directory: &Path, known: Option<&[String]>, jpeg: Jpeg) -> Result<Folder> {
        let (places, classes) = classes(directory)?;
        let label = |place: &PathBuf, class: &String| match known {
            None => Ok(classes.binary_search(class).unwrap_or_default()),
            Some(known) => known
                .iter()
                .position(|known| known == class)
                .ok_or_else(|| Error::data(place, "a class that the training set does not have")),
        };
        let mut found = Found { files: Vec::new(), links: VecDeque::new(), seen: Seen::above(directory)? };
        for place in &places {
            if !found.seen.is_new(place)? {
                return Err(Error::data(
                    place,
                    "leads to the directory of another class, or to one around it",
                ));
            }
        }
        for (place, class) in places.iter().zip(&classes) {
            let label = label(place, class)? as i32;
            found.collect(place, class, label)?;
        }
        found.follow()?;
        let mut counts = vec![0; known.unwrap_or(&classes).len()];
        found.files.iter().for_each(|(_, label)| counts[*label as usize] += 1);
        for (place, class) in places.iter().zip(&classes) {
            if counts[label(place, class)?] == 0 {
                let what = "a class without images (no .jpg, .jpeg or .png file in it)";
                return Err(Error::data(place, what));
            }
        }
        if found.files.is_empty() {
            return Err(Error::data(
                directory,
                "no images: wanted are directories, one a class, with .jpg, .jpeg or .png files",
            ));
        }
        let (files, labels) = found.files.into_iter().unzip();
        let classes = known.map_or(classes, <[String]>::to_vec);
        let mut folder =
            Folder { directory: directory.to_path_buf(), files, labels, classes, content: 0, jpeg };
        folder.try_some()?;
        folder.content = folder.content();
        Ok(folder)
    }

    /// What the files hold, as far as that can be asked at every start. What cannot be read differs from what can.
    fn content(&self) -> u32 {
        let spread = |count: usize| (0..count).map(move |at| at * self.files.len() / count);
        let size = |index| fs::metadata(self.path(index)).map_or(u64::MAX, |file| file.len());
        let sizes = spread(self.files.len().min(SIZED)).flat_map(|index| size(index).to_le_bytes());
        let mut bytes: Vec<u8> = sizes.collect();
        for index in spread(self.files.len().min(SAMPLED)) {
            bytes.extend(ends(&self.path(index)).unwrap_or_default());
        }
        crc32(&[&bytes])
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
            let mut file = files::open(&path).map_err(|error| Error::data(&path, error))?;
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
        files::read(&path).map_err(|error| Error::data(&path, error))
    }

    fn path(&self, index: usize) -> PathBuf {
        self.directory.join(&self.files[index])
    }
}

/// The first and the last bytes of a file.
fn ends(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = files::open(path)?;
    let mut bytes = Vec::new();
    file.by_ref().take(ENDS).read_to_end(&mut bytes)?;
    let last = file.metadata()?.len().saturating_sub(ENDS);
    file.seek(SeekFrom::Start(last.max(bytes.len() as u64)))?;
    file.take(ENDS).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The directories in one, and their names, sorted: the classes.
fn classes(directory: &Path) -> Result<(Vec<PathBuf>, Vec<String>)> {
    let (mut places, mut names) = (Vec::new(), Vec::new());
    for place in entries(directory)?.into_iter().filter(|path| path.is_dir()) {
        match place.file_name().and_then(|name| name.to_str()) {
            None => return Err(Error::data(&place, "a class whose name is not UTF-8")),
            Some(name) if name.starts_with('.') => {}
            Some(name) => {
                names.push(name.to_string());
                places.push(place);
            }
        }
    }
    Ok((places, names))
}

/// What lies in a set's directories.
struct Found {
    /// Paths from the set's directory, and classes.
    files: Vec<(String, i32)>,
    /// Links to directories, which come last: what lies in a class belongs there, whoever leads to it.
    links: VecDeque<(PathBuf, String, i32)>,
    seen: Seen,
}

impl Found {
    /// Adds the images below a directory, sorted.
    fn collect(&mut self, directory: &Path, prefix: &str, label: i32) -> Result<()> {
        for path in entries(directory)? {
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
                return Err(Error::data(&path, "a name that is not UTF-8"));
            };
            let relative = if prefix.is_empty() { name.into() } else { format!("{prefix}/{name}") };
            if is_image(name) {
                self.files.push((relative, label));
            } else if name.starts_with('.') || !path.is_dir() {
                continue;
            } else if path.is_symlink() {
                self.links.push_back((path, relative, label));
            } else if self.seen.is_new(&path)? {
                self.collect(&path, &relative, label)?;
            }
        }
        Ok(())
    }

    /// Adds what links lead to and is not there yet, in its place.
    fn follow(&mut self) -> Result<()> {
        if self.links.is_empty() {
            return Ok(());
        }
        while let Some((path, relative, label)) = self.links.pop_front() {
            if self.seen.is_new(&path)? {
                self.collect(&path, &relative, label)?;
            }
        }
        self.seen.tell();
        self.files.sort_by(|(a, _), (b, _)| Path::new(a).cmp(Path::new(b)));
        Ok(())
    }
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

    /// Of the names, and of what was asked of the files at the start: reading all would take as long as an epoch.
    fn fingerprint(&self) -> String {
        let names: String = self.files.iter().map(|name| format!("{name}\n")).collect();
        format!(
            "{} images in {} classes, CRC-32 of their names {:08x}, of their content {:08x}",
            self.files.len(),
            self.classes.len(),
            crc32(&[names.as_bytes()]),
            self.content
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
