//! What is done to training images, apart from RandAugment.

use super::picture::Picture;
use super::randaugment;
use super::sample::Draws;
use crate::config::{Augment, Augmentation};
use crate::random::{Stream, normals};

/// Changes a picture that has the model's size already.
pub fn apply(
    augment: &Augment,
    draws: &impl Fn(Augmentation) -> Draws,
    picture: &mut Picture,
    spare: &mut Picture,
) {
    for &part in &augment.parts {
        let stream = &mut draws(part).0;
        match part {
            Augmentation::PadCrop => pad_and_crop(stream, picture, spare),
            Augmentation::Flip => {
                if stream.below(2) == 1 {
                    mirror(picture);
                }
            }
            Augmentation::RandAugment => randaugment::apply(stream, picture, spare),
            Augmentation::Jitter => jitter(stream, picture),
            // Before this, and after it.
            Augmentation::Crop | Augmentation::Lighting | Augmentation::Cutout => {}
        }
    }
}

/// Left, top, width and height of a random part with 8 to 100 % of the area and sides between 3:4 and 4:3, the ratio
/// uniform in its logarithm; after ten tries that do not fit, the largest middle part (torchvision's
/// RandomResizedCrop).
pub fn random_part(stream: &mut Stream, [height, width]: [usize; 2]) -> [f64; 4] {
    let (full_height, full_width) = (height as f64, width as f64);
    let uniform = |stream: &mut Stream, low: f64, high: f64| low + (high - low) * f64::from(stream.uniform());
    let widest = 4.0f64 / 3.0;
    for _ in 0..10 {
        let area = full_height * full_width * uniform(stream, 0.08, 1.0);
        let ratio = uniform(stream, -widest.ln(), widest.ln()).exp();
        let (w, h) = ((area * ratio).sqrt().round(), (area / ratio).sqrt().round());
        if w >= 1.0 && h >= 1.0 && w <= full_width && h <= full_height {
            let left = stream.below((full_width - w) as u32 + 1);
            let top = stream.below((full_height - h) as u32 + 1);
            return [f64::from(left), f64::from(top), w, h];
        }
    }
    let (w, h) = (full_width.min(full_height * widest), full_height.min(full_width * widest));
    let (w, h) = (w.round().max(1.0), h.round().max(1.0));
    [((full_width - w) / 2.0).floor(), ((full_height - h) / 2.0).floor(), w, h]
}

/// A random window of the picture's own size in the picture with black borders of an eighth of its side (4 of 32).
fn pad_and_crop(stream: &mut Stream, picture: &mut Picture, spare: &mut Picture) {
    let shift = |stream: &mut Stream, side: usize| {
        let padding = side / 8;
        stream.below(2 * padding as u32 + 1) as isize - padding as isize
    };
    let (down, right) = (shift(stream, picture.height), shift(stream, picture.width));
    spare.reshape(picture.height, picture.width, picture.channels);
    spare.pixels.fill(0);
    let line = picture.width * picture.channels;
    let width = picture.width.saturating_sub(right.unsigned_abs()) * picture.channels;
    let from = (-right).max(0) as usize * picture.channels;
    let to = right.max(0) as usize * picture.channels;
    for row in 0..picture.height {
        let source = row as isize - down;
        if (0..picture.height as isize).contains(&source) {
            let source = &picture.pixels[source as usize * line..][..line];
            spare.pixels[row * line..][to..to + width].copy_from_slice(&source[from..from + width]);
        }
    }
    std::mem::swap(picture, spare);
}

/// Left becomes right.
pub fn mirror(picture: &mut Picture) {
    let channels = picture.channels;
    for row in picture.pixels.chunks_exact_mut((picture.width * channels).max(1)) {
        match channels {
            1 => row.reverse(),
            _ => row.as_chunks_mut::<3>().0.reverse(),
        }
    }
}

/// Brightness, contrast and saturation, each blended with black, the mean grey and the pixel's own grey by a factor of
/// 0.6 to 1.4, in random order (torchvision's ColorJitter(0.4, 0.4, 0.4)).
fn jitter(stream: &mut Stream, picture: &mut Picture) {
    let mut order = [0, 1, 2];
    for last in [2, 1] {
        order.swap(last, stream.below(last as u32 + 1) as usize);
    }
    for which in order {
        let factor = 0.6 + 0.8 * stream.uniform();
        match which {
            0 => brightness(picture, factor),
            1 => contrast(picture, factor),
            _ => saturation(picture, factor),
        }
    }
}

