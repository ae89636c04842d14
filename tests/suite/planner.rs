//! `--parallel auto`: the table, the choice, and the run that follows.

use crate::support::job::{finish, job, only_message, refused, run, scalar, series};

const FLAT: &str = "name = \"slow\"\nlatency_us = 20.0\nhop_us = 0.0\ngb_per_s = 0.1\nlinks_a_node = 1\ntopology = \"flat\"\n";

/// A row of the table that was rehearsed.
#[derive(Debug, Clone, PartialEq)]
struct Row {
    taken: bool,
    step: f64,
    /// Bytes.
    sent: f64,
    memory: f64,
    flags: String,
}

/// The rehearsed rows of the only table, in their order.
fn rows(printed: &str) -> Vec<Row> {
    let table = printed.split_once("memory a rank  way\n").expect("a table").1;
    let row = |line: &str| {
        let taken = line.starts_with('*');
        let words: Vec<&str> = line[1..].split_whitespace().collect();
        let step = words.first()?.parse().ok()?;
        let bytes = |at: usize| {
            let scale = match words[at + 1] {
                "GB" => 1e9,
                "MB" => 1e6,
                "kB" => 1e3,
                "B" => 1.0,
                other => panic!("{other}"),
            };
            words[at].parse::<f64>().unwrap() * scale
        };
        Some(Row { taken, step, sent: bytes(6), memory: bytes(8), flags: words[10..].join(" ") })
    };
    table
        .lines()
        .take_while(|line| !line.is_empty() && !line.starts_with("not looked"))
        .filter_map(row)
        .collect()
}

/// Idle is "-" of what is no pipeline, so that rows have as many words.
fn planned(flags: &[&str]) -> (String, Vec<Row>) {
    let printed = run(1, &[&["--dry-run", "--parallel", "auto", "--roofline", "1,100"], flags].concat());
    let rows = rows(&printed);
    assert_eq!(rows.iter().filter(|row| row.taken).count(), 1, "{printed}");
    (printed, rows)
}

#[test]
fn the_fastest_that_fits_is_taken_and_always_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("slow.toml");
    std::fs::write(&path, FLAT).unwrap();
    let network = path.to_str().unwrap();
    // 400 MB of parameters on a slow network: the less is summed the better.
    let flags = ["--model", "vgg11", "--image-size", "64", "--batch", "8", "--network", network];
    let (printed, all) = planned(&[&flags[..], &["--predict-nodes", "4"]].concat());
    let best = |rows: &[Row]| rows.iter().map(|row| row.step).fold(f64::INFINITY, f64::min);
    let taken = all.iter().find(|row| row.taken).unwrap();
    assert!(taken.step <= best(&all) / 0.99 && taken.flags.contains("--pipeline"), "{printed}");
    // The same again, but for some pages that the process has beside what is planned.
    let again = planned(&[&flags[..], &["--predict-nodes", "4"]].concat()).1;
    let choices = |rows: &[Row]| rows.iter().map(|r| (r.taken, r.step, r.flags.clone())).collect::<Vec<_>>();
    assert_eq!(choices(&again), choices(&all));
    assert!(again.iter().zip(&all).all(|(one, other)| (one.memory / other.memory - 1.0).abs() < 0.02));
    // With less memory something else, which fits.
    let least = all.iter().map(|row| row.memory).fold(f64::INFINITY, f64::min);
    let limit = (least * 1.001 / 1e6).ceil();
    let given = format!("{limit}MB");
    let (printed, few) = planned(&[&flags[..], &["--predict-nodes", "4", "--memory-limit", &given]].concat());
    let taken = few.iter().find(|row| row.taken).unwrap();
    assert!(taken.memory <= 1e6 * limit * 1.001, "{printed}");
    assert!(
        few.iter().filter(|row| row.memory > 1.01e6 * limit).all(|row| row.flags.ends_with(": does not fit"))
    );
    let none = refused(&[(
        1,
        &[
            &["--dry-run", "--parallel", "auto"],
            &flags[..],
            &["--predict-nodes", "4", "--memory-limit", "1MB"],
        ]
        .concat(),
    )]);
    assert!(none.contains("--parallel auto: nothing fits in 1.0 MB a rank"), "{none}");
}

