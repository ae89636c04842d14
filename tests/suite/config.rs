//! The run file: flags in a file, the file in the record, and a run repeated from its record. And what is made of the
//! definition of the flags: completions, manual pages.
//!
//! a file does what its flags would · the command line counts more · everything wrong is said at once, by line · a
//! record repeats its run · a level of messages that is none · completions and manual pages know every flag

use crate::support::{arrays, job};

use std::fs;
use std::path::Path;
use std::process::Command;

use job::{DLTRAIN, finish, job as launch, refused, run, series};

const DIGITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/data/digits");

fn written(directory: &Path, text: &str) -> String {
    let path = directory.join("run.toml");
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().into()
}

fn attribute(results: &str, name: &str) -> String {
    let file = hdf5::File::open(results).unwrap();
    let attribute = file.group("config").unwrap().attr(name).unwrap();
    attribute.read_scalar::<hdf5::types::VarLenUnicode>().unwrap().to_string()
}

#[test]
fn a_file_does_what_its_flags_would_and_its_record_repeats_the_run() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_string();
    let text = format!(
        "data = \"{DIGITS}\"\nepochs = 2\nbatch = 16 # a rank\nbetas = [0.8, 0.99]\nlr = 2e-3\nstrict = true\nseed = 7\n"
    );
    let file = written(directory.path(), &text);
    let [typed, filed, repeated, changed] =
        ["typed", "filed", "repeated", "changed"].map(|n| path(&format!("{n}.h5")));
    let flags = "--epochs 2 --batch 16 --betas 0.8 0.99 --lr 2e-3 --strict --seed 7 --data";
    let flags: Vec<&str> = flags.split(' ').chain([DIGITS, "--results", &typed]).collect();
    run(2, &flags);
    run(2, &["--config", &file, "--results", &filed]);
    let quiet = run(2, &["--config", &filed, "--results", &repeated, "--quiet"]);
    assert_eq!(quiet, "", "--quiet");
    let bits =
        |of: &str| series(Path::new(of), "steps/loss").iter().map(|loss| loss.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&typed), bits(&filed));
    assert_eq!(bits(&filed), bits(&repeated));
    run(2, &["--config", &filed, "--results", &changed, "--seed", "8", "--strict=false", "--epochs=1"]);
    assert_eq!(bits(&changed).len() * 2, bits(&filed).len());
    let kept = attribute(&changed, "run_file");
    for line in ["seed = 8", "epochs = 1", "betas = [0.8, 0.99]", "lr = 2e-3", "optimizer = \"adam\""] {
        assert!(kept.lines().any(|kept| kept == line), "{line} is missing in\n{kept}");
    }
    assert!(!kept.contains("strict") && kept.contains("threads = "), "{kept}");
}

/// A flag that may be given several times has a list, and so has the record of a run that was given two.
#[test]
fn a_file_has_several_arrays() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_string();
    let [data, typed, filed, repeated] = ["data.h5", "typed.h5", "filed.h5", "repeated.h5"].map(path);
    arrays::write(Path::new(&data), 0, 12);
    let views = ["air/wind[n,h,w,0]:standard", "air/wind[n,h,w,1]"];
    let fixed =
        ["--model", arrays::EMULATOR, "--data", &data, "--batch", "4", "--epochs", "1", "--loss", "mse"];
    let flags = ["--input", views[0], "--input", views[1], "--target", "heat[n,h,w]", "--results", &typed];
    run(1, &[&fixed[..], &flags].concat());
    let text = format!("input = [\"{}\", \"{}\"]\ntarget = \"heat[n,h,w]\"\n", views[0], views[1]);
    let file = written(directory.path(), &text);
    run(1, &[&fixed[..], &["--config", &file, "--results", &filed]].concat());
    run(1, &["--config", &filed, "--results", &repeated]);
    let losses = |of: &str| series(Path::new(of), "steps/loss");
    assert_eq!([losses(&filed), losses(&repeated)], [losses(&typed), losses(&typed)]);
}

