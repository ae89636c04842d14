//! Layers that compute of several images together are refused, whether a file's batch is open or fixed: what each image
//! gives would depend on the others, which `--batch`, ranks and stages decide.

use super::nodes::{changed, node, opened, said, scores_of, value, weight};
use crate::support::cases::full;
use crate::support::digits::DIGITS;
use crate::support::job::{refused, run};

use dltrain::model::onnx::schema::{
    AttributeProto, GraphProto, NodeProto, StringStringEntryProto, TensorProto, data_type, kind,
};
use prost::Message;

/// An attribute of one integer, or of several.
enum Said<'a> {
    One(&'a str, i64),
    All(&'a str, &'a [i64]),
    Real(&'a str, f32),
}

fn saying(node: NodeProto, attributes: &[Said]) -> NodeProto {
    let attribute = |said: &Said| match *said {
        Said::Real(name, f) => {
            AttributeProto { name: name.into(), f, kind: kind::FLOAT, ..Default::default() }
        }
        Said::One(name, i) => AttributeProto { name: name.into(), i, kind: kind::INT, ..Default::default() },
        Said::All(name, ints) => {
            AttributeProto { name: name.into(), ints: ints.into(), kind: kind::INTS, ..Default::default() }
        }
    };
    NodeProto { attribute: attributes.iter().map(attribute).collect(), ..node }
}

fn integers(name: &str, numbers: &[i64]) -> TensorProto {
    TensorProto {
        name: name.into(),
        dims: vec![numbers.len() as i64],
        data_type: data_type::INT64,
        int64_data: numbers.into(),
        ..TensorProto::default()
    }
}

/// What is made of `a`, (N, 4), and the linear layer reads as `d`.
fn between(batch: i64, nodes: &[NodeProto]) -> impl FnOnce(&mut GraphProto) {
    move |graph| {
        let row = |name: &str, number: f32| TensorProto { float_data: vec![number], ..weight(name, &[1]) };
        graph.initializer.extend([row("g", 1.0), row("o", 0.0)]);
        let all = [("first", &[0][..]), ("second", &[1]), ("last", &[-1]), ("before", &[1, 0, 0, 0])];
        graph.initializer.extend(all.map(|(name, numbers)| integers(name, numbers)));
        graph.node.splice(1..1, nodes.iter().cloned());
        graph.node.last_mut().unwrap().input[0] = "d".into();
        graph.input = vec![value("x", &[batch, 1, 2, 2])];
    }
}

/// An op over the images, and what it gives taken from each of them by another one.
fn over_images(op: &str, by: &str) -> Vec<NodeProto> {
    let over = saying(node("over", op, &["a"], "m"), &[Said::All("axes", &[0]), Said::One("keepdims", 1)]);
    vec![over, node("by", by, &["a", "m"], "d")]
}

fn turned(name: &str, from: &str, to: &str, perm: &[i64]) -> NodeProto {
    saying(node(name, "Transpose", &[from], to), &[Said::All("perm", perm)])
}

#[test]
fn images_that_are_mixed_are_refused_for_an_open_batch_as_for_a_fixed_one() {
    let all = saying(node("over", "ReduceMean", &["a"], "m"), &[Said::One("keepdims", 1)]);
    let variance = saying(
        node("over", "ReduceMean", &["s"], "v"),
        &[Said::All("axes", &[0, 1]), Said::One("keepdims", 1)],
    );
    let part = |from: &str, of: &str, to: &str| node("part", "Slice", &[of, from, to, "first"], "m");
    let apart = node("by", "Sub", &["a", "m"], "d");
    let back = turned("back", "n", "d", &[1, 0]);
    let seen = |name: &str, op: &str, from: &str, to: &str| node(name, op, &[from, "second"], to);
    let ways: Vec<(&str, Vec<NodeProto>)> = vec![
        ("mean", over_images("ReduceMean", "Sub")),
        ("largest", over_images("ReduceMax", "Sub")),
        ("norm", over_images("ReduceL2", "Div")),
        ("all", vec![all, apart.clone()]),
        (
            "variance",
            vec![node("square", "Mul", &["a", "a"], "s"), variance, node("by", "Add", &["a", "v"], "d")],
        ),
        ("softmax", vec![saying(node("over", "Softmax", &["a"], "d"), &[Said::One("axis", 0)])]),
        (
            "gram",
            vec![
                turned("turn", "a", "t", &[1, 0]),
                node("gram", "MatMul", &["a", "t"], "n"),
                saying(node("share", "Softmax", &["n"], "q"), &[Said::One("axis", 1)]),
                node("mix", "MatMul", &["q", "a"], "d"),
            ],
        ),
        ("first", vec![part("first", "a", "second"), apart.clone()]),
        ("gather", vec![node("part", "Gather", &["a", "first"], "m"), apart.clone()]),
        ("shifted", vec![node("pad", "Pad", &["a", "before"], "e"), part("first", "e", "last"), apart]),
        (
            "layer norm",
            vec![
                turned("turn", "a", "t", &[1, 0]),
                node("norm", "LayerNormalization", &["t", "g"], "n"),
                back,
            ],
        ),
        (
            "instance norm",
            vec![
                seen("see", "Unsqueeze", "a", "e"),
                turned("turn", "e", "t", &[2, 1, 0]),
                node("norm", "InstanceNormalization", &["t", "g", "o"], "n"),
                turned("back", "n", "f", &[2, 1, 0]),
                seen("unsee", "Squeeze", "f", "d"),
            ],
        ),
    ];
    for (way, nodes) in &ways {
        // 0: open.
        for batch in [0, 2] {
            let said = said(between(batch, nodes));
            let is_named = said.contains("net.onnx: ") && said.contains("mixes the 2 images");
            assert!(
                is_named || *way == "layer norm" && said.contains("norm"),
                "{way}, batch {batch}: {said}"
            );
        }
    }
    // One image that is fixed is by itself, which is said.
    let (_place, model) = opened(between(1, &ways[0].1));
    let notes: Vec<&String> = model.file().unwrap().notes(false).collect();
    assert!(notes.len() == 1 && notes[0].contains("along its axis of images (over)"), "{notes:?}");
}

/// Numbers of images that are in what each of them is multiplied by.
#[test]
fn what_computes_with_the_size_of_an_open_batch_is_refused() {
    let nodes = [
        node("sizes", "Shape", &["x"], "s"),
        node("size", "Gather", &["s", "first"], "n"),
        saying(node("real", "Cast", &["n"], "r"), &[Said::One("to", 1)]),
        node("times", "Mul", &["a", "r"], "d"),
    ];
    let said = said(between(0, &nodes));
    assert!(
        said.contains("its batch is open, and layer fc.scaled computes with the number of images"),
        "{said}"
    );
}

/// A file may have its weights in others and be larger than one file can be: so is what is written of it.
#[test]
fn what_is_too_large_for_one_file_is_written_as_two() {
    if !full() {
        return println!("SKIPPED: left to make test-full");
    }
    let place = tempfile::tempdir().unwrap();
    let wide = [4, 140_000_000];
    let entry = StringStringEntryProto { key: "location".into(), value: "fc.bin".into() };
    let stored = TensorProto {
        name: "fc.weight".into(),
        dims: wide.into(),
        data_type: data_type::FLOAT,
        ..Default::default()
    };
    let file = changed(|graph| {
        graph.initializer[0] = TensorProto { data_location: 1, external_data: vec![entry], ..stored };
        graph.node[1].input.truncate(2);
        graph.output = vec![value("y", &[0, wide[1]])];
    });
    std::fs::write(place.path().join("net.onnx"), file.encode_to_vec()).unwrap();
    let bytes = 16 * wide[1] as u64;
    std::fs::File::create(place.path().join("fc.bin")).unwrap().set_len(bytes).unwrap();
    let [net, again] = ["net.onnx", "again.onnx"].map(|name| place.path().join(name).display().to_string());
    let said = run(1, &["export", &net, &again]);
    assert!(said.contains("again.onnx.data (2240 MB)"), "{said}");
    let size = |name: &str| std::fs::metadata(place.path().join(name)).unwrap().len();
    assert!(size("again.onnx") < 10_000 && size("again.onnx.data") >= bytes);
    let said = run(1, &["--model", &again, "--dry-run", "--batch", "1", "--device", "reference"]);
    assert!(said.contains("560,000,000"), "{said}");
}

/// What is done to each image is not: along its own axes, however these are turned.
#[test]
fn what_is_of_each_image_is_imported_for_an_open_batch() {
    let own = |axis: i64| {
        vec![
            turned("turn", "a", "t", &[1, 0]),
            saying(node("share", "Softmax", &["t"], "q"), &[Said::One("axis", axis)]),
            turned("back", "q", "d", &[1, 0]),
        ]
    };
    let (_place, model) = opened(between(0, &own(0)));
    assert_eq!(model.file().unwrap().notes(false).next(), None);
    let said = said(between(0, &own(1)));
    assert!(said.contains("mixes the 2 images"), "{said}");
}

/// Adds `token`, (1, 4), and gives what makes of it as many copies, `t`, as there are images.
fn copies_of_a_token(graph: &mut GraphProto) -> Vec<NodeProto> {
    graph.initializer.extend([weight("token", &[1, 4]), integers("zeroth", &[0]), integers("one", &[1])]);
    vec![
        node("sizes", "Shape", &["x"], "s"),
        node("size", "Gather", &["s", "zeroth"], "n"),
        saying(node("copies", "Concat", &["n", "one"], "c"), &[Said::One("axis", 0)]),
        node("tokens", "Tile", &["token", "c"], "t"),
    ]
}

/// As many copies of what is learned as there are images, and copies of each image's own numbers.
#[test]
fn copies_are_stretched_or_lie_behind_each_other() {
    let (_place, model) = opened(|graph| {
        let numbers = [("three", &[1, 3][..]), ("from", &[3]), ("to", &[7]), ("along", &[1])];
        graph.initializer.extend(numbers.map(|(name, numbers)| integers(name, numbers)));
        let mut before = copies_of_a_token(graph);
        before.extend([
            node("add", "Add", &["a", "t"], "b"),
            node("thrice", "Tile", &["b", "three"], "e"),
            node("part", "Slice", &["e", "from", "to", "along"], "d"),
        ]);
        graph.node.splice(1..1, before);
        graph.node.last_mut().unwrap().input[0] = "d".into();
    });
    let number = |place: usize| place as f32 * 0.125 - 1.0;
    for (place, found) in scores_of(&model).iter().enumerate() {
        let (image, class) = (place / 3, place % 3);
        let of = |at: usize| (4 * image + (at + 3) % 4) as f32 + number((at + 3) % 4);
        let sum: f32 = (0..4).map(|at| of(at) * number(3 * at + class)).sum();
        assert!((found - sum - number(class)).abs() <= 1e-5 * sum.abs().max(1.0), "{found} and {sum}");
    }
    let names: Vec<&str> = model.file().unwrap().weights().iter().map(|weight| &*weight.name).collect();
    assert!(names.contains(&"token"), "{names:?}");
    let said = said(between(0, &[node("copies", "Tile", &["a", "before"], "d")]));
    assert!(said.contains("copies (Tile): copies "), "{said}");
}

/// A softmax of nothing is no number, and what exporters write behind it to make zeros of that is no layer.
#[test]
fn rows_of_which_a_mask_leaves_nothing_are_refused() {
    let masked = |rows: [f32; 4]| {
        move |graph: &mut GraphProto| {
            let mask = TensorProto { float_data: rows.into(), ..weight("mask", &[4]) };
            let constant = AttributeProto {
                name: "value".into(),
                t: Some(mask),
                kind: kind::TENSOR,
                ..Default::default()
            };
            let constant = NodeProto { attribute: vec![constant], ..node("mask", "Constant", &[], "m") };
            let shares = saying(node("shares", "Softmax", &["n"], "d"), &[Said::One("axis", -1)]);
            let nodes = [constant, node("add", "Add", &["a", "m"], "n"), shares];
            between(0, &nodes)(graph);
        }
    };
    let none = f32::NEG_INFINITY;
    opened(masked([none, 0.0, none, none]));
    let said = said(masked([none; 4]));
    assert!(said.contains("add (Add): adds −∞ to all numbers of a row"), "{said}");
}

/// Queries that are learned are the same for all images until they meet what is of an image, as in Perceiver and DETR.
#[test]
fn what_is_computed_of_copies_is_that_of_one() {
    let number = |place: usize| f64::from(place as f32 * 0.125 - 1.0);
    let token: Vec<f64> = (0..4).map(number).collect();
    // Columns 2 to 5 of (4, 8), normalised and as shares; and rows of (4, 4).
    let product = |j: usize| (0..4).map(|k| token[k] * number(8 * k + j + 2)).sum::<f64>();
    let mean = (0..4).map(product).sum::<f64>() / 4.0;
    let variance = (0..4).map(|j| (product(j) - mean).powi(2)).sum::<f64>() / 4.0;
    let exponential = |j: usize| ((product(j) - mean) / (variance + 1e-5).sqrt() * number(j)).exp();
    let all: f64 = (0..4).map(exponential).sum();
    let copy =
        |i: usize| exponential(i) / all + (0..4).map(|k| (number(4 * i + k) + 1.0) * token[k]).sum::<f64>();
    for batch in [0, 2] {
        let (_place, model) = opened(|graph| {
            let numbers = [("from", &[2][..]), ("to", &[6]), ("along", &[1]), ("half", &[4]), ("end", &[8])];
            graph.initializer.extend(numbers.map(|(name, numbers)| integers(name, numbers)));
            let weights: [(&str, &[i64]); 3] = [("wide", &[4, 8]), ("square", &[4, 4]), ("scale", &[4])];
            graph.initializer.extend(weights.map(|(name, dims)| weight(name, dims)));
            let mut before = copies_of_a_token(graph);
            before.extend([
                node("rows", "MatMul", &["t", "wide"], "p"),
                node("part", "Slice", &["p", "from", "to", "along"], "e"),
                node("norm", "LayerNormalization", &["e", "scale"], "q"),
                saying(node("shares", "Softmax", &["q"], "r"), &[Said::One("axis", -1)]),
                turned("turn", "t", "u", &[1, 0]),
                node("columns", "MatMul", &["square", "u"], "v"),
                turned("back", "v", "w", &[1, 0]),
                saying(node("beside", "Concat", &["r", "w"], "k"), &[Said::One("axis", 1)]),
                node("behind", "Slice", &["k", "half", "end", "along"], "l"),
                saying(node("sum", "ReduceSum", &["t", "along"], "z"), &[Said::One("keepdims", 1)]),
                node("more", "Add", &["l", "z"], "o2"),
                node("both", "Add", &["r", "o2"], "b"),
                node("add", "Add", &["a", "b"], "d"),
            ]);
            graph.node.splice(1..1, before);
            graph.node.last_mut().unwrap().input[0] = "d".into();
            graph.input = vec![value("x", &[batch, 1, 2, 2])];
        });
        for (place, found) in scores_of(&model).iter().enumerate() {
            let (image, class) = (place / 3, place % 3);
            let of = |at: usize| ((4 * image + at) as f64 + copy(at)) * number(3 * at + class);
            let wanted = (0..4).map(of).sum::<f64>() + number(class);
            let error = f64::from(*found) - wanted;
            assert!(error.abs() <= 1e-5 * wanted.abs().max(1.0), "{found} and {wanted}, batch {batch}");
        }
    }
}

/// The loss of classes takes a softmax of scores by itself: shares would be squeezed twice.
#[test]
fn what_ends_in_a_sigmoid_is_told_apart_and_not_trained() {
    let place = tempfile::tempdir().unwrap();
    let [net, shares] = ["net.onnx", "shares.csv"].map(|name| place.path().join(name).display().to_string());
    let file = changed(|graph| {
        graph.initializer = vec![weight("fc.weight", &[4, 10]), weight("fc.bias", &[10])];
        graph.node.push(node("end", "Sigmoid", &["y"], "z"));
        graph.output = vec![value("z", &[0, 10])];
    });
    std::fs::write(&net, file.encode_to_vec()).unwrap();
    let said = refused(&[(2, &["--model", &net, "--data", DIGITS])]);
    assert!(said.contains("net: ends in a sigmoid, and the loss takes a softmax"), "{said}");
    // However that is called, clipped and scaled.
    let other = place.path().join("other.onnx").display().to_string();
    for (op, by) in [("HardSigmoid", "Mul"), ("Softmax", "Add")] {
        let file = changed(|graph| {
            graph.initializer =
                vec![weight("fc.weight", &[4, 10]), weight("fc.bias", &[10]), weight("half", &[1])];
            let shares = match op {
                "HardSigmoid" => saying(node("s", op, &["y"], "z"), &[Said::Real("alpha", 1.0 / 6.0)]),
                _ => node("s", op, &["y"], "z"),
            };
            graph.node.extend([shares, node("by", by, &["z", "half"], "scaled")]);
            graph.output = vec![value("scaled", &[0, 10])];
        });
        std::fs::write(&other, file.encode_to_vec()).unwrap();
        let said = refused(&[(1, &["--model", &other, "--data", DIGITS])]);
        assert!(said.contains("other: ends in a ") && said.contains("squeezed twice"), "{op}: {said}");
    }
    let file = changed(|graph| {
        graph.input = vec![value("x", &[0, 4, 1, 1])];
        graph.output = vec![value("y", &[0, 3])];
    });
    std::fs::write(&other, file.encode_to_vec()).unwrap();
    let said = refused(&[(1, &["--model", &other, "--data", DIGITS])]);
    assert!(said.contains("reads 4 channels, and images have 1 (grey) or 3 (colours)"), "{said}");
    let said = run(1, &["evaluate", "--model", &net, "--data", DIGITS]);
    assert!(said.contains("ends in a sigmoid: the loss is that of the shares it gives"), "{said}");
    run(1, &["predict", "--model", &net, DIGITS, "--top", "10", "-o", &shares]);
    let text = std::fs::read_to_string(&shares).unwrap();
    let row: Vec<&str> = text.lines().nth(1).unwrap().split(',').collect();
    // The image, its label, then classes and shares: of a softmax these would be 1 together.
    let sum: f64 = row[2..].iter().skip(1).step_by(2).map(|share| share.parse::<f64>().unwrap()).sum();
    assert!(row.len() == 22 && (sum - 1.0).abs() > 0.1, "{text}");
}
