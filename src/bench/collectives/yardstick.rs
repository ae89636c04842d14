//! The MPI library's own blocking calls: the yardstick.

use std::ops::Range;
use std::rc::Rc;

use super::Subject;
use crate::collective::{Collective, Slot, even_split};
use crate::comm::{Channel, Link, Region, World};
use crate::error::Result;

pub struct Yardstick {
    subject: Subject,
    channel: Channel,
    region: Rc<Region>,
    /// With the elements of every rank's part.
    ranges: Vec<(Range<usize>, Vec<usize>)>,
}

impl Yardstick {
    /// Collective.
    pub fn new(subject: Subject, world: &World, region: &Rc<Region>) -> Result<Yardstick> {
        let channel = Channel::new(world)?;
        Ok(Yardstick { subject, channel, region: region.clone(), ranges: Vec::new() })
    }
}

impl Collective for Yardstick {
    fn name(&self) -> &'static str {
        match self.subject {
            Subject::Allreduce => "MPI_Allreduce",
            Subject::ReduceScatter => "MPI_Reduce_scatter",
            Subject::Allgather => "MPI_Allgather",
            Subject::Broadcast => "MPI_Bcast",
        }
    }

    fn prepare(&mut self, range: Range<usize>) -> Result<Slot> {
        let ranks = self.channel.size();
        let counts = (0..ranks).map(|rank| even_split(range.len(), ranks, rank).len()).collect();
        self.ranges.push((range, counts));
        Ok(self.ranges.len() - 1)
    }

    fn start(&mut self, slot: Slot) -> Result<()> {
        let (range, counts) = &self.ranges[slot];
        match self.subject {
            Subject::Allreduce => self.channel.allreduce_blocking(&self.region, range),
            Subject::ReduceScatter => self.channel.reduce_scatter_blocking(&self.region, range, counts),
            Subject::Allgather => self.channel.allgather_blocking(&self.region, range, counts),
            Subject::Broadcast => self.channel.broadcast_blocking(&self.region, range),
        }
    }

    fn poll(&mut self) -> Result<bool> {
        Ok(false)
    }

    fn is_done(&self, _: Slot) -> bool {
        true
    }
}
