//! The walk over a file's nodes. A node is computed in advance where all that it reads is known; else it becomes layers
//! of the network. All nodes are looked at before anything is refused, so that one message names every reason.

use std::collections::{HashMap, HashSet};

use super::TargetShape;
use super::axes;
use super::constant::{ConstantTensor, MOST};
use super::fold;
use super::layers;
use super::node::OnnxNode;
use super::notes::{self, Noted};
use super::order::{head, needed, node, readers, tables};
use super::tensor::Reason;
use super::{OnnxFile, Weight};
use crate::error::{Error, ErrorKind, Result};
use crate::graph::{Builder, MOST_NUMBERS, Permutation, SampleShape, Shape, TensorId, dims};

/// How many nodes a message names at most.
const LINES: usize = 1000;
/// How many numbers are computed in advance at most, so that a small file takes no large memory.
const ROOM: usize = 16 * MOST;

/// What a name stands for.
#[derive(Debug, Clone)]
pub enum Value {
    /// Something that the network computes.
    Tensor(TensorId),
    /// What is on the way to an activation that the file spells out; `PartialActivation` says how far, from this
    /// tensor.
    Partly(PartialActivation, TensorId),
    /// A tensor of the file, not yet asked for.
    Stored(StoredTensor),
    /// Numbers that are known.
    Known(ConstantTensor),
    /// Random numbers on the way to a layer that drops some.
    Noise(Noise),
    /// The mean over the batch of what each sample has, (N, 1): a loss.
    MeanOf(TensorId),
    /// Several, of which a node takes one.
    Sequence(Vec<Value>),
    /// What a node gives that is not supported; that has been noted.
    Unknown,
}

/// A tensor of the file.
#[derive(Debug, Clone)]
pub struct StoredTensor {
    /// Its number.
    pub index: usize,
    /// The name that it has as a parameter.
    pub name: String,
    /// Whether rows and columns are to be exchanged.
    pub transposed: bool,
}

/// Random numbers of a shape.
#[derive(Debug, Clone)]
pub struct Noise {
    /// How many elements each axis has.
    pub dims: Vec<usize>,
    /// With which probability each is 1, else 0; `None` for uniform ones.
    pub kept: Option<f32>,
    /// Whether they were divided by that.
    pub is_scaled: bool,
}

/// A part of an activation's formula, with x the tensor that it begins from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PartialActivation {
    /// σ(x), which may become x·σ(x).
    Sigmoid,
    /// x times a number.
    Scaled(f32),
    /// x with its axes in this order.
    Turned(Permutation),
    /// Whether x is above a number.
    Above(f32),
    /// erf(x/√2)
    Erf,
    /// 1 + erf(x/√2)
    ErfPlusOne,
    /// x·(1 + erf(x/√2)): twice GELU.
    TwiceGelu,
}

/// What a node gives, or a part of it.
pub type Lowered<T = Value> = std::result::Result<T, Stop>;

/// Why a node becomes no layer.
pub enum Stop {
    /// It is not supported, in words.
    Node(Reason),
    /// The network cannot be built for this image.
    Error(Error),
}

impl From<Reason> for Stop {
    fn from(wrong: Reason) -> Stop {
        Stop::Node(wrong)
    }
}

impl From<&str> for Stop {
    fn from(wrong: &str) -> Stop {
        Stop::Node(wrong.into())
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Error(error)
    }
}

/// A network that was described to a builder.
pub struct Imported {
    /// The scores of the classes.
    pub logits: TensorId,
    /// Parameters and statistics.
    pub weights: Vec<Weight>,
    /// What a user should know, and what whoever trains it should.
    pub notes: [Vec<String>; 2],
}

