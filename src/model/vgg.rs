//! VGG: Simonyan and Zisserman 2015, as torchvision has it (names, start of the weights, any image size).

use super::Model;
use crate::error::Result;
use crate::graph::{Builder, Conv2d, LayerInit, Pool2d, TensorId};

pub const VGG11: Model = Model {
    name: "vgg11",
    about: "8 convolutions 3×3, 3 linear layers with dropout: 132,863,336 parameters",
    layers: |net, x, classes| vgg(net, x, classes, [1, 1, 2, 2, 2]),
    ..VGG
};

pub const VGG13: Model = Model {
    name: "vgg13",
    about: "10 convolutions 3×3, 3 linear layers with dropout: 133,047,848 parameters",
    layers: |net, x, classes| vgg(net, x, classes, [2, 2, 2, 2, 2]),
    ..VGG
};

pub const VGG16: Model = Model {
    name: "vgg16",
    about: "13 convolutions 3×3, 3 linear layers with dropout: 138,357,544 parameters",
    layers: |net, x, classes| vgg(net, x, classes, [2, 2, 3, 3, 3]),
    ..VGG
};

pub const VGG19: Model = Model {
    name: "vgg19",
    about: "16 convolutions 3×3, 3 linear layers with dropout: 143,667,240 parameters",
    layers: |net, x, classes| vgg(net, x, classes, [2, 2, 4, 4, 4]),
    ..VGG
};

/// What the four have in common.
const VGG: Model =
    Model { name: "", about: "", image: [3, 224, 224], classes: 1000, layers: |_, x, _| Ok(x) };

/// `depths`: how many convolutions come before each max pooling.
fn vgg(net: &mut Builder, mut x: TensorId, classes: usize, depths: [usize; 5]) -> Result<TensorId> {
    net.init_convolutions(LayerInit::KaimingNormalFanOut);
    net.init_linears(LayerInit::Normal { std: 0.01 });
    // Place in torchvision's `features`.
    let mut place = 0;
    for (depth, channels) in depths.into_iter().zip([64, 128, 256, 512, 512]) {
        for _ in 0..depth {
            x = net.conv2d(&format!("features.{place}"), x, channels, Conv2d::square(3).padding(1))?;
            x = net.relu(&format!("features.{}", place + 1), x);
            place += 2;
        }
        x = net.max_pool(&format!("features.{place}"), x, Pool2d::square(2))?;
        place += 1;
    }
    x = net.adaptive_avg_pool("avgpool", x, [7, 7])?;
    x = net.flatten("flatten", x);
    for place in [0, 3] {
        x = net.linear(&format!("classifier.{place}"), x, 4096);
        x = net.relu(&format!("classifier.{}", place + 1), x);
        x = net.dropout(&format!("classifier.{}", place + 2), x, 0.5);
    }
    Ok(net.linear("classifier.6", x, classes))
}
