//! Training from arrays as they lie in files (`--input`, `--target`): what a user relies on.
//!
//! - any number of ranks and every way to share the work has the losses of one rank, and the metric adds up exactly;
//! - a run goes on from a checkpoint in the middle of an epoch with other ranks, and has the same losses;
//! - weights keep by what their arrays were rescaled: evaluation and prediction take that, and the file of predictions
//!   has the test's error in the target's own numbers;
//! - universes are the same computed and packed, by whatever ranks, and MLPerf's log says what was trained;
//! - cubes cut by planes have the losses of one rank, and a rank reads its own planes of the file and no others;
//! - what does not fit is said in one message before the first step.
//!
//! `make test-fields` compares losses and metrics with PyTorch's.

use crate::support::arrays::{EMULATOR, write};
use crate::support::exported::{Files, weights};
use crate::support::{fake_cuda, gpu_job, job};

use crate::onnx::nodes::{node, value, weight};

use std::fs;
use std::path::{Path, PathBuf};

use dltrain::error::Result;
use dltrain::fields::six_digits;
use dltrain::graph::{BatchNorm, Builder, Conv, Graph, Pool, SampleShape};
use dltrain::model::onnx::schema::{AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, kind};
use hdf5::types::{FixedAscii, VarLenArray, VarLenUnicode};
use hdf5::{File, ObjectReference1, ReferencedObject};
use job::{finish, misused, only_message, refused, run, series};
use prost::Message;

const VECTOR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/onnx/vector.onnx");

/// The same, with losses as outputs.
const WITHIN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/onnx/within.onnx");

/// A directory with files of 20 samples each.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        let place = Place(tempfile::tempdir().unwrap());
        fs::create_dir(place.path("train")).unwrap();
        for (number, name) in ["train/a.h5", "train/b.h5", "test.h5"].into_iter().enumerate() {
            write(&place.path(name), number, 20);
        }
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Trains the emulator; returns the results file.
    fn train(&self, ranks: usize, name: &str, flags: &str) -> PathBuf {
        let results = self.text(&format!("{name}.h5"));
        let data = self.text("train");
        let views = ["--input", "air/wind[n,h,w,c]:standard", "--target", "heat[n,h,w]:standard"];
        let fixed =
            ["--model", EMULATOR, "--data", &data, "--loss", "mse", "--optimizer", "sgd", "--lr", "0.01"];
        let more: Vec<&str> = flags.split_whitespace().collect();
        run(
            ranks,
            &[&fixed[..], &views, &["--threads", "1", "--quiet", "--results", &results], &more].concat(),
        );
        self.path(&format!("{name}.h5"))
    }
}

/// Sums in another order.
fn near(found: &[f64], expected: &[f64], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (a, b) in found.iter().zip(expected) {
        assert!((a - b).abs() <= 1e-5 * b.abs(), "{what}: {found:?}, and {expected:?}");
    }
}

#[test]
fn every_way_to_share_the_work_has_the_losses_of_one_rank() {
    let place = Place::new();
    let test = place.text("test.h5");
    let plain = format!("--epochs 1 --test-data {test} --metric r2");
    let weighed = |weight: &str| format!("{plain} --weight {weight}");
    let [one, area, quality] =
        [("one", &plain), ("area", &weighed("area[h]")), ("quality", &weighed("quality"))]
            .map(|(name, flags)| place.train(1, name, &format!("{flags} --batch 8")));
    for (ranks, name, like, flags) in [
        (2, "two", &one, "--batch 4"),
        (2, "zero", &one, "--batch 4 --zero 3"),
        (2, "pipeline", &one, "--batch 8 --pipeline 2"),
        (2, "spatial", &one, "--batch 8 --spatial 2"),
        (2, "shards", &one, "--batch 4 --shards 2"),
        (2, "threads", &one, "--batch 4 --loader-threads 2 --recompute"),
        (1, "reference", &one, "--batch 8 --device reference"),
        // The numbers of points are no multiples of those of ranks.
        (3, "rows that weigh", &area, "--batch 8 --spatial 3 --weight area[h]"),
        (2, "stages that weigh", &area, "--batch 8 --pipeline 2 --weight area[h]"),
        (2, "samples that weigh", &quality, "--batch 4 --loader-threads 1 --weight quality"),
        (2, "rows of samples that weigh", &quality, "--batch 8 --spatial 2 --weight quality"),
        (1, "reference that weighs", &quality, "--batch 8 --device reference --weight quality"),
    ] {
        let other = place.train(ranks, name, &format!("{plain} {flags}"));
        for series_name in ["steps/loss", "epochs/train_r2", "epochs/test_loss", "epochs/test_r2"] {
            near(&series(&other, series_name), &series(like, series_name), &format!("{name}: {series_name}"));
        }
    }
}

/// What a test says, by the outputs that `predict` writes and the definition: whatever array weighs, beside points that
/// are missing and weights of classes, over ranks that have unlike parts of the set.
#[test]
fn what_points_weigh_multiplies_their_losses() {
    let place = Place::new();
    let [test, output, scores, weights] =
        ["test.h5", "out.h5", "scores.h5", "mlp.safetensors"].map(|name| place.text(name));
    let of =
        |path: &str, name: &str| File::open(path).unwrap().dataset(name).unwrap().read_raw::<f64>().unwrap();
    let [area, land, quality] = ["area", "land", "quality"].map(|name| of(&test, name));
    let wind = of(&test, "air/wind");
    // By sample and point.
    let weight = |view: &str, n: usize, point: usize| match view {
        "area[h]" => area[point / 10],
        "land[h,w]" => land[point],
        "quality" => quality[n],
        "air/wind[n,h,w,1]" => wind[2 * (120 * n + point) + 1],
        _ => 1.0,
    };
    let found = |net: &[&str], names: [&str; 2]| {
        let said = run(3, &[&["evaluate", "--data", &test, "--batch", "3"], net].concat());
        names.map(|name| {
            let (_, behind) = said.split_once(name).unwrap_or_else(|| panic!("{said}"));
            behind.split([',', '\n', '%']).next().unwrap().trim().parse::<f64>().unwrap()
        })
    };
    // Means over samples of the loss, which is over all points, and of the metric, which is over what they weigh.
    let means = |samples: usize, points: usize, of: &dyn Fn(usize, usize) -> Option<(f64, f64, f64)>| {
        let mut all = [0.0; 2];
        for n in 0..samples {
            let sums =
                (0..points).filter_map(|point| of(n, point)).fold([0.0; 3], |sums, (w, loss, metric)| {
                    [sums[0] + w * loss, sums[1] + w * metric, sums[2] + w]
                });
            all[0] += sums[0] / points as f64 / samples as f64;
            all[1] += if sums[2] > 0.0 { sums[1] / sums[2] / samples as f64 } else { 0.0 };
        }
        all
    };
    let input = ["--input", "air/wind[n,h,w,c]"];
    run(1, &[&["predict", "--model", EMULATOR, "--data", &test, "--output", &output], &input[..]].concat());
    let given = of(&output, "output");
    let holes = of(&test, "holes");
    for (view, loss, metric) in [
        ("area[h]", "mse", "rmse"),
        ("land[h,w]", "mae", "mae"),
        ("quality", "huber", "mae"),
        ("air/wind[n,h,w,1]", "mse", "rmse"),
    ] {
        let flags = ["--target", "holes[n,h,w]", "--missing", "mask", "--loss", loss, "--weight", view];
        let said = found(&[&["--model", EMULATOR], &input[..], &flags].concat(), ["test loss", metric]);
        let [loss_mean, metric_mean] = means(20, 120, &|n, point| {
            let error = given[120 * n + point] - holes[120 * n + point];
            let size = error.abs();
            let compared = match loss {
                "mse" => error * error,
                "huber" if size > 1.0 => size - 0.5,
                "huber" => error * error / 2.0,
                _ => size,
            };
            let metric = if metric == "rmse" { error * error } else { size };
            (!error.is_nan()).then(|| (weight(view, n, point), compared, metric))
        });
        let metric_mean = if metric == "rmse" { metric_mean.sqrt() } else { metric_mean };
        near(&said, &[loss_mean, metric_mean], view);
    }
    let mlp = ["--model", "mlp", "--classes", "3", "--input", "params", "--loss", "cross-entropy"];
    let train =
        ["--target", "kind", "--steps", "2", "--batch", "8", "--data", &test, "--save-weights", &weights];
    run(1, &[&mlp[..], &train].concat());
    let mlp = [&mlp[..], &["--init-from", &weights]].concat();
    run(1, &[&["predict", "--data", &test, "--output", &scores], &mlp[..]].concat());
    let (given, kinds) = (of(&scores, "output"), of(&test, "kind"));
    let classes = [0.5, 1.0, 3.0];
    for (smoothing, view) in [("0", "quality"), ("0.2", "quality"), ("0.2", "ones")] {
        let flags = ["--target", "kind", "--class-weights", "0.5,1,3", "--label-smoothing", smoothing];
        let weighed = ["--weight", view];
        let flags = [&mlp[..], &flags, if view == "ones" { &[] } else { &weighed[..] }].concat();
        let smoothing: f64 = smoothing.parse().unwrap();
        // PyTorch's: what is spread over the classes has the weight of each.
        let expected = means(20, 1, &|n, _| {
            let scores = &given[3 * n..3 * n + 3];
            let all = scores.iter().map(|score| score.exp()).sum::<f64>().ln();
            let own = kinds[n] as usize;
            let share = |k: usize| smoothing / 3.0 + if k == own { 1.0 - smoothing } else { 0.0 };
            let loss = (0..3).map(|k| share(k) * classes[k] * (all - scores[k])).sum();
            let is_right = (0..3).all(|k| scores[own] >= scores[k]);
            Some((weight(view, n, 0), loss, f64::from(u8::from(is_right))))
        });
        let said = found(&flags, ["test loss", "accuracy"]);
        near(&said[..1], &expected[..1], "cross-entropy");
        assert!((said[1] - 100.0 * expected[1]).abs() < 0.01, "{said:?}, {expected:?}");
    }
}

