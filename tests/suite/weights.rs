//! Weights from files and to files: what a user of `--init-from`, `--save-weights`, `--freeze` and `dltrain export`
//! relies on.
//!
//! - what was saved, averaged weights too, is what was tested: it gives the same losses when it is read again;
//! - safetensors and HDF5 hold the same, and `export` makes one of the other, or of a checkpoint;
//! - frozen layers keep every bit, the others learn;
//! - a file that does not fit is refused with every difference in one message, a new head is a flag away;
//! - weights that no network can have are refused, and a test takes what a test takes;
//! - whatever tensors are called, their names come back from every kind of file, or training does not start;
//! - what wrappers put before all names is left out, and said;
//! - nothing is overwritten, and ranks that read unlike files are found.

use crate::support::cases::{each, first};
use crate::support::digits::few_tests;
use crate::support::job;
use crate::support::residual::residual;
use crate::support::scratch::Scratch;

use std::collections::BTreeMap;
use std::path::Path;

use dltrain::device::onednn::isa;
use dltrain::error::ErrorKind;
use dltrain::model::onnx::schema::ModelProto;
use dltrain::record::{ModelMetadata, WeightsFile, write_weights};
use prost::Message;

use job::{SECONDS, finish, job, refused, run, series};

impl Scratch {
    /// Trains a small ResNet on the digits; returns the test losses.
    fn train_resnet(&self, ranks: usize, name: &str, flags: &str) -> Vec<f64> {
        let flags = self.resnet_flags(name, flags);
        run(ranks, &flags.iter().map(String::as_str).collect::<Vec<_>>());
        series(&self.path(name), "epochs/test_loss")
    }

    /// All that a job says which must fail within seconds, with one message.
    fn refused_in_full(&self, name: &str, flags: &str) -> String {
        let flags = self.resnet_flags(name, flags);
        let done = finish(job(&[(2, &flags.iter().map(String::as_str).collect::<Vec<_>>())]));
        assert!(!done.success && done.took < SECONDS, "{}", done.stdout);
        assert_eq!(done.stderr.matches("error: ").count(), 1, "{}", done.stderr);
        done.stderr
    }

