//! From a decoded image to what a model reads: cut, scaled, augmented, normalised.
//!
//! Every random choice is a number of the stream of (seed, part, epoch, image): which rank or thread reads an image,
//! and what was read before it, changes nothing.

use std::ops::Range;
use std::sync::Arc;

use resize::Resizer;

use super::augment;
use super::fields::{CodesMut, MissingCount};
use super::mix::Mix;
use super::picture::Picture;
use super::{Colours, Dataset, EvaluationCrop, FieldSet, Preprocessing};
use crate::config::{Augment, Augmentation};
use crate::error::{Error, Result};
use crate::fields::ArrayReader;
use crate::random::{Purpose, Stream, key};

/// How pixels become numbers: a byte becomes `byte · scale + shift`, by channel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Normalisation {
    /// Factor of each channel.
    pub scale: [f32; 3],
    /// Added to each channel after that.
    pub shift: [f32; 3],
}

impl Normalisation {
    /// To mean 0 and deviation 1, by these figures. It goes by what is kept with weights, so that a run which goes on
    /// from there has the same bits.
    fn of(expected: &Preprocessing) -> Normalisation {
        let Colours { mean, deviation } = Colours::of(expected);
        Normalisation {
            scale: deviation.map(|deviation| (1.0 / deviation) as f32),
            shift: [0, 1, 2].map(|c| (-mean[c] / deviation[c]) as f32),
        }
    }
}

/// A data set as a model reads it.
#[derive(Clone)]
pub struct Samples {
    set: Arc<dyn Dataset>,
    /// (C, H, W) of pictures; of arrays as `SampleShape::rows` has it.
    sample: [usize; 3],
    augment: Augment,
    seed: u64,
    repeat: usize,
    /// Whether images are read with their classes.
    labelled: bool,
    /// Rows of each image that a batch keeps; and of each target, where it is cut too.
    rows: Range<usize>,
    target_rows: Option<Range<usize>>,
    expected: Preprocessing,
    normalisation: Normalisation,
}

/// What reading an image needs besides, kept from one image to the next.
#[derive(Default)]
pub struct DecodeBuffers {
    source: Picture,
    scaled: Picture,
    spare: Picture,
    resizer: Resizer,
    /// One for each array of a sample.
    arrays: Vec<ArrayReader>,
    /// What is missing of samples that are arrays, since it was taken.
    pub missing: MissingCount,
}

/// Pixels that are normalised at a time.
const STRIP: usize = 256;

/// A part of a picture: left, top, width, height in pixels.
type Rectangle = [f64; 4];

impl Samples {
    /// The images of `set` for a model that reads (C, H, W), normalised to the colours of `like`.
    pub fn new(set: Arc<dyn Dataset>, sample: [usize; 3], like: &dyn Dataset) -> Samples {
        let expected = like.colours().expected(sample, like.frame());
        Samples {
            normalisation: Normalisation::of(&expected),
            expected,
            set,
            sample,
            augment: Augment::default(),
            seed: 0,
            repeat: 1,
            labelled: true,
            rows: 0..sample[1],
            target_rows: None,
        }
    }

    /// Samples of arrays, each of which comes `repeat` times in an epoch.
    pub fn of_fields(set: FieldSet, repeat: usize) -> Samples {
        let image = set.image();
        let set: Arc<dyn Dataset> = Arc::new(set);
        Samples { repeat: repeat.max(1), ..Samples::new(set.clone(), image.rows(), &*set) }
    }

    /// The arrays behind it, where it is no pictures.
    pub fn fields(&self) -> Option<&FieldSet> {
        self.set.fields()
    }

    /// How many numbers the target of a sample has, or its rows that are kept; none where it is the class of a picture.
    pub fn target_len(&self) -> usize {
        let Some(fields) = self.fields() else { return 0 };
        match (&self.target_rows, fields.target_rows()) {
            (Some(rows), Some(height)) => fields.target_len() / height * rows.len(),
            _ => fields.target_len(),
        }
    }

    /// The images as a network expects them that has learned already, but for its size.
    pub fn expecting(self, expected: &Preprocessing) -> Samples {
        let expected = Preprocessing { image: self.sample, ..expected.clone() };
        Samples { normalisation: Normalisation::of(&expected), expected, ..self }
    }

    /// What a network expects that learns from them.
    pub fn expected(&self) -> &Preprocessing {
        &self.expected
    }

    /// The images, each read as one of class 0: their classes may be others than the model's.
    pub fn without_labels(self) -> Samples {
        Samples { labelled: false, ..self }
    }

    /// The images, of which a batch keeps these rows: of what has become of whole images.
    pub fn cut(self, rows: Range<usize>) -> Samples {
        Samples { rows, ..self }
    }

