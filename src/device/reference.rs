//! The reference device: every op written as its definition, on plain ndarrays. It is the specification that
//! other devices are tested against, so it is written to be read and accumulates in f64: whatever differs from
//! it beyond one rounding is the other device's.

mod activation;
mod batch_norm;
mod field_loss;
mod layer_norm;
mod pool;

use std::ops::Range;

use half::{bf16, f16};
use ndarray::{Array1, Array2, Array4, ArrayD, ArrayView4, ArrayView5, Axis, IxDyn, concatenate};

use super::memory::{bytes_of, bytes_of_mut};
use super::update::average;
use super::{
    Device, Kernel, KernelRequest, Layout, Memory, Rule, Scalars, Span, Squares, Step, Updated, not_lowered,
};
use crate::error::{Error, Result};
use crate::graph::{BackwardOp, Binary, Conv, DType, FusedOp, LocalResponseNorm, MatMul, Op, Shape, Spec};
use crate::random::{Purpose, key, philox, uniform};

/// The oracle. Slow; every layout is plain.
#[derive(Debug, Clone, Copy, Default)]
pub struct Reference;

impl Device for Reference {
    fn name(&self) -> &'static str {
        "reference"
    }

    fn describe(&self) -> String {
        "reference (ndarray, f64 accumulation, one thread)".into()
    }

    fn allocate(&self, bytes: usize) -> Result<Memory> {
        Memory::host(bytes)
    }

    fn plain(&self, spec: &Spec) -> Layout {
        // A pooling's winners are stored as i32 indices into the (D, H, W) places, a ReLU's as 1.
        let bytes = spec.shape.elements() * if spec.dtype == DType::Saved { 4 } else { spec.dtype.bytes() };
        Layout::new(format!("{:?} plain {}", spec.dtype, spec.shape), bytes, spec.dtype, None)
    }

    fn compile(&self, request: &KernelRequest) -> Result<Kernel> {
        let specs: Vec<Spec> = request.inputs.iter().map(|(spec, _)| spec.clone()).collect();
        let (op, made) = (*request.op, request.outputs.to_vec());
        let [inputs, outputs] =
            [&specs, &made].map(|specs| specs.iter().map(|spec| self.plain(spec)).collect());
        Ok(Kernel::new("definition", inputs, outputs, move |_, inputs, outputs, _| {
            let of = |specs: &[Spec], memory: &[Memory]| -> Vec<(Spec, Memory)> {
                specs.iter().cloned().zip(memory.iter().cloned()).collect()
            };
            let (inputs, outputs) = (of(&specs, inputs), of(&made, outputs));
            Ok(Box::new(move |scalars: &Scalars| {
                let inputs = inputs.iter().map(|(spec, memory)| load(spec, memory));
                let arrays = evaluate(&op, &inputs.collect::<Result<Vec<_>>>()?, &outputs, scalars)?;
                outputs.iter().zip(&arrays).for_each(|((spec, memory), array)| store(spec, memory, array));
                Ok(())
            }))
        }))
    }

    fn reorder(&self, _: &Spec, from: &Layout, to: &Layout) -> Result<Kernel> {
        Err(Error::internal(format!("the reference device has one layout, asked for {from:?} → {to:?}")))
    }

    fn update(&self, rule: &Rule, spans: &[Span], of: &Updated) -> Result<Box<dyn Step>> {
        let (rule, spans, regions) = (*rule, spans.to_vec(), of.state.to_vec());
        let (parameters, gradients) = (of.parameters.clone(), of.gradients.clone());
        Ok(Box::new(move |scalars: &Scalars| {
            for span in &spans {
                let part = |memory: &Memory| memory.slice(4 * span.start, 4 * span.length);
                let (mut w, g) = (read_f32(&part(&parameters)), read_f32(&part(&gradients)));
                let mut state: Vec<Vec<f32>> = regions.iter().map(|region| read_f32(&part(region))).collect();
                let mut slices: Vec<&mut [f32]> = state.iter_mut().map(Vec::as_mut_slice).collect();
                let sums = rule.measure(scalars, span.decay, &w, &g, &mut slices);
                rule.apply(scalars, span.decay, rule.trust(span.decay, sums), &mut w, &g, &mut slices);
                part(&parameters).write(bytes_of(&w));
                for (region, values) in regions.iter().zip(&state) {
                    part(region).write(bytes_of(values));
                }
            }
            Ok(())
        }))
    }

    fn squares(&self, parts: &[Memory]) -> Result<Squares> {
        let (parts, sums) = (parts.to_vec(), Memory::host(size_of::<f64>())?);
        let to = sums.clone();
        let step = move |_: &Scalars| {
            let sum: f64 = parts.iter().flat_map(read_f32).map(|g| f64::from(g) * f64::from(g)).sum();
            to.write(bytes_of(&[sum]));
            Ok(())
        };
        Ok(Squares::new(Box::new(step), sums))
    }

    fn scale(&self, gradients: &Memory, broken: &Memory) -> Result<Box<dyn Step>> {
        let (gradients, broken) = (gradients.clone(), broken.clone());
        Ok(Box::new(move |scalars: &Scalars| {
            let mut values = read_f32(&gradients);
            values.iter_mut().for_each(|g| *g *= scalars.rescale);
            if values.iter().any(|g| !g.is_finite()) {
                broken.write(bytes_of(&[1i32]));
            }
            gradients.write(bytes_of(&values));
            Ok(())
        }))
    }

    fn average(&self, decay: f32, from: &Memory, into: &Memory) -> Result<Box<dyn Step>> {
        let (from, into) = (from.clone(), into.clone());
        Ok(Box::new(move |scalars: &Scalars| {
            let mut values = read_f32(&into);
            average(scalars, decay, &read_f32(&from), &mut values);
            into.write(bytes_of(&values));
            Ok(())
        }))
    }

    fn accumulate(&self, from: &Memory, into: &Memory) -> Result<Box<dyn Step>> {
        let (from, into) = (from.clone(), into.clone());
        Ok(Box::new(move |_: &Scalars| {
            let mut sum = read_f32(&into);
            sum.iter_mut().zip(read_f32(&from)).for_each(|(into, from)| *into += from);
            into.write(bytes_of(&sum));
            Ok(())
        }))
    }
}

