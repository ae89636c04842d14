//! What a user relies on whose images lie in a way that this program was not told of.
//!
//! - parts are known by name, in directories, tar files and directories within these alike
//! - what all was taken for is said, and what is left out is counted by kind
//! - what may be meant otherwise is refused, with what settles it
//! - files that are no images of a class, or that other programs put there, do no harm

use crate::support::cases::each;
use crate::support::pictures::{jpeg, picture, png, put, tar_of};
use crate::support::{digits, job};

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use digits::DIGITS;
use dltrain::config::{DataFormat, Input};
use dltrain::data::{self, Picture, Samples, Sets, Wanted};
use dltrain::error::{Error, ErrorKind};
use job::DLTRAIN;
use tempfile::TempDir;

fn image(class: usize, index: usize) -> Vec<u8> {
    jpeg(&picture(class, index, [12, 16]))
}

/// Directories with so many images each.
fn tree(images: &[(&str, usize)]) -> TempDir {
    let root = TempDir::new().unwrap();
    for (class, (directory, count)) in images.iter().enumerate() {
        (0..*count).for_each(|i| put(root.path(), &format!("{directory}/{i}.jpg"), &image(class % 4, i)));
    }
    root
}

fn open_as(path: &Path, format: Option<DataFormat>) -> Result<Sets, Error> {
    let input = Input { format, ..Input::default() };
    data::open(path, &Wanted { sample: [3, 16, 16], classes: 10, seed: 1, input: &input })
}

fn open(path: &Path) -> Sets {
    open_as(path, None).unwrap()
}

/// Numbers of images, and classes.
fn counts(sets: &Sets) -> ([usize; 2], Vec<&str>) {
    let test = sets.test.as_ref().map_or(0, Samples::len);
    let names = sets.training.set().class_names();
    ([sets.training.len(), test], names.iter().map(String::as_str).collect())
}

fn refused(path: &Path, words: &[&str]) {
    refused_by(open_as(path, None), words);
}

fn refused_by(opened: Result<Sets, Error>, words: &[&str]) {
    let error = opened.err().expect("refused");
    assert_eq!(error.kind, ErrorKind::Data, "{error}");
    for word in words {
        assert!(error.message.contains(word), "{word:?} is missing in: {error}");
    }
}

fn says(sets: &Sets, words: &[&str]) {
    let said = sets.said.join("\n");
    words.iter().for_each(|word| assert!(said.contains(word), "{word:?} is missing in: {said}"));
}

/// What is there where a repository was cloned without `git lfs`, whatever it was to be.
#[test]
fn pointers_of_git_lfs_are_told_from_damaged_files() {
    let root = TempDir::new().unwrap();
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n";
    for name in ["train.tar", "packed.h5", "idx/train-images-idx3-ubyte", "cifar/data_batch_1.bin"] {
        put(root.path(), name, pointer);
        put(root.path(), "idx/train-labels-idx1-ubyte", pointer);
        let set = if name.contains('/') { Path::new(name).parent().unwrap() } else { Path::new(name) };
        refused(&root.path().join(set), &["is a pointer of Git LFS", "git lfs pull"]);
    }
    // Nor are those zeros which a crash leaves.
    let zeros = "it begins with zeros, as a file does that was being written";
    for (name, set) in [("packed.h5", "packed.h5"), ("idx/train-images-idx3-ubyte", "idx")] {
        put(root.path(), name, &[0; 4096]);
        refused(&root.path().join(set), &[zeros]);
    }
    put(root.path(), "net.onnx", &[0; 4096]);
    let said = dltrain::model::open(&root.path().join("net.onnx")).err().unwrap().message;
    assert!(said.contains(zeros), "{said}");
    put(root.path(), "net.onnx", pointer);
    let said = dltrain::model::open(&root.path().join("net.onnx")).err().unwrap().message;
    assert!(said.contains("git lfs pull"), "{said}");
    for class in ["cat", "dog"] {
        put(root.path(), &format!("folder/{class}/0.jpg"), pointer);
    }
    refused(&root.path().join("folder"), &["neither JPEG nor PNG but a pointer of Git LFS"]);
}

/// As `dltrain evaluate` has it.
#[test]
fn what_nothing_divides_is_tested_on_as_a_whole() {
    let root = tree(&[("train/cat", 3), ("train/dog", 3), ("val/cat", 2), ("val/dog", 2)]);
    let input = Input::default();
    let wanted = Wanted { sample: [3, 16, 16], classes: 10, seed: 1, input: &input };
    let open = |path: &Path| data::open_to_test(path, &wanted);
    let both = open(root.path()).unwrap();
    says(&both, &["6 images to train on (train/), 4 to test on (val/)"]);
    let alone = open(&root.path().join("val")).unwrap();
    assert_eq!(counts(&alone), ([4, 4], vec!["cat", "dog"]));
    says(&alone, &["a folder: 4 images to test on, all that are there; 2 classes: cat, dog"]);
    let test = |sets: &Sets| sets.test.as_ref().map(Samples::fingerprint);
    assert_eq!(test(&alone), test(&both));
    // A class that nothing is there of counts, and says so.
    fs::create_dir(root.path().join("val/ant")).unwrap();
    let more = open(&root.path().join("val")).unwrap();
    assert_eq!(counts(&more), ([4, 4], vec!["ant", "cat", "dog"]));
    says(&more, &["classes without an image to test on: ant"]);
    refused(&root.path().join("val"), &["val/ant: a class without images"]);
    fs::remove_dir(root.path().join("val/ant")).unwrap();
    fs::remove_dir_all(root.path().join("val")).unwrap();
    let refused = open(root.path()).err().expect("what is to train on is not tested on by itself").message;
    let own = root.path().join("train");
    assert!(
        refused.contains(&format!("beside train/; --data {}/ tests on these", own.display())),
        "{refused}"
    );
    assert_eq!(counts(&open(&own).unwrap()).0, [6, 6]);
    // The part by itself as tar files, which nobody can train on.
    let tars = TempDir::new().unwrap();
    for file in ["val-0", "val-1"] {
        let [cat, dog] = [0, 1].map(|class| image(class, 1));
        let images = tar_of(&[(&format!("cat/{file}.jpg"), &cat), (&format!("dog/{file}.jpg"), &dog)]);
        put(tars.path(), &format!("{file}.tar"), &images);
    }
    assert_eq!(counts(&open(tars.path()).unwrap()), ([4, 4], vec!["cat", "dog"]));
    refused_by(data::open(tars.path(), &wanted), &["tar files to test on alone"]);
    for part in [0, 1] {
        let at = |name: &str| tars.path().join(format!("{name}-{part}.tar"));
        fs::rename(at("val"), at("train")).unwrap();
    }
    refused_by(open(tars.path()), &["no images to test on: all are to train on, by the names"]);
    assert_eq!(counts(&open(&tars.path().join("train-0.tar")).unwrap()).0, [2, 2]);
}

