//! dltrain: data-parallel training of convolutional networks, as one SPMD executable over MPI.
//!
//! The library is what the `dltrain` program is made of. `docs/architecture.md` is the map of its modules and says
//! which may use which; `docs/glossary.md` explains the words.
//!
//! # A tour: one training step
//!
//! A training step is a static program, planned once and run many times. This is the way from a name to a step, as
//! [`train::run`] goes it.
//!
//! 1. **The run.** Flags and files become a [`config::Config`]. All ranks start MPI ([`comm::World::start`]) and
//!    compare what they were given ([`comm::World::check_same`]). From here on an error of one rank is an error of all
//!    ([`comm::World::agree`]).
//! 2. **The graph.** [`model::find`] gives the [`model::Model`] of a name, which describes its layers to a
//!    [`graph::Builder`]. The [`graph::Graph`] has tensors with roles ([`graph::Role`]) and nodes with an
//!    [`graph::Op`]. [`graph::Graph::simplify`] fuses what can be fused, and [`graph::Graph::differentiate`] appends
//!    the backward pass.
//! 3. **The plan.** [`plan::plan`] asks the [`device::Device`] for a kernel of every op
//!    ([`device::Device::compile`]), adds reorders where two kernels want different layouts, and gives every tensor its
//!    place in memory. Gradients lie in the order in which they become ready, so that a bucket ([`plan::Bucket`]) is a
//!    slice. [`simulate::threshold`] cuts the buckets where the rehearsal of a step is fastest, by what a sum costs
//!    ([`collective::cost`]).
//! 4. **Memory.** [`plan::Plan::bind`] fixes every kernel to its operands: a [`plan::Program`] of [`device::Step`]s.
//!    The gradients lie in a [`comm::Region`], which the ranks of a node share where that serves.
//! 5. **The step.** [`data::TrainingLoader`] fills a batch. The program's steps run one after the other, forward and
//!    backward. After each, [`fusion::Fusion`] starts the buckets that it completes: the [`collective::Collective`]
//!    that [`collective::select`] has chosen reduces them over all ranks while the backward pass goes on.
//! 6. **The update.** As soon as a bucket is reduced, the [`config::Rule`] of the optimizer updates its parameters
//!    ([`device::Device::update`]), at the rate of the [`optim::RateSchedule`].
//! 7. **The record.** Times, losses and accuracy go to the results file, the terminal and TensorBoard ([`record`]).
//!
//! # A network of one's own
//!
//! `examples/own_network.rs` trains one: a function describes it to a [`graph::Builder`], [`model::Model::new`] makes a
//! model of that function, [`config::Config::on`] is a run without flags, and [`train::run_own`] trains on all ranks of
//! a [`comm::World`].
//!
//! Examples that run are at [`graph::Builder`], [`plan`] and [`collective`].
#![deny(unsafe_code)]
#![cfg_attr(test, allow(clippy::too_many_lines))]
#![warn(clippy::undocumented_unsafe_blocks)]

#[doc(inline)]
pub use dltrain_core::{
    config, cuts, data, device, error, fields, files, graph, host, inspect, model, optim, plan, random,
    record, report, strategy, trace,
};

pub mod bench;
pub mod collective;
pub mod comm;
pub mod elastic;
pub mod export;
pub mod fusion;
pub mod info;
pub mod models;
pub mod pack;
pub mod reducer;
pub mod simulate;
pub mod train;
