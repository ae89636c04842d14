//! The arrays of a file: what each holds, where its bytes lie and how they are coded, as the HDF5 library says it.

use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use hdf5::dataset::{ChunkOpts, DatasetCreate, Layout};
use hdf5::{Dataset, File, H5Type, IndexType, IterationOrder, LinkType, LocationType};

use serde::{Deserialize, Deserializer, Serialize};

use super::attributes::{Meaning, axes, text, unwrapped};
use super::element::{NumberKind, NumberType};
use super::filter::Filter;
use super::gaps::Gaps;
use super::library;
use super::mapped;
use super::read::PIECE;
use super::universe::{self, Universe};
use super::view::{ArrayBox, place_in};
use crate::error::{Error, Result, in_words_of_system};
use crate::files::{self, KeptFile};

/// One array of one file. Ranks tell each other what they found of the files that they looked at.
#[derive(Serialize, Deserialize)]
pub struct FileArray {
    /// "group/array".
    pub name: String,
    /// Places of each axis.
    pub shape: Vec<usize>,
    /// The type of its numbers.
    pub element: NumberType,
    /// Where its bytes lie.
    pub storage: ArrayStorage,
    /// What the file calls its axes, as netCDF's do; an empty name where it says none.
    pub axes: Vec<String>,
    /// Whether it only says where the places of an axis are, or between what they lie (netCDF's coordinates and
    /// bounds).
    pub is_coordinate: bool,
    /// The unit of its numbers, where the file says it.
    pub unit: Option<String>,
    /// Numbers that stand for none: `_FillValue`, `missing_value`.
    #[serde(deserialize_with = "numbers_or_nan")]
    pub missing: Vec<f64>,
    /// What a number is multiplied by, and what is then added (netCDF's packing).
    pub packing: Option<(f64, f64)>,
    /// Attributes that say something of its numbers that is not applied, as `valid_range` does.
    pub not_applied: Vec<String>,
    /// Whether the file has its numbers as signed ones, though they are none (netCDF's `_Unsigned`).
    is_unwrapped: bool,
    /// Which of its numbers were never written: they are missing.
    pub(super) gaps: Gaps,
    /// No other array of this process has the same.
    #[serde(skip, default = "another")]
    pub(super) id: u64,
    #[serde(skip)]
    pub(super) file: Arc<SourceFile>,
    asked: AskedLibrary,
}

/// What the library was asked of an array.
#[derive(Default, Serialize, Deserialize)]
struct AskedLibrary {
    /// The library's, once it is asked for chunks.
    #[serde(skip)]
    dataset: OnceLock<std::result::Result<Dataset, String>>,
    /// Where those lie that it was asked for.
    chunks: RwLock<HashMap<usize, StoredChunk>>,
}

/// A file that arrays are read from.
#[derive(Default)]
pub(super) struct SourceFile {
    pub path: PathBuf,
    /// None of what is computed.
    pub kept: Option<KeptFile>,
    pub bytes: u64,
    /// Whether netCDF's library wrote it.
    is_netcdf: bool,
    /// What the library tells open files apart by.
    number: u64,
}

/// Where the bytes of an array lie.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ArrayStorage {
    /// One after the other, from this byte of the file on.
    Contiguous(u64),
    /// In pieces of this shape, each of which went through these filters.
    Chunked(Vec<usize>, Vec<Filter>),
    /// Nowhere: no number was ever written.
    Unwritten,
    /// Where only the library finds them, and why.
    Library(String),
    /// In no file: they are computed.
    #[serde(skip)]
    Computed(Universe),
}

/// Where one chunk lies; without bytes it was never written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StoredChunk {
    pub at: u64,
    pub bytes: u64,
    /// The filters that it did not go through, a bit each.
    pub skipped: u32,
}

/// What of a file can be trained from, and what is left out.
pub struct Arrays {
    /// The arrays of numbers, by name.
    pub arrays: Vec<FileArray>,
    /// The others and links that lead nowhere: the name, and what it is.
    pub left_out: Vec<(String, String)>,
    /// Bytes of the file.
    pub bytes: u64,
}

/// Arrays with so many chunks at most are asked for all of them while their file is open.
const AT_ONCE: usize = 32;

