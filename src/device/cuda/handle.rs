//! What the driver gives, owned: each handle frees itself, keeps alive what it depends on, and turns failures into
//! errors.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::rc::Rc;

use super::early;
use super::library::{Libraries, cuda, libraries};
use super::sys::{
    self, CUDA_ERROR_NOT_READY, CUdeviceptr, CUevent, CUfunction, CUgraph, CUgraphExec, CUipcMemHandle,
    CUlaunchAttribute, CUlaunchAttributeID, CUlaunchAttributeValue, CUlaunchConfig, CUmodule, CUstream,
    CudaResult, Failed,
};
use crate::device::{Memory, Point};
use crate::error::{Error, Result};

/// CU_STREAM_NON_BLOCKING: does not wait for the legacy default stream.
const STREAM_NON_BLOCKING: c_uint = 1;
/// CU_EVENT_DISABLE_TIMING
const EVENT_DISABLE_TIMING: c_uint = 2;
/// CU_EVENT_RECORD_EXTERNAL: a node of the graph that is captured, and no mark in it.
const EVENT_RECORD_EXTERNAL: c_uint = 1;
/// CU_MEMHOSTREGISTER_PORTABLE
const PORTABLE: c_uint = 1;
/// CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, the only flag there is.
const LAZY_PEER_ACCESS: c_uint = 1;
/// CU_IPC_HANDLE_SIZE: bytes by which a process tells others of an allocation.
pub const OFFER: usize = 64;
/// The driver gives small allocations room in blocks of so many bytes, and a process that opens one reaches its block.
pub const OFFERED: usize = 2 << 20;
/// CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES
const JIT_ERROR_LOG: [c_int; 2] = [5, 6];
/// CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
const CAPTURE_THREAD_LOCAL: c_int = 1;

/// A handle that cannot be freed has no caller to tell; what matters is said by the next call that fails.
fn freed(outcome: CudaResult) {
    if let Err(Failed { call, code, .. }) = outcome {
        log::debug!("{call} failed with code {code}");
    }
}

/// The primary context of one GPU, current in the thread that made it.
pub struct Context {
    pub libraries: &'static Libraries,
    pub device: c_int,
    /// CUDA's number of the GPU.
    pub ordinal: usize,
    /// Events that nobody uses: making one costs more than marking a point with it.
    events: RefCell<Vec<CUevent>>,
}

impl Context {
    /// # Errors
    /// `Environment` when libraries are missing; `Foreign` when the GPU cannot be used.
    pub fn new(ordinal: usize) -> Result<Rc<Context>> {
        let libraries = libraries()?;
        let probe = &cuda().map_err(Error::environment)?.probe;
        let (mut device, mut raw) = (0, ptr::null_mut());
        // SAFETY: out-parameters alive during the calls; the context is made current in the one thread that uses it.
        unsafe {
            probe.cuInit(0)?;
            probe.cuDeviceGet(&mut device, ordinal as c_int)?;
            libraries.driver.cuDevicePrimaryCtxRetain(&mut raw, device)?;
        }
        // From here on dropping releases it.
        let context = Rc::new(Context { libraries, device, ordinal, events: RefCell::default() });
        // SAFETY: the context was just retained.
        unsafe { libraries.driver.cuCtxSetCurrent(raw) }?;
        Ok(context)
    }

    /// Bytes free and in all on the GPU.
    pub fn memory(&self) -> Result<(usize, usize)> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: out-parameters alive during the call; the context is current.
        unsafe { self.libraries.driver.cuMemGetInfo_v2(&mut free, &mut total) }?;
        Ok((free, total))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        for event in self.events.take() {
            // SAFETY: made by `CudaEvent::new`, destroyed once.
            freed(unsafe { self.libraries.driver.cuEventDestroy_v2(event) });
        }
        // SAFETY: retained once by `new`; everything made in it holds an `Rc` of it and is gone.
        freed(unsafe { self.libraries.driver.cuDevicePrimaryCtxRelease_v2(self.device) });
    }
}

/// A queue of work on the GPU.
pub struct CudaStream {
    pub context: Rc<Context>,
    raw: CUstream,
    /// Host memory that copies under way may read or write: it lives at least until they have ended.
    copied: RefCell<Vec<Memory>>,
    /// Whether what comes next waits for another stream: then it must not begin early.
    behind_another: Cell<bool>,
}

