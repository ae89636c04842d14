//! What is trained: a model for the images and classes of this run.

use crate::config::{Config, Precision};
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
    precision: Precision,
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
            precision: config.precision,
        })
    }

    /// The graph of a training step for a batch.
    ///
    /// # Errors
    /// `Usage` when the image is too small for a layer.
    pub fn training(&self, batch: usize) -> Result<Graph> {
        Ok(self.compact(self.forward(batch)?).differentiate())
    }

    /// The graph of an evaluation step for a batch.
    ///
    /// # Errors
    /// As for `training`.
    pub fn evaluation(&self, batch: usize) -> Result<Graph> {
        Ok(self.compact(self.forward(batch)?.for_evaluation()))
    }

    fn forward(&self, batch: usize) -> Result<Graph> {
        Ok(self.model.build(batch, self.image, self.classes)?.smooth_labels(self.label_smoothing))
    }

    fn compact(&self, graph: Graph) -> Graph {
        match self.precision {
            Precision::F32 => graph.simplify(),
            Precision::Bf16 => graph.simplify().in_bf16(),
        }
    }
}
