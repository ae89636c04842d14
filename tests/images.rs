//! What a user relies on when images are photographs in files, of any size.
//!
//! - each format gives the pictures and classes that were put in, and says at the start what is wrong with it
//! - what a rank reads is a function of seed, epoch and image: not of threads, ranks, or what was read before
//! - an image that does not decode is skipped, by name; `--strict` stops
//! - no bytes crash a decoder, or make it take memory that the file does not justify
//! - a network learns what can be learned: shapes

#[path = "support/job.rs"]
mod job;

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use dltrain::config::{Augment, DataFormat, Input};
use dltrain::data::{
    self, PADDING, Picture, Reading, Samples, Scratch, Sets, Sharding, TestLoader, TrainingLoader, Wanted,
};
use dltrain::error::{Error, Kind};
use proptest::prelude::*;
use tempfile::TempDir;

/// An image that tells which it is: a colour for the class, a gradient for the index.
fn picture(class: usize, index: usize, [height, width]: [usize; 2]) -> Picture {
    let mut pixels = Vec::new();
    for row in 0..height {
        for column in 0..width {
            pixels.push((class * 60 + 20) as u8);
            pixels.push((row * 255 / height) as u8);
            pixels.push(((column + index * 16) * 255 / width) as u8);
        }
    }
    Picture { pixels, height, width, channels: 3 }
}

fn jpeg(picture: &Picture) -> Vec<u8> {
    let mut bytes = Vec::new();
    let encoder = jpeg_encoder::Encoder::new(&mut bytes, 95);
    let kind =
        if picture.channels == 1 { jpeg_encoder::ColorType::Luma } else { jpeg_encoder::ColorType::Rgb };
    encoder.encode(&picture.pixels, picture.width as u16, picture.height as u16, kind).unwrap();
    bytes
}

fn png(picture: &Picture) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, picture.width as u32, picture.height as u32);
    encoder.set_color(match picture.channels {
        1 => png::ColorType::Grayscale,
        2 => png::ColorType::GrayscaleAlpha,
        3 => png::ColorType::Rgb,
        _ => png::ColorType::Rgba,
    });
    encoder.write_header().unwrap().write_image_data(&picture.pixels).unwrap();
    bytes
}

