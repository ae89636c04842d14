//! Arithmetic of two tensors of which either may be stretched over the other as numpy has it, and what takes that
//! back: sums over axes.

use crate::error::{Error, Result};
use crate::graph::differentiate::BackwardPass;
use crate::graph::{Builder, DType, Node, Op, Role, Shape, TensorId};

/// What is done with two numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Binary {
    /// a + b
    Add,
    /// a − b
    Subtract,
    /// a·b
    Multiply,
    /// a/b
    Divide,
}

impl Binary {
    /// One of each, in the order in which kernels number them.
    pub const ALL: [Binary; 4] = [Binary::Add, Binary::Subtract, Binary::Multiply, Binary::Divide];

    /// The name shown in tables.
    pub fn name(self) -> &'static str {
        match self {
            Binary::Add => "stretched add",
            Binary::Subtract => "subtract",
            Binary::Multiply => "multiply",
            Binary::Divide => "divide",
        }
    }

    /// The op of two numbers.
    pub fn of(self, a: f32, b: f32) -> f32 {
        match self {
            Binary::Add => a + b,
            Binary::Subtract => a - b,
            Binary::Multiply => a * b,
            Binary::Divide => a / b,
        }
    }
}

/// The shape that two shapes are stretched to: aligned at their last axes, an axis of 1 or none takes the other's.
fn stretched(a: &Shape, b: &Shape) -> Option<Shape> {
    let rank = a.rank().max(b.rank());
    let [a, b] = [a, b].map(|shape| shape.with_rank(rank));
    let along = |axis: usize| match [a[axis], b[axis]] {
        [a, b] if a == b || b == 1 => Some(a),
        [1, b] => Some(b),
        _ => None,
    };
    (0..rank).map(along).collect::<Option<Vec<usize>>>().map(Shape)
}

impl Builder {
    /// a ∘ b for each pair of elements, either stretched over the other along axes where it has 1 or none.
    ///
    /// # Errors
    /// `Usage` where the shapes cannot be stretched over each other.
    pub fn binary(&mut self, name: &str, of: Binary, a: TensorId, b: TensorId) -> Result<TensorId> {
        if of == Binary::Add && self.shape(a) == self.shape(b) {
            return self.add(name, a, b);
        }
        let shape = stretched(self.shape(a), self.shape(b)).ok_or_else(|| {
            let [a, b] = [a, b].map(|id| self.shape(id));
            Error::usage(format!("layer {name}: {a} and {b} cannot be stretched over each other"))
        })?;
        Ok(self.node(name, Op::Binary(of), vec![a, b], shape))
    }

    /// `scale` times the sum over these axes, which stay with one element each. A mean has one over their elements.
    ///
    /// # Errors
    /// `Usage` where x has no such axis.
    pub fn sum(&mut self, name: &str, x: TensorId, axes: &[usize], scale: f32) -> Result<TensorId> {
        let mut shape = self.shape(x).clone();
        for &axis in axes {
            let extent = shape.0.get_mut(axis);
            *extent.ok_or_else(|| Error::usage(format!("layer {name}: no axis {axis}")))? = 1;
        }
        Ok(self.node(name, Op::Sum { scale }, vec![x], shape))
    }

    /// x times a number.
    pub fn scaled(&mut self, name: &str, x: TensorId, scale: f32) -> TensorId {
        let shape = self.shape(x).clone();
        self.node(name, Op::Expand { scale }, vec![x], shape)
    }

    /// x stretched to a shape.
    ///
    /// # Errors
    /// `Usage` where it cannot be.
    pub fn expand(&mut self, name: &str, x: TensorId, shape: Shape) -> Result<TensorId> {
        if stretched(self.shape(x), &shape).as_ref() != Some(&shape) {
            let from = self.shape(x);
            return Err(Error::usage(format!("layer {name}: {from} cannot be stretched to {shape}")));
        }
        Ok(self.node(name, Op::Expand { scale: 1.0 }, vec![x], shape))
    }
}

impl BackwardPass {
    /// Adds `scale` times `gradient`, summed over the axes along which `of` was stretched, to what is known of the
    /// gradient of `of`, which may be a parameter.
    pub fn contribute_sum(&mut self, of: TensorId, gradient: TensorId, scale: f32) {
        let is_parameter = self.graph.tensor(of).role == Role::Parameter;
        if !self.needs(of) {
            return;
        }
        let [to, from] = [of, gradient].map(|id| &self.graph.tensor(id).spec);
        if !is_parameter && to == from && scale == 1.0 {
            return self.contribute(of, gradient);
        }
        // What is stored has a gradient in f32, which is what sums are.
        let widens = to.dtype == DType::F32 && from.dtype != DType::F32;
        let op = match !is_parameter && !widens && to.shape == from.shape {
            true => Op::Expand { scale },
            false => Op::Sum { scale },
        };
        let sum = match is_parameter {
            true => self.graph.gradient_of(of),
            false => self.graph.gradient_like(of),
        };
        self.push(op, vec![gradient], vec![sum]);
        if !is_parameter {
            self.contribute(of, sum);
        }
    }
}

pub fn binary_backward(b: &mut BackwardPass, node: &Node, of: Binary, dy: TensorId) {
    let ([first, second], y) = ([node.inputs[0], node.inputs[1]], node.outputs[0]);
    let of_both =
        |b: &mut BackwardPass, kind: Binary, by: TensorId| b.node(Op::Binary(kind), vec![dy, by], y);
    match of {
        Binary::Add | Binary::Subtract => {
            b.contribute_sum(second, dy, if of == Binary::Add { 1.0 } else { -1.0 });
            b.contribute_sum(first, dy, 1.0);
        }
        Binary::Multiply => {
            for (of, by) in [(second, first), (first, second)] {
                if b.needs(of) {
                    let gradient = of_both(b, Binary::Multiply, by);
                    b.contribute_sum(of, gradient, 1.0);
                }
            }
        }
        // d(a/b) = da/b − db·(a/b)/b
        Binary::Divide => {
            if b.needs(second) {
                let product = of_both(b, Binary::Multiply, y);
                let gradient = b.node(Op::Binary(Binary::Divide), vec![product, second], y);
                b.contribute_sum(second, gradient, -1.0);
            }
            if b.needs(first) {
                let gradient = of_both(b, Binary::Divide, second);
                b.contribute_sum(first, gradient, 1.0);
            }
        }
    }
}
