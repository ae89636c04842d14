//! Names to graphs: the zoo, one file a family, and networks from ONNX files (`onnx`). May use: `graph`, `files`,
//! `error`. Used by: `record`, `train`, `bench`, `export`.

mod alexnet;
mod cifar;
mod convnext;
mod cosmoflow;
mod deepcam;
mod densenet;
mod efficientnet;
mod googlenet;
mod inception;
mod mlp;
mod mnist;
mod mobilenet;
mod mobilenet_v3;
pub mod onnx;
mod preprocessing;
mod regnet;
mod resnet;
mod shufflenet;
mod squeeze;
mod squeezenet;
mod swin;
mod unet;
mod vgg;
mod vit;

use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::graph::{Builder, Graph, NetworkOutput, SampleShape, Shape, TensorId};
pub use preprocessing::{
    CLASS_NAMES, ChannelScale, EvaluationCrop, FIELDS, LearnedArray, PREPROCESSING, Preprocessing, SAMPLE,
    SampleAxis,
};

/// A model that `--model` can name.
#[derive(Clone)]
pub struct Model {
    /// As `--model` takes it; empty for a file, which has its own.
    name: &'static str,
    /// One line for `--help` and docs.
    pub about: &'static str,
    /// The shape of the images or cubes that it was made for.
    pub image: SampleShape,
    /// How many classes it was made for.
    pub classes: usize,
    layers: Layers,
}

type LayersFn = fn(&mut Builder, TensorId, usize) -> Result<TensorId>;
type SizedLayersFn = fn(&mut Builder, TensorId, usize, [usize; 2]) -> Result<TensorId>;

/// What describes the layers of a model to a builder.
#[derive(Clone)]
enum Layers {
    /// A function that takes the images and the number of classes, and gives the logits.
    Of(LayersFn),
    /// One that is also told how deep and how wide they are, and the name where it says so.
    Sized(SizedLayersFn, [usize; 2], Option<Arc<str>>),
    /// An ONNX file.
    In(Arc<onnx::OnnxFile>),
}

/// Every model that tells classes of images apart, in the order in which they are listed.
pub const MODELS: &[Model] = &[
    mnist::MNIST_SMALL,
    mnist::MNIST_NET,
    mnist::MNIST_LARGE,
    mnist::LENET5,
    cifar::CIFAR_NET,
    alexnet::ALEXNET,
    vgg::VGG11,
    vgg::VGG13,
    vgg::VGG16,
    vgg::VGG19,
    vgg::VGG11_BN,
    vgg::VGG13_BN,
    vgg::VGG16_BN,
    vgg::VGG19_BN,
    resnet::RESNET18,
    resnet::RESNET34,
    resnet::RESNET50,
    resnet::RESNET101,
    resnet::RESNET152,
    resnet::RESNEXT50_32X4D,
    resnet::WIDE_RESNET50_2,
    googlenet::GOOGLENET,
    inception::INCEPTION_V3,
    densenet::DENSENET121,
    mobilenet::MOBILENET_V2,
    mobilenet_v3::MOBILENET_V3_LARGE,
    efficientnet::EFFICIENTNET_B0,
    regnet::REGNET_Y_400MF,
    shufflenet::SHUFFLENET_V2_X1_0,
    squeezenet::SQUEEZENET1_1,
    convnext::CONVNEXT_TINY,
    vit::VIT_B_16,
    swin::SWIN_T,
];

/// Those for arrays, which give numbers or classes for each place, or numbers for each sample: they want an objective
/// (`Graph::with_objective`), and their `classes` are channels of what they give.
pub const FIELD_MODELS: &[Model] =
    &[unet::UNET, unet::UNET_SMALL, unet::UNET3D, deepcam::DEEPCAM, cosmoflow::COSMOFLOW, mlp::MLP];

/// Every model.
pub fn all() -> impl Iterator<Item = &'static Model> {
    MODELS.iter().chain(FIELD_MODELS)
}

