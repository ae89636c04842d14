//! NCCL: the GPUs of all ranks add up by themselves. Loaded when it is asked for, from where the other libraries are
//! looked for.
//!
//! The communicator is one that does not block (NCCL 2.14): a call begins something, and `ncclCommGetAsyncError` says
//! when it is done. So a rank that is lost while others join, or that never takes part in a sum, leaves them polling,
//! and not in a call that nobody returns from.

use std::ffi::{c_int, c_void};
use std::path::PathBuf;
use std::ptr;
use std::rc::Rc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::Duration;

use libloading::Library;

use super::gpu::Gpu;
use super::handle::{CudaStream, address};
use super::library::{file_of, first, listed, places};
use super::mark;
use super::sys::{
    self, CudaLibrary, CudaResult, DnnText, Failed, Nccl, NcclComm, NcclConfig, NcclLastError, NcclUniqueId,
};
use crate::device::{DeviceEvent, DeviceGroup, Memory};
use crate::error::{Error, Result};

const NCCL: &str = "libnccl.so.2";
/// 2.14, as the library counts: the first with communicators that do not block.
const LEAST: c_int = 21400;
/// NCCL_API_MAGIC
const MAGIC: u32 = 0xcafe_beef;
/// ncclRemoteError
const REMOTE: c_int = 6;
/// ncclInProgress
const IN_PROGRESS: c_int = 7;
/// How long a rank waits for the one that has failed to say why, and to end the job.
const FOR_THE_CAUSE: Duration = Duration::from_secs(2);
/// ncclFloat32
const FLOAT32: c_int = 7;
/// ncclSum
const SUM: c_int = 0;

struct Loaded {
    calls: Nccl,
    text: DnnText,
    last_error: NcclLastError,
    /// Its version in words, and its file.
    found: (String, PathBuf),
    // The functions live as long as this does.
    _library: Library,
}

/// The process's NCCL, loaded by the first call.
fn loaded() -> Result<&'static Loaded> {
    static LOADED: OnceLock<std::result::Result<Loaded, String>> = OnceLock::new();
    let missing = |why: &String| {
        Error::environment(format!(
            "--allreduce nccl: {why}. Load your site's NCCL module, or `pip install nvidia-nccl-cu12` in a virtual \
             environment, or set DLTRAIN_CUDA_PATH to the directory that holds it; --allreduce auto runs without"
        ))
    };
    LOADED.get_or_init(open).as_ref().map_err(missing)
}

fn open() -> std::result::Result<Loaded, String> {
    let places = places();
    let (library, path) =
        first(&places, NCCL).ok_or_else(|| format!("no NCCL ({NCCL}) in {}", listed(&places)))?;
    let path = file_of(&library, b"ncclGetVersion\0").unwrap_or(path);
    let lacks = |name: &str| format!("{} is too old or not NCCL: it has no {name}", path.display());
    // SAFETY: this is the library by its name, and it stays open.
    let calls = unsafe { Nccl::load(&library) }.map_err(lacks)?;
    // SAFETY: the types are those of the library's reference.
    let (text, last_error) = unsafe {
        (
            *library.get::<DnnText>(b"ncclGetErrorString\0").map_err(|_| lacks("ncclGetErrorString"))?,
            *library.get::<NcclLastError>(b"ncclGetLastError\0").map_err(|_| lacks("ncclGetLastError"))?,
        )
    };
    let mut version = 0;
    // SAFETY: the out-parameter is alive during the call.
    unsafe { calls.ncclGetVersion(&mut version) }
        .map_err(|Failed { call, code, .. }| format!("{call} failed with code {code}"))?;
    let words = format!("{}.{}.{}", version / 10_000, version % 10_000 / 100, version % 100);
    if version < LEAST {
        return Err(format!("{} is NCCL of code {version}; dltrain needs 2.14 or newer", path.display()));
    }
    Ok(Loaded { calls, text, last_error, found: (words, path), _library: library })
}

/// The version and the file of the library.
///
/// # Errors
/// `Environment`: that it is missing or too old, and the remedy.
pub fn found() -> Result<(String, PathBuf)> {
    Ok(loaded()?.found.clone())
}

/// The library's words for a code.
pub fn words(code: c_int) -> Option<String> {
    // SAFETY: any integer may be asked for; the text is static.
    loaded().ok().and_then(|loaded| unsafe { sys::owned((loaded.text)(code)) })
}

/// What one rank makes for all to join by.
pub fn unique_id() -> Result<Vec<u8>> {
    let mut id = NcclUniqueId([0; 128]);
    // SAFETY: the out-parameter is alive during the call.
    unsafe { loaded()?.calls.ncclGetUniqueId(&mut id) }
        .map_err(|failed| explained(failed, ptr::null_mut()))?;
    Ok(id.0.to_vec())
}

/// A failure with what the library last said of it.
fn explained(failed: Failed, comm: NcclComm) -> Error {
    let mut error = Error::from(failed);
    // SAFETY: the communicator is alive, or null, as the reference allows; the text is the library's and ends with a
    // zero.
    let last = loaded().ok().and_then(|loaded| unsafe { sys::owned((loaded.last_error)(comm)) });
    if let Some(last) = last.map(|text| text.trim().to_string()).filter(|text| !text.is_empty()) {
        error.message += &format!("; {last}");
    }
    error
}

