//! Arrays of which each rank has the parts that it owns, whole on rank 0 and back: checkpoints.

use std::ops::Range;

use super::memory::Memories;
use crate::comm::World;
use crate::device::memory::{bytes_of, bytes_of_mut};
use crate::device::{Device, Memory};
use crate::error::Result;
use crate::plan::{Parameter, Plan};
use crate::reducer::seats;

/// Elements that go between two ranks at a time.
const PIECE: usize = 2 << 20;

/// Some bytes of a parameter that one rank owns: counted from the parameter's start, and where they lie in what that
/// rank has.
struct Piece {
    owner: usize,
    bytes: Range<usize>,
    at: usize,
}

/// Who owns which bytes of a parameter, in an order that is the same on every rank.
fn pieces(world: &World, plan: &Plan, memories: &Memories, parameter: &Parameter) -> Vec<Piece> {
    let (seats, rule) = (seats(world), &memories.rule);
    let whole = parameter.offset..parameter.offset + parameter.layout.bytes();
    let mut pieces = Vec::new();
    for (owner, &seat) in seats.iter().enumerate() {
        let mut place = 0;
        for part in plan.owned(memories.owners, rule, seat, owner) {
            let (start, end) = (part.start.max(whole.start), part.end.min(whole.end));
            for start in (start..end.max(start)).step_by(4 * PIECE) {
                let bytes = start - whole.start..end.min(start + 4 * PIECE) - whole.start;
                pieces.push(Piece { owner, bytes, at: place + start - part.start });
            }
            place += part.len();
        }
    }
    pieces
}

/// What all ranks have of a parameter, in plain order to where rank 0 gives room. Collective.
pub fn gather(
    world: &World,
    plan: &Plan,
    memories: &Memories,
    device: &dyn Device,
    parameter: &Parameter,
    region: &Memory,
    room: Option<&mut [f32]>,
) -> Result<()> {
    let whole = room.as_ref().map(|_| memories.alone(device, parameter)).transpose()?;
    let rank = world.rank();
    let mut values = Vec::new();
    for Piece { owner, bytes, at } in pieces(world, plan, memories, parameter) {
        if rank != owner && whole.is_none() {
            continue;
        }
        values.resize(bytes.len() / 4, 0f32);
        if rank == owner {
            device.download(&region.slice(at, bytes.len()), bytes_of_mut(&mut values))?;
        }
        world.one_to_first(owner, &mut values)?;
        if let Some((_, memory)) = &whole {
            device.upload(bytes_of(&values), &memory.slice(bytes.start, bytes.len()))?;
        }
    }
    match (room, whole) {
        (Some(room), Some((parameter, memory))) => memories.read_into(device, &parameter, &memory, room),
        _ => Ok(()),
    }
}

/// The reverse: every rank has all `values` in plain order, and takes what it owns. Not collective.
pub fn scatter(
    world: &World,
    plan: &Plan,
    memories: &Memories,
    device: &dyn Device,
    parameter: &Parameter,
    region: &Memory,
    values: &[f32],
) -> Result<()> {
    let copy = |range: Range<usize>, piece: &mut [f32]| piece.copy_from_slice(&values[range]);
    fill(world, plan, memories, device, parameter, region, copy)
}

/// The same, where `fill` is asked for the numbers of a range in plain order, one range after the other.
pub fn fill(
    world: &World,
    plan: &Plan,
    memories: &Memories,
    device: &dyn Device,
    parameter: &Parameter,
    region: &Memory,
    fill: impl FnMut(Range<usize>, &mut [f32]),
) -> Result<()> {
    let mut own = pieces(world, plan, memories, parameter);
    own.retain(|piece| piece.owner == world.rank());
    if own.is_empty() {
        return Ok(());
    }
    let (parameter, memory) = memories.alone(device, parameter)?;
    memories.write(device, &parameter, &memory, fill)?;
    let mut bytes_of_piece = Vec::new();
    for Piece { bytes, at, .. } in own {
        bytes_of_piece.resize(bytes.len(), 0u8);
        device.download(&memory.slice(bytes.start, bytes.len()), &mut bytes_of_piece)?;
        device.upload(&bytes_of_piece, &region.slice(at, bytes.len()))?;
    }
    Ok(())
}

/// All parameters, of which each rank has those that it owns, as a plan that reads all of them finds them. Collective.
pub fn gather_all(
    world: &World,
    plan: &Plan,
    memories: &Memories,
    device: &dyn Device,
    to: &Memory,
) -> Result<()> {
    let mut values = Vec::new();
    for parameter in &plan.parameters {
        let place = parameter.of(to);
        for Piece { owner, bytes, at } in pieces(world, plan, memories, parameter) {
            values.resize(bytes.len() / 4, 0f32);
            if world.rank() == owner {
                let own = memories.regions.parameters.slice(at, bytes.len());
                device.download(&own, bytes_of_mut(&mut values))?;
            }
            if [0, owner].contains(&world.rank()) {
                world.one_to_first(owner, &mut values)?;
            }
            world.broadcast(&mut values)?;
            device.upload(bytes_of(&values), &place.slice(bytes.start, bytes.len()))?;
        }
    }
    Ok(())
}