/// Integers (labels, winners) are small enough to be exact as f32.
fn load(spec: &Spec, memory: &Memory) -> Result<ArrayD<f32>> {
    let values = match spec.dtype {
        DType::F32 => read_f32(memory),
        DType::BF16 => {
            let mut halves = vec![bf16::ZERO; spec.shape.elements()];
            memory.read(bytes_of_mut(&mut halves));
            halves.into_iter().map(bf16::to_f32).collect()
        }
        DType::F16 => {
            let mut halves = vec![f16::ZERO; spec.shape.elements()];
            memory.read(bytes_of_mut(&mut halves));
            halves.into_iter().map(f16::to_f32).collect()
        }
        DType::U16 => {
            let mut words = vec![0u16; spec.shape.elements()];
            memory.read(bytes_of_mut(&mut words));
            words.into_iter().map(f32::from).collect()
        }
        DType::U8 => {
            let mut bytes = vec![0u8; spec.shape.elements()];
            memory.read(&mut bytes);
            bytes.into_iter().map(f32::from).collect()
        }
        DType::I32 | DType::Saved => {
            let mut integers = vec![0i32; spec.shape.elements()];
            memory.read(bytes_of_mut(&mut integers));
            integers.into_iter().map(|v| v as f32).collect()
        }
    };
    ArrayD::from_shape_vec(IxDyn(&spec.shape.0), values).map_err(|e| Error::internal(e.to_string()))
}

fn store(spec: &Spec, memory: &Memory, array: &ArrayD<f32>) {
    let values = array.iter().copied();
    match spec.dtype {
        DType::F32 => memory.write(bytes_of(&values.collect::<Vec<f32>>())),
        DType::BF16 => memory.write(bytes_of(&values.map(bf16::from_f32).collect::<Vec<_>>())),
        DType::F16 => memory.write(bytes_of(&values.map(f16::from_f32).collect::<Vec<_>>())),
        DType::U8 => memory.write(&values.map(|v| v as u8).collect::<Vec<_>>()),
        DType::U16 => memory.write(bytes_of(&values.map(|v| v as u16).collect::<Vec<_>>())),
        DType::I32 | DType::Saved => memory.write(bytes_of(&values.map(|v| v as i32).collect::<Vec<_>>())),
    }
}

fn read_f32(memory: &Memory) -> Vec<f32> {
    let mut values = vec![0f32; memory.bytes() / 4];
    memory.read(bytes_of_mut(&mut values));
    values
}

