//! The script: everything that a rank does in a training step, in order, as data.
//!
//! The plan knows when a gradient is ready, and the table of owners who needs it. Both together give one static list of
//! actions a rank. Nothing in it is decided while it runs, so all of it can be rehearsed before the first step
//! (`rehearse`).
//!
//! PyTorch (`torch.distributed.pipelining`) and DeepSpeed (`runtime/pipe/schedule.py`) have such lists for pipelines;
//! here it is the whole step.

use std::collections::HashMap;
use std::fmt::{self, Write};
use std::ops::Range;
use std::rc::Rc;

use super::describe::bytes as show;
use super::windows::{Gathered, Windows, learned};
use super::{Bucket, ChunkPass, Contexts, Edge, Pass, Phase, Plan, PlannedStep, Region, TAIL};
use crate::config::{MeshShape, PipelineSchedule, Wire};
use crate::cuts::Cuts;
use crate::device::Rule;
use crate::strategy::{Meeting, Owners, Relaxed, Seat, Share};

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
}

/// What a script needs to know of a plan.
pub struct Outline<'a> {
    /// How many steps it has.
    pub steps: usize,
    /// How many of these are the forward pass: the first ones.
    pub forward: usize,
    /// Its buckets.
    pub buckets: &'a [Bucket],
    /// For each bucket the first step that reads one of its parameters.
    pub readers: Vec<usize>,
    /// The same of the last one.
    pub last_readers: Vec<usize>,
    /// Whether a device copies all parameters in halves before one of them is read.
    pub copies: bool,
    /// What ranks tell each other in between (statistics, rows of images, parts of split layers): after which step,
    /// where it lies in the arena, how, and how many neighbours do so.
    pub exchanges: Vec<(usize, Range<usize>, Kind, usize)>,
    /// Bytes of the gradients of split layers: the first ones, which only ranks with the same parts add up.
    pub split: usize,
    /// Where gradients take turns: where and when.
    pub windows: Option<&'a Windows>,
    /// The bytes of where gradients are added up over ranks, with their tail.
    pub sums: usize,
    /// How a bucket is divided among owners.
    pub share: Share<'a>,
    /// What a stage of a pipeline exchanges with others, and which steps run without a pause.
    pub edges: &'a [Edge],
    /// The forward and the backward pass, or those of each chunk.
    pub passes: &'a [Pass],
    /// Bytes of the gradients of each backward pass.
    pub gradients: Vec<Range<usize>>,
    /// What is there once for each micro-batch in flight.
    pub contexts: Contexts,
    /// Whether this rank reads images, and whether losses are found here.
    pub ends: [bool; 2],
}

/// How a step is done.
#[derive(Debug, Clone)]
pub struct Manner {
    /// How many ranks there are on each axis.
    pub mesh: MeshShape,
    /// In a pipeline: which stage this is of, and in which order passes are done.
    pub pipeline: Option<(usize, PipelineSchedule)>,
    /// Where layers are split: which place of the tensor axis this is of.
    pub tensor: usize,
    /// On which node each rank is, but for those of other stages.
    pub nodes: Vec<usize>,
    /// Who updates what.
    pub owners: Owners,
    /// The type in which gradients travel to where they are added.
    pub wire: Wire,
    /// Where ranks have parameters of their own: whether they meet in this step.
    pub relaxed: Option<Turn>,
    /// Whether owners update by what each rank pushes, as it comes.
    pub asynchronous: bool,
    /// Whether the ranks of a node have parameters in common.
    pub in_common: bool,
    /// Micro-steps of an update.
    pub micro_steps: usize,
    /// Whether each of them is a shard, whose running statistics are its own.
    pub shards: bool,
    /// Whether gradients are clipped by their norm.
    pub clip: bool,
    /// Whether the loss is scaled.
    pub unscale: bool,
    /// Whether parameters have a moving average.
    pub average: bool,
    /// Whether sums begin in the backward pass.
    pub overlap: bool,
}

/// What a rank with parameters of its own does at the end of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// Nothing: it goes on by itself.
    Alone,
    /// All meet, and go on from their anchor.
    Anchor {
        /// With optimizers that start anew.
        resets: bool,
    },
    /// All meet, and are drawn towards their anchor.
    Elastic,
    /// Every rank averages its parameters with those of another.
    Mix {
        /// How many places away this one is.
        distance: usize,
    },
}

impl Turn {
    /// Of the last step of a round, for so many ranks.
    fn last(relaxed: Relaxed, ranks: usize) -> Turn {
        match relaxed.meeting {
            Meeting::Anchor { resets, .. } => Turn::Anchor { resets },
            Meeting::Elastic { .. } => Turn::Elastic,
            Meeting::Gossip if ranks == 1 => Turn::Alone,
            Meeting::Gossip => Turn::Mix { distance: 1 << (relaxed.every - 1) },
        }
    }
}

impl Manner {
    /// How the steps of a round are done. The last of these is that of the last step; where there are fewer than steps
    /// the first one stands for all others. Where all ranks have the same parameters a round is a step.
    pub fn of_round(&self, relaxed: Option<Relaxed>) -> Vec<Manner> {
        let Some(relaxed) = relaxed else { return vec![self.clone()] };
        let last = Turn::last(relaxed, self.mesh.data);
        let before = match last {
            Turn::Mix { .. } => (0..relaxed.every - 1).map(|hop| Turn::Mix { distance: 1 << hop }).collect(),
            _ if relaxed.every > 1 => vec![Turn::Alone],
            _ => Vec::new(),
        };
        let of = |turn| Manner { relaxed: Some(turn), ..self.clone() };
        before.into_iter().chain([last]).map(of).collect()
    }

