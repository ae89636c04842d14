//! Whole models on the CPU device, through the plan, against PyTorch's float64.
//!
//! tests/fixtures/make_models.py made the values and says how; weights, images and labels come from a formula that
//! both sides compute. What differs is this side's rounding, so the bounds are those of `Precision`.

use crate::support::{bound, job};

use std::path::{Path, PathBuf};

use bound::Bound;
use dltrain::config::{Loss, Metric, Objective};
use dltrain::device::cuda::Cuda;
use dltrain::device::onednn::Cpu;
use dltrain::device::{Device, Rule, Scalars, Step, Updated};
use dltrain::graph::{Graph, Op, Role, Shape};
use dltrain::model;
use dltrain::plan::Parameter;
use serde_json::Value;

/// Numbers kept of the logits (make_models.py).
const LOGITS: usize = 32;

/// How far results may be from those of exact arithmetic.
struct Bounds {
    /// The first loss, relative.
    loss: f64,
    /// The furthest of the sampled logits, relative to their size.
    logits: f64,
    /// The gradients' norms, relative: of half of the parameters, of nine tenths, and of all.
    norms: [f64; 3],
    /// Single numbers of the gradients, relative to the root mean square of that gradient's: of half, nine tenths, all.
    samples: [f64; 3],
    /// A gradient below this, relative to the median of their norms, is what is left of larger numbers with their
    /// rounding, as of a bias that a normalisation takes away again: errors are relative to this then.
    residue: f64,
    /// The losses of the steps that follow, relative.
    losses: f64,
}

enum Precision {
    F32,
    Bf16,
}

impl Precision {
    /// The loss and the logits are continuous: each layer adds roundings of 2⁻²⁴ (in sums of hundreds of products,
    /// which partly cancel: 16 of them) and passes on those before it. The gradients are not: where rounding decides
    /// the sign of an activation, or which of two wins a max pooling, all of a gradient goes one way or the other. One
    /// such among the u units of a layer moves its gradients by up to 1/√u of themselves: 5 % in the smallest layers
    /// here (32 channels of 16 numbers, in DenseNet), and single elements (sums of 16 terms) by 1/4. Further down it is
    /// diluted, hence one bound for half of the parameters and one for nine tenths. Most networks have none, and are
    /// then within 1e-5. PyTorch's own float32 keeps within half of these bounds: make_models.py checks that.
    fn bounds(&self, depth: usize) -> Bounds {
        match self {
            Precision::F32 => Bounds {
                loss: 1e-5,
                logits: 16.0 * depth as f64 * 2f64.powi(-24),
                norms: [5e-4, 5e-3, 5e-2],
                samples: [2e-3, 3e-2, 3e-1],
                residue: 1e-2,
                losses: 3e-3,
            },
            // The same with 2⁻⁹ in place of 2⁻²⁴, and errors of independent signs, which add up as √depth does: signs
            // and winners change everywhere, so that the bound for half is not much tighter than the others.
            Precision::Bf16 => Bounds {
                loss: 2e-2,
                logits: 8.0 * (depth as f64).sqrt() * 2f64.powi(-9),
                norms: [1e-1, 2e-1, 5e-1],
                samples: [3e-1, 1.0, 4.0],
                residue: 2e-1,
                losses: 5e-2,
            },
        }
    }
}

macro_rules! models {
    ($check:ident: $($name:ident)*) => {
        $(#[test]
        fn $name() {
            super::$check(stringify!($name));
        })*
    };
    (ignored $check:ident: $($name:ident)*) => {
        $(#[test]
        #[ignore = "minutes; make test-full"]
        fn $name() {
            super::$check(stringify!($name));
        })*
    };
}

/// Images as small as the model allows.
mod small {
    models!(small_images:
        mnist_small mnist_net mnist_large lenet5 cifar_net alexnet resnet18 resnet50
        inception_v3 googlenet densenet121 mobilenet_v2 vgg11_bn squeezenet1_1
        mobilenet_v3_large efficientnet_b0 regnet_y_400mf resnext50_32x4d shufflenet_v2_x1_0 convnext_tiny vit_b_16 swin_t
        mlp unet_small);
}

/// The same in bf16: a model of each kind.
mod bf16 {
    models!(small_images_in_bf16:
        resnet18 googlenet mobilenet_v2 squeezenet1_1 efficientnet_b0 shufflenet_v2_x1_0 convnext_tiny swin_t);
}

