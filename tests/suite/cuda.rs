//! `--device cuda` on any machine: whole runs on doubles of CUDA's libraries (tests/fake_cuda), which compute on the
//! host and notice what a GPU would not forgive.
//!
//! - what a GPU trains is what the CPU trains (but for rounding), and a repeat gives the same bits, also when nothing
//!   is done before somebody waits for it;
//! - ranks that share a GPU, or have one each, train as one rank does;
//! - what cuDNN does along with a convolution is what it does apart;
//! - mixed images and compressed gradients, too; these are encoded on the GPU to the bits of the host;
//! - images that come as pixels are those that come as numbers, to the bit, in training and evaluation;
//! - a run stops and goes on, on the GPU and from one device to the other;
//! - a loss that is not finite ends it before anything is updated;
//! - no CUDA, a library that is missing or too old, no such GPU, a batch that does not fit: one message, before
//!   anything is done;
//! - what the GPU's meter shows is in the record; without it nothing is missed;
//! - every call of every library that fails ends the job with its name.
//!
//! Every op by itself: tests/suite/ops.rs. Sums that never come to the host: tests/gpu_sums.rs.

use crate::support::cases::{each, first};
use crate::support::digits::DIGITS;
use crate::support::fake_cuda;
use crate::support::gpu_job;
use crate::support::job;
use crate::support::residual::residual;

use std::path::Path;
use std::process::Command;

use gpu_job::{Results, SHAPES, all_but, close, each_failing, refused, with_cuda};
use job::{finish, series};

/// Attention within windows, and what else transformers are made of.
const ATTENTION: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/onnx/parts.onnx");

#[test]
fn a_gpu_trains_what_the_cpu_trains() {
    let mut results = Results::new();
    let run = "--batch 8 --steps 6 --optimizer sgd --lr 0.01";
    let shapes = format!("--data {SHAPES} {run}");
    let all = [
        format!("--model mnist_small --data {DIGITS} {run}"),
        format!("--model mnist_net {shapes} --clip-norm 0.5 --ema 0.9"),
        format!("--model {ATTENTION} --batch 4 --steps 2 --optimizer sgd --lr 0.001"),
        "--model resnet18 --image-size 32 --classes 10 --batch 4 --steps 2 --optimizer sgd --lr 0.001".into(),
        format!("--model mnist_small {shapes} --accumulation 2 --optimizer adamw --lr 0.001"),
        "--model googlenet --image-size 32 --classes 10 --batch 2 --steps 1 --optimizer sgd --lr 0.001"
            .into(),
    ];
    for flags in first(4, all) {
        let cpu = results.losses(1, &format!("{flags} --device cpu"));
        let gpu = results.losses(1, &format!("{flags} --device cuda"));
        close(&gpu, &cpu, &flags);
    }
}

/// Networks of cubes: convolutions, transposed ones, poolings and normalisations along three axes, and the loss of a
/// class a place.
#[test]
fn a_gpu_trains_cubes_as_the_cpu_does() {
    let mut results = Results::new();
    let cubes = results.directory.path().join("cubes.h5");
    let file = hdf5::File::create(&cubes).unwrap();
    let values = ndarray::Array5::from_shape_fn([4, 8, 8, 8, 2], |(n, d, h, w, c)| {
        ((n + 2 * d + 3 * h) as f32 * 0.7).sin() + ((w + 5 * c) as f32 * 0.4).cos()
    });
    let classes = values.map_axis(ndarray::Axis(4), |of| u8::from(of[0] > of[1]));
    file.new_dataset_builder().with_data(&values).create("cube").unwrap();
    file.new_dataset_builder().with_data(&classes).create("class").unwrap();
    file.close().unwrap();
    let run = "--batch 2 --steps 2 --optimizer sgd --lr 0.001 --no-dropout";
    let of_cubes = "--input cube[n,d,h,w,c] --target class[n,d,h,w] --loss cross-entropy";
    let of_universes = "--input full[d,h,w,c]:log1p --target unitPar[c] --loss mse";
    let all = [
        format!("--model unet3d --classes 2 --data {} {of_cubes} {run}", cubes.display()),
        format!("--model cosmoflow --data synthetic:universes:4:32:1 {of_universes} {run}"),
    ];
    for flags in all {
        let [cpu, gpu] =
            ["cpu", "cuda"].map(|device| results.losses(1, &format!("{flags} --device {device}")));
        close(&gpu, &cpu, &flags);
    }
}

/// f16 against its definition (the reference device in f16): what differs are roundings of 11 bits. The second run
/// begins with a loss scale at which every gradient overflows: steps are skipped on all ranks alike until it fits, and
/// counted. Whether the updates themselves look, or ranks that own other parameters tell each other, is the same.
#[test]
fn half_precision_scales_its_loss_and_skips_what_overflows() {
    let mut results = Results::new();
    let flags =
        format!("--model mnist_small --data {SHAPES} --batch 4 --optimizer sgd --lr 0.01 --precision f16");
    let reference = results.losses(1, &format!("{flags} --steps 2 --device reference"));
    let (gpu, done) = results.train_with(1, &format!("{flags} --steps 2 --device cuda"), &[]);
    gpu.iter().zip(&reference).for_each(|(a, b)| assert!((a - b).abs() < 0.01, "{gpu:?} and {reference:?}"));
    assert!(done.stdout.contains("loss scale 65536 at the end; 0 of 2 steps"), "{}", done.stdout);

    let skipped = |line: &str| line.starts_with("loss scale").then(|| line.to_string());
    let fits = format!(
        "{} --loss-scale 4e6 --loss-scale-hysteresis 1 --steps 8 --device cuda",
        flags.replace("sgd", "adam")
    );
    let [own, told] = ["", " --zero 1"].map(|more| {
        let (losses, done) =
            results.train_with(2, &format!("{fits} --ema 0.9{more}"), &[("FAKE_CUDA_DELAYED", "1")]);
        (losses, done.stdout.lines().find_map(skipped).unwrap())
    });
    assert_eq!(own, told);
    assert!(!own.1.contains(" 0 of 8") && !own.1.contains(" 8 of 8"), "{}", own.1);

    let flags = format!("{flags} --loss-scale 1e30 --loss-scale-hysteresis 1 --steps 4 --device cuda");
    let (skipping, done) = results.train_with(2, &flags, &[]);
    assert!(done.stdout.contains("4 of 4 steps were skipped"), "{}", done.stdout);
    assert!(skipping.iter().all(|loss| loss.is_finite()));
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run.h5");
    let stuck = format!("{flags} --loss-scale-min 1e30 --results {}", path.display());
    assert!(refused(2, &stuck, &[]).contains("the loss scale is at its minimum of"), "{stuck}");
}