    /// Plain data parallelism over ranks on these nodes.
    pub fn plain(nodes: Vec<usize>) -> Manner {
        Manner {
            mesh: MeshShape::of_data(nodes.len()),
            pipeline: None,
            tensor: 0,
            nodes,
            owners: Owners::Everyone,
            wire: Wire::F32,
            relaxed: None,
            asynchronous: false,
            in_common: false,
            micro_steps: 1,
            shards: false,
            clip: false,
            unscale: false,
            average: false,
            overlap: true,
        }
    }
}

impl Plan {
    /// Bytes of each bucket's parameters that a rank updates.
    pub fn owned(&self, owners: Owners, rule: &Rule, seat: Seat, rank: usize) -> Vec<Range<usize>> {
        let share =
            |bucket: usize, index: usize, count: usize| self.share(&self.buckets[bucket], rule, index, count);
        (0..self.buckets.len()).map(|bucket| owners.owned(bucket, rank, seat, &share)).collect()
    }

    /// Bytes of the gradients that each backward pass writes, or in windows of each bucket.
    pub fn gradients_of_passes(&self) -> Vec<Range<usize>> {
        if let Some(windows) = &self.windows {
            return self.buckets.iter().map(|bucket| learned(bucket, windows.whole)).collect();
        }
        let of = |pass: &Pass| {
            let ready = self.gradients.iter().filter(|(_, after)| pass.steps.contains(after));
            let (start, end) = ready.fold((usize::MAX, 0), |(start, end), (bytes, _)| {
                (start.min(bytes.start), end.max(bytes.end))
            });
            start.min(end)..end
        };
        self.passes.iter().filter(|pass| pass.phase != Phase::Forward).map(of).collect()
    }

    /// Ranks of the data axis that stand for all where scripts are rehearsed.
    pub fn representatives(&self, manner: &Manner, rule: &Rule) -> Vec<usize> {
        // Whoever has parts of layers updates all of them by itself: the first group stands for the others.
        if manner.mesh.tensor > 1 {
            return vec![0];
        }
        let share =
            |bucket: usize, index: usize, count: usize| self.share(&self.buckets[bucket], rule, index, count);
        representatives(manner, self.buckets.len(), &share)
    }

    /// The scripts of some ranks of the data axis, in ascending order.
    pub fn scripts(
        &self,
        manner: &Manner,
        rule: &Rule,
        ranks: impl IntoIterator<Item = usize>,
    ) -> Vec<Script> {
        let share =
            |bucket: usize, index: usize, count: usize| self.share(&self.buckets[bucket], rule, index, count);
        let ends = |bucket: &Bucket| {
            let mut readers = self.readers(bucket);
            let first = readers.next().unwrap_or(self.steps.len());
            (first, readers.next_back().unwrap_or(first))
        };
        let (readers, last_readers) = self.buckets.iter().map(ends).unzip();
        // Those of micro-steps are added up where each has a place of its own.
        let sums = match &self.windows {
            Some(windows) if manner.micro_steps > 1 => windows.whole,
            _ => self.sizes.gradients,
        };
        let rows =
            |step: &PlannedStep| step.outputs[0].offset..step.outputs[0].offset + step.outputs[0].bytes;
        let told = self.steps.iter().enumerate().filter_map(|(index, step)| {
            self.exchanging(step).map(|(kind, ranks)| (index, rows(step), kind, ranks))
        });
        let trades = self.trades().into_iter().map(|trading| {
            let start =
                trading.received.first().or(trading.sent.first()).map_or(0, |(_, place)| place.offset);
            let [sent, received] = trading.bytes();
            let kind = Kind::Trade { tag: trading.tag };
            (trading.step, start..start + sent.max(received), kind, trading.ranks)
        });
        let mut exchanges: Vec<_> = told.chain(trades).collect();
        exchanges.sort_by_key(|(step, ..)| *step);
        scripts(
            manner,
            &Outline {
                steps: self.steps.len(),
                forward: self.forward_steps,
                buckets: &self.buckets,
                readers,
                last_readers,
                copies: self.steps.iter().any(|step| step.kernel.halved().is_some()),
                exchanges,
                split: self.split,
                windows: self.windows.as_ref(),
                sums,
                share: &share,
                edges: &self.edges,
                passes: &self.passes,
                gradients: self.gradients_of_passes(),
                contexts: self.contexts,
                ends: [self.images.bytes > 0, self.losses.bytes > 0],
            },
            ranks,
        )
    }
}

impl<'a> Outline<'a> {
    /// The windows in which gradients are summed over ranks: those in which steps write them, unless they are added up
    /// over micro-steps before.
    fn summed_in(&self, manner: &Manner) -> Option<&'a Windows> {
        self.windows.filter(|_| manner.micro_steps == 1)
    }
}

/// Waits for transfers.
fn waits(ids: &[TransferId]) -> impl Iterator<Item = Vec<Action>> + '_ {
    ids.iter().map(|&id| vec![Action::Wait(id)])
}

fn first_transfer(actions: &[Action]) -> Option<TransferId> {
    actions.iter().find_map(|action| match action {
        Action::Wait(id) => Some(*id),
        _ => None,
    })
}