/// The doubles of CUDA's libraries: targets go to the device as images do, and losses come from its kernels.
#[test]
fn a_gpu_has_the_losses_of_the_cpu() {
    let place = Place::new();
    let flags = format!(
        "--model {EMULATOR} --data {} --input air/wind[n,h,w,c]:standard --target heat[n,h,w]:standard --loss mse \
         --epochs 1 --batch 4 --optimizer sgd --lr 0.01 --loader-threads 1",
        place.text("train")
    );
    let mut results = gpu_job::Results::new();
    for weight in ["", "--weight land[h,w]"] {
        let device = |name| format!("{flags} {weight} --device {name}");
        let losses = ["cpu", "cuda"].map(|name| results.losses(2, &device(name)));
        near(&losses[1], &losses[0], "cuda");
    }
}

/// Files whose numbers have 16 bits, some of which are missing: `wind` and `heat`, and as long ones `long`.
fn write_packed(path: &Path, number: i64) {
    let file = File::create(path).unwrap();
    let value = |n: usize, y: usize, x: usize, c: usize| {
        let wave = (0.3 * (y as i64 + 2 * n as i64 + number) as f64 + 0.5 * (x * (c + 1)) as f64).sin();
        (100.0 * (c + 1) as f64 + 900.0 * wave) as i16 + 1000
    };
    let mut wind = ndarray::Array4::from_shape_fn((22, 12, 10, 2), |(n, y, x, c)| value(n, y, x, c));
    let mut heat = ndarray::Array3::from_shape_fn((22, 12, 10), |(n, y, x)| value(n, y, x, 0) / 2);
    (wind[[3, 4, 5, 1]], heat[[2, 1, 0]]) = (-999, -999);
    let long = heat.mapv(i32::from);
    let build = || file.new_dataset_builder();
    let wind = build().chunk((4, 6, 10, 2)).shuffle().deflate(4).with_data(&wind).create("wind").unwrap();
    let heat = build().with_data(&heat).create("heat").unwrap();
    let long = build().with_data(&long).create("long").unwrap();
    for array in [wind, heat, long] {
        array.new_attr::<i16>().create("_FillValue").unwrap().write_scalar(&-999i16).unwrap();
    }
}

/// What has 16 bits in its files is sent to a GPU so, which makes the numbers of it: the same bits as where the host
/// does, also of rows and stages, in a test whose last batch is not full, and with work done as late as it may be.
#[test]
fn a_gpu_is_sent_numbers_as_files_have_them() {
    let place = Place::new();
    write_packed(&place.path("p.h5"), 1);
    write_packed(&place.path("t.h5"), 7);
    let [data, test] = ["p.h5", "t.h5"].map(|name| place.text(name));
    let views = "--input wind[n,h,w,c]:standard --target heat[n,h,w]:log1p:standard";
    let flags = format!(
        "--model {EMULATOR} --data {data} --test-data {test} --missing mask --loss mse --epochs 1 --optimizer sgd \
         --lr 0.01 --device cuda"
    );
    let mut results = gpu_job::Results::new();
    for (ranks, more, variables) in [
        (2, "--batch 4 --loader-threads 1", &[("FAKE_CUDA_DELAYED", "1")][..]),
        (2, "--batch 8 --spatial 2", &[]),
        (2, "--batch 8 --spatial 2 --weight wind[n,h,w,0]", &[]),
        (2, "--batch 8 --pipeline 2", &[]),
        (1, "--batch 4 --precision bf16", &[]),
    ] {
        let mut run = |variables: &[(&str, &str)]| {
            let (losses, _) = results.train_with(ranks, &format!("{flags} {views} {more}"), variables);
            let path = results.directory.path().join(format!("run{}.h5", results.runs));
            (losses, series(&path, "epochs/test_loss"))
        };
        let numbers = run(&[("DLTRAIN_CUDA_PIXELS", "0")]);
        assert!(numbers.1[0].is_finite(), "{more}");
        assert_eq!(run(variables), numbers, "{more}");
    }
    let mut traced = |views: &str, pixels: &str| {
        let [clock, trace] = ["clock", "trace"].map(|name| place.text(name));
        let preload = fake_cuda::libraries().join("libclock.so").display().to_string();
        let variables = [
            ("LD_PRELOAD", preload.as_str()),
            ("FAKE_CUDA_CLOCK", &clock),
            ("FAKE_CUDA_TRACE", &trace),
            ("DLTRAIN_CUDA_PIXELS", pixels),
        ];
        results.train_with(1, &format!("{flags} {views} --batch 4 --loader-threads 1"), &variables);
        let text = fs::read_to_string(format!("{trace}.0")).unwrap();
        let uploads = text.lines().filter(|line| line.split(' ').nth(1) == Some("upload"));
        let mut bytes: Vec<usize> =
            uploads.map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect();
        bytes.sort_unstable();
        // Scalars have fewer, and of all others most are batches.
        bytes.retain(|&bytes| bytes > 64);
        *bytes.chunk_by(|a, b| a == b).max_by_key(|same| same.len()).unwrap().first().unwrap()
    };
    // Two channels and a target of 120 numbers of four samples, and which these are; each part begins at 64 bytes.
    assert_eq!(traced(views, "1"), 2 * (960 + 480) + 64);
    assert_eq!(traced(views, "0"), 4 * (960 + 480));
    let long = "--input wind[n,h,w,c] --target long[n,h,w]:standard";
    assert_eq!(traced(long, "1"), 2 * 960 + 4 * 480 + 64);
}

#[test]
fn a_run_goes_on_in_the_middle_of_an_epoch_with_other_ranks() {
    let place = Place::new();
    let whole = place.train(1, "whole", "--epochs 2 --weight area[h] --batch 8");
    let checkpoint = place.text("checkpoints");
    let first = format!("--epochs 2 --weight area[h] --batch 8 --checkpoint {checkpoint} --steps 3");
    place.train(1, "part", &first);
    let rest = format!("--epochs 2 --weight area[h] --batch 4 --checkpoint {checkpoint} --resume auto");
    let part = place.train(2, "part", &rest);
    near(&series(&part, "steps/loss"), &series(&whole, "steps/loss"), "resumed");
}

#[test]
fn weights_keep_how_arrays_are_rescaled_and_predictions_are_in_the_targets_own_numbers() {
    let place = Place::new();
    let [weights, test, output] = ["w.safetensors", "test.h5", "out.h5"].map(|name| place.text(name));
    let results =
        place.train(1, "run", &format!("--epochs 3 --batch 8 --test-data {test} --save-weights {weights}"));
    let views =
        ["--input", "air/wind[n,h,w,c]:standard", "--target", "heat[n,h,w]:standard", "--loss", "mse"];
    let net = ["--model", EMULATOR, "--init-from", &weights, "--data", &test];
    let said = run(2, &[&["evaluate"], &net[..], &views].concat());
    let found = |name: &str| {
        let at = said.find(name).unwrap_or_else(|| panic!("{said}")) + name.len();
        said[at..].split([',', '\n']).next().unwrap().trim().parse::<f64>().unwrap()
    };
    let [loss, rmse] = ["test loss", "rmse"].map(found);
    near(
        &[loss, rmse],
        &["epochs/test_loss", "epochs/test_rmse"].map(|name| series(&results, name)[2]),
        "evaluate",
    );
    run(2, &[&["predict"], &net[..], &views[..2], &["--output", &output]].concat());
    let [given, wanted] = [(output, "output"), (test, "heat")]
        .map(|(path, name)| File::open(path).unwrap().dataset(name).unwrap().read_raw::<f32>().unwrap());
    let mean =
        given.iter().zip(&wanted).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>() / given.len() as f64;
    let all: Vec<f32> = ["train/a.h5", "train/b.h5"]
        .iter()
        .flat_map(|name| File::open(place.path(name)).unwrap().dataset("heat").unwrap().read_raw().unwrap())
        .collect();
    let of_all = all.iter().map(|&value| f64::from(value)).sum::<f64>() / all.len() as f64;
    let variance =
        all.iter().map(|&value| (f64::from(value) - of_all).powi(2)).sum::<f64>() / all.len() as f64;
    let own = mean.sqrt() / variance.sqrt();
    assert!((own - rmse).abs() < 1e-4 * rmse, "{own} and {rmse}");
}

#[test]
fn vectors_are_trained_from_and_what_is_missing_is_refused_or_masked() {
    let place = Place::new();
    let data = place.text("train");
    let vector =
        ["--model", VECTOR, "--data", &data, "--epochs", "2", "--batch", "8", "--quiet", "--loss", "mse"];
    run(
        2,
        &[&vector[..], &["--input", "params", "--target", "flux", "--results", &place.text("v.h5")]].concat(),
    );
    assert!(series(&place.path("v.h5"), "steps/loss").iter().all(|loss| loss.is_finite()));
    let emulator = ["--model", EMULATOR, "--data", &data, "--epochs", "1", "--batch", "8", "--loss", "mse"];
    let holes = ["--input", "air/wind[n,h,w,c]:standard", "--target", "holes[n,h,w]"];
    let error = refused(&[(2, &[&emulator[..], &holes].concat())]);
    assert!(error.contains("holes[n,h,w], sample a.h5 n 3: a number is missing"), "{error}");
    assert!(error.contains("--missing mask"), "{error}");
    let results = place.text("m.h5");
    run(2, &[&emulator[..], &holes, &["--missing", "mask", "--results", &results]].concat());
    assert!(series(Path::new(&results), "steps/loss").iter().all(|loss| loss.is_finite()));
}

