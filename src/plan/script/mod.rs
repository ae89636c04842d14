//! The script: everything that a rank does in a training step, in order, as data.
//!
//! The plan knows when a gradient is ready, and the table of owners who needs it. Both together give one static list of
//! actions a rank. Nothing in it is decided while it runs, so all of it can be rehearsed before the first step
//! (`simulate::rehearse`).
//!
//! PyTorch (`torch.distributed.pipelining`) and DeepSpeed (`runtime/pipe/schedule.py`) have such lists for pipelines;
//! here it is the whole step.

use std::ops::Range;
use std::rc::Rc;

use super::{Contexts, Region, TAIL};
use crate::config::{MeshShape, Wire};
use crate::cuts::Cuts;
use crate::strategy::Owners;

mod build;
mod flow;
mod manner;
mod outline;
mod words;

pub use build::scripts;
pub use manner::{Manner, Turn, representatives};
pub use outline::Outline;

/// The ranks among which something travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Axis {
    /// Those that compute other images.
    Data,
    /// Those that compute other layers.
    Pipeline,
    /// Those that compute other parts of the layers.
    Tensor,
    /// All ranks of the job.
    Job,
}

/// What a transfer does with its range. Ranks are places on its axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Every rank gets the sum: allreduce.
    Sum,
    /// Every rank gets the sum of what it owns: reduce-scatter.
    SumToOwners,
    /// What every rank owns goes to all: allgather.
    FromOwners,
    /// What one rank has goes to its owners, who take it when they come to it (`Action::Serve`).
    Push,
    /// What these own comes to the rank that pushed, as an answer.
    Pull,
    /// Every rank gets what each has, in the order of ranks.
    Gather,
    /// Ranks of a group send each other rows of their images.
    Trade {
        /// Which of the plan's trades it is (`Trading`).
        tag: usize,
    },
    /// Every rank gets what each has for it, in the order of ranks.
    AllToAll,
    /// A rank's part of the range goes to one.
    Send {
        /// Who gets it.
        to: usize,
        /// Of several messages between the same two: which one.
        tag: usize,
    },
    /// It comes from one.
    Receive {
        /// Who sends it.
        from: usize,
        /// As the sender has it.
        tag: usize,
    },
    /// Every rank sends it to one, and gets what another has beside its own: who they are is so many places on, and
    /// back.
    Mix {
        /// How many.
        distance: usize,
    },
}

impl Kind {
    /// Whether a rank's range is only read while it is on its way.
    pub fn only_reads(self) -> bool {
        matches!(self, Kind::Send { .. } | Kind::Mix { .. })
    }
}

/// Memory that actions touch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Area {
    /// A region of the plan. Of gradients: those that steps write.
    Of(Region),
    /// Where gradients are added up: over micro-steps, and over ranks. The same as those of the steps without
    /// accumulation.
    Sums,
    /// The squares of the norms of what each rank owns.
    Norms,
}

/// Bytes that go between ranks.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Transfer {
    /// Between which ranks.
    pub axis: Axis,
    /// Which places of the axis take part.
    pub members: Range<usize>,
    /// What becomes of them.
    pub kind: Kind,
    /// Where they lie.
    pub area: Area,
    /// Which of them each member owns.
    pub cuts: Cuts,
}

/// Ranks that do transfers together, one after the other.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Line {
    /// Members of an axis, by their lowest rank. What few of them own travels to these, or from them: one does not
    /// keep the other from its way.
    Group(Axis, usize, Range<usize>, Option<Kind>),
    /// From one rank to another: messages of one tag.
    Pair(Axis, [usize; 2], usize),
    /// From one rank to the servers, and back: when they come to it.
    Served(usize),
}

/// Which of a script's transfers.
pub type TransferId = usize;

