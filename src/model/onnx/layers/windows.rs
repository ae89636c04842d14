//! Windows that slide over images and cubes.

use super::elements::{first, multiply};
use super::{Lowered, shapes};
use crate::graph::{Pool, TensorId, Volume, dims};
use crate::model::onnx::constant::{ConstantTensor, ConstantValues};
use crate::model::onnx::import::{Import, Value};
use crate::model::onnx::node::{OnnxNode, lengths};
use crate::model::onnx::tensor::Reason;

pub fn strides(node: OnnxNode) -> std::result::Result<Volume, Reason> {
    match node.along_axes("strides", 1)? {
        strides if strides.contains(&0) => Err("strides of 0".into()),
        strides => Ok(strides),
    }
}

/// Which of depth, height and width images or cubes have, with the number of each one's axis.
pub fn axes(import: &Import, x: TensorId) -> impl Iterator<Item = (usize, usize)> + use<> {
    let first = 3 - import.net.shape(x).along(&[1; 3]).len();
    (first..3).map(move |along| (along, along + 2 - first))
}

/// The sizes of images or cubes along depth, height and width.
pub fn size(import: &Import, x: TensorId) -> Volume {
    import.net.shape(x).spatial().unwrap_or_default().1
}

/// Zeros before images or cubes and behind them, along depth, height and width.
pub fn pads(import: &Import, x: TensorId, kernel: Volume) -> std::result::Result<[Volume; 2], Reason> {
    match import.node.text("auto_pad").unwrap_or("NOTSET") {
        "NOTSET" => match import.node.ints("pads") {
            None => Ok([[0; 3]; 2]),
            Some(pads) => {
                let said = lengths(pads).and_then(|pads| both_sides(&pads));
                said.ok_or_else(|| format!("pads {pads:?}"))
            }
        },
        "VALID" => Ok([[0; 3]; 2]),
        same @ ("SAME_UPPER" | "SAME_LOWER") => {
            let (stride, size) = (strides(import.node)?, size(import, x));
            let all = |axis: usize| {
                let windows = size[axis].div_ceil(stride[axis]);
                (windows.saturating_sub(1) * stride[axis] + kernel[axis]).saturating_sub(size[axis])
            };
            let all = [all(0), all(1), all(2)];
            let (less, more) = (all.map(|all| all / 2), all.map(|all| all.div_ceil(2)));
            Ok(if same == "SAME_UPPER" { [less, more] } else { [more, less] })
        }
        other => Err(format!("auto_pad {other}")),
    }
}

/// What a file lists of the axes that it has: before each, then behind each.
pub fn both_sides<T: Copy + Default>(listed: &[T]) -> Option<[[T; 3]; 2]> {
    let axes = listed.len() / 2;
    if !listed.len().is_multiple_of(2) || !(1..=3).contains(&axes) {
        return None;
    }
    let mut sides = [[T::default(); 3]; 2];
    for (side, listed) in sides.iter_mut().zip(listed.chunks(axes)) {
        side[3 - axes..].copy_from_slice(listed);
    }
    Some(sides)
}

/// Whether what is listed of a window has a number for each of so many axes.
pub fn says_axes(node: OnnxNode, axes: usize) -> std::result::Result<(), Reason> {
    for (name, each) in
        [("kernel_shape", 1), ("strides", 1), ("dilations", 1), ("output_padding", 1), ("pads", 2)]
    {
        if let Some(ints) = node.ints(name).filter(|ints| ints.len() != each * axes) {
            return Err(format!("{name} {ints:?} of {axes} axes"));
        }
    }
    Ok(())
}

/// What a layer of images makes of rows, which are images of one line.
pub fn as_images(
    import: &mut Import,
    value: &Value,
    layer: impl FnOnce(&mut Import, TensorId) -> Lowered,
) -> Lowered {
    let x = import.tensor(value)?;
    let shape = import.net.shape(x).0.clone();
    says_axes(import.node, shape.len().saturating_sub(2))?;
    match shape[..] {
        [n, c, width] => {
            let name = import.layer(&format!("{}.row", import.node.layer()));
            let x = import.net.reshape(&name, x, dims([n, c, 1, width]))?;
            let y = layer(import, x)?;
            let y = import.tensor(&y)?;
            let [n, c, _, width] = import.net.shape(y).nchw().unwrap_or_default();
            super::shapes::shaped(import, y, vec![n, c, width])
        }
        [_, _, _, _] | [_, _, _, _, _] => layer(import, x),
        _ => Err(format!("reads {}, and not images (N, C, H, W)", import.net.shape(x)).into()),
    }
}

