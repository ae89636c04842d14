//! Normalisations.

use super::Lowered;
use super::elements::{activation, add, first, number, put_together, with_single_axes};
use super::weights::learned;
use super::windows::as_images;
use crate::graph::{Activation, BatchNorm, Binary, LocalResponseNorm, Shape, TensorId, dims};
use crate::model::onnx::constant::from_front;
use crate::model::onnx::import::{Import, Value};
use crate::model::onnx::node::lengths;

/// Batch normalisation of channels; what is no image is seen as one of a single column or pixel.
pub fn batch_norm(import: &mut Import, inputs: &[Value]) -> Lowered {
    let [x, of_channels @ ..] = inputs else { return Err("reads nothing".into()) };
    let is_of_weights = |import: &Import| match x {
        Value::Stored(_) => true,
        Value::Tensor(id) => !import.of_images(*id),
        _ => false,
    };
    if import.node.int("training_mode") == Some(1) && is_of_weights(import) {
        return standardised(import, inputs);
    }
    let x = import.tensor(x)?;
    let shape = import.net.shape(x).clone();
    if of_channels.len() != 4 || import.node.int("spatial") == Some(0) || shape.rank() < 2 {
        return Err("is none of channels: spatial 0, or fewer than five inputs".into());
    }
    let channels = shape.0[1];
    let is_computed = |value: &Value| matches!(value, Value::Tensor(_) | Value::Partly(..));
    if of_channels[2..].iter().all(is_computed) {
        return by_computed(import, (x, channels), of_channels);
    }
    for (value, what) in of_channels.iter().zip(["scale", "bias", "mean", "variance"]) {
        let extents = import.shape_of(value)?.0;
        if extents != [channels] {
            return Err(format!("its {what} has {extents:?} numbers for {channels} channels").into());
        }
    }
    let layer = match &of_channels[0] {
        Value::Stored(scale) => import.layer_of(scale),
        _ => import.layer(&import.node.layer()),
    };
    let as_image = dims([shape.0[0], channels, shape.0[2..].iter().product(), 1]);
    let x = match shape.rank() {
        4 | 5 => x,
        _ => import.net.reshape(&format!("{layer}.image"), x, as_image)?,
    };
    let y = by_batches(import, &layer, (x, channels), of_channels)?;
    match shape.rank() {
        4 | 5 => Ok(Value::Tensor(y)),
        _ => Ok(Value::Tensor(import.net.reshape(&format!("{layer}.back"), y, shape)?)),
    }
}

/// Of images, by what a batch has, or what was seen of all.
fn by_batches(
    import: &mut Import,
    layer: &str,
    (x, channels): (TensorId, usize),
    of_channels: &[Value],
) -> Lowered<TensorId> {
    let (mean, variance) = (&of_channels[2], &of_channels[3]);
    let statistics = [import.stored(mean, "mean", 1)?.0, import.stored(variance, "variance", 1)?.0];
    let own = |value: &Value| {
        let stored = import.stored(value, "scale or bias", 1).ok().map(|(stored, _)| stored);
        stored.filter(|of| import.file.is_initializer(of.index) && !import.is_shared(of))
    };
    let own = own(&of_channels[0]).zip(own(&of_channels[1]));
    // What a running statistic keeps of itself; ours is what it takes in.
    let momentum = 1.0 - f64::from(import.node.real("momentum").unwrap_or(0.9));
    let epsilon = import.node.real("epsilon").unwrap_or(1e-5);
    let norm = BatchNorm { epsilon, momentum: rounded(momentum), ..BatchNorm::default() };
    let mut y = import.net.batch_norm(layer, x, norm)?;
    if let Some((scale, shift)) = own {
        import.kept(&[&scale, &shift, &statistics[0], &statistics[1]]);
        return Ok(y);
    }
    for (id, number) in import.net.kept_of_last().into_iter().zip([1.0, 0.0]) {
        import.net.fix(id, &vec![number; channels]);
    }
    import.kept(&[&statistics[0], &statistics[1]]);
    // What others read too, or is not learned, is put behind.
    for (of, value) in [(Binary::Multiply, &of_channels[0]), (Binary::Add, &of_channels[1])] {
        y = scaled_by_channel(import, of, y, (value, channels))?;
    }
    Ok(y)
}

