//! Building a forward graph, layer by layer.
//!
//! Shapes are checked as layers are added: an input too small for a layer is named with that layer, since a
//! user's `--image-size` or `--data` can cause it.

use super::{
    BatchNorm, Conv2d, DType, Graph, Init, LocalResponseNorm, Node, Op, Pool2d, Role, Shape, Spec, Tensor,
    TensorId, dims, windows,
};
use crate::error::{Error, Result};

/// How a weight or a bias starts, in terms of its layer (std: standard deviation).
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Start {
    /// All zero.
    Zero,
    /// PyTorch's default, for biases too: He et al. 2015 with a = √5, which is uniform in ±1/√fan_in.
    Uniform,
    /// Normally distributed around 0.
    Normal {
        /// Standard deviation.
        std: f32,
    },
    /// He et al. 2015 for layers before a ReLU, keeping the size of what goes forward: normal with variance 2/fan_in.
    NormalFanIn,
    /// The same, keeping the size of gradients: variance 2/fan_out.
    NormalFanOut,
}

impl Start {
    fn of(self, fan_in: usize, fan_out: usize) -> Init {
        let he = |fan: usize| Init::Normal { std: (2.0 / fan as f32).sqrt() };
        match self {
            Start::Zero => Init::Zero,
            Start::Uniform => Init::Uniform { bound: 1.0 / (fan_in as f32).sqrt() },
            Start::Normal { std } => Init::Normal { std },
            Start::NormalFanIn => he(fan_in),
            Start::NormalFanOut => he(fan_out),
        }
    }
}

/// A graph under construction.
///
/// ```
/// use dltrain::graph::{Builder, Conv2d, Pool2d};
///
/// // Eight grey images of 28×28 pixels; tensors are (N, C, H, W).
/// let (mut net, x) = Builder::new("small", 8, [1, 28, 28]);
/// let x = net.conv2d("conv1", x, 32, Conv2d::square(3).padding(1))?;
/// let x = net.relu("relu1", x);
/// let x = net.max_pool("pool1", x, Pool2d::square(2))?;
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
    name: String,
    tensors: Vec<Tensor>,
    nodes: Vec<Node>,
    images: TensorId,
    dropouts: u32,
    /// Whether batch normalisation is to take its statistics from the batch.
    trains: bool,
    /// Logits of auxiliary heads, with their names and the weights of their losses.
    auxiliary: Vec<(String, TensorId, f32)>,
    /// How weight and bias start.
    convolutions: [Start; 2],
    linears: [Start; 2],
}

impl Builder {
    /// Starts a network for `batch` images of shape (C, H, W). Returns the builder and the image tensor.
    pub fn new(name: &str, batch: usize, image: [usize; 3]) -> (Builder, TensorId) {
        let mut builder = Builder {
            name: name.to_string(),
            tensors: Vec::new(),
            nodes: Vec::new(),
            images: TensorId(0),
            dropouts: 0,
            trains: true,
            auxiliary: Vec::new(),
            convolutions: [Start::Uniform; 2],
            linears: [Start::Uniform; 2],
        };
        let [c, h, w] = image;
        let images = builder.tensor("images", dims([batch, c, h, w]), DType::F32, Role::Input);
        (builder, images)
    }

    /// The graph will only be evaluated: batch normalisation may have a single value a channel.
    pub fn only_to_test(&mut self) {
        self.trains = false;
    }

    /// How the convolutions added from here on start.
    pub fn init_convolutions(&mut self, weight: Start, bias: Start) {
        self.convolutions = [weight, bias];
    }

    /// How the linear layers added from here on start.
    pub fn init_linears(&mut self, weight: Start, bias: Start) {
        self.linears = [weight, bias];
    }

    /// The shape of a tensor that was added.
    pub fn shape(&self, id: TensorId) -> &Shape {
        &self.tensors[id.0].spec.shape
    }

