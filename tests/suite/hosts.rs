//! Several hosts: ranks on different ones do not share memory, and a run gives the same numbers as on one.
//!
//! The hosts are namespaces of this machine (tests/support/hosts.sh), which takes root. Open MPI only: Debian's MPICH
//! 4.0.2 does not end in them.

use crate::support::cases::{first, full};
use crate::support::fake_cuda;
use crate::support::job;
use crate::support::residual::residual;
use crate::support::scratch::Scratch;

use std::process::{Command, Output, Stdio};
use std::time::Instant;

use dltrain::comm::{Family, MpiLibrary};
use job::{DLTRAIN, series};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/hosts.sh");
const DIGITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/data/digits");

/// Hosts that go when this goes, by a name for each test: several may have theirs at a time.
struct Hosts(&'static str);

impl Hosts {
    /// `None`, and said so, where there can be none.
    fn up(name: &'static str, count: usize) -> Option<Hosts> {
        if MpiLibrary::linked().family != Family::OpenMpi {
            println!("SKIPPED: this is a test with Open MPI");
            return None;
        }
        // What an earlier run may have left when it was killed.
        let hosts = Hosts(name);
        let _ = hosts.script().arg("down").output();
        let up = hosts.script().args(["up", &count.to_string()]).output().expect("the script starts");
        if !up.status.success() {
            println!("SKIPPED: no hosts here: {}", String::from_utf8_lossy(&up.stderr));
            return None;
        }
        Some(hosts)
    }

    fn script(&self) -> Command {
        let mut command = Command::new(SCRIPT);
        command.env("HOSTS_NAME", self.0);
        command
    }

    /// A job on hosts given as "h0:2,h1:2", started from the first.
    fn job(&self, slots: &str, flags: &[&str], variables: &[(&str, &str)]) -> Output {
        self.start(slots, &[&[DLTRAIN], flags].concat(), variables)
    }

    /// The same of any program.
    fn start(&self, slots: &str, program: &[&str], variables: &[(&str, &str)]) -> Output {
        let ranks: usize = slots.split([',', ':']).filter_map(|part| part.parse::<usize>().ok()).sum();
        let mut command = Command::new("timeout");
        command.env("HOSTS_NAME", self.0);
        let limit = job::limit().as_secs().to_string();
        command.args(["-k", "5", &limit, SCRIPT, "run", "h0"]).args(self.launcher(slots));
        variables.iter().for_each(|(name, _)| {
            command.args(["-x", name]);
        });
        command.envs(variables.iter().copied());
        command.args(["-n", &ranks.to_string()]).args(program).env("OMP_NUM_THREADS", "1");
        command.output().unwrap()
    }

    fn launcher(&self, slots: &str) -> Vec<String> {
        let agent = self.script().arg("agent").output().unwrap();
        let agent = String::from_utf8(agent.stdout).unwrap();
        let own = ["--mca", "plm", "rsh", "--mca", "plm_rsh_agent", agent.trim(), "-H", slots];
        [job::launcher(), own.map(String::from).to_vec()].concat()
    }

    fn run(&self, slots: &str, flags: &[&str]) -> String {
        self.run_with(slots, flags, &[])
    }

    fn run_with(&self, slots: &str, flags: &[&str], variables: &[(&str, &str)]) -> String {
        let done = self.job(slots, flags, variables);
        let text = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(
            done.status.success(),
            "{slots} {flags:?}\n{text}\n{}",
            String::from_utf8_lossy(&done.stderr)
        );
        text
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        let _ = self.script().arg("down").output();
    }
}

/// One test of what wants four: hosts take seconds.
#[test]
fn ranks_on_several_hosts_find_each_other_and_give_the_numbers_of_one_host() {
    let Some(hosts) = Hosts::up("dlt", 4) else { return };
    for (slots, nodes, algorithms) in [
        (
            "h0:1,h1:1",
            2,
            &["mpi", "ring", "halving-doubling", "recursive-doubling", "torus", "hierarchical"][..],
        ),
        ("h0:2,h1:2", 2, &["ring", "hierarchical"]),
        ("h0:1,h1:1,h2:1,h3:1", 4, &["ring", "hierarchical"]),
        ("h0:2,h1:2,h2:2,h3:2", 4, &["hierarchical"]),
        ("h0:2,h1:1", 2, &["ring", "torus"]),
    ] {
        let checked = ["bench", "allreduce", "--check-only", "--lengths", "0,1,1009,100003"];
        let names = algorithms.join(",");
        let flags = [&checked[..], &["--algorithm", &names]].concat();
        let printed = hosts.run(slots, &flags);
        assert!(printed.contains(&format!("on {nodes} node(s)")), "{slots}: {printed}");
        for name in algorithms {
            let right = printed.lines().filter(|line| line.contains(name) && line.trim_end().ends_with(" 0"));
            assert_eq!(right.count(), 4, "{slots} {name}: {printed}");
        }
    }
    a_slow_link_is_named(&hosts);
    a_commit_outlives_a_node(&hosts);
    let refused = hosts.job("h0:2,h1:1", &["--allreduce", "hierarchical", "--steps", "1"], &[]);
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && message.matches("error: ").count() == 1, "{message}");
    assert!(message.contains("as many ranks on every node"), "{message}");
    halves_and_groups(&hosts);
    trains_alike(&hosts);
    groups_train_alike(&hosts);
    gpus_train_alike(&hosts);
    owners_train_alike(&hosts);
}

