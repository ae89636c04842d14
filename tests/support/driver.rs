//! Runs a kernel on a GPU: the few calls of the CUDA driver that this takes, one after the other, each waited for.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::path::Path;
use std::sync::{Mutex, OnceLock};

use libloading::Library;

type Handle = *mut c_void;

/// The driver with our kernels loaded, on its first GPU.
pub struct Driver {
    library: Library,
    context: usize,
    module: usize,
}

/// Memory for one launch.
pub struct Memory<'a> {
    driver: &'a Driver,
    pub address: u64,
    bytes: usize,
}

macro_rules! call {
    ($driver:expr, $name:ident($($value:expr => $type:ty),* $(,)?)) => {{
        // SAFETY: the types are those of the driver's reference; pointers are to living variables.
        let code = unsafe {
            let name = stringify!($name);
            let function = $driver.library.get::<unsafe extern "C" fn($($type),*) -> c_int>(name.as_bytes());
            function.unwrap_or_else(|e| panic!("{name}: {e}"))($($value),*)
        };
        (code == 0).then_some(()).ok_or_else(|| format!("{} failed with code {code}", stringify!($name)))
    }};
}

/// The one driver of the process, and the right to use it: one launch at a time, so that what fails is known.
pub fn driver() -> &'static Mutex<Driver> {
    static DRIVER: OnceLock<Mutex<Driver>> = OnceLock::new();
    DRIVER.get_or_init(|| Mutex::new(Driver::open().unwrap()))
}

/// The driver from where the program takes it: DLTRAIN_CUDA_PATH, where the loader looks, where containers have it.
fn library() -> Result<Library, String> {
    let name = "libcuda.so.1";
    let given = std::env::var_os("DLTRAIN_CUDA_PATH").unwrap_or_default();
    let places =
        std::env::split_paths(&given).map(|directory| directory.join(name)).filter(|path| path.exists());
    let mut reasons = Vec::new();
    for place in places.chain([name.into(), Path::new("/usr/local/nvidia/lib64").join(name)]) {
        // SAFETY: the driver's constructors are what is wanted.
        match unsafe { Library::new(&place) } {
            Ok(library) => return Ok(library),
            Err(e) => {
                reasons.push(std::error::Error::source(&e).map_or(e.to_string(), |why| why.to_string()))
            }
        }
    }
    Err(format!("no CUDA driver library: {}", reasons.join("; ")))
}

impl Driver {
    fn open() -> Result<Driver, String> {
        let mut driver = Driver { library: library()?, context: 0, module: 0 };
        let (mut device, mut context, mut module): (c_int, Handle, Handle) =
            (0, std::ptr::null_mut(), std::ptr::null_mut());
        call!(driver, cuInit(0 => c_uint))?;
        call!(driver, cuDeviceGet(&mut device => *mut c_int, 0 => c_int))?;
        call!(driver, cuDevicePrimaryCtxRetain(&mut context => *mut Handle, device => c_int))?;
        call!(driver, cuCtxSetCurrent(context => Handle))?;
        // What the program would load (src/device/cuda/gpu.rs): an older GPU refuses the newer ones' kernels.
        let newer = concat!(include_str!("../../kernels/dltrain.sm_80.ptx"), "\0");
        let older = concat!(include_str!("../../kernels/dltrain.ptx"), "\0");
        let mut load = |image: &str| -> Result<(), String> {
            call!(driver, cuModuleLoadDataEx(&mut module => *mut Handle, image.as_ptr() => *const u8, 0 => c_uint, std::ptr::null() => *const c_int, std::ptr::null_mut() => *mut Handle))
        };
        load(newer).or_else(|_| load(older))?;
        (driver.context, driver.module) = (context as usize, module as usize);
        Ok(driver)
    }

    /// For this thread.
    pub fn enter(&self) {
        call!(self, cuCtxSetCurrent(self.context as Handle => Handle)).unwrap();
    }

    pub fn memory(&self, bytes: &[u8]) -> Memory<'_> {
        let mut address = 0u64;
        call!(self, cuMemAlloc_v2(&mut address => *mut u64, bytes.len() => usize)).unwrap();
        let from = bytes.as_ptr();
        call!(self, cuMemcpyHtoD_v2(address => u64, from => *const u8, bytes.len() => usize)).unwrap();
        Memory { driver: self, address, bytes: bytes.len() }
    }

    /// Runs a kernel to its end.
    pub fn launch(
        &self,
        name: &str,
        grid: [u32; 3],
        block: [u32; 3],
        arguments: &mut [Handle],
    ) -> Result<(), String> {
        let mut function: Handle = std::ptr::null_mut();
        let entry = CString::new(name).unwrap();
        call!(self, cuModuleGetFunction(
            &mut function => *mut Handle,
            self.module as Handle => Handle,
            entry.as_ptr() => *const c_char,
        ))?;
        call!(self, cuLaunchKernel(
            function => Handle,
            grid[0] => c_uint, grid[1] => c_uint, grid[2] => c_uint,
            block[0] => c_uint, block[1] => c_uint, block[2] => c_uint,
            0 => c_uint,
            std::ptr::null_mut() => Handle,
            arguments.as_mut_ptr() => *mut Handle,
            std::ptr::null_mut() => *mut Handle,
        ))?;
        call!(self, cuCtxSynchronize())
    }
}

impl Memory<'_> {
    pub fn read(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.bytes];
        let to = bytes.as_mut_ptr();
        call!(self.driver, cuMemcpyDtoH_v2(to => *mut u8, self.address => u64, self.bytes => usize)).unwrap();
        bytes
    }
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        // After a launch that failed this fails too, and that is said already.
        let _ = call!(self.driver, cuMemFree_v2(self.address => u64));
    }
}
