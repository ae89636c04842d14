//! Several collectives of one region: which of them carries a range is found when it is prepared.

use std::ops::Range;

use super::{Collective, Slot};
use crate::cuts::Cuts;
use crate::error::Result;

type Parts = Vec<Box<dyn Collective>>;

/// Which of the parts is for a range; one that is not there yet it makes.
type PartOf = dyn FnMut(&mut Parts, &Range<usize>) -> Result<usize>;

/// Collectives of one region, as one.
pub struct Several {
    /// While there are several; by default it is called as the last.
    name: Option<&'static str>,
    parts: Parts,
    of: Box<PartOf>,
    /// Which part has a slot, and as which of its own.
    slots: Vec<(usize, Slot)>,
}

impl Several {
    /// Made as ranges need them, each by `of`.
    pub fn new(
        name: &'static str,
        of: impl FnMut(&mut Parts, &Range<usize>) -> Result<usize> + 'static,
    ) -> Several {
        Several { name: Some(name), parts: Vec::new(), of: Box::new(of), slots: Vec::new() }
    }

    /// Sums between unlike ranks: `first` has the ranges that begin before element `at`.
    pub fn divided(at: usize, first: Box<dyn Collective>, others: Box<dyn Collective>) -> Several {
        let of = move |_: &mut Parts, range: &Range<usize>| Ok(usize::from(range.start >= at));
        Several { name: None, parts: vec![first, others], of: Box::new(of), slots: Vec::new() }
    }

    fn add(&mut self, part: usize, slot: Slot) -> Slot {
        self.slots.push((part, slot));
        self.slots.len() - 1
    }
}

impl Collective for Several {
    fn name(&self) -> &'static str {
        match (&self.parts[..], self.name) {
            ([only], _) => only.name(),
            ([.., last], None) => last.name(),
            (_, name) => name.unwrap_or_default(),
        }
    }

    fn algorithm(&self, slot: Slot) -> &'static str {
        let (part, slot) = self.slots[slot];
        self.parts[part].algorithm(slot)
    }

    fn prepare(&mut self, range: Range<usize>) -> Result<Slot> {
        let part = (self.of)(&mut self.parts, &range)?;
        let slot = self.parts[part].prepare(range)?;
        Ok(self.add(part, slot))
    }

    fn prepare_cut(&mut self, cuts: &Cuts) -> Result<Slot> {
        let part = (self.of)(&mut self.parts, cuts.range())?;
        let slot = self.parts[part].prepare_cut(cuts)?;
        Ok(self.add(part, slot))
    }

    fn start(&mut self, slot: Slot) -> Result<()> {
        let (part, slot) = self.slots[slot];
        self.parts[part].start(slot)
    }

    fn poll(&mut self) -> Result<bool> {
        self.parts.iter_mut().try_fold(false, |moved, part| Ok(part.poll()? | moved))
    }

    fn run_ahead(&mut self, bytes: u64) -> Result<u64> {
        self.parts.iter_mut().try_fold(bytes, |bytes, part| part.run_ahead(bytes))
    }

    fn is_done(&self, slot: Slot) -> bool {
        let (part, slot) = self.slots[slot];
        self.parts[part].is_done(slot)
    }

    fn lingers(&self) -> bool {
        self.parts.iter().any(|part| part.lingers())
    }

    fn waiting_for(&self, slot: Slot) -> Vec<usize> {
        let (part, slot) = self.slots[slot];
        self.parts[part].waiting_for(slot)
    }

    fn sent(&self) -> u64 {
        self.parts.iter().map(|part| part.sent()).sum()
    }
}
