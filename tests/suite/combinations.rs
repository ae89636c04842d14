//! Flags together: combinations drawn at random, each of which must end well, have the memory that its plan says, and
//! give the same bits again, in every step's loss and in the trained weights.
//!
//! `DLTRAIN_TEST_COMBINATION=17` runs number 17 alone, and says all that it printed;
//! `DLTRAIN_TEST_COMBINATIONS=SEED:COUNT` draws others.

use crate::support::arrays::emulator_flags;
use crate::support::job::{finish, job, series, within_plan};
use crate::support::residual::residual;
use dltrain::device::onednn::Cpu;
use dltrain::random::{Purpose, Stream, key};

/// Where drawing begins unless told.
const SEED: u64 = 16;

/// Models with the sizes of images that they take here (0: their own), whether they normalise over a batch, and the
/// layers that may be frozen.
const MODELS: [(&str, &[usize], bool, &str); 22] = [
    ("mnist_small", &[0], false, "conv1"),
    ("mnist_net", &[0], false, "conv1"),
    ("lenet5", &[0, 32], false, "conv1,conv2"),
    ("cifar_net", &[0], false, "conv1"),
    // `residual` of tests/support/residual.rs.
    ("residual", &[0], true, "stem"),
    // That of tests/support/arrays.rs, which learns from arrays.
    ("emulator", &[0], false, "0,2"),
    // From here on too large for the quick ones.
    ("resnet18", &[32, 48], true, "conv1,bn1,layer1"),
    ("mobilenet_v2", &[32], true, "features.0"),
    ("googlenet", &[32, 64], true, "conv1"),
    ("resnet50", &[32], true, "conv1,layer1.0"),
    ("densenet121", &[32], true, "features.conv0"),
    ("alexnet", &[63], false, "features.0"),
    ("vgg11_bn", &[32], true, "features.0"),
    ("inception_v3", &[0], true, "Conv2d_1a_3x3"),
    ("squeezenet1_1", &[32, 64], false, "features.0"),
    ("mobilenet_v3_large", &[32, 64], true, "features.0"),
    ("shufflenet_v2_x1_0", &[32, 64], true, "conv1"),
    ("efficientnet_b0", &[32, 64], true, "features.0"),
    ("regnet_y_400mf", &[32, 64], true, "stem"),
    ("convnext_tiny", &[32, 64], false, "features.0"),
    ("vit_b_16", &[32, 64], false, "conv_proj"),
    ("swin_t", &[32, 64], false, "features.0"),
];
/// The first ones, of which every third normalises.
const QUICK: [usize; 8] = [0, 1, 2, 3, 4, 4, 5, 5];

/// Draws one thing after the other.
struct Draw(Stream);

impl Draw {
    fn new(seed: u64, number: usize) -> Draw {
        Draw(Stream::new(key(seed, Purpose::Synthetic, number as u32)))
    }

