//! The GPU's own meter: NVIDIA's management library, read a few times a second by a thread of its own. Where it is
//! missing, or does not show a figure (as on a part of a GPU), there is none: training needs none of it.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use libloading::Library;

use super::library::beside_driver;
use crate::device::Usage;

const NVML: &str = "libnvidia-ml.so.1";
/// The library's own figures are of the last sixth of a second to a second.
const EVERY: Duration = Duration::from_millis(200);

type NvmlDevice = *mut c_void;

/// nvmlUtilization_t: percent.
#[repr(C)]
#[derive(Default)]
struct NvmlUtilization {
    gpu: c_uint,
    memory: c_uint,
}

/// nvmlMemory_t: bytes.
#[repr(C)]
#[derive(Default)]
struct MemoryInfo {
    total: u64,
    free: u64,
    used: u64,
}

/// The library, initialised once for the process and never shut down.
struct Nvml {
    handle: unsafe extern "C" fn(*const c_char, *mut NvmlDevice) -> c_int,
    rates: unsafe extern "C" fn(NvmlDevice, *mut NvmlUtilization) -> c_int,
    memory: unsafe extern "C" fn(NvmlDevice, *mut MemoryInfo) -> c_int,
    power: unsafe extern "C" fn(NvmlDevice, *mut c_uint) -> c_int,
    path: PathBuf,
    // The functions live as long as this does.
    _library: Library,
}

fn nvml() -> Result<&'static Nvml, String> {
    static OPENED: OnceLock<Result<Nvml, String>> = OnceLock::new();
    OPENED.get_or_init(open).as_ref().map_err(Clone::clone)
}

fn open() -> Result<Nvml, String> {
    let (library, path) = beside_driver(NVML).ok_or_else(|| format!("no {NVML} on this machine"))?;
    let lacks = |_| format!("{} lacks a function of it", path.display());
    // SAFETY: the types are those of the library's reference, which have not changed since its version 5; it stays
    // open.
    unsafe {
        let init = *library.get::<unsafe extern "C" fn() -> c_int>(b"nvmlInit_v2\0").map_err(lacks)?;
        let nvml = Nvml {
            handle: *library.get(b"nvmlDeviceGetHandleByPciBusId_v2\0").map_err(lacks)?,
            rates: *library.get(b"nvmlDeviceGetUtilizationRates\0").map_err(lacks)?,
            memory: *library.get(b"nvmlDeviceGetMemoryInfo\0").map_err(lacks)?,
            power: *library.get(b"nvmlDeviceGetPowerUsage\0").map_err(lacks)?,
            path: path.clone(),
            _library: library,
        };
        match init() {
            0 => Ok(nvml),
            code => Err(format!("nvmlInit_v2 of {} failed with code {code}", path.display())),
        }
    }
}

/// The library's file, or why there are no figures.
pub fn found() -> Result<PathBuf, String> {
    nvml().map(|nvml| nvml.path.clone())
}

/// Reads the meter of one GPU as long as it lives.
pub struct Meter {
    shown: Arc<Mutex<Usage>>,
    /// Dropped to end the thread.
    ending: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// A GPU's handle, which any thread may use.
#[derive(Clone, Copy)]
struct NvmlGpu(NvmlDevice);

// SAFETY: NVML's functions may be called by any thread; the handle is theirs alone.
unsafe impl Send for NvmlGpu {}

impl Meter {
    /// The meter of the GPU at a place on the PCI bus (domain, bus and device in hexadecimal digits, as `probe` has
    /// it).
    pub fn start(place: &str) -> Result<Meter, String> {
        let nvml = nvml()?;
        let mut parts = place.split(':').map(|part| u32::from_str_radix(part, 16).unwrap_or(0));
        let [domain, bus, device] = std::array::from_fn(|_| parts.next().unwrap_or(0));
        let name =
            CString::new(format!("{domain:08x}:{bus:02x}:{device:02x}.0")).map_err(|e| e.to_string())?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: a text that ends with a zero and an out-parameter, alive during the call.
        match unsafe { (nvml.handle)(name.as_ptr(), &mut handle) } {
            0 => Ok(Meter::of(nvml, NvmlGpu(handle))?),
            code => Err(format!("nvmlDeviceGetHandleByPciBusId_v2 failed with code {code}")),
        }
    }

    fn of(nvml: &'static Nvml, gpu: NvmlGpu) -> Result<Meter, String> {
        let shown = Arc::new(Mutex::new(read(nvml, gpu)));
        let (ending, ended) = channel();
        let to = shown.clone();
        let work = move || watch(nvml, gpu, &to, &ended);
        let thread =
            std::thread::Builder::new().name("nvml".into()).spawn(work).map_err(|e| e.to_string())?;
        Ok(Meter { shown, ending: Some(ending), thread: Some(thread) })
    }

    /// What it showed last.
    pub fn shown(&self) -> Usage {
        *self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.ending = None;
        if let Some(thread) = self.thread.take() {
            // It only reads numbers: nothing to tell.
            let _ = thread.join();
        }
    }
}

fn watch(nvml: &Nvml, gpu: NvmlGpu, to: &Mutex<Usage>, ended: &Receiver<()>) {
    while ended.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
        let now = read(nvml, gpu);
        *to.lock().unwrap_or_else(PoisonError::into_inner) = now;
    }
}

fn read(nvml: &Nvml, gpu: NvmlGpu) -> Usage {
    let (mut rates, mut memory, mut milliwatts) = (NvmlUtilization::default(), MemoryInfo::default(), 0);
    let shown = |code: c_int, value: f64| if code == 0 { value } else { f64::NAN };
    // SAFETY: the handle is the library's; the out-parameters have its types and live during the calls.
    unsafe {
        let codes = (
            (nvml.rates)(gpu.0, &mut rates),
            (nvml.memory)(gpu.0, &mut memory),
            (nvml.power)(gpu.0, &mut milliwatts),
        );
        Usage {
            busy: shown(codes.0, f64::from(rates.gpu) / 100.0),
            memory: shown(codes.1, memory.used as f64),
            power: shown(codes.2, f64::from(milliwatts) / 1000.0),
        }
    }
}
