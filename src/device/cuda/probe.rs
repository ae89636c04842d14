//! Which GPUs there are, or why none. Creates no context.

use std::ffi::{CStr, c_char, c_int};

use super::library::cuda;
use super::sys::{CUDA_ERROR_NO_DEVICE, Failed, Outcome};

/// A GPU that CUDA lets this process see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// CUDA's number for it, after CUDA_VISIBLE_DEVICES.
    pub index: usize,
    /// Its name as the driver has it.
    pub name: String,
    /// (major, minor): (9, 0) for Hopper.
    pub compute_capability: (i32, i32),
    /// Its memory, in bytes.
    pub memory_bytes: u64,
    /// The same for all processes of a node: its place on the PCI bus.
    pub identity: String,
}

/// The driver and its GPUs; at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Driver {
    /// The newest CUDA the driver supports, as (major, minor).
    pub cuda_version: (i32, i32),
    /// The GPUs that the driver shows, after CUDA_VISIBLE_DEVICES.
    pub gpus: Vec<Gpu>,
}

const COMPUTE_CAPABILITY_MAJOR: c_int = 75;
const COMPUTE_CAPABILITY_MINOR: c_int = 76;
/// Domain, bus, device.
const PCI: [c_int; 3] = [50, 33, 34];

/// Asks the CUDA driver for its GPUs. Where there is none the text says why.
pub fn probe() -> Result<Driver, String> {
    let cuda = cuda()?;
    let (major, minor) = cuda.version;
    // The version can be asked for even where cuInit fails, and is what an administrator needs then.
    let driver = match cuda.version {
        (0, 0) => "a CUDA driver library is installed".to_string(),
        _ => format!("a CUDA {major}.{minor} driver is installed"),
    };
    let no_gpu = || format!("{driver}, but it sees no GPU{}", visible_devices());
    let check = |outcome: Outcome| match outcome {
        Ok(()) => Ok(()),
        Err(Failed { code: CUDA_ERROR_NO_DEVICE, .. }) => Err(no_gpu()),
        Err(Failed { call, code, library }) => {
            let meaning = super::library::text(library, code);
            Err(format!("{driver}, but {call} failed with code {code} ({meaning})"))
        }
    };
    // SAFETY: cuInit takes only its flags, which must be 0.
    check(unsafe { cuda.probe.cuInit(0) })?;
    let mut devices = 0;
    // SAFETY: one out-parameter, alive during the call.
    check(unsafe { cuda.probe.cuDeviceGetCount(&mut devices) })?;
    if devices == 0 {
        return Err(no_gpu());
    }
    let gpu = |index: c_int| -> Result<Gpu, String> {
        let (mut device, mut memory_bytes, mut major, mut minor) = (0, 0, 0, 0);
        let mut text = [0 as c_char; 256];
        // SAFETY: out-parameters alive during the calls; the name is written within the length given, with its
        // closing zero; `device` is what cuDeviceGet answered.
        unsafe {
            check(cuda.probe.cuDeviceGet(&mut device, index))?;
            check(cuda.probe.cuDeviceGetName(text.as_mut_ptr(), text.len() as c_int, device))?;
            check(cuda.probe.cuDeviceTotalMem_v2(&mut memory_bytes, device))?;
            check(cuda.probe.cuDeviceGetAttribute(&mut major, COMPUTE_CAPABILITY_MAJOR, device))?;
            check(cuda.probe.cuDeviceGetAttribute(&mut minor, COMPUTE_CAPABILITY_MINOR, device))?;
        }
        let bytes = text.map(|c| c as u8);
        let place = PCI.map(|attribute| {
            let mut number = 0;
            // SAFETY: as above. Where there is no such attribute the number stays 0.
            let asked = unsafe { cuda.probe.cuDeviceGetAttribute(&mut number, attribute, device) };
            asked.map_or(index, |()| number)
        });
        Ok(Gpu {
            identity: place.map(|number| format!("{number:x}")).join(":"),
            index: index as usize,
            name: CStr::from_bytes_until_nul(&bytes).unwrap_or_default().to_string_lossy().into_owned(),
            compute_capability: (major, minor),
            memory_bytes: memory_bytes as u64,
        })
    };
    Ok(Driver { cuda_version: cuda.version, gpus: (0..devices).map(gpu).collect::<Result<_, _>>()? })
}

/// A GPU is most often not seen because it was hidden.
fn visible_devices() -> String {
    match std::env::var("CUDA_VISIBLE_DEVICES") {
        Ok(value) => format!(" (CUDA_VISIBLE_DEVICES is \"{value}\")"),
        Err(_) => String::new(),
    }
}
