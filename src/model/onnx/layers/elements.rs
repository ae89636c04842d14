//! Arithmetic: activations, spelled out or not, two tensors of which either is stretched, and sums over axes.

use super::{Lowered, stated};
use crate::graph::{Activation, Binary, Permutation, Pool, Shape, TensorId, dims};
use crate::model::onnx::constant::{ConstantTensor, ConstantValues, common, from_front};
use crate::model::onnx::import::{Import, PartialActivation, Value};
use crate::model::onnx::tensor::Reason;

/// What is added to a sum of squares before its root is taken: a length of 0 then has a gradient of 0, not none. No sum
/// of f32 above 2⁻⁵⁶ is changed by it.
const LEAST_SQUARE: f32 = 1e-24;

pub fn first(inputs: &[Value]) -> std::result::Result<&Value, Reason> {
    inputs.first().ok_or_else(|| "reads nothing".into())
}

// ---- activations ----

pub fn activation(import: &mut Import, inputs: &[Value], of: Activation) -> Lowered {
    // The order of the axes is nothing to it, and may yet be taken back.
    if let Value::Partly(turned @ PartialActivation::Turned(_), x) = first(inputs)? {
        return Ok(Value::Partly(*turned, activated(import, *x, of)));
    }
    let x = import.tensor(first(inputs)?)?;
    Ok(Value::Tensor(activated(import, x, of)))
}

fn activated(import: &mut Import, x: TensorId, of: Activation) -> TensorId {
    let layer = import.layer(&import.node.layer());
    import.net.activation(&layer, x, of)
}

/// What was begun is an activation by itself, or none.
pub fn finished(import: &mut Import, step: PartialActivation, x: TensorId) -> Lowered<TensorId> {
    match step {
        PartialActivation::Sigmoid => {
            let layer = import.layer(&format!("{}.sigmoid", import.node.layer()));
            Ok(import.net.activation(&layer, x, Activation::Sigmoid))
        }
        PartialActivation::Scaled(by) => {
            let layer = import.layer(&format!("{}.scaled", import.node.layer()));
            Ok(import.net.scaled(&layer, x, by))
        }
        PartialActivation::Turned(order) => {
            let layer = import.layer(&format!("{}.transposed", import.node.layer()));
            Ok(import.net.permute(&layer, x, &order.axes())?)
        }
        PartialActivation::Above(_) => Err("chooses by what is computed from the images".into()),
        PartialActivation::Erf | PartialActivation::ErfPlusOne | PartialActivation::TwiceGelu => {
            Err("reads what is a part of GELU's formula".into())
        }
    }
}

pub fn sigmoid(import: &mut Import, inputs: &[Value]) -> Lowered {
    let x = import.tensor(first(inputs)?)?;
    Ok(Value::Partly(PartialActivation::Sigmoid, x))
}

pub fn erf(_: &mut Import, inputs: &[Value]) -> Lowered {
    match first(inputs)? {
        Value::Partly(PartialActivation::Scaled(by), x) if is_near(*by, std::f32::consts::FRAC_1_SQRT_2) => {
            Ok(Value::Partly(PartialActivation::Erf, *x))
        }
        _ => Err("is no part of GELU: x/2·(1 + erf(x/√2))".into()),
    }
}

/// Numbers in files are rounded, some to f16.
fn is_near(a: f32, b: f32) -> bool {
    (a - b).abs() <= 1e-3 * b.abs()
}

pub fn leaky_relu(import: &mut Import, inputs: &[Value]) -> Lowered {
    match import.node.real("alpha").unwrap_or(0.01) {
        slope if slope > 0.0 && slope.is_finite() => {
            activation(import, inputs, Activation::LeakyRelu { slope })
        }
        slope => Err(format!("alpha {slope}: must be above 0").into()),
    }
}

