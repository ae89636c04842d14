//! Three ways to share the work, and the groups of ranks that each makes.

use super::world::World;
use crate::config::MeshShape;
use crate::error::{Error, Result};

/// The groups that a rank is in, one for each axis: the ranks that differ from it on that axis alone. A rank's place in
/// a group is its coordinate.
pub struct Mesh {
    /// How many ranks there are on each axis.
    pub shape: MeshShape,
    /// Ranks with the same parameters and unlike images.
    pub data: World,
    /// Ranks with unlike layers of the network.
    pub pipeline: World,
    /// Ranks with unlike parts of the same layers.
    pub tensor: World,
}

impl Mesh {
    /// Divides all ranks of a world. Collective.
    ///
    /// # Errors
    /// `Usage`, the same on every rank, where the shape does not have as many ranks as the world.
    pub fn new(world: &World, shape: MeshShape) -> Result<Mesh> {
        if shape.ranks() != world.size() {
            return world.agree(Err(Error::usage(format!(
                "a mesh of {shape} has {} ranks, and this job has {}; start as many, or use another mesh",
                shape.ranks(),
                world.size()
            ))));
        }
        let [d, p, t] = shape.coordinates(world.rank());
        let group = |color: usize, key: usize, length: usize| match length {
            all if all == world.size() => Ok(world.clone()),
            _ => world.split(color, key),
        };
        Ok(Mesh {
            shape,
            data: group(shape.rank([0, p, t]), d, shape.data)?,
            pipeline: group(shape.rank([d, 0, t]), p, shape.pipeline)?,
            tensor: group(shape.rank([d, p, 0]), t, shape.tensor)?,
        })
    }
}