impl CudaStream {
    pub fn new(context: &Rc<Context>) -> Result<Rc<CudaStream>> {
        let mut raw = ptr::null_mut();
        // SAFETY: the out-parameter is alive during the call; the context is current.
        unsafe { context.libraries.driver.cuStreamCreate(&mut raw, STREAM_NON_BLOCKING) }?;
        let (copied, behind_another) = (RefCell::default(), Cell::new(false));
        Ok(Rc::new(CudaStream { context: context.clone(), raw, copied, behind_another }))
    }

    pub fn raw(&self) -> CUstream {
        self.raw
    }

    fn driver(&self) -> &'static sys::Driver {
        &self.context.libraries.driver
    }

    /// Waits until all that was enqueued has finished.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the stream is alive.
        unsafe { self.driver().cuStreamSynchronize(self.raw) }?;
        self.copied.borrow_mut().clear();
        Ok(())
    }

    /// Marks this point of the queue.
    pub fn record(&self) -> Result<CudaEvent> {
        self.record_with(EVENT_DISABLE_TIMING)
    }

    /// An event that has the time at which it is reached.
    pub fn record_time(&self) -> Result<CudaEvent> {
        self.record_with(0)
    }

    fn record_with(&self, flags: c_uint) -> Result<CudaEvent> {
        let event = CudaEvent::new(&self.context, flags)?;
        // SAFETY: event and stream are alive and of one context.
        unsafe { self.driver().cuEventRecord(event.raw, self.raw) }?;
        Ok(event)
    }

    /// While this is captured: an event at this point, which every launch of the graph marks anew.
    pub fn record_in_graph(&self) -> Result<CudaEvent> {
        let mut event = CudaEvent::new(&self.context, EVENT_DISABLE_TIMING)?;
        event.is_of_graph = true;
        // SAFETY: event and stream are alive and of one context.
        unsafe { self.driver().cuEventRecordWithFlags(event.raw, self.raw, EVENT_RECORD_EXTERNAL) }?;
        Ok(event)
    }

    /// Lets what is enqueued from now on wait for an event of any stream.
    pub fn wait(&self, event: &CudaEvent) -> Result<()> {
        self.behind_another.set(true);
        // SAFETY: both are alive; the driver keeps what it needs of the event.
        Ok(unsafe { self.driver().cuStreamWaitEvent(self.raw, event.raw, 0) }?)
    }

    /// Copies to the GPU behind what is enqueued, and waits for it. (Of pageable memory CUDA 12.2 and newer no more say
    /// that it has been read when the call returns: a GPU that reaches the host's memory itself need not stage it.)
    pub fn upload(&self, from: &[u8], to: &Memory) -> Result<()> {
        assert_eq!(from.len(), to.bytes(), "an upload of unequal lengths");
        if from.is_empty() {
            return Ok(());
        }
        // SAFETY: lengths are equal, the device memory is alive in the queue, and `from` is borrowed until the copy has
        // ended.
        unsafe {
            self.driver().cuMemcpyHtoDAsync_v2(address(to), from.as_ptr().cast(), from.len(), self.raw)
        }?;
        self.synchronize()
    }

    /// Copies to the host behind what is enqueued, and waits for it.
    pub fn download(&self, from: &Memory, to: &mut [u8]) -> Result<()> {
        assert_eq!(from.bytes(), to.len(), "a download of unequal lengths");
        if to.is_empty() {
            return Ok(());
        }
        // SAFETY: as in `upload`.
        unsafe {
            self.driver().cuMemcpyDtoHAsync_v2(to.as_mut_ptr().cast(), address(from), from.bytes(), self.raw)
        }?;
        self.synchronize()
    }

    /// Copies host memory to the GPU behind what is enqueued. The stream keeps it alive until then.
    ///
    /// # Safety
    /// Host memory, to which nobody may write until that has happened.
    pub unsafe fn upload_later(&self, from: &Memory, to: &Memory) -> Result<()> {
        assert_eq!(from.bytes(), to.bytes(), "an upload of unequal lengths");
        self.keep(from)?;
        // SAFETY: lengths are equal, both memories are alive in the queue; of the rest the caller takes care.
        Ok(unsafe {
            self.driver().cuMemcpyHtoDAsync_v2(address(to), from.address().cast(), from.bytes(), self.raw)
        }?)
    }

    /// Copies GPU memory to the host behind what is enqueued. The stream keeps that alive until then.
    ///
    /// # Safety
    /// Host memory, which nobody may touch until that has happened.
    pub unsafe fn download_later(&self, from: &Memory, to: &Memory) -> Result<()> {
        assert_eq!(from.bytes(), to.bytes(), "a download of unequal lengths");
        self.keep(to)?;
        // SAFETY: as in `upload_later`.
        Ok(unsafe {
            self.driver().cuMemcpyDtoHAsync_v2(to.address().cast(), address(from), from.bytes(), self.raw)
        }?)
    }

    /// Keeps memory alive until it is known that no copy is under way. Steps use the same few again and again.
    pub fn keep(&self, memory: &Memory) -> Result<()> {
        const MOST: usize = 64;
        let is_kept = |kept: &Memory| Rc::ptr_eq(kept.owner(), memory.owner());
        if self.copied.borrow().iter().any(is_kept) {
            return Ok(());
        }
        if self.copied.borrow().len() == MOST {
            self.synchronize()?;
        }
        self.copied.borrow_mut().push(memory.clone());
        Ok(())
    }

    /// Copies within the GPU.
    pub fn copy(&self, from: &Memory, to: &Memory, bytes: usize) -> Result<()> {
        assert!(bytes <= from.bytes() && bytes <= to.bytes(), "a copy beyond the end");
        if bytes == 0 || from.address() == to.address() {
            return Ok(());
        }
        // SAFETY: both ranges lie within memory of the GPU.
        Ok(unsafe { self.driver().cuMemcpyDtoDAsync_v2(address(to), address(from), bytes, self.raw) }?)
    }

    pub fn zero(&self, memory: &Memory) -> Result<()> {
        if memory.bytes() == 0 {
            return Ok(());
        }
        // SAFETY: the range is memory of the GPU.
        Ok(unsafe { self.driver().cuMemsetD8Async(address(memory), 0, memory.bytes(), self.raw) }?)
    }

    /// Launches a kernel.
    ///
    /// # Safety
    /// The arguments must be those that the kernel declares, and the memory they point to large enough.
    pub unsafe fn launch(
        &self,
        function: &Function,
        grid: [u32; 3],
        block: [u32; 2],
        arguments: &mut [*mut c_void],
    ) -> Result<()> {
        let [x, y, z] = grid;
        let (raw, arguments) = (function.raw, arguments.as_mut_ptr());
        // SAFETY: function and stream are alive and of one context; the caller vouches for the arguments, which the
        // driver copies before it returns.
        let outcome = unsafe {
            match function.module.waits && !self.behind_another.take() {
                true => self.launch_early(raw, grid, block, arguments),
                false => self.driver().cuLaunchKernel(
                    raw,
                    x,
                    y,
                    z,
                    block[0],
                    block[1],
                    1,
                    0,
                    self.raw,
                    arguments,
                    ptr::null_mut(),
                ),
            }
        };
        outcome.map_err(|failed| Error::from(failed).context(format!("kernel {}", function.name)))
    }

    /// A launch that may begin before what is in front of it has ended.
    ///
    /// # Safety
    /// As of `launch`; and the kernel waits for that itself.
    unsafe fn launch_early(
        &self,
        function: CUfunction,
        grid: [u32; 3],
        block: [u32; 2],
        arguments: *mut *mut c_void,
    ) -> CudaResult {
        let mut attribute = CUlaunchAttribute {
            id: CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: CUlaunchAttributeValue { pad: [0; 64] },
        };
        attribute.value.programmaticStreamSerializationAllowed = 1;
        let config = CUlaunchConfig {
            gridDimX: grid[0],
            gridDimY: grid[1],
            gridDimZ: grid[2],
            blockDimX: block[0],
            blockDimY: block[1],
            blockDimZ: 1,
            sharedMemBytes: 0,
            hStream: self.raw,
            attrs: &raw mut attribute,
            numAttrs: 1,
        };
        // SAFETY: the caller's; configuration and attribute are alive during the call.
        unsafe { self.driver().cuLaunchKernelEx(&config, function, arguments, ptr::null_mut()) }
    }

    /// Records what `enqueue` enqueues, instead of running it, as one graph.
    pub fn capture(self: &Rc<CudaStream>, enqueue: impl FnOnce() -> Result<()>) -> Result<CudaGraph> {
        // SAFETY: the stream is alive and not capturing.
        unsafe { self.driver().cuStreamBeginCapture_v2(self.raw, CAPTURE_THREAD_LOCAL) }?;
        let enqueued = enqueue();
        let mut graph: CUgraph = ptr::null_mut();
        // SAFETY: the stream is capturing; the out-parameter is alive. It must be ended also where enqueueing failed.
        let ended = unsafe { self.driver().cuStreamEndCapture(self.raw, &mut graph) };
        // What failed first says most.
        enqueued.and(ended.map_err(Error::from)).inspect_err(|_| destroy(self.driver(), graph))?;
        let mut raw = ptr::null_mut();
        // SAFETY: the graph was just made; the executable does not need it any more once it is made.
        let made = unsafe { self.driver().cuGraphInstantiateWithFlags(&mut raw, graph, 0) };
        destroy(self.driver(), graph);
        made?;
        Ok(CudaGraph { stream: self.clone(), raw })
    }
}

