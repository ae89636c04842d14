//! The zoo: names → graphs. One file a family. May use: `graph`, `error`. Used by: `train`, `bench`.

mod cifar;
mod mnist;

use crate::error::{Error, Result};
use crate::graph::{Builder, Graph, TensorId};

/// A model that `--model` can name.
pub struct Model {
    pub name: &'static str,
    /// One line for `--help` and docs.
    pub about: &'static str,
    /// (C, H, W) of the images it was made for.
    pub image: [usize; 3],
    pub classes: usize,
    layers: fn(&mut Builder, TensorId, usize) -> Result<TensorId>,
}

/// Every model, in the order in which they are listed.
pub const MODELS: &[Model] =
    &[mnist::MNIST_SMALL, mnist::MNIST_NET, mnist::MNIST_LARGE, mnist::LENET5, cifar::CIFAR_NET];

/// The model of this name.
///
/// # Errors
/// `Usage`, listing the names there are, the most alike first.
pub fn find(name: &str) -> Result<&'static Model> {
    MODELS.iter().find(|model| model.name == name).ok_or_else(|| {
        let names: Vec<&str> = MODELS.iter().map(|model| model.name).collect();
        Error::usage(format!("--model {name}: no such model; there are {}", names.join(", ")))
    })
}

impl Model {
    /// The forward graph for `batch` images and `classes` classes, as the paper has it (not yet simplified).
    ///
    /// # Errors
    /// `Usage` when the image is too small for a layer.
    pub fn build(&self, batch: usize, image: [usize; 3], classes: usize) -> Result<Graph> {
        let (mut net, images) = Builder::new(self.name, batch, image);
        let logits = (self.layers)(&mut net, images, classes)?;
        Ok(net.finish(logits))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts as published, or as the layers printed in the source give them (docs/models.md).
    #[test]
    fn parameter_counts_are_the_published_ones() {
        let published = [
            ("mnist_net", 21_840),
            ("mnist_small", 402_442),
            ("mnist_large", 4_104_202),
            ("lenet5", 61_706),
            ("cifar_net", 62_006),
        ];
        assert_eq!(published.len(), MODELS.len());
        for (name, count) in published {
            let model = find(name).unwrap();
            let graph = model.build(2, model.image, model.classes).unwrap();
            assert_eq!(graph.parameter_count(), count, "{name}");
            assert_eq!(graph.simplify().parameter_count(), count, "{name} simplified");
        }
    }

    #[test]
    fn an_unknown_model_is_answered_with_the_known_ones() {
        let error = find("resnet51").err().unwrap();
        assert!(error.message.contains("resnet51") && error.message.contains("mnist_small"), "{error}");
    }

    #[test]
    fn an_image_too_small_is_named_with_its_layer() {
        let error = find("cifar_net").unwrap().build(1, [3, 8, 8], 10).unwrap_err();
        assert!(error.message.contains("layer conv2"), "{error}");
    }
}
