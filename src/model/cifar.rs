//! Networks for 32×32 colour images.

use super::{Layers, Model};
use crate::error::Result;
use crate::graph::{Builder, Conv, Pool, SampleShape, TensorId};

/// The network of PyTorch's "Training a classifier" tutorial, which DeepSpeed's CIFAR example uses too.
pub const CIFAR_NET: Model = Model {
    name: "cifar_net",
    about: "conv 6 5×5, conv 16 5×5, each with max pool, fc 120, fc 84, fc 10: 62,006 parameters",
    image: SampleShape::image([3, 32, 32]),
    classes: 10,
    layers: Layers::Of(cifar_net),
};

fn cifar_net(net: &mut Builder, mut x: TensorId, classes: usize) -> Result<TensorId> {
    for (layer, channels) in [(1, 6), (2, 16)] {
        x = net.conv(&format!("conv{layer}"), x, channels, Conv::square(5))?;
        x = net.relu(&format!("relu{layer}"), x);
        x = net.max_pool(&format!("pool{layer}"), x, Pool::square(2))?;
    }
    x = net.flatten("flatten", x);
    for (layer, features) in [(1, 120), (2, 84)] {
        x = net.linear(&format!("fc{layer}"), x, features);
        x = net.relu(&format!("relu{}", layer + 2), x);
    }
    Ok(net.linear("fc3", x, classes))
}
