//! Gossip: in each step every rank averages its parameters with those of one other, which is further away in the next
//! step: 1, 2, 4, … places, and from the beginning again. After one such round each has something of everyone.
//!
//! Bicheng Ying, Kun Yuan, Yiming Chen, Hanbin Hu, Pan Pan, Wotao Yin: "Exponential graph is provably efficient for
//! decentralized deep training", NeurIPS 2021 (the one-peer graph); Mahmoud Assran, Nicolas Loizou, Nicolas Ballas,
//! Michael Rabbat: "Stochastic gradient push", ICML 2019. A rank gives half of what it has and takes half of another's,
//! so that the mean over ranks stays, and no weights are needed to push it right.

use super::{Meeting, OuterFlags, Owners, Ranks, Relaxed, Way};

#[derive(Debug)]
pub(super) struct Gossip;

impl Way for Gossip {
    fn name(&self) -> &'static str {
        "gossip"
    }

    fn help(&self) -> &'static str {
        "the same with one other rank each step, while both compute"
    }

    fn relaxed(&self, _: &[f32], _: &OuterFlags, ranks: usize) -> Option<Relaxed> {
        let distances = ranks.next_power_of_two().trailing_zeros() as usize;
        Some(Relaxed { every: distances.max(1), meeting: Meeting::Gossip })
    }

    fn owners(&self, _: usize, _: Ranks) -> Owners {
        Owners::Everyone
    }
}
