//! Tar files as WebDataset has them, or with a directory a class.
//!
//! `xxx.jpg` and, beside it, `xxx.cls` with the number of its class; without any `.cls`, directories are classes as in
//! a folder (`layout`). Files for training and for testing are known by their names, or by directories in them; where
//! nothing says so all are for training. At the start the headers of every file are read (`members`), not the images.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::about::{InputSummary, LeftOut};
use super::detect::{Parts, VisitedDirectories, ends, entries};
use super::doubts::Meant;
use super::layout;
use super::members::{Entry, TarMembers};
use super::picture::{self, Picture};
use super::split::{DataSplit, part, part_of_file};
use super::{Dataset, Jpeg};
use crate::error::{Error, OrError, Result};
use crate::files::{self, KeptFile, crc32};

/// Opens one tar file, or all in a directory and in those within.
///
/// # Errors
/// `Data`: a file that cannot be read or is no tar file, an image without a class, no image at all; what is doubtful.
pub fn open(path: &Path, jpeg: Jpeg, meant: Meant) -> Result<Parts> {
    let mut about = InputSummary { format: "tar files", colours: "ImageNet's", ..InputSummary::default() };
    let paths = tar_files(path, &mut about.left_out)?;
    let (tars, parts) = by_name(path, paths, &mut about);
    let mut members = TarMembers::default();
    let files = tars.iter().enumerate().map(|(index, tar)| {
        let (kept, file) = KeptFile::open(tar).or_data(tar)?;
        members.add(index, &file).map_err(|what| files::unreadable(tar, what))?;
        Ok(kept)
    });
    let files = files.collect::<Result<Vec<KeptFile>>>()?;
    if members.images.is_empty() {
        let what = "no .jpg, .jpeg or .png images in these tar files";
        let left = members.left_out.line().map_or(String::new(), |line| format!("; {line}"));
        return Err(Error::data(path, format!("{what}{left}")));
    }
    let name = |tar: &PathBuf| tar.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let names: Vec<String> = tars.iter().map(name).collect();
    about.notes.extend(cut_off(&names, &members.without_end));
    about.notes.extend(numbers_left_out(&names));
    let tars = Arc::new(Tars { paths: tars, files });
    let place = |file: usize| if path.is_dir() { &*tars.paths[file] } else { path };
    let wrong = |(file, what): (usize, String)| Error::data(place(file), what);
    let laid = layout::of(members, &parts, (path, meant), &mut about).map_err(wrong)?;
    let set = |part: Vec<(Entry, i32)>| {
        let (images, labels) = part.into_iter().unzip();
        let (tars, classes) = (tars.clone(), laid.classes.clone());
        Arc::new(Shards { tars, images, labels, classes, jpeg })
    };
    let [training, test] = [laid.training, laid.test].map(set);
    if training.is_empty() {
        return Err(Error::data(path, "all images are to test on, by the names of files and directories"));
    }
    let test = Some(test).filter(|test| !test.is_empty()).map(|test| test as Arc<dyn Dataset>);
    Ok(Parts { training, test, about })
}

/// The tar files of a path.
fn tar_files(path: &Path, left_out: &mut LeftOut) -> Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_path_buf()]);
    }
    let (mut files, others): (Vec<PathBuf>, Vec<PathBuf>) =
        entries(path)?.into_iter().partition(|path| ends(path, "tar"));
    let mut seen = VisitedDirectories::above(path)?;
    let mut loose = Vec::new();
    for other in others {
        if !other.is_dir() {
            loose.push(other);
        } else if seen.is_new(&other)? {
            let (inner, others): (Vec<PathBuf>, Vec<PathBuf>) =
                entries(&other)?.into_iter().partition(|path| ends(path, "tar"));
            files.extend(inner);
            loose.extend(others);
        }
    }
    seen.tell();
    for other in loose {
        let name = other.file_name().unwrap_or_default().to_string_lossy();
        if is_packed_tar(&name) && !files.is_empty() {
            let what = "is a tar file that is compressed, or not all there, beside others that would be read; unpack \
                        it (gunzip), or move it away";
            return Err(Error::data(&other, what));
        }
        match other.is_dir() {
            true => left_out.add("directories in which no tar files are looked for", &name),
            false => left_out.add_file(&name),
        }
    }
    match files.is_empty() {
        true => Err(Error::data(path, "no .tar files there")),
        false => Ok(files),
    }
}

/// Whether it is called as a tar file is that a program has compressed, or is still writing.
fn is_packed_tar(name: &str) -> bool {
    const ENDS: &str = ".tar.gz .tgz .tar.zst .tar.xz .tar.bz2 .tar.lz4 .tar.part .tar.tmp .tar.crdownload";
    let name = name.to_ascii_lowercase();
    ENDS.split(' ').any(|end| name.ends_with(end))
}

