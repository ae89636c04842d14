//! What of a folder may be meant otherwise than it is taken. It would train, and the figures would mean something else:
//! so it is refused, unless `--data-format` says that it is a folder.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use super::folder::{DirectoryContent, has_directories};
use super::split::{DataSplit, is_fold, part, parts_within};
use crate::error::{Error, OrError, Result};

/// How a layout is taken that may be meant otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meant {
    /// Nobody says how it is meant: what is doubtful is refused.
    Unsaid,
    /// It is meant as it lies there: the user has given the format.
    AsItIs,
    /// Nobody learns from it: what is doubtful does no harm, and images need no classes.
    ToPredict,
}

/// Files that are looked at, spread over the set.
const LOOKED_AT: usize = 4096;

/// Checks the classes of the training images, with where they lie and the images found (paths from `directory`).
///
/// # Errors
/// `Data`, saying what else it may be.
pub fn check(
    directory: &Path,
    places: &[PathBuf],
    classes: &[String],
    files: &[(String, i32)],
) -> Result<()> {
    let by_names = check_names(directory, classes, "folder");
    by_names.or_data(directory)?;
    let looked_at: Vec<&str> = spread(files.len()).map(|at| &*files[at].0).collect();
    let there = |name: &str| files.binary_search_by(|(file, _)| Path::new(file).cmp(Path::new(name))).is_ok();
    match one_too_many(directory, places).or_else(|| by_files(&looked_at, there)) {
        Some(what) => {
            Err(Error::data(directory, format!("{what}; if it is meant so, say --data-format folder")))
        }
        None => Ok(()),
    }
}

/// What is said of a class of the test images alone. The same letters may be other characters: a Mac writes é as two.
pub fn unknown(class: &str, known: &[String]) -> String {
    let escaped = |c: char| if c.is_ascii() { c.to_string() } else { c.escape_unicode().to_string() };
    let written: String = class.chars().map(escaped).collect();
    let alike = if written == class {
        String::new()
    } else {
        format!(", as its characters are {written}, and another name may look alike")
    };
    let by_case = known.iter().find(|name| name.to_lowercase() == class.to_lowercase());
    let by_case = by_case.map_or(String::new(), |name| format!("; it has {name}"));
    format!("a class that the training set does not have{alike}{by_case}")
}

/// Checks the names of classes alone, for a set of this format.
///
/// # Errors
/// What else they may be.
pub fn check_names(path: &Path, classes: &[String], format: &str) -> std::result::Result<(), String> {
    let found = parts(path, classes).or_else(|| masks_by_class(classes)).or_else(|| by_case(classes));
    found.map_or(Ok(()), |what| Err(format!("{what}; if it is meant so, say --data-format {format}")))
}

/// Classes that are called as parts are.
fn parts(directory: &Path, classes: &[String]) -> Option<String> {
    let mut within: Vec<DataSplit> = classes.iter().flat_map(|name| parts_within(name)).collect();
    within.sort_unstable();
    within.dedup();
    let called: Vec<&String> = classes.iter().filter(|name| part(name).is_some() || is_fold(name)).collect();
    if called.is_empty() && within.len() < 2 {
        return None;
    }
    let named = |name: &&String| called.contains(name) || !parts_within(name).is_empty();
    let names: Vec<&str> = classes.iter().filter(named).take(4).map(|name| &**name).collect();
    let at = directory.display();
    Some(format!(
        "{} would be classes, and are called as parts of a data set are; those are {at}/train and {at}/val with a \
         directory a class in each; for one part alone give its own path",
        names.join(", ")
    ))
}

/// What the names of some images to train on say, which begin with the class. `there`: whether there is one of a name.
pub fn by_files(looked_at: &[&str], there: impl Fn(&str) -> bool) -> Option<String> {
    within_classes(looked_at).or_else(|| masks_by_file(looked_at, there))
}

/// Which of so many files are looked at.
pub fn spread(files: usize) -> impl Iterator<Item = usize> {
    let count = files.min(LOOKED_AT);
    (0..count).map(move |at| at * files / count)
}

