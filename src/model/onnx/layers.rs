//! What each op of the format becomes: a layer of the network, or nothing.

use super::constant::{Constant, Numbers, axes, from_front, squeezed, unsqueezed};
use super::import::{Import, Step, Stop, Stored, Value};
use super::node::{Node, lengths};
use super::tensor::Wrong;
use crate::graph::{Activation, BatchNorm, Binary, Conv2d, LocalResponseNorm, Pool2d, Shape, TensorId};

type Outcome = std::result::Result<Value, Stop>;
/// Makes a layer of a node and of what it reads.
pub type Handler = for<'a> fn(&mut Import<'a>, Node<'a>, &[Value]) -> Outcome;

/// The ops that become layers, with the attributes that are read, or that say nothing about the numbers.
const OPS: &[(&str, &[&str], Handler)] = &[
    ("Add", &[], add),
    (
        "AveragePool",
        &["auto_pad", "ceil_mode", "count_include_pad", "dilations", "kernel_shape", "pads", "strides"],
        average_pool,
    ),
    ("BatchNormalization", &["epsilon", "momentum", "spatial", "training_mode"], batch_norm),
    ("Cast", &["saturate", "to"], same),
    ("Clip", &["max", "min"], clip),
    ("Concat", &["axis"], concat),
    ("Constant", &["value", "value_float", "value_int", "value_ints"], constant),
    ("Conv", &["auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"], conv),
    ("Div", &[], divide),
    ("Dropout", &["ratio", "seed"], dropout),
    ("Erf", &[], erf),
    ("Flatten", &["axis"], flatten),
    ("Gelu", &["approximate"], gelu),
    ("Gemm", &["alpha", "beta", "transA", "transB"], gemm),
    ("GlobalAveragePool", &[], global_average_pool),
    ("GlobalMaxPool", &[], global_max_pool),
    ("HardSigmoid", &["alpha", "beta"], hard_sigmoid),
    ("HardSwish", &[], |import, node, inputs| activation(import, node, inputs, Activation::HardSwish)),
    ("Identity", &[], identity),
    ("LRN", &["alpha", "beta", "bias", "size"], local_response_norm),
    ("LeakyRelu", &["alpha"], leaky_relu),
    ("LogSoftmax", &["axis"], softmax),
    ("MatMul", &[], matmul),
    (
        "MaxPool",
        &["auto_pad", "ceil_mode", "dilations", "kernel_shape", "pads", "storage_order", "strides"],
        max_pool,
    ),
    ("Mul", &[], multiply),
    ("Pad", &["mode"], pad),
    ("ReduceMean", &["axes", "keepdims", "noop_with_empty_axes"], reduce_mean),
    ("Relu", &[], |import, node, inputs| activation(import, node, inputs, Activation::RELU)),
    ("Reshape", &["allowzero"], reshape),
    ("Shape", &["end", "start"], shape),
    ("Sigmoid", &[], sigmoid),
    ("Slice", &[], slice),
    ("Softmax", &["axis"], softmax),
    ("Split", &["axis", "num_outputs", "split"], split),
    ("Squeeze", &["axes"], squeeze),
    ("Sub", &[], |import, node, inputs| stretched(import, node, inputs, Binary::Subtract)),
    ("Sum", &[], add),
    ("Swish", &["alpha"], swish),
    ("Tanh", &[], |import, node, inputs| activation(import, node, inputs, Activation::Tanh)),
    ("Transpose", &["perm"], transpose),
    ("Unsqueeze", &["axes"], unsqueeze),
];

/// What makes a layer of this node; `None` where its op is only computed in advance.
///
/// # Errors
/// The op or one of its attributes is not known.
pub fn handler(node: Node) -> std::result::Result<Option<Handler>, Wrong> {
    match (node.domain(), OPS.iter().find(|(name, ..)| *name == node.op())) {
        ("", Some((_, attributes, handler))) => node.only(attributes).map(|()| Some(*handler)),
        ("", None) if super::constant::is_folded(node.op()) => Ok(None),
        ("", None) => Err("the op is not supported".into()),
        (domain, _) => Err(format!("the op is of the set {domain}, and not one of ONNX's own")),
    }
}

// ---- what has weights ----

