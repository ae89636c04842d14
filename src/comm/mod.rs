//! MPI: the world of ranks, messages, and memory that ranks of one node share.
//!
//! `World` is the job, or a group of its ranks (`World::split`, `Mesh`): who is here, which ranks share a node, and the
//! small collectives of the control path (`barrier`, `agree`, `check_same`, …). `Region` is host memory that holds
//! gradients, if possible in a window which the other ranks of the node map too, `NodeShared` memory that is there once
//! for all of them. `Channel` moves parts of regions between ranks, `Counters` and `Barrier` tell ranks of a node how
//! far the others are. Nothing here blocks inside MPI: everything is polled, and the processor is yielded between two
//! polls (MPICH 4 spins, and ranks may outnumber cores). A loop that polls holds a `Wait`, which tells people when it
//! takes too long, and for which ranks.
//!
//! May use: what one rank does by itself. Used by: `collective`, `fusion`, `train`, `bench`, `main`. This is a module
//! of foreign calls: `unsafe` is allowed here, and everything offered to the modules above is safe to call.
#![allow(unsafe_code)]

mod board;
mod bulk;
mod channel;
mod communicator;
mod cores;
mod launcher;
mod library;
mod mesh;
mod node_shared;
mod progress;
mod region;
mod request;
mod signals;
mod stall;
mod stall_gossip;
mod topology;
mod window;
mod world;

pub use board::RunPhase;
pub use channel::{Channel, Link, Request};
pub use launcher::{launched, leave};
pub use library::{Family, MpiLibrary, is_cuda_aware, mpicc, prepare_process, release_user_signal};
pub use mesh::Mesh;
pub use node_shared::{Barrier, NodeShared};
pub use region::Region;
pub use stall::{Awaited, Wait, enter};
pub use topology::Topology;
pub use window::Counters;
pub use world::{NotStarted, World};
