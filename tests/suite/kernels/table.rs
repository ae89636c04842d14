//! What kernels there are, and what the tests would see.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use dltrain::graph::Activation;
use libloading::Library;

use crate::support::fake_cuda;
use crate::support::kernels::{arguments, names};

fn kernels_folder() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels")
}

/// For all GPUs, and for newer ones.
const PTX: [&str; 2] = ["dltrain.ptx", "dltrain.sm_80.ptx"];

/// Entry points of a PTX with how many parameters they have.
fn in_ptx(file: &str) -> BTreeMap<String, usize> {
    let text = fs::read_to_string(kernels_folder().join(file)).unwrap();
    let entries = text.split(".entry ").skip(1).map(|entry| {
        let (name, rest) = entry.split_once('(').unwrap();
        (name.to_string(), rest.split_once(')').unwrap().0.matches(".param").count())
    });
    entries.collect()
}

/// Kernels of the README with their arguments as written there.
fn in_readme() -> BTreeMap<String, Vec<String>> {
    let text = fs::read_to_string(kernels_folder().join("README.md")).unwrap();
    let mut kernels = BTreeMap::new();
    for line in text.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.split(" | ").collect();
        let name = cells[0].trim_matches(['|', ' ', '`']);
        // What is said in brackets and after the last argument is not one.
        let mut list = cells[1].trim_end_matches(" |").to_string();
        while let Some(open) = list.find(" (") {
            let close = list[open..].find(')').unwrap() + open;
            list.replace_range(open..=close, "");
        }
        let list = list.split_once(". ").map_or(list.as_str(), |(before, _)| before);
        let list = list.split_once(": ").map_or(list, |(before, _)| before);
        let in_full = |argument: &str| match argument {
            "table" => {
                ["const Piece *pieces", "int piece_count", "const Span *spans"].map(str::to_string).into()
            }
            "sizes" => vec!["int of eight".to_string(); 8],
            "geometry" => vec!["int of seventeen".to_string(); 17],
            "places" => vec!["int of six".to_string(); 6],
            other => vec![other.to_string()],
        };
        let arguments: Vec<String> = list.split(", ").flat_map(in_full).collect();
        for name in each_type(name) {
            kernels.insert(name, arguments.clone());
        }
    }
    kernels
}

/// `cast_F_T` stands for seven kernels, `relu_T` for three, `round_F` for two.
fn each_type(name: &str) -> Vec<String> {
    let types = ["f32", "bf16", "f16"];
    if let Some(stem) = name.strip_suffix("_F_T") {
        let pairs = types.iter().flat_map(|from| types.iter().map(move |to| (from, to)));
        let served = pairs.filter(|(from, to)| from == to || **from == "f32" || **to == "f32");
        return served.map(|(from, to)| format!("{stem}_{from}_{to}")).collect();
    }
    let halves_only = ["accumulate_rounded_F", "round_F", "widen_F"].contains(&name);
    match name.strip_suffix("_T").or(name.strip_suffix("_F")) {
        Some(stem) => types[usize::from(halves_only)..].iter().map(|t| format!("{stem}_{t}")).collect(),
        None => vec![name.to_string()],
    }
}

fn letter(argument: &str) -> char {
    match argument.trim() {
        pointer if pointer.contains('*') => 'p',
        long if long.starts_with("Long ") => 'l',
        float if float.starts_with("float ") => 'f',
        _ => 'i',
    }
}

#[test]
fn the_readme_the_sources_and_the_ptx_have_the_same_kernels() {
    let (readme, ptx) = (in_readme(), PTX.map(in_ptx));
    let sources = names();
    assert_eq!(readme.keys().cloned().collect::<Vec<_>>(), sources, "README and sources");
    for ptx in &ptx {
        assert_eq!(ptx.keys().cloned().collect::<Vec<_>>(), sources, "PTX and sources: make kernels");
    }
    for name in sources {
        let real = arguments(&name).unwrap();
        assert_eq!(
            readme[&name].iter().map(|a| letter(a)).collect::<String>(),
            real,
            "{name}: {:?}",
            readme[&name]
        );
        assert_eq!([ptx[0][&name], ptx[1][&name]], [real.len(); 2], "{name}: make kernels");
    }
}

