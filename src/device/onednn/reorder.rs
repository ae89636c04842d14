//! Copies from one layout to another.

use std::ops::Range;
use std::rc::Rc;

use super::handle::{Attributes, Desc, Engine, PrimitiveDesc};
use super::layout::{data_type, desc, same_view};
use super::primitive::{PrimitiveKernel, attributes};
use super::sys;
use crate::device::Layout;
use crate::error::Result;
use crate::graph::Spec;

/// A kernel that copies a tensor from one layout into another.
pub fn reorder(engine: &Rc<Engine>, from: &Layout, to: &Layout) -> Result<PrimitiveKernel> {
    let (from, to) = same_view(engine, from, to)?;
    let desc = reorder_desc(engine, desc(&from)?, desc(&to)?)?;
    PrimitiveKernel::new(engine, desc, &[sys::ARG_SRC], &[sys::ARG_DST])
}

/// See `Device::reorder_rows`.
pub fn rows(
    engine: &Rc<Engine>,
    spec: &Spec,
    layout: &Layout,
    rows: &Range<usize>,
    into: bool,
) -> Result<Option<PrimitiveKernel>> {
    let whole = desc(layout)?;
    let mut dims: Vec<usize> = whole.dims()?.into_iter().map(|extent| extent as usize).collect();
    // Another view of the tensor, a grouped convolution's say, has other rows.
    if dims.first() != spec.shape.0.first() {
        return Ok(None);
    }
    let mut offsets = vec![0; dims.len()];
    (dims[0], offsets[0]) = (rows.len(), rows.start);
    let Ok(part) = whole.part(&dims, &offsets) else { return Ok(None) };
    let plain = Desc::plain(engine, &dims, data_type(spec.dtype)?)?;
    let [from, to] = if into { [&plain, &part] } else { [&part, &plain] };
    PrimitiveKernel::new(engine, reorder_desc(engine, from, to)?, &[sys::ARG_SRC], &[sys::ARG_DST]).map(Some)
}

/// The primitive for tensors, or parts of such, of equal dimensions.
pub fn reorder_desc(engine: &Rc<Engine>, from: &Desc, to: &Desc) -> Result<PrimitiveDesc> {
    reorder_with(engine, from, to, attributes(engine)?)
}

/// A reorder with these attributes.
pub fn reorder_with(
    engine: &Rc<Engine>,
    from: &Desc,
    to: &Desc,
    attributes: Attributes,
) -> Result<PrimitiveDesc> {
    // SAFETY: descriptors and attributes outlive the call.
    PrimitiveDesc::create(engine, "dnnl_reorder_primitive_desc_create", |desc| unsafe {
        (engine.library.functions.dnnl_reorder_primitive_desc_create)(
            desc,
            from.raw(),
            engine.raw(),
            to.raw(),
            engine.raw(),
            attributes.raw(),
        )
    })
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use crate::device::memory::{bytes_of, bytes_of_mut};
    use crate::device::onednn::Cpu;
    use crate::device::{Device, Kernel, KernelRequest, Memory, Scalars};
    use crate::graph::{DType, Op, Spec, dims};

    fn run(kernel: &Kernel, from: &Memory, to: &Memory) {
        let workspace = Memory::host(kernel.workspace).unwrap();
        kernel.bind(from_ref(from), from_ref(to), &workspace).unwrap().run(&Scalars::default()).unwrap();
    }

    /// Piece by piece into a linear layer's own layout and out of it, the last rows no whole block of it.
    #[test]
    fn rows_are_copied_as_the_whole_is() {
        let cpu = Cpu::new(1).unwrap();
        let f32s = |shape| Spec { shape, dtype: DType::F32 };
        let (rows, width) = (500, 1030);
        let spec = f32s(dims([rows, width]));
        let x = f32s(dims([16, width]));
        let inputs = [(x.clone(), Some(cpu.plain(&x))), (spec.clone(), None), (f32s(dims([rows])), None)];
        let (op, outputs) = (Op::Linear { bias: true, relu: false }, [f32s(dims([16, rows]))]);
        let request =
            KernelRequest { op: &op, inputs: &inputs, outputs: &outputs, forward: None, training: true };
        let layout = cpu.compile(&request).unwrap().inputs[1].clone();
        let plain = cpu.plain(&spec);
        assert_ne!(layout, plain, "nothing to reorder");

        let numbers: Vec<f32> = (0..rows * width).map(|index| index as f32).collect();
        let [there, back] = [(); 2].map(|()| Memory::host(4 * rows * width).unwrap());
        let [whole, pieces] = [(); 2].map(|()| Memory::host(layout.bytes()).unwrap());
        there.write(bytes_of(&numbers));
        run(&cpu.reorder(&spec, &plain, &layout).unwrap(), &there, &whole);
        for part in [0..192, 192..384, 384..rows] {
            let lines = |memory: &Memory| memory.slice(4 * width * part.start, 4 * width * part.len());
            let kernel = |into| cpu.reorder_rows(&spec, &layout, &part, into).unwrap().expect("whole blocks");
            run(&kernel(true), &lines(&there), &pieces);
            run(&kernel(false), &whole, &lines(&back));
        }
        let bytes = |memory: &Memory| {
            let mut bytes = vec![0u8; memory.bytes()];
            memory.read(bytes_of_mut(&mut bytes));
            bytes
        };
        assert!(bytes(&pieces) == bytes(&whole), "into {layout:?}");
        assert!(bytes(&back) == bytes(&there), "out of {layout:?}");
    }
}
