//! Building a forward graph, layer by layer. What a layer is made of is said with its ops (`ops`).
//!
//! Shapes are checked as layers are added: an input too small for a layer is named with that layer, since a
//! user's `--image-size` or `--data` can cause it.

use std::collections::HashSet;
use std::sync::Arc;

use super::{DType, Graph, Init, Node, Op, Role, SampleShape, Shape, Spec, Tensor, TensorId, Volume, dims};
use crate::error::{Error, Result};

/// How a weight or a bias starts, in terms of its layer (std: standard deviation).
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum InitScheme {
    /// All zero.
    Zero,
    /// PyTorch's default, for biases too: He et al. 2015 with a = √5, which is uniform in ±1/√fan_in.
    Uniform,
    /// He et al. 2015 for layers before a ReLU, uniform: variance 2/fan_in.
    UniformFanIn,
    /// Uniform in ±1/√fan_out.
    UniformFanOut,
    /// Glorot and Bengio 2010: uniform with variance 2/(fan_in + fan_out).
    Glorot,
    /// Normally distributed around 0.
    Normal {
        /// Standard deviation.
        std: f32,
    },
    /// He et al. 2015 for layers before a ReLU, keeping the size of what goes forward: normal with variance 2/fan_in.
    NormalFanIn,
    /// He et al. 2015, normal, keeping the size of gradients: variance 2/fan_out.
    NormalFanOut,
}

impl InitScheme {
    /// For a layer whose outputs are sums of so many products, and whose inputs take part in so many sums.
    pub fn of(self, fan_in: usize, fan_out: usize) -> Init {
        let he = |fan: usize| Init::Normal { std: (2.0 / fan as f32).sqrt() };
        match self {
            InitScheme::Zero => Init::Zero,
            InitScheme::Uniform => Init::Uniform { bound: 1.0 / (fan_in as f32).sqrt() },
            InitScheme::UniformFanIn => Init::Uniform { bound: (6.0 / fan_in as f32).sqrt() },
            InitScheme::UniformFanOut => Init::Uniform { bound: 1.0 / (fan_out as f32).sqrt() },
            InitScheme::Glorot => Init::Uniform { bound: (6.0 / (fan_in + fan_out) as f32).sqrt() },
            InitScheme::Normal { std } => Init::Normal { std },
            InitScheme::NormalFanIn => he(fan_in),
            InitScheme::NormalFanOut => he(fan_out),
        }
    }
}

/// A graph under construction.
///
/// ```
/// # extern crate dltrain_core as dltrain;
/// use dltrain::graph::{Builder, Conv, Pool};
///
/// // Eight grey images of 28×28 pixels; tensors are (N, C, H, W).
/// let (mut net, x) = Builder::new("small", 8, [1, 28, 28]);
/// let x = net.conv("conv1", x, 32, Conv::square(3).padding(1))?;
/// let x = net.relu("relu1", x);
/// let x = net.max_pool("pool1", x, Pool::square(2))?;
/// assert_eq!(net.shape(x).nchw(), Some([8, 32, 14, 14]));
/// let x = net.flatten("flatten", x);
/// let logits = net.linear("fc", x, 10);
///
/// let graph = net.finish(logits);
/// assert_eq!(graph.parameter_count(), (32 * 9 + 32) + (10 * 32 * 14 * 14 + 10));
/// // With its backward pass there is a gradient for each of the four parameters.
/// let graph = graph.simplify().differentiate();
/// assert_eq!(graph.with_role(dltrain::graph::Role::Gradient).count(), 4);
/// # Ok::<(), dltrain::error::Error>(())
/// ```
pub struct Builder {
    pub(super) name: String,
    pub(super) tensors: Vec<Tensor>,
    pub(super) nodes: Vec<Node>,
    pub(super) images: TensorId,
    pub(super) dropouts: u32,
    /// Whether batch normalisation is to take its statistics from the batch.
    pub(super) trains: bool,
    /// Logits of auxiliary heads, with their names and the weights of their losses.
    auxiliary: Vec<(String, TensorId, f32)>,
    /// How weight and bias start.
    pub(super) convolutions: [InitScheme; 2],
    pub(super) linears: [InitScheme; 2],
}

