//! Which axes a file's network reads and gives, and which of them has the channels: as its nodes say it, and where they
//! do not, as the samples do.

use std::collections::HashSet;

use super::order;
use super::schema::{Dimension, GraphProto, NodeProto, ValueInfoProto, data_type};
use crate::graph::{SampleShape, Shape, squeezed};

/// Height and width of images where the file leaves them open, as ImageNet's are cut.
const USUAL_SIZE: usize = 224;
/// Places of an axis of samples, at most: a sequence of a day, 100 a second, has half as many.
const LONGEST: usize = 1 << 24;
/// Depth, height and width of cubes where the file leaves them open.
const USUAL_DEPTH: usize = 64;
/// Channels of pictures at most: so many on the last axis, and other than that on the second, are TensorFlow's order.
const PICTURE: std::ops::RangeInclusive<usize> = 1..=4;

/// What a file says of an input.
#[derive(Debug, Clone)]
pub struct NetworkInput {
    /// What it is called.
    pub name: String,
    /// Its axes without that of the batch; 0 for one that is named.
    pub axes: Vec<usize>,
}

/// Samples that are arrays, as a network is to read and give them.
#[derive(Debug, Clone)]
pub struct SampleArrays {
    /// For each input of the network the axes of what it is given, channels first, 0 where a length is not known; and
    /// whether the array itself has its channels last, where it says which these are.
    pub inputs: Vec<(Vec<usize>, Option<bool>)>,
    /// With what its output is compared, where that is known.
    pub target: Option<TargetAxes>,
}

/// What the output of a network is compared with.
#[derive(Debug, Clone)]
pub struct TargetAxes {
    /// Its axes, channels first.
    pub shape: TargetShape,
    /// Whether the array has its channels last.
    pub is_last: bool,
}

/// The axes of a target, as far as they are known.
#[derive(Debug, Clone)]
pub enum TargetShape {
    /// All of them.
    Values(Vec<usize>),
    /// Those of places, of each of which the output has scores of classes.
    Classes(Vec<usize>),
    /// How many channels there are.
    Channels(usize),
}

impl NetworkInput {
    /// How many numbers it has of a sample; `None` where an axis is named.
    pub fn numbers(&self) -> Option<usize> {
        (!self.axes.contains(&0)).then(|| Shape(self.axes.clone()).elements())
    }
}

impl TargetAxes {
    /// Whether it can be compared with an output of these axes, without that of the batch. Axes of one place are none.
    pub fn fits(&self, output: &[usize]) -> bool {
        match &self.shape {
            TargetShape::Values(shape) => squeezed(output) == squeezed(shape),
            TargetShape::Classes(shape) => squeezed(&output[1..]) == squeezed(shape),
            TargetShape::Channels(channels) => output[0] == *channels,
        }
    }
}

/// What a file's network is given.
pub struct FileInput {
    pub name: String,
    /// Whether the file has its channels on the last axis; else they are on the second.
    pub is_last: bool,
    pub said: ChannelsSaid,
    /// The batch that the file's shapes are written for, where that is fixed.
    pub batch: Option<usize>,
    pub image: SampleShape,
    /// Whether the array for it lies otherwise.
    pub is_turned: bool,
    /// Its axes as the file says them, without that of the batch; 0 for one that is named.
    described: Vec<usize>,
}

/// What says which axis of an input has the channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChannelsSaid {
    /// The nodes that read it.
    ByNodes,
    /// The samples; where they fit with both the array, which is given as it lies.
    BySamples { both_fit: bool },
    /// Nothing: products are along the last axis, whatever that is. Images are taken for TensorFlow's where their last
    /// axis is as long as such channels are, until samples say more.
    Open,
}

impl FileInput {
    /// The inputs that are no weights and that the output needs.
    pub fn all(graph: &GraphProto, is_stored: impl Fn(&str) -> bool) -> Result<Vec<FileInput>, String> {
        let mut inputs: Vec<&ValueInfoProto> =
            graph.input.iter().filter(|input| !is_stored(&input.name)).collect();
        if inputs.len() > 1 {
            let read = read_for(graph);
            inputs.retain(|input| read.contains(&*input.name));
        }
        let is_alone = inputs.len() == 1;
        let of = |input: &ValueInfoProto| FileInput::of(input, channels_last(graph, &input.name), is_alone);
        let inputs = inputs.into_iter().map(of).collect::<Result<Vec<_>, _>>()?;
        if inputs.is_empty() { Err("has no input".into()) } else { Ok(inputs) }
    }

    /// With the batch: 2 of vectors, 3 of sequences, which come as images of one row, or of one pixel.
    pub fn axes(&self) -> usize {
        self.described.len() + 1
    }

    /// Numbers of one sample.
    pub fn numbers(&self) -> usize {
        self.image.iter().product()
    }

    pub fn described(&self) -> NetworkInput {
        NetworkInput { name: self.name.clone(), axes: self.described.clone() }
    }