fn destroy(driver: &sys::Driver, graph: CUgraph) {
    if !graph.is_null() {
        // SAFETY: a graph that capturing gave, destroyed once.
        freed(unsafe { driver.cuGraphDestroy(graph) });
    }
}

impl Drop for CudaStream {
    fn drop(&mut self) {
        // Destroying a stream waits for nothing, and the host memory of its copies is freed after this. (The context
        // must not keep it: that memory holds the context, and neither would ever be freed.) Where waiting fails the
        // context is broken, and copies nothing any more.
        if !self.copied.borrow().is_empty() {
            let _ = self.synchronize();
        }
        // SAFETY: made by `new`, destroyed once.
        freed(unsafe { self.driver().cuStreamDestroy_v2(self.raw) });
    }
}

/// A point in a stream.
pub struct CudaEvent {
    context: Rc<Context>,
    raw: CUevent,
    timed: bool,
    /// A graph has it.
    is_of_graph: bool,
}

impl CudaEvent {
    /// To be recorded: it stands for that point from then on. One without a time may be one that is not in use any
    /// more.
    fn new(context: &Rc<Context>, flags: c_uint) -> Result<CudaEvent> {
        let spare = || context.events.borrow_mut().pop();
        let mut raw = (flags == EVENT_DISABLE_TIMING).then(spare).flatten().unwrap_or(ptr::null_mut());
        if raw.is_null() {
            // SAFETY: the out-parameter is alive during the call; the context is current.
            unsafe { context.libraries.driver.cuEventCreate(&mut raw, flags) }?;
        }
        let timed = flags != EVENT_DISABLE_TIMING;
        Ok(CudaEvent { context: context.clone(), raw, timed, is_of_graph: false })
    }

