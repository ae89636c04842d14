//! A network in stages: ranks that compute its layers one behind the other.
//!
//! - losses, tests and weights are those of gradient accumulation, bit for bit, with every schedule, beside other ranks
//!   with other images, and with activations that are computed again;
//! - a checkpoint of any number of stages resumes with any other;
//! - memory is as planned, less with fewer micro-batches in flight; on GPUs the numbers are those of the CPU;
//! - a stage that dies ends the job, and one that stops is named;
//! - what does not go together is refused, and --dry-run says what each stage has.
//!
//! Cuts, contexts, schedules and their rehearsal are tested in `lib::plan`.

use crate::support::cases::{each, first};
use crate::support::digits::few_tests;
use crate::support::disturbed::disturbed;
use crate::support::gpu_job;
use crate::support::job::{self, job, run, series};
use crate::support::residual::residual;
use crate::support::scratch::Scratch;

use std::fs;

/// What a run left.
#[derive(Debug, PartialEq)]
struct Left {
    losses: Vec<f64>,
    hits: Vec<f64>,
    tests: Vec<f64>,
    weights: Vec<u8>,
}

fn train(scratch: &Scratch, ranks: usize, words: &str) -> Left {
    let ([results, weights], _) = scratch.train_to_files(ranks, words);
    let [losses, hits, tests] =
        ["steps/loss", "steps/accuracy", "epochs/test_loss"].map(|name| series(&results, name));
    assert!(losses.iter().chain(&tests).all(|loss| loss.is_finite()), "{words}: {losses:?} {tests:?}");
    Left { losses, hits, tests, weights: fs::read(weights).unwrap() }
}

/// Each network at least once as others meet it: dropout, batch normalisation with a way around, halves, clipping,
/// moving averages, shared statistics, images that are mixed, those that are made up. Sums over two ranks have one
/// order whatever the buckets.
#[test]
fn stages_have_the_bits_of_accumulation() {
    let scratch = Scratch::new();
    let digits = few_tests();
    let resnet = format!("{} --data synthetic:shapes:64 --steps 3", residual());
    let cases = [
        (format!("--model mnist_net --data {digits} --steps 6 --optimizer adam"), 1, 2, 4, 4, "1f1b"),
        (format!("{resnet} --optimizer adam --ema 0.9"), 1, 2, 4, 2, "interleaved:2"),
        (format!("--model mnist_small --data {digits} --steps 6"), 2, 2, 4, 4, "gpipe"),
        (format!("--model mnist_large --data {digits} --steps 4"), 1, 3, 1, 16, "1f1b"),
        ("--model mnist_small --steps 4".to_string(), 1, 2, 2, 4, "1f1b"),
        (format!("{resnet} --augment mixup"), 1, 3, 6, 2, "zb-h1"),
        (format!("{resnet} --sync-bn --augment mixup"), 2, 2, 2, 2, "1f1b"),
        (format!("{resnet} --freeze stem,0 --label-smoothing 0.1"), 1, 3, 4, 2, "gpipe"),
        (format!("--model mnist_large --data {digits} --steps 4 --precision bf16"), 1, 4, 8, 2, "1f1b"),
        (format!("--model mnist_small --data {digits} --steps 6"), 1, 3, 6, 2, "zb-h1"),
        (format!("{resnet} --optimizer lamb"), 1, 2, 6, 2, "interleaved:3"),
    ];
    for (words, data, stages, parts, images, schedule) in first(6, cases) {
        let words = format!("{words} --warmup 0 --threads 1");
        let plain = train(&scratch, data, &format!("{words} --batch {images} --accumulation {parts}"));
        let flags = format!(
            "--batch {} --pipeline {stages} --micro-batches {parts} --schedule {schedule}",
            images * parts
        );
        let cut = train(&scratch, data * stages, &format!("{words} {flags}"));
        assert!(cut.losses == plain.losses, "{words} {flags}: {:?} and {:?}", cut.losses, plain.losses);
        assert!((cut.hits, cut.tests) == (plain.hits, plain.tests), "{words} {flags}");
        assert!(cut.weights == plain.weights, "{words} {flags}: other weights");
    }
}

