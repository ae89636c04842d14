//! What moves numbers and changes none: shapes, parts, orders; and what is no layer.

use super::elements::{self, first, multiply};
use super::windows::axes;
use super::{Lowered, stated};
use crate::error::Result;
use crate::graph::{Permutation, Shape, TensorId};
use crate::model::onnx::constant::{
    ConstantTensor, ConstantValues, common, count, from_front, reshaped, squeezed, taken, unsqueezed,
};
use crate::model::onnx::fold;
use crate::model::onnx::import::{Import, PartialActivation, StoredTensor, Value};
use crate::model::onnx::node::lengths;
use crate::model::onnx::tensor::Reason;

// ---- the same elements in another shape ----

/// The elements in this shape; a single number has one axis.
pub fn shaped(import: &mut Import, x: TensorId, mut to: Vec<usize>) -> Lowered {
    let shape = import.net.shape(x).clone();
    if to.is_empty() {
        to = vec![1];
    }
    if shape.0 == to {
        return Ok(Value::Tensor(x));
    }
    if to.iter().product::<usize>() != shape.elements() {
        return Err(format!("makes {} of {shape}", Shape(to)).into());
    }
    let layer = import.layer(&import.node.layer());
    Ok(Value::Tensor(import.net.reshape(&layer, x, Shape(to))?))
}

pub fn flatten(import: &mut Import, inputs: &[Value]) -> Lowered {
    let x = import.tensor(first(inputs)?)?;
    let shape = import.net.shape(x).clone();
    let axis = import.node.int("axis").unwrap_or(1);
    let cut = if axis == shape.rank() as i64 { Some(shape.rank()) } else { from_front(axis, shape.rank()) };
    let cut = cut.ok_or_else(|| format!("axis {axis} of {shape}"))?;
    let (before, behind) = shape.0.split_at(cut);
    shaped(import, x, vec![before.iter().product(), behind.iter().product()])
}

pub fn reshape(import: &mut Import, inputs: &[Value]) -> Lowered {
    let [x, shape] = inputs else { return Err("reads other than a tensor and a shape".into()) };
    let x = import.tensor(x)?;
    let before = import.net.shape(x).clone();
    let wanted = import.constant(shape)?.integers()?.to_vec();
    let literal = import.node.int("allowzero").unwrap_or(0) != 0;
    match reshaped(&before.0, &wanted, literal) {
        Some(to) => shaped(import, x, to),
        None => Err(format!("makes {wanted:?} of {before}").into()),
    }
}

pub fn squeeze(import: &mut Import, inputs: &[Value]) -> Lowered {
    let x = import.tensor(first(inputs)?)?;
    let shape = import.net.shape(x).clone();
    let over = axes_of(import, inputs)?;
    match squeezed(&shape.0, &over) {
        Some(to) => shaped(import, x, to),
        None => Err(format!("axes {over:?} of {shape}").into()),
    }
}

pub fn unsqueeze(import: &mut Import, inputs: &[Value]) -> Lowered {
    let x = import.tensor(first(inputs)?)?;
    let shape = import.net.shape(x).clone();
    let over = axes_of(import, inputs)?;
    match unsqueezed(&shape.0, &over) {
        Some(to) => shaped(import, x, to),
        None => Err(format!("axes {over:?} of {shape}").into()),
    }
}

fn axes_of(import: &Import, inputs: &[Value]) -> std::result::Result<Vec<i64>, Reason> {
    let given = inputs.get(1).map(|value| import.constant(value)).transpose()?;
    let inputs: Vec<&ConstantTensor> = given.iter().flat_map(|axes| [axes, axes]).collect();
    fold::axes(&import.node, &inputs)
}

pub fn shape(import: &mut Import, inputs: &[Value]) -> Lowered {
    let x = first(inputs)?;
    let dims = import.shape_of(x)?.0;
    let rank = dims.len() as i64;
    let place = |name: &str, default: i64| {
        let at = import.node.int(name).unwrap_or(default);
        (if at < 0 { at.saturating_add(rank) } else { at }).clamp(0, rank) as usize
    };
    let (from, to) = (place("start", 0), place("end", rank));
    let part = dims.get(from..to).unwrap_or_default();
    Ok(Value::Known(ConstantTensor::row(part.iter().map(|&extent| extent as i64).collect())))
}

