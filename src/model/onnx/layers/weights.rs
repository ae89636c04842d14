//! Layers with weights: convolutions and products with a stored matrix.

use super::windows::{as_images, both_sides, pads, size, strides};
use super::{Lowered, elements, products, shapes};
use crate::graph::{Conv, TensorId, Volume, dims};
use crate::model::onnx::import::{Import, StoredTensor, Value};
use crate::model::onnx::node::{OnnxNode, lengths};
use crate::model::onnx::tensor::Reason;

pub fn conv(import: &mut Import, inputs: &[Value]) -> Lowered {
    let [x, w, rest @ ..] = inputs else { return Err("reads less than an image and a weight".into()) };
    as_images(import, x, |import, x| convolution(import, x, w, rest))
}

fn convolution(import: &mut Import, x: TensorId, w: &Value, rest: &[Value]) -> Lowered {
    let extents = import.shape_of(w)?.0;
    let ([outputs, of_group], kernel) = match extents[..] {
        [o, i, width] => ([o, i], [1, 1, width]),
        [o, i, height, width] => ([o, i], [1, height, width]),
        [o, i, depth, height, width] => ([o, i], [depth, height, width]),
        _ => return Err(format!("its weight has the shape {extents:?}, of no images, rows or cubes").into()),
    };
    let rank = import.net.shape(x).rank();
    if extents.contains(&0) || extents.len().max(4) != rank {
        return Err(format!("its weight has the shape {extents:?}").into());
    }
    let (groups, dilation) = groups_and_dilation(import.node, &extents[2..])?;
    let channels = import.net.shape(x).0[1];
    let reach =
        [0, 1, 2].map(|axis| dilation[axis].saturating_mul(kernel[axis].saturating_sub(1)).saturating_add(1));
    let pads = pads(import, x, reach)?;
    let (x, padding) = match pads {
        [before, behind] if before == behind => (x, before),
        _ => (shapes::padded(import, x, pads.map(|side| side.map(|by| by as i64)))?, [0; 3]),
    };
    let conv =
        Conv { kernel, stride: strides(import.node)?, padding, dilation, groups, bias: false, relu: false };
    let wanted = of_group.saturating_mul(groups);
    if channels != wanted {
        return Err(format!("its weight is for {wanted} channels, not for {channels}").into());
    }
    let stored = import.stored(w, "weight", extents.len()).ok().filter(|(of, _)| import.is_free(of));
    let bias = bias_of(rest);
    let own = bias.map(|bias| own_bias(import, bias));
    if let (Some((weight, _)), None | Some(Ok(_))) = (stored, &own) {
        let bias = own.and_then(Result::ok).map(|(stored, _)| stored);
        let layer = import.layer_of(&weight);
        let channels = import.classes_of().unwrap_or(outputs);
        let y = import.net.conv(&layer, x, channels, Conv { bias: bias.is_some(), ..conv })?;
        learned(import, &[Some(weight), bias])?;
        return Ok(Value::Tensor(y));
    }
    let of_image = (extents.len() == 3).then_some([outputs, of_group, 1, kernel[2]]);
    with_shared_weight(import, x, (w, of_image), bias, conv)
}

/// A convolution by a weight that is computed, or that several layers have. Where it is of rows, `of_image` is its
/// shape for images.
fn with_shared_weight(
    import: &mut Import,
    x: TensorId,
    (w, of_image): (&Value, Option<[usize; 4]>),
    bias: Option<&Value>,
    conv: Conv,
) -> Lowered {
    let mut w = import.tensor(w)?;
    let layer = import.layer(&import.node.layer());
    if let Some(shape) = of_image {
        w = import.net.reshape(&format!("{layer}.weight.image"), w, dims(shape))?;
    }
    let channels = import.net.shape(w).batch();
    let y = Value::Tensor(import.net.conv_of(&layer, x, w, conv)?);
    match bias {
        None => Ok(y),
        Some(bias) => {
            let bias = import.bias(bias)?;
            let bias = shapes::shaped(import, bias, of_channels(import, x, channels))?;
            elements::add(import, &[y, bias])
        }
    }
}

