//! What a user relies on when images come from files.
//!
//! - the digits that come with dltrain are what their README says
//! - any spelling of the four files, plain or gzip, gives the same set
//! - every broken file is one message that names it, and costs no more memory than it has bytes
//! - every training image is seen at most once an epoch, every test image exactly once, by any number of
//!   ranks; how a global batch is cut up among them changes nothing

use std::collections::HashSet;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use dltrain::config::Input;
use dltrain::data::{
    self, Batch, Colours, Dataset, DecodeBuffers, EvaluationCrop, Picture, Reading, Samples, Sets, Sharding,
    TestLoader, TrainingLoader, Wanted, epoch_order,
};
use dltrain::error::{Error, ErrorKind};
use flate2::{Compression, write::GzEncoder};
use proptest::prelude::*;
use tempfile::TempDir;

const TRAIN: &str = "train-images-idx3-ubyte";
const TRAIN_LABELS: &str = "train-labels-idx1-ubyte";
const TEST: &str = "t10k-images-idx3-ubyte";
const TEST_LABELS: &str = "t10k-labels-idx1-ubyte";

const GREY: [usize; 3] = [1, 2, 3];

/// A directory with three training and two test images of 2×3 pixels.
fn handwritten() -> TempDir {
    let directory = TempDir::new().unwrap();
    let put = |name: &str, bytes: &[u8]| fs::write(directory.path().join(name), bytes).unwrap();
    let pixels: Vec<u8> = (0..18).map(|value| value * 10).collect();
    put(TRAIN, &idx(0x0803, &[3, 2, 3], &pixels));
    put(TRAIN_LABELS, &idx(0x0801, &[3], &[7, 0, 2]));
    put(TEST, &idx(0x0803, &[2, 2, 3], &pixels[..12]));
    put(TEST_LABELS, &idx(0x0801, &[2], &[9, 1]));
    directory
}