/// The files to read, and the part that the name of each says, if it does. Beside files for training others are not
/// read that say nothing; where all are to test on they are one part.
fn by_name(
    path: &Path,
    files: Vec<PathBuf>,
    about: &mut InputSummary,
) -> (Vec<PathBuf>, Vec<Option<DataSplit>>) {
    let said = |file: &PathBuf| {
        let inner = file.strip_prefix(path).ok().filter(|inner| *inner != Path::new(""))?;
        let mut names = inner.iter().map(|name| name.to_string_lossy());
        let name = names.next_back()?;
        names.find_map(|name| part(&name)).or_else(|| part_of_file(&name))
    };
    let parts: Vec<(PathBuf, Option<(DataSplit, usize)>)> =
        files.into_iter().map(|file| (file.clone(), said(&file))).collect();
    let to_test = |part: &Option<(DataSplit, usize)>| part.filter(|(part, _)| *part == DataSplit::Test);
    let tested: Option<(DataSplit, usize)> = parts.iter().filter_map(|(_, part)| to_test(part)).min();
    let is_another =
        |part: &Option<(DataSplit, usize)>| to_test(part).is_some_and(|part| Some(part) != tested);
    for (file, _) in parts.iter().filter(|(_, part)| is_another(part)) {
        let name = file.strip_prefix(path).unwrap_or(file).display().to_string();
        about.left_out.add("tar files of parts besides the one to test on", &name);
    }
    let parts = parts.into_iter().filter(|(_, part)| !is_another(part));
    let mut parts: Vec<(PathBuf, Option<DataSplit>)> =
        parts.map(|(file, part)| (file, part.map(|(part, _)| part))).collect();
    if parts.iter().all(|(_, part)| *part == Some(DataSplit::Test)) {
        let what = format!(
            "tar files to test on alone, by their names; {} by itself is trained on",
            parts[0].0.display()
        );
        about.untrainable = Some(Error::data(path, what));
        parts.iter_mut().for_each(|(_, part)| *part = None);
    }
    if parts.iter().any(|(_, part)| *part == Some(DataSplit::Training)) {
        for (file, _) in parts.iter().filter(|(_, part)| part.is_none()) {
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            about.left_out.add("tar files whose names say no part", &name);
        }
        parts.retain(|(_, part)| part.is_some());
    }
    parts.into_iter().unzip()
}

/// Says which files do not end as tar files do.
fn cut_off(names: &[String], without_end: &[usize]) -> Option<String> {
    let (first, others) = without_end.split_first()?;
    let others = if others.is_empty() { String::new() } else { format!(" and {} others", others.len()) };
    Some(format!(
        "{}{others}: without the two blocks of zeros that a tar file ends in; a copy that was cut off lacks them, and \
         may lack images",
        names[*first]
    ))
}

/// Says which numbers are not there, of files that are numbered one after the other.
fn numbers_left_out(names: &[String]) -> Option<String> {
    let mut numbered: BTreeMap<(&str, usize), BTreeSet<u32>> = BTreeMap::new();
    for name in names {
        let stem = name.rsplit_once('.').map_or(&**name, |(stem, _)| stem);
        let prefix = stem.trim_end_matches(|c: char| c.is_ascii_digit());
        if let Ok(number) = stem[prefix.len()..].parse() {
            numbered.entry((prefix, stem.len())).or_default().insert(number);
        }
    }
    numbered.into_iter().find_map(|((prefix, _), numbers)| {
        let (first, last) = (*numbers.first()?, *numbers.last()?);
        let lacks = (last - first) as usize + 1 - numbers.len();
        let missing = (first..last).find(|number| !numbers.contains(number))?;
        (lacks <= numbers.len()).then(|| {
            format!("{prefix}…: {lacks} of the numbers {first} to {last} are not there, {missing} the first of them")
        })
    })
}

/// The files, which stay open.
struct Tars {
    paths: Vec<PathBuf>,
    files: Vec<KeptFile>,
}

/// The images of one part.
pub struct Shards {
    tars: Arc<Tars>,
    images: Vec<Entry>,
    labels: Vec<i32>,
    classes: Vec<String>,
    jpeg: Jpeg,
}

impl Shards {
    fn bytes(&self, index: usize) -> Result<Vec<u8>> {
        let entry = &self.images[index];
        let mut bytes = vec![0; entry.bytes as usize];
        match self.tars.files[entry.file].read_exact_at(&mut bytes, entry.at) {
            Ok(()) => Ok(bytes),
            Err(error) => Err(self.wrong(index, error)),
        }
    }

    fn wrong(&self, index: usize, what: impl std::fmt::Display) -> Error {
        let entry = &self.images[index];
        Error::data(&self.tars.paths[entry.file], format!("{}: {what}", entry.name))
    }
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
        format!("{}: {}", self.tars.paths[entry.file].display(), entry.name)
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
}
