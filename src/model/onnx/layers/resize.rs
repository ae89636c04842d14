//! Images in another size.

use super::elements::first;
use super::{Lowered, stated};
use crate::graph::{Interpolation, Resize, ResizeCoordinates};
use crate::model::onnx::constant::from_front;
use crate::model::onnx::import::{Import, Value};
use crate::model::onnx::node::lengths;
use crate::model::onnx::tensor::Reason;

/// An axis, and how long it becomes: in elements, or by what factor.
type Change = (usize, std::result::Result<usize, f64>);

/// Each axis by itself.
pub fn resize(import: &mut Import, inputs: &[Value]) -> Lowered {
    let mut x = import.tensor(first(inputs)?)?;
    let shape = import.net.shape(x).clone();
    for (axis, to) in changes(import, inputs, shape.rank())? {
        let extent = shape.0[axis];
        let (length, scale) = match to {
            Ok(length) => (length, length as f64 / extent as f64),
            // In the precision that the file has of it, or a whole number might be missed.
            Err(scale) => ((extent as f32 * scale as f32).floor() as usize, scale),
        };
        if length == extent && (scale == 1.0 || to.is_ok()) || axis == 0 && to.is_ok() {
            continue;
        }
        if axis == 0 {
            return Err("changes the batch".into());
        }
        let how = how(import, scale)?;
        let layer = import.layer(&import.node.layer());
        x = import.net.resize_along(&layer, x, axis, (length, Some(scale)), how)?;
    }
    Ok(Value::Tensor(x))
}

/// What it is to become, of the axes that are named. (Factors are an attribute in the oldest files.)
fn changes(import: &Import, inputs: &[Value], rank: usize) -> std::result::Result<Vec<Change>, Reason> {
    let all: Vec<i64> = (0..rank as i64).collect();
    let named = import.node.ints("axes").unwrap_or(&all);
    let axes: Option<Vec<usize>> = named.iter().map(|&axis| from_front(axis, rank)).collect();
    let axes = axes.ok_or_else(|| format!("axes {named:?} of {rank}"))?;
    let at = if import.node.op() == "Resize" && import.file.version() >= 11 { 2 } else { 1 };
    let factors = inputs.get(at).map(|value| import.constant(value)).transpose()?;
    let factors = factors.map(|factors| factors.reals()).filter(|factors| !factors.is_empty());
    let factors = factors.or_else(|| import.node.reals("scales").map(<[f32]>::to_vec));
    let sizes = if at == 2 { stated(import, inputs, 3)? } else { None };
    let lengths = sizes.as_deref().and_then(lengths);
    let changes: Vec<Change> = match (lengths, factors) {
        (Some(lengths), _) if !lengths.contains(&0) => {
            axes.into_iter().zip(lengths.into_iter().map(Ok)).collect()
        }
        (None, Some(factors)) if factors.iter().all(|&by| by > 0.0 && by < 65_536.0) => {
            axes.into_iter().zip(factors.into_iter().map(|by| Err(f64::from(by)))).collect()
        }
        (_, factors) => return Err(format!("sizes {sizes:?}, scales {factors:?}")),
    };
    match changes.len() == named.len() {
        true => Ok(changes),
        false => Err(format!("states {} of {} axes", changes.len(), named.len())),
    }
}

fn how(import: &Import, scale: f64) -> std::result::Result<Resize, Reason> {
    let is_old = import.node.op() != "Resize" || import.file.version() < 11;
    let text = |name: &'static str, default: &'static str| import.node.text(name).unwrap_or(default);
    let is_set = |name: &str| import.node.int(name).unwrap_or(0) != 0;
    if is_set("antialias") && scale < 1.0 {
        return Err("antialias of a smaller image".into());
    }
    let policy = text("keep_aspect_ratio_policy", "stretch");
    if policy != "stretch" {
        return Err(format!("keep_aspect_ratio_policy {policy}"));
    }
    let usual = if is_old { ["asymmetric", "floor"] } else { ["half_pixel", "round_prefer_floor"] };
    let places = match text("coordinate_transformation_mode", usual[0]) {
        "half_pixel" => ResizeCoordinates::HalfPixel,
        "pytorch_half_pixel" => ResizeCoordinates::HalfPixelOrFirst,
        "half_pixel_symmetric" => ResizeCoordinates::HalfPixelAroundMiddle,
        "align_corners" => ResizeCoordinates::Corners,
        "asymmetric" => ResizeCoordinates::Asymmetric,
        other => return Err(format!("coordinate_transformation_mode {other}")),
    };
    let reading = match (text("mode", "nearest"), text("nearest_mode", usual[1])) {
        ("nearest", "floor") => Interpolation::Below,
        ("nearest", "ceil") => Interpolation::Above,
        ("nearest", "round_prefer_floor") => Interpolation::NearestBelow,
        ("nearest", "round_prefer_ceil") => Interpolation::NearestAbove,
        ("linear" | "bilinear", _) => Interpolation::Linear,
        ("cubic", _) => Interpolation::Cubic {
            a: f64::from(import.node.real("cubic_coeff_a").unwrap_or(-0.75)),
            inside: is_set("exclude_outside"),
        },
        (mode, nearest) => return Err(format!("mode {mode}, nearest_mode {nearest}")),
    };
    Ok(Resize { places, reading })
}