fn idx(magic: u32, extents: &[u32], values: &[u8]) -> Vec<u8> {
    let header = std::iter::once(&magic).chain(extents).flat_map(|word| word.to_be_bytes());
    header.chain(values.iter().copied()).collect()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Opens a set for grey images of 2×3 pixels and ten classes.
fn open(path: &Path) -> Result<Sets, Error> {
    data::open(path, &Wanted { sample: GREY, classes: 10, seed: 1, input: &Input::default() })
}

fn digits() -> Sets {
    let wanted = Wanted { sample: [1, 28, 28], classes: 10, seed: 1, input: &Input::default() };
    data::open(Path::new("data/digits"), &wanted).unwrap()
}

/// Everything a set gives: fingerprint, labels, pixels.
fn contents(set: &Samples) -> (String, Vec<i32>, Vec<f32>) {
    let sample: usize = set.sample().iter().product();
    let mut pixels = vec![0.0; set.len() * sample];
    let scratch = &mut DecodeBuffers::default();
    for (index, image) in pixels.chunks_exact_mut(sample).enumerate() {
        assert_eq!(set.read(0, index, image, scratch).unwrap(), set.label(index));
    }
    (set.fingerprint().to_string(), (0..set.len()).map(|index| set.label(index)).collect(), pixels)
}

#[test]
fn a_handwritten_file_is_read_byte_for_byte() {
    let directory = handwritten();
    let sets = open(directory.path()).unwrap();
    assert_eq!((sets.training.sample(), sets.training.set().class_names().len()), (GREY, 8));
    // 0, 10, … 170 have mean 85 and variance 100·(18² − 1)/12; both sets are normalised by these.
    let deviation = (100.0 * (18.0 * 18.0 - 1.0) / 12.0f64).sqrt();
    for (set, expected_labels) in [(&sets.training, vec![7, 0, 2]), (sets.test.as_ref().unwrap(), vec![9, 1])]
    {
        let (_, labels, pixels) = contents(set);
        assert_eq!(labels, expected_labels);
        for (index, &pixel) in pixels.iter().enumerate() {
            let expected = (index as f64 * 10.0 - 85.0) / deviation;
            assert!((f64::from(pixel) - expected).abs() < 1e-6, "value {index}: {pixel}, not {expected}");
        }
    }
}

#[test]
fn every_spelling_gives_the_same_set() {
    let plain = handwritten();
    let expected = open(plain.path()).unwrap();
    let dots: fn(&str) -> String = |name| name.replacen("-idx", ".idx", 1);
    let compressed: fn(&str) -> String = |name| format!("{name}.gz");
    let kept: fn(&str) -> String = |name| name.to_string();
    // The last two: gzip under a plain name, and a plain file that a browser unpacked under its .gz name.
    for (rename, pack) in [(dots, false), (compressed, true), (kept, true), (compressed, false)] {
        let other = TempDir::new().unwrap();
        for name in [TRAIN, TRAIN_LABELS, TEST, TEST_LABELS] {
            let bytes = fs::read(plain.path().join(name)).unwrap();
            let bytes = if pack { gzip(&bytes) } else { bytes };
            fs::write(other.path().join(rename(name)), bytes).unwrap();
        }
        let sets = open(other.path()).unwrap();
        assert!(contents(&sets.training) == contents(&expected.training));
        assert!(contents(sets.test.as_ref().unwrap()) == contents(expected.test.as_ref().unwrap()));
    }
}

#[test]
fn the_fingerprint_tells_apart_a_single_pixel_and_a_single_label() {
    let directory = handwritten();
    let mut seen = HashSet::new();
    for (name, position) in [(TRAIN, None), (TRAIN, Some(20)), (TRAIN_LABELS, Some(9))] {
        let path = directory.path().join(name);
        let mut bytes = fs::read(&path).unwrap();
        position.into_iter().for_each(|position: usize| bytes[position] ^= 1);
        fs::write(&path, bytes).unwrap();
        let sets = open(directory.path()).unwrap();
        assert!(seen.insert(sets.training.fingerprint().to_string()), "{name}: {seen:?}");
    }
}

#[test]
fn the_digits_are_what_their_readme_says() {
    let sets = digits();
    assert_eq!((sets.training.len(), sets.test.as_ref().unwrap().len()), (1437, 360));
    let count = |set: &Samples| {
        let mut count = [0; 10];
        (0..set.len()).for_each(|index| count[set.label(index) as usize] += 1);
        count
    };
    let (training, test) = (count(&sets.training), count(sets.test.as_ref().unwrap()));
    let whole = [178, 182, 177, 183, 181, 182, 181, 179, 174, 180];
    for class in 0..10 {
        assert_eq!(training[class] + test[class], whole[class], "digit {class}");
        let share = f64::from(whole[class]) * 360.0 / 1797.0;
        assert!((f64::from(test[class]) - share).abs() < 1.0, "digit {class}: {} of {share}", test[class]);
    }
    let images = |name| -> Vec<Vec<u8>> {
        let bytes = fs::read(Path::new("data/digits").join(name)).unwrap();
        bytes[16..].chunks(64).map(Vec::from).collect()
    };
    let (training, test) = (images(TRAIN), images(TEST));
    assert!(test.iter().all(|image| !training.contains(image)), "tested on what was learned");
    let scaled: HashSet<u8> = (0..=16u32).map(|count| ((count * 255 + 8) / 16) as u8).collect();
    assert!(training.iter().chain(&test).flatten().all(|pixel| scaled.contains(pixel)));
}

/// Breaks one file (`None`: removes it) and expects one line that names it and says each of `words`.
fn broken(file: &str, contents: Option<&[u8]>, words: &[&str]) {
    let directory = handwritten();
    let path = directory.path().join(file);
    match contents {
        Some(bytes) => fs::write(&path, bytes).unwrap(),
        None => fs::remove_file(&path).unwrap(),
    }
    let message = refused(directory.path()).message;
    let named = if contents.is_some() { path } else { directory.path().to_path_buf() };
    assert!(message.starts_with(&format!("{}: ", named.display())), "{message}");
    for word in words {
        assert!(message.contains(word), "'{message}' does not say '{word}'");
    }
}

fn refused(directory: &Path) -> Error {
    let error = open(directory).err().expect("broken data must be refused");
    assert_eq!(error.kind, ErrorKind::Data);
    assert!(!error.message.contains('\n'), "{}", error.message);
    error
}

#[test]
fn missing_files_are_listed_in_every_spelling_looked_for() {
    broken(TRAIN, None, &["no train-images file", "train-images-idx3-ubyte, ", "train-images.idx3-ubyte.gz"]);
    broken(TEST_LABELS, None, &["no t10k-labels file", "t10k-labels-idx1-ubyte.gz"]);
    let message = refused(Path::new("/no/such/place")).message;
    assert!(message.starts_with("/no/such/place: no such directory"), "{message}");
    let message = refused(Path::new("Cargo.toml")).message;
    assert!(message.starts_with("Cargo.toml: not a directory"), "{message}");
}

#[test]
fn truncated_files_are_refused() {
    let whole = idx(0x0803, &[3, 2, 3], &[1; 18]);
    for length in 0..whole.len() {
        broken(TRAIN, Some(&whole[..length]), &["truncated"]);
    }
    broken(TRAIN, Some(&[0x1f]), &["truncated"]);
    broken(TRAIN, Some(&whole[..33]), &["3×2×3 values", "only 17 are there"]);
    broken(TRAIN, Some(&idx(0x0803, &[300, 2, 3], &[1; 18])), &["300×2×3", "a file of 34 bytes can hold"]);
    broken(TRAIN_LABELS, Some(&idx(0x0801, &[3], &[1, 2])), &["truncated", "3 values", "only 2"]);
}

#[test]
fn files_of_another_kind_are_refused() {
    let labels = idx(0x0801, &[3], &[1, 2, 3]);
    let images = idx(0x0803, &[3, 1, 1], &[1, 2, 3]);
    broken(TRAIN, Some(&labels), &["wrong magic number 0x00000801 (wanted 0x00000803)", "labels"]);
    broken(TRAIN, Some(&gzip(&labels)), &["wrong magic number"]);
    broken(TRAIN_LABELS, Some(&images), &["wrong magic number", "images"]);
    broken(TRAIN, Some(b"<!DOCTYPE html><html>404"), &["is a web page, not the file"]);
    broken(TRAIN, Some(b"neither images nor labels"), &["wrong magic number", "not an IDX file"]);
    broken(TRAIN, Some(&idx(0x0d03, &[1, 1, 1], &[0; 4])), &["wrong magic number 0x00000d03"]);
    let directory = handwritten();
    fs::remove_file(directory.path().join(TRAIN)).unwrap();
    fs::create_dir(directory.path().join(TRAIN)).unwrap();
    assert!(refused(directory.path()).message.contains("directory"));
}

#[test]
fn counts_that_disagree_are_refused() {
    broken(TRAIN, Some(&idx(0x0803, &[3, 2, 3], &[1; 19])), &["3×2×3", "1 more bytes follow"]);
    broken(TRAIN_LABELS, Some(&idx(0x0801, &[2], &[1, 2])), &["2 labels", TRAIN, "3 images"]);
    broken(TRAIN_LABELS, Some(&idx(0x0801, &[3], &[1, 10, 2])), &["label 10 (of image 1)", "10 classes"]);
    broken(TRAIN, Some(&idx(0x0803, &[0, 2, 3], &[])), &["empty", "0×2×3"]);
    broken(TRAIN, Some(&idx(0x0803, &[3, 0, 3], &[])), &["empty"]);
    broken(TRAIN_LABELS, Some(&idx(0x0801, &[0], &[])), &["empty"]);
    broken(TEST, Some(&idx(0x0803, &[2, 3, 3], &[1; 18])), &["3×3", "training images are 2×3"]);
}

#[test]
fn a_header_that_promises_the_moon_costs_nothing() {
    // 2^40, 2^64 and 2^96 values: reserving even the first would end this process.
    for extents in [[1 << 20, 1 << 10, 1 << 10], [u32::MAX, u32::MAX, 1], [u32::MAX; 3]] {
        let bytes = idx(0x0803, &extents, &[1; 18]);
        broken(TRAIN, Some(&bytes), &["truncated", "more than a file of 34 bytes can hold"]);
        broken(TRAIN, Some(&gzip(&bytes)), &["truncated", "more than a file of"]);
    }
}

#[test]
fn corrupt_gzip_is_refused() {
    let whole = gzip(&idx(0x0803, &[3, 2, 3], &[1; 18]));
    for length in 2..whole.len() {
        broken(TRAIN, Some(&whole[..length]), &["truncated"]);
    }
    let mut checksum = whole.clone();
    checksum[whole.len() - 8] ^= 1;
    broken(TRAIN, Some(&checksum), &["corrupt or truncated gzip file"]);
    let trailing: Vec<u8> = whole.iter().copied().chain(*b"junk").collect();
    broken(TRAIN, Some(&trailing), &["corrupt or truncated gzip file"]);
}

proptest! {
    /// Whatever bytes a file has: a set or an error, never a panic.
    #[test]
    fn no_bytes_can_crash_the_reader(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..64), pack: bool, right_magic: bool,
    ) {
        if right_magic && bytes.len() > 4 {
            bytes[..4].copy_from_slice(&[0, 0, 8, 3]);
        }
        let directory = handwritten();
        fs::write(directory.path().join(TRAIN), if pack { gzip(&bytes) } else { bytes }).unwrap();
        let _ = open(directory.path());
    }

    /// All ranks together see each training image at most once an epoch; those left out are fewer than
    /// one global batch.
    #[test]
    fn an_epoch_sees_every_training_image_at_most_once(
        ranks in 1usize..9, batch in 1usize..9, accumulation in 1usize..4, extra in 0usize..400, epoch in 0usize..3,
    ) {
        let global = ranks * batch * accumulation;
        let images = global + extra;
        let order = epoch_order(3, epoch, images);
        let sharding = |rank| Sharding { ranks, rank, batch, accumulation, global: None };
        let steps = sharding(0).steps(images).unwrap();
        let mut seen = HashSet::new();
        for step in 0..steps {
            for rank in 0..ranks {
                for position in (0..accumulation).flat_map(|micro| sharding(rank).training(step, micro)) {
                    prop_assert!(seen.insert(order[position]));
                }
            }
        }
        prop_assert_eq!(seen.len(), steps * global);
        prop_assert!(images - seen.len() < global);
    }

    /// Any two ways to cut up a global batch give the same images at the same places in it.
    #[test]
    fn how_a_global_batch_is_cut_changes_nothing(
        ranks in 1usize..6, batch in 1usize..6, accumulation in 1usize..4, step in 0usize..5, less in 0usize..20,
    ) {
        let all = ranks * batch * accumulation;
        // One that is given may leave room, but no rank without an image.
        let global = all.saturating_sub(less).max(ranks);
        let whole = Sharding { ranks: 1, rank: 0, batch: global, accumulation: 1, global: None };
        let mut places = Vec::new();
        for rank in 0..ranks {
            let given = (global < all).then_some(global);
            let part = Sharding { ranks, rank, batch, accumulation, global: given };
            for micro in 0..accumulation {
                prop_assert_eq!(part.first_sample(micro), places.len());
                places.extend(part.training(step, micro));
            }
        }
        prop_assert_eq!(places, whole.training(step, 0).collect::<Vec<_>>());
    }

    /// All ranks together see each test image exactly once, in as many batches on each.
    #[test]
    fn testing_sees_every_image_exactly_once(ranks in 1usize..9, batch in 1usize..9, images in 1usize..300) {
        let sharding = |rank| Sharding { ranks, rank, batch, accumulation: 1, global: None };
        let steps = 0..sharding(0).test_steps(images);
        let places = steps.flat_map(|step| (0..ranks).flat_map(move |rank| sharding(rank).test(step, images)));
        prop_assert_eq!(places.collect::<Vec<_>>(), (0..images).collect::<Vec<_>>());
    }
}

