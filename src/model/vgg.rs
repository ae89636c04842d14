//! VGG: Simonyan and Zisserman 2015, as torchvision has it (names, start of the weights, any image size), plain and
//! with batch normalisation behind every convolution.

use super::{Layers, LayersFn, Model};
use crate::error::Result;
use crate::graph::{BatchNorm, Builder, Conv, InitScheme, Pool, SampleShape, TensorId};

pub const VGG11: Model = model(
    "vgg11",
    "8 convolutions 3×3, 3 linear layers with dropout: 132,863,336 parameters",
    |net, x, classes| vgg(net, x, classes, [1, 1, 2, 2, 2], false),
);

pub const VGG13: Model = model(
    "vgg13",
    "10 convolutions 3×3, 3 linear layers with dropout: 133,047,848 parameters",
    |net, x, classes| vgg(net, x, classes, [2, 2, 2, 2, 2], false),
);

pub const VGG16: Model = model(
    "vgg16",
    "13 convolutions 3×3, 3 linear layers with dropout: 138,357,544 parameters",
    |net, x, classes| vgg(net, x, classes, [2, 2, 3, 3, 3], false),
);

pub const VGG19: Model = model(
    "vgg19",
    "16 convolutions 3×3, 3 linear layers with dropout: 143,667,240 parameters",
    |net, x, classes| vgg(net, x, classes, [2, 2, 4, 4, 4], false),
);

pub const VGG11_BN: Model =
    model("vgg11_bn", "vgg11 with batch normalisation: 132,868,840 parameters", |net, x, classes| {
        vgg(net, x, classes, [1, 1, 2, 2, 2], true)
    });

pub const VGG13_BN: Model =
    model("vgg13_bn", "vgg13 with batch normalisation: 133,053,736 parameters", |net, x, classes| {
        vgg(net, x, classes, [2, 2, 2, 2, 2], true)
    });

pub const VGG16_BN: Model =
    model("vgg16_bn", "vgg16 with batch normalisation: 138,365,992 parameters", |net, x, classes| {
        vgg(net, x, classes, [2, 2, 3, 3, 3], true)
    });

pub const VGG19_BN: Model =
    model("vgg19_bn", "vgg19 with batch normalisation: 143,678,248 parameters", |net, x, classes| {
        vgg(net, x, classes, [2, 2, 4, 4, 4], true)
    });

const fn model(name: &'static str, about: &'static str, layers: LayersFn) -> Model {
    Model { name, about, image: SampleShape::image([3, 224, 224]), classes: 1000, layers: Layers::Of(layers) }
}

/// `depths`: how many convolutions come before each max pooling.
fn vgg(
    net: &mut Builder,
    mut x: TensorId,
    classes: usize,
    depths: [usize; 5],
    normalised: bool,
) -> Result<TensorId> {
    net.init_convolutions(InitScheme::NormalFanOut, InitScheme::Zero);
    net.init_linears(InitScheme::Normal { std: 0.01 }, InitScheme::Zero);
    // Place in torchvision's `features`.
    let mut places = (0..).map(|place| format!("features.{place}"));
    let mut next = move || places.next().unwrap_or_default();
    for (depth, channels) in depths.into_iter().zip([64, 128, 256, 512, 512]) {
        for _ in 0..depth {
            x = net.conv(&next(), x, channels, Conv::square(3).padding(1))?;
            if normalised {
                x = net.batch_norm(&next(), x, BatchNorm::default())?;
            }
            x = net.relu(&next(), x);
        }
        x = net.max_pool(&next(), x, Pool::square(2))?;
    }
    x = net.adaptive_avg_pool("avgpool", x, [1, 7, 7])?;
    x = net.flatten("flatten", x);
    for place in [0, 3] {
        x = net.linear(&format!("classifier.{place}"), x, 4096);
        x = net.relu(&format!("classifier.{}", place + 1), x);
        x = net.dropout(&format!("classifier.{}", place + 2), x, 0.5);
    }
    Ok(net.linear("classifier.6", x, classes))
}
