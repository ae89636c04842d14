//! dltrain: data-parallel training of convolutional networks, as one SPMD executable over MPI.
//!
//! `docs/architecture.md` is the map of the rooms below and says which may use which.
#![deny(unsafe_code)]

pub mod bench;
pub mod collective;
pub mod comm;
pub mod device;
pub mod error;
pub mod graph;
pub mod random;
