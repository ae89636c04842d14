//! `dltrain bench`: whole tables of finite numbers, and refusals. (What collectives give: collectives.rs.) `bench
//! autotune`: its file, and what a run does with a good or a bad one; `bench fusion`: right sums in every cut.

use crate::support::cases::{each, full};
use crate::support::gpu_job::with_cuda;
use crate::support::job;

use std::fs;

use hdf5::types::{FixedUnicode, VarLenUnicode};
use job::{DLTRAIN, finish, refused, run};

/// The first number after a text.
fn number_after(text: &str, before: &str) -> f64 {
    let rest = text.split(before).nth(1).unwrap_or_else(|| panic!("no {before:?} in\n{text}"));
    let digits: String = rest.trim_start().chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
    digits.parse().unwrap_or_else(|_| panic!("no number after {before:?} in\n{text}"))
}

#[test]
fn every_layer_has_its_line_and_the_csv_holds_the_same_arithmetic() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("layers.csv");
    let flags =
        ["bench", "layers", "--model", "resnet18", "--image-size", "32", "--classes", "10", "--batch", "2"];
    let flags = [&flags[..], &["--threads", "1", "--steps", "1", "--csv", path.to_str().unwrap()]].concat();
    let printed = run(2, &flags);
    for layer in ["conv1 ", "layer1.0.bn1 ", "layer4.0.downsample.0 ", "maxpool ", "fc ", "loss "] {
        assert!(printed.lines().any(|line| line.starts_with(layer)), "{layer} in\n{printed}");
    }
    for kind in ["conv2d backward weights ", "batch norm backward ", "update (SGD, momentum) "] {
        assert!(number_after(&printed, kind) >= 1.0);
    }
    assert!(number_after(&printed, "sgemm peak of a rank:") > 0.0);
    assert!(number_after(&printed, "images/s of a rank:") > 0.0);
    // One table for the whole job.
    assert_eq!(printed.matches("images/s of a rank").count(), 1);

    let csv = std::fs::read_to_string(&path).unwrap();
    let mut rows = csv.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let header = rows.next().unwrap();
    let column = |name: &str| header.iter().position(|&column| column == name).unwrap();
    let conv1 = rows.find(|row| row[0] == "conv1").unwrap();
    // 16×16 outputs of 64 filters of 3×7×7, for 2 images.
    let expected = 2.0 * 2.0 * 256.0 * 64.0 * 147.0 / 1e9;
    for part in ["forward_gflop", "backward_weights_gflop"] {
        assert!((conv1[column(part)].parse::<f64>().unwrap() - expected).abs() < 1e-6, "{part}: {csv}");
    }
    // Nobody needs the gradient of the images.
    assert_eq!(conv1[column("backward_data_ms")].parse::<f64>(), Ok(0.0));
}

/// A network of fields by the loss of its points.
#[test]
fn layers_of_a_network_of_fields_are_measured_too() {
    let flags = "bench layers --model unet_small --image-size 32 --batch 1 --threads 1 --steps 1";
    let printed = run(1, &flags.split(' ').collect::<Vec<_>>());
    assert!(printed.lines().any(|line| line.starts_with("loss ")), "{printed}");
    assert!(number_after(&printed, "field loss backward ") >= 1.0, "{printed}");
}

/// On doubles, whose clock lets every kernel take 2 µs and its products at 400 TFLOP/s or its bytes at 4000 GB/s,
/// whichever is longer.
#[test]
fn every_step_on_a_gpu_has_its_time_and_its_share_of_the_roofline() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("steps.csv");
    let flags = format!(
        "bench layers --model resnet18 --image-size 32 --classes 10 --batch 2 --steps 2 --device cuda --precision bf16 \
         --roofline 400,4000 --csv {}",
        path.display()
    );
    let flags: Vec<&str> = flags.split_whitespace().collect();
    let done = finish(with_cuda(job::job(&[(1, &flags)]), &[("FAKE_CUDA_CLOCK", "1")], directory.path()));
    assert!(done.success, "{}", done.stderr);
    for row in ["layer1.0.conv1 ", "conv2d+moments ", "update (SGD, momentum) ", "all, one after the other "]
    {
        assert!(done.stdout.lines().any(|line| line.starts_with(row)), "{row} in\n{}", done.stdout);
    }
    assert!(done.stdout.contains("roofline of 400.0 TFLOP/s and 4000 GB/s, as given"), "{}", done.stdout);
    assert!(number_after(&done.stdout, "images/s of a rank:") > 0.0);
    let csv = fs::read_to_string(&path).unwrap();
    let (mut sums, mut products) = ([0.0; 2], 0);
    for row in csv.lines().skip(1) {
        let numbers: Vec<f64> = row.rsplit(',').take(4).map(|text| text.parse().unwrap()).collect();
        let [least, flops, bytes, ms] = numbers[..] else { panic!("{row}") };
        // As --roofline has it: products at 400 TFLOP/s, operands at 4000 GB/s, whichever takes longer.
        assert!((least - (flops / 400e9).max(bytes / 4000e6)).abs() < 1e-6, "{row}");
        assert!(ms > 0.0 && bytes > 0.0, "{row}");
        // Those that add to another branch's gradient too.
        if row.contains(",\"conv2d backward data") {
            assert!((ms - least - 0.002).abs() < 1e-4, "{row}");
            products += 1;
        }
        sums = [sums[0] + ms, sums[1] + least];
    }
    assert_eq!(products, 19, "{csv}");
    let line = done.stdout.lines().find(|line| line.starts_with("all, one after the other")).unwrap();
    assert!((number_after(line, &format!("{} ", csv.lines().count() - 1)) - sums[0]).abs() < 1e-3, "{line}");
}

