//! Ranks that have parameters of their own: each updates them by its own gradients, and from time to time all meet.

use serde::Serialize;

/// When ranks come together, and what they do then.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Relaxed {
    /// Every so many steps; of a gossip, in so many with another rank each.
    pub every: usize,
    /// What they do.
    pub meeting: ModelAveraging,
}

/// What becomes of the ranks' parameters when they meet. But in a gossip all have the same anchor, and what travels is
/// how far each rank's parameters are from it: a pseudo-gradient, in the buckets of gradients.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ModelAveraging {
    /// The anchor does a step of SGD along the mean of all ranks' ways from it, and all go on from there.
    Anchor {
        /// That step.
        outer: Outer,
        /// Whether the ranks' own optimizers then start anew.
        resets: bool,
    },
    /// The anchor and each rank attract each other with this strength.
    Elastic {
        /// How much of the way between them either goes.
        alpha: f32,
    },
    /// In each step of a round every rank averages its parameters with those of one other: they travel themselves, and
    /// there is no anchor.
    Gossip,
}

impl Relaxed {
    /// Whether parameters themselves go between ranks, and not how far they are from an anchor.
    pub fn sends_parameters(&self) -> bool {
        self.meeting == ModelAveraging::Gossip
    }

    /// Whether the ranks' own optimizers start anew when they have met.
    pub fn resets(&self) -> bool {
        matches!(self.meeting, ModelAveraging::Anchor { resets: true, .. })
    }
}

/// The step of SGD that an anchor does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outer {
    /// Learning rate: 1 takes the mean of the parameters, where there is no momentum.
    pub rate: f32,
    /// Momentum of the anchor.
    pub momentum: f32,
    /// Nesterov's.
    pub nesterov: bool,
}

/// What flags say of it: `--outer-lr`, `--outer-momentum`, `--outer-nesterov`.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
#[allow(missing_docs, reason = "fields are what flags of the same names set")]
pub struct OuterFlags {
    pub rate: Option<f32>,
    pub momentum: Option<f32>,
    pub nesterov: bool,
}

impl OuterFlags {
    /// Whether any was given.
    pub fn any(&self) -> bool {
        *self != OuterFlags::default()
    }

    /// The step, where these numbers hold if no flag says otherwise.
    pub(super) fn or(&self, usual: Outer) -> Outer {
        Outer {
            rate: self.rate.unwrap_or(usual.rate),
            momentum: self.momentum.unwrap_or(usual.momentum),
            nesterov: self.nesterov || usual.nesterov,
        }
    }
}
