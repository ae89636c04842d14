//! Files of weights: safetensors, HDF5 with a data set for each tensor, and what ONNX files have beside their network.
//! Names and shapes are PyTorch's (`state_dict`), so that what torchvision saved can be trained here and what was
//! trained here loads there.

use std::collections::HashMap;
use std::fmt::Display;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use hdf5::types::{TypeDescriptor, VarLenUnicode};
use safetensors::tensor::{Dtype, Metadata};

use super::checkpoint::{Array, StoredCheckpoint};
use super::file::text;
use super::names;
use super::read::RunRecord;
use super::safetensors_file::{self, BATCHES, WAYS};
use crate::config::SampleShape;
use crate::error::{Error, OrError, Result};
use crate::fields::lacking_filter;
use crate::files::{self, KeptFile, crc32_from, write_new, write_whole};
use crate::model::onnx::export::TensorValues;
use crate::model::{self, CLASS_NAMES, FIELDS, LearnedArray, Model, PREPROCESSING, Preprocessing, SAMPLE};

/// Where the directory of a run's checkpoints says which file of weights is the run's.
const NOTE: &str = ".weights";
/// Bytes of the longest such note.
const LONGEST_NOTE: u64 = 1 << 16;
/// What says of an HDF5 file that its links are tensors' names, percent-encoded; without it groups are parts of names.
const ENCODED: [&str; 2] = ["names", "percent-encoded"];

/// What a file says of a network besides its weights.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ModelMetadata {
    /// What the classes are called, in the order of the scores; empty where it does not say.
    pub class_names: Vec<String>,
    /// What the network expects of its images, where that is known.
    pub preprocessing: Option<Preprocessing>,
    /// By what the arrays were rescaled that it reads and gives, where it is no network of pictures.
    pub fields: Vec<LearnedArray>,
    /// What it was given of each sample of these arrays.
    pub sample: Option<SampleShape>,
}

impl ModelMetadata {
    /// From the texts of a file, by their names.
    ///
    /// # Errors
    /// `Data` where what it says cannot be.
    pub fn read(path: &Path, text: impl Fn(&str) -> String) -> Result<ModelMetadata> {
        let preprocessing = Preprocessing::from_text(&text(PREPROCESSING));
        Ok(ModelMetadata {
            class_names: serde_json::from_str(&text(CLASS_NAMES)).unwrap_or_default(),
            preprocessing: preprocessing.or_data(path)?,
            fields: LearnedArray::from_text(&text(FIELDS)).or_data(path)?,
            sample: sample_of(&text(SAMPLE)).or_data(path)?,
        })
    }

    /// What it says as texts, each with its name.
    pub fn texts(&self) -> Vec<(&'static str, String)> {
        let names = (!self.class_names.is_empty()).then(|| serde_json::json!(self.class_names).to_string());
        let preprocessing = self.preprocessing.as_ref().map(Preprocessing::to_text);
        let fields = (!self.fields.is_empty()).then(|| serde_json::json!(self.fields).to_string());
        let sample = self.sample.map(|sample| serde_json::json!(sample[..]).to_string());
        let all = [(CLASS_NAMES, names), (PREPROCESSING, preprocessing), (FIELDS, fields), (SAMPLE, sample)];
        all.into_iter().filter_map(|(name, text)| Some((name, text?))).collect()
    }
}

/// What a file says of the shape of a sample; `None` where it says nothing.
fn sample_of(text: &str) -> std::result::Result<Option<SampleShape>, String> {
    let wrong = || format!("what it says of the shape of a sample ({SAMPLE}) cannot be: {text}");
    if text.is_empty() {
        return Ok(None);
    }
    let extents: Vec<usize> = serde_json::from_str(text).map_err(|_| wrong())?;
    let sample = SampleShape::of(&extents).filter(|sample| !sample.contains(&0));
    sample.map(Some).ok_or_else(wrong)
}

/// A file of weights, opened: names and shapes are known, values are read one tensor at a time.
pub struct WeightsFile {
    path: PathBuf,
    content: Content,
    /// Names and shapes of every tensor of real numbers, in the order of their names.
    shapes: Vec<(String, Vec<usize>)>,
    /// What else has a name, with its type.
    unread: Vec<(String, String)>,
    about: ModelMetadata,
}

enum Content {
    SafeTensors(SafeTensorsFile),
    /// By name.
    Hdf5(Hdf5Sets),
    /// By name, the number of the array.
    Checkpoint(StoredCheckpoint, HashMap<String, usize>),
    /// What a network came with.
    Network(Model),
}

