//! Normalisation: batch normalisation in two halves, moments and what is done with them, which a device may fuse; and
//! local response normalisation.

use crate::error::{Error, Result};
use crate::graph::differentiate::BackwardPass;
use crate::graph::{BackwardOp, Builder, DType, Init, Node, Op, Role, Rows, Shape, TensorId, dims};

/// Batch normalisation (Ioffe and Szegedy 2015) over N and all places, for each channel by itself.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BatchNorm {
    /// Added to the variance.
    pub epsilon: f32,
    /// The share of the newest batch in the running statistics: running = (1 − momentum)·running + momentum·batch.
    pub momentum: f32,
    /// Whether a ReLU is applied to the output (put there by `simplify`).
    pub relu: bool,
    /// Whether another tensor is added before that ReLU (put there by `fuse`, with `relu`).
    pub add: bool,
    /// Whether the moments, and backward the sums, are an input: a convolution gave them (`fuse`), or ranks share them
    /// (`synchronise`).
    pub given: bool,
    /// Where images are cut by rows over ranks: how those of the input are (put there by `split_rows`).
    pub rows: Option<Rows>,
    /// How many ranks have the same input: those that have all rows of the same images.
    pub copies: usize,
}

impl Default for BatchNorm {
    /// PyTorch's numbers.
    fn default() -> BatchNorm {
        BatchNorm {
            epsilon: 1e-5,
            momentum: 0.1,
            relu: false,
            add: false,
            given: false,
            rows: None,
            copies: 1,
        }
    }
}

impl Builder {
    /// Batch normalisation. Parameters `name.weight` and `name.bias`, statistics `name.running_mean` and
    /// `name.running_var`.
    ///
    /// # Errors
    /// `Usage` when there is only one value a channel: its variance says nothing to a training.
    pub fn batch_norm(&mut self, name: &str, x: TensorId, norm: BatchNorm) -> Result<TensorId> {
        let ([_, c], _) = self.image_shape(name, x)?;
        let shape = self.shape(x).clone();
        self.enough_values(name, &shape)?;
        let weight = self.parameter(format!("{name}.weight"), dims([c]), Init::One, false);
        let bias = self.bias(name, c, Init::Zero);
        let [mean, variance] =
            [("running_mean", Init::Zero), ("running_var", Init::One)].map(|(of, init)| {
                let id = self.tensor(&format!("{name}.{of}"), dims([c]), DType::F32, Role::Statistic);
                self.tensors[id.0].init = Some(init);
                id
            });
        let y = self.node(name, Op::BatchNorm(norm), vec![x, weight, bias, mean, variance], shape);
        let of_batch = ["mean", "variance"]
            .map(|of| self.tensor(&format!("{name}.{of}"), dims([c]), DType::F32, Role::Activation));
        let more = of_batch.into_iter().chain([mean, variance]);
        self.nodes.last_mut().expect("the node just added").outputs.extend(more);
        Ok(y)
    }

    pub(in crate::graph) fn enough_values(&self, name: &str, shape: &Shape) -> Result<()> {
        let (n, size) = (shape.batch(), Shape(shape.0.get(2..).unwrap_or_default().to_vec()));
        if self.trains && n * size.elements() < 2 {
            return Err(Error::usage(format!(
                "model {}: layer {name} would normalise over a single value a channel (batch {n}, size {size}); \
                 use --batch 2 or more, or larger samples",
                self.name
            )));
        }
        Ok(())
    }
}

/// Numbers of each channel that ranks tell each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormStatistics {
    /// Mean and variance.
    Moments,
    /// Sums over gradients.
    Sums,
}

impl NormStatistics {
    /// Makes what ranks with unlike many rows have told each other, a row of `all` a rank, what ranks with as many
    /// would have: means and variances are those of all rows, and sums are stretched as this rank's number of rows is
    /// from its even share.
    pub fn even_out(self, rows: Rows, all: &mut [f32], ranks: usize) {
        if rows.are_even() || ranks == 0 {
            return;
        }
        let weight = |rank: usize| rows.of(rank % rows.parts).len() as f64;
        let (length, whole) = (all.len() / ranks, (0..ranks).map(weight).sum::<f64>());
        match self {
            NormStatistics::Sums => {
                let factor = ranks as f64 * rows.own().len() as f64 / whole;
                all.iter_mut().for_each(|sum| *sum = (f64::from(*sum) * factor) as f32);
            }
            NormStatistics::Moments => {
                for channel in 0..length / 2 {
                    let of = |rank: usize, which: usize| {
                        f64::from(all[rank * length + which * (length / 2) + channel])
                    };
                    let mean = (0..ranks).map(|rank| weight(rank) * of(rank, 0)).sum::<f64>() / whole;
                    let spread = |rank: usize| weight(rank) * (of(rank, 1) + (of(rank, 0) - mean).powi(2));
                    let variance = (0..ranks).map(spread).sum::<f64>() / whole;
                    for rank in 0..ranks {
                        all[rank * length + channel] = mean as f32;
                        all[rank * length + length / 2 + channel] = variance as f32;
                    }
                }
            }
        }
    }
}

