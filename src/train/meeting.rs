//! Ranks with parameters of their own (`strategy::Relaxed`): the anchor that all have alike, what is done when they
//! meet, and the mean of all, which an evaluation reads.
//!
//! A pseudo-gradient is what an update takes off the anchor to come to the parameters, so that the step of the anchor
//! is one of the optimizers. All of it is made of what every device has: copies and updates.

use std::ops::Range;

use super::asynchronous::Side;
use super::evaluate::means;
use super::memory::Memories;
use crate::comm::World;
use crate::device::memory::{bytes_of, bytes_of_mut};
use crate::device::{Device, Memory, Rule, Scalars, Step, Updated};
use crate::error::Result;
use crate::plan::{Plan, TAIL};
use crate::strategy::{ModelAveraging, Relaxed};

/// What ranks do that do not all have the same parameters in every step.
pub struct RelaxedWays {
    /// Where ranks have parameters of their own: what they do when they meet.
    pub meetings: Option<Meetings>,
    /// Where updates are asynchronous: what this rank does with pushes, and whether all ranks do something together
    /// behind the next step.
    pub asynchronous: Option<Side>,
    pub drains: bool,
}

/// Numbers that go between ranks at a time when their mean is made.
const PIECE: usize = 1 << 20;

/// Plain steps along a gradient.
const PLAIN: Rule = Rule::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.0 };

/// What the anchor's step is, of ranks that meet there.
fn outer_rule(meeting: ModelAveraging) -> Rule {
    match meeting {
        ModelAveraging::Anchor { outer, .. } => {
            Rule::Sgd { momentum: outer.momentum, nesterov: outer.nesterov, weight_decay: 0.0 }
        }
        ModelAveraging::Elastic { .. } | ModelAveraging::Gossip => PLAIN,
    }
}

/// Copies of the parameters that ranks which meet so have beside their own: the anchor, and its momentum; or what comes
/// from another rank.
fn copies(relaxed: Option<Relaxed>) -> usize {
    relaxed.map_or(0, |relaxed| 1 + outer_rule(relaxed.meeting).states())
}

/// The same of those that a run needs to go on.
pub fn kept_copies(relaxed: Relaxed) -> usize {
    if relaxed.sends_parameters() { 0 } else { copies(Some(relaxed)) }
}

/// Bytes that all these copies take. A frozen parameter has no momentum and is not sent: its place in such a copy is
/// never touched, and memory of the host that is never touched takes none.
pub fn memory(relaxed: Option<Relaxed>, plan: &Plan, own_memory: bool) -> usize {
    let Some(Relaxed { meeting, .. }) = relaxed else { return 0 };
    let sizes = &plan.sizes;
    let learned =
        if own_memory { sizes.parameters } else { learned_bytes(sizes.parameters, sizes.gradients) };
    let anchor = if meeting == ModelAveraging::Gossip { learned } else { sizes.parameters };
    anchor + outer_rule(meeting).states() * learned
}

/// Bytes that a rank needs besides while it takes the mean of all: a piece of the parameters as f32, as f64, and as MPI
/// receives it.
pub fn mean_memory(relaxed: Option<Relaxed>, plan: &Plan) -> usize {
    relaxed.map_or(0, |_| {
        (4 + 8 + 8) * PIECE.min(learned_bytes(plan.sizes.parameters, plan.sizes.gradients) / 4)
    })
}

/// Bytes of the parameters that ranks may have unlike, of regions of so many bytes: what is frozen lies behind all that
/// has gradients.
fn learned_bytes(parameters: usize, gradients: usize) -> usize {
    parameters.min(gradients - TAIL)
}

/// What all ranks have alike, as large as the parameters.
pub struct Anchor {
    pub relaxed: Relaxed,
    /// Where all started from when they last met; or in a gossip what came from another rank.
    pub parameters: Memory,
    /// Its momentum, where it has any.
    pub momentum: Option<Memory>,
}

