//! What is predicted of other nodes, and the traces of it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::cases::first;
use crate::support::job::{DLTRAIN, finish, job, refused, run, start};

const FLAT: &str = "name = \"test\"\nlatency_us = 20.0\nhop_us = 2.0\ngb_per_s = 2.0\nlinks_a_node = 1\ntopology = \"flat\"\n";

fn network(directory: &Path, text: &str) -> String {
    let path = directory.join("network.toml");
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_string()
}

/// A row of the table, by its number of nodes: ranks, ms of a step, images/s, efficiency in percent, ms exposed.
fn rows(printed: &str) -> HashMap<usize, [f64; 5]> {
    let table = printed.split_once("   nodes   ranks").expect("a table").1;
    let row = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| words.get(at)?.trim_end_matches('%').parse::<f64>().ok();
        let figures = [number(1)?, number(2)?, number(4)?, number(5)?, number(6)?];
        Some((number(0)? as usize, figures))
    };
    table.lines().skip(1).map_while(row).collect()
}

/// Milliseconds of a step that a rehearsal of the ranks that are there has found.
fn rehearsed(printed: &str) -> f64 {
    let said = printed.split_once("; expected ").expect("a step that was rehearsed").1;
    said.split_once(" ms a step").expect("milliseconds").0.parse().unwrap()
}

/// What is predicted of the ranks that are there is what their own rehearsal says: groups that share layers, images or
/// statistics among them.
#[test]
fn of_the_same_ranks_the_same_is_predicted_as_rehearsed() {
    let base = ["--batch", "8", "--threads", "1", "--dry-run"];
    for flags in first(
        3,
        [
            "--model alexnet --image-size 67 --tensor 2",
            "--model squeezenet1_1 --image-size 66 --spatial 2",
            "--model resnet18 --image-size 64 --sync-bn 2",
            "--model mnist_small --spatial 4 --accumulation 2 --zero 1",
            "--model alexnet --image-size 67 --mesh data=1,tensor=4 --clip-norm 1",
            "--model resnet18 --image-size 64 --spatial 2 --sync-bn --recompute",
        ],
    ) {
        let flags: Vec<&str> = flags.split(' ').chain(base).collect();
        let here = rehearsed(&run(4, &flags));
        let printed = run(4, &[&flags[..], &["--predict-nodes", "1"]].concat());
        let [ranks, step, ..] = rows(&printed)[&1];
        assert_eq!(ranks, 4.0);
        // Printed with three digits behind the point.
        assert!((step / here - 1.0).abs() < 1e-4, "{flags:?}: {step} predicted, {here} rehearsed");
    }
}

/// Figures are of ranks that had a core each; two ranks that share one have half of them.
#[test]
fn ranks_that_share_cores_have_their_share_of_what_was_measured() {
    let directory = tempfile::tempdir().unwrap();
    let tuning = directory.path().join("tuning.json").display().to_string();
    run(1, &["bench", "autotune", "--sizes", "4K", "--output", &tuning]);
    let core = dltrain::host::within_reach()[0].to_string();
    let on_one_core = |ranks: usize| {
        let whole = start(ranks, &[DLTRAIN]);
        let mut command = Command::new("taskset");
        command.args(["-c", &core]).arg(whole.get_program()).args(whole.get_args());
        let flags = "--model mnist_large --batch 8 --threads 1 --dry-run --predict-nodes 1 --tuning";
        command.args(flags.split(' ')).arg(&tuning);
        let done = finish(command);
        assert!(done.success, "{}", done.stderr);
        done.stdout
    };
    // Milliseconds in which a rank computes.
    let computes = |printed: &str| {
        let [_, step, _, _, exposed] = rows(printed)[&1];
        step - exposed
    };
    let [alone, two] = [1, 2].map(on_one_core);
    assert!(
        two.contains(", times 0.50 since ranks share cores here") && !alone.contains("share cores"),
        "{two}"
    );
    // Near 2: two ranks also send to each other, in part while they compute.
    let ratio = computes(&two) / computes(&alone);
    assert!((1.5..2.1).contains(&ratio), "{ratio}: {alone}{two}");
}

