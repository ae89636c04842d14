//! Convolution. The library chooses every layout; the algorithm is the direct one, since Winograd's loses
//! digits.

use std::ptr::null;
use std::rc::Rc;

use super::Cpu;
use super::depthwise;
use super::few_channels;
use super::handle::{Attributes, Desc, Engine, PrimitiveDesc, describe};
use super::layout::data_type;
use super::primitive::{PrimitiveKernel, attributes, inputs, multiplied, outputs, prop_kind};
use super::sys;
use super::window::WindowGeometry;
use crate::device::{Kernel, KernelRequest};
use crate::error::{Error, Result};
use crate::graph::{Conv, Spec};

const DIRECT: sys::AlgKind = sys::CONVOLUTION_DIRECT;

/// The descriptors of a convolution's tensors, all of layouts to be chosen, and its geometry.
struct ConvTensors {
    x: Desc,
    w: Desc,
    b: Option<Desc>,
    y: Desc,
    window: WindowGeometry,
}

/// The types of x (or dx), w (or dw) and y (or dy).
type Types = [sys::DataType; 3];

impl ConvTensors {
    fn new(engine: &Engine, conv: &Conv, [x, w, y]: [&Spec; 3], types: Types) -> Result<ConvTensors> {
        let (x, w, y) = (&x.shape, &w.shape, &y.shape);
        let window = WindowGeometry::of_conv(conv, x, y)?;
        let (c, o, groups) = (x.channels(), y.channels(), conv.groups);
        if groups == 0 || c % groups != 0 || o % groups != 0 {
            return Err(Error::usage(format!(
                "{c} input and {o} output channels do not divide into {groups} groups"
            )));
        }
        if *w != x.with_spatial([o, c / groups], conv.kernel) || x.batch() != y.batch() {
            return Err(Error::internal(format!("weights of {w} cannot take {x} to {y}")));
        }
        // oneDNN gives the groups a dimension of their own; the order of the elements stays the same.
        let grouped = [&[groups, o / groups], &w.0[1..]].concat();
        Ok(ConvTensors {
            x: Desc::any(engine, &x.0, types[0])?,
            w: Desc::any(engine, if groups == 1 { &grouped[1..] } else { &grouped }, types[1])?,
            b: conv.bias.then(|| Desc::plain(engine, &[o], sys::F32)).transpose()?,
            y: Desc::any(engine, &y.0, types[2])?,
            window,
        })
    }

    fn bias(&self) -> *const sys::MemoryDesc {
        self.b.as_ref().map_or(null(), Desc::raw)
    }
}

/// The primitive of a forward pass, which those of the ways back take as a hint.
fn forward_desc(
    engine: &Rc<Engine>,
    t: &ConvTensors,
    kind: sys::PropKind,
    (conv, x): (&Conv, &Spec),
) -> Result<PrimitiveDesc> {
    let attributes = Attributes::new(engine, conv.relu)?;
    let window = &t.window;
    let mut desc = describe!(engine, attributes => dnnl_convolution_forward_primitive_desc_create(
        kind, DIRECT, t.x.raw(), t.w.raw(), t.bias(), t.y.raw(), window.stride.as_ptr(),
        window.dilation.as_ptr(), window.padding.as_ptr(), window.padding_after.as_ptr()
    ))?;
    // Where no window meets the image along an axis, oneDNN's kernels for matrix tiles read through a null pointer as
    // they are made (3.2, `brgemm_convolution_fwd_t::add_po_kernels`).
    let meets = x.shape.spatial().is_none_or(|(_, extents)| conv.meets(extents));
    while !meets && desc.implementation().contains("amx") {
        desc.take_next()?;
    }
    Ok(desc)
}

/// The hint of a way back: the forward op's primitive, or one made for the purpose where no convolution went before, as
/// with a transposed one.
enum Hint<'a> {
    Given(&'a PrimitiveDesc),
    Made(PrimitiveDesc),
}

impl Hint<'_> {
    fn new<'a>(
        engine: &Rc<Engine>,
        request: &KernelRequest<'a>,
        conv: &Conv,
        tensors: [&Spec; 3],
    ) -> Result<Hint<'a>> {
        let kernel: Option<&PrimitiveKernel> = request.forward.and_then(Kernel::own);
        if let Some(kernel) = kernel.filter(|kernel| kernel.is_forward()) {
            return Ok(Hint::Given(&kernel.desc));
        }
        let t = ConvTensors::new(engine, conv, tensors, [multiplied([tensors[0], tensors[2]]); 3])?;
        Ok(Hint::Made(forward_desc(
            engine,
            &t,
            sys::FORWARD_TRAINING,
            (&Conv { relu: false, ..*conv }, tensors[0]),
        )?))
    }

    fn desc(&self) -> &PrimitiveDesc {
        match self {
            Hint::Given(desc) => desc,
            Hint::Made(desc) => desc,
        }
    }
}

