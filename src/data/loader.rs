//! A rank's batches. Which images they hold is a function of (seed, epoch, step) and the sharding alone.

use super::prefetch::{Chosen, Order, Reader};
use std::sync::Arc;

use super::fields::MissingCount;
use super::prefetch::AHEAD;
pub use super::prefetch::{Batch, PADDING, Reading};
use super::sample::Samples;
use super::shard::{Sharding, WINDOW, block_order, epoch_order};
use crate::error::Result;

/// This rank's training batches.
pub struct TrainingLoader {
    reader: Reader<TrainingOrder>,
    order: TrainingOrder,
    steps: usize,
    epoch: usize,
    skipped: usize,
    missing: MissingCount,
    kept: usize,
    fingerprint: String,
}

impl TrainingLoader {
    /// A loader that stands at the start of epoch 0.
    ///
    /// # Errors
    /// A usage error when the set is smaller than one global batch.
    pub fn new(samples: Samples, sharding: Sharding, seed: u64, reading: Reading) -> Result<TrainingLoader> {
        let steps = sharding.steps(samples.len())?;
        let order = TrainingOrder::new(&samples, sharding, seed);
        let apart = order.apart(0).min(sharding.batch) * samples.sample().iter().product::<usize>();
        let partners = (AHEAD + 1) * apart * size_of::<f32>();
        let shuffled = order.images * size_of::<u32>();
        let kept = shuffled + partners + samples.set().keep(order.near(), reading.threads());
        let fingerprint = samples.fingerprint();
        let reader = Reader::new(samples, order.clone(), reading);
        Ok(TrainingLoader {
            reader,
            order,
            steps,
            epoch: 0,
            skipped: 0,
            missing: MissingCount::default(),
            kept,
            fingerprint,
        })
    }

    /// Updates an epoch has.
    pub fn steps(&self) -> usize {
        self.steps
    }

    /// Updates an epoch has left after so many images.
    pub fn steps_after(&self, seen: usize) -> usize {
        self.order.steps_after(seen)
    }

    /// What the set holds: see `Samples::fingerprint`.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// What ranks that share the samples so read in the first epoch, one after the other, each in its order.
    ///
    /// # Errors
    /// As for `new`.
    pub fn first_epoch(
        samples: &Samples,
        sharding: Sharding,
        seed: u64,
    ) -> Result<impl Iterator<Item = Vec<u32>>> {
        let (steps, mut order) =
            (sharding.steps(samples.len())?, TrainingOrder::new(samples, sharding, seed));
        samples.set().keep(order.near(), 1);
        Ok((0..sharding.ranks).map(move |rank| {
            order.sharding.rank = rank;
            let batches = 0..(steps * sharding.accumulation) as u64;
            batches.filter_map(|batch| order.images(batch)).flat_map(|chosen| chosen.images).collect()
        }))
    }

    /// Bytes of files that are kept in memory, of images that are read to be mixed into others, and of an epoch's
    /// order.
    pub fn kept(&self) -> usize {
        self.kept
    }

    /// Shuffles anew; epochs count from 0.
    pub fn start_epoch(&mut self, epoch: usize) {
        (self.epoch, self.skipped, self.missing) = (epoch, 0, MissingCount::default());
    }

    /// Begins an epoch of which the first `seen` images were trained on before, in the order of a run whose global
    /// batch was `shuffled_for`: step 0 begins after them, whatever ranks and batches they were cut into.
    pub fn go_on(&mut self, epoch: usize, seen: usize, shuffled_for: usize) {
        self.order.start = BatchStart { epoch, seen, shuffled_for };
        self.order.shuffled = None;
        self.reader.reorder(self.order.clone());
        self.start_epoch(epoch);
    }

    /// Nothing is read ahead behind so many updates of this epoch and of those that follow.
    pub fn ends_after(&mut self, updates: usize) {
        let more = updates.saturating_mul(self.order.sharding.accumulation) as u64;
        let end = self.order.number(self.epoch, 0, 0).saturating_add(more);
        if self.order.end != end {
            self.order.end = end;
            self.reader.reorder(self.order.clone());
        }
    }