/// The shape of a number for each of so many channels of images or cubes.
fn of_channels(import: &Import, x: TensorId, channels: usize) -> Vec<usize> {
    import.net.shape(x).of_channels(channels).0
}

/// The bias, unless it is none or has no elements.
fn bias_of(rest: &[Value]) -> Option<&Value> {
    match rest {
        [] => None,
        [Value::Known(constant)] if constant.dims == [0] => None,
        [bias, ..] => Some(bias),
    }
}

/// `group` and `dilations`, after a look at whether `kernel_shape` is that of the weight.
fn groups_and_dilation(node: OnnxNode, kernel: &[usize]) -> std::result::Result<(usize, Volume), Reason> {
    if node.ints("kernel_shape").is_some_and(|ints| lengths(ints).as_deref() != Some(kernel)) {
        return Err(format!("kernel_shape is not that of its weight, {kernel:?}"));
    }
    let groups = node.int("group").unwrap_or(1);
    let groups = usize::try_from(groups).map_err(|_| format!("group {groups}"))?;
    match node.along_axes("dilations", 1)? {
        dilation if dilation.contains(&0) => Err("dilations of 0".into()),
        dilation => Ok((groups, dilation)),
    }
}

/// The way back of a convolution. What its geometry has that no convolution's way back has (other paddings on the two
/// sides, more rows than a stride) is cut off, or zeros that are added.
pub fn conv_transpose(import: &mut Import, inputs: &[Value]) -> Lowered {
    let [x, w, rest @ ..] = inputs else { return Err("reads less than an image and a weight".into()) };
    as_images(import, x, |import, x| transposed_convolution(import, x, w, rest))
}

fn transposed_convolution(import: &mut Import, x: TensorId, w: &Value, rest: &[Value]) -> Lowered {
    let shape = import.net.shape(x).clone();
    let rank = import.shape_of(w)?.rank();
    if rank.max(4) != shape.rank() {
        return Err(format!("its weight has {rank} axes").into());
    }
    let (weight, extents) = import.stored(w, "weight", rank)?;
    let axes = rank - 2;
    let mut kernel = [1; 3];
    kernel[3 - axes..].copy_from_slice(&extents[2..]);
    let (groups, dilation) = groups_and_dilation(import.node, &extents[2..])?;
    let (stride, more) = (strides(import.node)?, import.node.along_axes("output_padding", 0)?);
    if shape.0[1] != extents[0] {
        return Err(format!("its weight is for {} channels, not for {}", extents[0], shape.0[1]).into());
    }
    let mut conv = Conv { stride, dilation, groups, bias: false, ..Conv::square(1) };
    conv.kernel = kernel;
    // Planes, rows and columns that the layer would have without any padding.
    let size = size(import, x);
    let whole = [0, 1, 2].map(|axis| {
        let windows = (size[axis] - 1).saturating_mul(stride[axis]);
        let reach = dilation[axis].saturating_mul(kernel[axis] - 1).saturating_add(1);
        windows.saturating_add(reach)
    });
    let [before, behind] = transposed_pads(import.node, axes, size, whole, stride, more)?;
    let layer = import.layer_of(&weight);
    let channels = extents[1].saturating_mul(groups);
    let fits = before == behind && (0..3).all(|axis| before[axis] >= 0 && more[axis] < stride[axis]);
    if fits {
        conv.padding = before.map(|by| by as usize);
    }
    let y = import.net.conv_transpose(&layer, x, channels, conv, if fits { more } else { [0; 3] })?;
    if import.is_said_fixed(&weight) {
        let numbers = import.constant(w)?.reals();
        import.net.kept_of_last().into_iter().for_each(|id| import.net.fix(id, &numbers));
    } else {
        learned(import, &[Some(weight)])?;
    }
    let last = [0, 1, 2].map(|axis| more[axis] as i64 - behind[axis]);
    let y = if fits { y } else { shapes::padded(import, y, [before.map(|by| -by), last])? };
    match bias_of(rest) {
        None => Ok(Value::Tensor(y)),
        Some(bias) => {
            import.stored(bias, "bias", 1)?;
            let bias = import.bias(bias)?;
            let Value::Tensor(bias) = shapes::shaped(import, bias, of_channels(import, x, channels))? else {
                return Err("its bias is computed, not stored".into());
            };
            elements::add(import, &[Value::Tensor(y), Value::Tensor(bias)])
        }
    }
}

