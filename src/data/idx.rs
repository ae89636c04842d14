//! Reading data sets in the IDX format of MNIST.
//!
//! The format (LeCun, Cortes, Burges: <http://yann.lecun.com/exdb/mnist/>): a big-endian 32-bit magic number
//! 0x00000803 (three dimensions of bytes) and the extents N, H, W, then N·H·W bytes of pixels; for labels
//! 0x00000801 and N, then N bytes. A directory holds four such files, plain or compressed by gzip.

use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flate2::read::MultiGzDecoder;

use super::about::InputSummary;
use super::detect::Parts;
use super::images::Images;
use super::{Colours, Dataset, Wanted};
use crate::error::{Error, Result};
use crate::files::{self, crc32};

/// The files of the images to train on and of those to test on: how their names begin and end.
const FILES: [[(&str, &str); 2]; 2] = [
    [("train-images", "idx3-ubyte"), ("train-labels", "idx1-ubyte")],
    [("t10k-images", "idx3-ubyte"), ("t10k-labels", "idx1-ubyte")],
];

const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Deflate cannot compress better than this, so a header that promises more is wrong.
const BEST_COMPRESSION: u64 = 1032;

/// Memory reserved at once for each byte of a file; if gzip did better, the rest is reserved as it comes.
const USUAL_COMPRESSION: u64 = 16;

/// Opens the data set in a directory, scaled for the model.
///
/// # Errors
/// A data error that names the file: missing, unreadable, truncated, corrupt, or at odds with the others.
pub fn open(directory: &Path, wanted: &Wanted) -> Result<Parts> {
    let file = |half: &IdxFiles| half.images.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let images = |name: &str| find(directory, &format!("{name}-images"), "idx3-ubyte");
    if let (Err(error), Ok(_)) = (images("train"), images("t10k")) {
        let test = IdxFiles::read(directory, "t10k", wanted.classes)?;
        let (about, colours) =
            (InputSummary::of("IDX files", ["", &file(&test)]), Colours::over(&test.pixels, 1));
        return Ok(Parts::to_test(Arc::new(test.into_images(wanted, colours)), about, error));
    }
    let training = IdxFiles::read(directory, "train", wanted.classes)?;
    let has_test = FILES[1].iter().any(|(stem, ending)| spellings(directory, stem, ending).next().is_some());
    let test = has_test.then(|| IdxFiles::read(directory, "t10k", wanted.classes)).transpose()?;
    if let Some(test) = test.as_ref().filter(|test| test.size != training.size) {
        let ([height, width], [th, tw]) = (training.size, test.size);
        let what = format!("images of {th}×{tw}, while the training images are {height}×{width}");
        return Err(Error::data(&test.images, what));
    }
    let colours = Colours::over(&training.pixels, 1);
    let of_test = test.as_ref().map_or_else(|| "no t10k files".into(), file);
    let mut about = InputSummary::of("IDX files", [&file(&training), &of_test]);
    about.only_training = test.is_none();
    for (stem, ending) in FILES.iter().flatten() {
        for further in spellings(directory, stem, ending).skip(1) {
            let name = further.strip_prefix(directory).unwrap_or(&further).display().to_string();
            about.left_out.add("further files of the same images or labels", &name);
        }
    }
    Ok(Parts {
        training: Arc::new(training.into_images(wanted, colours)),
        test: test.map(|test| Arc::new(test.into_images(wanted, colours)) as Arc<dyn Dataset>),
        about,
    })
}

/// One half of a data set: images with their labels.
struct IdxFiles {
    images: PathBuf,
    pixels: Vec<u8>,
    labels: Vec<u8>,
    /// Height and width.
    size: [usize; 2],
}

impl IdxFiles {
    fn read(directory: &Path, name: &str, classes: usize) -> Result<IdxFiles> {
        let images = find(directory, &format!("{name}-images"), "idx3-ubyte")?;
        let labels = find(directory, &format!("{name}-labels"), "idx1-ubyte")?;
        let Idx { extents: [count, height, width], values: pixels } = read(&images)?;
        let Idx { extents: [label_count], values } = read(&labels)?;
        if count != label_count {
            let what = format!("{label_count} labels, but {} has {count} images", images.display());
            return Err(Error::data(&labels, what));
        }
        if let Some(index) = values.iter().position(|&label| usize::from(label) >= classes) {
            let (least, most) =
                (values.iter().min().copied().unwrap_or(0), values.iter().max().copied().unwrap_or(0));
            let from_1 = if least > 0 {
                format!(" (labels run from {least} to {most}: no image has class 0)")
            } else {
                String::new()
            };
            let what = format!(
                "label {} (of image {index}) is out of range: the model has {classes} classes, counted from 0{from_1}; \
                 use --classes {} or more",
                values[index],
                usize::from(most) + 1,
            );
            return Err(Error::data(&labels, what));
        }
        Ok(IdxFiles { images, pixels, labels: values, size: [height, width] })
    }

    fn into_images(self, wanted: &Wanted, colours: Colours) -> Images {
        let IdxFiles { images, pixels, labels, size: [height, width] } = self;
        let count = labels.len();
        let labels: Vec<i32> = labels.into_iter().map(i32::from).collect();
        let fingerprint = format!(
            "{count} images of {height}×{width}, CRC-32 {:08x}, labels {:08x}",
            crc32(&[&pixels]),
            crc32(&[&label_bytes(&labels)])
        );
        let classes = labels.iter().max().map_or(0, |&label| label + 1);
        let classes = (0..classes).map(|class| class.to_string()).collect();
        let name = images.display().to_string();
        let mut images =
            Images { pixels, labels, height, width, channels: 1, classes, colours, name, fingerprint };
        images.scale_all([wanted.sample[1], wanted.sample[2]]);
        images
    }
}

