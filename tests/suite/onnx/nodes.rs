//! What nodes of a file become, in networks of a few of them, and what is refused: what cannot be trained, and what is
//! no sound file, by one message that names every reason.

use crate::support::{bound, job};

use bound::Bound;
use dltrain::device::Scalars;
use dltrain::device::reference::Reference;
use dltrain::graph::{Op, Role};
use dltrain::model::onnx::export;
use dltrain::model::onnx::schema::{
    AttributeProto, Dimension, GraphProto, ModelProto, NodeProto, OperatorSetId, StringStringEntryProto,
    TensorProto, TensorShapeProto, TensorType, TypeProto, ValueInfoProto, data_type, kind,
};
use dltrain::model::{self, Model};
use job::{refused, run};
use prost::Message;

pub fn value(name: &str, dims: &[i64]) -> ValueInfoProto {
    let dim = dims.iter().map(|&dim_value| Dimension { dim_value, ..Dimension::default() }).collect();
    let shape = Some(TensorShapeProto { dim });
    let tensor_type = Some(TensorType { elem_type: data_type::FLOAT, shape });
    ValueInfoProto { name: name.into(), value_type: Some(TypeProto { tensor_type }) }
}

pub fn weight(name: &str, dims: &[i64]) -> TensorProto {
    let count = dims.iter().product::<i64>() as usize;
    let float_data = (0..count).map(|place| place as f32 * 0.125 - 1.0).collect();
    TensorProto {
        name: name.into(),
        dims: dims.to_vec(),
        data_type: data_type::FLOAT,
        float_data,
        ..TensorProto::default()
    }
}

pub fn node(name: &str, op: &str, input: &[&str], output: &str) -> NodeProto {
    NodeProto {
        name: name.into(),
        op_type: op.into(),
        input: input.iter().map(ToString::to_string).collect(),
        output: vec![output.into()],
        ..NodeProto::default()
    }
}

/// Flatten and one linear layer for grey images of 2×2 pixels, changed.
pub fn changed(change: impl FnOnce(&mut GraphProto)) -> ModelProto {
    let mut graph = GraphProto {
        node: vec![
            node("flat", "Flatten", &["x"], "a"),
            node("fc", "Gemm", &["a", "fc.weight", "fc.bias"], "y"),
        ],
        initializer: vec![weight("fc.weight", &[4, 3]), weight("fc.bias", &[3])],
        input: vec![value("x", &[0, 1, 2, 2])],
        output: vec![value("y", &[0, 3])],
        ..GraphProto::default()
    };
    change(&mut graph);
    let opset_import = vec![OperatorSetId { domain: String::new(), version: 17 }];
    ModelProto { ir_version: 8, graph: Some(graph), opset_import, ..ModelProto::default() }
}

/// What opening such a file says.
pub fn said(change: impl FnOnce(&mut GraphProto)) -> String {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("net.onnx");
    std::fs::write(&path, changed(change).encode_to_vec()).unwrap();
    model::open(&path).err().expect("a file that is refused").message
}

/// What a file says beside its network is read, and what other programs keep there does no harm.
#[test]
fn what_a_file_says_of_its_images_and_classes_is_read() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("net.onnx");
    let said = |texts: &[(&str, &str)]| {
        let text = |(key, value): &(&str, &str)| StringStringEntryProto {
            key: key.to_string(),
            value: value.to_string(),
        };
        let metadata_props = texts.iter().map(text).collect();
        std::fs::write(&path, ModelProto { metadata_props, ..changed(|_| {}) }.encode_to_vec()).unwrap();
        model::open(&path)
    };
    let preprocessing = r#"{"image":[1,2,2],"mean":[0.25],"std":[0.5],"frame":"whole"}"#;
    let model =
        said(&[("class_names", r#"["a","b","c"]"#), ("dltrain.preprocessing", preprocessing)]).unwrap();
    let file = model.file().unwrap();
    assert_eq!(file.class_names(), ["a", "b", "c"]);
    assert_eq!(file.preprocessing().map(|said| said.to_text()), Some(preprocessing.into()));
    let model = said(&[("class_names", "cat dog"), ("preprocessing", "resize")]).unwrap();
    assert!(
        model.file().unwrap().class_names().is_empty() && model.file().unwrap().preprocessing().is_none()
    );
    let wrong = said(&[("dltrain.preprocessing", &preprocessing.replace("0.5", "0"))]).err().unwrap();
    assert!(wrong.message.contains("net.onnx: what it says of its images"), "{}", wrong.message);
}

/// Scores that are no linear layer's cannot be of other classes: found before anything starts.
#[test]
fn classes_that_the_scores_cannot_have_are_refused() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("net.onnx");
    let twice = changed(|graph| {
        graph.node[1].output = vec!["half".into()];
        let axis = AttributeProto { name: "axis".into(), i: 1, kind: kind::INT, ..AttributeProto::default() };
        let concat = node("both", "Concat", &["half", "half"], "y");
        graph.node.push(NodeProto { attribute: vec![axis], ..concat });
        graph.output = vec![value("y", &[0, 6])];
    });
    std::fs::write(&path, twice.encode_to_vec()).unwrap();
    let flags = ["--model", path.to_str().unwrap(), "--dry-run", "--batch", "2"];
    for more in [&["--classes", "2", "--reset-head"][..], &["--classes", "10"]] {
        let said = refused(&[(1, &[&flags[..], more].concat())]);
        assert!(
            said.contains("gives the scores of 6 classes") && said.contains("leave --classes out"),
            "{said}"
        );
    }
    run(1, &[&flags[..], &["--classes", "6"]].concat());
}

/// Gemm without transB, as TensorFlow's exports have it, is a linear layer with its weight the other way round.
#[test]
fn a_weight_of_columns_is_learned_as_rows() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("net.onnx");
    std::fs::write(&path, changed(|_| {}).encode_to_vec()).unwrap();
    let model = model::open(&path).unwrap();
    let graph = model.build(2, model.image, model.classes).unwrap();
    let (_, parameter) = graph.with_role(Role::Parameter).find(|(_, t)| t.name == "fc.weight").unwrap();
    assert_eq!(parameter.spec.shape.0, [3, 4]);
    let rows: Vec<f32> =
        [0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11].map(|place| place as f32 * 0.125 - 1.0).into();
    assert_eq!(model.file().unwrap().values("fc.weight").unwrap(), rows);
}

