//! Images in another size: every element of the result is a sum of shares of neighbours along each axis, which is a
//! product with a fixed matrix along each.

use crate::error::{Error, Result};
use crate::graph::{Builder, MatMul, TensorId, Volume, dims};

/// Numbers of such a matrix at most.
const MOST_SHARES: usize = 1 << 20;

/// Where an element of the result lies among those of the operand. With i its number, s how many times longer the
/// result is, and n and m the lengths:
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ResizeCoordinates {
    /// (i + ½)/s − ½: an element is the middle of a pixel.
    HalfPixel,
    /// As `HalfPixel`, and 0 where the result has one element.
    HalfPixelOrFirst,
    /// As `HalfPixel`, around the middle of the image where its new length is cut to whole elements.
    HalfPixelAroundMiddle,
    /// i·(n − 1)/(m − 1): the first and the last stay where they are.
    Corners,
    /// i/s
    Asymmetric,
}

/// How a number is read between elements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Interpolation {
    /// The element at the place rounded down.
    Below,
    /// The element at the place rounded up.
    Above,
    /// The nearest element, of two equally near ones the one before.
    NearestBelow,
    /// The nearest element, of two equally near ones the one behind.
    NearestAbove,
    /// The mean of the two around it, the nearer the more.
    Linear,
    /// The mean of the four around it by the cubic convolution of Keys 1981 with this a. With `inside` the first and
    /// the last do not stand for what would be beyond them.
    Cubic {
        /// Keys's −½, or PyTorch's −¾.
        a: f64,
        /// Whether only elements that are there have shares.
        inside: bool,
    },
}

/// How an axis gets another length.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Resize {
    /// Where elements lie.
    pub places: ResizeCoordinates,
    /// What is there.
    pub reading: Interpolation,
}

impl Resize {
    /// PyTorch's `nearest`.
    pub const NEAREST: Resize =
        Resize { places: ResizeCoordinates::Asymmetric, reading: Interpolation::Below };
    /// PyTorch's `bilinear`.
    pub const BILINEAR: Resize =
        Resize { places: ResizeCoordinates::HalfPixel, reading: Interpolation::Linear };
    /// PyTorch's `bilinear` with `align_corners`.
    pub const BILINEAR_CORNERS: Resize =
        Resize { places: ResizeCoordinates::Corners, reading: Interpolation::Linear };

    /// The share that each of n elements has in each of m: a row of n for each. `scale` is m/n, or what that was before
    /// m was cut to a whole number.
    fn shares(&self, n: usize, m: usize, scale: f64) -> Vec<f32> {
        let mut shares = vec![0.0; m * n];
        for (index, row) in shares.chunks_mut(n).enumerate() {
            let place = self.place(index as f64, [n as f64, m as f64], scale);
            let all = self.reading.shares(place, n);
            let sum: f64 = all.iter().map(|(_, share)| share).sum();
            for (at, share) in all {
                row[at] += (share / sum) as f32;
            }
        }
        shares
    }

    fn place(&self, index: f64, [n, m]: [f64; 2], scale: f64) -> f64 {
        let half = (index + 0.5) / scale - 0.5;
        match self.places {
            ResizeCoordinates::HalfPixel => half,
            ResizeCoordinates::HalfPixelOrFirst if m > 1.0 => half,
            ResizeCoordinates::HalfPixelAroundMiddle => half + n / 2.0 * (1.0 - m / (scale * n)),
            ResizeCoordinates::Corners if scale * n != 1.0 => index * (n - 1.0) / (scale * n - 1.0),
            ResizeCoordinates::HalfPixelOrFirst | ResizeCoordinates::Corners => 0.0,
            ResizeCoordinates::Asymmetric => index / scale,
        }
    }
}

impl Interpolation {
    /// Which of n elements have shares in what is read at a place.
    fn shares(self, place: f64, n: usize) -> Vec<(usize, f64)> {
        let last = n.saturating_sub(1) as f64;
        let at = |place: f64| place.clamp(0.0, last) as usize;
        match self {
            Interpolation::Below => vec![(at(place.floor()), 1.0)],
            Interpolation::Above => vec![(at(place.ceil()), 1.0)],
            Interpolation::NearestBelow => vec![(at((place - 0.5).ceil()), 1.0)],
            Interpolation::NearestAbove => vec![(at((place + 0.5).floor()), 1.0)],
            Interpolation::Linear => {
                let (below, part) = (place.floor(), place - place.floor());
                vec![(at(below), 1.0 - part), (at(below + 1.0), part)]
            }
            Interpolation::Cubic { a, inside } => {
                let near = |t: f64| ((a + 2.0) * t - (a + 3.0)) * t * t + 1.0;
                let far = |t: f64| ((a * t - 5.0 * a) * t + 8.0 * a) * t - 4.0 * a;
                let (below, t) = (place.floor(), place - place.floor());
                let four = [far(t + 1.0), near(t), near(1.0 - t), far(2.0 - t)];
                let places = four.into_iter().zip(-1..).map(|(share, step)| (below + f64::from(step), share));
                let kept = places.filter(|(place, _)| !inside || (0.0..=last).contains(place));
                kept.map(|(place, share)| (at(place), share)).collect()
            }
        }
    }
}

