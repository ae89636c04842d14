//! Networks of images and cubes that are drawn: residuals, concatenations, class tokens, tensors that several read,
//! axes in another order, attention, sums over axes of any length, stored tensors beside images, scores of several
//! kinds. What is drawn is numbers, of which every one is a network, for any batch.

use dltrain::error::Result;
use dltrain::graph::{
    Activation, BatchNorm, Binary, Builder, Conv, Graph, Init, LocalResponseNorm, MatMul, Pool, SampleShape,
    Shape, TensorId, dims,
};
use proptest::prelude::*;

/// Classes of each.
pub const CLASSES: usize = 5;

/// Channels from which on layers make no more of them.
const MOST: usize = 8;

/// A kind of layer, and what its numbers are taken from.
type Layer = (u8, u32);

/// One of them, to be checked.
pub struct Network<'a> {
    pub batch: usize,
    /// Whether every layer has a derivative everywhere, for differences.
    pub is_smooth: bool,
    /// The forward graph for so many images, to train or (`Builder::only_to_test`) not.
    pub build: &'a dyn Fn(usize, bool) -> Result<Graph>,
}

/// What gives scores of images.
type Scores = fn(&mut Builder, TensorId) -> Result<TensorId>;

/// Networks of which something was wrong once, each with (C, H, W) of its images.
pub const ONCE: [(&str, [usize; 3], Scores); 4] = [
    ("block", [3, 5, 4], block_beside_its_input),
    ("sums", [1, 4, 5], sums_of_one_element),
    ("tokens", [3, 2, 3], class_token_and_places),
    ("attention", [4, 2, 3], attention_by_permute),
];

/// One of `ONCE`.
pub fn once(image: [usize; 3], scores: Scores, batch: usize, trains: bool) -> Result<Graph> {
    let (mut net, x) = Builder::new("once", batch, image);
    if !trains {
        net.only_to_test();
    }
    let scores = scores(&mut net, x)?;
    Ok(net.finish(scores))
}

/// An addition that a normalisation does, whose gradient somebody reads before.
fn block_beside_its_input(net: &mut Builder, x: TensorId) -> Result<TensorId> {
    let conv = Conv::square(3).padding(1);
    let x = net.conv("stem", x, 4, conv)?;
    let y = net.conv("conv", x, 4, conv)?;
    let y = net.batch_norm("norm", y, BatchNorm { epsilon: 1e-2, ..BatchNorm::default() })?;
    let y = net.add("add", y, x)?;
    let y = net.relu("relu", y);
    let y = net.concat("concat", &[y, x])?;
    let y = net.flatten("flat", y);
    Ok(net.linear("head", y, CLASSES))
}

/// Of images with one channel the mean over channels, and the same over the rows of what has one row.
fn sums_of_one_element(net: &mut Builder, x: TensorId) -> Result<TensorId> {
    let mean = net.sum("mean", x, &[1], 1.0)?;
    let x = net.binary("twice", Binary::Add, x, mean)?;
    let row = net.sum("row", x, &[2], 0.25)?;
    let again = net.sum("again", row, &[2], 0.5)?;
    let x = net.binary("less", Binary::Subtract, x, again)?;
    let x = net.conv("conv", x, 3, Conv::square(3))?;
    let x = net.flatten("flat", x);
    Ok(net.linear("head", x, CLASSES))
}

/// Images as rows of their channels.
fn rows_of(net: &mut Builder, x: TensorId) -> Result<TensorId> {
    let shape = net.shape(x).0.clone();
    let x = net.reshape("rows", x, dims([shape[0], shape[1], shape[2] * shape[3]]))?;
    net.permute("rows.last", x, &[0, 2, 1])
}

