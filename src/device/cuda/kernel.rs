//! A kernel of the plan on the GPU: its layouts, and how it becomes work when it is bound to memory.

use std::rc::Rc;

use super::gpu::{Argument, BLOCK, Gpu, KernelLaunch};
use super::handle::allocate;
use super::layout::Real;
use super::narrow::Gradient;
use crate::device::{Kernel, KernelRequest, Layout, Memory, Scalars, Step};
use crate::error::Result;

/// Something to enqueue, as often as wanted.
pub type Enqueued = Box<dyn Fn() -> Result<()>>;

/// Memory of a kernel, checked against its layouts, and the work made so far.
pub struct Operands<'a> {
    pub gpu: &'a Rc<Gpu>,
    pub inputs: &'a [Memory],
    pub outputs: &'a [Memory],
    workspace: &'a Memory,
    halved: Option<usize>,
    used: usize,
    work: Vec<Enqueued>,
}

/// A kernel of the work that `bind` makes of its memory, in the order of the op's inputs and outputs.
pub fn cuda_kernel(
    gpu: &Rc<Gpu>,
    implementation: impl Into<String>,
    inputs: Vec<Layout>,
    outputs: Vec<Layout>,
    bind: impl Fn(&mut Operands) -> Result<()> + 'static,
) -> Kernel {
    let gpu = gpu.clone();
    Kernel::new(implementation, inputs, outputs, move |kernel, inputs, outputs, workspace| {
        let (halved, work) = (kernel.halved, Vec::new());
        let mut operands = Operands { gpu: &gpu, inputs, outputs, workspace, halved, used: 0, work };
        bind(&mut operands)?;
        operands.writes(outputs);
        let touched = Some([inputs, outputs].concat());
        Ok(Box::new(CudaStep { gpu: gpu.clone(), touched, work: operands.work }))
    })
}

/// States that `Operands::multiplied` gives input 1.
pub fn multiplies(kernel: Kernel, real: Real, request: &KernelRequest) -> Kernel {
    let of_w = &kernel.inputs[1];
    if of_w.dtype() == real.dtype() {
        return kernel;
    }
    // Of parameters alone the layout is open.
    match request.inputs[1].1 {
        None => Kernel { halved: Some(1), ..kernel },
        Some(_) => Kernel { kept: kernel.kept + of_w.bytes() / 4 * real.bytes(), ..kernel },
    }
}

/// A block of 256 threads, of which as many lie side by side as a row has groups of channels: what kernels share out
/// without dividing.
pub fn side_by_side(groups: usize) -> [u32; 2] {
    let beside = groups.next_power_of_two().clamp(1, BLOCK as usize) as u32;
    [beside, BLOCK / beside]
}

/// Every part of the workspace begins at such a multiple, as cuDNN and wide reads want it.
pub const PART: usize = 256;

