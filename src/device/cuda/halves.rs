//! Copies of the parameters in half precision. Layers that multiply halves read these; the update writes them beside
//! the f32 numbers, so that a step casts none.
//!
//! A copy is believed only if it was right and nothing was written since but by the updates, or if these have just
//! rewritten all that is read of it. What no update writes, frozen parameters, stays right. Whatever else writes to the
//! parameters (a checkpoint, the first numbers, another rank) has the next reader cast all of them again, by one
//! kernel. So a script waits for all new parameters of other ranks before the first reader (`Outline::copies`).

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::{Rc, Weak};

use super::gpu::{Argument, Gpu, KernelLaunch};
use super::handle::{CudaStream, address, allocate, allocation};
use super::layout::Real;
use crate::device::{Memory, Span};
use crate::error::Result;

/// All copies of a GPU.
#[derive(Default)]
pub struct Halves {
    copies: RefCell<Vec<Weak<HalfCopies>>>,
    /// Read by what is being captured.
    captured: RefCell<Vec<Rc<HalfCopies>>>,
    /// Addresses of what other processes may write to.
    offered: RefCell<Vec<Range<u64>>>,
}

/// The halves of all parameters of one allocation, at the same places.
pub struct HalfCopies {
    /// Where the allocation lies.
    master: Range<u64>,
    real: Real,
    half: Memory,
    cast: KernelLaunch,
    stream: Rc<CudaStream>,
    /// Whether they are right, and whether those that no update writes are.
    fresh: Cell<bool>,
    kept: Cell<bool>,
    /// Elements that layers read.
    read: RefCell<Vec<Range<usize>>>,
    /// What each update writes, and whether it has run since they were right.
    updates: RefCell<Vec<(Vec<Range<usize>>, bool)>>,
    /// Whether the updates together write all that is read, and all of it that any of them touches, if that is known.
    covered: Cell<Option<[bool; 2]>>,
}

/// One of the updates that write a copy.
pub struct HalvesUpdate {
    copies: Rc<HalfCopies>,
    index: usize,
}

