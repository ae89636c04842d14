//! One GPU with everything that its kernels share: queues, libraries' handles, our kernels, and the numbers of a step.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::io::Read;
use std::ops::Range;
use std::rc::Rc;

use flate2::read::GzDecoder;

use super::blas::BlasHandle;
use super::dnn::DnnHandle;
use super::early;
use super::halves::Halves;
use super::handle::{
    Context, CudaEvent, CudaGraph, CudaStream, Function, Module, Registered, address, allocate, pages,
};
use super::library::{CudaInfo, cuda};
use super::narrow::Narrow;
use super::probe::GpuInfo;
use super::tune::Tuned;
use crate::device::memory::bytes_of;
use crate::device::update::adam_corrections;
use crate::device::{Memory, Point, Scalars};
use crate::error::{Error, Result};

/// Our kernels for GPUs from a compute capability on, the newest first, deflated by build.rs to a sixth; the driver
/// compiles them for the one that is there, and keeps what it made.
const PTX: [((i32, i32), &[u8]); 2] = [
    ((8, 0), include_bytes!(concat!(env!("OUT_DIR"), "/dltrain.sm_80.ptx.gz"))),
    ((0, 0), include_bytes!(concat!(env!("OUT_DIR"), "/dltrain.ptx.gz"))),
];
/// Our kernels, assembled for some GPUs where a CUDA toolkit was there to build with (build.rs); else nothing.
const FATBIN: &[u8] = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/kernels.fatbin"))).0;

/// The PTX for a GPU, closed by a zero.
fn ptx_for(capability: (i32, i32)) -> Result<Vec<u8>> {
    let (_, deflated) = PTX[PTX.iter().position(|(from, _)| *from <= capability).unwrap_or(PTX.len() - 1)];
    let mut text = Vec::new();
    let inflated = GzDecoder::new(deflated).read_to_end(&mut text);
    inflated.map_err(|e| Error::internal(format!("the kernels do not inflate: {e}")))?;
    text.push(0);
    Ok(text)
}

/// Our kernels on this GPU.
fn kernels(context: &Rc<Context>, capability: (i32, i32), driver: (i32, i32)) -> Result<Rc<Module>> {
    if early::wanted(capability, driver) {
        return Module::load_waiting(context, &ptx_for(capability)?);
    }
    let assembled = (!FATBIN.is_empty()).then(|| Module::load(context, FATBIN));
    // The GPU may be another one than those.
    assembled.and_then(Result::ok).map_or_else(|| Module::load(context, &ptx_for(capability)?), Ok)
}

/// The driver reads words.
#[repr(align(16))]
struct Aligned<const BYTES: usize>([u8; BYTES]);

/// CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
const MULTIPROCESSORS: c_int = 16;

/// Threads of a block, and elements that each block should have at least.
pub const BLOCK: u32 = 256;
const PER_BLOCK: usize = 1024;

/// What kernels read of a step: `struct Scalars` of `kernels/common.cuh`, as words; and where in it `skip` lies.
const SCALARS_BYTES: usize = 64;
const SKIP: Range<usize> = 44..48;

/// A GPU ready to work.
pub struct Gpu {
    pub context: Rc<Context>,
    /// Where everything runs, one after the other.
    pub stream: Rc<CudaStream>,
    /// Where copies from and to the host go, beside that.
    pub copies: CopyStreams,
    pub blas: BlasHandle,
    pub dnn: DnnHandle,
    pub tuned: Tuned,
    pub info: GpuInfo,
    /// Whether f32 products may be rounded to tf32's 10 bits.
    pub tf32: bool,
    /// Copies of the parameters in halves.
    pub halves: Halves,
    /// The weights' gradients in halves.
    pub narrow: Narrow,
    multiprocessors: u32,
    /// Ours, and those that were asked for.
    kernels: (Rc<Module>, RefCell<HashMap<String, Function>>),
    /// On the GPU.
    pub scalars: Memory,
    written: ScalarState,
    capture: CaptureState,
}

