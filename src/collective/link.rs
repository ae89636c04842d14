//! What carries messages between ranks: MPI in a job, memory between threads in tests.

use std::ops::Range;
use std::rc::Rc;

use crate::comm::{Channel, Region, Request};
use crate::error::Result;

/// Messages from a region of one rank to a region of another. Those from one rank to another with the same tag arrive
/// in the order in which they were sent.
pub trait Link {
    type Request;

    fn rank(&self) -> usize;
    fn size(&self) -> usize;
    /// What people call a rank.
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

impl Link for Channel {
    type Request = Request;

    fn rank(&self) -> usize {
        Channel::rank(self)
    }

    fn size(&self) -> usize {
        Channel::size(self)
    }

    fn job_rank(&self, rank: usize) -> usize {
        Channel::job_rank(self, rank)
    }

    fn send(
        &self,
        region: &Rc<Region>,
        range: &Range<usize>,
        to: usize,
        tag: u16,
        matched: bool,
    ) -> Result<Request> {
        Channel::send(self, region, range, to, tag, matched)
    }

    fn receive(&self, region: &Rc<Region>, range: &Range<usize>, from: usize, tag: u16) -> Result<Request> {
        Channel::receive(self, region, range, from, tag)
    }

    fn ended(&self, request: &mut Request) -> Result<bool> {
        request.test()
    }
}