/// By a mean and a variance that the network computes, as an exporter spells out what standardises a weight.
fn by_computed(import: &mut Import, (mut y, channels): (TensorId, usize), of_channels: &[Value]) -> Lowered {
    let [scale, shift, mean, variance] = of_channels else { return Err("reads fewer than five".into()) };
    let epsilon = number(import.node.real("epsilon").unwrap_or(1e-5));
    let variance = add(import, &[variance.clone(), epsilon])?;
    let deviation = activation(import, &[variance], Activation::Sqrt)?;
    for (of, value) in [
        (Binary::Subtract, mean),
        (Binary::Divide, &deviation),
        (Binary::Multiply, scale),
        (Binary::Add, shift),
    ] {
        y = scaled_by_channel(import, of, y, (value, channels))?;
    }
    Ok(Value::Tensor(y))
}

/// A weight (1, O, …), each part of which has a mean and a variance of its own.
fn standardised(import: &mut Import, inputs: &[Value]) -> Lowered {
    let [x, scale, shift, ..] = inputs else { return Err("reads no scale".into()) };
    let x = import.tensor(x)?;
    let shape = import.net.shape(x).clone();
    let [1, outputs, ..] = shape.0[..] else { return Err(format!("of {shape}, no weight by itself").into()) };
    let layer = import.layer(&import.node.layer());
    let rows = dims([1, outputs, shape.elements() / outputs]);
    let y = import.net.reshape(&format!("{layer}.rows"), x, rows)?;
    let y = import.net.normalise_rows(&layer, y, 1, import.node.real("epsilon").unwrap_or(1e-5))?;
    let mut y = import.net.reshape(&format!("{layer}.back"), y, shape)?;
    for (of, value) in [(Binary::Multiply, scale), (Binary::Add, shift)] {
        y = scaled_by_channel(import, of, y, (value, outputs))?;
    }
    Ok(Value::Tensor(y))
}

/// The number of few digits that the writer began with: 1 − 0.9 as f32 is not 0.1 as f32.
pub fn rounded(number: f64) -> f32 {
    ((number * 1e6).round() / 1e6) as f32
}

/// Normalisation of the last axes, with a learned scale and shift of the same shape, or with whatever scale and shift
/// there are.
pub fn layer_norm(import: &mut Import, inputs: &[Value]) -> Lowered {
    let [x, scale, rest @ ..] = inputs else { return Err("reads no scale".into()) };
    let x = import.tensor(x)?;
    let shape = import.net.shape(x).clone();
    let given = import.node.int("axis").unwrap_or(-1);
    let axis = from_front(given, shape.rank()).ok_or_else(|| format!("axis {given} of {shape}"))?;
    let epsilon = import.node.real("epsilon").unwrap_or(1e-5);
    let shift = rest.first().filter(|shift| !matches!(shift, Value::Known(constant) if constant.dims == [0]));
    let last = &shape.0[axis..];
    let learned_of = |import: &Import, value: &Value| {
        let stored = import.stored(value, "scale or shift", last.len()).ok();
        stored.filter(|(stored, of)| {
            of == last && import.known_reals(value).is_none() && !import.is_shared(stored)
        })
    };
    let both = (learned_of(import, scale), shift.and_then(|shift| learned_of(import, shift)));
    if let ((Some((scale, _)), Some((shift, _))), 1..) = (both, axis) {
        let layer = import.layer_of(&scale);
        let y = import.net.layer_norm(&layer, x, last.len(), epsilon)?;
        learned(import, &[Some(scale), Some(shift)])?;
        return Ok(Value::Tensor(y));
    }
    let layer = import.layer(&import.node.layer());
    if axis == 0 {
        import.along_first(x);
    }
    // What nothing is before is one row.
    let one = Shape([&[1], &shape.0[..]].concat());
    let x = if axis == 0 { import.net.reshape(&format!("{layer}.row"), x, one)? } else { x };
    let y = import.net.normalise_rows(&layer, x, last.len(), epsilon)?;
    let mut y = if axis == 0 { import.net.reshape(&format!("{layer}.back"), y, shape.clone())? } else { y };
    for (of, value) in [(Binary::Multiply, Some(scale)), (Binary::Add, shift)] {
        if let Some(value) = value.filter(|value| !does_nothing(import, of, value)) {
            let by = import.tensor(value)?;
            y = put_together(import, of, y, by)?;
        }
    }
    Ok(Value::Tensor(y))
}

