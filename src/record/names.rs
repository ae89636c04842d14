//! Names of tensors in files. ONNX and safetensors take any text; a link of HDF5 has no "/", which leads into a group.

use std::collections::HashSet;
use std::path::Path;

use super::weights::is_hdf5;
use crate::error::{Error, Result};

/// What safetensors keeps for what a file says of itself.
const RESERVED: &str = "__metadata__";

/// Whether a file of this name can have tensors of these names.
///
/// # Errors
/// `Output` with the name that it cannot have.
pub fn check_names<'a>(path: &Path, names: impl Iterator<Item = &'a str>) -> Result<()> {
    let mut seen = HashSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(Error::output(
                path,
                format!("two tensors are called {name:?}; a file names each once"),
            ));
        }
        if name == RESERVED && !is_hdf5(path) {
            let what = format!("safetensors keeps the name {name} for itself, and a tensor is called so");
            return Err(Error::output(path, format!("{what}; give the file a name that ends in .h5")));
        }
    }
    Ok(())
}

/// What HDF5 calls the link to a tensor of any name: the name itself, but for what it cannot have or would not read as
/// it stands, which is percent-encoded as in URLs.
pub(super) fn link(name: &str) -> String {
    match name {
        "" => "%".into(),
        "." => "%2E".into(),
        _ => name.replace('%', "%25").replace('/', "%2F").replace('\0', "%00"),
    }
}

/// The link of an array of a checkpoint, "parameters/NAME" or "optimizer/STATE/NAME".
pub(super) fn link_of_array(path: &str) -> String {
    let groups = if path.starts_with("optimizer/") { 2 } else { 1 };
    match path.match_indices('/').nth(groups - 1) {
        Some((at, _)) => format!("{}/{}", &path[..at], link(&path[at + 1..])),
        None => link(path),
    }
}

