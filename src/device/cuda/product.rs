//! A convolution's products as cuDNN's graphs: one operation, or it and what is done to its result on the way to
//! memory.

use std::ffi::c_int;
use std::rc::Rc;

use cudarc::cudnn::sys::{
    cudnnConvolutionMode_t, cudnnDataType_t, cudnnGenStatsMode_t, cudnnPointwiseMode_t as Mode,
};

use super::backend::{self, Configuration, DATA_TYPE, Descriptor, DescriptorKind, Name, TargetGpu};
use super::layout::Real;
use super::normalised;
use super::sys::{self, Dnn};
use crate::device::memory::ALIGNMENT;
use crate::graph::{Conv, Volume};
use crate::random::{Purpose, Stream, key};

/// Which of a convolution's three products.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// x, w → y
    Forward,
    /// w, dy → dx
    BackwardData,
    /// x, dy → dw
    BackwardWeights,
}

/// What is done along with a product, in one pass over its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    Nothing,
    /// To y: an addition of a bias (O), a ReLU, or both.
    Activate {
        bias: bool,
        relu: bool,
    },
    /// To dx: 0 where what another ReLU gave, of dx's extents and type, is not above 0.
    Mask,
    /// To dx: what lies there already is added.
    Accumulate,
    /// Sums over y: that of each channel, and that of its squares, f32.
    Sums,
    /// With a normalisation before it (`normalised`). Of x, as it is read: a scale and a shift of each channel and a
    /// ReLU, and of y its sums as above.
    Normalise,
}

/// Extents of x, w and y: (N,C,D,H,W), (O,C/groups,kd,kh,kw), (N,O,OD,OH,OW); of images the depths are 1.
#[derive(Debug, Clone, Copy)]
pub struct Extents {
    pub x: [usize; 5],
    pub w: [usize; 5],
    pub y: [usize; 5],
}

impl Extents {
    /// Whether no tensor has a depth: cuDNN is then given images.
    pub fn are_flat(&self) -> bool {
        [self.x, self.w, self.y].iter().all(|extents| extents[2] == 1)
    }
}

/// Without the depth that images have not.
pub fn of_axes<T: Copy>(extents: [T; 5], flat: bool) -> Vec<T> {
    let [n, c, d, h, w] = extents;
    if flat { vec![n, c, h, w] } else { vec![n, c, d, h, w] }
}

/// What is multiplied: which product, of what geometry, type and extents.
#[derive(Debug, Clone, Copy)]
pub struct Product {
    pub direction: Direction,
    pub conv: Conv,
    pub real: Real,
    /// Whether f32 may be rounded to tf32's 10 bits.
    pub tf32: bool,
    pub at: Extents,
    pub then: Then,
}

/// A tensor of the graph that lies in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProductOperand {
    /// Its number in the graph.
    pub number: i64,
    pub extents: [usize; 5],
    /// Whether it has no depth.
    pub flat: bool,
    pub real: Real,
    /// What its address is a multiple of.
    pub alignment: usize,
}

impl ProductOperand {
    pub fn bytes(&self) -> usize {
        self.extents.iter().product::<usize>() * self.real.bytes()
    }

    /// Numbers to try an engine on: all tensors' together have nothing in common.
    pub fn noise(&self) -> Vec<u32> {
        const WORDS: usize = 1 << 16;
        ProductOperand::noise_of(self.real, self.number as u32, WORDS.min(self.bytes().div_ceil(4)))
    }

    /// Words of numbers of either sign, from a half to one, whose digits are random: a GPU takes less power for zeros,
    /// and runs faster with them than it will in training.
    pub fn noise_of(real: Real, which: u32, words: usize) -> Vec<u32> {
        let (random, exponent) = match real {
            Real::F32 => (0x807f_ffff, 0x3f00_0000),
            Real::BF16 => (0x807f_807f, 0x3f00_3f00),
            Real::F16 => (0x83ff_83ff, 0x3800_3800),
        };
        let mut stream = Stream::new(key(1, Purpose::Synthetic, which));
        (0..words).map(|_| stream.word() & random | exponent).collect()
    }

    /// As cuDNN has it; one that does not lie in memory goes from one operation to the next.
    pub fn tensor(&self, dnn: &'static Dnn, lies: bool) -> sys::CudaResult<Rc<Descriptor>> {
        let extents = self.extents.map(|extent| extent as i64);
        let [_, c, d, h, w] = extents;
        // Channels innermost.
        let strides = [d * h * w * c, 1, h * w * c, w * c, c];
        let [extents, strides] = [extents, strides].map(|of| of_axes(of, self.flat));
        let of = data_type(self.real);
        let tensor = backend::tensor(dnn, self.number, of, [&extents, &strides], self.alignment)?;
        let tensor = if lies { tensor } else { tensor.set(Name::CUDNN_ATTR_TENSOR_IS_VIRTUAL, &[true])? };
        tensor.finalize()
    }
}