/// The scripts of some ranks, of data parallelism in any manner.
pub fn scripts(manner: &Manner, outline: &Outline, ranks: impl IntoIterator<Item = usize>) -> Vec<Script> {
    let (flow, transfers) = Flow::new(manner, outline);
    let transfers = Rc::new(transfers);
    let stage = manner.pipeline.map_or(0, |(stage, _)| stage);
    let seats = Seat::all(&manner.nodes);
    let script = |rank: usize| {
        // Every rank of the mesh has images of its own, unless it is of another stage.
        let at = rank * manner.mesh.tensor + manner.tensor;
        let bytes = |index| manner.owners.owned(index, rank, seats[at], outline.share);
        let part = |bucket: usize| {
            let bytes = bytes(bucket);
            let sum = match outline.summed_in(manner) {
                Some(windows) => {
                    windows.gradients[bucket].bytes.start + bytes.start - outline.buckets[bucket].bytes.start
                }
                None => bytes.start,
            };
            Part { bucket, bytes, sum }
        };
        let mut script = Script {
            rank: manner.mesh.rank([rank, stage, manner.tensor]),
            // Ranks of other stages have other parameters: they meet at no barrier.
            node: stage * manner.mesh.ranks() + manner.nodes[at],
            mesh: manner.mesh,
            owners: manner.owners,
            wire: manner.wire,
            accumulates: manner.micro_steps > 1,
            relaxed: manner.relaxed.is_some(),
            contexts: outline.contexts,
            passes: outline.gradients.clone(),
            windows: outline.windows.iter().flat_map(|w| &w.gradients).map(|w| w.bytes.clone()).collect(),
            keeps: outline.summed_in(manner).is_some() && (manner.clip || manner.unscale),
            sums: outline.sums,
            transfers: transfers.clone(),
            parts: (0..outline.buckets.len()).map(part).collect(),
            actions: Vec::new(),
        };
        match manner.owners.serves(rank) {
            true if manner.asynchronous => script.actions.push(Action::Serve),
            true => script.serve(&flow),
            false if manner.pipeline.is_some() => script.compute_stage(manner, outline, &flow),
            false => script.compute(manner, outline, &flow),
        }
        match manner.relaxed {
            _ if manner.asynchronous => {}
            Some(turn) => script.update_own(manner, &flow, turn),
            None => match outline.summed_in(manner) {
                Some(windows) => script.update_from(windows, manner, outline, &flow),
                None => script.update(manner, outline, &flow),
            },
        }
        script
    };
    ranks.into_iter().map(script).collect()
}

/// What the ranks of a node do: of each, whether it serves, and of which buckets it has a part.
type Does = Vec<(bool, Vec<bool>)>;

/// Ranks that stand for all: nodes whose ranks do the same actions are rehearsed as few of them, with every rank that
/// has most to update of a bucket, or of all. Where shares are even that is one node of each kind, and their times are
/// those of all; where they differ by a cache line, the slowest rank is among them but for what that takes.
pub fn representatives(manner: &Manner, buckets: usize, share: Share) -> Vec<usize> {
    let (owners, seats) = (manner.owners, Seat::all(&manner.nodes));
    let owned = |rank: usize| -> Vec<usize> {
        (0..buckets).map(|bucket| owners.owned(bucket, rank, seats[rank], share).len()).collect()
    };
    let mut nodes: Vec<Vec<usize>> = vec![Vec::new(); manner.nodes.iter().max().map_or(0, |last| last + 1)];
    manner.nodes.iter().enumerate().for_each(|(rank, &node)| nodes[node].push(rank));
    // Of each kind of node: for every bucket, and for all, the most bytes and where they are.
    let mut kinds: HashMap<Does, Vec<(usize, usize)>> = HashMap::new();
    for (node, ranks) in nodes.iter().enumerate() {
        let bytes: Vec<Vec<usize>> = ranks.iter().map(|&rank| owned(rank)).collect();
        let does = |(&rank, bytes): (&usize, &Vec<usize>)| {
            (owners.serves(rank), bytes.iter().map(|&bytes| bytes > 0).collect())
        };
        let largest = kinds
            .entry(ranks.iter().zip(&bytes).map(does).collect())
            .or_insert_with(|| vec![(0, node); buckets + 1]);
        for bytes in bytes {
            let all = bytes.iter().sum();
            for (most, bytes) in largest.iter_mut().zip(bytes.into_iter().chain([all])) {
                *most = if bytes > most.0 { (bytes, node) } else { *most };
            }
        }
    }
    let mut wanted: Vec<usize> = kinds.into_values().flatten().map(|(_, node)| node).collect();
    wanted.sort_unstable();
    wanted.dedup();
    let mut ranks: Vec<usize> = wanted.into_iter().flat_map(|node| nodes[node].iter().copied()).collect();
    ranks.sort_unstable();
    ranks
}

/// The transfers of a data-parallel step.
struct Flow {
    /// Of each bucket: its sum, or in a gossip what comes from another rank; and where owners are apart its new
    /// parameters.
    sums: Vec<TransferId>,
    parameters: Vec<TransferId>,
    /// Where sums do not come to all in every step: of losses and hits. Where owners are apart: of norms.
    tail: Option<TransferId>,
    norms: Option<TransferId>,
    exchanges: Vec<TransferId>,
    /// Of parameters that are gathered before they are read.
    gathers: Vec<TransferId>,
    /// In a pipeline: each edge for each micro-batch in flight.
    edges: Vec<Vec<TransferId>>,
}