/// As `dltrain evaluate` has it: of MNIST's or CIFAR's files those to test on may lie by themselves.
#[test]
fn files_to_test_on_are_enough_to_test_on() {
    let (digits, cifar) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    for file in ["t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"] {
        fs::copy(Path::new(DIGITS).join(file), digits.path().join(file)).unwrap();
    }
    let record = |label: u8| [vec![label], vec![label; 3072]].concat();
    fs::write(cifar.path().join("test_batch.bin"), [record(3), record(7)].concat()).unwrap();
    let input = Input::default();
    for (path, sample, count, file, missing) in [
        (digits.path(), [1, 28, 28], 360, "t10k-images-idx3-ubyte", "no train-images file"),
        (cifar.path(), [3, 32, 32], 2, "test_batch.bin", "neither data_batch_1.bin nor train.bin"),
    ] {
        let wanted = Wanted { sample, classes: 10, seed: 1, input: &input };
        let sets = data::open_to_test(path, &wanted).unwrap();
        assert_eq!(counts(&sets).0, [count, count]);
        says(&sets, &[&format!("{count} images to test on, all that are there ({file}); 10 classes")]);
        refused_by(data::open(path, &wanted), &[missing]);
    }
    // Nor do those to train on need others; those of another set are counted.
    for number in 1..6 {
        fs::write(cifar.path().join(format!("data_batch_{number}.bin")), record(number)).unwrap();
    }
    fs::remove_file(cifar.path().join("test_batch.bin")).unwrap();
    fs::write(cifar.path().join("train.bin"), b"").unwrap();
    let wanted = Wanted { sample: [3, 32, 32], classes: 10, seed: 1, input: &input };
    let sets = data::open(cifar.path(), &wanted).unwrap();
    assert_eq!(counts(&sets).0, [5, 0]);
    says(&sets, &["none to test on (no test_batch.bin)", "files of the other CIFAR set: 1 (train.bin)"]);
}

#[test]
fn parts_are_known_by_their_names_in_any_case() {
    let words = [("Train", "Test"), ("training", "testing"), ("train", "valid"), ("TRAIN2017", "val2017")];
    for (train, test) in words {
        let of = |part: &str, class: &str| format!("{part}/{class}");
        let names = [of(train, "cat"), of(train, "dog"), of(test, "cat"), of(test, "dog")];
        let root = tree(&[(&names[0], 3), (&names[1], 3), (&names[2], 2), (&names[3], 2)]);
        let sets = open(root.path());
        assert_eq!(counts(&sets), ([6, 4], vec!["cat", "dog"]));
        says(&sets, &["a folder: 6 images", &format!("({train}/)"), &format!("4 to test on ({test}/)")]);
        let alone = open(&root.path().join(train));
        assert_eq!(counts(&alone).0, [6, 0]);
        says(
            &alone,
            &[&format!("none to test on (that of --data {} would be {test}/)", root.path().display())],
        );
        // The same tree as a tar file, with a directory around it or without.
        for around in ["", "pets/", "./pets/2019/"] {
            let entries = names.iter().enumerate().flat_map(|(at, name)| {
                (0..if at < 2 { 3 } else { 2 }).map(move |i| (format!("{around}{name}/{i}.jpg"), at % 2, i))
            });
            let entries: Vec<(String, Vec<u8>)> = entries.map(|(name, c, i)| (name, image(c, i))).collect();
            let entries: Vec<(&str, &[u8])> = entries.iter().map(|(name, b)| (&**name, &**b)).collect();
            let tars = TempDir::new().unwrap();
            put(tars.path(), "all.tar", &tar_of(&entries));
            for path in [tars.path(), &tars.path().join("all.tar")] {
                assert_eq!(counts(&open(path)), ([6, 4], vec!["cat", "dog"]), "{around}{train}");
            }
        }
    }
    // Words within the names of shards.
    let shards = TempDir::new().unwrap();
    let shard = |name: &str| put(shards.path(), name, &tar_of(&[("0.jpg", &image(0, 0)), ("0.cls", b"0")]));
    for name in ["set-train-00.tar", "set-train-01.tar", "set_Validation_00.tar", "testament.tar"] {
        shard(name);
    }
    let sets = open(shards.path());
    assert_eq!(counts(&sets).0, [2, 1]);
    says(&sets, &["(2 files)", "(1 file)", "left out: tar files whose names say no part: 1 (testament.tar)"]);
    fs::remove_dir_all(shards.path()).unwrap();
    fs::create_dir(shards.path()).unwrap();
    shard("val-00.tar");
    refused(shards.path(), &["tar files to test on alone"]);
}

