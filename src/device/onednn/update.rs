//! The optimizer's update, and what else passes over whole regions: clipping, averaging, accumulation.
//!
//! Sums are taken piece by piece in f64 and the pieces' sums added in order, so that any number of threads gives the
//! same bits.

use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::host::{Numbers, Workers, pieces};
use crate::device::memory::bytes_of;
use crate::device::update::{self, Squares, sum_of_squares};
use crate::device::{Memory, Rule, Scalars, Span, Step, Updated};
use crate::error::{Error, Result};

/// A rule bound to its regions.
struct Update {
    rule: Rule,
    spans: Vec<Span>,
    /// What one thread does at a time: elements, and the span they belong to.
    pieces: Vec<(Range<usize>, usize)>,
    /// For a rule with norms: the two sums of each piece.
    sums: [PieceSums; 2],
    /// The ratio of each span.
    trust: Vec<f32>,
    parameters: Memory,
    gradients: Memory,
    state: Vec<Memory>,
    workers: Rc<Workers>,
}

/// The update of `spans` by `rule`, as a step.
pub fn update(
    workers: &Rc<Workers>,
    rule: &Rule,
    spans: &[Span],
    &Updated { parameters, gradients, state }: &Updated,
) -> Result<Box<dyn Step>> {
    let smallest = [parameters, gradients].into_iter().chain(state).map(|m| m.bytes() / 4).min().unwrap_or(0);
    let beyond = spans.iter().any(|s| s.start.checked_add(s.length).is_none_or(|end| end > smallest));
    if state.len() != rule.states() || beyond {
        return Err(Error::internal(format!(
            "{rule:?} over {} spans with {} regions of state, the smallest region of {smallest} elements",
            spans.len(),
            state.len()
        )));
    }
    let of_span = |(index, span): (usize, &Span)| {
        let start = span.start;
        pieces(span.length).map(move |piece| (start + piece.start..start + piece.end, index))
    };
    let pieces: Vec<_> = spans.iter().enumerate().flat_map(of_span).collect();
    let measured = if rule.has_trust() { pieces.len() } else { 0 };
    Ok(Box::new(Update {
        rule: *rule,
        spans: spans.to_vec(),
        pieces,
        sums: [PieceSums::new(measured), PieceSums::new(measured)],
        trust: vec![1.0; spans.len()],
        parameters: parameters.clone(),
        gradients: gradients.clone(),
        state: state.to_vec(),
        workers: workers.clone(),
    }))
}

impl Step for Update {
    fn run(&mut self, scalars: &Scalars) -> Result<()> {
        if self.rule.has_trust() {
            self.measure(scalars);
        }
        let (rule, spans, trust) = (self.rule, &self.spans, &self.trust);
        self.each_piece(|_, span, w, g, state| {
            rule.apply(scalars, spans[span].decay, trust[span], w, g, state);
        });
        Ok(())
    }
}

impl Update {
    /// Sets the ratio of every span.
    fn measure(&mut self, scalars: &Scalars) {
        let (rule, spans, [first, second]) = (self.rule, &self.spans, &self.sums);
        self.each_piece(|piece, span, w, g, state| {
            let sums = rule.measure(scalars, spans[span].decay, w, g, state);
            first.set(piece, sums[0]);
            second.set(piece, sums[1]);
        });
        let mut piece = 0;
        for (index, span) in self.spans.iter().enumerate() {
            let mut total = [0f64; 2];
            while self.pieces.get(piece).is_some_and(|(_, of)| *of == index) {
                total = [total[0] + self.sums[0].get(piece), total[1] + self.sums[1].get(piece)];
                piece += 1;
            }
            self.trust[index] = rule.trust(span.decay, total);
        }
    }

    /// Calls `work` with every piece: its index, its span's, and its parameters, gradients and state.
    fn each_piece(&self, work: impl Fn(usize, usize, &mut [f32], &[f32], &mut [&mut [f32]]) + Sync + Send) {
        let (parameters, gradients) = (Numbers::of(&self.parameters), Numbers::of(&self.gradients));
        // At most two regions of state; an absent one is stood in for by no elements of another.
        let state = [0, 1].map(|index| self.state.get(index).map(Numbers::of));
        let (pieces, states) = (&self.pieces, self.state.len());
        self.workers.each(pieces.len(), |piece| {
            let (range, span) = pieces[piece].clone();
            // SAFETY: spans and so pieces do not overlap, regions are apart, and nothing else uses them now.
            unsafe {
                let mut state = state.map(|region| match region {
                    Some(numbers) => numbers.part_mut(range.clone()),
                    None => &mut [],
                });
                let parameters = parameters.part_mut(range.clone());
                work(piece, span, parameters, gradients.part(range), &mut state[..states]);
            }
        });
    }
}

