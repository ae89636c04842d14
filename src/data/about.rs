//! What a data set was taken for, in words: formats and parts are guessed from names, and a user has to see how.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use super::Dataset;
use crate::error::Error;

/// What a run says of its images before it begins.
#[derive(Debug, Clone, Default)]
pub struct InputSummary {
    /// "a folder", "tar files".
    pub format: &'static str,
    /// Where the training and the test images lie in it; without test images why there are none, where that is to say.
    pub from: [String; 2],
    /// Whether all of it is tested on, since nothing divides it.
    pub is_whole: bool,
    /// Whether it says of itself that all of it is to train on.
    pub only_training: bool,
    /// Why this set cannot be trained on, although it can be tested on: all of it is the part to test on, which is in
    /// the place of the training images then, or a class has no image.
    pub untrainable: Option<Error>,
    /// What lies there and is not read.
    pub left_out: LeftOut,
    /// What else a user should know, a sentence each.
    pub notes: Vec<String>,
    /// Whose mean and deviation images are normalised by.
    pub colours: &'static str,
}

impl InputSummary {
    /// A set whose images are normalised by the mean and deviation of the training images.
    pub fn of(format: &'static str, from: [&str; 2]) -> InputSummary {
        InputSummary {
            format,
            from: from.map(String::from),
            colours: "the training images'",
            ..InputSummary::default()
        }
    }

    /// The lines that a run says, of sets of these; `predicts`: what the images are is asked, of those to test on where
    /// there are any.
    pub fn lines(
        &self,
        path: &Path,
        training: &dyn Dataset,
        test: Option<&dyn Dataset>,
        predicts: bool,
    ) -> Vec<String> {
        let behind = |from: &String| if from.is_empty() { String::new() } else { format!(" ({from})") };
        let [of_training, of_test] = [&self.from[0], &self.from[1]].map(behind);
        let images = training.len();
        let found = match (test.map(Dataset::len), predicts) {
            (Some(test), true) => {
                format!("{test} images{of_test}, without the {images} to train on{of_training}")
            }
            (None, true) => format!("{images} images{of_training}"),
            (_, false) if self.is_whole => {
                format!("{images} images to test on, all that are there{of_test}")
            }
            (test, false) => {
                let test = test.map_or("none".into(), |test| test.to_string());
                format!("{images} images to train on{of_training}, {test} to test on{of_test}")
            }
        };
        let classes = classes(training.class_names());
        let mut lines = vec![format!("data: {}, {}: {found}; {classes}", path.display(), self.format)];
        lines.extend(self.left_out.line());
        lines.extend(self.notes.iter().cloned());
        lines
    }
}

/// "3 classes: ant, bee, cat".
pub fn classes(names: &[String]) -> String {
    /// Names that are listed.
    const SHOWN: usize = 4;
    let last = names.last().filter(|_| names.len() > SHOWN);
    let shown = names.iter().take(if last.is_some() { SHOWN - 1 } else { SHOWN });
    let mut shown: Vec<String> = shown.map(|name| name.chars().take(32).collect()).collect();
    shown.extend(last.map(|last| format!("… {}", last.chars().take(32).collect::<String>())));
    match names.len() {
        0 => "without classes".into(),
        1 => format!("1 class: {}", shown[0]),
        count => format!("{count} classes: {}", shown.join(", ")),
    }
}

/// The first of some names.
pub fn listed(names: &[&str]) -> String {
    let first = names.iter().take(4).copied().collect::<Vec<_>>().join(", ");
    if names.len() > 4 { format!("{first}, and {} more", names.len() - 4) } else { first }
}

/// Whether the names of classes are just their numbers, so that nothing is known of what they are called.
pub fn are_numbers(names: &[String]) -> bool {
    names.iter().enumerate().all(|(number, name)| name.parse() == Ok(number))
}