/// An output of the file is the loss, and the target an input: the losses are those of the loss by name, also over
/// ranks and of sets that no batch divides.
#[test]
fn a_network_is_trained_by_a_loss_that_is_its_own_output() {
    let place = Place::new();
    let [data, test] = ["train", "test.h5"].map(|name| place.text(name));
    let train = |ranks: usize, name: &str, loss: &str, flags: &str| {
        let results = place.text(&format!("{name}.h5"));
        let fixed = ["--model", WITHIN, "--data", &data, "--test-data", &test, "--input", "params:standard"];
        let more = ["--target", "flux", "--epochs", "2", "--quiet", "--results", &results, "--loss", loss];
        run(ranks, &[&fixed[..], &more, &flags.split_whitespace().collect::<Vec<_>>()].concat());
        let found = series(Path::new(&results), "steps/loss");
        [
            found,
            series(Path::new(&results), "epochs/train_loss"),
            series(Path::new(&results), "epochs/test_loss"),
        ]
    };
    let weights = place.text("w.safetensors");
    let by_name = train(1, "name", "mse", "--batch 16");
    for (ranks, name, flags) in [
        (1, "own", format!("--batch 16 --save-weights {weights}")),
        (2, "ranks", "--batch 4 --accumulation 2 --zero 3".into()),
        (2, "stages", "--batch 16 --pipeline 2 --micro-batches 2".into()),
        (1, "reference", "--batch 16 --device reference".into()),
    ] {
        let own = train(ranks, name, "output:mse", &flags);
        own.iter().zip(&by_name).for_each(|(own, by_name)| near(own, by_name, name));
    }
    // Twice that, and a quarter of the mean absolute error, and 1.
    let [both, ..] = train(2, "both", "output:both", "--batch 8");
    assert!(both[0] > 2.0 * by_name[0][0] + 1.0, "{both:?}");
    let given = place.text("given.h5");
    let fixed = ["predict", "--model", WITHIN, "--init-from", &weights, "--data", &test];
    run(2, &[&fixed[..], &["--input", "params:standard", "--output", &given]].concat());
    assert_eq!(File::open(given).unwrap().dataset("output").unwrap().shape(), [20, 1]);
    let fixed =
        ["--model", WITHIN, "--data", &data, "--input", "params", "--target", "flux", "--epochs", "1"];
    for (flags, expected) in [
        (
            &["--loss", "output:nothing"][..],
            "is no output of the network, and those that are one: mse, both, rmse",
        ),
        (&["--loss", "output:given"], "is no single number"),
        (&["--loss", "output:rmse"], "computes with a mean over the batch what is none"),
        (&["--loss", "output:total"], "is a sum over the batch"),
        (&["--loss", "output:mse", "--metric", "rmse"], "--metric rmse"),
        (&["--loss", "output:mse", "--missing", "mask"], "--missing zero"),
        (&["--loss", "bce", "--metric", "auc"], "no sum over samples"),
        (&["--loss", "bce", "--metric", "iou"], "--loss, with which go accuracy, mae, rmse, r2, loss"),
        (&["--loss", "cross-entropy", "--metric", "top5"], "any is among five"),
    ] {
        let all = [&fixed[..], flags].concat();
        let error = match flags.contains(&"auc") {
            true => misused(1, &all),
            // What is wrong with a node stands below the message.
            false => {
                let done = finish(job::job(&[(1, &all)]));
                only_message(&done);
                done.stderr
            }
        };
        assert!(error.contains(expected), "{flags:?}: {error}");
    }
    let error =
        refused(&[(1, &["--model", "unet", "--data", &data, "--input", "params", "--loss", "output:x"])]);
    assert!(error.contains("a network by name"), "{error}");
}

/// A loss in the network with λ/2 of the sum of a weight's squares moves it as `--weight-decay` λ does without: what a
/// layer and arithmetic read has the gradient of both, whichever is first.
#[test]
fn a_penalty_of_weights_is_weight_decay() {
    let place = Place::new();
    let data = place.text("train");
    let given = |name: &str, model: &str, loss: &str, decay: &str| {
        let [weights, output] = ["safetensors", "h5"].map(|kind| place.text(&format!("{name}.{kind}")));
        let fixed = ["--model", model, "--data", &data, "--input", "params"];
        let settings = "--target flux --batch 4 --epochs 2 --optimizer sgd --lr 0.05 --quiet";
        let settings: Vec<&str> = settings.split_whitespace().collect();
        let more = ["--loss", loss, "--weight-decay", decay, "--save-weights", &weights];
        run(2, &[&fixed[..], &settings, &more].concat());
        run(1, &[&["predict"], &fixed[..], &["--init-from", &weights, "--output", &output]].concat());
        let output = File::open(output).unwrap().dataset("output").unwrap().read_raw::<f32>().unwrap();
        output.into_iter().map(f64::from).collect::<Vec<f64>>()
    };
    let decayed = given("decay", WITHIN, "output:mse", "0.5");
    for is_first in [false, true] {
        let path = place.text(&format!("penalty-{is_first}.onnx"));
        let mut file = ModelProto::decode(&*fs::read(WITHIN).unwrap()).unwrap();
        let graph = file.graph.as_mut().unwrap();
        let number = |name: &str, number: f32| TensorProto {
            dims: vec![],
            float_data: vec![number],
            ..weight(name, &[1])
        };
        let mut penalty = Vec::new();
        for name in ["net.0.weight", "net.2.weight"] {
            let [square, sum, half] = ["square", "sum", "half"].map(|step| format!("{name}.{step}"));
            let all =
                AttributeProto { name: "keepdims".into(), kind: kind::INT, ..AttributeProto::default() };
            penalty.push(node(&square, "Mul", &[name, name], &square));
            penalty.push(NodeProto { attribute: vec![all], ..node(&sum, "ReduceSum", &[&square], &sum) });
            penalty.push(node(&half, "Mul", &[&sum, "onnx::Mul_1"], &half));
        }
        let at = if is_first { 0 } else { graph.node.len() };
        graph.node.splice(at..at, penalty);
        graph.node.push(node("first", "Add", &["mse", "net.0.weight.half"], "first"));
        graph.node.push(node("decayed", "Add", &["net.2.weight.half", "first"], "decayed"));
        graph.initializer.push(number("onnx::Mul_1", 0.25));
        graph.output.push(value("decayed", &[]));
        fs::write(&path, file.encode_to_vec()).unwrap();
        near(&given(&format!("{is_first}"), &path, "output:decayed", "0"), &decayed, "penalty");
        // As an exporter leaves it that computes in advance what is of weights alone.
        let graph = file.graph.as_mut().unwrap();
        graph.node.retain(|node| node.name != "net.0.weight.square");
        graph.initializer.push(weight("net.0.weight.square", &[16, 5]));
        fs::write(&path, file.encode_to_vec()).unwrap();
        let flags = ["--input", "params", "--target", "flux", "--loss", "output:decayed"];
        let error = refused(&[(1, &[&["--model", &path, "--data", &data][..], &flags].concat())]);
        assert!(error.contains("a penalty of net.0.weight.square, which no layer has"), "{error}");
    }
}

/// A run says by what each array is rescaled: by the numbers of a file, or by those of its samples.
#[test]
fn a_run_says_by_what_each_array_is_rescaled() {
    let place = Place::new();
    let [data, said_by] = ["run.h5", "said.h5"].map(|name| place.text(name));
    write(Path::new(&data), 0, 20);
    let file = File::create(&said_by).unwrap();
    for (name, number) in [("mean", 0.5f32), ("std", 4.0)] {
        file.new_dataset_builder().with_data(&[number]).create(name).unwrap();
    }
    file.close().unwrap();
    let same = File::append(&data).unwrap();
    same.new_dataset_builder()
        .with_data(&ndarray::Array3::from_elem((20, 12, 10), 7.3f32))
        .create("same")
        .unwrap();
    same.close().unwrap();
    let input = format!("heat[n,h,w]:standard({said_by})");
    let flags = ["--model", "unet:depth=1,width=4", "--classes", "1", "--loss", "mse", "--batch", "2"];
    let inputs = ["--data", "no.h5", "--data", &data, "--input", &input, "--input", "same[n,h,w]:standard"];
    let views = ["--target", "heat[n,h,w]:standard", "--dry-run"];
    let done = finish(job::job(&[(2, &[&flags[..], &inputs, &views].concat())]));
    let said = done.stdout;
    assert_eq!(done.stderr.matches("--data is given twice: the last counts").count(), 1, "{}", done.stderr);
    // Rounding leaves it no deviation.
    assert!(said.contains("same[n,h,w]:standard becomes (x - 7.3) / 1 (of all samples)"), "{said}");
    assert!(
        said.contains(&format!("{input} becomes (x - 0.5) / 4 (by mean and std of {said_by})")),
        "{said}"
    );
    let by_samples =
        said.lines().find(|line| line.starts_with("heat[n,h,w]:standard becomes ")).expect(&said);
    assert!(by_samples.ends_with(" (of all samples)"), "{said}");
    // Once, of what is input and target.
    let same = ["--data", &data, "--input", "heat[n,h,w]:standard", "--target", "heat[n,h,w]:standard"];
    let said = run(1, &[&flags[..], &same, &["--dry-run"]].concat());
    assert_eq!(said.matches("heat[n,h,w]:standard becomes ").count(), 1, "{said}");
}

/// Also where nothing is compared.
#[test]
fn a_prediction_says_how_much_is_missing() {
    let place = Place::new();
    let [data, output] = ["test.h5", "out.h5"].map(|name| place.text(name));
    let net = ["predict", "--model", EMULATOR, "--data", &data, "--missing", "mask", "--output", &output];
    let said = run(2, &[&net[..], &["--input", "holes[n,h,w]", "--input", "heat[n,h,w]"]].concat());
    // One number of 120 in one of 16 samples.
    assert_eq!(said.matches("missing, in 16 of 20 samples: 0.05 % of holes[n,h,w]").count(), 1, "{said}");
}

/// Booleans, as h5py has land masks, weigh points and are classes.
#[test]
fn booleans_weigh_points_and_are_classes() {
    let place = Place::new();
    for name in ["train/a.h5", "train/b.h5"] {
        let file = File::append(place.text(name)).unwrap();
        let is_land: Vec<bool> =
            file.dataset("land").unwrap().read_raw::<u8>().unwrap().iter().map(|land| *land == 1).collect();
        let of = |n: usize| ndarray::Array3::from_shape_fn((n, 12, 10), |(_, y, x)| is_land[10 * y + x]);
        for (name, n) in [("mask", 1), ("masks", 20)] {
            file.new_dataset_builder().with_data(&of(n)).create(name).unwrap();
        }
    }
    let plain = "--epochs 1 --batch 8";
    let [numbers, booleans] = ["land[h,w]", "mask[0,h,w]"].map(|weight| {
        series(
            &place.train(1, weight.split('[').next().unwrap(), &format!("{plain} --weight {weight}")),
            "steps/loss",
        )
    });
    assert_eq!(numbers, booleans);
    let data = place.text("train");
    let net =
        ["--model", "unet:depth=1,width=4", "--classes", "2", "--data", &data, "--loss", "cross-entropy"];
    let more = ["--input", "masks[n,h,w]", "--target", "masks[n,h,w]", "--steps", "1", "--batch", "8"];
    run(1, &[&net[..], &more].concat());
}