/// A weight that is standardised: the mean and the variance of each of its rows are computed, and a normalisation in
/// its form for inference reads them, as PyTorch's default exporter writes it.
#[test]
fn a_normalisation_by_what_is_computed_is_arithmetic() {
    // PyTorch's older exporter has the op in its form for training, which needs no statistics, and computes them of a
    // copy of the weight all the same. The copy is no weight of the network.
    ["v", "copied"].into_iter().for_each(a_normalisation_by);
}

fn a_normalisation_by(averaged: &str) {
    let attribute = |name: &str, ints: &[i64], i: i64| AttributeProto {
        name: name.into(),
        ints: ints.into(),
        i,
        kind: if ints.is_empty() { kind::INT } else { kind::INTS },
        ..Default::default()
    };
    let mean = |name: &str, input: &str, output: &str, keepdims: i64| NodeProto {
        attribute: vec![attribute("axes", &[0, 2], 0), attribute("keepdims", &[], keepdims)],
        ..node(name, "ReduceMean", &[input], output)
    };
    let (_place, model) = opened(|graph| {
        let perm = NodeProto {
            attribute: vec![attribute("perm", &[1, 0], 0)],
            ..node("back", "Transpose", &["norm.rows"], "w")
        };
        let squeeze = NodeProto {
            attribute: vec![attribute("axes", &[0], 0)],
            ..node("squeeze", "Squeeze", &["norm"], "norm.rows")
        };
        let unsqueeze = NodeProto {
            attribute: vec![attribute("axes", &[0], 0)],
            ..node("see", "Unsqueeze", &["fc.weight"], "v")
        };
        graph.initializer[0] = weight("fc.weight", &[3, 4]);
        graph.initializer.extend([weight("gain", &[3]), weight("shift", &[3])]);
        if averaged == "copied" {
            graph.initializer.push(TensorProto { dims: vec![1, 3, 4], ..weight("copied", &[3, 4]) });
        }
        let before = [
            unsqueeze,
            mean("mean", averaged, "m", 0),
            mean("mean.kept", averaged, "k", 1),
            node("apart", "Sub", &[averaged, "k"], "c"),
            node("square", "Mul", &["c", "c"], "s"),
            mean("variance", "s", "d", 0),
            NodeProto {
                attribute: vec![attribute("training_mode", &[], i64::from(averaged == "copied"))],
                ..node("norm", "BatchNormalization", &["v", "gain", "shift", "m", "d"], "norm")
            },
            squeeze,
            perm,
        ];
        graph.node.splice(0..0, before);
        graph.node.last_mut().unwrap().input = ["a", "w", "fc.bias"].map(String::from).into();
    });
    // Rows are four numbers 1/8 apart.
    let number = |place: usize| place as f32 * 0.125 - 1.0;
    let deviation = (5.0f32 / 256.0 + 1e-5).sqrt();
    let weight = |row: usize, at: usize| (at as f32 - 1.5) * 0.125 / deviation * number(row) + number(row);
    for (place, found) in scores_of(&model).iter().enumerate() {
        let (image, row) = (place / 3, place % 3);
        let wanted = number(row) + (0..4).map(|at| (4 * image + at) as f32 * weight(row, at)).sum::<f32>();
        assert!((found - wanted).abs() <= 1e-5 * wanted.abs().max(1.0), "{found} and {wanted}");
    }
    assert_eq!(model.file().unwrap().weights().len(), 4);
}

/// A decoder that ends in one channel has a bias of one number, which is learned as those of more are.
#[test]
fn a_bias_of_a_single_number_is_learned() {
    let (_place, model) = opened(|graph| {
        graph.initializer = vec![weight("up.weight", &[1, 1, 2, 2]), weight("up.bias", &[1])];
        graph.node = vec![node("up", "ConvTranspose", &["x", "up.weight", "up.bias"], "y")];
        graph.output = vec![value("y", &[0, 1, 3, 3])];
    });
    let names: Vec<&str> = model.file().unwrap().weights().iter().map(|weight| &*weight.name).collect();
    assert_eq!(names, ["up.weight", "up.bias"]);
}

