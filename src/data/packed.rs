//! What `dltrain pack` wrote: images in few large HDF5 files, shuffled once for good.
//!
//! A file is HDF5 for everybody else (data sets `bytes`, `offsets`, `synthetic_shapes`, `labels`, `crc32`, `names`). In
//! front of it, in the user block that HDF5 leaves to applications, stands a `Header` that says where in the file the
//! data sets lie. Reading goes by the header alone: it takes no lock of the HDF5 library, so that any number of threads
//! read at once and never wait for the results file; and a damaged file meets this parser only, which trusts nothing.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::about::InputSummary;
use super::detect::{Parts, ends, entries};
pub use super::header::{CHUNK, Header};
use super::picture::{self, Picture};
use super::{ColourSums, Colours, Dataset, EvaluationCrop, Jpeg};
use crate::error::{Error, Result};
use crate::files::{self, ChunkCache, KeptFile, crc32};

/// Opens a directory of packed files, one file, or `NAME.h5` for all of `NAME-*.h5`.
///
/// # Errors
/// `Data`: a file that is missing, damaged, or belongs to another set.
pub fn open(path: &Path, jpeg: Jpeg) -> Result<Parts> {
    let paths = files_of(path)?;
    let files = paths.iter().map(|file| Pack::open(file)).collect::<Result<Vec<Pack>>>()?;
    let part = |name: &str| -> Result<Option<Arc<Packed>>> {
        let mut of: Vec<Pack> = files.iter().filter(|file| file.header.part == name).cloned().collect();
        of.sort_by_key(|file| file.header.file);
        if of.is_empty() {
            Ok(None)
        } else {
            Packed::join(path, of, jpeg).map(|packed| Some(Arc::new(packed)))
        }
    };
    let mut about =
        InputSummary { format: "packed", colours: "those of what was packed", ..InputSummary::default() };
    let (training, test) = match (part("training")?, part("test")?) {
        (Some(training), test) => (training, test),
        (None, Some(test)) => {
            about.untrainable = Some(Error::data(path, "packed images, but none to train on"));
            (test, None)
        }
        (None, None) => return Err(Error::data(path, "packed images, neither to train on nor to test on")),
    };
    if let Some(test) = test.as_ref().filter(|test| test.classes != training.classes) {
        let what = "test images with other classes than the training images";
        return Err(Error::data(&test.files[0].path, what));
    }
    if path.is_dir() {
        let beside = entries(path)?.into_iter().filter(|file| !paths.contains(file));
        beside.for_each(|file| {
            about.left_out.add_file(&file.file_name().unwrap_or_default().to_string_lossy())
        });
    }
    let test = test.map(|test| test as Arc<dyn Dataset>);
    Ok(Parts { training, test, about })
}

/// Whether a file begins as packed ones do.
pub fn is_packed(path: &Path) -> bool {
    files::open(path).is_ok_and(|file| Header::is_begun(&file))
}

/// The files that a path stands for.
///
/// # Errors
/// `Data` when there are none.
pub fn files_of(path: &Path) -> Result<Vec<PathBuf>> {
    let files: Vec<PathBuf> = if path.is_dir() {
        let all: Vec<PathBuf> = entries(path)?.into_iter().filter(|file| ends(file, "h5")).collect();
        // Results and weights may lie beside. Where nothing is packed each file says what is wrong with it.
        let packed: Vec<PathBuf> = all.iter().filter(|file| is_packed(file)).cloned().collect();
        if packed.is_empty() { all } else { packed }
    } else if path.exists() {
        vec![path.to_path_buf()]
    } else {
        let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        let directory =
            path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let belongs = |file: &PathBuf| {
            let name = file.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
            ends(file, "h5") && name.strip_prefix(stem).is_some_and(|rest| rest.starts_with('-'))
        };
        entries(directory)?.into_iter().filter(belongs).collect()
    };
    if files.is_empty() {
        let what = if path.is_dir() {
            "no .h5 files there"
        } else {
            "no such file, and no packed files of that name"
        };
        return Err(Error::data(path, what));
    }
    Ok(files)
}

/// One file, with its tables in memory.
#[derive(Clone)]
struct Pack {
    path: PathBuf,
    file: Arc<KeptFile>,
    header: Arc<Header>,
    offsets: Arc<Vec<u64>>,
    shapes: Arc<Vec<[u32; 3]>>,
    labels: Arc<Vec<i32>>,
    crcs: Arc<Vec<u32>>,
}

impl Pack {
    fn open(path: &Path) -> Result<Pack> {
        Self::parse(path).map_err(|what| files::unreadable(path, what))
    }