/// Refuses shapes of which the number of elements could overflow further on.
fn within_limits(file: &OnnxFile, what: &str, shape: &Shape) -> Result<()> {
    match shape.elements() > MOST_NUMBERS {
        true => Err(Error::usage(format!(
            "{}: {what} would have {shape} numbers, where {MOST_NUMBERS} can be counted; take a smaller --batch or \
             --image-size",
            file.path.display()
        ))),
        false => Ok(()),
    }
}

/// A walk that is under way.
pub struct Import<'a> {
    /// What is walked over.
    pub file: &'a OnnxFile,
    /// What it is described to.
    pub net: &'a mut Builder,
    /// The node that it is at.
    pub node: OnnxNode<'a>,
    images: TensorId,
    values: HashMap<&'a str, Value>,
    /// What was made of what was begun, of stored tensors by their names, and of constants.
    made: Vec<(PartialActivation, TensorId, TensorId)>,
    operands: HashMap<String, TensorId>,
    /// Parameters that an op reads as they are, by their names.
    layers: HashMap<String, TensorId>,
    /// What each softplus is of.
    pub softplus_of: HashMap<TensorId, TensorId>,
    /// How many numbers may still be computed in advance.
    room: usize,
    /// Nodes that read a name, of those that the scores need.
    readers: HashMap<&'a str, Vec<usize>>,
    /// The layer that gives the scores, and the classes that it is to have in place of its own.
    head: Option<(usize, usize)>,
    pub weights: Vec<Weight>,
    /// Names that are taken.
    names: HashSet<String>,
    pub noted: Noted,
}

/// Describes the file's network to a builder. `classes` are those of its last layer, where they are not the file's.
///
/// # Errors
/// `Data` with every node that is not supported; `Usage` when the image is too small for a layer.
pub fn run(file: &OnnxFile, net: &mut Builder, images: TensorId, classes: Option<usize>) -> Result<Imported> {
    let image = net.shape(images).sample().unwrap_or(SampleShape::image([0; 3]));
    within_limits(file, "the input", net.shape(images))?;
    // Numbers in the file are right for its own batch.
    let (mut described, its_images) = Builder::new(file.label(), file.batch().unwrap_or(1), image);
    described.only_to_test();
    let imported = as_described(file, &mut described, its_images, classes)?;
    let mut weights = imported.weights;
    let is_one = |name: &str, extents: [usize; 3], shape: &[usize]| {
        let weight = weights.iter_mut().find(|weight| weight.name == name);
        weight.is_some_and(|weight| file.is_copied(weight, extents, shape))
    };
    let logits = net.add_batched(&described, imported.logits, is_one).map_err(|error| match error.kind {
        ErrorKind::Usage if file.batch().is_some_and(|batch| batch > 1) => {
            Error::data(&file.path, error.message)
        }
        _ => error,
    })?;
    Ok(Imported { logits, weights, ..imported })
}