/// What a rank does, and then it does the next.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Action {
    /// Reads the images of a micro-step.
    Read {
        /// Its number.
        micro: usize,
    },
    /// Runs steps of the plan.
    Run {
        /// Which of them.
        steps: Range<usize>,
        /// For which images.
        micro: usize,
    },
    /// The forward pass is over, and its losses and hits leave the device.
    Losses {
        /// The micro-step's number.
        micro: usize,
    },
    /// All steps have been enqueued: the batch behind this one is sent to the device.
    Prefetch {
        /// The number of the micro-step that has just run.
        micro: usize,
    },
    /// This rank's part of what a transfer is to gather is copied to where it is gathered.
    Spread(TransferId),
    /// What lies between the gradients of a bucket in its window becomes zero.
    Pad(usize),
    /// What this rank owns of a sum is copied to where it stays, beside the windows.
    Keep(usize),
    /// A transfer begins. Until it is waited for its range belongs to it.
    Start(TransferId),
    /// The transfer has ended.
    Wait(TransferId),
    /// The gradients of a micro-step are added to those before.
    Accumulate {
        /// Its number.
        micro: usize,
        /// Those of which of the plan's backward passes, or in windows of which bucket; else 0.
        pass: usize,
    },
    /// The running statistics after a shard join those of the others; after the last one of a step all ranks' do.
    Statistics {
        /// The micro-step's number.
        micro: usize,
    },
    /// The losses and hits of a micro-step are read.
    Metrics {
        /// Its number.
        micro: usize,
    },
    /// Losses, hits and flags of the step are written to the tail of the sums.
    Tail,
    /// The factor of the loss is taken out of the gradients.
    Unscale,
    /// Whether any gradient was broken: then there is no update.
    Check,
    /// The norm of what this rank owns.
    Norm,
    /// Gradients are scaled where their norm is too large.
    Clip,
    /// Parameters are updated: those of the part with this number.
    Update(usize),
    /// The new parameters join their moving average.
    Average(usize),
    /// Where ranks have parameters of their own: how far those of the part with this number are from the anchor.
    Drift(usize),
    /// Parameters of the part are drawn towards the anchor.
    Pull(usize),
    /// All ranks' drifts are added up: the anchor moves, and parameters may go on from there.
    Meet(usize),
    /// Parameters of the part are averaged with those that came from another rank.
    Mix(usize),
    /// The optimizer's state starts anew.
    Forget,
    /// This rank tells the others of its node that it has come so far.
    Arrive,
    /// All ranks of the node have.
    Await {
        /// Whether they come with new parameters, or have read the old ones.
        updated: bool,
    },
    /// The first server is told that a push comes, with losses, hits and flags.
    Knock,
    /// Its answer: what it has heard of all ranks.
    Hear,
    /// Takes a push of every rank and answers it, in the order that was asked for. The one action that is decided while
    /// it runs.
    Serve,
}

/// Bytes of a bucket that this rank updates.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Part {
    /// Of which bucket.
    pub bucket: usize,
    /// Bytes of the parameters.
    pub bytes: Range<usize>,
    /// The first byte of their sum: the same, but in a window.
    pub sum: usize,
}

impl Part {
    /// Bytes of the sums.
    pub fn summed(&self) -> Range<usize> {
        self.sum..self.sum + self.bytes.len()
    }
}

/// What one rank does in a step.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Script {
    /// This rank.
    pub rank: usize,
    /// Its node: those of one node meet at barriers.
    pub node: usize,
    /// How many ranks there are on each axis.
    pub mesh: MeshShape,
    /// Who updates what.
    pub owners: Owners,
    /// The type in which gradients travel to where they are added.
    pub wire: Wire,
    /// Whether a micro-step's gradients lie elsewhere than their sums.
    pub accumulates: bool,
    /// Whether ranks have parameters of their own.
    pub relaxed: bool,
    /// What is there once for each micro-batch in flight.
    pub contexts: Contexts,
    /// Bytes of the gradients of each backward pass of the plan, or in windows of each bucket.
    pub passes: Vec<Range<usize>>,
    /// In windows: where steps write those of each bucket.
    pub windows: Vec<Range<usize>>,
    /// Whether sums are copied from windows to where they stay until all are there.
    pub keeps: bool,
    /// The bytes of all gradients, or of their windows, with the tail.
    pub sums: usize,
    /// What goes between ranks.
    pub transfers: Rc<Vec<Transfer>>,
    /// What is updated.
    pub parts: Vec<Part>,
    /// What is done, in order.
    pub actions: Vec<Action>,
}

