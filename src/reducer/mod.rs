//! How gradients come together and new parameters to everyone: PyTorch's reducer, DeepSpeed's partitioning.
//!
//! Who owns what is said by `strategy`. All that follows from it for a run is here: `averaging` decides
//! what sums, what is expected of it and how gradients are cut into buckets; `sharing` places parameters, state and
//! gradients, once for the ranks of a node where that serves; `recipe` says by what each of the script's transfers
//! travels, and `carriers` makes that; `gpu_direct` asks whether GPUs or MPI add up where gradients lie. Nothing here
//! asks which strategy it is. May use: `fusion`, `record` (to log) and every module below. Used by: `train`.

mod averaging;
mod carriers;
mod gpu_direct;
mod recipe;
mod sharing;

pub use averaging::{Averaging, Expected, Setting, StepTimes};
pub use carriers::{Carrying, Places, Pushes, edges, exchanges, trades};
pub use sharing::{
    Gradients, ParameterMemory, Sharing, Travelling, beside_parameters, codes_on_device, expected_owners,
    largest_share, nodes, seats, share_of, shares_gradients, turns, windows_apart,
};
