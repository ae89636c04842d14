//! The plan: everything about a training step that can be decided before the first one.
//!
//! A graph and a device become a list of steps, each a compiled kernel with a fixed place in memory for every
//! operand. Activations share one arena by their lifetimes; gradients lie in the order in which they become
//! ready, so that a bucket is a slice; parameters and optimizer state use the gradients' offsets. The whole step of
//! every rank is a list of actions (`script`), which can be rehearsed before the first one (`simulate`). May use:
//! `device`, `graph`, `model`, `config`, `cuts`, `error`. Used by: `fusion`, `simulate`, `train`, `bench`.
//!
//! ```
//! # extern crate dltrain_core as dltrain;
//! use dltrain::device::reference::Reference;
//! use dltrain::device::{Device, Memory, Scalars};
//! use dltrain::graph::{Builder, Conv};
//! use dltrain::plan::{Options, Regions, plan};
//!
//! let (mut net, x) = Builder::new("tiny", 2, [1, 8, 8]);
//! let x = net.conv("conv", x, 4, Conv::square(3))?;
//! let logits = net.linear("fc", x, 10);
//! let graph = net.finish(logits).simplify().differentiate();
//!
//! // Everything is decided here: order, memory, buckets of at least a megabyte.
//! let plan = plan(graph, &Reference, &Options::whole(1 << 20))?;
//! assert_eq!((plan.forward_steps, plan.buckets.len()), (3, 1));
//!
//! // Bound to memory it can run. All of it is zero: every class has the same score, and the loss is ln 10.
//! let [parameters, gradients] = [plan.sizes.parameters, plan.sizes.gradients].map(Memory::host);
//! let regions = Regions::new(&plan.sizes, parameters?, gradients?, Memory::host)?;
//! let mut program = plan.bind(&regions)?;
//! let scalars = Scalars { gradient_scale: 1.0 / 2.0, ..Scalars::default() };
//! for step in &mut program.steps {
//!     step.run(&scalars)?;
//! }
//! let mut loss = vec![0; program.losses.bytes()];
//! Reference.download(&program.losses, &mut loss)?;
//! assert_eq!(loss[..4], 10f32.ln().to_ne_bytes());
//! # Ok::<(), dltrain::error::Error>(())
//! ```

mod arena;
mod balance;
mod bucket;
mod compile;
mod describe;
mod ledger;
mod pipeline;
mod program;
mod script;
pub(crate) mod stage;
pub(crate) mod windows;

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use crate::device::memory::ALIGNMENT;
use crate::device::{Kernel, Layout, Memory, Rule, Span};
use crate::error::{Error, Result};
use crate::files::fnv1a;
use crate::graph::{Graph, Init, NodeId, NormStatistics, Op, Rows, Shape, Shard, Spec, Strip};

pub use bucket::{Bucket, Ready, TAIL};
pub use compile::{Compiled, Options, plan};
pub use describe::{
    Sizes, bytes as describe_bytes, flops as describe_flops, group, seconds as describe_seconds,
};
pub use ledger::{Ledger, MemoryKind};
pub use pipeline::{ChunkPass, Phase};
pub use program::{Exchange, Program, Regions, has_not_finite};
pub use script::{
    Action, Area, Axis, Kind, Line, Manner, Outline, Part, Script, Transfer, TransferId, Turn,
    representatives, scripts,
};
pub use stage::{Contexts, Edge, Pass, Stage, Stages};
pub use windows::{Gathered, Turns, Window, Windows};

/// A memory region of a rank's device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Region {
    /// Activations and whatever else lives only within a step.
    Arena,
    /// Images and labels.
    Inputs,
    /// Losses and hits.
    Metrics,
    /// What is learned.
    Parameters,
    /// Running statistics.
    Statistics,
    /// What nothing changes.
    Constants,
    /// What ranks reduce; in windows also parameters that they gather.
    Gradients,
}

/// Where a tensor lies: bytes from the start of its region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Location {
    /// The region.
    pub region: Region,
    /// First byte in the region.
    pub offset: usize,
    /// How many bytes it has.
    pub bytes: usize,
}

/// One kernel and its operands.
pub struct PlannedStep<P = Location> {
    /// Layer and op, for tables and error messages.
    pub label: String,
    /// `None` for a reorder that the plan put in.
    pub node: Option<NodeId>,
    /// The compiled op.
    pub kernel: Rc<Kernel>,
    /// Where its inputs lie.
    pub inputs: Vec<P>,
    /// Where its outputs lie.
    pub outputs: Vec<P>,
}

