//! A checkpoint file: everything a run needs to go on, in one HDF5 file behind a block with its checksum.
//!
//! HDF5 leaves the first 512 bytes to us (a user block): a magic word, the file's length and the CRC-32 of all
//! that follows, so that a damaged file is found before HDF5 sees it. HDF5 only makes the arrays' places; the
//! numbers are written there past it, because its one lock for all threads would keep the results file waiting
//! while a checkpoint is written in the background. `docs/results.md` is the schema.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use flate2::Crc;
use hdf5::plist::dataset_create::{AllocTime, FillTime};
use hdf5::types::VarLenUnicode;
use hdf5::{File, Group};

use crate::device::memory::bytes_of;
use crate::error::{Error, Kind, Result};

/// The schema's version. Raised when a reader of the older one would misread.
const SCHEMA: u32 = 1;
const MAGIC: &str = "dltrain checkpoint";
/// Bytes before the HDF5 part.
const USER_BLOCK: usize = 512;
/// Bytes summed up at a time.
const PIECE: usize = 1 << 20;

/// An array of f32 numbers.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Array {
    /// Where it stands in the file: "parameters/conv1.weight".
    pub path: String,
    pub shape: Vec<usize>,
}

impl Array {
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// What a checkpoint holds.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Contents {
    /// Attributes of `/config`.
    pub texts: BTreeMap<String, String>,
    /// Attributes of `/progress`.
    pub numbers: BTreeMap<String, f64>,
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
        type Head = (BTreeMap<String, String>, BTreeMap<String, u64>, Vec<Array>);
        let (texts, bits, arrays): Head = serde_json::from_str(text)
            .map_err(|error| Error::internal(format!("a checkpoint's head came damaged: {error}")))?;
        let numbers = bits.into_iter().map(|(name, bits)| (name, f64::from_bits(bits))).collect();
        Ok(Contents { texts, numbers, arrays, values: Vec::new() })
    }

    /// A number that every checkpoint has.
    pub fn number(&self, name: &str) -> Result<f64> {
        let found = self.numbers.get(name).copied();
        found.ok_or_else(|| Error::new(Kind::Data, format!("the checkpoint has no {name}")))
    }

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

/// The name under which a checkpoint is written before it is whole.
pub(super) fn temporary(path: &Path) -> PathBuf {
    path.with_extension("h5.tmp")
}

/// Writes a checkpoint under another name, brings it to disk, and only then gives it its own: whatever happens
/// meanwhile, the file at `path` is whole.
///
/// # Errors
/// `Kind::Output`; nothing is left behind.
pub(super) fn write(path: &Path, contents: &Contents) -> Result<()> {
    let temporary = temporary(path);
    let settle = || {
        fs::rename(&temporary, path)?;
        // The name is on disk once the directory is.
        fs::File::open(directory_of(path))?.sync_all()
    };
    build(&temporary, contents).and_then(|()| settle().map_err(|e| e.to_string())).map_err(|what| {
        let _ = fs::remove_file(&temporary);
        Error::output(path, format!("cannot write the checkpoint: {what}"))
    })
}

fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."))
}

fn build(path: &Path, contents: &Contents) -> std::result::Result<(), String> {
    // Room for what HDF5 itself writes: it does not take a full disk well.
    let room = vec![0u8; (1 << 16) + 2048 * contents.arrays.len()];
    fs::write(path, room).map_err(|error| error.to_string())?;
    let offsets = lay_out(path, contents).map_err(|error| error.to_string())?;
    fill(path, contents, &offsets).map_err(|error| error.to_string())
}

/// Makes the file with everything but the arrays' numbers; returns where in the file those belong.
fn lay_out(path: &Path, contents: &Contents) -> hdf5::Result<Vec<u64>> {
    let file = File::with_options().with_fcpl(|create| create.userblock(USER_BLOCK as u64)).create(path)?;
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
            .create(array.path.as_str())?;
        dataset.offset().ok_or_else(|| hdf5::Error::from(format!("no place for {}", array.path)))
    };
    contents.arrays.iter().map(place).collect()
}

fn text(location: &hdf5::Location, name: &str, value: &str) -> hdf5::Result<()> {
    let value =
        VarLenUnicode::from_str(&value.replace('\0', " ")).map_err(|e| hdf5::Error::from(e.to_string()))?;
    location.new_attr::<VarLenUnicode>().create(name)?.write_scalar(&value)
}

/// The numbers, then the block with the checksum, then all of it to disk.
fn fill(path: &Path, contents: &Contents, offsets: &[u64]) -> io::Result<()> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let mut rest = contents.values.as_slice();
    for (array, &offset) in contents.arrays.iter().zip(offsets) {
        let (values, others) = rest.split_at(array.elements());
        rest = others;
        file.write_all_at(bytes_of(values), offset)?;
    }
    let length = file.metadata()?.len();
    let sum = checksum(&file)?;
    file.write_all_at(&user_block(sum, length), 0)?;
    file.sync_all()
}

