//! Activations and their gradients between ranks: between the stages of a pipeline one message for each tensor and
//! micro-batch, and within a group that shares images one for each strip of rows.

use std::ops::Range;
use std::rc::Rc;

use super::InFlight;
use crate::comm::{Awaited, Channel, Link as _, Region, Request, World};
use crate::device::memory::{bytes_of, bytes_of_mut};
use crate::device::{Device, DeviceEvent, Memory};
use crate::error::Result;
use crate::plan::{self, Axis, Kind, Plan, Script, Transfer};
use crate::trace::{self, EventKind};

/// Where the host finds what goes to other ranks.
pub enum EdgeMemory {
    /// In the arena itself.
    InPlace(Rc<Region>),
    /// The arena is on a device with memory of its own: each edge has a place in the host's, in the order of the
    /// script's transfers.
    Staged {
        /// The arena.
        arena: Memory,
        /// Places one behind the other.
        host: Rc<Region>,
    },
}

/// A message between two ranks.
pub struct Link {
    /// What it is, for a report of those who wait for it.
    pub what: String,
    /// Bytes of the arena.
    pub bytes: Range<usize>,
    /// The other rank, by its number in the job.
    pub peer: usize,
    /// The same on both, and on no other message between them.
    pub tag: usize,
    /// Whether this rank sends it.
    pub sends: bool,
}

impl Link {
    /// Those of a script, in the order of its transfers.
    pub fn of_script(script: &Script) -> Vec<Link> {
        let link = |transfer: &Transfer| {
            let (peer, tag, sends) = match transfer.kind {
                Kind::Send { to, tag } => (to, tag, true),
                Kind::Receive { from, tag } => (from, tag, false),
                _ => return None,
            };
            let (bytes, peer) = (transfer.cuts.range().clone(), script.peer(Axis::Pipeline, peer));
            Some(Link { what: of_pipeline(tag), bytes, peer, tag, sends })
        };
        script.transfers.iter().filter_map(link).collect()
    }

    /// Those of a plan, in its order; `rank` says which rank of the job computes a stage beside this one.
    pub fn of_plan(plan: &Plan, rank: impl Fn(usize) -> usize) -> Vec<Link> {
        let link = |edge: &plan::Edge| {
            let plan::Edge { number, peer, sends, place, .. } = edge;
            let bytes = place.offset..place.offset + place.bytes.next_multiple_of(4);
            Link { what: of_pipeline(*number), bytes, peer: rank(*peer), tag: *number, sends: *sends }
        };
        plan.edges.iter().map(link).collect()
    }

    /// Those of a trade of rows, what comes first; `rank` says which rank of the job has a place of the group.
    pub fn of_trade(trading: &plan::Trading, rank: impl Fn(usize) -> usize) -> Vec<Link> {
        let link = |(peer, place): &(usize, plan::Location), sends| Link {
            what: format!("rows of {}", trading.layer),
            // In whole numbers of four bytes, as all messages are: memory between two tensors is nobody's.
            bytes: place.offset..place.offset + place.bytes.next_multiple_of(4),
            peer: rank(*peer),
            tag: trading.tag,
            sends,
        };
        let comes = trading.received.iter().map(|strip| link(strip, false));
        comes.chain(trading.sent.iter().map(|strip| link(strip, true))).collect()
    }
}

fn of_pipeline(tag: usize) -> String {
    format!("edge {tag} of the pipeline")
}

/// One of them.
struct Edge {
    what: String,
    /// Bytes of the arena.
    bytes: Range<usize>,
    /// `f32` words of what MPI reads or writes.
    words: Range<usize>,
    peer: usize,
    tag: u16,
    sends: bool,
    /// From the device, before a message leaves, or before its place there is free for what comes.
    leaves: Option<DeviceEvent>,
    request: Option<Request>,
    begun: u64,
}

impl Edge {
    fn is_flying(&self) -> bool {
        self.request.is_some() || self.leaves.is_some()
    }
}

