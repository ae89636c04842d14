//! cuDNN: its handle, and convolutions with the engine chosen for them.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::ptr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::backend::{self, BoundPlan, Configuration, CudnnPlan, TargetGpu};
use super::blas::Matrix;
use super::gpu::Gpu;
use super::handle::{Context, CudaStream, allocate};
use super::layout::Real;
use super::product::{Direction, Product, ProductOperand, Then};
use super::sys::{self, cudnnHandle_t};
use super::tune::TunedChoice;
use crate::config::environment;
use crate::device::Memory;
use crate::device::memory::{ALIGNMENT, bytes_of};
use crate::error::{self, Error, Result};

/// No engine may take more scratch memory than this: beyond it speed is bought with batch size.
const MOST_WORKSPACE: usize = 1 << 30;

/// Engines that are timed: cuDNN names first what it takes for fast. Fewer of those that are compiled for it.
const TIMED: usize = 10;
const COMPILED: usize = 3;

/// Runs of each, of which the mean counts.
const REPEATS: u32 = 5;

/// A GPU that has had nothing to do for so long may have lowered its clocks, and raises them within so much work.
const SLEEPS: Duration = Duration::from_millis(100);
const WAKES: Duration = Duration::from_millis(20);
/// What the host waits for that at most.
const LONG: Duration = Duration::from_millis(200);

pub struct DnnHandle {
    context: Rc<Context>,
    pub raw: cudnnHandle_t,
    /// Whether it was said that engines are being chosen.
    said: Cell<bool>,
    /// When something was last timed.
    timed: Cell<Option<Instant>>,
    /// Plans by the words of their products; none for what is better done apart.
    plans: RefCell<HashMap<String, Option<Rc<CudnnPlan>>>>,
    /// Whether products are computed in one with the normalisations around them (`normalised`), by what that is called.
    joints: RefCell<BTreeMap<String, bool>>,
}

impl DnnHandle {
    pub fn new(context: &Rc<Context>, stream: &CudaStream) -> Result<DnnHandle> {
        let dnn = &context.libraries.dnn;
        let mut raw = ptr::null_mut();
        // SAFETY: the out-parameter is alive during the call; the context is current.
        unsafe { dnn.cudnnCreate(&mut raw) }?;
        let (said, timed) = (Cell::default(), Cell::default());
        let (plans, joints) = (RefCell::default(), RefCell::default());
        let handle = DnnHandle { context: context.clone(), raw, said, timed, plans, joints };
        // SAFETY: handle and stream are alive and of one context.
        unsafe { dnn.cudnnSetStream(raw, stream.raw()) }?;
        Ok(handle)
    }

    /// What was decided of a joint, by this process.
    pub fn joins(&self, words: &str) -> Option<bool> {
        self.joints.borrow().get(words).copied()
    }

    pub fn decide(&self, words: &str, joins: bool) {
        self.joints.borrow_mut().insert(words.into(), joins);
    }

    /// What is timed from now on runs at the clocks of training: those of a GPU that has worked until now, or does so
    /// here, by these runs.
    pub fn wake(&self, stream: &CudaStream, mut run: impl FnMut() -> Result<()>) -> Result<()> {
        let mut worked = match self.timed.get() {
            Some(last) if last.elapsed() < SLEEPS => WAKES,
            _ => Duration::ZERO,
        };
        let begun = Instant::now();
        while worked < WAKES && begun.elapsed() < LONG {
            worked += measured(stream, 1, &mut run)?;
        }
        self.timed.set(Some(Instant::now()));
        Ok(())
    }

    /// What is not joined.
    pub fn apart(&self) -> Vec<String> {
        let joints = self.joints.borrow();
        joints.iter().filter(|(_, joins)| !**joins).map(|(words, _)| words.clone()).collect()
    }
}

/// Nobody can be told that freeing failed.
fn freed(outcome: sys::CudaResult) {
    if let Err(failed) = outcome {
        log::debug!("{} failed with code {}", failed.call, failed.code);
    }
}