impl Operands<'_> {
    /// The next part of the workspace. Parts add up to what the kernel asked for, each rounded up to `PART`.
    pub fn scratch(&mut self, bytes: usize) -> Memory {
        let part = self.workspace.slice(self.used, bytes);
        self.used += bytes.next_multiple_of(PART);
        part
    }

    /// Gives all parts back: what is enqueued from now on may write over them.
    pub fn reuse(&mut self) {
        self.used = 0;
    }

    /// Adds something to enqueue.
    pub fn push(&mut self, work: impl Fn() -> Result<()> + 'static) {
        self.work.push(Box::new(work));
    }

    /// Adds a launch with blocks of 256 threads. The arguments are those of `kernels/README.md`.
    pub fn launch(&mut self, name: &str, grid: [u32; 3], arguments: &[Argument]) -> Result<()> {
        // SAFETY: the families of kernels write their arguments after the table, tests run every one of them, and their
        // memory was checked against the layouts by `bind`.
        let launch = unsafe { KernelLaunch::new(self.gpu, name, grid, arguments) }?;
        self.add(launch);
        Ok(())
    }

    /// Adds a launch with blocks of another shape.
    pub fn launch_in(
        &mut self,
        block: [u32; 2],
        name: &str,
        grid: [u32; 3],
        arguments: &[Argument],
    ) -> Result<()> {
        // SAFETY: as in `launch`.
        let launch = unsafe { KernelLaunch::new(self.gpu, name, grid, arguments) }?;
        self.add(launch.in_blocks(block));
        Ok(())
    }

    /// Adds a launch of a kernel that strides over `n` elements of a type, which its name ends with.
    pub fn each(&mut self, name: &str, real: Real, n: usize, arguments: &[Argument]) -> Result<()> {
        match n {
            0 => Ok(()),
            _ => self.launch(&format!("{name}_{}", real.suffix()), self.gpu.blocks(n), arguments),
        }
    }

    fn add(&mut self, launch: KernelLaunch) {
        let stream = self.gpu.stream.clone();
        self.push(move || launch.run(&stream));
    }

    /// Input `index` as it is multiplied: of parameters that lie in f32 the copy in halves that the GPU keeps. What a
    /// step computes of parameters is cast whenever it is read: a copy would be right before a graph begins, not in it.
    pub fn multiplied(&mut self, index: usize, layout: &Layout, real: Real) -> Result<Memory> {
        let master = self.inputs[index].slice(0, layout.bytes());
        if layout.dtype() == real.dtype() {
            return Ok(master);
        }
        let gpu = self.gpu.clone();
        if self.halved != Some(index) {
            let n = master.bytes() / 4;
            let half = allocate(&gpu.context, n * real.bytes())?;
            let arguments =
                [Argument::Memory(&master), Argument::Memory(&half), Argument::Long(n), Argument::Float(1.0)];
            self.each("cast_f32", real, n, &arguments)?;
            return Ok(half);
        }
        let copies = gpu.halves.of(&gpu, &master, real)?;
        let half = copies.of(&master);
        copies.reads(&master);
        self.push(move || gpu.halves.read(&copies, gpu.is_capturing()));
        Ok(half)
    }

    /// What is written is not what halves were copied from any more.
    pub fn writes(&mut self, outputs: &[Memory]) {
        let (gpu, outputs) = (self.gpu.clone(), outputs.to_vec());
        self.push(move || {
            outputs.iter().for_each(|output| gpu.halves.written(output));
            Ok(())
        });
    }

    /// Adds the cast of a gradient that a product has given in halves (`Gpu::narrow`).
    pub fn widen(&mut self, gradient: Rc<Gradient>, to: &Memory, real: Real) -> Result<()> {
        let (n, name) = (to.bytes() / 4, format!("cast_{}_f32", real.suffix()));
        let arguments = [
            Argument::Memory(&gradient.halves),
            Argument::Memory(to),
            Argument::Long(n),
            Argument::Float(1.0),
        ];
        // SAFETY: as in `launch`; there are as many halves as numbers.
        let cast = unsafe { KernelLaunch::new(self.gpu, &name, self.gpu.blocks(n), &arguments) }?;
        let gpu = self.gpu.clone();
        self.push(move || if gpu.narrow.waits(&gradient) { Ok(()) } else { cast.run(&gpu.stream) });
        Ok(())
    }

    /// Adds a copy within the GPU.
    pub fn copy(&mut self, from: &Memory, to: &Memory, bytes: usize) {
        let (stream, from, to) = (self.gpu.stream.clone(), from.clone(), to.clone());
        self.push(move || stream.copy(&from, &to, bytes));
    }

    /// Takes what was added, for a step that is not of the plan.
    pub fn step(
        gpu: &Rc<Gpu>,
        workspace: &Memory,
        add: impl FnOnce(&mut Operands) -> Result<()>,
    ) -> Result<Box<dyn Step>> {
        let work = Operands::work(gpu, workspace, add)?;
        Ok(Box::new(CudaStep { gpu: gpu.clone(), touched: None, work }))
    }

    /// Work that reads no scalars of a step.
    pub fn work(
        gpu: &Rc<Gpu>,
        workspace: &Memory,
        add: impl FnOnce(&mut Operands) -> Result<()>,
    ) -> Result<Vec<Enqueued>> {
        let mut operands =
            Operands { gpu, inputs: &[], outputs: &[], workspace, halved: None, used: 0, work: Vec::new() };
        add(&mut operands)?;
        Ok(operands.work)
    }
}

/// A kernel bound to memory.
struct CudaStep {
    gpu: Rc<Gpu>,
    /// Its inputs and outputs, where it is of the plan.
    touched: Option<Vec<Memory>>,
    work: Vec<Enqueued>,
}

impl Step for CudaStep {
    fn run(&mut self, scalars: &Scalars) -> Result<()> {
        self.gpu.set_scalars(scalars)?;
        self.gpu.narrow.make(&self.gpu, self.touched.as_deref())?;
        self.work.iter().try_for_each(|work| work())
    }
}