pub fn hard_sigmoid(import: &mut Import, inputs: &[Value]) -> Lowered {
    let (alpha, beta) = (import.node.real("alpha").unwrap_or(0.2), import.node.real("beta").unwrap_or(0.5));
    if is_near(alpha, 1.0 / 6.0) && beta == 0.5 {
        return activation(import, inputs, Activation::HardSigmoid);
    }
    let x = scaled(import, first(inputs)?, alpha)?;
    let y = add(import, &[x, number(beta)])?;
    limited(import, &y, [0.0, 1.0])
}

pub fn gelu(import: &mut Import, inputs: &[Value]) -> Lowered {
    match import.node.text("approximate").unwrap_or("none") {
        "none" => activation(import, inputs, Activation::Gelu),
        // x·σ(2·√(2/π)·(x + 0.044715·x³)), which is x/2·(1 + tanh(√(2/π)·(x + 0.044715·x³))).
        "tanh" => {
            let x = Value::Tensor(import.tensor(first(inputs)?)?);
            let square = multiply(import, &[x.clone(), x.clone()])?;
            let slope = scaled(import, &square, 0.044_715)?;
            let slope = add(import, &[slope, number(1.0)])?;
            let inner = multiply(import, &[x.clone(), slope])?;
            let inner = scaled(import, &inner, 2.0 * (2.0 / std::f32::consts::PI).sqrt())?;
            let share = activation(import, &[inner], Activation::Sigmoid)?;
            multiply(import, &[x, share])
        }
        other => Err(format!("approximate {other}").into()),
    }
}

pub fn swish(import: &mut Import, inputs: &[Value]) -> Lowered {
    match import.node.real("alpha").unwrap_or(1.0) {
        1.0 => activation(import, inputs, Activation::Silu),
        alpha => {
            let x = Value::Tensor(import.tensor(first(inputs)?)?);
            let inner = scaled(import, &x, alpha)?;
            let share = activation(import, &[inner], Activation::Sigmoid)?;
            multiply(import, &[x, share])
        }
    }
}

pub fn clip(import: &mut Import, inputs: &[Value]) -> Lowered {
    let limit = |import: &Import, index: usize, name: &str, default: f32| match inputs.get(index) {
        Some(value) => import.constant(value).map(|constant| constant.single().unwrap_or(default)),
        None => Ok(import.node.real(name).unwrap_or(default)),
    };
    let min = limit(import, 1, "min", f32::NEG_INFINITY)?;
    let max = limit(import, 2, "max", f32::INFINITY)?;
    limited(import, first(inputs)?, [min, max])
}

/// min(max(x, least), most): least + ReLU(x − least) up to most − least, or most − ReLU(most − x).
fn limited(import: &mut Import, x: &Value, [least, most]: [f32; 2]) -> Lowered {
    let (has_least, has_most) = (least > f32::MIN, most < f32::MAX);
    if least.is_nan() || most.is_nan() || (has_least && has_most && most <= least) {
        return Err(format!("from {least} to {most}: nothing lies between").into());
    }
    let relu = |max: f32| Activation::Relu { max };
    match (has_least, has_most) {
        (false, false) => Ok(Value::Tensor(import.tensor(x)?)),
        (true, _) => {
            let x = add(import, &[x.clone(), number(-least)])?;
            let y = activation(import, &[x], relu(if has_most { most - least } else { f32::INFINITY }))?;
            add(import, &[y, number(least)])
        }
        (false, true) => {
            let x = stretched(import, &[number(most), x.clone()], Binary::Subtract)?;
            let y = activation(import, &[x], relu(f32::INFINITY))?;
            stretched(import, &[number(most), y], Binary::Subtract)
        }
    }
}

/// ReLU(x) + slope·(x − ReLU(x)), with a slope for each channel.
pub fn parametric_relu(import: &mut Import, inputs: &[Value]) -> Lowered {
    let [x, slope] = inputs else { return Err("reads other than a tensor and its slopes".into()) };
    let x = Value::Tensor(import.tensor(x)?);
    let [above, below] = halves(import, &x)?;
    let below = stretched(import, &[below, slope.clone()], Binary::Multiply)?;
    stretched(import, &[above, below], Binary::Add)
}

