//! Our CUDA kernels: memory for them, and their launch in every order that must make no difference.
//!
//! They run on the host. With DLTRAIN_KERNELS_ON=cuda they run on the GPU that is there (or, with the doubles of CUDA's
//! libraries in LD_LIBRARY_PATH, as if they did), from the PTX. DLTRAIN_KERNELS_LAUNCHED=FILE writes a line for each
//! kernel that is launched.

use std::cell::RefCell;
use std::collections::HashSet;
use std::ffi::{CStr, CString, c_char, c_uint, c_void};
use std::io::Write;
use std::sync::{Mutex, OnceLock};

use half::{bf16, f16};
use libloading::Library;

use super::{driver, fake_cuda};

/// The types of number, as they stand in a kernel's name.
pub const NUMBERS: [&str; 3] = ["f32", "bf16", "f16"];

/// The library that holds the kernels.
pub fn library() -> &'static Library {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    // SAFETY: the doubles' constructors only fill tables.
    LIBRARY.get_or_init(|| unsafe { Library::new(fake_cuda::libraries().join("libcuda.so.1")) }.unwrap())
}

/// The arguments of a kernel, a letter each: p pointer, l and i integers of 64 and 32 bits, f float.
pub fn arguments(kernel: &str) -> Option<String> {
    let name = CString::new(kernel).unwrap();
    // SAFETY: the type is that of tests/fake_cuda/kernels.cpp; the text is static.
    unsafe {
        let of = library()
            .get::<unsafe extern "C" fn(*const c_char) -> *const c_char>(b"kernel_arguments")
            .unwrap();
        let text = of(name.as_ptr());
        (!text.is_null()).then(|| CStr::from_ptr(text).to_str().unwrap().to_string())
    }
}

/// The names of all kernels, sorted.
pub fn names() -> Vec<String> {
    let mut names = Vec::new();
    // SAFETY: as above.
    unsafe {
        let of = library().get::<unsafe extern "C" fn(i32) -> *const c_char>(b"kernel_name").unwrap();
        for index in 0.. {
            let text = of(index);
            if text.is_null() {
                break;
            }
            names.push(CStr::from_ptr(text).to_str().unwrap().to_string());
        }
    }
    names.sort();
    names
}

/// Bytes around a buffer that no kernel may touch.
const MARGIN: usize = 64;
const UNTOUCHED: u8 = 0xA5;

/// Memory for a kernel.
pub struct Buffer {
    /// Words, so that the start is aligned to 16 bytes.
    memory: RefCell<Vec<u128>>,
    start: usize,
    bytes: usize,
}

/// Whether buffers begin where four elements can be read at once.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Start {
    Aligned,
    Odd,
}

impl Buffer {
    /// Of bytes. An odd start is one element of `unit` bytes behind an even one.
    pub fn of_bytes(bytes: &[u8], start: Start, unit: usize) -> Buffer {
        let start = MARGIN + if start == Start::Odd { unit } else { 0 };
        let words = (start + bytes.len() + MARGIN).div_ceil(16);
        let buffer = Buffer {
            memory: RefCell::new(vec![u128::from_ne_bytes([UNTOUCHED; 16]); words]),
            start,
            bytes: bytes.len(),
        };
        buffer.whole(|all| all[start..start + bytes.len()].copy_from_slice(bytes));
        buffer
    }

    fn whole<R>(&self, use_it: impl FnOnce(&mut [u8]) -> R) -> R {
        let mut memory = self.memory.borrow_mut();
        let bytes = 16 * memory.len();
        // SAFETY: the words' bytes, borrowed alone; u8 has no alignment and any bits.
        use_it(unsafe { std::slice::from_raw_parts_mut(memory.as_mut_ptr().cast(), bytes) })
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.whole(|all| all[self.start..self.start + self.bytes].to_vec())
    }

    fn set(&self, bytes: &[u8]) {
        self.whole(|all| all[self.start..self.start + self.bytes].copy_from_slice(bytes));
    }

    fn is_whole(&self) -> bool {
        self.whole(|all| {
            all[..self.start].iter().chain(&all[self.start + self.bytes..]).all(|&byte| byte == UNTOUCHED)
        })
    }

    fn address(&self) -> u64 {
        self.whole(|all| all[self.start..].as_mut_ptr() as u64)
    }

    /// Of numbers of type `t`, rounded to it.
    pub fn of(values: &[f32], t: &str, start: Start) -> Buffer {
        let bytes: Vec<u8> = match t {
            "f32" => values.iter().flat_map(|v| v.to_ne_bytes()).collect(),
            "bf16" => values.iter().flat_map(|&v| bf16::from_f32(v).to_bits().to_ne_bytes()).collect(),
            _ => values.iter().flat_map(|&v| f16::from_f32(v).to_bits().to_ne_bytes()).collect(),
        };
        Buffer::of_bytes(&bytes, start, size(t))
    }

