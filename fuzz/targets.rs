//! What each fuzz target does with bytes: hands them to one of the program's parsers, as the file or text that a user
//! might give it, and asks of what came out only that it can be used.
//!
//! A target must not panic, and must not take more memory than a multiple of its input: `within` looks at what Rust
//! allocates, and `make fuzz` limits the process. Where a checksum stands before the parser proper the target puts
//! the right one, or no changed input would get behind it.
//! Used by `fuzz_targets/` (cargo-fuzz) and by `tests/suite/fuzz.rs` (a short run on stable Rust).

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::ValueEnum;
use dltrain::collective::tuning::{Machine, Tuning};
use dltrain::config::{AllreduceKind, Augment, Compression, DataFormat, Input, JpegDecoder, Resume};
use dltrain::data::packed::{CHUNK, Header};
use dltrain::data::{self, Jpeg, Picture, Wanted};
use dltrain::error::Result;
use dltrain::fields::{ChunkDecoder, Filter, View};
use dltrain::files::crc32;
use dltrain::model;
use dltrain::record::{Contents, RankInfo, WeightsFile, find_checkpoint};

/// Says whether the parser took the input for sound.
pub type Target = fn(&[u8]) -> bool;

/// By name, with what a byte of input may cost in bytes of memory at most.
pub const TARGETS: [(&str, Target, usize); 11] = [
    // Deflate makes 1032 bytes of one, a growing array doubles, and images are scaled to a size that may be larger.
    ("idx", idx, 4 * 1032),
    ("cifar", cifar, 16),
    // A JPEG's byte may be 512 pixels, a PNG's 1032, of 4 bytes, and progressive decoding keeps all coefficients.
    ("picture", picture, 8 * 1032),
    ("tar", tar, 8 * 1032),
    ("packed", packed, 64),
    ("weights", weights, 64),
    // An empty node is two bytes of a file and six lists in memory; a network has its nodes and tensors besides.
    ("onnx", onnx, 512),
    ("checkpoint", checkpoint, 64),
    ("config", config, 256),
    ("view", view, 256),
    // Deflate makes 1032 bytes of one, and each filter has a buffer.
    ("chunk", chunk, 4 * 1032),
];

/// Memory that does not depend on the input: names, buffers of readers, tables of decoders, a chunk of a packed file.
const ANYWAY: usize = 6 << 20;

fn idx(bytes: &[u8]) -> bool {
    let [which, bytes @ ..] = bytes else { return false };
    let directory = Files::new();
    let names = [
        "train-images-idx3-ubyte",
        "train-labels-idx1-ubyte",
        "t10k-images-idx3-ubyte",
        "t10k-labels-idx1-ubyte",
    ];
    let images = [&[0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 2][..], &[9; 8]].concat();
    let labels = [0, 0, 8, 1, 0, 0, 0, 2, 0, 1];
    for (index, name) in names.iter().enumerate() {
        let sound: &[u8] = if index % 2 == 0 { &images } else { &labels };
        directory.put(name, if usize::from(which % 4) == index { bytes } else { sound });
    }
    read_all(&directory.0, DataFormat::Idx)
}

fn cifar(bytes: &[u8]) -> bool {
    let directory = Files::new();
    for name in ["train.bin", "test.bin", "fine_label_names.txt"] {
        directory.put(name, bytes);
    }
    read_all(&directory.0, DataFormat::Cifar)
}

fn picture(bytes: &[u8]) -> bool {
    let decodes = |jpeg| {
        let mut picture = Picture::default();
        let decoded = data::decode(bytes, &mut picture, Jpeg::find(jpeg).expect("a decoder")).is_ok();
        if decoded {
            assert_eq!(picture.pixels.len(), picture.height * picture.width * picture.channels);
            assert!(matches!(picture.channels, 1 | 3));
        }
        decoded
    };
    [JpegDecoder::Rust, JpegDecoder::Auto].map(decodes) == [true; 2]
}

fn tar(bytes: &[u8]) -> bool {
    let directory = Files::new();
    directory.put("train.tar", bytes);
    read_all(&directory.0, DataFormat::Tar)
}