#[test]
fn two_ranks_of_32_read_the_same_pixels_as_one_of_64() {
    let sets = digits();
    let whole = Sharding { ranks: 1, rank: 0, batch: 64, accumulation: 1, global: None };
    let mut one = TrainingLoader::new(sets.training.clone(), whole, 5, Reading::inline()).unwrap();
    assert_eq!(one.steps(), 22);
    let (mut both, mut half_of) = (Batch::new(64, 784), Batch::new(32, 784));
    let mut epochs = HashSet::new();
    for epoch in 0..3 {
        one.start_epoch(epoch);
        one.fill(21, 0, &mut both).unwrap();
        for rank in 0..2 {
            let half = Sharding { ranks: 2, rank, batch: 32, accumulation: 1, global: None };
            let mut two = TrainingLoader::new(sets.training.clone(), half, 5, Reading::inline()).unwrap();
            two.start_epoch(epoch);
            two.fill(21, 0, &mut half_of).unwrap();
            assert_eq!(half_of.labels, both.labels[rank * 32..][..32]);
            assert_eq!(half_of.images, both.images[rank * 32 * 784..][..32 * 784]);
        }
        assert!(epochs.insert(both.labels.clone()), "every epoch has its own order");
    }
}

/// Labels that are the images' own numbers, to count them by; in blocks of so many, or in none.
struct Numbered(usize, Option<usize>);

