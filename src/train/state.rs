//! What training carries from step to step, array by array: parameters, optimizer state, moving average, running
//! statistics. `checkpoint` keeps it and brings it back; in a file everything lies in plain order, so that another
//! device, thread count or layout reads it.

use std::slice::from_ref;

use super::memory::Memories;
use crate::comm::World;
use crate::device::memory::{bytes_of, bytes_of_mut};
use crate::device::{Device, Layout, Memory, Rule, Scalars};
use crate::error::{Error, Kind, Result};
use crate::graph::Spec;
use crate::optim;
use crate::plan::Plan;
use crate::record::{Array, Contents};

/// An array that is the same on all ranks.
struct Shared {
    path: String,
    spec: Spec,
    layout: Layout,
    memory: Memory,
    /// Memory that is free between two steps, in which the array finds room in plain order.
    scratch: Memory,
}

/// An array, in plain order, of which each rank has its own.
struct Own {
    path: String,
    shape: Vec<usize>,
    memory: Memory,
}

/// Every array of a run's state.
pub struct State {
    shared: Vec<Shared>,
    own: Vec<Own>,
}

impl State {
    pub fn new(plan: &Plan, memories: &Memories, rule: &Rule) -> State {
        let mut regions = vec![("parameters".to_string(), &memories.regions.parameters)];
        let names = optim::state_names(rule).iter();
        regions
            .extend(names.zip(&memories.state).map(|(name, region)| (format!("optimizer/{name}"), region)));
        regions.extend(memories.average.as_ref().map(|region| ("average".to_string(), region)));
        let mut shared = Vec::new();
        for (group, region) in &regions {
            for parameter in &plan.parameters {
                let bytes = parameter.layout.bytes();
                shared.push(Shared {
                    path: format!("{group}/{}", parameter.name),
                    spec: parameter.spec.clone(),
                    layout: parameter.layout.clone(),
                    memory: region.slice(parameter.offset, bytes),
                    scratch: memories.regions.gradients.slice(parameter.offset, bytes),
                });
            }
        }
        let own = plan.statistics.iter().map(|statistic| Own {
            path: format!("statistics/{}", statistic.name),
            shape: statistic.spec.shape.0.clone(),
            memory: memories.regions.statistics.slice(statistic.place.offset, statistic.place.bytes),
        });
        State { shared, own: own.collect() }
    }

    /// The arrays as a checkpoint of so many ranks has them.
    pub fn arrays(&self, ranks: usize) -> Vec<Array> {
        let shared = self
            .shared
            .iter()
            .map(|array| Array { path: array.path.clone(), shape: array.spec.shape.0.clone() });
        let own = self.own.iter().map(|array| Array {
            path: array.path.clone(),
            shape: [&[ranks], array.shape.as_slice()].concat(),
        });
        shared.chain(own).collect()
    }

    /// Copies everything to where rank 0 gives room, in the order of `arrays`. Collective.
    pub fn copy(&self, world: &World, device: &dyn Device, mut to: Option<&mut Vec<f32>>) -> Result<()> {
        if let Some(to) = &mut to {
            to.reserve_exact(self.arrays(world.size()).iter().map(Array::elements).sum());
            for array in &self.shared {
                let start = to.len();
                to.resize(start + array.spec.shape.elements(), 0.0);
                read(device, (&array.spec, &array.layout), &array.memory, &array.scratch, &mut to[start..])?;
            }
        }
        for array in &self.own {
            let mut values = vec![0f32; array.memory.bytes() / 4];
            device.download(&array.memory, bytes_of_mut(&mut values))?;
            let room = to.as_deref_mut().map(|to| {
                let start = to.len();
                to.resize(start + world.size() * values.len(), 0.0);
                &mut to[start..]
            });
            world.gather_f32(&values, room)?;
        }
        Ok(())
    }