/// All of a stage.
pub struct Edges {
    channel: Channel,
    memory: EdgeMemory,
    edges: Vec<Edge>,
    /// Which of them each transfer is; and whether these are trades of rows.
    transfers: Vec<Range<usize>>,
    are_trades: bool,
    sent: u64,
    /// Tells its messages from those of others in a timeline.
    traced: usize,
}

impl Edges {
    /// Collective.
    ///
    /// # Errors
    /// `Foreign`, from MPI.
    pub fn new(job: &World, links: Vec<Link>, memory: EdgeMemory) -> Result<Edges> {
        let mut next = 0;
        let edge = |Link { what, bytes, peer, tag, sends }: Link| {
            let words = bytes.len() / 4;
            let start = match &memory {
                EdgeMemory::InPlace(_) => bytes.start / 4,
                EdgeMemory::Staged { .. } => {
                    next += words;
                    next - words
                }
            };
            Edge {
                what,
                bytes,
                words: start..start + words,
                peer,
                tag: tag as u16,
                sends,
                leaves: None,
                request: None,
                begun: 0,
            }
        };
        let edges: Vec<Edge> = links.into_iter().map(edge).collect();
        let transfers = (0..edges.len()).map(|edge| edge..edge + 1).collect();
        let (channel, traced) = (Channel::new(job)?, trace::channel());
        Ok(Edges { channel, memory, edges, transfers, are_trades: false, sent: 0, traced })
    }

    /// Where images are cut: which of these each trade of rows is.
    pub fn in_trades(self, transfers: Vec<Range<usize>>) -> Edges {
        Edges { transfers, are_trades: true, ..self }
    }

    fn open(&mut self, index: usize) -> Result<()> {
        let edge = &mut self.edges[index];
        let region = match &self.memory {
            EdgeMemory::InPlace(region) => region,
            EdgeMemory::Staged { host, .. } => host,
        };
        edge.request = Some(match edge.sends {
            true => {
                self.sent += edge.bytes.len() as u64;
                self.channel.send(region, &edge.words, edge.peer, edge.tag, false)?
            }
            false => self.channel.receive(region, &edge.words, edge.peer, edge.tag)?,
        });
        Ok(())
    }

    /// What leaves a device comes to the host.
    fn fetch(&self, index: usize, device: &dyn Device) -> Result<()> {
        let (EdgeMemory::Staged { arena, host }, edge) = (&self.memory, &self.edges[index]) else {
            return Ok(());
        };
        let mut values = vec![0f32; edge.words.len()];
        device.download(&arena.slice(edge.bytes.start, edge.bytes.len()), bytes_of_mut(&mut values))?;
        host.write(edge.words.start, &values);
        Ok(())
    }

    /// The reverse.
    fn put(&self, index: usize, device: &dyn Device) -> Result<()> {
        let (EdgeMemory::Staged { arena, host }, edge) = (&self.memory, &self.edges[index]) else {
            return Ok(());
        };
        let mut values = vec![0f32; edge.words.len()];
        host.read(edge.words.start, &mut values);
        device.upload(bytes_of(&values), &arena.slice(edge.bytes.start, edge.bytes.len()))
    }

    /// Of the messages of a transfer one that has neither left nor come.
    fn flying(&self, index: usize) -> Option<&Edge> {
        self.edges[self.transfers[index].clone()].iter().find(|edge| edge.is_flying())
    }

    /// With whom a transfer is that has neither left nor come.
    pub fn peer(&self, index: usize) -> Option<usize> {
        self.flying(index).map(|edge| edge.peer)
    }

    /// A message may leave, or its place is free for it to come.
    fn start_one(&mut self, index: usize, device: &dyn Device) -> Result<()> {
        let edge = &mut self.edges[index];
        edge.begun = trace::now();
        let staged = matches!(self.memory, EdgeMemory::Staged { .. });
        if staged && (edge.sends || self.are_trades) {
            // Behind the step that has written it, or those that had its place.
            edge.leaves = Some(device.record()?);
            return Ok(());
        }
        self.open(index)
    }
}