fn conv<'a>(import: &mut Import<'a>, node: Node<'a>, inputs: &[Value]) -> Outcome {
    let [x, w, rest @ ..] = inputs else { return Err("reads less than an image and a weight".into()) };
    let x = image(import, node, x)?;
    let (weight, dims) = import.stored(w, "weight", 4)?;
    let bias = match rest {
        [Value::Stored(_), ..] => Some(import.stored(&rest[0], "bias", 1)?.0),
        [] => None,
        [Value::Known(constant)] if constant.dims == [0] => None,
        _ => return Err("its bias is computed, not stored".into()),
    };
    let kernel = [dims[2], dims[3]];
    if node.ints("kernel_shape").is_some_and(|ints| lengths(ints).as_deref() != Some(&kernel)) {
        return Err(format!("kernel_shape is not that of its weight, {kernel:?}").into());
    }
    let groups = node.int("group").unwrap_or(1);
    let channels = import.net.shape(x).0[1];
    let dilation = node.pair("dilations", 1)?;
    if dilation.contains(&0) {
        return Err("dilations of 0".into());
    }
    let reach =
        [0, 1].map(|axis| dilation[axis].saturating_mul(kernel[axis].saturating_sub(1)).saturating_add(1));
    let pads = pads(import, node, x, reach)?;
    let (x, padding) = match pads {
        [top, left, bottom, right] if top == bottom && left == right => (x, [top, left]),
        _ => (padded(import, node, x, pads)?, [0, 0]),
    };
    let conv = Conv2d {
        kernel,
        stride: strides(node)?,
        padding,
        dilation,
        groups: usize::try_from(groups).map_err(|_| format!("group {groups}"))?,
        bias: bias.is_some(),
        relu: false,
    };
    if channels != dims[1].saturating_mul(conv.groups) {
        return Err(
            format!("its weight is for {} channels, not for {channels}", dims[1] * conv.groups).into()
        );
    }
    let layer = import.layer_of(node, &weight);
    let channels = import.classes_of(node).unwrap_or(dims[0]);
    let y = import.net.conv2d(&layer, x, channels, conv)?;
    learned(import, &[Some(weight), bias])?;
    Ok(Value::Tensor(y))
}

fn gemm<'a>(import: &mut Import<'a>, node: Node<'a>, inputs: &[Value]) -> Outcome {
    let [x, w, rest @ ..] = inputs else { return Err("reads less than two matrices".into()) };
    if node.int("transA").unwrap_or(0) != 0 {
        return Err("transA 1: the batch is not its first axis".into());
    }
    for name in ["alpha", "beta"] {
        if let Some(factor) = node.real(name).filter(|&factor| factor != 1.0) {
            return Err(format!("{name} {factor}").into());
        }
    }
    let (mut weight, _) = import.stored(w, "weight", 2)?;
    weight.transposed ^= node.int("transB").unwrap_or(0) == 0;
    linear(import, node, x, weight, rest.first())
}

/// With an addition of a bias behind it, which it then does too.
fn matmul<'a>(import: &mut Import<'a>, node: Node<'a>, inputs: &[Value]) -> Outcome {
    let [x, w] = inputs else { return Err("reads other than two matrices".into()) };
    let (mut weight, _) = import.stored(w, "weight", 2)?;
    weight.transposed ^= true;
    let add = import.reader(node).filter(|reader| reader.op() == "Add");
    let bias = add.and_then(|add| {
        let other = add.inputs().iter().find(|name| !node.outputs().contains(name))?;
        Some(import.named(other)).filter(|value| import.stored(value, "bias", 1).is_ok())
    });
    let y = linear(import, node, x, weight, bias.as_ref())?;
    if let (Some(add), Some(_)) = (add, bias) {
        import.give(add, 0, y.clone());
    }
    Ok(y)
}

fn linear<'a>(
    import: &mut Import<'a>,
    node: Node<'a>,
    x: &Value,
    weight: Stored,
    bias: Option<&Value>,
) -> Outcome {
    let x = import.tensor(node, x)?;
    let (_, dims) = import.stored(&Value::Stored(weight.clone()), "weight", 2)?;
    let shape = import.net.shape(x).clone();
    if shape.rank() != 2 || shape.per_sample() != dims[1] {
        return Err(format!("multiplies {shape} by a weight for {} numbers an image", dims[1]).into());
    }
    let bias = bias.map(|bias| import.stored(bias, "bias", 1)).transpose()?;
    if bias.as_ref().is_some_and(|(_, of_bias)| *of_bias != [dims[0]]) {
        return Err(format!("its bias has not {} numbers", dims[0]).into());
    }
    let layer = import.layer_of(node, &weight);
    let features = import.classes_of(node).unwrap_or(dims[0]);
    let y = match bias {
        Some(_) => import.net.linear(&layer, x, features),
        None => import.net.linear_without_bias(&layer, x, features),
    };
    learned(import, &[Some(weight), bias.map(|(stored, _)| stored)])?;
    Ok(Value::Tensor(y))
}

fn batch_norm<'a>(import: &mut Import<'a>, node: Node<'a>, inputs: &[Value]) -> Outcome {
    let [x, of_channels @ ..] = inputs else { return Err("reads nothing".into()) };
    let x = image(import, node, x)?;
    if of_channels.len() != 4 || node.int("spatial") == Some(0) {
        return Err("is none of channels: spatial 0, or fewer than five inputs".into());
    }
    let channels = import.net.shape(x).0[1];
    let mut stored = Vec::new();
    for (value, what) in of_channels.iter().zip(["scale", "bias", "mean", "variance"]) {
        let (of, dims) = import.stored(value, what, 1)?;
        if dims != [channels] {
            return Err(format!("its {what} has {dims:?} numbers for {channels} channels").into());
        }
        stored.push(of);
    }
    // What a running statistic keeps of itself; ours is what it takes in.
    let momentum = 1.0 - f64::from(node.real("momentum").unwrap_or(0.9));
    let epsilon = node.real("epsilon").unwrap_or(1e-5);
    let norm = BatchNorm { epsilon, momentum: rounded(momentum), ..BatchNorm::default() };
    let layer = import.layer_of(node, &stored[0]);
    let y = import.net.batch_norm(&layer, x, norm)?;
    import.learned(&stored.iter().collect::<Vec<_>>())?;
    Ok(Value::Tensor(y))
}

