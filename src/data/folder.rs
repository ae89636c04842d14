//! A directory a class, with JPEG and PNG files in it, at any depth: how ImageNet is kept.
//!
//! A directory called `train` that has directories of its own holds the classes, and one called `val` or `test` those
//! to test on (`split` has the words); where there is none, the directories are the classes, and there is nothing to
//! test on. Classes are numbered by their sorted names, as torchvision's ImageFolder does. Links are followed, to each
//! directory once. What may be meant otherwise is refused (`doubts`).

use std::collections::{HashMap, VecDeque};
use std::fs;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::about::{InputSummary, LeftOut, is_hidden, is_image, kind_of, listed};
use super::detect::{self, Parts, VisitedDirectories, entries};
use super::doubts::{self, Meant};
use super::orientation;
use super::picture::{self, Picture};
use super::split::{DataSplit, part};
use super::{Dataset, Jpeg};
use crate::error::{Error, OrError, Result};
use crate::files::{self, crc32};

/// Files that are opened at the start, to find out at once that the whole set cannot be read.
const TRIED: usize = 256;

/// Limits of what ranks compare: files whose sizes are asked for, files that are opened, and bytes that are read at the
/// start and at the end of each. More would take long where a file system is across a network.
const SIZED: usize = 16_384;
const SAMPLED: usize = 64;
const ENDS: u64 = 4096;

/// In the name of a file that is not UTF-8.
const NOT_UTF8: char = char::REPLACEMENT_CHARACTER;

/// Opens the set. Every name is read, and one file of each class tried.
///
/// # Errors
/// `Data`: a directory that cannot be read, a class without images, a file that is none; what is doubtful.
pub fn open(directory: &Path, jpeg: Jpeg, meant: Meant) -> Result<Parts> {
    let mut about = InputSummary { colours: "ImageNet's", format: "a folder", ..InputSummary::default() };
    let inner = DirectoryContent::of(directory)?;
    let Some(place) = inner.training() else {
        about.from[1] = beside(directory);
        let training = Folder::list(directory, inner, None, (jpeg, meant), &mut about)?;
        return Ok(Parts { training: Arc::new(training), test: None, about });
    };
    about.left_out.join(inner.loose.clone());
    if meant == Meant::Unsaid {
        inner.are_apart(directory, place)?;
    }
    let test = inner.test(&mut about)?;
    for beside in inner.places.iter().filter(|beside| part(&DirectoryContent::name(beside)).is_none()) {
        about.left_out.add("directories beside the parts", &DirectoryContent::name(beside));
    }
    about.from[0] = format!("{}/", DirectoryContent::name(place));
    let training = Folder::list(place, DirectoryContent::of(place)?, None, (jpeg, meant), &mut about)?;
    let list = |(place, inner): (PathBuf, DirectoryContent)| {
        about.from[1] = format!("{}/", DirectoryContent::name(&place));
        Folder::list(&place, inner, Some(&training.classes), (jpeg, meant), &mut about)
    };
    let test = test.map(list).transpose()?;
    let test = test.filter(|test| !test.files.is_empty()).map(|test| Arc::new(test) as Arc<dyn Dataset>);
    about.only_training = test.is_none();
    Ok(Parts { training: Arc::new(training), test, about })
}

/// Says of a part that is named by itself which part to test on lies beside it, in words.
fn beside(directory: &Path) -> String {
    if part(&DirectoryContent::name(directory)).is_none_or(|(part, _)| part != DataSplit::Training) {
        return String::new();
    }
    let parent = files::directory_of(directory);
    let inner = DirectoryContent::of(parent).ok();
    let test = inner
        .as_ref()
        .and_then(|inner| inner.parts(DataSplit::Test).into_iter().find(|p| has_directories(p)));
    let name = test.map(|test| DirectoryContent::name(test));
    name.map_or_else(String::new, |name| format!("that of --data {} would be {name}/", parent.display()))
}

