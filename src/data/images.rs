//! A data set whose images lie in memory as bytes.

use super::picture::Picture;
use super::{Colours, Dataset, EvaluationCrop};
use crate::error::Result;

/// A set scaled when it is loaded may take this much memory on each rank; a larger one stays as it came
/// and is scaled image by image.
const SCALED_BYTES: usize = 512 << 20;

/// Images of one size.
pub struct Images {
    /// N × height × width × channels, outermost first.
    pub pixels: Vec<u8>,
    pub labels: Vec<i32>,
    pub height: usize,
    pub width: usize,
    pub channels: usize,
    pub classes: Vec<String>,
    pub colours: Colours,
    /// Where they came from, for messages.
    pub name: String,
    pub fingerprint: String,
}

impl Images {
    /// Scales every image to a size now, if the result is not too large to keep.
    pub fn scale_all(&mut self, [height, width]: [usize; 2]) {
        let values = self.labels.len() as u64 * (self.channels * height * width) as u64;
        if [height, width] == [self.height, self.width] || values > SCALED_BYTES as u64 {
            return;
        }
        let bilinear = Bilinear::new([self.height, self.width], [height, width], self.channels);
        let mut scaled = vec![0u8; values as usize];
        let source = self.pixels.chunks_exact(self.height * self.width * self.channels);
        for (source, target) in source.zip(scaled.chunks_exact_mut(height * width * self.channels)) {
            bilinear.scale(source, target);
        }
        (self.pixels, self.height, self.width) = (scaled, height, width);
    }
}

impl Dataset for Images {
    fn len(&self) -> usize {
        self.labels.len()
    }

    fn class_names(&self) -> &[String] {
        &self.classes
    }

    fn label(&self, index: usize) -> i32 {
        self.labels[index]
    }

    fn read(&self, index: usize, picture: &mut Picture) -> Result<()> {
        picture.reshape(self.height, self.width, self.channels);
        let size = picture.pixels.len();
        picture.pixels.copy_from_slice(&self.pixels[index * size..][..size]);
        Ok(())
    }

    fn name(&self, index: usize) -> String {
        format!("image {index} of {}", self.name)
    }

    fn fingerprint(&self) -> String {
        self.fingerprint.clone()
    }

    fn colours(&self) -> Colours {
        self.colours
    }

    fn channels(&self) -> Option<usize> {
        Some(self.channels)
    }

    fn frame(&self) -> EvaluationCrop {
        EvaluationCrop::Whole
    }

    fn in_memory(&self) -> bool {
        true
    }
}

/// Bilinear scaling: pixels are areas, so that corners do not move (PyTorch's `interpolate(mode="bilinear",
/// align_corners=False)`).
struct Bilinear {
    rows: Vec<Tap>,
    columns: Vec<Tap>,
    from_width: usize,
    channels: usize,
}

/// An output position lies between two input positions, `weight` of the way to the second.
#[derive(Clone, Copy)]
struct Tap {
    first: usize,
    second: usize,
    weight: f32,
}

impl Bilinear {
    /// From one (height, width) to another; neither has a zero.
    fn new(from: [usize; 2], to: [usize; 2], channels: usize) -> Bilinear {
        let taps = |from: usize, to: usize| {
            let tap = |position: usize| {
                let centre = (position as f32 + 0.5) * (from as f32 / to as f32) - 0.5;
                let centre = centre.clamp(0.0, (from - 1) as f32);
                let first = centre as usize;
                Tap { first, second: (first + 1).min(from - 1), weight: centre - first as f32 }
            };
            (0..to).map(tap).collect()
        };
        Bilinear { rows: taps(from[0], to[0]), columns: taps(from[1], to[1]), from_width: from[1], channels }
    }

    fn scale(&self, source: &[u8], target: &mut [u8]) {
        let line = self.from_width * self.channels;
        let row = |index: usize| &source[index * line..][..line];
        let target_line = self.columns.len() * self.channels;
        for (tap, target) in self.rows.iter().zip(target.chunks_exact_mut(target_line)) {
            let (upper, lower) = (row(tap.first), row(tap.second));
            let between = |at: usize| {
                let (above, below) = (f32::from(upper[at]), f32::from(lower[at]));
                above + (below - above) * tap.weight
            };
            for (column, target) in self.columns.iter().zip(target.chunks_exact_mut(self.channels)) {
                for (channel, target) in target.iter_mut().enumerate() {
                    let left = between(column.first * self.channels + channel);
                    let right = between(column.second * self.channels + channel);
                    *target = (left + (right - left) * column.weight + 0.5) as u8;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values are PyTorch's, rounded: `interpolate(tensor, size, mode="bilinear", align_corners=False)`.
    #[test]
    fn scaling_is_that_of_pytorch() {
        let mut image = [0; 16];
        Bilinear::new([2, 2], [4, 4], 1).scale(&[0, 100, 40, 200], &mut image);
        #[rustfmt::skip]
        assert_eq!(image, [
             0,  25,  75, 100,
            10,  39,  96, 125,
            30,  66, 139, 175,
            40,  80, 160, 200,
        ]);
        // Two channels, the second the first one's complement.
        let pixels = [0u8, 10, 20, 30, 40, 50, 60, 70, 80, 90];
        let pixels: Vec<u8> = pixels.iter().flat_map(|&value| [value, 100 - value]).collect();
        let mut image = [0; 12];
        Bilinear::new([2, 5], [3, 2], 2).scale(&pixels, &mut image);
        // 7.5, 32.5, 32.5, 57.5, 57.5, 82.5 and what is left of 100.
        assert_eq!(image, [8, 93, 33, 68, 33, 68, 58, 43, 58, 43, 83, 18]);
    }
}