/// Describes the network for the batch that the file was written for, or where that is open for any.
pub fn as_described(
    file: &OnnxFile,
    net: &mut Builder,
    images: TensorId,
    classes: Option<usize>,
) -> Result<Imported> {
    let wrong = |what: String| Error::data(&file.path, what);
    within_limits(file, "the input", net.shape(images))?;
    let output = file.graph.output.first().ok_or_else(|| wrong("has no output".into()))?;
    let needed = needed(file, &output.name).map_err(wrong)?;
    let mut values = given(file, net, images)?;
    values.extend(file.tensor_of.iter().map(|(name, &index)| {
        (&**name, Value::Stored(StoredTensor { index, name: name.clone(), transposed: false }))
    }));
    for (name, index) in tables(file, &needed) {
        values.insert(name, Value::Known(ConstantTensor::of(&file.tensors[index]).map_err(wrong)?));
    }
    let head = classes.and_then(|classes| Some((head(file, &needed, &output.name)?, classes)));
    let no_scores = || {
        let what = match file.is_loss() {
            true => "is no mean over the batch, such as ReduceMean over all axes gives",
            false => "has not one part for each sample: (N, …)",
        };
        wrong(format!("its output {} {what}", output.name))
    };
    let mut import = Import {
        node: node(file, *needed.first().ok_or_else(no_scores)?),
        file,
        net,
        images,
        values,
        readers: readers(file, &needed),
        head,
        room: ROOM,
        made: Vec::new(),
        operands: HashMap::new(),
        layers: HashMap::new(),
        softplus_of: HashMap::new(),
        weights: Vec::new(),
        names: HashSet::new(),
        noted: Noted::default(),
    };
    import.walk(&needed)?;
    let logits = match import.scores(&needed, &output.name) {
        Some(id) if import.net.shape(id).0.first() == Some(&import.batch()) => id,
        _ => return Err(no_scores()),
    };
    if !import.net.depends(logits, images) {
        return Err(wrong(format!("its output {} does not depend on what it is given", output.name)));
    }
    // Means of a copy of a weight, say, which a normalisation makes by itself.
    let behind = import.net.names_behind(logits);
    import.weights.retain(|weight| behind.contains(&*weight.name));
    if import.weights.is_empty() {
        return Err(wrong("has nothing to learn: no layer with weights leads to its output".into()));
    }
    let nodes: Vec<OnnxNode> = needed.iter().map(|&index| node(file, index)).collect();
    let notes = notes::notes(&import, &nodes).map_err(wrong)?;
    Ok(Imported { logits, weights: import.weights, notes })
}

/// What the file's inputs are of the samples, which have the numbers of several one behind the other.
fn given<'a>(file: &'a OnnxFile, net: &mut Builder, images: TensorId) -> Result<HashMap<&'a str, Value>> {
    let (mut values, mut from) = (HashMap::new(), 0);
    for input in &file.inputs {
        let mut part = images;
        if file.inputs.len() > 1 {
            let (batch, range) = (net.shape(images).batch(), from..from + input.numbers());
            from = range.end;
            part = net.slice(&input.name, images, 1, range)?;
            let shape = Shape([&[batch], &input.image[..]].concat());
            part = net.reshape(&format!("{}.sample", input.name), part, shape)?;
        }
        let last: Vec<usize> = [0].into_iter().chain(2..input.axes()).chain([1]).collect();
        // Arrays say which of their axes are channels: where these are as many as the file's second axis has, that is
        // theirs, and not the last.
        let channels = net.shape(part).0.get(1).copied();
        let is_last = input.is_last && channels.as_ref() == input.image.first();
        let part = with_axes(net, part, input.axes())?;
        let value = match Permutation::new(&last).filter(|_| is_last) {
            Some(order) => Value::Partly(PartialActivation::Turned(order), part),
            None => Value::Tensor(part),
        };
        values.insert(&*input.name, value);
    }
    Ok(values)
}

/// The samples with as many axes as the file's network reads: of 2 or 3, which come as images, without those of 1, also
/// where what is named has no channels.
fn with_axes(net: &mut Builder, images: TensorId, axes: usize) -> Result<TensorId> {
    let Some([batch, channels, height, width]) = net.shape(images).nchw().filter(|_| axes < 4) else {
        return Ok(images);
    };
    let shape = match (axes, [channels, height, width]) {
        (2, [features, 1, 1] | [1, 1, features]) => dims([batch, features]),
        (3, [channels, 1, length] | [1, channels, length]) => dims([batch, channels, length]),
        (_, sample) => {
            return Err(Error::usage(format!(
                "the network reads samples of {}, and they have {}: c names an axis of channels, w that of a sequence",
                if axes == 2 { "one axis" } else { "two axes" },
                Shape(sample.to_vec())
            )));
        }
    };
    net.reshape("samples", images, shape)
}

