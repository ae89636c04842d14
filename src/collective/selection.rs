//! Which algorithm sums which range: the one asked for, or for each range the one that the cost model finds fastest.
//!
//! A choice depends on the bytes of the range, on where ranks are, on what travels and on the tuning, all of which are
//! equal on all ranks and in a repeat. So are the choices.

use std::ops::Range;
use std::rc::Rc;

use super::cost::{Cost, Nodes};
use super::executor::{self, Executor};
use super::operation::{Operation, Route};
use super::tuning::Tuning;
use super::{Collective, Hierarchical, MpiAllreduce, Several, Shm, Steps, hierarchical, shm};
use crate::comm::{Channel, Region, Topology, World};
use crate::config::{AllreduceKind, Pattern, Wire};
use crate::error::{Error, Result};

/// The algorithm of a range and the seconds that it is expected to take.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Choice {
    /// The algorithm.
    pub kind: AllreduceKind,
    /// Seconds that it is expected to take; NaN where nothing is known.
    pub seconds: f64,
}

/// What a sum between GPUs takes where buckets are cut for one: seconds, and seconds a byte. Assumed, not measured, and
/// shown to nobody: a launch on every rank, and what a GPU's slot (PCIe 4.0) or a fast network carries.
const BETWEEN_GPUS: (f64, f64) = (50e-6, 1.0 / 20e9);

/// How ranges are summed in a run.
#[derive(Debug, Clone)]
pub struct Selection {
    kind: AllreduceKind,
    wire: Wire,
    /// Whether there are several nodes.
    apart: bool,
    cost: Cost,
}

impl Selection {
    /// # Errors
    /// `Usage`, the same on every rank, when what is asked for cannot run on these ranks and nodes.
    pub fn new(kind: AllreduceKind, wire: Wire, nodes: &Nodes, tuning: &Tuning) -> Result<Selection> {
        match kind {
            AllreduceKind::MPI if wire != Wire::F32 => Err(Error::usage(format!(
                "--wire {wire}: the MPI library adds what it sends, and knows no {wire}; use another --allreduce"
            ))),
            AllreduceKind::NCCL if wire != Wire::F32 => Err(Error::usage(format!(
                "--wire {wire}: NCCL sends gradients as they lie on the GPU, in f32; leave --wire out, or use another --allreduce"
            ))),
            AllreduceKind::Shm if nodes.0.len() > 1 => Err(Error::usage(format!(
                "--allreduce shm works within one node, and the ranks are on {}; use auto or ring",
                nodes.0.len()
            ))),
            AllreduceKind::Hierarchical(_) if !nodes.is_even() => Err(Error::usage(format!(
                "--allreduce {} needs as many ranks on every node; use auto or ring, or another number of ranks",
                kind.name()
            ))),
            _ => {
                let cost = Cost::new(nodes, wire, tuning);
                Ok(Selection { kind, wire, apart: nodes.0.len() > 1, cost })
            }
        }
    }

    /// What was asked for.
    pub fn kind(&self) -> AllreduceKind {
        self.kind
    }

    /// For a range of so many bytes, in a region that the ranks of a node share or that they do not.
    pub fn choose(&self, bytes: usize, shared: bool) -> Choice {
        let (kind, seconds) = match self.kind {
            AllreduceKind::Auto => self.cost.best(bytes, shared),
            AllreduceKind::IPC if self.apart => {
                let rings = self.cost.seconds(AllreduceKind::HIERARCHICAL, bytes);
                (AllreduceKind::IPC, rings.unwrap_or(f64::NAN))
            }
            kind @ (AllreduceKind::IPC | AllreduceKind::NCCL) => {
                (kind, BETWEEN_GPUS.0 + bytes as f64 * BETWEEN_GPUS.1)
            }
            kind => (kind, self.cost.seconds(kind, bytes).unwrap_or(f64::NAN)),
        };
        Choice { kind, seconds }
    }

    /// Whether gradients are to lie in memory that the ranks of a node share, with buckets of so many bytes.
    pub fn wants_shared(&self, buckets: &[usize]) -> bool {
        let in_memory = |bytes: &usize| {
            matches!(self.choose(*bytes, true).kind, AllreduceKind::Shm | AllreduceKind::HIERARCHICAL)
        };
        buckets.iter().any(in_memory)
    }

