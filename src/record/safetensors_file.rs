//! Files of weights as safetensors: what is written beside the tensors that a network has, and in which order.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashMap;
use std::path::Path;

use safetensors::tensor::Dtype;
use safetensors::{View, serialize_to_file};

use super::weights::{ErrorOf, ModelMetadata};
use crate::error::{Error, Result};
use crate::model::onnx::export::TensorValues;

/// What PyTorch counts in each normalisation and a strict `load_state_dict` wants to find; nothing here reads it.
pub const BATCHES: &str = "num_batches_tracked";
/// What torchvision keeps beside a table of numbers for ways within a window: which of them each pair of places has.
pub const WAYS: [&str; 2] = ["relative_position_bias_table", "relative_position_index"];

/// A tensor that is asked for when it is written.
struct Lazy<'a> {
    name: &'a str,
    shape: &'a [usize],
    dtype: Dtype,
    values: TensorValues<'a>,
    failed: &'a RefCell<Option<Error>>,
}

impl View for Lazy<'_> {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        if self.dtype == Dtype::I64 {
            let numbers = if self.shape.is_empty() { vec![0] } else { ways(self.shape[0]) };
            return Cow::Owned(numbers.into_iter().flat_map(i64::to_le_bytes).collect());
        }
        let values = (self.values)(self.name).unwrap_or_else(|error| {
            self.failed.replace(Some(error));
            vec![0.0; self.shape.iter().product()]
        });
        Cow::Owned(values.iter().flat_map(|value| value.to_le_bytes()).collect())
    }

    fn data_len(&self) -> usize {
        self.shape.iter().product::<usize>() * if self.dtype == Dtype::I64 { 8 } else { 4 }
    }
}

/// The side of a window of which so many pairs of places are, or so many ways from place to place.
fn side_of(count: usize, of: impl Fn(usize) -> usize) -> Option<usize> {
    (1..=count).take_while(|&side| of(side) <= count).find(|&side| of(side) == count)
}

/// For each of so many pairs of places of a window the row of its way in a table of all ways.
fn ways(pairs: usize) -> Vec<i64> {
    let side = side_of(pairs, |side| side.pow(4)).unwrap_or(0);
    let (places, longest) = (side * side, 2 * side.max(1) - 1);
    let along = |from: usize, to: usize| from + side - 1 - to;
    let way =
        |from: usize, to: usize| along(from / side, to / side) * longest + along(from % side, to % side);
    (0..places * places).map(|pair| way(pair / places, pair % places) as i64).collect()
}

/// What a file says of itself. The library writes a map in the map's own order, which is another one for each map that
/// is made, and the same weights are to be the same file: so maps are made until one has this order.
fn in_order(about: &ModelMetadata) -> HashMap<String, String> {
    // What Python's library asks for before it takes tensors for PyTorch's.
    let said: Vec<(&str, String)> = [("format", "pt".to_string())].into_iter().chain(about.texts()).collect();
    loop {
        let map: HashMap<String, String> =
            said.iter().map(|(name, text)| (name.to_string(), text.clone())).collect();
        if map.keys().zip(&said).all(|(key, (name, _))| key == name) {
            return map;
        }
    }
}

/// Writes tensors with what PyTorch and torchvision want to find beside them.
pub fn write(
    path: &Path,
    shapes: &[(String, Vec<usize>)],
    about: &ModelMetadata,
    values: TensorValues,
    wrong: ErrorOf,
) -> Result<()> {
    let failed = RefCell::new(None);
    let lazy = |name, shape, dtype| Lazy { name, shape, dtype, values, failed: &failed };
    let mut views = Vec::with_capacity(shapes.len());
    let is_there = |name: &str| shapes.iter().any(|(other, _)| other == name);
    let pairs = |shape: &[usize]| {
        let side = side_of(*shape.first()?, |side| (2 * side - 1).pow(2))?;
        Some([side.pow(4)])
    };
    let tables: Vec<(String, [usize; 1])> = shapes
        .iter()
        .filter_map(|(name, shape)| {
            Some((format!("{}{}", name.strip_suffix(WAYS[0])?, WAYS[1]), pairs(shape)?))
        })
        .collect();
    let tables = tables.iter().filter(|(name, _)| !is_there(name));
    views.extend(tables.map(|(name, shape)| (name.clone(), lazy("", shape, Dtype::I64))));
    for (name, shape) in shapes {
        views.push((name.clone(), lazy(name, shape, Dtype::F32)));
        let counter = name.strip_suffix("running_mean").map(|norm| format!("{norm}{BATCHES}"));
        if let Some(counter) = counter.filter(|counter| !is_there(counter)) {
            views.push((counter, lazy("", &[], Dtype::I64)));
        }
    }
    // The library's file would be for its owner alone, others are as the user wants new files to be.
    let made = std::fs::File::create(path).and_then(|file| file.metadata()).map_err(|e| wrong(&e))?;
    serialize_to_file(views, Some(in_order(about)), path).map_err(|e| wrong(&e))?;
    std::fs::set_permissions(path, made.permissions()).map_err(|e| wrong(&e))?;
    failed.into_inner().map_or(Ok(()), Err)
}
