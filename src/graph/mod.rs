//! The graph: ops, tensors and shapes as pure data. It knows no device, and holds no numbers but those of constants.
//!
//! A model builds the forward graph (`builder`), `simplify` rewrites it into fewer ops with the same
//! result, `rows` cuts images over ranks where that is wanted, `synchronise` lets normalisations share statistics over
//! ranks, `split` divides large linear layers among them, `differentiate`
//! appends the backward graph, `recompute` makes it need less memory, `fuse` puts together what the device computes
//! faster so. The plan then gives every tensor a layout and a
//! place in memory. May use: `config`, `error`, `random`. Used by: everything above.

mod batched;
mod builder;
mod codes;
mod cost;
mod differentiate;
mod freeze;
mod fuse;
mod limits;
mod normalised;
mod ops;
mod precision;
mod recompute;
mod rows;
mod shape;
mod simplify;
mod split;
mod synchronise;

pub use crate::config::{NetworkOutput, SampleShape};
pub use builder::{Builder, InitScheme};
pub use codes::CodeTables;
pub use cost::NodeCost;
pub use freeze::Frozen;
pub use fuse::OpFusions;
pub use limits::{MOST_NUMBERS, countable};
pub use normalised::Joint;
pub use ops::{
    Activation, BackwardOp, BatchNorm, Binary, Conv, FieldLoss, FusedOp, Interpolation, LocalResponseNorm,
    MatMul, NormStatistics, Op, Permutation, Pool, Resize, ResizeCoordinates, adaptive_window, windows,
};
pub use rows::{Halo, RowWindow, Rows, Strip, Trade};
pub use shape::{Shape, Volume, dims, squeezed};
pub use split::{Shard, SplitLayers, TensorGroup};

use std::sync::Arc;

/// The type of a tensor's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DType {
    /// IEEE 754's single precision.
    F32,
    /// The upper half of an f32: its range, with 8 bits of precision in place of 24.
    BF16,
    /// IEEE 754's half: 11 bits of precision, numbers up to 65504.
    F16,
    /// Class labels of images.
    I32,
    /// Pixels, or codes of numbers (`CodeTables`).
    U8,
    /// Codes of numbers.
    U16,
    /// What a forward op leaves for its own backward op (a pooling's winners, say). Only the device
    /// knows its form and size; `Shape` is that of the op's output.
    Saved,
}

impl DType {
    /// Whether elements are real numbers, which may be stored in another real type.
    pub fn is_real(self) -> bool {
        matches!(self, DType::F32 | DType::BF16 | DType::F16)
    }

    /// Bytes of one element; `Saved` has none of its own.
    pub fn bytes(self) -> usize {
        match self {
            DType::F32 | DType::I32 => 4,
            DType::BF16 | DType::F16 | DType::U16 => 2,
            DType::U8 => 1,
            DType::Saved => 0,
        }
    }
}

/// What a tensor is in the life of a step: decides which memory it gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// Written by the loader before the step: images, labels or targets.
    Input,
    /// Learned; lives from step to step.
    Parameter,
    /// Kept from step to step and changed by the forward pass itself, without a gradient: running mean and variance.
    Statistic,
    /// Numbers that the network states and that nothing changes (`Tensor::values`): a mask, say.
    Constant,
    /// Made and used within a step, forward or backward.
    Activation,
    /// The loss gradient of a parameter; averaged over ranks.
    Gradient,
    /// Per-sample figures read by the host after the step: losses, hits, sums of a metric, probabilities, outputs.
    Metric,
}

/// Index of a tensor in `Graph::tensors`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorId(pub usize);

/// Index of a node in `Graph::nodes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub usize);

/// Shape and element type: what a device needs to know of a tensor.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Spec {
    /// How many elements each axis has.
    pub shape: Shape,
    /// The type of an element.
    pub dtype: DType,
}