/// Some of a row of the results file; HDF5 finds fields by their names.
#[derive(Debug, Clone, hdf5::H5Type)]
#[repr(C)]
struct Row {
    algorithm: FixedUnicode<32>,
    size: u64,
    elements: u64,
    samples: u64,
    min: f64,
    median: f64,
    p95: f64,
    algbw: f64,
    busbw: f64,
    ratio: f64,
    wrong: u64,
}

/// The printed table has the same rows.
#[test]
fn a_collectives_table_is_kept_whole() {
    let directory = tempfile::tempdir().unwrap();
    // With 3 ranks parts are unequal.
    for (bench, ranks, factor, algorithms) in [
        (
            "allreduce",
            2,
            1.0,
            &["MPI_Allreduce", "mpi", "ring", "halving-doubling", "recursive-doubling", "torus"][..],
        ),
        ("reducescatter", 3, 2.0 / 3.0, &["MPI_Reduce_scatter", "ring"]),
        ("allgather", 3, 2.0 / 3.0, &["MPI_Allgather", "ring"]),
        ("broadcast", 2, 1.0, &["MPI_Bcast", "chain", "tree"]),
    ] {
        let path = directory.path().join(format!("{bench}.h5"));
        let flags = ["bench", bench, "--sizes", "4K,40K", "--iterations", "3", "--wire", "bf16", "--results"];
        let printed = run(ranks, &[&flags[..], &[path.to_str().unwrap()]].concat());
        let in_memory = match bench {
            "allreduce" => &["hierarchical", "shm", "(memory)"][..],
            "broadcast" => &["shm"],
            _ => &["hierarchical", "shm"],
        };
        let expected: Vec<(String, u64)> = [4096, 40960]
            .into_iter()
            .flat_map(|size| [algorithms, in_memory].concat().into_iter().map(move |a| (a.to_string(), size)))
            .collect();

        let file = hdf5::File::open(&path).unwrap();
        let rows = file.dataset("rows").unwrap().read_1d::<Row>().unwrap();
        let found: Vec<_> = rows.iter().map(|row| (row.algorithm.to_string(), row.size)).collect();
        assert_eq!(found, expected, "{printed}");
        for row in &rows {
            assert!(row.min > 0.0 && row.min <= row.median && row.median <= row.p95, "{row:?}");
            let bandwidth = row.size as f64 / row.median;
            assert!((row.algbw / bandwidth - 1.0).abs() < 1e-9, "{row:?}");
            assert!((row.busbw / bandwidth / factor - 1.0).abs() < 1e-9, "{row:?}");
            assert!(row.ratio > 0.0 && row.ratio.is_finite(), "{row:?}");
            assert_eq!((row.elements, row.samples, row.wrong), (row.size / 4, 3, 0));
            let line = printed.lines().find(|line| {
                let words: Vec<&str> = line.split_whitespace().collect();
                words.contains(&row.algorithm.as_str()) && words.contains(&row.elements.to_string().as_str())
            });
            assert!(line.is_some_and(|line| line.trim_end().ends_with(" 0")), "{row:?} in\n{printed}");
        }
        let attribute = |name: &str| {
            let text = file.attr(name).and_then(|a| a.read_scalar::<VarLenUnicode>());
            text.unwrap_or_else(|error| panic!("{name}: {error}")).to_string()
        };
        for (name, value) in [
            ("format", "dltrain bench".to_string()),
            ("operation", bench.to_string()),
            ("ranks", ranks.to_string()),
            ("nodes", "1".to_string()),
            ("wire", "bf16".to_string()),
            ("memory", "shared".to_string()),
            ("dltrain_version", env!("CARGO_PKG_VERSION").to_string()),
        ] {
            assert_eq!(attribute(name), value, "{name}");
        }
        for name in ["mpi", "hosts", "revision", "date"] {
            assert!(!attribute(name).is_empty(), "{name}");
        }
        assert!(attribute("limits").contains("copy") && printed.contains("# limit: messages within a node"));
        let rows = file.dataset("rows").unwrap();
        let unit = rows.attr("median_unit").unwrap().read_scalar::<VarLenUnicode>().unwrap();
        assert_eq!(unit.as_str(), "s");
        // What is there is not written over, whatever was measured.
        if bench != "allreduce" && !full() {
            continue;
        }
        let message = refused(&[(ranks, &[&flags[..], &[path.to_str().unwrap()]].concat())]);
        assert!(message.contains("not overwritten"), "{message}");
    }
}

