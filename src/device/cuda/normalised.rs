//! Convolutions in one with the normalisations before them: cuDNN's graphs, and whether they are faster so. Of x, w and
//! y the x is what was not normalised yet: what is normalised lies nowhere.

use std::rc::Rc;

use cudarc::cudnn::sys::cudnnPointwiseMode_t as Mode;

use super::backend::Descriptor;
use super::conv::{self, named, weights};
use super::dnn::{self, Convolution, Epilogue};
use super::gpu::Gpu;
use super::kernel::{Operands, PART, cuda_kernel, multiplies};
use super::layout::{Real, channels_last, image, input, narrowest, output, plain_in};
use super::norm::NormShape;
use super::product::{B, Direction, Product, ProductOperand, Then, X, Y, elementwise, sums};
use super::sys::{self, Dnn};
use super::tune::TunedChoice;
use crate::device::{Kernel, KernelRequest, Memory as Bytes};
use crate::error::{Error, Result};
use crate::graph::{Conv, DType, Joint, Spec};

/// Numbers of channels lie without gaps, each kind behind the other, so that none may be wanted at a wider address.
pub const ALIGNMENT: usize = 16;

/// What lies in memory besides x, w and y: scale and shift, in halves as the engines want them, and forward y's sums.
pub fn more(product: &Product) -> Vec<([usize; 5], Real)> {
    let ([_, c, ..], [_, o, ..]) = (product.at.x, product.at.y);
    let sums = if product.direction == Direction::Forward { 2 } else { 0 };
    [vec![([1, c, 1, 1, 1], product.real); 2], vec![([1, o, 1, 1, 1], Real::F32); sums]].concat()
}

/// The operations of a product's graph, on operands that lie.
pub fn operations(
    product: &Product,
    dnn: &'static Dnn,
    operands: &[ProductOperand],
) -> sys::CudaResult<Vec<Rc<Descriptor>>> {
    let lying =
        operands.iter().map(|operand| operand.tensor(dnn, true)).collect::<sys::CudaResult<Vec<_>>>()?;
    // What goes from one operation to the next: engines want it in halves.
    let passing = |number: i64| {
        let number = operands.len() as i64 + number;
        ProductOperand { number, ..operands[0] }.tensor(dnn, false)
    };
    let [x, w, y] = [0, 1, 2].map(|index: usize| lying[index].clone());
    let (scaled, shifted, activated) = (passing(1)?, passing(2)?, passing(3)?);
    let mut all = vec![
        elementwise(dnn, Mode::CUDNN_POINTWISE_MUL, &[(X, &x), (B, &lying[3]), (Y, &scaled)])?,
        elementwise(dnn, Mode::CUDNN_POINTWISE_ADD, &[(X, &scaled), (B, &lying[4]), (Y, &shifted)])?,
        elementwise(dnn, Mode::CUDNN_POINTWISE_RELU_FWD, &[(X, &shifted), (Y, &activated)])?,
        product.convolution(dnn, [activated, w, y.clone()])?,
    ];
    if product.direction == Direction::Forward {
        all.push(sums(dnn, &y, [&lying[5], &lying[6]])?);
    }
    Ok(all)
}

/// Each product of a joint, as it is in one with what is around it, and as it is without.
fn products(gpu: &Gpu, joint: &Joint) -> Result<Vec<[Product; 2]>> {
    let [x, w, y] = &joint.tensors;
    let of = |direction, then| conv::product(direction, then, &joint.conv, Real::F16, gpu.tf32, [x, w, y]);
    let both = |direction, apart| -> Result<[Product; 2]> {
        Ok([of(direction, Then::Normalise)?, of(direction, apart)?])
    };
    let forward = both(Direction::Forward, if joint.moments { Then::Sums } else { Then::Nothing })?;
    let weights = joint.learns.then(|| both(Direction::BackwardWeights, Then::Nothing)).transpose()?;
    Ok([forward].into_iter().chain(weights).collect())
}

/// Whether a joint is faster as one: by timing, which is kept, or where it was asked for wherever there are engines.
pub fn joins(gpu: &Rc<Gpu>, joint: &Joint) -> Result<bool> {
    let serves = |spec: &Spec| spec.dtype == DType::F16 && (2 * spec.shape.0[1]).is_multiple_of(ALIGNMENT);
    if !serves(&joint.tensors[0]) || !serves(&joint.tensors[2]) || Epilogue::wanted() == Epilogue::Never {
        return Ok(false);
    }
    let products = products(gpu, joint)?;
    let words = name(&products);
    if let Some(decided) = gpu.dnn.joins(&words) {
        return Ok(decided);
    }
    let mut together = true;
    for [one, _] in &products {
        together = together && dnn::planned(gpu, one)?.is_some();
    }
    if together && Epilogue::wanted() == Epilogue::Timed {
        together = chosen(gpu, &products, &words)? == TunedChoice::Together;
    }
    gpu.dnn.decide(&words, together);
    Ok(together)
}