/// What a convolution's way back and global poolings are for images and cubes they are for sequences; what is written
/// of such a network takes sequences again.
#[test]
fn layers_of_images_are_layers_of_sequences_too() {
    let (place, model) = opened(|graph| {
        graph.initializer = vec![weight("up.weight", &[1, 2, 3]), weight("up.bias", &[2])];
        graph.initializer.extend([weight("fc.weight", &[2, 3]), weight("fc.bias", &[3])]);
        graph.node[0] = node("flat", "Flatten", &["p"], "a");
        graph.node.insert(0, node("up", "ConvTranspose", &["x", "up.weight", "up.bias"], "u"));
        graph.node.insert(1, node("norm", "LRN", &["u"], "n"));
        let size = AttributeProto { name: "size".into(), i: 1, kind: kind::INT, ..Default::default() };
        let alpha = AttributeProto { name: "alpha".into(), kind: kind::FLOAT, ..Default::default() };
        graph.node[1].attribute = vec![size, alpha];
        graph.node.insert(2, node("mean", "GlobalAveragePool", &["n"], "p"));
        graph.input = vec![value("x", &[0, 1, 4])];
    });
    let number = |place: usize| place as f32 * 0.125 - 1.0;
    let scores = scores_of(&model);
    for (place, found) in scores.iter().enumerate() {
        let (image, class) = (place / 3, place % 3);
        let sum: f32 = (4 * image..4 * image + 4).map(|x| x as f32).sum();
        // Each place of the input meets each of the kernel, in six places of the output.
        let mean = |c: usize| sum * (3 * c..3 * c + 3).map(number).sum::<f32>() / 6.0 + number(c);
        let wanted = number(class) + (0..2).map(|c| mean(c) * number(3 * c + class)).sum::<f32>();
        assert!((found - wanted).abs() <= 1e-5 * wanted.abs().max(1.0), "{found} and {wanted}");
    }
    let file = model.file().unwrap();
    let build = |batch| model.build_to_test(batch, model.image, model.classes);
    let written = export::network(build, file.axes(), false, &|name| file.values(name)).unwrap();
    let again = place.path().join("again.onnx");
    std::fs::write(&again, written.bytes()).unwrap();
    let graph = ModelProto::decode(&*std::fs::read(&again).unwrap()).unwrap().graph.unwrap();
    assert_eq!(graph.input, [ValueInfoProto { name: "images".into(), ..open_batch("images", &[1, 4]) }]);
    let apart = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-5 * b.abs().max(1.0);
    assert!(scores_of(&model::open(&again).unwrap()).iter().zip(&scores).all(apart));
}

/// What the file says of an input whose batch is open.
fn open_batch(name: &str, sample: &[i64]) -> ValueInfoProto {
    let mut all = value(name, &[&[0], sample].concat());
    let shape = all.value_type.as_mut().and_then(|of| of.tensor_type.as_mut()?.shape.as_mut()).unwrap();
    shape.dim[0].dim_param = "N".into();
    all
}

#[test]
fn what_is_around_may_be_places_of_its_own() {
    for (mode, around) in [
        ("reflect", Ok([1, 0, 1, 2, 3, 2, 1])),
        ("edge", Ok([0, 0, 1, 2, 3, 3, 3])),
        ("wrap", Ok([3, 0, 1, 2, 3, 0, 1])),
        ("mirror", Err("pad (Pad): mode mirror")),
    ] {
        let padded = |graph: &mut GraphProto| {
            let mut pad = node("pad", "Pad", &["x", "pads"], "b");
            let (name, kind) = ("mode".into(), 3);
            pad.attribute =
                vec![AttributeProto { name, s: mode.as_bytes().into(), kind, ..Default::default() }];
            let (dims, int64_data) = (vec![6], vec![0, 0, 1, 0, 0, 2]);
            let data_type = data_type::INT64;
            graph.initializer[0] = weight("fc.weight", &[7, 3]);
            graph.initializer.push(TensorProto {
                name: "pads".into(),
                dims,
                data_type,
                int64_data,
                ..Default::default()
            });
            graph.node.insert(0, pad);
            graph.node[1].input = vec!["b".into()];
            graph.input = vec![value("x", &[0, 1, 4])];
        };
        let places: [usize; 7] = match around {
            Ok(places) => places,
            Err(wrong) => {
                assert!(said(padded).contains(wrong), "{}", said(padded));
                continue;
            }
        };
        let (_place, model) = opened(padded);
        let number = |place: usize| place as f32 * 0.125 - 1.0;
        for (place, found) in scores_of(&model).iter().enumerate() {
            let (image, class) = (place / 3, place % 3);
            let product = |(at, from): (usize, &usize)| (4 * image + from) as f32 * number(3 * at + class);
            let wanted = number(class) + places.iter().enumerate().map(product).sum::<f32>();
            assert!((found - wanted).abs() <= 1e-5 * wanted.abs().max(1.0), "{mode}: {found} and {wanted}");
        }
    }
}