impl PlannedStep {
    /// Bytes that it reads of each input.
    pub fn bytes_read(&self) -> impl Iterator<Item = usize> + '_ {
        let halved = self.kernel.halved;
        let of = move |(input, place): (usize, &Location)| match halved == Some(input) {
            true => place.bytes / 2,
            false => place.bytes,
        };
        self.inputs.iter().enumerate().map(of)
    }
}

/// A learned tensor: its layout is that of its gradient, its offset counts in both regions. Frozen ones lie behind all
/// others, where there are no gradients.
#[derive(Debug, Clone)]
pub struct Parameter {
    /// Its name, as PyTorch has it.
    pub name: String,
    /// Shape and type.
    pub spec: Spec,
    /// How its elements lie.
    pub layout: Layout,
    /// Bytes from the start of the parameters, the gradients and each region of optimizer state.
    pub offset: usize,
    /// How it starts.
    pub init: Init,
    /// Whether it has weight decay.
    pub decay: bool,
    /// Whether it is left as it is.
    pub frozen: bool,
    /// Where ranks have unlike parts of it: which this is.
    pub shard: Option<Shard>,
}

impl Parameter {
    /// The shape that it has in files, which know of no parts.
    pub fn whole(&self) -> Shape {
        self.shard.map_or(self.spec.shape.clone(), |shard| shard.whole(&self.spec.shape))
    }

    /// Its part of a region that has the parameters' offsets.
    pub fn of(&self, region: &Memory) -> Memory {
        region.slice(self.offset, self.layout.bytes())
    }
}

/// A running statistic, in the plain layout.
#[derive(Debug, Clone)]
pub struct Statistic {
    /// Its name, as PyTorch has it.
    pub name: String,
    /// Shape and type.
    pub spec: Spec,
    /// Where it lies.
    pub place: Location,
    /// How it starts.
    pub init: Init,
}

impl Statistic {
    /// Its part of the region of statistics.
    pub fn of(&self, region: &Memory) -> Memory {
        region.slice(self.place.offset, self.place.bytes)
    }
}

/// Numbers that nothing changes, in the plain layout.
#[derive(Debug, Clone)]
pub struct Constant {
    /// Last dimension fastest.
    pub values: Arc<[f32]>,
    /// Where they lie.
    pub place: Location,
}

/// A step of one rank, ready to be bound to memory.
pub struct Plan {
    /// The graph as it was planned: simplified, differentiated, joined.
    pub graph: Graph,
    /// The steps in the order in which they run.
    pub steps: Vec<PlannedStep>,
    /// How many of the steps are the forward pass.
    pub forward_steps: usize,
    /// In the order of their offsets.
    pub parameters: Vec<Parameter>,
    /// What the forward pass of a training plan changes and that of an evaluation plan reads.
    pub statistics: Vec<Statistic>,
    /// What is to be written before the first step (`Regions::write_constants`).
    pub constants: Vec<Constant>,
    /// In the order of their offsets, which is that in which they become ready, but for those of parts: these come
    /// first. Empty for an evaluation plan.
    pub gradients: Vec<Ready>,
    /// In the same order.
    pub buckets: Vec<Bucket>,
    /// Bytes of the gradients of parameters of which ranks have unlike parts: the first ones.
    pub split: usize,
    /// Bytes of each region.
    pub sizes: Sizes,
    /// Where the host puts images and labels and finds losses and hits.
    pub host: HostPlaces,
    /// Where the network is cut into stages: what this one receives, then what it sends, by number.
    pub edges: Vec<Edge>,
    /// Steps that run without a pause: the forward and the backward pass, or those of each chunk.
    pub passes: Vec<Pass>,
    /// What is there once for each micro-batch in flight.
    pub contexts: Contexts,
    /// Where gradients take turns in their region.
    pub windows: Option<Windows>,
}

/// What the host writes before a step and reads behind it.
#[derive(Debug, Clone, Copy)]
pub struct HostPlaces {
    /// The images, or arrays.
    pub images: Location,
    /// The classes of the images.
    pub labels: Location,
    /// Which places hold a sample, where codes are read.
    pub samples: Option<Location>,
    /// Other labels and shares, where samples are mixed.
    pub mixed: Option<[Location; 2]>,
    /// The loss of each image.
    pub losses: Location,
    /// 1 for each image classified right, else 0.
    pub hits: Location,
    /// Probabilities of the classes, where they are asked for.
    pub probabilities: Option<Location>,
}

