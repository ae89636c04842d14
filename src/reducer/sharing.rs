//! What of a run lies where: parameters that the ranks of a node have in common, and gradients for others to see.

use std::ops::Range;
use std::rc::Rc;

use super::Averaging;
use crate::comm::{NodeShared, Region, Topology, World};
use crate::config::{Config, Strategy};
use crate::device::{Device, Memory, Rule};
use crate::error::Result;
use crate::fusion::compress;
use crate::plan::{Plan, Sizes, Turns};
use crate::strategy::{Owners, Ranks, Seat};

/// Parameters, optimizer state and moving average are there once for all ranks of a node where its shared memory has
/// room: every rank reads all of them, and updates its share. Outside the update, between two steps, nobody writes to
/// them, and every rank may read all. Else they are private, and a rank's share is everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sharing {
    /// Among those that share.
    pub rank: usize,
    /// How many these are.
    pub ranks: usize,
}

impl Sharing {
    const ALONE: Sharing = Sharing { rank: 0, ranks: 1 };

    fn of_node(world: &Topology) -> Sharing {
        Sharing { rank: world.local_rank(), ranks: world.local_size() }
    }

    /// Whether this rank is the one to write what stands at some place of a list that all ranks have.
    pub fn writes(&self, index: usize) -> bool {
        index % self.ranks == self.rank
    }

    /// What is to be expected of `ParameterMemory::new`, if a run takes `bytes` of shared memory in all.
    pub fn expected(world: &Topology, device: &dyn Device, config: &Config, bytes: usize) -> Sharing {
        let wanted = device.is_host() && some_share(world) && may_share(world, config);
        let fits = wanted && NodeShared::fits(bytes);
        if fits { Sharing::of_node(world) } else { Sharing::ALONE }
    }

    /// Makes zeros of what this rank updates. Private memory is zeroed as it comes; of common memory each rank is the
    /// first to touch its parts, so that they lie near it.
    pub fn clear(&self, device: &dyn Device, parts: &[Range<usize>], memory: &Memory) -> Result<()> {
        if self.ranks == 1 {
            return Ok(());
        }
        parts.iter().try_for_each(|part| device.zero(&memory.slice(part.start, part.len())))
    }

    /// The most bytes of frozen parameters that a rank initialises.
    pub fn largest_frozen(&self, plan: &Plan) -> usize {
        let of = |rank| {
            let own = plan.parameters.iter().skip(rank).step_by(self.ranks);
            own.filter(|parameter| parameter.frozen).map(|parameter| parameter.layout.bytes()).sum()
        };
        (0..self.ranks).map(of).max().unwrap_or(0)
    }
}

/// Whether any node has several ranks.
fn some_share(world: &Topology) -> bool {
    world.size() > world.nodes()
}

/// On which node each rank is.
pub fn nodes(world: &Topology) -> Vec<usize> {
    (0..world.size()).map(|rank| world.node_of(rank)).collect()
}

/// Each rank's place among those of its node.
pub fn seats(world: &Topology) -> Vec<Seat> {
    Seat::all(&nodes(world))
}

/// Who is to update what if the ranks of a node can have memory in common.
pub fn expected_owners(world: &Topology, strategy: Strategy, in_common: bool) -> Owners {
    strategy.owners(Ranks { ranks: world.size(), nodes: world.nodes(), in_common })
}

/// Copies of state and of the average that lie beside the parameters, as large as these: none where each owner has its
/// own.
pub fn beside_parameters(world: &Topology, config: &Config, in_common: bool) -> usize {
    match expected_owners(world, config.strategy, in_common).are_apart() {
        true => 0,
        false => config.optimizer.copies(),
    }
}

/// Whether the ranks of a node are to share parameters at all. Those that split layers have unlike ones.
fn may_share(world: &Topology, Config { strategy, tensor, .. }: &Config) -> bool {
    let at = Ranks { ranks: world.size(), nodes: world.nodes(), in_common: true };
    tensor.is_none() && strategy.shares_memory(at, world.is_even())
}

/// How gradients take turns in windows, if they do. Ranks of one node have their parameters in common where they can,
/// and then gather nothing.
pub fn turns(world: &Topology, device: &dyn Device, config: &Config) -> Option<Turns> {
    let sharded = config.strategy.sharded(world.size());
    sharded.gradients.then_some(Turns {
        gathers: sharded.parameters && !(device.is_host() && world.nodes() == 1),
        overlap: !config.buckets.no_overlap,
        accumulates: config.accumulation > 1,
    })
}