/// Gives an array an attribute, or another one.
fn put(path: &str, array: &str, name: &str, text: &str) {
    let dataset = File::append(path).unwrap().dataset(array).unwrap();
    let text: VarLenUnicode = text.parse().unwrap();
    let attribute = dataset.attr(name).or_else(|_| dataset.new_attr::<VarLenUnicode>().create(name));
    attribute.unwrap().write_scalar(&text).unwrap();
}

/// Factors that were learned from K make nothing of degC.
#[test]
fn arrays_in_other_units_than_the_weights_have_learned_from_are_refused() {
    let place = Place::new();
    let [weights, test, output] = ["w.safetensors", "test.h5", "out.h5"].map(|name| place.text(name));
    for name in ["train/a.h5", "train/b.h5"] {
        put(&place.text(name), "heat", "units", "K");
    }
    place.train(1, "run", &format!("--steps 1 --batch 8 --save-weights {weights}"));
    let net = ["--model", EMULATOR, "--init-from", &weights, "--input", "air/wind[n,h,w,c]", "--data", &test];
    let compared = [&net[..], &["--target", "heat[n,h,w]", "--loss", "mse"]].concat();
    let evaluate = [&["evaluate"], &compared[..]].concat();
    let said = run(1, &evaluate);
    assert_eq!(said.matches("and the weights of --init-from learned from it in K").count(), 1, "{said}");
    assert!(!said.contains("rescaled as that was"), "what is left out is not said otherwise: {said}");
    let other = ["evaluate", "--input", "air/wind[n,h,w=0..10,c]:minmax", "--target", "heat[n,h,w]"];
    let said = run(1, &[&other[..], &net[..4], &["--data", &test, "--loss", "mse"]].concat());
    let line = "air/wind[n,h,w=0..10,c]:minmax: the weights of --init-from learned from \
                air/wind[n,h,w,c]:standard, and it is rescaled as that was";
    assert!(said.contains(line), "{said}");
    run(1, &[&["predict"], &net[..], &["--output", &output]].concat());
    let predicted = File::open(&output).unwrap().dataset("output").unwrap();
    let units = predicted.attr("units").unwrap().read_scalar::<VarLenUnicode>().unwrap();
    assert_eq!(units.as_str(), "K");
    put(&test, "heat", "units", "degC");
    for args in [&evaluate, &[&compared[..], &["--steps", "1", "--batch", "4"]].concat()] {
        let error = refused(&[(2, args)]);
        assert!(error.contains("heat[n,h,w] is in degC in "), "{error}");
        assert!(error.contains("and the weights of --init-from learned from it in K: "), "{error}");
    }
    // A prediction knows the units of what it reads.
    for (name, unit) in [("train/a.h5", "m s-1"), ("train/b.h5", "m s-1"), ("test.h5", "knots")] {
        put(&place.text(name), "air/wind", "units", unit);
    }
    let winds = place.text("winds.safetensors");
    place.train(1, "winds", &format!("--steps 1 --batch 8 --save-weights {winds}"));
    let net = ["--model", EMULATOR, "--init-from", &winds, "--input", "air/wind[n,h,w,c]", "--data", &test];
    let output = place.text("not.h5");
    let error = refused(&[(2, &[&["predict"], &net[..], &["--output", &output]].concat())]);
    assert!(error.contains("air/wind[n,h,w,c] is in knots in "), "{error}");
    assert!(error.contains("and the weights of --init-from learned from it in m s-1: "), "{error}");
    assert!(!Path::new(&output).exists());
}

/// What the axes of a data set are called, by dimension scales: each is known as one and knows the data set.
fn scales(file: &File, name: &str) -> Vec<String> {
    let list = file.dataset(name).unwrap().attr("DIMENSION_LIST").unwrap();
    let list = list.read_raw::<VarLenArray<ObjectReference1>>().unwrap();
    let scale = |of: &VarLenArray<ObjectReference1>| match file.dereference(&of[0]).unwrap() {
        ReferencedObject::Dataset(scale) => {
            let class = scale.attr("CLASS").unwrap();
            assert_eq!(class.read_scalar::<FixedAscii<16>>().unwrap().as_str(), "DIMENSION_SCALE");
            assert!(scale.attr("REFERENCE_LIST").unwrap().size() > 0);
            scale.name().trim_start_matches('/').to_string()
        }
        other => panic!("{other:?}"),
    };
    list.iter().map(scale).collect()
}

