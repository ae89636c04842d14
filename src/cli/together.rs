//! Which flags do not go together, and why: one table.

use Flag::*;
use dltrain::error::{Error, Result};

/// A flag, or the values of one, that something does not go with.
#[derive(Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "flags of the same names")]
pub enum Flag {
    Ema,
    F16,
    SyncBn,
    Wire,
    Freeze,
    Compress,
    /// With its scheme.
    Scheme,
    Histograms,
    /// `--allreduce`, if not auto.
    Sums,
    /// If the MPI library or GPUs add up.
    OthersSums,
    /// If GPUs do.
    GpuSums,
    /// If not along a binary tree.
    NoTree,
    GlobalBatch,
    Commit,
    MaxBatch,
    Recompute,
    Shards,
    /// With their number.
    Tree,
    Pipeline,
    /// If gradients of weights have a pass of their own.
    SplitWeights,
    Tensor,
    Spatial,
    /// Any strategy but plain data parallelism.
    Strategy,
    /// Any strategy but plain data parallelism and `--zero 1`.
    BeyondZero1,
    Zero3,
    /// A strategy in which each rank has parameters of its own.
    Relaxed,
    /// A strategy but plain data parallelism in which all ranks have the same parameters.
    Shared,
    Gossip,
    Asynchronous,
    /// If few ranks own everything.
    Central,
}

const SHARD: &str = "a shard is computed by one rank";
const NO_WEIGHTS: &str = "no rank has all weights";
const TOGETHER: &str =
    "ranks of a group have the same images and parameters, and wait for each other in each layer";

/// Where several are broken the first is named.
const NOT_TOGETHER: [(Flag, Flag, &str); 43] = [
    (Ema, Relaxed, "what is evaluated is the mean over ranks, each of which has parameters of its own"),
    (F16, Relaxed, "each rank would skip other steps; bf16 needs no loss scale"),
    (SyncBn, Asynchronous, "ranks that share statistics would wait for each other in every step"),
    (F16, Asynchronous, "the loss scale follows what all ranks find in one step; bf16 needs none"),
    (Wire, Asynchronous, "a server takes gradients where they are added, as f32"),
    (Freeze, Zero3, "nobody updates what is frozen, so that nobody owns it; --zero 2 keeps it whole"),
    (Compress, Gossip, "parameters travel, of which nothing can be left for later"),
    (
        Compress,
        Shared,
        "what is compressed is decoded by every rank for all gradients, and here a rank gets those that it updates",
    ),
    (Wire, Gossip, "parameters travel, which would forget small updates; gradients do not"),
    (Histograms, Strategy, "no rank has the sums of all gradients"),
    (
        OthersSums,
        Strategy,
        "gradients go to those who update through the host's memory by dltrain's own messages",
    ),
    (Sums, Central, "gradients are added up by those who update, in the order of ranks as by shm"),
    (Strategy, Tree, "gradients would be added in another order than along the shards' tree"),
    (SyncBn, Tree, "a shard is normalised by itself, whatever rank computes it"),
    (Compress, Tree, "what a rank leaves out is its own"),
    (Wire, Tree, "sums within a rank would be rounded less than those between"),
    (NoTree, Tree, "shards are added up along a binary tree, which is recursive-doubling"),
    (BeyondZero1, Pipeline, "a stage is summed over its ranks, and at most updated in shares (--zero 1)"),
    (Shards, Pipeline, SHARD),
    (GlobalBatch, Pipeline, "a batch is divided into --micro-batches"),
    (Compress, Pipeline, "what is left for later is kept by buckets, and stages have others"),
    (Histograms, Pipeline, NO_WEIGHTS),
    (Commit, Pipeline, "a node has the state of its own stages alone; use --checkpoint"),
    (MaxBatch, Pipeline, "stages have unlike memory; see --dry-run"),
    (
        Recompute,
        SplitWeights,
        "weights' gradients have a pass of their own, until which what is computed again would be kept; 1f1b and \
         gpipe go",
    ),
    (Pipeline, Tensor, "a stage's ranks have its layers whole"),
    (Strategy, Tensor, "ranks have unlike parameters"),
    (Shards, Tensor, SHARD),
    (SyncBn, Tensor, "exchanges are those of split layers"),
    (Compress, Tensor, "what is left for later would be of unlike parameters; --wire bf16 goes"),
    (Histograms, Tensor, NO_WEIGHTS),
    (Commit, Tensor, "a node has its own parts alone; use --checkpoint"),
    (MaxBatch, Tensor, "which layers are worth splitting changes with the batch; see --dry-run"),
    (OthersSums, Tensor, "sums are of unlike ranks, by dltrain's own messages; auto and ring go"),
    (Pipeline, Spatial, "a rank has rows of all layers, or all rows of some"),
    (BeyondZero1, Spatial, TOGETHER),
    (Shards, Spatial, "a shard is computed by one rank; give --accumulation"),
    (GlobalBatch, Spatial, "it is the ranks / T × --batch × --accumulation"),
    (MaxBatch, Spatial, "it counts whole images; see --dry-run"),
    (Tensor, Spatial, "a split layer's ranks have images of their own"),
    (Scheme, Wire, "what is compressed has a form of its own on the wire"),
    (Scheme, GpuSums, "what is compressed travels from host to host, and these gradients from GPU to GPU"),
    (Scheme, F16, "a gradient that overflowed would stay in what is sent later"),
];

/// That what is given goes together; `said` has of each flag the words, if it is given.
///
/// # Errors
/// `Usage`, naming both and the reason.
pub fn check(said: impl Fn(Flag) -> Option<String>) -> Result<()> {
    let broken = NOT_TOGETHER.iter().find_map(|&(one, other, why)| Some((said(one)?, said(other)?, why)));
    match broken {
        Some((one, other, why)) => Err(Error::usage(format!("{one} and {other}: {why}; leave one out"))),
        None => Ok(()),
    }
}
