//! What is trained: a model for the images and classes of this run.

use crate::config::Config;
use crate::error::Result;
use crate::graph::Graph;
use crate::model::{self, Model};

/// A model with the choices of a run. Its evaluation uses the same loss.
#[derive(Clone, Copy)]
pub struct Network {
    pub model: &'static Model,
    /// (C, H, W)
    pub image: [usize; 3],
    pub classes: usize,
    label_smoothing: f32,
}

impl Network {
    /// # Errors
    /// `Usage` for an unknown model.
    pub fn new(config: &Config) -> Result<Network> {
        let model = model::find(&config.model)?;
        let [channels, height, width] = model.image;
        Ok(Network {
            model,
            image: config.image_size.map_or([channels, height, width], |size| [channels, size, size]),
            classes: config.classes.unwrap_or(model.classes),
            label_smoothing: config.label_smoothing,
        })
    }

    /// The forward graph for a batch, not yet simplified.
    ///
    /// # Errors
    /// `Usage` when the image is too small for a layer.
    pub fn forward(&self, batch: usize) -> Result<Graph> {
        Ok(self.model.build(batch, self.image, self.classes)?.smooth_labels(self.label_smoothing))
    }
}
