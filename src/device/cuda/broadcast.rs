//! Arithmetic of tensors of which either is stretched over the other, and sums over axes: kernels that read through
//! strides (`kernels/broadcast.cu`).

use std::rc::Rc;

use super::gpu::{Argument, Argument::*, Gpu};
use super::kernel::{Operands, cuda_kernel};
use super::layout::{Real, channels_last_in, given, input, output, plain_in};
use crate::device::{Kernel, KernelRequest, Layout};
use crate::error::{Error, Result};
use crate::graph::{Binary, Permutation, Shape, Spec};

/// The order in which axes lie.
#[derive(Clone, Copy, PartialEq)]
enum AxisOrder {
    Plain,
    ChannelsLast,
}

impl AxisOrder {
    /// That of a tensor that is not stretched, if the others can have it too.
    fn of(layout: &Layout, whole: &Spec, others: &[&Spec]) -> AxisOrder {
        let rank = whole.shape.rank();
        // What has fewer axes than images is a parameter, which lies as the host has it.
        let fits = |spec: &&Spec| {
            spec.shape.rank() == rank
                || spec.shape.with_rank(rank).iter().filter(|&&extent| extent > 1).count() <= 1
        };
        let is_plain = rank != 4 || *layout == plain_in(whole, layout.dtype());
        if is_plain || !others.iter().all(fits) { AxisOrder::Plain } else { AxisOrder::ChannelsLast }
    }

    fn layout(self, spec: &Spec, real: Real) -> Layout {
        match self {
            AxisOrder::Plain => plain_in(spec, real.dtype()),
            AxisOrder::ChannelsLast => channels_last_in(spec, real.dtype()),
        }
    }

    /// Extents with so many axes, slowest first.
    fn extents(self, shape: &Shape, rank: usize) -> Vec<usize> {
        let mut extents = shape.with_rank(rank);
        if self == AxisOrder::ChannelsLast {
            extents[1..].rotate_left(1);
        }
        extents
    }
}

/// An axis of the larger tensor, and how far apart its elements are in each of several tensors: 0 where that is
/// stretched.
#[derive(Debug, Clone, Copy, PartialEq)]
struct StridedAxis<const N: usize> {
    extent: usize,
    strides: [usize; N],
}

/// The axes of the larger tensor with the strides of dense tensors, with as few axes as can be.
fn axes<const N: usize>(whole: &[usize], parts: [Vec<usize>; N]) -> Vec<StridedAxis<N>> {
    let mut sizes = [1; N];
    let mut axes: Vec<StridedAxis<N>> = Vec::new();
    for axis in (0..whole.len()).rev() {
        let strides = std::array::from_fn(|part| if parts[part][axis] > 1 { sizes[part] } else { 0 });
        (0..N).for_each(|part| sizes[part] *= parts[part][axis]);
        axes.push(StridedAxis { extent: whole[axis], strides });
    }
    axes.reverse();
    merged(axes)
}

/// Neighbouring axes along which all tensors go on as along one are one.
fn merged<const N: usize>(axes: Vec<StridedAxis<N>>) -> Vec<StridedAxis<N>> {
    let mut merged: Vec<StridedAxis<N>> = Vec::new();
    for axis in axes.into_iter().filter(|axis| axis.extent > 1) {
        match merged.last_mut() {
            Some(last) if (0..N).all(|part| last.strides[part] == axis.strides[part] * axis.extent) => {
                *last = StridedAxis { extent: last.extent * axis.extent, ..axis };
            }
            _ => merged.push(axis),
        }
    }
    merged
}

/// As many axes as a kernel takes, those that are missing of one element.
fn exactly<const M: usize, const N: usize>(
    axes: &[StridedAxis<N>],
    request: &KernelRequest,
) -> Result<[StridedAxis<N>; M]> {
    let missing = M.checked_sub(axes.len()).ok_or_else(|| {
        let shapes: Vec<String> = request.inputs.iter().map(|(spec, _)| spec.shape.to_string()).collect();
        Error::usage(format!(
            "{} of {} has too many axes for a GPU's kernel",
            request.op.name(),
            shapes.join(", ")
        ))
    })?;
    let one = StridedAxis { extent: 1, strides: [0; N] };
    Ok(std::array::from_fn(|axis| if axis < missing { one } else { axes[axis - missing] }))
}

fn ints<'a>(numbers: impl Iterator<Item = usize> + 'a) -> impl Iterator<Item = Argument<'a>> + 'a {
    numbers.map(Int)
}