    fn image(described: &[usize], is_last: bool) -> SampleShape {
        let mut axes = described.to_vec();
        axes.rotate_right(usize::from(is_last));
        FileInput::shape(axes[0], &axes[1..])
    }

    /// As a network of so many channels sees samples with these axes of space. What is not said of their size is taken
    /// to be usual.
    fn shape(channels: usize, places: &[usize]) -> SampleShape {
        let usual = if places.len() == 3 { USUAL_DEPTH } else { USUAL_SIZE };
        let size = |at: usize| if places[at] == 0 { usual } else { places[at] };
        match places.len() {
            0 => SampleShape::image([channels, 1, 1]),
            1 => SampleShape::image([channels, 1, size(0)]),
            3 => SampleShape::cube([channels, size(0), size(1), size(2)]),
            _ => SampleShape::image([channels, size(0), size(1)]),
        }
    }

    /// `channels_last`: what the nodes say that read it. `is_alone`: it is the network's only input.
    fn of(input: &ValueInfoProto, channels_last: Option<bool>, is_alone: bool) -> Result<FileInput, String> {
        let tensor = input.value_type.as_ref().and_then(|of| of.tensor_type.as_ref());
        let axes: &[Dimension] = tensor.and_then(|of| of.shape.as_ref()).map_or(&[], |shape| &shape.dim);
        let reals = [data_type::FLOAT, data_type::FLOAT16, data_type::BFLOAT16];
        let along = |of: i64| usize::try_from(of.max(0)).ok().filter(|&along| along <= LONGEST);
        // Some writers give −1 or less for an extent that is not known.
        let all: Option<Vec<usize>> = axes.iter().map(|axis| along(axis.dim_value)).collect();
        let is_real = tensor.is_some_and(|of| reals.contains(&of.elem_type));
        let all = all.filter(|all| is_real && (2..=5).contains(&all.len())).unwrap_or_default();
        let (said, is_last) = match all[..] {
            [_, features] if features > 0 => (ChannelsSaid::ByNodes, false),
            // A length that is named is no number of channels.
            [_, second, .., last] if second > 0 || PICTURE.contains(&last) || all.len() == 3 && last > 0 => {
                match channels_last {
                    Some(is_last) if (if is_last { last } else { second }) > 0 => {
                        (ChannelsSaid::ByNodes, is_last)
                    }
                    _ if is_alone && all.len() > 3 => {
                        (ChannelsSaid::Open, PICTURE.contains(&last) && !PICTURE.contains(&second))
                    }
                    _ => (ChannelsSaid::Open, second == 0),
                }
            }
            _ => {
                return Err(format!(
                    "its input {} is no batch of samples: real numbers of two to five axes, of which that of the \
                     channels is fixed",
                    input.name
                ));
            }
        };
        let described = all[1..].to_vec();
        Ok(FileInput {
            name: input.name.clone(),
            is_last,
            said,
            batch: Some(all[0]).filter(|&batch| batch > 0),
            image: FileInput::image(&described, is_last),
            is_turned: false,
            described,
        })
    }

    /// Reads a file's inputs as samples are: how long axes are that it names, and which has the channels where its
    /// nodes do not say it.
    ///
    /// # Errors
    /// An array of one of several inputs has other axes than that.
    pub fn read(inputs: &mut [FileInput], samples: &SampleArrays) -> Result<(), String> {
        let is_alone = inputs.len() == 1;
        for (input, (own, is_last)) in inputs.iter_mut().zip(&samples.inputs) {
            // Sequences may have come as images of one row.
            let own = match own[..] {
                [channels, 1, length] if input.axes() == 3 => vec![channels, length],
                _ => own.clone(),
            };
            if own.len() == input.described.len() && own.len() > 1 {
                input.read_as(&own, *is_last, is_alone)?;
            } else if !is_alone && !input.is_like(&own, *is_last == Some(true)) {
                return Err(input.unlike(&own));
            }
        }
        Ok(())
    }

    fn read_as(&mut self, own: &[usize], lies_last: Option<bool>, is_alone: bool) -> Result<(), String> {
        let fits = |own: &[usize]| {
            self.described.iter().zip(own).all(|(&said, &own)| said == own || said == 0 || own == 0)
        };
        let mut turned = own.to_vec();
        turned.rotate_left(1);
        // One channel may be on any axis.
        let (may_turn, lies_last) = (lies_last.is_some() || own[0] == 1, lies_last == Some(true));
        let fit = [fits(own), may_turn && fits(&turned)];
        let channels = [self.described.first(), self.described.last()].map(|said| said == own.first());
        let is_last = match (self.said, fit) {
            // Of another shape than the file says, which its weights may allow.
            (_, [false, false]) if is_alone => channels[1] && (!channels[0] || lies_last),
            (_, [false, false]) => return Err(self.unlike(own)),
            // A name of channels that the second axis fits alone means that one.
            (ChannelsSaid::ByNodes, fit) if self.is_last => fit[1],
            (ChannelsSaid::ByNodes, [false, true]) if !is_alone => return Err(self.unlike(own)),
            (ChannelsSaid::ByNodes, _) => false,
            (_, [true, true]) => lies_last,
            (_, [_, last]) => last,
        };
        if self.said != ChannelsSaid::ByNodes {
            self.said = ChannelsSaid::BySamples { both_fit: fit == [true; 2] };
        }
        if self.said != ChannelsSaid::ByNodes || !is_alone {
            self.is_last = is_last;
            self.image = FileInput::image(&self.described, is_last);
        }
        self.is_turned = is_last != lies_last;
        // Where others do not fit the layers say it.
        if is_last == self.is_last && fit[usize::from(is_last)] && !own.contains(&0) {
            self.image = FileInput::shape(own[0], &own[1..]);
        }
        Ok(())
    }

