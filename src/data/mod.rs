//! Data sets, and which rank sees which image when.
//!
//! A `Dataset` lies decoded in memory and hands out single images; a `Sharding` says which of them each
//! rank reads at each step; the two loaders put both together and fill a rank's batch. The files of a set
//! are checked completely while they are read, so that nothing can go wrong with them after the start.
//! May use: `error`, `random`. Used by: `train`, `cli`.

mod idx;
mod images;
mod loader;
mod shard;
mod synthetic;

pub use idx::open;
pub use loader::{TestLoader, TrainingLoader};
pub use shard::{Sharding, epoch_order};
pub use synthetic::synthetic;

use std::rc::Rc;

/// Labelled images of one shape.
pub trait Dataset {
    /// How many images there are; at least one.
    fn len(&self) -> usize;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Labels are 0..classes.
    fn classes(&self) -> usize;

    /// (C, H, W) of every image that `read` writes.
    fn sample(&self) -> [usize; 3];

    /// Writes one image, normalised, in the order (C, H, W). `index` is below `len`.
    fn read(&self, index: usize, image: &mut [f32]);

    /// The class of one image.
    fn label(&self, index: usize) -> i32;

    /// What the set holds, in words short enough for a message; equal for equal files only.
    fn fingerprint(&self) -> &str;
}

/// What a run learns from and what it is measured by.
pub struct Sets {
    pub training: Rc<dyn Dataset>,
    pub test: Rc<dyn Dataset>,
}
