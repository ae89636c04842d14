//! Activations as their definitions (`graph::Activation`).

use std::f64::consts::{FRAC_1_SQRT_2, PI};

use crate::graph::Activation;

/// y of x.
pub fn value(of: Activation, x: f64) -> f64 {
    match of {
        Activation::Relu { max } => x.max(0.0).min(f64::from(max)),
        Activation::Sigmoid => sigmoid(x),
        Activation::Silu => x * sigmoid(x),
        Activation::Gelu => x * normal(x),
        Activation::LeakyRelu { slope } => x * if x > 0.0 { 1.0 } else { f64::from(slope) },
        Activation::HardSigmoid => (x / 6.0 + 0.5).clamp(0.0, 1.0),
        Activation::HardSwish => x * (x / 6.0 + 0.5).clamp(0.0, 1.0),
        Activation::Tanh => x.tanh(),
        Activation::Exp => x.exp(),
        Activation::Sqrt => x.sqrt(),
    }
}

/// dx of dy and of what the backward op reads, y or x (`Activation::from_output`).
pub fn gradient(of: Activation, dy: f64, at: f64) -> f64 {
    match of {
        Activation::Relu { max } => {
            if at > 0.0 && at < f64::from(max) {
                dy
            } else {
                0.0
            }
        }
        Activation::Sigmoid => dy * at * (1.0 - at),
        Activation::Silu => dy * sigmoid(at) * (1.0 + at * (1.0 - sigmoid(at))),
        Activation::Gelu => dy * (normal(at) + at * (-at * at / 2.0).exp() / (2.0 * PI).sqrt()),
        Activation::LeakyRelu { slope } => dy * if at > 0.0 { 1.0 } else { f64::from(slope) },
        Activation::HardSigmoid if at > -3.0 && at < 3.0 => dy / 6.0,
        Activation::HardSigmoid => 0.0,
        Activation::HardSwish if at <= -3.0 => 0.0,
        Activation::HardSwish if at < 3.0 => dy * (at / 3.0 + 0.5),
        Activation::HardSwish => dy,
        Activation::Tanh => dy * (1.0 - at) * (1.0 + at),
        Activation::Exp => dy * at,
        Activation::Sqrt => dy / (2.0 * at),
    }
}

pub fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// Φ, the distribution function of the standard normal distribution.
fn normal(x: f64) -> f64 {
    (1.0 + erf(x * FRAC_1_SQRT_2)) / 2.0
}

/// The error function: 2/√π·e^(−x²)·Σ 2ⁿ·x^(2n+1)/(1·3·…·(2n+1)), whose terms all have one sign, so that nothing
/// cancels (Abramowitz and Stegun, "Handbook of mathematical functions", 7.1.6). From 6 on it is 1 to the last digit.
fn erf(x: f64) -> f64 {
    if x.is_nan() || x.abs() >= 6.0 {
        return x.clamp(-1.0, 1.0);
    }
    let (mut term, mut sum, mut n) = (x, x, 0.0);
    while term.abs() > f64::EPSILON * sum.abs() {
        n += 1.0;
        term *= 2.0 * x * x / (2.0 * n + 1.0);
        sum += term;
    }
    2.0 / PI.sqrt() * (-x * x).exp() * sum
}