/// Images of the size that the model was made for, where that is larger.
mod full {
    models!(ignored full_images:
        alexnet vgg11 vgg13 vgg16 vgg19 vgg11_bn vgg13_bn vgg16_bn vgg19_bn resnet18 resnet34 resnet50 resnet101 resnet152
        googlenet densenet121 mobilenet_v2 squeezenet1_1 mobilenet_v3_large efficientnet_b0 regnet_y_400mf
        shufflenet_v2_x1_0 convnext_tiny);

    use super::{pixels, small_images, small_images_in_bf16};

    /// More layers of the same kinds.
    mod deeper {
        models!(ignored small_images:
            vgg11 vgg13 vgg16 vgg19 resnet34 resnet101 resnet152 vgg13_bn vgg16_bn vgg19_bn wide_resnet50_2
            unet deepcam);
    }

    mod deeper_in_bf16 {
        models!(ignored small_images_in_bf16: alexnet vgg11 resnet50 densenet121 vit_b_16);
    }

    /// Four more by `--no-dropout`: with stochastic depth, and with auxiliary heads.
    mod no_dropout {
        models!(ignored pixels: googlenet vgg11 convnext_tiny swin_t);
    }
}

/// What `--no-dropout` trains is what PyTorch does with dropout and stochastic depth at 0, from files to the record.
mod no_dropout {
    models!(pixels: mnist_net mobilenet_v2 mobilenet_v3_large efficientnet_b0 squeezenet1_1);
}

/// Images of a set, each of them in every step.
const ALL_IMAGES: usize = 20;

fn pixels(name: &str) {
    let fixture: Value = serde_json::from_slice(&std::fs::read(path("pixels", "")).unwrap()).unwrap();
    let expected = numbers(&fixture[name]["losses"]);
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).to_str().unwrap().to_string();
    let channels = model::find(name).unwrap().image[0];
    let side = if channels == 1 { 28 } else { 32 };
    write_images(directory.path(), channels, side);
    let graph = model::find(name).unwrap().build(ALL_IMAGES, [channels, side, side], 10).unwrap();
    write_weights(&directory.path().join("weights.safetensors"), &graph);
    let losses = |results: &str, more: &[&str]| {
        let (rate, batch) = (fixture[name]["rate"].to_string(), ALL_IMAGES.to_string());
        let (data, weights, record) =
            (directory.path().to_str().unwrap(), at("weights.safetensors"), at(results));
        let side = side.to_string();
        let flags = ["--model", name, "--classes", "10", "--image-size", &side, "--data", data];
        let flags = [&flags[..], &["--init-from", &weights, "--batch", &batch, "--epochs", "3"]].concat();
        let flags = [&flags[..], &["--optimizer", "sgd", "--momentum", "0", "--lr", &rate]].concat();
        let flags = [&flags[..], &["--threads", "1", "--quiet", "--results", &record], more].concat();
        job::run(1, &flags);
        job::series(Path::new(&record), "steps/loss")
    };
    let bounds = Precision::F32.bounds(0);
    let off = losses("off.h5", &["--no-dropout"]);
    assert_eq!(off.len(), expected.len(), "{off:?}");
    for (step, (&found, expected)) in off.iter().zip(expected).enumerate() {
        let bound = if step == 0 { bounds.loss } else { bounds.losses };
        assert!(relative(found, expected) <= bound, "{name} step {step}: loss {found} and {expected}");
    }
    if name == "mnist_net" {
        // With it they are others, far beyond rounding.
        assert!(relative(losses("on.h5", &[])[0], off[0]) > 1e-2);
    }
}