/// ReLU(x) + alpha·(e^(x − ReLU(x)) − 1)
pub fn elu(import: &mut Import, inputs: &[Value]) -> Lowered {
    let [above, below] = halves(import, first(inputs)?)?;
    let below = less_one(import, &below, import.node.real("alpha").unwrap_or(1.0))?;
    stretched(import, &[above, below], Binary::Add)
}

/// ReLU(x) + alpha·(e^(x − ReLU(x))/alpha − 1)
pub fn celu(import: &mut Import, inputs: &[Value]) -> Lowered {
    let alpha = import.node.real("alpha").unwrap_or(1.0);
    let [above, below] = halves(import, first(inputs)?)?;
    let below = scaled(import, &below, 1.0 / alpha)?;
    let below = less_one(import, &below, alpha)?;
    stretched(import, &[above, below], Binary::Add)
}

/// gamma·(ReLU(x) + alpha·(e^(x − ReLU(x)) − 1))
pub fn selu(import: &mut Import, inputs: &[Value]) -> Lowered {
    let alpha = import.node.real("alpha").unwrap_or(1.673_263_2);
    let [above, below] = halves(import, first(inputs)?)?;
    let below = less_one(import, &below, alpha)?;
    let y = stretched(import, &[above, below], Binary::Add)?;
    scaled(import, &y, import.node.real("gamma").unwrap_or(1.050_701))
}

/// alpha·(e^x − 1), of what is not above 0.
fn less_one(import: &mut Import, x: &Value, alpha: f32) -> Lowered {
    let y = activation(import, std::slice::from_ref(x), Activation::Exp)?;
    let y = add(import, &[y, number(-1.0)])?;
    scaled(import, &y, alpha)
}

/// ln(1 + e^x) = ReLU(x) + ln(1 + u) with u = e^−|x|, at most 1. With z = u/(2 + u), at most 1/3, that is 2·(z + z³/3 +
/// z⁵/5 + …), of which what lies behind z¹⁵ is no digit of an f32.
pub fn softplus(import: &mut Import, inputs: &[Value]) -> Lowered {
    let x = import.tensor(first(inputs)?)?;
    let [above, below] = halves(import, &Value::Tensor(x))?;
    let size = stretched(import, &[below, above.clone()], Binary::Subtract)?;
    let u = activation(import, &[size], Activation::Exp)?;
    let by = add(import, &[u.clone(), number(2.0)])?;
    let z = stretched(import, &[u, by], Binary::Divide)?;
    let square = multiply(import, &[z.clone(), z.clone()])?;
    let mut sum = number(1.0 / 15.0);
    for odd in [13, 11, 9, 7, 5, 3, 1] {
        sum = multiply(import, &[sum, square.clone()])?;
        sum = add(import, &[sum, number(1.0 / odd as f32)])?;
    }
    let all = multiply(import, &[sum, z])?;
    let all = scaled(import, &all, 2.0)?;
    let y = stretched(import, &[above, all], Binary::Add)?;
    if let Value::Tensor(y) = y {
        import.softplus_of.insert(y, x);
    }
    Ok(y)
}

/// From where on softplus is what it is of, in f32.
const STRAIGHT: f32 = 18.0;

pub fn greater(import: &mut Import, inputs: &[Value]) -> Lowered {
    match inputs {
        [x, by] => {
            let by = import.single(by).ok_or("compares with other than a number that is known")?;
            Ok(Value::Partly(PartialActivation::Above(by), import.tensor(x)?))
        }
        _ => Err("compares other than two".into()),
    }
}