/// What an op gives, an array for each of its outputs.
fn evaluate(
    op: &Op,
    inputs: &[ArrayD<f32>],
    outputs: &[(Spec, Memory)],
    scalars: &Scalars,
) -> Result<Vec<ArrayD<f32>>> {
    let shape = outputs.first().map_or(&[][..], |(spec, _)| &spec.shape.0);
    Ok(match op {
        Op::Normalise { scale, shift } => vec![normalise(inputs, *scale, *shift)?],
        Op::Lookup { is_target } => vec![lookup(inputs, *is_target)?],
        Op::Conv(conv) => vec![convolution(conv, inputs, shape)?],
        Op::ConvBackwardData(conv) => vec![conv_backward_data(conv, inputs, shape)?],
        Op::Linear { relu, .. } => vec![linear(inputs, *relu)?],
        Op::BatchNormMoments => vec![batch_norm::own_moments(&inputs[0])?],
        Op::AllToAll { .. } => vec![reshaped(inputs[0].clone(), shape)?],
        Op::Exchange { ranks, .. } => vec![batch_norm::exchange(&inputs[0], *ranks)],
        Op::BatchNorm(norm) => batch_norm::forward(norm, inputs, outputs.len() == 6)?,
        Op::BatchNormInference(norm) => batch_norm::inference(norm, inputs, outputs.len() == 2)?,
        Op::LocalResponseNorm(norm) => local_response_norm(norm, &inputs[0])?,
        Op::LayerNorm { epsilon, .. } => layer_norm::forward(*epsilon, inputs, outputs[1].0.shape.0[0])?,
        Op::MatMul(of) => vec![matmul(of, inputs, shape)?],
        Op::Softmax => vec![softmax_rows(&inputs[0], |row| softmax(&row))?],
        Op::Activation(of) => vec![inputs[0].mapv(|x| activation::value(*of, f64::from(x)) as f32)],
        Op::Add { relu: false } => elementwise(inputs, |a, b| a + b),
        Op::Add { relu: true } => elementwise(inputs, |a, b| (a + b).max(0.0)),
        Op::MaxPool(of) => pool::max_pool(of, &inputs[0], shape)?,
        Op::AvgPool(of) => vec![pool::avg_pool(of, &inputs[0], shape)?],
        Op::AdaptiveAvgPool => vec![pool::adaptive_avg_pool(&inputs[0], shape)?],
        Op::Dropout { p, layer, whole } => {
            vec![dropout(&inputs[0], *p, *layer, *whole, scalars)]
        }
        Op::Binary(of) => vec![binary(*of, inputs, shape)?],
        Op::Sum { scale } => vec![sum_to(&inputs[0], *scale, &outputs[0].0.shape)?],
        Op::Expand { scale } => vec![stretched(&inputs[0], shape)?.mapv(|x| x * scale)],
        Op::Reshape => vec![reshaped(inputs[0].clone(), shape)?],
        Op::Concat { axis } => vec![concat(inputs, *axis)?],
        Op::Slice { axis, from } => vec![slice(&inputs[0], *axis, *from..*from + shape[*axis])],
        Op::Pad { axis, before } => vec![pad(&inputs[0], *axis, *before, shape)],
        Op::Trade(_) => outputs.iter().map(|(spec, _)| ArrayD::zeros(IxDyn(&spec.shape.0))).collect(),
        Op::Halo(_) => return Err(not_lowered(op)),
        Op::Permute(order) => {
            vec![inputs[0].view().permuted_axes(order.axes()).as_standard_layout().to_owned()]
        }
        Op::SoftmaxCrossEntropy { smoothing, weight } => softmax_cross_entropy(inputs, *smoothing, *weight)?,
        Op::FieldLoss(of) => field_loss::forward(of, inputs)?,
        Op::FieldMeans(of) => field_loss::means(of, &inputs[0])?,
        Op::Backward(op) => backward(op, inputs, shape, scalars)?,
        Op::Fused(op) => fused(op, inputs, outputs, shape)?,
    })
}