// ---- another order ----

pub fn transpose(import: &mut Import, inputs: &[Value]) -> Lowered {
    let x = first(inputs)?;
    let rank = match (import.dims_of(x), x) {
        (Some(dims), _) => dims.len(),
        (None, Value::Partly(PartialActivation::Turned(order), _)) => order.axes().len(),
        (None, _) => {
            let x = import.tensor(x)?;
            import.net.shape(x).rank()
        }
    };
    let order = import.node.ints("perm").map_or_else(|| Some((0..rank).rev().collect()), lengths);
    match order.filter(|order| order.len() == rank && (0..rank).all(|axis| order.contains(&axis))) {
        Some(order) => permuted(import, x, &order),
        None => Err(format!("perm {:?} of {rank} axes", import.node.ints("perm").unwrap_or_default()).into()),
    }
}

/// Blocks of channels become blocks of places: (N, C·b², H, W) to (N, C, H·b, W·b).
pub fn depth_to_space(import: &mut Import, inputs: &[Value]) -> Lowered {
    let (x, [n, c, h, w], b) = blocks(import, inputs)?;
    let Some(channels) = Some(c / (b * b)).filter(|channels| channels * b * b == c) else {
        return Err(format!("blocks of {b}×{b} of {c} channels").into());
    };
    // Which of the channels that a pixel had lie apart: those of a row and a column of a block, or their own.
    let (apart, order) = match import.node.text("mode").unwrap_or("DCR") {
        "CRD" => (vec![n, channels, b, b, h, w], [0, 1, 4, 2, 5, 3]),
        "DCR" => (vec![n, b, b, channels, h, w], [0, 3, 4, 1, 5, 2]),
        mode => return Err(format!("mode {mode}").into()),
    };
    in_blocks(import, x, apart, &order, vec![n, channels, h * b, w * b])
}

/// The way back: (N, C, H·b, W·b) to (N, b²·C, H, W).
pub fn space_to_depth(import: &mut Import, inputs: &[Value]) -> Lowered {
    let (x, [n, c, h, w], b) = blocks(import, inputs)?;
    if !h.is_multiple_of(b) || !w.is_multiple_of(b) {
        return Err(format!("blocks of {b}×{b} of {h}×{w} places").into());
    }
    let (h, w) = (h / b, w / b);
    in_blocks(import, x, vec![n, c, h, b, w, b], &[0, 3, 5, 1, 2, 4], vec![n, c * b * b, h, w])
}

/// An image, its extents, and the edge of a block.
fn blocks(import: &mut Import, inputs: &[Value]) -> Lowered<(TensorId, [usize; 4], usize)> {
    let x = import.tensor(first(inputs)?)?;
    let extents = <[usize; 4]>::try_from(&import.net.shape(x).0[..]);
    let edge =
        import.node.int("blocksize").and_then(|edge| usize::try_from(edge).ok()).filter(|&edge| edge > 0);
    match (extents, edge) {
        (Ok(extents), Some(edge)) if edge <= 1 << 16 => Ok((x, extents, edge)),
        _ => Err(format!("blocks of {:?} of {}", import.node.int("blocksize"), import.net.shape(x)).into()),
    }
}

fn in_blocks(
    import: &mut Import,
    x: TensorId,
    apart: Vec<usize>,
    order: &[usize],
    to: Vec<usize>,
) -> Lowered {
    let layer = import.layer(&import.node.layer());
    let x = import.net.reshape(&format!("{layer}.apart"), x, Shape(apart))?;
    let x = import.net.permute(&layer, x, order)?;
    Ok(Value::Tensor(import.net.reshape(&format!("{layer}.together"), x, Shape(to))?))
}

