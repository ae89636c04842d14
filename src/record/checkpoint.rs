//! A checkpoint file: everything a run needs to go on, in one HDF5 file behind a block with its checksum.
//!
//! HDF5 leaves the start of the file to us (a user block). Its first 512 bytes are a magic word, the file's length and
//! the CRC-32 of all that follows; then an index says what the file holds, and where. Reading goes by the index alone:
//! the HDF5 library loops or takes terabytes on files made to do harm, this parser trusts nothing. HDF5 only makes
//! the arrays' places; the numbers are written there past it, because its one lock for all threads would keep the
//! results file waiting while a checkpoint is written in the background. `docs/results.md` is the schema.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use hdf5::File;
use hdf5::plist::dataset_create::{AllocTime, FillTime};

use super::file::text;
use super::names;
use crate::device::memory::{bytes_of, bytes_of_mut};
use crate::error::{Error, ErrorKind, OrError, Result};
use crate::files::{self, crc32_from, write_whole};

/// The schema's version. Raised when a reader of the older one would misread.
const SCHEMA: u32 = 2;
const MAGIC: &str = "dltrain checkpoint";
/// Bytes before the index.
const BLOCK: usize = 512;

/// An array of f32 numbers.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Array {
    /// Where it stands in the file: "parameters/conv1.weight".
    pub path: String,
    /// How many elements each axis has.
    pub shape: Vec<usize>,
}

impl Array {
    /// How many elements it has.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// The mean of the rows of an array that has one for each rank, as evaluation takes it.
    pub fn mean_over_ranks(&self, values: &[f32]) -> Vec<f32> {
        let ranks = self.shape.first().copied().unwrap_or(0).max(1);
        let columns = values.len() / ranks;
        let sum = |column| values.iter().skip(column).step_by(columns).map(|&v| f64::from(v)).sum::<f64>();
        (0..columns).map(|column| (sum(column) / ranks as f64) as f32).collect()
    }
}

/// What a checkpoint holds.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Contents {
    /// Attributes of `/config`.
    pub texts: BTreeMap<String, String>,
    /// Attributes of `/progress`.
    pub numbers: BTreeMap<String, f64>,
    /// The arrays, each with its name.
    pub arrays: Vec<Array>,
    /// The numbers of all arrays, one after the other.
    pub values: Vec<f32>,
}

impl Contents {
    /// All but the values, as a text for the other ranks: numbers keep their bits.
    pub fn head(&self) -> String {
        let bits: BTreeMap<&String, u64> = self.numbers.iter().map(|(name, v)| (name, v.to_bits())).collect();
        serde_json::to_string(&(&self.texts, bits, &self.arrays)).unwrap_or_default()
    }

    /// The reverse of `head`.
    pub fn from_head(text: &str) -> Result<Contents> {
        let (texts, bits, arrays): (Texts, Bits, Vec<Array>) = serde_json::from_str(text)
            .map_err(|error| Error::internal(format!("a checkpoint's head came damaged: {error}")))?;
        Ok(Contents { texts, numbers: numbers(bits), arrays, values: Vec::new() })
    }

    /// What stands in the file before the HDF5 part: the head, and where in the file each array lies.
    fn index(&self, offsets: &[u64]) -> String {
        serde_json::to_string(&(self.head(), offsets)).unwrap_or_default()
    }

    /// A number that every checkpoint has.
    pub fn number(&self, name: &str) -> Result<f64> {
        let found = self.numbers.get(name).copied();
        found.ok_or_else(|| Error::new(ErrorKind::Data, format!("the checkpoint has no {name}")))
    }

    /// An attribute, or nothing where the file has none of that name.
    pub fn text(&self, name: &str) -> &str {
        self.texts.get(name).map_or("", String::as_str)
    }

    /// The numbers of one array, where the values are there.
    pub fn array(&self, path: &str) -> Option<(&Array, &[f32])> {
        let mut start = 0;
        for array in &self.arrays {
            let end = start + array.elements();
            if array.path == path {
                return Some((array, self.values.get(start..end)?));
            }
            start = end;
        }
        None
    }
}

