//! SqueezeNet 1.1: Iandola, Han, Moskewicz, Ashraf, Dally, Keutzer, "SqueezeNet: AlexNet-level accuracy with 50x fewer
//! parameters", 2016, in the authors' later version, with torchvision's names and first values.

use super::{Layers, Model};
use crate::error::Result;
use crate::graph::{Builder, Conv, InitScheme, Pool, SampleShape, TensorId};

pub const SQUEEZENET1_1: Model = Model {
    name: "squeezenet1_1",
    about: "8 blocks of 1×1 and 3×3 in parallel, no linear layer: 1,235,496 parameters",
    image: SampleShape::image([3, 224, 224]),
    classes: 1000,
    layers: Layers::Of(squeezenet1_1),
};

/// A max pooling, or a block with so many channels: squeezed, and of each half of what it gives.
const LAYERS: [Option<[usize; 2]>; 11] = [
    None,
    Some([16, 64]),
    Some([16, 64]),
    None,
    Some([32, 128]),
    Some([32, 128]),
    None,
    Some([48, 192]),
    Some([48, 192]),
    Some([64, 256]),
    Some([64, 256]),
];

fn squeezenet1_1(net: &mut Builder, images: TensorId, classes: usize) -> Result<TensorId> {
    net.init_convolutions(InitScheme::UniformFanIn, InitScheme::Zero);
    let mut x = net.conv("features.0", images, 64, Conv::square(3).stride(2))?;
    x = net.relu("features.1", x);
    for (layer, place) in LAYERS.into_iter().zip(2..) {
        let name = format!("features.{place}");
        x = match layer {
            Some(channels) => fire(net, &name, x, channels)?,
            None => net.max_pool(&name, x, Pool::square(3).stride(2).ceil())?,
        };
    }
    x = net.dropout("classifier.0", x, 0.5);
    net.init_convolutions(InitScheme::Normal { std: 0.01 }, InitScheme::Zero);
    x = net.conv("classifier.1", x, classes, Conv::square(1))?;
    x = net.relu("classifier.2", x);
    x = net.global_avg_pool("classifier.3", x)?;
    Ok(net.flatten("flatten", x))
}

/// 1×1 to few channels; from those 1×1 and 3×3 side by side.
fn fire(net: &mut Builder, name: &str, x: TensorId, [squeezed, expanded]: [usize; 2]) -> Result<TensorId> {
    let part = |part: &str| format!("{name}.{part}");
    let mut layer = |name: &str, x, channels, conv| -> Result<TensorId> {
        let y = net.conv(&part(name), x, channels, conv)?;
        Ok(net.relu(&part(&format!("{name}_activation")), y))
    };
    let x = layer("squeeze", x, squeezed, Conv::square(1))?;
    let parts = [
        layer("expand1x1", x, expanded, Conv::square(1))?,
        layer("expand3x3", x, expanded, Conv::square(3).padding(1))?,
    ];
    net.concat(&part("concat"), &parts)
}
