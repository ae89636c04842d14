//! The numbers of a file's tensors: in the file, or beside it. Nothing that a file says of them is believed before the
//! bytes are there.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Component, Path, PathBuf};

use half::{bf16, f16};
use prost::bytes::Bytes;

use super::constant::MOST;
use super::schema::{TensorProto, data_type};
use crate::files::{self, Crc};
use crate::graph::Init;

/// What is wrong with a tensor, in words.
pub type Reason = String;

/// A tensor of the file: its shape is sound, and its bytes are there.
pub struct OnnxTensor {
    /// How many elements each axis has.
    pub dims: Vec<usize>,
    proto: TensorProto,
    /// Where its bytes are if not here: in which file, from where on.
    elsewhere: Option<(PathBuf, u64)>,
}

impl OnnxTensor {
    /// Checks the tensor of a file in this directory.
    ///
    /// # Errors
    /// A shape that is none, a type that is not read, fewer or more bytes than the shape has, a place outside the
    /// directory.
    pub fn new(proto: TensorProto, directory: &Path) -> Result<OnnxTensor, Reason> {
        let dims: Result<Vec<usize>, _> = proto.dims.iter().map(|&extent| usize::try_from(extent)).collect();
        let dims = dims.map_err(|_| format!("has the shape {:?}", proto.dims))?;
        let width = width(proto.data_type)?;
        let elements = dims.iter().try_fold(1usize, |product, &extent| product.checked_mul(extent));
        let bytes = elements.and_then(|count| count.checked_mul(width));
        let (Some(elements), Some(bytes)) = (elements, bytes) else {
            return Err(format!("has the shape {dims:?}, more than memory has addresses"));
        };
        let elsewhere = match proto.data_location {
            0 => None,
            _ => Some(place(&proto, directory, bytes as u64)?),
        };
        let there = match (&elsewhere, words(&proto)) {
            (Some(_), _) => elements,
            (None, 0) => proto.raw_data.len() / width,
            (None, count) => count,
        };
        if there != elements
            || (elsewhere.is_none() && !proto.raw_data.is_empty() && proto.raw_data.len() != bytes)
        {
            return Err(format!("has the shape {dims:?}, {elements} numbers, and {there} of them are there"));
        }
        Ok(OnnxTensor { dims, proto, elsewhere })
    }

    /// Lets go of the file's bytes, which are these: what is large is read again when it is wanted.
    pub fn leave(&mut self, path: &Path, whole: &[u8]) {
        /// Bytes of what is kept.
        const SMALL: usize = 1 << 16;
        let raw = &mut self.proto.raw_data;
        let at = (raw.as_ptr() as usize).wrapping_sub(whole.as_ptr() as usize);
        if raw.len() > SMALL && whole.get(at..at.saturating_add(raw.len())).is_some() {
            self.elsewhere = Some((path.to_path_buf(), at as u64));
            *raw = Bytes::new();
        } else {
            *raw = Bytes::copy_from_slice(raw);
        }
    }

    /// How many numbers it has.
    pub fn elements(&self) -> usize {
        self.dims.iter().product()
    }

    /// Whether its numbers are real.
    pub fn is_real(&self) -> bool {
        data_type::REALS.contains(&self.proto.data_type)
    }

    /// The sum goes on with what lies outside the file.
    pub fn add_to(&self, sum: &mut Crc) -> Result<(), Reason> {
        if self.elsewhere.is_some() {
            sum.update(&self.bytes()?);
        }
        Ok(())
    }

    /// How an operand starts without its numbers: alike where these are, else with their standard deviation.
    pub fn spread(&self) -> Result<Init, Reason> {
        if self.elements() > MOST {
            return Ok(Init::Normal { std: 0.02 });
        }
        let all = self.reals()?;
        let value = all.first().copied().unwrap_or(0.0);
        if all.iter().all(|&number| number == value) {
            return Ok(Init::Constant { value });
        }
        let squares: f64 = all.iter().map(|&number| f64::from(number).powi(2)).sum();
        Ok(Init::Normal { std: (squares / all.len() as f64).sqrt() as f32 })
    }

    /// Its first and last number as f32, if it has any: what no order of its axes changes.
    pub fn ends(&self) -> Option<[f32; 2]> {
        let (raw, width) = (&self.proto.raw_data, width(self.proto.data_type).ok()?);
        if self.elsewhere.is_none() && self.proto.data_type == data_type::FLOAT && raw.len() >= width {
            let number = |at: usize| Some(f32::from_le_bytes(raw[at..at + 4].try_into().ok()?));
            return Some([number(0)?, number(raw.len() - width)?]);
        }
        let all = self.reals().ok()?;
        Some([*all.first()?, *all.last()?])
    }

