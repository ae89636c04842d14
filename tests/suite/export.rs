//! `dltrain export … net.onnx`: what a user relies on who takes a network elsewhere.
//!
//! - ONNX Runtime computes of the file what dltrain computes, for any batch, folded or not, with every op there is;
//! - dltrain reads the file as the network that it wrote, to the same logits;
//! - an imported network learns as that of the zoo does, with the flags that others take;
//! - a checkpoint, other classes and an imported network are written too, and the file's accuracy is the network's;
//! - what does not go together is refused with one message, and nothing is overwritten.
//!
//! ONNX Runtime is there after `.ci/deps onnxruntime`; without it what needs it says SKIPPED.

use crate::support::cases::{each, first};
use crate::support::exported::{Files, layers, weights};
use crate::support::{digits, job};

use std::path::Path;

use digits::few_tests;
use dltrain::device::onednn::isa;
use dltrain::error::Result;
use dltrain::graph::{
    Activation, BatchNorm, Binary, Builder, Conv, Graph, Init, LocalResponseNorm, Pool, Resize, SampleShape,
    TensorId, dims,
};
use dltrain::model::{self, onnx};
use dltrain::record::WeightsFile;
use job::{refused, run, series};

/// The forward graph of layers over images of this size.
fn of(
    image: [usize; 3],
    layers: impl Fn(&mut Builder, TensorId) -> Result<TensorId>,
) -> impl Fn(usize) -> Result<Graph> {
    move |batch| {
        let (mut net, x) = Builder::new("net", batch, image);
        net.only_to_test();
        let logits = layers(&mut net, x)?;
        Ok(net.finish(logits))
    }
}

/// Windows, normalisations and activations.
fn of_images(net: &mut Builder, x: TensorId) -> Result<TensorId> {
    let dilated = Conv { stride: [1, 2, 1], ..Conv::square(3).padding(2).dilation(2) };
    let mut x = net.conv("dilated", x, 12, dilated)?;
    x = net.batch_norm("norm1", x, BatchNorm { epsilon: 1e-3, momentum: 0.2, ..BatchNorm::default() })?;
    x = net.relu("relu1", x);
    let grouped = Conv { groups: 3, bias: false, ..Conv::square(1) };
    let y = net.conv("grouped", x, 12, grouped)?;
    let y = net.batch_norm("norm2", y, BatchNorm::default())?;
    x = net.add("added", x, y)?;
    x = net.batch_norm("norm3", x, BatchNorm::default())?;
    x = net.local_response_norm("lrn", x, LocalResponseNorm::default())?;
    let most = net.max_pool("most", x, Pool::square(3).stride(2).ceil())?;
    let mean = net.avg_pool("mean", x, Pool::square(3).stride(2).padding(1))?;
    let counted = Pool { count_include_pad: false, ..Pool::square(3).stride(2).padding(1) };
    let other = net.avg_pool("counted", x, counted)?;
    let size = |net: &Builder, id| [1, net.shape(id).0[2], net.shape(id).0[3]];
    let smaller = size(net, most);
    let [mean, other] = [mean, other].map(|id| net.adaptive_avg_pool(&format!("even{}", id.0), id, smaller));
    x = net.concat("together", &[most, mean?, other?])?;
    for (number, &of) in Activation::ALL.iter().enumerate() {
        // Of numbers above 0, and not above what e^x stays small for.
        if matches!(of, Activation::Sqrt | Activation::Exp) {
            x = net.activation(&format!("before{number}"), x, Activation::Sigmoid);
        }
        x = net.activation(&format!("f{number}"), x, of);
    }
    let apart = Conv { stride: [1, 2, 1], groups: 3, ..Conv::square(3).padding(1) };
    let y = net.conv_transpose("transposed", x, 9, apart, [0, 1, 0])?;
    let y = net.resize("smaller", y, smaller, Resize::BILINEAR)?;
    x = net.concat("wider", &[x, y])?;
    x = net.pad("padded", x, 2, [1, 2])?;
    x = net.slice("cut", x, 1, 3..33)?;
    x = net.channel_shuffle("shuffled", x, 5)?;
    x = net.adaptive_avg_pool("uneven", x, [1, 3, 2])?;
    x = net.dropout("dropped", x, 0.5);
    x = net.drop_samples("skipped", x, 0.5);
    x = net.flatten("flat", x);
    x = net.linear_without_bias("fc1", x, 16);
    x = net.activation("silu", x, Activation::Silu);
    Ok(net.linear("fc2", x, 5))
}