impl BatchNorm {
    /// The name shown in tables.
    pub fn name(&self) -> &'static str {
        match (self.add, self.relu) {
            (true, _) => "batch norm+add+relu",
            (false, true) => "batch norm+relu",
            (false, false) => "batch norm",
        }
    }

    /// How many values of a channel so many ranks have together, of which this one has `own`: unlike many where rows do
    /// not divide evenly, and some of them the same ones.
    pub fn values(&self, ranks: usize, own: usize) -> usize {
        match self.rows {
            Some(rows) => own / rows.own().len() * (ranks / rows.parts) * rows.height,
            None => ranks * own / self.copies.min(ranks),
        }
    }

    /// That of its backward op.
    pub fn backward_name(&self) -> &'static str {
        if self.add { "batch norm+add+relu backward" } else { "batch norm backward" }
    }
}

/// The one node that gives the gradients of the input, the weight and the bias; with given moments the sums, their
/// exchange and the gradient of the input.
pub fn batch_norm_backward(b: &mut BackwardPass, node: &Node, norm: BatchNorm, dy: TensorId) {
    let (x, weights) = (node.inputs[0], &node.inputs[1..3]);
    let gradients = b.graph.gradients_of(weights);
    let dx = if norm.given {
        b.graph.sync_norm_backward(b.id, norm, dy, &gradients)
    } else {
        let mut inputs = vec![dy, x, weights[0], node.outputs[1], node.outputs[2]];
        // What a ReLU in it saved comes after the running statistics.
        inputs.extend(node.outputs.get(5));
        let dx = b.graph.gradient_like(x);
        b.push(BackwardOp::BatchNorm(norm), inputs, [&[dx], &gradients[..]].concat());
        dx
    };
    b.contribute_to(weights, &gradients);
    b.contribute(x, dx);
}

/// Local response normalisation across channels (Krizhevsky, Sutskever, Hinton 2012), in PyTorch's terms.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LocalResponseNorm {
    /// How many neighbouring channels are summed, the channel itself in their middle: odd.
    pub size: usize,
    /// Divided by `size` before use.
    pub alpha: f32,
    /// The exponent.
    pub beta: f32,
    /// Added to the sum of squares.
    pub k: f32,
}

impl Default for LocalResponseNorm {
    /// PyTorch's numbers, five channels.
    fn default() -> LocalResponseNorm {
        LocalResponseNorm { size: 5, alpha: 1e-4, beta: 0.75, k: 1.0 }
    }
}

impl Builder {
    /// Local response normalisation.
    pub fn local_response_norm(
        &mut self,
        name: &str,
        x: TensorId,
        norm: LocalResponseNorm,
    ) -> Result<TensorId> {
        self.image_shape(name, x)?;
        if self.shape(x).rank() > 4 {
            return Err(Error::usage(format!("layer {name}: is for images, got {}", self.shape(x))));
        }
        if norm.size.is_multiple_of(2) {
            return Err(Error::usage(format!("layer {name}: {} channels have no middle", norm.size)));
        }
        let shape = self.shape(x).clone();
        Ok(self.saving_node(name, Op::LocalResponseNorm(norm), x, shape))
    }
}

pub fn local_response_backward(b: &mut BackwardPass, node: &Node, norm: LocalResponseNorm, dy: TensorId) {
    b.simple(node, BackwardOp::LocalResponseNorm(norm), vec![dy, node.inputs[0], node.outputs[1]]);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two groups of three ranks with 3, 2 and 2 rows of a value each: what all of them find is what is found in all
    /// rows.
    #[test]
    fn ranks_with_unlike_many_rows_come_to_what_all_rows_have() {
        let values = [[1.0, 4.0, 2.0, 8.0, 5.0, 7.0, 3.0], [2.0, 9.0, 4.0, 1.0, 6.0, 3.0, 5.0]];
        let moments = |values: &[f64]| {
            let mean = values.iter().sum::<f64>() / values.len() as f64;
            let squares: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
            [mean, squares / values.len() as f64]
        };
        let place = |place| Rows { height: 7, parts: 3, place };
        let groups = values.iter().flat_map(|of| (0..3).map(move |at| moments(&of[place(at).own()])));
        let told: Vec<f32> = groups.flatten().map(|number| number as f32).collect();
        let whole = moments(&values.concat());
        for own in 0..3 {
            let mut all = told.clone();
            NormStatistics::Moments.even_out(place(own), &mut all, 6);
            for rank in all.chunks(2) {
                assert!(
                    rank.iter().zip(whole).all(|(&found, exact)| (f64::from(found) - exact).abs() < 1e-6)
                );
            }
            // Σ over all values, divided by as many as six ranks like this one would have.
            let mut sums = vec![1.0, 2.0, 4.0, 8.0, 16.0, 32.0];
            NormStatistics::Sums.even_out(place(own), &mut sums, 6);
            let (as_many, of_all) = (6 * place(own).own().len(), 14);
            let mean = f64::from(sums.iter().sum::<f32>()) / as_many as f64;
            assert!((mean - 63.0 / f64::from(of_all)).abs() < 1e-6);
        }
    }
}