impl<'a> Import<'a> {
    /// Node by node; an error lists all that are not supported.
    fn walk(&mut self, needed: &[usize]) -> Result<()> {
        let file = self.file;
        let mut refused = Vec::new();
        for &index in needed {
            let node = node(file, index);
            if node.outputs().first().is_none_or(|name| self.values.contains_key(&**name)) {
                continue;
            }
            let value = match self.value_of(node) {
                Ok(value) => value,
                Err(Stop::Error(error)) => return Err(error),
                Err(Stop::Node(wrong)) => {
                    refused.push(format!("\n  {} ({}): {wrong}", node.name(), node.op()));
                    Value::Unknown
                }
            };
            for name in node.outputs().iter().skip(1) {
                self.values.entry(name).or_insert(Value::Unknown);
            }
            if let Value::Tensor(id) = value {
                // Handlers multiply extents of what they read.
                within_limits(file, &node.name(), self.net.shape(id))?;
            }
            self.values.insert(&node.outputs()[0], value);
        }
        if refused.is_empty() {
            return Ok(());
        }
        let more = match refused.len().saturating_sub(LINES) {
            0 => String::new(),
            more => format!("\n  … and {more} more"),
        };
        Err(Error::data(
            &file.path,
            format!(
                "cannot be trained: of its {} nodes {} {} not supported (docs/onnx.md has what is):{}{more}",
                needed.len(),
                refused.len(),
                if refused.len() == 1 { "is" } else { "are" },
                refused[..refused.len().min(LINES)].concat()
            ),
        ))
    }

    fn value_of(&mut self, node: OnnxNode<'a>) -> Lowered {
        self.node = node;
        if node.op() == "If" {
            return self.branch(node);
        }
        let handler = layers::handler(node)?;
        let inputs: Vec<Value> = node.inputs().iter().map(|name| self.named(name)).collect();
        if inputs.iter().any(|value| matches!(value, Value::Unknown)) {
            return Ok(Value::Unknown);
        }
        if let Some(known) = self.known(&inputs)? {
            return Ok(Value::Known(known));
        }
        if self.file.is_loss()
            && let Some(value) = layers::loss::of_samples(self, &inputs)?
        {
            return Ok(value);
        }
        match handler {
            Some(handler) => handler(self, &inputs),
            None => Err("is computed from what is known before a step, and here it is not".into()),
        }
    }

    /// What one of two graphs gives, by a condition that is known.
    fn branch(&mut self, node: OnnxNode<'a>) -> Lowered {
        let condition = self.named(node.inputs().first().ok_or("reads nothing")?);
        let condition =
            self.constant(&condition).map_err(|_| "chooses by what is computed from the images")?;
        let holds = condition.single().ok_or("chooses by several numbers")? != 0.0;
        let name = if holds { "then_branch" } else { "else_branch" };
        let graph = node.graph(name).ok_or_else(|| format!("has no {name}"))?;
        for inner in graph.node.iter().map(|proto| OnnxNode::new(proto, node.index)) {
            let value = self.value_of(inner)?;
            if let Value::Tensor(id) = value {
                within_limits(self.file, &inner.name(), self.net.shape(id))?;
            }
            if let Some((first, rest)) = inner.outputs().split_first() {
                for name in rest {
                    self.values.entry(name).or_insert(Value::Unknown);
                }
                self.values.insert(first, value);
            }
        }
        let given: Vec<Value> = graph.output.iter().map(|output| self.named(&output.name)).collect();
        given.iter().enumerate().skip(1).for_each(|(place, value)| self.give(node, place, value.clone()));
        given.into_iter().next().ok_or_else(|| "gives nothing".into())
    }

    /// Images that the file is written for.
    pub fn batch(&self) -> usize {
        self.net.shape(self.images).batch()
    }

    /// What a name stands for. One that is left out is an empty constant.
    pub fn named(&self, name: &str) -> Value {
        match self.values.get(name) {
            Some(value) => value.clone(),
            None => Value::Known(ConstantTensor::row(Vec::new())),
        }
    }