    fn parse(path: &Path) -> std::result::Result<Pack, String> {
        let (kept, file) = KeptFile::open(path).map_err(|error| error.to_string())?;
        let size = file.metadata().map_err(|error| error.to_string())?.len();
        let header = Header::read(&file, size)?;
        let mut tables = Vec::new();
        for (at, bytes) in header.tables.iter().zip(header.table_bytes()) {
            let mut table = vec![0; bytes as usize];
            file.read_exact_at(&mut table, *at).map_err(|error| error.to_string())?;
            tables.push(table);
        }
        let slices: Vec<&[u8]> = tables.iter().map(Vec::as_slice).collect();
        if crc32(&slices) != header.tables_crc {
            return Err("corrupt tables (their CRC-32 is another)".into());
        }
        let words = |table: &[u8]| -> Vec<u32> {
            table.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
        };
        let offsets: Vec<u64> =
            tables[0].as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let shapes: Vec<[u32; 3]> = words(&tables[1]).as_chunks::<3>().0.to_vec();
        let labels: Vec<i32> = words(&tables[2]).iter().map(|&word| word as i32).collect();
        let sound = offsets.is_sorted()
            && offsets[offsets.len() - 1] <= header.bytes
            && labels.iter().all(|&label| (0..header.classes.len() as i64).contains(&i64::from(label)));
        let fits = |(shape, span): (&[u32; 3], &[u64])| {
            let [height, width, channels] = shape.map(u64::from);
            let values = height.checked_mul(width).and_then(|pixels| pixels.checked_mul(channels));
            header.encoded
                || (values == Some(span[1] - span[0]) && matches!(channels, 1 | 3) && span[1] > span[0])
        };
        if !sound || !shapes.iter().zip(offsets.windows(2)).all(fits) {
            return Err("corrupt tables".into());
        }
        Ok(Pack {
            path: path.to_path_buf(),
            file: Arc::new(kept),
            header: Arc::new(header),
            offsets: Arc::new(offsets),
            shapes: Arc::new(shapes),
            labels: Arc::new(labels),
            crcs: Arc::new(words(&tables[3])),
        })
    }

    fn names(&self) -> std::io::Result<String> {
        let mut names = vec![0; self.header.names_bytes as usize];
        self.file.read_exact_at(&mut names, self.header.tables[4])?;
        Ok(String::from_utf8_lossy(&names).into_owned())
    }
}

/// One part of a set, in as many files as it has.
pub struct Packed {
    files: Vec<Pack>,
    /// Images in front of each file, and in all.
    first: Vec<usize>,
    classes: Vec<String>,
    colours: Colours,
    frame: EvaluationCrop,
    chunks: ChunkCache,
    jpeg: Jpeg,
}

impl Packed {
    fn join(path: &Path, files: Vec<Pack>, jpeg: Jpeg) -> Result<Packed> {
        let head = &files[0].header;
        if let Some(number) =
            (1..=head.files).find(|number| files.iter().all(|file| file.header.file != *number))
        {
            let what = format!("file {number} of {} of the {} images is missing", head.files, head.part);
            return Err(Error::data(path, what));
        }
        let same = |header: &Header| {
            header.files == head.files && header.source == head.source && header.classes == head.classes
        };
        if let Some(other) = files.iter().find(|file| !same(&file.header)) {
            return Err(Error::data(&other.path, "belongs to another packed set than the files beside it"));
        }
        if files.len() != head.files {
            return Err(Error::data(
                path,
                format!("{} files of a packed set of {}", files.len(), head.files),
            ));
        }
        let mut sums = ColourSums::default();
        files.iter().for_each(|file| sums.join(&file.header.sums));
        // Files of earlier versions do not say it.
        let usual = if sums.count > 0 { sums.colours() } else { Colours::imagenet() };
        let said = head.prepared.filter(|_| files.iter().all(|file| file.header.prepared == head.prepared));
        let (colours, frame) = said.unwrap_or((usual, EvaluationCrop::Centre));
        let mut first = vec![0];
        first.extend(files.iter().scan(0, |sum, file| {
            *sum += file.labels.len();
            Some(*sum)
        }));
        Ok(Packed {
            classes: head.classes.clone(),
            colours,
            frame,
            files,
            first,
            chunks: ChunkCache::new(2),
            jpeg,
        })
    }

    /// Opens one file by itself, whichever of how many it is.
    ///
    /// # Errors
    /// `Data`, as for `open`.
    pub fn alone(path: &Path) -> Result<Packed> {
        let mut pack = Pack::open(path)?;
        let header = Arc::make_mut(&mut pack.header);
        (header.file, header.files) = (1, 1);
        Packed::join(path, vec![pack], Jpeg::Rust)
    }

    fn place(&self, index: usize) -> (usize, usize) {
        let file = self.first.partition_point(|&first| first <= index) - 1;
        (file, index - self.first[file])
    }