/// Stored tensors that have, for one image, the shape of what they are put beside and added to.
fn class_token_and_places(net: &mut Builder, x: TensorId) -> Result<TensorId> {
    let x = rows_of(net, x)?;
    let [n, length, width]: [usize; 3] = net.shape(x).0[..].try_into().unwrap();
    let class = net.learned("class", dims([1, 1, width]), Init::Zero, false);
    let class = net.expand("classes", class, dims([n, 1, width]))?;
    let x = net.concat_along("tokens", 1, &[class, x])?;
    let places = net.learned("places", dims([1, length + 1, width]), Init::Zero, false);
    let places = net.reshape("places.read", places, dims([1, length + 1, width]))?;
    let x = net.binary("placed", Binary::Add, x, places)?;
    let y = net.layer_norm("norm", x, 1, 1e-2)?;
    let y = net.linear_along("linear", y, width)?;
    let x = net.add("add", x, y)?;
    let x = net.slice("first", x, 1, 0..1)?;
    let x = net.reshape("row", x, dims([n, width]))?;
    Ok(net.linear("head", x, CLASSES))
}

fn attention_by_permute(net: &mut Builder, x: TensorId) -> Result<TensorId> {
    let x = rows_of(net, x)?;
    let y = attention(net, "attention", x, 2, false)?;
    let x = net.add("add", x, y)?;
    let n = net.shape(x).batch();
    let width = net.shape(x).0[2];
    let x = net.slice("first", x, 1, 0..1)?;
    let x = net.reshape("row", x, dims([n, width]))?;
    Ok(net.linear("head", x, CLASSES))
}

#[derive(Debug, Clone)]
pub struct Drawn {
    pub batch: usize,
    pub image: [usize; 3],
    /// Of cubes how deep they are; 0 for images.
    pub depth: usize,
    /// Layers of images, and of rows of them; no rows where there are none.
    pub layers: Vec<Layer>,
    pub rows: Vec<Layer>,
    /// What gives the scores.
    pub head: u8,
    /// Whether every layer has a derivative everywhere, for differences.
    pub is_smooth: bool,
}

/// Any of them.
pub fn any_network() -> impl Strategy<Value = Drawn> {
    let layers = |most| prop::collection::vec((0u8..20, any::<u32>()), 0..most);
    let image = (1usize..4, 3usize..7, 3usize..7);
    (1usize..4, image, layers(7), layers(6), 0u8..6, any::<bool>()).prop_map(
        |(batch, (c, h, w), layers, rows, head, is_smooth)| Drawn {
            batch,
            image: [c, h, w],
            depth: 0,
            layers,
            rows,
            head,
            is_smooth,
        },
    )
}

/// The same of cubes.
pub fn any_network_of_cubes() -> impl Strategy<Value = Drawn> {
    (any_network(), 2usize..5).prop_map(|(drawn, depth)| Drawn { depth, ..drawn })
}

/// Numbers of a layer, one after the other.
struct Numbers(u32);

impl Numbers {
    /// One below `count`.
    fn below(&mut self, count: usize) -> usize {
        let number = self.0 as usize % count;
        self.0 /= count as u32;
        number
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

impl Drawn {
    /// The forward graph for so many images; `trains` as `Builder::only_to_test` has it.
    pub fn build(&self, batch: usize, trains: bool) -> Result<Graph> {
        let [c, h, w] = self.image;
        let sample = match self.depth {
            0 => SampleShape::image([c, h, w]),
            depth => SampleShape::cube([c, depth, h, w]),
        };
        let (mut net, images) = Builder::new("drawn", batch, sample);
        if !trains {
            net.only_to_test();
        }
        let mut drawing = Drawing { net: &mut net, seen: vec![images], is_smooth: self.is_smooth };
        let mut x = images;
        for (index, layer) in self.layers.iter().enumerate() {
            x = drawing.of_images(&format!("i{index}"), x, *layer)?;
            drawing.seen.push(x);
        }
        if !self.rows.is_empty() {
            let shape = drawing.net.shape(x).0.clone();
            x = drawing.net.reshape("rows", x, dims([shape[0], shape[1], shape[2..].iter().product()]))?;
            x = drawing.net.permute("rows.last", x, &[0, 2, 1])?;
            drawing.seen = vec![x];
        }
        for (index, layer) in self.rows.iter().enumerate() {
            x = drawing.of_rows(&format!("r{index}"), x, *layer)?;
            drawing.seen.push(x);
        }
        let scores = drawing.scores(x, self.head)?;
        Ok(net.finish(scores))
    }
}

struct Drawing<'a> {
    net: &'a mut Builder,
    /// What later layers may read too.
    seen: Vec<TensorId>,
    is_smooth: bool,
}

impl Drawing<'_> {
    fn activation(&mut self, name: &str, x: TensorId, from: &mut Numbers) -> TensorId {
        let smooth =
            [Activation::Gelu, Activation::Silu, Activation::Sigmoid, Activation::Tanh, Activation::Exp];
        let all = [Activation::RELU, Activation::Gelu, Activation::RELU6, Activation::HardSwish];
        let of = from.one_of(if self.is_smooth { &smooth } else { &all });
        // Of numbers that e^x stays small for.
        let x = match of {
            Activation::Exp => self.net.activation(&format!("{name}.before"), x, Activation::Tanh),
            _ => x,
        };
        self.net.activation(name, x, of)
    }