/// h5py's LZF among the filters that the HDF Group has registered.
const LZF: i32 = 32000;

impl Arrays {
    /// Reads what a file says of its arrays, and none of their numbers.
    ///
    /// # Errors
    /// `Data`: no HDF5 file, or one that the library does not read.
    pub fn of(path: &Path) -> Result<Arrays> {
        if let Some(universe) = Universe::of(path) {
            let arrays =
                universe::ARRAYS.iter().filter_map(|name| FileArray::computed(path, &universe, name));
            return Ok(Arrays { arrays: arrays.collect(), left_out: Vec::new(), bytes: 0 });
        }
        let (file, source) = open(path)?;
        let mut arrays = Arrays { arrays: Vec::new(), left_out: Vec::new(), bytes: source.bytes };
        arrays.list(&source, &file).map_err(|error| Error::data(path, first_line(&error)))?;
        arrays.arrays.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(arrays)
    }

    /// Lists what all groups have. A group is listed once, by its own name where it has one: links may lead back.
    fn list(&mut self, source: &Arc<SourceFile>, file: &File) -> hdf5::Result<()> {
        let (mut groups, mut linked, mut listed) =
            (vec![(String::new(), file.group("/")?)], vec![], HashSet::new());
        while let Some((name, group)) = groups.pop().or_else(|| linked.pop()) {
            // Equal for the same group, by whatever name.
            let info = group.loc_info()?;
            if !listed.insert(format!("{} {:?}", info.fileno, info.token)) {
                self.left_out.push((name, "a group that is listed already".into()));
                continue;
            }
            for (link, info) in group.links(IndexType::Name, IterationOrder::Increasing)? {
                let whole = if name.is_empty() { link.clone() } else { format!("{name}/{link}") };
                match group.loc_type_by_name(&link) {
                    Ok(LocationType::Group) => {
                        let of = if info.link_type == LinkType::Hard { &mut groups } else { &mut linked };
                        of.push((whole, group.group(&link)?));
                    }
                    Ok(LocationType::Dataset) => {
                        let dataset = group.dataset(&link).map_err(|error| first_line(&error));
                        match dataset.and_then(|dataset| FileArray::from(source, &whole, &dataset)) {
                            Ok(array) => self.arrays.push(array),
                            Err(what) => self.left_out.push((whole, what)),
                        }
                    }
                    // A type that has a name is no array.
                    Ok(_) => {}
                    Err(_) => self.left_out.push((whole, "a link that leads nowhere".into())),
                }
            }
        }
        Ok(())
    }
}

/// Opens a file by the library. What is no HDF5 file is named as what it is.
fn open(path: &Path) -> Result<(File, Arc<SourceFile>)> {
    let wrong = |error: std::io::Error| Error::data(path, error);
    let (kept, read) = KeptFile::open(path).map_err(wrong)?;
    let bytes = read.metadata().map_err(wrong)?.len();
    let mut start = [0; 8];
    read.read_at(&mut start, 0).map_err(wrong)?;
    let file = File::open(path).map_err(|error| {
        let error = first_line(&error);
        let written =
            "another program writes it, or one that wrote it died; where none does, h5clear -s opens it";
        let classic =
            "a classic netCDF file, which is no HDF5; nccopy -k netCDF-4 OLD NEW makes one that can be read";
        match start {
            _ if ["open for write", "lock file"].iter().any(|word| error.contains(word)) => {
                Error::data(path, format!("{written}: {error}"))
            }
            [b'C', b'D', b'F', ..] => Error::data(path, classic),
            [137, b'H', b'D', b'F', ..] => Error::data(path, format!("a damaged HDF5 file: {error}")),
            _ => files::unreadable(path, "no HDF5 or netCDF-4 file".into()),
        }
    })?;
    let number = file.loc_info().map_err(|error| Error::data(path, first_line(&error)))?.fileno;
    let is_netcdf = file.attr("_NCProperties").is_ok();
    let source = SourceFile { path: path.to_path_buf(), kept: Some(kept), bytes, is_netcdf, number };
    Ok((file, Arc::new(source)))
}

fn first_line(error: &hdf5::Error) -> String {
    in_words_of_system(&error.to_string()).lines().next().unwrap_or_default().trim().into()
}

