//! Arithmetic of two tensors, one stretched over the other, by oneDNN's binary primitive; sums over axes and
//! stretching by loops of our own: the library sums fast in few layouts only.

use std::rc::Rc;

use half::bf16;

use super::Cpu;
use super::channel_loops::Element;
use super::handle::{Desc, Engine, PrimitiveDesc, describe};
use super::host::{Numbers, Workers, host_kernel};
use super::layout::{data_type, desc, plain, plain_f32};
use super::primitive::{PrimitiveKernel, attributes, inputs, outputs};
use super::sys;
use crate::device::{Kernel, KernelRequest, Layout, Memory};
use crate::error::{Error, Result};
use crate::graph::{Binary, DType, Shape, Spec};

// ---- two tensors ----

fn algorithm(of: Binary) -> sys::AlgKind {
    match of {
        Binary::Add => sys::BINARY_ADD,
        Binary::Subtract => sys::BINARY_SUB,
        Binary::Multiply => sys::BINARY_MUL,
        Binary::Divide => sys::BINARY_DIV,
    }
}

/// An operand as the plan keeps it, and as the primitive sees it: with as many axes as y.
struct Seen {
    kept: Layout,
    seen: Desc,
}

/// In the layout that it has where `keep`, if that is of y's type and rank, else plain.
fn seen(engine: &Engine, (spec, given): &(Spec, Option<Layout>), y: &Spec, keep: bool) -> Result<Seen> {
    let spec = Spec { dtype: y.dtype, ..spec.clone() };
    let fits = |layout: &Layout| keep && layout.dtype() == y.dtype && spec.shape.rank() == y.shape.rank();
    let (rank, of_type) = (y.shape.rank(), data_type(y.dtype)?);
    match given.as_ref().filter(|layout| fits(layout)) {
        Some(layout) => Ok(Seen { kept: layout.clone(), seen: desc(layout)?.copy()? }),
        None => {
            let seen = Desc::plain(engine, &spec.shape.with_rank(rank), of_type)?;
            Ok(Seen { kept: plain(engine, &spec)?, seen })
        }
    }
}

/// a, b → y, in the layout of the operand that is not stretched where the library is fast with that, else plain. It is
/// fast where the second operand is the stretched one, so that factors and addends change their places.
pub fn binary(engine: &Rc<Engine>, request: &KernelRequest, of: Binary) -> Result<PrimitiveKernel> {
    let ([_, _], [y]) = (inputs(request)?, outputs(request)?);
    let whole = request.inputs.iter().position(|(spec, _)| spec.shape == y.shape);
    let swaps = whole == Some(1) && matches!(of, Binary::Add | Binary::Multiply);
    let arguments = if swaps { [sys::ARG_SRC_1, sys::ARG_SRC] } else { [sys::ARG_SRC, sys::ARG_SRC_1] };
    let mut slow = None;
    // What each operand may keep of its layout.
    for keep in [[true, true], [whole == Some(0), whole == Some(1)], [false, false]] {
        let [a, b] = [0, 1].map(|index| seen(engine, &request.inputs[index], y, keep[index]));
        let (a, b) = (a?, b?);
        let to = match whole {
            Some(0) => a.seen.copy()?,
            Some(_) => b.seen.copy()?,
            None => Desc::plain(engine, &y.shape.0, data_type(y.dtype)?)?,
        };
        let operands = if swaps { [&b.seen, &a.seen, &to] } else { [&a.seen, &b.seen, &to] };
        let Ok(made) = binary_desc(engine, of, operands) else { continue };
        let is_fast = !made.implementation().starts_with("ref");
        if is_fast || keep == [false, false] && slow.is_none() {
            slow = Some((made, a, b));
        }
        if is_fast {
            break;
        }
    }
    let (made, a, b) = slow.ok_or_else(|| Error::internal("the library has no such arithmetic"))?;
    let kernel = PrimitiveKernel::new(engine, made, &arguments, &[sys::ARG_DST])?;
    let kernel = kernel.sees_in(0, a.kept).sees_in(1, b.kept);
    // The library reads what is stretched more than once.
    Ok(match whole {
        Some(0) => kernel.in_place(0),
        Some(1) if swaps => kernel.in_place(1),
        _ => kernel,
    })
}

fn binary_desc(engine: &Rc<Engine>, of: Binary, [a, b, y]: [&Desc; 3]) -> Result<PrimitiveDesc> {
    let attributes = attributes(engine)?;
    describe!(engine, attributes => dnnl_binary_primitive_desc_create(
        algorithm(of), a.raw(), b.raw(), y.raw()
    ))
}

// ---- sums over axes, and the way back ----

/// An axis as memory has it: how many elements, and how far apart they are in the larger and in the smaller tensor (0
/// where that has one for all).
#[derive(Debug, Clone, Copy)]
struct MemoryAxis {
    extent: usize,
    large: usize,
    small: usize,
}

