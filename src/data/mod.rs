//! Data sets, which rank sees which image, and how images become what a model reads.
//!
//! A `Dataset` hands out single pictures, decoded, from memory or files. `Samples` makes of each what a model reads:
//! cut, scaled, augmented, normalised. A `Sharding` says which of them each rank reads at each step; the two loaders
//! put all together and fill a rank's batch, ahead of time where threads are given.
//! `FieldSet` is the one whose samples are arrays with targets. May use: `config`, `cuts`, `error`, `fields`, `files`,
//! `model` (what a network expects), `random`. Used by: `train`, `pack`,
//! `bench`, `cli`.

mod about;
mod augment;
mod cifar;
mod colours;
mod detect;
mod doubts;
mod fields;
mod folder;
mod header;
mod idx;
mod images;
mod layout;
mod loader;
mod members;
mod mix;
mod orientation;
pub mod packed;
mod picture;
mod prefetch;
mod randaugment;
mod sample;
mod shard;
mod split;
mod synthetic;
mod synthetic_shapes;
mod tar;
#[allow(unsafe_code)]
mod turbojpeg;

pub use about::{are_numbers, classes as listed_classes};
pub use colours::{ColourSums, Colours};
pub use detect::{Parts, open, open_to_predict, open_to_test, parts};
pub use fields::{ArraysOf, Codes, CodesMut, Field, FieldSet, MissingCount};
pub use loader::{Batch, PADDING, Reading, TestLoader, TrainingLoader};
pub use picture::{Jpeg, Picture, decode};
pub use prefetch::AHEAD;
pub use sample::{DecodeBuffers, Normalisation, Samples, shorter_side};
pub use shard::{Sharding, block_order, epoch_order};
pub use synthetic::synthetic;

use crate::config::Input;
use crate::error::Result;
use crate::graph::CodeTables;
use crate::model::onnx::{NetworkInput, SampleArrays, TargetAxes, TargetShape};
pub use crate::model::{ChannelScale, EvaluationCrop, LearnedArray, Preprocessing, SampleAxis};

/// Labelled pictures. Reading one changes nothing, so that many threads can read at once.
pub trait Dataset: Send + Sync {
    /// How many there are; at least one.
    fn len(&self) -> usize;

    /// Whether there is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Labels are 0..class_names().len(). Without classes nothing is known of what the images are.
    fn class_names(&self) -> &[String] {
        &[]
    }

    /// The class of one image; 0 where there are none.
    fn label(&self, _index: usize) -> i32 {
        0
    }

    /// Decodes one image, of any size, with 1 or 3 channels. `index` is below `len`.
    ///
    /// # Errors
    /// `Data`, with the image's name: it is gone or does not decode.
    fn read(&self, index: usize, picture: &mut Picture) -> Result<()>;

    /// What to call an image in a message.
    fn name(&self, index: usize) -> String;

    /// The names of all of them, in order.
    fn names(&self) -> Vec<String> {
        (0..self.len()).map(|index| self.name(index)).collect()
    }

    /// What the set holds, in words short enough for a message; equal for equal files only.
    fn fingerprint(&self) -> String;

    /// By which images are normalised.
    fn colours(&self) -> Colours {
        Colours::imagenet()
    }

    /// How many channels every picture has, where all have as many.
    fn channels(&self) -> Option<usize> {
        None
    }

    /// What of an image evaluation looks at.
    fn frame(&self) -> EvaluationCrop {
        EvaluationCrop::Centre
    }

    /// Whether reading is a copy, not worth a thread.
    fn in_memory(&self) -> bool {
        false
    }

    /// The image as the JPEG or PNG file that it is; `None` where it is pixels.
    ///
    /// # Errors
    /// As for `read`.
    fn encoded(&self, _index: usize) -> Result<Option<Vec<u8>>> {
        Ok(None)
    }

    /// Its samples as arrays, where they are no pictures: nothing else of it is then read.
    fn fields(&self) -> Option<&FieldSet> {
        None
    }

    /// What decodes its images, where they may be JPEG files.
    fn jpeg(&self) -> Option<Jpeg> {
        None
    }

    /// Where blocks of images begin that are best read together; empty where any order is as good.
    fn blocks(&self) -> Vec<u32> {
        Vec::new()
    }

    /// Says how many images' surroundings are worth keeping, and how many threads read; returns the bytes that will
    /// take.
    fn keep(&self, _images: usize, _threads: usize) -> usize {
        0
    }
}

/// What a run learns from and what it is measured by.
#[derive(Clone)]
pub struct Sets {
    /// The training images, augmented.
    pub training: Samples,
    /// `None` where the data have no part for it.
    pub test: Option<Samples>,
    /// What the data were taken for, a line each.
    pub said: Vec<String>,
    /// Whose mean and deviation images are normalised by.
    pub colours: &'static str,
    /// Whether an image has the first class.
    pub begins_at_0: bool,
    /// Seconds in which a thread reads a sample, where the first rank has tried it.
    pub seconds: Option<f64>,
}

impl Sets {
    /// How pixels become numbers, where all that differs between images is pixels: a device can then do it.
    pub fn pixels(&self) -> Option<Normalisation> {
        let own = self.training.pixels();
        own.filter(|_| self.test.as_ref().is_none_or(|test| test.pixels() == own))
    }

    /// What can be sent to a device in place of numbers.
    pub fn raw(&self) -> Option<RawSamples> {
        if let Some(pixels) = self.pixels() {
            return Some(RawSamples::Pixels(pixels));
        }
        let set = self.training.fields()?;
        let test = match &self.test {
            Some(test) => Some(test.fields()?),
            None => None,
        };
        let tables = [false, true].map(|of_targets| {
            let own = set.tables(of_targets)?;
            let alike = |test: &FieldSet| test.tables(of_targets).is_some_and(|test| test.is_same(own));
            test.is_none_or(alike).then(|| own.clone())
        });
        Some(RawSamples::Codes(tables))
    }
}

/// Samples as they are sent to a device that makes the numbers of them which a network reads.
#[derive(Debug, Clone)]
pub enum RawSamples {
    /// Pictures as pixels.
    Pixels(Normalisation),
    /// Arrays whose numbers have few bits in their files: inputs and targets, where they have.
    Codes([Option<CodeTables>; 2]),
}

/// What a run wants of a data set.
#[derive(Debug, Clone)]
pub struct Wanted<'a> {
    /// (C, H, W) that the model reads.
    pub sample: [usize; 3],
    /// Classes that it tells apart.
    pub classes: usize,
    /// Seed of augmentation.
    pub seed: u64,
    /// Format, augmentation and decoder.
    pub input: &'a Input,
}