impl Flow {
    /// All ranks have the same ones in the same order.
    fn new(manner: &Manner, outline: &Outline) -> (Flow, Vec<Transfer>) {
        let (owners, ranks, end) = (manner.owners, manner.mesh.data, outline.sums);
        let (apart, gradients) = (owners.are_apart(), end.saturating_sub(TAIL));
        let whole = outline.buckets.last().map_or(0, |bucket| bucket.bytes.end).saturating_sub(TAIL);
        // Whether some ranks have other parameters: other layers, or other parts of them.
        let cut = manner.mesh.ranks() > ranks;
        let tail_alone = apart || cut || manner.relaxed.is_some() || outline.windows.is_some();
        let [to_owners, from_owners] = match manner.asynchronous {
            true => [Kind::Push, Kind::Pull],
            false => [Kind::SumToOwners, Kind::FromOwners],
        };
        let mut transfers = Vec::new();
        let mut add_on = |axis, kind, area, cuts: Cuts| {
            let members = 0..cuts.ranks();
            transfers.push(Transfer { axis, members, kind, area, cuts });
            transfers.len() - 1
        };
        let (mut sums, mut parameters) = (Vec::new(), Vec::new());
        // All steps of a round have one list of transfers.
        let others: Vec<usize> = match manner.relaxed {
            Some(Turn::Mix { .. }) => {
                (0..).map(|hop| 1 << hop).take_while(|&places| places < ranks).collect()
            }
            _ => vec![0],
        };
        for (distance, (index, Bucket { bytes, .. })) in others
            .into_iter()
            .flat_map(|distance| outline.buckets.iter().enumerate().map(move |b| (distance, b)))
        {
            // The tail is everybody's.
            let bytes = bytes.start..if tail_alone { bytes.end.min(whole) } else { bytes.end };
            // Of what is not split all ranks have the same.
            let (axis, ranks) = match manner.mesh.tensor > 1 && bytes.start >= outline.split {
                true => (Axis::Job, manner.mesh.ranks()),
                false => (Axis::Data, ranks),
            };
            let cuts = owners.cuts(index, &bytes, ranks, outline.share);
            let mut add = |kind, area, cuts| add_on(axis, kind, area, cuts);
            if distance > 0 {
                let id = add(Kind::Mix { distance }, Area::Of(Region::Parameters), cuts);
                sums.extend((manner.relaxed == Some(Turn::Mix { distance })).then_some(id));
                continue;
            }
            let summed = match outline.summed_in(manner) {
                Some(windows) => cuts.moved(windows.gradients[index].bytes.start),
                None => cuts.clone(),
            };
            if apart {
                sums.push(add(to_owners, Area::Sums, summed));
                if outline.windows.is_none_or(|windows| windows.gathers.is_empty()) {
                    parameters.push(add(from_owners, Area::Of(Region::Parameters), cuts));
                }
            } else {
                sums.push(add(Kind::Sum, Area::Sums, summed));
            }
        }
        let gather = |gathered: &Gathered| {
            let bytes = learned(&outline.buckets[gathered.bucket], whole + TAIL);
            let cuts = owners.cuts(gathered.bucket, &bytes, ranks, outline.share);
            let area = if manner.micro_steps > 1 { Area::Of(Region::Gradients) } else { Area::Sums };
            add_on(Axis::Data, Kind::FromOwners, area, cuts.moved(gathered.bytes.start))
        };
        let gathers = outline.windows.iter().flat_map(|windows| &windows.gathers).map(gather).collect();
        // Servers have no statistics. A rank that is rehearsed alone has no neighbours.
        let computing = (0..ranks).filter(|&rank| !owners.serves(rank)).count();
        let (over, most) = match manner.mesh.tensor {
            1 => (Axis::Data, computing),
            all => (Axis::Tensor, all),
        };
        let gather = |(_, rows, kind, ranks): &(usize, Range<usize>, Kind, usize)| {
            add_on(over, *kind, Area::Of(Region::Arena), Cuts::even(rows, most.min(*ranks)))
        };
        let exchanges = outline.exchanges.iter().map(gather).collect();
        // Of all stages, where there are some.
        let (all, axis) = if cut { (manner.mesh.ranks(), Axis::Job) } else { (ranks, Axis::Data) };
        // With the last bucket it would be the last owner's: so it is added up in the same order.
        let tail = (tail_alone && !manner.asynchronous)
            .then(|| add_on(axis, Kind::Sum, Area::Sums, Cuts::whole(&(gradients..end), all, all - 1)));
        let normed = (apart || cut) && !manner.asynchronous && (manner.clip || manner.unscale);
        let norms = normed.then(|| add_on(axis, Kind::Gather, Area::Norms, Cuts::even(&(0..8 * all), all)));
        let edges = outline.edges.iter().map(|edge| {
            let of = |context| {
                let start = edge.place.offset + outline.contexts.shift(edge.place.offset, context);
                // In whole numbers of four bytes, as all messages are: memory between two tensors is nobody's.
                let bytes = start..start + edge.place.bytes.next_multiple_of(4);
                let kind = match edge.sends {
                    true => Kind::Send { to: edge.peer, tag: edge.number },
                    false => Kind::Receive { from: edge.peer, tag: edge.number },
                };
                let cuts = Cuts::whole(&bytes, manner.mesh.pipeline, edge.peer);
                add_on(Axis::Pipeline, kind, Area::Of(Region::Arena), cuts)
            };
            (0..outline.contexts.count).map(of).collect()
        });
        let edges = edges.collect();
        (Flow { sums, parameters, tail, norms, exchanges, gathers, edges }, transfers)
    }
}

