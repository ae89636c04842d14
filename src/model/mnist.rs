//! Networks for 28×28 grey images (MNIST and its kind).

use super::{Layers, Model};
use crate::error::Result;
use crate::graph::{Builder, Conv, Pool, SampleShape, TensorId};

/// One convolution, two linear layers: 402,442 parameters, nearly all in fc1.
pub const MNIST_SMALL: Model = Model {
    name: "mnist_small",
    about: "conv 32 3×3, max pool, fc 64, fc 10: 402,442 parameters",
    image: SampleShape::image([1, 28, 28]),
    classes: 10,
    layers: Layers::Of(mnist_small),
};

fn mnist_small(net: &mut Builder, x: TensorId, classes: usize) -> Result<TensorId> {
    let x = net.conv("conv1", x, 32, Conv::square(3).padding(1))?;
    let x = net.relu("relu1", x);
    let x = net.max_pool("pool1", x, Pool::square(2))?;
    let x = net.flatten("flatten", x);
    let x = net.linear("fc1", x, 64);
    let x = net.relu("relu2", x);
    Ok(net.linear("fc2", x, classes))
}

/// The network of the PyTorch and Horovod MNIST examples.
pub const MNIST_NET: Model = Model {
    name: "mnist_net",
    about: "conv 10 5×5, conv 20 5×5, dropout, fc 50, fc 10: 21,840 parameters",
    image: SampleShape::image([1, 28, 28]),
    classes: 10,
    layers: Layers::Of(mnist_net),
};

fn mnist_net(net: &mut Builder, x: TensorId, classes: usize) -> Result<TensorId> {
    let x = net.conv("conv1", x, 10, Conv::square(5))?;
    let x = net.max_pool("pool1", x, Pool::square(2))?;
    let x = net.relu("relu1", x);
    let x = net.conv("conv2", x, 20, Conv::square(5))?;
    let x = net.max_pool("pool2", x, Pool::square(2))?;
    let x = net.relu("relu2", x);
    let x = net.dropout("dropout", x, 0.5);
    let x = net.flatten("flatten", x);
    let x = net.linear("fc1", x, 50);
    let x = net.relu("relu3", x);
    Ok(net.linear("fc2", x, classes))
}

/// Three wide convolutions and three linear layers. The report it comes from states 2,636,554 parameters, which
/// its own printed layers never give: with same padding, as here, they are 4,104,202.
pub const MNIST_LARGE: Model = Model {
    name: "mnist_large",
    about: "conv 128, 256, 512 3×3, each with max pool, fc 512, fc 512, fc 10: 4,104,202 parameters",
    image: SampleShape::image([1, 28, 28]),
    classes: 10,
    layers: Layers::Of(mnist_large),
};

fn mnist_large(net: &mut Builder, mut x: TensorId, classes: usize) -> Result<TensorId> {
    for (index, channels) in [128, 256, 512].into_iter().enumerate() {
        let layer = index + 1;
        x = net.conv(&format!("conv{layer}"), x, channels, Conv::square(3).padding(1))?;
        x = net.relu(&format!("relu{layer}"), x);
        x = net.max_pool(&format!("pool{layer}"), x, Pool::square(2))?;
    }
    x = net.flatten("flatten", x);
    for layer in 1..=2 {
        x = net.linear(&format!("fc{layer}"), x, 512);
        x = net.relu(&format!("relu{}", layer + 3), x);
    }
    Ok(net.linear("fc3", x, classes))
}

/// LeCun, Bottou, Bengio, Haffner 1998, in today's form: ReLU, average pooling, all maps connected.
pub const LENET5: Model = Model {
    name: "lenet5",
    about: "conv 6 5×5, conv 16 5×5, each with average pool, fc 120, fc 84, fc 10: 61,706 parameters",
    image: SampleShape::image([1, 28, 28]),
    classes: 10,
    layers: Layers::Of(lenet5),
};

fn lenet5(net: &mut Builder, x: TensorId, classes: usize) -> Result<TensorId> {
    let x = net.conv("conv1", x, 6, Conv::square(5).padding(2))?;
    let x = net.relu("relu1", x);
    let x = net.avg_pool("pool1", x, Pool::square(2))?;
    let x = net.conv("conv2", x, 16, Conv::square(5))?;
    let x = net.relu("relu2", x);
    let x = net.avg_pool("pool2", x, Pool::square(2))?;
    let x = net.flatten("flatten", x);
    let x = net.linear("fc1", x, 120);
    let x = net.relu("relu3", x);
    let x = net.linear("fc2", x, 84);
    let x = net.relu("relu4", x);
    Ok(net.linear("fc3", x, classes))
}
