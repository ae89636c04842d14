//! Blockwise model-update filtering, with CNTK's defaults: block momentum 1 − 1/P for P ranks, Nesterov's, block
//! learning rate 1, and the ranks' own optimizers start anew with every block.
//!
//! Kai Chen, Qiang Huo: "Scalable training of deep learning machines by incremental block training with intra-block
//! parallel optimization and blockwise model-update filtering", ICASSP 2016.

use super::relaxed::steps;
use super::{Meeting, Number, Outer, OuterFlags, Owners, Ranks, Relaxed, Way};

#[derive(Debug)]
pub(super) struct BlockMomentum;

impl Way for BlockMomentum {
    fn name(&self) -> &'static str {
        "bmuf"
    }

    fn help(&self) -> &'static str {
        "the same with block momentum, as CNTK has it"
    }

    fn numbers(&self) -> &'static [Number] {
        const { &[steps(Some(8.0))] }
    }

    fn relaxed(&self, numbers: &[f32], outer: &OuterFlags, ranks: usize) -> Option<Relaxed> {
        let momentum = 1.0 - 1.0 / ranks as f32;
        let outer = outer.or(Outer { rate: 1.0, momentum, nesterov: true });
        Some(Relaxed { every: numbers[0] as usize, meeting: Meeting::Anchor { outer, resets: true } })
    }

    fn owners(&self, _: usize, _: Ranks) -> Owners {
        Owners::Everyone
    }
}