/// PyTorch's newer exporter says which tensors are parameters. What it has computed in advance is learned in the
/// modules whose parameters are no longer there, and nowhere else.
#[test]
fn what_the_writer_names_as_parameters_is_learned_and_no_more() {
    let said = |key: &str, value: &str| StringStringEntryProto { key: key.into(), value: value.into() };
    let (_place, model) = opened(|graph| {
        let signature = "\n# inputs\np_w: PARAMETER target='w'\np_g_weight: PARAMETER target='g.weight'\n\
                         p_fc_weight: PARAMETER target='fc.weight'\np_fc_bias: PARAMETER target='fc.bias'\n\
                         b_buf: BUFFER target='buf' persistent=True\nx: USER_INPUT\n";
        let key = "pkg.torch.export.ExportedProgram.graph_signature";
        graph.metadata_props = vec![said(key, signature)];
        graph.initializer.extend(["w", "lone"].map(|name| weight(name, &[1])));
        graph.initializer.extend(["buf", "val_1", "val_2"].map(|name| weight(name, &[1, 1, 2, 2])));
        let scaled = |name: &str, module: &str, by: [&str; 2], to: &str| NodeProto {
            metadata_props: vec![said("pkg.torch.onnx.name_scopes", &format!("['', {module}'mul']"))],
            ..node(name, "Mul", &by, to)
        };
        graph.node[0].input = vec!["e".into()];
        for (place, node) in [
            scaled("one", "", ["x", "w"], "a1"),
            scaled("two", "", ["a1", "buf"], "b1"),
            scaled("three", "'up', ", ["b1", "val_1"], "c1"),
            scaled("four", "'g', ", ["c1", "val_2"], "d1"),
            scaled("five", "'g', ", ["d1", "lone"], "e"),
        ]
        .into_iter()
        .enumerate()
        {
            graph.node.insert(place, node);
        }
    });
    let names: Vec<&str> = model.file().unwrap().weights().iter().map(|weight| &*weight.name).collect();
    assert_eq!(names, ["w", "val_2", "fc.weight", "fc.bias"]);
}

/// PyTorch's exporter writes ones and zeros as nodes where a normalisation has neither scale nor shift.
#[test]
fn a_normalisation_without_scale_and_shift_learns_none() {
    for written in ["nodes", "initializers"] {
        let (_place, model) = opened(|graph| {
            let all =
                |name: &str, number: f32| TensorProto { float_data: vec![number], ..weight(name, &[1]) };
            let mut given = vec![all("ones", 1.0), all("zeros", 0.0)];
            graph.initializer.extend([all("bn.mean", 0.5), all("bn.var", 4.0)]);
            graph.node.insert(
                0,
                node("bn", "BatchNormalization", &["x", "ones", "zeros", "bn.mean", "bn.var"], "b"),
            );
            graph.node[1].input = vec!["b".into()];
            if written == "initializers" {
                return graph.initializer.append(&mut given);
            }
            for tensor in given {
                let mut constant = node(&tensor.name, "Constant", &[], &tensor.name);
                let (name, t, kind) = ("value".into(), Some(tensor), kind::TENSOR);
                constant.attribute = vec![AttributeProto { name, t, kind, ..Default::default() }];
                graph.node.insert(0, constant);
            }
        });
        let names: Vec<&str> = model.file().unwrap().weights().iter().map(|weight| &*weight.name).collect();
        let learned: &[&str] = if written == "nodes" { &[] } else { &["ones", "zeros"] };
        assert_eq!(names, [learned, &["bn.mean", "bn.var", "fc.weight", "fc.bias"]].concat());
        let number = |place: usize| place as f32 * 0.125 - 1.0;
        for (place, found) in scores_of(&model).iter().enumerate() {
            let (image, class) = (place / 3, place % 3);
            // Statistics are as a network begins: 0 and 1.
            let x = |at: usize| (4 * image + at) as f32 / (1.0f32 + 1e-5).sqrt();
            let wanted = number(class) + (0..4).map(|at| x(at) * number(3 * at + class)).sum::<f32>();
            assert!((found - wanted).abs() <= 1e-5 * wanted.abs().max(1.0), "{found} and {wanted}");
        }
    }
}

/// A token that an exporter wrote down for each of the two images, which is put before them and added to them, as CaiT
/// has it: one for any number of images.
#[test]
fn a_token_of_each_image_that_two_layers_read_is_one_parameter() {
    let (_place, model) = opened(|graph| {
        let mut token = weight("token", &[1, 1, 4]);
        token.dims[0] = 2;
        token.float_data.extend_from_within(..);
        let shape = TensorProto {
            name: "shape".into(),
            dims: vec![3],
            data_type: data_type::INT64,
            int64_data: vec![2, 1, 4],
            ..TensorProto::default()
        };
        graph.initializer[0] = weight("fc.weight", &[8, 3]);
        graph.initializer.extend([token, shape]);
        let axis = AttributeProto { name: "axis".into(), i: 1, kind: kind::INT, ..AttributeProto::default() };
        let put = node("put", "Concat", &["token", "s"], "c");
        let before = [
            node("row", "Reshape", &["x", "shape"], "r"),
            node("add", "Add", &["r", "token"], "s"),
            NodeProto { attribute: vec![axis], ..put },
        ];
        graph.node.splice(0..0, before);
        graph.node[3].input = vec!["c".into()];
        graph.input = vec![value("x", &[2, 1, 2, 2])];
    });
    let number = |place: usize| place as f32 * 0.125 - 1.0;
    for (place, found) in scores_of(&model).iter().enumerate() {
        let (image, class) = (place / 3, place % 3);
        let row = (0..4).map(number).chain((0..4).map(|at| (4 * image + at) as f32 + number(at)));
        let sum: f32 = row.enumerate().map(|(at, x)| x * number(3 * at + class)).sum();
        assert!((found - sum - number(class)).abs() <= 1e-5 * sum.abs().max(1.0), "{found} and {sum}");
    }
    // A plan has one reader of each parameter, and is refused else.
    let graph = model.build(5, model.image, model.classes).unwrap().simplify().differentiate();
    let run = Bound::new(&Reference, graph, 1 << 20);
    let token = run.plan.parameters.iter().find(|parameter| parameter.name == "token").unwrap();
    assert_eq!(token.spec.shape.0, [1, 1, 4]);
}