/// Bias and ReLU, a ReLU's gradient, statistics in halves: what cuDNN computes along with a convolution is what it
/// computes apart but for rounding, and a choice is kept with its plan, which the next run restores.
#[test]
fn what_cudnn_does_along_with_a_convolution_is_what_is_done_apart() {
    let residual = residual();
    let flags = "--steps 1 --optimizer sgd --lr 0.001 --device cuda";
    for (flags, joined, close_enough) in [
        (format!("--model cifar_net {flags} --batch 2"), &["then-bias", "then-mask"][..], 1e-4),
        (format!("{residual} {flags} --batch 8 --precision f16"), &["then-sums", "normalised"], 0.02),
    ] {
        let mut results = Results::new();
        let run =
            |results: &mut Results, variables: &[(&str, &str)]| results.train_with(1, &flags, variables);
        let (first, _) = run(&mut results, &[]);
        let kept = kept_plans(results.directory.path());
        assert!(joined.iter().all(|word| kept.iter().any(|file| file.contains(word))), "{flags}: {joined:?}");
        // cuDNN is asked for no engine again, but of each plan how much memory it takes.
        let log = results.directory.path().join("calls");
        let (again, _) = run(&mut results, &[("FAKE_CUDA_LOG", log.to_str().unwrap())]);
        assert_eq!((&again, kept_plans(results.directory.path())), (&first, kept.clone()), "{flags}");
        let asked = std::fs::read_dir(results.directory.path()).unwrap().map(|entry| entry.unwrap().path());
        let asked = asked.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("calls."));
        let asked: usize = asked
            .map(|path| std::fs::read_to_string(path).unwrap().matches(" cudnnBackendGetAttribute ").count())
            .sum();
        assert_eq!(asked, kept.len(), "{flags}");
        let (apart, _) = run(&mut results, &[("DLTRAIN_CUDNN_FUSION", "0")]);
        let agree = |found: &[f64]| {
            let close = found.iter().zip(&apart).all(|(a, b)| (a - b).abs() <= close_enough * b);
            assert!(close && found.len() == apart.len(), "{flags}: {found:?} and {apart:?}");
        };
        agree(&first);
        if flags.contains("cifar_net") {
            // No engine does several things at once, though plans of such are kept.
            assert_eq!(run(&mut results, &[("FAKE_CUDNN_JOINED", "0")]).0, apart);
            // Nor does this one say what its plans are: the choices are kept all the same.
            let mut others = Results::new();
            let silent = [("FAKE_CUDNN_TEXT", "0")];
            let wordless = [(); 2].map(|_| run(&mut others, &silent).0);
            assert!(wordless.iter().all(|losses| *losses == first), "{wordless:?} and {first:?}");
            assert_eq!(kept_plans(others.directory.path()), kept);
            // By timing, whatever comes of it.
            agree(&run(&mut Results::new(), &[("DLTRAIN_CUDNN_FUSION", "timed")]).0);
        }
    }
}

/// Engines are timed at the clocks of training: on a GPU that is slow until it has worked for a while what is timed
/// first is not taken for the slower. Nor is what is timed behind an engine that the host has compiled, while the GPU
/// had nothing to do and has lowered its clocks again.
#[test]
fn engines_are_timed_by_a_gpu_that_is_awake() {
    // A convolution takes about as long as a pass over its result; asleep ten times as long. If it is timed asleep it
    // is the pass behind it that wakes the GPU.
    for (model, wakes, compiles, joins) in
        [("mnist_small", "18000000", "0", 1), ("cifar_net", "5000000", "120", 3)]
    {
        let mut results = Results::new();
        let flags = format!("--model {model} --steps 1 --batch 1 --device cuda");
        let variables = [
            ("DLTRAIN_CUDNN_FUSION", "timed"),
            ("FAKE_CUDA_CLOCK", "1"),
            ("FAKE_CUDA_RATES", "0.4,400,50,10"),
            ("FAKE_CUDA_WAKES", wakes),
            ("FAKE_CUDNN_COMPILES", compiles),
        ];
        results.train_with(1, &flags, &variables);
        let mut kept = kept_plans(results.directory.path());
        kept.retain(|file| file.contains("then-"));
        assert_eq!(kept.len(), joins, "{model}: {kept:?}");
        let mut machine = std::fs::read_dir(results.directory.path().join("cudnn")).unwrap();
        let machine = machine.next().unwrap().unwrap().path();
        for file in kept {
            let choice = std::fs::read_to_string(machine.join(&file)).unwrap();
            assert!(choice.contains("Engine"), "{file}: {choice}");
        }
    }
}