/// Directories within a class that are called as parts are, or as images and their masks.
fn within_classes(looked_at: &[&str]) -> Option<String> {
    let mut within: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for name in looked_at {
        let mut directories = name.split('/');
        if let (Some(class), Some(inner), Some(_)) =
            (directories.next(), directories.next(), directories.next())
        {
            within.entry(class).or_default().insert(inner);
        }
    }
    within.into_iter().find_map(|(class, inner)| {
        let of = |split: DataSplit| inner.iter().find(|name| part(name).is_some_and(|(of, _)| of == split));
        if let (Some(training), Some(test)) = (of(DataSplit::Training), of(DataSplit::Test)) {
            return Some(format!(
                "{class}/{training} and {class}/{test} would both be images to train on, of class {class}; parts are \
                 those of the whole: {training}/{class} and {test}/{class}"
            ));
        }
        let inner: Vec<String> = inner.into_iter().map(String::from).collect();
        masks_by_class(&inner).map(|what| format!("within {class} {}", what.replace("classes", "images of it")))
    })
}

/// A single class that has parts in it.
fn one_too_many(directory: &Path, places: &[PathBuf]) -> Option<String> {
    let [place] = places else { return None };
    let inner = DirectoryContent::of(place).ok()?;
    let parts =
        inner.places.iter().map(|path| DirectoryContent::name(path)).filter(|name| part(name).is_some());
    let parts: Vec<String> = parts.collect();
    let name = DirectoryContent::name(place);
    match (parts.is_empty(), has_directories(place)) {
        (false, _) => Some(format!(
            "its one directory {name} would be the only class, and it holds {}: --data {}",
            parts.join(" and "),
            directory.join(&name).display()
        )),
        (true, true) if inner.places.len() > 1 => Some(format!(
            "its one directory {name} would be the only class, and it holds {} directories; if these are the classes: \
             --data {}",
            inner.places.len(),
            directory.join(&name).display()
        )),
        _ => None,
    }
}

/// Directories of images and of what belongs to each of them.
fn masks_by_class(classes: &[String]) -> Option<String> {
    const IMAGES: &str = "image images img imgs jpegimages rgb photos";
    const MASKS: &str = "mask masks label labels annotation annotations annot gt groundtruth ground_truth segmentation \
         segmentations segmentationclass segmentationobject";
    let is = |name: &str, words: &str| words.split(' ').any(|word| name.eq_ignore_ascii_case(word));
    let images = classes.iter().find(|name| is(name, IMAGES))?;
    let masks = classes.iter().find(|name| is(name, MASKS))?;
    Some(format!("{images} and {masks} would be classes, and are called as images and their masks are"))
}

/// Classes that a file system without capital letters would take for one.
fn by_case(classes: &[String]) -> Option<String> {
    let mut seen: HashMap<String, &String> = HashMap::with_capacity(classes.len());
    classes.iter().find_map(|name| {
        let other = seen.insert(name.trim().to_lowercase(), name)?;
        Some(format!("{other:?} and {name:?} would be two classes"))
    })
}

/// Images beside others of the same name but for its end, as masks are.
fn masks_by_file(looked_at: &[&str], there: impl Fn(&str) -> bool) -> Option<String> {
    const ENDS: &str = "_mask -mask _masks _seg _segmentation _gt _label _labels _labelIds _annotation";
    let twin = |name: &str| -> Option<String> {
        let (stem, ending) = name.rsplit_once('.')?;
        let short = ENDS.split(' ').find_map(|end| stem.strip_suffix(end));
        let of_stem =
            |stem: &str| ["jpg", "jpeg", "JPG", "JPEG", "png"].map(|ending| format!("{stem}.{ending}"));
        let other = short.and_then(|stem| of_stem(stem).into_iter().find(|name| there(name)));
        // Of two of one name the PNG file is the mask.
        let same = || {
            ending.eq_ignore_ascii_case("png").then(|| of_stem(stem).into_iter().take(4).find(|n| there(n)))
        };
        other.or_else(|| same().flatten())
    };
    let count = looked_at.len();
    let twins: Vec<(&str, String)> = looked_at.iter().filter_map(|&name| Some((name, twin(name)?))).collect();
    // Where every image has a mask, half of the files are masks.
    let (name, other) = twins.first().filter(|_| 4 * twins.len() >= count)?;
    Some(format!(
        "{} of {count} files that were looked at would be images of their own, and have the name of another one \
         ({name} and {other}), as masks have",
        twins.len()
    ))
}

