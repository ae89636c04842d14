//! Products of matrices that a batch gives on both sides, softmax, and attention, which is made of them.

use crate::error::{Error, Result};
use crate::graph::differentiate::BackwardPass;
use crate::graph::{Builder, Node, Op, Shape, TensorId, dims};

/// scale·A·B for each matrix of a batch; an operand may be kept transposed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MatMul {
    /// Whether a, b hold the transposes of A, B.
    pub transposed: [bool; 2],
    /// What the product is multiplied with.
    pub scale: f32,
}

impl MatMul {
    /// (matrices, rows, inner, columns) of a product; `None` where the operands do not fit.
    pub fn extents(&self, a: &Shape, b: &Shape) -> Option<[usize; 4]> {
        let cut = a.rank().checked_sub(2)?;
        let matrix = |of: &Shape, transposed: bool| {
            let [rows, columns]: [usize; 2] = of.0.get(cut..)?.try_into().ok()?;
            Some(if transposed { [columns, rows] } else { [rows, columns] })
        };
        let ([rows, inner], [again, columns]) =
            (matrix(a, self.transposed[0])?, matrix(b, self.transposed[1])?);
        let fits = a.0[..cut] == b.0[..cut] && inner == again;
        fits.then(|| [a.0[..cut].iter().product(), rows, inner, columns])
    }
}

impl Builder {
    /// The product of each pair of matrices, the last two axes of a and b; all axes before them are alike.
    ///
    /// # Errors
    /// `Usage` where they do not fit.
    pub fn matmul(&mut self, name: &str, a: TensorId, b: TensorId, of: MatMul) -> Result<TensorId> {
        let [x, z] = [a, b].map(|id| self.shape(id));
        let [_, rows, _, columns] = of
            .extents(x, z)
            .ok_or_else(|| Error::usage(format!("layer {name}: no product of {x} and {z}")))?;
        let mut shape = x.clone();
        shape.0.truncate(x.rank() - 2);
        shape.0.extend([rows, columns]);
        Ok(self.node(name, Op::MatMul(of), vec![a, b], shape))
    }

    /// e^x over its sum along the last axis.
    pub fn softmax(&mut self, name: &str, x: TensorId) -> TensorId {
        let shape = self.shape(x).clone();
        self.node(name, Op::Softmax, vec![x], shape)
    }

    /// Scaled dot-product attention of several heads (Vaswani et al. 2017): of rows (N·L, 3·D) that hold queries, keys
    /// and values of sequences of `length`; gives (N·L, D).
    ///
    /// # Errors
    /// `Usage` where lengths or heads do not divide.
    pub fn attention(&mut self, name: &str, x: TensorId, length: usize, heads: usize) -> Result<TensorId> {
        self.attention_with(name, x, length, heads, |_, scores| Ok(scores))
    }

    /// Attention with something done to the scores (sequences, heads, length, length) before the softmax.
    ///
    /// # Errors
    /// As above, and those of what is done.
    pub fn attention_with(
        &mut self,
        name: &str,
        x: TensorId,
        length: usize,
        heads: usize,
        change: impl FnOnce(&mut Builder, TensorId) -> Result<TensorId>,
    ) -> Result<TensorId> {
        let part = |part: &str| format!("{name}.{part}");
        let (rows, width) = (self.shape(x).batch(), self.shape(x).per_sample() / 3);
        if length * heads == 0 || !rows.is_multiple_of(length) || !width.is_multiple_of(heads) {
            let shape = self.shape(x);
            return Err(Error::usage(format!(
                "layer {name}: {shape} is no {heads} heads of length {length}"
            )));
        }
        let split = dims([rows / length, length, heads, width / heads]);
        let mut of_head = |which: usize, what: &str| {
            let range = which * width..(which + 1) * width;
            let y = self.slice(&part(what), x, 1, range)?;
            let y = self.reshape(&part(&format!("{what}.heads")), y, split.clone())?;
            self.permute(&part(&format!("{what}.permute")), y, &[0, 2, 1, 3])
        };
        let (q, k, v) = (of_head(0, "query")?, of_head(1, "key")?, of_head(2, "value")?);
        let scale = 1.0 / ((width / heads) as f32).sqrt();
        let y = self.matmul(&part("scores"), q, k, MatMul { transposed: [false, true], scale })?;
        let y = change(self, y)?;
        let y = self.softmax(&part("softmax"), y);
        let y = self.matmul(&part("weighted"), y, v, MatMul { transposed: [false; 2], scale: 1.0 })?;
        let y = self.permute(&part("permute"), y, &[0, 2, 1, 3])?;
        self.reshape(&part("joined"), y, dims([rows, width]))
    }
}

/// With y = s·A·B: dA = s·dy·Bᵀ and dB = s·Aᵀ·dy, or the transposes of these where the operands are.
pub fn backward(b: &mut BackwardPass, node: &Node, of: MatMul, dy: TensorId) {
    let ([first, second], [ta, tb]) = ([node.inputs[0], node.inputs[1]], of.transposed);
    let of_first = if ta { ([second, dy], [tb, true]) } else { ([dy, second], [false, !tb]) };
    let of_second = if tb { ([dy, first], [true, ta]) } else { ([first, dy], [!ta, false]) };
    for (operand, (inputs, transposed)) in [(second, of_second), (first, of_first)] {
        if b.needs(operand) {
            let op = Op::MatMul(MatMul { transposed, ..of });
            let gradient = b.node(op, inputs.to_vec(), operand);
            b.contribute(operand, gradient);
        }
    }
}