impl Dataset for Numbered {
    fn len(&self) -> usize {
        self.0
    }
    fn class_names(&self) -> &[String] {
        &[]
    }
    fn read(&self, _: usize, picture: &mut Picture) -> Result<(), Error> {
        *picture = Picture { pixels: vec![0], height: 1, width: 1, channels: 1 };
        Ok(())
    }
    fn label(&self, index: usize) -> i32 {
        index as i32
    }
    fn name(&self, index: usize) -> String {
        index.to_string()
    }
    fn fingerprint(&self) -> String {
        "numbered".into()
    }
    fn colours(&self) -> Colours {
        Colours::imagenet()
    }
    fn frame(&self) -> EvaluationCrop {
        EvaluationCrop::Whole
    }
    fn in_memory(&self) -> bool {
        true
    }
    fn blocks(&self) -> Vec<u32> {
        self.1.map_or(Vec::new(), |block| (0..self.0 as u32).step_by(block).collect())
    }
}

proptest! {
    /// An epoch begun by so many ranks and ended by others, with other batches: every image of its order once, but
    /// those that do not fill a last step; and the epoch after it whole. Read ahead or not.
    #[test]
    fn an_epoch_taken_up_by_other_ranks_loses_and_repeats_no_image(
        images in 100usize..300,
        block in prop::option::of(1usize..40),
        first in (1usize..5, 1usize..9, 1usize..3),
        then in (1usize..5, 1usize..9, 1usize..3),
        share in 0.0f64..1.0,
        threads in 0usize..2,
    ) {
        let set = Arc::new(Numbered(images, block));
        let samples = Samples::new(set.clone(), [1, 1, 1], &*set);
        let reading = Reading::new(threads, true).unwrap();
        let shuffled_for = first.0 * first.1 * first.2;
        // The images of these ranks in part of the fourth epoch, and perhaps of the one after it.
        let train = |(ranks, batch, accumulation): (usize, usize, usize), share: f64, behind: usize, on: bool| {
            let sharding = |rank| Sharding { ranks, rank, batch, accumulation, global: None };
            let loader = |rank| TrainingLoader::new(samples.clone(), sharding(rank), 1, reading.clone()).unwrap();
            let mut loaders: Vec<TrainingLoader> = (0..ranks).map(loader).collect();
            let steps = (share * loaders[0].steps_after(behind) as f64) as usize;
            let mut read = Batch::new(batch, 1);
            let mut run = |loaders: &mut Vec<TrainingLoader>, steps: usize| {
                let mut seen = Vec::new();
                for (step, rank, micro) in
                    (0..steps).flat_map(|s| (0..ranks).flat_map(move |r| (0..accumulation).map(move |m| (s, r, m))))
                {
                    loaders[rank].fill(step, micro, &mut read).unwrap();
                    seen.extend_from_slice(&read.labels);
                }
                seen
            };
            for loader in &mut loaders {
                match behind {
                    0 => loader.start_epoch(3),
                    _ => loader.go_on(3, behind, shuffled_for),
                }
            }
            let seen = run(&mut loaders, steps);
            loaders.iter_mut().for_each(|loader| loader.start_epoch(4));
            let next = if on { loaders[0].steps_after(0) } else { 0 };
            (seen, run(&mut loaders, next))
        };
        let whole = train(first, 1.0, 0, false).0;
        let mut seen = train(first, share, 0, false).0;
        let behind = seen.len();
        prop_assert_eq!(&seen[..], &whole[..behind]);
        let (rest, next) = train(then, 1.0, behind, true);
        seen.extend(rest);
        let all: HashSet<i32> = seen.iter().copied().collect();
        prop_assert_eq!(all.len(), seen.len(), "no image twice");
        prop_assert!(images - seen.len() < then.0 * then.1 * then.2, "{} of {}", seen.len(), images);
        prop_assert_eq!(next.iter().collect::<HashSet<_>>().len(), next.len());
        prop_assert!(images - next.len() < then.0 * then.1 * then.2 && next != seen);
        if block.is_none() {
            let order = epoch_order(1, 3, images);
            // Ranks take turns within a global batch as its order has them.
            let sorted = |part: &[u32]| { let mut part = part.to_vec(); part.sort(); part };
            let labels: Vec<u32> = seen.iter().map(|&label| label as u32).collect();
            prop_assert_eq!(sorted(&labels), sorted(&order[..seen.len()]));
        }
    }
}