/// What is to be said of classes that are numbers in another order.
pub fn order(classes: &[String]) -> Option<String> {
    let numbers: Vec<u64> = classes.iter().map(|name| name.parse().ok()).collect::<Option<_>>()?;
    let at = numbers.windows(2).position(|pair| pair[0] > pair[1])?;
    Some(format!(
        "classes are numbered by their sorted names, as texts: class {at} is {}, and class {} is {}",
        classes[at],
        at + 1,
        classes[at + 1]
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(classes: &[&str], files: &[&str]) -> Option<String> {
        let classes: Vec<String> = classes.iter().map(ToString::to_string).collect();
        let files: Vec<(String, i32)> = files.iter().map(|name| (name.to_string(), 0)).collect();
        check(Path::new("/d"), &[], &classes, &files).err().map(|error| error.message)
    }

    #[test]
    fn names_that_mean_something_else_are_refused_with_the_flag_that_settles_it() {
        for (classes, what) in [
            (&["Train", "dog"][..], "Train would be classes"),
            (&["apple", "bear", "testing"], "testing would be classes"),
            (&["seg_pred", "seg_test", "seg_train"], "seg_test, seg_train would be classes"),
            (&["images", "masks"], "images and masks"),
            (&["JPEGImages", "SegmentationClass"], "JPEGImages and SegmentationClass"),
            (&["dev", "holdout"], "dev, holdout would be classes"),
            (&["fold1", "fold2"], "fold1, fold2 would be classes"),
            (&["Cat", "cat", "dog"], "\"Cat\" and \"cat\" would be two classes"),
        ] {
            let said = said(classes, &["a/0.jpg"]).unwrap();
            assert!(said.contains(what) && said.ends_with("say --data-format folder"), "{said}");
        }
        for classes in
            [&["cat", "dog"][..], &["bullet_train", "streetcar"], &["labels", "logos"], &["training_shoe"]]
        {
            assert_eq!(said(classes, &["a/0.jpg", "a/0_x.jpg", "b/0.png"]), None);
        }
    }

    #[test]
    fn parts_and_masks_within_classes_are_found() {
        let parts =
            said(&["a", "b"], &["a/train/0.jpg", "a/val/0.jpg", "b/train/0.jpg", "b/val/1.jpg"]).unwrap();
        assert!(parts.contains("a/train and a/val would both be images to train on"), "{parts}");
        let masks = said(&["a", "b"], &["a/images/0.jpg", "a/masks/0.jpg"]).unwrap();
        assert!(masks.contains("within a images and masks would be images of it"), "{masks}");
        for files in [&["a/2019/0.jpg", "a/2020/0.jpg", "b/2019/0.jpg"][..], &["a/train/0.jpg", "b/0.jpg"]] {
            assert_eq!(said(&["a", "b"], files), None);
        }
    }

    #[test]
    fn masks_beside_their_images_are_found() {
        let twins = said(&["a", "b"], &["a/0.jpg", "a/0.png", "a/1.jpg", "a/1.png", "b/2.jpg"]).unwrap();
        assert!(twins.contains("2 of 5 files") && twins.contains("a/0.png and a/0.jpg"), "{twins}");
        let files =
            ["a/benign (1).png", "a/benign (1)_mask.png", "a/benign (10).png", "a/benign (10)_mask.png"];
        assert!(said(&["a", "b"], &files).unwrap().contains("benign (1)_mask.png and a/benign (1).png"));
        // A few of many are no rule.
        let files: Vec<String> = (0..20).map(|number| format!("a/{number:02}.jpg")).collect();
        let mut files: Vec<&str> = files.iter().map(String::as_str).collect();
        files.insert(1, "a/00.png");
        assert_eq!(said(&["a", "b"], &files), None);
    }

    #[test]
    fn numbers_that_are_sorted_as_texts_are_said() {
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(order(&names(&["0", "1", "2"])), None);
        assert_eq!(order(&names(&["a", "b"])), None);
        assert!(order(&names(&["0", "1", "10", "2"])).unwrap().contains("class 2 is 10, and class 3 is 2"));
    }
}