    /// A convolution to `channels` output channels. Parameters `name.weight`, `name.bias`.
    pub fn conv2d(&mut self, name: &str, x: TensorId, channels: usize, conv: Conv2d) -> Result<TensorId> {
        let [n, c, h, w] = self.image_shape(name, x)?;
        let divides = |channels: usize| conv.groups > 0 && channels.is_multiple_of(conv.groups);
        if !divides(c) || !divides(channels) {
            return Err(Error::usage(format!(
                "layer {name}: {c} input and {channels} output channels do not divide into {} groups",
                conv.groups
            )));
        }
        let size = windows([h, w], conv.kernel, conv.stride, conv.padding);
        let [oh, ow] = size.ok_or_else(|| self.too_small(name, conv.kernel, [h, w], conv.padding))?;
        let [kh, kw] = conv.kernel;
        // As PyTorch counts: groups divide what an output reads, not how many there are.
        let (fan_in, fan_out) = (c / conv.groups * kh * kw, channels * kh * kw);
        let [weight, bias] = self.convolutions.map(|start| start.of(fan_in, fan_out));
        let mut inputs = vec![x, self.weight(name, dims([channels, c / conv.groups, kh, kw]), weight)];
        if conv.bias {
            inputs.push(self.bias(name, channels, bias));
        }
        Ok(self.node(name, Op::Conv2d(conv), inputs, dims([n, channels, oh, ow])))
    }

    /// A fully connected layer to `features` outputs, with bias.
    pub fn linear(&mut self, name: &str, x: TensorId, features: usize) -> TensorId {
        let (batch, fan_in) = (self.shape(x).batch(), self.shape(x).per_sample());
        let [weight, bias] = self.linears.map(|start| start.of(fan_in, features));
        let weight = self.weight(name, dims([features, fan_in]), weight);
        let bias = self.bias(name, features, bias);
        self.node(
            name,
            Op::Linear { bias: true, relu: false },
            vec![x, weight, bias],
            dims([batch, features]),
        )
    }

    /// Batch normalisation. Parameters `name.weight` and `name.bias`, statistics `name.running_mean` and
    /// `name.running_var`.
    ///
    /// # Errors
    /// `Usage` when there is only one value a channel: its variance says nothing to a training.
    pub fn batch_norm(&mut self, name: &str, x: TensorId, norm: BatchNorm) -> Result<TensorId> {
        let [n, c, h, w] = self.image_shape(name, x)?;
        if self.trains && n * h * w < 2 {
            return Err(Error::usage(format!(
                "model {}: layer {name} would normalise over a single value a channel (batch {n}, image {h}×{w}); \
                 use --batch 2 or more, or larger images",
                self.name
            )));
        }
        let shape = self.shape(x).clone();
        let weight = self.parameter(format!("{name}.weight"), dims([c]), Init::One, false);
        let bias = self.bias(name, c, Init::Zero);
        let [mean, variance] =
            [("running_mean", Init::Zero), ("running_var", Init::One)].map(|(of, init)| {
                let id = self.tensor(&format!("{name}.{of}"), dims([c]), DType::F32, Role::Statistic);
                self.tensors[id.0].init = Some(init);
                id
            });
        let y = self.node(name, Op::BatchNorm(norm), vec![x, weight, bias, mean, variance], shape);
        let of_batch = ["mean", "variance"]
            .map(|of| self.tensor(&format!("{name}.{of}"), dims([c]), DType::F32, Role::Activation));
        let more = of_batch.into_iter().chain([mean, variance]);
        self.nodes.last_mut().expect("the node just added").outputs.extend(more);
        Ok(y)
    }

    /// Local response normalisation.
    pub fn local_response_norm(
        &mut self,
        name: &str,
        x: TensorId,
        norm: LocalResponseNorm,
    ) -> Result<TensorId> {
        self.image_shape(name, x)?;
        if norm.size.is_multiple_of(2) {
            return Err(Error::internal(format!("layer {name}: {} channels have no middle", norm.size)));
        }
        let shape = self.shape(x).clone();
        Ok(self.saving_node(name, Op::LocalResponseNorm(norm), x, shape))
    }

