//! One rank updates for all, as `torch.nn.DataParallel` and TensorFlow's single parameter device do. It is here to be
//! measured: the link of that rank carries all gradients and all parameters.

use super::{Owners, Ranks, Way};

#[derive(Debug)]
pub(super) struct Root;

impl Way for Root {
    fn name(&self) -> &'static str {
        "root"
    }

    fn help(&self) -> &'static str {
        "rank 0 for all"
    }

    fn is_central(&self) -> bool {
        true
    }

    fn owners(&self, _: usize, at: Ranks) -> Owners {
        Owners::Apart { first: 0, count: 1, computing: at.ranks }
    }
}