    /// Appends the bytes of a span, from chunks that are at hand or read now, whole.
    fn collect(&self, file: usize, span: std::ops::Range<u64>, bytes: &mut Vec<u8>) -> std::io::Result<()> {
        let mut at = span.start;
        while at < span.end {
            let (chunk, from) = ((at / CHUNK as u64) as usize, (at % CHUNK as u64) as usize);
            let to = (from as u64 + span.end - at).min(CHUNK as u64) as usize;
            let pack = &self.files[file];
            let read = |content: &mut Vec<u8>| {
                content.resize(CHUNK, 0);
                pack.file.read_exact_at(content, pack.header.chunks[chunk]).map(|()| false)
            };
            self.chunks
                .with((file as u64, chunk), read, |content, _| bytes.extend_from_slice(&content[from..to]))?;
            at += (to - from) as u64;
        }
        Ok(())
    }

    /// The bytes of one image, checked.
    fn checked(&self, index: usize, bytes: &mut Vec<u8>) -> Result<(usize, usize)> {
        let (file, at) = self.place(index);
        let pack = &self.files[file];
        bytes.clear();
        self.collect(file, pack.offsets[at]..pack.offsets[at + 1], bytes)
            .map_err(|error| Error::data(&pack.path, format!("image {at}: {error}")))?;
        if crc32(&[bytes]) != pack.crcs[at] {
            return Err(Error::data(
                &pack.path,
                format!("image {at} ({}): its CRC-32 is another", self.name(index)),
            ));
        }
        Ok((file, at))
    }
}

impl Dataset for Packed {
    fn len(&self) -> usize {
        self.first[self.files.len()]
    }

    fn class_names(&self) -> &[String] {
        &self.classes
    }

    fn label(&self, index: usize) -> i32 {
        let (file, at) = self.place(index);
        self.files[file].labels[at]
    }

    fn read(&self, index: usize, picture: &mut Picture) -> Result<()> {
        if self.files[self.place(index).0].header.encoded {
            let mut bytes = Vec::new();
            let (file, _) = self.checked(index, &mut bytes)?;
            let wrong = |what| Error::data(&self.files[file].path, format!("{}: {what}", self.name(index)));
            return picture::decode(&bytes, picture, self.jpeg).map_err(wrong);
        }
        let (file, at) = self.checked(index, &mut picture.pixels)?;
        let [height, width, channels] = self.files[file].shapes[at].map(|side| side as usize);
        (picture.height, picture.width, picture.channels) = (height, width, channels);
        Ok(())
    }

    fn jpeg(&self) -> Option<Jpeg> {
        self.files.iter().any(|file| file.header.encoded).then_some(self.jpeg)
    }

    fn encoded(&self, index: usize) -> Result<Option<Vec<u8>>> {
        let mut bytes = Vec::new();
        let (file, _) = self.checked(index, &mut bytes)?;
        Ok(self.files[file].header.encoded.then_some(bytes))
    }

    fn name(&self, index: usize) -> String {
        let (file, at) = self.place(index);
        let names = self.files[file].names().unwrap_or_default();
        names.lines().nth(at).unwrap_or("without a name").to_string()
    }

    fn names(&self) -> Vec<String> {
        let mut all = Vec::with_capacity(self.len());
        for (file, images) in self.files.iter().zip(self.first.windows(2)) {
            all.extend(file.names().unwrap_or_default().lines().map(String::from));
            // A table that is cut off names fewer.
            all.resize(images[1], "without a name".into());
        }
        all
    }

    fn fingerprint(&self) -> String {
        let crcs: Vec<u8> = self.files.iter().flat_map(|file| file.header.tables_crc.to_le_bytes()).collect();
        format!("{} packed images, CRC-32 of their tables {:08x}", self.len(), crc32(&[&crcs]))
    }

    fn colours(&self) -> Colours {
        self.colours
    }

    fn frame(&self) -> EvaluationCrop {
        self.frame
    }

    fn blocks(&self) -> Vec<u32> {
        let mut starts = Vec::new();
        for (pack, first) in self.files.iter().zip(&self.first) {
            let mut last = None;
            for (at, offset) in pack.offsets[..pack.labels.len()].iter().enumerate() {
                if last.replace(offset / CHUNK as u64) != Some(offset / CHUNK as u64) {
                    starts.push((first + at) as u32);
                }
            }
        }
        starts
    }

    fn keep(&self, images: usize, _: usize) -> usize {
        let chunks: usize = self.files.iter().map(|file| file.header.chunks.len()).sum();
        let needed = (images * chunks).div_ceil(self.len()) + 2;
        let keep = needed.min(MOST_KEPT / CHUNK).min(chunks).max(2);
        self.chunks.keep(keep);
        keep * CHUNK
    }
}

/// Bytes of chunks that a rank keeps at most.
const MOST_KEPT: usize = 128 << 20;