/// With its axes in this order. That of a stored matrix is kept in mind, and so is any other until somebody reads it: a
/// product may read a transpose as it is, and exporters that want channels last put two orders behind each other that
/// come to nothing.
pub fn permuted(import: &mut Import, x: &Value, order: &[usize]) -> Lowered {
    let is_none = |order: &[usize]| order.iter().enumerate().all(|(place, &axis)| place == axis);
    let (x, axes) = match x {
        Value::Stored(stored) if order == [1, 0] => {
            return Ok(Value::Stored(StoredTensor { transposed: !stored.transposed, ..stored.clone() }));
        }
        x if is_none(order) => return Ok(x.clone()),
        Value::Partly(PartialActivation::Turned(before), x) => {
            let before = before.axes();
            (*x, order.iter().filter_map(|&axis| before.get(axis).copied()).collect())
        }
        x => (import.tensor(x)?, order.to_vec()),
    };
    let shape = import.net.shape(x);
    match Permutation::new(&axes).filter(|_| axes.len() == shape.rank() && order.len() == axes.len()) {
        Some(_) if is_none(&axes) => Ok(Value::Tensor(x)),
        Some(order) => Ok(Value::Partly(PartialActivation::Turned(order), x)),
        None => Err(format!("orders {} axes of {shape}", order.len()).into()),
    }
}

/// Whether it is an exchange of the last two axes.
pub fn swaps_last(order: &[usize]) -> bool {
    let rank = order.len();
    let wanted = |place: usize| match rank - place {
        1 => place - 1,
        2 => place + 1,
        _ => place,
    };
    rank >= 2 && order.iter().enumerate().all(|(place, &axis)| axis == wanted(place))
}

// ---- parts, and several together ----

pub fn concat(import: &mut Import, inputs: &[Value]) -> Lowered {
    let mut parts = Vec::new();
    for value in inputs {
        if import.dims_of(value).is_none_or(|dims| !dims.contains(&0)) {
            parts.push(import.tensor(value)?);
        }
    }
    let shapes: Vec<Vec<usize>> = parts.iter().map(|&part| import.net.shape(part).0.clone()).collect();
    let given = import.node.int("axis").unwrap_or(0);
    let axis = shapes.first().and_then(|shape| from_front(given, shape.len()));
    let axis = axis.ok_or_else(|| format!("axis {given} of {shapes:?}"))?;
    let alike = |shape: &Vec<usize>| {
        shape.len() == shapes[0].len()
            && (0..shape.len()).all(|other| other == axis || shape[other] == shapes[0][other])
    };
    if !shapes.iter().all(alike) {
        return Err(format!("puts {shapes:?} together").into());
    }
    match parts[..] {
        [one] => Ok(Value::Tensor(one)),
        _ => {
            let layer = import.layer(&import.node.layer());
            Ok(Value::Tensor(import.net.concat_along(&layer, axis, &parts)?))
        }
    }
}

/// A part along one axis, or along several one after the other. The numbers are attributes in old files.
pub fn slice(import: &mut Import, inputs: &[Value]) -> Lowered {
    let mut x = import.tensor(first(inputs)?)?;
    let numbers = |import: &Import, place: usize, name: &str| match stated(import, inputs, place)? {
        Some(numbers) => Ok::<_, Reason>(Some(numbers)),
        None => Ok(import.node.ints(name).map(<[i64]>::to_vec)),
    };
    let starts = numbers(import, 1, "starts")?.ok_or("reads no starts")?;
    let ends = numbers(import, 2, "ends")?.ok_or("reads no ends")?;
    let axes = numbers(import, 3, "axes")?.unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = numbers(import, 4, "steps")?.unwrap_or_else(|| vec![1; starts.len()]);
    if [ends.len(), axes.len(), steps.len()] != [starts.len(); 3] || steps.iter().any(|&step| step < 1) {
        return Err(format!("starts {starts:?}, ends {ends:?}, steps {steps:?}").into());
    }
    for place in 0..starts.len() {
        let shape = import.net.shape(x).clone();
        let axis =
            from_front(axes[place], shape.rank()).ok_or_else(|| format!("axes {axes:?} of {shape}"))?;
        let extent = shape.0[axis];
        let (from, step, count) = taken(extent, starts[place], ends[place], steps[place]);
        if count == 0 {
            let (start, end) = (starts[place], ends[place]);
            return Err(format!("takes {start} to {end} along axis {axis} of {shape}").into());
        }
        let step = if count == 1 { 1 } else { step as usize };
        if (from, step, count) != (0, 1, extent) {
            let layer = import.layer(&import.node.layer());
            let end = (from + (count - 1) * step + 1).min(extent);
            x = import.net.every(&layer, x, axis, (from..end, step))?;
        }
    }
    Ok(Value::Tensor(x))
}

