//! Local SGD: ranks average their parameters every H steps. With `--outer-momentum` it is SlowMo, with Nesterov's and
//! AdamW within it is DiLoCo.
//!
//! Sebastian Stich: "Local SGD converges fast and communicates little", ICLR 2019; Jianyu Wang, Vinayak Tantia, Nicolas
//! Ballas, Michael Rabbat: "SlowMo", ICLR 2020; Arthur Douillard et al.: "DiLoCo", 2023.

use super::relaxed::steps;
use super::{Meeting, Number, Outer, OuterFlags, Owners, Ranks, Relaxed, Way};

#[derive(Debug)]
pub(super) struct Local;

impl Way for Local {
    fn name(&self) -> &'static str {
        "local"
    }

    fn help(&self) -> &'static str {
        "every rank its own parameters, which are averaged every H steps, as --local-steps H"
    }

    fn numbers(&self) -> &'static [Number] {
        const { &[steps(None)] }
    }

    fn flag(&self, numbers: &[f32]) -> String {
        format!("--local-steps {}", numbers[0])
    }

    fn relaxed(&self, numbers: &[f32], outer: &OuterFlags, _: usize) -> Option<Relaxed> {
        let outer = outer.or(Outer { rate: 1.0, momentum: 0.0, nesterov: false });
        Some(Relaxed { every: numbers[0] as usize, meeting: Meeting::Anchor { outer, resets: false } })
    }

    fn owners(&self, _: usize, _: Ranks) -> Owners {
        Owners::Everyone
    }
}
