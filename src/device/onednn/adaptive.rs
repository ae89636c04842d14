//! Adaptive average pooling with windows of unlike sizes, on plain layouts of f32 (gradients of overlapping windows
//! are added up in place). (Where all windows are alike the graph has
//! an ordinary pooling instead.)

use std::ops::Range;
use std::rc::Rc;

use super::handle::Engine;
use super::host::{HostKernel, Numbers, Workers};
use super::layout::plain_f32;
use super::primitive::{inputs, nchw, outputs};
use crate::device::KernelRequest;
use crate::error::{Error, Result};
use crate::graph::{Spec, adaptive_window};

/// A plane before and after the pooling.
#[derive(Clone)]
struct Planes {
    count: usize,
    /// Height, width.
    large: [usize; 2],
    small: [usize; 2],
    /// For every row and for every column of the small plane the rows and columns that it averages.
    rows: Vec<Range<usize>>,
    columns: Vec<Range<usize>>,
}

impl Planes {
    /// `x` is what is pooled, `y` what comes out.
    fn new(x: &Spec, y: &Spec) -> Result<Planes> {
        let ([n, c, h, w], [yn, yc, oh, ow]) = (nchw(x)?, nchw(y)?);
        if [n, c] != [yn, yc] || [h, w, oh, ow].contains(&0) {
            return Err(Error::internal(format!("a pooling of {} cannot give {}", x.shape, y.shape)));
        }
        let windows = |from, to| (0..to).map(|index| adaptive_window(index, from, to)).collect();
        Ok(Planes {
            count: n * c,
            large: [h, w],
            small: [oh, ow],
            rows: windows(h, oh),
            columns: windows(w, ow),
        })
    }

    /// Every element of the small plane: its number, its rows, its columns and one over the size of its window.
    fn elements(&self) -> impl Iterator<Item = (usize, &Range<usize>, &Range<usize>, f32)> {
        self.rows
            .iter()
            .flat_map(|rows| self.columns.iter().map(move |columns| (rows, columns)))
            .enumerate()
            .map(|(element, (rows, columns))| {
                (element, rows, columns, 1.0 / (rows.len() * columns.len()) as f32)
            })
    }

    fn part(size: [usize; 2], plane: usize) -> Range<usize> {
        let length = size[0] * size[1];
        plane * length..(plane + 1) * length
    }
}

/// x → y
pub fn forward_pass(engine: &Engine, workers: &Rc<Workers>, request: &KernelRequest) -> Result<HostKernel> {
    let ([x], [y]) = (inputs(request)?, outputs(request)?);
    let (planes, workers) = (Planes::new(x, y)?, workers.clone());
    let (x, y) = (plain_f32(engine, x)?, plain_f32(engine, y)?);
    Ok(HostKernel::new("adaptive", vec![x], vec![y], move |inputs, outputs, _| {
        let (x, y) = (Numbers::of(&inputs[0]), Numbers::of(&outputs[0]));
        workers.each(planes.count, |plane| {
            // SAFETY: planes do not overlap, x and y lie apart, and nothing else uses y meanwhile.
            let (x, y) = unsafe {
                (x.part(Planes::part(planes.large, plane)), y.part_mut(Planes::part(planes.small, plane)))
            };
            for (element, rows, columns, share) in planes.elements() {
                let row = |row: usize| x[row * planes.large[1]..][columns.clone()].iter().sum::<f32>();
                y[element] = rows.clone().map(row).sum::<f32>() * share;
            }
        });
        Ok(())
    }))
}

/// dy → dx
pub fn backward(engine: &Engine, workers: &Rc<Workers>, request: &KernelRequest) -> Result<HostKernel> {
    let ([dy], [dx]) = (inputs(request)?, outputs(request)?);
    let (planes, workers) = (Planes::new(dx, dy)?, workers.clone());
    let (dy, dx) = (plain_f32(engine, dy)?, plain_f32(engine, dx)?);
    Ok(HostKernel::new("adaptive", vec![dy], vec![dx], move |inputs, outputs, _| {
        let (dy, dx) = (Numbers::of(&inputs[0]), Numbers::of(&outputs[0]));
        workers.each(planes.count, |plane| {
            // SAFETY: planes do not overlap, dy and dx lie apart, and nothing else uses dx meanwhile.
            let (dy, dx) = unsafe {
                (dy.part(Planes::part(planes.small, plane)), dx.part_mut(Planes::part(planes.large, plane)))
            };
            dx.fill(0.0);
            for (element, rows, columns, share) in planes.elements() {
                for row in rows.clone() {
                    let dx = &mut dx[row * planes.large[1]..][columns.clone()];
                    dx.iter_mut().for_each(|dx| *dx += dy[element] * share);
                }
            }
        });
        Ok(())
    }))
}
