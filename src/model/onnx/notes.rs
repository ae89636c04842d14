//! What a user should know of a file that can be trained.

use std::collections::HashSet;

use super::OnnxFile;
use super::axes::{ChannelsSaid, FileInput};
use super::import::Import;
use super::node::OnnxNode;
use crate::graph::{Shape, TensorId};

/// What is to be told of the nodes that were walked over.
#[derive(Default)]
pub struct Noted {
    /// Names of weights that several layers read.
    pub shared: Vec<String>,
    /// Nodes that compute along the axis of the images, of which the file has one.
    pub alone: Vec<String>,
    /// What is multiplied by a weight and not learned, though it may be a parameter.
    pub tables: Vec<String>,
    /// Means over the batch, each sample's part of them.
    pub means: Vec<TensorId>,
    /// The output and its shape, where its channels may be on either of two axes, and whether they are on the last.
    pub doubtful: Option<(String, Shape, bool)>,
}

/// What a user should know of the file, and what whoever trains it should: what its export may have left out, and what
/// became of it.
///
/// # Errors
/// A loss with a penalty of what no layer has: its weight is no longer there.
pub fn notes(import: &Import, nodes: &[OnnxNode]) -> Result<[Vec<String>; 2], String> {
    let (file, Noted { shared, alone, means, doubtful, .. }) = (import.file, &import.noted);
    let behind = means.iter().flat_map(|&mean| import.net.names_behind(mean)).collect::<HashSet<_>>();
    let penalty = import.weights.iter().find(|weight| !behind.contains(&*weight.name));
    if let Some(weight) = penalty.filter(|_| file.is_loss()) {
        return Err(format!(
            "its loss has a penalty of {}, which no layer has: an exporter has computed it of a weight in advance; \
             export with do_constant_folding=False (with dynamo=True: optimize=False)",
            weight.name
        ));
    }
    let [mut notes, mut of_training] = [Vec::new(), Vec::new()];
    let trains = |node: &OnnxNode| node.op() == "BatchNormalization" && node.int("training_mode") == Some(1);
    let draws = |node: &OnnxNode| ["Dropout", "Bernoulli", "RandomUniformLike"].contains(&node.op());
    if !nodes.iter().any(|node| draws(node) || trains(node)) {
        of_training.push(
            "has no dropout, which an export in inference mode leaves out; it is trained without".into(),
        );
    }
    if !shared.is_empty() {
        of_training.push(format!(
            "layers share {}, as exports write one for several that begin alike; here each has its own",
            shared.join(", ")
        ));
    }
    of_training.extend(of_parameters(import, nodes));
    let others: Vec<&str> = file.graph.output.iter().skip(1).map(|output| &*output.name).collect();
    if !others.is_empty() {
        let others = others.join(", ");
        notes.push(match file.is_loss() {
            true => format!(
                "is trained by its output {}; others ({others}) are left out",
                file.graph.output[0].name
            ),
            false => format!("its outputs besides the first ({others}) are left out"),
        });
    }
    notes.extend(of_channels(file, doubtful.as_ref()));
    if !alone.is_empty() {
        notes.push(format!(
            "is written for one image, and computes along its axis of images ({}); each image of a batch is taken by \
             itself, as it is there",
            alone.join(", ")
        ));
    }
    Ok([notes, of_training])
}

/// Names, and what is to be told of them before and behind these.
type NamesNote = (&'static str, Vec<String>, &'static str);

/// What became of parameters that the file has not as the network has them.
fn of_parameters(import: &Import, nodes: &[OnnxNode]) -> Vec<String> {
    let lines = by_newer(import, nodes).into_iter().chain(by_older(import));
    let lines = lines.filter(|(_, names, _)| !names.is_empty());
    lines.map(|(before, names, behind)| format!("{before}{}{behind}", some_of(&names))).collect()
}

