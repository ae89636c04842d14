//! The network of MLPerf HPC's CosmoFlow: parameters of cosmology from the dark matter in a cube of space, after
//! Mathuriya et al., "CosmoFlow: using deep learning to learn the universe at scale", SC18, with the kernels and
//! activations of the benchmark's version 1. First values are those of Keras.

use super::{Layers, Model};
use crate::error::Result;
use crate::graph::{Activation, Binary, Builder, Conv, InitScheme, Pool, SampleShape, TensorId, dims};

pub const COSMOFLOW: Model = Model {
    name: "cosmoflow",
    about: "MLPerf HPC's, cubes of 4 redshifts: 8,907,556 parameters",
    image: SampleShape::cube([4, 128, 128, 128]),
    classes: 4,
    layers: Layers::Of(cosmoflow),
};

/// Channels of the first of five convolutions, each of which has twice as many as the one before.
const WIDTH: usize = 32;
const LEAKY: Activation = Activation::LeakyRelu { slope: 0.3 };
/// Beyond the targets, which lie from -1 to 1.
const SCALE: f32 = 1.2;

fn cosmoflow(net: &mut Builder, cubes: TensorId, outputs: usize) -> Result<TensorId> {
    net.init_convolutions(InitScheme::Glorot, InitScheme::Zero);
    net.init_linears(InitScheme::Glorot, InitScheme::Zero);
    let mut x = cubes;
    for layer in 1..=5 {
        let conv = Conv::square(3).padding(1).cubic();
        x = net.conv(&format!("conv{layer}"), x, WIDTH << (layer - 1), conv)?;
        x = net.activation(&format!("relu{layer}"), x, LEAKY);
        x = net.max_pool(&format!("pool{layer}"), x, Pool::square(2).cubic())?;
    }
    // Keras has channels last.
    x = net.permute("channels_last", x, &[0, 2, 3, 4, 1])?;
    x = net.flatten("flatten", x);
    for (layer, features) in [(1, 128), (2, 64)] {
        x = net.linear(&format!("fc{layer}"), x, features);
        x = net.activation(&format!("fc{layer}.relu"), x, LEAKY);
    }
    x = net.linear("fc3", x, outputs);
    x = net.activation("tanh", x, Activation::Tanh);
    let scale = net.constant("scale", dims([1]), &[SCALE])?;
    net.binary("scaled", Binary::Multiply, x, scale)
}