impl Drop for DnnHandle {
    fn drop(&mut self) {
        // SAFETY: made by `new`, destroyed once.
        freed(unsafe { self.context.libraries.dnn.cudnnDestroy(self.raw) });
    }
}

/// Whether products are computed together with what is done to them (`Then`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Epilogue {
    Never,
    /// Where an engine is faster so.
    Timed,
    /// Wherever there is an engine.
    Always,
}

impl Epilogue {
    /// `environment::CUDNN_FUSION`: 0 never, 1 always; else by timing.
    pub fn wanted() -> Epilogue {
        match environment::CUDNN_FUSION.text().as_deref() {
            Some("0") => Epilogue::Never,
            Some("1") => Epilogue::Always,
            _ => Epilogue::Timed,
        }
    }
}

/// The plan of one way, unless cuDNN finds only now that the engine does not serve, or takes too much memory.
pub fn plan(way: &Configuration, target: &TargetGpu) -> sys::CudaResult<Option<Rc<CudnnPlan>>> {
    match way.plan(target) {
        Ok(plan) => Ok((plan.workspace <= MOST_WORKSPACE).then(|| Rc::new(plan))),
        Err(failed) if backend::unsuitable(&failed) => Ok(None),
        Err(failed) => Err(failed),
    }
}

/// One product of a convolution with the plan that computes it.
pub struct Convolution {
    gpu: Rc<Gpu>,
    /// With `then` only if the plan does that too.
    product: Product,
    plan: Rc<CudnnPlan>,
}

impl Convolution {
    /// # Errors
    /// `Foreign` where cuDNN has no engine for it.
    pub fn new(gpu: &Rc<Gpu>, product: Product) -> Result<Convolution> {
        let with = |product, plan| Convolution { gpu: gpu.clone(), product, plan };
        if product.then != Then::Nothing
            && Epilogue::wanted() != Epilogue::Never
            && let Some(plan) = planned(gpu, &product)?
        {
            return Ok(with(product, plan));
        }
        let product = product.alone();
        let none = || {
            let why = "no engine that gives the same bits every time";
            Error::foreign("cuDNN", "cudnnBackendFinalize", sys::CUDNN_STATUS_NOT_SUPPORTED.into(), why)
        };
        Ok(with(product, planned(gpu, &product)?.ok_or_else(none)?))
    }

    /// Whether it does what was to be done along with the product; else that is left to the caller.
    pub fn is_joined(&self) -> bool {
        self.product.then != Then::Nothing
    }

    /// Bytes of scratch memory.
    pub fn workspace(&self) -> usize {
        self.plan.workspace
    }

    /// cuDNN's number of the engine.
    pub fn engine(&self) -> i64 {
        self.plan.engine
    }

    /// Binds it to x, w and y, and what the rest of the product reads or writes (`Product::operands`).
    ///
    /// # Errors
    /// `Internal` where a memory is too small; `Foreign`.
    pub fn bind(&self, memory: &[&Memory], workspace: &Memory) -> Result<impl Fn() -> Result<()> + use<>> {
        let (gpu, engine, words) = (self.gpu.clone(), self.engine(), self.product.words());
        let bound = bind(&self.plan, &self.product, memory, workspace)
            .map_err(|e| e.context(format!("engine {engine} of {words}")))?;
        let memory: Vec<Memory> = memory.iter().copied().chain([workspace]).cloned().collect();
        Ok(move || {
            let _alive = &memory;
            // SAFETY: the plan is of this handle; `bind` compared the memory with what it wants.
            unsafe { bound.run(gpu.dnn.raw) }.map_err(|e| e.context(format!("engine {engine} of {words}")))
        })
    }
}

