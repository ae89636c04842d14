//! A kernel that is one oneDNN primitive, and what the families of primitives share.

use std::ffi::c_int;
use std::rc::Rc;

use super::gemm;
use super::handle::{Attributes, Engine, MemoryObject, Primitive, PrimitiveDesc};
use super::layout::{desc, layout};
use super::sys;
use crate::device::{Kernel, KernelRequest, Layout, Memory, Scalars, Step};
use crate::error::{Error, Result};
use crate::graph::{DType, Spec, Volume};

/// A compiled primitive with the arguments that stand for the op's inputs and outputs.
pub struct PrimitiveKernel {
    engine: Rc<Engine>,
    pub desc: PrimitiveDesc,
    primitive: Rc<Primitive>,
    arguments: Vec<c_int>,
    pub inputs: Vec<Layout>,
    pub outputs: Vec<Layout>,
    /// Inputs, then outputs, of which the primitive sees a part, or in which it sees other dimensions, and what it
    /// sees.
    seen: Vec<(usize, Layout)>,
    /// Inputs that stand for further arguments.
    again: Vec<(usize, c_int)>,
    scratchpad: Layout,
    untouched: usize,
    in_place: Option<usize>,
    subject: Rc<str>,
}

impl PrimitiveKernel {
    /// Compiles a described primitive. `inputs` and `outputs` are its arguments (`sys::ARG_…`) in the order of
    /// the op's inputs and outputs.
    pub fn new(
        engine: &Rc<Engine>,
        desc: PrimitiveDesc,
        inputs: &[c_int],
        outputs: &[c_int],
    ) -> Result<PrimitiveKernel> {
        let layouts = |arguments: &[c_int]| -> Result<Vec<Layout>> {
            arguments.iter().map(|&argument| layout(desc.desc(argument)?)).collect()
        };
        let primitive = Rc::new(Primitive::new(&desc)?);
        if desc.implementation().contains("gemm") {
            gemm::make_kernels(engine)?;
        }
        Ok(PrimitiveKernel {
            engine: engine.clone(),
            primitive,
            arguments: [inputs, outputs].concat(),
            inputs: layouts(inputs)?,
            outputs: layouts(outputs)?,
            scratchpad: layout(desc.desc(sys::ARG_SCRATCHPAD)?)?,
            seen: Vec::new(),
            again: Vec::new(),
            untouched: 0,
            in_place: None,
            subject: Rc::from(""),
            desc,
        })
    }

    /// Whether it is of a forward pass.
    pub fn is_forward(&self) -> bool {
        self.arguments.contains(&sys::ARG_DST) && !self.arguments.contains(&sys::ARG_DIFF_DST)
    }

    /// The kernel. The subject is what it works on, for the error should it fail when it runs.
    pub fn of(self, subject: &str) -> Kernel {
        let own = Rc::new(PrimitiveKernel { subject: Rc::from(subject), ..self });
        let bound = own.clone();
        let (inputs, outputs) = (own.inputs.clone(), own.outputs.clone());
        let kernel =
            Kernel::new(own.desc.implementation(), inputs, outputs, move |_, inputs, outputs, workspace| {
                bound.bind(inputs, outputs, workspace)
            });
        let (untouched, in_place) = (own.untouched, own.in_place);
        Kernel { workspace: own.scratchpad.bytes(), untouched, in_place, own: Some(own), ..kernel }
    }

    /// States that what the primitive reads as an input is a part, or another view, of a tensor of this layout.
    pub fn sees_in(mut self, input: usize, whole: Layout) -> PrimitiveKernel {
        self.seen.push((input, std::mem::replace(&mut self.inputs[input], whole)));
        self
    }

    /// States that an input is another argument, too.
    pub fn also_as(mut self, input: usize, argument: c_int) -> PrimitiveKernel {
        self.again.push((input, argument));
        self
    }

    /// `sees_in` of an output.
    pub fn gives_in(mut self, output: usize, whole: Layout) -> PrimitiveKernel {
        let place = self.inputs.len() + output;
        self.seen.push((place, std::mem::replace(&mut self.outputs[output], whole)));
        self
    }

    /// States the layout of an input that the primitive may have no use for.
    pub fn given(mut self, input: usize, layout: Layout) -> PrimitiveKernel {
        self.inputs[input] = layout;
        self
    }

    /// States that so much of the scratch memory that it asks for is never touched.
    pub fn leaving(self, untouched: usize) -> PrimitiveKernel {
        PrimitiveKernel { untouched: untouched.min(self.scratchpad.bytes()), ..self }
    }

