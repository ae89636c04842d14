//! The sum's siblings: its two halves, and one rank's numbers on all. By messages, with the engine of the sums, or in
//! memory that a node shares.

use std::rc::Rc;

use super::executor::Executor;
use super::schedule::Group;
use super::{Collective, Hierarchical, Shm, Steps, shm};
use crate::comm::{Channel, Region, World};
use crate::config::Wire;
use crate::error::{Error, Result};

/// A collective other than the sum over all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// The first half of an allreduce: rank r ends with the sum of what it owns in its place, `segment(range, ranks,
    /// r)` unless `prepare_cut` says otherwise. What then stands in the rest of the range is not defined.
    ReduceScatter,
    /// The second half: what rank r has in the part that it owns goes to the same place of every rank.
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
    /// Shm where all ranks are on one node and the region is shared, hierarchical where there are as many ranks on each
    /// of several nodes and it is shared, else ring or chain.
    Auto,
    /// Messages round a ring: reduce-scatter and allgather.
    Ring,
    /// Exchanges of ever smaller halves: reduce-scatter, with a power of two of ranks.
    Halving,
    /// A pipelined chain of messages: broadcast.
    Chain,
    /// A binomial tree of messages, for small ones: broadcast.
    Tree,
    /// In memory that a node shares, and by a ring between nodes for each local rank: reduce-scatter and allgather.
    Hierarchical,
    /// In memory that the ranks of one node share.
    Shm,
    /// Messages between each rank and the owners: rank 0, or the last ranks, which have nothing to add.
    #[value(skip)]
    Star,
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
    fn messages(self) -> &'static [(Route, &'static str, Steps)] {
        match self {
            Operation::ReduceScatter => &[
                (Route::Ring, "ring", Steps::Scatter),
                (Route::Halving, "halving", Steps::Halve),
                (Route::Star, "star", Steps::ToOwners),
            ],
            Operation::Allgather => {
                &[(Route::Ring, "ring", Steps::Collect), (Route::Star, "star", Steps::FromOwners)]
            }
            Operation::Broadcast { .. } => {
                &[(Route::Chain, "chain", Steps::Chain), (Route::Tree, "tree", Steps::Tree)]
            }
        }
    }

    /// The ways that there are with these ranks and this region.
    pub fn routes(self, world: &World, region: &Region) -> Vec<Route> {
        let offered = |route: &Route| match route {
            // For few owners, which a benchmark of equal parts has not.
            Route::Star => false,
            Route::Halving => world.size().is_power_of_two(),
            _ => true,
        };
        let messages = self.messages().iter().map(|(route, ..)| *route).filter(offered);
        let near =
            [Route::Hierarchical, Route::Shm].into_iter().filter(|&route| self.is_near(route, world, region));
        messages.chain(near).collect()
    }

    /// Whether this route goes through memory that a node's ranks share, and they can take it here.
    fn is_near(self, route: Route, world: &World, region: &Region) -> bool {
        let here = match route {
            Route::Shm => world.nodes() == 1,
            Route::Hierarchical => world.is_even() && !matches!(self, Operation::Broadcast { .. }),
            _ => false,
        };
        here && region.is_shared()
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
        let ways = self.messages();
        let usual =
            || [Route::Shm, Route::Hierarchical].into_iter().find(|&near| self.is_near(near, world, region));
        let route = if route == Route::Auto { usual().unwrap_or(ways[0].0) } else { route };
        if let Some(way) = ways.iter().find(|way| way.0 == route) {
            let &(_, name, steps) = way;
            let collective =
                Executor::new(name, steps.algorithm(), wire, Rc::new(Channel::new(world)?), region);
            return Ok(Box::new(collective.among(self.group(world.rank(), world.size()))));
        }
        let possible = self.is_near(route, world, region);
        world.agree(if possible { Ok(()) } else { Err(self.refused(route)) })?;
        let by_nodes = |steps| Hierarchical::new(steps, world, wire, region, Box::new(region.clone()));
        Ok(match (self, route) {
            (Operation::ReduceScatter, Route::Shm) => {
                Box::new(Shm::new(shm::Kind::ReduceScatter, world, region))
            }
            (Operation::ReduceScatter, _) => Box::new(by_nodes(Steps::Scatter)?),
            (Operation::Allgather, Route::Shm) => Box::new(Shm::new(shm::Kind::Allgather, world, region)),
            (Operation::Allgather, _) => Box::new(by_nodes(Steps::Collect)?),
            (Operation::Broadcast { root }, _) => {
                Box::new(Shm::new(shm::Kind::Broadcast(root), world, region))
            }
        })
    }

    /// The same as a star with each of the first so many ranks by itself, at the rank that owns what it prepares. The
    /// others make a star at that time. Collective.
    ///
    /// # Errors
    /// MPI's.
    pub fn with_each(
        self,
        others: usize,
        world: &World,
        region: &Rc<Region>,
    ) -> Result<Vec<Box<dyn Collective>>> {
        let channel = Rc::new(Channel::new(world)?);
        let star = self.messages().iter().find(|way| way.0 == Route::Star);
        let &(_, name, steps) = star.ok_or_else(|| self.refused(Route::Star))?;
        let with = |other: usize| -> Box<dyn Collective> {
            let pair = Group { ranks: vec![other, world.rank()], place: 1 };
            Box::new(Executor::new(name, steps.algorithm(), Wire::F32, channel.clone(), region).among(pair))
        };
        Ok((0..others).map(with).collect())
    }

    fn refused(self, route: Route) -> Error {
        let why = match (route, self) {
            (Route::Shm, _) => "that works within one node that has room in /dev/shm; use auto".into(),
            (Route::Hierarchical, Operation::ReduceScatter | Operation::Allgather) => {
                "that takes as many ranks on every node, and room in /dev/shm; use auto".into()
            }
            _ => {
                let messages = self.messages().iter().filter(|way| way.0 != Route::Star);
                let mut names: Vec<&str> = messages.map(|way| way.1).collect();
                names.extend((!matches!(self, Operation::Broadcast { .. })).then_some("hierarchical"));
                format!("use {} or shm", names.join(", "))
            }
        };
        let route = format!("{route:?}").to_lowercase();
        Error::usage(format!("{} by {route}: {why}", self.name()))
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
