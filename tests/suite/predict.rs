//! `dltrain predict`: what a user relies on who wants to know what images are.
//!
//! - any number of ranks writes the same file, in the order of the data, and its hits are those of `dltrain evaluate`;
//! - classes have the names of the data where they are those of the network, else numbers;
//! - single images and directories of them serve as well, an image that cannot be read has its row, HDF5 has the
//!   numbers;
//! - a GPU says the same;
//! - images are read as those were that the weights were learned from, wherever they lie now
//! - what is wrong is said in one message, and nothing is overwritten.

use crate::support::cases::each;
use crate::support::{digits, gpu_job, job};

use std::fs;
use std::path::{Path, PathBuf};

use digits::{DIGITS, few_tests};
use dltrain::model::{self, Preprocessing};
use dltrain::record::{ModelMetadata, WeightsFile, write_weights};
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
    assert_eq!(file.about().class_names.len(), 10);
    fs::remove_file(place.path("w.safetensors")).unwrap();
    let unnamed = ModelMetadata { class_names: Vec::new(), ..file.about().clone() };
    let values = |name: &str| file.values(name);
    write_weights(&place.path("w.safetensors"), file.shapes(), &unnamed, &values, None).unwrap();
    let said = place.predict(2, &["--top", "2", "-o", &place.text("named.csv")], &place.text("named"));
    assert!(said.contains("36 images"), "{said}");
    let rows = place.rows("named.csv");
    assert!(rows.iter().all(|row| row[0].contains(&format!("/{}/", row[1]))), "{rows:?}");
    assert!(rows.iter().all(|row| names.contains(&&*row[2]) && names.contains(&&*row[4])), "{rows:?}");
    // Packed, classes and images have the names that they had.
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
    // Directories that are fewer than the network's classes, and called otherwise, are none.
    fs::rename(place.path("named/zero"), place.path("named/one/zero")).unwrap();
    place.predict(1, &["-o", &place.text("other.csv")], &place.text("named"));
    let rows = place.rows("other.csv");
    assert!(rows.len() == 36 && rows.iter().all(|row| row.len() == 11 && row[1].parse::<u8>().is_ok()));
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

/// The same digits as IDX files, as a data set of PNG files, by themselves, and packed: normalised by the figures of
/// what the weights were learned from, and whole. By ImageNet's and cut, four of the 36 are taken for others.
#[test]
fn images_are_read_as_the_weights_expect_them() {
    let place = Place::new();
    let names = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"];
    place.write_images(|class, number| format!("named/{}/{number:03}.png", names[class]));
    place.write_images(|_, number| format!("loose/{number:03}.png"));
    run(1, &["pack", &place.text("named"), &place.text("packed.h5"), "--size", "28"]);
    run(1, &["export", &place.text("w.safetensors"), &place.text("net.onnx"), "--model", "mnist_small"]);
    let rows = |name: &str, images: &str| {
        let file = place.text(&format!("{name}.csv"));
        place.predict(1, &["--top", "10", "-o", &file], images);
        let mut rows = place.rows(&format!("{name}.csv"));
        rows.sort_by_key(|row| row[0].rsplit('/').next().map(String::from));
        rows
    };
    let [named, loose, packed] = ["named", "loose", "packed.h5"].map(|name| rows(name, &place.text(name)));
    let scores = |row: &[String]| row[row.len() - 20..].to_vec();
    assert!(
        named.iter().zip(&loose).all(|(a, b)| scores(a) == scores(b)),
        "whether or not they have classes"
    );
    let all = rows("idx", DIGITS);
    let number =
        |row: &[String]| row[0].split_whitespace().nth(1).and_then(|n| n.parse::<usize>().ok()).unwrap();
    for row in &all {
        let at = number(row);
        if at % 10 != 0 {
            continue;
        }
        // Pixels are rounded differently, by one unit in 255 at most.
        let of = |rows: &[Vec<String>]| scores(&rows[at / 10])[..2].to_vec();
        for (which, other) in [("loose", of(&loose)), ("packed", of(&packed))] {
            let own = scores(row)[..2].to_vec();
            let apart = own[1].parse::<f64>().unwrap() - other[1].parse::<f64>().unwrap();
            assert!(own[0] == other[0] && apart.abs() < 0.05, "{which} {at}: {own:?} and {other:?}");
        }
    }
    // A network's file says it too.
    let file = place.text("onnx.csv");
    run(1, &["predict", "--model", &place.text("net.onnx"), "--top", "1", "-o", &file, &place.text("loose")]);
    for (row, own) in place.rows("onnx.csv").iter().zip(&loose) {
        let share = |row: &[String]| row[2].parse::<f64>().unwrap();
        assert!(row[1] == own[1] && (share(row) - share(own)).abs() < 1e-4, "{row:?} and {own:?}");
    }
}

