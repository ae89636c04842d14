//! The memory of a run: one region of each kind, and the first values of the parameters.

use std::ops::Range;
use std::rc::Rc;

use super::averaging::Averaging;
use super::plans::{codes_on_device, shares_gradients};
use super::weights::Start;
use crate::comm::{Common, Region, World};
use crate::config::Config;
use crate::device::memory::{bytes_of, bytes_of_mut};
use crate::device::{Device, Layout, Memory, Rule, Scalars};
use crate::error::{Error, Result};
use crate::graph::{Init, Spec};
use crate::plan::{Bucket, Parameter, Plan, Regions, Sizes};
use crate::random::{Purpose, key, normals, philox, uniform};

/// Every region of a rank.
pub struct Memories {
    /// What the plans are bound to.
    pub regions: Regions,
    /// Optimizer state, each as large as the parameters.
    pub state: Vec<Memory>,
    /// Whose parameters, state and average these are.
    pub sharing: Sharing,
    /// What of each bucket's parameters this rank updates, in bytes.
    pub parts: Vec<Range<usize>>,
    /// The moving average of the parameters, where one is asked for.
    pub average: Option<Memory>,
    /// Where gradients are averaged: memory that `comm` gave, in a shared window where that serves.
    pub gradients: Rc<Region>,
    /// The same memory as a device of the host sees it.
    pub on_host: Memory,
    /// Where the update finds averaged gradients: the same again, or memory of a device that has its own.
    pub averaged: Memory,
}

/// Parameters, optimizer state and moving average are there once for all ranks of a node where its shared memory has
/// room: every rank reads all of them, and updates its share. Outside the update, between two steps, nobody writes to
/// them, and every rank may read all. Else they are private, and a rank's share is everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sharing {
    /// Among those that share.
    rank: usize,
    pub ranks: usize,
}

impl Sharing {
    const ALONE: Sharing = Sharing { rank: 0, ranks: 1 };

    fn of_node(world: &World) -> Sharing {
        Sharing { rank: world.local_rank(), ranks: world.local_size() }
    }

    /// Whether this rank is the one to write what stands at some place of a list that all ranks have.
    pub fn writes(&self, index: usize) -> bool {
        index % self.ranks == self.rank
    }

    /// What is to be expected of `Memories::new`, if it takes `bytes` of shared memory in all.
    pub fn expected(world: &World, device: &dyn Device, bytes: usize) -> Sharing {
        let fits = device.is_host() && some_share(world) && Common::fits(bytes);
        if fits { Sharing::of_node(world) } else { Sharing::ALONE }
    }

    fn part(&self, plan: &Plan, bucket: &Bucket, rule: &Rule) -> Range<usize> {
        plan.share(bucket, rule, self.rank, self.ranks)
    }

    /// Makes zeros of what this rank updates. Private memory is zeroed as it comes; of common memory each rank is the first
    /// to touch its parts, so that they lie near it.
    fn clear(&self, device: &dyn Device, parts: &[Range<usize>], memory: &Memory) -> Result<()> {
        if self.ranks == 1 {
            return Ok(());
        }
        parts.iter().try_for_each(|part| device.zero(&memory.slice(part.start, part.len())))
    }

    /// The most bytes of parameters that a rank updates.
    pub fn largest(&self, plan: &Plan, rule: &Rule) -> usize {
        let of = |rank| plan.buckets.iter().map(|b| plan.share(b, rule, rank, self.ranks).len()).sum();
        (0..self.ranks).map(of).max().unwrap_or(0)
    }
}

/// Whether any node has several ranks.
fn some_share(world: &World) -> bool {
    world.size() > world.nodes()
}

impl Memories {
    /// Allocates everything; gradients where the ranks of a node share them, if that serves and there is room. Collective;
    /// `initialise` may be called when all ranks are through.
    pub fn new(
        world: &World,
        device: &dyn Device,
        plan: &Plan,
        sizes: &Sizes,
        rule: &Rule,
        config: &Config,
        averaging: &Averaging,
    ) -> Result<Memories> {
        let staged = !averaging.on_device && !codes_on_device(config, world, device);
        let shared = shares_gradients(config, averaging, plan);
        let gradients = Region::allocate(world, if staged { sizes.gradients } else { 0 }, shared)?;
        let on_host = as_memory(&gradients);
        let averaged = if device.is_host() { on_host.clone() } else { device.allocate(sizes.gradients)? };
        if staged && !device.is_host() && (world.size() > 1 || config.compress.is_some()) {
            device.lock(&on_host);
        }
        // With accumulation a micro-step's own gradients are apart from their sum.
        let written = match config.accumulation {
            1 => averaged.clone(),
            _ => device.allocate(sizes.gradients)?,
        };
        let copies = 1 + rule.states() + usize::from(config.optimizer.ema.is_some());
        let (sharing, mut copies) = like_parameters(world, device, sizes, copies)?;
        let parts: Vec<_> = plan.buckets.iter().map(|bucket| sharing.part(plan, bucket, rule)).collect();
        let parameters = copies.remove(0);
        sharing.clear(device, &parts, &parameters)?;
        let average = config.optimizer.ema.and_then(|_| copies.pop());
        let regions = Regions::new(sizes, parameters, written, |bytes| device.allocate(bytes))?;
        Ok(Memories { regions, state: copies, sharing, parts, average, gradients, on_host, averaged })
    }