/// Steps that are being captured.
#[derive(Default)]
struct CaptureState {
    /// Nothing may be uploaded beside them.
    under_way: Cell<bool>,
    /// What they copy to the host.
    leaving: RefCell<Vec<Leaving>>,
}

/// Memory of the host that a graph copies to, and when that is there.
type Leaving = (Memory, Rc<CudaEvent>);

/// What was captured, as one graph.
pub struct CapturedGraph {
    graph: CudaGraph,
    leaving: Vec<Leaving>,
    /// What its kernels read besides the memory of the steps.
    _table: Option<Memory>,
}

impl CapturedGraph {
    pub fn launch(&self, gpu: &Gpu) -> Result<()> {
        self.leaving.iter().try_for_each(|(host, _)| gpu.stream.keep(host))?;
        self.graph.launch()
    }
}

/// Streams of copies.
pub struct CopyStreams {
    /// Gradients to the host, and back.
    pub leaving: Rc<CudaStream>,
    pub coming: Rc<CudaStream>,
    /// The next batch.
    pub inputs: Rc<CudaStream>,
}

/// What is known of the scalars on the GPU.
struct ScalarState {
    slots: Slots,
    /// What was last put there.
    current: Cell<Option<Scalars>>,
    /// Whether kernels write to `skip`.
    skips: Cell<bool>,
    /// Adam's, for the corrections that kernels read with the scalars.
    betas: Cell<(f32, f32)>,
}

impl Gpu {
    pub fn new(ordinal: usize, tf32: bool) -> Result<Rc<Gpu>> {
        let context = Context::new(ordinal)?;
        let stream = CudaStream::new(&context)?;
        let copies = CopyStreams {
            leaving: CudaStream::new(&context)?,
            coming: CudaStream::new(&context)?,
            inputs: CudaStream::new(&context)?,
        };
        let driver = super::probe().map_err(Error::environment)?;
        let gpu =
            driver.gpus.get(ordinal).ok_or_else(|| Error::internal(format!("GPU {ordinal} has gone")))?;
        let mut multiprocessors = 0;
        // SAFETY: the out-parameter is alive; the device is the context's.
        unsafe {
            let probe = &cuda().map_err(Error::environment)?.probe;
            probe.cuDeviceGetAttribute(&mut multiprocessors, MULTIPROCESSORS, context.device)?;
        }
        let module = kernels(&context, gpu.compute_capability, driver.cuda_version)
            .map_err(|e| e.context(format!("compiling the kernels for {}", gpu.name)))?;
        let found = &context.libraries.found;
        let tuned = Tuned::of(&format!("{}, {}", gpu.name, found.versions()));
        let gpu = Gpu {
            blas: BlasHandle::new(&context, &stream, tf32)?,
            dnn: DnnHandle::new(&context, &stream)?,
            tuned,
            info: gpu.clone(),
            tf32,
            halves: Halves::default(),
            narrow: Narrow::default(),
            multiprocessors: multiprocessors.max(1) as u32,
            kernels: (module, RefCell::default()),
            scalars: allocate(&context, SCALARS_BYTES)?,
            written: ScalarState {
                slots: Slots::new(&context)?,
                current: Cell::new(None),
                skips: Cell::new(false),
                betas: Cell::new((0.0, 0.0)),
            },
            capture: CaptureState::default(),
            context,
            stream,
            copies,
        };
        Ok(Rc::new(gpu))
    }

    pub fn found(&self) -> &CudaInfo {
        &self.context.libraries.found
    }

    /// One of our kernels.
    pub fn function(&self, name: &str) -> Result<Function> {
        let (module, functions) = &self.kernels;
        if let Some(function) = functions.borrow().get(name) {
            return Ok(function.clone());
        }
        let function = module.function(name)?;
        functions.borrow_mut().insert(name.into(), function.clone());
        Ok(function)
    }

    /// Blocks for a kernel that strides over `n` elements.
    pub fn blocks(&self, n: usize) -> [u32; 3] {
        [self.at_most(n.div_ceil(PER_BLOCK)), 1, 1]
    }