/// A run on one host owns its files for those on others, too, until it is dead there; of two that start together one
/// has them.
#[test]
fn files_have_one_owner() {
    let Some(hosts) = Hosts::up("dlo", 2) else { return };
    let scratch = Scratch::new();
    let path = |name: &str, what: &str| scratch.path(&format!("{name}.{what}"));
    let run = |host: &str, steps: &str, name: &str| {
        let (checkpoints, results) = (path(name, "kept"), path(name, "h5"));
        let mut command = hosts.script();
        command.args(["run", host, DLTRAIN, "--model", "mnist_net", "--batch", "4", "--threads", "1"]);
        command.args(["--resume", "auto", "--warmup", "0", "--steps", steps]);
        command.arg("--checkpoint").arg(checkpoints).arg("--results").arg(results);
        command.env("OMP_NUM_THREADS", "1").stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let mut first = run("h0", "1000000", "a").spawn().unwrap();
    let begun = Instant::now();
    while !path("a", "h5").exists() {
        assert!(begun.elapsed() < job::SECONDS && first.try_wait().unwrap().is_none());
    }
    let second = run("h1", "30", "a").output().unwrap();
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    let named = format!("another run is at work on it: process {} on h0, since 20", first.id());
    assert!(second.status.code() == Some(8) && said.contains(&named), "{said}");
    first.kill().unwrap();
    first.wait().unwrap();
    // It takes half a minute to tell.
    if full() {
        let third = run("h1", "30", "a").output().unwrap();
        let said = String::from_utf8_lossy(&third.stderr).into_owned();
        assert!(third.status.success() && said.contains("taken over after 30 s without one"), "{said}");
        assert_eq!(series(&path("a", "h5"), "steps/step").len(), 30);
    }
    // Begun together, each of both as often first.
    for (name, order) in [("b", ["h0", "h1"]), ("c", ["h1", "h0"])] {
        let mut both = order.map(|host| (host, run(host, "1000000", name).spawn().unwrap()));
        let begun = Instant::now();
        let refused = loop {
            assert!(begun.elapsed() < job::SECONDS, "both run");
            if let Some(at) = both.iter_mut().position(|(_, job)| job.try_wait().unwrap().is_some()) {
                break at;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        };
        let [first, second] = both;
        let (mut owner, other) = if refused == 0 { (second, first) } else { (first, second) };
        let runs = owner.1.try_wait().unwrap().is_none();
        let id = owner.1.id();
        let _ = owner.1.kill();
        owner.1.wait().unwrap();
        let done = other.1.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        let named = format!("another run is at work on it: process {id} on {}, since 20", owner.0);
        assert!(runs && done.status.code() == Some(8) && said.contains(&named), "{}: {said}", other.0);
    }
}

/// A host that sends slower than the others: by the measurement of a pair that has it, and by a run that was predicted
/// by others.
fn a_slow_link_is_named(hosts: &Hosts) {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let shape = |what: &[&str]| {
        let tc = [&["-n", "dlt-h1", "qdisc", what[0], "dev", "eth0", "root"], &what[1..]].concat();
        assert!(Command::new("tc").args(tc).status().unwrap().success());
    };
    let tune = |slots: &str, to: &str| {
        let flags = ["bench", "autotune", "--sizes", "4K", "--output", to];
        let done = hosts.job(slots, &flags, &[]);
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        [done.stdout, done.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat()
    };
    // Slower than what a busy machine makes of the others.
    shape(&["add", "tbf", "rate", "5mbit", "burst", "32kb", "latency", "400ms"]);
    let said = tune("h0:1,h1:1", &path("slow.json"));
    assert!(said.contains("h0 sends to h1 at") && said.contains("GB/s one way and 0.00"), "{said}");
    let predict = ["--model", "mnist_small", "--batch", "4", "--dry-run", "--predict-nodes", "2", "--tuning"];
    // Of the same processor and library, on one host.
    let predicted = hosts.run("h0:1", &[&predict[..], &[&path("slow.json")]].concat());
    assert!(predicted.contains("in doubt: h0 sends to h1"), "{predicted}");
    // By the built-in figures, of other links.
    let train = ["--model", "mnist_small", "--batch", "1", "--steps", "5", "--warmup", "0", "--results"];
    let results = path("run.h5");
    let flags = [&train[..], &[&results]].concat();
    let done = hosts.job("h0:1,h1:1,h2:1", &flags, &[]);
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "{said}");
    assert!(said.contains("times what was predicted") && said.contains("messages of h1 come at"), "{said}");
    shape(&["del"]);
}

/// A host is lost with its launcher's daemon: the job goes on without it, and with it again once it is back.
#[test]
fn elastic_outlives_a_host() {
    let Some(hosts) = Hosts::up("dle", 2) else { return };
    let scratch = Scratch::new();
    let hosts_do = |words: [&str; 2]| assert!(hosts.script().args(words).status().unwrap().success());
    let words =
        format!("--model mnist_small --data {DIGITS} --batch 16 --threads 1 --epochs 100000 --stall-abort 5");
    let words = format!("{words} --results DIR/a.h5 --checkpoint DIR/c --checkpoint-every 10steps");
    let mut command = hosts.script();
    command.args(["run", "h0", DLTRAIN]);
    let launcher = hosts.launcher("h0:1,h1:1");
    let mut elastic = scratch.spawn(command, "--min-ranks 1 --poll 0.3", &launcher, DLTRAIN, &words);
    let mut further = |said: &str| {
        elastic.hear(said, 1);
        let before = scratch.checkpoints();
        elastic.wait("got further", || scratch.checkpoints() > before + 30);
    };
    further("starts 2 ranks on h0:1,h1:1");
    hosts_do(["crash", "h1"]);
    further("restart 1: 1 rank on h0:1, ");
    hosts_do(["back", "h1"]);
    further("restart 2: 2 ranks on h0:1,h1:1, ");
    elastic.signal("-TERM");
    let (code, err) = elastic.end();
    assert!(code == 75 && err.contains("h1 does not answer") && err.contains("h1 is back"), "{err}");
    let steps = series(&scratch.path("a.h5"), "steps/step");
    assert!(steps.iter().enumerate().all(|(row, &step)| step == row as f64) && steps.len() > 90, "{steps:?}");
}

/// Reduce-scatter and allgather between nodes, and groups across them: the scenes of `collectives`.
fn halves_and_groups(hosts: &Hosts) {
    for bench in ["reducescatter", "allgather"] {
        let flags = [
            "bench",
            bench,
            "--check-only",
            "--lengths",
            "0,1,1009,100003",
            "--algorithm",
            "ring,hierarchical",
        ];
        let printed = hosts.run("h0:2,h1:2,h2:2", &flags);
        let right =
            printed.lines().filter(|line| line.contains("hierarchical") && line.trim_end().ends_with(" 0"));
        assert_eq!(right.count(), 4, "{bench}: {printed}");
    }
    let this = std::env::current_exe().unwrap();
    let scene = ["--ignored", "--exact", "collectives::scene", "--nocapture", "--test-threads=1"];
    let program = [&[this.to_str().unwrap()], &scene[..]].concat();
    for (slots, name) in [("h0:2,h1:2,h2:2", "cuts"), ("h0:1,h1:1,h2:1", "cuts"), ("h0:2,h1:2", "groups")] {
        let done = hosts.start(slots, &program, &[("DLTRAIN_SCENE", name)]);
        let text = String::from_utf8_lossy(&done.stdout) + String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success() && text.contains("running 1 test"), "{slots} {name}: {text}");
    }
}

/// The ring adds in the same order wherever the ranks are: the same bits. Two levels add in another order.
fn trains_alike(hosts: &Hosts) {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name).to_str().unwrap().to_string();
    let run = |slots: &str, allreduce: &str, file: &str| {
        // Cut by costs, buckets would depend on where the ranks are. It takes some steps until the last bit of a
        // gradient shows in a loss.
        let flags =
            ["--data", DIGITS, "--batch", "16", "--steps", "40", "--threads", "1", "--optimizer", "sgd"];
        let flags = [&flags[..], &["--fusion-threshold-mb", "1"]].concat();
        hosts.run(slots, &[&flags[..], &["--allreduce", allreduce, "--results", file]].concat());
        series(std::path::Path::new(file), "steps/loss")
    };
    let one = run("h0:4", "ring", &file("one.h5"));
    assert_eq!(run("h0:2,h1:2", "ring", &file("two.h5")), one);
    let levels = run("h0:2,h1:2", "auto", &file("levels.h5"));
    assert!(one.len() == 40 && levels != one, "auto is the ring, or the order does not show");
    for (a, b) in levels.iter().zip(&one) {
        assert!((a - b).abs() < 1e-4 * b, "{levels:?} and {one:?}");
    }
    let used = hdf5::File::open(file("levels.h5")).unwrap();
    let used = used.dataset("config/bucket_allreduce").unwrap();
    let used = used.read_raw::<hdf5::types::VarLenUnicode>().unwrap();
    // On two nodes of two ranks these are the same idea.
    assert!(["hierarchical", "torus"].contains(&used[0].as_str()), "{used:?}");
}

