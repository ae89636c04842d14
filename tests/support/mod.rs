//! What tests have in common. Here: running single ops on the reference device.

pub mod arrays;
pub mod bound;
pub mod bundled;
pub mod cases;
pub mod digits;
pub mod disturbed;
pub mod driver;
pub mod exported;
pub mod fake_cuda;
pub mod gpu_job;
pub mod job;
pub mod kernels;
pub mod networks;
pub mod objectives;
pub mod pictures;
pub mod residual;
pub mod scratch;

use dltrain::device::memory::{bytes_of, bytes_of_mut};
use dltrain::device::reference::Reference;
use dltrain::device::{Device, KernelRequest, Memory, Scalars};
use dltrain::graph::{Activation, DType, Op, Shape, Spec};

/// A tensor on the host; integers are held as f32 too.
pub type Operand = (Spec, Vec<f32>);

pub fn f32s(shape: Shape) -> Spec {
    Spec { shape, dtype: DType::F32 }
}

/// Puts numbers into fresh memory; labels and winners travel as integers.
fn upload((spec, values): &Operand) -> Memory {
    let integers: Vec<i32> = values.iter().map(|&v| v as i32).collect();
    let raw = if spec.dtype == DType::F32 { bytes_of(values) } else { bytes_of(&integers) };
    let memory = Reference.allocate(raw.len()).unwrap();
    Reference.upload(raw, &memory).unwrap();
    memory
}

fn download(spec: &Spec, memory: &Memory) -> Vec<f32> {
    let mut values = vec![0f32; spec.shape.elements()];
    let mut integers = vec![0i32; spec.shape.elements()];
    if spec.dtype == DType::F32 {
        Reference.download(memory, bytes_of_mut(&mut values)).unwrap();
        return values;
    }
    Reference.download(memory, bytes_of_mut(&mut integers)).unwrap();
    integers.into_iter().map(|v| v as f32).collect()
}

/// A number in [-1, 1) as one that the activation takes, where its y is of a size that shows an error.
pub fn in_domain(of: Activation, x: f32) -> f32 {
    match of {
        Activation::Exp => 4.0 * x,
        Activation::Sqrt => 4.5 + 4.0 * x,
        _ => 9.0 * x,
    }
}

/// The outputs of one op.
pub fn run_with(scalars: &Scalars, op: Op, inputs: &[Operand], outputs: &[Spec]) -> Vec<Vec<f32>> {
    let specs: Vec<_> = inputs.iter().map(|(spec, _)| (spec.clone(), None)).collect();
    let request = KernelRequest { op: &op, inputs: &specs, outputs, forward: None, training: true };
    let kernel = Reference.compile(&request).unwrap();
    let sources: Vec<Memory> = inputs.iter().map(upload).collect();
    let layouts = kernel.outputs.iter();
    let results: Vec<Memory> = layouts.map(|layout| Reference.allocate(layout.bytes()).unwrap()).collect();
    let workspace = Reference.allocate(kernel.workspace).unwrap();
    kernel.bind(&sources, &results, &workspace).unwrap().run(scalars).unwrap();
    outputs.iter().zip(&results).map(|(spec, memory)| download(spec, memory)).collect()
}