/// What is predicted lies where its file says, in that file's units.
#[test]
fn predictions_have_the_axes_of_their_file() {
    let place = Place::new();
    let [data, output] = ["air.h5", "out.h5"].map(|name| place.text(name));
    fs::copy(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/fields.hdf5"), &data).unwrap();
    // Seconds that are no f32.
    let seconds = |first: u32| (0..6).map(|n| f64::from(first + 3600 * n)).collect::<Vec<_>>();
    put(&data, "lat", "units", "degrees_north");
    put(&data, "time", "units", "seconds since 1970-01-01");
    put(&data, "time", "calendar", "noleap");
    File::append(&data).unwrap().dataset("time").unwrap().write(&seconds(1_700_000_001)).unwrap();
    let weights = place.text("w.safetensors");
    let net =
        "--model mlp --classes 2 --input temperature[n,h,w=1..4] --missing zero --loss mse --quiet --data";
    let net: Vec<&str> = net.split_whitespace().chain([&*data]).collect();
    let target =
        ["--target", "temperature[n,0,w=0..2]", "--batch", "2", "--epochs", "1", "--save-weights", &weights];
    run(1, &[&net[..], &target].concat());
    run(1, &[&["predict"], &net[..], &["--init-from", &weights, "--output", &output]].concat());
    let file = File::open(output).unwrap();
    let [lat, lon] = ["lat", "lon"].map(|name| file.dataset(name).unwrap());
    assert_eq!(
        (lat.read_raw::<f64>().unwrap(), lon.read_raw::<f64>().unwrap()),
        (vec![0.0, 1.0, 2.0, 3.0], vec![1.0, 2.0, 3.0, 4.0])
    );
    let text =
        |of: &hdf5::Location, name: &str| of.attr(name).unwrap().read_scalar::<VarLenUnicode>().unwrap();
    assert_eq!(text(&lat, "units").as_str(), "degrees_north");
    let time = file.dataset("time").unwrap();
    assert_eq!(time.read_raw::<f64>().unwrap(), seconds(1_700_000_001));
    assert_eq!(text(&time, "units").as_str(), "seconds since 1970-01-01");
    assert_eq!(text(&time, "calendar").as_str(), "noleap");
    assert_eq!(scales(&file, "time"), ["sample"]);
    assert_eq!(scales(&file, "output"), ["sample", "channel"]);
    // Channels, too, where the target's file says what they are.
    let [weights_of_all, output] = ["all.safetensors", "levels.h5"].map(|name| place.text(name));
    let levels = "--model mlp --classes 4 --input temperature[n,h,w] --target temperature[n,c,0] --missing zero \
                  --loss mse --quiet --data";
    let levels: Vec<&str> = levels.split_whitespace().chain([&*data]).collect();
    let learn = ["--batch", "2", "--steps", "1", "--save-weights", &weights_of_all];
    run(1, &[&levels[..], &learn].concat());
    run(1, &[&["predict"], &levels[..], &["--init-from", &weights_of_all, "--output", &output]].concat());
    let file = File::open(output).unwrap();
    assert_eq!(scales(&file, "output"), ["sample", "lat"]);
    assert_eq!(file.dataset("lat").unwrap().read_raw::<f64>().unwrap(), [0.0, 1.0, 2.0, 3.0]);
    // Of several files all samples, also those that are one of two, where these count in the same unit.
    fs::create_dir(place.path("both")).unwrap();
    let both = ["both/a.nc", "both/b.nc"].map(|name| place.text(name));
    for path in &both {
        fs::copy(&data, path).unwrap();
    }
    File::append(&both[1]).unwrap().dataset("time").unwrap().write(&seconds(1_800_000_001)).unwrap();
    let [all, out] = ["both", "o.h5"].map(|name| place.text(name));
    let predict =
        "predict --model mlp --classes 2 --input temperature[n*2+1,h,w=1..4] --missing zero --quiet --data";
    let predict: Vec<&str> = predict.split_whitespace().chain([&*all]).collect();
    let of_all = |out: &str| {
        run(2, &[&predict[..], &["--init-from", &weights, "--output", out]].concat());
        let time = File::open(out).unwrap().dataset("time");
        time.map(|time| time.read_raw::<f64>().unwrap())
    };
    let odd = |first: u32| seconds(first).into_iter().skip(1).step_by(2);
    assert_eq!(of_all(&out).unwrap(), odd(1_700_000_001).chain(odd(1_800_000_001)).collect::<Vec<_>>());
    put(&both[1], "time", "units", "seconds since 2000-01-01");
    assert!(of_all(&place.text("other.h5")).is_err(), "of which unit?");
    // The second file is upside down.
    File::append(&both[1]).unwrap().dataset("lat").unwrap().write(&[3.0, 2.0, 1.0, 0.0]).unwrap();
    let net = "--model unet:depth=1,width=4 --classes 1 --input temperature[n,h,w] --missing zero --data";
    let net: Vec<&str> = net.split_whitespace().chain([&*all]).collect();
    let learn = ["--target", "temperature[n,h,w]", "--loss", "mse", "--batch", "2", "--steps", "1"];
    let [out, maps] = ["maps.h5", "maps.safetensors"].map(|name| place.text(name));
    let trained = run(2, &[&net[..], &learn, &["--save-weights", &maps]].concat());
    let of_the_test = &["--test-data", &*both[1]][..];
    let train = [&net[..net.len() - 1], &[&*both[0]], &learn].concat();
    let tested = run(1, &[&train[..], of_the_test].concat());
    let evaluated = run(2, &[&["evaluate"], &net[..], &learn[..4], &["--init-from", &maps]].concat());
    for said in [trained, tested, evaluated] {
        let line = format!(
            "places are others than in {}, or not said there, and are taken as they lie: lat ({})",
            both[0], both[1]
        );
        assert_eq!(said.matches(&line).count(), 1, "{said}");
    }
    let alike = run(1, &train);
    assert!(!alike.contains("places are others"), "{alike}");
    let said = run(2, &[&["predict"], &net[..], &["--init-from", &maps, "--output", &out]].concat());
    let line = "coordinates that are left out, since a file has others than the first, or none: lat (";
    assert_eq!(said.matches(line).count(), 1, "{said}");
    let file = File::open(&out).unwrap();
    assert!(file.dataset("lon").is_ok() && file.dataset("lat").unwrap().attr("units").is_err());
    assert_eq!(scales(&file, "output"), ["sample", "channel", "lat", "lon"]);
    // What the weights learned from began in the south, as the first file does.
    let [south, north] = ["south.h5", "north.h5"].map(|name| place.text(name));
    let of_b =
        [&["predict"], &net[..net.len() - 1], &[&both[1], "--init-from", &maps, "--output", &south]].concat();
    let said = run(2, &of_b);
    let line = "temperature[n,h,w]: lat is from 3 to 0 degrees_north, and the weights of --init-from learned from \
                it from 0 to 3 degrees_north: the other way round";
    assert_eq!(said.matches(line).count(), 1, "{said}");
    let of_a =
        [&["predict"], &net[..net.len() - 1], &[&both[0], "--init-from", &maps, "--output", &north]].concat();
    assert!(!run(1, &of_a).contains("have learned from it"));
    // Such an axis has no places that a prediction of that file could have.
    let again = ["predict", "--data", &place.text("maps.h5"), "--input", "output[n,c,h,w]"];
    let out = place.text("again.h5");
    run(1, &[&again[..], &net[..4], &["--init-from", &maps, "--output", &out]].concat());
    let file = File::open(out).unwrap();
    assert!(file.dataset("lon").unwrap().read_raw::<f64>().unwrap()[1] > 0.0);
    assert!(file.dataset("lat").unwrap().attr("NAME").is_ok(), "it has no numbers");
    // Latitudes of a grid that is turned lie on both of its axes; a time of all samples is on none.
    let ocean = place.text("ocean.h5");
    fs::copy(place.path("maps.h5"), &ocean).unwrap();
    let curved = File::append(&ocean).unwrap();
    let lists = ["lat", "lon"]
        .map(|scale| VarLenArray::from_slice(&[curved.reference::<ObjectReference1>(scale).unwrap()]));
    let north = ndarray::Array2::from_shape_fn((4, 5), |(y, x)| (10 * y + x) as f32);
    let north = curved.new_dataset_builder().with_data(&north).create("north").unwrap();
    let list = north.new_attr::<VarLenArray<ObjectReference1>>().shape(2).create("DIMENSION_LIST").unwrap();
    list.write_raw(&lists).unwrap();
    curved.new_dataset_builder().with_data(&[7.0f32]).create("when").unwrap();
    drop((north, list));
    curved.close().unwrap();
    put(&ocean, "north", "units", "degrees_north");
    put(&ocean, "output", "coordinates", "when north gone");
    let out = place.text("curved.h5");
    let cut = ["predict", "--data", &ocean, "--input", "output[n,c,h,w=1..4]"];
    run(1, &[&cut[..], &net[..4], &["--init-from", &maps, "--output", &out]].concat());
    let file = File::open(out).unwrap();
    let north = file.dataset("north").unwrap();
    let expected: Vec<f32> = (0..4).flat_map(|y| (1..5).map(move |x| (10 * y + x) as f32)).collect();
    assert_eq!((north.shape(), north.read_raw::<f32>().unwrap()), (vec![4, 4], expected));
    assert_eq!(text(&north, "units").as_str(), "degrees_north");
    assert_eq!(scales(&file, "north"), ["lat", "lon"]);
    assert_eq!(text(&file.dataset("output").unwrap(), "coordinates").as_str(), "north");
    assert!(file.dataset("when").is_err());
    // Another file's grid begins in the north.
    let [other, grid] = ["turned.h5", "grid.safetensors"].map(|name| place.text(name));
    fs::copy(&ocean, &other).unwrap();
    let north = ndarray::Array2::from_shape_fn((4, 5), |(y, x)| (34 - 10 * y - x) as f32);
    File::append(&other).unwrap().dataset("north").unwrap().write(&north).unwrap();
    let flags = [&net[..4], &["--input", "output[n,c,h,w]", "--data"]].concat();
    let more = ["--target", "output[n,c,h,w]", "--test-data", &other, "--save-weights", &grid];
    let said = run(2, &[&flags[..], &[&ocean], &learn[2..], &more].concat());
    assert!(said.contains(&format!("taken as they lie: north ({other})")), "{said}");
    let predict = |data: &str| {
        let out = format!("{data}.predicted.h5");
        run(2, &[&["predict"], &flags[..], &[data, "--init-from", &grid, "--output", &out]].concat())
    };
    let line = "output[n,c,h,w]: north is from 34 to 0 degrees_north, and the weights of --init-from learned from \
                it from 0 to 34 degrees_north: the other way round";
    assert_eq!(predict(&other).matches(line).count(), 1);
    assert!(!predict(&ocean).contains("have learned from it"));
}

/// What a file ends in is what is compared and predicted, and once; channels that it has last come first, as those of
/// its input do.
#[test]
fn what_a_network_gives_is_what_its_file_ends_in() {
    let place = Place::new();
    let test = place.text("test.h5");
    let changed = |name: &str, from: &str, change: &dyn Fn(&mut GraphProto)| {
        let mut file = ModelProto::decode(&*fs::read(from).unwrap()).unwrap();
        change(file.graph.as_mut().unwrap());
        fs::write(place.path(name), file.encode_to_vec()).unwrap();
        place.text(name)
    };
    let predicted = |name: &str, net: &str, input: &str, more: &[&str]| {
        let out = place.text(name);
        run(
            1,
            &[&["predict", "--model", net, "--data", &test, "--input", input, "--output", &out], more]
                .concat(),
        );
        File::open(out).unwrap().dataset("output").unwrap()
    };
    let ends = |op: &'static str| {
        move |graph: &mut GraphProto| {
            graph.node.truncate(2);
            graph.node.push(node("end", op, &["/1/Tanh_output_0"], "end"));
            let hidden = graph.initializer.iter().find(|of| of.name == "0.weight").unwrap().dims[0];
            graph.output = vec![value("end", &[1, hidden])];
        }
    };
    let shares = changed("shares.onnx", VECTOR, &ends("Softmax"));
    let given = predicted("shares.h5", &shares, "params", &[]);
    let all = given.read_raw::<f32>().unwrap();
    assert!(all.chunks(given.shape()[1]).all(|of| (of.iter().sum::<f32>() - 1.0).abs() < 1e-5), "{all:?}");
    run(1, &["export", &shares, &place.text("again.onnx")]);
    let again = predicted("again.h5", &place.text("again.onnx"), "params", &[]);
    assert_eq!(again.read_raw::<f32>().unwrap(), all);
    let sigmoids = changed("sigmoids.onnx", VECTOR, &ends("Sigmoid"));
    let both = [("s.h5", &[][..]), ("bce.h5", &["--loss", "bce"])]
        .map(|(name, more)| predicted(name, &sigmoids, "params", more).read_raw::<f32>().unwrap());
    assert_eq!(both[0], both[1]);
    let last = changed("last.onnx", EMULATOR, &|graph| {
        let turn = |name, input, output, ints: &[i64]| NodeProto {
            attribute: vec![AttributeProto {
                name: "perm".into(),
                ints: ints.into(),
                kind: kind::INTS,
                ..AttributeProto::default()
            }],
            ..node(name, "Transpose", &[input], output)
        };
        let [from, to] = [&graph.input[0].name, &graph.output[0].name].map(String::clone);
        graph.node.insert(0, turn("first", "x", &from, &[0, 3, 1, 2]));
        graph.node.push(turn("last", &to, "y", &[0, 2, 3, 1]));
        (graph.input, graph.output) = (vec![value("x", &[1, 12, 10, 2])], vec![value("y", &[1, 12, 10, 1])]);
    });
    let maps = [("first.h5", EMULATOR), ("last.h5", &last)].map(|(name, net)| {
        let given = predicted(name, net, "air/wind[n,h,w,c]", &[]);
        (given.shape(), given.read_raw::<f32>().unwrap())
    });
    assert_eq!(maps[0], maps[1]);
}

/// A network of several inputs is written with these, and reads the same arrays again.
#[test]
fn a_network_of_several_inputs_is_written_with_them() {
    let place = Place::new();
    let mut file = ModelProto::decode(&*fs::read(EMULATOR).unwrap()).unwrap();
    let graph = file.graph.as_mut().unwrap();
    let whole = graph.input.pop().unwrap();
    for name in [&whole.name, "v"] {
        let mut one = whole.clone();
        one.name = name.to_string();
        let tensor = one.value_type.as_mut().unwrap().tensor_type.as_mut().unwrap();
        tensor.shape.as_mut().unwrap().dim[1].dim_value = 1;
        graph.input.push(one);
    }
    for input in graph.node.iter_mut().flat_map(|node| &mut node.input).filter(|input| **input == whole.name)
    {
        *input = "both".into();
    }
    let axis = AttributeProto { name: "axis".into(), i: 1, kind: kind::INT, ..AttributeProto::default() };
    let both = NodeProto {
        input: vec![whole.name.clone(), "v".into()],
        output: vec!["both".into()],
        name: "both".into(),
        op_type: "Concat".into(),
        attribute: vec![axis],
        ..NodeProto::default()
    };
    graph.node.insert(0, both);
    let [net, again, weights, test] =
        ["two.onnx", "again.onnx", "w.safetensors", "test.h5"].map(|name| place.text(name));
    fs::write(&net, file.encode_to_vec()).unwrap();
    let inputs = ["--data", &test, "--input", "air/wind[n,h,w,0]", "--input", "air/wind[n,h,w,1]"];
    let train = ["--target", "heat[n,h,w]", "--loss", "mse", "--steps", "1", "--batch", "8"];
    run(1, &[&["--model", &net], &inputs[..], &train, &["--save-weights", &weights]].concat());
    run(1, &["export", &weights, &again, "--model", &net]);
    let graph = ModelProto::decode(&*fs::read(&again).unwrap()).unwrap().graph.unwrap();
    assert_eq!(graph.input.iter().map(|input| &*input.name).collect::<Vec<_>>(), [&*whole.name, "v"]);
    let given = [("two.h5", &[&net[..], "--init-from", &weights][..]), ("again.h5", &[&again[..]])];
    let [two, again] = given.map(|(name, network)| {
        let out = place.text(name);
        run(1, &[&["predict", "--model"], network, &inputs, &["--output", &out]].concat());
        File::open(out).unwrap().dataset("output").unwrap().read_raw::<f32>().unwrap()
    });
    assert_eq!(two, again);
}