/// x, w, b? → y
pub fn forward_pass(engine: &Rc<Engine>, request: &KernelRequest, conv: &Conv) -> Result<PrimitiveKernel> {
    let [y] = outputs(request)?;
    let [x, w] = match conv.bias {
        true => inputs(request).map(|[x, w, _]| [x, w])?,
        false => inputs(request)?,
    };
    let multiplied = multiplied([x, y]);
    let t = ConvTensors::new(engine, conv, [x, w, y], [multiplied, multiplied, data_type(y.dtype)?])?;
    let desc = forward_desc(engine, &t, prop_kind(request), (conv, x))?;
    let arguments = [sys::ARG_SRC, sys::ARG_WEIGHTS, sys::ARG_BIAS];
    PrimitiveKernel::new(engine, desc, &arguments[..request.inputs.len()], &[sys::ARG_DST])
}

/// dy, w → dx. Gradients lie as the forward op's tensors did, which spares reorders, unless there is only a reference
/// implementation for that: left to itself the library takes channels-last for some strided ones, which is slower even
/// without the reorders.
pub fn backward_data(engine: &Rc<Engine>, request: &KernelRequest, conv: &Conv) -> Result<PrimitiveKernel> {
    let ([dy, w], [dx]) = (inputs(request)?, outputs(request)?);
    let multiplied = multiplied([dx, dy]);
    let t = ConvTensors::new(engine, conv, [dx, w, dy], [data_type(dx.dtype)?, multiplied, multiplied])?;
    let (attributes, hint) = (attributes(engine)?, Hint::new(engine, request, conv, [dx, w, dy])?);
    let (hint, window) = (hint.desc(), &t.window);
    let create = |dx: &Desc, dy: &Desc| {
        describe!(engine, attributes => dnnl_convolution_backward_data_primitive_desc_create(
            DIRECT, dx.raw(), t.w.raw(), dy.raw(), window.stride.as_ptr(), window.dilation.as_ptr(),
            window.padding.as_ptr(), window.padding_after.as_ptr(), hint.raw()
        ))
    };
    let present = create(&hint.desc(sys::ARG_SRC)?, &hint.desc(sys::ARG_DST)?);
    let desc = match present {
        Ok(desc) if !desc.implementation().starts_with("ref") => desc,
        _ => create(&t.x, &t.y)?,
    };
    PrimitiveKernel::new(engine, desc, &[sys::ARG_DIFF_DST, sys::ARG_WEIGHTS], &[sys::ARG_DIFF_SRC])
}

/// x, dy → dw, db?
pub fn backward_weights(cpu: &Cpu, request: &KernelRequest, conv: &Conv, subject: &str) -> Result<Kernel> {
    let engine = &cpu.engine;
    let [x, dy] = inputs(request)?;
    let dw = match conv.bias {
        true => outputs(request).map(|[dw, _]| dw)?,
        false => outputs(request).map(|[dw]| dw)?,
    };
    let multiplied = multiplied([x, dy]);
    let t = ConvTensors::new(engine, conv, [x, dw, dy], [multiplied, sys::F32, multiplied])?;
    let (attributes, hint) = (attributes(engine)?, Hint::new(engine, request, conv, [x, dw, dy])?);
    let (hint, window) = (hint.desc(), &t.window);
    let desc = describe!(engine, attributes => dnnl_convolution_backward_weights_primitive_desc_create(
        DIRECT, t.x.raw(), t.w.raw(), t.bias(), t.y.raw(), window.stride.as_ptr(), window.dilation.as_ptr(),
        window.padding.as_ptr(), window.padding_after.as_ptr(), hint.raw()
    ))?;
    if desc.implementation().contains("gemm") {
        for of in [depthwise::backward_weights, few_channels::backward_weights] {
            if let Some(kernel) = of(cpu, request, conv, hint)? {
                return Ok(kernel);
            }
        }
    }
    let results = [sys::ARG_DIFF_WEIGHTS, sys::ARG_DIFF_BIAS];
    let results = &results[..request.outputs.len()];
    let by_matrices = desc.implementation().contains(":gemm");
    let kernel = PrimitiveKernel::new(engine, desc, &[sys::ARG_SRC, sys::ARG_DIFF_DST], results)?;
    // Of matrices oneDNN asks, for the sums of its threads, for as many numbers as these have bytes; a single thread
    // has no use for any.
    let sums = engine.threads * kernel.outputs[0].bytes();
    let untouched = match (by_matrices, engine.threads) {
        (true, 1) => 4 * sums,
        (true, _) => 3 * sums,
        (false, _) => 0,
    };
    Ok(kernel.leaving(untouched).of(subject))
}
