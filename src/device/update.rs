//! The arithmetic of each optimizer on a run of elements: `config::Rule` with its numbers, which a device runs over
//! spans. The host devices share the loops here; a CUDA kernel restates them and is tested against them.

use super::memory::bytes_of_mut;
use super::{Device, Memory, Scalars, Step};
pub use crate::config::Rule;
use crate::error::Result;

/// Elements whose direction `Lamb` holds at a time.
const BLOCK: usize = 256;

/// The memory of an update. All regions share offsets, so that one span names the same parameter in each.
pub struct Updated<'a> {
    /// What is updated.
    pub parameters: &'a Memory,
    /// By what it is.
    pub gradients: &'a Memory,
    /// The rule's state regions.
    pub state: &'a [Memory],
}

impl Rule {
    /// How many regions of state, each the size of the parameters, the rule keeps.
    pub fn states(&self) -> usize {
        match *self {
            Rule::Sgd { momentum, .. } => usize::from(momentum != 0.0),
            Rule::RmsProp { momentum, .. } => 1 + usize::from(momentum != 0.0),
            Rule::Lars { .. } => 1,
            Rule::Adam { .. } | Rule::Lamb { .. } => 2,
        }
    }

    /// How often an update goes over the parameters' bytes, reading and writing: it reads parameters and gradients and
    /// writes parameters, and it reads and writes each state.
    pub fn passes(&self) -> [usize; 2] {
        [2 + self.states(), 1 + self.states()]
    }

    /// Bytes that an update moves of parameters that have so many.
    pub fn bytes_moved(&self, parameters: usize) -> usize {
        self.passes().iter().sum::<usize>() * parameters
    }

    /// Whether the rule needs norms of each parameter: a span must then be one parameter, and every part of it is
    /// given to `measure` before any is given to `apply`.
    pub fn has_trust(&self) -> bool {
        matches!(self, Rule::Lars { .. } | Rule::Lamb { .. })
    }

    /// For a rule with norms: what a part of a parameter adds to the two sums of squares. `Lamb`'s moments move here.
    pub fn measure(
        &self,
        scalars: &Scalars,
        decay: bool,
        parameters: &[f32],
        gradients: &[f32],
        state: &mut [&mut [f32]],
    ) -> [f64; 2] {
        match (*self, state) {
            (Rule::Lars { .. }, _) => [sum_of_squares(parameters), sum_of_squares(gradients)],
            (Rule::Lamb { beta1, beta2, .. }, [first, second]) => {
                let direction = self.lamb_direction(scalars, decay);
                let mut sums = [0.0; 2];
                let moments = first.chunks_mut(BLOCK).zip(second.chunks_mut(BLOCK));
                for ((w, g), (m, v)) in parameters.chunks(BLOCK).zip(gradients.chunks(BLOCK)).zip(moments) {
                    let mut directions = [0f32; BLOCK];
                    let moments = m.iter_mut().zip(v.iter_mut());
                    for (((u, &w), &g), (m, v)) in directions.iter_mut().zip(w).zip(g).zip(moments) {
                        *m = beta1 * *m + (1.0 - beta1) * g;
                        *v = beta2 * *v + (1.0 - beta2) * g * g;
                        *u = direction(w, *m, *v);
                    }
                    sums[0] += sum_of_squares(w);
                    sums[1] += sum_of_squares(&directions);
                }
                sums
            }
            _ => [0.0; 2],
        }
    }

    /// The trust ratio of a parameter, from the sums that `measure` gave. 1 where the rule has none, where decay does
    /// not apply, and where a norm is zero.
    pub fn trust(&self, decay: bool, sums: [f64; 2]) -> f32 {
        let [parameter, other] = sums.map(f64::sqrt);
        if !(decay && parameter > 0.0 && other > 0.0) {
            return 1.0;
        }
        match *self {
            Rule::Lars { trust, weight_decay, .. } => {
                (f64::from(trust) * parameter / (other + f64::from(weight_decay) * parameter)) as f32
            }
            Rule::Lamb { .. } => (parameter / other) as f32,
            _ => 1.0,
        }
    }