/// What --model takes.
pub fn names() -> Vec<&'static str> {
    all().map(|model| model.name).collect()
}

/// Whether `--model` means a file by this, and no name of the zoo.
pub fn is_file(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|extension| extension.eq_ignore_ascii_case("onnx"))
}

/// Whether it means a network of the zoo by its numbers.
pub fn is_by_numbers(name: &str) -> bool {
    name.starts_with(unet::BY_NUMBERS)
}

/// The model of this name, or that of the file of this path.
///
/// # Errors
/// `Usage`, listing the names there are; `Data` where the file cannot be read or its network not trained.
pub fn find(name: &str) -> Result<Model> {
    find_for(name, NetworkOutput::Scores, None)
}

/// The same, of a network that is asked for `gives`, and of a file as it reads samples that are arrays.
///
/// # Errors
/// As for `find`; `Usage` for a network without such an output.
pub fn find_for(name: &str, gives: NetworkOutput, samples: Option<&onnx::SampleArrays>) -> Result<Model> {
    if is_file(name) {
        return open_for(Path::new(name), gives, samples).map_err(|error| error.context("--model"));
    }
    if let NetworkOutput::Loss(loss) = gives {
        return Err(Error::usage(format!(
            "--loss output:{loss}: names an output of an ONNX file, and --model {name} is a network by name"
        )));
    }
    if let Some(numbers) = name.strip_prefix(unet::BY_NUMBERS) {
        return unet::by_numbers(name, numbers);
    }
    all().find(|model| model.name == name).cloned().ok_or_else(|| {
        Error::usage(format!(
            "--model {name}: no such model; there are {}, and files whose names end in .onnx",
            names().join(", ")
        ))
    })
}

/// The model in an ONNX file.
///
/// # Errors
/// `Data` where the file cannot be read or its network not trained.
pub fn open(path: &Path) -> Result<Model> {
    open_for(path, NetworkOutput::Scores, None)
}

/// The same, of a network that is asked for `gives`, as it reads samples that are arrays.
///
/// # Errors
/// As for `open`; `Usage` for a network without such an output.
pub fn open_for(path: &Path, gives: NetworkOutput, samples: Option<&onnx::SampleArrays>) -> Result<Model> {
    let file = onnx::OnnxFile::open(path, gives, samples)?;
    Ok(Model {
        name: "",
        about: "from an ONNX file",
        image: file.image(),
        classes: file.classes(),
        layers: Layers::In(Arc::new(file)),
    })
}

impl Model {
    /// A network of one's own. `layers` describes it to a builder: it is given the images, (N, C, H, W), and the number
    /// of classes, and gives their scores (N, K). `image` (C, H, W) and `classes` are what it is made for.
    pub const fn new(
        name: &'static str,
        image: [usize; 3],
        classes: usize,
        layers: fn(&mut Builder, TensorId, usize) -> Result<TensorId>,
    ) -> Model {
        let image = SampleShape::image(image);
        Model { name, about: "a network of one's own", image, classes, layers: Layers::Of(layers) }
    }

    /// As `--model` takes it; of a file its name without what is before and behind.
    pub fn name(&self) -> &str {
        match &self.layers {
            Layers::In(file) => file.label(),
            Layers::Sized(_, _, Some(name)) => name,
            Layers::Of(_) | Layers::Sized(..) => self.name,
        }
    }

    /// The file that it is from; `None` for one of the zoo.
    pub fn file(&self) -> Option<&onnx::OnnxFile> {
        match &self.layers {
            Layers::Of(_) | Layers::Sized(..) => None,
            Layers::In(file) => Some(file),
        }
    }

    /// What must be the same where a training goes on, and on all ranks: the name, and of a file what it holds.
    pub fn identity(&self) -> String {
        match self.file() {
            None => self.name().into(),
            Some(file) => format!("{}.onnx, CRC-32 {:08x}", self.name(), file.checksum()),
        }
    }

