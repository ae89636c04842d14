//! A network as an ONNX file, the way back from `import`: `ops` says what each op becomes, in one table; `proto` makes
//! the format's messages; `file` writes them; `fold` puts normalisations into the convolutions before them.
//!
//! What is written is the network that evaluation runs. Its batch is open (`batch`). In a graph images may share an
//! axis with places of theirs, as rows do, (N·L, …); in the file these have axes of their own, (N, L, …), as all
//! frameworks write them and as every reader wants them, who need not know what the batch is then.

mod batch;
mod file;
mod fold;
mod ops;
mod proto;

use std::collections::{HashMap, HashSet};

pub use self::batch::COUNTS;
use self::batch::{BatchAxis, batches};
pub use self::file::{LARGEST, OnnxExport, beside};
use self::proto::int;
use super::schema::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetId, TensorProto, ValueInfoProto,
};
use crate::error::{Error, Result};
use crate::graph::{Graph, Node, Op, Role, Tensor, TensorId};

/// The versions of the set of ops (the first with GELU, of 2023) and of the format that go together.
const OPSET: i64 = 20;
const FORMAT: i64 = 9;
/// What the file calls what it is given and what it gives, and the extent that is open.
const IMAGES: &str = "images";
const LOGITS: &str = "logits";
const BATCH: &str = "N";

/// Gives the numbers of the parameter or running statistic of a name, last dimension fastest.
pub type TensorValues<'a> = &'a dyn Fn(&str) -> Result<Vec<f32>>;

/// A network as an ONNX file. `build` gives its forward graph for so many images, which have `axes` axes in the file,
/// with the batch: 2 of vectors and 3 of sequences, which a graph has as images. With `fold` what normalises behind a
/// convolution is made part of it.
///
/// # Errors
/// `Usage` where a layer cannot be written; those of `build` and `values`.
pub fn network(
    build: impl Fn(usize) -> Result<Graph>,
    axes: usize,
    fold: bool,
    values: TensorValues,
) -> Result<OnnxExport> {
    let (graph, batches) = batched(build)?;
    let mut writer = OnnxWriter::new(&graph, batches, axes, values);
    if fold {
        writer.folded = fold::pairs(&graph);
    }
    let is_needed = graph.leads_to(graph.logits);
    for (index, node) in graph.nodes.iter().enumerate().filter(|(index, _)| is_needed[*index]) {
        writer.layer(index, node)?;
    }
    Ok(OnnxExport(ModelProto {
        ir_version: FORMAT,
        producer_name: "dltrain".into(),
        graph: Some(writer.finish()?),
        opset_import: vec![OperatorSetId { domain: String::new(), version: OPSET }],
        metadata_props: Vec::new(),
    }))
}

/// Whether a network can be written, whatever its weights are.
///
/// # Errors
/// As for `network`, of layers.
pub fn check(build: impl Fn(usize) -> Result<Graph>) -> Result<()> {
    let (graph, _) = batched(build)?;
    let is_needed = graph.leads_to(graph.logits);
    let needed = graph.nodes.iter().zip(&is_needed).filter(|(_, is_needed)| **is_needed);
    needed.map(|(node, _)| node).try_for_each(|node| ops::check(&graph, node))
}

/// The network that evaluation runs, and where its images lie.
fn batched(build: impl Fn(usize) -> Result<Graph>) -> Result<(Graph, Vec<Option<BatchAxis>>)> {
    let [few, more] = COUNTS.map(build);
    let [few, more] = [few?, more?].map(Graph::for_evaluation);
    let batches = batches(&few, &more)?;
    Ok((few, batches))
}

/// A file under construction.
struct OnnxWriter<'a> {
    graph: &'a Graph,
    /// Where images lie in each tensor.
    batches: Vec<Option<BatchAxis>>,
    values: TensorValues<'a>,
    /// What the file is given: name and extents.
    input: ValueInfoProto,
    /// Convolutions, by the number of their node, with the normalisation that becomes part of each.
    folded: HashMap<usize, usize>,
    /// What the file calls a tensor of the graph.
    named: HashMap<TensorId, String>,
    taken: HashSet<String>,
    /// Names of parameters and statistics that are not written yet: each keeps its own, whatever layers are called.
    kept: HashSet<String>,
    nodes: Vec<NodeProto>,
    tensors: Vec<TensorProto>,
}