/// The less memory there is the later the stage of ZeRO, where no pipeline is looked at; a later one is not rehearsed
/// where the one before fits anyway.
#[test]
fn less_memory_takes_a_later_stage_of_zero() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("slow.toml");
    std::fs::write(&path, FLAT).unwrap();
    // No layer can be split over three ranks.
    let flags = ["--model", "vgg11", "--image-size", "64", "--batch", "8", "--optimizer", "adam"];
    let nodes = ["--global-batch", "24", "--predict-nodes", "3", "--network", path.to_str().unwrap()];
    let within = |more: &[&str]| planned(&[&flags[..], &nodes, more].concat());
    let (printed, all) = within(&[]);
    assert!(all.iter().all(|row| !["--zero 2", "--zero 3"].contains(&row.flags.as_str())), "{printed}");
    assert!(printed.contains("--zero 2: by a sketch") && printed.contains("; --zero 1 fits"), "{printed}");
    // Just less than what the one before needs.
    let mut needed = all.iter().find(|row| row.taken).expect("data parallelism").memory;
    for stage in ["--zero 1", "--zero 2", "--zero 3"] {
        let limit = format!("{}MB", (needed / 1e6 - 10.0).floor());
        let (printed, rows) = within(&["--memory-limit", &limit]);
        let taken = rows.iter().find(|row| row.taken).expect("a row that is taken");
        assert_eq!(taken.flags, stage, "{limit}: {printed}");
        assert!(taken.memory < needed, "{limit}: {printed}");
        // What the process has besides differs from start to start.
        let ways = |rows: &[Row]| rows.iter().map(|row| (row.step, row.flags.clone())).collect::<Vec<_>>();
        assert_eq!(ways(&within(&["--memory-limit", &limit]).1), ways(&rows));
        needed = taken.memory;
    }
    // What is frozen nobody owns.
    let printed = within(&["--freeze", "backbone"]).0;
    assert!(printed.contains("--zero 2") && !printed.contains("--zero 3"), "{printed}");
}

/// Layers are split where links are slow, and not where messages take long and bytes little: they are more messages,
/// which nothing hides.
#[test]
fn slow_links_split_layers() {
    let folder = tempfile::tempdir().unwrap();
    let taken = |name: &str, text: String| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        // Batches that no pipeline divides.
        let flags = "--model alexnet --batch 16 --global-batch 32 --predict-nodes 2 --roofline 1,10000";
        let flags: Vec<&str> = flags.split(' ').chain(["--dry-run", "--parallel", "auto"]).collect();
        let printed = run(1, &[&flags[..], &["--network", path.to_str().unwrap()]].concat());
        let rows = rows(&printed);
        assert!(rows.iter().any(|row| row.flags == "--tensor 2"), "{printed}");
        rows.into_iter().find(|row| row.taken).unwrap().flags
    };
    assert_eq!(taken("slow.toml", FLAT.into()), "--tensor 2");
    assert_eq!(
        taken("far.toml", FLAT.replace("0.1", "10000.0").replace("20.0", "1000.0")),
        "data parallelism"
    );
    // Where there is no layer that is worth it, it is no candidate.
    let flags = ["--model", "squeezenet1_1", "--image-size", "64", "--batch", "8", "--predict-nodes", "2"];
    let none = planned(&flags).0;
    assert!(!none.contains("--tensor"), "{none}");
}

