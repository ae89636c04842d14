//! The optimizers: what each is called, the numbers that it has, and what these are where none are given.

use clap::ValueEnum;
use clap::builder::PossibleValue;
use serde::{Serialize, Serializer};

/// How parameters change, given their gradients; a device runs it. g is the gradient, w the parameter, rate the
/// learning rate.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(untagged)]
#[allow(missing_docs, reason = "fields are the numbers that flags of the same names set")]
pub enum Rule {
    /// g += decay·w; m = momentum·m + g; w −= rate·(nesterov ? g + momentum·m : m). State: m where momentum > 0.
    Sgd { momentum: f32, nesterov: bool, weight_decay: f32 },
    /// Kingma and Ba, 2015 (bias-corrected). The decay is added to the gradient or, `decoupled`, taken off the
    /// parameter at the learning rate (AdamW: Loshchilov and Hutter, 2019). State: first moment, second moment.
    Adam {
        beta1: f32,
        beta2: f32,
        epsilon: f32,
        weight_decay: f32,
        #[serde(skip)]
        decoupled: bool,
    },
    /// Tieleman and Hinton, 2012. g += decay·w; s = ρ·s + (1 − ρ)·g², ρ being `rms_decay`; then as PyTorch has it
    ///   m = momentum·m + g/(√s + ε);       w −= rate·m,
    /// or as TensorFlow 1 has it, with which Inception was trained, where s starts at 1 and not at 0:
    ///   m = momentum·m + rate·g/√(s + ε);  w −= m.
    /// State: s; m where momentum > 0.
    RmsProp {
        rms_decay: f32,
        momentum: f32,
        epsilon: f32,
        weight_decay: f32,
        #[serde(skip)]
        tensorflow: bool,
    },
    /// You, Gitman and Ginsburg, "Large batch training of convolutional networks", 2017, algorithm 1: for each
    /// parameter λ = trust·‖w‖/(‖g‖ + decay·‖w‖); m = momentum·m + rate·λ·(g + decay·w); w −= m. State: m.
    Lars { momentum: f32, trust: f32, weight_decay: f32 },
    /// You et al., "Large batch optimization for deep learning", 2020, algorithm 2: with u the bias-corrected step of
    /// Adam plus decay·w, w −= rate·‖w‖/‖u‖·u for each parameter. State: first moment, second moment.
    Lamb { beta1: f32, beta2: f32, epsilon: f32, weight_decay: f32 },
}

/// Every optimizer with the numbers that hold where no flag is given: PyTorch's where PyTorch has it, else the papers'.
const OPTIMIZERS: [Rule; 7] = [
    Rule::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 },
    Rule::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.0, decoupled: false },
    Rule::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01, decoupled: true },
    Rule::RmsProp { rms_decay: 0.99, momentum: 0.0, epsilon: 1e-8, weight_decay: 0.0, tensorflow: false },
    Rule::RmsProp { rms_decay: 0.9, momentum: 0.9, epsilon: 1.0, weight_decay: 0.0, tensorflow: true },
    Rule::Lars { momentum: 0.9, trust: 0.001, weight_decay: 5e-4 },
    Rule::Lamb { beta1: 0.9, beta2: 0.999, epsilon: 1e-6, weight_decay: 0.01 },
];

/// Adam, as PyTorch has it.
impl Default for Rule {
    fn default() -> Rule {
        OPTIMIZERS[1]
    }
}

impl Rule {
    /// As the flag has it.
    pub fn name(&self) -> &'static str {
        self.described().0
    }

    /// The learning rate where none is given.
    pub fn usual_rate(&self) -> f32 {
        self.described().1
    }

    /// Name, usual learning rate, and what `--help` says.
    fn described(&self) -> (&'static str, f32, &'static str) {
        match self {
            Rule::Sgd { .. } => ("sgd", 0.01, "Stochastic gradient descent with momentum"),
            Rule::Adam { decoupled: false, .. } => {
                ("adam", 0.001, "Kingma and Ba, 2015; decay is added to the gradient")
            }
            Rule::Adam { .. } => {
                ("adamw", 0.001, "Adam with decoupled weight decay: Loshchilov and Hutter, 2019")
            }
            Rule::RmsProp { tensorflow: false, .. } => {
                ("rmsprop", 0.01, "Tieleman and Hinton, 2012, as PyTorch has it")
            }
            Rule::RmsProp { .. } => {
                ("rmsprop-tf", 0.045, "As TensorFlow has it, epsilon inside the root: for Inception")
            }
            Rule::Lars { .. } => {
                ("lars", 1.0, "Layer-wise adaptive rates for large batches: You et al., 2017")
            }
            Rule::Lamb { .. } => ("lamb", 0.005, "The idea of lars on adam: You et al., 2020"),
        }
    }

    /// Its number of this name; `None` where it has no such number.
    pub fn number(&mut self, name: &str) -> Option<&mut f32> {
        match (name, self) {
            (
                "momentum",
                Rule::Sgd { momentum, .. } | Rule::RmsProp { momentum, .. } | Rule::Lars { momentum, .. },
            ) => Some(momentum),
            ("beta1", Rule::Adam { beta1, .. } | Rule::Lamb { beta1, .. }) => Some(beta1),
            ("beta2", Rule::Adam { beta2, .. } | Rule::Lamb { beta2, .. }) => Some(beta2),
            (
                "epsilon",
                Rule::Adam { epsilon, .. } | Rule::RmsProp { epsilon, .. } | Rule::Lamb { epsilon, .. },
            ) => Some(epsilon),
            ("rms_decay", Rule::RmsProp { rms_decay, .. }) => Some(rms_decay),
            ("trust", Rule::Lars { trust, .. }) => Some(trust),
            (
                "weight_decay",
                Rule::Sgd { weight_decay, .. }
                | Rule::Adam { weight_decay, .. }
                | Rule::RmsProp { weight_decay, .. }
                | Rule::Lars { weight_decay, .. }
                | Rule::Lamb { weight_decay, .. },
            ) => Some(weight_decay),
            _ => None,
        }
    }
}

/// For `--optimizer`.
impl ValueEnum for Rule {
    fn value_variants<'a>() -> &'a [Rule] {
        &OPTIMIZERS
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let (name, _, help) = self.described();
        Some(PossibleValue::new(name).help(help))
    }
}

/// What the optimizer does.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Optimizer {
    /// The update rule and its numbers.
    #[serde(flatten, serialize_with = "named")]
    pub rule: Rule,
    /// The largest norm of all gradients together.
    pub clip_norm: Option<f32>,
    /// Decay of the moving average of the weights, which evaluation then uses.
    pub ema: Option<f32>,
}

impl Optimizer {
    /// How many numbers there are beside each parameter: states, and its average.
    pub fn copies(&self) -> usize {
        self.rule.states() + usize::from(self.ema.is_some())
    }
}

/// A rule as `kind`, its name, and its numbers.
fn named<S: Serializer>(rule: &Rule, serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Named<'a> {
        kind: &'static str,
        #[serde(flatten)]
        numbers: &'a Rule,
    }
    Named { kind: rule.name(), numbers: rule }.serialize(serializer)
}