#[test]
fn the_sum_over_ranks_is_at_least_their_number_times_the_slowest() {
    let printed = run(2, &["bench", "gemm", "--threads", "1", "--repeats", "1"]);
    let (each, all) = (number_after(&printed, "thread:"), number_after(&printed, "in all"));
    assert!(each > 0.0 && all >= 2.0 * each - 0.1, "{printed}");
}

#[test]
fn a_site_has_a_line_for_each_thing_and_nothing_stays_on_its_disk() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().to_str().unwrap();
    let printed = run(2, &["bench", "site", "--seconds", "0.1", "--threads", "1", "--directory", place]);
    assert!(number_after(&printed, "thread each: ") >= 5.0, "{printed}");
    let disk = ["writing", "reading", "small files"].map(|what| format!("{what} in {place}"));
    let others = ["products", "copies in memory", "time left to the rank", "messages in a node"];
    for what in others.into_iter().chain(disk.iter().map(String::as_str)) {
        let line = printed.lines().find(|line| line.starts_with(what));
        let line = line.unwrap_or_else(|| panic!("no {what} in\n{printed}"));
        let numbers: Vec<f64> =
            line[what.len()..].split_whitespace().filter_map(|word| word.parse().ok()).collect();
        // The median, the slowest, and what a rank has alone, behind which its place stands.
        assert!(numbers.len() >= 3 && numbers[..2].iter().all(|&number| number > 0.0), "{line}");
        assert!(numbers[1] <= numbers[0] && line.contains(" rank "), "{line}");
    }
    assert!(printed.contains("SLOW: ") || printed.contains("nothing is slow"), "{printed}");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let cases = [
        (["bench", "layers", "--steps", "0"], "--steps 0"),
        (["bench", "layers", "--batch", "0"], "--batch 0"),
        (["bench", "layers", "--device", "auto"], "cpu, or cuda"),
        (["bench", "layers", "--roofline", "790,4300"], "--device cuda"),
        (["bench", "layers", "--model", "resnet51"], "resnet51"),
        (["bench", "gemm", "--repeats", "0"], "--repeats 0"),
        (["bench", "fusion", "--batch", "0"], "--batch"),
        (["bench", "autotune", "--sizes", "0"], "--sizes"),
        (["bench", "site", "--seconds", "0"], "--seconds: more than 0"),
        (["bench", "site", "--slow", "100"], "--slow: a percentage"),
        (["bench", "site", "--directory", "/proc/nothing"], "--directory /proc/nothing: is no directory"),
        (["bench", "site", "--directory", "/proc"], "cannot be measured"),
        (
            ["bench", "allreduce", "--algorithm", "butterfly"],
            "--algorithm butterfly: allreduce has auto, ring",
        ),
        (["bench", "allgather", "--algorithm", "chain"], "allgather by chain: use ring, hierarchical or shm"),
        (["bench", "broadcast", "--sizes", "4X"], "unknown unit `X`"),
        (["bench", "broadcast", "--sizes", "6"], "--sizes 6"),
        (["bench", "reducescatter", "--lengths", "9223372036854775807"], "too large"),
        (["bench", "reducescatter", "--sizes", "900000G"], "cannot allocate"),
        (["bench", "allreduce", "--iterations", "0"], "--iterations 0"),
        (["bench", "allreduce", "--results", "/proc/nothing/b.h5"], "/proc/nothing"),
        (["bench", "allreduce", "--results", DLTRAIN], "cannot write in"),
    ];
    each(cases, |(flags, named)| {
        let message = refused(&[(2, &flags)]);
        assert!(message.contains(named), "{message}");
    });
    let wire = |wire| ["bench", "allreduce", "--lengths", "7", "--wire", wire];
    let message = refused(&[(1, &wire("f32")), (1, &wire("bf16"))]);
    assert!(message.contains("ranks differ in --wire: f32 (rank 0 on "), "{message}");
}

