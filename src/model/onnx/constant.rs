//! Values that are known before anything runs: what exporters write to compute shapes, masks and places. They are
//! computed when a network is imported, for its batch and image (`fold`).

use ndarray::{ArrayD, IxDyn};

use super::tensor::{OnnxTensor, Reason};

/// Numbers of more than this are weights, and nothing is computed from them. It also limits what a file can make of
/// few bytes.
pub const MOST: usize = 1 << 20;

/// A small tensor with its numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct ConstantTensor {
    /// How many elements each axis has; none for a single number.
    pub dims: Vec<usize>,
    /// Last dimension fastest.
    pub numbers: ConstantValues,
}

/// Integers or real numbers.
#[derive(Debug, Clone, PartialEq)]
pub enum ConstantValues {
    /// Integers of any width.
    Integers(Vec<i64>),
    /// Real numbers of any width, as f32.
    Reals(Vec<f32>),
}

use ConstantValues::{Integers, Reals};

impl ConstantTensor {
    /// Integers in a row, as shapes are.
    pub fn row(numbers: Vec<i64>) -> ConstantTensor {
        ConstantTensor { dims: vec![numbers.len()], numbers: Integers(numbers) }
    }

    /// The numbers of a tensor of the file.
    pub fn of(tensor: &OnnxTensor) -> Result<ConstantTensor, Reason> {
        if count(&tensor.dims).is_none() {
            return Err(format!("computes with constants of the shape {:?}", tensor.dims));
        }
        let numbers = if tensor.is_real() { Reals(tensor.reals()?) } else { Integers(tensor.integers()?) };
        Ok(ConstantTensor { dims: tensor.dims.clone(), numbers })
    }

    /// Its integers.
    pub fn integers(&self) -> Result<&[i64], Reason> {
        match &self.numbers {
            Integers(integers) => Ok(integers),
            Reals(_) => Err("has real numbers where integers belong".into()),
        }
    }

    /// Its numbers, whatever they are.
    pub fn reals(&self) -> Vec<f32> {
        match &self.numbers {
            Integers(integers) => integers.iter().map(|&number| number as f32).collect(),
            Reals(reals) => reals.clone(),
        }
    }

    /// The one number that it has.
    pub fn single(&self) -> Option<f32> {
        if self.len() != 1 {
            return None;
        }
        self.reals().first().copied()
    }

    /// How many numbers it has.
    pub fn len(&self) -> usize {
        match &self.numbers {
            Integers(integers) => integers.len(),
            Reals(reals) => reals.len(),
        }
    }

    /// The places of its elements, in its shape: what moves them moves the elements.
    pub fn places(&self) -> Option<ArrayD<usize>> {
        places(&self.dims)
    }

    /// The elements at these places.
    pub fn at(&self, places: impl IntoIterator<Item = usize>, dims: Vec<usize>) -> Option<ConstantTensor> {
        fn pick<T: Copy>(from: &[T], places: impl IntoIterator<Item = usize>) -> Option<Vec<T>> {
            places.into_iter().map(|place| from.get(place).copied()).collect()
        }
        let numbers = match &self.numbers {
            Integers(integers) => Integers(pick(integers, places)?),
            Reals(reals) => Reals(pick(reals, places)?),
        };
        Some(ConstantTensor { dims, numbers })
    }

    /// Stretched to a shape as numpy does it.
    pub fn stretched(&self, dims: &[usize]) -> Option<ConstantTensor> {
        count(dims)?;
        self.at(self.places()?.broadcast(IxDyn(dims))?.iter().copied(), dims.to_vec())
    }

    /// The numbers of several in a row: integers where all have them.
    pub fn chained(parts: &[&ConstantTensor]) -> ConstantTensor {
        let integers: Result<Vec<&[i64]>, _> = parts.iter().map(|part| part.integers()).collect();
        match integers {
            Ok(parts) => ConstantTensor::row(parts.concat()),
            Err(_) => {
                let reals: Vec<f32> = parts.iter().flat_map(|part| part.reals()).collect();
                ConstantTensor { dims: vec![reals.len()], numbers: Reals(reals) }
            }
        }
    }
}

/// 0, 1, 2, … in a shape.
pub fn places(dims: &[usize]) -> Option<ArrayD<usize>> {
    ArrayD::from_shape_vec(IxDyn(dims), (0..count(dims)?).collect()).ok()
}