/// From black (0) through the picture itself (1) to beyond.
pub fn brightness(picture: &mut Picture, factor: f32) {
    let table: [u8; 256] = std::array::from_fn(|value| byte(value as f32 * factor));
    picture.pixels.iter_mut().for_each(|value| *value = table[usize::from(*value)]);
}

/// From the mean grey.
pub fn contrast(picture: &mut Picture, factor: f32) {
    let pixels = picture.pixels.len() / picture.channels.max(1);
    let sum: f64 = greys(picture).map(f64::from).sum();
    let mean = (sum / pixels.max(1) as f64).round() as f32;
    let table: [u8; 256] = std::array::from_fn(|value| byte(mean + (value as f32 - mean) * factor));
    picture.pixels.iter_mut().for_each(|value| *value = table[usize::from(*value)]);
}

/// From grey.
pub fn saturation(picture: &mut Picture, factor: f32) {
    if picture.channels == 3 {
        for pixel in picture.pixels.as_chunks_mut::<3>().0 {
            let grey = f32::from(grey(*pixel));
            *pixel = pixel.map(|value| byte(grey + (f32::from(value) - grey) * factor));
        }
    }
}

fn greys(picture: &Picture) -> impl Iterator<Item = u8> {
    picture.pixels.chunks_exact(picture.channels.max(1)).map(|pixel| match pixel {
        &[red, green, blue] => grey([red, green, blue]),
        _ => pixel[0],
    })
}

/// ITU-R 601 in 16 bits, as PIL's `convert("L")`.
fn grey([red, green, blue]: [u8; 3]) -> u8 {
    ((u32::from(red) * 19595 + u32::from(green) * 38470 + u32::from(blue) * 7471 + 0x8000) >> 16) as u8
}

/// Cut off to 0..=255; what lies between is cut too, as PIL does.
pub fn byte(value: f32) -> u8 {
    value.clamp(0.0, 255.0) as u8
}

/// What is added to red, green and blue, in bytes: the eigenvectors of ImageNet's colours, each times its eigenvalue
/// and a normal number of deviation 0.1 (Krizhevsky et al. 2012; the numbers are those of fb.resnet.torch).
pub fn lighting(stream: &mut Stream) -> [f32; 3] {
    const EIGENVALUES: [f32; 3] = [0.2175, 0.0188, 0.0045];
    const EIGENVECTORS: [[f32; 3]; 3] =
        [[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]];
    let words = std::array::from_fn(|_| stream.word());
    let alpha = normals(words);
    EIGENVECTORS
        .map(|vector| 255.0 * (0..3).map(|i| vector[i] * EIGENVALUES[i] * alpha[i] * 0.1).sum::<f32>())
}

