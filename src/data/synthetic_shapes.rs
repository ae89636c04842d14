//! Images that can be learned where there are no real ones: a shape a class, anywhere, of any size, colour and
//! background.
//!
//! An image is computed from (seed, part, index) when it is read. Class c draws shape c modulo 10; where there are more
//! than ten classes, c / 10 picks the shape's hue.

use std::sync::Arc;

use super::about::InputSummary;
use super::detect::Parts;
use super::picture::Picture;
use super::{Colours, Dataset, EvaluationCrop, Wanted};
use crate::config::most;
use crate::error::{Error, Result};
use crate::random::{Purpose, Stream, key};

const SHAPES: [&str; 10] = [
    "disc",
    "ring",
    "square",
    "frame",
    "triangle",
    "cross",
    "diagonal cross",
    "stripes",
    "columns",
    "chequers",
];

/// Training images, where the number is not given; a quarter as many for testing.
const USUAL: usize = 4096;

struct Shapes {
    classes: Vec<String>,
    /// Height and width.
    size: [usize; 2],
    channels: usize,
    seed: u64,
    /// 0 for training, 1 for testing.
    part: u32,
    len: usize,
}

/// Opens "shapes" or "shapes:N", for N training images.
///
/// # Errors
/// `Usage` for another name.
pub fn open(what: &str, wanted: &Wanted) -> Result<Parts> {
    let len = match what.split_once(':') {
        None if what == "shapes" => Some(USUAL),
        Some(("shapes", count)) => count.parse().ok().filter(|count| (4..=most::IMAGES).contains(count)),
        _ => None,
    };
    let Some(len) = len else {
        return Err(Error::usage(format!(
            "--data synthetic:{what}: there is synthetic:shapes, and synthetic:shapes:N with N training images (from 4 \
             to {}); of arrays, with --input and --target, there is synthetic:universes",
            most::IMAGES
        )));
    };
    let [channels, height, width] = wanted.sample;
    let name = |class: usize| match class / SHAPES.len() {
        0 => SHAPES[class].to_string(),
        hue => format!("{} {hue}", SHAPES[class % SHAPES.len()]),
    };
    let part = |part, len| -> Arc<dyn Dataset> {
        let classes = (0..wanted.classes).map(name).collect();
        Arc::new(Shapes { classes, size: [height, width], channels, seed: wanted.seed, part, len })
    };
    let about = InputSummary { colours: "usual", ..InputSummary::of("computed images", ["", ""]) };
    Ok(Parts { training: part(0, len), test: Some(part(1, len / 4)), about })
}

impl Shapes {
    fn stream(&self, index: usize) -> Stream {
        Stream::at(key(self.seed, Purpose::Synthetic, 2 + self.part), [index as u32, 0])
    }
}

impl Dataset for Shapes {
    fn len(&self) -> usize {
        self.len
    }

    fn class_names(&self) -> &[String] {
        &self.classes
    }

    fn label(&self, index: usize) -> i32 {
        self.stream(index).below(self.classes.len() as u32) as i32
    }

    fn read(&self, index: usize, picture: &mut Picture) -> Result<()> {
        let mut stream = self.stream(index);
        let class = stream.below(self.classes.len() as u32) as usize;
        let [height, width] = self.size;
        let hues = self.classes.len().div_ceil(SHAPES.len()) as f32;
        // Of one hue out of several, or of any; bright on dark, or the other way round.
        let hue = if hues > 1.0 {
            ((class / SHAPES.len()) as f32 + 0.8 * stream.uniform()) / hues
        } else {
            stream.uniform()
        };
        let bright = 0.65 + 0.35 * stream.uniform();
        let dark = 0.35 * stream.uniform();
        let (ink, paper) = if stream.below(2) == 0 { (bright, dark) } else { (dark, bright) };
        let radius = 0.24 + 0.16 * stream.uniform();
        let mut middle = || radius + (1.0 - 2.0 * radius) * stream.uniform();
        let (x0, y0) = (middle(), middle());
        let inks = [0.0, 1.0 / 3.0, 2.0 / 3.0].map(|turn| colour(ink, hue + turn));
        picture.reshape(height, width, self.channels);
        let mut pixels = picture.pixels.chunks_exact_mut(self.channels);
        for row in 0..height {
            for (column, pixel) in (0..width).zip(&mut pixels) {
                let x = ((column as f32 + 0.5) / width as f32 - x0) / radius;
                let y = ((row as f32 + 0.5) / height as f32 - y0) / radius;
                let inside = covers(class % SHAPES.len(), x, y);
                for (value, ink) in pixel.iter_mut().zip(inks) {
                    let noise = 0.1 * (stream.uniform() - 0.5);
                    *value = ((if inside { ink } else { paper } + noise) * 255.0) as u8;
                }
            }
        }
        Ok(())
    }

    fn name(&self, index: usize) -> String {
        format!("synthetic:shapes, image {index}")
    }

    fn fingerprint(&self) -> String {
        format!("{} images of shapes, part {}, seed {}", self.len, self.part, self.seed)
    }

    fn colours(&self) -> Colours {
        Colours { mean: [127.5; 3], deviation: [75.0; 3] }
    }

    fn channels(&self) -> Option<usize> {
        Some(self.channels)
    }

    fn frame(&self) -> EvaluationCrop {
        EvaluationCrop::Whole
    }

    /// Computing it takes some microseconds only.
    fn in_memory(&self) -> bool {
        true
    }
}

/// A brightness that varies with the hue (a position on the circle), by up to a quarter.
fn colour(brightness: f32, hue: f32) -> f32 {
    brightness * (0.75 + 0.25 * (std::f32::consts::TAU * hue).cos())
}

/// Whether a shape covers a point; it lies within −1..=1 on both axes.
fn covers(shape: usize, x: f32, y: f32) -> bool {
    let (distance, side) = (x.hypot(y), x.abs().max(y.abs()));
    let band = |at: f32| (at + 1.0) * 3.0 % 2.0 < 1.0;
    match shape {
        0 => distance < 1.0,
        1 => (0.55..1.0).contains(&distance),
        2 => side < 0.85,
        3 => (0.5..0.9).contains(&side),
        4 => y < 0.9 && y > -0.9 && x.abs() < (y + 0.9) * 0.55,
        5 => side < 1.0 && x.abs().min(y.abs()) < 0.28,
        6 => side < 0.9 && (x.abs() - y.abs()).abs() < 0.35,
        7 => side < 1.0 && band(y),
        8 => side < 1.0 && band(x),
        _ => side < 1.0 && (band(x) != band(y)),
    }
}
