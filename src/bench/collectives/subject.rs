//! What the four collectives are: who takes part, what must come out, and how fast that is.

use std::fmt;
use std::ops::Range;
use std::rc::Rc;

use clap::ValueEnum;

use super::Args;
use super::yardstick::Yardstick;
use crate::collective::tuning::Tuning;
use crate::collective::{Collective, Operation, Slot, segment, select, wait};
use crate::comm::{Region, World};
use crate::config::values::names_of;
use crate::config::{AllreduceKind, Wire};
use crate::error::{Error, Result};

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    Allreduce,
    ReduceScatter,
    Allgather,
    Broadcast,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Subject::Allreduce => "allreduce",
            Subject::ReduceScatter => "reducescatter",
            Subject::Allgather => "allgather",
            Subject::Broadcast => "broadcast",
        })
    }
}

/// One that is measured.
pub struct Contender {
    pub collective: Box<dyn Collective>,
    /// What numbers really travel as.
    pub wire: Wire,
    /// Whether it is the MPI library's blocking call.
    pub is_yardstick: bool,
}

impl Contender {
    pub fn prepare(&mut self, ranges: &[Range<usize>]) -> Result<Vec<Slot>> {
        ranges.iter().map(|range| self.collective.prepare(range.clone())).collect()
    }

    /// One run of slots that are in flight together.
    pub fn run(&mut self, slots: &[Slot]) -> Result<()> {
        slots.iter().try_for_each(|&slot| self.collective.start(slot))?;
        slots.iter().try_for_each(|&slot| wait(&mut *self.collective, slot))
    }
}

/// What must stand somewhere in a region afterwards.
pub struct ExpectedRegion {
    pub at: Range<usize>,
    /// The first of the elements that went into it; the others follow.
    pub from: usize,
    pub origin: Origin,
}

/// Whose numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// Those of all ranks, added.
    Sum,
    Rank(usize),
}

impl Subject {
    /// What one rank must have of a range. Nothing is said of elements that are not defined.
    pub fn expected(
        self,
        range: &Range<usize>,
        ranks: usize,
        rank: usize,
        is_yardstick: bool,
    ) -> Vec<ExpectedRegion> {
        let whole = |origin| vec![ExpectedRegion { at: range.clone(), from: range.start, origin }];
        let of_rank = |rank, origin| {
            let at = segment(range, ranks, rank);
            ExpectedRegion { from: at.start, at, origin }
        };
        match self {
            Subject::Allreduce => whole(Origin::Sum),
            Subject::Broadcast => whole(Origin::Rank(0)),
            Subject::Allgather => (0..ranks).map(|rank| of_rank(rank, Origin::Rank(rank))).collect(),
            Subject::ReduceScatter => {
                let mut own = of_rank(rank, Origin::Sum);
                if is_yardstick {
                    // In place MPI puts a rank's part to the front.
                    own.at = range.start..range.start + own.at.len();
                }
                vec![own]
            }
        }
    }

    /// Whether all ranks end with the same numbers.
    pub fn is_alike(self) -> bool {
        self != Subject::ReduceScatter
    }

    /// Bus bandwidth over algorithm bandwidth, as nccl-tests define it: the share of the range that a rank must send
    /// through its link at least, and as much receive.
    pub fn bus_factor(self, ranks: usize) -> f64 {
        let n = ranks as f64;
        match self {
            Subject::Allreduce => 2.0 * (n - 1.0) / n,
            Subject::ReduceScatter | Subject::Allgather => (n - 1.0) / n,
            Subject::Broadcast => 1.0,
        }
    }

    /// The bus bandwidth's formula in words.
    pub fn bus_formula(self) -> &'static str {
        match self {
            Subject::Allreduce => "algbw·2(n−1)/n",
            Subject::ReduceScatter | Subject::Allgather => "algbw·(n−1)/n",
            Subject::Broadcast => "algbw",
        }
    }

    /// The MPI library's call first, unless nothing is timed; then ours. Collective.
    pub fn contenders(self, args: &Args, world: &World, region: &Rc<Region>) -> Result<Vec<Contender>> {
        let mut collectives = match self {
            Subject::Allreduce => sums(args, world, region)?,
            Subject::ReduceScatter => others(Operation::ReduceScatter, args, world, region)?,
            Subject::Allgather => others(Operation::Allgather, args, world, region)?,
            Subject::Broadcast => others(Operation::Broadcast { root: 0 }, args, world, region)?,
        };
        if !args.check_only {
            collectives.insert(0, Box::new(Yardstick::new(self, world, region)?));
        }
        let contender = |collective: Box<dyn Collective>| {
            let name = collective.name();
            let plain = ["mpi", "shm"].contains(&name)
                || (name == "hierarchical" && world.nodes() == 1)
                || name.starts_with("MPI_");
            let wire = if plain { Wire::F32 } else { args.wire };
            Contender { is_yardstick: name.starts_with("MPI_"), collective, wire }
        };
        Ok(collectives.into_iter().map(contender).collect())
    }
}

/// The sums asked for, or all that can run here.
fn sums(args: &Args, world: &World, region: &Rc<Region>) -> Result<Vec<Box<dyn Collective>>> {
    let shared = region.is_shared();
    let all = [
        (AllreduceKind::MPI, true),
        (AllreduceKind::RING, true),
        (AllreduceKind::HALVING_DOUBLING, true),
        (AllreduceKind::RECURSIVE_DOUBLING, true),
        (AllreduceKind::TORUS, true),
        (AllreduceKind::HIERARCHICAL, shared && world.is_even()),
        (AllreduceKind::Shm, shared && world.nodes() == 1),
    ];
    let all = all.into_iter().filter_map(|(kind, can)| can.then_some(kind)).collect();
    let kinds = world.agree(asked(args, all, "allreduce"))?;
    let wire =
        |kind| if kind == AllreduceKind::MPI && args.algorithm.is_empty() { Wire::F32 } else { args.wire };
    // What a run would choose.
    let measured = kinds.contains(&AllreduceKind::Auto);
    let tuning = if measured { Tuning::load(world, None)? } else { Tuning::built_in() };
    kinds.into_iter().map(|kind| select(kind, wire(kind), &tuning, world, region)).collect()
}

fn others(
    operation: Operation,
    args: &Args,
    world: &World,
    region: &Rc<Region>,
) -> Result<Vec<Box<dyn Collective>>> {
    let routes = world.agree(asked(args, operation.routes(world, region), operation.name()))?;
    routes.into_iter().map(|route| operation.make(route, args.wire, world, region)).collect()
}

/// The algorithms asked for by name, or `all`.
fn asked<A: ValueEnum>(args: &Args, all: Vec<A>, of: &str) -> Result<Vec<A>> {
    if args.algorithm.is_empty() {
        return Ok(all);
    }
    let known = names_of::<A>();
    let unknown = |name: &String| {
        Error::usage(format!("--algorithm {name}: {of} has {}; use one of these", known.join(", ")))
    };
    args.algorithm.iter().map(|name| A::from_str(name, false).map_err(|_| unknown(name))).collect()
}
