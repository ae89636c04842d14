//! The gradient of the weights of a convolution of cubes with few channels, as a network's first one is. For fewer
//! channels than a block has (16) the library takes a product of matrices: twice the time of these loops, and dy has to
//! be made plain for it.

use super::Cpu;
use super::channel_loops::Grid;
use super::handle::{Desc, PrimitiveDesc};
use super::host::{Numbers, host_kernel};
use super::layout::layout;
use super::sys;
use crate::device::{Kernel, KernelRequest, Memory};
use crate::error::Result;
use crate::graph::{Conv, DType, Volume};

/// Columns of the kernel.
const COLUMNS: usize = 3;
/// Planes of dy are summed up in so many parts, whatever the number of threads.
const PARTS: usize = 32;
/// Channels of x at a time: with those of two blocks of dy their sums fit into registers.
const GROUP: usize = 4;

/// What is read, in numbers of cubes.
#[derive(Clone, Copy)]
struct CubeWindows {
    conv: Conv,
    /// Planes of dy: those of all cubes.
    planes: usize,
    channels: usize,
    /// Blocks of channels of dy, and channels of a block.
    blocks: usize,
    lanes: usize,
    x: Volume,
    y: Volume,
}

/// x, dy → dw, db?, in the layouts that the forward op has; `None` where these are not plain x and blocked dy, the
/// kernel is not three columns wide, or the processor has no wide registers.
pub fn backward_weights(
    cpu: &Cpu,
    request: &KernelRequest,
    conv: &Conv,
    forward: &PrimitiveDesc,
) -> Result<Option<Kernel>> {
    let [x, y] = [0, 1].map(|index| &request.inputs[index].0);
    let is_cube = x.shape.rank() == 5 && [x, y].iter().all(|spec| spec.dtype == DType::F32);
    let ([_, _, kw], [.., stride], [.., dilation]) = (conv.kernel, conv.stride, conv.dilation);
    let (Some(([n, c], at_x)), Some(([_, o], at_y))) = (x.shape.spatial(), y.shape.spatial()) else {
        return Ok(None);
    };
    if !is_cube || conv.groups != 1 || [kw, stride, dilation] != [COLUMNS, 1, 1] {
        return Ok(None);
    }
    let layouts = [layout(forward.desc(sys::ARG_SRC)?)?, layout(forward.desc(sys::ARG_DST)?)?];
    let lanes = |of: usize, extents: &[usize]| -> Result<usize> {
        Ok(Grid::of(&layouts[of], extents)?.map_or(0, |grid| grid.lanes))
    };
    let wide = lanes(1, &y.shape.0)?;
    let Some(add_row) = AddRow::new(wide).filter(|_| o.is_multiple_of(wide)) else { return Ok(None) };
    if lanes(0, &x.shape.0)? != 1 || layouts.iter().any(|layout| layout.dtype() != DType::F32) {
        return Ok(None);
    }
    let at = CubeWindows {
        conv: *conv,
        planes: n * at_y[0],
        channels: c,
        blocks: o / wide,
        lanes: wide,
        x: at_x,
        y: at_y,
    };
    let mut results = vec![layout(Desc::plain(&cpu.engine, &request.outputs[0].shape.0, sys::F32)?)?];
    if conv.bias {
        results.push(layout(Desc::plain(&cpu.engine, &[o], sys::F32)?)?);
    }
    let workers = cpu.workers.clone();
    let work = move |inputs: &[Memory], outputs: &[Memory], _: &_| {
        let [x, dy] = [0, 1].map(|index| Numbers::of(&inputs[index]));
        let Some(room) = outputs.last().map(Numbers::of) else { return Ok(()) };
        workers.each(at.parts(), |part| {
            // SAFETY: each part has room of its own, and x and dy are only read.
            let own = unsafe { room.part_mut(part * at.room()..(part + 1) * at.room()) };
            at.add_up(part, [&x, &dy], own, add_row);
        });
        // SAFETY: the parts are done.
        let parts = unsafe { room.part(0..at.parts() * at.room()) };
        at.total(parts, &Numbers::of(&outputs[0]), outputs.get(1).filter(|_| at.conv.bias));
        Ok(())
    };
    let kernel = host_kernel("weights of few channels", layouts.to_vec(), results, work);
    Ok(Some(kernel.with_workspace(4 * at.parts() * at.room())))
}

impl CubeWindows {
    fn parts(&self) -> usize {
        self.planes.min(PARTS)
    }

    /// Rows of the kernel, over its planes.
    fn rows(&self) -> usize {
        self.conv.kernel[0] * self.conv.kernel[1]
    }

    /// Numbers of dw, with channels of dy innermost.
    fn weights(&self) -> usize {
        self.blocks * self.channels * self.rows() * COLUMNS * self.lanes
    }

    /// Numbers of the sums over a plane or a part: of dw, then of db.
    fn sums(&self) -> usize {
        self.weights() + self.blocks * self.lanes
    }