/// The number of few digits that the writer began with: 1 − 0.9 as f32 is not 0.1 as f32.
fn rounded(number: f64) -> f32 {
    ((number * 1e6).round() / 1e6) as f32
}

fn learned(import: &mut Import, stored: &[Option<Stored>]) -> std::result::Result<(), Stop> {
    import.learned(&stored.iter().flatten().collect::<Vec<_>>())
}

// ---- windows ----

/// The tensor of four axes that a node reads.
fn image<'a>(import: &mut Import<'a>, node: Node<'a>, value: &Value) -> std::result::Result<TensorId, Stop> {
    let x = import.tensor(node, value)?;
    match import.net.shape(x).rank() {
        4 => Ok(x),
        _ => Err(format!("reads {}, and not images (N, C, H, W)", import.net.shape(x)).into()),
    }
}

fn strides(node: Node) -> std::result::Result<[usize; 2], Wrong> {
    match node.pair("strides", 1)? {
        [0, _] | [_, 0] => Err("strides of 0".into()),
        strides => Ok(strides),
    }
}

/// Zeros on both sides, for height and width.
fn padding(
    import: &Import,
    node: Node,
    x: TensorId,
    kernel: [usize; 2],
) -> std::result::Result<[usize; 2], Wrong> {
    if let Some(dilations) = node.ints("dilations").filter(|ints| ints.iter().any(|&by| by != 1)) {
        return Err(format!("dilations {dilations:?}"));
    }
    match pads(import, node, x, kernel)? {
        [top, left, bottom, right] if top == bottom && left == right => Ok([top, left]),
        pads => Err(format!("pads {pads:?}: not the same on both sides")),
    }
}

/// Zeros at the top, at the left, at the bottom and at the right.
fn pads(
    import: &Import,
    node: Node,
    x: TensorId,
    kernel: [usize; 2],
) -> std::result::Result<[usize; 4], Wrong> {
    let pads: Vec<usize> = match node.text("auto_pad").unwrap_or("NOTSET") {
        "NOTSET" => match node.ints("pads") {
            None => vec![0; 4],
            Some(pads) => lengths(pads).ok_or_else(|| format!("pads {pads:?}"))?,
        },
        "VALID" => vec![0; 4],
        same @ ("SAME_UPPER" | "SAME_LOWER") => {
            let (stride, size) = (strides(node)?, &import.net.shape(x).0[2..]);
            let all = |axis: usize| {
                let windows = size[axis].div_ceil(stride[axis]);
                (windows.saturating_sub(1) * stride[axis] + kernel[axis]).saturating_sub(size[axis])
            };
            let (less, more) = ([all(0) / 2, all(1) / 2], [all(0).div_ceil(2), all(1).div_ceil(2)]);
            let [first, last] = if same == "SAME_UPPER" { [less, more] } else { [more, less] };
            [first, last].concat()
        }
        other => return Err(format!("auto_pad {other}")),
    };
    pads.as_slice().try_into().map_err(|_| format!("pads {pads:?}"))
}

fn pool(import: &Import, node: Node, x: TensorId) -> std::result::Result<Pool2d, Wrong> {
    let kernel = node.pair("kernel_shape", 0)?;
    if kernel.contains(&0) {
        return Err("has no kernel_shape".into());
    }
    let pool = Pool2d {
        kernel,
        stride: strides(node)?,
        padding: padding(import, node, x, kernel)?,
        count_include_pad: node.int("count_include_pad").unwrap_or(0) != 0,
        ceil: node.int("ceil_mode").unwrap_or(0) != 0,
    };
    if pool.padding[0] >= kernel[0] || pool.padding[1] >= kernel[1] {
        return Err(format!("pads as many as a window has: {:?}", pool.padding));
    }
    Ok(pool)
}

fn max_pool<'a>(import: &mut Import<'a>, node: Node<'a>, inputs: &[Value]) -> Outcome {
    let x = image(import, node, first(inputs)?)?;
    // The other word for average pooling means nothing here.
    let pool = Pool2d { count_include_pad: true, ..pool(import, node, x)? };
    let layer = import.layer(&node.layer());
    Ok(Value::Tensor(import.net.max_pool(&layer, x, pool)?))
}

fn average_pool<'a>(import: &mut Import<'a>, node: Node<'a>, inputs: &[Value]) -> Outcome {
    let x = image(import, node, first(inputs)?)?;
    let mut pool = pool(import, node, x)?;
    let size = [import.net.shape(x).0[2], import.net.shape(x).0[3]];
    let plain = Pool2d { ceil: false, ..pool };
    if pool.ceil && pool.windows(size) != plain.windows(size) {
        return Err("ceil_mode 1: a last window reaches beyond the padding".into());
    }
    pool.ceil = false;
    // Without padding there is nothing to count, and the op is one.
    pool.count_include_pad |= pool.padding == [0, 0];
    let layer = import.layer(&node.layer());
    Ok(Value::Tensor(import.net.avg_pool(&layer, x, pool)?))
}