    /// Fills the batch of one micro-step (0..accumulation) of a step (0..steps) of this epoch, or exchanges it for a
    /// filled one. An image that cannot be read is zeros with the label `PADDING`. Steps in order are read ahead; any
    /// other is found too.
    ///
    /// # Errors
    /// `Data`: an image cannot be read and is not to be skipped, or none can be.
    pub fn fill(&mut self, step: usize, micro: usize, batch: &mut Batch) -> Result<()> {
        let number = self.order.number(self.epoch, step, micro);
        let (_, unread) = self.reader.fill(number, batch)?;
        self.skipped += unread;
        self.missing += batch.missing;
        Ok(())
    }

    /// Whether `fill` would not wait for this batch.
    pub fn has(&mut self, step: usize, micro: usize) -> bool {
        self.reader.has(self.order.number(self.epoch, step, micro))
    }

    /// Images of this epoch that this rank could not read.
    pub fn skipped(&self) -> usize {
        self.skipped
    }

    /// How many numbers of arrays this rank has read in this epoch, and how many of them are missing.
    pub fn missing(&self) -> MissingCount {
        self.missing
    }
}

/// Where the numbers of batches begin.
#[derive(Clone, Copy)]
struct BatchStart {
    epoch: usize,
    /// Images of that epoch which are behind.
    seen: usize,
    /// The global batch by which that epoch is shuffled.
    shuffled_for: usize,
}

/// Batches are numbered through all epochs.
#[derive(Clone)]
struct TrainingOrder {
    sharding: Sharding,
    seed: u64,
    images: usize,
    /// Where blocks begin; none where images are shuffled one by one.
    blocks: Arc<Vec<u32>>,
    /// Whether each image is mixed with another.
    mixes: bool,
    start: BatchStart,
    /// The batch at which the run ends.
    end: u64,
    /// The epoch in hand and its order.
    shuffled: Option<(usize, Vec<u32>)>,
}

impl TrainingOrder {
    fn new(samples: &Samples, sharding: Sharding, seed: u64) -> TrainingOrder {
        TrainingOrder {
            sharding,
            seed,
            images: samples.len(),
            blocks: samples.blocks(),
            mixes: samples.augment().mixes(),
            start: BatchStart { epoch: 0, seen: 0, shuffled_for: sharding.global_batch() },
            end: u64::MAX,
            shuffled: None,
        }
    }

    /// How many samples a rank reads of those among which the order leads back and forth.
    fn near(&self) -> usize {
        WINDOW * self.sharding.batch * self.sharding.accumulation
    }

    fn shuffle(&self, epoch: usize) -> Vec<u32> {
        if self.blocks.is_empty() {
            return epoch_order(self.seed, epoch, self.images);
        }
        let global = self.shuffled_for(epoch);
        block_order(self.seed, epoch, self.images, &self.blocks, global, WINDOW * global)
    }

    /// The global batch by which an epoch is shuffled.
    fn shuffled_for(&self, epoch: usize) -> usize {
        match epoch == self.start.epoch {
            true => self.start.shuffled_for,
            false => self.sharding.global_batch(),
        }
    }

    /// How far behind an image in the epoch's order the one lies that it is mixed with; 0 where none is. The next one,
    /// but where images are read in blocks, which always hold the same ones, the first that is sure to lie in another
    /// block.
    fn apart(&self, epoch: usize) -> usize {
        let ends = self.blocks.iter().skip(1).copied().chain([self.images as u32]);
        let largest = self.blocks.iter().zip(ends).map(|(start, end)| (end - start) as usize).max();
        match self.mixes {
            true => largest.unwrap_or(1).clamp(1, (self.shuffled_for(epoch) / 2).max(1)),
            false => 0,
        }
    }

    fn steps_after(&self, seen: usize) -> usize {
        self.images.saturating_sub(seen) / self.sharding.global_batch()
    }

