//! The gradient of a depthwise convolution's weights, where the library has none for blocks of channels: for kernels of
//! 5×5 and 7×7 it would take plain layouts and a product of matrices for each channel, which is some ten times slower.

use std::ops::Range;

use half::bf16;

use super::Cpu;
use super::channel_loops::{Element, Grid, load};
use super::handle::{Desc, PrimitiveDesc};
use super::host::{Numbers, Workers, host_kernel, in_wide_registers};
use super::layout::layout;
use super::sys;
use crate::device::{Kernel, KernelRequest, Memory};
use crate::error::Result;
use crate::graph::{Conv, DType};

/// Channels of a block.
const LANES: usize = 16;
const HALF: usize = LANES / 2;
/// Rows of the kernel at most.
const MOST_ROWS: usize = 7;

/// What is read of the images, in numbers of pixels.
#[derive(Clone, Copy)]
struct Geometry {
    conv: Conv,
    images: usize,
    channels: usize,
    /// Height, width of x and of dy.
    x: [usize; 2],
    y: [usize; 2],
}

/// x, dy → dw, db?, in the layouts that the forward op has; `None` where these are not of blocks of 16 channels, or the
/// convolution is none of a channel each with a kernel that this is made for.
pub fn backward_weights(
    cpu: &Cpu,
    request: &KernelRequest,
    conv: &Conv,
    forward: &PrimitiveDesc,
) -> Result<Option<Kernel>> {
    let ([x, y], w) = ([0, 1].map(|index| &request.inputs[index].0), &request.outputs[0]);
    let [Some([n, c, h, width]), Some([_, o, oh, ow]), Some([.., kh, kw])] =
        [x, y, w].map(|of| of.shape.nchw())
    else {
        return Ok(None);
    };
    let layouts = [layout(forward.desc(sys::ARG_SRC)?)?, layout(forward.desc(sys::ARG_DST)?)?];
    let is_blocked = |at: usize, extents: [usize; 4]| -> Result<bool> {
        let fits = layouts[at].dtype() == x.dtype && y.dtype == x.dtype;
        Ok(fits && Grid::of(&layouts[at], &extents)?.is_some_and(|grid| grid.lanes == LANES))
    };
    let fits = conv.groups == c && c == o && c > 1 && kh <= MOST_ROWS && [5, 7].contains(&kw);
    // Where there are 16 channels, channels-last looks alike and lies the same.
    if !fits || !is_blocked(0, [n, c, h, width])? || !is_blocked(1, [n, o, oh, ow])? {
        return Ok(None);
    }
    let at = Geometry { conv: *conv, images: n, channels: c, x: [h, width], y: [oh, ow] };
    let mut results = vec![layout(Desc::plain(&cpu.engine, &[c, 1, 1, kh, kw], sys::F32)?)?];
    if conv.bias {
        results.push(layout(Desc::plain(&cpu.engine, &[c], sys::F32)?)?);
    }
    let (workers, dtype) = (cpu.workers.clone(), x.dtype);
    let work = move |inputs: &[Memory], outputs: &[Memory], _: &_| {
        match (dtype, kw) {
            (DType::BF16, 5) => of_all::<bf16, 5>(&at, &workers, inputs, outputs),
            (DType::BF16, _) => of_all::<bf16, 7>(&at, &workers, inputs, outputs),
            (_, 5) => of_all::<f32, 5>(&at, &workers, inputs, outputs),
            (_, _) => of_all::<f32, 7>(&at, &workers, inputs, outputs),
        }
        Ok(())
    };
    Ok(Some(host_kernel("depthwise weights", layouts.to_vec(), results, work)))
}

fn of_all<T: Element, const KW: usize>(
    at: &Geometry,
    workers: &Workers,
    inputs: &[Memory],
    outputs: &[Memory],
) {
    let [x, dy] = [0, 1].map(|index| Numbers::<T>::stored(&inputs[index]));
    let dw = Numbers::of(&outputs[0]);
    let db = outputs.get(1).filter(|_| at.conv.bias).map(Numbers::of);
    workers.each(at.channels.div_ceil(LANES), |block| {
        of_block::<T, KW>(at, block, [&x, &dy], &dw);
        if let Some(db) = &db {
            bias_of_block(at, block, &dy, db);
        }
    });
}

/// The weights of a block of channels: sums over an image in f32, over images in f64.
fn of_block<T: Element, const KW: usize>(
    at: &Geometry,
    block: usize,
    tensors: [&Numbers<T>; 2],
    dw: &Numbers,
) {
    let [_, kh, _] = at.conv.kernel;
    let mut sums = [[[0f64; LANES]; KW]; MOST_ROWS];
    for image in 0..at.images {
        let mut of_image = [[[0f32; LANES]; KW]; MOST_ROWS];
        add_up(at, image * at.channels.div_ceil(LANES) + block, tensors, &mut of_image);
        for (sums, of_image) in sums.iter_mut().flatten().flatten().zip(of_image.iter().flatten().flatten()) {
            *sums += f64::from(*of_image);
        }
    }
    for channel in at.own(block) {
        let own = channel * kh * KW..(channel + 1) * kh * KW;
        // SAFETY: each block has channels of its own.
        let own = unsafe { dw.part_mut(own) };
        for (place, own) in own.iter_mut().enumerate() {
            *own = sums[place / KW][place % KW][channel % LANES] as f32;
        }
    }
}