/// The images of make_models.py's `pixels`, as MNIST's files or as CIFAR's, in which one is for the test.
fn write_images(directory: &Path, channels: usize, side: usize) {
    let of = channels * side * side;
    let byte = |index| (word(seed("pixels"), index) >> 24) as u8;
    let image = |index: usize| (index * of..(index + 1) * of).map(byte).collect::<Vec<u8>>();
    let label = |index: usize| (word(seed("labels"), index) % 10) as u8;
    let write = |name: &str, bytes: Vec<u8>| std::fs::write(directory.join(name), bytes).unwrap();
    if channels == 3 {
        let record = |index: usize| [vec![label(index)], image(index)].concat();
        for part in 0..5 {
            let records = (part * ALL_IMAGES / 5..(part + 1) * ALL_IMAGES / 5).flat_map(record).collect();
            write(&format!("data_batch_{}.bin", part + 1), records);
        }
        return write("test_batch.bin", record(0));
    }
    for (part, count) in [("train", ALL_IMAGES), ("t10k", 1)] {
        let numbers = |of: &[usize]| of.iter().flat_map(|&n| (n as u32).to_be_bytes()).collect::<Vec<u8>>();
        let images: Vec<u8> = (0..count).flat_map(image).collect();
        write(&format!("{part}-images-idx3-ubyte"), [numbers(&[0x803, count, side, side]), images].concat());
        let labels: Vec<u8> = (0..count).map(label).collect();
        write(&format!("{part}-labels-idx1-ubyte"), [numbers(&[0x801, count]), labels].concat());
    }
}

/// First values as in the fixture, and running statistics as they begin.
fn write_weights(path: &Path, graph: &Graph) {
    let shape_of = |wanted: &str| {
        let found = graph.tensors.iter().find(|tensor| tensor.name == wanted);
        found.map(|tensor| tensor.spec.shape.clone())
    };
    let tensors = graph.tensors.iter().filter_map(|tensor| {
        let (name, shape) = (&tensor.name, &tensor.spec.shape);
        let values = match tensor.role {
            Role::Parameter => start_values(name, shape, |weight| shape_of(&weight)),
            Role::Statistic => vec![if name.ends_with("var") { 1.0 } else { 0.0 }; shape.elements()],
            _ => return None,
        };
        Some((
            name.clone(),
            shape.0.clone(),
            values.iter().flat_map(|value: &f32| value.to_le_bytes()).collect(),
        ))
    });
    let tensors: Vec<(String, Vec<usize>, Vec<u8>)> = tensors.collect();
    let views = tensors.iter().map(|(name, shape, bytes)| {
        let view =
            safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape.clone(), bytes).unwrap();
        (name.as_str(), view)
    });
    safetensors::serialize_to_file(views, None, path).unwrap();
}

fn small_images(name: &str) {
    check(name, "", Precision::F32);
}

fn small_images_in_bf16(name: &str) {
    check(name, "", Precision::Bf16);
}

fn full_images(name: &str) {
    check(name, "-full", Precision::F32);
}

#[test]
fn every_model_has_a_fixture() {
    // Cubes are compared with PyTorch's by tests/fields/train.py (unet3d not yet).
    for model in model::all().filter(|model| model.image.len() == 3) {
        assert!(
            path(model.name(), "").exists(),
            "{0}: no tests/fixtures/models/{0}.json, which tests/fixtures/make_models.py writes",
            model.name()
        );
    }
}

fn path(name: &str, suffix: &str) -> PathBuf {
    let file = format!("tests/fixtures/models/{name}{suffix}.json");
    // A test that is carried to another machine is told where it is.
    let root = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_else(|_| env!("CARGO_MANIFEST_DIR").into());
    PathBuf::from(root).join(file)
}