    /// The first output, as far as the network computes it.
    fn scores(&mut self, needed: &[usize], output: &str) -> Option<TensorId> {
        self.node = node(self.file, *needed.last()?);
        let value = self.values.get(output)?.clone();
        if self.file.is_loss() {
            return if let Value::MeanOf(part) = value { Some(part) } else { None };
        }
        let (value, dims): (Value, Vec<usize>) = match value {
            Value::Partly(PartialActivation::Turned(order), x) => {
                let shape = self.net.shape(x);
                (value, order.axes().iter().map(|&axis| shape.0[axis]).collect())
            }
            Value::Tensor(_) | Value::Partly(..) => {
                let x = self.tensor(&value).ok()?;
                (Value::Tensor(x), self.net.shape(x).0.clone())
            }
            _ => return None,
        };
        let rank = dims.len();
        let value = match rank > 2 && self.gives_last(&dims, output) {
            true => {
                let order: Vec<usize> = [0, rank - 1].into_iter().chain(1..rank - 1).collect();
                layers::permuted(self, &value, &order).ok()?
            }
            false => value,
        };
        self.tensor(&value).ok()
    }

    /// Whether an output of these axes has its channels on the last: as its nodes say, or else as it fits what it is
    /// compared with; where that fits either way as the target lies, if the input's array lies as the network reads it.
    /// Where nothing is known that it is compared with the input's places say it.
    fn gives_last(&mut self, dims: &[usize], output: &str) -> bool {
        let file = self.file;
        let known = axes::gives_channels_last(&file.graph, output, |name| file.tensor_of.contains_key(name));
        let own = &dims[1..];
        let mut turned = own.to_vec();
        turned.rotate_right(1);
        let input = &file.inputs[0];
        let places = &self.net.shape(self.images).0[if own.len() == 2 { 3 } else { 2 }..];
        let fit = match &file.output.target {
            Some(target) => [target.fits(own), target.fits(&turned)],
            None => [own[1..] == *places, input.is_last && turned[1..] == *places],
        };
        match (known, fit) {
            (Some((is_last, true)), _) => is_last && (fit[1] || file.output.target.is_none()),
            (known, [true, true]) if turned == own => {
                let target =
                    file.output.target.as_ref().filter(|of| !matches!(of.shape, TargetShape::Classes(_)));
                let by_product = known.map(|(is_last, _)| is_last);
                let is_last = match target {
                    Some(target) if !input.is_turned => target.is_last,
                    Some(target) => by_product.unwrap_or(!target.is_last),
                    None => by_product.unwrap_or(input.is_last),
                };
                self.noted.doubtful = Some((output.into(), Shape(dims.to_vec()), is_last));
                is_last
            }
            (_, fit) => fit == [false, true],
        }
    }

    /// What a node gives that reads constants alone.
    fn known(&mut self, inputs: &[Value]) -> Lowered<Option<ConstantTensor>> {
        let node = self.node;
        let keeps_name = node.op() == "Identity" && matches!(inputs, [Value::Stored(_)]);
        // What is put into a table, and that, are no weights; a bias of which a part is put to 0 is.
        let is_table = |value: &Value| match value {
            Value::Stored(stored) => self.file.tensors[stored.index].dims.len() > 1,
            other => self.is_known(other),
        };
        let puts = node.op() == "ScatterND" && inputs.first().is_some_and(is_table);
        let is_known = |value: &Value| self.is_known(value) || puts && matches!(value, Value::Stored(_));
        if !fold::is_folded(node.op()) || keeps_name || !inputs.iter().all(is_known) {
            return Ok(None);
        }
        let constants: Vec<ConstantTensor> =
            inputs.iter().map(|value| self.constant(value)).collect::<std::result::Result<_, _>>()?;
        let folded = fold::fold(&node, &constants.iter().collect::<Vec<_>>());
        let folded = folded.transpose().map_err(Stop::Node)?;
        if let Some(constant) = &folded {
            let left = self.room.checked_sub(constant.len());
            self.room = left.ok_or("computes more numbers in advance than any network needs")?;
        }
        Ok(folded)
    }

