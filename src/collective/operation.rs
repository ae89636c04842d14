//! The sum's siblings: its two halves, and one rank's numbers on all. By messages, with the engine of the sums, or in
//! memory that a node shares.

use std::rc::Rc;

use super::executor::{Algorithm, Executor};
use super::schedule::Group;
use super::{Collective, Shm, broadcast, ring};
use crate::comm::{Channel, Region, World};
use crate::config::Wire;
use crate::error::{Error, Result};

/// A collective other than the sum over all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// The first half of an allreduce: rank r ends with the sum of `segment(range, ranks, r)` in its place. What then
    /// stands in the rest of the range is not defined.
    ReduceScatter,
    /// The second half: what rank r has in `segment(range, ranks, r)` goes to the same place of every rank.
    Allgather,
    /// What one rank has goes to all.
    Broadcast {
        /// The rank that has it.
        root: usize,
    },
}

/// The way to go about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Route {
    /// Shm where all ranks are on one node and the region is shared, else ring or chain.
    Auto,
    /// Messages round a ring: reduce-scatter and allgather.
    Ring,
    /// A pipelined chain of messages: broadcast.
    Chain,
    /// A binomial tree of messages, for small ones: broadcast.
    Tree,
    /// In memory that the ranks of one node share.
    Shm,
}

impl Operation {
    /// As people call it.
    pub fn name(self) -> &'static str {
        match self {
            Operation::ReduceScatter => "reduce-scatter",
            Operation::Allgather => "allgather",
            Operation::Broadcast { .. } => "broadcast",
        }
    }

    /// The ways by messages, the usual one first.
    fn messages(self) -> &'static [(Route, &'static str, Algorithm)] {
        match self {
            Operation::ReduceScatter => &[(Route::Ring, "ring", ring::reduce_scatter)],
            Operation::Allgather => &[(Route::Ring, "ring", ring::allgather)],
            Operation::Broadcast { .. } => {
                &[(Route::Chain, "chain", broadcast::chain), (Route::Tree, "tree", broadcast::tree)]
            }
        }
    }

    /// The ways that there are with these ranks and this region.
    pub fn routes(self, world: &World, region: &Region) -> Vec<Route> {
        let shm = (world.nodes() == 1 && region.is_shared()).then_some(Route::Shm);
        self.messages().iter().map(|(route, ..)| *route).chain(shm).collect()
    }

    /// Makes it, ready for ranges of a region to be prepared. On the way between ranks numbers are of type `wire`; in
    /// shared memory they stay as they are. Collective.
    ///
    /// # Errors
    /// `Usage`, agreed by all ranks, when there is no such way with these ranks and this region.
    pub fn make(
        self,
        route: Route,
        wire: Wire,
        world: &World,
        region: &Rc<Region>,
    ) -> Result<Box<dyn Collective>> {
        let shared = self.routes(world, region).contains(&Route::Shm);
        if route == Route::Shm || (route == Route::Auto && shared) {
            let refused = || {
                let text = "works within one node that has room in /dev/shm; use auto";
                Err(Error::usage(format!("{} by shm {text}", self.name())))
            };
            world.agree(if shared { Ok(()) } else { refused() })?;
            return Ok(Box::new(match self {
                Operation::ReduceScatter => Shm::reduce_scatter(world, region),
                Operation::Allgather => Shm::allgather(world, region),
                Operation::Broadcast { root } => Shm::broadcast(root, world, region),
            }));
        }
        let ways = self.messages();
        let way = ways.iter().find(|way| way.0 == route || route == Route::Auto).ok_or_else(|| {
            let names: Vec<&str> = ways.iter().map(|way| way.1).collect();
            let route = format!("{route:?}").to_lowercase();
            Error::usage(format!("{} by {route}: use {} or shm", self.name(), names.join(", ")))
        });
        let &(_, name, algorithm) = world.agree(way)?;
        let collective = Executor::new(name, algorithm, wire, Channel::new(world)?, region);
        Ok(Box::new(collective.among(self.group(world.rank(), world.size()))))
    }

    /// All ranks; for a broadcast those from the root on.
    fn group(self, rank: usize, size: usize) -> Group {
        let first = if let Operation::Broadcast { root } = self { root } else { 0 };
        Group {
            ranks: (0..size).map(|place| (first + place) % size).collect(),
            place: (rank + size - first) % size,
        }
    }
}