/// Forward, backward and five steps of SGD as in the fixture.
fn check(name: &str, suffix: &str, precision: Precision) {
    let fixture: Value = serde_json::from_slice(&std::fs::read(path(name, suffix)).unwrap()).unwrap();
    let number = |key: &str| fixture[key].as_u64().unwrap() as usize;
    let image = [0, 1, 2].map(|axis| fixture["image"][axis].as_u64().unwrap() as usize);
    let forward = model::find(name).unwrap().build(number("batch"), image, number("classes")).unwrap();
    // Of a network that gives none a class for each place.
    let objective = Objective { loss: Loss::CrossEntropy, metric: Metric::Iou, smoothing: 0.0 };
    let forward = match forward.gives_scores() {
        true => forward,
        false => forward.with_objective(objective, None).unwrap(),
    };
    let depth = forward.nodes.iter().filter(|node| is_product(&node.op)).count();
    let bounds = precision.bounds(depth);
    // The GPU where DLTRAIN_TEST_DEVICE says so.
    let device: Box<dyn Device> = match std::env::var("DLTRAIN_TEST_DEVICE").as_deref() {
        Ok("cuda") => Box::new(Cuda::new(0, false, 1).unwrap()),
        _ => {
            let cpu = Cpu::new(1).unwrap();
            if matches!(precision, Precision::Bf16) && cpu.has_bf16().is_err() {
                return println!("SKIPPED: this CPU has no bf16 arithmetic");
            }
            Box::new(cpu)
        }
    };
    let forward = without_dropout(forward).simplify();
    let graph = match precision {
        Precision::F32 => forward,
        Precision::Bf16 => forward.in_bf16(),
    };
    let mut run = Bound::new(&*device, graph.differentiate(), 1 << 20);
    start(&run, number("classes"));

    let scalars = Scalars {
        gradient_scale: 1.0 / number("batch") as f32,
        learning_rate: fixture["rate"].as_f64().unwrap() as f32,
        ..Scalars::default()
    };
    let (forward_steps, steps) = (run.program.forward_steps, run.program.steps.len());
    let mut updates = updates(&run);
    for (step, expected) in numbers(&fixture["losses"]).into_iter().enumerate() {
        run.run(0..forward_steps, &scalars);
        let (error, bound) =
            (relative(run.loss(), expected), if step == 0 { bounds.loss } else { bounds.losses });
        assert!(error <= bound, "{name} step {step}: loss {} and {expected}", run.loss());
        if step == 0 {
            let error = logits_error(&run, &numbers(&fixture["logits"]));
            assert!(error <= bounds.logits, "{name}: logits differ by {error:.1e} of {:.1e}", bounds.logits);
        }
        run.run(forward_steps..steps, &scalars);
        if step == 0 {
            check_gradients(name, &run, &fixture["gradients"], &bounds);
        }
        updates.iter_mut().for_each(|update| update.run(&scalars).unwrap());
    }
}

fn is_product(op: &Op) -> bool {
    matches!(op, Op::Conv(_) | Op::Linear { .. } | Op::MatMul(_))
}

/// The masks of two frameworks cannot be the same.
fn without_dropout(mut graph: Graph) -> Graph {
    for node in &mut graph.nodes {
        if let Op::Dropout { p, .. } = &mut node.op {
            *p = 0.0;
        }
    }
    graph
}

fn updates(run: &Bound) -> Vec<Box<dyn Step>> {
    let rule = Rule::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.0 };
    let (parameters, gradients) = (&run.regions.parameters, &run.regions.gradients);
    let spans = run.plan.buckets.iter().map(|bucket| run.plan.spans(&bucket.bytes, &rule));
    spans
        .map(|spans| {
            run.device.update(&rule, &spans, &Updated { parameters, gradients, state: &[] }).unwrap()
        })
        .collect()
}

/// Writes images, labels and every parameter.
fn start(run: &Bound, classes: usize) {
    let images = (0..run.program.images.bytes() / 4).map(|i| 1.75 * uniform(word(seed("images"), i)));
    let labels =
        (0..run.program.labels.bytes() / 4).map(|i| (word(seed("labels"), i) % classes as u32) as i32);
    let (images, labels) = (images.collect::<Vec<_>>(), labels.collect::<Vec<_>>());
    match run.plan.graph.objective() {
        None => run.set_batch(&images, &labels),
        Some(_) => run.set_fields(&images, &labels.iter().map(|&label| label as f32).collect::<Vec<_>>()),
    }
    for parameter in &run.plan.parameters {
        run.set_parameter(parameter, &first_values(run, parameter));
    }
}

/// make_models.py's `start`, which says why.
fn first_values(run: &Bound, parameter: &Parameter) -> Vec<f32> {
    let shape_of = |weight: String| Some(run.plan.parameter(&weight).ok()?.spec.shape.clone());
    start_values(&parameter.name, &parameter.spec.shape, shape_of)
}

fn start_values(name: &str, shape: &Shape, shape_of: impl Fn(String) -> Option<Shape>) -> Vec<f32> {
    let seed = seed(name);
    let of_norm = |weight: String| shape_of(weight).is_some_and(|shape| shape.0.len() == 1);
    let [middle, width] = match (shape.0.len(), name.strip_suffix("bias")) {
        (4, _) => [0.0, (6.0 / shape.per_sample() as f64).sqrt() as f32],
        (2, _) => [0.0, (3.0 / shape.per_sample() as f64).sqrt() as f32],
        (_, None) => [1.0, 0.2],
        (_, Some(layer)) if of_norm(format!("{layer}weight")) => [2.0, 1.0],
        _ => [0.0, 0.1],
    };
    (0..shape.elements()).map(|i| middle + width * uniform(word(seed, i))).collect()
}