    /// Whether its numbers are known and not learned.
    pub fn is_known(&self, value: &Value) -> bool {
        match value {
            Value::Known(_) => true,
            Value::Stored(stored) => !self.file.may_be_learned(stored.index),
            _ => false,
        }
    }

    /// The numbers of what is known, or stored and small.
    ///
    /// # Errors
    /// It is computed by the network, or has too many.
    pub fn constant(&self, value: &Value) -> std::result::Result<ConstantTensor, Reason> {
        match value {
            Value::Known(constant) => Ok(constant.clone()),
            Value::Stored(stored) => {
                let constant = ConstantTensor::of(&self.file.tensors[stored.index])?;
                let turned = stored.transposed.then(|| fold::transpose(&constant, None));
                turned.unwrap_or(Some(constant)).ok_or_else(|| "turns no matrix".into())
            }
            _ => Err("reads as a constant what is computed from the images".into()),
        }
    }

    /// The numbers of what is known and not learned.
    pub fn known_reals(&self, value: &Value) -> Option<Vec<f32>> {
        self.is_known(value).then(|| self.constant(value).ok())?.map(|constant| constant.reals())
    }

    /// The one number of what is known and not learned.
    pub fn single(&self, value: &Value) -> Option<f32> {
        match self.known_reals(value)?[..] {
            [number] => Some(number),
            _ => None,
        }
    }

    /// The shape of what the network does not compute.
    pub fn dims_of(&self, value: &Value) -> Option<Vec<usize>> {
        match value {
            Value::Known(constant) => Some(constant.dims.clone()),
            Value::Stored(stored) => {
                let mut dims = self.file.dims(stored.index).to_vec();
                if stored.transposed {
                    dims.reverse();
                }
                Some(dims)
            }
            Value::Noise(noise) => Some(noise.dims.clone()),
            _ => None,
        }
    }

    /// The shape of a value; what was begun is finished for it.
    ///
    /// # Errors
    /// As for `tensor`.
    pub fn shape_of(&mut self, value: &Value) -> Lowered<Shape> {
        match self.dims_of(value) {
            Some(dims) => Ok(Shape(dims)),
            None => {
                let id = self.tensor(value)?;
                Ok(self.net.shape(id).clone())
            }
        }
    }

    /// What the network computes. Of what was begun it is that as far as there is such a layer; what is stored is
    /// learned, and what is known stays as it is.
    ///
    /// # Errors
    /// It is no such thing.
    pub fn tensor(&mut self, value: &Value) -> Lowered<TensorId> {
        match value {
            Value::Tensor(id) => Ok(*id),
            Value::Partly(step, x) => {
                let is_same =
                    |made: &&(PartialActivation, TensorId, TensorId)| (&made.0, made.1) == (step, *x);
                if let Some(&(.., y)) = self.made.iter().find(is_same) {
                    return Ok(y);
                }
                let y = layers::finished(self, *step, *x)?;
                self.made.push((*step, *x, y));
                Ok(y)
            }
            Value::Stored(stored) if self.file.may_be_learned(stored.index) => self.operand(stored),
            Value::Stored(_) | Value::Known(_) => {
                let constant = self.constant(value)?;
                let dims = if constant.dims.is_empty() { vec![1] } else { constant.dims.clone() };
                if constant.len() == 0 {
                    return Err("computes with nothing".into());
                }
                let name = self.layer(&format!("{}.constant", self.node.layer()));
                Ok(self.net.constant(&name, Shape(dims), &constant.reals())?)
            }
            Value::Noise(_) => Err("reads random numbers, which only a layer that drops some may do".into()),
            Value::MeanOf(_) => Err("reads a mean over the batch".into()),
            Value::Sequence(_) => Err("reads a list of tensors".into()),
            Value::Unknown => Err("reads what is not supported".into()),
        }
    }