/// What was chosen before, by this process or another, or is now.
fn chosen(gpu: &Rc<Gpu>, products: &[[Product; 2]], words: &str) -> Result<TunedChoice> {
    let serves = |choice: &TunedChoice| matches!(choice, TunedChoice::Apart | TunedChoice::Together);
    if let Some(kept) = gpu.tuned.choice(words).filter(serves) {
        return Ok(kept);
    }
    let own = if is_faster(gpu, products)? { TunedChoice::Together } else { TunedChoice::Apart };
    // Another rank may have been faster.
    Ok(gpu.tuned.keep(words, &own, serves).unwrap_or(own))
}

/// What a choice is kept under.
fn name(products: &[[Product; 2]]) -> String {
    let words: Vec<String> = products.iter().map(|[together, _]| together.words()).collect();
    let apart = if products[0][1].then == Then::Sums { " for its sums" } else { "" };
    format!("joint {}{apart}", words.join(" and "))
}

/// Where the GPU's memory does not suffice to try it is not.
fn is_faster(gpu: &Rc<Gpu>, products: &[[Product; 2]]) -> Result<bool> {
    let mut times = [0.0; 2];
    for [together, apart] in products {
        let Some(one) = dnn::time_of(gpu, together, 0.0)? else { return Ok(false) };
        let Some(other) = dnn::time_of(gpu, apart, together.passes_apart())? else { return Ok(false) };
        times = [times[0] + one.as_secs_f64(), times[1] + other.as_secs_f64()];
    }
    log::debug!("{}: {:.1} µs, {:.1} µs apart", name(products), 1e6 * times[0], 1e6 * times[1]);
    Ok(times[0] < times[1])
}

/// A product with the plan that normalises along with it: whoever makes such an op has asked for one (`joins`).
pub fn product(
    gpu: &Rc<Gpu>,
    direction: Direction,
    conv: &Conv,
    real: Real,
    tensors: [&Spec; 3],
) -> Result<Rc<Convolution>> {
    let product = conv::compiled(gpu, direction, Then::Normalise, conv, real, tensors)?;
    match product.is_joined() {
        true => Ok(product),
        false => Err(Error::internal(format!("no engine normalises what a {direction:?} product reads"))),
    }
}

/// The rows of a pair (2,C).
pub fn rows_of(pair: &Bytes) -> [Bytes; 2] {
    let half = pair.bytes() / 2;
    [0, half].map(|from| pair.slice(from, half))
}

/// x, w, scale → y, moments?
pub fn forward_pass(gpu: &Rc<Gpu>, request: &KernelRequest, conv: &Conv) -> Result<Kernel> {
    let (x, w, y) = (&input(request, 0)?.0, &input(request, 1)?.0, output(request, 0)?);
    let real = narrowest(&[x, y])?;
    let product = product(gpu, Direction::Forward, conv, real, [x, w, y])?;
    let of_w = weights(conv, w, real);
    let inputs = vec![channels_last(x), of_w.clone(), plain_in(&input(request, 2)?.0, real.dtype())];
    let mut outputs = vec![channels_last(y)];
    let (shape, [_, channels, ..]) = (NormShape::of(y)?, image(y)?);
    outputs.extend(request.outputs.get(1).map(|moments| shape.summed(moments)));
    // The engine gives sums also where nobody reads them.
    let sums = if request.outputs.len() > 1 { 0 } else { 2 * 4 * channels };
    let (name, scratch) = (named(&product, real), product.workspace());
    let workspace = scratch.next_multiple_of(PART) + sums.next_multiple_of(PART);
    let bind = move |operands: &mut Operands| {
        let workspace = operands.scratch(scratch);
        let w = &operands.multiplied(1, &of_w, real)?;
        let unread = operands.scratch(sums);
        let ([x, _, scale], [y, moments @ ..]) = (operands.inputs, operands.outputs) else {
            return Err(Error::internal("a convolution that normalises has three inputs"));
        };
        let [sum, squares] =
            moments.first().map_or_else(|| rows_of(&unread), |moments| shape.sums_in(moments));
        let [scale, shift] = rows_of(scale);
        operands.push(product.bind(&[x, w, y, &scale, &shift, &sum, &squares], &workspace)?);
        Ok(())
    };
    Ok(multiplies(cuda_kernel(gpu, name, inputs, outputs, bind).with_workspace(workspace), real, request))
}
