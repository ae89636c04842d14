//! `dltrain predict`: what a user relies on who wants to know what images are.
//!
//! - any number of ranks writes the same file, in the order of the data, and its hits are those of `dltrain evaluate`;
//! - classes have the names of the data where they are those of the network, else numbers;
//! - single images and directories of them serve as well, an image that cannot be read has its row, HDF5 has the
//!   numbers;
//! - a GPU says the same;
//! - what is wrong is said in one message, and nothing is overwritten.

use crate::support::cases::each;
use crate::support::{digits, gpu_job, job};

use std::fs;
use std::path::{Path, PathBuf};

use digits::{DIGITS, few_tests};
use dltrain::record::{WeightsFile, write_weights};
use hdf5::types::VarLenUnicode;
use job::{finish, refused, run};

struct Place(tempfile::TempDir);

impl Place {
    /// With the weights of a network that has learned a little.
    fn new() -> Place {
        let place = Place(tempfile::tempdir().unwrap());
        let [weights, results] = ["w.safetensors", "run.h5"].map(|name| place.text(name));
        let trained = ["--data", DIGITS, "--epochs", "1", "--batch", "32", "--quiet"];
        run(1, &[&trained[..], &["--save-weights", &weights, "--results", &results]].concat());
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// What it prints; the images come last, as users type them.
    fn predict(&self, ranks: usize, flags: &[&str], images: &str) -> String {
        let weights = self.text("w.safetensors");
        let first = ["predict", "--init-from", &weights, "--model", "mnist_small", "--threads", "1"];
        run(ranks, &[&first[..], flags, &[images]].concat())
    }

    /// The rows of a file, each a list of cells, without the header.
    fn rows(&self, name: &str) -> Vec<Vec<String>> {
        let text = fs::read_to_string(self.path(name)).unwrap();
        text.lines().skip(1).map(|line| line.split(',').map(String::from).collect()).collect()
    }

    /// Every tenth test image of the digits, in a directory that `name` gives for its class and number.
    fn write_images(&self, name: impl Fn(usize, usize) -> String) {
        let [images, labels] = ["images-idx3", "labels-idx1"]
            .map(|what| fs::read(Path::new(DIGITS).join(format!("t10k-{what}-ubyte"))).unwrap());
        for number in (0..360).step_by(10) {
            let path = self.path(&name(usize::from(labels[8 + number]), number));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            let mut encoder = png::Encoder::new(fs::File::create(path).unwrap(), 8, 8);
            encoder.set_color(png::ColorType::Grayscale);
            let pixels = &images[16 + 64 * number..][..64];
            encoder.write_header().unwrap().write_image_data(pixels).unwrap();
        }
    }
}

/// The test images are 360: neither two nor three ranks of batches of 32 divide them.
#[test]
fn any_number_of_ranks_writes_the_same_file() {
    let place = Place::new();
    for ranks in [1, 2, 3] {
        let name = format!("{ranks}.csv");
        let said = place.predict(ranks, &["--batch", "32", "--top", "3", "-o", &place.text(&name)], DIGITS);
        assert!(said.contains(&format!("360 images: {}", place.text(&name))), "{said}");
        assert_eq!(fs::read(place.path(&name)).unwrap(), fs::read(place.path("1.csv")).unwrap(), "{ranks}");
    }
    let rows = place.rows("1.csv");
    let numbers: Vec<String> = (0..360).map(|number| format!("image {number} of ")).collect();
    assert!(rows.len() == 360 && rows.iter().zip(&numbers).all(|(row, name)| row[0].starts_with(name)));
    for row in &rows {
        let shares: Vec<f64> = [3, 5, 7].map(|cell| row[cell].parse().unwrap()).into();
        assert!(shares.is_sorted_by(|a, b| a >= b) && shares.iter().sum::<f64>() <= 1.0 + 1e-6, "{row:?}");
    }
    let hits = rows.iter().filter(|row| row[1] == row[2]).count();
    let tested = ["evaluate", "--init-from", &place.text("w.safetensors"), "--data", DIGITS];
    let said = run(2, &tested);
    let accuracy = format!("accuracy {:.2}%", 100.0 * hits as f64 / 360.0);
    assert!(hits > 180 && said.contains(&accuracy), "{accuracy}: {said}");
    // All classes together are sure, whatever the image.
    let all = place.text("all.csv");
    place.predict(2, &["--top", "99", "-o", &all], DIGITS);
    for row in place.rows("all.csv") {
        let sum: f64 = row[2..].chunks(2).map(|cell| cell[1].parse::<f64>().unwrap()).sum();
        // Ten numbers of at most 1, each rounded to 24 bits.
        assert!(row.len() == 22 && (sum - 1.0).abs() < 10.0 * 2f64.powi(-24), "{row:?}");
    }
}

#[test]
fn classes_are_called_as_the_data_call_them() {
    let place = Place::new();
    let names = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"];
    place.write_images(|class, number| format!("named/{}/{number:03}.png", names[class]));
    // The weights know the names of the digits, whatever they are called here.
    place.predict(1, &["--top", "2", "-o", &place.text("digits.csv")], &place.text("named"));
    let rows = place.rows("digits.csv");
    let hits = rows.iter().filter(|row| names[row[2].parse::<usize>().unwrap()] == row[1]).count();
    assert!(rows.len() == 36 && hits > 18, "{rows:?}");
    // Weights without names leave it to the data.
    let file = WeightsFile::open(&place.path("w.safetensors")).unwrap();
    assert_eq!(file.class_names().len(), 10);
    fs::remove_file(place.path("w.safetensors")).unwrap();
    write_weights(&place.path("w.safetensors"), file.shapes(), &[], &|name| file.values(name), None).unwrap();
    let said = place.predict(2, &["--top", "2", "-o", &place.text("named.csv")], &place.text("named"));
    assert!(said.contains("36 images"), "{said}");
    let rows = place.rows("named.csv");
    assert!(rows.iter().all(|row| row[0].contains(&format!("/{}/", row[1]))), "{rows:?}");
    assert!(rows.iter().all(|row| names.contains(&&*row[2]) && names.contains(&&*row[4])), "{rows:?}");
    // Packed, classes and images have the names that they had. (Numbers are others: packed images are normalised by
    // their own colours.)
    let packed = place.text("packed.h5");
    run(2, &["pack", &place.text("named"), &packed]);
    place.predict(3, &["--top", "2", "-o", &place.text("packed.csv")], &packed);
    let root = place.text("named/");
    let images = |name: &str| {
        let of = |row: &Vec<String>| [row[0].replace(&root, ""), row[1].clone()];
        let mut images: Vec<[String; 2]> = place.rows(name).iter().map(of).collect();
        images.sort();
        images
    };
    assert_eq!(images("packed.csv"), images("named.csv"));
    assert!(place.rows("packed.csv").iter().all(|row| names.contains(&&*row[2])));
    // Of fewer classes than the network's nobody knows which they are.
    fs::rename(place.path("named/zero"), place.path("named/one/zero")).unwrap();
    place.predict(1, &["-o", &place.text("other.csv")], &place.text("named"));
    let rows = place.rows("other.csv");
    assert!(rows.len() == 36 && rows.iter().all(|row| row.len() == 12 && row[2].parse::<u8>().is_ok()));
    // Of the weights of a network that was trained on named classes the names come first, in whatever file they are.
    let [weights, results, kept] = ["named.safetensors", "named.h5", "kept"].map(|name| place.text(name));
    fs::rename(place.path("named/one/zero"), place.path("named/zero")).unwrap();
    let trained =
        ["--data", &place.text("named"), "--steps", "1", "--batch", "8", "--quiet", "--augment", "none"];
    let places = ["--save-weights", &weights, "--results", &results, "--checkpoint", &kept];
    run(1, &[&trained[..], &places].concat());
    let exported = place.text("exported.h5");
    run(1, &["export", &weights, &exported]);
    let checkpoint = place.text("kept/step-00000001.h5");
    let mut said = Vec::new();
    for file in [&weights, &exported, &checkpoint] {
        let image = place.text(&rows[0][0][place.text("").len()..].replace("/one/zero/", "/zero/"));
        said.push(run(1, &["predict", "--init-from", file, &image]));
    }
    assert!(said[0].contains("eight") && said[0].contains('%'), "{}", said[0]);
    assert!(said.iter().all(|text| *text == said[0]), "{said:?}");
}

#[test]
fn images_without_a_data_set_are_told_apart_too() {
    let place = Place::new();
    place.write_images(|class, number| match number % 20 {
        0 => format!("loose/{number:03}-{class}.png"),
        _ => format!("loose/more/{number:03}-{class}.png"),
    });
    fs::write(place.path("loose/0050.png"), b"no image").unwrap();
    let file = place.text("loose.h5");
    let printed = place.predict(2, &["--top", "1"], &place.text("loose"));
    assert!(printed.lines().filter(|line| line.ends_with('%')).count() == 36, "{printed}");
    let broken = printed.lines().find(|line| line.contains("0050.png")).unwrap();
    assert!(broken.ends_with("cannot be read"), "{broken}");
    place.predict(2, &["--top", "4", "-o", &file], &place.text("loose"));
    let file = hdf5::File::open(&file).unwrap();
    let names = file.dataset("image").unwrap().read_raw::<VarLenUnicode>().unwrap();
    let lines: Vec<&str> = printed.lines().filter(|line| line.contains("loose/")).collect();
    assert!(names.len() == 37 && names.iter().zip(&lines).all(|(name, line)| line.starts_with(&**name)));
    let classes = file.dataset("class").unwrap().read_2d::<i32>().unwrap();
    let shares = file.dataset("probability").unwrap().read_2d::<f32>().unwrap();
    assert_eq!((classes.dim(), shares.dim()), ((37, 4), (37, 4)));
    for (row, line) in lines.iter().enumerate() {
        let cells: Vec<&str> = line.split_whitespace().collect();
        if line.ends_with("cannot be read") {
            assert!(classes[[row, 0]] == -1 && shares[[row, 0]].is_nan());
        } else {
            let said = [format!("{}", classes[[row, 0]]), format!("{:.2}%", 100.0 * shares[[row, 0]])];
            assert_eq!(cells[cells.len() - 2..], said, "{line}");
        }
    }
    assert!(file.dataset("label").is_err());
    // One by itself is what it was among others.
    let name = lines.iter().find(|line| line.ends_with('%')).unwrap();
    let alone = place.predict(1, &["--top", "1"], name.split_whitespace().next().unwrap());
    let cells = |line: &str| line.split_whitespace().map(String::from).collect::<Vec<_>>();
    assert_eq!(cells(&alone), cells(name));
    // --strict stops at what cannot be read.
    let weights = place.text("w.safetensors");
    let strict = refused(&[(2, &["predict", "--strict", "--init-from", &weights, &place.text("loose")])]);
    assert!(strict.contains("0050.png"), "{strict}");
}

/// On the doubles of CUDA's libraries. Logits differ by roundings, 1e-5 of the largest at most, which is some 10: a
/// probability changes by less than a logit does.
#[test]
fn a_gpu_says_the_same() {
    let place = Place::new();
    let cpu = ["--top", "2", "--batch", "16", "-o", &place.text("cpu.csv")];
    place.predict(1, &cpu, few_tests());
    let [weights, file] = ["w.safetensors", "gpu.csv"].map(|name| place.text(name));
    let flags =
        ["predict", "--init-from", &weights, "--device", "cuda", "--precision", "f32", "--batch", "16"];
    let job = job::job(&[(2, &[&flags[..], &["--top", "2", "-o", &file, few_tests()]].concat())]);
    let done = finish(gpu_job::with_cuda(job, &[], place.0.path()));
    assert!(done.success, "{}\n{}", done.stdout, done.stderr);
    let (ours, theirs) = (place.rows("cpu.csv"), place.rows("gpu.csv"));
    assert_eq!((ours.len(), theirs.len()), (24, 24));
    for (ours, theirs) in ours.iter().zip(&theirs) {
        let share = |row: &[String]| row[3].parse::<f64>().unwrap();
        assert_eq!(ours[..3], theirs[..3]);
        assert!((share(ours) - share(theirs)).abs() < 1e-4, "{ours:?} and {theirs:?}");
    }
}

#[test]
fn what_is_wrong_is_said_and_nothing_is_overwritten() {
    let place = Place::new();
    let [weights, there] = ["w.safetensors", "there.csv"].map(|name| place.text(name));
    fs::write(&there, "mine").unwrap();
    let new = place.text("new.csv");
    let cases = [
        (vec!["--init-from", &weights, DIGITS, "-o", &there], "is there already"),
        (vec!["--init-from", &weights, DIGITS, "-o", "new.txt"], "the name ends in .csv"),
        (vec!["--init-from", &weights, DIGITS, "-o", &weights], "means the same file"),
        (vec!["--init-from", &weights, DIGITS, "--top", "0"], "--top 0"),
        (vec!["--init-from", &weights, "-o", &new], "--predict needs images (DATA, or --data PATH)"),
        (vec![DIGITS, "-o", &new], "--predict needs weights"),
        (vec!["--init-from", &weights, "nowhere", "-o", &new], "nowhere"),
        (vec!["--init-from", &weights, "--model", "lenet5", DIGITS, "-o", &new], "does not fit lenet5"),
        (vec!["--init-from", &weights, DIGITS, "--epochs", "2", "-o", &new], "--epochs would do nothing"),
        (vec!["--init-from", &weights, DIGITS, DIGITS, "-o", &new], "cannot be used with"),
    ];
    each(cases, |(flags, what)| {
        let message = refused(&[(2, &[&["predict"], &flags[..]].concat())]);
        assert!(message.contains(what), "{what}: {message}");
    });
    assert_eq!(fs::read_to_string(&there).unwrap(), "mine");
    assert!(!place.path("new.csv").exists());
}
