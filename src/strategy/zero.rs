//! ZeRO: all ranks share the updates and the optimizer's state, over nodes too; from stage 2 on nobody keeps gradients
//! that others update, and in stage 3 no parameters either. Samyam Rajbhandari, Jeff Rasley, Olatunji Ruwase, Yuxiong
//! He: "ZeRO: memory optimizations toward training trillion parameter models", SC 2020. PyTorch calls the last two
//! SHARD_GRAD_OP and FULL_SHARD (Yanli Zhao et al.: "PyTorch FSDP", VLDB 2023).

use super::{Owners, Ranks, Sharded, Way};

/// By its stage.
#[derive(Debug)]
pub(super) struct Zero(pub u8);

impl Way for Zero {
    fn name(&self) -> &'static str {
        ["zero1", "zero2", "zero3"][usize::from(self.0.clamp(1, 3)) - 1]
    }

    fn help(&self) -> &'static str {
        match self.0 {
            1 => "every rank its share, as --zero 1",
            2 => "the same, and it keeps no other gradients, as --zero 2",
            _ => "nor other parameters, as --zero 3",
        }
    }

    fn flag(&self, _: &[f32]) -> String {
        format!("--zero {}", self.0)
    }

    fn sharded(&self) -> Sharded {
        Sharded { gradients: self.0 >= 2, parameters: self.0 >= 3 }
    }

    fn shares_memory(&self, at: Ranks, even: bool) -> bool {
        // What the ranks of a node have in common is there once: only between nodes can parameters be divided further.
        at.nodes == 1 || even && self.0 < 3
    }

    fn owners(&self, _: usize, at: Ranks) -> Owners {
        match at.in_common && at.nodes == 1 && self.0 == 1 {
            // The ranks of one node share by themselves, without messages.
            true => Owners::Node,
            false => Owners::Apart { first: 0, count: at.ranks, computing: at.ranks },
        }
    }
}