fn addresses(memory: &Memory) -> Range<u64> {
    address(memory)..address(memory) + memory.bytes() as u64
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

impl Halves {
    fn alive(&self) -> Vec<Rc<HalfCopies>> {
        self.copies.borrow().iter().filter_map(Weak::upgrade).collect()
    }

    /// The copies of the allocation that these parameters lie in.
    ///
    /// # Errors
    /// `Environment` where the GPU has no room for them.
    pub fn of(&self, gpu: &Gpu, parameters: &Memory, real: Real) -> Result<Rc<HalfCopies>> {
        let wanted = addresses(parameters);
        let found = |copies: &Rc<HalfCopies>| copies.real == real && overlap(&copies.master, &wanted);
        if let Some(copies) = self.alive().into_iter().find(found) {
            return Ok(copies);
        }
        let copies = Rc::new(HalfCopies::new(gpu, parameters, real)?);
        let mut all = self.copies.borrow_mut();
        all.retain(|copies| copies.strong_count() > 0);
        all.push(Rc::downgrade(&copies));
        Ok(copies)
    }

    /// Before a kernel reads copies: makes them right, or notes that what is captured reads them.
    pub fn read(&self, copies: &Rc<HalfCopies>, captures: bool) -> Result<()> {
        if !captures {
            let offered = self.offered.borrow().iter().any(|range| overlap(range, &copies.master));
            return copies.refresh(!offered);
        }
        let mut captured = self.captured.borrow_mut();
        if !captured.iter().any(|known| Rc::ptr_eq(known, copies)) {
            captured.push(copies.clone());
        }
        Ok(())
    }

    /// What was read since the last call by what was captured.
    pub fn captured(&self) -> Vec<Rc<HalfCopies>> {
        self.captured.take()
    }

    /// Other processes may write to this memory from now on.
    pub fn offered(&self, memory: &Memory) {
        self.offered.borrow_mut().push(addresses(memory));
    }

    /// Something else than an update writes to this memory.
    pub fn written(&self, memory: &Memory) {
        self.stale_but(memory, None);
    }

    fn stale_but(&self, memory: &Memory, updated: Option<&Rc<HalfCopies>>) {
        if self.copies.borrow().is_empty() {
            return;
        }
        let written = addresses(memory);
        for copies in self.alive().iter().filter(|copies| overlap(&copies.master, &written)) {
            if !updated.is_some_and(|updated| Rc::ptr_eq(updated, copies)) {
                copies.restart();
            }
        }
    }

    /// The update of these spans writes a copy of the parameters, if there is one.
    pub fn update(&self, parameters: &Memory, spans: &[Span]) -> Option<HalvesUpdate> {
        let all = addresses(parameters);
        let copies = self.alive().into_iter().find(|copies| overlap(&copies.master, &all))?;
        let before = copies.element(parameters);
        let spans = spans.iter().map(|span| before + span.start..before + span.start + span.length);
        let mut updates = copies.updates.borrow_mut();
        updates.push((spans.collect(), false));
        copies.covered.set(None);
        let index = updates.len() - 1;
        drop(updates);
        Some(HalvesUpdate { copies, index })
    }

    /// An update of these parameters has been enqueued. One that is only captured writes them and their copy alike
    /// whenever it runs.
    pub fn updated(&self, parameters: &Memory, update: Option<&HalvesUpdate>, captures: bool) {
        if captures {
            return;
        }
        self.stale_but(parameters, update.map(|update| &update.copies));
        if let Some(HalvesUpdate { copies, index }) = update {
            if copies.fresh.get() {
                copies.restart();
                copies.kept.set(true);
            }
            copies.updates.borrow_mut()[*index].1 = true;
        }
    }
}

impl HalvesUpdate {
    /// The copy of these parameters, and `Half::type` of kernels/update.cuh.
    pub fn copy(&self, parameters: &Memory) -> (Memory, usize) {
        (self.copies.of(parameters), if self.copies.real == Real::BF16 { 1 } else { 2 })
    }
}

impl HalfCopies {
    fn new(gpu: &Gpu, parameters: &Memory, real: Real) -> Result<HalfCopies> {
        let master = allocation(parameters);
        let n = master.bytes() / 4;
        let half = allocate(&gpu.context, n * real.bytes())?;
        let arguments =
            [Argument::Memory(&master), Argument::Memory(&half), Argument::Long(n), Argument::Float(1.0)];
        // SAFETY: the kernel takes f32, halves, and how many of each there are: all of both memories.
        let cast = unsafe {
            KernelLaunch::new(gpu, &format!("cast_f32_{}", real.suffix()), gpu.blocks(n), &arguments)
        }?;
        Ok(HalfCopies {
            master: addresses(&master),
            real,
            half,
            cast,
            stream: gpu.stream.clone(),
            fresh: Cell::new(false),
            kept: Cell::new(false),
            read: RefCell::default(),
            updates: RefCell::default(),
            covered: Cell::new(None),
        })
    }

    /// The first element of these parameters.
    fn element(&self, parameters: &Memory) -> usize {
        (address(parameters) - self.master.start) as usize / 4
    }

    fn elements(&self, parameters: &Memory) -> Range<usize> {
        let first = self.element(parameters);
        first..first + parameters.bytes() / 4
    }

    /// The halves of these parameters.
    pub fn of(&self, parameters: &Memory) -> Memory {
        let Range { start, end } = self.elements(parameters);
        self.half.slice(start * self.real.bytes(), (end - start) * self.real.bytes())
    }

    /// Layers read these parameters.
    pub fn reads(&self, parameters: &Memory) {
        self.read.borrow_mut().push(self.elements(parameters));
        self.covered.set(None);
    }

    /// They are not right, and no update has run since.
    fn restart(&self) {
        self.fresh.set(false);
        self.kept.set(false);
        self.updates.borrow_mut().iter_mut().for_each(|(_, done)| *done = false);
    }

    fn refresh(&self, trusted: bool) -> Result<()> {
        if !trusted || !(self.fresh.get() || self.is_rewritten()) {
            self.cast.run(&self.stream)?;
        }
        self.fresh.set(true);
        Ok(())
    }

    /// Whether all updates have run, and wrote all that is read but for what was right before.
    fn is_rewritten(&self) -> bool {
        if !self.updates.borrow().iter().all(|(_, done)| *done) {
            return false;
        }
        let covered = self.covered.get().unwrap_or_else(|| self.is_covered());
        self.covered.set(Some(covered));
        covered[usize::from(self.kept.get())]
    }

    fn is_covered(&self) -> [bool; 2] {
        let mut spans: Vec<Range<usize>> =
            self.updates.borrow().iter().flat_map(|(spans, _)| spans.clone()).collect();
        spans.sort_by_key(|span| span.start);
        // One may begin where another ends.
        let written = |read: &Range<usize>| {
            let reached = spans
                .iter()
                .fold(read.start, |at, span| if span.start <= at { at.max(span.end) } else { at });
            reached >= read.end
        };
        let untouched =
            |read: &Range<usize>| spans.iter().all(|span| span.end <= read.start || read.end <= span.start);
        let read = self.read.borrow();
        [read.iter().all(written), read.iter().all(|read| written(read) || untouched(read))]
    }
}