fn bind(
    plan: &Rc<CudnnPlan>,
    product: &Product,
    memory: &[&Memory],
    workspace: &Memory,
) -> Result<BoundPlan> {
    let operands = product.operands();
    if memory.len() != operands.len() {
        return Err(Error::internal(format!("{} memories for {} tensors", memory.len(), operands.len())));
    }
    let wanted = operands.iter().map(|operand| (operand.bytes(), operand.alignment));
    let wanted = wanted.chain([(plan.workspace, ALIGNMENT)]);
    for (memory, (bytes, alignment)) in memory.iter().copied().chain([workspace]).zip(wanted) {
        let aligned = bytes == 0 || (memory.address() as usize).is_multiple_of(alignment);
        if memory.bytes() < bytes || !aligned {
            let at = memory.address();
            return Err(Error::internal(format!("{} bytes at {at:p} for {bytes}", memory.bytes())));
        }
    }
    let numbers: Vec<i64> = operands.iter().map(|operand| operand.number).collect();
    let addresses: Vec<_> = memory.iter().map(|memory| memory.address().cast()).collect();
    plan.bind(&numbers, &addresses, workspace.address().cast())
}

/// The plan for a product: the one that was chosen before, by this process or another, or the fastest. None where no
/// engine serves, and for more than a product alone where that is not faster.
pub fn planned(gpu: &Rc<Gpu>, product: &Product) -> Result<Option<Rc<CudnnPlan>>> {
    let words = product.words();
    if let Some(plan) = gpu.dnn.plans.borrow().get(&words) {
        return Ok(plan.clone());
    }
    let plan = match kept(gpu, product, &words) {
        Some(kept) => kept,
        None => chosen(gpu, product, &words)?,
    };
    gpu.dnn.plans.borrow_mut().insert(words, plan.clone());
    Ok(plan)
}

/// What was kept of a choice, if it still serves.
fn kept(gpu: &Rc<Gpu>, product: &Product, words: &str) -> Option<Option<Rc<CudnnPlan>>> {
    let choice = gpu.tuned.choice(words)?;
    let wanted = is_wanted(&choice);
    let plan = restored(gpu, product, words, choice);
    if plan.is_none() && wanted {
        gpu.tuned.forget(words);
    }
    plan
}

/// Whether a choice is one that is looked for.
fn is_wanted(choice: &TunedChoice) -> bool {
    *choice != TunedChoice::Apart || Epilogue::wanted() != Epilogue::Always
}

/// What a choice says: a plan, or that there is none to be used; nothing where it does not serve.
fn restored(
    gpu: &Rc<Gpu>,
    product: &Product,
    words: &str,
    choice: TunedChoice,
) -> Option<Option<Rc<CudnnPlan>>> {
    let (dnn, target) = (&gpu.context.libraries.dnn, TargetGpu::Gpu(gpu.dnn.raw));
    let plan = match choice {
        TunedChoice::Apart => return is_wanted(&choice).then_some(None),
        TunedChoice::Together => return None,
        TunedChoice::Engine { number, plan: Some(text), .. } => {
            CudnnPlan::restored(dnn, &target, number, &text).map(|plan| Some(Rc::new(plan)))
        }
        TunedChoice::Engine { number, place, plan: None } => product.ways(dnn, &target).and_then(|ways| {
            let way = ways.get(place).filter(|way| way.engine == number);
            way.map_or(Ok(None), |way| plan(way, &target))
        }),
    };
    // Where all is broken, choosing anew says so.
    let plan = plan.inspect_err(|failed| {
        log::debug!("the plan that was kept of {words}: {} failed with code {}", failed.call, failed.code);
    });
    plan.ok().flatten().map(Some)
}

/// A plan, and which of the ways that serve it is.
#[derive(Clone)]
struct PlanCandidate {
    place: usize,
    plan: Rc<CudnnPlan>,
}