/// How the elements of a larger tensor and those of a smaller one belong together.
struct Axes {
    /// Slowest first; the last ones are neighbours in the larger tensor.
    all: Vec<MemoryAxis>,
    /// Which of them threads share out: the slowest along which the smaller tensor has elements too.
    shared: Option<usize>,
    /// Extents of the smaller tensor with the padding of a blocked axis.
    padded: Vec<usize>,
}

impl Axes {
    /// For a larger tensor in this layout; `None` where that is blocked more than once.
    fn of(layout: &Layout, large: &Shape, small: &Shape) -> Result<Option<Axes>> {
        let (desc, rank) = (desc(layout)?, large.rank());
        let extents = small.with_rank(rank);
        if (0..rank).any(|axis| extents[axis] != 1 && extents[axis] != large.0[axis]) {
            return Err(Error::internal(format!("{small} is not {large} summed over axes")));
        }
        let strides = desc.vector(sys::QUERY_STRIDES, rank)?;
        let blockings = desc.scalar::<i32>(sys::QUERY_INNER_NBLKS_S32)? as usize;
        let (blocked, size) = match blockings {
            0 => (rank, 1),
            1 => {
                let [axis, size] = [sys::QUERY_INNER_IDXS, sys::QUERY_INNER_BLKS]
                    .map(|what| desc.vector(what, 1).map(|of| of[0] as usize));
                (axis?, size?)
            }
            _ => return Ok(None),
        };
        let mut padded = extents.clone();
        if blocked < rank && padded[blocked] > 1 {
            padded[blocked] = padded[blocked].next_multiple_of(size);
        }
        let mut small_strides = vec![0; rank];
        let mut stride = 1;
        for axis in (0..rank).rev() {
            small_strides[axis] = if extents[axis] == 1 { 0 } else { stride };
            stride *= padded[axis];
        }
        let outer = |axis: usize| {
            let size = if axis == blocked { size } else { 1 };
            let extent = large.0[axis].div_ceil(size);
            MemoryAxis { extent, large: strides[axis] as usize, small: small_strides[axis] * size }
        };
        let mut all: Vec<MemoryAxis> = (0..rank).map(outer).collect();
        all.sort_by_key(|axis| std::cmp::Reverse(axis.large));
        if blocked < rank {
            all.push(MemoryAxis { extent: size, large: 1, small: small_strides[blocked] });
        }
        let all = merged(all);
        let shared = all.iter().position(|axis| axis.small > 0);
        Ok(Some(Axes { all, shared, padded }))
    }

    /// Calls `f` with the place of each run of the last axis in both tensors, for element `part` of the shared axis.
    fn runs(&self, part: usize, f: &mut impl FnMut(usize, usize, MemoryAxis)) {
        let mut axes = self.all.clone();
        let [mut large, mut small] = [0; 2];
        if let Some(shared) = self.shared.filter(|&shared| shared + 1 < axes.len()) {
            [large, small] = [axes[shared].large * part, axes[shared].small * part];
            axes[shared].extent = 1;
        }
        walk(&axes, large, small, f);
    }

    /// How many parts there are.
    fn parts(&self) -> usize {
        self.shared.filter(|&shared| shared + 1 < self.all.len()).map_or(1, |shared| self.all[shared].extent)
    }

    fn small_elements(&self) -> usize {
        self.padded.iter().product()
    }
}

/// Neighbouring axes along which both tensors go on as along one are one.
fn merged(axes: Vec<MemoryAxis>) -> Vec<MemoryAxis> {
    let mut merged: Vec<MemoryAxis> = Vec::new();
    for axis in axes.into_iter().filter(|axis| axis.extent > 1) {
        match merged.last_mut() {
            Some(last)
                if last.large == axis.large * axis.extent && last.small == axis.small * axis.extent =>
            {
                *last = MemoryAxis { extent: last.extent * axis.extent, ..axis };
            }
            _ => merged.push(axis),
        }
    }
    if merged.last().is_none_or(|last| last.large != 1) {
        merged.push(MemoryAxis { extent: 1, large: 1, small: 0 });
    }
    merged
}

fn walk(axes: &[MemoryAxis], large: usize, small: usize, f: &mut impl FnMut(usize, usize, MemoryAxis)) {
    match axes {
        [last] => f(large, small, *last),
        [axis, rest @ ..] => {
            for i in 0..axis.extent {
                walk(rest, large + i * axis.large, small + i * axis.small, f);
            }
        }
        [] => {}
    }
}

