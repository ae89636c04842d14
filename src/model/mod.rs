//! The zoo: names → graphs. One file a family. May use: `graph`, `error`. Used by: `train`, `bench`.

mod cifar;
mod mnist;
mod resnet;

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
pub const MODELS: &[Model] = &[
    mnist::MNIST_SMALL,
    mnist::MNIST_NET,
    mnist::MNIST_LARGE,
    mnist::LENET5,
    cifar::CIFAR_NET,
    resnet::RESNET18,
    resnet::RESNET34,
    resnet::RESNET50,
    resnet::RESNET101,
    resnet::RESNET152,
];

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
    use crate::graph::{Op, Role};

    /// Counts as published, or as the layers printed in the source give them (docs/models.md).
    #[test]
    fn parameter_counts_are_the_published_ones() {
        let published = [
            ("mnist_net", 21_840),
            ("mnist_small", 402_442),
            ("mnist_large", 4_104_202),
            ("lenet5", 61_706),
            ("cifar_net", 62_006),
            ("resnet18", 11_689_512),
            ("resnet34", 21_797_672),
            ("resnet50", 25_557_032),
            ("resnet101", 44_549_160),
            ("resnet152", 60_192_808),
        ];
        assert_eq!(published.len(), MODELS.len());
        for (name, count) in published {
            let model = find(name).unwrap();
            let graph = model.build(2, model.image, model.classes).unwrap();
            assert_eq!(graph.parameter_count(), count, "{name}");
            assert_eq!(graph.simplify().parameter_count(), count, "{name} simplified");
        }
    }

    /// As torchvision's models have them with num_classes=10.
    #[test]
    fn parameter_counts_follow_the_classes() {
        let resnet50 = find("resnet50").unwrap();
        let graph = resnet50.build(2, resnet50.image, 10).unwrap();
        assert_eq!(graph.parameter_count(), 23_528_522);
    }

    /// The names under which torchvision keeps the same tensors, and what of a block is fused into one op.
    #[test]
    fn a_resnet_has_the_names_of_torchvision_and_its_relus_are_fused() {
        let graph = find("resnet50").unwrap().build(2, [3, 64, 64], 1000).unwrap();
        for name in [
            "conv1.weight",
            "bn1.running_var",
            "layer1.0.downsample.0.weight",
            "layer1.0.downsample.1.bias",
            "layer4.2.conv3.weight",
            "layer4.2.bn3.running_mean",
            "fc.bias",
        ] {
            assert!(graph.tensors.iter().any(|tensor| tensor.name == name), "{name}");
        }
        // 53 convolutions, each with its normalisation, and fc's weight and bias.
        assert_eq!(graph.with_role(Role::Parameter).count(), 3 * 53 + 2);
        assert_eq!(graph.with_role(Role::Statistic).count(), 2 * 53);
        for graph in [graph.clone().simplify(), graph.for_evaluation().simplify()] {
            assert!(!graph.nodes.iter().any(|node| node.op == Op::Relu));
        }
    }

    #[test]
    fn one_value_a_channel_cannot_be_normalised() {
        let error = find("resnet18").unwrap().build(1, [3, 32, 32], 10).unwrap_err();
        assert!(
            error.message.contains("layer layer4.0.bn1") && error.message.contains("--batch 2"),
            "{error}"
        );
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