    fn of<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.0.below(from.len() as u32) as usize]
    }

    /// True one time in so many.
    fn one_in(&mut self, times: u32) -> bool {
        self.0.below(times) == 0
    }

    /// Ranks and flags of a valid combination.
    fn combination(&mut self, models: &[usize], bf16: bool) -> (usize, String) {
        let ranks = self.of(&[1, 2, 2, 3, 4]);
        let (model, sizes, has_norm, layers) = MODELS[self.of(models)];
        // A normalisation over one pixel wants two images.
        let batch = if model == "inception_v3" { 2 } else { self.of(&[2, 3, 4, 7]) };
        let mut flags = format!("--model {model} --batch {batch} --lr 1e-4");
        let mut add = |flag: &str| {
            flags.push(' ');
            flags += flag;
        };
        match self.of(sizes) {
            0 => {}
            size => add(&format!("--image-size {size}")),
        }
        if model == "emulator" {
            add(&format!("--loader-threads {}", self.of(&[0, 0, 1, 2])));
        } else if !self.one_in(3) {
            add("--data synthetic:shapes:64");
            let augment =
                ["none", "imagenet", "cifar", "mixup", "cutmix", "flip,mixup,cutmix", "crop,jitter,cutout"];
            add(&format!("--augment {}", self.of(&augment)));
            add(&format!("--loader-threads {}", self.of(&[0, 0, 1, 2])));
        }
        if has_norm && self.one_in(2) {
            add(if ranks == 4 && self.one_in(2) { "--sync-bn=2" } else { "--sync-bn" });
        }
        // Normalisations over few numbers that are rounded so make gradients grow until none is finite: mobilenet_v2
        // with two images of 32² does so on the reference device too.
        if bf16 && self.one_in(4) && (batch >= 4 || !has_norm) {
            add("--precision bf16");
        }
        if self.one_in(3) {
            add("--recompute");
        }
        let optimizer =
            self.of(&["sgd", "sgd --nesterov", "adam", "adamw", "rmsprop", "rmsprop-tf", "lars", "lamb"]);
        add(&format!("--optimizer {optimizer}"));
        for (times, flag) in [
            (3, "--accumulation 2"),
            (4, "--clip-norm 0.5"),
            (4, "--ema 0.9"),
            (4, if model == "emulator" { "--weight area[h]" } else { "--label-smoothing 0.1" }),
            (4, "--no-overlap"),
            (6, "--freeze backbone"),
        ] {
            if self.one_in(times) {
                add(flag);
            }
        }
        if !flags.contains("--freeze") && self.one_in(6) {
            flags += &format!(" --freeze {layers}");
        }
        flags += &self.sums();
        // The state of large networks, with what each rank has not sent yet, fills the memory of a workstation.
        if self.one_in(3) && !(is_large(&flags) && flags.contains("--compress")) {
            flags += " --checkpoint kept --checkpoint-every 1steps";
        }
        flags += &self.strategy(ranks, batch, &flags);
        (ranks, flags)
    }

    /// Who updates what, where that goes with the other flags; and copies in memory.
    fn strategy(&mut self, ranks: usize, batch: usize, flags: &str) -> String {
        let has = |flag: &str| flags.contains(flag);
        let mut all = vec![String::new(), String::new()];
        if !has("--compress") && !has("--allreduce mpi") {
            all.push(" --zero 1".into());
            all.push(" --zero 2".into());
            // What is frozen is nobody's.
            all.extend((!has("--freeze")).then(|| " --zero 3".into()));
            if has("--allreduce auto") {
                all.extend([" --sync root".into(), " --sync server".into()]);
                // In the order of arrival no two runs are alike.
                let in_turns = " --sync server-async --async-order round-robin";
                all.extend(has("--wire f32").then(|| in_turns.into()));
            }
            let by_tree =
                has("--wire f32") && (has("--allreduce auto") || has("--allreduce recursive-doubling"));
            if by_tree && ranks.is_power_of_two() && !has("--accumulation") && !has("--sync-bn") {
                all.push(" --shards 4".into());
            }
        }
        if !has("--ema") && !has("--allreduce mpi") {
            let relaxed = ["--local-steps 2 --outer-momentum 0.5", "--sync easgd:1,0.5", "--sync bmuf:2"];
            all.extend(relaxed.map(|flag| format!(" {flag}")));
            let whole = !has("--compress") && !has("--wire bf16") && !has("--wire f16");
            all.extend(whole.then(|| " --sync gossip".into()));
        }
        if !has("--accumulation") {
            all.push(format!(" --global-batch {}", ranks * batch + 1));
        }
        let whole = ["--accumulation", "--compress", "--freeze"];
        if ranks.is_multiple_of(2) && !whole.into_iter().any(has) {
            // One image alone has no statistics where it is a pixel.
            let parts = if has("--sync-bn") || !has("--model mnist") { 1 } else { batch };
            all.push(format!(" --pipeline 2 --micro-batches {parts}"));
        }
        if ranks.is_multiple_of(2) {
            all.push(" --spatial 2".into());
            all.extend(
                (!has("--compress") && !has("--allreduce mpi")).then(|| " --spatial 2 --zero 1".into()),
            );
            let dense = ["mnist_net", "alexnet", "vgg"]
                .into_iter()
                .any(|name| flags.contains(&format!("--model {name}")));
            let whole = [
                "--sync-bn",
                "--compress",
                "--allreduce mpi",
                "--optimizer lars",
                "--optimizer lamb",
                "--freeze backbone",
            ];
            all.extend((dense && !whole.into_iter().any(has)).then(|| " --tensor 2".into()));
        }
        let mut chosen = all[self.0.below(all.len() as u32) as usize].clone();
        // A server computes nothing, and one rank is no group.
        if chosen.contains("server") && (ranks == 1 || has("--sync-bn")) {
            chosen.clear();
        }
        let may_commit = !is_large(flags)
            && !["server", "--pipeline", "--tensor"].into_iter().any(|flag| chosen.contains(flag));
        if has("--checkpoint") && may_commit && self.one_in(2) {
            chosen += " --commit 1";
        }
        chosen
    }

    /// How gradients are summed.
    fn sums(&mut self) -> String {
        let kinds = [
            "auto",
            "auto",
            "ring",
            "halving-doubling",
            "recursive-doubling",
            "torus",
            "hierarchical",
            "shm",
            "mpi",
        ];
        let kind = self.of(&kinds);
        let mut flags = format!(" --allreduce {kind}");
        if self.one_in(3) {
            let schemes = ["topk", "topk:0.5", "1bit", "2bit", "powersgd", "powersgd:4"];
            flags += &format!(" --compress {}", self.of(&schemes));
        } else if kind != "mpi" {
            flags += &format!(" --wire {}", self.of(&["f32", "f32", "bf16", "f16"]));
        }
        if self.one_in(2) {
            flags += &format!(" --fusion-threshold-mb {}", self.of(&["0", "0.1", "4"]));
        }
        flags
    }
}

