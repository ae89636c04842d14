//! Windows that slide over images.

use super::elements::{first, multiply};
use super::{Lowered, image, shapes};
use crate::graph::{Pool, TensorId, dims};
use crate::model::onnx::constant::{ConstantTensor, ConstantValues};
use crate::model::onnx::import::{Import, Value};
use crate::model::onnx::node::{OnnxNode, lengths};
use crate::model::onnx::tensor::Reason;

pub fn strides(node: OnnxNode) -> std::result::Result<[usize; 2], Reason> {
    match node.pair("strides", 1)? {
        [0, _] | [_, 0] => Err("strides of 0".into()),
        strides => Ok(strides),
    }
}

/// Zeros at the top, at the left, at the bottom and at the right.
pub fn pads(
    import: &Import,
    node: OnnxNode,
    x: TensorId,
    kernel: [usize; 2],
) -> std::result::Result<[usize; 4], Reason> {
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
    match pads[..] {
        [left, right] => Ok([0, left, 0, right]),
        [top, left, bottom, right] => Ok([top, left, bottom, right]),
        _ => Err(format!("pads {pads:?}")),
    }
}

/// What a layer of images makes of rows, which are images of one line.
pub fn as_images<'a>(
    import: &mut Import<'a>,
    node: OnnxNode<'a>,
    value: &Value,
    layer: impl FnOnce(&mut Import<'a>, TensorId) -> Lowered,
) -> Lowered {
    let x = import.tensor(node, value)?;
    let shape = import.net.shape(x).0.clone();
    match shape[..] {
        [n, c, width] => {
            let name = import.layer(&format!("{}.row", node.layer()));
            let x = import.net.reshape(&name, x, dims([n, c, 1, width]))?;
            let y = layer(import, x)?;
            let y = import.tensor(node, &y)?;
            let [n, c, _, width] = import.net.shape(y).nchw().unwrap_or_default();
            super::shapes::shaped(import, node, y, vec![n, c, width])
        }
        [_, _, _, _] => layer(import, x),
        _ => Err(format!("reads {}, and not images (N, C, H, W)", import.net.shape(x)).into()),
    }
}

/// A pooling, and all that lies around the images: where that is not the same on both sides the pooling pads nothing.
fn pool(import: &Import, node: OnnxNode, x: TensorId) -> std::result::Result<(Pool, [usize; 4]), Reason> {
    let kernel = node.pair("kernel_shape", 1)?;
    if node.ints("kernel_shape").is_none() || kernel.contains(&0) {
        return Err("has no kernel_shape".into());
    }
    if let Some(dilations) = node.ints("dilations").filter(|ints| ints.iter().any(|&by| by != 1)) {
        return Err(format!("dilations {dilations:?}"));
    }
    let around = pads(import, node, x, kernel)?;
    let [top, left, bottom, right] = around;
    let pool = Pool {
        kernel,
        stride: strides(node)?,
        padding: if [top, left] == [bottom, right] { [top, left] } else { [0, 0] },
        count_include_pad: node.int("count_include_pad").unwrap_or(0) != 0,
        ceil: node.int("ceil_mode").unwrap_or(0) != 0,
    };
    if around.iter().zip([kernel, kernel].concat()).any(|(&pad, kernel)| pad >= kernel) {
        return Err(format!("pads as many as a window has: {around:?}"));
    }
    Ok((pool, around))
}

pub fn max_pool<'a>(import: &mut Import<'a>, node: OnnxNode<'a>, inputs: &[Value]) -> Lowered {
    as_images(import, node, first(inputs)?, |import, x| {
        let (pool, around) = pool(import, node, x)?;
        // The other word for average pooling means nothing here.
        let pool = Pool { count_include_pad: true, ..pool };
        let mut x = Value::Tensor(x);
        for axis in 0..2 {
            let by = [around[axis], around[axis + 2]].map(|by| (by - pool.padding[axis]) as i64);
            // Nothing is less, so that none of these is the largest.
            x = shapes::padded_with(import, node, &x, axis + 2, by, f32::MIN)?;
        }
        let x = import.tensor(node, &x)?;
        let layer = import.layer(&node.layer());
        Ok(Value::Tensor(import.net.max_pool(&layer, x, pool)?))
    })
}

/// Means of windows. Where they reach beyond the padding, or count some of it and some not, each sum is divided by how
/// many it has.
pub fn average_pool<'a>(import: &mut Import<'a>, node: OnnxNode<'a>, inputs: &[Value]) -> Lowered {
    as_images(import, node, first(inputs)?, |import, x| {
        let (mut pool, around) = pool(import, node, x)?;
        let size = [2, 3].map(|axis| import.net.shape(x).0[axis]);
        let plain = Pool { ceil: false, ..pool };
        let is_plain = !pool.ceil || pool.windows(size) == plain.windows(size);
        if is_plain && around[..2] == around[2..] {
            pool.ceil = false;
            // Without padding there is nothing to count, and the op is one.
            pool.count_include_pad |= pool.padding == [0, 0];
            let layer = import.layer(&node.layer());
            return Ok(Value::Tensor(import.net.avg_pool(&layer, x, pool)?));
        }
        let mut shares = [Vec::new(), Vec::new()];
        let mut x = x;
        for axis in 0..2 {
            let (first, last) = (around[axis], around[axis + 2]);
            let (kernel, stride) = (pool.kernel[axis], pool.stride[axis]);
            let whole = size[axis] + first + last;
            let room = whole.checked_sub(kernel).ok_or_else(|| format!("windows of {kernel} in {whole}"))?;
            let mut windows = if pool.ceil { room.div_ceil(stride) } else { room / stride } + 1;
            // One that would begin behind the image is none.
            if (windows - 1) * stride >= size[axis] + first {
                windows -= 1;
            }
            let from = if pool.count_include_pad { 0 } else { first };
            let to = if pool.count_include_pad { whole } else { first + size[axis] };
            let count = |window: usize| (window * stride + kernel).min(to) - (window * stride).max(from);
            shares[axis] = (0..windows).map(|window| kernel as f32 / count(window) as f32).collect();
            let behind = ((windows - 1) * stride + kernel) as i64 - (size[axis] + first) as i64;
            x = shapes::padded_along(import, node, x, axis + 2, [first as i64, behind])?;
        }
        let [rows, columns] = &shares;
        let all = rows.iter().flat_map(|row| columns.iter().map(move |column| row * column)).collect();
        let shares =
            ConstantTensor { dims: vec![rows.len(), columns.len()], numbers: ConstantValues::Reals(all) };
        let layer = import.layer(&node.layer());
        let pool = Pool { padding: [0, 0], ceil: false, count_include_pad: true, ..pool };
        let y = import.net.avg_pool(&layer, x, pool)?;
        multiply(import, node, &[Value::Tensor(y), Value::Known(shares)])
    })
}

pub fn global_average_pool<'a>(import: &mut Import<'a>, node: OnnxNode<'a>, inputs: &[Value]) -> Lowered {
    let x = image(import, node, first(inputs)?)?;
    let layer = import.layer(&node.layer());
    Ok(Value::Tensor(import.net.global_avg_pool(&layer, x)?))
}

pub fn global_max_pool<'a>(import: &mut Import<'a>, node: OnnxNode<'a>, inputs: &[Value]) -> Lowered {
    let x = image(import, node, first(inputs)?)?;
    let kernel = [import.net.shape(x).0[2], import.net.shape(x).0[3]];
    let layer = import.layer(&node.layer());
    Ok(Value::Tensor(import.net.max_pool(&layer, x, Pool { kernel, ..Pool::square(1) })?))
}