/// Whether numbers that are not learned change nothing.
fn does_nothing(import: &Import, of: Binary, value: &Value) -> bool {
    let nothing = if of == Binary::Multiply { 1.0 } else { 0.0 };
    import.known_reals(value).is_some_and(|all| all.iter().all(|&number| number == nothing))
}

pub fn instance_norm(import: &mut Import, inputs: &[Value]) -> Lowered {
    let x = import.tensor(first(inputs)?)?;
    let channels = import.net.shape(x).0.get(1).copied().unwrap_or(0);
    grouped(import, inputs, x, channels)
}

pub fn group_norm(import: &mut Import, inputs: &[Value]) -> Lowered {
    let x = import.tensor(first(inputs)?)?;
    let groups = import.node.int("num_groups").and_then(|groups| usize::try_from(groups).ok()).unwrap_or(0);
    grouped(import, inputs, x, groups)
}

/// The channels of a group, and all pixels of them, are a row that is normalised by itself. Scale and shift have a
/// number for each channel, or for each group.
fn grouped(import: &mut Import, inputs: &[Value], x: TensorId, groups: usize) -> Lowered {
    let [_, scale, shift] = inputs else { return Err("reads other than images, a scale and a shift".into()) };
    let shape = import.net.shape(x).clone();
    let channels = shape.0.get(1).copied().unwrap_or(0);
    if shape.rank() < 3 || groups == 0 || !channels.is_multiple_of(groups) {
        return Err(format!("{groups} groups of the channels of {shape}").into());
    }
    let epsilon = import.node.real("epsilon").unwrap_or(1e-5);
    let layer = import.layer(&import.node.layer());
    let rows = dims([shape.0[0], groups, shape.per_sample() / groups]);
    let y = import.net.reshape(&format!("{layer}.groups"), x, rows)?;
    let mut y = import.net.normalise_rows(&layer, y, 1, epsilon)?;
    let of_groups = import.dims_of(scale) == Some(vec![groups]) && groups != channels;
    let seen = match of_groups {
        true => dims([shape.0[0], groups, shape.per_sample() / groups]),
        false => shape.clone(),
    };
    y = import.net.reshape(&format!("{layer}.channels"), y, seen.clone())?;
    for (of, value) in [(Binary::Multiply, scale), (Binary::Add, shift)] {
        y = scaled_by_channel(import, of, y, (value, seen.0[1]))?;
    }
    Ok(Value::Tensor(match of_groups {
        true => import.net.reshape(&format!("{layer}.back"), y, shape)?,
        false => y,
    }))
}

/// With a number for each of so many channels. Where all of them do nothing, nothing is done.
fn scaled_by_channel(
    import: &mut Import,
    of: Binary,
    x: TensorId,
    (value, channels): (&Value, usize),
) -> Lowered<TensorId> {
    if does_nothing(import, of, value) {
        return Ok(x);
    }
    let by = import.tensor(value)?;
    if import.net.shape(by).0 != [channels] {
        return Err(format!("has {} numbers for {channels} channels", import.net.shape(by)).into());
    }
    let rank = import.net.shape(x).rank();
    let by = with_single_axes(import, by, rank - 1)?;
    put_together(import, of, x, by)
}

pub fn local_response_norm(import: &mut Import, inputs: &[Value]) -> Lowered {
    let size = lengths(&[import.node.int("size").unwrap_or(0)]).map_or(0, |length| length[0]);
    if size.is_multiple_of(2) {
        return Err(format!("size {size} has no middle").into());
    }
    let number = |name: &str, default: f32| import.node.real(name).unwrap_or(default);
    let (alpha, beta, k) = (number("alpha", 1e-4), number("beta", 0.75), number("bias", 1.0));
    let norm = LocalResponseNorm { size, alpha, beta, k };
    as_images(import, first(inputs)?, |import, x| {
        let layer = import.layer(&import.node.layer());
        Ok(Value::Tensor(import.net.local_response_norm(&layer, x, norm)?))
    })
}