/// A pooling, and all that lies around the images: where that is not the same on both sides the pooling pads nothing.
fn pool(import: &Import, x: TensorId) -> std::result::Result<(Pool, [Volume; 2]), Reason> {
    let kernel = import.node.along_axes("kernel_shape", 1)?;
    if import.node.ints("kernel_shape").is_none() || kernel.contains(&0) {
        return Err("has no kernel_shape".into());
    }
    if let Some(dilations) = import.node.ints("dilations").filter(|ints| ints.iter().any(|&by| by != 1)) {
        return Err(format!("dilations {dilations:?}"));
    }
    let around = pads(import, x, kernel)?;
    let [before, behind] = around;
    let pool = Pool {
        kernel,
        stride: strides(import.node)?,
        padding: if before == behind { before } else { [0; 3] },
        count_include_pad: import.node.int("count_include_pad").unwrap_or(0) != 0,
        ceil: import.node.int("ceil_mode").unwrap_or(0) != 0,
    };
    if around.iter().any(|side| side.iter().zip(kernel).any(|(&pad, kernel)| pad >= kernel)) {
        return Err(format!("pads as many as a window has: {around:?}"));
    }
    Ok((pool, around))
}

pub fn max_pool(import: &mut Import, inputs: &[Value]) -> Lowered {
    as_images(import, first(inputs)?, |import, x| {
        let (pool, around) = pool(import, x)?;
        // The other word for average pooling means nothing here.
        let pool = Pool { count_include_pad: true, ..pool };
        let axes = axes(import, x);
        let mut x = Value::Tensor(x);
        for (along, axis) in axes {
            let by = around.map(|side| (side[along] - pool.padding[along]) as i64);
            // Nothing is less, so that none of these is the largest.
            x = shapes::padded_with(import, &x, axis, by, f32::MIN)?;
        }
        let x = import.tensor(&x)?;
        let layer = import.layer(&import.node.layer());
        Ok(Value::Tensor(import.net.max_pool(&layer, x, pool)?))
    })
}

/// Means of windows. Where they reach beyond the padding, or count some of it and some not, each sum is divided by how
/// many it has.
pub fn average_pool(import: &mut Import, inputs: &[Value]) -> Lowered {
    as_images(import, first(inputs)?, |import, x| {
        let (mut pool, around) = pool(import, x)?;
        let (size, axes) = (size(import, x), axes(import, x));
        let plain = Pool { ceil: false, ..pool };
        let is_plain = !pool.ceil || pool.windows(size) == plain.windows(size);
        if is_plain && around[0] == around[1] {
            pool.ceil = false;
            // Without padding there is nothing to count, and the op is one.
            pool.count_include_pad |= pool.padding == [0; 3];
            let layer = import.layer(&import.node.layer());
            return Ok(Value::Tensor(import.net.avg_pool(&layer, x, pool)?));
        }
        let (mut dims, mut shares, mut x) = (Vec::new(), vec![1.0], x);
        for (along, axis) in axes {
            let [first, last] = around.map(|side| side[along]);
            let (kernel, stride, size) = (pool.kernel[along], pool.stride[along], size[along]);
            let whole = size + first + last;
            let room = whole.checked_sub(kernel).ok_or_else(|| format!("windows of {kernel} in {whole}"))?;
            let mut windows = if pool.ceil { room.div_ceil(stride) } else { room / stride } + 1;
            // One that would begin behind the image is none.
            if (windows - 1) * stride >= size + first {
                windows -= 1;
            }
            let from = if pool.count_include_pad { 0 } else { first };
            let to = if pool.count_include_pad { whole } else { first + size };
            let count = |window: usize| (window * stride + kernel).min(to) - (window * stride).max(from);
            let share = |window: usize| kernel as f32 / count(window) as f32;
            shares =
                shares.iter().flat_map(|all| (0..windows).map(move |window| all * share(window))).collect();
            dims.push(windows);
            let behind = ((windows - 1) * stride + kernel) as i64 - (size + first) as i64;
            x = shapes::padded_along(import, x, axis, [first as i64, behind])?;
        }
        let shares = ConstantTensor { dims, numbers: ConstantValues::Reals(shares) };
        let layer = import.layer(&import.node.layer());
        let pool = Pool { padding: [0; 3], ceil: false, count_include_pad: true, ..pool };
        let y = import.net.avg_pool(&layer, x, pool)?;
        multiply(import, &[Value::Tensor(y), Value::Known(shares)])
    })
}

pub fn global_average_pool(import: &mut Import, inputs: &[Value]) -> Lowered {
    as_images(import, first(inputs)?, |import, x| {
        let layer = import.layer(&import.node.layer());
        Ok(Value::Tensor(import.net.global_avg_pool(&layer, x)?))
    })
}

pub fn global_max_pool(import: &mut Import, inputs: &[Value]) -> Lowered {
    as_images(import, first(inputs)?, |import, x| {
        let kernel = size(import, x);
        let layer = import.layer(&import.node.layer());
        Ok(Value::Tensor(import.net.max_pool(&layer, x, Pool { kernel, ..Pool::square(1) })?))
    })
}