/// x·tanh(ln(1 + e^x))
pub fn mish(import: &mut Import, inputs: &[Value]) -> Lowered {
    let x = Value::Tensor(import.tensor(first(inputs)?)?);
    let y = softplus(import, std::slice::from_ref(&x))?;
    let y = activation(import, &[y], Activation::Tanh)?;
    multiply(import, &[x, y])
}

/// x/(1 + |x|)
pub fn softsign(import: &mut Import, inputs: &[Value]) -> Lowered {
    let x = Value::Tensor(import.tensor(first(inputs)?)?);
    let size = absolute(import, std::slice::from_ref(&x))?;
    let by = add(import, &[size, number(1.0)])?;
    stretched(import, &[x, by], Binary::Divide)
}

/// The part above 0 and that below, which add up to x.
fn halves(import: &mut Import, x: &Value) -> Lowered<[Value; 2]> {
    let x = Value::Tensor(import.tensor(x)?);
    let above = activation(import, std::slice::from_ref(&x), Activation::RELU)?;
    let below = stretched(import, &[x, above.clone()], Binary::Subtract)?;
    Ok([above, below])
}

pub fn absolute(import: &mut Import, inputs: &[Value]) -> Lowered {
    let [above, below] = halves(import, first(inputs)?)?;
    stretched(import, &[above, below], Binary::Subtract)
}

// ---- two tensors ----

/// A number by itself.
pub fn number(number: f32) -> Value {
    Value::Known(ConstantTensor { dims: Vec::new(), numbers: ConstantValues::Reals(vec![number]) })
}

pub fn multiply(import: &mut Import, inputs: &[Value]) -> Lowered {
    let [a, b] = inputs else { return Err("multiplies other than two tensors".into()) };
    // What is multiplied by a part of its own formula may have been put into another order before.
    let begun = |value: &Value| {
        matches!(
            value,
            Value::Partly(
                PartialActivation::Sigmoid | PartialActivation::ErfPlusOne | PartialActivation::Scaled(_),
                _
            )
        )
    };
    let seen = |import: &mut Import, value: &Value| match value {
        Value::Partly(PartialActivation::Turned(_), _) => import.tensor(value).map(Value::Tensor),
        value => Ok(value.clone()),
    };
    let (a, b) = match (begun(a), begun(b)) {
        (true, _) => (&a.clone(), &seen(import, b)?),
        (_, true) => (&seen(import, a)?, &b.clone()),
        _ => (a, b),
    };
    let inputs = &[a.clone(), b.clone()];
    let numbers = [a, b].map(|value| import.single(value));
    match (a, b, numbers) {
        (Value::Noise(noise), x, _) | (x, Value::Noise(noise), _) => super::random::dropped(import, x, noise),
        (Value::Partly(PartialActivation::Sigmoid, x), Value::Tensor(y), _)
        | (Value::Tensor(y), Value::Partly(PartialActivation::Sigmoid, x), _)
            if x == y =>
        {
            activation(import, &[Value::Tensor(*x)], Activation::Silu)
        }
        (Value::Partly(PartialActivation::ErfPlusOne, x), Value::Tensor(y), _)
        | (Value::Tensor(y), Value::Partly(PartialActivation::ErfPlusOne, x), _)
            if x == y =>
        {
            Ok(Value::Partly(PartialActivation::TwiceGelu, *x))
        }
        (
            Value::Partly(PartialActivation::ErfPlusOne, x),
            Value::Partly(PartialActivation::Scaled(half), y),
            _,
        )
        | (
            Value::Partly(PartialActivation::Scaled(half), y),
            Value::Partly(PartialActivation::ErfPlusOne, x),
            _,
        ) if x == y && *half == 0.5 => activation(import, &[Value::Tensor(*x)], Activation::Gelu),
        (Value::Partly(PartialActivation::TwiceGelu, x), _, [_, Some(0.5)])
        | (_, Value::Partly(PartialActivation::TwiceGelu, x), [Some(0.5), _]) => {
            activation(import, &[Value::Tensor(*x)], Activation::Gelu)
        }
        (x, _, [_, Some(by)]) | (_, x, [Some(by), _]) => scaled(import, x, by),
        _ => stretched(import, inputs, Binary::Multiply),
    }
}