    /// What `--evaluate` says on two ranks.
    fn test(&self, flags: &str) -> String {
        let flags = self.named(&format!("--evaluate --data {} {flags}", few_tests()));
        run(2, &flags.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// The exit code of one rank with `--evaluate`, and all that it says.
    fn test_alone(&self, flags: &str) -> (Option<i32>, String) {
        let flags = self.named(&format!("--evaluate --data {} {flags}", few_tests()));
        let output = std::process::Command::new(job::DLTRAIN).args(flags).output().unwrap();
        (
            output.status.code(),
            [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()).concat(),
        )
    }

    /// Writes a file of weights with other values for one tensor.
    fn change(&self, from: &str, to: &str, name: &str, change: &dyn Fn(f32) -> f32) {
        let file = WeightsFile::open(&self.path(from)).unwrap();
        let values = |tensor: &str| {
            let mut values = file.values(tensor)?;
            if tensor == name {
                values.iter_mut().skip(1).for_each(|value| *value = change(*value));
            }
            Ok(values)
        };
        write_weights(&self.path(to), file.shapes(), file.about(), &values, None).unwrap();
    }

    fn resnet_flags(&self, name: &str, flags: &str) -> Vec<String> {
        self.named(&format!(
            "--model resnet18 --image-size 32 --classes 10 --batch 16 --data {} --results @{name} {flags}",
            few_tests()
        ))
    }

    /// "@x" in flags is the file x of this place.
    fn named(&self, flags: &str) -> Vec<String> {
        let flags = flags.replace('@', &format!("{}/", self.directory().display()));
        flags.split_whitespace().map(String::from).collect()
    }
}

fn read(path: &Path) -> BTreeMap<String, Vec<u32>> {
    let file = WeightsFile::open(path).unwrap();
    let bits = |name: &String| file.values(name).unwrap().iter().map(|value| value.to_bits()).collect();
    file.shapes().iter().map(|(name, _)| (name.clone(), bits(name))).collect()
}

#[test]
fn what_was_saved_is_what_was_tested() {
    let place = Scratch::new();
    let flags = "--steps 3 --lr 0.05 --ema 0.5 --save-weights @w.safetensors --checkpoint @kept";
    let trained = place.train_resnet(2, "a.h5", flags);
    let said =
        place.test("--model resnet18 --image-size 32 --classes 10 --batch 16 --init-from @w.safetensors");
    assert!(said.contains(&format!("test loss {:.9}", trained[0])), "{said}, not {trained:?}");
    run(1, &["export", place.path("w.safetensors").to_str().unwrap(), place.path("w.h5").to_str().unwrap()]);
    assert_eq!(read(&place.path("w.h5")), read(&place.path("w.safetensors")));
    // The checkpoint at the end has the same, and the statistics of every rank, of which these are the means.
    let checkpoint = place.path("kept").join("step-00000003.h5");
    run(1, &["export", checkpoint.to_str().unwrap(), place.path("k.safetensors").to_str().unwrap()]);
    assert_eq!(read(&place.path("k.safetensors")), read(&place.path("w.safetensors")));
    let lenet = |name: &str, flags: &str| {
        place.train_resnet(2, name, &format!("--model lenet5 --image-size 28 {flags}"))
    };
    let trained = lenet("c.h5", "--steps 20 --ema 0.9 --save-weights @l.safetensors");
    run(1, &["export", place.path("l.safetensors").to_str().unwrap(), place.path("l.h5").to_str().unwrap()]);
    for file in ["l.safetensors", "l.h5"] {
        let said = place.test(&format!("--model lenet5 --init-from @{file}"));
        assert!(said.contains(&format!("test loss {:.9}", trained[0])), "{file}: {said}, not {trained:?}");
    }
    // Without the average: other weights.
    assert_ne!(lenet("f.h5", "--steps 20 --save-weights @m.safetensors"), trained);
    assert_ne!(read(&place.path("m.safetensors")), read(&place.path("l.safetensors")));
}

/// A ReLU makes zeros of NaN: without a look at the weights nothing would be seen of them.
#[test]
fn weights_that_no_network_can_have_are_refused() {
    let place = Scratch::new();
    place.train_resnet(1, "a.h5", "--steps 1 --save-weights @w.safetensors");
    type Change<'a> = &'a dyn Fn(f32) -> f32;
    let lines: [(&str, Change, &str); 3] = [
        ("layer1.0.conv1.weight", &|_| f32::NAN, "is not finite as f32: value 1 is NaN"),
        ("bn1.bias", &|_| f32::INFINITY, "is not finite as f32: value 1 is inf"),
        ("layer2.0.bn1.running_var", &|value| -value, "has a variance below zero: value 1 is -"),
    ];
    for (index, (name, change, said)) in lines.into_iter().enumerate() {
        let file = format!("{index}.safetensors");
        place.change("w.safetensors", &file, name, change);
        let named = format!("{file}: --init-from: tensor {name} {said}");
        let refused = place.refused_in_full("b.h5", &format!("--steps 1 --init-from @{file}"));
        assert!(refused.contains(&named), "{refused}");
        let flags = format!("--model resnet18 --image-size 32 --classes 10 --init-from @{file}");
        let (code, said) = place.test_alone(&flags);
        assert!(code == Some(ErrorKind::Data as i32) && said.contains(&named), "{code:?} {said}");
    }
    // A plan says it, too.
    let refused = place.refused_in_full("b.h5", "--dry-run --init-from @1.safetensors");
    assert!(refused.contains("bn1.bias is not finite"), "{refused}");
    assert!((0..7).all(|index| !place.path(&format!("b{index}.h5")).exists()), "nothing was started");
    // Finite, but too large for this network.
    place.change("w.safetensors", "large.safetensors", "fc.weight", &|_| 3e38);
    let (code, said) =
        place.test_alone("--model resnet18 --image-size 32 --classes 10 --init-from @large.safetensors");
    assert!(
        code == Some(ErrorKind::Diverged as i32) && said.contains("the test loss is "),
        "{code:?} {said}"
    );
    assert!(!said.contains("accuracy"), "{said}");
}

/// Neither the images nor the memory of a training; and nothing that it is told is left undone in silence.
#[test]
fn a_test_alone_takes_what_a_test_takes() {
    let place = Scratch::new();
    let trained = place.train_resnet(2, "a.h5", "--steps 2 --save-weights @w.safetensors")[0];
    let resnet = "--model resnet18 --image-size 32 --classes 10 --init-from @w.safetensors";
    let loss_of = |said: &str| -> f64 {
        said.split("test loss ").nth(1).and_then(|rest| rest.split(',').next()).unwrap().parse().unwrap()
    };
    // One image is too few to train with.
    let said = place.test(&format!("{resnet} --batch 1"));
    assert!((loss_of(&said) - trained).abs() < 1e-5 * trained, "{said}, not {trained}");
    // And 800 for each of two ranks are more than there are.
    let flags = "--model lenet5 --image-size 28 --steps 2 --save-weights @l.safetensors";
    let trained_lenet = place.train_resnet(2, "l.h5", flags)[0];
    let said = place.test("--model lenet5 --batch 800 --init-from @l.safetensors");
    assert!((loss_of(&said) - trained_lenet).abs() < 1e-5 * trained_lenet, "{said}, not {trained_lenet}");
    let (code, planned) = place.test_alone(&format!("{resnet} --batch 16 --dry-run"));
    assert_eq!(code, Some(0), "{planned}");
    let line = |kind: &str| planned.lines().find(|line| line.trim_start().starts_with(kind)).unwrap_or("");
    assert!(line("gradients").contains(" 0 B") && line("optimizer").contains(" 0 B"), "{planned}");
    for flags in
        ["--results @b.h5", "--save-weights @v.h5", "--checkpoint @kept", "--timeline @t.json", "--epochs 3"]
    {
        let (code, said) = place.test_alone(&format!("{resnet} {flags}"));
        let flag = flags.split(' ').next().unwrap();
        assert!(code == Some(ErrorKind::Usage as i32) && said.contains(flag), "{code:?} {said}");
        assert!(said.contains("would do nothing"), "{said}");
    }
    // A training's file may say what a training wants.
    std::fs::write(
        place.path("run.toml"),
        "model = \"resnet18\"\nimage-size = 32\nclasses = 10\nlr = 0.5\nema = 0.9\n",
    )
    .unwrap();
    let said = place.test("--config @run.toml --init-from @w.safetensors --batch 16");
    assert!(said.contains(&format!("test loss {trained:.9}")), "{said}, not {trained}");
}

#[test]
fn frozen_layers_keep_every_bit_and_the_others_learn() {
    let place = Scratch::new();
    place.train_resnet(2, "a.h5", "--steps 1 --save-weights @w.safetensors");
    let start = read(&place.path("w.safetensors"));
    let is_statistic = |name: &str| name.contains("running_");
    type IsFrozen<'a> = &'a dyn Fn(&str) -> bool;
    let cases: [(IsFrozen, &str); 5] = [
        (&|name| !name.starts_with("fc."), "--freeze backbone"),
        (&|name| name.starts_with("layer1.") || name == "bn1.weight", "--freeze layer1,bn1.weight"),
        (&|name| name.starts_with("layer4."), "--freeze layer4 --accumulation 2 --ema 0.5 --recompute"),
        (&|name| name.starts_with("layer1."), "--freeze layer1 --optimizer lars --clip-norm 1"),
        // Where the CPU has such arithmetic.
        (&|name| !name.starts_with("fc."), "--freeze backbone --precision bf16"),
    ];
    let possible = |flags: &str| {
        let there = !flags.contains("bf16") || isa().unwrap().has_bf16();
        if !there {
            println!("SKIPPED: this CPU has no bf16 arithmetic");
        }
        there
    };
    for (index, (frozen, flags)) in first(3, cases).filter(|(_, flags)| possible(flags)).enumerate() {
        let (results, file) = (format!("{index}.h5"), format!("{index}.safetensors"));
        place.train_resnet(
            2,
            &results,
            &format!("--steps 2 {flags} --init-from @w.safetensors --save-weights @{file}"),
        );
        for (name, values) in read(&place.path(&file)) {
            let kept = values == start[&name];
            // Statistics go on running, as PyTorch's do.
            assert_eq!(kept, frozen(&name) && !is_statistic(&name), "{flags}: {name}");
        }
    }
}

#[test]
fn a_file_that_does_not_fit_is_refused_with_every_difference() {
    let place = Scratch::new();
    place.train_resnet(1, "a.h5", "--steps 1 --save-weights @w.safetensors");
    let another_head =
        ["fc.weight: is [10, 512] in the file and [12, 512] in the model", "fc.bias", "--reset-head"];
    let cases = [
        ("--classes 12 --init-from @w.safetensors", &another_head[..]),
        (
            "--model resnet34 --init-from @w.safetensors",
            &["layer1.2.conv1.weight: is not in the file", "more"],
        ),
        ("--init-from @w.pt", &["PyTorch pickle"]),
        ("--init-from @zeros", &["is neither HDF5 nor safetensors; it begins with zeros, as a file"]),
        ("--init-from @none", &["No such file"]),
        ("--freeze layer9", &["--freeze layer9: resnet18 has no such layer"]),
        ("--save-weights @w.safetensors", &["is there already"]),
        ("--save-weights @none/w.safetensors", &["does not exist"]),
    ];
    std::fs::write(place.path("w.pt"), b"PK\x03\x04").unwrap();
    std::fs::write(place.path("zeros"), [0; 4096]).unwrap();
    // Side by side: a file of results is one run's.
    each(cases.into_iter().enumerate(), |(index, (flags, words))| {
        let said = place.refused_in_full(&format!("b{index}.h5"), flags);
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
        // Another head is no remedy for another network.
        assert_eq!(said.contains("--reset-head"), flags.contains("--classes 12"), "{said}");
    });
    place.train_resnet(1, "c.h5", "--steps 1 --classes 12 --init-from @w.safetensors --reset-head");
    assert!((0..8).all(|index| !place.path(&format!("b{index}.h5")).exists()), "nothing was started");
}

/// A small network whose tensors are called after scopes, of which some are tensors too: "stem" and "stem/bn/bias".
fn scoped(to: &Path, rename: impl Fn(&str) -> String) {
    let flags = residual();
    let from = flags.split(' ').nth(1).unwrap();
    let mut file = ModelProto::decode(&*std::fs::read(from).unwrap()).unwrap();
    let graph = file.graph.as_mut().unwrap();
    let names: BTreeMap<String, String> =
        graph.initializer.iter().map(|tensor| (tensor.name.clone(), rename(&tensor.name))).collect();
    graph.initializer.iter_mut().for_each(|tensor| tensor.name.clone_from(&names[&tensor.name]));
    let other = |name: &mut String| *name = names.get(name).cloned().unwrap_or_else(|| format!("~{name}"));
    graph.node.iter_mut().flat_map(|node| node.input.iter_mut().chain(&mut node.output)).for_each(other);
    graph.input.iter_mut().chain(&mut graph.output).for_each(|value| other(&mut value.name));
    std::fs::write(to, file.encode_to_vec()).unwrap();
}

#[test]
fn names_with_slashes_come_back_from_every_kind_of_file() {
    let place = Scratch::new();
    let scope = |name: &str| format!("/{}", name.trim_end_matches(".weight").replace('.', "/"));
    scoped(&place.path("net.onnx"), scope);
    let model = "--model @net.onnx --fresh-weights";
    let trained = place.train_resnet(
        2,
        "a.h5",
        &format!("{model} --steps 2 --lr 0.05 --save-weights @w.h5 --checkpoint @kept"),
    );
    let said = place.test("--model @net.onnx --batch 16 --init-from @w.h5");
    assert!(said.contains(&format!("test loss {:.9}", trained[0])), "{said}, not {trained:?}");
    let known = read(&place.path("w.h5"));
    assert!(known.contains_key("/stem") && known.contains_key("/stem/bn/bias"), "{:?}", known.keys());
    let export = |from: &str, to: &str| {
        let [from, to] = [from, to].map(|name| place.path(name).display().to_string());
        let network = place.path("net.onnx").display().to_string();
        let more: &[&str] = if to.ends_with("onnx") { &["--model", &network] } else { &[] };
        run(1, &[&["export", &from, &to], more].concat());
    };
    for [from, to] in [
        ["kept/step-00000002.h5", "a.safetensors"],
        ["a.safetensors", "v.h5"],
        ["v.h5", "c.onnx"],
        ["c.onnx", "d.h5"],
    ] {
        export(from, to);
        assert!(read(&place.path(to)) == known, "{from} to {to}");
    }
    let went_on = place.train_resnet(
        2,
        "b.h5",
        &format!("{model} --steps 3 --lr 0.05 --resume @kept/step-00000002.h5"),
    );
    let straight = place.train_resnet(2, "c.h5", &format!("{model} --steps 3 --lr 0.05"));
    assert_eq!(went_on, straight);
}

#[test]
fn a_name_that_a_file_cannot_have_is_refused_before_the_training() {
    let place = Scratch::new();
    scoped(
        &place.path("net.onnx"),
        |name| if name == "fc.bias" { "__metadata__".into() } else { name.into() },
    );
    let model = "--model @net.onnx --fresh-weights --steps 1";
    let said = place.refused_in_full("a.h5", &format!("{model} --save-weights @w.safetensors"));
    assert!(said.contains("--save-weights") && said.contains("__metadata__"), "{said}");
    assert!(!place.path("a.h5").exists(), "nothing was started");
    place.train_resnet(1, "a.h5", &format!("{model} --save-weights @w.h5"));
    assert!(read(&place.path("w.h5")).contains_key("__metadata__"));
}

#[test]
fn what_a_wrapper_puts_before_all_names_is_left_out_and_said() {
    let place = Scratch::new();
    let lenet = "--model lenet5 --image-size 28";
    let trained =
        place.train_resnet(1, "a.h5", &format!("{lenet} --steps 1 --save-weights @w.safetensors"))[0];
    let file = WeightsFile::open(&place.path("w.safetensors")).unwrap();
    for (name, wrapper) in [("m.safetensors", "module."), ("o.h5", "_orig_mod.module.")] {
        let wrapped = |(name, shape): &(String, Vec<usize>)| (format!("{wrapper}{name}"), shape.clone());
        let shapes: Vec<_> = file.shapes().iter().map(wrapped).collect();
        let bare = |name: &str| file.values(&name[wrapper.len()..]);
        write_weights(&place.path(name), &shapes, &ModelMetadata::default(), &bare, None).unwrap();
        let said = place.test(&format!("--model lenet5 --init-from @{name}"));
        assert_eq!(said.matches(&format!("\"{wrapper}\", with which all names begin")).count(), 1, "{said}");
        assert!(said.contains(&format!("test loss {trained:.9}")), "{said}, not {trained}");
    }
}

#[test]
fn ranks_that_read_unlike_files_are_found() {
    let place = Scratch::new();
    for seed in [1, 2] {
        place.train_resnet(
            1,
            &format!("{seed}.h5"),
            &format!("--seed {seed} --steps 1 --save-weights @{seed}.safetensors"),
        );
    }
    let flags =
        [1, 2].map(|seed| place.resnet_flags("b.h5", &format!("--steps 1 --init-from @{seed}.safetensors")));
    let flags = flags.each_ref().map(|flags| flags.iter().map(String::as_str).collect::<Vec<_>>());
    let said = refused(&[(1, &flags[0]), (1, &flags[1])]);
    assert!(said.contains("the weights of --init-from") && said.contains("CRC-32"), "{said}");
}