impl Script {
    /// Reads, forward and backward passes, and the sums that leave in them.
    fn compute(&mut self, manner: &Manner, outline: &Outline, flow: &Flow) {
        let end = outline.steps;
        if let Some(Turn::Mix { .. }) = manner.relaxed {
            self.actions.extend(flow.sums.iter().map(|&id| Action::Start(id)));
        }
        for micro in 0..manner.micro_steps {
            self.actions.push(Action::Read { micro });
            let last = micro + 1 == manner.micro_steps;
            // What happens after a step, in this order.
            let mut after: Vec<(usize, Vec<Action>)> = Vec::new();
            for ((step, ..), &id) in outline.exchanges.iter().zip(&flow.exchanges) {
                after.push((*step, vec![Action::Start(id), Action::Wait(id)]));
            }
            let windows = outline.summed_in(manner);
            after.extend(outline.forward.checked_sub(1).map(|last| (last, vec![Action::Losses { micro }])));
            // Losses are read late: a device with a queue would run dry while the host waits for them. But they are
            // read before parameters change.
            let read = if windows.is_some() { outline.forward.saturating_sub(1) } else { end - 1 };
            after.push((end - 1, vec![Action::Prefetch { micro }]));
            after.push((read, vec![Action::Metrics { micro }]));
            if manner.shards {
                after.push((end - 1, vec![Action::Statistics { micro }]));
            }
            match outline.windows {
                _ if manner.micro_steps == 1 => {}
                None => after.push((end - 1, vec![Action::Accumulate { micro, pass: 0 }])),
                Some(windows) => after.extend(outline.buckets.iter().enumerate().map(|(pass, bucket)| {
                    let pad = windows.padding(pass);
                    (bucket.after, pad.chain([Action::Accumulate { micro, pass }]).collect())
                })),
            }
            if last && manner.asynchronous {
                after.push((end - 1, Self::push(manner, flow)));
            } else if last {
                after.push((end - 1, vec![Action::Tail]));
                // What ranks with parameters of their own add up comes when these are updated.
                let sums = if manner.relaxed.is_some() { &[][..] } else { &flow.sums };
                let (asks_early, mut unread) = (self.asks_early(manner, outline), 0);
                for (index, (bucket, &id)) in outline.buckets.iter().zip(sums).enumerate() {
                    let early = manner.micro_steps == 1 && manner.overlap;
                    let ready = if early { bucket.after } else { end - 1 };
                    let ready = windows.map_or(ready, |windows| windows.gradients[index].ready);
                    let pad = windows.into_iter().flat_map(|windows| windows.padding(index));
                    after.push((ready, pad.chain([Action::Start(id)]).collect()));
                    if asks_early {
                        // In the order of buckets, which is that in which owners send.
                        unread = unread.max(ready).max(outline.last_readers[index]);
                        after.push((unread, vec![Action::Start(flow.parameters[index])]));
                    }
                }
                flow.tail.iter().for_each(|&id| after.push((end - 1, vec![Action::Start(id)])));
            }
            after.sort_by_key(|(step, _)| *step);
            // New parameters are awaited before their first reader.
            let mut before: Vec<(usize, Vec<Action>)> = match micro {
                0 => outline.readers.iter().copied().zip(waits(&flow.parameters)).collect(),
                _ => Vec::new(),
            };
            before.sort_unstable_by_key(|(step, actions)| (*step, first_transfer(actions)));
            if let Some(windows) = windows {
                let in_time = windows.gradients.iter().enumerate().take(windows.freed_in_time(end));
                before.extend(
                    in_time.map(|(index, window)| (window.freed, self.sum_comes(index, manner, flow))),
                );
            }
            before.extend(outline.windows.iter().flat_map(|windows| windows.gathering(&flow.gathers)));
            before.sort_by_key(|(step, _)| *step);
            self.run(micro, 0..end, before, after);
        }
    }

    /// Whether this rank lets new parameters come as soon as no step reads the old ones, while it still computes: it
    /// owns none itself, and its owners answer buckets as they come. Ranks that ask late hold them up. Ranks that have
    /// parameters in common ask when all of their node are through.
    fn asks_early(&self, manner: &Manner, outline: &Outline) -> bool {
        let owns = self.parts.iter().any(|part| !part.bytes.is_empty());
        let waits = manner.clip || manner.unscale || manner.in_common;
        let at_once = manner.micro_steps == 1 && manner.overlap && outline.windows.is_none();
        let all_are_read = outline.readers.iter().all(|&reader| reader < outline.steps);
        let answers = self.owners.are_apart() && !self.owners.are_all_apart(manner.mesh.data);
        answers && !owns && !waits && at_once && all_are_read
    }