    /// The forward graph for `batch` images and `classes` classes, as the paper has it (not yet simplified).
    ///
    /// # Errors
    /// `Usage` when the image is too small for a layer: which layer, and the smallest size that works.
    pub fn build(&self, batch: usize, image: impl Into<SampleShape>, classes: usize) -> Result<Graph> {
        self.build_or_advise(batch, image.into(), classes, true)
    }

    /// The network's graph for a run that only tests, which will not be trained: a batch of one is never too small for
    /// it.
    ///
    /// # Errors
    /// As for `build`.
    pub fn build_to_test(
        &self,
        batch: usize,
        image: impl Into<SampleShape>,
        classes: usize,
    ) -> Result<Graph> {
        self.build_or_advise(batch, image.into(), classes, false)
    }

    /// Refuses cubes for a network of images by name, and the other way round. One of vectors takes any.
    fn takes(&self, image: SampleShape) -> Result<()> {
        if self.file().is_some() || image.len() == self.image.len() || self.image[1..] == [1, 1] {
            return Ok(());
        }
        let of_axes = |axes: usize| all().filter(move |model| model.image.len() == axes);
        let (own, others) = if image.len() == 4 { ("images", "cubes") } else { ("cubes", "images") };
        let names = match image.len() {
            4 => of_axes(4).map(|model| model.name).collect::<Vec<_>>().join(" and "),
            _ => "unet, deepcam and others (dltrain models)".into(),
        };
        Err(Error::usage(format!(
            "--model {}: is for {own}, and the samples are {}; for {others} there are {names}, and networks from ONNX \
             files",
            self.name(),
            Shape(image.to_vec()),
        )))
    }

    fn build_or_advise(
        &self,
        batch: usize,
        image: SampleShape,
        classes: usize,
        trains: bool,
    ) -> Result<Graph> {
        self.takes(image)?;
        self.try_build(batch, image, classes, trains).map_err(|mut error| {
            // Whether a size works is found by trying: no second description of the layers can go wrong.
            let works = |size: &usize| self.try_build(batch, image.of_size(*size), classes, trains).is_ok();
            let largest = self.image[1..].iter().copied().max().unwrap_or(1);
            if error.kind != ErrorKind::Usage {
                return error;
            }
            if let [channels, 1, length] = image[..]
                && length > 1
            {
                return Error::usage(format!(
                    "--model {}: is for images, and the samples are sequences, {channels}×{length}; networks of \
                     sequences come from ONNX files",
                    self.name()
                ));
            }
            let is_less = |size: &usize| image[1..].iter().any(|edge| edge < size);
            let in_multiples =
                |of: &usize| self.try_build(batch, image.in_multiples_of(*of), classes, trains).is_ok();
            match (1..=largest).find(works) {
                Some(size) if is_less(&size) => {
                    let what =
                        if image.len() == 4 { "edge of a cube" } else { "edge (of pictures --image-size)" };
                    error.message += &format!("; the smallest {what} that works is {size}");
                }
                Some(_) => {
                    if let Some(of) = [2, 4, 8, 16, 32, 64].into_iter().find(in_multiples) {
                        error.message += &format!("; edges that are multiples of {of} work");
                    }
                }
                None => {}
            }
            error
        })
    }

    fn try_build(&self, batch: usize, image: SampleShape, classes: usize, trains: bool) -> Result<Graph> {
        let (mut net, images) = Builder::new(self.name(), batch, image);
        if !trains {
            net.only_to_test();
        }
        let logits = match &self.layers {
            Layers::Of(layers) => layers(&mut net, images, classes)?,
            Layers::Sized(layers, size, _) => layers(&mut net, images, classes, *size)?,
            Layers::In(file) => file.layers(&mut net, images, classes)?,
        };
        Ok(net.finish(logits))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Init, Op, Role};

