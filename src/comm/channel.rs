//! Messages between ranks, straight out of and into regions.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::rc::Rc;

use mpi::ffi;

use super::communicator::Communicator;
use super::region::Region;
use super::request::{self, begin, check};
use super::world::World;
use crate::error::Result;

/// `MPI_Isend`, and what is called like it.
type Send = unsafe extern "C" fn(
    *const c_void,
    c_int,
    ffi::MPI_Datatype,
    c_int,
    c_int,
    ffi::MPI_Comm,
    *mut ffi::MPI_Request,
) -> c_int;

/// What carries messages between ranks: MPI in a job, memory between threads in tests.
///
/// Messages from a region of one rank to a region of another. Those from one rank to another with the same tag arrive
/// in the order in which they were sent.
pub trait Link {
    /// A message under way.
    type Request;

    /// This rank's number in the space.
    fn rank(&self) -> usize;

    /// How many ranks the space has.
    fn size(&self) -> usize;

    /// The number in the job of a rank of this space, which is what people call it.
    fn job_rank(&self, rank: usize) -> usize {
        rank
    }

    /// The range belongs to the message until it has ended: as soon as it is kept elsewhere, or where it is to be
    /// `matched` not before the other rank receives it.
    fn send(
        &self,
        region: &Rc<Region>,
        range: &Range<usize>,
        to: usize,
        tag: u16,
        matched: bool,
    ) -> Result<Self::Request>;

    /// Receives a message of exactly that length.
    fn receive(
        &self,
        region: &Rc<Region>,
        range: &Range<usize>,
        from: usize,
        tag: u16,
    ) -> Result<Self::Request>;

    /// Whether a message has left or come in; it makes progress meanwhile.
    fn ended(&self, request: &mut Self::Request) -> Result<bool>;
}

/// A space of messages: what is sent on one channel is never received on another.
pub struct Channel {
    /// MPI is not finalized while a channel is there.
    world: World,
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
        let done = request::test(&mut self.raw)?;
        if done {
            self.region = None;
        }
        Ok(done)
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        // A message that the other rank has yet to acknowledge, or an error left it. MPI may still read the region, or
        // write to it, so it must stay.
        if let Some(region) = self.region.take() {
            std::mem::forget(region);
            request::free(&mut self.raw);
        }
    }
}

impl Link for Channel {
    type Request = Request;

    fn rank(&self) -> usize {
        self.communicator.rank()
    }

    fn job_rank(&self, rank: usize) -> usize {
        self.world.job_rank(rank)
    }

    fn size(&self) -> usize {
        self.communicator.size()
    }

    fn send(
        &self,
        region: &Rc<Region>,
        range: &Range<usize>,
        to: usize,
        tag: u16,
        matched: bool,
    ) -> Result<Request> {
        let (name, send): (_, Send) = match matched {
            true => ("MPI_Issend", ffi::MPI_Issend),
            false => ("MPI_Isend", ffi::MPI_Isend),
        };
        let (address, count) = (region.at(range), request::count(range.len())?);
        // SAFETY: the range lies within the region, which the request keeps alive.
        let raw = unsafe {
            let mut raw = ffi::RSMPI_REQUEST_NULL;
            let (float, communicator) = (ffi::RSMPI_FLOAT, self.communicator.raw());
            let (to, tag) = (to as c_int, c_int::from(tag));
            check(name, send(address.cast(), count, float, to, tag, communicator, &mut raw))?;
            raw
        };
        Ok(Request { raw, region: Some(region.clone()) })
    }

    fn receive(&self, region: &Rc<Region>, range: &Range<usize>, from: usize, tag: u16) -> Result<Request> {
        let (address, count) = (region.at(range), request::count(range.len())?);
        // SAFETY: as in `send`.
        let raw = unsafe {
            let (float, communicator) = (ffi::RSMPI_FLOAT, self.communicator.raw());
            let (from, tag) = (from as c_int, c_int::from(tag));
            begin!(MPI_Irecv(address.cast(), count, float, from, tag, communicator))
        };
        Ok(Request { raw: raw?, region: Some(region.clone()) })
    }

    fn ended(&self, request: &mut Request) -> Result<bool> {
        request.test()
    }
}

impl Channel {
    /// Collective.
    pub fn new(world: &World) -> Result<Channel> {
        Ok(Channel { world: world.clone(), communicator: world.control().duplicate()? })
    }

