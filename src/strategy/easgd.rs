//! Elastic averaging: every H steps each rank and a centre that all know draw each other nearer.
//!
//! Sixin Zhang, Anna Choromanska, Yann LeCun: "Deep learning with elastic averaging SGD", NeurIPS 2015, the synchronous
//! form: x_r += α·(c − x_r), and with the x_r before that c += α·Σ(x_r − c).

use super::relaxed::steps;
use super::{Meeting, Number, OuterFlags, Owners, Ranks, Relaxed, Way};

#[derive(Debug)]
pub(super) struct Elastic;

impl Way for Elastic {
    fn name(&self) -> &'static str {
        "easgd"
    }

    fn help(&self) -> &'static str {
        "the same with a centre and ranks that attract each other by ALPHA every H steps"
    }

    fn numbers(&self) -> &'static [Number] {
        const { &[steps(None), Number { name: "ALPHA", what: "attraction", usual: None, counts: false }] }
    }

    fn relaxed(&self, numbers: &[f32], _: &OuterFlags, _: usize) -> Option<Relaxed> {
        Some(Relaxed { every: numbers[0] as usize, meeting: Meeting::Elastic { alpha: numbers[1] } })
    }

    fn owners(&self, _: usize, _: Ranks) -> Owners {
        Owners::Everyone
    }
}
