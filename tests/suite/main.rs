//! What is promised, by subject. One program, since linking thirty takes longer than running most of them;
//! docs/testing.md says how to run one test, and what each needs.
//!
//! `make test` runs each module as a process of its own. What is set for a whole process (libraries that are loaded,
//! limits, the environment) does not reach the next module so; a test that must not meet the others of its module
//! starts this program again.

#![allow(clippy::too_many_lines, reason = "a test may be a long table")]

#[path = "../support/mod.rs"]
mod support;

mod arrays;
mod asynchronous;
mod bench;
mod cli;
mod collectives;
mod combinations;
mod compression;
mod config;
mod cubes;
mod cuda;
mod cudnn;
mod data;
mod doubles;
mod elastic;
mod example;
mod export;
mod fields;
mod fuzz;
mod gpu_probe;
mod gpu_sums;
mod gradients;
mod graphs;
mod groups;
mod hosts;
mod images;
mod kernels;
mod launchers;
mod layouts;
mod memory;
mod minutes;
mod models;
mod networks;
mod onnx;
mod ops;
mod overlap;
mod owners;
mod pipeline;
mod plan;
mod planner;
mod predict;
mod prediction;
mod pytorch;
mod record;
mod relaxed;
mod report;
mod restart;
mod shards;
mod sharing;
mod slurm;
mod spatial;
mod stall;
mod strategies;
mod tensor;
mod tensorboard;
mod timeline;
mod training;
mod weights;