    /// The MPI library's own allreduce of a range, a sum in place. Every rank starts them in the same order.
    pub fn start_allreduce(&self, region: &Rc<Region>, range: &Range<usize>) -> Result<Request> {
        let (address, count) = (region.at(range), request::count(range.len())?);
        // SAFETY: as in `send`.
        let raw = unsafe {
            let (float, sum, communicator) = (ffi::RSMPI_FLOAT, ffi::RSMPI_SUM, self.communicator.raw());
            begin!(MPI_Iallreduce(request::in_place(), address.cast(), count, float, sum, communicator))
        };
        Ok(Request { raw: raw?, region: Some(region.clone()) })
    }

    /// An allreduce that blocks inside MPI: the yardstick of `dltrain bench`, and nothing else's.
    pub fn allreduce_blocking(&self, region: &Region, range: &Range<usize>) -> Result<()> {
        let (address, count) = (region.at(range), request::count(range.len())?);
        // SAFETY: the range lies within the region, which outlives the call.
        let code = unsafe {
            let (float, sum) = (ffi::RSMPI_FLOAT, ffi::RSMPI_SUM);
            ffi::MPI_Allreduce(
                request::in_place(),
                address.cast(),
                count,
                float,
                sum,
                self.communicator.raw(),
            )
        };
        check("MPI_Allreduce", code)
    }

    /// The library's own reduce-scatter of a range, a sum in place, blocking inside MPI. Rank r gives `counts[r]` for
    /// the elements of its part, and gets it at the *start* of the range. For `dltrain bench`, as those below.
    pub fn reduce_scatter_blocking(
        &self,
        region: &Region,
        range: &Range<usize>,
        counts: &[usize],
    ) -> Result<()> {
        let (address, counts) = (region.at(range), self.counts(range, counts)?);
        // SAFETY: the range lies within the region, which outlives the call, and has as many elements as all counts.
        let code = unsafe {
            let (float, sum, communicator) = (ffi::RSMPI_FLOAT, ffi::RSMPI_SUM, self.communicator.raw());
            let into = address.cast();
            ffi::MPI_Reduce_scatter(request::in_place(), into, counts.as_ptr(), float, sum, communicator)
        };
        check("MPI_Reduce_scatter", code)
    }

    /// The library's own allgather of a range, in place, of which rank r brings the part of `counts[r]` elements.
    /// MPI_Allgather where all are equal, else MPI_Allgatherv.
    pub fn allgather_blocking(&self, region: &Region, range: &Range<usize>, counts: &[usize]) -> Result<()> {
        let (address, counts) = (region.at(range), self.counts(range, counts)?);
        let communicator = self.communicator.raw();
        let equal = counts.iter().all(|count| *count == counts[0]);
        let starts: Vec<c_int> =
            counts.iter().scan(0, |next, count| Some(std::mem::replace(next, *next + count))).collect();
        // SAFETY: as in `reduce_scatter_blocking`; what a rank sends is ignored in place.
        let code = unsafe {
            let (in_place, into, float) = (request::in_place(), address.cast(), ffi::RSMPI_FLOAT);
            if equal {
                ffi::MPI_Allgather(in_place, 0, float, into, counts[0], float, communicator)
            } else {
                let (counts, starts) = (counts.as_ptr(), starts.as_ptr());
                ffi::MPI_Allgatherv(in_place, 0, float, into, counts, starts, float, communicator)
            }
        };
        check("MPI_Allgather", code)
    }

    /// The library's own broadcast of rank 0's range.
    pub fn broadcast_blocking(&self, region: &Region, range: &Range<usize>) -> Result<()> {
        let (address, count) = (region.at(range), request::count(range.len())?);
        // SAFETY: the range lies within the region, which outlives the call.
        let code =
            unsafe { ffi::MPI_Bcast(address.cast(), count, ffi::RSMPI_FLOAT, 0, self.communicator.raw()) };
        check("MPI_Bcast", code)
    }

    /// Counts as MPI wants them: one a rank, and of the whole range in all.
    fn counts(&self, range: &Range<usize>, counts: &[usize]) -> Result<Vec<c_int>> {
        assert!(counts.len() == self.size() && counts.iter().sum::<usize>() == range.len(), "{counts:?}");
        request::count(range.len())?;
        counts.iter().map(|&count| request::count(count)).collect()
    }
}
