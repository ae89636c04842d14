//! Mean and deviation of a set's colours, by which images are normalised.

use super::{EvaluationCrop, Preprocessing};

/// Mean and deviation of each channel, in bytes (0 to 255). A grey set has its values in all three.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Colours {
    /// Mean of each channel.
    pub mean: [f64; 3],
    /// Standard deviation of each channel.
    pub deviation: [f64; 3],
}

impl Colours {
    /// The colours of ImageNet, as torchvision has them: for sets that do not say theirs.
    pub fn imagenet() -> Colours {
        Colours {
            mean: [0.485, 0.456, 0.406].map(|mean| mean * 255.0),
            deviation: [0.229, 0.224, 0.225].map(|deviation| deviation * 255.0),
        }
    }

    /// What a network expects that reads (C, H, W) and learns from images of these colours.
    pub fn expected(&self, image: [usize; 3], frame: EvaluationCrop) -> Preprocessing {
        // A grey of colours is nearest to green.
        let of = |values: &[f64; 3]| {
            if image[0] == 1 { vec![values[1] / 255.0] } else { values.map(|v| v / 255.0).into() }
        };
        Preprocessing { image, mean: of(&self.mean), std: of(&self.deviation), frame }
    }

    /// The colours that a network expects.
    pub fn of(expected: &Preprocessing) -> Colours {
        let of = |values: &[f64]| [0, 1, 2].map(|c| 255.0 * values[c.min(values.len() - 1)]);
        Colours { mean: of(&expected.mean), deviation: of(&expected.std) }
    }

    /// The colours of images with 1 or 3 channels, innermost.
    pub fn over(pixels: &[u8], channels: usize) -> Colours {
        let mut sums = ColourSums::default();
        sums.add(pixels, channels);
        sums.colours()
    }
}

/// What mean and deviation are made from; sums of parts add up to those of the whole, exactly.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ColourSums {
    /// Pixels.
    pub count: u64,
    /// Sum of the pixels of each channel, from 0 to 255.
    pub sum: [u64; 3],
    /// Sum of their squares.
    pub squares: [u64; 3],
}

impl ColourSums {
    /// Adds pixels of 1 or 3 channels, innermost.
    pub fn add(&mut self, pixels: &[u8], channels: usize) {
        self.count += (pixels.len() / channels.max(1)) as u64;
        // A block of 2^15 squares of bytes fits 32 bits, which lets the compiler use wide instructions.
        for block in pixels.chunks(channels << 15) {
            match channels {
                1 => {
                    let sum = block.iter().map(|&value| u32::from(value)).sum::<u32>();
                    let squares = block.iter().map(|&value| u32::from(value) * u32::from(value)).sum::<u32>();
                    for channel in 0..3 {
                        self.sum[channel] += u64::from(sum);
                        self.squares[channel] += u64::from(squares);
                    }
                }
                _ => {
                    let (mut sum, mut squares) = ([0u32; 3], [0u32; 3]);
                    for pixel in block.as_chunks::<3>().0 {
                        for channel in 0..3 {
                            sum[channel] += u32::from(pixel[channel]);
                            squares[channel] += u32::from(pixel[channel]) * u32::from(pixel[channel]);
                        }
                    }
                    for channel in 0..3 {
                        self.sum[channel] += u64::from(sum[channel]);
                        self.squares[channel] += u64::from(squares[channel]);
                    }
                }
            }
        }
    }

    /// Adds the sums of other images.
    pub fn join(&mut self, other: &ColourSums) {
        self.count = self.count.saturating_add(other.count);
        for channel in 0..3 {
            self.sum[channel] = self.sum[channel].saturating_add(other.sum[channel]);
            self.squares[channel] = self.squares[channel].saturating_add(other.squares[channel]);
        }
    }

    /// Mean and deviation of what was summed.
    pub fn colours(&self) -> Colours {
        let count = self.count.max(1) as f64;
        let mean = self.sum.map(|sum| sum as f64 / count);
        let deviation = [0, 1, 2].map(|channel| {
            let variance = self.squares[channel] as f64 / count - mean[channel] * mean[channel];
            let deviation = variance.max(0.0).sqrt();
            // Images that are all the same value have no deviation to divide by.
            if deviation > 1e-6 { deviation } else { 1.0 }
        });
        Colours { mean, deviation }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_and_deviation_are_those_of_each_channel() {
        let colours = Colours::over(&[0, 10, 7, 4, 30, 7], 3);
        assert_eq!(colours, Colours { mean: [2.0, 20.0, 7.0], deviation: [2.0, 10.0, 1.0] });
        let grey = Colours::over(&[1, 3], 1);
        assert_eq!(grey, Colours { mean: [2.0; 3], deviation: [1.0; 3] });
    }

    #[test]
    fn sums_of_parts_are_those_of_the_whole() {
        let pixels: Vec<u8> = (0..300_000u32).map(|i| (i % 251 * (i % 251) % 251) as u8).collect();
        let (mut whole, mut parts) = (ColourSums::default(), ColourSums::default());
        whole.add(&pixels, 3);
        for part in pixels.chunks(99) {
            let mut sums = ColourSums::default();
            sums.add(part, 3);
            parts.join(&sums);
        }
        assert_eq!(whole, parts);
    }
}