fn global_average_pool<'a>(import: &mut Import<'a>, node: Node<'a>, inputs: &[Value]) -> Outcome {
    let x = image(import, node, first(inputs)?)?;
    let layer = import.layer(&node.layer());
    Ok(Value::Tensor(import.net.global_avg_pool(&layer, x)?))
}

fn global_max_pool<'a>(import: &mut Import<'a>, node: Node<'a>, inputs: &[Value]) -> Outcome {
    let x = image(import, node, first(inputs)?)?;
    let kernel = [import.net.shape(x).0[2], import.net.shape(x).0[3]];
    let layer = import.layer(&node.layer());
    Ok(Value::Tensor(import.net.max_pool(&layer, x, Pool2d { kernel, ..Pool2d::square(1) })?))
}

/// Over height and width.
fn reduce_mean<'a>(import: &mut Import<'a>, node: Node<'a>, inputs: &[Value]) -> Outcome {
    let x = image(import, node, first(inputs)?)?;
    let over = axes_of(import, node, inputs)?;
    let mut axes: Vec<Option<usize>> = over.iter().map(|&axis| from_front(axis, 4)).collect();
    axes.sort_unstable();
    if axes != [Some(2), Some(3)] {
        return Err(format!("axes {over:?}: a mean over other than height and width").into());
    }
    let layer = import.layer(&node.layer());
    let y = import.net.global_avg_pool(&layer, x)?;
    match node.int("keepdims").unwrap_or(1) {
        0 => shaped(import, node, y, &[import.net.shape(y).0[1]]),
        _ => Ok(Value::Tensor(y)),
    }
}

fn local_response_norm<'a>(import: &mut Import<'a>, node: Node<'a>, inputs: &[Value]) -> Outcome {
    let x = image(import, node, first(inputs)?)?;
    let size = lengths(&[node.int("size").unwrap_or(0)]).map_or(0, |length| length[0]);
    if size.is_multiple_of(2) {
        return Err(format!("size {size} has no middle").into());
    }
    let number = |name: &str, default: f32| node.real(name).unwrap_or(default);
    let (alpha, beta, k) = (number("alpha", 1e-4), number("beta", 0.75), number("bias", 1.0));
    let layer = import.layer(&node.layer());
    let norm = LocalResponseNorm { size, alpha, beta, k };
    Ok(Value::Tensor(import.net.local_response_norm(&layer, x, norm)?))
}

// ---- element by element ----

fn activation<'a>(import: &mut Import<'a>, node: Node<'a>, inputs: &[Value], of: Activation) -> Outcome {
    let x = import.tensor(node, first(inputs)?)?;
    let layer = import.layer(&node.layer());
    Ok(Value::Tensor(import.net.activation(&layer, x, of)))
}

/// What was begun is an activation by itself, or none.
pub fn finished(
    import: &mut Import,
    node: Node,
    step: Step,
    x: TensorId,
) -> std::result::Result<TensorId, Stop> {
    match step {
        Step::Sigmoid => {
            let layer = import.layer(&format!("{}.sigmoid", node.layer()));
            Ok(import.net.activation(&layer, x, Activation::Sigmoid))
        }
        Step::Scaled(by) => Err(format!("reads a tensor that was multiplied by {by}").into()),
        Step::Erf | Step::ErfPlusOne | Step::TwiceGelu => {
            Err("reads what is a part of GELU's formula".into())
        }
    }
}

fn sigmoid<'a>(import: &mut Import<'a>, node: Node<'a>, inputs: &[Value]) -> Outcome {
    let x = import.tensor(node, first(inputs)?)?;
    Ok(Value::Partly(Step::Sigmoid, x))
}

fn erf(_: &mut Import, _: Node, inputs: &[Value]) -> Outcome {
    match first(inputs)? {
        Value::Partly(Step::Scaled(by), x) if is_near(*by, std::f32::consts::FRAC_1_SQRT_2) => {
            Ok(Value::Partly(Step::Erf, *x))
        }
        _ => Err("is no part of GELU: x/2·(1 + erf(x/√2))".into()),
    }
}

/// Numbers in files are rounded, some to f16.
fn is_near(a: f32, b: f32) -> bool {
    (a - b).abs() <= 1e-3 * b.abs()
}

fn multiply<'a>(import: &mut Import<'a>, node: Node<'a>, inputs: &[Value]) -> Outcome {
    let [a, b] = inputs else { return Err("multiplies other than two tensors".into()) };
    let numbers = [a, b].map(|value| import.constant(value).ok().and_then(|constant| constant.single()));
    match (a, b, numbers) {
        (Value::Partly(Step::Sigmoid, x), Value::Tensor(y), _)
        | (Value::Tensor(y), Value::Partly(Step::Sigmoid, x), _)
            if x == y =>
        {
            activation(import, node, &[Value::Tensor(*x)], Activation::Silu)
        }
        (Value::Partly(Step::ErfPlusOne, x), Value::Tensor(y), _)
        | (Value::Tensor(y), Value::Partly(Step::ErfPlusOne, x), _)
            if x == y =>
        {
            Ok(Value::Partly(Step::TwiceGelu, *x))
        }
        (Value::Partly(Step::ErfPlusOne, x), Value::Partly(Step::Scaled(half), y), _)
        | (Value::Partly(Step::Scaled(half), y), Value::Partly(Step::ErfPlusOne, x), _)
            if x == y && *half == 0.5 =>
        {
            activation(import, node, &[Value::Tensor(*x)], Activation::Gelu)
        }
        (Value::Partly(Step::TwiceGelu, x), _, [_, Some(0.5)])
        | (_, Value::Partly(Step::TwiceGelu, x), [Some(0.5), _]) => {
            activation(import, node, &[Value::Tensor(*x)], Activation::Gelu)
        }
        (x, _, [_, Some(by)]) | (_, x, [Some(by), _]) => scaled(import, node, x, by),
        _ => stretched(import, node, inputs, Binary::Multiply),
    }
}