#[test]
fn everything_wrong_is_said_at_once_by_line() {
    let directory = tempfile::tempdir().unwrap();
    let file = written(
        directory.path(),
        "bach = 3\nbatch = \"64\"\nstrict = 1\nimage_size = 8\noptimizer = \"sdg\"\nmodel = 5\n\nlr = [1.0]\nbetas = [0.5]\n",
    );
    let done = finish(launch(&[(2, &["--config", &file])]));
    assert!(!done.success);
    let said: Vec<&str> =
        done.stderr.lines().filter_map(|line| Some(line.split_once("run.toml:")?.1)).collect();
    let expected = [
        "1: no flag has the name bach; is it batch?",
        "2: batch wants a whole number",
        "3: strict wants true or false",
        "4: no flag has the name image_size; is it image-size?",
        "5: --optimizer sdg: none of sgd,",
        "6: model wants a text in quotation marks",
        "8: lr wants a number",
        "9: 2 values required for '--betas <B1> <B2>' but 1 was provided",
    ];
    assert_eq!(said.len(), expected.len(), "{}", done.stderr);
    for (said, expected) in said.iter().zip(expected) {
        assert!(said.starts_with(expected), "{said}\ninstead of\n{expected}");
    }
    for (text, named) in [
        ("batch = 0", "--batch 0: must be at least 1 (--batch is from "),
        ("batch = 1\nbatch = 2", "run.toml:2: "),
        ("batch 1", "run.toml:1: "),
        ("evaluate = true", "--init-from"),
    ] {
        let file = written(directory.path(), text);
        let message = refused(&[(1, &["--config", &file])]);
        assert!(message.contains(named), "{text}: {message}");
    }
    let message = refused(&[(2, &["--config", "/nowhere/run.toml"])]);
    assert!(message.contains("/nowhere/run.toml"), "{message}");
    // What is no results file is not taken for one.
    let other = directory.path().join("other.h5");
    hdf5::File::create(&other).unwrap();
    let message = refused(&[(1, &["--config", other.to_str().unwrap()])]);
    assert!(message.contains("other.h5: is HDF5, but no results file"), "{message}");
}

/// Numbers that no machine has room for are refused by name, not tried.
#[test]
fn absurd_numbers_end_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let keys: String = (0..100_000).map(|key| format!("k{key}=1\n")).collect();
    let file = written(directory.path(), &keys);
    let large = directory.path().join("large.toml");
    fs::write(&large, "#".repeat(2 << 20)).unwrap();
    let large = large.to_str().unwrap();
    let deep = directory.path().join("deep.toml");
    fs::write(&deep, format!("lr = {}", "[".repeat(1 << 19))).unwrap();
    let deep = deep.to_str().unwrap();
    let batches = ["--batch", "1048576", "--accumulation", "1048576", "--model", "mnist_small"];
    let evaluated = "--evaluate --model swin_t --batch 1048576 --image-size 16384 --init-from none.h5 --data";
    let evaluated: Vec<&str> = evaluated.split(' ').chain([DIGITS]).collect();
    let cases: [(&[&str], &str); 15] = [
        (
            &["--data", DIGITS, "--repeat-data", "1000000"],
            "--repeat-data 1000000: an epoch can have 1073741824 images",
        ),
        (
            &["--data", DIGITS, "--repeat-data", "10000000000"],
            "--repeat-data 10000000000: must be at most 1000000",
        ),
        (&["--data", "synthetic:shapes:4294967295"], "synthetic:shapes:4294967295: there is"),
        (&["--batch", "9223372036854775808"], "--batch 9223372036854775808: must be at most 1048576"),
        (
            &batches,
            "a global batch of 1 ranks × --batch 1048576 × --accumulation 1048576: at most 1073741824",
        ),
        (&["--threads", "100000"], "--threads 100000: must be at most 1024"),
        (&["bench", "gemm", "--threads", "100000"], "--threads 100000: must be at most 1024"),
        (
            &["bench", "data", "synthetic:shapes", "--loader-threads", "100000"],
            "--loader-threads 100000: must be at most 256",
        ),
        (&["pack", DIGITS, "x.h5", "--file-mb", "17592186044416"], "--file-mb between 1 and 1048576"),
        (&["--config", &file], "the file has 100000 keys, and there are only"),
        (&["--config", large], "large.toml: --config: more than 1048576 bytes"),
        (&["--config", deep], "deep.toml:1: "),
        (
            &["--batch", "65536", "--image-size", "16384", "--model", "resnet18", "--dry-run"],
            "images would have 65536×3×16384×16384 numbers, 17592186044416 of them in one channel",
        ),
        (&evaluated, "swin_t for images of 3×16384×16384: images would have 1048576×3×16384×16384 numbers"),
        (
            &["--image-size", "16384", "--batch", "1", "--model", "vgg16"],
            "1×64×16384×16384 numbers, 17179869184 of",
        ),
    ];
    for (flags, said) in cases {
        let done = finish(launch(&[(1, flags)]));
        let message = done.stderr.lines().find(|line| line.contains("error: ")).unwrap_or_default();
        assert!(!done.success && message.contains(said), "{flags:?}: {}{}", done.stdout, done.stderr);
        assert_eq!(done.code, Some(2), "{flags:?}: {}", done.stderr);
        // A second or less where nothing else runs.
        assert!(done.took < job::SECONDS, "{flags:?}: {:?}", done.took);
        assert!(!done.stderr.contains("defect"), "{flags:?}: {}", done.stderr);
    }
}