/// What is cut off before and behind, along depth, height and width.
fn transposed_pads(
    node: OnnxNode,
    axes: usize,
    size: Volume,
    whole: Volume,
    stride: Volume,
    more: Volume,
) -> std::result::Result<[[i64; 3]; 2], Reason> {
    let same = node.text("auto_pad").unwrap_or("NOTSET");
    let wanted = match (node.ints("output_shape").map(lengths), same) {
        // There may be images and channels before.
        (Some(Some(shape)), _) if shape.len() >= axes => {
            let mut wanted = whole;
            wanted[3 - axes..].copy_from_slice(&shape[shape.len() - axes..]);
            Some(wanted)
        }
        (Some(_), _) => return Err(format!("output_shape {:?}", node.ints("output_shape"))),
        (None, "SAME_UPPER" | "SAME_LOWER") => {
            Some([0, 1, 2].map(|axis| size[axis].saturating_mul(stride[axis])))
        }
        (None, "NOTSET" | "VALID") => None,
        (None, other) => return Err(format!("auto_pad {other}")),
    };
    let Some(wanted) = wanted else {
        let given = node.ints("pads").filter(|_| same != "VALID").unwrap_or(&[0; 4]);
        let pads = lengths(given).map(|pads| pads.iter().map(|&by| by as i64).collect::<Vec<_>>());
        return pads.and_then(|pads| both_sides(&pads)).ok_or_else(|| format!("pads {given:?}"));
    };
    let cut = [0, 1, 2].map(|axis| (whole[axis] + more[axis]) as i64 - wanted[axis] as i64);
    let (less, rest) = (cut.map(|all| all.div_euclid(2)), cut.map(|all| all - all.div_euclid(2)));
    let [first, last] = if same == "SAME_UPPER" { [less, rest] } else { [rest, less] };
    Ok([first, last])
}

/// With a stored matrix a linear layer; else a product, and what is added to it.
pub fn gemm(import: &mut Import, inputs: &[Value]) -> Lowered {
    let [x, w, rest @ ..] = inputs else { return Err("reads less than two matrices".into()) };
    let node = import.node;
    let is_set = |name: &str| node.int(name).unwrap_or(0) != 0;
    let [alpha, beta] = ["alpha", "beta"].map(|name| import.node.real(name).unwrap_or(1.0));
    let bias = rest.first().filter(|bias| !matches!(bias, Value::Known(constant) if constant.dims == [0]));
    let (x, w) = (x.clone(), w.clone());
    let turned = |import: &mut Import, value: Value, turn: bool| match turn {
        true => shapes::permuted(import, &value, &[1, 0]),
        false => Ok(value),
    };
    let x = turned(import, x, is_set("transA"))?;
    let bias = bias.filter(|_| beta != 0.0);
    if let Some((mut weight, extents)) = own_weight(import, &w) {
        weight.transposed ^= !is_set("transB");
        let outputs = if is_set("transB") { extents[0] } else { extents[1] };
        let fits = bias.is_none_or(|bias| own_bias(import, bias).is_ok_and(|(_, of)| of == [outputs]));
        if fits {
            // alpha·x·w + beta·b = beta·(alpha/beta·x·w + b)
            let beta = if bias.is_some() { beta } else { 1.0 };
            let x = if alpha == beta { x } else { elements::scaled(import, &x, alpha / beta)? };
            let y = linear(import, &x, weight, bias)?;
            return if beta == 1.0 { Ok(y) } else { elements::scaled(import, &y, beta) };
        }
    }
    let w = turned(import, w, is_set("transB"))?;
    let y = products::product(import, &x, &w)?;
    let y = elements::scaled(import, &y, alpha)?;
    match bias {
        None => Ok(y),
        Some(bias) => {
            let bias = Value::Tensor(import.bias(bias)?);
            let bias = elements::scaled(import, &bias, beta)?;
            elements::add(import, &[y, bias])
        }
    }
}