    /// A stage's passes in the order of its schedule, what comes and goes with them, and the sums that leave behind the
    /// last one. What lies in a context belongs to messages from the first pass of a micro-batch to that of the next
    /// one in that context. New parameters are awaited before their first reader, as in a network that is not cut.
    fn compute_stage(&mut self, manner: &Manner, outline: &Outline, flow: &Flow) {
        let Some((stage, schedule)) = manner.pipeline else { return };
        let (stages, micro_batches) = (manner.mesh.pipeline, manner.micro_steps);
        let mut leaving: Vec<Vec<TransferId>> = vec![Vec::new(); outline.contexts.count];
        for work in schedule.order(stage, stages, micro_batches) {
            let context = work.micro % outline.contexts.count;
            if work.phase == Phase::Forward && work.chunk == stage {
                self.actions.extend(leaving[context].drain(..).map(Action::Wait));
                let comes = outline.edges.iter().zip(&flow.edges).filter(|(edge, _)| !edge.sends);
                self.actions.extend(comes.map(|(_, ids)| Action::Start(ids[context])));
                self.actions.extend(outline.ends[0].then_some(Action::Read { micro: work.micro }));
            }
            self.pass(manner, outline, flow, work, &mut leaving[context]);
        }
        self.actions.extend(leaving.into_iter().flatten().map(Action::Wait));
        let unread =
            outline.readers.iter().zip(&flow.parameters).filter(|(reader, _)| **reader >= outline.steps);
        self.actions.extend(unread.map(|(_, &id)| Action::Wait(id)));
        self.actions.push(Action::Tail);
        if manner.micro_steps > 1 || !manner.overlap {
            self.actions.extend(flow.sums.iter().map(|&id| Action::Start(id)));
        }
        self.actions.extend(flow.tail.map(Action::Start));
    }

    /// One of them.
    fn pass(
        &mut self,
        manner: &Manner,
        outline: &Outline,
        flow: &Flow,
        ChunkPass { chunk, phase, micro }: ChunkPass,
        leaving: &mut Vec<TransferId>,
    ) {
        let is_it = |pass: &&Pass| (pass.chunk, pass.phase) == (chunk, phase);
        let Some(Pass { steps, .. }) = outline.passes.iter().find(is_it) else { return };
        let context = micro % outline.contexts.count;
        let edges = outline.edges.iter().zip(&flow.edges).filter(|(edge, _)| steps.contains(&edge.step));
        let mut before: Vec<(usize, Vec<Action>)> = Vec::new();
        let mut after: Vec<(usize, Vec<Action>)> = Vec::new();
        for (edge, ids) in edges {
            match edge.sends {
                true => {
                    after.push((edge.step, vec![Action::Start(ids[context])]));
                    leaving.push(ids[context]);
                }
                false => before.push((edge.step, vec![Action::Wait(ids[context])])),
            }
        }
        if micro == 0 {
            let renewed = outline.readers.iter().copied().zip(waits(&flow.parameters));
            before.extend(renewed.filter(|(reader, _)| steps.contains(reader)));
        }
        for ((step, ..), &id) in outline.exchanges.iter().zip(&flow.exchanges) {
            if steps.contains(step) {
                after.push((*step, vec![Action::Start(id), Action::Wait(id)]));
            }
        }
        if phase != Phase::Forward && manner.micro_steps == 1 && manner.overlap {
            let ready = outline.buckets.iter().zip(&flow.sums);
            let ready = ready.filter(|(bucket, _)| steps.contains(&bucket.after));
            after.extend(ready.map(|(bucket, &id)| (bucket.after, vec![Action::Start(id)])));
        }
        before.sort_unstable_by_key(|(step, actions)| (*step, first_transfer(actions)));
        after.sort_by_key(|(step, _)| *step);
        self.run(micro, steps.clone(), before, after);
        let backward = || outline.passes.iter().filter(|pass| pass.phase != Phase::Forward);
        match phase {
            Phase::Forward if outline.ends[1] && backward().all(|pass| pass.chunk <= chunk) => {
                self.actions.extend([Action::Losses { micro }, Action::Metrics { micro }]);
            }
            Phase::Backward | Phase::Weights if manner.micro_steps > 1 => {
                let pass = backward().position(|pass| is_it(&pass));
                self.actions.extend(pass.map(|pass| Action::Accumulate { micro, pass }));
            }
            _ => {}
        }
    }

    /// Some steps, with what comes before and after some of them.
    fn run(
        &mut self,
        micro: usize,
        steps: Range<usize>,
        before: Vec<(usize, Vec<Action>)>,
        after: Vec<(usize, Vec<Action>)>,
    ) {
        let (mut before, mut after) = (before.into_iter().peekable(), after.into_iter().peekable());
        let mut start = steps.start;
        let cut = |actions: &mut Vec<Action>, start: &mut usize, at: usize| {
            if *start < at {
                actions.push(Action::Run { steps: *start..at, micro });
                *start = at;
            }
        };
        for step in steps.clone() {
            while let Some((_, actions)) = before.next_if(|(reader, _)| *reader == step) {
                cut(&mut self.actions, &mut start, step);
                self.actions.extend(actions);
            }
            while let Some((_, actions)) = after.next_if(|(behind, _)| *behind == step) {
                cut(&mut self.actions, &mut start, step + 1);
                self.actions.extend(actions);
            }
        }
        cut(&mut self.actions, &mut start, steps.end);
        self.actions.extend(before.flat_map(|(_, actions)| actions));
    }