/// Rows of images that this rank's group tells each other behind a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trading {
    /// Which step.
    pub step: usize,
    /// Whose rows they are.
    pub layer: String,
    /// What tells these messages from others between the same two ranks.
    pub tag: usize,
    /// To which places of the group what goes.
    pub sent: Vec<(usize, Location)>,
    /// What comes from which, and where it is to lie.
    pub received: Vec<(usize, Location)>,
    /// How many places the group has.
    pub ranks: usize,
    /// Of all of them what goes from which place to which: from, to, bytes.
    pub messages: Vec<[usize; 3]>,
}

impl Trading {
    /// Bytes that this rank sends and gets.
    pub fn bytes(&self) -> [usize; 2] {
        [&self.sent, &self.received].map(|strips| strips.iter().map(|(_, place)| place.bytes).sum())
    }
}

impl Plan {
    /// Bytes of each bucket.
    pub fn bucket_bytes(&self) -> Vec<usize> {
        self.buckets.iter().map(|bucket| bucket.bytes.len()).collect()
    }

    /// Bytes of all gradients with their tail, had each a place of its own.
    pub fn all_gradients(&self) -> usize {
        self.windows.as_ref().map_or(self.sizes.gradients, |windows| windows.whole)
    }

    /// Whether parameters are gathered before they are read.
    pub fn gathers(&self) -> bool {
        self.windows.as_ref().is_some_and(|windows| !windows.gathers.is_empty())
    }

    /// Bytes of where gradients are added up over ranks: those of the windows, unless they are added up over so many
    /// micro-steps before.
    pub fn summed_bytes(&self, micro_steps: usize) -> usize {
        if micro_steps == 1 { self.sizes.gradients } else { self.all_gradients() }
    }

    /// Where in that a bucket begins.
    pub fn summed_at(&self, bucket: usize, micro_steps: usize) -> usize {
        match &self.windows {
            Some(windows) if micro_steps == 1 => windows.gradients[bucket].bytes.start,
            _ => self.buckets[bucket].bytes.start,
        }
    }

    /// Cuts the gradients into the buckets of another plan of the same gradients.
    ///
    /// # Errors
    /// `Internal` where these are others.
    pub fn cut_as(&mut self, other: &Plan) -> Result<()> {
        let places = |plan: &Plan| plan.gradients.iter().map(|(bytes, _)| bytes.clone()).collect::<Vec<_>>();
        if places(self) != places(other) {
            return Err(Error::internal("gradients have other places where parameters are gathered"));
        }
        self.buckets = bucket::cut_alike(&self.gradients, &other.buckets, self.steps.len());
        Ok(())
    }

    /// Cuts the gradients into buckets of at least so many bytes.
    pub fn cut_at(&mut self, threshold: usize) {
        self.buckets = bucket::cut(&self.gradients, self.split, threshold, self.steps.len());
    }

    /// Cuts buckets that are longer than so many bytes into slices, wherever that is in a parameter.
    pub fn slice_buckets(&mut self, most: usize) {
        self.buckets = bucket::slice(&self.buckets, most);
    }

    /// What enters the hash: every step with its operands' layouts and places, and the buckets.
    fn canonical(&self) -> String {
        let mut text = String::new();
        for step in &self.steps {
            let layouts = (&step.kernel.inputs, &step.kernel.outputs);
            text += &format!("{} {layouts:?} {:?} {:?}\n", step.label, step.inputs, step.outputs);
        }
        text += &format!("{:?}\n", self.buckets);
        if !self.edges.is_empty() {
            text += &format!("{:?} {:?} {:?}\n", self.edges, self.passes, self.contexts);
        }
        if let Some(windows) = &self.windows {
            text += &format!("{windows:?}\n");
        }
        text
    }

    /// Equal on two ranks when their steps, layouts, memory and buckets are equal (FNV-1a, 64 bits).
    pub fn hash(&self) -> u64 {
        fnv1a(self.canonical().bytes())
    }

