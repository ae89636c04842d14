//! What training carries from step to step, array by array: parameters, optimizer state, moving average, running
//! statistics, what compression has still to send. `checkpoint` keeps it and brings it back; in a file everything lies
//! in plain order, so that another device, thread count or layout reads it.

use std::ops::Range;

use super::groups::Groups;
use super::memory::Memories;
use super::owned::Owned;
use super::parts;
use super::stages;
use crate::comm::World;
use crate::device::memory::{bytes_of, bytes_of_mut};
use crate::device::{Device, Memory};
use crate::error::{Error, ErrorKind, Result};
use crate::fusion::compress::Kept;
use crate::plan::{Parameter, Plan};
use crate::record::{Array, Contents};

/// What a file calls the moving average of the parameters.
const AVERAGE: &str = "average";
/// The parameters, and what ranks have alike that have parameters of their own.
const PARAMETERS: &str = "parameters";
const ANCHOR: &str = "anchor";
const MOMENTUM: &str = "anchor_momentum";

/// Every array of a run's state: first those that are the same on all ranks, parameter by parameter, then those of
/// which each rank has its own.
pub struct State<'a> {
    plan: &'a Plan,
    memories: &'a Memories,
    /// What there is of each parameter, as a file calls it, and where it lies.
    regions: Vec<(String, Lies<'a>)>,
    /// What each rank has of its own, in plain order.
    own: Vec<Own>,
}

/// Where numbers of all parameters lie.
#[derive(Clone, Copy)]
enum Lies<'a> {
    /// On every rank, at the parameters' offsets.
    Whole(&'a Memory),
    /// On every rank those of the parts that it owns.
    Parts(&'a Memory),
    /// On every rank, at the parameters' offsets, and each rank has others.
    Own(&'a Memory),
}

struct Own {
    path: String,
    shape: Vec<usize>,
    memory: Memory,
    /// Whether it lies in the host's memory whatever the device.
    on_host: bool,
    /// Its mean over ranks serves any number of them; else it starts anew where their number has changed.
    has_mean: bool,
}

/// Where a copy grows, on ranks that want one.
struct Room<'a> {
    to: Option<&'a mut Vec<f32>>,
    is_first: bool,
    twins: Option<&'a World>,
}

impl Room<'_> {
    fn reserve(&mut self, elements: usize) {
        if let Some(to) = &mut self.to {
            to.reserve_exact(elements);
        }
    }

    /// Room for so many more.
    fn next(&mut self, elements: usize) -> Option<&mut [f32]> {
        self.to.as_deref_mut().map(|to| {
            let start = to.len();
            to.resize(start + elements, 0.0);
            &mut to[start..]
        })
    }

    /// The same, which the first rank fills and its twin gets from it.
    fn filled_by_first(
        &mut self,
        elements: usize,
        fill: impl FnOnce(Option<&mut [f32]>) -> Result<()>,
    ) -> Result<()> {
        let (is_first, twins) = (self.is_first, self.twins);
        match self.next(elements) {
            None => fill(None),
            Some(room) => {
                match is_first {
                    true => fill(Some(&mut *room))?,
                    false => fill(None)?,
                }
                twins.map_or(Ok(()), |twins| twins.broadcast(room))
            }
        }
    }
}