    /// Applies the rule to one run of elements. All slices have equal length; `state` has `states()` of them; `trust`
    /// is the parameter's ratio.
    pub fn apply(
        &self,
        scalars: &Scalars,
        decay: bool,
        trust: f32,
        parameters: &mut [f32],
        gradients: &[f32],
        state: &mut [&mut [f32]],
    ) {
        let decay_of = |weight_decay: f32| if decay { weight_decay } else { 0.0 };
        let both = parameters.iter_mut().zip(gradients);
        let rate = scalars.learning_rate;
        match (*self, state) {
            (Rule::Sgd { weight_decay, .. }, []) => {
                let decay = decay_of(weight_decay);
                both.for_each(|(w, &g)| *w -= rate * (g + decay * *w));
            }
            (Rule::Sgd { momentum, nesterov, weight_decay }, [velocity]) => {
                let decay = decay_of(weight_decay);
                for ((w, &g), m) in both.zip(velocity.iter_mut()) {
                    let g = g + decay * *w;
                    *m = momentum * *m + g;
                    *w -= rate * if nesterov { g + momentum * *m } else { *m };
                }
            }
            (Rule::Adam { beta1, beta2, epsilon, weight_decay, decoupled }, [first, second]) => {
                let decay = decay_of(weight_decay);
                let (added, taken) = if decoupled { (0.0, rate * decay) } else { (decay, 0.0) };
                let (correction1, correction2) = adam_corrections(scalars, beta1, beta2);
                let (rate, root2) = ((f64::from(rate) / correction1) as f32, correction2.sqrt() as f32);
                for ((w, &g), (m, v)) in both.zip(first.iter_mut().zip(second.iter_mut())) {
                    let g = g + added * *w;
                    *m = beta1 * *m + (1.0 - beta1) * g;
                    *v = beta2 * *v + (1.0 - beta2) * g * g;
                    *w -= rate * *m / (v.sqrt() / root2 + epsilon) + taken * *w;
                }
            }
            (Rule::RmsProp { weight_decay, .. }, [squares]) => {
                let (decay, scaled) = (decay_of(weight_decay), self.rms_scaled(scalars));
                for ((w, &g), s) in both.zip(squares.iter_mut()) {
                    *w -= rate * scaled(g + decay * *w, s);
                }
            }
            (Rule::RmsProp { momentum, weight_decay, tensorflow, .. }, [squares, velocity]) => {
                let (decay, scaled) = (decay_of(weight_decay), self.rms_scaled(scalars));
                let (inner, outer) = if tensorflow { (rate, 1.0) } else { (1.0, rate) };
                for ((w, &g), (s, m)) in both.zip(squares.iter_mut().zip(velocity.iter_mut())) {
                    *m = momentum * *m + inner * scaled(g + decay * *w, s);
                    *w -= outer * *m;
                }
            }
            (Rule::Lars { .. } | Rule::Lamb { .. }, state) => {
                self.apply_scaled(scalars, decay, rate * trust, parameters, gradients, state);
            }
            (rule, state) => unreachable!("{rule:?} with {} states", state.len()),
        }
    }

    /// `apply` of a rule with norms, `local` being the rate of this parameter.
    fn apply_scaled(
        &self,
        scalars: &Scalars,
        decay: bool,
        local: f32,
        parameters: &mut [f32],
        gradients: &[f32],
        state: &mut [&mut [f32]],
    ) {
        match (*self, state) {
            (Rule::Lars { momentum, weight_decay, .. }, [velocity]) => {
                let decay = if decay { weight_decay } else { 0.0 };
                for ((w, &g), m) in parameters.iter_mut().zip(gradients).zip(velocity.iter_mut()) {
                    *m = momentum * *m + local * (g + decay * *w);
                    *w -= *m;
                }
            }
            (Rule::Lamb { .. }, [first, second]) => {
                let direction = self.lamb_direction(scalars, decay);
                for (w, (m, v)) in parameters.iter_mut().zip(first.iter().zip(second.iter())) {
                    *w -= local * direction(*w, *m, *v);
                }
            }
            (rule, state) => unreachable!("{rule:?} with {} states", state.len()),
        }
    }

    /// (g, s) → g over the root of the mean square s, which takes g in first.
    fn rms_scaled(&self, scalars: &Scalars) -> impl Fn(f32, &mut f32) -> f32 + use<> {
        let Rule::RmsProp { rms_decay, epsilon, tensorflow, .. } = *self else { unreachable!("{self:?}") };
        // Memory comes as zeros; here alone a state starts elsewhere.
        let from_one = tensorflow && scalars.update == 1;
        move |g, s| {
            let before = if from_one { 1.0 } else { *s };
            *s = rms_decay * before + (1.0 - rms_decay) * g * g;
            if tensorflow { g / (*s + epsilon).sqrt() } else { g / (s.sqrt() + epsilon) }
        }
    }