    /// Seconds since another; both have been reached, and recorded with their times.
    pub fn seconds_since(&self, earlier: &CudaEvent) -> Result<f64> {
        let mut milliseconds = 0.0;
        // SAFETY: both events are alive, the out-parameter during the call.
        unsafe {
            self.context.libraries.driver.cuEventElapsedTime(&mut milliseconds, earlier.raw, self.raw)
        }?;
        Ok(1e-3 * f64::from(milliseconds))
    }
}

impl Point for CudaEvent {
    fn reached(&self) -> Result<bool> {
        // SAFETY: the event is alive.
        match unsafe { self.context.libraries.driver.cuEventQuery(self.raw) } {
            Ok(()) => Ok(true),
            Err(Failed { code: CUDA_ERROR_NOT_READY, .. }) => Ok(false),
            Err(failed) => Err(failed.into()),
        }
    }
}

impl Drop for CudaEvent {
    /// Streams that were told to wait for it wait for the point that it marked then, whatever it marks later.
    fn drop(&mut self) {
        match self.timed || self.is_of_graph {
            // SAFETY: made by `new`, destroyed once.
            true => freed(unsafe { self.context.libraries.driver.cuEventDestroy_v2(self.raw) }),
            false => self.context.events.borrow_mut().push(self.raw),
        }
    }
}