/// The parameters, and what may lie beside them in memory that the ranks of a node have in common.
pub struct ParameterMemory {
    /// Who updates what.
    pub owners: Owners,
    /// Whose parameters these are.
    pub sharing: Sharing,
    /// All of them: in common, or this rank's copy. Or those that it owns, one part behind the other.
    pub parameters: Memory,
    /// State and average, unless owners are apart.
    pub copies: Option<Vec<Memory>>,
    /// Where parameters go between ranks: what does.
    pub travelling: Option<Travelling>,
    /// In a gossip: where those of another rank come in, which is the second half of what travels.
    pub received: Option<Memory>,
}

/// Parameters that go between ranks.
#[derive(Clone)]
pub struct Travelling {
    /// In the host's memory, between which they go.
    pub region: Rc<Region>,
    /// Where the device has them: the same memory, if it is the host's.
    pub on_device: Memory,
}

impl Travelling {
    /// Memory of this rank's own.
    fn new(device: &dyn Device, bytes: usize) -> Result<Travelling> {
        let region = Rc::new(Region::private(bytes)?);
        let on_device = match device.is_host() {
            true => as_memory(&region),
            false => device.allocate(bytes)?,
        };
        Ok(Travelling { region, on_device })
    }
}

impl ParameterMemory {
    /// Collective. `copies` is how many of state and average there are. Where a rank has the parameters alone that it
    /// owns, it `holds` so many bytes.
    pub fn new(
        world: &World,
        device: &dyn Device,
        sizes: &Sizes,
        config: &Config,
        copies: usize,
        holds: Option<usize>,
    ) -> Result<ParameterMemory> {
        if let Some(bytes) = holds {
            return Ok(ParameterMemory {
                owners: expected_owners(world, config.strategy, false),
                sharing: Sharing::ALONE,
                parameters: device.allocate(bytes)?,
                copies: None,
                travelling: None,
                received: None,
            });
        }
        let (bytes, strategy) = (sizes.parameters, config.strategy);
        let wanted = device.is_host() && some_share(world) && may_share(world, config);
        let apart = expected_owners(world, strategy, wanted).are_apart();
        let beside = beside_parameters(world, config, wanted);
        let common = if wanted { NodeShared::allocate(world, (1 + beside) * bytes)? } else { None };
        let owners = expected_owners(world, strategy, common.is_some());
        let Some(common) = common else {
            return ParameterMemory::alone(world, device, config, (owners, copies), bytes);
        };
        let all = common_memory(&common);
        let copy = |copy| all.slice(copy * bytes, bytes);
        let (travelling, copies) = match apart {
            true => (Some(Travelling { region: common.region(), on_device: copy(0) }), None),
            false => (None, Some((1..=beside).map(copy).collect())),
        };
        let sharing = Sharing::of_node(world);
        Ok(ParameterMemory { owners, sharing, parameters: copy(0), copies, travelling, received: None })
    }

    /// Of a rank that has nothing in common with others. Collective.
    fn alone(
        world: &World,
        device: &dyn Device,
        config: &Config,
        (owners, copies): (Owners, usize),
        bytes: usize,
    ) -> Result<ParameterMemory> {
        let comes = config.relaxed(world.size()).is_some_and(|relaxed| relaxed.sends_parameters());
        let travelling = (owners.are_apart() || comes)
            .then(|| Travelling::new(device, if comes { 2 * bytes } else { bytes }));
        let travelling: Option<Travelling> = world.agree(travelling.transpose())?;
        let parameters = match &travelling {
            Some(travelling) => travelling.on_device.slice(0, bytes),
            None => device.allocate(bytes)?,
        };
        let second = |travelling: &Travelling| travelling.on_device.slice(bytes, bytes);
        let received = travelling.as_ref().filter(|_| comes).map(second);
        if let (Some(Travelling { region, .. }), false) = (&travelling, device.is_host()) {
            device.pin(&as_memory(region));
        }
        let copies = match owners.are_apart() {
            true => None,
            false => Some((0..copies).map(|_| device.allocate(bytes)).collect::<Result<_>>()?),
        };
        Ok(ParameterMemory { owners, sharing: Sharing::ALONE, parameters, copies, travelling, received })
    }
}

