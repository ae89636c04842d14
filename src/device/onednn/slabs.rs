//! The gradient of a large linear layer's input, slab by slab of its weights.
//!
//! The weights lie in the layout that the forward pass and the weights' gradient want: blocks of B outputs, in each the
//! inputs one after the other, each with its B outputs side by side. Such a block is a plain matrix V of inputs × B. So dxᵀ is
//! the sum over the blocks of V · dyᵀ, with the B rows of dyᵀ that belong to it, and weights are read once, as they lie. The
//! library's own backward kernel copies every block into another order first: it reaches 63 % of a large product's speed where
//! this reaches 90 (32 × 9216 × 4096).

use std::any::Any;
use std::ops::RangeInclusive;
use std::ptr::null;
use std::rc::Rc;

use super::handle::{Attributes, Desc, Engine, PrimitiveDesc};
use super::primitive::{PrimitiveKernel, attributes, check_memory, inputs, outputs};
use super::reorder::reorder_desc;
use super::sys;
use crate::device::memory::ALIGNMENT;
use crate::device::{Kernel, Layout, Memory, Request, Scalars, Step};
use crate::error::Result;

/// Samples for which this is faster: with fewer the sums are short, with more copying is the smaller part.
pub const SAMPLES: RangeInclusive<usize> = 16..=64;

/// Weights from which on a layer is large: 4 MB, more than a core's own cache.
pub const LARGE: usize = 1 << 20;

/// Bytes of dxᵀ that are added to at a time: they stay in a core's second-level cache.
const PART: usize = 640 << 10;

/// dy, w → dx
pub struct Slabs {
    inputs: [Layout; 2],
    outputs: [Layout; 1],
    /// dy → dyᵀ, dxᵀ → dx.
    transpose: [PrimitiveKernel; 2],
    /// A part of V · dyᵀ, of the first block and of those added to it.
    products: [PrimitiveKernel; 2],
    /// Blocks of outputs, parts of the inputs.
    counts: [usize; 2],
    subject: Rc<str>,
}

/// What does the work of this backward kernel faster, where that is so.
pub fn instead_of(
    usual: &PrimitiveKernel,
    engine: &Rc<Engine>,
    request: &Request,
    subject: &str,
) -> Result<Option<Slabs>> {
    let ([dy, _], [dx]) = (inputs(request)?, outputs(request)?);
    let (samples, features, width) = (dy.shape.batch(), dy.shape.per_sample(), dx.shape.per_sample());
    let texts = [&usual.inputs()[0], &usual.inputs()[1], &usual.outputs()[0]].map(Layout::text);
    let slab = [32, 64].into_iter().find(|slab| {
        texts[0] == format!("f32 {samples}x{features} ab")
            && texts[1] == format!("f32 {features}x{width} AB16b{slab}a")
            && texts[2] == format!("f32 {samples}x{width} ab")
    });
    let Some(slab) = slab.filter(|slab| features % slab == 0) else { return Ok(None) };
    let parts = (4 * samples * width).div_ceil(PART);
    if !SAMPLES.contains(&samples) || features * width < LARGE || width % (16 * parts) != 0 {
        return Ok(None);
    }
    let rows = width / parts;
    let products = [false, true].map(|add| product(engine, [rows, slab, samples], add));
    let [first, more] = products;
    let products = [first?, more?];
    if products.iter().any(|product| !product.implementation().starts_with("brg")) {
        return Ok(None);
    }
    Ok(Some(Slabs {
        inputs: [0, 1].map(|input| usual.inputs()[input].clone()),
        outputs: [usual.outputs()[0].clone()],
        transpose: [
            transpose(engine, [samples, features], [features, 1], [1, samples])?,
            transpose(engine, [samples, width], [1, samples], [width, 1])?,
        ],
        products,
        counts: [features / slab, parts],
        subject: Rc::from(subject),
    }))
}