/// How a parameter starts (std: standard deviation).
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Init {
    /// All zero.
    Zero,
    /// All one.
    One,
    /// All alike.
    Constant {
        /// What they are.
        value: f32,
    },
    /// Normally distributed around 0.
    Normal {
        /// Standard deviation.
        std: f32,
    },
    /// Uniform in [-bound, bound).
    Uniform {
        /// Half the width of the interval around 0.
        bound: f32,
    },
}

/// One tensor of the graph.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    /// As PyTorch would name it: "conv1.weight"; activations are named after their node.
    pub name: String,
    /// Shape and type.
    pub spec: Spec,
    /// What it is for.
    pub role: Role,
    /// For parameters and statistics.
    pub init: Option<Init>,
    /// For constants: what they are, last dimension fastest.
    pub values: Option<Arc<[f32]>>,
    /// For parameters: whether weight decay applies (it does not to biases and normalisations).
    pub decay: bool,
    /// For parameters: whether it stays as it is (`freeze`).
    pub frozen: bool,
    /// For parameters: which part of the model's it is, where ranks have unlike parts (`split`).
    pub shard: Option<Shard>,
    /// For gradients: the parameter it belongs to.
    pub gradient_of: Option<TensorId>,
    /// What the first values of a parameter are drawn by, whatever a graph is rewritten into later (given by
    /// `simplify`).
    pub number: u32,
}

impl Tensor {
    /// One that is no parameter: it has no first values and takes no part in an update.
    fn new(name: impl Into<String>, spec: Spec, role: Role) -> Tensor {
        let name = name.into();
        Tensor {
            name,
            spec,
            role,
            init: None,
            values: None,
            decay: false,
            frozen: false,
            shard: None,
            gradient_of: None,
            number: 0,
        }
    }
}

/// One op applied to tensors.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// The layer's name; backward nodes carry that of their forward node.
    pub name: String,
    /// What it computes.
    pub op: Op,
    /// What it reads, in the order of the op.
    pub inputs: Vec<TensorId>,
    /// What it gives, in the order of the op.
    pub outputs: Vec<TensorId>,
    /// For a backward node: its forward node. Devices may need its compiled kernel as a hint.
    pub forward: Option<NodeId>,
}

impl Node {
    fn new(name: impl Into<String>, op: Op, inputs: Vec<TensorId>, outputs: Vec<TensorId>) -> Node {
        Node { name: name.into(), op, inputs, outputs, forward: None }
    }
}

/// A network for one batch size: nodes in an order in which they can run.
#[derive(Debug, Clone, PartialEq)]
pub struct Graph {
    /// The model's name.
    pub name: String,
    /// All tensors; a `TensorId` counts them.
    pub tensors: Vec<Tensor>,
    /// All nodes in an order in which they can run; a `NodeId` counts them.
    pub nodes: Vec<Node>,
    /// Nodes before this index are the forward pass, those from it on the backward pass.
    pub forward_nodes: usize,
    /// Nodes of the backward pass that compute again what the forward pass had (`recompute`).
    pub recomputed: Vec<NodeId>,
    /// (N,C,H,W) images, their pixels (N,H,W,C) (`from_pixels`) or codes (`from_codes`), written before each step.
    pub images: TensorId,
    /// The classes of the images (N), or with an objective the target of the output: an input too.
    pub labels: TensorId,
    /// Where codes are read (`from_codes`): (N) numbers below 0 where there is no sample, written with them.
    pub samples: Option<TensorId>,
    /// Where samples are mixed: (N) other labels and (N) shares of the first ones, written with them.
    pub mixed: Option<[TensorId; 2]>,
    /// (N,K) scores before the softmax, those of the main head where there are several; or any output (N,…), which an
    /// objective compares with its target (`with_objective`).
    pub logits: TensorId,
    /// (N) loss of each sample, that of auxiliary heads included in training.
    pub losses: TensorId,
    /// 1 for each image whose largest score is that of its class, else 0 (N); with an objective the sums of its metric
    /// (N,K).
    pub hits: TensorId,
    /// Where they are asked for (`with_probabilities`): (N,K) probabilities of the classes; with an objective the
    /// output as it is.
    pub probabilities: Option<TensorId>,
    /// Where images are cut by rows over ranks (`split_rows`): which rows of them are read.
    pub rows: Option<Rows>,
}

