//! How images are read and prepared.

use std::fmt;
use std::str::FromStr;

use clap::ValueEnum;
use serde::{Serialize, Serializer};

/// How a data set lies on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DataFormat {
    /// MNIST and Fashion-MNIST: four IDX files, plain or .gz.
    Idx,
    /// CIFAR-10 or CIFAR-100, binary version.
    Cifar,
    /// A directory a class, with JPEG and PNG files in it.
    Folder,
    /// WebDataset: tar files.
    Tar,
    /// What `dltrain pack` wrote.
    Packed,
}

/// One thing done to a training image; they come in the order of this list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum)]
pub enum Augmentation {
    /// Random part of 8 to 100 % of the area, sides 3:4 to 4:3, scaled to the model's size: Szegedy et al., 2015.
    Crop,
    /// Padded by an eighth on every side, then a random part of the model's size: Lee et al., 2015.
    PadCrop,
    /// Mirrored, left and right, one time in two.
    Flip,
    /// Two of fourteen operations, magnitude 9: Cubuk et al., 2020.
    #[value(name = "randaugment")]
    RandAugment,
    /// Brightness, contrast and saturation changed by up to 40 %, in random order: Howard, 2013.
    Jitter,
    /// Noise along the principal components of ImageNet's colours: Krizhevsky et al., 2012.
    Lighting,
    /// A square of half the side put to the mean: DeVries and Taylor, 2017.
    Cutout,
}

/// What is done to training images, each at most once, in the order of `Augmentation`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Augment(pub Vec<Augmentation>);

impl Augment {
    pub fn imagenet() -> Augment {
        Augment(vec![Augmentation::Crop, Augmentation::Flip])
    }

    pub fn cifar() -> Augment {
        Augment(vec![Augmentation::PadCrop, Augmentation::Flip])
    }

    pub fn has(&self, part: Augmentation) -> bool {
        self.0.contains(&part)
    }
}

impl FromStr for Augment {
    type Err = String;

    /// "imagenet,jitter": presets and parts, separated by commas.
    fn from_str(text: &str) -> Result<Augment, String> {
        let mut parts = Vec::new();
        for name in text.split(',') {
            match name.trim() {
                "none" => {}
                "imagenet" => parts.extend(Augment::imagenet().0),
                "cifar" => parts.extend(Augment::cifar().0),
                name => match Augmentation::from_str(name, false) {
                    Ok(part) => parts.push(part),
                    Err(_) => return Err(format!("{name:?} is none of {}", names())),
                },
            }
        }
        parts.sort_unstable();
        parts.dedup();
        if parts.contains(&Augmentation::Crop) && parts.contains(&Augmentation::PadCrop) {
            return Err("crop and pad-crop exclude each other".into());
        }
        Ok(Augment(parts))
    }
}

fn names() -> String {
    let parts = Augmentation::value_variants().iter().map(|part| part_name(*part));
    ["none", "imagenet", "cifar"].map(String::from).into_iter().chain(parts).collect::<Vec<_>>().join(", ")
}

fn part_name(part: Augmentation) -> String {
    part.to_possible_value().map_or_else(String::new, |value| value.get_name().to_string())
}

impl fmt::Display for Augment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> = self.0.iter().map(|part| part_name(*part)).collect();
        f.pad(if parts.is_empty() { "none".into() } else { parts.join(",") }.as_str())
    }
}

impl Serialize for Augment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// How images are read and prepared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Input {
    /// `None`: found out from the files.
    pub format: Option<DataFormat>,
    /// `None`: "imagenet" for photographs of any size, nothing for images of one small size.
    pub augment: Option<Augment>,
    /// How often the training set follows itself in an epoch.
    pub repeat: usize,
    /// Threads that read ahead; `None`: by the format and the cores.
    pub loader_threads: Option<usize>,
    /// Whether an image that cannot be read ends the run instead of being skipped.
    pub strict: bool,
}

impl Default for Input {
    fn default() -> Input {
        Input { format: None, augment: None, repeat: 1, loader_threads: None, strict: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn augmentation_is_a_list_of_presets_and_parts() {
        let text = |text: &str| text.parse::<Augment>().map(|augment| augment.to_string());
        assert_eq!(text("none"), Ok("none".into()));
        assert_eq!(text("imagenet"), Ok("crop,flip".into()));
        assert_eq!(text("cutout, cifar,flip"), Ok("pad-crop,flip,cutout".into()));
        assert!(text("imagenet,cifar").is_err_and(|error| error.contains("exclude")));
        assert!(text("crop,blur").is_err_and(|error| error.contains("\"blur\" is none of none, imagenet")));
    }
}