    /// A tensor like this one that was there before, or this one.
    fn like(&mut self, x: TensorId, from: &mut Numbers) -> TensorId {
        let shape = self.net.shape(x);
        let all: Vec<TensorId> =
            self.seen.iter().copied().filter(|id| self.net.shape(*id) == shape).collect();
        if all.is_empty() { x } else { from.one_of(&all) }
    }

    /// Batch normalisation, where there is more than a number a channel.
    fn normalised(&mut self, name: &str, x: TensorId) -> Result<TensorId> {
        match self.net.shape(x).0[2..].iter().product() {
            1usize => Ok(x),
            _ => self.net.batch_norm(name, x, BatchNorm { epsilon: 1e-2, ..BatchNorm::default() }),
        }
    }

    fn of_images(&mut self, name: &str, x: TensorId, (kind, numbers): Layer) -> Result<TensorId> {
        let (mut from, part) = (Numbers(numbers), |part: &str| format!("{name}.{part}"));
        let shape = self.net.shape(x).0.clone();
        let (n, c, rank) = (shape[0], shape[1], shape.len());
        let is_cube = rank == 5;
        let conv_of = |conv: Conv| if is_cube { conv.cubic() } else { conv };
        let pool_of = |pool: Pool| if is_cube { pool.cubic() } else { pool };
        let net = &mut *self.net;
        match kind {
            0 | 1 => {
                let side = from.one_of(&[1, 3]);
                let conv = conv_of(Conv {
                    bias: from.below(2) == 0,
                    groups: if from.below(3) == 0 { c } else { 1 },
                    ..Conv::square(side).padding(side / 2).stride(1 + from.below(2))
                });
                net.conv(&part("conv"), x, if c < MOST { c * (1 + from.below(2)) } else { c }, conv)
            }
            2 => self.normalised(&part("norm"), x),
            3 => Ok(self.activation(&part("activation"), x, &mut from)),
            // What blocks of residual networks do, with what is added read by others or not.
            4 | 5 => {
                let other = self.like(x, &mut from);
                let y = self.net.conv(&part("conv"), x, c, conv_of(Conv::square(3).padding(1)))?;
                let y = self.normalised(&part("norm"), y)?;
                let y = self.net.add(&part("add"), y, other)?;
                let y = if self.is_smooth { y } else { self.net.relu(&part("relu"), y) };
                match from.below(2) {
                    1 if c < MOST => self.net.concat(&part("concat"), &[y, x]),
                    _ => Ok(y),
                }
            }
            6 => {
                let other = self.like(x, &mut from);
                match c {
                    1..MOST => self.net.concat(&part("concat"), &[other, x]),
                    _ => self.net.add(&part("add"), x, other),
                }
            }
            7 if !self.is_smooth => net
                .max_pool(&part("pool"), x, pool_of(Pool::square(from.one_of(&[1, 2, 3])).padding(0).ceil()))
                .or(Ok(x)),
            7 | 8 => net.avg_pool(&part("pool"), x, pool_of(Pool::square(from.one_of(&[1, 2])))).or(Ok(x)),
            // Sums over any of the axes, which may have one element.
            9 | 10 => {
                let all: Vec<usize> = (0..rank).collect();
                let axes = from.one_of(&[&[1][..], &[2], &all[2..], &all[1..], &all[rank - 1..]]);
                let count: usize = axes.iter().map(|&axis| shape[axis]).product();
                let scale = from.one_of(&[1.0 / count as f32, 0.25]);
                let mean = net.sum(&part("sum"), x, axes, scale)?;
                match from.below(4) {
                    0 => net.binary(&part("less"), Binary::Subtract, x, mean),
                    1 => {
                        let by = net.activation(&part("gate"), mean, Activation::Sigmoid);
                        net.binary(&part("times"), Binary::Multiply, by, x)
                    }
                    2 => {
                        let by = net.activation(&part("tanh"), mean, Activation::Tanh);
                        let by = net.activation(&part("exp"), by, Activation::Exp);
                        net.binary(&part("by"), Binary::Divide, x, by)
                    }
                    // Of which neither is as large as the result.
                    _ if axes == [2] => {
                        let other = net.sum(&part("other"), x, &[3], 0.25)?;
                        net.binary(&part("both"), Binary::Multiply, mean, other)
                    }
                    _ => Ok(mean),
                }
            }
            // Stored tensors beside images, of as many axes or fewer.
            11 | 12 => {
                let ones = vec![1; rank - 2];
                let (mut a_channel, mut a_row, mut whole) = (ones.clone(), vec![1; rank], shape.clone());
                a_channel.insert(0, c);
                (a_row[rank - 1], whole[0]) = (shape[rank - 1], 1);
                let shapes = [a_channel, whole, shape[2..].to_vec(), a_row, vec![1]];
                let shape = Shape(shapes[from.below(shapes.len())].clone());
                let of = from.one_of(&[Binary::Add, Binary::Multiply, Binary::Subtract]);
                let other = match from.below(3) {
                    0 => {
                        let count = shape.elements();
                        let values: Vec<f32> = (0..count).map(|at| (at % 5) as f32 / 4.0 - 0.4).collect();
                        net.constant(&part("constant"), shape, &values)?
                    }
                    1 => {
                        let stored = net.learned(&part("stored"), shape.clone(), Init::One, false);
                        net.reshape(&part("read"), stored, shape)?
                    }
                    _ => net.learned(&part("stored"), shape, Init::One, false),
                };
                let [a, b] = if from.below(2) == 0 { [x, other] } else { [other, x] };
                let y = net.binary(&part("binary"), of, a, b)?;
                Ok(if from.below(2) == 0 { self.activation(&part("then"), y, &mut from) } else { y })
            }
            13 => match from.below(3) {
                0 => net.layer_norm_of_channels(&part("norm"), x, 1e-2),
                1 => net.group_norm(&part("norm"), x, from.one_of(&[1, c]), 1e-2),
                _ if is_cube => Ok(x),
                _ => net.local_response_norm(&part("norm"), x, LocalResponseNorm::default()),
            },
            14 => {
                let orders = match is_cube {
                    false => [&[0, 1, 3, 2][..], &[0, 2, 3, 1], &[1, 0, 2, 3]],
                    true => [&[0, 1, 4, 2, 3][..], &[0, 2, 3, 4, 1], &[1, 0, 2, 3, 4]],
                };
                let order = from.one_of(&orders);
                let y = net.permute(&part("order"), x, order)?;
                // Images come first again.
                if order[0] == 0 {
                    return Ok(y);
                }
                let y = net.layer_norm(&part("norm"), y, from.one_of(&[1, 2]), 1e-2)?;
                net.permute(&part("back"), y, order)
            }
            15 => {
                let axis = 1 + from.below(rank - 1);
                let y = net.pad(&part("pad"), x, axis, [from.below(2), 1])?;
                let length = net.shape(y).0[axis];
                net.slice(&part("part"), y, axis, from.below(2)..length)
            }
            16 => Ok(match from.below(2) {
                0 => net.dropout(&part("dropout"), x, 0.3),
                _ => net.drop_samples(&part("dropout"), x, 0.3),
            }),
            17 => {
                let mut size = [1, 1 + from.below(4), 1 + from.below(4)];
                if is_cube {
                    // Means of unlike many places of cubes have no node in ONNX.
                    size[0] += from.below(4);
                    let pairs = size.iter_mut().zip(&shape[2..]);
                    pairs.for_each(|(size, places)| *size = if places % *size == 0 { *size } else { 1 });
                }
                net.adaptive_avg_pool(&part("pool"), x, size)
            }
            18 => {
                let conv = conv_of(Conv { bias: false, ..Conv::square(2) });
                net.conv_transpose(&part("conv"), x, c, conv, [0; 3])
            }
            // A number a sample, on the way of one axis.
            _ => {
                let (all, count): (Vec<_>, usize) = ((1..rank).collect(), shape[1..].iter().product());
                let y = net.sum(&part("sum"), x, &all, 1.0 / count as f32)?;
                let y = net.reshape(&part("one"), y, dims([n]))?;
                let y = match from.below(2) {
                    0 => y,
                    _ => {
                        let y = net.reshape(&part("row"), y, dims([n, 1]))?;
                        let y = net.linear(&part("linear"), y, 1);
                        net.reshape(&part("again"), y, dims([n]))?
                    }
                };
                let y = net.activation(&part("sigmoid"), y, Activation::Sigmoid);
                let y = net.reshape(&part("four"), y, Shape([&[n][..], &vec![1; rank - 1]].concat()))?;
                net.binary(&part("times"), Binary::Multiply, x, y)
            }
        }
    }

