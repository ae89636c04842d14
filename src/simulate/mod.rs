//! How long steps take that nobody has run: what ranks do, on machines that may not be there.
//!
//! `network` is how nodes are joined, `machine` the ranks on them, `course` what all of these go through in a
//! collective and how long that takes (`messages`: message by message). `rehearsal` runs the scripts of all ranks
//! through: it checks that they fit together, and plays them against a clock, where transfers that share links have
//! parts of them (`flows`). `measure` times a plan's steps on the device that is there, and `threshold` cuts gradients
//! where the rehearsal is fastest. Nothing here sends anything. May use: `plan`, `collective` and what these use. Used
//! by: `reducer`, `train`, `bench`.

mod course;
mod flows;
mod machine;
mod measure;
mod messages;
mod network;
mod rehearsal;
pub mod threshold;

pub use course::{Course, Deed, Share};
pub use machine::{Machine, RankGroups};
pub use measure::{Measured, Times};
pub use network::{Interconnect, Load, Rounds};
pub use rehearsal::{Prices, Rehearsal, StepFacts, Touch, rehearse, step_facts};