/// An op of two tensors, either stretched over the other.
pub fn stretched(import: &mut Import, inputs: &[Value], of: Binary) -> Lowered {
    let [a, b] = inputs else { return Err("reads other than two tensors".into()) };
    if let (Value::Partly(turned @ PartialActivation::Turned(order), _), _)
    | (_, Value::Partly(turned @ PartialActivation::Turned(order), _)) = (a, b)
    {
        let both = [before(import, a, *order)?, before(import, b, *order)?];
        if let [Some(a), Some(b)] = both {
            return Ok(Value::Partly(*turned, put_together(import, of, a, b)?));
        }
    }
    let (a, b) = (import.tensor(a)?, import.tensor(b)?);
    Ok(Value::Tensor(put_together(import, of, a, b)?))
}

/// What becomes an operand when axes are put in this order; `None` where that is more than to give a row other axes.
fn before(import: &mut Import, value: &Value, order: Permutation) -> Lowered<Option<TensorId>> {
    match value {
        Value::Partly(PartialActivation::Turned(other), x) if *other == order => return Ok(Some(*x)),
        Value::Partly(..) | Value::Tensor(_) => return Ok(None),
        _ => {}
    }
    let (x, axes) = (import.tensor(value)?, order.axes());
    let shape = import.net.shape(x).clone();
    let long: Vec<usize> = (0..shape.rank()).filter(|&axis| shape.0[axis] > 1).collect();
    match (long[..].first(), axes.len().checked_sub(shape.rank())) {
        (None, Some(_)) => Ok(Some(x)),
        (Some(&axis), Some(more)) if long.len() == 1 => {
            let mut extents = vec![1; axes.len()];
            extents[axes[more + axis]] = shape.0[axis];
            let layer = import.layer(&format!("{}.turned", import.node.layer()));
            Ok(Some(import.net.reshape(&layer, x, Shape(extents))?))
        }
        _ => Ok(None),
    }
}

/// The op of two tensors of the network, either stretched over the other.
pub fn put_together(import: &mut Import, of: Binary, a: TensorId, b: TensorId) -> Lowered<TensorId> {
    let [first, second] = [a, b].map(|id| import.net.shape(id).clone());
    if common(&[&first.0, &second.0]).is_none() {
        return Err(format!("puts {first} and {second} together").into());
    }
    let layer = import.layer(&import.node.layer());
    Ok(import.net.binary(&layer, of, a, b)?)
}

pub fn divide(import: &mut Import, inputs: &[Value]) -> Lowered {
    let [x, by] = inputs else { return Err("divides other than two tensors".into()) };
    match (x, import.single(by)) {
        (Value::Noise(noise), Some(by)) => super::random::divided(noise, by),
        (_, Some(by)) => scaled(import, x, 1.0 / by),
        (_, None) => stretched(import, inputs, Binary::Divide),
    }
}

pub fn reciprocal(import: &mut Import, inputs: &[Value]) -> Lowered {
    stretched(import, &[number(1.0), first(inputs)?.clone()], Binary::Divide)
}

/// By 1 nothing is done. Others may begin GELU, or be part of a product, and are multiplied by when they are neither.
pub fn scaled(import: &mut Import, x: &Value, by: f32) -> Lowered {
    match x {
        Value::Partly(PartialActivation::Scaled(before), x) => {
            Ok(Value::Partly(PartialActivation::Scaled(before * by), *x))
        }
        x if by == 1.0 => Ok(Value::Tensor(import.tensor(x)?)),
        x => Ok(Value::Partly(PartialActivation::Scaled(by), import.tensor(x)?)),
    }
}