/// All parts along an axis.
pub fn split(import: &mut Import, inputs: &[Value]) -> Lowered {
    let (shape, along) = split_axis(import, inputs)?;
    let count = import.node.outputs().len();
    let sizes = match (stated(import, inputs, 1)?, import.node.ints("split")) {
        (Some(sizes), _) => sizes,
        (None, Some(sizes)) => sizes.to_vec(),
        (None, None) => {
            let part = shape.0[along].div_ceil(count);
            (0..count).map(|number| part.min(shape.0[along].saturating_sub(number * part)) as i64).collect()
        }
    };
    if sizes.len() != count {
        return Err(format!("split {sizes:?} of {shape}").into());
    }
    let mut values = parts(import, &inputs[0], (&shape, along), &sizes)?;
    for (place, value) in values.iter().enumerate().skip(1) {
        import.give(import.node, place, value.clone());
    }
    Ok(values.swap_remove(0))
}

/// All parts along an axis, as one list of them: of these sizes, of one size but for the last, or of one place each.
pub fn split_to_sequence(import: &mut Import, inputs: &[Value]) -> Lowered {
    let (shape, along) = split_axis(import, inputs)?;
    let length = shape.0[along];
    let given = inputs.get(1).map(|sizes| import.constant(sizes)).transpose()?;
    let sizes = match given.filter(|given| given.len() > 0) {
        Some(given) if !given.dims.is_empty() => given.integers()?.to_vec(),
        Some(given) => {
            let part = lengths(given.integers()?).map_or(0, |sizes| sizes[0]).clamp(1, length.max(1));
            (0..length.div_ceil(part)).map(|number| part.min(length - number * part) as i64).collect()
        }
        None if import.node.int("keepdims") == Some(0) => return Err("keepdims 0".into()),
        None => vec![1; length],
    };
    Ok(Value::Sequence(parts(import, &inputs[0], (&shape, along), &sizes)?))
}

/// One of a list.
pub fn sequence_at(import: &mut Import, inputs: &[Value]) -> Lowered {
    let [Value::Sequence(all), at] = inputs else { return Err("reads no parts that are known".into()) };
    let at = import.constant(at).map_err(|_| "takes from a place that is computed")?;
    let place = match at.integers()? {
        &[place] => from_front(place, all.len()),
        _ => None,
    };
    Ok(all[place.ok_or_else(|| format!("takes none of {} parts", all.len()))?].clone())
}

/// What is taken apart, and along which axis.
fn split_axis(import: &mut Import, inputs: &[Value]) -> Lowered<(Shape, usize)> {
    let shape = import.shape_of(first(inputs)?)?;
    let axis = import.node.int("axis").unwrap_or(0);
    let along = from_front(axis, shape.rank()).ok_or_else(|| format!("axis {axis} of {shape}"))?;
    Ok((shape, along))
}

/// Parts of these sizes along an axis, one behind the other.
fn parts(
    import: &mut Import,
    value: &Value,
    (shape, along): (&Shape, usize),
    sizes: &[i64],
) -> Lowered<Vec<Value>> {
    let known = import.is_known(value).then(|| import.constant(value)).transpose()?;
    let x = if known.is_some() { None } else { Some(import.tensor(value)?) };
    let sound = lengths(sizes).filter(|parts| !parts.is_empty() && !parts.contains(&0));
    let sound = sound.filter(|parts| parts.iter().sum::<usize>() == shape.0[along]);
    let mut from = 0;
    let mut values = Vec::new();
    for part in sound.ok_or_else(|| format!("split {sizes:?} of {shape}"))? {
        values.push(match (x, &known) {
            (Some(x), _) => {
                let layer = import.layer(&import.node.layer());
                Value::Tensor(import.net.slice(&layer, x, along, from..from + part)?)
            }
            (None, constant) => {
                let part = constant.as_ref().and_then(|all| fold::part(all, along, from..from + part));
                Value::Known(part.ok_or("cannot be computed in advance from these constants")?)
            }
        });
        from += part;
    }
    Ok(values)
}

