//! dltrain: data-parallel training of convolutional networks, as one SPMD executable over MPI.
//!
//! `docs/architecture.md` is the map of the rooms below and says which may use which.
#![deny(unsafe_code)]

pub mod bench;
pub mod collective;
pub mod comm;
pub mod config;
pub mod data;
pub mod device;
pub mod error;
pub mod export;
pub mod files;
pub mod fusion;
pub mod graph;
pub mod host;
pub mod info;
pub mod model;
pub mod models;
pub mod optim;
pub mod pack;
pub mod plan;
pub mod random;
pub mod record;
pub mod report;
pub mod trace;
pub mod train;