/// Where neither links nor memory hold anybody up all ways of the same arithmetic take as long: that is taken which
/// sends least.
#[test]
fn of_ways_that_are_alike_that_which_sends_least_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fast.toml");
    std::fs::write(&path, FLAT.replace("0.1", "10000.0").replace("20.0", "0.1")).unwrap();
    let flags =
        "--model mnist_large --batch 8 --predict-nodes 4 --roofline 1,10000 --dry-run --parallel auto";
    let flags: Vec<&str> = flags.split(' ').chain(["--network", path.to_str().unwrap()]).collect();
    let printed = run(1, &flags);
    let rows = rows(&printed);
    let least = rows.iter().map(|row| row.step).fold(f64::INFINITY, f64::min);
    let alike: Vec<&Row> = rows.iter().filter(|row| row.step <= 1.01 * least).collect();
    assert!(
        ["data parallelism", "--tensor 2"].iter().all(|way| alike.iter().any(|row| row.flags == *way)),
        "{printed}"
    );
    let taken = alike.iter().find(|row| row.taken).expect("one of these");
    assert!(alike.iter().all(|row| taken.sent <= row.sent), "{printed}");
    assert!(taken.flags != "data parallelism", "{printed}");
}

/// Where less than the stages of a pipeline need is free, they compute their activations again. Where everything does,
/// pipelines do too, but for the schedule that cannot.
#[test]
fn stages_compute_again_where_memory_is_short() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("slow.toml");
    std::fs::write(&path, FLAT).unwrap();
    let flags = "--model resnet18 --image-size 64 --batch 32 --predict-nodes 4 --network";
    let flags: Vec<&str> = flags.split(' ').chain([path.to_str().unwrap()]).collect();
    let of_stages = |row: &&Row| row.flags.contains("--pipeline");
    let again = |row: &Row| row.flags.contains("--recompute");
    let (printed, all) = planned(&flags);
    assert!(all.iter().filter(of_stages).all(|row| !again(row)), "{printed}");
    assert!(printed.contains("--recompute: by a sketch") && printed.contains(" fits"), "{printed}");
    let taken = all.iter().find(|row| row.taken).expect("a row that is taken");
    assert!(taken.flags.contains("--pipeline"), "{printed}");
    let least = all.iter().map(|row| row.memory).fold(f64::INFINITY, f64::min);
    // As typed.
    let (printed, typed) = planned(&[&flags[..], &["--recompute"]].concat());
    assert!(typed.iter().any(|row| of_stages(&row)), "{printed}");
    if typed.iter().filter(of_stages).all(|row| row.memory >= least) {
        return println!(
            "SKIPPED: this CPU's kernels need more workspace than activations that are not kept save"
        );
    }
    let limit = format!("{}MB", (0.97 * least / 1e6).floor());
    let (printed, few) = planned(&[&flags[..], &["--memory-limit", &limit]].concat());
    let taken = few.iter().find(|row| row.taken).expect("a row that is taken");
    assert!(of_stages(&taken) && again(taken) && taken.memory < least, "{limit}: {printed}");
    // As typed.
    let (printed, typed) = planned(&[&flags[..], &["--recompute"]].concat());
    assert!(typed.iter().any(|row| of_stages(&row)), "{printed}");
    assert!(!printed.contains("zb-h1") && !printed.contains("not looked at: pipelines"), "{printed}");
}

/// What all others need at the least of what was rehearsed, in MB, less so much that they do not fit.
fn too_little_for_whole_images(rows: &[Row]) -> String {
    let whole = rows.iter().filter(|row| !row.flags.contains("--spatial"));
    let least = whole.map(|row| row.memory).fold(f64::INFINITY, f64::min);
    format!("{}MB", (0.85 * least / 1e6).round())
}