    /// Numbers of a row of x with what the kernel reads beyond its edges.
    fn padded(&self) -> usize {
        self.y[2] + COLUMNS - 1
    }

    /// Numbers that a part works in: its sums, those of a plane, the rows of x that a row of dy meets. Multiples of a
    /// cache line.
    fn room(&self) -> usize {
        (2 * self.sums() + self.rows() * self.channels * self.padded()).next_multiple_of(16)
    }

    /// The sums over the planes of a part: f32 over a plane, and over these.
    fn add_up(&self, part: usize, [x, dy]: [&Numbers; 2], room: &mut [f32], add_row: AddRow) {
        let (own, rest) = room.split_at_mut(self.sums());
        let (sums, rows) = rest.split_at_mut(self.sums());
        let [_, height, width] = self.y;
        own.fill(0.0);
        for plane in part * self.planes / self.parts()..(part + 1) * self.planes / self.parts() {
            let (cube, depth) = (plane / self.y[0], plane % self.y[0]);
            sums.fill(0.0);
            for row in 0..height {
                self.gather(x, [cube, depth, row], rows);
                let length = width * self.lanes;
                let first = |block: usize| {
                    (((cube * self.blocks + block) * self.y[0] + depth) * height + row) * length
                };
                let together = add_row.blocks(self.blocks);
                for block in (0..self.blocks).step_by(together) {
                    let at = [block, block + together - 1];
                    // SAFETY: dy is only read.
                    let of_row = at.map(|block| unsafe { dy.part(first(block)..first(block) + length) });
                    self.add_taps(add_row, at, of_row, rows, sums);
                }
            }
            own.iter_mut().zip(&*sums).for_each(|(own, sum)| *own += sum);
        }
    }

    /// The rows of x that a row of dy meets, with zeros beyond the edges.
    fn gather(&self, x: &Numbers, [cube, depth, row]: [usize; 3], rows: &mut [f32]) {
        let Conv { stride, padding, dilation, kernel, .. } = self.conv;
        let [planes, height, width] = self.x;
        let inside = |axis: usize, at: usize, tap: usize, size: usize| {
            (at * stride[axis] + tap * dilation[axis])
                .checked_sub(padding[axis])
                .filter(|&place| place < size)
        };
        for (index, to) in
            rows[..self.rows() * self.channels * self.padded()].chunks_exact_mut(self.padded()).enumerate()
        {
            let (tap, channel) = (index / self.channels, index % self.channels);
            let place =
                inside(0, depth, tap / kernel[1], planes).zip(inside(1, row, tap % kernel[1], height));
            let Some((z, y)) = place else {
                to.fill(0.0);
                continue;
            };
            let from = (((cube * self.channels + channel) * planes + z) * height + y) * width;
            let count = width.min(self.padded().saturating_sub(padding[2]));
            // SAFETY: x is only read.
            let from = unsafe { x.part(from..from + count) };
            let (before, rest) = to.split_at_mut(padding[2].min(self.padded()));
            let (inner, behind) = rest.split_at_mut(count);
            inner.copy_from_slice(from);
            before.fill(0.0);
            behind.fill(0.0);
        }
    }

    /// A row of dy, of one block or of two, with all rows of the kernel.
    fn add_taps(&self, add_row: AddRow, at: [usize; 2], dy: [&[f32]; 2], rows: &[f32], sums: &mut [f32]) {
        let (size, group) = (COLUMNS * self.lanes, self.channels * self.padded());
        let (weights, biases) = sums.split_at_mut(self.weights());
        for (tap, rows) in rows[..self.rows() * group].chunks_exact(group).enumerate() {
            for first in (0..self.channels).step_by(GROUP) {
                let place = |block: usize| ((block * self.rows() + tap) * self.channels + first) * size;
                let channels = GROUP.min(self.channels - first);
                add_row.run(RowSums {
                    x: &rows[first * self.padded()..],
                    dy,
                    sums: weights,
                    places: at.map(place),
                    channels,
                });
            }
        }
        let blocks = if at[0] == at[1] { 1 } else { 2 };
        for (block, dy) in at.into_iter().zip(dy).take(blocks) {
            let sums = &mut biases[block * self.lanes..(block + 1) * self.lanes];
            match self.lanes {
                16 => add_places::<16>(dy, sums),
                _ => add_places::<8>(dy, sums),
            }
        }
    }