/// Where the places of an axis are, or samples on an axis that numbers them: of these as `f64`, since seconds from 1970
/// on are more than `f32` can tell apart.
#[derive(Debug)]
pub struct Coordinate<T> {
    /// What the axis is called.
    pub name: String,
    /// Where each is.
    pub places: Vec<T>,
    /// In which unit, where the files say it.
    pub unit: Option<String>,
    /// In which calendar (netCDF's), of samples.
    pub calendar: Option<String>,
    /// The axes that the places are on, with how many, where these are others than the one of its name.
    pub axes: Vec<(String, usize)>,
}

impl FileArray {
    /// # Errors
    /// `Data`: the file cannot be read, has no such array, or one that is not of numbers.
    pub fn open(path: &Path, name: &str) -> Result<FileArray> {
        let found = FileArray::several(path, [name])?.pop();
        found.unwrap_or_else(|| Err("no array".into())).map_err(|what| Error::data(path, what))
    }

    /// Some arrays of a file, which is opened once; of one that it does not have, or that is not of numbers, why.
    ///
    /// # Errors
    /// `Data`: the file cannot be read.
    pub fn several<'a>(
        path: &Path,
        names: impl IntoIterator<Item = &'a str>,
    ) -> Result<Vec<std::result::Result<FileArray, String>>> {
        if let Some(universe) = Universe::of(path) {
            let of = |name| FileArray::computed(path, &universe, name);
            return Ok(names
                .into_iter()
                .map(|name| of(name).ok_or_else(|| format!("it has no array {name}")))
                .collect());
        }
        let (file, source) = open(path)?;
        if source.kept.as_ref().is_some_and(KeptFile::is_locked) {
            let what = "another program has it open to write: train when that is done, or from a copy";
            return Err(Error::data(path, what));
        }
        let of = |name: &str| {
            let dataset = file.dataset(name).map_err(|error| match file.link_exists(name) {
                true => format!("its {name} cannot be opened: {}", first_line(&error)),
                false => format!("it has no array {name}; dltrain inspect says what it has"),
            })?;
            let array = FileArray::from(&source, name, &dataset);
            let array = array.map_err(|what| format!("{name} holds {what}"))?;
            if array.chunk_count() <= AT_ONCE {
                array.find(&dataset, 0..array.chunk_count()).map_err(|what| format!("{name}: {what}"))?;
            }
            Ok(array)
        };
        Ok(names.into_iter().map(of).collect())
    }

    /// Arrays as another rank has found them, of a file of so many bytes.
    pub fn found(arrays: Vec<FileArray>, path: &Path, bytes: u64) -> Vec<FileArray> {
        let kept = Some(KeptFile::named(path, bytes));
        let file = Arc::new(SourceFile { path: path.to_path_buf(), kept, bytes, ..SourceFile::default() });
        arrays.into_iter().map(|array| FileArray { file: file.clone(), ..array }).collect()
    }

    fn from(file: &Arc<SourceFile>, name: &str, dataset: &Dataset) -> std::result::Result<FileArray, String> {
        let library = |error: hdf5::Error| first_line(&error);
        let datatype = dataset.dtype().map_err(library)?;
        let shape = dataset.get_shape().map_err(library)?;
        if dataset.space().map_err(library)?.is_null() {
            return Err("nothing: it has no places (h5py.Empty)".into());
        }
        // In netCDF's words.
        if text(dataset, "NAME").is_some_and(|name| name.starts_with("This is a netCDF dimension but not a"))
        {
            return Err("nothing but how long an axis is (a netCDF dimension without a variable)".into());
        }
        let stored = library::element(&datatype)?;
        let Meaning { element, missing, packing, not_applied } =
            Meaning::of(dataset, stored, file.is_netcdf)?;
        let whole = shape.iter().try_fold(element.bytes(), |all, &extent| all.checked_mul(extent));
        whole.filter(|&all| all <= isize::MAX as usize).ok_or("more numbers than memory can have")?;
        let elsewhere = dataset.loc_info().map_err(library)?.fileno != file.number;
        let list = dataset.dcpl().map_err(library)?;
        let others: Vec<_> = list.filters().into_iter().filter(|filter| filter.id() != LZF).collect();
        if let Some(lacking) = lacking_filter(&others) {
            return Err(format!("numbers that were written with {lacking}"));
        }
        mapped::check_sources(dataset, &list)?;
        Ok(FileArray {
            name: name.into(),
            storage: match elsewhere {
                true => ArrayStorage::Library("it is in another file (an external link)".into()),
                false => storage(dataset, &list, element, shape.len()).map_err(library)?,
            },
            axes: axes(dataset, shape.len()),
            is_coordinate: text(dataset, "CLASS").is_some_and(|class| class == "DIMENSION_SCALE")
                || ["_bnds", "_bounds"].iter().any(|end| name.ends_with(end)),
            unit: text(dataset, "units"),
            gaps: Gaps::of(dataset, &list, &shape)?,
            is_unwrapped: element != stored,
            missing,
            packing,
            not_applied,
            id: another(),
            file: file.clone(),
            asked: AskedLibrary::default(),
            shape,
            element,
        })
    }

    /// An array of a universe, if it has one of this name.
    fn computed(path: &Path, universe: &Universe, name: &str) -> Option<FileArray> {
        let edge = universe.edge();
        let (shape, kind) = match universe::ARRAYS.iter().position(|of| *of == name)? {
            0 => (vec![edge, edge, edge, 4], NumberKind::I16),
            _ => (vec![4], NumberKind::F32),
        };
        Some(FileArray {
            name: name.into(),
            element: NumberType { kind, big_endian: false },
            storage: ArrayStorage::Computed(universe.clone()),
            axes: vec![String::new(); shape.len()],
            is_coordinate: false,
            unit: None,
            missing: Vec::new(),
            packing: None,
            not_applied: Vec::new(),
            is_unwrapped: false,
            gaps: Gaps::None,
            id: another(),
            file: Arc::new(SourceFile { path: path.to_path_buf(), ..SourceFile::default() }),
            asked: AskedLibrary::default(),
            shape,
        })
    }

    /// The file that it is in.
    pub fn path(&self) -> &Path {
        &self.file.path
    }

    /// An error of reading it.
    pub(super) fn wrong(&self, what: impl Display) -> Error {
        Error::data(self.path(), format!("{}: {what}", self.name))
    }

    /// Bytes of all its numbers, uncompressed.
    pub fn bytes(&self) -> u64 {
        self.shape.iter().product::<usize>() as u64 * self.element.bytes() as u64
    }

    /// Bytes that a reader of it holds, beside decoded chunks.
    pub fn buffer(&self) -> usize {
        match &self.storage {
            ArrayStorage::Chunked(..) => self.chunk_bytes(),
            ArrayStorage::Unwritten => 0,
            ArrayStorage::Computed(universe) => universe.scratch(),
            _ => (self.bytes() as usize).min(PIECE),
        }
    }

    /// Bytes of a decoded chunk, or of what else is kept; 0 where nothing is.
    pub fn chunk_bytes(&self) -> usize {
        match &self.storage {
            ArrayStorage::Chunked(chunk, _) => chunk.iter().product::<usize>() * self.element.bytes(),
            ArrayStorage::Computed(_) => self.bytes() as usize,
            _ => 0,
        }
    }

    /// How many chunks it has.
    pub fn chunk_count(&self) -> usize {
        match &self.storage {
            ArrayStorage::Chunked(chunk, _) => self.grid(chunk).iter().product(),
            _ => 0,
        }
    }

    /// A number that no other array of this process has.
    pub fn number(&self) -> u64 {
        self.id
    }

    /// Bytes that all chunks have in the file.
    pub fn stored_chunks(&self) -> u64 {
        let known = self.asked.chunks.read().unwrap_or_else(PoisonError::into_inner);
        match known.len() == self.chunk_count() {
            true => known.values().map(|chunk| chunk.bytes).sum(),
            false => self.stored().unwrap_or(0),
        }
    }

    /// The numbers of the chunks that a box has a part of.
    pub fn chunks_of(&self, window: &ArrayBox) -> Vec<usize> {
        match &self.storage {
            ArrayStorage::Chunked(chunk, _) => self.chunks_in(window, chunk),
            _ => Vec::new(),
        }
    }

    /// The same of chunks of this shape.
    pub(super) fn chunks_in(&self, window: &ArrayBox, chunk: &[usize]) -> Vec<usize> {
        let (ArrayBox { first, len }, grid) = (window, self.grid(chunk));
        let low: Vec<usize> = first.iter().zip(chunk).map(|(first, chunk)| first / chunk).collect();
        let count = |axis: usize| (first[axis] + len[axis]).div_ceil(chunk[axis]) - low[axis];
        let along: Vec<usize> = (0..len.len()).map(count).collect();
        let number = |step: Vec<usize>| {
            (0..grid.len()).fold(0, |number, axis| number * grid[axis] + low[axis] + step[axis])
        };
        (0..along.iter().product()).map(|step| number(place_in(&along, step))).collect()
    }

    /// Bytes that it takes in the file, where they can be told.
    pub fn stored(&self) -> Option<u64> {
        match &self.storage {
            ArrayStorage::Contiguous(_) => Some(self.bytes()),
            ArrayStorage::Chunked(..) => self.dataset().ok().map(|dataset| dataset.storage_size()),
            ArrayStorage::Unwritten | ArrayStorage::Computed(_) => Some(0),
            ArrayStorage::Library(_) => None,
        }
    }

    /// How many chunks lie along each axis.
    pub(super) fn grid(&self, chunk: &[usize]) -> Vec<usize> {
        self.shape.iter().zip(chunk).map(|(extent, chunk)| extent.div_ceil(*chunk)).collect()
    }

    /// Where a chunk lies, by its number in the order of their places. The library is asked once for each: before 1.14
    /// it goes through all chunks to find one.
    ///
    /// # Errors
    /// `Data`: it does not say it.
    pub(super) fn chunk(&self, number: usize) -> Result<StoredChunk> {
        /// Arrays with so many chunks at most are asked for all at once, and the library's file is closed again: there
        /// may be thousands of files.
        const FEW: usize = 256;
        if let Some(chunk) = self.asked.chunks.read().unwrap_or_else(PoisonError::into_inner).get(&number) {
            return Ok(*chunk);
        }
        let all = self.chunk_shape().map_or(0, |chunk| self.grid(chunk).iter().product());
        let found = match all <= FEW {
            true => self.opened().and_then(|dataset| self.find(&dataset, 0..all)),
            false => self.dataset().and_then(|dataset| self.find(dataset, number..number + 1)),
        };
        found.map_err(|what| self.wrong(what))?;
        let chunks = self.asked.chunks.read().unwrap_or_else(PoisonError::into_inner);
        Ok(chunks.get(&number).copied().unwrap_or_default())
    }

    /// The shape of its chunks; of those that the library reads where some were never written.
    fn chunk_shape(&self) -> Option<&[usize]> {
        match (&self.storage, &self.gaps) {
            (ArrayStorage::Chunked(chunk, _), _) | (_, Gaps::Chunks(chunk, _)) => Some(chunk),
            _ => None,
        }
    }

    /// Asks the library where some chunks lie.
    fn find(&self, dataset: &Dataset, numbers: Range<usize>) -> std::result::Result<(), String> {
        let Some(shape) = self.chunk_shape() else { return Ok(()) };
        let grid = self.grid(shape);
        let of = |number: usize| {
            let place = place_in(&grid, number);
            let first = place.iter().zip(shape).map(|(place, along)| (place * along) as u64);
            library::chunk(dataset, &first.collect::<Vec<u64>>()).map(|chunk| (number, chunk))
        };
        let found = numbers.map(of).collect::<std::result::Result<Vec<_>, _>>()?;
        self.asked.chunks.write().unwrap_or_else(PoisonError::into_inner).extend(found);
        Ok(())
    }

    fn opened(&self) -> std::result::Result<Dataset, String> {
        let dataset = File::open(self.path()).and_then(|file| file.dataset(&self.name));
        dataset.map_err(|error| first_line(&error))
    }

    fn dataset(&self) -> std::result::Result<&Dataset, String> {
        self.asked.dataset.get_or_init(|| self.opened()).as_ref().map_err(String::clone)
    }

    /// All numbers of an array of one axis, which stand for where its places are, unrounded; and their calendar, where
    /// the file says it.
    ///
    /// # Errors
    /// `Data`.
    pub fn exact(&self) -> Result<(Vec<f64>, Option<String>)> {
        let dataset = self.opened().map_err(|what| self.wrong(what))?;
        let mut numbers = dataset.read_raw::<f64>().map_err(|error| self.wrong(first_line(&error)))?;
        let (scale, offset) = self.packing.unwrap_or((1.0, 0.0));
        for number in &mut numbers {
            let meant = if self.is_unwrapped { unwrapped(*number, self.element) } else { *number };
            *number = meant * scale + offset;
        }
        Ok((numbers, text(&dataset, "calendar")))
    }

    /// The array of its file that says where the places of an axis are.
    pub fn coordinate(&self, axis: usize) -> Option<FileArray> {
        let name = self.axes.get(axis).filter(|name| !name.is_empty())?;
        self.beside(name).filter(|of| of.shape == [self.shape[axis]])
    }

    /// The array of this name in its own group or one above it.
    fn beside(&self, name: &str) -> Option<FileArray> {
        let groups = self.name.rmatch_indices('/').map(|(at, _)| &self.name[..=at]).chain([""]);
        groups.flat_map(|group| FileArray::open(self.path(), &format!("{group}{name}"))).next()
    }

    /// The array of this name, if its attribute `coordinates` has it.
    pub fn auxiliary(&self, name: &str) -> Option<FileArray> {
        self.auxiliaries().iter().find(|of| *of == name).and_then(|of| self.beside(of))
    }

    /// What its attribute `coordinates` names: arrays of other axes that say where its places are, as latitudes do of a
    /// grid that is turned. Source: CF conventions, auxiliary coordinate variables.
    pub fn auxiliaries(&self) -> Vec<String> {
        let names = self.opened().ok().and_then(|dataset| text(&dataset, "coordinates"));
        names.unwrap_or_default().split_whitespace().map(String::from).collect()
    }

    /// Bytes of the file that it is in.
    pub fn file_bytes(&self) -> u64 {
        self.file.bytes
    }

    /// Makes of numbers as the file has them what they stand for; NaN of those that stand for none.
    pub fn meanings(&self, numbers: &mut [f32]) {
        for &missing in &self.missing {
            let missing = missing as f32;
            numbers.iter_mut().filter(|number| **number == missing).for_each(|number| *number = f32::NAN);
        }
        if let Some((scale, offset)) = self.packing {
            numbers.iter_mut().for_each(|number| *number = (f64::from(*number) * scale + offset) as f32);
        }
    }

    /// Whether numbers can be handed on as codes of 8 or 16 bits (`FileNumber`), which stand for the same as those of
    /// another array.
    pub fn has_codes_of(&self, other: &FileArray) -> bool {
        let bits = |array: &FileArray| {
            let missing: Vec<u64> = array.missing.iter().map(|number| number.to_bits()).collect();
            (missing, array.packing.map(|(scale, offset)| [scale.to_bits(), offset.to_bits()]))
        };
        let is_read = !matches!(self.storage, ArrayStorage::Library(_)) && self.element.bytes() <= 2;
        is_read
            && self.element.kind == other.element.kind
            && self.gaps == Gaps::None
            && bits(self) == bits(other)
    }

    /// All numbers of a window, by the library, in the array's order; NaN of those that were never written.
    ///
    /// # Errors
    /// `Data`.
    pub(super) fn by_library(&self, window: &ArrayBox) -> Result<Vec<f32>> {
        let dataset = self.dataset().map_err(|what| self.wrong(what))?;
        // What is added belongs to the numbers before they are rounded.
        let unwrapped = |number| unwrapped(number, self.element) as f32;
        let numbers = match self.is_unwrapped {
            true => {
                self.in_window(dataset, window).map(|numbers| numbers.into_iter().map(unwrapped).collect())
            }
            false => self.in_window(dataset, window),
        };
        let mut numbers = numbers.map_err(|error| self.wrong(first_line(&error)))?;
        self.mark(window, &mut numbers)?;
        Ok(numbers)
    }

    fn in_window<T: H5Type>(&self, dataset: &Dataset, window: &ArrayBox) -> hdf5::Result<Vec<T>> {
        if self.shape.is_empty() {
            return Ok(vec![dataset.as_reader().read_scalar::<T>()?]);
        }
        let slices = window.first.iter().zip(&window.len).map(|(&first, &len)| (first..first + len).into());
        let selection = hdf5::Hyperslab::new(slices.collect::<Vec<hdf5::SliceOrIndex>>());
        let numbers = dataset.as_reader().read_slice::<T, _, ndarray::IxDyn>(selection)?;
        Ok(numbers.into_raw_vec_and_offset().0)
    }
}

