//! A data set whose images lie in memory as bytes.

use super::Dataset;

/// A set scaled when it is loaded may take this much memory on each rank; a larger one stays as it came
/// and is scaled image by image.
const SCALED_BYTES: usize = 512 << 20;

/// Images of one size, one byte a value, and how they become what a model reads.
pub struct Images {
    /// N × planes × height × width, outermost first.
    pub pixels: Vec<u8>,
    pub labels: Vec<i32>,
    /// Channels stored: as many as the model reads, or 1 for grey images, repeated in every channel.
    pub planes: usize,
    pub height: usize,
    pub width: usize,
    pub classes: usize,
    /// (C, H, W) the model reads.
    pub sample: [usize; 3],
    pub normalise: Normalise,
    pub fingerprint: String,
}

/// Bytes become `byte · scale + shift`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Normalise {
    pub scale: f32,
    pub shift: f32,
}

impl Normalise {
    /// Mean 0 and deviation 1 over all these values.
    pub fn over(pixels: &[u8]) -> Normalise {
        let (mut sum, mut squares) = (0u64, 0u64);
        // A block of 2^15 squares of bytes fits 32 bits, which lets the compiler use wide instructions.
        for block in pixels.chunks(1 << 15) {
            sum += u64::from(block.iter().map(|&value| u32::from(value)).sum::<u32>());
            squares += u64::from(block.iter().map(|&value| u32::from(value) * u32::from(value)).sum::<u32>());
        }
        let count = pixels.len().max(1) as f64;
        let mean = sum as f64 / count;
        let deviation = (squares as f64 / count - mean * mean).max(0.0).sqrt();
        // Images that are all the same value have no deviation to divide by.
        let deviation = if deviation > 1e-6 { deviation } else { 1.0 };
        Normalise { scale: (1.0 / deviation) as f32, shift: (-mean / deviation) as f32 }
    }
}

impl Images {
    /// Scales every image to the model's size now, if the result is not too large to keep.
    pub fn scale_all(&mut self) {
        let [_, height, width] = self.sample;
        let planes = self.labels.len() * self.planes;
        let fits = (planes as u64) * (height as u64) * (width as u64) <= SCALED_BYTES as u64;
        if (height, width) == (self.height, self.width) || !fits {
            return;
        }
        let bilinear = Bilinear::new([self.height, self.width], [height, width]);
        let mut scaled = vec![0u8; planes * height * width];
        let mut plane = vec![0f32; height * width];
        let source = self.pixels.chunks_exact(self.height * self.width);
        for (source, target) in source.zip(scaled.chunks_exact_mut(height * width)) {
            bilinear.scale(source, &mut plane);
            for (target, &value) in target.iter_mut().zip(&plane) {
                *target = (value + 0.5) as u8;
            }
        }
        (self.pixels, self.height, self.width) = (scaled, height, width);
    }

    fn plane(&self, index: usize) -> &[u8] {
        let size = self.height * self.width;
        &self.pixels[index * size..][..size]
    }
}

impl Dataset for Images {
    fn len(&self) -> usize {
        self.labels.len()
    }

    fn classes(&self) -> usize {
        self.classes
    }

    fn sample(&self) -> [usize; 3] {
        self.sample
    }

    fn read(&self, index: usize, image: &mut [f32]) {
        let [_, height, width] = self.sample;
        let Normalise { scale, shift } = self.normalise;
        let (stored, repeated) = image.split_at_mut(self.planes * height * width);
        for (channel, target) in stored.chunks_exact_mut(height * width).enumerate() {
            let plane = self.plane(index * self.planes + channel);
            if (height, width) == (self.height, self.width) {
                for (target, &byte) in target.iter_mut().zip(plane) {
                    *target = f32::from(byte) * scale + shift;
                }
            } else {
                Bilinear::new([self.height, self.width], [height, width]).scale(plane, target);
                target.iter_mut().for_each(|value| *value = *value * scale + shift);
            }
        }
        for target in repeated.chunks_exact_mut(height * width) {
            target.copy_from_slice(&stored[..height * width]);
        }
    }

    fn label(&self, index: usize) -> i32 {
        self.labels[index]
    }

    fn fingerprint(&self) -> &str {
        &self.fingerprint
    }
}

