//! Messages between ranks, straight out of and into regions.

use std::ffi::c_int;
use std::ops::Range;
use std::rc::Rc;

use mpi::ffi;

use super::call::{self, check};
use super::communicator::Communicator;
use super::region::Region;
use super::world::World;
use crate::error::Result;

/// A space of messages: what is sent on one channel is never received on another.
pub struct Channel {
    /// MPI is not finalized while a channel is there.
    _world: World,
    communicator: Communicator,
}

/// A message or collective under way. It keeps its region alive; the range belongs to it until `test` is true.
pub struct Request {
    raw: ffi::MPI_Request,
    /// `None` once the operation has ended.
    region: Option<Rc<Region>>,
}

impl Request {
    /// Whether the operation has ended. Gives MPI a chance to make progress.
    pub fn test(&mut self) -> Result<bool> {
        let done = call::test(&mut self.raw)?;
        if done {
            self.region = None;
        }
        Ok(done)
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        // Only an error leaves a request unfinished. MPI may still write to the region, so it must stay.
        std::mem::forget(self.region.take());
    }
}

impl Channel {
    /// Collective.
    pub fn new(world: &World) -> Result<Channel> {
        Ok(Channel { _world: world.clone(), communicator: world.control().duplicate()? })
    }

    pub fn rank(&self) -> usize {
        self.communicator.rank()
    }

    pub fn size(&self) -> usize {
        self.communicator.size()
    }

    /// Sends a range. Messages from one rank to another with the same tag arrive in the order they were sent.
    pub fn send(&self, region: &Rc<Region>, range: &Range<usize>, to: usize, tag: u16) -> Result<Request> {
        let (address, count) = (region.at(range), call::count(range.len())?);
        // SAFETY: the range lies within the region, which the request keeps alive.
        let raw = unsafe {
            let mut raw = ffi::RSMPI_REQUEST_NULL;
            let (float, communicator) = (ffi::RSMPI_FLOAT, self.communicator.raw());
            let (to, tag) = (to as c_int, c_int::from(tag));
            check(
                "MPI_Isend",
                ffi::MPI_Isend(address.cast(), count, float, to, tag, communicator, &mut raw),
            )?;
            raw
        };
        Ok(Request { raw, region: Some(region.clone()) })
    }

    /// Receives into a range a message of exactly that length.
    pub fn receive(
        &self,
        region: &Rc<Region>,
        range: &Range<usize>,
        from: usize,
        tag: u16,
    ) -> Result<Request> {
        let (address, count) = (region.at(range), call::count(range.len())?);
        // SAFETY: as in `send`.
        let raw = unsafe {
            let mut raw = ffi::RSMPI_REQUEST_NULL;
            let (float, communicator) = (ffi::RSMPI_FLOAT, self.communicator.raw());
            let (from, tag) = (from as c_int, c_int::from(tag));
            check(
                "MPI_Irecv",
                ffi::MPI_Irecv(address.cast(), count, float, from, tag, communicator, &mut raw),
            )?;
            raw
        };
        Ok(Request { raw, region: Some(region.clone()) })
    }

    /// The MPI library's own allreduce of a range, a sum in place. Every rank starts them in the same order.
    pub fn start_allreduce(&self, region: &Rc<Region>, range: &Range<usize>) -> Result<Request> {
        let (address, count) = (region.at(range), call::count(range.len())?);
        // SAFETY: as in `send`.
        let raw = unsafe {
            let mut raw = ffi::RSMPI_REQUEST_NULL;
            let (float, sum, communicator) = (ffi::RSMPI_FLOAT, ffi::RSMPI_SUM, self.communicator.raw());
            let (into, in_place) = (address.cast(), call::in_place());
            check(
                "MPI_Iallreduce",
                ffi::MPI_Iallreduce(in_place, into, count, float, sum, communicator, &mut raw),
            )?;
            raw
        };
        Ok(Request { raw, region: Some(region.clone()) })
    }

    /// The same, blocking inside MPI: the yardstick of `dltrain bench`, and nothing else's.
    pub fn allreduce_blocking(&self, region: &Region, range: &Range<usize>) -> Result<()> {
        let (address, count) = (region.at(range), call::count(range.len())?);
        // SAFETY: the range lies within the region, which outlives the call.
        let code = unsafe {
            let (float, sum) = (ffi::RSMPI_FLOAT, ffi::RSMPI_SUM);
            ffi::MPI_Allreduce(call::in_place(), address.cast(), count, float, sum, self.communicator.raw())
        };
        check("MPI_Allreduce", code)
    }
}