/// Those of these names that are learned, in order.
fn learned<'a>(import: &Import, names: impl IntoIterator<Item = &'a String>) -> Vec<String> {
    let is_learned = |name: &&String| import.weights.iter().any(|weight| weight.name == **name);
    let mut names: Vec<String> = names.into_iter().filter(is_learned).cloned().collect();
    names.sort_unstable();
    names
}

/// By PyTorch's newer exporter.
fn by_newer(import: &Import, nodes: &[OnnxNode]) -> [NamesNote; 6] {
    let said = &import.file.said;
    let is_read = |name: &&String| nodes.iter().any(|node| node.inputs().contains(*name));
    [
        (
            "lacks parameters of its network: ",
            said.lost.clone(),
            ". PyTorch's exporter left them out or computed with them in advance, and they are not learned, unless \
             nothing reads them; an export with optimize=False keeps them",
        ),
        (
            "lacks the batch normalisations ",
            said.left_out.fused.clone(),
            ": PyTorch's exporter folded them into the layers before them; an export with optimize=False keeps them",
        ),
        (
            "learns ",
            learned(import, &said.computed),
            " in place of the parameters that PyTorch's exporter has computed them of in advance; an export with \
             optimize=False keeps the parameters",
        ),
        (
            "takes ",
            said.frozen.iter().filter(is_read).cloned().collect(),
            " as they are: PyTorch's exporter has computed them in advance and does not say of what; if of \
             parameters, an export with optimize=False learns these",
        ),
        (
            "computes ",
            said.left_out.merged.clone(),
            " with the parameters of other layers: PyTorch's exporter made one of calls with the same first numbers; \
             an export with optimize=False keeps them apart",
        ),
        (
            "lets gradients through ",
            said.left_out.detached.clone(),
            ": an ONNX file has no op that stops them",
        ),
    ]
}

/// By the older one.
fn by_older(import: &Import) -> [NamesNote; 5] {
    let said = &import.file.said;
    let mut taken: Vec<String> = said.copies.taken.iter().cloned().collect();
    taken.sort_unstable();
    [
        (
            "takes ",
            import.noted.tables.clone(),
            " as they are: tables of numbers, or parameters; an export with dynamo=True says which",
        ),
        (
            "learns ",
            learned(import, &said.copies.apart),
            " apart from other parameters with the same first numbers; its exporter does not say whether they are \
             tied, and one with dynamo=True does",
        ),
        (
            "learns ",
            taken,
            " as one with tensors of the same numbers, since it takes their modules for one that is called again; an \
             export with dynamo=True says whether it is",
        ),
        (
            "learns ",
            learned(import, &said.folded),
            ", which its exporter has computed of parameters in advance; one with do_constant_folding=False keeps the \
             parameters",
        ),
        (
            "learns ",
            learned(import, &said.guessed),
            ": its exporter does not say whether they are parameters or buffers, and one with dynamo=True does",
        ),
    ]
}

/// "a, b, c, d and 3 more".
fn some_of(names: &[String]) -> String {
    let (shown, more) = names.split_at(names.len().min(4));
    shown.join(", ") + &if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) }
}

/// Where channels are taken to be that may be on either axis.
fn of_channels(file: &OnnxFile, output: Option<&(String, Shape, bool)>) -> Vec<String> {
    let place = |is_last: bool| if is_last { "last" } else { "second" };
    let input = |FileInput { name, said, is_last, .. }: &FileInput| {
        let is_doubtful = *said == ChannelsSaid::BySamples { both_fit: true };
        let (own, other) = (place(*is_last), place(!is_last));
        is_doubtful.then(|| {
            format!(
                "does not say which axis of its input {name} has the channels, and samples fit with both: arrays are \
                 given as they lie, with channels on the {own} axis; for a network that wants them on the {other} \
                 write the array in that order"
            )
        })
    };
    let output = output.map(|(name, shape, is_last)| {
        format!(
            "does not say which axis of its output {name}, {shape}, has the channels: it is taken to be the {}, by how \
             the arrays lie",
            place(*is_last)
        )
    });
    file.inputs.iter().filter_map(input).chain(output).collect()
}