/// A network is written for images of the size that its weights learned from, or of that which is asked for; what the
/// file says of its images is the same.
#[test]
fn a_network_is_written_for_the_size_of_images_that_it_says() {
    let place = Place::new();
    place.write_images(|class, number| format!("named/{class}/{number:03}.png"));
    let [weights, results, data] = ["q.safetensors", "q.h5", "named"].map(|name| place.text(name));
    let network = ["--model", "squeezenet1_1", "--classes", "10"];
    let train = ["--image-size", "40", "--data", &data, "--batch", "2", "--steps", "1", "--threads", "1"];
    let kept = ["--save-weights", &weights, "--results", &results];
    run(1, &[&network[..], &train, &kept].concat());
    let written = |name: &str, more: &[&str]| {
        let said = run(1, &[&["export", &weights, &place.text(name)], &network[..], more].concat());
        let file = model::open(&place.path(name)).unwrap();
        let image = file.file().unwrap().preprocessing().unwrap().image;
        assert_eq!(file.image.rows(), image, "{name}");
        (said, image)
    };
    let (said, image) = written("own.onnx", &[]);
    assert!(said.contains("learned from images of 3×40×40, which the network is written for"), "{said}");
    assert_eq!(image, [3, 40, 40]);
    let (_, image) = written("other.onnx", &["--image-size", "48"]);
    assert_eq!(image, [3, 48, 48]);
    for name in ["own", "other"] {
        let (net, file) = (place.text(&format!("{name}.onnx")), place.text(&format!("{name}.csv")));
        run(1, &["predict", "--model", &net, "-o", &file, &data]);
        assert_eq!(place.rows(&format!("{name}.csv")).len(), 36, "{name}");
    }
}