/// Chooses a plan by our own timing, and keeps the choice. Where the GPU's memory does not suffice to try: the first
/// that serves for a product alone, and nothing is kept.
fn chosen(gpu: &Rc<Gpu>, product: &Product, words: &str) -> Result<Option<Rc<CudnnPlan>>> {
    let alone = product.then == Then::Nothing;
    let candidates = match candidates(gpu, product, words) {
        // It is done apart; where all is broken, that says so.
        Err(e) if !alone => {
            log::debug!("{e}");
            return Ok(None);
        }
        candidates => candidates?,
    };
    // What normalises is compared with more than this product (`normalised`).
    let compared = !alone && product.then != Then::Normalise && Epilogue::wanted() == Epilogue::Timed;
    let Some(first) = candidates.first() else { return Ok(None) };
    // With one there is nothing to compare.
    let chosen = if candidates.len() == 1 && !compared {
        Some(first)
    } else {
        if !gpu.dnn.said.replace(true) {
            log::info!(
                "choosing cuDNN's engines for this GPU by timing them, once for each shape: the next run starts at once"
            );
        }
        let Some(room) = Workspace::new(gpu, product, &candidates)? else {
            return Ok(alone.then(|| first.plan.clone()));
        };
        match room.fastest(product, &candidates)? {
            Some((fastest, time)) if !compared || time < room.time_apart(product)? => Some(fastest),
            None if alone => Some(first),
            _ => None,
        }
    };
    let own = chosen.map(|chosen| chosen.plan.clone());
    // Another rank may have been faster.
    let others = gpu.tuned.keep(words, &choice(chosen, words), is_wanted);
    let others = others.and_then(|choice| restored(gpu, product, words, choice));
    Ok(others.unwrap_or(own))
}

/// What is to be kept.
fn choice(chosen: Option<&PlanCandidate>, words: &str) -> TunedChoice {
    let Some(PlanCandidate { place, plan }) = chosen else { return TunedChoice::Apart };
    // The first releases of cuDNN 9 give only those of engines that were compiled when they were wanted.
    let text = plan.text().inspect_err(|failed| {
        log::debug!(
            "cuDNN does not give the plan of {words}: {} failed with code {}",
            failed.call,
            failed.code
        );
    });
    TunedChoice::Engine { number: plan.engine, place: *place, plan: text.ok() }
}

/// Plans of the ways that are worth a try. One that cannot be planned, whatever the reason, is one less.
///
/// # Errors
/// Where none is left and something is broken: the first failure.
fn candidates(gpu: &Rc<Gpu>, product: &Product, words: &str) -> Result<Vec<PlanCandidate>> {
    let target = TargetGpu::Gpu(gpu.dnn.raw);
    let ways = product.ways(&gpu.context.libraries.dnn, &target);
    let ways =
        ways.map_err(|failed| Error::from(failed).context(format!("looking for engines of {words}")))?;
    let most = if environment::CUDNN_ENGINES.text().as_deref() == Some("1") { 1 } else { TIMED };
    let (mut candidates, mut compiled, mut broken) = (Vec::new(), 0, None);
    for (place, way) in ways.iter().enumerate() {
        if candidates.len() == most || (way.is_compiled() && compiled == COMPILED) {
            continue;
        }
        compiled += usize::from(way.is_compiled());
        match plan(way, &target) {
            Ok(Some(plan)) => candidates.push(PlanCandidate { place, plan }),
            Ok(None) => log::debug!("engine {} does not serve {words}", way.engine),
            Err(failed) => {
                let e = Error::from(failed).context(format!("planning engine {} of {words}", way.engine));
                log::debug!("{e}");
                broken.get_or_insert(e);
            }
        }
    }
    match broken {
        Some(broken) if candidates.is_empty() => Err(broken),
        _ => Ok(candidates),
    }
}

/// Memory to try plans in.
struct Workspace<'a> {
    gpu: &'a Rc<Gpu>,
    tensors: Vec<Memory>,
    scratch: Memory,
}