/// Bilinear scaling of one plane: pixels are areas, so that corners do not move (PyTorch's
/// `interpolate(mode="bilinear", align_corners=False)`).
struct Bilinear {
    rows: Vec<Tap>,
    columns: Vec<Tap>,
    from_width: usize,
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
    fn new(from: [usize; 2], to: [usize; 2]) -> Bilinear {
        let taps = |from: usize, to: usize| {
            let tap = |position: usize| {
                let centre = (position as f32 + 0.5) * (from as f32 / to as f32) - 0.5;
                let centre = centre.clamp(0.0, (from - 1) as f32);
                let first = centre as usize;
                Tap { first, second: (first + 1).min(from - 1), weight: centre - first as f32 }
            };
            (0..to).map(tap).collect()
        };
        Bilinear { rows: taps(from[0], to[0]), columns: taps(from[1], to[1]), from_width: from[1] }
    }

    fn scale(&self, source: &[u8], target: &mut [f32]) {
        let row = |index: usize| &source[index * self.from_width..][..self.from_width];
        for (tap, target) in self.rows.iter().zip(target.chunks_exact_mut(self.columns.len())) {
            let (upper, lower) = (row(tap.first), row(tap.second));
            let between = |column: usize| {
                let (above, below) = (f32::from(upper[column]), f32::from(lower[column]));
                above + (below - above) * tap.weight
            };
            for (column, target) in self.columns.iter().zip(target) {
                let (left, right) = (between(column.first), between(column.second));
                *target = left + (right - left) * column.weight;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grey(pixels: &[u8], size: [usize; 2], sample: [usize; 3]) -> Images {
        Images {
            pixels: pixels.to_vec(),
            labels: vec![0; pixels.len() / (size[0] * size[1])],
            planes: 1,
            height: size[0],
            width: size[1],
            classes: 1,
            sample,
            normalise: Normalise { scale: 1.0, shift: 0.0 },
            fingerprint: String::new(),
        }
    }

    /// The values are PyTorch's: `interpolate(tensor, size, mode="bilinear", align_corners=False)`.
    #[test]
    fn scaling_is_that_of_pytorch() {
        let mut image = [0.0; 16];
        grey(&[0, 100, 40, 200], [2, 2], [1, 4, 4]).read(0, &mut image);
        #[rustfmt::skip]
        assert_eq!(image, [
             0.0,  25.0,   75.0, 100.0,
            10.0,  38.75,  96.25, 125.0,
            30.0,  66.25, 138.75, 175.0,
            40.0,  80.0,  160.0, 200.0,
        ]);
        let mut image = [0.0; 6];
        grey(&[0, 10, 20, 30, 40, 50, 60, 70, 80, 90], [2, 5], [1, 3, 2]).read(0, &mut image);
        assert_eq!(image, [7.5, 32.5, 32.5, 57.5, 57.5, 82.5]);
    }

    #[test]
    fn scaling_at_load_and_at_reading_agree_to_rounding() {
        let pixels: Vec<u8> = (0..2 * 64).map(|i| (i * 37 % 251) as u8).collect();
        let late = grey(&pixels, [8, 8], [3, 28, 20]);
        let mut early = grey(&pixels, [8, 8], [3, 28, 20]);
        early.scale_all();
        assert_eq!((early.height, early.width), (28, 20));
        let (mut a, mut b) = (vec![0.0; 3 * 560], vec![0.0; 3 * 560]);
        for index in 0..2 {
            late.read(index, &mut a);
            early.read(index, &mut b);
            assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() <= 0.5));
            assert_eq!(b[..560], b[1120..], "grey images fill every channel");
        }
    }

    #[test]
    fn normalised_values_have_mean_zero_and_deviation_one() {
        let pixels: Vec<u8> = (0..100_000u32).map(|i| (i * i % 199) as u8).collect();
        let Normalise { scale, shift } = Normalise::over(&pixels);
        let values: Vec<f64> = pixels.iter().map(|&p| f64::from(f32::from(p) * scale + shift)).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let variance = values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / values.len() as f64;
        assert!(mean.abs() < 1e-4 && (variance - 1.0).abs() < 1e-4, "{mean} {variance}");
    }

    #[test]
    fn constant_images_stay_finite() {
        assert_eq!(Normalise::over(&[9; 50]), Normalise { scale: 1.0, shift: -9.0 });
    }
}
