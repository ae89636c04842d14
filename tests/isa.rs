//! Ranks on unlike CPUs agree on one instruction set before anything is compiled. A test program of its own,
//! since the limit holds for the whole process.

use dltrain::device::onednn::{Cpu, Isa, isa, limit_isa};
use dltrain::device::{Device, KernelRequest};
use dltrain::graph::DType::F32;
use dltrain::graph::{Conv, Op, Spec, dims};

#[test]
fn a_limited_device_uses_and_lays_out_for_what_all_ranks_have() {
    let avx2 = Isa(0x7);
    if isa().unwrap().common(avx2) != avx2 {
        eprintln!("this CPU has no AVX2: nothing to limit");
        return;
    }
    limit_isa(avx2).unwrap();
    let cpu = Cpu::new(1).unwrap();
    assert!(cpu.describe().contains("avx2, 1 thread"), "{}", cpu.describe());

    // Eight channels to a block, as registers of eight numbers want it.
    let spec = |extents| Spec { shape: dims(extents), dtype: F32 };
    let inputs = [spec([1, 16, 8, 8]), spec([16, 16, 3, 3])].map(|spec| (spec, None));
    let conv = Op::Conv(Conv { bias: false, ..Conv::square(3) });
    let outputs = [spec([1, 16, 6, 6])];
    let request =
        KernelRequest { op: &conv, inputs: &inputs, outputs: &outputs, forward: None, training: true };
    let kernel = cpu.compile(&request).unwrap();
    assert_eq!(kernel.outputs[0].text(), "f32 1x16x6x6 aBcd8b");

    // Too late for another limit: an error that says so, not a device half one thing and half another.
    let error = limit_isa(Isa(0x1)).unwrap_err();
    assert!(error.message.contains("limiting oneDNN to sse41"), "{error}");
}
