//! Products of two tensors that the network computes, and softmax.

use super::elements::{first, leaves_nothing};
use super::{Lowered, shapes};
use crate::graph::{MatMul, Shape, TensorId};
use crate::model::onnx::constant::{common, from_front};
use crate::model::onnx::import::{Import, PartialActivation, Value};

/// An operand as a product reads it: with what was to be done to it before, as far as a product does that too.
struct Factor {
    id: TensorId,
    transposed: bool,
    scale: f32,
}

fn factor(import: &mut Import, value: &Value) -> Lowered<Factor> {
    let (id, transposed, scale) = match value {
        Value::Partly(PartialActivation::Scaled(by), x) => (*x, false, *by),
        Value::Partly(PartialActivation::Turned(order), x) if shapes::swaps_last(&order.axes()) => {
            (*x, true, 1.0)
        }
        value => (import.tensor(value)?, false, 1.0),
    };
    Ok(Factor { id, transposed, scale })
}

/// The product of the last two axes; those before are stretched over each other. What has one axis is a row or a
/// column.
pub fn product(import: &mut Import, a: &Value, b: &Value) -> Lowered {
    let (a, b) = (factor(import, a)?, factor(import, b)?);
    let layer = import.layer(&import.node.layer());
    let [x, z] = [&a, &b].map(|factor| import.net.shape(factor.id).0.clone());
    let wrong = || format!("multiplies {} by {}", Shape(x.clone()), Shape(z.clone()));
    let as_matrix = |shape: &[usize], is_row: bool| match shape {
        [length] if is_row => vec![1, *length],
        [length] => vec![*length, 1],
        other => other.to_vec(),
    };
    let (rows, columns) = (as_matrix(&x, true), as_matrix(&z, false));
    if rows.len() < 2 || columns.len() < 2 {
        return Err(wrong().into());
    }
    let outer = common(&[&rows[..rows.len() - 2], &columns[..columns.len() - 2]]).ok_or_else(wrong)?;
    let mut ids = Vec::new();
    for (factor, matrix, part) in [(&a, &rows, "a"), (&b, &columns, "b")] {
        let wanted = Shape([&outer[..], &matrix[matrix.len() - 2..]].concat());
        let mut id = factor.id;
        if import.net.shape(id).0 != *matrix {
            id = import.net.reshape(&format!("{layer}.{part}.matrix"), id, Shape(matrix.clone()))?;
        }
        if *import.net.shape(id) != wanted {
            id = import.net.expand(&format!("{layer}.{part}"), id, wanted)?;
        }
        ids.push(id);
    }
    let of = MatMul { transposed: [a.transposed, b.transposed], scale: a.scale * b.scale };
    if of.extents(import.net.shape(ids[0]), import.net.shape(ids[1])).is_none() {
        return Err(wrong().into());
    }
    let y = import.net.matmul(&layer, ids[0], ids[1], of)?;
    let mut shape = import.net.shape(y).0.clone();
    let rank = shape.len();
    if z.len() == 1 {
        shape.remove(rank - 1);
    }
    if x.len() == 1 {
        shape.remove(rank - 2);
    }
    shapes::shaped(import, y, shape)
}

/// The sum of products of two tensors, as one product of matrices: letters that all three have are batches, those that
/// the two have are summed over.
pub fn einsum(import: &mut Import, inputs: &[Value]) -> Lowered {
    let equation: String =
        import.node.text("equation").unwrap_or("").chars().filter(|c| !c.is_whitespace()).collect();
    let wrong = || format!("equation {equation}: none of two tensors that is a product of matrices");
    let (operands, result) = equation.split_once("->").ok_or_else(wrong)?;
    let ([a, b], Some((of_a, of_b))) = (inputs, operands.split_once(',')) else { return Err(wrong().into()) };
    let is_plain = |letters: &str| {
        let mut seen = Vec::new();
        letters.chars().all(|letter| {
            let is_new = letter.is_ascii_alphabetic() && !seen.contains(&letter);
            seen.push(letter);
            is_new
        })
    };
    if ![of_a, of_b, result].iter().all(|letters| is_plain(letters)) {
        return Err(wrong().into());
    }
    let batch: Vec<char> = of_a.chars().filter(|&c| of_b.contains(c) && result.contains(c)).collect();
    let inner: Vec<char> = of_a.chars().filter(|&c| of_b.contains(c) && !result.contains(c)).collect();
    let rows: Vec<char> = of_a.chars().filter(|&c| !of_b.contains(c) && result.contains(c)).collect();
    let columns: Vec<char> = of_b.chars().filter(|&c| !of_a.contains(c) && result.contains(c)).collect();
    let order = [&batch[..], &rows, &columns].concat();
    let is_whole = [batch.len() + inner.len() + rows.len(), batch.len() + inner.len() + columns.len()]
        == [of_a.len(), of_b.len()]
        && order.len() == result.len();
    if !is_whole {
        return Err(wrong().into());
    }
    let (a, sizes_a) = in_order(import, (a, of_a), &[&batch, &rows, &inner])?;
    let (b, sizes_b) = in_order(import, (b, of_b), &[&batch, &inner, &columns])?;
    let Value::Tensor(y) = product(import, &a, &b)? else { return Err(wrong().into()) };
    let all = [sizes_a, sizes_b].concat();
    let extent =
        |letter: &char| all.iter().find(|(other, _)| other == letter).map_or(1, |(_, extent)| *extent);
    let y = shapes::shaped(import, y, order.iter().map(extent).collect())?;
    let places: Vec<usize> =
        result.chars().filter_map(|letter| order.iter().position(|&other| other == letter)).collect();
    shapes::permuted(import, &y, &places)
}