/// Of two tensors that the network computes, each with the batch as its first axis; either is stretched over the other.
fn stretched<'a>(import: &mut Import<'a>, node: Node<'a>, inputs: &[Value], of: Binary) -> Outcome {
    let [a, b] = inputs else { return Err("reads other than two tensors".into()) };
    let (a, b) = (import.tensor(node, a)?, import.tensor(node, b)?);
    let shapes = [a, b].map(|id| import.net.shape(id).clone());
    let alike = |(&a, &b): (&usize, &usize)| a == b || a == 1 || b == 1;
    let [first, second] = &shapes;
    if first.rank() != second.rank()
        || first.batch() != second.batch()
        || !first.0.iter().zip(&second.0).all(alike)
    {
        return Err(format!("puts {first} and {second} together").into());
    }
    let layer = import.layer(&node.layer());
    Ok(Value::Tensor(import.net.binary(&layer, of, a, b)?))
}

fn divide<'a>(import: &mut Import<'a>, node: Node<'a>, inputs: &[Value]) -> Outcome {
    let [x, by] = inputs else { return Err("divides other than two tensors".into()) };
    match import.constant(by).ok().and_then(|constant| constant.single()) {
        Some(by) => scaled(import, node, x, 1.0 / by),
        None => stretched(import, node, inputs, Binary::Divide),
    }
}

/// By 1 nothing is done; by others is where GELU begins.
fn scaled<'a>(import: &mut Import<'a>, node: Node<'a>, x: &Value, by: f32) -> Outcome {
    let x = import.tensor(node, x)?;
    if by == 1.0 {
        return Ok(Value::Tensor(x));
    }
    let begins = [std::f32::consts::FRAC_1_SQRT_2, 0.5].iter().any(|&number| is_near(by, number));
    let is_read_on = import.reader(node).is_some_and(|reader| ["Erf", "Mul"].contains(&reader.op()));
    match begins && is_read_on {
        true => Ok(Value::Partly(Step::Scaled(by), x)),
        false => Err(format!("multiplies a tensor by {by}").into()),
    }
}

fn add<'a>(import: &mut Import<'a>, node: Node<'a>, inputs: &[Value]) -> Outcome {
    if let [Value::Partly(Step::Erf, x), one] | [one, Value::Partly(Step::Erf, x)] = inputs
        && import.constant(one)?.single() == Some(1.0)
    {
        return Ok(Value::Partly(Step::ErfPlusOne, *x));
    }
    let mut sum = Value::Tensor(import.tensor(node, first(inputs)?)?);
    for value in &inputs[1..] {
        sum = stretched(import, node, &[sum, value.clone()], Binary::Add)?;
    }
    Ok(sum)
}

fn clip<'a>(import: &mut Import<'a>, node: Node<'a>, inputs: &[Value]) -> Outcome {
    let limit = |import: &Import, index: usize, name: &str, default: f32| match inputs.get(index) {
        Some(value) => import.constant(value).map(|constant| constant.single().unwrap_or(default)),
        None => Ok(node.real(name).unwrap_or(default)),
    };
    let min = limit(import, 1, "min", f32::NEG_INFINITY)?;
    let max = limit(import, 2, "max", f32::INFINITY)?;
    if min != 0.0 || max.is_nan() || max <= 0.0 {
        return Err(format!("from {min} to {max}, where ReLU6 and its like begin at 0").into());
    }
    let max = if max >= f32::MAX { f32::INFINITY } else { max };
    activation(import, node, inputs, Activation::Relu { max })
}

fn leaky_relu<'a>(import: &mut Import<'a>, node: Node<'a>, inputs: &[Value]) -> Outcome {
    match node.real("alpha").unwrap_or(0.01) {
        slope if slope > 0.0 && slope.is_finite() => {
            activation(import, node, inputs, Activation::LeakyRelu { slope })
        }
        slope => Err(format!("alpha {slope}: must be above 0").into()),
    }
}

fn hard_sigmoid<'a>(import: &mut Import<'a>, node: Node<'a>, inputs: &[Value]) -> Outcome {
    let (alpha, beta) = (node.real("alpha").unwrap_or(0.2), node.real("beta").unwrap_or(0.5));
    if !is_near(alpha, 1.0 / 6.0) || beta != 0.5 {
        return Err(format!("alpha {alpha}, beta {beta}, and not 1/6 and 1/2").into());
    }
    activation(import, node, inputs, Activation::HardSigmoid)
}

fn gelu<'a>(import: &mut Import<'a>, node: Node<'a>, inputs: &[Value]) -> Outcome {
    match node.text("approximate").unwrap_or("none") {
        "none" => activation(import, node, inputs, Activation::Gelu),
        other => Err(format!("approximate {other}").into()),
    }
}