type Hdf5Sets = HashMap<String, hdf5::Dataset>;

/// A file of safetensors, of which one tensor at a time is in memory.
struct SafeTensorsFile {
    file: KeptFile,
    header: Metadata,
    /// Where the first tensor begins.
    start: u64,
}

impl WeightsFile {
    /// # Errors
    /// `Data` when the file cannot be read or is none of safetensors, HDF5 and ONNX.
    pub fn open(path: &Path) -> Result<WeightsFile> {
        if model::is_file(&path.to_string_lossy()) {
            return model::open(path).map(|model| WeightsFile::of(&model));
        }
        let mut head = [0u8; 128];
        let read = files::open(path).and_then(|mut file| file.read(&mut head));
        read.map_err(|error| Error::data(path, format!("cannot read the weights: {error}")))?;
        let mut file = match &head[..8] {
            b"\x89HDF\r\n\x1a\n" => open_hdf5(path)?,
            // A checkpoint says so in front of the HDF5.
            b"dltrain " => open_checkpoint(path)?,
            _ => match other_format(&head) {
                Some(what) => return Err(Error::data(path, what)),
                None => open_safetensors(path)?,
            },
        };
        file.shapes.sort();
        Ok(file)
    }

    /// What the network of an ONNX file came with, under the names that it has in the network. Without a file there is
    /// nothing.
    pub fn of(model: &Model) -> WeightsFile {
        let named = |file: &model::onnx::OnnxFile| {
            file.weights().iter().map(|w| (w.name.clone(), w.shape.clone())).collect()
        };
        let mut shapes: Vec<(String, Vec<usize>)> = model.file().map_or_else(Vec::new, named);
        shapes.sort();
        let path = model.file().map_or_else(PathBuf::new, |file| file.path().into());
        let content = Content::Network(model.clone());
        let about = model.file().map_or_else(ModelMetadata::default, |file| ModelMetadata {
            class_names: file.class_names().to_vec(),
            preprocessing: file.preprocessing().cloned(),
            fields: file.fields().to_vec(),
            sample: (!file.fields().is_empty()).then_some(model.image),
        });
        WeightsFile { path, content, shapes, unread: Vec::new(), about }
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// CRC-32 of the file, for ranks to compare: each reads its own copy.
    ///
    /// # Errors
    /// `Data` when the file can no longer be read.
    pub fn checksum(&self) -> Result<u32> {
        if let Content::Network(model) = &self.content {
            return Ok(model.file().map_or(0, model::onnx::OnnxFile::checksum));
        }
        let sum = files::open(&self.path).and_then(|file| crc32_from(&file, 0));
        sum.map_err(|error| Error::data(&self.path, format!("cannot read the weights: {error}")))
    }

    /// Name and shape of every tensor, in the order of their names.
    pub fn shapes(&self) -> &[(String, Vec<usize>)] {
        &self.shapes
    }

    /// What it says of the network besides.
    pub fn about(&self) -> &ModelMetadata {
        &self.about
    }

    /// Name and type of everything that is no tensor of real numbers, and whose values are not to be had.
    pub fn unread(&self) -> &[(String, String)] {
        &self.unread
    }

    /// The numbers of a tensor, as f32 whatever the file has, last dimension fastest.
    ///
    /// # Errors
    /// `Data` when there is no such tensor or it cannot be read.
    pub fn values(&self, name: &str) -> Result<Vec<f32>> {
        let wrong = |error: &dyn Display| Error::data(&self.path, format!("tensor {name}: {error}"));
        match &self.content {
            Content::SafeTensors(SafeTensorsFile { file, header, start }) => {
                let tensor = header.info(name).ok_or_else(|| wrong(&"is not there"))?;
                let (first, end) = tensor.data_offsets;
                let mut bytes = vec![0; end - first];
                file.read_exact_at(&mut bytes, start + first as u64).map_err(|e| wrong(&e))?;
                let values = numbers(tensor.dtype, &bytes);
                values.ok_or_else(|| wrong(&format!("holds {:?}, no real numbers", tensor.dtype)))
            }
            Content::Network(model) => {
                model.file().ok_or_else(|| wrong(&"is not there")).and_then(|file| file.values(name))
            }
            Content::Hdf5(sets) => {
                let set = sets.get(name).ok_or_else(|| wrong(&"is not there"))?;
                set.read_raw::<f32>().map_err(|e| match lacking_filter(&set.filters()) {
                    Some(filter) => wrong(&format!("is compressed with {filter}; {REWRITTEN}")),
                    None => wrong(&e),
                })
            }
            Content::Checkpoint(stored, arrays) => {
                let which = *arrays.get(name).ok_or_else(|| wrong(&"is not there"))?;
                let values = stored.values(which)?;
                let array = &stored.head.arrays[which];
                Ok(if is_of_each_rank(array) { array.mean_over_ranks(&values) } else { values })
            }
        }
    }
}

/// What is said of a file that begins as other formats do which are taken for weights. A safetensors file begins with
/// the length of its header, of which the upper half is 0.
fn other_format(head: &[u8]) -> Option<String> {
    let pickle =
        || format!("is a PyTorch pickle, which can hold programs and is not read; in Python: {FROM_PICKLE}");
    Some(match &head[..head.len().min(8)] {
        [b'P', b'K', 3, 4, ..] if is_numpy(head) => {
            format!("is an archive of NumPy arrays; in Python: {FROM_NUMPY}")
        }
        [b'P', b'K', 3, 4, ..] => pickle(),
        [0x93, b'N', b'U', b'M', b'P', b'Y', ..] => {
            "is one array of NumPy, and weights have a name each; put these into safetensors or HDF5".into()
        }
        [0, 0, 0, 0, 0, 0, 0, 0] => format!("is neither HDF5 nor safetensors; {}", files::ZEROS),
        [.., 0, 0, 0, 0] => return None,
        [0x80, 2..=5, ..] => pickle(),
        [b'{', ..] => {
            "is a JSON text, such as lists the parts of a model in several files; put these into one".into()
        }
        [0x1f, 0x8b, ..] => "is compressed with gzip; gunzip it first".into(),
        other => return files::stand_in(other).map(Into::into),
    })
}

/// Whether the first member of this zip archive is called as `numpy.savez` calls an array.
fn is_numpy(zip: &[u8]) -> bool {
    let Some(&[low, high]) = zip.get(26..28) else { return false };
    let name = 30..30 + usize::from(u16::from_le_bytes([low, high]));
    zip.get(name).is_some_and(|name| name.ends_with(b".npy"))
}

const FROM_NUMPY: &str = "import numpy; from safetensors.numpy import save_file; \
     save_file({k: numpy.ascontiguousarray(v) for k, v in numpy.load(\"FILE\").items()}, \"weights.safetensors\")";

/// What makes safetensors of a PyTorch pickle: of a `state_dict`, or of one beside an epoch and an optimizer, by
/// whatever name. Tensors that share memory are copied, which the library wants.
const FROM_PICKLE: &str = "import torch; from safetensors.torch import save_file; \
     w = torch.load(\"FILE\", map_location=\"cpu\", weights_only=True); \
     has = lambda d: isinstance(d, dict) and any(map(torch.is_tensor, d.values())); \
     w = next((w[k] for k in (\"state_dict\", \"model_state_dict\", \"model\") if k in w), w); \
     w = w if has(w) else next(filter(has, w.values()), w); \
     save_file({k: t.clone().contiguous() for k, t in w.items() if torch.is_tensor(t)}, \"weights.safetensors\")";

fn open_safetensors(path: &Path) -> Result<WeightsFile> {
    let wrong = |error: &dyn Display| {
        Error::data(path, format!("is neither HDF5 nor a whole safetensors file: {error}"))
    };
    let content = safetensors_file(path).map_err(|e| wrong(&e))?;
    let (mut shapes, mut unread) = (Vec::new(), Vec::new());
    for (name, tensor) in content.header.tensors() {
        match width(tensor.dtype) {
            Some(_) => shapes.push((name, tensor.shape.clone())),
            None => unread.push((name, format!("{:?}", tensor.dtype))),
        }
    }
    let said = content.header.metadata().clone().unwrap_or_default();
    let about = ModelMetadata::read(path, |name| said.get(name).cloned().unwrap_or_default())?;
    Ok(WeightsFile { path: path.into(), content: Content::SafeTensors(content), shapes, unread, about })
}

/// Reads the header. The tensors behind it fill the file to its end.
fn safetensors_file(path: &Path) -> io::Result<SafeTensorsFile> {
    /// The format's own limit.
    const LONGEST: u64 = 100_000_000;
    let (file, opened) = KeptFile::open(path)?;
    let (whole, mut length) = (opened.metadata()?.len(), [0; 8]);
    file.read_exact_at(&mut length, 0)?;
    let length = u64::from_le_bytes(length);
    let start = length.saturating_add(8);
    if length > LONGEST || start > whole {
        return Err(io::Error::other("invalid header length"));
    }
    let mut text = vec![0; length as usize];
    file.read_exact_at(&mut text, 8)?;
    let header: Metadata = serde_json::from_slice(&text)?;
    match start + header.data_len() as u64 == whole {
        true => Ok(SafeTensorsFile { file, header, start }),
        false => Err(io::Error::other("incomplete metadata, file not fully covered")),
    }
}

/// Bytes of one number; `None` for what is no real number.
fn width(dtype: Dtype) -> Option<usize> {
    match dtype {
        Dtype::BF16 | Dtype::F16 => Some(2),
        Dtype::F32 => Some(4),
        Dtype::F64 => Some(8),
        _ => None,
    }
}

fn numbers(dtype: Dtype, bytes: &[u8]) -> Option<Vec<f32>> {
    let words = bytes.chunks_exact(width(dtype)?);
    Some(match dtype {
        Dtype::BF16 => words.map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
        Dtype::F16 => words.map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
        Dtype::F32 => words.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
        _ => words
            .map(|b| f64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]) as f32)
            .collect(),
    })
}