impl Anchor {
    /// `received` is where parameters of another rank come in, if they do.
    pub fn new(
        device: &dyn Device,
        relaxed: Relaxed,
        bytes: usize,
        received: Option<Memory>,
    ) -> Result<Anchor> {
        let has_momentum = outer_rule(relaxed.meeting).states() > 0;
        let momentum = has_momentum.then(|| device.allocate(bytes)).transpose()?;
        let parameters = received.map_or_else(|| device.allocate(bytes), Ok)?;
        Ok(Anchor { relaxed, parameters, momentum })
    }

    /// Whether a run needs it to go on.
    pub fn is_kept(&self) -> bool {
        kept_copies(self.relaxed) > 0
    }
}

/// What is done when ranks meet, for each bucket's part.
pub struct Meetings {
    meeting: ModelAveraging,
    ranks: usize,
    parts: Vec<Part>,
    /// In a gossip: what adds another rank's parameters to the own ones, and halves the sum.
    mixes: Vec<[Box<dyn Step>; 2]>,
    /// What the ranks' own optimizers have of each part.
    state: Vec<Memory>,
}

struct Part {
    own: Memory,
    anchor: Memory,
    drift: Memory,
    /// `drift` −= `own`.
    subtract: Box<dyn Step>,
    /// `own` moves along `drift`.
    pull: Box<dyn Step>,
    /// The sum of all ranks' `drift` becomes their mean.
    mean: Box<dyn Step>,
    /// What stands at the anchor moves along all ranks' `drift`.
    step: Box<dyn Step>,
}

impl Meetings {
    pub fn new(
        device: &dyn Device,
        plan: &Plan,
        memories: &Memories,
        ranks: usize,
    ) -> Result<Option<Meetings>> {
        let Some(anchor) = &memories.anchor else { return Ok(None) };
        let meeting = anchor.relaxed.meeting;
        let mix = |part: &Range<usize>| {
            let of = |memory: &Memory| memory.slice(part.start, part.len());
            let [own, other] = [&memories.regions.parameters, &anchor.parameters].map(of);
            Ok([device.accumulate(&other, &own)?, device.scale(&own, &device.allocate(4)?)?])
        };
        let part = |part: &Range<usize>| {
            let of = |memory: &Memory| memory.slice(part.start, part.len());
            let [own, at, drift] =
                [&memories.regions.parameters, &anchor.parameters, &memories.gradients.averaged].map(of);
            let rule = outer_rule(meeting);
            let mut spans = plan.spans(part, &PLAIN);
            spans.iter_mut().for_each(|span| span.start -= part.start / 4);
            let momentum: Vec<Memory> = anchor.momentum.iter().map(of).collect();
            // The parameters' own update is the last to write them: a device may keep them in halves beside.
            let moved = if let ModelAveraging::Anchor { .. } = meeting { &own } else { &at };
            let updated = |parameters, gradients, state| Updated { parameters, gradients, state };
            Ok(Part {
                subtract: device.update(&PLAIN, &spans, &updated(&drift, &own, &[]))?,
                pull: device.update(&PLAIN, &spans, &updated(&own, &drift, &[]))?,
                mean: device.scale(&drift, &device.allocate(4)?)?,
                step: device.update(&rule, &spans, &updated(moved, &drift, &momentum))?,
                own,
                anchor: at,
                drift,
            })
        };
        let (mut parts, mut mixes) = (Vec::new(), Vec::new());
        match meeting {
            ModelAveraging::Gossip => mixes = memories.parts.iter().map(mix).collect::<Result<_>>()?,
            _ => parts = memories.parts.iter().map(part).collect::<Result<_>>()?,
        }
        let buckets = || 0..memories.parts.len();
        let of_state = |state| buckets().map(move |bucket| memories.of_part(state, bucket));
        let state = memories.state.iter().flat_map(of_state).collect();
        Ok(Some(Meetings { meeting, ranks, parts, mixes, state }))
    }