    /// The larger of each element and 0.
    pub fn relu(&mut self, name: &str, x: TensorId) -> TensorId {
        let shape = self.shape(x).clone();
        self.node(name, Op::Relu { max: f32::INFINITY }, vec![x], shape)
    }

    /// ReLU cut off at 6.
    pub fn relu6(&mut self, name: &str, x: TensorId) -> TensorId {
        let shape = self.shape(x).clone();
        self.node(name, Op::Relu { max: 6.0 }, vec![x], shape)
    }

    /// The largest element of each window.
    ///
    /// # Errors
    /// `Usage` when the image is smaller than a window.
    pub fn max_pool(&mut self, name: &str, x: TensorId, pool: Pool2d) -> Result<TensorId> {
        let shape = self.pooled(name, x, pool)?;
        Ok(self.saving_node(name, Op::MaxPool(pool), x, shape))
    }

    /// The mean of each window.
    ///
    /// # Errors
    /// `Usage` when the image is smaller than a window.
    pub fn avg_pool(&mut self, name: &str, x: TensorId, pool: Pool2d) -> Result<TensorId> {
        if pool.ceil {
            return Err(Error::internal(format!(
                "layer {name}: only max pooling may reach beyond the padding"
            )));
        }
        let shape = self.pooled(name, x, pool)?;
        Ok(self.node(name, Op::AvgPool(pool), vec![x], shape))
    }

    /// Average pooling to images of this (height, width), whatever the input's: `Op::AdaptiveAvgPool`.
    pub fn adaptive_avg_pool(&mut self, name: &str, x: TensorId, size: [usize; 2]) -> Result<TensorId> {
        let [n, c, _, _] = self.image_shape(name, x)?;
        Ok(self.node(name, Op::AdaptiveAvgPool, vec![x], dims([n, c, size[0], size[1]])))
    }

    /// The mean of each channel: (N,C,H,W) → (N,C,1,1).
    pub fn global_avg_pool(&mut self, name: &str, x: TensorId) -> Result<TensorId> {
        let [_, _, h, w] = self.image_shape(name, x)?;
        self.avg_pool(name, x, Pool2d { kernel: [h, w], ..Pool2d::square(1) })
    }

    /// Drops each element with probability `p` in training; does nothing in evaluation.
    pub fn dropout(&mut self, name: &str, x: TensorId, p: f32) -> TensorId {
        let shape = self.shape(x).clone();
        self.dropouts += 1;
        self.node(name, Op::Dropout { p, layer: self.dropouts }, vec![x], shape)
    }

    /// (N, …) → (N, everything else).
    pub fn flatten(&mut self, name: &str, x: TensorId) -> TensorId {
        let shape = dims([self.shape(x).batch(), self.shape(x).per_sample()]);
        self.node(name, Op::Reshape, vec![x], shape)
    }

    /// The channels of several images of one size, one after the other.
    pub fn concat(&mut self, name: &str, parts: &[TensorId]) -> Result<TensorId> {
        let shapes: Vec<[usize; 4]> =
            parts.iter().map(|&part| self.image_shape(name, part)).collect::<Result<_>>()?;
        let channels = shapes.iter().map(|shape| shape[1]).sum();
        match shapes.first() {
            Some(&[n, _, h, w]) if shapes.iter().all(|&[n2, _, h2, w2]| [n, h, w] == [n2, h2, w2]) => {
                Ok(self.node(name, Op::Concat, parts.to_vec(), dims([n, channels, h, w])))
            }
            _ => Err(Error::internal(format!("layer {name}: cannot put {shapes:?} together"))),
        }
    }

    /// The elementwise sum of two tensors of one shape.
    pub fn add(&mut self, name: &str, a: TensorId, b: TensorId) -> Result<TensorId> {
        if self.shape(a) != self.shape(b) {
            return Err(Error::internal(format!("{name}: {} + {}", self.shape(a), self.shape(b))));
        }
        let shape = self.shape(a).clone();
        Ok(self.node(name, Op::Add { relu: false }, vec![a, b], shape))
    }

