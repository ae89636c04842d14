//! Plain data parallelism: sums of gradients go to all ranks. The ranks of a node have their parameters in common where
//! they can, and then share the update.

use super::{Owners, Ranks, Way};

#[derive(Debug)]
pub(super) struct Allreduce;

impl Way for Allreduce {
    fn name(&self) -> &'static str {
        "allreduce"
    }

    fn help(&self) -> &'static str {
        "every rank, from an allreduce of the gradients"
    }

    fn shares_memory(&self, _: Ranks, _: bool) -> bool {
        true
    }

    fn owners(&self, _: usize, at: Ranks) -> Owners {
        if at.in_common { Owners::Node } else { Owners::Everyone }
    }
}