    /// A step's gradients go to their owners, and new parameters are asked for. They are the rank's own: so is their
    /// norm.
    fn push(manner: &Manner, flow: &Flow) -> Vec<Action> {
        let clip = manner.clip.then_some([Action::Norm, Action::Clip]);
        let starts = flow.sums.iter().chain(&flow.parameters).map(|&id| Action::Start(id));
        let ends = flow.sums.iter().map(|&id| Action::Wait(id));
        let knocked = clip.into_iter().flatten().chain([Action::Knock]);
        knocked.chain(starts).chain([Action::Hear]).chain(ends).collect()
    }

    /// A rank without a graph: it waits for its parameters to have left, and for sums.
    fn serve(&mut self, flow: &Flow) {
        self.actions.extend(flow.parameters.iter().map(|&id| Action::Wait(id)));
        self.actions.push(Action::Tail);
        self.actions.extend(flow.sums.iter().chain(&flow.tail).map(|&id| Action::Start(id)));
    }

    /// Sums come in, parts are updated, and where owners are apart new parameters leave. Where every rank is an owner,
    /// those leave first that the next forward pass reads first: the others come while it computes. Rank 0 and servers
    /// send in the order in which sums come, since their links carry both ways at a time. So do owners whose devices
    /// copy all parameters in halves for the first reader: that one waits for all.
    fn update(&mut self, manner: &Manner, outline: &Outline, flow: &Flow) {
        let shared = manner.in_common;
        let late = manner.clip || manner.unscale;
        if shared {
            self.actions.push(Action::Arrive);
        }
        let mut read = shared;
        let mut order: Vec<usize> = (0..flow.sums.len()).collect();
        if manner.owners.are_all_apart(manner.mesh.data) && !outline.copies {
            order.reverse();
        }
        // While the steps ran.
        let asked = flow.parameters.first().is_some_and(|&id| self.actions.contains(&Action::Start(id)));
        for &index in &order {
            self.actions.push(Action::Wait(flow.sums[index]));
            if !late && !asked {
                // The others of the node still read what is written now.
                self.actions.extend(std::mem::take(&mut read).then_some(Action::Await { updated: false }));
                self.new_parameters(index, manner, flow);
            }
        }
        if late {
            self.scale(manner, flow);
            self.actions.extend(read.then_some(Action::Await { updated: false }));
            order.into_iter().for_each(|index| self.new_parameters(index, manner, flow));
        }
        self.actions.extend(flow.tail.map(Action::Wait));
        // Else new parameters are awaited.
        if shared && !manner.owners.are_apart() {
            self.actions.extend([Action::Arrive, Action::Await { updated: true }]);
        }
    }

    /// Where sums come in windows: those behind the last step, and what is left to do with those before it. Whoever has
    /// started all sums reads the old parameters no more, so that the ranks of a node need no barrier.
    fn update_from(&mut self, windows: &Windows, manner: &Manner, outline: &Outline, flow: &Flow) {
        for index in windows.freed_in_time(outline.steps)..flow.sums.len() {
            let actions = self.sum_comes(index, manner, flow);
            self.actions.extend(actions);
        }
        if self.keeps {
            self.scale(manner, flow);
            (0..flow.sums.len()).for_each(|index| self.new_parameters(index, manner, flow));
        }
        self.actions.extend(flow.tail.map(Action::Wait));
    }

    /// What is done with a sum in a window, which then is free: an update, unless that wants all sums.
    fn sum_comes(&self, index: usize, manner: &Manner, flow: &Flow) -> Vec<Action> {
        let mut actions = vec![Action::Wait(flow.sums[index])];
        match self.keeps {
            true if self.parts[index].bytes.is_empty() => {}
            true => actions.push(Action::Keep(index)),
            false => actions.extend(self.renewed(index, manner, flow)),
        }
        actions
    }

    /// A rank with parameters of its own updates them by its own gradients, and meets the others if it is time.
    fn update_own(&mut self, manner: &Manner, flow: &Flow, turn: Turn) {
        self.scale(manner, flow);
        let all = 0..self.parts.len();
        if let Turn::Mix { .. } = turn {
            let mix = |part| [Action::Wait(flow.sums[part]), Action::Mix(part), Action::Update(part)];
            self.actions.extend(all.flat_map(mix));
            self.actions.extend(flow.tail.map(Action::Wait));
            return;
        }
        self.actions.extend(all.clone().map(Action::Update));
        if turn != Turn::Alone {
            for part in all.clone() {
                self.actions.push(Action::Drift(part));
                self.actions.extend((turn == Turn::Elastic).then_some(Action::Pull(part)));
                self.actions.push(Action::Start(flow.sums[part]));
            }
            self.actions.extend(all.flat_map(|part| [Action::Wait(flow.sums[part]), Action::Meet(part)]));
            self.actions.extend((turn == Turn::Anchor { resets: true }).then_some(Action::Forget));
        }
        self.actions.extend(flow.tail.map(Action::Wait));
    }

    /// What is done to gradients when all of them are there. Where owners are apart, norms go between ranks, and a
    /// broken gradient makes a broken norm.
    fn scale(&mut self, manner: &Manner, flow: &Flow) {
        self.actions.extend(manner.unscale.then_some(Action::Unscale));
        if let Some(norms) = flow.norms {
            self.actions.extend([Action::Norm, Action::Start(norms), Action::Wait(norms)]);
        }
        self.actions.extend(manner.unscale.then_some(Action::Check));
        if manner.clip {
            self.actions.extend(flow.norms.is_none().then_some(Action::Norm));
            self.actions.push(Action::Clip);
        }
    }