/// Whether the network has more than 50 million parameters.
fn is_large(flags: &str) -> bool {
    ["alexnet", "vgg11_bn", "vit_b_16"].into_iter().any(|name| flags.contains(name))
}

/// What a run left.
#[derive(PartialEq)]
struct Left {
    losses: Vec<f64>,
    weights: Vec<u8>,
}

/// Runs two steps; what must hold of the memory is checked.
fn run(ranks: usize, flags: &str) -> Result<Left, String> {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let (results, weights) = (at("run.h5"), at("weights.safetensors"));
    let flags = flags.replace("--checkpoint kept", &format!("--checkpoint {}", at("kept").display()));
    let flags = flags.replace("--model residual ", &format!("{} ", residual()));
    let flags = flags.replace("--model emulator ", &format!("{} ", emulator_flags()));
    let mut all: Vec<&str> = flags.split_whitespace().collect();
    all.extend(["--steps", "2", "--warmup", "0", "--threads", "1"]);
    all.extend(["--results", results.to_str().unwrap(), "--save-weights", weights.to_str().unwrap()]);
    let done = finish(job(&[(ranks, &all)]));
    if !done.success {
        return Err(format!("failed:\n{}{}", done.stdout, done.stderr));
    }
    let losses = series(&results, "steps/loss");
    if losses.len() != 2 {
        return Err(format!("{} steps in the record", losses.len()));
    }
    within_plan(&results, &flags)?;
    Ok(Left { losses, weights: std::fs::read(&weights).map_err(|error| error.to_string())? })
}

/// Runs a combination twice. Some of the networks have gradients beyond f16 on images as small as these: then the run
/// must say what to take in its place, and that is checked.
fn check(ranks: usize, flags: &str) -> Result<(), String> {
    let first = match run(ranks, flags) {
        Err(what) if flags.contains("--wire f16") && what.contains("Try --wire bf16") => {
            return check(ranks, &flags.replace("--wire f16", "--wire bf16"));
        }
        first => first?,
    };
    let again = run(ranks, flags)?;
    match first == again {
        true => Ok(()),
        false if first.losses == again.losses => Err("other weights in the second run".into()),
        false => Err(format!("losses {:?}, then {:?}", first.losses, again.losses)),
    }
}

/// Draws and checks so many, and names all that fail.
fn combinations(count: usize, models: &[usize]) {
    let bf16 = Cpu::new(1).is_ok_and(|cpu| cpu.has_bf16().is_ok());
    if !bf16 {
        println!("SKIPPED: this CPU has no bf16 arithmetic");
    }
    let given = |name: &str| std::env::var(name).ok();
    let (seed, count) = match given("DLTRAIN_TEST_COMBINATIONS") {
        None => (SEED, count),
        Some(text) => {
            let (seed, count) = text.split_once(':').expect("DLTRAIN_TEST_COMBINATIONS=SEED:COUNT");
            (seed.parse().expect("a seed"), count.parse().expect("a count"))
        }
    };
    let only: Option<usize> =
        given("DLTRAIN_TEST_COMBINATION").map(|number| number.parse().expect("a number"));
    println!("{count} combinations of seed {seed}");
    let mut wrong = Vec::new();
    for number in (0..count).filter(|number| only.is_none_or(|only| only == *number)) {
        let (ranks, flags) = Draw::new(seed, number).combination(models, bf16);
        println!("{number}: -n {ranks} dltrain {flags}");
        if let Err(what) = check(ranks, &flags) {
            println!("   {what}");
            wrong.push(format!("{number}: -n {ranks} dltrain {flags}\n   {what}"));
        }
    }
    assert!(
        wrong.is_empty(),
        "seed {seed}, {} of {count} (DLTRAIN_TEST_COMBINATION=NUMBER runs one):\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[test]
fn eight_combinations_of_flags_work() {
    combinations(8, &QUICK);
}

mod full {
    #[test]
    #[ignore = "an hour; make test-full"]
    fn five_hundred_combinations_of_flags_work() {
        let all: Vec<usize> = (0..super::MODELS.len()).collect();
        super::combinations(500, &all);
    }
}