/// Ranks that have the same images, or parts of the same layers, within a host, across hosts, and both in one job: what
/// they tell each other is in the order of ranks wherever these are, and so are sums along a ring.
fn groups_train_alike(hosts: &Hosts) {
    let directory = tempfile::tempdir().unwrap();
    let run = |slots: &str, words: &str| {
        let number = std::fs::read_dir(directory.path()).unwrap().count();
        let file = |kind: &str| directory.path().join(format!("run{number}.{kind}"));
        let [results, weights] = ["h5", "safetensors"].map(file);
        let words = format!(
            "{words} --steps 3 --warmup 0 --threads 1 --lr 0.01 --allreduce ring --fusion-threshold-mb 0.1 \
             --results {} --save-weights {}",
            results.display(),
            weights.display()
        );
        hosts.run(slots, &words.split_whitespace().collect::<Vec<_>>());
        (series(&results, "steps/loss"), std::fs::read(weights).unwrap())
    };
    let resnet = format!("{} --batch 2 --accumulation 2 --zero 1", residual());
    for (one, many, words) in [
        ("h0:2", "h0:1,h1:1", "--model mnist_small --batch 4 --spatial 2"),
        // Groups with two ranks on one host and the third on another.
        ("h0:6", "h0:2,h1:2,h2:2", &format!("{resnet} --spatial 3")),
        // All groups across hosts.
        ("h0:4", "h0:1,h1:2,h2:1", &format!("{resnet} --spatial 2 --sync-bn")),
        ("h0:4", "h0:1,h1:2,h2:1", "--model mnist_net --batch 2 --tensor 2 --clip-norm 0.5"),
    ] {
        let (one, many) = (run(one, words), run(many, words));
        assert!(one == many, "{words}: {:?} and {:?}", many.0, one.0);
    }
}