    /// Whether it is what an array gives with another number of axes: with axes of one place, or one behind the other.
    fn is_like(&self, own: &[usize], lies_last: bool) -> bool {
        squeezed(own) == squeezed(&self.described) || self.described.len() == 1 && !lies_last
    }

    fn unlike(&self, own: &[usize]) -> String {
        let list = |axes: &[usize]| {
            let axes = axes.iter().map(|&along| if along == 0 { "?".into() } else { along.to_string() });
            axes.collect::<Vec<String>>().join("×")
        };
        format!(
            "its input {} is {}, and the array for it has {} places, with channels first: name the array's axes as the \
             input has them (NAME[n,c,w])",
            self.name,
            list(&self.described),
            list(own)
        )
    }
}

/// The names that the first output needs.
fn read_for(graph: &GraphProto) -> HashSet<&str> {
    let mut read: HashSet<&str> = graph.output.iter().take(1).map(|output| &*output.name).collect();
    for node in graph.node.iter().rev() {
        if node.output.iter().any(|name| read.contains(&**name)) {
            read.extend(order::reads(node));
        }
    }
    read
}

/// Ops that do the same to each number, wherever the channels are.
const ARITHMETIC: &str =
    "Add Cast Clip Div Identity LeakyRelu Mul Neg PRelu Pad Pow Relu Sigmoid Sqrt Sub Tanh";
/// Ops that have channels on the second axis.
const OF_CHANNELS: &str = "AveragePool BatchNormalization Conv ConvTranspose DepthToSpace GlobalAveragePool \
    GlobalMaxPool GroupNormalization InstanceNormalization LRN MaxPool SpaceToDepth";

fn is_one_of(names: &str, op: &str) -> bool {
    names.split_whitespace().any(|name| name == op)
}

/// What a node orders its axes by, if it does.
fn order_of(node: &NodeProto) -> Option<&[i64]> {
    node.attribute.iter().find(|attribute| attribute.name == "perm").map(|attribute| &attribute.ints[..])
}

/// Whether an input has its channels on the last axis, as the first nodes say that do more than arithmetic with it: an
/// order of axes brings them to the second, or there is a layer, which ONNX has for channels on the second alone.
/// `None` where the first does neither. Of sequences the order says it only where such a layer reads what it gives:
/// products are along the last axis, whatever that is.
fn channels_last(graph: &GraphProto, input: &str) -> Option<bool> {
    let mut names = HashSet::from([input]);
    for node in &graph.node {
        if !node.input.iter().any(|name| names.contains(&**name)) {
            continue;
        }
        if is_one_of(ARITHMETIC, &node.op_type) {
            names.extend(node.output.iter().map(String::as_str));
        } else if is_one_of(OF_CHANNELS, &node.op_type) {
            return Some(false);
        } else if let Some(order) = order_of(node) {
            let last = order.len() as i64 - 1;
            let moved: Vec<i64> = [0, last].into_iter().chain(1..last).collect();
            let first = || node.output.first().and_then(|turned| channels_last(graph, turned));
            return (order == moved && (last > 2 || first() == Some(false))).then_some(true);
        }
    }
    None
}

/// The same of an output, by the last nodes that do more than arithmetic; and whether that is certain. Behind a product
/// it is where `Linear` has it, which may have been along other axes.
pub fn gives_channels_last(
    graph: &GraphProto,
    output: &str,
    is_stored: impl Fn(&str) -> bool,
) -> Option<(bool, bool)> {
    let (mut name, mut is_turned) = (output, false);
    for node in graph.node.iter().rev() {
        if !node.output.iter().any(|given| given == name) {
            continue;
        }
        if is_one_of(OF_CHANNELS, &node.op_type) {
            return Some((is_turned, true));
        }
        if is_one_of("Gemm MatMul", &node.op_type) {
            return Some((!is_turned, false));
        }
        let last = order_of(node).map_or(0, |order| order.len() as i64 - 1);
        let moved: Vec<i64> = [0].into_iter().chain(2..=last).chain([1]).collect();
        let is_order = order_of(node) == Some(&moved[..]) && last > 1 && !is_turned;
        if !is_order && !is_one_of(ARITHMETIC, &node.op_type) {
            return None;
        }
        is_turned |= is_order;
        name = node.input.iter().find(|name| !is_stored(name))?;
    }
    None
}
