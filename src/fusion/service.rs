//! What a server that answers one rank after the other has under way: gradients of each by themselves, into one
//! region, and new parameters back to it.

use std::ops::Range;
use std::time::Instant;

use super::{Line, elements};
use crate::comm::Awaited;
use crate::cuts::Cuts;
use crate::device::Device;
use crate::error::Result;
use crate::plan::{Kind, Script};

/// A line to each rank that computes, and one from it.
pub struct Service {
    /// Their gradients.
    sums: Vec<Line>,
    /// Their new parameters.
    parameters: Vec<Line>,
    /// The clock's zero.
    begun: Instant,
}

impl Service {
    /// Prepares what this server owns of each of the script's pushes and pulls.
    ///
    /// # Errors
    /// Memory lacks, or there are too many buckets.
    pub fn new(mut sums: Vec<Line>, mut parameters: Vec<Line>, script: &Script) -> Result<Service> {
        for transfer in script.transfers.iter() {
            let own = transfer.cuts.part(script.place(transfer.axis)).clone();
            let (lines, gives, gets): (_, _, Range<usize>) = match transfer.kind {
                Kind::Push => (&mut sums, own.start..own.start, own.clone()),
                _ => (&mut parameters, own.clone(), own.start..own.start),
            };
            // The rank that computes has the first place of two.
            let cuts = elements(&Cuts::new(own.clone(), vec![own.start..own.start, own.clone()]));
            for line in lines.iter_mut() {
                let slot = line.collective().prepare_cut(&cuts)?;
                line.push(slot, &own, gives.clone(), gets.clone());
            }
        }
        Ok(Service { sums, parameters, begun: Instant::now() })
    }

    /// How many buckets there are.
    pub fn buckets(&self) -> usize {
        self.sums.first().map_or(0, Line::transfers)
    }

    /// All gradients of a rank may come: what is there of them belongs to them.
    pub fn take(&mut self, rank: usize, device: &dyn Device) -> Result<()> {
        (0..self.buckets()).try_for_each(|bucket| self.sums[rank].complete(bucket, device))
    }

    /// Whether a bucket's gradients have come. What the device does from then on finds them.
    pub fn has(&mut self, rank: usize, bucket: usize, device: &dyn Device) -> Result<bool> {
        match self.sums[rank].is_finished(bucket) {
            true => self.sums[rank].use_on(bucket, device).map(|()| true),
            false => Ok(false),
        }
    }

    /// A bucket's new parameters go to a rank, the first bucket's first.
    pub fn give(&mut self, rank: usize, bucket: usize, device: &dyn Device) -> Result<()> {
        self.parameters[rank].complete(bucket, device)
    }

    /// A rank, of all or only this one, to which parameters of this bucket or of any are on their way: they must not
    /// change until they are there.
    pub fn giving(&self, bucket: Option<usize>, rank: Option<usize>) -> Option<usize> {
        let flies = |rank: &usize| {
            let line = &self.parameters[*rank];
            line.is_flying() && bucket.is_none_or(|bucket| !line.is_finished(bucket))
        };
        let mut ranks = match rank {
            Some(rank) => rank..rank + 1,
            None => 0..self.parameters.len(),
        };
        ranks.find(flies)
    }

    /// What is waited for of a rank while its gradients come.
    pub fn awaited(&self, rank: usize, bucket: usize) -> Awaited {
        self.sums[rank].awaited(bucket)
    }

    /// Moves along what is under way, without waiting. Returns whether anything moved.
    pub fn progress(&mut self, device: &dyn Device) -> Result<bool> {
        let mut moved = false;
        for line in self.sums.iter_mut().chain(&mut self.parameters).filter(|line| line.needs_progress()) {
            moved |= line.progress(device, self.begun)?;
        }
        Ok(moved)
    }

    /// Bytes that this rank has sent so far.
    pub fn sent(&self) -> u64 {
        self.parameters.iter().map(Line::sent).sum()
    }
}