fn swish<'a>(import: &mut Import<'a>, node: Node<'a>, inputs: &[Value]) -> Outcome {
    match node.real("alpha").unwrap_or(1.0) {
        1.0 => activation(import, node, inputs, Activation::Silu),
        alpha => Err(format!("alpha {alpha}").into()),
    }
}

/// Of a share of 0 nothing is left. A file says by an input whether it was written for training; layers that it has
/// are trained all the same, as a normalisation is.
fn dropout<'a>(import: &mut Import<'a>, node: Node<'a>, inputs: &[Value]) -> Outcome {
    let x = import.tensor(node, first(inputs)?)?;
    let share = match inputs.get(1) {
        Some(value) => import.constant(value)?.single().unwrap_or(0.5),
        None => node.real("ratio").unwrap_or(0.5),
    };
    match share {
        0.0 => Ok(Value::Tensor(x)),
        share if share > 0.0 && share < 1.0 => {
            let layer = import.layer(&node.layer());
            Ok(Value::Tensor(import.net.dropout(&layer, x, share)))
        }
        share => Err(format!("ratio {share}").into()),
    }
}

// ---- shapes ----

fn first(inputs: &[Value]) -> std::result::Result<&Value, Wrong> {
    inputs.first().ok_or_else(|| "reads nothing".into())
}

/// The same elements, so many to an image.
fn shaped<'a>(import: &mut Import<'a>, node: Node<'a>, x: TensorId, sample: &[usize]) -> Outcome {
    let shape = import.net.shape(x).clone();
    if shape.0[1..] == *sample {
        return Ok(Value::Tensor(x));
    }
    let layer = import.layer(&node.layer());
    Ok(Value::Tensor(match sample.len() {
        1 => import.net.flatten(&layer, x),
        _ => {
            let shape = Shape([&[shape.batch()], sample].concat());
            import.net.reshape(&layer, x, shape)?
        }
    }))
}

fn flatten<'a>(import: &mut Import<'a>, node: Node<'a>, inputs: &[Value]) -> Outcome {
    let x = import.tensor(node, first(inputs)?)?;
    let shape = import.net.shape(x).clone();
    match from_front(node.int("axis").unwrap_or(1), shape.rank()) {
        Some(1) => shaped(import, node, x, &[shape.per_sample()]),
        axis => Err(format!("axis {axis:?}: the batch is not by itself").into()),
    }
}

fn reshape<'a>(import: &mut Import<'a>, node: Node<'a>, inputs: &[Value]) -> Outcome {
    let [x, shape] = inputs else { return Err("reads other than a tensor and a shape".into()) };
    let x = import.tensor(node, x)?;
    let before = import.net.shape(x).clone();
    let wanted = import.constant(shape)?.integers()?.to_vec();
    let wrong = || format!("makes {wanted:?} of {before}: images are not kept apart");
    let [batch, sample @ ..] = &wanted[..] else { return Err(wrong().into()) };
    let batches = [Some(before.batch()), import.file.batch()];
    let keeps_batch =
        matches!(batch, 0 | -1) || batches.iter().flatten().any(|&length| length as i64 == *batch);
    let literal_zeros = node.int("allowzero").unwrap_or(0) != 0;
    let copied = |(axis, &extent): (usize, &i64)| match extent {
        0 if !literal_zeros => before.0.get(axis + 1).map(|&length| length as i64),
        extent => Some(extent),
    };
    let sample: Option<Vec<i64>> = sample.iter().enumerate().map(copied).collect();
    let sample = sample.filter(|_| keeps_batch).and_then(|sample| {
        let known = sample.iter().filter(|&&extent| extent != -1).try_fold(1i64, |a, &b| a.checked_mul(b))?;
        let rest = (before.per_sample() as i64).checked_div(known)?;
        let open = sample.iter().filter(|&&extent| extent == -1).count();
        let sample = sample.iter().map(|&extent| if extent == -1 { rest } else { extent });
        let sample = lengths(&sample.collect::<Vec<_>>())?;
        let count = sample.iter().try_fold(1usize, |a, &b| a.checked_mul(b));
        (open <= 1 && count == Some(before.per_sample())).then_some(sample)
    });
    match sample {
        Some(sample) => shaped(import, node, x, &sample),
        None => Err(wrong().into()),
    }
}

fn axes_of(import: &Import, node: Node, inputs: &[Value]) -> std::result::Result<Vec<i64>, Wrong> {
    let given = inputs.get(1).map(|value| import.constant(value)).transpose()?;
    let inputs: Vec<&Constant> = given.iter().flat_map(|axes| [axes, axes]).collect();
    axes(&node, &inputs)
}

fn squeeze<'a>(import: &mut Import<'a>, node: Node<'a>, inputs: &[Value]) -> Outcome {
    let x = import.tensor(node, first(inputs)?)?;
    let shape = import.net.shape(x).clone();
    let over = axes_of(import, node, inputs)?;
    let gone: Option<Vec<i64>> =
        over.iter().map(|&axis| Some(from_front(axis, shape.rank())?.checked_sub(1)? as i64)).collect();
    let sample = gone.filter(|gone| !gone.is_empty()).and_then(|gone| squeezed(&shape.0[1..], &gone));
    match sample {
        Some(sample) => shaped(import, node, x, &sample),
        None => Err(format!("axes {over:?} of {shape}").into()),
    }
}