/// Where whole images fit on no rank though activations are computed again, and there are no stages, they are cut.
#[test]
fn images_are_cut_where_nothing_else_fits() {
    let flags = ["--model", "squeezenet1_1", "--image-size", "640", "--batch", "2", "--predict-nodes", "4"];
    let unstaged = ["--commit", "3", "--checkpoint", "c"];
    let limit = too_little_for_whole_images(&planned(&[&flags[..], &unstaged, &["--recompute"]].concat()).1);
    let (printed, rows) = planned(&[&flags[..], &unstaged, &["--memory-limit", &limit]].concat());
    let is_cut = |row: &Row| row.flags.contains("--spatial");
    assert!(
        rows.iter().all(|row| is_cut(row) || row.flags.ends_with(": does not fit")),
        "{limit}: {printed}"
    );
    let taken = rows.iter().find(|row| row.taken).unwrap();
    assert!(is_cut(taken), "{limit}: {printed}");
    // As many images in a step: a group has those of its ranks.
    let words: Vec<&str> = taken.flags.split(' ').collect();
    let number = |flag: &str, otherwise: usize| {
        let at = words.iter().position(|&word| word == flag);
        at.map_or(otherwise, |at| words[at + 1].parse().unwrap())
    };
    let [parts, batch, micro_steps] =
        [("--spatial", 1), ("--batch", 2), ("--accumulation", 1)].map(|(flag, usual)| number(flag, usual));
    assert_eq!(4 / parts * batch * micro_steps, 4 * 2, "{}", taken.flags);
    // What does not go beside --spatial is said.
    let without = planned(&[&flags[..], &["--global-batch", "8"]].concat()).0;
    assert!(without.contains("not looked at: images by rows (--global-batch and --spatial"), "{without}");
    assert!(!without.contains("  --spatial"), "{without}");
}

/// With batch normalisation a group has as many images at a time as a rank has otherwise, and where ranks share
/// statistics as many as these have.
#[test]
fn statistics_are_of_as_many_images() {
    let flags = ["--model", "resnet18", "--image-size", "64", "--batch", "4", "--predict-nodes", "4"];
    let ways = |more: &[&str]| {
        let printed = planned(&[&flags[..], more].concat()).0;
        let of = |line: &str| Some(line.split_once("--spatial 2")?.1.split(':').next()?.trim().to_string());
        printed.lines().filter_map(of).collect::<Vec<_>>()
    };
    let alone = ways(&[]);
    assert!(
        !alone.is_empty() && alone.iter().all(|flags| flags.starts_with("--accumulation 2")),
        "{alone:?}"
    );
    let shared = ways(&["--sync-bn"]);
    assert!(!shared.is_empty() && shared.iter().all(|flags| flags.starts_with("--batch 8")), "{shared:?}");
}

/// A pipeline is predicted with the bubble of its formula at least, and what its stages compute at most.
#[test]
fn pipelines_are_predicted_with_their_bubble() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fast.toml");
    std::fs::write(&path, FLAT.replace("0.1", "10000.0").replace("20.0", "0.001")).unwrap();
    let network = path.to_str().unwrap();
    // Memory is so fast that what is done beside the passes takes nothing: gradients are added up, parameters updated.
    for (stages, micro_batches) in [(2.0, 4.0), (2.0, 8.0), (4.0, 8.0)] {
        let [stages, batches] = [stages, micro_batches].map(|count: f64| format!("{count}"));
        let flags = [
            "--model",
            "resnet18",
            "--image-size",
            "32",
            "--batch",
            "32",
            "--dry-run",
            "--roofline",
            "0.01,10000",
        ];
        let cut = [
            "--pipeline",
            &stages,
            "--micro-batches",
            &batches,
            "--predict-nodes",
            "4",
            "--network",
            network,
        ];
        let printed = run(1, &[&flags[..], &cut].concat());
        let table = printed.split_once("   nodes   ranks").expect("a table").1;
        let words: Vec<&str> = table.lines().nth(1).unwrap().split_whitespace().collect();
        let efficiency: f64 = words[5].trim_end_matches('%').parse().unwrap();
        let [stages, batches] = [stages, batches].map(|text| text.parse::<f64>().unwrap());
        let most = 100.0 * batches / (batches + stages - 1.0);
        // Stages are cut at layers, and so not quite alike.
        assert!(efficiency <= most + 0.1 && efficiency > 0.6 * most, "{stages} {batches}: {printed}");
    }
    let base = ["--model", "mnist_small", "--batch", "8", "--dry-run"];
    for (flags, named) in [
        (
            vec!["--pipeline", "3", "--micro-batches", "2", "--predict-nodes", "4"],
            "--predict-nodes 4: --pipeline 3",
        ),
        (vec!["--mesh", "data=3,pipeline=2", "--micro-batches", "2", "--predict-nodes", "4"], "start 3 × 2"),
        (vec!["--pipeline", "16", "--predict-nodes", "2,8"], "--predict-nodes 2: --pipeline 16"),
        (vec!["--spatial", "4", "--predict-nodes", "8,6"], "--predict-nodes 6: --spatial 4"),
    ] {
        let done = finish(job(&[(1, &[&base[..], &flags].concat())]));
        assert_eq!(done.stdout, "", "{flags:?}: said before what is planned");
        let message = only_message(&done);
        assert!(message.contains(named), "{message}");
    }
}

