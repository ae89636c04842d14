//! What cuDNN itself says, without a GPU: for one that is only described it names engines and finalises plans.
//!
//! - every convolution of the zoo and of the networks for arrays (of images and of cubes), forward and backward, in
//!   every precision, has an engine on an A100 and on an H100 that gives the same bits every time, in the arithmetic
//!   that the precision promises, and in modest scratch memory;
//! - so have those that do a bias and a ReLU, a ReLU's gradient, or sums for statistics along with it, in halves and
//!   with tf32, and those that add a gradient in halves to what is there already, on an H100 and an H200;
//! - in f16 there are ready-made engines that normalise what they read, for all of ResNet-50; in bf16 there is none;
//! - a plan that was kept as text is restored.
//!
//! The graphs are those that a run makes, by the same code. The libraries are NVIDIA's; `.ci/deps cudnn` (or torch) has
//! them, and where they are missing this says so and proves nothing. 9.19, which PyTorch 2.11 brings, is asked
//! likewise, but for what takes it minutes, the zoo and all that is compiled: DLTRAIN_TEST_CUDNN=.deps/cudnn-9.19 asks
//! that too.

use crate::support::fake_cuda;

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use dltrain::device::cuda::described::{ConvQuery, CudnnSetting};
use dltrain::graph::{Conv, DType, Joint, Op, OpFusions, Spec};
use dltrain::model::{FIELD_MODELS, MODELS, Model};
use serde_json::{Value, json};

/// Where wheels' cuDNN and NVRTC are, of each release that is here.
fn releases(name: &str) -> Vec<Vec<PathBuf>> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(".deps");
    let pythons = std::fs::read_dir(root.join("torch/lib")).into_iter().flatten().flatten();
    let torch = pythons.map(|python| {
        let nvidia = python.path().join("site-packages/nvidia");
        ["cudnn/lib", "cu13/lib", "cuda_nvrtc/lib"].map(|place| nvidia.join(place)).to_vec()
    });
    let own = ["cudnn", "cudnn-9.19"].map(|release| vec![root.join(release)]);
    let own = own.into_iter().take(if LONG.contains(&name) { 1 } else { 2 });
    own.chain(torch).filter(|places| libraries(places).is_some()).collect()
}

/// cuDNN and NVRTC, for whichever CUDA.
fn libraries(places: &[PathBuf]) -> Option<[PathBuf; 2]> {
    let first = |names: &[&str]| {
        let files = places.iter().flat_map(|place| names.iter().map(|name| place.join(name)));
        files.into_iter().find(|path| path.exists())
    };
    Some([first(&["libcudnn.so.9"])?, first(&["libnvrtc.so.13", "libnvrtc.so.12"])?])
}

/// Which release a process is to ask.
const PLACES: &str = "DLTRAIN_TEST_CUDNN";

/// What is asked of the newest release alone.
const LONG: [&str; 3] = [
    "every_convolution_of_the_zoo_has_an_engine",
    "what_is_done_along_with_a_convolution_has_engines",
    "every_convolution_of_fields_and_cubes_has_an_engine",
];

/// Runs a test of this file once for each release, in a process of its own: one has room for one cuDNN, which looks
/// once for what it compiles with.
fn with_each_release(name: &str, test: impl Fn()) {
    if std::env::var_os(PLACES).is_some() {
        return test();
    }
    let releases = releases(name);
    if releases.is_empty() {
        println!("SKIPPED: no cuDNN in .deps; .ci/deps cudnn fetches it (1 GB)");
    }
    for places in releases {
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", &format!("cudnn::{name}"), "--nocapture"]);
        let output = again.env(PLACES, std::env::join_paths(&places).unwrap()).output().unwrap();
        let [printed, said] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
        assert!(
            output.status.success() && printed.contains("1 passed"),
            "{places:?}: {}: {printed}{said}",
            output.status
        );
        println!("{}\n{printed}", places[0].display());
    }
}