fn backward(
    op: &BackwardOp,
    inputs: &[ArrayD<f32>],
    shape: &[usize],
    scalars: &Scalars,
) -> Result<Vec<ArrayD<f32>>> {
    Ok(match op {
        BackwardOp::ConvWeights(conv) => {
            let mut gradients = vec![conv_backward_weights(conv, inputs, shape)?];
            if conv.bias {
                gradients.push(sum_over_all_but_channels(&inputs[1]));
            }
            gradients
        }
        BackwardOp::LinearData { .. } => {
            let dx = dot(&matrix(&inputs[0])?, &matrix(&inputs[1])?);
            vec![reshaped(dx.into_dyn(), shape)?]
        }
        BackwardOp::LinearWeights { bias } => {
            let dw = dot(&matrix(&inputs[1])?.reversed_axes(), &matrix(&inputs[0])?);
            let mut gradients = vec![dw.into_dyn()];
            if *bias {
                gradients.push(sum_over_all_but_channels(&inputs[1]));
            }
            gradients
        }
        BackwardOp::BatchNormSums(norm) => batch_norm::sums(norm, inputs)?,
        BackwardOp::BatchNorm(norm) if norm.given => vec![batch_norm::backward_of_sums(norm, inputs)?],
        BackwardOp::BatchNorm(norm) => batch_norm::backward(norm, inputs)?,
        BackwardOp::LocalResponseNorm(norm) => vec![local_response_norm_backward(norm, inputs)?],
        BackwardOp::LayerNorm { epsilon, affine } => layer_norm::backward(*epsilon, *affine, inputs)?,
        BackwardOp::Softmax => vec![softmax_backward(inputs)?],
        BackwardOp::Activation(of) => {
            elementwise(inputs, |dy, at| activation::gradient(*of, f64::from(dy), f64::from(at)) as f32)
        }
        BackwardOp::MaxPool(_) => vec![pool::max_pool_backward(inputs, shape)?],
        BackwardOp::AvgPool(of) => vec![pool::avg_pool_backward(of, &inputs[0], shape)?],
        BackwardOp::AdaptiveAvgPool => vec![pool::adaptive_avg_pool_backward(&inputs[0], shape)?],
        BackwardOp::Dropout { p, layer, whole } => {
            vec![dropout(&inputs[0], *p, *layer, *whole, scalars)]
        }
        BackwardOp::AddSlice { axis, from } => vec![add_slice(&inputs[0], &inputs[1], *axis, *from)],
        BackwardOp::Halo(_) => return Err(not_lowered(&Op::Backward(*op))),
        BackwardOp::SoftmaxCrossEntropy { smoothing, weight } => {
            let scale = f64::from(*weight) * f64::from(scalars.gradient_scale);
            vec![softmax_cross_entropy_backward(inputs, *smoothing, scale)?]
        }
        BackwardOp::FieldLoss(of) => vec![field_loss::backward(of, inputs, scalars.gradient_scale)?],
    })
}

fn fused(
    op: &FusedOp,
    inputs: &[ArrayD<f32>],
    outputs: &[(Spec, Memory)],
    shape: &[usize],
) -> Result<Vec<ArrayD<f32>>> {
    Ok(match op {
        FusedOp::ConvBackwardDataRelu(conv) => {
            let mut dx = conv_backward_data(conv, inputs, shape)?;
            dx.zip_mut_with(&inputs[2], |dx, &r| *dx = if r > 0.0 { *dx } else { 0.0 });
            vec![dx]
        }
        FusedOp::ConvBackwardDataAdd(conv) => {
            vec![conv_backward_data(conv, inputs, shape)? + &inputs[2]]
        }
        FusedOp::ConvMoments(conv) => {
            let y = convolution(conv, inputs, shape)?;
            let moments = batch_norm::own_moments(&y)?;
            vec![y, moments]
        }
        FusedOp::ConvNormalised(conv) => {
            let y =
                convolution(conv, &[batch_norm::scaled(&inputs[0], &inputs[2])?, inputs[1].clone()], shape)?;
            let moments = (outputs.len() == 2).then(|| batch_norm::own_moments(&y)).transpose()?;
            [y].into_iter().chain(moments).collect()
        }
        FusedOp::ConvNormalisedBackwardWeights(conv) => {
            let operands = [batch_norm::scaled(&inputs[0], &inputs[2])?, inputs[1].clone()];
            vec![conv_backward_weights(conv, &operands, shape)?]
        }
        FusedOp::BatchNormScale(norm) => {
            batch_norm::scale(norm, inputs, outputs.len() == 6, as_held(outputs[0].0.dtype))?
        }
    })
}

fn elementwise(inputs: &[ArrayD<f32>], f: impl Fn(f32, f32) -> f32) -> Vec<ArrayD<f32>> {
    let mut y = inputs[0].clone();
    y.zip_mut_with(&inputs[1], |a, &b| *a = f(*a, b));
    vec![y]
}

fn concat(inputs: &[ArrayD<f32>], axis: usize) -> Result<ArrayD<f32>> {
    let parts: Vec<_> = inputs.iter().map(|part| part.view()).collect();
    concatenate(Axis(axis), &parts).map_err(|e| Error::internal(e.to_string()))
}

fn slice(x: &ArrayD<f32>, axis: usize, range: Range<usize>) -> ArrayD<f32> {
    x.slice_axis(Axis(axis), range.into()).as_standard_layout().to_owned()
}

fn pad(x: &ArrayD<f32>, axis: usize, before: usize, shape: &[usize]) -> ArrayD<f32> {
    let mut y = ArrayD::zeros(IxDyn(shape));
    y.slice_axis_mut(Axis(axis), (before..before + x.shape()[axis]).into()).assign(x);
    y
}

/// z, with x added to as many as x has along an axis, from `from` on.
fn add_slice(z: &ArrayD<f32>, x: &ArrayD<f32>, axis: usize, from: usize) -> ArrayD<f32> {
    let mut y = z.clone();
    let mut part = y.slice_axis_mut(Axis(axis), (from..from + x.shape()[axis]).into());
    part += x;
    y
}

