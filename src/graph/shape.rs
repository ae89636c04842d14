//! Shapes, outermost dimension first; images are (N, C, H, W).

use std::fmt;

/// The extents of a tensor.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Shape(pub Vec<usize>);

/// A shape from its extents.
pub fn dims<const N: usize>(extents: [usize; N]) -> Shape {
    Shape(extents.to_vec())
}

impl Shape {
    /// The number of elements; 1 for a scalar. The largest number there is where they are more
    /// (`Graph::within_limits` refuses such tensors).
    pub fn elements(&self) -> usize {
        product(&self.0)
    }

    /// How many axes it has.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// Its extents with axes of 1 before them, so many in all.
    pub fn with_rank(&self, rank: usize) -> Vec<usize> {
        let before = rank.saturating_sub(self.rank());
        std::iter::repeat_n(1, before).chain(self.0.iter().copied()).collect()
    }

    /// (N, C, H, W) of a four-dimensional shape; `None` for any other.
    pub fn nchw(&self) -> Option<[usize; 4]> {
        self.0.as_slice().try_into().ok()
    }

    /// Elements of one sample: everything but the first dimension.
    pub fn per_sample(&self) -> usize {
        product(self.0.get(1..).unwrap_or_default())
    }

    /// Channels of what a network gives: (N,C,…); one where a sample is a single number.
    pub fn channels(&self) -> usize {
        self.0.get(1).copied().unwrap_or(1)
    }

    /// The first dimension, which for activations is the batch.
    pub fn batch(&self) -> usize {
        self.0.first().copied().unwrap_or(1)
    }
}

fn product(extents: &[usize]) -> usize {
    extents.iter().fold(1, |all, &extent| all.saturating_mul(extent))
}

impl fmt::Display for Shape {
    /// As printed in tables: "128×32×28×28".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let extents: Vec<String> = self.0.iter().map(usize::to_string).collect();
        f.pad(&extents.join("×"))
    }
}