impl Graph {
    fn add_tensor(&mut self, tensor: Tensor) -> TensorId {
        self.tensors.push(tensor);
        TensorId(self.tensors.len() - 1)
    }

    /// The tensor of this number.
    pub fn tensor(&self, id: TensorId) -> &Tensor {
        &self.tensors[id.0]
    }

    /// The node of this number.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0]
    }

    /// Tensors of one role, in the order they were made.
    pub fn with_role(&self, role: Role) -> impl Iterator<Item = (TensorId, &Tensor)> {
        self.tensors
            .iter()
            .enumerate()
            .filter(move |(_, tensor)| tensor.role == role)
            .map(|(index, tensor)| (TensorId(index), tensor))
    }

    /// The tensors that fields of the graph name, for whoever renumbers tensors. Every field is listed, so that a new
    /// one cannot be forgotten here.
    fn own_tensors(&mut self) -> impl Iterator<Item = &mut TensorId> {
        let Graph {
            name: _,
            tensors: _,
            nodes: _,
            forward_nodes: _,
            recomputed: _,
            images,
            labels,
            samples,
            mixed,
            logits,
            losses,
            hits,
            probabilities,
            rows: _,
        } = self;
        let own = [images, labels, logits, losses, hits].into_iter();
        own.chain(samples).chain(mixed.iter_mut().flatten()).chain(probabilities)
    }

    /// How many numbers of its parameters the model does not learn.
    pub fn frozen_count(&self) -> usize {
        let frozen = self.with_role(Role::Parameter).filter(|(_, tensor)| tensor.frozen);
        frozen.map(|(_, tensor)| tensor.spec.shape.elements()).sum()
    }

    /// How many numbers the model's parameters have.
    pub fn parameter_count(&self) -> usize {
        let count = |tensor: &Tensor| tensor.spec.shape.elements() * tensor.shard.map_or(1, |shard| shard.of);
        self.with_role(Role::Parameter).map(|(_, tensor)| count(tensor)).sum()
    }

    /// Images in one step of one rank.
    pub fn batch(&self) -> usize {
        self.tensor(self.images).spec.shape.batch()
    }

    /// (C,H,W) of an image, of which the graph may read some rows.
    pub fn image(&self) -> Shape {
        let mut image = self.tensor(self.images).spec.shape.0[1..].to_vec();
        // Pixels have their channels last.
        if self.consumers(self.images).any(|reader| matches!(self.node(reader).op, Op::Normalise { .. })) {
            image.rotate_right(1);
        }
        image[1] = self.rows.map_or(image[1], |rows| rows.height);
        Shape(image)
    }

    /// Classes that the model tells apart, or channels of what it gives.
    pub fn classes(&self) -> usize {
        self.tensor(self.logits).spec.shape.channels()
    }

    /// Whether what it gives can be scores of classes of images, one a class.
    pub fn gives_scores(&self) -> bool {
        self.tensor(self.logits).spec.shape.rank() == 2
    }

    /// The network with this much of the loss's target spread evenly over all classes.
    pub fn smooth_labels(mut self, share: f32) -> Graph {
        for node in &mut self.nodes {
            if let Op::SoftmaxCrossEntropy { smoothing, .. } = &mut node.op {
                *smoothing = share;
            }
        }
        self
    }

    /// The network also giving the probabilities of classes, or with an objective its output, for the host to read. For
    /// a graph that is tested.
    pub fn with_probabilities(mut self) -> Graph {
        let shape = self.tensor(self.logits).spec.shape.clone();
        let is_given = self.objective().is_some() || self.ends_in_shares().is_some();
        let op = if is_given { Op::Reshape } else { Op::Softmax };
        let spec = Spec { shape, dtype: DType::F32 };
        let probabilities = self.add_tensor(Tensor::new("probabilities", spec, Role::Metric));
        self.nodes.push(Node::new("probabilities", op, vec![self.logits], vec![probabilities]));
        Graph { probabilities: Some(probabilities), forward_nodes: self.forward_nodes + 1, ..self }
    }

    /// What the network ends in where it gives no scores but shares of 1, which a loss of classes makes by itself. What
    /// clips or scales them changes nothing of that.
    pub fn ends_in_shares(&self) -> Option<&'static str> {
        let elements = |id: TensorId| self.tensor(id).spec.shape.elements();
        // A file's numbers may all be weights.
        let is_constant = |id: &&TensorId| match self.tensor(**id).role {
            Role::Parameter => elements(**id) == 1,
            role => role == Role::Constant,
        };
        let mut last = self.logits;
        loop {
            let node = self.nodes.iter().find(|node| node.outputs.contains(&last))?;
            match node.op {
                Op::Activation(Activation::Relu { max }) if max <= 1.0 => return Some("a hard sigmoid"),
                Op::Activation(Activation::Sigmoid | Activation::HardSigmoid) => return Some("a sigmoid"),
                Op::Softmax => return Some("a softmax"),
                Op::Reshape | Op::Permute(_) | Op::Activation(Activation::Relu { .. }) => {
                    last = node.inputs[0]
                }
                // Scaled by a number.
                Op::Expand { .. } if elements(node.inputs[0]) == elements(last) => last = node.inputs[0],
                Op::Binary(_) if node.inputs.iter().any(|id| is_constant(&id)) => {
                    last = *node.inputs.iter().find(|id| !is_constant(id))?;
                }
                _ => return None,
            }
        }
    }

    /// The network learning from mixed samples, which have two labels each. For a forward graph.
    pub fn mix_labels(mut self) -> Graph {
        let shape = self.tensor(self.labels).spec.shape.clone();
        let mixed = [("others", DType::I32), ("shares", DType::F32)].map(|(name, dtype)| {
            self.add_tensor(Tensor::new(name, Spec { shape: shape.clone(), dtype }, Role::Input))
        });
        for node in &mut self.nodes {
            if node.op.is_loss() {
                node.inputs.extend(mixed);
            }
        }
        Graph { mixed: Some(mixed), ..self }
    }

    /// The network reading pixels (N,H,W,C), which `Op::Normalise` makes the images of. For a forward graph.
    pub fn from_pixels(mut self, scale: [f32; 3], shift: [f32; 3]) -> Graph {
        let mut pixels = self.tensor(self.images).clone();
        pixels.name = "pixels".into();
        pixels.spec.dtype = DType::U8;
        pixels.spec.shape.0[1..].rotate_left(1);
        self.tensors[self.images.0].role = Role::Activation;
        let pixels = self.add_tensor(pixels);
        let op = Op::Normalise { scale, shift };
        self.nodes.insert(0, Node::new("images", op, vec![pixels, self.labels], vec![self.images]));
        Graph { images: pixels, forward_nodes: self.forward_nodes + 1, ..self }
    }

    /// The nodes that read a tensor.
    pub fn consumers(&self, id: TensorId) -> impl Iterator<Item = NodeId> {
        self.nodes
            .iter()
            .enumerate()
            .filter(move |(_, node)| node.inputs.contains(&id))
            .map(|(index, _)| NodeId(index))
    }
}

/// Tensors, and all that they are computed from.
fn with_all_behind(mut found: Vec<bool>, nodes: &[Node]) -> Vec<bool> {
    for node in nodes.iter().rev() {
        if node.outputs.iter().any(|id| found[id.0]) {
            node.inputs.iter().for_each(|id| found[id.0] = true);
        }
    }
    found
}
