//! Random images, for measuring a machine without data.

use std::sync::Arc;

use super::images::Images;
use super::picture::Picture;
use super::sample::Samples;
use super::{Colours, Dataset, EvaluationCrop};
use crate::error::Result;
use crate::random::{Purpose, Stream, key};

/// No more different images than this, nor more bytes of them: the rest are repeats.
const DISTINCT: usize = 1024;
const DISTINCT_BYTES: usize = 64 << 20;

struct Synthetic {
    images: Images,
    len: usize,
}

/// `len` random images (C, H, W) with random labels, the same for the same seed on every rank.
///
/// Image `i` repeats image `i % d`, where d is at most 1024: a batch has unlike images, and setting up
/// takes no longer for a long run.
pub fn synthetic(sample: [usize; 3], classes: usize, len: usize, seed: u64) -> Samples {
    let [channels, height, width] = sample;
    let size = channels * height * width;
    let distinct = len.min(DISTINCT).min((DISTINCT_BYTES / size.max(1)).max(1));
    let mut stream = Stream::new(key(seed, Purpose::Synthetic, 0));
    let words = (distinct * size).div_ceil(4);
    let mut pixels: Vec<u8> = (0..words).flat_map(|_| stream.word().to_le_bytes()).collect();
    pixels.truncate(distinct * size);
    let mut stream = Stream::new(key(seed, Purpose::Synthetic, 1));
    let labels = (0..distinct).map(|_| stream.below(classes.max(1) as u32) as i32).collect();
    let classes = (0..classes).map(|class| class.to_string()).collect();
    let colours = Colours::over(&pixels, channels);
    let (name, fingerprint) = ("a synthetic set".into(), format!("synthetic, seed {seed}"));
    let images = Images { pixels, labels, height, width, channels, classes, colours, name, fingerprint };
    let set = Arc::new(Synthetic { images, len });
    Samples::new(set.clone(), sample, &*set)
}

impl Dataset for Synthetic {
    fn len(&self) -> usize {
        self.len
    }

    fn class_names(&self) -> &[String] {
        self.images.class_names()
    }

    fn label(&self, index: usize) -> i32 {
        self.images.label(index % self.images.len())
    }

    fn read(&self, index: usize, picture: &mut Picture) -> Result<()> {
        self.images.read(index % self.images.len(), picture)
    }

    fn name(&self, index: usize) -> String {
        self.images.name(index)
    }

    fn fingerprint(&self) -> String {
        self.images.fingerprint()
    }

    fn colours(&self) -> Colours {
        self.images.colours()
    }

    fn frame(&self) -> EvaluationCrop {
        EvaluationCrop::Whole
    }

    fn in_memory(&self) -> bool {
        true
    }
}
