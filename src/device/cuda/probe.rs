//! Which GPUs there are, or why none. Creates no context.

use std::ffi::{CStr, c_char, c_int};

use super::library::cuda;
use super::sys::{CUDA_ERROR_NO_DEVICE, CudaResult, Failed};
use crate::config::Precision;
use crate::error::{self, Error};

/// A GPU that CUDA lets this process see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuInfo {
    /// CUDA's number for it, after CUDA_VISIBLE_DEVICES.
    pub index: usize,
    /// Its name as the driver has it.
    pub name: String,
    /// (major, minor): (9, 0) for Hopper.
    pub compute_capability: (i32, i32),
    /// Its memory, in bytes.
    pub memory_bytes: u64,
    /// Its place on the PCI bus, which is the same for all processes of a node.
    pub identity: String,
}

/// The least compute capability that multiplies tf32 and bf16.
const TENSOR_CORES: i32 = 8;

impl GpuInfo {
    /// What it computes in where no precision is asked for.
    pub fn default_precision(&self) -> Precision {
        if self.serves(Precision::Tf32).is_ok() { Precision::Tf32 } else { Precision::F32 }
    }

    /// # Errors
    /// A precision that it has not, with the GPUs that have it.
    pub fn serves(&self, precision: Precision) -> error::Result<()> {
        let (major, minor) = self.compute_capability;
        let needed = match precision {
            Precision::Tf32 | Precision::Bf16 => TENSOR_CORES,
            Precision::Auto | Precision::F32 | Precision::F16 => 6,
        };
        match major >= needed {
            true => Ok(()),
            false => Err(Error::environment(format!(
                "--precision {precision} needs a GPU of sm_{needed}0 or newer, and {} is sm_{major}{minor}",
                self.name
            ))),
        }
    }
}

/// The driver and its GPUs; at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Driver {
    /// The newest CUDA the driver supports, as (major, minor).
    pub cuda_version: (i32, i32),
    /// The GPUs that the driver shows, after CUDA_VISIBLE_DEVICES.
    pub gpus: Vec<GpuInfo>,
}

impl Driver {
    /// The GPU of this number, or where none is given that of a rank's place on its node. A rank that sees one was
    /// given it, by Slurm or by CUDA_VISIBLE_DEVICES.
    ///
    /// # Errors
    /// There is none of this number.
    pub fn gpu(&self, number: Option<usize>, local_rank: usize) -> error::Result<&GpuInfo> {
        let count = self.gpus.len();
        let number = number.unwrap_or(local_rank % count);
        self.gpus.get(number).ok_or_else(|| {
            Error::usage(format!(
                "--device cuda:{number}: there {}",
                match count {
                    1 => "is one GPU, number 0".into(),
                    _ => format!("are {count} GPUs, 0 to {}", count - 1),
                }
            ))
        })
    }
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
    let check = |outcome: CudaResult| match outcome {
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
    let gpu = |index: c_int| -> Result<GpuInfo, String> {
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
        Ok(GpuInfo {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn driver(count: usize, major: i32) -> Driver {
        let gpu = |index| GpuInfo {
            index,
            name: "P100".into(),
            compute_capability: (major, 0),
            memory_bytes: 1,
            identity: index.to_string(),
        };
        Driver { cuda_version: (13, 0), gpus: (0..count).map(gpu).collect() }
    }

    #[test]
    fn ranks_go_round_the_gpus_they_see() {
        let of = |count| {
            let driver = driver(count, 9);
            (0..4).map(|rank| driver.gpu(None, rank).unwrap().index).collect::<Vec<_>>()
        };
        assert_eq!((of(4), of(2), of(1)), (vec![0, 1, 2, 3], vec![0, 1, 0, 1], vec![0; 4]));
        let driver = driver(2, 9);
        assert_eq!(driver.gpu(Some(1), 0).unwrap().index, 1);
        let error = driver.gpu(Some(2), 0).unwrap_err();
        assert_eq!(error.message, "--device cuda:2: there are 2 GPUs, 0 to 1");
        assert_eq!(error.exit_code(), 2);
    }

    #[test]
    fn a_precision_that_the_gpu_has_not_is_refused_with_what_it_takes() {
        let gpu = |major| driver(1, major).gpus.remove(0);
        assert!(gpu(6).serves(Precision::F32).is_ok());
        assert!(gpu(8).serves(Precision::Bf16).is_ok());
        let error = gpu(6).serves(Precision::Tf32).unwrap_err();
        assert!(error.message.contains("sm_80 or newer, and P100 is sm_60"), "{error}");
        assert_eq!([6, 8].map(|major| gpu(major).default_precision()), [Precision::F32, Precision::Tf32]);
    }
}