/// a, b → y, in the layout of the one that is not stretched.
pub fn binary(gpu: &Rc<Gpu>, request: &KernelRequest, of: Binary) -> Result<Kernel> {
    let ([a, b], y) = ([&input(request, 0)?.0, &input(request, 1)?.0], output(request, 0)?);
    let (real, rank, n) = (Real::of(y.dtype)?, y.shape.rank(), y.shape.elements());
    let whole = if a.shape == y.shape { 0 } else { 1 };
    let order = AxisOrder::of(&given(request, whole)?, y, &[a, b]);
    let extents = [a, b].map(|spec| order.extents(&spec.shape, rank));
    let axes: [StridedAxis<2>; 4] = exactly(&axes(&order.extents(&y.shape, rank), extents), request)?;
    let kind = Binary::ALL.iter().position(|&kind| kind == of).unwrap_or_default();
    let bind = move |operands: &mut Operands| {
        let ([a, b], y) = ([0, 1].map(|index| &operands.inputs[index]), &operands.outputs[0]);
        let mut arguments = vec![Memory(a), Memory(b), Memory(y), Int(kind), Long(n)];
        arguments.extend(ints(axes[1..].iter().map(|axis| axis.extent)));
        (0..2).for_each(|part| arguments.extend(ints(axes.iter().map(move |axis| axis.strides[part]))));
        operands.each("binary", real, n, &arguments)
    };
    let inputs = [a, b].map(|spec| order.layout(spec, real)).to_vec();
    let kernel = cuda_kernel(gpu, format!("own:{}", of.name()), inputs, vec![order.layout(y, real)], bind);
    // What is stretched is read more than once.
    Ok(if a.shape == y.shape { kernel.in_place(0) } else { kernel })
}

/// x → y, as the host has both.
pub fn expand(gpu: &Rc<Gpu>, request: &KernelRequest, scale: f32) -> Result<Kernel> {
    let (x, y) = (&input(request, 0)?.0, output(request, 0)?);
    let axes = axes(&y.shape.0, [x.shape.with_rank(y.shape.rank())]);
    strided(gpu, request, "own:expand", &axes, scale)
}

/// x → y: its axes in another order, as the host has both
pub fn permute(gpu: &Rc<Gpu>, request: &KernelRequest, order: &Permutation) -> Result<Kernel> {
    let x = &input(request, 0)?.0;
    let mut strides = vec![1; x.shape.rank()];
    for axis in (1..strides.len()).rev() {
        strides[axis - 1] = strides[axis] * x.shape.0[axis];
    }
    let (extents, strides) = (order.of(&x.shape.0), order.of(&strides));
    let axis = |(extent, stride)| StridedAxis { extent, strides: [stride] };
    let axes: Vec<StridedAxis<1>> = extents.into_iter().zip(strides).map(axis).collect();
    strided(gpu, request, "own:permute", &merged(axes), 1.0)
}

/// y = scale·x, read along these axes.
fn strided(
    gpu: &Rc<Gpu>,
    request: &KernelRequest,
    name: &'static str,
    axes: &[StridedAxis<1>],
    scale: f32,
) -> Result<Kernel> {
    let (x, y) = (&input(request, 0)?.0, output(request, 0)?);
    let (real, n) = (Real::of(y.dtype)?, y.shape.elements());
    let axes: [StridedAxis<1>; 4] = exactly(axes, request)?;
    let bind = move |operands: &mut Operands| {
        let (x, y) = (&operands.inputs[0], &operands.outputs[0]);
        let mut arguments = vec![Memory(x), Memory(y), Long(n)];
        arguments.extend(ints(axes[1..].iter().map(|axis| axis.extent)));
        arguments.extend(ints(axes.iter().map(|axis| axis.strides[0])));
        arguments.push(Float(scale));
        operands.each("expand", real, n, &arguments)
    };
    let [from, to] = [x, y].map(|spec| plain_in(spec, real.dtype()));
    Ok(cuda_kernel(gpu, name, vec![from], vec![to], bind))
}

/// x → y
pub fn sum(gpu: &Rc<Gpu>, request: &KernelRequest, scale: f32) -> Result<Kernel> {
    let (x, y) = (&input(request, 0)?.0, output(request, 0)?);
    let (from, to, rank) = (Real::of(x.dtype)?, Real::of(y.dtype)?, x.shape.rank());
    let order = AxisOrder::of(&given(request, 0)?, x, &[y]);
    let whole = order.extents(&x.shape, rank);
    let axes = axes(&whole, [whole.clone(), order.extents(&y.shape, rank)]);
    let (kept, summed): (Vec<StridedAxis<2>>, Vec<StridedAxis<2>>) =
        axes.iter().partition(|axis| axis.strides[1] > 0);
    let ([k0, k1], [s0, s1]): ([StridedAxis<2>; 2], [StridedAxis<2>; 2]) =
        (exactly(&kept, request)?, exactly(&summed, request)?);
    let (n, count) = (y.shape.elements(), s0.extent * s1.extent);
    let name = format!("sum_axes_{}_{}", from.suffix(), to.suffix());
    let bind = move |operands: &mut Operands| {
        let (x, y) = (&operands.inputs[0], &operands.outputs[0]);
        let mut arguments = vec![Memory(x), Memory(y), Long(n)];
        let numbers =
            [k1.extent, k0.strides[0], k1.strides[0], count, s1.extent, s0.strides[0], s1.strides[0]];
        arguments.extend(ints(numbers.into_iter()));
        arguments.push(Float(scale));
        let grid = [operands.gpu.at_most(n.div_ceil(32)), 1, 1];
        operands.launch_in([32, 8], &name, grid, &arguments)
    };
    Ok(cuda_kernel(gpu, "own:sum", vec![order.layout(x, from)], vec![order.layout(y, to)], bind))
}
