//! A network as an ONNX file, the way back from `import`: `ops` says what each op becomes, in one table; `proto` makes
//! the format's messages; `fold` puts normalisations into the convolutions before them.
//!
//! What is written is the network that evaluation runs. Its batch is open. In a graph the rows of several places of an
//! image may lie along the first axis, (N·L, …); in the file they have an axis of their own, (N, L, …), as all
//! frameworks write them and as every reader wants them, who need not know what the batch is then.

mod fold;
mod ops;
mod proto;

use std::collections::{HashMap, HashSet};

use prost::Message;

use super::schema::{AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetId, TensorProto};
use crate::error::{Error, Result};
use crate::graph::{Graph, Node, Role, TensorId};

/// The versions of the set of ops (the first with GELU, of 2023) and of the format that go together.
const OPSET: i64 = 20;
const FORMAT: i64 = 9;
/// What an ONNX file is of, protocol buffers, has no longer messages.
const LARGEST: usize = i32::MAX as usize;
/// What the file calls what it is given and what it gives, and the extent that is open.
const IMAGES: &str = "images";
const LOGITS: &str = "logits";
const BATCH: &str = "N";

/// Gives the numbers of the parameter or running statistic of a name, last dimension fastest.
pub type Values<'a> = &'a dyn Fn(&str) -> Result<Vec<f32>>;

/// The bytes of an ONNX file of a network. `build` gives its forward graph for so many images; with `fold` what
/// normalises behind a convolution is made part of it.
///
/// # Errors
/// `Usage` where a layer cannot be written, or the file would be too large; those of `build` and `values`.
pub fn network(build: impl Fn(usize) -> Result<Graph>, fold: bool, values: Values) -> Result<Vec<u8>> {
    let [graph, twice] = [build(1)?.for_evaluation(), build(2)?.for_evaluation()];
    let mut writer = Writer::new(&graph, &twice, values)?;
    if fold {
        writer.folded = fold::pairs(&graph);
    }
    let is_needed = needed(&graph);
    for (index, node) in graph.nodes.iter().enumerate().filter(|(index, _)| is_needed[*index]) {
        writer.layer(index, node)?;
    }
    let model = ModelProto {
        ir_version: FORMAT,
        producer_name: "dltrain".into(),
        graph: Some(writer.finish()?),
        opset_import: vec![OperatorSetId { domain: String::new(), version: OPSET }],
    };
    match model.encoded_len() {
        bytes if bytes > LARGEST => Err(Error::usage(format!(
            "{}: {} MB of weights, and an ONNX file holds {} MB; export them as safetensors",
            graph.name,
            bytes / 1_000_000,
            LARGEST / 1_000_000
        ))),
        _ => Ok(model.encode_to_vec()),
    }
}

/// Which nodes the logits need: not the loss.
fn needed(graph: &Graph) -> Vec<bool> {
    let mut is_read = vec![false; graph.tensors.len()];
    is_read[graph.logits.0] = true;
    let mut needed = vec![false; graph.nodes.len()];
    for (index, node) in graph.nodes.iter().enumerate().rev() {
        needed[index] = node.outputs.iter().any(|id| is_read[id.0]);
        if needed[index] {
            node.inputs.iter().for_each(|id| is_read[id.0] = true);
        }
    }
    needed
}

/// A file under construction.
struct Writer<'a> {
    graph: &'a Graph,
    /// Of tensors that the batch is part of: rows that an image has along the first axis.
    rows: Vec<Option<usize>>,
    values: Values<'a>,
    /// Convolutions, by the number of their node, with the normalisation that becomes part of each.
    folded: HashMap<usize, usize>,
    /// What the file calls a tensor of the graph.
    named: HashMap<TensorId, String>,
    taken: HashSet<String>,
    nodes: Vec<NodeProto>,
    tensors: Vec<TensorProto>,
}