impl<'a> OnnxWriter<'a> {
    fn new(
        graph: &'a Graph,
        batches: Vec<Option<BatchAxis>>,
        axes: usize,
        values: TensorValues<'a>,
    ) -> OnnxWriter<'a> {
        let is_kept = |role| matches!(role, Role::Parameter | Role::Statistic);
        let kept =
            graph.tensors.iter().filter(|tensor| is_kept(tensor.role)).map(|tensor| tensor.name.clone());
        let kept: HashSet<String> = kept.collect();
        let (folded, nodes, tensors) = (HashMap::new(), Vec::new(), Vec::new());
        let (named, taken) = (HashMap::new(), kept.clone());
        let input = ValueInfoProto::default();
        let mut writer =
            OnnxWriter { graph, batches, values, input, folded, named, taken, kept, nodes, tensors };
        let (mut images, whole) = (writer.free(IMAGES), writer.shape(graph.images));
        let given = match (axes, &whole[..]) {
            (2, &[batch, features, 1, 1]) => vec![batch, features],
            (3, &[batch, channels, 1, length]) => vec![batch, channels, length],
            _ => whole.clone(),
        };
        writer.input = proto::value(&images, &given);
        if given != whole {
            images = writer.reshaped(&format!("{images}.row"), images, &whole);
        }
        writer.named.insert(graph.images, images);
        writer
    }

    /// Writes a node of the graph, unless it is part of one before.
    fn layer(&mut self, index: usize, node: &Node) -> Result<()> {
        let apart = self.join_axes(node)?;
        let mut y = match self.folded.get(&index) {
            Some(&norm) => self.convolution_with_norm(node, &self.graph.nodes[norm])?,
            None if self.folded.values().any(|&norm| norm == index) => self.read(node.inputs[0])?,
            None => self.value(node)?,
        };
        for (id, batch, name) in apart {
            self.batches[id.0] = Some(batch);
            match name {
                Some(name) => drop(self.named.insert(id, name)),
                None => y = self.reshaped(&node.name, y, &self.shape(id)),
            }
        }
        self.named.insert(node.outputs[0], y);
        Ok(())
    }

    /// Where the file has several axes for the images, and a node's op must see one, it gets one. Returns what was
    /// otherwise, with names of inputs.
    fn join_axes(&mut self, node: &Node) -> Result<Vec<(TensorId, BatchAxis, Option<String>)>> {
        let mut apart = Vec::new();
        if !self.sees_one_axis(node) {
            return Ok(apart);
        }
        let operands = node.inputs.iter().map(|&id| (id, true)).chain([(node.outputs[0], false)]);
        for (id, is_read) in operands.filter(|(id, _)| self.is_apart(*id)).collect::<Vec<_>>() {
            let Some(batch) = self.batches[id.0] else { continue };
            self.batches[id.0] = Some(batch.joined());
            let name = if is_read { Some(self.read(id)?) } else { None };
            if let Some(name) = name.clone() {
                let joined = self.reshaped(&format!("{}.joined", node.name), name, &self.shape(id));
                self.named.insert(id, joined);
            }
            apart.push((id, batch, name));
        }
        Ok(apart)
    }

    /// Whether an op is of images, whose axes are four, or of matrices among which images are divided in other ways
    /// than the file's product divides them.
    fn sees_one_axis(&self, node: &Node) -> bool {
        let rank = |id: TensorId| self.graph.tensor(id).spec.shape.rank();
        let of = |place: usize| self.batches[node.inputs[place].0].map(|batch| batch.axis);
        match node.op {
            Op::Conv(_) | Op::ConvBackwardData(_) | Op::BatchNorm(_) | Op::BatchNormInference(_) => true,
            Op::MaxPool(_) | Op::AvgPool(_) | Op::AdaptiveAvgPool | Op::LocalResponseNorm(_) => true,
            Op::Linear { .. } => rank(node.inputs[0]) != 2,
            Op::MatMul(product) => {
                let matrices = rank(node.inputs[0]) - 2;
                let are_rows = matrices == 0 && of(0) == Some(0) && !product.transposed[0];
                !(are_rows || of(0) == of(1) && of(0).is_some_and(|axis| axis < matrices))
            }
            _ => false,
        }
    }

    /// The graph of the file.
    fn finish(mut self) -> Result<GraphProto> {
        let last = self.read(self.graph.logits)?;
        let logits = self.free(LOGITS);
        for name in self.nodes.iter_mut().flat_map(|node| node.input.iter_mut().chain(&mut node.output)) {
            if *name == last {
                name.clone_from(&logits);
            }
        }
        Ok(GraphProto {
            name: self.graph.name.clone(),
            input: vec![std::mem::take(&mut self.input)],
            output: vec![proto::value(&logits, &self.shape(self.graph.logits))],
            node: self.nodes,
            initializer: self.tensors,
            metadata_props: Vec::new(),
        })
    }

    /// What the file calls a tensor; a parameter is put into the file when it is first read.
    fn read(&mut self, id: TensorId) -> Result<String> {
        if let Some(name) = self.named.get(&id) {
            return Ok(name.clone());
        }
        let tensor = self.graph.tensor(id);
        let dims = &tensor.spec.shape.0;
        let name = match (tensor.role, &tensor.values) {
            (Role::Parameter | Role::Statistic, _) => {
                let numbers = (self.values)(&tensor.name)?;
                self.stored(&tensor.name, dims, &numbers)
            }
            (Role::Constant, Some(numbers)) => match self.batches[id.0] {
                None => self.constant(&tensor.name, dims, numbers),
                Some(batch) => self.of_each_image(id, batch, numbers)?,
            },
            _ => return Err(Error::internal(format!("{} is read before it is written", tensor.name))),
        };
        self.named.insert(id, name.clone());
        Ok(name)
    }

    /// Numbers that are the same for each image.
    fn of_each_image(&mut self, id: TensorId, batch: BatchAxis, numbers: &[f32]) -> Result<String> {
        let (graph, shape) = (self.graph, self.shape(id));
        let Tensor { name, spec, .. } = graph.tensor(id);
        let each = batch.inner * spec.shape.0[batch.axis + 1..].iter().product::<usize>();
        let of_one: Vec<f32> =
            numbers.chunks(COUNTS[0] * each).flat_map(|images| &images[..each]).copied().collect();
        let dims: Vec<usize> = shape.iter().map(|&extent| extent.max(1) as usize).collect();
        let x = self.constant(name, &dims, &of_one);
        self.stretched(&format!("{name}.batch"), x, &shape)
    }

    /// The extents that a tensor has in the file; −1 stands for the batch.
    fn shape(&self, id: TensorId) -> Vec<i64> {
        let mut dims: Vec<i64> =
            self.graph.tensor(id).spec.shape.0.iter().map(|&extent| extent as i64).collect();
        if let Some(BatchAxis { axis, outer, inner }) = self.batches[id.0] {
            let places = |places: usize| Some(places as i64).filter(|&places| places > 1);
            dims.splice(axis..=axis, [places(outer), Some(-1), places(inner)].into_iter().flatten());
        }
        dims
    }

    /// The number that an axis of the graph's tensor, other than that of the images, has in the file.
    fn axis(&self, id: TensorId, axis: usize) -> usize {
        let more = self.batches[id.0].filter(|batch| batch.axis < axis).map_or(0, |batch| batch.axes() - 1);
        axis + more
    }

    /// Whether an image has several places along the axis of the images, so that the file has axes more.
    fn is_apart(&self, id: TensorId) -> bool {
        self.batches[id.0].is_some_and(|batch| batch.axes() > 1)
    }

    /// Writes a node that gives the elements in another shape.
    fn reshaped(&mut self, layer: &str, x: String, shape: &[i64]) -> String {
        let shape = self.integers(&format!("{layer}.shape"), shape);
        self.node(&format!("{layer}.reshape"), "Reshape", vec![x, shape], Vec::new())
    }

    /// What is stretched to a shape with the batch in it.
    fn stretched(&mut self, layer: &str, x: String, shape: &[i64]) -> Result<String> {
        let images = self.read(self.graph.images)?;
        let attributes = vec![int("start", 0), int("end", 1)];
        let count = self.node(&format!("{layer}.images"), "Shape", vec![images], attributes);
        let (before, behind) = shape.split_at(shape.iter().position(|&extent| extent == -1).unwrap_or(0));
        let mut sample =
            |part: &[i64]| (!part.is_empty()).then(|| self.integers(&format!("{layer}.sample"), part));
        let (before, behind) = (sample(before), sample(&behind[1..]));
        let parts = before.into_iter().chain([count]).chain(behind).collect();
        let shape = self.node(&format!("{layer}.shape"), "Concat", parts, vec![int("axis", 0)]);
        Ok(self.node(layer, "Expand", vec![x, shape], Vec::new()))
    }

    /// Adds a node of the file, called after the layer, and gives what it computes a name.
    fn node(&mut self, layer: &str, op: &str, input: Vec<String>, attribute: Vec<AttributeProto>) -> String {
        let name = self.free(layer);
        let (output, op_type) = (vec![name.clone()], op.to_string());
        let node =
            NodeProto { input, output, name: name.clone(), op_type, attribute, ..NodeProto::default() };
        self.nodes.push(node);
        name
    }

    /// Adds a tensor of real numbers that are learned.
    fn stored(&mut self, name: &str, dims: &[usize], numbers: &[f32]) -> String {
        match self.kept.remove(name) {
            true => self.tensors.push(proto::reals(name, dims, numbers)),
            false => return self.reals(name, dims, numbers),
        }
        name.into()
    }

    /// Adds other real numbers.
    fn reals(&mut self, name: &str, dims: &[usize], numbers: &[f32]) -> String {
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

    /// A name that nothing in the file has yet. An empty one would be no output.
    fn free(&mut self, wanted: &str) -> String {
        let wanted = if wanted.is_empty() { "layer" } else { wanted };
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