fn open_hdf5(path: &Path) -> Result<WeightsFile> {
    let wrong = |error: hdf5::Error| Error::data(path, format!("cannot read the weights: {error}"));
    let file = hdf5::File::open(path).map_err(wrong)?;
    let (mut sets, mut unread) = (Hdf5Sets::new(), Vec::new());
    if let Ok(record) = RunRecord::open(path) {
        return Err(Error::data(path, record.has_no_weights()));
    }
    let said = |name: &str| file.attr(name).and_then(|said| said.read_scalar::<VarLenUnicode>());
    // A results file that is damaged has series still, not weights.
    if said("format").is_err() {
        collect(&file, "", DEEPEST, &mut sets, &mut unread).map_err(wrong)?;
    }
    if said(ENCODED[0]).is_ok_and(|said| said.as_str() == ENCODED[1]) {
        sets = sets.into_iter().map(|(link, set)| (names::name_of(&link), set)).collect();
        unread.iter_mut().for_each(|(link, _)| *link = names::name_of(link));
    }
    if sets.is_empty() && unread.is_empty() {
        return Err(Error::data(path, "holds no weights"));
    }
    let size = file.size();
    if let Some((name, set)) = sets.iter().find(|(_, set)| !fits(set, size)) {
        let what =
            format!("tensor {name}: {:?} numbers, more than a file of {size} bytes can hold", set.shape());
        return Err(Error::data(path, what));
    }
    let shapes = sets.iter().map(|(name, set)| (name.clone(), set.shape())).collect();
    let about =
        ModelMetadata::read(path, |name| said(name).map(|text| text.to_string()).unwrap_or_default())?;
    Ok(WeightsFile { path: path.into(), content: Content::Hdf5(sets), shapes, unread, about })
}