/// GPUs that add up in each other's memory, with rings of their segments between the hosts, in several pieces: the same
/// sums as the hosts' own memory gives in the same way, to the bit.
fn gpus_train_alike(hosts: &Hosts) {
    let directory = tempfile::tempdir().unwrap();
    let libraries = fake_cuda::libraries().to_str().unwrap();
    for (model, wire) in first(2, [("mnist_large", "f32"), ("mnist_net", "bf16"), ("mnist_net", "f32")]) {
        let run = |allreduce: &str| {
            let file = directory.path().join(format!("{model}-{wire}-{allreduce}.h5"));
            let flags = format!(
                "--model {model} --batch 1 --steps 2 --warmup 0 --threads 1 --optimizer sgd --device cuda --wire {wire} \
                 --allreduce {allreduce} --fusion-threshold-mb 64 --results {}",
                file.display()
            );
            let flags: Vec<&str> = flags.split_whitespace().collect();
            let cache = directory.path().join("cudnn");
            let variables = [
                ("DLTRAIN_CUDA_PATH", libraries),
                ("DLTRAIN_CUDNN_CACHE", cache.to_str().unwrap()),
                ("DLTRAIN_CUDNN_FUSION", "1"),
            ];
            let printed = hosts.run_with("h0:2,h1:2", &flags, &variables);
            (series(&file, "steps/loss"), printed)
        };
        let (staged, _) = run("hierarchical");
        let (reached, printed) = run("auto");
        assert_eq!(reached, staged, "{model}, {wire}");
        assert!(printed.contains(" ipc,"), "{printed}");
    }
}

