//! Sums over the devices of a node, each of which reads and writes the others' memory: gradients go to the host only to
//! leave the node, and of them only the segment that the rank leads.

use std::collections::VecDeque;
use std::ops::Range;

use super::{as_text, from_text};
use crate::collective::{PIECE, Ticket, Within};
use crate::comm::World;
use crate::device::{Device, DeviceEvent, Memory, PeerMemory};
use crate::error::{Error, Result};

/// The gradients of a node's ranks on their devices.
pub struct Peers {
    /// `None` when it has been let go.
    reach: Option<Box<dyn PeerMemory>>,
    own: usize,
    /// Where sums go to leave the node; `None` where there is no other.
    host: Option<Memory>,
    /// Marks of what is under way, the oldest first.
    flying: VecDeque<DeviceEvent>,
    done: Ticket,
}

impl Peers {
    /// Lets the ranks of each node reach each other's `memory`, all of an allocation and as long on every rank. With
    /// `host`, as long too, there are several nodes. Collective.
    ///
    /// # Errors
    /// The same on every rank.
    pub fn new(world: &World, device: &dyn Device, memory: &Memory, host: Option<Memory>) -> Result<Peers> {
        let offer = world.agree(device.export_handle(memory))?;
        let texts = world.gather_text(&as_text(&offer))?;
        let reached = near(world, &texts)
            .and_then(|offers| device.open_peers(&offers, world.local_rank(), memory))
            .map_err(|e| e.context(format!("rank {} on {}", world.rank(), world.host())));
        Ok(Peers {
            reach: Some(world.agree(reached)?),
            own: world.local_rank(),
            host,
            flying: VecDeque::new(),
            done: 0,
        })
    }

    fn reach(&mut self) -> Result<&mut (dyn PeerMemory + 'static)> {
        let gone = || Error::internal("memory of other ranks is asked for after it was let go");
        self.reach.as_deref_mut().ok_or_else(gone)
    }

    /// Marks what was enqueued.
    fn mark(&mut self) -> Result<Ticket> {
        let event = self.reach()?.record()?;
        self.flying.push_back(event);
        Ok(self.done + self.flying.len() as Ticket)
    }

    fn host(&self, bytes: &Range<usize>) -> Option<Memory> {
        self.host.as_ref().map(|host| host.slice(bytes.start, bytes.len()))
    }
}

/// What the ranks of this node offer, of what all do.
fn near(world: &World, texts: &[String]) -> Result<Vec<Vec<u8>>> {
    world.ranks_of(world.node()).into_iter().map(|rank| from_text(&texts[rank])).collect()
}

fn bytes(elements: Range<usize>) -> Range<usize> {
    elements.start * size_of::<f32>()..elements.end * size_of::<f32>()
}

impl Within for Peers {
    fn name(&self) -> &'static str {
        "ipc"
    }

    /// A launch takes any length.
    fn chunk(&self) -> usize {
        usize::MAX
    }

    /// Pieces are for what goes to other nodes meanwhile.
    fn piece(&self) -> usize {
        if self.host.is_some() { PIECE } else { usize::MAX }
    }

    fn add(&mut self, range: Range<usize>) -> Result<Ticket> {
        let (bytes, own) = (bytes(range), self.own);
        let host = self.host(&bytes);
        let reach = self.reach()?;
        let all: Vec<usize> = (0..reach.ranks()).collect();
        match host {
            // Nothing else is added: all may have it.
            None => reach.add_up(&bytes, &all, &all)?,
            Some(host) => {
                reach.add_up(&bytes, &all, &[own])?;
                reach.copy_to_host_async(&bytes, &host)?;
            }
        }
        self.mark()
    }

    fn share(&mut self, range: Range<usize>) -> Result<Ticket> {
        let (bytes, own) = (bytes(range), self.own);
        let Some(host) = self.host(&bytes) else { return Ok(0) };
        let reach = self.reach()?;
        reach.copy_to_device_async(&bytes, &host)?;
        let others: Vec<usize> = (0..reach.ranks()).filter(|&rank| rank != own).collect();
        reach.add_up(&bytes, &[own], &others)?;
        self.mark()
    }

    fn reached(&mut self, ticket: Ticket) -> Result<bool> {
        while let Some(event) = self.flying.front()
            && self.reach.is_some()
            && event.reached()?
        {
            self.flying.pop_front();
            self.done += 1;
        }
        Ok(ticket <= self.done)
    }

    fn leave(&mut self) {
        self.reach = None;
    }
}