    /// The samples, of whose targets a batch keeps these rows.
    pub fn cut_targets(self, rows: Option<Range<usize>>) -> Samples {
        Samples { target_rows: rows, ..self }
    }

    /// Rows of each image that a batch keeps.
    pub fn rows(&self) -> &Range<usize> {
        &self.rows
    }

    /// The images augmented, all of them `repeat` times in an epoch.
    pub fn for_training(self, augment: Augment, seed: u64, repeat: usize) -> Samples {
        Samples { augment, seed, repeat: repeat.max(1), ..self }
    }

    /// The pictures behind it.
    pub fn set(&self) -> &dyn Dataset {
        &*self.set
    }

    /// Images in an epoch; at least one.
    pub fn len(&self) -> usize {
        self.set.len() * self.repeat
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// (C, H, W) of every image.
    pub fn sample(&self) -> [usize; 3] {
        self.sample
    }

    /// What is done to the images.
    pub fn augment(&self) -> &Augment {
        &self.augment
    }

    /// Where blocks of images begin that are best read together, in every repetition.
    pub fn blocks(&self) -> Arc<Vec<u32>> {
        let (blocks, images) = (self.set.blocks(), self.set.len() as u32);
        let repeated =
            (0..self.repeat as u32).flat_map(|turn| blocks.iter().map(move |start| turn * images + start));
        Arc::new(repeated.collect())
    }

    /// Threads worth giving to reading, of a rank that has so many: none where it is a copy.
    pub fn reading_threads(&self, threads: usize) -> usize {
        if self.set.in_memory() { 0 } else { (threads / 4).clamp(1, 8) }
    }

    /// The class of one image.
    pub fn label(&self, index: usize) -> i32 {
        self.set.label(index % self.set.len())
    }

    /// What to call an image in a message.
    pub fn name(&self, index: usize) -> String {
        self.set.name(index % self.set.len())
    }

    /// What there is to learn, in few words; equal for equal images only.
    pub fn fingerprint(&self) -> String {
        match self.repeat {
            1 => self.set.fingerprint(),
            repeat => format!("{}, {repeat} times", self.set.fingerprint()),
        }
    }

    /// Writes one image as it is in this epoch, in the order (C, H, W); its class is returned.
    ///
    /// # Errors
    /// `Data`, with the image's name: it is gone or does not decode.
    pub fn read(
        &self,
        epoch: usize,
        index: usize,
        image: &mut [f32],
        scratch: &mut DecodeBuffers,
    ) -> Result<i32> {
        let draws = self.draws(epoch, index);
        let label = self.picture(index, &draws, scratch)?;
        self.normalise(&draws, &scratch.scaled, image);
        if self.augment.has(Augmentation::Cutout) {
            augment::cutout(&mut draws(Augmentation::Cutout).0, self.sample, image);
        }
        Ok(label)
    }

    /// Reads one image as numbers or as pixels and returns its class; or a sample of arrays, what the network reads
    /// (C, H, W) and its target, of each the rows that are kept.
    ///
    /// # Errors
    /// `Data`, with the name of the image, or of the file and the sample.
    pub fn read_parts(
        &self,
        epoch: usize,
        index: usize,
        parts: &mut [CodesMut<'_>; 2],
        scratch: &mut DecodeBuffers,
    ) -> Result<i32> {
        match (self.fields(), parts) {
            (Some(fields), parts) => {
                let rows = Some(&self.rows).filter(|rows| rows.len() < self.sample[1]);
                let rows = [rows, self.target_rows.as_ref()];
                let index = index % self.set.len();
                scratch.missing += fields.read_sample(index, parts, rows, &mut scratch.arrays)?;
                Ok(0)
            }
            (None, [CodesMut::Numbers(image), _]) => self.read(epoch, index, image, scratch),
            (None, [CodesMut::Bytes(image), _]) => self.read_pixels(epoch, index, image, scratch),
            (None, [CodesMut::Words(_), _]) => Err(Error::internal("pixels of 16 bits")),
        }
    }

    /// Reads images as pixels (H, W, C), of samples that are `pixels`.
    ///
    /// # Errors
    /// As for `read`.
    pub fn read_pixels(
        &self,
        epoch: usize,
        index: usize,
        image: &mut [u8],
        scratch: &mut DecodeBuffers,
    ) -> Result<i32> {
        let label = self.picture(index, &self.draws(epoch, index), scratch)?;
        let (pixels, channels) = (&scratch.scaled.pixels, self.sample[0]);
        match scratch.scaled.channels == channels {
            true => image.copy_from_slice(pixels),
            false => image.chunks_exact_mut(channels).zip(pixels).for_each(|(pixel, &grey)| pixel.fill(grey)),
        }
        Ok(label)
    }

    /// How pixels become numbers, where nothing else is done to any image: no noise or holes that are no pixels, no
    /// blends, no colours that become a grey between two bytes.
    pub fn pixels(&self) -> Option<Normalisation> {
        let is_picture = self.fields().is_none();
        let as_they_are =
            is_picture && (self.sample[0] == 3 || (self.sample[0] == 1 && self.set.channels() == Some(1)));
        let others =
            [Augmentation::Lighting, Augmentation::Cutout].iter().any(|&part| self.augment.has(part));
        (as_they_are && !others && !self.augment.mixes()).then_some(self.normalisation)
    }

    fn draws(&self, epoch: usize, index: usize) -> impl Fn(Augmentation) -> Draws {
        let seed = self.seed;
        move |part| Draws::new(seed, part, epoch, index)
    }

    /// Makes `scaled` what the model sees of an image; returns its class.
    fn picture(
        &self,
        index: usize,
        draws: &impl Fn(Augmentation) -> Draws,
        scratch: &mut DecodeBuffers,
    ) -> Result<i32> {
        let stored = index % self.set.len();
        self.set.read(stored, &mut scratch.source)?;
        self.frame(draws, scratch)?;
        augment::apply(&self.augment, draws, &mut scratch.scaled, &mut scratch.spare);
        Ok(if self.labelled { self.set.label(stored) } else { 0 })
    }

    /// What becomes of an image and its partner in this epoch, where images are mixed.
    pub fn mix(&self, epoch: usize, index: usize) -> Option<Mix> {
        let mut stream = Stream::at(key(self.seed, Purpose::Mix, 0), [index as u32, epoch as u32]);
        Mix::draw(&self.augment, &mut stream, [self.sample[1], self.sample[2]])
    }

    /// Cuts out and scales what the model sees: `source` becomes `scaled`.
    fn frame(&self, draws: &impl Fn(Augmentation) -> Draws, scratch: &mut DecodeBuffers) -> Result<()> {
        let [_, height, width] = self.sample;
        let source = &mut scratch.source;
        let whole = [0.0, 0.0, source.width as f64, source.height as f64];
        let part = if self.augment.has(Augmentation::Crop) {
            augment::random_part(&mut draws(Augmentation::Crop).0, [source.height, source.width])
        } else if self.expected.frame == EvaluationCrop::Whole || self.augment.has(Augmentation::PadCrop) {
            whole
        } else {
            centre([source.height, source.width], [height, width])
        };
        scratch.scaled.reshape(height, width, source.channels);
        if part == whole && (source.height, source.width) == (height, width) {
            scratch.scaled.pixels.copy_from_slice(&source.pixels);
            return Ok(());
        }
        resize(&mut scratch.resizer, source, part, &mut scratch.scaled)
            .map_err(|error| Error::internal(format!("scaling {part:?}: {error}")))
    }

    fn normalise(&self, draws: &impl Fn(Augmentation) -> Draws, picture: &Picture, image: &mut [f32]) {
        let [channels, height, width] = self.sample;
        let Normalisation { scale, mut shift } = self.normalisation;
        if self.augment.has(Augmentation::Lighting) {
            let noise = augment::lighting(&mut draws(Augmentation::Lighting).0);
            (0..3).for_each(|c| shift[c] += noise[c] * scale[c]);
        }
        let mut planes = image.chunks_exact_mut(height * width);
        match (picture.channels, channels) {
            (1, _) => {
                for (channel, plane) in planes.enumerate() {
                    let (scale, shift) = (scale[channel.min(2)], shift[channel.min(2)]);
                    for (target, &byte) in plane.iter_mut().zip(&picture.pixels) {
                        *target = f32::from(byte) * scale + shift;
                    }
                }
            }
            (_, 1) => {
                // ITU-R 601, as PIL's `convert("L")`.
                let colours = picture.pixels.as_chunks::<3>().0.iter();
                for (target, &[red, green, blue]) in image.iter_mut().zip(colours) {
                    let grey = 0.299 * f32::from(red) + 0.587 * f32::from(green) + 0.114 * f32::from(blue);
                    *target = grey * scale[1] + shift[1];
                }
            }
            _ => {
                // Channels are taken apart some pixels at a time, so that the arithmetic is done in wide instructions.
                let mut plane = || planes.next().unwrap_or_default().chunks_mut(STRIP);
                let (mut reds, mut greens, mut blues) = (plane(), plane(), plane());
                let mut strips = [[0u8; STRIP]; 3];
                for pixels in picture.pixels.chunks(3 * STRIP) {
                    for (at, pixel) in pixels.as_chunks::<3>().0.iter().enumerate() {
                        (0..3).for_each(|c| strips[c][at] = pixel[c]);
                    }
                    for (c, targets) in [&mut reds, &mut greens, &mut blues].into_iter().enumerate() {
                        let (scale, shift) = (scale[c], shift[c]);
                        for (target, &byte) in targets.next().unwrap_or_default().iter_mut().zip(&strips[c]) {
                            *target = f32::from(byte) * scale + shift;
                        }
                    }
                }
            }
        }
    }
}

/// The random numbers of one part of the augmentation of one image in one epoch.
pub struct Draws(pub Stream);

impl Draws {
    pub fn new(seed: u64, part: Augmentation, epoch: usize, index: usize) -> Draws {
        Draws(Stream::at(key(seed, Purpose::Augment, part as u32), [index as u32, epoch as u32]))
    }
}

/// The part that evaluation sees: as if the shorter side were scaled to 8/7 of the model's (256 for 224) and the middle
/// cut out. Sides and margins are whole numbers, rounded as torchvision's `Resize` and `CenterCrop` round them.
fn centre([height, width]: [usize; 2], to: [usize; 2]) -> Rectangle {
    // 8/7 of a whole number never lies halfway between two.
    let resized = (16 * to[0].max(to[1]) + 7) / 14;
    let shorter = height.min(width);
    let middle = |from: usize, to: usize| {
        let scaled = from * resized / shorter;
        let margin = scaled - to;
        // Half of it, and of the two halves of an odd one that which is even.
        let first = margin / 2 + usize::from(margin % 4 == 3);
        let back = from as f64 / scaled as f64;
        (first as f64 * back, to as f64 * back)
    };
    let ((left, width), (top, height)) = (middle(width, to[1]), middle(height, to[0]));
    [left, top, width, height]
}

/// The picture scaled so that its shorter side is `size`; the other is cut off to a whole number, as torchvision does.
///
/// # Errors
/// `Internal`, should the scaling fail.
pub fn shorter_side(mut picture: Picture, size: usize) -> Result<Picture> {
    let (height, width) = (picture.height, picture.width);
    let shorter = height.min(width).max(1);
    if shorter == size {
        return Ok(picture);
    }
    let mut scaled = Picture::default();
    scaled.reshape(height * size / shorter, width * size / shorter, picture.channels);
    let whole = [0.0, 0.0, width as f64, height as f64];
    resize(&mut Resizer::new(), &mut picture, whole, &mut scaled)
        .map_err(|error| Error::internal(format!("scaling {width}×{height}: {error}")))?;
    Ok(scaled)
}

/// Scales a part of a picture to another picture's size: bilinear, and where it becomes smaller the mean over what a
/// pixel covers, as PIL does.
pub(super) fn resize(
    resizer: &mut Resizer,
    source: &mut Picture,
    part: Rectangle,
    target: &mut Picture,
) -> std::result::Result<(), String> {
    let channels = source.channels;
    let [from, to] = [source, target].map(|picture| resize::Picture {
        pixels: &mut picture.pixels,
        height: picture.height,
        width: picture.width,
    });
    resize::resize(resizer, channels, from, part, to)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::MODELS;

    /// torchvision's `Resize(int(size · 8/7 + 1/2))` and `CenterCrop(size)`, by their definitions and in whole numbers:
    /// the longer side becomes the largest number of pixels that the ratio of the sides allows, and the crop begins at
    /// half of what is left over, of two halves at the even one. What is cut out is that many pixels of the scaled
    /// image.
    #[test]
    fn the_centre_is_that_of_torchvision_for_every_side() {
        let zoo = MODELS.iter().map(|model| model.image[1]);
        for to in zoo.chain([63, 64, 96, 128, 160, 192, 227, 256, 384]) {
            let resized = (0..).find(|&side| 7 * (2 * side + 1) > 16 * to).unwrap();
            for short in 1..=2000 {
                for long in [short, short + 1, short * 4 / 3, short * 3 / 2, 2 * short + 1] {
                    let guess = resized * long / short;
                    let scaled =
                        (guess.saturating_sub(2)..).find(|s| (s + 1) * short > resized * long).unwrap();
                    let left_over = scaled - to;
                    let begin = (left_over / 2..).find(|begin| {
                        let even = begin % 2 == 0;
                        2 * begin == left_over || (even && (2 * begin).abs_diff(left_over) == 1)
                    });
                    let back = |pixels: usize| pixels as f64 * long as f64 / scaled as f64;
                    let exact = [back(begin.unwrap()), back(to), (to * short) as f64 / resized as f64];
                    let [left, _, width, height] = centre([short, long], [to, to]);
                    let [_, top, across, down] = centre([long, short], [to, to]);
                    for found in [[left, width, height], [top, down, across]] {
                        let near = |(a, b): (f64, f64)| (a - b).abs() <= 1e-12 * b.max(1.0);
                        let same = found.into_iter().zip(exact).all(near);
                        assert!(same, "{short}×{long} at {to}: {found:?}, not {exact:?}");
                    }
                }
            }
        }
    }
}