    /// A layer's bias. One that is stored is learned, also where it is a single number, which elsewhere is none that
    /// was learned.
    ///
    /// # Errors
    /// As for `tensor`.
    pub fn bias(&mut self, value: &Value) -> Lowered<TensorId> {
        match value {
            Value::Stored(stored) if self.file.is_initializer(stored.index) => self.operand(stored),
            other => self.tensor(other),
        }
    }

    /// A stored tensor that is no weight of a layer, but an operand: learned, once however many read it.
    fn operand(&mut self, stored: &StoredTensor) -> Lowered<TensorId> {
        if let Some(&id) = self.operands.get(&stored.name) {
            return self.turned(id, stored);
        }
        let shape = Shape(self.file.dims(stored.index).to_vec());
        if shape.0.contains(&0) {
            return Err(format!("{} has the shape {shape}", stored.name).into());
        }
        if let Some(&layers) = self.layers.get(&stored.name) {
            // The weight of a layer, which may have it the other way round.
            let is_turned = self.weights.iter().any(|of| of.name == stored.name && of.transposed);
            let mut id = self.net.shared(layers);
            if is_turned {
                let layer = self.layer(&format!("{}.turned", stored.name));
                id = self.net.permute(&layer, id, &[1, 0])?;
            }
            if *self.net.shape(id) != shape {
                let layer = self.layer(&format!("{}.seen", stored.name));
                id = self.net.reshape(&layer, id, shape)?;
            }
            self.operands.insert(stored.name.clone(), id);
            return self.turned(id, stored);
        }
        let init = self.file.tensors[stored.index].spread()?;
        let id = self.net.learned(&stored.name, shape.clone(), init, false);
        let weight = Weight {
            name: stored.name.clone(),
            shape: shape.0.clone(),
            tensor: stored.index,
            transposed: false,
            copies: None,
        };
        self.weights.push(weight);
        let layer = self.layer(&format!("{}.operand", stored.name));
        let id = self.net.reshape(&layer, id, shape)?;
        self.operands.insert(stored.name.clone(), id);
        self.turned(id, stored)
    }

    fn turned(&mut self, id: TensorId, stored: &StoredTensor) -> Lowered<TensorId> {
        if !stored.transposed {
            return Ok(id);
        }
        let layer = self.layer(&format!("{}.transposed", stored.name));
        Ok(self.net.permute(&layer, id, &[1, 0])?)
    }

    /// A tensor of the file that is to be learned, of this rank.
    ///
    /// # Errors
    /// It is no tensor of the file, or one of another rank.
    pub fn stored(
        &self,
        value: &Value,
        what: &str,
        rank: usize,
    ) -> std::result::Result<(StoredTensor, Vec<usize>), Reason> {
        let Value::Stored(stored) = value else { return Err(format!("its {what} is computed, not stored")) };
        let tensor = &self.file.tensors[stored.index];
        let mut dims = tensor.dims.clone();
        if !tensor.is_real() || dims.len() != rank || dims.contains(&0) {
            return Err(format!("its {what} has the shape {dims:?}, not one of {rank} axes of real numbers"));
        }
        if stored.transposed {
            dims.reverse();
        }
        Ok((stored.clone(), dims))
    }

    /// The classes that the node's layer is to have in place of its own.
    pub fn classes_of(&self) -> Option<usize> {
        self.head.filter(|(index, _)| *index == self.node.index).map(|(_, classes)| classes)
    }

