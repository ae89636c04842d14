//! An output that is a loss: a mean over the batch, of which each sample has its part (N, 1). What is added to such
//! means, and by what they are multiplied, leaves them means.

use super::elements::{axes_of, first};
use super::handler;
use crate::graph::dims;
use crate::model::onnx::import::{Import, Stop, Value};
use crate::model::onnx::node::OnnxNode;

/// The samples' parts of what a node gives, where it makes a mean over the batch or computes with one.
///
/// # Errors
/// What it computes is no such mean.
pub fn of_samples<'a>(
    import: &mut Import<'a>,
    node: OnnxNode<'a>,
    inputs: &[Value],
) -> Result<Option<Value>, Stop> {
    let is_mean = |value: &Value| matches!(value, Value::MeanOf(_));
    let means = inputs.iter().filter(|value| is_mean(value)).count();
    match node.op() {
        "ReduceMean" | "ReduceSum" if means == 0 => mean(import, node, inputs),
        _ if means == 0 => Ok(None),
        "Identity" | "Reshape" | "Squeeze" | "Unsqueeze" => Ok(Some(first(inputs)?.clone())),
        op => {
            let known = inputs.iter().filter(|value| import.single(value).is_some()).count();
            let keeps = match op {
                "Neg" | "Cast" => true,
                "Mul" => means == 1 && known == 1,
                "Div" => is_mean(&inputs[0]) && known == 1,
                "Add" | "Sub" | "Sum" => {
                    inputs.iter().all(|value| is_mean(value) || is_one_of_weights(import, node, value))
                }
                _ => false,
            };
            let handler = handler(node)?.filter(|_| keeps).ok_or(
                "computes with a mean over the batch what is none: of a loss each sample has to have its part",
            )?;
            let parts: Vec<Value> = inputs
                .iter()
                .map(|value| match value {
                    Value::MeanOf(part) => Value::Tensor(*part),
                    other => other.clone(),
                })
                .collect();
            let value = handler(import, node, &parts)?;
            Ok(Some(Value::MeanOf(import.tensor(node, &value)?)))
        }
    }
}

/// Whether it is a number that does not depend on the samples: one that is known, or a sum of weights.
fn is_one_of_weights<'a>(import: &mut Import<'a>, node: OnnxNode<'a>, value: &Value) -> bool {
    let is_of_weights = import.single(value).is_some()
        || matches!(value, Value::Tensor(id) | Value::Partly(_, id) if !import.of_images(*id));
    is_of_weights && import.shape_of(node, value).is_ok_and(|shape| shape.elements() == 1)
}

/// The mean over all axes, the batch among them: that of each sample is its part.
fn mean<'a>(import: &mut Import<'a>, node: OnnxNode<'a>, inputs: &[Value]) -> Result<Option<Value>, Stop> {
    let x = match first(inputs)? {
        value @ (Value::Tensor(_) | Value::Partly(..)) => import.tensor(node, value)?,
        _ => return Ok(None),
    };
    let (shape, batch) = (import.net.shape(x).clone(), import.batch);
    let is_of_all = axes_of(import, node, inputs, x)?.len() == shape.rank();
    if !is_of_all || !import.of_images(x) {
        return Ok(None);
    }
    if node.op() == "ReduceSum" {
        return Err("is a sum over the batch, whose size --batch decides: a loss is a mean".into());
    }
    if !shape.elements().is_multiple_of(batch) {
        return Err(format!("of {shape} a batch of {batch} samples has no equal parts").into());
    }
    let (layer, each) = (import.layer(&node.layer()), shape.elements() / batch);
    let x = import.net.reshape(&format!("{layer}.samples"), x, dims([batch, each]))?;
    let part = import.net.sum(&layer, x, &[1], 1.0 / each as f32)?;
    import.noted.means.push(part);
    Ok(Some(Value::MeanOf(part)))
}
