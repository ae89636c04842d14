//! What cuDNN itself says, without a GPU: for one that is only described it names engines and finalises plans.
//!
//! - every convolution of the zoo, forward and backward, in every precision, has an engine on an A100 and on an H100 that
//!   gives the same bits every time, in the arithmetic that the precision promises, and in modest scratch memory.
//!
//! The graphs are those that a run makes, by the same code. The library is NVIDIA's; `.ci/deps cudnn` (or torch) has it,
//! and where it is missing this says so and proves nothing.

use std::collections::HashSet;
use std::path::PathBuf;

use dltrain::device::cuda::described::Described;
use dltrain::graph::{Conv2d, DType, Op, Spec};
use dltrain::model::MODELS;
use serde_json::{Value, json};

/// The library of a wheel, for whichever CUDA.
fn library() -> Option<PathBuf> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(".deps");
    let pythons = std::fs::read_dir(root.join("torch/lib")).into_iter().flatten().flatten();
    let torch = pythons.map(|python| python.path().join("site-packages/nvidia/cudnn/lib"));
    let places = std::iter::once(root.join("cudnn")).chain(torch);
    places.map(|place| place.join("libcudnn.so.9")).find(|path| path.exists())
}

/// A GPU as `cudaGetDeviceProperties` has it, in the names of CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION.
fn gpu(name: &str, capability: u32, multiprocessors: u32, shared_bytes: u32, l2: u64, memory: u64) -> Value {
    json!({
        "deviceName": name, "deviceVer": capability, "driverVer": 13000, "cudaDeviceId": 0, "pciDeviceId": 0,
        "multiProcessorCount": multiprocessors, "smCountOrigin": 0, "warpSize": 32,
        "maxGridSize": [2_147_483_647, 65_535, 65_535], "maxBlockSize": [1024, 1024, 64],
        "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048, "maxCtasPerSM": 32,
        "regsPerBlock": 65_536, "maxRegistersPerSM": 65_536,
        "maxSharedMemoryPerBlock": 49_152, "maxSharedMemoryPerBlockOptin": shared_bytes,
        "oversizedSharedMemoryPerBlock": 0, "reservedSharedMemoryPerBlock": 1024,
        "isTccDriver": 0, "supportCoopLaunch": 1,
        "totalGlobalMem": memory, "l2CacheSize": l2, "smClockRateKHz": 1_410_000, "memClockRateKHz": 1_215_000
    })
}

/// The distinct convolutions of all models at the sizes they were made for: geometry, x, w, y.
fn convolutions(batch: usize) -> HashSet<(Conv2d, [Spec; 3])> {
    let mut all = HashSet::new();
    for model in MODELS {
        let graph = model.build(batch, model.image, model.classes).unwrap();
        for node in &graph.nodes {
            if let Op::Conv2d(conv) = node.op {
                let spec = |id| graph.tensor(id).spec.clone();
                let tensors = [node.inputs[0], node.inputs[1], node.outputs[0]].map(spec);
                // Bias and ReLU are not cuDNN's.
                all.insert((Conv2d { bias: false, relu: false, ..conv }, tensors));
            }
        }
    }
    all
}

#[test]
fn every_convolution_of_the_zoo_has_an_engine() {
    let Some(library) = library() else {
        eprintln!("skipped: no cuDNN in .deps/cudnn or .deps/torch; .ci/deps cudnn fetches it (520 MB)");
        return;
    };
    let all = convolutions(32);
    assert!(all.len() > 200, "{}", all.len());
    for properties in [
        gpu("NVIDIA A100-SXM4-40GB", 800, 108, 166_912, 40 << 20, 40 << 30),
        gpu("NVIDIA H100 80GB HBM3", 900, 132, 232_448, 50 << 20, 80 << 30),
    ] {
        let described = Described::new(&library, &properties.to_string()).unwrap();
        for (dtype, tf32) in
            [(DType::F32, false), (DType::F32, true), (DType::BF16, false), (DType::F16, false)]
        {
            for (conv, [x, w, y]) in &all {
                let engines = described.engines(conv, [x, w, y], dtype, tf32);
                let what =
                    || format!("{}: {dtype:?}, tf32 {tf32}: {conv:?} of {x:?}", properties["deviceName"]);
                let engines = engines.unwrap_or_else(|e| panic!("{}: {e}", what()));
                assert!(engines.iter().all(Option::is_some), "{}: {engines:?}", what());
            }
        }
    }
}

/// The proof above would be none if a GPU that is described were not heeded: one from before bf16 has no engine for it.
#[test]
fn a_gpu_without_bf16_has_no_engine_for_it() {
    let Some(library) = library() else { return };
    let properties = gpu("Tesla P100-SXM2-16GB", 600, 56, 49_152, 4 << 20, 16 << 30);
    let described = Described::new(&library, &properties.to_string()).unwrap();
    let all = convolutions(2);
    let (conv, [x, w, y]) = all.iter().next().unwrap();
    assert_eq!(described.engines(conv, [x, w, y], DType::BF16, false).unwrap(), [None; 3]);
}