/// This rank's part of a communicator of all ranks.
pub struct NcclCommunicator {
    loaded: &'static Loaded,
    gpu: Rc<Gpu>,
    /// Where sums run, beside what the GPU computes.
    stream: Rc<CudaStream>,
    /// Null when it has been freed. NCCL's own thread writes to it while ranks join.
    raw: Box<AtomicPtr<c_void>>,
    /// What was asked for last.
    call: &'static str,
    /// Whether all have left, so that it may be freed without telling the others.
    quiet: bool,
}

impl NcclCommunicator {
    /// Begins to join.
    pub fn join(gpu: &Rc<Gpu>, id: &[u8], rank: usize, ranks: usize) -> Result<NcclCommunicator> {
        let mut joined = NcclCommunicator {
            loaded: loaded()?,
            gpu: gpu.clone(),
            stream: CudaStream::new(&gpu.context)?,
            raw: Box::new(AtomicPtr::new(ptr::null_mut())),
            call: "",
            quiet: false,
        };
        let id = id.try_into().map_err(|_| Error::internal("an NCCL id of another length"))?;
        let mut config =
            NcclConfig { size: size_of::<NcclConfig>(), magic: MAGIC, version: LEAST as u32, blocking: 0 };
        let (ranks, rank, comm) = (ranks as c_int, rank as c_int, joined.raw.as_ptr());
        let id = NcclUniqueId(id);
        // SAFETY: the GPU's context is current; NCCL copies the configuration, and the box lives until `Drop` has ended
        // the communicator.
        let begun = unsafe { joined.loaded.calls.ncclCommInitRankConfig(comm, ranks, id, rank, &mut config) };
        joined.begun("ncclCommInitRankConfig", begun)?;
        Ok(joined)
    }

    fn raw(&self) -> NcclComm {
        self.raw.load(Ordering::Acquire)
    }

    /// A call was made, and is done or under way.
    fn begun(&mut self, call: &'static str, outcome: CudaResult) -> Result<()> {
        self.call = call;
        match outcome {
            Ok(()) | Err(Failed { code: IN_PROGRESS, .. }) => Ok(()),
            Err(failed) => Err(self.broken(failed)),
        }
    }

    /// Something failed: what the GPUs do together ends now, so that nobody waits for a GPU that waits for others.
    /// Where another rank failed, that rank's message comes first.
    fn broken(&mut self, failed: Failed) -> Error {
        let error = explained(failed, self.raw());
        self.free();
        if failed.code == REMOTE {
            std::thread::sleep(FOR_THE_CAUSE);
        }
        error
    }

    fn free(&mut self) {
        let comm = self.raw.swap(ptr::null_mut(), Ordering::AcqRel);
        if comm.is_null() {
            return;
        }
        let calls = &self.loaded.calls;
        // SAFETY: made by `join`, freed once. Nobody is told of a failure here, and more cannot be done.
        let freed =
            unsafe { if self.quiet { calls.ncclCommDestroy(comm) } else { calls.ncclCommAbort(comm) } };
        if let Err(Failed { call, code, .. }) = freed {
            log::debug!("{call} failed with code {code}");
        }
    }

    /// The communicator, as long as nothing has failed.
    fn alive(&self) -> Result<NcclComm> {
        match self.raw() {
            comm if comm.is_null() => Err(Error::internal("NCCL is asked for something after its end")),
            comm => Ok(comm),
        }
    }
}

impl DeviceGroup for NcclCommunicator {
    fn ready(&mut self) -> Result<bool> {
        let (comm, mut code) = (self.alive()?, 0);
        // SAFETY: the communicator is alive, and the out-parameter during the call.
        if let Err(failed) = unsafe { self.loaded.calls.ncclCommGetAsyncError(comm, &mut code) } {
            return Err(self.broken(failed));
        }
        match code {
            0 => {
                self.quiet = self.call == "ncclCommFinalize";
                Ok(true)
            }
            IN_PROGRESS => Ok(false),
            code => Err(self.broken(Failed { library: CudaLibrary::Nccl, call: self.call, code })),
        }
    }

    fn sum(&mut self, memory: &Memory) -> Result<()> {
        let comm = self.alive()?;
        self.stream.wait(&self.gpu.stream.record()?)?;
        self.gpu.halves.written(memory);
        let (at, count) = (address(memory) as *mut c_void, memory.bytes() / size_of::<f32>());
        // SAFETY: so many numbers lie there, and nobody touches them until `reached`; communicator and stream are
        // alive.
        let begun =
            unsafe { self.loaded.calls.ncclAllReduce(at, at, count, FLOAT32, SUM, comm, self.stream.raw()) };
        self.begun("ncclAllReduce", begun)
    }

    fn record(&self) -> Result<DeviceEvent> {
        mark(&self.stream)
    }

    fn leave(&mut self) -> Result<()> {
        let comm = self.alive()?;
        // SAFETY: the communicator is alive.
        let begun = unsafe { self.loaded.calls.ncclCommFinalize(comm) };
        self.begun("ncclCommFinalize", begun)
    }
}

impl Drop for NcclCommunicator {
    fn drop(&mut self) {
        self.free();
    }
}