/// One place along an axis, neighbouring ones, or any.
pub fn gather(import: &mut Import, inputs: &[Value]) -> Lowered {
    let [x, at] = inputs else { return Err("reads other than a tensor and places".into()) };
    let at = import.constant(at).map_err(|_| "takes from places that are computed")?;
    let x = import.tensor(x)?;
    let shape = import.net.shape(x).clone();
    let given = import.node.int("axis").unwrap_or(0);
    let axis = from_front(given, shape.rank()).ok_or_else(|| format!("axis {given} of {shape}"))?;
    let found = at.integers()?.iter().map(|&place| from_front(place, shape.0[axis]));
    let found: Option<Vec<usize>> = found.collect();
    let found = found.filter(|found| !found.is_empty());
    let found = found.ok_or_else(|| format!("takes from beyond axis {axis} of {shape}"))?;
    let to = [&shape.0[..axis], &at.dims, &shape.0[axis + 1..]].concat();
    let layer = import.layer(&import.node.layer());
    if found.windows(2).all(|pair| pair[0] + 1 == pair[1]) {
        let part = found[0]..found[0] + found.len();
        let y = match part == (0..shape.0[axis]) {
            true => x,
            false => import.net.slice(&layer, x, axis, part)?,
        };
        return shaped(import, y, if to.is_empty() { vec![1] } else { to });
    }
    // The axis comes first, and the others are one behind it.
    let mut order: Vec<usize> = (0..shape.rank()).collect();
    order.remove(axis);
    order.insert(0, axis);
    let y = permuted(import, &Value::Tensor(x), &order)?;
    let y = import.tensor(&y)?;
    let others = shape.elements() / shape.0[axis];
    let y = import.net.reshape(&format!("{layer}.table"), y, Shape(vec![shape.0[axis], others]))?;
    let y = import.net.gather(&layer, y, &found)?;
    let rest = shape.0.iter().enumerate().filter(|(other, _)| *other != axis).map(|(_, &extent)| extent);
    let apart = Shape([found.len()].into_iter().chain(rest).collect());
    let y = import.net.reshape(&format!("{layer}.taken"), y, apart)?;
    let back: Vec<usize> =
        (0..shape.rank()).map(|place| order.iter().position(|&a| a == place).unwrap_or(0)).collect();
    let y = permuted(import, &Value::Tensor(y), &back)?;
    let y = import.tensor(&y)?;
    shaped(import, y, to)
}

/// Blocks from known places.
pub fn gather_blocks(import: &mut Import, inputs: &[Value]) -> Lowered {
    let [x, at] = inputs else { return Err("reads other than a tensor and places".into()) };
    if import.node.int("batch_dims").unwrap_or(0) != 0 {
        return Err("batch_dims is not 0".into());
    }
    let at = import.constant(at).map_err(|_| "takes from places that are computed")?;
    let x = import.tensor(x)?;
    let shape = import.net.shape(x).clone();
    let wrong = || format!("takes from {:?} places of {shape}", at.dims);
    let (firsts, block) = fold::blocks(&shape.0, &at).ok_or_else(wrong)?;
    if firsts.is_empty() {
        return Err(wrong().into());
    }
    let rows: Vec<usize> = firsts.iter().map(|first| first / block).collect();
    let layer = import.layer(&import.node.layer());
    let table = Shape(vec![shape.elements() / block, block]);
    let y = import.net.reshape(&format!("{layer}.table"), x, table)?;
    let y = import.net.gather(&layer, y, &rows)?;
    let (&depth, outer) = at.dims.split_last().ok_or_else(wrong)?;
    shaped(import, y, [outer, &shape.0[depth..]].concat())
}