fn put(root: &Path, name: &str, bytes: &[u8]) {
    let path = root.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

/// train/ with three classes of `each` images, val/ with two of each; sizes differ.
fn folder(each: usize) -> TempDir {
    let root = TempDir::new().unwrap();
    for (class, name) in ["ant", "bee", "cat"].into_iter().enumerate() {
        for index in 0..each {
            let size = [40 + index, 70 - 2 * index];
            // One in three is a PNG, under a name that says otherwise.
            let picture = picture(class, index, size);
            let bytes = if index % 3 == 2 { png(&picture) } else { jpeg(&picture) };
            put(root.path(), &format!("train/{name}/nested/{index:03}.JPEG"), &bytes);
        }
        for index in 0..2 {
            put(root.path(), &format!("val/{name}/{index}.png"), &png(&picture(class, index, [33, 44])));
        }
    }
    root
}

fn open(path: &Path, input: &Input) -> Result<Sets, Error> {
    data::open(path, &Wanted { sample: [3, 32, 32], classes: 10, seed: 7, input })
}

fn augmented(text: &str) -> Input {
    Input { augment: Some(text.parse().unwrap()), ..Input::default() }
}

fn refused(path: &Path, words: &[&str]) {
    let error = open(path, &Input::default()).err().expect("refused");
    assert_eq!(error.kind, Kind::Data, "{error}");
    for word in words {
        assert!(error.message.contains(word), "{word:?} is missing in: {error}");
    }
}

fn read(samples: &Samples, epoch: usize, index: usize) -> Vec<f32> {
    let mut image = vec![f32::NAN; samples.sample().iter().product()];
    samples.read(epoch, index, &mut image, &mut Scratch::default()).unwrap();
    image
}

#[test]
fn a_folder_has_a_class_for_each_directory() {
    let root = folder(3);
    let sets = open(root.path(), &augmented("none")).unwrap();
    let test = sets.test.unwrap();
    assert_eq!((sets.training.len(), test.len()), (9, 6));
    assert_eq!(sets.training.set().class_names(), ["ant", "bee", "cat"]);
    let mut decoded = Picture::default();
    for index in 0..9 {
        assert_eq!(sets.training.label(index), index as i32 / 3);
        sets.training.set().read(index, &mut decoded).unwrap();
        let original = picture(index / 3, index % 3, [40 + index % 3, 70 - 2 * (index % 3)]);
        assert_eq!((decoded.height, decoded.width, decoded.channels), (original.height, original.width, 3));
        let differences = decoded.pixels.iter().zip(&original.pixels).map(|(a, b)| a.abs_diff(*b));
        // PNG keeps every bit; JPEG at quality 95 loses little of a smooth image.
        let (most, sum) = differences.fold((0, 0), |(most, sum), d| (d.max(most), sum + u64::from(d)));
        let limit = if index % 3 == 2 { 0 } else { 6 };
        assert!(
            sum <= limit * decoded.pixels.len() as u64 && (limit > 0 || most == 0),
            "{index}: {most}, {sum}"
        );
    }
    // Classes alone, without train/ and val/: all is for training.
    let flat = open(&root.path().join("train"), &Input::default()).unwrap();
    assert!(flat.test.is_none() && flat.training.len() == 9);
    assert_eq!(flat.training.augment(), &Augment::imagenet());
}

#[test]
fn what_is_wrong_with_a_folder_is_said_at_the_start() {
    refused(Path::new("/no/such/place"), &["/no/such/place: no such directory"]);
    let root = TempDir::new().unwrap();
    refused(root.path(), &["no data set", "IDX", "CIFAR"]);
    put(root.path(), "train/ant/notes.txt", b"");
    refused(root.path(), &["train/ant: a class without images"]);
    put(root.path(), "train/ant/1.jpg", b"GIF89a");
    refused(root.path(), &["train/ant/1.jpg: neither JPEG nor PNG", "all of the 1"]);
    put(root.path(), "train/ant/1.jpg", &jpeg(&picture(0, 0, [8, 8])));
    open(root.path(), &Input::default()).unwrap();
    put(root.path(), "val/dog/1.jpg", &jpeg(&picture(0, 0, [8, 8])));
    refused(root.path(), &["val/dog: a class that the training set does not have"]);
    for class in 0..11 {
        put(root.path(), &format!("train/{class}/1.jpg"), &jpeg(&picture(0, 0, [8, 8])));
    }
    fs::remove_dir_all(root.path().join("val")).unwrap();
    refused(root.path(), &["12 classes, but the model has 10; use --classes 12"]);
    let other = Input { format: Some(DataFormat::Cifar), ..Input::default() };
    assert!(open(root.path(), &other).is_err_and(|error| error.message.contains("no CIFAR data")));
}

#[test]
fn cifar_is_read_byte_for_byte() {
    let root = TempDir::new().unwrap();
    let record = |label: &[u8], start: usize| -> Vec<u8> {
        label.iter().copied().chain((0..3072).map(|i| ((i + start) % 256) as u8)).collect()
    };
    for batch in 1..=5 {
        let bytes = [record(&[batch], 1), record(&[batch + 4], 2)].concat();
        put(root.path(), &format!("data_batch_{batch}.bin"), &bytes);
    }
    put(root.path(), "test_batch.bin", &record(&[0], 5));
    put(root.path(), "batches.meta.txt", b"a\nb\nc\nd\ne\nf\ng\nh\ni\nfrog\n\n");
    let sets = open(root.path(), &Input::default()).unwrap();
    let set = sets.training.set();
    assert_eq!((set.len(), sets.test.unwrap().len()), (10, 1));
    assert_eq!(set.class_names()[9], "frog");
    assert_eq!((0..10).map(|i| set.label(i)).collect::<Vec<_>>(), [1, 5, 2, 6, 3, 7, 4, 8, 5, 9]);
    let mut decoded = Picture::default();
    set.read(1, &mut decoded).unwrap();
    // Red, green and blue of pixel 10 lie 1024 bytes apart: equal modulo 256.
    assert_eq!((decoded.pixels[30], decoded.pixels[31], decoded.pixels[32]), (12, 12, 12));

    put(root.path(), "data_batch_3.bin", &record(&[10], 1));
    refused(root.path(), &["data_batch_3.bin: label 10 (of image 0) is out of range"]);
    put(root.path(), "data_batch_3.bin", &record(&[1], 1)[..3072]);
    refused(root.path(), &["data_batch_3.bin: 3072 bytes", "truncated"]);
    fs::remove_file(root.path().join("data_batch_3.bin")).unwrap();
    refused(root.path(), &["data_batch_3.bin: No such file"]);

    let hundred = TempDir::new().unwrap();
    put(hundred.path(), "train.bin", &record(&[3, 99], 0));
    put(hundred.path(), "test.bin", &record(&[3, 42], 0));
    let wanted = Wanted { sample: [3, 32, 32], classes: 100, seed: 1, input: &Input::default() };
    let sets = data::open(hundred.path(), &wanted).unwrap();
    assert_eq!((sets.training.label(0), sets.test.unwrap().label(0)), (99, 42));
}

/// The images of an epoch's first batches, with every rank's put together.
fn epoch(samples: &Samples, ranks: usize, threads: usize, epoch: usize) -> (Vec<f32>, Vec<i32>) {
    let (mut all, mut all_labels) = (Vec::new(), Vec::new());
    let loaders = (0..ranks).map(|rank| {
        let sharding = Sharding { ranks, rank, batch: 12 / ranks, accumulation: 1 };
        let reading = Reading::new(threads, false).unwrap();
        let mut loader = TrainingLoader::new(samples.clone(), sharding, 3, reading).unwrap();
        loader.start_epoch(epoch);
        loader
    });
    let mut loaders: Vec<TrainingLoader> = loaders.collect();
    let size: usize = samples.sample().iter().product();
    let (mut images, mut labels) = (vec![0.0; 12 / ranks * size], vec![0; 12 / ranks]);
    for step in 0..loaders[0].steps() {
        for loader in &mut loaders {
            loader.fill(step, 0, &mut images, &mut labels).unwrap();
            all.extend_from_slice(&images);
            all_labels.extend_from_slice(&labels);
        }
    }
    (all, all_labels)
}

#[test]
fn ranks_and_threads_change_nothing() {
    let root = folder(9);
    for augment in ["none", "imagenet,randaugment,jitter,lighting,cutout", "cifar"] {
        let sets = open(root.path(), &augmented(augment)).unwrap();
        let alone = epoch(&sets.training, 1, 0, 1);
        assert_eq!(alone.1.len(), 24);
        for (ranks, threads) in [(1, 1), (1, 3), (2, 0), (3, 2)] {
            assert!(
                epoch(&sets.training, ranks, threads, 1) == alone,
                "{augment}: {ranks} ranks, {threads} threads"
            );
        }
        let other = epoch(&sets.training, 1, 0, 2);
        assert!(other != alone);
    }
}

#[test]
fn each_epoch_and_each_repetition_is_augmented_anew() {
    let root = folder(4);
    for part in ["crop", "pad-crop", "flip", "randaugment", "jitter", "lighting", "cutout"] {
        let input = Input { repeat: 3, ..augmented(part) };
        let samples = open(root.path(), &input).unwrap().training;
        assert_eq!(samples.len(), 36);
        let of = |epoch, index| read(&samples, epoch, index).iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        let epochs: HashSet<_> = (0..12).map(|epoch| of(epoch, 5)).collect();
        let repeats: HashSet<_> =
            (0..4).flat_map(|epoch| [of(epoch, 5), of(epoch, 17), of(epoch, 29)]).collect();
        assert!(epochs.len() > 1 && repeats.len() > 1, "{part}");
        assert_eq!(of(3, 5), of(3, 5), "{part}");
    }
    let plain = open(root.path(), &Input { repeat: 3, ..augmented("none") }).unwrap().training;
    assert_eq!(read(&plain, 0, 5), read(&plain, 9, 29));
}

#[test]
fn evaluation_sees_the_middle_whatever_the_augmentation() {
    let root = TempDir::new().unwrap();
    // Grey but for the middle third of its width, which is white.
    let mut wide = Picture { pixels: vec![50; 32 * 96 * 3], height: 32, width: 96, channels: 3 };
    for row in wide.pixels.chunks_exact_mut(96 * 3) {
        row[32 * 3..64 * 3].fill(255);
    }
    put(root.path(), "train/a/1.png", &png(&wide));
    put(root.path(), "val/a/1.png", &png(&wide));
    let sets = open(root.path(), &augmented("imagenet,jitter")).unwrap();
    let image = read(&sets.test.unwrap(), 0, 0);
    let white = (1.0 - 0.485) / 0.229;
    assert!(image[..1024].iter().all(|&value| (value - white).abs() < 1e-5), "only the middle");
}

#[test]
fn a_jump_to_any_step_finds_its_batch() {
    let root = folder(9);
    let samples = open(root.path(), &augmented("imagenet")).unwrap().training;
    let sharding = Sharding { ranks: 1, rank: 0, batch: 3, accumulation: 2 };
    let loader = |threads| {
        let reading = Reading::new(threads, false).unwrap();
        TrainingLoader::new(samples.clone(), sharding, 3, reading).unwrap()
    };
    let (mut inline, mut ahead) = (loader(0), loader(2));
    let (mut expected, mut images) = (vec![0.0; 3 * 3072], vec![0.0; 3 * 3072]);
    let (mut expected_labels, mut labels) = (vec![0; 3], vec![0; 3]);
    // In order, over the end of an epoch, again, back, and far ahead.
    for (epoch, step, micro) in
        [(0, 2, 1), (0, 3, 0), (0, 3, 1), (1, 0, 0), (1, 0, 0), (0, 0, 1), (7, 2, 0), (7, 2, 1)]
    {
        inline.start_epoch(epoch);
        inline.fill(step, micro, &mut expected, &mut expected_labels).unwrap();
        ahead.start_epoch(epoch);
        ahead.fill(step, micro, &mut images, &mut labels).unwrap();
        assert!((&images, &labels) == (&expected, &expected_labels), "{epoch} {step} {micro}");
    }
}

#[test]
fn an_image_that_does_not_decode_counts_nowhere() {
    let root = folder(4);
    let bad = root.path().join("train/bee/nested/001.JPEG");
    let bytes = fs::read(&bad).unwrap();
    let sets = open(root.path(), &augmented("none")).unwrap();
    let whole = epoch(&sets.training, 1, 0, 0);
    let place = |labels: &[i32]| labels.iter().position(|&label| label == PADDING);
    assert_eq!(place(&whole.1), None);
    // Truncated, something else, and gone after the start.
    for broken in [Some(&bytes[..bytes.len() / 2]), Some(b"\xff\xd8\xff\xe0 junk".as_slice()), None] {
        match broken {
            Some(bytes) => fs::write(&bad, bytes).unwrap(),
            None => fs::remove_file(&bad).unwrap(),
        }
        for (ranks, threads) in [(1, 0), (1, 2), (2, 0)] {
            let (images, labels) = epoch(&sets.training, ranks, threads, 0);
            let skipped = place(&labels).expect("one is skipped");
            for (at, &label) in labels.iter().enumerate() {
                let span = at * 3072..(at + 1) * 3072;
                if at == skipped {
                    assert!(images[span].iter().all(|&value| value == 0.0));
                } else {
                    assert!(images[span.clone()] == whole.0[span] && label == whole.1[at]);
                }
            }
        }
        let sharding = Sharding { ranks: 1, rank: 0, batch: 12, accumulation: 1 };
        let (mut images, mut labels) = (vec![0.0; 12 * 3072], vec![0; 12]);
        for threads in [0, 2] {
            let mut loader =
                TrainingLoader::new(sets.training.clone(), sharding, 3, Reading::new(threads, true).unwrap())
                    .unwrap();
            let error = loader.fill(0, 0, &mut images, &mut labels).expect_err("strict");
            assert!(error.kind == Kind::Data && error.message.contains("bee/nested/001.JPEG"), "{error}");
            let mut test =
                TestLoader::new(sets.training.clone(), sharding, Reading::new(threads, false).unwrap());
            assert_eq!(test.fill(0, &mut images, &mut labels).unwrap(), 11);
        }
    }
}

/// Bytes a run of the decoder allocates are bounded by its picture; that by the file.
fn decode_is_sane(bytes: &[u8]) {
    let mut picture = Picture::default();
    if data::decode(bytes, &mut picture).is_ok() {
        assert_eq!(picture.pixels.len(), picture.height * picture.width * picture.channels);
        assert!(matches!(picture.channels, 1 | 3));
    }
    assert!(picture.pixels.capacity() <= 3 * 1032 * bytes.len().max(64), "{} bytes", bytes.len());
}

proptest! {
    /// Bytes changed, cut and inserted anywhere in a good file: a picture or an error, in proportion to the file.
    #[test]
    fn no_bytes_can_crash_a_decoder(
        as_png: bool, channels in 1usize..5, edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..20),
        end in any::<prop::sample::Index>(), cut: bool,
    ) {
        let mut picture = picture(1, 2, [17, 23]);
        let channels = if as_png { channels } else { channels.min(2) * 2 - 1 };
        picture.channels = channels;
        picture.pixels.resize(17 * 23 * channels, 9);
        let mut bytes = if as_png { png(&picture) } else { jpeg(&picture) };
        for (place, value) in edits {
            let place = place.index(bytes.len());
            bytes[place] = value;
        }
        if cut {
            bytes.truncate(end.index(bytes.len()));
        }
        decode_is_sane(&bytes);
    }
}