/// Split layers too, where that is the fastest.
#[test]
fn a_run_splits_layers_as_was_chosen() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let flags =
        "--model alexnet --image-size 67 --batch 2 --classes 10 --steps 2 --warmup 0 --threads 1 --lr 0.001";
    let flags: Vec<&str> = flags.split(' ').collect();
    let train = |way: [&str; 2], results: &str| run(2, &[&flags[..], &way, &["--results", results]].concat());
    let printed = train(["--parallel", "auto"], &path("auto.h5"));
    let taken = rows(&printed).into_iter().find(|row| row.taken).expect("one is taken").flags;
    assert_eq!(taken, "--tensor 2", "{printed}");
    train(["--tensor", "2"], &path("typed.h5"));
    let losses = |name: &str| series(path(name).as_ref(), "steps/loss");
    assert_eq!(losses("auto.h5"), losses("typed.h5"));
}

#[test]
fn a_run_does_what_was_chosen() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let images = ["--model", "resnet18", "--image-size", "64", "--classes", "10"];
    let steps = ["--steps", "2", "--warmup", "0", "--threads", "1", "--seed", "3"];
    // By the built-in figures: measured steps cut other stages each time.
    let auto = |results: &str, more: &[&str]| {
        let flags = ["--batch", "16", "--parallel", "auto", "--results", results];
        rows(&run(2, &[&images[..], &steps, &flags, more].concat()))
    };
    // Between what needs most and what needs least.
    let needed: Vec<f64> = auto(&path("free.h5"), &[]).iter().map(|row| row.memory).collect();
    let least = needed.iter().copied().fold(f64::INFINITY, f64::min);
    let limit = format!("{}MB", ((needed[0] + least) / 2e6).ceil());
    let taken = auto(&path("auto.h5"), &["--memory-limit", &limit]).into_iter().find(|row| row.taken);
    let flags = taken.expect("one is taken").flags;
    assert!(flags.starts_with("--"), "data parallelism does not fit: {flags}");
    let flags: Vec<&str> = flags.split(' ').collect();
    let batch: &[&str] = if flags.contains(&"--batch") { &[] } else { &["--batch", "16"] };
    run(2, &[&images[..], &steps, batch, &flags, &["--results", &path("typed.h5")]].concat());
    let losses = |name: &str| series(path(name).as_ref(), "steps/loss");
    assert_eq!(losses("auto.h5"), losses("typed.h5"), "{flags:?}");
    // By steps that were measured before, something is chosen too.
    let small = ["--model", "mnist_small", "--batch", "8", "--parallel", "auto", "--measure", "2"];
    let printed = run(2, &[&small[..], &steps, &["--results", &path("measured.h5")]].concat());
    assert_eq!(rows(&printed).iter().filter(|row| row.taken).count(), 1, "{printed}");
}

/// What a plan of all ways finds to need least is found again with that as the limit, however far off sketches are.
#[test]
fn nothing_fits_says_what_the_leanest_way_needs_and_that_much_is_enough() {
    let base = "--model alexnet --image-size 67 --batch 4 --optimizer adamw --dry-run --predict-nodes 1 --threads 1 \
                --parallel auto --memory-limit";
    let with = |limit: &str| -> Vec<String> { base.split(' ').chain([limit]).map(String::from).collect() };
    let asked =
        |limit: &str| finish(job(&[(4, &with(limit).iter().map(String::as_str).collect::<Vec<_>>())]));
    let message = only_message(&asked("1MiB"));
    let (_, leanest) = message.split_once("the leanest way, ").expect("what needs least");
    let (flags, needed) = leanest.split_once(", needs ").unwrap();
    let needed = needed.split_once(" MB;").unwrap().0.parse::<f64>().unwrap();
    // Printed with a digit behind the point; and processes are not all of one size.
    let done = asked(&format!("{}MB", (needed * 1.02).ceil()));
    assert!(done.success, "{}", done.stderr);
    let taken = rows(&done.stdout).into_iter().find(|row| row.taken).expect("one is taken");
    assert!(taken.memory <= needed * 1.02e6, "{taken:?}, and {flags} needs {needed} MB");
}