type Texts = BTreeMap<String, String>;
/// Numbers by name, which JSON would not keep to the bit.
type Bits = BTreeMap<String, u64>;

fn numbers(bits: Bits) -> BTreeMap<String, f64> {
    bits.into_iter().map(|(name, bits)| (name, f64::from_bits(bits))).collect()
}

/// Writes a checkpoint; whatever happens meanwhile, the file at `path` is whole.
///
/// # Errors
/// `ErrorKind::Output`; nothing is left behind.
pub(super) fn write(path: &Path, contents: &Contents) -> Result<()> {
    write_whole(path, "the checkpoint", |new| {
        build(new, contents).or_output(path, "cannot write the checkpoint")
    })
}

fn build(path: &Path, contents: &Contents) -> std::result::Result<(), String> {
    // As long as the index can be; HDF5 wants a power of two.
    let longest = contents.index(&vec![u64::MAX; contents.arrays.len()]).len();
    let user_block = (BLOCK + longest).next_power_of_two();
    // Room for what HDF5 itself writes: it does not take a full disk well.
    let room = vec![0u8; (1 << 16) + 2048 * contents.arrays.len() + user_block];
    fs::write(path, room).map_err(|error| error.to_string())?;
    let offsets = lay_out(path, contents, user_block as u64).map_err(|error| error.to_string())?;
    fill(path, contents, &offsets).map_err(|error| error.to_string())
}

/// Makes the file with everything but the arrays' numbers; returns where in the file those belong.
fn lay_out(path: &Path, contents: &Contents, user_block: u64) -> hdf5::Result<Vec<u64>> {
    let file = File::with_options().with_fcpl(|create| create.userblock(user_block)).create(path)?;
    let filled = describe(&file, contents);
    match filled {
        Ok(offsets) => file.close().map(|()| offsets),
        Err(error) => {
            // Closing would only try, and fail, again.
            std::mem::forget(file);
            Err(error)
        }
    }
}

fn describe(file: &File, contents: &Contents) -> hdf5::Result<Vec<u64>> {
    text(file, "format", MAGIC)?;
    file.new_attr::<u32>().create("schema")?.write_scalar(&SCHEMA)?;
    let config = file.create_group("config")?;
    contents.texts.iter().try_for_each(|(name, value)| text(&config, name, value))?;
    let progress = file.create_group("progress")?;
    for (name, value) in &contents.numbers {
        progress.new_attr::<f64>().create(name.as_str())?.write_scalar(value)?;
    }
    let place = |array: &Array| {
        // A place at once, and nothing in it: the numbers come past HDF5.
        let dataset = file
            .new_dataset::<f32>()
            .alloc_time(Some(AllocTime::Early))
            .fill_time(FillTime::Never)
            .shape(array.shape.clone())
            .create(names::link_of_array(&array.path).as_str())?;
        dataset.offset().ok_or_else(|| hdf5::Error::from(format!("no place for {}", array.path)))
    };
    contents.arrays.iter().map(place).collect()
}

/// The numbers and the index, then the block with the checksum, then all of it to disk.
fn fill(path: &Path, contents: &Contents, offsets: &[u64]) -> io::Result<()> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let mut rest = contents.values.as_slice();
    for (array, &offset) in contents.arrays.iter().zip(offsets) {
        let (values, others) = rest.split_at(array.elements());
        rest = others;
        file.write_all_at(bytes_of(values), offset)?;
    }
    let index = contents.index(offsets);
    file.write_all_at(index.as_bytes(), BLOCK as u64)?;
    let length = file.metadata()?.len();
    let sum = crc32_from(&file, BLOCK as u64)?;
    file.write_all_at(&first_block(sum, length, index.len() as u64), 0)
}

