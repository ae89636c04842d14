//! Tensors put together, taken apart and seen in another shape.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::graph::differentiate::BackwardPass;
use crate::graph::{Builder, MatMul, Node, Op, Shape, TensorId, dims};

/// Axes a permutation may have.
const MOST_AXES: usize = 8;
/// Runs of axes that stay together, of which every device permutes as many at once.
const MOST_RUNS: usize = 4;
/// Numbers of a matrix that picks rows.
const MOST_PLACES: usize = 1 << 22;

/// An order of axes: axis i of the result is axis `axes()[i]` of the operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Permutation {
    order: [u8; MOST_AXES],
    rank: u8,
}

impl Permutation {
    /// Each axis once; `None` for anything else, and for more than eight.
    pub fn new(axes: &[usize]) -> Option<Permutation> {
        let is_whole = axes.len() <= MOST_AXES && (0..axes.len()).all(|axis| axes.contains(&axis));
        let mut order = [0; MOST_AXES];
        order.iter_mut().zip(axes).for_each(|(to, &axis)| *to = axis as u8);
        is_whole.then_some(Permutation { order, rank: axes.len() as u8 })
    }

    /// Which axis of the operand each of the result is.
    pub fn axes(&self) -> Vec<usize> {
        self.order[..usize::from(self.rank)].iter().map(|&axis| usize::from(axis)).collect()
    }

    /// The way back.
    pub fn inverse(&self) -> Permutation {
        let mut order = [0; MOST_AXES];
        self.axes().into_iter().zip(0..).for_each(|(axis, place)| order[axis] = place);
        Permutation { order, rank: self.rank }
    }

    /// How many runs of axes stay together in a tensor of these extents.
    fn runs(&self, extents: &[usize]) -> usize {
        let axes: Vec<usize> = self.axes().into_iter().filter(|&axis| extents[axis] > 1).collect();
        let follows =
            |from: usize, to: usize| from < to && (from + 1..to).all(|between| extents[between] == 1);
        let ends = axes.windows(2).filter(|pair| !follows(pair[0], pair[1])).count();
        ends + usize::from(!axes.is_empty())
    }

    /// The operand's numbers, one an axis, in the order of the result.
    pub fn of(&self, numbers: &[usize]) -> Vec<usize> {
        self.axes().into_iter().map(|axis| numbers[axis]).collect()
    }
}

impl Builder {
    /// Adds a layer that gives the elements in another shape.
    ///
    /// # Errors
    /// `Usage` where that has not as many.
    pub fn reshape(&mut self, name: &str, x: TensorId, shape: Shape) -> Result<TensorId> {
        if shape.elements() != self.shape(x).elements() {
            let from = self.shape(x);
            return Err(Error::usage(format!("layer {name}: {from} cannot become {shape}")));
        }
        Ok(self.node(name, Op::Reshape, vec![x], shape))
    }

    /// x with its axes in this order. Where that is more than a GPU's kernel does at once, axes come to their places
    /// one by one.
    ///
    /// # Errors
    /// `Usage` where that is no order of x's axes.
    pub fn permute(&mut self, name: &str, x: TensorId, axes: &[usize]) -> Result<TensorId> {
        let order =
            Permutation::new(axes).filter(|_| axes.len() == self.shape(x).rank()).ok_or_else(|| {
                Error::usage(format!("layer {name}: {axes:?} is no order of the axes of {}", self.shape(x)))
            })?;
        let shape = Shape(order.of(&self.shape(x).0));
        let moved = (0..axes.len()).find(|&place| axes[place] != place);
        if let Some(place) = moved.filter(|_| order.runs(&self.shape(x).0) > MOST_RUNS) {
            let mut first: Vec<usize> = (0..axes.len()).collect();
            let axis = first.remove(axes[place]);
            first.insert(place, axis);
            let y = self.permute(&format!("{name}.{place}"), x, &first)?;
            let rest: Vec<usize> =
                axes.iter().filter_map(|axis| first.iter().position(|moved| moved == axis)).collect();
            return self.permute(name, y, &rest);
        }
        Ok(self.node(name, Op::Permute(order), vec![x], shape))
    }