/// Places as EdgeNeXt has them: sines of numbers that a file keeps like something learned are no parameters, and a
/// convolution of what was written down for each of two images is one for any number of them.
#[test]
fn sines_of_places_are_computed_in_advance_and_projected_once() {
    let (_place, model) = opened(|graph| {
        let mut places = weight("places", &[1, 1, 2, 2]);
        places.dims[0] = 2;
        places.float_data.extend_from_within(..);
        graph.initializer.extend([places, weight("rate", &[2]), weight("project", &[1, 1, 1, 1])]);
        let before = [
            node("scaled", "Div", &["places", "rate"], "p"),
            node("sines", "Sin", &["p"], "q"),
            node("conv", "Conv", &["q", "project"], "r"),
            node("add", "Add", &["x", "r"], "s"),
        ];
        graph.node.splice(0..0, before);
        graph.node[4].input = vec!["s".into()];
        graph.input = vec![value("x", &[2, 1, 2, 2])];
    });
    let number = |place: usize| place as f32 * 0.125 - 1.0;
    for (place, found) in scores_of(&model).iter().enumerate() {
        let (image, class) = (place / 3, place % 3);
        let of = |at: usize| (4 * image + at) as f32 + number(0) * (number(at) / number(at % 2)).sin();
        let sum: f32 = (0..4).map(|at| of(at) * number(3 * at + class)).sum();
        assert!((found - sum - number(class)).abs() <= 1e-5 * sum.abs().max(1.0), "{found} and {sum}");
    }
    let names: Vec<&str> = model.file().unwrap().weights().iter().map(|weight| &*weight.name).collect();
    assert_eq!(names, ["project", "fc.weight", "fc.bias"]);
}

/// As PyTorch's default exporter looks up what lies between two places.
#[test]
fn blocks_of_what_is_learned_are_taken_from_known_places() {
    let (_place, model) = opened(|graph| {
        graph.initializer.push(TensorProto {
            name: "at".into(),
            dims: vec![4, 1],
            data_type: data_type::INT64,
            int64_data: vec![2, 0, -3, 3],
            ..TensorProto::default()
        });
        graph.node.insert(0, node("take", "GatherND", &["fc.weight", "at"], "w"));
        graph.node[2].input[1] = "w".into();
    });
    let number = |place: usize| place as f32 * 0.125 - 1.0;
    for (place, found) in scores_of(&model).iter().enumerate() {
        let (image, class) = (place / 3, place % 3);
        let rows = [2, 0, 1, 3].iter().enumerate();
        let sum: f32 = rows.map(|(at, row)| (4 * image + at) as f32 * number(3 * row + class)).sum();
        assert!((found - sum - number(class)).abs() <= 1e-5 * sum.abs().max(1.0), "{found} and {sum}");
    }
}

/// A window of 3 places two apart, with zeros as its reach of 5 wants: the image keeps its size.
#[test]
fn a_dilated_convolution_reaches_further() {
    let ints = |name: &str, ints: [i64; 2]| AttributeProto {
        name: name.into(),
        ints: ints.into(),
        kind: kind::INTS,
        ..Default::default()
    };
    let same = AttributeProto {
        name: "auto_pad".into(),
        s: b"SAME_UPPER".as_slice().into(),
        kind: 3,
        ..Default::default()
    };
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("net.onnx");
    let file = changed(|graph| {
        let mut conv = node("conv", "Conv", &["x", "w"], "b");
        conv.attribute = vec![ints("dilations", [2, 1]), same];
        graph.initializer.push(weight("w", &[1, 1, 3, 3]));
        graph.node.insert(0, conv);
        graph.node[1].input = vec!["b".into()];
    });
    std::fs::write(&path, file.encode_to_vec()).unwrap();
    let model = model::open(&path).unwrap();
    let graph = model.build(2, model.image, model.classes).unwrap();
    let Op::Conv(conv) = graph.nodes[0].op else { panic!("{:?}", graph.nodes[0]) };
    assert_eq!((conv.dilation, conv.padding, conv.reach()), ([1, 2, 1], [0, 2, 1], [1, 5, 3]));
}

/// The file of a network, its model, and the graph for so many images.
pub fn opened(change: impl FnOnce(&mut GraphProto)) -> (tempfile::TempDir, Model) {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("net.onnx");
    std::fs::write(&path, changed(change).encode_to_vec()).unwrap();
    let model = model::open(&path).unwrap();
    (place, model)
}