/// x → scale·Σx, x in any type and the sums in f32; added up in f64, in an order that the layout decides.
pub fn sum(cpu: &Cpu, request: &KernelRequest, scale: f32) -> Result<Kernel> {
    let engine = &cpu.engine;
    let ([x], [y]) = (inputs(request)?, outputs(request)?);
    let given = request.inputs[0].1.clone().map_or_else(|| plain(engine, x), Ok)?;
    let (layout, axes) = match Axes::of(&given, &x.shape, &y.shape)? {
        Some(axes) => (given, axes),
        None => {
            let plain = plain(engine, x)?;
            let axes = Axes::of(&plain, &x.shape, &y.shape)?;
            (plain, axes.ok_or_else(|| Error::internal("a plain layout has blocks"))?)
        }
    };
    let (dtype, workers, extents) = (layout.dtype(), cpu.workers.clone(), y.shape.with_rank(x.shape.rank()));
    let scratch = 8 * axes.small_elements();
    let kernel = host_kernel("sum", vec![layout], vec![plain_f32(engine, y)?], move |inputs, outputs, _| {
        let sums = Numbers::<f64>::stored(&outputs[1]);
        match dtype {
            DType::BF16 => add_up::<bf16>(&workers, &axes, &inputs[0], &sums),
            _ => add_up::<f32>(&workers, &axes, &inputs[0], &sums),
        }
        let count = extents.iter().product();
        // SAFETY: the threads above are done; nothing else uses either.
        let (sums, y) =
            unsafe { (sums.part(0..axes.small_elements()), Numbers::of(&outputs[0]).part_mut(0..count)) };
        for (index, y) in y.iter_mut().enumerate() {
            *y = (sums[place(index, &extents, &axes.padded)] * f64::from(scale)) as f32;
        }
        Ok(())
    });
    Ok(kernel.with_workspace(scratch))
}

/// Where an element lies among padded ones.
fn place(mut index: usize, extents: &[usize], padded: &[usize]) -> usize {
    let (mut place, mut stride) = (0, 1);
    for (&extent, &padded) in extents.iter().zip(padded).rev() {
        place += index % extent * stride;
        (index, stride) = (index / extent, stride * padded);
    }
    place
}

fn add_up<T: Element>(workers: &Workers, axes: &Axes, x: &Memory, sums: &Numbers<f64>) {
    let x = Numbers::<T>::stored(x);
    // SAFETY: no thread is at work yet.
    unsafe { sums.part_mut(0..axes.small_elements()) }.fill(0.0);
    workers.each(axes.parts(), |part| {
        axes.runs(part, &mut |large, small, run| {
            // SAFETY: nothing writes to x; elements of the sums belong to one part each.
            let x = unsafe { x.part(large..large + run.extent) };
            if run.small == 0 {
                // SAFETY: as above.
                let sum = unsafe { sums.part_mut(small..small + 1) };
                sum[0] += x.iter().map(|x| f64::from(x.widened())).sum::<f64>();
                return;
            }
            if run.small == 1 {
                // SAFETY: as above.
                let sums = unsafe { sums.part_mut(small..small + run.extent) };
                sums.iter_mut().zip(x).for_each(|(sum, x)| *sum += f64::from(x.widened()));
                return;
            }
            for (i, x) in x.iter().enumerate() {
                let at = small + i * run.small;
                // SAFETY: as above.
                let sum = unsafe { sums.part_mut(at..at + 1) };
                sum[0] += f64::from(x.widened());
            }
        });
    });
}

/// x → scale·x stretched, x in f32.
pub fn expand(cpu: &Cpu, request: &KernelRequest, scale: f32) -> Result<Kernel> {
    let ([x], [y]) = (inputs(request)?, outputs(request)?);
    let layout = plain(&cpu.engine, y)?;
    let axes = Axes::of(&layout, &y.shape, &x.shape)?;
    let axes = axes.ok_or_else(|| Error::internal("a plain layout has blocks"))?;
    let (dtype, workers) = (y.dtype, cpu.workers.clone());
    Ok(host_kernel("expand", vec![plain_f32(&cpu.engine, x)?], vec![layout], move |inputs, outputs, _| {
        match dtype {
            DType::BF16 => stretch::<bf16>(&workers, &axes, scale, &inputs[0], &outputs[0]),
            _ => stretch::<f32>(&workers, &axes, scale, &inputs[0], &outputs[0]),
        }
        Ok(())
    }))
}

fn stretch<T: Element>(workers: &Workers, axes: &Axes, scale: f32, x: &Memory, y: &Memory) {
    let (x, y) = (Numbers::of(x), Numbers::<T>::stored(y));
    workers.each(axes.parts(), |part| {
        axes.runs(part, &mut |large, small, run| {
            let reach = small + (run.extent - 1) * run.small + 1;
            // SAFETY: nothing writes to x; runs of y do not overlap.
            let (x, y) = unsafe { (x.part(small..reach), y.part_mut(large..large + run.extent)) };
            y.iter_mut().enumerate().for_each(|(i, y)| *y = T::rounded(scale * x[i * run.small]));
        });
    });
}
