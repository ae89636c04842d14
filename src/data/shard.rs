//! Which image goes to which rank at which step.
//!
//! An epoch is one shuffled order of all training images, the same on every rank. Step t takes the slice
//! `[t·G, (t+1)·G)` of it, G = ranks × batch × accumulation; within the slice rank r, micro-step m has
//! the contiguous `batch` positions from `(r·accumulation + m)·batch`. A sample's position in the global
//! batch thus does not depend on how G is factored: 2 ranks × 32 train on what 1 rank × 64 trains on. A G that is given
//! (`--global-batch`) may be less than that product: each rank then has an even part of the slice, of which its last
//! micro-steps have fewer images than `batch`, or none.

use std::ops::Range;

use crate::config::most;
use crate::cuts::segment;
use crate::error::{Error, Result};
use crate::random::{Purpose, Stream, key};

/// How a global batch is cut up, and which part of it is this rank's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sharding {
    /// How many ranks share the images.
    pub ranks: usize,
    /// This rank's number.
    pub rank: usize,
    /// Images a rank sees at once.
    pub batch: usize,
    /// Micro-steps before each update.
    pub accumulation: usize,
    /// Images of all ranks in an update, where that is less than all these have room for.
    pub global: Option<usize>,
}

impl Sharding {
    /// Images an update is made from, over all ranks: G.
    pub fn global_batch(&self) -> usize {
        let room = self.ranks.saturating_mul(self.batch).saturating_mul(self.accumulation);
        self.global.unwrap_or(room).min(room)
    }

    /// Updates an epoch of so many images has. The images left over are not seen in that epoch.
    ///
    /// # Errors
    /// A usage error when they do not suffice for one update.
    pub fn steps(&self, images: usize) -> Result<usize> {
        let global = self.global_batch();
        if global == 0 {
            return Err(Error::usage("ranks, --batch and accumulation must each be at least 1"));
        }
        if global > images {
            let cause = format!(
                "the training set has {images} samples, fewer than one global batch of {global} \
                 ({} ranks × batch {} × accumulation {})",
                self.ranks, self.batch, self.accumulation
            );
            let largest = images / self.ranks.saturating_mul(self.accumulation);
            let remedy = match largest {
                0 => format!(
                    "with accumulation {} at most {} ranks can share it",
                    self.accumulation,
                    images / self.accumulation
                ),
                _ => format!("the largest --batch that works is {largest}"),
            };
            return Err(Error::usage(format!("{cause}; {remedy}")));
        }
        if global > most::IMAGES {
            return Err(Error::usage(format!(
                "a global batch of {} ranks × --batch {} × --accumulation {}: at most {} samples",
                self.ranks,
                self.batch,
                self.accumulation,
                most::IMAGES
            )));
        }
        Ok(images / global)
    }

    /// Positions within the global batch of a micro-step's samples on this rank.
    fn positions(&self, micro: usize) -> Range<usize> {
        let own = segment(&(0..self.global_batch()), self.ranks, self.rank);
        let at = |micro: usize| (own.start + micro * self.batch).min(own.end);
        at(micro)..at(micro + 1)
    }

    /// Position of this rank's first sample within the global batch.
    pub fn first_sample(&self, micro: usize) -> usize {
        self.positions(micro).start
    }

    /// The positions in the epoch's order that this rank reads: at most `batch`.
    pub fn training(&self, step: usize, micro: usize) -> Range<usize> {
        let Range { start, end } = self.positions(micro);
        let before = step * self.global_batch();
        before + start..before + end
    }

    /// Batches each rank runs, so that all together see every one of so many test images once.
    pub fn test_steps(&self, images: usize) -> usize {
        images.div_ceil(self.ranks * self.batch)
    }

    /// The test images this rank reads: `batch` of them, fewer or none at the end of the set.
    pub fn test(&self, step: usize, images: usize) -> Range<usize> {
        let first = (step * self.ranks + self.rank) * self.batch;
        first.min(images)..(first + self.batch).min(images)
    }
}

/// The order in which an epoch goes through so many images.
pub fn epoch_order(seed: u64, epoch: usize, images: usize) -> Vec<u32> {
    Stream::new(key(seed, Purpose::Shuffle, epoch as u32)).permutation(images)
}

/// The order of an epoch for images that lie in blocks on disk: blocks come in random order, and images are shuffled
/// within windows of `window` images. Within each global batch they are sorted, so that the ranks' parts of a window
/// lie in unlike blocks and each block is read by few of them. `starts` says where blocks begin, 0 first.
///
/// Two images of one block meet in the same global batch with a probability of about global / window, where in a full
/// shuffle it is global / images. Files of `dltrain pack` are shuffled already, so that a block is a random choice.
pub fn block_order(
    seed: u64,
    epoch: usize,
    images: usize,
    starts: &[u32],
    global: usize,
    window: usize,
) -> Vec<u32> {
    let mut stream = Stream::new(key(seed, Purpose::Shuffle, epoch as u32));
    let end = |block: usize| starts.get(block + 1).map_or(images as u32, |&next| next);
    let blocks = stream.permutation(starts.len()).into_iter().map(|block| block as usize);
    let mut order: Vec<u32> = blocks.flat_map(|block| starts[block]..end(block)).collect();
    for window in order.chunks_mut(window.max(1)) {
        for last in (1..window.len()).rev() {
            window.swap(last, stream.below(last as u32 + 1) as usize);
        }
    }
    order.chunks_mut(global.max(1)).for_each(<[u32]>::sort_unstable);
    order
}

/// Global batches in a window.
pub const WINDOW: usize = 4;
