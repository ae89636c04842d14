//! CUDA: so far only the question which GPUs there are, or why none.
//!
//! The driver library is found and opened by `cudarc` at run time, so that one binary serves machines with and
//! without CUDA. May use: `error`. Used by: `dltrain info`.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_uint};

use cudarc::driver::sys;

/// A GPU that CUDA lets this process see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// CUDA's number for it, after CUDA_VISIBLE_DEVICES.
    pub index: usize,
    pub name: String,
    /// (major, minor): (9, 0) for Hopper.
    pub compute_capability: (i32, i32),
    pub memory_bytes: u64,
}

/// The driver and its GPUs; at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Driver {
    /// The newest CUDA the driver supports, as (major, minor).
    pub cuda_version: (i32, i32),
    pub gpus: Vec<Gpu>,
}

// The few driver calls, with plain integers as results: `cudarc` reads them as a Rust enum, which a newer
// driver's unknown code must not become, and panics where a symbol is missing.
type Init = unsafe extern "C" fn(c_uint) -> c_int;
type ToInt = unsafe extern "C" fn(*mut c_int) -> c_int;
type DeviceGet = unsafe extern "C" fn(*mut c_int, c_int) -> c_int;
type DeviceName = unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int;
type DeviceMemory = unsafe extern "C" fn(*mut usize, c_int) -> c_int;
type DeviceAttribute = unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int;
type ErrorString = unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int;

const NO_DEVICE: c_int = 100;
const COMPUTE_CAPABILITY_MAJOR: c_int = 75;
const COMPUTE_CAPABILITY_MINOR: c_int = 76;

/// Asks the CUDA driver for its GPUs. Where there is none the text says why. Creates no context.
pub fn probe() -> Result<Driver, String> {
    // SAFETY: opens the driver library by its usual names; running its constructors is what we want.
    if !unsafe { sys::is_culib_present() } {
        return Err("no CUDA driver library (libcuda.so.1) on this machine".into());
    }
    // SAFETY: the types are those of the driver API's reference, unchanged since CUDA 3.2 (the _v2 sizes).
    let (init, version, count, get, name, memory, attribute) = unsafe {
        (
            symbol::<Init>("cuInit")?,
            symbol::<ToInt>("cuDriverGetVersion")?,
            symbol::<ToInt>("cuDeviceGetCount")?,
            symbol::<DeviceGet>("cuDeviceGet")?,
            symbol::<DeviceName>("cuDeviceGetName")?,
            symbol::<DeviceMemory>("cuDeviceTotalMem_v2")?,
            symbol::<DeviceAttribute>("cuDeviceGetAttribute")?,
        )
    };
    // The version can be asked for even where cuInit fails, and is what an administrator needs then.
    let mut number = 0;
    // SAFETY: one out-parameter, alive during the call.
    let known = unsafe { version(&mut number) } == 0 && number > 0;
    let cuda_version = (number / 1000, number % 1000 / 10);
    let driver = match known {
        true => format!("a CUDA {}.{} driver is installed", cuda_version.0, cuda_version.1),
        false => "a CUDA driver library is installed".to_string(),
    };
    let check = |call: &str, code: c_int| match code {
        0 => Ok(()),
        NO_DEVICE => Err(format!("{driver}, but it sees no GPU{}", visible_devices())),
        code => Err(format!("{driver}, but {call} failed with code {code} ({})", meaning(code))),
    };
    // SAFETY: cuInit takes only its flags, which must be 0.
    check("cuInit", unsafe { init(0) })?;
    let mut devices = 0;
    // SAFETY: one out-parameter, alive during the call.
    check("cuDeviceGetCount", unsafe { count(&mut devices) })?;
    if devices == 0 {
        check("cuDeviceGetCount", NO_DEVICE)?;
    }
    let mut gpus = Vec::new();
    for index in 0..devices {
        let (mut device, mut memory_bytes, mut major, mut minor) = (0, 0, 0, 0);
        let mut text = [0 as c_char; 256];
        // SAFETY: out-parameters alive during the calls; the name is written within the length given, with its
        // closing zero; `device` is what cuDeviceGet answered.
        unsafe {
            check("cuDeviceGet", get(&mut device, index))?;
            check("cuDeviceGetName", name(text.as_mut_ptr(), text.len() as c_int, device))?;
            check("cuDeviceTotalMem", memory(&mut memory_bytes, device))?;
            check("cuDeviceGetAttribute", attribute(&mut major, COMPUTE_CAPABILITY_MAJOR, device))?;
            check("cuDeviceGetAttribute", attribute(&mut minor, COMPUTE_CAPABILITY_MINOR, device))?;
        }
        let bytes = text.map(|c| c as u8);
        let name = CStr::from_bytes_until_nul(&bytes).unwrap_or_default().to_string_lossy().into_owned();
        gpus.push(Gpu {
            index: index as usize,
            name,
            compute_capability: (major, minor),
            memory_bytes: memory_bytes as u64,
        });
    }
    Ok(Driver { cuda_version, gpus })
}

/// A function of the driver library.
///
/// # Safety
/// `F` must be the function's type, and the library must have been found to be present.
unsafe fn symbol<F: Copy>(name: &str) -> Result<F, String> {
    // SAFETY: the caller vouches for the type; the library, once open, stays open for the process's life.
    unsafe { sys::culib().get::<F>(name.as_bytes()) }
        .map(|symbol| *symbol)
        .map_err(|_| format!("the CUDA driver library is too old or not one: it has no {name}"))
}

/// The driver's words for a code.
fn meaning(code: c_int) -> String {
    let mut text = std::ptr::null();
    // SAFETY: the type is the reference's; the text is static and ends with a zero.
    unsafe {
        match symbol::<ErrorString>("cuGetErrorString") {
            Ok(error_string) if error_string(code, &mut text) == 0 && !text.is_null() => {
                CStr::from_ptr(text).to_string_lossy().into_owned()
            }
            _ => "unknown to this driver".into(),
        }
    }
}

/// A GPU is most often not seen because it was hidden.
fn visible_devices() -> String {
    match std::env::var("CUDA_VISIBLE_DEVICES") {
        Ok(value) => format!(" (CUDA_VISIBLE_DEVICES is \"{value}\")"),
        Err(_) => String::new(),
    }
}