    /// So many blocks, but no more than the GPU has at work at a time.
    pub fn at_most(&self, blocks: usize) -> u32 {
        blocks.clamp(1, 16 * self.multiprocessors as usize) as u32
    }

    /// The blocks at work at a time if each multiprocessor has so many.
    pub fn resident(&self, blocks: usize) -> usize {
        blocks * self.multiprocessors as usize
    }

    /// The betas of Adam's rule, which the scalars' corrections are made of.
    pub fn set_betas(&self, beta1: f32, beta2: f32) {
        self.written.betas.set((beta1, beta2));
        self.written.current.set(None);
    }

    /// Lets the kernels enqueued from now on read these numbers.
    pub fn set_scalars(&self, scalars: &Scalars) -> Result<()> {
        let current = self.written.current.get();
        if self.capture.under_way.get() || current == Some(*scalars) {
            return Ok(());
        }
        let (beta1, beta2) = self.written.betas.get();
        let (correction1, correction2) = adam_corrections(scalars, beta1, beta2);
        let mut bytes = [0u8; SCALARS_BYTES];
        let (corrections, skip) = ([correction1, correction2], [0i32]);
        let words = [scalars.seed, scalars.step, scalars.first_sample, scalars.update];
        let factors = [scalars.gradient_scale, scalars.learning_rate, scalars.rescale];
        let mut at = 0;
        let parts = [bytes_of(&words), bytes_of(&factors), bytes_of(&skip), bytes_of(&corrections)];
        for part in parts {
            bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        let slot = self.written.slots.next(&self.stream)?;
        slot.write(&bytes);
        // What was found of a step's gradients stays for the rest of the step.
        let keeps = self.written.skips.get() && current.is_some_and(|current| current.step == scalars.step);
        let parts = if keeps { [0..SKIP.start, SKIP.end..SCALARS_BYTES] } else { [0..SCALARS_BYTES, 0..0] };
        for part in parts.iter().filter(|part| !part.is_empty()) {
            let [from, to] = [&slot, &self.scalars].map(|memory| memory.slice(part.start, part.len()));
            // SAFETY: host memory, to which nobody writes before the stream has come by.
            unsafe { self.stream.upload_later(&from, &to) }?;
        }
        self.written.current.set(Some(*scalars));
        Ok(())
    }

    /// Where kernels look whether the step's gradients are of no use; steps may write there from now on.
    pub fn skip_flag(&self) -> Memory {
        self.written.skips.set(true);
        self.scalars.slice(SKIP.start, SKIP.len())
    }

    pub fn is_capturing(&self) -> bool {
        self.capture.under_way.get()
    }

    /// Records what `enqueue` enqueues as one graph.
    pub fn capture(&self, enqueue: impl FnOnce() -> Result<()>) -> Result<CapturedGraph> {
        self.narrow.begin(self)?;
        self.capture.under_way.set(true);
        let graph = self.stream.capture(|| {
            enqueue()?;
            self.narrow.make(self, None)?;
            // What left comes together again.
            match self.capture.leaving.borrow().is_empty() {
                true => Ok(()),
                false => self.stream.wait(&self.copies.leaving.record()?),
            }
        });
        self.capture.under_way.set(false);
        let (table, leaving) = (self.narrow.end(self), self.capture.leaving.take());
        Ok(CapturedGraph { graph: graph?, leaving, _table: table? })
    }

    /// Copies to memory of the host, which nobody may touch until the event: behind `after`, beside what is enqueued.
    pub fn copy_to_host(
        &self,
        from: &Memory,
        to: &Memory,
        after: Option<&CudaEvent>,
    ) -> Result<Rc<CudaEvent>> {
        let stream = &self.copies.leaving;
        after.map_or(Ok(()), |after| stream.wait(after))?;
        // SAFETY: the caller leaves that memory alone.
        unsafe { stream.download_later(from, to) }?;
        if !self.is_capturing() {
            return stream.record().map(Rc::new);
        }
        let event = Rc::new(stream.record_in_graph()?);
        self.capture.leaving.borrow_mut().push((to.clone(), event.clone()));
        Ok(event)
    }
}

/// Page-locked memory for the numbers of some steps: they are on their way when the next ones come, and nobody waits
/// for them.
struct Slots {
    memory: Memory,
    _locked: Option<Registered>,
    /// How many were given out, and a point behind each half.
    given: Cell<usize>,
    passed: RefCell<[Option<CudaEvent>; 2]>,
}

impl Slots {
    /// In each half.
    const HALF: usize = 32;

