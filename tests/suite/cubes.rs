//! Networks of cubes, and the universes to try them on: what a user relies on.
//!
//! - weights and checkpoints keep the shape of the samples that they learned from, whatever channels and edges these
//!   have: `export` writes the network for it, and says it where other samples are meant; of weights that keep none
//!   `--image-size` says it, and a message names that flag;
//! - universes that are packed already are not written again, and flags of images are refused;
//! - names of sets that nobody computes are refused with those that there are;
//! - the command that `dltrain inspect` ends with trains from universes;
//! - what a rank lacks is said in one figure, with what helps.

use crate::support::job;
use crate::support::scratch::Scratch;

use std::path::Path;

use dltrain::model;
use dltrain::record::{ModelMetadata, WeightsFile, write_weights};
use job::{DLTRAIN, misused, refused, run};

fn words(text: &str) -> Vec<&str> {
    text.split_whitespace().collect()
}

/// What a command says that does its work, or is refused: DIR stands for the directory.
fn done(scratch: &Scratch, words: &str) -> String {
    let words = scratch.words(words);
    run(1, &words.iter().map(String::as_str).collect::<Vec<_>>())
}

fn not_done(scratch: &Scratch, words: &str) -> String {
    let words = scratch.words(words);
    refused(&[(1, &words.iter().map(String::as_str).collect::<Vec<_>>())])
}

/// Of a file of weights, one that says nothing besides, as other programs write it.
fn bare(from: &Path, to: &Path) {
    let file = WeightsFile::open(from).unwrap();
    let values = |name: &str| file.values(name);
    write_weights(to, file.shapes(), &ModelMetadata::default(), &values, None).unwrap();
}

/// What a network of cubes is written for is what its weights learned from: four channels, of which a network by name
/// has three, and edges that are unlike.
#[test]
fn a_network_of_cubes_is_written_for_the_samples_that_it_learned_from() {
    let scratch = Scratch::new();
    let cases = [
        (
            "unet3d",
            "synthetic:universes:2:16",
            "full[d,h,w=0..8,c]",
            "full[d,h,w=0..8,c]:log1p",
            [4, 16, 16, 8],
        ),
        ("cosmoflow", "synthetic:universes:2:64", "full[d,h=0..32,w=0..32,c]", "unitPar[c]", [4, 64, 32, 32]),
    ];
    for (name, data, input, target, sample) in cases {
        let views =
            format!("--data {data} --input {input}:log1p --target {target} --loss mse --batch 2 --threads 1");
        let network = format!("--model {name} --classes 4");
        done(
            &scratch,
            &format!(
                "{network} {views} --steps 1 --quiet --results DIR/{name}.h5 --save-weights DIR/{name}.safetensors \
                 --checkpoint DIR/{name}"
            ),
        );
        let exported = |from: &str, to: &str, more: &str| {
            let said = done(&scratch, &format!("export DIR/{from} DIR/{to} {network} {more}"));
            (said, model::open(&scratch.path(to)).unwrap().image.to_vec())
        };
        let (said, image) = exported(&format!("{name}.safetensors"), &format!("{name}.onnx"), "");
        assert_eq!(image, sample, "{name}");
        assert!(said.contains("learned from samples of 4×"), "{said}");
        // The network's loss is that of the weights.
        let tested = |network: &str| {
            let said = done(&scratch, &format!("evaluate {network} {views}"));
            said.lines().find(|line| line.starts_with("test loss")).unwrap().to_string()
        };
        let expected = tested(&format!("{network} --init-from DIR/{name}.safetensors"));
        let loss = |line: &str| words(line)[2].trim_end_matches(',').parse::<f64>().unwrap();
        let found = tested(&format!("--model DIR/{name}.onnx"));
        assert!((loss(&found) - loss(&expected)).abs() < 1e-6 * loss(&expected), "{found}, and {expected}");
        if name != "unet3d" {
            continue;
        }
        let (_, image) = exported(&format!("{name}/step-00000001.h5"), &format!("{name}-kept.onnx"), "");
        assert_eq!(image, sample, "{name}");
        // Weights of another program say nothing of it.
        let [own, other] = ["", "-bare"].map(|end| scratch.path(&format!("{name}{end}.safetensors")));
        bare(&own, &other);
        let message =
            not_done(&scratch, &format!("export DIR/{name}-bare.safetensors DIR/{name}-no.onnx {network}"));
        assert!(message.contains("--image-size says of what samples they are"), "{message}");
        let size = sample.map(|extent| extent.to_string()).join("x");
        let size = format!("--image-size {size}");
        let (_, image) = exported(&format!("{name}-bare.safetensors"), &format!("{name}-bare.onnx"), &size);
        assert_eq!(image, sample, "{name}");
    }
    // A network without large layers is written for another edge with the channels that it has.
    done(&scratch, "export DIR/unet3d.safetensors DIR/other.onnx --model unet3d --classes 4 --image-size 32");
    assert_eq!(model::open(&scratch.path("other.onnx")).unwrap().image[..], [4, 32, 32, 32]);
    // Where weights do not fit since data have other edges, both are said.
    let flags = "--model cosmoflow --init-from DIR/cosmoflow.safetensors --data synthetic:universes:2:32 --input \
                 full[d,h,w,c]:log1p --target unitPar[c] --loss mse --batch 2";
    let message = not_done(&scratch, &format!("evaluate {flags}"));
    let what = "these weights learned from samples of 4×64×32×32, and here samples are 4×32×32×32";
    assert!(message.contains(what), "{message}");
    // Channels are those of the weights where they are not named.
    done(
        &scratch,
        "export DIR/unet3d.safetensors DIR/edges.onnx --model unet3d --classes 4 --image-size 16x32x8",
    );
    assert_eq!(model::open(&scratch.path("edges.onnx")).unwrap().image[..], [4, 16, 32, 8]);
    for (size, what) in [
        ("4x0x8x8", "must be at least 1"),
        ("4x8", "2 numbers, and samples are 4×16×16×8"),
        ("x", "not a whole number"),
    ] {
        let flags = format!(
            "export DIR/unet3d.safetensors DIR/n{size}.onnx --model unet3d --classes 4 --image-size {size}"
        );
        assert!(not_done(&scratch, &flags).contains(what), "{flags}");
    }
}