/// An image file, or all below a directory, without classes.
pub fn files(path: &Path, jpeg: Jpeg) -> Result<(Folder, LeftOut)> {
    let mut found = FolderContent::new(VisitedDirectories::none());
    let directory = match path.is_dir() {
        true => {
            found.seen = VisitedDirectories::above(path)?;
            found.collect(path, "", 0)?;
            found.follow()?;
            path
        }
        false => {
            files::check(path).or_data(path)?;
            found.files.push((DirectoryContent::name(path), 0));
            files::directory_of(path)
        }
    };
    let (files, labels) = found.files.into_iter().unzip();
    let (directory, classes) = (directory.to_path_buf(), Vec::new());
    let mut folder = Folder { directory, files, labels, classes, content: 0, jpeg, upright: true };
    folder.content = folder.content();
    Ok((folder, found.left))
}

/// What lies in a directory: directories, which are classes or parts, and files.
pub struct DirectoryContent {
    /// Where the directories are that count.
    pub places: Vec<PathBuf>,
    /// What else lies there.
    loose: LeftOut,
    /// Links that lead nowhere.
    dangling: Vec<String>,
}

impl DirectoryContent {
    pub fn of(directory: &Path) -> Result<DirectoryContent> {
        Ok(DirectoryContent::among(&entries(directory)?))
    }

    /// What is among these entries of a directory.
    pub fn among(entries: &[PathBuf]) -> DirectoryContent {
        let (mut places, mut loose, mut dangling) = (Vec::new(), LeftOut::default(), Vec::new());
        for path in entries {
            match DirectoryContent::name(path) {
                name if is_hidden(&name) => loose.add_file(&name),
                _ if path.is_dir() => places.push(path.clone()),
                name if !is_image(&name) && path.is_symlink() && !path.exists() => {
                    loose.add("links that lead nowhere", &name);
                    dangling.push(name);
                }
                name if is_image(&name) => loose.add("images outside of all classes", &name),
                name => loose.add_file(&name),
            }
        }
        DirectoryContent { places, loose, dangling }
    }

