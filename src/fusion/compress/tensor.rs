//! A tensor's gradient and its residual as schemes want them: without padding, on the host; by rows where that counts.

use std::ops::Range;
use std::slice::from_ref;

use super::codec::pieces;
use super::split::Shape;
use crate::device::memory::{bytes_of, bytes_of_mut};
use crate::device::{Device, Memory, Scalars, Step};
use crate::error::Result;
use crate::graph::Spec;
use crate::plan::Parameter;

pub struct Tensor {
    /// Where the gradient lies; in plain order between `flatten` and `restore`.
    gradient: Memory,
    /// What stays behind, in the same order.
    residual: Memory,
    /// For a tensor in another order: out of it into scratch memory, and back.
    reorders: Option<Reorders>,
}

struct Reorders {
    scratch: Memory,
    flatten: Box<dyn Step>,
    restore: Box<dyn Step>,
}

impl Tensor {
    /// Of regions of gradients, residuals and scratch memory.
    pub fn new(
        shape: &Shape,
        parameter: &Parameter,
        device: &dyn Device,
        gradients: &Memory,
        residuals: &Memory,
        scratch: &Memory,
    ) -> Result<Tensor> {
        let bytes = 4 * shape.elements();
        // A layout never has fewer elements than the plain one.
        let gradient = gradients.slice(4 * shape.start, parameter.layout.bytes().max(bytes));
        let reorders = match shape.blocked {
            true => Some(Reorders::new(&parameter.spec, parameter, device, &gradient, scratch)?),
            false => None,
        };
        Ok(Tensor { gradient, residual: residuals.slice(4 * shape.residual, bytes), reorders })
    }

    /// Puts the gradient in plain order where it lies.
    pub fn flatten(&mut self, buffer: &mut Vec<f32>) -> Result<()> {
        let Some(Reorders { scratch, flatten, .. }) = &mut self.reorders else { return Ok(()) };
        flatten.run(&Scalars::default())?;
        copy(scratch, &self.gradient, scratch.bytes() / 4, buffer);
        Ok(())
    }

    /// Puts it back as the device keeps it, padding zeroed.
    pub fn restore(&mut self, buffer: &mut Vec<f32>) -> Result<()> {
        let Some(Reorders { scratch, restore, .. }) = &mut self.reorders else { return Ok(()) };
        copy(&self.gradient, scratch, scratch.bytes() / 4, buffer);
        restore.run(&Scalars::default())
    }

    /// Reads gradient plus residual, what there is to send.
    pub fn corrected(&self, range: &Range<usize>, buffer: &mut Vec<f32>, other: &mut Vec<f32>) {
        read(&self.gradient, range, buffer);
        read(&self.residual, range, other);
        buffer.iter_mut().zip(other.iter()).for_each(|(gradient, residual)| *gradient += residual);
    }

    pub fn residual(&self, range: &Range<usize>, buffer: &mut Vec<f32>) {
        read(&self.residual, range, buffer);
    }

    pub fn keep(&self, start: usize, residual: &[f32]) {
        write(&self.residual, start, residual);
    }

    pub fn set_gradient(&self, start: usize, sum: &[f32]) {
        write(&self.gradient, start, sum);
    }
}

impl Reorders {
    fn new(
        spec: &Spec,
        parameter: &Parameter,
        device: &dyn Device,
        gradient: &Memory,
        scratch: &Memory,
    ) -> Result<Reorders> {
        let plain = device.plain(spec);
        let scratch = scratch.slice(0, plain.bytes());
        let bind = |from: (&_, &Memory), to: (&_, &Memory)| {
            let kernel = device.reorder(spec, from.0, to.0)?;
            let workspace = device.allocate(kernel.workspace)?;
            kernel.bind(from_ref(from.1), from_ref(to.1), &workspace)
        };
        let flatten = bind((&parameter.layout, gradient), (&plain, &scratch))?;
        let restore = bind((&plain, &scratch), (&parameter.layout, gradient))?;
        Ok(Reorders { scratch, flatten, restore })
    }
}

fn read(memory: &Memory, range: &Range<usize>, buffer: &mut Vec<f32>) {
    buffer.resize(range.len(), 0.0);
    memory.slice(4 * range.start, 4 * range.len()).read(bytes_of_mut(buffer));
}

fn write(memory: &Memory, start: usize, values: &[f32]) {
    memory.slice(4 * start, 4 * values.len()).write(bytes_of(values));
}

fn copy(from: &Memory, to: &Memory, elements: usize, buffer: &mut Vec<f32>) {
    for piece in pieces(elements) {
        read(from, &piece, buffer);
        write(to, piece.start, buffer);
    }
}
