//! What a user should know of a file that can be trained.

use super::OnnxFile;
use super::node::OnnxNode;

/// What is to be told of the nodes that were walked over.
#[derive(Default)]
pub struct Noted {
    /// Names of weights that several layers read.
    pub shared: Vec<String>,
    /// Nodes that compute along the axis of the images, of which the file has one.
    pub alone: Vec<String>,
}

/// What a user should know of the file, and what whoever trains it should: what its export may have left out, and what
/// became of it.
pub fn notes(file: &OnnxFile, nodes: &[OnnxNode], noted: &Noted) -> [Vec<String>; 2] {
    let Noted { shared, alone } = noted;
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
            "layers share {}, as exports do with equal first values; each is trained by itself",
            shared.join(", ")
        ));
    }
    let others: Vec<&str> = file.graph.output.iter().skip(1).map(|output| &*output.name).collect();
    if !others.is_empty() {
        let others = others.join(", ");
        notes.push(match file.is_loss {
            true => format!(
                "is trained by its output {}; others ({others}) are left out",
                file.graph.output[0].name
            ),
            false => format!("its outputs besides the first ({others}) are left out"),
        });
    }
    if !alone.is_empty() {
        notes.push(format!(
            "is written for one image, and computes along its axis of images ({}); each image of a batch is taken by \
             itself, as it is there",
            alone.join(", ")
        ));
    }
    [notes, of_training]
}
