//! Networks from ONNX files: `OnnxFile` is one, opened and found to be trainable; `import` describes its nodes to a
//! builder, for a batch and an image; `layers` says what each op becomes; `open_batch` describes it for several images,
//! where their number is open; `order` says which nodes are needed; `notes` is what a user should know; `fold` computes
//! what exporters write to compute shapes and masks, of `constant`s. What PyTorch's exporters say of parameters is read
//! by `program` (with `merged` and `biases`), `copies` and `signature`. `export` writes a network as such a file.
//! docs/onnx.md has the table of ops.

mod axes;
mod biases;
mod constant;
mod copies;
pub mod export;
mod fold;
mod import;
mod layers;
mod merged;
mod node;
mod notes;
mod open_batch;
mod order;
mod program;
pub mod schema;
mod signature;
mod tensor;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use prost::Message;
use prost::bytes::Bytes;

use crate::error::{Error, OrError, Result};
use crate::files::{self, Crc};
use crate::graph::{Builder, NetworkOutput, SampleShape, Shape, TensorId};
use crate::model::{CLASS_NAMES, FIELDS, LearnedArray, PREPROCESSING, Preprocessing};
use axes::FileInput;
pub use axes::{NetworkInput, SampleArrays, TargetAxes, TargetShape};
use copies::AlikeTensors;
use program::LeftOutCalls;
use schema::{GraphProto, ModelProto, TensorProto, ValueInfoProto};
use signature::Signature;
use tensor::OnnxTensor;

/// The versions of ONNX's set of ops whose words are known.
const VERSIONS: std::ops::RangeInclusive<i64> = 7..=25;

/// What the writer of a file says of its network besides.
struct SaidByWriter {
    /// The program that wrote it.
    program: String,
    class_names: Vec<String>,
    preprocessing: Option<Preprocessing>,
    fields: Vec<LearnedArray>,
    /// Whether each initializer is learned; `None` where nothing is said of it.
    learned: Vec<Option<bool>>,
    /// Parameters that it names and lacks.
    lost: Vec<String>,
    /// Learned in place of parameters of which they are computed.
    computed: Vec<String>,
    /// What may be buffers as well as parameters, by their names.
    guessed: Vec<String>,
    /// Computed in advance by the older exporter, and learned.
    folded: Vec<String>,
    /// Computed in advance, of parameters perhaps, and not learned.
    frozen: Vec<String>,
    /// What begins like another parameter.
    copies: AlikeTensors,
    left_out: LeftOutCalls,
}

impl SaidByWriter {
    fn of(model: &ModelProto) -> std::result::Result<SaidByWriter, String> {
        let said = |name: &str| model.metadata_props.iter().find(|text| text.key == name);
        let said = |name: &str| said(name).map_or("", |text| &*text.value);
        Ok(SaidByWriter {
            program: model.producer_name.clone(),
            class_names: serde_json::from_str(said(CLASS_NAMES)).unwrap_or_default(),
            preprocessing: Preprocessing::from_text(said(PREPROCESSING))?,
            fields: LearnedArray::from_text(said(FIELDS))?,
            learned: Vec::new(),
            lost: Vec::new(),
            computed: Vec::new(),
            guessed: Vec::new(),
            folded: Vec::new(),
            frozen: Vec::new(),
            copies: AlikeTensors::default(),
            left_out: LeftOutCalls::default(),
        })
    }

