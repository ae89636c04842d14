//! A network that was described for the few images that a file was written for, for a batch of any size.
//!
//! Whatever a file has in numbers (shapes, masks, places) is right for its own batch, and whoever wrote it may have put
//! the images of that batch along any axis, or among the places of one. The network is therefore described for that
//! batch first. Here every tensor that is computed from the images is seen as what one image has of it, and those of a
//! batch lie one behind the other along its first axis: (N·A, B, …) for (A, B, …) of one image. What was described for
//! one image is that already; of several images it is followed where they lie (`BatchPlace`), layer by layer.

use std::collections::HashMap;

use super::{Builder, MatMul, Node, Op, Role, Shape, Tensor, TensorId};
use crate::error::{Error, Result};

/// Whether a parameter of this name has the same numbers for all images: (before them, images, behind them), and the
/// shape that it has once.
type IsOne<'a> = dyn FnMut(&str, [usize; 3], &[usize]) -> bool + 'a;

/// Where the images lie in a tensor that was described for several: along this axis, of which they are so many apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct BatchPlace {
    axis: usize,
    inner: usize,
}

/// Where they are given, and where they are if there is one alone.
const FIRST: BatchPlace = BatchPlace { axis: 0, inner: 1 };

struct Batched<'a> {
    net: &'a mut Builder,
    /// The network as it was described.
    one: &'a Builder,
    /// Images that it was described for, and that it is to be for.
    images: [usize; 2],
    /// What was made of each tensor; with a place where it is computed from the images.
    made: Vec<Option<(TensorId, Option<BatchPlace>)>>,
    /// What one image has of what is the same for all.
    shared: HashMap<(TensorId, BatchPlace), TensorId>,
    is_one: &'a mut IsOne<'a>,
}

impl Builder {
    /// Adds the network of another builder, described for fewer images, to this one, which has its images alone. Gives
    /// the scores. Where a parameter has numbers for each image, `is_one` says whether these are the same: it then
    /// has them once, in the shape that is told.
    ///
    /// # Errors
    /// `Usage` where images of a batch are mixed with each other, or the batch is too small for a normalisation.
    pub fn add_batched(
        &mut self,
        one: &Builder,
        scores: TensorId,
        mut is_one: impl FnMut(&str, [usize; 3], &[usize]) -> bool,
    ) -> Result<TensorId> {
        let images = [one, self].map(|net| net.shape(net.images).batch());
        let mut made = vec![None; one.tensors.len()];
        made[one.images.0] = Some((self.images, Some(FIRST)));
        self.dropouts = one.dropouts;
        let mut batched =
            Batched { net: self, one, images, made, shared: HashMap::new(), is_one: &mut is_one };
        one.nodes.iter().try_for_each(|node| batched.add(node))?;
        let (logits, _) = batched.made_of(scores);
        // The axes behind the batch are those of one: (K) scores, or what else is given of a sample.
        let shape = [&[images[1]], &one.shape(scores).0[1..]].concat();
        self.seen("logits", logits, shape)
    }

    /// In another shape, unless it has that already.
    fn seen(&mut self, name: &str, x: TensorId, shape: Vec<usize>) -> Result<TensorId> {
        let shape = Shape(shape);
        if *self.shape(x) == shape { Ok(x) } else { self.reshape(&format!("{name}.seen"), x, shape) }
    }
}