impl Builder {
    /// Starts a network for `batch` images of shape (C, H, W), or cubes of shape (C, D, H, W). Returns the builder and
    /// the tensor of these.
    pub fn new(name: &str, batch: usize, image: impl Into<SampleShape>) -> (Builder, TensorId) {
        let mut builder = Builder {
            name: name.to_string(),
            tensors: Vec::new(),
            nodes: Vec::new(),
            images: TensorId(0),
            dropouts: 0,
            trains: true,
            auxiliary: Vec::new(),
            convolutions: [InitScheme::Uniform; 2],
            linears: [InitScheme::Uniform; 2],
        };
        let shape = Shape([&[batch], &image.into()[..]].concat());
        let images = builder.tensor("images", shape, DType::F32, Role::Input);
        (builder, images)
    }

    /// The graph will only be evaluated: batch normalisation may have a single value a channel.
    pub fn only_to_test(&mut self) {
        self.trains = false;
    }

    /// How the convolutions added from here on start.
    pub fn init_convolutions(&mut self, weight: InitScheme, bias: InitScheme) {
        self.convolutions = [weight, bias];
    }

    /// How the linear layers added from here on start.
    pub fn init_linears(&mut self, weight: InitScheme, bias: InitScheme) {
        self.linears = [weight, bias];
    }

    /// The shape of a tensor that was added.
    pub fn shape(&self, id: TensorId) -> &Shape {
        &self.tensors[id.0].spec.shape
    }

    /// The parameters and statistics of the layer that was added last, in the order of its op.
    pub fn kept_of_last(&self) -> Vec<TensorId> {
        let inputs = self.nodes.last().map_or(&[][..], |node| &node.inputs);
        let is_kept = |id: &&TensorId| matches!(self.tensors[id.0].role, Role::Parameter | Role::Statistic);
        inputs.iter().filter(is_kept).copied().collect()
    }

    /// Whether a tensor is computed from another one.
    pub fn depends(&self, id: TensorId, on: TensorId) -> bool {
        self.wanted_by(id)[on.0]
    }

    /// The names of the tensors that one is computed from.
    pub fn names_behind(&self, id: TensorId) -> HashSet<&str> {
        let wanted = self.wanted_by(id).into_iter().zip(&self.tensors);
        wanted.filter_map(|(wanted, tensor)| wanted.then_some(&*tensor.name)).collect()
    }

    /// Of every tensor, whether this one is computed from it.
    fn wanted_by(&self, id: TensorId) -> Vec<bool> {
        let mut wanted = vec![false; self.tensors.len()];
        wanted[id.0] = true;
        super::with_all_behind(wanted, &self.nodes)
    }

    /// Gives a tensor another name than its layer's, such as a file has for it.
    pub fn rename(&mut self, id: TensorId, name: &str) {
        self.tensors[id.0].name = name.into();
    }

    /// Adds a head that helps in training only: `weight` times the softmax cross-entropy of these logits is added to
    /// the loss.
    pub fn auxiliary_head(&mut self, name: &str, logits: TensorId, weight: f32) {
        self.auxiliary.push((name.to_string(), logits, weight));
    }

    /// Ends the network: softmax cross-entropy of these logits with the labels. Logits that are no scores (N,K) want an
    /// objective (`Graph::with_objective`) before the graph is planned.
    pub fn finish(mut self, logits: TensorId) -> Graph {
        let labels = self.tensor("labels", dims([self.shape(logits).batch()]), DType::I32, Role::Input);
        let [mut losses, hits] = self.loss("loss", logits, labels, 1.0);
        for (name, logits, weight) in std::mem::take(&mut self.auxiliary) {
            let [more, _] = self.loss(&format!("{name}.loss"), logits, labels, weight);
            let shape = self.shape(losses).clone();
            losses = self.node(&format!("{name}.add"), Op::Add { relu: false }, vec![losses, more], shape);
        }
        for id in [losses, hits] {
            self.tensors[id.0].role = Role::Metric;
        }
        let forward_nodes = self.nodes.len();
        Graph {
            name: self.name,
            tensors: self.tensors,
            nodes: self.nodes,
            forward_nodes,
            recomputed: Vec::new(),
            images: self.images,
            labels,
            samples: None,
            mixed: None,
            logits,
            losses,
            hits,
            probabilities: None,
            rows: None,
        }
    }

    /// (N, C) and (D, H, W) of images or cubes.
    pub(super) fn image_shape(&self, name: &str, x: TensorId) -> Result<([usize; 2], Volume)> {
        self.shape(x)
            .spatial()
            .ok_or_else(|| Error::usage(format!("layer {name}: needs an image, got {}", self.shape(x))))
    }

