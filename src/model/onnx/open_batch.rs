//! A file whose batch is open says what it computes of any number of images. It is described for one, of which nothing
//! shows whether layers compute of several together: a mean over the batch is the image itself there. So it is
//! described for several as well, for two numbers of them, which must give the same network of each image.

use super::OnnxFile;
use super::export::COUNTS;
use super::import::as_described;
use crate::error::{Error, Result};
use crate::graph::{Builder, Graph, Node, Tensor};

/// For how many images both descriptions are laid one behind the other, to be compared.
const COMPARED: usize = 6;

/// # Errors
/// `Data` where a layer computes of several images together, or with their number.
pub fn check(file: &OnnxFile) -> Result<()> {
    if file.batch().is_some() {
        return Ok(());
    }
    let [few, more] = COUNTS.map(|images| of_each(file, images));
    match first_unlike(&few?, &more?) {
        Some(layer) => Err(Error::data(
            &file.path,
            format!(
                "cannot be trained: its batch is open, and layer {layer} computes with the number of images in it, so \
                 that what an image gives depends on the others"
            ),
        )),
        None => Ok(()),
    }
}

/// What each image has of the network that is described for so many.
fn of_each(file: &OnnxFile, images: usize) -> Result<Graph> {
    let refused = |error: Error| {
        let path = format!("{}: ", file.path.display());
        let what = error.message.strip_prefix(&path).unwrap_or(&error.message);
        Error::data(
            &file.path,
            format!("cannot be trained: its batch is open, and of {images} images: {what}"),
        )
    };
    let (mut described, its_images) = Builder::new(file.label(), images, file.image());
    described.only_to_test();
    let imported = as_described(file, &mut described, its_images, None).map_err(refused)?;
    let (mut net, _) = Builder::new(file.label(), COMPARED, file.image());
    net.only_to_test();
    let logits = net.add_batched(&described, imported.logits, |_, _, _| false).map_err(refused)?;
    Ok(net.finish(logits))
}

/// The first layer that is another one, or reads or gives other tensors.
fn first_unlike(few: &Graph, more: &Graph) -> Option<String> {
    let at = |graph: &'_ Graph, index: usize| -> Option<(Node, Vec<Tensor>)> {
        let node = graph.nodes.get(index)?;
        let ids = node.inputs.iter().chain(&node.outputs);
        Some((node.clone(), ids.map(|&id| graph.tensor(id).clone()).collect()))
    };
    let index =
        (0..few.nodes.len().max(more.nodes.len())).find(|&index| at(few, index) != at(more, index))?;
    few.nodes.get(index).or(more.nodes.get(index)).map(|node| node.name.clone())
}