    /// PyTorch's older exporter keeps names of parameters, or computes them in advance in another shape. Its own
    /// constants have neither.
    fn read_older<'a>(
        &mut self,
        graph: &GraphProto,
        initializers: &[OnnxTensor],
        all: impl Iterator<Item = (&'a String, &'a usize)>,
    ) {
        let is_usual = |name: &str| {
            ["weight", "bias", "running_mean", "running_var"].iter().any(|of| name.ends_with(of))
        };
        let is_pytorchs = |of: &OnnxTensor| self.program == "pytorch" && of.is_real();
        for (name, &index) in all.filter(|(_, index)| is_pytorchs(&initializers[**index])) {
            let (tensor, is_named) = (&initializers[index], !name.starts_with("onnx::"));
            if tensor.elements() == 1 {
                self.learned[index] = (!tensor.dims.is_empty() || is_named).then_some(true);
            }
            // What it computes of weights for their layers stands for these.
            let layers = ["Conv", "Gemm", "MatMul", "PRelu"].map(|op| format!("onnx::{op}"));
            let is_usual = is_usual(name) || layers.iter().any(|layer| name.starts_with(layer));
            let list = if is_named { &mut self.guessed } else { &mut self.folded };
            list.extend((!is_usual).then(|| name.clone()));
        }
        // Alike ones have names of their own.
        let named = graph.node.iter().filter(|node| node.op_type == "Identity").flat_map(|node| &node.output);
        let is_named = |name: &&String| !name.starts_with("onnx::") && !is_usual(name);
        self.guessed.extend(named.filter(is_named).cloned());
    }

    /// Reads which initializers are learned, where the file says it.
    fn read(&mut self, graph: &GraphProto, initializers: &[OnnxTensor], tensor_of: &HashMap<String, usize>) {
        /// Numbers of a scale or a shift at most.
        const FEW: usize = 1 << 16;
        self.learned = vec![None; initializers.len()];
        let all = || tensor_of.iter().filter(|(_, index)| **index < initializers.len());
        let Some(signature) = Signature::of(graph, tensor_of) else {
            return self.read_older(graph, initializers, all());
        };
        let tensor = |name: &str| tensor_of.get(name).and_then(|&index| initializers.get(index));
        let numbers =
            |name: &str| tensor(name).filter(|of| of.elements() <= FEW).and_then(|of| of.reals().ok());
        let axes = |name: &str| tensor(name).filter(|of| of.is_real()).map_or(0, |of| of.dims.len());
        let stand_ins = signature.stand_ins(axes, &numbers);
        for (name, &index) in all() {
            self.learned[index] = signature.is_learned(name, &stand_ins, &numbers);
        }
        let names = |all: &mut dyn Iterator<Item = &str>| {
            let mut names: Vec<String> = all.map(ToString::to_string).collect();
            names.sort_unstable();
            names
        };
        // Nobody knows of which of these some are made.
        let is_array = |index: usize| initializers[index].is_real() && initializers[index].elements() > 1;
        let doubtful = all().filter(|(_, index)| self.learned[**index].is_none() && is_array(**index));
        let doubtful: Vec<&str> = doubtful.map(|(name, _)| &**name).collect();
        let made: HashSet<&str> =
            doubtful.iter().flat_map(|name| signature.stands_for(name, &stand_ins, &numbers)).collect();
        let fused: HashSet<&str> = self.left_out.fused.iter().map(String::as_str).collect();
        let is_kept = |name: &&str| !fused.contains(program::module(name)) && !made.contains(name);
        self.lost = names(&mut stand_ins.lost.iter().copied().filter(is_kept));
        self.computed = names(&mut stand_ins.tensors.iter().copied().chain(doubtful));
        let is_fixed = |name: &&str| self.learned[tensor_of[*name]] == Some(false);
        let is_no_mask = |name: &&str| !tensor(name).is_some_and(is_mask);
        let elements = |name: &str| tensor(name).filter(|of| of.is_real()).map_or(0, OnnxTensor::elements);
        self.frozen =
            names(&mut signature.computed(elements).into_iter().filter(is_fixed).filter(is_no_mask));
    }
}

/// An ONNX file: a network and its weights.
pub struct OnnxFile {
    path: PathBuf,
    label: String,
    graph: GraphProto,
    /// Weights and constants, those of nodes behind the others.
    tensors: Vec<OnnxTensor>,
    /// By the name of what gives it.
    tensor_of: HashMap<String, usize>,
    /// What it is given, in its order.
    inputs: Vec<FileInput>,
    output: FileOutput,
    /// The version of ONNX's ops.
    version: i64,
    /// How many of its tensors are initializers and may be learned; behind them come those of nodes.
    initializers: usize,
    /// Which of them say yes or no: zeros and one other number.
    is_mask: Vec<bool>,
    classes: usize,
    weights: Vec<Weight>,
    /// What a user should know, and what whoever trains it should.
    notes: [Vec<String>; 2],
    said: SaidByWriter,
    checksum: u32,
}

/// A file's first output.
struct FileOutput {
    ends: NetworkEnd,
    /// With what it is compared, where samples are arrays.
    target: Option<TargetAxes>,
}

/// What it is (`NetworkOutput`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NetworkEnd {
    Scores,
    Whole,
    Loss,
}

impl NetworkEnd {
    fn of(gives: NetworkOutput) -> NetworkEnd {
        match gives {
            NetworkOutput::Scores => NetworkEnd::Scores,
            NetworkOutput::Whole => NetworkEnd::Whole,
            NetworkOutput::Loss(_) => NetworkEnd::Loss,
        }
    }
}