/// Numbers at known places of what is computed: that is multiplied by 0 there, and they are added.
pub fn scatter(import: &mut Import, inputs: &[Value]) -> Lowered {
    let [x, at, updates] = inputs else { return Err("reads other than a tensor, places and numbers".into()) };
    if import.node.text("reduction").unwrap_or("none") != "none" {
        return Err("reduction is not none".into());
    }
    let at = import.constant(at).map_err(|_| "puts numbers at places that are computed")?;
    let shape = import.shape_of(x)?;
    let wrong = || format!("puts numbers at {:?} places of {shape}", at.dims);
    let (firsts, block) = fold::blocks(&shape.0, &at).ok_or_else(wrong)?;
    if block == 0 || firsts.is_empty() {
        return Err(wrong().into());
    }
    let rows = shape.elements() / block;
    let firsts: Vec<usize> = firsts.iter().map(|first| first / block).collect();
    let is_row = firsts.windows(2).all(|pair| pair[0] + 1 == pair[1]);
    let updates = import.tensor(updates)?;
    if import.net.shape(updates).elements() != firsts.len() * block {
        return Err(wrong().into());
    }
    let layer = import.layer(&import.node.layer());
    if is_row && firsts.len() == rows {
        return shaped(import, updates, shape.0.clone());
    }
    // Of several for one place the last one stays.
    let mut last = vec![None; rows];
    firsts.iter().enumerate().for_each(|(number, &row)| last[row] = Some(number));
    let table = Shape(vec![firsts.len(), block]);
    let part = import.net.reshape(&format!("{layer}.updates"), updates, table)?;
    let part = if is_row {
        let around = [firsts[0], rows - firsts[0] - firsts.len()];
        import.net.pad(&format!("{layer}.pad"), part, 0, around)?
    } else {
        import.net.place_rows(&format!("{layer}.placed"), part, &last)?
    };
    // Whole places of an axis stay apart from those of others.
    let depth = at.dims.last().copied().unwrap_or(0);
    let mut dims = shape.0.clone();
    dims[depth..].fill(1);
    let Value::Tensor(part) = shaped(import, part, shape.0.clone())? else {
        return Err(wrong().into());
    };
    let kept: Vec<f32> = last.iter().map(|number| f32::from(u8::from(number.is_none()))).collect();
    if count(&dims).is_none() {
        return Err(wrong().into());
    }
    let kept = Value::Known(ConstantTensor { dims, numbers: ConstantValues::Reals(kept) });
    let x = multiply(import, &[x.clone(), kept])?;
    elements::add(import, &[x, Value::Tensor(part)])
}

// ---- around, and stretched ----

/// A number around a tensor, or places of its own; less than none is a part of it.
pub fn pad(import: &mut Import, inputs: &[Value]) -> Lowered {
    let x = import.tensor(first(inputs)?)?;
    let mode = import.node.text("mode").unwrap_or("constant").to_string();
    let by = inputs.get(2).map(|value| import.constant(value)).transpose()?;
    let by = by.and_then(|by| by.single()).or_else(|| import.node.real("value")).unwrap_or(0.0);
    if by.is_nan() {
        return Err("pads with NaN".into());
    }
    let rank = import.net.shape(x).rank();
    let pads = match stated(import, inputs, 1)? {
        Some(pads) => pads,
        None => import.node.ints("pads").ok_or("has no pads")?.to_vec(),
    };
    let axes = match stated(import, inputs, 3)? {
        Some(axes) => axes.iter().map(|&axis| from_front(axis, rank)).collect(),
        None => Some((0..rank).collect::<Vec<usize>>()),
    };
    let axes = axes.filter(|axes| pads.len() == 2 * axes.len());
    let axes = axes.ok_or_else(|| format!("pads {pads:?} of {}", import.net.shape(x)))?;
    let mut y = Value::Tensor(x);
    for (place, &axis) in axes.iter().enumerate() {
        let around = [pads[place], pads[place + axes.len()]];
        y = match &*mode {
            "constant" => padded_with(import, &y, axis, around, by)?,
            mode => padded_by_own(import, &y, axis, around, mode)?,
        };
    }
    Ok(y)
}

/// Places that a tensor may have before it and behind it, of its own.
const MOST_PLACES: i64 = 4096;

/// With places of its own before and behind along an axis: mirrored at the first and the last place (`reflect`), these
/// again and again (`edge`), or those of the other end (`wrap`).
fn padded_by_own(import: &mut Import, x: &Value, axis: usize, around: [i64; 2], mode: &str) -> Lowered {
    let x = import.tensor(x)?;
    let x = padded_along(import, x, axis, around.map(|by| by.min(0)))?;
    let extent = import.net.shape(x).0[axis];
    let last = i64::try_from(extent).unwrap_or(i64::MAX) - 1;
    let [before, behind] = around.map(|by| by.max(0));
    let most = if mode == "reflect" { last } else { MOST_PLACES };
    if before.max(behind) > most {
        return Err(format!("mode {mode} with {before} and {behind} places around {extent}").into());
    }
    if [before, behind] == [0, 0] {
        return Ok(Value::Tensor(x));
    }
    let place = |at: i64| match mode {
        "reflect" if at < 0 => Ok(-at),
        "reflect" if at > last => Ok(2 * last - at),
        "edge" => Ok(at.clamp(0, last)),
        "wrap" => Ok(at.rem_euclid(last + 1)),
        "reflect" => Ok(at),
        other => Err(format!("mode {other}")),
    };
    let places = (-before..=last + behind).map(place).collect::<std::result::Result<Vec<i64>, _>>()?;
    let layer = import.layer(&import.node.layer());
    let runs = places.chunk_by(|a, b| a + 1 == *b).map(|run| {
        let run = run[0] as usize..run[0] as usize + run.len();
        match run.len() == extent {
            true => Ok(x),
            false => import.net.slice(&format!("{layer}.from{}", run.start), x, axis, run),
        }
    });
    let parts = runs.collect::<Result<Vec<TensorId>>>()?;
    Ok(Value::Tensor(import.net.concat_along(&layer, axis, &parts)?))
}