    /// Whether the region of these buckets is expected to be shared. An estimate: whether there is room on every node
    /// is known once it is asked for.
    pub fn expects_shared(&self, world: &Topology, buckets: &[usize]) -> bool {
        self.wants_shared(buckets) && Region::fits_shared(world, buckets.iter().sum())
    }

    /// Bytes that a rank has for the sums of a region prepared in such buckets: other ranks' regions that it maps, and
    /// memory for messages to come in.
    pub fn memory(&self, world: &Topology, buckets: &[usize]) -> [usize; 2] {
        let shared = self.expects_shared(world, buckets);
        let mapped = if shared { (world.local_size() - 1) * buckets.iter().sum::<usize>() } else { 0 };
        let local = world.local_size();
        let messages = |bytes: &usize| match self.choose(*bytes, shared).kind {
            // What a library receives beside what it adds to: as much again.
            AllreduceKind::MPI if world.size() > 1 => *bytes,
            AllreduceKind::Auto | AllreduceKind::Shm | AllreduceKind::Vendor(_) => 0,
            AllreduceKind::IPC if world.nodes() == 1 => 0,
            AllreduceKind::Hierarchical(_) => {
                hierarchical::memory(self.wire, bytes / 4, local, world.nodes())
            }
            AllreduceKind::Messages(pattern) => {
                executor::memory(Steps::Sum(pattern).algorithm(), self.wire, bytes / 4, world.size())
            }
        };
        [mapped, buckets.iter().map(messages).sum()]
    }

    /// Makes what sums ranges of a region. Collective.
    ///
    /// # Errors
    /// The same on every rank: `Environment` when what is asked for needs a shared region and this one is not, `Usage`
    /// for what sums no memory of the host.
    pub fn build(&self, world: &World, region: &Rc<Region>) -> Result<Box<dyn Collective>> {
        self.build_half(false, world, region)
    }

    /// The same for a reduce-scatter: where `to_owners`, a rank gets the sum of what it owns alone, made in the order
    /// in which the allreduce makes it. An algorithm without halves sums everything for everybody.
    ///
    /// # Errors
    /// As for `build`.
    pub fn build_half(
        &self,
        to_owners: bool,
        world: &World,
        region: &Rc<Region>,
    ) -> Result<Box<dyn Collective>> {
        world.agree(can_work_in(self.kind, region.is_shared()))?;
        self.make(self.kind, to_owners, world, region)
    }

    /// What sums a range of so many bytes of a region, all of it. Collective.
    ///
    /// # Errors
    /// As for `build`.
    pub fn build_for(&self, bytes: usize, world: &World, region: &Rc<Region>) -> Result<Box<dyn Collective>> {
        let kind = self.choose(bytes, region.is_shared()).kind;
        world.agree(can_work_in(kind, region.is_shared()))?;
        self.make(kind, false, world, region)
    }

    /// One that can work there. Collective.
    fn make(
        &self,
        kind: AllreduceKind,
        to_owners: bool,
        world: &World,
        region: &Rc<Region>,
    ) -> Result<Box<dyn Collective>> {
        let half = |route| Operation::ReduceScatter.make(route, self.wire, world, region);
        Ok(match kind {
            AllreduceKind::Auto => Box::new(self.per_range(to_owners, world, region)),
            AllreduceKind::RING if to_owners => half(Route::Ring)?,
            AllreduceKind::HALVING_DOUBLING if to_owners => half(Route::Halving)?,
            AllreduceKind::Shm if to_owners => half(Route::Shm)?,
            AllreduceKind::HIERARCHICAL if to_owners => half(Route::Hierarchical)?,
            AllreduceKind::Shm => Box::new(Shm::new(shm::Kind::Allreduce, world, region)),
            AllreduceKind::Hierarchical(_) => {
                let (steps, within) = (Steps::Sum(Pattern::Ring), Box::new(region.clone()));
                Box::new(Hierarchical::new(steps, world, self.wire, region, within)?)
            }
            AllreduceKind::Vendor(_) => Box::new(MpiAllreduce::new(world, region)?),
            AllreduceKind::Messages(pattern) => {
                let (name, algorithm) = (kind.name(), Steps::Sum(pattern).algorithm());
                Box::new(Executor::new(name, algorithm, self.wire, Rc::new(Channel::new(world)?), region))
            }
        })
    }

