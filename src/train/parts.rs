//! Parameters of which ranks have unlike parts, whole on the first rank and back: files know nothing of parts.

use std::ops::Range;

use super::memory::Memories;
use crate::comm::World;
use crate::device::{Device, Memory};
use crate::error::Result;
use crate::graph::Shard;
use crate::plan::Parameter;

/// What the ranks of a group have of a parameter, or at its place in another region, to where the first one of them
/// gives room. Collective over the group.
pub fn gather(
    group: &World,
    memories: &Memories,
    device: &dyn Device,
    (parameter, shard): (&Parameter, Shard),
    region: &Memory,
    room: Option<&mut [f32]>,
) -> Result<()> {
    let own = memories.read(device, parameter, region)?;
    let mut parts = room.as_ref().map(|room| vec![0f32; room.len()]);
    group.gather(&own, parts.as_deref_mut())?;
    let (Some(parts), Some(room)) = (parts, room) else { return Ok(()) };
    for (place, part) in parts.chunks_exact(own.len()).enumerate() {
        let shard = Shard { place, ..shard };
        shard.each_run(&parameter.spec.shape, 0..part.len(), |whole, of_part| {
            room[whole].copy_from_slice(&part[of_part]);
        });
    }
    Ok(())
}

/// Fills a piece of a parameter, a range of its elements, from what fills the whole.
pub fn fill(
    parameter: &Parameter,
    range: Range<usize>,
    piece: &mut [f32],
    mut whole: impl FnMut(Range<usize>, &mut [f32]),
) {
    match parameter.shard {
        None => whole(range, piece),
        Some(shard) => {
            shard.each_run(&parameter.spec.shape, range, |of_whole, own| whole(of_whole, &mut piece[own]));
        }
    }
}