/// How weights are written anew without compression; h5py has lzf, hdf5plugin the other filters.
const REWRITTEN: &str = "in Python: import h5py (for plug-ins also hdf5plugin); \
     old, new = h5py.File(\"FILE\"), h5py.File(\"plain.h5\", \"w\"); \
     old.visititems(lambda k, d: new.__setitem__(k, d[()]) if isinstance(d, h5py.Dataset) else None); \
     new.attrs.update(old.attrs); new.close()";

/// Groups within groups that are looked into. One that holds itself has no end.
const DEEPEST: usize = 16;

/// Deflate writes no more than this for one byte.
const BEST_COMPRESSION: u64 = 1032;

/// Whether a file of so many bytes can hold so many numbers: memory is taken for those that do.
fn fits(set: &hdf5::Dataset, size: u64) -> bool {
    let one = set.dtype().map_or(size_of::<f32>(), |dtype| dtype.size()) as u64;
    let elements = set.shape().iter().try_fold(one, |bytes, &extent| bytes.checked_mul(extent as u64));
    let most = if set.is_chunked() { size.saturating_mul(BEST_COMPRESSION) } else { size };
    elements.is_some_and(|bytes| bytes <= most)
}

/// The weights of a checkpoint that would be tested.
fn open_checkpoint(path: &Path) -> Result<WeightsFile> {
    let stored = StoredCheckpoint::open(path)?;
    let mut arrays = HashMap::new();
    // The moving average is there where it is what evaluation uses.
    for part in ["parameters/", "average/", "statistics/"] {
        for (which, array) in stored.head.arrays.iter().enumerate() {
            if let Some(name) = array.path.strip_prefix(part) {
                arrays.insert(name.to_string(), which);
            }
        }
    }
    let shape = |array: &Array| array.shape[usize::from(is_of_each_rank(array))..].to_vec();
    let shapes =
        arrays.iter().map(|(name, &which)| (name.clone(), shape(&stored.head.arrays[which]))).collect();
    let about = ModelMetadata::read(path, |name| stored.head.text(name).to_string())?;
    Ok(WeightsFile {
        path: path.into(),
        content: Content::Checkpoint(stored, arrays),
        shapes,
        unread: Vec::new(),
        about,
    })
}