/// What a type holds for a number.
fn as_held(dtype: DType) -> impl Fn(f32) -> f32 {
    move |number| match dtype {
        DType::BF16 => bf16::from_f32(number).to_f32(),
        DType::F16 => f16::from_f32(number).to_f32(),
        _ => number,
    }
}

fn reshaped(array: ArrayD<f32>, shape: &[usize]) -> Result<ArrayD<f32>> {
    array.into_shape_with_order(IxDyn(shape)).map_err(|e| Error::internal(e.to_string()))
}

fn image(array: &ArrayD<f32>) -> Result<ArrayView4<'_, f32>> {
    array.view().into_dimensionality().map_err(|e| Error::internal(e.to_string()))
}

/// Images as cubes of one plane.
fn cube(array: &ArrayD<f32>) -> Result<ArrayView5<'_, f32>> {
    let view = array.view();
    let view = if array.ndim() == 4 { view.insert_axis(Axis(2)) } else { view };
    view.into_dimensionality().map_err(|e| Error::internal(e.to_string()))
}

/// (N,C,D,H,W), of images with a depth of 1.
fn volumes(shape: &[usize]) -> [usize; 5] {
    match *shape {
        [n, c, h, w] => [n, c, 1, h, w],
        [n, c, d, h, w] => [n, c, d, h, w],
        _ => [0; 5],
    }
}

/// In f32, as the host does where it reads images as numbers.
fn normalise(inputs: &[ArrayD<f32>], scale: [f32; 3], shift: [f32; 3]) -> Result<ArrayD<f32>> {
    let channels_first = image(&inputs[0])?.permuted_axes([0, 3, 1, 2]);
    let value = |((n, c, _, _), &byte): ((usize, usize, usize, usize), &f32)| match inputs[1][[n]] < 0.0 {
        true => 0.0,
        false => byte * scale[c] + shift[c],
    };
    let values = channels_first.indexed_iter().map(value).collect();
    let shape = channels_first.shape();
    ArrayD::from_shape_vec(IxDyn(shape), values).map_err(|e| Error::internal(e.to_string()))
}

fn lookup(inputs: &[ArrayD<f32>], is_target: bool) -> Result<ArrayD<f32>> {
    let [codes, samples, which, tables] = inputs else {
        return Err(Error::internal("codes, samples, which and tables"));
    };
    let (rows, none) = (matrix(codes)?, if is_target { f32::NAN } else { 0.0 });
    let run = rows.ncols() / which.len();
    let value = |((n, at), &code): ((usize, usize), &f32)| match samples[[n]] < 0.0 {
        true => none,
        false => tables[[which[[at / run]] as usize, code as usize]],
    };
    let values = rows.indexed_iter().map(value).collect();
    ArrayD::from_shape_vec(codes.raw_dim(), values).map_err(|e| Error::internal(e.to_string()))
}

/// (N, …) as (N, everything else).
fn matrix(array: &ArrayD<f32>) -> Result<Array2<f32>> {
    let rows = array.shape()[0];
    let columns = array.len() / rows.max(1);
    reshaped(array.clone(), &[rows, columns])?
        .into_dimensionality()
        .map_err(|e| Error::internal(e.to_string()))
}

/// The matrix product, accumulated in f64.
fn dot(a: &Array2<f32>, b: &Array2<f32>) -> Array2<f32> {
    a.mapv(f64::from).dot(&b.mapv(f64::from)).mapv(|v| v as f32)
}

fn sum_over_all_but_channels(dy: &ArrayD<f32>) -> ArrayD<f32> {
    let sums = dy.axis_iter(Axis(1)).map(|channel| channel.iter().map(|&v| f64::from(v)).sum::<f64>() as f32);
    sums.collect::<Array1<f32>>().into_dyn()
}

/// Calls `f(output element, input element, weight)` for every multiplication of a convolution, each as its place in
/// plain memory: output element (n, o, h, i, j) takes input element (n, c, z, y, x) times weight (o, c within its
/// group, kz, ky, kx).
fn each_product(conv: &Conv, input: &[usize], output: &[usize], mut f: impl FnMut(usize, usize, usize)) {
    let [batch, channels, depth, height, width] = volumes(input);
    let [_, filters, od, oh, ow] = volumes(output);
    let ([kd, kh, kw], per_group) = (conv.kernel, channels / conv.groups);
    let place = |output: usize, at: usize, axis: usize| {
        (output * conv.stride[axis] + at * conv.dilation[axis]).wrapping_sub(conv.padding[axis])
    };
    for (n, o) in ndarray::indices((batch, filters)) {
        let first = n * channels + o / (filters / conv.groups) * per_group;
        for (h, i, c, kz, ky) in ndarray::indices((od, oh, per_group, kd, kh)) {
            let (z, y) = (place(h, kz, 0), place(i, ky, 1));
            if z >= depth || y >= height {
                continue;
            }
            let out = (((n * filters + o) * od + h) * oh + i) * ow;
            let row = (((first + c) * depth + z) * height + y) * width;
            let weight = (((o * per_group + c) * kd + kz) * kh + ky) * kw;
            for j in 0..ow {
                for kx in 0..kw {
                    let x = place(j, kx, 2);
                    if x < width {
                        f(out + j, row + x, weight + kx);
                    }
                }
            }
        }
    }
}