/// The operand with its axes in this order, each group of letters as one axis, and the extents of its letters.
fn in_order(
    import: &mut Import,
    (value, letters): (&Value, &str),
    groups: &[&Vec<char>; 3],
) -> Lowered<(Value, Vec<(char, usize)>)> {
    let x = import.tensor(value)?;
    let shape = import.net.shape(x).clone();
    if shape.rank() != letters.len() {
        return Err(format!("names the axes {letters} of {shape}").into());
    }
    let sizes: Vec<(char, usize)> = letters.chars().zip(shape.0.iter().copied()).collect();
    let wanted = groups.iter().flat_map(|group| group.iter());
    let axes: Vec<usize> =
        wanted.filter_map(|&letter| letters.chars().position(|other| other == letter)).collect();
    let y = shapes::permuted(import, &Value::Tensor(x), &axes)?;
    let y = import.tensor(&y)?;
    let extent =
        |letter: &char| sizes.iter().find(|(other, _)| other == letter).map_or(1, |(_, extent)| *extent);
    let joined = groups.iter().map(|group| group.iter().map(extent).product()).collect();
    Ok((shapes::shaped(import, y, joined)?, sizes))
}

/// Of scores the loss has it, so that at the end of a network there is none.
pub fn softmax(import: &mut Import, inputs: &[Value]) -> Lowered {
    if leaves_nothing(import, first(inputs)?) {
        return Err("is of a row that is −∞ all along".into());
    }
    let x = import.tensor(first(inputs)?)?;
    let rank = import.net.shape(x).rank();
    let given = import.node.int("axis").unwrap_or(if import.file.version() < 13 { 1 } else { -1 });
    let axis = from_front(given, rank).filter(|&axis| axis + 1 == rank || import.file.version() >= 13);
    let axis = axis.ok_or_else(|| format!("axis {given} of {}", import.net.shape(x)))?;
    if is_last(import, axis) && rank == 2 && !import.file.is_whole() {
        return Ok(Value::Tensor(x));
    }
    if axis == 0 {
        import.along_first(x);
    }
    let mut axes: Vec<usize> = (0..rank).collect();
    axes.swap(axis, rank - 1);
    let x = shapes::permuted(import, &Value::Tensor(x), &axes)?;
    let x = import.tensor(&x)?;
    let layer = import.layer(&import.node.layer());
    let y = import.net.softmax(&layer, x);
    shapes::permuted(import, &Value::Tensor(y), &axes)
}

/// The logarithm of a softmax along an axis.
pub fn log_softmax(import: &mut Import, inputs: &[Value]) -> Lowered {
    let x = import.tensor(first(inputs)?)?;
    let rank = import.net.shape(x).rank();
    match from_front(import.node.int("axis").unwrap_or(-1), rank) {
        Some(axis) if is_last(import, axis) && !import.file.is_whole() => Ok(Value::Tensor(x)),
        Some(axis) if is_last(import, axis) => Err("is for --loss cross-entropy, which has it".into()),
        _ => Err("is not the end of the network, over its classes".into()),
    }
}

/// Whether it is over the classes, and nothing comes behind it.
fn is_last(import: &Import, axis: usize) -> bool {
    import.file.gives(import.node.outputs()) && axis == 1
}