impl Workspace<'_> {
    /// None where the GPU has not as much.
    fn new<'a>(
        gpu: &'a Rc<Gpu>,
        product: &Product,
        candidates: &[PlanCandidate],
    ) -> Result<Option<Workspace<'a>>> {
        let alone = match product.then {
            Then::Nothing => 0,
            _ => planned(gpu, &product.alone())?.map_or(0, |plan| plan.workspace),
        };
        let scratch = candidates
            .iter()
            .map(|candidate| candidate.plan.workspace)
            .chain([alone])
            .max()
            .unwrap_or_default();
        let operands = product.operands();
        let wanted = operands.iter().map(ProductOperand::bytes).chain([scratch]);
        let mut tensors = Vec::new();
        for bytes in wanted {
            match allocate(&gpu.context, bytes) {
                Err(e) if e.kind == error::ErrorKind::Environment => return Ok(None),
                memory => tensors.push(memory?),
            }
        }
        let scratch = tensors.pop().ok_or_else(|| Error::internal("no scratch memory"))?;
        for (operand, memory) in operands.iter().zip(&tensors) {
            fill(gpu, memory, &operand.noise())?;
        }
        Ok(Some(Workspace { gpu, tensors, scratch }))
    }

    /// None where none of them runs.
    fn fastest<'c>(
        &self,
        product: &Product,
        candidates: &'c [PlanCandidate],
    ) -> Result<Option<(&'c PlanCandidate, Duration)>> {
        let mut best: Option<(&PlanCandidate, Duration)> = None;
        for candidate in candidates {
            let limit = best.map(|(_, least)| 2 * least);
            if let Some(time) = self.time(product, &candidate.plan, limit)?
                && best.is_none_or(|(_, least)| time < least)
            {
                best = Some((candidate, time));
            }
        }
        Ok(best)
    }

    /// How long one run takes. What cannot be run, other than memory that has become unusable for all, is one engine
    /// less.
    fn time(
        &self,
        product: &Product,
        plan: &Rc<CudnnPlan>,
        limit: Option<Duration>,
    ) -> Result<Option<Duration>> {
        let memory: Vec<&Memory> = self.tensors.iter().take(product.operands().len()).collect();
        let name = || format!("engine {} of {}", plan.engine, product.words());
        let bound = bind(plan, product, &memory, &self.scratch).map_err(|e| e.context(name()))?;
        // SAFETY: the plan is of this handle, what is bound was compared with what it wants.
        let run = || unsafe { bound.run(self.gpu.dnn.raw) };
        // The first run loads the engine's code.
        if let Err(e) = run() {
            log::debug!("{}: {e}", name());
            self.gpu.stream.synchronize().map_err(|e| e.context(format!("trying {}", name())))?;
            return Ok(None);
        }
        let ended = self.gpu.stream.synchronize().and_then(|()| time(self.gpu, limit, run));
        ended.map(Some).map_err(|e| e.context(format!("trying {}", name())))
    }

    /// How long the product takes alone, and then what is done to it: a pass takes as long as a copy that moves as many
    /// bytes.
    fn time_apart(&self, product: &Product) -> Result<Duration> {
        let alone = product.alone();
        let Some(plan) = planned(self.gpu, &alone)? else { return Ok(Duration::MAX) };
        let result = usize::from(product.direction != Direction::BackwardData) * 2;
        let passes = self.pass(result)?.mul_f64(product.passes_apart());
        Ok(self.time(&alone, &plan, None)?.map_or(Duration::MAX, |time| time.saturating_add(passes)))
    }

    /// How long it takes to read or write an operand once.
    fn pass(&self, operand: usize) -> Result<Duration> {
        // The operand: its halves are copied one onto the other, so that as many bytes are read and written as it has.
        let result = &self.tensors[operand];
        let half = (result.bytes() / 2).next_multiple_of(ALIGNMENT).min(result.bytes());
        let (from, to) = (result.slice(0, result.bytes() - half), result.slice(half, result.bytes() - half));
        let stream = &self.gpu.stream;
        time(self.gpu, None, || stream.copy(&from, &to, from.bytes()))
    }
}