/// To env_logger any word is the name of a module, and all else would fall silent, warnings too.
#[test]
fn a_level_that_is_none_is_said_once_and_not_obeyed() {
    for (level, said) in [("verbose", 1), ("dltrain::train=debug", 0), ("Warn", 0), ("", 0)] {
        let mut command = launch(&[(2, &["--dry-run"])]);
        command.env("DLTRAIN_LOG", level);
        let done = finish(command);
        let text = format!("DLTRAIN_LOG={level} is not used");
        assert!(done.success && done.stderr.matches(&text).count() == said, "{level}: {}", done.stderr);
    }
}

/// Half of the way up in two epochs of five; once, whatever the number of ranks.
#[test]
fn a_rate_that_never_rises_to_its_height_is_said_once() {
    let directory = tempfile::tempdir().unwrap();
    let results = directory.path().join("a.h5");
    let words = "--model cifar_net --data synthetic:shapes:32 --batch 8 --threads 1 --epochs 2 --lr-warmup 5 --results";
    let words: Vec<&str> = words.split(' ').chain(results.to_str()).collect();
    let done = finish(launch(&[(2, &words)]));
    let said =
        "--lr-warmup 5: the run ends before the learning rate has risen to 0.001; its last step has 0.0004";
    assert!(done.success && done.stderr.matches(said).count() == 1, "{}", done.stderr);
}

#[test]
fn switches_of_the_environment_are_listed_and_a_misspelt_one_is_said_once() {
    let mut command = launch(&[(2, &["info", "--verbose"])]);
    command.env("DLTRAIN_CUDA_GRAPH", "0").env("DLTRAIN_CUDA_GRAPHS", "0");
    let done = finish(command);
    let line =
        |name: &str| done.stdout.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_string();
    assert!(done.success && line("DLTRAIN_CUDA_GRAPH ").ends_with(" 0"), "{}", done.stdout);
    assert!(line("DLTRAIN_CUDA_PIXELS ").ends_with("not set: on"), "{}", done.stdout);
    assert_eq!(done.stderr.matches("DLTRAIN_CUDA_GRAPHS is no switch").count(), 1, "{}", done.stderr);
    assert_eq!(done.stderr.matches("is no switch").count(), 1, "{}", done.stderr);
}

#[test]
fn completions_and_manual_pages_know_the_flags_and_the_exit_codes() {
    let output = |args: &[&str]| {
        // Where MPI cannot start, as on a login node.
        let done = Command::new(DLTRAIN).args(args).output().unwrap();
        assert!(done.status.success(), "{args:?}");
        String::from_utf8(done.stdout).unwrap()
    };
    for shell in ["bash", "zsh", "fish"] {
        let text = output(&["completions", shell]);
        for word in ["lr-warmup", "autotune", "rmsprop-tf", "inception_v3", "cross-entropy", "top5"] {
            assert!(text.contains(word), "{shell}: {word}");
        }
    }
    let page = output(&["man"]);
    assert!(page.contains("\\-\\-lr\\-warmup") && page.contains("75 stopped by a signal"), "{page}");
    let directory = tempfile::tempdir().unwrap();
    output(&["man", directory.path().to_str().unwrap()]);
    assert!(directory.path().join("dltrain-bench-allreduce.1").is_file());
}