impl<'a> Writer<'a> {
    /// `twice` is the same network for twice as many images, by which one sees what the batch is part of.
    fn new(graph: &'a Graph, twice: &Graph, values: Values<'a>) -> Result<Writer<'a>> {
        let mut rows = Vec::with_capacity(graph.tensors.len());
        for (one, two) in graph.tensors.iter().zip(&twice.tensors) {
            let [one_image, two_images] = [one, two].map(|tensor| &tensor.spec.shape.0[..]);
            rows.push(match (one_image, two_images) {
                _ if one_image == two_images => None,
                ([rows, rest @ ..], [both, again @ ..]) if *both == 2 * rows && rest == again => Some(*rows),
                _ => {
                    let what = format!("layer {}: its images do not lie along the first axis", one.name);
                    return Err(Error::usage(format!("{what}, which cannot be written as ONNX")));
                }
            });
        }
        let named = HashMap::from([(graph.images, IMAGES.to_string())]);
        let taken = [IMAGES, LOGITS].map(String::from).into();
        let (folded, nodes, tensors) = (HashMap::new(), Vec::new(), Vec::new());
        Ok(Writer { graph, rows, values, folded, named, taken, nodes, tensors })
    }

    /// Writes a node of the graph, unless it is part of one before.
    fn layer(&mut self, index: usize, node: &Node) -> Result<()> {
        let y = match self.folded.get(&index) {
            Some(&norm) => self.convolution_with_norm(node, &self.graph.nodes[norm])?,
            None if self.folded.values().any(|&norm| norm == index) => self.read(node.inputs[0])?,
            None => self.value(node)?,
        };
        self.named.insert(node.outputs[0], y);
        Ok(())
    }

    /// The graph of the file.
    fn finish(mut self) -> Result<GraphProto> {
        let last = self.read(self.graph.logits)?;
        for name in self.nodes.iter_mut().flat_map(|node| node.input.iter_mut().chain(&mut node.output)) {
            if *name == last {
                *name = LOGITS.into();
            }
        }
        Ok(GraphProto {
            name: self.graph.name.clone(),
            input: vec![proto::value(IMAGES, &self.shape(self.graph.images))],
            output: vec![proto::value(LOGITS, &self.shape(self.graph.logits))],
            node: self.nodes,
            initializer: self.tensors,
        })
    }

    /// What the file calls a tensor; a parameter is put into the file when it is first read.
    fn read(&mut self, id: TensorId) -> Result<String> {
        if let Some(name) = self.named.get(&id) {
            return Ok(name.clone());
        }
        let tensor = self.graph.tensor(id);
        if !matches!(tensor.role, Role::Parameter | Role::Statistic) {
            return Err(Error::internal(format!("{} is read before it is written", tensor.name)));
        }
        let numbers = (self.values)(&tensor.name)?;
        let name = self.stored(&tensor.name, &tensor.spec.shape.0, &numbers);
        self.named.insert(id, name.clone());
        Ok(name)
    }

    /// The extents that a tensor has in the file; −1 stands for the batch.
    fn shape(&self, id: TensorId) -> Vec<i64> {
        let dims = self.graph.tensor(id).spec.shape.0.iter().map(|&extent| extent as i64);
        match self.rows[id.0] {
            None => dims.collect(),
            Some(1) => std::iter::once(-1).chain(dims.skip(1)).collect(),
            Some(_) => std::iter::once(-1).chain(dims).collect(),
        }
    }

    /// The number that an axis of the graph's tensor has in the file.
    fn axis(&self, id: TensorId, axis: usize) -> usize {
        axis + usize::from(self.has_rows(id))
    }

    /// Whether several rows of an image lie along the first axis, so that the file has an axis more.
    fn has_rows(&self, id: TensorId) -> bool {
        self.rows[id.0].is_some_and(|rows| rows > 1)
    }

    /// Adds a node of the file, called after the layer, and gives what it computes a name.
    fn node(&mut self, layer: &str, op: &str, input: Vec<String>, attribute: Vec<AttributeProto>) -> String {
        let name = self.free(layer);
        let (output, op_type) = (vec![name.clone()], op.to_string());
        let node = NodeProto { input, output, name: name.clone(), op_type, attribute, domain: String::new() };
        self.nodes.push(node);
        name
    }

    /// Adds a tensor of real numbers that are learned, or a single one.
    fn stored(&mut self, name: &str, dims: &[usize], numbers: &[f32]) -> String {
        let name = self.free(name);
        self.tensors.push(proto::reals(&name, dims, numbers));
        name
    }

    /// Adds real numbers that nothing changes: as a node, by which a reader tells them from weights.
    fn constant(&mut self, name: &str, dims: &[usize], numbers: &[f32]) -> String {
        self.node(name, "Constant", Vec::new(), vec![proto::tensor("value", proto::reals("", dims, numbers))])
    }

    /// Adds integers in a row, such as a shape or axes.
    fn integers(&mut self, name: &str, integers: &[i64]) -> String {
        let name = self.free(name);
        self.tensors.push(proto::integers(&name, integers));
        name
    }

    /// A name that nothing in the file has yet.
    fn free(&mut self, wanted: &str) -> String {
        let mut name = wanted.to_string();
        for number in 2.. {
            if self.taken.insert(name.clone()) {
                break;
            }
            name = format!("{wanted}_{number}");
        }
        name
    }
}
