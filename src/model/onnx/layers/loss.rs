//! An output that is a loss: a mean over the batch, of which each sample has its part (N, 1). What is added to such
//! means, and by what they are multiplied, leaves them means.

use super::elements::{axes_of, first};
use super::{Lowered, handler};
use crate::graph::dims;
use crate::model::onnx::import::{Import, Value};

/// The samples' parts of what a node gives, where it makes a mean over the batch or computes with one.
///
/// # Errors
/// What it computes is no such mean.
pub fn of_samples(import: &mut Import, inputs: &[Value]) -> Lowered<Option<Value>> {
    let is_mean = |value: &Value| matches!(value, Value::MeanOf(_));
    let means = inputs.iter().filter(|value| is_mean(value)).count();
    match import.node.op() {
        "ReduceMean" | "ReduceSum" if means == 0 => mean(import, inputs),
        _ if means == 0 => Ok(None),
        "Identity" | "Reshape" | "Squeeze" | "Unsqueeze" => Ok(Some(first(inputs)?.clone())),
        op => {
            let known = inputs.iter().filter(|value| import.single(value).is_some()).count();
            let keeps = match op {
                "Neg" | "Cast" => true,
                "Mul" => means == 1 && known == 1,
                "Div" => is_mean(&inputs[0]) && known == 1,
                "Add" | "Sub" | "Sum" => {
                    inputs.iter().all(|value| is_mean(value) || is_one_of_weights(import, value))
                }
                _ => false,
            };
            let handler = handler(import.node)?.filter(|_| keeps).ok_or(
                "computes with a mean over the batch what is none: of a loss each sample has to have its part",
            )?;
            let parts: Vec<Value> = inputs
                .iter()
                .map(|value| match value {
                    Value::MeanOf(part) => Value::Tensor(*part),
                    other => other.clone(),
                })
                .collect();
            let value = handler(import, &parts)?;
            Ok(Some(Value::MeanOf(import.tensor(&value)?)))
        }
    }
}

/// Whether it is a number that does not depend on the samples: one that is known, or a sum of weights.
fn is_one_of_weights(import: &mut Import, value: &Value) -> bool {
    let is_of_weights = import.single(value).is_some()
        || matches!(value, Value::Tensor(id) | Value::Partly(_, id) if !import.of_images(*id));
    is_of_weights && import.shape_of(value).is_ok_and(|shape| shape.elements() == 1)
}

/// The mean over all axes, the batch among them: that of each sample is its part.
fn mean(import: &mut Import, inputs: &[Value]) -> Lowered<Option<Value>> {
    let x = match first(inputs)? {
        value @ (Value::Tensor(_) | Value::Partly(..)) => import.tensor(value)?,
        _ => return Ok(None),
    };
    let (shape, batch) = (import.net.shape(x).clone(), import.batch());
    let is_of_all = axes_of(import, inputs, x)?.len() == shape.rank();
    if !is_of_all || !import.of_images(x) {
        return Ok(None);
    }
    if import.node.op() == "ReduceSum" {
        return Err("is a sum over the batch, whose size --batch decides: a loss is a mean".into());
    }
    if !shape.elements().is_multiple_of(batch) {
        return Err(format!("of {shape} a batch of {batch} samples has no equal parts").into());
    }
    let (layer, each) = (import.layer(&import.node.layer()), shape.elements() / batch);
    let x = import.net.reshape(&format!("{layer}.samples"), x, dims([batch, each]))?;
    let part = import.net.sum(&layer, x, &[1], 1.0 / each as f32)?;
    import.noted.means.push(part);
    Ok(Some(Value::MeanOf(part)))
}