fn extents(shape: &[usize]) -> [usize; 4] {
    [shape[0], shape[1], shape[2], shape[3]]
}

/// Its elements in plain order.
fn plain(array: &ArrayD<f32>) -> Result<&[f32]> {
    array.as_slice().ok_or_else(|| Error::internal("an array of the reference device is not in plain order"))
}

/// Sums in f64 as an array of f32.
fn rounded(sums: Vec<f64>, shape: &[usize]) -> Result<ArrayD<f32>> {
    let values = sums.into_iter().map(|v| v as f32).collect();
    ArrayD::from_shape_vec(IxDyn(shape), values).map_err(|e| Error::internal(e.to_string()))
}

fn convolution(conv: &Conv, inputs: &[ArrayD<f32>], shape: &[usize]) -> Result<ArrayD<f32>> {
    let (x, w) = (plain(&inputs[0])?, plain(&inputs[1])?);
    let mut y = vec![0f64; shape.iter().product()];
    if conv.bias {
        for (channel, plane) in y.chunks_mut(shape[2..].iter().product()).enumerate() {
            plane.fill(f64::from(inputs[2][[channel % shape[1]]]));
        }
    }
    each_product(conv, inputs[0].shape(), shape, |out, input, weight| {
        y[out] += f64::from(x[input]) * f64::from(w[weight]);
    });
    if conv.relu {
        y.iter_mut().for_each(|v| *v = v.max(0.0));
    }
    rounded(y, shape)
}

fn conv_backward_data(conv: &Conv, inputs: &[ArrayD<f32>], shape: &[usize]) -> Result<ArrayD<f32>> {
    let (dy, w) = (plain(&inputs[0])?, plain(&inputs[1])?);
    let mut dx = vec![0f64; shape.iter().product()];
    each_product(conv, shape, inputs[0].shape(), |out, input, weight| {
        dx[input] += f64::from(dy[out]) * f64::from(w[weight]);
    });
    rounded(dx, shape)
}

fn conv_backward_weights(conv: &Conv, inputs: &[ArrayD<f32>], shape: &[usize]) -> Result<ArrayD<f32>> {
    let (x, dy) = (plain(&inputs[0])?, plain(&inputs[1])?);
    let mut dw = vec![0f64; shape.iter().product()];
    each_product(conv, inputs[0].shape(), inputs[1].shape(), |out, input, weight| {
        dw[weight] += f64::from(dy[out]) * f64::from(x[input]);
    });
    rounded(dw, shape)
}

fn linear(inputs: &[ArrayD<f32>], relu: bool) -> Result<ArrayD<f32>> {
    let (x, w) = (matrix(&inputs[0])?.mapv(f64::from), matrix(&inputs[1])?.mapv(f64::from));
    let mut y = x.dot(&w.reversed_axes());
    if let Some(bias) = inputs.get(2) {
        y += &bias.mapv(f64::from).into_shape_with_order((1, bias.len())).expect("a bias is a vector");
    }
    Ok(y.mapv(|v| if relu { v.max(0.0) as f32 } else { v as f32 }).into_dyn())
}

/// k + alpha/size·(the sum of squares of the channels around each).
fn response(norm: &LocalResponseNorm, x: &ArrayView4<f32>) -> Array4<f64> {
    let channels = x.shape()[1];
    Array4::from_shape_fn(extents(x.shape()), |(n, c, i, j)| {
        let around = c.saturating_sub(norm.size / 2)..(c + norm.size / 2 + 1).min(channels);
        let squares: f64 = around.map(|c| f64::from(x[[n, c, i, j]]).powi(2)).sum();
        f64::from(norm.k) + f64::from(norm.alpha) / norm.size as f64 * squares
    })
}

/// y, and nothing to save.
fn local_response_norm(norm: &LocalResponseNorm, x: &ArrayD<f32>) -> Result<Vec<ArrayD<f32>>> {
    let x = image(x)?;
    let mut y = response(norm, &x);
    y.zip_mut_with(&x, |y, &x| *y = f64::from(x) * y.powf(-f64::from(norm.beta)));
    Ok(vec![y.mapv(|y| y as f32).into_dyn(), Array4::zeros(extents(x.shape())).into_dyn()])
}