/// a (m × k) · b (k × n), all plain, or that added to what is there.
fn product(engine: &Rc<Engine>, [m, k, n]: [usize; 3], add: bool) -> Result<PrimitiveKernel> {
    let plain = |extents: [usize; 2]| Desc::plain(engine, &extents, sys::F32);
    let (a, b, c) = (plain([m, k])?, plain([k, n])?, plain([m, n])?);
    let attributes = if add { Attributes::adding(engine)? } else { attributes(engine)? };
    // SAFETY: descriptors and attributes outlive the call; there is no bias.
    let desc = PrimitiveDesc::create(engine, "dnnl_matmul_primitive_desc_create", |desc| unsafe {
        (engine.library.functions.dnnl_matmul_primitive_desc_create)(
            desc,
            engine.raw(),
            a.raw(),
            b.raw(),
            null(),
            c.raw(),
            attributes.raw(),
        )
    })?;
    PrimitiveKernel::new(engine, desc, &[sys::ARG_SRC, sys::ARG_WEIGHTS], &[sys::ARG_DST])
}

/// A copy of a matrix from one order of its elements into another, given as strides.
fn transpose(
    engine: &Rc<Engine>,
    extents: [usize; 2],
    from: [usize; 2],
    to: [usize; 2],
) -> Result<PrimitiveKernel> {
    let strided = |strides| Desc::strided(engine, &extents, strides, sys::F32);
    let desc = reorder_desc(engine, &strided(&from)?, &strided(&to)?)?;
    PrimitiveKernel::new(engine, desc, &[sys::ARG_SRC], &[sys::ARG_DST])
}

impl Slabs {
    /// Where dxᵀ and the kernels' own scratch memory begin in the workspace, behind dyᵀ, and where all ends.
    fn places(&self) -> [usize; 3] {
        let after = |start: usize, bytes: usize| (start + bytes).next_multiple_of(ALIGNMENT);
        let turned = after(0, self.inputs[0].bytes());
        let scratch = after(turned, self.outputs[0].bytes());
        let kernels = self.transpose.iter().chain(&self.products);
        [turned, scratch, scratch + kernels.map(Kernel::workspace).max().unwrap_or(0)]
    }
}

impl Kernel for Slabs {
    fn inputs(&self) -> &[Layout] {
        &self.inputs
    }

    fn outputs(&self) -> &[Layout] {
        &self.outputs
    }

    fn workspace(&self) -> usize {
        self.places()[2]
    }

    fn implementation(&self) -> String {
        format!("slabs {}", self.products[0].implementation())
    }

    fn bind(&self, inputs: &[Memory], outputs: &[Memory], workspace: &Memory) -> Result<Box<dyn Step>> {
        check_memory(inputs, &self.inputs.iter().collect::<Vec<_>>())?;
        let ([dx_at, scratch_at, end], [blocks, parts]) = (self.places(), self.counts);
        let dy = workspace.slice(0, self.inputs[0].bytes());
        let dx = workspace.slice(dx_at, self.outputs[0].bytes());
        let scratch = workspace.slice(scratch_at, end - scratch_at);
        let weights = inputs[1].slice(0, self.inputs[1].bytes());
        let [to, from] = &self.transpose;
        let mut steps = vec![to.bind(&inputs[..1], std::slice::from_ref(&dy), &scratch)?];
        for part in 0..parts {
            let sum = share(&dx, part, parts);
            for block in 0..blocks {
                let weights = share(&weights, block * parts + part, blocks * parts);
                let operands = [weights, share(&dy, block, blocks)];
                let product = &self.products[usize::from(block > 0)];
                steps.push(product.bind(&operands, std::slice::from_ref(&sum), &scratch)?);
            }
        }
        steps.push(from.bind(&[dx], outputs, &scratch)?);
        Ok(Box::new(Sequence { steps, subject: self.subject.clone() }))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// One of `count` equal parts of a memory.
fn share(memory: &Memory, index: usize, count: usize) -> Memory {
    memory.slice(memory.bytes() / count * index, memory.bytes() / count)
}

/// Steps one after the other.
struct Sequence {
    steps: Vec<Box<dyn Step>>,
    subject: Rc<str>,
}

impl Step for Sequence {
    fn run(&mut self, scalars: &Scalars) -> Result<()> {
        self.steps.iter_mut().try_for_each(|step| step.run(scalars)).map_err(|e| e.context(&self.subject))
    }
}