#[test]
fn universes_are_packed_once_and_know_no_flags_of_images() {
    let scratch = Scratch::new();
    let said = done(&scratch, "pack synthetic:universes:2:16 DIR");
    assert!(said.contains("2 universes, one in a file: "), "{said}");
    let file = scratch.path("universe-1-16-1.hdf5");
    let before = file.metadata().unwrap().modified().unwrap();
    let flags = scratch.words("pack synthetic:universes:3:16 DIR");
    let said = run(2, &flags.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(said.contains("3 universes, one in a file (2 of them there already): "), "{said}");
    assert_eq!(file.metadata().unwrap().modified().unwrap(), before);
    let message = not_done(&scratch, "pack synthetic:universes:2:16 DIR --verify --size 100 --seed 4");
    assert!(message.contains("--size, --seed, --verify would do nothing"), "{message}");
    assert!(message.contains("leave them out"), "{message}");
    for flag in ["--encoded", "--data-format idx", "--file-mb 9", "--strict"] {
        let message = not_done(&scratch, &format!("pack synthetic:universes:2:16 DIR {flag}"));
        let name = words(flag)[0];
        assert!(message.contains(&format!("{name} would do nothing")), "{message}");
    }
    // Arrays are no images, and are trained from as they lie there.
    let message = not_done(&scratch, "pack DIR DIR/new.h5");
    assert!(message.contains("holds arrays, which need no packing"), "{message}");
    assert!(message.contains("--input and --target, as dltrain inspect "), "{message}");
}

#[test]
fn sets_that_nobody_computes_are_refused_by_name() {
    let named = "universes, and these are named synthetic:universes:N:EDGE:SEED";
    for set in ["universe", "universe:4", "universe-test:1:16:1", "shapes", "nothing:3"] {
        let data = format!("synthetic:{set}");
        let message = misused(1, &words(&format!("--data {data} --input full --target unitPar --loss mse")));
        assert!(message.contains(named) && message.contains(&data), "{message}");
    }
    let message = misused(1, &["pack", "synthetic:universe:2:16", "."]);
    assert!(message.contains(named), "{message}");
}

/// The lengths of axes tell a small cube with channels from pictures.
#[test]
fn what_inspect_says_of_universes_does_train() {
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.path("u")).unwrap();
    done(&scratch, "pack synthetic:universes:2:32 DIR/u");
    let said = done(&scratch, "inspect DIR/u");
    assert!(said.contains("guessed view full[d,h,w,c]"), "{said}");
    let line = said.lines().find_map(|line| line.split_once("as a first try: dltrain ")).expect(&said).1;
    let views = "--input 'full[d,h,w,c]:log1p' --target 'unitPar[c]' --loss mse --classes 4 --batch 2";
    assert!(line.starts_with("--model cosmoflow ") && line.ends_with(views), "{line}");
    let command =
        format!("'{DLTRAIN}' {line} --epochs 1 --quiet --results '{}'", scratch.path("run.h5").display());
    let done = std::process::Command::new("sh").args(["-c", &command]).output().unwrap();
    assert!(done.status.success(), "{command}: {}", String::from_utf8_lossy(&done.stderr));
}

/// Without samples to test on: what is planned of the smallest batch is what the run needs.
#[test]
fn what_a_rank_lacks_is_one_figure_and_says_what_helps() {
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.path("u")).unwrap();
    run(1, &["pack", "synthetic:universes:2:128", &scratch.path("u").display().to_string()]);
    let flags =
        "--model cosmoflow --data u --input full[d,h,w,c]:log1p --target unitPar[c] --loss mse --threads 1";
    let said = |more: &str| {
        let mut command = std::process::Command::new("sh");
        command.args(["-c", "ulimit -v 800000; exec \"$0\" \"$@\"", DLTRAIN]);
        command.args(words(&format!("{flags} {more}"))).current_dir(scratch.directory());
        let done = job::finish(command);
        done.stdout + &done.stderr
    };
    let alone = said("--batch 1 --dry-run");
    assert!(
        alone.contains(
            "no batch is smaller; less is needed with --recompute, --precision bf16 or --spatial over \
                            several ranks"
        ),
        "{alone}"
    );
    let given = said("--batch 2 --recompute --dry-run");
    assert!(given.contains("not even the smallest fits (it needs "), "{given}");
    assert!(
        given.contains("; less is needed with --precision bf16 or --spatial over several ranks"),
        "{given}"
    );
}