/// Predictions with their targets beside become maps of both with one scale, errors, and a scatter; without they are
/// refused with what writes them.
#[test]
fn a_report_draws_what_was_predicted_beside_what_is_true() {
    let place = Place::new();
    let test = place.text("test.h5");
    let [weights, output, bare, page] =
        ["w.safetensors", "out.h5", "bare.h5", "page.html"].map(|name| place.text(name));
    let results =
        place.train(1, "run", &format!("--epochs 1 --batch 8 --test-data {test} --save-weights {weights}"));
    let net = ["predict", "--model", EMULATOR, "--init-from", &weights, "--data", &test];
    let views = ["--input", "air/wind[n,h,w,c]:standard", "--target", "heat[n,h,w]:standard"];
    run(2, &[&net[..], &views, &["--output", &output]].concat());
    run(1, &[&net[..], &views[..2], &["--output", &bare]].concat());
    let file = File::open(&output).unwrap();
    let shapes = ["output", "target"].map(|name| file.dataset(name).unwrap().shape());
    assert_eq!(shapes, [[20, 1, 12, 10], [20, 1, 12, 10]], "one is to be taken from the other");
    for name in ["output", "target"] {
        assert_eq!(scales(&file, name), ["sample", "channel", "h", "w"]);
    }
    let [given, written] =
        ["output", "target"].map(|name| file.dataset(name).unwrap().read_raw::<f32>().unwrap());
    let wanted = File::open(&test).unwrap().dataset("heat").unwrap().read_raw::<f32>().unwrap();
    assert!(
        written.iter().zip(&wanted).all(|(a, b)| (a - b).abs() <= 1e-5 * b.abs()),
        "targets are as they were"
    );
    let report = |paths: &[&str]| {
        let mut command = std::process::Command::new(job::DLTRAIN);
        let done = command.arg("report").args(paths).args(["--output", &page]).output().unwrap();
        (done.status.success(), String::from_utf8_lossy(&done.stderr).into_owned())
    };
    assert_eq!(report(&[results.to_str().unwrap(), &output]), (true, String::new()));
    let html = fs::read_to_string(&page).unwrap();
    let mae =
        given.iter().zip(&written).map(|(a, b)| f64::from((a - b).abs())).sum::<f64>() / given.len() as f64;
    let both = || given[..120].iter().chain(&written[..120]);
    let [low, high] = [both().copied().fold(f32::MAX, f32::min), both().copied().fold(f32::MIN, f32::max)];
    for part in [
        "Predicted and true: out".to_string(),
        format!("2400 points that have a target; mean absolute error {}", six_digits(mae)),
        format!(">{low:.4}<"),
        format!(">{high:.4}<"),
        "out, test.h5 n 0".into(),
        "Predicted over true: out".into(),
        "rmse over steps".into(),
        "samples/s".into(),
    ] {
        assert!(html.contains(&part), "{part}");
    }
    // With bce what is written and drawn is the share, not what its sigmoid is to be taken of.
    let vector = ["predict", "--model", VECTOR, "--data", &test, "--input", "params", "--loss"];
    let [logits, shares] = ["mse", "bce"].map(|loss| {
        let to = place.text(&format!("{loss}.h5"));
        run(1, &[&vector[..], &[loss, "--output", &to]].concat());
        File::open(to).unwrap().dataset("output").unwrap().read_raw::<f32>().unwrap()
    });
    for (logit, share) in logits.iter().zip(&shares) {
        assert!((1.0 / (1.0 + (-logit).exp()) - share).abs() < 1e-6, "{logit} {share}");
    }
    assert_eq!(html.matches("data:image/png;base64").count(), 3 * 5);
    assert!(!html.contains("images/s"));
    let (done, error) = report(&[&bare]);
    assert!(!done && error.contains("has no targets") && error.contains("--target VIEW"), "{error}");
}

/// The command that `dltrain inspect` ends with is one that trains as it stands there, also where numbers are missing.
#[test]
fn what_inspect_says_to_train_with_does_train() {
    let place = Place::new();
    let path = place.text("it's.h5");
    let file = hdf5::File::create(&path).unwrap();
    let temperature = ndarray::Array3::from_shape_fn((8, 17, 40), |(n, y, x)| (n * y + x) as f32);
    file.new_dataset_builder().with_data(&temperature).create("temperature").unwrap();
    let mut labels = ndarray::Array3::from_shape_fn((8, 17, 40), |(n, y, x)| ((n + y + x) % 3) as u8);
    labels[[1, 2, 3]] = 9;
    // Nothing is learned from what is the same everywhere, though it is the largest.
    file.new_dataset_builder()
        .with_data(&ndarray::Array3::from_elem((8, 34, 40), 1e9))
        .create("even")
        .unwrap();
    // What is packed are no classes.
    let packed = file.new_dataset_builder().with_data(&labels.mapv(i16::from)).create("packed").unwrap();
    packed.new_attr::<f64>().create("scale_factor").unwrap().write_scalar(&0.5).unwrap();
    drop(packed);
    file.close().unwrap();
    // Of one sample there is no next one, and a small picture has a small network.
    let small = place.text("small.h5");
    let file = File::create(&small).unwrap();
    let build = || file.new_dataset_builder();
    build()
        .with_data(&ndarray::Array3::from_shape_fn((1, 9, 12), |(_, y, x)| (y * x) as f32))
        .create("x")
        .unwrap();
    file.close().unwrap();
    assert!(!run(1, &["inspect", &small]).contains("as a first try"));
    let file = File::create(&small).unwrap();
    let build = || file.new_dataset_builder();
    build()
        .with_data(&ndarray::Array3::from_shape_fn((3, 9, 12), |(n, y, x)| (n + y * x) as f32))
        .create("x")
        .unwrap();
    file.close().unwrap();
    let said = run(1, &["inspect", &small]);
    assert!(said.contains("dltrain --model unet:depth=3,width=16 "), "{said}");
    for expected in [
        "--target 'temperature[n+1,h,w]:standard' --loss mse --classes 1 --batch 4",
        "--loss cross-entropy --classes 3 --missing mask --batch 4",
    ] {
        let said = run(1, &["inspect", &path]);
        let line = said.lines().find_map(|line| line.split_once("as a first try: dltrain ")).expect(&said).1;
        assert!(line.contains(expected), "{said}");
        let command = format!("'{}' {line} --epochs 1 --quiet", job::DLTRAIN);
        let command = format!("{command} --results '{}'", place.text(&format!("{}.h5", expected.len())));
        let done = std::process::Command::new("sh").args(["-c", &command]).output().unwrap();
        assert!(done.status.success(), "{command}: {}", String::from_utf8_lossy(&done.stderr));
        if expected.contains("mse") {
            let file = hdf5::File::append(&path).unwrap();
            let front = file.new_dataset_builder().with_data(&labels).create("front").unwrap();
            front.new_attr::<u8>().create("_FillValue").unwrap().write_scalar(&9u8).unwrap();
            file.close().unwrap();
        }
    }
}

/// A dry run reckons what computing a universe takes, which for 1024³ is half an hour and 8 GB, and needs none of it.
#[test]
fn a_dry_run_computes_no_large_universe() {
    let flags = "--model mlp --classes 4 --data synthetic:universes:4:1024 --input full[3,0,w=0..8,c]:standard \
                 --target unitPar[c] --loss mse --batch 2 --threads 1 --dry-run";
    let said = run(1, &flags.split_whitespace().collect::<Vec<_>>());
    assert!(said.contains("rescaling: by universes that are computed when a run begins"), "{said}");
    let reading = said.lines().find(|line| line.starts_with("input: ")).expect(&said);
    assert!(reading.contains("reading decides"), "{reading}");
}

/// Six universes: as they are computed by one rank, and as two ranks packed them.
#[test]
fn universes_are_the_same_computed_and_packed() {
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name).display().to_string();
    let [packed, others, log] = ["packed", "others", "log"].map(place);
    for (set, to) in [("synthetic:universes:6:16:3", &packed), ("synthetic:universes-test:2:16:3", &others)] {
        fs::create_dir(to).unwrap();
        run(2, &["pack", set, to]);
    }
    let file = File::open(directory.path().join("packed/universe-5-16-3.hdf5")).unwrap();
    let counts = file.dataset("full").unwrap();
    assert_eq!((counts.shape(), counts.dtype().unwrap().size()), (vec![16, 16, 16, 4], 2));
    assert_eq!(file.dataset("unitPar").unwrap().shape(), [4]);
    let train = |ranks: usize, name: &str, flags: &[&str]| {
        let results = place(name);
        let fixed = "--model mlp --classes 4 --input full[3,h,w,c]:log1p --target unitPar[c] --loss mse --metric mae \
                     --epochs 2 --optimizer sgd --lr 0.01 --threads 1 --results";
        let fixed: Vec<&str> = fixed.split_whitespace().collect();
        run(ranks, &[&fixed[..], &[&results], flags].concat());
        ["steps/loss", "epochs/test_mae"].map(|name| series(Path::new(&results), name))
    };
    let keys = ["--mllog", &log, "--mllog-key", "submission_benchmark=cosmoflow"];
    let computed =
        train(1, "a.h5", &[&["--data", "synthetic:universes:6:16:3", "--batch", "2"], &keys[..]].concat());
    assert_eq!(train(1, "b.h5", &["--data", &packed, "--test-data", &others, "--batch", "2"]), computed);
    let shared = train(2, "c.h5", &["--data", &packed, "--test-data", &others, "--batch", "1"]);
    shared.iter().zip(&computed).for_each(|(shared, one)| near(shared, one, "two ranks"));
    let said = fs::read_to_string(log).unwrap();
    let line = |key: &str| {
        let line =
            said.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line.get(9..)?).ok());
        let found: Vec<_> =
            line.filter(|line| line["key"] == key).map(|line| line["value"].clone()).collect();
        assert!(found.iter().all(|value| *value == found[0]), "{key}: {said}");
        found[0].clone()
    };
    assert_eq!(line("submission_benchmark"), "cosmoflow");
    assert_eq!([line("global_batch_size"), line("train_samples"), line("eval_samples")], [2, 6, 2]);
    assert_eq!((line("opt_name"), line("opt_base_learning_rate").to_string()), ("sgd".into(), "0.01".into()));
    let error = refused(&[(
        2,
        &["--data", "synthetic:universes:6:20", "--input", "full", "--target", "unitPar", "--loss", "mse"],
    )]);
    assert!(error.contains("power of two from 16 to 1024"), "{error}");
}