    /// Takes everything over from a checkpoint, whose values rank 0 has. With another number of ranks each gets the mean
    /// of what ranks had of their own. Collective.
    pub fn restore(&self, world: &World, device: &dyn Device, from: &Contents) -> Result<()> {
        self.check(from)?;
        for array in &self.shared {
            let mut values = vec![0f32; array.spec.shape.elements()];
            if let Some((_, kept)) = from.array(&array.path) {
                values.copy_from_slice(kept);
            }
            world.broadcast_f32(&mut values)?;
            write(device, (&array.spec, &array.layout), &array.memory, &array.scratch, &values)?;
        }
        for array in &self.own {
            let mut values = vec![0f32; array.memory.bytes() / 4];
            let there = from.arrays.iter().find(|kept| kept.path == array.path);
            let rows = from.array(&array.path).map(|(_, rows)| rows);
            if there.is_some_and(|there| there.shape[0] == world.size()) {
                world.scatter_f32(rows, &mut values)?;
            } else {
                rows.into_iter().for_each(|rows| mean(rows, &mut values));
                world.broadcast_f32(&mut values)?;
            }
            device.upload(bytes_of(&values), &array.memory)?;
        }
        Ok(())
    }

    /// That the checkpoint has what this run needs; every rank finds the same.
    fn check(&self, from: &Contents) -> Result<()> {
        let there = |path: &str| from.arrays.iter().find(|array| array.path == path);
        let shared = self.shared.iter().map(|array| {
            (&array.path, there(&array.path).is_some_and(|kept| kept.shape == array.spec.shape.0))
        });
        let own = self.own.iter().map(|array| {
            let fits = |kept: &Array| kept.shape.first() > Some(&0) && kept.shape[1..] == array.shape;
            (&array.path, there(&array.path).is_some_and(fits))
        });
        let lacking: Vec<&str> =
            shared.chain(own).filter(|(_, fits)| !fits).map(|(path, _)| path.as_str()).collect();
        if lacking.is_empty() {
            return Ok(());
        }
        let list = lacking.join(", ");
        Err(Error::new(
            Kind::Data,
            format!("the checkpoint does not have, in the shape of this model: {list}"),
        ))
    }
}

/// The mean of rows, as evaluation takes it.
fn mean(rows: &[f32], into: &mut [f32]) {
    let ranks = rows.len() / into.len().max(1);
    for (index, value) in into.iter_mut().enumerate() {
        let sum: f64 = rows.iter().skip(index).step_by(rows.len() / ranks).map(|&v| f64::from(v)).sum();
        *value = (sum / ranks as f64) as f32;
    }
}

/// Reads an array into plain order.
fn read(
    device: &dyn Device,
    (spec, layout): (&Spec, &Layout),
    memory: &Memory,
    scratch: &Memory,
    values: &mut [f32],
) -> Result<()> {
    let plain = device.plain(spec);
    if plain == *layout {
        return device.download(memory, bytes_of_mut(values));
    }
    // A layout never has fewer elements than the plain one.
    let room = scratch.slice(0, plain.bytes());
    reorder(device, spec, (layout, memory), (&plain, &room))?;
    device.download(&room, bytes_of_mut(values))?;
    device.zero(&room)
}

/// Writes an array given in plain order.
pub fn write(
    device: &dyn Device,
    (spec, layout): (&Spec, &Layout),
    memory: &Memory,
    scratch: &Memory,
    values: &[f32],
) -> Result<()> {
    let plain = device.plain(spec);
    if plain == *layout {
        return device.upload(bytes_of(values), memory);
    }
    let room = scratch.slice(0, plain.bytes());
    device.upload(bytes_of(values), &room)?;
    reorder(device, spec, (&plain, &room), (layout, memory))?;
    device.zero(&room)
}

fn reorder(device: &dyn Device, spec: &Spec, from: (&Layout, &Memory), to: (&Layout, &Memory)) -> Result<()> {
    let kernel = device.reorder(spec, from.0, to.0)?;
    let workspace = device.allocate(kernel.workspace())?;
    kernel.bind(from_ref(from.1), from_ref(to.1), &workspace)?.run(&Scalars::default())?;
    device.synchronize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_number_of_ranks_gets_the_mean_of_the_rows() {
        let mut into = [0.0; 3];
        mean(&[1.0, 2.0, 3.0, 3.0, 2.0, -3.0], &mut into);
        assert_eq!(into, [2.0, 2.0, 0.0]);
        // Equal rows stay what they are, bit for bit, however many.
        for ranks in 1..9 {
            let row = [0.1f32, 1e-30, 3e38];
            mean(&row.repeat(ranks), &mut into);
            assert_eq!(into, row);
        }
    }
}