    /// States that output 0 may be written over an input.
    pub fn in_place(mut self, input: usize) -> PrimitiveKernel {
        self.in_place = Some(input).filter(|&input| self.inputs[input].bytes() == self.outputs[0].bytes());
        self
    }

    fn bind(&self, inputs: &[Memory], outputs: &[Memory], workspace: &Memory) -> Result<Box<dyn Step>> {
        let memory: Vec<Memory> = inputs.iter().chain(outputs).chain([workspace]).cloned().collect();
        let mut layouts: Vec<&Layout> =
            self.inputs.iter().chain(&self.outputs).chain([&self.scratchpad]).collect();
        for (input, seen) in &self.seen {
            layouts[*input] = seen;
        }
        let mut objects = Vec::with_capacity(memory.len());
        for (memory, layout) in memory.iter().zip(&layouts) {
            // SAFETY: the memory is large enough, and the step holds a share of it.
            objects.push(unsafe { MemoryObject::new(&self.engine, desc(layout)?, memory.address()) }?);
        }
        let arguments = self.arguments.iter().chain([&sys::ARG_SCRATCHPAD]);
        let once = arguments.zip(&objects).map(|(&arg, object)| sys::ExecArg { arg, memory: object.raw() });
        let again = self.again.iter().map(|&(input, arg)| sys::ExecArg { arg, memory: objects[input].raw() });
        let args = once.chain(again).collect();
        Ok(Box::new(PrimitiveStep {
            primitive: self.primitive.clone(),
            subject: self.subject.clone(),
            args,
            _objects: objects,
            _memory: memory,
        }))
    }
}

/// A primitive bound to memory.
struct PrimitiveStep {
    primitive: Rc<Primitive>,
    subject: Rc<str>,
    args: Vec<sys::ExecArg>,
    _objects: Vec<MemoryObject>,
    _memory: Vec<Memory>,
}

impl Step for PrimitiveStep {
    fn run(&mut self, _scalars: &Scalars) -> Result<()> {
        // SAFETY: `bind` gave every argument memory of its layout, which this step keeps alive; one thread runs
        // the steps of a device, one after the other.
        unsafe { self.primitive.execute(&self.args) }.map_err(|e| e.context(&self.subject))
    }
}

/// A step of several, one after the other.
pub fn in_turn(mut steps: Vec<Box<dyn Step>>) -> Box<dyn Step> {
    Box::new(move |scalars: &Scalars| steps.iter_mut().try_for_each(|step| step.run(scalars)))
}

/// The type in which a convolution or linear layer multiplies: bf16 as soon as one of its tensors is kept so. (The
/// images that a network gets and the scores it gives are f32 also then.)
pub fn multiplied(tensors: [&Spec; 2]) -> sys::DataType {
    if tensors.iter().any(|spec| spec.dtype == DType::BF16) { sys::BF16 } else { sys::F32 }
}

/// The attributes that every primitive has.
pub fn attributes(engine: &Engine) -> Result<Attributes> {
    Attributes::new(engine, false)
}

/// The forward propagation kind of a request.
pub fn prop_kind(request: &KernelRequest) -> sys::PropKind {
    if request.training { sys::FORWARD_TRAINING } else { sys::FORWARD_INFERENCE }
}

/// The kernel of the forward op, which a backward primitive needs as a hint.
pub fn forward<'a>(request: &KernelRequest<'a>) -> Result<&'a PrimitiveKernel> {
    request
        .forward
        .and_then(Kernel::own)
        .ok_or_else(|| Error::internal("a backward op was requested without the kernel of its forward op"))
}

/// The specs of a request's inputs, when there are exactly N.
pub fn inputs<'a, const N: usize>(request: &KernelRequest<'a>) -> Result<[&'a Spec; N]> {
    let specs: Vec<&Spec> = request.inputs.iter().map(|(spec, _)| spec).collect();
    let count = specs.len();
    specs.try_into().map_err(|_| Error::internal(format!("{count} inputs where there should be {N}")))
}

/// The specs of a request's outputs, when there are exactly N.
pub fn outputs<'a, const N: usize>(request: &KernelRequest<'a>) -> Result<[&'a Spec; N]> {
    let specs: Vec<&Spec> = request.outputs.iter().collect();
    let count = specs.len();
    specs.try_into().map_err(|_| Error::internal(format!("{count} outputs where there should be {N}")))
}

/// (N, C) and (D, H, W) of a tensor of images or cubes.
pub fn spatial(spec: &Spec) -> Result<([usize; 2], Volume)> {
    spec.shape
        .spatial()
        .ok_or_else(|| Error::internal(format!("a tensor of {} where an image is needed", spec.shape)))
}