/// `bench layers` times at the clocks of training: a GPU that is slow at first gives the same figures.
#[test]
fn layers_are_timed_by_a_gpu_that_is_awake() {
    let rate = |wakes: &str| {
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new(job::DLTRAIN);
        command.args(
            "bench layers --model mnist_small --batch 2 --device cuda --steps 1 --roofline 1,1".split(' '),
        );
        let variables =
            [("FAKE_CUDA_CLOCK", "1"), ("FAKE_CUDA_RATES", "40,1,4,3"), ("FAKE_CUDA_WAKES", wakes)];
        let done = finish(with_cuda(command, &variables, directory.path()));
        assert!(done.success, "{}", done.stderr);
        let line = done.stdout.lines().find(|line| line.starts_with("step, without communication ")).unwrap();
        line.split_whitespace().nth(3).unwrap().parse::<f64>().unwrap()
    };
    assert_eq!(rate("0"), rate("18000000"));
}

/// Kernels that begin before those in front of them have ended compute the same bits, as every kernel waits first; on
/// GPUs and with drivers that cannot it is as ever, and that is said.
#[test]
fn kernels_that_begin_early_compute_the_same() {
    let early = ("DLTRAIN_CUDA_PDL", "1");
    let plain = ["cuLaunchKernel"].as_slice();
    for (flags, more, launches) in [
        (
            "--model cifar_net --precision bf16",
            [early, ("FAKE_CUDA_DELAYED", "1")],
            ["cuLaunchKernel", "cuLaunchKernelEx"].as_slice(),
        ),
        ("--model mnist_small", [early, ("FAKE_CUDA_CAPABILITY", "80")], plain),
        ("--model mnist_small", [early, ("FAKE_CUDA_DRIVER", "12020")], plain),
    ] {
        let mut results = Results::new();
        let flags = format!("{flags} --steps 4 --batch 2 --device cuda");
        let log = results.directory.path().join("calls");
        let variables = [&more[..], &[("FAKE_CUDA_LOG", log.to_str().unwrap())]].concat();
        let (found, done) = results.train_with(1, &flags, &variables);
        let file = std::fs::read_dir(results.directory.path()).unwrap().map(|entry| entry.unwrap().path());
        let mut file = file.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("calls."));
        let calls = std::fs::read_to_string(file.next().unwrap()).unwrap();
        let mut names: Vec<&str> = calls.lines().filter_map(|line| line.split(' ').nth(1)).collect();
        names.retain(|name| name.starts_with("cuLaunchKernel"));
        names.sort_unstable();
        // What looks at the losses and what heeds that wait for another stream, in the first step and in the graph.
        let waits = names.iter().filter(|name| **name == "cuLaunchKernel").count();
        assert!(launches == plain || waits == 4, "{waits}");
        names.dedup();
        assert_eq!(names, launches, "{more:?}");
        let cannot = done.stderr.contains("DLTRAIN_CUDA_PDL=1 does nothing: it needs a GPU of sm_90");
        assert_eq!(cannot, launches == plain, "{}", done.stderr);
        assert_eq!(found, results.train_with(1, &flags, &more[1..]).0, "{more:?}");
    }
}

/// A product that fails is named: by its engine, direction, type and shapes; also where it fails later, and where
/// engines are tried.
#[test]
fn what_cudnn_cannot_do_is_named() {
    let flags = "--model mnist_small --steps 2 --batch 3 --device cuda --precision bf16";
    let own = "BackwardWeights bf16 [3, 1, 28, 28] [32, 1, 3, 3]";
    let message = refused(1, flags, &[("FAKE_CUDA_FAIL", "cudnnBackendExecute:2:5000")]);
    assert!(message.contains(&format!("engine 1 of {own}")), "{message}");
    assert!(message.contains("cudnnBackendExecute failed with code 5000"), "{message}");
    an_engine_that_cannot_be_planned_is_one_less(flags);
    // The first wait behind a product, and what a product is multiplied with.
    let timed = ("DLTRAIN_CUDNN_FUSION", "timed");
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    let done = finish(with_cuda(
        job::job(&[(1, &flags.split_whitespace().collect::<Vec<_>>())]),
        &[timed, ("FAKE_CUDA_LOG", log.to_str().unwrap())],
        directory.path(),
    ));
    let mut files = std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().path());
    let file = files.find(|file| file.display().to_string().contains("/log."));
    let text = std::fs::read_to_string(file.unwrap()).unwrap();
    let tried = text.lines().position(|line| line.contains("cudnnBackendExecute")).unwrap();
    let wait = text.lines().skip(tried).find(|line| line.contains(" cuStreamSynchronize ")).unwrap();
    let number = wait.rsplit(' ').next().unwrap();
    assert!(done.success, "{}", done.stderr);
    let message =
        refused(1, flags, &[timed, ("FAKE_CUDA_FAIL", &format!("cuStreamSynchronize:{number}:700"))]);
    assert!(message.contains("trying engine 4 of Forward bf16 [3, 1, 28, 28]"), "{message}");
    assert!(message.contains("cuStreamSynchronize failed with code 700"), "{message}");
}