/// Arithmetic of two, sums, and what a transformer is made of.
fn of_rows(net: &mut Builder, x: TensorId) -> Result<TensorId> {
    let Some([n, c, h, w]) = net.shape(x).nchw() else { panic!("images") };
    let mean = net.sum("mean", x, &[2, 3], 1.0 / (h * w) as f32)?;
    let total = net.sum("total", x, &[1], 0.25)?;
    let mut x = net.binary("less", Binary::Subtract, x, mean)?;
    x = net.binary("more", Binary::Add, x, total)?;
    let scale = net.learned("scale", dims([c, 1, 1]), Init::One, false);
    x = net.binary("scaled", Binary::Multiply, scale, x)?;
    let by = net.activation("positive", total, Activation::Exp);
    x = net.binary("divided", Binary::Divide, x, by)?;
    let mask: Vec<f32> = (0..h * w).map(|place| (place % 3) as f32).collect();
    let mask = net.constant("mask", dims([h, w]), &mask)?;
    x = net.binary("masked", Binary::Multiply, x, mask)?;
    x = net.group_norm("groups", x, 2, 1e-5)?;
    x = net.layer_norm_of_channels("channels", x, 1e-6)?;
    x = net.reshape("patches", x, dims([n, c, h * w]))?;
    x = net.permute("last", x, &[0, 2, 1])?;
    let class = net.learned("class", dims([1, 1, c]), Init::Zero, false);
    let class = net.expand("classes", class, dims([n, 1, c]))?;
    x = net.concat_along("tokens", 1, &[class, x])?;
    let length = h * w + 1;
    let y = net.layer_norm("ln", x, 1, 1e-6)?;
    let y = net.reshape("rows", y, dims([n * length, c]))?;
    let y = net.linear("qkv", y, 3 * c);
    let y = net.attention("attention", y, length, 2)?;
    let y = net.linear("out", y, c);
    let y = net.reshape("attended", y, dims([n, length, c]))?;
    x = net.add("added", x, y)?;
    let y = net.linear_along("wide", x, 2 * c)?;
    let y = net.activation("gelu", y, Activation::Gelu);
    let y = net.linear_along("narrow", y, c)?;
    x = net.add("again", x, y)?;
    x = net.slice("first", x, 1, 0..1)?;
    x = net.reshape("row", x, dims([n, c]))?;
    Ok(net.linear("head", x, 5))
}

#[test]
fn every_op_is_run_by_onnx_runtime() {
    let files = Files::new();
    let (windows, rows) = (of([3, 18, 15], of_images), of([4, 4, 5], of_rows));
    let plain = files.write("windows", &windows, false);
    assert_eq!(files.write("folded", &windows, true), plain);
    let ours = files.write("rows", &rows, false);
    files.is_read_back("rows", &rows, &ours);
    // What is too large for one file has its weights in a second one.
    let _ = files.write("apart", &rows, false);
    std::fs::remove_file(files.path("apart.onnx")).unwrap();
    files.write_up_to(1000, "apart", &rows, (false, &weights));
    assert!(files.path("apart.onnx.data").exists() && !files.path("rows.onnx.data").exists());
    files.is_read_back("apart", &rows, &ours);
    files.are_run();
    // Of the three normalisations two are behind a convolution.
    let count = |name: &str| {
        let bytes = std::fs::read(files.path(name)).unwrap();
        bytes.windows(18).filter(|part| part == b"BatchNormalization").count()
    };
    assert_eq!([count("windows.onnx"), count("folded.onnx")], [3, 1]);
}

/// Small ones of the zoo, which have every op that an importer meets often.
#[test]
fn models_are_read_back_as_they_were_written() {
    zoo(&[
        ("lenet5", 28),
        ("squeezenet1_1", 33),
        ("shufflenet_v2_x1_0", 32),
        ("mobilenet_v3_large", 32),
        ("efficientnet_b0", 32),
        ("googlenet", 32),
    ]);
}