/// A packed file's blocks are the same for ever: whoever was always mixed with its neighbour would see few others.
#[test]
fn images_read_in_blocks_are_mixed_with_those_of_other_blocks() {
    for (block, global) in [(None, 20), (Some(5), 20), (Some(5), 6), (Some(1), 2)] {
        let set = Arc::new(Numbered(103, block));
        let augment = "mixup=0.5".parse().unwrap();
        let samples = Samples::new(set.clone(), [1, 1, 1], &*set).for_training(augment, 1, 1);
        let loader = |ranks: usize, rank: usize| {
            let sharding = Sharding { ranks, rank, batch: global / ranks, accumulation: 1, global: None };
            TrainingLoader::new(samples.clone(), sharding, 1, Reading::inline()).unwrap()
        };
        let mut all = Vec::new();
        for ranks in [1, 2] {
            let mut batch = Batch::new(global / ranks, 1);
            let mut loaders: Vec<TrainingLoader> = (0..ranks).map(|rank| loader(ranks, rank)).collect();
            let mut pairs = Vec::new();
            for step in 0..loaders[0].steps() {
                for loader in &mut loaders {
                    loader.fill(step, 0, &mut batch).unwrap();
                    pairs.extend(batch.labels.iter().copied().zip(batch.others.iter().copied()));
                }
            }
            all.push(pairs);
        }
        assert_eq!(all[0], all[1]);
        let partners: HashSet<i32> = all[0].iter().map(|pair| pair.1).collect();
        assert_eq!(partners.len(), all[0].len(), "each is a partner once");
        assert!(all[0].iter().all(|(own, other)| own != other));
        if global == 20 {
            let block = block.unwrap_or(1) as i32;
            assert!(all[0].iter().all(|(own, other)| own / block != other / block), "{block}");
        }
    }
}