/// Rows that two ranks tell each other: each trade takes α and its bytes, and nothing hides it.
#[test]
fn rows_take_what_their_messages_do() {
    let directory = tempfile::tempdir().unwrap();
    let network = network(directory.path(), FLAT);
    let flags = ["--model", "mnist_small", "--batch", "4", "--dry-run", "--roofline", "1000000,1000000"];
    let alike = ["--no-overlap", "--fusion-threshold-mb", "1000", "--allreduce", "ring"];
    let exposed = |more: &[&str]| {
        let predicted = ["--network", &network, "--predict-nodes", "2"];
        rows(&run(1, &[&flags[..], &alike, &predicted, more].concat()))[&2][4]
    };
    let plan = run(2, &[&flags[..], &alike, &["--spatial", "2"]].concat());
    let line = plan.lines().find(|line| line.starts_with("images by rows:")).expect("a line of rows");
    let words: Vec<&str> = line.split_whitespace().collect();
    let of = |word: &str| words.iter().position(|&other| other == word).expect(line);
    let trades: f64 = words[of("trades") - 1].parse().unwrap();
    let bytes: f64 = words[of("bytes)") - 1].replace(['(', ','], "").parse().unwrap();
    let found = exposed(&["--spatial", "2"]) - exposed(&[]);
    let expected = 1e3 * (trades * 20e-6 + bytes / 2e9);
    assert!((found - expected).abs() < 0.003, "{found}, not {expected}: {line}");
}

/// Two ranks on one node, and on two.
#[test]
fn groups_within_a_node_wait_less_than_those_between_nodes() {
    let directory = tempfile::tempdir().unwrap();
    let network = network(directory.path(), &FLAT.replace("gb_per_s = 2.0", "gb_per_s = 0.2"));
    for way in
        ["--model alexnet --image-size 67 --tensor 2", "--model squeezenet1_1 --image-size 66 --spatial 2"]
    {
        let exposed = |ranks: usize, nodes: &str| {
            let base = ["--batch", "8", "--dry-run", "--roofline", "1000,1000", "--allreduce", "ring"];
            let asked = ["--network", &network, "--predict-nodes", nodes];
            let flags = way.split(' ').chain(base).chain(asked);
            rows(&run(ranks, &flags.collect::<Vec<_>>()))[&nodes.parse().unwrap()][4]
        };
        let (within, between) = (exposed(2, "1"), exposed(1, "2"));
        assert!(between > 1.2 * within, "{way}: {within} within nodes, {between} between them");
    }
}

/// A step that computes in no time and hides nothing, on a network whose formula is short: 2(P−1) rounds of α + βn, and
/// half of them with γn.
#[test]
fn a_step_on_a_flat_network_takes_what_its_formula_says() {
    let directory = tempfile::tempdir().unwrap();
    let network = network(directory.path(), FLAT);
    let flags = ["--model", "mnist_small", "--batch", "4", "--dry-run", "--roofline", "1000000,1000000"];
    let alike =
        ["--no-overlap", "--fusion-threshold-mb", "1000", "--allreduce", "ring", "--network", &network];
    let printed = run(1, &[&flags[..], &alike, &["--predict-nodes", "1,2,8,65536"]].concat());
    let rows = rows(&printed);
    assert_eq!(rows.len(), 4, "{printed}");
    // Some CPUs' layouts are padded.
    let line = printed.lines().find(|line| line.trim_start().starts_with("gradients ")).unwrap();
    let digits: String = line.split('(').nth(1).unwrap().chars().filter(char::is_ascii_digit).collect();
    let bytes: f64 = digits.parse().unwrap();
    for (ranks, [all, step, images, _, exposed]) in &rows {
        let p = *ranks as f64;
        assert_eq!(*all, p);
        // Whoever owns most of the bucket has up to a cache line more than an even share, and the last rank its rest.
        let share = |more: f64| bytes / p + more;
        let of = |share: f64| 1e3 * (p - 1.0) * (2.0 * (20e-6 + share / 2e9) + share / 8e9);
        let [least, most] = [of(share(0.0)), of(share(128.0))];
        // Printed with three digits behind the point.
        assert!(
            (least - 0.001..=most + 0.001).contains(exposed),
            "{ranks}: {exposed}, not {least} to {most}"
        );
        // The rest of a step is what a rank does alone: at these rates next to nothing.
        assert!(*step >= *exposed && *step < exposed + 0.1, "{ranks}: {step}");
        assert!(*ranks == 1 || (images / (4.0 * p / (1e-3 * step)) - 1.0).abs() < 0.03, "{ranks}: {images}");
    }
    assert_eq!(rows[&1][3], 100.0);
    assert!(printed.contains("It cannot know: other jobs on the network"), "{printed}");
}

