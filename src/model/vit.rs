//! Vision transformers: Dosovitskiy et al., "An image is worth 16x16 words: transformers for image recognition at
//! scale", 2021, with torchvision's names and first values.

use super::{Layers, Model};
use crate::error::{Error, Result};
use crate::graph::{Activation, Binary, Builder, Conv, Init, InitScheme, SampleShape, TensorId, dims};

pub const VIT_B_16: Model = Model {
    name: "vit_b_16",
    about: "12 encoder layers of attention over patches of 16×16: 86,567,656 parameters",
    image: SampleShape::image([3, 224, 224]),
    classes: 1000,
    layers: Layers::Of(vit_b_16),
};

const LAYERS: usize = 12;
const HEADS: usize = 12;
const WIDTH: usize = 768;
const PATCH: usize = 16;
const EPSILON: f32 = 1e-6;

fn vit_b_16(net: &mut Builder, images: TensorId, classes: usize) -> Result<TensorId> {
    // torchvision cuts these off at ±2, which is 55 deviations: a normal distribution.
    let channels = net.shape(images).0[1];
    net.init_convolutions(
        InitScheme::Normal { std: 1.0 / ((channels * PATCH * PATCH) as f32).sqrt() },
        InitScheme::Zero,
    );
    let x = net.conv("conv_proj", images, WIDTH, Conv::square(PATCH).stride(PATCH))?;
    let Some([n, _, h, w]) = net.shape(x).nchw() else {
        return Err(Error::internal("patches are no image"));
    };
    let x = net.reshape("patches", x, dims([n, WIDTH, h * w]))?;
    let x = net.permute("patches.last", x, &[0, 2, 1])?;
    let class = net.learned("class_token", dims([1, 1, WIDTH]), Init::Zero, false);
    let class = net.expand("class", class, dims([n, 1, WIDTH]))?;
    let x = net.concat_along("tokens", 1, &[class, x])?;
    let length = h * w + 1;
    let places = dims([1, length, WIDTH]);
    let places = net.learned("encoder.pos_embedding", places, Init::Normal { std: 0.02 }, false);
    let mut x = net.binary("encoder.places", Binary::Add, x, places)?;
    for layer in 0..LAYERS {
        x = encoder_layer(net, &format!("encoder.layers.encoder_layer_{layer}"), x, length)?;
    }
    let x = net.layer_norm("encoder.ln", x, 1, EPSILON)?;
    let x = net.slice("class.slice", x, 1, 0..1)?;
    let x = net.reshape("class.row", x, dims([n, WIDTH]))?;
    net.init_linears(InitScheme::Zero, InitScheme::Zero);
    Ok(net.linear("heads.head", x, classes))
}

/// Attention and two linear layers, each behind a normalisation and added to what it read.
fn encoder_layer(net: &mut Builder, name: &str, x: TensorId, length: usize) -> Result<TensorId> {
    let part = |part: &str| format!("{name}.{part}");
    let shape = net.shape(x).clone();
    let rows = shape.batch() * length;

    let y = net.layer_norm(&part("ln_1"), x, 1, EPSILON)?;
    let y = net.reshape(&part("rows"), y, dims([rows, WIDTH]))?;
    let weight = part("self_attention.in_proj_weight");
    let weight =
        net.learned(&weight, dims([3 * WIDTH, WIDTH]), InitScheme::Glorot.of(WIDTH, 3 * WIDTH), true);
    let bias = net.learned(&part("self_attention.in_proj_bias"), dims([3 * WIDTH]), Init::Zero, false);
    let y = net.linear_of(&part("self_attention.in_proj"), y, weight, Some(bias), dims([rows, 3 * WIDTH]));
    let y = net.attention(&part("self_attention"), y, length, HEADS)?;
    net.init_linears(InitScheme::Uniform, InitScheme::Zero);
    let y = net.linear(&part("self_attention.out_proj"), y, WIDTH);
    let y = net.reshape(&part("attended"), y, shape)?;
    let x = net.add(&part("add_1"), y, x)?;

    let y = net.layer_norm(&part("ln_2"), x, 1, EPSILON)?;
    net.init_linears(InitScheme::Glorot, InitScheme::Normal { std: 1e-6 });
    let y = net.linear_along(&part("mlp.0"), y, 4 * WIDTH)?;
    let y = net.activation(&part("mlp.1"), y, Activation::Gelu);
    let y = net.linear_along(&part("mlp.3"), y, WIDTH)?;
    net.add(&part("add_2"), x, y)
}