/// Whatever cuDNN says of it. Where no other serves the product is named too.
fn an_engine_that_cannot_be_planned_is_one_less(flags: &str) {
    let (mut less, mut none) = (false, false);
    for number in 12..40 {
        let directory = tempfile::tempdir().unwrap();
        let words: Vec<&str> = flags.split_whitespace().collect();
        let failing = format!("cudnnBackendFinalize:{number}:5000");
        let variables = [("FAKE_CUDA_FAIL", failing.as_str()), ("DLTRAIN_LOG", "debug")];
        let done = finish(with_cuda(job::job(&[(1, &words)]), &variables, directory.path()));
        let planned = "cudnnBackendFinalize failed with code 5000";
        let line = done.stderr.lines().find(|line| line.contains(planned)).unwrap_or_default();
        let named = |what: &str| line.contains(what) && line.contains(" bf16 [3, 1, 28, 28] [32, 1, 3, 3]");
        assert!(named("looking for engines of ") || named("engine "), "{number}: {}", done.stderr);
        less |= done.success && named("planning engine ");
        none |= !done.success && named("looking for engines of ");
        if less && none {
            return;
        }
    }
    panic!("no engine is planned among these calls");
}

/// What is normalised between two convolutions is never written where these normalise it as they read, of one rank and
/// of two, with statistics in common and with activations computed again; by timing, where each rank finds something
/// else, all plan alike.
#[test]
fn what_is_normalised_between_two_convolutions_is_not_written_in_f16() {
    let mut results = Results::new();
    let residual = residual();
    let flags = format!("{residual} --steps 2 --optimizer sgd --lr 0.001 --device cuda");
    let apart = [("FAKE_CUDNN_NORMALISED", "0"), ("DLTRAIN_CUDNN_CACHE", "/dev/null")];
    let timed = [("DLTRAIN_CUDNN_FUSION", "timed"), ("DLTRAIN_CUDNN_CACHE", "/dev/null")];
    for (ranks, more) in first(1, [(2, "--batch 4 --sync-bn"), (1, "--batch 8")]) {
        let flags = format!("{flags} --precision f16 {more}");
        let (first, _) = results.train_with(ranks, &flags, &[]);
        assert_eq!(
            results.train_with(ranks, &flags, &[("FAKE_CUDA_DELAYED", "1")]).0,
            first,
            "{flags}: a repeat"
        );
        let (other, _) = results.train_with(ranks, &flags, &apart);
        let (own, _) = results.train_with(ranks, &flags, &timed);
        for found in [&first, &own] {
            let close = found.iter().zip(&other).all(|(a, b)| (a - b).abs() <= 0.02 * b);
            assert!(close && found.len() == other.len(), "{flags}: {found:?} and {other:?}");
        }
    }
    let ops = |more: &str, variables: &[(&str, &str)]| {
        let path = results.directory.path().join("steps");
        let _ = std::fs::remove_file(&path);
        let flags = format!("{flags} --batch 4 --dry-run {more} --plan-steps {}", path.display());
        let flags: Vec<&str> = flags.split_whitespace().collect();
        let done = finish(with_cuda(job::job(&[(1, &flags)]), variables, results.directory.path()));
        assert!(done.success, "{}", done.stderr);
        let steps = std::fs::read_to_string(&path).unwrap();
        let names = ["batch norm scale", "conv2d normalised", "conv2d normalised backward weights"];
        names.map(|name| steps.matches(&format!(r#""op":"{name}""#)).count())
    };
    // Each of the 6 blocks has one between its convolutions.
    assert_eq!(ops("--precision f16", &[]), [6; 3]);
    assert_eq!(ops("--precision f16", &apart), [0; 3]);
    // Who reads what is normalised needs all its engines.
    assert_eq!(ops("--precision f16", &[("FAKE_CUDNN_NORMALISED", "forward"), apart[1]]), [0; 3]);
    assert_eq!(ops("--precision bf16", &[]), [0; 3]);
}

/// The gradient of what a block of a residual network reads is a sum, which a convolution adds its part to: written
/// over the other part, with an engine that adds and without, restored from the cache and with activations computed
/// again.
#[test]
fn a_gradient_is_added_to_where_it_lies() {
    let residual = residual();
    let flags =
        format!("{residual} --batch 4 --steps 2 --optimizer sgd --lr 0.001 --device cuda --precision f32");
    let mut results = Results::new();
    let run = |results: &mut Results, more: &str, variables: &[(&str, &str)]| {
        results.train_with(1, &format!("{flags} {more}"), variables).0
    };
    let apart = run(&mut results, "", &[("DLTRAIN_CUDNN_FUSION", "0")]);
    let accumulates = |results: &Results| {
        kept_plans(results.directory.path()).iter().any(|file| file.contains("then-accumulate"))
    };
    assert!(!accumulates(&results));
    let first = run(&mut results, "", &[]);
    assert!(accumulates(&results));
    close(&first, &apart, "a sum is rounded once, not twice");
    assert_eq!(run(&mut results, "", &[]), first, "restored");
    assert_eq!(run(&mut results, "--recompute", &[]), first, "computed again");
    // In f32 nothing else is done along with a convolution here: the same operations in the same order.
    let none = [("FAKE_CUDNN_JOINED", "0")];
    assert_eq!(run(&mut Results::new(), "", &none), apart, "no engine that adds");
    let planned = |fusion: &str| {
        let path = results.directory.path().join("steps");
        let _ = std::fs::remove_file(&path);
        let more = ["--dry-run", "--plan-steps", path.to_str().unwrap()];
        let flags: Vec<&str> = flags.split_whitespace().chain(more).collect();
        let variables = [("DLTRAIN_CUDNN_FUSION", fusion)];
        let done = finish(with_cuda(job::job(&[(1, &flags)]), &variables, results.directory.path()));
        assert!(done.success, "{}", done.stderr);
        std::fs::read_to_string(path).unwrap()
    };
    // One a block: 6 of them.
    let counts =
        ["1", "0"].map(|fusion| planned(fusion).matches(r#""op":"conv2d backward data+add""#).count());
    assert_eq!(counts, [6, 0]);
}

#[test]
fn copies_in_halves_are_planned() {
    let directory = tempfile::tempdir().unwrap();
    let [whole, halves] = ["f32", "bf16"].map(|precision| {
        let flags =
            ["--model", "alexnet", "--batch", "2", "--dry-run", "--device", "cuda", "--precision", precision];
        let done = finish(with_cuda(job::job(&[(1, &flags)]), &[], directory.path()));
        assert!(done.success, "{}", done.stderr);
        ["parameters ", "gradients "].map(|kind| -> usize {
            let line = done.stdout.lines().find(|line| line.trim_start().starts_with(kind)).expect("a line");
            let bytes = line.split(['(', ' ']).rev().nth(1);
            bytes.and_then(|bytes| bytes.replace(',', "").parse().ok()).expect(line)
        })
    });
    // Of all parameters, and of the gradients of the weights of four convolutions: that of the first is padded.
    let convolutions = 25 * 64 * 192 + 9 * (192 * 384 + 384 * 256 + 256 * 256);
    assert_eq!(halves, [whole[0] + whole[0] / 2, whole[1] + 2 * convolutions]);
}

/// The files of cuDNN's cache.
fn kept_plans(directory: &Path) -> Vec<String> {
    let machines = std::fs::read_dir(directory.join("cudnn")).unwrap().map(|entry| entry.unwrap().path());
    let files = machines.flat_map(|machine| std::fs::read_dir(machine).unwrap());
    let mut names: Vec<String> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn recomputing_and_shared_statistics_change_nothing_on_a_gpu() {
    let mut results = Results::new();
    let residual = residual();
    let flags = format!("{residual} --steps 2 --optimizer sgd --lr 0.001 --device cuda");
    let whole = results.losses(1, &format!("{flags} --batch 4"));
    assert_eq!(results.losses(1, &format!("{flags} --batch 4 --recompute")), whole);
    // Convolutions give the moments of what they compute.
    let halves = results.losses(1, &format!("{flags} --batch 4 --precision bf16"));
    assert_eq!(results.losses(1, &format!("{flags} --batch 4 --precision bf16 --recompute")), halves);
    close(&results.losses(2, &format!("{flags} --batch 2 --sync-bn")), &whole, "--sync-bn");
}

/// Mixed images have two labels each; compressed gradients are those of the CPU but for the order in which a layout has
/// them, which a codec with a threshold for pieces notices: only the course is the same.
#[test]
fn mixed_images_and_compressed_gradients_go_with_a_gpu() {
    let mut results = Results::new();
    let flags = format!("--model mnist_small --data {SHAPES} --batch 8 --steps 5 --optimizer sgd --lr 0.01");
    let mixed = format!("{flags} --augment mixup=0.4,cutmix");
    close(
        &results.losses(1, &format!("{mixed} --device cuda")),
        &results.losses(1, &format!("{mixed} --device cpu")),
        "mixed images",
    );
    for scheme in ["1bit", "powersgd:2"] {
        let flags = format!("{flags} --compress {scheme} --fusion-threshold-mb 0.1");
        for ranks in first(1, [2, 1]) {
            let cpu = results.losses(ranks, &format!("{flags} --device cpu"));
            let gpu = results.losses(ranks, &format!("{flags} --device cuda"));
            let largest = cpu.iter().zip(&gpu).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(largest < 0.1, "{scheme}, {ranks} ranks: {gpu:?} and {cpu:?}");
        }
    }
    // What is still to be sent goes into checkpoints, and on from there.
    let flags = format!("{flags} --compress topk:0.05 --device cuda");
    let whole = results.losses(2, &flags.replace("--steps 5", "--steps 4"));
    let kept = results.path().with_extension("checkpoints");
    let path = results.path();
    for steps in [2, 4] {
        let flags = flags.replace("--steps 5", &format!("--steps {steps}"));
        let flags = format!(
            "{flags} --warmup 0 --checkpoint {} --resume auto --results {}",
            kept.display(),
            path.display()
        );
        let flags: Vec<&str> = flags.split_whitespace().collect();
        let done = finish(with_cuda(job::job(&[(2, &flags)]), &[], results.directory.path()));
        assert!(done.success, "{}{}", done.stdout, done.stderr);
    }
    assert_eq!(series(&path, "steps/loss"), whole, "another course after a checkpoint");
}

/// To the bits of the host's codecs: by one rank and by several, of several micro-steps, done late and in the other
/// order of threads; a checkpoint of either serves the other.
#[test]
fn gradients_are_encoded_on_a_gpu_as_on_the_host() {
    let mut results = Results::new();
    let flags = format!(
        "--model mnist_small --data {SHAPES} --batch 8 --steps 4 --optimizer sgd --lr 0.01 --device cuda --fusion-threshold-mb 0.1"
    );
    let on_the_host = ("DLTRAIN_CUDA_CODING", "0");
    let all = [
        ("topk:0.05", 3, ""),
        ("2bit:0.01", 2, "--accumulation 2"),
        ("1bit", 1, "--clip-norm 0.5"),
        ("1bit", 2, ""),
    ];
    for (scheme, ranks, more) in first(2, all) {
        let flags = format!("{flags} --compress {scheme} {more}");
        let (host, done) = results.train_with(ranks, &flags, &[on_the_host]);
        assert!(!done.stdout.contains("decoding on the GPU"), "{}", done.stdout);
        for variables in [&[][..], &[("FAKE_CUDA_DELAYED", "1"), ("FAKE_CUDA_DESCENDING", "1")]] {
            let (gpu, done) = results.train_with(ranks, &flags, variables);
            assert_eq!(gpu, host, "{flags} {variables:?}");
            assert!(done.stdout.contains("decoding on the GPU"), "{}", done.stdout);
        }
    }
    let flags = format!("{flags} --compress topk:0.05");
    let whole = results.losses(2, &flags);
    for variables in [[&[on_the_host][..], &[]], [&[], &[on_the_host]]] {
        let (kept, path) = (results.path().with_extension("checkpoints"), results.path());
        for (steps, variables) in [2, 4].into_iter().zip(variables) {
            let flags = flags.replace("--steps 4", &format!("--steps {steps}"));
            let (kept, path) = (kept.display(), path.display());
            let flags = format!("{flags} --warmup 0 --checkpoint {kept} --resume auto --results {path}");
            let flags: Vec<&str> = flags.split_whitespace().collect();
            let done = finish(with_cuda(job::job(&[(2, &flags)]), variables, results.directory.path()));
            assert!(done.success, "{}{}", done.stdout, done.stderr);
        }
        assert_eq!(series(&path, "steps/loss"), whole, "another course after a checkpoint");
    }
}

/// A quarter of the bytes and the same bits, also where work is done as late as it may be, and of places without an
/// image. What pixels cannot say comes as numbers.
#[test]
fn pixels_are_normalised_on_a_gpu_to_the_bits_of_the_host() {
    let mut results = Results::new();
    let digits = "--data synthetic:shapes:24 --batch 3 --steps 2 --accumulation 2";
    let digits = format!("--model mnist_small {digits} --optimizer sgd --lr 0.01 --device cuda");
    let shapes = "--data synthetic:shapes:8 --batch 3 --optimizer sgd --lr 0.001 --device cuda --epochs 1";
    let shapes = format!("{} {shapes}", residual());
    let late = [("FAKE_CUDA_DELAYED", "1")];
    for (ranks, flags, variables) in [
        (2, digits, &late[..]),
        (1, shapes.clone(), &[]),
        (1, format!("{shapes} --precision bf16 --steps 1"), &[]),
    ] {
        let mut losses = |variables: &[(&str, &str)]| {
            let (steps, _) = results.train_with(ranks, &flags, variables);
            let path = results.directory.path().join(format!("run{}.h5", results.runs));
            (steps, series(&path, "epochs/test_loss"), series(&path, "epochs/test_accuracy"))
        };
        let numbers = losses(&[("DLTRAIN_CUDA_PIXELS", "0")]);
        assert!(numbers.1[0].is_finite());
        assert_eq!(losses(variables), numbers, "{flags}");
    }
    let input = |flags: &str| {
        let flags = format!("{shapes} --dry-run {flags}");
        let flags: Vec<&str> = flags.split_whitespace().collect();
        finish(with_cuda(job::job(&[(1, &flags)]), &[], results.directory.path())).stdout
    };
    for (flags, pixels) in [("", true), ("--augment cifar", true), ("--augment lighting", false)] {
        assert_eq!(input(flags).contains("own:images"), pixels, "{flags}: {}", input(flags));
    }
    for flags in ["--augment cutout", "--augment mixup", "--device cpu"] {
        assert!(!input(flags).contains(" normalise "), "{flags}");
    }
}

/// Of steps that are captured one kernel makes f32 of all weights' gradients, but of one that a step reads before:
/// where two convolutions share a weight.
#[test]
fn gradients_in_halves_are_the_same_together_and_each_by_itself() {
    let mut results = Results::new();
    let shares = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/onnx/whole-2.onnx");
    let shares = format!("--model {} --fresh-weights --precision bf16", shares.display());
    for flags in
        [shares, format!("{} --precision bf16", residual()), format!("{} --precision f16", residual())]
    {
        let flags = format!("{flags} --batch 2 --steps 4 --optimizer sgd --lr 0.01 --device cuda");
        let mut losses = |graphs| results.train_with(1, &flags, &[("DLTRAIN_CUDA_GRAPH", graphs)]).0;
        let apart = losses("0");
        assert!(apart.len() == 4 && apart[0] != apart[3], "{apart:?}");
        assert_eq!(losses("1"), apart, "{flags}");
    }
}

/// Also where work is done as late as it may be: a wait that is missing would show.
#[test]
fn ranks_that_share_a_gpu_train_as_one_and_repeat_their_bits() {
    let mut results = Results::new();
    let flags = format!(
        "--model mnist_net --data {SHAPES} --steps 5 --optimizer sgd --lr 0.01 --fusion-threshold-mb 0.1"
    );
    let whole = results.losses(1, &format!("{flags} --batch 16 --device cuda"));
    for ranks in [2, 4] {
        let flags = format!("{flags} --batch {} --device auto", 16 / ranks);
        let (first, done) = results.train_with(ranks, &flags, &[]);
        close(&first, &whole, &format!("{ranks} ranks"));
        assert!(done.stdout.contains("Fake GPU 0"), "auto is not the GPU: {}", done.stdout);
        assert!(done.stderr.contains(&format!("{ranks} ranks share GPU 0")), "{}", done.stderr);
        let (again, _) = results.train_with(ranks, &flags, &[("FAKE_CUDA_DELAYED", "1")]);
        assert_eq!(again, first, "{ranks} ranks: a repeat differs");
        let (ring, _) = results.train_with(ranks, &format!("{flags} --allreduce ring --no-overlap"), &[]);
        close(&ring, &whole, "ring");
    }
    let (apart, done) =
        results.train_with(2, &format!("{flags} --batch 8 --device cuda"), &[("FAKE_CUDA_DEVICES", "2")]);
    close(&apart, &whole, "a GPU each");
    assert!(!done.stderr.contains("share GPU"), "{}", done.stderr);
}

#[test]
fn a_run_goes_on_where_it_stopped_also_on_another_device() {
    let mut results = Results::new();
    let flags = format!("--model mnist_small --data {SHAPES} --batch 8 --optimizer adam --lr 0.001");
    let whole = results.losses(1, &format!("{flags} --device cuda --steps 6"));
    let cpu = results.losses(1, &format!("{flags} --device cpu --steps 6"));
    for (first, second, expected) in
        [("cuda", "cuda", &whole), ("cuda", "cpu", &cpu), ("cpu", "cuda", &whole)]
    {
        let kept = results.path().with_extension("checkpoints");
        let flags = format!("{flags} --checkpoint {} --resume auto", kept.display());
        let begun = results.losses(1, &format!("{flags} --device {first} --steps 3"));
        // The record of the first part goes on: all steps are in it.
        let path = results.directory.path().join(format!("run{}.h5", results.runs));
        let flags = format!("{flags} --device {second} --steps 6 --warmup 0 --results {}", path.display());
        let flags: Vec<&str> = flags.split_whitespace().collect();
        let done = finish(with_cuda(job::job(&[(1, &flags)]), &[], results.directory.path()));
        assert!(done.success, "{}{}", done.stdout, done.stderr);
        let all = series(&path, "steps/loss");
        assert_eq!(all[..3], begun);
        match first == second {
            true => assert_eq!(all, **expected, "another course on the GPU"),
            false => close(&all, expected, &format!("{first}, then {second}")),
        }
    }
}

/// At the same step and in the same layer. To find it the forward pass is done again, with the parameters that nothing
/// has updated since; the delay shows a wait that is missing.
#[test]
fn a_loss_that_is_not_finite_ends_the_run_as_on_the_cpu() {
    let flags = format!(
        "--model mnist_small --data {DIGITS} --optimizer sgd --lr 1e20 --batch 8 --warmup 0 --steps 6 --precision f32"
    );
    for ranks in first(1, [1, 2]) {
        let said = ["cpu", "cuda"].map(|device| {
            let message =
                refused(ranks, &format!("{flags} --device {device}"), &[("FAKE_CUDA_DELAYED", "1")]);
            message.split("not a finite").last().unwrap().split(" (rank").next().unwrap().to_string()
        });
        assert!(said[0].contains("at step 1 ") && said[0].contains("in the output of layer "), "{said:?}");
        assert_eq!(said[1], said[0], "{ranks} ranks");
    }
}

/// Without a flag a GPU computes in tf32 where it can, and says so; the CPU, an older GPU and --precision f32 do not.
/// The record has what was used, and a run that goes on elsewhere says what has changed.
#[test]
fn without_a_flag_a_gpu_rounds_products_and_says_so() {
    let mut results = Results::new();
    let flags = format!("--model mnist_small --data {SHAPES} --batch 8 --optimizer sgd --lr 0.01");
    let rounded = "tf32 (products rounded to 10 bits; --precision f32 rounds none";
    for (more, variables, used) in [
        ("--device cuda", &[][..], "tf32"),
        ("--device cuda --precision f32", &[], "f32"),
        ("--device cuda", &[("FAKE_CUDA_CAPABILITY", "70")], "f32"),
        ("--device cpu", &[], "f32"),
        ("--device reference", &[], "f32"),
    ] {
        let (_, done) = results.train_with(1, &format!("{flags} --steps 1 {more}"), variables);
        assert_eq!(done.stdout.contains(rounded), used == "tf32", "{more}: {}", done.stdout);
        let record = results.directory.path().join(format!("run{}.h5", results.runs));
        let record = hdf5::File::open(record).and_then(|file| file.group("config")).unwrap();
        let text = |name: &str| {
            let text: hdf5::types::VarLenUnicode = record.attr(name).unwrap().read_scalar().unwrap();
            text.to_string()
        };
        assert!(text("config").contains(&format!("\"precision\": \"{used}\"")), "{more}: {}", text("config"));
        assert!(text("device").ends_with(&format!(", {used}")), "{more}: {}", text("device"));
        // Who repeats the run lets the device decide again, if this one did.
        let asked = if more.contains("--precision") { "f32" } else { "auto" };
        assert!(text("run_file").contains(&format!("precision = \"{asked}\"")), "{}", text("run_file"));
    }
    let plan: Vec<&str> = ["--model", "mnist_small", "--device", "cuda", "--dry-run"].into();
    let plan = finish(with_cuda(job::job(&[(1, &plan)]), &[], results.directory.path())).stdout;
    assert!(plan.contains(rounded), "{plan}");

    let kept = results.path().with_extension("checkpoints");
    let flags = format!("{flags} --checkpoint {} --resume auto", kept.display());
    results.train_with(1, &format!("{flags} --device cpu --steps 1"), &[]);
    let (_, done) = results.train_with(1, &format!("{flags} --device cuda --steps 2"), &[]);
    assert!(done.stdout.contains("changed: precision f32 then, tf32 now"), "{}", done.stdout);
}

#[test]
fn what_a_gpu_run_lacks_is_said_before_anything_is_done() {
    let cuda = "--model mnist_small --steps 1 --device cuda";
    let path = fake_cuda::libraries().to_str().unwrap();
    let cases = [
        (cuda.to_string(), vec![("FAKE_CUDA_DEVICES", "0")], vec!["sees no GPU", "--device cpu"]),
        (cuda.into(), vec![("FAKE_CUDNN_VERSION", "8907")], vec!["cuDNN 8.9.7", "needs 9"]),
        (cuda.into(), vec![("FAKE_CUDA_DRIVER", "11080")], vec!["CUDA 11.8", "CUDA 12.0 or newer"]),
        (format!("{cuda}:1"), vec![], vec!["--device cuda:1", "one GPU, number 0"]),
        (format!("{cuda}:7"), vec![("FAKE_CUDA_DEVICES", "2")], vec!["2 GPUs, 0 to 1"]),
        (
            format!("{cuda} --precision bf16"),
            vec![("FAKE_CUDA_CAPABILITY", "60")],
            vec!["sm_80 or newer", "sm_60"],
        ),
        // CUDA_ERROR_INVALID_PTX.
        (
            cuda.into(),
            vec![("FAKE_CUDA_FAIL", "cuModuleLoadDataEx:1:218")],
            vec!["compiling the kernels for Fake GPU 0", "the driver's compiler says: ptxas fatal: code 218"],
        ),
        (
            "--model vgg16 --classes 10 --steps 1 --device cuda --image-size 32 --batch 512".into(),
            vec![("FAKE_CUDA_MEMORY", "5000000000")],
            vec!["--batch 512 needs", "free on the rank's GPU", "the largest --batch that fits is"],
        ),
    ];
    each(cases, |(flags, variables, words)| {
        let message = refused(2, &flags, &variables);
        words.iter().for_each(|word| assert!(message.contains(word), "{flags} {variables:?}: {message}"));
    });
    // Without any of it, and with a driver but none of the rest.
    let nothing = tempfile::tempdir().unwrap();
    let none = refused(1, cuda, &[("DLTRAIN_CUDA_PATH", nothing.path().to_str().unwrap())]);
    if dltrain::device::cuda::probe().is_err() {
        assert!(none.contains("no CUDA driver library"), "{none}");
        // The driver's double needs its clock.
        for name in ["libcuda.so.1", "libclock.so"] {
            std::os::unix::fs::symlink(Path::new(path).join(name), nothing.path().join(name)).unwrap();
        }
        let driver_only = refused(1, cuda, &[("DLTRAIN_CUDA_PATH", nothing.path().to_str().unwrap())]);
        let words = ["no cuDNN 9 (libcudnn.so.9)", "DLTRAIN_CUDA_PATH", "--device cpu runs without"];
        words.iter().for_each(|word| assert!(driver_only.contains(word), "{driver_only}"));
    }
    let cases = [
        ("--device gpu", "cuda:N"),
        ("--device cuda:x", "cuda:N"),
        ("--device cpu --precision tf32", "--device cuda"),
    ];
    each(cases, |(flags, word)| {
        let message = refused(1, flags, &[]);
        assert!(message.contains(word), "{message}");
    });
}

/// The double of NVML shows a GPU that is half busy, with 2 GiB in use and 123 W.
#[test]
fn the_gpus_meter_is_in_the_record_or_its_absence_is_said() {
    let mut results = Results::new();
    let flags =
        format!("--model mnist_small --data {SHAPES} --batch 16 --epochs 1 --device cuda --tensorboard");
    let events = results.directory.path().join("events");
    let (_, done) = results.train_with(2, &format!("{flags} {}", events.display()), &[]);
    for line in ["GPU busy  GPU memory  power", "     50.0%     2147 MB  123 W", "50.0% busy, 2147 MB in use"]
    {
        assert!(done.stdout.contains(line), "{line} is missing in\n{}", done.stdout);
    }
    let path = results.directory.path().join("run1.h5");
    for (name, value) in [("busy", 0.5), ("memory", 2147483648.0), ("power", 123.0)] {
        for group in ["steps", "epochs"] {
            let shown = series(&path, &format!("{group}/gpu_{name}"));
            // A mean over an epoch's time is exact but for the rounding of its sums.
            let close = |shown: &f64| (shown - value).abs() <= 1e-12 * value;
            assert!(!shown.is_empty() && shown.iter().all(close), "{group}, {name}: {shown:?}");
        }
    }
    let events = std::fs::read_dir(events).unwrap().next().unwrap().unwrap().path();
    let events = String::from_utf8_lossy(&std::fs::read(events).unwrap()).into_owned();
    assert!(["gpu/busy", "gpu/memory", "gpu/power"].iter().all(|tag| events.contains(tag)));

    let without = all_but("libnvidia-ml");
    let variables = [("DLTRAIN_CUDA_PATH", without.path().to_str().unwrap())];
    let info = |variables| finish(with_cuda(job::job(&[(1, &["info"])]), variables, without.path())).stdout;
    let with = info(&[]);
    let looked = with.lines().find(|line| line.starts_with("CUDA in ")).unwrap_or_else(|| panic!("{with}"));
    for words in [fake_cuda::libraries().to_str().unwrap(), "the loader's own places"] {
        assert!(looked.contains(words), "{looked}");
    }
    assert!(with.contains("NVML /"), "{with}");
    let said = info(&variables);
    if said.contains("no figures of utilisation, memory and power: no libnvidia-ml.so.1") {
        let (_, done) =
            results.train_with(1, "--model mnist_small --batch 4 --steps 1 --device cuda", &variables);
        assert!(!done.stdout.contains("busy"), "{}", done.stdout);
        assert!(!done.stderr.contains("NVML"), "said once, by info: {}", done.stderr);
    } else {
        // This machine has NVML of its own.
        assert!(said.contains("NVML"), "{said}");
    }
}

/// Of every name the first call, the last and one in between fail in turn; what only frees is the exception, since
/// nobody could be told.
#[test]
fn a_call_that_fails_ends_the_job_with_its_name() {
    assert!(each_failing("", |_| true) > 30);
}
