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
    let (file, Noted { shared, alone, means, doubtful }) = (import.file, &import.noted);
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

/// What became of parameters that the file has not as the network has them.
fn of_parameters(import: &Import, nodes: &[OnnxNode]) -> Vec<String> {
    let reads = |name: &String| nodes.iter().any(|node| node.inputs().contains(name));
    let (said, mut notes) = (&import.file.said, Vec::new());
    let lost: Vec<&str> = said.lost.iter().map(String::as_str).collect();
    if !lost.is_empty() {
        notes.push(format!(
            "lacks parameters of its network: {}. PyTorch's exporter left them out or computed with them in advance, \
             and they are not learned, unless nothing reads them; an export with optimize=False keeps them",
            some_of(&lost)
        ));
    }
    let is_read = |name: &&String| import.weights.iter().any(|weight| weight.name == **name);
    let computed: Vec<&str> = said.computed.iter().filter(is_read).map(String::as_str).collect();
    if !computed.is_empty() {
        notes.push(format!(
            "learns {} in place of the parameters that PyTorch's exporter has computed them of in advance; an export \
             with optimize=False keeps the parameters",
            some_of(&computed)
        ));
    }
    let frozen: Vec<&str> = said.frozen.iter().filter(|name| reads(name)).map(String::as_str).collect();
    if !frozen.is_empty() {
        notes.push(format!(
            "takes {} as they are: PyTorch's exporter has computed them in advance and does not say of what; if of \
             parameters, an export with optimize=False learns these",
            some_of(&frozen)
        ));
    }
    if !said.left_out.is_empty() {
        let calls: Vec<&str> = said.left_out.iter().map(String::as_str).collect();
        notes.push(format!(
            "computes {} with the parameters of other layers: PyTorch's exporter made one of calls with the same first \
             numbers; an export with optimize=False keeps them apart",
            some_of(&calls)
        ));
    }
    let mut alike: Vec<&str> = said.alike.iter().filter(is_read).map(String::as_str).collect();
    alike.sort_unstable();
    if !alike.is_empty() {
        notes.push(format!(
            "learns {} apart from other parameters with the same first numbers; its exporter does not say whether they \
             are tied, and one with dynamo=True does",
            some_of(&alike)
        ));
    }
    let guessed: Vec<&str> = said.guessed.iter().filter(is_read).map(String::as_str).collect();
    if !guessed.is_empty() {
        notes.push(format!(
            "learns {}: its exporter does not say whether they are parameters or buffers, and one with \
             dynamo=True does",
            some_of(&guessed)
        ));
    }
    notes
}

/// "a, b, c, d and 3 more".
fn some_of(names: &[&str]) -> String {
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