fn user_block(sum: u32, length: u64) -> Vec<u8> {
    let mut block = format!("{MAGIC} {SCHEMA}\ncrc32 {sum:08x}\nbytes {length}\n").into_bytes();
    block.resize(USER_BLOCK, 0);
    block
}

/// The CRC-32 of everything after the user block.
fn checksum(mut file: &fs::File) -> io::Result<u32> {
    file.seek(SeekFrom::Start(USER_BLOCK as u64))?;
    let (mut crc, mut bytes) = (Crc::new(), vec![0u8; PIECE]);
    loop {
        match file.read(&mut bytes)? {
            0 => return Ok(crc.sum()),
            count => crc.update(&bytes[..count]),
        }
    }
}

/// Reads a checkpoint whole, having checked every byte of it.
///
/// # Errors
/// `Kind::Data` where the file is not what was once written, `Kind::Environment` where it cannot be read.
pub(super) fn read(path: &Path) -> Result<Contents> {
    check(path)?;
    let damaged = |error: hdf5::Error| Error::data(path, format!("cannot be read as a checkpoint: {error}"));
    let file = File::open(path).map_err(damaged)?;
    extract(&file).map_err(damaged)
}

/// Whether the file is, byte for byte, what was written.
fn check(path: &Path) -> Result<()> {
    let unreadable =
        |error: io::Error| Error::environment(format!("{}: cannot be read: {error}", path.display()));
    let mut file = fs::File::open(path).map_err(unreadable)?;
    let length = file.metadata().map_err(unreadable)?.len();
    let mut block = Vec::with_capacity(USER_BLOCK);
    io::Read::by_ref(&mut file).take(USER_BLOCK as u64).read_to_end(&mut block).map_err(unreadable)?;
    let text = String::from_utf8_lossy(&block);
    let Some(schema) = text.strip_prefix(MAGIC).and_then(|rest| rest.trim_start().lines().next()) else {
        return Err(Error::data(path, "is no checkpoint of dltrain, or its beginning is damaged"));
    };
    if schema != SCHEMA.to_string() {
        return Err(Error::data(path, format!("has schema {schema}; this dltrain reads schema {SCHEMA}")));
    }
    let expected = text.lines().find_map(|line| line.strip_prefix("bytes ")).unwrap_or("");
    if expected != length.to_string() {
        return Err(Error::data(path, format!("is truncated: {length} of {expected} bytes")));
    }
    match user_block(checksum(&file).map_err(unreadable)?, length) == block {
        true => Ok(()),
        false => Err(Error::data(path, "is damaged: its checksum is not that of its contents")),
    }
}

fn extract(file: &File) -> hdf5::Result<Contents> {
    let mut contents = Contents::default();
    let config = file.group("config")?;
    for name in config.attr_names()? {
        let value = config.attr(&name)?.read_scalar::<VarLenUnicode>()?;
        contents.texts.insert(name, value.to_string());
    }
    let progress = file.group("progress")?;
    for name in progress.attr_names()? {
        contents.numbers.insert(name.clone(), progress.attr(&name)?.read_scalar()?);
    }
    let length = file.size() as usize;
    contents.values.reserve_exact(length / 4);
    for name in file.member_names()? {
        if name != "config" && name != "progress" {
            extract_group(&file.group(&name)?, &name, length, &mut contents)?;
        }
    }
    Ok(contents)
}

fn extract_group(group: &Group, path: &str, length: usize, contents: &mut Contents) -> hdf5::Result<()> {
    for name in group.member_names()? {
        let path = format!("{path}/{name}");
        let Ok(dataset) = group.dataset(&name) else {
            extract_group(&group.group(&name)?, &path, length, contents)?;
            continue;
        };
        let array = Array { path, shape: dataset.shape() };
        if array.elements().saturating_mul(4) > length {
            return Err(hdf5::Error::from(format!("{} is larger than the file", array.path)));
        }
        contents.values.extend(dataset.read_raw::<f32>()?);
        contents.arrays.push(array);
    }
    Ok(())
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
    fn a_flipped_bit_anywhere_and_any_other_length_is_seen() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("step.h5");
        write(&path, &contents()).unwrap();
        let whole = fs::read(&path).unwrap();
        let refused = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            let error = read(&path).map(|_| ()).expect_err("damage is not seen");
            assert_eq!(error.kind, Kind::Data, "{error}");
        };
        let places = (0..60).chain((60..whole.len()).step_by(whole.len() / 150));
        for (place, bit) in places.zip((0..8).cycle()) {
            let mut bytes = whole.clone();
            bytes[place] ^= 1 << bit;
            refused(&bytes);
        }
        for length in [0, 10, USER_BLOCK, whole.len() / 2, whole.len() - 1] {
            refused(&whole[..length]);
        }
        refused(&[whole.as_slice(), b"x"].concat());
        fs::remove_file(&path).unwrap();
        assert_eq!(read(&path).err().map(|error| error.kind), Some(Kind::Environment));
    }
}