/// The header's JSON up to a zero byte, then what lies in the file from byte 4096 on.
fn packed(bytes: &[u8]) -> bool {
    let at = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    let (json, body) = (&bytes[..at], bytes.get(at + 1..).unwrap_or_default());
    let mut file = vec![0; 4096];
    file.extend_from_slice(body);
    file.resize(file.len() + CHUNK, 0);
    let text = match serde_json::from_slice::<Header>(json) {
        Ok(mut header) => {
            let sizes = [
                8 * header.images.saturating_add(1),
                12 * header.images,
                4 * header.images,
                4 * header.images,
            ];
            let sizes = sizes.into_iter().chain([header.names_bytes]);
            let tables = header.tables.iter().zip(sizes).map(|(&at, size)| {
                let end = at.checked_add(size).filter(|&end| end <= file.len() as u64)?;
                file.get(at as usize..end as usize)
            });
            let tables: Option<Vec<&[u8]>> = tables.collect();
            header.tables_crc = tables.map_or(header.tables_crc, |tables| crc32(&tables));
            header.to_text().into_bytes()
        }
        Err(_) => {
            [format!("dltrain images 1 {} {:08x}\n", json.len(), crc32(&[json])).as_bytes(), json].concat()
        }
    };
    let length = text.len().min(4096);
    file[..length].copy_from_slice(&text[..length]);
    let directory = Files::new();
    directory.put("x.h5", &file);
    read_all(&directory.0, DataFormat::Packed)
}

/// Safetensors or HDF5, whichever the first bytes say.
fn weights(bytes: &[u8]) -> bool {
    let directory = Files::new();
    let file = WeightsFile::open(&directory.put("w", bytes));
    file.is_ok_and(|file| file.shapes().iter().all(|(name, _)| file.values(name).is_ok()))
}

fn onnx(bytes: &[u8]) -> bool {
    let directory = Files::new();
    let model = model::open(&directory.put("net.onnx", bytes));
    model.is_ok_and(|model| {
        let file = model.file().expect("that of the model");
        file.weights().iter().all(|weight| file.values(&weight.name).is_ok())
    })
}

/// With the checksum and the lengths that belong to the bytes behind the first 512, of which those up to a zero are the
/// index.
fn checkpoint(bytes: &[u8]) -> bool {
    let mut bytes = bytes.to_vec();
    if let Some(contents) = bytes.get(512..) {
        let index = contents.iter().position(|&byte| byte == 0).unwrap_or(contents.len());
        let (crc, length) = (crc32(&[contents]), bytes.len());
        let head = format!("dltrain checkpoint 2\ncrc32 {crc:08x}\nbytes {length}\nindex {index}\n");
        bytes[..512].fill(0);
        bytes[..head.len()].copy_from_slice(head.as_bytes());
    }
    let directory = Files::new();
    let file = Resume::File(directory.put("step-00000001.h5", &bytes));
    let Ok(Some((_, contents))) = find_checkpoint(RankInfo { rank: 0, size: 1 }, &file, None) else {
        return false;
    };
    let head = Contents::from_head(&contents.head()).expect("its own head");
    assert_eq!(head.arrays, contents.arrays);
    contents.arrays.iter().for_each(|array| assert!(contents.array(&array.path).is_some()));
    true
}

/// An array's shape, four bytes of axes, and a view of it.
fn view(bytes: &[u8]) -> bool {
    let [a, b, c, d, text @ ..] = bytes else { return false };
    let Some(view) = std::str::from_utf8(text).ok().and_then(|text| View::from_str(text).ok()) else {
        return false;
    };
    assert_eq!(View::from_str(&view.to_string()), Ok(view.clone()));
    let shape = [a, b, c, d].map(|places| usize::from(*places));
    for axes in 0..=shape.len() {
        let Ok(samples) = view.samples(&shape[..axes]) else { continue };
        let last = samples.len().saturating_sub(1);
        for index in [0, last / 2, last] {
            let window = samples.window(index);
            let inside = |axis: usize| window.first[axis] + window.len[axis] <= shape[axis];
            assert!((0..axes).all(inside), "{view} of {:?}: {window:?}", &shape[..axes]);
            assert_eq!(samples.shape().iter().product::<usize>(), window.len.iter().product::<usize>());
        }
    }
    true
}