/// What lies with a data set and is not read: counts, by reason and by what it is.
#[derive(Debug, Clone, Default)]
pub struct LeftOut(BTreeMap<&'static str, BTreeMap<String, usize>>);

/// Reasons that several formats have.
pub const NOT_DECODED: &str = "image files that are neither JPEG nor PNG";
pub const HIDDEN: &str = "hidden files and directories";
pub const OTHER: &str = "files that are no images";

/// Things that are told apart for one reason.
const KINDS: usize = 32;

impl LeftOut {
    /// Counts one thing that is not read.
    pub fn add(&mut self, why: &'static str, what: &str) {
        let of = self.0.entry(why).or_default();
        // Nothing is allocated for what is known: there may be millions.
        let what = if of.contains_key(what) || of.len() < KINDS { what } else { "others" };
        match of.get_mut(what) {
            Some(count) => *count += 1,
            None => _ = of.insert(what.into(), 1),
        }
    }

    /// Counts a file, by its name, that is no image which can be read.
    pub fn add_file(&mut self, name: &str) {
        let ending = ending(name);
        match ending.as_deref() {
            _ if is_hidden(name) => self.add(HIDDEN, name),
            Some(kind) if IMAGES.contains(&kind) => self.add(NOT_DECODED, &format!(".{kind}")),
            Some(kind) => self.add(OTHER, &format!(".{kind}")),
            None => self.add(OTHER, name),
        }
    }

    /// Adds what was counted elsewhere.
    pub fn join(&mut self, other: LeftOut) {
        for (why, of) in other.0 {
            for (what, count) in of {
                *self.0.entry(why).or_default().entry(what).or_default() += count;
            }
        }
    }

    /// Says nothing of what was left out for this reason.
    pub fn forget(&mut self, why: &str) {
        self.0.remove(why);
    }

    /// "left out: image files that are neither JPEG nor PNG: 24 (.bmp 12, .webp 12)"; none where nothing was.
    pub fn line(&self) -> Option<String> {
        /// Kinds that are listed of each reason.
        const SHOWN: usize = 4;
        let reason = |(why, of): (&&str, &BTreeMap<String, usize>)| {
            let mut kinds: Vec<(&String, &usize)> = of.iter().collect();
            kinds.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
            let kind = |(what, count): &(&String, &usize)| match count {
                1 => what.to_string(),
                count => format!("{what} {count}"),
            };
            let mut text = kinds.iter().take(SHOWN).map(kind).collect::<Vec<_>>().join(", ");
            if kinds.len() > SHOWN {
                // Writing to a string cannot fail.
                let _ = write!(text, ", …");
            }
            format!("{why}: {} ({text})", of.values().sum::<usize>())
        };
        let reasons: Vec<String> = self.0.iter().map(reason).collect();
        (!reasons.is_empty()).then(|| format!("left out: {}", reasons.join("; ")))
    }
}

/// Endings of image files that are read.
const READ: [&str; 7] = ["jpg", "jpeg", "jpe", "jfif", "pjpeg", "pjp", "png"];
/// Endings of image files that are not read.
const IMAGES: [&str; 30] = [
    "apng", "arw", "avif", "bmp", "cr2", "dcm", "dib", "dng", "exr", "gif", "hdr", "heic", "heif", "ico",
    "j2k", "jp2", "jxl", "nef", "nii", "npy", "npz", "pbm", "pgm", "pnm", "ppm", "psd", "tga", "tif", "tiff",
    "webp",
];

/// What follows the last dot of a name, in small letters.
fn ending(name: &str) -> Option<String> {
    let (stem, ending) = name.rsplit_once('.')?;
    (!stem.is_empty() && !ending.is_empty() && ending.len() < 12).then(|| ending.to_ascii_lowercase())
}

/// Whether a file of this name is taken for an image: a JPEG or PNG file.
pub fn is_image(name: &str) -> bool {
    // Before anything is allocated: there may be millions.
    let ending = name.rsplit_once('.').map_or("", |(_, ending)| ending);
    READ.iter().any(|known| ending.eq_ignore_ascii_case(known)) && !is_hidden(name)
}

/// Whether a file of this name is an image of a kind that is not read.
pub fn is_other_image(name: &str) -> bool {
    ending(name).is_some_and(|ending| IMAGES.contains(&&*ending))
}

/// Whether a file or directory of this name is none of the user's: hidden, or put there by a system for itself.
pub fn is_hidden(name: &str) -> bool {
    /// What archives made on a Mac have beside their files, Synology's thumbnails, and what file systems keep.
    const SYSTEMS: [&str; 4] = ["__MACOSX", "@eaDir", "lost+found", "$RECYCLE.BIN"];
    name.starts_with('.') || SYSTEMS.contains(&name)
}

/// What a file is that is neither JPEG nor PNG, by its first bytes.
pub fn kind_of(start: &[u8]) -> &'static str {
    match start {
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => " but WebP",
        [b'G', b'I', b'F', b'8', ..] => " but GIF",
        [b'B', b'M', ..] => " but BMP",
        [b'I', b'I', 42, 0, ..] | [b'M', b'M', 0, 42, ..] => " but TIFF",
        [_, _, _, _, b'f', b't', b'y', b'p', ..] => " but HEIF or AVIF",
        [b'<', ..] => " but text, such as a page of HTML",
        [b'v', b'e', b'r', b's', b'i', b'o', b'n', b' ', ..] => " but a pointer of Git LFS",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_is_counted_by_reason_and_kind() {
        let mut left = LeftOut::default();
        assert_eq!(left.line(), None);
        for name in ["a.webp", "b.WEBP", "c.tif", "notes.txt", ".DS_Store", "README", "d.jpg.part"] {
            left.add_file(name);
        }
        let mut other = LeftOut::default();
        (0..100).for_each(|number| other.add(HIDDEN, &format!(".{number}")));
        left.join(other);
        let line = left.line().unwrap();
        let images = "image files that are neither JPEG nor PNG: 3 (.webp 2, .tif)";
        assert_eq!(
            line,
            format!(
                "left out: files that are no images: 3 (.part, .txt, README); hidden files and directories: 101 \
                 (others 68, .0, .1, .10, …); {images}"
            )
        );
        left.forget(HIDDEN);
        left.forget(OTHER);
        assert_eq!(left.line().unwrap(), format!("left out: {images}"));
    }

    #[test]
    fn jpeg_and_png_have_many_names() {
        for name in ["a.jpg", "b.JPEG", "c.jfif", "d.jpe", "e.Png", "f.g.jpg", "a b.pjpeg"] {
            assert!(is_image(name), "{name}");
        }
        for name in ["a.webp", ".a.jpg", "._a.png", "jpg", "a.jpg.txt", "a.", ""] {
            assert!(!is_image(name), "{name}");
        }
    }

    #[test]
    fn classes_are_listed_by_their_first_names_and_the_last() {
        let names = |count: usize| (0..count).map(|number| number.to_string()).collect::<Vec<_>>();
        assert_eq!(classes(&names(1)), "1 class: 0");
        assert_eq!(classes(&names(4)), "4 classes: 0, 1, 2, 3");
        assert_eq!(classes(&names(10)), "10 classes: 0, 1, 2, … 9");
        assert!(are_numbers(&names(10)) && !are_numbers(&["0".into(), "2".into()]));
    }
}
