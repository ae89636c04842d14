//! Layouts of the GPU: images lie with their channels last, everything else as the host has it; and types of numbers.

use std::rc::Rc;

use crate::device::{KernelRequest, Layout};
use crate::error::{Error, Result};
use crate::graph::{DType, Spec, Volume};

/// A type of real numbers that kernels have a version for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Real {
    F32,
    BF16,
    F16,
}

impl Real {
    pub fn of(dtype: DType) -> Result<Real> {
        match dtype {
            DType::F32 => Ok(Real::F32),
            DType::BF16 => Ok(Real::BF16),
            DType::F16 => Ok(Real::F16),
            other => Err(Error::internal(format!("{other:?} where there should be real numbers"))),
        }
    }

    pub fn bytes(self) -> usize {
        if self == Real::F32 { 4 } else { 2 }
    }

    /// As kernels have it in their names.
    pub fn suffix(self) -> &'static str {
        match self {
            Real::F32 => "f32",
            Real::BF16 => "bf16",
            Real::F16 => "f16",
        }
    }

    pub fn dtype(self) -> DType {
        match self {
            Real::F32 => DType::F32,
            Real::BF16 => DType::BF16,
            Real::F16 => DType::F16,
        }
    }
}

/// The type in which layers multiply that read or write these: the narrower one.
pub fn narrowest(specs: &[&Spec]) -> Result<Real> {
    let reals = specs.iter().map(|spec| Real::of(spec.dtype)).collect::<Result<Vec<_>>>()?;
    Ok(reals.into_iter().find(|real| *real != Real::F32).unwrap_or(Real::F32))
}

/// As the host has it, in a given type.
pub fn plain_in(spec: &Spec, dtype: DType) -> Layout {
    let bytes = spec.shape.elements() * dtype.bytes();
    Layout::new(format!("{dtype:?} plain {}", spec.shape), bytes, dtype, None)
}

pub fn plain(spec: &Spec) -> Layout {
    plain_in(spec, spec.dtype)
}

/// The order of axes where channels lie last.
fn order(spec: &Spec) -> &'static str {
    if spec.shape.rank() == 5 { "ndhwc" } else { "nhwc" }
}

/// Channels last, in a given type: (N,H,W,C), a convolution's weights (O,kh,kw,C). Cubes are (N,D,H,W,C). Where that is
/// the same order as the host's it is the same layout.
pub fn channels_last_in(spec: &Spec, dtype: DType) -> Layout {
    match spec.shape.spatial() {
        Some(([_, c], size)) if c > 1 && size != [1; 3] => {
            let bytes = spec.shape.elements() * dtype.bytes();
            Layout::new(format!("{dtype:?} {} {}", order(spec), spec.shape), bytes, dtype, None)
        }
        _ => plain_in(spec, dtype),
    }
}

/// How many channels images of so many lie with, colours that is, where convolutions multiply them: tensor cores take
/// halves in eights, and cuDNN would copy images of four to such itself in every product.
pub fn padded(channels: usize, real: Real) -> usize {
    if channels == 3 && real != Real::F32 { 8 } else { channels }
}

/// Channels last with zeros behind them, of images and of the weights that they are multiplied with.
pub fn padded_in(spec: &Spec, real: Real) -> Layout {
    match spec.shape.spatial() {
        Some(([n, c], size)) if padded(c, real) > c => {
            let (dtype, padded) = (real.dtype(), padded(c, real));
            let text = format!("{dtype:?} {} padded to {padded} {}", order(spec), spec.shape);
            let places: usize = size.iter().product();
            Layout::new(text, n * padded * places * dtype.bytes(), dtype, Some(Rc::new(padded)))
        }
        _ => channels_last_in(spec, real.dtype()),
    }
}

/// Channels in a layout of images of so many.
pub fn width(layout: &Layout, channels: usize) -> usize {
    layout.handle().copied().unwrap_or(channels)
}

pub fn channels_last(spec: &Spec) -> Layout {
    channels_last_in(spec, spec.dtype)
}

/// What only a forward op and its backward op know: so many bytes.
pub fn saved(spec: &Spec, what: &str, bytes: usize) -> Layout {
    Layout::new(format!("{what} {}", spec.shape), bytes, DType::Saved, None)
}

/// Where a convolution may give the sum of each channel over so many rows, and that of its squares, in the place of
/// moments (2,C): the squares lie from the next multiple of 16 channels on, as cuDNN wants them
/// (`batch_norm_moments_of_sums` in kernels/README.md).
pub struct Summed {
    pub rows: usize,
}

/// Channels that the squares lie behind the sums.
pub fn sums_apart(channels: usize) -> usize {
    channels.next_multiple_of(16)
}

/// See `Summed`; `spec` is (2,C).
pub fn summed(spec: &Spec, rows: usize) -> Layout {
    let channels = spec.shape.elements() / 2;
    let text = format!("f32 sums over {rows} rows, or moments, {}", spec.shape);
    let bytes = 4 * (sums_apart(channels) + channels);
    Layout::new(text, bytes, DType::F32, Some(Rc::new(Summed { rows })))
}

/// The layout in which input `index` lies already, in its own type, or else channels last.
pub fn given(request: &KernelRequest, index: usize) -> Result<Layout> {
    let (spec, layout) = input(request, index)?;
    Ok(match layout {
        // Padding is for convolutions alone.
        Some(layout) if layout.handle::<usize>().is_some() => channels_last(spec),
        Some(layout) if layout.dtype() == spec.dtype => layout.clone(),
        Some(layout) if *layout == plain_in(spec, layout.dtype()) => plain(spec),
        _ => channels_last(spec),
    })
}

pub fn input<'a>(request: &'a KernelRequest, index: usize) -> Result<&'a (Spec, Option<Layout>)> {
    let lacks = || Error::internal(format!("{} lacks input {index}", request.op.name()));
    request.inputs.get(index).ok_or_else(lacks)
}

pub fn output<'a>(request: &'a KernelRequest, index: usize) -> Result<&'a Spec> {
    let lacks = || Error::internal(format!("{} lacks output {index}", request.op.name()));
    request.outputs.get(index).ok_or_else(lacks)
}

/// (N, C) and (D, H, W) of a tensor of images or cubes.
pub fn spatial(spec: &Spec) -> Result<([usize; 2], Volume)> {
    spec.shape.spatial().ok_or_else(|| Error::internal(format!("{} is no batch of images", spec.shape)))
}

/// (N, C, H, W) of images; of cubes, one plane under the other, for what treats all places alike.
pub fn image(spec: &Spec) -> Result<[usize; 4]> {
    let ([n, c], [d, h, w]) = spatial(spec)?;
    Ok([n, c, d * h, w])
}

/// (rows, channels) of a tensor whose channels lie last: (N·H·W, C) of images, (N, C) of flat ones.
pub fn rows(spec: &Spec) -> Result<(usize, usize)> {
    match spec.shape.0[..] {
        [n, c, d, h, w] => Ok((n * d * h * w, c)),
        [n, c, h, w] => Ok((n * h * w, c)),
        [n, c] => Ok((n, c)),
        _ => Err(Error::internal(format!("{} has no channels", spec.shape))),
    }
}
