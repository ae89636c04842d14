//! What the ranks of one node do with each other's numbers in a hierarchical sum: in the host's memory, which all of
//! them see, or where else each can reach them (`fusion::Peers`: their GPUs').

use std::ops::Range;
use std::rc::Rc;

use crate::comm::Region;
use crate::error::Result;

/// Which of the things begun it is, counted from 1; 0 is done.
pub type Ticket = u64;

/// The same range of every rank of a node. What is begun is done in order.
pub trait Within {
    /// Of the sum: "hierarchical".
    fn name(&self) -> &'static str;
    /// Elements that one call takes, at most.
    fn chunk(&self) -> usize;
    /// Elements of a piece, at most.
    fn piece(&self) -> usize {
        PIECE
    }
    /// Begins to add up a range over the ranks of the node, in the order of local ranks, for this rank; the sum is in
    /// its region when that is done.
    fn add(&mut self, range: Range<usize>) -> Result<Ticket>;
    /// Begins to write what this rank has of a range to all ranks of the node.
    fn share(&mut self, range: Range<usize>) -> Result<Ticket>;
    /// Whether it is done.
    fn reached(&mut self, ticket: Ticket) -> Result<bool>;
    /// Lets go of what is other ranks'. Nothing is begun after it.
    fn leave(&mut self) {}
}

/// Elements that one `poll` adds up or writes: 128 KB a rank.
const CHUNK: usize = 32 * 1024;

/// 8 MB. On a link of 1 Gbit/s that is 70 ms, and adding it up takes a few.
pub const PIECE: usize = 2 << 20;

/// By the one that calls, at once.
impl Within for Rc<Region> {
    fn name(&self) -> &'static str {
        "hierarchical"
    }

    fn chunk(&self) -> usize {
        CHUNK
    }

    fn add(&mut self, range: Range<usize>) -> Result<Ticket> {
        self.sum_from_node(range);
        Ok(0)
    }

    fn share(&mut self, range: Range<usize>) -> Result<Ticket> {
        self.write_to_node(range);
        Ok(0)
    }

    fn reached(&mut self, _ticket: Ticket) -> Result<bool> {
        Ok(true)
    }
}

/// Memory that the ranks of a node have in common: what one has they all have.
pub struct InCommon;

impl Within for InCommon {
    fn name(&self) -> &'static str {
        "hierarchical"
    }

    fn chunk(&self) -> usize {
        usize::MAX
    }

    fn add(&mut self, _range: Range<usize>) -> Result<Ticket> {
        Ok(0)
    }

    fn share(&mut self, _range: Range<usize>) -> Result<Ticket> {
        Ok(0)
    }

    fn reached(&mut self, _ticket: Ticket) -> Result<bool> {
        Ok(true)
    }
}