impl InFlight for Edges {
    fn start(&mut self, index: usize, device: &dyn Device) -> Result<()> {
        self.transfers[index].clone().try_for_each(|edge| self.start_one(edge, device))
    }

    fn progress(&mut self, device: &dyn Device) -> Result<bool> {
        let mut moved = false;
        for index in 0..self.edges.len() {
            if let Some(event) = &self.edges[index].leaves {
                if event.reached()? {
                    self.edges[index].leaves = None;
                    if self.edges[index].sends {
                        self.fetch(index, device)?;
                    }
                    self.open(index)?;
                    moved = true;
                }
                continue;
            }
            let edge = &mut self.edges[index];
            let Some(request) = &mut edge.request else { continue };
            if request.test()? {
                edge.request = None;
                moved = true;
                let kind = if edge.sends { EventKind::Send } else { EventKind::Receive };
                let (bytes, message) = (edge.bytes.len(), self.traced << 16 | usize::from(edge.tag));
                trace::record(kind, edge.begun, edge.peer, message, bytes);
                if !edge.sends {
                    self.put(index, device)?;
                }
            }
        }
        Ok(moved)
    }

    fn is_flying(&self) -> bool {
        self.edges.iter().any(Edge::is_flying)
    }

    fn has_come(&self, index: usize) -> bool {
        self.flying(index).is_none()
    }

    fn is_on_device(&self, index: usize) -> bool {
        self.edges[self.transfers[index].clone()].iter().any(|edge| edge.leaves.is_some())
    }

    fn finish(&mut self, _: usize, _: &dyn Device) -> Result<()> {
        Ok(())
    }

    fn awaited(&self, index: usize) -> Awaited {
        let Some(edge) = self.flying(index) else { return Awaited::default() };
        let what = match edge.sends {
            true => format!("{} to be taken", edge.what),
            false => edge.what.clone(),
        };
        Awaited { what, peers: vec![edge.peer] }
    }

    fn sent(&self) -> u64 {
        self.sent
    }
}

/// The edges of a plan that runs from its first step to its last, one batch after the other: an evaluation. Trades of
/// rows are over when the next step begins.
pub struct Relay {
    edges: Edges,
    /// For each edge the step behind which it leaves or before which it is there, and whether it leaves.
    steps: Vec<(usize, bool)>,
}

impl Relay {
    /// `edges` are those of the plan, in its order.
    pub fn new(edges: Edges, plan: &Plan) -> Relay {
        let steps = match edges.are_trades {
            true => plan.trades().iter().map(|trading| (trading.step, true)).collect(),
            false => plan.edges.iter().map(|edge| (edge.step, edge.sends)).collect(),
        };
        Relay { edges, steps }
    }

    /// A batch begins: what left of the one before has been taken, and this one's may come.
    pub fn begin(&mut self, device: &dyn Device) -> Result<()> {
        for index in 0..self.steps.len() {
            self.edges.wait(index, device)?;
        }
        (0..self.steps.len())
            .filter(|&index| !self.steps[index].1)
            .try_for_each(|index| self.edges.start(index, device))
    }

    /// Before a step.
    pub fn before(&mut self, step: usize, device: &dyn Device) -> Result<()> {
        for index in 0..self.steps.len() {
            if self.steps[index] == (step, false) {
                self.edges.wait(index, device)?;
            }
        }
        Ok(())
    }

    /// Behind a step.
    pub fn after(&mut self, step: usize, device: &dyn Device) -> Result<()> {
        for index in (0..self.steps.len()).filter(|&index| self.steps[index] == (step, true)) {
            self.edges.start(index, device)?;
            if self.edges.are_trades {
                self.edges.wait(index, device)?;
            }
        }
        self.edges.progress(device).map(|_| ())
    }

    /// The last batch is over.
    pub fn end(&mut self, device: &dyn Device) -> Result<()> {
        (0..self.steps.len()).try_for_each(|index| self.edges.wait(index, device))
    }
}