/// A GPU with the engines that need not be compiled when they are wanted, or with all of them.
fn described(gpu: &Value, compiles: bool) -> CudnnSetting {
    let places = std::env::split_paths(&std::env::var_os(PLACES).unwrap()).collect::<Vec<_>>();
    let [cudnn, nvrtc] = libraries(&places).unwrap();
    let stub = |name: &str| fake_cuda::libraries().join("absent").join(name);
    // cuBLAS is always there, and cuDNN ends the process where it is not.
    let mut before = ["libcublasLt.so.13", "libcublasLt.so.12"].map(stub).to_vec();
    if compiles {
        before.extend([stub("libcuda.so.1"), nvrtc]);
    }
    let before: Vec<&Path> = before.iter().map(PathBuf::as_path).collect();
    CudnnSetting::new(&cudnn, &before, &gpu.to_string()).unwrap()
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
        "totalGlobalMem": memory, "l2CacheSize": l2, "smClockRateKHz": 1_410_000, "memClockRateKHz": 1_215_000,
        // Since 9.28 it is wanted, and before not minded.
        "memoryBusWidth": 5120
    })
}

/// The distinct convolutions of models at the sizes they were made for: geometry, x, w, y.
fn convolutions(models: &[Model], batch: usize) -> HashSet<(Conv, [Spec; 3])> {
    let mut all = HashSet::new();
    for model in models {
        let graph = model.build(batch, model.image, model.classes).unwrap();
        for node in &graph.nodes {
            let (Op::Conv(conv) | Op::ConvBackwardData(conv)) = node.op else { continue };
            let [read, w, given] = [node.inputs[0], node.inputs[1], node.outputs[0]];
            // A transposed one reads y and gives x.
            let tensors = if matches!(node.op, Op::Conv(_)) { [read, w, given] } else { [given, w, read] };
            // Bias and ReLU are not cuDNN's.
            let conv = Conv { bias: false, relu: false, ..conv };
            all.insert((conv, tensors.map(|id| graph.tensor(id).spec.clone())));
        }
    }
    all
}

const PRECISIONS: [(DType, bool); 4] =
    [(DType::F32, false), (DType::F32, true), (DType::BF16, false), (DType::F16, false)];

fn h200() -> Value {
    gpu("NVIDIA H200", 900, 132, 232_448, 50 << 20, 141 << 30)
}

fn cards() -> [Value; 2] {
    [
        gpu("NVIDIA A100-SXM4-40GB", 800, 108, 166_912, 40 << 20, 40 << 30),
        gpu("NVIDIA H100 80GB HBM3", 900, 132, 232_448, 50 << 20, 80 << 30),
    ]
}

#[test]
fn every_convolution_of_the_zoo_has_an_engine() {
    with_each_release(LONG[0], every_convolution);
}

fn every_convolution() {
    let all = convolutions(MODELS, 32);
    assert!(all.len() > 200, "{}", all.len());
    have_engines(&all);
}

#[test]
fn every_convolution_of_fields_and_cubes_has_an_engine() {
    with_each_release(LONG[2], convolutions_of_fields);
}

/// Those of images and of cubes, transposed ones too.
fn convolutions_of_fields() {
    let all = convolutions(FIELD_MODELS, 2);
    let cubes = all.iter().filter(|(_, [x, ..])| x.shape.0.len() == 5).count();
    assert!(cubes > 15 && all.len() - cubes > 30, "{cubes} of {}", all.len());
    have_engines(&all);
}