    /// Adds a head that helps in training only: `weight` times the softmax cross-entropy of these logits is added to
    /// the loss.
    pub fn auxiliary_head(&mut self, name: &str, logits: TensorId, weight: f32) {
        self.auxiliary.push((name.to_string(), logits, weight));
    }

    /// Ends the network: softmax cross-entropy of these logits with the labels.
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
            mixed: None,
            logits,
            losses,
            hits,
        }
    }

    /// Losses and hits.
    fn loss(&mut self, name: &str, logits: TensorId, labels: TensorId, weight: f32) -> [TensorId; 2] {
        let batch = self.shape(labels).clone();
        let op = Op::SoftmaxCrossEntropy { smoothing: 0.0, weight };
        let losses = self.node(name, op, vec![logits, labels], batch.clone());
        let hits = self.tensor(&format!("{name}.hits"), batch, DType::F32, Role::Activation);
        self.nodes.last_mut().expect("the node just added").outputs.push(hits);
        [losses, hits]
    }

    fn pooled(&self, name: &str, x: TensorId, pool: Pool2d) -> Result<Shape> {
        let [n, c, h, w] = self.image_shape(name, x)?;
        let size = pool.windows([h, w]);
        let [oh, ow] = size.ok_or_else(|| self.too_small(name, pool.kernel, [h, w], pool.padding))?;
        Ok(dims([n, c, oh, ow]))
    }

    fn image_shape(&self, name: &str, x: TensorId) -> Result<[usize; 4]> {
        self.shape(x)
            .nchw()
            .ok_or_else(|| Error::internal(format!("layer {name}: needs an image, got {}", self.shape(x))))
    }

    fn too_small(&self, name: &str, kernel: [usize; 2], input: [usize; 2], padding: [usize; 2]) -> Error {
        Error::usage(format!(
            "model {}: the images are too small: layer {name} has a {}×{} kernel, larger than its {}×{} input",
            self.name,
            kernel[0],
            kernel[1],
            input[0] + 2 * padding[0],
            input[1] + 2 * padding[1],
        ))
    }

    fn weight(&mut self, layer: &str, shape: Shape, init: Init) -> TensorId {
        self.parameter(format!("{layer}.weight"), shape, init, true)
    }

    fn bias(&mut self, layer: &str, features: usize, init: Init) -> TensorId {
        self.parameter(format!("{layer}.bias"), dims([features]), init, false)
    }

    fn parameter(&mut self, name: String, shape: Shape, init: Init, decay: bool) -> TensorId {
        let id = self.tensor(&name, shape, DType::F32, Role::Parameter);
        let tensor = &mut self.tensors[id.0];
        tensor.init = Some(init);
        tensor.decay = decay;
        id
    }

    fn node(&mut self, name: &str, op: Op, inputs: Vec<TensorId>, shape: Shape) -> TensorId {
        let output = self.tensor(name, shape, DType::F32, Role::Activation);
        self.nodes.push(Node { name: name.into(), op, inputs, outputs: vec![output], forward: None });
        output
    }

    /// A node of one input that leaves something for its backward op.
    fn saving_node(&mut self, name: &str, op: Op, x: TensorId, shape: Shape) -> TensorId {
        let y = self.node(name, op, vec![x], shape.clone());
        let saved = self.tensor(&format!("{name}.saved"), shape, DType::Saved, Role::Activation);
        self.nodes.last_mut().expect("the node just added").outputs.push(saved);
        y
    }

    fn tensor(&mut self, name: &str, shape: Shape, dtype: DType, role: Role) -> TensorId {
        self.tensors.push(Tensor {
            name: name.into(),
            spec: Spec { shape, dtype },
            role,
            init: None,
            decay: false,
            frozen: false,
            gradient_of: None,
        });
        TensorId(self.tensors.len() - 1)
    }
}
