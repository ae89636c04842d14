//! Windows that slide over images.

use super::elements::first;
use super::{Outcome, image};
use crate::graph::{Pool2d, TensorId};
use crate::model::onnx::import::{Import, Value};
use crate::model::onnx::node::{Node, lengths};
use crate::model::onnx::tensor::Wrong;

pub fn strides(node: Node) -> std::result::Result<[usize; 2], Wrong> {
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
pub fn pads(
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

pub fn max_pool<'a>(import: &mut Import<'a>, node: Node<'a>, inputs: &[Value]) -> Outcome {
    let x = image(import, node, first(inputs)?)?;
    // The other word for average pooling means nothing here.
    let pool = Pool2d { count_include_pad: true, ..pool(import, node, x)? };
    let layer = import.layer(&node.layer());
    Ok(Value::Tensor(import.net.max_pool(&layer, x, pool)?))
}

pub fn average_pool<'a>(import: &mut Import<'a>, node: Node<'a>, inputs: &[Value]) -> Outcome {
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

pub fn global_average_pool<'a>(import: &mut Import<'a>, node: Node<'a>, inputs: &[Value]) -> Outcome {
    let x = image(import, node, first(inputs)?)?;
    let layer = import.layer(&node.layer());
    Ok(Value::Tensor(import.net.global_avg_pool(&layer, x)?))
}

pub fn global_max_pool<'a>(import: &mut Import<'a>, node: Node<'a>, inputs: &[Value]) -> Outcome {
    let x = image(import, node, first(inputs)?)?;
    let kernel = [import.net.shape(x).0[2], import.net.shape(x).0[3]];
    let layer = import.layer(&node.layer());
    Ok(Value::Tensor(import.net.max_pool(&layer, x, Pool2d { kernel, ..Pool2d::square(1) })?))
}
