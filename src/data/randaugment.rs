//! RandAugment: two operations drawn from fourteen, all at one strength.
//!
//! Cubuk, Zoph, Shlens, Le: "RandAugment: Practical automated data augmentation with a reduced search space", CVPR
//! workshops 2020; operations and strengths as in torchvision (2 of 14, magnitude 9 of 30, nearest pixel, black
//! outside).

use super::augment::{brightness, byte, contrast, saturation};
use super::picture::Picture;
use crate::random::Stream;

const OPERATIONS: u32 = 2;
/// Magnitude 9 of 30.
const STRENGTH: f32 = 0.3;

pub fn apply(stream: &mut Stream, picture: &mut Picture, spare: &mut Picture) {
    for _ in 0..OPERATIONS {
        let which = stream.below(14);
        let sign = if stream.below(2) == 0 { 1.0 } else { -1.0 };
        operation(which, sign, picture, spare);
    }
}

/// One of 0..14. `sign` turns the direction of those that have one.
fn operation(which: u32, sign: f32, picture: &mut Picture, spare: &mut Picture) {
    let enhance = 1.0 + sign * 0.9 * STRENGTH;
    let (width, height) = (picture.width as f32, picture.height as f32);
    match which {
        0 => {}
        1 => warp([1.0, sign * 0.3 * STRENGTH, 0.0, 0.0, 1.0, 0.0], picture, spare),
        2 => warp([1.0, 0.0, 0.0, sign * 0.3 * STRENGTH, 1.0, 0.0], picture, spare),
        3 => warp([1.0, 0.0, sign * width * 150.0 / 331.0 * STRENGTH, 0.0, 1.0, 0.0], picture, spare),
        4 => warp([1.0, 0.0, 0.0, 0.0, 1.0, sign * height * 150.0 / 331.0 * STRENGTH], picture, spare),
        5 => {
            let (sin, cos) = (sign * (30.0f32 * STRENGTH).to_radians()).sin_cos();
            let (x, y) = (width / 2.0, height / 2.0);
            warp([cos, sin, x - cos * x - sin * y, -sin, cos, y + sin * x - cos * y], picture, spare);
        }
        6 => brightness(picture, enhance),
        7 => saturation(picture, enhance),
        8 => contrast(picture, enhance),
        9 => sharpness(picture, enhance, spare),
        // 8 bits less the rounded 9 / 7.5.
        10 => picture.pixels.iter_mut().for_each(|value| *value &= 0xfe),
        11 => {
            let inverted =
                |value: u8| if f32::from(value) >= 255.0 * (1.0 - STRENGTH) { 255 - value } else { value };
            picture.pixels.iter_mut().for_each(|value| *value = inverted(*value));
        }
        12 => each_channel(picture, stretch),
        _ => each_channel(picture, equalize),
    }
}

/// Takes each pixel from where (a·x + b·y + c, d·x + e·y + f) lies, pixels being areas.
fn warp([a, b, c, d, e, f]: [f32; 6], picture: &mut Picture, spare: &mut Picture) {
    let channels = picture.channels;
    spare.reshape(picture.height, picture.width, channels);
    spare.pixels.fill(0);
    let mut targets = spare.pixels.chunks_exact_mut(channels);
    for row in 0..picture.height {
        for (column, target) in (0..picture.width).zip(&mut targets) {
            let (x, y) = (column as f32 + 0.5, row as f32 + 0.5);
            let (x, y) = ((a * x + b * y + c).floor(), (d * x + e * y + f).floor());
            if x >= 0.0 && y >= 0.0 && x < picture.width as f32 && y < picture.height as f32 {
                let at = (y as usize * picture.width + x as usize) * channels;
                target.copy_from_slice(&picture.pixels[at..at + channels]);
            }
        }
    }
    std::mem::swap(picture, spare);
}

/// Blends with the picture smoothed by (1 1 1, 1 5 1, 1 1 1) / 13; the outermost pixels stay.
fn sharpness(picture: &mut Picture, factor: f32, spare: &mut Picture) {
    spare.clone_from(picture);
    let (channels, line) = (picture.channels, picture.width * picture.channels);
    for row in 1..picture.height.saturating_sub(1) {
        for at in row * line + channels..(row + 1) * line - channels {
            let near = |offset: usize| -> u32 {
                let middle = at - line + offset;
                [middle - channels, middle, middle + channels]
                    .map(|i| u32::from(spare.pixels[i]))
                    .iter()
                    .sum()
            };
            let own = u32::from(spare.pixels[at]);
            let smooth = ((near(0) + near(line) + near(2 * line) + 4 * own) as f32 / 13.0).round();
            picture.pixels[at] = byte(smooth + (own as f32 - smooth) * factor);
        }
    }
}