    /// The number of a batch.
    fn number(&self, epoch: usize, step: usize, micro: usize) -> u64 {
        let before = match epoch.checked_sub(self.start.epoch + 1) {
            Some(whole) => self.steps_after(self.start.seen) + whole * self.steps_after(0),
            None => 0,
        };
        ((before + step) * self.sharding.accumulation + micro) as u64
    }

    /// Epoch, step and micro-step of a batch.
    fn place(&self, number: u64) -> (usize, usize, usize) {
        let (update, micro) =
            (number as usize / self.sharding.accumulation, number as usize % self.sharding.accumulation);
        let first = self.steps_after(self.start.seen);
        match update.checked_sub(first) {
            None => (self.start.epoch, update, micro),
            Some(later) => {
                let steps = self.steps_after(0);
                (self.start.epoch + 1 + later / steps, later % steps, micro)
            }
        }
    }
}

impl Order for TrainingOrder {
    fn images(&mut self, batch: u64) -> Option<Chosen> {
        if batch >= self.end {
            return None;
        }
        let (epoch, step, micro) = self.place(batch);
        let seen = if epoch == self.start.epoch { self.start.seen } else { 0 };
        let apart = self.apart(epoch);
        if self.shuffled.as_ref().is_none_or(|(of, _)| *of != epoch) {
            // The last epoch's order goes before there is another.
            self.shuffled = None;
            self.shuffled = Some((epoch, self.shuffle(epoch)));
        }
        let (_, order) = self.shuffled.as_ref()?;
        let own = self.sharding.training(step, micro);
        let (first, count) = (seen + own.start, own.len());
        let mut images = order[first..first + count].to_vec();
        // The last ones' partners lie behind them.
        let more = first + apart.max(count)..first + apart + count;
        images.extend(more.map(|place| order[place % order.len()]));
        Some(Chosen { epoch, images, count })
    }
}

/// This rank's part of the test set, in the set's own order.
pub struct TestLoader {
    reader: Reader<TestOrder>,
    order: TestOrder,
    kept: usize,
    missing: MissingCount,
}

impl TestLoader {
    /// The batches of this rank's share of the test images, in order.
    pub fn new(samples: Samples, sharding: Sharding, reading: Reading) -> TestLoader {
        let kept = match samples.fields() {
            Some(_) => samples.set().keep(sharding.batch, reading.threads()),
            None => 0,
        };
        let order = TestOrder { sharding, images: samples.len() };
        let missing = MissingCount::default();
        TestLoader { reader: Reader::new(samples, order.clone(), reading), order, kept, missing }
    }

    /// Bytes of files of arrays that are kept in memory.
    pub fn kept(&self) -> usize {
        self.kept
    }

    /// How many numbers of arrays this rank has read in the last test, and how many of them are missing.
    pub fn missing(&self) -> MissingCount {
        self.missing
    }

    /// Batches to run; the same on every rank, whether or not the last ones hold images.
    pub fn steps(&self) -> usize {
        self.order.sharding.test_steps(self.order.images)
    }

    /// Fills a batch and returns how many images it holds; places without one, and those of images that cannot be read,
    /// are zeros with the label `PADDING`.
    ///
    /// # Errors
    /// As for training.
    pub fn fill(&mut self, step: usize, batch: &mut Batch) -> Result<usize> {
        let (count, unread) = self.reader.fill(step as u64, batch)?;
        if step == 0 {
            self.missing = MissingCount::default();
        }
        self.missing += batch.missing;
        if step + 1 == self.steps() {
            self.reader.rest();
        }
        Ok(count - unread)
    }
}

#[derive(Clone)]
struct TestOrder {
    sharding: Sharding,
    images: usize,
}

impl Order for TestOrder {
    fn images(&mut self, batch: u64) -> Option<Chosen> {
        let step = batch as usize;
        let places = self.sharding.test(step, self.images);
        let count = places.len();
        (step < self.sharding.test_steps(self.images)).then(|| Chosen {
            epoch: 0,
            images: places.map(|index| index as u32).collect(),
            count,
        })
    }
}