/// How many elements a shape has; `None` for more than are computed with, also in a part of the axes of a shape that
/// has none.
pub fn count(dims: &[usize]) -> Option<usize> {
    let most = dims.iter().try_fold(1usize, |a, &b| a.checked_mul(b.max(1)));
    most.filter(|&most| most <= MOST).map(|_| dims.iter().product())
}

/// The shape that all of these are stretched to.
pub fn common(shapes: &[&[usize]]) -> Option<Vec<usize>> {
    let rank = shapes.iter().map(|shape| shape.len()).max()?;
    let along = |axis: usize| {
        let extents = shapes.iter().filter_map(|shape| Some(shape[axis.checked_sub(rank - shape.len())?]));
        extents.into_iter().try_fold(1, |all, extent| match (all, extent) {
            (1, extent) => Some(extent),
            (all, 1) => Some(all),
            (all, extent) => (all == extent).then_some(all),
        })
    };
    (0..rank).map(along).collect()
}

/// An axis counted from the front.
pub fn from_front(axis: i64, rank: usize) -> Option<usize> {
    let axis = if axis < 0 { axis.checked_add(rank as i64)? } else { axis };
    usize::try_from(axis).ok().filter(|&axis| axis < rank)
}

/// Extents with further ones of 1 at these places.
pub fn unsqueezed(dims: &[usize], axes: &[i64]) -> Option<Vec<usize>> {
    let rank = dims.len() + axes.len();
    let new: Option<Vec<usize>> = axes.iter().map(|&axis| from_front(axis, rank)).collect();
    let new = new?;
    let mut old = dims.iter();
    (0..rank).map(|axis| if new.contains(&axis) { Some(1) } else { old.next().copied() }).collect()
}

/// Extents without those of 1 at these places; without all of them where no place is named.
pub fn squeezed(dims: &[usize], axes: &[i64]) -> Option<Vec<usize>> {
    let gone: Option<Vec<usize>> = axes.iter().map(|&axis| from_front(axis, dims.len())).collect();
    let gone = gone?;
    let goes = |axis: usize| if axes.is_empty() { dims[axis] == 1 } else { gone.contains(&axis) };
    let sound = (0..dims.len()).all(|axis| !goes(axis) || dims[axis] == 1);
    sound.then(|| (0..dims.len()).filter(|&axis| !goes(axis)).map(|axis| dims[axis]).collect())
}

/// The extents that `Reshape` makes of a shape: 0 keeps the extent that is there, unless zeros are `literal`, and −1
/// takes what is left.
pub fn reshaped(before: &[usize], wanted: &[i64], literal: bool) -> Option<Vec<usize>> {
    let kept = |(axis, &extent): (usize, &i64)| match extent {
        0 if !literal => before.get(axis).map(|&extent| extent as i64),
        extent => Some(extent),
    };
    let wanted: Vec<i64> = wanted.iter().enumerate().map(kept).collect::<Option<_>>()?;
    let all = before.iter().try_fold(1i64, |a, &b| a.checked_mul(b as i64))?;
    let known = wanted.iter().filter(|&&extent| extent != -1).try_fold(1i64, |a, &b| a.checked_mul(b))?;
    let rest = if wanted.contains(&-1) { all.checked_div(known)? } else { 1 };
    let dims = wanted.iter().map(|&extent| usize::try_from(if extent == -1 { rest } else { extent }).ok());
    let dims: Vec<usize> = dims.collect::<Option<_>>()?;
    let sound = dims.iter().try_fold(1i64, |a, &b| a.checked_mul(b as i64)) == Some(all)
        && wanted.iter().filter(|&&extent| extent == -1).count() <= 1;
    sound.then_some(dims)
}

/// What `Slice` takes along an axis of this length: the first element, how far on the next one is, and how many there
/// are. A step of 0 takes none.
pub fn taken(length: usize, start: i64, end: i64, step: i64) -> (usize, i64, usize) {
    let length = length as i64;
    let from_end = |at: i64| if at < 0 { at.saturating_add(length) } else { at };
    let (first, room) = match step {
        1.. => {
            let first = from_end(start).clamp(0, length);
            (first, from_end(end).clamp(0, length) - first)
        }
        _ => {
            let first = from_end(start).clamp(-1, length - 1);
            (first, first - from_end(end).clamp(-1, length - 1))
        }
    };
    match usize::try_from(room) {
        Ok(room) if room > 0 && step != 0 => {
            (first as usize, step, room.div_ceil(usize::try_from(step.unsigned_abs()).unwrap_or(usize::MAX)))
        }
        _ => (0, 1, 0),
    }
}