/// A stored bias that nothing else reads.
fn own_bias(import: &Import, bias: &Value) -> std::result::Result<(StoredTensor, Vec<usize>), Reason> {
    match import.stored(bias, "bias", 1)? {
        (stored, _) if import.is_shared(&stored) => Err("its bias is read by others".into()),
        (stored, _) if import.is_said_fixed(&stored) => Err("its bias is not learned".into()),
        own => Ok(own),
    }
}

/// A stored matrix that no layer has yet.
fn own_weight(import: &Import, w: &Value) -> Option<(StoredTensor, Vec<usize>)> {
    import.stored(w, "weight", 2).ok().filter(|(weight, _)| import.is_free(weight))
}

/// With a stored matrix a linear layer, and with an addition of a bias behind it, which it then does too.
pub fn matmul(import: &mut Import, inputs: &[Value]) -> Lowered {
    let [x, w] = inputs else { return Err("reads other than two matrices".into()) };
    let Some((mut weight, extents)) = own_weight(import, w) else {
        return products::product(import, x, w);
    };
    weight.transposed ^= true;
    let add = import.reader().filter(|reader| reader.op() == "Add");
    let bias = add.and_then(|add| {
        let other = add.inputs().iter().find(|name| !import.node.outputs().contains(name))?;
        let fits = |value: &Value| own_bias(import, value).is_ok_and(|(_, of)| of == [extents[1]]);
        Some(import.named(other)).filter(fits)
    });
    let y = linear(import, x, weight, bias.as_ref())?;
    if let (Some(add), Some(_)) = (add, bias) {
        import.give(add, 0, y.clone());
    }
    Ok(y)
}

/// A linear layer of the last axis. What is stored and multiplied by another stored matrix is a table of numbers, and
/// not learned, where nothing says that it is a parameter.
fn linear(import: &mut Import, x: &Value, weight: StoredTensor, bias: Option<&Value>) -> Lowered {
    let x = match x {
        Value::Stored(of) if !import.is_said_learned(of) => {
            import.noted.tables.push(of.name.clone());
            import.tensor(&Value::Known(import.constant(x)?))?
        }
        x => import.tensor(x)?,
    };
    let (_, extents) = import.stored(&Value::Stored(weight.clone()), "weight", 2)?;
    let shape = import.net.shape(x).clone();
    let Some((&width, others)) = shape.0.split_last().filter(|(width, _)| **width == extents[1]) else {
        return Err(format!("multiplies {shape} by a weight for {} numbers", extents[1]).into());
    };
    let bias = bias.map(|bias| import.stored(bias, "bias", 1)).transpose()?;
    if bias.as_ref().is_some_and(|(_, of_bias)| *of_bias != [extents[0]]) {
        return Err(format!("its bias has not {} numbers", extents[0]).into());
    }
    let layer = import.layer_of(&weight);
    let features = import.classes_of().unwrap_or(extents[0]);
    let rows = match shape.rank() {
        2 => x,
        _ => import.net.reshape(&format!("{layer}.rows"), x, dims([others.iter().product(), width]))?,
    };
    let y = match bias {
        Some(_) => import.net.linear(&layer, rows, features),
        None => import.net.linear_without_bias(&layer, rows, features),
    };
    learned(import, &[Some(weight), bias.map(|(stored, _)| stored)])?;
    if shape.rank() == 2 {
        return Ok(Value::Tensor(y));
    }
    let to = crate::graph::Shape([others, &[features]].concat());
    Ok(Value::Tensor(import.net.reshape(&format!("{layer}.back"), y, to)?))
}

pub fn learned(import: &mut Import, stored: &[Option<StoredTensor>]) -> Lowered<()> {
    import.learned(&stored.iter().flatten().collect::<Vec<_>>())
}