impl Builder {
    /// x with `length` elements along an axis in place of its own; `scale` as in `Resize::shares`, where it is not that
    /// of the lengths.
    ///
    /// # Errors
    /// `Usage` where x has no such axis, or the lengths are too large.
    pub fn resize_along(
        &mut self,
        name: &str,
        x: TensorId,
        axis: usize,
        (length, scale): (usize, Option<f64>),
        how: Resize,
    ) -> Result<TensorId> {
        let (shape, rank) = (self.shape(x).clone(), self.shape(x).rank());
        let extent = shape.0.get(axis).copied().unwrap_or_default();
        let count = extent.checked_mul(length).filter(|count| (1..=MOST_SHARES).contains(count));
        let scale = scale.unwrap_or(length as f64 / extent.max(1) as f64);
        if count.is_none() || !scale.is_finite() || scale <= 0.0 {
            return Err(Error::usage(format!(
                "layer {name}: no {length} elements along axis {axis} of {shape}"
            )));
        }
        let shares = how.shares(extent, length, scale);
        let part = |part: &str| format!("{name}.{part}");
        let mut order: Vec<usize> = (0..rank).filter(|&other| other != axis).chain([axis]).collect();
        let last = if axis + 1 == rank { x } else { self.permute(&part("last"), x, &order)? };
        let rows = self.reshape(&part("rows"), last, dims([shape.elements() / extent, extent]))?;
        let matrix = self.constant(&part("shares"), dims([length, extent]), &shares)?;
        let y =
            self.matmul(&part("product"), rows, matrix, MatMul { transposed: [false, true], scale: 1.0 })?;
        let mut to = self.shape(last).clone();
        to.0[rank - 1] = length;
        let y = self.reshape(&part("back"), y, to)?;
        if axis + 1 == rank {
            return Ok(y);
        }
        order = (0..rank).map(|place| if place < axis { place } else { place.wrapping_sub(1) }).collect();
        order[axis] = rank - 1;
        self.permute(name, y, &order)
    }

    /// Images or cubes of another (depth, height, width).
    ///
    /// # Errors
    /// `Usage` where that is nothing, or too large.
    pub fn resize(&mut self, name: &str, x: TensorId, size: Volume, how: Resize) -> Result<TensorId> {
        let (_, [d, h, w]) = self.image_shape(name, x)?;
        self.has_depth_of(name, x, size[0] == 1)?;
        let mut y = x;
        // What becomes larger does so last.
        let last = self.shape(x).rank() - 1;
        let mut axes =
            [(last, w, size[2], "width"), (last - 1, h, size[1], "height"), (last - 2, d, size[0], "depth")];
        axes.sort_by(|a, b| (a.2 * b.1).cmp(&(b.2 * a.1)));
        for (axis, from, to, what) in axes {
            if from != to {
                y = self.resize_along(&format!("{name}.{what}"), y, axis, (to, None), how)?;
            }
        }
        Ok(y)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers are those of the documentation of ONNX's Resize.
    #[test]
    fn shares_are_those_of_the_definition() {
        let of = |how: Resize, n, m| how.shares(n, m, m as f64 / n as f64);
        assert_eq!(of(Resize::NEAREST, 2, 4), [1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0]);
        assert_eq!(of(Resize::BILINEAR, 2, 4), [1.0, 0.0, 0.75, 0.25, 0.25, 0.75, 0.0, 1.0]);
        assert_eq!(of(Resize::BILINEAR_CORNERS, 2, 3), [1.0, 0.0, 0.5, 0.5, 0.0, 1.0]);
        assert_eq!(of(Resize::BILINEAR_CORNERS, 3, 1), [1.0, 0.0, 0.0]);
        let cubic = Resize { reading: Interpolation::Cubic { a: -0.75, inside: false }, ..Resize::BILINEAR };
        let row = &of(cubic, 4, 8)[3 * 4..4 * 4];
        let expected = [-0.03515625, 0.26171875, 0.87890625, -0.10546875];
        assert_eq!([row[3], row[2], row[1], row[0]], expected, "{row:?}");
    }
}