/// Running statistics in a checkpoint: those of every rank, of which evaluation uses the means.
fn is_of_each_rank(array: &Array) -> bool {
    array.path.starts_with("statistics/") && array.shape.len() == 2
}

/// Every data set below a group, by its path with dots between the parts: those of real numbers, and the types of
/// others.
fn collect(
    group: &hdf5::Group,
    prefix: &str,
    deeper: usize,
    into: &mut Hdf5Sets,
    unread: &mut Vec<(String, String)>,
) -> hdf5::Result<()> {
    // By their links: of several that lead to one data set, as shared weights have them, each is a name.
    for link in group.member_names()? {
        let name = if prefix.is_empty() { link.clone() } else { format!("{prefix}.{link}") };
        match group.dataset(&link) {
            Ok(set) => match other_type(&set) {
                None => _ = into.insert(name, set),
                Some(other) => unread.push((name, other)),
            },
            Err(_) => match group.group(&link) {
                Ok(inner) if deeper > 0 => collect(&inner, &name, deeper - 1, into, unread)?,
                Ok(_) => {}
                Err(_) => unread.push((name, "a link that leads nowhere".into())),
            },
        }
    }
    Ok(())
}

/// What a type is called that is none of real numbers; `None` for those which the HDF5 library makes f32 of: f32, f64,
/// and those of two bytes (f16, bf16), for which this interface to it has no word.
fn other_type(set: &hdf5::Dataset) -> Option<String> {
    if set.space().is_ok_and(|space| space.is_null()) {
        return Some("without values".into());
    }
    let Ok(dtype) = set.dtype() else { return Some("another type".into()) };
    match dtype.to_descriptor() {
        Ok(TypeDescriptor::Float(_)) => None,
        Ok(other) => Some(other.to_string()),
        // Integers of two bytes have one.
        Err(_) if dtype.size() == 2 && dtype.conv_to::<f32>().is_some() => None,
        Err(_) => Some("another type".into()),
    }
}

/// What of the unread is lost where the others are copied, in words: not what `write_weights` makes anew.
pub fn left_out(unread: &[(String, String)]) -> Option<String> {
    let lost = unread.iter().filter(|(name, _)| !name.ends_with(BATCHES) && !name.ends_with(WAYS[1]));
    let lost: Vec<String> = lost.map(|(name, dtype)| format!("{name} ({dtype})")).collect();
    let more = if lost.len() > 5 { ", …" } else { "" };
    let first = lost.iter().take(5).cloned().collect::<Vec<_>>().join(", ");
    (!lost.is_empty())
        .then(|| format!("{} left out, which are no real numbers that are read: {first}{more}", lost.len()))
}

/// Writes tensors of these names and shapes as safetensors, or as HDF5 where the name of the file ends in .h5 or .hdf5.
/// `values` is asked for one tensor after the other, so that no two need be in memory. What is written has another
/// name until it is whole. Every normalisation (`X.running_mean`) gets the counter that PyTorch wants to find in a
/// safetensors file. What is known of the network besides is there too.
///
/// # Errors
/// `Output` when the file cannot be written or is there already; those of `values`.
pub fn write_weights(
    path: &Path,
    shapes: &[(String, Vec<usize>)],
    about: &ModelMetadata,
    values: TensorValues,
    of: Option<OfRun>,
) -> Result<()> {
    let earlier = of.and_then(|of| sum_of_run(of, path));
    if earlier.is_none() {
        check_new(path)?;
    }
    names::check_names(path, shapes.iter().map(|(name, _)| name.as_str()))?;
    let write = if is_hdf5(path) { write_hdf5 } else { safetensors_file::write };
    let wrong = |error: &dyn Display| Error::output(path, format!("cannot write the weights: {error}"));
    let write = |new: &Path| {
        write(new, shapes, about, values, &wrong)?;
        of.map_or(Ok(()), |of| note(of, path, new, earlier))
    };
    match earlier {
        None => write_new(path, "the weights", write),
        Some(_) => write_whole(path, "the weights", write),
    }
}

/// The directory of a run's checkpoints, and the run's name: the file that it wrote there is replaced where it goes on
/// and writes it again.
pub type OfRun<'a> = (&'a Path, &'a str);
/// The name of a run, and a file of weights that it wrote: where, and its CRC-32, now and before.
type RunNote = (String, PathBuf, Vec<u32>);