/// Memory of all ranks of a node as that of a host device.
#[allow(unsafe_code)]
fn common_memory(common: &Rc<NodeShared>) -> Memory {
    // SAFETY: host memory, valid while it lives, and the memory keeps it alive. Ranks write to their shares alone,
    // while no other rank reads them: when it is new, in `initialise`, and in the update, each between two barriers.
    unsafe { Memory::from_raw(common.address(), common.bytes(), common.clone()) }
}

/// Where gradients are averaged.
pub struct Gradients {
    /// Memory that `comm` gave, in a shared window where that serves.
    pub region: Rc<Region>,
    /// The same memory as a device of the host sees it.
    pub on_host: Memory,
    /// Where the update finds averages: the same again, or memory of a device that has its own.
    pub averaged: Memory,
}

impl Gradients {
    /// Allocates so many `bytes`, where the ranks of a node share them if that serves and there is room. Collective.
    pub fn new(
        world: &World,
        device: &dyn Device,
        plan: &Plan,
        bytes: usize,
        config: &Config,
        averaging: &Averaging,
    ) -> Result<Gradients> {
        let staged = !averaging.on_device && !codes_on_device(config, world, device);
        let shared = shares_gradients(config, averaging, plan);
        // Gradients of split layers are summed by messages, of ranks with the same parts.
        let region = Region::allocate_apart(world, if staged { bytes } else { 0 }, plan.split, shared)?;
        let on_host = as_memory(&region);
        let averaged = match device.is_host() {
            true => on_host.clone(),
            false => device.allocate_offered(bytes)?,
        };
        if staged && !device.is_host() && (world.size() > 1 || config.compress.is_some()) {
            device.pin(&on_host);
        }
        Ok(Gradients { region, on_host, averaged })
    }
}

/// Whether gradients are encoded where they lie, on a device with memory of its own. How far parameters are from an
/// anchor is encoded on the host, where the step's own numbers are summed in every step.
pub fn codes_on_device(config: &Config, world: &Topology, device: &dyn Device) -> bool {
    let codes = |scheme| compress::code(scheme, world.size(), device).is_some();
    config.compress.is_some_and(codes) && !config.strategy.is_relaxed()
}

/// Whether gradients are to lie where the ranks of a node share them. What is compressed is summed elsewhere.
pub fn shares_gradients(config: &Config, averaging: &Averaging, plan: &Plan) -> bool {
    config.compress.is_none() && averaging.selection.wants_shared(&plan.bucket_bytes())
}

/// Windows that are no place for sums: gradients of micro-steps, and gathered parameters. Collective.
///
/// # Errors
/// The same on every rank: memory lacks.
pub fn windows_apart(world: &World, device: &dyn Device, bytes: usize) -> Result<Travelling> {
    let windows = world.agree(Travelling::new(device, bytes))?;
    if !device.is_host() {
        device.pin(&as_memory(&windows.region));
    }
    Ok(windows)
}

/// The most bytes of parameters that a rank updates.
pub fn largest_share(world: &Topology, plan: &Plan, rule: &Rule, owners: Owners) -> usize {
    let of = |(rank, seat)| updated(plan, rule, owners, rank, seat);
    seats(world).into_iter().enumerate().map(of).max().unwrap_or(0)
}

/// Bytes of parameters that a rank updates.
pub fn share_of(world: &Topology, plan: &Plan, rule: &Rule, owners: Owners, rank: usize) -> usize {
    updated(plan, rule, owners, rank, seats(world)[rank])
}

fn updated(plan: &Plan, rule: &Rule, owners: Owners, rank: usize, seat: Seat) -> usize {
    plan.owned(owners, rule, seat, rank).iter().map(ExactSizeIterator::len).sum()
}

/// The region as memory of a host device.
#[allow(unsafe_code)]
pub fn as_memory(region: &Rc<Region>) -> Memory {
    // SAFETY: the region is host memory, valid while it lives, and the memory keeps it alive. This rank's part of it
    // is written by the steps of the plan, and by the collectives only between `start` and `is_done` of the bucket
    // it belongs to, when no step touches that bucket.
    unsafe { Memory::from_raw(region.address(), region.bytes(), region.clone()) }
}