    /// How far the parameters are from the anchor, to where gradients were.
    pub fn drift(&mut self, device: &dyn Device, part: usize, scalars: &Scalars) -> Result<()> {
        let part = &mut self.parts[part];
        device.copy(&part.anchor, &part.drift)?;
        part.subtract.run(&Scalars { learning_rate: 1.0, ..*scalars })
    }

    /// The parameters go some of the way to the anchor.
    pub fn pull(&mut self, part: usize, scalars: &Scalars) -> Result<()> {
        let ModelAveraging::Elastic { alpha } = self.meeting else { return Ok(()) };
        self.parts[part].pull.run(&Scalars { learning_rate: -alpha, ..*scalars })
    }

    /// All ranks' drifts are added up.
    pub fn meet(&mut self, device: &dyn Device, part: usize, scalars: &Scalars) -> Result<()> {
        let part = &mut self.parts[part];
        match self.meeting {
            ModelAveraging::Elastic { alpha } => part.step.run(&Scalars { learning_rate: alpha, ..*scalars }),
            ModelAveraging::Anchor { outer, .. } => {
                part.mean.run(&Scalars { rescale: 1.0 / self.ranks as f32, ..*scalars })?;
                device.copy(&part.anchor, &part.own)?;
                part.step.run(&Scalars { learning_rate: outer.rate, ..*scalars })?;
                device.copy(&part.own, &part.anchor)
            }
            ModelAveraging::Gossip => Ok(()),
        }
    }

    /// Parameters are averaged with those that came: (a + b)/2 has the same bits on both ranks of a pair.
    pub fn mix(&mut self, part: usize, scalars: &Scalars) -> Result<()> {
        let [add, halve] = &mut self.mixes[part];
        add.run(scalars)?;
        halve.run(&Scalars { rescale: 0.5, ..*scalars })
    }

    /// The ranks' own optimizers start anew.
    pub fn forget(&self, device: &dyn Device) -> Result<()> {
        self.state.iter().try_for_each(|state| device.zero(state))
    }
}

/// What ranks may have unlike.
fn learned(memories: &Memories) -> [Memory; 2] {
    let (parameters, gradients) = (&memories.regions.parameters, &memories.gradients.averaged);
    let bytes = learned_bytes(parameters.bytes(), gradients.bytes());
    [parameters, gradients].map(|memory| memory.slice(0, bytes))
}

/// The ranks' parameters become their mean, and each rank's own go to where gradients were, for `restore`. Returns how
/// far ranks are from it: the root of the mean square of their distances, as a share of the mean's own norm.
/// Collective.
pub fn take_mean(world: &World, device: &dyn Device, memories: &Memories) -> Result<f64> {
    let [parameters, kept] = learned(memories);
    device.copy(&parameters, &kept)?;
    let mut squares = [0f64; 2];
    for start in (0..parameters.bytes()).step_by(4 * PIECE) {
        let piece = parameters.slice(start, (parameters.bytes() - start).min(4 * PIECE));
        let mut own = vec![0f32; piece.bytes() / 4];
        device.download(&piece, bytes_of_mut(&mut own))?;
        let means = means(world, &own)?;
        for (own, mean) in own.iter_mut().zip(means) {
            squares[0] += (f64::from(*own) - mean).powi(2);
            squares[1] += mean.powi(2);
            *own = mean as f32;
        }
        device.upload(bytes_of(&own), &piece)?;
    }
    world.sum_f64(&mut squares)?;
    Ok((squares[0] / squares[1].max(f64::MIN_POSITIVE)).sqrt())
}

/// Every rank has its own parameters again.
pub fn restore(device: &dyn Device, memories: &Memories) -> Result<()> {
    let [parameters, kept] = learned(memories);
    device.copy(&kept, &parameters)
}