fn data_type(real: Real) -> c_int {
    (match real {
        Real::F32 => cudnnDataType_t::CUDNN_DATA_FLOAT,
        Real::BF16 => cudnnDataType_t::CUDNN_DATA_BFLOAT16,
        Real::F16 => cudnnDataType_t::CUDNN_DATA_HALF,
    }) as c_int
}

impl Product {
    /// What the choice of an engine is kept under.
    pub fn words(&self) -> String {
        let Product { direction, conv, real, tf32, at, then } = self;
        let [x, w] = [at.x, at.w].map(|of| of_axes(of, at.are_flat()));
        let [stride, padding, dilation] = [conv.stride, conv.padding, conv.dilation].map(|of| self.along(of));
        format!(
            "{direction:?} {} {x:?} {w:?} stride {stride:?} padding {padding:?} {}groups {}{}{}",
            real.suffix(),
            // What was kept before there were dilations still serves.
            if conv.dilation == [1; 3] { String::new() } else { format!("dilation {dilation:?} ") },
            conv.groups,
            if *tf32 && *real == Real::F32 { " tf32" } else { "" },
            match then {
                Then::Nothing => "",
                Then::Activate { bias: true, relu: true } => " then bias relu",
                Then::Activate { bias: true, .. } => " then bias",
                Then::Activate { .. } => " then relu",
                Then::Mask => " then mask",
                Then::Accumulate => " then accumulate",
                Then::Sums => " then sums",
                Then::Normalise => " normalised",
            }
        )
    }

    /// A part of the geometry along the axes that the tensors have.
    fn along(&self, of: Volume) -> Vec<i64> {
        of[usize::from(self.at.are_flat())..].iter().map(|&value| value as i64).collect()
    }

    /// The product by itself.
    pub fn alone(self) -> Product {
        Product { then: Then::Nothing, ..self }
    }

    /// What lies in memory: x, w and y, and then what the rest reads or writes.
    pub fn operands(&self) -> Vec<ProductOperand> {
        let Extents { x, w, y } = self.at;
        let (of_channels, f32) = ([1, y[1], 1, 1, 1], Real::F32);
        let more = match self.then {
            Then::Activate { bias: true, .. } => vec![(of_channels, f32)],
            Then::Nothing | Then::Activate { .. } | Then::Accumulate => vec![],
            Then::Mask => vec![(x, self.real)],
            Then::Sums => vec![(of_channels, f32); 2],
            Then::Normalise => normalised::more(self),
        };
        let all = [x, w, y].map(|extents| (extents, self.real)).into_iter().chain(more);
        let flat = self.at.are_flat();
        let operand = |(number, (extents, real)): (i64, ([usize; 5], Real))| {
            let of_channels = extents[0] == 1 && extents[2..] == [1; 3];
            let alignment = match self.then {
                // Halves of parameters lie as they do, each in half the room.
                _ if number == 2 && real != Real::F32 => ALIGNMENT / 2,
                Then::Normalise if number > 3 && of_channels => normalised::ALIGNMENT,
                _ => ALIGNMENT,
            };
            ProductOperand { number, extents, flat, real, alignment }
        };
        (1..).zip(all).map(operand).collect()
    }

    /// How many times the bytes of its result are read and written where the rest is done apart.
    pub fn passes_apart(&self) -> f64 {
        match self.then {
            Then::Nothing => 0.0,
            Then::Activate { .. } => 2.0,
            Then::Mask | Then::Accumulate => 3.0,
            Then::Sums => 1.0,
            // Of x forward, which the convolution reads either way.
            Then::Normalise if self.direction == Direction::BackwardWeights => 0.0,
            Then::Normalise => 2.0,
        }
    }