/// Three filters (two bits each), what was left out, bytes of a number, the length in two bytes, and a chunk.
fn chunk(bytes: &[u8]) -> bool {
    let [filters, skipped, number, low, high, bytes @ ..] = bytes else { return false };
    let all = [Filter::Deflate, Filter::Shuffle, Filter::Fletcher32, Filter::Lzf];
    let filters: Vec<Filter> = (0..3).map(|at| all[usize::from(filters >> (2 * at) & 3)]).collect();
    let length = usize::from(u16::from_le_bytes([*low, *high]));
    let mut chunk = bytes.to_vec();
    let number = 1 << (number & 3);
    let (skipped, mut to) = (u32::from(*skipped), Vec::new());
    let decoded = ChunkDecoder::default().decode(&filters, skipped, number, length, (&mut chunk, &mut to));
    if decoded.is_ok() {
        assert_eq!(to.len(), length);
    }
    decoded.is_ok()
}

/// Values of flags, and the file of `bench autotune`.
fn config(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let augment = Augment::from_str(text);
    if let Ok(augment) = &augment {
        assert_eq!(augment.to_string().parse().as_ref(), Ok(augment));
    }
    let scheme = Compression::from_str(text);
    if let Ok(scheme) = scheme {
        assert_eq!(scheme.to_string().parse(), Ok(scheme));
    }
    let tuning = checksummed(text).and_then(|text| Tuning::from_text(&text, &Machine::default()));
    if let Ok(tuning) = &tuning {
        for kind in AllreduceKind::value_variants() {
            let _ = [0, 1, 5000, usize::MAX].map(|bytes| tuning.measured(*kind, bytes));
        }
    }
    augment.is_ok() || scheme.is_ok() || tuning.is_ok() || Contents::from_head(text).is_ok()
}

/// The text of a tuning file with the right checksum, where it holds a tuning.
fn checksummed(text: &str) -> std::result::Result<String, String> {
    let mut file: serde_json::Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let tuning: Tuning = serde_json::from_value(file["tuning"].clone()).map_err(|error| error.to_string())?;
    if let Some(checksum) = file.get_mut("checksum") {
        *checksum = tuning.checksum().map_err(|error| error.to_string())?.into();
    }
    Ok(file.to_string())
}

fn read_all(path: &Path, format: DataFormat) -> bool {
    let input = Input { format: Some(format), ..Input::default() };
    let wanted = Wanted { sample: [1, 4, 4], classes: 1000, seed: 1, input: &input };
    let read = || -> Result<()> {
        let sets = data::open(path, &wanted)?;
        let mut image = vec![0.0; 16];
        let mut scratch = data::DecodeBuffers::default();
        for index in 0..sets.training.len().min(16) {
            let label = sets.training.read(0, index, &mut image, &mut scratch)?;
            assert!(
                usize::try_from(label).is_ok_and(|label| label < sets.training.set().class_names().len())
            );
            let _ = (sets.training.name(index), sets.training.fingerprint(), sets.training.blocks());
        }
        Ok(())
    };
    read().is_ok()
}

/// A directory in memory, if there is one, that goes with this value.
struct Files(PathBuf);

impl Files {
    fn new() -> Files {
        let root = Path::new("/dev/shm");
        let root = if root.is_dir() { root.to_path_buf() } else { std::env::temp_dir() };
        let thread = std::thread::current().id();
        let path = root.join(format!("dltrain-fuzz-{}-{thread:?}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).expect("a directory for the target's files");
        Files(path)
    }

    fn put(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, bytes).expect("a file of the target");
        path
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs a target by its name; says whether its parser took the input for sound.
///
/// # Panics
/// Where the target does, and where it takes too much memory.
pub fn run(name: &str, bytes: &[u8]) -> bool {
    let (_, target, each) = TARGETS.into_iter().find(|(known, ..)| *known == name).expect("a target's name");
    let allowed = ANYWAY + each * bytes.len();
    ALLOCATED.set(0);
    MOST.set(0);
    let sound = target(bytes);
    let most = MOST.get().max(0) as usize;
    assert!(
        most <= allowed,
        "{most} bytes of memory for {} bytes of input; {allowed} are allowed",
        bytes.len()
    );
    sound
}

thread_local! {
    static ALLOCATED: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
}

/// The system's allocator, with a count of each thread.
pub struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

fn count(bytes: isize) {
    // Threads may free memory after their locals are gone.
    let _ = ALLOCATED.try_with(|allocated| {
        allocated.set(allocated.get() + bytes);
        let _ = MOST.try_with(|most| most.set(most.get().max(allocated.get())));
    });
}

// SAFETY: every call is passed on as it came; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(pointer, layout, size) }
    }
}