    /// For so many results of type `t`: NaN so far.
    pub fn empty(count: usize, t: &str, start: Start) -> Buffer {
        Buffer::of_bytes(&vec![0xff; count * size(t)], start, size(t))
    }

    pub fn f32s(values: &[f32]) -> Buffer {
        Buffer::of(values, "f32", Start::Aligned)
    }

    /// The numbers, of type `t`.
    pub fn read(&self, t: &str) -> Vec<f32> {
        let bytes = self.bytes();
        match t {
            "f32" => bytes.as_chunks::<4>().0.iter().map(|&b| f32::from_ne_bytes(b)).collect(),
            "bf16" => bytes.as_chunks::<2>().0.iter().map(|&b| bf16::from_ne_bytes(b).to_f32()).collect(),
            _ => bytes.as_chunks::<2>().0.iter().map(|&b| f16::from_ne_bytes(b).to_f32()).collect(),
        }
    }
}

pub fn size(t: &str) -> usize {
    if t == "f32" { 4 } else { 2 }
}

/// The number that type `t` holds for this one.
pub fn rounded(t: &str, value: f32) -> f32 {
    match t {
        "f32" => value,
        "bf16" => bf16::from_f32(value).to_f32(),
        _ => f16::from_f32(value).to_f32(),
    }
}

pub fn all_rounded(t: &str, values: &[f32]) -> Vec<f32> {
    values.iter().map(|&value| rounded(t, value)).collect()
}

/// The distance of neighbours of type `t`, over the smaller one: at most this.
pub fn step(t: &str) -> f32 {
    match t {
        "f32" => f32::EPSILON,
        "bf16" => 1.0 / 128.0,
        _ => 1.0 / 1024.0,
    }
}

pub enum Argument<'a> {
    Pointer(&'a Buffer),
    Null,
    Long(i64),
    Int(i32),
    Float(f32),
}

impl<'a> From<&'a Buffer> for Argument<'a> {
    fn from(buffer: &'a Buffer) -> Argument<'a> {
        Argument::Pointer(buffer)
    }
}

impl<'a> From<Option<&'a Buffer>> for Argument<'a> {
    fn from(buffer: Option<&'a Buffer>) -> Argument<'a> {
        buffer.map_or(Argument::Null, Argument::Pointer)
    }
}

impl From<i64> for Argument<'_> {
    fn from(value: i64) -> Self {
        Argument::Long(value)
    }
}

impl From<i32> for Argument<'_> {
    fn from(value: i32) -> Self {
        Argument::Int(value)
    }
}

impl From<bool> for Argument<'_> {
    fn from(value: bool) -> Self {
        Argument::Int(value.into())
    }
}

impl From<f32> for Argument<'_> {
    fn from(value: f32) -> Self {
        Argument::Float(value)
    }
}

/// `launch!(name, shape, argument, …)`
#[macro_export]
macro_rules! launch {
    ($name:expr, $shape:expr, $($argument:expr),* $(,)?) => {
        $crate::support::kernels::launch($name.as_ref(), &$shape, &[$($argument.into()),*])
    };
}

/// A launch's grid and block.
pub struct Shape {
    /// More than one where the grid must make no difference.
    pub grids: Vec<[u32; 3]>,
    pub block: [u32; 3],
}

impl Shape {
    /// A kernel that strides over its elements.
    pub fn any() -> Shape {
        Shape { grids: vec![[1, 1, 1], [3, 1, 1]], block: [256, 1, 1] }
    }

    pub fn one(grid: [u32; 3], block: [u32; 3]) -> Shape {
        Shape { grids: vec![grid], block }
    }

    /// "Columns" of kernels/README.md.
    pub fn columns(channels: usize, parts: Option<usize>) -> Shape {
        let grids = parts.map_or(vec![1, 3], |parts| vec![parts as u32]);
        let across = channels.div_ceil(64) as u32;
        Shape { grids: grids.into_iter().map(|down| [across, down, 1]).collect(), block: [256, 1, 1] }
    }

    /// "Shared": with any block and grid.
    pub fn shared(groups: usize) -> Shape {
        let beside = groups.next_power_of_two().min(256) as u32;
        Shape { grids: vec![[1, 1, 1], [2, 3, 2]], block: [beside, 256 / beside, 1] }
    }

    /// "Join".
    pub fn join(channels: usize) -> Shape {
        Shape::one([channels.div_ceil(4) as u32, 1, 1], [4, 64, 1])
    }
}