/// Of each stage activations are computed again, with other micro-batches in flight meanwhile: in one chunk or in two,
/// with statistics and dropout.
#[test]
fn what_is_computed_again_changes_no_bit() {
    let scratch = Scratch::new();
    let resnet = &format!("{} --data synthetic:shapes:64 --steps 3 --optimizer adam", residual());
    let cases = [
        (resnet, 1, 2, 4, 2, "gpipe"),
        (&format!("--model mnist_net --data {} --steps 4", few_tests()), 2, 2, 4, 4, "1f1b"),
        (resnet, 1, 2, 4, 2, "interleaved:2"),
        (&format!("{resnet} --precision bf16 --ema 0.9"), 1, 3, 4, 4, "1f1b"),
        (resnet, 1, 3, 3, 2, "gpipe --pipeline-cuts 1.0.around,2.1.second"),
    ];
    for (words, data, stages, parts, images, schedule) in first(3, cases) {
        let words = format!("{words} --warmup 0 --threads 1");
        let plain = train(&scratch, data, &format!("{words} --batch {images} --accumulation {parts}"));
        let flags = format!(
            "--batch {} --pipeline {stages} --micro-batches {parts} --schedule {schedule} --recompute",
            images * parts
        );
        let cut = train(&scratch, data * stages, &format!("{words} {flags}"));
        assert!(cut == plain, "{words} {flags}: {:?} and {:?}", cut.losses, plain.losses);
    }
}

/// Clipping adds the norms of stages, in place of those of buckets.
#[test]
fn a_norm_is_that_of_all_stages() {
    let scratch = Scratch::new();
    let words = format!(
        "--model mnist_large --data {} --steps 4 --warmup 0 --threads 1 --clip-norm 0.05",
        few_tests()
    );
    let free = words.replace("--clip-norm 0.05", "");
    for (data, stages, parts) in first(1, [(2, 2, 1), (1, 3, 2)]) {
        let plain = format!("--batch 4 --accumulation {parts}");
        let cut = format!("--batch {} --pipeline {stages} --micro-batches {parts}", 4 * parts);
        let free = train(&scratch, data, &format!("{free} {plain}"));
        let plain = train(&scratch, data, &format!("{words} {plain}"));
        assert_ne!(plain.losses, free.losses);
        let found = train(&scratch, data * stages, &format!("{words} {cut}"));
        for (found, plain) in found.losses.iter().zip(&plain.losses) {
            assert!((found - plain).abs() < 1e-6 * plain, "{cut}: {found} and {plain}");
        }
    }
}

#[test]
fn a_checkpoint_of_any_layout_resumes_in_any_other() {
    let scratch = Scratch::new();
    let words = format!(
        "{} --data synthetic:shapes:64 --warmup 0 --threads 1 --optimizer adam --ema 0.9",
        residual()
    );
    let plain = "--batch 2 --accumulation 4";
    let whole = train(&scratch, 1, &format!("{words} {plain} --steps 4"));
    let layouts = [
        (2, "--batch 8 --pipeline 2 --micro-batches 4"),
        (3, "--batch 8 --pipeline 3 --micro-batches 4 --schedule gpipe"),
        (1, plain),
    ];
    for (from, to) in [(0, 2), (2, 1), (1, 0)] {
        let directory = format!("DIR/c{from}{to}");
        let kept = format!("{words} --checkpoint {directory} --resume auto --results DIR/r{from}{to}.h5");
        for ((ranks, layout), steps) in [(layouts[from], 2), (layouts[to], 4)] {
            let flags = scratch.words(&format!(
                "{kept} {layout} --steps {steps} --save-weights DIR/w{from}{to}{steps}.safetensors"
            ));
            run(ranks, &flags.iter().map(String::as_str).collect::<Vec<_>>());
        }
        let losses = series(&scratch.path(&format!("r{from}{to}.h5")), "steps/loss");
        assert_eq!(losses, whole.losses, "{from} to {to}");
        let weights = fs::read(scratch.path(&format!("w{from}{to}4.safetensors"))).unwrap();
        assert!(weights == whole.weights, "{from} to {to}: other weights");
    }
}