#[test]
fn what_may_be_meant_otherwise_is_refused_with_what_settles_it() {
    /// Directories with their images, and words of what is said.
    type Case<'a> = (&'a [(&'a str, usize)], &'a [&'a str]);
    let cases: [Case; 6] = [
        (
            &[("pets/train/cat", 2), ("pets/train/dog", 2), ("pets/val/cat", 1)],
            &["pets", "it holds train and val: --data "],
        ),
        (&[("Train", 2), ("bear", 2)], &["Train would be classes"]),
        (&[("val/cat", 2), ("val/dog", 2)], &["val would be classes"]),
        (&[("images", 3), ("masks", 3)], &["images and masks would be classes"]),
        (&[("Cat", 2), ("cat", 2)], &["two classes"]),
        (&[("train/seg_train/a", 2), ("train/seg_test/a", 2)], &["seg_test, seg_train would be classes"]),
    ];
    for (directories, words) in cases {
        let root = tree(directories);
        refused(root.path(), &[words, &["if it is meant so, say --data-format folder"]].concat());
        open_as(root.path(), Some(DataFormat::Folder)).unwrap();
    }
    // Masks beside their images.
    let root = tree(&[("a", 3), ("b", 3)]);
    for name in ["a/0", "a/1", "b/0"] {
        put(root.path(), &format!("{name}.png"), &png(&picture(0, 0, [4, 4])));
    }
    refused(root.path(), &["3 of 9 files", "a/0.png and a/0.jpg", "as masks have"]);
    assert_eq!(open_as(root.path(), Some(DataFormat::Folder)).unwrap().training.len(), 9);
    // The parent of what is meant.
    let parent = Path::new(DIGITS).parent().unwrap();
    refused(parent, &["it holds IDX files in digits: --data", "digits"]);
    // Tar files too.
    let tars = TempDir::new().unwrap();
    let (one, two) = (image(0, 0), image(1, 1));
    put(tars.path(), "all.tar", &tar_of(&[("seg_train/0.jpg", &one), ("seg_test/1.jpg", &two)]));
    refused(tars.path(), &["seg_test, seg_train would be classes", "say --data-format tar"]);
    assert_eq!(open_as(tars.path(), Some(DataFormat::Tar)).unwrap().training.len(), 2);
}

/// Everything below a class would be trained on as one of its images.
#[test]
fn parts_and_masks_within_classes_are_refused() {
    let root = tree(&[("cat/train", 3), ("cat/val", 2), ("dog/train", 3), ("dog/val", 2)]);
    refused(
        root.path(),
        &["cat/train and cat/val would both be images to train on", "say --data-format folder"],
    );
    assert_eq!(open_as(root.path(), Some(DataFormat::Folder)).unwrap().training.len(), 10);
    let masks = tree(&[("cat/images", 2), ("cat/masks", 2), ("dog/images", 2)]);
    refused(masks.path(), &["within cat images and masks would be images of it"]);
    let (one, two) = (image(0, 0), image(1, 1));
    let tars = TempDir::new().unwrap();
    let cases = [
        (["x/cat/train/0.jpg", "x/cat/val/0.jpg", "x/dog/train/0.jpg"], "cat/train and cat/val would both"),
        (["cat/0.jpg", "cat/0_mask.jpg", "dog/0.jpg"], "cat/0_mask.jpg and cat/0.jpg"),
        (["cat/images/0.jpg", "cat/masks/0.jpg", "dog/images/0.jpg"], "within cat images and masks"),
    ];
    for (names, what) in cases {
        put(tars.path(), "all.tar", &tar_of(&names.map(|name| (name, &*one))));
        refused(tars.path(), &[what, "say --data-format tar"]);
        assert_eq!(open_as(tars.path(), Some(DataFormat::Tar)).unwrap().training.len(), 3);
    }
    // Shards that would be left out are missed; other files are counted.
    put(tars.path(), "all.tar", &tar_of(&[("cat/0.jpg", &one), ("dog/1.jpg", &two)]));
    put(tars.path(), "notes.txt", b"");
    put(tars.path(), "more/deep/c.tar", b"");
    let sets = open(tars.path());
    says(&sets, &["files that are no images: 1 (.txt)", "no tar files are looked for: 1 (deep)"]);
    for name in ["all-1.tar.gz", "more/all-2.TGZ", "all-3.tar.part"] {
        put(tars.path(), name, b"");
        refused(tars.path(), &[name, "is a tar file that is compressed, or not all there"]);
        fs::remove_file(tars.path().join(name)).unwrap();
    }
}

/// Labels are numbers: they mean the classes of the weights only where both have the same in one order.
#[test]
fn weights_of_other_classes_than_the_data_are_refused() {
    let root =
        tree(&[("ours/cat", 4), ("ours/dog", 4), ("theirs/dog", 4), ("theirs/wolf", 4), ("less/dog", 4)]);
    let at = |name: &str| root.path().join(name).display().to_string();
    let [ours, theirs, less, weights] = ["ours", "theirs", "less", "w.safetensors"].map(at);
    let flags = ["--model", "cifar_net", "--batch", "2", "--classes", "2", "--threads", "1"];
    job::run(1, &[&flags[..], &["--epochs", "1", "--data", &ours, "--save-weights", &weights]].concat());
    let of = ["--init-from", &weights, "--data"];
    let cases = [
        (
            vec!["evaluate"],
            vec![&*theirs],
            "2 classes: dog, wolf, and the weights of --init-from are for 2 classes: cat, dog",
        ),
        (
            vec!["evaluate"],
            vec![&*less],
            "a directory for each of these, be it empty as cat, gives them their numbers",
        ),
        (
            vec![],
            vec![&*theirs, "--epochs", "1"],
            "by --data-format (folder, tar, packed or cifar), or --reset-head to learn them anew",
        ),
    ];
    each(cases, |(first, more, what)| {
        let said = job::refused(&[(1, &[&first[..], &flags, &of, &more].concat())]);
        assert!(said.contains(what), "{said}");
    });
    fs::create_dir(root.path().join("less/cat")).unwrap();
    for more in [vec![&*less], vec![&*theirs, "--data-format", "folder"]] {
        job::run(1, &[&["evaluate"][..], &flags, &of, &more].concat());
    }
    job::run(1, &[&flags[..], &of, &[&theirs, "--epochs", "1", "--reset-head"]].concat());
}

/// One rule for directories and tar files: one part to train on, and the first of those to test on.
#[test]
fn of_parts_of_one_kind_one_counts_and_the_others_are_said() {
    let root = TempDir::new().unwrap();
    for (name, count) in [("train", 3), ("val", 2), ("test", 1)] {
        let images: Vec<(String, Vec<u8>)> =
            (0..2 * count).map(|i| (format!("{}/{i}.jpg", ["cat", "dog"][i % 2]), image(i % 2, i))).collect();
        let images: Vec<(&str, &[u8])> = images.iter().map(|(name, bytes)| (&**name, &bytes[..])).collect();
        put(root.path(), &format!("names/{name}-000.tar"), &tar_of(&images));
        put(root.path(), &format!("places/{name}/000.tar"), &tar_of(&images));
    }
    for (place, left_out) in [("names", "test-000.tar"), ("places", "test/000.tar")] {
        let sets = open(&root.path().join(place));
        assert_eq!(counts(&sets), ([6, 4], vec!["cat", "dog"]));
        says(&sets, &[&format!("tar files of parts besides the one to test on: 1 ({left_out})")]);
    }
    put(root.path(), "zipped.tar", b"\x1f\x8b\x08");
    refused(&root.path().join("zipped.tar"), &["is compressed by gzip"]);
    // Which of two is trained on nobody knows; nor whether what a link leads to is meant.
    let images = [("train2014/cat", 2), ("train2014/dog", 2), ("train2017/cat", 2), ("train2017/dog", 2)];
    let years = tree(&images);
    refused(years.path(), &["train2014 and train2017 are both called", "say --data-format folder"]);
    assert_eq!(open_as(years.path(), Some(DataFormat::Folder)).unwrap().training.len(), 4);
    fs::remove_dir_all(years.path().join("train2017")).unwrap();
    for (to, what) in
        [("nowhere", "val is a link that leads nowhere"), ("train2014", "val leads to train2014")]
    {
        std::os::unix::fs::symlink(to, years.path().join("val")).unwrap();
        refused(years.path(), &[what, "say --data-format folder"]);
        fs::remove_file(years.path().join("val")).unwrap();
    }
    fs::create_dir_all(years.path().join("val/Cat")).unwrap();
    put(years.path(), "val/Cat/0.jpg", &image(0, 0));
    refused(years.path(), &["a class that the training set does not have; it has cat"]);
}

/// The best figure of other images would stand beside what is tested from then on.
#[test]
fn a_run_goes_on_with_the_images_that_it_tested_on() {
    let root = tree(&[("train/cat", 4), ("train/dog", 4), ("val/cat", 2), ("val/dog", 2)]);
    let at = |name: &str| root.path().join(name).display().to_string();
    let [data, kept] = ["", "kept"].map(at);
    let flags = ["--model", "cifar_net", "--batch", "2", "--classes", "2", "--threads", "1", "--data", &data];
    let of_run = ["--checkpoint", &kept, "--resume", "auto", "--results"];
    let [first, second, third] = ["a.h5", "b.h5", "c.h5"].map(at);
    job::run(1, &[&flags[..], &of_run, &[&first, "--epochs", "1"]].concat());
    put(root.path(), "val/cat/9.jpg", &image(0, 9));
    let said = job::refused(&[(1, &[&flags[..], &of_run, &[&second, "--epochs", "2"]].concat())]);
    assert!(said.contains("is the checkpoint of another run: test images"), "{said}");
    fs::remove_dir_all(root.path().join("val")).unwrap();
    job::run(1, &[&flags[..], &of_run, &[&third, "--epochs", "2"]].concat());
}

#[test]
fn a_part_to_test_on_may_lack_classes_or_images() {
    let root = tree(&[("train/cat", 3), ("train/dog", 3), ("test", 2)]);
    let sets = open(root.path());
    assert_eq!(counts(&sets).0, [6, 0]);
    says(&sets, &["none to test on", "test/ has no directories for classes: nothing is tested on it"]);
    // Beside a part that has classes it is still said.
    put(root.path(), "val/cat/0.jpg", &image(0, 0));
    fs::create_dir(root.path().join("val/dog")).unwrap();
    let sets = open(root.path());
    assert_eq!(counts(&sets).0, [6, 1]);
    says(&sets, &["test/ has no directories", "val/: classes without an image to test on: dog"]);
    fs::remove_dir(root.path().join("val/dog")).unwrap();
    says(&open(root.path()), &["val/: classes without an image to test on: dog"]);
    put(root.path(), "test/cat/0.jpg", &image(0, 0));
    put(root.path(), "annotations/cat.xml", b"");
    let sets = open(root.path());
    says(
        &sets,
        &["parts besides the one to test on: 1 (test/)", "directories beside the parts: 1 (annotations)"],
    );
    assert!(sets.test.unwrap().name(0).contains("/val/"));
    put(root.path(), "val/cow/0.jpg", &image(0, 0));
    refused(root.path(), &["val/cow: a class that the training set does not have"]);
    // As a Mac writes it, and others do.
    fs::rename(root.path().join("val/cow"), root.path().join("val/cafe\u{301}")).unwrap();
    fs::rename(root.path().join("train/dog"), root.path().join("train/caf\u{e9}")).unwrap();
    refused(
        root.path(),
        &["does not have, as its characters are cafe\\u{301}, and another name may look alike"],
    );
    // Within a tar file.
    let one = image(0, 0);
    let of = |name: &'static str| (name, &*one);
    let all =
        tar_of(&[of("x/train/cat/0.jpg"), of("x/train/dog/0.jpg"), of("x/test/0.jpg"), of("x/etc/0.jpg")]);
    put(root.path(), "tars/all.tar", &all);
    let sets = open(&root.path().join("tars"));
    assert_eq!(counts(&sets), ([2, 0], vec!["cat", "dog"]));
    says(&sets, &["nothing is tested on them", "images beside the parts: 1 (etc)"]);
}

#[test]
fn what_cannot_be_decoded_is_counted_and_named() {
    let root = tree(&[("train/cat", 2), ("train/dog", 2)]);
    for (class, name) in ["cat", "dog"].into_iter().enumerate() {
        for ending in ["jfif", "jpe", "JPG"] {
            put(root.path(), &format!("train/{name}/more.{ending}"), &image(class, 7));
        }
        for ending in ["webp", "bmp", "tif", "TIF"] {
            put(root.path(), &format!("train/{name}/other.{ending}"), b"RIFF");
        }
        put(root.path(), &format!("train/{name}/.DS_Store"), b"");
        put(root.path(), &format!("train/{name}/@eaDir/thumb.jpg"), b"");
        put(root.path(), &format!("train/{name}/notes.txt"), b"");
    }
    put(root.path(), "train/stray.jpg", &image(0, 0));
    let sets = open(root.path());
    assert_eq!(sets.training.len(), 10);
    let images = "image files that are neither JPEG nor PNG: 8 (.tif 4, .bmp 2, .webp 2)";
    let hidden = "hidden files and directories: 4 (.DS_Store 2, @eaDir 2)";
    let others = ["images outside of all classes: 1 (stray.jpg)", "files that are no images: 2 (.txt 2)"];
    says(&sets, &["left out: ", images, hidden, others[0], others[1]]);
    for name in ["0.jpg", "1.jpg", "more.jfif", "more.jpe", "more.JPG"] {
        fs::remove_file(root.path().join("train/dog").join(name)).unwrap();
    }
    refused(root.path(), &["train/dog: a class without images", ".webp 2"]);
    // Under a name that is not its own.
    put(root.path(), "train/dog/0.jpg", b"RIFF....WEBPVP8 ");
    let set = open(root.path()).training;
    let error = set.set().read(5, &mut Picture::default()).unwrap_err();
    assert!(error.message.ends_with("dog/0.jpg: neither JPEG nor PNG but WebP"), "{error}");
}

#[test]
fn archives_and_results_beside_are_no_data() {
    let root = tree(&[("train/cat", 2), ("train/dog", 2), ("val/cat", 1), ("val/dog", 1)]);
    put(root.path(), "ILSVRC2012_img_train.tar", &tar_of(&[("n01440764.tar", b"")]));
    put(root.path(), "train/n01440764.tar", b"");
    put(root.path(), "results.h5", b"\x89HDF\r\n\x1a\n");
    let sets = open(root.path());
    assert_eq!(counts(&sets), ([4, 2], vec!["cat", "dog"]));
    says(&sets, &["files that are no images: 3 (.tar 2, .h5)"]);
    // Without a part that is called so nobody knows.
    let train = root.path().join("train");
    refused(
        root.path().join("train").as_path(),
        &["n01440764.tar", "--data-format tar or --data-format folder"],
    );
    assert_eq!(open_as(&train, Some(DataFormat::Folder)).unwrap().training.len(), 4);
    // Packed files have a mark, and others beside them do not.
    let packed = root.path().join("packed");
    fs::create_dir(&packed).unwrap();
    let [source, output] = [root.path(), &packed.join("all.h5")].map(|path| path.display().to_string());
    let said = job::run(1, &["pack", &source, &output, "--size", "16"]);
    assert!(
        said.contains("a folder: 4 images to train on (train/), 2 to test on (val/); 2 classes: cat, dog"),
        "{said}"
    );
    put(&packed, "results.h5", b"\x89HDF\r\n\x1a\n");
    let sets = open(&packed);
    assert_eq!(counts(&sets).0, [4, 2]);
    says(&sets, &["packed: 4 images", "files that are no images: 1 (.h5)"]);
    refused(&root.path().join("results.h5"), &["not a file of dltrain pack"]);
    put(root.path(), "zipped/flowers.zip", b"PK");
    refused(&root.path().join("zipped"), &["no data set", "flowers.zip has to be unpacked"]);
    refused(&root.path().join("train/cat"), &["0.jpg lies in no directory that names its class"]);
    put(root.path(), "w.webp", b"RIFF....WEBPVP8 ");
    refused(&root.path().join("w.webp"), &["images are read from JPEG and PNG files"]);
    // CIFAR as Python has it.
    ["data_batch_1", "batches.meta"]
        .into_iter()
        .for_each(|name| put(root.path(), &format!("c/py/{name}"), b"\x80\x02"));
    for path in ["c", "c/py"] {
        refused(
            &root.path().join(path),
            &["CIFAR in its version for Python, which is not read; the binary version"],
        );
    }
}

#[test]
fn idx_files_are_found_beside_and_in_directories_of_their_names() {
    for within in [false, true] {
        let root = TempDir::new().unwrap();
        for (part, kind) in [
            ("train", "images-idx3"),
            ("train", "labels-idx1"),
            ("t10k", "images-idx3"),
            ("t10k", "labels-idx1"),
        ] {
            let name = format!("{part}-{kind}-ubyte");
            let bytes = fs::read(Path::new(DIGITS).join(&name)).unwrap();
            fs::create_dir(root.path().join(&name)).unwrap();
            let place = if within { format!("{name}/{name}") } else { name.replacen("-idx", ".idx", 1) };
            put(root.path(), &place, &bytes);
        }
        let sets = open(root.path());
        assert_eq!(counts(&sets).0, [1437, 360]);
        says(&sets, &["IDX files: 1437 images to train on (train-images", "10 classes: 0, 1, 2, … 9"]);
        // Of two of one name one is read, and without a part to test on nothing is tested.
        if !within {
            put(root.path(), "train-labels.idx1-ubyte.gz", b"another");
            says(
                &open(root.path()),
                &["further files of the same images or labels: 1 (train-labels.idx1-ubyte.gz)"],
            );
            for kind in ["images.idx3-ubyte", "labels.idx1-ubyte"] {
                fs::remove_file(root.path().join(format!("t10k-{kind}"))).unwrap();
            }
            let sets = open(root.path());
            assert_eq!(counts(&sets).0, [1437, 0]);
            says(&sets, &["none to test on (no t10k files)"]);
        }
    }
}

#[test]
fn shards_that_lack_numbers_ends_or_classes_are_said() {
    let root = TempDir::new().unwrap();
    let shard = |class: usize| {
        let label = class.to_string();
        tar_of(&[
            ("0.jpg", &image(class, 1)),
            ("0.cls", label.as_bytes()),
            ("1.jpg", &image(class, 2)),
            ("1.cls", b"1"),
        ])
    };
    for number in [0, 1, 4] {
        put(root.path(), &format!("train-{number:06}.tar"), &shard(number % 2));
    }
    put(root.path(), "test-0.tar", &tar_of(&[("7.jpg", &image(1, 7)), ("8.jpg", &image(1, 8))]));
    let sets = open(root.path());
    assert_eq!(counts(&sets).0, [6, 0]);
    says(
        &sets,
        &[
            "train-…: 2 of the numbers 0 to 4 are not there, 2 the first",
            "images to test on without a class: 2",
        ],
    );
    let whole = shard(1);
    put(root.path(), "train-000001.tar", &whole[..whole.len() - 1024]);
    says(&open(root.path()), &["train-000001.tar: without the two blocks of zeros"]);
    put(root.path(), "train-000001.tar", &whole);
    ["train-000002.tar", "train-000003.tar"].into_iter().for_each(|name| put(root.path(), name, &whole));
    let said = open(root.path()).said.join("\n");
    assert!(!said.contains("numbers") && !said.contains("blocks"), "{said}");
    // What images are is asked of those, too, that nobody gives a class.
    let wanted = Wanted { sample: [3, 16, 16], classes: 10, seed: 1, input: &Input::default() };
    let sets = data::open_to_predict(&root.path().join("test-0.tar"), &wanted, &[]).unwrap();
    assert_eq!(sets.test.as_ref().map(Samples::len), Some(2));
    says(&sets, &["tar files: 2 images (1 file); without classes"]);
}

/// A header of a kind, with a name of its own for what it leads to.
fn linked(builder: &mut tar::Builder<Vec<u8>>, kind: tar::EntryType, name: &str, to: &str) {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(0);
    header.set_mode(0o644);
    builder.append_link(&mut header, name, to).unwrap();
}

#[test]
fn links_in_tar_files_are_images_too() {
    let mut builder = tar::Builder::new(Vec::new());
    for (class, name) in ["cat", "dog"].into_iter().enumerate() {
        let bytes = image(class, 3);
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, format!("./{name}/0.jpg"), &*bytes).unwrap();
        linked(&mut builder, tar::EntryType::Link, &format!("{name}/1.jpg"), &format!("{name}/0.jpg"));
        linked(&mut builder, tar::EntryType::Symlink, &format!("{name}/2.jpg"), "0.jpg");
        linked(&mut builder, tar::EntryType::Symlink, &format!("{name}/3.jpg"), &format!("../{name}/2.jpg"));
        linked(&mut builder, tar::EntryType::Symlink, &format!("{name}/4.jpg"), "/elsewhere/0.jpg");
        linked(&mut builder, tar::EntryType::Symlink, &format!("{name}/5.jpg"), "5.jpg");
    }
    let root = TempDir::new().unwrap();
    put(root.path(), "all.tar", &builder.into_inner().unwrap());
    let sets = open(root.path());
    assert_eq!(counts(&sets), ([8, 0], vec!["cat", "dog"]));
    says(&sets, &["links that lead out of the tar file: 4 ("]);
    let read = |index| {
        let mut picture = Picture::default();
        sets.training.set().read(index, &mut picture).unwrap();
        picture
    };
    // The first two are no links.
    let own = [read(0), read(1)];
    assert!(own[0] != own[1]);
    (0..8).for_each(|index| assert_eq!(read(index), own[sets.training.label(index) as usize]));
}

#[test]
fn samples_of_shards_go_by_their_keys() {
    let (zero, one) = (image(0, 0), image(1, 1));
    let of = |entries: &[(&str, &[u8])]| {
        let root = TempDir::new().unwrap();
        put(root.path(), "train-0.tar", &tar_of(entries));
        root
    };
    // Dots in the key, a Mac's own files, and a member that comes twice.
    let root = of(&[
        ("._shot_0.50mm.cls", b"Mac OS X"),
        ("__MACOSX/shot_0.50mm.jpg", b"Mac OS X"),
        ("shot_0.50mm.jpg", &one),
        ("shot_0.50mm.cls", b"1"),
        ("shot_0.75mm.jpg", &zero),
        ("shot_0.75mm.cls", b"0"),
        ("shot_0.75mm.jpg", &zero),
        ("shot_0.75mm.json", b"{}"),
    ]);
    let sets = open(root.path());
    assert_eq!((sets.training.len(), sets.training.label(0), sets.training.label(1)), (2, 1, 0));
    let replaced = "images that a later one of the same name replaces: 1 (shot_0.75mm.jpg)";
    says(&sets, &["hidden files and directories: 2 (._* 2)", replaced]);
    assert!(!sets.said.join("\n").contains("json"), "{:?}", sets.said);
    // Of several images of a sample the one that is called as the key is; others are masks and the like.
    let root = of(&[
        ("a/0.seg.png", &zero),
        ("a/0.jpg", &one),
        ("a/0.cls", b"1"),
        ("a/1.left.jpg", &zero),
        ("a/1.right.jpg", &zero),
        ("a/1.cls", b"0"),
    ]);
    let sets = open(root.path());
    let names: Vec<String> = (0..sets.training.len()).map(|index| sets.training.name(index)).collect();
    assert!(
        names.len() == 2 && names[0].ends_with(": a/0.jpg") && names[1].ends_with(": a/1.left.jpg"),
        "{names:?}"
    );
    says(&sets, &["further images of samples: 2 (.right.jpg, .seg.png)"]);
    // Directories below those of classes.
    let root = of(&[("rose/2019/0.jpg", &zero), ("tulip/2019/0.jpg", &one), ("tulip/2020/1.jpg", &one)]);
    assert_eq!(counts(&open(root.path())), ([3, 0], vec!["rose", "tulip"]));
    assert_eq!(open(root.path()).training.label(2), 1);
}

#[test]
fn the_longest_side_is_named() {
    let root = tree(&[("a", 2), ("b", 2)]);
    put(
        root.path(),
        "a/page.png",
        &png(&Picture { pixels: vec![9; 32769 * 2], height: 32769, width: 2, channels: 1 }),
    );
    let wide = Picture { pixels: vec![9; 32769 * 2], height: 2, width: 32769, channels: 1 };
    put(root.path(), "b/panorama.jpg", &jpeg(&wide));
    let sets = open(root.path());
    for (index, size) in [(2, "2×32769"), (5, "32769×2")] {
        let error = sets.training.set().read(index, &mut Picture::default()).unwrap_err();
        let what = format!("{size} pixels; images of more than 32768 on a side are not decoded");
        assert!(error.message.ends_with(&what), "{error}");
    }
}

/// Latin-1, as archives of old systems have it: one image is skipped, not the set.
#[test]
fn a_name_that_is_not_utf8_is_an_image_that_cannot_be_read() {
    let root = tree(&[("train/cat", 3), ("train/dog", 3)]);
    let name = std::ffi::OsStr::from_bytes(b"1caf\xe9.jpg");
    fs::write(root.path().join("train/cat").join(name), image(0, 0)).unwrap();
    fs::remove_file(root.path().join("train/cat/0.jpg")).unwrap();
    let sets = open(root.path());
    assert_eq!(sets.training.len(), 6);
    let names: Vec<String> = (0..6).map(|index| sets.training.name(index)).collect();
    let index = names.iter().position(|name| name.contains("caf")).unwrap();
    let error = sets.training.set().read(index, &mut Picture::default()).unwrap_err();
    assert!(error.message.ends_with("its name is not UTF-8; rename it"), "{error}");
}

/// Of photographs that are told apart, not of those in data sets, which other programs read as they are stored.
#[test]
fn photographs_are_turned_as_their_exif_data_say() {
    let stored = picture(1, 2, [20, 30]);
    let mut bytes = jpeg(&stored);
    let mut exif =
        b"\xff\xe1\0\x22Exif\0\0MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0".to_vec();
    bytes.splice(2..2, exif.drain(..));
    let root = TempDir::new().unwrap();
    put(root.path(), "set/a/0.jpg", &bytes);
    put(root.path(), "set/b/0.jpg", &bytes);
    put(root.path(), "loose/0.jpg", &bytes);
    let wanted = Wanted { sample: [3, 16, 16], classes: 10, seed: 1, input: &Input::default() };
    let size = |samples: &Samples| {
        let mut picture = Picture::default();
        samples.set().read(0, &mut picture).unwrap();
        [picture.height, picture.width]
    };
    assert_eq!(size(&data::open(&root.path().join("set"), &wanted).unwrap().training), [20, 30]);
    let predict = |path: &str, known: &[&str]| {
        let known: Vec<String> = known.iter().map(ToString::to_string).collect();
        data::open_to_predict(&root.path().join(path), &wanted, &known).unwrap()
    };
    for path in ["loose", "loose/0.jpg"] {
        let sets = predict(path, &[]);
        assert_eq!(size(&sets.training), [30, 20]);
        says(&sets, &["image files: 1"]);
    }
    // Directories are classes where they are called so, or where nobody knows and there are as many; else albums.
    let known: &[&str] = &["a", "b", "c"];
    assert_eq!(size(&predict("set", known).training), [20, 30]);
    let of_two = Wanted { classes: 2, ..wanted.clone() };
    assert_eq!(
        size(&data::open_to_predict(&root.path().join("set"), &of_two, &[]).unwrap().training),
        [20, 30]
    );
    for (path, known) in [("set", &["a", "c"][..]), ("set", &[]), ("", known)] {
        let sets = predict(path, known);
        assert_eq!(size(&sets.training), [30, 20], "{path} {known:?}");
        says(&sets, &["image files: ", "no directory is a class (--data-format folder"]);
    }
}

#[test]
fn labels_that_begin_at_1_or_leave_some_out_are_said() {
    let shard = |labels: &[usize]| {
        let entries: Vec<(String, Vec<u8>)> = labels
            .iter()
            .enumerate()
            .flat_map(|(i, label)| {
                [(format!("{i:03}.jpg"), image(0, i)), (format!("{i:03}.cls"), label.to_string().into())]
            })
            .collect();
        let entries: Vec<(&str, &[u8])> = entries.iter().map(|(name, bytes)| (&**name, &**bytes)).collect();
        let root = TempDir::new().unwrap();
        put(root.path(), "train-0.tar", &tar_of(&entries));
        root
    };
    let ten: Vec<usize> = (1..=10).collect();
    refused(
        shard(&ten).path(),
        &["no image has class 0", "labels up to 10", "counted from 0", "use --classes 11"],
    );
    let root = shard(&[0, 2, 5]);
    says(&open(root.path()), &["classes without an image to train on: 1, 3, 4"]);
    // Without --classes nobody has said that class 0 is meant to be empty.
    let root = shard(&[1, 2, 9, 9]);
    let data = root.path().display().to_string();
    let flags = ["--model", "cifar_net", "--batch", "2", "--dry-run", "--data", &data];
    let said = job::refused(&[(1, &flags)]);
    assert!(said.contains("no image has class 0") && said.contains("say --classes 10"), "{said}");
    job::run(1, &[&flags[..], &["--classes", "10"]].concat());
}

/// A network that tells 10 classes apart, of which the data have 2, or a file whose scores cannot be others.
#[test]
fn a_network_of_other_classes_than_the_data_is_refused() {
    let root = tree(&[("cat", 4), ("dog", 4)]);
    let one = tree(&[("cat", 4)]);
    let [data, single] = [&root, &one].map(|root| root.path().display().to_string());
    let flags = ["--model", "cifar_net", "--batch", "2", "--dry-run", "--data"];
    let cases = [
        (vec![&*data], "2 classes: cat, dog, and cifar_net tells 10 apart: say --classes 2, or --classes 10"),
        (vec![&*single, "--classes", "10"], "1 class: cat: there is nothing to tell apart"),
    ];
    each(cases, |(more, what)| {
        let said = job::refused(&[(2, &[&flags[..], &more[..]].concat())]);
        assert!(said.contains(what), "{said}");
    });
    each(["2", "10"], |classes| {
        let said = job::run(1, &[&flags[..], &[&data, "--classes", classes]].concat());
        let words = [
            "a folder: 8 images to train on, none to test on; 2 classes: cat, dog",
            "normalised by mean 0.485",
        ];
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
    });
    job::run(1, &[&flags[..], &[&single, "--classes", "1"]].concat());
    // Numbers are no names: those up to the model's may be all that lie here.
    let numbered = |classes: &[&str]| {
        job::run(
            1,
            &[&["--model", "resnet18", "--image-size", "32", "--dry-run", "--data", DIGITS], classes]
                .concat(),
        )
    };
    let word = "resnet18 tells 1000 classes apart, of which the data have 10; --classes 10 for these alone";
    assert!(numbered(&[]).contains(word) && !numbered(&["--classes", "10"]).contains(word));
}

#[test]
fn links_to_directories_and_loops_end() {
    let root = tree(&[("train/cat", 2), ("train/dog", 2)]);
    symlink("..", root.path().join("train/cat/up")).unwrap();
    symlink("nowhere", root.path().join("train/dog/broken")).unwrap();
    symlink(".", root.path().join("train/self")).unwrap();
    refused(root.path(), &["train/self: leads to the directory of another class"]);
    fs::remove_file(root.path().join("train/self")).unwrap();
    let sets = open(root.path());
    assert_eq!(sets.training.len(), 4);
    says(&sets, &["files that are no images: 1 (broken)"]);
}

/// Of a large set the sizes of 16,384 files are asked for, and what all the others are their names tell: in a file
/// system across a network each look at one is a message.
#[test]
fn a_large_set_is_opened_without_a_look_at_every_file() {
    const FILES: usize = 20_000;
    let there = Command::new("strace").arg("-V").output().is_ok_and(|done| done.status.success());
    if !there {
        println!("SKIPPED: there is no strace");
        return;
    }
    let root = TempDir::new().unwrap();
    put(root.path(), "one.jpg", &image(0, 0));
    for class in ["a", "b"] {
        fs::create_dir_all(root.path().join("set").join(class)).unwrap();
        for number in 0..FILES / 2 {
            let link = root.path().join(format!("set/{class}/{number}.jpg"));
            fs::hard_link(root.path().join("one.jpg"), link).unwrap();
        }
    }
    let [calls, data, results] = ["calls", "set", "run.h5"].map(|name| root.path().join(name));
    let mut traced = Command::new("strace");
    traced.args(["-f", "-qq", "-e", "trace=%%stat", "-o"]).arg(&calls).arg(DLTRAIN).arg("--data").arg(&data);
    traced.args("--model cifar_net --classes 2 --steps 1 --batch 2 --threads 1 --results".split(' '));
    let done = traced.arg(&results).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let calls = fs::read_to_string(&calls).unwrap();
    let looks = calls.lines().filter(|line| line.contains(".jpg\"")).count();
    assert!((16_384..FILES).contains(&looks), "{looks} of {FILES} files are looked at");
}
