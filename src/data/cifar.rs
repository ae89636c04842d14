//! CIFAR-10 and CIFAR-100, in the binary version.
//!
//! The format (Krizhevsky: <https://www.cs.toronto.edu/~kriz/cifar.html>): records of a label (CIFAR-10) or a coarse
//! and a fine label (CIFAR-100) and 3072 bytes, the red, the green and the blue plane of 32×32 pixels. Names of classes
//! are in text files beside, a line each.

use std::path::Path;
use std::sync::Arc;

use super::about::InputSummary;
use super::detect::Parts;
use super::idx::label_bytes;
use super::images::Images;
use super::{Colours, Dataset, Wanted};
use crate::config::values::lists;
use crate::error::{Error, OrError, Result};
use crate::files::{self, crc32};

const SIDE: usize = 32;
const PLANE: usize = SIDE * SIDE;

/// By any of these a directory is known.
pub const FILES: [&str; 4] = ["data_batch_1.bin", "test_batch.bin", "train.bin", "test.bin"];

/// What the files for Python are, and what to take instead.
pub const PICKLED: &str =
    "CIFAR in its version for Python, which is not read; the binary version has the same images";

/// Whether a file of this name is one of the version for Python.
pub fn is_pickled(name: &str) -> bool {
    matches!(name, "batches.meta" | "meta")
        || name.strip_prefix("data_batch_").is_some_and(|number| number.parse::<u8>().is_ok())
}

struct Variant {
    training: &'static str,
    test: &'static str,
    names: &'static str,
    labels: usize,
    classes: usize,
}

const VARIANTS: [Variant; 2] = [
    Variant {
        training: "data_batch_1.bin data_batch_2.bin data_batch_3.bin data_batch_4.bin data_batch_5.bin",
        test: "test_batch.bin",
        names: "batches.meta.txt",
        labels: 1,
        classes: 10,
    },
    Variant {
        training: "train.bin",
        test: "test.bin",
        names: "fine_label_names.txt",
        labels: 2,
        classes: 100,
    },
];

/// Opens the set in a directory, scaled for the model.
///
/// # Errors
/// A data error that names the file: missing, unreadable, of a wrong length, or with a label out of range.
pub fn open(directory: &Path, wanted: &Wanted) -> Result<Parts> {
    let present = |name: &str| directory.join(name).exists();
    let variant = VARIANTS.iter().find(|variant| variant.training.split(' ').any(present));
    let to_test = VARIANTS.iter().find(|variant| present(variant.test));
    let missing = || {
        let [one, _, other, _] = FILES;
        Error::data(directory, format!("no CIFAR data to train on: neither {one} nor {other}"))
    };
    let of = variant.or(to_test).ok_or_else(missing)?;
    let part = |files: &str, colours: Option<Colours>| -> Result<Images> {
        let (mut pixels, mut labels) = (Vec::new(), Vec::new());
        for name in files.split(' ') {
            read(&directory.join(name), of, &mut pixels, &mut labels)?;
        }
        let sum = crc32(&[&pixels, &label_bytes(&labels)]);
        let fingerprint = format!("{} CIFAR images, CRC-32 {sum:08x}", labels.len());
        let colours = colours.unwrap_or_else(|| Colours::over(&pixels, 3));
        let name = directory.display().to_string();
        let classes = names(&directory.join(of.names), of.classes);
        let mut images = Images {
            pixels,
            labels,
            height: SIDE,
            width: SIDE,
            channels: 3,
            classes,
            colours,
            name,
            fingerprint,
        };
        images.scale_all([wanted.sample[1], wanted.sample[2]]);
        Ok(images)
    };
    if variant.is_none() {
        let about = InputSummary::of("CIFAR's files", ["", of.test]);
        return Ok(Parts::to_test(Arc::new(part(of.test, None)?), about, missing()));
    }
    let training = part(of.training, None)?;
    let test = present(of.test).then(|| part(of.test, Some(training.colours))).transpose()?;
    let of_test = if test.is_some() { of.test.into() } else { format!("no {}", of.test) };
    let mut about = InputSummary::of("CIFAR's files", [&of.training.replace(' ', ", "), &of_test]);
    about.only_training = test.is_none();
    for other in FILES.iter().filter(|name| present(name) && **name != of.test && !lists(of.training, name)) {
        about.left_out.add("files of the other CIFAR set", other);
    }
    let test = test.map(|test| Arc::new(test) as Arc<dyn Dataset>);
    Ok(Parts { training: Arc::new(training), test, about })
}

fn read(path: &Path, variant: &Variant, pixels: &mut Vec<u8>, labels: &mut Vec<i32>) -> Result<()> {
    let record = variant.labels + 3 * PLANE;
    let bytes = files::read(path).or_data(path)?;
    if bytes.is_empty() || !bytes.len().is_multiple_of(record) {
        let what = format!(
            "{} bytes, which is not a number of records of {record} bytes: truncated, or another format",
            bytes.len()
        );
        return Err(files::unreadable(path, what));
    }
    pixels.reserve(bytes.len() / record * 3 * PLANE);
    for (index, record) in bytes.chunks_exact(record).enumerate() {
        let (label, planes) = record.split_at(variant.labels);
        let label = label[variant.labels - 1];
        if usize::from(label) >= variant.classes {
            let what = format!(
                "label {label} (of image {index}) is out of range: there are {} classes",
                variant.classes
            );
            return Err(Error::data(path, what));
        }
        labels.push(i32::from(label));
        pixels.extend((0..PLANE).flat_map(|at| [planes[at], planes[PLANE + at], planes[2 * PLANE + at]]));
    }
    Ok(())
}

/// Bytes of a file with the names of the classes, at most.
const LONGEST_NAMES: u64 = 1 << 20;

/// The names in a file, or numbers where there is none.
fn names(path: &Path, classes: usize) -> Vec<String> {
    let text = files::read_text(path, LONGEST_NAMES).unwrap_or_default();
    let names: Vec<String> =
        text.lines().map(str::trim).filter(|name| !name.is_empty()).map(String::from).collect();
    if names.len() == classes { names } else { (0..classes).map(|class| class.to_string()).collect() }
}