fn first_block(sum: u32, length: u64, index: u64) -> Vec<u8> {
    let mut block =
        format!("{MAGIC} {SCHEMA}\ncrc32 {sum:08x}\nbytes {length}\nindex {index}\n").into_bytes();
    block.resize(BLOCK, 0);
    block
}

/// Reads a checkpoint whole, having checked every byte of it.
///
/// # Errors
/// `ErrorKind::Data` where the file is not what was once written, `ErrorKind::Environment` where it cannot be read.
pub(super) fn read(path: &Path) -> Result<Contents> {
    let stored = StoredCheckpoint::open(path)?;
    let mut contents = stored.head.clone();
    contents.values.reserve_exact(contents.arrays.iter().map(Array::elements).sum());
    for which in 0..contents.arrays.len() {
        contents.values.extend(stored.values(which)?);
    }
    Ok(contents)
}

/// A checkpoint that is read array by array.
pub(super) struct StoredCheckpoint {
    path: PathBuf,
    file: fs::File,
    /// All but the values.
    pub head: Contents,
    /// Where in the file each array lies.
    offsets: Vec<u64>,
}

impl StoredCheckpoint {
    /// Checks every byte, and that what the index promises is there.
    ///
    /// # Errors
    /// As for `read`.
    pub fn open(path: &Path) -> Result<StoredCheckpoint> {
        let unreadable = |error: io::Error| unreadable(path, &error);
        let mut file = files::open(path).map_err(unreadable)?;
        let length = file.metadata().map_err(unreadable)?.len();
        let index = check(path, &file, length)?;
        let mut text = vec![0u8; index as usize];
        file.seek(SeekFrom::Start(BLOCK as u64)).map_err(unreadable)?;
        file.read_exact(&mut text).map_err(unreadable)?;
        let damaged =
            |what: &dyn std::fmt::Display| Error::data(path, format!("has a damaged index: {what}"));
        let (head, offsets): (String, Vec<u64>) = serde_json::from_slice(&text).map_err(|e| damaged(&e))?;
        let head = Contents::from_head(&head).map_err(|error| damaged(&error.message))?;
        let bytes = |array: &Array| {
            let elements = array.shape.iter().try_fold(1u64, |n, &extent| n.checked_mul(extent as u64))?;
            elements.checked_mul(4)
        };
        let mut all = 0u64;
        for (array, offset) in head.arrays.iter().zip(&offsets) {
            let within =
                bytes(array).filter(|bytes| offset.checked_add(*bytes).is_some_and(|end| end <= length));
            all = within
                .and_then(|bytes| all.checked_add(bytes))
                .filter(|all| *all <= length)
                .ok_or_else(|| damaged(&format!("{} does not fit into {length} bytes", array.path)))?;
        }
        if offsets.len() != head.arrays.len() {
            return Err(damaged(&format!("{} places for {} arrays", offsets.len(), head.arrays.len())));
        }
        Ok(StoredCheckpoint { path: path.into(), file, head, offsets })
    }

    /// The numbers of one array.
    ///
    /// # Errors
    /// As for `read`.
    pub fn values(&self, which: usize) -> Result<Vec<f32>> {
        let mut values = vec![0f32; self.head.arrays[which].elements()];
        let read = self.file.read_exact_at(bytes_of_mut(&mut values), self.offsets[which]);
        read.map(|()| values).map_err(|error| unreadable(&self.path, &error))
    }
}

fn unreadable(path: &Path, error: &io::Error) -> Error {
    Error::environment(format!("{}: cannot be read: {error}", path.display()))
}

