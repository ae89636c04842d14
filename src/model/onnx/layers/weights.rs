//! Layers with weights: convolutions and products with a stored matrix.

use super::windows::{pads, strides};
use super::{Outcome, elements, image, products, shapes};
use crate::graph::{Conv2d, dims};
use crate::model::onnx::import::{Import, Stop, Stored, Value};
use crate::model::onnx::node::{Node, lengths};

pub fn conv<'a>(import: &mut Import<'a>, node: Node<'a>, inputs: &[Value]) -> Outcome {
    let [x, w, rest @ ..] = inputs else { return Err("reads less than an image and a weight".into()) };
    let x = image(import, node, x)?;
    let (weight, extents) = import.stored(w, "weight", 4)?;
    let bias = match rest {
        [Value::Stored(_), ..] => Some(import.stored(&rest[0], "bias", 1)?.0),
        [] => None,
        [Value::Known(constant)] if constant.dims == [0] => None,
        _ => return Err("its bias is computed, not stored".into()),
    };
    let kernel = [extents[2], extents[3]];
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
        _ => (shapes::padded(import, node, x, pads)?, [0, 0]),
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
    let wanted = extents[1].saturating_mul(conv.groups);
    if channels != wanted {
        return Err(format!("its weight is for {wanted} channels, not for {channels}").into());
    }
    let layer = import.layer_of(node, &weight);
    let channels = import.classes_of(node).unwrap_or(extents[0]);
    let y = import.net.conv2d(&layer, x, channels, conv)?;
    learned(import, &[Some(weight), bias])?;
    Ok(Value::Tensor(y))
}

/// With a stored matrix a linear layer; else a product, and what is added to it.
pub fn gemm<'a>(import: &mut Import<'a>, node: Node<'a>, inputs: &[Value]) -> Outcome {
    let [x, w, rest @ ..] = inputs else { return Err("reads less than two matrices".into()) };
    let is_set = |name: &str| node.int(name).unwrap_or(0) != 0;
    let [alpha, beta] = ["alpha", "beta"].map(|name| node.real(name).unwrap_or(1.0));
    let bias = rest.first().filter(|bias| !matches!(bias, Value::Known(constant) if constant.dims == [0]));
    let (x, w) = (x.clone(), w.clone());
    let turned = |import: &mut Import<'a>, value: Value, turn: bool| match turn {
        true => shapes::permuted(import, node, &value, &[1, 0]),
        false => Ok(value),
    };
    let x = turned(import, x, is_set("transA"))?;
    let is_plain = alpha == 1.0 && (beta == 1.0 || bias.is_none());
    if let (Ok((mut weight, extents)), true) = (import.stored(&w, "weight", 2), is_plain) {
        weight.transposed ^= !is_set("transB");
        let outputs = if is_set("transB") { extents[0] } else { extents[1] };
        let fits =
            bias.is_none_or(|bias| import.stored(bias, "bias", 1).is_ok_and(|(_, of)| of == [outputs]));
        if fits {
            return linear(import, node, &x, weight, bias);
        }
    }
    let w = turned(import, w, is_set("transB"))?;
    let y = products::product(import, node, &x, &w)?;
    let y = elements::scaled(import, node, &y, alpha)?;
    match bias {
        None => Ok(y),
        Some(bias) => {
            let bias = elements::scaled(import, node, bias, beta)?;
            elements::add(import, node, &[y, bias])
        }
    }
}

/// With a stored matrix a linear layer, and with an addition of a bias behind it, which it then does too.
pub fn matmul<'a>(import: &mut Import<'a>, node: Node<'a>, inputs: &[Value]) -> Outcome {
    let [x, w] = inputs else { return Err("reads other than two matrices".into()) };
    let Ok((mut weight, extents)) = import.stored(w, "weight", 2) else {
        return products::product(import, node, x, w);
    };
    weight.transposed ^= true;
    let add = import.reader(node).filter(|reader| reader.op() == "Add");
    let bias = add.and_then(|add| {
        let other = add.inputs().iter().find(|name| !node.outputs().contains(name))?;
        let fits = |value: &Value| import.stored(value, "bias", 1).is_ok_and(|(_, of)| of == [extents[1]]);
        Some(import.named(other)).filter(fits)
    });
    let y = linear(import, node, x, weight, bias.as_ref())?;
    if let (Some(add), Some(_)) = (add, bias) {
        import.give(add, 0, y.clone());
    }
    Ok(y)
}

/// Of the last axis. What is stored and multiplied by another stored matrix is a table of numbers, and not learned.
fn linear<'a>(
    import: &mut Import<'a>,
    node: Node<'a>,
    x: &Value,
    weight: Stored,
    bias: Option<&Value>,
) -> Outcome {
    let x = match x {
        Value::Stored(_) => import.tensor(node, &Value::Known(import.constant(x)?))?,
        x => import.tensor(node, x)?,
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
    let layer = import.layer_of(node, &weight);
    let features = import.classes_of(node).unwrap_or(extents[0]);
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

pub fn learned(import: &mut Import, stored: &[Option<Stored>]) -> std::result::Result<(), Stop> {
    import.learned(&stored.iter().flatten().collect::<Vec<_>>())
}