fn unsqueeze<'a>(import: &mut Import<'a>, node: Node<'a>, inputs: &[Value]) -> Outcome {
    let x = import.tensor(node, first(inputs)?)?;
    let shape = import.net.shape(x).clone();
    let over = axes_of(import, node, inputs)?;
    match unsqueezed(&shape.0, &over).filter(|_| !over.contains(&0)) {
        Some(dims) => shaped(import, node, x, &dims[1..]),
        None => Err(format!("axes {over:?} of {shape}").into()),
    }
}

fn concat<'a>(import: &mut Import<'a>, node: Node<'a>, inputs: &[Value]) -> Outcome {
    let mut parts = Vec::new();
    for value in inputs {
        parts.push(image(import, node, value)?);
    }
    let axis = node.int("axis").unwrap_or(0);
    if from_front(axis, 4) != Some(1) {
        return Err(format!("axis {axis}: other than the channels").into());
    }
    let shapes: Vec<_> = parts.iter().map(|&part| import.net.shape(part).0.clone()).collect();
    if shapes.iter().any(|shape| shape[2..] != shapes[0][2..]) {
        return Err(format!("puts {shapes:?} together").into());
    }
    match parts[..] {
        [] => Err("puts nothing together".into()),
        [one] => Ok(Value::Tensor(one)),
        _ => {
            let layer = import.layer(&node.layer());
            Ok(Value::Tensor(import.net.concat(&layer, &parts)?))
        }
    }
}

fn shape<'a>(import: &mut Import<'a>, node: Node<'a>, inputs: &[Value]) -> Outcome {
    let dims = match first(inputs)? {
        Value::Stored(stored) => import.file.dims(stored.index).to_vec(),
        Value::Known(constant) => constant.dims.clone(),
        x => {
            let x = import.tensor(node, x)?;
            import.net.shape(x).0.clone()
        }
    };
    let rank = dims.len() as i64;
    let place = |name: &str, default: i64| {
        let at = node.int(name).unwrap_or(default);
        (if at < 0 { at.saturating_add(rank) } else { at }).clamp(0, rank) as usize
    };
    let (from, to) = (place("start", 0), place("end", rank));
    let part = dims.get(from..to).unwrap_or_default();
    Ok(Value::Known(Constant::row(part.iter().map(|&extent| extent as i64).collect())))
}

// ---- what is nothing, or no layer ----

fn same<'a>(import: &mut Import<'a>, node: Node<'a>, inputs: &[Value]) -> Outcome {
    Ok(Value::Tensor(import.tensor(node, first(inputs)?)?))
}

/// Exports give one tensor several names where layers begin with the same numbers.
fn identity<'a>(import: &mut Import<'a>, node: Node<'a>, inputs: &[Value]) -> Outcome {
    match (first(inputs)?, node.outputs()) {
        (Value::Stored(stored), [name, ..]) => {
            Ok(Value::Stored(Stored { name: name.clone(), ..stored.clone() }))
        }
        _ => same(import, node, inputs),
    }
}

fn transpose<'a>(import: &mut Import<'a>, node: Node<'a>, inputs: &[Value]) -> Outcome {
    let perm = node.ints("perm").unwrap_or(&[1, 0]);
    match first(inputs)? {
        Value::Stored(stored) if perm == [1, 0] => {
            Ok(Value::Stored(Stored { transposed: !stored.transposed, ..stored.clone() }))
        }
        Value::Stored(_) => Err(format!("perm {perm:?} of a weight").into()),
        x => {
            let x = import.tensor(node, x)?;
            let axes = lengths(perm).filter(|axes| axes.first() == Some(&0));
            let axes =
                axes.ok_or_else(|| format!("perm {perm:?}: the batch does not stay the first axis"))?;
            let layer = import.layer(&node.layer());
            Ok(Value::Tensor(import.net.permute(&layer, x, &axes)?))
        }
    }
}

/// Zeros around an image.
fn pad<'a>(import: &mut Import<'a>, node: Node<'a>, inputs: &[Value]) -> Outcome {
    let x = image(import, node, first(inputs)?)?;
    let mode = node.text("mode").unwrap_or("constant");
    let by = inputs.get(2).map(|value| import.constant(value)).transpose()?;
    if mode != "constant" || by.is_some_and(|by| by.single().is_some_and(|by| by != 0.0)) || inputs.len() > 3
    {
        return Err(format!("mode {mode}, where zeros around images alone are known").into());
    }
    let pads = inputs.get(1).map(|value| import.constant(value)).transpose()?;
    let pads = pads.ok_or("has no pads among its inputs")?.integers()?.to_vec();
    match lengths(&pads).as_deref() {
        Some(&[0, 0, top, left, 0, 0, bottom, right]) => {
            Ok(Value::Tensor(padded(import, node, x, [top, left, bottom, right])?))
        }
        _ => Err(format!("pads {pads:?}: other than around images").into()),
    }
}

