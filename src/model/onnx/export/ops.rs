//! What each op of a graph becomes in a file. An op without a line in the table does not compile.

use super::super::schema::AttributeProto;
use super::OnnxWriter;
use super::batch::unwritable;
use super::proto::{int, ints, real};
use crate::error::{Error, Result};
use crate::graph::{
    Activation, BatchNorm, Binary, Conv, Graph, MatMul, Node, Op, Pool, Role, TensorId, Volume,
    adaptive_window,
};

/// Whether the op of a node can be written, whatever its numbers are.
pub(super) fn check(graph: &Graph, node: &Node) -> Result<()> {
    let size = |id: TensorId| graph.tensor(id).spec.shape.spatial().map_or([1; 3], |(_, size)| size);
    let [from, to] = [node.inputs[0], node.outputs[0]].map(size);
    let is_uneven = from != to && from[0] > 1 && Pool::adaptive(from, to).is_none();
    match node.op == Op::AdaptiveAvgPool && is_uneven {
        true => Err(unwritable(&node.name, "it averages unlike many places of cubes")),
        false => Ok(()),
    }
}

impl OnnxWriter<'_> {
    /// The table: writes a node, and gives the name of what it computes.
    pub(super) fn value(&mut self, node: &Node) -> Result<String> {
        let name = &node.name;
        match node.op {
            Op::Conv(conv) => self.all(&node.inputs).map(|inputs| self.convolution(node, conv, inputs)),
            Op::ConvBackwardData(conv) => self.transposed(node, conv),
            Op::Linear { relu, .. } => self.linear(node).map(|y| self.relu(relu, name, y)),
            Op::BatchNorm(norm) | Op::BatchNormInference(norm) => self.batch_norm(node, norm),
            Op::LocalResponseNorm(norm) => {
                let [alpha, beta] = [real("alpha", norm.alpha), real("beta", norm.beta)];
                let [bias, size] = [real("bias", norm.k), int("size", norm.size as i64)];
                self.simple(node, "LRN", vec![alpha, beta, bias, size])
            }
            Op::LayerNorm { epsilon, affine } => self.layer_norm(node, epsilon, affine),
            Op::MatMul(of) => self.matmul(node, of),
            Op::Softmax => self.simple(node, "Softmax", vec![int("axis", -1)]),
            Op::Activation(of) => self.activation(node, of),
            Op::MaxPool(pool) => self.max_pool(node, pool),
            Op::AvgPool(pool) => self.average(node, pool),
            Op::AdaptiveAvgPool => self.adaptive(node),
            // What is dropped in training alone.
            Op::Dropout { .. } => self.read(node.inputs[0]),
            Op::Reshape => self.reshape(node),
            Op::Concat { axis } => {
                let axis = int("axis", self.axis(node.outputs[0], axis) as i64);
                self.simple(node, "Concat", vec![axis])
            }
            Op::Slice { axis, from } => self.slice(node, axis, from),
            Op::Pad { axis, before } => self.pad(node, axis, before),
            Op::Permute(order) => self.permute(node, &order.axes()),
            Op::Add { relu } => {
                let y = self.simple(node, "Add", Vec::new())?;
                Ok(self.relu(relu, name, y))
            }
            Op::Binary(of) => {
                let [a, b] = [0, 1].map(|place| self.aligned(node, node.inputs[place]));
                Ok(self.node(name, word(of), vec![a?, b?], Vec::new()))
            }
            Op::Sum { scale } => self.sum(node, scale),
            Op::Expand { scale } => {
                let y = self.expand(node)?;
                Ok(self.scaled(name, y, scale))
            }
            // What a device or a training puts into a graph, and the loss, which no file has.
            Op::Normalise { .. }
            | Op::Lookup { .. }
            | Op::BatchNormMoments
            | Op::Exchange { .. }
            | Op::AllToAll { .. }
            | Op::Halo(_)
            | Op::Trade(_)
            | Op::SoftmaxCrossEntropy { .. }
            | Op::FieldLoss(_)
            | Op::FieldMeans(_)
            | Op::Backward(_)
            | Op::Fused(_) => {
                Err(Error::internal(format!("layer {name}: {} in a network to write", node.op.name())))
            }
        }
    }

    fn all(&mut self, ids: &[TensorId]) -> Result<Vec<String>> {
        ids.iter().map(|&id| self.read(id)).collect()
    }

    /// A node that reads and gives what the graph's does.
    fn simple(&mut self, node: &Node, op: &str, attributes: Vec<AttributeProto>) -> Result<String> {
        let inputs = self.all(&node.inputs)?;
        Ok(self.node(&node.name, op, inputs, attributes))
    }

    /// A ReLU behind a layer, where it has one.
    pub(super) fn relu(&mut self, has: bool, layer: &str, y: String) -> String {
        if has { self.node(&format!("{layer}.relu"), "Relu", vec![y], Vec::new()) } else { y }
    }

    fn scaled(&mut self, layer: &str, y: String, scale: f32) -> String {
        if scale == 1.0 {
            return y;
        }
        let by = self.reals(&format!("{layer}.scale"), &[], &[scale]);
        self.node(&format!("{layer}.scaled"), "Mul", vec![y, by], Vec::new())
    }

    pub(super) fn convolution(&mut self, node: &Node, conv: Conv, inputs: Vec<String>) -> String {
        let (layer, geometry) = (&node.name, self.window(node, &conv));
        let y = self.node(layer, "Conv", inputs, geometry);
        self.relu(conv.relu, layer, y)
    }

    /// What the window's way back does not reach is said by itself.
    fn transposed(&mut self, node: &Node, conv: Conv) -> Result<String> {
        let (x, y) = (self.size(node.inputs[0]), self.size(node.outputs[0]));
        let more = [0, 1, 2].map(|axis| {
            let least = (x[axis] - 1) * conv.stride[axis] + conv.reach()[axis];
            (y[axis] + 2 * conv.padding[axis]).saturating_sub(least)
        });
        let attributes =
            [self.window(node, &conv), vec![ints("output_padding", self.along(node, &more))]].concat();
        self.simple(node, "ConvTranspose", attributes)
    }

    /// Gemm, which reads rows; where an image has several rows, a product along the last axis.
    fn linear(&mut self, node: &Node) -> Result<String> {
        let (x, layer) = (node.inputs[0], &node.name);
        if !self.is_apart(x) && !self.is_apart(node.outputs[0]) {
            let mut inputs = self.all(&node.inputs)?;
            if self.graph.tensor(x).spec.shape.rank() != 2 {
                let flat = vec![inputs[0].clone()];
                inputs[0] = self.node(&format!("{layer}.flatten"), "Flatten", flat, vec![int("axis", 1)]);
            }
            return Ok(self.node(layer, "Gemm", inputs, vec![int("transB", 1)]));
        }
        let weight = self.columns(node)?;
        let x = self.read(x)?;
        let y = self.node(layer, "MatMul", vec![x, weight], Vec::new());
        match node.inputs.get(2) {
            None => Ok(y),
            Some(&bias) => {
                let bias = self.read(bias)?;
                Ok(self.node(&format!("{layer}.add"), "Add", vec![y, bias], Vec::new()))
            }
        }
    }

    /// The weight of a linear layer as a product reads it. One that several layers have is turned by each of them.
    fn columns(&mut self, node: &Node) -> Result<String> {
        let weight = self.graph.tensor(node.inputs[1]);
        if weight.role != Role::Parameter {
            let rows = self.read(node.inputs[1])?;
            let turned = format!("{}.columns", node.name);
            return Ok(self.node(&turned, "Transpose", vec![rows], vec![ints("perm", &[1, 0])]));
        }
        let values = (self.values)(&weight.name)?;
        let [rows, columns] = [weight.spec.shape.batch(), weight.spec.shape.per_sample()];
        let at = |place: usize| values[place % rows * columns + place / rows];
        let transposed: Vec<f32> = (0..values.len()).map(at).collect();
        Ok(self.stored(&weight.name, &[columns, rows], &transposed))
    }

    fn batch_norm(&mut self, node: &Node, norm: BatchNorm) -> Result<String> {
        let mut inputs = self.all(&node.inputs)?;
        let others = inputs.split_off(5);
        // What a running statistic keeps of itself; ours is what it takes in.
        let momentum = (1.0 - f64::from(norm.momentum)) as f32;
        let attributes = vec![real("epsilon", norm.epsilon), real("momentum", momentum)];
        let mut y = self.node(&node.name, "BatchNormalization", inputs, attributes);
        for other in others.into_iter().filter(|_| norm.add) {
            y = self.node(&format!("{}.add", node.name), "Add", vec![y, other], Vec::new());
        }
        Ok(self.relu(norm.relu, &node.name, y))
    }

    /// One without weights is of groups of channels: what ONNX calls an instance is then a group.
    fn layer_norm(&mut self, node: &Node, epsilon: f32, affine: bool) -> Result<String> {
        let shape = self.graph.tensor(node.inputs[0]).spec.shape.clone();
        let mut inputs = self.all(&node.inputs)?;
        if affine {
            let of_row = self.graph.tensor(node.inputs[1]).spec.shape.rank();
            let attributes = vec![int("axis", -(of_row as i64)), real("epsilon", epsilon)];
            return Ok(self.node(&node.name, "LayerNormalization", inputs, attributes));
        }
        let (x, rows) = (node.inputs[0], self.graph.tensor(node.outputs[1]).spec.shape.elements());
        let groups = rows / shape.batch().max(1);
        let are_groups =
            shape.rank() == 3 && shape.0[1] == groups && self.shape(x)[0] == -1 && !self.is_apart(x);
        let channels = if are_groups { groups } else { 1 };
        if !are_groups {
            let width = (shape.elements() / rows.max(1)) as i64;
            let name = std::mem::take(&mut inputs[0]);
            inputs[0] = self.reshaped(&format!("{}.rows", node.name), name, &[-1, 1, width]);
        }
        for (what, number) in [("ones", 1.0), ("zeros", 0.0)] {
            let numbers = vec![number; channels];
            inputs.push(self.constant(&format!("{}.{what}", node.name), &[channels], &numbers));
        }
        let y = self.node(&node.name, "InstanceNormalization", inputs, vec![real("epsilon", epsilon)]);
        Ok(if are_groups { y } else { self.reshaped(&node.name, y, &self.shape(x)) })
    }

    fn matmul(&mut self, node: &Node, of: MatMul) -> Result<String> {
        let mut inputs = self.all(&node.inputs)?;
        for (place, side) in ["left", "right"].into_iter().enumerate().filter(|(at, _)| of.transposed[*at]) {
            let mut order: Vec<usize> = (0..self.shape(node.inputs[place]).len()).collect();
            let last = order.len() - 2;
            order[last..].reverse();
            let layer = format!("{}.{side}", node.name);
            let operand = vec![inputs[place].clone()];
            inputs[place] = self.node(&layer, "Transpose", operand, vec![ints("perm", &order)]);
        }
        // Before the product, as exporters write it: there readers take it for a part of it.
        inputs[0] = self.scaled(&node.name, std::mem::take(&mut inputs[0]), of.scale);
        Ok(self.node(&node.name, "MatMul", inputs, Vec::new()))
    }

    fn activation(&mut self, node: &Node, of: Activation) -> Result<String> {
        let layer = &node.name;
        match of {
            Activation::Relu { max } if max.is_infinite() => self.simple(node, "Relu", Vec::new()),
            Activation::Relu { max } => {
                let x = self.read(node.inputs[0])?;
                let [low, high] = [("min", 0.0), ("max", max)]
                    .map(|(of, limit)| self.reals(&format!("{layer}.{of}"), &[], &[limit]));
                Ok(self.node(layer, "Clip", vec![x, low, high], Vec::new()))
            }
            Activation::LeakyRelu { slope } => self.simple(node, "LeakyRelu", vec![real("alpha", slope)]),
            Activation::Sigmoid => self.simple(node, "Sigmoid", Vec::new()),
            Activation::Silu => {
                let x = self.read(node.inputs[0])?;
                let share = self.node(&format!("{layer}.sigmoid"), "Sigmoid", vec![x.clone()], Vec::new());
                Ok(self.node(layer, "Mul", vec![x, share], Vec::new()))
            }
            Activation::Gelu => self.simple(node, "Gelu", Vec::new()),
            Activation::HardSigmoid => {
                self.simple(node, "HardSigmoid", vec![real("alpha", 1.0 / 6.0), real("beta", 0.5)])
            }
            Activation::HardSwish => self.simple(node, "HardSwish", Vec::new()),
            Activation::Tanh => self.simple(node, "Tanh", Vec::new()),
            Activation::Exp => self.simple(node, "Exp", Vec::new()),
            Activation::Sqrt => self.simple(node, "Sqrt", Vec::new()),
        }
    }

    /// (D, H, W) of images or cubes.
    fn size(&self, id: TensorId) -> Volume {
        self.graph.tensor(id).spec.shape.spatial().unwrap_or(([1; 2], [1; 3])).1
    }

    /// What of depth, height and width the node's images or cubes have.
    fn along<'a>(&self, node: &Node, of: &'a Volume) -> &'a [usize] {
        self.graph.tensor(node.inputs[0]).spec.shape.along(of)
    }

    /// The geometry of a convolution.
    fn window(&self, node: &Node, conv: &Conv) -> Vec<AttributeProto> {
        let padding = self.along(node, &conv.padding);
        vec![
            int("group", conv.groups as i64),
            ints("kernel_shape", self.along(node, &conv.kernel)),
            ints("strides", self.along(node, &conv.stride)),
            ints("pads", &[padding, padding].concat()),
            ints("dilations", self.along(node, &conv.dilation)),
        ]
    }

    fn pool(&mut self, node: &Node, op: &str, pool: Pool, rest: AttributeProto) -> Result<String> {
        let x = self.read(node.inputs[0])?;
        let attributes = vec![
            ints("kernel_shape", self.along(node, &pool.kernel)),
            ints("strides", self.along(node, &pool.stride)),
            ints("pads", &[self.along(node, &pool.padding); 2].concat()),
            rest,
        ];
        Ok(self.node(&node.name, op, vec![x], attributes))
    }

    fn max_pool(&mut self, node: &Node, pool: Pool) -> Result<String> {
        let (x, y) = (self.size(node.inputs[0]), self.size(node.outputs[0]));
        // Readers differ in whether they count a last window that covers nothing; where there is one, what is left
        // without it is what is left of the rounding down.
        let counts = |axis: usize| {
            let room = (x[axis] + 2 * pool.padding[axis]).saturating_sub(pool.kernel[axis]);
            room.div_ceil(pool.stride[axis]) + 1 == y[axis]
        };
        let ceil = pool.ceil && (0..3).all(counts);
        self.pool(node, "MaxPool", pool, int("ceil_mode", i64::from(ceil)))
    }

    fn average(&mut self, node: &Node, pool: Pool) -> Result<String> {
        let counts = int("count_include_pad", i64::from(pool.count_include_pad));
        self.pool(node, "AveragePool", pool, counts)
    }

    /// An ordinary pooling where windows are alike; else a product from each side with the shares that each place has.
    fn adaptive(&mut self, node: &Node) -> Result<String> {
        let (from, to) = (self.size(node.inputs[0]), self.size(node.outputs[0]));
        let x = self.read(node.inputs[0])?;
        if from == to {
            return Ok(x);
        }
        if let Some(pool) = Pool::adaptive(from, to) {
            return self.average(node, pool);
        }
        check(self.graph, node)?;
        let ([_, h, w], [_, oh, ow]) = (from, to);
        let share = |place: usize, input: usize, output: usize| {
            let (row, column) = (place / input, place % input);
            let window = adaptive_window(row, input, output);
            if window.contains(&column) { 1.0 / window.len() as f32 } else { 0.0 }
        };
        let rows: Vec<f32> = (0..oh * h).map(|place| share(place, h, oh)).collect();
        let columns: Vec<f32> = (0..w * ow).map(|place| share(place % ow * w + place / ow, w, ow)).collect();
        let rows = self.constant(&format!("{}.rows", node.name), &[oh, h], &rows);
        // Three axes: an importer takes a matrix behind a MatMul for the weight of a linear layer, which is learned.
        let columns = self.constant(&format!("{}.columns", node.name), &[1, w, ow], &columns);
        let y = self.node(&format!("{}.down", node.name), "MatMul", vec![rows, x], Vec::new());
        Ok(self.node(&node.name, "MatMul", vec![y, columns], Vec::new()))
    }

    /// Nothing where the file has that shape already.
    fn reshape(&mut self, node: &Node) -> Result<String> {
        let shape = self.shape(node.outputs[0]);
        let x = self.read(node.inputs[0])?;
        if self.shape(node.inputs[0]) == shape {
            return Ok(x);
        }
        let shape = self.integers(&format!("{}.shape", node.name), &shape);
        Ok(self.node(&node.name, "Reshape", vec![x, shape], Vec::new()))
    }

    fn slice(&mut self, node: &Node, axis: usize, from: usize) -> Result<String> {
        let length = self.graph.tensor(node.outputs[0]).spec.shape.0[axis];
        let along = self.axis(node.inputs[0], axis);
        let mut inputs = self.all(&node.inputs)?;
        for (what, number) in [("starts", from), ("ends", from + length), ("axes", along)] {
            inputs.push(self.integers(&format!("{}.{what}", node.name), &[number as i64]));
        }
        Ok(self.node(&node.name, "Slice", inputs, Vec::new()))
    }

    fn pad(&mut self, node: &Node, axis: usize, before: usize) -> Result<String> {
        let [from, to] = [node.inputs[0], node.outputs[0]].map(|id| self.graph.tensor(id).spec.shape.0[axis]);
        let (rank, along) = (self.shape(node.inputs[0]).len(), self.axis(node.inputs[0], axis));
        let mut pads = vec![0; 2 * rank];
        (pads[along], pads[rank + along]) = (before as i64, (to - from - before) as i64);
        let pads = self.integers(&format!("{}.pads", node.name), &pads);
        let x = self.read(node.inputs[0])?;
        Ok(self.node(&node.name, "Pad", vec![x, pads], Vec::new()))
    }

    fn permute(&mut self, node: &Node, axes: &[usize]) -> Result<String> {
        let x = node.inputs[0];
        let places = |&axis: &usize| match self.batches[x.0].filter(|batch| batch.axis == axis) {
            Some(batch) => axis..axis + batch.axes(),
            None => self.axis(x, axis)..self.axis(x, axis) + 1,
        };
        let order: Vec<usize> = axes.iter().flat_map(places).collect();
        self.simple(node, "Transpose", vec![ints("perm", &order)])
    }

    fn sum(&mut self, node: &Node, scale: f32) -> Result<String> {
        let [x, y] = [node.inputs[0], node.outputs[0]];
        let [from, to] = [x, y].map(|id| &self.graph.tensor(id).spec.shape);
        let to = to.with_rank(from.rank());
        let axes: Vec<usize> = (0..from.rank()).filter(|&axis| from.0[axis] != to[axis]).collect();
        let count: usize = axes.iter().map(|&axis| from.0[axis]).product();
        let is_mean = scale == 1.0 / count as f32;
        let along: Vec<i64> = axes.iter().map(|&axis| self.axis(x, axis) as i64).collect();
        let mut sum = self.read(x)?;
        // Of an axis of length 1 there is nothing to sum up; and ONNX takes no axes for all of them.
        if !along.is_empty() {
            let over = self.integers(&format!("{}.axes", node.name), &along);
            let op = if is_mean { "ReduceMean" } else { "ReduceSum" };
            sum = self.node(&node.name, op, vec![sum, over], vec![int("keepdims", 1)]);
        }
        let sum = self.scaled(&node.name, sum, if is_mean { 1.0 } else { scale });
        match self.graph.tensor(y).spec.shape.rank() == to.len() {
            true => Ok(sum),
            false => Ok(self.reshaped(&node.name, sum, &self.shape(y))),
        }
    }

    /// The batch is that of the images, unless x has it.
    fn expand(&mut self, node: &Node) -> Result<String> {
        let ([x, y], layer) = ([node.inputs[0], node.outputs[0]], &node.name);
        let mut extents = self.shape(y);
        let x_name = self.aligned(node, x)?;
        if extents.contains(&-1) && self.batches[x.0].is_none() {
            return self.stretched(layer, x_name, &extents);
        }
        if extents == self.shape(x) {
            return Ok(x_name);
        }
        // An extent of 1 leaves that of x.
        extents.iter_mut().filter(|extent| **extent == -1).for_each(|extent| *extent = 1);
        let shape = self.integers(&format!("{layer}.shape"), &extents);
        Ok(self.node(layer, "Expand", vec![x_name, shape], Vec::new()))
    }

    /// An operand that is stretched: with as many axes as the result has for its images.
    fn aligned(&mut self, node: &Node, id: TensorId) -> Result<String> {
        let (x, y) = (self.read(id)?, node.outputs[0]);
        let rank = |id: TensorId| self.graph.tensor(id).spec.shape.rank();
        let Some(batch) = self.batches[y.0].filter(|_| self.is_apart(y) && self.batches[id.0].is_none())
        else {
            return Ok(x);
        };
        // Its own axis there has one element; axes of more are before that.
        let at = (batch.axis + rank(id)).checked_sub(rank(y)).filter(|&at| at > 0);
        let Some(at) = at else { return Ok(x) };
        let mut shape = self.shape(id);
        shape.splice(at..=at, vec![1; batch.axes()]);
        Ok(self.reshaped(&format!("{}.{}", node.name, x), x, &shape))
    }
}

/// What the format calls it.
fn word(of: Binary) -> &'static str {
    match of {
        Binary::Add => "Add",
        Binary::Subtract => "Sub",
        Binary::Multiply => "Mul",
        Binary::Divide => "Div",
    }
}