#[test]
fn a_header_that_promises_the_moon_costs_nothing() {
    let mut bytes = jpeg(&picture(1, 2, [17, 23]));
    let frame = bytes.windows(2).position(|pair| pair == [0xff, 0xc0]).unwrap();
    for size in [[0x7f, 0xff, 0x7f, 0xff], [0xff; 4], [0, 0, 0, 9]] {
        bytes[frame + 5..frame + 9].copy_from_slice(&size);
        let error = data::decode(&bytes, &mut Picture::default()).unwrap_err();
        assert!(error.contains("than") || error.contains("corrupt") || error.contains("says"), "{error}");
        decode_is_sane(&bytes);
    }
    let mut bytes = png(&picture(1, 2, [17, 23]));
    bytes[16..24].copy_from_slice(&[0, 0, 0x7f, 0xff, 0, 0, 0x7f, 0xff]);
    decode_is_sane(&bytes);
}

#[test]
fn transparency_and_sixteen_bits_are_left_away() {
    let rgba = Picture { pixels: vec![1, 2, 3, 0, 4, 5, 6, 255], height: 1, width: 2, channels: 4 };
    let mut decoded = Picture::default();
    data::decode(&png(&rgba), &mut decoded).unwrap();
    assert_eq!((decoded.channels, decoded.pixels.as_slice()), (3, [1, 2, 3, 4, 5, 6].as_slice()));
}