/// Ready-made ones, on each card and in each precision.
fn have_engines(all: &HashSet<(Conv, [Spec; 3])>) {
    for gpu in cards() {
        let described = described(&gpu, false);
        for (dtype, tf32) in PRECISIONS {
            for (conv, [x, w, y]) in all {
                let what = || format!("{}: {dtype:?}, tf32 {tf32}: {conv:?} of {x:?}", gpu["deviceName"]);
                let question = ConvQuery { conv, tensors: [x, w, y], dtype, tf32 };
                let engines = described.engines(&question);
                let engines = engines.unwrap_or_else(|e| panic!("{}: {e}", what()));
                assert!(engines.iter().all(Option::is_some), "{}: {engines:?}", what());
                assert!(engines.iter().flatten().all(|engine| !engine.compiled), "{}: {engines:?}", what());
                // Whether there are such engines or not, to ask is no error.
                described.joined(&question).unwrap_or_else(|e| panic!("{}: {e}", what()));
            }
        }
    }
}

#[test]
fn what_is_done_along_with_a_convolution_has_engines() {
    with_each_release(LONG[1], along_with_a_convolution);
}

fn along_with_a_convolution() {
    let spec = |extents: [usize; 4]| Spec { shape: dltrain::graph::Shape(extents.into()), dtype: DType::F32 };
    for gpu in cards().into_iter().chain([h200()]) {
        let described = described(&gpu, true);
        for (dtype, tf32) in PRECISIONS {
            // mobilenet_v2's.
            let depthwise = Conv { bias: false, groups: 96, ..Conv::square(3).padding(1) };
            let [x, w] = [[32, 96, 56, 56], [96, 1, 3, 3]].map(spec);
            let question = ConvQuery { conv: &depthwise, tensors: [&x, &w, &x], dtype, tf32 };
            let engines = described.engines(&question).unwrap();
            println!("{}: {dtype:?}, tf32 {tf32}: depthwise: {engines:?}", gpu["deviceName"]);
            assert!(engines.iter().all(Option::is_some), "{dtype:?}: {engines:?}");
            // vgg16's, resnet50's.
            for (kernel, channels, filters, size) in [(3, 64, 128, 56), (3, 512, 512, 14), (1, 256, 64, 56)] {
                let conv = Conv { bias: false, ..Conv::square(kernel).padding(kernel / 2) };
                let [x, w, y] = [
                    [32, channels, size, size],
                    [filters, channels, kernel, kernel],
                    [32, filters, size, size],
                ]
                .map(spec);
                let question = ConvQuery { conv: &conv, tensors: [&x, &w, &y], dtype, tf32 };
                let engines = described.joined(&question).unwrap();
                let what = format!("{}: {dtype:?}, tf32 {tf32}: {conv:?}: {engines:?}", gpu["deviceName"]);
                println!("{what}");
                let [activated, masked, summed, accumulated] = engines;
                assert!([activated, masked].iter().all(Option::is_some), "{what}");
                assert!(summed.is_some() || dtype == DType::F32 && !tf32, "{what}");
                // To add to what is there needs no engine that is compiled.
                let wanted = dtype != DType::F32 && gpu["deviceVer"] == 900;
                assert!(accumulated.is_some() || !wanted, "{what}");
                assert!(accumulated.is_none_or(|engine| !engine.compiled), "{what}");
                assert!(dtype != DType::F16 || summed.is_some_and(|engine| !engine.compiled), "{what}");
            }
        }
    }
}

#[test]
fn what_normalises_as_it_reads_has_ready_made_engines_in_f16() {
    with_each_release("what_normalises_as_it_reads_has_ready_made_engines_in_f16", normalised);
}

/// ResNet-50's convolutions of what a normalisation and a ReLU give, and nothing else reads, at a batch of 256: edge of
/// the filter, stride, channels, filters, edge of the image.
const NORMALISED: [[usize; 5]; 11] = [
    [3, 1, 64, 64, 56],
    [1, 1, 64, 256, 56],
    [3, 2, 128, 128, 56],
    [3, 1, 128, 128, 28],
    [1, 1, 128, 512, 28],
    [3, 2, 256, 256, 28],
    [3, 1, 256, 256, 14],
    [1, 1, 256, 1024, 14],
    [3, 2, 512, 512, 14],
    [3, 1, 512, 512, 7],
    [1, 1, 512, 2048, 7],
];