fn zoo(models: &[(&str, usize)]) {
    for &(name, size) in models {
        let files = Files::new();
        let model = model::find(name).unwrap();
        let image = [model.image[0], size, size];
        let build = |batch| model.build_to_test(batch, image, 7);
        let ours = files.write(name, &build, false);
        // What ONNX has no op for is written as products, which are none of weights.
        let is_uneven = layers(&build(1).unwrap()).iter().any(|layer| layer.starts_with("AdaptiveAvgPool"));
        if !is_uneven {
            files.is_read_back(name, &build, &ours);
        }
        assert_eq!(files.write(&format!("{name}-folded"), &build, true), ours);
        files.are_run();
    }
}

#[test]
fn what_is_exported_has_the_accuracy_of_what_was_trained() {
    let place = tempfile::tempdir().unwrap();
    let path = |name: &str| place.path().join(name).to_str().unwrap().to_string();
    let [weights, net, again, kept, results] =
        ["w.safetensors", "net.onnx", "again.onnx", "kept", "run.h5"].map(path);
    let network = ["--model", "resnet18", "--image-size", "32", "--classes", "10"];
    let trained = ["--data", few_tests(), "--batch", "16", "--steps", "6", "--quiet"];
    let places = ["--results", &results, "--save-weights", &weights, "--checkpoint", &kept];
    run(2, &[&network[..], &trained, &places].concat());
    let said = run(2, &[&["export", &weights, &net], &network[..]].concat());
    assert!(said.contains(&format!("102 tensors: {net}")), "{said}");
    let tested =
        |flags: &[&str]| run(2, &[&["evaluate", "--data", few_tests(), "--batch", "16"], flags].concat());
    let expected = tested(&[&network[..], &["--init-from", &weights]].concat());
    assert!(expected.contains("accuracy"), "{expected}");
    let accuracy = |text: &str| text.split("accuracy ").nth(1).unwrap().trim().to_string();
    assert_eq!(accuracy(&tested(&["--model", &net])), accuracy(&expected));
    // From the imported network, folded; and of the checkpoint, which has the same weights.
    run(1, &["export", &net, &again, "--fold"]);
    assert_eq!(accuracy(&tested(&["--model", &again])), accuracy(&expected));
    let checkpoint = Path::new(&kept).join("step-00000006.h5");
    let other = path("other.onnx");
    run(1, &[&["export", checkpoint.to_str().unwrap(), &other], &network[..]].concat());
    assert_eq!(std::fs::read(&other).unwrap(), std::fs::read(&net).unwrap());
    let mut entries = std::fs::read_dir(place.path()).unwrap();
    assert!(!entries.any(|entry| entry.unwrap().path().extension().is_some_and(|end| end == "tmp")));

    // Each case has a file of its own: two at once are refused for another reason.
    let [new, newer, newest, short, nowhere] =
        ["new.onnx", "newer.onnx", "newest.onnx", "w.h5", "none/net.onnx"].map(path);
    let before = std::fs::read(&net).unwrap();
    let cases = [
        ([&[&*weights, &net], &network[..]].concat(), "is there already"),
        (vec![&weights, &new], "name their network with --model"),
        (vec![&weights, &newer, "--model", "resnet81"], "no such model"),
        (vec![&weights, &newest, "--model", "resnet18"], "say with --classes how many they are for"),
        (vec![&weights, &short, "--fold"], "--fold is about a network"),
        (vec![&weights, &nowhere, "--model", "resnet18"], "none"),
    ];
    each(cases, |(flags, what)| {
        let message = refused(&[(2, &[&["export"], &flags[..]].concat())]);
        assert!(message.contains(what), "{what}: {message}");
    });
    assert_eq!(std::fs::read(&net).unwrap(), before);
    assert!([new, newer, newest].iter().all(|path| !Path::new(path).exists()));
}

