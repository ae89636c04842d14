//! Reshape and addition.

use std::rc::Rc;

use super::handle::Engine;
use super::host::{HostKernel, Numbers, Workers, copy};
use super::layout::plain;
use super::primitive::{inputs, outputs};
use crate::device::Request;
use crate::error::{Error, Result};

/// x → y: the same elements in logical order, so both plain; in the same place if possible.
pub fn reshape(engine: &Engine, request: &Request) -> Result<HostKernel> {
    let ([x], [y]) = (inputs(request)?, outputs(request)?);
    if x.shape.elements() != y.shape.elements() || x.dtype != y.dtype {
        return Err(Error::internal(format!("{} cannot be seen as {}", x.shape, y.shape)));
    }
    let (x, y) = (plain(engine, x)?, plain(engine, y)?);
    let bytes = y.bytes();
    let kernel = HostKernel::new("copy", vec![x], vec![y], move |inputs, outputs, _| {
        copy(&inputs[0], &outputs[0], bytes);
        Ok(())
    });
    Ok(kernel.in_place())
}

/// a, b → a + b, then ReLU, in the layout of a. What pads a layout is zero in both, and so in the sum.
pub fn add(engine: &Engine, workers: &Rc<Workers>, request: &Request, relu: bool) -> Result<HostKernel> {
    let ([a, b], [y]) = (inputs(request)?, outputs(request)?);
    if a != b || a != y {
        return Err(Error::internal(format!("{} + {} cannot give {}", a.shape, b.shape, y.shape)));
    }
    let given = request.inputs.iter().find_map(|(_, layout)| layout.clone());
    let layout = given.map_or_else(|| plain(engine, a), Ok)?;
    let (length, workers) = (layout.bytes() / 4, workers.clone());
    let layouts = vec![layout.clone(), layout.clone()];
    let name = if relu { "add+relu" } else { "add" };
    let kernel = HostKernel::new(name, layouts, vec![layout], move |inputs, outputs, _| {
        let twice = inputs[0].address() == inputs[1].address();
        let (a, b, y) = (Numbers::of(&inputs[0]), Numbers::of(&inputs[1]), Numbers::of(&outputs[0]));
        let in_place = inputs[0].address() == outputs[0].address();
        workers.each_piece(length, |range| {
            // SAFETY: pieces do not overlap; y is apart from b and, but for the same address, from a.
            unsafe {
                let y = y.part_mut(range.clone());
                if !in_place {
                    y.copy_from_slice(a.part(range.clone()));
                }
                match in_place && twice {
                    true => y.iter_mut().for_each(|y| *y += *y),
                    false => y.iter_mut().zip(b.part(range)).for_each(|(y, b)| *y += b),
                }
                // The piece is still in cache.
                if relu {
                    y.iter_mut().for_each(|y| *y = y.max(0.0));
                }
            }
        });
        Ok(())
    });
    Ok(kernel.in_place())
}