/// Launches the whole of what was captured at once.
pub struct CudaGraph {
    stream: Rc<CudaStream>,
    raw: CUgraphExec,
}

impl CudaGraph {
    pub fn launch(&self) -> Result<()> {
        // SAFETY: both are alive. What the graph's nodes point to is kept alive by who captured it.
        Ok(unsafe { self.stream.driver().cuGraphLaunch(self.raw, self.stream.raw) }?)
    }
}

impl Drop for CudaGraph {
    fn drop(&mut self) {
        // SAFETY: made by `capture`, destroyed once.
        freed(unsafe { self.stream.driver().cuGraphExecDestroy(self.raw) });
    }
}

/// Compiled kernels.
pub struct Module {
    context: Rc<Context>,
    raw: CUmodule,
    /// Whether they wait themselves for what is in front of them (`early`).
    waits: bool,
}

impl Module {
    /// Loads PTX, which ends with a zero, or a cubin.
    ///
    /// # Errors
    /// `Foreign`, with what the driver's compiler says.
    pub fn load(context: &Rc<Context>, image: &[u8]) -> Result<Rc<Module>> {
        Module::loaded(context, image, false)
    }

    /// Loads PTX for sm_80 with kernels that begin before those in front of them have ended, and wait for these.
    ///
    /// # Errors
    /// As of `load`.
    pub fn load_waiting(context: &Rc<Context>, ptx: &[u8]) -> Result<Rc<Module>> {
        Module::loaded(context, early::waiting(&String::from_utf8_lossy(ptx)).as_bytes(), true)
    }

    fn loaded(context: &Rc<Context>, image: &[u8], waits: bool) -> Result<Rc<Module>> {
        let mut raw = ptr::null_mut();
        let mut log = [0u8; 4096];
        // The length is passed in the pointer's place. The last byte stays zero.
        let mut values: [*mut c_void; 2] =
            [log.as_mut_ptr().cast(), ptr::without_provenance_mut(log.len() - 1)];
        // SAFETY: the image is PTX that ends with a zero or a whole cubin; the driver copies it. The two options are a
        // buffer, alive during the call, and its length.
        let outcome = unsafe {
            context.libraries.driver.cuModuleLoadDataEx(
                &mut raw,
                image.as_ptr().cast(),
                JIT_ERROR_LOG.len() as c_uint,
                JIT_ERROR_LOG.as_ptr(),
                values.as_mut_ptr(),
            )
        };
        outcome.map_err(|failed| {
            let said = CStr::from_bytes_until_nul(&log).unwrap_or_default().to_string_lossy();
            let mut error = Error::from(failed);
            if !said.trim().is_empty() {
                error.message += &format!("; the driver's compiler says: {}", said.trim());
            }
            error
        })?;
        Ok(Rc::new(Module { context: context.clone(), raw, waits }))
    }

    /// # Errors
    /// `Internal` for a name that the module does not have: it is compiled into this program.
    pub fn function(self: &Rc<Module>, name: &str) -> Result<Function> {
        let text = CString::new(name).map_err(|e| Error::internal(e.to_string()))?;
        let mut raw = ptr::null_mut();
        // SAFETY: the name ends with a zero and lives during the call; the module is alive.
        unsafe { self.context.libraries.driver.cuModuleGetFunction(&mut raw, self.raw, text.as_ptr()) }
            .map_err(|failed| Error::from(failed).context(format!("kernel {name}")))?;
        Ok(Function { raw, name: name.into(), module: self.clone() })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: loaded by `load`, unloaded once; its functions hold an `Rc` of it.
        freed(unsafe { self.context.libraries.driver.cuModuleUnload(self.raw) });
    }
}

/// A kernel.
#[derive(Clone)]
pub struct Function {
    raw: CUfunction,
    name: Rc<str>,
    module: Rc<Module>,
}

/// An allocation on the GPU, freed with the last slice of it.
struct Allocation {
    context: Rc<Context>,
    address: CUdeviceptr,
    bytes: usize,
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: allocated by `allocate`, freed once. cuMemFree waits for the work that uses it.
        freed(unsafe { self.context.libraries.driver.cuMemFree_v2(self.address) });
    }
}