/// The network that was written is that of the zoo: it learns the same, to the bit, whatever the flags.
#[test]
fn an_imported_network_takes_the_flags_that_others_take() {
    let place = tempfile::tempdir().unwrap();
    let path = |name: &str| place.path().join(name).to_str().unwrap().to_string();
    let [weights, net] = ["w.safetensors", "net.onnx"].map(path);
    let zoo = ["--model", "resnet18", "--image-size", "32", "--classes", "10"];
    let flags = ["--data", few_tests(), "--batch", "8", "--threads", "1", "--quiet"];
    let made = ["--steps", "1", "--save-weights", &weights, "--results", &path("first.h5")];
    run(1, &[&zoo[..], &flags, &made].concat());
    run(1, &[&["export", &weights, &net], &zoo[..]].concat());
    let losses = |name: &str, network: &[&str], more: &[&str]| {
        let results = path(name);
        run(2, &[network, &flags, more, &["--steps", "3", "--results", &results]].concat());
        series(Path::new(&results), "steps/loss")
    };
    let cases: [&[&str]; 4] = [
        &["--freeze", "layer1,bn1"],
        &["--precision", "bf16"],
        &["--recompute"],
        &["--freeze", "backbone", "--reset-head"],
    ];
    for (case, more) in first(2, cases).enumerate() {
        if more.contains(&"bf16") && !isa().unwrap().has_bf16() {
            println!("SKIPPED: this CPU has no bf16 arithmetic");
            continue;
        }
        let of_zoo = losses(&format!("{case}.h5"), &[&zoo[..], &["--init-from", &weights]].concat(), more);
        let imported = losses(&format!("{case}-net.h5"), &["--model", &net], more);
        assert!(of_zoo.len() == 3 && of_zoo[0] != of_zoo[2], "{more:?}: {of_zoo:?}");
        assert_eq!(imported, of_zoo, "{more:?}");
    }
    // Its weights alone are those that it was made of.
    let back = path("back.safetensors");
    run(1, &["export", &net, &back]);
    let [back, weights] = [back, weights].map(|path| WeightsFile::open(Path::new(&path)).unwrap());
    assert_eq!(back.shapes(), weights.shapes());
    for (name, _) in weights.shapes() {
        assert_eq!(back.values(name).unwrap(), weights.values(name).unwrap(), "{name}");
    }
}

/// What no file can hold is found by the graph alone, so that a run says it before it trains.
#[test]
fn what_cannot_be_written_is_known_in_advance() {
    let refused = |part: &str, build: &dyn Fn(usize) -> Graph| {
        let message = onnx::export::check(|batch| Ok(build(batch))).unwrap_err().message;
        assert!(message.contains(part), "{message}");
    };
    let cubes = |to: [usize; 3]| {
        move |batch: usize| {
            let (mut net, x) = Builder::new("cubes", batch, SampleShape::cube([2, 5, 4, 4]));
            let x = net.adaptive_avg_pool("pool", x, to).unwrap();
            let x = net.flatten("flat", x);
            let scores = net.linear("fc", x, 2);
            net.finish(scores)
        }
    };
    refused("pool: it averages unlike many places of cubes", &cubes([3, 2, 2]));
    onnx::export::check(|batch| Ok(cubes([5, 2, 2])(batch))).unwrap();
}

/// Every model of the zoo, at its smallest images.
mod full {
    use super::*;

    #[test]
    #[ignore = "minutes"]
    fn every_model() {
        let works = |model: &model::Model, size: &usize| {
            model.build_to_test(1, [model.image[0], *size, *size], model.classes).is_ok()
        };
        let smallest = |model: &model::Model| (24..).find(|size| works(model, size)).unwrap();
        let convolutions = model::MODELS.iter().filter(|model| !TRANSFORMERS.contains(&model.name()));
        let models = convolutions.map(|model| (model.name(), smallest(model)));
        // At these sizes their poolings are even.
        zoo(&models.chain([("alexnet", 224), ("vgg11", 224)]).collect::<Vec<_>>());
    }

    const TRANSFORMERS: [&str; 2] = ["vit_b_16", "swin_t"];

    #[test]
    #[ignore = "minutes"]
    fn transformers() {
        zoo(&TRANSFORMERS.map(|name| (name, 64)));
    }
}
