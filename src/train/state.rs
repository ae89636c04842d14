//! What training carries from step to step, array by array: parameters, optimizer state, moving average, running
//! statistics. `checkpoint` keeps it and brings it back; in a file everything lies in plain order, so that another
//! device, thread count or layout reads it.

use super::memory::Memories;
use crate::comm::World;
use crate::device::memory::{bytes_of, bytes_of_mut};
use crate::device::{Device, Memory};
use crate::error::{Error, Kind, Result};
use crate::plan::{Parameter, Plan, Statistic};
use crate::record::{Array, Contents};

/// Every array of a run's state: first those that are the same on all ranks, parameter by parameter, then those of which
/// each rank has its own.
pub struct State<'a> {
    plan: &'a Plan,
    memories: &'a Memories,
    /// Regions with the parameters' offsets, and what a file calls them.
    regions: Vec<(String, &'a Memory)>,
}

impl State<'_> {
    /// `states` are the names of the optimizer's.
    pub fn new<'a>(plan: &'a Plan, memories: &'a Memories, states: &[&str]) -> State<'a> {
        let mut regions = vec![("parameters".to_string(), &memories.regions.parameters)];
        let states = states.iter().map(|name| format!("optimizer/{name}"));
        regions.extend(states.zip(&memories.state));
        regions.extend(memories.average.as_ref().map(|region| ("average".to_string(), region)));
        State { plan, memories, regions }
    }

    /// What is the same on all ranks: (path, parameter, region).
    fn shared(&self) -> impl Iterator<Item = (String, &Parameter, &Memory)> {
        self.regions.iter().flat_map(|(group, region)| {
            let parameters = self.plan.parameters.iter();
            parameters.map(move |parameter| (format!("{group}/{}", parameter.name), parameter, *region))
        })
    }

    /// What each rank has of its own: (path, statistic, memory).
    fn own(&self) -> impl Iterator<Item = (String, &Statistic, Memory)> {
        self.plan.statistics.iter().map(|statistic| {
            let (offset, bytes) = (statistic.place.offset, statistic.place.bytes);
            let memory = self.memories.regions.statistics.slice(offset, bytes);
            (format!("statistics/{}", statistic.name), statistic, memory)
        })
    }

    /// The arrays as a checkpoint of so many ranks has them.
    pub fn arrays(&self, ranks: usize) -> Vec<Array> {
        let shared =
            self.shared().map(|(path, parameter, _)| Array { path, shape: parameter.spec.shape.0.clone() });
        let own = self.own().map(|(path, statistic, _)| Array {
            path,
            shape: [&[ranks], statistic.spec.shape.0.as_slice()].concat(),
        });
        shared.chain(own).collect()
    }

    /// Copies everything to where rank 0 gives room, in the order of `arrays`. Collective.
    pub fn copy(&self, world: &World, device: &dyn Device, mut to: Option<&mut Vec<f32>>) -> Result<()> {
        if let Some(to) = &mut to {
            to.reserve_exact(self.arrays(world.size()).iter().map(Array::elements).sum());
            for (_, parameter, region) in self.shared() {
                let start = to.len();
                to.resize(start + parameter.spec.shape.elements(), 0.0);
                self.memories.read_into(device, parameter, region, &mut to[start..])?;
            }
        }
        for (_, statistic, memory) in self.own() {
            let mut values = vec![0f32; statistic.spec.shape.elements()];
            device.download(&memory, bytes_of_mut(&mut values))?;
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
        for (path, parameter, region) in self.shared() {
            let mut values = vec![0f32; parameter.spec.shape.elements()];
            if let Some((_, kept)) = from.array(&path) {
                values.copy_from_slice(kept);
            }
            world.broadcast_f32(&mut values)?;
            self.memories.write(device, parameter, region, &values)?;
        }
        for (path, statistic, memory) in self.own() {
            let mut values = vec![0f32; statistic.spec.shape.elements()];
            let there = from.arrays.iter().find(|kept| kept.path == path);
            let rows = from.array(&path).map(|(_, rows)| rows);
            if there.is_some_and(|there| there.shape[0] == world.size()) {
                world.scatter_f32(rows, &mut values)?;
            } else {
                rows.into_iter().for_each(|rows| mean(rows, &mut values));
                world.broadcast_f32(&mut values)?;
            }
            device.upload(bytes_of(&values), &memory)?;
        }
        Ok(())
    }

    /// That the checkpoint has what this run needs; every rank finds the same.
    fn check(&self, from: &Contents) -> Result<()> {
        // Of what ranks have of their own there may be any number of rows, but not none.
        let rows = |path: &str| {
            let kept = from.arrays.iter().find(|kept| kept.path == path && path.starts_with("statistics/"));
            kept.and_then(|kept| kept.shape.first().copied()).unwrap_or(1).max(1)
        };
        let fits = |array: &Array| {
            let shape = match array.path.starts_with("statistics/") {
                true => [&[rows(&array.path)], &array.shape[1..]].concat(),
                false => array.shape.clone(),
            };
            from.arrays.contains(&Array { path: array.path.clone(), shape })
        };
        let lacking: Vec<String> =
            self.arrays(1).into_iter().filter(|array| !fits(array)).map(|array| array.path).collect();
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