/// The reverse of `link`.
pub(super) fn name_of(link: &str) -> String {
    match link {
        "%" => String::new(),
        _ => {
            let plain = link.replace("%00", "\0").replace("%2E", ".").replace("%2F", "/");
            plain.replace("%25", "%")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::checkpoint::{self, Array, Contents};
    use super::super::weights::{ModelMetadata, WeightsFile, write_weights};
    use super::*;
    use crate::graph::{Builder, Conv, Graph, Role, Tensor};
    use crate::model::onnx::export::TensorValues;
    use crate::model::{self, Model, onnx};
    use onnx::schema::ModelProto;
    use proptest::prelude::*;
    use prost::Message;

    /// Names that some format, or dltrain, gives a meaning; and any others.
    fn name() -> impl Strategy<Value = String> {
        let meant = [
            "",
            ".",
            "..",
            "/",
            "//",
            "a",
            "a/b",
            "/a",
            "a/",
            "a/./b",
            "a.b",
            "%",
            "%2F",
            "a%2Fb",
            "\0",
            "__metadata__",
            "summary",
            "format",
            "names",
            "config",
            "images",
            "logits",
            "bn.running_mean",
            "bn.num_batches_tracked",
            "optimizer/momentum/a",
            "parameters/a",
            "relu",
            "out.scale",
        ];
        prop_oneof![
            prop::sample::select(meant.to_vec()).prop_map(String::from),
            "[ab/.%\\x00é :2F]{0,6}",
            "[a-z/]{300}"
        ]
    }

    fn names() -> impl Strategy<Value = Vec<String>> {
        prop::collection::hash_set(name(), 4).prop_map(|names| names.into_iter().collect())
    }

    /// A network whose layers have these names.
    fn network(layers: &[String], batch: usize) -> Result<Graph> {
        let (mut net, images) = Builder::new("names", batch, [1, 4, 4]);
        net.only_to_test();
        let x = net.conv(&layers[0], images, 2, Conv::square(3))?;
        let x = net.relu6(&layers[2], x);
        let x = net.adaptive_avg_pool(&layers[3], x, [1; 3])?;
        let x = net.linear(&layers[1], x, 3);
        Ok(net.finish(x))
    }

    fn parameters(graph: &Graph) -> impl Iterator<Item = &Tensor> {
        graph.tensors.iter().filter(|tensor| tensor.role == Role::Parameter)
    }

    /// As an ONNX file of tensors that are called so.
    fn renamed(bytes: &[u8], names: &[String]) -> Vec<u8> {
        let mut file = ModelProto::decode(bytes).unwrap();
        let graph = file.graph.as_mut().unwrap();
        let mut left = names.iter();
        let mut called = std::collections::HashMap::new();
        for tensor in graph.initializer.iter_mut().filter(|tensor| !tensor.dims.is_empty()) {
            let name = left.next().unwrap().clone();
            called.insert(std::mem::replace(&mut tensor.name, name.clone()), name);
        }
        // What nodes give has other names than any tensor.
        let other =
            |name: &mut String| *name = called.get(name).cloned().unwrap_or_else(|| format!("~{name}"));
        let scalars = graph.initializer.iter_mut().filter(|tensor| tensor.dims.is_empty());
        scalars.for_each(|tensor| other(&mut tensor.name));
        graph.input.iter_mut().chain(&mut graph.output).for_each(|value| other(&mut value.name));
        for node in &mut graph.node {
            node.input.iter_mut().chain(&mut node.output).for_each(other);
        }
        file.encode_to_vec()
    }

    /// Names and bits of all tensors.
    fn all(file: &WeightsFile) -> Vec<(String, Vec<usize>, Vec<u32>)> {
        let bits = |name: &str| file.values(name).unwrap().iter().map(|value| value.to_bits()).collect();
        file.shapes().iter().map(|(name, shape)| (name.clone(), shape.clone(), bits(name))).collect()
    }

    /// The weights of a model in a checkpoint, each also in the optimizer's state.
    fn kept(path: &Path, weights: &WeightsFile) {
        let mut contents = Contents::default();
        for group in ["parameters", "optimizer/momentum", "average"] {
            for (name, shape) in weights.shapes() {
                contents.arrays.push(Array { path: format!("{group}/{name}"), shape: shape.clone() });
                contents.values.extend(weights.values(name).unwrap());
            }
        }
        checkpoint::write(path, &contents).unwrap();
        assert!(checkpoint::read(path).unwrap() == contents);
    }

    fn exported(model: &Model, values: TensorValues, to: &Path) {
        let build = |batch| model.build_to_test(batch, model.image, model.classes);
        std::fs::write(to, onnx::export::network(build, 4, false, values).unwrap().bytes()).unwrap();
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// From a network's own file through every other kind and back, or refused by its name.
        #[test]
        fn any_names_go_through_every_kind_of_file(names in names()) {
            let directory = tempfile::tempdir().unwrap();
            let at = |name: &str| directory.path().join(name);
            let layers = ["conv", "fc", "relu", "pool"].map(String::from);
            let bytes = onnx::export::network(|batch| network(&layers, batch), 4, false, &|name| {
                let graph = network(&layers, 1)?;
                let tensor = graph.tensors.iter().find(|tensor| tensor.name == name).unwrap();
                Ok((0..tensor.spec.shape.elements()).map(|at| at as f32 + name.len() as f32).collect())
            });
            // An empty name is no input in ONNX; none that is drawn is this one.
            let stored = |name: &String| if name.is_empty() { "empty".into() } else { name.clone() };
            let named: Vec<String> = names.iter().map(stored).collect();
            std::fs::write(at("a.onnx"), renamed(&bytes.unwrap().bytes(), &named)).unwrap();
            let model = model::open(&at("a.onnx")).unwrap();
            let first = WeightsFile::of(&model);
            let known = all(&first);
            let found: HashSet<&str> = known.iter().map(|(name, ..)| name.as_str()).collect();
            prop_assert_eq!(found, named.iter().map(String::as_str).collect());
            kept(&at("step.h5"), &first);
            prop_assert_eq!(&all(&WeightsFile::open(&at("step.h5")).unwrap()), &known);
            let mut before = at("step.h5");
            for next in ["b.h5", "c.safetensors", "d.hdf5"] {
                let file = WeightsFile::open(&before).unwrap();
                let values = |name: &str| file.values(name);
                let write = || write_weights(&at(next), file.shapes(), &ModelMetadata::default(), &values, None);
                if next.ends_with("safetensors") && named.iter().any(|name| name == RESERVED) {
                    let refused = check_names(&at(next), named.iter().map(String::as_str)).unwrap_err();
                    prop_assert_eq!(write().unwrap_err().message, refused.message);
                    continue;
                }
                write().unwrap();
                prop_assert_eq!(&all(&WeightsFile::open(&at(next)).unwrap()), &known, "{}", next);
                before = at(next);
            }
            let last = WeightsFile::open(&before).unwrap();
            exported(&model, &|name| last.values(name), &at("e.onnx"));
            prop_assert_eq!(&all(&WeightsFile::open(&at("e.onnx")).unwrap()), &known);
        }

        /// Layers called as the parameters of others, or as what a file is given and gives, leave parameters their
        /// names.
        #[test]
        fn parameters_of_any_layers_keep_their_names_in_onnx(layers in names()) {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("a.onnx");
            let graph = network(&layers, 1).unwrap();
            let wanted: HashSet<&str> = parameters(&graph).map(|tensor| tensor.name.as_str()).collect();
            prop_assume!(wanted.len() == 4);
            let bytes = onnx::export::network(|batch| network(&layers, batch), 4, false, &|name| {
                let tensor = parameters(&graph).find(|tensor| tensor.name == name).unwrap();
                Ok(vec![1.0; tensor.spec.shape.elements()])
            });
            std::fs::write(&path, bytes.unwrap().bytes()).unwrap();
            let file = WeightsFile::open(&path).unwrap();
            let found: HashSet<&str> = file.shapes().iter().map(|(name, _)| name.as_str()).collect();
            prop_assert_eq!(found, wanted);
        }
    }

    #[test]
    fn links_have_no_groups_and_tell_names() {
        for name in ["", ".", "a/b", "/a", "%", "a%2Fb", "%25", "%2525", "%2E", "a.b", "\0", "%%00", "é"] {
            let link = link(name);
            assert!(!link.is_empty() && link != "." && !link.contains(['/', '\0']), "{link}");
            assert_eq!(name_of(&link), name);
        }
        assert_eq!(link("conv1.weight"), "conv1.weight");
        assert_eq!(link_of_array("optimizer/momentum/a/b"), "optimizer/momentum/a%2Fb");
        assert_eq!(link_of_array("parameters/optimizer/b"), "parameters/optimizer%2Fb");
        assert_eq!(link_of_array("average/conv1.weight"), "average/conv1.weight");
    }
}