    /// The parts together, in f64, as plain weights.
    fn total(&self, parts: &[f32], dw: &Numbers, db: Option<&Memory>) {
        let sum = |place: usize| {
            parts.chunks_exact(self.room()).map(|part| f64::from(part[place])).sum::<f64>() as f32
        };
        let (filters, taps) = (self.blocks * self.lanes, self.rows() * COLUMNS);
        // SAFETY: nothing else uses the results meanwhile.
        let dw = unsafe { dw.part_mut(0..filters * self.channels * taps) };
        for (index, to) in dw.iter_mut().enumerate() {
            let (filter, channel, tap) =
                (index / taps / self.channels, index / taps % self.channels, index % taps);
            let (row, column) = (tap / COLUMNS, tap % COLUMNS);
            let of_row = ((filter / self.lanes * self.rows() + row) * self.channels + channel) * COLUMNS;
            *to = sum((of_row + column) * self.lanes + filter % self.lanes);
        }
        if let Some(db) = db.map(Numbers::of) {
            // SAFETY: as above.
            let db = unsafe { db.part_mut(0..filters) };
            db.iter_mut().enumerate().for_each(|(filter, to)| *to = sum(self.weights() + filter));
        }
    }
}

/// Adds up a row of blocks of L channels.
fn add_places<const L: usize>(dy: &[f32], sums: &mut [f32]) {
    let mut own = [0f32; L];
    for dy in dy.as_chunks::<L>().0 {
        (0..L).for_each(|lane| own[lane] += dy[lane]);
    }
    sums.iter_mut().zip(own).for_each(|(sum, own)| *sum += own);
}

/// A row of dy, and the rows of some channels of x.
struct RowSums<'a> {
    /// One after the other.
    x: &'a [f32],
    /// Of one block, or of two.
    dy: [&'a [f32]; 2],
    sums: &'a mut [f32],
    /// Where the sums of each block begin: channels × columns × lanes.
    places: [usize; 2],
    channels: usize,
}

/// How rows are added up on this processor.
#[derive(Clone, Copy)]
enum AddRow {
    /// In registers of 16 numbers, of which there are 32.
    #[cfg(target_arch = "x86_64")]
    Wide,
    /// In registers of 8 numbers, of which there are 16.
    #[cfg(target_arch = "x86_64")]
    Half,
}

impl AddRow {
    /// For blocks of so many channels.
    fn new(lanes: usize) -> Option<AddRow> {
        #[cfg(target_arch = "x86_64")]
        match lanes {
            16 if is_x86_feature_detected!("avx512f") => return Some(AddRow::Wide),
            8 if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") => {
                return Some(AddRow::Half);
            }
            _ => {}
        }
        let _ = lanes;
        None
    }

    /// Blocks of dy at a time, of so many.
    fn blocks(self, of: usize) -> usize {
        match self {
            #[cfg(target_arch = "x86_64")]
            AddRow::Wide if of.is_multiple_of(2) => 2,
            _ => 1,
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn run(self, _: RowSums) {
        match self {}
    }

    #[cfg(target_arch = "x86_64")]
    fn run(self, row: RowSums) {
        #[target_feature(enable = "avx512f")]
        fn wide<const B: usize>(row: RowSums) {
            by_channels::<16, B>(row);
        }
        #[target_feature(enable = "avx2,fma")]
        fn half(row: RowSums) {
            by_channels::<8, 1>(row);
        }
        // SAFETY: `new` asked the processor for what these are compiled for.
        unsafe {
            match self {
                AddRow::Wide if row.places[0] != row.places[1] => wide::<2>(row),
                AddRow::Wide => wide::<1>(row),
                AddRow::Half => half(row),
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn by_channels<const L: usize, const B: usize>(row: RowSums) {
    match row.channels {
        1 => add_row::<L, B, 1>(row),
        2 => add_row::<L, B, 2>(row),
        3 => add_row::<L, B, 3>(row),
        _ => add_row::<L, B, GROUP>(row),
    }
}

/// Sums stay in registers over the row.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn add_row<const L: usize, const B: usize, const C: usize>(row: RowSums) {
    let RowSums { x, dy, sums, places, .. } = row;
    let count = dy[0].len() / L;
    let length = count + COLUMNS - 1;
    let x: [&[f32]; C] = std::array::from_fn(|channel| &x[channel * length..][..length]);
    let dy: [&[[f32; L]]; B] = std::array::from_fn(|block| &dy[block].as_chunks::<L>().0[..count]);
    let mut own = [[[[0f32; L]; COLUMNS]; C]; B];
    for (block, own) in own.iter_mut().enumerate() {
        let from = sums[places[block]..].as_chunks::<L>().0;
        for (own, from) in own.as_flattened_mut().iter_mut().zip(from) {
            *own = *from;
        }
    }
    for at in 0..count {
        let dy: [[f32; L]; B] = std::array::from_fn(|block| dy[block][at]);
        for channel in 0..C {
            for column in 0..COLUMNS {
                let x = x[channel][at + column];
                for block in 0..B {
                    for lane in 0..L {
                        let sum = &mut own[block][channel][column][lane];
                        *sum = x.mul_add(dy[block][lane], *sum);
                    }
                }
            }
        }
    }
    for (block, own) in own.iter().enumerate() {
        let to = sums[places[block]..].as_chunks_mut::<L>().0;
        to.iter_mut().zip(own.as_flattened()).for_each(|(to, own)| *to = *own);
    }
}