    /// As cuDNN's graph. Groups follow from the channels of x and w.
    fn graph(&self, dnn: &'static Dnn, target: &TargetGpu) -> sys::CudaResult<Rc<Descriptor>> {
        let operands = self.operands();
        let lying = |index: usize| operands[index].tensor(dnn, true);
        // What goes from one operation to the next, in f32.
        let passing = |number: i64, like: usize| {
            ProductOperand { number: operands.len() as i64 + number, real: Real::F32, ..operands[like] }
                .tensor(dnn, false)
        };
        let all = match self.then {
            Then::Nothing | Then::Accumulate => {
                vec![self.convolution(dnn, [lying(0)?, lying(1)?, lying(2)?])?]
            }
            Then::Activate { bias, relu } => {
                let (mut from, y) = (passing(1, 2)?, lying(2)?);
                let mut all = vec![self.convolution(dnn, [lying(0)?, lying(1)?, from.clone()])?];
                if bias {
                    let to = if relu { passing(2, 2)? } else { y.clone() };
                    let tensors = [(X, &from), (B, &lying(3)?), (Y, &to)];
                    all.push(elementwise(dnn, Mode::CUDNN_POINTWISE_ADD, &tensors)?);
                    from = to;
                }
                if relu {
                    all.push(elementwise(dnn, Mode::CUDNN_POINTWISE_RELU_FWD, &[(X, &from), (Y, &y)])?);
                }
                all
            }
            Then::Mask => {
                let (from, dx) = (passing(1, 0)?, lying(0)?);
                let of_relu = [(X, &lying(3)?), (DY, &from), (DX, &dx)];
                let multiplied = self.convolution(dnn, [from.clone(), lying(1)?, lying(2)?])?;
                vec![multiplied, elementwise(dnn, Mode::CUDNN_POINTWISE_RELU_BWD, &of_relu)?]
            }
            Then::Sums => {
                let y = lying(2)?;
                let multiplied = self.convolution(dnn, [lying(0)?, lying(1)?, y.clone()])?;
                vec![multiplied, sums(dnn, &y, [&lying(3)?, &lying(4)?])?]
            }
            Then::Normalise => normalised::operations(self, dnn, &operands)?,
        };
        backend::graph(dnn, target, &all.iter().collect::<Vec<_>>())
    }

    /// The operation that multiplies: x, w and y.
    pub fn convolution(
        &self,
        dnn: &'static Dnn,
        [x, w, y]: [Rc<Descriptor>; 3],
    ) -> sys::CudaResult<Rc<Descriptor>> {
        let (mode, padding) =
            (cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION as c_int, self.along(self.conv.padding));
        let how = Descriptor::new(dnn, DescriptorKind::CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR)?
            // Sums are f32 in any type.
            .choose(Name::CUDNN_ATTR_CONVOLUTION_COMP_TYPE, DATA_TYPE, data_type(Real::F32))?
            .choose(Name::CUDNN_ATTR_CONVOLUTION_CONV_MODE, backend::CONVOLUTION_MODE, mode)?
            .set(Name::CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, &[padding.len() as i64])?
            .set(Name::CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, &padding)?
            .set(Name::CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, &padding)?
            .set(Name::CUDNN_ATTR_CONVOLUTION_DILATIONS, &self.along(self.conv.dilation))?
            .set(Name::CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, &self.along(self.conv.stride))?
            .finalize()?;
        let (kind, [x_is, w_is, y_is, how_is, alpha_is, beta_is]) = self.names();
        let beta = if self.then == Then::Accumulate { 1.0f32 } else { 0.0 };
        Descriptor::new(dnn, kind)?
            .join(x_is, &[&x])?
            .join(w_is, &[&w])?
            .join(y_is, &[&y])?
            .join(how_is, &[&how])?
            .set(alpha_is, &[1.0f32])?
            .set(beta_is, &[beta])?
            .finalize()
    }

    /// The operation, and its attributes: x, w, y, geometry, alpha, beta.
    fn names(&self) -> (DescriptorKind, [Name; 6]) {
        use Name::*;
        match self.direction {
            Direction::Forward => (
                DescriptorKind::CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                [
                    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
                ],
            ),
            Direction::BackwardData => (
                DescriptorKind::CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                [
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
                ],
            ),
            Direction::BackwardWeights => (
                DescriptorKind::CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                [
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
                ],
            ),
        }
    }

    /// Whether engines that are compiled when they are wanted count, which NVRTC must be there for: their plans are
    /// kept (`tune`). A product of one group by itself has ready-made ones that are as fast; with several groups those
    /// left are naive. Those that normalise are ready-made in f16, and what is compiled in other types is not tried.
    fn may_be_compiled(&self) -> bool {
        self.conv.groups > 1 || !matches!(self.then, Then::Nothing | Then::Accumulate | Then::Normalise)
    }