/// The biases of a block of channels: sums of dy.
fn bias_of_block<T: Element>(at: &Geometry, block: usize, dy: &Numbers<T>, db: &Numbers) {
    let (blocks, rows) = (at.channels.div_ceil(LANES), at.y[0] * at.y[1]);
    let mut sums = [0f64; LANES];
    for image in 0..at.images {
        let mut of_image = [0f32; LANES];
        for row in 0..rows {
            let dy: [f32; LANES] = load(dy, ((image * blocks + block) * rows + row) * LANES);
            (0..LANES).for_each(|l| of_image[l] += dy[l]);
        }
        (0..LANES).for_each(|l| sums[l] += f64::from(of_image[l]));
    }
    for channel in at.own(block) {
        // SAFETY: as above.
        unsafe { db.part_mut(channel..channel + 1)[0] = sums[channel % LANES] as f32 };
    }
}

impl Geometry {
    /// The channels of a block that are there.
    fn own(&self, block: usize) -> Range<usize> {
        block * LANES..self.channels.min((block + 1) * LANES)
    }
}

type WeightSums<const KW: usize> = [[[f32; LANES]; KW]; MOST_ROWS];

in_wide_registers! {
    fn add_up [T: Element, const KW: usize] (
        at: &Geometry,
        block: usize,
        tensors: [&Numbers<T>; 2],
        sums: &mut WeightSums<KW>,
    ) {
        add_up_anywhere(at, block, tensors, sums);
    }
}

#[inline(always)]
fn add_up_anywhere<T: Element, const KW: usize>(
    at: &Geometry,
    block: usize,
    [x, dy]: [&Numbers<T>; 2],
    sums: &mut WeightSums<KW>,
) {
    let Conv { stride, padding, dilation, kernel, .. } = at.conv;
    let [stride, padding, dilation, kernel] = [stride, padding, dilation, kernel].map(|[_, h, w]| [h, w]);
    let ([h, w], [oh, ow]) = (at.x, at.y);
    // Columns of dy of which every column of the kernel reads something that is there.
    let reach = (KW - 1) * dilation[1];
    let first = padding[1].div_ceil(stride[1]).min(ow);
    let end = match (w + padding[1]).checked_sub(reach + 1) {
        Some(last) => (last / stride[1] + 1).clamp(first, ow),
        None => first,
    };
    for row in 0..oh {
        for (k, sums) in sums.iter_mut().enumerate().take(kernel[0]) {
            let Some(from) = (row * stride[0] + k * dilation[0]).checked_sub(padding[0]).filter(|&r| r < h)
            else {
                continue;
            };
            let (to, from) = ((block * oh + row) * ow, (block * h + from) * w);
            let edges = (0..first).chain(end..ow);
            for column in edges {
                let dy: [f32; LANES] = load(dy, (to + column) * LANES);
                for (j, sum) in sums.iter_mut().enumerate() {
                    let place = (column * stride[1] + j * dilation[1]).checked_sub(padding[1]);
                    if let Some(place) = place.filter(|&place| place < w) {
                        let x: [f32; LANES] = load(x, (from + place) * LANES);
                        (0..LANES).for_each(|l| sum[l] += x[l] * dy[l]);
                    }
                }
            }
            inside(x, dy, [from, to], first..end, [stride[1], padding[1], dilation[1]], sums);
        }
    }
}

/// A row of dy with a row of x, where nothing is beyond the edges. The sums stay in registers: half of the channels at
/// a time, for which there are enough.
#[inline(always)]
fn inside<T: Element, const KW: usize>(
    x: &Numbers<T>,
    dy: &Numbers<T>,
    [from, to]: [usize; 2],
    columns: Range<usize>,
    [stride, padding, dilation]: [usize; 3],
    sums: &mut [[f32; LANES]; KW],
) {
    for first in [0, HALF] {
        let mut own: [[f32; HALF]; KW] =
            std::array::from_fn(|j| std::array::from_fn(|lane| sums[j][first + lane]));
        for column in columns.clone() {
            let dy: [f32; HALF] = load(dy, (to + column) * LANES + first);
            let place = from + column * stride - padding;
            for (j, sum) in own.iter_mut().enumerate() {
                let x: [f32; HALF] = load(x, (place + j * dilation) * LANES + first);
                for l in 0..HALF {
                    sum[l] += x[l] * dy[l];
                }
            }
        }
        for (sums, own) in sums.iter_mut().zip(own) {
            sums[first..first + HALF].copy_from_slice(&own);
        }
    }
}