#[test]
fn memory_is_as_planned() {
    let scratch = Scratch::new();
    let mut peaks = Vec::new();
    for (number, schedule) in ["gpipe", "1f1b", "gpipe --recompute"].into_iter().enumerate() {
        let results = scratch.path(&format!("{number}.h5"));
        let words = format!(
            "--model resnet18 --image-size 96 --batch 32 --pipeline 2 --pipeline-cuts layer2.0.conv1 --micro-batches 8 \
             --schedule {schedule} --steps 2 --warmup 0 --threads 1 --results {}",
            results.display()
        );
        run(2, &words.split_whitespace().collect::<Vec<_>>());
        job::within_plan(&results, &words).unwrap_or_else(|said| panic!("{schedule}: {said}"));
        let bytes = |name: &str| job::scalar(&results, &format!("summary/{name}")) as f64;
        peaks.push([bytes("planned_memory"), bytes("peak_memory")]);
    }
    // Eight micro-batches of four images in flight, or one in the second stage, which has most parameters and memory.
    let [planned, measured] = [0, 1].map(|which| peaks[0][which] - peaks[1][which]);
    assert!(planned > 20e6 && (measured - planned).abs() < 0.3 * planned, "{peaks:?}");
    // Of a micro-batch in flight less is there than of one that is not computed again.
    assert!((0..2).all(|which| peaks[2][which] < peaks[0][which] - 20e6), "{peaks:?}");
}

#[test]
fn gpus_come_to_the_same() {
    let mut results = gpu_job::Results::new();
    for (ranks, flags) in first(
        1,
        [
            (2, "--pipeline 2 --micro-batches 2 --clip-norm 0.05"),
            (4, "--mesh data=2,pipeline=2 --micro-batches 2 --schedule gpipe"),
        ],
    ) {
        let words = format!(
            "--model mnist_small --batch 4 --steps 4 --threads 1 --warmup 0 --optimizer sgd --lr 0.05 {flags}"
        );
        let on_cpu = results.losses(ranks, &format!("{words} --device cpu"));
        let on_gpu = results.losses(ranks, &format!("{words} --device cuda --precision f32"));
        gpu_job::close(&on_gpu, &on_cpu, flags);
    }
    // Updates that the ranks of a stage share: on GPUs also where they are on one node.
    let common = "--model mnist_net --batch 4 --steps 4 --threads 1 --warmup 0 --device cuda --precision f32 \
                  --optimizer adam --ema 0.9 --allreduce ring --mesh data=2,pipeline=2 --micro-batches 2";
    for rest in first(1, ["--schedule interleaved:2 --clip-norm 0.5", "--schedule zb-h1", "--schedule gpipe"])
    {
        let plain = results.losses(4, &format!("{common} {rest}"));
        assert_eq!(results.losses(4, &format!("{common} {rest} --zero 1")), plain, "{rest}");
    }
}

/// What stages wait for of each other.
const EDGE: &[&str] = &["edge"];

#[test]
fn a_stage_that_dies_ends_the_job_and_one_that_stops_is_named() {
    for signal in ["KILL", "STOP"] {
        disturbed(2, "--model mnist_small --batch 16 --pipeline 2 --micro-batches 4", 1, signal, 1.0, EDGE);
    }
}

/// What takes minutes: `make test-full`.
mod full {
    use super::*;
    use crate::support::disturbed::disturbed_often;
    use crate::support::exported::{Files, weights};
    use crate::support::networks::any_network;