/// A network of cubes of 16 planes, of which an inner layer has two.
fn of_cubes(batch: usize) -> Result<Graph> {
    let (mut net, x) = Builder::new("cubes", batch, SampleShape::cube([4, 16, 16, 16]));
    let conv = Conv { bias: false, ..Conv::square(3).padding(1) };
    let before = net.conv("conv1", x, 8, conv.cubic())?;
    let before = net.batch_norm("norm1", before, BatchNorm::default())?;
    let before = net.relu("relu1", before);
    let x = net.max_pool("pool1", before, Pool::square(2).cubic())?;
    let x = net.conv("conv2", x, 8, conv.stride(2).cubic())?;
    let x = net.batch_norm("norm2", x, BatchNorm::default())?;
    let mut x = net.avg_pool("pool2", x, Pool::square(2).cubic())?;
    for layer in ["up1", "up2", "up3"] {
        let twice = Conv { bias: false, ..Conv::square(2).stride(2).cubic() };
        x = net.conv_transpose(layer, x, 8, twice, [0; 3])?;
    }
    let x = net.concat("both", &[before, x])?;
    let x = net.conv("out", x, 4, Conv::square(1).cubic())?;
    Ok(net.finish(x))
}

/// What a rank reads of 8 epochs, by the system's count, is what 9 epochs read more than one.
#[test]
fn cubes_by_planes_come_to_the_same_and_a_rank_reads_its_own() {
    const SAMPLES: u64 = 4;
    let files = Files::new();
    files.write_with("cubes", &of_cubes, (false, &weights));
    let place = |name: &str| files.path(name).display().to_string();
    let [model, data] = ["cubes.onnx", "data"].map(place);
    fs::create_dir(&data).unwrap();
    run(1, &["pack", &format!("synthetic:universes:{SAMPLES}:16"), &data]);
    let views = "--input full[d,h,w,c]:log1p --target full[d,h,w,c]:log1p --loss mse --threads 1 --batch 2";
    let views: Vec<&str> = views.split_whitespace().chain(["--model", &model, "--data", &data]).collect();
    let fixed = [&views[..], &["--test-data", &data, "--optimizer", "sgd", "--lr", "0.01"]].concat();
    let train = |parts: &str, epochs: &str| {
        let name = place(&format!("{parts}-{epochs}"));
        let count = r#""$0" "$@" || exit
                       sed -n 's/^rchar: //p' /proc/$$/io >"$READ.${OMPI_COMM_WORLD_RANK:-$PMI_RANK}""#;
        let mut job = job::start(parts.parse().unwrap(), &["sh", "-c", count, job::DLTRAIN]);
        job.env("READ", &name).args(&fixed);
        job.args(["--spatial", parts, "--epochs", epochs, "--results", &format!("{name}.h5")]);
        job.args(["--save-weights", &format!("{name}.safetensors")]);
        let done = job::finish(job);
        assert!(done.success, "{}", done.stderr);
        let read = |rank: u64| fs::read_to_string(format!("{name}.{rank}")).unwrap().trim().parse().unwrap();
        let read: Vec<u64> = (0..parts.parse().unwrap()).map(read).collect();
        let of = |of: &str| series(Path::new(&format!("{name}.h5")), of);
        (["steps/loss", "epochs/test_loss", "epochs/test_rmse"].map(of).concat(), read)
    };
    let (whole, _) = train("1", "9");
    let (in_two, read) = train("2", "9");
    let (_, once) = train("2", "1");
    // The array is the input and the target, in training and in the test, and half of each is a rank's.
    let half = 2 * 8 * SAMPLES * 16 * 16 * 16 * 4 * 2;
    for (nine, one) in read.iter().zip(once) {
        assert!(
            (nine - one).abs_diff(half) < half / 8,
            "{nine} bytes, and {one} of one epoch: not {half} more"
        );
    }
    near(&in_two, &whole, "two slabs");
    near(&train("4", "9").0, &whole, "four slabs");
    let weights = place("1-9.safetensors");
    let tested = |ranks: usize, flags: &[&str]| {
        let said = run(ranks, &[&["evaluate", "--init-from", &weights], &views[..], flags].concat());
        let found = |name: &str| {
            let (_, behind) = said.split_once(name).unwrap_or_else(|| panic!("{said}"));
            behind.split([',', '\n']).next().unwrap().trim().parse::<f64>().unwrap()
        };
        ["test loss", "rmse"].map(found)
    };
    near(&tested(4, &["--spatial", "4"]), &tested(1, &[]), "evaluated by four slabs");
    let said = run(4, &[&fixed[..], &["--spatial", "4", "--dry-run"]].concat());
    assert!(said.contains("rows are gathered before pool2, which has 2 of them for 4 ranks"), "{said}");
    assert!(said.contains("conv3d") && !said.contains("conv2d"), "{said}");
}

#[test]
fn a_dry_run_says_what_reading_takes_beside_computing() {
    let place = Place::new();
    let data = place.text("train");
    let views =
        ["--input", "air/wind[n,h,w,c]:standard", "--target", "heat[n,h,w]:standard", "--loss", "mse"];
    let fixed = ["--model", EMULATOR, "--data", &data, "--batch", "4", "--threads", "1", "--dry-run"];
    for (threads, by) in [("0", "the rank itself"), ("1", "a loader thread"), ("3", "3 loader threads")] {
        let said = run(2, &[&fixed[..], &views, &["--loader-threads", threads]].concat());
        let reading = said.lines().find(|line| line.starts_with("input: ")).expect(&said);
        assert!(reading.contains("4 samples a step and rank take "), "{reading}");
        assert!(reading.contains(by) && reading.contains("computing takes "), "{reading}");
        assert!(said.contains("of 2 files each rank opens those that it reads; "), "{said}");
        assert!(!said.contains("image"), "{said}");
    }
    for more in [["--max-batch", "1GiB"], ["--predict-nodes", "2"]] {
        let said = run(1, &[&fixed[..], &views, &more].concat());
        assert!(said.contains("sample") && !said.contains("image"), "{said}");
    }
}

