//! What one rank of dltrain does by itself: networks and their plans, the devices that run them, the files that they
//! read and write.
//!
//! Nothing here knows an MPI, so that this crate is compiled once for all of them. What ranks do together is in the
//! crate `dltrain` (`lib.rs` beside this file), which offers the modules of this one as its own.
//! `docs/architecture.md` is the map of both.
#![deny(unsafe_code)]
#![cfg_attr(test, allow(clippy::too_many_lines))]
#![warn(clippy::undocumented_unsafe_blocks)]

pub mod config;
pub mod cuts;
pub mod data;
pub mod device;
pub mod error;
pub mod fields;
pub mod files;
pub mod graph;
pub mod host;
pub mod inspect;
pub mod model;
pub mod optim;
pub mod plan;
pub mod random;
pub mod record;
pub mod report;
pub mod strategy;
pub mod trace;