/// With r the response: dx_c = dy_c·r_c^−β − 2β·alpha/size·x_c·Σ dy_d·x_d·r_d^(−β−1) over the channels d around c.
fn local_response_norm_backward(norm: &LocalResponseNorm, inputs: &[ArrayD<f32>]) -> Result<ArrayD<f32>> {
    let (dy, x) = (image(&inputs[0])?, image(&inputs[1])?);
    let (response, channels, beta) = (response(norm, &x), x.shape()[1], f64::from(norm.beta));
    let share = 2.0 * beta * f64::from(norm.alpha) / norm.size as f64;
    let dx = Array4::from_shape_fn(extents(x.shape()), |(n, c, i, j)| {
        let around = c.saturating_sub(norm.size / 2)..(c + norm.size / 2 + 1).min(channels);
        let at = |array: &ArrayView4<f32>, c| f64::from(array[[n, c, i, j]]);
        let shared = |d| at(&dy, d) * at(&x, d) * response[[n, d, i, j]].powf(-beta - 1.0);
        let own = at(&dy, c) * response[[n, c, i, j]].powf(-beta);
        (own - share * at(&x, c) * around.map(shared).sum::<f64>()) as f32
    });
    Ok(dx.into_dyn())
}

fn stretched(x: &ArrayD<f32>, shape: &[usize]) -> Result<ArrayD<f32>> {
    let view = x.broadcast(IxDyn(shape)).map(|view| view.to_owned());
    view.ok_or_else(|| Error::internal(format!("{:?} cannot be stretched to {shape:?}", x.shape())))
}

fn binary(of: Binary, inputs: &[ArrayD<f32>], shape: &[usize]) -> Result<ArrayD<f32>> {
    let mut y = stretched(&inputs[0], shape)?;
    y.zip_mut_with(&stretched(&inputs[1], shape)?, |a, &b| *a = of.of(*a, b));
    Ok(y)
}

fn sum_to(x: &ArrayD<f32>, scale: f32, shape: &Shape) -> Result<ArrayD<f32>> {
    let mut sum = x.mapv(f64::from);
    for (axis, &extent) in shape.with_rank(x.ndim()).iter().enumerate() {
        if extent == 1 {
            sum = sum.sum_axis(Axis(axis)).insert_axis(Axis(axis));
        }
    }
    reshaped(sum.mapv(|sum| (sum * f64::from(scale)) as f32), &shape.0)
}

fn dropout(x: &ArrayD<f32>, p: f32, layer: u32, whole: bool, scalars: &Scalars) -> ArrayD<f32> {
    let stream = key(scalars.seed, Purpose::Dropout, layer);
    let kept = 1.0 / (1.0 - p);
    let per_sample = x.len() / x.shape()[0].max(1);
    let mut y = x.clone();
    for (index, value) in y.iter_mut().enumerate() {
        let (sample, element) = (scalars.first_sample + (index / per_sample) as u64, index % per_sample);
        let element = if whole { 0 } else { element };
        let counter = [element as u32 / 4, sample as u32, scalars.step as u32, (scalars.step >> 32) as u32];
        let word = philox(stream, counter)[element % 4];
        *value = if uniform(word) < p { 0.0 } else { *value * kept };
    }
    y
}

fn matmul(of: &MatMul, inputs: &[ArrayD<f32>], shape: &[usize]) -> Result<ArrayD<f32>> {
    let shapes = [0, 1].map(|index| Shape(inputs[index].shape().to_vec()));
    let [count, rows, inner, columns] =
        of.extents(&shapes[0], &shapes[1]).ok_or_else(|| Error::internal("a product that does not fit"))?;
    let in_batch = |array: &ArrayD<f32>, extents: [usize; 2], transposed: bool| {
        let [rows, columns] = if transposed { [extents[1], extents[0]] } else { extents };
        let all = reshaped(array.clone(), &[count, rows, columns])?;
        Ok::<_, Error>(if transposed { all.permuted_axes(IxDyn(&[0, 2, 1])) } else { all })
    };
    let a = in_batch(&inputs[0], [rows, inner], of.transposed[0])?;
    let b = in_batch(&inputs[1], [inner, columns], of.transposed[1])?;
    let at = |(m, i, j): (usize, usize, usize)| {
        let products = (0..inner).map(|k| f64::from(a[[m, i, k]]) * f64::from(b[[m, k, j]]));
        (f64::from(of.scale) * products.sum::<f64>()) as f32
    };
    let y: Vec<f32> = ndarray::indices((count, rows, columns)).into_iter().map(at).collect();
    ArrayD::from_shape_vec(IxDyn(shape), y).map_err(|e| Error::internal(e.to_string()))
}