#[test]
fn what_does_not_fit_is_said_in_one_message() {
    let place = Place::new();
    let data = place.text("train");
    let fixed = ["--model", EMULATOR, "--data", &data, "--epochs", "1", "--batch", "8"];
    let wind = "air/wind[n,h,w,c]";
    for (flags, expected) in [
        (vec!["--input", wind, "--loss", "mse"], "what lacks is --target"),
        (vec!["--input", wind, "--target", "heat[n,h,w]"], "what lacks is --loss"),
        (vec!["--loss", "mse"], "--loss is for arrays"),
        (vec!["--input", "wind", "--target", "heat", "--loss", "mse"], "--input: "),
        (
            vec!["--input", "air/wind[n,h,w]", "--target", "heat", "--loss", "mse"],
            "names 3 axes, and the array has 4",
        ),
        (vec!["--input", wind, "--target", "flux", "--loss", "mse"], "and a --target has one number"),
        (vec!["--input", "heat[n,h,w]", "--target", "heat[n,h,w]", "--loss", "mse"], "emulator.onnx"),
        (vec!["--input", wind, "--target", "heat[n,h,w]:mean", "--loss", "mse"], "log1p, standard, minmax"),
        (
            vec!["--input", wind, "--target", "heat[n,h,w]", "--loss", "mse", "--metric", "iou"],
            "--metric iou",
        ),
        (
            vec!["--input", wind, "--target", "heat[n,h,w]", "--loss", "mse", "--image-size", "8"],
            "is for pictures",
        ),
        (
            vec!["--input", wind, "--target", "heat[n,h,w]", "--loss", "mse", "--strict"],
            "--strict is for pictures",
        ),
        (
            vec!["--input", wind, "--target", "heat", "--loss", "mse", "--label-smoothing", "0.1"],
            "for classes",
        ),
        (
            vec!["--input", wind, "--target", "heat[n,h,w]", "--loss", "mse", "--class-weights", "1"],
            "cross-entropy",
        ),
        (
            vec!["--input", wind, "--target", "heat[n,h,w]", "--loss", "mse", "--weight", "area[c]"],
            "--weight area[c]: it has an axis c of 12 places, and a target has h of 12, w of 10",
        ),
        (
            vec!["--input", wind, "--target", "heat[n,h,w]", "--loss", "mse", "--weight", "flux"],
            "is no weight; weights are 0 or more",
        ),
        (
            vec!["--input", wind, "--target", "flux", "--loss", "mse", "--weight", "a[n]", "--weight", "b"],
            "--weight is given more than once (a[n], b)",
        ),
        (
            vec!["--input", wind, "--target", "heat", "--loss", "cross-entropy", "--class-weights", "0,0"],
            "--class-weights: all are 0",
        ),
        (vec!["--input", wind, "--loss", "output:x", "--weight", "flux"], "a loss that is in the network"),
    ] {
        let error = refused(&[(2, &[&fixed[..], &flags].concat())]);
        assert!(error.contains(expected), "{flags:?}: {error}");
    }
    let pictures = misused(1, &["--model", EMULATOR, "--steps", "2"]);
    assert!(pictures.contains("--input VIEW --target VIEW --loss NAME"), "{pictures}");
    let cut = place.path("train/c.h5");
    let whole = fs::read(place.path("train/b.h5")).unwrap();
    fs::write(cut, &whole[..whole.len() / 2]).unwrap();
    let views = ["--input", wind, "--target", "heat[n,h,w]", "--loss", "mse"];
    let error = refused(&[(2, &[&fixed[..], &views].concat())]);
    assert!(error.contains("c.h5"), "{error}");
    // As HDF5 locks what it writes.
    let written = fs::File::open(place.path("train/a.h5")).unwrap();
    rustix::fs::flock(&written, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let error = refused(&[(2, &[&fixed[..], &views].concat())]);
    assert!(error.contains("a.h5: another program has it open to write"), "{error}");
}

/// A simulation that stopped has written a part of its samples.
#[test]
fn numbers_that_were_never_written_are_refused_or_left_out() {
    let place = Place::new();
    let path = place.text("stopped.h5");
    let file = File::create(&path).unwrap();
    let x = ndarray::Array3::from_shape_fn((8, 12, 10), |(n, y, x)| ((n + y * x) % 5) as f32);
    file.new_dataset_builder().with_data(&x).create("x").unwrap();
    let written = x.slice(ndarray::s![..5, .., ..]).to_owned();
    for (name, fill) in [("y", -9999f32), ("z", 0.0)] {
        let builder = file.new_dataset::<f32>().shape((8, 12, 10)).chunk((1, 12, 10)).deflate(1);
        builder.fill_value(fill).create(name).unwrap().write_slice(&written, (..5, .., ..)).unwrap();
    }
    file.close().unwrap();
    let fixed = ["--model", "unet:depth=1,width=4", "--classes", "1", "--data", &path, "--loss", "mse"];
    let of = |input: &'static str, target: &'static str| {
        let views = ["--input", input, "--target", target, "--batch", "2", "--epochs", "1"];
        [&fixed[..], &views].concat()
    };
    for (input, target) in [("x[n,h,w]", "y[n,h,w]"), ("z[n,h,w]:standard", "x[n,h,w]")] {
        let flags = of(input, target);
        let error = refused(&[(1, &flags)]);
        assert!(
            error.contains(", sample stopped.h5 n ") && error.contains(": numbers were never written; "),
            "{error}"
        );
        run(2, &[&flags[..], &["--missing", "mask", "--batch", "1"]].concat());
    }
    // 3 of 8 samples of both, of which two ranks read all.
    let masked =
        [&of("x[n,h,w]", "y[n,h,w]")[..], &["--missing", "mask", "--batch", "1", "--test-data", &path]]
            .concat();
    let said = finish(job::job(&[(2, &masked)])).stdout;
    let line = "epoch 1: missing in training 37.5 % of targets, in the test 37.5 % of targets";
    assert!(said.lines().any(|said| said == line), "{said}");
    let said = finish(job::job(&[(
        1,
        &[&of("y[n,h,w]:minmax", "x[n,h,w]")[..], &["--dry-run", "--missing", "zero"]].concat(),
    )]));
    assert!(said.stdout.contains("y[n,h,w]:minmax becomes (x - 0) / 4 "), "{}", said.stdout);
    assert!(said.stdout.contains("37.50 % of y[n,h,w]:minmax"), "{}", said.stdout);
}

/// What decides a loss, and the order of samples, is what it was; other names of files are another order.
#[test]
fn a_run_does_not_go_on_by_other_weights_of_classes_or_another_order_of_files() {
    let place = Place::new();
    let [data, checkpoint] = ["train", "checkpoint"].map(|name| place.text(name));
    for name in ["train/a.h5", "train/b.h5"] {
        let file = File::append(place.path(name)).unwrap();
        let classes = ndarray::Array3::from_shape_fn((20, 12, 10), |(n, y, x)| ((n + y + x) % 3) as u8);
        file.new_dataset_builder().with_data(&classes).create("classes").unwrap();
        file.close().unwrap();
    }
    let fixed = [
        "--model",
        "unet:depth=1,width=4",
        "--classes",
        "3",
        "--data",
        &data,
        "--input",
        "air/wind[n,h,w,c]",
        "--target",
        "classes[n,h,w]",
        "--loss",
        "cross-entropy",
        "--batch",
        "8",
        "--threads",
        "1",
        "--quiet",
        "--class-weights",
        "1,2,1",
        "--checkpoint",
        &checkpoint,
    ];
    run(1, &[&fixed[..], &["--steps", "1"]].concat());
    let goes_on = |more: &[&'static str]| [&fixed[..], &["--steps", "2", "--resume", "auto"], more].concat();
    for (more, expected) in [
        (["--ignore-label", "0"], "--ignore-label none there, 0 here"),
        (["--missing", "zero"], "--missing refuse there, zero here"),
    ] {
        let error = refused(&[(2, &goes_on(&more))]);
        assert!(error.contains(expected), "{error}");
    }
    let mut flags = goes_on(&[]);
    let weights = flags.iter().position(|flag| *flag == "--class-weights").unwrap();
    flags[weights + 1] = "1,2,9";
    let error = refused(&[(2, &flags)]);
    assert!(error.contains("--class-weights 1,2,1 there, 1,2,9 here"), "{error}");
    flags.drain(weights..weights + 2);
    let error = refused(&[(1, &flags)]);
    assert!(error.contains("--class-weights 1,2,1 there, none here"), "{error}");
    let [a, c] = ["train/a.h5", "train/c.h5"].map(|name| place.path(name));
    fs::rename(&a, &c).unwrap();
    let error = refused(&[(1, &goes_on(&[]))]);
    assert!(error.contains("files in their order 2 with names"), "{error}");
    fs::rename(&c, &a).unwrap();
    run(1, &goes_on(&[]));
}

/// What several ranks meet in the same step, each in samples of its own, is one message.
#[test]
fn missing_numbers_that_several_ranks_meet_are_said_once() {
    let place = Place::new();
    for name in ["train/a.h5", "train/b.h5"] {
        let heat = File::append(place.path(name)).unwrap().dataset("heat").unwrap();
        let mut numbers = heat.read::<f32, ndarray::Ix3>().unwrap();
        // Every fifth sample is read before the run.
        for (n, mut sample) in numbers.outer_iter_mut().enumerate() {
            sample[[3, 4]] = if n % 5 == 0 { 1.0 } else { f32::NAN };
        }
        heat.write(&numbers).unwrap();
    }
    let data = place.text("train");
    let views = ["--input", "air/wind[n,h,w,c]", "--target", "heat[n,h,w]", "--loss", "mse"];
    let error =
        refused(&[(4, &[&["--model", EMULATOR, "--data", &data, "--batch", "5"], &views[..]].concat())]);
    assert!(error.contains("a number is missing, NaN or infinite; --missing mask"), "{error}");
}

/// One rank looks at a file and tells the others what it found, also where it cannot be used. The kernel counts how
/// often files are opened.
#[test]
fn of_many_files_each_is_opened_by_one_rank() {
    use rustix::fs::inotify;
    let place = tempfile::tempdir().unwrap();
    let path = |number: usize| place.path().join(format!("{number}.h5"));
    write(&path(0), 0, 4);
    for number in 1..300 {
        fs::copy(path(0), path(number)).unwrap();
    }
    let data = place.path().display().to_string();
    let watch = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
    inotify::add_watch(&watch, place.path(), inotify::WatchFlags::OPEN).unwrap();
    let mut memory = vec![std::mem::MaybeUninit::uninit(); 1 << 16];
    let mut opened = || {
        let mut events = inotify::Reader::new(&watch, &mut memory);
        std::iter::from_fn(|| events.next().ok().map(|event| event.file_name().is_some()))
            .filter(|&is_of_file| is_of_file)
            .count()
    };
    let train =
        ["--model", EMULATOR, "--data", &data, "--input", "air/wind[n,h,w,c]", "--target", "heat[n,h,w]"];
    let train = [&train[..], &["--loss", "mse", "--batch", "4", "--steps", "1", "--quiet"]].concat();
    run(3, &train);
    // By us and by the library, which the kernel may count as one; then those files that a step's 12 samples are in,
    // and eight that show how fast it goes.
    let count = opened();
    assert!((300..640).contains(&count), "{count}");
    write(&path(100), 0, 5);
    fs::File::options().write(true).open(path(200)).unwrap().set_len(2000).unwrap();
    let error = refused(&[(3, &train)]);
    assert!(error.contains("200.h5"), "{error}");
}

/// Ranks may have copies of the data in places of their own, which have to be copies.
#[test]
fn ranks_may_have_other_paths_and_no_other_files() {
    let place = tempfile::tempdir().unwrap();
    let [a, b, c] = [("a.h5", 4), ("b.h5", 4), ("c.h5", 5)].map(|(name, samples)| {
        write(&place.path().join(name), 0, samples);
        place.path().join(name).display().to_string()
    });
    let views =
        ["--model", EMULATOR, "--input", "air/wind[n,h,w,c]", "--target", "heat[n,h,w]", "--loss", "mse"];
    let of = [&views[..], &["--batch", "2", "--steps", "1", "--quiet"]].concat();
    let [on_a, on_b, on_c] = [&a, &b, &c].map(|data| [&of[..], &["--data", data]].concat());
    let done = finish(job::job(&[(1, &on_a), (1, &on_b)]));
    assert!(done.success, "{}", done.stderr);
    let error = refused(&[(1, &on_a), (1, &on_c)]);
    assert!(error.contains("c.h5: has ") && error.contains("needs the same data"), "{error}");
    // As long as the other, with one number of another run in it.
    let stale = hdf5::File::append(&b).unwrap();
    stale.dataset("heat").unwrap().write_slice(&[0.5f32], (3, 11, 9..)).unwrap();
    stale.close().unwrap();
    assert_eq!(fs::metadata(&a).unwrap().len(), fs::metadata(&b).unwrap().len());
    let error = refused(&[(1, &on_a), (1, &on_b)]);
    assert!(error.contains("b.h5: is as long as") && error.contains("needs the same data"), "{error}");
    write(Path::new(&b), 0, 4);
    let tested = [&on_a[..], &["--test-data", &b]].concat();
    let error = refused(&[(1, &tested), (1, &on_b)]);
    assert!(error.contains("ranks differ in --test-data: given (rank 0"), "{error}");
}