fn normalised() {
    let spec = |extents: [usize; 4]| Spec { shape: dltrain::graph::Shape(extents.into()), dtype: DType::F32 };
    for gpu in cards().into_iter().chain([h200()]) {
        let described = described(&gpu, false);
        for [kernel, stride, channels, filters, size] in NORMALISED {
            let conv = Conv { bias: false, ..Conv::square(kernel).stride(stride).padding(kernel / 2) };
            let [x, w, y] = [
                [256, channels, size, size],
                [filters, channels, kernel, kernel],
                [256, filters, size / stride, size / stride],
            ]
            .map(spec);
            for dtype in [DType::F16, DType::BF16] {
                let question = ConvQuery { conv: &conv, tensors: [&x, &w, &y], dtype, tf32: false };
                let engines = described.normalised(&question).unwrap();
                let name = (described.version(), &gpu["deviceName"]);
                let what =
                    format!("{name:?} {dtype:?} {kernel}x{kernel}/{stride} {channels}-{filters} {size}");
                println!("{what}: {engines:?}");
                let ready = engines.iter().filter(|engine| engine.is_some()).count();
                assert_eq!(ready, if dtype == DType::F16 { 2 } else { 0 }, "{what}: {engines:?}");
            }
        }
    }
}

/// What a plan for a GPU joins of these networks in f16, each once: it asks for two engines.
fn joints(name: &str) -> Vec<Joint> {
    let model = MODELS.iter().find(|model| model.name() == name).unwrap();
    let graph = model.build(256, model.image, model.classes).unwrap().simplify().narrowed_to(DType::F16);
    let graph = graph.differentiate().fuse(OpFusions {
        addition: true,
        moments: &[DType::F16],
        ..OpFusions::default()
    });
    let all = std::cell::RefCell::new(Vec::new());
    let found = |joint: &Joint| {
        if !all.borrow().contains(joint) {
            all.borrow_mut().push(joint.clone());
        }
        Ok(true)
    };
    graph.join_norms(found).unwrap();
    all.into_inner()
}

#[test]
fn what_networks_normalise_between_convolutions_has_engines_in_f16() {
    with_each_release("what_networks_normalise_between_convolutions_has_engines_in_f16", networks_normalise);
}

fn networks_normalise() {
    for gpu in cards().into_iter().chain([h200()]) {
        let described = described(&gpu, false);
        for name in ["resnet50", "inception_v3", "densenet121"] {
            let all = joints(name);
            let lacks = |joint: &&Joint| {
                let [x, w, y] = &joint.tensors;
                let question =
                    ConvQuery { conv: &joint.conv, tensors: [x, w, y], dtype: DType::F16, tf32: false };
                described.normalised(&question).unwrap().iter().any(Option::is_none)
            };
            let without: Vec<&Joint> = all.iter().filter(lacks).collect();
            let name = format!("{} {} {name}", described.version(), gpu["deviceName"]);
            println!("{name}: {} of {} lack an engine: {without:?}", without.len(), all.len());
            assert!(all.len() > 10 && without.is_empty(), "{name}: {without:?}");
        }
    }
}

/// The proofs above would be none if a GPU that is described were not heeded: one from before bf16 has no engine for
/// it.
#[test]
fn a_gpu_without_bf16_has_no_engine_for_it() {
    with_each_release("a_gpu_without_bf16_has_no_engine_for_it", without_bf16);
}

fn without_bf16() {
    let described = described(&gpu("Tesla P100-SXM2-16GB", 600, 56, 49_152, 4 << 20, 16 << 30), false);
    let all = convolutions(MODELS, 2);
    let (conv, [x, w, y]) = all.iter().next().unwrap();
    let question = ConvQuery { conv, tensors: [x, w, y], dtype: DType::BF16, tf32: false };
    assert_eq!(described.engines(&question).unwrap(), [None; 3]);
}