/// Measured with less than a step of the whole batch takes; and the run has the memory of the table.
#[test]
fn measuring_keeps_to_the_limit_and_a_run_has_the_figure_of_the_table() {
    let folder = tempfile::tempdir().unwrap();
    let results = folder.path().join("run.h5");
    let flags = "--model resnet18 --image-size 96 --batch 32 --optimizer adamw --steps 2 --warmup 0 --threads 1 \
                 --parallel auto --measure 1 --results";
    let flags: Vec<&str> = flags.split(' ').chain([results.to_str().unwrap(), "--memory-limit"]).collect();
    // A step of all images takes some 90 MB of parameters and gradients, 90 MB of states and 150 MB of activations.
    let limit = 330;
    let printed = run(2, &[&flags[..], &[&format!("{limit}MB")]].concat());
    let taken = rows(&printed).into_iter().find(|row| row.taken).expect("one is taken");
    let figure = |name: &str| scalar(&results, &format!("summary/{name}")) as f64;
    assert!(figure("peak_memory") < 1e6 * f64::from(limit) + 50e6, "{printed}");
    // To the digits that are printed.
    assert!((figure("planned_memory") - taken.memory).abs() <= 0.05e6, "{printed}");
}

#[test]
fn what_a_planner_is_not_to_choose_is_refused() {
    let base = ["--model", "mnist_small", "--batch", "4", "--dry-run"];
    for (flags, named) in [
        (vec!["--parallel", "auto", "--zero", "1"], "--zero"),
        (vec!["--parallel", "auto", "--pipeline", "2"], "--pipeline"),
        (vec!["--parallel", "auto", "--sync", "root"], "--sync"),
        (vec!["--parallel", "auto", "--tensor", "2"], "--tensor"),
        (vec!["--parallel", "auto", "--spatial", "2"], "--spatial"),
        (vec!["--memory-limit", "1GB"], "--parallel <auto> is missing"),
        (vec!["--lossy"], "--parallel <auto> is missing"),
        (vec!["--measure", "2"], "--measure: it is for --predict-nodes, --parallel auto and --pipeline"),
        (vec!["--parallel", "auto", "--measure", "0"], "--measure 0"),
        (vec!["--parallel", "best"], "best"),
    ] {
        let message = refused(&[(1, &[&base[..], &flags].concat())]);
        assert!(message.contains(named), "{flags:?}: {message}");
    }
    let (printed, rows) =
        planned(&["--model", "mnist_small", "--batch", "4", "--predict-nodes", "2", "--lossy"]);
    assert!(rows.iter().any(|row| row.flags.contains("--wire bf16")), "{printed}");
    // Gradients that travel in halves are half as many bytes.
    let sent = |wire: &str| {
        let flags = ["--model", "mnist_small", "--batch", "4", "--predict-nodes", "2", "--wire", wire];
        let rows = planned(&flags).1;
        rows.into_iter().find(|row| row.flags == "data parallelism").expect("data parallelism").sent
    };
    let [whole, halves] = ["f32", "bf16"].map(sent);
    assert!((halves / whole - 0.5).abs() < 0.02, "{halves} of {whole}");
    let (printed, rows) = planned(&[
        "--model",
        "mnist_small",
        "--batch",
        "4",
        "--predict-nodes",
        "2",
        "--commit",
        "3",
        "--checkpoint",
        "c",
    ]);
    assert!(rows.iter().all(|row| !row.flags.contains("--pipeline")), "{printed}");
    assert!(printed.contains("not looked at: pipelines (--commit and --pipeline"), "{printed}");
}