impl Batched<'_> {
    fn add(&mut self, node: &Node) -> Result<()> {
        let places: Vec<Option<BatchPlace>> = node.inputs.iter().map(|&id| self.place_of(id)).collect();
        // What is the same for all images comes over when it is first read.
        if places.iter().all(Option::is_none) {
            return Ok(());
        }
        match node.op {
            Op::Reshape => {
                let to = self.reshaped(node, node.inputs[0], places[0].unwrap_or(FIRST))?;
                let x = self.made_of(node.inputs[0]).0;
                self.give(node, x, to)
            }
            Op::Permute(order) => self.permuted(node, &order.axes()),
            Op::Concat { axis } => self.along(node, axis),
            Op::Slice { axis, .. } | Op::Pad { axis, .. } => self.along(node, axis),
            Op::Softmax => self.along(node, self.one.shape(node.inputs[0]).rank() - 1),
            Op::Dropout { .. } => self.dropped(node),
            Op::Sum { .. } => self.summed(node),
            Op::Expand { .. } => self.stretched(node),
            Op::Add { .. } | Op::Binary(_) => self.stretched(node),
            Op::MatMul(of) => self.product(node, of),
            Op::BatchNorm(_) => {
                let place = self.first(node)?;
                let x = Shape(self.whole(node.inputs[0], place));
                self.net.enough_values(&node.name, &x)?;
                self.copied(node, Some(place));
                Ok(())
            }
            Op::LayerNorm { .. } => {
                let place = places[0].unwrap_or(FIRST);
                if self.images[0] > 1 && place.axis >= self.rows_end(node) {
                    return Err(self.mixed(node));
                }
                self.copied(node, Some(place));
                Ok(())
            }
            Op::Activation(_) | Op::LocalResponseNorm(_) => {
                self.copied(node, places[0]);
                Ok(())
            }
            _ => {
                let place = self.first(node)?;
                self.copied(node, Some(place));
                Ok(())
            }
        }
    }

    // ---- what tensors are ----

    /// Where the images are in a tensor that is computed from them.
    fn place_of(&self, id: TensorId) -> Option<BatchPlace> {
        self.made[id.0].and_then(|(_, place)| place)
    }

    /// What was made of a tensor. What is not computed from the images comes over when it is first read.
    fn made_of(&mut self, id: TensorId) -> (TensorId, Option<BatchPlace>) {
        if let Some(made) = self.made[id.0] {
            return made;
        }
        // (Running statistics are an input and an output of one node.)
        let makes = |node: &&Node| node.outputs.contains(&id) && !node.inputs.contains(&id);
        if let Some(node) = self.one.nodes.iter().find(makes) {
            self.copied(node, None);
            if let Some(made) = self.made[id.0] {
                return made;
            }
        }
        let new = self.net.take(self.one.tensors[id.0].clone());
        self.made[id.0] = Some((new, None));
        (new, None)
    }

    fn give(&mut self, node: &Node, y: TensorId, place: BatchPlace) -> Result<()> {
        let y = self.net.seen(&node.name, y, self.whole(node.outputs[0], place))?;
        self.made[node.outputs[0].0] = Some((y, Some(place)));
        Ok(())
    }

    /// The extents that one image has of what was described for several.
    fn each(&self, id: TensorId, place: BatchPlace) -> Vec<usize> {
        let mut shape = self.one.shape(id).0.clone();
        if self.images[0] > 1
            && let Some(extent) = shape.get_mut(place.axis)
        {
            *extent /= self.images[0];
        }
        shape
    }

    /// Those that the images of a batch have one behind the other.
    fn whole(&self, id: TensorId, place: BatchPlace) -> Vec<usize> {
        let mut shape = self.each(id, place);
        shape[0] *= self.images[1];
        shape
    }

    /// With an axis for the images, and so many others.
    fn apart(&mut self, name: &str, x: TensorId, each: &[usize], rank: usize) -> Result<TensorId> {
        let each = Shape(each.to_vec()).with_rank(rank);
        self.net.seen(name, x, [&[self.images[1]], &each[..]].concat())
    }

    fn mixed(&self, node: &Node) -> Error {
        Error::usage(format!(
            "layer {}: mixes the {} images that the network was described for with each other, and each is to be \
             computed by itself",
            node.name, self.images[0]
        ))
    }

    /// For what takes images along the first axis.
    fn first(&mut self, node: &Node) -> Result<BatchPlace> {
        if node.inputs[1..].iter().any(|&id| self.place_of(id).is_some()) {
            let what = format!("layer {}: its weight is computed from the images", node.name);
            return Err(Error::usage(format!("{what}, and would be another one for each of them")));
        }
        match self.place_of(node.inputs[0]) {
            Some(place) if place.axis == 0 || self.images[0] == 1 => Ok(place),
            _ => Err(self.mixed(node)),
        }
    }

    /// The axis of the images that all operands which are computed from them share, counted in a result of `rank` axes:
    /// operands are aligned at their last axes.
    fn common(&self, node: &Node, rank: usize) -> Result<BatchPlace> {
        let mut common: Option<BatchPlace> = None;
        for &id in &node.inputs {
            let Some(place) = self.place_of(id) else { continue };
            let axis = place.axis + rank - self.one.shape(id).rank();
            match common {
                None => common = Some(BatchPlace { axis, ..place }),
                Some(before) if before.axis != axis || before.inner != place.inner => {
                    if self.images[0] > 1 {
                        return Err(self.mixed(node));
                    }
                }
                Some(_) => {}
            }
        }
        Ok(if self.images[0] == 1 { FIRST } else { common.unwrap_or(FIRST) })
    }

    /// The tensor that was made of an operand, the extents that one image has of it, and whether it is computed from
    /// the images: else it is the same for all of them.
    fn operand(
        &mut self,
        node: &Node,
        id: TensorId,
        common: BatchPlace,
        rank: usize,
    ) -> Result<(TensorId, Vec<usize>, bool)> {
        let shape = self.one.shape(id).0.clone();
        if let Some(place) = self.place_of(id) {
            return Ok((self.made_of(id).0, self.each(id, place), true));
        }
        let axis = (common.axis + shape.len()).checked_sub(rank);
        match axis.filter(|&axis| self.images[0] > 1 && shape[axis] > 1) {
            None => Ok((self.made_of(id).0, shape, false)),
            Some(axis) => {
                let place = BatchPlace { axis, ..common };
                let new = self.same_for_all(node, id, place)?;
                Ok((new, self.each(id, place), false))
            }
        }
    }

    /// As many of what is the same for all images as there are, one behind the other.
    fn repeated(&mut self, name: &str, x: TensorId, each: &[usize]) -> Result<TensorId> {
        let name = format!("{name}.repeated");
        let of_one = [&[1], each].concat();
        let x = self.net.seen(&name, x, of_one)?;
        let y = self.net.expand(&name, x, Shape([&[self.images[1]], each].concat()))?;
        let whole = [&[self.images[1] * each[0]], &each[1..]].concat();
        self.net.seen(&name, y, whole)
    }

    /// What one image has of a tensor that is not computed from the images, but was stretched over them.
    fn same_for_all(&mut self, reader: &Node, id: TensorId, place: BatchPlace) -> Result<TensorId> {
        if let Some(&made) = self.shared.get(&(id, place)) {
            return Ok(made);
        }
        let (tensor, each) = (&self.one.tensors[id.0], self.each(id, place));
        let maker = self.one.nodes.iter().find(|node| node.outputs.contains(&id));
        let made = match (maker, &tensor.values) {
            (None, Some(values)) => {
                let values = one_of(values, &tensor.spec.shape.0, place, self.images[0]);
                let values = values.ok_or_else(|| self.mixed(reader))?;
                self.net.constant(&tensor.name, Shape(each), &values)?
            }
            (Some(node), _) => self.once(reader, node, place, each)?,
            (None, None) => {
                let apart = place.inner * tensor.spec.shape.0[place.axis + 1..].iter().product::<usize>();
                let images = self.images[0];
                let extents = [tensor.spec.shape.elements() / (apart * images), images, apart];
                if tensor.role != Role::Parameter || !(self.is_one)(&tensor.name, extents, &each) {
                    return Err(self.mixed(reader));
                }
                let mut tensor = tensor.clone();
                tensor.spec.shape = Shape(each.clone());
                let name = format!("{}.once", tensor.name);
                let id = self.net.take(tensor);
                // Several may read this.
                self.net.reshape(&name, id, Shape(each))?
            }
        };
        self.shared.insert((id, place), made);
        Ok(made)
    }

    /// The op of what one image has of operands that were stretched over the images; `each` is what it then gives.
    fn once(&mut self, reader: &Node, node: &Node, place: BatchPlace, each: Vec<usize>) -> Result<TensorId> {
        match node.op {
            Op::Reshape => {
                let from = followed(
                    &self.one.shape(node.outputs[0]).0,
                    place,
                    &self.one.shape(node.inputs[0]).0,
                    self.images[0],
                );
                let from = from.ok_or_else(|| self.mixed(reader))?;
                let x = self.same_for_all(reader, node.inputs[0], from)?;
                self.net.seen(&node.name, x, each)
            }
            Op::Permute(order) => {
                let from = BatchPlace { axis: order.axes()[place.axis], ..place };
                let x = self.same_for_all(reader, node.inputs[0], from)?;
                self.net.permute(&node.name, x, &order.axes())
            }
            Op::Expand { .. } | Op::Activation(_) | Op::Add { .. } | Op::Binary(_) => {
                let mut inputs = Vec::new();
                for &input in &node.inputs {
                    inputs.push(self.operand(reader, input, place, each.len())?.0);
                }
                Ok(self.net.node(&node.name, node.op, inputs, Shape(each)))
            }
            Op::MatMul(of) => {
                let mut inputs = Vec::new();
                for (number, &input) in node.inputs.iter().enumerate() {
                    inputs.push(self.factor(reader, (number, input), (place, each.len()), of)?);
                }
                self.net.matmul(&node.name, inputs[0], inputs[1], of)
            }
            Op::Slice { axis, .. } | Op::Pad { axis, .. } | Op::Concat { axis } if axis != place.axis => {
                let inputs = node.inputs.iter().map(|&input| self.same_for_all(reader, input, place));
                let inputs = inputs.collect::<Result<_>>()?;
                Ok(self.net.node(&node.name, node.op, inputs, Shape(each)))
            }
            _ if self.takes_apart(node, place, each.len()) => {
                self.once_of_first(reader, node, place, each.len())
            }
            _ => Err(self.mixed(reader)),
        }
    }

    /// Whether a layer computes of each image by itself where these are at this place of what it gives, by its first
    /// operand; the others are the same for all.
    fn takes_apart(&self, node: &Node, place: BatchPlace, rank: usize) -> bool {
        match node.op {
            Op::Conv(_) => place == FIRST,
            Op::Linear { .. } => place.axis == 0,
            Op::Softmax => place.axis + 1 < rank,
            Op::LayerNorm { .. } => place.axis < self.rows_end(node),
            Op::Sum { .. } => self.one.shape(node.inputs[0]).rank() == rank,
            _ => false,
        }
    }

    /// Such a layer, of what one image has of its first operand.
    fn once_of_first(
        &mut self,
        reader: &Node,
        node: &Node,
        place: BatchPlace,
        rank: usize,
    ) -> Result<TensorId> {
        let x = self.same_for_all(reader, node.inputs[0], place)?;
        let parameters = node.inputs[1..].iter().map(|&parameter| self.made_of(parameter).0);
        let inputs = std::iter::once(x).chain(parameters).collect();
        let outputs = node.outputs.iter().map(|&output| {
            let mut tensor = self.one.tensors[output.0].clone();
            // Statistics of rows are in the order of these.
            let place = if tensor.spec.shape.rank() == rank { place } else { FIRST };
            tensor.spec.shape = Shape(self.each(output, place));
            self.net.take(tensor)
        });
        let outputs: Vec<TensorId> = outputs.collect();
        self.net.nodes.push(Node { inputs, outputs: outputs.clone(), ..node.clone() });
        Ok(outputs[0])
    }

    /// What one image has of an operand of a product: rows of the result are of the first alone, and columns of the
    /// second.
    fn factor(
        &mut self,
        reader: &Node,
        (number, id): (usize, TensorId),
        (place, rank): (BatchPlace, usize),
        of: MatMul,
    ) -> Result<TensorId> {
        if place.axis + 2 < rank {
            return Ok(self.operand(reader, id, place, rank)?.0);
        }
        if place.axis != rank - 2 + number {
            return Ok(self.made_of(id).0);
        }
        let axis = rank - 2 + usize::from(of.transposed[number] != (number == 1));
        self.same_for_all(reader, id, BatchPlace { axis, ..place })
    }

    /// The first axis along which a layer normalises.
    fn rows_end(&self, node: &Node) -> usize {
        let rows = self.one.shape(node.outputs[1]).elements();
        let before = self.one.shape(node.inputs[0]).0.iter().scan(1, |all, extent| {
            *all *= extent;
            Some(*all)
        });
        before.take_while(|&all| all <= rows).count()
    }

    // ---- what layers are ----

    /// Adds the op of what was made of its operands. Where it is of images, as much as was computed of the images that
    /// it was described for is now of the batch.
    fn copied(&mut self, node: &Node, place: Option<BatchPlace>) {
        let inputs = node.inputs.iter().map(|&id| self.made_of(id).0).collect();
        let mut outputs = Vec::new();
        for (number, &id) in node.outputs.iter().enumerate() {
            if let Some((made, _)) = self.made[id.0] {
                outputs.push(made);
                continue;
            }
            let mut tensor = self.one.tensors[id.0].clone();
            // What a batch normalisation finds besides is of channels.
            let of_images = number == 0 || !matches!(node.op, Op::BatchNorm(_));
            if let Some(place) = place.filter(|_| of_images) {
                let place = if number == 0 || tensor.spec.shape.rank() > 1 { place } else { FIRST };
                tensor.spec.shape = Shape(self.whole(id, place));
            }
            let new = self.net.take(tensor);
            self.made[id.0] = Some((new, place.filter(|_| number == 0)));
            outputs.push(new);
        }
        self.net.nodes.push(Node { inputs, outputs, ..node.clone() });
    }

    /// Where the images are behind a change of shape.
    fn reshaped(&self, node: &Node, x: TensorId, place: BatchPlace) -> Result<BatchPlace> {
        let (from, to) = (&self.one.shape(x).0, &self.one.shape(node.outputs[0]).0);
        followed(from, place, to, self.images[0]).ok_or_else(|| self.mixed(node))
    }

    fn permuted(&mut self, node: &Node, axes: &[usize]) -> Result<()> {
        let (x, place) = self.made_of(node.inputs[0]);
        let place = place.unwrap_or(FIRST);
        let to = BatchPlace { axis: axes.iter().position(|&axis| axis == place.axis).unwrap_or(0), ..place };
        let to = if self.images[0] == 1 { FIRST } else { to };
        let each = self.each(node.inputs[0], place);
        let y = if axes[0] == 0 {
            self.net.permute(&node.name, x, axes)?
        } else {
            // Axes of 1 may be anywhere.
            let long: Vec<usize> = (0..each.len()).filter(|&axis| each[axis] > 1).collect();
            let extents: Vec<usize> = long.iter().map(|&axis| each[axis]).collect();
            let x = self.apart(&node.name, x, &extents, extents.len())?;
            let order = axes.iter().filter_map(|axis| long.iter().position(|other| other == axis));
            let order: Vec<usize> = std::iter::once(0).chain(order.map(|axis| axis + 1)).collect();
            let is_same = order.windows(2).all(|pair| pair[0] < pair[1]);
            if is_same { x } else { self.net.permute(&node.name, x, &order)? }
        };
        self.give(node, y, to)
    }

    /// What does something along one axis, with operands that are alike along the others.
    fn along(&mut self, node: &Node, axis: usize) -> Result<()> {
        let rank = self.one.shape(node.outputs[0]).rank();
        let place = self.common(node, rank)?;
        if self.images[0] > 1 && place.axis == axis {
            return Err(self.mixed(node));
        }
        let mut inputs = Vec::new();
        for &id in &node.inputs {
            let (mut x, each, of_images) = self.operand(node, id, place, rank)?;
            if !of_images {
                x = self.repeated(&node.name, x, &each)?;
            }
            inputs.push(if axis == 0 { self.apart(&node.name, x, &each, rank)? } else { x });
        }
        let y = if axis == 0 {
            let op = match node.op {
                Op::Concat { .. } => Op::Concat { axis: 1 },
                Op::Slice { from, .. } => Op::Slice { axis: 1, from },
                Op::Pad { before, .. } => Op::Pad { axis: 1, before },
                other => other,
            };
            let apart = [&[self.images[1]], &self.each(node.outputs[0], place)[..]].concat();
            self.net.node(&node.name, op, inputs, Shape(apart))
        } else {
            let whole = self.whole(node.outputs[0], place);
            self.net.node(&node.name, node.op, inputs, Shape(whole))
        };
        self.give(node, y, place)
    }

    /// A sample is what lies behind the first axis.
    fn dropped(&mut self, node: &Node) -> Result<()> {
        let (x, place) = self.made_of(node.inputs[0]);
        let place = place.unwrap_or(FIRST);
        let each = self.each(node.inputs[0], place);
        if each[0] == 1 {
            self.copied(node, Some(place));
            return Ok(());
        }
        let x = self.apart(&node.name, x, &each, each.len())?;
        let shape = self.net.shape(x).clone();
        let y = self.net.node(&node.name, node.op, vec![x], shape);
        self.give(node, y, place)
    }

    fn summed(&mut self, node: &Node) -> Result<()> {
        let place = self.common(node, self.one.shape(node.outputs[0]).rank())?;
        let [from, to] = [node.inputs[0], node.outputs[0]].map(|id| self.one.shape(id).0.clone());
        if self.images[0] > 1 && from[place.axis] != to[place.axis] {
            return Err(self.mixed(node));
        }
        self.stretched(node)
    }

    /// Operands that are aligned at their last axes, either stretched over the other; or summed up along some.
    fn stretched(&mut self, node: &Node) -> Result<()> {
        let rank = self.one.shape(node.outputs[0]).rank();
        let place = self.common(node, rank)?;
        let to = self.each(node.outputs[0], place);
        let mut operands = Vec::new();
        for &id in &node.inputs {
            operands.push(self.operand(node, id, place, rank)?);
        }
        // Images lie along the first axis as they are where nothing else does, or all have as much of it.
        let fits = |(_, each, of_images): &(TensorId, Vec<usize>, bool)| match of_images {
            true => each.len() == rank && each[0] == to[0],
            false => each.len() < rank || each[0] == 1,
        };
        let is_direct = operands.iter().all(fits);
        let mut inputs = Vec::new();
        for (x, each, of_images) in operands {
            inputs.push(match of_images && !is_direct {
                true => self.apart(&node.name, x, &each, rank)?,
                false => x,
            });
        }
        let op = match node.op {
            Op::Add { .. } if self.net.shape(inputs[0]) != self.net.shape(inputs[1]) => {
                Op::Binary(super::Binary::Add)
            }
            op => op,
        };
        let shape = match is_direct {
            true => self.whole(node.outputs[0], place),
            false => [&[self.images[1]], &to[..]].concat(),
        };
        let y = self.net.node(&node.name, op, inputs, Shape(shape));
        self.give(node, y, place)
    }

    fn product(&mut self, node: &Node, of: MatMul) -> Result<()> {
        let (name, rank) = (&node.name, self.one.shape(node.outputs[0]).rank());
        let place = self.place_of_product(node, of)?;
        let (a, of_a, a_has) = self.operand_of_product(node, 0, place)?;
        let (b, of_b, b_has) = self.operand_of_product(node, 1, place)?;
        let each = self.each(node.outputs[0], place);
        let matrix = |of: &[usize]| of[of.len() - 2..].to_vec();
        let is_one = |of: &[usize]| of[..of.len() - 2].iter().all(|&extent| extent == 1);
        let y = if a_has && !b_has && is_one(&of_b) && !of.transposed[0] {
            // One matrix for all rows.
            let width = of_a[rank - 1];
            let rows = self.images[1] * of_a[..rank - 1].iter().product::<usize>();
            let a = self.net.seen(name, a, vec![rows, width])?;
            let b = self.net.seen(name, b, matrix(&of_b))?;
            self.net.matmul(name, a, b, of)?
        } else if b_has && !a_has && rank == 2 {
            // The same with both turned: what they give is turned as well.
            let b = self.apart(name, b, &of_b, rank)?;
            let b = if of.transposed[1] {
                b
            } else {
                self.net.permute(&format!("{name}.turned"), b, &[0, 2, 1])?
            };
            let b = self.net.seen(
                name,
                b,
                vec![self.images[1] * each[1], of_b[usize::from(of.transposed[1])]],
            )?;
            let of = MatMul { transposed: [false, !of.transposed[0]], ..of };
            let y = self.net.matmul(name, b, a, of)?;
            let y = self.net.seen(name, y, vec![self.images[1], each[1], each[0]])?;
            self.net.permute(&format!("{name}.back"), y, &[0, 2, 1])?
        } else {
            let mut ids = Vec::new();
            for (x, each, has) in [(a, of_a, a_has), (b, of_b, b_has)] {
                let x = if has { x } else { self.repeated(name, x, &each)? };
                ids.push(if rank == 2 { self.apart(name, x, &each, rank)? } else { x });
            }
            self.net.matmul(name, ids[0], ids[1], of)?
        };
        self.give(node, y, place)
    }

    /// Images may be matrices of a batch, or among the rows of the first operand or the columns of the second.
    fn place_of_product(&mut self, node: &Node, of: MatMul) -> Result<BatchPlace> {
        if self.images[0] == 1 {
            return Ok(FIRST);
        }
        let rank = self.one.shape(node.outputs[0]).rank();
        let [a, b] = [0, 1].map(|operand| self.place_of(node.inputs[operand]));
        let free = [rank - 2 + usize::from(of.transposed[0]), rank - 1 - usize::from(of.transposed[1])];
        match (a, b) {
            (Some(a), Some(b)) if a == b && a.axis + 2 < rank => Ok(a),
            (Some(one), None) | (None, Some(one)) if one.axis + 2 < rank => Ok(one),
            (Some(a), None) if a.axis == free[0] => Ok(BatchPlace { axis: rank - 2, ..a }),
            (None, Some(b)) if b.axis == free[1] => Ok(BatchPlace { axis: rank - 1, ..b }),
            _ => Err(self.mixed(node)),
        }
    }

    fn operand_of_product(
        &mut self,
        node: &Node,
        number: usize,
        place: BatchPlace,
    ) -> Result<(TensorId, Vec<usize>, bool)> {
        let (id, rank) = (node.inputs[number], self.one.shape(node.outputs[0]).rank());
        // Rows and columns of the result are of one operand alone.
        if self.images[0] > 1 && place.axis + 2 >= rank && self.place_of(id).is_none() {
            return Ok((self.made_of(id).0, self.one.shape(id).0.clone(), false));
        }
        self.operand(node, id, place, rank)
    }
}