/// Updates have the host's bits, and forward and backward agree, only if nothing is fused, flushed to zero or
/// approximated; what computes exponentials and powers does so inside those.
#[test]
fn arithmetic_is_rounded_step_by_step() {
    let text = PTX.map(|file| fs::read_to_string(kernels_folder().join(file)).unwrap());
    for entry in text.iter().flat_map(|text| text.split(".entry ").skip(1)) {
        let (name, body) = entry.split_once('(').unwrap();
        let smooth = Activation::ALL.iter().filter(|of| of.number().is_none());
        let powers = smooth.map(|of| of.kind()).chain(["softmax", "field", "lrn"]);
        if !powers.into_iter().any(|powers| name.starts_with(powers)) {
            let wrong = ["fma.", ".ftz", ".approx", "div.full"].into_iter().find(|word| body.contains(word));
            assert!(wrong.is_none(), "{name} has {wrong:?}");
        }
    }
}

/// The kernels as if on a GPU: from the PTX through the driver's calls, here the double's. The tests leave none out.
#[test]
fn the_tests_run_every_kernel_on_a_gpu_too() {
    let directory = tempfile::tempdir().unwrap();
    let launched = directory.path().join("launched");
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["kernels::", "--skip", "table::", "--test-threads", "2"])
        .env("DLTRAIN_KERNELS_ON", "cuda")
        .env("DLTRAIN_KERNELS_LAUNCHED", &launched)
        .env("DLTRAIN_CUDA_PATH", fake_cuda::libraries())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success() && !said.contains(" 0 passed"), "{said}");
    let launched = fs::read_to_string(launched).unwrap();
    let launched: BTreeSet<&str> = launched.lines().collect();
    let missed: Vec<String> = names().into_iter().filter(|name| !launched.contains(name.as_str())).collect();
    assert!(missed.is_empty(), "no test launches {missed:?}");
}

/// The bundle that a card's machine gets has no sources: what reads them would fail there.
#[test]
fn what_reads_the_sources_is_left_out_on_a_card() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let check = fs::read_to_string(root.join(".ci/gpu-check")).unwrap();
    let command = check.lines().find(|line| line.starts_with("kernels=(")).unwrap();
    let files = fs::read_dir(root.join("tests/suite/kernels")).unwrap().map(|entry| entry.unwrap().path());
    let reading: Vec<String> = files
        .filter(|file| fs::read_to_string(file).unwrap().contains(r#"env!("CARGO_MANIFEST_DIR")"#))
        .map(|file| file.file_stem().unwrap().to_str().unwrap().to_string())
        .collect();
    assert!(reading.iter().any(|name| name == "table"), "{reading:?}");
    let left: Vec<&String> =
        reading.iter().filter(|name| !command.contains(&format!("--skip {name}::"))).collect();
    assert!(left.is_empty(), "{command} runs {left:?}");
}

/// One bit of a GPU's work that the tests on the host must not miss.
#[test]
fn a_missing_barrier_shows_in_one_order_of_threads() {
    // SAFETY: the library has no constructors to speak of; the type is that of planted.cpp.
    let is_right = |waits: bool, descending: bool| unsafe {
        let library = Library::new(fake_cuda::libraries().join("libplanted.so")).unwrap();
        library.get::<unsafe extern "C" fn(bool, bool) -> bool>(b"planted").unwrap()(waits, descending)
    };
    assert!(is_right(true, false) && is_right(true, true));
    assert!(!(is_right(false, false) && is_right(false, true)));
}

/// The PTX is what the sources give, where the compiler is there to ask (`.ci/deps cuda`; CI has it not).
#[test]
fn the_ptx_is_that_of_the_sources() {
    let folder = kernels_folder();
    let made = tempfile::tempdir().unwrap();
    let output = Command::new("python3").arg(folder.join("ptx.py")).arg(made.path()).output();
    let Ok(output) = output else { return println!("SKIPPED: no python3 on this machine") };
    if output.status.code() == Some(3) {
        return println!("SKIPPED: {}", String::from_utf8_lossy(&output.stderr).trim_end());
    }
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for file in PTX {
        let alike = fs::read(made.path().join(file)).unwrap() == fs::read(folder.join(file)).unwrap();
        assert!(alike, "kernels/{file} is older than the sources: make kernels");
    }
}