#[test]
fn the_last_test_batches_are_padded() {
    let sets = digits();
    let mut batch = Batch::new(50, 784);
    batch.images.fill(f32::NAN);
    let mut seen = Vec::new();
    for rank in 0..3 {
        let sharding = Sharding { ranks: 3, rank, batch: 50, accumulation: 1, global: None };
        let mut loader = TestLoader::new(sets.test.clone().unwrap(), sharding, Reading::inline());
        // 360 images in rounds of 150: the third round has 60, 50 for rank 0 and 10 for rank 1.
        assert_eq!(loader.steps(), 3);
        let count = loader.fill(2, &mut batch).unwrap();
        assert_eq!(count, [50, 10, 0][rank]);
        assert!(batch.labels[count..].iter().all(|&label| label == -1));
        assert!(batch.images[count * 784..].iter().all(|&value| value == 0.0));
        seen.extend_from_slice(&batch.labels[..count]);
    }
    let expected: Vec<i32> = (300..360).map(|index| sets.test.as_ref().unwrap().label(index)).collect();
    assert_eq!(seen, expected);
}

#[test]
fn too_few_images_for_one_global_batch_say_what_would_work() {
    let sets = digits();
    let refused = |ranks, batch, accumulation| {
        let sharding = Sharding { ranks, rank: 0, batch, accumulation, global: None };
        let error = TrainingLoader::new(sets.training.clone(), sharding, 1, Reading::inline())
            .err()
            .expect("refused");
        assert_eq!(error.kind, ErrorKind::Usage);
        error.message
    };
    let message = refused(4, 400, 1);
    assert!(message.contains("1437 samples") && message.contains("1600"), "{message}");
    assert!(message.ends_with("the largest --batch that works is 359"), "{message}");
    assert!(refused(2000, 1, 1).ends_with("at most 1437 ranks can share it"));
    assert!(refused(1000, 1, 2).contains("with accumulation 2 at most 718 ranks"));
    assert!(refused(2, usize::MAX, 3).ends_with("is 239"));
    assert!(refused(2, 0, 1).contains("at least 1"));
    let exact = Sharding { ranks: 4, rank: 3, batch: 359, accumulation: 1, global: None };
    assert_eq!(exact.steps(1437).unwrap(), 1);
}

#[test]
fn synthetic_images_are_the_same_for_the_same_seed_only() {
    let set = |seed| contents(&data::synthetic([3, 5, 4], 7, 40, seed));
    assert!(set(1) == set(1));
    assert!(set(1).2 != set(2).2);
    let (_, labels, pixels) = set(1);
    assert!(labels.iter().all(|label| (0..7).contains(label)));
    assert_eq!(labels.iter().collect::<HashSet<_>>().len(), 7);
    assert!(pixels[..60] != pixels[60..120], "images differ");
    // A long run costs no more to set up than a short one.
    let long = data::synthetic([3, 224, 224], 1000, 100_000_000, 1);
    long.read(0, 99_999_999, &mut vec![0.0; 3 * 224 * 224], &mut DecodeBuffers::default()).unwrap();
    assert!(long.label(99_999_999) < 1000);
}