/// Runs a kernel with its threads in both orders and with every grid, from the same memory each time, and sees to it
/// that all gives the same bits and nothing beside the buffers was written.
pub fn launch(name: &str, shape: &Shape, given: &[Argument]) {
    note(name);
    if !on_gpu() {
        check(name, given);
    }
    let buffers: Vec<&Buffer> = given
        .iter()
        .filter_map(|argument| if let Argument::Pointer(buffer) = argument { Some(*buffer) } else { None })
        .collect();
    let before: Vec<_> = buffers.iter().map(|buffer| buffer.bytes()).collect();
    let mut first: Option<Vec<Vec<u8>>> = None;
    for grid in &shape.grids {
        for descending in [false, true] {
            buffers.iter().zip(&before).for_each(|(buffer, bytes)| buffer.set(bytes));
            run(name, *grid, shape.block, given, descending);
            assert!(buffers.iter().all(|buffer| buffer.is_whole()), "{name} writes beside its memory");
            let after: Vec<_> = buffers.iter().map(|buffer| buffer.bytes()).collect();
            let alike = first.get_or_insert_with(|| after.clone()) == &after;
            assert!(alike, "{name} depends on the order of its threads or on its grid {grid:?}");
        }
    }
}

/// For who wants to know which kernels the tests have launched.
fn note(name: &str) {
    static NOTED: Mutex<Option<HashSet<String>>> = Mutex::new(None);
    let Some(path) = std::env::var_os("DLTRAIN_KERNELS_LAUNCHED") else { return };
    if NOTED.lock().unwrap().get_or_insert_default().insert(name.to_string()) {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        file.unwrap().write_all(format!("{name}\n").as_bytes()).unwrap();
    }
}

/// Whether kernels run on a GPU.
pub fn on_gpu() -> bool {
    std::env::var_os("DLTRAIN_KERNELS_ON").is_some_and(|on| on == "cuda")
}

/// The arguments are of the kinds that the kernel has.
fn check(name: &str, given: &[Argument]) {
    let letters = arguments(name).unwrap_or_else(|| panic!("there is no kernel {name}"));
    let kinds = given.iter().map(|argument| match argument {
        Argument::Pointer(_) | Argument::Null => 'p',
        Argument::Long(_) => 'l',
        Argument::Int(_) => 'i',
        Argument::Float(_) => 'f',
    });
    assert_eq!(kinds.collect::<String>(), letters, "arguments of {name}");
}

fn run(name: &str, grid: [u32; 3], block: [u32; 3], given: &[Argument], descending: bool) {
    let result = if on_gpu() {
        run_on_gpu(name, grid, block, given)
    } else {
        let mut values = values(given, |buffer| buffer.address());
        run_on_host(name, grid, block, &mut values, descending)
    };
    result.unwrap_or_else(|e| panic!("kernel {name} with grid {grid:?}, block {block:?}: {e}"));
}

/// The arguments as a launch wants them: a word each, of which the lower half may be all.
fn values(given: &[Argument], mut address: impl FnMut(&Buffer) -> u64) -> Vec<u64> {
    let word = |argument: &Argument| match argument {
        Argument::Pointer(buffer) => address(buffer),
        Argument::Null => 0,
        Argument::Long(value) => *value as u64,
        Argument::Int(value) => u64::from(*value as u32),
        Argument::Float(value) => value.to_bits().into(),
    };
    given.iter().map(word).collect()
}

fn pointers(values: &mut [u64]) -> Vec<*mut c_void> {
    values.iter_mut().map(|value| (value as *mut u64).cast()).collect()
}

fn run_on_host(
    name: &str,
    grid: [u32; 3],
    block: [u32; 3],
    values: &mut [u64],
    descending: bool,
) -> Result<(), String> {
    type Run =
        unsafe extern "C" fn(*const c_char, *const c_uint, *const c_uint, *mut *mut c_void, bool) -> bool;
    let (name, mut pointers) = (CString::new(name).unwrap(), pointers(values));
    // SAFETY: the type is that of tests/fake_cuda/kernels.cpp; the arguments are of the kinds that the kernel has,
    // which `launch` has seen to, and its pointers are to living buffers of which nothing is borrowed.
    let ran = unsafe {
        let run = library().get::<Run>(b"kernel_run").unwrap();
        run(name.as_ptr(), grid.as_ptr(), block.as_ptr(), pointers.as_mut_ptr(), descending)
    };
    ran.then_some(()).ok_or_else(|| "a GPU would refuse it".into())
}

/// Each buffer goes there with its margins, and comes back.
fn run_on_gpu(name: &str, grid: [u32; 3], block: [u32; 3], given: &[Argument]) -> Result<(), String> {
    let driver = driver::driver().lock().unwrap();
    driver.enter();
    let mut there: Vec<(*const Buffer, driver::Memory)> = Vec::new();
    let mut values = values(given, |buffer| {
        // One buffer may stand for two arguments.
        let known = there.iter().position(|(of, _)| std::ptr::eq(*of, buffer)).unwrap_or_else(|| {
            there.push((buffer, buffer.whole(|all| driver.memory(all))));
            there.len() - 1
        });
        there[known].1.address + buffer.start as u64
    });
    driver.launch(name, grid, block, &mut pointers(&mut values))?;
    for argument in given {
        let Argument::Pointer(buffer) = argument else { continue };
        let (_, memory) = there.iter().find(|(of, _)| std::ptr::eq(*of, *buffer)).expect("it went there");
        buffer.whole(|all| all.copy_from_slice(&memory.read()));
    }
    Ok(())
}
