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

/// The ranks that own parts of parameters, and where this one has its own.
pub struct Owned<'a> {
    pub world: &'a World,
    pub plan: &'a Plan,
    pub memories: &'a Memories,
    pub device: &'a dyn Device,
}

impl Owned<'_> {
    /// Who owns which bytes of a parameter, in an order that is the same on every rank.
    fn pieces(&self, parameter: &Parameter) -> Vec<Piece> {
        let (seats, rule) = (seats(self.world), &self.memories.rule);
        let whole = parameter.offset..parameter.offset + parameter.layout.bytes();
        let mut pieces = Vec::new();
        for (owner, &seat) in seats.iter().enumerate() {
            let mut place = 0;
            for part in self.plan.owned(self.memories.owners, rule, seat, owner) {
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
    pub fn gather(&self, parameter: &Parameter, region: &Memory, room: Option<&mut [f32]>) -> Result<()> {
        let Owned { world, memories, device, .. } = *self;
        let whole = room.as_ref().map(|_| memories.alone(device, parameter)).transpose()?;
        let rank = world.rank();
        let mut values = Vec::new();
        for Piece { owner, bytes, at } in self.pieces(parameter) {
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

    /// The reverse: every rank takes what it owns. `fill` is asked for the numbers of a range in plain order, one range
    /// after the other. Not collective.
    pub fn fill(
        &self,
        parameter: &Parameter,
        region: &Memory,
        fill: impl FnMut(Range<usize>, &mut [f32]),
    ) -> Result<()> {
        let Owned { world, memories, device, .. } = *self;
        let mut own = self.pieces(parameter);
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

    /// Gathers all parameters, of which each rank has those that it owns, to where a plan that reads all of them finds
    /// them. Collective.
    pub fn gather_all(&self, to: &Memory) -> Result<()> {
        let Owned { world, plan, memories, device } = *self;
        let mut values = Vec::new();
        for parameter in &plan.parameters {
            let place = parameter.of(to);
            for Piece { owner, bytes, at } in self.pieces(parameter) {
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
}