    use dltrain::config::{MeshShape, PipelineSchedule};
    use dltrain::device::onednn::Cpu;
    use dltrain::device::reference::Reference;
    use dltrain::device::{Device, Rule};
    use dltrain::error::Result;
    use dltrain::graph::{Graph, NodeId};
    use dltrain::model;
    use dltrain::plan::{Compiled, Manner, Options, Stage, Stages};
    use dltrain::simulate::{Prices, rehearse, step_facts};
    use proptest::prelude::Strategy;
    use proptest::strategy::ValueTree;
    use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

    /// Each large model of the zoo in two stages has the bits of accumulation, and its memory is as planned.
    #[test]
    #[ignore = "minutes"]
    fn the_large_models_have_the_bits_of_accumulation() {
        for model in model::MODELS.iter().filter(|model| model.image[1] >= 224) {
            let (scratch, model) = (Scratch::new(), model.name());
            let size = if model == "inception_v3" { 299 } else { 64 };
            let words = format!("--model {model} --image-size {size} --warmup 0 --threads 1 --steps 2");
            let plain = train(&scratch, 1, &format!("{words} --batch 2 --accumulation 2"));
            let cut = format!("{words} --batch 4 --pipeline 2 --micro-batches 2");
            let results = scratch.path("cut.h5");
            let weights = scratch.path("cut.safetensors");
            let files = format!("--results {} --save-weights {}", results.display(), weights.display());
            run(2, &format!("{cut} {files}").split_whitespace().collect::<Vec<_>>());
            assert_eq!(series(&results, "steps/loss"), plain.losses, "{model}");
            assert!(fs::read(weights).unwrap() == plain.weights, "{model}: other weights");
            job::within_plan(&results, &cut).unwrap_or_else(|said| panic!("{model}: {said}"));
        }
    }