fn padded<'a>(
    import: &mut Import<'a>,
    node: Node<'a>,
    mut x: TensorId,
    [top, left, bottom, right]: [usize; 4],
) -> std::result::Result<TensorId, Stop> {
    for (axis, around) in [(2, [top, bottom]), (3, [left, right])] {
        if around != [0, 0] {
            let layer = import.layer(&format!("{}.pad", node.layer()));
            x = import.net.pad(&layer, x, axis, around)?;
        }
    }
    Ok(x)
}

/// A part along one axis, or along several one after the other.
fn slice<'a>(import: &mut Import<'a>, node: Node<'a>, inputs: &[Value]) -> Outcome {
    let [x, starts, ends, rest @ ..] = inputs else { return Err("reads no starts and ends".into()) };
    let mut x = import.tensor(node, x)?;
    let numbers =
        |import: &Import, value: &Value| Ok::<_, Wrong>(import.constant(value)?.integers()?.to_vec());
    let (starts, ends) = (numbers(import, starts)?, numbers(import, ends)?);
    let axes = rest.first().map_or(Ok((0..starts.len() as i64).collect()), |axes| numbers(import, axes))?;
    let steps = rest.get(1).map_or(Ok(vec![1; starts.len()]), |steps| numbers(import, steps))?;
    if ends.len() != starts.len() || axes.len() != starts.len() || steps.iter().any(|&step| step != 1) {
        return Err(format!("starts {starts:?}, ends {ends:?}, steps {steps:?}").into());
    }
    for ((&start, &end), &axis) in starts.iter().zip(&ends).zip(&axes) {
        let shape = import.net.shape(x).clone();
        let along = from_front(axis, shape.rank()).ok_or_else(|| format!("axes {axes:?} of {shape}"))?;
        let length = shape.0[along] as i64;
        let place = |at: i64| if at < 0 { at.saturating_add(length) } else { at }.clamp(0, length) as usize;
        let range = place(start)..place(end);
        if range == (0..shape.0[along]) {
            continue;
        }
        if along == 0 || range.is_empty() {
            return Err(format!("takes {start} to {end} along axis {axis} of {shape}").into());
        }
        let layer = import.layer(&node.layer());
        x = import.net.slice(&layer, x, along, range)?;
    }
    Ok(Value::Tensor(x))
}

/// All parts along an axis.
fn split<'a>(import: &mut Import<'a>, node: Node<'a>, inputs: &[Value]) -> Outcome {
    let x = import.tensor(node, first(inputs)?)?;
    let shape = import.net.shape(x).clone();
    let (axis, count) = (node.int("axis").unwrap_or(0), node.outputs().len());
    let along = from_front(axis, shape.rank()).filter(|&along| along > 0);
    let along = along.ok_or_else(|| format!("axis {axis} of {shape}"))?;
    let given = inputs.get(1).map(|value| import.constant(value)).transpose()?;
    let sizes = match (&given, node.ints("split")) {
        (Some(given), _) => given.integers()?.to_vec(),
        (None, Some(sizes)) => sizes.to_vec(),
        (None, None) => {
            let part = shape.0[along].div_ceil(count);
            (0..count).map(|number| part.min(shape.0[along].saturating_sub(number * part)) as i64).collect()
        }
    };
    let parts = lengths(&sizes).filter(|parts| parts.len() == count && !parts.contains(&0));
    let parts = parts.filter(|parts| parts.iter().sum::<usize>() == shape.0[along]);
    let parts = parts.ok_or_else(|| format!("split {sizes:?} of {shape}"))?;
    let mut from = 0;
    let mut values = Vec::new();
    for part in parts {
        let layer = import.layer(&node.layer());
        values.push(import.net.slice(&layer, x, along, from..from + part)?);
        from += part;
    }
    for (place, &value) in values.iter().enumerate().skip(1) {
        import.give(node, place, Value::Tensor(value));
    }
    Ok(Value::Tensor(values[0]))
}

/// The loss has it, so that at the end of a network there is none.
fn softmax<'a>(import: &mut Import<'a>, node: Node<'a>, inputs: &[Value]) -> Outcome {
    let x = import.tensor(node, first(inputs)?)?;
    let ends = import.file.gives(node.outputs());
    match ends && from_front(node.int("axis").unwrap_or(-1), 2) == Some(1) && import.net.shape(x).rank() == 2
    {
        true => Ok(Value::Tensor(x)),
        false => Err("is not the end of the network, over its classes".into()),
    }
}

/// One with a tensor was read with the file.
fn constant<'a>(_: &mut Import<'a>, node: Node<'a>, _: &[Value]) -> Outcome {
    let single = |numbers| Constant { dims: Vec::new(), numbers };
    let known = match (node.only(&["value_int"]), node.only(&["value_ints"]), node.only(&["value_float"])) {
        (Ok(()), ..) => node.int("value_int").map(|number| single(Numbers::Integers(vec![number]))),
        (_, Ok(()), _) => node.ints("value_ints").map(|ints| Constant::row(ints.to_vec())),
        (.., Ok(())) => node.real("value_float").map(|number| single(Numbers::Reals(vec![number]))),
        _ => None,
    };
    known.map(Value::Known).ok_or_else(|| "holds other than a tensor, integers or a number".into())
}
