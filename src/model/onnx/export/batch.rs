//! Where the images of a batch lie in a tensor, which a file must know: it is for any number of them. It follows from
//! the same network for two numbers, and for reshapes from the order of elements, which they keep.

use crate::error::{Error, Result};
use crate::graph::{Graph, Node, Op, Role, Tensor, TensorId};

/// For how many images the network is built: that which is written, and another one. Neither is one, for which nothing
/// need be stretched, so that such a network may have other layers.
pub const COUNTS: [usize; 2] = [2, 3];

/// Images along one axis: in each of `outer` parts all of them, with `inner` neighbouring places each.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BatchAxis {
    pub axis: usize,
    pub outer: usize,
    pub inner: usize,
}

impl BatchAxis {
    /// How many axes the file has in place of that one.
    pub fn axes(&self) -> usize {
        [self.outer, 1, self.inner].into_iter().filter(|&places| places > 1).count() + 1
    }

    /// The axis where one axis stands for all of them.
    pub fn joined(self) -> BatchAxis {
        BatchAxis { outer: 1, inner: 1, ..self }
    }
}

/// The batch of each tensor that leads to the logits; `None` of what has nothing to do with images.
///
/// # Errors
/// `Usage` where a layer does not do the same for each image, whatever their number.
pub fn batches(graph: &Graph, other: &Graph) -> Result<Vec<Option<BatchAxis>>> {
    let alike = |(a, b): (&Node, &Node)| (a.op, &a.inputs, &a.outputs) == (b.op, &b.inputs, &b.outputs);
    let counts = |graph: &Graph| [graph.nodes.len(), graph.tensors.len()];
    if counts(graph) != counts(other) || !graph.nodes.iter().zip(&other.nodes).all(alike) {
        return Err(unwritable(&graph.name, "its layers depend on how many images there are"));
    }
    let mut batches = vec![None; graph.tensors.len()];
    batches[graph.images.0] = Some(BatchAxis { axis: 0, outer: 1, inner: 1 });
    let leads = graph.leads_to(graph.logits);
    for node in graph.nodes.iter().zip(leads).filter(|(_, leads)| *leads).map(|(node, _)| node) {
        let mixes = || unwritable(&node.name, "it computes of all images of a batch together");
        let along = |id: TensorId| {
            let dims = [graph, other].map(|graph| &graph.tensor(id).spec.shape.0[..]);
            growing(dims).ok_or_else(mixes)
        };
        for id in &node.inputs {
            let tensor = graph.tensor(*id);
            if matches!(tensor.role, Role::Parameter | Role::Statistic | Role::Constant) {
                batches[id.0] = match along(*id)? {
                    None => None,
                    Some((axis, inner)) => Some(repeated(tensor, axis, inner).ok_or_else(mixes)?),
                };
            }
        }
        let read: Vec<(TensorId, BatchAxis)> =
            node.inputs.iter().filter_map(|id| Some((*id, batches[id.0]?))).collect();
        let y = node.outputs[0];
        batches[y.0] = match (along(y)?, &read[..]) {
            (None, []) => None,
            (None, _) => return Err(mixes()),
            (Some((axis, inner)), []) => Some(BatchAxis { axis, outer: 1, inner }),
            (Some((axis, places)), [(x, first), others @ ..]) => {
                let batch = match node.op {
                    Op::Reshape => reshaped(graph, [*x, y], *first, (axis, places)).ok_or_else(mixes)?,
                    _ => BatchAxis { axis, ..*first },
                };
                let parts = |batch: &BatchAxis| (batch.outer, batch.inner);
                let is_same = others.iter().all(|(_, other)| parts(other) == parts(first));
                if !is_same || batch.outer * batch.inner != places || mixes_images(graph, node, batch, *first)
                {
                    return Err(mixes());
                }
                Some(batch)
            }
        };
    }
    Ok(batches)
}

/// That a layer, or a network, cannot be written, and why.
pub fn unwritable(layer: &str, why: &str) -> Error {
    Error::usage(format!("{layer}: {why}, which cannot be written as ONNX"))
}

/// The one axis along which a tensor grows with the number of images, and how many places each has there; `None` twice
/// where it is another function of the number.
fn growing([few, more]: [&[usize]; 2]) -> Option<Option<(usize, usize)>> {
    if few.len() != more.len() {
        return None;
    }
    let axes: Vec<usize> = (0..few.len()).filter(|&axis| few[axis] != more[axis]).collect();
    match axes[..] {
        [] => Some(None),
        [axis] if few[axis] * COUNTS[1] == more[axis] * COUNTS[0] => {
            Some(Some((axis, few[axis] / COUNTS[0])))
        }
        _ => None,
    }
}

/// Constants that were written out for the batch of a run, if they are the same for each image.
fn repeated(tensor: &Tensor, axis: usize, inner: usize) -> Option<BatchAxis> {
    let each = inner * tensor.spec.shape.0[axis + 1..].iter().product::<usize>();
    let values = tensor.values.as_ref()?;
    let is_same = |images: &[f32]| images.chunks(each).all(|image| *image == images[..each]);
    values.chunks(COUNTS[0] * each).all(is_same).then_some(BatchAxis { axis, outer: 1, inner })
}

/// Images stay as far apart in the order of elements as they were.
fn reshaped(
    graph: &Graph,
    [x, y]: [TensorId; 2],
    before: BatchAxis,
    (axis, places): (usize, usize),
) -> Option<BatchAxis> {
    let behind =
        |id: TensorId, axis: usize| -> usize { graph.tensor(id).spec.shape.0[axis + 1..].iter().product() };
    let (apart, each) = (before.inner * behind(x, before.axis), behind(y, axis));
    let inner = apart / each;
    let fits = apart.is_multiple_of(each) && inner > 0 && places.is_multiple_of(inner);
    fits.then(|| BatchAxis { axis, outer: places / inner, inner })
}

/// Whether a layer's sums or windows go over images.
fn mixes_images(graph: &Graph, node: &Node, y: BatchAxis, x: BatchAxis) -> bool {
    let shape = &graph.tensor(node.outputs[0]).spec.shape;
    match node.op {
        Op::Softmax => y.axis + 1 == shape.rank(),
        Op::LayerNorm { .. } => {
            let rows = graph.tensor(node.outputs[1]).spec.shape.elements();
            shape.0[..=y.axis].iter().product::<usize>() > rows
        }
        Op::MaxPool(_) | Op::AvgPool(_) | Op::AdaptiveAvgPool => x.axis > 1,
        Op::Conv(_) | Op::ConvBackwardData(_) | Op::Linear { .. } | Op::LocalResponseNorm(_) => x.axis > 0,
        Op::BatchNorm(_) | Op::BatchNormInference(_) => x.axis > 0,
        _ => false,
    }
}