/// How long a product takes as a run would compute it, and so many passes over its x. None where the GPU's memory does
/// not suffice to try, or there is no engine.
pub fn time_of(gpu: &Rc<Gpu>, product: &Product, passes: f64) -> Result<Option<Duration>> {
    let plan = planned(gpu, product)?;
    if plan.is_none() && product.then == Then::Nothing {
        return Ok(None);
    }
    let candidates: Vec<PlanCandidate> =
        plan.into_iter().map(|plan| PlanCandidate { place: 0, plan }).collect();
    let Some(room) = Workspace::new(gpu, product, &candidates)? else { return Ok(None) };
    let own = match candidates.first() {
        Some(PlanCandidate { plan, .. }) => room.time(product, plan, None)?,
        None => Some(room.time_apart(product)?),
    };
    let more = room.pass(0)?.mul_f64(passes);
    Ok(own.map(|own| own.saturating_add(more)))
}

/// What a product of matrices of 8192 by 8192 reaches in FLOP/s, and a copy of 1 GiB in bytes/s, read and written: the
/// best of some.
pub fn rates(gpu: &Rc<Gpu>, real: Real) -> Result<(f64, f64)> {
    const SIDE: usize = 8192;
    const COPIED: usize = 1 << 30;
    let words = ProductOperand::noise_of(real, 0, 1 << 16);
    let random = |bytes| {
        let memory = allocate(&gpu.context, bytes)?;
        fill(gpu, &memory, &words).map(|()| memory)
    };
    let memories = [(); 3].map(|()| random(SIDE * SIDE * real.bytes()));
    let [a, b, c] = memories;
    let (a, b, c) = (a?, b?, c?);
    let matrix = |memory| Matrix { memory, real, rows: SIDE, columns: SIDE, transposed: false };
    let (from, to) = (random(COPIED)?, random(COPIED)?);
    let best = |run: &dyn Fn() -> Result<()>| -> Result<f64> {
        let times = (0..4).map(|_| time(gpu, None, run)).collect::<Result<Vec<_>>>()?;
        Ok(times.into_iter().min().unwrap_or_default().as_secs_f64())
    };
    let product = best(&|| gpu.blas.multiply(&matrix(&a), &matrix(&b), &matrix(&c)))?;
    let copy = best(&|| gpu.stream.copy(&from, &to, COPIED))?;
    Ok((2.0 * (SIDE as f64).powi(3) / product, 2.0 * COPIED as f64 / copy))
}

/// Repeats these words all over the memory.
fn fill(gpu: &Gpu, memory: &Memory, words: &[u32]) -> Result<()> {
    let mut filled = (4 * words.len()).min(memory.bytes());
    gpu.stream.upload(&bytes_of(words)[..filled], &memory.slice(0, filled))?;
    while filled < memory.bytes() {
        let more = filled.min(memory.bytes() - filled);
        gpu.stream.copy(&memory.slice(0, more), &memory.slice(filled, more), more)?;
        filled += more;
    }
    Ok(())
}

/// How long one run takes; once is enough where that is more than `limit`.
fn time(gpu: &Gpu, limit: Option<Duration>, run: impl Fn() -> Result<()>) -> Result<Duration> {
    gpu.dnn.wake(&gpu.stream, &run)?;
    let once = measured(&gpu.stream, 1, &run)?;
    let time = match limit.is_some_and(|limit| once > limit) {
        true => Ok(once),
        false => measured(&gpu.stream, REPEATS, &run),
    };
    gpu.dnn.timed.set(Some(Instant::now()));
    time
}

/// What one of so many runs takes, by the GPU's events.
fn measured(stream: &CudaStream, runs: u32, mut run: impl FnMut() -> Result<()>) -> Result<Duration> {
    let begun = stream.record_time()?;
    (0..runs).try_for_each(|_| run())?;
    let ended = stream.record_time()?;
    stream.synchronize()?;
    Ok(Duration::from_secs_f64(ended.seconds_since(&begun)?.max(0.0)) / runs)
}
