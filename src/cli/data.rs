//! The flags that say which images there are, and how they are read and prepared.

use std::path::{Path, PathBuf};

use dltrain::config::{Augment, DataFormat, Input, JpegDecoder, most};
use dltrain::error::{Error, Result};

use super::values::{at_most, within};

#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    /// Images: a directory or a file (see --data-format), or synthetic:shapes; without it images are random.
    #[arg(long, value_name = "PATH", help_heading = "Model and data")]
    data: Option<PathBuf>,
    /// How they lie there [default: found out from the files].
    #[arg(long, value_enum, help_heading = "Model and data")]
    data_format: Option<DataFormat>,
    /// What is done to training images: imagenet, cifar, none, or a list of crop, pad-crop, flip, randaugment, jitter,
    /// lighting, cutout, mixup=ALPHA, cutmix=ALPHA [default: imagenet for images of any size, none for those of one
    /// small size].
    #[arg(long, value_name = "LIST", help_heading = "Model and data")]
    augment: Option<Augment>,
    /// Times each training image comes in an epoch.
    #[arg(long, default_value_t = 1, value_name = "N", help_heading = "Model and data")]
    repeat_data: usize,
    /// Threads a rank that read images ahead; 0: none [default: 0 for sets in memory, else a quarter of --threads].
    #[arg(long, value_name = "N", help_heading = "Model and data")]
    loader_threads: Option<usize>,
    /// Stop at an image that cannot be read, instead of skipping it.
    #[arg(long, help_heading = "Model and data")]
    strict: bool,
    /// What decodes JPEG files: libjpeg-turbo (turbo), a decoder in Rust (rust), or turbo where all ranks have it
    /// (auto).
    #[arg(long, value_enum, default_value = "auto", value_name = "NAME", help_heading = "Model and data")]
    jpeg_decoder: JpegDecoder,
}

impl Args {
    pub fn take(&mut self, path: PathBuf) {
        self.data = Some(path);
    }

    pub fn path(&self) -> Option<&Path> {
        self.data.as_deref()
    }

    /// # Errors
    /// `Usage`, naming the flag.
    pub fn validate(self) -> Result<(Option<PathBuf>, Input)> {
        within("repeat-data", self.repeat_data, most::REPEATS)?;
        at_most("loader-threads", self.loader_threads.unwrap_or(0), most::LOADER_THREADS)?;
        let given = [
            (self.data_format.is_some(), "data-format"),
            (self.augment.is_some(), "augment"),
            (self.repeat_data > 1, "repeat-data"),
            (self.strict, "strict"),
            (self.jpeg_decoder != JpegDecoder::Auto, "jpeg-decoder"),
        ];
        if let (None, Some((_, flag))) = (&self.data, given.iter().find(|(given, _)| *given)) {
            return Err(Error::usage(format!("--{flag} needs --data")));
        }
        let input = Input {
            format: self.data_format,
            augment: self.augment,
            repeat: self.repeat_data,
            loader_threads: self.loader_threads,
            strict: self.strict,
            jpeg_decoder: self.jpeg_decoder,
        };
        Ok((self.data, input))
    }
}