    /// Every large network of the zoo, eight of them as ONNX files, and three files of PyTorch's exporters, in two to
    /// five stages by every schedule, with one image a micro-batch (two where one has no variance) and with eight, in
    /// f32 and in bf16: stages have plans, and these rehearse.
    #[test]
    #[ignore = "minutes"]
    fn every_large_network_is_planned_in_stages() {
        let files = Files::new();
        let imported = "resnet18 densenet121 mobilenet_v3_large efficientnet_b0 shufflenet_v2_x1_0 convnext_tiny \
                        vit_b_16 swin_t";
        let imported = imported.split_whitespace().map(|name| {
            let model = model::find(name).unwrap();
            let build = |batch: usize| model.build_to_test(batch, model.image, model.classes);
            files.write_with(name, &build, (false, &|_, shape| vec![0.5; shape.iter().product()]));
            model::open(&files.path(&format!("{name}.onnx"))).unwrap()
        });
        // As PyTorch's own exporters write networks.
        let foreign = ["parts", "plain-2", "whole-2"].map(|name| {
            let place = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/onnx");
            model::open(&std::path::Path::new(place).join(format!("{name}.onnx"))).unwrap()
        });
        let zoo = model::MODELS.iter().filter(|model| model.image[1] >= 224).cloned();
        let (cpu, mut wrong) = (Cpu::new(1).unwrap(), Vec::new());
        for model in zoo.chain(imported).chain(foreign) {
            let build = |batch| model.build(batch, model.image, model.classes);
            for graph in [build(1).or_else(|_| build(2)), build(8)] {
                let graph = graph.unwrap().simplify();
                let batch = graph.batch();
                let halves = graph.clone().in_bf16().differentiate();
                // Without kernels for bf16 the reference's, of the ops that a CPU wants.
                let (device, halves): (&dyn Device, _) = match cpu.has_bf16() {
                    Ok(()) => (&cpu, halves),
                    Err(_) => (&Reference, halves.remake(cpu.remakes_from().unwrap()).fuse(cpu.op_fusions())),
                };
                let ways = [("f32", graph.differentiate(), &cpu as &dyn Device), ("bf16", halves, device)];
                for (precision, graph, device) in ways {
                    let what = format!("{} {precision}, micro-batches of {batch}", model.name());
                    let done = planned_in_stages(graph, device).unwrap_or_else(|e| panic!("{what}: {e}"));
                    println!("{what}: {done} of 20 ways");
                    if done != possible_ways(model.name()) {
                        wrong.push(format!("{what}: {done} ways, not {}", possible_ways(model.name())));
                    }
                }
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    const SCHEDULES: [PipelineSchedule; 5] = [
        PipelineSchedule::GPipe,
        PipelineSchedule::OneForwardOneBackward,
        PipelineSchedule::ZeroBubble,
        PipelineSchedule::Interleaved(2),
        PipelineSchedule::Interleaved(3),
    ];

    /// Ranks, with the schedule by which these are stages.
    fn ways() -> impl Iterator<Item = (usize, PipelineSchedule)> {
        (2..6).flat_map(|ranks| SCHEDULES.map(|schedule| (ranks, schedule)))
    }

    /// In how many of the 20 ways a network can be in stages: in all, but where it has fewer layers that learn than
    /// there are parts, up to 15.
    fn possible_ways(name: &str) -> usize {
        let layers = match name {
            "alexnet" => 8,
            "vgg11" => 11,
            "vgg13" | "parts" => 13,
            "plain-2" => 6,
            "whole-2" => 8,
            _ => 15,
        };
        ways().filter(|(ranks, schedule)| ranks * schedule.chunks() <= layers).count()
    }

    /// In how many ways a network is planned in stages.
    fn planned_in_stages(graph: Graph, device: &dyn Device) -> Result<usize> {
        let compiled = Compiled::for_stages(graph, device)?;
        let mut done = 0;
        for (ranks, schedule) in ways() {
            let found = planned(&compiled, device, ranks, schedule);
            done += usize::from(found.map_err(|e| e.context(format!("{ranks} stages, {schedule}")))?);
        }
        Ok(done)
    }

    /// Whether a network has as many places to cut it, and then that its stages' plans do what each other waits for.
    fn planned(
        compiled: &Compiled,
        device: &dyn Device,
        ranks: usize,
        schedule: PipelineSchedule,
    ) -> Result<bool> {
        let possible = compiled.possible_cuts()?;
        let whole = compiled.plan(device, &Options::whole(1 << 20))?;
        let nodes = whole.graph.nodes.len();
        let seconds: Vec<f64> =
            (0..nodes).map(|node| whole.graph.cost(NodeId(node)).flops as f64 * 1e-11).collect();
        let counts = [ranks, ranks * schedule.chunks()];
        if counts[1] > possible.len() + 1 {
            return Ok(false);
        }
        let stages = Stages::balanced(&whole.graph, &possible, counts, &seconds, [1e-5, 1e-9])?;
        let (mut scripts, mut facts) = (Vec::new(), Vec::new());
        for own in 0..ranks {
            let contexts = schedule.in_flight(own, ranks, 2 * ranks);
            let splits_weights = schedule.splits_weights();
            let stage = Stage { stages: &stages, own, contexts, splits_weights };
            let plan =
                compiled.plan(device, &Options { fusion_threshold: 1 << 20, training: None, stage })?;
            let mesh = MeshShape { data: 1, pipeline: ranks, tensor: 1 };
            let manner =
                Manner { mesh, stage: own, schedule, micro_steps: 2 * ranks, ..Manner::plain(vec![0]) };
            let rule = Rule::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 };
            scripts.extend(plan.scripts(&manner, &rule, 0..1));
            facts.push(step_facts(&plan, &vec![1e-3; plan.steps.len()]));
        }
        let facts: Vec<_> = facts.iter().map(Vec::as_slice).collect();
        rehearse(&scripts, &facts, &Prices { ..Prices::FREE }).map(|_| true)
    }

    /// Networks that are drawn, as files: trained in two and three stages by every schedule, and with what is computed
    /// again.
    #[test]
    #[ignore = "minutes"]
    fn drawn_networks_have_the_bits_of_accumulation() {
        let (scratch, files, cpu) = (Scratch::new(), Files::new(), Cpu::new(1).unwrap());
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[77; 32]);
        let mut runner = TestRunner::new_with_rng(Config::default(), rng);
        let ways = [
            (2, 1, "1f1b"),
            (3, 1, "zb-h1"),
            (2, 2, "interleaved:2"),
            (3, 1, "gpipe --recompute"),
            (2, 1, "1f1b --recompute"),
            (3, 2, "interleaved:2 --recompute"),
        ];
        let mut done = 0;
        for number in 0..24 {
            let drawn = any_network().new_tree(&mut runner).unwrap().current();
            if drawn.build(1, true).is_err() {
                continue;
            }
            files.write_with(&format!("{number}"), &|batch| drawn.build(batch, false), (false, &weights));
            let path = files.path(&format!("{number}.onnx"));
            let model = model::open(&path).unwrap();
            let graph = model.build(drawn.batch, model.image, model.classes).unwrap().simplify();
            let cuts =
                Compiled::for_stages(graph.differentiate(), &cpu).unwrap().possible_cuts().unwrap().len();
            let words = format!("--model {} --warmup 0 --threads 1 --steps 2", path.display());
            let plain = train(&scratch, 1, &format!("{words} --batch {} --accumulation 6", drawn.batch));
            for (ranks, chunks, schedule) in ways {
                if ranks * chunks > cuts + 1 {
                    continue;
                }
                let flags = format!(
                    "--batch {} --pipeline {ranks} --micro-batches 6 --schedule {schedule}",
                    6 * drawn.batch
                );
                let cut = train(&scratch, ranks, &format!("{words} {flags}"));
                assert!(cut == plain, "{drawn:?} {flags}: {:?} and {:?}", cut.losses, plain.losses);
                done += 1;
            }
        }
        println!("{done} runs in stages");
        assert!(done > 48, "{done}");
    }

    /// Nowhere in a schedule does the rest of the job wait for ever.
    #[test]
    #[ignore = "minutes"]
    fn a_stage_may_die_or_stop_at_fifty_moments() {
        let flags = ["gpipe", "1f1b", "zb-h1", "1f1b --micro-batches 1"]
            .map(|schedule| format!("--model mnist_large --batch 16 --pipeline 2 --schedule {schedule}"));
        disturbed_often(19, 50, &flags.each_ref().map(|flags| (2, flags.as_str())), EDGE);
    }
}

/// What stages take is the same where it is reckoned, and another where they run. Losses do not depend on cuts.
#[test]
fn stages_are_cut_by_what_was_measured() {
    let scratch = Scratch::new();
    let flags = "--model resnet18 --image-size 32 --batch 4 --pipeline 2 --micro-batches 2 --threads 1";
    let table = |more: &str| {
        let printed = run(2, &format!("{flags} --dry-run {more}").split_whitespace().collect::<Vec<_>>());
        printed.split_once("2 stages, ").expect("a table of stages").1.lines().take(4).collect::<String>()
    };
    assert_eq!(table(""), table(""));
    assert_ne!(table(""), table("--measure 2"));
    let steps = format!("{flags} --steps 2 --warmup 0 --seed 5");
    let [reckoned, measured] = ["", "--measure 1"].map(|more| train(&scratch, 2, &format!("{steps} {more}")));
    assert_eq!(reckoned, measured);
}

#[test]
fn what_does_not_go_together_is_refused() {
    let cases = [
        (2, "--pipeline 0", "--pipeline 0: must be at least 1"),
        (2, "--pipeline 2 --batch 8 --micro-batches 3", "--micro-batches 3: they do not divide --batch 8"),
        (2, "--pipeline 2 --accumulation 2", "are accumulated"),
        (2, "--pipeline 2 --batch 6 --micro-batches 3 --schedule interleaved:2", "3 is no multiple of 2"),
        (2, "--schedule gpipe", "add --pipeline S"),
        (2, "--pipeline 2 --pipeline-cuts fc1 --measure 1", "--measure: it is for"),
        (2, "--micro-batches 2", "add --pipeline S"),
        (2, "--pipeline 2 --pipeline-cuts fc1,fc2", "2 pieces begin with 1 layers"),
        (2, "--pipeline 2 --pipeline-cuts nowhere", "has no layer nowhere"),
        (2, "--pipeline 2 --freeze backbone", "has 1 layers that learn"),
        (2, "--pipeline 2 --pipeline-cuts fc2 --freeze fc2", "stage 1 has no layer that learns"),
        (4, "--pipeline 4", "which make no 4 stages"),
        (
            4,
            "--mesh data=2,pipeline=2 --sync-bn 4 --model resnet18",
            "--sync-bn 4: 2 ranks cannot be divided",
        ),
        (3, "--pipeline 2", "this job has 3 ranks; start a multiple of 2"),
        (2, "--mesh data=2,pipeline=2", "this job has 2 ranks; start 2 × 2"),
        (2, "--mesh data=2,depth=2", "depth is no axis"),
        (2, "--pipeline 2 --zero 2", "--zero 2 and --pipeline"),
        (2, "--pipeline 2 --sync root", "--sync root and --pipeline"),
        (2, "--pipeline 2 --local-steps 2", "and --pipeline"),
        (2, "--pipeline 2 --shards 2", "--shards and --pipeline"),
        (2, "--pipeline 2 --global-batch 64", "--global-batch and --pipeline"),
        (2, "--pipeline 2 --compress topk", "--compress and --pipeline"),
        (2, "--pipeline 2 --recompute --schedule zb-h1", "--recompute and --schedule zb-h1"),
        (2, "--pipeline 2 --max-batch 1GB", "--max-batch and --pipeline"),
        (2, "--pipeline 2 --schedule zb-v", "interleaved:V"),
    ];
    each(cases, |(ranks, flags, said)| {
        let flags: Vec<&str> =
            flags.split_whitespace().chain(["--model", "mnist_small", "--threads", "1"]).collect();
        let message = job::misused(ranks, &flags);
        assert!(message.contains(said), "{flags:?}: {message}");
    });
    let groups = "--model resnet18 --image-size 32 --threads 1 --mesh data=2,pipeline=2 --sync-bn 4";
    let message = job::misused(4, &groups.split_whitespace().collect::<Vec<_>>());
    assert!(message.contains("--sync-bn 4: 2 ranks cannot be divided into groups of 4"), "{message}");
}

#[test]
fn the_plan_says_what_each_stage_has() {
    let flags = "--model resnet18 --batch 16 --pipeline 3 --micro-batches 8 --threads 1 --dry-run --pipeline-cuts layer1.1.conv1,layer3.0.conv2";
    let said = run(3, &flags.split_whitespace().collect::<Vec<_>>());
    for wanted in [
        "3 stages, 8 micro-batches of 2 images, 1f1b: of a step a stage idles 20.0% at best",
        "conv1 … layer1.0.bn2",
        "layer1.1.conv1 … layer3.0.bn1",
        "layer3.0.conv2 … fc",
        "sends a step  seconds   idle",
        "rehearsed with 3 ranks: none waits for ever",
    ] {
        assert!(said.contains(wanted), "{wanted}: {said}");
    }
    // The share of a step in which a stage waits, as it was rehearsed: at least that of a pipeline that is even, in one
    // of the stages.
    let lines = said.lines().skip_while(|line| !line.contains("sends a step")).skip(1).take(3);
    let idle = |line: &str| line.rsplit(' ').next()?.strip_suffix('%')?.parse::<f64>().ok();
    let idle: Vec<f64> = lines.map(|line| idle(line).expect("a share")).collect();
    assert!(idle.iter().all(|&share| share < 100.0) && idle.iter().any(|&share| share >= 20.0), "{idle:?}");
    let job = job(&[(
        2,
        &["--model", "mnist_small", "--pipeline", "2", "--dry-run", "--script", "--threads", "1"],
    )]);
    let done = job::finish(job);
    assert!(done.stdout.contains("send to place 1 of arena"), "{}{}", done.stdout, done.stderr);
}