/// What --dry-run says of each bucket: its collective and the predicted time.
fn choices(printed: &str) -> Vec<(String, String)> {
    let table = printed.lines().skip_while(|line| !line.starts_with("bucket ")).skip(1);
    let rows = table.map(|line| line.split_whitespace().collect::<Vec<_>>()).take_while(|row| row.len() > 6);
    rows.map(|row| (row[3].to_string(), row[4].to_string())).collect()
}

#[test]
fn what_autotune_writes_decides_a_run_and_its_record_and_a_bad_file_is_one_warning() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("new").join("tuning.json");
    let tuning = file.to_str().unwrap();
    let table = run(2, &["bench", "autotune", "--sizes", "4K,1M", "--output", tuning]);
    for algorithm in ["ring", "halving-doubling", "recursive-doubling", "torus", "mpi"] {
        assert!(table.contains(algorithm), "{algorithm} in\n{table}");
    }
    assert_eq!(table.matches("written to").count(), 1, "{table}");

    // The cut of the buckets is given: by itself it depends on how fast this machine happened to be.
    let flags =
        ["--model", "mnist_net", "--device", "reference", "--batch", "1", "--fusion-threshold-mb", "0.01"];
    let (flags, untuned) = ([&flags[..], &["--tuning", tuning]].concat(), flags);
    let dry = || {
        let done = finish(job::job(&[(2, &[&flags[..], &["--dry-run"]].concat())]));
        assert!(done.success, "{}", done.stderr);
        (choices(&done.stdout), done.stderr.matches("warn").count(), done.stderr)
    };
    let (measured, warnings, said) = dry();
    assert!(measured.len() > 1 && warnings == 0, "{measured:?} {said}");
    assert_eq!(dry().0, measured, "the same flags and file");

    // The same choices and times are recorded.
    let results = directory.path().join("run.h5");
    let length = ["--steps", "1", "--warmup", "0", "--results", results.to_str().unwrap()];
    run(2, &[&flags[..], &length].concat());
    let record = hdf5::File::open(&results).unwrap();
    let names: Vec<VarLenUnicode> = record.dataset("config/bucket_allreduce").unwrap().read_raw().unwrap();
    let seconds: Vec<f64> = record.dataset("config/bucket_predicted").unwrap().read_raw().unwrap();
    let recorded: Vec<(String, String)> =
        names.iter().zip(seconds).map(|(name, s)| (name.to_string(), format!("{:.3}", s * 1e3))).collect();
    assert_eq!(recorded, measured);
    assert_eq!(record.dataset("steps/bucket_finish").unwrap().shape(), [1, measured.len()]);

    // Damaged, changed, not there: one warning that says how to measure, and the built-in figures.
    let text = fs::read_to_string(&file).unwrap();
    let built_in = choices(&run(2, &[&untuned[..], &["--dry-run"]].concat()));
    for damaged in [text[..text.len() / 2].to_string(), text.replace("\"ranks\": \"2\"", "\"ranks\": \"3\"")]
    {
        assert_ne!(damaged, text);
        fs::write(&file, damaged).unwrap();
        let (choices, warnings, said) = dry();
        assert!(warnings == 1 && said.contains(tuning) && said.contains("bench autotune"), "{said}");
        assert_eq!(choices, built_in);
    }
    fs::remove_file(&file).unwrap();
    assert_eq!(dry().1, 1);
    fs::write(&file, text).unwrap();
    // Of other ranks latencies and rates count.
    let dry_run = [&flags[..], &["--dry-run"]].concat();
    let mut more = job::job(&[(3, &dry_run)]);
    more.env("DLTRAIN_LOG", "info");
    let more = finish(more);
    assert!(more.stderr.contains("other ranks a node (2, 3 here)"), "{}", more.stderr);
    assert_eq!(more.stderr.matches("warn").count(), 0, "{}", more.stderr);

    let message = refused(&[(1, &flags), (1, &untuned)]);
    assert!(message.contains("ranks differ in tuning"), "{message}");
}

#[test]
fn every_cut_of_a_models_gradients_sums_them_right() {
    for allreduce in ["auto", "recursive-doubling"] {
        let flags = ["bench", "fusion", "--model", "mnist_net", "--backward-ms", "1", "--iterations", "1"];
        let printed = run(2, &[&flags[..], &["--allreduce", allreduce]].concat());
        for cut in ["one a tensor", "4 MB", "16 MB", "64 MB", "rehearsed"] {
            let line = printed.lines().find(|line| line.trim_start().starts_with(cut));
            let line = line.unwrap_or_else(|| panic!("no {cut} in\n{printed}"));
            assert!(line.ends_with(" 0") && !line.contains("NaN"), "{line}");
        }
    }
}
