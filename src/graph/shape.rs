//! Shapes, outermost dimension first; images are (N, C, H, W), cubes (N, C, D, H, W).

use std::fmt;

use crate::config::SampleShape;

/// The extents of a tensor.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Shape(pub Vec<usize>);

/// Depth, height, width of what windows slide over; the depth of images is 1.
pub type Volume = [usize; 3];

/// A shape from its extents.
pub fn dims<const N: usize>(extents: [usize; N]) -> Shape {
    Shape(extents.to_vec())
}

/// Extents without those of 1.
pub fn squeezed(extents: &[usize]) -> Vec<usize> {
    extents.iter().copied().filter(|&extent| extent != 1).collect()
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

    /// (N, C) and (D, H, W) of images or cubes; `None` for any other shape.
    pub fn spatial(&self) -> Option<([usize; 2], Volume)> {
        match self.0[..] {
            [n, c, h, w] => Some(([n, c], [1, h, w])),
            [n, c, d, h, w] => Some(([n, c], [d, h, w])),
            _ => None,
        }
    }

    /// What a network reads of each sample of a batch of images or cubes.
    pub fn sample(&self) -> Option<SampleShape> {
        match self.0[..] {
            [_, c, h, w] => Some(SampleShape::image([c, h, w])),
            [_, c, d, h, w] => Some(SampleShape::cube([c, d, h, w])),
            _ => None,
        }
    }

    /// What of depth, height and width these images or cubes have: images have no depth.
    pub fn along<'a>(&self, of: &'a Volume) -> &'a [usize] {
        &of[5usize.saturating_sub(self.rank()).min(3)..]
    }

    /// As many axes with other extents.
    pub fn with_spatial(&self, first: [usize; 2], size: Volume) -> Shape {
        Shape([&first[..], self.along(&size)].concat())
    }

    /// Of a number for each of so many channels of such images or cubes.
    pub fn of_channels(&self, channels: usize) -> Shape {
        Shape([&[channels], self.along(&[1; 3])].concat())
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
