//! AlexNet.

use super::{Layers, Model};
use crate::error::Result;
use crate::graph::{Builder, Conv, Pool, SampleShape, TensorId};

/// Krizhevsky 2014 ("One weird trick …"), as torchvision has it: its names, no local response normalisation.
pub const ALEXNET: Model = Model {
    name: "alexnet",
    about: "5 convolutions 11×11 to 3×3, 3 linear layers with dropout: 61,100,840 parameters",
    image: SampleShape::image([3, 224, 224]),
    classes: 1000,
    layers: Layers::Of(alexnet),
};

fn alexnet(net: &mut Builder, mut x: TensorId, classes: usize) -> Result<TensorId> {
    // Place in torchvision's `features`, channels, geometry, whether a max pooling follows.
    let convolutions = [
        (0, 64, Conv::square(11).stride(4).padding(2), true),
        (3, 192, Conv::square(5).padding(2), true),
        (6, 384, Conv::square(3).padding(1), false),
        (8, 256, Conv::square(3).padding(1), false),
        (10, 256, Conv::square(3).padding(1), true),
    ];
    for (place, channels, conv, pool) in convolutions {
        x = net.conv(&format!("features.{place}"), x, channels, conv)?;
        x = net.relu(&format!("features.{}", place + 1), x);
        if pool {
            x = net.max_pool(&format!("features.{}", place + 2), x, Pool::square(3).stride(2))?;
        }
    }
    x = net.adaptive_avg_pool("avgpool", x, [1, 6, 6])?;
    x = net.flatten("flatten", x);
    for place in [0, 3] {
        x = net.dropout(&format!("classifier.{place}"), x, 0.5);
        x = net.linear(&format!("classifier.{}", place + 1), x, 4096);
        x = net.relu(&format!("classifier.{}", place + 2), x);
    }
    Ok(net.linear("classifier.6", x, classes))
}