/// Notes, before a file of weights has its name, that it is a run's.
fn note((directory, run): OfRun, path: &Path, new: &Path, earlier: Option<u32>) -> Result<()> {
    let wrong = |error: std::io::Error| Error::output(path, format!("cannot note whose it is: {error}"));
    let sum = files::open(new).and_then(|file| crc32_from(&file, 0)).map_err(wrong)?;
    let note: RunNote = (run.into(), absolute(path), [sum].into_iter().chain(earlier).collect());
    let text = serde_json::to_string(&note).map_err(|error| wrong(error.into()))?;
    write_whole(&directory.join(NOTE), "whose the weights are", |to| std::fs::write(to, &text).map_err(wrong))
}

/// The CRC-32 of a file of weights that this run wrote, as the directory of its checkpoints has it.
fn sum_of_run((directory, run): OfRun, path: &Path) -> Option<u32> {
    let text = files::read_text(&directory.join(NOTE), LONGEST_NOTE).ok()?;
    let (of, at, sums): RunNote = serde_json::from_str(&text).ok()?;
    let sum = crc32_from(&files::open(path).ok()?, 0).ok()?;
    (of == run && at == absolute(path) && sums.contains(&sum)).then_some(sum)
}

/// A path that means the same in every directory.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.into())
}

/// Whether weights can be written at `path`, which this process owns from now on: a new file, or in place of what this
/// run wrote there before.
///
/// # Errors
/// As for `check_new`.
pub fn check_weights(path: &Path, of: Option<OfRun>) -> Result<()> {
    match of.and_then(|of| sum_of_run(of, path)) {
        Some(_) => files::own(path, "choose another name"),
        None => check_new(path),
    }
}

/// Makes an error of another library's.
pub type ErrorOf<'a> = &'a dyn Fn(&dyn Display) -> Error;

/// Whether a new file can be made at `path`, which this process owns from now on.
///
/// # Errors
/// `Output` when it is there already or another's, or its directory is not or cannot be written.
pub fn check_new(path: &Path) -> Result<()> {
    super::path::claim(path, "name")
}

/// Whether a file of this name is HDF5.
pub fn is_hdf5(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "h5" || extension == "hdf5")
}