/// The scores of two images: 0, 1, 2, 3 and 4, 5, 6, 7.
pub fn scores_of(model: &Model) -> Vec<f32> {
    let graph = model.build_to_test(2, model.image, model.classes).unwrap();
    let mut run = Bound::new(&Reference, graph.for_evaluation().simplify(), 1 << 20);
    run.set_batch(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], &[0; 2]);
    for parameter in &run.plan.parameters {
        run.set_parameter(parameter, &model.file().unwrap().values(&parameter.name).unwrap());
    }
    run.run(0..run.program.steps.len(), &Scalars::default());
    run.logits()
}

/// A list of parts, of which nodes take some: of sizes that are written out, of one size, or of one place each.
#[test]
fn one_of_a_list_of_parts_is_taken() {
    let integers = |name: &str, dims: &[i64], numbers: &[i64]| TensorProto {
        name: name.into(),
        dims: dims.to_vec(),
        data_type: data_type::INT64,
        int64_data: numbers.to_vec(),
        ..TensorProto::default()
    };
    let number = |place: usize| place as f32 * 0.125 - 1.0;
    let cases = [
        (Some(integers("sizes", &[2], &[1, 3])), -1, Ok(vec![1, 2, 3])),
        (Some(integers("sizes", &[], &[3])), 1, Ok(vec![3])),
        (None, 2, Ok(vec![2])),
        (Some(integers("sizes", &[2], &[1, 2])), 0, Err("split [1, 2] of 1×4")),
        (None, 4, Err("takes none of 4 parts")),
    ];
    for (sizes, at, wanted) in cases {
        let given: &[&str] = if sizes.is_some() { &["a", "sizes"] } else { &["a"] };
        let parts = node("parts", "SplitToSequence", given, "list");
        let axis = AttributeProto { name: "axis".into(), i: -1, kind: kind::INT, ..Default::default() };
        let change = |graph: &mut GraphProto| {
            graph.initializer[0].dims[0] = wanted.as_ref().map_or(4, |of: &Vec<_>| of.len() as i64);
            let numbers = graph.initializer[0].dims.iter().product::<i64>() as usize;
            graph.initializer[0].float_data.truncate(numbers);
            graph.initializer.extend(sizes.clone());
            graph.initializer.push(integers("at", &[], &[at]));
            graph.node.insert(1, NodeProto { attribute: vec![axis], ..parts });
            graph.node.insert(2, node("one", "SequenceAt", &["list", "at"], "part"));
            graph.node[3].input[0] = "part".into();
        };
        let places = match &wanted {
            Ok(places) => places,
            Err(wrong) => {
                let found = said(change);
                assert!(found.contains(wrong), "{found}");
                continue;
            }
        };
        let (_place, model) = opened(change);
        for (place, found) in scores_of(&model).iter().enumerate() {
            let (image, class) = (place / 3, place % 3);
            let product = |(at, from): (usize, &usize)| (4 * image + from) as f32 * number(3 * at + class);
            let wanted = number(class) + places.iter().enumerate().map(product).sum::<f32>();
            assert!((found - wanted).abs() <= 1e-5 * wanted.abs().max(1.0), "{at}: {found} and {wanted}");
        }
    }
}

/// Channels of a block become its places and are taken apart again, in the orders that ONNX defines.
#[test]
fn blocks_of_channels_become_places_and_back() {
    // The pixels of an image (2, 2), then 4 channels of a pixel, twice that, and 2 channels of 2×2 pixels.
    for (mode, places) in [("DCR", [0, 2, 4, 6, 1, 3, 5, 7]), ("CRD", [0, 1, 2, 3, 4, 5, 6, 7])] {
        let blocks = |name: &str, op: &str, from: &str, to: &str| {
            let size =
                AttributeProto { name: "blocksize".into(), i: 2, kind: kind::INT, ..Default::default() };
            NodeProto { attribute: vec![size], ..node(name, op, &[from], to) }
        };
        let (_place, model) = opened(|graph| {
            let mode = AttributeProto {
                name: "mode".into(),
                s: mode.as_bytes().to_vec().into(),
                kind: kind::STRING,
                ..Default::default()
            };
            let mut up = blocks("up", "DepthToSpace", "wide", "pixels");
            up.attribute.push(mode);
            let double = TensorProto { float_data: vec![10.0], ..weight("double", &[1]) };
            graph.initializer.extend([double, weight("of.eight", &[8, 3])]);
            let axis = AttributeProto { name: "axis".into(), i: 1, kind: kind::INT, ..Default::default() };
            graph.node = vec![
                blocks("down", "SpaceToDepth", "x", "channels"),
                node("times", "Mul", &["channels", "double"], "more"),
                NodeProto { attribute: vec![axis], ..node("both", "Concat", &["channels", "more"], "wide") },
                up,
                node("flat", "Flatten", &["pixels"], "f"),
                node("fc", "MatMul", &["f", "of.eight"], "y"),
            ];
            graph.initializer.retain(|tensor| ["double", "of.eight"].contains(&&*tensor.name));
        });
        for (at, found) in scores_of(&model).iter().enumerate() {
            let (image, class) = (at / 3, at % 3);
            let channel =
                |channel: usize| (4 * image + channel % 4) as f32 * if channel < 4 { 1.0 } else { 10.0 };
            let wanted: f32 =
                (0..8).map(|k| channel(places[k]) * ((3 * k + class) as f32 * 0.125 - 1.0)).sum();
            assert!((found - wanted).abs() <= 1e-5 * wanted.abs().max(1.0), "{mode}: {found} and {wanted}");
        }
    }
}