/// Ranks that have the same part of all links are rehearsed once; a trace is of all. On this Dragonfly the stages are
/// the groups, and the way from half of the nodes to the other group has a link more than that of the others.
#[test]
fn few_ranks_of_a_stage_stand_for_all_where_links_are_shared() {
    let folder = tempfile::tempdir().unwrap();
    let dragonfly = "topology = \"dragonfly\"\n[dragonfly]\ngroups = 2\nswitches = 2\nnodes = 4\nbetween_groups = 1\n\
                     between_switches = 2\n";
    let text = FLAT.replace("topology = \"flat\"\n", dragonfly).replace("gb_per_s = 2.0", "gb_per_s = 0.1");
    let network = network(folder.path(), &text);
    let traces = folder.path().join("traces");
    let flags = [
        "--model",
        "mnist_small",
        "--batch",
        "8",
        "--dry-run",
        "--roofline",
        "1,100",
        "--network",
        &network,
        "--predict-nodes",
        "16",
        "--pipeline",
        "2",
        "--micro-batches",
        "4",
        "--export-trace",
        traces.to_str().unwrap(),
    ];
    let printed = run(1, &flags);
    let said = printed.split_once("the last of them ").expect("a time of all ranks").1;
    let all: f64 =
        said.split_once(" s\n").map_or(said.trim_end_matches(" s"), |(first, _)| first).parse().unwrap();
    let step = rows(&printed)[&16][1];
    assert!((step / 1e3 - all).abs() <= 2e-6, "{step} ms of few, {all} s of all");
    // Eight messages of each micro-batch share the one link between the groups: 8 × 32·14·14·4 bytes each way.
    let shared = 4.0 * 8.0 * 2.0 * 32.0 * 196.0 * 4.0 / 0.1e9 / 2.0;
    assert!(all > shared, "{all} s, and {shared} s of bytes");
}

#[test]
fn slow_ranks_cost_more_the_more_there_are() {
    for (way, nodes) in [("", "1,4,64"), ("--tensor 2", "2,8,64"), ("--spatial 2", "2,8,64")] {
        // Nearly all of the step is computing.
        let flags =
            "--model mnist_small --batch 4 --dry-run --jitter 0.2 --roofline 0.0001,1 --predict-nodes";
        let flags: Vec<&str> = flags.split(' ').chain([nodes]).chain(way.split_whitespace()).collect();
        let times_as_long = || -> Vec<f64> {
            let printed = run(1, &flags);
            let rows = printed.split_once("  with jitter").expect("a column").1.lines().skip(1).take(3);
            let of = |line: &str| {
                let words: Vec<&str> = line.split_whitespace().collect();
                let [ranks, step, jittered, images] =
                    [words[1], words[2], words[4], words[6]].map(|word| word.parse::<f64>().unwrap());
                // Of each of `parts` ranks with the same images, as printed: with one digit, and three.
                let parts = if way == "--spatial 2" { 2.0 } else { 1.0 };
                let expected = 4.0 * ranks / parts / (1e-3 * jittered);
                assert!((images / expected - 1.0).abs() < 1e-2, "{line}");
                jittered / step
            };
            rows.map(of).collect()
        };
        let (found, again) = (times_as_long(), times_as_long());
        assert!(found.windows(2).all(|pair| pair[1] > 1.05 * pair[0]), "{way}: {found:?}");
        assert_eq!(found, again, "the same ranks are slow");
    }
}