/// With `--zero 1` the two ranks of each stage, on hosts of their own, have half of its optimizer state: the bits of
/// accumulation, and a checkpoint that goes on where the network is whole.
fn stages_share_their_updates(
    directory: &tempfile::TempDir,
    run: impl Fn(&str, &str, &str) -> (Vec<f64>, Vec<u8>),
) {
    let common = "--model mnist_small --warmup 0 --threads 1 --fusion-threshold-mb 0.01 --optimizer adam --ema 0.9 \
                  --steps 4 --allreduce ring";
    let kept = directory.path().join("stages");
    let keep = format!("--checkpoint {} --checkpoint-every 2steps --checkpoint-keep 9", kept.display());
    for (schedule, clip) in [("1f1b", ""), ("gpipe", "--clip-norm 0.5")] {
        let cut = format!("{common} {clip} --batch 8 --pipeline 2 --micro-batches 2 --schedule {schedule}");
        let whole = format!("{common} {clip} --batch 4 --accumulation 2");
        let four = "h0:1,h1:1,h2:1,h3:1";
        let plain = run(four, &format!("{schedule}-plain"), &cut);
        let zero = run(four, &format!("{schedule}-zero"), &format!("{cut} --zero 1 {keep}"));
        assert!(zero == plain, "{schedule}: {:?} and {:?}", zero.0, plain.0);
        if clip.is_empty() {
            let two = run("h0:1,h1:1", "stages-whole", &whole);
            assert!(zero == two, "{schedule}: {:?} and {:?}", zero.0, two.0);
            let resume = format!("--resume {}/step-00000002.h5", kept.display());
            let rest = run("h0:1,h1:1", "stages-rest", &format!("{whole} {resume}"));
            assert!(rest.0 == two.0[2..] && rest.1 == two.1, "{:?}", rest.0);
        }
        std::fs::remove_dir_all(&kept).unwrap();
    }
}

