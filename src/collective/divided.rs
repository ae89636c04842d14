//! Sums of one region between unlike ranks: of its first elements between some, of the others between all.

use std::ops::Range;

use super::{Collective, Slot};
use crate::cuts::Cuts;
use crate::error::Result;

/// Two collectives of one region.
pub struct Divided {
    /// For ranges that begin before this element, and for the others.
    at: usize,
    parts: [Box<dyn Collective>; 2],
    /// Which of them has a slot, and as which of its own.
    slots: Vec<(usize, Slot)>,
}

impl Divided {
    /// `first` sums ranges that begin before element `at`.
    pub fn new(at: usize, first: Box<dyn Collective>, others: Box<dyn Collective>) -> Divided {
        Divided { at, parts: [first, others], slots: Vec::new() }
    }

    fn part(&self, range: &Range<usize>) -> usize {
        usize::from(range.start >= self.at)
    }
}

impl Collective for Divided {
    fn name(&self) -> &'static str {
        self.parts[1].name()
    }

    fn algorithm(&self, slot: Slot) -> &'static str {
        let (part, slot) = self.slots[slot];
        self.parts[part].algorithm(slot)
    }

    fn prepare(&mut self, range: Range<usize>) -> Result<Slot> {
        let part = self.part(&range);
        self.slots.push((part, self.parts[part].prepare(range)?));
        Ok(self.slots.len() - 1)
    }

    fn prepare_cut(&mut self, cuts: &Cuts) -> Result<Slot> {
        let part = self.part(cuts.range());
        self.slots.push((part, self.parts[part].prepare_cut(cuts)?));
        Ok(self.slots.len() - 1)
    }

    fn start(&mut self, slot: Slot) -> Result<()> {
        let (part, slot) = self.slots[slot];
        self.parts[part].start(slot)
    }

    fn poll(&mut self) -> Result<bool> {
        let [first, others] = &mut self.parts;
        Ok(first.poll()? | others.poll()?)
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