/// JSON has no NaN.
fn numbers_or_nan<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<Vec<f64>, D::Error> {
    let numbers: Vec<Option<f64>> = Vec::deserialize(from)?;
    Ok(numbers.into_iter().map(|number| number.unwrap_or(f64::NAN)).collect())
}

/// A number that no other array has.
fn another() -> u64 {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    COUNT.fetch_add(1, Ordering::Relaxed)
}

/// Where the bytes of a dataset lie.
fn storage(
    dataset: &Dataset,
    list: &DatasetCreate,
    element: NumberType,
    axes: usize,
) -> hdf5::Result<ArrayStorage> {
    let by = |why: &str| Ok(ArrayStorage::Library(why.into()));
    if dataset.file()?.userblock() > 0 {
        // Versions of the library differ in whether they count it in a chunk's place.
        return by("something else stands in front of the file (a user block)");
    }
    match list.layout() {
        Layout::Contiguous if !list.external().is_empty() => {
            by("its numbers are in other files (external storage)")
        }
        Layout::Contiguous => Ok(dataset.offset().map_or(ArrayStorage::Unwritten, ArrayStorage::Contiguous)),
        Layout::Compact => by("its numbers are in its header (compact)"),
        Layout::Virtual => by("it is put together of other arrays (virtual)"),
        Layout::Chunked => {
            let Some(chunk) = list.chunk().filter(|chunk| chunk.len() == axes && !chunk.contains(&0)) else {
                return by("its chunks have another shape");
            };
            let bytes = chunk.iter().try_fold(element.bytes(), |all, &extent| all.checked_mul(extent));
            if bytes.is_none_or(|bytes| bytes >= 1 << 32) {
                return by("its chunks are larger than the format has them");
            }
            let given = list.filters();
            if !given.is_empty()
                && list.chunk_opts().is_some_and(|of| of.contains(ChunkOpts::DONT_FILTER_PARTIAL_CHUNKS))
            {
                return by("its chunks at the edges are not filtered");
            }
            let mut filters = Vec::new();
            for filter in given {
                filters.push(match filter {
                    hdf5::filters::Filter::Deflate(_) => Filter::Deflate,
                    hdf5::filters::Filter::Shuffle => Filter::Shuffle,
                    hdf5::filters::Filter::Fletcher32 => Filter::Fletcher32,
                    hdf5::filters::Filter::User(LZF, _) => Filter::Lzf,
                    other => return by(&format!("the filter {other:?}")),
                });
            }
            let compressing = |filter: &&Filter| matches!(filter, Filter::Deflate | Filter::Lzf);
            if filters.iter().filter(compressing).count() > 1 {
                return by("it is compressed twice");
            }
            Ok(ArrayStorage::Chunked(chunk, filters))
        }
    }
}

/// A filter that this HDF5 library lacks, in words.
pub fn lacking_filter(filters: &[hdf5::filters::Filter]) -> Option<String> {
    use hdf5::filters::Filter;
    /// Its number, which the crate does not name.
    const SZIP: hdf5::filters::H5Z_filter_t = 4;
    filters.iter().find_map(|filter| match filter {
        Filter::User(id, _) if !Filter::get_info(*id).is_available => Some(match *id {
            LZF => "lzf, which is read in arrays and not in weights".into(),
            32001 => "Blosc, a plug-in of HDF5 that is not here".into(),
            id => format!("filter {id}, a plug-in of HDF5 that is not here"),
        }),
        Filter::SZip(..) if !Filter::get_info(SZIP).is_available => Some("szip, which is not here".into()),
        _ => None,
    })
}
