//! Fills a rank's batches. Nothing here allocates once an epoch has begun.

use std::rc::Rc;

use super::Dataset;
use super::shard::{Sharding, epoch_order};
use crate::error::Result;

/// The label of a place in a batch that holds no image: it counts neither in loss nor in accuracy.
pub const PADDING: i32 = -1;

/// This rank's training batches.
pub struct TrainingLoader {
    set: Rc<dyn Dataset>,
    sharding: Sharding,
    seed: u64,
    order: Vec<u32>,
    steps: usize,
    /// Images of this epoch that were seen before this job.
    seen: usize,
}

impl TrainingLoader {
    /// A loader that stands at the start of epoch 0.
    ///
    /// # Errors
    /// A usage error when the set is smaller than one global batch.
    pub fn new(set: Rc<dyn Dataset>, sharding: Sharding, seed: u64) -> Result<TrainingLoader> {
        let steps = sharding.steps(set.len())?;
        let order = epoch_order(seed, 0, set.len());
        Ok(TrainingLoader { set, sharding, seed, order, steps, seen: 0 })
    }

    /// Updates an epoch has.
    pub fn steps(&self) -> usize {
        self.steps
    }

    /// Updates an epoch has left after so many images.
    pub fn steps_after(&self, seen: usize) -> usize {
        self.set.len().saturating_sub(seen) / self.sharding.global_batch()
    }

    /// What the set holds: see `Dataset::fingerprint`.
    pub fn fingerprint(&self) -> &str {
        self.set.fingerprint()
    }

    /// Shuffles anew; epochs count from 0. Of its order the first `seen` images were trained on before: step 0 begins
    /// after them, whatever ranks and batches they were cut into.
    pub fn start_epoch(&mut self, epoch: usize, seen: usize) {
        self.order = epoch_order(self.seed, epoch, self.set.len());
        self.seen = seen;
    }

    /// Fills the batch of one micro-step (0..accumulation) of a step (0..steps) of this epoch: images
    /// (batch, C, H, W), labels (batch).
    pub fn fill(&self, step: usize, micro: usize, images: &mut [f32], labels: &mut [i32]) {
        let indices = &self.order[self.seen..][self.sharding.training(step, micro)];
        read(&*self.set, indices.iter().map(|&index| index as usize), images, labels);
    }
}

/// This rank's part of the test set, in the set's own order.
pub struct TestLoader {
    set: Rc<dyn Dataset>,
    sharding: Sharding,
}

impl TestLoader {
    pub fn new(set: Rc<dyn Dataset>, sharding: Sharding) -> TestLoader {
        TestLoader { set, sharding }
    }

    /// Batches to run; the same on every rank, whether or not the last ones hold images.
    pub fn steps(&self) -> usize {
        self.sharding.test_steps(self.set.len())
    }

    /// Fills a batch and returns how many images it holds; the places after them are zeros with the
    /// label −1.
    pub fn fill(&self, step: usize, images: &mut [f32], labels: &mut [i32]) -> usize {
        let indices = self.sharding.test(step, self.set.len());
        let count = indices.len();
        let sample: usize = self.set.sample().iter().product();
        let (images, no_images) = images.split_at_mut(count * sample);
        let (labels, no_labels) = labels.split_at_mut(count);
        read(&*self.set, indices, images, labels);
        no_images.fill(0.0);
        no_labels.fill(PADDING);
        count
    }
}

fn read(set: &dyn Dataset, indices: impl Iterator<Item = usize>, images: &mut [f32], labels: &mut [i32]) {
    let sample: usize = set.sample().iter().product();
    for ((index, image), label) in indices.zip(images.chunks_exact_mut(sample)).zip(labels) {
        set.read(index, image);
        *label = set.label(index);
    }
}