    fn of_rows(&mut self, name: &str, x: TensorId, (kind, numbers): Layer) -> Result<TensorId> {
        let (mut from, part) = (Numbers(numbers), |part: &str| format!("{name}.{part}"));
        let [n, length, width]: [usize; 3] = self.net.shape(x).0[..].try_into().unwrap();
        let net = &mut *self.net;
        match kind {
            // A class token, which is stretched where there are several images.
            0..3 => {
                let stored = net.learned(&part("token"), dims([1, 1, width]), Init::Zero, false);
                let token = match n {
                    1 if from.below(2) == 0 => net.reshape(&part("read"), stored, dims([1, 1, width]))?,
                    _ => net.expand(&part("class"), stored, dims([n, 1, width]))?,
                };
                net.concat_along(&part("tokens"), 1, &[token, x])
            }
            3 | 4 => {
                let places = net.learned(&part("places"), dims([1, length, width]), Init::Zero, false);
                net.binary(&part("add"), Binary::Add, x, places)
            }
            5 => net.layer_norm(&part("norm"), x, 1, 1e-2),
            6..10 => {
                let y = net.layer_norm(&part("norm"), x, 1, 1e-2)?;
                let heads = from.one_of(&[1, width]);
                let y = match from.below(3) {
                    0 => attention(net, &part("attention"), y, heads, false)?,
                    1 => attention(net, &part("attention"), y, heads, true)?,
                    _ => {
                        let y = net.reshape(&part("rows"), y, dims([n * length, width]))?;
                        let y = net.linear(&part("qkv"), y, 3 * width);
                        let y = net.attention(&part("attention"), y, length, heads)?;
                        let y = net.linear(&part("out"), y, width);
                        net.reshape(&part("back"), y, dims([n, length, width]))?
                    }
                };
                self.net.add(&part("add"), x, y)
            }
            // Wide enough to be made again on the way back (`Graph::remake`), or not.
            10..14 => {
                let y = net.layer_norm(&part("norm"), x, 1, 1e-2)?;
                let y = net.linear_along(&part("wide"), y, from.one_of(&[512, 2 * width]))?;
                let y = net.activation(&part("gelu"), y, Activation::Gelu);
                let y = net.linear_along(&part("narrow"), y, width)?;
                net.add(&part("add"), y, x)
            }
            // Places come first, and images second.
            14 => {
                let y = net.permute(&part("first"), x, &[1, 0, 2])?;
                let y = net.linear_along(&part("linear"), y, width)?;
                let y = net.layer_norm(&part("norm"), y, 1, 1e-2)?;
                net.permute(&part("back"), y, &[1, 0, 2])
            }
            15 => {
                let token = net.slice(&part("token"), x, 1, 0..1)?;
                net.concat_along(&part("again"), 1, &[x, token])
            }
            16 => {
                let mean = net.sum(&part("mean"), x, &[1], 1.0 / length as f32)?;
                let y = net.binary(&part("less"), Binary::Subtract, x, mean)?;
                let by = net.softmax(&part("softmax"), y);
                net.binary(&part("times"), Binary::Multiply, by, x)
            }
            17 => {
                let other = self.like(x, &mut from);
                match width {
                    1..MOST => self.net.concat_along(&part("beside"), 2, &[x, other]),
                    _ => self.net.add(&part("add"), x, other),
                }
            }
            // A product over places, as mixers have it.
            18 => {
                let y = net.permute(&part("turned"), x, &[0, 2, 1])?;
                let y = net.linear_along(&part("mixed"), y, length)?;
                let y = net.permute(&part("back"), y, &[0, 2, 1])?;
                net.add(&part("add"), x, y)
            }
            _ => {
                let axis = from.one_of(&[1, 2]);
                net.sum(&part("sum"), x, &[axis], 1.0 / net.shape(x).0[axis] as f32)
            }
        }
    }