/// What a function makes of each row of the last axis.
fn softmax_rows(x: &ArrayD<f32>, of: impl Fn(Vec<f64>) -> Vec<f64>) -> Result<ArrayD<f32>> {
    let width = x.shape().last().copied().unwrap_or(1);
    let rows = plain(x)?.chunks(width).map(|row| of(row.iter().map(|&v| f64::from(v)).collect()));
    rounded(rows.flatten().collect(), x.shape())
}

fn softmax_backward(inputs: &[ArrayD<f32>]) -> Result<ArrayD<f32>> {
    let (dy, y) = (plain(&inputs[0])?, plain(&inputs[1])?);
    let width = inputs[1].shape().last().copied().unwrap_or(1);
    let row = |(dy, y): (&[f32], &[f32])| {
        let pairs: Vec<[f64; 2]> = dy.iter().zip(y).map(|(&dy, &y)| [dy, y].map(f64::from)).collect();
        let sum: f64 = pairs.iter().map(|[dy, y]| dy * y).sum();
        pairs.into_iter().map(move |[dy, y]| y * (dy - sum)).collect::<Vec<_>>()
    };
    rounded(dy.chunks(width).zip(y.chunks(width)).flat_map(row).collect(), inputs[1].shape())
}

/// Softmax of one row, stable for large logits.
fn softmax(row: &[f64]) -> Vec<f64> {
    let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let powers: Vec<f64> = row.iter().map(|v| (v - largest).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.into_iter().map(|v| v / sum).collect()
}

fn rows(logits: &ArrayD<f32>) -> Result<Vec<Vec<f64>>> {
    let logits = matrix(logits)?;
    Ok(logits.rows().into_iter().map(|row| row.iter().map(|&v| f64::from(v)).collect()).collect())
}

/// What each row of logits shall give, and the class that counts as right; none for a sample that only fills the batch.
/// Inputs are logits, labels and, where samples are mixed, other labels and the shares of the first.
fn targets(inputs: &[ArrayD<f32>], smoothing: f32) -> Vec<Option<(Vec<f64>, usize)>> {
    let classes = inputs[0].shape()[1];
    let target = |n: usize| {
        let label = inputs[1][[n]];
        let (other, share) = match inputs.get(2..4) {
            Some([others, shares]) => (others[[n]], f64::from(shares[[n]])),
            _ => (label, 1.0),
        };
        (label >= 0.0).then(|| {
            let mut target = vec![f64::from(smoothing) / classes as f64; classes];
            target[label as usize] += (1.0 - f64::from(smoothing)) * share;
            target[other as usize] += (1.0 - f64::from(smoothing)) * (1.0 - share);
            (target, if share >= 0.5 { label } else { other } as usize)
        })
    };
    (0..inputs[1].len()).map(target).collect()
}

fn softmax_cross_entropy(inputs: &[ArrayD<f32>], smoothing: f32, weight: f32) -> Result<Vec<ArrayD<f32>>> {
    let (mut losses, mut hits) = (Vec::new(), Vec::new());
    for (row, target) in rows(&inputs[0])?.iter().zip(targets(inputs, smoothing)) {
        let Some((target, right)) = target else {
            losses.push(0.0);
            hits.push(0.0);
            continue;
        };
        let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let logsum = row.iter().map(|v| (v - largest).exp()).sum::<f64>().ln();
        let aimed = row.iter().zip(&target).filter(|(_, share)| **share != 0.0);
        let aim: f64 = aimed.map(|(v, share)| (v - largest) * share).sum();
        losses.push((f64::from(weight) * (logsum - aim)) as f32);
        let first = row.iter().position(|&v| v == largest);
        hits.push(f32::from(u8::from(first == Some(right))));
    }
    Ok(vec![Array1::from(losses).into_dyn(), Array1::from(hits).into_dyn()])
}

fn softmax_cross_entropy_backward(inputs: &[ArrayD<f32>], smoothing: f32, scale: f64) -> Result<ArrayD<f32>> {
    let mut gradient = Vec::with_capacity(inputs[0].len());
    for (row, target) in rows(&inputs[0])?.iter().zip(targets(inputs, smoothing)) {
        match target {
            Some((target, _)) => {
                let differences = softmax(row).into_iter().zip(target).map(|(p, target)| p - target);
                gradient.extend(differences.map(|difference| (difference * scale) as f32));
            }
            None => gradient.extend(row.iter().map(|_| 0.0)),
        }
    }
    reshaped(Array1::from(gradient).into_dyn(), inputs[0].shape())
}