#[test]
fn what_cannot_be_predicted_is_refused_by_flag() {
    let directory = tempfile::tempdir().unwrap();
    let negative = network(directory.path(), &FLAT.replace("2.0\ngb", "-2.0\ngb"));
    let base = ["--model", "mnist_small", "--batch", "4", "--dry-run"];
    let trace = directory.path().join("trace");
    let trace = trace.to_str().unwrap();
    for (flags, named) in [
        (vec!["--predict-nodes", "65537"], "--predict-nodes 65537: must be at most 65536"),
        (vec!["--predict-nodes", "4,0"], "--predict-nodes"),
        (vec!["--predict-nodes", "4", "--network", &negative], "line 3: hop_us is -2"),
        (vec!["--predict-nodes", "4", "--network", "/nowhere.toml"], "--network /nowhere.toml"),
        (vec!["--predict-nodes", "4", "--jitter", "-1"], "--jitter"),
        (
            vec!["--predict-nodes", "6", "--shards", "8"],
            "--predict-nodes 6: --shards 8: 6 ranks cannot share",
        ),
        (vec!["--predict-nodes", "4", "--global-batch", "3"], "--predict-nodes 4: --global-batch 3"),
        (vec!["--predict-nodes", "2", "--sync", "server:2"], "no rank is left to compute"),
        (
            vec!["--predict-nodes", "2,3", "--tensor", "2"],
            "--predict-nodes 3: --tensor 2: this job has 3 ranks, which are no groups of 2; start a multiple of 2",
        ),
        (vec!["--predict-nodes", "2", "--mesh", "data=2,tensor=2"], "--predict-nodes 2: --tensor 2"),
        (
            vec!["--predict-nodes", "3", "--spatial", "2"],
            "--predict-nodes 3: --spatial 2: this job has 3 ranks; start a multiple of 2",
        ),
        (vec!["--predict-nodes", "29", "--spatial", "29"], "images of 28 rows cannot be cut so often"),
        (
            vec!["--predict-nodes", "2", "--tensor", "2", "--batch", "65536"],
            "has no linear layer whose gradients are more to send",
        ),
        (vec!["--predict-nodes", "4", "--compress", "1bit"], "nothing is known"),
        (vec!["--predict-nodes", "2,4", "--export-trace", trace], "--export-trace"),
        (
            vec!["--predict-nodes", "2", "--sync", "server-async", "--export-trace", trace],
            "decided while it runs",
        ),
        (vec!["--predict-nodes", "2", "--allreduce", "mpi", "--export-trace", trace], "a library adds up"),
    ] {
        let message = refused(&[(1, &[&base[..], &flags].concat())]);
        assert!(message.contains(named), "{flags:?}: {message}");
    }
    // What is wrong with a file is said before anything is planned.
    let done = finish(job(&[(1, &[&base[..], &["--predict-nodes", "4", "--network", &negative]].concat())]));
    assert_eq!(done.stdout, "");
    let groups = ["--model", "resnet18", "--image-size", "32", "--batch", "4", "--dry-run", "--sync-bn", "1"];
    let predicted = run(1, &[&groups[..], &["--predict-nodes", "2,3"]].concat());
    assert_eq!(rows(&predicted).len(), 2);
    let alone = refused(&[(1, &["--model", "mnist_small", "--predict-nodes", "2"])]);
    assert!(alone.contains("--dry-run is missing"), "{alone}");
    let tree = network(
        directory.path(),
        &FLAT.replace("\"flat\"", "\"fat-tree\"\n[fat-tree]\ndown = [4, 2]\nup = [1, 2]"),
    );
    let beyond = refused(&[(1, &[&base[..], &["--predict-nodes", "8,9", "--network", &tree]].concat())]);
    assert!(beyond.contains("--predict-nodes 9: test has 8 nodes"), "{beyond}");
}