    fn scores(&mut self, x: TensorId, kind: u8) -> Result<TensorId> {
        let net = &mut *self.net;
        let is_image = net.shape(x).rank() >= 4;
        match kind {
            0 => {
                let shape = net.shape(x).0.clone();
                let more = [&shape[..2], &[1, 1], &shape[2..], &[1]].concat();
                let x = net.reshape("more", x, Shape(more))?;
                let x = net.flatten("flat", x);
                Ok(net.linear("head", x, CLASSES))
            }
            1 => {
                let x =
                    if is_image { net.global_avg_pool("pool", x)? } else { net.slice("token", x, 1, 0..1)? };
                Ok(net.linear("head", x, CLASSES))
            }
            // Two heads, added up or side by side.
            2 => {
                let x = net.flatten("flat", x);
                let [a, b] = ["head.a", "head.b"].map(|name| net.linear(name, x, CLASSES));
                net.add("head", a, b)
            }
            3 => {
                let x = net.flatten("flat", x);
                let [a, b] =
                    [("head.a", 2), ("head.b", 3)].map(|(name, classes)| net.linear(name, x, classes));
                net.concat_along("head", 1, &[a, b])
            }
            // No linear layer gives them.
            _ if is_image => {
                let conv = Conv::square(1);
                let conv = if net.shape(x).rank() == 5 { conv.cubic() } else { conv };
                let x = net.conv("head", x, CLASSES, conv)?;
                let x = if kind == 4 { self.normalised("head.norm", x)? } else { x };
                let x = self.net.global_avg_pool("head.pool", x)?;
                Ok(self.net.flatten("head.flat", x))
            }
            _ => {
                let (n, length) = (net.shape(x).batch(), net.shape(x).0[1]);
                let x = net.linear_along("head", x, CLASSES)?;
                let x = if kind == 4 { net.layer_norm("head.norm", x, 1, 1e-2)? } else { x };
                let x = net.sum("head.mean", x, &[1], 1.0 / length as f32)?;
                net.reshape("head.flat", x, dims([n, CLASSES]))
            }
        }
    }
}