    /// Every so many of x's elements along an axis: those at `first`, `first` + `step`, … below `end`.
    ///
    /// # Errors
    /// `Usage` where x has no such elements.
    pub fn every(
        &mut self,
        name: &str,
        x: TensorId,
        axis: usize,
        (range, step): (Range<usize>, usize),
    ) -> Result<TensorId> {
        let extent = self.shape(x).0.get(axis).copied().unwrap_or_default();
        if step <= 1 || range.is_empty() {
            return self.slice(name, x, axis, range);
        }
        let count = range.len().div_ceil(step);
        let end = range.start + count * step;
        let part = |part: &str| format!("{name}.{part}");
        let y = match end.checked_sub(extent) {
            Some(beyond @ 1..) => self.pad(&part("pad"), x, axis, [0, beyond])?,
            _ => x,
        };
        let y = self.slice(&part("part"), y, axis, range.start..end)?;
        let mut apart = self.shape(y).clone();
        apart.0.splice(axis..=axis, [count, step]);
        let y = self.reshape(&part("steps"), y, apart)?;
        let y = self.slice(&part("first"), y, axis + 1, 0..1)?;
        let mut together = self.shape(x).clone();
        together.0[axis] = count;
        self.reshape(name, y, together)
    }

    /// The rows of x (R, C) of these numbers, in their order: (K, C). It is a product with a matrix that has a 1 in
    /// each row.
    ///
    /// # Errors
    /// `Usage` where x has no such rows, or rows and numbers are too many for such a matrix.
    pub fn gather(&mut self, name: &str, x: TensorId, rows: &[usize]) -> Result<TensorId> {
        let rows: Vec<Option<usize>> = rows.iter().copied().map(Some).collect();
        self.place_rows(name, x, &rows)
    }

    /// Rows of x (R, C) at places, (P, C): the row of each place's number, or zeros. The way back of `gather`.
    ///
    /// # Errors
    /// As there.
    pub fn place_rows(&mut self, name: &str, x: TensorId, rows: &[Option<usize>]) -> Result<TensorId> {
        let count = self.shape(x).batch();
        let places = rows.len().checked_mul(count).filter(|&places| places <= MOST_PLACES);
        if self.shape(x).rank() != 2 || places.is_none() || rows.iter().flatten().any(|&row| row >= count) {
            let (shape, rows) = (self.shape(x), rows.len());
            return Err(Error::usage(format!("layer {name}: takes {rows} rows of {shape}")));
        }
        let mut matrix = vec![0.0; rows.len() * count];
        rows.iter().enumerate().for_each(|(place, row)| {
            if let Some(row) = row {
                matrix[place * count + row] = 1.0;
            }
        });
        let matrix = self.constant(&format!("{name}.rows"), dims([rows.len(), count]), &matrix)?;
        self.matmul(name, matrix, x, MatMul { transposed: [false; 2], scale: 1.0 })
    }

    /// A range of x along an axis.
    ///
    /// # Errors
    /// `Usage` where x has no such elements.
    pub fn slice(&mut self, name: &str, x: TensorId, axis: usize, range: Range<usize>) -> Result<TensorId> {
        let mut shape = self.shape(x).clone();
        let fits = |extent: &&mut usize| range.start < range.end && range.end <= **extent;
        *shape.0.get_mut(axis).filter(fits).ok_or_else(|| {
            Error::usage(format!("layer {name}: no {range:?} along axis {axis} of {}", self.shape(x)))
        })? = range.len();
        Ok(self.node(name, Op::Slice { axis, from: range.start }, vec![x], shape))
    }

