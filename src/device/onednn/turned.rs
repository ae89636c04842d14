//! The gradient of a convolution's input as a convolution of its own, with the weights turned: for the layers that
//! the library's backward kernel is a third slower at than its forward kernel.

use std::any::Any;
use std::rc::Rc;

use super::conv;
use super::handle::Engine;
use super::host::Numbers;
use super::layout::desc;
use super::primitive::{PrimitiveKernel, inputs, nchw, outputs};
use crate::device::{Kernel, Layout, Memory, Request, Scalars, Step};
use crate::error::Result;
use crate::graph::Conv2d;

/// Channels of one block of a layout.
const BLOCK: usize = 16;

/// Numbers of one block of weights: 16 input by 16 output channels at one place of the kernel.
const WEIGHTS: usize = BLOCK * BLOCK;

/// Blocks of channels that a forward kernel makes at a time and a backward kernel does not: it takes up to 4, so that it
/// does 5 one by one (80 channels of 8 images of 73×73: 84 GFLOP/s in place of 115).
const BLOCKS: usize = 5;

/// dy, w → dx, where that is the library's convolution of dy with turned weights. dx(i, p) = Σ dy(o, p+padding−k)·w(o, i, k):
/// what is wanted is kernel−1−k in place of k, and input and output channels exchanged.
pub struct Turned {
    convolution: PrimitiveKernel,
    /// dy and w, as the backward kernel wants them.
    inputs: [Layout; 2],
    /// Blocks of output channels, blocks of input channels, elements of the kernel.
    blocks: [usize; 3],
    subject: Rc<str>,
}

/// What does the work of this backward kernel better, where there is something.
pub fn instead_of(
    usual: &PrimitiveKernel,
    engine: &Rc<Engine>,
    request: &Request,
    conv: &Conv2d,
    subject: &str,
) -> Result<Option<Turned>> {
    let ([dy, w], [dx]) = (inputs(request)?, outputs(request)?);
    let (dy, [filters, channels, height, width], dx) = (nchw(dy)?, nchw(w)?, nchw(dx)?);
    let fits = conv.stride == [1, 1]
        && conv.groups == 1
        && channels.div_ceil(BLOCK) == BLOCKS
        && (0..2).all(|axis| conv.padding[axis] < conv.kernel[axis])
        && usual.implementation() == "jit:avx512_core";
    let as_usual = format!("f32 {filters}x{channels}x{height}x{width} ABcd16a16b");
    if !fits || usual.inputs()[1].text() != as_usual {
        return Ok(None);
    }
    let padding = [0, 1].map(|axis| conv.kernel[axis] - 1 - conv.padding[axis]);
    let turned = Conv2d { padding, bias: false, relu: false, ..*conv };
    let layouts = [desc(&usual.inputs()[0])?, desc(&usual.outputs()[0])?];
    let convolution = conv::turned(engine, &turned, [dy, [channels, filters, height, width], dx], layouts)?;
    let as_turned = format!("f32 {channels}x{filters}x{height}x{width} ABcd16b16a");
    let known = convolution.inputs()[1].text() == as_turned && convolution.outputs() == usual.outputs();
    Ok(known.then(|| Turned {
        convolution,
        inputs: [0, 1].map(|input| usual.inputs()[input].clone()),
        blocks: [filters.div_ceil(BLOCK), channels.div_ceil(BLOCK), height * width],
        subject: Rc::from(subject),
    }))
}

impl Turned {
    fn weights(&self) -> usize {
        self.inputs[1].bytes()
    }
}

impl Kernel for Turned {
    fn inputs(&self) -> &[Layout] {
        &self.inputs
    }

    fn outputs(&self) -> &[Layout] {
        self.convolution.outputs()
    }

    /// The turned weights, then what the convolution asks for. (Blocks of weights are whole cache lines.)
    fn workspace(&self) -> usize {
        self.weights() + self.convolution.workspace()
    }

    fn implementation(&self) -> String {
        format!("turned {}", self.convolution.implementation())
    }

    fn bind(&self, inputs: &[Memory], outputs: &[Memory], workspace: &Memory) -> Result<Box<dyn Step>> {
        super::primitive::check_memory(inputs, &self.inputs.iter().collect::<Vec<_>>())?;
        let turned = workspace.slice(0, self.weights());
        let rest = workspace.slice(self.weights(), workspace.bytes() - self.weights());
        let convolution = self.convolution.bind(&[inputs[0].clone(), turned.clone()], outputs, &rest)?;
        Ok(Box::new(TurnedStep {
            convolution,
            weights: inputs[1].clone(),
            turned,
            blocks: self.blocks,
            subject: self.subject.clone(),
        }))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Such a convolution bound to memory.
struct TurnedStep {
    convolution: Box<dyn Step>,
    weights: Memory,
    turned: Memory,
    blocks: [usize; 3],
    subject: Rc<str>,
}

impl Step for TurnedStep {
    fn run(&mut self, scalars: &Scalars) -> Result<()> {
        let [filters, channels, kernel] = self.blocks;
        let length = filters * channels * kernel * WEIGHTS;
        // SAFETY: nothing else uses the workspace while this step runs, nothing writes weights during a pass, and they
        // do not overlap.
        let (from, to) = unsafe {
            (Numbers::of(&self.weights).part(0..length), Numbers::of(&self.turned).part_mut(0..length))
        };
        for (index, to) in to.chunks_exact_mut(WEIGHTS).enumerate() {
            let (o, i, k) = (index / kernel % filters, index / kernel / filters, index % kernel);
            let block = (o * channels + i) * kernel + kernel - 1 - k;
            to.copy_from_slice(&from[block * WEIGHTS..][..WEIGHTS]);
        }
        self.convolution.run(scalars).map_err(|e| e.context(&self.subject))
    }
}