    /// (w, m, v) → the direction of `Lamb`.
    fn lamb_direction(&self, scalars: &Scalars, decay: bool) -> impl Fn(f32, f32, f32) -> f32 + use<> {
        let Rule::Lamb { beta1, beta2, epsilon, weight_decay } = *self else { unreachable!("{self:?}") };
        let decay = if decay { weight_decay } else { 0.0 };
        let (correction1, correction2) = adam_corrections(scalars, beta1, beta2);
        let (factor1, root2) = ((1.0 / correction1) as f32, correction2.sqrt() as f32);
        move |w, m, v| factor1 * m / (v.sqrt() / root2 + epsilon) + decay * w
    }
}

/// 1 − β₁ᵗ and 1 − β₂ᵗ, in f64: for large t both powers are tiny and f32 would lose them.
pub(super) fn adam_corrections(scalars: &Scalars, beta1: f32, beta2: f32) -> (f64, f64) {
    let t = scalars.update as f64;
    (1.0 - f64::from(beta1).powf(t), 1.0 - f64::from(beta2).powf(t))
}

/// Σx² in f64, in one fixed order. Sixteen sums side by side: additions need not wait for each other.
pub(super) fn sum_of_squares(numbers: &[f32]) -> f64 {
    let mut lanes = [0f64; 16];
    let chunks = numbers.chunks_exact(lanes.len());
    let rest: f64 = chunks.remainder().iter().map(|&x| f64::from(x) * f64::from(x)).sum();
    for chunk in chunks {
        lanes.iter_mut().zip(chunk).for_each(|(lane, &x)| *lane += f64::from(x) * f64::from(x));
    }
    lanes.iter().sum::<f64>() + rest
}

/// What gradients whose squares add up to `sum` are multiplied with so that their norm is at most `max_norm`, as
/// PyTorch's `clip_grad_norm_` has it (Pascanu, Mikolov and Bengio, 2013); `None`: they stay.
pub fn clip_factor(max_norm: f32, sum: f64) -> Option<f32> {
    let factor = f64::from(max_norm) / (sum.sqrt() + 1e-6);
    (factor < 1.0).then_some(factor as f32)
}

/// A step that leaves sums of squares in memory: in `f64`, in an order of its own.
pub struct Squares {
    step: Box<dyn Step>,
    sums: Memory,
    values: Vec<f64>,
}

impl Squares {
    /// The step writes all of `sums`.
    pub(super) fn new(step: Box<dyn Step>, sums: Memory) -> Squares {
        let values = vec![0.0; sums.bytes() / size_of::<f64>()];
        Squares { step, sums, values }
    }

    /// Runs the step and waits for the sum of its sums.
    ///
    /// # Errors
    /// Those of the device.
    pub fn sum(&mut self, device: &dyn Device) -> Result<f64> {
        self.step.run(&Scalars::default())?;
        device.download(&self.sums, bytes_of_mut(&mut self.values))?;
        Ok(self.values.iter().sum())
    }
}

/// Runs `scale` by the factor that the squares ask for. For devices of the host.
pub(super) fn clip(max_norm: f32, mut squares: Squares, mut scale: Box<dyn Step>) -> Box<dyn Step> {
    Box::new(move |scalars: &Scalars| {
        let Squares { step, sums, values } = &mut squares;
        step.run(scalars)?;
        sums.read(bytes_of_mut(values));
        match clip_factor(max_norm, values.iter().sum()) {
            Some(rescale) => scale.run(&Scalars { rescale, ..*scalars }),
            None => Ok(()),
        }
    })
}

/// One step of an exponential moving average, as PyTorch's `swa_utils` has it: the first value is taken over.
pub(super) fn average(scalars: &Scalars, decay: f32, from: &[f32], into: &mut [f32]) {
    let share = if scalars.update <= 1 { 1.0 } else { 1.0 - decay };
    into.iter_mut().zip(from).for_each(|(average, value)| *average += share * (value - *average));
}

/// A run of parameters that are updated alike, in elements from the start of the regions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// First element of the region.
    pub start: usize,
    /// How many elements it has.
    pub length: usize,
    /// Whether weight decay applies, and a parameter's trust ratio: both for weights, neither for biases and
    /// batch normalisation.
    pub decay: bool,
}