    /// Its numbers as f32, last dimension fastest.
    ///
    /// # Errors
    /// It holds integers, or can no longer be read.
    pub fn reals(&self) -> Result<Vec<f32>, Reason> {
        use data_type::{BFLOAT16, DOUBLE, FLOAT, FLOAT16};
        let TensorProto { float_data, double_data, int32_data, .. } = &self.proto;
        let bits = |word: &i32| *word as u16;
        Ok(match self.proto.data_type {
            FLOAT if !float_data.is_empty() => float_data.clone(),
            DOUBLE if !double_data.is_empty() => double_data.iter().map(|&x| x as f32).collect(),
            FLOAT16 if !int32_data.is_empty() => {
                int32_data.iter().map(|word| f16::from_bits(bits(word)).to_f32()).collect()
            }
            BFLOAT16 if !int32_data.is_empty() => {
                int32_data.iter().map(|word| bf16::from_bits(bits(word)).to_f32()).collect()
            }
            FLOAT => words_of(&self.bytes()?, f32::from_le_bytes),
            DOUBLE => words_of(&self.bytes()?, |bytes| f64::from_le_bytes(bytes) as f32),
            FLOAT16 => words_of(&self.bytes()?, |bytes| f16::from_le_bytes(bytes).to_f32()),
            BFLOAT16 => words_of(&self.bytes()?, |bytes| bf16::from_le_bytes(bytes).to_f32()),
            _ => return Err("holds integers".into()),
        })
    }

    /// Its numbers where they are integers.
    ///
    /// # Errors
    /// It holds real numbers, or can no longer be read.
    pub fn integers(&self) -> Result<Vec<i64>, Reason> {
        use data_type::{BOOL, INT8, INT32, INT64, UINT8};
        let TensorProto { int64_data, int32_data, data_type, .. } = &self.proto;
        Ok(match *data_type {
            INT64 if !int64_data.is_empty() => int64_data.clone(),
            INT32 | INT8 | UINT8 | BOOL if !int32_data.is_empty() => {
                int32_data.iter().map(|&word| i64::from(word)).collect()
            }
            INT64 => words_of(&self.bytes()?, i64::from_le_bytes),
            INT32 => words_of(&self.bytes()?, |bytes| i64::from(i32::from_le_bytes(bytes))),
            INT8 => words_of(&self.bytes()?, |bytes| i64::from(i8::from_le_bytes(bytes))),
            UINT8 | BOOL => words_of(&self.bytes()?, |[byte]: [u8; 1]| i64::from(byte)),
            _ => return Err("holds real numbers".into()),
        })
    }

    fn bytes(&self) -> Result<Bytes, Reason> {
        let Some((path, offset)) = &self.elsewhere else { return Ok(self.proto.raw_data.clone()) };
        let read = || {
            let mut file = files::open(path)?;
            file.seek(SeekFrom::Start(*offset))?;
            let mut bytes = vec![0; self.elements() * width(self.proto.data_type).unwrap_or(1)];
            file.read_exact(&mut bytes)?;
            Ok(bytes.into())
        };
        read().map_err(|error: std::io::Error| format!("cannot be read from {}: {error}", path.display()))
    }
}

fn words_of<const N: usize, T>(bytes: &[u8], word: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks().0.iter().map(|bytes| word(*bytes)).collect()
}

/// Numbers in the lists of single types.
fn words(proto: &TensorProto) -> usize {
    use data_type::{DOUBLE, FLOAT, INT64};
    match proto.data_type {
        FLOAT => proto.float_data.len(),
        DOUBLE => proto.double_data.len(),
        INT64 => proto.int64_data.len(),
        _ => proto.int32_data.len(),
    }
}

/// Bytes of an element.
fn width(of: i32) -> Result<usize, Reason> {
    use data_type::{BFLOAT16, BOOL, DOUBLE, FLOAT, FLOAT16, INT8, INT32, INT64, UINT8};
    match of {
        UINT8 | INT8 | BOOL => Ok(1),
        FLOAT16 | BFLOAT16 => Ok(2),
        FLOAT | INT32 => Ok(4),
        DOUBLE | INT64 => Ok(8),
        other => Err(format!(
            "has elements of type {other}, which is none of f32, f16, bf16, f64, i64, i32, i8, u8 and bool"
        )),
    }
}

/// The file beside the network's in which so many bytes are, and where in it.
fn place(proto: &TensorProto, directory: &Path, bytes: u64) -> Result<(PathBuf, u64), Reason> {
    let said =
        |key: &str| proto.external_data.iter().find(|entry| entry.key == key).map(|entry| &entry.value);
    let location = said("location").ok_or("is in another file, and which is not said")?;
    let relative = Path::new(location);
    let is_below = relative.components().all(|part| matches!(part, Component::Normal(_)));
    let outside = || format!("is in {location}, outside of the directory of the file");
    if location.is_empty() || !is_below {
        return Err(outside());
    }
    let path = directory.join(relative);
    let real = |path: &Path| path.canonicalize().map_err(|error| format!("is in {location}: {error}"));
    if !real(&path)?.starts_with(real(directory)?) {
        return Err(outside());
    }
    let number = |key: &str| match said(key) {
        None => Ok(None),
        Some(text) => text.parse::<u64>().map(Some).map_err(|_| format!("has the {key} {text:?}")),
    };
    let offset = number("offset")?.unwrap_or(0);
    if number("length")?.is_some_and(|length| length != bytes) {
        return Err(format!("has {bytes} bytes by its shape and another length in {location}"));
    }
    let size = files::open(&path).and_then(|file: File| file.metadata());
    let size = size.map_err(|error| format!("is in {location}: {error}"))?.len();
    match offset.checked_add(bytes) {
        Some(end) if end <= size => Ok((path, offset)),
        _ => Err(format!("needs {bytes} bytes from {offset} on of {location}, which has {size}")),
    }
}
