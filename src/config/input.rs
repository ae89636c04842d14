//! How images are read and prepared.

use std::fmt;
use std::str::FromStr;

use clap::ValueEnum;
use serde::Serialize;

use super::most;
use super::values::{at_most, first, name_of, names_of, within, without_flags};
use crate::error::Error;

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

/// By what JPEG files are decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum JpegDecoder {
    /// By libjpeg-turbo where every rank has it, else in Rust.
    #[default]
    Auto,
    /// By libjpeg-turbo.
    Turbo,
    /// By a decoder in Rust, which every build has.
    Rust,
}

impl fmt::Display for JpegDecoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            JpegDecoder::Auto => "whichever decoder there is",
            JpegDecoder::Turbo => "libjpeg-turbo",
            JpegDecoder::Rust => "the decoder in Rust",
        })
    }
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

/// What is done to training images: to each by itself, and then to pairs of them.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Augment {
    /// Each at most once, in the order of `Augmentation`.
    pub parts: Vec<Augmentation>,
    /// α of the distribution Beta(α, α) of an image's share in its mixture with another: Zhang et al., 2018.
    pub mixup: Option<f64>,
    /// α of the distribution of the share of its area that an image keeps beside a window of another: Yun et al.,
    /// 2019.
    pub cutmix: Option<f64>,
}

/// α where none is given: those of the papers, for ImageNet.
const MIXUP: f64 = 0.2;
const CUTMIX: f64 = 1.0;

/// No α is larger: all shares would be a half.
const LARGEST_ALPHA: f64 = 1000.0;

impl Augment {
    /// Crop and flip, as networks for ImageNet are trained.
    pub fn imagenet() -> Augment {
        Augment { parts: vec![Augmentation::Crop, Augmentation::Flip], ..Augment::default() }
    }

    /// Padding with a crop, and flip, as networks for CIFAR are trained.
    pub fn cifar() -> Augment {
        Augment { parts: vec![Augmentation::PadCrop, Augmentation::Flip], ..Augment::default() }
    }

    /// Whether this is among what is done.
    pub fn has(&self, part: Augmentation) -> bool {
        self.parts.contains(&part)
    }

    /// Whether images are mixed, so that each has two classes.
    pub fn mixes(&self) -> bool {
        self.mixup.is_some() || self.cutmix.is_some()
    }
}

/// The α behind the name of a mixture, or its usual one.
fn alpha(name: &str, given: Option<&str>, usual: f64) -> Result<Option<f64>, String> {
    let Some(text) = given else { return Ok(Some(usual)) };
    let alpha = text.trim().parse().ok().filter(|alpha| *alpha > 0.0 && *alpha <= LARGEST_ALPHA);
    alpha.map(Some).ok_or_else(|| {
        format!(
            "{name}={text}: what follows is a number above 0, up to {LARGEST_ALPHA}, as in {name}={usual}"
        )
    })
}

impl FromStr for Augment {
    type Err = String;

    /// "imagenet,jitter": presets and parts, separated by commas.
    fn from_str(text: &str) -> Result<Augment, String> {
        let mut augment = Augment::default();
        let parts = &mut augment.parts;
        for part in text.split(',') {
            let (name, number) =
                part.split_once('=').map_or((part, None), |(name, number)| (name, Some(number)));
            match (name.trim(), number) {
                (name @ "mixup", number) => augment.mixup = alpha(name, number, MIXUP)?,
                (name @ "cutmix", number) => augment.cutmix = alpha(name, number, CUTMIX)?,
                ("none", None) => {}
                ("imagenet", None) => parts.extend(Augment::imagenet().parts),
                ("cifar", None) => parts.extend(Augment::cifar().parts),
                (name, number) => match (Augmentation::from_str(name, false), number) {
                    (Ok(part), None) => parts.push(part),
                    (Ok(_), Some(_)) => return Err(format!("{name} takes no number")),
                    (Err(_), _) => return Err(format!("{:?} is none of {}", part.trim(), names())),
                },
            }
        }
        parts.sort_unstable();
        parts.dedup();
        if parts.contains(&Augmentation::Crop) && parts.contains(&Augmentation::PadCrop) {
            return Err("crop and pad-crop exclude each other".into());
        }
        Ok(augment)
    }
}