    /// Counts as published, or as the layers printed in the source give them (docs/models.md).
    #[test]
    fn parameter_counts_are_the_published_ones() {
        let published = [
            ("mnist_net", 21_840),
            ("mnist_small", 402_442),
            ("mnist_large", 4_104_202),
            ("lenet5", 61_706),
            ("cifar_net", 62_006),
            ("alexnet", 61_100_840),
            ("vgg11", 132_863_336),
            ("vgg13", 133_047_848),
            ("vgg16", 138_357_544),
            ("vgg19", 143_667_240),
            ("vgg11_bn", 132_868_840),
            ("vgg13_bn", 133_053_736),
            ("vgg16_bn", 138_365_992),
            ("vgg19_bn", 143_678_248),
            ("resnet18", 11_689_512),
            ("resnet34", 21_797_672),
            ("resnet50", 25_557_032),
            ("resnet101", 44_549_160),
            ("resnet152", 60_192_808),
            ("resnext50_32x4d", 25_028_904),
            ("wide_resnet50_2", 68_883_240),
            ("googlenet", 13_004_888),
            ("inception_v3", 27_161_264),
            ("densenet121", 7_978_856),
            ("mobilenet_v2", 3_504_872),
            ("squeezenet1_1", 1_235_496),
            ("convnext_tiny", 28_589_128),
            ("vit_b_16", 86_567_656),
            ("swin_t", 28_288_354),
            ("shufflenet_v2_x1_0", 2_278_604),
            ("mobilenet_v3_large", 5_483_032),
            ("efficientnet_b0", 5_288_548),
            ("regnet_y_400mf", 4_344_144),
            ("unet", 31_037_698),
            ("unet_small", 482_754),
            // 19,069,955 without normalisations, as published.
            ("unet3d", 19_074_627),
            ("deepcam", 56_454_720),
            ("cosmoflow", 8_907_556),
            ("mlp", 68_353),
        ];
        assert_eq!(published.len(), all().count());
        for (name, count) in published {
            let model = find(name).unwrap();
            let graph = model.build(2, model.image, model.classes).unwrap();
            assert_eq!(graph.parameter_count(), count, "{name}");
            assert_eq!(graph.simplify().parameter_count(), count, "{name} simplified");
        }
    }

    #[test]
    fn a_unet_has_the_depth_and_width_of_its_numbers() {
        let count = |name: &str| {
            let model = find(name).unwrap();
            model.build(2, model.image, model.classes).unwrap().parameter_count()
        };
        assert_eq!(count("unet:depth=4,width=64"), count("unet"));
        assert_eq!([count("unet:width=16,depth=3"), count("unet:depth=4")], [482_754, 31_037_698]);
        // Of its convolutions 3·9·8 + 8·9·8, then 8·9·16 + 16·9·16, back 16·4·8 + 8, 16·9·8 + 8·9·8 and 2·8 + 2; two
        // numbers of each normalisation.
        assert_eq!(count("unet:depth=1,width=8"), 792 + 3456 + 520 + 1728 + 18 + 2 * (4 * 8 + 2 * 16));
        for (name, said) in [
            ("unet:", "depth=4,width=64"),
            ("unet:deep=4", "depth=4,width=64"),
            ("unet:depth=0", "depth from 1 to 8"),
            ("unet:width=4097", "width from 1 to 4096"),
            ("unet:depth=2,depth=3", "each once"),
        ] {
            let error = find(name).err().unwrap();
            assert!(error.message.contains(name) && error.message.contains(said), "{error}");
        }
    }