/// −1, as some writers say that an extent is open, is as 0.
#[test]
fn a_batch_of_less_than_none_is_one_that_is_open() {
    let (_place, model) = opened(|graph| graph.input = vec![value("x", &[-1, 1, 2, 2])]);
    let (_other, plain) = opened(|_| {});
    assert_eq!(scores_of(&model), scores_of(&plain));
}

/// alpha·x·w + beta·b, as a layer of which the head may get other classes.
#[test]
fn a_gemm_with_factors_is_a_layer() {
    let factor =
        |name: &str, f: f32| AttributeProto { name: name.into(), f, kind: kind::FLOAT, ..Default::default() };
    let (_place, model) =
        opened(|graph| graph.node[1].attribute = vec![factor("alpha", 0.5), factor("beta", 3.0)]);
    let (weight, bias) =
        (|place: usize| place as f32 * 0.125 - 1.0, |place: usize| place as f32 * 0.125 - 1.0);
    let score = |image: usize, class: usize| {
        let sum: f32 = (0..4).map(|at| (4 * image + at) as f32 * weight(3 * at + class)).sum();
        0.5 * sum + 3.0 * bias(class)
    };
    for (place, found) in scores_of(&model).iter().enumerate() {
        let wanted = score(place / 3, place % 3);
        assert!((found - wanted).abs() <= 1e-5 * wanted.abs().max(1.0), "{found} and {wanted}");
    }
    let graph = model.build(2, model.image, 7).unwrap();
    assert_eq!(graph.tensor(graph.logits).spec.shape.0, [2, 7]);
}

/// GELU behind an order of axes; an If by a condition that is computed of shapes; a table of zeros and another number,
/// which is not learned.
#[test]
fn what_exporters_spell_out_becomes_what_it_is() {
    let single = |name: &str, number: f32| TensorProto {
        name: name.into(),
        data_type: data_type::FLOAT,
        float_data: vec![number],
        ..TensorProto::default()
    };
    let (_place, model) = opened(|graph| {
        graph.initializer.extend([single("root", 2f32.sqrt()), single("one", 1.0), single("half", 0.5)]);
        let ints = AttributeProto {
            name: "perm".into(),
            ints: vec![0, 2, 3, 1],
            kind: kind::INTS,
            ..Default::default()
        };
        let mut order = node("order", "Transpose", &["x"], "t");
        order.attribute = vec![ints];
        let before = [
            order,
            node("like", "CastLike", &["root", "x"], "root_like"),
            node("div", "Div", &["t", "root_like"], "d"),
            node("erf", "Erf", &["d"], "e"),
            node("add", "Add", &["e", "one"], "p"),
            node("mul", "Mul", &["t", "p"], "m"),
            node("gelu", "Mul", &["m", "half"], "g"),
        ];
        graph.node.splice(0..0, before);
        graph.node[7].input = vec!["g".into()];
    });
    let built = model.build(2, model.image, model.classes).unwrap();
    let is_gelu =
        |node: &&dltrain::graph::Node| matches!(node.op, Op::Activation(dltrain::graph::Activation::Gelu));
    assert_eq!(built.nodes.iter().filter(is_gelu).count(), 1);

    let (_place, model) = opened(|graph| {
        let branch = |name: &str, op: &str| AttributeProto {
            name: name.into(),
            g: Some(Box::new(GraphProto {
                node: vec![node(op, op, &["x"], &format!("{op}.y"))],
                output: vec![value(&format!("{op}.y"), &[])],
                ..GraphProto::default()
            })),
            kind: 5,
            ..Default::default()
        };
        let mut choice = node("if", "If", &["holds"], "i");
        choice.attribute = vec![branch("then_branch", "LSTM"), branch("else_branch", "Identity")];
        let integers = |name: &str, numbers: &[i64]| TensorProto {
            name: name.into(),
            dims: vec![numbers.len() as i64],
            data_type: data_type::INT64,
            int64_data: numbers.to_vec(),
            ..TensorProto::default()
        };
        let other = TensorProto { float_data: vec![0.0, -9.0, 0.0, 0.0], ..weight("mask", &[2, 2]) };
        graph.initializer.extend([integers("shape", &[1, 1, 2, 9]), other]);
        let before = [
            node("shape_of", "Shape", &["x"], "s"),
            node("same", "Equal", &["s", "shape"], "q"),
            node("all", "Cast", &["q"], "c"),
            node("least", "ReduceMin", &["c"], "holds"),
            choice,
            node("masked", "Add", &["i", "mask"], "k"),
        ];
        let mut before = Vec::from(before);
        let to = |name: &str, i: i64| AttributeProto {
            name: name.into(),
            i,
            kind: kind::INT,
            ..Default::default()
        };
        before[2].attribute = vec![to("to", 7)];
        before[3].attribute = vec![to("keepdims", 0)];
        graph.node.splice(0..0, before);
        graph.node[6].input = vec!["k".into()];
    });
    let names: Vec<&str> = model.file().unwrap().weights().iter().map(|weight| &*weight.name).collect();
    assert_eq!(names, ["fc.weight", "fc.bias"]);
    let (_other, plain) = opened(|_| {});
    let apart: Vec<f32> = scores_of(&model).iter().zip(scores_of(&plain)).map(|(a, b)| a - b).collect();
    // −9 of the second pixel.
    let row: Vec<f32> = (3..6).map(|place| -9.0 * (place as f32 * 0.125 - 1.0)).collect();
    for (found, wanted) in apart.iter().zip([&row[..], &row].concat()) {
        assert!((found - wanted).abs() < 1e-5, "{found} and {wanted}");
    }
}