/// Memory of the GPU, not yet of any content.
///
/// # Errors
/// `Environment` when there is not that much.
pub fn allocate(context: &Rc<Context>, bytes: usize) -> Result<Memory> {
    let mut address: CUdeviceptr = 0;
    // A range of no bytes has an address too.
    let room = bytes.max(crate::device::memory::ALIGNMENT);
    // SAFETY: the out-parameter is alive during the call; the context is current.
    let outcome = unsafe { context.libraries.driver.cuMemAlloc_v2(&mut address, room) };
    outcome
        .map_err(|failed| Error::from(failed).context(format!("{bytes} bytes on GPU {}", context.ordinal)))?;
    let owner: Rc<dyn Any> = Rc::new(Allocation { context: context.clone(), address, bytes });
    // SAFETY: memory of the GPU, alive with its owner. Its address is never read through on the host: whoever has a
    // `Memory` of a device goes through that device.
    Ok(unsafe { Memory::from_raw(address as *mut u8, bytes, owner) })
}

/// All of the allocation that this memory is of; memory of another process's is by itself.
pub fn allocation(memory: &Memory) -> Memory {
    match memory.owner().downcast_ref::<Allocation>() {
        // SAFETY: as `allocate` made it.
        Some(whole) => unsafe {
            Memory::from_raw(whole.address as *mut u8, whole.bytes, memory.owner().clone())
        },
        None => memory.clone(),
    }
}

/// What another process needs to open this memory, all of an allocation.
pub fn offer(context: &Rc<Context>, memory: &Memory) -> Result<[u8; OFFER]> {
    let mut handle = CUipcMemHandle { reserved: [0; OFFER] };
    // SAFETY: the out-parameter is alive during the call.
    unsafe { context.libraries.driver.cuIpcGetMemHandle(&mut handle, address(memory)) }?;
    Ok(handle.reserved.map(|byte| byte as u8))
}

/// Memory of another process's, closed with the last slice of it.
struct Opened {
    context: Rc<Context>,
    address: CUdeviceptr,
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: opened by `open`, closed once.
        freed(unsafe { self.context.libraries.driver.cuIpcCloseMemHandle(self.address) });
    }
}

/// Opens what another process offers, of so many bytes.
///
/// # Errors
/// `Foreign` where this GPU cannot reach that memory.
pub fn open(context: &Rc<Context>, offer: [u8; OFFER], bytes: usize) -> Result<Memory> {
    let handle = CUipcMemHandle { reserved: offer.map(|byte| byte as c_char) };
    let mut address: CUdeviceptr = 0;
    // SAFETY: the out-parameter is alive during the call; the context is current. The handle is data, which the driver
    // checks.
    unsafe { context.libraries.driver.cuIpcOpenMemHandle_v2(&mut address, handle, LAZY_PEER_ACCESS) }?;
    let owner: Rc<dyn Any> = Rc::new(Opened { context: context.clone(), address });
    // SAFETY: memory of a GPU as long as its owner and the other process live, not read through on the host (see
    // `allocate`).
    Ok(unsafe { Memory::from_raw(address as *mut u8, bytes, owner) })
}

/// The address of a memory of the GPU.
pub fn address(memory: &Memory) -> CUdeviceptr {
    memory.address() as CUdeviceptr
}

/// Host memory that shares no page with other memory, to be page-locked.
pub fn pages(bytes: usize) -> Result<Memory> {
    const PAGE: usize = 4096;
    let room = bytes.next_multiple_of(PAGE);
    let memory = Memory::host(room + PAGE)?;
    Ok(memory.slice(memory.address().align_offset(PAGE), room).slice(0, bytes))
}

/// Host memory of somebody else's that is page-locked as long as this lives.
pub struct Registered {
    context: Rc<Context>,
    /// Held for its life.
    memory: Memory,
}

impl Registered {
    pub fn new(context: &Rc<Context>, memory: &Memory) -> Result<Registered> {
        // SAFETY: the range is host memory, alive with `memory`.
        unsafe {
            context.libraries.driver.cuMemHostRegister_v2(memory.address().cast(), memory.bytes(), PORTABLE)
        }?;
        Ok(Registered { context: context.clone(), memory: memory.clone() })
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: registered by `new`, unregistered once.
        freed(unsafe { self.context.libraries.driver.cuMemHostUnregister(self.memory.address().cast()) });
    }
}