    /// What the evaluation plan is bound to: the averaged parameters where there are such.
    pub fn evaluated(&self) -> Regions {
        let parameters = self.average.as_ref().unwrap_or(&self.regions.parameters).clone();
        Regions { parameters, ..self.regions.clone() }
    }

    /// Writes the first value of every parameter and statistic, and zeros to the optimizer's state. A first value is that of
    /// a file, where there is one that has it, else a function of the seed and the parameter's place in the model, so that
    /// all ranks start alike without a message, on any device and with any number of threads. Ranks that share parameters
    /// write some each: none may be read before all ranks are through.
    pub fn initialise(
        &self,
        device: &dyn Device,
        plan: &Plan,
        start: Option<&Start>,
        seed: u64,
        threads: usize,
    ) -> Result<()> {
        let given = |name: &str| start.map_or(Ok(None), |start| start.values(name));
        let Sharing { rank, ranks } = self.sharing;
        for parameter in plan.parameters.iter().skip(rank).step_by(ranks) {
            let spec = &parameter.spec;
            let index = plan.graph.tensors.iter().position(|tensor| tensor.name == parameter.name);
            let index = index.ok_or_else(|| Error::internal(format!("no tensor {}", parameter.name)))?;
            let values = match given(&parameter.name)? {
                Some(values) => values,
                None => first_values(parameter.init, spec, seed, index as u32, threads),
            };
            self.write(device, parameter, &self.regions.parameters, &values)?;
            // No update will take it over.
            if let Some(average) = self.average.as_ref().filter(|_| parameter.frozen) {
                self.write(device, parameter, average, &values)?;
            }
        }
        // Now that no parameter's values are held beside it: state then adds nothing to the peak.
        let mut others = self.state.iter().chain(&self.average);
        others.try_for_each(|memory| self.sharing.clear(device, &self.parts, memory))?;
        for statistic in &plan.statistics {
            let values = match given(&statistic.name)? {
                Some(values) => values,
                None => first_values(statistic.init, &statistic.spec, seed, 0, 1),
            };
            device.upload(bytes_of(&values), &statistic.of(&self.regions.statistics))?;
        }
        Ok(())
    }

    /// Writes a parameter, or what lies at its place in another region, given in plain order.
    pub fn write(
        &self,
        device: &dyn Device,
        parameter: &Parameter,
        region: &Memory,
        values: &[f32],
    ) -> Result<()> {
        let plain = device.plain(&parameter.spec);
        let to = parameter.of(region);
        if plain == parameter.layout {
            return device.upload(bytes_of(values), &to);
        }
        let from = self.passing(device, plain.bytes())?;
        device.upload(bytes_of(values), &from)?;
        reorder(device, parameter, [&plain, &parameter.layout], from, to)
    }

    /// Memory for the moment: between two steps nothing is kept in the arena.
    fn passing(&self, device: &dyn Device, bytes: usize) -> Result<Memory> {
        match self.regions.arena.bytes() >= bytes {
            true => Ok(self.regions.arena.slice(0, bytes)),
            false => device.allocate(bytes),
        }
    }

    /// A parameter, or what lies at its place in another region (its moving average), in plain order.
    pub fn read(&self, device: &dyn Device, parameter: &Parameter, region: &Memory) -> Result<Vec<f32>> {
        let mut values = vec![0f32; parameter.spec.shape.elements()];
        self.read_into(device, parameter, region, &mut values)?;
        Ok(values)
    }

