//! The optimizer's update and the accumulation of gradients.

use std::ops::Range;
use std::rc::Rc;

use super::host::{Numbers, Workers, pieces};
use crate::device::{Memory, Rule, Scalars, Span, Step};
use crate::error::{Error, Result};

/// A rule bound to its regions.
struct Update {
    rule: Rule,
    /// What one thread does at a time: elements, and whether weight decay applies.
    pieces: Vec<(Range<usize>, bool)>,
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
    parameters: &Memory,
    gradients: &Memory,
    state: &[Memory],
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
    let of_span = |span: &Span| {
        let (start, decay) = (span.start, span.decay);
        pieces(span.length).map(move |piece| (start + piece.start..start + piece.end, decay))
    };
    Ok(Box::new(Update {
        rule: *rule,
        pieces: spans.iter().flat_map(of_span).collect(),
        parameters: parameters.clone(),
        gradients: gradients.clone(),
        state: state.to_vec(),
        workers: workers.clone(),
    }))
}

impl Step for Update {
    fn run(&mut self, scalars: &Scalars) -> Result<()> {
        let (parameters, gradients) = (Numbers::of(&self.parameters), Numbers::of(&self.gradients));
        // At most two regions of state; an absent one is stood in for by no elements of another.
        let state = [0, 1].map(|index| self.state.get(index).map(Numbers::of));
        let (rule, pieces, states) = (self.rule, &self.pieces, self.state.len());
        self.workers.each(pieces.len(), |piece| {
            let (range, decay) = pieces[piece].clone();
            // SAFETY: spans and so pieces do not overlap, regions are apart, and nothing else uses them now.
            unsafe {
                let mut state = state.map(|region| match region {
                    Some(numbers) => numbers.part_mut(range.clone()),
                    None => &mut [],
                });
                let parameters = parameters.part_mut(range.clone());
                rule.apply(scalars, decay, parameters, gradients.part(range), &mut state[..states]);
            }
        });
        Ok(())
    }
}

/// `into` += `from`.
struct Accumulate {
    from: Memory,
    into: Memory,
    workers: Rc<Workers>,
}

/// The addition of one region to another, as a step.
pub fn accumulate(workers: &Rc<Workers>, from: &Memory, into: &Memory) -> Result<Box<dyn Step>> {
    if from.bytes() != into.bytes() || from.overlaps(into) {
        return Err(Error::internal(format!("cannot add {from:?} to {into:?}")));
    }
    Ok(Box::new(Accumulate { from: from.clone(), into: into.clone(), workers: workers.clone() }))
}

impl Step for Accumulate {
    fn run(&mut self, _: &Scalars) -> Result<()> {
        let (from, into) = (Numbers::of(&self.from), Numbers::of(&self.into));
        self.workers.each_piece(self.into.bytes() / 4, |range| {
            // SAFETY: pieces do not overlap, and the regions are apart.
            let (from, into) = unsafe { (from.part(range.clone()), into.part_mut(range)) };
            into.iter_mut().zip(from).for_each(|(into, from)| *into += from);
        });
        Ok(())
    }
}
