//! `dltrain bench layers` and `bench gemm`: whole tables of finite numbers, and refusals. (Allreduce: collectives.rs.)

#[path = "support/job.rs"]
mod job;

use job::{refused, run};

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
    ] {
        let message = refused(&[(2, &flags)]);
        assert!(message.contains(named), "{message}");
    }
}