fn write_hdf5(
    path: &Path,
    shapes: &[(String, Vec<usize>)],
    about: &ModelMetadata,
    values: TensorValues,
    wrong: ErrorOf,
) -> Result<()> {
    let file = hdf5::File::create(path).map_err(|e| wrong(&e))?;
    for (name, said) in about.texts() {
        text(&file, name, &said).map_err(|e| wrong(&e))?;
    }
    text(&file, ENCODED[0], ENCODED[1]).map_err(|e| wrong(&e))?;
    for (name, shape) in shapes {
        let values = values(name)?;
        let set = file.new_dataset::<f32>().shape(shape.as_slice()).create(names::link(name).as_str());
        set.and_then(|set| set.write_raw(&values)).map_err(|e| wrong(&e))?;
    }
    file.close().map_err(|e| wrong(&e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use proptest::prelude::*;
    use safetensors::serialize_to_file;
    use safetensors::tensor::TensorView;

    fn shapes() -> Vec<(String, Vec<usize>)> {
        let shape = |name: &str, shape: &[usize]| (name.to_string(), shape.to_vec());
        vec![shape("bn.running_mean", &[3]), shape("conv.weight", &[2, 3, 1, 1]), shape("scale", &[])]
    }

    fn values(name: &str) -> Result<Vec<f32>> {
        let count = shapes().iter().find(|(other, _)| other == name).unwrap().1.iter().product::<usize>();
        Ok((0..count).map(|i| i as f32 * 0.37 - name.len() as f32).collect())
    }

    fn said() -> ModelMetadata {
        let class_names = vec!["a cat".to_string(), "\"dog\", é".into()];
        let text = r#"{"image":[1,9,8],"mean":[0.1],"std":[0.3],"frame":"whole"}"#;
        ModelMetadata {
            class_names,
            preprocessing: Preprocessing::from_text(text).unwrap(),
            fields: Vec::new(),
            sample: Some(SampleShape::cube([4, 64, 32, 16])),
        }
    }

    #[test]
    fn both_kinds_of_file_keep_names_shapes_and_bits() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["w.safetensors", "w.h5"] {
            let path = directory.path().join(name);
            let about = said();
            write_weights(&path, &shapes(), &about, &values, None).unwrap();
            let file = WeightsFile::open(&path).unwrap();
            assert_eq!((file.shapes(), file.about()), (&shapes()[..], &about));
            for (name, _) in shapes() {
                assert_eq!(file.values(&name), values(&name));
            }
            let again =
                write_weights(&path, &shapes(), &ModelMetadata::default(), &values, None).unwrap_err();
            assert!(again.message.contains("is there already"), "{again}");
        }
        // The same weights are the same file, every time.
        let first = std::fs::read(directory.path().join("w.safetensors")).unwrap();
        for number in 0..16 {
            let path = directory.path().join(format!("{number}.safetensors"));
            write_weights(&path, &shapes(), &said(), &values, None).unwrap();
            assert!(std::fs::read(&path).unwrap() == first);
            std::fs::remove_file(path).unwrap();
        }
        let failing = |_: &str| Err(Error::internal("no values"));
        for name in ["none.safetensors", "none.h5"] {
            let path = directory.path().join(name);
            let error = write_weights(&path, &shapes(), &said(), &failing, None).unwrap_err();
            assert_eq!(error.message, "no values");
        }
        // Nothing else is left behind, but the notes of their owner, which goes on.
        let names = std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name());
        let is_note = |name: &std::ffi::OsString| name.to_string_lossy().ends_with(".owner");
        assert_eq!(names.filter(|name| !is_note(name)).count(), 2);
    }

    #[test]
    fn other_numbers_become_f32_and_other_things_are_left_out() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("w.safetensors");
        let view = |dtype, bytes| TensorView::new(dtype, vec![1], bytes).unwrap();
        let views = [
            ("a", view(Dtype::BF16, &[0xc0, 0x3f])),
            ("b", view(Dtype::F16, &[0x00, 0x3e])),
            ("c", view(Dtype::F64, &[0, 0, 0, 0, 0, 0, 0xf8, 0x3f])),
            ("d", view(Dtype::I64, &[1; 8])),
        ];
        serialize_to_file(views, None, &path).unwrap();
        let file = WeightsFile::open(&path).unwrap();
        let names = file.shapes().iter().map(|(name, _)| name.as_str());
        let found: Vec<_> = names.map(|name| (name, file.values(name).unwrap()[0])).collect();
        assert_eq!(found, [("a", 1.5), ("b", 1.5), ("c", 1.5)]);
        assert_eq!(file.unread(), [("d".to_string(), "I64".to_string())]);
    }

    /// The file is what h5py writes (tests/fixtures/make_weights.py): f16, bf16 and integers.
    #[test]
    fn halves_are_read_from_hdf5_too() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/halves.hdf5");
        let file = WeightsFile::open(Path::new(path)).unwrap();
        assert_eq!(file.shapes(), [("bf16".to_string(), vec![3]), ("layer.f16".to_string(), vec![2, 3])]);
        assert_eq!(file.values("bf16").unwrap(), [1.5, -2.0f32.powi(127), 2.0f32.powi(-120)]);
        let halves = [1.5, -0.25, 65504.0, 2.0f32.powi(-24), 0.0, -3.0];
        assert_eq!(file.values("layer.f16").unwrap(), halves);
        assert_eq!(file.unread(), [("count".to_string(), "int64".to_string())]);
    }

    /// What is not read here is named, with what makes another file of it.
    #[test]
    fn a_compression_that_hdf5_lacks_is_named() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/lzf.hdf5");
        let file = WeightsFile::open(Path::new(path)).unwrap();
        let error = file.values("layer.weight").unwrap_err();
        assert_eq!(error.kind, ErrorKind::Data);
        for said in ["lzf.hdf5", "layer.weight", "compressed with lzf", "import h5py"] {
            assert!(error.message.contains(said), "{error}");
        }
    }

    /// Weights that layers share have several names; what has no values, or is not there, is told by its name.
    #[test]
    fn each_link_is_a_name_and_one_that_leads_nowhere_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("w.h5");
        let file = hdf5::File::create(&path).unwrap();
        file.new_dataset::<f32>().shape([2]).create("tied/a").unwrap().write(&[1.0f32, 2.0]).unwrap();
        file.link_hard("tied/a", "b").unwrap();
        file.link_soft("/tied/a", "c").unwrap();
        file.link_soft("/gone", "d").unwrap();
        file.close().unwrap();
        let file = WeightsFile::open(&path).unwrap();
        let names: Vec<&str> = file.shapes().iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["b", "c", "tied.a"]);
        assert!(names.iter().all(|name| file.values(name).unwrap() == [1.0, 2.0]));
        assert_eq!(file.unread(), [("d".to_string(), "a link that leads nowhere".to_string())]);
        assert!(left_out(file.unread()).unwrap().contains("d (a link that leads nowhere)"));
        assert_eq!(left_out(&[("bn.num_batches_tracked".into(), "I64".into())]), None);
    }

    /// As before names were encoded, and as others write: groups are parts of names.
    #[test]
    fn groups_are_parts_of_names_where_a_file_does_not_say_otherwise() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("w.h5");
        let file = hdf5::File::create(&path).unwrap();
        for name in ["summary", "layer/a%2Fb", "layer/deeper/c"] {
            file.new_dataset::<f32>().shape([1]).create(name).unwrap();
        }
        file.close().unwrap();
        let file = WeightsFile::open(&path).unwrap();
        let names: Vec<&str> = file.shapes().iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["layer.a%2Fb", "layer.deeper.c", "summary"]);
    }

    /// Empty tensors, single numbers, big-endian ones and views of parts, as others write them.
    #[test]
    fn shapes_and_orders_of_others_are_read() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["w.h5", "w.safetensors"] {
            let path = directory.path().join(name);
            let shapes = [("empty", vec![0, 3]), ("one", vec![]), ("one.more", vec![1]), ("three", vec![3])];
            let shapes = shapes.map(|(name, shape)| (name.to_string(), shape)).to_vec();
            let count = |name: &str| if name == "three" { 3 } else { usize::from(name != "empty") };
            let values = |name: &str| Ok(vec![name.len() as f32; count(name)]);
            write_weights(&path, &shapes, &ModelMetadata::default(), &values, None).unwrap();
            let file = WeightsFile::open(&path).unwrap();
            assert_eq!(file.shapes(), shapes);
            assert!(file.values("empty").unwrap().is_empty());
            assert_eq!(file.values("one").unwrap(), [3.0]);
            assert_eq!(file.values("three").unwrap(), [5.0; 3]);
        }
    }

    #[test]
    fn a_place_that_cannot_be_written_is_refused_in_the_words_of_a_name() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("w.h5");
        std::fs::write(&file, "").unwrap();
        for path in [file.join("w.h5"), file, directory.path().join("none/w.h5")] {
            let error = check_new(&path).unwrap_err();
            assert!(error.message.ends_with("choose another name"), "{error}");
        }
    }

    #[test]
    fn what_is_no_file_of_weights_is_said_to_be_none() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("w");
        for (bytes, said) in [
            (&b"PK\x03\x04 torch.save"[..], "pickle"),
            (b"\x80\x02\x8a\nl\xfc\x9cF\xf9", "pickle"),
            (
                b"PK\x03\x04-\0\0\0\0\0\0\0!\0\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff\x05\0\0\0w.npy",
                "archive of NumPy",
            ),
            (b"\x93NUMPY\x01\0v\0{'descr'", "one array of NumPy"),
            (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
            (b"<!DOCTYPE html><html>", "web page"),
            (b"{\"metadata\": {}, \"weight_map\": {}}", "parts of a model"),
            (b"\x1f\x8b\x08\0\x01\x02\x03\x04", "gunzip"),
            (b"GGUF\x03\0\0\0", "neither"),
            (b"\x80\x02\0\0\0\0\0\0{}", "neither"),
            (b"text", "neither"),
            (b"", "neither"),
        ] {
            std::fs::write(&path, bytes).unwrap();
            let error = WeightsFile::open(&path).err().unwrap();
            assert!(error.message.contains(said), "{error}");
            assert_eq!(error.kind, ErrorKind::Data);
        }
        assert!(
            WeightsFile::open(&directory.path().join("none")).err().unwrap().message.contains("No such file")
        );
    }

    proptest! {
        /// A damaged file is an error or other numbers, never a panic, nor more memory than the file has.
        #[test]
        fn damage_is_survived(at in prop::collection::vec((0usize..2000, any::<u8>()), 1..6), keep in 0usize..4000, hdf5: bool) {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join(if hdf5 { "w.h5" } else { "w.safetensors" });
            write_weights(&path, &shapes(), &ModelMetadata::default(), &values, None).unwrap();
            let mut bytes = std::fs::read(&path).unwrap();
            bytes.truncate(keep.max(64));
            for (at, value) in at {
                let length = bytes.len();
                bytes[at % length] = value;
            }
            std::fs::write(&path, &bytes).unwrap();
            if let Ok(file) = WeightsFile::open(&path) {
                for (name, shape) in file.shapes() {
                    if shape.iter().product::<usize>() < 4000 {
                        let _ = file.values(name);
                    }
                }
            }
        }
    }
}