pub fn add(import: &mut Import, inputs: &[Value]) -> Lowered {
    if let [Value::Partly(PartialActivation::Erf, x), one] | [one, Value::Partly(PartialActivation::Erf, x)] =
        inputs
        && import.single(one) == Some(1.0)
    {
        return Ok(Value::Partly(PartialActivation::ErfPlusOne, *x));
    }
    if inputs.iter().any(|value| leaves_nothing(import, value)) {
        return Err("adds −∞ to all numbers of a row, of which a softmax makes none".into());
    }
    let is_zero = |value: &&Value| import.single(value) == Some(0.0);
    let parts: Vec<Value> = inputs.iter().filter(|value| !is_zero(value)).cloned().collect();
    let mut sum = match &parts[..] {
        [one] => Value::Tensor(import.tensor(one)?),
        parts => first(parts)?.clone(),
    };
    for value in &parts[1..] {
        sum = stretched(import, &[sum, value.clone()], Binary::Add)?;
    }
    Ok(sum)
}

/// Whether a known tensor, a mask, has −∞ all along its last axis. A softmax of such a row is no number; exporters make
/// zeros of it by a choice, which here is arithmetic, and keeps what is no number.
pub fn leaves_nothing(import: &Import, value: &Value) -> bool {
    let Some(Ok(mask)) = import.is_known(value).then(|| import.constant(value)) else { return false };
    let along = mask.dims.last().copied().unwrap_or(1);
    along > 1 && mask.reals().chunks(along).any(|row| row.iter().all(|&number| number == f32::NEG_INFINITY))
}

pub fn mean(import: &mut Import, inputs: &[Value]) -> Lowered {
    let sum = add(import, inputs)?;
    scaled(import, &sum, 1.0 / inputs.len() as f32)
}

pub fn maximum(import: &mut Import, inputs: &[Value]) -> Lowered {
    extreme(import, inputs, true)
}

pub fn minimum(import: &mut Import, inputs: &[Value]) -> Lowered {
    extreme(import, inputs, false)
}

/// max(a, b) = a + ReLU(b − a) and min(a, b) = a − ReLU(a − b)
fn extreme(import: &mut Import, inputs: &[Value], largest: bool) -> Lowered {
    let mut all = first(inputs)?.clone();
    for next in &inputs[1..] {
        let (pair, of) = match largest {
            true => ([next.clone(), all.clone()], Binary::Add),
            false => ([all.clone(), next.clone()], Binary::Subtract),
        };
        let further = stretched(import, &pair, Binary::Subtract)?;
        let further = activation(import, &[further], Activation::RELU)?;
        all = stretched(import, &[all, further], of)?;
    }
    Ok(Value::Tensor(import.tensor(&all)?))
}

pub fn power(import: &mut Import, inputs: &[Value]) -> Lowered {
    let [x, exponent] = inputs else { return Err("reads other than a tensor and an exponent".into()) };
    let exponent = import.single(exponent).ok_or("its exponent is no single number")?;
    let x = Value::Tensor(import.tensor(x)?);
    match exponent {
        1.0 => Ok(x),
        2.0 => multiply(import, &[x.clone(), x]),
        3.0 => {
            let square = multiply(import, &[x.clone(), x.clone()])?;
            multiply(import, &[square, x])
        }
        0.5 => activation(import, &[x], Activation::Sqrt),
        -1.0 => reciprocal(import, &[x]),
        -0.5 => {
            let root = activation(import, &[x], Activation::Sqrt)?;
            reciprocal(import, &[root])
        }
        other => Err(format!("to the power of {other}, and not of −1, ±1/2, 1, 2 or 3").into()),
    }
}