/// The traces that the script makes of what ranks do.
fn traces(file: &Path) -> PathBuf {
    let directory = file.with_extension("traces");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benchmarks/predict/simgrid.py");
    let made =
        Command::new("python3").arg(script).arg(file).arg(&directory).output().expect("python3 starts");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    directory
}

/// What a process of a trace does.
struct Process {
    rank: usize,
    actions: Vec<(String, Vec<f64>)>,
}

fn processes(directory: &Path) -> Vec<Process> {
    let text = |name: &str| std::fs::read_to_string(directory.join(name)).unwrap();
    let process = |(number, name): (usize, &str)| {
        let text = text(name);
        let actions = text.lines().map(|line| {
            let mut words = line.split_whitespace();
            assert_eq!(words.next().unwrap(), number.to_string(), "{name}: {line}");
            let action = words.next().unwrap().to_string();
            (action, words.map(|word| word.parse().unwrap()).collect())
        });
        let rank = name["rank-".len()..].split(['-', '.']).next().unwrap().parse().unwrap();
        Process { rank, actions: actions.collect() }
    };
    text("traces.txt").lines().enumerate().map(process).collect()
}

/// Traces of few ranks: what one sends another awaits, and a rank sends the bytes of docs/algorithms.md in each of the
/// two steps. Losses and hits (64 bytes) travel with the last bucket, or by themselves where owners are apart.
#[test]
fn a_trace_has_the_messages_of_the_schedules() {
    // The reference's parameters lie without padding, whatever CPU it is.
    let n = 1_609_792.0;
    let folder = tempfile::tempdir().unwrap();
    for (nodes, flags, expected) in [
        (2, vec!["--allreduce", "ring"], vec![n + 64.0; 2]),
        (4, vec!["--allreduce", "ring"], vec![1.5 * (n + 64.0); 4]),
        (4, vec!["--allreduce", "halving-doubling"], vec![1.5 * (n + 64.0); 4]),
        (4, vec!["--allreduce", "recursive-doubling"], vec![2.0 * (n + 64.0); 4]),
        (3, vec!["--zero", "1", "--allreduce", "ring"], vec![4.0 / 3.0 * n; 3]),
        (3, vec!["--zero", "2", "--allreduce", "ring"], vec![4.0 / 3.0 * n; 3]),
        // Two layers are gathered once: the last one's 2,624 bytes stay for the backward pass, and nobody reads the
        // first one's 1,280 there.
        (
            3,
            vec!["--zero", "3", "--allreduce", "ring", "--fusion-threshold-mb", "0"],
            vec![2.0 / 3.0 * (3.0 * n - 2624.0 - 1280.0); 3],
        ),
        (3, vec!["--sync", "server"], vec![n, n, 2.0 * n]),
        (3, vec!["--sync", "root"], vec![2.0 * n, n, n]),
        // A row of 28 numbers of 4 images; 7 rows of 14 columns and 32 channels for the layers behind, and their
        // gradients.
        (
            2,
            vec!["--spatial", "2", "--allreduce", "ring"],
            vec![n + 64.0 + 16.0 * (28.0 + 2.0 * 7.0 * 14.0 * 32.0); 2],
        ),
        // Half of the inputs of both linear layers and all their sums, for 4 images, and the gradients of these; sums
        // of what is not split, and of losses and hits.
        (
            2,
            vec!["--tensor", "2", "--allreduce", "ring"],
            vec![2.0 * 16.0 * (3136.0 + 64.0 + 32.0 + 10.0) + 1600.0 + 64.0; 2],
        ),
        // Two stages: activations of 32×14×14 for each of 4 images there, and as much back.
        (
            2,
            vec!["--pipeline", "2", "--micro-batches", "2", "--pipeline-cuts", "fc1"],
            vec![4.0 * 32.0 * 196.0 * 4.0; 2],
        ),
    ] {
        let file = folder.path().join(format!("{nodes}{}", flags.concat()));
        let (count, path) = (nodes.to_string(), file.to_str().unwrap());
        let base = ["--model", "mnist_small", "--batch", "4", "--dry-run", "--predict-nodes", &count];
        let base = [&base[..], &["--device", "reference"]].concat();
        let printed = run(1, &[&base[..], &flags, &["--export-trace", path]].concat());
        assert!(printed.contains(&format!("what {nodes} ranks do is in {path}")), "{printed}");
        let directory = traces(&file);
        let processes = processes(&directory);
        let mut sent = vec![0.0; nodes];
        let mut between: HashMap<[usize; 3], [Vec<f64>; 2]> = HashMap::new();
        for (me, process) in processes.iter().enumerate() {
            assert_eq!((&*process.actions[0].0, &*process.actions.last().unwrap().0), ("init", "finalize"));
            for (action, numbers) in &process.actions {
                let number = |at: usize| numbers[at] as usize;
                let (pair, end) = match &**action {
                    "send" | "isend" => ([me, number(0), number(1)], 0),
                    "recv" | "irecv" => ([number(0), me, number(1)], 1),
                    _ => continue,
                };
                between.entry(pair).or_default()[end].push(numbers[2]);
                sent[process.rank] += if end == 0 { numbers[2] } else { 0.0 };
            }
        }
        for (pair, [leaving, coming]) in &between {
            assert_eq!(leaving, coming, "{flags:?}: {pair:?}");
        }
        for (rank, (sent, expected)) in sent.iter().zip(&expected).enumerate() {
            // Shares are cut at cache lines: a rank sends all of a bucket's but its own, twice at most. The tail's 64
            // bytes go round by themselves where owners are apart.
            let tolerance = 4.0 * 64.0 + 4.0 * 64.0;
            assert!((sent / 2.0 - expected).abs() <= tolerance, "{flags:?}: rank {rank} sends {sent}");
        }
        let platform = std::fs::read_to_string(directory.join("platform.xml")).unwrap();
        assert!(platform.contains(&format!("radical=\"0-{}\"", nodes - 1)), "{platform}");
    }
}

/// Ranks of a node meet without messages that take time, and their rings go between nodes.
#[test]
fn ranks_of_a_node_are_processes_of_one_host() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.json");
    let flags = ["--model", "mnist_small", "--batch", "4", "--dry-run", "--predict-nodes", "2"];
    run(
        2,
        &[&flags[..], &["--allreduce", "hierarchical", "--export-trace", file.to_str().unwrap()]].concat(),
    );
    let directory = traces(&file);
    let hosts = std::fs::read_to_string(directory.join("hosts.txt")).unwrap();
    let processes = processes(&directory);
    assert_eq!(hosts.lines().count(), processes.len());
    for (process, host) in processes.iter().zip(hosts.lines()) {
        assert_eq!(host, format!("n{}", process.rank / 2));
        for (action, numbers) in &process.actions {
            let far =
                matches!(&**action, "isend") && processes[numbers[0] as usize].rank / 2 != process.rank / 2;
            // A node's ranks tell each other that they have come, and nothing else.
            let near = matches!(&**action, "send") && numbers[2] == 0.0;
            assert!(far || near || !action.ends_with("send"), "{action} {numbers:?}");
        }
    }
}