    fn new_parameters(&mut self, index: usize, manner: &Manner, flow: &Flow) {
        let actions = self.renewed(index, manner, flow);
        self.actions.extend(actions);
    }

    fn renewed(&self, index: usize, manner: &Manner, flow: &Flow) -> Vec<Action> {
        let mut actions = Vec::new();
        if !self.parts[index].bytes.is_empty() {
            actions.push(Action::Update(index));
            actions.extend(manner.average.then_some(Action::Average(index)));
        }
        actions.extend(flow.parameters.get(index).map(|&id| Action::Start(id)));
        actions
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

    /// Which actions there are and how many, in a line; and what they send.
    pub fn summary(&self) -> String {
        let count = |of: fn(&Action) -> bool| self.actions.iter().filter(|action| of(action)).count();
        format!(
            "{} actions: {} runs of steps, {} transfers, {} updates; {}; a rank sends {} or more",
            self.actions.len(),
            count(|action| matches!(action, Action::Run { .. })),
            count(|action| matches!(action, Action::Start(_))),
            count(|action| matches!(action, Action::Update(_))),
            self.owners,
            show(self.bytes_sent()),
        )
    }

    /// An action in words, by its number.
    pub fn describe(&self, action: usize) -> String {
        let text = match &self.actions[action] {
            Action::Read { micro } => format!("read the images of micro-step {micro}"),
            Action::Run { steps, micro } => {
                format!("run steps {}–{} of micro-step {micro}", steps.start, steps.end - 1)
            }
            Action::Start(id) => format!("start {}", self.named(*id)),
            Action::Wait(id) => format!("wait for {}", self.named(*id)),
            Action::Spread(id) => format!("copy this rank's part of transfer {id} to its window"),
            Action::Pad(bucket) => format!("zero what lies between the gradients of bucket {bucket}"),
            Action::Keep(part) => format!("keep the sum of {}", self.parts[*part]),
            Action::Losses { micro } => format!("send the losses of micro-step {micro} to the host"),
            Action::Prefetch { micro } => format!("send the images behind micro-step {micro} to the device"),
            Action::Accumulate { micro, pass: 0 } => format!("add up the gradients of micro-step {micro}"),
            Action::Accumulate { micro, pass } => {
                format!("add up the gradients of micro-step {micro}, backward pass {pass}")
            }
            Action::Statistics { micro } => format!("take the running statistics of micro-step {micro}"),
            Action::Metrics { micro } => format!("read the losses of micro-step {micro}"),
            Action::Tail => "write losses, hits and flags to the tail".into(),
            Action::Unscale => "unscale the gradients".into(),
            Action::Check => "check that no gradient was broken".into(),
            Action::Norm => "compute the norm of the gradients".into(),
            Action::Clip => "clip the gradients".into(),
            Action::Update(part) => format!("update {}", self.parts[*part]),
            Action::Average(part) => format!("average {}", self.parts[*part]),
            Action::Drift(part) => format!("compute the way from the anchor of {}", self.parts[*part]),
            Action::Pull(part) => format!("draw towards the anchor {}", self.parts[*part]),
            Action::Meet(part) => format!("move the anchor of {}", self.parts[*part]),
            Action::Mix(part) => format!("average with another rank's {}", self.parts[*part]),
            Action::Forget => "forget the optimizer's state".into(),
            Action::Arrive => "arrive at the barrier of the node".into(),
            Action::Await { updated: false } => {
                "wait at the barrier for the node's ranks to have read the parameters".into()
            }
            Action::Await { updated: true } => {
                "wait at the barrier for the node's ranks to have updated theirs".into()
            }
            Action::Knock => "tell the first server losses, hits and flags".into(),
            Action::Hear => "hear from it those of all ranks".into(),
            Action::Serve => "take a push of every rank, update by it and answer it".into(),
        };
        format!("{action} ({text})")
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

    fn named(&self, id: TransferId) -> String {
        format!("transfer {id}, {}", self.transfers[id])
    }

    /// All actions, one a line.
    pub fn lines(&self) -> String {
        (0..self.actions.len()).fold(String::new(), |mut text, action| {
            let _ = writeln!(text, "  {}", self.describe(action));
            text
        })
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
    pub(super) fn bytes_sent(&self, place: usize, wire: Wire) -> usize {
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

impl fmt::Display for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Sum => "sum".to_string(),
            Kind::SumToOwners => "sum to owners".to_string(),
            Kind::FromOwners => "from owners".to_string(),
            Kind::Push => "push".to_string(),
            Kind::Pull => "pull".to_string(),
            Kind::Gather => "gather".to_string(),
            Kind::Trade { .. } => "trade of rows".to_string(),
            Kind::AllToAll => "all to all".to_string(),
            Kind::Send { to, .. } => format!("send to place {to}"),
            Kind::Receive { from, .. } => format!("receive from place {from}"),
            Kind::Mix { distance } => format!("gossip over {distance} places"),
        };
        let axis = format!("{:?}", self.axis).to_lowercase();
        let area = match self.area {
            Area::Of(region) => format!("{region:?}").to_lowercase(),
            area => format!("{area:?}").to_lowercase(),
        };
        let range = self.cuts.range();
        write!(f, "{kind} of {area} {}..{} over {axis}", range.start, range.end)
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bytes {}..{} of bucket {}", self.bytes.start, self.bytes.end, self.bucket)
    }
}