    /// The one node that reads what the node gives, where there is one.
    pub fn reader(&self) -> Option<OnnxNode<'a>> {
        let name = self.node.outputs().first()?;
        match self.readers.get(&**name).map(Vec::as_slice) {
            Some(&[reader]) if self.file.graph.output.iter().all(|output| output.name != *name) => {
                Some(OnnxNode::new(&self.file.graph.node[reader], reader))
            }
            _ => None,
        }
    }

    /// What a node gives is known already: a later one's whose work is done, or more than the first of one's own.
    pub fn give(&mut self, node: OnnxNode<'a>, place: usize, value: Value) {
        if let Some(name) = node.outputs().get(place) {
            self.values.insert(name, value);
        }
    }

    /// A name that no layer has yet.
    pub fn layer(&mut self, wanted: &str) -> String {
        let numbered = (2..).map(|number| format!("{wanted}_{number}"));
        let free =
            std::iter::once(wanted.to_string()).chain(numbered).find(|name| !self.names.contains(name));
        let name = free.unwrap_or_default();
        self.names.insert(name.clone());
        name
    }

    /// Whether the network computes it from the images.
    pub fn of_images(&self, id: TensorId) -> bool {
        self.net.depends(id, self.images)
    }

    /// Notes that the node computes along the first axis, where that is of the one image that the file is written for.
    pub fn along_first(&mut self, x: TensorId) {
        let shape = self.net.shape(x);
        if self.file.batch() == Some(1)
            && !self.file.is_loss()
            && shape.rank() > 1
            && shape.0[0] == 1
            && self.of_images(x)
        {
            self.noted.alone.push(self.node.name());
        }
    }

    /// Whether no layer has this weight yet.
    pub fn is_free(&self, stored: &StoredTensor) -> bool {
        !self.is_said_fixed(stored) && !self.weights.iter().any(|weight| weight.name == stored.name)
    }

    /// Whether the file says that it is not learned.
    pub fn is_said_fixed(&self, stored: &StoredTensor) -> bool {
        self.file.is_said_fixed(stored.index)
    }

    /// Whether the file says that it is learned.
    pub fn is_said_learned(&self, stored: &StoredTensor) -> bool {
        self.file.is_said_learned(stored.index)
    }

    /// Whether something else reads it too: a layer then has what that reads, so that it has the gradient of both.
    pub fn is_shared(&self, stored: &StoredTensor) -> bool {
        let has_layer = self.weights.iter().any(|weight| weight.name == stored.name);
        self.operands.contains_key(&stored.name) || has_layer && self.file.is_shared(stored.index)
    }

    /// The layer that a weight belongs to by its name, or the node's.
    pub fn layer_of(&mut self, weight: &StoredTensor) -> String {
        match weight.name.strip_suffix(".weight") {
            Some(layer) if !layer.is_empty() => self.layer(layer),
            _ => self.layer(&self.node.layer()),
        }
    }

    /// The parameters of the layer that was just added are these tensors of the file.
    ///
    /// # Errors
    /// One that layers share, and another layer has too.
    pub fn learned(&mut self, stored: &[&StoredTensor]) -> Lowered<()> {
        for stored in stored.iter().filter(|stored| self.file.is_shared(stored.index)) {
            if self.weights.iter().any(|weight| weight.name == stored.name) {
                return Err(format!("shares its weight {} with a layer of another kind", stored.name).into());
            }
        }
        self.kept(stored);
        Ok(())
    }

    /// The same of parameters and statistics, of which each layer has its own.
    pub fn kept(&mut self, stored: &[&StoredTensor]) {
        let ids = self.net.kept_of_last();
        for (&id, stored) in ids.iter().zip(stored) {
            let mut name = stored.name.clone();
            if self.weights.iter().any(|weight| weight.name == name) {
                self.noted.shared.push(name.clone());
                name = self.layer(&format!("{name}_2"));
            }
            self.layers.entry(name.clone()).or_insert(id);
            self.net.rename(id, &name);
            let shape = self.net.shape(id).0.clone();
            let (tensor, transposed) = (stored.index, stored.transposed);
            self.weights.push(Weight { name, shape, tensor, transposed, copies: None });
        }
    }
}