    /// Refuses a layer that does something along the depth of what has none.
    pub(super) fn has_depth_of(&self, name: &str, x: TensorId, flat: bool) -> Result<()> {
        match flat || self.shape(x).rank() == 5 {
            true => Ok(()),
            false => Err(Error::usage(format!("layer {name}: is for cubes, got {}", self.shape(x)))),
        }
    }

    pub(super) fn too_small(&self, name: &str, x: TensorId, kernel: Volume, padding: Volume) -> Error {
        let shape = self.shape(x);
        let (_, size) = shape.spatial().unwrap_or_default();
        let said = |size: Volume| Shape(shape.along(&size).to_vec());
        let room = [0, 1, 2].map(|axis| size[axis] + 2 * padding[axis]);
        Error::usage(format!(
            "model {}: the samples are too small: layer {name} has a {} kernel, larger than its {} input",
            self.name,
            said(kernel),
            said(room),
        ))
    }

    pub(super) fn weight(&mut self, layer: &str, shape: Shape, init: Init) -> TensorId {
        self.parameter(format!("{layer}.weight"), shape, init, true)
    }

    pub(super) fn bias(&mut self, layer: &str, features: usize, init: Init) -> TensorId {
        self.parameter(format!("{layer}.bias"), dims([features]), init, false)
    }

    /// A parameter that is no layer's weight or bias, for `binary` and its like: of one operand of one op.
    pub fn learned(&mut self, name: &str, shape: Shape, init: Init, decay: bool) -> TensorId {
        self.parameter(name.into(), shape, init, decay)
    }

    /// Makes a parameter numbers that stay as they are, last dimension fastest.
    pub fn fix(&mut self, parameter: TensorId, numbers: &[f32]) {
        let tensor = &mut self.tensors[parameter.0];
        (tensor.role, tensor.init, tensor.decay) = (Role::Constant, None, false);
        tensor.values = Some(Arc::from(numbers));
    }

    /// What several layers read of a parameter, of which an op reads another tensor alone: all have its gradient.
    pub fn shared(&mut self, parameter: TensorId) -> TensorId {
        let Tensor { name, spec, .. } = self.tensors[parameter.0].clone();
        let name = format!("{name}.shared");
        let y = self.tensor(&name, spec.shape, spec.dtype, Role::Activation);
        let inputs = self.nodes.iter_mut().flat_map(|node| &mut node.inputs);
        inputs.filter(|input| **input == parameter).for_each(|input| *input = y);
        self.nodes.insert(0, Node::new(name, Op::Reshape, vec![parameter], vec![y]));
        y
    }

    /// Numbers that stay as they are, last dimension fastest. One that is there already is given again.
    ///
    /// # Errors
    /// `Usage` where they are not as many as the shape has.
    pub fn constant(&mut self, name: &str, shape: Shape, values: &[f32]) -> Result<TensorId> {
        if values.len() != shape.elements() {
            return Err(Error::usage(format!("{name}: {} numbers for {shape}", values.len())));
        }
        let is_same =
            |tensor: &Tensor| tensor.spec.shape == shape && tensor.values.as_deref() == Some(values);
        if let Some(index) = self.tensors.iter().position(is_same) {
            return Ok(TensorId(index));
        }
        let id = self.tensor(name, shape, DType::F32, Role::Constant);
        self.tensors[id.0].values = Some(Arc::from(values));
        Ok(id)
    }

    pub(super) fn parameter(&mut self, name: String, shape: Shape, init: Init, decay: bool) -> TensorId {
        let id = self.tensor(&name, shape, DType::F32, Role::Parameter);
        let tensor = &mut self.tensors[id.0];
        tensor.init = Some(init);
        tensor.decay = decay;
        id
    }

    pub(super) fn node(&mut self, name: &str, op: Op, inputs: Vec<TensorId>, shape: Shape) -> TensorId {
        let output = self.tensor(name, shape, DType::F32, Role::Activation);
        self.nodes.push(Node::new(name, op, inputs, vec![output]));
        output
    }

    /// A node of one input that leaves something for its backward op.
    pub(super) fn saving_node(&mut self, name: &str, op: Op, x: TensorId, shape: Shape) -> TensorId {
        let y = self.node(name, op, vec![x], shape.clone());
        let saved = self.tensor(&format!("{name}.saved"), shape, DType::Saved, Role::Activation);
        self.nodes.last_mut().expect("the node just added").outputs.push(saved);
        y
    }

    pub(super) fn tensor(&mut self, name: &str, shape: Shape, dtype: DType, role: Role) -> TensorId {
        self.tensors.push(Tensor::new(name, Spec { shape, dtype }, role));
        TensorId(self.tensors.len() - 1)
    }
}