/// What the weights say goes on into a run that begins with them, its checkpoints and whoever resumes it; what they do
/// not say is told, and what does not fit is refused.
#[test]
fn what_the_weights_say_of_images_goes_on() {
    let place = Place::new();
    let names = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"];
    place.write_images(|class, number| format!("named/{}/{number:03}.png", names[class]));
    let file = WeightsFile::open(&place.path("w.safetensors")).unwrap();
    let own = file.about().preprocessing.clone().unwrap();
    let with = |name: &str, about: ModelMetadata| {
        write_weights(&place.path(name), file.shapes(), &about, &|name| file.values(name), None).unwrap();
        place.text(name)
    };
    let (data, kept) = (place.text("named"), place.text("kept"));
    let train = |steps: &str, more: &[&str]| {
        let results = place.text(&format!("{steps}.h5"));
        let flags =
            ["--data", &data, "--steps", steps, "--batch", "8", "--checkpoint", &kept, "--results", &results];
        run(1, &[&flags[..], more].concat())
    };
    let said = train("1", &["--init-from", &place.text("w.safetensors")]);
    let mean = format!("mean {:.3} and deviation {:.3}", own.mean[0], own.std[0]);
    assert!(said.contains(&format!("{mean} (from the weights of --init-from)")), "{said}");
    let said = train("2", &["--resume", "auto"]);
    assert!(said.contains(&format!("{mean} (from the checkpoint)")), "{said}");
    let checkpoint = WeightsFile::open(&place.path("kept/step-00000002.h5")).unwrap();
    let after = checkpoint.about().preprocessing.clone().unwrap();
    assert_eq!((after.mean, after.std), (own.mean.clone(), own.std.clone()));
    // Files of earlier versions, and of other programs, say nothing.
    let silent = with("silent.h5", ModelMetadata::default());
    let done = finish(job::job(&[(1, &["predict", "--init-from", &silent, &data])]));
    let unknown = "(ImageNet's; nothing is said by the weights of --init-from)";
    assert!(done.success && done.stderr.contains(unknown), "{}", done.stderr);
    let larger = Preprocessing { image: [1, 32, 32], ..own };
    let larger = with("larger.h5", ModelMetadata { preprocessing: Some(larger), ..ModelMetadata::default() });
    let named = with(
        "named.h5",
        ModelMetadata { class_names: names.map(String::from).into(), ..ModelMetadata::default() },
    );
    let cases = [
        (vec!["predict", "--init-from", &larger, &data], "say --image-size 32, or --image-size 28"),
        (
            vec!["evaluate", "--init-from", &named, "--data", &data],
            "if they are the same in this order, say what the data are by --data-format",
        ),
    ];
    // They are to test on.
    fs::create_dir_all(place.path("both/val")).unwrap();
    std::os::unix::fs::symlink(&data, place.path("both/train")).unwrap();
    for class in fs::read_dir(&data).unwrap().map(|entry| entry.unwrap().path()) {
        std::os::unix::fs::symlink(&class, place.path("both/val").join(class.file_name().unwrap())).unwrap();
    }
    let both = place.text("both");
    each(cases, |(mut flags, what)| {
        flags.iter_mut().filter(|flag| **flag == data).for_each(|flag| *flag = &both);
        let message = refused(&[(1, &flags)]);
        assert!(message.contains(what), "{what}: {message}");
    });
    let settled = ["evaluate", "--init-from", &named, "--data", &both, "--data-format", "folder"];
    let said = run(1, &settled);
    let tested = |said: &str| said.lines().find(|line| line.contains("accuracy")).map(String::from);
    assert!(tested(&said).is_some());
    // By itself the part is all that there is to test on.
    let alone = run(1, &["evaluate", "--init-from", &named, "--data", &data, "--data-format", "folder"]);
    assert!(alone.contains("36 images to test on, all that are there"), "{alone}");
    assert_eq!(tested(&alone), tested(&said));
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
    // A file of its own for each: the cases run at the same time, and a file has one owner.
    let broken = place.text("broken.png");
    fs::write(&broken, "no image").unwrap();
    let new: Vec<String> = (0..8).map(|case| place.text(&format!("new{case}.csv"))).collect();
    let cases = [
        (vec!["--init-from", &weights, DIGITS, "-o", &there], "is there already"),
        (vec!["--init-from", &weights, DIGITS, "-o", "new.txt"], "the name ends in .csv"),
        (vec!["--init-from", &weights, DIGITS, "-o", &weights], "means the same file"),
        (vec!["--init-from", &weights, DIGITS, "--top", "0"], "--top 0"),
        (vec!["--init-from", &weights, "-o", &new[0]], "predict needs images (DATA, or --data PATH)"),
        (vec!["--init-from", &weights, &broken, "-o", &new[7]], "broken.png: cannot be read as an image"),
        (vec![DIGITS, "-o", &new[1]], "predict needs weights"),
        (vec![&weights, "-o", &new[6]], "looks as if it were these: --init-from"),
        (vec!["--init-from", &weights, "nowhere", "-o", &new[2]], "nowhere"),
        (vec!["--init-from", &weights, "--model", "lenet5", DIGITS, "-o", &new[3]], "does not fit lenet5"),
        (vec!["--init-from", &weights, DIGITS, "--epochs", "2", "-o", &new[4]], "--epochs would do nothing"),
        (vec!["--init-from", &weights, DIGITS, DIGITS, "-o", &new[5]], "cannot be used with"),
    ];
    each(cases, |(flags, what)| {
        let message = refused(&[(2, &[&["predict"], &flags[..]].concat())]);
        assert!(message.contains(what), "{what}: {message}");
    });
    assert_eq!(fs::read_to_string(&there).unwrap(), "mine");
    assert!(new.iter().all(|path| !Path::new(path).exists()));
}