/// Labels as a checksum takes them.
pub fn label_bytes(labels: &[i32]) -> Vec<u8> {
    labels.iter().flat_map(|label| label.to_le_bytes()).collect()
}

/// The file of this name, in one of the spellings that are about.
fn find(directory: &Path, stem: &str, ending: &str) -> Result<PathBuf> {
    if !directory.is_dir() {
        let what = if directory.exists() { "not a directory" } else { "no such directory" };
        return Err(Error::data(directory, format!("{what}; --data wants the one that holds the IDX files")));
    }
    match spellings(directory, stem, ending).next() {
        Some(path) => Ok(path),
        None => {
            let names = names(stem, ending);
            let of_name = names.iter().find(|name| directory.join(name).is_dir());
            let what = of_name.map_or(String::new(), |name| format!("; {name} is a directory without it"));
            Err(Error::data(directory, format!("no {stem} file; looked for {}{what}", names.join(", "))))
        }
    }
}

/// The names that a file may have.
fn names(stem: &str, ending: &str) -> Vec<String> {
    let names = ["-", "."].map(|dash| format!("{stem}{dash}{ending}"));
    names.iter().flat_map(|name| [name.clone(), format!("{name}.gz")]).collect()
}

/// The files of these names that are there. The first one is read.
fn spellings(directory: &Path, stem: &str, ending: &str) -> impl Iterator<Item = PathBuf> {
    let names = names(stem, ending);
    // Some programs unpack each file into a directory of its name.
    let within = names.iter().map(|name| directory.join(name).join(name));
    let places: Vec<PathBuf> = names.iter().map(|name| directory.join(name)).chain(within).collect();
    places.into_iter().filter(|path| path.exists() && !path.is_dir())
}

/// The contents of a file: its extents, and as many bytes as they say.
struct Idx<const D: usize> {
    extents: [usize; D],
    values: Vec<u8>,
}

/// Reads a file of D dimensions, plain or gzip, whatever its name says.
fn read<const D: usize>(path: &Path) -> Result<Idx<D>> {
    let open = || {
        let mut file = files::open(path)?;
        let size = file.metadata()?.len();
        let mut start = Vec::new();
        file.by_ref().take(GZIP.len() as u64).read_to_end(&mut start)?;
        Ok((start == GZIP, size, io::Cursor::new(start).chain(file)))
    };
    let (gzip, size, reader) = open().map_err(|error: io::Error| Error::data(path, error))?;
    let contents = if gzip {
        parse(MultiGzDecoder::new(BufReader::new(reader)), size, size.saturating_mul(BEST_COMPRESSION))
    } else {
        parse(reader, size, size)
    };
    contents.map_err(|failure| match failure {
        Failure::Format(what) => files::unreadable(path, what),
        Failure::Io(error) if gzip => Error::data(path, format!("corrupt or truncated gzip file ({error})")),
        Failure::Io(error) => Error::data(path, error),
    })
}

/// What can be wrong with a file.
enum Failure {
    Format(String),
    Io(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Io(error)
    }
}

/// Parses a stream that comes from a file of `size` bytes and can be at most `most` bytes long. Allocates
/// in proportion to that file, whatever the header claims.
fn parse<const D: usize>(
    mut reader: impl Read,
    size: u64,
    most: u64,
) -> std::result::Result<Idx<D>, Failure> {
    let mut header = Vec::new();
    let header_bytes = 4 * (1 + D as u64);
    reader.by_ref().take(header_bytes).read_to_end(&mut header)?;
    let mut words =
        header.chunks_exact(4).map(|word| u32::from_be_bytes([word[0], word[1], word[2], word[3]]));
    let magic = 0x0800 + D as u32;
    match words.next() {
        Some(found) if found == magic => {}
        Some(found) => return Err(Failure::Format(wrong_magic(found, magic))),
        None => return Err(Failure::Format(format!("truncated: an IDX header has {header_bytes} bytes"))),
    }
    let extents: Vec<usize> = words.map(|word| word as usize).collect();
    let extents: [usize; D] = extents.try_into().map_err(|_| {
        Failure::Format(format!("truncated: its header has {} of {header_bytes} bytes", header.len()))
    })?;
    let text = extents.map(|extent| extent.to_string()).join("×");
    if extents.contains(&0) {
        return Err(Failure::Format(format!("empty: its header says {text} values")));
    }
    let product = extents.iter().try_fold(1u64, |product, &extent| product.checked_mul(extent as u64));
    let claim = format!("its header says {text} values");
    let Some(expected) = product.filter(|&values| values <= most) else {
        return Err(Failure::Format(format!(
            "truncated: {claim}, more than a file of {size} bytes can hold"
        )));
    };
    let mut values = Vec::with_capacity(expected.min(size.saturating_mul(USUAL_COMPRESSION)) as usize + 1);
    reader.by_ref().take(expected).read_to_end(&mut values)?;
    if (values.len() as u64) < expected {
        return Err(Failure::Format(format!("truncated: {claim}, but only {} are there", values.len())));
    }
    // Reading on to the end also makes gzip compare its checksum.
    let trailing = io::copy(&mut reader, &mut io::sink())?;
    if trailing > 0 {
        return Err(Failure::Format(format!("{claim}, but {trailing} more bytes follow them")));
    }
    Ok(Idx { extents, values })
}

fn wrong_magic(found: u32, wanted: u32) -> String {
    let guess = match found {
        0x0801 => ", which marks labels",
        0x0803 => ", which marks images",
        _ => ": not an IDX file of bytes",
    };
    format!("wrong magic number 0x{found:08x} (wanted 0x{wanted:08x}){guess}")
}