/// Replaces the values of each channel by a table that is made from how often each of them occurs.
fn each_channel(picture: &mut Picture, table: fn(&[u32; 256]) -> [u8; 256]) {
    for channel in 0..picture.channels {
        let mut counts = [0u32; 256];
        let values = picture.pixels.iter().skip(channel).step_by(picture.channels);
        values.for_each(|&value| counts[usize::from(value)] += 1);
        let table = table(&counts);
        let values = picture.pixels.iter_mut().skip(channel).step_by(picture.channels);
        values.for_each(|value| *value = table[usize::from(*value)]);
    }
}

/// The darkest becomes 0, the brightest 255.
fn stretch(counts: &[u32; 256]) -> [u8; 256] {
    let low = counts.iter().position(|&count| count > 0).unwrap_or(0) as f32;
    let high = counts.iter().rposition(|&count| count > 0).unwrap_or(0) as f32;
    let scale = if high > low { 255.0 / (high - low) } else { 0.0 };
    std::array::from_fn(|value| if high > low { byte((value as f32 - low) * scale) } else { value as u8 })
}

/// All values become as frequent as possible.
fn equalize(counts: &[u32; 256]) -> [u8; 256] {
    let pixels: u32 = counts.iter().sum();
    let last = counts.iter().rev().find(|count| **count > 0).copied().unwrap_or(0);
    let step = (pixels - last) / 255;
    let mut below = step / 2;
    std::array::from_fn(|value| match step {
        0 => value as u8,
        _ => {
            let to = (below / step).min(255) as u8;
            below += counts[value];
            to
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(which: u32, sign: f32, pixels: &[u8], width: usize) -> Vec<u8> {
        let mut picture =
            Picture { pixels: pixels.to_vec(), height: pixels.len() / width, width, channels: 1 };
        operation(which, sign, &mut picture, &mut Picture::default());
        picture.pixels
    }

    /// The values are PIL's: ImageOps.autocontrast, solarize(179), posterize(7), ImageEnhance.Sharpness(1.27).
    #[test]
    fn operations_are_those_of_pil() {
        let pixels: Vec<u8> = (0..25u32).map(|i| (i * i * 7 % 200 + 20) as u8).collect();
        for (which, expected) in PIL {
            assert_eq!(after(which, 1.0, &pixels, 5), expected, "operation {which}");
        }
    }

    #[rustfmt::skip]
    const PIL: [(u32, [u8; 25]); 4] = [
        (9, [20, 27, 48, 83, 132, 195, 70, 177, 57, 187, 120, 56, 13, 217, 192, 195, 230, 28, 82, 147, 20, 107, 208, 123, 52]),
        (10, [20, 26, 48, 82, 132, 194, 72, 162, 68, 186, 120, 66, 28, 202, 192, 194, 212, 42, 88, 146, 20, 106, 208, 122, 52]),
        (11, [20, 27, 48, 83, 132, 60, 72, 163, 68, 68, 120, 67, 28, 52, 63, 60, 43, 43, 88, 147, 20, 107, 47, 123, 52]),
        (12, [0, 9, 37, 83, 148, 232, 69, 189, 63, 221, 132, 62, 10, 243, 228, 232, 255, 30, 90, 168, 0, 115, 249, 136, 42]),
    ];

    /// PIL's answer for 510 pixels of which each of 51 even values from 60 on is there ten times.
    #[test]
    fn equalizing_spreads_the_values_evenly() {
        let pixels: Vec<u8> = (0..510).map(|i| (i / 10 * 2 + 60) as u8).collect();
        let spread = after(13, 1.0, &pixels, 51);
        let expected: Vec<u8> = (0..510).map(|i| (i / 10 * 10).min(255) as u8).collect();
        assert_eq!(spread, expected);
    }

    #[test]
    fn pixels_move_where_they_should() {
        let row: Vec<u8> = (1..=10).collect();
        // 10 · 150/331 · 0.3 = 1.36 pixels, to either side.
        assert_eq!(after(3, 1.0, &row, 10), [2, 3, 4, 5, 6, 7, 8, 9, 10, 0]);
        assert_eq!(after(3, -1.0, &row, 10), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(after(4, 1.0, &row, 1), [2, 3, 4, 5, 6, 7, 8, 9, 10, 0]);
        // Nine degrees move the corners of a large square and not its middle.
        let square: Vec<u8> = (0..41 * 41).map(|i| (i % 250 + 1) as u8).collect();
        let turned = after(5, 1.0, &square, 41);
        assert_eq!((turned[20 * 41 + 20], turned[0]), (square[20 * 41 + 20], 0));
        assert_eq!(after(0, 1.0, &square, 41), square);
    }
}