/// With a number along an axis: zeros, to which it is added. An infinite one is the largest that there is.
pub fn padded_with(import: &mut Import, x: &Value, axis: usize, around: [i64; 2], by: f32) -> Lowered {
    let x = import.tensor(x)?;
    let y = padded_along(import, x, axis, around)?;
    let [before, behind] = around.map(|by| usize::try_from(by).unwrap_or(0));
    if by == 0.0 || [before, behind] == [0, 0] {
        return Ok(Value::Tensor(y));
    }
    let shape = &import.net.shape(y).0;
    let extent = shape[axis];
    let mut dims = vec![1; shape.len() - axis];
    dims[0] = extent;
    let by = by.clamp(f32::MIN, f32::MAX);
    let is_around = |place: usize| place < before || place >= extent - behind;
    let numbers = (0..extent).map(|place| if is_around(place) { by } else { 0.0 }).collect();
    let numbers = Value::Known(ConstantTensor { dims, numbers: ConstantValues::Reals(numbers) });
    elements::add(import, &[Value::Tensor(y), numbers])
}

/// With so many zeros before and behind along an axis; of a number below 0 as many less.
pub fn padded_along(
    import: &mut Import,
    mut x: TensorId,
    axis: usize,
    around: [i64; 2],
) -> Lowered<TensorId> {
    let extent = import.net.shape(x).0[axis];
    let cut = around.map(|by| usize::try_from(by.min(0).unsigned_abs()).unwrap_or(usize::MAX));
    let more = lengths(&around.map(|by| by.max(0))).ok_or_else(|| format!("pads {around:?}"))?;
    if cut != [0, 0] {
        let end = extent.checked_sub(cut[1]).filter(|&end| end > cut[0]);
        let end = end.ok_or_else(|| format!("pads {around:?} of {extent}"))?;
        let layer = import.layer(&format!("{}.cut", import.node.layer()));
        x = import.net.slice(&layer, x, axis, cut[0]..end)?;
    }
    if more != [0, 0] {
        let layer = import.layer(&format!("{}.pad", import.node.layer()));
        x = import.net.pad(&layer, x, axis, [more[0], more[1]])?;
    }
    Ok(x)
}

/// Zeros around images or cubes, along depth, height and width; of a number below 0 as many less.
pub fn padded(import: &mut Import, mut x: TensorId, around: [[i64; 3]; 2]) -> Lowered<TensorId> {
    for (along, axis) in axes(import, x) {
        x = padded_along(import, x, axis, around.map(|side| side[along]))?;
    }
    Ok(x)
}

pub fn expand(import: &mut Import, inputs: &[Value]) -> Lowered {
    let [x, shape] = inputs else { return Err("reads other than a tensor and a shape".into()) };
    let wanted = import.constant(shape)?.integers()?.to_vec();
    let x = import.tensor(x)?;
    let from = import.net.shape(x).clone();
    let to = lengths(&wanted).and_then(|wanted| common(&[&from.0, &wanted]));
    let to = to.ok_or_else(|| format!("stretches {from} to {wanted:?}"))?;
    Ok(Value::Tensor(stretched(import, x, to)?))
}

fn stretched(import: &mut Import, x: TensorId, to: Vec<usize>) -> Lowered<TensorId> {
    if to == import.net.shape(x).0 {
        return Ok(x);
    }
    let layer = import.layer(&import.node.layer());
    Ok(import.net.expand(&layer, x, Shape(to))?)
}

