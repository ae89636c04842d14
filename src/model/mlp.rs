//! Linear layers over all numbers of a sample: for vectors, which come as images (F,1,1).

use super::{Layers, Model};
use crate::error::Result;
use crate::graph::{Builder, SampleShape, TensorId};

pub const MLP: Model = Model {
    name: "mlp",
    about: "fc 256, fc 256, fc 1, of vectors of any length: 68,353 parameters for 8 numbers",
    image: SampleShape::image([8, 1, 1]),
    classes: 1,
    layers: Layers::Of(mlp),
};

fn mlp(net: &mut Builder, vectors: TensorId, outputs: usize) -> Result<TensorId> {
    let mut x = net.flatten("flatten", vectors);
    for number in 1..=2 {
        x = net.linear(&format!("fc{number}"), x, 256);
        x = net.relu(&format!("relu{number}"), x);
    }
    Ok(net.linear("fc3", x, outputs))
}
