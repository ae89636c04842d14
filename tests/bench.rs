//! `dltrain bench`: whole tables of finite numbers, and refusals. (What collectives give: collectives.rs.)

#[path = "support/job.rs"]
mod job;

use hdf5::types::{FixedUnicode, VarLenUnicode};
use job::{DLTRAIN, refused, run};

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
        ("allreduce", 2, 1.0, &["MPI_Allreduce", "vendor", "ring", "halving", "tree", "torus"][..]),
        ("reducescatter", 3, 2.0 / 3.0, &["MPI_Reduce_scatter", "ring"]),
        ("allgather", 3, 2.0 / 3.0, &["MPI_Allgather", "ring"]),
        ("broadcast", 2, 1.0, &["MPI_Bcast", "chain", "tree"]),
    ] {
        let path = directory.path().join(format!("{bench}.h5"));
        let flags = ["bench", bench, "--sizes", "4K,40K", "--iterations", "3", "--wire", "bf16", "--results"];
        let printed = run(ranks, &[&flags[..], &[path.to_str().unwrap()]].concat());
        let in_memory =
            if bench == "allreduce" { &["hierarchical", "shm", "(memory)"][..] } else { &["shm"] };
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
        // What is there is not written over.
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
fn what_cannot_be_measured_is_refused() {
    for (flags, named) in [
        (["bench", "layers", "--steps", "0"], "--steps 0"),
        (["bench", "layers", "--batch", "0"], "--batch 0"),
        (["bench", "layers", "--model", "resnet51"], "resnet51"),
        (["bench", "gemm", "--repeats", "0"], "--repeats 0"),
        (
            ["bench", "allreduce", "--algorithm", "butterfly"],
            "--algorithm butterfly: allreduce has auto, ring",
        ),
        (["bench", "allgather", "--algorithm", "chain"], "allgather by chain: use ring or shm"),
        (["bench", "broadcast", "--sizes", "4X"], "unknown unit `X`"),
        (["bench", "broadcast", "--sizes", "6"], "--sizes 6"),
        (["bench", "reducescatter", "--lengths", "9223372036854775807"], "too large"),
        (["bench", "reducescatter", "--sizes", "900000G"], "cannot allocate"),
        (["bench", "allreduce", "--iterations", "0"], "--iterations 0"),
        (["bench", "allreduce", "--results", "/proc/nothing/b.h5"], "/proc/nothing"),
        (["bench", "allreduce", "--results", DLTRAIN], "cannot write in"),
    ] {
        let message = refused(&[(2, &flags)]);
        assert!(message.contains(named), "{message}");
    }
    let wire = |wire| ["bench", "allreduce", "--lengths", "7", "--wire", wire];
    let message = refused(&[(1, &wire("f32")), (1, &wire("bf16"))]);
    assert!(message.contains("ranks differ in --wire: f32 (rank 0 on "), "{message}");
}