    /// The same into memory that is there.
    pub fn read_into(
        &self,
        device: &dyn Device,
        parameter: &Parameter,
        region: &Memory,
        values: &mut [f32],
    ) -> Result<()> {
        let plain = device.plain(&parameter.spec);
        let mut from = parameter.of(region);
        if plain != parameter.layout {
            let to = self.passing(device, plain.bytes())?;
            reorder(device, parameter, [&parameter.layout, &plain], from, to.clone())?;
            from = to;
        }
        device.download(&from, bytes_of_mut(values))
    }
}

/// Copies a parameter from one layout into another.
fn reorder(
    device: &dyn Device,
    parameter: &Parameter,
    [from_layout, to_layout]: [&Layout; 2],
    from: Memory,
    to: Memory,
) -> Result<()> {
    let kernel = device.reorder(&parameter.spec, from_layout, to_layout)?;
    let workspace = device.allocate(kernel.workspace())?;
    kernel.bind(&[from], &[to], &workspace)?.run(&Scalars::default())?;
    device.synchronize()
}

/// Memory for the parameters and what else is as large, in common with the other ranks of the node if there is room.
/// Collective.
fn like_parameters(
    world: &World,
    device: &dyn Device,
    sizes: &Sizes,
    copies: usize,
) -> Result<(Sharing, Vec<Memory>)> {
    let bytes = sizes.parameters;
    let common =
        if device.is_host() && some_share(world) { Common::allocate(world, copies * bytes)? } else { None };
    let Some(common) = common else {
        let memories = (0..copies).map(|_| device.allocate(bytes)).collect::<Result<_>>()?;
        return Ok((Sharing::ALONE, memories));
    };
    let all = common_memory(&common);
    Ok((Sharing::of_node(world), (0..copies).map(|copy| all.slice(copy * bytes, bytes)).collect()))
}

/// Memory of all ranks of a node as that of a host device.
#[allow(unsafe_code)]
fn common_memory(common: &Rc<Common>) -> Memory {
    // SAFETY: host memory, valid while it lives, and the memory keeps it alive. Ranks write to their shares alone, while
    // no other rank reads them: when it is new, in `initialise`, and in the update, each between two barriers.
    unsafe { Memory::from_raw(common.address(), common.bytes(), common.clone()) }
}

/// Each block of the generator gives four elements, whoever computes it.
fn first_values(init: Init, spec: &Spec, seed: u64, which: u32, threads: usize) -> Vec<f32> {
    let mut values = vec![0f32; spec.shape.elements()];
    let key = key(seed, Purpose::Initialise, which);
    let four = |block: usize| {
        let words = philox(key, [block as u32, (block as u64 >> 32) as u32, 0, 0]);
        match init {
            Init::Zero => [0.0; 4],
            Init::One => [1.0; 4],
            Init::Normal { std } => normals(words).map(|number| number * std),
            Init::Uniform { bound } => words.map(|word| (2.0 * uniform(word) - 1.0) * bound),
        }
    };
    let fill = |first: usize, values: &mut [f32]| {
        for (block, values) in values.chunks_mut(4).enumerate() {
            values.copy_from_slice(&four(first / 4 + block)[..values.len()]);
        }
    };
    // A thread is worth starting for some milliseconds of work.
    let share = values.len().div_ceil(threads.max(1)).max(1 << 16).next_multiple_of(4);
    std::thread::scope(|scope| {
        let mut shares = values.chunks_mut(share).enumerate();
        let own = shares.next();
        for (index, values) in shares {
            scope.spawn(move || fill(index * share, values));
        }
        own.into_iter().for_each(|(_, values)| fill(0, values));
    });
    values
}

/// The region as memory of a host device.
#[allow(unsafe_code)]
pub fn as_memory(region: &Rc<Region>) -> Memory {
    // SAFETY: the region is host memory, valid while it lives, and the memory keeps it alive. This rank's part of it
    // is written by the steps of the plan, and by the collectives only between `start` and `is_done` of the bucket
    // it belongs to, when no step touches that bucket.
    unsafe { Memory::from_raw(region.address(), region.bytes(), region.clone()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{DType, dims};

    #[test]
    fn first_values_do_not_depend_on_the_threads() {
        let spec = Spec { shape: dims([300_001]), dtype: DType::F32 };
        for init in [Init::Normal { std: 0.5 }, Init::Uniform { bound: 0.5 }, Init::One] {
            let alone = first_values(init, &spec, 3, 5, 1);
            assert_eq!(alone, first_values(init, &spec, 3, 5, 3));
            // No part repeats another: the threads' parts begin where the ones before them end.
            assert!(init == Init::One || alone[..1000] != alone[100_004..101_004]);
            assert_ne!(alone[300_000], 0.0);
        }
    }
}
