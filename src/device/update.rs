//! The arithmetic of each optimizer on one element. `optim` chooses a rule and its numbers; a device runs it
//! over spans. The host devices share the loops here; a CUDA kernel restates them and is tested against them.

use super::Scalars;

/// How parameters change, given their gradients. g is the gradient, w the parameter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rule {
    /// g += decay·w; m = momentum·m + g; w −= rate·(nesterov ? g + momentum·m : m). State: m where momentum > 0.
    Sgd { momentum: f32, nesterov: bool, weight_decay: f32 },
    /// Kingma and Ba, 2015 (bias-corrected), with decay added to the gradient. State: first moment, second moment.
    Adam { beta1: f32, beta2: f32, epsilon: f32, weight_decay: f32 },
}

impl Rule {
    /// How many regions of state, each the size of the parameters, the rule keeps.
    pub fn states(&self) -> usize {
        match self {
            Rule::Sgd { momentum, .. } => usize::from(*momentum != 0.0),
            Rule::Adam { .. } => 2,
        }
    }

    /// Applies the rule to one run of elements. All slices have equal length; `state` has `states()` of them.
    pub fn apply(
        &self,
        scalars: &Scalars,
        decay: bool,
        parameters: &mut [f32],
        gradients: &[f32],
        state: &mut [&mut [f32]],
    ) {
        match (*self, state) {
            (Rule::Sgd { weight_decay, .. }, []) => {
                let decay = if decay { weight_decay } else { 0.0 };
                for (w, &g) in parameters.iter_mut().zip(gradients) {
                    *w -= scalars.learning_rate * (g + decay * *w);
                }
            }
            (Rule::Sgd { momentum, nesterov, weight_decay }, [velocity]) => {
                let decay = if decay { weight_decay } else { 0.0 };
                for ((w, &g), m) in parameters.iter_mut().zip(gradients).zip(velocity.iter_mut()) {
                    let g = g + decay * *w;
                    *m = momentum * *m + g;
                    *w -= scalars.learning_rate * if nesterov { g + momentum * *m } else { *m };
                }
            }
            (Rule::Adam { beta1, beta2, epsilon, weight_decay }, [first, second]) => {
                let decay = if decay { weight_decay } else { 0.0 };
                let (rate, root2) = adam_corrections(scalars, beta1, beta2);
                let moments = first.iter_mut().zip(second.iter_mut());
                for ((w, &g), (m, v)) in parameters.iter_mut().zip(gradients).zip(moments) {
                    let g = g + decay * *w;
                    *m = beta1 * *m + (1.0 - beta1) * g;
                    *v = beta2 * *v + (1.0 - beta2) * g * g;
                    *w -= rate * *m / (v.sqrt() / root2 + epsilon);
                }
            }
            (rule, state) => unreachable!("{rule:?} with {} states", state.len()),
        }
    }
}

/// rate/(1 − β₁ᵗ) and √(1 − β₂ᵗ), in f64: for large t both powers are tiny and f32 would lose them.
fn adam_corrections(scalars: &Scalars, beta1: f32, beta2: f32) -> (f32, f32) {
    let t = scalars.update as f64;
    let first = 1.0 - f64::from(beta1).powf(t);
    let second = 1.0 - f64::from(beta2).powf(t);
    ((f64::from(scalars.learning_rate) / first) as f32, second.sqrt() as f32)
}

/// A run of parameters that are updated alike, in elements from the start of the regions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    pub start: usize,
    pub length: usize,
    /// Whether weight decay applies.
    pub decay: bool,
}
