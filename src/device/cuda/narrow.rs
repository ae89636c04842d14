//! Gradients of weights as products give them, in halves. Of steps that are captured one kernel makes the f32 numbers
//! of all together: in the end, or before a step that touches one of them. A step by itself makes its own at once.

use std::cell::RefCell;
use std::rc::{Rc, Weak};

use super::gpu::{Argument, Gpu, KernelLaunch};
use super::handle::{address, allocate};
use super::layout::Real;
use crate::device::Memory;
use crate::error::Result;

/// Numbers that one block makes at a time.
const PIECE: usize = 16_384;
/// Bytes of `struct Narrow` of kernels/README.md.
const ROW: usize = 24;

/// All of a GPU.
#[derive(Default)]
pub struct Narrow {
    alive: RefCell<Vec<Weak<Gradient>>>,
    capture: RefCell<Option<Capture>>,
}

/// A gradient in f32, and where its halves lie: one place, however many steps give it (the contexts of a pipeline).
pub struct Gradient {
    whole: Memory,
    pub halves: Memory,
    real: Real,
}

/// What is being captured: the rows that its launches read, and what is still to be made.
struct Capture {
    table: Memory,
    rows: Vec<u8>,
    waiting: Vec<Rc<Gradient>>,
}

impl Gradient {
    fn elements(&self) -> usize {
        self.whole.bytes() / 4
    }

    fn pieces(&self) -> usize {
        self.elements().div_ceil(PIECE)
    }

    /// Where this lies behind `first`, in elements.
    fn behind(&self, first: &Gradient) -> [i64; 2] {
        let apart = |own: &Memory, first: &Memory| address(own) as i64 - address(first) as i64;
        [apart(&self.halves, &first.halves) / self.real.bytes() as i64, apart(&self.whole, &first.whole) / 4]
    }

    /// `struct Narrow` of each of its pieces.
    fn rows(&self, first: &Gradient) -> impl Iterator<Item = [i64; 3]> {
        let ([from, to], n) = (self.behind(first), self.elements());
        let row = move |start: usize| [from + start as i64, to + start as i64, PIECE.min(n - start) as i64];
        (0..n).step_by(PIECE).map(row)
    }
}

impl Narrow {
    /// Room for the halves of a gradient.
    ///
    /// # Errors
    /// `Environment` where the GPU has none.
    pub fn of(&self, gpu: &Gpu, whole: &Memory, real: Real) -> Result<Rc<Gradient>> {
        let mut alive = self.alive.borrow_mut();
        alive.retain(|gradient| gradient.strong_count() > 0);
        let place = |memory: &Memory| (memory.address(), memory.bytes());
        let is_it = |known: &Rc<Gradient>| known.real == real && place(&known.whole) == place(whole);
        if let Some(known) = alive.iter().filter_map(Weak::upgrade).find(is_it) {
            return Ok(known);
        }
        let halves = allocate(&gpu.context, whole.bytes() / 4 * real.bytes())?;
        let gradient = Rc::new(Gradient { whole: whole.clone(), halves, real });
        alive.push(Rc::downgrade(&gradient));
        Ok(gradient)
    }

    /// Before steps are captured: nothing may be allocated meanwhile.
    pub fn begin(&self, gpu: &Gpu) -> Result<()> {
        let alive = self.alive.borrow();
        let pieces: usize = alive.iter().filter_map(Weak::upgrade).map(|gradient| gradient.pieces()).sum();
        if pieces > 0 {
            let table = allocate(&gpu.context, ROW * pieces)?;
            *self.capture.borrow_mut() = Some(Capture { table, rows: Vec::new(), waiting: Vec::new() });
        }
        Ok(())
    }

    /// Whether the f32 numbers of this gradient will be made with others: else they are to be made now.
    pub fn waits(&self, gradient: &Rc<Gradient>) -> bool {
        let mut capture = self.capture.borrow_mut();
        let Some(Capture { table, rows, waiting }) = &mut *capture else { return false };
        let pieces: usize = waiting.iter().chain([gradient]).map(|gradient| gradient.pieces()).sum();
        let alike = waiting.iter().all(|other| other.real == gradient.real);
        let can = alike && rows.len() + ROW * pieces <= table.bytes();
        if can {
            waiting.push(gradient.clone());
        }
        can
    }

    /// Makes what waits, before a step that touches some of it; before one that may touch anything where nothing is
    /// named.
    pub fn make(&self, gpu: &Gpu, touched: Option<&[Memory]>) -> Result<()> {
        let mut capture = self.capture.borrow_mut();
        let Some(Capture { table, rows, waiting }) = &mut *capture else { return Ok(()) };
        let is_touched = |gradient: &Rc<Gradient>| {
            touched.is_none_or(|touched| touched.iter().any(|memory| memory.overlaps(&gradient.whole)))
        };
        if !waiting.iter().any(is_touched) {
            return Ok(());
        }
        let (all, before) = (std::mem::take(waiting), rows.len());
        let first = all[0].clone();
        let words = all.iter().flat_map(|gradient| gradient.rows(&first)).flatten();
        rows.extend(words.flat_map(i64::to_ne_bytes));
        let table = table.slice(before, rows.len() - before);
        let count = table.bytes() / ROW;
        let places = [&first.halves, &first.whole, &table].map(Argument::Memory);
        let arguments = [&places[..], &[Argument::Int(count)]].concat();
        let name = format!("widen_{}", first.real.suffix());
        // SAFETY: each row names a part of halves and of the gradient that they are of, from the first of either on;
        // whoever captured keeps both and the table.
        let launch = unsafe { KernelLaunch::new(gpu, &name, [count as u32, 1, 1], &arguments) }?;
        launch.run(&gpu.stream)
    }

    /// Behind a capture: writes the rows, which are to be kept as long as the graph.
    pub fn end(&self, gpu: &Gpu) -> Result<Option<Memory>> {
        let Some(Capture { table, rows, .. }) = self.capture.take() else { return Ok(None) };
        gpu.stream.upload(&rows, &table.slice(0, rows.len()))?;
        Ok(Some(table))
    }
}