    /// x with so many zeros before and after it along an axis.
    ///
    /// # Errors
    /// `Usage` where x has no such axis.
    pub fn pad(
        &mut self,
        name: &str,
        x: TensorId,
        axis: usize,
        [before, after]: [usize; 2],
    ) -> Result<TensorId> {
        let mut shape = self.shape(x).clone();
        let extent = shape.0.get_mut(axis);
        *extent.ok_or_else(|| Error::usage(format!("layer {name}: no axis {axis}")))? += before + after;
        Ok(self.node(name, Op::Pad { axis, before }, vec![x], shape))
    }

    /// Several tensors one after the other along an axis.
    ///
    /// # Errors
    /// `Usage` where they differ along another axis.
    pub fn concat_along(&mut self, name: &str, axis: usize, parts: &[TensorId]) -> Result<TensorId> {
        let shapes: Vec<Vec<usize>> = parts.iter().map(|&part| self.shape(part).0.clone()).collect();
        let mut shape = shapes.first().cloned().unwrap_or_default();
        let others = |shape: &[usize]| {
            shape.iter().enumerate().all(|(i, &e)| i == axis || shapes[0].get(i) == Some(&e))
        };
        if axis >= shape.len() || !shapes.iter().all(|of| of.len() == shape.len() && others(of)) {
            return Err(Error::usage(format!(
                "layer {name}: cannot put {shapes:?} together along axis {axis}"
            )));
        }
        shape[axis] = shapes.iter().map(|of| of[axis]).sum();
        Ok(self.node(name, Op::Concat { axis }, parts.to_vec(), Shape(shape)))
    }

    /// Channels in another order: the first of each of so many groups, then the second of each, … (Zhang, Zhou, Lin,
    /// Sun 2018).
    ///
    /// # Errors
    /// `Usage` where the channels do not divide into groups.
    pub fn channel_shuffle(&mut self, name: &str, x: TensorId, groups: usize) -> Result<TensorId> {
        let (([n, c], size), shape) = (self.image_shape(name, x)?, self.shape(x).clone());
        let places = size.iter().product();
        let y = self.reshape(&format!("{name}.groups"), x, dims([n, groups, c / groups, places]))?;
        let y = self.permute(&format!("{name}.permute"), y, &[0, 2, 1, 3])?;
        self.reshape(name, y, shape)
    }

    /// (N, …) → (N, everything else).
    pub fn flatten(&mut self, name: &str, x: TensorId) -> TensorId {
        let shape = dims([self.shape(x).batch(), self.shape(x).per_sample()]);
        self.node(name, Op::Reshape, vec![x], shape)
    }

    /// The channels of several images of one size, one after the other.
    pub fn concat(&mut self, name: &str, parts: &[TensorId]) -> Result<TensorId> {
        parts.iter().try_for_each(|&part| self.image_shape(name, part).map(|_| ()))?;
        self.concat_along(name, 1, parts)
    }

    /// The elementwise sum of two tensors of one shape.
    pub fn add(&mut self, name: &str, a: TensorId, b: TensorId) -> Result<TensorId> {
        if self.shape(a) != self.shape(b) {
            return Err(Error::usage(format!("{name}: {} + {}", self.shape(a), self.shape(b))));
        }
        let shape = self.shape(a).clone();
        Ok(self.node(name, Op::Add { relu: false }, vec![a, b], shape))
    }
}

pub fn add_backward(b: &mut BackwardPass, node: &Node, relu: bool, mut dy: TensorId) {
    if relu {
        dy = b.relu(node, dy);
    }
    // One may be a parameter.
    b.contribute_sum(node.inputs[1], dy, 1.0);
    b.contribute_sum(node.inputs[0], dy, 1.0);
}

/// Each input of a concatenation gets its part of the gradient.
pub fn concat_backward(b: &mut BackwardPass, node: &Node, axis: usize, dy: TensorId) {
    let mut from = 0;
    for &part in &node.inputs {
        if b.needs(part) {
            let gradient = b.node(Op::Slice { axis, from }, vec![dy], part);
            b.contribute(part, gradient);
        }
        from += b.graph.tensor(part).spec.shape.0[axis];
    }
}