impl State<'_> {
    /// `states` are the names of the optimizer's, `compression` what compression of gradients keeps.
    pub fn new<'a>(
        plan: &'a Plan,
        memories: &'a Memories,
        states: &[&str],
        compression: &[Kept],
    ) -> State<'a> {
        let parameters = match memories.anchor {
            Some(_) => Lies::Own(&memories.regions.parameters),
            None if memories.holds_own() => Lies::Parts(&memories.regions.parameters),
            None => Lies::Whole(&memories.regions.parameters),
        };
        let lies = match memories.owners.are_apart() {
            _ if memories.anchor.is_some() => Lies::Own,
            true => Lies::Parts,
            false => Lies::Whole,
        };
        let mut regions = vec![(PARAMETERS.to_string(), parameters)];
        let states = states.iter().map(|name| format!("optimizer/{name}"));
        regions.extend(states.zip(memories.state.iter().map(lies)));
        if let Some(anchor) = memories.anchor.as_ref().filter(|anchor| anchor.is_kept()) {
            regions.push((ANCHOR.to_string(), Lies::Whole(&anchor.parameters)));
            regions.extend(
                anchor.momentum.as_ref().map(|momentum| (MOMENTUM.to_string(), Lies::Whole(momentum))),
            );
        }
        regions.extend(memories.average.as_ref().map(|region| (AVERAGE.to_string(), lies(region))));
        let statistics = plan.statistics.iter().map(|statistic| Own {
            path: format!("statistics/{}", statistic.name),
            shape: statistic.spec.shape.0.clone(),
            memory: statistic.of(&memories.regions.statistics),
            on_host: false,
            has_mean: true,
        });
        let compression = compression.iter().filter(|kept| kept.memory.bytes() > 0).map(|kept| Own {
            path: format!("compression/{}", kept.name),
            shape: vec![kept.memory.bytes() / 4],
            memory: kept.memory.clone(),
            on_host: kept.on_host,
            has_mean: false,
        });
        State { plan, memories, regions, own: statistics.chain(compression).collect() }
    }

    /// What is the same on all ranks: (path, parameter, where it lies).
    fn shared(&self) -> impl Iterator<Item = (String, &Parameter, Lies<'_>)> {
        self.regions.iter().flat_map(move |(group, lies)| {
            self.plan.parameters.iter().map(move |parameter| {
                // Nobody owns an average of what is frozen: it is the parameter.
                let lies = match lies {
                    Lies::Parts(_) if group == AVERAGE && parameter.frozen => {
                        Lies::Whole(&self.memories.regions.parameters)
                    }
                    lies => *lies,
                };
                (format!("{group}/{}", parameter.name), parameter, lies)
            })
        })
    }

    fn owned<'a>(&'a self, world: &'a World, device: &'a dyn Device) -> Owned<'a> {
        Owned { world, plan: self.plan, memories: self.memories, device }
    }

    /// The arrays as a checkpoint of so many ranks has them.
    pub fn arrays(&self, ranks: usize) -> Vec<Array> {
        let shared = self.shared().map(|(path, parameter, lies)| {
            let one = &parameter.whole().0;
            let shape = if let Lies::Own(_) = lies { [&[ranks], &one[..]].concat() } else { one.clone() };
            Array { path, shape }
        });
        let own = self
            .own
            .iter()
            .map(|own| Array { path: own.path.clone(), shape: [&[ranks], own.shape.as_slice()].concat() });
        shared.chain(own).collect()
    }

    /// Copies everything to where rank 0 gives room, in the order of `arrays`. Of what ranks have of their own those of
    /// `peers` count. `twins` are two ranks that both give room and get all of it, of which rank 0 is the first.
    /// Collective.
    pub fn copy(
        &self,
        world: &World,
        peers: &World,
        twins: Option<&World>,
        device: &dyn Device,
        to: Option<&mut Vec<f32>>,
    ) -> Result<()> {
        let mut to = Room { to, is_first: world.is_first(), twins };
        to.reserve(self.arrays(peers.size()).iter().map(Array::elements).sum());
        for (_, parameter, lies) in self.shared() {
            let elements = parameter.whole().elements();
            if let (Lies::Whole(region), Some(shard)) = (lies, parameter.shard) {
                if let Some(group) = &self.memories.beside {
                    let of = (parameter, shard);
                    parts::gather(group, self.memories, device, of, region, to.next(elements))?;
                }
                continue;
            }
            match lies {
                Lies::Own(region) => {
                    let own = self.memories.read(device, parameter, region)?;
                    to.filled_by_first(peers.size() * elements, |room| peers.gather(&own, room))?;
                }
                Lies::Parts(region) => to.filled_by_first(elements, |room| {
                    self.owned(world, device).gather(parameter, region, room)
                })?,
                Lies::Whole(region) => {
                    if let Some(room) = to.next(elements) {
                        self.memories.read_into(device, parameter, region, room)?;
                    }
                }
            }
        }
        if self.memories.owners.serves(world.rank()) {
            return Ok(());
        }
        for own in &self.own {
            let mut values = vec![0f32; own.shape.iter().product()];
            match own.on_host {
                true => own.memory.read(bytes_of_mut(&mut values)),
                false => device.download(&own.memory, bytes_of_mut(&mut values))?,
            }
            to.filled_by_first(peers.size() * values.len(), |room| peers.gather(&values, room))?;
        }
        Ok(())
    }

    /// Takes everything over from a checkpoint, whose values rank 0 has. With another number of ranks each gets the
    /// mean of what ranks had of their own, or starts anew. Ranks that share memory write some
    /// arrays each: none may be read before all are through. Collective.
    pub fn restore(
        &self,
        groups: &Groups,
        peers: &World,
        device: &dyn Device,
        from: &Contents,
    ) -> Result<()> {
        let of_stage = match groups.mesh.is_cut() {
            true => Some(stages::distribute(groups, from, |path| self.wants(path))?),
            false => None,
        };
        let (world, from) = (&groups.data, of_stage.as_ref().unwrap_or(from));
        self.check(from)?;
        for (index, (path, parameter, lies)) in self.shared().enumerate() {
            let mut values = vec![0f32; parameter.whole().elements()];
            let (kept, rows) = self.kept(&path, from);
            let own = |kept: &&Array| kept.shape.len() > parameter.spec.shape.rank();
            let of_as_many = |kept: &Array| kept.shape[0] == peers.size();
            match (lies, kept.filter(own)) {
                (Lies::Own(_), Some(kept)) if of_as_many(kept) => peers.scatter(rows, &mut values)?,
                (_, kept) => {
                    if let Some(rows) = rows {
                        values = kept.map_or_else(|| rows.to_vec(), |kept| kept.mean_over_ranks(rows));
                    }
                    world.broadcast(&mut values)?;
                }
            }
            let copy = |range: Range<usize>, piece: &mut [f32]| piece.copy_from_slice(&values[range]);
            match lies {
                Lies::Own(region) => self.memories.write(device, parameter, region, copy)?,
                Lies::Parts(region) => self.owned(world, device).fill(parameter, region, copy)?,
                Lies::Whole(region) if self.memories.sharing.writes(index) => {
                    let fill = |range, piece: &mut [f32]| parts::fill(parameter, range, piece, copy);
                    self.memories.write(device, parameter, region, fill)?;
                }
                Lies::Whole(_) => {}
            }
        }
        match self.memories.owners.serves(world.rank()) {
            true => Ok(()),
            false => self.restore_own(peers, device, from),
        }
    }

    /// What each rank has of its own: what it had, where as many ranks go on, or the mean of all.
    fn restore_own(&self, peers: &World, device: &dyn Device, from: &Contents) -> Result<()> {
        for own in &self.own {
            let mut values = vec![0f32; own.shape.iter().product()];
            let kept = from.arrays.iter().find(|kept| kept.path == own.path);
            let rows = from.array(&own.path);
            if kept.is_some_and(|kept| kept.shape[0] == peers.size() && kept.shape[1..] == own.shape) {
                peers.scatter(rows.map(|(_, rows)| rows), &mut values)?;
            } else if own.has_mean {
                if let Some((kept, rows)) = rows {
                    values = kept.mean_over_ranks(rows);
                }
                peers.broadcast(&mut values)?;
            } else {
                continue;
            }
            match own.on_host {
                true => own.memory.write(bytes_of(&values)),
                false => device.upload(bytes_of(&values), &own.memory)?,
            }
        }
        Ok(())
    }

    /// Whether an array is of what this rank has.
    fn wants(&self, path: &str) -> bool {
        let of = |group: &str| path.strip_prefix(group)?.strip_prefix('/');
        let is_of = |name: &str| self.regions.iter().any(|(group, _)| of(group) == Some(name));
        self.plan.parameters.iter().any(|parameter| is_of(&parameter.name))
            || self.own.iter().any(|own| own.path == path)
    }

    /// An array of the checkpoint, and on rank 0 its values. A run whose ranks had the same parameters has no anchor:
    /// it is what these were.
    fn kept<'c>(&self, path: &str, from: &'c Contents) -> (Option<&'c Array>, Option<&'c [f32]>) {
        let there = |path: &str| from.arrays.iter().find(|kept| kept.path == path);
        let (group, name) = path.split_once('/').unwrap_or((path, ""));
        let path = match there(path) {
            None if group == ANCHOR => format!("{PARAMETERS}/{name}"),
            _ => path.to_string(),
        };
        (there(&path), from.array(&path).map(|(_, rows)| rows))
    }

    /// That the checkpoint has what this run needs; every rank finds the same.
    fn check(&self, from: &Contents) -> Result<()> {
        let there = |path: &str| from.arrays.iter().find(|kept| kept.path == path);
        let shared = self.shared().filter(|(path, parameter, _)| {
            let wanted = parameter.whole().0;
            let fits = |kept: &Array| {
                kept.shape == wanted || kept.shape.first() > Some(&0) && kept.shape[1..] == wanted[..]
            };
            // Its momentum begins with nothing.
            !path.starts_with(MOMENTUM) && !self.kept(path, from).0.is_some_and(fits)
        });
        // Of as many ranks as there were, but not of none.
        let own = self.own.iter().filter(|own| {
            let fits = |kept: &Array| kept.shape.first() > Some(&0) && kept.shape[1..] == own.shape;
            own.has_mean && !there(&own.path).is_some_and(fits)
        });
        let lacking: Vec<String> =
            shared.map(|(path, ..)| path).chain(own.map(|own| own.path.clone())).collect();
        if lacking.is_empty() {
            return Ok(());
        }
        let list = lacking.join(", ");
        Err(Error::new(
            ErrorKind::Data,
            format!("the checkpoint does not have, in the shape of this model: {list}"),
        ))
    }
}