/// Whoever updates what, and whoever keeps gradients and parameters: the same losses and weights to the bit, a
/// checkpoint of any goes on with any other, and ZeRO has less memory, as planned.
fn owners_train_alike(hosts: &Hosts) {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().to_str().unwrap();
    let common = "--model mnist_small --batch 4 --warmup 0 --threads 1 --fusion-threshold-mb 0.01 --optimizer adam \
                  --clip-norm 0.5 --ema 0.9";
    let run = |slots: &str, name: &str, words: &str| {
        let words = format!("{words} --results {place}/{name}.h5 --save-weights {place}/{name}.safetensors");
        hosts.run(slots, &words.split_whitespace().collect::<Vec<_>>());
        let [results, weights] =
            ["h5", "safetensors"].map(|kind| directory.path().join(format!("{name}.{kind}")));
        (series(&results, "steps/loss"), std::fs::read(weights).unwrap())
    };
    let places = [
        ("h0:1,h1:1,h2:1", "ring"),
        ("h0:2,h1:2", "hierarchical"),
        ("h0:2,h1:1", "ring"),
        ("h0:2,h1:2", "ring"),
    ];
    for (slots, allreduce) in first(3, places) {
        let name = |kind: &str| format!("{kind}-{}-{allreduce}", slots.replace([':', ','], ""));
        let words = format!("{common} --steps 4 --allreduce {allreduce}");
        let plain = run(slots, &name("plain"), &words);
        let keep =
            format!("--checkpoint {place}/{} --checkpoint-every 2steps --checkpoint-keep 9", name("c"));
        let zero = run(slots, &name("zero"), &format!("{words} --zero 1 {keep}"));
        assert!(zero == plain, "{slots} {allreduce}: {:?} and {:?}", zero.0, plain.0);
        let resume = format!("--resume {place}/{}/step-00000002.h5", name("c"));
        let rest = run(slots, &name("rest"), &format!("{words} {resume}"));
        assert!(rest.0 == plain.0[2..] && rest.1 == plain.1, "{slots} {allreduce}: {:?}", rest.0);
        // The checkpoint of each goes on with the next.
        for (stage, next) in [("2", "3"), ("3", "0")] {
            let kept = format!("{}-{stage}", name("c"));
            let keep = keep.replace(&name("c"), &kept);
            let zero = run(slots, &name(stage), &format!("{words} --zero {stage} {keep}"));
            assert!(zero == plain, "{slots} {allreduce} --zero {stage}: {:?} and {:?}", zero.0, plain.0);
            let resume = format!("--zero {next} --resume {place}/{kept}/step-00000002.h5");
            let rest = run(slots, &format!("{}-{next}", name("rest")), &format!("{words} {resume}"));
            assert!(rest.0 == plain.0[2..] && rest.1 == plain.1, "{slots} --zero {stage}, then {next}");
        }
    }
    // Updates in the backward pass; sums over micro-steps; an evaluation, which wants all parameters.
    let others = [
        ("h0:1,h1:1,h2:1,h3:1", "--optimizer lamb --ema 0.9 --allreduce ring"),
        ("h0:2,h1:2", "--optimizer adam --allreduce hierarchical --accumulation 2"),
        ("h0:1,h1:1", &format!("--optimizer adam --ema 0.5 --data {DIGITS} --repeat-data 1 --epochs 1")),
        ("h0:1,h1:1", "--optimizer sgd --no-overlap --recompute --wire bf16 --allreduce ring"),
    ];
    for (number, (slots, words)) in others.into_iter().enumerate() {
        let short = "--model mnist_small --batch 4 --warmup 0 --threads 1 --fusion-threshold-mb 0.01";
        let words = format!("{short} --steps 3 {words}");
        let plain = run(slots, &format!("other{number}"), &words);
        for stage in ["2", "3"] {
            let zero = run(slots, &format!("other{number}-{stage}"), &format!("{words} --zero {stage}"));
            assert!(zero == plain, "{slots} {words} --zero {stage}: {:?} and {:?}", zero.0, plain.0);
        }
    }
    stages_share_their_updates(&directory, run);
    let central =
        |slots: &str, name: &str, flags: &str| run(slots, name, &format!("{common} --steps 4 {flags}"));
    let plain = central("h0:3", "shm", "--allreduce shm");
    assert!(central("h0:1,h1:1,h2:1", "root", "--sync root") == plain, "--sync root");
    assert!(central("h0:1,h1:1,h2:1,h3:1", "server", "--sync server") == plain, "--sync server");
    let alone = central("h0:1", "alone", "");
    assert!(central("h0:1,h1:1,h2:1", "async", "--sync server-async:2") == alone, "--sync server-async:2");
    let peak = |name: &str, flags: &str| {
        let results = format!("{place}/{name}.h5");
        let words = format!(
            "--model mnist_large --image-size 64 --batch 2 --steps 2 --warmup 0 --threads 1 --optimizer adam --ema 0.9 \
             --allreduce ring {flags} --results {results}"
        );
        hosts.run("h0:1,h1:1", &words.split_whitespace().collect::<Vec<_>>());
        job::within_plan(results.as_ref(), &words).unwrap_or_else(|said| panic!("{flags}: {said}"));
        job::scalar(results.as_ref(), "summary/peak_memory")
    };
    let (plain, zero) = (peak("peak", ""), peak("peak-zero", "--zero 1"));
    // Of three copies of 74 MB, two states and an average, half is on the other host; parameters travel in place.
    assert!(plain > zero + 100_000_000, "{plain} and {zero} bytes");
    // And half of the parameters, 37 MB. Of gradients little is saved here: 67 MB are those of one layer.
    let all = peak("peak-all", "--zero 3");
    assert!(zero > all + 30_000_000, "{zero} and {all} bytes");
}

