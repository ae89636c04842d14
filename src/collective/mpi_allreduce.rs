//! The MPI library's own MPI_Iallreduce, in place.

use std::ops::Range;
use std::rc::Rc;

use super::{Collective, Slot};
use crate::comm::{Channel, Region, Request, World};
use crate::error::Result;

/// The MPI library's own allreduce, `MPI_Iallreduce`.
pub struct MpiAllreduce {
    channel: Channel,
    region: Rc<Region>,
    slots: Vec<(Range<usize>, Option<Request>)>,
}

impl MpiAllreduce {
    /// Collective.
    pub fn new(world: &World, region: &Rc<Region>) -> Result<MpiAllreduce> {
        Ok(MpiAllreduce { channel: Channel::new(world)?, region: region.clone(), slots: Vec::new() })
    }
}

impl Collective for MpiAllreduce {
    fn name(&self) -> &'static str {
        "mpi"
    }

    fn prepare(&mut self, range: Range<usize>) -> Result<Slot> {
        self.slots.push((range, None));
        Ok(self.slots.len() - 1)
    }

    fn start(&mut self, slot: Slot) -> Result<()> {
        let (range, request) = &mut self.slots[slot];
        debug_assert!(request.is_none(), "slot {slot} is in flight");
        if range.start < range.end {
            *request = Some(self.channel.start_allreduce(&self.region, range)?);
        }
        Ok(())
    }

    fn poll(&mut self) -> Result<bool> {
        let mut moved = false;
        for (_, flying) in &mut self.slots {
            if let Some(request) = flying
                && request.test()?
            {
                *flying = None;
                moved = true;
            }
        }
        Ok(moved)
    }

    fn is_done(&self, slot: Slot) -> bool {
        self.slots[slot].1.is_none()
    }
}