    /// The parameters within these bytes as runs that the optimizer updates alike: long ones, or one a parameter where
    /// the rule needs norms.
    pub fn spans(&self, bytes: &Range<usize>, rule: &Rule) -> Vec<Span> {
        let mut spans: Vec<Span> = Vec::new();
        for parameter in self.parameters.iter().filter(|p| !p.frozen) {
            let end = bytes.end.min(parameter.offset + parameter.layout.bytes()) / 4;
            let start = bytes.start.max(parameter.offset) / 4;
            match spans.last_mut() {
                _ if start >= end => {}
                // The gap between two parameters is alignment: zeros, which every rule leaves zero.
                Some(last) if !rule.has_trust() && last.decay == parameter.decay => {
                    last.length = end - last.start
                }
                _ => spans.push(Span { start, length: end - start, decay: parameter.decay }),
            }
        }
        spans
    }

    /// The bytes of a bucket's parameters that rank `rank` of `ranks` updates where they divide the work: as many for
    /// each, in whole cache lines, or in whole parameters where the rule needs their norms.
    pub fn share(&self, bucket: &Bucket, rule: &Rule, rank: usize, ranks: usize) -> Range<usize> {
        let (start, end) = (bucket.bytes.start, bucket.bytes.end.min(self.all_gradients() - TAIL));
        let cut = |index: usize| {
            let even = start + (end - start) * index / ranks;
            if index == ranks {
                end
            } else if rule.has_trust() {
                let behind = |p: &&Parameter| p.offset >= start && p.offset + p.layout.bytes() / 2 >= even;
                self.parameters.iter().find(behind).map_or(end, |parameter| parameter.offset.min(end))
            } else {
                even / ALIGNMENT * ALIGNMENT
            }
        };
        cut(rank)..cut(rank + 1)
    }

    /// How a step exchanges something with other ranks, and with how many, if it does.
    fn exchanging(&self, step: &PlannedStep) -> Option<(Kind, usize)> {
        match self.graph.node(step.node?).op {
            Op::Exchange { ranks, .. } => Some((Kind::Gather, ranks)),
            Op::AllToAll { ranks } => Some((Kind::AllToAll, ranks)),
            _ => None,
        }
    }

    /// What becomes of what a step exchanges where ranks have unlike many rows of images.
    fn evened_out(&self, step: &PlannedStep) -> Option<(NormStatistics, Rows)> {
        match self.graph.node(step.node?).op {
            Op::Exchange { rows, .. } => rows,
            _ => None,
        }
    }

    /// Rows of images that ranks of a group tell each other, in the order of the steps behind which they do.
    pub fn trades(&self) -> Vec<Trading> {
        let of = |(index, step): (usize, &PlannedStep)| {
            let node = self.graph.node(step.node?);
            let Op::Trade(trade) = node.op else { return None };
            let [sent, received] = trade.strips();
            let placed = |strips: Vec<Strip>, places: &[Location]| {
                strips.iter().zip(places).map(|(strip, place)| (strip.peer, *place)).collect()
            };
            let rows: usize = sent.iter().chain(&received).map(|strip| strip.rows.len()).sum();
            let places = step.inputs.iter().chain(&step.outputs);
            let bytes: usize = places.map(|place| place.bytes).sum();
            Some(Trading {
                step: index,
                layer: node.name.clone(),
                tag: trade.tag(),
                sent: placed(sent, &step.inputs),
                received: placed(received, &step.outputs),
                ranks: trade.halo.rows.parts,
                messages: trade
                    .messages()
                    .map(|[from, to, count]| [from, to, count * bytes / rows])
                    .collect(),
            })
        };
        self.steps.iter().enumerate().filter_map(of).collect()
    }

    /// Whether only ranks that have the same parts of split layers add up a bucket.
    pub fn is_split(&self, bucket: usize) -> bool {
        self.buckets[bucket].bytes.start < self.split
    }

    /// The parameter of this name.
    pub fn parameter(&self, name: &str) -> Result<&Parameter> {
        let found = self.parameters.iter().find(|parameter| parameter.name == name);
        found.ok_or_else(|| Error::internal(format!("no parameter {name}")))
    }
    /// The running statistic of this name.
    pub fn statistic(&self, name: &str) -> Result<&Statistic> {
        let found = self.statistics.iter().find(|statistic| statistic.name == name);
        found.ok_or_else(|| Error::internal(format!("no statistic {name}")))
    }
}
