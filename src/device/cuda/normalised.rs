//! Convolutions in one with the normalisations around them, as cuDNN's graphs. No run asks for them yet: tests ask
//! which GPU has engines for them (`described`).

use std::cell::Cell;
use std::rc::Rc;

use cudarc::cudnn::sys::cudnnPointwiseMode_t as Mode;

use super::backend::{self, Configuration, DATA_TYPE, Descriptor, DescriptorKind, Name, Target};
use super::layout::Real;
use super::product::{B, DX, DY, Direction, Extents, Operand, Product, X, Y, data_type, elementwise, sums};
use super::sys::{self, Dnn};

/// The ready-made ways to compute a product in one with the normalisations around it, in cuDNN's order.
pub fn ways(product: &Product, dnn: &'static Dnn, target: &Target) -> sys::Outcome<Vec<Configuration>> {
    let found = graph(product, dnn, target).and_then(|graph| backend::configurations(&graph, target));
    let mut ways = match found {
        Err(failed) if backend::unsuitable(&failed) => Vec::new(),
        found => found?,
    };
    ways.retain(|way| way.serves(true, false) && !way.is_compiled());
    Ok(ways)
}

/// A scale, a shift and a ReLU of x, then y and its sums, or dw; or dx, the gradient of the ReLU before it, whose input
/// is normalised once more, and what that normalisation's gradients are made of.
fn graph(product: &Product, dnn: &'static Dnn, target: &Target) -> sys::Outcome<Rc<Descriptor>> {
    let (Extents { x, w, y }, real) = (product.at, product.real);
    let number = Cell::new(0);
    let tensor = |extents: [usize; 4], real: Real, lies: bool| {
        number.set(number.get() + 1);
        Operand { number: number.get(), extents, real }.tensor(dnn, lies)
    };
    let channels = |of: [usize; 4], real: Real| tensor([1, of[1], 1, 1], real, true);
    let (given, weights, result) = (tensor(x, real, true)?, tensor(w, real, true)?, tensor(y, real, true)?);
    let all = if product.direction == Direction::BackwardData {
        let passing = || tensor(x, Real::F32, false);
        let (dx, centred, divided, scaled, shifted) =
            (passing()?, passing()?, passing()?, passing()?, passing()?);
        let of_channels: [Rc<Descriptor>; 4] = [
            channels(x, Real::F32)?,
            channels(x, Real::F32)?,
            channels(x, Real::F32)?,
            channels(x, Real::F32)?,
        ];
        let [mean, deviation, scale, shift] = &of_channels;
        let dz = tensor(x, real, true)?;
        let (of_x, of_relu) = ([&given, &dz, mean, deviation, scale], [(X, &shifted), (DY, &dx), (DX, &dz)]);
        vec![
            product.convolution(dnn, [dx.clone(), weights, result])?,
            elementwise(dnn, Mode::CUDNN_POINTWISE_SUB, &[(X, &given), (B, mean), (Y, &centred)])?,
            elementwise(dnn, Mode::CUDNN_POINTWISE_MUL, &[(X, &centred), (B, deviation), (Y, &divided)])?,
            elementwise(dnn, Mode::CUDNN_POINTWISE_MUL, &[(X, &divided), (B, scale), (Y, &scaled)])?,
            elementwise(dnn, Mode::CUDNN_POINTWISE_ADD, &[(X, &scaled), (B, shift), (Y, &shifted)])?,
            elementwise(dnn, Mode::CUDNN_POINTWISE_RELU_BWD, &of_relu)?,
            gradients(dnn, of_x, || channels(x, Real::F32))?,
        ]
    } else {
        // Its engines want the scale and the shift in halves, too.
        let passing = || tensor(x, real, false);
        let (scaled, shifted, activated) = (passing()?, passing()?, passing()?);
        let (scale, shift) = (channels(x, real)?, channels(x, real)?);
        let mut all = vec![
            elementwise(dnn, Mode::CUDNN_POINTWISE_MUL, &[(X, &given), (B, &scale), (Y, &scaled)])?,
            elementwise(dnn, Mode::CUDNN_POINTWISE_ADD, &[(X, &scaled), (B, &shift), (Y, &shifted)])?,
            elementwise(dnn, Mode::CUDNN_POINTWISE_RELU_FWD, &[(X, &shifted), (Y, &activated)])?,
            product.convolution(dnn, [activated, weights, result.clone()])?,
        ];
        if product.direction == Direction::Forward {
            all.push(sums(dnn, &result, [&channels(y, Real::F32)?, &channels(y, Real::F32)?])?);
        }
        all
    };
    backend::graph(dnn, target, &all.iter().collect::<Vec<_>>())
}

/// Of x, its normalisation's gradient dz, mean, 1/deviation and scale: the gradients of scale and shift, and three
/// numbers a channel that dx is made of.
fn gradients(
    dnn: &'static Dnn,
    [x, dz, mean, deviation, scale]: [&Rc<Descriptor>; 5],
    channels: impl Fn() -> sys::Outcome<Rc<Descriptor>>,
) -> sys::Outcome<Rc<Descriptor>> {
    use Name::*;
    let kind = DescriptorKind::CUDNN_BACKEND_OPERATION_BN_BWD_WEIGHTS_DESCRIPTOR;
    let mut operation = Descriptor::new(dnn, kind)?
        .choose(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_MATH_PREC, DATA_TYPE, data_type(Real::F32))?
        .join(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_X_DESC, &[x])?
        .join(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DY_DESC, &[dz])?
        .join(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_MEAN_DESC, &[mean])?
        .join(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_INVSTD_DESC, &[deviation])?
        .join(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_BN_SCALE_DESC, &[scale])?;
    for made in [
        CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_SCALE_DESC,
        CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_BIAS_DESC,
        CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_DY_SCALE_DESC,
        CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_X_SCALE_DESC,
        CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_BIAS,
    ] {
        operation = operation.join(made, &[&channels()?])?;
    }
    operation.finalize()
}