/// The zoo's large models, of which no rank has all parameters: the losses of plain runs, and the memory of the plan.
/// Of vgg16 that is much less: with Adam four copies of 553 MB become three halves, and room for the largest layer,
/// which has 411 MB of them.
#[test]
fn large_models_gather() {
    if !full() {
        return println!("SKIPPED: left to make test-full");
    }
    let Some(hosts) = Hosts::up("dlg", 2) else { return };
    let directory = tempfile::tempdir().unwrap();
    let names = "vgg16 alexnet vgg11 vgg13 vgg19 vgg11_bn vgg13_bn vgg16_bn vgg19_bn resnet18 resnet34 resnet50 \
                 resnet101 resnet152 googlenet inception_v3 densenet121 mobilenet_v2 convnext_tiny vit_b_16 swin_t";
    for model in names.split_whitespace() {
        let size = match model {
            "vit_b_16" | "swin_t" => 224,
            "inception_v3" => 299,
            _ => 64,
        };
        let [plain, zero] = ["", "--zero 3"].map(|flags| {
            let results = directory.path().join(format!("{model}{}.h5", flags.len()));
            let words = format!(
                "--model {model} --image-size {size} --batch 2 --steps 2 --warmup 0 --threads 1 --optimizer adam \
                 {flags} --results {}",
                results.display()
            );
            // What Open MPI has for each message that is under way over TCP, 64 KB, is in no plan: here less of it.
            let eager = [("OMPI_MCA_btl_tcp_eager_limit", "8192")];
            hosts.run_with("h0:1,h1:1", &words.split_whitespace().collect::<Vec<_>>(), &eager);
            job::within_plan(&results, &words).unwrap_or_else(|said| panic!("{words}: {said}"));
            (series(&results, "steps/loss"), job::scalar(&results, "summary/peak_memory"))
        });
        assert_eq!(zero.0, plain.0, "{model}");
        assert!(zero.1 < plain.1, "{model}: {} of {} bytes", zero.1, plain.1);
        assert!(model != "vgg16" || zero.1 + 750_000_000 < plain.1, "{} of {} bytes", zero.1, plain.1);
    }
}

/// What a node has committed outlives the other one's memory: state that is shared by ZeRO-1 is on both.
fn a_commit_outlives_a_node(hosts: &Hosts) {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    let on = |host: &str, command: &str| {
        let output = hosts.script().args(["run", host, "sh", "-c", command]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let common =
        "--model mnist_small --batch 8 --threads 1 --optimizer adam --ema 0.9 --zero 1 --warmup 0 --commit 4";
    let flags = |rest: &str| -> Vec<String> {
        let all = format!("{common} --checkpoint {} --resume auto --results {} {rest}", at("c"), at("r.h5"));
        all.split_whitespace().map(String::from).collect()
    };
    let kept = |host: &str| -> u64 {
        let names = on(host, "ls /dev/shm/dltrain-commit-*");
        let step = |name: &str| name.strip_prefix("step-")?.strip_suffix(".h5")?.parse().ok();
        names.lines().filter_map(step).max().unwrap_or(0)
    };
    let long = flags("--steps 1000000");
    let words: Vec<&str> = long.iter().map(String::as_str).collect();
    std::thread::scope(|scope| {
        let job = scope.spawn(|| hosts.job("h0:1,h1:1", &words, &[]));
        while kept("h0").min(kept("h1")) < 8 {
            assert!(!job.is_finished(), "{}", String::from_utf8_lossy(&job.join().unwrap().stderr));
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let _ = Command::new("pkill").args(["-9", "-f", &format!("^{DLTRAIN}.*{}", at("c"))]).status();
    });
    // The host of rank 0 comes back with nothing in memory.
    on("h0", "rm -r /dev/shm/dltrain-commit-*");
    let done = kept("h1");
    let more = flags(&format!("--steps {}", done + 6));
    let said = hosts.run("h0:1,h1:1", &more.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(
        said.contains(&format!("going on after step {done}, in epoch 1, from the memory of h1")),
        "{said}"
    );
    assert_eq!(on("h0", "ls /dev/shm") + &on("h1", "ls /dev/shm"), "", "the end leaves nothing");
    let whole = format!("{common} --steps {} --results {}", done + 6, at("whole.h5"));
    hosts.run("h0:1,h1:1", &whole.replace("--commit 4", "").split_whitespace().collect::<Vec<_>>());
    let [whole, rest] = ["whole.h5", "r.h5"].map(|name| series(at(name).as_ref(), "steps/loss"));
    assert_eq!(whole, rest);
}