/// A parameter or running statistic of the network.
pub struct Weight {
    /// What it is called in the network: as the file calls it.
    pub name: String,
    /// Its shape in the network.
    pub shape: Vec<usize>,
    /// Which of the file's tensors has its numbers.
    tensor: usize,
    /// Whether the file has it with rows and columns exchanged.
    transposed: bool,
    /// Where the file has it once for each image of its batch: what is before the images, how many these are, and what
    /// one has.
    copies: Option<[usize; 3]>,
}

impl OnnxFile {
    /// Reads a file and imports its network for a batch of one; where its batch is open, for several images too.
    /// `samples`: what it is given, where that is known: the network is read for such.
    ///
    /// # Errors
    /// `Usage` for a loss that is none of its outputs, or no single number;
    /// `Data`: the file is damaged, or its network cannot be trained, with every node that is why.
    pub fn open(path: &Path, gives: NetworkOutput, samples: Option<&SampleArrays>) -> Result<OnnxFile> {
        let wrong = |what: &dyn std::fmt::Display| unread(path, what);
        let (whole, model) = decoded(path)?;
        let mut sum = Crc::new();
        sum.update(&whole);
        let version = version(&model).or_data(path)?;
        let mut said = SaidByWriter::of(&model).or_data(path)?;
        let mut graph = graph_of(path, model, gives)?;
        program::name_tensors(&mut graph);
        biases::put_back(&mut graph);
        said.left_out = program::left_out(&graph);
        said.copies = copies::read_once_a_module(&mut graph);
        let initializers = graph.initializer.len();
        let (tensors, tensor_of) = tensors(path, &mut graph)?;
        said.copies.apart.extend(copies::read_once(&mut graph, &tensors[..initializers], &tensor_of));
        for tensor in &tensors {
            tensor.add_to(&mut sum).map_err(|error| wrong(&error))?;
        }
        // What dltrain has written has its channels first.
        let samples = samples.filter(|_| said.fields.is_empty());
        let mut inputs = FileInput::all(&graph, |name| tensor_of.contains_key(name)).or_data(path)?;
        samples.map_or(Ok(()), |samples| FileInput::read(&mut inputs, samples)).or_data(path)?;
        said.read(&graph, &tensors[..initializers], &tensor_of);
        let mut file = OnnxFile {
            path: path.into(),
            label: path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned()),
            graph,
            is_mask: tensors.iter().map(is_mask).collect(),
            tensors,
            tensor_of,
            inputs,
            output: FileOutput {
                ends: NetworkEnd::of(gives),
                target: samples.and_then(|samples| samples.target.clone()),
            },
            version,
            initializers,
            classes: 0,
            weights: Vec::new(),
            notes: Default::default(),
            said,
            checksum: sum.sum(),
        };
        let (mut net, images) = Builder::new(file.label(), 1, file.image());
        net.only_to_test();
        let imported = import::run(&file, &mut net, images, None)?;
        file.classes = classes_of(&net, imported.logits);
        (file.weights, file.notes) = (imported.weights, imported.notes);
        open_batch::check(&file)?;
        // A run has its weights where it needs them: nothing is to hold the file's bytes, of which all has parts.
        file.tensors.iter_mut().for_each(|tensor| tensor.leave(path, &whole));
        let nodes = file.graph.encode_to_vec();
        file.graph = GraphProto::decode(Bytes::from(nodes)).map_err(|error| wrong(&error))?;
        Ok(file)
    }

    /// The inputs of a file by their names: what it is given is to be known before the network is read for it.
    ///
    /// # Errors
    /// `Data`: the file is damaged, or such networks are not trained.
    pub fn inputs_of(path: &Path, gives: NetworkOutput) -> Result<Vec<NetworkInput>> {
        let graph = graph_of(path, decoded(path)?.1, gives)?;
        let stored: HashSet<&str> = graph.initializer.iter().map(|tensor| &*tensor.name).collect();
        let inputs = FileInput::all(&graph, |name| stored.contains(name)).or_data(path)?;
        Ok(inputs.iter().map(FileInput::described).collect())
    }

    /// Describes the network to a builder that has been given the images; the scores are of so many classes.
    ///
    /// # Errors
    /// `Usage` when the image is too small for a layer; `Data` when the network allows no such image.
    pub fn layers(&self, net: &mut Builder, images: TensorId, classes: usize) -> Result<TensorId> {
        let other = Some(classes).filter(|&classes| classes != self.classes);
        let logits = import::run(self, net, images, other)?.logits;
        match classes_of(net, logits) {
            found if found == classes => Ok(logits),
            found if other.is_none() => Err(Error::usage(format!(
                "{}: gives {found} classes for such samples, and {} for those that it was made for, {}; the samples \
                 have another shape than it reads",
                self.path.display(),
                self.classes,
                Shape(self.image().to_vec())
            ))),
            _ => Err(Error::usage(format!(
                "--classes {classes}: {} gives the scores of {} classes, and has no last layer that could be begun \
                 anew for others; leave --classes out",
                self.path.display(),
                self.classes
            ))),
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file's name without what is before and behind it.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// (C, H, W) of its images, or of cubes (C, D, H, W); of several inputs all of a sample's numbers as channels, one
    /// behind the other.
    pub fn image(&self) -> SampleShape {
        match &self.inputs[..] {
            [input] => input.image,
            inputs => SampleShape::image([inputs.iter().map(FileInput::numbers).sum(), 1, 1]),
        }
    }

    /// Axes that the file's samples have with the batch: 2 of vectors, 3 of sequences, 4 of images and 5 of cubes.
    pub fn axes(&self) -> usize {
        match &self.inputs[..] {
            [input] => input.axes(),
            _ => self.image().len() + 1,
        }
    }

    /// Whether one of its inputs has its channels on the last axis.
    pub fn has_channels_last(&self) -> bool {
        self.inputs.iter().any(|input| input.is_last)
    }

    /// Whether it is given images alone: one input with four axes.
    pub fn reads_images(&self) -> bool {
        matches!(&self.inputs[..], [input] if input.axes() == 4)
    }

    /// The inputs by their names, as the file describes them.
    pub fn inputs(&self) -> Vec<NetworkInput> {
        self.inputs.iter().map(FileInput::described).collect()
    }

    /// The inputs by their names, each with the axes of a sample as the file has them, channels first.
    pub fn input_axes(&self) -> Vec<(&str, Vec<usize>)> {
        let axes = |input: &FileInput| match input.axes() {
            2 => vec![input.image[0]],
            3 => vec![input.image[0], input.image[2]],
            _ => input.image.to_vec(),
        };
        self.inputs.iter().map(|input| (&*input.name, axes(input))).collect()
    }

    /// Classes that it tells apart.
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// CRC-32 of the file and of what it has in others.
    pub fn checksum(&self) -> u32 {
        self.checksum
    }

    /// What a user should know of the import, a sentence each; whoever trains the network knows more.
    pub fn notes(&self, trains: bool) -> impl Iterator<Item = &String> {
        let [notes, of_training] = &self.notes;
        notes.iter().chain(of_training.iter().filter(move |_| trains))
    }

    /// What the classes are called; empty where the file does not say.
    pub fn class_names(&self) -> &[String] {
        &self.said.class_names
    }

    /// By what the arrays were rescaled that the network reads and gives, where the file says it.
    pub fn fields(&self) -> &[LearnedArray] {
        &self.said.fields
    }

    /// What the network expects of its images, where the file says it.
    pub fn preprocessing(&self) -> Option<&Preprocessing> {
        self.said.preprocessing.as_ref()
    }

    /// Every parameter and running statistic, as the network has them.
    pub fn weights(&self) -> &[Weight] {
        &self.weights
    }

    /// The batch that its shapes are written for, where that is fixed.
    fn batch(&self) -> Option<usize> {
        self.inputs.iter().find_map(|input| input.batch)
    }

    /// Whether its first output is a loss.
    fn is_loss(&self) -> bool {
        self.output.ends == NetworkEnd::Loss
    }

    /// Whether a softmax at its end is kept.
    fn is_whole(&self) -> bool {
        self.output.ends == NetworkEnd::Whole
    }

    fn is_input(&self, name: &str) -> bool {
        self.inputs.iter().any(|input| input.name == name)
    }

    /// The version of ONNX's ops.
    fn version(&self) -> i64 {
        self.version
    }

    /// Whether one of its tensors may be learned: as the file says, or else real numbers, and more than one.
    fn may_be_learned(&self, tensor: usize) -> bool {
        let is_like_it = || self.tensors[tensor].elements() > 1 && !self.is_mask[tensor];
        self.is_initializer(tensor) && self.said.learned[tensor].unwrap_or_else(is_like_it)
    }

    /// Whether one of its tensors stands where what was learned does, and the file does not say that it was not.
    fn is_initializer(&self, tensor: usize) -> bool {
        tensor < self.initializers && self.tensors[tensor].is_real() && !self.is_said_fixed(tensor)
    }

    /// Whether its writer says which tensors are parameters.
    fn names_parameters(&self) -> bool {
        program::signature(&self.graph).is_some()
    }

    /// Whether layers that read one of its tensors learn it as one: others than PyTorch keep one tensor for several
    /// with the same first numbers.
    fn is_shared(&self, tensor: usize) -> bool {
        self.dims(tensor).len() > 1 || ["pytorch", "dltrain"].contains(&&*self.said.program)
    }

    /// Whether the file says that one of its tensors is learned.
    fn is_said_learned(&self, tensor: usize) -> bool {
        self.said.learned.get(tensor).is_some_and(|said| *said == Some(true))
    }

    /// Whether the file says that one of its tensors is not learned.
    fn is_said_fixed(&self, tensor: usize) -> bool {
        self.said.learned.get(tensor).is_some_and(|said| *said == Some(false))
    }

    /// Whether a tensor has the same numbers for each image of the file's batch: then it is learned once.
    fn is_copied(&self, weight: &mut Weight, extents: [usize; 3], shape: &[usize]) -> bool {
        let [outer, images, inner] = extents;
        let Ok(values) = self.tensors[weight.tensor].reals() else { return false };
        let is_same = |all: &[f32]| all.chunks(inner).all(|one| one == &all[..inner]);
        let fits = !weight.transposed && values.len() == outer * images * inner;
        let is_copied = fits && values.chunks(images * inner).all(is_same);
        if is_copied {
            (weight.copies, weight.shape) = (Some(extents), shape.to_vec());
        }
        is_copied
    }

    /// The shape of one of its tensors.
    fn dims(&self, tensor: usize) -> &[usize] {
        &self.tensors[tensor].dims
    }

    /// Whether one of these names is that of the output that counts.
    fn gives(&self, names: &[String]) -> bool {
        self.graph.output.first().is_some_and(|output| names.contains(&output.name))
    }

    /// The numbers of one, last dimension fastest.
    ///
    /// # Errors
    /// `Data` when there is none of this name, or its numbers cannot be read.
    pub fn values(&self, name: &str) -> Result<Vec<f32>> {
        let wrong = |what: &str| Error::data(&self.path, format!("tensor {name}: {what}"));
        let weight = self.weights.iter().find(|weight| weight.name == name);
        let weight = weight.ok_or_else(|| wrong("is not there"))?;
        let values = self.tensors[weight.tensor].reals().map_err(|what| wrong(&what))?;
        if let Some([_, images, inner]) = weight.copies {
            return Ok(values.chunks(images * inner).flat_map(|all| all[..inner].to_vec()).collect());
        }
        let [rows, columns] = match weight.shape[..] {
            [rows, columns] if weight.transposed => [rows, columns],
            _ => return Ok(values),
        };
        let at = |place: usize| values[place % columns * rows + place / columns];
        Ok((0..values.len()).map(at).collect())
    }
}

fn unread(path: &Path, what: &dyn std::fmt::Display) -> Error {
    Error::data(path, format!("cannot be read as ONNX: {what}"))
}

/// The bytes of a file, and what they say.
fn decoded(path: &Path) -> Result<(Bytes, ModelProto)> {
    let bytes = Bytes::from(files::read(path).map_err(|error| unread(path, &error))?);
    let damaged = |error| files::unreadable(path, format!("cannot be read as ONNX: {error}"));
    let model = ModelProto::decode(bytes.clone()).map_err(damaged)?;
    Ok((bytes, model))
}

/// The graph of a file, with that output first which counts.
fn graph_of(path: &Path, model: ModelProto, gives: NetworkOutput) -> Result<GraphProto> {
    let mut graph = model.graph.ok_or_else(|| unread(path, &"there is no graph in it"))?;
    put_first(&mut graph, if let NetworkOutput::Loss(name) = gives { Some(name) } else { None })?;
    Ok(graph)
}

/// Whether a tensor of at least two axes has zeros and one other number, and both: which places attend to which, say.
fn is_mask(tensor: &OnnxTensor) -> bool {
    let sizes =
        tensor.is_real() && tensor.dims.len() > 1 && (2..=constant::MOST).contains(&tensor.elements());
    let Some(all) = sizes.then(|| tensor.reals().ok()).flatten() else { return false };
    let other = all.iter().find(|&&number| number != 0.0);
    other
        .is_some_and(|other| all.iter().all(|number| *number == 0.0 || number == other) && all.contains(&0.0))
}

/// Puts that output first which counts: the loss that is named, else the first that is no single number.
fn put_first(graph: &mut GraphProto, loss: Option<&str>) -> Result<()> {
    let is_single = |output: &ValueInfoProto| {
        let tensor = output.value_type.as_ref().and_then(|of| of.tensor_type.as_ref());
        tensor
            .and_then(|of| of.shape.as_ref())
            .is_some_and(|shape| shape.dim.iter().all(|axis| axis.dim_value == 1))
    };
    let axes = |output: &ValueInfoProto| {
        let tensor = output.value_type.as_ref().and_then(|of| of.tensor_type.as_ref());
        tensor.and_then(|of| of.shape.as_ref()).map_or(0, |shape| shape.dim.len())
    };
    let is_wanted = |output: &ValueInfoProto| match loss {
        Some(name) => output.name == name && is_single(output),
        // A file for one image has scores of one class in two axes: that is no loss.
        None => !(is_single(output) && axes(output) < 2),
    };
    match (graph.output.iter().position(is_wanted), loss) {
        (Some(at), _) => graph.output[..=at].rotate_right(1),
        (None, None) => {}
        (None, Some(name)) => {
            let of = |single: bool| -> Vec<&str> {
                let outputs = graph.output.iter().filter(|output| !single || is_single(output));
                outputs.map(|output| &*output.name).collect()
            };
            let (all, single) = (of(false), of(true));
            let what =
                if all.contains(&name) { "is no single number" } else { "is no output of the network" };
            let singles = match &single[..] {
                [] => format!("which has none that is one: {}", all.join(", ")),
                names => format!("and those that are one: {}", names.join(", ")),
            };
            return Err(Error::usage(format!("--loss output:{name}: {what}, {singles}")));
        }
    }
    Ok(())
}

/// The tensors of a graph, taken out of it, by the names of what gives them.
fn tensors(path: &Path, graph: &mut GraphProto) -> Result<(Vec<OnnxTensor>, HashMap<String, usize>)> {
    let mut protos = std::mem::take(&mut graph.initializer);
    take_constants(graph, &mut protos);
    let directory = files::directory_of(path);
    let (mut tensors, mut tensor_of) = (Vec::with_capacity(protos.len()), HashMap::new());
    for proto in protos {
        let name = proto.name.clone();
        let wrong = |what: &str| Error::data(path, format!("tensor {name}: {what}"));
        tensors.push(OnnxTensor::new(proto, directory).map_err(|what| wrong(&what))?);
        if tensor_of.insert(name.clone(), tensors.len() - 1).is_some() {
            return Err(wrong("is there twice"));
        }
    }
    Ok((tensors, tensor_of))
}

/// Those of its nodes, and of graphs in these.
fn take_constants(graph: &mut GraphProto, constants: &mut Vec<TensorProto>) {
    constants.append(&mut graph.initializer);
    for node in &mut graph.node {
        for attribute in &mut node.attribute {
            if let Some(inner) = &mut attribute.g {
                take_constants(inner, constants);
            }
            if let (Some(name), true, "value") =
                (node.output.first(), node.op_type == "Constant", &*attribute.name)
                && let Some(value) = attribute.t.take()
            {
                constants.push(TensorProto { name: name.clone(), ..value });
            }
        }
    }
}

/// The version of ONNX's ops that a file uses.
fn version(model: &ModelProto) -> std::result::Result<i64, String> {
    let set = model.opset_import.iter().find(|set| set.domain.is_empty() || set.domain == "ai.onnx");
    match set.map(|set| set.version) {
        Some(version) if VERSIONS.contains(&version) => Ok(version),
        other => Err(format!(
            "uses {} of ONNX's ops; {} to {} are known",
            other.map_or("no version".into(), |version| format!("version {version}")),
            VERSIONS.start(),
            VERSIONS.end()
        )),
    }
}

/// How many scores a sample has, or channels where it has some for each of many places.
fn classes_of(net: &Builder, output: TensorId) -> usize {
    net.shape(output).0.get(1).copied().unwrap_or(1)
}