fn names() -> String {
    let mixtures = ["mixup", "cutmix"].map(String::from);
    let names = ["none", "imagenet", "cifar"]
        .map(String::from)
        .into_iter()
        .chain(names_of::<Augmentation>())
        .chain(mixtures);
    names.collect::<Vec<_>>().join(", ")
}

impl fmt::Display for Augment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts: Vec<String> = self.parts.iter().map(name_of).collect();
        let mixtures = [("mixup", self.mixup), ("cutmix", self.cutmix)];
        parts
            .extend(mixtures.iter().filter_map(|(name, alpha)| alpha.map(|alpha| format!("{name}={alpha}"))));
        f.pad(if parts.is_empty() { "none".into() } else { parts.join(",") }.as_str())
    }
}

/// How images are read and prepared.
#[derive(Debug, Clone, PartialEq, Serialize, clap::Args)]
#[group(skip)]
#[command(next_help_heading = "Model and data")]
pub struct Input {
    /// How they lie there [default: found out from the files].
    #[arg(long = "data-format", value_enum)]
    pub format: Option<DataFormat>,
    /// What is done to training images: imagenet, cifar, none, or a list of crop, pad-crop, flip, randaugment, jitter,
    /// lighting, cutout, mixup=ALPHA, cutmix=ALPHA [default: imagenet for images of any size, none for those of one
    /// small size].
    #[arg(long, value_name = "LIST")]
    pub augment: Option<Augment>,
    /// Times each training image comes in an epoch.
    #[arg(long = "repeat-data", default_value_t = 1, value_name = "N")]
    pub repeat: usize,
    /// Threads a rank that read images ahead; 0: none [default: 0 for sets in memory, else a quarter of --threads].
    #[arg(long, value_name = "N")]
    pub loader_threads: Option<usize>,
    /// Stop at an image that cannot be read, instead of skipping it.
    #[arg(long)]
    pub strict: bool,
    /// What decodes JPEG files: libjpeg-turbo (turbo), a decoder in Rust (rust), or turbo where all ranks have it
    /// (auto).
    #[arg(long, value_enum, default_value = "auto", value_name = "NAME")]
    pub jpeg_decoder: JpegDecoder,
}

impl Default for Input {
    fn default() -> Input {
        without_flags()
    }
}

impl Input {
    /// # Errors
    /// `Usage`, naming the flag.
    pub fn check(&self, has_data: bool) -> crate::error::Result<()> {
        within("repeat-data", self.repeat, most::REPEATS)?;
        at_most("loader-threads", self.loader_threads.unwrap_or(0), most::LOADER_THREADS)?;
        let given = [
            (self.format.is_some(), "data-format"),
            (self.augment.is_some(), "augment"),
            (self.repeat > 1, "repeat-data"),
            (self.strict, "strict"),
            (self.jpeg_decoder != JpegDecoder::Auto, "jpeg-decoder"),
        ];
        match first(&given).filter(|_| !has_data) {
            Some(flag) => Err(Error::usage(format!("--{flag} needs --data"))),
            None => Ok(()),
        }
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
        assert_eq!(text("mixup,crop,cutmix=0.5"), Ok("crop,mixup=0.2,cutmix=0.5".into()));
        for wrong in ["mixup=0", "mixup=-1", "cutmix=", "mixup=x", "mixup=inf", "mixup=NaN", "cutmix=1e9"] {
            assert!(text(wrong).is_err_and(|error| error.contains("a number above 0")), "{wrong}");
        }
        assert!(text("flip=1").is_err_and(|error| error == "flip takes no number"));
        assert!(text("imagenet,cifar").is_err_and(|error| error.contains("exclude")));
        assert!(text("crop,blur").is_err_and(|error| error.contains("\"blur\" is none of none, imagenet")));
    }
}