/// Puts a square with half the side to 0, the mean; its centre lies anywhere, so that the border may cut it.
pub fn cutout(stream: &mut Stream, [channels, height, width]: [usize; 3], image: &mut [f32]) {
    let mut span = |side: usize| {
        let (centre, half) = (stream.below(side as u32) as usize, side / 4);
        centre.saturating_sub(half)..(centre + half).min(side)
    };
    let (rows, columns) = (span(height), span(width));
    for channel in 0..channels {
        for row in rows.clone() {
            image[(channel * height + row) * width..][columns.clone()].fill(0.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Purpose, key};

    fn stream(which: u32) -> Stream {
        Stream::at(key(1, Purpose::Augment, 0), [which, 0])
    }

    fn picture(height: usize, width: usize, channels: usize) -> Picture {
        let pixels = (0..height * width * channels).map(|i| (i * 37 % 251) as u8 + 1).collect();
        Picture { pixels, height, width, channels }
    }

    #[test]
    fn random_parts_lie_within_the_image_and_have_the_stated_area_and_ratio() {
        let (mut least, mut most) = (f64::MAX, 0.0f64);
        for which in 0..2000 {
            let [left, top, w, h] = random_part(&mut stream(which), [300, 400]);
            assert!(left >= 0.0 && top >= 0.0 && left + w <= 400.0 && top + h <= 300.0);
            // Sides are rounded to whole pixels.
            assert!((w + 1.0) / (h - 1.0) > 0.75 && (w - 1.0) / (h + 1.0) < 4.0 / 3.0, "{w}×{h}");
            (least, most) = (least.min(w * h / 120_000.0), most.max(w * h / 120_000.0));
        }
        assert!(least > 0.078 && least < 0.09 && most > 0.9 && most <= 1.0, "{least} {most}");
        // Too long for any part of more than 8 % within the ratios: the middle of it.
        assert_eq!(random_part(&mut stream(0), [100, 3]), [0.0, 48.0, 3.0, 4.0]);
        assert_eq!(random_part(&mut stream(0), [1, 1]), [0.0, 0.0, 1.0, 1.0]);
    }

    #[test]
    fn a_padded_crop_is_the_image_moved_by_at_most_an_eighth() {
        let original = picture(16, 24, 3);
        let mut seen = std::collections::HashSet::new();
        for which in 0..400 {
            let (mut moved, mut spare) = (original.clone(), Picture::default());
            pad_and_crop(&mut stream(which), &mut moved, &mut spare);
            let at = |picture: &Picture, y: isize, x: isize, c: usize| {
                let inside = (0..16).contains(&y) && (0..24).contains(&x);
                if inside { picture.pixels[(y as usize * 24 + x as usize) * 3 + c] } else { 0 }
            };
            let shift = (-2..=2).flat_map(|y| (-3..=3).map(move |x| (y, x))).find(|&(dy, dx)| {
                (0..16).all(|y| {
                    (0..24).all(|x| (0..3).all(|c| at(&moved, y, x, c) == at(&original, y - dy, x - dx, c)))
                })
            });
            seen.insert(shift.expect("moved by some vector"));
        }
        assert_eq!(seen.len(), 35, "all of them");
    }

    #[test]
    fn a_mirrored_mirror_is_the_image() {
        for channels in [1, 3] {
            let original = picture(3, 5, channels);
            let mut twice = original.clone();
            mirror(&mut twice);
            assert_ne!(twice, original);
            assert_eq!(twice.pixels[..channels], original.pixels[4 * channels..5 * channels]);
            mirror(&mut twice);
            assert_eq!(twice, original);
        }
    }

    /// The values are PIL's: ImageEnhance.Brightness, Contrast and Color on the pixels (10, 200, 30), (90, 60, 250).
    #[test]
    fn colours_change_as_in_pil() {
        let original = Picture { pixels: vec![10, 200, 30, 90, 60, 250], height: 1, width: 2, channels: 3 };
        let after = |change: fn(&mut Picture, f32), factor| {
            let mut picture = original.clone();
            change(&mut picture, factor);
            picture.pixels
        };
        assert_eq!(after(brightness, 1.4), PIL_BRIGHTER);
        assert_eq!(after(contrast, 0.6), PIL_FLATTER);
        assert_eq!(after(saturation, 1.4), PIL_MORE_COLOURFUL);
        for change in [brightness, contrast, saturation] {
            assert_eq!(after(change, 1.0), original.pixels);
        }
    }

    const PIL_BRIGHTER: [u8; 6] = [14, 255, 42, 126, 84, 255];
    const PIL_FLATTER: [u8; 6] = [49, 163, 61, 97, 79, 193];
    const PIL_MORE_COLOURFUL: [u8; 6] = [0, 230, 0, 89, 47, 255];

    #[test]
    fn lighting_has_the_stated_deviation() {
        let noise: Vec<[f32; 3]> = (0..20_000).map(|which| lighting(&mut stream(which))).collect();
        // Red: 25.5·√Σ(vector·value)²; five standard errors of a deviation, 5/√(2·20000).
        let expected = 25.5 * ((0.5675f64 * 0.2175).powi(2) + (0.7192f64 * 0.0188).powi(2)).sqrt();
        let found = (noise.iter().map(|n| f64::from(n[0]).powi(2)).sum::<f64>() / 20_000.0).sqrt();
        assert!((found / expected - 1.0).abs() < 0.026, "{found} {expected}");
        let both = noise.iter().map(|n| f64::from(n[0] * n[2])).sum::<f64>();
        assert!(both > 0.0, "mostly a change of brightness");
    }

    #[test]
    fn cutout_blanks_one_square() {
        for which in 0..50 {
            let mut image = vec![1.0; 3 * 32 * 32];
            cutout(&mut stream(which), [3, 32, 32], &mut image);
            let blank = image.iter().filter(|&&value| value == 0.0).count();
            assert!(blank % 3 == 0 && (8 * 8..=16 * 16).contains(&(blank / 3)), "{blank}");
            assert_eq!(image[..1024], image[2048..]);
        }
    }
}