/// As timm writes it: queries, keys and values along an axis of their own, which comes first.
fn attention(
    net: &mut Builder,
    name: &str,
    x: TensorId,
    heads: usize,
    heads_first: bool,
) -> Result<TensorId> {
    let part = |part: &str| format!("{name}.{part}");
    let [n, length, width]: [usize; 3] = net.shape(x).0[..].try_into().unwrap();
    let y = net.linear_along(&part("qkv"), x, 3 * width)?;
    // (N, L, 3, H, D), or with heads before.
    let ([a, b], order) = match heads_first {
        false => ([3, heads], [2, 0, 3, 1, 4]),
        true => ([heads, 3], [3, 0, 2, 1, 4]),
    };
    let y = net.reshape(&part("apart"), y, dims([n, length, a, b, width / heads]))?;
    let y = net.permute(&part("first"), y, &order)?;
    let mut of = |which: usize| {
        let y = net.slice(&part(&format!("part{which}")), y, 0, which..which + 1)?;
        net.reshape(&part(&format!("heads{which}")), y, dims([n, heads, length, width / heads]))
    };
    let [q, k, v] = [of(0)?, of(1)?, of(2)?];
    let y = net.matmul(&part("scores"), q, k, MatMul { transposed: [false, true], scale: 0.5 })?;
    let y = net.softmax(&part("softmax"), y);
    let y = net.matmul(&part("weighted"), y, v, MatMul { transposed: [false; 2], scale: 1.0 })?;
    let y = net.permute(&part("order"), y, &[0, 2, 1, 3])?;
    net.reshape(&part("joined"), y, dims([n, length, width]))
}