/// By a condition that is known: a·condition + b·(1 − condition), of which the constant part is known too.
pub fn choose(import: &mut Import, inputs: &[Value]) -> Lowered {
    let [condition, a, b] = inputs else { return Err("reads other than a condition and two tensors".into()) };
    // PyTorch says of softplus that it is x for a large x.
    if let (Value::Partly(PartialActivation::Above(by), x), Value::Tensor(b)) = (condition, b)
        && *by >= STRAIGHT
        && import.softplus_of.get(b) == Some(x)
        && import.tensor(a)? == *x
    {
        return Ok(Value::Tensor(*b));
    }
    let condition = import.constant(condition)?;
    let holds: Vec<bool> = condition.reals().iter().map(|&number| number != 0.0).collect();
    let mut sum: Option<Value> = None;
    for (value, wanted) in [(a, true), (b, false)] {
        let is_chosen: Vec<f32> = holds.iter().map(|&holds| f32::from(u8::from(holds == wanted))).collect();
        let mask = ConstantTensor { dims: condition.dims.clone(), numbers: ConstantValues::Reals(is_chosen) };
        let part = match import.known_reals(value) {
            Some(_) => {
                Value::Known(masked(&import.constant(value)?, &mask).ok_or("stretches unlike shapes")?)
            }
            None => multiply(import, &[value.clone(), Value::Known(mask)])?,
        };
        sum = Some(match sum {
            None => part,
            Some(sum) => add(import, &[sum, part])?,
        });
    }
    sum.ok_or_else(|| "chooses nothing".into())
}

/// What is not chosen is 0, infinite or not.
fn masked(x: &ConstantTensor, mask: &ConstantTensor) -> Option<ConstantTensor> {
    let dims = common(&[&x.dims, &mask.dims])?;
    let (x, mask) = (x.stretched(&dims)?, mask.stretched(&dims)?);
    let both = x.reals().into_iter().zip(mask.reals());
    let numbers = ConstantValues::Reals(both.map(|(x, mask)| if mask == 0.0 { 0.0 } else { x }).collect());
    Some(ConstantTensor { dims, numbers })
}

// ---- sums over axes ----

/// Over height and width of images it is a pooling.
pub fn mean_over(import: &mut Import, inputs: &[Value]) -> Lowered {
    let x = import.tensor(first(inputs)?)?;
    let axes = axes_of(import, inputs, x)?;
    let shape = import.net.shape(x).clone();
    if shape.rank() == 4 && axes == [2, 3] {
        let layer = import.layer(&import.node.layer());
        let y = import.net.global_avg_pool(&layer, x)?;
        return kept(import, y, &axes);
    }
    let count: usize = axes.iter().map(|&axis| shape.0[axis]).product();
    summed(import, x, &axes, 1.0 / count as f32)
}

pub fn sum_over(import: &mut Import, inputs: &[Value]) -> Lowered {
    let x = import.tensor(first(inputs)?)?;
    let axes = axes_of(import, inputs, x)?;
    summed(import, x, &axes, 1.0)
}

pub fn squares_over(import: &mut Import, inputs: &[Value]) -> Lowered {
    let x = import.tensor(first(inputs)?)?;
    let axes = axes_of(import, inputs, x)?;
    let squares = put_together(import, Binary::Multiply, x, x)?;
    summed(import, squares, &axes, 1.0)
}

pub fn norm_over(import: &mut Import, inputs: &[Value]) -> Lowered {
    let squares = squares_over(import, inputs)?;
    let squares = add(import, &[squares, number(LEAST_SQUARE)])?;
    activation(import, &[squares], Activation::Sqrt)
}