/// FNV-1a.
fn seed(name: &str) -> u32 {
    name.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// Element `index` of the tensor with this seed, by the finalizer of MurmurHash3.
fn word(seed: u32, index: usize) -> u32 {
    let word = (index as u32).wrapping_mul(0x9e37_79b9).wrapping_add(seed);
    let word = (word ^ word >> 16).wrapping_mul(0x85eb_ca6b);
    let word = (word ^ word >> 13).wrapping_mul(0xc2b2_ae35);
    word ^ word >> 16
}

/// A multiple of 2⁻²³ in [-1, 1).
fn uniform(word: u32) -> f32 {
    (word >> 8) as f32 / 8_388_608.0 - 1.0
}

/// Which elements of a tensor are kept.
fn places(count: usize, wanted: usize) -> impl Iterator<Item = usize> {
    (0..wanted).map(move |k| (k * 2_654_435_761 + count / 3) % count)
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

fn relative(found: f64, expected: f64) -> f64 {
    (found - expected).abs() / expected.abs()
}

/// The largest difference among the sampled logits, in units of their root mean square. To be asked before the
/// backward steps, which reuse their memory.
fn logits_error(run: &Bound, expected: &[f64]) -> f64 {
    let graph = &run.plan.graph;
    let (layout, place) = run
        .plan
        .steps
        .iter()
        .find_map(|step| {
            let node = graph.node(step.node?);
            let output = node.outputs.iter().position(|&id| id == graph.logits)?;
            Some((&step.kernel.outputs[output], step.outputs[output]))
        })
        .unwrap();
    let memory = run.regions.arena.slice(place.offset, place.bytes);
    let logits = run.read(&graph.tensor(graph.logits).spec, layout, &memory);
    assert_eq!(expected.len(), LOGITS);
    let size = (expected.iter().map(|v| v * v).sum::<f64>() / LOGITS as f64).sqrt();
    let errors = places(logits.len(), LOGITS).zip(expected).map(|(i, v)| (f64::from(logits[i]) - v).abs());
    errors.fold(0.0, f64::max) / size
}

fn check_gradients(name: &str, run: &Bound, expected: &Value, bounds: &Bounds) {
    let expected = expected.as_object().unwrap();
    assert_eq!(expected.len(), run.plan.parameters.len(), "{name}: other parameters than PyTorch's");
    let mut sizes: Vec<f64> = expected.values().map(|v| v[0].as_f64().unwrap()).collect();
    sizes.sort_by(f64::total_cmp);
    let median = sizes[sizes.len() / 2];
    let (mut norms, mut samples) = (Vec::new(), Vec::new());
    for parameter in &run.plan.parameters {
        let what = format!("{name} {}", parameter.name);
        let theirs =
            numbers(expected.get(&parameter.name).unwrap_or_else(|| panic!("{what}: not PyTorch's")));
        let ours = run.gradient(parameter);
        let norm = ours.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>().sqrt();
        let size = theirs[0].max(bounds.residue * median);
        norms.push(((norm - theirs[0]).abs() / size, what.clone()));
        let size = size / (ours.len() as f64).sqrt();
        let kept = places(ours.len(), theirs.len() - 1).zip(&theirs[1..]);
        samples.extend(kept.map(|(i, v)| ((f64::from(ours[i]) - v).abs() / size, format!("{what}[{i}]"))));
    }
    within("norms", norms, bounds.norms);
    within("samples", samples, bounds.samples);
}

/// Half of the distances are within the first bound, nine tenths within the second, all within the third.
fn within(what: &str, mut distances: Vec<(f64, String)>, bounds: [f64; 3]) {
    distances.sort_by(|a, b| a.0.total_cmp(&b.0));
    let count = distances.len();
    for (at, bound) in [count / 2, count * 9 / 10, count - 1].into_iter().zip(bounds) {
        let (distance, of) = &distances[at];
        assert!(
            *distance <= bound,
            "{what} of gradients: {of} is off by {distance:.1e}, allowed are {bound:.1e}"
        );
    }
}
