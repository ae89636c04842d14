//! `dltrain report`: one page that needs nothing else, charts as SVG, and what is said of files that are no runs.
//!
//! one run · scaling and sweeps of several · bad files are named and the others go on · nothing is overwritten

use crate::support::job;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use dltrain::fields::six_digits;
use job::{DLTRAIN, run};

const DIGITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/data/digits");

fn trained(directory: &Path, name: &str, ranks: usize, more: &[&str]) -> PathBuf {
    let path = directory.join(format!("{name}.h5"));
    run(ranks, &[&["--quiet", "--results", path.to_str().unwrap()], more].concat());
    path
}

fn report(directory: &Path, args: &[&str]) -> Output {
    Command::new(DLTRAIN).arg("report").args(args).current_dir(directory).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A page that asks for nothing from elsewhere.
fn page(path: &Path) -> String {
    let html = fs::read_to_string(path).unwrap();
    let foreign = html.replace("http://www.w3.org/2000/svg", "");
    assert!(!foreign.contains("http:") && !foreign.contains("https:") && !foreign.contains("<script"));
    assert_eq!(html.matches("<svg").count(), html.matches("</svg>").count());
    html
}

#[test]
fn a_run_becomes_a_page_and_charts() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    trained(at, "digits", 2, &["--data", DIGITS, "--epochs", "2"]);
    let done = report(at, &["digits.h5", "--plots", "plots"]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    let html = page(&at.join("report.html"));
    for part in [
        "Loss over steps",
        "Accuracy over time",
        "cross-entropy loss",
        "images/s",
        "[ms]",
        "memory of the largest rank [MB]",
        "activations",
        "A step, rehearsed and measured",
        "The rehearsal before the first step expected",
        "training loss",
        "first epoch",
        "model = &quot;mnist_small&quot;",
    ] {
        assert!(html.contains(part), "{part}");
    }
    // The third colour: forward and backward steps in one piece or several, and each bucket's sum.
    let step = fs::read_to_string(at.join("plots/step-digits.svg")).unwrap();
    let file = hdf5::File::open(at.join("digits.h5")).unwrap();
    let sums = file.dataset("config/bucket_bytes").unwrap().size();
    let runs = file.dataset("config/script_computes").unwrap().read_raw::<u64>().unwrap();
    let runs = runs.iter().filter(|&&computes| computes == 1).count();
    // One more in the legend.
    assert_eq!(step.matches("fill=\"#009E73\"").count(), sums + runs + 1, "{step}");
    // The ends of both steps, each once more in the legend.
    assert_eq!(step.matches("stroke=\"#009E73\"").count(), 2, "{step}");
    let losses = file.dataset("epochs/train_loss").unwrap().read_raw::<f64>().unwrap();
    assert!(html.contains(&format!(">{:.4}<", losses[1])), "{losses:?}: {html}");
    // Text is drawn without any font of the system's: in the generic family, by who shows it.
    let chart = fs::read_to_string(at.join("plots/memory.svg")).unwrap();
    let label = chart.find("memory of the largest rank [MB]").expect("the label of the axis");
    let element = &chart[chart[..label].rfind("<text").unwrap()..label];
    assert!(element.contains("font-family=\"sans-serif\""), "{element}");
    assert!(fs::read_to_string(at.join("plots/loss-over-steps.svg")).unwrap().starts_with("<svg"));
    // A newer report takes its place; what is none stays.
    assert!(report(at, &["digits.h5"]).status.success());
    fs::write(at.join("precious.html"), "<p>mine").unwrap();
    for (args, named) in [
        (["digits.h5", "-o", "precious.html"], "is no report"),
        (["digits.h5", "--plots", "plots"], "is not empty"),
    ] {
        let done = report(at, &args);
        assert_eq!(done.status.code(), Some(8));
        assert!(text(&done.stderr).contains(named), "{}", text(&done.stderr));
    }
    assert_eq!(fs::read_to_string(at.join("precious.html")).unwrap(), "<p>mine");
}

#[test]
fn several_runs_are_compared_and_bad_files_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let short = ["--steps", "4", "--warmup", "1", "--threads", "1"];
    for (name, ranks, batch) in [("one", 1, "16"), ("two", 2, "16"), ("large", 1, "32")] {
        trained(at, name, ranks, &[&short[..], &["--batch", batch]].concat());
    }
    let old = at.join("old.h5");
    fs::copy(at.join("one.h5"), &old).unwrap();
    {
        // As an older program would have left it, killed.
        let file = hdf5::File::open_rw(&old).unwrap();
        file.unlink("config/memory_kind").unwrap();
        file.unlink("epochs").unwrap();
        file.dataset("summary/status").unwrap();
        let status = file.dataset("summary/status").unwrap();
        let running: hdf5::types::FixedUnicode<512> = "running".parse().unwrap();
        status.write_scalar(&running).unwrap();
    }
    let older = at.join("older.h5");
    fs::copy(at.join("two.h5"), &older).unwrap();
    hdf5::File::open_rw(&older).unwrap().unlink("config/script_begin").unwrap();
    let done = report(at, &["older.h5"]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert!(page(&at.join("report.html")).contains("What was expected is not known."));
    let done = report(at, &["one.h5", "two.h5", "large.h5", "old.h5"]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    let html = page(&at.join("report.html"));
    for part in [
        "Settings that differ",
        "Speed over ranks",
        "Efficiency over ranks",
        "Speed over the batch",
        "Memory over the batch",
        "old: is still being written",
    ] {
        assert!(html.contains(part), "{part}");
    }
    // Numbers that are f32 are those that were typed.
    trained(at, "averaged", 1, &[&short[..], &["--batch", "16", "--ema", "0.9"]].concat());
    assert!(report(at, &["one.h5", "averaged.h5", "-o", "averaged.html"]).status.success());
    let html = page(&at.join("averaged.html"));
    assert!(html.contains(">0.9<") && !html.contains("0.8999"), "{html}");
    // Beside a prediction one number of ranks is enough.
    let predicted = at.join("predicted.json");
    let saved = ["--save-prediction", predicted.to_str().unwrap()];
    run(
        1,
        &[&["--dry-run", "--predict-nodes", "1,2,4,8", "--batch", "16", "--threads", "1"], &saved[..]]
            .concat(),
    );
    let read: serde_json::Value = serde_json::from_slice(&fs::read(&predicted).unwrap()).unwrap();
    let ranks: Vec<_> =
        read["points"].as_array().unwrap().iter().map(|point| point["ranks"].as_u64()).collect();
    assert_eq!(ranks, [1, 2, 4, 8].map(Some));
    let done = report(at, &["one.h5", "--predicted", "predicted.json", "--plots", "plots"]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    for chart in ["scaling", "efficiency"] {
        let svg = fs::read_to_string(at.join(format!("plots/{chart}.svg"))).unwrap();
        assert!(svg.contains("predicted: ") && svg.contains("\n8\n"), "{svg}");
    }
    predictions_are_a_page_by_themselves(at);
    fs::write(at.join("other.json"), "{\"points\": []}").unwrap();
    let done = report(at, &["one.h5", "--predicted", "other.json"]);
    assert!(text(&done.stderr).contains("other.json: is no prediction"), "{}", text(&done.stderr));
    fs::write(at.join("text.h5"), "no record").unwrap();
    fs::create_dir(at.join("empty")).unwrap();
    let done = report(at, &["text.h5", "missing.h5", "empty", "one.h5", "-o", "some.html"]);
    assert_eq!(done.status.code(), Some(3));
    let said = text(&done.stderr);
    for named in ["text.h5: is no HDF5 file", "missing.h5: No such file", "empty: holds no results file"] {
        assert!(said.contains(named), "{said}");
    }
    assert!(page(&at.join("some.html")).contains("text.h5: is no HDF5 file"));
    let done = report(at, &["text.h5", "-o", "none.html"]);
    assert!(done.status.code() == Some(3) && !at.join("none.html").exists());
    // Under a launcher one rank makes it.
    let mut command = job::start(2, &[DLTRAIN, "report", "two.h5", "-o", "ranks.html"]);
    let done = command.current_dir(at).output().unwrap();
    assert_eq!(text(&done.stdout).matches("report: ").count(), 1, "{}", text(&done.stderr));
}

/// Those of as many samples in all are one line, whatever the batch of a rank.
fn predictions_are_a_page_by_themselves(at: &Path) {
    for (nodes, batch) in [("1", "16"), ("2", "8")] {
        let path = at.join(format!("strong-{nodes}.json"));
        let flags = ["--dry-run", "--predict-nodes", nodes, "--batch", batch, "--threads", "1"];
        run(1, &[&flags[..], &["--save-prediction", path.to_str().unwrap()]].concat());
    }
    let files = ["--predicted", "strong-1.json", "--predicted", "strong-2.json"];
    let done = report(at, &[&files[..], &["-o", "strong.html", "--plots", "strong"]].concat());
    assert!(done.status.success(), "{}", text(&done.stderr));
    let svg = fs::read_to_string(at.join("strong/strong-scaling.svg")).unwrap();
    assert!(svg.contains("16 samples a step"), "{svg}");
    assert!(page(&at.join("strong.html")).contains("strong scaling"));
    // Of one number of ranks each there is no other line, and of one number of samples none of these.
    assert!(!at.join("strong/scaling.svg").exists());
    let done = report(at, &["--predicted", "predicted.json", "-o", "weak.html", "--plots", "weak"]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert!(at.join("weak/scaling.svg").exists() && !at.join("weak/strong-scaling.svg").exists());
}

/// Predictions that memory does not hold: two samples of 256 MB each, by a process that may take 160 MB.
#[test]
fn predictions_larger_than_memory_become_a_page() {
    const SIDE: usize = 8192;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("out.h5");
    let file = hdf5::File::create(&path).unwrap();
    let write = |of: &str, text: &str| {
        let text: hdf5::types::VarLenUnicode = text.parse().unwrap();
        file.new_attr::<hdf5::types::VarLenUnicode>().create(of).unwrap().write_scalar(&text).unwrap();
    };
    write("format", "dltrain field predictions");
    let names: Vec<hdf5::types::VarLenUnicode> = ["a n 0", "a n 1"].map(|name| name.parse().unwrap()).into();
    file.new_dataset_builder().with_data(&names).create("sample").unwrap();
    // What was never written is 0, and takes no place.
    let create = |name: &str, shape: &[usize], chunk: &[usize]| {
        let chunked = file.new_dataset::<f32>().shape(shape).chunk(chunk);
        chunked.create(name).unwrap()
    };
    let output = create("output", &[2, 1, SIDE, SIDE], &[1, 1, 32, SIDE]);
    create("target", &[2, SIDE, SIDE], &[1, SIDE, SIDE]);
    output.write_slice(&ndarray::arr1(&vec![3f32; SIDE]), ndarray::s![1, 0, SIDE / 2, ..]).unwrap();
    drop(output);
    file.close().unwrap();
    let limited = format!("ulimit -d 160000; exec {DLTRAIN} report out.h5");
    let done = Command::new("sh").args(["-c", &limited]).current_dir(directory.path()).output().unwrap();
    assert!(done.status.success(), "{}", text(&done.stderr));
    let html = page(&directory.path().join("report.html"));
    let [count, mae] = [2 * SIDE * SIDE, SIDE].map(|count| count as f64);
    let said = format!(
        "2 samples, {count} points that have a target; mean absolute error {}, root of the mean square {}.",
        six_digits(3.0 * mae / count),
        six_digits((9.0 * mae / count).sqrt())
    );
    assert!(html.contains(&said) && html.contains("out, a n 1"), "{said}");
}