    /// The ways to compute it that serve, in cuDNN's order; the same for a library, a GPU and a product. Where more is
    /// done along with it there are none if cuDNN knows none.
    pub fn ways(&self, dnn: &'static Dnn, target: &TargetGpu) -> sys::CudaResult<Vec<Configuration>> {
        let alone = self.then == Then::Nothing;
        let graph = match self.graph(dnn, target) {
            Err(failed) if !alone && backend::unsuitable(&failed) => return Ok(Vec::new()),
            graph => graph?,
        };
        // f32 proper is another precision than tf32, and halves are not to be rounded once more on the way.
        let (tensor_cores, transforms) = (self.real != Real::F32 || self.tf32, self.real == Real::F32);
        let mut ways = backend::configurations(&graph, target)?;
        ways.retain(|way| {
            way.serves(tensor_cores, transforms) && (self.may_be_compiled() || !way.is_compiled())
        });
        Ok(ways)
    }
}

// Attributes of an elementwise operation.
pub const X: Name = Name::CUDNN_ATTR_OPERATION_POINTWISE_XDESC;
pub const B: Name = Name::CUDNN_ATTR_OPERATION_POINTWISE_BDESC;
pub const Y: Name = Name::CUDNN_ATTR_OPERATION_POINTWISE_YDESC;
const DX: Name = Name::CUDNN_ATTR_OPERATION_POINTWISE_DXDESC;
const DY: Name = Name::CUDNN_ATTR_OPERATION_POINTWISE_DYDESC;

/// An operation on each element, in f32.
pub fn elementwise(
    dnn: &'static Dnn,
    mode: Mode,
    tensors: &[(Name, &Rc<Descriptor>)],
) -> sys::CudaResult<Rc<Descriptor>> {
    let how = Descriptor::new(dnn, DescriptorKind::CUDNN_BACKEND_POINTWISE_DESCRIPTOR)?
        .choose(Name::CUDNN_ATTR_POINTWISE_MODE, backend::POINTWISE_MODE, mode as c_int)?
        .choose(Name::CUDNN_ATTR_POINTWISE_MATH_PREC, DATA_TYPE, data_type(Real::F32))?
        .finalize()?;
    let mut operation = Descriptor::new(dnn, DescriptorKind::CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)?
        .join(Name::CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, &[&how])?;
    for (name, tensor) in tensors {
        operation = operation.join(*name, &[tensor])?;
    }
    operation.finalize()
}

/// The sum of each channel of `y`, and that of its squares.
pub fn sums(
    dnn: &'static Dnn,
    y: &Rc<Descriptor>,
    [sum, squares]: [&Rc<Descriptor>; 2],
) -> sys::CudaResult<Rc<Descriptor>> {
    let mode = cudnnGenStatsMode_t::CUDNN_GENSTATS_SUM_SQSUM as c_int;
    Descriptor::new(dnn, DescriptorKind::CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR)?
        .choose(Name::CUDNN_ATTR_OPERATION_GENSTATS_MODE, backend::GENSTATS_MODE, mode)?
        .choose(Name::CUDNN_ATTR_OPERATION_GENSTATS_MATH_PREC, DATA_TYPE, data_type(Real::F32))?
        .join(Name::CUDNN_ATTR_OPERATION_GENSTATS_XDESC, &[y])?
        .join(Name::CUDNN_ATTR_OPERATION_GENSTATS_SUMDESC, &[sum])?
        .join(Name::CUDNN_ATTR_OPERATION_GENSTATS_SQSUMDESC, &[squares])?
        .finalize()
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;

    #[test]
    fn engines_are_tried_on_numbers_of_which_none_is_zero_or_large() {
        for real in [Real::F32, Real::BF16, Real::F16] {
            let words = ProductOperand::noise_of(real, 0, 1000);
            let numbers: Vec<f32> = match real {
                Real::F32 => words.iter().map(|&word| f32::from_bits(word)).collect(),
                _ => words
                    .iter()
                    .flat_map(|&word| [word as u16, (word >> 16) as u16])
                    .map(|half| match real {
                        Real::BF16 => bf16::from_bits(half).to_f32(),
                        _ => f16::from_bits(half).to_f32(),
                    })
                    .collect(),
            };
            assert!(numbers.iter().all(|number| (0.5..1.0).contains(&number.abs())), "{real:?}");
            let mean = numbers.iter().sum::<f32>() / numbers.len() as f32;
            assert!(mean.abs() < 0.1, "{real:?}: {mean}");
            assert_ne!(words, ProductOperand::noise_of(real, 1, 1000), "{real:?}");
        }
    }
}
