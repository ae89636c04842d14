//! ZeRO-1: all ranks share the updates and the optimizer's state, over nodes too. Samyam Rajbhandari, Jeff Rasley,
//! Olatunji Ruwase, Yuxiong He: "ZeRO: memory optimizations toward training trillion parameter models", SC 2020.

use super::{Owners, Ranks, Way};

#[derive(Debug)]
pub(super) struct Zero1;

impl Way for Zero1 {
    fn name(&self) -> &'static str {
        "zero1"
    }

    fn help(&self) -> &'static str {
        "every rank its share, as --zero 1"
    }

    fn flag(&self, _: &[f32]) -> String {
        "--zero 1".into()
    }

    fn shares_memory(&self, at: Ranks, even: bool) -> bool {
        at.nodes == 1 || even
    }

    fn owners(&self, _: usize, at: Ranks) -> Owners {
        match at.in_common && at.nodes == 1 {
            // The ranks of one node share by themselves, without messages.
            true => Owners::Node,
            false => Owners::Apart { first: 0, count: at.ranks, computing: at.ranks },
        }
    }
}