    /// As torchvision's models have them with num_classes=10.
    #[test]
    fn parameter_counts_follow_the_classes() {
        for (name, count) in [
            ("vgg16", 134_301_514),
            ("vgg11_bn", 128_812_810),
            ("vgg13_bn", 128_997_706),
            ("vgg16_bn", 134_309_962),
            ("vgg19_bn", 139_622_218),
            ("resnet50", 23_528_522),
            ("resnext50_32x4d", 23_000_394),
            ("wide_resnet50_2", 66_854_730),
            ("googlenet", 9_960_638),
            ("inception_v3", 24_371_444),
            ("densenet121", 6_964_106),
            ("mobilenet_v2", 2_236_682),
            ("squeezenet1_1", 727_626),
            ("convnext_tiny", 27_827_818),
            ("vit_b_16", 85_806_346),
            ("swin_t", 27_527_044),
            ("shufflenet_v2_x1_0", 1_263_854),
            ("mobilenet_v3_large", 4_214_842),
            ("efficientnet_b0", 4_020_358),
            ("regnet_y_400mf", 3_907_554),
        ] {
            let model = find(name).unwrap();
            let graph = model.build(2, model.image, 10).unwrap();
            assert_eq!(graph.parameter_count(), count, "{name}");
        }
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
            assert!(
                !graph
                    .nodes
                    .iter()
                    .any(|node| matches!(node.op, Op::Activation(crate::graph::Activation::Relu { .. })))
            );
        }
    }

    /// Counts of trained tensors and running statistics, and names, as `state_dict` has them.
    #[test]
    fn the_larger_ones_have_the_names_of_torchvision() {
        for (name, parameters, statistics, some) in [
            ("vgg11_bn", 38, 16, ["features.1.running_mean", "features.25.weight", "classifier.6.bias"]),
            (
                "googlenet",
                187,
                118,
                ["inception4a.branch3.1.conv.weight", "aux1.fc1.bias", "aux2.conv.bn.bias"],
            ),
            (
                "inception_v3",
                292,
                192,
                [
                    "Mixed_7c.branch3x3dbl_3b.bn.running_var",
                    "AuxLogits.conv1.conv.weight",
                    "AuxLogits.fc.bias",
                ],
            ),
            (
                "densenet121",
                364,
                242,
                [
                    "features.denseblock4.denselayer16.norm2.running_mean",
                    "features.transition3.conv.weight",
                    "features.norm5.bias",
                ],
            ),
            (
                "mobilenet_v2",
                158,
                104,
                ["features.1.conv.0.0.weight", "features.17.conv.3.running_var", "features.18.1.weight"],
            ),
            (
                "squeezenet1_1",
                52,
                0,
                ["features.3.squeeze.weight", "features.12.expand3x3.bias", "classifier.1.weight"],
            ),
            (
                "mobilenet_v3_large",
                174,
                92,
                ["features.4.block.2.fc1.weight", "features.16.1.running_var", "classifier.3.bias"],
            ),
            (
                "efficientnet_b0",
                213,
                98,
                [
                    "features.1.0.block.1.fc2.bias",
                    "features.7.0.block.3.1.running_mean",
                    "classifier.1.weight",
                ],
            ),
            (
                "shufflenet_v2_x1_0",
                170,
                112,
                ["stage2.0.branch1.2.weight", "stage3.7.branch2.6.running_var", "conv5.1.bias"],
            ),
            (
                "vit_b_16",
                152,
                0,
                [
                    "class_token",
                    "encoder.pos_embedding",
                    "encoder.layers.encoder_layer_11.self_attention.in_proj_weight",
                ],
            ),
            (
                "swin_t",
                173,
                0,
                [
                    "features.1.1.attn.relative_position_bias_table",
                    "features.2.reduction.weight",
                    "features.7.1.mlp.3.bias",
                ],
            ),
            (
                "convnext_tiny",
                182,
                0,
                ["features.0.1.weight", "features.5.8.layer_scale", "features.7.2.block.5.bias"],
            ),
            (
                "regnet_y_400mf",
                225,
                106,
                [
                    "stem.0.weight",
                    "trunk_output.block2.block2-1.f.se.fc1.bias",
                    "trunk_output.block4.block4-0.proj.1.running_var",
                ],
            ),
        ] {
            let model = find(name).unwrap();
            let graph = model.build(2, model.image, 1000).unwrap();
            for name in some {
                assert!(graph.tensors.iter().any(|tensor| tensor.name == name), "{name}");
            }
            let counts = [Role::Parameter, Role::Statistic].map(|role| graph.with_role(role).count());
            assert_eq!(counts, [parameters, statistics], "{name}");
        }
    }

    /// In evaluation there are no auxiliary heads: torchvision counts 6,624,904 without those of googlenet.
    #[test]
    fn auxiliary_heads_are_trained_but_not_evaluated() {
        for (name, count) in [("googlenet", 6_624_904), ("inception_v3", 23_834_568)] {
            let model = find(name).unwrap();
            let graph = model.build(2, model.image, 1000).unwrap().for_evaluation().simplify();
            assert_eq!(graph.parameter_count(), count, "{name}");
            let losses = graph.nodes.iter().filter(|node| matches!(node.op, Op::SoftmaxCrossEntropy { .. }));
            assert_eq!(losses.count(), 1);
            assert!(!graph.tensors.iter().any(|tensor| tensor.name.to_lowercase().starts_with("aux")));
        }
    }

    /// Or else a weight would be wanted in two layouts between which there is no reorder: AlexNet's first linear layer,
    /// with dropout between the flattening and itself, once could be trained but not evaluated.
    #[test]
    fn linear_layers_read_in_evaluation_what_they_read_in_training() {
        for model in MODELS {
            let graph = model.build(2, model.image, 10).unwrap();
            let read = |graph: &Graph| {
                let linears = graph.nodes.iter().filter(|node| matches!(node.op, Op::Linear { .. }));
                let shape = |id| graph.tensor(id).spec.shape.clone();
                linears.map(|node| (node.name.clone(), shape(node.inputs[0]))).collect::<Vec<_>>()
            };
            let training = read(&graph.clone().simplify());
            for linear in read(&graph.for_evaluation().simplify()) {
                assert!(training.contains(&linear), "{}: {linear:?}", model.name);
            }
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
    fn an_image_too_small_is_named_with_its_layer_and_the_size_that_works() {
        for (name, size, layer, smallest) in [
            ("cifar_net", 8, "layer conv2", 16),
            ("alexnet", 50, "layer features.12", 63),
            ("vgg16", 31, "layer features.30", 32),
            ("googlenet", 14, "layer maxpool3", 15),
            // Its auxiliary head alone; the rest would do with 75.
            ("inception_v3", 96, "layer AuxLogits.avgpool", 299),
            ("inception_v3", 298, "layer AuxLogits.conv1", 299),
            ("densenet121", 28, "layer features.transition3.pool", 29),
            ("squeezenet1_1", 16, "layer features.8", 17),
        ] {
            let model = find(name).unwrap();
            let error = model.build(2, [3, size, size], 10).unwrap_err();
            assert!(error.message.contains(layer), "{error}");
            assert!(error.message.ends_with(&format!("--image-size) that works is {smallest}")), "{error}");
            assert!(model.build(2, [3, smallest, smallest], 10).is_ok());
            assert!(model.build(2, [3, smallest - 1, smallest - 1], 10).is_err());
        }
        let error = find("unet3d").unwrap().build(1, SampleShape::cube([1, 8, 8, 8]), 3).unwrap_err();
        assert!(
            error.message.ends_with("larger samples; the smallest edge of a cube that works is 16"),
            "{error}"
        );
        let error = find("deepcam").unwrap().build(1, [4, 50, 58], 3).unwrap_err();
        assert!(error.message.ends_with("; edges that are multiples of 16 work"), "{error}");
    }

    #[test]
    fn networks_of_images_and_of_cubes_are_not_given_the_other() {
        let cube = SampleShape::cube([4, 32, 32, 32]);
        for (name, image, part) in [
            (
                "resnet18",
                cube,
                "--model resnet18: is for images, and the samples are 4×32×32×32; for cubes there are \
                                unet3d and cosmoflow",
            ),
            ("vit_b_16", cube, "is for images"),
            ("unet", SampleShape::image([3, 1, 64]), "and the samples are sequences, 3×64; networks"),
            ("unet:depth=2,width=8", cube, "is for images"),
            (
                "unet3d",
                SampleShape::image([4, 32, 32]),
                "is for cubes, and the samples are 4×32×32; for images",
            ),
        ] {
            let error = find(name).unwrap().build(2, image, 4).unwrap_err();
            assert!(error.message.contains(part), "{error}");
        }
        assert!(find("mlp").unwrap().build(2, cube, 4).is_ok());
    }

    /// Names, shapes and first values as torchvision's `state_dict` has them.
    #[test]
    fn parameters_are_named_and_begin_as_in_torchvision() {
        let graph = find("vgg16").unwrap().build(1, [3, 32, 32], 10).unwrap();
        assert_eq!(graph.parameter_count(), 134_301_514);
        let parameter = |graph: &Graph, name: &str| {
            let found = graph.with_role(Role::Parameter).find(|(_, tensor)| tensor.name == name);
            let (_, tensor) = found.unwrap_or_else(|| panic!("no {name}"));
            (tensor.spec.shape.0.clone(), tensor.init.unwrap())
        };
        let fan_out = |channels: usize| Init::Normal { std: (2.0 / (9 * channels) as f32).sqrt() };
        assert_eq!(parameter(&graph, "features.0.weight"), (vec![64, 3, 3, 3], fan_out(64)));
        assert_eq!(parameter(&graph, "features.28.weight"), (vec![512, 512, 3, 3], fan_out(512)));
        assert_eq!(parameter(&graph, "features.28.bias"), (vec![512], Init::Zero));
        assert_eq!(parameter(&graph, "classifier.0.weight"), (vec![4096, 25088], Init::Normal { std: 0.01 }));
        assert_eq!(parameter(&graph, "classifier.6.bias"), (vec![10], Init::Zero));
        let graph = find("inception_v3").unwrap().build(2, [3, 299, 299], 10).unwrap();
        let normal = |std| Init::Normal { std };
        assert_eq!(
            parameter(&graph, "Mixed_6b.branch7x7_2.conv.weight"),
            (vec![128, 128, 1, 7], normal(0.1))
        );
        // torchvision sets 0.01 on the module around this convolution, where its initialisation does not look.
        assert_eq!(parameter(&graph, "AuxLogits.conv1.conv.weight"), (vec![768, 128, 5, 5], normal(0.1)));
        assert_eq!(parameter(&graph, "AuxLogits.fc.weight"), (vec![10, 768], normal(0.001)));
        assert_eq!(parameter(&graph, "fc.weight"), (vec![10, 2048], normal(0.1)));
        let uniform = |fan_in: usize| Init::Uniform { bound: 1.0 / (fan_in as f32).sqrt() };
        assert_eq!(parameter(&graph, "fc.bias"), (vec![10], uniform(2048)));
        let graph = find("mobilenet_v2").unwrap().build(2, [3, 32, 32], 10).unwrap();
        // PyTorch's fan_out of a depthwise convolution counts all channels.
        assert_eq!(parameter(&graph, "features.2.conv.1.0.weight"), (vec![96, 1, 3, 3], fan_out(96)));
        let graph = find("densenet121").unwrap().build(2, [3, 32, 32], 10).unwrap();
        let conv2 = "features.denseblock1.denselayer1.conv2.weight";
        assert_eq!(parameter(&graph, conv2), (vec![32, 128, 3, 3], fan_out(128)));
        assert_eq!(parameter(&graph, "classifier.weight"), (vec![10, 1024], uniform(1024)));
        assert_eq!(parameter(&graph, "classifier.bias"), (vec![10], Init::Zero));
        let graph = find("alexnet").unwrap().build(1, [3, 224, 224], 1000).unwrap();
        assert_eq!(parameter(&graph, "features.0.weight"), (vec![64, 3, 11, 11], uniform(3 * 121)));
        assert_eq!(parameter(&graph, "features.10.bias"), (vec![256], uniform(256 * 9)));
        assert_eq!(parameter(&graph, "classifier.1.weight"), (vec![4096, 9216], uniform(9216)));
        assert_eq!(parameter(&graph, "classifier.6.weight"), (vec![1000, 4096], uniform(4096)));
    }
}
