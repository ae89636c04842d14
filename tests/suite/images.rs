//! What a user relies on when images are photographs in files, of any size.
//!
//! - each format gives the pictures and classes that were put in, and says at the start what is wrong with it
//! - what a rank reads is a function of seed, epoch and image: not of threads, ranks, or what was read before
//! - an image that does not decode is skipped, by name; `--strict` stops
//! - no bytes crash a decoder, or make it take memory that the file does not justify
//! - a network learns what can be learned: shapes

use crate::support::job;
use crate::support::pictures::{jpeg, picture, png, put, tar_of};

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use dltrain::config::{Augment, DataFormat, Input, JpegDecoder};
use dltrain::data::{
    self, Batch, DecodeBuffers, Jpeg, PADDING, Picture, Reading, Samples, Sets, Sharding, TestLoader,
    TrainingLoader, Wanted,
};
use dltrain::error::{Error, ErrorKind};
use proptest::prelude::*;
use tempfile::TempDir;

/// train/ with three classes of `each` images, val/ with two of each; sizes differ.
fn folder(each: usize) -> TempDir {
    let root = TempDir::new().unwrap();
    for (class, name) in ["ant", "bee", "cat"].into_iter().enumerate() {
        for index in 0..each {
            let size = [40 + index % 20, 70 - 2 * (index % 20)];
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
    assert_eq!(error.kind, ErrorKind::Data, "{error}");
    for word in words {
        assert!(error.message.contains(word), "{word:?} is missing in: {error}");
    }
}

fn read(samples: &Samples, epoch: usize, index: usize) -> Vec<f32> {
    let mut image = vec![f32::NAN; samples.sample().iter().product()];
    samples.read(epoch, index, &mut image, &mut DecodeBuffers::default()).unwrap();
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
    refused(root.path(), &["train/ant/1.jpg: neither JPEG nor PNG", "none of the 1 files"]);
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

/// Links that lead back, into each other and to a class are followed to each directory once.
#[test]
fn links_lead_to_each_image_once() {
    let root = folder(2);
    let link = |to: &str, name: &str| std::os::unix::fs::symlink(to, root.path().join(name)).unwrap();
    let names = |samples: &Samples| (0..samples.len()).map(|index| samples.name(index)).collect::<Vec<_>>();
    let whole = open(root.path(), &Input::default()).unwrap();
    link("..", "train/ant/nested/back");
    link("../../train", "train/ant/nested/around");
    link("../../bee/nested", "train/ant/nested/beside");
    link("../..", "train/bee/zoo");
    link("../..", "val/bee/zoo");
    let linked = open(root.path(), &Input::default()).unwrap();
    assert_eq!(names(&linked.training), names(&whole.training));
    assert_eq!(names(&linked.test.unwrap()), names(&whole.test.unwrap()));
    // What lies elsewhere is followed, in its place: as a class and within one.
    let other = folder(3);
    let elsewhere = |to: &str, name: &str| link(other.path().join(to).to_str().unwrap(), name);
    elsewhere("train/cat", "train/dog");
    elsewhere("train/ant/nested", "train/ant/aardvark");
    let linked = open(root.path(), &Input::default()).unwrap().training;
    assert_eq!(linked.set().class_names(), ["ant", "bee", "cat", "dog"]);
    assert_eq!(
        (0..linked.len()).map(|index| linked.label(index)).collect::<Vec<_>>(),
        [0, 0, 0, 0, 0, 1, 1, 2, 2, 3, 3, 3]
    );
    assert!(
        linked.name(2).ends_with("ant/aardvark/002.JPEG") && linked.name(3).ends_with("ant/nested/000.JPEG")
    );
    link("ant", "train/emmet");
    refused(root.path(), &["train/emmet: leads to the directory of another class"]);
    // Tar files are looked for one directory deep.
    let tars = TempDir::new().unwrap();
    put(tars.path(), "all.tar", &tar_of(&[("ant/1.png", &png(&picture(0, 0, [4, 4])))]));
    std::os::unix::fs::symlink(".", tars.path().join("here")).unwrap();
    assert_eq!(open(tars.path(), &Input::default()).unwrap().training.len(), 1);
}

/// A pipe would be waited for without end, and the job with it.
#[test]
fn what_is_no_regular_file_is_not_opened() {
    let root = folder(3);
    let pipe = |name: &str| {
        let path = root.path().join(name);
        let _ = fs::remove_file(&path);
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        path
    };
    // Among others it is an image that cannot be read, wherever it stands; where all are it is found at once.
    ["000", "001"].into_iter().for_each(|name| drop(pipe(&format!("train/bee/nested/{name}.JPEG"))));
    let sets = open(root.path(), &Input::default()).unwrap();
    let error = sets.training.set().read(4, &mut Picture::default()).unwrap_err();
    assert!(error.message.ends_with("001.JPEG: a pipe, not a regular file"), "{error}");
    let alone = TempDir::new().unwrap();
    for class in ["ant", "bee"] {
        fs::create_dir(alone.path().join(class)).unwrap();
        fs::rename(pipe("train/bee/nested/000.JPEG"), alone.path().join(class).join("0.jpg")).unwrap();
    }
    refused(alone.path(), &["ant/0.jpg: a pipe, not a regular file, and none of the 2 files"]);
    for name in ["all.h5", "more/all.tar", "idx/train-images-idx3-ubyte", "cifar/data_batch_1.bin"] {
        fs::create_dir_all(root.path().join(name).parent().unwrap()).unwrap();
        let path = pipe(name);
        if name.starts_with("idx") {
            put(root.path(), "idx/train-labels-idx1-ubyte", b"");
        }
        let place = if name == "all.h5" { &path } else { path.parent().unwrap() };
        refused(place, &["a pipe, not a regular file"]);
    }
    // What a command line names.
    let zero = root.path().join("zero.h5");
    std::os::unix::fs::symlink("/dev/zero", &zero).unwrap();
    let (pipe, zero) = (pipe("run.h5"), zero.to_str().unwrap());
    for flag in ["--config", "--init-from"] {
        for (path, what) in [(pipe.to_str().unwrap(), "a pipe"), (zero, "a device")] {
            let message = job::refused(&[(1, &[flag, path])]);
            assert!(message.contains(&format!("{what}, not a regular file")), "{flag}: {message}");
        }
    }
}

/// Ranks on two nodes whose folders have the same names: other bytes, or another size, are found.
#[test]
fn folders_of_unlike_content_are_told_apart() {
    let root = TempDir::new().unwrap();
    for node in ["0", "1"] {
        fs::rename(folder(4).keep(), root.path().join(node)).unwrap();
    }
    let of = |node: &str| open(&root.path().join(node), &Input::default()).unwrap().training.fingerprint();
    assert_eq!(of("0"), of("1"));
    let there = root.path().join("1/train/cat/nested/002.JPEG");
    let bytes = fs::read(&there).unwrap();
    for at in [0, bytes.len() / 2, bytes.len() - 1, bytes.len()] {
        let mut other = bytes.clone();
        other.resize(bytes.len().max(at + 1), 0);
        other[at] ^= 1;
        fs::write(&there, other).unwrap();
        assert_ne!(of("0"), of("1"), "byte {at}");
    }
    let flags = "--data . --model cifar_net --classes 3 --batch 2 --steps 1 --threads 1";
    let rank = "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}";
    let command = format!("cd {}/{rank} && exec {} {flags}", root.path().display(), job::DLTRAIN);
    let done = job::finish(job::start(2, &["sh", "-c", &command]));
    let found = done.stderr.contains("error: ") && done.stderr.contains("training images");
    assert!(!done.success && found, "{}\n{}", done.stdout, done.stderr);
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
fn epoch(samples: &Samples, ranks: usize, threads: usize, epoch: usize) -> Batch {
    let loaders = (0..ranks).map(|rank| {
        let sharding = Sharding { ranks, rank, batch: 12 / ranks, accumulation: 1, global: None };
        let reading = Reading::new(threads, false).unwrap();
        let mut loader = TrainingLoader::new(samples.clone(), sharding, 3, reading).unwrap();
        loader.start_epoch(epoch);
        loader
    });
    let mut loaders: Vec<TrainingLoader> = loaders.collect();
    let size: usize = samples.sample().iter().product();
    let (mut all, mut batch) = (Batch::new(0, size), Batch::new(12 / ranks, size));
    for step in 0..loaders[0].steps() {
        for loader in &mut loaders {
            loader.fill(step, 0, &mut batch).unwrap();
            all.images.extend_from_slice(&batch.images);
            all.labels.extend_from_slice(&batch.labels);
            all.others.extend_from_slice(&batch.others);
            all.shares.extend_from_slice(&batch.shares);
        }
    }
    all
}

#[test]
fn ranks_and_threads_change_nothing() {
    let root = folder(9);
    for augment in ["none", "imagenet,randaugment,jitter,lighting,cutout", "cifar", "crop,mixup,cutmix"] {
        let sets = open(root.path(), &augmented(augment)).unwrap();
        let alone = epoch(&sets.training, 1, 0, 1);
        assert_eq!(alone.labels.len(), 24);
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

/// What a GPU gets to normalise is what a CPU reads, to the bit, whether the pictures have colours or not.
#[test]
fn pixels_with_their_normalisation_are_the_images() {
    let root = folder(9);
    let grey = Picture {
        pixels: (0..40 * 50).map(|at| (at % 251) as u8).collect(),
        height: 40,
        width: 50,
        channels: 1,
    };
    put(root.path(), "train/ant/grey.png", &png(&grey));
    for augment in ["none", "imagenet,randaugment,jitter", "cifar"] {
        let sets = open(root.path(), &augmented(augment)).unwrap();
        let data::Normalisation { scale, shift } = sets.pixels().unwrap();
        let mut number = [0f32; 3072];
        for index in 0..sets.training.len() {
            let mut pixels = [0u8; 3072];
            let class =
                sets.training.read_pixels(1, index, &mut pixels, &mut DecodeBuffers::default()).unwrap();
            for (at, &byte) in pixels.iter().enumerate() {
                number[at % 3 * 1024 + at / 3] = f32::from(byte) * scale[at % 3] + shift[at % 3];
            }
            assert_eq!(number[..], read(&sets.training, 1, index), "{augment}, image {index}");
            assert_eq!(class, sets.training.label(index));
        }
    }
    for augment in ["lighting", "cutout", "mixup", "cutmix"] {
        assert_eq!(open(root.path(), &augmented(augment)).unwrap().pixels(), None, "{augment}");
    }
}

/// Every image is mixed with the next of the epoch, as that one is without mixing; the shares say how, and no
/// evaluation is.
#[test]
fn mixed_images_are_those_of_the_unmixed_epoch() {
    let root = folder(9);
    let order = data::epoch_order(3, 1, 27);
    let plain_sets = open(root.path(), &augmented("imagenet")).unwrap();
    let plain = |place: usize| read(&plain_sets.training, 1, order[place % 27] as usize);
    for part in ["mixup=0.4", "cutmix"] {
        let sets = open(root.path(), &augmented(&format!("imagenet,{part}"))).unwrap();
        let mixed = epoch(&sets.training, 2, 1, 1);
        let mut between = 0;
        for place in 0..24 {
            let (own, partner, share) = (plain(place), plain(place + 1), mixed.shares[place]);
            let label = |place: usize| plain_sets.training.label(order[place % 27] as usize);
            assert_eq!([mixed.labels[place], mixed.others[place]], [label(place), label(place + 1)]);
            between += usize::from(share > 0.0 && share < 1.0);
            let image = &mixed.images[place * 3072..][..3072];
            if part == "cutmix" {
                let kept = image.iter().zip(&own).zip(&partner).filter(|((value, own), partner)| {
                    assert!(value == own || value == partner);
                    value == own
                });
                assert!(kept.count() as f32 >= share * 3072.0 - 0.5, "{share}");
            } else {
                let blend =
                    own.iter().zip(&partner).map(|(own, partner)| share * own + (1.0 - share) * partner);
                assert!(image.iter().copied().eq(blend));
            }
        }
        assert!(between > 12, "{part}: {:?}", mixed.shares);
        assert_eq!(read(sets.test.as_ref().unwrap(), 0, 0), read(plain_sets.test.as_ref().unwrap(), 0, 0));
        let sharding = Sharding { ranks: 1, rank: 0, batch: 6, accumulation: 1, global: None };
        let mut tested = Batch::new(6, 3072);
        TestLoader::new(sets.test.unwrap(), sharding, Reading::inline()).fill(0, &mut tested).unwrap();
        assert_eq!((&tested.others, tested.shares), (&tested.labels, vec![1.0; 6]));
    }
}

/// The same losses on one rank and on two, and bit for bit after an interruption in the middle of an epoch.
#[test]
fn a_run_on_mixed_images_knows_neither_ranks_nor_interruptions() {
    let results = TempDir::new().unwrap();
    let train = |name: &str, ranks: usize, more: &[&str]| {
        let (file, batch) = (results.path().join(name), (64 / ranks).to_string());
        let flags =
            ["--model", "mnist_small", "--data", "synthetic:shapes:640", "--augment", "mixup=0.4,cutmix"];
        let own = ["--batch", &batch, "--threads", "1", "--results", file.to_str().unwrap()];
        job::run(ranks, &[&flags[..], &own, &["--label-smoothing", "0.1"], more].concat());
        job::series(&file, "steps/loss")
    };
    let steps = ["--steps", "14", "--warmup", "0"];
    let kept = results.path().join("kept");
    let keeping =
        ["--checkpoint", kept.to_str().unwrap(), "--checkpoint-every", "6steps", "--checkpoint-keep", "9"];
    let whole = train("whole.h5", 1, &[&steps[..], &keeping].concat());
    assert_eq!(whole.len(), 14);
    // Only the order of additions differs.
    for (one, two) in whole.iter().zip(train("two.h5", 2, &steps)) {
        assert!((one - two).abs() < 1e-3 * one, "{one} {two}");
    }
    let sixth = kept.join("step-00000006.h5");
    let rest = train("rest.h5", 1, &[&steps[..], &["--resume", sixth.to_str().unwrap()]].concat());
    assert_eq!(rest, whole[6..]);
}

/// What does not decode is skipped itself, and its neighbour stays as it is.
#[test]
fn nothing_is_mixed_with_an_image_that_does_not_decode() {
    let root = folder(9);
    let sets = open(root.path(), &augmented("none,mixup")).unwrap();
    let whole = epoch(&sets.training, 1, 0, 0);
    let order = data::epoch_order(3, 0, 27);
    // One in the middle, and the one behind the last, which is read only to be mixed.
    for place in [7, 24] {
        let image = order[place] as usize;
        let name = ["ant", "bee", "cat"][image / 9];
        let path = root.path().join(format!("train/{name}/nested/{:03}.JPEG", image % 9));
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
        let broken = epoch(&sets.training, 1, 2, 0);
        for (at, &index) in order[..24].iter().enumerate() {
            let same = broken.images[at * 3072..][..3072] == whole.images[at * 3072..][..3072];
            match at {
                _ if at == place => assert_eq!(broken.labels[at], PADDING),
                _ if at + 1 == place => {
                    assert_eq!((broken.others[at], broken.shares[at]), (broken.labels[at], 1.0));
                    assert_eq!(broken.images[at * 3072..][..3072], read(&sets.training, 0, index as usize));
                }
                _ => assert!(same && broken.labels[at] == whole.labels[at], "{at}"),
            }
        }
        fs::write(&path, bytes).unwrap();
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
    let sharding = Sharding { ranks: 1, rank: 0, batch: 3, accumulation: 2, global: None };
    let loader = |threads| {
        let reading = Reading::new(threads, false).unwrap();
        TrainingLoader::new(samples.clone(), sharding, 3, reading).unwrap()
    };
    let (mut inline, mut ahead) = (loader(0), loader(2));
    let (mut expected, mut found) = (Batch::new(3, 3072), Batch::new(3, 3072));
    // In order, over the end of an epoch, again, back, and far ahead.
    for (epoch, step, micro) in
        [(0, 2, 1), (0, 3, 0), (0, 3, 1), (1, 0, 0), (1, 0, 0), (0, 0, 1), (7, 2, 0), (7, 2, 1)]
    {
        inline.start_epoch(epoch);
        inline.fill(step, micro, &mut expected).unwrap();
        ahead.start_epoch(epoch);
        ahead.fill(step, micro, &mut found).unwrap();
        assert!(found == expected, "{epoch} {step} {micro}");
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
    assert_eq!(place(&whole.labels), None);
    // Truncated, something else, and gone after the start.
    for broken in [Some(&bytes[..bytes.len() / 2]), Some(b"\xff\xd8\xff\xe0 junk".as_slice()), None] {
        match broken {
            Some(bytes) => fs::write(&bad, bytes).unwrap(),
            None => fs::remove_file(&bad).unwrap(),
        }
        for (ranks, threads) in [(1, 0), (1, 2), (2, 0)] {
            let Batch { images, labels, .. } = epoch(&sets.training, ranks, threads, 0);
            let skipped = place(&labels).expect("one is skipped");
            for (at, &label) in labels.iter().enumerate() {
                let span = at * 3072..(at + 1) * 3072;
                if at == skipped {
                    assert!(images[span].iter().all(|&value| value == 0.0));
                } else {
                    assert!(images[span.clone()] == whole.images[span] && label == whole.labels[at]);
                }
            }
        }
        let sharding = Sharding { ranks: 1, rank: 0, batch: 12, accumulation: 1, global: None };
        let mut batch = Batch::new(12, 3072);
        for threads in [0, 2] {
            let mut loader =
                TrainingLoader::new(sets.training.clone(), sharding, 3, Reading::new(threads, true).unwrap())
                    .unwrap();
            let error = loader.fill(0, 0, &mut batch).expect_err("strict");
            assert!(
                error.kind == ErrorKind::Data && error.message.contains("bee/nested/001.JPEG"),
                "{error}"
            );
            let mut test =
                TestLoader::new(sets.training.clone(), sharding, Reading::new(threads, false).unwrap());
            assert_eq!(test.fill(0, &mut batch).unwrap(), 11);
        }
    }
}

/// The JPEG decoders that this machine has.
fn decoders() -> Vec<Jpeg> {
    let turbo = Jpeg::find(JpegDecoder::Turbo);
    if let Err(error) = &turbo {
        assert!(error.kind == ErrorKind::Environment && error.message.contains("libturbojpeg0"), "{error}");
        println!("SKIPPED: {error}");
    }
    [Ok(Jpeg::Rust), turbo].into_iter().flatten().collect()
}

/// Bytes a run of the decoder allocates are bounded by its picture; that by the file.
fn decode_is_sane(bytes: &[u8]) {
    for jpeg in decoders() {
        let mut picture = Picture::default();
        if data::decode(bytes, &mut picture, jpeg).is_ok() {
            assert_eq!(picture.pixels.len(), picture.height * picture.width * picture.channels);
            assert!(matches!(picture.channels, 1 | 3));
        }
        assert!(picture.pixels.capacity() <= 3 * 1032 * bytes.len().max(64), "{} bytes", bytes.len());
    }
}

/// Of each kind of JPEG file that there is both make the same picture, to some units; files are those of `make fuzz`.
#[test]
fn jpeg_decoders_agree() {
    for name in ["rgb", "progressive", "grey", "full", "restart", "cmyk"] {
        let path = format!("{}/fuzz/seeds/picture/{name}_jpg", env!("CARGO_MANIFEST_DIR"));
        let bytes = fs::read(path).unwrap();
        let decoded = decoders().into_iter().map(|jpeg| {
            let mut picture = Picture::default();
            data::decode(&bytes, &mut picture, jpeg).unwrap();
            assert!(
                data::decode(&bytes[..bytes.len() - 8], &mut Picture::default(), jpeg).is_err(),
                "{name}"
            );
            picture
        });
        let decoded: Vec<Picture> = decoded.collect();
        let [first, rest @ ..] = decoded.as_slice() else { unreachable!() };
        assert_eq!((first.height, first.width, first.channels), (19, 23, if name == "grey" { 1 } else { 3 }));
        for other in rest {
            let differences = first.pixels.iter().zip(&other.pixels).map(|(a, b)| f64::from(a.abs_diff(*b)));
            let mean = differences.sum::<f64>() / first.pixels.len() as f64;
            assert!(
                (other.height, other.width, other.channels) == (19, 23, first.channels) && mean < 2.0,
                "{name}: {mean}"
            );
        }
    }
}

/// What a run says and records; `auto` takes libjpeg-turbo where there is one, and a run that goes on says if it
/// changes.
#[test]
fn a_run_says_what_decodes_its_jpegs() {
    let root = folder(4);
    let results = TempDir::new().unwrap();
    let run = |decoder: &str, more: &[&str]| {
        let (data, kept) = (root.path().to_str().unwrap(), results.path().join("kept"));
        let flags = [
            "--model",
            "cifar_net",
            "--classes",
            "3",
            "--data",
            data,
            "--batch",
            "4",
            "--threads",
            "1",
            "--jpeg-decoder",
            decoder,
        ];
        let file = results.path().join("run.h5");
        let files = ["--results", file.to_str().unwrap(), "--checkpoint", kept.to_str().unwrap()];
        job::run(1, &[&flags[..], &files, more].concat())
    };
    let said = run("rust", &["--epochs", "1"]);
    assert!(said.contains("JPEG by the decoder in Rust"), "{said}");
    let said = run("auto", &["--epochs", "2", "--resume", "auto"]);
    if decoders().len() == 2 {
        assert!(said.contains("JPEG by libjpeg-turbo"), "{said}");
        assert!(said.contains("changed: input.jpeg_decoder rust then, turbo now"), "{said}");
    } else {
        assert!(said.contains("JPEG by the decoder in Rust"), "{said}");
    }
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
        let error = data::decode(&bytes, &mut Picture::default(), Jpeg::Rust).unwrap_err();
        assert!(error.contains("than") || error.contains("corrupt") || error.contains("says"), "{error}");
        decode_is_sane(&bytes);
    }
    let mut bytes = png(&picture(1, 2, [17, 23]));
    bytes[16..24].copy_from_slice(&[0, 0, 0x7f, 0xff, 0, 0, 0x7f, 0xff]);
    decode_is_sane(&bytes);
}

/// A file of one colour is a thousandth of its pixels: what is too large is refused by its header.
#[test]
fn images_of_very_many_pixels_are_not_decoded() {
    let mut bomb = png(&picture(1, 2, [17, 23]));
    bomb[16..24].copy_from_slice(&[0, 0, 0x4e, 0x20, 0, 0, 0x4e, 0x20]);
    // The checksum of the header.
    let mut crc = flate2::Crc::new();
    crc.update(&bomb[12..29]);
    bomb[29..33].copy_from_slice(&crc.sum().to_be_bytes());
    bomb.resize(1_200_000, 0);
    let mut photograph = jpeg(&picture(1, 2, [17, 23]));
    let frame = photograph.windows(2).position(|pair| pair == [0xff, 0xc0]).unwrap();
    photograph[frame + 5..frame + 9].copy_from_slice(&[0x4e, 0x20, 0x4e, 0x20]);
    let end = photograph.len() - 2;
    photograph.splice(end..end, vec![0; 1_200_000]);
    for jpeg in decoders() {
        for bytes in [&bomb, &photograph] {
            let mut picture = Picture::default();
            let error = data::decode(bytes, &mut picture, jpeg).unwrap_err();
            assert_eq!(error, "20000×20000 pixels; images of more than 89478485 are not decoded");
            assert_eq!(picture.pixels.capacity(), 0);
        }
    }
}

#[test]
fn transparency_and_sixteen_bits_are_left_away() {
    let rgba = Picture { pixels: vec![1, 2, 3, 0, 4, 5, 6, 255], height: 1, width: 2, channels: 4 };
    let mut decoded = Picture::default();
    data::decode(&png(&rgba), &mut decoded, Jpeg::Rust).unwrap();
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
        let network = ["--model", "cifar_net", "--classes", "3"];
        let run = ["--data", data, "--epochs", "2", "--batch", "5", "--results", &file];
        [&network[..], &run].concat().into_iter().map(String::from).collect()
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
        assert_eq!(done.stdout.matches("1 sample skipped").count(), 2, "{}", done.stdout);
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
    let done = job::finish(job::job(&[(2, &flags)]));
    assert!(!done.success && done.stderr.contains("error: ") && done.stderr.contains("004.JPEG: empty"));
    assert!(!done.stderr.contains("skipped"), "nothing is skipped then: {}", done.stderr);
}

/// Packs a folder with these flags; the packed file's path.
fn pack(root: &Path, ranks: usize, name: &str, flags: &[&str]) -> String {
    let output = root.join(name).display().to_string();
    let source = root.join("images").display().to_string();
    job::run(ranks, &[&["pack", &source, &output], flags].concat());
    output
}

/// A directory with `images/` in it.
fn to_pack(each: usize) -> TempDir {
    let root = TempDir::new().unwrap();
    let images = folder(each);
    fs::rename(images.path(), root.path().join("images")).unwrap();
    root
}

#[test]
fn packed_images_are_those_that_were_packed() {
    let root = to_pack(6);
    let source = open(&root.path().join("images"), &Input::default()).unwrap();
    let as_they_were = pack(root.path(), 1, "encoded.h5", &["--encoded"]);
    let pixels = pack(root.path(), 2, "pixels.h5", &["--size", "24"]);
    // (class, first pixels) of every image, in any order.
    let content = |samples: &Samples| {
        let mut all: Vec<(i32, Vec<u8>)> = (0..samples.len())
            .map(|index| {
                let mut picture = Picture::default();
                samples.set().read(index, &mut picture).unwrap();
                (samples.label(index), picture.pixels)
            })
            .collect();
        all.sort();
        all
    };
    let encoded = open(Path::new(&as_they_were), &Input::default()).unwrap();
    assert_eq!(encoded.training.set().class_names(), source.training.set().class_names());
    assert!(content(&encoded.training) == content(&source.training));
    assert!(content(&encoded.test.unwrap()) == content(&source.test.unwrap()));
    let small = open(Path::new(&pixels), &Input::default()).unwrap().training;
    assert_eq!(small.len(), 18);
    for index in 0..18 {
        let mut picture = Picture::default();
        small.set().read(index, &mut picture).unwrap();
        assert_eq!(picture.height.min(picture.width), 24);
        // The class is the amount of red.
        assert!(picture.pixels[0].abs_diff((small.label(index) * 60 + 20) as u8) < 6);
    }
    let order: Vec<i32> = (0..18).map(|index| small.label(index)).collect();
    assert!(!order.is_sorted(), "packed in random order");
    // Normalised as what was packed: ImageNet's colours, and the middle.
    for packed in [&small, &encoded.training] {
        assert_eq!(packed.expected(), source.training.expected());
    }
    let verified = job::run(2, &["pack", &pixels, "--verify"]);
    assert!(verified.contains("24 images in 2 files: every checksum is right"), "{verified}");
}

#[test]
fn packing_gives_the_same_files_on_any_number_of_ranks_and_can_be_taken_up_again() {
    let root = to_pack(60);
    let flags = ["--size", "64", "--file-mb", "1"];
    pack(root.path(), 1, "one.h5", &flags);
    let three = pack(root.path(), 3, "three.h5", &flags);
    let name = |stem: &str, number| root.path().join(format!("{stem}-training-{number}-of-3.h5"));
    for number in 1..=3 {
        assert!(fs::read(name("one", number)).unwrap() == fs::read(name("three", number)).unwrap());
    }
    // A file is lost, another was being written when the power failed.
    let whole = fs::read(name("three", 2)).unwrap();
    fs::remove_file(name("three", 2)).unwrap();
    fs::write(name("three", 2).with_extension("h5.tmp"), b"half").unwrap();
    let error = open(Path::new(&three), &Input::default()).err().expect("one is missing");
    assert!(error.message.contains("file 2 of 3 of the training images is missing"), "{error}");
    let before = fs::metadata(name("three", 1)).unwrap().modified().unwrap();
    pack(root.path(), 2, "three.h5", &flags);
    assert!(fs::read(name("three", 2)).unwrap() == whole);
    assert!(!name("three", 2).with_extension("h5.tmp").exists());
    assert_eq!(fs::metadata(name("three", 1)).unwrap().modified().unwrap(), before, "left alone");
    let images = root.path().join("images").display().to_string();
    let said = job::run(2, &[&["pack", &images, &three][..], &flags].concat());
    assert!(said.contains("(4 of them there already, whole)"), "{said}");
    // Other choices do not replace what is there.
    let source = root.path().join("images").display().to_string();
    let message = job::refused(&[(2, &["pack", &source, &three, "--size", "65", "--file-mb", "1"])]);
    assert!(message.contains("is there already, from another source"), "{message}");
}

#[test]
fn a_damaged_image_in_a_packed_file_is_found_and_skipped() {
    let root = to_pack(4);
    fs::remove_dir_all(root.path().join("images/val")).unwrap();
    let packed = pack(root.path(), 1, "all.h5", &["--size", "24"]);
    let mut bytes = fs::read(&packed).unwrap();
    let text = String::from_utf8_lossy(&bytes[..4096]).into_owned();
    let chunk = text
        .split("\"chunks\":[")
        .nth(1)
        .unwrap()
        .split([']', ','])
        .next()
        .unwrap()
        .parse::<usize>()
        .unwrap();
    bytes[chunk + 3 * 24 * 50] ^= 1;
    fs::write(&packed, bytes).unwrap();
    let sets = open(Path::new(&packed), &augmented("none")).unwrap();
    let labels = epoch(&sets.training, 1, 0, 0).labels;
    assert_eq!(labels.iter().filter(|&&label| label == PADDING).count(), 1);
    let message = job::refused(&[(1, &["pack", &packed, "--verify"])]);
    assert!(message.contains("1 damaged images") && message.contains("CRC-32"), "{message}");
}

#[test]
fn tar_files_are_read_by_key_or_by_directory() {
    let images: Vec<Vec<u8>> = (0..4).map(|class| jpeg(&picture(class, 0, [20, 30]))).collect();
    let root = TempDir::new().unwrap();
    put(
        root.path(),
        "train-0.tar",
        &tar_of(&[("a/0.jpg", &images[2]), ("a/0.cls", b"2\n"), ("a/1.cls", b"0"), ("a/1.jpg", &images[0])]),
    );
    put(root.path(), "train-1.tar", &tar_of(&[("b.jpg", &images[3]), ("b.json", b"{}"), ("b.cls", b"3")]));
    put(root.path(), "val-0.tar", &tar_of(&[("c.jpg", &images[1]), ("c.cls", b"1")]));
    let sets = open(root.path(), &augmented("none")).unwrap();
    let test = sets.test.unwrap();
    assert_eq!((sets.training.len(), test.len()), (3, 1));
    assert_eq!(sets.training.set().class_names().len(), 4);
    for samples in [&sets.training, &test] {
        for index in 0..samples.len() {
            let mut decoded = Picture::default();
            samples.set().read(index, &mut decoded).unwrap();
            assert!(decoded.pixels[0].abs_diff((samples.label(index) * 60 + 20) as u8) < 8);
        }
    }
    let directories = TempDir::new().unwrap();
    put(directories.path(), "all.tar", &tar_of(&[("x/dog/1.jpg", &images[1]), ("x/ant/1.jpg", &images[0])]));
    let sets = open(&directories.path().join("all.tar"), &augmented("none")).unwrap();
    assert_eq!(sets.training.set().class_names(), ["ant", "dog"]);
    assert_eq!([sets.training.label(0), sets.training.label(1)], [1, 0]);

    put(root.path(), "train-1.tar", &tar_of(&[("b.jpg", &images[3])]));
    refused(root.path(), &["train-1.tar: b.jpg has no .cls file"]);
    put(root.path(), "train-1.tar", &tar_of(&[("b.jpg", &images[3]), ("b.cls", b"dog")]));
    refused(root.path(), &["b.cls: \"dog\" is no class number"]);
    put(root.path(), "train-1.tar", b"");
    refused(root.path(), &["train-1.tar: empty, or not a tar file"]);
    let whole = tar_of(&[("b.jpg", &images[3]), ("b.cls", b"3")]);
    put(root.path(), "train-1.tar", &whole[..700]);
    refused(root.path(), &["train-1.tar", "truncated"]);
}

proptest! {
    /// Bytes changed and cut anywhere in a good tar or packed file: a set that can be read through, or an error.
    #[test]
    fn no_bytes_can_crash_a_container(
        which in 0usize..2, edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        in_header: bool, end in any::<prop::sample::Index>(), cut: bool,
    ) {
        static GOOD: std::sync::OnceLock<[Vec<u8>; 2]> = std::sync::OnceLock::new();
        let good = GOOD.get_or_init(|| {
            let root = to_pack(1);
            fs::remove_dir_all(root.path().join("images/val")).unwrap();
            let packed = fs::read(pack(root.path(), 1, "all.h5", &["--size", "8"])).unwrap();
            let image = png(&picture(1, 1, [4, 4]));
            [tar_of(&[("dog/1.png", &image), ("cat/1.png", &image)]), packed]
        });
        let mut bytes = good[which].clone();
        for (place, value) in edits {
            let place = place.index(if in_header { 700.min(bytes.len()) } else { bytes.len() });
            bytes[place] = value;
        }
        if cut {
            bytes.truncate(end.index(bytes.len()));
        }
        let root = TempDir::new().unwrap();
        let path = root.path().join(["a.tar", "a.h5"][which]);
        fs::write(&path, bytes).unwrap();
        if let Ok(sets) = open(&path, &augmented("none")) {
            for index in 0..sets.training.len() {
                let _ = sets.training.set().read(index, &mut Picture::default());
                sets.training.name(index);
            }
        }
    }

    /// A permutation, sorted within each global batch, whatever the blocks.
    #[test]
    fn shuffling_by_blocks_sees_every_image_once(
        images in 1usize..2000, block in 1usize..40, global in 1usize..100, epoch in 0usize..3,
    ) {
        let starts: Vec<u32> = (0..images as u32).step_by(block).collect();
        let order = data::block_order(5, epoch, images, &starts, global, 4 * global);
        prop_assert!(order.chunks(global).all(<[u32]>::is_sorted));
        let seen: HashSet<u32> = order.iter().copied().collect();
        prop_assert_eq!((seen.len(), order.len()), (images, images));
        prop_assert!(order.iter().all(|&index| (index as usize) < images));
    }
}

/// What docs/data.md says of the shuffle: neighbours on disk meet in one global batch with a probability of (G − 1) /
/// (W − 1) if their block lies in one window; and where an image comes in an epoch is as good as uniform.
#[test]
fn the_quality_of_the_shuffle_is_as_stated() {
    let (images, block, global) = (40_000, 5, 100);
    let starts: Vec<u32> = (0..images as u32).step_by(block).collect();
    let (mut together, mut early) = (0, 0.0);
    for epoch in 0..10 {
        let order = data::block_order(5, epoch, images, &starts, global, 4 * global);
        let mut batch = vec![0; images];
        order.iter().enumerate().for_each(|(place, &index)| batch[index as usize] = place / global);
        together += (0..images).step_by(block).filter(|&first| batch[first] == batch[first + 1]).count();
        early += batch[..images / 2].iter().map(|&batch| batch as f64).sum::<f64>() / (images / 2) as f64;
    }
    // Blocks of 5 divide windows of 400. Five standard errors of 80000 trials: 5·√(p(1−p)/80000).
    let (found, expected) = (f64::from(together as u32) / 80_000.0, 99.0 / 399.0);
    assert!((found - expected).abs() < 0.0077, "{found}, not {expected}");
    // The first half of the images has a mean place in the middle, 199.5: 8000 blocks in 10 epochs,
    // √(400²/12/40000)·5/√10·√½…
    assert!((early / 10.0 - 199.5).abs() < 2.0, "{early}");
}