/// Copies along each axis, one behind the other: of one place it is stretched, and where there are several the copies
/// are an axis of their own before it.
pub fn tile(import: &mut Import, inputs: &[Value]) -> Lowered {
    let [x, copies] = inputs else { return Err("reads other than a tensor and its copies".into()) };
    let wanted = import.constant(copies)?.integers()?.to_vec();
    let x = import.tensor(x)?;
    let shape = import.net.shape(x).clone();
    let (mut apart, mut copied, mut behind) = (Vec::new(), Vec::new(), Vec::new());
    let copies = lengths(&wanted).filter(|copies| copies.len() == shape.rank() && !copies.contains(&0));
    for (&extent, copies) in shape.0.iter().zip(copies.iter().flatten()) {
        if extent > 1 && *copies > 1 {
            apart.push(1);
            copied.push(*copies);
        }
        apart.push(extent);
        copied.push(if extent == 1 { *copies } else { extent });
        behind.extend(extent.checked_mul(*copies));
    }
    if behind.len() != shape.rank() {
        return Err(format!("copies {shape} {wanted:?} times").into());
    }
    let Value::Tensor(x) = shaped(import, x, apart)? else { return Err("has no tensor".into()) };
    let x = stretched(import, x, copied)?;
    shaped(import, x, behind)
}

// ---- what is nothing, or no layer ----

pub fn same(import: &mut Import, inputs: &[Value]) -> Lowered {
    match first(inputs)? {
        same @ (Value::Noise(_) | Value::Partly(PartialActivation::Turned(_), _)) => Ok(same.clone()),
        x => Ok(Value::Tensor(import.tensor(x)?)),
    }
}

/// Of what is computed another type of real numbers is nothing; integers, and yes or no, would be other numbers. Random
/// numbers that are 0 or 1 already stay these.
pub fn cast(import: &mut Import, inputs: &[Value]) -> Lowered {
    let to = import.node.int("to").unwrap_or(0);
    let is_kept = matches!(first(inputs)?, Value::Noise(noise) if noise.kept.is_some() && !noise.is_scaled);
    if !is_kept && !fold::is_real(to) {
        return Err(
            format!("rounds what is computed, to the type {to} of ONNX, which is no real number").into()
        );
    }
    same(import, inputs)
}

/// To the type of something else that the network computes, which is real.
pub fn cast_like(import: &mut Import, inputs: &[Value]) -> Lowered {
    match first(inputs)? {
        known @ (Value::Known(_) | Value::Stored(_)) => Ok(known.clone()),
        _ => same(import, inputs),
    }
}

/// Exports give one tensor several names where layers begin with the same numbers, but those that name parameters.
pub fn identity(import: &mut Import, inputs: &[Value]) -> Lowered {
    match (first(inputs)?, import.node.outputs()) {
        (Value::Stored(stored), _) if import.is_said_learned(stored) && import.file.names_parameters() => {
            Ok(Value::Stored(stored.clone()))
        }
        (Value::Stored(stored), [name, ..]) => {
            Ok(Value::Stored(StoredTensor { name: name.clone(), ..stored.clone() }))
        }
        _ => same(import, inputs),
    }
}

/// One with a tensor was read with the file.
pub fn constant(import: &mut Import, _: &[Value]) -> Lowered {
    let node = import.node;
    let single = |numbers| ConstantTensor { dims: Vec::new(), numbers };
    let is = |name: &str| node.only(&[name]).is_ok();
    let known = if is("value_int") {
        node.int("value_int").map(|number| single(ConstantValues::Integers(vec![number])))
    } else if is("value_ints") {
        node.ints("value_ints").map(|ints| ConstantTensor::row(ints.to_vec()))
    } else if is("value_float") {
        node.real("value_float").map(|number| single(ConstantValues::Reals(vec![number])))
    } else if is("value_floats") {
        let row = |reals: &[f32]| ConstantTensor {
            dims: vec![reals.len()],
            numbers: ConstantValues::Reals(reals.to_vec()),
        };
        node.reals("value_floats").map(row)
    } else {
        None
    };
    known.map(Value::Known).ok_or_else(|| "holds other than a tensor, integers or numbers".into())
}
