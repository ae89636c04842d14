//! Random images, for measuring a machine without data.

use std::rc::Rc;

use super::Dataset;
use super::images::{Images, Normalise};
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
pub fn synthetic(sample: [usize; 3], classes: usize, len: usize, seed: u64) -> Rc<dyn Dataset> {
    let [planes, height, width] = sample;
    let size = planes * height * width;
    let distinct = len.min(DISTINCT).min((DISTINCT_BYTES / size.max(1)).max(1));
    let mut stream = Stream::new(key(seed, Purpose::Synthetic, 0));
    let words = (distinct * size).div_ceil(4);
    let mut pixels: Vec<u8> = (0..words).flat_map(|_| stream.word().to_le_bytes()).collect();
    pixels.truncate(distinct * size);
    let mut stream = Stream::new(key(seed, Purpose::Synthetic, 1));
    let labels = (0..distinct).map(|_| stream.below(classes.max(1) as u32) as i32).collect();
    let normalise = Normalise::over(&pixels);
    let fingerprint = format!("synthetic, seed {seed}");
    let images = Images { pixels, labels, planes, height, width, classes, sample, normalise, fingerprint };
    Rc::new(Synthetic { images, len })
}

impl Dataset for Synthetic {
    fn len(&self) -> usize {
        self.len
    }

    fn classes(&self) -> usize {
        self.images.classes()
    }

    fn sample(&self) -> [usize; 3] {
        self.images.sample()
    }

    fn read(&self, index: usize, image: &mut [f32]) {
        self.images.read(index % self.images.len(), image);
    }

    fn label(&self, index: usize) -> i32 {
        self.images.label(index % self.images.len())
    }

    fn fingerprint(&self) -> &str {
        self.images.fingerprint()
    }
}