#[test]
fn shapes_are_learned() {
    let results = TempDir::new().unwrap();
    let file = results.path().join("run.h5");
    let flags = [
        "--model",
        "cifar_net",
        "--data",
        "synthetic:shapes:1500",
        "--epochs",
        "6",
        "--batch",
        "25",
        "--optimizer",
        "adam",
        "--lr",
        "0.002",
        "--results",
        file.to_str().unwrap(),
        "--seed",
        "3",
    ];
    job::run(2, &flags);
    let accuracy = job::series(&file, "epochs/test_accuracy");
    // Ten classes: guessing gives a tenth.
    assert!(accuracy[5] > 0.8, "{accuracy:?}");
}

#[test]
fn a_run_skips_bad_images_by_name_and_stops_with_strict() {
    let root = folder(10);
    fs::write(root.path().join("train/cat/nested/004.JPEG"), b"").unwrap();
    let results = TempDir::new().unwrap();
    let data = root.path().to_str().unwrap();
    let flags = |file: &str| -> Vec<String> {
        let file = results.path().join(file).display().to_string();
        ["--model", "cifar_net", "--data", data, "--epochs", "2", "--batch", "5", "--results", &file]
            .map(String::from)
            .to_vec()
    };
    let mut losses = Vec::new();
    for ranks in [1, 2, 3] {
        let file = format!("{ranks}.h5");
        let flags = flags(&file);
        let mut flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let batch = (30 / ranks).to_string();
        flags.extend(["--batch", &batch, "--loader-threads", "2", "--augment", "imagenet,jitter"]);
        let done = job::finish(job::job(&[(ranks, &flags)]));
        assert!(done.success, "{}", done.stderr);
        let named = done.stderr.lines().filter(|line| line.contains("004.JPEG: empty")).count();
        // Once by each rank that meets it, in one of two epochs.
        assert!((1..=ranks.min(2)).contains(&named), "{}", done.stderr);
        assert_eq!(done.stdout.matches("1 images skipped").count(), 2, "{}", done.stdout);
        losses.push(job::series(&results.path().join(&file), "epochs/train_loss"));
        assert_eq!(job::series(&results.path().join(&file), "steps/accuracy").len(), 2);
    }
    // To the rounding of sums: the same images, the same gradients.
    for other in &losses[1..] {
        assert!(losses[0].iter().zip(other).all(|(a, b)| (a - b).abs() < 1e-4), "{losses:?}");
    }
    let flags = flags("strict.h5");
    let mut flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    flags.push("--strict");
    let message = job::refused(&[(2, &flags)]);
    assert!(message.contains("004.JPEG: empty"), "{message}");
}