#[test]
fn what_cannot_be_trained_is_refused_with_every_node() {
    let message = said(|graph| {
        let mut odd = node("odd", "Conv", &["x", "w"], "b");
        let dilations = AttributeProto {
            name: "dilations".into(),
            ints: vec![2, 0],
            kind: kind::INTS,
            ..Default::default()
        };
        odd.attribute.push(dilations);
        let mut scaled = node("fc", "Gemm", &["d", "fc.weight", "fc.bias"], "y");
        let other = AttributeProto { name: "gamma".into(), f: 0.5, kind: kind::FLOAT, ..Default::default() };
        scaled.attribute.push(other);
        graph.initializer.push(weight("w", &[1, 1, 2, 2]));
        let cast = |name: &str, i: i64| NodeProto {
            attribute: vec![AttributeProto { name: "to".into(), i, kind: kind::INT, ..Default::default() }],
            ..node(name, "Cast", &["d"], name)
        };
        graph.node =
            vec![odd, node("loop", "Loop", &["b"], "c"), node("flat", "Flatten", &["x"], "d"), scaled];
        // int32, uint8 and bool; f16 and f64 are real numbers.
        graph.node.extend([("whole", 6), ("bytes", 2), ("truth", 9)].map(|(name, to)| cast(name, to)));
        graph.node.extend([("half", 10), ("double", 11)].map(|(name, to)| cast(name, to)));
        graph.node.push(node("all", "Sum", &["whole", "bytes", "truth", "half", "double", "c"], "c.all"));
        graph.node.push(node("sum", "LSTM", &["c.all", "y"], "z"));
        graph.output = vec![value("z", &[0, 3])];
    });
    for line in [
        "odd (Conv): dilations of 0",
        "loop (Loop): the op is not supported",
        "whole (Cast): rounds what is computed, to the type 6",
        "bytes (Cast): rounds what is computed, to the type 2",
        "truth (Cast): rounds what is computed, to the type 9",
        "fc (Gemm): attribute gamma is not known",
        "sum (LSTM): the op is not supported",
    ] {
        assert!(message.contains(line), "{line}: {message}");
    }
    assert!(message.contains("of its 11 nodes 7 are not supported"), "{message}");
}

#[test]
fn what_is_no_sound_file_is_refused() {
    let refused = |part: &str, change: &dyn Fn(&mut GraphProto)| {
        let message = said(|graph| change(graph));
        assert!(message.contains(part), "{part}: {message}");
    };
    refused("in a circle", &|graph| graph.node[0].input = vec!["y".into()]);
    refused("reads none, which nothing gives", &|graph| graph.node[0].input = vec!["none".into()]);
    refused("its input z is no batch of samples", &|graph| {
        graph.input.push(value("z", &[1]));
        graph.node[0].input = vec!["z".into()];
    });
    refused("y is given twice", &|graph| graph.node.push(node("more", "Relu", &["a"], "y")));
    refused("fc.bias: is there twice", &|graph| graph.initializer.push(weight("fc.bias", &[3])));
    refused("[-1]", &|graph| graph.initializer[1].dims = vec![-1]);
    refused("more than memory has addresses", &|graph| graph.initializer[0].dims = vec![1 << 40, 1 << 40]);
    refused("10000000000 numbers, and 12", &|graph| graph.initializer[0].dims = vec![100_000, 100_000]);
    refused("its input x is no batch of samples", &|graph| graph.input = vec![value("x", &[0])]);
    refused("is no batch of samples", &|graph| graph.input = vec![value("x", &[0, 1, 1 << 40, 2])]);
    refused("can be counted", &|graph| graph.input = vec![value("x", &[0, 1 << 16, 1 << 16, 1 << 16])]);
    refused("by a weight for 4 numbers", &|graph| graph.input = vec![value("x", &[0, 1, 3, 3])]);
    refused("has not one part for each sample", &|graph| graph.output = vec![value("x", &[0, 1, 2, 2])]);
    refused("does not depend on what it is given", &|graph| {
        graph.initializer.push(weight("k", &[1, 4]));
        graph.node[0].input = vec!["k".into()];
    });
    refused("nothing to learn", &|graph| graph.output = vec![value("a", &[0, 4])]);
    for (location, part) in [
        ("../w.bin", "outside of the directory"),
        ("/etc/passwd", "outside of the directory"),
        ("w.bin", "is in w.bin"),
    ] {
        refused(part, &|graph| {
            graph.initializer[0].float_data.clear();
            graph.initializer[0].data_location = 1;
            let entry = StringStringEntryProto { key: "location".into(), value: location.into() };
            graph.initializer[0].external_data = vec![entry];
        });
    }
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("net.onnx");
    std::fs::write(&path, b"no such format").unwrap();
    assert!(model::open(&path).err().unwrap().message.contains("cannot be read as ONNX"));
    assert!(model::find("none.onnx").err().unwrap().message.contains("none.onnx"));
}