/// One sum of each piece, which several threads write and one then reads.
struct PieceSums(Vec<AtomicU64>);

impl PieceSums {
    fn new(pieces: usize) -> PieceSums {
        PieceSums((0..pieces).map(|_| AtomicU64::new(0)).collect())
    }

    fn set(&self, piece: usize, sum: f64) {
        self.0[piece].store(sum.to_bits(), Ordering::Relaxed);
    }

    fn get(&self, piece: usize) -> f64 {
        f64::from_bits(self.0[piece].load(Ordering::Relaxed))
    }
}

/// The sums of squares of all gradients in these parts.
pub fn squares(workers: &Rc<Workers>, parts: &[Memory]) -> Result<Squares> {
    let of_part = |(index, part): (usize, &Memory)| pieces(part.bytes() / 4).map(move |piece| (index, piece));
    let pieces: Vec<_> = parts.iter().enumerate().flat_map(of_part).collect();
    let written = Memory::host(pieces.len() * size_of::<f64>())?;
    let (sums, parts, workers) = (PieceSums::new(pieces.len()), parts.to_vec(), workers.clone());
    let to = written.clone();
    let step = move |_: &Scalars| {
        let numbers: Vec<Numbers> = parts.iter().map(Numbers::of).collect();
        workers.each(pieces.len(), |piece| {
            let (part, range) = &pieces[piece];
            // SAFETY: nothing writes the gradients now.
            sums.set(piece, sum_of_squares(unsafe { numbers[*part].part(range.clone()) }));
        });
        let sums: Vec<f64> = (0..pieces.len()).map(|piece| sums.get(piece)).collect();
        to.write(bytes_of(&sums));
        Ok(())
    };
    Ok(Squares::new(Box::new(step), written))
}

/// Gradients times `Scalars::rescale`, as a step that sees whether any is broken.
pub fn scale(workers: &Rc<Workers>, gradients: &Memory, broken: &Memory) -> Box<dyn Step> {
    let (workers, gradients, broken) = (workers.clone(), gradients.clone(), broken.clone());
    Box::new(move |scalars: &Scalars| {
        let (numbers, factor) = (Numbers::of(&gradients), scalars.rescale);
        let found = AtomicBool::new(false);
        workers.each_piece(gradients.bytes() / 4, |range| {
            // SAFETY: pieces do not overlap, and nothing else uses the gradients now.
            let part = unsafe { numbers.part_mut(range) };
            part.iter_mut().for_each(|g| *g *= factor);
            if part.iter().any(|g| !g.is_finite()) {
                found.store(true, Ordering::Relaxed);
            }
        });
        if found.into_inner() {
            broken.write(bytes_of(&[1i32]));
        }
        Ok(())
    })
}

/// One step of the moving average `into` of `from`.
pub fn average(workers: &Rc<Workers>, decay: f32, from: &Memory, into: &Memory) -> Result<Box<dyn Step>> {
    of_both(workers, from, into, move |scalars, from, into| update::average(scalars, decay, from, into))
}

/// `into` += `from`.
pub fn accumulate(workers: &Rc<Workers>, from: &Memory, into: &Memory) -> Result<Box<dyn Step>> {
    of_both(workers, from, into, |_, from, into| {
        into.iter_mut().zip(from).for_each(|(into, from)| *into += from);
    })
}

/// A step over two memories that are alike and share no byte, piece by piece.
fn of_both(
    workers: &Rc<Workers>,
    from: &Memory,
    into: &Memory,
    work: impl Fn(&Scalars, &[f32], &mut [f32]) + Sync + Send + 'static,
) -> Result<Box<dyn Step>> {
    if from.bytes() != into.bytes() || from.overlaps(into) {
        return Err(Error::internal(format!("cannot add {from:?} to {into:?}")));
    }
    let (workers, from, into) = (workers.clone(), from.clone(), into.clone());
    Ok(Box::new(move |scalars: &Scalars| {
        let (reads, writes) = (Numbers::of(&from), Numbers::of(&into));
        workers.each_piece(into.bytes() / 4, |range| {
            // SAFETY: pieces do not overlap, and the regions are apart.
            let (from, into) = unsafe { (reads.part(range.clone()), writes.part_mut(range)) };
            work(scalars, from, into);
        });
        Ok(())
    }))
}