    /// An algorithm for each range. Those that no range needs are not made.
    fn per_range(&self, to_owners: bool, world: &World, region: &Rc<Region>) -> Several {
        let (selection, world, region) = (self.clone(), world.clone(), region.clone());
        let mut made: Vec<AllreduceKind> = Vec::new();
        Several::new("auto", move |parts, range: &Range<usize>| {
            let kind = selection.choose(range.len() * size_of::<f32>(), region.is_shared()).kind;
            if let Some(index) = made.iter().position(|&other| other == kind) {
                return Ok(index);
            }
            parts.push(selection.make(kind, to_owners, &world, &region)?);
            made.push(kind);
            Ok(made.len() - 1)
        })
    }
}

/// Fails where an algorithm needs memory that is shared and this is not.
fn can_work_in(kind: AllreduceKind, shared: bool) -> Result<()> {
    match kind {
        AllreduceKind::Shm | AllreduceKind::HIERARCHICAL if !shared => Err(Error::environment(format!(
            "--allreduce {} needs shared memory, and /dev/shm has no room for it; enlarge it (for a container: \
             --shm-size) or use auto or ring",
            kind.name()
        ))),
        kind if kind.is_between_gpus() => Err(Error::usage(format!(
            "{} sums between GPUs, and these numbers are the host's; use another algorithm",
            kind.name()
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::cost::tests::nodes;
    use super::*;
    use crate::error::ErrorKind;

    fn selection(kind: AllreduceKind, nodes: &Nodes) -> Selection {
        Selection::new(kind, Wire::F32, nodes, &Tuning::built_in()).unwrap()
    }

    #[test]
    fn what_cannot_work_is_refused_with_a_remedy() {
        let uneven = Nodes(vec![vec![0, 1], vec![2]]);
        for (kind, wire, nodes) in [
            (AllreduceKind::Shm, Wire::F32, nodes(2, 1)),
            (AllreduceKind::HIERARCHICAL, Wire::F32, uneven.clone()),
            (AllreduceKind::IPC, Wire::F32, uneven),
            (AllreduceKind::MPI, Wire::F16, nodes(2, 2)),
            (AllreduceKind::NCCL, Wire::Bf16, nodes(2, 2)),
        ] {
            let error = Selection::new(kind, wire, &nodes, &Tuning::built_in()).unwrap_err();
            assert!(error.kind == ErrorKind::Usage && error.message.contains("use a"), "{error}");
        }
        for kind in [AllreduceKind::Shm, AllreduceKind::HIERARCHICAL] {
            let error = can_work_in(kind, false).unwrap_err();
            assert!(error.kind == ErrorKind::Environment && error.message.contains("use a"), "{error}");
            assert!(can_work_in(kind, true).is_ok());
        }
        for kind in [AllreduceKind::IPC, AllreduceKind::NCCL] {
            assert_eq!(can_work_in(kind, true).unwrap_err().kind, ErrorKind::Usage);
        }
    }

    #[test]
    fn gradients_are_shared_only_for_those_who_use_that() {
        let wants = |kind, nodes: &Nodes| selection(kind, nodes).wants_shared(&[64, 64 << 20]);
        assert!(wants(AllreduceKind::Auto, &nodes(1, 2)) && wants(AllreduceKind::Auto, &nodes(2, 2)));
        assert!(!wants(AllreduceKind::Auto, &nodes(4, 1)) && !wants(AllreduceKind::MPI, &nodes(1, 2)));
        assert!(!wants(AllreduceKind::RING, &nodes(1, 2)) && !wants(AllreduceKind::RING, &nodes(2, 2)));
        assert!(wants(AllreduceKind::Shm, &nodes(1, 2)) && wants(AllreduceKind::HIERARCHICAL, &nodes(2, 2)));
    }

    #[test]
    fn an_algorithm_asked_for_is_used_for_every_range_and_predicted_too() {
        let choice = selection(AllreduceKind::TORUS, &nodes(1, 6)).choose(64, true);
        assert_eq!(choice.kind, AllreduceKind::TORUS);
        assert!(choice.seconds > 0.0);
    }
}