    fn new(context: &Rc<Context>) -> Result<Slots> {
        let memory = pages(2 * Slots::HALF * SCALARS_BYTES)?;
        // Without, copies take longer.
        let locked = Registered::new(context, &memory).ok();
        Ok(Slots { memory, _locked: locked, given: Cell::new(0), passed: RefCell::default() })
    }

    /// One that the stream has passed.
    fn next(&self, stream: &CudaStream) -> Result<Memory> {
        let given = self.given.replace(self.given.get() + 1);
        if given.is_multiple_of(Slots::HALF) {
            let half = given / Slots::HALF % 2;
            let mut passed = self.passed.borrow_mut();
            passed[1 - half] = Some(stream.record()?);
            while let Some(event) = &passed[half]
                && !event.reached()?
            {
                std::thread::yield_now();
            }
        }
        Ok(self.memory.slice(given % (2 * Slots::HALF) * SCALARS_BYTES, SCALARS_BYTES))
    }
}

/// One launch of a kernel with its arguments, ready to be repeated.
pub struct KernelLaunch {
    function: Function,
    grid: [u32; 3],
    block: [u32; 2],
    /// Each argument in the low bytes of a word.
    arguments: Vec<u64>,
    /// What the arguments point to.
    memory: Vec<Memory>,
}

/// An argument of a kernel.
#[derive(Clone, Copy)]
pub enum Argument<'a> {
    Memory(&'a Memory),
    /// A pointer that the kernel knows to be allowed to be missing.
    Null,
    Long(usize),
    Int(usize),
    Float(f32),
    Bool(bool),
}

impl KernelLaunch {
    /// # Safety
    /// The arguments must be those that the kernel declares (`kernels/README.md`), the memory of each large enough.
    pub unsafe fn new(gpu: &Gpu, name: &str, grid: [u32; 3], arguments: &[Argument]) -> Result<KernelLaunch> {
        let mut launch = KernelLaunch {
            function: gpu.function(name)?,
            grid,
            block: [BLOCK, 1],
            arguments: Vec::with_capacity(arguments.len()),
            memory: Vec::new(),
        };
        for argument in arguments {
            launch.arguments.push(match *argument {
                Argument::Memory(memory) => {
                    launch.memory.push(memory.clone());
                    address(memory)
                }
                Argument::Null => 0,
                Argument::Long(value) => value as u64,
                Argument::Int(value) => i32::try_from(value).map_err(|_| {
                    Error::usage(format!("{name}: {value} is too large for a GPU; use a smaller --batch"))
                })? as u32 as u64,
                Argument::Float(value) => u64::from(value.to_bits()),
                Argument::Bool(value) => u64::from(value),
            });
        }
        Ok(launch)
    }

    /// With blocks of another shape than 256 threads in a row.
    pub fn in_blocks(self, block: [u32; 2]) -> KernelLaunch {
        KernelLaunch { block, ..self }
    }

    pub fn run(&self, stream: &CudaStream) -> Result<()> {
        let mut words = self.arguments.clone();
        let mut pointers: Vec<*mut c_void> = words.iter_mut().map(|word| (word as *mut u64).cast()).collect();
        // SAFETY: `new`'s caller vouches for the arguments; `self.memory` keeps what they point to.
        unsafe { stream.launch(&self.function, self.grid, self.block, &mut pointers) }
    }
}