impl Script {
    /// Bytes of the gradients that are added to their sums behind a backward pass.
    pub fn added(&self, pass: usize) -> Range<usize> {
        self.passes.get(pass).cloned().unwrap_or(0..self.sums.saturating_sub(TAIL))
    }
    /// Bytes that this rank sends in a step at the least, whatever algorithms do: what others own of a sum, what it
    /// owns itself to each that lacks it.
    pub fn bytes_sent(&self) -> usize {
        let sent = |action: &Action| match action {
            Action::Start(id) => {
                let transfer = &self.transfers[*id];
                transfer.bytes_sent(self.place(transfer.axis) - self.members(transfer).start, self.wire)
            }
            _ => 0,
        };
        self.actions.iter().map(sent).sum()
    }

    /// This rank's place on an axis.
    pub fn place(&self, axis: Axis) -> usize {
        match axis {
            Axis::Job => self.rank,
            axis => self.mesh.coordinates(self.rank)[axis as usize],
        }
    }

    /// Which places of the axis take part in a transfer of this rank: in what is told between two steps its run of
    /// neighbours.
    fn members(&self, transfer: &Transfer) -> Range<usize> {
        let Range { start, end } = transfer.members;
        match (transfer.kind, transfer.area) {
            (Kind::Gather | Kind::AllToAll | Kind::Trade { .. }, Area::Of(_)) => {
                let first = self.place(transfer.axis) / end.max(1) * end;
                first..first + end
            }
            _ => start..end,
        }
    }

    /// With whom this rank does a transfer.
    pub fn line(&self, transfer: &Transfer) -> Line {
        let axis = transfer.axis;
        match transfer.kind {
            Kind::Push | Kind::Pull => Line::Served(self.rank),
            Kind::Send { to, tag } => Line::Pair(axis, [self.rank, self.peer(axis, to)], tag),
            Kind::Receive { from, tag } => Line::Pair(axis, [self.peer(axis, from), self.rank], tag),
            kind => {
                let (members, cuts) = (self.members(transfer), &transfer.cuts);
                let towards = matches!(kind, Kind::SumToOwners | Kind::FromOwners)
                    && members.clone().any(|place| cuts.part(place).is_empty());
                Line::Group(axis, self.peer(axis, members.start), members, towards.then_some(kind))
            }
        }
    }

    /// The rank at a place on an axis, beside this one.
    pub fn peer(&self, axis: Axis, place: usize) -> usize {
        let mut coordinates = self.mesh.coordinates(self.rank);
        match axis {
            Axis::Job => return place,
            axis => coordinates[axis as usize] = place,
        }
        self.mesh.rank(coordinates)
    }

    /// The bucket whose sum an action starts, or in a gossip its way to another rank.
    pub fn bucket(&self, action: usize) -> Option<usize> {
        let Action::Start(id) = self.actions[action] else { return None };
        let (kind, gradients) = (self.transfers[id].kind, self.sums.saturating_sub(TAIL));
        let is_sum = |transfer: &Transfer| match kind {
            _ if transfer.kind != kind => false,
            Kind::Sum | Kind::SumToOwners | Kind::Push => {
                transfer.area == Area::Sums && transfer.cuts.range().start < gradients
            }
            Kind::Mix { .. } => true,
            _ => false,
        };
        let before = self.transfers[..id].iter().filter(|transfer| is_sum(transfer)).count();
        is_sum(&self.transfers[id]).then_some(before)
    }
}

impl Transfer {
    /// In a gossip: how many places away the other rank is.
    pub fn distance(&self) -> Option<usize> {
        match self.kind {
            Kind::Mix { distance } => Some(distance),
            _ => None,
        }
    }

    /// By the member at a place of the axis, if gradients are of type `wire` on their way to where they are added.
    /// Nothing else is rounded.
    pub fn bytes_sent(&self, place: usize, wire: Wire) -> usize {
        let (all, own, others) =
            (self.cuts.range().len(), self.cuts.part(place).len(), self.cuts.ranks() - 1);
        let on_wire = |bytes: usize| match wire {
            Wire::F32 => bytes,
            Wire::Bf16 | Wire::F16 => bytes / 2,
        };
        match self.kind {
            Kind::Sum => 2 * on_wire(all - all / (others + 1)),
            Kind::SumToOwners => on_wire(all - own),
            Kind::AllToAll => all - own,
            Kind::FromOwners | Kind::Gather => others * own,
            Kind::Send { .. } | Kind::Trade { .. } | Kind::Mix { .. } | Kind::Push => all,
            Kind::Receive { .. } | Kind::Pull => 0,
        }
    }
}
