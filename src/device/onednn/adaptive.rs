//! Adaptive average pooling with windows of unlike sizes, on plain layouts of f32 (gradients of overlapping windows
//! are added up in place). (Where all windows are alike the graph has
//! an ordinary pooling instead.)

use std::ops::Range;

use super::Cpu;
use super::host::{Numbers, host_kernel};
use super::layout::plain_f32;
use super::primitive::{inputs, outputs, spatial};
use crate::device::{Kernel, KernelRequest};
use crate::error::{Error, Result};
use crate::graph::{Spec, Volume, adaptive_window};

/// A channel of a sample before and after the pooling.
#[derive(Clone)]
struct Channels {
    count: usize,
    large: Volume,
    small: Volume,
    /// For every plane, every row and every column of the small one those that it averages.
    windows: [Vec<Range<usize>>; 3],
}

impl Channels {
    /// `x` is what is pooled, `y` what comes out.
    fn new(x: &Spec, y: &Spec) -> Result<Channels> {
        let ((first, large), (given, small)) = (spatial(x)?, spatial(y)?);
        if first != given || large.contains(&0) || small.contains(&0) {
            return Err(Error::internal(format!("a pooling of {} cannot give {}", x.shape, y.shape)));
        }
        let along = |axis: usize| {
            let (from, to) = (large[axis], small[axis]);
            (0..to).map(|index| adaptive_window(index, from, to)).collect()
        };
        Ok(Channels { count: first.iter().product(), large, small, windows: [0, 1, 2].map(along) })
    }

    /// Every element of the small one: its number, its planes, rows and columns, and one over the size of its window.
    fn elements(&self) -> impl Iterator<Item = (usize, [&Range<usize>; 3], f32)> {
        let [planes, rows, columns] = &self.windows;
        let of_plane = move |plane| {
            rows.iter().flat_map(move |row| columns.iter().map(move |column| [plane, row, column]))
        };
        planes.iter().flat_map(of_plane).enumerate().map(|(element, window)| {
            (element, window, 1.0 / window.iter().map(|along| along.len()).product::<usize>() as f32)
        })
    }

    /// Where each row of a window begins in the large one.
    fn rows(&self, [planes, rows, _]: [&Range<usize>; 3]) -> impl Iterator<Item = usize> + use<> {
        let ([_, height, width], rows) = (self.large, rows.clone());
        planes.clone().flat_map(move |plane| rows.clone().map(move |row| (plane * height + row) * width))
    }

    fn part(size: Volume, channel: usize) -> Range<usize> {
        let length = size.iter().product::<usize>();
        channel * length..(channel + 1) * length
    }
}

/// x → y
pub fn forward_pass(cpu: &Cpu, request: &KernelRequest) -> Result<Kernel> {
    let ([x], [y]) = (inputs(request)?, outputs(request)?);
    let (channels, workers) = (Channels::new(x, y)?, cpu.workers.clone());
    let (x, y) = (plain_f32(&cpu.engine, x)?, plain_f32(&cpu.engine, y)?);
    Ok(host_kernel("adaptive", vec![x], vec![y], move |inputs, outputs, _| {
        let (x, y) = (Numbers::of(&inputs[0]), Numbers::of(&outputs[0]));
        workers.each(channels.count, |channel| {
            // SAFETY: channels do not overlap, x and y lie apart, and nothing else uses y meanwhile.
            let (x, y) = unsafe {
                (
                    x.part(Channels::part(channels.large, channel)),
                    y.part_mut(Channels::part(channels.small, channel)),
                )
            };
            for (element, window, share) in channels.elements() {
                let row = |row: usize| x[row..][window[2].clone()].iter().sum::<f32>();
                y[element] = channels.rows(window).map(row).sum::<f32>() * share;
            }
        });
        Ok(())
    }))
}

/// dy → dx
pub fn backward(cpu: &Cpu, request: &KernelRequest) -> Result<Kernel> {
    let ([dy], [dx]) = (inputs(request)?, outputs(request)?);
    let (channels, workers) = (Channels::new(dx, dy)?, cpu.workers.clone());
    let (dy, dx) = (plain_f32(&cpu.engine, dy)?, plain_f32(&cpu.engine, dx)?);
    Ok(host_kernel("adaptive", vec![dy], vec![dx], move |inputs, outputs, _| {
        let (dy, dx) = (Numbers::of(&inputs[0]), Numbers::of(&outputs[0]));
        workers.each(channels.count, |channel| {
            // SAFETY: channels do not overlap, dy and dx lie apart, and nothing else uses dx meanwhile.
            let (dy, dx) = unsafe {
                (
                    dy.part(Channels::part(channels.small, channel)),
                    dx.part_mut(Channels::part(channels.large, channel)),
                )
            };
            dx.fill(0.0);
            for (element, window, share) in channels.elements() {
                for row in channels.rows(window) {
                    let dx = &mut dx[row..][window[2].clone()];
                    dx.iter_mut().for_each(|dx| *dx += dy[element] * share);
                }
            }
        });
        Ok(())
    }))
}