/// Whether the file is, byte for byte, what was written; returns the length of its index.
fn check(path: &Path, mut file: &fs::File, length: u64) -> Result<u64> {
    let unreadable = |error: io::Error| unreadable(path, &error);
    let mut block = Vec::with_capacity(BLOCK);
    io::Read::by_ref(&mut file).take(BLOCK as u64).read_to_end(&mut block).map_err(unreadable)?;
    let text = String::from_utf8_lossy(&block);
    let Some(schema) = text.strip_prefix(MAGIC).and_then(|rest| rest.trim_start().lines().next()) else {
        return Err(Error::data(path, "is no checkpoint of dltrain, or its beginning is damaged"));
    };
    if schema != SCHEMA.to_string() {
        return Err(Error::data(path, format!("has schema {schema}; this dltrain reads schema {SCHEMA}")));
    }
    let line = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("");
    if line("bytes ") != length.to_string() {
        return Err(Error::data(path, format!("is truncated: {length} of {} bytes", line("bytes "))));
    }
    let index = line("index ").parse().unwrap_or(0);
    let sum = crc32_from(file, BLOCK as u64).map_err(unreadable)?;
    match first_block(sum, length, index) == block && index <= length.saturating_sub(BLOCK as u64) {
        true => Ok(index),
        false => Err(Error::data(path, "is damaged: its checksum is not that of its contents")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contents() -> Contents {
        Contents {
            texts: [("config".to_string(), "{\"lr\":0.1}".to_string())].into(),
            numbers: [
                ("step".to_string(), 100.0),
                ("loss".to_string(), 0.1 + 0.2),
                ("none".into(), f64::NAN),
            ]
            .into(),
            arrays: vec![
                Array { path: "optimizer/momentum/conv1.weight".into(), shape: vec![2, 3] },
                Array { path: "parameters/conv1.weight".into(), shape: vec![2, 3] },
                Array { path: "parameters/fc.bias".into(), shape: vec![500_000] },
            ],
            values: (0..500_012).map(|i| (i as f32).sin()).collect(),
        }
    }

    fn equal(a: &Contents, b: &Contents) -> bool {
        a.head() == b.head() && a.values == b.values
    }

    #[test]
    fn what_was_written_is_read_bit_for_bit_and_a_head_tells_all_but_the_values() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("step-00000100.h5");
        write(&path, &contents()).unwrap();
        assert!(equal(&read(&path).unwrap(), &contents()));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "something was left behind");
        let head = Contents::from_head(&contents().head()).unwrap();
        assert_eq!((head.head(), head.values.len()), (contents().head(), 0));
        // Over an older one of that name.
        write(&path, &Contents::default()).unwrap();
        assert!(equal(&read(&path).unwrap(), &Contents::default()));
    }

    #[test]
    fn the_mean_of_equal_rows_is_the_row_bit_for_bit() {
        let rows = |rows, columns| Array { path: String::new(), shape: vec![rows, columns] };
        assert_eq!(rows(2, 3).mean_over_ranks(&[1.0, 2.0, 3.0, 3.0, 2.0, -3.0]), [2.0, 2.0, 0.0]);
        for ranks in 1..9 {
            let row = [0.1f32, 1e-30, 3e38];
            assert_eq!(rows(ranks, 3).mean_over_ranks(&row.repeat(ranks)), row);
        }
    }

    #[test]
    fn a_flipped_bit_anywhere_and_any_other_length_is_seen() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("step.h5");
        write(&path, &contents()).unwrap();
        let whole = fs::read(&path).unwrap();
        let refused = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            let error = read(&path).map(|_| ()).expect_err("damage is not seen");
            assert_eq!(error.kind, ErrorKind::Data, "{error}");
        };
        let places = (0..60).chain((60..whole.len()).step_by(whole.len() / 150));
        for (place, bit) in places.zip((0..8).cycle()) {
            let mut bytes = whole.clone();
            bytes[place] ^= 1 << bit;
            refused(&bytes);
        }
        for length in [0, 10, BLOCK, whole.len() / 2, whole.len() - 1] {
            refused(&whole[..length]);
        }
        refused(&[whole.as_slice(), b"x"].concat());
        fs::remove_file(&path).unwrap();
        assert_eq!(read(&path).err().map(|error| error.kind), Some(ErrorKind::Environment));
    }
}