    /// What an entry of a directory is called.
    pub fn name(path: &Path) -> String {
        path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Those that are called as parts are, by the order of their words.
    fn parts(&self, wanted: DataSplit) -> Vec<&PathBuf> {
        let rank = |path: &&PathBuf| part(&DirectoryContent::name(path)).filter(|(part, _)| *part == wanted);
        let mut found: Vec<&PathBuf> = self.places.iter().filter(|path| rank(path).is_some()).collect();
        found.sort_by_key(|path| rank(path).map(|(_, word)| word));
        found
    }

    /// The directory of training images: one that is called so and has the classes in it.
    pub fn training(&self) -> Option<&PathBuf> {
        self.parts(DataSplit::Training).into_iter().find(|path| has_directories(path))
    }

    /// Checks that no second directory is called as images to train on are, and that none to test on is the same one,
    /// or a link that leads nowhere.
    fn are_apart(&self, directory: &Path, training: &Path) -> Result<()> {
        let wrong = |what: String| {
            Err(Error::data(directory, format!("{what}; if it is meant so, say --data-format folder")))
        };
        let own = DirectoryContent::name(training);
        let mut others = self.parts(DataSplit::Training).into_iter().filter(|place| *place != training);
        if let Some(other) = others.find(|place| has_directories(place)) {
            let other = DirectoryContent::name(other);
            return wrong(format!(
                "{own} and {other} are both called as images to train on are, and {own} alone would be read"
            ));
        }
        let whole = |place: &Path| place.canonicalize().ok();
        if let Some(same) =
            self.parts(DataSplit::Test).into_iter().find(|place| whole(place) == whole(training))
        {
            let same = DirectoryContent::name(same);
            return wrong(format!("{same} leads to {own}: images would be tested on that are trained on"));
        }
        match self.dangling.iter().find(|name| part(name).is_some()) {
            Some(name) => wrong(format!("{name} is a link that leads nowhere, and would be left out")),
            None => Ok(()),
        }
    }

    /// The directory to test on, with what lies in it; says which others there are, and why not.
    fn test(&self, about: &mut InputSummary) -> Result<Option<(PathBuf, DirectoryContent)>> {
        let mut found = None;
        for place in self.parts(DataSplit::Test) {
            let (inner, name) = (DirectoryContent::of(place)?, DirectoryContent::name(place));
            match (&found, inner.places.is_empty()) {
                (_, true) => {
                    let what = format!("{name}/ has no directories for classes: nothing is tested on it");
                    about.notes.push(what);
                }
                (None, false) => found = Some((place.clone(), inner)),
                (Some(_), false) => {
                    about.left_out.add("parts besides the one to test on", &format!("{name}/"))
                }
            }
        }
        for besides in self.parts(DataSplit::Training).iter().filter(|place| Some(**place) != self.training())
        {
            about.left_out.add("directories beside the parts", &DirectoryContent::name(besides));
        }
        Ok(found)
    }
}

/// Whether a directory has directories in it; of a very large one its first entries are looked at.
pub fn has_directories(directory: &Path) -> bool {
    let is_directory = |entry: fs::DirEntry| {
        !is_hidden(&entry.file_name().to_string_lossy()) && {
            let kind = entry.file_type().ok();
            kind.is_some_and(|kind| kind.is_dir() || (kind.is_symlink() && entry.path().is_dir()))
        }
    };
    fs::read_dir(directory).is_ok_and(|entries| entries.flatten().take(1000).any(is_directory))
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
    /// Whether photographs are turned as their EXIF data say.
    upright: bool,
}

impl Folder {
    /// `known`: the classes of the training set, which this one's must be among.
    fn list(
        directory: &Path,
        inner: DirectoryContent,
        known: Option<&[String]>,
        (jpeg, meant): (Jpeg, Meant),
        about: &mut InputSummary,
    ) -> Result<Folder> {
        let DirectoryContent { places, loose, .. } = inner;
        about.left_out.join(loose);
        let classes = names(&places)?;
        // What is not known must be empty.
        let all = known.unwrap_or(&classes);
        let (mut found, counts) = FolderContent::in_classes(directory, places.iter().zip(&classes), all)?;
        let count = |class: &String| all.binary_search(class).ok().map(|label| counts[label]);
        let mut empty = places.iter().zip(&classes);
        if counts[all.len()] > 0 {
            let unknown = empty.find(|(_, class)| count(class).is_none());
            let (place, class) = unknown.map_or((directory, ""), |(place, class)| (place, class));
            return Err(Error::data(place, doubts::unknown(class, all)));
        }
        if known.is_some() {
            let empty: Vec<&str> = all.iter().filter(|of| count(of) == Some(0)).map(|c| &**c).collect();
            if !empty.is_empty() {
                let what =
                    format!("{}: classes without an image to test on: {}", about.from[1], listed(&empty));
                about.notes.push(what);
            }
        } else if let Some((place, _)) = empty.find(|(_, class)| count(class) == Some(0)) {
            let error = without_images(directory, place, &found);
            if found.files.is_empty() {
                return Err(error);
            }
            about.untrainable = Some(error);
        }
        about.left_out.join(std::mem::take(&mut found.left));
        if known.is_none() && found.files.is_empty() {
            return Err(Error::data(
                directory,
                "no images: wanted are directories, one a class, with .jpg, .jpeg or .png files",
            ));
        }
        if known.is_none() && meant == Meant::Unsaid {
            doubts::check(directory, &places, &classes, &found.files)?;
        }
        about.notes.extend(known.is_none().then(|| doubts::order(&classes)).flatten());
        let (files, labels) = found.files.into_iter().unzip();
        let classes = known.map_or(classes, <[String]>::to_vec);
        let directory = directory.to_path_buf();
        let mut folder = Folder { directory, files, labels, classes, content: 0, jpeg, upright: false };
        about.notes.extend(folder.try_some()?);
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

    /// Tries one file of each class, or fewer where there are very many. What is odd about them is told.
    fn try_some(&self) -> Result<Option<String>> {
        let named = |index: &usize| !self.files[*index].contains(NOT_UTF8);
        let firsts: HashMap<i32, usize> =
            (0..self.files.len()).rev().filter(named).map(|index| (self.labels[index], index)).collect();
        let mut firsts: Vec<usize> = firsts.into_values().collect();
        firsts.sort_unstable();
        let every = firsts.len().div_ceil(TRIED).max(1);
        let tried: Vec<usize> = firsts.into_iter().step_by(every).collect();
        let (mut foreign, mut deep) = (Vec::new(), None);
        for &index in &tried {
            let path = self.path(index);
            let mut start = [0; 26];
            let read = files::open(&path).and_then(|mut file| file.read(&mut start));
            match read {
                Ok(count) if picture::is_known(&start[..count]) => {}
                Ok(count) => foreign.push(format!("neither JPEG nor PNG{}", kind_of(&start[..count]))),
                Err(error) => foreign.push(error.to_string()),
            }
            // A PNG's header says so.
            let is_deep = start.starts_with(b"\x89PNG") && start[24] == 16;
            deep = deep.or(is_deep.then_some(path));
        }
        // A single bad file is skipped later on.
        if !tried.is_empty() && foreign.len() == tried.len() {
            let what = format!(
                "{}, and none of the {} files that were looked at can be read",
                foreign[0],
                foreign.len()
            );
            return Err(Error::data(&self.path(tried[0]), what));
        }
        Ok(deep
            .map(|path| format!("{}: a PNG file of 16 bits, of which the upper 8 are read", path.display())))
    }

    fn bytes(&self, index: usize) -> Result<Vec<u8>> {
        let path = self.path(index);
        let wrong = |error| match self.files[index].contains(NOT_UTF8) {
            true => Error::data(&path, "its name is not UTF-8; rename it"),
            false => Error::data(&path, error),
        };
        files::read(&path).map_err(wrong)
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

/// What classes are called that lie in these directories.
fn names(places: &[PathBuf]) -> Result<Vec<String>> {
    let name = |place: &PathBuf| match place.file_name().and_then(|name| name.to_str()) {
        Some(name) => Ok(name.to_string()),
        None => Err(Error::data(place, "a class whose name is not UTF-8")),
    };
    places.iter().map(name).collect()
}

/// Refuses a class without images: what is in it, or where images are meant to be.
fn without_images(directory: &Path, place: &Path, found: &FolderContent) -> Error {
    if let Some(hint) = detect::sets_within(directory).filter(|_| found.files.is_empty()) {
        return Error::data(directory, hint);
    }
    let left = found.left.line().map_or(String::new(), |line| format!("; {line}"));
    Error::data(place, format!("a class without images (no .jpg, .jpeg or .png file in it){left}"))
}

/// What lies in a set's directories.
struct FolderContent {
    /// Paths from the set's directory, and classes.
    files: Vec<(String, i32)>,
    /// Links to directories, which come last: what lies in a class belongs there, whoever leads to it.
    links: VecDeque<(PathBuf, String, i32)>,
    seen: VisitedDirectories,
    left: LeftOut,
}

impl FolderContent {
    fn new(seen: VisitedDirectories) -> FolderContent {
        FolderContent { files: Vec::new(), links: VecDeque::new(), seen, left: LeftOut::default() }
    }

    /// What lies in directories of classes; the label of each is its place among `all`. Returns also how many images
    /// each of these has, and behind them how many are of none.
    fn in_classes<'a>(
        directory: &Path,
        classes: impl Iterator<Item = (&'a PathBuf, &'a String)> + Clone,
        all: &[String],
    ) -> Result<(FolderContent, Vec<usize>)> {
        let mut found = FolderContent::new(VisitedDirectories::above(directory)?);
        for (place, _) in classes.clone() {
            if !found.seen.is_new(place)? {
                return Err(Error::data(
                    place,
                    "leads to the directory of another class, or to one around it",
                ));
            }
        }
        for (place, class) in classes {
            found.collect(place, class, all.binary_search(class).unwrap_or(all.len()) as i32)?;
        }
        found.follow()?;
        let mut counts = vec![0; all.len() + 1];
        found.files.iter().for_each(|(_, label)| counts[*label as usize] += 1);
        Ok((found, counts))
    }

    /// Adds the images below a directory, sorted.
    fn collect(&mut self, directory: &Path, prefix: &str, label: i32) -> Result<()> {
        for path in entries(directory)? {
            // An image whose name is not UTF-8 is one that cannot be read.
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let relative = || if prefix.is_empty() { name.to_string() } else { format!("{prefix}/{name}") };
            if is_image(&name) {
                self.files.push((relative(), label));
            } else if is_hidden(&name) || !path.is_dir() {
                self.left.add_file(&name);
            } else if path.is_symlink() {
                self.links.push_back((path.clone(), relative(), label));
            } else if self.seen.is_new(&path)? {
                self.collect(&path, &relative(), label)?;
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
        picture::decode(&bytes, picture, self.jpeg).or_data(&self.path(index))?;
        if self.upright {
            orientation::turn(picture, orientation::of(&bytes));
        }
        Ok(())
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

    /// A checksum of the names, and of what was asked of the files at the start: reading all would take as long as an
    /// epoch.
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
}