/// The largest over axes, which a pooling finds: of images whose rows are what lies along them.
pub fn largest_over(import: &mut Import, inputs: &[Value]) -> Lowered {
    let x = import.tensor(first(inputs)?)?;
    let axes = axes_of(import, inputs, x)?;
    let shape = import.net.shape(x).clone();
    if axes.is_empty() {
        return Ok(Value::Tensor(x));
    }
    let others: Vec<usize> = (0..shape.rank()).filter(|axis| !axes.contains(axis)).collect();
    let order = [&others[..], &axes].concat();
    let y = super::shapes::permuted(import, &Value::Tensor(x), &order)?;
    let y = import.tensor(&y)?;
    let count: usize = axes.iter().map(|&axis| shape.0[axis]).product();
    let first = others.first().map_or(1, |&axis| shape.0[axis]);
    let layer = import.layer(&import.node.layer());
    let as_image = dims([first, shape.elements() / count / first, count, 1]);
    let y = import.net.reshape(&format!("{layer}.rows"), y, as_image)?;
    let pool = Pool { kernel: [1, count, 1], ..Pool::square(1) };
    let y = import.net.max_pool(&layer, y, pool)?;
    let extent = |axis: usize| if axes.contains(&axis) { 1 } else { shape.0[axis] };
    let y = super::shapes::shaped(import, y, (0..shape.rank()).map(extent).collect())?;
    let y = import.tensor(&y)?;
    kept(import, y, &axes)
}

/// The smallest over axes: the negated largest of the negated tensor.
pub fn smallest_over(import: &mut Import, inputs: &[Value]) -> Lowered {
    let x = scaled(import, first(inputs)?, -1.0)?;
    let rest = inputs.get(1..).unwrap_or_default();
    let y = largest_over(import, &[&[x], rest].concat())?;
    scaled(import, &y, -1.0)
}

/// The axes that a node names, in their order; all where it names none.
pub fn axes_of(
    import: &mut Import,
    inputs: &[Value],
    x: TensorId,
) -> std::result::Result<Vec<usize>, Reason> {
    let shape = import.net.shape(x).clone();
    let said = match stated(import, inputs, 1)? {
        Some(axes) => axes,
        None => import.node.ints("axes").unwrap_or_default().to_vec(),
    };
    if said.is_empty() {
        if import.node.int("noop_with_empty_axes").unwrap_or(0) != 0 {
            return Ok(Vec::new());
        }
        import.along_first(x);
        return Ok((0..shape.rank()).collect());
    }
    let axes: Option<Vec<usize>> = said.iter().map(|&axis| from_front(axis, shape.rank())).collect();
    let mut axes = axes.ok_or_else(|| format!("axes {said:?} of {shape}"))?;
    axes.sort_unstable();
    axes.dedup();
    if axes.first() == Some(&0) {
        import.along_first(x);
    }
    Ok(axes)
}

fn summed(import: &mut Import, x: TensorId, axes: &[usize], scale: f32) -> Lowered {
    if axes.is_empty() {
        return Ok(Value::Tensor(x));
    }
    let layer = import.layer(&import.node.layer());
    let y = import.net.sum(&layer, x, axes, scale)?;
    kept(import, y, axes)
}

/// With the axes that were summed over, or without.
fn kept(import: &mut Import, y: TensorId, axes: &[usize]) -> Lowered {
    if import.node.int("keepdims").unwrap_or(1) != 0 {
        return Ok(Value::Tensor(y));
    }
    let extents = import.net.shape(y).0.iter().enumerate();
    let mut left: Vec<usize> =
        extents.filter(|(axis, _)| !axes.contains(axis)).map(|(_, &extent)| extent).collect();
    // One number of weights, which is one for all samples: a penalty.
    if left.is_empty() && !import.of_images(y) {
        left.push(1);
    }
    super::shapes::shaped(import, y, left)
}

/// The numbers of a row with axes of 1 behind them, so many axes in all.
pub fn with_single_axes(import: &mut Import, x: TensorId, rank: usize) -> Lowered<TensorId> {
    let mut shape = import.net.shape(x).0.clone();
    shape.resize(rank.max(shape.len()), 1);
    let layer = import.layer(&format!("{}.numbers", import.node.layer()));
    Ok(import.net.reshape(&layer, x, Shape(shape))?)
}