impl Builder {
    /// A tensor of another builder.
    fn take(&mut self, tensor: Tensor) -> TensorId {
        debug_assert!(tensor.role != Role::Input, "images are there already");
        self.tensors.push(tensor);
        TensorId(self.tensors.len() - 1)
    }
}

/// Where images are when elements are seen in another shape: along the axis that has all of them.
fn followed(from: &[usize], place: BatchPlace, to: &[usize], images: usize) -> Option<BatchPlace> {
    if images == 1 {
        return Some(FIRST);
    }
    // How far apart they are in memory.
    let apart = place.inner * from[place.axis + 1..].iter().product::<usize>();
    let mut behind = 1;
    for axis in (0..to.len()).rev() {
        let here = behind * to[axis];
        if behind <= apart && apart * images <= here {
            let fits = apart.is_multiple_of(behind) && here.is_multiple_of(apart * images);
            return fits.then_some(BatchPlace { axis, inner: apart / behind });
        }
        behind = here;
    }
    None
}

/// The numbers of one of several images, where all have the same.
fn one_of(values: &[f32], shape: &[usize], place: BatchPlace, images: usize) -> Option<Vec<f32>> {
    let apart = place.inner * shape[place.axis + 1..].iter().product::<usize>();
    let mut first = Vec::with_capacity(values.len() / images);
    for outer in values.chunks(apart * images) {
        let mut all = outer.chunks(apart);
        let one = all.next()?;
        if !all.all(|other| other == one) {
            return None;
        }
        first.extend_from_slice(one);
    }
    Some(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Activation, Binary, Init, dims};

    #[test]
    fn images_are_followed_through_shapes() {
        let at = |axis, inner| BatchPlace { axis, inner };
        // (2, 6, 4) as rows, as one, and with heads.
        assert_eq!(followed(&[2, 6, 4], at(0, 1), &[12, 4], 2), Some(at(0, 6)));
        assert_eq!(followed(&[12, 4], at(0, 6), &[2, 6, 2, 2], 2), Some(at(0, 1)));
        assert_eq!(followed(&[12, 4], at(0, 6), &[1, 2, 24], 2), Some(at(1, 1)));
        // Behind another axis, and among its places.
        assert_eq!(followed(&[6, 2, 4], at(1, 1), &[6, 4, 2], 2), Some(at(1, 2)));
        assert_eq!(followed(&[6, 2, 4], at(1, 1), &[12, 4], 2), Some(at(0, 1)));
        assert_eq!(followed(&[2, 6], at(0, 1), &[3, 4], 2), None, "half an image");
    }

    /// Sequences with the images behind their places, which are added up with a table, are turned and put back: all
    /// tensors of the batch are as many times longer.
    #[test]
    fn what_was_described_for_two_images_is_that_of_five() {
        let (mut one, x) = Builder::new("two", 2, [3, 2, 2]);
        let x = one.permute("turned", x, &[1, 0, 2, 3]).unwrap();
        let x = one.reshape("rows", x, dims([6, 4])).unwrap();
        let x = one.activation("relu", x, Activation::RELU);
        let x = one.reshape("apart", x, dims([3, 2, 4])).unwrap();
        let table = one.learned("table", dims([3, 1, 4]), Init::Zero, false);
        let table = one.reshape("table.operand", table, dims([3, 1, 4])).unwrap();
        let table = one.expand("table.stretched", table, dims([3, 2, 4])).unwrap();
        let x = one.binary("add", Binary::Add, x, table).unwrap();
        let x = one.permute("back", x, &[1, 0, 2]).unwrap();
        let x = one.reshape("flat", x, dims([2, 12])).unwrap();
        let scores = one.linear("fc", x, 4);
        let (mut five, _) = Builder::new("five", 5, [3, 2, 2]);
        let scores = five.add_batched(&one, scores, |_, _, _| false).unwrap();
        assert_eq!(five.shape(scores).0, [5, 4]);
        let graph = five.finish(scores);
        let lengths: Vec<usize> =
            graph.nodes.iter().map(|node| graph.tensor(node.outputs[0]).spec.shape.elements()).collect();
        assert!(lengths.iter().all(|length| length.is_multiple_of(5) || *length == 12), "{lengths:?}");
        assert!(
            !graph.nodes.iter().any(|node| matches!(node.op, Op::Permute(_))),
            "images lie first all the way"
        );
    }

    #[test]
    fn images_that_are_mixed_are_refused() {
        let (mut one, x) = Builder::new("mixed", 2, [1, 2, 2]);
        let x = one.sum("sum", x, &[0], 0.5).unwrap();
        let x = one.reshape("flat", x, dims([1, 4])).unwrap();
        let (mut net, _) = Builder::new("net", 3, [1, 2, 2]);
        let error = net.add_batched(&one, x, |_, _, _| false).unwrap_err();
        assert!(error.message.contains("layer sum: mixes the 2 images"), "{}", error.message);
    }
}
