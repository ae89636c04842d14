//! What stands in front of a packed file: where in it everything lies, with checksums.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;

use serde::{Deserialize, Serialize};

use super::{ColourSums, Colours, EvaluationCrop};
use crate::files::crc32;
use crate::model::Preprocessing;

const MAGIC: &str = "dltrain images 1";

/// Bytes of one chunk, and of one read.
pub const CHUNK: usize = 1 << 20;

/// The start of a file: `dltrain images 1`, the length of the JSON text that follows, its CRC-32.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// "training" or "test".
    pub part: String,
    /// This file's number, from 1, of so many.
    pub file: usize,
    /// How many files the packed set has.
    pub files: usize,
    /// What went in: the source's fingerprint and the choices made.
    pub source: String,
    /// Whether images are JPEG or PNG files as they were; else they are pixels.
    pub encoded: bool,
    /// Names of the classes, in the order of their labels.
    pub classes: Vec<String>,
    /// How many images this file has.
    pub images: u64,
    /// Bytes of all images together.
    pub bytes: u64,
    /// Where each chunk of `CHUNK` bytes lies.
    pub chunks: Vec<u64>,
    /// Where the tables lie: offsets (images + 1 of u64), shapes (height, width, channels as u32), labels (i32), CRC-32
    /// (u32), names (lines), all little-endian.
    pub tables: [u64; 5],
    /// Bytes of the table of names.
    pub names_bytes: u64,
    /// CRC-32 of the tables, one after the other.
    pub tables_crc: u32,
    /// Sums of the pixels; none where images are encoded. Files that do not say by what they are normalised go by
    /// these.
    pub sums: ColourSums,
    /// By what images are normalised, and what of them evaluation looks at: as those were that were packed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prepared: Option<(Colours, EvaluationCrop)>,
}

impl Header {
    /// As it is written.
    pub fn to_text(&self) -> String {
        let json = serde_json::to_string(self).unwrap_or_default();
        format!("{MAGIC} {} {:08x}\n{json}", json.len(), crc32(&[json.as_bytes()]))
    }

    /// Whether a file begins with one.
    pub fn is_begun(mut file: &File) -> bool {
        let mut first = [0; MAGIC.len()];
        file.read_exact(&mut first).is_ok_and(|()| first == *MAGIC.as_bytes())
    }

    /// Reads and checks the header of a file of `size` bytes.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(file: &File, size: u64) -> std::result::Result<Header, String> {
        let mut first = Vec::new();
        file.take(64).read_to_end(&mut first).map_err(|error| error.to_string())?;
        let line = first.split(|&byte| byte == b'\n').next().unwrap_or_default();
        let words = std::str::from_utf8(line).ok().and_then(|line| line.strip_prefix(MAGIC));
        let words = words.ok_or("not a file of dltrain pack (--data reads no other HDF5)")?;
        let mut words = words.split_whitespace();
        let length = words.next().and_then(|word| word.parse::<usize>().ok());
        let crc = words.next().and_then(|word| u32::from_str_radix(word, 16).ok());
        let (Some(length), Some(crc)) = (length, crc) else { return Err("corrupt header".into()) };
        if length as u64 > size {
            return Err("truncated".into());
        }
        let mut json = vec![0; length];
        file.read_exact_at(&mut json, line.len() as u64 + 1).map_err(|_| "truncated")?;
        if crc32(&[&json]) != crc {
            return Err("corrupt header (its CRC-32 is another)".into());
        }
        let header: Header =
            serde_json::from_slice(&json).map_err(|error| format!("corrupt header ({error})"))?;
        header.check(size)?;
        Ok(header)
    }

    fn check(&self, size: u64) -> std::result::Result<(), String> {
        let within = |at: u64, bytes: u64| at.checked_add(bytes).is_some_and(|end| end <= size);
        if self.images == 0 || self.images > size || self.bytes > size {
            return Err(format!(
                "its header says {} images and {} bytes, more than the file has",
                self.images, self.bytes
            ));
        }
        let chunks = self.bytes.div_ceil(CHUNK as u64) == self.chunks.len() as u64
            && self.chunks.iter().all(|&at| within(at, CHUNK as u64));
        let sound = |(colours, _): &(Colours, EvaluationCrop)| {
            Preprocessing::are_sound(&colours.mean, &colours.deviation)
        };
        if !self.prepared.as_ref().is_none_or(sound) {
            return Err("corrupt header (it says impossible colours)".into());
        }
        if !chunks || !self.tables.iter().zip(self.table_bytes()).all(|(&at, bytes)| within(at, bytes)) {
            return Err("truncated, or its header is corrupt".into());
        }
        Ok(())
    }

    /// Bytes of each of the tables.
    pub(super) fn table_bytes(&self) -> [u64; 5] {
        let n = self.images;
        [8 * (n + 1), 12 * n, 4 * n, 4 * n, self.names_bytes]
    }
}
